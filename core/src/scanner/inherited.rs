//! Context that an entry inherits from the feed document around the entry: namespaces, base,
//! language, authors.
//!
//! Pure. The context is written onto each entry, so the size is known before anything is copied: a
//! feed of a megabyte could otherwise unfold to gigabytes.

use std::{borrow::Cow, collections::HashSet};

use super::push_raw;
use crate::{
    digest::Digest,
    entry::{Person, push_attribute},
    xml::{Attribute, Namespace, Tag, escaped_len},
};

/// Attributes that entries inherit from a feed, besides declarations and the base.
const ATTRIBUTES: [&str; 2] = ["xml:lang", "xml:space"];

/// Number of bytes around a value in ` xmlns:="…"` or ` xml:base="…"`.
const AROUND: usize = 12;

/// Returns an upper bound on the number of bytes that the entry `tag` inherits from the feed,
/// without authors.
pub(super) fn size<'t>(
    feed: &Tag<'_>,
    base: Option<&str>,
    tag: &Tag<'_>,
    scope: impl Iterator<Item = (&'t str, &'t Namespace<'t>)>,
) -> usize {
    let declarations = scope.map(|(prefix, uri)| prefix.len() + escaped_len(uri) + AROUND);
    let attributes = ATTRIBUTES.iter().map(|name| {
        let raw = feed
            .attribute(name)
            .map_or(0, |inherited| inherited.raw.len() + AROUND);
        // The entry's own attribute overrides the feed's.
        if tag.attribute(name).is_some() {
            0
        } else {
            raw
        }
    });
    let relative = feed.attribute("xml:base").map_or(0, |base| base.raw.len());
    // A base that is not absolute is merged with the entry's own, whose bytes the entry has
    // already.
    let base = base.map_or(relative, escaped_len);
    let bases = if base == 0 { 0 } else { base + AROUND };
    declarations.chain(attributes).sum::<usize>() + bases
}

/// Returns inherited authors in the form that the digest of the sent entry covers.
pub(super) fn of_authors(authors: &[Person]) -> String {
    let mut context = String::new();
    for person in authors {
        for text in [
            Some(&person.name),
            person.uri.as_ref(),
            person.email.as_ref(),
        ] {
            push_part("author", text.map_or("", String::as_str), &mut context);
        }
    }
    context
}

/// Context that one entry inherits from the feed.
#[derive(Debug)]
pub(super) struct InheritedContext<'a> {
    scope: Vec<(&'a str, Namespace<'a>)>,
    /// Attributes of the feed, written as they stand there.
    attributes: Vec<Attribute<'a>>,
    /// Base to write onto the entry in place of the entry's own; `None` if nothing replaces the
    /// entry's own base.
    base: Option<String>,
    /// Whether references in the entry have an absolute base, inherited or the entry's own.
    based: bool,
}

impl<'a> InheritedContext<'a> {
    /// Returns the context of an entry that was sent without a feed, given the entry's own absolute
    /// base.
    pub(super) fn nothing(base: Option<&str>) -> Self {
        Self {
            scope: vec![],
            attributes: vec![],
            base: None,
            based: base.is_some(),
        }
    }

