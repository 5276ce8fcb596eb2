//! The house has floors: a folder of `src` uses only those below it, and no files use each other in a circle.
//!
//! What a file uses is read from its `use` items and from the paths in its code, with `syn`; tests are left out. Calls
//! of methods do not count: they go where the receiver's type is, which has been imported somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit::Visit;

/// From the ground up. `run` and `region` stand side by side: neither uses the other. `internals` is the door of them
/// all.
const FLOORS: [&[&str]; 10] = [
    &["sys"],
    &["mem"],
    &["conf"],
    &["mm"],
    &["swap"],
    &["stat"],
    &["probe"],
    &["tree"],
    &["run", "region"],
    &["internals"],
];

/// A module's path below the crate, `["run", "pager", "fault"]`.
type Module = Vec<String>;

#[derive(Default)]
struct File {
    /// Paths it uses, from the crate's root on.
    uses: BTreeSet<Vec<String>>,
    /// Names that it gives on: name, and path of what is behind it.
    gives_on: BTreeMap<String, Vec<String>>,
}

struct Reader<'a> {
    here: &'a Module,
    modules: &'a BTreeSet<Module>,
    file: File,
}

impl Reader<'_> {
    /// A path as written, from the root on; `None`: it begins in another crate, or with a name of this file.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let mut base = self.here.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => return Some(path[1..].to_vec()),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|s| s == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            child => {
                base.push(child.into());
                if !self.modules.contains(&base) {
                    return None;
                }
                rest = &path[1..];
            }
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    fn tree(&mut self, tree: &syn::UseTree, before: &[String], public: bool) {
        let mut path = before.to_vec();
        match tree {
            syn::UseTree::Path(p) => {
                path.push(p.ident.to_string());
                self.tree(&p.tree, &path, public);
            }
            syn::UseTree::Group(g) => g.items.iter().for_each(|tree| self.tree(tree, &path, public)),
            syn::UseTree::Name(n) => self.note(path, &n.ident.to_string(), &n.ident.to_string(), public),
            syn::UseTree::Rename(r) => self.note(path, &r.ident.to_string(), &r.rename.to_string(), public),
            syn::UseTree::Glob(_) => self.note(path, "self", "*", public),
        }
    }

    fn note(&mut self, mut path: Vec<String>, name: &str, called: &str, public: bool) {
        if name != "self" {
            path.push(name.into());
        }
        if let Some(path) = self.absolute(&path) {
            if public {
                self.file.gives_on.insert(called.into(), path);
            } else {
                self.file.uses.insert(path);
            }
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        a.path().is_ident("cfg") && matches!(&a.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
    })
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.tree(&item.tree, &[], !matches!(item.vis, syn::Visibility::Inherited));
        }
    }

    /// Who may see an item is no use of theirs.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let path_here: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if path_here.len() > 1
            && path.leading_colon.is_none()
            && let Some(path) = self.absolute(&path_here)
        {
            self.file.uses.insert(path);
        }
        syn::visit::visit_path(self, path);
    }
}

/// Files below `src`, by module.
fn sources(dir: &Path, here: &Module, found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_string();
        let mut module = here.clone();
        if path.is_dir() {
            module.push(stem);
            sources(&path, &module, found);
        } else if !["tests", "testing"].contains(&stem.as_str()) && !here.contains(&"tests".to_string()) {
            if !["mod", "lib"].contains(&stem.as_str()) {
                module.push(stem);
            }
            found.insert(module, fs::read_to_string(&path).unwrap());
        }
    }
}

/// Which module a path leads to: the longest one, through names that are given on.
fn target(path: &[String], files: &BTreeMap<Module, File>, depth: u32) -> Option<Module> {
    let at = (0..=path.len()).rev().find(|n| files.contains_key(&path[..*n]))?;
    if let Some(behind) = path.get(at).and_then(|name| files[&path[..at]].gives_on.get(name))
        && depth < 8
    {
        let behind: Vec<String> = behind.iter().chain(&path[at + 1..]).cloned().collect();
        return target(&behind, files, depth + 1);
    }
    Some(path[..at].to_vec())
}

/// What each module uses: other modules, not itself and not the crate's root.
fn graph() -> BTreeMap<Module, BTreeSet<Module>> {
    let mut texts = BTreeMap::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &Vec::new(), &mut texts);
    let modules: BTreeSet<Module> = texts.keys().cloned().collect();
    let files: BTreeMap<Module, File> = texts
        .iter()
        .map(|(here, text)| {
            let mut reader = Reader { here, modules: &modules, file: File::default() };
            reader.visit_file(&syn::parse_file(text).unwrap());
            (here.clone(), reader.file)
        })
        .collect();
    let uses = |here: &Module, file: &File| {
        let found = file.uses.iter().filter_map(|path| target(path, &files, 0));
        found.filter(|module| module != here && !module.is_empty()).collect()
    };
    files.iter().map(|(here, file)| (here.clone(), uses(here, file))).collect()
}

fn name(module: &Module) -> String {
    module.join("/")
}

fn floor(module: &Module) -> usize {
    let folder = module.first().map_or("", String::as_str);
    FLOORS.iter().position(|floor| floor.contains(&folder)).unwrap_or_else(|| panic!("{folder} is on no floor"))
}

#[test]
fn a_folder_uses_only_those_below_it() {
    let mut upward = Vec::new();
    for (here, used) in graph().iter().filter(|(here, _)| !here.is_empty()) {
        for there in used.iter().filter(|there| there[0] != here[0] && floor(there) >= floor(here)) {
            upward.push(format!("{} uses {}", name(here), name(there)));
        }
    }
    assert!(upward.is_empty(), "upwards:\n{}", upward.join("\n"));
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let mut left = graph();
    // Whoever uses nobody that is left can go; what stays is in a circle, or above one.
    loop {
        let done: Vec<Module> = left
            .iter()
            .filter(|(_, used)| used.iter().all(|m| !left.contains_key(m)))
            .map(|(m, _)| m.clone())
            .collect();
        if done.is_empty() {
            break;
        }
        done.iter().for_each(|module| drop(left.remove(module)));
    }
    // The same from above.
    loop {
        let used: BTreeSet<Module> = left.values().flatten().cloned().collect();
        let before = left.len();
        left.retain(|module, _| used.contains(module));
        if left.len() == before {
            break;
        }
    }
    let circle: Vec<String> = left
        .iter()
        .map(|(here, used)| {
            let used: Vec<String> = used.iter().filter(|m| left.contains_key(*m)).map(name).collect();
            format!("{} uses {}", name(here), used.join(", "))
        })
        .collect();
    assert!(circle.is_empty(), "in circles:\n{}", circle.join("\n"));
}
