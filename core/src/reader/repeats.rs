//! Entries of one document with the same id: revisions of one entry.
//!
//! Pure. Plain feeds only: entries of a timeline may share an id, and their positions tell them
//! apart.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use super::Document;

impl Document {
    /// Returns the number of entries of a plain feed that are not the newest of their id.
    pub(super) fn count_repeats(&self) -> usize {
        if self.history.is_some() {
            return 0;
        }
        let mut ids = HashSet::with_capacity(self.entries.len());
        let mut is_repeat = |id| !ids.insert(id);
        let all = self.entries.iter().map(|slice| slice.id.as_str());
        all.filter(|id| is_repeat(*id)).count()
    }

    /// Leaves out all entries of a plain feed that are not the newest of their id. The newest entry
    /// is the one with the latest `updated`, and among equals the topmost (FH-13). Entries must be
    /// in their true order, the newest on top.
    ///
    /// # Examples
    ///
    /// ```
    /// use simplefeed_core::reader::Document;
    ///
    /// let entry = |day: u8| format!("<entry><id>urn:e</id><updated>2026-01-0{day}T00:00:00Z</updated></entry>");
    /// let body = format!("<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{}{}</feed>", entry(1), entry(2));
    /// let mut document = Document::read(body.into_bytes().into(), &"https://example.org/".parse()?)?;
    /// document.keep_newest_revisions();
    /// assert_eq!(document.len(), 1);
    /// let newest = simplefeed_core::timestamp::Timestamp::parse("2026-01-02T00:00:00Z");
    /// assert_eq!(document.updated_of(0), newest);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep_newest_revisions(&mut self) {
        self.order_revisions(false);
    }

    /// Puts revisions of one entry in the order of their dates, the newest on top. Only the topmost
    /// of several revisions with one date stays: a consumer's memory tells revisions apart by date
    /// alone. Unless `all` is set, only the newest revision stays. Entries must be in their true
    /// order.
    pub(crate) fn order_revisions(&mut self, all: bool) {
        if self.repeats == 0 {
            return;
        }
        let updated = |index: usize| self.entries.get(index).and_then(|slice| slice.updated);
        let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, slice) in self.entries.iter().enumerate() {
            places.entry(&slice.id).or_default().push(index);
        }
        let mut ordered: Vec<(usize, usize)> = Vec::with_capacity(self.entries.len());
        for places in places.into_values() {
            let mut revisions = places.clone();
            // The sort is stable: entries with equal dates keep their order.
            revisions.sort_by_key(|index| Reverse(updated(*index)));
            revisions.dedup_by_key(|index| updated(*index));
            if all {
                ordered.extend(places.into_iter().zip(revisions));
            } else {
                // The newest revision stays at its index, where the neighbours show the place in
                // time.
                ordered.extend(revisions.first().map(|newest| (*newest, *newest)));
            }
        }
        ordered.sort_unstable();
        let entry = |(_, index): (usize, usize)| self.entries.get(index).cloned();
        self.entries = ordered.into_iter().filter_map(entry).collect();
    }
}
