//! Measured times and the choices based on them, kept on disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use crate::files::cache::CacheFolder;
use crate::files::hash::Digest;
use crate::plan::CandidateReport;
use crate::plan::place::Roofline;
use crate::sync::lock;

/// Version of the file's layout; files of other layouts or library versions are ignored.
const FORMAT: &str = concat!("onepool placement 1 ", env!("CARGO_PKG_VERSION"));
/// The name of the file.
const NAME: &str = "placement";
/// Largest size of the file, in bytes.
const MAX_BYTES: usize = 8 << 20;
/// Most entries; the least recently used ones are dropped first.
const MAX_DEVICES: usize = 64;
const MAX_TIMES: usize = 1 << 14;
const MAX_CHOICES: usize = 1 << 10;

/// Measured times of operators on devices and the choices based on them; any number of sessions may share one.
///
/// In a folder it is the file `placement.onepool`. Several processes may use one folder: a file is replaced whole,
/// and a damaged file or one of another version is ignored and replaced. A folder that others may write to is not
/// used, with a warning.
#[derive(Debug, Default)]
pub struct PlacementCache {
    folder: Option<CacheFolder>,
    known: Mutex<NodeTimes>,
    /// Held during a measurement, because parallel measurements disturb each other.
    turn: Mutex<()>,
}

/// A value with the number of its last use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry<T> {
    used: u64,
    value: T,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct NodeTimes {
    /// Number of uses so far.
    clock: u64,
    devices: BTreeMap<String, Entry<Roofline>>,
    /// Nanoseconds by device and operator.
    times: BTreeMap<String, Entry<u64>>,
    choices: BTreeMap<String, Entry<Choice>>,
    #[serde(skip)]
    changed: bool,
}

/// The choice for a graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Choice {
    pub(super) candidates: Vec<CandidateReport>,
    pub(super) chosen: usize,
    /// The cheapest placement by estimates, run-length encoded: (number of nodes, device).
    pub(super) places: Vec<(u32, u32)>,
}

impl Choice {
    /// The device of each node; `None` where the number of nodes is not `nodes`.
    pub(super) fn places(&self, nodes: usize) -> Option<Vec<u32>> {
        let count = self.places.iter().try_fold(0usize, |sum, (n, _)| sum.checked_add(*n as usize))?;
        let runs = self.places.iter().flat_map(|&(n, d)| std::iter::repeat_n(d, n as usize));
        (count == nodes).then(|| runs.collect())
    }

    /// Run-length encodes the devices of all nodes.
    pub(super) fn runs(places: &[u32]) -> Vec<(u32, u32)> {
        places.chunk_by(|a, b| a == b).map(|run| (run.len() as u32, run[0])).collect()
    }
}

impl PlacementCache {
    /// A cache only in memory.
    pub fn in_memory() -> Arc<Self> {
        Arc::default()
    }

    /// A cache in a folder, which is created with the first entry.
    pub fn in_folder(folder: impl AsRef<Path>) -> Arc<Self> {
        let folder = CacheFolder::new(folder.as_ref());
        let known = load(&folder).unwrap_or_default();
        Arc::new(PlacementCache { folder: Some(folder), known: Mutex::new(known), turn: Mutex::default() })
    }

    /// Number of known operator times.
    pub fn len(&self) -> usize {
        self.known().times.len()
    }

