//! Checks everything stored against the commits.
//!
//! Shell: the log and the views, both only read. The commits are replayed into a model, and the
//! log's own records must agree with each statement of the model; then each view compares its files
//! with the log. Damage becomes a fault in the report, and the check goes on as far as possible.

use std::collections::{HashMap, hash_map::Entry};

use simplefeed_core::{
    commit::{Change, Commit},
    feed::{CommitNumber, Epoch, FeedKey},
    history::ChainHash,
    plan::FeedHead,
    timestamp::Timestamp,
};
use simplefeed_log::{EntryLog, LogError, settings_of};
use simplefeed_process::lack::lack_in;
use simplefeed_views::{Views, error::ViewError, reports::VerifyFindings, shown::ShownLog};

/// Counts of the checked records, and the faults.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// Commits whose chain hash was recomputed.
    pub commits: u64,
    /// Entries whose bytes entered the history hash.
    pub entries: u64,
    /// Faults, and the number of documents that were compared with their files.
    pub findings: VerifyFindings,
    /// Lack of a resource, such as memory, that ended the check early.
    pub lack: Option<ViewError>,
}

/// Checks a log and its views.
///
/// # Errors
///
/// Returns an error only if the check cannot go on; faults are in the report.
pub fn verify(
    log: &dyn EntryLog,
    shown: &dyn ShownLog,
    views: &Views,
) -> Result<VerifyReport, ViewError> {
    let mut checking = Checking {
        log,
        report: VerifyReport::default(),
        feeds: HashMap::new(),
        timelines: 0,
        epoch: Epoch::FIRST,
        next: CommitNumber(1),
        chain: ChainHash::START,
        last: Timestamp::MIN,
        found: HashMap::new(),
    };
    if let Err(replaced) = log.check_seen().and_then(|()| views.check_log(log)) {
        checking.report.findings.fault(replaced.to_string());
    }
    let checked = checking.verify_all(shown, views);
    let mut report = checking.report;
    match checked {
        // Faults found before the lack stay in the report.
        Err(error) if lack_in(&error).is_some() => report.lack = Some(error),
        checked => checked?,
    }
    Ok(report)
}

struct Checking<'l> {
    log: &'l dyn EntryLog,
    report: VerifyReport,
    feeds: HashMap<FeedKey, FeedHead>,
    /// Number of these feeds that are timelines.
    timelines: usize,
    epoch: Epoch,
    /// Number of the commit to replay next.
    next: CommitNumber,
    /// Chain hash before that commit.
    chain: ChainHash,
    /// Last instant before that commit.
    last: Timestamp,
    /// Heads that the log had at some moment, and that the replay has not reached yet.
    found: HashMap<FeedKey, Option<FeedHead>>,
}

