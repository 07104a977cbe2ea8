//! Updates of timelines, as far back as a document reaches.
//!
//! Pure. There is no archive of them: one entry of a popular feed is an update of each of its followers, and would be so
//! many pairs on the disk. Whoever was away for longer polls each timeline once.

use std::collections::HashMap;

use simplefeed_core::{feed::FeedKey, limits::SUP_OVERLAP_SECONDS};

use super::windows::{Current, Told, updates_of};
use crate::{log::Concerned, resource::Visibility};

/// Seconds between two looks for updates that no document needs.
const THINNING_SECONDS: i64 = 60;

/// The last updates of timelines.
#[derive(Debug)]
pub(super) struct Recent {
    public: HashMap<FeedKey, Told>,
    private: HashMap<FeedKey, Told>,
    /// First second of which every update is known.
    since: i64,
    /// Longest period that is offered, in seconds.
    longest: i64,
    /// Second of the last look for old updates.
    thinned: i64,
}

impl Recent {
    /// Begins with the commits of second `since`; `longest` is the longest period offered, in seconds.
    pub(super) fn new(since: i64, longest: u32) -> Self {
        Self {
            public: HashMap::new(),
            private: HashMap::new(),
            since,
            longest: i64::from(longest),
            thinned: since,
        }
    }

    /// Takes note of the timelines that a commit in `second` concerns. To do it again changes nothing.
    pub(super) fn take(&mut self, second: i64, timelines: &[Concerned]) {
        for concerned in timelines {
            let series = if concerned.is_closed {
                &mut self.private
            } else {
                &mut self.public
            };
            let told = Told::of(concerned.sup_id);
            series.entry(concerned.timeline).or_insert(told).add(second);
        }
        if second.saturating_sub(self.thinned) >= THINNING_SECONDS {
            self.thinned = second;
            let oldest = second - self.longest - SUP_OVERLAP_SECONDS - 1;
            for series in [&mut self.public, &mut self.private] {
                series.retain(|_, told| told.last() >= oldest);
                // The crowd of a popular feed does not come back every minute.
                if series.capacity() > 4 * series.len() {
                    series.shrink_to(2 * series.len());
                }
            }
        }
    }

    /// Returns the window that ends with second `until`, which is over, with the updates of a visibility, if any is
    /// given, in no order; `None` if nothing is known of that second.
    pub(super) fn current(
        &self,
        visibility: Option<Visibility>,
        period: u32,
        until: i64,
    ) -> Option<Current> {
        let begin = until - i64::from(period) - SUP_OVERLAP_SECONDS;
        let since = self.since.max(begin);
        (since <= until).then(|| Current {
            since,
            until,
            previous: None,
            updates: match visibility {
                Some(Visibility::Public) => updates_of(&self.public, since, until),
                Some(Visibility::Private) => updates_of(&self.private, since, until),
                None => vec![],
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use simplefeed_core::sup::SupId;
    use uuid::Uuid;

    use super::*;

    /// Timelines with these numbers, the odd ones closed.
    fn timelines(numbers: &[u128]) -> Vec<Concerned> {
        let all = numbers.iter().map(|number| {
            let timeline = FeedKey(Uuid::from_u128(*number));
            Concerned {
                timeline,
                sup_id: SupId::of_feed(timeline),
                is_closed: number % 2 == 1,
            }
        });
        all.collect()
    }

    /// Goal: a document has the last update of each timeline in its window, and none of the others; a second of which
    /// updates may be missing is in no document.
    #[test]
    fn a_document_has_what_its_window_has() {
        let mut recent = Recent::new(100, 60);
        for (second, numbers) in [
            (100, &[2, 4][..]),
            (101, &[2, 3]),
            (150, &[6]),
            (171, &[4, 3]),
            (171, &[8, 4]),
        ] {
            recent.take(second, &timelines(numbers));
        }
        let told = |visibility, period, until| {
            let current = recent.current(Some(visibility), period, until)?;
            let updates = current.updates.iter();
            let mut told: Vec<(u128, i64)> = updates
                .map(|(timeline, _, second)| (timeline.0.as_u128(), *second))
                .collect();
            told.sort_unstable();
            Some((current.since, told))
        };
        let public = Visibility::Public;
        assert_eq!(told(public, 60, 99), None);
        assert_eq!(told(public, 60, 100), Some((100, vec![(2, 100), (4, 100)])));
        let expected = vec![(2, 101), (4, 100), (6, 150)];
        assert_eq!(told(public, 60, 170), Some((100, expected)));
        let expected = vec![(4, 171), (6, 150), (8, 171)];
        assert_eq!(told(public, 60, 172), Some((102, expected)));
        let private = Visibility::Private;
        assert_eq!(told(private, 60, 171), Some((101, vec![(3, 171)])));
        assert_eq!(told(private, 5, 160), Some((145, vec![])));
        let of_nobody = recent.current(None, 60, 171).unwrap();
        assert_eq!((of_nobody.since, of_nobody.updates), (101, vec![]));
    }

    /// Goal: what no document needs takes no memory.
    #[test]
    fn old_updates_are_forgotten() {
        let mut recent = Recent::new(0, 60);
        let crowd: Vec<u128> = (0..5_000).map(|number| 2 * number).collect();
        recent.take(1, &timelines(&crowd));
        assert_eq!(recent.public.len(), 5_000);
        recent.take(200, &timelines(&[2]));
        assert_eq!(recent.public.len(), 1);
        assert!(recent.public.capacity() < 100);
    }
}
