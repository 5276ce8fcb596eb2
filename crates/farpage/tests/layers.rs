//! The house has floors. Crates are (cargo sees to it); where a crate has some, a folder uses only those below it. And
//! in no crate do files use each other in a circle, but for those of [`CIRCLES`], which may only become shorter.
//!
//! What a file uses is read with `syn`: from its `use` items, from the paths in its code, and from its calls of methods
//! by `self.name()` or `Self::name()`, or of a parameter, which lead to the file with that `impl`. Tests are left out.
//! Other calls of methods do not count: they go where the receiver's type is, which has been imported somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::punctuated::Punctuated;
use syn::visit::Visit;

/// Folders of a crate that use those before them only.
const FLOORS: &[(&str, &[&str])] = &[
    ("farpage-base", &["sys", "mem"]),
    ("farpage-ipc", &["conf", "stat", "tree"]),
    (
        "farpage-run",
        &[
            "probe",
            "cpus",
            "shared",
            "store",
            "privileges",
            "threads",
            "budget",
            "mappings",
            "pager",
            "fork",
            "dormant",
            "monitor",
            "lifecycle",
        ],
    ),
];

/// Files that use each other in a circle, and may: by crate. Nothing is ever added; what is in no circle any more has
/// to be taken off.
const CIRCLES: &[(&str, &str)] = &[
    (
        "farpage",
        "region/alloc region/division region/evict region/fault region/fork region/owner region/pager_core region/prefetch region/publish region/reclaim region/registry region/signal region/store region/swap_in region/syscalls region/thread_mode",
    ),
    ("farpage-base", "sys/uffd sys/uffd/given"),
    ("farpage-swap", "cluster cluster/hint"),
    (
        "farpage-swap",
        "cluster/cache cluster/device cluster/pending cluster/ready cluster/reclaim cluster/refs \
         cluster/scan cluster/search cluster/swap cluster/worker",
    ),
    ("seed-bench", "io/ahead io/measure"),
    ("seed-bench", "slots slots/bare slots/load slots/model slots/real slots/report slots/single"),
];

/// A module's path below the crate, `["run", "pager", "fault"]`.
type Module = Vec<String>;
/// What each module of a crate uses: other modules, not itself and not the crate's root.
type Graph = BTreeMap<Module, BTreeSet<Module>>;
/// A method: its type and its name.
type Method = (String, String);

#[derive(Default)]
struct File {
    /// Paths it uses, from the crate's root on.
    uses: BTreeSet<Vec<String>>,
    /// Names that it gives on: name, and path of what is behind it.
    gives_on: BTreeMap<String, Vec<String>>,
    /// Methods that it has.
    methods: BTreeSet<Method>,
    /// Methods that it calls of what it implements, and of parameters.
    calls: BTreeSet<Method>,
    /// Modules in files of their own that only tests have.
    for_tests: BTreeSet<String>,
}

struct Reader<'a> {
    here: &'a Module,
    modules: &'a BTreeSet<Module>,
    /// Whose `impl` this is.
    implements: Option<String>,
    /// Parameters of the function, and their types.
    parameters: BTreeMap<String, String>,
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

    /// Notes the parameters of a function, and reads it.
    fn with_parameters(&mut self, signature: &syn::Signature, read: impl FnOnce(&mut Self)) {
        let typed = signature.inputs.iter().filter_map(|input| match input {
            syn::FnArg::Typed(input) => match &*input.pat {
                syn::Pat::Ident(name) => Some((name.ident.to_string(), name_of(&input.ty)?)),
                _ => None,
            },
            syn::FnArg::Receiver(_) => None,
        });
        let outer = std::mem::replace(&mut self.parameters, typed.collect());
        read(self);
        self.parameters = outer;
    }

    fn calls(&mut self, method: &syn::Ident) {
        if let Some(of) = &self.implements {
            self.file.calls.insert((of.clone(), method.to_string()));
        }
    }
}

