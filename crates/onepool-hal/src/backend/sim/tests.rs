//! The model against a naive one, and the tracker against the model.

use proptest::prelude::*;

use super::model::{DeviceBytes, Hazard, HazardKind, Origin, POISON};
use super::*;
use crate::backend::{BufferDesc, HostAddress, KernelDesc, Placement, Timepoint};
use crate::kernel::{KernelSource, NativeKernel};
use crate::recording::{BufferRange, Command, Recording};
use onepool_core::memory::coherency::{Access, Barrier, ResourceId, Touch, Tracker};
use onepool_core::memory::host::HostRegion;
use onepool_core::memory::range::ByteRange;

const NOW: Origin = Origin { queue: 0, submission: 1 };
const KINDS: [Access; 4] =
    [Access::KERNEL_READ, Access::KERNEL_WRITE, Access::TRANSFER_READ, Access::TRANSFER_WRITE];

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end)
}

fn view(bytes: &DeviceBytes, at: ByteRange, access: Access) -> (Vec<u8>, usize) {
    let mut out = vec![0; at.bytes() as usize];
    let hazards = bytes.view(at, access, NOW, &mut out);
    (out, hazards.len())
}

#[test]
fn a_write_is_seen_by_the_stages_that_a_barrier_names() {
    let mut bytes = DeviceBytes::new(8);
    bytes.write(range(0, 4), &[1; 4], Access::KERNEL_WRITE, NOW);
    assert_eq!(view(&bytes, range(0, 8), Access::KERNEL_READ), (vec![POISON; 8], 1));
    bytes.barrier(Barrier { src: Access::KERNEL_WRITE, dst: Access::TRANSFER_READ }, NOW, false);
    assert_eq!(view(&bytes, range(0, 4), Access::TRANSFER_READ), (vec![1; 4], 0));
    assert_eq!(view(&bytes, range(0, 4), Access::KERNEL_READ), (vec![POISON; 4], 1));
    // A chain: after the transfers that are after the kernels, the write is available already.
    bytes.barrier(Barrier { src: Access::TRANSFER_READ, dst: Access::KERNEL_READ }, NOW, false);
    assert_eq!(view(&bytes, range(0, 4), Access::KERNEL_READ), (vec![1; 4], 0));
}

#[test]
fn an_execution_dependency_makes_nothing_visible() {
    let mut bytes = DeviceBytes::new(4);
    bytes.write(range(0, 4), &[1; 4], Access::KERNEL_WRITE, NOW);
    bytes.barrier(Barrier { src: Access::KERNEL_READ, dst: Access::DEVICE }, NOW, false);
    assert_eq!(view(&bytes, range(0, 4), Access::KERNEL_READ), (vec![POISON; 4], 1));
    // It does order a write after a read.
    bytes.note_read(range(0, 4), Access::KERNEL_READ, NOW);
    let kinds = |hazards: Vec<Hazard>| hazards.into_iter().map(|hazard| hazard.kind).collect::<Vec<_>>();
    let unordered = kinds(bytes.write(range(0, 4), &[2; 4], Access::TRANSFER_WRITE, NOW));
    assert_eq!(unordered, [HazardKind::WriteAfterRead, HazardKind::WriteAfterWrite]);
    let mut bytes = DeviceBytes::new(4);
    bytes.note_read(range(0, 4), Access::KERNEL_READ, NOW);
    bytes.barrier(Barrier { src: Access::KERNEL_READ, dst: Access::DEVICE_WRITE }, NOW, false);
    assert_eq!(bytes.write(range(0, 4), &[2; 4], Access::TRANSFER_WRITE, NOW), []);
}

#[test]
fn unordered_writes_tear_the_bytes_they_share() {
    let mut bytes = DeviceBytes::new(4);
    bytes.write(range(0, 3), &[1; 3], Access::KERNEL_WRITE, NOW);
    let hazards = bytes.write(range(2, 4), &[2; 2], Access::KERNEL_WRITE, NOW);
    assert_eq!(hazards[0].range, range(2, 3));
    bytes.barrier(Barrier { src: Access::DEVICE, dst: Access::DEVICE }, NOW, false);
    assert_eq!(view(&bytes, range(0, 4), Access::KERNEL_READ), (vec![1, 1, POISON, 2], 0));
}

