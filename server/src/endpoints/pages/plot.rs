//! Plots of entries over time: a plot of a feed, where each bar leads to the entries of its time,
//! and a small plot for a row of the list of feeds.
//!
//! Pure. All bars of a plot are of one unit. A window of time has at most [`BARS_MAX`] bars, unless
//! the window is many years long.

use std::fmt::Write as _;

use simplefeed_core::{
    rates::{Unit, span_text},
    timestamp::Timestamp,
};
use simplefeed_views::rates::FeedRates;

/// Maximum number of bars in a plot, unless the bars are months.
pub(super) const BARS_MAX: i64 = 125;
/// Maximum number of months in a plot: a hundred years.
const MONTHS_MAX: i64 = 1_200;
/// Height of a plot, in units of the drawing.
const HEIGHT: u64 = 100;
/// Hours of a small plot.
pub(super) const SPARK_HOURS: i64 = 24;
/// Height of a small plot.
const SPARK_HEIGHT: u64 = 12;

/// Time that a plot shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlotWindow {
    /// Text of the window in a query: a span, or the first and the last span with two dots between
    /// them; empty for the whole history.
    pub(super) text: String,
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

impl PlotWindow {
    /// Returns the window that a query names, such as `2026-11`, or `2026-11-25T14..2026-11-26`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let ((from, _), (_, to)) = (parse_span(first)?, parse_span(last)?);
        let months = Unit::Month.number(to) - Unit::Month.number(from);
        let fits = from < to && months <= MONTHS_MAX;
        let text = text.into();
        fits.then_some(Self { text, from, to })
    }

    /// Returns the window, grown to whole spans of a unit if its beginning is within a span:
    /// shorter spans are not kept there.
    pub(super) fn in_whole(self, unit: Unit) -> Self {
        if self.text.is_empty() || unit.start(unit.number(self.from)) == self.from {
            return self;
        }
        // The end is not part of the window, so the last span is that of the microsecond before the
        // end.
        let last = unit.number(Timestamp::from_micros(self.to.micros() - 1));
        let first = unit.number(self.from);
        let (from, to) = (unit.start(first), unit.start(last + 1));
        let [begin, end] = [first, last].map(|number| span_name(unit, unit.start(number)));
        let text = if first == last {
            begin
        } else {
            format!("{begin}..{end}")
        };
        Self { text, from, to }
    }

    /// Returns the window of a whole history.
    pub(super) fn all(from: Timestamp, to: Timestamp) -> Self {
        let text = String::new();
        Self { text, from, to }
    }

    /// Returns the shortest unit that makes few enough bars, and that is kept from the beginning of
    /// the window on. `kept_from` returns the time from which on a unit is kept.
    pub(super) fn unit(&self, kept_from: impl Fn(Unit) -> Option<Timestamp>) -> Unit {
        let fits = |unit: &Unit| {
            let bars = unit.number(self.to) - unit.number(self.from);
            let is_kept = kept_from(*unit).is_none_or(|kept| kept <= self.from);
            bars < BARS_MAX && is_kept
        };
        // No unit fits a window of many years. Such a window has a bar for each month.
        Unit::ALL.into_iter().find(fits).unwrap_or(Unit::Month)
    }

    /// Returns the texts of longer windows around the beginning of this window, the longest first.
    pub(super) fn around(&self) -> Vec<String> {
        let first = self.text.split("..").next().unwrap_or_default();
        let is_one = first.len() == self.text.len();
        LENGTHS
            .into_iter()
            .filter(|length| *length < first.len() || !is_one && *length == first.len())
            .filter_map(|length| first.get(..length))
            .map(Into::into)
            .collect()
    }
}

/// Lengths of the text of a year, a month, a day, an hour and a minute.
const LENGTHS: [usize; 5] = [4, 7, 10, 13, 16];

/// Returns the beginning and the end of a span. The text of a span is the first part of an RFC 3339
/// date-time.
fn parse_span(text: &str) -> Option<(Timestamp, Timestamp)> {
    if !LENGTHS.contains(&text.len()) {
        return None;
    }
    // This rest completes the text to the first instant of the span.
    let rest = "0000-01-01T00:00:00Z".get(text.len()..)?;
    let from = Timestamp::parse(&format!("{text}{rest}"))?;
    let to = match text.len() {
        4 => Unit::Month.start(Unit::Month.number(from) + 12),
        7 => Unit::Month.start(Unit::Month.number(from) + 1),
        10 => Unit::Day.start(Unit::Day.number(from) + 1),
        13 => Unit::Hour.start(Unit::Hour.number(from) + 1),
        _ => Unit::Minute.start(Unit::Minute.number(from) + 1),
    };
    Some((from, to))
}

