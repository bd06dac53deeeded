//! The planner against TVM's rule and against the largest live set.

use std::path::Path;

use onepool::plan::Plan;
use onepool::{DType, Dim, Session, Shape, TensorInfo, loader};

fn plan(path: &Path, batch: usize) -> Plan {
    let graph = loader::load(path).unwrap();
    let session = Session::builder().graph(graph).device("cpu").build().unwrap();
    let infos: Vec<TensorInfo> = session
        .inputs()
        .iter()
        .map(|io| {
            let shape = io.shape.as_ref().unwrap();
            let dims: Vec<usize> = shape
                .0
                .iter()
                .map(|d| match d {
                    Dim::Known(n) => *n,
                    _ => batch,
                })
                .collect();
            TensorInfo::new(io.dtype.unwrap_or(DType::F32), Shape::new(dims).unwrap())
        })
        .collect();
    session.plan(&infos).unwrap()
}

#[test]
fn the_peak_of_the_models_is_near_the_live_set_and_never_above_tvms_rule() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let mut seen = 0;
    for entry in std::fs::read_dir(models).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "onnx") {
            continue;
        }
        for batch in [8, 64, 104] {
            let first = plan(&path, batch);
            for arena in &first.arenas {
                seen += 1;
                assert!(arena.bytes <= arena.tvm_bytes, "{}: {arena:?}", path.display());
                assert!(arena.bytes * 100 <= arena.lower_bound * 105, "{}: {arena:?}", path.display());
            }
            let again = plan(&path, batch);
            assert_eq!(format!("{:?}", again.segments), format!("{:?}", first.segments));
        }
    }
    assert!(seen > 0, "there is no model");
}
