//! The timeline: a lane for the host, and lanes for each device.

use serde::Serialize;

use super::data::{Device, NodeTime, Times};
use super::scale::{COLOURS, Colours, Key, Tick, fits, percent, ticks};
use crate::table::{bytes, count, si, time};

/// Bars that are narrower than this share of the drawing, in percent, are drawn as one with their neighbours.
const NARROW: f64 = 0.02;

/// The drawing.
#[derive(Debug, Serialize)]
pub(super) struct Timeline {
    pub(super) lanes: Vec<Lane>,
    pub(super) ticks: Vec<Tick>,
    pub(super) keys: Vec<Key>,
    pub(super) length: String,
}

/// A row of bars that follow one another.
#[derive(Debug, Serialize)]
pub(super) struct Lane {
    /// The device, or the host.
    pub(super) name: String,
    /// What the bars are.
    pub(super) what: &'static str,
    pub(super) bars: Vec<Bar>,
}

/// Something that took time.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Bar {
    pub(super) x: f64,
    pub(super) width: f64,
    /// Its style: `k0` to `k7` for operators, `wait`, `host`, `copy`.
    pub(super) style: String,
    pub(super) label: String,
    pub(super) fits: bool,
    pub(super) title: String,
}

/// A span in nanoseconds with what there is to say of it.
struct Span {
    begin: u64,
    end: u64,
    style: String,
    label: String,
    title: String,
    /// Operators in it.
    nodes: usize,
}

impl Timeline {
    /// The drawing of one run; nothing where nothing was timed.
    pub(super) fn new(times: &Times, devices: &[Device]) -> Option<Self> {
        let ends = times.nodes.iter().map(|n| n.begin.saturating_add(n.nanos));
        let end = ends.chain(times.segments.iter().map(|s| s.end)).chain([times.host_nanos]).max()?;
        if end == 0 {
            return None;
        }
        let colours = Colours::new(times);
        let mut lanes = vec![lane("host", "the program", host(times, devices), end)];
        for (d, device) in (0u32..).zip(devices) {
            let named = |what, spans: Vec<Span>| {
                (!spans.is_empty()).then(|| lane(&device.selector, what, spans, end))
            };
            lanes.extend(named("copies by the session", session_copies(times, d)));
            lanes.extend(named("queue", submissions(times, d)));
            lanes.extend(named("operators", operators(times, d, &colours)));
        }
        let others = times.nodes.iter().any(|n| colours.of(&n.op) == COLOURS);
        Some(Timeline {
            lanes,
            ticks: ticks(end as f64, 8.0, round),
            keys: colours.keys(others),
            length: time(end),
        })
    }
}

/// A time of the axis, whose steps are round.
fn round(nanos: f64) -> String {
    match time(nanos as u64).split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ if nanos < 1.0 => "0".to_owned(),
        _ => time(nanos as u64),
    }
}

/// What the host does: it works outside the submissions, and waits in them.
fn host(times: &Times, devices: &[Device]) -> Vec<Span> {
    let mut windows: Vec<(u64, u64)> = times.segments.iter().map(|s| (s.begin, s.end)).collect();
    windows.sort_unstable();
    let mut spans = Vec::new();
    let mut at = 0;
    let work = |begin: u64, end: u64| Span {
        begin,
        end,
        style: "host".to_owned(),
        label: "host".to_owned(),
        title: format!("work of the host between submissions\n{}", time(end - begin)),
        nodes: 0,
    };
    let only_cpu = devices.iter().all(|device| device.selector.starts_with("cpu:"));
    let what = if only_cpu { "runs operators" } else { "submits and waits" };
    for (begin, end) in windows {
        if begin > at {
            spans.push(work(at, begin));
        }
        let begin = begin.max(at);
        if end > begin {
            spans.push(Span {
                begin,
                end,
                style: "wait".to_owned(),
                label: what.to_owned(),
                title: format!("the host {what}\n{}", time(end - begin)),
                nodes: 0,
            });
        }
        at = at.max(end);
    }
    if times.host_nanos > at {
        spans.push(work(at, times.host_nanos));
    }
    spans
}

