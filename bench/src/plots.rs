//! Plots, as SVG.
//!
//! Shell: files.

use std::path::Path;

use anyhow::anyhow;
use plotters::{
    coord::ranged1d::{AsRangedCoord, ValueFormatter},
    prelude::*,
};

/// A line of a plot.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    /// Points, from left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 95, 160),
    RGBColor(200, 80, 0),
    RGBColor(0, 130, 90),
    RGBColor(140, 60, 140),
    RGBColor(90, 90, 90),
];

/// Scales of both axes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Axes {
    Linear,
    Logarithmic,
}

/// Draws lines.
pub(crate) fn draw(
    path: &Path,
    title: &str,
    labels: (&str, &str),
    axes: Axes,
    lines: &[Line],
) -> anyhow::Result<()> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let bounds = |pick: fn(&(f64, f64)) -> f64| {
        let least = points().map(pick).fold(f64::INFINITY, f64::min);
        let most = points().map(pick).fold(0.0, f64::max);
        least..most
    };
    let (x, y) = (bounds(|point| point.0), bounds(|point| point.1));
    match axes {
        Axes::Linear => {
            let (x, y) = (0.0..x.end * 1.02, 0.0..y.end * 1.3);
            draw_between(path, title, labels, (x, y), lines)
        }
        Axes::Logarithmic => {
            let x = (x.start..x.end * 1.1).log_scale();
            let y = (y.start / 1.5..y.end * 1.5).log_scale();
            draw_between(path, title, labels, (x, y), lines)
        }
    }
}

fn draw_between<X, Y>(
    path: &Path,
    title: &str,
    labels: (&str, &str),
    (x, y): (X, Y),
    lines: &[Line],
) -> anyhow::Result<()>
where
    X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
{
    let failed = |error: &dyn std::fmt::Display| anyhow!("a plot failed: {error}");
    let root = SVGBackend::new(path, (800, 480)).into_drawing_area();
    root.fill(&WHITE).map_err(|error| failed(&error))?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(75)
        .build_cartesian_2d(x, y)
        .map_err(|error| failed(&error))?;
    chart
        .configure_mesh()
        .x_desc(labels.0)
        .y_desc(labels.1)
        .light_line_style(WHITE)
        .draw()
        .map_err(|error| failed(&error))?;
    for (index, (line, colour)) in lines.iter().zip(COLOURS).enumerate() {
        // The first one shows below another one that is the same.
        let stroke = colour.stroke_width(if index == 0 { 5 } else { 2 });
        chart
            .draw_series(LineSeries::new(line.points.clone(), stroke))
            .map_err(|error| failed(&error))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], stroke));
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