#[test]
fn a_barrier_of_another_queue_orders_nothing_until_the_host_has_waited() {
    let mut bytes = DeviceBytes::new(4);
    let other = Origin { queue: 1, submission: 1 };
    bytes.write(range(0, 4), &[1; 4], Access::KERNEL_WRITE, other);
    bytes.barrier(Barrier { src: Access::DEVICE, dst: Access::DEVICE }, NOW, false);
    assert_eq!(view(&bytes, range(0, 4), Access::KERNEL_READ).1, 1);
    bytes.waited(other, false);
    assert_eq!(view(&bytes, range(0, 4), Access::KERNEL_READ), (vec![1; 4], 0));
}

/// One byte of the naive model: the history of its accesses, searched anew for every question.
#[derive(Clone, Default)]
struct Naive {
    /// Accesses and barriers in order, with the value of writes.
    history: Vec<(Event, u8)>,
}

#[derive(Clone, Copy)]
enum Event {
    Access(Access),
    Barrier(Barrier),
}

impl Naive {
    /// The stages after the event at `at`, whether its write is available, and to whom it is visible.
    fn reach(&self, at: usize, kind: Access) -> (Access, bool, Access) {
        let (mut dependent, mut available, mut visible) = (Access::NONE, false, Access::NONE);
        for (event, _) in &self.history[at + 1..] {
            let Event::Barrier(barrier) = event else { continue };
            if barrier.src.of_stages().intersects(kind.of_stages() | dependent) {
                dependent |= barrier.dst.of_stages();
                available |= barrier.src.contains(kind);
                if available {
                    visible |= barrier.dst;
                }
            }
        }
        (dependent, available, visible)
    }

    fn last_write(&self) -> Option<(usize, Access)> {
        self.history.iter().enumerate().rev().find_map(|(at, (event, _))| match event {
            Event::Access(kind) if !kind.writes().is_empty() => Some((at, *kind)),
            _ => None,
        })
    }

    fn is_hazard(&self, access: Access) -> bool {
        let write = self.last_write();
        let raced = write.is_some_and(|(at, kind)| !self.reach(at, kind).2.contains(access));
        let reads = self.history.iter().enumerate().skip(write.map_or(0, |(at, _)| at + 1));
        raced
            || (!access.writes().is_empty()
                && reads.into_iter().any(|(at, (event, _))| match event {
                    Event::Access(kind) => !self.reach(at, *kind).0.intersects(access.of_stages()),
                    Event::Barrier(_) => false,
                }))
    }
}

fn access() -> impl Strategy<Value = Access> {
    prop::sample::select(&KINDS[..])
}

fn set() -> impl Strategy<Value = Access> {
    prop::collection::vec(access(), 1..5).prop_map(|kinds| kinds.into_iter().fold(Access::NONE, |a, b| a | b))
}

#[derive(Clone, Debug)]
enum Step {
    Touch(Access, ByteRange),
    Barrier(Barrier),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (access(), 0u64..16, 1u64..8).prop_map(|(a, from, len)| Step::Touch(a, range(from, (from + len).min(16)))),
        1 => (set(), set()).prop_map(|(src, dst)| Step::Barrier(Barrier { src, dst })),
    ]
}

