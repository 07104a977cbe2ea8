//! Which feeds changed when: the view behind SUP documents.
//!
//! Pure. It keeps each feed's last update, as far back as anybody is told, and cuts what happened into
//! *windows* that are archived. A window ends with a second, so that the end of every document is one:
//! after the second in which it has [`SUP_ARCHIVE_FEEDS`] feeds, or before a commit that is
//! [`SUP_ARCHIVE_SECONDS`] after its first update, whichever comes first. The next one begins at that second.
//! That follows from commits alone, so that the archived documents come out the same on any machine.
//!
//! There are two series: of the feeds that everybody may see, and of those that are closed or were, of
//! which each reader is told apart.

use std::collections::HashMap;

use simplefeed_core::{
    commit::{Commit, Outline},
    feed::{CommitNumber, Epoch, FeedKey, Numbered},
    limits::{SUP_ARCHIVE_FEEDS, SUP_ARCHIVE_SECONDS, SUP_OVERLAP_SECONDS},
    sup::{Heading, SUP, SUP_APART, SupId, last_digit},
};

use super::View;
use crate::log::{LogError, Series, settings_of};

/// What is told of which feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Circle {
    /// Those that everybody may see.
    Public,
    /// Those that are closed, or were.
    Apart,
}

impl Circle {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Public, Self::Apart];

    /// Returns the name of its documents and of their folder.
    pub fn name(self) -> &'static str {
        match self {
            Self::Public => SUP,
            Self::Apart => SUP_APART,
        }
    }
}

/// An update as it is told: the feed, what stands for it, and the second.
pub type Update = (FeedKey, SupId, i64);

/// A window that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its number, and the epoch in which it was cut.
    pub name: Numbered,
    /// The one before it.
    pub previous: Option<Numbered>,
    /// The second it begins with, which is the last one of the window before.
    pub since: i64,
    /// The second it ends with.
    pub until: i64,
    /// The last commit before its last second, which is told in the next window, too.
    pub commit: CommitNumber,
    /// The last update of each feed in it, by the last digit of its update id, time, and id.
    pub updates: Vec<Update>,
}

impl Window {
    /// Returns the archived document, of those updates that are told to somebody.
    pub fn document(&self, tells: impl Fn(FeedKey) -> bool) -> Vec<u8> {
        let told = self.updates.iter().filter(|(feed, ..)| tells(*feed));
        let updates: Vec<(SupId, i64)> = told.map(|(_, id, second)| (*id, *second)).collect();
        let previous = self.previous.map(file_name);
        let heading = Heading {
            updated: self.until,
            since: self.since,
            period: self.until - self.since,
            periods: &[],
            prev_archive: previous.as_deref(),
        };
        heading.document(&updates)
    }
}

/// Returns the last segment of the URL of an archived document.
pub fn file_name(window: Numbered) -> String {
    format!("{window}.json")
}

/// Where a series goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beginning {
    /// The window that was cut last, and its end.
    pub cut: Option<(Numbered, i64)>,
    /// The last commit before that second.
    pub commit: CommitNumber,
    /// A later one up to which nothing happened behind that second, if that is known.
    pub idle: Option<CommitNumber>,
}

impl Beginning {
    fn begins_after(&self) -> CommitNumber {
        self.idle.unwrap_or(self.commit).max(self.commit)
    }
}

/// A feed's last update.
#[derive(Clone, Copy, Debug)]
struct Told {
    id: SupId,
    last: i64,
    /// The second of the one before, in an earlier second: the last one may lie behind the end of what is
    /// told.
    before: i64,
}

/// What is told of one circle's feeds.
#[derive(Debug)]
struct WindowSeries {
    feeds: HashMap<FeedKey, Told>,
    begins_after: CommitNumber,
    /// The window that was cut last, and its end.
    cut: Option<(Numbered, i64)>,
    /// The first second of the window that is open.
    first: Option<i64>,
    /// The feeds in it.
    count: usize,
    /// The second of the newest update.
    newest: i64,
    /// The last commit before the first one of that second.
    before_newest: CommitNumber,
    /// The second before the first update there ever was, as long as nothing was cut.
    began: Option<i64>,
    /// The end of the newest window whose document is durable.
    durable: Option<(Numbered, i64)>,
    epoch: Epoch,
}

