//! Windows of updates: which updates a SUP document has, and when a window ends.
//!
//! Pure, but for a line in the operator's log about damage. The last two updates of each feed are
//! kept, as far back as a document reaches, and the updates are cut into *windows* that are
//! archived. A window ends with a whole second, as every document does. It ends after the second in
//! which it has [`SUP_ARCHIVE_FEEDS`] feeds, or before a commit that is [`SUP_ARCHIVE_SECONDS`]
//! after the first update, whichever comes first. The next window begins with the last second of
//! the window before. Windows follow from commits alone, so the archived documents come out the
//! same on any machine.
//!
//! There are two series: feeds that everybody may see, and feeds that are or were closed, whose
//! documents are made for each reader.

use std::collections::HashMap;

use simplefeed_core::{
    commit::Outline,
    feed::{CommitNumber, Epoch, EpochNumber, FeedKey},
    limits::{SUP_ARCHIVE_FEEDS, SUP_ARCHIVE_SECONDS, SUP_OVERLAP_SECONDS},
    sup::{Heading, SUP, SUP_CLOSED, SUP_TIMELINES, SUP_TIMELINES_CLOSED, SupId, last_digit},
};
use simplefeed_log::{LogError, settings_of};
use simplefeed_resource::Visibility;
use tracing::error;

use crate::shown::ShownSeries;

/// Kind of feeds in a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SupSubject {
    /// Feeds with entries of their own.
    Feeds,
    /// Timelines, which show entries of other feeds.
    Timelines,
}

/// Returns the name of a current document, without its extension.
pub fn document_name(subject: SupSubject, visibility: Visibility) -> &'static str {
    match (subject, visibility) {
        (SupSubject::Feeds, _) => series_name(visibility),
        (SupSubject::Timelines, Visibility::Public) => SUP_TIMELINES,
        (SupSubject::Timelines, Visibility::Private) => SUP_TIMELINES_CLOSED,
    }
}

/// Returns the name of the series of a visibility. The current document has this name with an
/// extension, and the folder of the archived documents has this name.
///
/// The public series has the feeds that were never closed, in documents for everybody. The private
/// series has the feeds that are or were closed, in documents for each reader.
pub(crate) fn series_name(visibility: Visibility) -> &'static str {
    match visibility {
        Visibility::Public => SUP,
        Visibility::Private => SUP_CLOSED,
    }
}

/// Update of a feed: key, SUP-ID and second.
pub type Update = (FeedKey, SupId, i64);

/// Closed window of updates, to be archived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupWindow {
    /// Number of the window, and the epoch of the cut.
    pub name: EpochNumber,
    /// Name of the window before; `None` for the first window.
    pub previous: Option<EpochNumber>,
    /// First second, which is the last second of the window before.
    pub since: i64,
    /// Last second, which is also the first second of the next window.
    pub until: i64,
    /// Last commit before the last second. The next window repeats that second.
    pub commit: CommitNumber,
    /// Last update of each feed in the window, sorted by the last digit of the update id, by time,
    /// and by id.
    pub updates: Vec<Update>,
}

impl SupWindow {
    /// Returns the archived document, limited to the updates of feeds that `tells` allows.
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
pub fn file_name(window: EpochNumber) -> String {
    format!("{window}.json")
}

/// Point at which a series goes on after a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesStart {
    /// Window behind which the series goes on, and the last second of that window.
    pub cut: Option<(EpochNumber, i64)>,
    /// Last commit before that second.
    pub commit: CommitNumber,
    /// Later commit, if known, up to which there was no update after that second.
    pub idle: Option<CommitNumber>,
}

impl SeriesStart {
    fn begins_after(&self) -> CommitNumber {
        self.idle.unwrap_or(self.commit).max(self.commit)
    }
}

/// Last two updates of a feed.
#[derive(Clone, Copy, Debug)]
struct LastUpdates {
    id: SupId,
    seconds: Seconds,
}

/// Seconds of a feed's last two updates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seconds {
    last: i64,
    /// Second of the update before, for documents that end before the last update.
    before: i64,
}

impl Seconds {
    /// Seconds of a feed without updates.
    pub(super) const NONE: Self = Self {
        last: i64::MIN,
        before: i64::MIN,
    };

    /// Notes the second of an update, if that is later than the last second.
    pub(super) fn add(&mut self, second: i64) {
        if self.last < second {
            (self.before, self.last) = (self.last, second);
        }
    }

    /// Returns the last update from second `since` to `until`.
    pub(super) fn last_within(&self, since: i64, until: i64) -> Option<i64> {
        // The last update may lie behind `until`, and the update before within the window.
        let second = if self.last <= until {
            self.last
        } else {
            self.before
        };
        (since..=until).contains(&second).then_some(second)
    }
}

/// Sorts updates for a document. The order must never change, because archived windows are final.
/// Updates in this order compress well.
pub(super) fn sort_updates(updates: &mut [Update]) {
    updates.sort_unstable_by_key(|(feed, id, second)| (last_digit(*second), *second, *id, feed.0));
}

