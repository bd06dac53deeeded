//! The tables of docs/BENCHMARKS.md, with the sentence over each that has numbers.

use std::fmt::Write;

use super::plots::digits;
use super::records::Records;

pub(crate) const LAVAPIPE: &str = "2-core-lavapipe";
pub(crate) const H200: &str = "h200";
const H100: &str = "h100";
/// Machines without a GPU, and what their vectors can do.
const CPUS: [(&str, &str); 5] = [
    ("2-core-avx512", "AVX-512, VNNI"),
    ("2-core-zen4", "AVX-512 in two passes, VNNI"),
    ("2-core-avx512-without-amx", "AVX-512, VNNI"),
    ("2-core-avx512-as-avx2", "AVX2, of AVX-512"),
    ("2-core-avx2", "AVX2"),
];

/// Vendor's peak of float32 outside the tensor cores and of float16 in them, TFLOP/s.
const PEAKS: [f64; 2] = [67.0, 989.0];

/// A table: heads, then rows.
fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|---|{}\n", heads.join(" | "), "---:|".repeat(heads.len() - 1));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | ").replace(';', ","));
    }
    text
}

fn range(values: impl Iterator<Item = f64> + Clone) -> String {
    let (low, high) = (values.clone().fold(f64::MAX, f64::min), values.fold(0.0, f64::max));
    format!("{} to {}", digits(low), digits(high))
}

fn transfers(records: &Records) -> String {
    let machine = |machine: &str| {
        let picture = format!("![Times over sizes on {machine}](images/bench/transfer-{machine}.svg)");
        format!("{picture}\n\n{}", transfer(records, machine))
    };
    records.machines("transfer").into_iter().map(machine).collect::<Vec<_>>().join("\n")
}

fn machines(records: &Records) -> String {
    let row = |(name, about): (&String, &String)| vec![format!("`{name}`"), about.clone()];
    table(&["machine", "what it is"], &records.machines.iter().map(row).collect::<Vec<_>>())
        .replace("---:", "---")
}

fn transfer(records: &Records, machine: &str) -> String {
    let get = |case: &str, metric| records.get(machine, "transfer", case, metric);
    let cases = records.cases(machine, "transfer");
    let metrics = ["copy in", "run", "copy out", "copied", "bound", "work alone"];
    let ratio = |case: &&str| get(case, "copied") / get(case, "bound");
    let above = |case: &&str| get(case, "bound") / get(case, "work alone");
    let rows: Vec<Vec<String>> = cases
        .iter()
        .map(|case| {
            let times = metrics.iter().map(|metric| format!("{:.3}", get(case, metric)));
            let mut row = vec![(*case).to_owned()];
            row.extend(times);
            row.extend([ratio(case), above(case)].map(|ratio| format!("{ratio:.2}")));
            row
        })
        .collect();
    let ratios = ["copied / bound", "bound / work alone"];
    let heads = [&["in and out, each"][..], &metrics, &ratios].concat();
    format!(
        "A copied run takes {} times a bound one, and that {} times the work alone. Milliseconds, {machine}, {}.\n\n{}",
        range(cases.iter().map(ratio)),
        range(cases.iter().map(above)),
        records.days_on(machine, "transfer"),
        table(&heads, &rows)
    )
}

fn boundary(records: &Records) -> String {
    let get = |machine: &str, metric: &str| records.get(machine, "boundary", "8 MiB", metric);
    let ratio = |machine: &str| get(machine, "copied") / get(machine, "shared");
    let row = |machine: &str| {
        let times = [get(machine, "shared"), get(machine, "copied")].map(|time| format!("{time:.3} ms"));
        let moved = ["shared; bytes copied", "copied; bytes copied"]
            .map(|metric| format!("{:.0} MiB", get(machine, metric)));
        let [shared, copied] = times;
        let [by_device, by_cpu] = moved;
        vec![machine.to_owned(), shared, by_device, copied, by_cpu, digits(ratio(machine))]
    };
    format!(
        "Copies cost {} times what memory in common costs. {}.\n\n{}",
        range(records.machines("boundary").into_iter().map(ratio)),
        records.days("boundary"),
        table(
            &["machine", "in common", "bytes copied", "by copies", "bytes copied", "ratio"],
            &records.machines("boundary").into_iter().map(row).collect::<Vec<_>>()
        )
    )
}