impl WindowSeries {
    fn new(beginning: Beginning) -> Self {
        Self {
            feeds: HashMap::new(),
            begins_after: beginning.begins_after(),
            cut: beginning.cut,
            first: None,
            count: 0,
            newest: beginning.cut.map_or(i64::MIN, |(_, until)| until),
            before_newest: beginning.commit,
            began: None,
            durable: beginning.cut,
            epoch: beginning.cut.map(|(cut, _)| cut.epoch).unwrap_or_default(),
        }
    }

    /// Returns the open window if a commit in `second` is not in it any more.
    fn cut_before(&mut self, second: i64) -> Option<Window> {
        let first = self.first.filter(|_| second > self.newest)?;
        let is_full = self.count >= SUP_ARCHIVE_FEEDS || second >= first + SUP_ARCHIVE_SECONDS;
        let begins = self.cut.map(|(_, until)| until).or(self.began);
        let since = begins.filter(|_| is_full)?;
        let name = Numbered {
            number: self.cut.map_or(1, |(cut, _)| cut.number + 1),
            epoch: self.epoch,
        };
        let window = Window {
            name,
            previous: self.cut.map(|(cut, _)| cut),
            since,
            until: self.newest,
            commit: self.before_newest,
            updates: self.updates(since, self.newest),
        };
        self.cut = Some((name, self.newest));
        (self.first, self.count) = (None, 0);
        Some(window)
    }

    fn add(&mut self, feed: FeedKey, id: SupId, second: i64, commit: CommitNumber) {
        let end = self.cut.map_or(i64::MIN, |(_, until)| until);
        let told = self.feeds.entry(feed).or_insert(Told {
            id,
            last: i64::MIN,
            before: i64::MIN,
        });
        // What is of the last second of the window before is told in both.
        if second > end {
            if self.cut.is_none() {
                self.began.get_or_insert(second - 1);
            }
            self.count += usize::from(told.last <= end);
            self.first.get_or_insert(second);
        }
        if told.last < second {
            (told.before, told.last) = (told.last, second);
        }
        if second > self.newest {
            self.newest = second;
            self.before_newest = CommitNumber(commit.0 - 1);
        }
    }

    /// Forgets what nobody is told any more.
    fn thin_out(&mut self, longest: i64) {
        let Some((_, durable)) = self.durable else {
            return;
        };
        let oldest = durable.min(self.newest - longest - SUP_OVERLAP_SECONDS - 1);
        self.feeds.retain(|_, told| told.last >= oldest);
    }

    /// Returns the last update of each feed from second `since` to `until`. The order is a promise, because
    /// archived windows are final; it was chosen because it compresses.
    fn updates(&self, since: i64, until: i64) -> Vec<Update> {
        let updates = self.feeds.iter().filter_map(|(feed, told)| {
            let second = if told.last <= until {
                told.last
            } else {
                told.before
            };
            (since..=until)
                .contains(&second)
                .then_some((*feed, told.id, second))
        });
        let mut updates: Vec<Update> = updates.collect();
        updates
            .sort_unstable_by_key(|(feed, id, second)| (last_digit(*second), *second, *id, feed.0));
        updates
    }
}

/// A window that is told now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// Its first second.
    pub since: i64,
    /// Its last.
    pub until: i64,
    /// The archived document that ends where it begins, or later.
    pub previous: Option<Numbered>,
    /// The last update of each feed in it, by the last digit of its update id, time, and id.
    pub updates: Vec<Update>,
}

/// The view.
#[derive(Debug)]
pub struct SupWindows {
    public: WindowSeries,
    apart: WindowSeries,
    /// The longest period that is offered, in seconds.
    longest: i64,
    applied: CommitNumber,
    /// The second of the newest commit.
    newest: i64,
}

impl SupWindows {
    /// Begins behind windows that were cut before; `longest` is the longest period offered, in seconds.
    pub fn new(public: Beginning, apart: Beginning, longest: u32) -> Self {
        Self {
            applied: public.begins_after().min(apart.begins_after()),
            public: WindowSeries::new(public),
            apart: WindowSeries::new(apart),
            longest: i64::from(longest),
            newest: i64::MIN,
        }
    }

    /// Returns the last commit that was taken into account.
    pub fn applied(&self) -> CommitNumber {
        self.applied
    }

    /// Returns the second of that commit.
    pub fn newest(&self) -> i64 {
        self.newest
    }

    fn series(&self, circle: Circle) -> &WindowSeries {
        match circle {
            Circle::Public => &self.public,
            Circle::Apart => &self.apart,
        }
    }

