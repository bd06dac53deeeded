//! Images over buffers, and the code for two-dimensional ones on images of the driver's own.

use super::*;
use crate::backend::opencl::handle::{ImageCall, Mem, RawMem, Shape};
use crate::backend::opencl::program::ProgramText;
use onepool_core::memory::image::{Filter, ImageDesc, ImageView, Texel, TexelSet};
use onepool_spirv::opencl_c::{self, OpenClImages, OpenClOptions, Planes, TexelFormat, TexelFormats};

#[path = "../../../../../../tests/support/glsl.rs"]
mod glsl;
use onepool_core::sync::read;

fn compile(head: &str, body: &str) -> Vec<u32> {
    glsl::compile(&format!(
        "#version 450\nlayout(local_size_x = 1) in;\n{head}\nvoid main()\n{{\n{body}\n}}\n"
    ))
}

#[test]
fn what_pocl_does_with_images_is_found_by_trying() {
    let fixture = Fixture::new();
    let info = fixture.context.info();
    let (Some(rules), images) = (&info.images, fixture.context.tables.device.images()) else {
        panic!("no images: {:?}", info.advice)
    };
    for texel in [Texel::Rgba32F, Texel::R32F, Texel::Rgba16F] {
        assert!(rules.sampled.contains(texel) && rules.stored.contains(texel), "{texel:?}");
    }
    assert!(info.limits.max_texels <= images.max_texels);
    if info.driver.contains("PoCL 3.1") {
        // It has no two-dimensional images over buffers, none over parts of buffers, and lists half-precision images
        // of one channel that it neither reads nor writes.
        assert_eq!((images.offer.planes, images.parts), (Planes::Lines, false));
        assert!(!rules.sampled.contains(Texel::R16F) && rules.filtered == TexelSet::default());
        let advice = info.advice.join("\n");
        assert!(advice.contains("image1d_buffer_t") && advice.contains("R16F"), "{advice}");
    }
}

#[test]
fn a_view_that_the_device_has_not_is_refused() {
    let fixture = Fixture::new();
    if fixture.context.tables.device.images().offer.planes != Planes::Lines {
        return;
    }
    let head = "layout(binding = 0) uniform sampler2D t; layout(binding = 1) buffer Y { vec4 y[]; };";
    let words =
        compile(head, "y[gl_GlobalInvocationID.x] = texelFetch(t, ivec2(gl_GlobalInvocationID.x, 1), 0);");
    // SAFETY: it reads and writes one texel for each of four work-items, and has them.
    let source = unsafe { KernelSource::from_spirv("row", words) }.unwrap();
    let kernel = fixture.create(&source, &[]).unwrap();
    let x: Vec<f32> = (0..64).map(|at| at as f32).collect();
    let (x, y) = (fixture.upload(&x), fixture.buffer(64, Placement::Readback));
    let image = ImageDesc { texel: Texel::Rgba32F, width: 4, height: 2, row_pitch: 64 };
    let queue = fixture.queue();
    let submit = |kernel, args| {
        let dispatch = Dispatch::new(kernel, args, vec![], [4, 1, 1]);
        let point = queue.submit(&recording(vec![Command::Dispatch(dispatch)]))?;
        queue.wait(point, None)
    };
    let through = |filter, access| Arg::Image(part(x, 0, 128), ImageView { image, filter }, access);
    let out = Arg::Buffer(fixture.all(y), WRITE);
    submit(kernel, vec![through(Filter::Nearest, READ), out]).unwrap();
    let want: Vec<f32> = (16..32).map(|at| at as f32).collect();
    assert_eq!(fixture.download::<f32>(y), want);
    let refused = |kernel, args| submit(kernel, args).unwrap_err().to_string();
    assert!(refused(kernel, vec![through(Filter::Linear, READ), out]).contains("interpolated"));
    let inside = Arg::Buffer(part(x, 0, 64), WRITE);
    assert!(refused(kernel, vec![through(Filter::Nearest, READ), inside]).contains("is an image"));
    let own = "__kernel void own(read_only image2d_t t, __global float *y) { y[0] = get_image_width(t); }";
    let own = fixture.create(&own_source(own), &[]).unwrap();
    assert!(refused(own, vec![through(Filter::Nearest, READ), out]).contains("image2d_t"));
}

