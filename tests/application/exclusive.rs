//! Images and handed-over memory are one run's at a time, and the session's own reads leave them alone.

use std::sync::mpsc::channel;
use std::time::Duration;

use onepool::backend::vulkan::ash::vk;
use onepool::backend::{BufferDesc, ForeignBuffer, ForeignCommands, Placement};
use onepool::device::Context;
use onepool::memory::import::ReadWrite;
use onepool::recording::{Command, Recording};
use onepool::session::{RunOptions, SessionError, SubmissionLimit};
use onepool::{DType, Error, Graph, GraphBuilder, Memory, Session, ops};

use crate::app::{App, SECOND, With, of};
use crate::images::{COPIED, Picture, SIDE};
use crate::{double, session};

const FLOATS: vk::Format = vk::Format::R32_SFLOAT;
const PIXELS: usize = SIDE * SIDE;
const SAMPLED: vk::ImageLayout = vk::ImageLayout::SHADER_READ_ONLY_OPTIMAL;
const SOURCE: vk::ImageLayout = vk::ImageLayout::TRANSFER_SRC_OPTIMAL;
const GENERAL: vk::ImageLayout = vk::ImageLayout::GENERAL;
const UNDEFINED: vk::ImageLayout = vk::ImageLayout::UNDEFINED;

/// y = 16 x in four commands, each a submission of its own.
fn sixteenfold() -> Graph {
    let mut graph = GraphBuilder::new("sixteenfold");
    let mut y = graph.input("x", DType::F32, [PIXELS.into()]);
    for _ in 0..4 {
        y = graph.op(ops::add(), &[y, y]);
    }
    graph.output("y", y);
    graph.build().unwrap()
}

fn in_pieces(context: &Context) -> Session {
    let built = Session::builder().graph(sixteenfold()).context(context.clone()).fallback(false);
    built.fuse(false).submission_limit(SubmissionLimit::AtMost(Duration::ZERO)).build().unwrap()
}

/// Each run brings the image into another layout and back, so none may begin inside another one.
#[test]
fn two_sessions_take_turns_with_an_image_that_both_read() {
    let app = App::new(With::All);
    let picture = Picture::new(&app, FLOATS);
    let source = app.buffer(&[0.5; PIXELS], COPIED);
    let context = app.context();
    let x = picture.import(&context, [SAMPLED, SAMPLED], ReadWrite::Read);
    let (first, second) = (in_pieces(&context), in_pieces(&context));
    let mut one = first.bind().input("x", Memory::buffer(&x)).build().unwrap();
    let mut other = second.bind().input("x", Memory::buffer(&x)).build().unwrap();
    app.submit(&[], &[], |device, commands| picture.upload(device, commands, source.raw, SAMPLED));
    for _ in 0..8 {
        let (a, b) = (one.submit().unwrap(), other.submit().unwrap());
        a.wait().unwrap();
        b.wait().unwrap();
    }
    assert_eq!(one.get_output("y").unwrap().as_slice::<f32>().unwrap(), [8.0; PIXELS]);
    assert_eq!(other.get_output("y").unwrap().as_slice::<f32>().unwrap(), [8.0; PIXELS]);
    drop((one, other, first, second, x, context));
}

#[test]
fn nothing_that_reads_an_image_comes_between_the_pieces_of_a_run() {
    let app = App::new(With::All);
    let picture = Picture::new(&app, FLOATS);
    let source = app.buffer(&[2.5; PIXELS], COPIED);
    let context = app.context();
    let x = picture.import(&context, [SAMPLED, SAMPLED], ReadWrite::Read);
    app.submit(&[], &[], |device, commands| picture.upload(device, commands, source.raw, SAMPLED));
    let desc = BufferDesc { bytes: x.bytes(), placement: Placement::Device, label: "copy" };
    let to = [0, 1, 2].map(|_| context.create_buffer(&desc).unwrap());
    let [a, b, c] = [0, 1, 2].map(|i| Command::Copy { src: x.range(), dst: to[i].range() });
    let (mine, yours) = (context.create_queue().unwrap(), context.create_queue().unwrap());
    let cut = Recording { commands: vec![a, b], ..Recording::default() };
    let cut = mine.prepare_cut(cut, &[1]).unwrap();
    let mut run = mine.begin(&cut).unwrap();
    run.submit_next().unwrap();
    let (sender, receiver) = channel();
    let early = std::thread::scope(|scope| {
        scope.spawn(|| {
            let event = yours.submit(Recording { commands: vec![c], ..Recording::default() }).unwrap();
            sender.send(()).unwrap();
            event.wait().unwrap();
        });
        let early = receiver.recv_timeout(SECOND / 4);
        run.submit_next().unwrap();
        early
    });
    assert!(early.is_err(), "submitted between the pieces of another run");
    app.finish();
    drop((run, cut, mine, yours, to, x, context));
}

