//! Quantized parameters that the CPU multiplies are in memory once, in the layout that it multiplies.

use std::sync::{Arc, Weak};

use onepool::device::Context;
use onepool::loader::{read_params, write_params};
use onepool::session::ParamStore;
use onepool::{DType, Graph, GraphBuilder, HostRegion, Session, Tensor};

use crate::common::{check_messages, devices, held, op, open};

/// Weights of a convolution, and matrices of a product.
const CONV: [usize; 4] = [70, 66, 3, 3];
const MATRIX: [usize; 2] = [301, 130];
const SIZE: usize = 6;
const PAGE: u64 = 4096;

fn bytes(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| ((i * 7919 + i / 97 + seed * 104_729) % 256) as u8).collect()
}

fn weight_bytes() -> u64 {
    (CONV.iter().product::<usize>() + MATRIX.iter().product::<usize>()) as u64
}

fn tensors() -> [Tensor; 2] {
    let conv: Vec<i8> = bytes(CONV.iter().product(), 1).into_iter().map(|b| b as i8).collect();
    let matrix = bytes(MATRIX.iter().product(), 2);
    [Tensor::new(CONV.to_vec(), &conv).unwrap(), Tensor::new(MATRIX.to_vec(), &matrix).unwrap()]
}

/// The weights, as they come from a file.
fn weights() -> [Tensor; 2] {
    let mut blob = Vec::new();
    let tensors = tensors();
    write_params(&mut blob, ["conv", "matrix"].into_iter().zip(&tensors)).unwrap();
    let mut read = read_params(&blob).unwrap().into_iter().map(|(_, t)| t);
    [read.next().unwrap(), read.next().unwrap()]
}

/// A convolution and a product of bytes; one more reader of the weights where `also` says so.
fn graph([conv, matrix]: &[Tensor; 2], batch: usize, also: bool) -> Graph {
    let mut g = GraphBuilder::new("net");
    let x = g.input("x", DType::U8, [batch.into(), CONV[1].into(), SIZE.into(), SIZE.into()]);
    let a = g.input("a", DType::U8, [batch.into(), MATRIX[0].into()]);
    let (conv, matrix) = (g.constant("conv", conv.clone()), g.constant("matrix", matrix.clone()));
    let y = g.op(op("ConvInteger"), &[x, conv]);
    let z = g.op(op("MatMulInteger"), &[a, matrix]);
    g.output("y", y);
    g.output("z", z);
    if also {
        let one = g.input("one", DType::I8, [CONV[3].into()]);
        let more = g.op(op("Add"), &[conv, one]);
        g.output("more", more);
    }
    g.build().unwrap()
}

fn session(graph: Graph, context: &Context, store: &Arc<ParamStore>) -> Session {
    Session::builder().graph(graph).context(context.clone()).params(Arc::clone(store)).build().unwrap()
}

fn run(session: &mut Session, batch: usize) -> [Vec<i32>; 2] {
    let (pixels, rows) = (batch * CONV[1] * SIZE * SIZE, batch * MATRIX[0]);
    let x = Tensor::new(vec![batch, CONV[1], SIZE, SIZE], &bytes(pixels, 3)).unwrap();
    let a = Tensor::new(vec![batch, MATRIX[0]], &bytes(rows, 4)).unwrap();
    session.set_input("x", &x).unwrap();
    session.set_input("a", &a).unwrap();
    if session.graph().input("one").is_some() {
        session.set_input("one", &Tensor::new(vec![3], &[1i8, 2, 3]).unwrap()).unwrap();
    }
    session.run().unwrap();
    ["y", "z"].map(|name| session.get_output(name).unwrap().as_slice::<i32>().unwrap().to_vec())
}

