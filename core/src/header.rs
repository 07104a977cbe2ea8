//! The head of a document: all bytes before the first entry.
//!
//! Pure, and for ever: these bytes stand in frozen documents. A header is made of three things:
//! facts fixed when the document was opened, the instant of the newest entry, and the form that the
//! reader asks for:
//!
//! ```text
//!                     recent.atom   open {n}.atom   archived {n}.atom
//! self (absolute)     its own       its own         its own
//! via                 {n}.atom      – (*)           – (*)
//! current             yes           yes             yes
//! prev-archive        if n > 1      if n > 1        if n > 1
//! next-archive        –             –               yes
//! fh:archive          –             –               yes
//! index, history      yes           yes             yes
//! SUP-ID              yes           –               –
//! ```
//!
//! (*) With `via_links`, a `via` link leads to the document's own URL, because the feed library of
//! the ICT4H projects accepts no document without a `via` link.
//!
//! The feed element declares no prefix: each element that uses a prefix declares the prefix itself.
//! So an entry means the same in every document, and in an entry document of its own.

use crate::{
    entry::{push_attribute, push_element},
    feed::{DocumentName, Epoch},
    plan::Opening,
    settings::Settings,
    sup::{SUP_REL, SUP_TYPE},
    timestamp::Timestamp,
    xml::{ATOM, HISTORY, SIMPLEFEED},
};

/// The name of the recent document within the feed.
pub const RECENT: &str = "recent.atom";
/// The name of the archive index within the feed.
pub const INDEX: &str = "index.json";
/// The media type of a feed document (RFC 4287, 7).
pub const FEED_TYPE: &str = "application/atom+xml;type=feed;charset=utf-8";
/// The media type of an entry document (RFC 5023, 12.1).
pub const ENTRY_TYPE: &str = "application/atom+xml;type=entry;charset=utf-8";

/// Form of a document, by the URL that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentForm {
    /// The newest document at the feed's entry point, [`RECENT`].
    Recent,
    /// The newest document at its permanent URL.
    Open,
    /// A document closed by its successor.
    Archived {
        /// Name of the successor, which `next-archive` links to.
        next: DocumentName,
    },
}

/// Returns the bytes of a document before the first entry.
///
/// `settings` are the settings of the opening's revision. `updated` is the instant of the
/// document's newest entry, or of the feed's creation while there is no entry.
pub fn header(
    opening: &Opening,
    settings: &Settings,
    form: DocumentForm,
    updated: Timestamp,
) -> String {
    let base = settings.base_url();
    let reference = |name: &str| {
        if settings.absolute_links() {
            format!("{base}{name}")
        } else {
            name.into()
        }
    };
    let permanent = opening.name.to_string();
    // The recent document names the entry point as `self`, so that readers keep polling that URL.
    let own = if form == DocumentForm::Recent {
        RECENT
    } else {
        &permanent
    };

    let mut out = String::with_capacity(1_024);
    push_beginning(settings, updated, &mut out);
    // `self` is absolute even where other links are relative (see the table above).
    push_link("self", &format!("{base}{own}"), None, &mut out);
    // `via` is the permanent URL under which a bookmark can find this document later.
    if form == DocumentForm::Recent || settings.via_links() {
        push_link("via", &reference(&permanent), None, &mut out);
    }
    push_link("current", &reference(RECENT), None, &mut out);
    if let Some(previous) = opening.previous {
        push_link(
            "prev-archive",
            &reference(&previous.to_string()),
            None,
            &mut out,
        );
    }
    if let DocumentForm::Archived { next } = form {
        push_link(
            "next-archive",
            &reference(&next.to_string()),
            None,
            &mut out,
        );
    }
    push_link(
        "index",
        &reference(INDEX),
        Some("application/json"),
        &mut out,
    );
    // Readers poll only the recent document, so only that document announces SUP.
    if form == DocumentForm::Recent {
        push_sup_link(settings, &mut out);
    }
    // Only a final document may have this mark (RFC 5005, 4).
    if matches!(form, DocumentForm::Archived { .. }) {
        out.push_str("<fh:archive");
        push_attribute("xmlns:fh", HISTORY, &mut out);
        out.push_str("/>\n");
    }
    push_history(opening, settings, &mut out);
    out
}

/// Links of a paged document (RFC 5005, 3), relative to the feed's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageLinks {
    /// URL of this page, for the link `self`.
    pub own: String,
    /// URL of the page with the newest entries.
    pub first: String,
    /// URL of the page with the next newer entries, if there are any.
    pub previous: Option<String>,
    /// URL of the page with the next older entries, if there are any.
    pub next: Option<String>,
}

