//! Readers that nobody here wrote: Python's XML parsers and xmllint.
#![expect(clippy::print_stderr, reason = "figures belong into the log")]

use std::{path::Path, process::Command};

use crate::{
    harness::{Server, events, files, simplefeed, text, workspace},
    http::Request,
};

/// Goal: the documents are Atom for everybody, and the hashes are what the protocol says.
/// Method: `independent_reader.py` walks the feed with Python's standard library only.
#[test]
#[ignore = "needs python3 and xmllint"]
fn independent_readers_agree() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "7"]);
    let feed = server.url("/feeds/a");
    simplefeed(&["append", &feed], events(100).as_bytes());
    let atom = "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:x='urn:x' xml:lang='de'>\
        <author><name>A &amp; B</name></author>\
        <entry><id>urn:atom:2</id><title type='xhtml'><div xmlns='http://www.w3.org/1999/xhtml'><b>x</b></div></title>\
        <x:more a='1'/></entry>\
        <entry><id>urn:atom:1</id><content type='application/vnd.x+xml'><x:root q='x:name'/></content></entry></feed>";
    let posted = server.send(&Request::post("/feeds/a", "application/atom+xml", atom));
    assert_eq!(posted.status, 201, "{}", posted.text());
    let prefixed =
        "<a:entry xmlns:a='http://www.w3.org/2005/Atom'><a:id>urn:atom:3</a:id><plain/></a:entry>";
    assert_eq!(
        server
            .send(&Request::post("/feeds/a", "application/atom+xml", prefixed))
            .status,
        201
    );
    server.wait_until_frozen("/feeds/a/14.atom");

    let script = workspace().join("tests/independent_reader.py");
    let output = Command::new("python3")
        .arg(script)
        .arg(server.url("/feeds/a/recent.atom"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    let ids = text(&output.stdout);
    let expected: String = (0..100)
        .map(|n| format!("urn:event:{n}\n"))
        .chain((1..=3).map(|n| format!("urn:atom:{n}\n")))
        .collect();
    assert_eq!(ids, expected);

    let mut documents: Vec<_> = files(&folder.path().join("www"))
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    documents.retain(|path| path.extension().is_some_and(|kind| kind == "atom"));
    assert_eq!(documents.len(), 14);
    let recent = folder.path().join("recent.atom");
    std::fs::write(&recent, server.get("/feeds/a/recent.atom").body).unwrap();
    let entry = folder.path().join("entry.atom");
    std::fs::write(&entry, server.get("/feeds/a/entries/102.atom").body).unwrap();
    let output = Command::new("xmllint")
        .args(["--noout", "--nonet"])
        .args(documents)
        .arg(recent)
        .arg(entry)
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        text(&output.stderr)
    );
}

/// The golden chain hash follows from the definition, by another program.
#[test]
#[ignore = "needs python3 and xmllint"]
fn the_chain_hash_is_what_the_definition_says() {
    let script = workspace().join("tests/independent_chain.py");
    let output = Command::new("python3").arg(script).output().unwrap();
    let golden = std::fs::read_to_string(workspace().join("server/src/log/contract.rs")).unwrap();
    let hash = text(&output.stdout);
    assert_eq!(hash.trim().len(), 64, "{}", text(&output.stderr));
    assert!(golden.contains(hash.trim()));
}

/// Publishes every document below a folder and lets libxml2 compare what comes back.
#[track_caller]
fn check_infoset(documents: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let output = Command::new(python_with_lxml())
        .arg(workspace().join("tests/independent_infoset.py"))
        .arg(server.url(""))
        .arg(documents)
        .output()
        .unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    eprintln!("{}", said.trim_end());
}

/// Debian's lxml belongs to Debian's Python, which need not be the first on the path.
fn python_with_lxml() -> &'static str {
    let has_lxml = |python: &&str| {
        let output = Command::new(python).args(["-c", "import lxml"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    ["python3", "/usr/bin/python3"]
        .into_iter()
        .find(has_lxml)
        .expect("python3 with lxml")
}

/// Goal: entries keep what they were given: inline XML, extensions, prefixes that only values use,
/// `xml:base`, `xml:lang`, CDATA, prefixed Atom, XHTML with inherited prefixes.
#[test]
#[ignore = "needs python3-lxml"]
fn entries_come_back_with_the_infoset_they_were_given() {
    check_infoset(&workspace().join("fixtures/infoset"));
}

/// The same with the 820 documents of w3c/feedvalidator, which also say what must be accepted.
#[test]
#[ignore = "needs python3-lxml and FEEDVALIDATOR, the folder of w3c/feedvalidator's test cases"]
#[expect(clippy::disallowed_methods, reason = "the folder is not ours")]
fn the_feed_validators_documents_are_kept_or_refused() {
    let folder = std::env::var("FEEDVALIDATOR").expect("FEEDVALIDATOR names the folder");
    check_infoset(Path::new(&folder));
}
