//! Kernels that read and write images and buffers of texels, against Rust.

use std::sync::Arc;

use onepool::backend::{BufferDesc, Placement};
use onepool::device::{Buffer, Context};
use onepool::kernel::{KernelSource, touch};
use onepool::memory::coherency::{Access, Barrier};
use onepool::memory::image::{Filter, ImageDesc, ImageView, Texel};
use onepool::recording::{Arg, BufferRange, Command, Dispatch, Recording};

use super::{Case, compile, contexts, foreign, run};

fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// Runs a case on every device that has what it needs; how many those are.
fn on_every_device(case: &Case<'_>) -> usize {
    let source = Arc::new(foreign::spirv("texels", compile(case.glsl)).unwrap());
    let mut ran = 0;
    for context in contexts() {
        assert_eq!(source.requires().missing(context.info().features).to_string(), "nothing");
        let found = run(context, &source, case);
        for (binding, (found, expected)) in found.iter().zip(&case.after).enumerate() {
            let at = found.iter().zip(expected).position(|(a, b)| a != b);
            assert_eq!(at, None, "{}: first wrong byte of binding {binding}", context.info().name);
        }
        ran += 1;
    }
    ran
}

#[test]
fn buffers_of_texels_of_every_format() {
    const GLSL: &str = "#version 450
        layout(local_size_x = 16) in;
        layout(set = 0, binding = 0) uniform samplerBuffer f4;
        layout(set = 0, binding = 1) uniform usamplerBuffer u4;
        layout(set = 0, binding = 2, r32i) readonly uniform iimageBuffer i1;
        layout(set = 0, binding = 3, rgba16f) readonly uniform imageBuffer h4;
        layout(set = 0, binding = 4, rgba32f) writeonly uniform imageBuffer out_f4;
        layout(set = 0, binding = 5, rgba32ui) writeonly uniform uimageBuffer out_u4;
        layout(set = 0, binding = 6, r32f) writeonly uniform imageBuffer out_f1;
        layout(set = 0, binding = 7, rgba16f) writeonly uniform imageBuffer out_h4;
        layout(set = 0, binding = 8, std430) buffer Y { ivec4 y[]; };
        layout(push_constant) uniform P { uint n; } p;

        vec4 twice(samplerBuffer t, int i) { return texelFetch(t, i) * 2.0; }

        void main()
        {
            int i = int(gl_GlobalInvocationID.x);
            if (i >= int(p.n)) {
                return;
            }
            int back = int(p.n) - 1 - i;
            vec4 h = imageLoad(h4, back);
            ivec4 one = imageLoad(i1, i);
            imageStore(out_f4, i, twice(f4, back) + h.wzyx);
            imageStore(out_u4, back, texelFetch(u4, i) + uvec4(uint(one.x)));
            imageStore(out_f1, i, vec4(h.y - 1.0));
            imageStore(out_h4, back, h * 0.5);
            y[i] = one + ivec4(textureSize(f4), 0, 0, 0);
        }";
    let n = 150usize;
    let f: Vec<[f32; 4]> = (0..n).map(|i| [0, 1, 2, 3].map(|c| (i * 4 + c) as f32 * 0.25 - 40.0)).collect();
    let u: Vec<[u32; 4]> = (0..n).map(|i| [0, 1, 2, 3].map(|c| (i * 7919 + c) as u32)).collect();
    let one: Vec<i32> = (0..n).map(|i| 5 - 3 * i as i32).collect();
    let h: Vec<[f32; 4]> = (0..n).map(|i| [0, 1, 2, 3].map(|c| (i + c * 9) as f32 * 0.5 - 20.0)).collect();
    let halves =
        |v: &[[f32; 4]]| bytes(&v.iter().flatten().map(|v| half::f16::from_f32(*v)).collect::<Vec<_>>());
    let (f4, u4, h4) = (bytes(&f.concat()), bytes(&u.concat()), halves(&h));
    let back = |i: usize| n - 1 - i;
    let out_f4: Vec<[f32; 4]> =
        (0..n).map(|i| [0, 1, 2, 3].map(|c| f[back(i)][c] * 2.0 + h[back(i)][3 - c])).collect();
    let out_u4: Vec<[u32; 4]> =
        (0..n).map(|i| u[back(i)].map(|u| u.wrapping_add(one[back(i)] as u32))).collect();
    let out_f1: Vec<f32> = (0..n).map(|i| h[back(i)][1] - 1.0).collect();
    let out_h4: Vec<[f32; 4]> = (0..n).map(|i| h[i].map(|h| h * 0.5)).collect();
    let y: Vec<[i32; 4]> = one.iter().map(|one| [one + n as i32, 0, 0, 1]).collect();
    let zeros = |bytes: usize| vec![0u8; bytes];
    let case = Case {
        glsl: GLSL,
        spec: &[],
        params: bytes(&[n as u32]),
        groups: (n as u32).div_ceil(16),
        before: vec![
            f4.clone(),
            u4.clone(),
            bytes(&one),
            h4.clone(),
            zeros(16 * n),
            zeros(16 * n),
            zeros(4 * n),
            zeros(8 * n),
            zeros(16 * n),
        ],
        after: vec![
            f4,
            u4,
            bytes(&one),
            h4,
            bytes(&out_f4.concat()),
            bytes(&out_u4.concat()),
            bytes(&out_f1),
            halves(&out_h4),
            bytes(&y.concat()),
        ],
    };
    assert!(on_every_device(&case) > 0);
}

