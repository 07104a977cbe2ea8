use super::*;

fn read(text: &str) -> Result<Document, ReadError> {
    let url = "https://example.org/feeds/a/2.atom".parse().unwrap();
    Document::read(text.as_bytes().to_vec().into(), &url)
}

#[test]
fn a_foreign_entry_takes_with_it_what_its_feed_says() {
    let feed = read(
        "<feed xmlns='http://www.w3.org/2005/Atom' xml:base='../b/' xml:lang='de'><id>urn:f</id>\
         <author><name>Alice</name></author><entry><id>urn:1</id></entry>\
         <entry xml:lang='fr' xml:base='/'><id>urn:2</id><author><name>Bob</name></author></entry></feed>",
    );
    let feed = feed.unwrap();
    let alone = |index| String::from_utf8(feed.stand_alone(index).unwrap().to_vec()).unwrap();
    let (first, second) = (alone(0), alone(1));
    assert!(
        first.contains("xml:base=\"https://example.org/feeds/b/\""),
        "{first}"
    );
    assert!(first.contains("xml:lang=\"de\""), "{first}");
    assert!(
        first.contains("<author><name>Alice</name></author><id>urn:1</id>"),
        "{first}"
    );
    let own = second.contains("xml:lang='fr'") && second.contains("Bob");
    assert!(
        own && !second.contains("de") && !second.contains("Alice"),
        "{second}"
    );
}

const GOOD: &str = "<?xml version='1.0'?>\n<feed xmlns='http://www.w3.org/2005/Atom'>\
    <id>urn:f</id><updated>2026-11-20T08:00:00Z</updated>\
    <link href='recent.atom' rel='http://www.iana.org/assignments/relation/current'/>\
    <fh:archive xmlns:fh='http://purl.org/syndication/history/1.0'/>\
    <history xmlns='urn:simplefeed:1' first='7' before='0000000000000000000000000000000000000000000000000000000000000000'/>\
    <entry xmlns='http://www.w3.org/2005/Atom'><id>urn:b&amp;<![CDATA[c]]></id><x><id>no</id></x></entry>\n\
    <entry><source><id>no</id></source><id>urn:a</id></entry></feed>\n";

#[test]
fn entries_are_the_bytes_of_the_document() {
    let document = read(GOOD).unwrap();
    assert_eq!(document.len(), 2);
    let newest = document.entry(0).unwrap();
    assert_eq!(newest.id, "urn:b&c");
    assert!(newest.fragment.starts_with(b"<entry xmlns") && newest.fragment.ends_with(b"</entry>"));
    assert_eq!(document.entry(1).unwrap().id, "urn:a");
    assert_eq!(document.find("urn:a"), Some(1));
}

#[test]
fn the_head_is_read() {
    let document = read(GOOD).unwrap();
    assert_eq!(document.feed, "urn:f");
    assert_eq!(
        document.link("current").unwrap().as_str(),
        "https://example.org/feeds/a/recent.atom"
    );
    assert!(document.archived);
    assert_eq!(document.history.unwrap().0, Position(7));
    assert_eq!(document.updated, Timestamp::parse("2026-11-20T08:00:00Z"));
}

/// Goal: a body cut anywhere is never taken for a shorter document.
/// Method: every prefix of a document is tried.
#[test]
fn a_truncated_document_is_an_error() {
    let complete = GOOD.trim_end();
    for end in 0..complete.len() {
        if complete.is_char_boundary(end) {
            assert!(read(&complete[..end]).is_err(), "cut at {end}");
        }
    }
}

#[test]
fn a_byte_order_mark_moves_no_slice() {
    let document = read(&format!("\u{feff}{GOOD}")).unwrap();
    assert!(
        document
            .entry(0)
            .unwrap()
            .fragment
            .starts_with(b"<entry xmlns")
    );
    assert!(document.entry(1).unwrap().fragment.ends_with(b"</entry>"));
}

#[test]
fn positions_that_overflow_are_not_believed() {
    let text = GOOD.replace("first='7'", "first='18446744073709551614'");
    assert_eq!(read(&text).unwrap().history, None);
}

