use super::*;
use crate::entry::Additions;
use crate::{refusal::RefusalKind, timestamp::Timestamp};

const NS: &str = "xmlns='http://www.w3.org/2005/Atom'";

fn instant() -> Timestamp {
    Timestamp::parse("2026-11-20T08:00:00Z").unwrap()
}

fn complete(draft: &Draft) -> String {
    let id = draft
        .id
        .clone()
        .unwrap_or_else(|| EntryId::parse("urn:given").unwrap());
    String::from_utf8(
        draft
            .complete(&id, instant(), &additions())
            .unwrap()
            .to_vec(),
    )
    .unwrap()
}

#[track_caller]
fn one(text: &str) -> String {
    let drafts = scan(text.as_bytes()).unwrap_or_else(|refusal| panic!("{text}: {refusal}"));
    assert_eq!(drafts.len(), 1);
    let fragment = complete(&drafts[0]);
    roxmltree::Document::parse(&fragment).unwrap();
    fragment
}

#[track_caller]
fn refused(inside: &str, why: &str) {
    let text = format!("<entry {NS}>{inside}</entry>");
    let refusal = scan(text.as_bytes()).expect_err(inside);
    assert!(refusal.detail.contains(why), "{inside}: {refusal}");
}

#[test]
fn an_empty_entry_is_completed() {
    assert_eq!(
        one(&format!("<entry {NS}/>")),
        format!(
            "<entry {NS}><id>urn:given</id><title>urn:given</title>\
             <updated>2026-11-20T08:00:00.000000Z</updated>\
             <author><name>Simplefeed</name></author><content></content></entry>"
        )
    );
}

#[test]
fn a_complete_entry_is_stored_as_it_was_sent() {
    let entry = format!(
        "<entry {NS} xml:lang='de'><id>urn:a</id><title type='html'>&lt;b></title>\
         <updated>2026-01-01T00:00:00Z</updated><author><name>A</name></author>\
         <x:y xmlns:x='urn:x' a='&#10;'/><content type='application/vnd.x+xml'><o><![CDATA[<]]></o></content></entry>"
    );
    assert_eq!(one(&entry), entry);
}

#[test]
fn an_entry_with_an_alternate_link_needs_no_content() {
    let entry = one(&format!("<entry {NS}><link href='http://h/'/></entry>"));
    assert!(!entry.contains("<content"));
}

#[test]
fn an_author_of_the_source_is_the_author() {
    let entry = one(&format!(
        "<entry {NS}><source><author><name>S</name></author></source></entry>"
    ));
    assert_eq!(entry.matches("<author>").count(), 1);
}

/// Feeds list the newest first; what an entry inherits goes with it.
#[test]
fn entries_of_a_feed_stand_alone() {
    let feed = "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:x='urn:x' xml:lang='de' xml:base='http://h/a/'>\
        <entry xml:base='b/'><id>urn:2</id><link href='c'/></entry>\
        <entry xmlns:x='urn:other' xml:lang='en'><id>urn:1</id></entry>\
        <author><name>Ann &amp; Co</name><uri>me</uri></author></feed>";
    let drafts = scan(feed.as_bytes()).unwrap();
    let fragments: Vec<String> = drafts.iter().map(complete).collect();
    assert!(
        fragments[0].contains("urn:1") && fragments[1].contains("urn:2"),
        "{fragments:?}"
    );
    assert!(fragments[1].starts_with(
        "<entry xmlns=\"http://www.w3.org/2005/Atom\" xmlns:x=\"urn:x\" xml:lang='de' xml:base=\"http://h/a/b/\">"
    ), "{}", fragments[1]);
    assert!(fragments[0].contains("xmlns:x='urn:other'") && !fragments[0].contains("urn:x\""));
    assert!(fragments[0].contains("xml:lang='en'") && !fragments[0].contains("xml:lang='de'"));
    for fragment in &fragments {
        assert!(
            fragment.contains("<author><name>Ann &amp; Co</name><uri>me</uri></author>"),
            "{fragment}"
        );
        roxmltree::Document::parse(fragment).unwrap();
    }
}

