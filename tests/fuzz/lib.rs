//! What is asserted of whatever the gate lets through.

use simplefeed_core::{
    document::feed_document,
    entry::{Additions, Draft},
    event::Event,
    feed::EntryId,
    reader::Document,
    timestamp::Timestamp,
};

/// Asserts that accepted entries can stand in a document, be read back as they are, and be told as events.
pub fn assert_readable(drafts: &[Draft]) {
    let url = "http://h/1.atom".parse().expect("that is a URL");
    for (number, draft) in drafts.iter().enumerate() {
        let given = EntryId::parse(&format!("urn:given:{number}")).expect("that is an id");
        let id = draft.id.clone().unwrap_or(given);
        let additions = Additions {
            author: "Author",
            alternate: Some("https://example.org/feeds/a/entries/0?a&b".into()),
        };
        let Ok(fragment) = draft.complete(&id, Timestamp::default(), &additions) else {
            continue;
        };
        let head = "<feed xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:f</id>\n";
        let document = feed_document(head, &[&fragment]);
        let read =
            Document::read(document, &url).expect("the reader accepts what the gate accepts");
        let entry = read.entry(0).expect("one entry went in");
        assert_eq!(entry.fragment, &*fragment);
        assert_eq!(entry.id, id.as_str());
        let text = std::str::from_utf8(entry.fragment).expect("entries are text");
        Event::from_entry(text).expect("an entry can be told as an event");
    }
}
