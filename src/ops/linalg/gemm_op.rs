//! Gemm: `alpha * A' * B' + beta * C` of two matrices.

use std::sync::Arc;

use super::TYPES;
use super::device::{Product, Source};
use super::half_product::half_product_around;
use super::integer::{Int, add_product};
use super::panels::{self, Layout};
use super::product::{Around, Mat, Threads, product, product_around};
use crate::backend::DeviceInfo;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::quant::{QuantizedMatMul, SumsBecome};
use crate::ops::real::{Real, RealIo, RealKernel, check_len, real_kernel};
use crate::ops::{
    Activation, AttrReader, Cost, Lowering, Native, OpCx, OpError, Operand, Operator, Port, Quantized,
    Structure,
};
use crate::shape::Shape;

/// `activation(alpha * A' * B' + beta * C)`, where A' and B' may be transposes and C is broadcast.
#[derive(Clone, Debug)]
pub struct Gemm {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of C.
    pub beta: f32,
    /// Whether A is given transposed.
    pub trans_a: bool,
    /// Whether B is given transposed.
    pub trans_b: bool,
    /// Applied to the output.
    pub activation: Activation,
}

impl Default for Gemm {
    fn default() -> Self {
        Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: false, activation: Activation::None }
    }
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    if opset < 7 {
        // C broadcasts in any case.
        attrs.flag("broadcast", false)?;
    }
    Ok(Arc::new(Gemm {
        alpha: attrs.float("alpha", 1.0)?,
        beta: attrs.float("beta", 1.0)?,
        trans_a: attrs.flag("transA", false)?,
        trans_b: attrs.flag("transB", false)?,
        activation: Activation::None,
    }))
}

/// A Gemm resolved.
#[derive(Clone, Debug)]
pub(crate) struct Dims {
    /// Rows of the output.
    pub m: usize,
    /// Columns of the output.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Strides in elements with which C is read as rows and columns, if it is given and has a factor.
    pub c: Option<[usize; 2]>,
}

impl Gemm {
    pub(crate) fn resolve(&self, cx: &OpCx) -> Result<Dims, OpError> {
        let matrix = |i: usize, transposed: bool| match (cx.shape(i)?.dims(), transposed) {
            (&[r, c], false) => Ok((r, c)),
            (&[c, r], true) => Ok((r, c)),
            _ => Err(cx.shape_error(i, "two dimensions")),
        };
        let (m, k) = matrix(0, self.trans_a)?;
        let (kb, n) = matrix(1, self.trans_b)?;
        if k != kb {
            return Err(cx.shape_error(1, format!("a sum over {k} elements, as input 0 has")));
        }
        let c = match cx.input_opt(2) {
            None => None,
            Some(c) => {
                let strides = c.shape.broadcast_strides(&Shape::new([m, n])?)?;
                // A factor of 0 leaves C out, whatever it holds.
                strides.try_into().ok().filter(|_| self.beta != 0.0)
            }
        };
        Ok(Dims { m, n, k, c })
    }

    /// Whether C, read with these strides, is one number for every column, or not there.
    fn bias_alone(&self, c: Option<[usize; 2]>) -> bool {
        matches!(c, None | Some([0, 1])) && (self.beta == 1.0 || c.is_none())
    }

    /// The native function of it.
    fn run(&self, cx: &OpCx) -> Result<Run, OpError> {
        let sizes = [0, 1, 2].map(|i| cx.input_opt(i).map_or(0, TensorInfo::elements));
        Ok(Run { dims: self.resolve(cx)?, op: self.clone(), sizes, panels: None })
    }
}

