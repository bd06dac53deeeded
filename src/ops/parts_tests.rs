//! Grids whose work-groups are run apart give the bits of whole ones.

#![cfg(feature = "vulkan")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::conv::Conv;
use super::linalg::MatMul;
use super::norm::{Softmax, SoftmaxKind};
use super::quant::DynamicQuantizeLinear;
use super::reduce::{Reduce, ReduceKind};
use super::test_util::tensor;
use super::testing::{Check, as_is, devices, no_texels};
use super::{Operator, WindowAttrs, add};
use crate::backend::DeviceInfo;
use crate::graph::Tensor;
use crate::kernel::KernelId;
use crate::spirv::GroupCount;

/// An operator and its inputs.
type Case = (Arc<dyn Operator>, Vec<Option<Tensor>>);

fn conv(group: usize, x: &[usize], w: &[usize]) -> Case {
    let window = WindowAttrs { pads: vec![(w[2] / 2) as i64; 4], ..WindowAttrs::default() };
    let op = Conv { window, group, ..Conv::default() };
    (Arc::new(op), vec![Some(tensor(x, 1)), Some(tensor(w, 2))])
}

fn product(a: &[usize], b: &[usize]) -> Case {
    (Arc::new(MatMul::default()), vec![Some(tensor(a, 3)), Some(tensor(b, 4))])
}

fn reduce(kind: ReduceKind, axis: i64, x: &[usize]) -> Case {
    let op = Reduce { kind, axes: Some(vec![axis]), keep_dims: true, noop_with_empty_axes: false };
    (Arc::new(op), vec![Some(tensor(x, 5))])
}

fn softmax(axis: i64, x: &[usize]) -> Case {
    let op = Softmax { kind: SoftmaxKind::Soft, axis, flatten: false };
    (Arc::new(op), vec![Some(tensor(x, 6))])
}

fn cases() -> Vec<Case> {
    vec![
        (add(), vec![Some(tensor(&[31, 67], 7)), Some(tensor(&[31, 1], 8))]),
        conv(1, &[1, 16, 20, 20], &[40, 16, 3, 3]),
        conv(1, &[2, 24, 13, 11], &[32, 24, 1, 1]),
        conv(32, &[1, 32, 18, 18], &[32, 1, 3, 3]),
        product(&[48, 64], &[64, 72]),
        product(&[3, 70, 33], &[3, 33, 130]),
        product(&[1, 512], &[512, 300]),
        reduce(ReduceKind::Sum, 1, &[65, 200]),
        reduce(ReduceKind::Max, 0, &[200, 65]),
        softmax(-1, &[67, 130]),
        softmax(0, &[67, 130]),
    ]
}

/// Whether a grid can be divided along any axis.
fn is_split(splits: &[bool; 3]) -> bool {
    splits.contains(&true)
}

#[test]
fn work_groups_that_run_apart_give_the_same_bits() {
    for (op, inputs) in cases() {
        for pretend in [as_is, no_texels] as [fn(&mut DeviceInfo); 2] {
            let check = || Check::new(&*op, &inputs).pretend(pretend);
            for context in devices() {
                let grids = check().grids_on(context);
                assert!(grids.iter().any(|(.., splits)| is_split(splits)), "{}: {grids:?}", op.name());
                let (whole, parts) = (check().run_on(context), check().in_parts().run_on(context));
                let (whole, parts) = (whole.unwrap(), parts.unwrap());
                assert_eq!(whole.len(), parts.len());
                for (whole, parts) in whole.iter().zip(&parts) {
                    assert!(whole.bytes() == parts.bytes(), "{}: {grids:?}", op.name());
                }
            }
        }
    }
}

#[test]
fn a_kernel_that_reads_the_number_of_its_work_groups_stays_whole() {
    let op = DynamicQuantizeLinear;
    let inputs = [Some(tensor(&[64, 1000], 9))];
    let check = || Check::new(&op, &inputs).outputs(3);
    for context in devices() {
        let grids = check().grids_on(context);
        let extremes: Vec<_> = grids.iter().filter(|(name, ..)| name == "extremes").collect();
        assert!(!extremes.is_empty() && extremes.iter().all(|(_, groups, _)| groups[0] > 1), "{grids:?}");
        assert!(extremes.iter().all(|(.., splits)| !is_split(splits)), "{grids:?}");
        let (whole, parts) = (check().run_on(context).unwrap(), check().in_parts().run_on(context).unwrap());
        assert!(whole.iter().zip(&parts).all(|(whole, parts)| whole.bytes() == parts.bytes()));
    }
}

/// Kernels that cannot be divided along x are few, and those along z share out their sums.
#[test]
fn few_kernels_read_how_many_work_groups_there_are() {
    let reading = |axis: usize| -> BTreeSet<&str> {
        let infos = KernelId::all().map(|id| id.info());
        infos.filter(|info| info.grid.counts[axis] == GroupCount::Read).map(|info| info.source).collect()
    };
    let along_x =
        ["shaders/linalg/round_rows.comp", "shaders/loss/nll_loss.comp", "shaders/quant/extremes.comp"];
    assert_eq!(reading(0), BTreeSet::from(along_x));
    assert_eq!(reading(1), BTreeSet::new());
    for source in reading(2) {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(source)).unwrap();
        assert!(text.contains("parts.glsl"), "{source}");
    }
}
