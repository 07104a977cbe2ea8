//! Files of the rates: tables of minutes, hours and days, and how tables of longer units are made
//! of shorter ones.
//!
//! Shell: files. When an hour is over, the minutes become a table, and their sum becomes a slot in
//! the table of the day. At the end of a day, the sum of the day becomes a slot in the table of the
//! month. A slot is set, not added to, so work that is done twice gives the same tables.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    iter::Peekable,
    path::{Path, PathBuf},
};

use simplefeed_core::{
    rates::{Unit, span_text},
    timestamp::Timestamp,
};
use simplefeed_log::{
    barrier::{sync_files, sync_folder},
    durable::create_folder,
};
use simplefeed_process::regular;

use super::table::{Making, RateTable, SlotCounts, TableRow, add};
use crate::{
    error::ViewError,
    files::{failed, temporary_of},
};

/// Units that have tables.
pub(super) const KEPT: [Unit; 3] = [Unit::Minute, Unit::Hour, Unit::Day];

/// Number of hours before the newest hour whose minutes are kept.
const MINUTES_HOURS: i64 = 24;
/// Number of days before the newest day whose hours are kept, which is a month.
const HOURS_DAYS: i64 = 31;

/// Returns the unit of the time that one table with counts by `unit` spans.
pub(super) fn span_of(unit: Unit) -> Unit {
    unit.longer().unwrap_or(Unit::Month)
}

/// Returns the number of the span of another unit in which a span begins.
pub(super) fn within(unit: Unit, number: i64, other: Unit) -> i64 {
    other.number(unit.start(number))
}

/// Returns the slot of a span in a table.
pub(super) fn slot(unit: Unit, number: i64) -> u8 {
    let span = span_of(unit);
    let first = within(span, within(unit, number, span), unit);
    u8::try_from(number - first).expect("a table has at most 60 slots")
}

/// Returns the oldest table that is kept, given the newest hour; `None` if all tables are kept.
pub(super) fn oldest_kept(unit: Unit, hour: i64) -> Option<i64> {
    match unit {
        Unit::Minute => Some(hour - MINUTES_HOURS),
        Unit::Hour => Some(within(Unit::Hour, hour, Unit::Day) - HOURS_DAYS),
        Unit::Day | Unit::Month => None,
    }
}

/// Numbers of the tables of each unit that exist.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Present([BTreeSet<i64>; 3]);

impl Present {
    /// Returns the tables of a unit.
    pub(super) fn of(&self, unit: Unit) -> &BTreeSet<i64> {
        match unit {
            Unit::Minute => &self.0[0],
            Unit::Hour => &self.0[1],
            Unit::Day | Unit::Month => &self.0[2],
        }
    }

    /// Leaves out the tables that are no longer kept once an hour has begun.
    pub(super) fn expire(&mut self, hour: i64) {
        for unit in KEPT {
            if let Some(oldest) = oldest_kept(unit, hour) {
                let spans = self.of_mut(unit);
                *spans = spans.split_off(&oldest);
            }
        }
    }

    pub(super) fn of_mut(&mut self, unit: Unit) -> &mut BTreeSet<i64> {
        match unit {
            Unit::Minute => &mut self.0[0],
            Unit::Hour => &mut self.0[1],
            Unit::Day | Unit::Month => &mut self.0[2],
        }
    }
}

/// Hour that is over, with the hour of the next entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Over {
    /// Number of the hour that is over, as of [`Unit::number`].
    pub(super) hour: i64,
    /// Hour of the next entry, which has begun.
    pub(super) next: i64,
    /// Number of runs of that hour.
    pub(super) runs: u32,
}

/// Tables that are written, but not in place.
#[derive(Debug, Default)]
pub(super) struct ReadyTables {
    tables: Vec<(Unit, i64)>,
    files: Vec<File>,
}

/// Folder of the tables.
#[derive(Clone, Debug)]
pub(super) struct RateFolder(PathBuf);

impl RateFolder {
    /// Returns the tables in a folder.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// Returns the folder of the tables and runs.
    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    fn unit_folder(&self, unit: Unit) -> PathBuf {
        self.0.join(format!("{unit}s"))
    }

    /// Returns the path of a table.
    pub(super) fn path(&self, unit: Unit, span: i64) -> PathBuf {
        self.unit_folder(unit).join(table_name(unit, span))
    }

