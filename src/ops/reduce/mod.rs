//! Reductions over axes.

mod accumulator;
pub(crate) mod arg;
mod cumulative;
mod log_sum;
mod reduce_op;

pub use arg::{ArgReduce, Pick};
pub use cumulative::Cumulative;
pub use reduce_op::{Reduce, ReduceKind};

use super::{Family, OpDef, ReadFn};
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

const TYPES: &[DType] = {
    use DType::*;
    &[F32, F64, F16, BF16, I32, I64, U32, U64, I8, U8, Bool]
};

const ARG_TYPES: &[DType] = {
    use DType::*;
    &[F32, F64, F16, BF16, I32, I64, U32, U64, I16, U16, I8, U8, Bool]
};

const fn row(name: &'static str, read: ReadFn) -> OpDef {
    OpDef { name, domain: "", since: 1, types: TYPES, gpu: true, read }
}
