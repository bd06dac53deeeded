//! BitCast: the bits of the input under another type.

use std::sync::Arc;

use super::apply::{input, map, output};
use super::cast::{Code, NarrowRules};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, HalfRule, OpCx, OpError, Operator};

/// The bits of the input as elements of another type of as many bits. Bytes that become `bool` are 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitCast {
    /// The output's type.
    pub to: DType,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let to = attrs.dtype_opt("to")?.ok_or_else(|| attrs.error("to", "is missing"))?;
    Ok(Arc::new(BitCast { to }))
}

impl BitCast {
    /// Whether the bytes stay as they are: not those that hold less than 8 bits, nor those that become `bool`.
    fn same_bytes(&self, from: DType) -> bool {
        from == self.to || (self.to.bits() >= 8 && self.to != DType::Bool)
    }
}

impl Operator for BitCast {
    fn name(&self) -> &'static str {
        "BitCast"
    }

    fn half_rule(&self) -> HalfRule {
        HalfRule::Full
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let got = cx.dtype(0)?;
        if got.bits() != self.to.bits() {
            let expected = format!("a type of {} bits, as {} has", self.to.bits(), self.to);
            return Err(OpError::DType { input: 0, got, expected });
        }
        Ok(vec![TensorInfo::new(self.to, cx.shape(0)?.clone())])
    }

    fn alias(&self, cx: &OpCx) -> Option<usize> {
        self.same_bytes(cx.dtype(0).ok()?).then_some(0)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (from, to, bytes) = (cx.dtype(0)?, self.to, cx.output(0)?.bytes());
        let same = self.same_bytes(from);
        let code = match Code::of(to, NarrowRules::default()) {
            Some(Code::Float(..) | Code::Power(_)) => Some(Code::Unsigned(to.bits() as u32)),
            other => other,
        };
        Ok(NativeKernel::new("BitCast", move |args| {
            let x = input::<u8>(args, 0, bytes)?;
            let y = output::<u8>(args, 1, bytes)?;
            match code {
                _ if same => y.copy_from_slice(x),
                Some(code) => map(x, y, |v| code.byte(0.0, v.into())),
                None => map(x, y, |v| u8::from(v != 0)),
            }
            Ok(())
        }))
    }
}
