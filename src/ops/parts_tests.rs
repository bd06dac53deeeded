//! Grids whose work-groups are run apart give the bits of whole ones.

#![cfg(feature = "vulkan")]

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
use crate::device::Context;
use crate::graph::Tensor;
use crate::kernel::KernelId;
use crate::spirv::{PART_BYTES, PartForm, Reflection, check_module};

/// An operator, its inputs and the number of its outputs.
type Case = (Arc<dyn Operator>, Vec<Option<Tensor>>, usize);

fn conv(group: usize, x: &[usize], w: &[usize]) -> Case {
    let window = WindowAttrs { pads: vec![(w[2] / 2) as i64; 4], ..WindowAttrs::default() };
    let op = Conv { window, group, ..Conv::default() };
    (Arc::new(op), vec![Some(tensor(x, 1)), Some(tensor(w, 2))], 1)
}

fn product(a: &[usize], b: &[usize]) -> Case {
    (Arc::new(MatMul::default()), vec![Some(tensor(a, 3)), Some(tensor(b, 4))], 1)
}

fn reduce(kind: ReduceKind, axis: i64, x: &[usize]) -> Case {
    let op = Reduce { kind, axes: Some(vec![axis]), keep_dims: true, noop_with_empty_axes: false };
    (Arc::new(op), vec![Some(tensor(x, 5))], 1)
}

fn softmax(axis: i64, x: &[usize]) -> Case {
    let op = Softmax { kind: SoftmaxKind::Soft, axis, flatten: false };
    (Arc::new(op), vec![Some(tensor(x, 6))], 1)
}

fn cases() -> Vec<Case> {
    vec![
        (add(), vec![Some(tensor(&[31, 67], 7)), Some(tensor(&[31, 1], 8))], 1),
        (Arc::new(DynamicQuantizeLinear), vec![Some(tensor(&[64, 1000], 9))], 3),
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

#[test]
fn work_groups_that_run_apart_give_the_same_bits() {
    for (op, inputs, outputs) in cases() {
        for pretend in [as_is, no_texels] as [fn(&mut DeviceInfo); 2] {
            let check = || Check::new(&*op, &inputs).outputs(outputs).pretend(pretend);
            let able = |context: &&Context| context.info().splits_grids;
            assert!(devices().iter().all(|context| able(&context) == (context.info().api == "vulkan")));
            for context in devices().iter().filter(able) {
                let whole = check().run_on(context).unwrap();
                for axis in 0..3 {
                    let parts = check().in_parts(axis).run_on(context).unwrap();
                    assert_eq!(whole.len(), parts.len());
                    for (whole, parts) in whole.iter().zip(&parts) {
                        assert!(whole.bytes() == parts.bytes(), "{} along axis {axis}", op.name());
                    }
                }
            }
        }
    }
}

#[test]
fn every_kernel_has_a_form_for_parts_of_its_grid() {
    for (info, axis) in KernelId::all().map(|id| id.info()).zip((0..3).cycle()) {
        let form = PartForm::new(info.spirv(), info.params_bytes, axis);
        let form = form.unwrap_or_else(|| panic!("{}", info.name));
        let of_part = check_module(&form.words).unwrap_or_else(|error| panic!("{}: {error}", info.name));
        let of_whole = info.reflection();
        if form.words.as_slice() != info.spirv() {
            assert_eq!(of_part.params_bytes, form.offset_bytes + PART_BYTES, "{}", info.name);
        }
        let arguments =
            |reflection: &Reflection| reflection.bindings.iter().map(|b| b.access).collect::<Vec<_>>();
        assert_eq!(arguments(&of_part), arguments(&of_whole), "{}", info.name);
        let same =
            |a: &Reflection, b: &Reflection| a.local_size == b.local_size && a.shared_bytes == b.shared_bytes;
        assert!(same(&of_part, &of_whole), "{}", info.name);
    }
}
