//! The walls of the house: which crate may know which, and that no view names another.
//!
//! Between crates, cargo is asked. Between views, which are siblings in one crate, each path in the source is resolved: a
//! search for words would miss a glob, a new name or a re-export.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
};

use syn::{
    UseTree,
    visit::{self, Visit},
};

use crate::harness::{files, workspace};

/// Packages by name, each with those that it depends on.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Rooms of the server with the crates of ours that they may depend on, and packages that none of their dependencies may be.
const ROOMS: &[(&str, &[&str], &[&str])] = &[
    ("core", &[], &["tokio", "hyper", "sled"]),
    ("process", &["core"], &["hyper", "sled"]),
    ("log", &["core", "process"], &["hyper"]),
    ("resource", &["core"], &["hyper", "sled", "tokio"]),
    ("views", &["core", "process", "log", "resource"], &["hyper"]),
    ("http", &["core", "process", "resource"], &["sled"]),
    (
        "publish",
        &["core", "process", "log", "resource"],
        &["hyper"],
    ),
    ("queue", &[], &["hyper", "sled"]),
    ("client", &["core", "queue"], &["sled"]),
];

fn cargo(args: &[&str]) -> Vec<u8> {
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(args).current_dir(workspace()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Returns cargo's description of the workspace and its dependencies.
fn metadata() -> serde_json::Value {
    let version = String::from_utf8(cargo(&["-vV"])).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let metadata = cargo(&[
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--offline",
        // Packages of other platforms are not there.
        "--filter-platform",
        host.unwrap(),
    ]);
    serde_json::from_slice(&metadata).unwrap()
}

/// Returns what the packages of the workspace need to run, by name.
fn graph() -> Graph {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let names: BTreeMap<&str, &str> = packages
        .iter()
        .map(|package| {
            (
                package["id"].as_str().unwrap(),
                package["name"].as_str().unwrap(),
            )
        })
        .collect();
    let mut graph = Graph::new();
    for node in metadata["resolve"]["nodes"].as_array().unwrap() {
        let needed = node["deps"].as_array().unwrap().iter().filter(|dep| {
            let mut kinds = dep["dep_kinds"].as_array().unwrap().iter();
            kinds.any(|kind| kind["kind"].is_null())
        });
        let needed = needed.map(|dep| names[dep["pkg"].as_str().unwrap()].to_owned());
        let name = names[node["id"].as_str().unwrap()].to_owned();
        graph.entry(name).or_default().extend(needed);
    }
    graph
}

fn reached<'g>(graph: &'g Graph, from: &'g str) -> BTreeSet<&'g str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(package) = next.pop() {
        if seen.insert(package) {
            next.extend(graph.get(package).into_iter().flatten().map(String::as_str));
        }
    }
    seen
}

/// Returns each dependency that a room may not have.
fn breaches(graph: &Graph) -> Vec<String> {
    let mut found = vec![];
    for (room, known, never) in ROOMS {
        let room = format!("simplefeed-{room}");
        assert!(graph.contains_key(&room), "there is no {room}");
        for other in reached(graph, &room) {
            let is_known = match other.strip_prefix("simplefeed-") {
                Some(ours) => other == room || known.contains(&ours),
                None => !never.contains(&other),
            };
            if !is_known {
                found.push(format!("{room} depends on {other}"));
            }
        }
    }
    found
}

/// Goal: `tests/run unit` leaves out the black box, and no other binary of tests: it tells them apart by their first letter.
#[test]
fn no_other_tests_begin_with_the_letter_of_the_black_box() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let ours = packages.filter(|package| package["source"].is_null());
    let targets = ours.flat_map(|package| package["targets"].as_array().unwrap());
    let tests = targets.filter(|target| target["kind"][0] == "test");
    let names: Vec<&str> = tests
        .map(|target| target["name"].as_str().unwrap())
        .collect();
    assert!(names.len() > 2, "{names:?}");
    let left_out: Vec<&str> = names
        .into_iter()
        .filter(|name| name.starts_with('b'))
        .collect();
    assert_eq!(left_out, ["black_box"]);
}

/// Goal: no crate knows one that stands above it; the views know no HTTP, HTTP no log, the log no HTTP.
#[test]
fn rooms_know_only_those_below_them() {
    let graph = graph();
    assert!(breaches(&graph).is_empty(), "{:#?}", breaches(&graph));
    // An arrow that must not be there is found, also behind another one.
    for (from, to, found) in [
        (
            "simplefeed-http",
            "simplefeed-log",
            "simplefeed-http depends on simplefeed-log",
        ),
        (
            "simplefeed-log",
            "hyper",
            "simplefeed-views depends on hyper",
        ),
        (
            "simplefeed-views",
            "simplefeed-publish",
            "simplefeed-views depends on simplefeed-publish",
        ),
        (
            "simplefeed-core",
            "tokio",
            "simplefeed-resource depends on tokio",
        ),
    ] {
        let mut planted = graph.clone();
        planted.get_mut(from).unwrap().insert(to.to_owned());
        let breaches = breaches(&planted);
        assert!(
            breaches.iter().any(|breach| breach == found),
            "{breaches:#?}"
        );
    }
}

