//! Settings: everything that shapes the bytes of a feed's documents.
//!
//! Pure. Settings are facts in the log, as entries are, because a view reads nothing but the log.
//! The server's operator proposes [`Defaults`], and the feed's owner makes [`Choices`]; a choice
//! wins over a default. The log records both, so that a changed default reaches the feeds without a
//! choice of their own, and no other feeds.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::{
    cut::{CutPolicy, Period},
    entry::{ALTERNATE, Additions},
    feed::{DocumentName, Epoch, EpochNumber, FeedId, FeedName, Position},
    limits::{
        DOCUMENT_BYTES_DEFAULT, DOCUMENT_BYTES_MAX, DOCUMENT_ENTRIES_DEFAULT, DOCUMENT_ENTRIES_MAX,
        TITLE_BYTES_MAX,
    },
    refusal::Refusal,
    sup::{SUP, SUP_CLOSED, SUP_TIMELINES, SUP_TIMELINES_CLOSED, SupId},
    xml,
};

mod kind;

pub use kind::{Embed, OwnEntries, TimelineKind};

/// Proposals of the server for feeds without a choice of their own.
///
/// The chain hash covers the JSON of settings. A field that is added later must therefore be left
/// out of the JSON while the field has the default value, or old commits would no longer fit the
/// chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defaults {
    /// The URL before `/feeds/…`: absolute, without a slash at the end.
    pub public_url: String,
    /// The author of entries that name no author.
    pub author: String,
    /// Maximum number of entries in a document.
    pub document_entries: u32,
    /// Maximum total size of the entries in a document, in bytes.
    pub document_bytes: u64,
    /// Hour or day in which the instants of all entries of a document lie.
    pub document_period: Period,
    /// Whether links are absolute URLs.
    pub absolute_links: bool,
    /// Whether the server has SUP documents, which list the feeds' updates.
    #[serde(default = "default_true", skip_serializing_if = "is_yes")]
    pub sup: bool,
}

fn default_true() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_yes(sup: &bool) -> bool {
    *sup
}

impl Defaults {
    /// Returns the defaults of a server at `public_url`.
    pub fn new(public_url: &str) -> Self {
        Self {
            // URLs are built by appending `/feeds/…`, so a slash at the end would be doubled.
            public_url: public_url.trim_end_matches('/').into(),
            author: "Simplefeed".into(),
            document_entries: DOCUMENT_ENTRIES_DEFAULT,
            document_bytes: DOCUMENT_BYTES_DEFAULT,
            document_period: Period::None,
            absolute_links: false,
            sup: true,
        }
    }
}

/// Choices of a feed's owner. If a choice is absent, the server's [`Defaults`] apply, or else the
/// choice's own default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choices {
    /// The feed's title; the feed's name if no title is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The author of entries that name no author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// Maximum number of entries in a document, 1 to [`DOCUMENT_ENTRIES_MAX`].
    #[serde(
        default,
        deserialize_with = "document_entries",
        skip_serializing_if = "Option::is_none"
    )]
    pub document_entries: Option<u32>,
    /// Maximum total size of the entries in a document, in bytes: 1 to [`DOCUMENT_BYTES_MAX`].
    #[serde(
        default,
        deserialize_with = "document_bytes",
        skip_serializing_if = "Option::is_none"
    )]
    pub document_bytes: Option<u64>,
    /// Hour or day in which the instants of all entries of a document lie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_period: Option<Period>,
    /// Whether links are absolute URLs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absolute_links: Option<bool>,
    /// Whether a document at a permanent URL has a `via` link to that URL, as the recent document
    /// has. The choice needs absolute links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via_links: Option<bool>,
    /// Whether an entry without an alternate link gets a link to the entry's page. Each new feed
    /// that is no timeline has this choice; a feed without the choice adds no link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternate_links: Option<bool>,
    /// Whether the feed is closed: visible only to readers with a right to the feed. Chosen at
    /// creation; the owner can open the feed later, unless the feed is a timeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<bool>,
    /// How much of each entry the documents of a timeline contain; for timelines only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embed: Option<Embed>,
}

