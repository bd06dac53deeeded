//! Runs in command buffers of the application's, and memory that another queue family owns between runs.

use onepool::backend::vulkan::ash::vk::{self, Handle as _};
use onepool::backend::{ContextDesc, ForeignBuffer, ForeignCommands, StageScope};
use onepool::memory::import::ReadWrite;
use onepool::registry::Registry;
use onepool::session::SessionError;
use onepool::{DType, Error, GraphBuilder, HostRegion, Memory, Session, Tensor, ops};

use crate::app::{App, With};
use crate::images::{COPIED, Picture, SIDE, bytes, words};
use crate::{double, session};

const N: usize = 1 << 12;

fn usage() -> vk::BufferUsageFlags {
    vk::BufferUsageFlags::STORAGE_BUFFER | COPIED
}

fn copy(app: &App, commands: vk::CommandBuffer, from: vk::Buffer, to: vk::Buffer) {
    let region = vk::BufferCopy { src_offset: 0, dst_offset: 0, size: N as u64 * 4 };
    // SAFETY: as the call asks.
    unsafe { app.device.cmd_copy_buffer(commands, from, to, &[region]) };
}

/// The application records an upload, a run, a copy of its own, the run again and a copy, and submits once.
fn recorded_twice(with: With, scoped: bool) {
    let app = App::new(with);
    let values: Vec<f32> = (0..N).map(|i| i as f32 * 0.5 - 9.0).collect();
    let [source, x, y, seen] =
        [&values, &vec![0.0; N], &vec![0.0; N], &vec![0.0; N]].map(|words| app.buffer(words, usage()));
    let context = app.context();
    let built = Session::builder().graph(double(N as u64)).context(context.clone()).fallback(false);
    let built = built.build().unwrap();
    let (from, to) = (x.import(&context), y.import(&context));
    let bound = built.bind().strict(true).input("x", Memory::buffer(&from));
    let mut binding = bound.output("y", Memory::buffer(&to)).build().unwrap();
    let copies = vk::AccessFlags::TRANSFER_READ | vk::AccessFlags::TRANSFER_WRITE;
    let scope = StageScope { stages: vk::PipelineStageFlags::TRANSFER.as_raw(), access: copies.as_raw() };
    let around = Some(scope).filter(|_| scoped);
    let mut inlays = Vec::new();
    app.submit(&[], &[], |_, commands| {
        let into = ForeignCommands { handle: commands.as_raw(), before: around, after: around };
        copy(&app, commands, source.raw, x.raw);
        // SAFETY: the command buffer is being recorded here, and is over before the results are dropped.
        inlays.push(unsafe { binding.record_into(&into).unwrap() });
        copy(&app, commands, y.raw, x.raw);
        // SAFETY: as above.
        inlays.push(unsafe { binding.record_into(&into).unwrap() });
        copy(&app, commands, y.raw, seen.raw);
    });
    // Memory and kernels live as long as the command buffer may use them.
    drop((binding, built, from, to));
    app.finish();
    let wanted: Vec<f32> = values.iter().map(|v| 4.0 * v).collect();
    assert_eq!(seen.words(), wanted);
    drop(inlays);
    drop(context);
}

#[test]
fn a_run_is_recorded_twice_into_a_command_buffer() {
    recorded_twice(With::All, false);
    recorded_twice(With::Nothing, false);
}

#[test]
fn a_run_is_ordered_by_what_the_application_says() {
    recorded_twice(With::All, true);
}

/// Where nothing comes before or after, the scopes are empty; without synchronization2 a stage mask may not be.
#[test]
fn a_run_may_stand_alone_in_a_command_buffer() {
    for with in [With::All, With::Nothing] {
        let app = App::new(with);
        let (x, y) = (app.buffer(&[1.5; N], usage()), app.buffer(&[0.0; N], usage()));
        let context = app.context();
        let built = session(&context, double(N as u64));
        let (from, to) = (x.import(&context), y.import(&context));
        let bound = built.bind().input("x", Memory::buffer(&from)).output("y", Memory::buffer(&to));
        let mut binding = bound.build().unwrap();
        let nothing = Some(StageScope { stages: 0, access: 0 });
        let mut inlay = None;
        app.submit(&[], &[], |_, commands| {
            let into = ForeignCommands { handle: commands.as_raw(), before: nothing, after: nothing };
            // SAFETY: as in `recorded_twice`.
            inlay = Some(unsafe { binding.record_into(&into).unwrap() });
        });
        app.finish();
        assert_eq!(y.words(), [3.0; N]);
        drop((inlay, binding, built, from, to, context));
    }
}