impl Operator for Gemm {
    fn name(&self) -> &'static str {
        "Gemm"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        let &Gemm { alpha, beta, trans_a, trans_b, activation } = self;
        let product = Structure::MatMul { alpha, beta, transposed: [trans_a, trans_b] };
        (activation == Activation::None).then_some(product)
    }

    /// B is given as it is multiplied.
    fn quantized(&self, to: &Quantized<'_>) -> Option<Arc<dyn Operator>> {
        let plain = self.alpha == 1.0 && (self.beta == 1.0 || !to.biased) && !self.trans_a;
        self.structure().filter(|_| plain)?;
        let sums = SumsBecome::Bytes { clamp: to.clamp };
        Some(Arc::new(QuantizedMatMul { sums, biased: to.biased }))
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=3, 1..=1)?;
        let dtype = cx.dtype_of(0, TYPES)?;
        cx.expect_dtype(1, dtype)?;
        if cx.has(2) {
            cx.expect_dtype(2, dtype)?;
        }
        let dims = self.resolve(cx)?;
        if !dtype.is_float() {
            if self.activation != Activation::None {
                return Err(OpError::unsupported(format!("a fused activation of {dtype}")));
            }
            if self.alpha.fract() != 0.0 || self.beta.fract() != 0.0 {
                return Err(OpError::unsupported(format!("fractional alpha or beta of {dtype}")));
            }
        }
        Ok(vec![TensorInfo::new(dtype, Shape::new([dims.m, dims.n])?)])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let flops = self.resolve(cx).map_or(0, |d| Cost::product(&[2, d.m, d.n, d.k]));
        Cost { flops, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let run = self.run(cx)?;
        match cx.dtype(0)? {
            DType::I32 => Ok(integers::<i32>(run)),
            DType::I64 => Ok(integers::<i64>(run)),
            DType::U32 => Ok(integers::<u32>(run)),
            DType::U64 => Ok(integers::<u64>(run)),
            _ => real_kernel("Gemm", cx, run),
        }
    }

    fn cpu_on(&self, cx: &OpCx, _: &DeviceInfo) -> Result<Native, OpError> {
        let dims = self.resolve(cx)?;
        let plain = self.alpha == 1.0 && !self.trans_a && self.bias_alone(dims.c);
        let found = if plain { panels::of_constant(cx, 1, [dims.k, dims.n], self.trans_b) } else { None };
        let Some((panels, packed)) = found else { return self.cpu(cx).map(Native::from) };
        let mut run = self.run(cx)?;
        run.sizes[1] = panels.len();
        run.panels = Some(panels);
        Ok(Native { kernel: real_kernel("Gemm", cx, run)?, packed: vec![(1, packed)] })
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Dims { m, n, k, c } = self.resolve(cx)?;
        let product = Product {
            c: c.map(|strides| (Operand::Input(2), strides)),
            alpha: self.alpha,
            beta: self.beta,
            activation: self.activation,
            ..Product::new(
                [m, n, k],
                vec![(0, 0)],
                [Source::input(cx, 0, m, k, self.trans_a)?, Source::input(cx, 1, k, n, self.trans_b)?],
                cx.dtype(0)?,
                Operand::Output(0),
            )
        };
        product.lower(lower)
    }

    fn with_transposed(&self, port: Port, perm: &[i64]) -> Option<Arc<dyn Operator>> {
        let mut gemm = self.clone();
        let flag = match port {
            Port::Input(0) => &mut gemm.trans_a,
            Port::Input(1) => &mut gemm.trans_b,
            _ => return None,
        };
        *flag = !*flag;
        (perm == [1, 0]).then(|| Arc::new(gemm) as Arc<dyn Operator>)
    }

    fn with_activation(&self, activation: &Activation) -> Option<Arc<dyn Operator>> {
        let activation = self.activation.then(activation)?;
        Some(Arc::new(Gemm { activation, ..self.clone() }) as Arc<dyn Operator>)
    }
}

struct Run {
    dims: Dims,
    op: Gemm,
    sizes: [usize; 3],
    /// How B lies, where it is packed.
    panels: Option<Layout>,
}

impl Run {
    fn left<'a, T>(&self, a: &'a [T]) -> Mat<'a, T> {
        if self.op.trans_a { Mat::transposed(a, self.dims.m) } else { Mat::rows(a, self.dims.k) }
    }

    fn right<'a, T>(&self, b: &'a [T]) -> Mat<'a, T> {
        if self.op.trans_b { Mat::transposed(b, self.dims.k) } else { Mat::rows(b, self.dims.n) }
    }
}

/// Calls `f` with every element of the `n`-column output and the element of C it takes.
fn each_c<T: Copy>(y: &mut [T], n: usize, c: &[T], [row, col]: [usize; 2], f: impl Fn(&mut T, T)) {
    for (r, y) in y.chunks_mut(n.max(1)).enumerate() {
        y.iter_mut().enumerate().for_each(|(i, y)| f(y, c[r * row + i * col]));
    }
}

