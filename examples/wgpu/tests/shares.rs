//! The renderer and models on one device, checked by values, with the validation layer on and silent.

use onepool::memory::import::{Path, ReadWrite, Reason};
use onepool::session::RunOptions;
use onepool::spirv::Requires;
use onepool::{DType, GraphBuilder, HostRegion, Memory, Session, ops};
use wgpu_shared::Shared;

const FLOATS: u64 = 4096;

const SCALE: &str = "
@group(0) @binding(0) var<storage, read> source: array<f32>;
@group(0) @binding(1) var<storage, read_write> to: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    to[id.x] = source[id.x] * 3.0 + f32(id.x);
}";

fn square(context: &onepool::device::Context, n: usize) -> Session {
    let mut graph = GraphBuilder::new("square");
    let x = graph.input("x", DType::F32, [n.into()]);
    let y = graph.op(ops::mul(), &[x, x]);
    graph.output("y", y);
    let built = Session::builder().graph(graph.build().unwrap()).context(context.clone());
    built.copy_threshold(0).build().unwrap()
}

/// The renderer draws a texture, a model doubles it into another one, and the renderer copies that.
fn textures(shared: &Shared) {
    const SIDE: u32 = 64;
    let from = shared.texture(SIDE, SIDE, ReadWrite::Read).unwrap();
    let to = shared.texture(SIDE, SIDE, ReadWrite::Write).unwrap();
    let seen = shared.buffer(u64::from(SIDE * SIDE)).unwrap();
    let mut graph = GraphBuilder::new("brighter");
    let x = graph.input("x", DType::U8, [SIDE as usize, SIDE as usize, 4].map(Into::into));
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    let built = Session::builder().graph(graph.build().unwrap()).context(shared.context.clone());
    let session = built.build().unwrap();
    let bound = session.bind().strict(true).input("x", Memory::buffer(&from.onepool));
    let mut binding = bound.output("y", Memory::buffer(&to.onepool)).build().unwrap();
    let copied = u64::from(SIDE * SIDE * 4);
    assert!(binding.verdicts().all(|verdict| verdict.reason == Reason::Image { copied }));
    for round in 1..4u8 {
        let colour = [10, 20, 30, 40].map(|part| f64::from(part * round) / 255.0);
        let [r, g, b, a] = colour;
        let mut encoder = shared.device.create_command_encoder(&Default::default());
        let view = from.wgpu.create_view(&Default::default());
        drop(encoder.begin_render_pass(&wgpu::RenderPassDescriptor {
            color_attachments: &[Some(wgpu::RenderPassColorAttachment {
                view: &view,
                depth_slice: None,
                resolve_target: None,
                ops: wgpu::Operations {
                    load: wgpu::LoadOp::Clear(wgpu::Color { r, g, b, a }),
                    store: wgpu::StoreOp::Store,
                },
            })],
            ..Default::default()
        }));
        shared.submit(encoder);
        shared.hand_over(&[&from, &to]);
        let run = binding.submit().unwrap();
        let mut encoder = shared.device.create_command_encoder(&Default::default());
        encoder.copy_texture_to_buffer(
            to.wgpu.as_image_copy(),
            wgpu::TexelCopyBufferInfo {
                buffer: &seen.wgpu,
                layout: wgpu::TexelCopyBufferLayout {
                    offset: 0,
                    bytes_per_row: Some(4 * SIDE),
                    rows_per_image: None,
                },
            },
            wgpu::Extent3d { width: SIDE, height: SIDE, depth_or_array_layers: 1 },
        );
        shared.submit(encoder);
        run.wait().unwrap();
        let wanted = [20, 40, 60, 80].map(|part: u8| part * round);
        let words = shared.look(&seen.wgpu).unwrap();
        assert!(words.iter().all(|word| word.to_bits().to_ne_bytes() == wanted), "round {round}");
    }
}

#[test]
fn a_model_works_between_two_shaders_on_the_renderers_own_buffers() {
    {
        let shared = Shared::open(wgpu::InstanceFlags::VALIDATION).unwrap();
        // Of what wgpu does not ask for itself.
        let wanted = [Requires::STORAGE_8, Requires::FLOAT16, Requires::STORAGE_16, Requires::INT64];
        let info = shared.context.info();
        assert!(wanted.iter().all(|feature| info.features.contains(*feature)), "{:?}", info.advice);
        let buffers: Vec<_> = (0..4).map(|_| shared.buffer(FLOATS).unwrap()).collect();
        let [a, b, c, d] = &buffers[..] else { unreachable!() };
        let session = square(&shared.context, FLOATS as usize);
        let bound = session.bind().strict(true).input("x", Memory::buffer(&b.onepool));
        let mut binding = bound.output("y", Memory::buffer(&c.onepool)).build().unwrap();
        assert!(binding.verdicts().all(|verdict| verdict.path == Path::Direct));
        for round in 0..3 {
            shared.dispatch(SCALE, &[&a.wgpu, &b.wgpu], 64);
            let run = binding.submit_with(&RunOptions::new()).unwrap();
            shared.dispatch(SCALE, &[&c.wgpu, &d.wgpu], 64);
            run.wait().unwrap();
            let words = shared.look(&d.wgpu).unwrap();
            let expected = |i: usize| (i * i) as f32 * 3.0 + i as f32;
            assert!(words.iter().enumerate().all(|(i, word)| *word == expected(i)), "round {round}");
        }
        assert_eq!(shared.context.traffic().copied, 0);

        // Memory of the process is imported on the same device.
        let (x, y) = (HostRegion::new(1 << 16).unwrap(), HostRegion::new(1 << 16).unwrap());
        let (x, y) = (x.into_shared(), y.into_shared());
        x.write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(5.0);
        let session = square(&shared.context, 1 << 14);
        let bound = session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y));
        let mut binding = bound.build().unwrap();
        binding.run().unwrap();
        assert!(binding.verdicts().all(|verdict| verdict.path == Path::Imported));
        assert_eq!(y.read().unwrap().as_slice_of::<f32>().unwrap()[16383], 25.0);
        textures(&shared);
    }
    let messages = wgpu_hal::VALIDATION_CANARY.get_and_reset();
    assert!(messages.is_empty(), "{messages:#?}");
}
