//! Charts of numbers side by side: for a terminal, and as a picture.
//!
//! Pure.

use std::fmt::Write as _;

/// Rows of a chart in a terminal.
const ROWS: u64 = 8;
/// Characters for the top cell of a column, from empty to seven eighths.
const EIGHTHS: [char; 8] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇'];
/// Size of a picture's chart.
const WIDTH: usize = 800;
const HEIGHT: usize = 160;
/// Room above a chart for the title, and below for the labels.
const TITLE: usize = 34;
const LABELS: usize = 30;

/// A chart of the numbers of consecutive spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) values: Vec<u64>,
    /// Names of the first span, the middle one and the last.
    pub(super) labels: [String; 3],
}

impl Chart {
    fn most_count(&self) -> u64 {
        self.values.iter().copied().max().unwrap_or(0)
    }

    /// Returns the chart as lines of text.
    pub(super) fn text(&self) -> String {
        let most = self.most_count();
        let mut text = format!("{}\n", self.title);
        let margin = most.to_string().len();
        for row in (0..ROWS).rev() {
            let number = match row {
                0 => "0".into(),
                _ if row == ROWS - 1 => most.to_string(),
                _ => String::new(),
            };
            let bars: String = self
                .values
                .iter()
                .map(|value| cell_char(*value, most, row))
                .collect();
            // A write into a string cannot fail.
            let _never = writeln!(text, "{number:>margin$} │{}", bars.trim_end());
        }
        let width = self.values.len();
        let [first, middle, last] = &self.labels;
        // Only as many names as there is room for.
        let names = if width >= first.len() + middle.len() + last.len() + 4 {
            let left = (width - middle.len()) / 2;
            let right = width - last.len();
            let begin = format!("{first:<left$}{middle}");
            format!("{begin:<right$}{last}")
        } else if width > first.len() + last.len() {
            let right = width - last.len();
            format!("{first:<right$}{last}")
        } else {
            format!("{first} to {last}")
        };
        let _never = writeln!(text, "{:>margin$} └{}", "", "─".repeat(width));
        let _never = writeln!(text, "{:>margin$}  {names}", "");
        text
    }

    /// Writes the chart into a picture, `top` units below the upper edge of the picture.
    fn draw_chart(&self, top: usize, out: &mut String) {
        let most = self.most_count().max(1);
        let base = top + TITLE + HEIGHT;
        let count = self.values.len().max(1);
        let _never = writeln!(
            out,
            "<text x=\"0\" y=\"{}\" class=\"title\">{}</text>",
            top + 20,
            escape_text(&self.title)
        );
        let _never = writeln!(
            out,
            "<text x=\"{WIDTH}\" y=\"{}\" class=\"label\" text-anchor=\"end\">{most}</text>",
            top + TITLE - 2
        );
        for (at, value) in self
            .values
            .iter()
            .enumerate()
            .filter(|(_, value)| **value > 0)
        {
            let [left, right] = [at, at + 1].map(|at| at * WIDTH / count);
            // The product of a count and the height may not fit into 64 bits.
            let share = u128::from(*value) * u128::try_from(HEIGHT).unwrap_or(0) / u128::from(most);
            // However small the number is, the column must be visible.
            let height = usize::try_from(share).unwrap_or(HEIGHT).max(1);
            // A gap of one unit separates columns, where there is room.
            let width = (right - left).saturating_sub(1).max(1);
            let _never = writeln!(
                out,
                "<rect x=\"{left}\" y=\"{}\" width=\"{width}\" height=\"{height}\"/>",
                base - height
            );
        }
        let _never = writeln!(out, "<path d=\"M0 {base}H{WIDTH}\"/>");
        let places = [(0, "start"), (WIDTH / 2, "middle"), (WIDTH, "end")];
        for ((x, anchor), label) in places.into_iter().zip(&self.labels) {
            let _never = writeln!(
                out,
                "<text x=\"{x}\" y=\"{}\" class=\"label\" text-anchor=\"{anchor}\">{}</text>",
                base + 18,
                escape_text(label)
            );
        }
    }
}

/// Returns the character of a column in a row; rows count from below.
fn cell_char(value: u64, most: u64, row: u64) -> char {
    let all = u128::from(ROWS) * 8;
    // However small the number is, the column must be visible.
    let eighths = (u128::from(value) * all / u128::from(most.max(1))).max(u128::from(value > 0));
    let left = eighths.saturating_sub(u128::from(row) * 8);
    let part = usize::try_from(left).unwrap_or(usize::MAX);
    EIGHTHS.get(part).copied().unwrap_or('█')
}

/// Returns a picture of charts, one below the other.
pub(super) fn svg(charts: &[Chart]) -> String {
    let each = TITLE + HEIGHT + LABELS;
    let height = each * charts.len();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-10 0 {} {height}\" font-family=\"sans-serif\">\n\
         <style>text{{fill:#1c2128}}.title{{font-size:15px}}.label{{font-size:12px;fill:#59636e}}\
         rect{{fill:#0969da}}path{{stroke:#59636e}}\
         @media(prefers-color-scheme:dark){{text{{fill:#e3e8ee}}.label{{fill:#9aa5b1}}rect{{fill:#58a6ff}}}}</style>\n",
        WIDTH + 20
    );
    for (at, chart) in charts.iter().enumerate() {
        chart.draw_chart(at * each, &mut out);
    }
    out.push_str("</svg>\n");
    out
}

fn escape_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[u64]) -> Chart {
        Chart {
            title: "a & <b>".into(),
            values: values.into(),
            labels: ["first", "middle", "last"].map(Into::into),
        }
    }

    #[test]
    fn columns_have_the_height_of_their_numbers() {
        let text = chart(&[0, 1, 500, 1_000]).text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "1000 │   █");
        assert_eq!(lines[4], "     │   █");
        assert_eq!(lines[5], "     │  ██");
        assert_eq!(lines[8], "   0 │ ▁██");
        assert_eq!(lines[10], "      first to last");
        let wide = chart(&[1; 40]).text();
        assert!(
            wide.contains("first            middle             last"),
            "{wide}"
        );
    }

    #[test]
    fn numbers_of_any_size_are_drawn() {
        for values in [&[][..], &[0], &[u64::MAX, 1], &[7; 200]] {
            let chart = chart(values);
            assert!(chart.text().lines().count() == 11);
            let picture = svg(&[chart.clone(), chart]);
            assert!(picture.contains("a &amp; &lt;b>") && picture.ends_with("</svg>\n"));
        }
        assert!(chart(&[u64::MAX, 1]).text().contains("█▁"));
    }
}
