//! Names of all feeds, and which of them are open to everybody.
//!
//! In memory: read from the log on first use, then kept current by commits. A catalogue therefore reads nothing
//! of a feed that it does not show, and its timing reveals none.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Bound,
};

use parking_lot::Mutex;
use simplefeed_core::{
    commit::{Change, Commit},
    feed::{FeedKey, FeedName, FeedPattern},
    limits::CATALOGUE_FEEDS_MAX,
    settings::Settings,
};

use crate::log::{LogError, Series, settings_of};

/// Characters that a name shares with those next to it.
const NEAR_CHARS: usize = 2;
/// Names on either side that are next to another one.
const NEAR_MAX: usize = 3;

/// The names of feeds, and whether they are open.
#[derive(Debug, Default)]
pub struct OpenFeeds {
    known: Mutex<Known>,
    /// Held while the log is read, so that one thread reads it.
    reading: Mutex<()>,
}

#[derive(Debug, Default)]
enum Known {
    #[default]
    Nothing,
    /// The log is being read; these settings were committed meanwhile.
    Reading(Vec<(FeedKey, Settings)>),
    All(Feeds),
}

#[derive(Debug, Default)]
struct Feeds {
    open: BTreeMap<FeedName, Title>,
    closed: BTreeMap<FeedName, Title>,
    /// Keys of the open feeds, for `has`.
    keys: HashSet<FeedKey>,
}

/// Title of a feed in lower case, as searches compare it.
#[derive(Debug)]
struct Title(Box<str>);

/// Names that were found among some that were looked at.
#[derive(Debug)]
pub struct Names {
    /// Those that match.
    pub matching: Vec<FeedName>,
    /// The last one that was looked at; `None` if there was none.
    pub end: Option<FeedName>,
}

impl Feeds {
    fn take(&mut self, feed: FeedKey, settings: &Settings) {
        let name = &settings.name;
        let title = Title(settings.title().to_lowercase().into());
        if settings.is_closed() {
            self.keys.remove(&feed);
            self.open.remove(name);
            self.closed.insert(name.clone(), title);
        } else {
            self.keys.insert(feed);
            self.closed.remove(name);
            self.open.insert(name.clone(), title);
        }
    }
}

impl OpenFeeds {
    /// Applies a commit that the log holds already.
    pub fn committed(&self, commit: &Commit) {
        let mut known = self.known.lock();
        for change in &commit.changes {
            let Change::Settings { feed, settings, .. } = change else {
                continue;
            };
            match &mut *known {
                // The first reader finds this commit in the log.
                Known::Nothing => {}
                Known::Reading(meanwhile) => meanwhile.push((*feed, settings.clone())),
                Known::All(feeds) => feeds.take(*feed, settings),
            }
        }
    }

    /// Returns the names of feeds from behind `after` on, in order: of open feeds, and of those closed feeds whose names
    /// begin with one of `closed`, or match it. Of the first `max` of them, those that `text` is a part of, by name or
    /// title.
    ///
    /// Feeds that are not returned cost nothing.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    pub fn names(
        &self,
        log: &dyn Series,
        after: Option<&FeedName>,
        closed: &[FeedPattern],
        max: usize,
        text: &str,
    ) -> Result<Names, LogError> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.as_str()));
        self.with_feeds(log, |feeds| {
            let open = feeds.open.range::<str, _>((from, Bound::Unbounded));
            // No name behind the first `max` of each set can be among the first `max` of all.
            let mut names: BTreeMap<&FeedName, &Title> = open.take(max).collect();
            for pattern in closed {
                let beginning = pattern.beginning();
                let from = match after {
                    Some(after) if after.as_str() >= beginning => from,
                    _ => Bound::Included(beginning),
                };
                let found = feeds.closed.range::<str, _>((from, Bound::Unbounded));
                let found = found.take_while(|(name, _)| name.as_str().starts_with(beginning));
                names.extend(found.filter(|(name, _)| pattern.matches(name)).take(max));
            }
            let mut end = None;
            let mut matching = vec![];
            for (name, title) in names.into_iter().take(max) {
                end = Some(name);
                if text.is_empty() || name.as_str().contains(text) || title.0.contains(text) {
                    matching.push(name.clone());
                }
            }
            Names {
                matching,
                end: end.cloned(),
            }
        })
    }

    /// Returns the open feeds whose names are next to a text that may be a name with a mistake. Never reads the log.
    pub fn near(&self, text: &str) -> Vec<FeedName> {
        let Known::All(feeds) = &*self.known.lock() else {
            return vec![];
        };
        let beginning: String = text.chars().take(NEAR_CHARS).collect();
        let is_near = |name: &&FeedName| name.as_str().starts_with(&beginning);
        let before = feeds
            .open
            .range::<str, _>((Bound::Unbounded, Bound::Excluded(text)));
        let behind = feeds
            .open
            .range::<str, _>((Bound::Included(text), Bound::Unbounded));
        let before = before
            .rev()
            .map(|(name, _)| name)
            .take_while(is_near)
            .take(NEAR_MAX);
        let behind = behind
            .map(|(name, _)| name)
            .take_while(is_near)
            .take(NEAR_MAX);
        let mut near: Vec<FeedName> = before.chain(behind).cloned().collect();
        near.sort();
        near
    }

    /// Returns whether a feed is open.
    ///
    /// # Errors
    ///
    /// See [`LogError`].
    pub fn has(&self, log: &dyn Series, feed: FeedKey) -> Result<bool, LogError> {
        self.with_feeds(log, |feeds| feeds.keys.contains(&feed))
    }

    fn with_feeds<T>(
        &self,
        log: &dyn Series,
        look: impl FnOnce(&Feeds) -> T,
    ) -> Result<T, LogError> {
        if let Known::All(feeds) = &*self.known.lock() {
            return Ok(look(feeds));
        }
        let _reading = self.reading.lock();
        let mut known = self.known.lock();
        // Another thread may have read the log while this one waited.
        if !matches!(*known, Known::All(_)) {
            *known = Known::Reading(vec![]);
            // Unlocked while the log is read: the writer takes this lock for each commit.
            drop(known);
            let read = read(log);
            known = self.known.lock();
            // Taken before an error returns, so the next caller begins again.
            let meanwhile = std::mem::take(&mut *known);
            let mut feeds = read?;
            if let Known::Reading(changes) = meanwhile {
                for (feed, settings) in changes {
                    feeds.take(feed, &settings);
                }
            }
            *known = Known::All(feeds);
        }
        match &*known {
            Known::All(feeds) => Ok(look(feeds)),
            Known::Nothing | Known::Reading(_) => unreachable!("it was read just now"),
        }
    }
}

