//! Reductions over axes.

pub(crate) mod arg;
mod cumulative;
mod log_sum;
mod reduce_op;

pub use arg::{ArgReduce, Pick};
pub use cumulative::Cumulative;
pub use reduce_op::{Reduce, ReduceKind};

use super::{AttrReader, Family, OpDef, OpError, Operator};
use crate::dtype::DType;

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "reduce",
    ops: &[
        OpDef { types: ARG_TYPES, ..row("ArgMax", |a, _| arg::read(a, Pick::Largest)) },
        OpDef { types: ARG_TYPES, ..row("ArgMin", |a, _| arg::read(a, Pick::Smallest)) },
        OpDef { since: 26, types: DType::NUMBERS, ..row("CumProd", |a, _| cumulative::read(a, true)) },
        OpDef { since: 11, types: DType::NUMBERS, ..row("CumSum", |a, _| cumulative::read(a, false)) },
        row("ReduceL1", |a, o| reduce_op::read(a, o, ReduceKind::L1)),
        row("ReduceL2", |a, o| reduce_op::read(a, o, ReduceKind::L2)),
        row("ReduceLogSum", |a, o| reduce_op::read(a, o, ReduceKind::LogSum)),
        row("ReduceLogSumExp", |a, o| reduce_op::read(a, o, ReduceKind::LogSumExp)),
        row("ReduceMax", |a, o| reduce_op::read(a, o, ReduceKind::Max)),
        row("ReduceMean", |a, o| reduce_op::read(a, o, ReduceKind::Mean)),
        row("ReduceMin", |a, o| reduce_op::read(a, o, ReduceKind::Min)),
        row("ReduceProd", |a, o| reduce_op::read(a, o, ReduceKind::Prod)),
        row("ReduceSum", |a, o| reduce_op::read(a, o, ReduceKind::Sum)),
        row("ReduceSumSquare", |a, o| reduce_op::read(a, o, ReduceKind::SumSquare)),
    ],
};

type Reader = fn(&mut AttrReader<'_>, i64) -> Result<std::sync::Arc<dyn Operator>, OpError>;

const TYPES: &[DType] = &[
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::I64,
    DType::U32,
    DType::U64,
    DType::I8,
    DType::U8,
    DType::Bool,
];

const ARG_TYPES: &[DType] = &[
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::I64,
    DType::U32,
    DType::U64,
    DType::I16,
    DType::U16,
    DType::I8,
    DType::U8,
    DType::Bool,
];

const fn row(name: &'static str, read: Reader) -> OpDef {
    OpDef { name, domain: "", since: 1, types: TYPES, gpu: true, read }
}