impl RealKernel for Run {
    const HALF: &'static [usize] = &[1];

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let Dims { m, n, k, c: c_strides } = self.dims;
        let (y, inputs) = io.output(0, m * n)?;
        let a = self.left(inputs.get(0, self.sizes[0])?);
        let half = inputs.half(1, self.sizes[1])?;
        let c = c_strides.map(|s| Ok((inputs.get(2, self.sizes[2])?, s))).transpose()?;
        let (alpha, beta) = (T::from_f64(self.op.alpha.into()), T::from_f64(self.op.beta.into()));
        if alpha == T::ONE && self.op.bias_alone(c_strides) {
            let around = Around { bias: c.map(|(c, _)| c), activation: self.op.activation };
            if let Some(layout) = self.panels {
                let b = inputs.get(1, self.sizes[1])?;
                return panels::product([a.data, b], layout, m, y, around, Threads::All);
            }
            if let Some(b) = half {
                return half_product_around([m, n, k], a, self.right(b), y, n, around, Threads::All);
            }
            let b = self.right(inputs.get(1, self.sizes[1])?);
            return product_around([m, n, k], a, b, y, n, around, Threads::All);
        }
        let b = inputs.widened(1, self.sizes[1])?;
        let b = self.right(&b);
        if alpha == T::ONE {
            if let Some((c, strides)) = c {
                each_c(y, n, c, strides, |y, c| *y = beta * c);
            }
            product([m, n, k], a, b, y, n, c.is_some(), Threads::All)?;
        } else {
            product([m, n, k], a, b, y, n, false, Threads::All)?;
            y.iter_mut().for_each(|y| *y *= alpha);
            if let Some((c, strides)) = c {
                each_c(y, n, c, strides, |y, c| *y += beta * c);
            }
        }
        self.op.activation.apply(y);
        Ok(())
    }
}

