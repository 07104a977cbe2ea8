//! Plots of the ramps.
//!
//! Shell: files.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

/// A line of a plot.
pub(super) struct Line {
    pub(super) name: &'static str,
    /// Points, each a size and its cost.
    pub(super) points: Vec<(f64, f64)>,
}

const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 95, 160),
    RGBColor(200, 80, 0),
    RGBColor(0, 130, 90),
    RGBColor(140, 60, 140),
    RGBColor(90, 90, 90),
];

/// Draws lines with logarithmic axes.
pub(super) fn draw(
    path: &Path,
    title: &str,
    (x, y): (&str, &str),
    lines: &[Line],
) -> anyhow::Result<()> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let bounds = |pick: fn(&(f64, f64)) -> f64| {
        let least = points().map(pick).fold(f64::INFINITY, f64::min);
        let most = points().map(pick).fold(0.0, f64::max);
        least..most
    };
    let (sizes, costs) = (bounds(|point| point.0), bounds(|point| point.1));
    let failed = |error: &dyn std::fmt::Display| anyhow!("a plot failed: {error}");
    let root = SVGBackend::new(path, (800, 480)).into_drawing_area();
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(75)
        .build_cartesian_2d(
            (sizes.start..sizes.end * 1.1).log_scale(),
            (costs.start / 1.5..costs.end * 1.5).log_scale(),
        )
        .map_err(|error| failed(&error))?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .light_line_style(WHITE)
        .draw()
        .map_err(|error| failed(&error))?;
    for (line, colour) in lines.iter().zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(line.points.clone(), colour.stroke_width(2)))
            .map_err(|error| failed(&error))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()
        .map_err(|error| failed(&error))?;
    root.present().map_err(|error| failed(&error))
}
