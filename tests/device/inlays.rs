//! Recordings in command buffers of the application's, on a simulated device whose memory is not coherent: what the
//! host sees of them.

#![allow(unsafe_code, reason = "the tests are the application that answers for its command buffers")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onepool::backend::sim::{SimConfig, SimDriver};
use onepool::backend::{
    BufferDesc, BufferInfo, ContextBackend, ContextDesc, DeviceError, DeviceInfo, ForeignCommands,
    HostAddress, KernelDesc, MemoryUsage, QueueBackend, Timepoint,
};
use onepool::device::{Buffer, Context, Error, Inlay, Problem, UsageError};
use onepool::recording::{BufferId, BufferRange, Command, DeviceKernelId, PreparedId, Recording};
use onepool::registry::Registry;

use crate::common::{SHOWN, buffer};

/// A device whose command buffers are the application's: it submits them itself, past `device`.
#[derive(Debug)]
struct Lends {
    real: Arc<dyn ContextBackend>,
    app: Arc<App>,
}

/// The application: what it recorded last.
#[derive(Debug, Default)]
struct App {
    queue: Mutex<Option<Arc<dyn QueueBackend>>>,
    recorded: Mutex<Option<PreparedId>>,
    recordings: AtomicUsize,
}

impl App {
    /// Submits its command buffer and waits for it.
    fn run(&self) {
        let queue = self.queue.lock().unwrap().clone().unwrap();
        let recorded = self.recorded.lock().unwrap().unwrap();
        let point = queue.submit_prepared(recorded).unwrap();
        queue.wait(point, None).unwrap();
    }
}

#[derive(Debug)]
struct LendsQueue {
    real: Arc<dyn QueueBackend>,
    app: Arc<App>,
}

impl QueueBackend for LendsQueue {
    fn submit(&self, recording: &Recording) -> Result<Timepoint, DeviceError> {
        self.real.submit(recording)
    }

    fn prepare(&self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        self.real.prepare(recording)
    }

    fn submit_prepared(&self, prepared: PreparedId) -> Result<Timepoint, DeviceError> {
        self.real.submit_prepared(prepared)
    }

    // SAFETY: what the trait asks of the caller.
    unsafe fn record_into(
        &self,
        recording: &Recording,
        _: &ForeignCommands,
    ) -> Result<PreparedId, DeviceError> {
        self.app.recordings.fetch_add(1, Ordering::SeqCst);
        let recorded = self.real.prepare(recording)?;
        *self.app.recorded.lock().unwrap() = Some(recorded);
        Ok(recorded)
    }

    fn release_prepared(&self, prepared: PreparedId) {
        self.real.release_prepared(prepared);
    }

    fn wait(&self, point: Timepoint, timeout: Option<Duration>) -> Result<(), DeviceError> {
        self.real.wait(point, timeout)
    }

    fn completed(&self) -> Result<Timepoint, DeviceError> {
        self.real.completed()
    }

    fn timestamps(&self, point: Timepoint) -> Result<Vec<u64>, DeviceError> {
        self.real.timestamps(point)
    }
}

impl ContextBackend for Lends {
    fn info(&self) -> &DeviceInfo {
        self.real.info()
    }

    fn create_buffer(&self, desc: &BufferDesc) -> Result<BufferId, DeviceError> {
        self.real.create_buffer(desc)
    }

    // SAFETY: what the trait asks of the caller.
    unsafe fn import_host(&self, address: HostAddress, bytes: u64) -> Result<BufferId, DeviceError> {
        // SAFETY: as the caller promises.
        unsafe { self.real.import_host(address, bytes) }
    }

    fn buffer_info(&self, buffer: BufferId) -> Result<BufferInfo, DeviceError> {
        self.real.buffer_info(buffer)
    }

    fn flush(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        self.real.flush(ranges)
    }

    fn invalidate(&self, ranges: &[BufferRange]) -> Result<(), DeviceError> {
        self.real.invalidate(ranges)
    }

    fn destroy_buffer(&self, buffer: BufferId) {
        self.real.destroy_buffer(buffer);
    }

    fn create_kernel(&self, desc: &KernelDesc<'_>) -> Result<DeviceKernelId, DeviceError> {
        self.real.create_kernel(desc)
    }

