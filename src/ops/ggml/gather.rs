//! Rows of ggml's blocks as the numbers that they stand for.

use super::FAMILY;
use super::blocks::Rows;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::index::positions::{INDEX_TYPES, index_words, mapped, position};
use crate::ops::real::check_len;
use crate::ops::word::word;
use crate::ops::{Cost, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;

// Positions of the arguments.
const INDICES: usize = 0;
const B: usize = 1;
const Y: usize = 2;

/// Inputs: indices of rows, and rows of blocks in bytes ([`Rows::info`]). The rows as `float32`.
#[derive(Clone, Copy, Debug)]
pub struct GatherBlocks {
    /// The rows of blocks.
    pub b: Rows,
}

impl GatherBlocks {
    fn resolve(&self, cx: &OpCx) -> Result<Shape, OpError> {
        self.b.check(cx.input(B)?)?;
        let mut dims = cx.shape(INDICES)?.to_vec();
        dims.push(self.b.k);
        Ok(Shape::new(dims)?)
    }
}

impl Operator for GatherBlocks {
    fn name(&self) -> &'static str {
        "GatherBlocks"
    }

    fn family(&self) -> Option<&'static str> {
        Some(FAMILY)
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        cx.dtype_of(INDICES, INDEX_TYPES)?;
        cx.expect_dtype(B, DType::U8)?;
        Ok(vec![TensorInfo::new(DType::F32, self.resolve(cx)?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let elements = cx.outputs().iter().map(TensorInfo::elements).sum::<usize>() as u64;
        Cost { flops: elements, bytes: elements.saturating_mul(5) }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (elements, indices, b) = (self.resolve(cx)?.elements(), cx.dtype(INDICES)?, self.b);
        let stored = cx.input(B)?.bytes();
        Ok(NativeKernel::new(self.name(), move |args| {
            let at = mapped(args, INDICES, indices, |i| position(i, b.rows))?;
            let bytes = args.read::<u8>(B)?;
            check_len(B, bytes.len(), stored)?;
            let y = args.take_write::<f32>(Y)?;
            check_len(Y, y.len(), elements)?;
            par::try_rows(y, b.k, elements, |i, to| {
                let Some(at) = at.get(i) else { return Ok(()) };
                let from = at * b.row_bytes();
                let row = bytes.get(from..from + b.row_bytes()).ok_or(KernelError::Absent { index: B })?;
                b.blocks.decode(row, to);
                Ok(())
            })
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let quads = self.resolve(cx)?.elements() / 4;
        let t = cx.output(0)?.dtype;
        word(4 * quads)?;
        word(cx.input(B)?.bytes())?;
        let spec = [
            (spec::blocks::TYPE, self.b.blocks as u32),
            (spec::block_rows::INDEX_WORDS, index_words(cx.dtype(INDICES)?)),
        ];
        let params = params::BlockRows {
            n: word(quads)?,
            k: word(self.b.k)?,
            rows: word(self.b.rows)?,
            row_bytes: word(self.b.row_bytes())?,
        };
        let args = [Operand::Input(INDICES), Operand::Input(B), Operand::Output(0)];
        lower.dispatch_1d(variants::BlockRows { t }.id()?, &spec, &args, &params, quads)
    }
}
