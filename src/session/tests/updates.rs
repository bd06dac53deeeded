//! Memory that is an input and an output: caches that are updated in place.

use std::sync::Arc;

use half::f16;

use crate::backend::sim::{SimConfig, SimDriver};
use crate::backend::{BufferDesc, Placement};
use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, Tensor, TensorId, TensorInfo};
use crate::memory::host::HostRegion;
use crate::memory::import::Reason;
use crate::memory::range::ByteRange;
use crate::ops;
use crate::ops::Operator;
use crate::ops::attention::{CacheKind, GroupQueryAttention, TensorScatter};
use crate::ops::linalg::MatMul;
use crate::ops::test_util::{tensor_of, values};
use crate::plan::Precision;
use crate::registry::Registry;
use crate::session::tests::{check_messages, desc};
use crate::session::{Binding, Error, Memory, Session, SessionError};
use crate::shape::Shape;

/// Heads of queries, of keys; elements of a vector; rows of the cache.
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const SIZE: usize = 16;
const ROWS: usize = 48;
const WIDTH: usize = (HEADS + 2 * KV_HEADS) * SIZE;

/// One layer of a decoder: queries, keys and values in one, a cache of `ROWS` rows.
fn decoder(dtype: DType, kind: CacheKind) -> Graph {
    let mut g = GraphBuilder::new("decoder");
    let qkv = g.input("qkv", dtype, [1.into(), "s".into(), WIDTH.into()]);
    attention(g, qkv, dtype, kind)
}

fn cache_info(dtype: DType, kind: CacheKind) -> TensorInfo {
    TensorInfo::new(kind.dtype(dtype), Shape::new([1, KV_HEADS, ROWS, kind.row(SIZE)]).unwrap())
}

/// The graph of `g` with attention to caches.
fn attention(mut g: GraphBuilder, qkv: TensorId, dtype: DType, cache: CacheKind) -> Graph {
    let dims = [1, KV_HEADS, ROWS, cache.row(SIZE)];
    let caches = ["past_k", "past_v"].map(|name| g.input(name, cache.dtype(dtype), dims.map(Into::into)));
    let last = g.input("last", DType::I32, [1.into()]);
    let total = g.constant("total", Tensor::new([1], &[ROWS as i32]).unwrap());
    let table = |seed: u64| floats(dtype, &[ROWS, SIZE / 2], seed);
    let tables = [g.constant("cos", table(7)), g.constant("sin", table(8))];
    let op: Arc<dyn Operator> = Arc::new(GroupQueryAttention {
        heads: HEADS,
        kv_heads: KV_HEADS,
        scale: None,
        softcap: 0.0,
        window: None,
        rotary: Some(false),
        causal: true,
        smooth: false,
        cache,
        updates: None,
    });
    let inputs = [Some(qkv), None, None, Some(caches[0]), Some(caches[1]), Some(last), Some(total)];
    let mut inputs = [&inputs[..], &tables.map(Some)].concat();
    if let CacheKind::Scaled { bits } = cache {
        let scales =
            Tensor::new([1, KV_HEADS, 1, SIZE], &[2.0f32 / (1 << bits) as f32; KV_HEADS * SIZE]).unwrap();
        inputs.extend([None; 3]);
        inputs.extend(
            [
                g.constant("k_scales", scales),
                g.constant("v_scale", Tensor::new([1], &[2.0f32 / (1 << bits) as f32]).unwrap()),
            ]
            .map(Some),
        );
    }
    let (_, outputs) = g.node("attention", op, &inputs, 3);
    for (name, id) in ["y", "present_k", "present_v"].into_iter().zip(outputs) {
        g.output(name, id);
    }
    g.build().unwrap()
}

pub(super) fn session(device: &str, graph: Graph) -> Session {
    let mut registry = Registry::with_defaults();
    let configs =
        vec![SimConfig::noncoherent(), SimConfig::discrete(), SimConfig::discrete().without_imports()];
    registry.register(Box::new(SimDriver::with(configs)));
    let context = registry.open(device, &desc()).unwrap();
    Session::builder().graph(graph).context(context).copy_threshold(0).build().unwrap()
}