/// Returns the last update of each feed from second `since` to `until`, sorted.
fn updates_of(feeds: &HashMap<FeedKey, LastUpdates>, since: i64, until: i64) -> Vec<Update> {
    let updates = feeds.iter();
    let updates = updates.filter_map(|(feed, told)| {
        let second = told.seconds.last_within(since, until)?;
        Some((*feed, told.id, second))
    });
    let mut updates: Vec<Update> = updates.collect();
    sort_updates(&mut updates);
    updates
}

/// Updates of one series of feeds.
#[derive(Debug)]
struct WindowSeries {
    feeds: HashMap<FeedKey, LastUpdates>,
    begins_after: CommitNumber,
    /// Window that was cut last, and its last second.
    cut: Option<(EpochNumber, i64)>,
    /// Second of the open window's first update; `None` while the window has no update.
    first: Option<i64>,
    /// Number of feeds in the open window.
    count: usize,
    /// Second of the newest update.
    newest: i64,
    /// Last commit before the first commit of that second.
    before_newest: CommitNumber,
    /// Second before the first update ever, as long as no window was cut.
    began: Option<i64>,
    /// Newest window whose document is durable, and its last second.
    durable: Option<(EpochNumber, i64)>,
    epoch: Epoch,
}

impl WindowSeries {
    fn new(beginning: SeriesStart) -> Self {
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

    /// Closes the open window if a commit in `second` does so, and returns the window.
    fn cut_before(&mut self, second: i64) -> Option<SupWindow> {
        // A window ends with a whole second, so nothing is cut within a second.
        let first = self.first.filter(|_| second > self.newest)?;
        let is_full = self.count >= SUP_ARCHIVE_FEEDS || second >= first + SUP_ARCHIVE_SECONDS;
        // The first window begins with the second before the first update ever.
        let begins = self.cut.map(|(_, until)| until).or(self.began);
        let since = begins.filter(|_| is_full)?;
        let name = EpochNumber {
            number: self.cut.map_or(1, |(cut, _)| cut.number + 1),
            epoch: self.epoch,
        };
        let window = SupWindow {
            name,
            previous: self.cut.map(|(cut, _)| cut),
            since,
            until: self.newest,
            commit: self.before_newest,
            updates: updates_of(&self.feeds, since, self.newest),
        };
        self.cut = Some((name, self.newest));
        (self.first, self.count) = (None, 0);
        Some(window)
    }

    fn add_update(&mut self, feed: FeedKey, id: SupId, second: i64, commit: CommitNumber) {
        let end = self.cut.map_or(i64::MIN, |(_, until)| until);
        let seconds = Seconds::NONE;
        let told = self
            .feeds
            .entry(feed)
            .or_insert(LastUpdates { id, seconds });
        // Updates of a cut's last second belong to both windows, and do not open the next one.
        if second > end {
            if self.cut.is_none() {
                self.began.get_or_insert(second - 1);
            }
            // A feed counts once in a window, however often it changes.
            self.count += usize::from(told.seconds.last <= end);
            self.first.get_or_insert(second);
        }
        told.seconds.add(second);
        if second > self.newest {
            self.newest = second;
            // A start that goes on behind this commit reads the whole second again.
            self.before_newest = CommitNumber(commit.0 - 1);
        }
    }

    /// Forgets the updates that no document needs any more.
    fn thin_out(&mut self, longest: i64) {
        // As long as no window is durable, the first window still needs every update.
        let Some((_, durable)) = self.durable else {
            return;
        };
        // A document reaches back to the newest durable window or over the longest period,
        // whichever is older.
        let oldest = durable.min(self.newest - longest - SUP_OVERLAP_SECONDS - 1);
        self.feeds.retain(|_, told| told.seconds.last >= oldest);
    }
}

/// Window of a current document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// First second of the window, included.
    pub since: i64,
    /// Last second of the window, included.
    pub until: i64,
    /// Archived document that ends where this window begins, or later.
    pub previous: Option<EpochNumber>,
    /// Last update of each feed in the window, sorted by the last digit of the update id, by time,
    /// and by id.
    pub updates: Vec<Update>,
}

/// Updates of both series.
#[derive(Debug)]
pub struct SupWindows {
    public: WindowSeries,
    private: WindowSeries,
    /// Longest period that is offered, in seconds.
    longest: i64,
    applied: CommitNumber,
    /// Second of the newest commit that was applied.
    newest: i64,
}

impl SupWindows {
    /// Begins behind windows that were cut before; `longest` is the longest period offered, in
    /// seconds.
    pub fn new(public: SeriesStart, private: SeriesStart, longest: u32) -> Self {
        Self {
            // The series that is further behind decides, and the other series skips the commits
            // between.
            applied: public.begins_after().min(private.begins_after()),
            public: WindowSeries::new(public),
            private: WindowSeries::new(private),
            longest: i64::from(longest),
            newest: i64::MIN,
        }
    }

    /// Returns the last commit that was applied.
    pub fn applied(&self) -> CommitNumber {
        self.applied
    }

    /// Returns the second of the last commit that was applied.
    pub fn newest(&self) -> i64 {
        self.newest
    }

