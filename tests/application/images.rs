//! Images of the application's in optimal tiling, in and out of runs.

use onepool::backend::vulkan::ash::vk::{self, Handle as _};
use onepool::backend::vulkan::ash::{self};
use onepool::backend::{DmaBufPlane, ForeignDmaBufImage, ForeignImage};
use onepool::device::{Buffer, Context};
use onepool::frame::{FrameSpec, PixelFormat};
use onepool::memory::import::{Path, ReadWrite, Reason};
use onepool::{DType, GraphBuilder, Memory, Session, ops};

use crate::app::{App, With};

pub(crate) const SIDE: usize = 16;

const WHOLE: vk::ImageSubresourceRange = vk::ImageSubresourceRange {
    aspect_mask: vk::ImageAspectFlags::COLOR,
    base_mip_level: 0,
    level_count: 1,
    base_array_layer: 0,
    layer_count: 1,
};

/// An image in optimal tiling with its memory.
pub(crate) struct Picture<'a> {
    app: &'a App,
    image: vk::Image,
    memory: vk::DeviceMemory,
    format: vk::Format,
    usage: vk::ImageUsageFlags,
}

impl Picture<'_> {
    pub(crate) fn new(app: &App, format: vk::Format) -> Picture<'_> {
        let usage = vk::ImageUsageFlags::TRANSFER_SRC
            | vk::ImageUsageFlags::TRANSFER_DST
            | vk::ImageUsageFlags::SAMPLED;
        let info = vk::ImageCreateInfo::default()
            .image_type(vk::ImageType::TYPE_2D)
            .format(format)
            .extent(vk::Extent3D { width: SIDE as u32, height: SIDE as u32, depth: 1 })
            .mip_levels(1)
            .array_layers(1)
            .samples(vk::SampleCountFlags::TYPE_1)
            .tiling(vk::ImageTiling::OPTIMAL)
            .usage(usage);
        // SAFETY: as in `App::new`.
        unsafe {
            let image = app.device.create_image(&info, None).unwrap();
            let needs = app.device.get_image_memory_requirements(image);
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(needs.memory_type_bits.trailing_zeros());
            let memory = app.device.allocate_memory(&info, None).unwrap();
            app.device.bind_image_memory(image, memory, 0).unwrap();
            Picture { app, image, memory, format, usage }
        }
    }

    pub(crate) fn described(&self, layout: vk::ImageLayout, leave: vk::ImageLayout) -> ForeignImage {
        ForeignImage {
            handle: self.image.as_raw(),
            format: self.format.as_raw(),
            width: SIDE as u32,
            height: SIDE as u32,
            usage: self.usage.as_raw(),
            layout: layout.as_raw(),
            leave: leave.as_raw(),
            owner: None,
        }
    }

    pub(crate) fn import(
        &self,
        context: &Context,
        layouts: [vk::ImageLayout; 2],
        access: ReadWrite,
    ) -> Buffer {
        let described = self.described(layouts[0], layouts[1]);
        // SAFETY: the image outlives the context in every test.
        unsafe { context.import_image(&described, access, Box::new(|| {})).unwrap() }
    }

    fn barrier(
        &self,
        [old, new]: [vk::ImageLayout; 2],
        [before, after]: [vk::AccessFlags; 2],
    ) -> vk::ImageMemoryBarrier<'static> {
        vk::ImageMemoryBarrier::default()
            .image(self.image)
            .old_layout(old)
            .new_layout(new)
            .src_access_mask(before)
            .dst_access_mask(after)
            .src_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
            .dst_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
            .subresource_range(WHOLE)
    }

    fn region() -> [vk::BufferImageCopy; 1] {
        [vk::BufferImageCopy::default()
            .image_subresource(vk::ImageSubresourceLayers {
                aspect_mask: vk::ImageAspectFlags::COLOR,
                layer_count: 1,
                ..Default::default()
            })
            .image_extent(vk::Extent3D { width: SIDE as u32, height: SIDE as u32, depth: 1 })]
    }

    /// Fills the image from a buffer, from any layout, and leaves it in `layout`.
    pub(crate) fn upload(
        &self,
        device: &ash::Device,
        commands: vk::CommandBuffer,
        from: vk::Buffer,
        layout: vk::ImageLayout,
    ) {
        let (copied, none) = (vk::ImageLayout::TRANSFER_DST_OPTIMAL, vk::AccessFlags::empty());
        let written = vk::AccessFlags::TRANSFER_WRITE;
        let begin = self.barrier([vk::ImageLayout::UNDEFINED, copied], [none, written]);
        let end = self.barrier([copied, layout], [written, vk::AccessFlags::SHADER_READ]);
        let (copy, shader) = (vk::PipelineStageFlags::TRANSFER, vk::PipelineStageFlags::FRAGMENT_SHADER);
        // SAFETY: as the calls ask.
        unsafe {
            device.cmd_pipeline_barrier(commands, copy, copy, Default::default(), &[], &[], &[begin]);
            device.cmd_copy_buffer_to_image(commands, from, self.image, copied, &Self::region());
            device.cmd_pipeline_barrier(commands, copy, shader, Default::default(), &[], &[], &[end]);
        }
    }

    /// Brings the image from `layout` to the one that `download` copies from.
    pub(crate) fn ready_to_copy(
        &self,
        device: &ash::Device,
        commands: vk::CommandBuffer,
        layout: vk::ImageLayout,
    ) {
        let written = vk::AccessFlags::MEMORY_WRITE;
        let barrier = self.barrier(
            [layout, vk::ImageLayout::TRANSFER_SRC_OPTIMAL],
            [written, vk::AccessFlags::TRANSFER_READ],
        );
        let (all, copy) = (vk::PipelineStageFlags::ALL_COMMANDS, vk::PipelineStageFlags::TRANSFER);
        // SAFETY: as the call asks.
        unsafe {
            device.cmd_pipeline_barrier(commands, all, copy, Default::default(), &[], &[], &[barrier]);
        }
    }

    /// Copies the image, which is in `layout` and ready to be copied, to a buffer.
    pub(crate) fn download(
        &self,
        device: &ash::Device,
        commands: vk::CommandBuffer,
        layout: vk::ImageLayout,
        to: vk::Buffer,
    ) {
        // SAFETY: as the call asks.
        unsafe { device.cmd_copy_image_to_buffer(commands, self.image, layout, to, &Self::region()) };
    }
}

