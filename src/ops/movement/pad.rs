//! Pad: elements before and after each axis, or fewer where pads are negative.

use std::sync::Arc;

use super::moves;
use super::region::{self, Block, Piece, Source, signed_strides};
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operator, ZeroFill};
use crate::shape::{Shape, ShapeError, normalize_axis};

/// The values of the new elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PadMode {
    /// One value.
    #[default]
    Constant,
    /// The input mirrored at its edge, the edge itself not repeated.
    Reflect,
    /// The edge repeated.
    Edge,
    /// The input repeated.
    Wrap,
}

/// Pads its input. Pads are an attribute before opset 11 and input 1 from then on.
#[derive(Clone, Debug, Default)]
pub struct Pad {
    /// The values of the new elements.
    pub mode: PadMode,
    /// Begins then ends, and the value, where they are attributes.
    pub fixed: Option<(Vec<i64>, f32)>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let words = [
        ("constant", PadMode::Constant),
        ("reflect", PadMode::Reflect),
        ("edge", PadMode::Edge),
        ("wrap", PadMode::Wrap),
    ];
    let mode = attrs.choice("mode", PadMode::Constant, &words)?;
    if opset >= 11 {
        return Ok(Arc::new(Pad { mode, fixed: None }));
    }
    let name = if opset < 2 { "paddings" } else { "pads" };
    let pads = attrs.ints_opt(name)?.ok_or_else(|| attrs.error(name, "is missing"))?;
    Ok(Arc::new(Pad { mode, fixed: Some((pads, attrs.float("value", 0.0)?)) }))
}

/// A run of one axis: `len` outputs from `to` on read inputs from `from` on, each `step` further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    to: usize,
    from: usize,
    step: isize,
    len: usize,
}

impl Run {
    /// The input position of its last output.
    fn end(&self) -> isize {
        self.from as isize + (self.len as isize - 1) * self.step
    }
}

/// The input position that output position `i`, which may lie outside `0..n`, repeats.
fn source(mode: PadMode, i: i64, n: i64) -> i64 {
    match mode {
        PadMode::Constant | PadMode::Edge => i.clamp(0, n - 1),
        PadMode::Wrap => i.rem_euclid(n),
        PadMode::Reflect if n == 1 => 0,
        PadMode::Reflect => {
            let period = 2 * (n - 1);
            let k = i.rem_euclid(period);
            if k < n { k } else { period - k }
        }
    }
}

/// The most elements a mirrored or repeated axis may gain: each is placed separately.
const MAX_REPEATED: i64 = 1 << 24;

/// The most blocks that an input is moved in.
const MAX_BLOCKS: i64 = 1 << 14;

/// No fewer than the runs of an axis of `n` elements that gains `gained`.
fn most_runs(mode: PadMode, n: i64, gained: i64) -> i64 {
    match mode {
        PadMode::Wrap if n > 1 => gained / n + 3,
        PadMode::Reflect if n > 1 => gained / (n - 1) + 3,
        _ => 3,
    }
}

/// The runs of an axis of `n` elements padded by `begin` and to `out` elements.
fn runs(mode: PadMode, n: usize, begin: i64, out: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    // Only the elements left by negative pads are repeated.
    let cut = begin.saturating_neg().max(0);
    let lost = (n as i64).saturating_add(begin).saturating_sub(out as i64).max(0);
    let left = (n as i64).saturating_sub(cut).saturating_sub(lost);
    if mode == PadMode::Wrap && left < n as i64 && left > 0 {
        let mut runs = self::runs(mode, left as usize, begin.max(0), out);
        runs.iter_mut().for_each(|run| run.from += cut as usize);
        return runs;
    }
    if mode == PadMode::Constant {
        let to = begin.clamp(0, out as i64) as usize;
        let from = begin.saturating_neg().clamp(0, n as i64) as usize;
        let len = (n - from).min(out - to);
        runs.extend((len > 0).then_some(Run { to, from, step: 1, len }));
        return runs;
    }
    let mut to = 0;
    while to < out {
        let i = to as i64 - begin;
        let from = source(mode, i, n as i64) as usize;
        // The input itself in one step, what is outside of it by single elements.
        let len = if (0..n as i64).contains(&i) { (n - from).min(out - to) } else { 1 };
        let last = runs.last_mut().filter(|last| {
            let step = from as isize - last.end();
            let own = if last.len == 1 { -1..=1 } else { last.step..=last.step };
            own.contains(&step) && (len == 1 || step == 1)
        });
        if let Some(last) = last {
            last.step = from as isize - last.end();
            last.len += len;
        } else {
            runs.push(Run { to, from, step: 1, len });
        }
        to += len;
    }
    runs
}