pub(super) const DEVICES: [&str; 6] = ["cpu", "sim:0", "sim:1", "sim:2", "vulkan", "opencl"];

/// What is done in turn: first row, tokens.
const STEPS: [(usize, usize); 5] = [(0, 5), (5, 1), (6, 1), (7, 3), (10, 1)];

fn qkv(dtype: DType, at: usize, tokens: usize) -> Tensor {
    floats(dtype, &[1, tokens, WIDTH], 100 + at as u64)
}

pub(super) fn floats(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let values = values(shape.iter().product(), seed);
    match dtype {
        DType::F16 => tensor_of(shape, &values, f16::from_f32),
        _ => tensor_of(shape, &values, |v| v),
    }
}

/// Outputs of all steps, and the caches after them.
pub(super) type Made = (Vec<Tensor>, [Tensor; 2]);

/// What steps give whose caches are passed on by value.
pub(super) fn by_value(device: &str, dtype: DType, kind: CacheKind) -> Made {
    let mut session = session(device, decoder(dtype, kind));
    let zeros = Tensor::build(cache_info(dtype, kind), |_| Ok::<(), Error>(())).unwrap();
    let mut caches = [zeros.clone(), zeros];
    let mut outputs = Vec::new();
    for (at, tokens) in STEPS {
        session.set_input("qkv", &qkv(dtype, at, tokens)).unwrap();
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

/// Where a cache lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    Region,
    Device,
}

/// The bytes of rows that no step reaches: no numbers in any type, which must not be seen.
const UNREACHED: u8 = 0xff;

/// A cache in which no row is reached.
fn cache(session: &Session, info: &TensorInfo, place: Place) -> Memory<'static> {
    let bytes = info.bytes();
    if place == Place::Region {
        let mut region = HostRegion::new(bytes).unwrap();
        region.as_mut_slice().fill(UNREACHED);
        return Memory::region_range(&region.into_shared(), ByteRange::up_to(bytes as u64));
    }
    let desc = BufferDesc { bytes: bytes as u64, placement: Placement::Shared, label: "cache" };
    let buffer = session.context(0).unwrap().create_buffer(&desc).unwrap();
    buffer.map_write().unwrap().fill(UNREACHED);
    Memory::buffer(&buffer)
}

pub(super) fn is_near(got: &Tensor, want: &Tensor, far: f32) -> bool {
    let (got, want) = (got.to_f32s().unwrap(), want.to_f32s().unwrap());
    got.len() == want.len() && got.iter().zip(&want).all(|(got, want)| (got - want).abs() <= far)
}

fn check_updated(binding: &Binding<'static>, case: &str) {
    for name in ["past_k", "past_v"] {
        let verdict = binding.verdicts().find(|v| v.tensor == name).unwrap();
        assert_eq!((&verdict.reason, verdict.copies_on_device()), (&Reason::Updated, false), "{case}");
    }
}

/// Runs a binding that updates its caches in place; `y` is that of a run by value.
pub(super) fn run_updated(binding: &mut Binding<'static>, want: &Tensor, kind: CacheKind, case: &str) {
    check_updated(binding, case);
    binding.run().unwrap();
    let got = binding.get_output("y").unwrap();
    // By value a native function attends to new keys before they are rounded to `float16`.
    let far = match (want.info().dtype, kind) {
        (DType::F32, CacheKind::Same) => 0.0,
        (DType::F32, CacheKind::Blocks { .. } | CacheKind::Scaled { .. }) => 1e-6,
        _ => 2e-3,
    };
    assert!(is_near(&got, want, far), "{case}: {got:?}, not {want:?}");
}

