//! The records of benchmarks: `benches/records/<date>-<machine>.csv`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[derive(Debug, serde::Deserialize)]
struct Row {
    bench: String,
    case: String,
    metric: String,
    value: f64,
    unit: String,
    commit: String,
}

/// One number, with the day and the machine that its file is named after.
#[derive(Debug)]
pub(crate) struct Record {
    pub date: String,
    pub machine: String,
    pub bench: String,
    pub case: String,
    pub metric: String,
    /// In milliseconds, MiB, TFLOP/s, tokens/s or without a unit.
    pub value: f64,
}

/// Every record, in the order of files and lines.
#[derive(Debug)]
pub(crate) struct Records {
    pub all: Vec<Record>,
    /// What each machine is, by its name, as its newest file says.
    pub machines: BTreeMap<String, String>,
}

impl Records {
    /// The newest value of a metric. A table asks for nothing that was not recorded.
    pub(crate) fn get(&self, machine: &str, bench: &str, case: &str, metric: &str) -> f64 {
        self.find(machine, bench, case, metric)
            .unwrap_or_else(|| panic!("no record of {bench}, {case}, {metric} on {machine}"))
            .value
    }

    /// As [`Records::get`]; `None` where it was not recorded.
    pub(crate) fn known(&self, machine: &str, bench: &str, case: &str, metric: &str) -> Option<f64> {
        self.find(machine, bench, case, metric).map(|record| record.value)
    }

    fn find(&self, machine: &str, bench: &str, case: &str, metric: &str) -> Option<&Record> {
        let of =
            |r: &&Record| (&*r.machine, &*r.bench, &*r.case, &*r.metric) == (machine, bench, case, metric);
        self.all.iter().filter(of).max_by(|a, b| a.date.cmp(&b.date))
    }

    /// The cases of a benchmark on a machine, in the order of the records.
    pub(crate) fn cases(&self, machine: &str, bench: &str) -> Vec<&str> {
        let mut cases: Vec<&str> = Vec::new();
        for record in self.all.iter().filter(|r| r.machine == machine && r.bench == bench) {
            if !cases.contains(&&*record.case) {
                cases.push(&record.case);
            }
        }
        cases
    }

    /// The machines on which a benchmark was recorded.
    pub(crate) fn machines(&self, bench: &str) -> Vec<&str> {
        let names = self.machines.keys().map(String::as_str);
        names.filter(|machine| !self.cases(machine, bench).is_empty()).collect()
    }

    /// The days on which a benchmark was recorded on a machine, newest last.
    pub(crate) fn days_on(&self, machine: &str, bench: &str) -> String {
        self.days_of(|r| r.machine == machine && r.bench == bench)
    }

    /// The same for all machines.
    pub(crate) fn days(&self, bench: &str) -> String {
        self.days_of(|r| r.bench == bench)
    }

    fn days_of(&self, is_one: impl Fn(&Record) -> bool) -> String {
        let mut days: Vec<&str> = self.all.iter().filter(|r| is_one(r)).map(|r| &*r.date).collect();
        days.sort_unstable();
        days.dedup();
        days.join(" and ")
    }
}

pub(crate) fn read(folder: &Path) -> Records {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "csv"));
    files.sort();
    let (mut records, mut machines) = (Vec::new(), BTreeMap::new());
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let (date, machine) = name.split_at_checked(10).unwrap();
        let machine = machine.strip_prefix('-').unwrap();
        let (kept, text) = (records.len(), fs::read_to_string(&file).unwrap());
        let about = text.lines().next().and_then(|line| line.strip_prefix("# machine: "));
        let about = about.unwrap_or_else(|| panic!("{name} does not say what machine it is"));
        machines.insert(machine.to_owned(), about.to_owned());
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        for row in reader.deserialize() {
            let row: Row = row.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(row.commit == "unknown" || row.commit.len() >= 7, "{name}: no commit: {row:?}");
            records.push(Record {
                date: date.to_owned(),
                machine: machine.to_owned(),
                value: scaled(row.value, &row.unit).unwrap_or_else(|| panic!("{name}: unit of {row:?}")),
                bench: row.bench,
                case: row.case,
                metric: row.metric,
            });
        }
        assert!(records.len() > kept, "{name} has no records");
    }
    Records { all: records, machines }
}

/// Times in milliseconds, sizes in MiB, others as they are.
fn scaled(value: f64, unit: &str) -> Option<f64> {
    match unit {
        "us" => Some(value / 1e3),
        "B" => Some(value / f64::from(1 << 20)),
        "ms" | "MiB" | "TFLOP/s" | "GB/s" | "GB" | "tokens/s" | "ratio" => Some(value),
        _ => None,
    }
}
