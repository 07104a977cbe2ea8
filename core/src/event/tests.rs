use super::*;
use crate::entry::Additions;
use crate::{feed::EntryId, timestamp::Timestamp};

fn fragment(event: &str) -> String {
    let drafts = from_json(event.as_bytes()).unwrap_or_else(|refusal| panic!("{event}: {refusal}"));
    let id = drafts[0]
        .id
        .clone()
        .unwrap_or_else(|| EntryId::parse("urn:given").unwrap());
    let bytes = drafts[0]
        .complete(&id, Timestamp::default(), &additions())
        .unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn sent(event: &str) -> Digest {
    from_json(event.as_bytes()).unwrap()[0].sent
}

/// Goal: `replay A | append B` gives B the same contents.
/// Method: event to entry to event to entry: the second entry is the first.
#[track_caller]
fn round_trip(event: &str) -> Event {
    let entry = fragment(event);
    let read = Event::from_entry(&entry).unwrap();
    let again = serde_json::to_string(&read).unwrap();
    let copied = Event::from_entry(&fragment(&again)).unwrap();
    assert_eq!(again, serde_json::to_string(&copied).unwrap(), "{entry}");
    read
}

#[test]
fn every_kind_of_content_goes_through() {
    for (event, kind, content) in [
        (
            r#"{"content":{"b":1.0,"a":[1e3, null]}}"#,
            "application/json",
            r#"{"b":1.0,"a":[1e3, null]}"#,
        ),
        (
            r#"{"content":"text <&> \u00e9"}"#,
            "text",
            r#""text <&> é""#,
        ),
        (
            r#"{"type":"application/json","content":"a string"}"#,
            "application/json",
            r#""a string""#,
        ),
        (
            r#"{"type":"application/json","content":null}"#,
            "application/json",
            "null",
        ),
        (
            r#"{"content":12345678901234567890.0}"#,
            "application/json",
            "12345678901234567890.0",
        ),
        (
            r#"{"type":"html","content":"<p>x</p>"}"#,
            "html",
            r#""<p>x</p>""#,
        ),
        (
            r#"{"type":"text/plain","content":"a\r\nb"}"#,
            "text/plain",
            r#""a\r\nb""#,
        ),
        (
            r#"{"type":"xhtml","content":"<div xmlns='http://www.w3.org/1999/xhtml'>x</div>"}"#,
            "xhtml",
            r#""<div xmlns='http://www.w3.org/1999/xhtml'>x</div>""#,
        ),
        (
            r#"{"type":"a/b+xml","content":"<?xml version='1.0'?><o><p/></o>"}"#,
            "a/b+xml",
            r#""<o xmlns=\"\"><p/></o>""#,
        ),
        (
            r#"{"type":"image/png","content":"AAAA","summary":"s"}"#,
            "image/png",
            r#""AAAA""#,
        ),
    ] {
        let read = round_trip(event);
        assert_eq!(read.kind.as_deref(), Some(kind), "{event}");
        assert_eq!(read.content.unwrap().get(), content, "{event}");
    }
}

#[test]
fn every_member_goes_through() {
    let read = round_trip(
        r#"{"id":"urn:a","title":"T <&>","updated":"2026-01-01T00:00:00.5+01:00","published":"2025-01-01T00:00:00Z",
            "author":["A",{"name":"B","uri":"http://b/","email":"b@b"}],
            "categories":["c",{"term":"d","scheme":"urn:s","label":"L"}],
            "links":[{"href":"http://h/?a&b","rel":"related","type":"text/html","hreflang":"de","title":"\"t\"","length":"3"}],
            "summary":"S","content":1,"document":"ignored","position":7}"#,
    );
    assert_eq!(read.title.as_deref(), Some("T <&>"));
    assert_eq!(read.updated.as_deref(), Some("2026-01-01T00:00:00.5+01:00"));
    assert!(matches!(&read.author, Some(Authors::Many(authors)) if authors.len() == 2));
    assert_eq!(read.categories.unwrap().len(), 2);
    assert_eq!(read.links.unwrap()[0].href, "http://h/?a&b");
    assert_eq!((read.document, read.position), (None, None));
}