/// Returns the text of a span, which [`PlotWindow::parse`] reads.
fn span_name(unit: Unit, start: Timestamp) -> String {
    let length = match unit {
        Unit::Minute => 16,
        Unit::Hour => 13,
        Unit::Day => 10,
        Unit::Month => 7,
    };
    let mut text = span_text(start);
    text.truncate(length);
    text
}

/// Plot of the entries in a window of time: a bar for each span with entries.
#[derive(Debug)]
pub(super) struct Plot {
    /// Texts of longer windows around the plot's window.
    pub(super) around: Vec<String>,
    /// Text of the window.
    pub(super) window: String,
    /// Number of spans in the window, which is the width of the plot.
    pub(super) width: usize,
    pub(super) bars: Vec<Bar>,
    pub(super) unit: Unit,
    /// Entries of the highest bar.
    pub(super) most: u64,
    /// Entries of all bars together.
    pub(super) total: u64,
    /// Texts of the first, the middle and the last span.
    pub(super) labels: [String; 3],
}

/// Bar of a plot. A span without entries has no bar.
#[derive(Debug)]
pub(super) struct Bar {
    pub(super) x: usize,
    pub(super) y: u64,
    pub(super) height: u64,
    pub(super) count: u64,
    /// Text of the bar's span.
    pub(super) name: String,
    /// Instant to which the bar leads in the list of entries.
    pub(super) at: String,
    /// Window that the bar leads to: the bar's own span, if shorter units of that span are kept;
    /// else the window of the plot.
    pub(super) window: String,
}

impl Plot {
    /// Returns the plot of a window.
    pub(super) fn of(
        window: &PlotWindow,
        unit: Unit,
        rates: &FeedRates,
        kept_from: impl Fn(Unit) -> Option<Timestamp>,
    ) -> Self {
        let last = unit.number(Timestamp::from_micros(window.to.micros() - 1));
        let first = unit.number(window.from);
        let shown = || rates.range(first..=last);
        let most = shown().map(|(_, count)| *count).max().unwrap_or(0);
        let shorter = Unit::ALL.into_iter().rev().find(|other| *other < unit);
        let bars = shown().map(|(&number, &count)| {
            let start = unit.start(number);
            // Each bar has a least height, so that a bar of few entries is visible.
            let height = (count * HEIGHT / most.max(1)).max(2);
            let name = span_name(unit, start);
            let leads_in =
                shorter.is_some_and(|shorter| kept_from(shorter).is_none_or(|kept| kept <= start));
            Bar {
                x: usize::try_from(number - first).unwrap_or(0),
                y: HEIGHT - height,
                height,
                count,
                at: span_text(start),
                window: if leads_in {
                    name.clone()
                } else {
                    window.text.clone()
                },
                name,
            }
        });
        let label = |number| span_name(unit, unit.start(number)).replace('T', " ");
        Self {
            around: window.around(),
            window: window.text.clone(),
            width: usize::try_from(last - first + 1).unwrap_or(1),
            bars: bars.collect(),
            unit,
            most,
            total: shown().map(|(_, count)| *count).sum(),
            labels: [first, first.midpoint(last), last].map(label),
        }
    }
}

/// A small plot of the last hours.
#[derive(Debug)]
pub(super) struct Spark {
    /// Outline of the plot, as a path of SVG.
    pub(super) path: String,
    /// Entries of all these hours.
    pub(super) total: u64,
}

impl Spark {
    /// Returns the hours that a small plot has at `now`, by their numbers.
    pub(super) fn hours(now: Timestamp) -> std::ops::Range<i64> {
        let end = Unit::Hour.number(now) + 1;
        end - SPARK_HOURS..end
    }