/// Runs a translated kernel over these arguments.
fn run_words(fixture: &Fixture, words: &[u32], images: &OpenClImages, args: &[RawMem], items: [usize; 3]) {
    let device = &fixture.context.tables.device;
    let options = OpenClOptions { images: *images, ..OpenClOptions::default() };
    let translated = opencl_c::translate(words, &options).unwrap();
    assert!(!translated.memory_follows);
    let options = opencl_c::BUILD_OPTIONS.to_owned();
    let text = ProgramText { source: translated.source.clone(), options };
    let program = device.shared.program(device.id, None, "images", text).unwrap();
    for linear in [true, false] {
        let mut kernel = program.kernel(c"onepool_kernel").unwrap();
        let sampler = device.shared.context.sampler(linear).unwrap();
        let mut index = 0;
        for (arg, memory) in translated.args.iter().zip(args) {
            kernel.set_memory(index, *memory).unwrap();
            index += 1;
            if arg.form == (opencl_c::OpenClForm::Image { sampler_follows: true }) {
                kernel.set_sampler(index, &sampler).unwrap();
                index += 1;
            }
            if let opencl_c::OpenClForm::Pointer { bytes_follow } = arg.form {
                assert!(!bytes_follow);
                kernel.set_bytes(index, &0u64.to_ne_bytes()).unwrap();
                index += 1;
            }
        }
        if translated.params_bytes > 0 {
            kernel.set_bytes(index, &u32::from(linear).to_ne_bytes()).unwrap();
        }
        let queue = device.shared.context.queue(device.id, false).unwrap();
        // SAFETY: the arguments are set, and what they name lives until the wait is over.
        unsafe { queue.nd_range(&kernel, &items, &[1, 1, 1]) }.unwrap().wait().unwrap();
    }
}

/// The code for `image2d_t` runs here though no device at hand makes those over buffers: these images are the driver's.
#[test]
fn translated_kernels_write_fetch_and_sample_two_dimensional_images() {
    const W: usize = 5;
    const H: usize = 3;
    let fixture = Fixture::new();
    let device = &fixture.context.tables.device;
    let shape = Shape::Plane { width: W, height: H, pitch: 0 };
    let call = ImageCall { format: TexelFormat::Rgba32F, shape };
    let image: Mem = match device.shared.context.image(&call, RawMem::none()) {
        Ok(image) => image,
        Err(error) => return eprintln!("not tested: {error}"),
    };
    let images = OpenClImages { texels: TexelFormats::NONE, planes: Planes::Images };
    let x: Vec<f32> = (0..W * H * 4).map(|at| (at * 7 % 64) as f32).collect();
    let (from, to) = (fixture.upload(&x), fixture.upload(&vec![0.0f32; 2 * 4 * 4 * W * H]));
    let raw = |buffer| read(&fixture.context.tables.buffers).get(buffer).unwrap().raw();
    let write = compile(
        "layout(binding = 0, rgba32f) writeonly uniform image2D t; layout(binding = 1) buffer X { vec4 x[]; };",
        "ivec2 at = ivec2(gl_GlobalInvocationID.xy); ivec2 size = imageSize(t);\n\
         imageStore(t, at, x[at.y * size.x + at.x]);\n\
         imageStore(t, at + size, vec4(-1.0)); imageStore(t, ivec2(-1 - at.x, at.y), vec4(-1.0));",
    );
    run_words(&fixture, &write, &images, &[image.raw(), raw(from)], [W, H, 1]);
    let sample = compile(
        "layout(binding = 0) uniform sampler2D t; layout(binding = 1) buffer Y { vec4 y[]; };\n\
         layout(push_constant) uniform P { uint linear; } p;\n\
         vec4 corner(sampler2D u, vec2 at) { return textureLod(u, at + 1.0, 0.0); }",
        "ivec2 at = ivec2(gl_GlobalInvocationID.xy); ivec2 size = textureSize(t, 0);\n\
         uint i = ((p.linear * size.y + at.y) * size.x + at.x) * 4u;\n\
         y[i] = texelFetch(t, at, 0); y[i + 1u] = texelFetch(t, at - 2, 0);\n\
         y[i + 2u] = corner(t, vec2(at)); y[i + 3u] = vec4(size, 0, 0);",
    );
    run_words(&fixture, &sample, &images, &[image.raw(), raw(to)], [W, H, 1]);
    let got = fixture.download::<f32>(to);
    let texel = |col: i64, row: i64, c: usize| {
        let (col, row) = (col.clamp(0, W as i64 - 1) as usize, row.clamp(0, H as i64 - 1) as usize);
        x[(row * W + col) * 4 + c]
    };
    for (at, got) in got.chunks_exact(16).enumerate() {
        let (linear, col, row) = (at / (W * H) == 1, (at % W) as i64, (at / W % H) as i64);
        for c in 0..4 {
            assert_eq!((got[c], got[4 + c]), (texel(col, row, c), texel(col - 2, row - 2, c)), "{at} {c}");
            let four = [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(x, y)| texel(col + x, row + y, c));
            let corner = if linear { four.iter().sum::<f32>() / 4.0 } else { four[3] };
            assert!((got[8 + c] - corner).abs() < 1e-3, "{at} {c} {linear}: {} for {corner}", got[8 + c]);
        }
        assert_eq!(got[12..14], [W as f32, H as f32]);
    }
}
