//! Keys of measurements: equal for work that takes the same time.

use crate::backend::DeviceInfo;
use crate::files::hash::Hash;
use crate::graph::TensorInfo;
use crate::ops::{Choices, OpCx};
use crate::plan::{Flow, UnplacedPlan};
use crate::session::core::options::CopiedPerRun;

/// A device with its driver and this build of the library.
pub(super) fn device(info: &DeviceInfo) -> String {
    let mut hash = Hash::new();
    hash.put((info.api, &info.name, &info.driver, &info.api_version, &info.uuid, info.features));
    hash.put((env!("CARGO_PKG_VERSION"), cfg!(debug_assertions)));
    // The number of cores decides the speed of devices that compute on the CPU.
    hash.put(std::thread::available_parallelism().map_or(0, |n| n.get()));
    hash.digest().short_hex()
}

/// A device of that name whose kernels are chosen by `choices`: other kernels take other times.
pub(super) fn tuned(device: &str, choices: Option<&Choices>) -> String {
    match choices.filter(|choices| !choices.is_empty()) {
        None => device.to_owned(),
        Some(choices) => {
            let mut hash = Hash::new();
            hash.put((device, choices));
            hash.digest().short_hex()
        }
    }
}

/// An operator with its attributes, the types and sizes of its inputs and outputs (in classes of similar sizes unless
/// `exact`), and its constant values.
pub(super) fn operator(flow: &Flow, n: usize, exact: bool) -> u64 {
    let (node, cx) = (&flow.nodes[n], flow.cx(n));
    let mut hash = Hash::new();
    hash.put((node.op.name(), &node.op));
    let cost = node.op.cost(&cx);
    hash.put(if exact { (cost.flops, cost.bytes) } else { (class(cost.flops), class(cost.bytes)) });
    let by_value = node.op.value_inputs();
    for i in 0..cx.input_count() {
        put_info(&mut hash, cx.input_opt(i), exact);
        put_value(&mut hash, &cx, i, by_value.contains(&i));
    }
    for output in cx.outputs() {
        put_info(&mut hash, Some(output), exact);
    }
    hash.digest().value()
}

fn put_info(hash: &mut Hash, info: Option<&TensorInfo>, exact: bool) {
    let sizes = |info: &TensorInfo| -> Vec<(u64, bool)> {
        let sizes = info.shape.dims().iter().map(|&d| d as u64);
        // Kernels read vectors of four where the size allows.
        sizes.map(|d| (if exact { d } else { class(d) }, d.is_multiple_of(4))).collect()
    };
    hash.put(info.map(|info| (info.dtype, sizes(info))));
}

fn put_value(hash: &mut Hash, cx: &OpCx, i: usize, decides: bool) {
    let value = cx.value(i);
    hash.put(value.is_some());
    if let Some(value) = value.filter(|_| decides) {
        hash.bytes(value.bytes());
    }
}

/// A size by its four leading binary digits: sizes within an eighth are equal.
fn class(size: u64) -> u64 {
    let shift = (u64::BITS - size.leading_zeros()).saturating_sub(4);
    (size >> shift) << shift
}

/// A graph with the devices it may run on and the copies of its runs.
pub(super) fn graph(draft: &UnplacedPlan, devices: &[String], copied: CopiedPerRun) -> String {
    let mut hash = Hash::new();
    hash.put((devices, copied));
    for (n, (node, known)) in draft.flow.nodes.iter().zip(&draft.nodes).enumerate() {
        hash.put((operator(&draft.flow, n, true), &node.inputs, &node.outputs, &node.control_deps));
        hash.put((known.fixed, &known.commands, node.device));
    }
    hash.put((&draft.flow.inputs, draft.flow.outputs.iter().map(|(_, v)| *v).collect::<Vec<_>>()));
    hash.digest().short_hex()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::dtype::DType;
    use crate::graph::GraphBuilder;
    use crate::ops::{self, Function};
    use crate::plan::specialize;
    use crate::shape::Shape;

    fn of(op: Function, dims: &[usize], exact: bool) -> u64 {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, dims.iter().map(|d| (*d).into()).collect::<Vec<_>>());
        let y = g.op(ops::unary(op), &[x]);
        g.output("y", y);
        let info = TensorInfo::new(DType::F32, Shape::new(dims).unwrap());
        operator(
            &specialize(&g.build().unwrap(), &[info], &BTreeMap::new()).unwrap().plan().unwrap(),
            0,
            exact,
        )
    }

    #[test]
    fn devices_are_told_apart_by_their_choices() {
        let of = |names: &[&str]| {
            let mut choices = Choices::default();
            for (at, name) in names.iter().enumerate() {
                let key = crate::ops::ChoiceKey::new("product", DType::F32).size("m", at);
                choices.set(key, (*name).to_owned());
            }
            tuned("a", Some(&choices))
        };
        assert_eq!([of(&[]), tuned("a", None)], ["a", "a"].map(str::to_owned));
        let all = [of(&[]), of(&["b"]), of(&["c"]), of(&["b", "c"])];
        let apart: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!((apart.len(), of(&["b"])), (4, all[1].clone()));
    }

    #[test]
    fn operators_are_alike_in_nearly_equal_sizes() {
        assert_eq!(of(Function::Exp, &[1001, 8], false), of(Function::Exp, &[1003, 8], false));
        assert_ne!(of(Function::Exp, &[1001, 8], true), of(Function::Exp, &[1003, 8], true));
        assert_ne!(of(Function::Exp, &[1001, 8], false), of(Function::Exp, &[1004, 8], false));
        assert_ne!(of(Function::Exp, &[1001, 8], false), of(Function::Exp, &[2002, 8], false));
        assert_ne!(of(Function::Exp, &[16], false), of(Function::Sin, &[16], false));
        assert_eq!([0, 1, 15, 16, 17, 18, 1000, u64::MAX].map(class), [0, 1, 15, 16, 16, 18, 960, 15 << 60]);
    }
}
