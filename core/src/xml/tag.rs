//! Start tags: their names, attributes and namespaces.
//!
//! Pure.

use std::{borrow::Cow, collections::HashSet, ops::Range};

use super::{
    XmlError,
    namespace::{Namespace, NamespaceScope},
    text::{attribute_value, is_nc_name},
};
use crate::limits::ATTRIBUTES_MAX;

/// One attribute as written.
#[derive(Clone, Debug)]
pub struct Attribute<'a> {
    /// Qualified name, prefix included.
    pub name: &'a str,
    /// The value as written, between the quotes.
    pub raw: &'a str,
    /// Quote character around the value.
    pub quote: char,
    /// Byte offset of the attribute in the document.
    pub offset: usize,
}

impl<'a> Attribute<'a> {
    /// Returns the value, decoded and normalized (XML 1.0, 3.3.3).
    ///
    /// # Errors
    ///
    /// Returns the first reference that is not accepted.
    pub fn value(&self) -> Result<Cow<'a, str>, XmlError> {
        attribute_value(self.raw).map_err(|name| {
            XmlError::new(format!("reference &{name}; is not accepted"), self.offset)
        })
    }

    /// Returns the prefix that this attribute declares: `""` for the default namespace, `None` for
    /// an ordinary attribute.
    pub fn declared_prefix(&self) -> Option<&'a str> {
        if self.name == "xmlns" {
            Some("")
        } else {
            self.name.strip_prefix("xmlns:")
        }
    }
}

/// A start tag or empty-element tag.
#[derive(Clone, Debug)]
pub struct Tag<'a> {
    /// Bytes of the tag in the document, from `<` to `>`.
    pub range: Range<usize>,
    /// Qualified name of the element, as written.
    pub name: &'a str,
    /// The part of the name before the colon, or `""`.
    pub prefix: &'a str,
    /// The part of the name after the colon.
    pub local: &'a str,
    /// Namespace of the element; `""` for none.
    pub namespace: Namespace<'a>,
    /// Attributes in order, namespace declarations included.
    pub attributes: Vec<Attribute<'a>>,
    /// Whether the tag is an empty-element tag, `<…/>`.
    pub empty: bool,
}

impl<'a> Tag<'a> {
    pub(super) fn parse(raw: &'a str, range: Range<usize>) -> Result<Self, XmlError> {
        let inner = raw
            .strip_prefix('<')
            .and_then(|rest| rest.strip_suffix('>'))
            .unwrap_or(raw);
        // A `/` inside a quoted value cannot be last, so this one marks an empty element.
        let (inner, empty) = match inner.strip_suffix('/') {
            Some(inner) => (inner, true),
            None => (inner, false),
        };
        let length = inner.find(is_space).unwrap_or(inner.len());
        let (name, rest) = inner.split_at(length);
        let (prefix, local) = split_name(name, range.start)?;
        // `1 +` counts the `<`, so that offsets refer to the document.
        let attributes = parse_attributes(rest, range.start + 1 + length)?;
        Ok(Self {
            range,
            name,
            prefix,
            local,
            // `resolve` sets the namespace once the tag's own declarations are in scope.
            namespace: Namespace::NONE,
            attributes,
            empty,
        })
    }

    /// Finds the element's namespace. Refuses prefixes without a declaration, references that are
    /// not accepted, and attributes given twice.
    pub(super) fn resolve(&mut self, scope: &NamespaceScope<'a>) -> Result<(), XmlError> {
        let unbound = |prefix: &str, offset| {
            XmlError::new(format!("prefix {prefix} is not declared"), offset)
        };
        let (namespace, _) = scope
            .lookup(self.prefix)
            .ok_or_else(|| unbound(self.prefix, self.range.start))?;
        self.namespace = namespace;
        let mut seen = AttributeSet::default();
        for attribute in &self.attributes {
            // Decoding here finds a bad reference even in an attribute that no caller reads.
            attribute.value()?;
            // A prefixed attribute has the namespace of its prefix, any other one has none
            // (Namespaces in XML, 6.2).
            let expanded = if attribute.declared_prefix().is_some() {
                (None, attribute.name)
            } else {
                let (prefix, local) = split_name(attribute.name, attribute.offset)?;
                let number = if prefix.is_empty() {
                    NamespaceScope::NO_NAMESPACE
                } else {
                    let found = scope.lookup(prefix);
                    found.ok_or_else(|| unbound(prefix, attribute.offset))?.1
                };
                (Some(number), local)
            };
            if !seen.insert_name(expanded) {
                let detail = format!("attribute {} is given twice", attribute.name);
                return Err(XmlError::new(detail, attribute.offset));
            }
        }
        Ok(())
    }

