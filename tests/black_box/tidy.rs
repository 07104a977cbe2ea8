//! The rules of the house that a machine can check.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use syn::{
    UseTree,
    visit::{self, Visit},
};

use crate::harness::{files, workspace};

fn sources() -> Vec<(PathBuf, String)> {
    [
        "core/src",
        "core/tests",
        "server/src",
        "server/process/src",
        "server/log/src",
        "server/resource/src",
        "server/views/src",
        "server/http/src",
        "server/publish/src",
        "client/src",
        "client/cli/src",
        "queue/src",
        "queue/tests",
        "tests/src",
        "tests/black_box",
        "bench/src",
    ]
    .iter()
    .map(|folder| workspace().join(folder))
    .filter(|folder| folder.exists())
    .flat_map(|folder| files(&folder))
    .filter(|(path, _)| path.extension().is_some_and(|kind| kind == "rs"))
    .map(|(path, bytes)| (path, String::from_utf8(bytes).unwrap()))
    .collect()
}

fn is_tests(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| stem == "tests")
}

#[test]
fn every_file_says_what_it_knows() {
    for (path, text) in sources() {
        assert!(
            text.starts_with("//! ") || is_tests(&path),
            "{} has no header",
            path.display()
        );
    }
}

/// Invariant 10, as far as words can show it; `tests/run` asks cargo for the rest.
#[test]
fn core_touches_nothing() {
    for (path, text) in sources() {
        if path.starts_with(workspace().join("core")) && !is_tests(&path) {
            for word in [
                "std::fs",
                "std::net",
                "std::thread",
                "SystemTime",
                "async fn",
                "tokio",
            ] {
                assert!(!text.contains(word), "{} mentions {word}", path.display());
            }
        }
    }
}

/// Invariant 8: consumers follow links and never construct a URL.
#[test]
fn the_client_contains_no_path() {
    for (path, text) in sources() {
        if path.starts_with(workspace().join("client/src")) {
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            for line in code {
                for word in ["/feeds", "recent.atom", "index.json", ".atom\""] {
                    assert!(!line.contains(word), "{} contains {word}", path.display());
                }
            }
        }
    }
}

/// Whether a source names the crate sled: a path or an import that begins with this name. The room of the log that keeps
/// a log on a disk has the same name, below `crate` or `super`.
#[derive(Default)]
struct SledNames(bool);

impl<'ast> Visit<'ast> for SledNames {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.take(&item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0 |= path.segments.len() > 1 && path.segments[0].ident == "sled";
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invoked: &'ast syn::Macro) {
        let words = invoked.tokens.to_string();
        self.0 |= words.matches("sled ::").count() > words.matches(":: sled ::").count();
    }
}

impl SledNames {
    fn take(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.0 |= path.ident == "sled",
            UseTree::Name(name) => self.0 |= name.ident == "sled",
            UseTree::Rename(rename) => self.0 |= rename.ident == "sled",
            UseTree::Group(group) => group.items.iter().for_each(|item| self.take(item)),
            UseTree::Glob(_) => {}
        }
    }

    fn are_in(source: &str) -> bool {
        let mut names = Self::default();
        names.visit_file(&syn::parse_file(source).unwrap());
        names.0
    }
}

#[test]
fn only_the_log_names_sled() {
    for (path, text) in sources() {
        let allowed = path.ends_with("log/src/sled/settled.rs")
            || path.ends_with("recover/tests.rs")
            || path.starts_with(workspace().join("bench"));
        assert!(
            allowed || !SledNames::are_in(&text),
            "{} uses sled",
            path.display()
        );
    }
    for planted in [
        "fn a() { let db = sled::open(p); }",
        "fn a() { use sled::open; }",
        "use sled as store;",
        "use {std::fs, sled::Db};",
        "fn a() -> ::sled::Db { loop {} }",
        "fn a() { run!(sled::transaction::abort(1)); }",
    ] {
        assert!(SledNames::are_in(planted), "not seen: {planted}");
    }
    let room = "use crate::sled::seen; fn a() { super::sled::b(); run!(crate::sled::b()); }";
    assert!(!SledNames::are_in(room));
}

/// The table "to change X, open Y" would be worse than none if it were wrong.
#[test]
fn the_paths_in_the_documentation_exist() {
    let mut found = 0;
    for page in [
        "ARCHITECTURE.md",
        "README.md",
        "CONTRIBUTING.md",
        "docs/decisions.md",
        "docs/operations.md",
        "docs/protocol.md",
    ] {
        let text = std::fs::read_to_string(workspace().join(page)).unwrap();
        for word in text.split('`').skip(1).step_by(2) {
            let rooted = [
                "core/",
                "server/",
                "client/",
                "tests/",
                "docs/",
                "fixtures/",
                "bench/",
                "queue/",
            ];
            if rooted.iter().any(|root| word.starts_with(root)) && !word.contains([' ', '*', '{']) {
                assert!(workspace().join(word).exists(), "{page} names {word}");
                found += 1;
            }
        }
    }
    assert!(found > 20, "the pages name files in backticks");
}

