//! Devices, their features and their buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onepool::backend::ContextDesc;
use onepool::backend::vulkan::ash::vk;
use onepool::backend::vulkan::{DeviceRequest, Enabled};
use onepool::memory::import::{Path, ReadWrite, Reason};
use onepool::spirv::Requires;
use onepool::{DType, GraphBuilder, HostRegion, Memory, Session, Tensor, ops};

use crate::app::{App, With};
use crate::{double, session};

const STORAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::STORAGE_BUFFER;
const COPIED: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw() | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

#[test]
fn a_model_runs_on_the_device_of_an_application_which_stays_its_own() {
    let app = App::new(With::All);
    let context = app.context();
    assert!(context.info().features.contains(Requires::STORAGE_8.union(Requires::FLOAT16)));
    let mut session = session(&context, double(1000));
    let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    session.set_input("x", &Tensor::new([1000], &x).unwrap()).unwrap();
    session.run().unwrap();
    let y = session.get_output("y").unwrap();
    assert!(y.as_slice::<f32>().unwrap().iter().zip(&x).all(|(y, x)| *y == 2.0 * x));
    drop((session, context));
    // The device lives on: the application makes and runs things with it.
    let buffer = app.buffer(&[0.0; 16], STORAGE | COPIED);
    app.submit(&[], &[], |device, commands| {
        // SAFETY: as the call asks.
        unsafe { device.cmd_fill_buffer(commands, buffer.raw, 0, 64, 1.5f32.to_bits()) };
    });
    app.finish();
    assert_eq!(buffer.words(), [1.5; 16]);
    // And opens again.
    drop(app.context());
}

#[test]
fn pages_are_imported_where_the_application_enabled_it() {
    for (with, path) in [(With::All, Path::Imported), (With::Timeline, Path::Staged)] {
        let app = App::new(with);
        let context = app.context();
        let built = Session::builder().graph(double(1 << 16)).context(context.clone());
        let session = built.copy_threshold(0).build().unwrap();
        let (x, y) = (HostRegion::new(1 << 18).unwrap(), HostRegion::new(1 << 18).unwrap());
        let (x, y) = (x.into_shared(), y.into_shared());
        x.write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(4.0);
        let (input, output) = (Memory::region(&x), Memory::region(&y));
        let mut binding = session.bind().input("x", input).output("y", output).build().unwrap();
        binding.run().unwrap();
        assert_eq!(y.read().unwrap().as_slice_of::<f32>().unwrap()[65535], 8.0);
        // A device with memory of its own copies in addition what it reads twice.
        let as_told = binding.verdicts().all(|verdict| verdict.path.imports() == path.imports());
        assert!(as_told, "{:?}", binding.verdicts().next());
        let told = context.info().advice.iter().any(|text| text.contains("VK_EXT_external_memory_host"));
        assert_eq!(told, with != With::All, "{:?}", context.info().advice);
    }
}

#[test]
fn what_was_not_enabled_is_not_used() {
    let app = App::new(With::Nothing);
    let context = app.context();
    let unused = [Requires::STORAGE_8, Requires::FLOAT16, Requires::INT64, Requires::SPIRV_1_4];
    assert!(unused.iter().all(|feature| !context.info().features.contains(*feature)));
    assert!(context.info().import.is_none() && context.info().api_version.starts_with("1."));
    let mut session = session(&context, double(300));
    session.set_input("x", &Tensor::new([300], &[3.0f32; 300]).unwrap()).unwrap();
    session.run().unwrap();
    session.run().unwrap();
    assert_eq!(session.get_output("y").unwrap().as_slice::<f32>().unwrap(), [6.0; 300]);
    // Bytes need a feature that is off: the operator runs on the CPU, with the same result.
    let mut graph = GraphBuilder::new("bytes");
    let x = graph.input("x", DType::U8, [64.into()]);
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    let mut bytes =
        Session::builder().graph(graph.build().unwrap()).context(context.clone()).build().unwrap();
    bytes.set_input("x", &Tensor::new([64], &[7u8; 64]).unwrap()).unwrap();
    bytes.run().unwrap();
    assert_eq!(bytes.get_output("y").unwrap().as_slice::<u8>().unwrap(), [14; 64]);
}

