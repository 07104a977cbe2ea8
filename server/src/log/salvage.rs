//! Reads the remains of a damaged log: every record whose checksum is right; all others are passed over.
//!
//! Pure over the records.

use std::collections::BTreeMap;

use bytes::Bytes;
use simplefeed_core::{
    entry::Entry,
    feed::{DocumentNumber, FeedKey, FeedName, Revision},
    plan::{FeedHead, Opening},
    settings::Settings,
};

use super::{record, sled_log::SledLog};
use crate::codec;

impl SledLog {
    /// Returns the feeds whose names can be read, in the record of the name or in their settings.
    pub fn salvage_names(&self) -> BTreeMap<FeedName, FeedKey> {
        let named = self.raw(b"n").filter_map(|(key, value)| {
            let feed = codec::Reader(codec::unseal(&value)?).feed()?;
            Some((record::name_of_key(&key)?, feed))
        });
        let mut feeds: Vec<FeedKey> = self
            .raw(b"s")
            .filter_map(|(key, _)| record::feed_of_key(&key))
            .collect();
        // Keys are sorted, so those of one feed follow each other.
        feeds.dedup();
        let settled = feeds.into_iter().filter_map(|feed| {
            let (_, settings) = self.salvage_settings(feed).pop()?;
            Some((settings.name, feed))
        });
        // Of two feeds with one name, the later one counts: that of the name's own record.
        settled.chain(named).collect()
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
            // One damaged part makes the whole settings unreadable.
            let body: Option<Vec<Vec<u8>>> = parts
                .map(|(_, part)| Some(codec::unseal(&part)?.to_vec()))
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
                parts.iter().map(|(_, part)| codec::unseal(part)).collect();
            // A record with a damaged part is passed over: its entries may span parts.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use simplefeed_core::feed::{DocumentName, Position};

    use super::*;
    use crate::{
        log::{
            Commits as _, Series as _,
            contract::{script, settings},
            folder::copy_folder,
            opening::{OpenedLog, open},
        },
        upkeep::recover::recover,
        views::documents::frozen::Frozen,
    };

    /// Everything that is final: documents, and entries by feed and position.
    type Final = (
        BTreeMap<(u128, DocumentName), Bytes>,
        BTreeMap<(u128, u64), Entry>,
    );

    fn everything_final(log: &SledLog) -> Final {
        let (mut documents, mut entries) = (BTreeMap::new(), BTreeMap::new());
        for feed in 1..=2 {
            let key = settings(feed).id.key();
            for number in (1..=9).filter_map(DocumentNumber::new) {
                if let Some(frozen) = Frozen::render(log, key, number).unwrap() {
                    documents.insert((feed, frozen.opening.name), frozen.bytes);
                }
            }
            for entry in log.entries(key, Position(0)..Position(999)).unwrap() {
                entries.insert((feed, entry.at.0), entry);
            }
        }
        (documents, entries)
    }

    fn open_closed(folder: &Path) -> Final {
        let opened = open(folder).unwrap();
        let found = everything_final(&opened.log);
        opened.close().unwrap();
        found
    }

    /// Goal: of a log without archive, too, nothing that was final comes out as something else, whichever
    /// record is gone; and what does not come out is named.
    /// Method: each record is removed in turn.
    #[test]
    fn a_record_that_is_gone_changes_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: String| folder.path().join(name);
        let whole = path("whole".into());
        let opened = open(&whole).unwrap();
        for commit in script() {
            opened.log.append(&commit).unwrap();
        }
        let keys: Vec<Vec<u8>> = opened.log.raw(b"").map(|(key, _)| key).collect();
        opened.close().unwrap();
        let (documents, entries) = open_closed(&whole);
        assert!(documents.len() >= 3 && keys.len() > 30);
        let mut unharmed = 0;
        for (number, key) in keys.iter().enumerate() {
            let (damaged, to) = (
                path(format!("damaged{number}")),
                path(format!("to{number}")),
            );
            copy_folder(&whole, &damaged).unwrap();
            let OpenedLog { log, folder } = open(&damaged).unwrap();
            let (db, durability, _) = log.into_parts();
            db.remove(key).unwrap();
            db.flush().unwrap();
            drop((db, durability, folder));
            let report = recover(&damaged, None, &to).unwrap();
            let what = format!("{:?}: {:?}", String::from_utf8_lossy(key), report.missing);
            let (now, left) = open_closed(&to);
            let mut lost = 0;
            for (name, bytes) in &documents {
                let found = now.get(name);
                assert!(
                    found.is_none_or(|found| found == bytes),
                    "{name:?} of {what}
{}
{}",
                    String::from_utf8_lossy(bytes),
                    String::from_utf8_lossy(found.unwrap())
                );
                lost += usize::from(found.is_none());
            }
            for (at, entry) in &entries {
                let Some(found) = left.get(at) else {
                    lost += 1;
                    continue;
                };
                let same = (&found.id, found.sent, &found.fragment, found.instant)
                    == (&entry.id, entry.sent, &entry.fragment, entry.instant);
                assert!(same, "{at:?} of {what}");
            }
            assert!(lost == 0 || !report.missing.is_empty(), "{lost} of {what}");
            unharmed += usize::from(lost == 0);
        }
        assert!(
            unharmed > 10 && unharmed < keys.len(),
            "{unharmed} of {}",
            keys.len()
        );
    }
}
