//! A function of each byte, by what it makes of all 256.

use super::BYTES;
use crate::graph::TensorInfo;
use crate::kernel::table::{id, params};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::real::check_len;
use crate::ops::word::word;
use crate::ops::{Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;

/// Number of bytes.
pub(super) const ENTRIES: usize = 256;

/// Bytes (input 0) as what a table (input 1, 256 bytes) has at their place; a negative `int8` has that of its bits.
///
/// It stands for functions of single elements between DequantizeLinear and QuantizeLinear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteTable {
    /// The least rank of the output: sizes of 1 come in front, as a constant of that rank would broadcast.
    pub rank: usize,
}

impl Operator for ByteTable {
    fn name(&self) -> &'static str {
        "ByteTable"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        cx.dtype_of(0, BYTES)?;
        let to = cx.dtype_of(1, BYTES)?;
        if cx.input(1)?.elements() != ENTRIES {
            return Err(cx.shape_error(1, format!("{ENTRIES} elements")));
        }
        let x = cx.shape(0)?;
        let ones = self.rank.saturating_sub(x.rank());
        let dims: Vec<usize> = std::iter::repeat_n(1, ones).chain(x.iter().copied()).collect();
        Ok(vec![TensorInfo::new(to, Shape::new(dims)?)])
    }

    fn in_place(&self, _: &OpCx) -> Option<usize> {
        Some(0)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let len = cx.input(0)?.elements();
        Ok(NativeKernel::new(self.name(), move |args| run(args, len)))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let len = cx.input(0)?.elements();
        let n = word(len)?;
        let args = [Operand::Input(0), Operand::Input(1), Operand::Output(0)];
        lower.dispatch_1d(id::BYTE_TABLE_B8, &[], &args, &params::ByteTable { n }, len)
    }
}

fn run(args: &mut NativeArgs<'_, '_>, len: usize) -> Result<(), KernelError> {
    let (x, table) = (args.read::<u8>(0)?, args.read::<u8>(1)?);
    check_len(0, x.len(), len)?;
    let Some(table) = table.first_chunk::<ENTRIES>() else { return check_len(1, table.len(), ENTRIES) };
    let y = args.take_write::<u8>(2)?;
    check_len(2, y.len(), len)?;
    par::parts(y, |start, part| {
        let x = x.get(start..).unwrap_or(&[]);
        part.iter_mut().zip(x).for_each(|(y, x)| *y = table[usize::from(*x)]);
    });
    Ok(())
}
