//! The view of archived documents: the documents that a commit closes become files.
//!
//! Shell: files, by way of an [`Archive`].

use std::{collections::BTreeSet, ops::Bound, path::Path, time::Duration};

use simplefeed_core::{
    commit::{ChangeOutline, Outline},
    feed::{CommitNumber, DocumentNumber, FeedKey, FeedName},
    settings::Settings,
};
use simplefeed_log::{EntryLog, LogError, Series, seen::ReadersEnd, settings_of};
use simplefeed_process::stop::Stop;
use tracing::{error, info};

use super::{
    archive::{Archive, ArchiveWork, NAME},
    checking,
    each_head::each_head,
    exporting,
};
use crate::{
    ApplyOutcome, View,
    error::ViewError,
    folders::Folders,
    follower::Grace,
    reports::{Rebuilt, VerifyFindings},
    scrub::{self, Scrub},
    shown::{ShownLog, ShownSeries},
    tree::{ExportError, Tree},
};

/// Pause of a follower that is up to date. Documents that are closed during the pause share their
/// syncs. That saves syncs, each of which holds up the commits on the same disk. A closed document
/// is served from the log until its file is there.
const PACE: Duration = Duration::from_millis(500);
/// Maximum number of documents of a timeline that are archived in one round.
const WANTED_TOGETHER: u64 = 256;
/// Maximum number of feeds that are archived together. Each of them needs five open files.
const FEEDS_TOGETHER: usize = 16;
/// Number of feeds with waiting work from which on the view is full.
const WAITING_MAX: usize = 1_000;
/// Number of feeds that the scrubber lists at a time. A list finds the open document of each feed:
/// with a list of 1,000 timelines after every [pause](Scrub::goes_on), that took 17 % of a core.
const SCRUBBED_FEEDS: usize = 100;