impl Drop for Picture<'_> {
    fn drop(&mut self) {
        // SAFETY: as in `App::new`.
        unsafe {
            self.app.device.destroy_image(self.image, None);
            self.app.device.free_memory(self.memory, None);
        }
    }
}

/// Bytes as the words of a buffer.
pub(crate) fn words(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect()
}

pub(crate) fn bytes(words: &[f32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_bits().to_ne_bytes()).collect()
}

pub(crate) const COPIED: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw() | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

const SAMPLED: vk::ImageLayout = vk::ImageLayout::SHADER_READ_ONLY_OPTIMAL;
const SOURCE: vk::ImageLayout = vk::ImageLayout::TRANSFER_SRC_OPTIMAL;
const UNDEFINED: vk::ImageLayout = vk::ImageLayout::UNDEFINED;

/// Runs y = x + x from an image to another one, twice, and compares all bytes.
fn doubled(format: vk::Format, dtype: DType, channels: usize, pixels: [Vec<u8>; 2], wanted: [Vec<u8>; 2]) {
    let app = App::new(With::All);
    let (from, to) = (Picture::new(&app, format), Picture::new(&app, format));
    let source = app.buffer(&words(&pixels[0]), COPIED);
    let seen = app.buffer(&words(&wanted[0]).iter().map(|_| 0.0).collect::<Vec<_>>(), COPIED);
    let context = app.context();
    let mut graph = GraphBuilder::new("double");
    let x = graph.input("x", dtype, [SIDE, SIDE, channels].map(Into::into));
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    let built = Session::builder().graph(graph.build().unwrap()).context(context.clone());
    let session = built.fallback(false).build().unwrap();
    let x = from.import(&context, [SAMPLED, SAMPLED], ReadWrite::Read);
    let y = to.import(&context, [UNDEFINED, SOURCE], ReadWrite::Write);
    assert_eq!(x.bytes() as usize, pixels[0].len());
    let bound = session.bind().strict(true).input("x", Memory::buffer(&x));
    let mut binding = bound.output("y", Memory::buffer(&y)).build().unwrap();
    let copied = pixels[0].len() as u64;
    for verdict in binding.verdicts().filter(|verdict| ["x", "y"].contains(&verdict.tensor.as_str())) {
        assert_eq!((verdict.path, &verdict.reason), (Path::ImportedDma, &Reason::Image { copied }));
    }
    for (pixels, wanted) in pixels.iter().zip(&wanted) {
        source.set(&words(pixels));
        app.submit(&[], &[], |device, commands| from.upload(device, commands, source.raw, SAMPLED));
        let run = binding.submit().unwrap();
        app.submit(&[], &[], |device, commands| to.download(device, commands, SOURCE, seen.raw));
        app.finish();
        run.wait().unwrap();
        assert_eq!(&bytes(&seen.words()), wanted);
    }
    assert_eq!(context.traffic().copied, 4 * copied);
    drop((binding, session, x, y, context));
}