/// What the session reads of an image is what the run left in the buffer that stands for it.
#[test]
fn an_output_is_read_without_taking_the_image_over_again() {
    let app = App::new(With::All);
    let (from, to) = (Picture::new(&app, FLOATS), Picture::new(&app, FLOATS));
    let (source, seen) = (app.buffer(&[1.5; PIXELS], COPIED), app.buffer(&[0.0; PIXELS], COPIED));
    let context = app.context();
    let mut graph = GraphBuilder::new("double");
    let x = graph.input("x", DType::F32, [SIDE, SIDE].map(Into::into));
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    let built = session(&context, graph.build().unwrap());
    let x = from.import(&context, [SAMPLED, SAMPLED], ReadWrite::Read);
    let y = to.import(&context, [GENERAL, SOURCE], ReadWrite::ReadWrite);
    let bound = built.bind().input("x", Memory::buffer(&x)).output("y", Memory::buffer(&y));
    let mut binding = bound.build().unwrap();
    app.submit(&[], &[], |device, commands| {
        from.upload(device, commands, source.raw, SAMPLED);
        to.upload(device, commands, source.raw, GENERAL);
    });
    binding.run().unwrap();
    let copied = context.traffic().copied;
    for _ in 0..2 {
        assert_eq!(binding.get_output("y").unwrap().as_slice::<f32>().unwrap(), [3.0; PIXELS]);
    }
    let mut bytes = vec![0; PIXELS * 4];
    binding.read_output("y", &mut bytes).unwrap();
    // The three reads alone.
    assert_eq!(context.traffic().copied - copied, 3 * PIXELS as u64 * 4);
    // The image is where the run left it.
    app.submit(&[], &[], |device, commands| to.download(device, commands, SOURCE, seen.raw));
    app.finish();
    assert_eq!(seen.words(), [3.0; PIXELS]);
    drop((binding, built, x, y, context));
}

#[test]
fn an_output_that_another_family_owns_is_not_read_by_the_session() {
    let app = App::new(With::All);
    let usage = vk::BufferUsageFlags::STORAGE_BUFFER | COPIED;
    let y = app.buffer(&[0.0; 64], usage);
    let context = app.context();
    let owner = Some(vk::QUEUE_FAMILY_EXTERNAL);
    // SAFETY: the buffer outlives the context.
    let to = unsafe {
        let described = ForeignBuffer { owner, ..y.described() };
        context.import_buffer(&described, ReadWrite::ReadWrite, Box::new(|| {})).unwrap()
    };
    let built = session(&context, double(64));
    let mut binding = built.bind().output("y", Memory::buffer(&to)).build().unwrap();
    let hand = |[from, to]: [u32; 2]| {
        let barrier = vk::BufferMemoryBarrier::default()
            .buffer(y.raw)
            .size(vk::WHOLE_SIZE)
            .src_queue_family_index(from)
            .dst_queue_family_index(to);
        let all = vk::PipelineStageFlags::ALL_COMMANDS;
        app.submit(&[], &[], |device, commands| {
            // SAFETY: as the call asks.
            unsafe {
                device.cmd_pipeline_barrier(commands, all, all, Default::default(), &[], &[barrier], &[]);
            }
        });
    };
    let (own, external) = (app.family, vk::QUEUE_FAMILY_EXTERNAL);
    hand([own, external]);
    binding.run().unwrap();
    let error = binding.get_output("y").unwrap_err().to_string();
    assert!(error.contains("another queue family owns"), "{error}");
    hand([external, own]);
    app.finish();
    drop((binding, built, to, context));
}