impl View for Archive {
    fn name(&self) -> &'static str {
        NAME
    }

    fn begin(&self, log: &dyn ShownLog) -> Result<CommitNumber, ViewError> {
        // `check_log` refuses a log that ends before the cursor.
        Ok(self.cursor().commit.min(log.head().number))
    }

    fn check_log(&self, log: &dyn EntryLog) -> Result<(), LogError> {
        let (ReadersEnd { commit, chain }, end) = (self.cursor(), log.head().number);
        let what = match log.chain(commit) {
            _ if commit > end => {
                format!("it ends with commit {end}, and documents of commit {commit} are beside it")
            }
            Ok(Some(own)) if own != chain => {
                format!("its commit {commit} is not the one whose documents are beside it")
            }
            // A chain hash that cannot be read contradicts nothing.
            _ => return self.check_noted(log),
        };
        Err(LogError::Replaced { what })
    }

    fn note_replaced(&self, log: &dyn EntryLog, document: &Path) {
        self.note_other_log(log, document);
    }

    fn apply(&self, commit: &Outline, log: &dyn ShownSeries) -> Result<ApplyOutcome, ViewError> {
        let wanted = closed_by(commit, log)?;
        let mut waiting = self.waiting.lock();
        // The newest closed document of a feed is enough: `archive` makes all before it.
        for (feed, document) in wanted {
            let newest = waiting.entry(feed).or_insert(document);
            *newest = document.max(*newest);
        }
        Ok(if waiting.len() < WAITING_MAX {
            ApplyOutcome::More
        } else {
            ApplyOutcome::Full
        })
    }

    fn has_room(&self) -> bool {
        self.waiting.lock().len() < WAITING_MAX
    }

    fn carry_out(&self, log: &dyn ShownSeries, grace: &Grace<'_>) -> Result<bool, ViewError> {
        let (mut from, mut failed, mut is_logged) = (Bound::Unbounded, None, false);
        while grace.lasts() {
            let waiting = self.waiting.lock();
            let next = waiting.range((from, Bound::Unbounded));
            let next = next.take(FEEDS_TOGETHER);
            let next: Vec<_> = next.map(|(feed, newest)| (*feed, *newest)).collect();
            drop(waiting);
            let Some((last, _)) = next.last() else {
                // The readers' work comes after the work of all feeds, which readers of long
                // timelines must not hold up.
                self.archive_wanted(log, grace)?;
                return failed.map_or(Ok(true), Err);
            };
            from = Bound::Excluded(*last);
            let singles = self.archive_singles(log, &next);
            let singles = singles.unwrap_or_else(|error| {
                let error: &(dyn std::error::Error + 'static) = &error;
                // Logged once in a round, because a full disk fails for all feeds.
                if !std::mem::replace(&mut is_logged, true) {
                    error!(error, "feeds cannot be archived together");
                }
                // The feeds are then archived one by one, so that no feed holds up another.
                BTreeSet::new()
            });
            for (feed, newest) in next {
                let outcome = if singles.contains(&feed) {
                    Ok(1)
                } else {
                    let outcome = self.archive(log, feed, newest, grace);
                    // The next start does the rest.
                    if outcome.is_ok() && !grace.lasts() {
                        return Ok(false);
                    }
                    outcome
                };
                // The work of this feed waits for the next try, and the work of the other feeds
                // goes on.
                if let Err(error) = self.report_gain(log, feed, newest, outcome) {
                    // This error ends publishing for all feeds.
                    if matches!(error, ViewError::Replaced { .. }) {
                        return Err(error);
                    }
                    failed.get_or_insert(error);
                    continue;
                }
                // The work is removed only once the files are there, so that a failure keeps the
                // work.
                self.waiting.lock().remove(&feed);
            }
        }
        Ok(false)
    }

    fn note(&self, commit: CommitNumber, log: &dyn ShownLog) -> Result<(), ViewError> {
        match log.chain(commit)? {
            Some(chain) => self.save_cursor(ReadersEnd { commit, chain }),
            None => Ok(()),
        }
    }

    fn pause(&self, stop: &Stop) {
        stop.is_requested_within(PACE);
    }

    fn made(&self) -> u64 {
        Archive::made(self)
    }

    fn verify(&self, log: &dyn ShownLog, findings: &mut VerifyFindings) -> Result<(), ViewError> {
        for feed in findings.feeds.clone() {
            checking::check_feed(log, self, feed, findings)?;
        }
        Ok(())
    }

    fn rebuild(&self, log: &dyn ShownLog, rebuilt: &mut Rebuilt) -> Result<(), ViewError> {
        every_feed(log, |name, feed, settings, open| {
            // Records of documents that are not closed are of another log.
            self.forget_open(log, feed, name)?;
            let due = 1..=self.documents_due(name, settings, open)?;
            for number in due.filter_map(DocumentNumber::new) {
                if let Some((document, remade)) = self.make(log, feed, name, number, None)? {
                    rebuilt.add(remade, || format!("{name}/{document}"));
                }
            }
            Ok(())
        })?;
        Ok(())
    }

    fn scrub(&self, log: &dyn ShownSeries, scrub: &Scrub<'_>) {
        let mut after: Option<FeedName> = None;
        loop {
            let names: Vec<FeedName> = match log.feeds(after.as_ref(), SCRUBBED_FEEDS) {
                Ok(feeds) => feeds.into_iter().map(|(name, _)| name).collect(),
                // This round ends here, and the next round tries again.
                Err(error) => return scrub::report(&error.into()),
            };
            let Some(last) = names.last().cloned() else {
                return;
            };
            if !names.iter().all(|name| self.scrub_feed(name, scrub)) {
                return;
            }
            after = Some(last);
            if !scrub.goes_on() {
                return;
            }
        }
    }

    fn export(
        &self,
        log: &std::sync::Arc<dyn ShownSeries>,
        tree: &mut Tree,
    ) -> Result<(), ExportError> {
        exporting::export(log, self, tree)
    }

    fn copy(&self, log: &dyn EntryLog, to: &Folders) -> Result<u64, ViewError> {
        let copy = Self::new(to);
        let mut documents = 0;
        every_feed(log, |name, feed, settings, open| {
            let due = 1..=self.documents_due(name, settings, open)?;
            for number in due.filter_map(DocumentNumber::new) {
                // The copy gets the twins of this archive, because readers have them.
                let made = copy.make(log, feed, name, number, Some(self))?;
                documents += u64::from(made.is_some());
            }
            Ok(())
        })?;
        // Without the cursor, the first server of the copy would look at each document once more.
        if let Err(error) = copy.save_cursor(ReadersEnd::of(&log.head())) {
            let error: &(dyn std::error::Error + 'static) = &error;
            error!(error, "the archive's cursor cannot be saved");
        }
        Ok(documents)
    }
}

/// Returns the work that a commit brings: the feeds of which it closes documents, and the feeds
/// whose files may have to move.
fn closed_by(commit: &Outline, log: &dyn Series) -> Result<ArchiveWork, LogError> {
    let mut wanted = ArchiveWork::new();
    for change in &commit.changes {
        let (feed, document) = match *change {
            // A feed's first document has no predecessor to close.
            ChangeOutline::Opened { feed, document, .. } => match document.previous() {
                Some(closed) => (feed, Some(closed)),
                None => continue,
            },
            ChangeOutline::Settings { feed, revision } => {
                let settings = match log.settings(feed, revision) {
                    Ok(settings) => settings,
                    // One feed's damage must not hold up the other feeds: `carry_out` reports the
                    // damage.
                    Err(LogError::Damaged { .. }) => None,
                    Err(error) => return Err(error),
                };
                // Only a feed that has chosen whether it is closed can have its files in the wrong
                // tree.
                match settings.map(|settings| settings.choices.closed) {
                    Some(None) => continue,
                    Some(Some(_)) | None => (feed, None),
                }
            }
            _ => continue,
        };
        let newest = wanted.entry(feed).or_insert(document);
        *newest = document.max(*newest);
    }
    Ok(wanted)
}

/// Calls `each` with every feed of a log, its settings and the number of its open document.
fn every_feed(
    log: &dyn EntryLog,
    mut each: impl FnMut(&FeedName, FeedKey, &Settings, DocumentNumber) -> Result<(), ViewError>,
) -> Result<(), ViewError> {
    each_head(log, |name, head| {
        let settings = settings_of(log, head.feed, head.revision)?;
        each(name, head.feed, &settings, head.open.opening.name.number)
    })
}

/// Returns the name of a feed, for operators, or the key of a feed that the log does not have.
fn name_of(log: &dyn Series, feed: FeedKey) -> Result<String, LogError> {
    match log.feed(feed)? {
        Some(head) => Ok(settings_of(log, feed, head.revision)?.name.to_string()),
        None => Ok(feed.0.to_string()),
    }
}

impl Archive {
    /// Counts and logs the documents that one feed gained in the archive. Damage of one feed must
    /// not hold up the other feeds. So the damage is logged, and the feed is tried again with its
    /// next closed document. Returns whether there was any progress.
    fn report_gain(
        &self,
        log: &dyn Series,
        feed: FeedKey,
        newest: Option<DocumentNumber>,
        outcome: Result<u64, ViewError>,
    ) -> Result<bool, ViewError> {
        match outcome {
            Ok(0) => Ok(false),
            Ok(made) => {
                self.count_made(made);
                let document = newest.map(DocumentNumber::get);
                let name = name_of(log, feed)?;
                info!(feed = %name, document, "archived");
                Ok(true)
            }
            Err(
                error
                @ (ViewError::Log(LogError::Damaged { .. }) | ViewError::DamagedRecord { .. }),
            ) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                error!(error, "a document cannot be archived");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Archives some of the documents that readers of timelines have asked for. The rest waits for
    /// the next round: a reader who asks for the end of a long timeline must not hold up the feeds.
    fn archive_wanted(&self, log: &dyn Series, grace: &Grace<'_>) -> Result<(), ViewError> {
        // The work is copied, because readers add work while files are written.
        let wanted = self.wanted.lock().clone();
        for (feed, newest) in wanted {
            if !grace.lasts() {
                return Ok(());
            }
            let archived = match log.feed(feed)? {
                Some(head) => {
                    let settings = settings_of(log, feed, head.revision)?;
                    self.manifests.count_before_hole(&settings.name)?
                }
                None => 0,
            };
            let turn = newest.min(DocumentNumber::new(archived + WANTED_TOGETHER));
            let outcome = self.archive(log, feed, turn, grace);
            // Without progress, the work is dropped, because the next round would meet the same
            // document again.
            if self.report_gain(log, feed, turn, outcome)? && turn < newest {
                continue;
            }
            let mut wanted = self.wanted.lock();
            // A reader may have asked for a later document meanwhile, and that work is kept.
            if wanted.get(&feed) == Some(&newest) {
                wanted.remove(&feed);
            }
        }
        if !self.wanted.lock().is_empty() {
            // Without this wake, the rest would wait for the next commit.
            self.wake();
        }
        Ok(())
    }

    /// Compares one feed's files with their digests. Returns whether to go on.
    fn scrub_feed(&self, feed: &FeedName, scrub: &Scrub<'_>) -> bool {
        let archived = self.manifests.count(feed).unwrap_or_else(|error| {
            // A damaged manifest hides the documents; `rebuild` makes a new manifest.
            scrub::report(&error);
            0
        });
        for number in (1..=archived).filter_map(DocumentNumber::new) {
            if !scrub.goes_on() {
                return false;
            }
            let looked = self.manifests.get(feed, number).and_then(|archived| {
                // A lost document has a record, but no file.
                if let Some(archived) = archived.filter(|archived| !archived.is_lost()) {
                    self.read(feed, &archived, false)?;
                    self.read(feed, &archived, true)?;
                }
                Ok(())
            });
            if let Err(error) = looked {
                scrub::report(&error);
            }
        }
        true
    }
}
