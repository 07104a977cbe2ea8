//! Checks that everything stored is what was stored.
//!
//! Shell over the log and the archive; changes nothing. The commits are replayed into a model, whose
//! every statement the log's own records must agree with; then each archived document is rendered
//! again and compared with its file, its twin, its sidecar, its record and its links.

use std::collections::HashMap;

use simplefeed_core::{
    commit::{Change, Commit},
    feed::{CommitNumber, DocumentNumber, FeedKey, FeedName, Position},
    history::ChainHash,
    instant::Instant,
    plan::FeedHead,
    reader::Document,
};
use url::Url;

use crate::{
    log::{EntryLog, LogError, settings_of},
    views::{
        archive_files::{Archive, ArchiveError, Frozen, gunzip},
        manifest::Archived,
    },
};

/// Commits read at a time.
const CHUNK: usize = 256;

/// What was checked and what was wrong.
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
    };
    checking.commits()?;
    checking.heads()?;
    let mut report = checking.report;
    let mut after: Option<FeedName> = None;
    loop {
        let feeds = log.feeds(after.as_ref(), 1_000)?;
        let Some((last, _)) = feeds.last() else {
            return Ok(report);
        };
        after = Some(last.clone());
        for (name, head) in &feeds {
            check_archive(log, archive, name, head, &mut report)?;
        }
    }
}

struct Checking<'l> {
    log: &'l dyn EntryLog,
    report: Report,
    feeds: HashMap<FeedKey, FeedHead>,
}

