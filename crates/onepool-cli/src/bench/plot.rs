//! The transfer plot.

use std::path::Path;

use plotters::prelude::*;

use super::measure::Transfer;
use crate::error::CliError;

/// One way through a run: its name, its colour, its time.
type Way = (&'static str, RGBColor, fn(&Transfer) -> f64);

/// Writes the times of `rows` over their size as an SVG, both axes logarithmic.
pub(super) fn transfers(path: &Path, device: &str, rows: &[Transfer]) -> Result<(), CliError> {
    let failed = |e: &dyn std::fmt::Display| CliError::content(path, format!("cannot draw the plot: {e}"));
    let mib = |r: &Transfer| r.input_bytes as f64 / f64::from(1 << 20);
    let ways: [Way; 3] = [
        ("copied in and out", RGBColor(200, 60, 40), |r| r.copied_ms),
        ("bound", RGBColor(30, 110, 190), |r| r.bound_ms),
        ("work alone", RGBColor(110, 110, 110), |r| r.kernel_ms),
    ];
    let times = || ways.iter().flat_map(|w| rows.iter().map(w.2));
    let (low, high) = (times().fold(f64::MAX, f64::min), times().fold(0.0, f64::max));
    let (first, last) =
        (rows.iter().map(mib).fold(f64::MAX, f64::min), rows.iter().map(mib).fold(0.0, f64::max));
    if rows.is_empty() || low <= 0.0 {
        return Err(failed(&"there is nothing to draw"));
    }
    let root = SVGBackend::new(path, (860, 520)).into_drawing_area();
    root.fill(&WHITE).map_err(|e| failed(&e))?;
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .caption(format!("One run on {device}"), ("sans-serif", 20))
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((first * 0.8..last * 1.25).log_scale(), (low * 0.7..high * 1.4).log_scale())
        .map_err(|e| failed(&e))?;
    chart
        .configure_mesh()
        .x_desc("input and output, MiB each")
        .y_desc("median time, ms")
        .light_line_style(WHITE)
        .label_style(("sans-serif", 14))
        .draw()
        .map_err(|e| failed(&e))?;
    for (name, colour, time) in ways {
        let points: Vec<(f64, f64)> = rows.iter().map(|r| (mib(r), time(r))).collect();
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)).point_size(4))
            .map_err(|e| failed(&e))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .label_font(("sans-serif", 15))
        .draw()
        .map_err(|e| failed(&e))?;
    root.present().map_err(|e| failed(&e))
}
