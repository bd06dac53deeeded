//! The renderer and models on one device, checked by values, with the validation layer on and silent.

use onepool::memory::import::Path;
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
    }
    let messages = wgpu_hal::VALIDATION_CANARY.get_and_reset();
    assert!(messages.is_empty(), "{messages:#?}");
}
