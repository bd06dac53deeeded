//! Images over buffers.

use onepool::backend::Placement;
use onepool::kernel::{KernelSource, NativeKernel, id, params};
use onepool::recording::{BufferRange, DeviceKernelId};

#[cfg(not(without_glslang))]
use self::two_dimensional::rows_written_through_an_image_are_bytes_and_are_fetched_again;
use crate::fixture::{Fixture, axpb, recording, to_host};
use crate::foreign;
use crate::targets::Target;

crate::cases![
    texel_views_read_what_plain_buffers_read,
    part_of_a_texel_at_the_end_of_a_buffer_is_an_error,
    #[cfg(not(without_glslang))]
    rows_written_through_an_image_are_bytes_and_are_fetched_again,
];

/// y = a * x + b over texels, read as an array or through a view of texels.
fn texels(fixture: &Fixture, id: onepool::kernel::KernelId) -> DeviceKernelId {
    let native = NativeKernel::new("axpb", |args| {
        let params::Axpb { n, a, b } = bytemuck::pod_read_unaligned(args.params());
        let x = args.read::<f32>(0)?;
        let y = args.take_write::<f32>(1)?;
        y.iter_mut().zip(x).take(4 * n as usize).for_each(|(y, x)| *y = a * x + b);
        Ok(())
    });
    let source: KernelSource =
        foreign::spirv("axpb", id.info().spirv().to_vec()).unwrap().with_native(native);
    fixture.create(&source, &[]).unwrap()
}

fn texel_views_read_what_plain_buffers_read(target: &'static Target) {
    let fixture = Fixture::new(target);
    let queue = fixture.queue();
    let x: Vec<f32> = (0..404).map(|at| at as f32 * 0.5).collect();
    let input = fixture.upload(&x);
    let limits = &fixture.context().info().limits;
    let alignment = limits.texel_alignment.max(limits.argument_alignment);
    let outputs = [id::AXPB_F32X4, id::AXPB_F32X4T].map(|id| {
        let kernel = texels(&fixture, id);
        let y = fixture.buffer(1600, Placement::Readback);
        let range = BufferRange { offset: alignment, bytes: 1600 - alignment, ..fixture.all(input) };
        let n = (range.bytes / 16) as u32;
        let run = recording(vec![axpb(kernel, range, fixture.all(y), n, 2.0, 0.25), to_host()]);
        fixture.run(&queue, &run);
        // The same range again takes the view that is there.
        fixture.run(&queue, &run);
        fixture.download::<f32>(y)[..n as usize * 4].to_vec()
    });
    let first = alignment as usize / 4;
    let expected: Vec<f32> = x[first..400].iter().map(|x| x * 2.0 + 0.25).collect();
    assert_eq!(outputs, [expected.clone(), expected]);
    // To the end of the buffer.
    let kernel = texels(&fixture, id::AXPB_F32X4T);
    let y = fixture.buffer(1600, Placement::Device);
    let whole = axpb(kernel, fixture.all(input), fixture.all(y), 100, 1.0, 0.0);
    fixture.run(&queue, &recording(vec![whole]));
}

fn part_of_a_texel_at_the_end_of_a_buffer_is_an_error(target: &'static Target) {
    let fixture = Fixture::new(target);
    let kernel = texels(&fixture, id::AXPB_F32X4T);
    let short = fixture.buffer(1610, Placement::Shared);
    let y = fixture.buffer(1600, Placement::Device);
    let ragged = axpb(kernel, fixture.all(short), fixture.all(y), 100, 1.0, 0.0);
    let error = fixture.queue().submit(&recording(vec![ragged])).unwrap_err();
    assert!(error.to_string().contains("part of a texel"), "{error}");
}

#[cfg(not(without_glslang))]
mod two_dimensional {
    use onepool::backend::Placement;
    use onepool::kernel::NativeKernel;
    use onepool::memory::image::{Filter, ImageView, Texel};
    use onepool::recording::{Arg, Command, Dispatch, Recording};

    use crate::fixture::{Fixture, READ, WRITE, barrier, part, to_host};
    use crate::targets::Target;
    use crate::{foreign, glsl};

