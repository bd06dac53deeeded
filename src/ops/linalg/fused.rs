//! com.microsoft's FusedMatMul and FusedGemm: products with transposed operands, a factor and an activation.

use std::sync::Arc;

use super::device::{Product, Source};
use super::gemm_op;
use super::matmul::{Dims, Pairs};
use super::product::{Mat, Threads, product};
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::movement::region::{Block, copy_block};
use crate::ops::real::{FLOATS, Real, RealIo, RealKernel, real_kernel};
use crate::ops::{Activation, AttrReader, Cost, Fact, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::Shape;

/// `activation(alpha * A' x B')`, where A' and B' may have their last two axes swapped.
#[derive(Clone, Copy, Debug)]
pub struct FusedMatMul {
    /// Factor of the product.
    pub alpha: f32,
    /// Whether A's and B's last two axes are swapped.
    pub transposed: [bool; 2],
    /// Whether A's and B's first axis is moved before the last one, before that.
    pub batched: [bool; 2],
    /// Applied to the output.
    pub activation: Activation,
}

pub(super) fn read_matmul(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(FusedMatMul {
        alpha: attrs.float("alpha", 1.0)?,
        transposed: [attrs.flag("transA", false)?, attrs.flag("transB", false)?],
        batched: [attrs.flag("transBatchA", false)?, attrs.flag("transBatchB", false)?],
        activation: Activation::None,
    }))
}

pub(super) fn read_gemm(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    // The opset of the fused form says nothing of Gemm's own, whose newest it is.
    let gemm = gemm_op::read(attrs, i64::MAX)?;
    let parameters = ["activation_alpha", "activation_beta"].map(|name| attrs.float_opt(name));
    let [alpha, beta] = parameters;
    attrs.float_opt("activation_gamma")?;
    let activation = Activation::named(attrs.str("activation", "")?, [alpha?, beta?])?;
    Ok(gemm.with_activation(&activation).unwrap_or(gemm))
}

impl FusedMatMul {
    fn resolve(&self, cx: &OpCx) -> Result<Dims, OpError> {
        let mut facts = Vec::with_capacity(2);
        for (i, transposed) in self.transposed.into_iter().enumerate() {
            let info = cx.input(i)?;
            let mut dims = self.moved(cx, i)?;
            let rank = dims.len();
            // A vector has nothing to swap.
            if transposed && rank >= 2 {
                dims.swap(rank - 1, rank - 2);
            }
            facts.push(Some(Fact::of(TensorInfo::new(info.dtype, Shape::new(dims)?))));
        }
        let mut dims = Dims::resolve(&OpCx::for_infer(facts, 1))?;
        let rows = match *self.moved(cx, 0)? {
            [.., m, k] => {
                if self.transposed[0] {
                    k
                } else {
                    m
                }
            }
            _ => 1,
        };
        if self.swaps(cx, 0)? && dims.m != rows {
            // Rows of a transposed A are no neighbours: one product for each matrix after all.
            dims.pairs = Pairs::rows(dims.m / rows.max(1));
            dims.m = rows;
        }
        Ok(dims)
    }

    /// The sizes of input `i` when its first axis is where it should be.
    fn moved(&self, cx: &OpCx, i: usize) -> Result<Vec<usize>, OpError> {
        let mut dims = cx.shape(i)?.to_vec();
        if self.moves(cx, i)? {
            let at = dims.len().saturating_sub(2);
            dims[..=at].rotate_left(1);
        }
        Ok(dims)
    }

    /// Whether the first axis of input `i` is moved: with only two there is nothing to move it over.
    fn moves(&self, cx: &OpCx, i: usize) -> Result<bool, OpError> {
        Ok(self.batched[i] && cx.shape(i)?.rank() > 2)
    }

    /// Sizes of input `i` as axes that move together: the first one, those that it is moved over, the last one.
    fn over(&self, cx: &OpCx, i: usize) -> Result<Option<[usize; 3]>, OpError> {
        Ok(match cx.shape(i)?.dims() {
            [first, over @ .., last] if self.moves(cx, i)? => Some([*first, over.iter().product(), *last]),
            _ => None,
        })
    }