#[test]
fn prefixed_atom_is_atom() {
    let entry =
        one("<a:entry xmlns:a='http://www.w3.org/2005/Atom'><a:id>urn:a</a:id><plain/></a:entry>");
    // Its unprefixed children are in no namespace, in a document that has a default one, too.
    assert!(entry.starts_with("<a:entry xmlns=\"\" xmlns:a="), "{entry}");
    assert!(entry.contains("<a:title>urn:a</a:title>"));
}

#[test]
fn rules_of_atom_are_kept() {
    refused("<title/><title/>", "given twice");
    refused("<id>urn:a</id><id>urn:a</id>", "given twice");
    refused("<id/>", "absolute IRI");
    refused("<updated>2026-01-01</updated>", "RFC 3339");
    refused("<published> 2026-01-01T00:00:00Z</published>", "RFC 3339");
    refused(
        "<title type='text/html'>x</title>",
        "not text, html or xhtml",
    );
    refused("<title><b/></title>", "holds an element");
    refused("<title type='xhtml'>x</title>", "text between");
    refused("<title type='xhtml'><div/></title>", "XHTML div");
    refused("<author/>", "no name");
    refused(
        "<author><name>a</name><name>b</name></author>",
        "given twice",
    );
    refused("<link rel='self'/>", "no href");
    refused("<link href='http://h/' rel=''/>", "empty rel");
    refused("<link href='http://h/ b'/>", "white space");
    refused(
        "<link href='http://h/1'/><link href='http://h/2'/>",
        "same type and hreflang",
    );
    refused("<category/>", "no term");
    refused("<content type='multipart/mixed'/>", "media type");
    refused("<content type='nonsense'/>", "media type");
    refused(
        "<content src='http://h/'>x</content><summary/>",
        "not empty",
    );
    refused("<content src='http://h/'/>", "needs a summary");
    refused(
        "<content type='image/png'>AAAA</content>",
        "needs a summary",
    );
    refused("<content type='image/png'>A</content><summary/>", "Base64");
    refused("text", "text between");
}

#[test]
fn a_relative_reference_needs_an_absolute_base() {
    refused("<link href='a'/>", "relative reference");
    refused("<link href=''/>", "relative reference");
    refused("<link xml:base='urn:x' href='a'/>", "relative reference");
    refused("<link xml:base='b/' href='a'/>", "relative reference");
    refused(
        "<author><name>a</name><uri>me</uri></author>",
        "relative reference",
    );
    refused("<source><link href='a'/></source>", "relative reference");
    one(&format!(
        "<entry {NS}><link xml:base='http://h/' href='a'/></entry>"
    ));
    one(&format!(
        "<entry {NS} xml:base='http://h/'><link xml:base='b/' href='a'/></entry>"
    ));
}

/// foreign markup in a legal place is no error.
#[test]
fn foreign_markup_passes() {
    one(&format!(
        "<entry {NS} x='1'><subtitle>x</subtitle><y xmlns='urn:y'>text<z/></y><link href='http://h/'><a/></link></entry>"
    ));
}

#[test]
fn what_is_too_large_is_refused() {
    let large = format!(
        "<entry {NS}><title>{}</title></entry>",
        "x".repeat(ENTRY_BYTES_MAX)
    );
    assert_eq!(
        scan(large.as_bytes()).unwrap_err().kind,
        RefusalKind::TooLarge
    );
    let many = format!(
        "<feed {NS}>{}</feed>",
        "<entry/>".repeat(BATCH_ENTRIES_MAX + 1)
    );
    assert_eq!(
        scan(many.as_bytes()).unwrap_err().kind,
        RefusalKind::TooLarge
    );
}

