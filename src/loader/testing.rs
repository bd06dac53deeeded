//! Operators for the tests of the readers, which know nothing of real ones.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrMap, AttrReader, AttrValue, OpCx, OpDef, OpError, Operator};

/// Keeps the attributes it was read with; its output is what its inputs broadcast to.
#[derive(Debug)]
pub(super) struct Fake {
    pub(super) attrs: AttrMap,
    pub(super) opset: i64,
}

impl Operator for Fake {
    fn name(&self) -> &'static str {
        "Fake"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let mut shape = cx.shape(0)?.clone();
        for i in 1..cx.input_count() {
            shape = shape.broadcast(cx.shape(i)?)?;
        }
        Ok(vec![TensorInfo::new(cx.dtype(0)?, shape); cx.output_count()])
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        Err(OpError::unsupported("a fake"))
    }
}

const KNOWN: [&str; 9] =
    ["axis", "alpha", "then_branch", "else_branch", "body", "strides", "pads", "transB", "value"];

fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let mut kept = AttrMap::new();
    for name in KNOWN {
        if let Some(value) = attrs.value(name) {
            kept.insert(name.to_owned(), value.clone());
        }
    }
    attrs.float("alpha", 0.0)?;
    Ok(Arc::new(Fake { attrs: kept, opset }))
}

const fn row(name: &'static str, domain: &'static str, since: i64) -> OpDef {
    OpDef { name, domain, since, types: &[DType::F32], gpu: false, read }
}

static OPS: [OpDef; 12] = [
    row("Add", "", 1),
    row("Relu", "", 1),
    row("Exp", "", 1),
    row("Identity", "", 1),
    row("Conv", "", 1),
    row("Mul", "", 1),
    row("Sub", "", 1),
    row("If", "", 1),
    row("Loop", "", 1),
    row("Gelu", "", 20),
    row("Dropout", "", 1),
    row("FusedConv", "com.microsoft", 1),
];

/// [`crate::ops::find`] over the fakes.
pub(super) fn find(domain: &str, name: &str) -> Option<&'static OpDef> {
    OPS.iter().find(|d| d.name == name && d.domain == domain)
}

/// The attributes of a fake.
pub(super) fn fake(op: &Arc<dyn Operator>) -> &Fake {
    op.downcast_ref().unwrap()
}

/// The integer attribute `name` of a fake.
pub(super) fn int(op: &Arc<dyn Operator>, name: &str) -> i64 {
    match fake(op).attrs.get(name) {
        Some(AttrValue::Int(v)) => *v,
        other => panic!("{name}: {other:?}"),
    }
}