fn placement(records: &Records) -> String {
    let (mut rows, mut better) = (Vec::new(), Vec::new());
    for machine in records.machines("placement") {
        for case in records.cases(machine, "placement") {
            let times =
                ["all on vulkan", "all on cpu"].map(|metric| records.get(machine, "placement", case, metric));
            better.push(times[0].min(times[1]));
            let cells = times.map(|ratio| format!("{ratio:.2}"));
            rows.push([&[machine.to_owned(), case.to_owned()][..], &cells].concat());
        }
    }
    format!(
        "All on the better device takes {} times what automatic placement takes. {}.\n\n{}",
        range(better.into_iter()),
        records.days("placement"),
        table(&["machine", "model", "all on vulkan", "all on the CPU"], &rows)
    )
}

fn models(records: &Records) -> String {
    let row = |case: &str| {
        let times = ["f32", "f16"].map(|metric| format!("{:.3}", records.get(H200, "model", case, metric)));
        [&[case.to_owned()][..], &times].concat()
    };
    let rows: Vec<_> = records.cases(H200, "model").into_iter().map(row).collect();
    format!(
        "Milliseconds, {H200}, {}.\n\n{}",
        records.days_on(H200, "model"),
        table(&["model", "float32", "float16"], &rows)
    )
}

fn operators(records: &Records) -> String {
    let get = |case: &str, metric: &str| records.get(H200, "operator", case, metric);
    let row = |case: &str| {
        let mut row = vec![case.to_owned()];
        for (at, metric) in ["f32", "f16"].into_iter().enumerate() {
            let rate = get(case, &format!("{metric} rate"));
            row.push(format!("{:.3} ms", get(case, metric)));
            row.push(format!("{} TFLOP/s", digits(rate)));
            row.push(format!("{:.0} %", 100.0 * rate / PEAKS[at]));
        }
        row
    };
    let cases = records.cases(H200, "operator");
    let rows: Vec<_> = cases.iter().map(|case| row(case)).collect();
    let winograd = get(cases[1], "f32 by transformed tiles");
    format!(
        "By transformed tiles the 3x3 convolution takes {winograd:.3} ms in float32. {H200}, {}.\n\n{}",
        records.days_on(H200, "operator"),
        table(&["operator", "float32", "rate", "of the peak", "float16", "rate", "of the peak"], &rows)
    )
}

