//! Which processes may be cut: rules by name, user and cgroup.
//!
//! Caller: [`super`]. No locks.

use crate::user;
use glob::{Pattern, PatternError};

/// One `--only` or `--never`: parts that all have to hold.
#[derive(Debug, Clone)]
pub struct Rule(Vec<Part>);

#[derive(Debug, Clone)]
enum Part {
    Name(Pattern),
    User(u32),
    Cgroup(Pattern),
}

/// What is wrong with a rule.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// There is no `=`.
    #[error("a rule is name=GLOB, user=NAME or cgroup=GLOB")]
    NoRule,
    /// What is before it.
    #[error("{0}: a rule has name, user and cgroup")]
    Key(String),
    /// A pattern.
    #[error("{0}: {1}")]
    Glob(String, PatternError),
    /// A name that no user here has.
    #[error("{0}: no such user")]
    User(String),
}

/// What rules are asked about.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The name of the process, and that of its executable's file: the kernel cuts the first one to 15 characters.
    pub names: [&'a str; 2],
    /// Its user.
    pub uid: u32,
    /// Its memory cgroup.
    pub cgroup: Option<&'a str>,
}

impl Rule {
    /// Reads `name=GLOB`, `user=NAME|UID`, `cgroup=GLOB`, or more of them with commas between.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Rule, RuleError> {
        text.split(',').map(Part::parse).collect::<Result<_, _>>().map(Rule)
    }

    fn holds(&self, of: Subject<'_>) -> bool {
        self.0.iter().all(|part| match part {
            Part::Name(pattern) => of.names.iter().any(|name| pattern.matches(name)),
            Part::User(uid) => *uid == of.uid,
            Part::Cgroup(pattern) => of.cgroup.is_some_and(|path| pattern.matches(path)),
        })
    }
}

impl Part {
    fn parse(text: &str) -> Result<Part, RuleError> {
        let (key, value) = text.split_once('=').ok_or(RuleError::NoRule)?;
        let glob = || Pattern::new(value).map_err(|error| RuleError::Glob(value.into(), error));
        match key {
            "name" => glob().map(Part::Name),
            "user" => user::uid(value).map(Part::User).ok_or_else(|| RuleError::User(value.into())),
            "cgroup" => glob().map(Part::Cgroup),
            _ => Err(RuleError::Key(key.into())),
        }
    }
}

/// Whether a process, or a tree of several, may be cut: one of `only` holds for one of them, or there are none, and
/// none of `never` holds for any.
pub fn allow(only: &[Rule], never: &[Rule], of: &[Subject<'_>]) -> bool {
    let holds = |rules: &[Rule]| of.iter().any(|one| rules.iter().any(|rule| rule.holds(*one)));
    (only.is_empty() || holds(only)) && !holds(never)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Vec<Rule> {
        texts.iter().map(|text| Rule::parse(text).unwrap()).collect()
    }

    #[test]
    fn by_name_user_and_cgroup() {
        let java = Subject { names: ["java", "java"], uid: 0, cgroup: Some("/system.slice/app.service") };
        let shell = Subject { names: ["bash", "bash"], uid: 1000, cgroup: None };
        assert!(allow(&[], &[], &[java]));
        let only = rules(&["name=java", "name=python*"]);
        assert!(allow(&only, &[], &[java]) && !allow(&only, &[], &[shell]));
        let never = rules(&["user=root,cgroup=/system.slice/*", "user=1000,name=b?sh"]);
        assert!(!allow(&[], &never, &[java]) && !allow(&[], &never, &[shell]));
        assert!(allow(&[], &never, &[Subject { cgroup: Some("/user.slice"), ..java }]));
        assert!(!allow(&only, &rules(&["name=*"]), &[java]));
        // One of a tree is enough, for each of the two.
        assert!(allow(&only, &[], &[shell, java]) && !allow(&[], &rules(&["name=java"]), &[shell, java]));
        let long = Subject { names: ["a-program-with-", "a-program-with-a-long-name"], ..java };
        assert!(!allow(&[], &rules(&["name=a-program-with-a-long-name"]), &[long]));
    }

    #[test]
    fn what_is_no_rule() {
        for text in ["", "java", "comm=java", "user=nobody-has-this-name", "name=[", "name=a,"] {
            assert!(Rule::parse(text).is_err(), "{text}");
        }
    }
}