proptest! {
    /// The same hazards on the same bytes as the naive model finds.
    #[test]
    fn ranges_behave_as_single_bytes(steps in prop::collection::vec(step(), 1..40)) {
        let mut bytes = DeviceBytes::new(16);
        let mut naive = vec![Naive::default(); 16];
        for step in steps {
            match step {
                Step::Barrier(barrier) => {
                    bytes.barrier(barrier, NOW, false);
                    naive.iter_mut().for_each(|byte| byte.history.push((Event::Barrier(barrier), 0)));
                }
                Step::Touch(access, at) => {
                    let hazards = if access.writes().is_empty() {
                        let mut out = vec![0; at.bytes() as usize];
                        let hazards = bytes.view(at, access, NOW, &mut out);
                        bytes.note_read(at, access, NOW);
                        hazards
                    } else {
                        bytes.write(at, &vec![7; at.bytes() as usize], access, NOW)
                    };
                    for position in at.start..at.end {
                        let found = hazards.iter().any(|hazard| hazard.range.contains_byte(position));
                        let byte = &mut naive[position as usize];
                        prop_assert_eq!(found, byte.is_hazard(access), "{:?} at {}", access, position);
                        byte.history.push((Event::Access(access), 7));
                    }
                }
            }
        }
    }

    /// The barriers that the tracker decides on are enough, and none of them can be left out.
    #[test]
    fn the_trackers_barriers_suffice_and_are_needed(touches in prop::collection::vec((access(), 0u64..16, 1u64..8), 1..30)) {
        let mut tracker = Tracker::new();
        let mut program = Vec::new();
        for (access, from, len) in touches {
            let at = range(from, (from + len).min(16));
            program.extend(tracker.command(&[Touch::new(ResourceId(0), at, access)]).map(Step::Barrier));
            program.push(Step::Touch(access, at));
        }
        let hazards = |program: &mut dyn Iterator<Item = &Step>| {
            let mut bytes = DeviceBytes::new(16);
            program.map(|step| match step {
                Step::Barrier(barrier) => {
                    bytes.barrier(*barrier, NOW, false);
                    0
                }
                Step::Touch(access, at) if access.writes().is_empty() => {
                    let mut out = vec![0; at.bytes() as usize];
                    let hazards = bytes.view(*at, *access, NOW, &mut out);
                    bytes.note_read(*at, *access, NOW);
                    hazards.len()
                }
                Step::Touch(access, at) => {
                    bytes.write(*at, &vec![7; at.bytes() as usize], *access, NOW).len()
                }
            }).sum::<usize>()
        };
        prop_assert_eq!(hazards(&mut program.iter()), 0);
        for left_out in 0..program.len() {
            if matches!(program[left_out], Step::Barrier(_)) {
                let rest = program.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, step)| step);
                prop_assert_ne!(hazards(&mut { rest }), 0);
            }
        }
    }
}

fn open(config: SimConfig) -> Arc<dyn ContextBackend> {
    SimDriver::with(vec![config]).open(0, &ContextDesc::default()).unwrap()
}

#[test]
fn imports_are_as_strict_as_amdgpus() {
    let context = open(SimConfig::coherent());
    let region = HostRegion::new(4 * 4096).unwrap();
    let base = region.as_ptr().as_ptr();
    let import = |offset: usize, bytes: u64| {
        let address = HostAddress(std::ptr::NonNull::new(base.wrapping_add(offset)).unwrap());
        #[allow(unsafe_code, reason = "the region outlives the context's use of it")]
        // SAFETY: nothing touches the region while the context lives, and it is dropped after.
        unsafe {
            context.import_host(address, bytes)
        }
    };
    let refused = Err(DeviceError::ImportRefused { code: -1_000_072_003 });
    for (offset, bytes) in [(64, 4096), (0, 100), (0, 0), (0, u64::MAX - 4095)] {
        assert_eq!(import(offset, bytes), refused, "{offset} {bytes}");
    }
    assert_eq!(context.validation_messages(), Vec::<String>::new());
    let low = import(0, 2 * 4096).unwrap();
    assert_eq!(import(4096, 4096), refused);
    assert!(context.validation_messages()[0].contains("imported twice"));
    let high = import(2 * 4096, 2 * 4096).unwrap();
    context.destroy_buffer(low);
    assert!(import(0, 2 * 4096).is_ok());
    context.destroy_buffer(high);
    drop(context);
}

#[test]
fn more_than_the_device_holds_is_found_at_submit() {
    let context = open(SimConfig::coherent().holding(8192));
    let queue = context.create_queue().unwrap();
    let desc = BufferDesc { bytes: 4096, placement: Placement::Device, label: "" };
    let buffers = [0; 3].map(|_| context.create_buffer(&desc).unwrap());
    let fill = |buffer| {
        let dst = BufferRange { buffer, offset: 0, bytes: 4096 };
        Recording { commands: vec![Command::Fill { dst, value: 1 }], ..Recording::default() }
    };
    assert!(matches!(queue.submit(&fill(buffers[0])), Err(DeviceError::Lost { .. })));
    assert!(matches!(queue.wait(Timepoint(0), None), Err(DeviceError::Lost { .. })));
}