fn document_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let number = whole_number(
        "document_entries",
        DOCUMENT_ENTRIES_MAX.into(),
        deserializer,
    )?;
    // A number that is too large for `u32` becomes `u32::MAX`, which the later check of the bounds
    // refuses.
    Ok(number.map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
}

fn document_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    whole_number("document_bytes", DOCUMENT_BYTES_MAX, deserializer)
}

fn whole_number<'de, D: Deserializer<'de>>(
    name: &str,
    max: u64,
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    let wrong = || D::Error::custom(format!("{name} is not a whole number between 1 and {max}"));
    match Option::<serde_json::Value>::deserialize(deserializer)? {
        None => Ok(None),
        Some(value) => value.as_u64().ok_or_else(wrong).map(Some),
    }
}

impl Choices {
    /// Returns these choices; each choice that is absent here comes from `older`.
    #[must_use]
    pub fn over(self, older: &Self) -> Self {
        Self {
            title: self.title.or_else(|| older.title.clone()),
            author: self.author.or_else(|| older.author.clone()),
            document_entries: self.document_entries.or(older.document_entries),
            document_bytes: self.document_bytes.or(older.document_bytes),
            document_period: self.document_period.or(older.document_period),
            absolute_links: self.absolute_links.or(older.absolute_links),
            via_links: self.via_links.or(older.via_links),
            alternate_links: self.alternate_links.or(older.alternate_links),
            closed: self.closed.or(older.closed),
            embed: self.embed.or(older.embed),
        }
    }

    /// Checks every chosen value against the bounds.
    ///
    /// # Errors
    ///
    /// Returns the first value that is out of bounds, as [`Unacceptable`].
    ///
    /// [`Unacceptable`]: crate::refusal::RefusalKind::Unacceptable
    pub fn check(&self) -> Result<(), Refusal> {
        check_text("title", self.title.as_deref())?;
        check_text("author", self.author.as_deref())?;
        check_entries(self.document_entries.unwrap_or(1))?;
        check_bytes(self.document_bytes.unwrap_or(1))
    }
}

/// Checks a title or author name: not blank, not too long, and only of characters that XML can
/// carry.
///
/// # Errors
///
/// Returns a refusal that names the member `name` and the fault.
pub fn check_text(name: &str, text: Option<&str>) -> Result<(), Refusal> {
    let Some(text) = text else { return Ok(()) };
    let problem = if text.trim().is_empty() {
        "is blank"
    } else if text.len() > TITLE_BYTES_MAX {
        "is longer than 1024 bytes"
    } else if !text.chars().all(xml::is_char) {
        "has a character that XML cannot carry"
    } else {
        return Ok(());
    };
    Err(Refusal::unacceptable(format!("{name} {problem}"), "settings").at_element(name))
}

/// Checks a number of entries per document against the bounds.
///
/// # Errors
///
/// Returns a refusal that names the bounds.
pub fn check_entries(entries: u32) -> Result<(), Refusal> {
    if (1..=DOCUMENT_ENTRIES_MAX).contains(&entries) {
        return Ok(());
    }
    let detail = format!("document_entries is not between 1 and {DOCUMENT_ENTRIES_MAX}");
    Err(Refusal::unacceptable(detail, "settings").at_element("document_entries"))
}

/// Checks a number of bytes per document against the bounds.
///
/// # Errors
///
/// Returns a refusal that names the bounds.
pub fn check_bytes(bytes: u64) -> Result<(), Refusal> {
    if (1..=DOCUMENT_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    let detail = format!("document_bytes is not between 1 and {DOCUMENT_BYTES_MAX}");
    Err(Refusal::unacceptable(detail, "settings").at_element("document_bytes"))
}

/// Everything that shapes the bytes of one feed's documents, as recorded in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The feed's name, a segment of the feed's URLs.
    pub name: FeedName,
    /// The feed's permanent `atom:id`.
    pub id: FeedId,
    /// Choices of the feed's owner. Feeds with equal choices may share one value in memory.
    pub choices: Arc<Choices>,
    /// Proposals of the server when these settings were recorded. Feeds with equal proposals may
    /// share one value in memory.
    pub defaults: Arc<Defaults>,
    /// The feed's id in SUP documents, assigned at creation; `None` in feeds whose id
    /// [`SupId::of_feed`] derives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sup_id: Option<SupId>,
    /// Whether the feed was closed once, and is public now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_closed: bool,
    /// Kind of timeline, chosen at creation; `None` in feeds that take entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<TimelineKind>,
}

