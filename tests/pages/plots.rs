//! The plots of docs/BENCHMARKS.md, as SVG.

use onepool::plan::arena::{ArenaRequest, pack};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::records::Records;
use super::tables::{H200, LAVAPIPE};

const BLUE: RGBColor = RGBColor(30, 110, 190);
const ORANGE: RGBColor = RGBColor(214, 96, 40);
const GREY: RGBColor = RGBColor(120, 120, 120);

/// What a plot shows: bars for each case, one for each series.
struct Bars<'a> {
    title: String,
    unit: &'a str,
    series: &'a [(&'a str, RGBColor)],
    /// A label, and a value for each series.
    cases: Vec<(String, Vec<f64>)>,
}

/// Every plot with the name of its file.
pub(crate) fn all(records: &Records) -> Vec<(String, String)> {
    let cases = |machine: &str, bench: &str, metrics: &[&str]| -> Vec<(String, Vec<f64>)> {
        let cases = records.cases(machine, bench).into_iter();
        cases
            .map(|case| {
                (case.to_owned(), metrics.iter().map(|m| records.get(machine, bench, case, m)).collect())
            })
            .collect()
    };
    let boundary = records.machines("boundary").into_iter().map(|machine| {
        let of = |metric| records.get(machine, "boundary", "8 MiB", metric);
        (machine.to_owned(), vec![of("shared"), of("copied")])
    });
    let placement = records.machines("placement").into_iter().flat_map(|machine| {
        let cases = cases(machine, "placement", &["all on vulkan", "all on cpu"]);
        cases.into_iter().map(move |(case, values)| (format!("{case}, {machine}"), values))
    });
    let rates = cases(H200, "operator", &["f32 rate", "f16 rate"]);
    let bars_of = [
        (
            "boundary",
            bars(&Bars {
                title: "Time at two boundaries of 8 MiB, without the kernels".to_owned(),
                unit: "ms",
                series: &[("memory in common", BLUE), ("copies", ORANGE)],
                cases: boundary.collect(),
            }),
        ),
        (
            "placement",
            bars(&Bars {
                title: "Time over that of automatic placement".to_owned(),
                unit: "times",
                series: &[("all on vulkan", BLUE), ("all on the CPU", ORANGE)],
                cases: placement.collect(),
            }),
        ),
        (
            "models",
            bars(&Bars {
                title: format!("One run on {H200}"),
                unit: "ms",
                series: &[("float32", BLUE), ("float16", ORANGE)],
                cases: cases(H200, "model", &["f32", "f16"]),
            }),
        ),
        (
            "operators",
            bars(&Bars {
                title: format!("Rate of one operator on {H200}"),
                unit: "TFLOP/s",
                series: &[("float32", BLUE), ("float16", ORANGE)],
                cases: rates,
            }),
        ),
        (
            "sharing",
            bars(&Bars {
                title: "Device memory of sessions of one model, cpu".to_owned(),
                unit: "MiB",
                series: &[("apart", ORANGE), ("shared", BLUE)],
                cases: cases(LAVAPIPE, "sharing", &["cpu device; apart", "cpu device; shared"]),
            }),
        ),
        (
            "process-memory",
            bars(&Bars {
                title: "Anonymous memory of loading and one run, and the file".to_owned(),
                unit: "MiB",
                series: &[("file", GREY), ("cpu", BLUE), ("vulkan", ORANGE)],
                cases: cases(LAVAPIPE, "process memory", &["file", "cpu", "vulkan"]),
            }),
        ),
        (
            "planned-memory",
            bars(&Bars {
                title: "Intermediate tensors on the CPU".to_owned(),
                unit: "MiB",
                series: &[("planned", BLUE), ("TVM's rule", GREY), ("without reuse", ORANGE)],
                cases: cases(
                    LAVAPIPE,
                    "planned memory",
                    &["cpu; peak", "cpu; TVM's rule", "cpu; without reuse"],
                ),
            }),
        ),
    ];
    let transfers = records.machines("transfer").into_iter();
    let mut plots: Vec<(String, String)> =
        transfers.map(|machine| (format!("transfer-{machine}"), transfers_of(records, machine))).collect();
    plots.extend(bars_of.into_iter().map(|(name, svg)| (name.to_owned(), svg)));
    plots
}

