//! What timelines show of entries.

use super::*;

const VIA: &str = r#"<link xmlns="http://www.w3.org/2005/Atom" rel="via" href="http://h/feeds/a/entries/7.atom" type="application/atom+xml;type=entry"/>"#;
const SOURCE: &str = r#"<source xmlns="http://www.w3.org/2005/Atom"><id>urn:a</id><title>A &amp; B</title><updated>2023-11-14T22:13:20.000000Z</updated><link rel="self" href="http://h/feeds/a/recent.atom"/></source>"#;
const LINKED: &str = r#"<content xmlns="http://www.w3.org/2005/Atom" type="application/atom+xml;type=entry" src="http://h/feeds/a/entries/7.atom"/>"#;
const NO_SUMMARY: &str = r#"<summary xmlns="http://www.w3.org/2005/Atom"/>"#;
const DATES: &str =
    "<updated>2023-01-01T00:00:00Z</updated><published>2022-01-01T00:00:00Z</published>";

fn show(entry: &str, embed: Embed) -> String {
    let origin = EntryOrigin {
        entry_url: "http://h/feeds/a/entries/7.atom",
        feed_id: "urn:a",
        title: "A & B",
        instant: Timestamp::from_micros(1_700_000_000_000_000),
        feed_url: "http://h/feeds/a/recent.atom",
    };
    let shown = shown(&Bytes::copy_from_slice(entry.as_bytes()), &origin, embed).unwrap();
    String::from_utf8(shown.to_vec()).unwrap()
}

/// Golden: these bytes stand in documents that caches keep for ever.
#[test]
fn an_entry_tells_where_it_comes_from() {
    let entry =
        "<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:1</id><content>x</content></entry>";
    let (before, end) = entry.split_at(entry.len() - "</entry>".len());
    assert_eq!(
        show(entry, Embed::All),
        format!("{before}{VIA}{SOURCE}{end}")
    );
    // Prefixes and white space are the entry's own.
    let prefixed =
        "<a:entry xmlns:a=\"http://www.w3.org/2005/Atom\"><a:id>urn:1</a:id></a:entry\n>";
    let (before, end) = prefixed.split_at(prefixed.len() - "</a:entry\n>".len());
    assert_eq!(
        show(prefixed, Embed::All),
        format!("{before}{VIA}{SOURCE}{end}")
    );
}

/// Only an Atom source of the entry itself counts: the word alone does not, nor one of another name space or inside.
#[test]
fn a_source_of_its_own_stays() {
    let entry = |inside: &str| {
        format!(
            "<entry xmlns=\"http://www.w3.org/2005/Atom\" xmlns:o=\"urn:o\"><id>urn:1</id>{inside}</entry>"
        )
    };
    let own = entry("<source><id>urn:b</id></source>");
    assert!(!show(&own, Embed::All).contains(SOURCE));
    for other in [
        "<o:source/>",
        "<o:x><source/></o:x>",
        "<title>source</title>",
    ] {
        assert!(show(&entry(other), Embed::All).contains(SOURCE), "{other}");
    }
}

#[test]
fn the_content_of_a_large_entry_is_linked() {
    let entry = |summary: &str, rest: &str| {
        format!(
            "<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:1</id><title>t</title>{DATES}{summary}\
             <content type=\"text\">{}</content>{rest}</entry>",
            "x".repeat(600)
        )
    };
    let plain = entry("", "<category term=\"c\"/>");
    let embed = Embed::Bytes(500);
    let expected = format!(
        "<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:1</id><title>t</title>{DATES}{LINKED}{NO_SUMMARY}\
         <category term=\"c\"/>{VIA}{SOURCE}</entry>"
    );
    assert_eq!(show(&plain, embed), expected);
    let summed = show(&entry("<summary>s</summary>", ""), embed);
    assert!(summed.contains("<summary>s</summary>") && !summed.contains(NO_SUMMARY));
    // At the bound it is there as a whole.
    let bytes = u32::try_from(plain.len()).unwrap();
    assert!(show(&plain, Embed::Bytes(bytes)).contains("xxxx"));
    assert!(!show(&plain, Embed::Bytes(bytes - 1)).contains("xxxx"));
}

/// What is large beside its content, or has none, keeps what every entry has.
#[test]
fn an_entry_that_is_still_too_large_is_reduced() {
    let large = format!("<summary>{}</summary>", "s".repeat(900));
    let author = "<p:author><p:name>N</p:name></p:author>";
    let entry = format!(
        "<p:entry xmlns:p=\"http://www.w3.org/2005/Atom\"><p:id>urn:1</p:id><p:title>t</p:title>\
         <p:updated>2023-01-01T00:00:00Z</p:updated>{author}{}<p:content>c</p:content></p:entry>",
        large.replace("summary", "p:summary")
    );
    let outlined =
        "<p:author xmlns:p=\"http://www.w3.org/2005/Atom\"><p:name>N</p:name></p:author>";
    let expected = format!(
        "<entry xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:1</id><title>urn:1</title>\
         <updated>2023-01-01T00:00:00Z</updated>{outlined}{LINKED}{NO_SUMMARY}{VIA}{SOURCE}</entry>"
    );
    assert_eq!(show(&entry, Embed::Bytes(800)), expected);
    let based = entry.replacen("<p:entry ", "<p:entry xml:base=\"http://b/?a&amp;b\" ", 1);
    let expected = expected.replacen(
        "<entry xmlns=\"http://www.w3.org/2005/Atom\">",
        "<entry xmlns=\"http://www.w3.org/2005/Atom\" xml:base=\"http://b/?a&amp;b\">",
        1,
    );
    assert_eq!(show(&based, Embed::Bytes(800)), expected);
    let without = format!(
        "<entry xmlns=\"http://www.w3.org/2005/Atom\" xml:base=\"http://b/\"><id>urn:1</id>{DATES}\
         <author><name>{}</name></author><link href=\"http://x/\"/></entry>",
        "n".repeat(3_000)
    );
    let reduced = show(&without, Embed::Bytes(1));
    assert!(!reduced.contains("author") && !reduced.contains("xml:base"));
    assert!(reduced.contains(DATES) && reduced.contains(LINKED));
}