/// Views, each in a file and a folder of its name.
const VIEWS: [&str; 5] = ["documents", "sup", "timelines", "push", "rates"];

/// Path of a module or item within a crate.
type Name = Vec<String>;

/// A crate as names: what each module declares, and what it gets from elsewhere.
#[derive(Default)]
struct Names {
    modules: BTreeSet<Name>,
    items: BTreeSet<Name>,
    /// Names that a module gives to paths of others.
    imports: BTreeMap<Name, BTreeMap<String, Name>>,
    /// Modules of which a module has all names.
    globs: BTreeMap<Name, Vec<Name>>,
    /// Paths that the code of a module names.
    named: BTreeMap<Name, Vec<Name>>,
}

impl Names {
    /// Reads the files of a crate, by their paths below `src`.
    fn of(sources: &BTreeMap<String, String>) -> Self {
        let mut names = Self::default();
        let module_of = |file: &str| -> Name {
            let path = file.strip_suffix(".rs").unwrap();
            let parts = path.split('/').map(str::to_owned);
            parts.filter(|part| part != "lib").collect()
        };
        names.modules = sources.keys().map(|file| module_of(file)).collect();
        for (file, source) in sources {
            let parsed = syn::parse_file(source).unwrap();
            let mut reader = Reader {
                module: module_of(file),
                names: &mut names,
            };
            reader.visit_file(&parsed);
        }
        names
    }

    /// Returns the path from the root that a path in a module stands for.
    fn resolved(&self, module: &Name, path: &[String], depth: usize) -> Option<Name> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => vec![],
            "self" => module.clone(),
            "super" => module.split_last()?.1.to_vec(),
            _ => return self.below(module, path, depth),
        };
        let mut at = start;
        let mut rest = rest;
        while let Some(more) = rest.strip_prefix(&["super".to_owned()]) {
            at.pop()?;
            rest = more;
        }
        if rest.is_empty() {
            return Some(at);
        }
        self.below(&at, rest, depth)
    }

    /// Returns what a path within a module stands for, through modules, imports and globs; `None` if it is of another
    /// crate.
    fn below(&self, module: &Name, path: &[String], depth: usize) -> Option<Name> {
        // Re-exports may lead in a circle.
        let depth = depth.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let child: Name = [module.clone(), vec![first.clone()]].concat();
        if self.modules.contains(&child) {
            let whole = self.below(&child, rest, depth);
            return whole.or(Some(child));
        }
        if self.items.contains(&child) {
            return Some(child);
        }
        if let Some(import) = self.imports.get(module).and_then(|names| names.get(first)) {
            let whole = [import.clone(), rest.to_vec()].concat();
            return self.resolved(module, &whole, depth);
        }
        let globs = self.globs.get(module).into_iter().flatten();
        let globs = globs.filter_map(|glob| self.resolved(module, glob, depth));
        globs
            .filter(|glob| glob != module)
            .find_map(|glob| self.below(&glob, path, depth))
    }

    /// Returns each path in a file of a view that stands for a part of another view.
    fn strangers(&self) -> Vec<String> {
        let view_of = |name: &Name| {
            VIEWS
                .into_iter()
                .find(|view| name.first().is_some_and(|first| first == view))
        };
        let mut found = vec![];
        let imported = self
            .imports
            .iter()
            .map(|(module, names)| (module, names.values()));
        let imported = imported.flat_map(|(module, paths)| paths.map(move |path| (module, path)));
        let globs = self
            .globs
            .iter()
            .flat_map(|(module, paths)| paths.iter().map(move |path| (module, path)));
        let named = self
            .named
            .iter()
            .flat_map(|(module, paths)| paths.iter().map(move |path| (module, path)));
        for (module, path) in imported.chain(globs).chain(named) {
            let Some(own) = view_of(module) else { continue };
            let resolved = self.resolved(module, path, 8);
            if let Some(other) = resolved
                .as_ref()
                .and_then(view_of)
                .filter(|other| *other != own)
            {
                found.push(format!(
                    "{} names {other}: {}",
                    module.join("::"),
                    path.join("::")
                ));
            }
        }
        found
    }
}

/// Collects the names of one file.
struct Reader<'n> {
    module: Name,
    names: &'n mut Names,
}

