use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::super::join_norms::join_norms;
use super::*;
use crate::backend::DeviceKind;
use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, TensorInfo};
use crate::ops::linalg::MatMul;
use crate::ops::linalg::joined::tests::device;
use crate::ops::norm::LayerNormalization;
use crate::ops::test_util::tensor;
use crate::ops::{self, Function, Operator};
use crate::plan::passes::{GraphCx, PassSelection, Precision, prepare};
use crate::plan::{Assignment, Compiler, PlanCache, PlanOptions, PlanRequest, specialize};
use crate::shape::Shape;

/// A layer's middle: a product, the residual sum, its normalization, and what reads both.
#[derive(Clone, Copy)]
struct Case {
    rows: usize,
    axis: i64,
    center: bool,
    /// Whether there is a product and a sum before the normalization.
    summed: bool,
    /// Whether a function reads the normalization too.
    also_read: bool,
    /// Whether it is an output.
    shown: bool,
    /// Whether the product before the sum is an output.
    product_shown: bool,
}

const CASE: Case = Case {
    rows: 2,
    axis: -1,
    center: false,
    summed: true,
    also_read: false,
    shown: false,
    product_shown: false,
};

impl Case {
    fn graph(&self) -> Graph {
        let mut g = GraphBuilder::new("g");
        let shape = [1, self.rows, 64];
        let x = g.input("x", DType::F32, shape.map(Into::into));
        let mut rows = x;
        if self.summed {
            let other = g.input("other", DType::F32, shape.map(Into::into));
            let w = g.constant("w", tensor(&[64, 64], 1));
            let product = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[other, w]);
            rows = g.op(ops::add(), &[x, product]);
            if self.product_shown {
                g.output("product", product);
            }
        }
        let gain = g.constant("gain", tensor(&shape[self.axis.rem_euclid(3) as usize..], 2));
        let op =
            LayerNormalization { axis: self.axis, epsilon: 1e-3, center: self.center, stash: DType::F32 };
        let y = g.op(Arc::new(op) as Arc<dyn Operator>, &[rows, gain]);
        let products = ["q", "k"].map(|name| {
            let w = g.constant(name, tensor(&[64, 64], name.len() as u64 + 3));
            g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[y, w])
        });
        let met = g.op(ops::mul(), &products);
        let z = g.op(ops::add(), &[met, rows]);
        g.output("z", z);
        if self.also_read {
            let read = g.op(ops::unary(Function::Relu), &[y]);
            g.output("read", read);
        }
        if self.shown {
            g.output("y", y);
        }
        g.build().unwrap()
    }

    /// The operators after the pass.
    fn moved(&self, change: impl FnOnce(&mut crate::backend::DeviceInfo), assignment: Assignment) -> String {
        let shape = [1, self.rows, 64];
        let infos = [(); 2].map(|()| TensorInfo::new(DType::F32, Shape::new(shape).unwrap()));
        let infos = &infos[..if self.summed { 2 } else { 1 }];
        let mut flow = specialize(&self.graph(), infos, &BTreeMap::new()).unwrap().plan().unwrap();
        let mut device = device();
        change(&mut device);
        let (options, cache) = (PlanOptions::default(), PlanCache::default());
        let cx = PlanCx {
            devices: &[&device],
            options: &options,
            assignment: &assignment,
            cache: &cache,
            updates: &[],
        };
        join_norms(&mut flow, &cx);
        let before = flow.nodes.len();
        let gone = norms_in_products(&mut flow, &cx);
        assert_eq!(before - flow.nodes.len(), gone);
        flow.nodes.iter().map(|n| n.op.name()).collect::<Vec<_>>().join(" ")
    }

    fn on_gpu(&self) -> String {
        self.moved(|_| (), Assignment::default())
    }
}

