//! Updates of timelines, as far back as a document reaches.
//!
//! Pure. Updates of timelines have no archive: one entry of a popular feed is an update of each
//! timeline that follows the feed, and each update would take a pair on the disk. A client that was
//! away for longer than a document reaches polls each timeline once.

use simplefeed_core::limits::SUP_OVERLAP_SECONDS;

use super::windows::Seconds;

/// The last updates of timelines.
#[derive(Debug)]
pub(super) struct RecentUpdates {
    /// Seconds of each timeline's last updates, by the numbers of the timelines. Nothing else is
    /// kept, because one entry may be an update of a million timelines, with 16 bytes for each.
    timelines: Vec<Seconds>,
    /// First second of which every update is known.
    since: i64,
}

/// Updates of timelines in a window, as two lists of the same length.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RecentWindow {
    /// First second of the window, included.
    pub(super) since: i64,
    /// Last second of the window, included.
    pub(super) until: i64,
    /// Numbers of the timelines with an update in the window, in ascending order.
    pub(super) timelines: Vec<u32>,
    /// Second of the last update of each timeline.
    pub(super) seconds: Vec<i64>,
}

impl RecentUpdates {
    /// Returns a list without updates, which knows every update from second `since` on.
    pub(super) fn new(since: i64) -> Self {
        let timelines = vec![];
        Self { timelines, since }
    }

    /// Adds an update of a timeline. A repeat changes nothing.
    pub(super) fn add(&mut self, second: i64, timeline: u32) {
        let number = usize::try_from(timeline).unwrap_or(usize::MAX);
        if self.timelines.len() <= number {
            // Numbers of timelines have no holes, so the list has one element for each at most.
            self.timelines.resize(number + 1, Seconds::NONE);
        }
        if let Some(seconds) = self.timelines.get_mut(number) {
            seconds.add(second);
        }
    }

    /// Returns the window that ends with second `until`, which must be over. Without `has_updates`,
    /// the window has no updates. Returns `None` if the list begins after that second.
    pub(super) fn window(
        &self,
        has_updates: bool,
        period: u32,
        until: i64,
    ) -> Option<RecentWindow> {
        let begin = until - i64::from(period) - SUP_OVERLAP_SECONDS;
        let since = self.since.max(begin);
        if since > until {
            return None;
        }
        let all = self.timelines.iter().filter(|_| has_updates).zip(0..);
        let within = all.filter_map(|(seconds, timeline)| {
            let second = seconds.last_within(since, until)?;
            Some((timeline, second))
        });
        let (timelines, seconds) = within.unzip();
        Some(RecentWindow {
            since,
            until,
            timelines,
            seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a document has the last update of each timeline in its window, and no other update; a
    /// second of which updates may be missing is in no document.
    #[test]
    fn a_document_has_what_its_window_has() {
        let mut recent = RecentUpdates::new(100);
        for (second, timelines) in [
            (100, &[2, 4][..]),
            (101, &[2, 3]),
            (150, &[6]),
            (171, &[4, 3]),
            (171, &[8, 4]),
        ] {
            for timeline in timelines {
                recent.add(second, *timeline);
            }
        }
        let told = |period, until| {
            let window = recent.window(true, period, until)?;
            let updates = window.timelines.into_iter().zip(window.seconds);
            Some((window.since, updates.collect::<Vec<_>>()))
        };
        assert_eq!(told(60, 99), None);
        assert_eq!(told(60, 100), Some((100, vec![(2, 100), (4, 100)])));
        let expected = vec![(2, 101), (3, 101), (4, 100), (6, 150)];
        assert_eq!(told(60, 170), Some((100, expected)));
        let expected = vec![(3, 171), (4, 171), (6, 150), (8, 171)];
        assert_eq!(told(60, 172), Some((102, expected)));
        assert_eq!(told(5, 160), Some((145, vec![(6, 150)])));
        assert_eq!(told(5, 169), Some((154, vec![])));
        let of_nobody = recent.window(false, 60, 171).unwrap();
        assert_eq!((of_nobody.since, of_nobody.timelines), (101, vec![]));
    }
}
