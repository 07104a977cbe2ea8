//! Rows by name.
//!
//! Pure. A page of a large list reads a few long runs of pointers. A `BTreeMap` with an item for
//! each row would read about a hundred short nodes for that page, scattered in memory.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use super::CatalogueRow;

/// Maximum number of rows of a run. The insertion of a row into a run takes less than a
/// microsecond.
const RUN_MAX: usize = 512;

/// Rows, each under its name.
#[derive(Debug)]
pub(super) struct ByName {
    /// Runs of rows in the order of names. The key of a run is never behind the name of the run's
    /// first row. The first run has the empty name as key.
    runs: BTreeMap<Box<str>, Vec<Arc<CatalogueRow>>>,
}

impl Default for ByName {
    fn default() -> Self {
        Self {
            runs: BTreeMap::from([(Box::default(), vec![])]),
        }
    }
}

fn place_in(run: &[Arc<CatalogueRow>], name: &str) -> Result<usize, usize> {
    run.binary_search_by(|row| row.name.as_str().cmp(name))
}

fn up_to(name: &str) -> (Bound<&str>, Bound<&str>) {
    (Bound::Unbounded, Bound::Included(name))
}

impl ByName {
    /// Returns the row with a name.
    pub(super) fn get(&self, name: &str) -> Option<&Arc<CatalogueRow>> {
        let (_, run) = self.runs.range::<str, _>(up_to(name)).next_back()?;
        run.get(place_in(run, name).ok()?)
    }

    /// Inserts a row, and removes the row that has the same name.
    pub(super) fn insert(&mut self, row: Arc<CatalogueRow>) {
        let name = row.name.as_str();
        // The run under the empty name is never removed, so every name has a run.
        let Some((_, run)) = self.runs.range_mut::<str, _>(up_to(name)).next_back() else {
            return;
        };
        let at = match place_in(run, name) {
            Ok(at) => {
                run.remove(at);
                at
            }
            Err(at) => at,
        };
        run.insert(at, row);
        if run.len() > RUN_MAX {
            // A cut in the middle leaves room for many rows in both halves.
            let rest = run.split_off(RUN_MAX / 2);
            if let Some(first) = rest.first() {
                self.runs.insert(first.name.as_str().into(), rest);
            }
        }
    }

    /// Removes the row with a name.
    pub(super) fn remove(&mut self, name: &str) {
        let Some((key, run)) = self.runs.range_mut::<str, _>(up_to(name)).next_back() else {
            return;
        };
        let Ok(at) = place_in(run, name) else { return };
        run.remove(at);
        // The run under the empty name stays, because the names before all other keys belong there.
        if run.is_empty() && !key.is_empty() {
            let key = key.clone();
            self.runs.remove(&key);
        }
    }

    /// Returns the rows whose names come after a name, in the order of names. The row that has the
    /// name itself comes first, if `first` includes the name.
    pub(super) fn from<'r>(
        &'r self,
        first: Bound<&str>,
    ) -> impl Iterator<Item = &'r Arc<CatalogueRow>> + use<'r> {
        let (name, skips) = match first {
            Bound::Included(name) => (name, false),
            Bound::Excluded(name) => (name, true),
            Bound::Unbounded => ("", false),
        };
        let mut runs = self.runs.range::<str, _>(up_to(name));
        let run = runs.next_back().map(|(_, run)| run.as_slice());
        let run = run.unwrap_or_default();
        let begin = match place_in(run, name) {
            Ok(at) if skips => at + 1,
            Ok(at) | Err(at) => at,
        };
        let (_, rest) = run.split_at_checked(begin).unwrap_or_default();
        // The key of a run is never behind the names of the run's rows, so all these rows are
        // behind `name`.
        let behind = (Bound::Excluded(name), Bound::Unbounded);
        let behind = self.runs.range::<str, _>(behind);
        rest.iter().chain(behind.flat_map(|(_, run)| run))
    }

    /// Returns the rows before a name, the last one first.
    pub(super) fn before<'r>(
        &'r self,
        end: &str,
    ) -> impl Iterator<Item = &'r Arc<CatalogueRow>> + use<'r> {
        let runs = self.runs.range::<str, _>(up_to(end)).rev();
        let last = runs.clone().next().map(|(_, run)| run.as_slice());
        let last = last.unwrap_or_default();
        // A row with the name `end` is left out.
        let (Ok(at) | Err(at)) = place_in(last, end);
        let (rest, _) = last.split_at_checked(at).unwrap_or_default();
        let others = runs.skip(1).flat_map(|(_, run)| run.iter().rev());
        rest.iter().rev().chain(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::tests::row;

    /// Goal: the rows are those of a plain map, whatever is inserted and removed, over many runs.
    #[test]
    fn has_what_was_put_in() {
        let (mut rows, mut expected) = (ByName::default(), BTreeMap::new());
        let name = |number: u64| format!("n{}", number % 5_000);
        for step in 0..40_000_u64 {
            let name = name(step.wrapping_mul(2_654_435_761) >> 7);
            // The map grows at first, and is nearly empty in the end.
            if step % 3 != 0 && step < 20_000 {
                let row = Arc::new(row(&name));
                rows.insert(Arc::clone(&row));
                expected.insert(name, row);
            } else {
                rows.remove(&name);
                expected.remove(&name);
            }
            if step % 997 == 0 {
                check(&rows, &expected);
            }
            // There are enough rows for many runs.
            assert!(step != 19_999 || rows.runs.len() > 4);
        }
        check(&rows, &expected);
        assert!(expected.len() < 200);
        for number in 0..5_000 {
            rows.remove(&name(number));
        }
        assert_eq!(rows.runs.len(), 1, "no empty run stays");
        // Rows are inserted where runs were removed.
        expected.clear();
        for number in (0..5_000).rev() {
            let row = Arc::new(row(&name(number)));
            rows.insert(Arc::clone(&row));
            expected.insert(name(number), row);
        }
        check(&rows, &expected);
    }

    fn check(rows: &ByName, expected: &BTreeMap<String, Arc<CatalogueRow>>) {
        let all: Vec<&Arc<CatalogueRow>> = rows.from(Bound::Unbounded).collect();
        assert_eq!(all.len(), expected.len());
        assert!(rows.runs.values().all(|run| run.len() <= RUN_MAX));
        let same =
            |(one, other): (&&Arc<CatalogueRow>, &Arc<CatalogueRow>)| Arc::ptr_eq(one, other);
        assert!(all.iter().zip(expected.values()).all(same));
        for asked in ["a", "n", "n0", "n1234", "n2", "n25", "n4999", "z"] {
            let found = rows.get(asked).map(Arc::as_ptr);
            assert_eq!(found, expected.get(asked).map(Arc::as_ptr), "{asked}");
            for first in [Bound::Included(asked), Bound::Excluded(asked)] {
                let theirs = expected.range::<str, _>((first, Bound::Unbounded));
                let ours = rows.from(first).map(Arc::as_ptr);
                assert!(
                    ours.eq(theirs.map(|(_, row)| Arc::as_ptr(row))),
                    "{first:?}"
                );
            }
            let theirs = expected
                .range::<str, _>((Bound::Unbounded, Bound::Excluded(asked)))
                .rev();
            let ours = rows.before(asked).map(Arc::as_ptr);
            assert!(ours.eq(theirs.map(|(_, row)| Arc::as_ptr(row))), "{asked}");
        }
    }
}