/// Two inputs are one image: what they do to it adds up.
#[test]
fn an_image_bound_twice_is_handed_over_once() {
    let app = App::new(With::All);
    let picture = Picture::new(&app, FLOATS);
    let context = app.context();
    let mut graph = GraphBuilder::new("two names");
    let [x, w] = ["x", "w"].map(|name| graph.input(name, DType::F32, [SIDE, SIDE].map(Into::into)));
    let sum = graph.op(ops::add(), &[x, x]);
    let product = graph.op(ops::mul(), &[sum, sum]);
    let y = graph.op(ops::add(), &[product, w]);
    graph.output("y", y);
    let built = Session::builder().graph(graph.build().unwrap()).context(context.clone()).device("cpu");
    let built = built.place_op("Mul", 1).build().unwrap();
    let changed = picture.import(&context, [SAMPLED, GENERAL], ReadWrite::Read);
    let bound = built.bind().input("x", Memory::buffer(&changed)).input("w", Memory::buffer(&changed));
    let error = bound.build().unwrap_err();
    assert!(matches!(error, Error::Session(SessionError::HandedOver { segments: 2, .. })), "{error}");
    drop((built, changed, context));
}

/// What no run wrote is zero, not what lay in the device's memory.
#[test]
fn a_written_image_gets_no_bytes_of_someone_elses() {
    let app = App::new(With::All);
    let to = Picture::new(&app, FLOATS);
    let seen = app.buffer(&[1.0; PIXELS], COPIED);
    let context = app.context();
    let desc = BufferDesc { bytes: PIXELS as u64 * 4, placement: Placement::Device, label: "before" };
    let before = [0; 4].map(|_| context.create_buffer(&desc).unwrap());
    let queue = context.queue().unwrap();
    for buffer in &before {
        queue.enqueue_fill(buffer, 0xdead_beef).unwrap().wait().unwrap();
    }
    drop(before);
    let built = session(&context, double(8));
    let y = to.import(&context, [UNDEFINED, SOURCE], ReadWrite::Write);
    let value = onepool::Tensor::new([8], &[2.0f32; 8]).unwrap();
    let bound = built.bind().input("x", Memory::value(value)).output("y", Memory::buffer(&y));
    let mut binding = bound.build().unwrap();
    binding.run().unwrap();
    app.submit(&[], &[], |device, commands| to.download(device, commands, SOURCE, seen.raw));
    app.finish();
    let found = seen.words();
    assert_eq!((&found[..8], &found[8..]), (&[4.0; 8][..], &[0.0; PIXELS - 8][..]));
    drop((binding, built, y, context));
}

/// A run of several submissions goes on after `submit`; a semaphore orders the application's commands after it.
#[test]
fn a_semaphore_follows_all_submissions_of_a_run() {
    let app = App::new(With::All);
    let usage = vk::BufferUsageFlags::STORAGE_BUFFER | COPIED;
    let (x, y) = (app.buffer(&[2.0; PIXELS], usage), app.buffer(&[0.0; PIXELS], usage));
    let semaphore = app.semaphore(true);
    let context = app.context();
    let built = in_pieces(&context);
    let (from, to) = (x.import(&context), y.import(&context));
    let bound = built.bind().input("x", Memory::buffer(&from)).output("y", Memory::buffer(&to));
    let mut binding = bound.build().unwrap();
    let run = binding.submit_with(&RunOptions::new().signal(&of(&context, semaphore, Some(1)))).unwrap();
    run.wait().unwrap();
    assert!(app.wait_for(semaphore, 1));
    assert_eq!(y.words(), [32.0; PIXELS]);
    // Such a run is one recording in a command buffer.
    let mut inlay = None;
    app.submit(&[], &[], |_, commands| {
        use vk::Handle as _;
        // SAFETY: the command buffer is being recorded here, and is over before the result is dropped.
        inlay = Some(unsafe { binding.record_into(&ForeignCommands::new(commands.as_raw())).unwrap() });
    });
    app.finish();
    drop((inlay, binding, built, from, to, context));
    app.destroy(&[semaphore]);
}