fn create(context: &Context, bytes: u64, placement: Placement) -> Buffer {
    context.create_buffer(&BufferDesc { bytes, placement, label: "image" }).unwrap()
}

/// Texels in rows that lie as `image` says, and back.
fn in_rows(image: &ImageDesc, texels: &[f32]) -> Vec<u8> {
    let row = image.row_bytes() as usize;
    let mut out = vec![0u8; image.row_pitch as usize * image.height as usize];
    for (to, from) in out.chunks_exact_mut(image.row_pitch as usize).zip(bytes(texels).chunks_exact(row)) {
        to[..row].copy_from_slice(from);
    }
    out
}

fn out_of_rows(image: &ImageDesc, rows: &[u8]) -> Vec<f32> {
    let lines = rows.chunks_exact(image.row_pitch as usize);
    let dense: Vec<u8> = lines.flat_map(|line| line[..image.row_bytes() as usize].to_vec()).collect();
    bytemuck::pod_collect_to_vec(&dense)
}

/// Runs a kernel over two images of one buffer at places that the device takes, the input's texels copied there first;
/// what the output's texels and the words after them then are.
fn through_images(
    context: &Context,
    source: &Arc<KernelSource>,
    [texel_in, texel_out]: [Texel; 2],
    size: [u64; 2],
    texels: &[f32],
) -> (Vec<f32>, Vec<i32>) {
    let rules = context.info().images.clone().unwrap();
    let describe = |texel| rules.describe(texel, size[0], size[1]).unwrap();
    let (from, to) = (describe(texel_in), describe(texel_out));
    let align =
        rules.alignment(&from).max(rules.alignment(&to)).max(context.info().limits.argument_alignment);
    let room = |image: &ImageDesc| rules.memory_bytes(image).next_multiple_of(align);
    // Something before the first, and between them.
    let at = [align, 2 * align + room(&from)];
    let memory = create(context, at[1] + room(&to) + align, Placement::Device);
    let range = |offset: u64, bytes: u64| BufferRange { offset, bytes, ..memory.range() };
    let (x, y) = (range(at[0], rules.memory_bytes(&from)), range(at[1], rules.memory_bytes(&to)));
    let rows = in_rows(&from, texels);
    let upload = create(context, rows.len() as u64, Placement::Upload);
    upload.map_write().unwrap().copy_from_slice(&rows);
    let out_bytes = to.row_pitch * u64::from(to.height);
    let download = create(context, out_bytes, Placement::Readback);
    let sizes = create(context, 16, Placement::Shared);
    sizes.map_write().unwrap().fill(0);
    let kernel = context.create_kernel(source, &[]).unwrap();
    let view = |image| ImageView { image, filter: Filter::Nearest };
    let (_, reflection) = source.spirv().unwrap();
    let access = |at: usize| touch(reflection.bindings[at].access);
    let dispatch = Dispatch::new(
        kernel.id(),
        vec![
            Arg::Image(x, view(from), access(0)),
            Arg::Image(y, view(to), access(1)),
            Arg::Buffer(sizes.range(), access(2)),
        ],
        Vec::new(),
        [size[0] as u32, size[1] as u32, 1],
    );
    let all = Command::Barrier(Barrier { src: Access::DEVICE, dst: Access::DEVICE });
    let recording = Recording {
        commands: vec![
            Command::Copy { src: upload.range(), dst: range(at[0], rows.len() as u64) },
            all.clone(),
            Command::Dispatch(dispatch),
            all,
            Command::Copy { src: range(at[1], out_bytes), dst: download.range() },
            Command::Barrier(Barrier { src: Access::DEVICE_WRITE, dst: Access::HOST_READ }),
        ],
        images: vec![(x, from), (y, to)],
        ..Recording::default()
    };
    context.queue().unwrap().submit(recording).unwrap().wait().unwrap();
    assert_eq!(context.validation_messages(), Vec::<String>::new());
    let texels = out_of_rows(&to, &download.map_read().unwrap());
    let sizes = bytemuck::pod_collect_to_vec(&sizes.map_read().unwrap());
    (texels, sizes)
}