#[test]
fn bytes_of_images_are_inputs_and_outputs() {
    for (format, channels) in [
        (vk::Format::R8_UNORM, 1),
        (vk::Format::R8G8_UNORM, 2),
        (vk::Format::R8G8B8A8_UNORM, 4),
        (vk::Format::B8G8R8A8_UNORM, 4),
    ] {
        let count = SIDE * SIDE * channels;
        let pixels: [Vec<u8>; 2] = [3, 7].map(|k| (0..count).map(|i| (i * k % 128) as u8).collect());
        let wanted = pixels.clone().map(|pixels| pixels.iter().map(|v| 2 * v).collect());
        doubled(format, DType::U8, channels, pixels, wanted);
    }
}

#[test]
fn floats_of_images_are_inputs_and_outputs() {
    for (format, channels) in [(vk::Format::R32_SFLOAT, 1), (vk::Format::R32G32B32A32_SFLOAT, 4)] {
        let count = SIDE * SIDE * channels;
        let pixels = [0.25, -1.5].map(|k| (0..count).map(|i| i as f32 * k).collect::<Vec<_>>());
        let wanted = pixels.clone().map(|p| bytes(&p.iter().map(|v| 2.0 * v).collect::<Vec<_>>()));
        doubled(format, DType::F32, channels, pixels.map(|pixels| bytes(&pixels)), wanted);
    }
    // Halves: doubling adds one to the exponent.
    let count = SIDE * SIDE * 4;
    let pixels = [0x3c00u16, 0xb800].map(|k| (0..count).map(|i| k + (i % 512) as u16).collect::<Vec<_>>());
    let out = |halves: &Vec<u16>| halves.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
    let wanted = pixels.clone().map(|p| out(&p.iter().map(|v| v + 0x400).collect()));
    doubled(vk::Format::R16G16B16A16_SFLOAT, DType::F16, 4, pixels.map(|p| out(&p)), wanted);
}

/// Pictures of a model are frames in images; pixels outside the rectangle stay.
#[test]
fn images_are_frames() {
    let app = App::new(With::All);
    let general = vk::ImageLayout::GENERAL;
    let from = Picture::new(&app, vk::Format::B8G8R8A8_UNORM);
    let to = Picture::new(&app, vk::Format::R8G8B8A8_SRGB);
    let count = SIDE * SIDE;
    let pixels: Vec<[u8; 4]> = (0..count).map(|i| [i as u8 / 2, (i * 3) as u8 / 2, 11, 255]).collect();
    let (source, before) = (app.buffer(&words(pixels.as_flattened()), COPIED), [7u8; 4 * SIDE * SIDE]);
    let (before, seen) = (app.buffer(&words(&before), COPIED), app.buffer(&vec![0.0; count], COPIED));
    let context = app.context();
    let mut graph = GraphBuilder::new("picture");
    let x = graph.input("x", DType::F32, [1, 3, SIDE, SIDE].map(Into::into));
    graph.output("y", x);
    let side = SIDE as u32;
    let spec = FrameSpec::new(PixelFormat::Bgra8, side, side);
    let built = Session::builder().graph(graph.build().unwrap()).context(context.clone()).fallback(false);
    let screen = FrameSpec::new(PixelFormat::Rgba8, side, side)
        .crop(4, 4, 8, 8)
        .filter(onepool::frame::Filter::Nearest);
    let session = built.frame_input("x", spec).frame_output("y", screen).build().unwrap();
    let x = from.import(&context, [SAMPLED, SAMPLED], ReadWrite::Read);
    let y = to.import(&context, [general, general], ReadWrite::ReadWrite);
    let bound = session.bind().strict(true).input("x", Memory::buffer(&x));
    let mut binding = bound.output("y", Memory::buffer(&y)).build().unwrap();
    app.submit(&[], &[], |device, commands| {
        from.upload(device, commands, source.raw, SAMPLED);
        to.upload(device, commands, before.raw, general);
    });
    for _ in 0..2 {
        let run = binding.submit().unwrap();
        app.submit(&[], &[], |device, commands| to.download(device, commands, general, seen.raw));
        app.finish();
        run.wait().unwrap();
        let found = bytes(&seen.words());
        for (i, pixel) in found.chunks(4).enumerate() {
            let [x, y] = [i % SIDE, i / SIDE];
            if !(4..12).contains(&x) || !(4..12).contains(&y) {
                assert_eq!(pixel, [7; 4], "{x}, {y}");
            } else {
                assert_eq!((pixel[2] > 0, pixel[3]), (true, 255), "{x}, {y}: {pixel:?}");
                let near = |[dx, dy]: [usize; 2]| pixels[(2 * (y - 4) + dy) * SIDE + 2 * (x - 4) + dx];
                let around = [[0, 0], [0, 1], [1, 0], [1, 1]].map(near);
                assert!(around.iter().any(|[b, g, r, _]| pixel[..3] == [*r, *g, *b]), "{x}, {y}: {pixel:?}");
            }
        }
    }
    drop((binding, session, x, y, context));
}