impl Settings {
    /// Returns whether the feed is a timeline, whose entries are those of the followed feeds.
    pub fn is_timeline(&self) -> bool {
        self.timeline.is_some()
    }

    /// Returns how much of each entry the documents of a timeline contain.
    pub fn embed(&self) -> Embed {
        self.choices.embed.unwrap_or_default()
    }

    /// Returns the feed's title.
    pub fn title(&self) -> &str {
        self.choices.title.as_deref().unwrap_or(self.name.as_str())
    }

    /// Returns the author of entries that name no author.
    pub fn author(&self) -> &str {
        self.choices
            .author
            .as_deref()
            .unwrap_or(&self.defaults.author)
    }

    /// Returns whether links are absolute URLs.
    pub fn absolute_links(&self) -> bool {
        self.choices
            .absolute_links
            .unwrap_or(self.defaults.absolute_links)
    }

    /// Returns whether a document at a permanent URL has a `via` link to that URL.
    pub fn via_links(&self) -> bool {
        // The choice may outlive absolute links, because the server's defaults may change.
        self.choices.via_links.unwrap_or(false) && self.absolute_links()
    }

    /// Returns whether an entry without an alternate link gets a link to the entry's page.
    pub fn alternate_links(&self) -> bool {
        self.choices.alternate_links.unwrap_or(false)
    }

