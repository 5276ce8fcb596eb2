//! JSON objects whose keys keep the order in which they were written.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

/// Version of every JSON object that this command prints.
pub const SCHEMA: u32 = 1;

/// An object.
#[derive(Debug, Clone, Default)]
pub struct Object(Vec<(String, Member)>);

#[derive(Debug, Clone)]
enum Member {
    Value(Value),
    Object(Object),
    List(Vec<Object>),
}

impl Object {
    /// An object that starts with its schema version.
    pub fn with_schema() -> Object {
        let mut object = Object::default();
        object.put("schema", SCHEMA);
        object
    }

    /// Adds a plain value.
    pub fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.0.push((key.into(), Member::Value(value.into())));
    }

    /// Adds an object.
    pub fn put_object(&mut self, key: &str, object: Object) {
        self.0.push((key.into(), Member::Object(object)));
    }

    /// Adds a list of objects.
    pub fn put_list(&mut self, key: &str, list: Vec<Object>) {
        self.0.push((key.into(), Member::List(list)));
    }

    /// One line.
    pub fn line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Indented.
    pub fn pretty(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, member) in &self.0 {
            map.serialize_entry(key, member)?;
        }
        map.end()
    }
}

impl Serialize for Member {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Member::Value(value) => value.serialize(serializer),
            Member::Object(object) => object.serialize(serializer),
            Member::List(list) => list.serialize(serializer),
        }
    }
}
