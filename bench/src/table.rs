//! One table: ours, the peer's, and the ratio of each round.
//!
//! Pure.

use std::fmt::Write as _;

/// A claim's measurements; each value is of one round, and rounds are paired.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: Vec<f64>,
    pub(crate) peer: Vec<f64>,
}

/// The rows of a subcommand.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) peer: &'static str,
    pub(crate) rows: Vec<Row>,
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

impl Row {
    fn ratios(&self) -> Vec<f64> {
        self.ours
            .iter()
            .zip(&self.peer)
            .map(|(ours, peer)| ours / peer)
            .collect()
    }
}

impl Table {
    /// Returns the table for people: median (minimum–maximum) of the rounds.
    pub(crate) fn text(&self) -> String {
        let shown = |values: &[f64], digits: usize| {
            let (median, min, max) = spread(values);
            format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
        };
        let mut text = format!(
            "| what | unit | ours | {} | ratio |\n| --- | --- | --- | --- | --- |\n",
            self.peer
        );
        for row in &self.rows {
            let (ours, peer) = (shown(&row.ours, 1), shown(&row.peer, 1));
            let ratio = shown(&row.ratios(), 2);
            writeln!(
                text,
                "| {} | {} | {ours} | {peer} | {ratio} |",
                row.what, row.unit
            )
            .expect("writing to memory does not fail");
        }
        text
    }

    /// Returns the same as data, every round of it.
    pub(crate) fn json(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            serde_json::json!({
                "what": row.what, "unit": row.unit, "ours": row.ours,
                "peer": row.peer, "ratio": row.ratios(),
            })
        });
        serde_json::json!({ "peer": self.peer, "rows": rows.collect::<Vec<_>>() }).to_string()
    }
}
