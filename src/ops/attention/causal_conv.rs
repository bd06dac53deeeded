//! CausalConvWithState: a depthwise convolution along a sequence that continues from a state.

use std::sync::Arc;

use super::{FLOATS_TO_32, count};
use crate::expr::Function;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::movement::region::{self, Block, Piece, Source};
use crate::ops::real::{Real, RealIo, RealKernel, check_len, real_kernel};
use crate::ops::word::word;
use crate::ops::{Activation, AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;

// Positions of the inputs.
const X: usize = 0;
const W: usize = 1;
const BIAS: usize = 2;
const PAST: usize = 3;

/// Inputs: X of `[batch, channels, length]`, weights of `[channels, 1, taps]`, optionally a bias and the state
/// of `[batch, channels, (taps - 1) * dilation]`; outputs: the result and the state after it.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv {
    /// Applied to the result.
    pub activation: Activation,
    /// Positions from one tap to the next.
    pub dilation: usize,
}

impl Default for CausalConv {
    fn default() -> Self {
        CausalConv { activation: Activation::None, dilation: 1 }
    }
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(CausalConv { activation: activation(attrs)?, dilation: 1 }))
}

/// com.microsoft's CausalConvWithState of one spatial dimension, channels first: as ONNX's, with a dilation.
pub(super) fn read_contrib(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let plain = [
        ("ndim", 1),
        ("state_window", 0),
        ("state_update_capacity", 0),
        ("state_channels_last", -1),
        ("state_length", 0),
        ("input_channel_offset", 0),
        ("input_channels", 0),
        ("channels_last", 0),
    ];
    for (name, value) in plain {
        let found = attrs.int(name, value)?;
        if found != value {
            return Err(OpError::unsupported(format!("CausalConvWithState with {name} {found}")));
        }
    }
    let dilation = if attrs.int_opt("dilation")?.is_some() { count(attrs, "dilation", 1)? } else { 1 };
    Ok(Arc::new(CausalConv { activation: activation(attrs)?, dilation }))
}

fn activation(attrs: &mut AttrReader<'_>) -> Result<Activation, OpError> {
    let silu = Activation::of(Function::Swish);
    let words = [("none", Activation::None), ("silu", silu), ("swish", silu)];
    Ok(attrs.choice("activation", Activation::None, &words)?)
}

/// Batch, channels, length and taps.
fn sizes(cx: &OpCx) -> Result<[usize; 4], OpError> {
    let &[batch, channels, len] = cx.shape(X)?.dims() else {
        return Err(cx.shape_error(X, "[batch, channels, length]"));
    };
    let taps = match cx.shape(W)?.dims() {
        &[c, 1, taps] if c == channels && taps > 0 => taps,
        _ => return Err(cx.shape_error(W, format!("[{channels}, 1, taps]"))),
    };
    Ok([batch, channels, len, taps])
}

impl CausalConv {
    /// Positions of the state.
    fn keep(&self, taps: usize) -> usize {
        (taps - 1).saturating_mul(self.dilation)
    }

    /// The pieces that write the state: the last positions of the old state followed by X.
    fn state(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let [batch, channels, len, taps] = sizes(cx)?;
        let (rows, keep) = (batch * channels, self.keep(taps));
        let fresh = len.min(keep);
        let old = keep - fresh;
        let mut pieces = Vec::new();
        let block = |n: usize, src: usize, src_offset: usize, dst_offset: usize| Block {
            dims: vec![rows, n],
            src_strides: vec![src as isize, 1],
            dst_strides: vec![keep as isize, 1],
            src_offset,
            dst_offset,
        };
        if cx.has(PAST) {
            pieces.extend(block(old, keep, fresh, 0).piece(Source::Input(PAST), 1));
        } else if old > 0 {
            let info = cx.output(1)?;
            let zero = TensorInfo::new(info.dtype, Shape::scalar());
            let zero = Tensor::from_bytes(zero, &vec![0; info.dtype.bytes()])?;
            pieces.extend(region::fill(zero, 1, &info.shape));
        }
        pieces.extend(block(fresh, len, len - fresh, old).piece(Source::Input(X), 1));
        Ok(pieces)
    }
}

