//! Memory of the application's under images, and memory that crosses devices by a file descriptor.

use onepool::backend::vulkan::ash::vk::{self, Handle as _};
use onepool::backend::{ContextDesc, ForeignMemory, MemoryFd};
use onepool::device::Context;
use onepool::frame::{FrameSpec, PixelFormat};
use onepool::memory::import::{Path, ReadWrite};
use onepool::registry::Registry;
use onepool::{DType, GraphBuilder, Memory, Session, Tensor, ops};

use crate::app::{App, With};
use crate::{double, session};

const SIDE: u32 = 64;

/// An image in linear tiling with its memory.
struct Linear<'a> {
    app: &'a App,
    image: vk::Image,
    memory: ForeignMemory,
    pitch: u64,
}

impl Linear<'_> {
    fn new(app: &App) -> Linear<'_> {
        let info = vk::ImageCreateInfo::default()
            .image_type(vk::ImageType::TYPE_2D)
            .format(vk::Format::R8G8B8A8_UNORM)
            .extent(vk::Extent3D { width: SIDE, height: SIDE, depth: 1 })
            .mip_levels(1)
            .array_layers(1)
            .samples(vk::SampleCountFlags::TYPE_1)
            .tiling(vk::ImageTiling::LINEAR)
            .usage(vk::ImageUsageFlags::TRANSFER_SRC | vk::ImageUsageFlags::TRANSFER_DST);
        // SAFETY: as in `App::new`.
        unsafe {
            let image = app.device.create_image(&info, None).unwrap();
            let needs = app.device.get_image_memory_requirements(image);
            let index = needs.memory_type_bits.trailing_zeros();
            // Room before the image, which then begins at an offset.
            let offset = needs.alignment.max(4096);
            let bytes = offset + needs.size;
            let info = vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(index);
            let memory = app.device.allocate_memory(&info, None).unwrap();
            app.device.bind_image_memory(image, memory, offset).unwrap();
            let plane =
                vk::ImageSubresource { aspect_mask: vk::ImageAspectFlags::COLOR, ..Default::default() };
            let layout = app.device.get_image_subresource_layout(image, plane);
            let memory = ForeignMemory {
                handle: memory.as_raw(),
                fd: None,
                allocation_bytes: bytes,
                memory_type: index,
                handle_types: 0,
                owner: None,
                offset: offset + layout.offset,
                bytes: layout.row_pitch * u64::from(SIDE),
            };
            Linear { app, image, memory, pitch: layout.row_pitch }
        }
    }

    /// Brings the image into layout GENERAL, with one colour.
    fn clear(&self, device: &onepool::backend::vulkan::ash::Device, commands: vk::CommandBuffer, value: u32) {
        let barrier = vk::ImageMemoryBarrier::default()
            .image(self.image)
            .new_layout(vk::ImageLayout::GENERAL)
            .dst_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .subresource_range(WHOLE);
        let (before, after) = (vk::PipelineStageFlags::TOP_OF_PIPE, vk::PipelineStageFlags::TRANSFER);
        let colour = vk::ClearColorValue { float32: [value as f32 / 255.0; 4] };
        // SAFETY: as the calls ask.
        unsafe {
            device.cmd_pipeline_barrier(commands, before, after, Default::default(), &[], &[], &[barrier]);
            device.cmd_clear_color_image(commands, self.image, vk::ImageLayout::GENERAL, &colour, &[WHOLE]);
        }
    }

    /// Copies the image to a buffer.
    fn copy_to(
        &self,
        device: &onepool::backend::vulkan::ash::Device,
        commands: vk::CommandBuffer,
        buffer: vk::Buffer,
    ) {
        let region = vk::BufferImageCopy::default()
            .image_subresource(vk::ImageSubresourceLayers {
                aspect_mask: vk::ImageAspectFlags::COLOR,
                layer_count: 1,
                ..Default::default()
            })
            .image_extent(vk::Extent3D { width: SIDE, height: SIDE, depth: 1 });
        // SAFETY: as the call asks.
        unsafe {
            device.cmd_copy_image_to_buffer(
                commands,
                self.image,
                vk::ImageLayout::GENERAL,
                buffer,
                &[region],
            );
        }
    }

    fn import(&self, context: &Context) -> onepool::device::Buffer {
        // SAFETY: the memory outlives the context.
        unsafe { context.import_memory(&self.memory, ReadWrite::ReadWrite, Box::new(|| {})).unwrap() }
    }
}

const WHOLE: vk::ImageSubresourceRange = vk::ImageSubresourceRange {
    aspect_mask: vk::ImageAspectFlags::COLOR,
    base_mip_level: 0,
    level_count: 1,
    base_array_layer: 0,
    layer_count: 1,
};

