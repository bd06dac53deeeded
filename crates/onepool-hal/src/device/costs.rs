//! Measures what imports, copies and reads in place cost on a device, once for a process.
//!
//! Everything runs on memory of its own through the public interface, so that what is measured is what a session pays.

use std::collections::HashMap;
use std::hint::black_box;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::buffer::Buffer;
use super::context::Context;
use super::error::Error;
use super::kernel::Kernel;
use crate::backend::{BufferDesc, DeviceError, Placement};
use crate::kernel::source::negation;
use crate::recording::{Arg, BufferRange, Command, Dispatch, Recording};
use onepool_core::files::cache::CacheFolder;
use onepool_core::files::hash::{Digest, Hash};
use onepool_core::memory::coherency::{Access, Barrier};
use onepool_core::memory::host::{HostRegion, SharedRegion};
use onepool_core::memory::import::costs::ImportTimes;
use onepool_core::memory::import::{CostSource, ImportCosts};
use onepool_core::sync::lock;

/// The environment variable that says `preset` where nothing is to be measured.
pub const COSTS_VARIABLE: &str = "ONEPOOL_IMPORT_COSTS";

/// Bytes of the large and the small buffers that are compared: beyond most caches, and near the threshold.
const LARGE: usize = 8 << 20;
const SMALL: usize = 64 << 10;
/// Bytes that the host reads of each type: past the caches some 0.2 GB/s are usual.
const READ: usize = 256 << 10;
/// Kernels in a row, each on a part of the buffers that none before it touched, in no run, so that no cache of the device
/// has it: a cache may serve its own memory alone, or both as fast.
const ROW: usize = 4;
/// How often each is timed: the fastest counts.
const RUNS: usize = 3;
/// Bytes of a part.
const PART: usize = 2 << 20;
/// Parts of a buffer: those of one kernel and of a row for each run, and one to begin with.
const PARTS: usize = RUNS * (1 + ROW) + 1;
/// How many processes measure what the time was too short for.
const TRIES: u32 = 2;
/// The most time for all of it.
const LIMIT: Duration = Duration::from_millis(50);

/// What is known of a device.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct CostReport {
    /// What follows.
    pub costs: ImportCosts,
    /// The times that were measured, if any were.
    pub times: Option<ImportTimes>,
    /// Milliseconds that the measurement took, where this process made it.
    pub took_ms: Option<f64>,
    /// Why nothing was measured; empty where it was.
    pub note: String,
}

/// Measured devices of this process, by identity of device and driver.
static MEASURED: Mutex<Option<HashMap<String, CostReport>>> = Mutex::new(None);

impl Context {
    /// From which size imports pay on this device, and from how many reads a copy does.
    pub fn import_costs(&self) -> ImportCosts {
        self.cost_report().costs
    }

    /// The same for bindings that last `runs` runs. What is given or preset is for any number.
    pub fn import_costs_of_runs(&self, runs: u32) -> ImportCosts {
        let report = self.cost_report();
        let shared = self.info().memory.shares_host_memory();
        report.times.map_or(report.costs, |times| ImportCosts::of_runs(&times, shared, runs))
    }

    /// The same as [`Context::import_costs`], with the times that it follows from. The first call measures:
    /// nothing is begun after 50 ms, and what is under way then (the build of a kernel, one run of it) ends.
    pub fn cost_report(&self) -> CostReport {
        let core = self.core();
        core.costs.get_or_init(|| report(self, &core.cost_source)).clone()
    }
}

fn preset(context: &Context, note: &str) -> CostReport {
    let shared = context.info().memory.shares_host_memory();
    CostReport { costs: ImportCosts::preset(shared), times: None, took_ms: None, note: note.to_owned() }
}

