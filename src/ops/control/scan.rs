//! Scan: a graph for every slice of its inputs.

use std::sync::Arc;

use super::{Control, Scan, ScanAxis};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, OpCx, OpError, Operator};

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let body = attrs.graph("body")?;
    let batched = opset < 9;
    let slices = attrs.int("num_scan_inputs", 0)?;
    let given = attrs.input_count().saturating_sub(body.captured() + usize::from(batched));
    let slices = usize::try_from(slices).ok().filter(|n| (1..=given).contains(n)).ok_or_else(|| {
        attrs.error("num_scan_inputs", format!("is {slices}, the node has {given} more inputs"))
    })?;
    let states = given - slices;
    let count = |what, found, expected: String| Err(OpError::Count { what, found, expected });
    if body.inputs().len() != given + body.captured() {
        return count("inputs of its body", body.inputs().len() - body.captured(), given.to_string());
    }
    if body.outputs().len() < states {
        return count("outputs of its body", body.outputs().len(), format!("at least {states}"));
    }
    let stacks = body.outputs().len() - states;
    let axes = |axes: &str, directions: &str, n: usize| -> Result<Vec<ScanAxis>, OpError> {
        let read = |name: &str| -> Result<Vec<i64>, OpError> {
            let list = attrs.ints_opt(name)?.unwrap_or_else(|| vec![0; n]);
            match list.len() == n {
                true => Ok(list),
                false => Err(attrs.error(name, format!("has {} entries, expected {n}", list.len())).into()),
            }
        };
        let directions = read(directions)?;
        let axes = if batched { vec![0; n] } else { read(axes)? };
        Ok(axes.iter().zip(directions).map(|(&axis, d)| ScanAxis { axis, reverse: d != 0 }).collect())
    };
    let inputs = if batched {
        axes("", "directions", slices)?
    } else {
        axes("scan_input_axes", "scan_input_directions", slices)?
    };
    let outputs = if batched {
        vec![ScanAxis::default(); stacks]
    } else {
        axes("scan_output_axes", "scan_output_directions", stacks)?
    };
    Ok(Arc::new(Scan { body: Arc::new(body.clone()), states, inputs, outputs, batched }))
}

impl Operator for Scan {
    fn name(&self) -> &'static str {
        "Scan"
    }

    /// The sizes of the results depend on the run.
    fn infer(&self, _: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        Err(OpError::NeedsValue { input: 0 })
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        Err(OpError::unsupported("Scan has no kernel of its own"))
    }

    fn control(&self) -> Option<Control<'_>> {
        Some(Control::Scan(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::GraphBuilder;
    use crate::ops::{AttrMap, AttrValue};

    #[test]
    fn attributes_must_fit_the_body() {
        let mut g = GraphBuilder::new("body");
        let ids: Vec<_> = (0..2).map(|i| g.declare_input(format!("i{i}"), None, None)).collect();
        g.output("state", ids[0]);
        g.output("slice", ids[1]);
        let body = g.build().unwrap();
        let attrs = |slices: i64, axes: Option<Vec<i64>>| {
            let mut attrs = AttrMap::new();
            attrs.insert("body".into(), AttrValue::Graph(Box::new(body.clone())));
            attrs.insert("num_scan_inputs".into(), AttrValue::Int(slices));
            attrs.extend(axes.map(|a| ("scan_input_axes".to_owned(), AttrValue::Ints(a))));
            attrs
        };
        let read = |attrs: &AttrMap, inputs| read(&mut AttrReader::new(attrs, inputs, 2), 16);
        assert!(read(&attrs(1, None), 2).is_ok());
        for (attrs, inputs) in [
            (attrs(0, None), 2),
            (attrs(3, None), 2),
            (attrs(-1, None), 2),
            (attrs(1, Some(vec![0, 1])), 2),
            (attrs(1, None), 3),
            (AttrMap::new(), 2),
        ] {
            assert!(read(&attrs, inputs).is_err());
        }
    }
}
