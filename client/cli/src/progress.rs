//! A counter on stderr, which shows a person that the command works.
//!
//! Shell: the terminal.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// Returns a counter of entries. The counter is visible only if stderr is a terminal and stdout is
/// not: on the same terminal, the counter would disturb the lines of stdout.
pub(crate) fn counter(what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() || std::io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {human_pos} {msg}, {per_sec}");
    let bar = ProgressBar::new_spinner().with_message(what);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Sets the number of entries to come. From then on, the counter shows the total and the time left.
pub(crate) fn expect(bar: &ProgressBar, left: u64) {
    if bar.length().is_none() {
        let template = "{bar:24} {human_pos} of {human_len} {msg}, {per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
    }
    bar.set_length(bar.position() + left);
}
