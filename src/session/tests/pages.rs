//! A cache in pages that is updated where it lies.

use std::sync::Arc;

use half::f16;

use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, Tensor};
use crate::memory::host::HostRegion;
use crate::memory::range::ByteRange;
use crate::ops::Operator;
use crate::ops::attention::{CacheKind, PagedAttention};
use crate::ops::test_util::tensor_of;
use crate::session::tests::check_messages;
use crate::session::tests::updates::{DEVICES, floats, run_updated, session};
use crate::session::{Error, Memory, Session};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const SIZE: usize = 16;
const PAGES: usize = 6;
const ROWS: usize = 4;
const CACHE: [usize; 4] = [PAGES, ROWS, KV_HEADS, SIZE];
const WIDTH: usize = (HEADS + 2 * KV_HEADS) * SIZE;

fn decoder(dtype: DType) -> Graph {
    let mut g = GraphBuilder::new("decoder");
    let qkv = g.input("qkv", dtype, ["tokens".into(), WIDTH.into()]);
    let caches = ["past_k", "past_v"].map(|name| g.input(name, dtype, CACHE.map(Into::into)));
    let ends = g.input("ends", DType::I32, [3.into()]);
    let past = g.input("past", DType::I32, [2.into()]);
    let table = g.input("table", DType::I32, [2.into(), 3.into()]);
    let tables = [7, 8].map(|seed| floats(dtype, &[16, SIZE / 2], seed));
    let [cos, sin] = ["cos", "sin"].map(|name| (name, usize::from(name == "sin")));
    let [cos, sin] = [cos, sin].map(|(name, at)| g.constant(name, tables[at].clone()));
    let op: Arc<dyn Operator> = Arc::new(PagedAttention {
        heads: HEADS,
        kv_heads: KV_HEADS,
        scale: None,
        softcap: 0.0,
        window: None,
        rotary: Some(false),
        causal: true,
        updates: None,
    });
    let inputs = [
        Some(qkv),
        None,
        None,
        Some(caches[0]),
        Some(caches[1]),
        Some(ends),
        Some(past),
        Some(table),
        Some(cos),
        Some(sin),
    ];
    let (_, outputs) = g.node("attention", op, &inputs, 3);
    for (name, id) in ["y", "present_k", "present_v"].into_iter().zip(outputs) {
        g.output(name, id);
    }
    g.build().unwrap()
}

fn ints(v: &[i32]) -> Tensor {
    Tensor::new([v.len()], v).unwrap()
}

/// Two sequences, which share page 5; the second writes page 1, then 0.
const TABLE: [i32; 6] = [5, 2, -1, 5, 1, 0];
/// New tokens of each, and keys before them.
const STEPS: [([i32; 2], [i32; 2]); 4] =
    [([5, 0], [0, 0]), ([1, 3], [5, 4]), ([1, 1], [6, 7]), ([0, 2], [7, 8])];

fn set(session: &mut Session, dtype: DType, step: usize) {
    let (lens, past) = STEPS[step];
    let tokens = (lens[0] + lens[1]) as usize;
    session.set_input("qkv", &floats(dtype, &[tokens, WIDTH], 100 + step as u64)).unwrap();
    session.set_input("ends", &ints(&[0, lens[0], lens[0] + lens[1]])).unwrap();
    session.set_input("past", &ints(&past)).unwrap();
    session.set_input("table", &Tensor::new([2, 3], &TABLE).unwrap()).unwrap();
}

#[test]
fn pages_are_written_where_the_table_says_and_nothing_else_moves() {
    for (device, dtype) in DEVICES.into_iter().flat_map(|d| [DType::F32, DType::F16].map(|t| (d, t))) {
        let mut by_value = session(device, decoder(dtype));
        let nans = match dtype {
            DType::F16 => tensor_of(&CACHE, &[f32::NAN; PAGES * ROWS * KV_HEADS * SIZE], f16::from_f32),
            _ => tensor_of(&CACHE, &[f32::NAN; PAGES * ROWS * KV_HEADS * SIZE], |v| v),
        };
        let mut caches = [nans.clone(), nans.clone()];
        let session = session(device, decoder(dtype));
        let bytes = nans.bytes().len();
        let memory = [(); 2].map(|()| {
            let mut region = HostRegion::new(bytes).unwrap();
            region.as_mut_slice()[..bytes].copy_from_slice(nans.bytes());
            Memory::region_range(&region.into_shared(), ByteRange::up_to(bytes as u64))
        });
        for (step, (lens, past)) in STEPS.into_iter().enumerate() {
            set(&mut by_value, dtype, step);
            for (name, cache) in ["past_k", "past_v"].into_iter().zip(&caches) {
                by_value.set_input(name, cache).unwrap();
            }
            by_value.run().unwrap();
            caches = ["present_k", "present_v"].map(|name| by_value.get_output(name).unwrap());
            let want = by_value.get_output("y").unwrap();
            let tokens = (lens[0] + lens[1]) as usize;
            let mut binding = session
                .bind()
                .input("qkv", Memory::value(floats(dtype, &[tokens, WIDTH], 100 + step as u64)))
                .input("ends", Memory::value(ints(&[0, lens[0], lens[0] + lens[1]])))
                .input("past", Memory::value(ints(&past)))
                .input("table", Memory::value(Tensor::new([2, 3], &TABLE).unwrap()))
                .update("past_k", "present_k", memory[0].again())
                .update("past_v", "present_v", memory[1].again())
                .build()
                .unwrap();
            run_updated(&mut binding, &want, CacheKind::Same, &format!("{device} {dtype}, step {step}"));
            for (name, want) in ["present_k", "present_v"].into_iter().zip(&caches) {
                assert_eq!(
                    binding.get_output(name).unwrap().bytes(),
                    want.bytes(),
                    "{device} {dtype} {step}"
                );
            }
        }
        // Pages that no table names still hold no number.
        let page = bytes / PAGES;
        for at in [3, 4] {
            assert_eq!(caches[0].bytes()[at * page..(at + 1) * page], nans.bytes()[..page], "{device}");
        }
        check_messages(&session);
    }
}

#[test]
fn numbers_out_of_range_are_errors_on_the_cpu() {
    let right = [&[0, 5, 5][..], &[0, 0], &TABLE];
    let runs = |ends: &[i32], past: &[i32], table: &[i32]| {
        let mut session = session("cpu", decoder(DType::F32));
        set(&mut session, DType::F32, 0);
        for name in ["past_k", "past_v"] {
            session.set_input(name, &floats(DType::F32, &CACHE, 1)).unwrap();
        }
        session.set_input("ends", &ints(ends)).unwrap();
        session.set_input("past", &ints(past)).unwrap();
        session.set_input("table", &Tensor::new([2, 3], table).unwrap()).unwrap();
        session.run().map_err(|e: Error| e.to_string())
    };
    runs(right[0], right[1], right[2]).unwrap();
    for (ends, past, table, says) in [
        (&[0, 6, 6], [0, 0], TABLE, "tokens 0 to 6 of 5"),
        (&[0, 5, 4], [0, 0], TABLE, "tokens 5 to 4 of 5"),
        (&[-1, 5, 5], [0, 0], TABLE, "tokens -1 to 5"),
        (&[0, 5, 5], [8, 0], TABLE, "8 keys and 5 new ones"),
        (&[0, 5, 5], [-1, 0], TABLE, "-1 keys"),
        (&[0, 5, 5], [0, 0], [6, 2, -1, 5, 1, 0], "page Some(6) of 6"),
    ] {
        let e = runs(ends, &past, &table).unwrap_err();
        assert!(e.contains(says), "{e}, not {says}");
    }
}
