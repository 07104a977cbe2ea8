//! Pages of a series: the entries next to a place.
//!
//! Pure, but for reads of the series.

use simplefeed_core::{
    entry::Entry,
    feed::{FeedKey, Position},
    limits::PAGE_BYTES_MAX,
    timeline::Place,
};

use super::{LogError, PlacedEntry, Series};

/// Number of entries that are read at a time: few, because each may be large.
const STEP: u64 = 16;
/// Maximum number of positions that are read at a time where entries were lost.
const LOST_STEP_MAX: u64 = 1_024;

/// A page being filled, up to a number of entries and a number of bytes.
#[derive(Debug)]
pub struct Filling {
    entries: Vec<PlacedEntry>,
    left: u64,
    bytes: usize,
}

impl Filling {
    /// Returns an empty page for so many entries.
    pub fn of(entries: u64) -> Self {
        Self {
            entries: vec![],
            left: entries,
            bytes: 0,
        }
    }

    /// Returns whether the page takes another entry.
    pub fn takes_more(&self) -> bool {
        self.left > 0 && self.bytes < PAGE_BYTES_MAX
    }

    /// Adds an entry, if the page takes more.
    pub fn add(&mut self, entry: PlacedEntry) {
        if self.takes_more() {
            self.left -= 1;
            self.bytes += entry.entry.fragment.len();
            self.entries.push(entry);
        }
    }

    /// Returns the entries in the order in which they came.
    pub fn finish(self) -> Vec<PlacedEntry> {
        self.entries
    }
}

/// Returns a page of a feed that has entries of its own.
pub(super) fn page_of<S: Series + ?Sized>(
    log: &S,
    feed: FeedKey,
    anchor: Option<Place>,
    limit: i64,
) -> Result<Vec<PlacedEntry>, LogError> {
    let end = log.feed(feed)?.map_or(Position(0), |head| head.next).0;
    let is_newer = limit < 0;
    let split = match anchor {
        Some(anchor) => {
            // The entry at the anchor itself is on neither page.
            let is_before = |place: Place| place < anchor || is_newer && place == anchor;
            split_at(log, feed, end, is_before)?
        }
        None => end,
    };
    let mut filling = Filling::of(limit.unsigned_abs());
    let (mut low, mut high) = if is_newer { (split, end) } else { (0, split) };
    while low < high && filling.takes_more() {
        let step = STEP.min(high - low);
        let range = if is_newer {
            low..low + step
        } else {
            high - step..high
        };
        let mut entries = log.entries(feed, Position(range.start)..Position(range.end))?;
        if is_newer {
            low = range.end;
        } else {
            high = range.start;
            entries.reverse();
        }
        for entry in entries {
            let place = Place::of_entry(entry.instant);
            filling.add(PlacedEntry { place, entry });
        }
    }
    let mut page = filling.finish();
    if is_newer {
        // Entries were read from the place on, so that the page has the entries closest to the
        // place. A page is newest first.
        page.reverse();
    }
    Ok(page)
}

/// Returns the position that divides the entries: only the entries before it satisfy `is_before`.
fn split_at<S: Series + ?Sized>(
    log: &S,
    feed: FeedKey,
    end: u64,
    is_before: impl Fn(Place) -> bool,
) -> Result<u64, LogError> {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low + (high - low) / 2;
        match first_in(log, feed, middle, high)? {
            Some(entry) if is_before(Place::of_entry(entry.instant)) => low = entry.at.0 + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// Returns the first entry of a range of positions. The positions of lost entries have no entry.
fn first_in<S: Series + ?Sized>(
    log: &S,
    feed: FeedKey,
    mut from: u64,
    end: u64,
) -> Result<Option<Entry>, LogError> {
    // Mostly the first position has its entry. The step grows, because very many entries may be
    // lost.
    let mut step = 1;
    while from < end {
        let to = from.saturating_add(step).min(end);
        let found = log.entries(feed, Position(from)..Position(to))?;
        if let Some(entry) = found.into_iter().next() {
            return Ok(Some(entry));
        }
        from = to;
        step = (step * 2).min(LOST_STEP_MAX);
    }
    Ok(None)
}