    fn series_mut(&mut self, circle: Circle) -> &mut WindowSeries {
        match circle {
            Circle::Public => &mut self.public,
            Circle::Apart => &mut self.apart,
        }
    }

    /// Takes a commit of the last second of the window before into account, which a beginning passes over.
    /// Returns whether it was one.
    ///
    /// # Errors
    ///
    /// Returns what cannot be read from the log.
    pub fn recall(
        &mut self,
        circle: Circle,
        outline: &Outline,
        log: &dyn Series,
    ) -> Result<bool, LogError> {
        let second = outline.instant.second();
        if self
            .series(circle)
            .cut
            .is_none_or(|(_, until)| second > until)
        {
            return Ok(false);
        }
        for feed in &outline.feeds {
            if let Some((of, id)) = self.place_of(*feed, log)?
                && of == circle
            {
                let number = outline.number;
                self.series_mut(circle).add(*feed, id, second, number);
            }
        }
        Ok(true)
    }

    /// Returns, if nothing happened in a circle since its last cut, how many windows were cut: what was taken
    /// into account need not be again.
    pub fn idle_after(&self, circle: Circle) -> Option<u64> {
        let series = self.series(circle);
        let cut = series.cut.map_or(0, |(cut, _)| cut.number);
        series.first.is_none().then_some(cut)
    }

    /// Takes the news that the document of a window is durable: it may be linked to.
    pub fn archived(&mut self, circle: Circle, window: &Window) {
        self.series_mut(circle).durable = Some((window.name, window.until));
    }

    /// Returns what there is to tell at the end of second `until`, which is over and not before
    /// `newest() - 1`: at least `period` seconds and the overlap, and everything since the newest archived
    /// document.
    pub fn current(&self, circle: Circle, period: u32, until: i64) -> Current {
        let series = self.series(circle);
        let reaches = match series.durable {
            Some((_, end)) => Some(end),
            None => series.began,
        };
        let period = until - i64::from(period) - SUP_OVERLAP_SECONDS;
        let since = reaches.map_or(period, |end| period.min(end));
        Current {
            since,
            until,
            previous: series.durable.map(|(name, _)| name),
            updates: series.updates(since, until),
        }
    }

    /// Takes a commit into account. Returns the windows that are over.
    ///
    /// # Errors
    ///
    /// Returns what cannot be read from the log.
    pub fn take(
        &mut self,
        outline: &Outline,
        log: &dyn Series,
    ) -> Result<Vec<(Circle, Window)>, LogError> {
        let (number, second) = (outline.number, outline.instant.second());
        let mut told = vec![];
        if number > self.public.begins_after.min(self.apart.begins_after) {
            for feed in &outline.feeds {
                let place = self.place_of(*feed, log)?;
                told.extend(place.map(|(circle, id)| (circle, *feed, id)));
            }
        }
        let mut over = vec![];
        for circle in Circle::ALL {
            let longest = self.longest;
            let series = self.series_mut(circle);
            if number <= series.begins_after {
                continue;
            }
            series.epoch = series.epoch.max(outline.epoch.unwrap_or_default());
            if let Some(window) = series.cut_before(second) {
                series.thin_out(longest);
                over.push((circle, window));
            }
            for (_, feed, id) in told.iter().filter(|(of, ..)| *of == circle) {
                series.add(*feed, *id, second, number);
            }
        }
        self.applied = number;
        self.newest = second;
        Ok(over)
    }

    /// Returns where a feed is told, and what stands for it.
    fn place_of(
        &self,
        feed: FeedKey,
        log: &dyn Series,
    ) -> Result<Option<(Circle, SupId)>, LogError> {
        for circle in Circle::ALL {
            if let Some(told) = self.series(circle).feeds.get(&feed) {
                return Ok(Some((circle, told.id)));
            }
        }
        let Some(head) = log.feed(feed)? else {
            return Ok(None);
        };
        let settings = settings_of(log, feed, head.revision)?;
        let circle = if settings.is_told_apart() {
            Circle::Apart
        } else {
            Circle::Public
        };
        Ok(Some((circle, settings.sup_id())))
    }
}

impl View for SupWindows {
    const NAME: &'static str = "sup";
    type Effect = (Circle, Window);

    fn apply(&mut self, commit: &Commit, log: &dyn Series) -> Result<Vec<Self::Effect>, LogError> {
        self.take(&Outline::of(commit), log)
    }
}

#[cfg(test)]
mod tests;