#[test]
fn images_that_cannot_be_used_are_refused() {
    let app = App::new(With::All);
    let picture = Picture::new(&app, vk::Format::R8G8B8A8_UNORM);
    let context = app.context();
    let good = picture.described(SAMPLED, SAMPLED);
    let import = |context: &Context, image: ForeignImage, access| {
        // SAFETY: what is wrong is found before the driver uses the image.
        unsafe { context.import_image(&image, access, Box::new(|| {})) }
    };
    let sampled = vk::ImageUsageFlags::SAMPLED.as_raw();
    for (image, text) in [
        (ForeignImage { handle: 0, ..good }, "a null image"),
        (ForeignImage { format: vk::Format::D16_UNORM.as_raw(), ..good }, "format D16_UNORM"),
        (ForeignImage { format: 0, ..good }, "format UNDEFINED"),
        (ForeignImage { width: 0, ..good }, "width 0"),
        (ForeignImage { height: 1 << 20, ..good }, "width, height and format"),
        (ForeignImage { usage: sampled, ..good }, "usage TRANSFER_SRC"),
        (ForeignImage { layout: 0, ..good }, "layout UNDEFINED"),
        (ForeignImage { leave: 0, ..good }, "leave UNDEFINED"),
        (ForeignImage { leave: 77, ..good }, "leave"),
        (ForeignImage { owner: Some(9), ..good }, "queue family 9"),
    ] {
        let error = import(&context, image, ReadWrite::Read).err().unwrap().to_string();
        assert!(error.contains(text), "{error}");
    }
    let first = import(&context, good, ReadWrite::Read).unwrap();
    let error = import(&context, good, ReadWrite::Read).err().unwrap().to_string();
    assert!(error.contains("second time"), "{error}");
    drop(first);
    drop(import(&context, good, ReadWrite::Read).unwrap());
    drop(context);
    let context = app.context();
    let image = ForeignDmaBufImage {
        // No process has so many.
        fd: i32::MAX as u64,
        allocation_bytes: 1 << 16,
        format: vk::Format::R8G8B8A8_UNORM.as_raw(),
        width: 16,
        height: 16,
        modifier: 0,
        planes: [DmaBufPlane { offset: 0, row_pitch: 64 }; 4],
        plane_count: 1,
    };
    // SAFETY: a descriptor that is closed is no dma-buf, which is found before the driver takes it.
    let dma_buf = |image| unsafe { context.import_dma_buf_image(&image, ReadWrite::Read, Box::new(|| {})) };
    let error = dma_buf(image).err().unwrap().to_string();
    // SAFETY: the physical device is the instance's.
    let offered = unsafe { app.instance.enumerate_device_extension_properties(app.physical).unwrap() };
    let has = |name| offered.iter().any(|each| each.extension_name_as_c_str() == Ok(name));
    let needed = [
        ash::ext::image_drm_format_modifier::NAME,
        ash::ext::external_memory_dma_buf::NAME,
        ash::ext::queue_family_foreign::NAME,
    ];
    let said = if needed.into_iter().all(has) { "descriptor" } else { "VK_EXT_image_drm_format_modifier" };
    assert!(error.contains(said), "{error}");
    let error = dma_buf(ForeignDmaBufImage { plane_count: 7, ..image }).err().unwrap().to_string();
    assert!(error.contains("plane_count 7"), "{error}");
    drop(context);
    // A device that is not the application's has no images of it.
    let other = onepool::registry::Registry::with_defaults();
    let other = other.open("sim", &onepool::backend::ContextDesc::default()).unwrap();
    let error = import(&other, good, ReadWrite::Read).err().unwrap().to_string();
    assert!(error.contains("of the application"), "{error}");
}
