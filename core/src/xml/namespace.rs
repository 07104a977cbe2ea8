//! Namespaces, and the bindings of prefixes to them.
//!
//! Pure. A name is compared for every element and attribute, so the cost must not grow with the
//! length of a namespace or with the number of prefixes: namespaces are numbered when they are
//! declared, and prefixes are looked up by hash.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

use super::XML;

/// The name of a namespace. A copy costs nothing, however long the name is.
#[derive(Clone)]
pub enum Namespace<'a> {
    /// A name as written in the document.
    Written(&'a str),
    /// A name with all references resolved.
    Decoded(Arc<str>),
}

impl<'a> Namespace<'a> {
    /// Stands for the namespace of names that are in no namespace.
    pub const NONE: Self = Self::Written("");

    pub(super) fn new(name: Cow<'a, str>) -> Self {
        match name {
            Cow::Borrowed(name) => Self::Written(name),
            Cow::Owned(name) => Self::Decoded(name.into()),
        }
    }
}

/// Shows the name only: how the name is held means nothing to the reader of a message.
impl fmt::Debug for Namespace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Deref for Namespace<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Written(name) => name,
            Self::Decoded(name) => name,
        }
    }
}

impl PartialEq for Namespace<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Namespace<'_> {}

impl Hash for Namespace<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl PartialEq<str> for Namespace<'_> {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

/// One declaration in scope.
#[derive(Clone, Debug)]
struct Binding<'a> {
    depth: usize,
    prefix: &'a str,
    namespace: Namespace<'a>,
    /// Number of the namespace.
    number: u32,
    /// Index of the declaration that this one hides.
    hides: Option<usize>,
}

/// The declarations in scope at one place of a document.
#[derive(Debug, Default)]
pub(super) struct NamespaceScope<'a> {
    bindings: Vec<Binding<'a>>,
    /// Index of the innermost declaration of the default namespace.
    default: Option<usize>,
    /// Index of the innermost declaration of each other prefix.
    prefixed: HashMap<&'a str, usize>,
    numbers: HashMap<Namespace<'a>, u32>,
}

impl<'a> NamespaceScope<'a> {
    /// Number that stands for no namespace.
    pub(super) const NO_NAMESPACE: u32 = 0;
    /// Number of the namespace that the prefix `xml` is bound to.
    const XML_NAMESPACE: u32 = 1;
    /// Number of the first namespace that a document declares.
    const FIRST: u32 = 2;

    /// Returns the number of declarations in scope, hidden ones included.
    pub(super) fn len(&self) -> usize {
        self.bindings.len()
    }

    /// Declares a prefix, `""` for the default namespace, on the element at `depth`.
    pub(super) fn declare(&mut self, depth: usize, prefix: &'a str, namespace: Namespace<'a>) {
        // Namespaces in XML, 6.2: `xmlns=""` puts names into no namespace.
        let number = if namespace.is_empty() {
            Self::NO_NAMESPACE
        } else {
            // The fallback leaves room for `FIRST` in the sum.
            let next = Self::FIRST + u32::try_from(self.numbers.len()).unwrap_or(u32::MAX - 2);
            *self.numbers.entry(namespace.clone()).or_insert(next)
        };
        let index = self.bindings.len();
        // `close` puts the hidden declaration back into effect when the element ends.
        let hides = if prefix.is_empty() {
            self.default.replace(index)
        } else {
            self.prefixed.insert(prefix, index)
        };
        self.bindings.push(Binding {
            depth,
            prefix,
            namespace,
            number,
            hides,
        });
    }

    /// Drops the declarations of the element at `depth`, and restores those they hid.
    pub(super) fn close(&mut self, depth: usize) {
        while let Some(binding) = self.bindings.pop_if(|binding| binding.depth == depth) {
            match (binding.prefix, binding.hides) {
                ("", hidden) => self.default = hidden,
                (prefix, Some(hidden)) => drop(self.prefixed.insert(prefix, hidden)),
                (prefix, None) => drop(self.prefixed.remove(prefix)),
            }
        }
    }

    /// Returns the namespace bound to a prefix, with the namespace's number; `None` for an
    /// undeclared prefix.
    pub(super) fn lookup(&self, prefix: &str) -> Option<(Namespace<'a>, u32)> {
        let bound = match prefix {
            "" => self.default,
            // `xml` is bound without a declaration (Namespaces in XML, 3).
            "xml" => return Some((Namespace::Written(XML), Self::XML_NAMESPACE)),
            _ => Some(*self.prefixed.get(prefix)?),
        };
        match bound.and_then(|index| self.bindings.get(index)) {
            Some(binding) => Some((binding.namespace.clone(), binding.number)),
            // Without a default declaration, names without a prefix are in no namespace.
            None => Some((Namespace::NONE, Self::NO_NAMESPACE)),
        }
    }

    /// Returns the declarations in scope that no inner one hides, in order of declaration.
    /// Declarations on elements deeper than `depth` are left out.
    pub(super) fn down_to(&self, depth: usize) -> impl Iterator<Item = (&'a str, &Namespace<'a>)> {
        let visible = |index: usize, prefix: &str| match prefix {
            "" => self.default == Some(index),
            _ => self.prefixed.get(prefix) == Some(&index),
        };
        // Bindings are in order of depth, so the first deeper one ends the search.
        self.bindings
            .iter()
            .enumerate()
            .take_while(move |(_, binding)| binding.depth <= depth)
            .filter(move |(index, binding)| visible(*index, binding.prefix))
            .map(|(_, binding)| (binding.prefix, &binding.namespace))
    }
}