    fn series_of(&self, visibility: Visibility) -> &WindowSeries {
        match visibility {
            Visibility::Public => &self.public,
            Visibility::Private => &self.private,
        }
    }

    fn series_mut(&mut self, visibility: Visibility) -> &mut WindowSeries {
        match visibility {
            Visibility::Public => &mut self.public,
            Visibility::Private => &mut self.private,
        }
    }

    /// Applies a commit of the last second before a cut, which a start with an idle note skips.
    /// Returns false, and applies nothing, if the commit is later.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn recall(
        &mut self,
        visibility: Visibility,
        outline: &Outline,
        log: &dyn ShownSeries,
    ) -> Result<bool, LogError> {
        let second = outline.instant.second();
        if self
            .series_of(visibility)
            .cut
            .is_none_or(|(_, until)| second > until)
        {
            return Ok(false);
        }
        for feed in &outline.feeds() {
            if let Some((of, id)) = self.place_of(*feed, log)?
                && of == visibility
            {
                let number = outline.number;
                self.series_mut(visibility)
                    .add_update(*feed, id, second, number);
            }
        }
        Ok(true)
    }

    /// Returns the number of windows that were cut, if the series had no update since the last cut:
    /// commits up to here need not be read again.
    pub(crate) fn idle_after(&self, visibility: Visibility) -> Option<u64> {
        let series = self.series_of(visibility);
        let cut = series.cut.map_or(0, |(cut, _)| cut.number);
        series.first.is_none().then_some(cut)
    }

    /// Notes that the document of a window is durable, so that other documents may link to it.
    pub fn archived(&mut self, visibility: Visibility, window: &SupWindow) {
        self.series_mut(visibility).durable = Some((window.name, window.until));
    }

    /// Returns the window that ends with second `until`. This second must be over, and not before
    /// `newest() - 1`. The window covers at least `period` seconds and the overlap, and everything
    /// since the newest archived document.
    pub fn current(&self, visibility: Visibility, period: u32, until: i64) -> Current {
        let series = self.series_of(visibility);
        let reaches = match series.durable {
            Some((_, end)) => Some(end),
            None => series.began,
        };
        let period = until - i64::from(period) - SUP_OVERLAP_SECONDS;
        // The window never begins later than the archive ends, so no update falls between the two.
        let since = reaches.map_or(period, |end| period.min(end));
        Current {
            since,
            until,
            previous: series.durable.map(|(name, _)| name),
            updates: updates_of(&series.feeds, since, until),
        }
    }

    /// Applies a commit. Returns the windows that the commit closes.
    ///
    /// # Errors
    ///
    /// Returns why the log cannot be read.
    pub fn take(
        &mut self,
        outline: &Outline,
        log: &dyn ShownSeries,
    ) -> Result<Vec<(Visibility, SupWindow)>, LogError> {
        let (number, second) = (outline.number, outline.instant.second());
        let mut told = vec![];
        // If both series skip the commit, its feeds need not be looked up.
        if number > self.public.begins_after.min(self.private.begins_after) {
            for feed in &outline.feeds() {
                let place = self.place_of(*feed, log)?;
                told.extend(place.map(|(visibility, id)| (visibility, *feed, id)));
            }
        }
        let mut over = vec![];
        for visibility in Visibility::ALL {
            let longest = self.longest;
            let series = self.series_mut(visibility);
            if number <= series.begins_after {
                continue;
            }
            series.epoch = series.epoch.max(outline.epoch().unwrap_or_default());
            // The window is cut before this commit's own updates are added, which belong to the
            // next window.
            if let Some(window) = series.cut_before(second) {
                series.thin_out(longest);
                over.push((visibility, window));
            }
            for (_, feed, id) in told.iter().filter(|(of, ..)| *of == visibility) {
                series.add_update(*feed, *id, second, number);
            }
        }
        self.applied = number;
        self.newest = second;
        Ok(over)
    }

    /// Returns the series of a feed, and its SUP-ID.
    fn place_of(
        &self,
        feed: FeedKey,
        log: &dyn ShownSeries,
    ) -> Result<Option<(Visibility, SupId)>, LogError> {
        // A feed never changes to the other series, so the first lookup is good for ever.
        for visibility in Visibility::ALL {
            if let Some(told) = self.series_of(visibility).feeds.get(&feed) {
                return Ok(Some((visibility, told.id)));
            }
        }
        // Updates of timelines have documents of their own.
        if log.is_timeline(feed)? {
            return Ok(None);
        }
        let Some(head) = log.feed(feed)? else {
            return Ok(None);
        };
        let settings = match settings_of(log, feed, head.revision) {
            Ok(settings) => settings,
            // One feed's damage must not hold up the updates of the others.
            Err(error @ LogError::Damaged { .. }) => {
                error!(%error, "the updates of a feed are left out");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let visibility = if settings.is_or_was_closed() {
            Visibility::Private
        } else {
            Visibility::Public
        };
        Ok(Some((visibility, settings.sup_id())))
    }
}

#[cfg(test)]
mod tests;