/// What no event could say is given as something an event can.
#[test]
fn odd_entries_become_events_that_a_server_takes() {
    let ns = "xmlns='http://www.w3.org/2005/Atom'";
    for (inside, kind, content) in [
        (
            "<content type='application/json'>not json</content>",
            Some("text"),
            Some("\"not json\""),
        ),
        (
            "<content type='application/xml'>text only</content>",
            Some("text"),
            Some("\"text only\""),
        ),
        (
            "<content type='application/xml'><a>1</a><b>2</b></content>",
            Some("text"),
            Some("\"12\""),
        ),
        ("<content type='video/mp4' src='film'/>", None, None),
    ] {
        let entry = format!(
            "<entry {ns} xml:base='http://h/x/'><id>urn:a</id><summary>s</summary><link href='y'/>{inside}</entry>"
        );
        let read = Event::from_entry(&entry).unwrap();
        assert_eq!(read.kind.as_deref(), kind, "{inside}");
        assert_eq!(
            read.content.as_deref().map(RawValue::get),
            content,
            "{inside}"
        );
        assert_eq!(read.links.as_ref().unwrap()[0].href, "http://h/x/y");
        from_json(serde_json::to_string(&read).unwrap().as_bytes()).unwrap();
    }
    let source = Event::from_entry(&format!(
        "<entry {ns} xml:base='http://h/'><content src='film'/></entry>"
    ))
    .unwrap();
    assert_eq!(source.links.unwrap()[0].href, "http://h/film");
}

