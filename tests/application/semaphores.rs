//! Semaphores of the application around runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use onepool::backend::vulkan::ash::vk;
use onepool::device::Context;
use onepool::session::{RunOptions, SessionError};
use onepool::{Binding, DType, Error, GraphBuilder, HostRegion, Memory, Session, Tensor, ops};

use crate::app::{App, AppBuffer, SECOND, With, of};
use crate::{double, session};

const STORAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::STORAGE_BUFFER;
const ALL: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

fn bound<'a>(context: &Context, x: &AppBuffer<'a>, y: &AppBuffer<'a>, n: u64) -> Binding<'static> {
    let session = session(context, double(n));
    let (from, to) = (x.import(context), y.import(context));
    session.bind().input("x", Memory::buffer(&from)).output("y", Memory::buffer(&to)).build().unwrap()
}

#[test]
fn a_run_waits_for_one_value_of_a_timeline_semaphore_and_signals_another() {
    let app = App::new(With::All);
    let (x, y) = (app.buffer(&[0.0; 512], STORAGE), app.buffer(&[0.0; 512], STORAGE));
    let semaphore = app.semaphore(true);
    let context = app.context();
    let mut binding = bound(&context, &x, &y, 512);
    for round in 0..4 {
        let (begin, end) = (2 * round + 1, 2 * round + 2);
        let options = RunOptions::new().wait(&of(&context, semaphore, Some(begin))).signal(&of(
            &context,
            semaphore,
            Some(end),
        ));
        let pending = binding.submit_with(&options).unwrap();
        assert!(!pending.is_done().unwrap());
        x.set(&[round as f32 + 1.0; 512]);
        app.signal(semaphore, begin);
        assert!(app.wait_for(semaphore, end));
        assert_eq!(y.words(), [2.0 * (round as f32 + 1.0); 512]);
        pending.wait().unwrap();
    }
    drop((binding, context));
    app.destroy(&[semaphore]);
}

#[test]
fn binary_semaphores_order_a_run_between_two_submissions() {
    for with in [With::All, With::Nothing] {
        let app = App::new(with);
        let (x, y) = (app.buffer(&[0.0; 512], ALL), app.buffer(&[0.0; 512], ALL));
        let (before, after) = (app.semaphore(false), app.semaphore(false));
        let context = app.context();
        let mut binding = bound(&context, &x, &y, 512);
        for round in 1..4 {
            let value = round as f32;
            app.submit(&[], &[before], |device, commands| {
                // SAFETY: as the call asks.
                unsafe { device.cmd_fill_buffer(commands, x.raw, 0, 2048, value.to_bits()) };
            });
            let options =
                RunOptions::new().wait(&of(&context, before, None)).signal(&of(&context, after, None));
            let pending = binding.submit_with(&options).unwrap();
            app.submit(&[after], &[], |device, commands| {
                let region = vk::BufferCopy { src_offset: 0, dst_offset: 0, size: 2048 };
                // SAFETY: as the call asks.
                unsafe { device.cmd_copy_buffer(commands, y.raw, x.raw, &[region]) };
            });
            app.finish();
            assert_eq!((x.words()[511], y.words()[0]), (2.0 * value, 2.0 * value));
            pending.wait().unwrap();
        }
        drop((binding, context));
        app.destroy(&[before, after]);
    }
}

#[test]
fn a_semaphore_that_is_never_signalled_ends_the_run_and_what_it_uses_stays_in_use() {
    let app = App::new(With::All);
    let (x, y) = (app.buffer(&[1.0; 512], STORAGE), app.buffer(&[0.0; 512], STORAGE));
    let semaphore = app.semaphore(true);
    let context = app.context();
    let mut binding = bound(&context, &x, &y, 512);
    let read = Arc::new(AtomicUsize::new(0));
    let tell = Arc::clone(&read);
    let options = RunOptions::new().wait(&of(&context, semaphore, Some(1))).semaphore_limit(SECOND / 5);
    let options = options.after_read("x", move || {
        tell.fetch_add(1, Ordering::SeqCst);
    });
    let start = Instant::now();
    let error = binding.run_with(&options).unwrap_err();
    drop(options);
    assert!(
        matches!(error, Error::Session(SessionError::TimeLimit { limit, .. }) if limit == SECOND / 5),
        "{error}"
    );
    // What stands behind it on the queue ends too, also of another session.
    assert!(binding.run().is_err());
    let mut other = session(&context, double(8));
    other.set_input("x", &Tensor::new([8], &[1.0f32; 8]).unwrap()).unwrap();
    assert!(other.run().is_err());
    assert!(start.elapsed() < 60 * SECOND);
    assert_eq!(y.words(), [0.0; 512]);
    assert_eq!(read.load(Ordering::SeqCst), 0, "the device has still to read the input");
    // The application signals late: all that was submitted runs, and the next run is whole.
    app.signal(semaphore, 1);
    app.finish();
    assert_eq!(y.words(), [2.0; 512]);
    let end = Instant::now() + 60 * SECOND;
    while read.load(Ordering::SeqCst) == 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(read.load(Ordering::SeqCst), 1);
    x.set(&[5.0; 512]);
    binding.run().unwrap();
    assert_eq!(y.words(), [10.0; 512]);
    other.run().unwrap();
    assert_eq!(other.get_output("y").unwrap().as_slice::<f32>().unwrap(), [2.0; 8]);
    drop((binding, other, context));
    app.destroy(&[semaphore]);
}

