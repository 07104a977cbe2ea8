//! Lists of feeds as feed readers export them (OPML 2.0).
//!
//! Pure. Written by hand, because lists are read with a tolerance that a parser of the whole format
//! lacks.

use quick_xml::{Reader, events::Event};

use crate::{
    entry::{push_attribute, push_element},
    xml::attribute_value,
};

/// Reason why a list is unreadable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list of feeds is not OPML: {0}")]
pub struct InvalidOpml(String);

/// Returns a list of feeds, each with a title and a URL.
pub fn list(title: &str, feeds: &[(String, String)]) -> String {
    let mut out =
        String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<opml version=\"2.0\">\n<head>");
    push_element("title", title, &mut out);
    out.push_str("</head>\n<body>\n");
    for (title, url) in feeds {
        out.push_str("<outline");
        push_attribute("type", "rss", &mut out);
        push_attribute("text", title, &mut out);
        push_attribute("xmlUrl", url, &mut out);
        out.push_str("/>\n");
    }
    out.push_str("</body>\n</opml>\n");
    out
}

/// Returns the URLs of the feeds in a list, in the order of the list.
///
/// # Errors
///
/// Describes the fault: broken XML, a DOCTYPE, or no `opml` element.
///
/// # Examples
///
/// ```
/// use simplefeed_core::opml::feeds;
///
/// let list = r#"<opml version="2.0"><body><outline text="News">
///     <outline type="rss" text="A" xmlUrl="https://a.example/feed?x=1&amp;y=2"/>
///     <outline text="B" htmlUrl="https://b.example/"/>
/// </outline></body></opml>"#;
/// assert_eq!(feeds(list)?, ["https://a.example/feed?x=1&y=2"]);
/// assert!(feeds("<opml><body>").is_err());
/// # Ok::<(), simplefeed_core::opml::InvalidOpml>(())
/// ```
pub fn feeds(list: &str) -> Result<Vec<String>, InvalidOpml> {
    let invalid = |detail: String| InvalidOpml(detail);
    let mut reader = Reader::from_str(list);
    let (mut urls, mut depth, mut is_opml) = (vec![], 0_usize, false);
    loop {
        let event = reader
            .read_event()
            .map_err(|error| invalid(error.to_string()))?;
        let tag = match event {
            Event::Eof if depth > 0 => return Err(invalid("it ends too early".into())),
            Event::Eof if !is_opml => return Err(invalid("there is no opml element".into())),
            Event::Eof => return Ok(urls),
            // An internal DTD can define entities that expand without bound.
            Event::DocType(_) => return Err(invalid("a DOCTYPE is not accepted".into())),
            Event::End(_) => {
                // The reader refuses an end tag without a start tag, so the depth is positive here.
                depth -= 1;
                continue;
            }
            Event::Start(tag) => {
                depth += 1;
                tag
            }
            Event::Empty(tag) => tag,
            _ => continue,
        };
        is_opml |= tag.name().as_ref() == b"opml";
        // Feed readers nest outlines in folders, so an outline counts at any depth.
        if tag.name().as_ref() != b"outline" {
            continue;
        }
        let found = tag
            .try_get_attribute("xmlUrl")
            .map_err(|error| invalid(error.to_string()))?;
        if let Some(url) = found {
            let raw = String::from_utf8_lossy(&url.value).into_owned();
            let url =
                attribute_value(&raw).map_err(|name| invalid(format!("&{name}; is not known")))?;
            urls.push(url.trim().to_owned());
        }
    }
}