#[test]
fn buffers_of_the_application_are_input_and_output_in_place() {
    let app = App::new(With::All);
    let x: Vec<f32> = (0..4096).map(|i| i as f32 / 8.0).collect();
    let input = app.buffer(&x, STORAGE);
    // The output is a part of a buffer, with guards around it.
    let output = app.buffer(&[-1.0; 4096 + 256], STORAGE);
    let context = app.context();
    let allocated = context.usage().allocated;
    let session = session(&context, double(4096));
    let from = input.import(&context);
    let to = output.import(&context).sub_buffer(512, 4096 * 4).unwrap();
    let bound = session.bind().strict(true).input("x", Memory::buffer(&from));
    let mut binding = bound.output("y", Memory::buffer(&to)).build().unwrap();
    let in_place =
        |v: &onepool::memory::import::Verdict| v.path == Path::Direct && v.reason == Reason::Resident;
    assert_eq!(binding.verdicts().filter(|verdict| in_place(verdict)).count(), 2);
    binding.run().unwrap();
    let check = |factor: f32| {
        let words = output.words();
        let (before, rest) = words.split_at(128);
        let (y, after) = rest.split_at(4096);
        assert!(before.iter().chain(after).all(|guard| *guard == -1.0));
        assert!(y.iter().zip(&x).all(|(y, x)| *y == factor * x));
    };
    check(2.0);
    input.set(&x.iter().map(|x| x * 3.0).collect::<Vec<_>>());
    binding.run().unwrap();
    check(6.0);
    assert_eq!(context.traffic().copied, 0);
    // No room for a copy of either.
    assert!(context.usage().allocated - allocated < 4096);
    drop((binding, from, to, session, context));
}

#[test]
fn work_of_the_application_on_the_same_queue_needs_no_semaphore() {
    let app = App::new(With::All);
    let (a, b, c) =
        ([0.0; 1024], app.buffer(&[0.0; 1024], STORAGE | COPIED), app.buffer(&[0.0; 1024], STORAGE | COPIED));
    let seen = app.buffer(&a, COPIED);
    let context = app.context();
    let session = session(&context, double(1024));
    let (from, to) = (b.import(&context), c.import(&context));
    let mut binding =
        session.bind().input("x", Memory::buffer(&from)).output("y", Memory::buffer(&to)).build().unwrap();
    for round in 1..4 {
        let value = round as f32;
        app.submit(&[], &[], |device, commands| {
            // SAFETY: as the call asks.
            unsafe { device.cmd_fill_buffer(commands, b.raw, 0, 4096, value.to_bits()) };
        });
        let pending = binding.submit().unwrap();
        app.submit(&[], &[], |device, commands| {
            let region = vk::BufferCopy { src_offset: 0, dst_offset: 0, size: 4096 };
            // SAFETY: as the call asks.
            unsafe { device.cmd_copy_buffer(commands, c.raw, seen.raw, &[region]) };
        });
        app.finish();
        assert_eq!(seen.words(), [2.0 * value; 1024]);
        pending.wait().unwrap();
    }
}

#[test]
fn a_buffer_is_released_after_the_last_that_uses_it() {
    let app = App::new(With::All);
    let buffer = app.buffer(&[1.0; 64], STORAGE);
    let context = app.context();
    let released = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&released);
    let release = Box::new(move || _ = count.fetch_add(1, Ordering::SeqCst));
    // SAFETY: it lives until the end of the test.
    let imported = unsafe { context.import_buffer(&buffer.described(), ReadWrite::Read, release).unwrap() };
    assert_eq!(context.usage().imported, 256);
    let part = imported.sub_buffer(0, 128).unwrap();
    drop(imported);
    assert_eq!(released.load(Ordering::SeqCst), 0);
    drop(part);
    assert_eq!((released.load(Ordering::SeqCst), context.usage().imported), (1, 0));
    // Now it may be imported again.
    drop(buffer.import(&context));
}

