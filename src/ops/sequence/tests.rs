//! Lists as two tensors: made, changed and read.

use super::packed::*;
use crate::dtype::DType;
use crate::graph::Tensor;
use crate::ops::test_util::{facts, run_cpu, tensor};
use crate::ops::{OpError, Operator};

fn items() -> Vec<Tensor> {
    vec![tensor(&[2, 3], 1), tensor(&[2, 3], 2), tensor(&[0, 3], 3), tensor(&[5, 3], 4)]
}

/// What `op` gives on the CPU, after devices were asked for the same.
fn run(op: &dyn Operator, inputs: &[Option<Tensor>]) -> Result<Tensor, OpError> {
    facts(op, inputs, 1)?;
    #[cfg(feature = "vulkan")]
    if !op.shape_only() {
        crate::ops::testing::check_op(op, inputs, 0.0);
    }
    Ok(run_cpu(op, inputs, 1)?.remove(0))
}

fn both<O: Operator>(op: impl Fn(Part) -> O, inputs: &[Option<Tensor>]) -> Result<Vec<Tensor>, OpError> {
    let mut other = inputs.to_vec();
    if op(Part::Table).name() == "SequenceInsert" {
        other[0] = None;
    }
    unpack(&run(&op(Part::Values), inputs)?, &run(&op(Part::Table), &other)?)
}

fn same(a: &[Tensor], b: &[Tensor]) {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| a.info() == b.info() && a.bytes() == b.bytes()));
}

#[test]
fn lists_are_packed_changed_and_read() {
    let items = items();
    let given: Vec<Option<Tensor>> = items.iter().cloned().map(Some).collect();
    let packed = both(|part| Pack { part, dtype: DType::F32 }, &given).unwrap();
    same(&packed, &items);
    let [values, table] = pack(&items, DType::F32).unwrap();
    let list = [Some(values), Some(table)];
    let at = |p: i64| Some(Tensor::scalar(p));
    for (p, i) in [(0, 0), (3, 3), (-4, 0), (2, 2)] {
        let inputs = [list[0].clone(), list[1].clone(), at(p)];
        same(&[run(&Unpack, &inputs).unwrap()], &items[i..=i]);
    }
    let splice = |item: Option<Tensor>, at: Option<Tensor>| {
        both(|part| Splice { part }, &[list[0].clone(), list[1].clone(), item, at])
    };
    let new = tensor(&[7], 5);
    for (p, i) in [(Some(0), 0), (Some(1), 1), (Some(4), 4), (Some(-1), 3), (None, 4)] {
        let mut want = items.clone();
        want.insert(i, new.clone());
        same(&splice(Some(new.clone()), p.and_then(at)).unwrap(), &want);
    }
    for (p, i) in [(Some(0), 0), (Some(-2), 2), (None, 3)] {
        let mut want = items.clone();
        want.remove(i);
        same(&splice(None, p.and_then(at)).unwrap(), &want);
    }
    let wrong = |r: Result<Vec<Tensor>, OpError>| matches!(r, Err(OpError::Value { .. }));
    assert!(wrong(splice(None, at(4))) && wrong(splice(Some(new.clone()), at(5))));
    assert!(wrong(splice(Some(new.clone()), at(i64::MIN))));
    assert!(splice(Some(Tensor::from_i64s(&[1])), None).is_err());
    let empty = pack(&[], DType::F32).unwrap().map(Some);
    let first = [empty[0].clone(), empty[1].clone(), Some(Tensor::from_i64s(&[1, 2])), None];
    same(&both(|part| Splice { part }, &first).unwrap(), &[Tensor::from_i64s(&[1, 2])]);
    assert!(wrong(both(|part| Splice { part }, &[empty[0].clone(), empty[1].clone(), None, None])));
}

#[test]
fn pieces_are_packed_and_joined_again() {
    let x = tensor(&[4, 7, 3], 6);
    for axis in 0..3 {
        let len = x.shape()[axis];
        let splits = [None, Some(Tensor::scalar(2i64)), Some(Tensor::from_i64s(&[1, 1, len as i64 - 2, 0]))];
        for split in splits {
            let cut = [Some(x.clone()), split];
            let of = |part| PackCut { part, axis: axis as i64, keep_dims: true };
            let list = [run(&of(Part::Values), &cut), run(&of(Part::Table), &cut)].map(Result::ok);
            let whole = run(&JoinList { axis: axis as i64, new_axis: false }, &list).unwrap();
            same(&[whole], std::slice::from_ref(&x));
        }
        let single = |part| PackCut { part, axis: axis as i64, keep_dims: false };
        let cut = [Some(x.clone()), None];
        let list = [run(&single(Part::Values), &cut), run(&single(Part::Table), &cut)].map(Result::ok);
        let whole = run(&JoinList { axis: axis as i64, new_axis: true }, &list).unwrap();
        same(&[whole], std::slice::from_ref(&x));
    }
    let [values, table] = pack(&items(), DType::F32).unwrap().map(Some);
    let join = |axis, new_axis| run(&JoinList { axis, new_axis }, &[values.clone(), table.clone()]);
    assert_eq!(join(0, false).unwrap().shape().dims(), [9, 3]);
    assert!(join(1, false).is_err() && join(0, true).is_err() && join(2, false).is_err());
}

#[test]
fn tables_that_are_none_are_errors() {
    let read = |values: Tensor, table: Vec<i64>, rows: usize| {
        let columns = table.len().checked_div(rows).unwrap_or(COLUMNS);
        unpack(&values, &Tensor::new([rows, columns], &table).unwrap())
    };
    let mut row = vec![0; COLUMNS];
    assert_eq!(read(tensor(&[1], 1), row.clone(), 1).unwrap().len(), 1);
    assert!(read(tensor(&[2], 1), row.clone(), 1).is_err());
    assert!(read(tensor(&[2], 1), vec![0; 3], 1).is_err());
    for (rank, size) in [(-1, 0), (17, 0), (i64::MAX, 0), (1, -1), (2, i64::MAX)] {
        row[0] = rank;
        row[1] = size;
        row[2] = size;
        assert!(read(tensor(&[1], 1), row.clone(), 1).is_err(), "{rank} {size}");
    }
    assert!(pack(&[tensor(&[1], 1), Tensor::from_i64s(&[1])], DType::F32).is_err());
}