    fn runs_folder(&self) -> PathBuf {
        self.0.join("runs")
    }

    /// Returns the path of a run. A run has some of the counts of an hour. Later counts of the hour
    /// are added to them.
    pub(super) fn run(&self, hour: i64, number: u32) -> PathBuf {
        let hour = table_name(Unit::Minute, hour);
        self.runs_folder().join(format!("{hour}.{number}"))
    }

    /// Opens a table.
    ///
    /// # Errors
    ///
    /// See [`RateTable::open`].
    pub(super) fn table(&self, unit: Unit, span: i64) -> Result<RateTable, ViewError> {
        RateTable::open(&self.path(unit, span), (unit, span))
    }

    /// Opens a run.
    ///
    /// # Errors
    ///
    /// See [`RateTable::open`].
    pub(super) fn open_run(&self, hour: i64, number: u32) -> Result<RateTable, ViewError> {
        RateTable::open(&self.run(hour, number), (Unit::Minute, hour))
    }

    /// Makes the folders.
    ///
    /// # Errors
    ///
    /// Returns why a folder cannot be made.
    pub(super) fn create(&self) -> Result<(), ViewError> {
        let folders = KEPT.map(|unit| self.unit_folder(unit));
        for folder in folders.iter().chain([&self.runs_folder()]) {
            create_folder(folder).map_err(failed("create", folder))?;
        }
        Ok(())
    }

