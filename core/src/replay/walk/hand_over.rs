//! Handing over a document's entries, and the next step of the walk.
//!
//! Pure.

use url::Url;

use super::{
    Bookmark, EntryRun, RunEntry, Walk, WalkError, WalkState, bookmark, count, hash_entries, lead,
};
use crate::{feed::Position, history::HistoryHash, reader::Document};

impl Walk {
    /// Hands over the entries newer than the `after` oldest, up to the pin, and decides the next
    /// step of the walk.
    pub(super) fn hand_over(
        &mut self,
        document: Document,
        url: &Url,
        after: usize,
    ) -> Result<EntryRun, WalkError> {
        self.handed_over += 1;
        if self.handed_over > self.documents_max {
            return Err(WalkError::TooMany {
                max: self.documents_max,
            });
        }
        let next = lead(&document, "next-archive", url);
        let looking = self.state == WalkState::Looking;
        // The recent document is the end of the feed by definition; any other document is the end
        // if no link leads to a newer one.
        let at_the_end = looking || next == Ok(None);
        let pinned = self.pin_index(&document, at_the_end);
        let complete = looking || next != Ok(None) || pinned.is_some();
        if !complete && self.again && self.pin_position().is_some() && document.history.is_some() {
            // The pin shows that newer entries exist, and no copy of this document leads to them.
            return Err(WalkError::Stale { url: url.clone() });
        }
        let turned = matches!(
            self.state,
            WalkState::Resuming { .. } | WalkState::Back { .. }
        );
        if turned {
            // From here on the way leads forward, over documents that the way back has visited.
            // Only a document that is met twice from here on shows a loop.
            self.forget_visited();
            self.visited.insert(url.clone());
        }
        let entries = self.pass_entries(&document, url, after, pinned);
        // The pin is checked before the next step: a walk with a changed history must not go on.
        self.check_pin(url)?;
        if looking || pinned.is_some() || self.pin_is_passed() {
            self.enter(WalkState::Done);
        } else if let Some(next) = next? {
            self.enter(WalkState::Forward { url: next });
        } else if !self.again {
            // This copy may be older than the look at the recent document, so the walk requests the
            // document again past all caches.
            self.enter(WalkState::Forward { url: url.clone() });
            self.again = true;
        } else {
            self.enter(WalkState::Done);
        }
        Ok(EntryRun {
            document,
            url: url.clone(),
            older: after,
            entries,
            memory: None,
        })
    }

    /// Passes the entries newer than the `after` oldest, up to the pin. Returns the entries to hand
    /// over.
    fn pass_entries(
        &mut self,
        document: &Document,
        url: &Url,
        after: usize,
        pinned: Option<usize>,
    ) -> Vec<RunEntry> {
        let pinned = pinned.unwrap_or(0);
        let newer = document.len().saturating_sub(after);
        // `next` is the position after the passed entries, so `next - 1` is the position of the
        // last passed entry.
        let mut place = document.history.map(|(first, before)| {
            (
                first.0 + count(after),
                before.map(|before| hash_entries(document, before, after)),
            )
        });
        // Without a bookmark, the newest skipped entry becomes the place.
        if after > 0 && self.last.is_none() {
            let place = place.map(|(next, history)| (Position(next - 1), history));
            self.last = bookmark(
                document,
                url,
                &RunEntry {
                    index: newer,
                    place,
                },
            );
        }
        let mut entries = Vec::with_capacity(newer);
        let mut passed = None;
        for index in (pinned..newer).rev() {
            let Some(entry) = document.entry(index) else {
                break;
            };
            // `next` stays one ahead of the entry; `RunEntry` carries the entry's own position.
            let extended = |history: Option<HistoryHash>| {
                history.map(|history| history.extend(entry.fragment))
            };
            place = place.map(|(next, history)| (next + 1, extended(history)));
            let place = place.map(|(next, history)| (Position(next - 1), history));
            let entry = RunEntry { index, place };
            if !self.still_seeking(document, index) {
                if self.begins_after.is_none() {
                    self.begins_after = Some(self.place_after(document, url, passed.as_ref()));
                }
                entries.push(entry);
            }
            passed = Some(entry);
        }
        if let Some(passed) = passed {
            self.last = bookmark(document, url, &passed);
        }
        entries
    }

    /// Returns the place after the entry `passed`; for `None`, the place after everything that the
    /// walk has passed in earlier documents.
    fn place_after(&self, document: &Document, url: &Url, passed: Option<&RunEntry>) -> Bookmark {
        passed
            .and_then(|passed| bookmark(document, url, passed))
            .or_else(|| self.last.clone())
            .unwrap_or_else(|| Bookmark {
                feed: document.feed.clone(),
                ..Bookmark::default()
            })
    }

    /// Compares the history hash at the pin with the hash that the recent document promised; in a
    /// timeline, compares the ids of the two entries.
    fn check_pin(&self, url: &Url) -> Result<(), WalkError> {
        let (Some(pin), Some(last)) = (&self.pin, &self.last) else {
            return Ok(());
        };
        // Two histories are comparable only at the pinned position itself.
        let Some((at, promised)) = pin.place.filter(|(at, _)| Some(*at) == last.position) else {
            return Ok(());
        };
        let is_same = match promised.zip(last.history) {
            Some((promised, reached)) => promised == reached,
            None => last.entry.as_ref() == Some(&pin.entry),
        };
        if is_same {
            return Ok(());
        }
        Err(WalkError::HistoryChanged {
            url: url.clone(),
            position: at,
        })
    }

    /// Whether an entry lies before the time to begin at. The first entry dated at or after that
    /// time ends the search for good.
    fn still_seeking(&mut self, document: &Document, index: usize) -> bool {
        let Some(time) = self.seeking else {
            return false;
        };
        let updated = document.updated_of(index);
        // An entry without a date does not end the search.
        if updated.is_some_and(|updated| updated >= time) {
            self.seeking = None;
        }
        self.seeking.is_some()
    }

    pub(super) fn pin_position(&self) -> Option<Position> {
        let (position, _) = self.pin.as_ref()?.place?;
        Some(position)
    }

    /// Returns the index of the pinned entry in a document: by position, or else by id. An id
    /// counts only where the feed ends, because a foreign feed may repeat an id.
    fn pin_index(&self, document: &Document, ends_here: bool) -> Option<usize> {
        let pin = self.pin.as_ref()?;
        match (pin.place, document.history) {
            (Some((position, _)), Some((first, _))) => {
                // Checked arithmetic: the pin can be older or newer than all entries of this
                // document.
                let offset = usize::try_from(position.0.checked_sub(first.0)?).ok()?;
                document.len().checked_sub(offset + 1)
            }
            _ if ends_here => document.find(&pin.entry),
            _ => None,
        }
    }

    fn pin_is_passed(&self) -> bool {
        let last = self.last.as_ref().and_then(|last| last.position);
        self.pin_position()
            .zip(last)
            .is_some_and(|(pin, last)| last >= pin)
    }
}
