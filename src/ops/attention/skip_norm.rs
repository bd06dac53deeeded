//! com.microsoft's SkipLayerNormalization and SkipSimplifiedLayerNormalization: the sum of two operands and a
//! bias, normalized over its last axis.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::norm::{statistics, teams};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, check_len, real_kernel};
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator, Structure, par};
use crate::shape::Shape;
use crate::simd::wide;

/// Inputs: X, the other operand (which may lack or repeat the batch), scale, the summand of the result (with
/// the mean only), and a bias of the sum; outputs: the result, and as fourth the sum. The second and third,
/// for training, hold the mean and the inverse deviation of each row.
#[derive(Clone, Copy, Debug)]
pub struct SkipNorm {
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether the mean is subtracted.
    pub center: bool,
}

pub(super) fn read_layer(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(SkipNorm { epsilon: attrs.float("epsilon", 1e-12)?, center: true }))
}

pub(super) fn read_simplified(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(SkipNorm { epsilon: attrs.float("epsilon", 1e-12)?, center: false }))
}

/// A [`SkipNorm`] for given inputs.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    op: SkipNorm,
    rows: usize,
    len: usize,
    skips: usize,
}

impl SkipNorm {
    /// Positions of the result's summand, where there is one, and of the bias.
    fn places(&self) -> (Option<usize>, usize) {
        if self.center { (Some(3), 4) } else { (None, 3) }
    }

    fn resolve(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        let x = cx.shape(0)?;
        let Some((&len, outer)) = x.split_last() else {
            return Err(cx.shape_error(0, "at least one dimension"));
        };
        let skip = cx.shape(1)?.dims();
        let lead = skip.iter().take_while(|d| **d == 1).count();
        if !x.ends_with(&skip[lead..]) || skip.last() != Some(&len) || skip.len() > x.rank() {
            return Err(cx.shape_error(1, format!("the last axes of {x}")));
        }
        for i in (2..5).filter(|i| cx.has(*i)) {
            if cx.shape(i)?.dims() != [len] {
                return Err(cx.shape_error(i, format!("[{len}]")));
            }
        }
        let skips = skip[..skip.len() - 1].iter().product();
        Ok(Sizes { op: *self, rows: outer.iter().product(), len, skips })
    }
}