fn session_copies(times: &Times, device: u32) -> Vec<Span> {
    let of = times.segments.iter().filter(|s| s.device == device && s.by_session);
    of.map(|s| Span {
        begin: s.begin,
        end: s.end,
        style: "copy".to_owned(),
        label: "copy".to_owned(),
        title: format!("copies by the session to this device\n{}", time(s.end.saturating_sub(s.begin))),
        nodes: 0,
    })
    .collect()
}

fn submissions(times: &Times, device: u32) -> Vec<Span> {
    let of = times.segments.iter().enumerate().filter(|(_, s)| s.device == device && !s.by_session);
    of.map(|(n, s)| {
        let waits: Vec<String> = s.waits.iter().map(u32::to_string).collect();
        let after =
            if waits.is_empty() { String::new() } else { format!("\nafter submission {}", waits.join(", ")) };
        Span {
            begin: s.begin,
            end: s.end,
            style: "queue".to_owned(),
            label: format!("submission {n}"),
            title: format!(
                "submission {n}, until the host saw its end\n{}{after}",
                time(s.end.saturating_sub(s.begin))
            ),
            nodes: 0,
        }
    })
    .collect()
}

/// The operators of a device, and between them what their submissions wait for.
fn operators(times: &Times, device: u32, colours: &Colours) -> Vec<Span> {
    let mut nodes: Vec<&NodeTime> = times.nodes.iter().filter(|n| n.device == device).collect();
    if nodes.is_empty() {
        return Vec::new();
    }
    nodes.sort_by_key(|n| n.begin);
    let mut spans = Vec::new();
    for n in &nodes {
        let rate = |count: u64| format!("{:.1}", count as f64 / n.nanos.max(1) as f64);
        spans.push(Span {
            begin: n.begin,
            end: n.begin.saturating_add(n.nanos),
            style: format!("k{}", colours.of(&n.op)),
            label: n.op.clone(),
            title: format!(
                "{}\n{}, {}\nfrom {}\n{} moved ({} GB/s), {} operations ({} GFLOP/s)",
                if n.name.is_empty() { "(no name)" } else { &n.name },
                n.op,
                time(n.nanos),
                time(n.begin),
                bytes(n.bytes),
                rate(n.bytes),
                si(n.flops),
                rate(n.flops)
            ),
            nodes: 1,
        });
    }
    // What of the submissions no operator fills.
    let mut waits = Vec::new();
    for s in times.segments.iter().filter(|s| s.device == device && !s.by_session) {
        let mut at = s.begin;
        let inside = nodes.iter().filter(|n| n.begin < s.end && n.begin.saturating_add(n.nanos) > s.begin);
        let gaps = inside.map(|n| (n.begin, n.begin.saturating_add(n.nanos))).chain([(s.end, s.end)]);
        for (begin, end) in gaps {
            if begin > at {
                waits.push(Span {
                    begin: at,
                    end: begin,
                    style: "wait".to_owned(),
                    label: "waits".to_owned(),
                    title: format!("no operator runs in this submission\n{}", time(begin - at)),
                    nodes: 0,
                });
            }
            at = at.max(end);
        }
    }
    spans.extend(waits);
    spans.sort_by_key(|span| span.begin);
    spans
}

