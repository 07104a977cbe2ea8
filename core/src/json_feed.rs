//! A document as JSON Feed 1.1, for programs that would rather read JSON than XML.
//!
//! Pure. The JSON form of a frozen document is frozen, too, so this mapping never changes. Facts
//! without a member in JSON Feed are in `_simplefeed`: the position of each entry, and the type of
//! the content.

use serde::Serialize;
use url::Url;

use crate::{
    event::{Author, Authors, Category, Event, Link},
    feed::EpochNumber,
    reader::Document,
};

/// Media type of JSON Feed (rule J-1).
pub const JSON_FEED_TYPE: &str = "application/feed+json";
/// Version that a feed names (rule J-1).
const VERSION: &str = "https://jsonfeed.org/version/1.1";

#[derive(Serialize)]
struct JsonFeed<'d> {
    version: &'static str,
    title: &'d str,
    home_page_url: String,
    #[serde(rename = "feed_url")]
    own_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_url: Option<String>,
    items: Vec<JsonItem>,
    _simplefeed: FeedExtension<'d>,
}

#[derive(Serialize)]
struct FeedExtension<'d> {
    id: &'d str,
    archived: bool,
}

#[derive(Serialize)]
struct JsonItem {
    id: String,
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_html: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    date_published: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    date_modified: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    authors: Vec<JsonPerson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Attachment>,
    _simplefeed: ItemExtension,
}

#[derive(Serialize)]
struct ItemExtension {
    position: u64,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
}