#[test]
fn each_submission_is_made_under_the_lock_of_the_application() {
    let app = App::new(With::All);
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let owner: Arc<str> = "kept".into();
    let kept = Arc::downgrade(&owner);
    let offered = app.offer().owner(Arc::new(owner)).lock(move |submit| {
        count.fetch_add(1, Ordering::SeqCst);
        submit();
    });
    // SAFETY: as in `App::context`.
    let context = unsafe { offered.open(&ContextDesc::default()).unwrap() };
    let (x, y) = (app.buffer(&[1.0; 64], STORAGE), app.buffer(&[0.0; 64], STORAGE));
    let session = session(&context, double(64));
    let (from, to) = (x.import(&context), y.import(&context));
    let mut binding =
        session.bind().input("x", Memory::buffer(&from)).output("y", Memory::buffer(&to)).build().unwrap();
    let before = taken.load(Ordering::SeqCst);
    for _ in 0..5 {
        binding.run().unwrap();
    }
    assert_eq!(taken.load(Ordering::SeqCst), before + 5);
    assert!(kept.upgrade().is_some());
    drop((binding, from, to, session, context));
    assert!(kept.upgrade().is_none(), "the owner is let go with the device");
}

#[test]
fn a_request_turns_features_on_where_the_application_has_them_already() {
    let app = App::new(With::All);
    let request = || {
        // SAFETY: the handles live.
        unsafe { DeviceRequest::new(&app.entry, &app.instance, app.physical, app.version).unwrap() }
    };
    // A collection of a version's features: what it has is turned on there, and not chained a second time.
    let mut collected = vk::PhysicalDeviceVulkan12Features::default().scalar_block_layout(true);
    let base = vk::PhysicalDeviceFeatures::default().wide_lines(true);
    let mut extensions = vec![onepool::backend::vulkan::ash::khr::swapchain::NAME];
    let mut asked = request();
    let mut info = vk::DeviceCreateInfo::default().push_next(&mut collected).enabled_features(&base);
    // SAFETY: the structures live and are the test's to write.
    let enabled = unsafe { asked.add_to(&mut info, &mut extensions) };
    // SAFETY: the request's own copy lives.
    let (count, base) = (chain(&info), unsafe { *info.p_enabled_features });
    assert_eq!((base.wide_lines, base.shader_int64), (vk::TRUE, vk::TRUE));
    assert!(extensions.len() > 1 && extensions.iter().all(|name| enabled.extensions().any(|e| e == *name)));
    assert_eq!(
        count
            .iter()
            .filter(|kind| **kind == vk::StructureType::PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES)
            .count(),
        0
    );
    assert_eq!(collected.storage_buffer8_bit_access + collected.timeline_semaphore, 2);
    assert_eq!(collected.scalar_block_layout, vk::TRUE);
    // Structures that another library chains later: turned on there, taken apart, and not chained by the request.
    let mut theirs = vk::PhysicalDeviceTimelineSemaphoreFeatures::default();
    let mut more = vk::PhysicalDevice16BitStorageFeatures::default();
    let mut asked = request();
    let listed = vk::DeviceCreateInfo::default().push_next(&mut theirs).push_next(&mut more);
    let mut info = vk::DeviceCreateInfo::default();
    // SAFETY: as above.
    unsafe {
        asked.turn_on_in(&listed);
        asked.add_to(&mut info, &mut Vec::new());
    }
    let kinds = chain(&info);
    assert!(!kinds.contains(&vk::StructureType::PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES));
    assert!(!kinds.contains(&vk::StructureType::PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES));
    assert!(kinds.contains(&vk::StructureType::PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES));
    assert!(theirs.p_next.is_null() && more.p_next.is_null());
    assert_eq!((theirs.timeline_semaphore, more.storage_buffer16_bit_access), (vk::TRUE, vk::TRUE));
    // What was made is read from what it was made with.
    // SAFETY: as above.
    assert_eq!(unsafe { Enabled::of(&vk::DeviceCreateInfo::default()) }.extensions().count(), 0);
}

fn chain(info: &vk::DeviceCreateInfo<'_>) -> Vec<vk::StructureType> {
    let mut kinds = Vec::new();
    let mut at = info.p_next.cast::<vk::BaseInStructure<'_>>();
    // SAFETY: the chain of structures that live.
    while let Some(head) = unsafe { at.as_ref() } {
        kinds.push(head.s_type);
        at = head.p_next;
    }
    let mut sorted: Vec<i32> = kinds.iter().map(|kind| kind.as_raw()).collect();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), kinds.len(), "a structure is there twice: {kinds:?}");
    kinds
}
