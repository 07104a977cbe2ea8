//! The section of a feed's page about entries over time.
//!
//! Shell: the view of rates.

use std::{collections::BTreeMap, sync::Arc};

use askama::Template;
use simplefeed_core::{rates::Unit, timestamp::Timestamp};
use simplefeed_views::{
    error::ViewError,
    rates::{RatesRead, RatesView},
};

use super::{
    logged_none,
    plot::{Plot, PlotWindow},
    render_page,
    section::{Section, SectionPage},
};

/// Shortest time of a plot of a whole history, in microseconds: an hour.
const LEAST_MICROS: i64 = 3_600_000_000;

#[derive(Template)]
#[template(path = "over_time.html")]
struct OverTime<'p> {
    name: &'p str,
    ui: &'p str,
    plot: Plot,
}

/// Section with the plot of a feed.
#[derive(Debug)]
pub(super) struct OverTimeSection(pub(super) Arc<RatesView>);

impl Section for OverTimeSection {
    fn html(&self, page: &SectionPage<'_>) -> Option<String> {
        // Entries of a timeline are counted in the feeds that the timeline follows.
        if page.is_timeline {
            return None;
        }
        let plot = logged_none(read_plot(&self.0, page))?;
        let section = OverTime {
            name: page.name.as_str(),
            ui: page.ui,
            plot,
        };
        // `render_page` logs a failure, and the page does without the section.
        render_page(&section).ok()
    }
}

/// Returns the plot of a feed in a window, or over the whole history. `None` while the entries are
/// being counted, or if the plot is to show the whole history and there are no entries.
fn read_plot(rates: &RatesView, page: &SectionPage<'_>) -> Result<Option<Plot>, ViewError> {
    let read = |unit: Unit, from: Timestamp, to: Timestamp| {
        let last = unit.number(Timestamp::from_micros(to.micros() - 1));
        rates.read(&[page.feed], unit, unit.number(from)..last + 1)
    };
    let window = match page.window {
        Some(window) => Some(window.clone()),
        None => whole_history(page.now, read)?,
    };
    let Some(window) = window else {
        return Ok(None);
    };
    // Any read tells from which instant on each unit is kept. That decides the unit of the bars.
    let Some(days) = read(Unit::Day, window.from, window.to)? else {
        return Ok(None);
    };
    let kept_from = |unit| days.kept_from(unit, page.now);
    let unit = window.unit(kept_from);
    let window = window.in_whole(unit);
    let found = read(unit, window.from, window.to)?;
    let rates = found.and_then(|found| found.feeds.into_iter().next());
    Ok(rates.map(|rates| Plot::of(&window, unit, &rates, kept_from)))
}

/// Returns the time from the first entry of a feed to now. `None` while the entries are being
/// counted, or if there are none.
fn whole_history(
    now: Timestamp,
    read: impl Fn(Unit, Timestamp, Timestamp) -> Result<Option<RatesRead>, ViewError>,
) -> Result<Option<PlotWindow>, ViewError> {
    let (mut from, mut to) = (Timestamp::MIN, Timestamp::MAX);
    // Shorter units are read, too, because a young feed may have begun within this day or this
    // hour.
    for unit in [Unit::Day, Unit::Hour, Unit::Minute] {
        let Some(found) = read(unit, from, to)? else {
            return Ok(None);
        };
        let is_kept = found.kept_from(unit, now).is_none_or(|kept| kept <= from);
        let first = found.feeds.first().and_then(BTreeMap::first_key_value);
        match first {
            Some((first, _)) if is_kept => from = unit.start(*first),
            None if unit == Unit::Day => return Ok(None),
            _ => break,
        }
        // The time ends behind the last entry, even if the clock was set back after that entry.
        let last = found.feeds.first().and_then(BTreeMap::last_key_value);
        let last = last.map_or(now, |(last, _)| unit.start(*last));
        to = last.max(now).plus_micros(1);
    }
    // A single bar would say nothing about the time around that bar.
    let hour_ago = Timestamp::from_micros(to.micros() - LEAST_MICROS);
    Ok(Some(PlotWindow::all(from.min(hour_ago), to)))
}