#[test]
fn the_host_learns_of_a_completion_late_and_of_a_misuse_at_once() {
    let context = open(SimConfig::coherent());
    let queue = context.create_queue().unwrap();
    let desc = BufferDesc { bytes: 512, placement: Placement::Device, label: "" };
    let buffer = context.create_buffer(&desc).unwrap();
    let dst = BufferRange { buffer, offset: 0, bytes: 512 };
    let recording = Recording { commands: vec![Command::Fill { dst, value: 1 }], ..Recording::default() };
    let point = queue.submit(&recording).unwrap();
    assert!(queue.completed().unwrap() < point);
    assert_eq!(queue.completed().unwrap(), point);
    let point = queue.submit(&recording).unwrap();
    context.destroy_buffer(buffer);
    assert!(context.validation_messages()[0].contains("destroyed while"));
    queue.wait(point, None).unwrap();
    assert_eq!(queue.submit(&recording), Err(DeviceError::Stale { object: "buffer" }));
    assert_eq!(queue.wait(Timepoint(99), None), Err(DeviceError::Stale { object: "timepoint" }));
    let source = KernelSource::from_native(NativeKernel::new("none", |_| Ok(())));
    let kernel = context.create_kernel(&KernelDesc { source: &source, spec: &[] }).unwrap();
    context.destroy_kernel(kernel);
    context.destroy_kernel(kernel);
}

#[test]
fn what_the_host_wrote_and_did_not_flush_is_lost_dependent_an_invalidate() {
    let context = open(SimConfig::noncoherent());
    let queue = context.create_queue().unwrap();
    let mut region = HostRegion::new(4096).unwrap();
    region.as_mut_slice().fill(7);
    #[allow(unsafe_code, reason = "the region outlives the context's use of it")]
    // SAFETY: nothing but the context touches the region, and the buffer is destroyed before it.
    let buffer = unsafe { context.import_host(HostAddress(region.as_ptr()), 4096) }.unwrap();
    let fill = |offset| {
        let dst = BufferRange { buffer, offset, bytes: 2048 };
        let shown = Barrier { src: Access::TRANSFER_WRITE, dst: Access::HOST_READ };
        let commands = vec![Command::Fill { dst, value: 1 }, Command::Barrier(shown)];
        let point = queue.submit(&Recording { commands, ..Recording::default() }).unwrap();
        queue.wait(point, None).unwrap();
        context.invalidate(&[dst]).unwrap();
        context.validation_messages()
    };
    context.flush(&[BufferRange { buffer, offset: 0, bytes: 2048 }]).unwrap();
    assert_eq!(fill(0), Vec::<String>::new());
    assert!(fill(2048)[0].contains("not flushed"));
    context.destroy_buffer(buffer);
}

/// The device of a recorded driver whose heaps hold `bytes` each.
fn recorded(name: &str, bytes: u64) -> Arc<dyn ContextBackend> {
    open(SimConfig::from(DriverProfile::built_in(name).unwrap().unwrap()).holding(bytes))
}

#[allow(unsafe_code, reason = "the regions outlive the context's use of them")]
fn import(
    context: &dyn ContextBackend,
    region: &HostRegion,
) -> Result<crate::recording::BufferId, DeviceError> {
    // SAFETY: nothing touches the region while the context lives, and the tests drop it after.
    unsafe { context.import_host(HostAddress(region.as_ptr()), region.bytes() as u64) }
}

#[test]
fn overcommit_is_found_where_the_driver_finds_it() {
    let regions = [0; 3].map(|_| HostRegion::new(4096).unwrap());
    let fill = |buffer| {
        let dst = BufferRange { buffer, offset: 0, bytes: 4096 };
        Recording { commands: vec![Command::Fill { dst, value: 1 }], ..Recording::default() }
    };
    // Imports are charged to the heap of their type, and too many lose the device at a submission.
    let radv = recorded("radv-phoenix-780m", 8192);
    let queue = radv.create_queue().unwrap();
    let made: Vec<_> = regions.iter().map(|region| import(&*radv, region).unwrap()).collect();
    assert_eq!(radv.buffer_info(made[0]).unwrap().heap, 0);
    assert!(matches!(queue.submit(&fill(made[0])), Err(DeviceError::Lost { .. })));
    drop(radv);
    // Memory of the device's own is charged to the other heap: both fit.
    let radv = recorded("radv-phoenix-780m", 8192);
    let queue = radv.create_queue().unwrap();
    let desc = BufferDesc { bytes: 4096, placement: Placement::Device, label: "" };
    let own = [0; 2].map(|_| radv.create_buffer(&desc).unwrap());
    let imported: Vec<_> = regions.iter().take(2).map(|region| import(&*radv, region).unwrap()).collect();
    assert_eq!((radv.buffer_info(own[0]).unwrap().heap, radv.buffer_info(imported[0]).unwrap().heap), (1, 0));
    let point = queue.submit(&fill(own[0])).unwrap();
    queue.wait(point, None).unwrap();
    drop(radv);
    // Intel's driver counts imports, and refuses where memory is asked for.
    let anv = recorded("anv-lunarlake", 8192);
    assert!(import(&*anv, &regions[0]).is_ok() && import(&*anv, &regions[1]).is_ok());
    assert_eq!(import(&*anv, &regions[2]).unwrap_err(), DeviceError::ImportRefused { code: -2 });
    assert_eq!(anv.create_buffer(&desc), Err(DeviceError::OutOfDeviceMemory { bytes: 4096 }));
}

