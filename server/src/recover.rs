//! Makes a new log of what is left of a damaged one.
//!
//! Shell: reads a data folder, which it leaves as it is, and writes another one. Archived documents come
//! from their files and sidecars, everything else from what sled still gives; `found` puts together
//! what there is of each feed, `timeline` commits it again in the order it once had. Positions, ids
//! and instants stay, so archived documents come out the same, byte for byte, and repeats are still
//! duplicates. What is missing is named. Whoever serves the new log begins an epoch.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use simplefeed_core::{
    digest::Digest,
    feed::{CommitNumber, FeedKey, FeedName, Position},
};

use crate::{
    backup::{BackupError, Unhurried, make_folder},
    log::{
        EntryLog as _, LogError,
        folder::OpenError,
        opening::{self, open_with},
        sled_log::SledLog,
        witness,
    },
    views::archive_files::{Archive, ArchiveError, Frozen},
};

mod found;
mod timeline;

use found::{FoundDocument, FoundFeed, Source};

/// Why nothing was recovered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The old folder cannot be read, or the new log not be written.
    #[error("nothing was recovered")]
    Open(#[from] OpenError),
    /// The new folder cannot be made.
    #[error("nothing was recovered")]
    Folder(#[from] BackupError),
    /// The new log cannot be written.
    #[error("the new log cannot be written")]
    Log(#[from] LogError),
    /// The new archive cannot be written.
    #[error("the new archive cannot be written")]
    Archive(#[from] ArchiveError),
    /// There is nothing to recover from.
    #[error("nothing is left in {folder} that a log could be made of")]
    Nothing {
        /// The old folder.
        folder: PathBuf,
    },
}

/// What came out, and what did not.
#[derive(Debug, Default)]
pub struct Report {
    /// The feeds.
    pub feeds: u64,
    /// Their entries.
    pub entries: u64,
    /// Archived documents, which are what they were, byte for byte.
    pub documents: u64,
    /// What is missing or different, one sentence each.
    pub missing: Vec<String>,
}

/// Recovers the log in `data`, whose archived documents are below `www` if given, into `to`, which must
/// not exist or be an empty folder.
///
/// # Errors
///
/// See [`RecoverError`].
pub fn recover(data: &Path, www: Option<&Path>, to: &Path) -> Result<Report, RecoverError> {
    let nothing = || RecoverError::Nothing {
        folder: data.into(),
    };
    if !data.is_dir() {
        return Err(nothing());
    }
    make_folder(to, |folder| {
        let scratch = folder.join("reading");
        let old = opening::salvage(data, &scratch)?;
        let archive = Archive::new(data, www);
        let mut report = Report::default();
        let lost_commits = lost_commits(data, old.as_ref());
        let told_all = lost_commits.is_none() && old.is_some();
        report.missing.extend(lost_commits);
        let feeds = find(old.as_ref(), &archive, &mut report);
        if feeds.is_empty() {
            return Err(nothing());
        }
        let opened = open_with(folder, |_| Ok(Box::new(Unhurried)))?;
        timeline::replay(&feeds, old.as_ref(), &archive, &opened.log)?;
        let made = Archive::new(folder, None);
        for feed in &feeds {
            feed.tell_missing(told_all, &mut report.missing);
            archive_again(feed, &opened.log, &archive, &made, &mut report)?;
        }
        report.feeds = opened.log.head().feeds;
        made.note(opened.log.head().number);
        opened.close()?;
        opening::discard(old, &scratch)?;
        Ok(report)
    })
}

/// Tells what the witness knows of and the log does not have.
fn lost_commits(data: &Path, old: Option<&SledLog>) -> Option<String> {
    let had = witness::read(&data.join("witness"))?.commit;
    let has = old.map_or(CommitNumber(0), |old| old.head().number);
    (has < had)
        .then(|| format!("the log ended with commit {had}, and can be read up to commit {has}"))
}

/// Puts together what is left of every feed.
fn find(old: Option<&SledLog>, archive: &Archive, report: &mut Report) -> Vec<FoundFeed> {
    let mut names: BTreeMap<FeedName, Option<FeedKey>> = archive
        .feeds()
        .into_iter()
        .map(|name| (name, None))
        .collect();
    if let Some(old) = old {
        names.extend(old.salvage_names().map(|(name, key)| (name, Some(key))));
    }
    let mut feeds = vec![];
    for (name, key) in names {
        match FoundFeed::find(&name, key, old, archive) {
            Some(feed) => feeds.push(feed),
            None => report.missing.push(format!(
                "feed {name}: none of its settings is left; `simplefeed import` may publish its documents again"
            )),
        }
    }
    feeds
}

/// Writes a feed's archive, with the twins of the old one, and compares it with what it was.
fn archive_again(
    feed: &FoundFeed,
    log: &SledLog,
    old: &Archive,
    new: &Archive,
    report: &mut Report,
) -> Result<(), RecoverError> {
    report.entries += feed.entries();
    for document in &feed.documents {
        let number = document.name.number;
        new.make(log, feed.key, &feed.name, number, Some(old))?;
        let Source::Archive(digest) = document.source else {
            continue;
        };
        let frozen = Frozen::render(log, feed.key, number)?;
        if frozen.is_some_and(|frozen| Digest::of(&frozen.bytes) == digest) {
            report.documents += 1;
        } else {
            let (name, document) = (&feed.name, document.name);
            report
                .missing
                .push(format!("feed {name}: {document} came out different"));
        }
    }
    Ok(())
}

impl FoundFeed {
    fn entries(&self) -> u64 {
        let entries = self.documents.iter().map(|document| document.entries.len());
        u64::try_from(entries.sum::<usize>()).unwrap_or(u64::MAX)
    }

    /// Tells which positions are missing; `told_all` if the log does not end before its time.
    fn tell_missing(&self, told_all: bool, missing: &mut Vec<String>) {
        let name = &self.name;
        for (document, next) in self.documents.iter().zip(self.documents.iter().skip(1)) {
            for Range { start, end } in document.holes(next.first) {
                let document = document.name;
                missing.push(format!(
                    "feed {name}: positions {start} to {} are missing, of {document}",
                    end.0 - 1
                ));
            }
        }
        let end = self
            .documents
            .last()
            .map_or(Position(0), FoundDocument::end);
        match self.told_end.filter(|_| told_all) {
            Some(told) if told > end => missing.push(format!(
                "feed {name}: positions {end} to {} are missing, of the open document",
                told.0 - 1
            )),
            Some(_) => {}
            None => missing.push(format!(
                "feed {name}: what was at position {end} and later is missing, if there was anything"
            )),
        }
    }
}