/// Each invariant is stated in ARCHITECTURE.md with the test that holds it, and that test exists.
#[test]
fn every_invariant_has_its_test() {
    let text = std::fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap();
    let all: String = sources().into_iter().map(|(_, text)| text).collect();
    let section = text
        .split("## Invariants")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let mut numbered = 0;
    for line in section
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
    {
        numbered += 1;
        let test = line
            .rsplit('`')
            .nth(1)
            .unwrap_or_else(|| panic!("no test: {line}"));
        assert!(all.contains(&format!("fn {test}(")), "no test named {test}");
    }
    assert_eq!(numbered, 12);
}

/// Every public item of the client crate stands in an example, or says why it does not.
#[test]
fn every_public_item_of_the_client_has_an_example() {
    let client: Vec<_> = sources()
        .into_iter()
        .filter(|(path, _)| path.starts_with(workspace().join("client/src")) && !is_tests(path))
        .collect();
    let examples: String = client.iter().map(|(_, text)| examples_in(text)).collect();
    let words: Vec<_> = examples
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let (mut items, mut missing) = (0, vec![]);
    for (path, text) in &client {
        let mut doc = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(more) = line.strip_prefix("///") {
                doc.push_str(more);
                continue;
            }
            let name = public_item(line);
            if let Some(name) = name {
                let called = [
                    format!(".{name}("),
                    format!("::{name}("),
                    format!("fn {name}("),
                ];
                let is_function = line.contains("fn ");
                let is_called = called.iter().any(|call| examples.contains(call));
                let shown = if is_function {
                    is_called
                } else {
                    words.contains(&name)
                };
                let shown = shown || doc.contains("No example:");
                if !shown {
                    missing.push(format!("{}: {name}", path.display()));
                }
                items += 1;
            }
            if !line.starts_with("#[") {
                doc.clear();
            }
        }
    }
    assert!(missing.is_empty(), "without an example: {missing:#?}");
    assert!(items > 60, "only {items} public items");
}

/// The client stands alone: whoever embeds it needs no other crate of ours.
#[test]
fn examples_of_the_client_import_only_the_client() {
    let mut examples = 0;
    for (path, text) in sources() {
        if path.starts_with(workspace().join("client/src")) {
            let code = examples_in(&text);
            examples += usize::from(!code.is_empty());
            for word in ["simplefeed_core", "simplefeed_server"] {
                assert!(!code.contains(word), "{} imports {word}", path.display());
            }
        }
    }
    assert!(examples > 10, "only {examples} files with examples");
}

/// The code in the documentation of a file.
fn examples_in(text: &str) -> String {
    let mut inside = false;
    let mut code = String::new();
    for line in text.lines().map(str::trim) {
        let comment = line.strip_prefix("///").or(line.strip_prefix("//!"));
        match comment.map(str::trim) {
            None => inside = false,
            Some(fence) if fence.starts_with("```") => inside = !inside,
            Some(line) if inside => {
                code.push_str(line);
                code.push('\n');
            }
            Some(_) => {}
        }
    }
    code
}

/// The name of the public type, trait, function or constant that a line begins.
fn public_item(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ")?;
    let rest = rest.strip_prefix("async ").unwrap_or(rest);
    let kinds = ["fn ", "struct ", "enum ", "trait ", "type ", "const "];
    let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
}

/// What operators read is what the tests start.
#[test]
fn the_operations_page_shows_the_configurations() {
    let page = std::fs::read_to_string(workspace().join("docs/operations.md")).unwrap();
    for (path, bytes) in files(&workspace().join("docs/nginx")) {
        let config = String::from_utf8(bytes).unwrap();
        let shown = format!("```nginx\n{config}```\n");
        assert!(
            page.contains(&shown),
            "{} is shown otherwise",
            path.display()
        );
    }
}

/// A promise on a page names the test that holds it, and that test exists.
#[test]
fn the_tests_that_the_pages_name_exist() {
    let all: String = sources().into_iter().map(|(_, text)| text).collect();
    let mut found = 0;
    for page in ["docs/protocol.md", "docs/operations.md"] {
        let text = std::fs::read_to_string(workspace().join(page)).unwrap();
        for word in text.split('`').skip(1).step_by(2) {
            let is_test = word.matches('_').count() >= 2
                && !word.starts_with("proxy_")
                && !word.starts_with("simplefeed_")
                && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if is_test {
                assert!(all.contains(&format!("fn {word}(")), "{page} names {word}");
                found += 1;
            }
        }
    }
    assert!(found > 30, "only {found} tests are named");
}