/// The kinds of memory that a kernel is shown, and what each recorded kernel says.
#[test]
fn kernels_judge_pages_by_what_is_mapped_there() {
    use onepool_core::memory::os::{Backing, MapEntry};
    let entry = |start: u64, end: u64, writable, shared, backing| MapEntry {
        range: ByteRange::new(start << 12, end << 12),
        readable: true,
        writable,
        shared,
        backing,
    };
    let file = || Backing::File { path: "/w.bin".to_owned(), deleted: false };
    let judge = |name: &str, maps: &[MapEntry]| {
        let import = DriverProfile::built_in(name).unwrap().unwrap().import.unwrap();
        import.judge(ByteRange::new(1 << 12, 3 << 12), maps)
    };
    let (external, unknown, device_memory, lost) = (Err(-1_000_072_003), Err(-13), Err(-2), Err(-4));
    let cases: [(&str, Vec<MapEntry>, [Result<(), i32>; 6]); 8] = [
        ("anonymous", vec![entry(0, 9, true, false, Backing::Anonymous)], [Ok(()); 6]),
        (
            "shared",
            vec![entry(0, 9, true, true, Backing::Anonymous)],
            [external, unknown, Ok(()), Ok(()), device_memory, Ok(())],
        ),
        (
            "memory file",
            vec![entry(0, 9, true, true, Backing::Memfd)],
            [external, unknown, Ok(()), Ok(()), Ok(()), Ok(())],
        ),
        (
            "private file",
            vec![entry(0, 9, true, false, file())],
            [external, unknown, Ok(()), Ok(()), Ok(()), Ok(())],
        ),
        (
            "shared file",
            vec![entry(0, 9, true, true, file())],
            [external, unknown, Ok(()), Ok(()), device_memory, Ok(())],
        ),
        (
            "read only",
            vec![entry(0, 9, false, false, Backing::Anonymous)],
            [external, unknown, external, lost, device_memory, Ok(())],
        ),
        (
            // The kernel of AMD looks at the first mapping alone.
            "anonymous, then a file",
            vec![entry(0, 2, true, false, Backing::Anonymous), entry(2, 9, true, true, file())],
            [Ok(()), Ok(()), Ok(()), Ok(()), device_memory, Ok(())],
        ),
        (
            "a hole",
            vec![entry(0, 2, true, false, Backing::Anonymous)],
            [external, unknown, external, lost, device_memory, external],
        ),
    ];
    let kernels = [
        "radv-phoenix-780m",
        "radv-cezanne-512m",
        "anv-i915-no-llc",
        "anv-lunarlake",
        "nvidia-h200",
        "lavapipe-26",
    ];
    for (what, maps, verdicts) in cases {
        for (name, verdict) in kernels.into_iter().zip(verdicts) {
            assert_eq!(judge(name, &maps), verdict, "{name}: {what}");
        }
    }
    let radv = DriverProfile::built_in("radv-phoenix-780m").unwrap().unwrap().import.unwrap();
    let maps = [entry(0, 9, true, false, Backing::Anonymous)];
    for (start, end) in [(4097, 8192), (4096, 8191), (4096, 4096)] {
        assert_eq!(radv.judge(ByteRange::new(start, end), &maps), external, "{start} to {end}");
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "Linux alone has memory files")]
fn a_driver_that_reports_a_refusal_as_a_lost_device_is_lost() {
    let file = HostRegion::in_memory_file(4096).unwrap();
    let mut profile = DriverProfile::built_in("anv-lunarlake").unwrap().unwrap();
    profile.import.as_mut().unwrap().takes.memfd = false;
    let context = open(profile.into());
    assert!(matches!(import(&*context, &file), Err(DeviceError::Lost { .. })));
    let desc = BufferDesc { bytes: 4096, placement: Placement::Device, label: "" };
    assert!(matches!(context.create_buffer(&desc), Err(DeviceError::Lost { .. })));
}