/// Runs all steps with caches that are updated where they lie.
pub(super) fn in_place(device: &str, (dtype, kind): (DType, CacheKind), place: Place, wanted: &Made) {
    let (case, info) = (format!("{device} {dtype} {kind:?} {place:?}"), cache_info(dtype, kind));
    let session = session(device, decoder(dtype, kind));
    let memory = [(); 2].map(|()| cache(&session, &info, place));
    let mut caches = Vec::new();
    for (step, (at, tokens)) in STEPS.into_iter().enumerate() {
        let mut binding = session
            .bind()
            .input("qkv", Memory::value(qkv(dtype, at, tokens)))
            .input("last", Memory::value(Tensor::new([1], &[(at + tokens - 1) as i32]).unwrap()))
            .update("past_k", "present_k", memory[0].again())
            .update("past_v", "present_v", memory[1].again())
            .build()
            .unwrap();
        run_updated(&mut binding, &wanted.0[step], kind, &format!("{case}, step {step}"));
        caches = ["present_k", "present_v"].map(|name| binding.get_output(name).unwrap()).to_vec();
    }
    let (last, tokens) = STEPS[STEPS.len() - 1];
    let row = info.bytes() / (KV_HEADS * ROWS);
    let unreached = vec![UNREACHED; row];
    for (got, want) in caches.iter().zip(&wanted.1) {
        for (n, (got, want)) in got.bytes().chunks(row).zip(want.bytes().chunks(row)).enumerate() {
            let want = if n % ROWS < last + tokens { want } else { &unreached };
            assert_eq!(got, want, "{case}, row {n}");
        }
    }
    check_messages(&session);
}

/// One token, run by a decoder with a product before its attention.
pub(super) fn projected(device: &str, kind: CacheKind, precision: Precision) -> Binding<'static> {
    const DEPTH: usize = 512;
    let mut g = GraphBuilder::new("projected");
    let x = g.input("x", DType::F32, [1.into(), 1.into(), DEPTH.into()]);
    let w = g.constant("w", floats(DType::F32, &[DEPTH, WIDTH], 3));
    let qkv = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, w]);
    let graph = attention(g, qkv, DType::F32, kind);
    let context = Registry::with_defaults().open(device, &desc()).unwrap();
    let builder = Session::builder().graph(graph).context(context).copy_threshold(0);
    let session = builder.precision(precision).build().unwrap();
    let [k, v] = [(); 2].map(|()| cache(&session, &cache_info(DType::F32, kind), Place::Region));
    let mut binding = session
        .bind()
        .input("x", Memory::value(floats(DType::F32, &[1, 1, DEPTH], 4)))
        .input("last", Memory::value(Tensor::new([1], &[0i32]).unwrap()))
        .update("past_k", "present_k", k)
        .update("past_v", "present_v", v)
        .build()
        .unwrap();
    check_updated(&binding, &format!("{device} {kind:?} {precision:?}"));
    binding.run().unwrap();
    check_messages(&session);
    binding
}

#[test]
fn a_cache_is_extended_where_it_lies() {
    for device in DEVICES {
        for dtype in [DType::F32, DType::F16] {
            let wanted = by_value(device, dtype, CacheKind::Same);
            for place in [Place::Region, Place::Device] {
                in_place(device, (dtype, CacheKind::Same), place, &wanted);
            }
        }
    }
}

/// Attention to a cache of `float32` stays in it where products are in `float16`: else each run would convert the cache.
#[test]
fn a_cache_of_full_precision_is_extended_where_it_lies_in_half_precision() {
    let run = |device, precision| projected(device, CacheKind::Same, precision).get_output("y").unwrap();
    for device in ["cpu", "sim", "vulkan"] {
        let [want, got] = [Precision::F32, Precision::F16].map(|precision| run(device, precision));
        // Products of rounded numbers differ.
        assert_ne!(got.bytes(), want.bytes(), "{device}");
        assert!(is_near(&got, &want, 0.05), "{device}: {got:?}, not {want:?}");
    }
}

