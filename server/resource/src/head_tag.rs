//! The entity tags of a feed's open document, and of its settings.
//!
//! Pure. Writer, views and HTTP share them: a publisher's precondition names a tag that a reader
//! got.

use data_encoding::BASE64URL_NOPAD;
use simplefeed_core::{
    digest::Digest,
    feed::{DocumentName, FeedKey, Revision},
    header::DocumentForm,
    plan::{FeedHead, Opening},
    settings::Settings,
};

/// The tags of a feed's head, without the letter of a coding: one tag for each URL of the open
/// document. A tag is computed only on demand.
#[derive(Clone, Debug)]
pub struct HeadTag(FeedHead);

impl HeadTag {
    /// Returns the tags of a head.
    pub fn new(head: FeedHead) -> Self {
        Self(head)
    }

    /// Returns the tag of `recent.atom`.
    pub fn recent(&self) -> String {
        self.tag_of(DocumentForm::Recent)
    }

    /// Returns the tag of the permanent URL.
    pub fn permanent(&self) -> String {
        self.tag_of(DocumentForm::Open)
    }

    /// Returns the tag of a growing document. The tag is a digest of the entries' history and of
    /// all facts of the header. This digest takes less work than making the document.
    fn tag_of(&self, form: DocumentForm) -> String {
        let FeedHead {
            feed,
            history,
            updated,
            open,
            ..
        } = &self.0;
        let Opening {
            name,
            previous,
            first,
            before,
            revision,
            opened,
            since,
            ..
        } = &open.opening;
        let name_of = |name: &DocumentName| [name.number.get(), u64::from(name.epoch.0)];
        let [number, epoch] = name_of(name);
        // Documents are numbered from 1, so 0 stands for no earlier document.
        let [earlier, earlier_epoch] = previous.as_ref().map_or([0, 0], name_of);
        // The two URLs show different links, so they need different tags.
        let is_recent = u64::from(form == DocumentForm::Recent);
        let numbers = [
            number,
            epoch,
            earlier,
            earlier_epoch,
            first.0,
            since.0,
            is_recent,
        ];
        let numbers = numbers.map(u64::to_be_bytes);
        let digest = Digest::of_parts(&[
            // Another version of the program may make other bytes from the same facts.
            env!("CARGO_PKG_VERSION").as_bytes(),
            feed.0.as_bytes(),
            &history.0.0,
            &before.0.0,
            &updated.micros().to_be_bytes(),
            &opened.micros().to_be_bytes(),
            &revision.0.to_be_bytes(),
            numbers.as_flattened(),
        ]);
        BASE64URL_NOPAD.encode(&digest.half())
    }

    /// Returns whether one of `tags`, opaque parts with or without a coding letter, is a tag of
    /// this head.
    pub fn is_among(&self, tags: &[String]) -> bool {
        is_among(&[self.recent(), self.permanent()], tags)
    }
}

/// The tag of a feed's settings, without the letter of a coding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsTag(String);

impl SettingsTag {
    /// Returns the tag of settings as they were recorded.
    pub fn new(feed: FeedKey, revision: Revision, settings: &Settings) -> Self {
        let recorded = serde_json::to_vec(settings).expect("settings have a JSON form");
        let digest = Digest::of_parts(&[
            // Another version of the program may show the same settings in another form.
            env!("CARGO_PKG_VERSION").as_bytes(),
            feed.0.as_bytes(),
            &revision.0.to_be_bytes(),
            &recorded,
        ]);
        Self(BASE64URL_NOPAD.encode(&digest.half()))
    }

    /// Returns the tag as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether one of `tags`, opaque parts with or without a coding letter, is this tag.
    pub fn is_among(&self, tags: &[String]) -> bool {
        is_among(std::slice::from_ref(&self.0), tags)
    }
}

fn is_among(own: &[String], tags: &[String]) -> bool {
    tags.iter().any(|tag| {
        // A coding's letter is `i` or `g`. A bare tag may end with such a letter as well, so both
        // forms are compared.
        let bare = tag.strip_suffix(['i', 'g']).unwrap_or_default();
        own.iter().any(|own| own == tag || own == bare)
    })
}