impl Drop for Linear<'_> {
    fn drop(&mut self) {
        // SAFETY: as in `App::new`.
        unsafe {
            self.app.device.destroy_image(self.image, None);
            self.app.device.free_memory(vk::DeviceMemory::from_raw(self.memory.handle), None);
        }
    }
}

#[test]
fn images_in_linear_tiling_are_input_and_output_in_place() {
    let app = App::new(With::All);
    let (from, to) = (Linear::new(&app), Linear::new(&app));
    let usage = vk::BufferUsageFlags::TRANSFER_DST;
    let seen = app.buffer(&[0.0; (SIDE * SIDE) as usize], usage);
    let context = app.context();
    let mut graph = GraphBuilder::new("brighter");
    let shape = [(SIDE as usize).into(), (from.pitch as usize).into()];
    let x = graph.input("x", DType::U8, shape);
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    let built = Session::builder().graph(graph.build().unwrap()).context(context.clone());
    let session = built.fallback(false).build().unwrap();
    let (source, target) = (from.import(&context), to.import(&context));
    let bound = session.bind().strict(true).input("x", Memory::buffer(&source));
    let mut binding = bound.output("y", Memory::buffer(&target)).build().unwrap();
    assert!(binding.verdicts().all(|verdict| verdict.path == Path::Direct));
    for value in [10, 50, 120] {
        app.submit(&[], &[], |device, commands| {
            from.clear(device, commands, value);
            to.clear(device, commands, 0);
        });
        let run = binding.submit().unwrap();
        app.submit(&[], &[], |device, commands| to.copy_to(device, commands, seen.raw));
        app.finish();
        run.wait().unwrap();
        let pixel = u32::from_ne_bytes([2 * value as u8; 4]);
        assert!(seen.words().iter().all(|word| word.to_bits() == pixel), "{value}");
    }
    assert_eq!(context.traffic().copied, 0);
    drop((binding, source, target, session, context));
}

/// The rows of an image in linear tiling are padded, which a description of a frame says.
#[test]
fn images_in_linear_tiling_are_frames_in_place() {
    let app = App::new(With::All);
    let (from, to) = (Linear::new(&app), Linear::new(&app));
    let context = app.context();
    let mut graph = GraphBuilder::new("picture");
    let x = graph.input("x", DType::F32, [1, 3, SIDE as usize, SIDE as usize].map(Into::into));
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    let frame = FrameSpec::new(PixelFormat::Rgba8, SIDE, SIDE).strides([from.pitch]);
    let built = Session::builder().graph(graph.build().unwrap()).context(context.clone()).fallback(false);
    let built = built.frame_input("x", frame.clone()).frame_output("y", frame.crop(8, 8, 16, 16));
    let session = built.build().unwrap();
    let (source, target) = (from.import(&context), to.import(&context));
    let bound = session.bind().strict(true).input("x", Memory::buffer(&source));
    let mut binding = bound.output("y", Memory::buffer(&target)).build().unwrap();
    let paths: Vec<_> = binding.verdicts().filter(|v| ["x", "y"].contains(&v.tensor.as_str())).collect();
    assert!(paths.len() == 2 && paths.iter().all(|verdict| verdict.path == Path::Direct), "{paths:?}");
    let seen = app.buffer(&[0.0; (SIDE * SIDE) as usize], vk::BufferUsageFlags::TRANSFER_DST);
    app.submit(&[], &[], |device, commands| {
        from.clear(device, commands, 50);
        to.clear(device, commands, 7);
    });
    let run = binding.submit().unwrap();
    app.submit(&[], &[], |device, commands| to.copy_to(device, commands, seen.raw));
    app.finish();
    run.wait().unwrap();
    for (i, word) in seen.words().iter().enumerate() {
        let [x, y] = [i % SIDE as usize, i / SIDE as usize];
        let inside = (8..24).contains(&x) && (8..24).contains(&y);
        let want = if inside { [100, 100, 100, 255] } else { [7; 4] };
        assert_eq!(word.to_bits().to_ne_bytes(), want, "{x}, {y}");
    }
    assert_eq!(context.traffic().copied, 0);
    drop((binding, source, target, session, context));
}