#[test]
fn dropping_what_waits_for_ever_ends_and_frees_nothing_that_is_in_use() {
    let app = App::new(With::All);
    // What is in use when it is dropped is left, so the application's device outlives objects of it.
    app.expect("has not been destroyed");
    let (x, y) = (app.buffer(&[1.0; 512], STORAGE), app.buffer(&[0.0; 512], STORAGE));
    let semaphore = app.semaphore(true);
    let start = Instant::now();
    {
        let context = app.context();
        let mut binding = bound(&context, &x, &y, 512);
        let options = RunOptions::new().wait(&of(&context, semaphore, Some(1))).semaphore_limit(SECOND / 5);
        drop(binding.submit_with(&options).unwrap());
    }
    assert!(start.elapsed() < 60 * SECOND);
    app.signal(semaphore, 1);
    app.finish();
    assert_eq!(y.words(), [2.0; 512]);
    app.destroy(&[semaphore]);
}

#[test]
fn a_run_of_several_devices_begins_after_its_waits_and_signals_when_it_is_over() {
    let app = App::new(With::All);
    let x = app.buffer(&[1.0; 4096], STORAGE);
    let semaphore = app.semaphore(true);
    let context = app.context();
    let mut graph = GraphBuilder::new("two devices");
    let input = graph.input("x", DType::F32, [4096.into()]);
    let twice = graph.op(ops::add(), &[input, input]);
    let y = graph.op(ops::mul(), &[twice, twice]);
    graph.output("y", y);
    let built = Session::builder().graph(graph.build().unwrap()).context(context.clone()).device("cpu");
    let session = built.place_op("Mul", 1).build().unwrap();
    let from = x.import(&context);
    let y = HostRegion::new(1 << 14).unwrap().into_shared();
    let mut binding =
        session.bind().input("x", Memory::buffer(&from)).output("y", Memory::region(&y)).build().unwrap();
    assert!(binding.plan().segments.len() > 1);
    let options = |begin, end| {
        let wait = of(&context, semaphore, Some(begin));
        RunOptions::new().wait(&wait).signal(&of(&context, semaphore, Some(end))).semaphore_limit(2 * SECOND)
    };
    app.signal(semaphore, 1);
    binding.run_with(&options(1, 2)).unwrap();
    assert!(app.wait_for(semaphore, 2));
    assert_eq!(y.read().unwrap().as_slice_of::<f32>().unwrap()[4095], 4.0);
    // Pending: signalled when it is waited for, or dropped.
    drop(binding.submit_with(&options(2, 3)).unwrap());
    assert!(app.wait_for(semaphore, 3));
    let late = binding.run_with(&options(4, 5)).unwrap_err();
    assert!(matches!(late, Error::Session(SessionError::TimeLimit { .. })), "{late}");
    app.signal(semaphore, 4);
    app.finish();
    // Nothing of it ran, so nothing was signalled.
    // SAFETY: the semaphore lives.
    assert_eq!(unsafe { app.device.get_semaphore_counter_value(semaphore).unwrap() }, 4);
    binding.run_with(&options(4, 5)).unwrap();
    assert!(app.wait_for(semaphore, 5));
    drop((binding, session, from, context));
    app.destroy(&[semaphore]);
}

#[test]
fn borrowed_memory_is_waited_for_by_the_host() {
    let app = App::new(With::All);
    let semaphore = app.semaphore(true);
    let context = app.context();
    let built = Session::builder().graph(double(1 << 16)).context(context.clone());
    let session = built.copy_threshold(0).build().unwrap();
    let (x, mut y) = (vec![1.5f32; 1 << 16], vec![0.0f32; 1 << 16]);
    let options = |begin| {
        let wait = of(&context, semaphore, Some(begin));
        RunOptions::new()
            .wait(&wait)
            .signal(&of(&context, semaphore, Some(begin + 1)))
            .semaphore_limit(2 * SECOND)
    };
    app.signal(semaphore, 1);
    session.scope(|s| {
        let mut binding = s.bind().input("x", s.input(&x)).output("y", s.output(&mut y)).build().unwrap();
        binding.run_with(&options(1)).unwrap();
        // Never signalled: nothing that uses the borrowed memory was submitted, so the scope ends.
        let error = binding.run_with(&options(3)).unwrap_err();
        assert!(matches!(error, Error::Session(SessionError::TimeLimit { .. })), "{error}");
        assert!(binding.run().is_err());
    });
    assert_eq!(y, [3.0; 1 << 16]);
    assert!(app.wait_for(semaphore, 2));
    app.signal(semaphore, 3);
    app.finish();
    drop((session, context));
    app.destroy(&[semaphore]);
}
