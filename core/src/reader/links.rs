//! Links of a document: sound ones, and those that lead nowhere.
//!
//! Pure. A consumer that ignored a broken link to the archive would end the walk back before the
//! oldest entry, so broken links are kept and reported.

use std::fmt;

use url::Url;

use super::Document;
use crate::{
    limits::{DOCUMENT_LINKS_MAX, LINK_BYTES_MAX},
    push::{EVENTS_REL, WAIT_REL},
    sup::{SUP_DRAFT_REL, SUP_REL},
};

/// Relations that a consumer follows.
const FOLLOWED: [&str; 9] = [
    PREV_ARCHIVE,
    NEXT_ARCHIVE,
    "current",
    "next",
    "index",
    EVENTS_REL,
    WAIT_REL,
    SUP_REL,
    SUP_DRAFT_REL,
];
/// Relation of the older archived document (RFC 5005, 4).
const PREV_ARCHIVE: &str = "prev-archive";
/// Relation of the newer archived document.
const NEXT_ARCHIVE: &str = "next-archive";
/// Maximum number of characters of a broken target that are kept.
const TARGET_CHARACTERS_MAX: usize = 200;

/// Feed-level link of a document, or a link of the header fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentLink {
    /// The relation, in lower case: a registered name or an IRI (rule A-5).
    pub rel: String,
    /// Absolute URL of the target, without the fragment, because no server ever sees a fragment.
    pub url: Url,
}

/// Link that leads nowhere: the link has no target, or a target that is no URL of at most
/// [`LINK_BYTES_MAX`](crate::limits::LINK_BYTES_MAX) bytes whose scheme is `http`, `https` or
/// `file`. A link to SUP is broken, too, if the target is no address of SUP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenLink {
    /// The relation, in lower case.
    pub rel: String,
    /// The target as written in the document, cut to 200 characters and without control characters;
    /// `None` if there is none.
    pub target: Option<String>,
}

impl fmt::Display for BrokenLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Some(target) => write!(
                f,
                "its link {:?} leads nowhere: {target:?} is no URL to follow",
                self.rel
            ),
            None => write!(f, "its link {:?} leads nowhere: it has no target", self.rel),
        }
    }
}

/// Fault of a document that a consumer can read all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedFault {
    /// A link leads nowhere.
    Link(BrokenLink),
    /// Some entries have the same id. Only the newest of each id is an entry; the others are
    /// revisions of that entry.
    Repeats {
        /// Number of entries that are not the newest of their id.
        entries: usize,
    },
    /// The feed goes on at other pages (RFC 5005, 3), which consumers do not read.
    Paged {
        /// URL of the next page; `None` if that link is broken.
        next: Option<Url>,
    },
}

impl FeedFault {
    /// Returns a number that faults of one kind have in common: below 16, so that 16 bits hold a
    /// set of kinds.
    pub fn kind(&self) -> u32 {
        let kind = match self {
            Self::Repeats { .. } => 0,
            Self::Paged { .. } => 1,
            Self::Link(link) => {
                // Only links with a followed relation are kept as broken, so the relation is found.
                2 + FOLLOWED
                    .iter()
                    .position(|rel| *rel == link.rel)
                    .unwrap_or(0)
            }
        };
        u32::try_from(kind).unwrap_or(0)
    }
}

impl fmt::Display for FeedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(link) => link.fmt(f),
            Self::Repeats { entries: 1 } => {
                f.write_str("one entry has the id of a newer one: it is a revision of that one")
            }
            Self::Repeats { entries } => {
                write!(
                    f,
                    "{entries} entries have the ids of newer ones: they are revisions of those"
                )
            }
            Self::Paged { next: Some(next) } => {
                write!(f, "it goes on at another page, {next}, which is not read")
            }
            Self::Paged { next: None } => {
                f.write_str("it goes on at another page, which is not read")
            }
        }
    }
}

/// Links of a document that is being read.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) sound: Vec<DocumentLink>,
    pub(super) broken: Vec<BrokenLink>,
    /// A bit for each relation of [`FOLLOWED`] that has a sound link.
    followed: u16,
}

impl Links {
    /// Adds a link that `href` names; `rel` has the form of [`relation`]. Without a base, only an
    /// absolute target is sound.
    pub(super) fn add(&mut self, rel: String, base: Option<&Url>, href: Option<&str>) {
        let followed = FOLLOWED.iter().position(|followed| *followed == rel);
        let Some(url) = href.and_then(|href| link_target(base, href, followed.is_some())) else {
            return self.add_broken(rel, href);
        };
        // `FOLLOWED` has fewer than 16 relations, so that each has a bit.
        let bit = followed.map_or(0, |number| 1 << number);
        // A link that a walk needs may stand behind any number of others.
        let is_needed = bit & !self.followed != 0;
        if self.sound.len() < DOCUMENT_LINKS_MAX || is_needed {
            self.sound.push(DocumentLink { rel, url });
        }
        self.followed |= bit;
    }

    pub(super) fn add_broken(&mut self, rel: String, href: Option<&str>) {
        add_broken(&mut self.broken, rel, href);
    }
}

fn add_broken(links: &mut Vec<BrokenLink>, rel: String, href: Option<&str>) {
    if !FOLLOWED.contains(&rel.as_str()) || links.iter().any(|link| link.rel == rel) {
        return;
    }
    let text = |href: &str| {
        let characters = href.chars().filter(|c| !c.is_control());
        characters.take(TARGET_CHARACTERS_MAX).collect()
    };
    let target = href.map(text);
    links.push(BrokenLink { rel, target });
}