    /// Returns the parts that an entry at this position, in a document of this epoch, gets if the
    /// entry lacks them.
    pub fn additions(&self, at: Position, epoch: Epoch) -> Additions<'_> {
        let number = EpochNumber {
            number: at.0,
            epoch,
        };
        let page = || format!("{}entries/{number}", self.base_url());
        Additions {
            author: self.author(),
            alternate: self.alternate_links().then(page),
        }
    }

    /// Returns an upper bound on the length of the alternate link that an entry gets, in bytes.
    pub fn alternate_bytes(&self) -> usize {
        // A position, a hyphen and an epoch have at most 31 bytes. An escaped byte has 5 bytes,
        // such as `&amp;`.
        let url = || 5 * (self.base_url().len() + "entries/".len()) + 32;
        if self.alternate_links() {
            ALTERNATE.len() + url()
        } else {
            0
        }
    }

    /// Returns the feed's id in SUP documents.
    pub fn sup_id(&self) -> SupId {
        // The derived id is the same on every machine, so a feed without a recorded id needs no new
        // settings.
        self.sup_id.unwrap_or_else(|| SupId::of_feed(self.id.key()))
    }

    /// Returns whether the feed is closed, or was closed once. A separate SUP document lists these
    /// feeds, for readers with a right to them. Opening a feed does not change the answer, so that
    /// the feed's archived updates stay in one document.
    pub fn is_or_was_closed(&self) -> bool {
        self.is_closed() || self.was_closed
    }

    /// Returns the address that the feed announces (rule SUP-A1): the URL of the SUP document, `#`
    /// and the feed's id there; `None` where the server offers no SUP documents.
    pub fn sup_address(&self) -> Option<String> {
        let defaults = &self.defaults;
        defaults
            .sup
            .then(|| self.sup_address_at(&defaults.public_url))
    }

    /// Returns the address that the feed announces on a server at `public_url`.
    pub fn sup_address_at(&self, public_url: &str) -> String {
        let name = match (self.is_timeline(), self.is_or_was_closed()) {
            (false, false) => SUP,
            (false, true) => SUP_CLOSED,
            (true, false) => SUP_TIMELINES,
            (true, true) => SUP_TIMELINES_CLOSED,
        };
        format!("{public_url}/{name}.json#{}", self.sup_id())
    }

    /// Returns whether only readers with a right to the feed may see the feed.
    pub fn is_closed(&self) -> bool {
        self.choices.closed == Some(true)
    }

    /// Returns these settings with `choices` on top, or `None` if the choices change nothing.
    ///
    /// # Errors
    ///
    /// [`Unacceptable`] in three cases: the choices close a public feed, which caches keep; the
    /// choices open a closed timeline, whose followed feeds may be closed; or the choices do not
    /// [fit](Self::check) the kind of feed or each other.
    ///
    /// [`Unacceptable`]: crate::refusal::RefusalKind::Unacceptable
    pub fn with(&self, choices: Choices) -> Result<Option<Self>, Refusal> {
        if self.is_timeline()
            && choices
                .closed
                .is_some_and(|closed| closed != self.is_closed())
        {
            // Feeds that a closed timeline follows may be closed, and caches keep a public
            // timeline.
            let detail = "whether a timeline is closed is chosen at its creation";
            return Err(Refusal::unacceptable(detail, "settings").at_element("closed"));
        }
        // In a closed feed, the repeated choice changes nothing, and is accepted.
        if choices.closed == Some(true) && !self.is_closed() {
            let detail = "a feed that was public cannot be closed: caches have it";
            return Err(Refusal::unacceptable(detail, "settings").at_element("closed"));
        }
        // A change of the server's defaults may have left `via_links` without absolute links. A
        // change of another choice must not fail because of that.
        let changes_links = choices.via_links.is_some() || choices.absolute_links.is_some();
        let choices = choices.over(&self.choices);
        if choices == *self.choices {
            return Ok(None);
        }
        let changed = Self {
            was_closed: self.was_closed || (self.is_closed() && choices.closed == Some(false)),
            choices: choices.into(),
            ..self.clone()
        };
        if changes_links {
            changed.check()?;
        } else {
            kind::check(&changed)?;
        }
        Ok(Some(changed))
    }

    /// Checks that the choices fit the kind of feed, and each other.
    ///
    /// # Errors
    ///
    /// Returns the first choice that does not fit, as [`Unacceptable`].
    ///
    /// [`Unacceptable`]: crate::refusal::RefusalKind::Unacceptable
    pub fn check(&self) -> Result<(), Refusal> {
        if self.choices.via_links == Some(true) && !self.absolute_links() {
            let detail = "via_links needs absolute_links";
            return Err(Refusal::unacceptable(detail, "settings").at_element("via_links"));
        }
        kind::check(self)
    }

    /// Returns the bounds at which a document is closed.
    pub fn cut_policy(&self) -> CutPolicy {
        let entries = self
            .choices
            .document_entries
            .unwrap_or(self.defaults.document_entries);
        let bytes = self
            .choices
            .document_bytes
            .unwrap_or(self.defaults.document_bytes);
        let (entries, bytes) = match &self.timeline {
            None => (entries, bytes),
            Some(_) => kind::bounds(self.embed(), entries, bytes),
        };
        CutPolicy {
            entries,
            bytes,
            period: self
                .choices
                .document_period
                .unwrap_or(self.defaults.document_period),
        }
    }

    /// Returns the absolute URL of the folder that holds the feed's documents, with a slash at the
    /// end.
    pub fn base_url(&self) -> String {
        format!("{}/feeds/{}/", self.defaults.public_url, self.name)
    }

    /// Returns the absolute, permanent URL of a document.
    pub fn document_url(&self, document: DocumentName) -> String {
        format!("{}{document}", self.base_url())
    }

    /// Returns these settings with other proposals of the server, or `None` if no document would
    /// change.
    pub fn under(&self, defaults: &Arc<Defaults>) -> Option<Self> {
        if self.defaults == *defaults {
            return None;
        }
        let changed = Self {
            defaults: Arc::clone(defaults),
            ..self.clone()
        };
        // A new revision opens a new document, and a change without effect must not open a
        // document.
        (!changed.shapes_like(self)).then_some(changed)
    }

    /// Returns whether two settings of one feed give the same bytes of documents.
    pub fn shapes_like(&self, other: &Self) -> bool {
        self.title() == other.title()
            && self.author() == other.author()
            && self.absolute_links() == other.absolute_links()
            && self.via_links() == other.via_links()
            && self.alternate_links() == other.alternate_links()
            && self.cut_policy() == other.cut_policy()
            && self.base_url() == other.base_url()
            && self.defaults.sup == other.defaults.sup
            && self.embed() == other.embed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            name: FeedName::parse("orders").unwrap(),
            id: FeedId::parse("urn:uuid:ff31a040-75bc-11e2-bcfd-0800200c9a66").unwrap(),
            choices: Choices::default().into(),
            defaults: Defaults::new("http://h/sub/").into(),
            sup_id: SupId::parse("4496672d"),
            was_closed: false,
            timeline: None,
        }
    }

    #[test]
    fn urls_keep_a_sub_path() {
        assert_eq!(settings().base_url(), "http://h/sub/feeds/orders/");
    }

    #[test]
    fn a_changed_default_reaches_only_feeds_that_did_not_choose() {
        let defaults = Defaults {
            document_entries: 7,
            ..Defaults::new("http://h/sub")
        };
        let defaults = Arc::new(defaults);
        let followed = settings().under(&defaults).unwrap();
        assert_eq!(followed.cut_policy().entries, 7);

        let chosen = Choices {
            document_entries: Some(3),
            ..Choices::default()
        };
        let owner = settings().with(chosen).unwrap().unwrap();
        assert_eq!(owner.under(&defaults), None);
        assert_eq!(owner.cut_policy().entries, 3);
    }

    /// Goal: a feed with `via_links` can be changed after the server's default of `absolute_links`
    /// has become false; only a change of links must make `via_links` and `absolute_links` fit.
    #[test]
    fn via_links_outlive_the_default_that_they_need() {
        let absolute = Defaults {
            absolute_links: true,
            ..Defaults::new("http://h/sub")
        };
        let via = |via| Choices {
            via_links: Some(via),
            ..Choices::default()
        };
        let titled = Choices {
            title: Some("Orders".into()),
            ..Choices::default()
        };
        let fits = settings().under(&absolute.into()).unwrap();
        let has_via = fits.with(via(true)).unwrap().unwrap();
        assert!(has_via.via_links());
        let apart = has_via.under(&settings().defaults).unwrap();
        assert!(!apart.via_links());
        assert_eq!(apart.with(titled).unwrap().unwrap().title(), "Orders");
        assert!(apart.with(via(false)).unwrap().is_some());
        let refused = settings().with(via(true)).unwrap_err();
        assert_eq!(refused.element.as_deref(), Some("via_links"));
    }

    #[test]
    fn choices_change_only_what_is_sent() {
        let titled = settings()
            .with(Choices {
                title: Some("Orders".into()),
                ..Choices::default()
            })
            .unwrap()
            .unwrap();
        let both = titled
            .with(Choices {
                absolute_links: Some(true),
                ..Choices::default()
            })
            .unwrap()
            .unwrap();
        assert_eq!(both.title(), "Orders");
        assert!(both.absolute_links());
        assert_eq!(both.with(Choices::default()), Ok(None));
    }

    #[test]
    fn a_feed_can_be_opened_and_never_closed() {
        let choose = |closed| Choices {
            closed: Some(closed),
            ..Choices::default()
        };
        let closed = Settings {
            choices: choose(true).into(),
            ..settings()
        };
        assert_eq!(closed.with(choose(true)), Ok(None));
        let opened = closed.with(choose(false)).unwrap().unwrap();
        assert!(closed.is_closed() && !opened.is_closed());
        let told = opened.sup_address().unwrap();
        assert_eq!(told, "http://h/sub/sup-closed.json#4496672d");
        assert_eq!(closed.sup_address(), Some(told));
        let public = settings().with(choose(false)).unwrap().unwrap();
        let told = public.sup_address().unwrap();
        assert_eq!(told, "http://h/sub/sup.json#4496672d");
        for public in [opened, settings()] {
            let refused = public.with(choose(true)).unwrap_err();
            assert_eq!(refused.element.as_deref(), Some("closed"));
        }
    }

    #[test]
    fn values_out_of_bounds_are_refused() {
        for bad in [
            Choices {
                title: Some(" ".into()),
                ..Choices::default()
            },
            Choices {
                author: Some("\u{1}".into()),
                ..Choices::default()
            },
            Choices {
                title: Some("x".repeat(1_025)),
                ..Choices::default()
            },
            Choices {
                document_entries: Some(0),
                ..Choices::default()
            },
            Choices {
                document_entries: Some(10_001),
                ..Choices::default()
            },
            Choices {
                document_bytes: Some(0),
                ..Choices::default()
            },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert!(Choices::default().check().is_ok());
    }
}