/// Invariant 10: the reader accepts everything the writer writes, at the limits, too.
#[test]
fn the_reader_accepts_what_the_gate_accepts() {
    let depth = 63;
    let deepest = format!(
        "<entry {NS}><id>urn:a</id>{}x{}</entry>",
        "<x>".repeat(depth),
        "</x>".repeat(depth)
    );
    let fragment = one(&deepest);
    let head = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>\n";
    let document = crate::document::feed_document(head, &[&fragment]);
    let url = "http://h/1.atom".parse().unwrap();
    let read = crate::reader::Document::read(document, &url).unwrap();
    assert_eq!(read.entry(0).unwrap().fragment, fragment.as_bytes());
    crate::event::Event::from_entry(&fragment).unwrap();
}

#[test]
fn elements_one_after_the_other_keep_their_order() {
    let sequence =
        format!("<entry {NS}><id>urn:1</id></entry>\n<entry {NS}><id>urn:2</id></entry>\n");
    let found = elements(&sequence).unwrap();
    assert!(found[0].contains("urn:1") && found[1].contains("urn:2"));
    let feed =
        format!("<?xml version='1.0'?><feed {NS}><author><name>A</name></author>{sequence}</feed>");
    let found = elements(&feed).unwrap();
    assert!(found[0].contains("urn:2") && found[1].contains("urn:1"));
    assert!(
        found
            .iter()
            .all(|entry| entry.contains("<author><name>A</name></author>"))
    );
}

proptest::proptest! {
    /// Goal: no entry can break the document it is put into.
    /// Method: random soup; whatever is accepted is put into a document that a strict parser reads.
    #[test]
    fn whatever_is_accepted_is_well_formed(soup in "(<[ax]:?[bt]?( xmlns(:[ax]?)?='u?'| [ab]='[&<>;x]?')?/?>|</[ax]:?[bt]?>|[&<>\\]x;]|<!\\[CDATA\\[|\\]\\]>|<!--|-->|<\\?p|\\?>){0,10}") {
        let text = format!("<a:entry xmlns:a='http://www.w3.org/2005/Atom' xmlns:x='u'>{soup}</a:entry>");
        if let Ok(drafts) = scan(text.as_bytes()) {
            let fragment = complete(&drafts[0]);
            let document = format!("<feed xmlns='http://www.w3.org/2005/Atom'>{fragment}</feed>");
            proptest::prop_assert!(roxmltree::Document::parse(&document).is_ok(), "{document}");
        }
    }
}

/// A feed of a megabyte could unfold to gigabytes: inherited bytes are counted before they are copied.
#[test]
fn what_entries_inherit_is_bounded() {
    let entries = "<entry/>".repeat(9_000);
    let long = "x".repeat(20_000);
    for inherited in [
        format!("xmlns:a='{long}'>"),
        format!("xml:lang='{long}'>"),
        format!("xml:base='http://h/{long}'>"),
        format!("xml:base='{long}'>"),
        format!("><author><name>{long}</name></author>"),
    ] {
        let feed = format!("<feed {NS} {inherited}<entry/></feed>");
        let refusal = scan(feed.as_bytes()).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::TooLarge, "{refusal}");
        // Of a bearable length, but often.
        let inherited = inherited.replace(&long, &long[..4_000]);
        let feed = format!("<feed {NS} {inherited}{entries}</feed>");
        let refusal = scan(feed.as_bytes()).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::TooLarge, "{refusal}");
        let feed = format!("<feed {NS} {inherited}<entry/><entry/></feed>");
        assert_eq!(scan(feed.as_bytes()).unwrap().len(), 2);
    }
}

/// The gate scans the stored form: our own reader must accept all stored bytes for ever.
#[test]
fn an_entry_is_scanned_with_what_it_inherits() {
    let attributes = |count: usize| -> String {
        let attributes = (0..count).map(|number| format!(" a{number}=''"));
        attributes.collect()
    };
    let declarations = |count: usize| -> String {
        let declarations = (0..count).map(|number| format!(" xmlns:n{number}='u{number}'"));
        declarations.collect()
    };
    for count in [200, 250, 255, 256] {
        for feed in [
            format!(
                "<feed {NS} xml:lang='de' xml:base='http://h/'{}><entry{}/></feed>",
                declarations(2),
                attributes(count)
            ),
            format!(
                "<a:feed xmlns:a='http://www.w3.org/2005/Atom'><a:entry><x{}/></a:entry></a:feed>",
                declarations(count - 2)
            ),
        ] {
            let Ok(drafts) = scan(feed.as_bytes()) else {
                assert!(count > 200, "{feed}");
                continue;
            };
            let fragment = complete(&drafts[0]);
            let mut tokens = Tokens::new(&fragment).unwrap();
            while tokens.read().unwrap().is_some() {}
        }
    }
}