fn report(context: &Context, source: &CostSource) -> CostReport {
    let info = context.info();
    match source {
        CostSource::Given(costs) => {
            return CostReport { costs: *costs, times: None, took_ms: None, note: "given".to_owned() };
        }
        CostSource::Times(times) => {
            let costs = ImportCosts::of(times, info.memory.shares_host_memory());
            let times = Some(ImportTimes::clone(times));
            return CostReport { costs, times, took_ms: None, note: "given".to_owned() };
        }
        CostSource::Preset => return preset(context, "not measured: preset"),
        CostSource::Auto if std::env::var(COSTS_VARIABLE).is_ok_and(|value| value == "preset") => {
            return preset(context, "not measured: preset by the environment");
        }
        CostSource::Auto | CostSource::Measured => {}
    }
    if info.native {
        return preset(context, "not measured: the device computes on the processor's own memory");
    }
    let known = lock(&MEASURED).as_ref().and_then(|known| known.get(&info.uuid).cloned());
    if let Some(known) = known {
        return known;
    }
    let disk = context.core().cache_dir.as_deref().map(|folder| Disk::new(folder, &info.uuid));
    let kept = disk.as_ref().and_then(Disk::load);
    let tries = kept.as_ref().map_or(0, |kept| kept.tries);
    let kept = kept.filter(|kept| kept.times.is_complete() || info.import.is_none() || tries >= TRIES);
    let clock = Clock(Instant::now());
    let is_new = kept.is_none();
    let measured = match kept.map_or_else(|| measure(context, &clock), |kept| Ok(kept.times)) {
        Ok(times) => {
            let took_ms = is_new.then(|| clock.0.elapsed().as_secs_f64() * 1e3);
            if let Some(disk) = disk.filter(|_| is_new) {
                disk.save(&Kept { times: times.clone(), tries: tries + 1 });
            }
            let costs = ImportCosts::of(&times, info.memory.shares_host_memory());
            CostReport { costs, times: Some(times), took_ms, note: String::new() }
        }
        // What cannot be tried is refused again where it matters, with its own error.
        Err(error) => preset(context, &format!("not measured: {error}")),
    };
    lock(&MEASURED).get_or_insert_default().insert(info.uuid.clone(), measured.clone());
    measured
}

/// What was measured in earlier processes, and in how many.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Kept {
    times: ImportTimes,
    tries: u32,
}

/// Where that is kept.
struct Disk {
    folder: CacheFolder,
    key: Digest,
}

impl Disk {
    fn new(folder: &Path, uuid: &str) -> Disk {
        let mut hash = Hash::new();
        hash.put(("costs of imports", uuid, env!("CARGO_PKG_VERSION")));
        Disk { folder: CacheFolder::new(folder), key: hash.digest() }
    }

    fn name(&self) -> String {
        format!("costs-{}", self.key.short_hex())
    }

    fn load(&self) -> Option<Kept> {
        serde_json::from_slice(&self.folder.load(&self.name(), self.key)?).ok()
    }

    fn save(&self, kept: &Kept) {
        if let Ok(bytes) = serde_json::to_vec(kept) {
            self.folder.save(&self.name(), self.key, &bytes);
        }
    }
}

/// When the measurement began.
struct Clock(Instant);

impl Clock {
    fn is_over(&self) -> bool {
        self.0.elapsed() >= LIMIT
    }

    /// The fastest of some, in nanoseconds, or of as many as fit, at least one.
    fn time(&self, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        let mut best = f64::MAX;
        for _ in 0..RUNS {
            let start = Instant::now();
            call()?;
            best = best.min(start.elapsed().as_nanos() as f64);
            if self.is_over() {
                break;
            }
        }
        Ok(best)
    }
}

fn measure(context: &Context, clock: &Clock) -> Result<ImportTimes, Error> {
    let mut times = ImportTimes::default();
    if context.info().import.is_some() {
        let (small, large) = (region(SMALL)?, region(LARGE)?);
        let import = |region: &Arc<SharedRegion>| clock.time(|| context.import(region).map(drop));
        let (one, many) = (import(&small)?, import(&large)?);
        (times.import_ns, times.import_byte_ns) = line(one, many);
        if !clock.is_over() {
            read_in_place(context, clock, &mut times)?;
        }
    }
    let staging = buffer(context, LARGE, Placement::Shared)?;
    let bytes = vec![1u8; LARGE];
    let copy = |bytes: &[u8]| {
        let part = staging.sub_buffer(0, bytes.len() as u64)?;
        let write = || {
            part.map_write()?.copy_from_slice(bytes);
            Ok(())
        };
        // The first write makes the pages.
        write()?;
        clock.time(write)
    };
    (times.copy_call_ns, times.copy_ns) = line(copy(bytes.get(..SMALL).unwrap_or_default())?, copy(&bytes)?);
    let model = &context.info().memory;
    for placement in Placement::ALL {
        let Some(index) = model.best(placement) else { continue };
        let known = !times.host_read_ns.is_empty();
        if known && clock.is_over() || times.host_read_ns.iter().any(|(known, _)| *known == index) {
            continue;
        }
        let mapped = buffer(context, READ, placement)?;
        if mapped.host_address().is_some() {
            times.host_read_ns.push((index, host_read(clock, &mapped)?));
        }
    }
    Ok(times)
}

