//! Parameters and storage of several graph modules.

use std::sync::Arc;

use onepool::device::Context;
use onepool::loader::write_params;
use onepool::session::{ParamStore, SessionError};
use onepool::tvm::{ExternalTensor, GraphModule};
use onepool::{DType, Error, Graph, GraphBuilder, Tensor};

use crate::common::{check_messages, devices, held, numbers, op, open, region, shape, tensor, two_products};

const WIDTH: usize = 128;
const WEIGHT_BYTES: u64 = (4 * WIDTH * WIDTH) as u64;

fn graph(batch: usize) -> Graph {
    two_products(batch, WIDTH)
}

/// Twice the identity, and a matrix that moves columns.
fn weights() -> [Tensor; 2] {
    let of = |f: &dyn Fn(usize, usize) -> f32| {
        let values: Vec<f32> = (0..WIDTH * WIDTH).map(|i| f(i / WIDTH, i % WIDTH)).collect();
        tensor(&[WIDTH, WIDTH], &values)
    };
    let one = |b: bool| f32::from(u8::from(b));
    [of(&|i, j| 2.0 * one(i == j)), of(&|i, j| one(j == (i + 1) % WIDTH))]
}

fn blob() -> Vec<u8> {
    let [w0, w1] = weights();
    let mut out = Vec::new();
    write_params(&mut out, [("w0", &w0), ("other", &Tensor::scalar(1f32)), ("w1", &w1)]).unwrap();
    out
}

fn module(batch: usize, context: &Context) -> GraphModule {
    GraphModule::new(graph(batch), std::slice::from_ref(context))
}

fn run_and_check(m: &mut GraphModule, batch: usize, seed: usize) {
    let x = numbers(batch * WIDTH, seed);
    m.set_input("x", &tensor(&[batch, WIDTH], &x)).unwrap();
    m.run().unwrap();
    let y = m.get_output("y").unwrap();
    for (x, y) in x.chunks(WIDTH).zip(y.as_slice::<f32>().unwrap().chunks(WIDTH)) {
        for j in 0..WIDTH {
            assert_eq!(y[(j + 1) % WIDTH], 2.0 * x[j]);
        }
    }
}

#[test]
fn executors_hold_the_weights_once_and_activations_each() {
    for device in devices() {
        // Bytes of one, two and three modules, with parameters of their own and shared.
        let measure = |share: bool| -> Vec<u64> {
            let context = open(device);
            let mut modules: Vec<GraphModule> = Vec::new();
            let mut bytes = Vec::new();
            for batch in [1, 4, 16] {
                let mut m = module(batch, &context);
                match modules.first() {
                    Some(first) if share => assert_eq!(m.share_params(first).unwrap(), 2),
                    _ => assert_eq!(m.load_params(&blob()).unwrap(), 2),
                }
                assert_eq!(m.get_num_inputs(), 3);
                run_and_check(&mut m, batch, batch);
                modules.push(m);
                bytes.push(held(&context));
            }
            // What is shared stays when the one it came from goes.
            modules.remove(0);
            for (m, batch) in modules.iter_mut().zip([4, 16]) {
                run_and_check(m, batch, 9);
            }
            check_messages(&context);
            bytes
        };
        let (apart, shared) = (measure(false), measure(true));
        assert_eq!(apart[0], shared[0], "{device}");
        assert!(apart[1] - shared[1] >= 2 * WEIGHT_BYTES, "{device}: {apart:?} {shared:?}");
        assert!(apart[2] - shared[2] >= 4 * WEIGHT_BYTES, "{device}: {apart:?} {shared:?}");
    }
}

#[test]
fn equal_blobs_of_one_store_are_held_once() {
    for device in devices() {
        let (context, store) = (open(device), ParamStore::new());
        let mut a = module(1, &context).with_store(&store);
        let mut b = module(4, &context).with_store(&store);
        a.load_params(&blob()).unwrap();
        run_and_check(&mut a, 1, 1);
        let one = store.usage().bytes;
        b.load_params(&blob()).unwrap();
        run_and_check(&mut b, 4, 2);
        assert_eq!(store.usage().bytes, one, "{device}");
        let identity = |m: &mut GraphModule| m.get_input("w0").unwrap().identity();
        assert_eq!(identity(&mut a), identity(&mut b));
        check_messages(&context);
    }
}