fn integers<T: Int>(run: Run) -> NativeKernel {
    NativeKernel::new("Gemm", move |args| {
        let Dims { m, n, k, c: c_strides } = run.dims;
        let (a, b) = (args.read::<T>(0)?, args.read::<T>(1)?);
        let c = args.read_opt::<T>(2)?;
        let y = args.take_write::<T>(args.len() - 1)?;
        for (i, len) in [a.len(), b.len(), c.map_or(run.sizes[2], <[T]>::len)].into_iter().enumerate() {
            check_len(i, len, run.sizes[i])?;
        }
        check_len(args.len() - 1, y.len(), m * n)?;
        y.fill(bytemuck::Zeroable::zeroed());
        add_product(n, k, run.left(a), run.right(b), y);
        let (alpha, beta) = (T::from_whole(run.op.alpha), T::from_whole(run.op.beta));
        y.iter_mut().for_each(|y| *y = y.times(alpha));
        if let (Some(c), Some(strides)) = (c, c_strides) {
            each_c(y, n, c, strides, |y, c| *y = y.plus(c.times(beta)));
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
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_cpu, run_f32, tensor, tensor_of};

    proptest! {
        #[test]
        fn gemm_matches_its_definition(
            m in 1usize..9, n in 1usize..9, k in 1usize..20, ta in any::<bool>(), tb in any::<bool>(),
            alpha in prop_oneof![Just(1.0f32), Just(0.5)], beta in prop_oneof![Just(1.0f32), Just(0.0), Just(-2.0)],
            c in 0usize..6, relu in any::<bool>(),
        ) {
            let a = tensor(&if ta { [k, m] } else { [m, k] }, 1);
            let b = tensor(&if tb { [n, k] } else { [k, n] }, 2);
            let shapes: [&[usize]; 5] = [&[], &[n], &[1, n], &[m, 1], &[m, n]];
            let c = shapes.get(c).map(|s| tensor(s, 3));
            let map = attrs(&[
                ("alpha", AttrValue::Float(alpha)),
                ("beta", AttrValue::Float(beta)),
                ("transA", AttrValue::Int(ta.into())),
                ("transB", AttrValue::Int(tb.into())),
            ]);
            let mut op = read_op("Gemm", 13, &map).unwrap();
            if relu {
                op = op.with_activation(&Activation::of(Function::Relu)).unwrap();
            }
            let mut inputs = vec![Some(a.clone()), Some(b.clone())];
            inputs.extend(c.clone().map(Some));
            let got = run_f32(&*op, &inputs).unwrap();
            let (av, bv) = (a.to_f32s().unwrap(), b.to_f32s().unwrap());
            let mut want = Vec::new();
            for r in 0..m {
                for col in 0..n {
                    let sum: f64 = (0..k).map(|i| {
                        let x = if ta { av[i * m + r] } else { av[r * k + i] };
                        let y = if tb { bv[col * k + i] } else { bv[i * n + col] };
                        f64::from(x) * f64::from(y)
                    }).sum();
                    let bias = c.as_ref().map_or(0.0, |c| {
                        let v = c.to_f32s().unwrap();
                        let d = c.shape().dims();
                        let at = match d {
                            [] => 0,
                            &[len] => col % len,
                            &[rows, cols] => r % rows * cols + col % cols,
                            _ => unreachable!(),
                        };
                        f64::from(v[at])
                    });
                    let y = f64::from(alpha) * sum + f64::from(beta) * bias;
                    want.push(if relu { y.max(0.0) } else { y });
                }
            }
            assert_near(&got, &want, 1e-5);
        }
    }

    #[test]
    fn integers_work_and_mismatches_are_errors() {
        let map = attrs(&[("alpha", AttrValue::Float(2.0))]);
        let op = read_op("Gemm", 13, &map).unwrap();
        let t = |v: &[i32]| Some(Tensor::new([2, 2], v).unwrap());
        let inputs = [t(&[1, 2, 3, 4]), t(&[1, 0, 0, 1]), Some(Tensor::new([2], &[10i32, 20]).unwrap())];
        let got = run_cpu(&*op, &inputs, 1).unwrap().remove(0);
        assert_eq!(got.as_slice::<i32>().unwrap(), [12, 24, 16, 28]);
        let fails = |a: &[usize], b: &[usize], c: &[usize]| {
            let inputs = [a, b, c].map(|s| Some(tensor(s, 1)));
            facts(&*op, &inputs, 1).is_err()
        };
        assert!(fails(&[2, 3], &[2, 3], &[]));
        assert!(fails(&[2, 3, 1], &[3, 3], &[]));
        assert!(fails(&[2, 3], &[3, 4], &[3]));
        assert!(fails(&[2, 3], &[3, 4], &[1, 2, 4]));
    }

    #[cfg(feature = "vulkan")]
    #[test]
    fn devices_compute_the_same() {
        use crate::ops::testing::{Check, no_texels};
        for (i, c) in [&[] as &[usize], &[13], &[10, 1], &[10, 13], &[1, 13]].into_iter().enumerate() {
            let op = Gemm {
                alpha: 0.5,
                beta: -2.0,
                trans_a: i % 2 == 0,
                trans_b: i % 3 != 0,
                activation: Activation::with(Function::LeakyRelu, [0.1, 0.0]),
            };
            let a = tensor(&if op.trans_a { [21, 10] } else { [10, 21] }, 1);
            let b = tensor(&if op.trans_b { [13, 21] } else { [21, 13] }, 2);
            let inputs = [Some(a), Some(b), Some(tensor(c, 3))];
            Check::new(&op, &inputs).tolerance(1e-5).run();
            Check::new(&op, &inputs).constants(&[1, 2]).tolerance(1e-5).run();
            Check::new(&op, &inputs).pretend(no_texels).tolerance(1e-5).run();
        }
        // Few rows and columns of whole texels, read where they lie.
        for (m, n, k) in [(1, 9, 16), (3, 34, 48), (8, 5, 12), (7, 2, 4)] {
            let op = Gemm { trans_b: true, alpha: 2.0, ..Gemm::default() };
            let inputs = [Some(tensor(&[m, k], 1)), Some(tensor(&[n, k], 2)), Some(tensor(&[n], 3))];
            Check::new(&op, &inputs).constants(&[1]).tolerance(1e-5).run();
            Check::new(&op, &inputs[..2]).tolerance(1e-5).run();
            let half = |t: &Option<Tensor>| {
                let t = t.as_ref()?;
                Some(tensor_of(t.shape().dims(), &t.to_f32s().ok()?, half::f16::from_f32))
            };
            let halves: Vec<Option<Tensor>> = inputs.iter().map(half).collect();
            Check::new(&op, &halves).constants(&[1]).tolerance(4e-3).run();
        }
        // Wide tiles.
        for i in 0..4 {
            let (trans_a, trans_b) = (i % 2 == 0, i / 2 == 0);
            let op =
                Gemm { alpha: 0.5, beta: -2.0, trans_a, trans_b, activation: Activation::of(Function::Relu) };
            let a = tensor(&if trans_a { [20, 132] } else { [132, 20] }, 1);
            let b = tensor(&if trans_b { [4100, 20] } else { [20, 4100] }, 2);
            let inputs = [Some(a), Some(b), Some(tensor(&[132, 1], 3))];
            Check::new(&op, &inputs).pretend(no_texels).tolerance(1e-5).run();
        }
    }
}