    /// Whether it holds no time of an operator.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn known(&self) -> MutexGuard<'_, NodeTimes> {
        lock(&self.known)
    }

    /// Waits for other measurements to end.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    pub(super) fn roofline(&self, device: &str) -> Option<Roofline> {
        let known = &mut *self.known();
        used(&mut known.devices, &mut known.clock, device)
    }

    pub(super) fn set_roofline(&self, device: &str, roofline: Roofline) {
        let known = &mut *self.known();
        known.changed = true;
        keep(&mut known.devices, &mut known.clock, device.to_owned(), roofline, MAX_DEVICES);
    }

    pub(super) fn time(&self, device: &str, operator: u64) -> Option<u64> {
        let known = &mut *self.known();
        used(&mut known.times, &mut known.clock, &time_key(device, operator))
    }

    pub(super) fn set_time(&self, device: &str, operator: u64, nanos: u64) {
        let known = &mut *self.known();
        known.changed = true;
        keep(&mut known.times, &mut known.clock, time_key(device, operator), nanos, MAX_TIMES);
    }

    pub(super) fn choice(&self, graph: &str) -> Option<Choice> {
        let known = &mut *self.known();
        used(&mut known.choices, &mut known.clock, graph)
    }

    pub(super) fn set_choice(&self, graph: &str, choice: Choice) {
        let known = &mut *self.known();
        known.changed = true;
        keep(&mut known.choices, &mut known.clock, graph.to_owned(), choice, MAX_CHOICES);
    }

    /// Merges new entries into the file. A failed write is ignored.
    pub(super) fn save(&self) {
        let Some(folder) = &self.folder else { return };
        let known = &mut *self.known();
        if !std::mem::take(&mut known.changed) {
            return;
        }
        // A write of another process between this read and our write is lost.
        let _alone = folder.lock(NAME);
        if let Some(theirs) = load(folder) {
            known.clock = known.clock.max(theirs.clock);
            adopt(&mut known.devices, theirs.devices, MAX_DEVICES);
            adopt(&mut known.times, theirs.times, MAX_TIMES);
            adopt(&mut known.choices, theirs.choices, MAX_CHOICES);
        }
        match text(known) {
            Ok(text) => folder.save(NAME, key(), text.as_bytes()),
            Err(cause) => tracing::warn!(target: "onepool::placement", %cause, "times not kept"),
        }
    }
}

fn time_key(device: &str, operator: u64) -> String {
    format!("{device}-{operator:016x}")
}

fn used<T: Clone>(map: &mut BTreeMap<String, Entry<T>>, clock: &mut u64, key: &str) -> Option<T> {
    let entry = map.get_mut(key)?;
    *clock = clock.saturating_add(1);
    entry.used = *clock;
    Some(entry.value.clone())
}

fn keep<T>(map: &mut BTreeMap<String, Entry<T>>, clock: &mut u64, key: String, value: T, most: usize) {
    *clock = clock.saturating_add(1);
    map.insert(key, Entry { used: *clock, value });
    bound(map, most);
}

/// Adds unknown entries.
fn adopt<T>(ours: &mut BTreeMap<String, Entry<T>>, theirs: BTreeMap<String, Entry<T>>, most: usize) {
    for (key, entry) in theirs {
        ours.entry(key).or_insert(entry);
    }
    bound(ours, most);
}

/// Drops the least recently used entries, an eighth more than necessary.
fn bound<T>(map: &mut BTreeMap<String, Entry<T>>, most: usize) {
    if map.len() <= most {
        return;
    }
    let mut uses: Vec<u64> = map.values().map(|e| e.used).collect();
    uses.sort_unstable();
    let oldest = uses.get(map.len() - (most - most / 8)).copied().unwrap_or(0);
    map.retain(|_, e| e.used >= oldest);
}

fn key() -> Digest {
    Digest::of(FORMAT.as_bytes())
}

fn load(folder: &CacheFolder) -> Option<NodeTimes> {
    let known: NodeTimes = serde_json::from_slice(&folder.load(NAME, key())?).ok()?;
    known.devices.values().all(|e| e.value.is_sound()).then_some(known)
}

