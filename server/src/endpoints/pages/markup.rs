//! Bounds on markup before it is parsed.
//!
//! Pure. In each block, a parser of HTML repeats all formatting elements that are still open, with
//! their attributes. So a few kilobytes can become gigabytes. Therefore the number of elements that
//! a parser may make, and the number of their bytes, are bounded here.

/// Formatting elements, which a parser repeats in each block.
const FORMATTING: [&str; 14] = [
    "a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u",
];
/// Elements whose content a parser may not read as HTML: plain text, as in `script`, or other
/// markup, as in `svg`.
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
/// Maximum number of characters `<` in markup. Each of them may begin a tag.
const TAGS_MAX: usize = 1_000;
/// Bound on the number of elements that a parser may make: the number of formatting elements, times
/// the number of tags.
const ELEMENTS_MAX: usize = 100_000;
/// Bound on the number of bytes that a parser may make: the number of bytes in formatting elements,
/// times the number of tags.
const COPIED_BYTES_MAX: usize = 4_000_000;

/// Tags of some markup.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tags {
    all: usize,
    formatting: usize,
    formatting_bytes: usize,
    /// Whether a parser may find other tags than these: there are comments, elements of [`RAW`], or
    /// a quote where no quote belongs.
    is_doubtful: bool,
}

/// Returns whether markup is small enough to be parsed and shown.
pub(super) fn is_bounded(markup: &str) -> bool {
    if markup.len() > BYTES_MAX {
        return false;
    }
    let tags = tags_of(markup);
    let (formatting, bytes) = if tags.is_doubtful {
        // The worst case: every `<` begins a formatting element, and every byte belongs to such an
        // element.
        let most = markup.bytes().filter(|byte| *byte == b'<').count();
        (most, markup.len())
    } else {
        (tags.formatting, tags.formatting_bytes)
    };
    let all = markup.bytes().filter(|byte| *byte == b'<').count();
    // At worst, a parser repeats all formatting elements at each tag.
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
            // This is the end of an element, or text.
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
        // After such an element, a parser follows rules that this function does not know.
        tags.is_doubtful |= RAW.contains(&&*name);
        if FORMATTING.contains(&&*name) {
            tags.formatting += 1;
            tags.formatting_bytes += length;
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    tags
}

/// Returns the length of a tag up to its end, in bytes. `None` if there is no end, or if there is a
/// `<` or a quote where none belongs.
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

    /// Goal: a few kilobytes never become many elements, or many bytes.
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
            // In these cases, a parser and a simple reader of tags differ.
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