    /// Deletes all tables and runs.
    ///
    /// # Errors
    ///
    /// Returns why a file cannot be deleted.
    #[expect(
        clippy::disallowed_methods,
        reason = "files of the view are made again from the log"
    )]
    pub(super) fn delete(&self) -> Result<(), ViewError> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("delete", &self.0)(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns which tables there are.
    ///
    /// # Errors
    ///
    /// Returns why a folder cannot be listed.
    pub(super) fn present(&self) -> Result<Present, ViewError> {
        let mut present = Present::default();
        for unit in KEPT {
            let folder = self.unit_folder(unit);
            let names = names_in(&folder).map_err(failed("list", &folder))?;
            let spans = names.iter().filter_map(|name| span_named(unit, name));
            *present.of_mut(unit) = spans.collect();
        }
        Ok(present)
    }

    /// Writes some counts of an hour as a run. Rows come in the order of their feeds.
    ///
    /// # Errors
    ///
    /// Returns why the run cannot be written.
    #[expect(clippy::disallowed_methods, reason = "the sync of the folder follows")]
    pub(super) fn write_run(
        &self,
        hour: i64,
        number: u32,
        rows: impl Iterator<Item = TableRow>,
    ) -> Result<(), ViewError> {
        let path = self.run(hour, number);
        let mut run = Making::new(temporary_of(&path), (Unit::Minute, hour))?;
        for (feed, counts) in rows {
            run.row(feed, &counts)?;
        }
        let file = run.finish()?;
        // The bytes are synced before the rename, so that a run that is there is whole.
        file.sync_data().map_err(failed("sync", &path))?;
        fs::rename(temporary_of(&path), &path).map_err(failed("write", &path))?;
        let folder = self.runs_folder();
        sync_folder(&folder).map_err(failed("sync", &folder))
    }

    /// Writes the tables that follow from the end of an hour: the minutes of the hour, the hours of
    /// the day, and the days of the month if the day is over. `rows` are the counts that no run
    /// has. The tables are durable on return, under temporary names.
    ///
    /// # Errors
    ///
    /// Returns why a table cannot be written, or why a run or an older table cannot be read.
    pub(super) fn end_hour(
        &self,
        over: Over,
        rows: impl Iterator<Item = TableRow> + 'static,
        present: &Present,
    ) -> Result<ReadyTables, ViewError> {
        let mut ready = ReadyTables::default();
        let mut minutes = self.begin_table(Unit::Minute, over.hour)?;
        let runs = (0..over.runs).map(|number| self.open_run(over.hour, number));
        let runs: Vec<RateTable> = runs.collect::<Result<_, _>>()?;
        let mut sources: Vec<RowIterator<'_>> = vec![boxed_rows(rows.map(Ok))];
        sources.extend(runs.iter().map(|run| boxed_rows(run.rows())));
        while let Some((feed, counts)) = next_of(&mut sources)? {
            minutes.row(feed, &counts)?;
        }
        ready.add_file(Unit::Minute, over.hour, minutes.finish()?);
        let day = within(Unit::Hour, over.hour, Unit::Day);
        self.fold_table((Unit::Minute, over.hour), Unit::Hour, present, &mut ready)?;
        // The next entry is of a later day, so this day gets no more counts.
        if within(Unit::Hour, over.next, Unit::Day) != day {
            self.fold_table((Unit::Hour, day), Unit::Day, present, &mut ready)?;
        }
        let folders = KEPT.map(|unit| regular::open_folder(self.unit_folder(unit)));
        let folders: Vec<File> = folders
            .into_iter()
            .collect::<io::Result<_>>()
            .map_err(failed("open", &self.0))?;
        let folders: Vec<&File> = folders.iter().collect();
        sync_files(&ready.files.iter().collect::<Vec<_>>(), &folders)
            .map_err(failed("sync files in", &self.0))?;
        Ok(ready)
    }

    fn begin_table(&self, unit: Unit, span: i64) -> Result<Making, ViewError> {
        Making::new(temporary_of(&self.path(unit, span)), (unit, span))
    }

    /// Writes the table of the longer unit `above` anew: its older counts, and in one slot the sums
    /// of a table that is ready.
    fn fold_table(
        &self,
        (unit, span): (Unit, i64),
        above: Unit,
        present: &Present,
        ready: &mut ReadyTables,
    ) -> Result<(), ViewError> {
        // A table spans one slot of the table above.
        let (slot, to) = (slot(above, span), within(above, span, span_of(above)));
        // Opened under the temporary name, because `put` has yet to rename the table.
        let lower = RateTable::open(&temporary_of(&self.path(unit, span)), (unit, span))?;
        let older = if present.of(above).contains(&to) {
            Some(self.table(above, to)?)
        } else {
            None
        };
        let mut table = self.begin_table(above, to)?;
        let older = older.iter().flat_map(RateTable::rows).map(|row| {
            let (feed, mut counts) = row?;
            // The slot is set and not added to, so an hour that is ended twice counts once.
            counts.retain(|(found, _)| *found != slot);
            Ok((feed, counts))
        });
        let sums = lower.rows().map(|row| {
            let (feed, counts) = row?;
            let sum = counts.iter().map(|(_, count)| count).sum();
            Ok((feed, vec![(slot, sum)]))
        });
        let mut sources = vec![boxed_rows(older), boxed_rows(sums)];
        while let Some((feed, counts)) = next_of(&mut sources)? {
            table.row(feed, &counts)?;
        }
        ready.add_file(above, to, table.finish()?);
        Ok(())
    }

    /// Puts tables in place. The names are durable on return.
    ///
    /// # Errors
    ///
    /// Returns why a table cannot be renamed.
    #[expect(clippy::disallowed_methods, reason = "the sync of the folders follows")]
    pub(super) fn put(&self, ready: &ReadyTables, present: &mut Present) -> Result<(), ViewError> {
        for &(unit, span) in &ready.tables {
            let path = self.path(unit, span);
            fs::rename(temporary_of(&path), &path).map_err(failed("write", &path))?;
            present.of_mut(unit).insert(span);
        }
        for unit in KEPT {
            let folder = self.unit_folder(unit);
            sync_folder(&folder).map_err(failed("sync", &folder))?;
        }
        Ok(())
    }

    /// Makes the names of all tables and runs durable.
    ///
    /// # Errors
    ///
    /// Returns why a folder cannot be synced.
    pub(super) fn sync(&self) -> Result<(), ViewError> {
        let folders = KEPT.map(|unit| self.unit_folder(unit));
        for folder in folders.iter().chain([&self.runs_folder()]) {
            sync_folder(folder).map_err(failed("sync", folder))?;
        }
        Ok(())
    }

    /// Deletes all tables that are not in `kept`.
    ///
    /// # Errors
    ///
    /// Returns why a table cannot be deleted.
    pub(super) fn keep_only(&self, kept: &Present) -> Result<(), ViewError> {
        let present = self.present()?;
        for unit in KEPT {
            for span in present.of(unit).difference(kept.of(unit)) {
                delete_file(&self.path(unit, *span))?;
            }
        }
        Ok(())
    }

    /// Deletes the runs of all hours but this one.
    ///
    /// # Errors
    ///
    /// Returns why a run cannot be deleted.
    pub(super) fn delete_runs_but(&self, hour: i64) -> Result<(), ViewError> {
        let folder = self.runs_folder();
        let ours = format!("{}.", table_name(Unit::Minute, hour));
        let names = names_in(&folder).map_err(failed("list", &folder))?;
        for name in names.iter().filter(|name| !name.starts_with(&ours)) {
            delete_file(&folder.join(name))?;
        }
        Ok(())
    }
}

