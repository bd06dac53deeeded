//! MatMul: NumPy's `matmul`, with an optional bias of the last axis and an activation.

use std::sync::Arc;

use super::TYPES;
use super::device::{Product, Source};
use super::gated::{Gate, GateKernel, Gated, few_rows};
use super::half_product::half_product_around;
use super::integer::{Int, add_product};
use super::joined::{Beside, FewRows};
use super::panels::{self, Layout};
use super::product::{Around, Mat, Threads, product_around};
use crate::backend::DeviceInfo;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::quant::{QuantizedMatMul, SumsBecome};
use crate::ops::real::{FLOATS, Real, RealInputs, RealIo, RealKernel, check_len, real_kernel};
use crate::ops::{
    Absorbed, Activation, AttrReader, Cost, Fact, Lowering, Native, OpCx, OpError, Operand, Operator, Port,
    Quantized, Structure, absorb, par,
};
use crate::shape::Shape;

/// `activation(A x B + bias)`. Inputs: A, B and, where [`MatMul::biased`], a bias of the product's last axis.
#[derive(Clone, Debug, Default)]
pub struct MatMul {
    /// Applied to the output.
    pub activation: Activation,
    /// Whether there is a third input: one number for every column of the output.
    pub biased: bool,
    /// Whether B, of two dimensions, is given transposed.
    pub transposed: bool,
}

/// Two products of one A.
pub type GatedMatMul = Gated<MatMul>;

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    let _ = attrs;
    Ok(Arc::new(MatMul::default()))
}

impl MatMul {
    /// The same product with a bias as third input, unless it has a bias or an activation already.
    pub fn with_bias(&self) -> Option<MatMul> {
        self.is_plain().then(|| MatMul { biased: true, ..self.clone() })
    }

    fn is_plain(&self) -> bool {
        !self.biased && self.activation == Activation::None
    }

    pub(super) fn resolve(&self, cx: &OpCx) -> Result<Dims, OpError> {
        if !self.transposed {
            return Dims::resolve(cx);
        }
        let [a, b] = [cx.input(0)?, cx.input(1)?];
        let &[n, k] = b.shape.dims() else { return Err(cx.shape_error(1, "two dimensions")) };
        let b = TensorInfo::new(b.dtype, Shape::new([k, n])?);
        Dims::resolve(&OpCx::for_infer(vec![Some(Fact::of(a.clone())), Some(Fact::of(b))], 1))
    }

    /// The native function of it.
    fn run(&self, cx: &OpCx) -> Result<Run, OpError> {
        let sizes = [cx.input(0)?.elements(), cx.input(1)?.elements()];
        Ok(Run { dims: self.resolve(cx)?, sizes, op: self.clone(), panels: None })
    }

    /// The product on a device.
    fn product(&self, cx: &OpCx) -> Result<Product, OpError> {
        let dims = self.resolve(cx)?;
        let mut product = Product::of(cx, &dims)?;
        product.b = Source::input(cx, 1, dims.k, dims.n, self.transposed)?;
        product.c = self.biased.then_some((Operand::Input(2), [0, 1]));
        product.activation = self.activation;
        Ok(product)
    }
}

impl FewRows for MatMul {
    type Native = Run;

