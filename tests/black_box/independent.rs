//! Readers that nobody here wrote: Python's XML parsers and xmllint.
#![expect(clippy::print_stderr, reason = "figures belong into the log")]

use std::{collections::BTreeMap, path::Path, process::Command};

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

/// The golden chain hashes follow from the definition, by another program.
#[test]
#[ignore = "needs python3 and xmllint"]
fn the_chain_hash_is_what_the_definition_says() {
    let script = workspace().join("tests/independent_chain.py");
    let output = Command::new("python3").arg(script).output().unwrap();
    let golden =
        std::fs::read_to_string(workspace().join("server/log/src/contract/tests.rs")).unwrap();
    let hashes = text(&output.stdout);
    let hashes: Vec<&str> = hashes.lines().collect();
    assert_eq!(hashes.len(), 2, "{}", text(&output.stderr));
    for hash in hashes {
        assert!(hash.len() == 64 && golden.contains(hash), "{hash}");
    }
}

/// Publishes every document below a folder and lets libxml2 compare what comes back.
#[track_caller]
fn check_infoset(documents: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let output = Command::new(python_with("lxml"))
        .arg(workspace().join("tests/independent_infoset.py"))
        .arg(server.url(""))
        .arg(documents)
        .output()
        .unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    eprintln!("{}", said.trim_end());
}

/// Debian's modules belong to Debian's Python, which need not be the first on the path.
pub(crate) fn python_with(module: &str) -> &'static str {
    let import = format!("import {module}");
    let has_module = |python: &&str| {
        let output = Command::new(python).args(["-c", &import]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let pythons = ["python3", "/usr/bin/python3"];
    let found = pythons.into_iter().find(has_module);
    found.unwrap_or_else(|| panic!("no python3 has {module}"))
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

/// JSON values that readers have garbled: markup, entities, white space, numbers, depth.
fn values() -> Vec<String> {
    let texts = [
        "<b>bold</b>",
        "]]>",
        "&amp; &lt;i&gt;",
        "  lead and trail\\t",
        "\\n\\nlines\\n",
        "<!-- c -->",
        "\\u003cscript\\u003e",
        "é 漢 😀",
        "\\ud83d\\ude00",
        "\\\\ \\/",
        "null",
        "http://h/?a=1&b=2",
        "",
    ];
    let mut values = vec![];
    for n in 0..400 {
        let (text, key) = (texts[n % texts.len()], texts[n / texts.len() % texts.len()]);
        let number = ["1.50", "1E+2", "-0", "12345678901234567890", "0.1"][n % 5];
        values.push(match n % 4 {
            0 => format!("\"{text}\""),
            1 => format!("{{ \"{key}\" : \"{text}\",\t\"n\":{number}, \"none\":null}}"),
            2 => format!("[{number}, [], {{}}, true, \"{text}\"]"),
            _ => format!("{{\"a\":[{{\"{key}\":[[\"{text}\"]]}}]}}"),
        });
    }
    values
}

/// Follows the link of an entry, as a feed reader's user does.
#[track_caller]
fn opens_a_page(server: &Server, link: &str) {
    let path = link.strip_prefix(&server.url("")).unwrap();
    let answer = server.get(path);
    assert_eq!(answer.status, 307, "{link}");
    let base = url::Url::parse(link).unwrap();
    let page = base.join(answer.header("location")).unwrap();
    assert_eq!(server.get(page.path()).status, 200, "{page}");
}

/// Goal: newsboat, a feed reader, opens the page of each entry.
#[test]
#[ignore = "needs newsboat"]
fn newsboat_opens_the_page_of_an_entry() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"), &[]);
    server.publish_ids("a", (0..20).map(|id| id.to_string()));
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("urls"), server.url("/feeds/a/recent.atom")).unwrap();
    std::fs::write(file("config"), "").unwrap();
    let output = Command::new("newsboat")
        .args(["-x", "reload", "-u"])
        .arg(file("urls"))
        .arg("-c")
        .arg(file("cache"))
        .arg("-C")
        .arg(file("config"))
        .env("HOME", folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stored = "import sqlite3, sys\n\
        for row in sqlite3.connect(sys.argv[1]).execute('select url from rss_item'): print(row[0])";
    let output = Command::new("python3")
        .args(["-c", stored])
        .arg(file("cache"))
        .output()
        .unwrap();
    let links = text(&output.stdout);
    assert_eq!(links.lines().count(), 20, "{}", text(&output.stderr));
    for link in links.lines() {
        opens_a_page(&server, link);
    }
}

/// JSON events come back equal through feedparser, which most Python readers are made of.
#[test]
#[ignore = "needs python3-feedparser"]
fn json_comes_back_equal_through_feedparser() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "60"]);
    let values = values();
    let lines = values.iter().enumerate().map(|(n, value)| {
        format!("{{\"id\":\"urn:j:{n}\",\"type\":\"application/json\",\"content\":{value}}}\n")
    });
    let url = server.url("/feeds/a");
    simplefeed(&["append", &url], lines.collect::<String>().as_bytes());
    let output = Command::new(python_with("feedparser"))
        .arg(workspace().join("tests/independent_feedparser.py"))
        .arg(url)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut read = BTreeMap::new();
    for line in text(&output.stdout).lines() {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(entry["type"], "text/json");
        opens_a_page(&server, entry["link"].as_str().unwrap());
        let id = entry["id"].as_str().unwrap().to_owned();
        assert_eq!(
            read.insert(id, entry["text"].as_str().unwrap().to_owned()),
            None
        );
    }
    assert_eq!(read.len(), values.len());
    for (n, value) in values.iter().enumerate() {
        let found = &read[&format!("urn:j:{n}")];
        // (feedparser trims the text of an element.)
        assert_eq!(found.trim(), value.trim(), "{n}");
    }
}