/// Returns the bytes of a paged document before the first entry; `updated` is the instant of the
/// newest entry on the page.
pub fn paged_header(settings: &Settings, updated: Timestamp, links: &PageLinks) -> String {
    let base = settings.base_url();
    let mut out = String::with_capacity(1_024);
    push_beginning(settings, updated, &mut out);
    push_link("self", &format!("{base}{}", links.own), None, &mut out);
    push_link("current", &format!("{base}{RECENT}"), None, &mut out);
    push_link("first", &format!("{base}{}", links.first), None, &mut out);
    for (rel, link) in [("previous", &links.previous), ("next", &links.next)] {
        if let Some(link) = link {
            push_link(rel, &format!("{base}{link}"), None, &mut out);
        }
    }
    out
}

/// Appends the beginning of a header, which has the same elements in all documents of a feed.
fn push_beginning(settings: &Settings, updated: Timestamp, out: &mut String) {
    out.push_str("<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<feed");
    push_attribute("xmlns", ATOM, out);
    out.push_str(">\n");
    push_line("id", settings.id.as_str(), out);
    push_line("title", settings.title(), out);
    push_line("updated", &updated.to_string(), out);
    out.push_str("<author>");
    push_element("name", settings.author(), out);
    out.push_str("</author>\n");
    push_line("generator", "Simplefeed", out);
}

/// Appends the element `history`, which tells the positions of the document's entries.
fn push_history(opening: &Opening, settings: &Settings, out: &mut String) {
    out.push_str("<history");
    push_attribute("xmlns", SIMPLEFEED, out);
    push_attribute("first", &opening.first.to_string(), out);
    // A timeline has no history hash: for any document, the server would have to hash all older
    // entries of the timeline.
    if !settings.is_timeline() {
        push_attribute("before", &opening.before.to_string(), out);
    }
    // Documents of the first epoch name no epoch, because frozen documents without these attributes
    // exist, and their bytes never change.
    if opening.name.epoch > Epoch::FIRST {
        push_attribute("epoch", &opening.name.epoch.to_string(), out);
        push_attribute("since", &opening.since.to_string(), out);
    }
    out.push_str("/>\n");
}

/// Appends the link that announces the feed's SUP address (rules SUP-A1, SUP-A2).
fn push_sup_link(settings: &Settings, out: &mut String) {
    if let Some(address) = settings.sup_address() {
        push_link(SUP_REL, &address, Some(SUP_TYPE), out);
    }
}

fn push_line(name: &str, text: &str, out: &mut String) {
    push_element(name, text, out);
    out.push('\n');
}

