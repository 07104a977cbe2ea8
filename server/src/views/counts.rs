//! Counts of entries by feed: a view for tests only. It shows that a view needs only files of its
//! own and a line in each list.
//!
//! Shell: one file.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Mutex, MutexGuard},
};

use simplefeed_core::{
    commit::{ChangeOutline, Outline},
    feed::{CommitNumber, FeedKey},
};
use simplefeed_log::{EntryLog, durable::create_folder};
use simplefeed_process::regular;
use simplefeed_views::{
    ApplyOutcome, View,
    error::ViewError,
    files::{Remade, failed},
    folders::Folders,
    follower::Grace,
    reports::{Rebuilt, VerifyFindings},
    scrub::{self, Scrub},
    shown::{ShownLog, ShownSeries},
};
use uuid::Uuid;

/// Maximum number of commits that one read of the log returns.
const COMMITS_TOGETHER: usize = 10;

/// The last counted commit, and the number of entries of each feed up to that commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CountState {
    commit: CommitNumber,
    entries: BTreeMap<FeedKey, u64>,
}

impl CountState {
    fn apply_commit(&mut self, commit: &Outline) {
        for change in &commit.changes {
            if let ChangeOutline::Entries { feed, count, .. } = *change {
                *self.entries.entry(feed).or_default() += count;
            }
        }
        self.commit = commit.number;
    }

    fn to_text(&self) -> String {
        let feeds = self.entries.iter();
        let lines = feeds.map(|(feed, count)| format!("{} {count}\n", feed.0));
        format!("{}\n{}", self.commit, lines.collect::<String>())
    }

    fn of_text(text: &str) -> Option<Self> {
        let (commit, feeds) = text.split_once('\n')?;
        let entries = feeds.lines().map(|line| {
            let (feed, count) = line.split_once(' ')?;
            Some((FeedKey(Uuid::parse_str(feed).ok()?), count.parse().ok()?))
        });
        Some(Self {
            commit: CommitNumber(commit.parse().ok()?),
            entries: entries.collect::<Option<_>>()?,
        })
    }

    fn of_log(log: &dyn EntryLog, last: CommitNumber) -> Result<Self, ViewError> {
        let mut counted = Self::default();
        while counted.commit < last {
            for outline in log.outlines(counted.commit.next(), COMMITS_TOGETHER)? {
                // The log may have grown beyond `last` by now, and the counts must end there.
                if outline.number <= last {
                    counted.apply_commit(&outline);
                }
            }
        }
        Ok(counted)
    }
}

/// View of the number of entries in each feed.
#[derive(Debug)]
pub struct CountsView {
    folder: PathBuf,
    counted: Mutex<CountState>,
}

impl CountsView {
    /// Returns the view in some folders.
    pub(crate) fn new(folders: &Folders) -> Self {
        Self {
            folder: folders.of_view("counts"),
            counted: Mutex::default(),
        }
    }

    /// Returns the number of entries of a feed.
    pub(crate) fn entries(&self, feed: FeedKey) -> u64 {
        self.lock_counts().entries.get(&feed).copied().unwrap_or(0)
    }

    fn lock_counts(&self) -> MutexGuard<'_, CountState> {
        self.counted.lock().unwrap()
    }

    fn read_stored(&self) -> Option<CountState> {
        CountState::of_text(&regular::read_text(self.folder.join("entries")).ok()?)
    }

    fn write_counts(&self, counted: &CountState) -> Result<Remade, ViewError> {
        let before = match self.read_stored() {
            Some(stored) if stored == *counted => return Ok(Remade::Identical),
            Some(_) => Remade::Different,
            None => Remade::New,
        };
        create_folder(&self.folder).map_err(failed("create", &self.folder))?;
        let path = self.folder.join("entries");
        regular::write(&path, counted.to_text().as_bytes()).map_err(failed("write", &path))?;
        Ok(before)
    }
}

impl View for CountsView {
    fn name(&self) -> &'static str {
        "counts"
    }

    fn begin(&self, log: &dyn ShownLog) -> Result<CommitNumber, ViewError> {
        let stored = self
            .read_stored()
            .filter(|stored| stored.commit <= log.head().number);
        // Counts up to a commit that the log does not have are another log's.
        *self.lock_counts() = stored.unwrap_or_default();
        Ok(self.lock_counts().commit)
    }

    fn apply(&self, commit: &Outline, _: &dyn ShownSeries) -> Result<ApplyOutcome, ViewError> {
        self.lock_counts().apply_commit(commit);
        Ok(ApplyOutcome::More)
    }

    fn carry_out(&self, _: &dyn ShownSeries, _: &Grace<'_>) -> Result<bool, ViewError> {
        let counted = self.lock_counts().clone();
        self.write_counts(&counted).map(|_| true)
    }

    fn note(&self, _: CommitNumber, _: &dyn ShownLog) -> Result<(), ViewError> {
        Ok(())
    }

    fn made(&self) -> u64 {
        1
    }

    fn verify(&self, log: &dyn ShownLog, findings: &mut VerifyFindings) -> Result<(), ViewError> {
        if let Some(stored) = self.read_stored()
            && CountState::of_log(log, stored.commit)? != stored
        {
            findings.fault("the entries are counted wrong".into());
        }
        Ok(())
    }

    fn rebuild(&self, log: &dyn ShownLog, rebuilt: &mut Rebuilt) -> Result<(), ViewError> {
        let remade = self.write_counts(&CountState::of_log(log, log.head().number)?)?;
        rebuilt.add(remade, || "counts/entries".into());
        Ok(())
    }

    fn scrub(&self, _: &dyn ShownSeries, _: &Scrub<'_>) {
        if self.read_stored().is_none() {
            let path = self.folder.join("entries");
            scrub::report(&ViewError::Damaged { path });
        }
    }
}