    fn destroy_kernel(&self, kernel: DeviceKernelId) {
        self.real.destroy_kernel(kernel);
    }

    fn create_queue(&self) -> Result<Arc<dyn QueueBackend>, DeviceError> {
        let real = self.real.create_queue()?;
        *self.app.queue.lock().unwrap() = Some(Arc::clone(&real));
        Ok(Arc::new(LendsQueue { real, app: Arc::clone(&self.app) }))
    }

    fn usage(&self) -> MemoryUsage {
        self.real.usage()
    }

    fn validation_messages(&self) -> Vec<String> {
        self.real.validation_messages()
    }
}

fn lends(config: SimConfig) -> (Context, Arc<App>) {
    let mut registry = Registry::empty();
    registry.register(Box::new(SimDriver::with(vec![config])));
    let real = registry.open_backend("sim:0", &ContextDesc::default()).unwrap();
    let app = Arc::new(App::default());
    (Context::new(Arc::new(Lends { real, app: Arc::clone(&app) })), app)
}

/// y = 7, in words, shown to the host.
fn sevens(context: &Context, y: &Buffer) -> Inlay {
    let fill = Command::Fill { dst: y.range(), value: 7 };
    let recording = Recording { commands: vec![fill, Command::Barrier(SHOWN)], ..Recording::default() };
    // SAFETY: the tests submit before they drop the result, and wait for it.
    unsafe { context.queue().unwrap().record_own_into(recording, &ForeignCommands::new(1)).unwrap() }
}

#[test]
fn the_host_sees_what_a_command_buffer_wrote() {
    for config in [SimConfig::coherent(), SimConfig::noncoherent()] {
        let (context, app) = lends(config);
        let y = buffer(&context, 256);
        y.map_write().unwrap().fill(0);
        // What the host has seen may lie in its caches.
        assert!(y.map_read().unwrap().iter().all(|byte| *byte == 0));
        let inlay = sevens(&context, &y);
        app.run();
        drop(inlay);
        assert_eq!(y.map_read().unwrap().as_slice_of::<u32>().unwrap(), [7; 64]);
        assert_eq!(context.validation_messages(), Vec::<String>::new());
    }
}

#[test]
fn the_host_is_kept_away_while_a_command_buffer_may_run() {
    let busy = |error: Error| {
        let problem = matches!(error, Error::Usage(UsageError { problem: Problem::Busy { .. }, .. }));
        assert!(problem && error.to_string().contains("command buffer"), "{error}");
    };
    let (context, app) = lends(SimConfig::coherent());
    let (x, y) = (buffer(&context, 256), buffer(&context, 256));
    x.map_write().unwrap().fill(1);
    let copy = Command::Copy { src: x.range(), dst: y.range() };
    let recording = Recording { commands: vec![copy, Command::Barrier(SHOWN)], ..Recording::default() };
    // SAFETY: as in `sevens`.
    let record = || unsafe {
        context.queue().unwrap().record_own_into(recording.clone(), &ForeignCommands::new(1)).unwrap()
    };
    let (first, second) = (record(), record());
    for inlay in [first, second] {
        busy(y.map_read().unwrap_err());
        busy(y.map_write().unwrap_err());
        busy(x.map_write().unwrap_err());
        // Both only read.
        assert_eq!(x.map_read().unwrap()[0], 1);
        app.run();
        drop(inlay);
    }
    assert_eq!(y.map_read().unwrap()[255], 1);
    x.map_write().unwrap().fill(2);
}

#[test]
fn times_are_refused_before_anything_is_recorded() {
    let (context, app) = lends(SimConfig::coherent());
    let y = buffer(&context, 256);
    let commands = vec![Command::Fill { dst: y.range(), value: 1 }, Command::Timestamp { slot: 0 }];
    let recording = Recording { commands, timestamps: 1, ..Recording::default() };
    // SAFETY: nothing is recorded.
    let recorded = unsafe { context.queue().unwrap().record_own_into(recording, &ForeignCommands::new(1)) };
    let error = recorded.unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error}");
    assert_eq!(app.recordings.load(Ordering::SeqCst), 0);
}
