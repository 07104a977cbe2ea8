//! Checks everything stored against the commits.
//!
//! Shell over the log and the archive, which it only reads. The commits are replayed into a model, and the
//! log's own records must agree with each of its statements; then each archived document is rendered again
//! and compared with its file, its twin, its sidecar, its record and its links, and so is each archived SUP
//! document with its file and its record. Damage becomes a fault in the report, and checking goes on behind
//! it.

use std::collections::HashMap;

use simplefeed_core::{
    commit::{Change, Commit},
    feed::{CommitNumber, DocumentNumber, Epoch, FeedKey, FeedName, Position},
    history::ChainHash,
    instant::Instant,
    limits::INDEX_BLOCK_DOCUMENTS,
    plan::FeedHead,
    reader::Document,
};
use url::Url;

use crate::{
    log::{EntryLog, LogError, settings_of},
    views::{
        archive_files::Archive,
        error::ArchiveError,
        frozen::Frozen,
        frozen_files::gunzip,
        index,
        manifest::{Archived, ManifestError},
        sup_files::every_window,
    },
};

/// Counts of the checked records, and the faults.
#[derive(Debug, Default)]
pub struct Report {
    /// Commits whose chain hash was recomputed.
    pub commits: u64,
    /// Entries whose bytes entered the history hash.
    pub entries: u64,
    /// Archived documents compared with their files.
    pub documents: u64,
    /// The faults, one sentence each.
    pub faults: Vec<String>,
}