#[test]
fn a_shared_input_is_the_tensor_itself() {
    let (context, store) = (open("vulkan"), ParamStore::new());
    let [w0, w1] = weights();
    let mut modules: Vec<GraphModule> = (0..2).map(|_| module(4, &context).with_store(&store)).collect();
    for m in &mut modules {
        m.set_shared_input("w0", &w0).unwrap();
        m.set_shared_input(2, &w1).unwrap();
        run_and_check(m, 4, 3);
        assert_eq!(m.get_input("w0").unwrap().identity(), w0.identity());
    }
    let wrong = tensor(&[WIDTH], &[0.0; WIDTH]);
    assert!(matches!(
        modules[0].set_shared_input("w0", &wrong),
        Err(Error::Session(SessionError::Shape { .. }))
    ));
    // A parameter that is given a value is an input again.
    let zero = tensor(&[WIDTH, WIDTH], &vec![0.0; WIDTH * WIDTH]);
    modules[0].set_input("w0", &zero).unwrap();
    modules[0].run().unwrap();
    assert!(modules[0].get_output(0).unwrap().as_slice::<f32>().unwrap().iter().all(|v| *v == 0.0));
    run_and_check(&mut modules[1], 4, 4);
    check_messages(&context);
}

#[test]
fn parameters_that_do_not_fit_are_refused_and_change_nothing() {
    let context = open("cpu");
    let mut m = module(1, &context);
    m.load_params(&blob()).unwrap();
    let mut out = Vec::new();
    let wrong = Tensor::new([WIDTH, WIDTH], &vec![1i32; WIDTH * WIDTH]).unwrap();
    write_params(&mut out, [("w0", &weights()[1]), ("w1", &wrong)]).unwrap();
    assert!(matches!(m.load_params(&out), Err(Error::Session(SessionError::DType { .. }))));
    assert!(matches!(m.load_params(&out[..99]), Err(Error::Load(_))));
    run_and_check(&mut m, 1, 1);
    let mut elsewhere = module(1, &open("cpu"));
    assert!(matches!(elsewhere.share_params(&m), Err(Error::Session(SessionError::OtherDevices))));
}

#[test]
fn modules_share_one_storage() {
    for device in devices() {
        let context = open(device);
        let mut modules: Vec<GraphModule> = [1, 4, 16].map(|batch| module(batch, &context)).into();
        for i in 0..3 {
            let (first, rest) = modules.split_at_mut(i);
            match first.first() {
                None => rest[0].load_params(&blob()).unwrap(),
                Some(first) => rest[0].share_params(first).unwrap(),
            };
        }
        let arena = GraphModule::setup_shared_storage(&mut modules).unwrap();
        let reserved = arena.usage().bytes;
        for seed in 0..2 {
            for (m, batch) in modules.iter_mut().zip([1, 4, 16]) {
                run_and_check(m, batch, seed);
            }
        }
        let usage = arena.usage();
        assert_eq!((usage.bytes, usage.bindings), (reserved, 3), "{device}");
        assert!(usage.bytes >= 16 * 4 * WIDTH as u64 && usage.bytes < usage.separate_bytes, "{usage:?}");
        check_messages(&context);
    }
}

/// An input that is made only when it is bound.
#[test]
fn lazy_inputs_have_no_memory_until_bound_and_are_named_by_a_run() {
    const N: usize = 1 << 20;
    for device in devices() {
        let context = open(device);
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [1.into()]);
        let lazy = g.lazy_input("lazy", DType::F32, [N.into()]);
        let y = g.op(op("Mul"), &[x, lazy]);
        g.output("y", y);
        let graph = g.build().unwrap();
        let mut m = GraphModule::new(graph.clone(), std::slice::from_ref(&context));
        m.set_input("x", &tensor(&[1], &[2.0])).unwrap();
        let run = m.run();
        let names =
            |e: &Error| matches!(e, Error::Session(SessionError::Unbound { names }) if names == &["lazy"]);
        assert!(names(run.as_ref().unwrap_err()), "{run:?}");
        let session = onepool::Session::builder().graph(graph).context(context.clone()).build().unwrap();
        let bound = session.bind().build();
        assert!(names(bound.as_ref().unwrap_err()), "{bound:?}");
        let bytes = (4 * N) as u64;
        assert!(held(&context) < 4096, "{device}: {:?}", context.usage());
        let (memory, result) = (region(&numbers(N, 1)), region(&vec![0.0; N]));
        let external = |r: &Arc<onepool::SharedRegion>| ExternalTensor::in_region(r, DType::F32, shape(&[N]));
        m.set_input_zero_copy("lazy", &external(&memory)).unwrap();
        m.set_output_zero_copy("y", &external(&result)).unwrap();
        m.run().unwrap();
        assert_eq!(crate::common::floats(&result)[7], 2.0 * numbers(N, 1)[7]);
        // It is where the caller has it, unless the device works on memory of its own or imports none.
        let own = context.usage().allocated;
        let in_place = context.info().memory.shares_host_memory() && context.info().import.is_some();
        assert!(!in_place || own < bytes, "{device}: {own}");
        check_messages(&context);
    }
}