#[test]
fn memory_crosses_devices_by_an_opaque_descriptor() {
    let app = App::new(With::All);
    let context = app.context();
    let other = Registry::with_defaults().open("vulkan", &ContextDesc::default()).unwrap();
    const N: u64 = 1 << 15;
    // One device writes y, and another one's model reads it as its x.
    let (y, exported) = context.export_buffer(N * 4, MemoryFd::Opaque).unwrap();
    let described = ForeignMemory {
        handle: exported.fd as u64,
        fd: Some(exported.kind),
        allocation_bytes: exported.allocation_bytes,
        memory_type: exported.memory_type,
        handle_types: 0,
        owner: None,
        offset: 0,
        bytes: N * 4,
    };
    // SAFETY: the descriptor is of memory of the same physical device, which lives until the end.
    let x = unsafe { other.import_memory(&described, ReadWrite::Read, Box::new(|| {})).unwrap() };
    let first = session(&context, double(N));
    let value = Tensor::new([N as usize], &vec![1.25f32; N as usize]).unwrap();
    let mut writes =
        first.bind().input("x", Memory::value(value)).output("y", Memory::buffer(&y)).build().unwrap();
    let second = session(&other, double(N));
    let mut reads = second.bind().input("x", Memory::buffer(&x)).build().unwrap();
    assert!(reads.verdicts().any(|verdict| verdict.tensor == "x" && verdict.path == Path::Direct));
    writes.run().unwrap();
    reads.run().unwrap();
    assert!(reads.get_output("y").unwrap().as_slice::<f32>().unwrap().iter().all(|y| *y == 5.0));
    drop((reads, second, x, other));
    drop((writes, first, y, context));
}

/// A descriptor stays the caller's: an import has one of its own, also one that fails after the driver took that.
#[cfg(unix)]
#[test]
fn a_descriptor_stays_open_after_an_import_and_after_one_that_fails() {
    use std::os::fd::{FromRawFd as _, OwnedFd};
    let app = App::new(With::All);
    let context = crate::watch::context(&app);
    let (y, exported) = context.export_buffer(4096, MemoryFd::Opaque).unwrap();
    // SAFETY: the export is this test's alone.
    let fd = unsafe { OwnedFd::from_raw_fd(exported.fd) };
    let described = ForeignMemory {
        handle: exported.fd as u64,
        fd: Some(exported.kind),
        allocation_bytes: exported.allocation_bytes,
        memory_type: exported.memory_type,
        handle_types: 0,
        owner: None,
        offset: 0,
        bytes: 4096,
    };
    // SAFETY: the descriptor is of memory of the same device, which lives until the end.
    let import = || unsafe { context.import_memory(&described, ReadWrite::Read, Box::new(|| {})) };
    crate::watch::BIND_FAILS.store(true, std::sync::atomic::Ordering::SeqCst);
    import().unwrap_err();
    rustix::io::fcntl_getfd(&fd).unwrap();
    let first = import().unwrap();
    rustix::io::fcntl_getfd(&fd).unwrap();
    let second = import().unwrap();
    drop((first, second, y, context));
    rustix::io::fcntl_getfd(&fd).unwrap();
    // One that is closed is told apart before the driver sees it.
    drop(fd);
    let context = app.context();
    // SAFETY: as above.
    let error = unsafe { context.import_memory(&described, ReadWrite::Read, Box::new(|| {})).unwrap_err() };
    assert!(error.to_string().contains("descriptor"), "{error}");
}

/// A buffer of onepool's own has no half that another family of the application's could record.
#[test]
fn memory_is_owned_by_someone_outside_alone() {
    let app = App::new(With::All);
    let linear = Linear::new(&app);
    let context = app.context();
    for owner in [7, app.family + 1] {
        let described = ForeignMemory { owner: Some(owner), ..linear.memory };
        // SAFETY: it is refused before the driver uses the memory.
        let made = unsafe { context.import_memory(&described, ReadWrite::Read, Box::new(|| {})) };
        let error = made.err().unwrap().to_string();
        assert!(error.contains(&format!("queue family {owner}")), "{error}");
        assert!(error.contains("import_buffer"), "{error}");
    }
    drop(context);
}

#[test]
fn memory_that_cannot_be_used_is_refused() {
    let app = App::new(With::All);
    let linear = Linear::new(&app);
    let context = app.context();
    let refused = |memory: ForeignMemory| {
        // SAFETY: what is wrong is found before the driver uses the memory.
        let made = unsafe { context.import_memory(&memory, ReadWrite::Read, Box::new(|| {})) };
        made.err().unwrap().to_string()
    };
    let good = linear.memory;
    for (memory, text) in [
        (ForeignMemory { handle: 0, ..good }, "a null memory"),
        (ForeignMemory { bytes: 0, ..good }, "0 bytes"),
        (ForeignMemory { offset: 1, ..good }, "no multiple"),
        (ForeignMemory { bytes: good.bytes + (1 << 20), ..good }, "above this device's limit"),
        (ForeignMemory { bytes: u64::MAX, ..good }, "above this device's limit"),
        (ForeignMemory { memory_type: 31, ..good }, "memory of type 31"),
        (ForeignMemory { fd: Some(MemoryFd::Opaque), handle: 1 << 40, ..good }, "file descriptor"),
    ] {
        let error = refused(memory);
        assert!(error.contains(text), "{error}");
    }
    // A device that was made without the extension.
    drop((context, linear));
    drop(app);
    let app = App::new(With::Nothing);
    let error = app.context().export_buffer(4096, MemoryFd::Opaque).err().unwrap().to_string();
    assert!(error.contains("VK_KHR_external_memory_fd"), "{error}");
}
