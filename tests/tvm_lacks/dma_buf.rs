//! Memory files that reach a device as dma-bufs, with a fake of the system's calls: what is asked of the system, what
//! is told of its refusals, and the order in which all ends.
//!
//! The simulated device takes no memory file by its address, as amdgpu does not.

use std::sync::{Arc, Mutex};

use onepool::backend::ContextDesc;
use onepool::backend::sim::{SimConfig, SimDriver, SimFaults};
use onepool::device::Context;
use onepool::memory::dma_buf::{DmaBufSystem, Turn};
use onepool::memory::import::{Path, Reason, Refusal, Verdict};
use onepool::memory::os::{self, Descriptor, OsError};
use onepool::memory::range::ByteRange;
use onepool::registry::Registry;
use onepool::session::SessionError;
use onepool::{Binding, Error, HostRegion, Memory, Session, SharedRegion};

use crate::common::{abs, check_messages, floats, numbers, open, shape};

const N: usize = 32_768;
const BYTES: u64 = 4 * N as u64;

/// Makes a dma-buf of anything, and tells what it was asked.
#[derive(Debug, Default)]
struct Fake {
    asked: Mutex<Vec<String>>,
    create_fails: bool,
    /// Fails from this call of `sync` on.
    sync_fails_at: Option<usize>,
    /// What is looked at when a dma-buf is closed.
    watched: Mutex<Option<(Context, ByteRange)>>,
}

impl Fake {
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl DmaBufSystem for Fake {
    fn create(&self, _: &Descriptor, bytes: u64) -> Result<Descriptor, OsError> {
        self.asked.lock().unwrap().push(format!("create {bytes}"));
        if self.create_fails {
            return Err(OsError::Call { call: "open of /dev/udmabuf", code: 13 });
        }
        Ok(std::fs::File::open("/dev/null").unwrap().into())
    }

    fn sync(&self, _: &Descriptor, turn: Turn) -> Result<(), OsError> {
        let mut asked = self.asked.lock().unwrap();
        asked.push(format!("{turn:?}"));
        let turns = asked.iter().filter(|what| !what.starts_with("create")).count();
        match self.sync_fails_at {
            Some(at) if turns >= at => Err(OsError::Call { call: "ioctl DMA_BUF_IOCTL_SYNC", code: 5 }),
            _ => Ok(()),
        }
    }

    fn close(&self, _: Descriptor) {
        let state = match &*self.watched.lock().unwrap() {
            Some((context, pages)) => {
                let mapped =
                    os::process_map(*pages).unwrap().iter().any(|entry| entry.range.contains(*pages));
                format!(": {} bytes imported, pages mapped: {mapped}", context.usage().imported)
            }
            None => String::new(),
        };
        self.asked.lock().unwrap().push(format!("close{state}"));
    }
}

fn sim(config: SimConfig) -> Context {
    let mut registry = Registry::empty();
    registry.register(Box::new(SimDriver::with(vec![config])));
    registry.open("sim:0", &ContextDesc::default()).unwrap()
}

fn session(context: &Context) -> Session {
    Session::builder().graph(abs(N)).context(context.clone()).copy_threshold(0).build().unwrap()
}

fn file(fake: &Arc<Fake>, bytes: u64) -> Arc<SharedRegion> {
    let system: Arc<dyn DmaBufSystem> = Arc::clone(fake) as _;
    HostRegion::in_memory_file_by(bytes as usize, &system).unwrap().into_shared()
}

fn fill(region: &SharedRegion, at: u64, values: &[f32]) {
    let range = ByteRange::new(at, at + 4 * values.len() as u64);
    region.write_range(range).unwrap().copy_from_slice(bytemuck::cast_slice(values));
}

fn bind(
    session: &Session,
    x: (&Arc<SharedRegion>, u64),
    y: (&Arc<SharedRegion>, u64),
) -> Result<Binding<'static>, Error> {
    let at = |(region, at)| Memory::region_range(region, ByteRange::new(at, at + BYTES)).shape(shape(&[N]));
    session.bind().input("x", at(x)).output("y", at(y)).build()
}

