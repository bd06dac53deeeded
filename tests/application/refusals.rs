//! What is refused, with what is said.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onepool::backend::vulkan::ash::vk::{self, Handle as _};
use onepool::backend::vulkan::{ApplicationDevice, DeviceRequest, Enabled};
use onepool::backend::{ContextDesc, DeviceError, ForeignBuffer, Robustness};
use onepool::device::{self, Context};
use onepool::memory::import::ReadWrite;
use onepool::registry::Registry;
use onepool::session::{RunOptions, SessionError};
use onepool::{Error, Memory, Session};

use crate::app::{App, With, of};
use crate::{double, session};

fn said(result: Result<Context, DeviceError>) -> String {
    let error = result.err().unwrap();
    assert!(matches!(error, DeviceError::Unsupported { .. }), "{error}");
    error.to_string()
}

#[test]
fn devices_that_cannot_be_used_are_refused() {
    let app = App::new(With::Nothing);
    let desc = ContextDesc::default();
    let offer = |physical, queue| {
        let (entry, instance, device) = (app.entry.clone(), app.instance.clone(), app.device.clone());
        ApplicationDevice::new(entry, instance, physical, device, queue, Enabled::default())
    };
    let null = vk::PhysicalDevice::null();
    // SAFETY: null handles are looked for before anything is called.
    unsafe {
        assert!(said(offer(null, (app.queue, 0)).open(&desc)).contains("a null physical device"));
        assert!(said(offer(app.physical, (vk::Queue::null(), 0)).open(&desc)).contains("a null queue"));
        assert!(
            said(offer(app.physical, (app.queue, 77)).open(&desc)).contains("no queue that runs compute")
        );
        let old = app.offer().api_version(vk::API_VERSION_1_0).open(&desc);
        assert!(said(old).contains("1.1 is needed"));
        let guarded = ContextDesc { robustness: Robustness::All, ..ContextDesc::default() };
        assert!(said(app.offer().open(&guarded)).contains("robustBufferAccess"));
        let request = DeviceRequest::new(&app.entry, &app.instance, null, vk::API_VERSION_1_1);
        assert!(request.err().unwrap().to_string().contains("a null physical device"));
    }
}

#[test]
fn a_lock_that_submits_nothing_is_an_error() {
    let app = App::new(With::All);
    // SAFETY: as in `App::context`.
    let context = unsafe { app.offer().lock(|_| ()).open(&ContextDesc::default()).unwrap() };
    let buffer =
        app.buffer(&[0.0; 16], vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::TRANSFER_DST);
    let imported = buffer.import(&context);
    let queue = context.queue().unwrap();
    let event = queue.enqueue_fill(&imported, 1).unwrap();
    let error = event.wait().unwrap_err().to_string();
    assert!(error.contains("a lock of the queue"), "{error}");
    drop((event, imported));
}

#[test]
fn buffers_that_cannot_be_used_are_refused_and_released() {
    let app = App::new(With::All);
    let buffer = app.buffer(&[0.0; 16], vk::BufferUsageFlags::STORAGE_BUFFER);
    let context = app.context();
    let good = buffer.described();
    let import = |context: &Context, described: ForeignBuffer| {
        let released = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&released);
        let release = Box::new(move || seen.store(true, Ordering::SeqCst));
        // SAFETY: what is wrong is found before the driver is asked.
        let error = unsafe { context.import_buffer(&described, ReadWrite::Read, release) }.err().unwrap();
        assert!(released.load(Ordering::SeqCst), "{error}");
        error.to_string()
    };
    let uniform = vk::BufferUsageFlags::UNIFORM_BUFFER.as_raw();
    for (described, text) in [
        (ForeignBuffer { handle: 0, ..good }, "a null buffer"),
        (ForeignBuffer { bytes: 0, ..good }, "0 bytes"),
        (ForeignBuffer { bytes: 1 << 40, ..good }, "above this device's limit"),
        (ForeignBuffer { usage: uniform, ..good }, "without STORAGE_BUFFER"),
        (ForeignBuffer { owner: Some(9), ..good }, "queue family 9"),
    ] {
        let error = import(&context, described);
        assert!(error.contains(text), "{error}");
    }
    let imported = buffer.import(&context);
    assert!(import(&context, good).contains("a second time"));
    // A device of onepool's own, and the CPU, have no buffers of an application.
    let cpu = Registry::with_defaults().open("cpu", &ContextDesc::default()).unwrap();
    assert!(import(&cpu, good).contains("buffers of the application"));
    // A use that it was not made for.
    let event = context.queue().unwrap().enqueue_fill(&imported, 1).unwrap();
    let error = event.wait().unwrap_err().to_string();
    assert!(error.contains("TRANSFER_DST"), "{error}");
    // Another context's buffer, and one that is too small.
    let session = session(&context, double(17));
    let bind = |memory| session.bind().input("x", memory).build().err().unwrap();
    assert!(matches!(bind(Memory::buffer(&imported)), Error::Session(SessionError::Capacity { .. })));
    drop((session, event, imported));
}

#[test]
fn semaphores_that_cannot_be_used_are_refused() {
    let app = App::new(With::All);
    let context = app.context();
    let semaphore = app.semaphore(true);
    // SAFETY: what is wrong is found before the driver is asked.
    let error = unsafe { context.semaphore(0, Some(1)) }.err().unwrap().to_string();
    assert!(error.contains("a null semaphore"), "{error}");
    let cpu = Registry::with_defaults().open("cpu", &ContextDesc::default()).unwrap();
    // SAFETY: as above.
    let error = unsafe { cpu.semaphore(semaphore.as_raw(), Some(1)) }.err().unwrap();
    assert!(matches!(error, device::Error::Device(DeviceError::Unsupported { .. })), "{error}");

    let point = of(&context, semaphore, Some(1));
    let options = RunOptions::new().wait(&point);
    let default = Session::builder().graph(double(4)).context(context.clone()).run_options(options.clone());
    assert!(matches!(default.build().err().unwrap(), Error::Session(SessionError::SemaphoresOfSession)));
    // A session on another device.
    let other = Session::builder().graph(double(4)).device("cpu").build().unwrap();
    let error = other.bind().build().unwrap().run_with(&options).unwrap_err();
    assert!(matches!(error, Error::Session(SessionError::ForeignSemaphore)), "{error}");
    let own = session(&context, double(1 << 16));
    // Values rise.
    app.signal(semaphore, 7);
    let mut binding = own.bind().build().unwrap();
    let error = binding.run_with(&RunOptions::new().signal(&of(&context, semaphore, Some(7)))).unwrap_err();
    assert!(error.to_string().contains("at 7 already"), "{error}");
    binding.run_with(&RunOptions::new().signal(&of(&context, semaphore, Some(8)))).unwrap();
    assert!(app.wait_for(semaphore, 8));
    drop((binding, own, context));
    app.destroy(&[semaphore]);

    // A device without timeline semaphores.
    drop(app);
    let app = App::new(With::Nothing);
    let context = app.context();
    let semaphore = app.semaphore(false);
    // SAFETY: as above.
    let error = unsafe { context.semaphore(semaphore.as_raw(), Some(1)) }.err().unwrap().to_string();
    assert!(error.contains("timelineSemaphore"), "{error}");
    drop(context);
    app.destroy(&[semaphore]);
}