/// A command buffer with a run, primary and secondary, is submitted again with other values.
#[test]
fn a_recorded_run_is_submitted_as_often_as_the_application_likes() {
    for level in [vk::CommandBufferLevel::PRIMARY, vk::CommandBufferLevel::SECONDARY] {
        let app = App::new(With::All);
        let (x, y) = (app.buffer(&[0.0; N], usage()), app.buffer(&[0.0; N], usage()));
        let context = app.context();
        let built = session(&context, double(N as u64));
        let (from, to) = (x.import(&context), y.import(&context));
        let bound = built.bind().input("x", Memory::buffer(&from)).output("y", Memory::buffer(&to));
        let mut binding = bound.build().unwrap();
        let commands = app.begin(level);
        // SAFETY: as in `recorded_twice`.
        let inlay = unsafe { binding.record_into(&ForeignCommands::new(commands.as_raw())).unwrap() };
        // SAFETY: as the calls ask.
        unsafe { app.device.end_command_buffer(commands).unwrap() };
        let submitted = match level {
            vk::CommandBufferLevel::SECONDARY => {
                let primary = app.begin(vk::CommandBufferLevel::PRIMARY);
                // SAFETY: as the calls ask.
                unsafe {
                    app.device.cmd_execute_commands(primary, &[commands]);
                    app.device.end_command_buffer(primary).unwrap();
                }
                primary
            }
            _ => commands,
        };
        for value in [1.0, 2.5, -3.0] {
            x.set(&[value; N]);
            app.run(submitted);
            assert_eq!(y.words(), [2.0 * value; N]);
        }
        drop((inlay, binding, built, from, to, context));
    }
}

#[test]
fn images_go_through_a_run_in_a_command_buffer() {
    let app = App::new(With::All);
    let (sampled, source) =
        (vk::ImageLayout::SHADER_READ_ONLY_OPTIMAL, vk::ImageLayout::TRANSFER_SRC_OPTIMAL);
    let format = vk::Format::R8G8B8A8_UNORM;
    let (from, to) = (Picture::new(&app, format), Picture::new(&app, format));
    let pixels: Vec<u8> = (0..SIDE * SIDE * 4).map(|i| (i % 128) as u8).collect();
    let (given, seen) = (app.buffer(&words(&pixels), COPIED), app.buffer(&[0.0; SIDE * SIDE], COPIED));
    let context = app.context();
    let mut graph = GraphBuilder::new("double");
    let x = graph.input("x", DType::U8, [SIDE, SIDE, 4].map(Into::into));
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    let built = session(&context, graph.build().unwrap());
    let x = from.import(&context, [sampled, sampled], ReadWrite::Read);
    let y = to.import(&context, [vk::ImageLayout::UNDEFINED, source], ReadWrite::Write);
    let bound = built.bind().input("x", Memory::buffer(&x)).output("y", Memory::buffer(&y));
    let mut binding = bound.build().unwrap();
    let mut inlay = None;
    app.submit(&[], &[], |device, commands| {
        from.upload(device, commands, given.raw, sampled);
        // SAFETY: as in `recorded_twice`.
        inlay = Some(unsafe { binding.record_into(&ForeignCommands::new(commands.as_raw())).unwrap() });
        to.download(device, commands, source, seen.raw);
    });
    app.finish();
    drop(inlay);
    assert_eq!(bytes(&seen.words()), pixels.iter().map(|v| 2 * v).collect::<Vec<_>>());
    drop((binding, built, x, y, context));
}

/// The session's own memory is written before and read after; a run by itself may come between.
#[test]
fn values_go_through_a_run_in_a_command_buffer() {
    let app = App::new(With::All);
    let context = app.context();
    let built = session(&context, double(N as u64));
    let value = |v: f32| Tensor::new([N], &vec![v; N]).unwrap();
    let mut binding = built.bind().input("x", Memory::value(value(1.5))).build().unwrap();
    let mut inlay = None;
    app.submit(&[], &[], |_, commands| {
        // SAFETY: as in `recorded_twice`.
        inlay = Some(unsafe { binding.record_into(&ForeignCommands::new(commands.as_raw())).unwrap() });
    });
    // In flight until the result is dropped.
    for error in [binding.get_output("y").unwrap_err(), binding.set_input("x", &value(4.0)).unwrap_err()] {
        assert!(error.to_string().contains("command buffer"), "{error}");
    }
    app.finish();
    drop(inlay);
    assert_eq!(binding.get_output("y").unwrap().as_slice::<f32>().unwrap(), [3.0; N]);
    binding.set_input("x", &value(4.0)).unwrap();
    binding.run().unwrap();
    assert_eq!(binding.get_output("y").unwrap().as_slice::<f32>().unwrap(), [8.0; N]);
    drop((binding, built, context));
}

#[test]
fn runs_that_need_the_host_are_not_recorded() {
    let app = App::new(With::Nothing);
    let context = app.context();
    let nowhere = ForeignCommands::new(0);
    let built = session(&context, double(N as u64));
    let mut binding = built.bind().build().unwrap();
    // SAFETY: nothing is recorded.
    let error = unsafe { binding.record_into(&nowhere).unwrap_err() }.to_string();
    assert!(error.contains("a null command buffer"), "{error}");
    // A device that imports no pages.
    let region = HostRegion::new(N * 4).unwrap().into_shared();
    let mut binding = built.bind().input("x", Memory::region(&region)).build().unwrap();
    // SAFETY: as above.
    let error = unsafe { binding.record_into(&nowhere).unwrap_err() };
    assert!(matches!(error, Error::Session(SessionError::NeedsHost { .. })), "{error}");
    assert!(error.to_string().contains("\"x\", which the CPU copies"), "{error}");
    drop((binding, built, context));
    let other = Registry::with_defaults().open("sim", &ContextDesc::default()).unwrap();
    let built = session(&other, double(N as u64));
    let mut binding = built.bind().build().unwrap();
    // SAFETY: as above.
    let error = unsafe { binding.record_into(&ForeignCommands::new(1)).unwrap_err() }.to_string();
    assert!(error.contains("command buffers of the application"), "{error}");
}