/// A lane. Runs of narrow spans become one bar each.
fn lane(name: &str, what: &'static str, spans: Vec<Span>, whole: u64) -> Lane {
    let narrow = |span: &Span| percent((span.end.saturating_sub(span.begin)) as f64, whole as f64) < NARROW;
    let mut merged: Vec<Span> = Vec::new();
    let mut members = 0;
    for span in spans {
        let near = |last: &Span| {
            percent(span.begin.saturating_sub(last.end) as f64, whole as f64) < NARROW
                && percent(span.end.saturating_sub(last.begin) as f64, whole as f64) < 4.0 * NARROW
        };
        match merged.last_mut() {
            Some(last) if narrow(&span) && near(last) && (members > 0 || narrow(last)) => {
                members += 1;
                last.end = last.end.max(span.end);
                last.nodes += span.nodes;
                if last.nodes > 0 {
                    last.style = "many".to_owned();
                    last.label = String::new();
                    last.title = format!(
                        "{} too short to be drawn apart\n{} from {}",
                        count(last.nodes, "operator"),
                        time(last.end.saturating_sub(last.begin)),
                        time(last.begin)
                    );
                }
            }
            _ => {
                members = 0;
                merged.push(span);
            }
        }
    }
    let bars = merged.into_iter().map(|span| {
        let (x, end) = (percent(span.begin as f64, whole as f64), percent(span.end as f64, whole as f64));
        let width = ((end - x) * 1e4).round() / 1e4;
        Bar {
            x,
            width,
            fits: fits(&span.label, width),
            style: span.style,
            label: span.label,
            title: span.title,
        }
    });
    Lane { name: name.to_owned(), what, bars: bars.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::data::Segment;

    fn node(device: u32, begin: u64, nanos: u64) -> NodeTime {
        let (name, op) = (format!("n{begin}"), "Conv".to_owned());
        NodeTime { name, op, device, begin, nanos, flops: 10, bytes: 20 }
    }

    fn segment(device: u32, begin: u64, end: u64) -> Segment {
        Segment { device, begin, end, ..Segment::default() }
    }

    fn devices(names: &[&str]) -> Vec<Device> {
        let device = |name: &&str| Device { selector: (*name).to_owned(), ..Device::default() };
        names.iter().map(device).collect()
    }

    #[test]
    fn a_submission_has_operators_and_waits() {
        let times = Times {
            nodes: vec![node(0, 200, 300), node(0, 500, 400)],
            segments: vec![segment(0, 100, 950)],
            device_nanos: 700,
            host_nanos: 1000,
            ..Times::default()
        };
        let drawn = Timeline::new(&times, &devices(&["vulkan:0"])).unwrap();
        let lane = |n: usize| (drawn.lanes[n].name.as_str(), drawn.lanes[n].what);
        assert_eq!(
            (lane(0), lane(1), lane(2)),
            (("host", "the program"), ("vulkan:0", "queue"), ("vulkan:0", "operators"))
        );
        let bars = |n: usize| -> Vec<(f64, f64, &str)> {
            drawn.lanes[n].bars.iter().map(|b| (b.x, b.width, b.style.as_str())).collect()
        };
        assert_eq!(bars(0), [(0.0, 10.0, "host"), (10.0, 85.0, "wait"), (95.0, 5.0, "host")]);
        assert_eq!(bars(1), [(10.0, 85.0, "queue")]);
        assert_eq!(
            bars(2),
            [(10.0, 10.0, "wait"), (20.0, 30.0, "k0"), (50.0, 40.0, "k0"), (90.0, 5.0, "wait")]
        );
        let title = &drawn.lanes[2].bars[1].title;
        assert!(title.starts_with("n200\nConv, 300 ns") && title.contains("20 B moved"), "{title}");
    }

    #[test]
    fn the_axis_says_times_without_zeros() {
        let said = [0.0, 50.0, 1e7, 2.5e6, 100e3].map(round);
        assert_eq!(said, ["0", "50 ns", "10 ms", "2.5 ms", "100 us"]);
    }

    #[test]
    fn many_short_operators_are_few_bars() {
        let nodes: Vec<NodeTime> = (0..100_000).map(|i| node(0, i * 10, 10)).collect();
        let times = Times {
            nodes,
            segments: vec![segment(0, 0, 1_000_000)],
            host_nanos: 1_000_000,
            ..Times::default()
        };
        let drawn = Timeline::new(&times, &devices(&["cpu:0"])).unwrap();
        let bars = &drawn.lanes[2].bars;
        assert!(bars.len() < 6000, "{}", bars.len());
        let drawn: f64 = bars.iter().map(|b| b.width).sum();
        assert!((drawn - 100.0).abs() < 0.5, "{drawn}");
        assert!(bars[0].title.contains("too short to be drawn apart"), "{}", bars[0].title);
    }

    #[test]
    fn times_that_make_no_sense_are_drawn_within_the_lanes() {
        let times = Times {
            nodes: vec![node(0, u64::MAX - 1, 100), node(7, 3, 4)],
            segments: vec![segment(0, 900, 100)],
            ..Times::default()
        };
        let drawn = Timeline::new(&times, &devices(&["cpu:0"])).unwrap();
        for bar in drawn.lanes.iter().flat_map(|lane| &lane.bars) {
            assert!(bar.x >= 0.0 && bar.width >= 0.0 && bar.x + bar.width <= 100.001, "{bar:?}");
        }
        assert!(Timeline::new(&Times::default(), &[]).is_none());
    }
}
