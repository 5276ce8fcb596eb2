//! A name means one thing: no two types of the engine's crates share one, so that a reader who finds it knows what it
//! is.
//!
//! Types are read with `syn`, from the crates' own code; tests are left out, and types inside of functions, which no
//! other code sees.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The engine's crates.
const CRATES: [&str; 7] =
    ["farpage-base", "farpage-ipc", "farpage-codec", "farpage-server", "farpage-device", "farpage-run", "farpage"];

/// Names that stand for two types on purpose, and why.
const SHARED: [(&str, &str); 1] =
    [("Pager", "what moves pages for a program, and what does for regions: neither folder knows the other's")];

/// Whether an item is only there for tests.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        a.path().is_ident("cfg") && matches!(&a.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
    })
}

/// Adds the types that `items` of the file `place` define.
fn note(items: &[syn::Item], place: &str, found: &mut BTreeMap<String, Vec<String>>) {
    for item in items {
        let (attributes, name) = match item {
            syn::Item::Struct(i) => (&i.attrs, &i.ident),
            syn::Item::Enum(i) => (&i.attrs, &i.ident),
            syn::Item::Union(i) => (&i.attrs, &i.ident),
            syn::Item::Trait(i) => (&i.attrs, &i.ident),
            syn::Item::Type(i) => (&i.attrs, &i.ident),
            syn::Item::Mod(i) if !is_for_tests(&i.attrs) => {
                note(i.content.as_ref().map_or(&[][..], |(_, items)| items), place, found);
                continue;
            }
            _ => continue,
        };
        if !is_for_tests(attributes) {
            found.entry(name.to_string()).or_default().push(place.to_string());
        }
    }
}

/// Adds the types of all files below `dir`.
fn walk(dir: &Path, found: &mut BTreeMap<String, Vec<String>>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if ["tests", "testing"].contains(&stem) {
            continue;
        }
        if path.is_dir() {
            walk(&path, found);
        } else {
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            note(&file.items, path.to_str().unwrap(), found);
        }
    }
}

#[test]
fn no_two_types_share_a_name() {
    let mut found = BTreeMap::new();
    for of in CRATES {
        walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of).join("src"), &mut found);
    }
    assert!(found.len() > 100, "types were found");
    found.retain(|name, places| places.len() > 1 && SHARED.iter().all(|(shared, _)| shared != name));
    assert!(found.is_empty(), "defined more than once: {found:#?}");
}
