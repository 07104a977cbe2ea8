//! Updates of timelines, as far back as a document reaches.
//!
//! Pure. There is no archive of them: one entry of a popular feed is an update of each of its followers, and would be so
//! many pairs on the disk. Whoever was away for longer polls each timeline once.

use simplefeed_core::{feed::FeedKey, limits::SUP_OVERLAP_SECONDS};

use super::windows::{Current, Told, Update};
use crate::{log::Concerned, resource::Visibility};

/// The last updates of timelines.
#[derive(Debug)]
pub(super) struct Recent {
    /// By their numbers. A list, because one entry may be an update of a million neighbours.
    timelines: Vec<Option<Timeline>>,
    /// First second of which every update is known.
    since: i64,
}

#[derive(Clone, Debug)]
struct Timeline {
    key: FeedKey,
    told: Told,
    is_closed: bool,
}

impl Recent {
    /// Begins with the commits of second `since`.
    pub(super) fn new(since: i64) -> Self {
        let timelines = vec![];
        Self { timelines, since }
    }

    /// Takes note of the timelines that a commit in `second` concerns. To do it again changes nothing.
    pub(super) fn take(&mut self, second: i64, timelines: &[Concerned]) {
        for concerned in timelines {
            let number = usize::try_from(concerned.number).unwrap_or(usize::MAX);
            if self.timelines.len() <= number {
                self.timelines.resize(number + 1, None);
            }
            if let Some(timeline) = self.timelines.get_mut(number) {
                let timeline = timeline.get_or_insert_with(|| Timeline {
                    key: concerned.timeline,
                    told: Told::of(concerned.sup_id),
                    is_closed: concerned.is_closed,
                });
                timeline.told.add(second);
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
            updates: visibility.map_or_else(Vec::new, |visibility| {
                self.updates(visibility == Visibility::Private, since, until)
            }),
        })
    }

    fn updates(&self, are_closed: bool, since: i64, until: i64) -> Vec<Update> {
        let timelines = self.timelines.iter().flatten();
        let updates = timelines.filter(|one| one.is_closed == are_closed);
        let updates = updates.filter_map(|one| one.told.update(one.key, since, until));
        updates.collect()
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
                number: u32::try_from(*number).unwrap(),
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
        let mut recent = Recent::new(100);
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
}