#[derive(Serialize)]
struct JsonPerson {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

#[derive(Serialize)]
struct Attachment {
    url: String,
    mime_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_in_bytes: Option<u64>,
}

/// Returns a document of Simplefeed as JSON Feed; `None` for a document without positions, without
/// the link `self` or without a title. Every document of Simplefeed has all three.
///
/// `next_url` leads to the older document in the same form (rule J-1). Items are in the order of
/// the document, newest first. The `url` of an item is the entry's `alternate` link, else the
/// permanent URL of the entry's page. Content that is HTML or XHTML is `content_html`; any other is
/// `content_text`: JSON verbatim, Base64 under other types undecoded. An entry without content has
/// the summary, else the title, as `content_text`.
///
/// # Examples
///
/// ```
/// use simplefeed_core::{json_feed::json_feed, reader::Document};
/// use url::Url;
///
/// let atom = r#"<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>Orders</title>
/// <updated>2026-11-20T08:00:00Z</updated><link rel="self" href="https://h/feeds/orders/7.atom"/>
/// <link rel="prev-archive" href="6.atom"/><history xmlns="urn:simplefeed:1" first="600"/>
/// <entry><id>urn:1</id><title>Order 7</title><updated>2026-11-20T08:00:00Z</updated></entry></feed>"#;
/// let url = Url::parse("https://h/feeds/orders/7.atom").unwrap();
/// let json = json_feed(&Document::read(atom.into(), &url).unwrap()).unwrap();
/// assert!(json.contains(r#""next_url":"https://h/feeds/orders/6.json""#));
/// assert!(json.contains(r#""url":"https://h/feeds/orders/entries/600""#));
/// ```
pub fn json_feed(document: &Document) -> Option<String> {
    let (first, _) = document.history?;
    let own = document.link("self")?;
    let base = own.join(".").ok()?;
    // The link gives the name of the document, and `base` the folder that readers see.
    let sibling = |url: &Url| {
        let name = url.path().rsplit('/').next()?.strip_suffix(".atom")?;
        Some(format!("{base}{name}.json"))
    };
    let count = u64::try_from(document.len()).ok()?;
    let items = (0..document.len()).map(|index| {
        let from_top = u64::try_from(index).ok()?;
        // A document shows the newest entry first (rule SF-1), and positions count from the oldest.
        let position = first.0 + count - 1 - from_top;
        let fragment = document.entry(index)?.fragment;
        let event = Event::from_entry(std::str::from_utf8(fragment).ok()?).ok()?;
        let number = EpochNumber {
            number: position,
            epoch: document.epoch,
        };
        Some(item_of(event, position, format!("{base}entries/{number}")))
    });
    let feed = JsonFeed {
        version: VERSION,
        title: document.title.as_deref()?,
        home_page_url: base.as_str().trim_end_matches('/').into(),
        own_url: format!("{base}recent.json"),
        next_url: document.link("prev-archive").and_then(sibling),
        items: items.collect::<Option<_>>()?,
        _simplefeed: FeedExtension {
            id: &document.feed,
            archived: document.archived,
        },
    };
    serde_json::to_string(&feed).ok()
}

/// Returns whether a URL leads to a page or a file. Readers put such URLs into pages of their own,
/// where a URL of another scheme may run as a script.
fn is_page(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

fn item_of(event: Event, position: u64, place: String) -> JsonItem {
    let links: Vec<Link> = event.links.unwrap_or_default();
    let is_alternate = |link: &&Link| {
        link.rel.as_deref().is_none_or(|rel| rel == "alternate") && is_page(&link.href)
    };
    let alternate = links.iter().find(is_alternate);
    let (mut html, mut text) = (None, None);
    if let Some(raw) = &event.content {
        let content = serde_json::from_str::<String>(raw.get());
        // Content under a JSON type may be any JSON value, which stands as in the document.
        let content = content.unwrap_or_else(|_json| raw.get().into());
        match event.kind.as_deref() {
            Some("html" | "xhtml") => html = Some(content),
            _ => text = Some(content),
        }
    } else {
        // One of the two members must be there (rule J-2).
        text = Some(
            event
                .summary
                .clone()
                .or(event.title.clone())
                .unwrap_or_default(),
        );
    }
    let authors = match event.author {
        None => vec![],
        Some(Authors::One(author)) => vec![author],
        Some(Authors::Many(authors)) => authors,
    };
    let authors = authors.into_iter().map(|author| match author {
        Author::Name(name) => JsonPerson { name, url: None },
        Author::Person(person) => JsonPerson {
            name: person.name,
            url: person.uri.filter(|uri| is_page(uri)),
        },
    });
    let categories = event.categories.unwrap_or_default().into_iter();
    let tags = categories.map(|category| match category {
        Category::Term(term) => term,
        Category::Full(full) => full.label.unwrap_or(full.term),
    });
    let url = alternate.map_or(place, |link| link.href.clone());
    let enclosed = links.into_iter().filter_map(|link| {
        Some(Attachment {
            mime_type: link
                .kind
                .filter(|_| link.rel.as_deref() == Some("enclosure") && is_page(&link.href))?,
            url: link.href,
            title: link.title,
            size_in_bytes: link.length.and_then(|length| length.parse().ok()),
        })
    });
    JsonItem {
        id: event.id.unwrap_or_default(),
        url,
        title: event.title,
        content_html: html,
        content_text: text,
        summary: event.summary,
        date_published: event.published,
        date_modified: event.updated,
        authors: authors.collect(),
        tags: tags.collect(),
        attachments: enclosed.collect(),
        _simplefeed: ItemExtension {
            position,
            kind: event.kind,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(atom: &str) -> Option<Value> {
        // The server also reads documents with a local URL, because it does not know the URL at
        // which a cache shows them.
        let url = Url::parse("http://localhost/feeds/x/1.atom").unwrap();
        let document = Document::read(atom.to_owned().into(), &url).unwrap();
        json_feed(&document).map(|json| serde_json::from_str(&json).unwrap())
    }

    /// The bytes of frozen documents stand in caches for a year, so this form never changes.
    #[test]
    fn the_form_of_a_frozen_document_never_changes() {
        let atom = r#"<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom" xmlns:fh="http://purl.org/syndication/history/1.0"><id>urn:f</id>
<title>A &amp; B</title><updated>2026-11-20T08:00:00Z</updated>
<link rel="self" href="https://h/sub/feeds/a/2-1795270294.atom"/><link rel="prev-archive" href="1.atom"/><fh:archive/>
<history xmlns="urn:simplefeed:1" first="10" before="0000000000000000000000000000000000000000000000000000000000000000" epoch="1795270294" since="10"/>
<entry xmlns="http://www.w3.org/2005/Atom"><id>urn:2</id><title>Two</title><updated>2026-11-20T08:00:01Z</updated><published>2026-11-20T07:00:00Z</published><author><name>Ann</name><uri>https://h/ann</uri></author><category term="t" label="T"/><category term="u"/><link href="https://h/two"/><link rel="enclosure" href="https://h/x.mp3" type="audio/mpeg" length="7"/><summary>short</summary><content type="html">&lt;b&gt;two&lt;/b&gt;</content></entry>
<entry xmlns="http://www.w3.org/2005/Atom"><id>urn:1</id><title>One</title><updated>2026-11-20T08:00:00Z</updated><author><name>B</name></author><content type="text/json">{"b":1.50,"a":2}</content></entry>
</feed>"#;
        let expected = json!({
            "version": "https://jsonfeed.org/version/1.1",
            "title": "A & B",
            "home_page_url": "https://h/sub/feeds/a",
            "feed_url": "https://h/sub/feeds/a/recent.json",
            "next_url": "https://h/sub/feeds/a/1.json",
            "items": [
                {
                    "id": "urn:2", "url": "https://h/two", "title": "Two", "content_html": "<b>two</b>",
                    "summary": "short", "date_published": "2026-11-20T07:00:00Z",
                    "date_modified": "2026-11-20T08:00:01Z", "authors": [{"name": "Ann", "url": "https://h/ann"}],
                    "tags": ["T", "u"],
                    "attachments": [{"url": "https://h/x.mp3", "mime_type": "audio/mpeg", "size_in_bytes": 7}],
                    "_simplefeed": {"position": 11, "type": "html"},
                },
                {
                    "id": "urn:1", "url": "https://h/sub/feeds/a/entries/10-1795270294", "title": "One",
                    "content_text": "{\"b\":1.50,\"a\":2}", "date_modified": "2026-11-20T08:00:00Z",
                    "authors": [{"name": "B"}],
                    "_simplefeed": {"position": 10, "type": "application/json"},
                },
            ],
            "_simplefeed": {"id": "urn:f", "archived": true},
        });
        assert_eq!(read(atom).unwrap(), expected);
    }

    /// Goal: a URL of JSON Feed runs no script in the page of a program that shows it.
    #[test]
    fn no_url_of_another_scheme_is_passed_on() {
        let entry = |href: &str| {
            format!(
                r#"<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>T</title><updated>2026-11-20T08:00:00Z</updated>
<link rel="self" href="https://h/feeds/a/1.atom"/><history xmlns="urn:simplefeed:1" first="0"/>
<entry xmlns="http://www.w3.org/2005/Atom"><id>urn:1</id><title>One</title><updated>2026-11-20T08:00:00Z</updated><author><name>B</name><uri>{href}</uri></author>
<link href="{href}"/><link rel="enclosure" href="{href}" type="audio/mpeg"/><content>c</content></entry></feed>"#
            )
        };
        for other in [
            "javascript:alert(1)",
            "JavaScript:alert(1)",
            "data:text/html,x",
        ] {
            let item = &read(&entry(other)).unwrap()["items"][0];
            assert_eq!(item["url"], "https://h/feeds/a/entries/0", "{item}");
            assert!(!item.to_string().contains(other), "{item}");
        }
        let item = &read(&entry("https://h/one")).unwrap()["items"][0];
        assert_eq!(item["url"], "https://h/one");
        assert_eq!(item["authors"][0]["url"], "https://h/one");
        assert_eq!(item["attachments"][0]["url"], "https://h/one");
    }

    #[test]
    fn a_feed_of_others_has_no_such_form() {
        let atom = r#"<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>T</title>
<updated>2026-11-20T08:00:00Z</updated><link rel="self" href="https://h/a"/></feed>"#;
        assert_eq!(read(atom), None);
    }
}
