//! What a run records about memory that another queue family owns, and about layouts.

use onepool::backend::vulkan::ash::vk::{self, Handle as _};
use onepool::backend::{ForeignBuffer, ForeignCommands, ForeignImage};
use onepool::memory::import::ReadWrite;
use onepool::{DType, GraphBuilder, Memory, ops};

use crate::app::{App, With};
use crate::images::{COPIED, Picture, SIDE};
use crate::watch::{self, Recorded, recorded};
use crate::{double, session};

const N: usize = 256;
const EXTERNAL: u32 = vk::QUEUE_FAMILY_EXTERNAL;
const IGNORED: u32 = vk::QUEUE_FAMILY_IGNORED;
const SAMPLED: vk::ImageLayout = vk::ImageLayout::SHADER_READ_ONLY_OPTIMAL;
const GENERAL: vk::ImageLayout = vk::ImageLayout::GENERAL;
const SOURCE: vk::ImageLayout = vk::ImageLayout::TRANSFER_SRC_OPTIMAL;
const TARGET: vk::ImageLayout = vk::ImageLayout::TRANSFER_DST_OPTIMAL;

/// The application's half of a transfer of an image's ownership.
fn hand(app: &App, commands: vk::CommandBuffer, image: &ForeignImage, to_outside: bool) {
    let layout = vk::ImageLayout::from_raw(if to_outside { image.layout } else { image.leave });
    let (all, any) = (vk::PipelineStageFlags::ALL_COMMANDS, vk::AccessFlags::MEMORY_READ);
    let whole = vk::ImageSubresourceRange::default()
        .aspect_mask(vk::ImageAspectFlags::COLOR)
        .level_count(1)
        .layer_count(1);
    let barrier = vk::ImageMemoryBarrier::default()
        .image(vk::Image::from_raw(image.handle))
        .subresource_range(whole)
        .old_layout(layout)
        .new_layout(layout);
    let barrier = match to_outside {
        true => barrier
            .src_queue_family_index(app.family)
            .dst_queue_family_index(EXTERNAL)
            .src_access_mask(vk::AccessFlags::MEMORY_WRITE),
        false => {
            barrier.src_queue_family_index(EXTERNAL).dst_queue_family_index(app.family).dst_access_mask(any)
        }
    };
    // SAFETY: as the call asks.
    unsafe { app.device.cmd_pipeline_barrier(commands, all, all, Default::default(), &[], &[], &[barrier]) };
}

#[test]
fn a_buffer_is_acquired_whole_before_a_run_and_released_whole_after_it() {
    let app = App::new(With::All);
    let usage = vk::BufferUsageFlags::STORAGE_BUFFER | COPIED;
    let (x, y) = (app.buffer(&[1.0; N], usage), app.buffer(&[0.0; N], usage));
    let context = watch::context(&app);
    // SAFETY: the buffers outlive the context.
    let import = |described: ForeignBuffer| unsafe {
        let described = ForeignBuffer { owner: Some(EXTERNAL), ..described };
        context.import_buffer(&described, ReadWrite::ReadWrite, Box::new(|| {})).unwrap()
    };
    let (from, to) = (import(x.described()), import(y.described()));
    let built = session(&context, double(N as u64));
    let bound = built.bind().input("x", Memory::buffer(&from)).output("y", Memory::buffer(&to));
    let mut binding = bound.build().unwrap();
    recorded();
    let mut inlay = None;
    app.submit(&[], &[], |_, commands| {
        // SAFETY: the command buffer is being recorded here, and is over before the result is dropped.
        inlay = Some(unsafe { binding.record_into(&ForeignCommands::new(commands.as_raw())).unwrap() });
    });
    app.finish();
    let handed = |raw: vk::Buffer, families| Recorded::Buffer {
        handle: raw.as_raw(),
        families,
        offset: 0,
        bytes: vk::WHOLE_SIZE,
    };
    let [taken, given] = [[EXTERNAL, app.family], [app.family, EXTERNAL]];
    let seen = recorded();
    let at = seen.iter().position(|each| *each == Recorded::Dispatch).unwrap();
    let (before, after) = (&seen[..at], &seen[at + 1..]);
    for (found, families) in [(before, taken), (after, given)] {
        let mut found = found.to_vec();
        let mut wanted = vec![handed(x.raw, families), handed(y.raw, families)];
        for all in [&mut found, &mut wanted] {
            all.sort_by_key(|each| format!("{each:?}"));
        }
        assert_eq!(found, wanted);
    }
    drop((inlay, binding, built, from, to, context));
}