    /// Operand `i` with its first axis where it should be.
    fn source(
        &self,
        cx: &OpCx,
        i: usize,
        [rows, cols]: [usize; 2],
        lower: &mut Lowering<'_>,
    ) -> Result<Source, OpError> {
        let source = Source::input(cx, i, rows, cols, self.swaps(cx, i)?)?;
        let Some([first, over, last]) = self.over(cx, i)? else { return Ok(source) };
        let bytes = cx.dtype(i)?.bytes();
        let scratch = lower.scratch(cx.input(i)?.elements() * bytes);
        let [first_step, over_step] = [over * last, last].map(|n| n as isize);
        let block = Block {
            dims: vec![over, first, last],
            src_strides: vec![over_step, first_step, 1],
            dst_strides: vec![(first * last) as isize, over_step, 1],
            ..Block::default()
        };
        copy_block(lower, block, Operand::Input(i), scratch, bytes)?;
        Ok(Source { operand: scratch, value: None, ..source })
    }

    fn swaps(&self, cx: &OpCx, i: usize) -> Result<bool, OpError> {
        Ok(self.transposed[i] && cx.shape(i)?.rank() >= 2)
    }
}

impl Operator for FusedMatMul {
    fn name(&self) -> &'static str {
        "FusedMatMul"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        let dtype = cx.dtype_of(0, FLOATS)?;
        cx.expect_dtype(1, dtype)?;
        Ok(vec![TensorInfo::new(dtype, self.resolve(cx)?.output)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |d| d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let swaps = [self.swaps(cx, 0)?, self.swaps(cx, 1)?];
        let sizes = [cx.input(0)?.elements(), cx.input(1)?.elements()];
        let over = [self.over(cx, 0)?, self.over(cx, 1)?];
        real_kernel("FusedMatMul", cx, Run { dims: self.resolve(cx)?, op: *self, swaps, sizes, over })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let dims = self.resolve(cx)?;
        let product = Product {
            a: self.source(cx, 0, [dims.m, dims.k], lower)?,
            b: self.source(cx, 1, [dims.k, dims.n], lower)?,
            alpha: self.alpha,
            activation: self.activation,
            ..Product::of(cx, &dims)?
        };
        product.lower(lower)
    }

    fn with_activation(&self, activation: &Activation) -> Option<Arc<dyn Operator>> {
        let activation = self.activation.then(activation)?;
        Some(Arc::new(FusedMatMul { activation, ..*self }) as Arc<dyn Operator>)
    }
}

struct Run {
    dims: Dims,
    op: FusedMatMul,
    swaps: [bool; 2],
    sizes: [usize; 2],
    over: [Option<[usize; 3]>; 2],
}

/// `data` of `[first, over, last]` as `[over, first, last]`.
fn moved<T: Real>(data: &[T], [first, over, last]: [usize; 3]) -> Vec<T> {
    let rows = (0..over).flat_map(|o| (0..first).map(move |f| (f * over + o) * last));
    rows.flat_map(|at| &data[at..at + last]).copied().collect()
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let Dims { m, n, k, ref pairs, ref output, .. } = self.dims;
        let (y, inputs) = io.output(0, output.elements())?;
        let (a, b) = (inputs.get(0, self.sizes[0])?, inputs.get(1, self.sizes[1])?);
        if y.is_empty() {
            return Ok(());
        }
        let [a_moved, b_moved] = [(a, self.over[0]), (b, self.over[1])].map(|(v, o)| o.map(|o| moved(v, o)));
        let (a, b) = (a_moved.as_deref().unwrap_or(a), b_moved.as_deref().unwrap_or(b));
        let alpha = T::from_f64(self.op.alpha.into());
        let mat = |data, swap, rows, cols| match swap {
            true => Mat::transposed(data, rows),
            false => Mat::rows(data, cols),
        };
        // Multiplications of a product are done several at a time.
        let work = y.len().saturating_mul(k) / 4;
        par::try_rows(y, m * n, work, |at, y| {
            let (i, j) = pairs.at(at);
            let left = mat(&a[i * m * k..], self.swaps[0], m, k);
            let right = mat(&b[j * k * n..], self.swaps[1], k, n);
            product([m, n, k], left, right, y, n, false, Threads::All)?;
            y.iter_mut().for_each(|y| *y *= alpha);
            self.op.activation.apply(y);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Function;
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, run_f32, tensor};

    /// The definition over `[batch, rows, columns]`.
    fn check(a: [usize; 3], b: [usize; 3], transposed: [bool; 2]) {
        let op = FusedMatMul {
            alpha: 0.7,
            transposed,
            batched: [false; 2],
            activation: Activation::of(Function::Relu),
        };
        let inputs = [Some(tensor(&a, 1)), Some(tensor(&b, 2))];
        let (av, bv) =
            (inputs[0].as_ref().unwrap().to_f32s().unwrap(), inputs[1].as_ref().unwrap().to_f32s().unwrap());
        let sizes = |s: [usize; 3], t: bool| if t { (s[2], s[1]) } else { (s[1], s[2]) };
        let ((m, k), (_, n)) = (sizes(a, transposed[0]), sizes(b, transposed[1]));
        let at = |v: &[f32], s: [usize; 3], t: bool, i: usize, r: usize, c: usize| {
            let (r, c) = if t { (c, r) } else { (r, c) };
            f64::from(v[(i.min(s[0] - 1) * s[1] + r) * s[2] + c])
        };
        let mut want = Vec::new();
        for i in 0..a[0].max(b[0]) {
            for (r, c) in (0..m * n).map(|x| (x / n, x % n)) {
                let sum: f64 = (0..k)
                    .map(|d| at(&av, a, transposed[0], i, r, d) * at(&bv, b, transposed[1], i, d, c))
                    .sum();
                want.push((f64::from(0.7f32) * sum).max(0.0));
            }
        }
        assert_near(&run_f32(&op, &inputs).unwrap(), &want, 1e-5);
        #[cfg(feature = "vulkan")]
        for change in [crate::ops::testing::as_is, crate::ops::testing::no_texels] {
            crate::ops::testing::Check::new(&op, &inputs).pretend(change).tolerance(1e-5).run();
        }
    }

    /// The first axis moved is the same as the operand that has it there.
    #[test]
    fn a_first_axis_is_moved_before_the_last() {
        let moved = |t: &Tensor| {
            let dims = t.shape().dims();
            let (first, last) = (dims[0], dims[dims.len() - 1]);
            let over: Vec<usize> = dims[1..dims.len() - 1].to_vec();
            let values = super::moved(&t.to_f32s().unwrap(), [first, over.iter().product(), last]);
            Tensor::new([&over[..], &[first, last]].concat(), &values).unwrap()
        };
        for (a, b, transposed) in [
            (&[5, 2, 3, 6][..], &[6, 2, 3, 7][..], [false, false]),
            (&[6, 3, 5], &[7, 3, 6], [true, true]),
            (&[5, 6], &[6, 7], [false, false]),
        ] {
            let plain =
                FusedMatMul { alpha: 0.7, transposed, batched: [false; 2], activation: Activation::None };
            let (a, b) = (tensor(a, 1), tensor(b, 2));
            for batched in [[true, false], [false, true], [true, true]] {
                let op = FusedMatMul { batched, ..plain };
                let side = |t: &Tensor, moves: bool| {
                    if moves || t.shape().rank() < 3 { t.clone() } else { moved(t) }
                };
                let given = [Some(side(&a, batched[0])), Some(side(&b, batched[1]))];
                let whole = |t: &Tensor| Some(if t.shape().rank() < 3 { t.clone() } else { moved(t) });
                let want = run_f32(&plain, &[whole(&a), whole(&b)]).unwrap();
                let got = run_f32(&op, &given).unwrap();
                assert_eq!(got.info(), want.info());
                assert_eq!(got.bytes(), want.bytes());
                #[cfg(feature = "vulkan")]
                crate::ops::testing::check_op(&op, &given, 1e-5);
            }
        }
    }

    #[test]
    fn operands_may_be_transposed() {
        for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
            for (x, y) in [(3, 3), (3, 1), (1, 3)] {
                let a = if ta { [x, 6, 5] } else { [x, 5, 6] };
                let b = if tb { [y, 7, 6] } else { [y, 6, 7] };
                check(a, b, [ta, tb]);
            }
        }
    }
}