impl Operator for SkipNorm {
    fn name(&self) -> &'static str {
        if self.center { "SkipLayerNormalization" } else { "SkipSimplifiedLayerNormalization" }
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::SumNormalization { epsilon: self.epsilon, center: self.center })
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=self.places().1 + 1, 1..=4)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        for i in (1..5).filter(|i| cx.has(*i) || *i < 3) {
            cx.expect_dtype(i, dtype)?;
        }
        self.resolve(cx)?;
        let x = cx.input(0)?.clone();
        let mut stats = x.shape.to_vec();
        if let Some(last) = stats.last_mut() {
            *last = 1;
        }
        let stats = TensorInfo::new(DType::F32, Shape::new(stats)?);
        let all = [x.clone(), stats.clone(), stats, x];
        Ok(all.into_iter().take(cx.output_count()).collect())
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 10 * cx.input_opt(0).map_or(0, |i| i.elements() as u64), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel(self.name(), cx, self.resolve(cx)?)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { rows, len, skips, .. } = self.resolve(cx)?;
        word(rows * len)?;
        if rows * len == 0 {
            return Ok(());
        }
        let outputs = cx.outputs().len();
        let (shift, bias) = self.places();
        let pick = |i: Option<usize>| i.filter(|i| cx.has(*i)).map_or(Operand::Unused, Operand::Input);
        let shifted = u32::from(shift.is_some_and(|i| cx.has(i)));
        let out = |i: usize| if i < outputs { Operand::Output(i) } else { Operand::Unused };
        let args = [
            Operand::Input(0),
            Operand::Input(1),
            Operand::Input(2),
            pick(shift),
            pick(Some(bias)),
            out(0),
            out(3),
            out(1),
            out(2),
        ];
        let t = cx.dtype(0)?;
        let stats = outputs.saturating_sub(1).min(2) as u32;
        if let Some([team, local, groups]) = teams(lower, len, rows) {
            let spec = [
                (spec::skip_norm_wide::LOCAL_SIZE_X, local as u32),
                (spec::skip_norm_wide::CENTER, u32::from(self.center)),
                (spec::skip_norm_wide::SHIFTED, shifted),
                (spec::skip_norm_wide::BIASED, u32::from(cx.has(bias))),
                (spec::skip_norm_wide::SUM, u32::from(outputs > 3)),
                (spec::skip_norm_wide::STATS, stats),
                (spec::skip_norm_wide::TEAM, team as u32),
            ];
            let (rows, quads, skips) = (word(rows)?, word(len / 4)?, word(skips)?);
            let params = params::SkipNormWide { rows, quads, skips, epsilon: self.epsilon };
            return lower.dispatch_rows(
                variants::SkipNormWide { t }.id()?,
                &spec,
                &args,
                &params,
                groups,
                true,
            );
        }
        let grouped = lower.grouped(len);
        let kernel = variants::SkipNorm { t, grouped }.id()?;
        let spec = [
            (spec::skip_norm::CENTER, u32::from(self.center)),
            (spec::skip_norm::SHIFTED, shifted),
            (spec::skip_norm::BIASED, u32::from(cx.has(bias))),
            (spec::skip_norm::SUM, u32::from(outputs > 3)),
            (spec::skip_norm::STATS, stats),
        ];
        let params = params::SkipNorm {
            rows: word(rows)?,
            len: word(len)?,
            skips: word(skips)?,
            epsilon: self.epsilon,
        };
        lower.dispatch_rows(kernel, &spec, &args, &params, rows, grouped)
    }
}