#[test]
fn xml_base_moves_links() {
    let document = read(
        "<feed xmlns='http://www.w3.org/2005/Atom' xml:base='/x/'><id>urn:f</id>\
         <link rel='a' href='1'/><link rel='b' xml:base='y/' href='1'/></feed>",
    )
    .unwrap();
    assert_eq!(document.link("a").unwrap().path(), "/x/1");
    assert_eq!(document.link("b").unwrap().path(), "/x/y/1");
}

#[test]
fn prefixed_atom_is_atom() {
    let document = read(
        "<a:feed xmlns:a='http://www.w3.org/2005/Atom'><a:id>urn:f</a:id><id>no</id>\
         <b:entry xmlns:b='http://www.w3.org/2005/Atom'><id>no</id><b:id>urn:e</b:id></b:entry></a:feed>",
    )
    .unwrap();
    assert_eq!(document.feed, "urn:f");
    assert_eq!(document.entry(0).unwrap().id, "urn:e");
}

#[test]
fn entries_of_foreign_feeds_can_stand_alone() {
    let document = read(
        "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:x='urn:x'><id>urn:f</id>\
         <entry xmlns:x='urn:y'><id>urn:e</id><title>T</title><x:z/></entry></feed>",
    )
    .unwrap();
    let element = document.stand_alone(0).unwrap();
    let text = std::str::from_utf8(&element).unwrap();
    assert!(
        text.starts_with("<entry xmlns=\"http://www.w3.org/2005/Atom\" xmlns:x='urn:y'>"),
        "{text}"
    );
    let event = crate::event::Event::from_entry(text).unwrap();
    assert_eq!(event.title.as_deref(), Some("T"));
}

/// One foreign entry without an id stops none of the others, and is the same one at each look.
#[test]
fn an_entry_without_id_has_a_stand_in() {
    let odd = "<entry><title>a</title></entry><entry><id> </id></entry><entry/><entry></entry>";
    let text = format!(
        "<feed xmlns='http://www.w3.org/2005/Atom'><id>f</id>{odd}<entry><id>urn:1</id></entry></feed>"
    );
    let ids = |text: &str| {
        let document = read(text).unwrap();
        let ids = (0..document.len()).map(|index| document.entry(index).unwrap().id.to_owned());
        ids.collect::<Vec<_>>()
    };
    let found = ids(&text);
    assert_eq!(found, ids(&text));
    let distinct: std::collections::BTreeSet<_> = found.iter().collect();
    assert_eq!(distinct.len(), 4, "{found:?}");
    assert!(
        found
            .iter()
            .take(3)
            .all(|id| id.starts_with(STAND_IN) && id.len() == 53)
    );
    assert_eq!(found.last().unwrap(), "urn:1");
    assert_ne!(found[0], ids(&text.replace(">a<", ">b<"))[0]);
}

#[test]
fn what_is_no_feed_is_an_error() {
    for (text, why) in [
        ("", "no document"),
        ("<html><body>Log in</body></html>", "not an Atom feed"),
        ("<feed><id>urn:f</id></feed>", "not an Atom feed"),
        (
            "<feed xmlns='http://www.w3.org/2005/Atom'/>",
            "feed has no id",
        ),
        (
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>f</id>\
             <h xmlns='urn:simplefeed:1'/><history xmlns='urn:simplefeed:1' first='0' \
             before='0000000000000000000000000000000000000000000000000000000000000000'/>\
             <entry><id/></entry></feed>",
            "entry has no id",
        ),
        (
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>f</id></feed>x",
            "after the root",
        ),
        (
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>f</id></feed><feed/>",
            "after the root",
        ),
        (
            "<!DOCTYPE x><feed xmlns='http://www.w3.org/2005/Atom'><id>f</id></feed>",
            "DOCTYPE",
        ),
        (
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>&x;</id></feed>",
            "&x;",
        ),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    let deep = format!(
        "<feed xmlns='http://www.w3.org/2005/Atom'><id>f</id>{}",
        "<a>".repeat(140)
    );
    assert!(read(&deep).expect_err("deep").to_string().contains("deep"));
}