/// The name of a type, behind a reference or not.
fn name_of(of: &syn::Type) -> Option<String> {
    match of {
        syn::Type::Reference(of) => name_of(&of.elem),
        syn::Type::Path(of) => of.path.segments.last().map(|s| s.ident.to_string()),
        _ => None,
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        let syn::Meta::List(list) = &a.meta else { return false };
        let condition = list.tokens.to_string();
        a.path().is_ident("cfg") && (condition == "test" || condition.replace(' ', "").starts_with("all(test,"))
    })
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        } else if item.content.is_none() {
            self.file.for_tests.insert(item.ident.to_string());
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.tree(&item.tree, &[], !matches!(item.vis, syn::Visibility::Inherited));
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if is_test(&item.attrs) {
            return;
        }
        let of = name_of(&item.self_ty);
        if let Some(of) = &of {
            for item in &item.items {
                if let syn::ImplItem::Fn(method) = item {
                    self.file.methods.insert((of.clone(), method.sig.ident.to_string()));
                }
            }
        }
        let outer = std::mem::replace(&mut self.implements, of);
        syn::visit::visit_item_impl(self, item);
        self.implements = outer;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            self.with_parameters(&item.sig, |reader| syn::visit::visit_item_fn(reader, item));
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.with_parameters(&item.sig, |reader| syn::visit::visit_impl_item_fn(reader, item));
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if let syn::Expr::Path(path) = &*call.receiver
            && let Some(receiver) = path.path.get_ident()
        {
            if receiver == "self" {
                self.calls(&call.method);
            } else if let Some(of) = self.parameters.get(&receiver.to_string()) {
                self.file.calls.insert((of.clone(), call.method.to_string()));
            }
        }
        syn::visit::visit_expr_method_call(self, call);
    }

    /// Arguments, where they are ordinary code.
    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let arguments = item.parse_body_with(Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated);
        arguments.iter().flatten().for_each(|argument| {
            let mut inner = Reader {
                here: self.here,
                modules: self.modules,
                implements: self.implements.clone(),
                parameters: self.parameters.clone(),
                file: std::mem::take(&mut self.file),
            };
            inner.visit_expr(argument);
            self.file = inner.file;
        });
        syn::visit::visit_macro(self, item);
    }

    /// A path that says which modules see an item does not use them.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let path_here: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if path_here.len() == 2 && path_here[0] == "Self" {
            self.calls(&path.segments[1].ident);
        } else if path_here.len() > 1
            && path.leading_colon.is_none()
            && let Some(path) = self.absolute(&path_here)
        {
            self.file.uses.insert(path);
        }
        syn::visit::visit_path(self, path);
    }
}