/// Where eight tensors lie, as [`pack`] answers: time goes right, offsets go up.
pub(crate) fn arena() -> String {
    const KIB: u64 = 1024;
    /// First step, last step, KiB.
    const LIVES: [(u32, u32, u64); 8] =
        [(0, 2, 64), (1, 3, 96), (2, 6, 32), (3, 4, 128), (4, 5, 96), (5, 7, 64), (6, 8, 96), (7, 9, 32)];
    let requests =
        LIVES.map(|(first, last, kib)| ArenaRequest { bytes: kib * KIB, alignment: 256, first, last });
    let packing = pack(&requests);
    let (left, right, bottom, height) = (90, 840, 360, 300);
    let x = |step: u32| left + (right - left) * step as i32 / 10;
    let y = |offset: u64| bottom - (height * offset / packing.peak) as i32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (860, 400)).into_drawing_area();
        root.fill(&WHITE).unwrap();
        let text = |text: &str, at: (i32, i32), size: i32, h: HPos| {
            let style = ("sans-serif", size).into_text_style(&root).pos(Pos::new(h, VPos::Center));
            root.draw_text(text, &style.color(&BLACK), at).unwrap();
        };
        let sum: u64 = requests.iter().map(|request| request.bytes).sum();
        let title = format!(
            "Peak {} KiB, largest live set {} KiB, all tensors {} KiB",
            packing.peak / KIB,
            packing.lower_bound / KIB,
            sum / KIB
        );
        text(&title, (16, 24), 18, HPos::Left);
        for (at, (request, offset)) in requests.iter().zip(&packing.offsets).enumerate() {
            let (from, to) =
                ((x(request.first), y(offset + request.bytes)), (x(request.last + 1), y(*offset)));
            let colour = [BLUE, ORANGE, GREY][at % 3];
            root.draw(&Rectangle::new([from, to], colour.mix(0.35).filled())).unwrap();
            root.draw(&Rectangle::new([from, to], colour.stroke_width(2))).unwrap();
            let middle = ((from.0 + to.0) / 2, (from.1 + to.1) / 2);
            text(&format!("{} KiB", request.bytes / KIB), middle, 13, HPos::Center);
        }
        let axis = |from: (i32, i32), to: (i32, i32)| {
            root.draw(&PathElement::new([from, to], BLACK.stroke_width(1))).unwrap();
        };
        axis((left, bottom), (right, bottom));
        axis((left, bottom), (left, y(packing.peak)));
        text("0", (left - 8, bottom), 13, HPos::Right);
        text(&format!("{} KiB", packing.peak / KIB), (left - 8, y(packing.peak)), 13, HPos::Right);
        for step in 0..10 {
            text(&step.to_string(), ((x(step) + x(step + 1)) / 2, bottom + 14), 13, HPos::Center);
        }
        text("command", (right, bottom + 32), 13, HPos::Right);
        root.present().unwrap();
    }
    svg
}

/// Three digits at most, and none after the point from 100 on.
pub(crate) fn digits(value: f64) -> String {
    let text = match value {
        v if v >= 99.95 => return format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v >= 0.9995 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Horizontal bars from zero.
fn bars(plot: &Bars<'_>) -> String {
    let (labels, width, bar, top_of_bars) = (320, 860, 17, 74);
    let step = bar * plot.series.len() as i32 + 14;
    let height = top_of_bars + step * plot.cases.len() as i32 + 10;
    let most = plot.cases.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let scale = f64::from(width - labels - 90) / most;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width as u32, height as u32)).into_drawing_area();
        root.fill(&WHITE).unwrap();
        let style = |size: i32, h: HPos| {
            ("sans-serif", size).into_text_style(&root).color(&BLACK).pos(Pos::new(h, VPos::Center))
        };
        let text = |text: &str, at: (i32, i32), size: i32, h: HPos| {
            root.draw_text(text, &style(size, h), at).unwrap();
        };
        let filled = |from: (i32, i32), to: (i32, i32), colour: RGBColor| {
            root.draw(&Rectangle::new([from, to], colour.filled())).unwrap();
        };
        text(&format!("{} ({})", plot.title, plot.unit), (16, 22), 18, HPos::Left);
        for (at, (name, colour)) in plot.series.iter().enumerate() {
            let x = 16 + 170 * at as i32;
            filled((x, 42), (x + 16, 54), *colour);
            text(name, (x + 22, 48), 14, HPos::Left);
        }
        for (row, (label, values)) in plot.cases.iter().enumerate() {
            let y = top_of_bars + step * row as i32;
            let middle = y + bar * values.len() as i32 / 2;
            text(&label.replace(';', ","), (labels - 10, middle), 14, HPos::Right);
            for (at, (value, (_, colour))) in values.iter().zip(plot.series).enumerate() {
                let top = y + bar * at as i32;
                let end = labels + ((value * scale) as i32).max(1);
                filled((labels, top), (end, top + bar - 3), *colour);
                text(&digits(*value), (end + 6, top + bar / 2 - 1), 13, HPos::Left);
            }
        }
        root.present().unwrap();
    }
    svg
}

/// Times of one run over its size, both axes logarithmic.
fn transfers_of(records: &Records, machine: &str) -> String {
    let sizes = records.cases(machine, "transfer");
    let mib = |case: &str| case.strip_suffix(" MiB").unwrap().parse::<f64>().unwrap();
    let ways = [
        ("copied in and out", "copied", ORANGE),
        ("work alone", "work alone", GREY),
        ("bound", "bound", BLUE),
    ];
    let line = |metric: &str| -> Vec<(f64, f64)> {
        sizes.iter().map(|case| (mib(case), records.get(machine, "transfer", case, metric))).collect()
    };
    let times = || ways.iter().flat_map(|(_, metric, _)| line(metric)).map(|point| point.1);
    let (low, high) = (times().fold(f64::MAX, f64::min), times().fold(0.0, f64::max));
    let (first, last) = (mib(sizes.first().unwrap()), mib(sizes.last().unwrap()));
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (860, 420)).into_drawing_area();
        root.fill(&WHITE).unwrap();
        let mut chart = ChartBuilder::on(&root)
            .margin(16)
            .caption(format!("One run on {machine}"), ("sans-serif", 18))
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d((first * 0.8..last * 1.25).log_scale(), (low * 0.7..high * 1.4).log_scale())
            .unwrap();
        chart
            .configure_mesh()
            .x_desc("input and output, MiB each")
            .y_desc("median time, ms")
            .light_line_style(WHITE)
            .label_style(("sans-serif", 14))
            .draw()
            .unwrap();
        for (name, metric, colour) in ways {
            let series = LineSeries::new(line(metric), colour.stroke_width(2)).point_size(4);
            let drawn = chart.draw_series(series).unwrap().label(name);
            drawn.legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE)
            .border_style(BLACK)
            .label_font(("sans-serif", 15))
            .draw()
            .unwrap();
        root.present().unwrap();
    }
    svg
}