    const NORMED: &'static str = "NormedMatMul";
    const SUMMED: Option<[&'static str; 2]> = Some(["SummedMatMul", "NormedSummedMatMul"]);

    fn inputs(&self) -> usize {
        if self.biased { 3 } else { 2 }
    }

    fn native(&self, cx: &OpCx) -> Result<Run, OpError> {
        self.run(cx)
    }

    fn is_few(&self, cx: &OpCx, beside: &Beside, device: &DeviceInfo) -> bool {
        let lower = Lowering::new(device);
        let few = self.product(cx).is_ok_and(|product| product.is_few(beside.gate.is_some(), &lower));
        // The kernel has one summand, which an activation is applied to.
        few && (self.is_plain() || beside.summand.is_none())
    }

    fn lower_beside(&self, cx: &OpCx, beside: &Beside, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let mut product = self.product(cx)?;
        if product.m == 0 || product.n == 0 || product.pairs.is_empty() {
            return Ok(());
        }
        if let Some(summand) = beside.summand {
            product.c = Some((summand, [product.n, 1]));
        }
        let other = beside.gate.map(|activation| {
            product.activation = activation;
            Operand::Input(1 + MatMul::EACH)
        });
        match product.lower_wide_vectors(other, beside, lower)? {
            true => Ok(()),
            false => Err(beside.unsupported(product.m)),
        }
    }
}

impl Gate for MatMul {
    const GATED: [&'static str; 2] = ["GatedMatMul", "NormedGatedMatMul"];
    const EACH: usize = 1;

    fn is_form_of(&self, other: &MatMul) -> bool {
        self.is_plain() && other.is_plain() && self.transposed == other.transposed
    }

    fn check_both(&self, [own, other]: [&OpCx; 2]) -> Result<(), OpError> {
        own.dtype_of(0, FLOATS)?;
        if own.shape(1)? != other.shape(1)? || self.resolve(own)?.pairs.len() > 1 {
            return Err(OpError::unsupported("a gate of products of different forms or of several matrices"));
        }
        Ok(())
    }
}

/// A product resolved: one `m` by `k` times `k` by `n` product for every element of `batch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dims {
    /// Rows of A.
    pub m: usize,
    /// Columns of B.
    pub n: usize,
    /// Columns of A.
    pub k: usize,
    /// Sizes of the batch axes of the output.
    pub batch: Shape,
    /// For every product, the matrix of A and of B that it reads.
    pub pairs: Pairs,
    /// The output.
    pub output: Shape,
}

impl Dims {
    /// The product of inputs 0 and 1.
    pub(crate) fn resolve(cx: &OpCx) -> Result<Dims, OpError> {
        Dims::of(cx, 0, 1)
    }

    /// The product of inputs `at_a` and `at_b`.
    pub(crate) fn of(cx: &OpCx, at_a: usize, at_b: usize) -> Result<Dims, OpError> {
        let (a, b) = (cx.shape(at_a)?, cx.shape(at_b)?);
        let (row, column) = (a.rank() == 1, b.rank() == 1);
        let (a_batch, m, k) = match a.dims() {
            [] => return Err(cx.shape_error(at_a, "at least one dimension")),
            [k] => (&[] as &[usize], 1, *k),
            [batch @ .., m, k] => (batch, *m, *k),
        };
        let (b_batch, kb, n) = match b.dims() {
            [] => return Err(cx.shape_error(at_b, "at least one dimension")),
            [k] => (&[] as &[usize], *k, 1),
            [batch @ .., k, n] => (batch, *k, *n),
        };
        if k != kb {
            return Err(cx.shape_error(at_b, format!("{k} rows, as input {at_a} has columns")));
        }
        let (a_batch, b_batch) = (Shape::new(a_batch)?, Shape::new(b_batch)?);
        let batch = a_batch.broadcast(&b_batch)?;
        let mut dims = batch.to_vec();
        if !row {
            dims.push(m);
        }
        if !column {
            dims.push(n);
        }
        let output = Shape::new(dims)?;
        let pairs = match output.elements() {
            0 => Pairs::default(),
            _ => Pairs::broadcast(&batch, &a_batch, &b_batch)?,
        };
        Ok(Dims { m, n, k, batch, pairs, output }.folded(&a_batch, &b_batch))
    }

    /// One larger product where every product reads the same B and A's matrices are contiguous.
    fn folded(mut self, a_batch: &Shape, b_batch: &Shape) -> Dims {
        if b_batch.elements() == 1 && a_batch.elements() == self.batch.elements() && !self.pairs.is_empty() {
            self.m *= self.pairs.len();
            self.batch = Shape::scalar();
            self.pairs = Pairs::rows(1);
        }
        self
    }