fn read(log: &dyn Series) -> Result<Feeds, LogError> {
    let mut feeds = Feeds::default();
    let mut after: Option<FeedName> = None;
    loop {
        let found = log.feeds(after.as_ref(), CATALOGUE_FEEDS_MAX)?;
        let Some((last, _)) = found.last() else {
            return Ok(feeds);
        };
        after = Some(last.clone());
        for (_, head) in &found {
            feeds.take(head.feed, &settings_of(log, head.feed, head.revision)?);
        }
    }
}

#[cfg(test)]
mod tests {

    use simplefeed_core::{
        feed::{CommitNumber, DocumentNumber, FeedId, Position, Revision},
        settings::{Choices, Defaults},
        timestamp::Timestamp,
    };

    use super::*;
    use crate::log::{Commits as _, memory::MemoryLog};

    fn feed() -> FeedKey {
        FeedId::parse("urn:f").unwrap().key()
    }

    /// A commit that makes a feed, or opens it.
    fn commit(number: u64, closed: bool) -> Commit {
        let settings = Settings {
            name: FeedName::parse("f").unwrap(),
            id: FeedId::parse("urn:f").unwrap(),
            choices: std::sync::Arc::new(Choices {
                closed: Some(closed),
                ..Choices::default()
            }),
            defaults: Defaults::new("http://h/").into(),
            sup_id: None,
            was_closed: false,
            timeline: None,
        };
        let mut changes = vec![Change::Settings {
            feed: feed(),
            revision: Revision(number.try_into().unwrap()),
            settings,
        }];
        if number == 1 {
            changes.push(Change::Opened {
                feed: feed(),
                document: DocumentNumber::OLDEST,
                first: Position(0),
                revision: Revision(1),
            });
        }
        Commit {
            number: CommitNumber(number),
            instant: Timestamp::from_micros(i64::try_from(number).unwrap()),
            changes,
        }
    }

    fn names(open: &OpenFeeds, log: &MemoryLog) -> usize {
        open.names(log, None, &[], 10, "").unwrap().matching.len()
    }

    /// A closed feed is never listed, whether the log is read before, between or after the commits.
    #[test]
    fn what_is_open_follows_the_commits() {
        for asked in 0..3 {
            let (log, open) = (MemoryLog::default(), OpenFeeds::default());
            for (number, closed) in [(1, true), (2, false)] {
                if asked < number {
                    assert_eq!(names(&open, &log), 0);
                    assert!(!open.has(&log, feed()).unwrap());
                }
                let commit = commit(number, closed);
                log.append(&commit).unwrap();
                open.committed(&commit);
            }
            assert_eq!(names(&open, &log), 1);
            let all = FeedPattern::parse("*").unwrap();
            assert_eq!(
                open.names(&log, None, &[all], 10, "")
                    .unwrap()
                    .matching
                    .len(),
                1
            );
            assert!(open.has(&log, feed()).unwrap());
        }
    }
}