    /// Returns the context of the entry `tag`; the feed's absolute base is `outer`, the entry's is
    /// `inside`.
    pub(super) fn new<'t>(
        feed: &Tag<'a>,
        outer: Option<&str>,
        inside: Option<&str>,
        tag: &Tag<'a>,
        scope: impl Iterator<Item = (&'a str, &'t Namespace<'a>)>,
    ) -> Self
    where
        'a: 't,
    {
        let inherits = |name: &&str| tag.attribute(name).is_none();
        let attributes = ATTRIBUTES.into_iter().filter(inherits);
        let own = value_of(tag, "xml:base");
        let base = match (outer, inside) {
            // With an absolute outer base, the resolved base of the entry replaces the base as
            // sent.
            (Some(_), inside) => inside.map(str::to_owned),
            (None, _) => value_of(feed, "xml:base").and_then(|outer| {
                let own = own.as_deref().unwrap_or_default();
                // An absolute base of the entry needs no merging, and stands alone already.
                url::Url::parse(own)
                    .is_err()
                    .then(|| merge_bases(&outer, own))
            }),
        };
        Self {
            scope: scope.map(|(prefix, uri)| (prefix, uri.clone())).collect(),
            attributes: attributes
                .filter_map(|name| feed.attribute(name).cloned())
                .collect(),
            based: inside.is_some(),
            base,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.scope.is_empty() && self.attributes.is_empty() && self.base.is_none()
    }

    /// Whether references in the entry have an absolute base.
    pub(super) fn has_base(&self) -> bool {
        self.based
    }

    /// Whether `base` replaces the entry's own `xml:base`.
    pub(super) fn replaces_base(&self) -> bool {
        self.base.is_some()
    }

    /// Whether a default namespace is inherited.
    pub(super) fn has_default(&self) -> bool {
        self.scope.iter().any(|(prefix, _)| prefix.is_empty())
    }

    /// Appends the context to `out` as attributes of a start tag.
    pub(super) fn push(&self, out: &mut String) {
        for (prefix, uri) in &self.scope {
            match *prefix {
                "" => push_attribute("xmlns", uri, out),
                _ => push_attribute(&format!("xmlns:{prefix}"), uri, out),
            }
        }
        for attribute in &self.attributes {
            push_raw(attribute, out);
        }
        if let Some(base) = &self.base {
            push_attribute("xml:base", base, out);
        }
    }

    /// Returns the digest of an entry's bytes and their inherited context.
    ///
    /// The same bytes have another meaning under another base or another binding of a prefix. A
    /// binding that the entry does not use is left out: a feed that gains declarations must not
    /// make old entries new.
    pub(super) fn sent(&self, entry: &str) -> Digest {
        // Without context the digest is that of the bytes alone, as for an entry sent by itself.
        if self.is_empty() {
            return Digest::of(entry.as_bytes());
        }
        let used = prefixes_in(entry);
        // Names without a prefix use the default namespace, so that namespace always counts.
        let mut scope: Vec<(&str, &str)> = self
            .scope
            .iter()
            .filter(|(prefix, _)| prefix.is_empty() || used.contains(prefix))
            .map(|(prefix, uri)| (*prefix, &**uri))
            .collect();
        // The order of declarations has no meaning in XML.
        scope.sort_unstable();
        let mut context = String::new();
        for (prefix, uri) in scope {
            push_part(prefix, uri, &mut context);
        }
        for attribute in &self.attributes {
            push_part(attribute.name, attribute.raw, &mut context);
        }
        if let Some(base) = &self.base {
            push_part("xml:base", base, &mut context);
        }
        Digest::of_parts(&[&Digest::of(entry.as_bytes()).0, context.as_bytes()])
    }
}

/// Appends a name and a value, each with its length in front, so that two different lists never
/// give the same text.
fn push_part(name: &str, value: &str, out: &mut String) {
    for part in [name, value] {
        out.push_str(&part.len().to_string());
        out.push(':');
        out.push_str(part);
    }
}

/// Returns all possible prefixes in a text: the names before a colon, in names and in values (which
/// may hold qualified names).
fn prefixes_in(text: &str) -> HashSet<&str> {
    let is_part =
        |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '\u{b7}') || !c.is_ascii();
    let mut prefixes = HashSet::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(':') {
        // The name begins behind the last character that no name has; that character can be longer
        // than a byte.
        let start = before.rfind(|c| !is_part(c)).map_or(0, |at| {
            at + before
                .get(at..)
                .and_then(|tail| tail.chars().next())
                .map_or(1, char::len_utf8)
        });
        prefixes.extend(before.get(start..).filter(|prefix| !prefix.is_empty()));
        rest = after;
    }
    prefixes
}

/// Returns the value of an attribute that was already read without error.
fn value_of<'t>(tag: &Tag<'t>, name: &str) -> Option<Cow<'t, str>> {
    tag.value(name).ok().flatten()
}

/// Returns the merge of the base `own` and the base `outer` around, which may both be relative.
/// Resolved against a URL, the merge equals `own` resolved against the resolved `outer` (RFC 3986,
/// 5.2).
fn merge_bases(outer: &str, own: &str) -> String {
    // An empty reference or a fragment leaves the base unchanged (RFC 3986, 5.2.2).
    if own.is_empty() || own.starts_with('#') {
        return outer.into();
    }
    // A reference with a host replaces all but the scheme.
    if own.starts_with("//") {
        return own.into();
    }
    // Query and fragment of the outer base never take part.
    let path_end = outer.find(['?', '#']).unwrap_or(outer.len());
    let (path, _) = outer.split_at(path_end);
    let host_end = path
        .strip_prefix("//")
        .map_or(0, |rest| 2 + rest.find('/').unwrap_or(rest.len()));
    let kept = match own.as_bytes().first() {
        // An absolute path keeps the host only.
        Some(b'/') => host_end,
        // A query keeps the whole path.
        Some(b'?') => path.len(),
        // A relative path replaces the last segment.
        _ => path.rfind('/').map_or(0, |slash| slash + 1).max(host_end),
    };
    // A slash must stand between a host and a path.
    let slash = if kept == host_end && kept > 0 && !own.starts_with(['/', '?']) {
        "/"
    } else {
        ""
    };
    let (kept, _) = path.split_at(kept);
    format!("{kept}{slash}{own}")
}

#[cfg(test)]
mod tests {
    use super::*;
    /// RFC 3986, 5.2: both references resolve to the same URL under any base.
    #[test]
    fn bases_merge_as_if_they_were_resolved() {
        let outers = [
            "a/b", "a/b?x#y", "a", "", "/a/b", "//h", "//h/a", "?x", "../a/",
        ];
        let owns = [
            "c", "c/", "../c", "./c", "/c", "//g/c", "?q", "", "#f", "c?q",
        ];
        for outer in outers {
            for own in owns {
                let merged = merge_bases(outer, own);
                for place in ["http://place/p/q/r", "http://place/"] {
                    let place: url::Url = place.parse().unwrap();
                    let mut nested = place.join(outer).unwrap().join(own).unwrap();
                    let mut at_once = place.join(&merged).unwrap();
                    nested.set_fragment(None);
                    at_once.set_fragment(None);
                    assert_eq!(
                        at_once, nested,
                        "{outer:?} around {own:?} became {merged:?}"
                    );
                }
            }
        }
    }
}