    /// Arithmetic operations.
    pub(crate) fn flops(&self) -> u64 {
        Cost::product(&[2, self.pairs.len(), self.m, self.n, self.k])
    }
}

/// For every product of a batch the matrix of A and of B that it reads: computed from strides, so that a batch of any
/// size takes no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pairs {
    count: usize,
    /// For each axis that is not 1: its stride and size in the batch, and its strides in matrices of A and of B.
    axes: Vec<[usize; 4]>,
}

impl Pairs {
    /// Product `i` reads matrix `i` of A and the only one of B.
    pub(crate) fn rows(count: usize) -> Pairs {
        Pairs { count, axes: if count > 1 { vec![[1, count, 1, 0]] } else { Vec::new() } }
    }

    fn broadcast(batch: &Shape, a: &Shape, b: &Shape) -> Result<Pairs, OpError> {
        let (a, b, strides) = (a.broadcast_strides(batch)?, b.broadcast_strides(batch)?, batch.strides());
        let mut axes: Vec<[usize; 4]> = Vec::with_capacity(batch.rank());
        for (((&size, &stride), &a), &b) in batch.iter().zip(&strides).zip(&a).zip(&b) {
            match axes.last_mut() {
                _ if size == 1 => {}
                // Both go on over the end of this axis as before.
                Some(outer) if outer[2] == a * size && outer[3] == b * size => {
                    *outer = [stride, outer[1] * size, a, b];
                }
                _ => axes.push([stride, size, a, b]),
            }
        }
        Ok(Pairs { count: batch.elements(), axes })
    }

    /// Number of products.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The matrices of product `i`.
    pub(crate) fn at(&self, i: usize) -> (usize, usize) {
        self.axes.iter().fold((0, 0), |(x, y), [stride, size, a, b]| {
            let at = i / stride % size;
            (x + at * a, y + at * b)
        })
    }

    /// The matrices of every product.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + ExactSizeIterator + '_ {
        (0..self.count).map(|i| self.at(i))
    }

    /// The products as a list, for a device, whose number of commands is bounded.
    pub(crate) fn listed(&self) -> Result<Vec<(usize, usize)>, OpError> {
        const MOST: usize = 1 << 24;
        if self.count > MOST {
            return Err(OpError::unsupported(format!("{} products of matrices on a device", self.count)));
        }
        Ok(self.iter().collect())
    }
}

