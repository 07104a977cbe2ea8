//! Documents that are small and unfold to much, in families: one shape in any size. (The benchmarks use them, too.)
//!
//! Pure.

/// The media type of most families.
pub(crate) const ATOM: &str = "application/atom+xml";
const NS: &str = "xmlns='http://www.w3.org/2005/Atom'";

/// A family: its name, its media type, and a document of it of about so many bytes.
pub(crate) type Family = (&'static str, &'static str, fn(usize) -> String);

fn repeated(bytes: usize, piece: &str) -> String {
    piece.repeat(bytes / piece.len() + 1)
}

fn numbered(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).fold(String::new(), |text, number| text + &one(number))
}

/// A feed that has `head` and then small entries.
fn feed(head: &str, children: &str, entries: usize) -> String {
    let entries = numbered(entries.min(9_000), |n| {
        format!("<entry><id>urn:{n}</id></entry>")
    });
    format!("<feed {NS} {head}><id>urn:f</id>{children}{entries}</feed>")
}

/// An entry with these children, under these attributes.
fn entry(head: &str, children: &str) -> String {
    format!("<feed {NS}><id>urn:f</id><entry {head}><id>urn:1</id>{children}</entry></feed>")
}

/// All of them.
pub(crate) const FAMILIES: [Family; 20] = [
    ("tiny entries", ATOM, |bytes| feed("", "", bytes / 35)),
    ("a long namespace", ATOM, |bytes| {
        feed(
            &format!("xmlns:a='{}'", repeated(bytes / 2, "x")),
            "",
            bytes / 70,
        )
    }),
    ("many namespaces", ATOM, |bytes| {
        let declared = numbered(200, |n| format!(" xmlns:n{n}='u{n}'"));
        feed(&declared, "", bytes / 35)
    }),
    ("a long author", ATOM, |bytes| {
        let author = format!("<author><name>{}</name></author>", repeated(bytes / 2, "x"));
        feed("", &author, bytes / 70)
    }),
    ("many authors", ATOM, |bytes| {
        let authors = numbered(bytes / 100, |n| {
            format!("<author><name>{n}</name></author>")
        });
        feed("", &authors, bytes / 70)
    }),
    ("a long base", ATOM, |bytes| {
        feed(
            &format!("xml:base='http://h/{}'", repeated(bytes / 2, "x")),
            "",
            bytes / 70,
        )
    }),
    ("a long language", ATOM, |bytes| {
        feed(
            &format!("xml:lang='{}'", repeated(bytes / 2, "x")),
            "",
            bytes / 70,
        )
    }),
    ("a bearable inheritance", ATOM, |bytes| {
        feed(
            &format!("xml:lang='{}'", repeated(15_000, "x")),
            "",
            bytes / 35,
        )
    }),
    ("attributes under long namespaces", ATOM, |bytes| {
        let long = repeated(bytes / 400, "u");
        let declared = numbered(200, |n| format!(" xmlns:n{n}='{long}{n}'"));
        let attributes = numbered(200, |n| format!(" n{n}:a=''"));
        let elements = format!("<x{attributes}/>").repeat(bytes / 4_000 + 1);
        entry(&declared, &elements)
    }),
    (
        "elements under a namespace with references",
        ATOM,
        |bytes| {
            let long = repeated(bytes / 2, "&amp;");
            entry(&format!("xmlns:n='{long}'"), &repeated(bytes / 2, "<n:x/>"))
        },
    ),
    ("links under a long base", ATOM, |bytes| {
        let base = repeated(bytes / 3, "b");
        entry(
            &format!("xml:base='http://h/{base}/'"),
            &repeated(bytes / 2, "<link href='a'/>"),
        )
    }),
    ("bases in bases", ATOM, |bytes| {
        let base = repeated(bytes / 3, "b");
        entry(
            &format!("xml:base='http://h/{base}/'"),
            &repeated(bytes / 2, "<link xml:base='c/' href='a'/>"),
        )
    }),
    ("alternate links", ATOM, |bytes| {
        entry(
            "",
            &numbered(bytes / 40, |n| {
                format!("<link href='http://h/' type='a/{n}'/>")
            }),
        )
    }),
    ("categories", ATOM, |bytes| {
        entry("", &repeated(bytes, "<category term='a'/>"))
    }),
    ("nested elements", ATOM, |bytes| {
        let nest = "<a>".repeat(55) + &"</a>".repeat(55);
        entry("", &format!("<x>{}</x>", repeated(bytes, &nest)))
    }),
    ("references", ATOM, |bytes| {
        entry("", &format!("<title>{}</title>", repeated(bytes, "&#65;")))
    }),
    ("empty JSON lists", "application/json", |bytes| {
        format!("[{}0]", repeated(bytes, "0,"))
    }),
    ("nested JSON", "application/json", |bytes| {
        let nest = "[".repeat(55) + &"]".repeat(55) + ",";
        format!("{{\"content\":[{}0]}}", repeated(bytes, &nest))
    }),
    ("authors in JSON", "application/json", |bytes| {
        format!("{{\"author\":[{}1]}}", repeated(bytes, "1,"))
    }),
    ("empty events", "application/x-ndjson", |bytes| {
        repeated(bytes, "{}\n")
    }),
];
