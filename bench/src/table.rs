//! One table: ours, the peer's, and the ratio of each round.
//!
//! Shell: each row is printed as soon as it is measured, so that a peer that fails takes no other rows with it.

/// What a ratio of ours to the peer's must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Must {
    AtMost(f64),
    AtLeast(f64),
}

impl Must {
    fn text(self) -> String {
        match self {
            Self::AtMost(most) => format!("≤ {most}"),
            Self::AtLeast(least) => format!("≥ {least}"),
        }
    }
}

/// A claim's measurements; each value is of one round, and rounds are paired.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: Vec<f64>,
    pub(crate) peer: String,
    pub(crate) theirs: Vec<f64>,
    pub(crate) must: Option<Must>,
}

/// The rows of a subcommand.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

/// Median, minimum and maximum.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    (
        at(sorted.len() / 2),
        at(0),
        at(sorted.len().saturating_sub(1)),
    )
}

/// Three digits, more or less, whatever the size.
fn number(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "–".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn shown(values: &[f64]) -> String {
    let (median, min, max) = spread(values);
    match values.len() {
        0 => "–".into(),
        _ if !median.is_finite() || max <= min => number(median),
        _ => format!("{} ({}–{})", number(median), number(min), number(max)),
    }
}

impl Row {
    fn ratios(&self) -> Vec<f64> {
        self.ours
            .iter()
            .zip(&self.theirs)
            .map(|(ours, theirs)| ours / theirs)
            .collect()
    }
}

impl Table {
    /// Adds a row, and prints it for people: median (minimum–maximum) of the rounds.
    pub(crate) fn add(&mut self, row: Row) {
        if self.rows.is_empty() {
            println!("| what | unit | ours | peer | theirs | ratio | must |");
            println!("| --- | --- | --- | --- | --- | --- | --- |");
        }
        println!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            row.what,
            row.unit,
            shown(&row.ours),
            row.peer,
            shown(&row.theirs),
            shown(&row.ratios()),
            row.must.map(Must::text).unwrap_or_default(),
        );
        self.rows.push(row);
    }

    /// Adds rows.
    pub(crate) fn add_all(&mut self, rows: impl IntoIterator<Item = Row>) {
        rows.into_iter().for_each(|row| self.add(row));
    }

    /// Returns the same as data, every round of it.
    pub(crate) fn json(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            serde_json::json!({
                "what": row.what, "unit": row.unit, "ours": row.ours, "peer": row.peer,
                "theirs": row.theirs, "ratio": row.ratios(), "must": row.must.map(Must::text),
            })
        });
        serde_json::json!({ "rows": rows.collect::<Vec<_>>() }).to_string()
    }
}

/// Returns a share of sorted values, such as 0.99 of them.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    // The nearest rank: the smallest value that is not less than the share of all.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        clippy::as_conversions,
        reason = "there are far fewer than 2^52 values"
    )]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let value = sorted.get(rank.saturating_sub(1));
    value.copied().unwrap_or(f64::NAN)
}

/// Returns the median of values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a percentile is a value that was measured, and no less than the share of all (SPECS 2.10 item 14).
    #[test]
    fn percentiles_are_the_nearest_rank() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5).to_string(), "50");
        assert_eq!(percentile(&values, 0.99).to_string(), "99");
        assert_eq!(percentile(&values, 1.0).to_string(), "100");
        assert_eq!(percentile(&[7.0], 0.5).to_string(), "7");
        assert!(percentile(&[], 0.5).is_nan());
        assert_eq!(median(&[3.0, 1.0, 2.0]).to_string(), "2");
    }
}