impl Report {
    /// Returns a value, or adds its damage to the report. Any other error ends the check.
    fn sound<T>(&mut self, value: Result<T, LogError>) -> Result<Option<T>, LogError> {
        match value {
            Ok(value) => Ok(Some(value)),
            Err(LogError::Damaged { what }) => {
                self.faults.push(what);
                Ok(None)
            }
            Err(LogError::Storage(error)) => {
                self.faults
                    .push(format!("the storage cannot be read: {error}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn fault(&mut self, fault: String) {
        self.faults.push(fault);
    }
}

/// Checks a log and its archive.
///
/// # Errors
///
/// Returns an error only where checking cannot go on; faults are in the report.
pub fn verify(log: &dyn EntryLog, archive: &Archive) -> Result<Report, ArchiveError> {
    let mut checking = Checking {
        log,
        report: Report::default(),
        feeds: HashMap::new(),
        epoch: Epoch::FIRST,
        next: CommitNumber(1),
        chain: ChainHash::START,
        last: Instant::MIN,
        found: HashMap::new(),
    };
    let complete = checking.commits()?;
    // Heads follow from all commits, so after a partial replay they cannot be compared.
    if complete {
        checking.heads()?;
    }
    let Checking {
        mut report, feeds, ..
    } = checking;
    for (key, head) in &feeds {
        let settings = report.sound(settings_of(log, *key, head.revision))?;
        let Some(settings) = settings else { continue };
        let named = report.sound(log.named(&settings.name))?.flatten();
        if named.is_none_or(|named| named.feed != *key) {
            report.fault(format!(
                "feed {}: it is not found by its name",
                settings.name
            ));
        }
        // Web servers show everything in that folder without asking for a token.
        if settings.is_closed() && archive.shows(&settings.name) {
            report.fault(format!(
                "feed {}: it is closed, and the folder for web servers has files of it",
                settings.name
            ));
        }
        let checked = check_archive(log, archive, &settings.name, *key, &mut report);
        match checked {
            // A damaged manifest concerns one feed; the others are still checked.
            Err(ArchiveError::Manifest(error @ ManifestError::Damaged { .. })) => {
                report.fault(error.to_string());
            }
            checked => checked?,
        }
    }
    if complete {
        let files = archive.sup_files();
        every_window(log, |circle, window| {
            report.faults.extend(files.fault(circle, window)?);
            Ok(())
        })?;
    }
    Ok(report)
}

struct Checking<'l> {
    log: &'l dyn EntryLog,
    report: Report,
    feeds: HashMap<FeedKey, FeedHead>,
    epoch: Epoch,
    /// The commit to replay next, the chain hash before it, and the instant it must be later than.
    next: CommitNumber,
    chain: ChainHash,
    last: Instant,
    /// Heads as the log had them at some moment, which the replay has yet to come to.
    found: HashMap<FeedKey, Option<FeedHead>>,
}

impl Checking<'_> {
    /// Replays the commits there are by now. Returns whether all of them could be.
    fn commits(&mut self) -> Result<bool, LogError> {
        while self.next <= self.log.head().number {
            let number = self.next;
            // One at a time: a commit may be as large as a request.
            let commit = self.report.sound(self.log.commits(number, 1))?;
            let Some(commit) = commit.and_then(|mut commits| commits.pop()) else {
                self.report.fault(format!(
                    "commit {number}: it cannot be read; later ones are not checked"
                ));
                return Ok(false);
            };
            self.chain = self.chain.extend(&commit.encode());
            if self.report.sound(self.log.chain(number))?.flatten() != Some(self.chain) {
                self.report
                    .fault(format!("commit {number}: its chain hash is wrong"));
                // Behind a wrong hash, the hash of every later commit would be a fault, too.
                return Ok(false);
            }
            if commit.instant <= self.last {
                self.report.fault(format!(
                    "commit {number}: it is not later than the one before it"
                ));
            }
            self.last = commit.last_instant();
            self.commit(&commit)?;
            self.arrive(&commit);
            self.report.commits += 1;
            self.next = number.next();
        }
        Ok(true)
    }

    fn commit(&mut self, commit: &Commit) -> Result<(), LogError> {
        let mut entries = 0;
        for change in &commit.changes {
            if let Change::Epoch { epoch } = change {
                self.epoch = *epoch;
            }
            let Some(key) = change.feed() else { continue };
            if let Change::Settings { settings, .. } = change {
                let create = || FeedHead::create(settings, commit.instant, self.epoch);
                self.feeds.entry(key).or_insert_with(create);
            }
            let Some(head) = self.feeds.get_mut(&key) else {
                let number = commit.number;
                self.report.fault(format!(
                    "commit {number}: feed {} is changed before it is created",
                    key.0
                ));
                continue;
            };
            // The head counts the entry in `apply`, so its position is read before.
            let position = head.next;
            head.apply(
                change,
                commit.instant,
                commit.instant.plus_micros(entries),
                self.epoch,
            );
            let opening = head.open.opening;
            match change {
                Change::Entry { at, id, .. } => {
                    entries += 1;
                    self.report.entries += 1;
                    // Looked up by its id, so that the index of ids is checked, too.
                    let found = self.report.sound(self.log.find(key, id))?.flatten();
                    if *at != position || found.map(|known| known.at) != Some(position) {
                        self.report.fault(format!(
                            "feed {}: entry {position} ({id}) is not where it belongs",
                            key.0
                        ));
                    }
                }
                Change::Opened { document, .. } => {
                    let found = self
                        .report
                        .sound(self.log.opening(key, *document))?
                        .flatten();
                    if found.is_none_or(|found| {
                        found.first != opening.first || found.before != opening.before
                    }) {
                        self.report.fault(format!(
                            "feed {}: document {document} was not opened as recorded",
                            key.0
                        ));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Compares the heads with those that follow from the commits. The log may grow meanwhile: the replay
    /// must arrive at a head that is ahead of it.
    fn heads(&mut self) -> Result<(), LogError> {
        // Read between two replays, so it must lie between their counts.
        let feeds = self.log.head().feeds;
        let replayed = self.feeds.len();
        let mut keys: Vec<FeedKey> = self.feeds.keys().copied().collect();
        // Twice, because a head may be asked for while it is being replaced.
        for _ in 0..2 {
            self.found.clear();
            for key in keys {
                let found = self.report.sound(self.log.feed(key))?.flatten();
                if found.as_ref() != self.feeds.get(&key) {
                    self.found.insert(key, found);
                }
            }
            // The log may have grown: the replay catches up with the heads just read.
            if !self.commits()? {
                return Ok(());
            }
            keys = self.found.keys().copied().collect();
        }
        for key in self.found.keys() {
            self.report.fault(format!(
                "feed {}: its head does not follow from its commits",
                key.0
            ));
        }
        let known = replayed..=self.feeds.len();
        if usize::try_from(feeds).is_ok_and(|feeds| !known.contains(&feeds)) {
            self.report.fault(format!(
                "there are {replayed} feeds, and the log says {feeds}"
            ));
        }
        Ok(())
    }

    /// Forgets a head that the replay has come to.
    fn arrive(&mut self, commit: &Commit) {
        for feed in commit.changes.iter().filter_map(Change::feed) {
            let found = self.found.get(&feed).and_then(Option::as_ref);
            if found.is_some() && found == self.feeds.get(&feed) {
                self.found.remove(&feed);
            }
        }
    }
}

fn check_archive(
    log: &dyn EntryLog,
    archive: &Archive,
    name: &FeedName,
    feed: FeedKey,
    report: &mut Report,
) -> Result<(), ArchiveError> {
    // In this order, because both may grow meanwhile.
    let closed = closed_documents(log, feed, report)?;
    let complete = archive.is_up_to(log.head().number);
    let recorded = archive.manifests.count(name)?;
    if recorded > closed_documents(log, feed, report)? {
        report.fault(format!(
            "feed {name}: {recorded} documents are archived, {closed} are closed"
        ));
    }
    // After a crash the archive may be behind, but only behind its own cursor.
    if recorded < closed && complete {
        report.fault(format!(
            "feed {name}: {closed} documents are closed, only {recorded} are archived"
        ));
    }
    for number in 1..=recorded.min(closed) {
        let Some(number) = DocumentNumber::new(number) else {
            continue;
        };
        let archived = match archive.manifests.get(name, number) {
            Ok(Some(archived)) => archived,
            Ok(None) => continue,
            Err(error) => {
                report.fault(error.to_string());
                continue;
            }
        };
        if archived.is_lost() {
            // A lost document has no bytes, but the opening of its successor records the loss.
            let after_loss = report.sound(log.opening(feed, number.next()))?.flatten();
            if after_loss.is_none_or(|successor| !successor.after_loss) {
                report.fault(format!(
                    "feed {name}: document {number} is there, and its record says it is lost"
                ));
            }
            continue;
        }
        report.documents += 1;
        match report.sound(Frozen::render(log, feed, number))? {
            Some(Some(frozen)) => {
                check_document(archive, name, &archived, &frozen, report);
                check_block(archive, name, &frozen, report)?;
            }
            Some(None) => report.fault(format!(
                "feed {name}: document {number} is archived, but not closed"
            )),
            None => {}
        }
    }
    Ok(())
}

fn closed_documents(
    log: &dyn EntryLog,
    feed: FeedKey,
    report: &mut Report,
) -> Result<u64, LogError> {
    let head = report.sound(log.feed(feed))?.flatten();
    Ok(head.map_or(0, |head| head.open.opening.name.number.get() - 1))
}

/// Checks the index block that a document completes, if it completes one.
fn check_block(
    archive: &Archive,
    name: &FeedName,
    frozen: &Frozen,
    report: &mut Report,
) -> Result<(), ArchiveError> {
    let number = frozen.opening.name.number.get();
    // Only a full block is closed and has files.
    if !number.is_multiple_of(INDEX_BLOCK_DOCUMENTS) {
        return Ok(());
    }
    let block = number / INDEX_BLOCK_DOCUMENTS;
    let block = index::closed_block(&archive.manifests, name, &frozen.settings.id, block)?;
    if let Some(block) = block.filter(|block| archive.block_differs(name, block)) {
        report.fault(format!(
            "feed {name}: {} or its twin is missing or wrong",
            block.name
        ));
    }
    Ok(())
}

fn check_document(
    archive: &Archive,
    feed: &FeedName,
    archived: &Archived,
    frozen: &Frozen,
    report: &mut Report,
) {
    let document = archived.name;
    let mut fault = |what: &str| report.fault(format!("feed {feed}: {document} {what}"));
    if *archived != frozen.archived_as(archived.gzip) {
        fault("is not what the manifest says");
    }
    match archive.read(feed, archived, false) {
        Ok(bytes) if bytes == frozen.bytes => {}
        Ok(_) => fault("is not what the log gives"),
        Err(error) => fault(&format!("cannot be used: {error}")),
    }
    // Another compressor gives another twin, so it is compared decoded.
    match archive.read(feed, archived, true).map(|twin| gunzip(&twin)) {
        Ok(Ok(bytes)) if bytes == *frozen.bytes => {}
        Ok(_) => fault("has a twin that does not decode to it"),
        Err(error) => fault(&format!("has an unusable twin: {error}")),
    }
    if archive.sidecar_differs(feed, frozen) {
        fault("has no or another sidecar");
    }
    if archive.second_name_differs(feed, frozen) {
        fault("is missing or another one under the name that leads to it");
    }
    for what in wrong_links(frozen) {
        fault(what);
    }
}

/// Reads a document as a consumer does, and returns the links and the end that lead elsewhere.
fn wrong_links(frozen: &Frozen) -> Vec<&'static str> {
    let own = frozen.settings.document_url(frozen.opening.name);
    let read = Url::parse(&own)
        .ok()
        .and_then(|url| Document::read(frozen.bytes.clone(), &url).ok());
    let Some(read) = read else {
        return vec!["cannot be read as a feed document"];
    };
    let url_of = |name| frozen.settings.document_url(name);
    let expected = [
        ("self", Some(own), "has a wrong self link"),
        (
            "next-archive",
            Some(url_of(frozen.successor.linked)),
            "has a wrong next-archive link",
        ),
        (
            "prev-archive",
            frozen.opening.previous.map(url_of),
            "has a wrong prev-archive link",
        ),
    ];
    let mut wrong = vec![];
    for (rel, url, what) in expected {
        if read.link(rel).map(Url::as_str) != url.as_deref() {
            wrong.push(what);
        }
    }
    let entries = u64::try_from(read.len()).unwrap_or(u64::MAX);
    let end = read
        .history
        .map(|(first, _)| Position(first.0.saturating_add(entries)));
    // A consumer that goes on with the next document must not skip a position.
    if end != Some(frozen.successor.first) {
        wrong.push("does not end where the next document begins");
    }
    wrong
}