impl Pad {
    /// Elements added before and after each axis.
    fn pads(&self, cx: &OpCx) -> Result<Vec<(i64, i64)>, OpError> {
        let rank = cx.shape(0)?.rank();
        let (pads, axes) = match &self.fixed {
            Some((pads, _)) => (pads.clone(), None),
            None => (cx.need_i64s(1)?, cx.need_i64s_opt(3)?),
        };
        let axes: Vec<usize> = match axes {
            Some(axes) => axes.iter().map(|&a| normalize_axis(a, rank)).collect::<Result<_, _>>()?,
            None => (0..rank).collect(),
        };
        if pads.len() != 2 * axes.len() {
            let problem = format!("{} pads for {} axes, expected two for each", pads.len(), axes.len());
            return Err(OpError::Value { input: 1, problem });
        }
        let mut out = vec![(0, 0); rank];
        for (k, a) in axes.iter().enumerate() {
            out[*a] = (pads[k], pads[k + axes.len()]);
        }
        Ok(out)
    }

    fn value(&self, cx: &OpCx) -> Result<Tensor, OpError> {
        let dtype = cx.dtype(0)?;
        let bytes = match (&self.fixed, cx.value(2)) {
            (Some((_, value)), _) => match dtype {
                DType::F32 => value.to_le_bytes().to_vec(),
                DType::F64 => f64::from(*value).to_le_bytes().to_vec(),
                DType::F16 => half::f16::from_f32(*value).to_le_bytes().to_vec(),
                DType::I8 => vec![*value as i8 as u8],
                DType::U8 => vec![*value as u8],
                _ => vec![0; dtype.bytes()],
            },
            (None, Some(t)) => {
                cx.expect_dtype(2, dtype)?;
                t.bytes().get(..dtype.bytes()).map_or_else(|| vec![0; dtype.bytes()], <[u8]>::to_vec)
            }
            (None, None) if cx.has(2) => return Err(OpError::NeedsValue { input: 2 }),
            (None, None) => vec![0; dtype.bytes()],
        };
        Ok(Tensor::from_bytes(TensorInfo::new(dtype, Shape::scalar()), &bytes)?)
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let (x, y) = (cx.shape(0)?, &cx.output(0)?.shape);
        let pads = self.pads(cx)?;
        let (own, out) = (signed_strides(x), signed_strides(y));
        let mut pieces = Vec::new();
        if self.mode == PadMode::Constant && pads.iter().any(|&(b, e)| b > 0 || e > 0) {
            pieces.extend(region::fill(self.value(cx)?, 0, y));
        }
        let per_axis: Vec<Vec<Run>> = (0..x.rank()).map(|d| runs(self.mode, x[d], pads[d].0, y[d])).collect();
        let mut blocks = vec![Block::default()];
        for (d, runs) in per_axis.iter().enumerate() {
            let extend = |block: &Block, run: &Run| {
                let mut block = block.clone();
                block.dims.push(run.len);
                block.src_strides.push(run.step * own[d]);
                block.dst_strides.push(out[d]);
                block.src_offset += run.from * own[d].unsigned_abs();
                block.dst_offset += run.to * out[d].unsigned_abs();
                block
            };
            blocks = blocks.iter().flat_map(|b| runs.iter().map(move |r| extend(b, r))).collect();
        }
        pieces.extend(blocks.into_iter().filter_map(|b| b.piece(Source::Input(0), 0)));
        Ok(pieces)
    }
}

