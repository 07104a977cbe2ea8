//! Sets of timelines that take, or took, the entries of a feed.
//!
//! Pure. Most feeds have few followers, and some a million: a sorted list is smallest for few, a
//! bitmap for many.

use roaring::RoaringBitmap;

/// Maximum number of timelines in a list. A larger set is a bitmap.
const FEW_MAX: usize = 4_096;

/// Key of a timeline in the graph.
pub(super) type TimelineKey = u32;

/// A set of timelines.
#[derive(Clone, Debug)]
pub(super) enum Followers {
    /// Sorted keys of at most [`FEW_MAX`] timelines.
    Few(Vec<TimelineKey>),
    Many(Box<RoaringBitmap>),
}

impl Default for Followers {
    fn default() -> Self {
        Self::Few(vec![])
    }
}

impl Followers {
    /// Adds a timeline to the set, or removes the timeline from the set.
    pub(super) fn set(&mut self, timeline: TimelineKey, is_in: bool) {
        match self {
            // The opening of a snapshot adds timelines in ascending order.
            Self::Few(all)
                if is_in
                    && all.len() < FEW_MAX
                    && all.last().is_none_or(|last| *last < timeline) =>
            {
                all.push(timeline);
            }
            Self::Few(all) => match (all.binary_search(&timeline), is_in) {
                (Err(at), true) => {
                    all.insert(at, timeline);
                    if all.len() > FEW_MAX {
                        *self = Self::Many(Box::new(all.iter().copied().collect()));
                    }
                }
                (Ok(at), false) => drop(all.remove(at)),
                _ => {}
            },
            Self::Many(all) => {
                if is_in {
                    all.insert(timeline);
                } else {
                    all.remove(timeline);
                }
            }
        }
    }

    /// Returns whether a timeline is in the set.
    pub(super) fn has(&self, timeline: TimelineKey) -> bool {
        match self {
            Self::Few(all) => all.binary_search(&timeline).is_ok(),
            Self::Many(all) => all.contains(timeline),
        }
    }

    /// Returns the number of timelines.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Few(all) => u64::try_from(all.len()).unwrap_or(u64::MAX),
            Self::Many(all) => all.len(),
        }
    }

    /// Returns at most `max` timelines whose keys are `first` or larger, in the order of their
    /// keys.
    pub(super) fn from(&self, first: TimelineKey, max: usize) -> Vec<TimelineKey> {
        match self {
            Self::Few(all) => {
                let begin = all.partition_point(|timeline| *timeline < first);
                all.iter().skip(begin).take(max).copied().collect()
            }
            Self::Many(all) => all.range(first..).take(max).collect(),
        }
    }

    /// Returns timelines as `from` does, but leaves out those in the sets `without`. For a large
    /// set, whole bitmaps are compared and not single timelines.
    pub(super) fn outside(
        &self,
        without: [&Self; 2],
        first: TimelineKey,
        max: usize,
    ) -> Vec<TimelineKey> {
        match self {
            Self::Few(all) => {
                let begin = all.partition_point(|timeline| *timeline < first);
                let rest = all.iter().skip(begin).copied();
                rest.filter(|one| without.iter().all(|set| !set.has(*one)))
                    .take(max)
                    .collect()
            }
            Self::Many(all) if without.iter().all(|set| set.len() == 0) => {
                all.range(first..).take(max).collect()
            }
            Self::Many(all) => {
                let mut left = RoaringBitmap::clone(all);
                for set in without {
                    match set {
                        Self::Few(few) => left -= few.iter().copied().collect::<RoaringBitmap>(),
                        Self::Many(many) => left -= &**many,
                    }
                }
                left.range(first..).take(max).collect()
            }
        }
    }
}

impl PartialEq for Followers {
    fn eq(&self, other: &Self) -> bool {
        // A set that has shrunk keeps the form of a large set, so the contents are compared.
        self.len() == other.len() && self.from(0, usize::MAX) == other.from(0, usize::MAX)
    }
}

impl Eq for Followers {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Goal: the set has the timelines that were put in and not removed: as a list, as a bitmap,
    /// and as a bitmap that has shrunk.
    #[test]
    fn has_what_was_put_in() {
        let (mut set, mut expected) = (Followers::default(), BTreeSet::new());
        for step in 0..3 * u32::try_from(FEW_MAX).unwrap() {
            let timeline = step.wrapping_mul(2_654_435_761) % 20_000;
            let is_in = step % 5 != 0;
            set.set(timeline, is_in);
            if is_in {
                expected.insert(timeline);
            } else {
                expected.remove(&timeline);
            }
        }
        assert!(matches!(set, Followers::Many(_)));
        assert!((0..20_000).all(|one| set.has(one) == expected.contains(&one)));
        assert_eq!(set.len(), u64::try_from(expected.len()).unwrap());
        let found = set.from(0, usize::MAX);
        assert!(found.iter().eq(expected.iter()));
        let few: Vec<u32> = expected.range(777..).take(10).copied().collect();
        assert_eq!(set.from(777, 10), few);
        let (mut odd, mut third) = (Followers::default(), Followers::default());
        for one in &expected {
            odd.set(*one, one % 2 == 1);
            third.set(*one, one % 3 == 0 && *one < 1_000);
        }
        assert!(matches!(
            (&odd, &third),
            (Followers::Many(_), Followers::Few(_))
        ));
        let left = expected
            .range(777..)
            .filter(|one| *one % 2 == 0 && (*one % 3 != 0 || **one >= 1_000));
        let left: Vec<u32> = left.take(500).copied().collect();
        assert_eq!(set.outside([&odd, &third], 777, 500), left);
        let few_left = expected
            .range(..1_000)
            .filter(|one| *one % 3 == 0 && *one % 2 == 0);
        let few_left: Vec<u32> = few_left.copied().collect();
        assert_eq!(
            third.outside([&odd, &Followers::default()], 0, usize::MAX),
            few_left
        );
        for timeline in found.iter().skip(100) {
            set.set(*timeline, false);
        }
        let mut small = Followers::default();
        for timeline in found.iter().take(100) {
            small.set(*timeline, true);
        }
        assert_eq!(set, small);
    }
}