/// How kernels read imported memory and the device's own, and what its pages cost a submission: all times, or none where
/// the time is over before.
fn read_in_place(context: &Context, clock: &Clock, times: &mut ImportTimes) -> Result<(), Error> {
    let own = buffer(context, PARTS * PART, Placement::Device)?;
    let mut kernels = Kernels::new(context, clock)?;
    let last = PARTS - 1;
    // The first run of a kernel is slow everywhere; a device whose second one is shows its speed with fewer bytes too.
    kernels.run(kernels.dispatch(&own, last)?)?;
    if clock.is_over() {
        return Ok(());
    }
    let second = Instant::now();
    kernels.run(kernels.dispatch(&own, last)?)?;
    if second.elapsed() > LIMIT / 50 {
        kernels.bytes = 4 * SMALL;
    }
    // Some drivers list every import in every submission, so this is timed before there is one.
    let Some(alone) = kernels.alone(&own)? else { return Ok(()) };
    let imported = context.import(&region(PARTS * PART)?)?;
    let Some([own_row, imported_row]) = kernels.read([&own, &imported])? else { return Ok(()) };
    let Some(device_copy_ns) = kernels.copy(&imported, &own)? else { return Ok(()) };
    let (own_read_ns, imported_read_ns) = (kernels.one_more(own_row), kernels.one_more(imported_row));
    let slower = (imported_read_ns - own_read_ns).max(0.0) * kernels.bytes as f64;
    let alone = alone.min(own_row.one);
    let pages = imported_row.one - slower - alone;
    // Less than a quarter of a submission is noise.
    let submit_byte_ns = if pages > alone / 4.0 { pages / (PARTS * PART) as f64 } else { 0.0 };
    *times = ImportTimes {
        own_read_ns,
        imported_read_ns,
        device_copy_ns,
        submit_byte_ns,
        ..std::mem::take(times)
    };
    Ok(())
}

fn region(bytes: usize) -> Result<Arc<SharedRegion>, Error> {
    let none = |_| DeviceError::OutOfHostMemory { bytes: bytes as u64 };
    let mut region = HostRegion::new(bytes).map_err(none)?;
    // Pages are there before anything is timed.
    region.as_mut_slice().fill(1);
    Ok(region.into_shared())
}

fn buffer(context: &Context, bytes: usize, placement: Placement) -> Result<Buffer, Error> {
    context.create_buffer(&BufferDesc { bytes: bytes as u64, placement, label: "measurement" })
}

/// What is paid once and for each byte, of the times for small and large ones.
fn line(small: f64, large: f64) -> (f64, f64) {
    let each = ((large - small) / (LARGE - SMALL) as f64).max(0.0);
    ((small - each * SMALL as f64).max(0.0), each)
}

fn host_read(clock: &Clock, mapped: &Buffer) -> Result<f64, Error> {
    let mut local = vec![0u8; READ];
    let mut read = || {
        mapped.map_read()?.copy_to(&mut local)?;
        black_box(&local);
        Ok(())
    };
    read()?;
    Ok(clock.time(read)? / READ as f64)
}

/// Nanoseconds of submissions, with one command and with [`ROW`] of them.
#[derive(Clone, Copy, Debug)]
struct Row {
    one: f64,
    all: f64,
}

struct Kernels<'c> {
    context: &'c Context,
    clock: &'c Clock,
    kernel: Kernel,
    to: Buffer,
    /// What a command takes of a part.
    bytes: usize,
}

