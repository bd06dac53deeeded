//! Every recorded driver, played by the simulated device: what a session does with memory there, and the page about it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod memory;
#[allow(dead_code, reason = "the other suites use the rest")]
#[path = "../support/values.rs"]
mod values;

use std::fmt::Write;
use std::path::Path;

use onepool::backend::ContextDesc;
use onepool::backend::sim::DriverProfile;
use onepool::device::Context;
use onepool::registry::Registry;

use self::cases::{CASES, Outcome, outcomes};

/// Set, the page is written instead of compared.
const WRITE: &str = "ONEPOOL_WRITE_DOCS";

pub(crate) fn open(selector: &str) -> Context {
    Registry::with_defaults().open(selector, &ContextDesc::default()).unwrap()
}

struct Row {
    name: &'static str,
    context: Context,
    outcomes: Vec<Outcome>,
}

fn rows() -> Vec<Row> {
    let cpu = open("cpu");
    let row = |name: &'static str| {
        let context = open(&format!("sim:{name}"));
        let outcomes = outcomes(&context, &cpu);
        assert_eq!(context.validation_messages(), [""; 0], "{name}");
        Row { name, context, outcomes }
    };
    DriverProfile::names().map(row).collect()
}

/// The page is generated: this compares it, and the promises of the README are checked on what it says.
#[test]
fn every_recorded_driver_keeps_what_is_promised_and_the_page_says_so() {
    let rows = rows();
    let broken: Vec<String> = rows.iter().flat_map(broken).collect();
    let page = page(&rows);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/DRIVERS.md");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert_eq!(broken, [""; 0], "promises that do not hold");
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == page,
        "docs/DRIVERS.md is not current: {WRITE}=1 cargo test --test drivers writes it"
    );
}

/// What a device that shares the host's memory and imports it does not keep of what is promised.
fn broken(row: &Row) -> Vec<String> {
    let memory = &row.context.info().memory;
    let mut broken = Vec::new();
    if memory.shares_host_memory() {
        for outcome in &row.outcomes {
            let bus = outcome.said.split(|c: char| !c.is_alphanumeric()).any(|word| word == "bus");
            if bus || outcome.said.contains("own memory") {
                broken.push(format!("{}, {}: {:?}", row.name, outcome.case, outcome.said));
            }
        }
    }
    if !memory.shares_host_memory() || memory.import_type().is_none() {
        return broken;
    }
    for outcome in &row.outcomes {
        let Outcome { case, cpu, device, resident, bytes, .. } = outcome;
        let tensors =
            ["input, read once", "input, read twice", "output", "CPU operator amid", "between stages"];
        if tensors.contains(case) && (*cpu, *device) != (0, 0) {
            broken.push(format!(
                "{}, {case}: {cpu} bytes copied by the CPU and {device} by the device",
                row.name
            ));
        }
        // No kernel starts at any byte, so a copy may be, but not by the CPU.
        if *case == "unaligned" && *cpu != 0 {
            broken.push(format!("{}, {case}: {cpu} bytes copied by the CPU", row.name));
        }
        if *case == "by value" && (*cpu, *device) != (*bytes, 0) {
            broken.push(format!(
                "{}, {case}: {cpu} bytes copied by the CPU and {device} by the device",
                row.name
            ));
        }
        // Pages are whole, and layouts round channels up.
        let most = bytes + bytes / 20 + 2 * 4096;
        if let Some(resident) = resident.filter(|resident| case.starts_with("parameter") && *resident > most)
        {
            broken.push(format!("{}, {case}: {resident} bytes are in memory, of {bytes}", row.name));
        }
    }
    broken
}

fn page(rows: &[Row]) -> String {
    let mut page = String::from(HEAD);
    for (title, shares, imports) in [
        ("Devices that share the host's memory and import it", true, true),
        ("Devices that share the host's memory and import nothing", true, false),
        ("Devices with memory of their own", false, true),
        ("Devices with memory of their own that import nothing", false, false),
    ] {
        let of = rows.iter().filter(|row| {
            let memory = &row.context.info().memory;
            (memory.shares_host_memory(), memory.import_type().is_some()) == (shares, imports)
        });
        let of: Vec<&Row> = of.collect();
        if of.is_empty() {
            continue;
        }
        let _ = write!(page, "\n## {title}\n\n| recorded driver |");
        page += &CASES.map(|case| format!(" {case} |")).concat();
        page += "\n|---|";
        page += &CASES.map(|_| "---|").concat();
        page.push('\n');
        for row in of {
            let cells: String = row.outcomes.iter().map(|outcome| format!(" {} |", cell(outcome))).collect();
            let _ = writeln!(page, "| {} |{cells}", row.name);
        }
    }
    page
}

fn cell(outcome: &Outcome) -> String {
    let Outcome { path, cpu, device, resident, bytes, .. } = outcome;
    let times = resident.map_or("-".to_owned(), |held| format!("{:.2}", held as f64 / *bytes as f64));
    format!("{path}: {}, {}; {times}", kib(*cpu), kib(*device))
}

fn kib(bytes: u64) -> String {
    if bytes.is_multiple_of(1024) {
        (bytes / 1024).to_string()
    } else {
        format!("{:.1}", bytes as f64 / 1024.0)
    }
}

const HEAD: &str = "# Recorded drivers

Written by `ONEPOOL_WRITE_DOCS=1 cargo test --test drivers`; that test fails where this page is not current.

Each row is a driver whose memory was recorded (`crates/onepool-hal/src/backend/sim/profiles`, with the sources). The simulated device plays it: heaps, memory types, limits, what its kernel takes for import, and its error codes. `sim:NAME` names it wherever a device is named, `sim:FILE.json` any other profile. The kernels are native functions, so no time is measured here.

A cell is the path, then KiB that the CPU and the device copy in each run, then the bytes in memory, in multiples of the tensor's own. Tensors have 128 KiB; the parameter in a layout has 162 KiB, the image 8 KiB.

- *input, read once*, *input, read twice*, *output*: bound in a region of the caller.
- *by value*: an input that is set and an output that is fetched, 256 KiB together. One copy each is what it means.
- *unaligned*: an input that starts 4 bytes into its region.
- *parameter as it lies*: read by its kernel as the file has it. *parameter in a layout*: packed for its kernel. *By address*: imports there have larger units than the pages of this machine.
- *CPU operator amid*: an operator of the CPU between two of the device; both crossings.
- *image*: a tensor that the graph wants in an image.
- *between stages*: a tensor that one plan makes and the next reads, because sizes are known only in the run; in memory is
  all that the device holds for both plans.
";