fn push_link(rel: &str, href: &str, kind: Option<&str>, out: &mut String) {
    out.push_str("<link");
    push_attribute("rel", rel, out);
    push_attribute("href", href, out);
    if let Some(kind) = kind {
        push_attribute("type", kind, out);
    }
    out.push_str("/>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sup::SupId;
    use crate::{
        feed::{DocumentNumber, FeedId, FeedName, Position, Revision},
        history::HistoryHash,
        settings::{Choices, Defaults, OwnEntries, TimelineKind},
    };

    fn name(number: u64) -> DocumentName {
        DocumentName {
            number: DocumentNumber::new(number).unwrap(),
            epoch: Epoch::FIRST,
        }
    }

    fn settings(absolute: bool) -> Settings {
        Settings {
            name: FeedName::parse("orders").unwrap(),
            choices: std::sync::Arc::new(Choices {
                title: Some("Orders & more".into()),
                absolute_links: Some(absolute),
                ..Choices::default()
            }),
            defaults: Defaults::new("https://example.org/sub").into(),
            id: FeedId::parse("urn:uuid:ff31a040-75bc-11e2-bcfd-0800200c9a66").unwrap(),
            sup_id: SupId::parse("4496672d"),
            was_closed: false,
            timeline: None,
        }
    }

    fn opening() -> Opening {
        Opening {
            name: name(2),
            linked: name(2),
            previous: Some(name(1)),
            first: Position(100),
            before: HistoryHash::start(&settings(false).id),
            revision: Revision::FIRST,
            opened: Timestamp::default(),
            after_loss: false,
            since: Position(0),
        }
    }

    fn head(form: DocumentForm, absolute: bool) -> String {
        let updated = Timestamp::from_micros(1_700_000_000_000_000);
        header(&opening(), &settings(absolute), form, updated)
    }

    /// Golden: these bytes are in documents that caches keep for ever.
    #[test]
    fn golden_archived_header() {
        let want = r#"<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom">
<id>urn:uuid:ff31a040-75bc-11e2-bcfd-0800200c9a66</id>
<title>Orders &amp; more</title>
<updated>2023-11-14T22:13:20.000000Z</updated>
<author><name>Simplefeed</name></author>
<generator>Simplefeed</generator>
<link rel="self" href="https://example.org/sub/feeds/orders/2.atom"/>
<link rel="current" href="recent.atom"/>
<link rel="prev-archive" href="1.atom"/>
<link rel="next-archive" href="3.atom"/>
<link rel="index" href="index.json" type="application/json"/>
<fh:archive xmlns:fh="http://purl.org/syndication/history/1.0"/>
<history xmlns="urn:simplefeed:1" first="100" before="@"/>
"#;
        let before = HistoryHash::start_of_text("urn:uuid:ff31a040-75bc-11e2-bcfd-0800200c9a66");
        let want = want.replace('@', &before.to_string());
        assert_eq!(head(DocumentForm::Archived { next: name(3) }, false), want);
    }

    /// A renamed document names the new epoch. The document before links to the name of its
    /// successor, and stays in the first epoch.
    #[test]
    fn a_later_epoch_is_told() {
        let later = DocumentName {
            epoch: Epoch(1_800_000_000),
            ..name(3)
        };
        let archived = head(DocumentForm::Archived { next: later }, false);
        assert!(archived.contains(r#"rel="next-archive" href="3-1800000000.atom""#));
        assert!(!archived.contains("epoch"));
        let opening = Opening {
            name: later,
            linked: name(3),
            since: Position(107),
            ..opening()
        };
        let open = header(
            &opening,
            &settings(false),
            DocumentForm::Open,
            Timestamp::default(),
        );
        assert!(open.contains("feeds/orders/3-1800000000.atom"));
        assert!(open.contains(r#" epoch="1800000000" since="107"/>"#));
        let url = "https://example.org/3-1800000000.atom".parse().unwrap();
        let document = crate::document::feed_document(&open, &[b""; 0]);
        let read = crate::reader::Document::read(document, &url).unwrap();
        assert_eq!((read.epoch, read.since), (later.epoch, Position(107)));
    }

    /// A timeline's documents have no history hash, and do not announce `sup.json`.
    #[test]
    fn a_timeline_tells_positions_only() {
        let timeline = Settings {
            timeline: Some(TimelineKind::new(None, OwnEntries::Exclude)),
            ..settings(false)
        };
        let recent = header(
            &opening(),
            &timeline,
            DocumentForm::Recent,
            Timestamp::default(),
        );
        assert!(recent.contains("<history xmlns=\"urn:simplefeed:1\" first=\"100\"/>\n"));
        assert!(!recent.contains("sup.json"));
    }

    /// SF-4, SF-8 and the table of links.
    #[test]
    fn each_form_has_its_links() {
        let recent = head(DocumentForm::Recent, false);
        assert!(
            recent
                .contains(r#"rel="self" href="https://example.org/sub/feeds/orders/recent.atom""#)
        );
        assert!(recent.contains(r#"rel="via" href="2.atom""#));
        assert!(recent.contains(r#"rel="prev-archive" href="1.atom""#));
        let open = head(DocumentForm::Open, false);
        assert!(open.contains(r#"rel="self" href="https://example.org/sub/feeds/orders/2.atom""#));
        assert!(!open.contains("via"));
        // SUP-A1, SUP-A2.
        let sup = r#"<link rel="http://api.friendfeed.com/2008/03#sup" href="https://example.org/sub/sup.json#4496672d" type="application/json"/>"#;
        assert!(recent.contains(sup) && !open.contains("sup.json"));
        for growing in [recent, open] {
            assert!(!growing.contains("next-archive") && !growing.contains("fh:archive"));
        }
    }

    /// With `via_links` and absolute links, a document at a permanent URL has a `via` link equal to
    /// the `self` link. Without absolute links, `via_links` changes nothing, and is refused.
    #[test]
    fn numbered_documents_have_a_via_on_request() {
        let with = |absolute| {
            let mut settings = settings(absolute);
            std::sync::Arc::make_mut(&mut settings.choices).via_links = Some(true);
            settings
        };
        let next = name(3);
        for form in [DocumentForm::Open, DocumentForm::Archived { next }] {
            let of = |settings: &Settings| header(&opening(), settings, form, Timestamp::default());
            let asked = of(&with(true));
            let url = "https://example.org/sub/feeds/orders/2.atom";
            for rel in ["self", "via"] {
                assert!(
                    asked.contains(&format!("rel=\"{rel}\" href=\"{url}\"")),
                    "{asked}"
                );
            }
            assert_eq!(of(&with(false)), of(&settings(false)));
        }
        assert!(with(true).check().is_ok() && with(false).check().is_err());
        assert!(!with(true).shapes_like(&settings(true)));
    }

    #[test]
    fn links_are_absolute_on_request() {
        let open = head(DocumentForm::Open, true);
        assert!(
            open.contains(
                r#"rel="prev-archive" href="https://example.org/sub/feeds/orders/1.atom""#
            )
        );
        assert!(!open.contains(r#"href="recent.atom""#));
    }
}