/// A cache of three rows of two elements, its update and where that goes; what is in it twice.
fn scatter() -> Graph {
    let mut g = GraphBuilder::new("scatter");
    let past = g.input("past", DType::F32, [1.into(), 3.into(), 2.into()]);
    let update = g.input("update", DType::F32, [1.into(), 1.into(), 2.into()]);
    let at = g.input("at", DType::I64, [1.into()]);
    let op: Arc<dyn Operator> = Arc::new(TensorScatter { axis: 1, circular: true, updates: None });
    let present = g.op(op, &[past, update, at]);
    let twice = g.op(ops::add(), &[present, present]);
    g.output("present", present);
    g.output("twice", twice);
    g.build().unwrap()
}

#[test]
fn memory_of_the_session_keeps_what_was_updated() {
    for device in DEVICES {
        let session = session(device, scatter());
        let mut binding = session.bind().update("past", "present", Memory::own()).build().unwrap();
        binding
            .set_input("past", &Tensor::new([1, 3, 2], &[9.0f32, 8.0, 7.0, 6.0, 5.0, 4.0]).unwrap())
            .unwrap();
        for at in [1i64, 3] {
            binding.set_input("update", &Tensor::new([1, 1, 2], &[at as f32, 0.5]).unwrap()).unwrap();
            binding.set_input("at", &Tensor::new([1], &[at]).unwrap()).unwrap();
            binding.run().unwrap();
        }
        let want = [3.0f32, 0.5, 1.0, 0.5, 5.0, 4.0];
        assert_eq!(binding.get_output("present").unwrap().as_slice::<f32>().unwrap(), want, "{device}");
        let twice = want.map(|v| 2.0 * v);
        assert_eq!(binding.get_output("twice").unwrap().as_slice::<f32>().unwrap(), twice, "{device}");
        // New memory begins as zeros.
        let mut binding = session.bind().update("past", "present", Memory::own()).build().unwrap();
        binding.set_input("at", &Tensor::new([1], &[0i64]).unwrap()).unwrap();
        binding.set_input("update", &Tensor::new([1, 1, 2], &[1.0f32, 2.0]).unwrap()).unwrap();
        binding.run().unwrap();
        let want = [1.0f32, 2.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(binding.get_output("present").unwrap().as_slice::<f32>().unwrap(), want, "{device}");
        check_messages(&session);
    }
}

#[test]
fn other_memory_goes_to_both_names() {
    for device in DEVICES {
        let session = session(device, scatter());
        let regions = [(); 2].map(|()| HostRegion::new(24).unwrap().into_shared());
        let mut binding =
            session.bind().update("past", "present", Memory::region(&regions[0])).build().unwrap();
        binding.set_input("update", &Tensor::new([1, 1, 2], &[1.0f32, 2.0]).unwrap()).unwrap();
        for (turn, region) in regions.iter().chain(&regions).enumerate() {
            match turn % 2 {
                0 => binding.rebind_input("past", Memory::region(region)).unwrap(),
                _ => binding.rebind_output("present", Memory::region(region)).unwrap(),
            }
            binding.set_input("at", &Tensor::new([1], &[turn as i64]).unwrap()).unwrap();
            binding.run().unwrap();
        }
        let rows = regions.each_ref().map(|r| r.read().unwrap().as_slice_of::<f32>().unwrap().to_vec());
        // Turns 0 and 2, then 1 and 3, which is row 0 again.
        assert_eq!(rows[0][..6], [1.0, 2.0, 0.0, 0.0, 1.0, 2.0], "{device}");
        assert_eq!(rows[1][..6], [1.0, 2.0, 1.0, 2.0, 0.0, 0.0], "{device}");
    }
}

#[test]
fn one_memory_stays_one_when_several_tensors_are_rebound() {
    for device in DEVICES {
        let session = session(device, scatter());
        let regions = [(); 3].map(|()| HostRegion::new(24).unwrap().into_shared());
        let memory = |n: usize| Memory::region(&regions[n]);
        let mut binding = session.bind().update("past", "present", memory(0)).build().unwrap();
        let row = Tensor::new([1, 1, 2], &[1.0f32, 2.0]).unwrap();
        binding.set_input("at", &Tensor::new([1], &[1i64]).unwrap()).unwrap();
        // By one name, and by both; a value among them is written.
        binding.rebind_all([("past", memory(1)), ("update", Memory::value(row))], []).unwrap();
        assert!(matches!(binding.get_output("present"), Err(Error::Session(SessionError::NotRun))));
        binding.run().unwrap();
        binding.rebind_all([("past", memory(2))], [("present", memory(2))]).unwrap();
        binding.run().unwrap();
        let apart = binding.rebind_all([("past", memory(0))], [("present", memory(1))]);
        assert!(matches!(apart, Err(Error::Session(SessionError::Apart { .. }))), "{device}: {apart:?}");
        binding.run().unwrap();
        let rows = regions.each_ref().map(|r| r.read().unwrap().as_slice_of::<f32>().unwrap()[..6].to_vec());
        assert_eq!(
            rows,
            [[0.0; 6], [0.0, 0.0, 1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 2.0, 0.0, 0.0]],
            "{device}"
        );
        let shape = Shape::new([2, 3]).unwrap();
        let misfit = binding.rebind_all([("past", memory(0).shape(shape))], []);
        assert!(matches!(misfit, Err(Error::Session(SessionError::Shape { .. }))), "{device}: {misfit:?}");
        check_messages(&session);
    }
}

#[test]
fn what_cannot_be_updated_in_place_is_refused_by_name() {
    let session = session("cpu", scatter());
    let refused = session.bind().update("update", "twice", Memory::own()).build();
    let Err(Error::Session(SessionError::NotUpdated { input, output })) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((&input[..], &output[..]), ("update", "twice"));

    // Something else reads the past too.
    let mut g = GraphBuilder::new("two readers");
    let past = g.input("past", DType::F32, [1.into(), 3.into(), 2.into()]);
    let update = g.input("update", DType::F32, [1.into(), 1.into(), 2.into()]);
    let op: Arc<dyn Operator> = Arc::new(TensorScatter { axis: 1, circular: false, updates: None });
    let present = g.op(op, &[past, update]);
    let sum = g.op(ops::add(), &[past, present]);
    g.output("present", present);
    g.output("sum", sum);
    let session = Session::builder().graph(g.build().unwrap()).device("cpu").build().unwrap();
    let refused = session.bind().update("past", "present", Memory::own()).build();
    assert!(matches!(refused, Err(Error::Session(SessionError::NotUpdated { .. }))), "{refused:?}");
    let unknown = session.bind().update("pasta", "present", Memory::own()).build();
    assert!(matches!(unknown, Err(Error::Session(SessionError::Unknown { .. }))), "{unknown:?}");
    // Without asking for it, equal memory is refused as before.
    let region = HostRegion::new(24).unwrap().into_shared();
    let shared = session
        .bind()
        .input("past", Memory::region(&region))
        .output("present", Memory::region(&region))
        .build();
    assert!(matches!(shared, Err(Error::Session(SessionError::Overlap { .. }))), "{shared:?}");
}

#[test]
fn equal_memory_is_updated_without_asking() {
    for device in DEVICES {
        let session = session(device, scatter());
        let region = HostRegion::new(24).unwrap().into_shared();
        let (past, present) = (Memory::region(&region), Memory::region(&region));
        let mut binding = session.bind().input("past", past).output("present", present).build().unwrap();
        binding.set_input("update", &Tensor::new([1, 1, 2], &[1.0f32, 2.0]).unwrap()).unwrap();
        binding.set_input("at", &Tensor::new([1], &[2i64]).unwrap()).unwrap();
        binding.run().unwrap();
        let rows = region.read().unwrap().as_slice_of::<f32>().unwrap().to_vec();
        assert_eq!(rows[..6], [0.0, 0.0, 0.0, 0.0, 1.0, 2.0], "{device}");
    }
}