/// Someone outside owns the buffers between runs; the halves of the application's are as the page says.
#[test]
fn memory_is_taken_over_from_outside_and_given_back() {
    let app = App::new(With::All);
    let external = vk::QUEUE_FAMILY_EXTERNAL;
    let (x, y) = (app.buffer(&[1.25; N], usage()), app.buffer(&[0.0; N], usage()));
    let seen = app.buffer(&[0.0; N], usage());
    let context = app.context();
    let hand = |commands, buffer: vk::Buffer, [from, to]: [u32; 2]| {
        let both = vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE;
        let barrier = vk::BufferMemoryBarrier::default()
            .buffer(buffer)
            .size(vk::WHOLE_SIZE)
            .src_queue_family_index(from)
            .dst_queue_family_index(to)
            .src_access_mask(if from == external { vk::AccessFlags::empty() } else { both })
            .dst_access_mask(if to == external { vk::AccessFlags::empty() } else { both });
        let all = vk::PipelineStageFlags::ALL_COMMANDS;
        // SAFETY: as the call asks.
        unsafe {
            app.device.cmd_pipeline_barrier(commands, all, all, Default::default(), &[], &[barrier], &[]);
        }
    };
    // SAFETY: the buffers outlive the context.
    let import = |described: ForeignBuffer| unsafe {
        let described = ForeignBuffer { owner: Some(external), ..described };
        context.import_buffer(&described, ReadWrite::ReadWrite, Box::new(|| {})).unwrap()
    };
    let (from, to) = (import(x.described()), import(y.described()));
    assert!(from.acquisition().is_some_and(|own| own.once && own.copied == 0));
    let built = session(&context, double(N as u64));
    let bound = built.bind().input("x", Memory::buffer(&from)).output("y", Memory::buffer(&to));
    let mut binding = bound.build().unwrap();
    for _ in 0..2 {
        app.submit(&[], &[], |_, commands| {
            hand(commands, x.raw, [app.family, external]);
            hand(commands, y.raw, [app.family, external]);
        });
        let run = binding.submit().unwrap();
        app.submit(&[], &[], |_, commands| {
            hand(commands, x.raw, [external, app.family]);
            hand(commands, y.raw, [external, app.family]);
            copy(&app, commands, y.raw, seen.raw);
        });
        app.finish();
        run.wait().unwrap();
        assert_eq!(seen.words(), [2.5; N]);
    }
    drop((binding, built, from, to, context));
}

/// x is read on the device, the CPU works on the result, and x is read on the device again.
#[test]
fn a_run_of_several_segments_is_not_recorded_and_hands_nothing_over_twice() {
    let app = App::new(With::All);
    let [sampled, general] = [vk::ImageLayout::SHADER_READ_ONLY_OPTIMAL, vk::ImageLayout::GENERAL];
    let picture = Picture::new(&app, vk::Format::R32_SFLOAT);
    let (context, values) = (app.context(), vec![0.5; SIDE * SIDE]);
    let source = app.buffer(&values, COPIED);
    let mut graph = GraphBuilder::new("twice");
    let x = graph.input("x", DType::F32, [SIDE, SIDE].map(Into::into));
    let sum = graph.op(ops::add(), &[x, x]);
    let product = graph.op(ops::mul(), &[sum, sum]);
    let y = graph.op(ops::add(), &[product, x]);
    graph.output("y", y);
    let built = Session::builder().graph(graph.build().unwrap()).context(context.clone()).device("cpu");
    let built = built.place_op("Mul", 1).build().unwrap();
    let changed = picture.import(&context, [sampled, general], ReadWrite::Read);
    let error = built.bind().input("x", Memory::buffer(&changed)).build().unwrap_err();
    assert!(matches!(error, Error::Session(SessionError::HandedOver { segments: 2, .. })), "{error}");
    drop(changed);
    // A layout that stays may be found twice.
    let kept = picture.import(&context, [sampled, sampled], ReadWrite::Read);
    let mut binding = built.bind().input("x", Memory::buffer(&kept)).build().unwrap();
    app.submit(&[], &[], |device, commands| picture.upload(device, commands, source.raw, sampled));
    binding.run().unwrap();
    let found = binding.get_output("y").unwrap();
    assert_eq!(found.as_slice::<f32>().unwrap(), [1.5; SIDE * SIDE]);
    // SAFETY: nothing is recorded.
    let error = unsafe { binding.record_into(&ForeignCommands::new(1)).unwrap_err() }.to_string();
    assert!(error.contains("segments, on "), "{error}");
    app.finish();
    drop((binding, built, kept, context));
}