/// By the definition.
fn want(batch: usize) -> [Vec<i32>; 2] {
    let (x, w) = (bytes(batch * CONV[1] * SIZE * SIZE, 3), bytes(CONV.iter().product(), 1));
    let (a, m) = (bytes(batch * MATRIX[0], 4), bytes(MATRIX.iter().product(), 2));
    let out = SIZE - 2;
    let mut y = Vec::new();
    for n in 0..batch {
        for oc in 0..CONV[0] {
            for at in 0..out * out {
                let taps = (0..CONV[1] * 9).map(|i| {
                    let (c, row, column) = (i / 9, at / out + i / 3 % 3, at % out + i % 3);
                    let pixel = x[((n * CONV[1] + c) * SIZE + row) * SIZE + column];
                    i32::from(pixel) * i32::from(w[oc * CONV[1] * 9 + i] as i8)
                });
                y.push(taps.sum());
            }
        }
    }
    let row = |n: usize, c: usize| {
        (0..MATRIX[0]).map(|k| i32::from(a[n * MATRIX[0] + k]) * i32::from(m[k * MATRIX[1] + c])).sum()
    };
    let z = (0..batch).flat_map(|n| (0..MATRIX[1]).map(move |c| row(n, c))).collect();
    [y, z]
}

fn plain(weights: &[Tensor]) -> Vec<Weak<HostRegion>> {
    weights.iter().map(|t| Arc::downgrade(&t.region().unwrap().0)).collect()
}

#[test]
fn quantized_parameters_are_kept_only_as_the_cpu_multiplies_them() {
    let cpu = open("cpu");
    let (store, given) = (ParamStore::new(), weights());
    let before = plain(&given);
    let mut first = session(graph(&given, 2, false), &cpu, &store);
    drop(given);
    assert_eq!(run(&mut first, 2), want(2));
    // The bytes as the file had them are gone.
    assert!(before.iter().all(|region| region.upgrade().is_none()));
    // Channels and columns are rounded up, and have sums.
    let most = weight_bytes() * 5 / 4 + 4 * (CONV[0] + MATRIX[1]) as u64 + 2 * PAGE;
    let usage = store.usage();
    assert_eq!(usage.count, 2);
    assert!((weight_bytes()..most).contains(&usage.bytes), "{usage:?} for {}", weight_bytes());
    let imported = cpu.usage().imported;
    assert!((weight_bytes()..most).contains(&imported), "{imported} for {}", weight_bytes());

    // Another batch, from a file of its own, has none of its own.
    let (held_by_one, counted) = (held(&cpu), store.usage());
    let mut second = session(graph(&weights(), 1, false), &cpu, &store);
    assert_eq!(run(&mut second, 1), want(1));
    assert_eq!(store.usage(), counted);
    assert!(held(&cpu) - held_by_one < weight_bytes(), "{held_by_one}, then {}", held(&cpu));

    // Whoever asks for the bytes gets them, and what was made of them goes on.
    for ((_, t), given) in second.graph().constants().zip(&tensors()) {
        assert_eq!(t.bytes(), given.bytes());
    }
    assert_eq!(run(&mut first, 2), want(2));
    drop((first, second));
    assert_eq!((store.usage().count, cpu.usage().imported), (0, 0));
}

#[test]
fn devices_have_quantized_parameters_in_their_own_layouts() {
    let cpu = open("cpu");
    for name in devices().filter(|name| *name != "cpu") {
        let device = open(name);
        for order in [[&device, &cpu], [&cpu, &device]] {
            let (weights, store) = (weights(), ParamStore::new());
            let mut sessions = order.map(|context| session(graph(&weights, 1, false), context, &store));
            for _ in 0..2 {
                for session in &mut sessions {
                    assert_eq!(run(session, 1), want(1), "{name}");
                }
            }
            let [first, mut second] = sessions;
            drop(first);
            assert_eq!(run(&mut second, 1), want(1), "{name}");
            drop(second);
            for (t, given) in weights.iter().zip(&tensors()) {
                assert_eq!(t.bytes(), given.bytes(), "{name}");
            }
        }
        check_messages(&device);
    }
}

#[test]
fn quantized_parameters_with_other_readers_stay_as_they_are_too() {
    for name in devices() {
        let (device, weights) = (open(name), weights());
        let mut session = session(graph(&weights, 1, true), &device, &ParamStore::new());
        for _ in 0..2 {
            assert_eq!(run(&mut session, 1), want(1), "{name}");
            let more = session.get_output("more").unwrap();
            let sums = more.as_slice::<i8>().unwrap().iter().zip([1, 2, 3].iter().cycle());
            let back: Vec<u8> = sums.map(|(v, one)| v.wrapping_sub(*one) as u8).collect();
            assert_eq!(back, tensors()[0].bytes(), "{name}");
        }
        check_messages(&device);
    }
}