impl Checking<'_> {
    fn verify_all(&mut self, shown: &dyn ShownLog, views: &Views) -> Result<(), ViewError> {
        let is_complete = self.replay_commits()?;
        // Heads follow from all commits, so after a partial replay they cannot be compared.
        if is_complete {
            self.check_heads()?;
        }
        self.check_names()?;
        self.report.findings.feeds = self.feeds.keys().copied().collect();
        self.report.findings.is_replayed = is_complete;
        for (view, _) in views.iter() {
            view.verify(shown, &mut self.report.findings)?;
        }
        Ok(())
    }

    /// Replays the commits that the log has by now. Returns whether all of them could be replayed.
    fn replay_commits(&mut self) -> Result<bool, LogError> {
        while self.next <= self.log.head().number {
            let number = self.next;
            // Commits are read one at a time, because a commit may be as large as a request.
            let commit = self.report.findings.sound(self.log.commits(number, 1))?;
            let Some(commit) = commit.and_then(|mut commits| commits.pop()) else {
                self.report.findings.fault(format!(
                    "commit {number}: it cannot be read; later ones are not checked"
                ));
                return Ok(false);
            };
            self.chain = self.chain.extend(&commit.encode());
            if self
                .report
                .findings
                .sound(self.log.chain(number))?
                .flatten()
                != Some(self.chain)
            {
                self.report
                    .findings
                    .fault(format!("commit {number}: its chain hash is wrong"));
                // The replay ends here: behind a wrong hash, the hash of every later commit would
                // be a fault, too.
                return Ok(false);
            }
            if commit.instant <= self.last {
                self.report.findings.fault(format!(
                    "commit {number}: it is not later than the one before it"
                ));
            }
            self.last = commit.last_instant();
            self.replay_commit(&commit)?;
            self.take_commit(&commit);
            self.report.commits += 1;
            self.next = number.next();
        }
        Ok(true)
    }

    fn replay_commit(&mut self, commit: &Commit) -> Result<(), LogError> {
        let mut entries = 0;
        for change in &commit.changes {
            if let Change::Epoch { epoch } = change {
                self.epoch = *epoch;
            }
            let Some(key) = change.feed() else { continue };
            if let Change::Settings { settings, .. } = change {
                let create = || FeedHead::create(settings, commit.instant, self.epoch);
                if let Entry::Vacant(vacant) = self.feeds.entry(key) {
                    vacant.insert(create());
                    self.timelines += usize::from(settings.is_timeline());
                }
            }
            let Some(head) = self.feeds.get_mut(&key) else {
                let number = commit.number;
                self.report.findings.fault(format!(
                    "commit {number}: feed {} is changed before it is created",
                    key.0
                ));
                continue;
            };
            // The head counts the entry in `apply`, so the position is read before.
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
                    // The entry is looked up by the id, so that the index of ids is checked, too.
                    let found = self
                        .report
                        .findings
                        .sound(self.log.find(key, id))?
                        .flatten();
                    if *at != position || found.map(|known| known.at) != Some(position) {
                        self.report.findings.fault(format!(
                            "feed {}: entry {position} ({id}) is not where it belongs",
                            key.0
                        ));
                    }
                }
                Change::Opened { document, .. } => {
                    let found = self
                        .report
                        .findings
                        .sound(self.log.opening(key, *document))?
                        .flatten();
                    if found.is_none_or(|found| {
                        found.first != opening.first || found.before != opening.before
                    }) {
                        self.report.findings.fault(format!(
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

    /// Returns the number of feeds that the log counts.
    fn counted_feeds(&self) -> usize {
        self.feeds.len() - self.timelines
    }

    /// Compares the log's heads with those that follow from the commits. The log may grow
    /// meanwhile, so a head may be ahead of the replay. The replay must then reach that head.
    fn check_heads(&mut self) -> Result<(), LogError> {
        // This count is read between two replays, so it must lie between the counts of the two
        // replays.
        let feeds = self.log.head().feeds;
        let replayed = self.counted_feeds();
        let mut keys: Vec<FeedKey> = self.feeds.keys().copied().collect();
        // Two rounds are needed, because a head may be read while a commit replaces that head.
        for _ in 0..2 {
            self.found.clear();
            for key in keys {
                let found = self.report.findings.sound(self.log.feed(key))?.flatten();
                if found.as_ref() != self.feeds.get(&key) {
                    self.found.insert(key, found);
                }
            }
            // The log may have grown: the replay catches up with the heads just read.
            if !self.replay_commits()? {
                return Ok(());
            }
            keys = self.found.keys().copied().collect();
        }
        for key in self.found.keys() {
            self.report.findings.fault(format!(
                "feed {}: its head does not follow from its commits",
                key.0
            ));
        }
        let known = replayed..=self.counted_feeds();
        if usize::try_from(feeds).is_ok_and(|feeds| !known.contains(&feeds)) {
            self.report.findings.fault(format!(
                "there are {replayed} feeds, and the log says {feeds}"
            ));
        }
        Ok(())
    }

    /// Looks each feed up by name.
    fn check_names(&mut self) -> Result<(), LogError> {
        let findings = &mut self.report.findings;
        for (key, head) in &self.feeds {
            let settings = findings.sound(settings_of(self.log, *key, head.revision))?;
            // Settings that cannot be read have made a fault in `sound`.
            let Some(settings) = settings else { continue };
            let named = findings.sound(self.log.named(&settings.name))?.flatten();
            if named.is_none_or(|named| named.feed != *key) {
                findings.fault(format!(
                    "feed {}: it is not found by its name",
                    settings.name
                ));
            }
        }
        Ok(())
    }

    /// Forgets the heads that the replay has reached with a commit.
    fn take_commit(&mut self, commit: &Commit) {
        for feed in commit.changes.iter().filter_map(Change::feed) {
            let found = self.found.get(&feed).and_then(Option::as_ref);
            if found.is_some() && found == self.feeds.get(&feed) {
                self.found.remove(&feed);
            }
        }
    }
}