impl Operator for MatMul {
    fn name(&self) -> &'static str {
        "MatMul"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        let product = Structure::MatMul { alpha: 1.0, beta: 1.0, transposed: [false, self.transposed] };
        (self.activation == Activation::None).then_some(product)
    }

    fn quantized(&self, to: &Quantized<'_>) -> Option<Arc<dyn Operator>> {
        self.structure().filter(|_| !self.transposed)?;
        let sums = SumsBecome::Bytes { clamp: to.clamp };
        Some(Arc::new(QuantizedMatMul { sums, biased: to.biased }))
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let inputs = if self.biased { 3 } else { 2 };
        cx.expect_counts(inputs..=inputs, 1..=1)?;
        let dtype = cx.dtype_of(0, TYPES)?;
        cx.expect_dtype(1, dtype)?;
        let dims = self.resolve(cx)?;
        if self.biased {
            cx.expect_dtype(2, dtype)?;
            if cx.shape(2)?.dims() != [dims.n] {
                return Err(cx.shape_error(2, format!("[{}]", dims.n)));
            }
        }
        if !dtype.is_float() && (self.biased || self.activation != Activation::None) {
            return Err(OpError::unsupported(format!("a fused bias or activation of {dtype}")));
        }
        Ok(vec![TensorInfo::new(dtype, dims.output)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: self.resolve(cx).map_or(0, |d| d.flops()), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let run = self.run(cx)?;
        match cx.dtype(0)? {
            DType::I32 => Ok(integers::<i32>(run)),
            DType::I64 => Ok(integers::<i64>(run)),
            DType::U32 => Ok(integers::<u32>(run)),
            DType::U64 => Ok(integers::<u64>(run)),
            _ => real_kernel("MatMul", cx, run),
        }
    }

    fn cpu_on(&self, cx: &OpCx, _: &DeviceInfo) -> Result<Native, OpError> {
        let mut run = self.run(cx)?;
        let Dims { n, k, .. } = run.dims;
        let Some((panels, packed)) = panels::of_constant(cx, 1, [k, n], self.transposed) else {
            return self.cpu(cx).map(Native::from);
        };
        run.sizes[1] = packed.bytes / size_of::<f32>();
        run.panels = Some(panels);
        Ok(Native { kernel: real_kernel("MatMul", cx, run)?, packed: vec![(1, packed)] })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        self.product(cx)?.lower(lower)
    }

    fn with_activation(&self, activation: &Activation) -> Option<Arc<dyn Operator>> {
        let activation = self.activation.then(activation)?;
        Some(Arc::new(MatMul { activation, ..self.clone() }) as Arc<dyn Operator>)
    }

    fn with_transposed(&self, port: Port, perm: &[i64]) -> Option<Arc<dyn Operator>> {
        let right = port == Port::Input(1) && perm == [1, 0];
        right.then(|| Arc::new(MatMul { transposed: !self.transposed, ..self.clone() }) as Arc<dyn Operator>)
    }

    few_rows!();

    fn absorb(&self, cx: &OpCx, next: &dyn Operator, next_cx: &OpCx, at: usize) -> Option<Absorbed> {
        if let Some(absorbed) = absorb::with_activation(self, cx, next, next_cx) {
            return Some(absorbed);
        }
        let product = self.with_bias()?;
        let added = absorb::added(next, next_cx, at)?;
        let columns = *cx.output(0).ok()?.shape.last()?;
        let one_row = added.shape().elements() == columns && added.shape().last() == Some(&columns);
        let float = cx.dtype(0).ok()?.is_float();
        if !one_row || !float || cx.shape(1).ok()?.rank() < 2 {
            return None;
        }
        let bias = added.reshaped(Shape::new([columns]).ok()?).ok()?;
        Some(absorb::with_bias(Arc::new(product), bias))
    }
}

/// The native function.
pub(crate) struct Run {
    dims: Dims,
    /// Elements of A and of B.
    sizes: [usize; 2],
    op: MatMul,
    /// How B lies, where it is packed.
    panels: Option<Layout>,
}

impl Run {
    /// B of product (_, j).
    fn right<'a, T>(&self, b: &'a [T], j: usize) -> Mat<'a, T> {
        let Dims { n, k, .. } = self.dims;
        let b = &b[j * k * n..];
        if self.op.transposed { Mat::transposed(b, k) } else { Mat::rows(b, n) }
    }
}

impl RealKernel for Run {
    const HALF: &'static [usize] = &[1];

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (y, inputs) = io.output(0, self.dims.output.elements())?;
        self.product(&inputs, 0, y)
    }
}

impl GateKernel for Run {
    const HALVES: &'static [usize] = &[1, 2];

    fn elements(&self) -> usize {
        self.dims.output.elements()
    }