impl Operator for Pad {
    fn name(&self) -> &'static str {
        "Pad"
    }

    fn zero_fill(&self, zero: i32) -> ZeroFill {
        match &self.fixed {
            _ if self.mode != PadMode::Constant => ZeroFill::None,
            Some((pads, _)) => {
                ZeroFill::By(Arc::new(Pad { mode: self.mode, fixed: Some((pads.clone(), zero as f32)) }))
            }
            None => ZeroFill::Input(2),
        }
    }

    fn quantized_move(&self, cx: &OpCx) -> bool {
        // Only 0 has a byte for certain.
        let zero = |t: &Tensor| t.shape().rank() <= 1 && matches!(t.as_slice::<f32>(), Ok([v]) if *v == 0.0);
        self.mode != PadMode::Constant
            || match &self.fixed {
                Some((_, value)) => *value == 0.0,
                None => cx.input_opt(2).is_none() || cx.value(2).is_some_and(zero),
            }
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1, 2, 3]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=4, 1..=1)?;
        let x = cx.input(0)?;
        self.value(cx)?;
        let mut dims = Vec::with_capacity(x.shape.rank());
        let mut blocks = 1i64;
        for (d, (begin, end)) in self.pads(cx)?.into_iter().enumerate() {
            let overflow = || ShapeError::Overflow { shape: x.shape.to_string() };
            let n = i64::try_from(x.shape[d]).map_err(|_| overflow())?;
            let size = n.checked_add(begin).and_then(|s| s.checked_add(end)).ok_or_else(overflow)?;
            let size = usize::try_from(size).map_err(|_| ShapeError::Size { index: d, size })?;
            if n == 0 && size > 0 && self.mode != PadMode::Constant {
                return Err(cx.shape_error(0, "elements to repeat along every padded axis"));
            }
            let gained = begin.max(0).saturating_add(end.max(0));
            if gained > 0 {
                blocks = blocks.saturating_mul(most_runs(self.mode, n, gained));
            }
            if self.mode != PadMode::Constant && (gained > MAX_REPEATED || blocks > MAX_BLOCKS) {
                return Err(OpError::unsupported(format!("an axis padded to {size} by {:?}", self.mode)));
            }
            dims.push(size);
        }
        Ok(vec![TensorInfo::new(x.dtype, Shape::new(dims)?)])
    }

    moves!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_util::{facts, tensor};

    #[test]
    fn an_axis_becomes_few_runs() {
        let r = runs(PadMode::Reflect, 4, 2, 8);
        let shown: Vec<i64> = (0..8).map(|i| source(PadMode::Reflect, i - 2, 4)).collect();
        assert_eq!(shown, [2, 1, 0, 1, 2, 3, 2, 1]);
        assert_eq!(r.iter().map(|r| r.len).sum::<usize>(), 8);
        assert_eq!(r.len(), 3);
        assert_eq!(runs(PadMode::Edge, 3, 2, 7).len(), 3);
        assert_eq!(runs(PadMode::Constant, 3, -1, 1), [Run { to: 0, from: 1, step: 1, len: 1 }]);
        assert_eq!(runs(PadMode::Wrap, 2, 4, 7).len(), 4);
        // Elements that negative pads remove are not repeated.
        let from: Vec<usize> =
            runs(PadMode::Wrap, 4, -1, 5).iter().flat_map(|r| r.from..r.from + r.len).collect();
        assert_eq!(from, [1, 2, 3, 1, 2]);
        // However long the input is.
        let n = 1 << 40;
        let shown: Vec<[usize; 2]> =
            runs(PadMode::Reflect, n, 2, n + 4).iter().map(|r| [r.to, r.len]).collect();
        assert_eq!(shown, [[0, 2], [2, n], [n + 2, 2]]);
        assert_eq!(runs(PadMode::Constant, 3, i64::MIN, 2), []);
    }

    #[test]
    fn few_elements_repeated_often_are_refused() {
        let infers = |mode, pads: &[i64]| {
            let op = Pad { mode, fixed: None };
            let inputs = [Some(tensor(&[2, 2], 1)), Some(Tensor::from_i64s(pads))];
            facts(&op, &inputs, 1).is_ok()
        };
        for mode in [PadMode::Wrap, PadMode::Reflect] {
            assert!(infers(mode, &[20, 20, 20, 20]));
            assert!(!infers(mode, &[2000, 2000, 2000, 2000]));
            assert!(!infers(mode, &[1 << 20, 0, 0, 0]));
        }
        assert!(infers(PadMode::Edge, &[2000, 2000, 2000, 2000]));
    }
}