/// Runs y = y + y from an image to itself, and gives what was recorded.
fn in_place(owner: Option<u32>, layout: vk::ImageLayout, leave: vk::ImageLayout) -> (Vec<Recorded>, u64) {
    let app = App::new(With::All);
    let (x, y) = (Picture::new(&app, vk::Format::R32_SFLOAT), Picture::new(&app, vk::Format::R32_SFLOAT));
    let source = app.buffer(&[1.5; SIDE * SIDE], COPIED);
    let seen = app.buffer(&[0.0; SIDE * SIDE], COPIED);
    let context = watch::context(&app);
    let described = ForeignImage { owner, ..y.described(layout, leave) };
    // SAFETY: the image outlives the context.
    let to = unsafe { context.import_image(&described, ReadWrite::ReadWrite, Box::new(|| {})).unwrap() };
    let from = x.import(&context, [GENERAL, GENERAL], ReadWrite::Read);
    let mut graph = GraphBuilder::new("double");
    let input = graph.input("x", DType::F32, [SIDE, SIDE].map(Into::into));
    let sum = graph.op(ops::add(), &[input, input]);
    graph.output("y", sum);
    let built = session(&context, graph.build().unwrap());
    let bound = built.bind().input("x", Memory::buffer(&from)).output("y", Memory::buffer(&to));
    let mut binding = bound.build().unwrap();
    app.submit(&[], &[], |device, commands| {
        x.upload(device, commands, source.raw, GENERAL);
        y.upload(device, commands, source.raw, layout);
        if owner.is_some() {
            hand(&app, commands, &described, true);
        }
    });
    recorded();
    let mut inlay = None;
    app.submit(&[], &[], |_, commands| {
        // SAFETY: the command buffer is being recorded here, and is over before the result is dropped.
        inlay = Some(unsafe { binding.record_into(&ForeignCommands::new(commands.as_raw())).unwrap() });
    });
    let found = recorded();
    app.submit(&[], &[], |device, commands| {
        if owner.is_some() {
            hand(&app, commands, &described, false);
        }
        y.ready_to_copy(device, commands, leave);
        y.download(device, commands, SOURCE, seen.raw);
    });
    app.finish();
    assert_eq!(seen.words(), [3.0; SIDE * SIDE]);
    drop((inlay, binding, built, from, to, context));
    // Of the image whose layout stays there are the copies alone.
    let of_y = |each: &Recorded| match each {
        Recorded::Image { handle, .. } => *handle == described.handle,
        Recorded::ImageToBuffer(layout) | Recorded::BufferToImage(layout) => *layout != GENERAL,
        _ => true,
    };
    (found.into_iter().filter(of_y).collect(), described.handle)
}

#[test]
fn an_image_is_acquired_in_its_layout_and_released_in_the_one_it_is_left_in() {
    let (found, handle) = in_place(Some(EXTERNAL), SAMPLED, SOURCE);
    let image = |families, layouts| Recorded::Image { handle, families, layouts };
    assert_eq!(
        found,
        [
            image([EXTERNAL, 0], [SAMPLED, SAMPLED]),
            image([IGNORED; 2], [SAMPLED, SOURCE]),
            Recorded::ImageToBuffer(SOURCE),
            Recorded::Dispatch,
            image([IGNORED; 2], [SOURCE, TARGET]),
            Recorded::BufferToImage(TARGET),
            image([IGNORED; 2], [TARGET, SOURCE]),
            image([0, EXTERNAL], [SOURCE, SOURCE]),
        ]
    );
}

#[test]
fn an_image_of_the_family_itself_changes_its_layout_alone() {
    let (found, handle) = in_place(None, SAMPLED, SAMPLED);
    let image = |layouts| Recorded::Image { handle, families: [IGNORED; 2], layouts };
    assert_eq!(
        found,
        [
            image([SAMPLED, SOURCE]),
            Recorded::ImageToBuffer(SOURCE),
            Recorded::Dispatch,
            image([SOURCE, TARGET]),
            Recorded::BufferToImage(TARGET),
            image([TARGET, SAMPLED]),
        ]
    );
}