/// Ours and PyTorch's times by type, and their ratio; a dash where a pair was not measured.
fn beside_torch(
    records: &Records,
    machine: &str,
    bench: &str,
    types: [[&str; 2]; 2],
) -> (Vec<Vec<String>>, [Vec<f64>; 2]) {
    let (mut rows, mut ratios) = (Vec::new(), [Vec::new(), Vec::new()]);
    for case in records.cases(machine, bench) {
        let mut row = vec![case.to_owned()];
        for (at, metrics) in types.into_iter().enumerate() {
            let both = metrics.map(|metric| records.known(machine, bench, case, metric));
            row.extend(both.map(|ms| ms.map_or("-".to_owned(), |ms| format!("{ms:.3}"))));
            let ratio = both[0].zip(both[1]).map(|(ours, theirs)| ours / theirs);
            row.push(ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
            ratios[at].extend(ratio);
        }
        rows.push(row);
    }
    (rows, ratios)
}

fn geometric_mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

fn peer_operators(records: &Records) -> String {
    let types = ["float32", "float16"].map(|t| [format!("{t}; onepool"), format!("{t}; torch")]);
    let (rows, ratios) =
        beside_torch(records, H200, "peer", types.each_ref().map(|t| t.each_ref().map(|m| &**m)));
    let no_slower = ratios.iter().flatten().filter(|ratio| **ratio <= 1.0).count();
    format!(
        "{no_slower} of {} are no slower than PyTorch. Milliseconds, {H200}, {}.\n\n{}",
        ratios.iter().flatten().count(),
        records.days_on(H200, "peer"),
        table(&["operator", "float32", "PyTorch", "ratio", "float16", "PyTorch", "ratio"], &rows)
    )
}

/// Models as an exporter writes them, beside PyTorch.
fn exports(records: &Records) -> String {
    let types = [["float32; onepool", "float32; torch"], ["float16; onepool", "float16; torch"]];
    let (rows, ratios) = beside_torch(records, H200, "export", types);
    let means = ratios.map(|ratios| geometric_mean(&ratios));
    format!(
        "Geometric means of the ratios: {:.2} in float32, {:.2} in float16. Milliseconds, {H200}, {}.\n\n{}",
        means[0],
        means[1],
        records.days_on(H200, "export"),
        table(&["model", "float32", "PyTorch", "ratio", "float16", "PyTorch", "ratio"], &rows)
    )
}

fn peer_models(records: &Records) -> String {
    let types = [["float32; onepool", "float32; torch"], ["float16; onepool", "float16; torch"]];
    let (mut rows, ratios) = beside_torch(records, H200, "peer model", types);
    let means = ratios.map(|ratios| geometric_mean(&ratios));
    for (row, case) in rows.iter_mut().zip(records.cases(H200, "peer model")) {
        let compiled = ["float32; torch compiled", "float16; torch compiled"]
            .map(|metric| records.known(H200, "peer model", case, metric));
        row.extend(compiled.map(|ms| ms.map_or("-".to_owned(), |ms| format!("{ms:.3}"))));
    }
    format!(
        "Geometric means of the ratios: {:.2} in float32, {:.2} in float16. Milliseconds, {H200}, {}.\n\n{}",
        means[0],
        means[1],
        records.days_on(H200, "peer model"),
        table(
            &[
                "model",
                "float32",
                "PyTorch",
                "ratio",
                "float16",
                "PyTorch",
                "ratio",
                "compiled, float32",
                "compiled, float16"
            ],
            &rows
        )
    )
}

/// Rates of a language model, those of another program, and their ratios.
fn rates(records: &Records, machine: &str, case: &str, peer: &str) -> Vec<String> {
    let mut cells = Vec::new();
    for metric in ["prompt", "text"] {
        let get = |metric: &str| records.get(machine, "language", case, metric);
        let (own, peer) = (get(metric), get(&format!("{metric}; {peer}")));
        cells.extend([digits(own), digits(peer), format!("{:.2}", own / peer)]);
    }
    cells
}

/// Rates of language models on GPUs.
fn language(records: &Records) -> String {
    const PEER: &str = "llama.cpp";
    let mut text = String::new();
    for machine in [H100, H200] {
        let copy = records.get(machine, "copy", "256 MiB", "rate");
        let row = |case: &str| {
            let of = |metric: &str| records.get(machine, "language", case, metric);
            let share = 100.0 * of("text") * of("weights") / copy;
            [vec![case.to_owned()], rates(records, machine, case, PEER), vec![format!("{share:.0} %")]]
                .concat()
        };
        let rows: Vec<_> = records.cases(machine, "language").into_iter().map(row).collect();
        let gap = if text.is_empty() { "" } else { "\n" };
        let _ = write!(
            text,
            "{gap}Tokens per second, {machine}, {}. A copy moves {copy} GB/s there.\n\n{}",
            records.days_on(machine, "language"),
            table(&["model", "prompt", PEER, "ratio", "text", PEER, "ratio", "of the copy rate"], &rows)
        );
    }
    text
}

/// Rates of language models by what their caches hold.
fn caches(records: &Records) -> String {
    let row = |case: &str| {
        let of = |metric: &str| digits(records.get(H200, "caches", case, metric));
        let mut row: Vec<String> = case.split("; ").map(str::to_owned).collect();
        row.extend(["cache", "prompt", "text"].map(of));
        row
    };
    let rows: Vec<_> = records.cases(H200, "caches").into_iter().map(row).collect();
    format!(
        "Tokens per second, {H200}, {}.\n\n{}",
        records.days_on(H200, "caches"),
        table(&["model", "computed in", "cache", "MiB", "prompt", "text"], &rows)
    )
}

/// Rates of text of graphs that append to their cache: with rows written in place, and copied.
fn appending(records: &Records) -> String {
    let row = |case: &str| {
        let of = |metric: &str| records.get(H200, "appending", case, metric);
        let [place, copied] = ["in place", "copied"].map(of);
        let mut row: Vec<String> = case.split("; ").map(str::to_owned).collect();
        row.extend([digits(place), digits(copied), format!("{:.2}", place / copied)]);
        row
    };
    let rows: Vec<_> = records.cases(H200, "appending").into_iter().map(row).collect();
    format!(
        "Tokens per second of text, {H200}, {}.\n\n{}",
        records.days_on(H200, "appending"),
        table(&["model", "computed in", "prompt", "in place", "copied", "ratio"], &rows)
    )
}

/// Models by two builds: times after over times before, on every machine that has both.
fn versions(records: &Records) -> String {
    const DEVICES: [(&str, &str); 3] = [("2-core-avx512", "cpu"), (LAVAPIPE, "vulkan"), (H200, "vulkan")];
    let get = |(machine, device): (&str, &str), case: &str, which: &str| {
        records.get(machine, "version", case, &format!("{device}; {which}"))
    };
    let ratio = |on, case: &str| get(on, case, "after") / get(on, case, "before");
    let row = |case: &str| {
        let mut row = vec![case.to_owned()];
        for on in DEVICES {
            row.extend([digits(get(on, case, "before")), format!("{:.2}", ratio(on, case))]);
        }
        row
    };
    let cases = records.cases(H200, "version");
    let rows: Vec<_> = cases.iter().map(|case| row(case)).collect();
    let means = DEVICES.map(|on| {
        let ratios: Vec<f64> = cases.iter().map(|case| ratio(on, case)).collect();
        format!("{:.2} on {}", geometric_mean(&ratios), on.0)
    });
    let days = DEVICES.map(|(machine, _)| format!("{machine} {}", records.days_on(machine, "version")));
    format!(
        "Geometric means of the ratios: {}. Milliseconds before; {}.\n\n{}",
        means.join(", "),
        days.join(", "),
        table(&["model", "CPU", "ratio", "lavapipe", "ratio", H200, "ratio"], &rows)
    )
}

/// Rates of language models on CPUs, next to those of a program that reads the same file.
fn language_cpu(records: &Records) -> String {
    const PEERS: [&str; 3] = ["onnxruntime", "llama.cpp", "llama.cpp without AMX"];
    let mut rows = Vec::new();
    for (machine, vectors) in CPUS {
        for case in records.cases(machine, "language") {
            let is_known =
                |peer: &&str| records.known(machine, "language", case, &format!("text; {peer}")).is_some();
            for peer in PEERS.into_iter().filter(is_known) {
                let first = [case, vectors, peer].map(str::to_owned).to_vec();
                rows.push([first, rates(records, machine, case, peer)].concat());
            }
        }
    }
    let days = CPUS.map(|(machine, _)| format!("{machine} {}", records.days_on(machine, "language")));
    format!(
        "Tokens per second; {}.\n\n{}",
        days.join(", "),
        table(&["model", "vectors", "peer", "prompt", "peer", "ratio", "text", "peer", "ratio"], &rows)
    )
}

/// Models on CPUs next to onnxruntime: each alone on the machine, and in turn with its threads that poll.
fn zoo_cpu(records: &Records) -> String {
    const PEER: &str = "onnxruntime";
    let mut text = String::new();
    for (machine, vectors) in CPUS {
        let cases = records.cases(machine, "zoo");
        if cases.is_empty() {
            continue;
        }
        let get = |case: &str, how: &str, who: &str| {
            records.get(machine, "zoo", case, &format!("{how}; bound; {who}"))
        };
        let ratio = |case: &str, how: &str| get(case, how, "onepool") / get(case, how, PEER);
        let row = |case: &&str| {
            let times = ["onepool", PEER].map(|who| digits(get(case, "alone", who)));
            let ratios = ["alone", "in turn"].map(|how| format!("{:.2}", ratio(case, how)));
            [vec![(*case).to_owned()], times.to_vec(), ratios.to_vec()].concat()
        };
        let rows: Vec<_> = cases.iter().map(row).collect();
        let [alone, in_turn] = ["alone", "in turn"].map(|how| {
            let sum: f64 = cases.iter().map(|case| ratio(case, how).ln()).sum();
            (sum / cases.len() as f64).exp()
        });
        // A line right after a table would be a row of it.
        let between = if text.is_empty() { "" } else { "\n" };
        let _ = write!(
            text,
            "{between}Geometric means of the ratios: {alone:.2} alone, {in_turn:.2} in turn. Milliseconds, {vectors}, {machine}, {}.\n\n{}",
            records.days_on(machine, "zoo"),
            table(&["model", "onepool", PEER, "ratio", "ratio in turn"], &rows)
        );
    }
    text
}

/// Models in onnxruntime on a machine's GPU, by the provider that ran them: with imports for each run, and with those
/// that are kept.
fn providers(records: &Records) -> String {
    const PEERS: [&str; 2] = ["webgpu", "onnxruntime CPU"];
    let row = |case: &str| {
        let mut cells = vec![case.to_owned()];
        for way in ["vulkan", "vulkan; keep_imports"] {
            let known = |provider| records.known(H100, "provider", case, &format!("{way}; {provider}"));
            let own = known("onepool").unwrap_or_else(|| panic!("no record of {case} by {way}"));
            cells.push(digits(own));
            let beside = PEERS.map(|peer| known(peer).map(|peer| format!("{:.2}", own / peer)));
            cells.extend(beside.map(|ratio| ratio.unwrap_or("-".to_owned())));
        }
        cells
    };
    let rows: Vec<_> = records.cases(H100, "provider").into_iter().map(row).collect();
    format!(
        "Milliseconds and ratios to other providers, {H100}, {}.\n\n{}",
        records.days_on(H100, "provider"),
        table(&["model", "onepool", "to webgpu", "to CPU", "kept imports", "to webgpu", "to CPU"], &rows)
    )
}

fn sharing(records: &Records) -> String {
    let mut rows = Vec::new();
    for case in records.cases(LAVAPIPE, "sharing") {
        let of =
            records.all.iter().filter(|r| r.machine == LAVAPIPE && r.bench == "sharing" && r.case == case);
        for metric in of.filter_map(|record| record.metric.strip_suffix("; apart")) {
            let get = |way: &str| records.get(LAVAPIPE, "sharing", case, &format!("{metric}; {way}"));
            let (apart, shared) = (get("apart"), get("shared"));
            let saved = format!("{:.0} %", 100.0 * (1.0 - shared / apart));
            rows.push(vec![case.to_owned(), metric.to_owned(), digits(apart), digits(shared), saved]);
        }
    }
    format!(
        "MiB, {LAVAPIPE}, {}.\n\n{}",
        records.days_on(LAVAPIPE, "sharing"),
        table(&["model", "memory", "apart", "shared", "saved"], &rows)
    )
}

fn process_memory(records: &Records) -> String {
    let get = |case: &str, metric| records.get(LAVAPIPE, "process memory", case, metric);
    let cases = records.cases(LAVAPIPE, "process memory");
    let row = |case: &&str| {
        let file = get(case, "file");
        let mut row = vec![(*case).to_owned(), digits(file)];
        for metric in ["cpu", "vulkan"] {
            row.push(digits(get(case, metric)));
            row.push(format!("{:.1}", get(case, metric) / file));
        }
        row
    };
    let rows: Vec<_> = cases.iter().map(row).collect();
    format!(
        "On the CPU a model takes {} times its file. MiB, {LAVAPIPE}, {}.\n\n{}",
        range(cases.iter().map(|case| get(case, "cpu") / get(case, "file"))),
        records.days_on(LAVAPIPE, "process memory"),
        table(&["model", "file", "cpu", "cpu / file", "vulkan", "vulkan / file"], &rows)
    )
}

fn weights_once(records: &Records) -> String {
    let get = |case: &str, metric: &str| records.get(LAVAPIPE, "weights once", case, metric);
    let cases = records.cases(LAVAPIPE, "weights once");
    let devices = ["cpu", "vulkan", "opencl"];
    let row = |case: &&str| {
        let mut row = vec![(*case).to_owned(), digits(get(case, "file"))];
        for device in devices {
            let session = |which: &str| get(case, &format!("{device}; {which}"));
            row.extend([digits(session("first")), digits(session("second"))]);
        }
        row
    };
    let rows: Vec<_> = cases.iter().map(row).collect();
    let part = |case: &&str| {
        let second = devices.map(|device| get(case, &format!("{device}; second")));
        second.into_iter().fold(0.0, f64::max) / get(case, "file")
    };
    format!(
        "A second session takes at most {:.0} % of the file. Most anonymous memory, MiB, {LAVAPIPE}, {}.\n\n{}",
        100.0 * cases.iter().map(part).fold(0.0, f64::max),
        records.days_on(LAVAPIPE, "weights once"),
        table(&["model", "file", "cpu", "second", "vulkan", "second", "opencl", "second"], &rows)
    )
}

fn planned_memory(records: &Records) -> String {
    let mut rows = Vec::new();
    for case in records.cases(LAVAPIPE, "planned memory") {
        for device in ["cpu", "vulkan"] {
            let sizes = ["peak", "bound", "TVM's rule", "without reuse"];
            let sizes =
                sizes.map(|m| records.get(LAVAPIPE, "planned memory", case, &format!("{device}; {m}")));
            let ratio = format!("{:.2}", sizes[0] / sizes[1]);
            let mut row = vec![case.to_owned(), device.to_owned()];
            row.extend(sizes.map(digits));
            row.push(ratio);
            rows.push(row);
        }
    }
    let ratios = rows.iter().map(|row| row[6].parse::<f64>().unwrap());
    format!(
        "The planned peak is at most {:.2} times the bound. MiB, computed, {}.\n\n{}",
        ratios.fold(0.0, f64::max),
        records.days_on(LAVAPIPE, "planned memory"),
        table(&["model", "device", "peak", "bound", "TVM's rule", "without reuse", "peak / bound"], &rows)
    )
}

/// What the interfaces of a run of a tiny model take, and what each adds to the time from Rust.
fn doors(records: &Records) -> String {
    let get = |device: &str, metric: &str| 1e3 * records.get(LAVAPIPE, "doors", device, metric);
    let names = ["rust", "c", "python", "onnxruntime"];
    let words = ["Rust", "C", "Python", "onnxruntime, onepool's provider"];
    let (mut rows, mut most) = (Vec::new(), 0.0f64);
    for device in records.cases(LAVAPIPE, "doors") {
        let rust = get(device, "rust");
        for (name, words) in names.into_iter().zip(words) {
            let time = get(device, name);
            let mut row =
                vec![words.to_owned(), device.to_owned(), digits(time), format!("{:.2}", time / rust)];
            row.push(match name {
                "rust" => "-".to_owned(),
                _ => {
                    let added = get(device, &format!("{name}; added"));
                    most = most.max(added);
                    format!("{added:.1}")
                }
            });
            rows.push(row);
        }
        if let Some(ms) = records.known(LAVAPIPE, "doors", device, "onnxruntime alone") {
            let time = 1e3 * ms;
            let words = "onnxruntime, its own provider".to_owned();
            rows.push(vec![
                words,
                device.to_owned(),
                digits(time),
                format!("{:.2}", time / rust),
                "-".to_owned(),
            ]);
        }
    }
    format!(
        "An interface adds at most {most:.1} us. Microseconds, {LAVAPIPE}, {}.\n\n{}",
        records.days_on(LAVAPIPE, "doors"),
        table(&["interface", "device", "a run", "times Rust", "added"], &rows)
    )
}

/// Every generated part of the page by name.
pub(crate) fn all(records: &Records) -> Vec<(&'static str, String)> {
    vec![
        ("machines", machines(records)),
        ("transfer", transfers(records)),
        ("doors", doors(records)),
        ("boundary", boundary(records)),
        ("placement", placement(records)),
        ("models", models(records)),
        ("operators", operators(records)),
        ("peer-operators", peer_operators(records)),
        ("peer-models", peer_models(records)),
        ("exports", exports(records)),
        ("language", language(records)),
        ("caches", caches(records)),
        ("appending", appending(records)),
        ("language-cpu", language_cpu(records)),
        ("zoo-cpu", zoo_cpu(records)),
        ("versions", versions(records)),
        ("providers", providers(records)),
        ("sharing", sharing(records)),
        ("process-memory", process_memory(records)),
        ("weights-once", weights_once(records)),
        ("planned-memory", planned_memory(records)),
    ]
}

/// The passes between a graph and its plan, in their order, for docs/design/plan.md.
pub(crate) fn passes() -> String {
    let row = |pass: &onepool::plan::Pass| vec![format!("`{}`", pass.name), pass.does.to_owned()];
    table(&["pass", "what it does"], &onepool::plan::PIPELINE.iter().map(row).collect::<Vec<_>>())
        .replace("---:", "---")
}

/// The page with each part between `<!-- table: NAME -->` and `<!-- end -->` made anew.
///
/// # Errors
/// A part that is not there, or that the page leaves out.
pub(crate) fn fill(page: &str, parts: &[(&str, String)]) -> Result<String, String> {
    let (mut filled, mut rest) = (String::new(), page);
    let mut used = Vec::new();
    while let Some((before, after)) = rest.split_once("<!-- table: ") {
        let (name, after) = after.split_once(" -->").ok_or("a marker is open")?;
        let (_, after) = after.split_once("<!-- end -->").ok_or_else(|| format!("{name} has no end"))?;
        let (_, part) = parts.iter().find(|(n, _)| *n == name).ok_or_else(|| format!("no part {name}"))?;
        let _ = write!(filled, "{before}<!-- table: {name} -->\n{part}<!-- end -->");
        used.push(name);
        rest = after;
    }
    if let Some((name, _)) = parts.iter().find(|(name, _)| !used.contains(name)) {
        return Err(format!("the page leaves out {name}"));
    }
    Ok(filled + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_replaced_and_none_is_left_out() {
        let parts = [("a", "new\n".to_owned())];
        let page = "x\n<!-- table: a -->\nold\n<!-- end -->\ny";
        assert_eq!(fill(page, &parts).unwrap(), "x\n<!-- table: a -->\nnew\n<!-- end -->\ny");
        assert!(fill("x", &parts).is_err());
        assert!(fill("<!-- table: b -->\n<!-- end -->", &parts).is_err());
        assert_eq!(fill("x", &[]).unwrap(), "x");
    }
}