impl Operator for CausalConv {
    fn name(&self) -> &'static str {
        "CausalConvWithState"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=4, 1..=2)?;
        let dtype = cx.dtype_of(X, FLOATS_TO_32)?;
        let [batch, channels, _, taps] = sizes(cx)?;
        let state = Shape::new([batch, channels, self.keep(taps)])?;
        cx.expect_dtype(W, dtype)?;
        if cx.has(BIAS) {
            cx.expect_dtype(BIAS, dtype)?;
            if cx.shape(BIAS)?.dims() != [channels] {
                return Err(cx.shape_error(BIAS, format!("[{channels}]")));
            }
        }
        if cx.has(PAST) {
            cx.expect_dtype(PAST, dtype)?;
            if cx.shape(PAST)? != &state {
                return Err(cx.shape_error(PAST, state.to_string()));
            }
        }
        Ok(vec![TensorInfo::new(dtype, cx.shape(X)?.clone()), TensorInfo::new(dtype, state)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let flops = sizes(cx).map_or(0, |[b, c, l, k]| Cost::product(&[2, b, c, l, k]));
        Cost { flops, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel("CausalConvWithState", cx, Run { sizes: sizes(cx)?, op: *self })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let [batch, channels, len, taps] = sizes(cx)?;
        let kernel = variants::CausalConv { t: cx.dtype(X)? }.id()?;
        let n = batch * channels * len;
        let pick = |i: usize| if cx.has(i) { Operand::Input(i) } else { Operand::Unused };
        let (code, [act_a, act_b]) = self.activation.code();
        let spec = [
            (spec::causal_conv::BIASED, u32::from(cx.has(BIAS))),
            (spec::causal_conv::PAST, u32::from(cx.has(PAST))),
            (spec::causal_conv::ACTIVATION, code),
        ];
        let params = params::CausalConv {
            n: word(n)?,
            channels: word(channels)?,
            len: word(len)?,
            taps: word(taps)?,
            dilation: word(self.dilation)?,
            act_a,
            act_b,
        };
        if n > 0 {
            let args = [Operand::Input(X), Operand::Input(W), pick(BIAS), pick(PAST), Operand::Output(0)];
            lower.dispatch_1d(kernel, &spec, &args, &params, n)?;
        }
        region::gpu(lower, cx, &self.state(cx)?)
    }

    fn with_activation(&self, activation: &Activation) -> Option<Arc<dyn Operator>> {
        let activation = self.activation.then(activation)?;
        Some(Arc::new(CausalConv { activation, ..*self }) as Arc<dyn Operator>)
    }
}

struct Run {
    sizes: [usize; 4],
    op: CausalConv,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let [batch, channels, len, taps] = self.sizes;
        let (rows, keep) = (batch * channels, self.op.keep(taps));
        let (outputs, inputs) = io.outputs();
        let [Some(y), Some(state)] = outputs else { return Err(KernelError::Absent { index: 4 }) };
        let (x, w) = (inputs.get(X, rows * len)?, inputs.get(W, channels * taps)?);
        let (bias, past) = (inputs.get_opt(BIAS, channels)?, inputs.get_opt(PAST, rows * keep)?);
        check_len(4, y.len(), rows * len)?;
        check_len(5, state.len(), rows * keep)?;
        // The state and X of a row as one sequence.
        let sequence = |r: usize, all: &mut Vec<T>| {
            all.clear();
            match past {
                Some(past) => all.extend_from_slice(&past[r * keep..][..keep]),
                None => all.resize(keep, T::ZERO),
            }
            all.extend_from_slice(&x[r * len..][..len]);
        };
        par::groups(y, len, rows * (keep + len * (taps + 1)), |first, y| {
            let mut all = Vec::new();
            for (r, y) in (first..).zip(y.chunks_mut(len)) {
                sequence(r, &mut all);
                let c = r % channels;
                y.fill(bias.map_or(T::ZERO, |b| b[c]));
                for (k, w) in w[c * taps..][..taps].iter().enumerate() {
                    y.iter_mut().zip(&all[k * self.op.dilation..]).for_each(|(y, x)| *y += *w * *x);
                }
                self.op.activation.apply(y);
            }
        });
        par::groups(state, keep, rows * (keep + len), |first, state| {
            let mut all = Vec::new();
            for (r, state) in (first..).zip(state.chunks_mut(keep)) {
                sequence(r, &mut all);
                state.copy_from_slice(&all[len..]);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_util::{assert_near, facts, run_cpu, tensor};

    #[test]
    fn the_sequence_continues_from_the_state() {
        for (len, taps, past, biased, dilation) in [
            (7, 4, true, true, 1),
            (7, 4, false, false, 1),
            (2, 5, true, false, 1),
            (2, 5, false, true, 1),
            (3, 1, true, true, 1),
            (1, 2, true, false, 1),
            (7, 3, true, true, 2),
            (2, 4, true, false, 3),
            (5, 3, false, true, 4),
        ] {
            let keep = (taps - 1) * dilation;
            let op = CausalConv {
                activation: if biased { Activation::of(Function::Swish) } else { Activation::None },
                dilation,
            };
            let inputs = [
                Some(tensor(&[2, 3, len], 1)),
                Some(tensor(&[3, 1, taps], 2)),
                biased.then(|| tensor(&[3], 3)),
                past.then(|| tensor(&[2, 3, keep], 4)),
            ];
            let wide = |i: usize| -> Vec<f64> {
                inputs[i]
                    .as_ref()
                    .map_or(vec![0.0; 99], |t| t.to_f32s().unwrap().into_iter().map(f64::from).collect())
            };
            let (x, w, b, p) = (wide(0), wide(1), wide(2), wide(3));
            let (mut y, mut state) = (Vec::new(), Vec::new());
            for r in 0..6 {
                let mut all = p[r * keep..][..keep].to_vec();
                all.extend(&x[r * len..][..len]);
                for i in 0..len {
                    let sum: f64 =
                        (0..taps).map(|k| all[i + k * dilation] * w[r % 3 * taps + k]).sum::<f64>()
                            + b[r % 3];
                    y.push(if biased { sum / (1.0 + (-sum).exp()) } else { sum });
                }
                state.extend(&all[len..]);
            }
            let got = run_cpu(&op, &inputs, 2).unwrap();
            assert_near(&got[0], &y, 1e-6);
            assert_near(&got[1], &state, 1e-6);
            #[cfg(feature = "vulkan")]
            crate::ops::testing::Check::new(&op, &inputs).outputs(2).tolerance(1e-5).run();
        }
        let shapes = |w: &[usize], state: &[usize]| {
            let inputs = [Some(tensor(&[2, 3, 4], 1)), Some(tensor(w, 2)), None, Some(tensor(state, 3))];
            facts(&CausalConv::default(), &inputs, 2).is_ok()
        };
        assert!(shapes(&[3, 1, 3], &[2, 3, 2]));
        assert!(!shapes(&[2, 1, 3], &[2, 3, 2]));
        assert!(!shapes(&[3, 1, 0], &[2, 3, 2]));
        assert!(!shapes(&[3, 1, 3], &[2, 3, 3]));
    }
}