    const W: u32 = 5;
    const H: u32 = 3;

    /// Texel (x, y) becomes (x, y, 10 x + y, 1).
    const STORE: &str = "#version 450
        layout(local_size_x = 1) in;
        layout(binding = 0, rgba32f) writeonly uniform image2D t;
        void main() {
            ivec2 at = ivec2(gl_GlobalInvocationID.xy);
            imageStore(t, at, vec4(at, 10 * at.x + at.y, 1));
        }";

    /// The texels, row by row.
    const FETCH: &str = "#version 450
        layout(local_size_x = 1) in;
        layout(binding = 0) uniform sampler2D t;
        layout(binding = 1) writeonly buffer Y { vec4 y[]; };
        void main() {
            ivec2 at = ivec2(gl_GlobalInvocationID.xy);
            y[at.y * 5 + at.x] = texelFetch(t, at, 0);
        }";

    fn texel(x: u32, y: u32) -> [f32; 4] {
        [x, y, 10 * x + y, 1].map(|value| value as f32)
    }

    pub(super) fn rows_written_through_an_image_are_bytes_and_are_fetched_again(target: &'static Target) {
        let fixture = Fixture::new(target);
        let rules = fixture.context().info().images.clone().unwrap();
        let image = rules.describe(Texel::Rgba32F, W.into(), H.into()).unwrap();
        let pitch = image.row_pitch as usize / 4;
        let bytes = image.row_pitch * u64::from(H.next_multiple_of(rules.rows.max(1)));
        let offset = rules.base.bytes(Texel::Rgba32F);
        let held = fixture.buffer(offset + bytes, Placement::Device);
        let (lines, down) = (
            fixture.buffer(16 * u64::from(W * H), Placement::Readback),
            fixture.upload(&vec![0.0f32; bytes as usize / 4]),
        );
        let kernel = |name, text: &str, native| {
            let source = foreign::spirv(name, glsl::compile(text)).unwrap().with_native(native);
            fixture.create(&source, &[]).unwrap()
        };
        let store = kernel(
            "store",
            STORE,
            NativeKernel::new("store", move |args| {
                let rows = args.take_write::<f32>(0)?;
                for (x, y) in (0..H).flat_map(|y| (0..W).map(move |x| (x, y))) {
                    rows[y as usize * pitch + 4 * x as usize..][..4].copy_from_slice(&texel(x, y));
                }
                Ok(())
            }),
        );
        let fetch = kernel(
            "fetch",
            FETCH,
            NativeKernel::new("fetch", move |args| {
                let rows = args.read::<f32>(0)?;
                for (y, line) in args.take_write::<f32>(1)?.chunks_mut(4 * W as usize).enumerate() {
                    line.copy_from_slice(&rows[y * pitch..][..4 * W as usize]);
                }
                Ok(())
            }),
        );
        let range = part(held, offset, bytes);
        let view = ImageView { image, filter: Filter::Nearest };
        let dispatch = |kernel, args| Command::Dispatch(Dispatch::new(kernel, args, vec![], [W, H, 1]));
        let commands = vec![
            dispatch(store, vec![Arg::Image(range, view, WRITE)]),
            barrier(WRITE, READ | onepool::memory::coherency::Access::TRANSFER_READ),
            dispatch(fetch, vec![Arg::Image(range, view, READ), Arg::Buffer(fixture.all(lines), WRITE)]),
            Command::Copy { src: part(held, offset, image.bytes()), dst: part(down, 0, image.bytes()) },
            to_host(),
        ];
        let run = Recording { commands, images: vec![(range, image)], ..Recording::default() };
        fixture.run(&fixture.queue(), &run);
        let want: Vec<f32> = (0..H).flat_map(|y| (0..W).flat_map(move |x| texel(x, y))).collect();
        assert_eq!(fixture.download::<f32>(lines), want);
        let rows = fixture.download::<f32>(down);
        for (y, line) in want.chunks(4 * W as usize).enumerate() {
            assert_eq!(rows[y * pitch..][..4 * W as usize], *line, "row {y}");
        }
    }
}