    fn product<T: Real>(
        &self,
        inputs: &RealInputs<'_, T>,
        before: usize,
        y: &mut [T],
    ) -> Result<(), KernelError> {
        let right = 1 + before;
        let Dims { m, n, k, ref pairs, .. } = self.dims;
        let a = inputs.get(0, self.sizes[0])?;
        let half = inputs.half(right, self.sizes[1])?;
        let b = if half.is_none() { inputs.get(right, self.sizes[1])? } else { &[] };
        let bias = if self.op.biased { Some(inputs.get(2, n)?) } else { None };
        if y.is_empty() {
            return Ok(());
        }
        let one = |(y, (i, j)): (&mut [T], (usize, usize)), threads| {
            let a = Mat::rows(&a[i * m * k..], k);
            let around = Around { bias, activation: self.op.activation };
            if let Some(layout) = self.panels {
                let b = &b[j * layout.len()..];
                return panels::product([a.data, b], layout, m, y, around, threads);
            }
            match half {
                Some(b) => half_product_around([m, n, k], a, self.right(b, j), y, n, around, threads),
                None => product_around([m, n, k], a, self.right(b, j), y, n, around, threads),
            }
        };
        if pairs.len() >= par::threads() {
            par::try_share(y.chunks_mut(m * n).zip(pairs.iter()), |job| one(job, Threads::One))
        } else {
            y.chunks_mut(m * n).zip(pairs.iter()).try_for_each(|job| one(job, Threads::All))
        }
    }
}

