//! Reading what is left of a damaged log: everything whose checksum is right, passing over the rest.
//!
//! Pure over the records.

use bytes::Bytes;
use simplefeed_core::{
    entry::Entry,
    feed::{DocumentNumber, FeedKey, FeedName, Revision},
    plan::{FeedHead, Opening},
    settings::Settings,
};

use super::{record, sled_log::SledLog};

impl SledLog {
    /// Returns the feeds whose names can be read.
    pub fn salvage_names(&self) -> impl Iterator<Item = (FeedName, FeedKey)> {
        self.raw(b"n").filter_map(|(key, value)| {
            let feed = record::Reader(record::unseal(&value)?).feed()?;
            Some((record::name_of_key(&key)?, feed))
        })
    }

    /// Returns a feed's head, if it can be read.
    pub fn salvage_head(&self, feed: FeedKey) -> Option<FeedHead> {
        let (_, value) = self.raw(&record::head_key(feed)).next()?;
        record::decode_head(&value)
    }

    /// Returns all of a feed's settings that can be read.
    pub fn salvage_settings(&self, feed: FeedKey) -> Vec<(Revision, Settings)> {
        let key = |revision| record::settings_key(feed, revision);
        let mut revisions: Vec<Revision> = self
            .raw(&record::settings_prefix(feed))
            .filter_map(|(key, _)| record::revision_of_key(&key))
            .collect();
        revisions.dedup();
        let read = |revision| {
            let parts = self.raw(&key(revision));
            let body: Option<Vec<Vec<u8>>> = parts
                .map(|(_, part)| Some(record::unseal(&part)?.to_vec()))
                .collect();
            let settings = serde_json::from_slice(&body?.concat()).ok()?;
            Some((revision, settings))
        };
        revisions.into_iter().filter_map(read).collect()
    }

    /// Returns how documents of a feed were opened, as far as that can be read.
    pub fn salvage_openings(&self, feed: FeedKey) -> Vec<(DocumentNumber, Opening)> {
        let openings = self.raw(&record::documents_prefix(feed));
        let read = openings.filter_map(|(_, value)| record::decode_opening(&value));
        read.map(|opening| (opening.name.number, opening)).collect()
    }

    /// Hands over a feed's entries that can be read, oldest first.
    pub fn salvage_entries(&self, feed: FeedKey, mut take: impl FnMut(Entry)) {
        let mut parts: Vec<(Vec<u8>, Vec<u8>)> = vec![];
        let mut finish = |parts: &mut Vec<(Vec<u8>, Vec<u8>)>| {
            let parts = std::mem::take(parts);
            let first = parts.first().and_then(|(key, _)| record::entry_of_key(key));
            let body: Option<Vec<&[u8]>> =
                parts.iter().map(|(_, part)| record::unseal(part)).collect();
            if let Some(((_, first), body)) = first.zip(body) {
                let entries = record::decode_entries(first, &Bytes::from(body.concat()));
                entries.into_iter().flatten().for_each(&mut take);
            }
        };
        for (key, value) in self.raw(&record::entries_prefix(feed)) {
            let continues = parts
                .last()
                .is_some_and(|(last, _)| record::entry_of_key(last) == record::entry_of_key(&key));
            if !continues {
                finish(&mut parts);
            }
            parts.push((key, value));
        }
        finish(&mut parts);
    }
}
