//! Bounds on markup before it is parsed.
//!
//! Pure. A parser of HTML opens formatting elements that are still open again in each block, with
//! their attributes: some kilobytes become gigabytes. So the number of elements that may be opened,
//! and of their bytes, is bounded here.

/// Elements that a parser opens again.
const FORMATTING: [&str; 14] = [
    "a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u",
];
/// Elements whose content is no markup, or other markup.
const RAW: [&str; 12] = [
    "iframe",
    "math",
    "noembed",
    "noframes",
    "noscript",
    "plaintext",
    "script",
    "style",
    "svg",
    "textarea",
    "title",
    "xmp",
];
/// Longest markup, in bytes.
const BYTES_MAX: usize = 64 * 1024;
/// Most characters `<` in markup, each of which may begin a tag.
const TAGS_MAX: usize = 1_000;
/// Formatting elements times tags: the elements that may come to be.
const ELEMENTS_MAX: usize = 100_000;
/// Bytes of formatting elements times tags: the bytes of them all.
const COPIED_BYTES_MAX: usize = 4_000_000;

/// Tags of some markup.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tags {
    all: usize,
    formatting: usize,
    formatting_bytes: usize,
    /// Whether they may be others than a parser finds: there are comments, content that is no
    /// markup, or a quote where none belongs.
    is_doubtful: bool,
}

/// Returns whether markup is small enough to be parsed and shown.
pub(super) fn is_bounded(markup: &str) -> bool {
    if markup.len() > BYTES_MAX {
        return false;
    }
    let tags = tags_of(markup);
    let (formatting, bytes) = if tags.is_doubtful {
        // The worst that the bytes can be.
        let most = markup.bytes().filter(|byte| *byte == b'<').count();
        (most, markup.len())
    } else {
        (tags.formatting, tags.formatting_bytes)
    };
    let all = markup.bytes().filter(|byte| *byte == b'<').count();
    // At worst, each tag opens all formatting elements again.
    all <= TAGS_MAX && formatting * all <= ELEMENTS_MAX && bytes * all <= COPIED_BYTES_MAX
}

fn tags_of(markup: &str) -> Tags {
    let mut tags = Tags::default();
    let mut rest = markup;
    while let Some(at) = rest.find('<') {
        rest = rest.get(at + 1..).unwrap_or_default();
        match rest.bytes().next() {
            Some(b'!' | b'?') => tags.is_doubtful = true,
            Some(byte) if byte.is_ascii_alphabetic() => {}
            // The end of an element, or text.
            _ => continue,
        }
        let name: String = rest
            .chars()
            .take_while(|c| !c.is_ascii_whitespace() && !"/>".contains(*c))
            .collect();
        let name = name.to_ascii_lowercase();
        let Some(length) = length_of(rest) else {
            tags.is_doubtful = true;
            continue;
        };
        tags.all += 1;
        // Behind such an element, a parser reads by rules that this reader does not have.
        tags.is_doubtful |= RAW.contains(&&*name);
        if FORMATTING.contains(&&*name) {
            tags.formatting += 1;
            tags.formatting_bytes += length;
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    tags
}

/// Returns the bytes of a tag to its end; `None` if a quote stands where no value is.
fn length_of(tag: &str) -> Option<usize> {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in tag.char_indices() {
        match (quote, c) {
            (Some(open), _) => {
                if c == open {
                    quote = None;
                }
            }
            (None, '>') => return Some(at),
            (None, '"' | '\'') if before == '=' => quote = Some(c),
            (None, '<' | '"' | '\'') => return None,
            (None, _) => {}
        }
        if !c.is_ascii_whitespace() {
            before = c;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_markup_is_shown() {
        let post = "<h2 id=\"a\">T</h2><p>Some <b>bold</b> and <a href=\"https://example.org/?a=1&amp;b=2\" \
            title='it\u{2019}s'>link</a>.</p><ul><li><code>x < y</code></li></ul>";
        assert!(is_bounded(post));
        assert!(is_bounded(&post.repeat(20)));
        assert!(is_bounded("<!-- note --><p>a</p>"));
        assert_eq!(tags_of(post).formatting, 3);
        assert!(!tags_of(post).is_doubtful);
    }

    /// Goal: no few kilobytes become many elements, or many bytes.
    #[test]
    fn what_grows_is_not_parsed() {
        let long = "\"".repeat(2_900);
        let titled = (0..20).map(|number| format!("<b title='{number}{long}'>"));
        let titled: String = titled.collect();
        let many = (0..490).map(|number| format!("<i a{number}>"));
        let many: String = many.collect();
        let hidden = |inner: &str| format!("<p>{inner}{}", "<p>x".repeat(900));
        for grows in [
            hidden(&titled),
            hidden(&many),
            // Where a parser and a simple reader of tags differ.
            hidden(&format!("<b x\"y title='{}'>", "a".repeat(9_000))),
            hidden(&format!("<b title=\">\" alt='{}'>", "a".repeat(9_000))),
            hidden(&format!("<!--><b title='{}'>", "a".repeat(9_000))),
            hidden(&format!(
                "<script></script><b title='{}'>",
                "a".repeat(9_000)
            )),
            hidden(&format!("<svg><b title='{}'>", "a".repeat(9_000))),
            "<b>".repeat(1_001),
            "x".repeat(70_000),
        ] {
            assert!(!is_bounded(&grows), "{}", &grows[..100]);
        }
    }
}
