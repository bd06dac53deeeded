//! Parameters that devices read in a packed layout are in memory once.

use std::collections::BTreeMap;
use std::sync::Arc;

use onepool::device::Context;
use onepool::loader::{read_params, write_params};
use onepool::session::ParamStore;
use onepool::{DType, Graph, GraphBuilder, Session, Tensor};

use crate::common::{check_messages, held, numbers, op, open, tensor};

/// Output and input channels of convolutions with windows of 3 x 3, in sequence.
const LAYERS: [[usize; 2]; 3] = [[72, 64], [64, 72], [36, 64]];
const SIZE: usize = 12;

fn dims([oc, ic]: [usize; 2]) -> [usize; 4] {
    [oc, ic, 3, 3]
}

fn values(layer: usize) -> Vec<f32> {
    let [oc, ic] = LAYERS[layer];
    numbers(oc * ic * 9, layer).iter().map(|v| v / 64.0).collect()
}

fn weight_bytes() -> u64 {
    LAYERS.iter().map(|[oc, ic]| (4 * 9 * oc * ic) as u64).sum()
}

/// The weights, as they come from a file.
fn weights() -> Vec<Tensor> {
    let tensors: Vec<(String, Tensor)> =
        (0..LAYERS.len()).map(|i| (format!("w{i}"), tensor(&dims(LAYERS[i]), &values(i)))).collect();
    let mut blob = Vec::new();
    write_params(&mut blob, tensors.iter().map(|(name, t)| (name.as_str(), t))).unwrap();
    drop(tensors);
    read_params(&blob).unwrap().into_iter().map(|(_, t)| t).collect()
}

fn graph(weights: &[Tensor]) -> Graph {
    let mut g = GraphBuilder::new("net");
    let mut y = g.input("x", DType::F32, [1.into(), LAYERS[0][1].into(), SIZE.into(), SIZE.into()]);
    for (i, w) in weights.iter().enumerate() {
        let w = g.constant(format!("w{i}"), w.clone());
        y = g.op(op("Conv"), &[y, w]);
    }
    g.output("y", y);
    g.build().unwrap()
}

fn session(graph: Graph, context: &Context, store: &Arc<ParamStore>) -> Session {
    Session::builder().graph(graph).context(context.clone()).params(Arc::clone(store)).build().unwrap()
}

fn run(session: &mut Session) -> Vec<f32> {
    let n = LAYERS[0][1] * SIZE * SIZE;
    session.set_input("x", &tensor(&[1, LAYERS[0][1], SIZE, SIZE], &numbers(n, 7))).unwrap();
    session.run().unwrap();
    session.get_output("y").unwrap().as_slice::<f32>().unwrap().to_vec()
}

fn close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 1e-3 * w.abs().max(1.0), "{g}, not {w}");
    }
}

/// Bytes of the host that constants of these graphs lie in.
fn host<'g>(graphs: impl IntoIterator<Item = &'g Graph>) -> u64 {
    let regions: BTreeMap<usize, u64> = (graphs.into_iter().flat_map(Graph::constants))
        .filter_map(|(_, t)| t.region())
        .map(|(region, _)| (region.as_ptr().as_ptr().addr(), region.bytes() as u64))
        .collect();
    regions.values().sum()
}