impl Reader<'_> {
    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        let mut keep = |name: String, path: Name| {
            let imports = self.names.imports.entry(self.module.clone()).or_default();
            imports.insert(name, path.clone());
            // Another import of the same name, or `_`, would hide this one.
            let named = self.names.named.entry(self.module.clone()).or_default();
            named.push(path);
        };
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &with(&path.ident)),
            UseTree::Name(name) if name.ident == "self" => {
                keep(before.last().cloned().unwrap_or_default(), before.to_vec());
            }
            UseTree::Name(name) => keep(name.ident.to_string(), with(&name.ident)),
            UseTree::Rename(rename) => keep(rename.rename.to_string(), with(&rename.ident)),
            UseTree::Glob(_) => {
                let globs = self.names.globs.entry(self.module.clone()).or_default();
                globs.push(before.to_vec());
            }
            UseTree::Group(group) => {
                for item in &group.items {
                    self.import(item, before);
                }
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, &[]);
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        let name = match item {
            syn::Item::Const(item) => Some(&item.ident),
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Fn(item) => Some(&item.sig.ident),
            syn::Item::Static(item) => Some(&item.ident),
            syn::Item::Struct(item) => Some(&item.ident),
            syn::Item::Trait(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            syn::Item::Union(item) => Some(&item.ident),
            _ => None,
        };
        let name = name.map(|name| [self.module.clone(), vec![name.to_string()]].concat());
        self.names.items.extend(name);
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let is_test = item.attrs.iter().any(|attribute| {
            let meta = &attribute.meta;
            meta.path().is_ident("cfg")
                && meta
                    .require_list()
                    .is_ok_and(|list| list.tokens.to_string() == "test")
        });
        if item.content.is_none() || is_test {
            return;
        }
        self.module.push(item.ident.to_string());
        self.names.modules.insert(self.module.clone());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let named = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        let named = named.collect();
        self.names
            .named
            .entry(self.module.clone())
            .or_default()
            .push(named);
        visit::visit_path(self, path);
    }

    /// Takes the words of a macro as statements, if they are such, and each path among the words.
    fn visit_macro(&mut self, invoked: &'ast syn::Macro) {
        let statements = invoked.parse_body_with(syn::Block::parse_within);
        for statement in statements.iter().flatten() {
            Visit::visit_stmt(self, statement);
        }
        let words = invoked.tokens.to_string().replace(" :: ", "::");
        let in_path = |letter: char| letter.is_alphanumeric() || "_:".contains(letter);
        let paths = words.split(|letter| !in_path(letter));
        let paths = paths.filter(|path| path.contains("::"));
        let paths = paths.map(|path| path.split("::").map(str::to_owned).collect());
        let named = self.names.named.entry(self.module.clone()).or_default();
        named.extend(paths);
        visit::visit_macro(self, invoked);
    }
}

/// Returns the files of the views' crate without tests, by their paths below `src`.
fn views() -> BTreeMap<String, String> {
    let root = workspace().join("server/views/src");
    let is_test = |file: &str| file.ends_with("tests.rs") || file.contains("tests/");
    files(&root)
        .into_iter()
        .map(|(path, bytes)| {
            let file = Path::new(&path)
                .strip_prefix(&root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            (file, String::from_utf8(bytes).unwrap())
        })
        .filter(|(file, _)| !is_test(file))
        .collect()
}

/// Goal: each view can go without the others noticing.
#[test]
fn views_name_no_other_view() {
    let strangers = Names::of(&views()).strangers();
    assert!(strangers.is_empty(), "{strangers:#?}");
}

/// Goal: a view that names another one is found, whatever the name looks like.
#[test]
fn a_view_that_names_another_is_found() {
    let named = "pub(crate) fn planted() -> Option<T> { None }";
    // Each with what it adds to the root of the crate.
    let disguises = [
        ("", format!("use crate::push::Push as T; {named}")),
        (
            "",
            format!("use crate::push::*; {}", named.replace('T', "Push")),
        ),
        (
            "",
            format!(
                "use super::push as other; {}",
                named.replace('T', "other::Push")
            ),
        ),
        (
            "pub use push::Push as Other;",
            format!("use crate::Other as T; {named}"),
        ),
        (
            "pub use push::Push as Other;",
            named.replace('T', "crate::Other"),
        ),
        (
            "pub mod shared { pub use super::push::*; }",
            format!("use crate::shared::*; {}", named.replace('T', "Push")),
        ),
        ("", named.replace('T', "crate::push::Push")),
        (
            "",
            format!("use super::*; {}", named.replace('T', "push::Push")),
        ),
        (
            "",
            "pub(crate) fn planted() -> bool { matches!(0, crate::push::PLANTED) }".into(),
        ),
        (
            "",
            "pub(crate) fn planted() { inside! { use crate::{push::Push as T}; } }".into(),
        ),
        (
            "",
            "fn a() { use crate::push::Push as T; } fn b() { use std::fmt as T; }".into(),
        ),
    ];
    for (root, code) in disguises {
        let mut sources = views();
        let lib = sources.get_mut("lib.rs").unwrap();
        lib.push_str(root);
        let view = sources.get_mut("rates.rs").unwrap();
        view.push_str(&code);
        let strangers = Names::of(&sources).strangers();
        assert!(
            strangers
                .iter()
                .any(|stranger| stranger.starts_with("rates names push")),
            "not seen: {root} {code}"
        );
    }
}
