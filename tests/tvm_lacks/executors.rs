//! Several executors of one model, counted by the allocator.

use onepool::device::Context;
use onepool::tvm::GraphModule;

use crate::common::{check_messages, devices, held, numbers, open, tensor, two_products};

const WIDTH: usize = 256;
const BATCH: usize = 8;
const WEIGHTS: u64 = (2 * 4 * WIDTH * WIDTH) as u64;

/// Bytes on the device with one, two, three and four executors that share their parameters, and those of the pool of
/// intermediate tensors, where they have one in common.
fn bytes(device: &str, pool: bool) -> (Vec<u64>, Option<u64>) {
    let context: Context = open(device);
    let identity = |n: usize| {
        let one = |i: usize| f32::from(u8::from(i % WIDTH == i / WIDTH));
        tensor(&[WIDTH, WIDTH], &(0..WIDTH * WIDTH).map(one).map(|v| v * n as f32).collect::<Vec<_>>())
    };
    let mut modules: Vec<GraphModule> = (0..4)
        .map(|_| GraphModule::new(two_products(BATCH, WIDTH), std::slice::from_ref(&context)))
        .collect();
    let (first, rest) = modules.split_first_mut().unwrap();
    first.set_shared_input("w0", &identity(2)).unwrap();
    first.set_shared_input("w1", &identity(3)).unwrap();
    for module in rest {
        assert_eq!(module.share_params(first).unwrap(), 2);
    }
    let arena = pool.then(|| GraphModule::setup_shared_storage(&mut modules).unwrap());
    let mut after = Vec::new();
    for (i, module) in modules.iter_mut().enumerate() {
        let x = tensor(&[BATCH, WIDTH], &numbers(BATCH * WIDTH, i));
        module.set_input("x", &x).unwrap();
        module.run().unwrap();
        let want: Vec<f32> = x.as_slice::<f32>().unwrap().iter().map(|v| 6.0 * v).collect();
        assert_eq!(module.get_output("y").unwrap().as_slice::<f32>().unwrap(), want, "{device}");
        after.push(held(&context));
    }
    check_messages(&context);
    (after, arena.map(|a| a.usage().bytes))
}

#[test]
fn n_executors_hold_the_weights_once_and_their_activations_n_times() {
    for device in devices() {
        let (after, _) = bytes(device, false);
        let activations = after[1] - after[0];
        assert!(activations < WEIGHTS / 2, "{device}: {after:?}");
        assert!(activations >= (2 * 4 * BATCH * WIDTH) as u64, "{device}: {after:?}");
        for n in 1..4 {
            assert_eq!(after[n] - after[n - 1], activations, "{device}: {after:?}");
        }
        let weights = after[0] - activations;
        assert!((WEIGHTS..WEIGHTS + WEIGHTS / 4).contains(&weights), "{device}: {weights} of {WEIGHTS}");
    }
}

#[test]
fn n_executors_in_one_pool_hold_their_intermediate_tensors_once() {
    for device in devices() {
        let (apart, _) = bytes(device, false);
        let (pooled, pool) = bytes(device, true);
        let pool = pool.unwrap();
        assert!(pool >= (4 * BATCH * WIDTH) as u64, "{device}: {pool}");
        // What each executor holds in addition to tensors is there once the pool is set up, so everything is compared.
        assert_eq!(apart[3] - pooled[3], 3 * pool, "{device}: {apart:?} {pooled:?}, pool {pool}");
    }
}