impl Checking<'_> {
    fn fault(&mut self, fault: String) {
        self.report.faults.push(fault);
    }

    fn commits(&mut self) -> Result<(), LogError> {
        let (mut number, mut chain, mut last) = (CommitNumber(0), ChainHash::START, Instant::MIN);
        let mut epoch = simplefeed_core::feed::Epoch::FIRST;
        loop {
            let commits = match self.log.commits(number.next(), CHUNK) {
                Ok(commits) => commits,
                Err(LogError::Damaged { what }) => {
                    self.fault(what);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            if commits.is_empty() {
                break;
            }
            for commit in commits {
                number = commit.number;
                chain = chain.extend(&commit.encode());
                if self.log.chain(number)? != Some(chain) {
                    self.fault(format!("commit {number}: its chain hash is wrong"));
                    return Ok(());
                }
                if commit.instant <= last {
                    self.fault(format!(
                        "commit {number}: it is not later than the one before it"
                    ));
                }
                last = commit.last_instant();
                self.commit(&commit, &mut epoch)?;
                self.report.commits += 1;
            }
        }
        if number != self.log.head().number {
            let head = self.log.head().number;
            self.fault(format!("the log ends at commit {number} and says {head}"));
        }
        Ok(())
    }

    fn commit(
        &mut self,
        commit: &Commit,
        epoch: &mut simplefeed_core::feed::Epoch,
    ) -> Result<(), LogError> {
        let mut entries = 0;
        for change in &commit.changes {
            let key = match change {
                Change::Epoch { epoch: new } => {
                    *epoch = *new;
                    continue;
                }
                Change::Settings { feed, .. }
                | Change::Opened { feed, .. }
                | Change::Entry { feed, .. } => *feed,
            };
            if let Change::Settings { settings, .. } = change {
                self.feeds
                    .entry(key)
                    .or_insert_with(|| FeedHead::create(settings, commit.instant, *epoch));
            }
            let Some(head) = self.feeds.get_mut(&key) else {
                self.fault(format!(
                    "commit {}: feed {} is changed before it is created",
                    commit.number, key.0
                ));
                continue;
            };
            let position = head.next;
            head.apply(
                change,
                commit.instant,
                commit.instant.plus_micros(entries),
                *epoch,
            );
            match change {
                Change::Entry { at, id, .. } => {
                    entries += 1;
                    self.report.entries += 1;
                    let found = self.log.find(key, id)?.map(|known| known.at);
                    if *at != position || found != Some(position) {
                        self.fault(format!(
                            "feed {}: entry {position} ({id}) is not where it belongs",
                            key.0
                        ));
                    }
                }
                Change::Opened { document, .. } => {
                    let opening = head.open.opening;
                    if self.log.opening(key, *document)?.is_none_or(|found| {
                        found.first != opening.first || found.before != opening.before
                    }) {
                        self.fault(format!(
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

    fn heads(&mut self) -> Result<(), LogError> {
        let feeds = std::mem::take(&mut self.feeds);
        for (key, head) in &feeds {
            if self.log.feed(*key)?.as_ref() != Some(head) {
                self.fault(format!(
                    "feed {}: its head does not follow from its commits",
                    key.0
                ));
            }
        }
        let known = u64::try_from(feeds.len()).unwrap_or(u64::MAX);
        if known != self.log.head().feeds {
            self.fault(format!(
                "there are {known} feeds, and the log says {}",
                self.log.head().feeds
            ));
        }
        Ok(())
    }
}

fn check_archive(
    log: &dyn EntryLog,
    archive: &Archive,
    name: &FeedName,
    head: &FeedHead,
    report: &mut Report,
) -> Result<(), ArchiveError> {
    let recorded = archive.manifests.count(name)?;
    let closed = head.open.opening.name.number.get() - 1;
    if recorded > closed {
        report.faults.push(format!(
            "feed {name}: {recorded} documents are archived, {closed} are closed"
        ));
    }
    for number in 1..=recorded.min(closed) {
        let Some(number) = DocumentNumber::new(number) else {
            continue;
        };
        report.documents += 1;
        let archived = match archive.manifests.get(name, number) {
            Ok(Some(archived)) => archived,
            Ok(None) => continue,
            Err(error) => {
                report.faults.push(error.to_string());
                continue;
            }
        };
        match Frozen::render(log, head.feed, number) {
            Ok(Some(frozen)) => check_document(archive, name, &archived, &frozen, report),
            Ok(None) => report.faults.push(format!(
                "feed {name}: document {number} is archived, but not closed"
            )),
            Err(LogError::Damaged { what }) => report.faults.push(what),
            Err(error) => return Err(error.into()),
        }
    }
    // A recent document may lag behind its archive only while the server runs.
    let settings = settings_of(log, head.feed, head.revision)?;
    if settings.name != *name {
        report.faults.push(format!(
            "feed {name}: its settings name it {}",
            settings.name
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
    let mut fault = |what: &str| {
        report
            .faults
            .push(format!("feed {feed}: {document} {what}"));
    };
    if *archived != frozen.archived_as(archived.gzip) {
        fault("is not what the manifest says");
    }
    match archive.read(feed, archived, false) {
        Ok(bytes) if bytes == frozen.bytes => {}
        Ok(_) => fault("is not what the log gives"),
        Err(error) => fault(&format!("cannot be used: {error}")),
    }
    match archive.read(feed, archived, true).map(|twin| gunzip(&twin)) {
        Ok(Ok(bytes)) if bytes == *frozen.bytes => {}
        Ok(_) => fault("has a twin that does not decode to it"),
        Err(error) => fault(&format!("has an unusable twin: {error}")),
    }
    if archive.sidecar_differs(feed, frozen) {
        fault("has no or another sidecar");
    }
    let own = frozen.settings.document_url(document);
    let read = Url::parse(&own)
        .ok()
        .and_then(|url| Document::read(frozen.bytes.clone(), &url).ok());
    let Some(read) = read else {
        fault("cannot be read as a feed document");
        return;
    };
    let expected = [
        ("self", Some(own)),
        (
            "next-archive",
            Some(frozen.settings.document_url(frozen.successor.name)),
        ),
        (
            "prev-archive",
            frozen
                .opening
                .previous
                .map(|name| frozen.settings.document_url(name)),
        ),
    ];
    for (rel, url) in expected {
        if read.link(rel).map(Url::as_str) != url.as_deref() {
            fault(&format!("has a wrong {rel} link"));
        }
    }
    let end = read
        .history
        .map(|(first, _)| Position(first.0 + u64::try_from(read.len()).unwrap_or(0)));
    if end != Some(frozen.successor.first) {
        fault("does not end where the next document begins");
    }
}
