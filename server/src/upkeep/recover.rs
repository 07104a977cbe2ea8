//! Makes a new log from the remains of a damaged one.
//!
//! Shell: reads a data folder, which stays as it is, and writes another one. Archived documents
//! come from their files and sidecars, everything else from the records that sled still returns;
//! `found` collects the remains of each feed, `timeline` commits them again in their original
//! order. Positions, ids and instants stay, so archived documents come out the same, byte for byte,
//! and repeats are still duplicates. The report names everything that is missing. The first server
//! of the new log begins an epoch.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

use simplefeed_core::{
    digest::Digest,
    feed::{CommitNumber, DocumentName, FeedId, FeedKey, FeedName, Position},
    settings::Settings,
};
use simplefeed_log::{
    Commits as _, LogError,
    seen::{self, ReadersEnd},
    sled::{
        folder::OpenError,
        opening::{self, Disk, open_with},
        quietly,
        salvage::Remains,
        sled_log::SledLog,
        witness::{self, WitnessStatement},
    },
};
use simplefeed_process::{
    lack::{check_memory, unless_lacking},
    regular,
};
use simplefeed_views::{
    documents::{archive::Archive, frozen::FrozenDocument},
    error::ViewError,
    folders::Folders,
};

use crate::upkeep::backup::{BackupError, NoBarrier, folder_beside, make_folder, tell_left};

mod found;
mod recorded;
mod timeline;

use found::{EntrySource, FoundDocument, FoundFeed};
use recorded::TimelineFacts;