/// Returns a relation in the form in which relations are compared: in lower case, without white
/// space around (RFC 8288, 2.1.1), and for a registered relation the bare name (RFC 4287, 4.2.7.2).
pub(super) fn relation(text: &str) -> String {
    let rel = text.trim().to_ascii_lowercase();
    let registered = rel.strip_prefix("http://www.iana.org/assignments/relation/");
    registered.map(str::to_owned).unwrap_or(rel)
}

/// Returns a reference as a URL without the fragment; without a base, the reference must be
/// absolute. `None` if the reference is no URL, or if the URL is longer than [`LINK_BYTES_MAX`]. A
/// link that consumers follow must also have the scheme `http`, `https` or `file`.
fn link_target(base: Option<&Url>, reference: &str, is_followed: bool) -> Option<Url> {
    let mut url = resolve(base, reference)?;
    url.set_fragment(None);
    // Documents in files link to files.
    let leads = !is_followed || matches!(url.scheme(), "http" | "https" | "file");
    (leads && url.as_str().len() <= LINK_BYTES_MAX).then_some(url)
}

/// Returns a reference as a URL; without a base, the reference must be absolute.
pub(super) fn resolve(base: Option<&Url>, reference: &str) -> Option<Url> {
    let reference = reference.trim();
    match base {
        Some(base) => base.join(reference).ok(),
        None => Url::parse(reference).ok(),
    }
}

impl Document {
    /// Adds a link from a header field (RFC 8288), whose target is relative to `base`. The
    /// document's own links come before such a link.
    pub fn add_link(&mut self, rel: &str, base: &Url, href: &str) {
        let rel = relation(rel);
        let is_followed = FOLLOWED.contains(&rel.as_str());
        match link_target(Some(base), href, is_followed) {
            Some(url)
                if self.links.len() < DOCUMENT_LINKS_MAX
                    || is_followed && self.link(&rel).is_none() =>
            {
                self.links.push(DocumentLink { rel, url });
            }
            Some(_) => {}
            None => add_broken(&mut self.broken_links, rel, Some(href)),
        }
    }

    /// Returns the URL of the first sound link with this relation.
    pub fn link(&self, rel: &str) -> Option<&Url> {
        let link = self.links.iter().find(|link| link.rel == rel);
        link.map(|link| &link.url)
    }

    /// Returns the URL of the first sound link with this relation, which must be a relation that a
    /// consumer follows.
    ///
    /// # Errors
    ///
    /// The broken link, if there are only broken ones.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::reader::Document;
    ///
    /// let body = "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>\
    ///     <link rel='prev-archive' href='http://[::1'/></feed>";
    /// let document = Document::read(body.into(), &"https://example.org/feed".parse()?)?;
    /// assert!(document.lead("prev-archive").is_err(), "there is an archive");
    /// assert_eq!(document.lead("current"), Ok(None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lead(&self, rel: &str) -> Result<Option<&Url>, &BrokenLink> {
        match self.link(rel) {
            Some(url) => Ok(Some(url)),
            None => match self.broken_links.iter().find(|link| link.rel == rel) {
                Some(broken) => Err(broken),
                None => Ok(None),
            },
        }
    }

    /// Returns whether the document has a link with this relation that a consumer follows, sound or
    /// broken.
    pub(crate) fn has_link(&self, rel: &str) -> bool {
        self.lead(rel) != Ok(None)
    }

    /// Returns the next page of a feed that goes on at other pages (RFC 5005, 3) and has no
    /// archive. `urls` are those of the document itself.
    ///
    /// # Errors
    ///
    /// The link to the next page, if that link is broken.
    pub(crate) fn next_page(&self, urls: [&Url; 2]) -> Result<Option<&Url>, &BrokenLink> {
        // Pages of a feed with positions are another form of the archive.
        let has_other_way =
            self.history.is_some() || self.has_link(PREV_ARCHIVE) || self.has_link(NEXT_ARCHIVE);
        if has_other_way {
            return Ok(None);
        }
        let next = self.lead("next")?;
        Ok(next.filter(|next| !urls.contains(next)))
    }

    /// Returns the faults of a document that was retrieved from `url`.
    pub fn faults(&self, url: &Url) -> Vec<FeedFault> {
        let links = self.broken_links.iter().cloned().map(FeedFault::Link);
        let repeats = (self.repeats > 0).then_some(FeedFault::Repeats {
            entries: self.repeats,
        });
        let paged = match self.next_page([url, url]) {
            Ok(None) => None,
            Ok(Some(next)) => Some(FeedFault::Paged {
                next: Some(next.clone()),
            }),
            Err(_) => Some(FeedFault::Paged { next: None }),
        };
        links.chain(repeats).chain(paged).collect()
    }

    /// Swaps the archive links of a feed that has them reversed: in feeds of Atom Hopper,
    /// `next-archive` leads to older documents.
    pub(crate) fn swap_archive_links(&mut self) {
        let links = self.links.iter_mut().map(|link| &mut link.rel);
        let broken = self.broken_links.iter_mut().map(|link| &mut link.rel);
        for rel in links.chain(broken) {
            match rel.as_str() {
                PREV_ARCHIVE => *rel = NEXT_ARCHIVE.into(),
                NEXT_ARCHIVE => *rel = PREV_ARCHIVE.into(),
                _ => {}
            }
        }
    }
}