#[test]
fn spelling_does_not_make_another_event() {
    let plain = sent(r#"{"id":"urn:a","content":{"a":1,"b":[true]}}"#);
    assert_eq!(
        plain,
        sent(
            r#" { "content" : {"b":[ true ],"a":1}, "id":"urn:\u0061", "position":9, "document":"x", "feed":"y" } "#
        )
    );
    for other in [
        r#"{"id":"urn:a","content":{"a":1.0,"b":[true]}}"#,
        r#"{"id":"urn:a","content":{"a":1,"b":["true"]}}"#,
        r#"{"id":"urn:a","content":{"a":1,"b":[true],"c":{}}}"#,
    ] {
        assert_ne!(plain, sent(other), "{other}");
    }
}

#[test]
fn a_member_given_twice_is_refused() {
    for event in [
        r#"{"title":"a","title":"b"}"#,
        r#"{"content":{"a":1,"a":2}}"#,
        r#"{"content":[{"a":{"b":1,"b":1}}]}"#,
    ] {
        assert!(from_json(event.as_bytes()).is_err(), "{event}");
    }
}

#[test]
fn content_cannot_break_out_of_its_element() {
    for content in [
        "<a/></content><title/>",
        "<a>",
        "<a/><b/>",
        "text",
        "<!DOCTYPE a><a/>",
    ] {
        let event = format!(
            "{{\"type\":\"application/xml\",\"content\":{}}}",
            serde_json::to_string(content).unwrap()
        );
        assert!(from_json(event.as_bytes()).is_err(), "{content}");
    }
}

#[test]
fn foreign_entries_cannot_blow_up() {
    let long = "x".repeat(400);
    let declarations: Vec<String> = (0..200)
        .map(|n| format!(" xmlns:p{n}='urn:{long}'"))
        .collect();
    let declarations = declarations.concat();
    let entry = format!(
        "<entry xmlns='http://www.w3.org/2005/Atom'{declarations}><content type='application/xml'><r>{}</r></content></entry>",
        "<a/>".repeat(5_000)
    );
    let read = Event::from_entry(&entry).unwrap();
    assert!(read.content.unwrap().get().len() < 2 * entry.len());
}

/// JSON of other publishers is in Base64, as RFC 4287 has it: type and value are kept on the way through.
#[test]
fn json_in_base64_is_json() {
    for (kind, shown) in [
        ("application/json", "application/json"),
        (
            "application/ld+json; profile=a",
            "application/ld+json; profile=a",
        ),
    ] {
        let entry = format!(
            "<entry xmlns='http://www.w3.org/2005/Atom'><id>urn:1</id><summary>s</summary>\
             <content type='{kind}'> eyJh\nIjoxLjUwfQ== </content></entry>"
        );
        let event = Event::from_entry(&entry).unwrap();
        assert_eq!(event.kind.as_deref(), Some(shown));
        assert_eq!(event.content.as_ref().unwrap().get(), r#"{"a":1.50}"#);
        // The replayed event is stored as the same content.
        let again = from_json(serde_json::to_string(&event).unwrap().as_bytes()).unwrap();
        let copied = Event::from_entry(&again[0].element).unwrap();
        assert_eq!(copied.kind, event.kind);
        assert_eq!(copied.content.unwrap().get(), r#"{"a":1.50}"#);
    }
}

/// Every JSON value that a number or a word may be is no Base64 of another one.
#[test]
fn json_is_never_taken_for_base64() {
    for value in ["true", "null", "12345678", "\"abcd\"", "[]", "1e10"] {
        let event = format!(r#"{{"id":"urn:1","type":"text/json","content":{value}}}"#);
        let drafts = from_json(event.as_bytes()).unwrap();
        assert!(drafts[0].element.contains("type=\"text/json\""));
        let read = Event::from_entry(&drafts[0].element).unwrap();
        assert_eq!(read.content.unwrap().get(), value);
        assert_eq!(read.kind.as_deref(), Some("application/json"));
    }
}

#[test]
fn a_wrong_member_is_told_in_the_words_of_events() {
    for (event, why) in [
        (
            r#"{"author":7}"#,
            "an author: a name, an object with a name",
        ),
        (r#"{"author":[[]]}"#, "an author: a name, or an object"),
        (r#"{"author":{"nam":"a"}}"#, "unknown field `nam`"),
        (r#"{"categories":[1]}"#, "a category: a term, or an object"),
        (r#"["a"]"#, "an event"),
        ("7", "an event (an object) or an array of events"),
    ] {
        let refusal = from_json(event.as_bytes()).unwrap_err();
        assert!(refusal.detail.contains(why), "{event}: {refusal}");
        let detail = refusal.detail.to_lowercase();
        assert!(
            !detail.contains("struct") && !detail.contains("untagged"),
            "{refusal}"
        );
    }
}

/// A base is written out at each reference, which may not make an event of gigabytes.
#[test]
fn an_entry_unfolds_to_so_much_only() {
    let links = "<link href='a'/>".repeat(10_000);
    let base = "b".repeat(10_000);
    let entry = format!(
        "<entry xmlns='http://www.w3.org/2005/Atom' xml:base='http://h/{base}/'>{links}</entry>"
    );
    let error = Event::from_entry(&entry).unwrap_err();
    assert!(error.detail.contains("written out"), "{error}");
    let short = entry.replace(&base, "b");
    assert_eq!(
        Event::from_entry(&short).unwrap().links.unwrap().len(),
        10_000
    );
}

/// Returns both readings of a fragment, as JSON; an error is `None`.
fn both_readings(fragment: &str) -> (Option<String>, Option<String>) {
    let json = |event: Option<Event>| event.map(|event| serde_json::to_string(&event).unwrap());
    let general = Event::from_any_entry(fragment).ok();
    let plain = plain::Plain::read(fragment);
    if let Some(entry) = &plain {
        let (document, feed, at) = ("http://h/1.atom", "a \"feed\"", Some(Position(7)));
        let line = entry.line(Some(document), Some(feed), at);
        let of_event = |event: Event| event.line(Some(document.into()), Some(feed.into()), at);
        if let (Some(line), Some(general)) = (line, general.clone()) {
            assert_eq!(line, of_event(general), "{fragment}");
        }
    }
    (json(plain.map(plain::Plain::event)), json(general))
}

/// Goal: what the gate makes of common events needs no tokenizer.
#[test]
fn common_events_are_read_plainly() {
    for event in [
        r#"{"title":"Order 7","content":{"total":12.50,"of":["<a>","&"]}}"#,
        r#"{"id":"urn:x","title":"A & B","summary":"s","content":"text\nlines"}"#,
        r#"{"author":"Ann","categories":["one","two"],"updated":"2026-01-01T00:00:00Z"}"#,
        r#"{"id":"urn:y","title":"A","author":"Ann","categories":["one","two"],"updated":"2026-01-01T00:00:00Z",
            "published":"2025-01-01T00:00:00Z","summary":"s","content":{"a":"\"\\<&"}}"#,
    ] {
        let (plain, general) = both_readings(&fragment(event));
        assert!(plain.is_some(), "{}", fragment(event));
        assert_eq!(plain, general);
        let fragment = fragment(event);
        let line = Event::line_of_common(&fragment, None, None, None);
        assert_eq!(line.is_some(), fragment.contains("<id>"), "{fragment}");
    }
}

proptest::proptest! {
    /// Goal: an event does not depend on how its entry was read.
    /// Method: plain entries with pieces replaced by what matters to XML.
    #[test]
    fn a_plain_reading_is_the_general_one(
        pieces in proptest::collection::vec((0..400_usize, proptest::sample::select(vec![
            "<", ">", "&", "&amp;", "&lt;", "&#65;", "&x;", "]]>", "\r", "\n", "\t", "\u{1}", "\u{ffff}", "\u{e9}", "\"",
            "<b/>", "<!-- c -->", "<![CDATA[x]]>", "</title>", "<title>t</title>", "<id>2</id>", " ", "",
            "<category term=\"a\"/>", "<category term=\"a\" scheme=\"s\"/>", "<author><name>n</name></author>",
            "<content>c</content>", "<content type=\"html\">c</content>", "<content type=\"text/json\">{\"a\":[1,\n2]}</content>",
            "<content type=\"text/json\">{</content>", "<content type=\"text/json\">eyJhIjoxfQ==</content>",
            "xmlns:p=\"u\"", "<p:x/>", "<link href=\"h\"/>", "\\", "<link rel=\"alternate\" type=\"text/html\" href=\"http://h/1\"/>",
            "<summary type=\"text\">s</summary>",
        ])), 0..4),
        event in proptest::sample::select(vec![
            r#"{"title":"Order 7","content":{"total":12.50,"of":["<a>","&"]}}"#,
            r#"{"id":"urn:x","title":"A & B","summary":"s","content":"text"}"#,
            r#"{"author":"Ann","categories":["one"],"published":"2026-01-01T00:00:00Z"}"#,
        ]),
    ) {
        let mut entry = fragment(event);
        for (at, piece) in pieces {
            let places: Vec<usize> = entry.char_indices().map(|(at, _)| at).collect();
            // Between elements, mostly, where a piece has a chance to be taken.
            let ends: Vec<usize> = entry.match_indices('>').map(|(at, _)| at + 1).collect();
            let at = if at % 3 == 0 { places[at % places.len()] } else { ends[at % ends.len()] };
            entry.insert_str(at, piece);
        }
        let (plain, general) = both_readings(&entry);
        if plain.is_some() {
            proptest::prop_assert_eq!(plain, general, "{}", entry);
        }
    }
}

/// Returns both drafts of an event, without their digests; a refusal is `None`.
fn both_drafts(event: &Event) -> (Option<String>, Option<String>) {
    let shown = |mut draft: Draft| {
        draft.sent = Digest([0; 32]);
        format!("{draft:?}")
    };
    let atom = event.to_atom().unwrap();
    let gate = draft_of_atom(&atom).ok();
    (plain_draft(event, atom).ok().map(shown), gate.map(shown))
}

/// Goal: common events need no tokenizer on their way in, either.
#[test]
fn common_events_are_taken_plainly() {
    for event in [
        r#"{"title":"Order 7","content":{"total":12.50,"of":["<a>","&"]}}"#,
        r#"{"id":"urn:x","title":"A & B","summary":"s","content":"text\r\nlines ]]>"}"#,
        r#"{"author":["Ann","Bo"],"categories":["a\"b\n"],"updated":"2026-01-01T00:00:00Z"}"#,
        "{}",
    ] {
        let (plain, gate) = both_drafts(&serde_json::from_str(event).unwrap());
        assert!(plain.is_some(), "{event}");
        assert_eq!(plain, gate);
    }
}

proptest::proptest! {
    /// Goal: what is stored of an event does not depend on which way it took.
    /// Method: events with right and wrong values in every member.
    #[test]
    fn a_plain_draft_is_the_one_of_the_gate(
        chosen in proptest::collection::vec((0..13_usize, 0..32_usize), 0..8),
    ) {
        const TEXTS: [&str; 8] = [
            "a", "", "urn:x:1", "http://h/a b", "<b/>&amp;]]>", "2026-01-01T00:00:00Z", "2026-13-01T00:00:00Z", "\r\n\t\u{e9}\u{fffd}",
        ];
        const MEMBERS: [&str; 5] = ["id", "title", "updated", "published", "summary"];
        let mut event = serde_json::Map::new();
        for (member, value) in chosen {
            let text = TEXTS[value % TEXTS.len()];
            let (name, value) = match member {
                0..5 => (MEMBERS[member], serde_json::json!(text)),
                5 => ("author", serde_json::json!(text)),
                6 => ("author", serde_json::json!([text, {"name": "n", "uri": text}])),
                7 => ("author", serde_json::json!([])),
                8 => ("categories", serde_json::json!([text, {"term": text, "label": text}])),
                9 => ("links", serde_json::json!([{"href": text}])),
                10 => ("content", serde_json::json!(text)),
                11 => ("content", [serde_json::json!(null), serde_json::json!({"a": text})][value % 2].clone()),
                _ => ("type", serde_json::json!(
                    ["text", "html", "text/json", "application/json; a=b", "application/ld+json", "text/plain"][value % 6]
                )),
            };
            event.insert(name.into(), value);
        }
        let event: Event = serde_json::from_value(event.into()).unwrap();
        if event.to_atom().is_ok() {
            let (plain, gate) = both_drafts(&event);
            if plain.is_some() {
                proptest::prop_assert_eq!(plain, gate, "{:?}", event);
            }
        }
    }
}

/// JSON as a test makes it: words and strings in both spellings, canonical first, and members by their names.
#[derive(Clone, Debug)]
enum Made {
    Word(&'static str),
    Text(&'static str, &'static str),
    Items(Vec<Made>),
    Members(std::collections::BTreeMap<usize, Made>),
}

/// Names in their order, each in its canonical spelling and another one.
const NAMES: [(&str, &str); 5] = [
    (r#""""#, r#""""#),
    (r#""A""#, r#""\u0041""#),
    (r#""\"""#, r#""\u0022""#),
    (r#""a b""#, r#""a\u0020b""#),
    ("\"\u{e9}\"", r#""\u00e9""#),
];

fn canonical(made: &Made) -> String {
    match made {
        Made::Word(word) => (*word).into(),
        Made::Text(canonical, _) => (*canonical).into(),
        Made::Items(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        Made::Members(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            // A quotation mark comes before letters.
            sorted
                .sort_by_key(|(name, _)| serde_json::from_str::<String>(NAMES[**name].0).unwrap());
            let members = sorted.into_iter();
            let members: Vec<String> = members
                .map(|(name, value)| format!("{}:{}", NAMES[*name].0, canonical(value)))
                .collect();
            format!("{{{}}}", members.join(","))
        }
    }
}

/// Returns the same in another spelling, its members in the order of their numbers or in the reverse one.
fn respelled(made: &Made, is_reversed: bool) -> String {
    match made {
        Made::Word(word) => format!(" {word}\n"),
        Made::Text(_, other) => (*other).into(),
        Made::Items(items) => {
            let items: Vec<String> = items
                .iter()
                .map(|item| respelled(item, !is_reversed))
                .collect();
            format!("[ {} ]", items.join(" ,\t"))
        }
        Made::Members(members) => {
            let mut members: Vec<String> = members
                .iter()
                .map(|(name, value)| {
                    format!("{} : {}", NAMES[*name].1, respelled(value, !is_reversed))
                })
                .collect();
            if is_reversed {
                members.reverse();
            }
            format!("{{ {} }}", members.join(" , "))
        }
    }
}

fn made() -> impl proptest::strategy::Strategy<Value = Made> {
    use proptest::prelude::*;
    let leaf = prop_oneof![
        proptest::sample::select(vec!["1", "1.50", "-0e7", "true", "null"]).prop_map(Made::Word),
        proptest::sample::select(NAMES.to_vec()).prop_map(|(one, other)| Made::Text(one, other)),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Made::Items),
            proptest::collection::btree_map(0..NAMES.len(), inner, 0..5).prop_map(Made::Members),
        ]
    })
}

proptest::proptest! {
    /// Goal: every spelling of an event has one digest, so that a repeat is known as one.
    #[test]
    fn every_spelling_has_one_canonical_form(content in made(), is_reversed: bool) {
        let members = format!(r#""content":{},"title":"t""#, canonical(&content));
        let spellings = [
            format!("{{{members}}}"),
            format!(r#"{{"title":"\u0074","position":7,"content":{}}}"#, respelled(&content, is_reversed)),
        ];
        for spelling in spellings {
            proptest::prop_assert_eq!(canonical_event(&spelling).unwrap(), format!("{{{}}}", members));
        }
    }
}

fn additions() -> Additions<'static> {
    Additions {
        author: "Simplefeed",
        alternate: None,
    }
}
