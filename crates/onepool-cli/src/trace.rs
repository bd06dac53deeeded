//! A profile in the format that Perfetto and Chrome's `about:tracing` open.

use std::io::Write as _;
use std::path::Path;

use serde::Serialize;

use super::error::CliError;
use onepool::session::Profile;

/// One event of the Trace Event Format.
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'a str>,
    ph: &'static str,
    pid: u32,
    tid: u32,
    /// Microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    /// Microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: Args<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Node { flops: u64, bytes: u64 },
    Name { name: &'a str },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Trace<'a> {
    display_time_unit: &'static str,
    trace_events: Vec<Event<'a>>,
}

/// The events of a profile. A device is a row.
fn trace<'a>(profile: &'a Profile, devices: &'a [String]) -> Trace<'a> {
    let mut events: Vec<Event<'a>> = devices
        .iter()
        .enumerate()
        .map(|(tid, name)| Event {
            name: "thread_name",
            cat: None,
            ph: "M",
            pid: 1,
            tid: tid as u32,
            ts: None,
            dur: None,
            args: Args::Name { name },
        })
        .collect();
    for node in &profile.nodes {
        events.push(Event {
            name: if node.name.is_empty() { node.op } else { &node.name },
            cat: Some(node.op),
            ph: "X",
            pid: 1,
            tid: node.device,
            ts: Some(node.begin_nanos as f64 / 1e3),
            dur: Some(node.nanos as f64 / 1e3),
            args: Args::Node { flops: node.cost.flops, bytes: node.cost.bytes },
        });
    }
    Trace { display_time_unit: "ns", trace_events: events }
}

/// Writes a profile to a file.
pub(super) fn write(path: &Path, profile: &Profile, devices: &[String]) -> Result<(), CliError> {
    let failed = |e| CliError::file("write", path, e);
    let file = std::fs::File::create(path).map_err(failed)?;
    let mut w = std::io::BufWriter::new(file);
    serde_json::to_writer(&mut w, &trace(profile, devices)).map_err(|e| failed(e.into()))?;
    w.flush().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onepool::ops::Cost;
    use onepool::session::NodeTime;

    #[test]
    fn operators_lie_where_they_began() {
        let node = |name: &str, begin_nanos, nanos| NodeTime {
            name: name.to_owned(),
            op: "Conv",
            device: 0,
            begin_nanos,
            nanos,
            cost: Cost { flops: 1, bytes: 2 },
        };
        let profile = Profile { nodes: vec![node("a", 0, 1500), node("", 1500, 500)], ..Default::default() };
        let json = serde_json::to_value(trace(&profile, &["cpu:0".to_owned()])).unwrap();
        let events = &json["traceEvents"];
        assert_eq!(events[0]["args"]["name"], "cpu:0");
        assert_eq!((events[1]["ts"].as_f64(), events[1]["dur"].as_f64()), (Some(0.0), Some(1.5)));
        assert_eq!((events[2]["ts"].as_f64(), events[2]["name"].as_str()), (Some(1.5), Some("Conv")));
        assert_eq!(events[1]["args"]["flops"], 1);
    }
}