#[test]
fn norms_and_sums_go_where_products_take_them() {
    assert_eq!(CASE.on_gpu(), "SummedMatMul NormedMatMul NormedMatMul Mul Add");
    assert_eq!(Case { rows: 4, ..CASE }.on_gpu(), "SummedMatMul NormedMatMul NormedMatMul Mul Add");
    assert_eq!(Case { summed: false, ..CASE }.on_gpu(), "NormedMatMul NormedMatMul Mul Add");
    let norm = "MatMul SkipSimplifiedLayerNormalization MatMul MatMul Mul Add";
    // What else reads a normalization or the product keeps it; many rows have other kernels.
    assert_eq!(Case { also_read: true, ..CASE }.on_gpu(), format!("{norm} Relu"));
    assert_eq!(Case { shown: true, ..CASE }.on_gpu(), norm);
    assert_eq!(Case { product_shown: true, ..CASE }.on_gpu(), norm);
    assert_eq!(Case { rows: 5, ..CASE }.on_gpu(), norm);
    // A mean, and several axes.
    assert_eq!(Case { center: true, ..CASE }.on_gpu(), "MatMul SkipLayerNormalization MatMul MatMul Mul Add");
    let axes = Case { axis: 1, summed: false, ..CASE };
    assert_eq!(axes.on_gpu(), "RMSNormalization MatMul MatMul Mul Add");
    // Devices with other kernels, and those that are still to be chosen.
    let native = CASE.moved(|d| d.native = true, Assignment::default());
    assert_eq!(native, "MatMul Add RMSNormalization MatMul MatMul Mul Add");
    assert_eq!(CASE.moved(|d| d.prefers_texels = true, Assignment::default()), norm);
    assert_eq!(CASE.moved(|d| d.limits.max_arguments = 4, Assignment::default()), norm);
    assert_eq!(CASE.moved(|_| (), Assignment::Open), "MatMul Add RMSNormalization MatMul MatMul Mul Add");
}

/// Operators and commands of each layer of the decoder with weights of 4 bits, for one token with a cache of so many rows.
fn layers(
    (kind, rows): (DeviceKind, usize),
    precision: Precision,
    passes: PassSelection,
) -> [Vec<(&'static str, u32)>; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny_llm/fixed/model.onnx");
    let mut graph = crate::loader::load_onnx(&path).unwrap();
    let mut device = device();
    (device.kind, device.processors) = (kind, Some(132));
    let options = PlanOptions { precision, passes, ..PlanOptions::default() };
    prepare(&mut graph, &GraphCx { options: &options, devices: &[&device], free: false });
    let info = |dtype, dims: &[usize]| TensorInfo::new(dtype, Shape::new(dims.to_vec()).unwrap());
    let mut infos = vec![info(DType::I64, &[1, 1]), info(DType::I64, &[1, rows])];
    infos.extend((0..4).map(|_| info(DType::F32, &[1, 2, rows, 16])));
    // Caches are updated in place.
    let updates = [(2, 1), (3, 2), (4, 3), (5, 4)];
    let (devices, assignment, cache) = (&[&device][..], Assignment::default(), &PlanCache::default());
    let compiler = Compiler { devices, options: &options, assignment, cache };
    let request = PlanRequest { updates: &updates, ..PlanRequest::new(&graph, &infos) };
    let plan = compiler.compile(&request).unwrap().plan().unwrap();
    ["layer0", "layer1"].map(|layer| {
        let own = plan.report.nodes.iter().filter(|n| n.name.starts_with(layer) && n.commands > 0);
        own.map(|n| (n.op, n.commands)).collect()
    })
}

#[test]
fn a_layer_of_one_token_is_products_and_attention() {
    let joined = ["NormedNBits", "GroupQueryAttention", "SummedNBits", "NormedGatedNBits", "SummedNBits"];
    let apart = || PassSelection::default().without("norms_in_products").unwrap();
    for rows in [64, 512] {
        let on = |kind| (kind, rows);
        // The first attention sets the counters of all to zero.
        // A card joins the parts of an attention by a dispatch.
        for (kind, counts) in [(DeviceKind::Integrated, [2, 1]), (DeviceKind::Discrete, [2, 2])] {
            let all = layers(on(kind), Precision::F32, PassSelection::default());
            for (own, count) in all.into_iter().zip(counts) {
                let commands = |op| if op == "GroupQueryAttention" { count } else { 1 };
                assert_eq!(own, joined.map(|op| (op, commands(op))), "{rows}");
            }
        }
        let apart = layers(on(DeviceKind::Integrated), Precision::F32, apart());
        let counts = apart.map(|own| own.iter().map(|(_, commands)| commands).sum::<u32>());
        assert_eq!(counts, [8, 7], "{rows}");
        for own in layers(on(DeviceKind::Integrated), Precision::F16, PassSelection::default()) {
            let names = own.iter().map(|(op, _)| *op).filter(|op| *op != "Cast");
            assert_eq!(names.collect::<Vec<_>>(), joined, "{rows}");
        }
    }
}
