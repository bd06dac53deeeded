//! An embedding that is also the weight of the last product, as exporters write it: a Gather from it and a product with
//! its Transpose.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/devices.rs"]
mod devices;

use std::sync::Arc;

use devices::devices;
use onepool::ops::Operator;
use onepool::ops::index::Gather;
use onepool::ops::linalg::MatMul;
use onepool::ops::movement::Transpose;
use onepool::session::ParamStore;
use onepool::{DType, Graph, GraphBuilder, Session, Shape, Tensor, TensorInfo};

const VOCABULARY: usize = 640;
const WIDTH: usize = 64;

fn weight(dtype: DType) -> Tensor {
    let values = (0..VOCABULARY * WIDTH).map(|i| ((i * 7919 + i / 97) % 1013) as f32 / 506.0 - 1.0);
    let info = TensorInfo::new(dtype, Shape::new([VOCABULARY, WIDTH]).unwrap());
    Tensor::build_weight(info, |bytes| {
        for (i, v) in values.enumerate() {
            match dtype {
                DType::F16 => {
                    bytes[2 * i..][..2].copy_from_slice(&half::f16::from_f32(v).to_le_bytes());
                }
                _ => bytes[4 * i..][..4].copy_from_slice(&v.to_le_bytes()),
            }
        }
        Ok::<(), ()>(())
    })
    .unwrap()
}

fn tied(weight: &Tensor) -> Graph {
    let mut g = GraphBuilder::new("tied");
    let ids = g.input("ids", DType::I64, ["n".into()]);
    let e = g.constant("embedding", weight.clone());
    let x = g.op(Arc::new(Gather { axis: 0 }) as Arc<dyn Operator>, &[e, ids]);
    let t = g.op(Arc::new(Transpose { perm: Some(vec![1, 0]) }) as Arc<dyn Operator>, &[e]);
    let y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, t]);
    g.output("y", y);
    g.build().unwrap()
}

#[test]
fn a_tied_embedding_is_in_memory_once_and_never_transposed() {
    for dtype in [DType::F32, DType::F16] {
        let weight = weight(dtype);
        let numbers = weight.to_f32s().unwrap();
        for context in devices() {
            let store = ParamStore::new();
            let builder = Session::builder().graph(tied(&weight)).context(context.clone());
            let mut session = builder.params(store.clone()).fallback(false).build().unwrap();
            for rows in [1, 5, 40] {
                let ids: Vec<i64> = (0..rows as i64).map(|i| i * 13 % VOCABULARY as i64).collect();
                session.set_input("ids", &Tensor::new([rows], &ids).unwrap()).unwrap();
                session.run().unwrap();
                let report = &session.binding().unwrap().plan().report;
                let ops: Vec<&str> = report.nodes.iter().map(|n| n.op).collect();
                assert_eq!(ops, ["Gather", "MatMul"], "{dtype} on {}", context.info().name);
                let got = session.get_output("y").unwrap().to_f32s().unwrap();
                for (i, got) in got.iter().enumerate() {
                    let row = &numbers[ids[i / VOCABULARY] as usize * WIDTH..][..WIDTH];
                    let column = &numbers[i % VOCABULARY * WIDTH..][..WIDTH];
                    let want: f32 = row.iter().zip(column).map(|(a, b)| a * b).sum();
                    let most = if dtype == DType::F16 { 2e-2 } else { 1e-4 };
                    let name = &context.info().name;
                    assert!((got - want).abs() <= most * want.abs().max(1.0), "{name}: {got} for {want}");
                }
            }
            // The weight as it is given: no plan packs another one.
            let bytes = weight.info().bytes() as u64;
            let held = store.usage().bytes;
            assert!(held <= bytes + 4096, "{held} bytes on {} for {bytes}", context.info().name);
        }
    }
}