/// Files below `dir`, by module.
fn sources(dir: &Path, here: &Module, found: &mut BTreeMap<Module, String>) {
    let has_library = dir.join("lib.rs").exists();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_string();
        let mut module = here.clone();
        if path.is_dir() {
            module.push(stem);
            sources(&path, &module, found);
        } else if path.extension().is_some_and(|kind| kind == "rs")
            && !["tests", "testing"].contains(&stem.as_str())
            && !here.contains(&"tests".to_string())
        {
            let is_root = stem == "lib" || stem == "main" && here.is_empty() && !has_library;
            if stem != "mod" && !is_root {
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

/// The folder of all crates.
fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn files(name: &str) -> BTreeMap<Module, File> {
    let mut texts = BTreeMap::new();
    sources(&crates().join(name).join("src"), &Vec::new(), &mut texts);
    let modules: BTreeSet<Module> = texts.keys().cloned().collect();
    let read = |(here, text): (&Module, &String)| {
        let mut reader =
            Reader { here, modules: &modules, implements: None, parameters: BTreeMap::new(), file: File::default() };
        reader.visit_file(&syn::parse_file(text).unwrap());
        (here.clone(), reader.file)
    };
    let mut files: BTreeMap<Module, File> = texts.iter().map(read).collect();
    let beside = |here: &Module, name: &String| here.iter().chain([name]).cloned().collect::<Module>();
    let for_tests: Vec<Module> =
        files.iter().flat_map(|(here, file)| file.for_tests.iter().map(|name| beside(here, name))).collect();
    files.retain(|here, _| !for_tests.iter().any(|module| here.starts_with(module)));
    files
}

/// What the files of a crate import of each other.
fn imports(files: &BTreeMap<Module, File>) -> Graph {
    let uses = |here: &Module, file: &File| {
        let found = file.uses.iter().filter_map(|path| target(path, files, 0));
        found.filter(|module| module != here && !module.is_empty()).collect()
    };
    files.iter().map(|(here, file)| (here.clone(), uses(here, file))).collect()
}

/// Adds the files of the methods that each calls.
fn add_calls(graph: &mut Graph, files: &BTreeMap<Module, File>) {
    for (here, file) in files {
        let elsewhere = file.calls.difference(&file.methods);
        let has = |method| files.iter().filter(move |(_, file)| file.methods.contains(method)).map(|(there, _)| there);
        graph.entry(here.clone()).or_default().extend(elsewhere.flat_map(has).filter(|m| !m.is_empty()).cloned());
    }
}

/// The sets of files that use each other, each with all that it reaches and that reach it.
fn circles(graph: &Graph) -> Vec<BTreeSet<Module>> {
    fn reach(graph: &Graph, from: &Module, found: &mut BTreeSet<Module>) {
        for there in graph.get(from).into_iter().flatten() {
            if found.insert(there.clone()) {
                reach(graph, there, found);
            }
        }
    }
    let reached: BTreeMap<&Module, BTreeSet<Module>> = graph
        .keys()
        .map(|here| {
            let mut found = BTreeSet::new();
            reach(graph, here, &mut found);
            (here, found)
        })
        .collect();
    let in_circle = graph.keys().filter(|here| reached[here].contains(*here));
    let circle = |here: &Module| reached[here].iter().filter(|m| reached[m].contains(here)).cloned().collect();
    in_circle.map(circle).collect::<BTreeSet<_>>().into_iter().collect()
}

fn name(module: &Module) -> String {
    module.join("/")
}

#[test]
fn a_folder_uses_only_those_below_it() {
    let mut upward = Vec::new();
    for (of, floors) in FLOORS.iter().copied() {
        let floor = |module: &Module| floors.iter().position(|floor| *floor == module[0]);
        for (here, used) in imports(&files(of)).iter().filter(|(here, _)| !here.is_empty()) {
            assert!(floor(here).is_some(), "{of}: {} is on no floor", here[0]);
            for there in used.iter().filter(|there| floor(there) > floor(here)) {
                upward.push(format!("{of}: {} uses {}", name(here), name(there)));
            }
        }
    }
    assert!(upward.is_empty(), "upwards:\n{}", upward.join("\n"));
}

#[test]
fn no_files_use_each_other_in_a_circle_but_those_listed() {
    let mut wrong = Vec::new();
    let mut listed: Vec<(&str, BTreeSet<&str>)> =
        CIRCLES.iter().map(|(of, files)| (*of, files.split_whitespace().collect())).collect();
    for entry in fs::read_dir(crates()).unwrap() {
        let of = entry.unwrap().file_name().into_string().unwrap();
        let files = files(&of);
        let mut graph = imports(&files);
        add_calls(&mut graph, &files);
        for circle in circles(&graph) {
            let names: Vec<String> = circle.iter().map(name).collect();
            let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
            let mut mine = listed.iter_mut().filter(|(crate_of, listed)| *crate_of == of && names.is_subset(listed));
            let Some((_, left)) = mine.next() else {
                let uses = |here: &Module| {
                    let used: Vec<String> = graph[here].intersection(&circle).map(name).collect();
                    format!("    {} uses {}", name(here), used.join(", "))
                };
                let uses: Vec<String> = circle.iter().map(uses).collect();
                wrong.push(format!("{of}: a new circle, or a larger one:\n{}", uses.join("\n")));
                continue;
            };
            left.retain(|name| !names.contains(name));
        }
    }
    for (of, left) in listed.iter().filter(|(_, left)| !left.is_empty()) {
        wrong.push(format!("{of}: no circle any more, to be taken off the list: {left:?}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