#[test]
fn a_packed_parameter_is_in_memory_once() {
    let (device, cpu) = (open("vulkan"), open("cpu"));
    let want = run(&mut session(graph(&weights()), &cpu, &ParamStore::new()));
    let store = ParamStore::new();
    let mut first = session(graph(&weights()), &device, &store);
    close(&run(&mut first), &want);
    // Every one lies in its layout, which the device reads there, and nowhere else; kernels that keep to no texels read
    // these as the file has them.
    for (i, (_, t)) in first.graph().constants().enumerate() {
        let (region, at) = t.region().unwrap();
        let bytes = &region.as_slice()[at..];
        let as_given = bytes.starts_with(bytemuck::cast_slice(&values(i)));
        assert!(!as_given || !device.info().prefers_texels, "constant {i} lies as the file has it");
    }
    // 36 channels are rounded up to 40, and pages.
    let most = weight_bytes() + 4 * 9 * 4 * 64 + 3 * 4096;
    assert!(host([first.graph()]) <= most, "{} of {}", host([first.graph()]), weight_bytes());
    let usage = device.usage();
    // Behind a bus the device has its own.
    let (here, elsewhere) = match device.info().memory.shares_host_memory() {
        true => (usage.imported, usage.allocated),
        false => (usage.allocated, usage.imported),
    };
    assert!(here >= weight_bytes() && elsewhere < weight_bytes(), "{usage:?}");
    assert!(!device.info().memory.shares_host_memory() || here <= most, "{usage:?}");

    // Another session of the store, from a file of its own, has no bytes of its own.
    let (before, counted) = (held(&device), store.usage());
    let mut second = session(graph(&weights()), &device, &store);
    close(&run(&mut second), &want);
    assert_eq!(store.usage(), counted);
    assert_eq!(host([first.graph(), second.graph()]), host([first.graph()]));
    assert!(held(&device) - before < weight_bytes(), "{before} and {}", held(&device));

    // Whoever asks for the bytes gets them.
    for (i, (_, t)) in second.graph().constants().enumerate() {
        assert_eq!(t.as_slice::<f32>().unwrap(), values(i));
    }
    close(&run(&mut first), &want);
    drop((first, second));
    assert_eq!(store.usage().count, 0);
    check_messages(&device);
}

#[test]
fn devices_that_read_other_layouts_have_theirs() {
    let (device, cpu) = (open("vulkan"), open("cpu"));
    let want = run(&mut session(graph(&weights()), &cpu, &ParamStore::new()));
    for order in [[&device, &cpu], [&cpu, &device]] {
        let weights = weights();
        let store = ParamStore::new();
        let mut sessions = order.map(|context| session(graph(&weights), context, &store));
        for _ in 0..2 {
            for session in &mut sessions {
                close(&run(session), &want);
            }
        }
        let [first, mut second] = sessions;
        drop(first);
        close(&run(&mut second), &want);
        drop(second);
        // The bytes are still the same, in whatever form they were kept.
        for (i, t) in weights.iter().enumerate() {
            assert_eq!(t.as_slice::<f32>().unwrap(), values(i));
        }
    }
    check_messages(&device);
}

/// A convolution packs the weights that are multiplied as they are, too.
#[test]
fn a_parameter_may_be_read_in_two_layouts() {
    let [oc, ic] = LAYERS[0];
    let mut results = Vec::new();
    for name in ["cpu", "vulkan"] {
        let context = open(name);
        let weights = weights();
        let mut g = GraphBuilder::new("net");
        let x = g.input("x", DType::F32, [1.into(), ic.into(), 4.into(), 4.into()]);
        let s = g.input("s", DType::F32, [3.into()]);
        let w = g.constant("w", weights[0].clone());
        let y = g.op(op("Conv"), &[x, w]);
        let z = g.op(op("Mul"), &[w, s]);
        g.output("y", y);
        g.output("z", z);
        let mut session =
            Session::builder().graph(g.build().unwrap()).context(context.clone()).build().unwrap();
        session.set_input("x", &tensor(&[1, ic, 4, 4], &numbers(ic * 16, 1))).unwrap();
        session.set_input("s", &tensor(&[3], &[1.0, 2.0, 4.0])).unwrap();
        session.run().unwrap();
        let z = session.get_output("z").unwrap();
        let scaled =
            values(0).iter().zip([1.0, 2.0, 4.0].iter().cycle()).map(|(v, s)| v * s).collect::<Vec<f32>>();
        assert_eq!(z.as_slice::<f32>().unwrap(), scaled);
        let y = session.get_output("y").unwrap();
        assert_eq!(y.shape().dims(), [1, oc, 2, 2]);
        results.push(y.as_slice::<f32>().unwrap().to_vec());
        check_messages(&context);
    }
    close(&results[1], &results[0]);
}
