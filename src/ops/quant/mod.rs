//! Quantization: integers that stand for numbers by a scale and a zero point.

mod absorbed;
#[cfg(test)]
mod between_tests;
mod binary;
mod conv;
mod conv_cpu;
mod depthwise;
mod dequantize;
mod device;
mod device_product;
mod dynamic;
mod elements;
mod gather_block;
mod grain;
mod interleaved;
mod matmul;
#[cfg(test)]
mod numbers_tests;
mod product;
mod quantize;
mod scaling;
mod table;
#[cfg(test)]
mod tests;

pub use binary::QuantizedBinary;
pub use conv::QuantizedConv;
pub use dequantize::DequantizeLinear;
pub use dynamic::DynamicQuantizeLinear;
pub use gather_block::GatherBlockQuantized;
pub use matmul::QuantizedMatMul;
pub use product::SumsBecome;
pub use quantize::QuantizeLinear;
pub use scaling::Scaling;
pub use table::ByteTable;

use std::sync::Arc;

use super::{Family, contrib, row};
use crate::dtype::DType;

/// Types of bytes that are multiplied.
const BYTES: &[DType] = &[DType::I8, DType::U8];

/// Types that are dequantized: sums of integers, and what is quantized to.
const DEQUANTIZED: &[DType] = {
    use DType::*;
    &[I32, I8, U8, I16, U16, F8E4M3Fn, F8E4M3FnUz, F8E5M2, F8E5M2FnUz, F4E2M1, I4, U4, I2, U2]
};

/// Types that numbers are quantized to.
const QUANTIZED: &[DType] = DEQUANTIZED.split_at(1).1;

/// Types of the numbers.
const NUMBERS: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// Types of what is quantized.
const QUANTIZABLE: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::I32];

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "quant",
    ops: &[
        row("ConvInteger", 10, BYTES, conv::read_integer),
        row("DequantizeLinear", 10, DEQUANTIZED, dequantize::read),
        contrib("DequantizeLinear", DEQUANTIZED, dequantize::read),
        row("DynamicQuantizeLinear", 11, &[DType::F32], |_, _| Ok(Arc::new(DynamicQuantizeLinear))),
        contrib("GatherBlockQuantized", gather_block::CODES, gather_block::read),
        row("MatMulInteger", 10, BYTES, |_, _| Ok(Arc::new(QuantizedMatMul::default()))),
        row("QLinearConv", 10, BYTES, conv::read_linear),
        row("QLinearMatMul", 10, BYTES, matmul::read_linear),
        row("QuantizeLinear", 10, QUANTIZABLE, quantize::read),
        contrib("QuantizeLinear", QUANTIZABLE, quantize::read),
    ],
};
