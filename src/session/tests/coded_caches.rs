//! Caches of other types than keys and values, updated in place.

use std::sync::Arc;

use super::updates::{DEVICES, KV_HEADS, ROWS, SIZE, STEPS, WIDTH, attention, floats, qkv, session};
use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, Tensor, TensorInfo};
use crate::memory::host::HostRegion;
use crate::memory::import::Reason;
use crate::memory::range::ByteRange;
use crate::ops::Operator;
use crate::ops::attention::CacheKind;
use crate::ops::linalg::MatMul;
use crate::plan::Precision;
use crate::registry::Registry;
use crate::session::tests::{check_messages, desc};
use crate::session::{Error, Memory, Session};
use crate::shape::Shape;

/// What caches hold, and how far results are from those of a cache of numbers.
const KINDS: [(CacheKind, f32); 5] = [
    (CacheKind::Half, 2e-3),
    (CacheKind::Blocks { bits: 8 }, 2e-2),
    (CacheKind::Blocks { bits: 4 }, 0.3),
    (CacheKind::Scaled { bits: 8 }, 2e-2),
    (CacheKind::Scaled { bits: 4 }, 0.3),
];

fn decoder(kind: CacheKind) -> Graph {
    let mut g = GraphBuilder::new("decoder");
    let qkv = g.input("qkv", DType::F32, [1.into(), "s".into(), WIDTH.into()]);
    attention(g, qkv, DType::F32, kind)
}

fn cache_info(kind: CacheKind) -> TensorInfo {
    let dims = [1, KV_HEADS, ROWS, kind.row(SIZE)];
    TensorInfo::new(kind.dtype(DType::F32), Shape::new(dims).unwrap())
}

/// Outputs of all steps, and the caches after them, with the caches passed on by value.
fn by_value(device: &str, kind: CacheKind) -> (Vec<Tensor>, [Tensor; 2]) {
    let mut session = session(device, decoder(kind));
    let zeros = Tensor::build(cache_info(kind), |_| Ok::<(), Error>(())).unwrap();
    let mut caches = [zeros.clone(), zeros];
    let mut outputs = Vec::new();
    for (at, tokens) in STEPS {
        session.set_input("qkv", &qkv(DType::F32, at, tokens)).unwrap();
        session.set_input("past_k", &caches[0]).unwrap();
        session.set_input("past_v", &caches[1]).unwrap();
        session.set_input("last", &Tensor::new([1], &[(at + tokens - 1) as i32]).unwrap()).unwrap();
        session.run().unwrap();
        outputs.push(session.get_output("y").unwrap());
        caches = ["present_k", "present_v"].map(|name| session.get_output(name).unwrap());
    }
    check_messages(&session);
    (outputs, caches)
}

fn is_near(got: &Tensor, want: &Tensor, far: f32) -> bool {
    let (got, want) = (got.to_f32s().unwrap(), want.to_f32s().unwrap());
    got.len() == want.len() && got.iter().zip(&want).all(|(got, want)| (got - want).abs() <= far)
}

/// Caches whose unreached rows hold what is no number.
fn in_place(device: &str, kind: CacheKind, (wanted, wanted_caches): &(Vec<Tensor>, [Tensor; 2])) {
    const UNREACHED: u8 = 0xff;
    let session = session(device, decoder(kind));
    let bytes = cache_info(kind).bytes();
    let memory = [(); 2].map(|()| {
        let mut region = HostRegion::new(bytes).unwrap();
        region.as_mut_slice().fill(UNREACHED);
        Memory::region_range(&region.into_shared(), ByteRange::up_to(bytes as u64))
    });
    let mut caches = Vec::new();
    for (step, (at, tokens)) in STEPS.into_iter().enumerate() {
        let mut binding = session
            .bind()
            .input("qkv", Memory::value(qkv(DType::F32, at, tokens)))
            .input("last", Memory::value(Tensor::new([1], &[(at + tokens - 1) as i32]).unwrap()))
            .update("past_k", "present_k", memory[0].again())
            .update("past_v", "present_v", memory[1].again())
            .build()
            .unwrap();
        binding.run().unwrap();
        let got = binding.get_output("y").unwrap();
        // By value a native function attends to new keys before they are rounded to `float16`.
        let far = if kind == CacheKind::Half { 2e-3 } else { 1e-6 };
        assert!(is_near(&got, &wanted[step], far), "{device} {kind:?} {step}: {got:?}");
        for name in ["past_k", "past_v"] {
            let verdict = binding.verdicts().find(|v| v.tensor == name).unwrap();
            assert_eq!((&verdict.reason, verdict.copies_on_device()), (&Reason::Updated, false));
        }
        caches = ["present_k", "present_v"].map(|name| binding.get_output(name).unwrap()).to_vec();
    }
    let (last, tokens) = STEPS[STEPS.len() - 1];
    for (got, want) in caches.iter().zip(wanted_caches) {
        let row = got.bytes().len() / (KV_HEADS * ROWS);
        for (n, (got, want)) in got.bytes().chunks(row).zip(want.bytes().chunks(row)).enumerate() {
            let kept = vec![UNREACHED; row];
            let want = if n % ROWS < last + tokens { want } else { &kept };
            assert_eq!(got, want, "{device} {kind:?}, row {n}");
        }
    }
    check_messages(&session);
}

#[test]
fn a_cache_of_another_type_is_extended_where_it_lies() {
    let (plain, _) = by_value("cpu", CacheKind::Same);
    for device in DEVICES {
        for (kind, far) in KINDS {
            let wanted = by_value(device, kind);
            for (step, (got, want)) in wanted.0.iter().zip(&plain).enumerate() {
                assert!(is_near(got, want, far), "{device} {kind:?} {step}: {got:?}, not {want:?}");
            }
            in_place(device, kind, &wanted);
        }
    }
}

/// Such a cache is none that half precision would convert.
#[test]
fn attention_to_a_cache_of_another_type_is_in_half_precision_where_the_rest_is() {
    const DEPTH: usize = 512;
    let run = |device: &str, kind: CacheKind, precision| {
        let mut g = GraphBuilder::new("projected");
        let x = g.input("x", DType::F32, [1.into(), 1.into(), DEPTH.into()]);
        let w = g.constant("w", floats(DType::F32, &[DEPTH, WIDTH], 3));
        let qkv = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, w]);
        let graph = attention(g, qkv, DType::F32, kind);
        let context = Registry::with_defaults().open(device, &desc()).unwrap();
        let builder = Session::builder().graph(graph).context(context).copy_threshold(0);
        let session = builder.precision(precision).build().unwrap();
        let mut binding = session
            .bind()
            .input("x", Memory::value(floats(DType::F32, &[1, 1, DEPTH], 4)))
            .input("last", Memory::value(Tensor::new([1], &[0i32]).unwrap()))
            .update("past_k", "present_k", Memory::own())
            .update("past_v", "present_v", Memory::own())
            .build()
            .unwrap();
        binding.run().unwrap();
        check_messages(&session);
        (binding.get_output("y").unwrap(), binding.plan().report.halved)
    };
    for device in ["cpu", "sim", "vulkan"] {
        for (kind, far) in KINDS {
            let (want, _) = run(device, kind, Precision::F32);
            let (got, halves) = run(device, kind, Precision::F16);
            // Scales are `float32`.
            let attends = usize::from(!matches!(kind, CacheKind::Scaled { .. }));
            assert_eq!(halves, 1 + attends, "{device} {kind:?}");
            assert!(is_near(&got, &want, 0.05f32.max(far)), "{device} {kind:?}: {got:?}, not {want:?}");
        }
    }
}