/// Goal: the W3C's validator finds no error in any document, of any kind of event.
#[test]
#[ignore = "needs W3C_VALIDATOR, the folder of w3c/feedvalidator's code, and its modules lxml, html5lib and rdflib"]
#[expect(clippy::disallowed_methods, reason = "the folder is not ours")]
fn the_w3c_validator_finds_no_error() {
    let validator = std::env::var("W3C_VALIDATOR").expect("W3C_VALIDATOR names the folder");
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &["--document-entries", "5"]);
    let kinds = [
        r#""content":{"n":N,"s":"<b>&]]> é"}"#,
        r#""content":"text","type":"application/json""#,
        r#""content":{"n":N},"type":"application/ld+json""#,
        r#""content":"plain <b>text</b> & more N""#,
        r#""content":"a,b\n1,N\n","type":"text/csv""#,
        r#""content":"<p>Hello <b>N</b> &amp; more</p>","type":"html""#,
        r#""content":"<div xmlns=\"http://www.w3.org/1999/xhtml\"><p>N</p></div>","type":"xhtml""#,
        r#""content":"<order xmlns=\"http://example.org/order\"/>","type":"application/xml""#,
        r#""content":"iVBORw0KGgo=","type":"image/png","summary":"a picture""#,
        r#""content":{"n":N},"author":[{"name":"A","uri":"http://example.org/a"},"B"],"categories":["c",{"term":"t","scheme":"http://example.org/s"}],"links":[{"href":"http://example.org/N","type":"text/html","hreflang":"en","length":12},{"href":"http://example.org/N.pdf","rel":"enclosure","type":"application/pdf","length":"34"}],"summary":"s N","published":"2026-01-01T00:00:00Z""#,
        r#""title":"5 < 6 & <b>so</b> on""#,
    ];
    let mut urls = vec![];
    for (kind, members) in kinds.iter().enumerate() {
        let feed = format!("k{kind}");
        let lines = (0..12).map(|n| {
            let members = members.replace('N', &n.to_string());
            format!("{{\"id\":\"urn:uuid:00000000-0000-4000-8000-{kind:04x}{n:08x}\",{members}}}\n")
        });
        let answer = server.publish(&feed, &lines.collect::<String>());
        assert_eq!(answer.status, 201, "{}", answer.text());
        for document in [
            "",
            "/recent.atom",
            "/1.atom",
            "/2.atom",
            "/3.atom",
            "/entries/0.atom",
        ] {
            urls.push(server.url(&format!("/feeds/{feed}{document}")));
        }
    }
    // Every entry once more, with its source; some of them linked, because they are too large.
    for (timeline, embed) in [("home", ""), ("linked", r#","embed":700"#)] {
        let settings =
            format!(r#"{{"kind":"timeline","following":["k*"],"document_entries":5{embed}}}"#);
        let created = server.send(&Request::put(&format!("/feeds/{timeline}"), &settings));
        assert_eq!(created.status, 201, "{}", created.text());
    }
    for (kind, members) in kinds.iter().enumerate() {
        let line = format!("{{\"id\":\"urn:uuid:00000000-0000-4000-9000-{kind:012x}\",\"n\":1}}");
        let line = line.replace("\"n\":1", &members.replace('N', "99"));
        assert_eq!(server.publish(&format!("k{kind}"), &line).status, 201);
    }
    for timeline in ["home", "linked"] {
        for document in [
            "",
            "/recent.atom",
            "/1.atom",
            "/2.atom",
            "/entries/3.atom",
            "/page.atom",
        ] {
            urls.push(server.url(&format!("/feeds/{timeline}{document}")));
        }
    }
    let output = Command::new(python_with("lxml, html5lib, rdflib"))
        .arg(workspace().join("tests/independent_validator.py"))
        .arg(validator)
        .args(&urls)
        .output()
        .unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    eprintln!("{}", said.trim_end());
}

/// Prints, as hexadecimal numbers: the characters beyond ASCII that expat takes at the beginning of a name,
/// those that it takes within one, and those beside them that it does not take there.
const NAMES: &str = r#"
import xml.parsers.expat as expat
def taken(name):
    try:
        expat.ParserCreate("utf-8").Parse(("<%s/>" % name).encode(), True)
        return True
    except expat.ExpatError:
        return False
every = [c for c in range(0x80, 0x10000) if not 0xd800 <= c < 0xe000] + [0x10000, 0xeffff]
for form in ("%sa", "a%s"):
    good = {c for c in every if taken(form % chr(c))}
    beside = {c + d for c in good for d in (-1, 1)} | {0x10000, 0xeffff}
    for found in (good, beside.difference(good).intersection(every)):
        print(" ".join("%x" % c for c in sorted(found)))
"#;

/// Goal: a name is accepted if and only if expat, a parser of XML 1.0's fourth edition, takes it.
#[test]
#[ignore = "needs python3"]
fn names_are_those_that_expat_takes() {
    let printed = Command::new("python3")
        .args(["-c", NAMES])
        .output()
        .unwrap();
    assert!(printed.status.success(), "{}", text(&printed.stderr));
    let lines: Vec<Vec<char>> = text(&printed.stdout)
        .lines()
        .map(|line| {
            let numbers = line.split(' ');
            let parsed = numbers.map(|number| u32::from_str_radix(number, 16).unwrap());
            parsed
                .map(|number| char::from_u32(number).unwrap())
                .collect()
        })
        .collect();
    let [first, not_first, within, not_within] = &lines[..] else {
        panic!("{} lines", lines.len())
    };
    assert!(first.len() > 30_000 && not_first.len() > 100);
    assert!(within.len() > first.len() && not_within.len() > 100);
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let post = |elements: &str| {
        let entry = format!(
            "<entry xmlns='http://www.w3.org/2005/Atom'><content type='application/xml'>\
             <r xmlns='urn:x'>{elements}</r></content></entry>"
        );
        server.send(&Request::post("/feeds/a", "application/atom+xml", entry))
    };
    for good in [
        first.iter().map(|c| format!("<{c}a/>")).collect::<String>(),
        format!("<a{}/>", within.iter().collect::<String>()),
    ] {
        let answer = post(&good);
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    let bad_first = not_first.iter().map(|c| (c, format!("<{c}a/>")));
    let bad_within = not_within.iter().map(|c| (c, format!("<a{c}/>")));
    for (c, bad) in bad_first.chain(bad_within) {
        let status = post(&bad).status;
        assert!((400..500).contains(&status), "{c:?} in {bad}: {status}");
    }
}
