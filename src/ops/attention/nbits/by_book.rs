//! Products with weights whose codes stand for numbers of a book: com.microsoft's MatMulBnb4, and what the loader makes of
//! MatMulBlockQuantizedFp4Weight and MatMulBlockQuantizedFp8Weight.

use std::sync::Arc;

use super::{A, B, Codes, MatMulNBits, SCALES};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::attention::{CODES, count};
use crate::ops::window::bad;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, Structure};

/// A [`MatMulNBits`] without zero points, whose sizes may be those of its weights, `[n, bytes]`.
#[derive(Clone, Copy, Debug)]
pub struct CodedMatMul {
    /// The numbers that codes stand for.
    pub codes: Codes,
    /// Codes that share a scale.
    pub block: usize,
    /// Columns of the result and of A, where they are given.
    pub sizes: Option<[usize; 2]>,
}

/// The attributes of MatMulNBits that a loader writes.
pub(super) fn read(attrs: &mut AttrReader<'_>) -> Result<Option<Arc<dyn Operator>>, OpError> {
    let all = [("", Codes::Whole), ("e2m1", Codes::E2m1), ("e4m3", Codes::E4m3)];
    let codes = attrs.choice(CODES, Codes::Whole, &all)?;
    if codes == Codes::Whole {
        return Ok(None);
    }
    let block = count(attrs, "block_size", 1)?;
    Ok(Some(Arc::new(CodedMatMul { codes, block, sizes: None })))
}

pub(in crate::ops::attention) fn read_bnb4(
    attrs: &mut AttrReader<'_>,
    _opset: i64,
) -> Result<Arc<dyn Operator>, OpError> {
    let codes = match attrs.int_opt("quant_type")? {
        Some(0) => Codes::Fp4,
        Some(1) => Codes::Nf4,
        Some(n) => return Err(bad("quant_type", format!("is {n}, expected 0 (FP4) or 1 (NF4)"))),
        None => return Err(bad("quant_type", "is missing".to_owned())),
    };
    // What training keeps for its other direction does not change the result.
    attrs.int_opt("training_mode")?;
    if !attrs.flag("transB", true)? {
        return Err(OpError::unsupported("MatMulBnb4 of weights that are not transposed"));
    }
    let (block, n, k) = (count(attrs, "block_size", 16)?, count(attrs, "N", 1)?, count(attrs, "K", 1)?);
    if !block.is_power_of_two() {
        return Err(bad("block_size", format!("is {block}, expected a power of two")));
    }
    if !k.is_multiple_of(block) {
        return Err(OpError::unsupported(format!(
            "MatMulBnb4 of {k} rows, which are no whole blocks of {block}"
        )));
    }
    Ok(Arc::new(CodedMatMul { codes, block, sizes: Some([n, k]) }))
}

impl CodedMatMul {
    fn product(&self, cx: &OpCx) -> Result<MatMulNBits, OpError> {
        let bits = self.codes.bits();
        let [n, k] = match (self.sizes, cx.shape(B)?.dims()) {
            (Some(sizes), _) => sizes,
            (None, &[n, bytes]) => [n, bytes * 8 / bits],
            _ => return Err(cx.shape_error(B, "[columns, bytes]")),
        };
        Ok(MatMulNBits { k, n, bits, block: self.block, rounds: false, codes: self.codes })
    }
}

impl Operator for CodedMatMul {
    fn name(&self) -> &'static str {
        match self.codes {
            Codes::Fp4 | Codes::Nf4 => "MatMulBnb4",
            _ => "MatMulNBits",
        }
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::CodedMatMul)
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let most = if self.sizes.is_some() { SCALES + 1 } else { super::BIAS + 1 };
        cx.expect_counts(SCALES + 1..=most, 1..=1)?;
        if cx.has(super::ZEROS) {
            return Err(OpError::unsupported("zero points of codes that stand for numbers"));
        }
        cx.input(A)?;
        self.product(cx)?.infer(cx)
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        self.product(cx).map_or_else(|_| Cost::default(), |p| p.cost(cx))
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        self.product(cx)?.cpu(cx)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        self.product(cx)?.gpu(cx, lower)
    }
}