fn integers<T: Int>(run: Run) -> NativeKernel {
    NativeKernel::new("MatMul", move |args| {
        let Dims { m, n, k, ref pairs, ref output, .. } = run.dims;
        let (a, b) = (args.read::<T>(0)?, args.read::<T>(1)?);
        let y = args.take_write::<T>(2)?;
        check_len(0, a.len(), run.sizes[0])?;
        check_len(1, b.len(), run.sizes[1])?;
        check_len(2, y.len(), output.elements())?;
        y.fill(bytemuck::Zeroable::zeroed());
        if y.is_empty() {
            return Ok(());
        }
        for (y, (i, j)) in y.chunks_mut(m * n).zip(pairs.iter()) {
            add_product(n, k, Mat::rows(&a[i * m * k..], k), run.right(b, j), y);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::expr::Function;
    use crate::graph::Tensor;
    use crate::ops::Fact;
    use crate::ops::test_util::{assert_near, facts, run_cpu, run_f32, tensor, tensor_of, values};

    /// The definition, in `f64`: operands broadcast element by element.
    fn reference(a: &Tensor, b: &Tensor) -> Vec<f64> {
        let widen = |t: &Tensor| t.to_f32s().unwrap().into_iter().map(f64::from).collect::<Vec<_>>();
        let (av, bv) = (widen(a), widen(b));
        let mut ad = a.shape().to_vec();
        let mut bd = b.shape().to_vec();
        if ad.len() == 1 {
            ad.insert(0, 1);
        }
        if bd.len() == 1 {
            bd.push(1);
        }
        let rank = ad.len().max(bd.len());
        ad.splice(0..0, vec![1; rank - ad.len()]);
        bd.splice(0..0, vec![1; rank - bd.len()]);
        let (m, k, n) = (ad[rank - 2], ad[rank - 1], bd[rank - 1]);
        let batch: Vec<usize> = (0..rank - 2).map(|i| if ad[i] == 1 { bd[i] } else { ad[i] }).collect();
        let mut out = Vec::new();
        for flat in 0..batch.iter().product() {
            let offset = |dims: &[usize]| {
                let (mut rest, mut index, mut step): (usize, usize, usize) = (flat, 0, 1);
                for i in (0..rank - 2).rev() {
                    let at = rest % batch[i];
                    rest /= batch[i];
                    if dims[i] != 1 {
                        index += at * step;
                    }
                    step *= dims[i];
                }
                index
            };
            let (ao, bo) = (offset(&ad) * m * k, offset(&bd) * k * n);
            for r in 0..m {
                for c in 0..n {
                    out.push((0..k).map(|i| av[ao + r * k + i] * bv[bo + i * n + c]).sum());
                }
            }
        }
        out
    }

    fn check(a: &[usize], b: &[usize], want_shape: &[usize]) {
        let (a, b) = (tensor(a, 1), tensor(b, 2));
        let got = run_f32(&MatMul::default(), &[Some(a.clone()), Some(b.clone())]).unwrap();
        assert_eq!(got.shape().dims(), want_shape);
        assert_near(&got, &reference(&a, &b), 1e-5);
    }

    #[test]
    fn vectors_matrices_and_batches_follow_numpy() {
        check(&[3], &[3], &[]);
        check(&[3], &[3, 4], &[4]);
        check(&[2, 3], &[3], &[2]);
        check(&[2, 3], &[3, 4], &[2, 4]);
        check(&[5, 2, 3], &[3, 4], &[5, 2, 4]);
        check(&[2, 3], &[5, 3, 4], &[5, 2, 4]);
        check(&[2, 1, 7, 3], &[4, 3, 5], &[2, 4, 7, 5]);
        check(&[3], &[5, 3, 4], &[5, 4]);
        check(&[5, 2, 3], &[3], &[5, 2]);
        check(&[0, 3], &[3, 4], &[0, 4]);
        check(&[2, 0], &[0, 4], &[2, 4]);
    }

    proptest! {
        #[test]
        fn any_batch_matches_the_definition(
            m in 1usize..6, n in 1usize..6, k in 1usize..20,
            batch in proptest::collection::vec((1usize..4, 0u8..3), 0..3),
        ) {
            let pick = |keep: u8| batch.iter().map(move |(d, who)| if *who == keep { 1 } else { *d });
            let a: Vec<usize> = pick(1).chain([m, k]).collect();
            let b: Vec<usize> = pick(2).chain([k, n]).collect();
            let (a, b) = (tensor(&a, 3), tensor(&b, 4));
            let got = run_f32(&MatMul::default(), &[Some(a.clone()), Some(b.clone())]).unwrap();
            assert_near(&got, &reference(&a, &b), 1e-5);
        }
    }

    #[test]
    fn a_fused_bias_and_activation_equal_separate_ones() {
        let (a, b, bias) = (tensor(&[7, 5], 1), tensor(&[5, 9], 2), tensor(&[9], 3));
        let op = MatMul::default().with_bias().unwrap();
        let op = op.with_activation(&Activation::of(Function::Relu)).unwrap();
        let got = run_f32(&*op, &[Some(a.clone()), Some(b.clone()), Some(bias.clone())]).unwrap();
        let bias = bias.to_f32s().unwrap();
        let want: Vec<f64> = reference(&a, &b)
            .iter()
            .enumerate()
            .map(|(i, v)| (v + f64::from(bias[i % 9])).max(0.0))
            .collect();
        assert_near(&got, &want, 1e-5);
        assert!(op.with_activation(&Activation::of(Function::Relu)).is_none());
    }

    #[test]
    fn integers_and_halves_multiply() {
        let (a, b) = (Tensor::new([1, 2], &[i64::MAX, 2]).unwrap(), Tensor::new([2, 1], &[2i64, 3]).unwrap());
        let got = run_cpu(&MatMul::default(), &[Some(a), Some(b)], 1).unwrap().remove(0);
        assert_eq!(got.as_slice::<i64>().unwrap(), [4]);
        let half = |seed| tensor_of(&[3, 3], &values(9, seed), half::f16::from_f32);
        let (a, b) = (half(1), half(2));
        let got = run_cpu(&MatMul::default(), &[Some(a.clone()), Some(b.clone())], 1).unwrap().remove(0);
        assert_eq!(got.dtype(), DType::F16);
        assert_near(&got, &reference(&a, &b), 2e-3);
        let wide = |seed| tensor_of(&[3, 3], &values(9, seed), f64::from);
        let (a, b) = (wide(1), wide(2));
        let got = run_cpu(&MatMul::default(), &[Some(a.clone()), Some(b.clone())], 1).unwrap().remove(0);
        assert_near(&got, &reference(&a, &b), 1e-7);
    }

    #[test]
    fn shapes_and_types_that_do_not_fit_are_errors() {
        let fails = |a: &[usize], b: &[usize]| {
            facts(&MatMul::default(), &[Some(tensor(a, 1)), Some(tensor(b, 1))], 1).unwrap_err()
        };
        assert!(matches!(fails(&[2, 3], &[4, 2]), OpError::InputShape { input: 1, .. }));
        assert!(matches!(fails(&[], &[1]), OpError::InputShape { input: 0, .. }));
        assert!(matches!(fails(&[2, 2, 3], &[3, 3, 2]), OpError::Shape(_)));
        // More products than a device is told of; the shape is known all the same.
        let of = |shape: [usize; 3]| Some(Fact::of(TensorInfo::new(DType::F32, Shape::new(shape).unwrap())));
        let cx = OpCx::for_infer(vec![of([1 << 50, 1, 0]), of([1 << 50, 0, 1])], 1);
        assert_eq!(MatMul::default().infer(&cx).unwrap()[0].shape.dims(), [1 << 50, 1, 1]);
        let dims = Dims::resolve(&cx).unwrap();
        assert!(dims.pairs.listed().is_err());
        assert_eq!(
            (dims.pairs.len(), dims.pairs.at((1 << 50) - 1)),
            (1 << 50, ((1 << 50) - 1, (1 << 50) - 1))
        );
        let ints = Fact::known(Tensor::from_i64s(&[1]));
        let cx = OpCx::for_infer(vec![Some(Fact::known(tensor(&[1], 1))), Some(ints)], 1);
        assert!(matches!(MatMul::default().infer(&cx), Err(OpError::DType { input: 1, .. })));
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_compute_the_same() {
        use crate::ops::testing::{Check, as_is, no_texels, short_texels};
        let cases: &[(&[usize], &[usize])] = &[
            (&[8, 16], &[16, 16]),
            (&[33, 20], &[20, 68]),
            (&[7, 5], &[5, 9]),
            (&[1, 37], &[37, 50]),
            (&[70, 3], &[3, 1]),
            (&[3], &[3]),
            (&[2, 3, 5, 6], &[3, 6, 7]),
            (&[2, 1, 5, 8], &[1, 3, 8, 4]),
            (&[6, 5], &[3, 5, 2]),
            (&[65, 130], &[130, 66]),
            (&[2, 0], &[0, 3]),
            (&[3, 24], &[24, 12]),
        ];
        for (i, (a, b)) in cases.iter().enumerate() {
            let (a, b) = (tensor(a, 1), tensor(b, 2));
            let n = if b.shape().rank() == 1 { 1 } else { *b.shape().last().unwrap() };
            let biased =
                MatMul { biased: true, activation: Activation::of(Function::Relu), ..MatMul::default() };
            let inputs = [Some(a), Some(b), Some(tensor(&[n], 3))];
            let known: &[usize] = if i % 2 == 0 { &[1] } else { &[] };
            for change in [as_is, no_texels, short_texels] {
                Check::new(&biased, &inputs).constants(known).pretend(change).tolerance(1e-5).run();
            }
            let plain = &inputs[..2];
            Check::new(&MatMul::default(), plain).constants(&[0, 1]).tolerance(1e-5).run();
        }
        let half = |s: &[usize], seed| {
            let n = s.iter().product();
            Some(tensor_of(s, &values(n, seed), half::f16::from_f32))
        };
        let cases: &[(&[usize], &[usize])] = &[
            (&[2, 9, 33], &[33, 70]),
            (&[2, 9, 32], &[2, 32, 68]),
            (&[1, 37], &[37, 50]),
            (&[17, 5], &[5, 1]),
        ];
        for (a, b) in cases {
            let inputs = [half(a, 1), half(b, 2)];
            for change in [as_is, no_texels, short_texels] {
                Check::new(&MatMul::default(), &inputs).pretend(change).tolerance(4e-3).run();
                Check::new(&MatMul::default(), &inputs).constants(&[1]).pretend(change).tolerance(4e-3).run();
            }
        }
    }

    /// B read by columns is B transposed before; several rows, one, and sizes that are no whole texels.
    #[test]
    fn a_transposed_operand_gives_the_same() {
        let op = MatMul { transposed: true, ..MatMul::default() };
        let shapes: &[(&[usize], [usize; 2])] = &[
            (&[2, 3, 36], [50, 36]),
            (&[1, 64], [70, 64]),
            (&[5, 13], [9, 13]),
            (&[40], [33, 40]),
            (&[3, 0], [4, 0]),
        ];
        for (a, [n, k]) in shapes {
            let (a, b) = (tensor(a, 1), tensor(&[*n, *k], 2));
            let v = b.to_f32s().unwrap();
            let turned: Vec<f32> = (0..n * k).map(|i| v[i % n * k + i / n]).collect();
            let turned = Tensor::new([*k, *n], &turned).unwrap();
            let want = run_f32(&MatMul::default(), &[Some(a.clone()), Some(turned)]).unwrap();
            let want_wide: Vec<f64> = want.to_f32s().unwrap().into_iter().map(f64::from).collect();
            let inputs = [Some(a.clone()), Some(b.clone())];
            let got = run_f32(&op, &inputs).unwrap();
            assert_eq!(got.shape(), want.shape());
            assert_near(&got, &want_wide, 1e-5);
            #[cfg(feature = "vulkan")]
            for change in [crate::ops::testing::as_is, crate::ops::testing::no_texels] {
                use crate::ops::testing::Check;
                if *k == 0 {
                    continue;
                }
                let half = |t: &Tensor| {
                    Some(tensor_of(t.shape().dims(), &t.to_f32s().unwrap(), half::f16::from_f32))
                };
                Check::new(&op, &inputs).constants(&[1]).pretend(change).tolerance(1e-5).run();
                let halves = [half(&a), half(&b)];
                Check::new(&op, &halves).constants(&[1]).pretend(change).tolerance(4e-3).run();
            }
        }
        let integers = [Tensor::new([1, 2], &[1i32, 2]), Tensor::new([3, 2], &[1i32, 2, 3, 4, 5, 6])];
        let got = run_cpu(&op, &integers.map(|t| Some(t.unwrap())), 1).unwrap().remove(0);
        assert_eq!(got.as_slice::<i32>().unwrap(), [5, 11, 17]);
        assert!(facts(&op, &[Some(tensor(&[2, 3], 1)), Some(tensor(&[3, 4], 2))], 1).is_err());
        assert!(facts(&op, &[Some(tensor(&[2, 3], 1)), Some(tensor(&[2, 4, 3], 2))], 1).is_err());
    }

    /// Sizes for which there are enough wide tiles.
    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_compute_large_products_the_same() {
        use crate::ops::testing::{Check, no_texels};
        let biased = MatMul { biased: true, activation: Activation::of(Function::Relu), ..MatMul::default() };
        let check = |inputs: &[Option<Tensor>], tolerance| {
            Check::new(&biased, inputs).pretend(no_texels).tolerance(tolerance).run();
            Check::new(&MatMul::default(), &inputs[..2]).pretend(no_texels).tolerance(tolerance).run();
        };
        check(&[Some(tensor(&[300, 20], 1)), Some(tensor(&[20, 3000], 2)), Some(tensor(&[3000], 3))], 1e-5);
        let inputs = [Some(tensor(&[7, 130, 12], 1)), Some(tensor(&[12, 900], 2)), Some(tensor(&[900], 3))];
        check(&inputs, 1e-5);
        let half = |s: &[usize], seed| {
            let n = s.iter().product();
            Some(tensor_of(s, &values(n, seed), half::f16::from_f32))
        };
        check(&[half(&[131, 36], 1), half(&[36, 4100], 2), half(&[4100], 3)], 4e-3);
    }
}
