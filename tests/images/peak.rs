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

/// Checks the plans of a model's arenas at a batch size; how many arenas there were.
fn check(path: &Path, batch: usize) -> usize {
    let first = plan(path, batch);
    for arena in &first.arenas {
        assert!(arena.bytes <= arena.tvm_bytes, "{}: {arena:?}", path.display());
        assert!(arena.bytes * 100 <= arena.lower_bound * 105, "{}: {arena:?}", path.display());
    }
    let again = plan(path, batch);
    assert_eq!(format!("{:?}", again.segments), format!("{:?}", first.segments));
    first.arenas.len()
}

#[test]
fn the_peak_of_the_models_is_near_the_live_set_and_never_above_tvms_rule() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let paths = std::fs::read_dir(models).unwrap().map(|entry| entry.unwrap().path());
    let models: Vec<_> = paths.filter(|path| path.extension().is_some_and(|e| e == "onnx")).collect();
    let seen: usize = models.iter().flat_map(|path| [8, 64, 104].map(|batch| check(path, batch))).sum();
    assert!(seen > 0, "there is no model");
}

/// The networks of ONNX's model zoo, whose weights its test suite leaves out: `ONEPOOL_LIGHT_MODELS` is the folder `light`
/// of what `tests/onnx/cases.py` writes.
#[test]
fn the_peak_of_the_model_zoo_is_near_the_live_set_and_never_above_tvms_rule() {
    let Some(folder) = std::env::var_os("ONEPOOL_LIGHT_MODELS") else {
        // Where every backend is required nothing may be left out.
        assert!(std::env::var_os("REQUIRE_BACKENDS").is_none(), "ONEPOOL_LIGHT_MODELS is not set");
        return eprintln!("not tested on the model zoo: ONEPOOL_LIGHT_MODELS is not set");
    };
    let cases = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path().join("model.onnx"));
    let models: Vec<_> = cases.filter(|path| path.is_file()).collect();
    assert!(models.len() >= 8, "only {models:?}");
    for path in &models {
        assert!(check(path, 1) > 0, "{}: no arena", path.display());
    }
}
