//! Reading of rates: counts of some feeds, or of all, from tables and from memory.
//!
//! Shell: files.

use std::ops::Range;

use simplefeed_core::{feed::FeedKey, rates::Unit};

use super::{
    FeedRates,
    counting::{CountingState, Minutes},
    files::{RateFolder, span_of, within},
};
use crate::error::ViewError;

/// One read of rates.
pub(super) struct RatesReader<'r> {
    pub(super) files: &'r RateFolder,
    pub(super) state: &'r CountingState,
    pub(super) unit: Unit,
    pub(super) spans: Range<i64>,
    /// Feeds, and their counts so far.
    pub(super) found: Vec<(FeedKey, FeedRates)>,
}

impl RatesReader<'_> {
    /// Reads all counts of the feeds.
    ///
    /// # Errors
    ///
    /// Returns why a table cannot be read.
    pub(super) fn all(&mut self) -> Result<(), ViewError> {
        let Some(open) = self.state.open_hour() else {
            return Ok(());
        };
        match self.unit {
            Unit::Minute => self.add_tables(Unit::Minute, open)?,
            Unit::Hour => self.add_tables(Unit::Hour, open)?,
            Unit::Day | Unit::Month => {
                self.add_tables(Unit::Day, open)?;
                // The table of a month lacks the hours of a day that is not over.
                let day = within(Unit::Hour, open, Unit::Day);
                if self.state.present.of(Unit::Hour).contains(&day) {
                    self.add_table(Unit::Hour, day, open)?;
                }
            }
        }
        for (hour, runs, counted) in hours_in_memory(self.state) {
            self.add_hour(hour, runs, counted)?;
        }
        Ok(())
    }

    /// Adds the tables of a unit, up to `open`, the first hour that is not in tables.
    fn add_tables(&mut self, unit: Unit, open: i64) -> Result<(), ViewError> {
        let limit = within(Unit::Hour, open, unit);
        let span = span_of(unit);
        let first = span.number(self.unit.start(self.spans.start));
        let last = span.number(self.unit.start(self.spans.end));
        let last = last.min(within(unit, limit, span));
        if first > last {
            return Ok(());
        }
        for &table in self.state.present.of(unit).range(first..=last) {
            self.add_table(unit, table, limit)?;
        }
        Ok(())
    }

    /// Adds a table, up to span `limit` of the unit. A server that was killed may have left later
    /// counts in the table, which are in memory, too.
    fn add_table(&mut self, unit: Unit, span: i64, limit: i64) -> Result<(), ViewError> {
        let table = self.files.table(unit, span)?;
        let first = within(span_of(unit), span, unit);
        let (wanted, spans) = (self.unit, &self.spans);
        for (feed, found) in &mut self.found {
            for (slot, count) in table.find(*feed)? {
                let number = first + i64::from(slot);
                if number < limit {
                    add_count(found, spans, within(unit, number, wanted), count);
                }
            }
        }
        Ok(())
    }

    /// Adds an hour that is not in tables.
    fn add_hour(&mut self, hour: i64, runs: u32, counted: &Minutes) -> Result<(), ViewError> {
        let first = within(Unit::Hour, hour, Unit::Minute);
        let (wanted, spans) = (self.unit, &self.spans);
        let number = |minute: u8| within(Unit::Minute, first + i64::from(minute), wanted);
        for run in 0..runs {
            let table = self.files.open_run(hour, run)?;
            for (feed, found) in &mut self.found {
                for (minute, count) in table.find(*feed)? {
                    add_count(found, spans, number(minute), count);
                }
            }
        }
        for (feed, found) in &mut self.found {
            for minute in 0..60 {
                if let Some(count) = counted.get(&(*feed, minute)) {
                    add_count(found, spans, number(minute), (*count).into());
                }
            }
        }
        Ok(())
    }
}

/// Adds a count to a span, if the reader wants that span.
fn add_count(found: &mut FeedRates, spans: &Range<i64>, number: i64, count: u64) {
    if spans.contains(&number) {
        *found.entry(number).or_default() += count;
    }
}

/// Returns the hours that are not in tables, each with the number of its runs, and the counts that
/// are in no run.
fn hours_in_memory(state: &CountingState) -> impl Iterator<Item = (i64, u32, &Minutes)> {
    let ended = state.over.iter();
    let ended = ended.map(|(over, counted)| (over.hour, over.runs, counted));
    let current = state.hour.map(|hour| (hour, state.runs, &state.counted));
    ended.chain(current)
}

/// Calls `add` with each feed that has entries in a range of hours, the number of a minute, and the
/// number of entries. A feed may come several times. In an hour that has ended, the minute is the
/// hour's first.
///
/// # Errors
///
/// Returns why a table cannot be read.
pub(super) fn each_of(
    files: &RateFolder,
    state: &CountingState,
    hours: &Range<i64>,
    add: &mut dyn FnMut(FeedKey, i64, u64),
) -> Result<(), ViewError> {
    let open = state.open_hour().unwrap_or(i64::MIN);
    let day = |hour| within(Unit::Hour, hour, Unit::Day);
    let days = day(hours.start)..=day(hours.end);
    for &span in state.present.of(Unit::Hour).range(days) {
        let first = within(Unit::Day, span, Unit::Hour);
        for row in files.table(Unit::Hour, span)?.rows() {
            let (feed, counts) = row?;
            for (slot, count) in counts {
                let hour = first + i64::from(slot);
                // If a server was killed, tables may have counts from the open hour on, which are
                // in memory, too.
                if hours.contains(&hour) && hour < open {
                    add(feed, within(Unit::Hour, hour, Unit::Minute), count);
                }
            }
        }
    }
    for (hour, runs, counted) in hours_in_memory(state) {
        if !hours.contains(&hour) {
            continue;
        }
        let first = within(Unit::Hour, hour, Unit::Minute);
        for run in 0..runs {
            for row in files.open_run(hour, run)?.rows() {
                let (feed, counts) = row?;
                for (minute, count) in counts {
                    add(feed, first + i64::from(minute), count);
                }
            }
        }
        for ((feed, minute), count) in counted {
            add(*feed, first + i64::from(*minute), (*count).into());
        }
    }
    Ok(())
}