#[test]
fn two_dimensional_images_over_a_buffer() {
    // Also beyond the edges: what is read there is the edge's, and what is written there goes nowhere.
    const GLSL: &str = "#version 450
        layout(local_size_x = 1) in;
        layout(set = 0, binding = 0) uniform sampler2D x;
        layout(set = 0, binding = 1, rgba32f) writeonly uniform image2D y;
        layout(set = 0, binding = 2, std430) buffer S { ivec4 sizes; };

        void main()
        {
            ivec2 at = ivec2(gl_GlobalInvocationID.xy);
            ivec2 size = textureSize(x, 0);
            if (at == ivec2(0)) {
                sizes = ivec4(size, imageSize(y));
            }
            vec4 fetched = texelFetch(x, size - 1 - at, 0);
            vec4 sampled = textureLod(x, vec2(at) + vec2(0.75, 0.25), 0.0);
            vec4 beyond = textureLod(x, vec2(at) - vec2(size) * 0.5, 0.0);
            imageStore(y, at, fetched + 2.0 * sampled + 1024.0 * beyond);
            imageStore(y, at + size, vec4(-1.0));
            imageStore(y, ivec2(-1 - at.x, at.y), vec4(-1.0));
        }";
    let source = Arc::new(foreign::spirv("planes", compile(GLSL)).unwrap());
    let mut ran = 0;
    for context in contexts() {
        let name = &context.info().name;
        let Some(rules) = &context.info().images else {
            eprintln!("{name}: not tested: no images");
            continue;
        };
        for texel in [Texel::Rgba32F, Texel::R32F] {
            assert!(rules.sampled.contains(texel) && rules.stored.contains(Texel::Rgba32F), "{name}");
            for [w, h] in [[1usize, 1], [7, 5], [64, 9], [33, 2]] {
                let channels = texel.channels() as usize;
                let x: Vec<f32> = (0..w * h * channels).map(|i| (i % 509) as f32).collect();
                let of = |col: usize, row: usize, c: usize| match (c < channels, c) {
                    (true, _) => x[(row * w + col) * channels + c],
                    (false, 3) => 1.0,
                    (false, _) => 0.0,
                };
                let want: Vec<f32> = (0..w * h * 4)
                    .map(|i| {
                        let (c, col, row) = (i % 4, i / 4 % w, i / 4 / w);
                        let inside = |at: usize, size: usize| {
                            (at as f32 - size as f32 * 0.5).floor().clamp(0.0, size as f32 - 1.0) as usize
                        };
                        let beyond = of(inside(col, w), inside(row, h), c);
                        of(w - 1 - col, h - 1 - row, c) + 2.0 * of(col, row, c) + 1024.0 * beyond
                    })
                    .collect();
                let (y, sizes) =
                    through_images(context, &source, [texel, Texel::Rgba32F], [w as u64, h as u64], &x);
                assert_eq!(y, want, "{name} {texel:?} {w}x{h}");
                assert_eq!(sizes, [w, h, w, h].map(|n| n as i32), "{name}");
            }
        }
        ran += 1;
    }
    assert!(ran > 0);
}