    /// Returns the small plot of a feed; `None` if the feed got no entry in these hours.
    pub(super) fn of(rates: &FeedRates, hours: std::ops::Range<i64>) -> Option<Self> {
        let most = *rates.values().max()?;
        // The results of `write!` are ignored below, because writing to a string does not fail.
        let mut path = format!("M0 {SPARK_HEIGHT}");
        for hour in hours {
            let count = rates.get(&hour).copied().unwrap_or(0);
            // Each hour with entries has a least height, so that it is visible.
            let height = (count * SPARK_HEIGHT)
                .div_ceil(most.max(1))
                .max(u64::from(count > 0));
            let _never = write!(path, "V{}h1", SPARK_HEIGHT - height);
        }
        let _never = write!(path, "V{SPARK_HEIGHT}z");
        let total = rates.values().sum();
        Some(Self { path, total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[test]
    fn a_window_is_named_by_its_spans() {
        for (text, from, to) in [
            ("2026", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("2026-12", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("2026-11-26", "2026-11-26T00:00:00Z", "2026-11-27T00:00:00Z"),
            (
                "2026-11-26T23",
                "2026-11-26T23:00:00Z",
                "2026-11-27T00:00:00Z",
            ),
            (
                "2026-11-26T23:59..2026-12",
                "2026-11-26T23:59:00Z",
                "2027-01-01T00:00:00Z",
            ),
        ] {
            let window = PlotWindow::parse(text).unwrap();
            assert_eq!((window.from, window.to), (at(from), at(to)), "{text}");
        }
        for wrong in [
            "",
            "..",
            "26",
            "2026-13",
            "2026-12..2026-11",
            "2026-1é",
            "2026-11-26T2",
        ] {
            assert_eq!(PlotWindow::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn bars_are_few_and_of_a_unit_that_is_kept() {
        let kept = |unit| match unit {
            Unit::Minute => Some(at("2026-11-25T00:00:00Z")),
            Unit::Hour => Some(at("2026-10-25T00:00:00Z")),
            _ => None,
        };
        for (text, unit) in [
            ("2026-11-26T02", Unit::Minute),
            ("2026-11-24T02", Unit::Hour),
            ("2026-11-26", Unit::Hour),
            ("2026-10-01", Unit::Day),
            ("2026-11", Unit::Day),
            ("2026", Unit::Month),
            ("1930..2026", Unit::Month),
        ] {
            assert_eq!(PlotWindow::parse(text).unwrap().unit(kept), unit, "{text}");
        }
        assert_eq!(PlotWindow::parse("0001..9999"), None);
        // Of what is kept in days alone, the day is shown.
        for (text, shown) in [
            ("2025-01-15T03", "2025-01-15"),
            ("2025-01-15T03..2025-01-17T04", "2025-01-15..2025-01-17"),
            ("2025-01-15..2025-01-16", "2025-01-15..2025-01-16"),
        ] {
            let window = PlotWindow::parse(text).unwrap();
            let unit = window.unit(kept);
            let window = window.in_whole(unit);
            assert_eq!((unit, &*window.text), (Unit::Day, shown));
            assert_eq!(PlotWindow::parse(shown), Some(window));
        }
    }

    #[test]
    fn a_bar_leads_to_its_moment() {
        let window = PlotWindow::parse("2026-11").unwrap();
        let first = Unit::Day.number(window.from);
        let rates = [(first, 1_000), (first + 29, 1), (first + 30, 7)].into();
        let kept = |unit| (unit == Unit::Hour).then(|| at("2026-11-02T00:00:00Z"));
        let plot = Plot::of(&window, Unit::Day, &rates, kept);
        assert_eq!((plot.width, plot.total, plot.most), (30, 1_001, 1_000));
        let bar = |bar: &Bar| (bar.x, bar.y, bar.height, bar.window.clone());
        let bars: Vec<_> = plot.bars.iter().map(bar).collect();
        assert_eq!(
            bars,
            [
                (0, 0, 100, "2026-11".into()),
                (29, 98, 2, "2026-11-30".into())
            ]
        );
        assert_eq!(plot.bars[1].at, "2026-11-30T00:00:00Z");
        assert_eq!(plot.around, ["2026"]);
        assert_eq!(plot.labels, ["2026-11-01", "2026-11-15", "2026-11-30"]);
    }

    #[test]
    fn a_small_plot_shows_each_hour_with_entries() {
        let hours = Spark::hours(at("2026-11-26T02:30:00Z"));
        let spark = Spark::of(
            &[(hours.end - 1, 1), (hours.end - 2, 1_200)].into(),
            hours.clone(),
        );
        let spark = spark.unwrap();
        assert!(spark.path.ends_with("V12h1V0h1V11h1V12z"), "{}", spark.path);
        assert_eq!(spark.total, 1_201);
        assert!(Spark::of(&FeedRates::new(), hours).is_none());
    }
}
