//! Pools and resampling.

mod device;
mod global;
mod image;
mod pool_op;
mod resample;
mod resize;
mod resize_device;
mod rows;
mod table;
mod unpool;

pub use global::GlobalPool;
pub use pool_op::{Pool, PoolKind};
pub use resize::{
    AspectPolicy, CoordinateMode, Interpolation, NearestMode, Resize, ResizeDesc, ResizeInputs,
};
pub use unpool::MaxUnpool;

use super::real::FLOATS;
use super::{Family, OpDef};
use crate::dtype::DType;

/// Element types of MaxPool.
const MAX_TYPES: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F64, DType::I8, DType::U8];

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "pool",
    ops: &[
        OpDef { name: "AveragePool", domain: "", since: 1, types: FLOATS, gpu: true, read: pool_op::average },
        OpDef {
            name: "GlobalAveragePool",
            domain: "",
            since: 1,
            types: FLOATS,
            gpu: true,
            read: global::average,
        },
        OpDef { name: "GlobalLpPool", domain: "", since: 1, types: FLOATS, gpu: true, read: global::lp },
        OpDef { name: "GlobalMaxPool", domain: "", since: 1, types: FLOATS, gpu: true, read: global::max },
        OpDef { name: "LpPool", domain: "", since: 1, types: FLOATS, gpu: true, read: pool_op::lp },
        OpDef { name: "MaxPool", domain: "", since: 1, types: MAX_TYPES, gpu: true, read: pool_op::max },
        OpDef { name: "MaxUnpool", domain: "", since: 9, types: FLOATS, gpu: true, read: unpool::read },
        OpDef { name: "Resize", domain: "", since: 10, types: &DType::ALL, gpu: true, read: resize::read },
        OpDef {
            name: "Upsample",
            domain: "",
            since: 1,
            types: &DType::ALL,
            gpu: true,
            read: resize::upsample,
        },
    ],
};