impl RealKernel for Sizes {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let Sizes { op, rows, len, skips } = *self;
        let (outputs, inputs) = io.outputs();
        let [Some(y), means, inverses, sums] = outputs else { return Err(KernelError::Absent { index: 5 }) };
        let (x, skip) = (inputs.get(0, rows * len)?, inputs.get(1, skips * len)?);
        let scale = inputs.get(2, len)?;
        let (shift, bias) = op.places();
        let shift = shift.map_or(Ok(None), |i| inputs.get_opt(i, len))?;
        let bias = inputs.get_opt(bias, len)?;
        check_len(5, y.len(), rows * len)?;
        if y.is_empty() {
            return Ok(());
        }
        let epsilon = T::from_f64(op.epsilon.into());
        let mut own = Vec::new();
        let sums = match sums {
            Some(sums) => sums,
            None => {
                own.resize(rows * len, T::ZERO);
                &mut own
            }
        };
        check_len(8, sums.len(), rows * len)?;
        let mut stats = vec![(T::ZERO, T::ZERO); rows];
        let many = par::group(rows, 4 * y.len());
        let groups = y.chunks_mut(many * len).zip(sums.chunks_mut(many * len)).zip(stats.chunks_mut(many));
        par::share(groups.enumerate(), |(i, ((y, sums), stats))| {
            let rows = y.chunks_mut(len).zip(sums.chunks_mut(len)).zip(stats);
            for (r, ((y, sum), stats)) in (i * many..).zip(rows) {
                let (x, skip) = (&x[r * len..][..len], &skip[r % skips * len..][..len]);
                sum.iter_mut().zip(x).zip(skip).for_each(|((s, x), k)| *s = *x + *k);
                if let Some(bias) = bias {
                    sum.iter_mut().zip(bias).for_each(|(s, b)| *s += *b);
                }
                let (mean, inverse) = wide(
                    #[inline(always)]
                    || statistics(sum, op.center, epsilon),
                );
                y.iter_mut().zip(&*sum).zip(scale).for_each(|((y, s), f)| *y = (*s - mean) * inverse * *f);
                if let Some(shift) = shift {
                    y.iter_mut().zip(shift).for_each(|(y, b)| *y += *b);
                }
                *stats = (mean, inverse);
            }
        });
        for (output, pick) in [(means, 0), (inverses, 1)] {
            if let Some(output) = output {
                check_len(6 + pick, output.len(), rows)?;
                output.iter_mut().zip(&stats).for_each(|(o, s)| *o = if pick == 0 { s.0 } else { s.1 });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_util::{assert_near, facts, run_cpu, tensor};

    fn check(op: SkipNorm, len: usize, skip: &[usize], given: [bool; 2]) {
        let (shift, bias) = op.places();
        let mut inputs = vec![Some(tensor(&[2, 3, len], 1)), Some(tensor(skip, 2)), Some(tensor(&[len], 3))];
        inputs.resize(bias + 1, None);
        if let Some(shift) = shift.filter(|_| given[0]) {
            inputs[shift] = Some(tensor(&[len], 4));
        }
        if given[1] {
            inputs[bias] = Some(tensor(&[len], 5));
        }
        let wide = |i: usize| -> Option<Vec<f64>> {
            let t = inputs.get(i)?.as_ref()?;
            Some(t.to_f32s().unwrap().into_iter().map(f64::from).collect())
        };
        let (x, k, scale) = (wide(0).unwrap(), wide(1).unwrap(), wide(2).unwrap());
        let zeros = vec![0.0; len];
        let (shift, bias) = (shift.and_then(wide).unwrap_or(zeros.clone()), wide(bias).unwrap_or(zeros));
        let sum: Vec<f64> = (0..x.len()).map(|i| x[i] + k[i % k.len()] + bias[i % len]).collect();
        let (mut y, mut means, mut inverses) = (vec![], vec![], vec![]);
        for row in sum.chunks(len) {
            let mean = if op.center { row.iter().sum::<f64>() / len as f64 } else { 0.0 };
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / len as f64;
            let inverse = 1.0 / (variance + f64::from(op.epsilon)).sqrt();
            y.extend(row.iter().enumerate().map(|(i, v)| (v - mean) * inverse * scale[i] + shift[i]));
            means.push(mean);
            inverses.push(inverse);
        }
        let got = run_cpu(&op, &inputs, 4).unwrap();
        for (got, want) in got.iter().zip([&y, &means, &inverses, &sum]) {
            assert_near(got, want, 2e-5);
        }
        #[cfg(feature = "vulkan")]
        for change in [crate::ops::testing::as_is, crate::ops::testing::no_texels] {
            use crate::ops::testing::Check;
            Check::new(&op, &inputs).outputs(4).pretend(change).tolerance(2e-5).run();
            Check::new(&op, &inputs).pretend(change).tolerance(2e-5).run();
        }
    }

    #[test]
    fn sums_are_normalized() {
        for center in [false, true] {
            let op = SkipNorm { epsilon: 1e-5, center };
            check(op, 7, &[2, 3, 7], [true, true]);
            check(op, 300, &[1, 3, 300], [true, false]);
            check(op, 300, &[3, 300], [false, true]);
            check(op, 301, &[3, 301], [true, true]);
            check(op, 2052, &[3, 2052], [true, true]);
        }
        let fits = |skip: &[usize]| {
            let inputs = [Some(tensor(&[2, 3, 4], 1)), Some(tensor(skip, 2)), Some(tensor(&[4], 3))];
            facts(&SkipNorm { epsilon: 0.1, center: true }, &inputs, 1).is_ok()
        };
        assert!(fits(&[2, 3, 4]) && fits(&[3, 4]) && fits(&[1, 3, 4]));
        assert!(!fits(&[2, 1, 4]) && !fits(&[3, 1]) && !fits(&[1, 2, 3, 4]) && !fits(&[]));
    }
}