/// The text of the file, within its largest size.
fn text(known: &mut NodeTimes) -> serde_json::Result<String> {
    let mut body = serde_json::to_string(known)?;
    // Choices for large graphs are long.
    while body.len() > MAX_BYTES && !known.choices.is_empty() {
        match known.choices.len() {
            1 => known.choices.clear(),
            n => bound(&mut known.choices, n / 2),
        }
        body = serde_json::to_string(known)?;
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn roofline() -> Roofline {
        Roofline { submit_ns: 10.5, launch_ns: 2.0, flops: 30.0, bytes: 4.25, bus_ns: 0.0 }
    }

    fn filled(folder: &Path) -> Arc<PlacementCache> {
        let cache = PlacementCache::in_folder(folder);
        cache.set_roofline("a", roofline());
        cache.set_time("a", 7, 1234);
        let candidates =
            vec![CandidateReport { device: Some(1), estimate_ns: 5, measured_ns: None }, Default::default()];
        let places = Choice::runs(&[0, 0, 1, 1, 1, 0]);
        cache.set_choice("g", Choice { candidates, chosen: 1, places });
        cache.save();
        cache
    }

    #[test]
    fn what_was_kept_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("deep");
        let first = filled(&folder);
        let again = PlacementCache::in_folder(&folder);
        assert_eq!((again.len(), again.is_empty()), (1, false));
        assert_eq!(again.roofline("a"), Some(roofline()));
        assert_eq!((again.time("a", 7), again.time("a", 8), again.time("b", 7)), (Some(1234), None, None));
        let choice = again.choice("g").unwrap();
        assert_eq!(Some(&choice), first.choice("g").as_ref());
        assert_eq!(choice.places(6), Some(vec![0, 0, 1, 1, 1, 0]));
        assert_eq!(choice.places(5), None);
        assert!(folder.join("placement.onepool").is_file());
    }

    #[test]
    fn what_others_wrote_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (PlacementCache::in_folder(folder.path()), PlacementCache::in_folder(folder.path()));
        a.set_time("d", 1, 10);
        b.set_time("d", 2, 20);
        a.save();
        b.save();
        let c = PlacementCache::in_folder(folder.path());
        assert_eq!((c.time("d", 1), c.time("d", 2)), (Some(10), Some(20)));
    }

    #[test]
    fn a_damaged_or_foreign_file_is_passed_over_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("placement.onepool");
        let kept = CacheFolder::new(folder.path());
        filled(folder.path());
        let good = fs::read_to_string(&file).unwrap();
        let body = good.split_once('\n').unwrap().1;
        let old = Digest::of(FORMAT.replace("placement 1", "placement 0").as_bytes());
        let damaged = [String::new(), "{}".to_owned(), good.replace("1234", "1235"), body.to_owned()];
        let mut cases: Vec<Box<dyn Fn()>> =
            vec![Box::new(|| kept.try_save(NAME, old, body.as_bytes()).unwrap())];
        for text in damaged {
            let file = &file;
            cases.push(Box::new(move || fs::write(file, &text).unwrap()));
        }
        // A well-formed file with senseless contents.
        let senseless =
            [r#"{"clock":1}"#, &body.replace("30.0", "0.0"), &body.replace("10.5", "-1.0"), "[]", ""];
        for text in senseless.map(str::to_owned) {
            let kept = &kept;
            cases.push(Box::new(move || kept.try_save(NAME, key(), text.as_bytes()).unwrap()));
        }
        for (i, spoil) in cases.iter().enumerate() {
            spoil();
            let cache = PlacementCache::in_folder(folder.path());
            assert_eq!(
                (cache.roofline("a"), cache.time("a", 7), cache.choice("g")),
                (None, None, None),
                "case {i}"
            );
            filled(folder.path());
            assert_eq!(PlacementCache::in_folder(folder.path()).time("a", 7), Some(1234));
        }
    }

    #[test]
    fn writers_at_once_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                scope.spawn(move || {
                    let cache = PlacementCache::in_folder(folder);
                    for i in 0..5 {
                        cache.set_time("d", writer * 5 + i, 1);
                        cache.save();
                    }
                });
            }
        });
        assert_eq!(PlacementCache::in_folder(folder).len(), 20);
    }

    #[test]
    fn a_file_stays_as_short_as_what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let cache = PlacementCache::in_folder(folder.path());
        let places: Vec<(u32, u32)> = (0..500_000).map(|i| (1, i % 2)).collect();
        for graph in ["a", "b", "c"] {
            cache.set_choice(graph, Choice { places: places.clone(), ..Choice::default() });
        }
        cache.set_time("d", 1, 10);
        cache.save();
        let again = PlacementCache::in_folder(folder.path());
        assert_eq!((again.choice("a"), again.time("d", 1)), (None, Some(10)));
        assert_eq!(again.choice("c").map(|c| c.places.len()), Some(places.len()));
    }

    #[test]
    fn it_does_not_grow_without_bound_and_keeps_what_is_used() {
        let cache = PlacementCache::in_memory();
        for operator in 0..(MAX_TIMES as u64 + 1000) {
            cache.set_time("d", operator, operator);
            assert_eq!(cache.time("d", 0), Some(0));
        }
        assert!(cache.len() <= MAX_TIMES);
        assert_eq!((cache.time("d", 1), cache.time("d", MAX_TIMES as u64)), (None, Some(MAX_TIMES as u64)));
        // The folder cannot be written.
        cache.save();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "no folder").unwrap();
        filled(&file);
        assert_eq!(fs::read_to_string(&file).unwrap(), "no folder");
    }
}