impl<'c> Kernels<'c> {
    fn new(context: &'c Context, clock: &'c Clock) -> Result<Kernels<'c>, Error> {
        let failed = |log| DeviceError::Program { kernel: "negation".to_owned(), log };
        let kernel = context.create_kernel(&Arc::new(negation().map_err(failed)?), &[])?;
        Ok(Kernels { context, clock, kernel, to: buffer(context, PART, Placement::Device)?, bytes: PART })
    }

    /// Part `n` of a buffer.
    fn part(&self, buffer: &Buffer, n: usize) -> Result<BufferRange, Error> {
        Ok(buffer.sub_buffer((n * PART) as u64, self.bytes as u64)?.range())
    }

    /// A kernel that reads part `n` of `from`, and writes as many bytes to the device's own memory.
    fn dispatch(&self, from: &Buffer, n: usize) -> Result<Command, Error> {
        let items = (self.bytes / 16) as u32;
        let to = self.part(&self.to, 0)?;
        Ok(Command::Dispatch(Dispatch::new(
            self.kernel.id(),
            vec![
                Arg::Buffer(self.part(from, n)?, Access::KERNEL_READ),
                Arg::Buffer(to, Access::KERNEL_WRITE),
            ],
            bytemuck::bytes_of(&items).to_vec(),
            [items.div_ceil(64), 1, 1],
        )))
    }

    fn run(&self, command: Command) -> Result<(), Error> {
        self.time([Ok(command)]).map(drop)
    }

    /// Nanoseconds of a submission of commands one after the other.
    fn time(&self, commands: impl IntoIterator<Item = Result<Command, Error>>) -> Result<f64, Error> {
        let order = Barrier { src: Access::DEVICE, dst: Access::DEVICE };
        let mut ordered = Vec::new();
        for command in commands {
            ordered.extend([Command::Barrier(order), command?]);
        }
        let recording = Recording { commands: ordered, ..Recording::default() };
        let queue = self.context.queue()?;
        let prepared = queue.prepare_checked(recording, &[], true)?;
        let start = Instant::now();
        queue.submit_prepared(&prepared)?.wait()?;
        Ok(start.elapsed().as_nanos() as f64)
    }

    /// The fastest submission of a kernel that reads a part that later ones do not; nothing where the time is over.
    fn alone(&self, own: &Buffer) -> Result<Option<f64>, Error> {
        let mut best = f64::MAX;
        for _ in 0..RUNS {
            if self.clock.is_over() {
                return Ok(None);
            }
            best = best.min(self.time([self.dispatch(own, PARTS - 1)])?);
        }
        Ok(Some(best))
    }

    /// Kernels that read each buffer, in turn, because clocks rise meanwhile; nothing where the time is over.
    fn read(&self, buffers: [&Buffer; 2]) -> Result<Option<[Row; 2]>, Error> {
        self.rows(|which, n| self.dispatch(buffers[which], n))
    }

    /// Nanoseconds for each byte that the device copies; nothing where the time is over.
    fn copy(&self, src: &Buffer, dst: &Buffer) -> Result<Option<f64>, Error> {
        let copy = |_, n| Ok(Command::Copy { src: self.part(src, n)?, dst: self.part(dst, n)? });
        let rows: Option<[Row; 1]> = self.rows(copy)?;
        Ok(rows.map(|[row]| self.one_more(row)))
    }

    /// The fastest of [`RUNS`] rows of each of `N` kinds of commands.
    fn rows<const N: usize>(
        &self,
        command: impl Fn(usize, usize) -> Result<Command, Error>,
    ) -> Result<Option<[Row; N]>, Error> {
        let mut best = [Row { one: f64::MAX, all: f64::MAX }; N];
        for run in 0..RUNS {
            for (which, best) in best.iter_mut().enumerate() {
                if self.clock.is_over() {
                    return Ok(None);
                }
                let first = run * (1 + ROW);
                best.one = best.one.min(self.time([command(which, first)])?);
                let row = (0..ROW).map(|n| command(which, first + 1 + n));
                best.all = best.all.min(self.time(row)?);
            }
        }
        Ok(Some(best))
    }

    /// What one more command of a row costs, for each byte.
    fn one_more(&self, row: Row) -> f64 {
        ((row.all - row.one) / ((ROW - 1) * self.bytes) as f64).max(1e-6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_by_device_and_driver() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("cache");
        let disk = Disk::new(&folder, "device and driver");
        assert_eq!(disk.load(), None);
        let times = ImportTimes { import_ns: 3.5, host_read_ns: vec![(2, 0.25)], ..ImportTimes::default() };
        let kept = Kept { times, tries: 1 };
        disk.save(&kept);
        assert_eq!(Disk::new(&folder, "device and driver").load(), Some(kept));
        assert_eq!(Disk::new(&folder, "another driver").load(), None);
    }

    #[test]
    fn a_line_through_two_times_never_falls() {
        assert_eq!(line(10.0, 5.0), (10.0, 0.0));
        let (fixed, each) = line(1e3 + SMALL as f64, 1e3 + LARGE as f64);
        assert!((fixed - 1e3).abs() < 1e-6 && (each - 1.0).abs() < 1e-9);
    }
}