fn verdicts(binding: &Binding<'_>) -> Vec<Verdict> {
    binding.verdicts().cloned().collect()
}

#[test]
fn a_memory_file_is_used_in_place_as_a_dma_buf_and_the_system_is_told_whose_turn_it_is() {
    for config in [SimConfig::coherent(), SimConfig::noncoherent()] {
        let context = sim(config);
        let session = session(&context);
        let fakes = [(); 2].map(|()| Arc::new(Fake::default()));
        let [x, y] = [0, 1].map(|i: usize| file(&fakes[i], BYTES));
        let mut binding = bind(&session, (&x, 0), (&y, 0)).unwrap();
        for verdict in verdicts(&binding) {
            assert_eq!(
                (verdict.path, verdict.reason),
                (Path::DmaBuf, Reason::Refused { refusal: Refusal::Memfd })
            );
        }
        let created = vec![format!("create {BYTES}"), "Begins".to_owned()];
        assert_eq!([fakes[0].asked(), fakes[1].asked()], [created.clone(), created]);
        for round in 0..3 {
            fill(&x, 0, &numbers(N, round));
            binding.run().unwrap();
            // What the host wrote, or may have left where the device writes, leaves before the run; what the
            // device wrote arrives after it.
            assert_eq!(
                [fakes[0].asked(), fakes[1].asked()],
                [vec!["Ends".to_owned()], vec!["Ends".to_owned(), "Begins".to_owned()]]
            );
            let want: Vec<f32> = numbers(N, round).iter().map(|v| v.abs()).collect();
            assert_eq!(floats(&y), want, "round {round}");
        }
        assert_eq!((context.usage().imports, context.usage().imported), (2, 2 * BYTES));
        drop(binding);
        assert_eq!([fakes[0].asked(), fakes[1].asked()], [["close"], ["close"]]);
        check_messages(&context);
    }
}

#[test]
fn two_tensors_of_one_memory_file_share_its_dma_buf() {
    let context = sim(SimConfig::coherent());
    let session = session(&context);
    let fake = Arc::new(Fake::default());
    let both = file(&fake, 2 * BYTES);
    let mut binding = bind(&session, (&both, 0), (&both, BYTES)).unwrap();
    assert_eq!(fake.asked(), [format!("create {}", 2 * BYTES), "Begins".into()]);
    assert_eq!(context.usage().imports, 1);
    fill(&both, 0, &numbers(N, 1));
    binding.run().unwrap();
    assert_eq!(fake.asked(), ["Ends", "Begins"]);
    assert_eq!(floats(&both)[N..], numbers(N, 1).iter().map(|v| v.abs()).collect::<Vec<_>>());
    check_messages(&context);
}

#[test]
fn a_tensor_where_no_binding_may_start_is_copied_by_the_device() {
    let context = sim(SimConfig::coherent());
    let session = session(&context);
    let fake = Arc::new(Fake::default());
    let both = file(&fake, 2 * BYTES + 512);
    let mut binding = bind(&session, (&both, 4), (&both, BYTES + 256)).unwrap();
    let [x, y] = &verdicts(&binding)[..] else { panic!() };
    assert_eq!((x.path, &x.reason), (Path::DmaBuf, &Reason::OffsetRemainder { offset: 4, alignment: 256 }));
    assert_eq!((y.path, &y.reason), (Path::DmaBuf, &Reason::Refused { refusal: Refusal::Memfd }));
    // The input is copied, the output is where it is.
    assert_eq!(binding.bytes_moved(), (BYTES, BYTES));
    for round in 0..2 {
        fill(&both, 4, &numbers(N, round));
        binding.run().unwrap();
        let bytes = both.read_range(ByteRange::new(BYTES + 256, 2 * BYTES + 256)).unwrap();
        let got: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        assert_eq!(got, numbers(N, round).iter().map(|v| v.abs()).collect::<Vec<_>>());
    }
    check_messages(&context);
}

