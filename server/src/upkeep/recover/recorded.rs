//! Facts of the old log about timelines: settings, follows, and the server's proposals.
//!
//! Shell: the records that sled still returns. No document holds these facts, so they come from the
//! facts of commits, which give each change a place.

use std::collections::{BTreeMap, BTreeSet};

use simplefeed_core::{
    commit::{Change, ChangeOutline},
    feed::{FeedKey, Revision},
    history::HistoryHash,
    settings::Settings,
    timestamp::Timestamp,
};
use simplefeed_log::sled::{quietly, salvage::Remains};

/// Facts about timelines, in the order of the old log.
#[derive(Debug, Default)]
pub(super) struct TimelineFacts {
    /// Changes, each with the instant of the change's place.
    pub(super) changes: Vec<(Timestamp, Change)>,
    /// Timelines that can be recovered, each with the newest settings.
    pub(super) timelines: BTreeMap<FeedKey, Settings>,
    /// Timelines whose settings are lost.
    pub(super) lost: BTreeSet<FeedKey>,
    /// Newest revision of each timeline's settings, as numbered in the new log.
    revisions: BTreeMap<FeedKey, Revision>,
    /// Newest revision of the server's proposals, as numbered in the new log.
    defaults: Option<Revision>,
}

impl TimelineFacts {
    /// Returns the facts about timelines in the remains of a log.
    pub(super) fn find(old: Option<&Remains>) -> Self {
        let mut recorded = Self::default();
        let Some(old) = old else {
            return recorded;
        };
        for (_, facts) in quietly(|| old.facts()).unwrap_or_default() {
            let mut instant = facts.instant;
            for change in &facts.changes {
                // Entry i of a commit has the commit's instant plus i microseconds, so a change
                // behind entries has a later place than a change before them.
                if let ChangeOutline::Entries { count, .. } = change {
                    instant = instant.plus_micros(*count);
                }
                recorded.take_change(old, change, instant);
            }
        }
        recorded
    }

    /// Returns the revision after the newest one. The new log numbers revisions anew, because some
    /// may be lost, and a log needs each revision from the first on.
    fn next_revision(newest: Option<Revision>) -> Revision {
        newest.map_or(Revision::FIRST, Revision::next)
    }

    /// Records the server's proposals before the first timeline, because every log has them there.
    fn propose_settings(&mut self, instant: Timestamp, settings: &Settings) {
        if self.defaults.is_none() {
            let (revision, defaults) = (Revision::FIRST, (*settings.defaults).clone());
            self.defaults = Some(revision);
            let change = Change::Defaults { revision, defaults };
            self.changes.push((instant, change));
        }
    }

    fn take_change(&mut self, old: &Remains, change: &ChangeOutline, instant: Timestamp) {
        let change = match change {
            ChangeOutline::Settings { feed, revision } => {
                let settings = old.settings(*feed).into_iter();
                let found = settings.filter(|(found, _)| found == revision).last();
                match found {
                    Some((_, settings)) if settings.is_timeline() => {
                        self.propose_settings(instant, &settings);
                        self.timelines.insert(*feed, settings.clone());
                        let feed = *feed;
                        let revision = Self::next_revision(self.revisions.get(&feed).copied());
                        self.revisions.insert(feed, revision);
                        Change::Settings {
                            feed,
                            revision,
                            settings,
                        }
                    }
                    // The settings of other feeds are found with the remains of each feed.
                    _ => return,
                }
            }
            ChangeOutline::Following { feed, change } => {
                // Without settings no timeline can be made. The report names those in `lost`.
                if !self.timelines.contains_key(feed) {
                    self.lost.insert(*feed);
                    return;
                }
                let (feed, change) = (*feed, change.clone());
                Change::Following { feed, change }
            }
            ChangeOutline::Defaults { revision } => match old.defaults(*revision) {
                Some(defaults) => {
                    let revision = Self::next_revision(self.defaults);
                    self.defaults = Some(revision);
                    Change::Defaults { revision, defaults }
                }
                None => return,
            },
            _ => return,
        };
        self.changes.push((instant, change));
    }

    /// Returns the changes by which all timelines begin anew, because their entries may have other
    /// positions now.
    pub(super) fn restarts(&self) -> Vec<Change> {
        let restart = |(feed, settings): (&FeedKey, &Settings)| Change::Lost {
            feed: *feed,
            next: simplefeed_core::feed::Position(0),
            history: HistoryHash::start(&settings.id),
        };
        self.timelines.iter().map(restart).collect()
    }
}