    /// Returns whether this is the element `local` of `namespace`.
    pub fn is(&self, namespace: &str, local: &str) -> bool {
        self.local == local && self.namespace == *namespace
    }

    /// Returns the attribute with this qualified name, as written.
    pub fn attribute(&self, name: &str) -> Option<&Attribute<'a>> {
        self.attributes
            .iter()
            .find(|attribute| attribute.name == name)
    }

    /// Returns the decoded value of the attribute with this qualified name.
    ///
    /// # Errors
    ///
    /// As [`Attribute::value`].
    pub fn value(&self, name: &str) -> Result<Option<Cow<'a, str>>, XmlError> {
        self.attribute(name).map(Attribute::value).transpose()
    }
}

/// Number of an attribute's namespace, and the local name; for a namespace declaration, no number
/// and the name as written.
type ExpandedName<'a> = (Option<u32>, &'a str);

/// The attributes already met in one tag.
///
/// Few attributes are compared one by one, which is the common case. Many are hashed, so that the
/// cost of a tag stays linear in the length.
#[derive(Default)]
struct AttributeSet<'a> {
    few: Vec<ExpandedName<'a>>,
    many: HashSet<ExpandedName<'a>>,
}

impl<'a> AttributeSet<'a> {
    const FEW: usize = 8;

    /// Returns whether the attribute was not met before.
    fn insert_name(&mut self, attribute: ExpandedName<'a>) -> bool {
        // Comparing a few is faster than hashing them.
        if self.many.is_empty() && self.few.len() < Self::FEW {
            let is_new = !self.few.contains(&attribute);
            self.few.push(attribute);
            return is_new;
        }
        // The drain happens once: from here on `many` is not empty.
        self.many.extend(self.few.drain(..));
        self.many.insert(attribute)
    }
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn split_name(name: &str, offset: usize) -> Result<(&str, &str), XmlError> {
    let (prefix, local) = name.split_once(':').unwrap_or(("", name));
    // `split_once` makes both the name `a` and the name `:a` look like one without a prefix.
    let prefix_fits = is_nc_name(prefix) || (prefix.is_empty() && !name.starts_with(':'));
    if prefix_fits && is_nc_name(local) {
        return Ok((prefix, local));
    }
    Err(XmlError::new(format!("{name:?} is not a name"), offset))
}

/// Reads `S name Eq quoted` over and over, strictly (XML 1.0, 3.1).
pub(super) fn parse_attributes(text: &str, offset: usize) -> Result<Vec<Attribute<'_>>, XmlError> {
    let mut attributes = vec![];
    let mut rest = text;
    loop {
        let trimmed = rest.trim_start_matches(is_space);
        if trimmed.is_empty() {
            return Ok(attributes);
        }
        let at = offset + text.len() - trimmed.len();
        let wrong = |why: &str| XmlError::new(format!("an attribute {why}"), at);
        // XML 1.0, 3.1: white space must precede each attribute, even after a quoted value.
        if trimmed.len() == rest.len() {
            return Err(wrong("has no space before it"));
        }
        if attributes.len() >= ATTRIBUTES_MAX {
            return Err(wrong(&format!("is one more than {ATTRIBUTES_MAX}")));
        }
        let (name, after) = trimmed
            .split_once('=')
            .ok_or_else(|| wrong("has no value"))?;
        let name = name.trim_end_matches(is_space);
        let after = after.trim_start_matches(is_space);
        let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''));
        let quote = quote.ok_or_else(|| wrong("has no quoted value"))?;
        // A quote is one byte long in UTF-8.
        let quoted = after.get(1..).unwrap_or_default();
        let (raw, after) = quoted
            .split_once(quote)
            .ok_or_else(|| wrong("has no end"))?;
        if raw.contains('<') {
            return Err(wrong("contains <"));
        }
        attributes.push(Attribute {
            name,
            raw,
            quote,
            offset: at,
        });
        rest = after;
    }
}