/// Runs with a fake and gives the verdict of the input.
fn fallen(context: &Context, fake: &Arc<Fake>) -> Verdict {
    let session = session(context);
    let (x, y) = (file(fake, BYTES), HostRegion::new(BYTES as usize).unwrap().into_shared());
    fill(&x, 0, &numbers(N, 1));
    let mut binding = bind(&session, (&x, 0), (&y, 0)).unwrap();
    binding.run().unwrap();
    assert_eq!(floats(&y), numbers(N, 1).iter().map(|v| v.abs()).collect::<Vec<_>>());
    let [verdict, other] = &verdicts(&binding)[..] else { panic!() };
    assert_eq!(other.path, Path::Imported);
    check_messages(context);
    let strict = session.bind().strict(true).input("x", Memory::region(&x)).build();
    match verdict.path {
        Path::Staged => {
            assert!(matches!(strict, Err(Error::Session(SessionError::Strict { .. }))), "{strict:?}")
        }
        _ => panic!("{verdict}"),
    }
    verdict.clone()
}

#[test]
fn without_the_device_node_the_cpu_copies_and_the_verdict_says_why() {
    let fake = Arc::new(Fake { create_fails: true, ..Fake::default() });
    let verdict = fallen(&sim(SimConfig::coherent()), &fake);
    assert!(matches!(&verdict.reason, Reason::Refused { refusal: Refusal::NoDmaBuf { .. } }), "{verdict}");
    assert!(verdict.to_string().contains("open of /dev/udmabuf failed with error 13"), "{verdict}");
    assert!(fake.asked().iter().all(|what| what.starts_with("create")));
}

#[test]
fn a_dma_buf_that_the_driver_refuses_is_closed_and_the_cpu_copies() {
    let context = sim(SimConfig {
        faults: SimFaults { refuse_at_import: Some(1), ..SimFaults::default() },
        ..SimConfig::coherent()
    });
    let fake = Arc::new(Fake::default());
    let session = session(&context);
    let (x, y) = (file(&fake, BYTES), HostRegion::new(BYTES as usize).unwrap().into_shared());
    fill(&x, 0, &numbers(N, 1));
    let mut binding = bind(&session, (&x, 0), (&y, 0)).unwrap();
    let verdict = &verdicts(&binding)[0];
    assert_eq!(verdict.path, Path::Staged);
    assert!(
        matches!(&verdict.reason, Reason::Refused { refusal: Refusal::DriverRefused { .. } }),
        "{verdict}"
    );
    assert_eq!(fake.asked(), [format!("create {BYTES}"), "Begins".into(), "close".into()]);
    binding.run().unwrap();
    assert_eq!(floats(&y), numbers(N, 1).iter().map(|v| v.abs()).collect::<Vec<_>>());
    check_messages(&context);
}

#[test]
fn a_device_without_dma_bufs_never_asks_the_system() {
    let fake = Arc::new(Fake::default());
    let mut config = SimConfig::coherent();
    config.profile.dma_bufs = false;
    let verdict = fallen(&sim(config), &fake);
    assert_eq!(verdict.reason, Reason::Refused { refusal: Refusal::Memfd });
    assert_eq!(fake.asked(), [""; 0]);
}

#[test]
fn where_pages_are_taken_by_address_there_is_no_dma_buf() {
    // lavapipe takes memory files, the CPU pointers.
    for (device, path) in [("vulkan", Path::Imported), ("cpu", Path::Host)] {
        let context = open(device);
        let fake = Arc::new(Fake::default());
        let (x, y) = (file(&fake, BYTES), file(&fake, BYTES));
        fill(&x, 0, &numbers(N, 1));
        let session = session(&context);
        let mut binding = bind(&session, (&x, 0), (&y, 0)).unwrap();
        binding.run().unwrap();
        assert_eq!(floats(&y), numbers(N, 1).iter().map(|v| v.abs()).collect::<Vec<_>>(), "{device}");
        assert!(verdicts(&binding).iter().all(|v| v.path == path), "{device}");
        assert_eq!(fake.asked(), [""; 0], "{device}");
        check_messages(&context);
    }
}