/// The same bytes are another entry under another base, another binding of a prefix they use, or another author.
#[test]
fn what_was_sent_includes_what_it_inherits() {
    let sent = |attributes: &str, author: &str, entry: &str| {
        let author = match author {
            "" => String::new(),
            name => format!("<author><name>{name}</name></author>"),
        };
        let feed = format!("<feed {NS} {attributes}>{author}{entry}</feed>");
        scan(feed.as_bytes()).unwrap()[0].sent
    };
    let entry = "<entry><id>urn:1</id><link href='a'/><x:a xmlns:y='urn:y'>q:name</x:a></entry>";
    let base = "xml:base='http://h/' xmlns:x='urn:x'";
    let first = sent(base, "Ann", entry);
    assert_eq!(first, sent(base, "Ann", entry));
    for (attributes, author) in [
        ("xml:base='http://g/' xmlns:x='urn:x'", "Ann"),
        ("xml:base='http://h/' xmlns:x='urn:z'", "Ann"),
        (
            "xml:base='http://h/' xmlns:x='urn:x' xmlns:q='urn:q'",
            "Ann",
        ),
        ("xml:base='http://h/' xmlns:x='urn:x' xml:lang='de'", "Ann"),
        (base, "Bob"),
        (base, ""),
    ] {
        assert_ne!(
            first,
            sent(attributes, author, entry),
            "{attributes} {author}"
        );
    }
    // A declaration that the entry has no use for makes no other entry of it.
    let more = "xml:base='http://h/' xmlns:x='urn:x' xmlns:unused='urn:u'";
    assert_eq!(first, sent(more, "Ann", entry));
    // An entry that inherits nothing is its bytes, as it always was.
    let alone = format!("<entry {NS}><id>urn:1</id></entry>");
    assert_eq!(
        scan(alone.as_bytes()).unwrap()[0].sent,
        Digest::of(alone.as_bytes())
    );
}

/// JSON as it is is taken, and stored in a form that every reader understands.
#[test]
fn json_in_atom_is_stored_in_a_conformant_form() {
    let stored = |content: &str| {
        let text = format!("<entry {NS}><id>urn:1</id>{content}</entry>");
        let draft = scan(text.as_bytes()).unwrap().remove(0);
        assert_eq!(draft.sent, Digest::of(text.as_bytes()));
        complete(&draft)
    };
    let text =
        stored("<content a:b='c' xmlns:a='urn:a' type='application/json'> {\"a\":1} </content>");
    assert!(
        text.contains("type=\"text/json\"> {\"a\":1} </content></entry>"),
        "{text}"
    );
    let text = stored("<content type='text/json'>no JSON at all</content>");
    assert!(
        text.contains("<content type='text/json'>no JSON at all</content>"),
        "{text}"
    );
    let text = stored("<content type='application/ld+json'>{\"a\":\"&lt;\"}</content>");
    assert!(
        text.contains("<content type='application/ld+json'>eyJhIjoiPCJ9</content>"),
        "{text}"
    );
    assert!(text.contains("<summary>JSON</summary>"), "{text}");
    let base64 = "<summary>s</summary><content type='application/json'>eyJhIjoiPCJ9</content>";
    assert!(stored(base64).contains(base64));
    refused(
        "<content type='application/json'>eyJhIjoiPCJ9</content>",
        "needs a summary",
    );
    refused(
        "<content type='application/json'>{</content>",
        "neither JSON nor",
    );
}

fn additions() -> Additions<'static> {
    Additions {
        author: "Simplefeed",
        alternate: None,
    }
}