impl ReadyTables {
    fn add_file(&mut self, unit: Unit, span: i64, file: File) {
        self.tables.push((unit, span));
        self.files.push(file);
    }

    /// Returns the number of tables.
    pub(super) fn count(&self) -> usize {
        self.tables.len()
    }
}

/// Rows in the order of their feeds.
type RowIterator<'r> = Peekable<Box<dyn Iterator<Item = Result<TableRow, ViewError>> + 'r>>;

fn boxed_rows<'r>(rows: impl Iterator<Item = Result<TableRow, ViewError>> + 'r) -> RowIterator<'r> {
    let rows: Box<dyn Iterator<Item = _> + 'r> = Box::new(rows);
    rows.peekable()
}

/// Returns the next feed of several lists that are in the order of feeds, with the counts in all
/// these lists.
fn next_of(sources: &mut [RowIterator<'_>]) -> Result<Option<TableRow>, ViewError> {
    let mut next = None;
    for source in &mut *sources {
        match source.peek() {
            Some(Ok((feed, _))) if next.is_none_or(|next| *feed < next) => next = Some(*feed),
            Some(Err(_)) => {
                // The error is taken out, because `peek` only lends it.
                let failed = source.next().and_then(Result::err);
                return failed.map_or(Ok(None), Err);
            }
            _ => {}
        }
    }
    let Some(feed) = next else { return Ok(None) };
    let mut all: SlotCounts = vec![];
    for source in sources {
        let ours =
            |row: &Result<TableRow, ViewError>| matches!(row, Ok((found, _)) if *found == feed);
        if let Some(Ok((_, counts))) = source.next_if(ours) {
            add(&mut all, &counts);
        }
    }
    Ok(Some((feed, all)))
}

/// Returns the name of a table: the hour, day or month that the table spans.
fn table_name(unit: Unit, span: i64) -> String {
    let start = span_text(span_of(unit).start(span));
    start[..name_length(unit)].into()
}

/// Number of characters in `2026-11-26T02`, `2026-11-26` and `2026-11`.
fn name_length(unit: Unit) -> usize {
    match unit {
        Unit::Minute => 13,
        Unit::Hour => 10,
        Unit::Day | Unit::Month => 7,
    }
}

fn span_named(unit: Unit, text: &str) -> Option<i64> {
    let rest = "0000-01-01T00:00:00Z".get(name_length(unit)..)?;
    let start = Timestamp::parse(&format!("{text}{rest}"))?;
    let span = span_of(unit).number(start);
    // Other texts may have the same instant, and are no names of tables.
    (table_name(unit, span) == text).then_some(span)
}

fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let listing = match fs::read_dir(folder) {
        // The folders are made with the first work, so a new server has no folders yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        listing => listing?,
    };
    let names = listing.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
    names.collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a table that comes back is not named, and removed again"
)]
fn delete_file(path: &Path) -> Result<(), ViewError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("delete", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_named_for_their_spans() {
        let instant = Timestamp::parse("2026-11-26T02:03:04Z").unwrap();
        for (unit, expected, in_it) in [
            (Unit::Minute, "2026-11-26T02", 3),
            (Unit::Hour, "2026-11-26", 2),
            (Unit::Day, "2026-11", 25),
        ] {
            let span = span_of(unit).number(instant);
            assert_eq!(table_name(unit, span), expected);
            assert_eq!(span_named(unit, expected), Some(span));
            assert_eq!(slot(unit, unit.number(instant)), in_it);
        }
        for other in ["2026-11-26T02.new", "2026-13", "2026-11-2", "", "0.1"] {
            assert_eq!(span_named(Unit::Minute, other), None, "{other}");
        }
    }
}