/// The device lets go first, then the dma-buf is closed, then the pages go, also when the run is still under way.
#[test]
fn all_ends_in_order() {
    let context = sim(SimConfig::coherent());
    for in_flight in [false, true] {
        let session = session(&context);
        let fake = Arc::new(Fake::default());
        let (x, y) = (file(&fake, BYTES), HostRegion::new(BYTES as usize).unwrap().into_shared());
        let (window, pages) = (x.window().range(), Arc::downgrade(&x));
        let mut binding = bind(&session, (&x, 0), (&y, 0)).unwrap();
        // The output stays imported until the binding is gone, after its inputs or before.
        let before = context.usage().imported;
        assert_eq!(before, 2 * BYTES);
        *fake.watched.lock().unwrap() = Some((context.clone(), window));
        fake.asked();
        if in_flight {
            let run = binding.submit().unwrap();
            drop(x);
            drop(run);
        } else {
            binding.run().unwrap();
            drop(x);
        }
        // A run that no one waited for is let go of with its queue.
        drop((binding, session));
        let asked = fake.asked();
        let closed = asked.last().unwrap();
        let left = [BYTES, 0].map(|bytes| format!("close: {bytes} bytes imported, pages mapped: true"));
        assert!(left.contains(closed), "{asked:?}");
        assert_eq!(context.usage().imported, 0);
        assert!(pages.upgrade().is_none(), "the pages are still kept");
        *fake.watched.lock().unwrap() = None;
    }
    check_messages(&context);
}

/// What arrives at the host is the whole dma-buf, so what the host wrote next to it meanwhile would be lost.
#[test]
fn a_run_that_writes_a_dma_buf_keeps_the_host_from_all_of_it() {
    use onepool::kernel::NativeKernel;
    use onepool::memory::coherency::{Access, Barrier};
    use onepool::recording::{Arg, Command, Dispatch, Recording};
    use std::sync::atomic::{AtomicBool, Ordering};

    let context = sim(SimConfig::coherent());
    let fake = Arc::new(Fake::default());
    let region = file(&fake, 8192);
    let whole = context.import_dma_buf(&region).unwrap();
    let seen = Arc::new(AtomicBool::new(false));
    let (inner, flag) = (Arc::clone(&region), Arc::clone(&seen));
    let kernel = context
        .create_native_kernel(NativeKernel::new("look", move |args| {
            args.take_write::<u8>(0)?.fill(1);
            let neighbour = inner.write_range(ByteRange::new(4096, 4160)).is_err();
            flag.store(neighbour, Ordering::Release);
            Ok(())
        }))
        .unwrap();
    let part = whole.sub_buffer(0, 4096).unwrap().range();
    let args = vec![Arg::Buffer(part, Access::KERNEL_WRITE)];
    let run = Dispatch::new(kernel.id(), args, Vec::new(), [1; 3]);
    let shown = Barrier { src: Access::DEVICE_WRITE, dst: Access::HOST_READ };
    let commands = vec![Command::Dispatch(run), Command::Barrier(shown)];
    let recording = Recording { commands, flush: vec![part], invalidate: vec![part], ..Recording::default() };
    context.queue().unwrap().submit(recording).unwrap().wait().unwrap();
    assert!(seen.load(Ordering::Acquire), "the host could write next to what the device wrote");
    assert!(region.read_range(ByteRange::up_to(4096)).unwrap().iter().all(|byte| *byte == 1));
    drop(region.write().unwrap());
    check_messages(&context);
}

#[test]
fn a_system_that_fails_to_hand_pages_over_fails_the_run() {
    let context = sim(SimConfig::coherent());
    let session = session(&context);
    let fake = Arc::new(Fake { sync_fails_at: Some(2), ..Fake::default() });
    let (x, y) = (file(&fake, BYTES), HostRegion::new(BYTES as usize).unwrap().into_shared());
    let mut binding = bind(&session, (&x, 0), (&y, 0)).unwrap();
    let error = binding.run().unwrap_err();
    assert!(error.to_string().contains("DMA_BUF_IOCTL_SYNC failed with code 5"), "{error}");
}