/// The files of the server, as `room/file`, without their tests.
fn server() -> Vec<(String, String)> {
    let root = workspace().join("server");
    let files = sources().into_iter().filter(|(path, _)| !is_tests(path));
    let files = files.filter_map(|(path, text)| {
        let file = path.strip_prefix(&root).ok()?.to_str()?;
        let file = file.strip_prefix("src/").map_or(file, |own| own);
        let file = file.replacen("/src/", "/", 1);
        let code = text.lines();
        let code = code.take_while(|line| !line.starts_with("mod tests {"));
        let code = code.filter(|line| !line.trim_start().starts_with("//"));
        Some((file, code.collect::<Vec<_>>().join("\n")))
    });
    files.collect()
}

/// Asserts that no file of a room names any of some words, and that the room has files.
#[track_caller]
fn names_none(room: &str, is_in: impl Fn(&str) -> bool, words: &[&str]) {
    let files: Vec<_> = server()
        .into_iter()
        .filter(|(file, _)| is_in(file))
        .collect();
    assert!(!files.is_empty(), "{room} has no files");
    for (file, code) in files {
        for word in words {
            assert!(!code.contains(word), "{room}: {file} names {word}");
        }
    }
}

/// Documents need no more of a log than its series.
#[test]
fn documents_are_made_of_a_series() {
    let reads = [
        "reading.rs",
        "frozen.rs",
        "index.rs",
        "archive.rs",
        "archive/writing.rs",
        "archive/trees.rs",
        "archive/salvage.rs",
    ];
    let is_read = |file: &str| {
        reads
            .iter()
            .any(|read| *file == format!("views/documents/{read}"))
    };
    names_none("reading", is_read, &["EntryLog"]);
}

/// The opening of a pipe waits, so the rooms that keep files open them by one module, which does not.
#[test]
fn files_are_opened_without_waiting() {
    for room in ["log/", "views/", "upkeep"] {
        let is_in = |file: &str| file.starts_with(room) && !file.contains("/tests/");
        let waiting = [
            "File::open(",
            "File::create(",
            "fs::read(",
            "fs::read_to_string(",
            "fs::write(",
        ];
        names_none(room, is_in, &waiting);
    }
}

/// What upkeep does with views is the same for each of them.
#[test]
fn upkeep_names_no_view() {
    let upkeep = |file: &str| {
        let knows_none = ["verify", "rebuild", "export", "backup"];
        knows_none
            .iter()
            .any(|name| file == format!("upkeep/{name}.rs"))
    };
    names_none("upkeep", upkeep, &["documents::", "sup::", "archive::"]);
}

/// The throw-away view has endpoints and a section of a page. It is in two files of its own, and in twelve lines of
/// others: ten that name it, and the docs of two fields. Attributes are not counted: it is for tests only.
#[test]
fn a_view_touches_its_own_files() {
    let mut lines = vec![];
    let mut own = 0;
    for (path, text) in sources() {
        if !path.starts_with(workspace().join("server/src")) || path.ends_with("serve/tests.rs") {
            continue;
        }
        if path.ends_with("views/counts.rs") || path.ends_with("endpoints/counts.rs") {
            own += 1;
            continue;
        }
        let is_wiring = path.ends_with("src/views.rs") || path.ends_with("src/endpoints.rs");
        let names_it = |line: &&str| {
            let code = line.trim_start();
            let is_named = code.contains("counts::") || code.contains("mod counts");
            is_named || is_wiring && !code.starts_with("//") && code.starts_with("counts")
        };
        lines.extend(text.lines().filter(names_it).map(str::to_owned));
    }
    assert_eq!(own, 2);
    assert!((6..=10).contains(&lines.len()), "{lines:#?}");
}

/// Every rule that code, a test or a page names stands in `docs/rules.md`, and every rule there is named somewhere.
#[test]
fn every_rule_that_is_named_is_explained() {
    let page = std::fs::read_to_string(workspace().join("docs/rules.md")).unwrap();
    let explained: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .filter(|id| is_rule(id))
        .collect();
    assert!(explained.len() > 60, "{explained:?}");
    let pages = [
        "README.md",
        "ARCHITECTURE.md",
        "docs/decisions.md",
        "docs/protocol.md",
        "docs/operations.md",
        "docs/consumers.md",
    ];
    let pages = pages.map(|page| std::fs::read_to_string(workspace().join(page)).unwrap());
    let sources: Vec<String> = sources()
        .into_iter()
        .map(|(_, text)| text)
        .chain(pages)
        .collect();
    let named: BTreeSet<&str> = sources
        .iter()
        .flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-'))
        .filter(|word| is_rule(word))
        .collect();
    // In an example of what is not a rule.
    let named: BTreeSet<&str> = named.into_iter().filter(|id| *id != "FH-99").collect();
    assert_eq!(named, explained);
}

/// Returns whether a word is the id of a rule.
fn is_rule(word: &str) -> bool {
    let families = [
        "A-", "FH-", "H-", "SF-", "SF-E", "SUP-A", "SUP-C", "SUP-F", "SUP-P", "TU-", "TU-D",
    ];
    families.iter().any(|family| {
        let number = word.strip_prefix(family);
        number.is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    })
}