/// Reason why nothing was recovered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The old folder cannot be read, or the new log cannot be opened or closed.
    #[error("nothing was recovered")]
    Open(#[from] OpenError),
    /// The old folder cannot be read as a whole.
    #[error("nothing was recovered")]
    Unread(#[source] LogError),
    /// The new folder cannot be made.
    #[error("nothing was recovered")]
    Folder(#[from] BackupError),
    /// The new log cannot be written.
    #[error("the new log cannot be written")]
    Log(#[from] LogError),
    /// The new archive cannot be written.
    #[error("the new archive cannot be written")]
    Archive(#[from] ViewError),
    /// There is nothing to recover from.
    #[error(
        "nothing is left in {folder} that a log could be made of; `simplefeed import` may publish \
         documents that are left{missing}"
    )]
    Nothing {
        /// Data folder in which no feed could be found.
        folder: PathBuf,
        /// Known losses, each behind a line feed.
        missing: String,
    },
}

/// Numbers of the recovered things, and a sentence about each thing that is missing.
#[derive(Debug, Default)]
pub struct RecoverReport {
    /// Feeds in the new log.
    pub feeds: u64,
    /// Entries of these feeds that were recovered.
    pub entries: u64,
    /// Archived documents that came out the same as before, byte for byte.
    pub documents: u64,
    /// Timelines. All of them begin anew, and their documents have other names.
    pub timelines: usize,
    /// Missing or different things, one sentence each.
    pub missing: Vec<String>,
}

/// Checks that this process has the rights and the resources to read all of a folder.
fn check_readable(folder: &Path) -> Result<(), OpenError> {
    let lacking = |path: &Path, read: io::Result<()>| {
        unless_lacking(read).map_err(|source| OpenError::Io {
            action: "read",
            path: path.into(),
            source,
        })
    };
    let items = match fs::read_dir(folder) {
        Ok(items) => items,
        Err(error) => return lacking(folder, Err(error)).map(drop),
    };
    for item in items {
        // An item that cannot be listed is skipped: recovery, too, reads the folder only as far as
        // possible.
        let Ok(item) = item else { continue };
        let (path, kind) = (item.path(), item.file_type());
        if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
            check_readable(&path)?;
        } else if kind.is_ok_and(|kind| kind.is_file()) {
            lacking(&path, regular::open(&path).map(drop))?;
        }
    }
    Ok(())
}

/// Recovers the log in `data`, whose archived documents are below `www` if given, into `to`, which
/// must not exist or be an empty folder.
///
/// # Errors
///
/// See [`RecoverError`].
pub fn recover(data: &Path, www: Option<&Path>, to: &Path) -> Result<RecoverReport, RecoverError> {
    let nothing = |missing: &[String]| RecoverError::Nothing {
        folder: data.into(),
        missing: missing
            .iter()
            .fold(String::new(), |all, line| all + "\n" + line),
    };
    if !data.is_dir() {
        return Err(nothing(&[]));
    }
    // Files that this process may not read would count as lost.
    for folder in [Some(data), www].into_iter().flatten() {
        check_readable(folder)?;
    }
    tell_left(to);
    // The copy for reading lies beside the new folder, because the old folder must stay unchanged.
    // The new log needs room there anyway.
    let scratch = folder_beside(to)?;
    let copy = scratch.path().join("reading");
    let archive = Archive::new(&Folders::new(data, www));
    let remains = opening::salvage(data, &copy)?;
    let old = Some(&remains).filter(|remains| !remains.is_empty());
    let mut missing: Vec<String> = vec![];
    let lost_commits = lost_commits(data, &archive, old);
    let told_all = lost_commits.is_empty() && old.is_some();
    missing.extend(lost_commits);
    let recorded = TimelineFacts::find(old);
    let (mut feeds, knows_all) = find_remains(old, &archive, &recorded, &mut missing);
    if feeds.is_empty() {
        return Err(nothing(&missing));
    }
    // If the documents of one feed reach further than the head of that feed, the log is an older
    // one or another one, and tells no end of any feed.
    let told_all = told_all && knows_all && feeds.iter().all(FoundFeed::reaches_its_documents);
    if !recorded.timelines.is_empty() && !told_all {
        missing.push("timelines: what they followed in the missing commits is missing".into());
    }
    // This comes after all feeds are found, because a guessed instant must not collide with an
    // entry of any feed.
    found::free_guesses(&mut feeds);
    // Each round distrusts at least one more document, so the loop ends.
    let mut report = loop {
        let made = make_folder(to, |folder| {
            let (report, different) = make_log(&feeds, &recorded, old, &archive, folder)?;
            // Entries that sled could not read for want of memory would count as lost.
            let memory = check_memory().map_err(LogError::io("read", data));
            memory.map_err(RecoverError::Unread)?;
            if different.is_empty() {
                return Ok(report);
            }
            Err(DiscardReason::Different(different))
        });
        match made {
            Ok(report) => break report,
            // A document that came out different must not be shown under a name that others know.
            Err(DiscardReason::Different(different)) => distrust_files(&mut feeds, &different),
            Err(DiscardReason::Failed(error)) => return Err(error),
        }
    };
    for feed in &feeds {
        feed.tell_missing(told_all, &mut missing);
    }
    report.missing.splice(0..0, missing);
    // The copy is discarded last, because every round of the loop above reads entries from there.
    opening::discard(remains, &copy)?;
    Ok(report)
}

/// Makes the new log and the new archive. Returns the report, and the documents that came out
/// different.
fn make_log(
    feeds: &[FoundFeed],
    recorded: &TimelineFacts,
    old: Option<&Remains>,
    archive: &Archive,
    folder: &Path,
) -> Result<(RecoverReport, Different), RecoverError> {
    // No commit is synced by itself: `make_folder` syncs the finished folder as a whole.
    let opened = open_with(folder, &Disk::behind(NoBarrier))?;
    timeline::replay(feeds, recorded, old, archive, &opened.log)?;
    let mut report = RecoverReport {
        feeds: opened.log.head().feeds,
        timelines: recorded.timelines.len(),
        ..RecoverReport::default()
    };
    let mut different = Different::new();
    for feed in feeds {
        for document in compare_documents(feed, &opened.log)? {
            different.insert((feed.name.clone(), document));
        }
    }
    // If there is a difference, the folder is thrown away, so an archive would be made in vain.
    if different.is_empty() {
        let made = Archive::new(&Folders::new(folder, None).unhurried());
        for feed in feeds {
            archive_again(feed, &opened.log, archive, &made, &mut report)?;
        }
        made.save_cursor(ReadersEnd::of(&opened.log.head()))?;
    }
    opened.close()?;
    Ok((report, different))
}

/// Returns the documents of a feed whose bytes or links came out different.
fn compare_documents(feed: &FoundFeed, log: &SledLog) -> Result<Vec<DocumentName>, RecoverError> {
    let mut different = vec![];
    let trusted = |document: &&FoundDocument| !document.distrusted;
    for (index, document) in feed
        .documents
        .iter()
        .enumerate()
        .filter(|(_, found)| trusted(found))
    {
        let number = document.name.number;
        let frozen = FrozenDocument::render(log, feed.key, number)?;
        // The open document has no frozen form, nor has a document that lacks entries.
        let Some(frozen) = frozen else { continue };
        let next = feed.documents.get(index + 1);
        let leads = next.is_none_or(|next| frozen.successor.linked == next.linked);
        let own = (frozen.opening.name, frozen.opening.linked) == (document.name, document.linked);
        let digest = Digest::of(&frozen.bytes);
        let same = document.expected.is_none_or(|expected| expected == digest);
        if !(leads && own && same) {
            different.push(document.name);
        }
    }
    Ok(different)
}

/// Documents that came out different, by feed.
type Different = BTreeSet<(FeedName, DocumentName)>;

/// Reason why a folder that was made is not kept.
enum DiscardReason {
    /// The folder is made again without these documents.
    Different(Different),
    /// The folder could not be finished.
    Failed(RecoverError),
}

impl From<RecoverError> for DiscardReason {
    fn from(error: RecoverError) -> Self {
        Self::Failed(error)
    }
}

impl From<BackupError> for DiscardReason {
    fn from(error: BackupError) -> Self {
        Self::Failed(error.into())
    }
}

fn distrust_files(feeds: &mut [FoundFeed], different: &Different) {
    for feed in feeds {
        for document in &mut feed.documents {
            document.distrusted |= different.contains(&(feed.name.clone(), document.name));
        }
    }
}

/// Returns sentences about missing commits: commits that cannot be read, an end before the commit
/// that the witness or a view names, and another commit in the place of a named one.
fn lost_commits(data: &Path, archive: &Archive, old: Option<&Remains>) -> Vec<String> {
    let had = match witness::read(&data.join("witness")) {
        Some(WitnessStatement::Current(testimony)) => testimony.commit.max(testimony.end),
        // A witness of another storage version names no commit of this log. The views below may
        // still name a commit.
        Some(WitnessStatement::Other(_)) | None => CommitNumber(0),
    };
    let seen = seen::read(&data.join("views").join(seen::NAME));
    let shown = [seen, Some(archive.cursor())].into_iter().flatten();
    let shown: Vec<ReadersEnd> = shown.collect();
    let had = shown
        .iter()
        .map(|seen| seen.commit)
        .fold(had, CommitNumber::max);
    let has = old.map_or(CommitNumber(0), |old| old.head().number);
    let end = (has < had)
        .then(|| format!("the log ended with commit {had}, and can be read up to commit {has}"));
    let other = shown.iter().find(|seen| {
        let chain = old.and_then(|old| quietly(|| old.chain(seen.commit)).flatten());
        chain.is_some_and(|chain| chain != seen.chain)
    });
    let other = other.map(|seen| {
        format!(
            "the log is not the one that was served: its commit {} is another one, and what the served log had besides is \
             missing where no document has it",
            seen.commit
        )
    });
    let lost = old.map_or(vec![], Remains::lost);
    let lost = lost
        .into_iter()
        .map(|lost| match (lost.start(), lost.end()) {
            (start, end) if start == end => format!("commit {start} cannot be read"),
            (start, end) => format!("commits {start} to {end} cannot be read"),
        });
    lost.chain(end).chain(other).collect()
}

/// Collects the remains of every feed. Returns them, and whether the log knows the name of each
/// feed that cannot be recovered.
fn find_remains(
    old: Option<&Remains>,
    archive: &Archive,
    recorded: &TimelineFacts,
    missing: &mut Vec<String>,
) -> (Vec<FoundFeed>, bool) {
    let mut knows_all = true;
    let names = archive.feeds().into_iter().map(|name| (name, None));
    let mut names: BTreeMap<FeedName, Option<FeedKey>> = names.collect();
    if let Some(old) = old {
        let told = quietly(|| old.names()).unwrap_or_default();
        // The key of a feed comes from the log, because the name of a folder does not give the key.
        names.extend(told.into_iter().map(|(name, key)| (name, Some(key))));
        let is_timeline =
            |key: &Option<FeedKey>| key.is_some_and(|key| recorded.timelines.contains_key(&key));
        let feeds = names.values().filter(|key| !is_timeline(key));
        let found = u64::try_from(feeds.count()).unwrap_or(u64::MAX);
        let lost = old.head().feeds.saturating_sub(found);
        if lost > 0 {
            missing.push(format!("{lost} feeds are missing, with their names"));
        }
    }
    let (mut feeds, mut told): (Vec<FoundFeed>, BTreeSet<FeedKey>) = Default::default();
    for (name, key) in names {
        // A timeline is made from its recorded changes. Its documents in the archive must not
        // become a feed with entries of its own.
        let is_timeline = |settings: &Settings| settings.name == name;
        if recorded.timelines.values().any(is_timeline) {
            continue;
        }
        if key.is_some_and(|key| recorded.lost.contains(&key)) {
            missing.push(format!(
                "timeline {name}: its settings are missing, and what it follows"
            ));
            continue;
        }
        match FoundFeed::find(&name, key, old, archive) {
            // Only documents of the timeline are left. Their entries belong to other feeds.
            Some(found) if found.settings.values().any(Settings::is_timeline) => missing.push(
                format!("timeline {name}: what it follows is missing; it has to be made again"),
            ),
            Some(feed) => {
                if let Some(key) = feed.in_log {
                    let lost = old
                        .and_then(|old| lost_entries(old, key))
                        .unwrap_or_else(|| "it has no entries".into());
                    missing.push(format!(
                        "feed {name}: the log has another feed of this name than the documents beside it, with the id {}; \
                         {lost}, which can be read from a copy of the old folder that is served without its documents",
                        FeedId::of_uuid(key.0)
                    ));
                    told.insert(key);
                }
                feeds.push(feed);
            }
            None => {
                knows_all &= key.is_some();
                let lost = key.and_then(|key| lost_entries(old?, key));
                let lost = lost.map_or(String::new(), |lost| format!("; {lost}"));
                missing.push(format!(
                    "feed {name}: none of its settings is left; `simplefeed import` may publish its documents again{lost}"
                ));
                told.extend(key);
            }
        }
    }
    told.extend(feeds.iter().map(|feed| feed.key));
    told.extend(recorded.timelines.keys());
    told.extend(&recorded.lost);
    tell_nameless(old, &told, missing);
    (feeds, knows_all)
}

/// Reports, by their ids, the feeds of the log whose names are lost. These are the feeds that are
/// not in `told`.
fn tell_nameless(old: Option<&Remains>, told: &BTreeSet<FeedKey>, missing: &mut Vec<String>) {
    let others = old.and_then(|old| Some((old, quietly(|| old.feeds())?)));
    for (old, key) in others
        .iter()
        .flat_map(|(old, feeds)| feeds.difference(told).map(move |key| (old, key)))
    {
        let id = FeedId::of_uuid(key.0);
        let lost = lost_entries(old, *key).into_iter();
        missing.extend(lost.map(|lost| {
            format!("feed with the id {id}: its name and its settings are lost; {lost}")
        }));
    }
}

/// Returns a sentence about the readable entries of a feed whose settings are lost: no log can hold
/// entries of a feed without its settings.
fn lost_entries(old: &Remains, feed: FeedKey) -> Option<String> {
    let mut positions = BTreeSet::new();
    // sled may panic over a damaged record. The positions read before that still count.
    let _panicked = quietly(|| old.entries(feed, |entry| positions.extend([entry.at])));
    let (first, last) = (positions.first()?, positions.last()?);
    let lost = missing_positions(*first..last.next());
    Some(format!(
        "{lost}; the old log has {} of its entries",
        positions.len()
    ))
}

/// Returns a sentence about missing positions. The range is not empty.
fn missing_positions(range: Range<Position>) -> String {
    match (range.start, Position(range.end.0.saturating_sub(1))) {
        (first, last) if first == last => format!("position {first} is missing"),
        (first, last) => format!("positions {first} to {last} are missing"),
    }
}

/// Writes a feed's archive, with the compressed twins of the old archive.
fn archive_again(
    feed: &FoundFeed,
    log: &SledLog,
    old: &Archive,
    new: &Archive,
    report: &mut RecoverReport,
) -> Result<(), RecoverError> {
    report.entries += feed.entry_count();
    for document in &feed.documents {
        let number = document.name.number;
        let made = new.make(log, feed.key, &feed.name, number, Some(old))?;
        report.documents += u64::from(made.is_some());
    }
    // Closed index blocks are immutable as well, so caches may keep the old blocks.
    for block in old.blocks(&feed.name) {
        if old.block(&feed.name, &block) != new.block(&feed.name, &block) {
            let name = &feed.name;
            report.missing.push(format!(
                "feed {name}: {block} came out different; caches may keep what it was"
            ));
        }
    }
    Ok(())
}

impl FoundFeed {
    fn entry_count(&self) -> u64 {
        let entries = self.documents.iter().map(|document| document.entries.len());
        u64::try_from(entries.sum::<usize>()).unwrap_or(u64::MAX)
    }

    /// Returns the position after the last entry that is left.
    fn end_position(&self) -> Position {
        let last = self.documents.last();
        last.map_or(Position(0), FoundDocument::end)
    }

    /// Returns whether the old log has the feed at least up to the end of the feed's documents.
    fn reaches_its_documents(&self) -> bool {
        let is_shown = |document: &FoundDocument| document.source == EntrySource::Archive;
        // Without an archived document, nothing shows that the feed had more than the log has.
        let is_known = self.told_end.is_some() || !self.documents.iter().any(is_shown);
        let reaches = self.told_end.is_none_or(|told| told >= self.end_position());
        self.parted.is_none() && self.in_log.is_none() && is_known && reaches
    }

    /// Returns a sentence about a document of this feed whose name is also that of another feed's
    /// document: only the log has the entries of this feed's document. The text is empty if there
    /// are no such entries.
    fn own_entries_of(&self, document: DocumentName) -> String {
        let mut documents = self.documents.iter();
        let own = documents.find(|own| own.name == document);
        match own.map_or(0, |own| own.entries.len()) {
            0 => String::new(),
            entries => format!(
                ". The feed's own document of that name is not shown: {entries} entries are only in the log, and `recover` \
                 without the other feed's files shows them"
            ),
        }
    }

    /// Adds sentences to `missing` about documents that do not belong to the recovered feed.
    fn tell_others(&self, missing: &mut Vec<String>) {
        let name = &self.name;
        for document in &self.foreign {
            missing.push(format!(
                "feed {name}: {document} is of another feed that had this name, and missing; `simplefeed import` may \
                 publish it again{}",
                self.own_entries_of(*document)
            ));
        }
        for document in &self.abandoned {
            missing.push(format!(
                "feed {name}: {document} is of the time before a restoration, which the log does not go on from, and is left \
                 out"
            ));
        }
        for document in &self.left_out {
            missing.push(format!(
                "feed {name}: {document} is of another log, or damaged, and is left out"
            ));
        }
        if self.was_shown {
            missing.push(format!(
                "feed {name}: it is closed, and documents of it were shown; their URLs answer only who may read it"
            ));
        }
        for document in &self.elsewhere {
            missing.push(format!(
                "feed {name}: one of the folders `www` and `closed` has {document} with other contents, which are left out"
            ));
        }
    }

    /// Adds sentences to `missing` about missing entries and documents. `told_all` says that the
    /// log has every commit, feed and position that another source knows.
    fn tell_missing(&self, told_all: bool, missing: &mut Vec<String>) {
        let name = &self.name;
        if let Some((at, count)) = self.parted {
            missing.push(format!(
                "feed {name}: from position {at} on, the log is not the one whose documents were shown: its {count} entries \
                 from there on are left out, and can be read from a copy of the old folder that is served without its \
                 documents"
            ));
        }
        for (document, count) in &self.overlapping {
            missing.push(format!(
                "feed {name}: {count} entries of {document} are missing, since another document has their positions"
            ));
        }
        self.tell_others(missing);
        // The open document has no next document. The end of its entries is reported below.
        for (document, next) in self.documents.iter().zip(self.documents.iter().skip(1)) {
            let holes = document.holes(next.first);
            let document_name = document.name;
            if document.unsent {
                missing.push(format!(
                    "feed {name}: what was sent for the entries of {document_name} is missing; repeats of \
                     them may be conflicts"
                ));
            }
            // A document with holes gets a line for each hole below, and a foreign document already
            // has a line.
            let is_foreign = self.foreign.contains(&document.name);
            if document.distrusted && holes.is_empty() && !is_foreign {
                missing.push(format!(
                    "feed {name}: {document_name} is missing, since nothing tells what it was exactly; only the \
                     log has its entries"
                ));
            }
            for hole in holes {
                let lost = missing_positions(hole);
                missing.push(format!(
                    "feed {name}: {lost}, of {document_name}; only the log has its other entries"
                ));
            }
        }
        let end = self.end_position();
        // The head counts only if the log is complete: a log that ends too early has an old head.
        match self.told_end.filter(|_| told_all) {
            Some(told) if told > end => missing.push(format!(
                "feed {name}: {}, of the open document",
                missing_positions(end..told)
            )),
            Some(_) => {}
            None => missing.push(format!(
                "feed {name}: what was at position {end} and later is missing, if there was anything"
            )),
        }
    }
}

#[cfg(test)]
mod tests;
