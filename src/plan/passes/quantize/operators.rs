//! Convolutions, products, sums and concatenations of bytes.

use std::sync::Arc;

use super::{View, Walk, input, output};
use crate::dtype::DType;
use crate::graph::{NodeId, Tensor, TensorId};
use crate::operator::{Fact, OpCx, Operator, Quantized, Scaling, Structure};
use crate::ops::movement::Transpose;
use crate::ops::quant::ByteTable;
use crate::plan::evaluate;

/// Consecutive activations that the walk looks through.
const MOST_CLAMPS: usize = 4;
/// The longest sums that 32 bits hold for any bytes.
const DEEPEST: usize = (i32::MAX as usize / 2) / (255 * 255);
/// Maximum rounding error of a bias, in units of the output.
const MOST_OFF: f32 = 1.0 / 16.0;

/// Weights: constant bytes, with one scale or one for each channel.
struct Weights {
    bytes: TensorId,
    scale: TensorId,
    zero: TensorId,
    scales: Vec<f32>,
}

impl Walk<'_> {
    /// Replaces node `n`, which quantizes `y` to `to`, by an operator on bytes.
    pub(super) fn operator(&mut self, n: usize, y: TensorId, to: &View) -> Option<()> {
        let (maker, clamp) = self.unclamped(y, to)?;
        let op = self.old[maker].op.clone();
        let (op, inputs) = match op.structure()? {
            Structure::Conv => self.conv(maker, op.as_ref(), to, clamp)?,
            Structure::MatMul { transposed: [false, is_transposed], .. } => {
                self.product(maker, op.as_ref(), is_transposed, to, clamp)?
            }
            Structure::Elementwise(_) => self.elementwise(maker, op.as_ref(), to, clamp)?,
            Structure::Concat => self.concat(maker, op.as_ref(), to, clamp)?,
            _ => return None,
        };
        let result = output(&self.old[n])?;
        self.position.push(NodeId(self.nodes.len() as u32));
        self.emit_like(maker, op, inputs, result);
        Some(())
    }

    /// The producer of `y` before activations that clamp elements, and the bounds as elements.
    fn unclamped(&self, y: TensorId, to: &View) -> Option<(usize, Option<[i32; 2]>)> {
        let all = to.scaling.range();
        let mut clamp = all;
        let mut at = y;
        for _ in 0..=MOST_CLAMPS {
            let n = self.index.producer(at.index())?;
            if !self.is_inner(at) || !self.is_free(n) {
                return None;
            }
            let activation = self.old[n].op.as_activation(&self.facts(n));
            let Some(bounds) = activation.and_then(|activation| activation.bounds()) else {
                return Some((n, (clamp != all).then_some(clamp)));
            };
            let is_range = bounds[0] <= bounds[1];
            if !is_range {
                return None;
            }
            // Later clamps keep these bounds within theirs.
            clamp = bounds.map(|bound| to.scaling.element(bound).clamp(clamp[0], clamp[1]));
            at = input(&self.old[n], 0)?;
        }
        None
    }

    fn conv(&mut self, n: usize, op: &dyn Operator, to: &View, clamp: Option<[i32; 2]>) -> Option<NewNode> {
        let node = &self.old[n];
        let x = input(node, 0)?;
        let view = self.views.get(&x).copied()?;
        let shape = self.weight(input(node, 1)?)?.shape().clone();
        let channels = *shape.first()?;
        let w = self.weights(input(node, 1)?, 0, channels)?;
        let depth = shape.elements() / channels.max(1);
        if depth > DEEPEST {
            return None;
        }
        let bias = self.bias(input(node, 2), channels, &view, &w, to)?;
        let inputs = [view.scaling];
        let form = Quantized { inputs: &inputs, output: to.scaling, clamp, biased: bias.is_some() };
        let op = op.quantized(&form)?;
        let bytes = self.bytes_of(x, view)?;
        let mut inputs = self.parameters([bytes, w.bytes], &view, &w, to)?;
        inputs.extend(bias.map(Some));
        Some((op, inputs))
    }

    /// A matrix product; `is_transposed` tells whether the second matrix is transposed.
    fn product(
        &mut self,
        n: usize,
        op: &dyn Operator,
        is_transposed: bool,
        to: &View,
        clamp: Option<[i32; 2]>,
    ) -> Option<NewNode> {
        let node = &self.old[n];
        let (a, b) = (input(node, 0)?, input(node, 1)?);
        let view = self.views.get(&a).copied()?;
        let (scalings, biased) = ([view.scaling], input(node, 2).is_some());
        let op = op.quantized(&Quantized { inputs: &scalings, output: to.scaling, clamp, biased })?;
        let Some(weight) = self.weight(b) else {
            // A product of two computed tensors.
            let other = self.views.get(&b).copied().filter(|_| !is_transposed && !biased)?;
            let bytes = [self.bytes_of(a, view)?, self.bytes_of(b, other)?];
            let zero = self.zero_of(other.zero, &other.scaling)?;
            let w = Weights { bytes: bytes[1], scale: other.scale, zero, scales: Vec::new() };
            return Some((op, self.parameters(bytes, &view, &w, to)?));
        };
        let &[rows, columns] = weight.shape().dims() else { return None };
        let (depth, channels) = if is_transposed { (columns, rows) } else { (rows, columns) };
        if depth > DEEPEST {
            return None;
        }
        let w = self.weights(b, if is_transposed { 0 } else { 1 }, channels)?;
        let bias = self.bias(input(node, 2), channels, &view, &w, to)?;
        let mut weight = w.bytes;
        if is_transposed {
            let value = transposed(self.constant(weight)?)?;
            let name = node.name.clone();
            weight = self.add_constant(&name, value);
        }
        let bytes = self.bytes_of(a, view)?;
        let mut inputs = self.parameters([bytes, weight], &view, &w, to)?;
        inputs.extend(bias.map(Some));
        Some((op, inputs))
    }

    /// The inputs of node `n`, all of which have views.
    fn input_views(&self, n: usize) -> Option<Vec<(TensorId, View)>> {
        self.old[n].inputs.iter().map(|id| Some(((*id)?, self.views.get(&(*id)?).copied()?))).collect()
    }

    fn elementwise(
        &mut self,
        n: usize,
        op: &dyn Operator,
        to: &View,
        clamp: Option<[i32; 2]>,
    ) -> Option<NewNode> {
        let views = self.input_views(n)?;
        let scalings: Vec<Scaling> = views.iter().map(|(_, view)| view.scaling).collect();
        let form = Quantized { inputs: &scalings, output: to.scaling, clamp, biased: false };
        let op = op.quantized(&form)?;
        let bytes = views.into_iter().map(|(x, view)| self.bytes_of(x, view).map(Some));
        Some((op, bytes.collect::<Option<_>>()?))
    }

    fn concat(&mut self, n: usize, op: &dyn Operator, to: &View, clamp: Option<[i32; 2]>) -> Option<NewNode> {
        let views = self.input_views(n)?;
        // All bytes are converted to those of the output before concatenation.
        let scalings = vec![to.scaling; views.len()];
        let form = Quantized { inputs: &scalings, output: to.scaling, clamp, biased: false };
        let op = op.quantized(&form)?;
        let mut inputs = Vec::with_capacity(views.len());
        for (x, view) in views {
            let mut bytes = self.bytes_of(x, view)?;
            if view.scaling != to.scaling {
                let table = self.conversion(&view.scaling, &to.scaling)?;
                let name = self.old[n].name.clone();
                let table = self.add_constant(&name, table);
                let result = self.add_result(x);
                self.emit_like(n, Arc::new(ByteTable { rank: 0 }), vec![Some(bytes), Some(table)], result);
                bytes = result;
            }
            inputs.push(Some(bytes));
        }
        Some((op, inputs))
    }

    /// A, its scale and zero point, B, the same, scale and zero point of the output.
    fn parameters(
        &mut self,
        [a, b]: [TensorId; 2],
        view: &View,
        w: &Weights,
        to: &View,
    ) -> Option<Vec<Option<TensorId>>> {
        let a_zero = self.zero_of(view.zero, &view.scaling)?;
        let y_zero = self.zero_of(to.zero, &to.scaling)?;
        let all = [a, view.scale, a_zero, b, w.scale, w.zero, to.scale, y_zero];
        Some(all.map(Some).to_vec())
    }

    /// The constant bytes from which `id` is dequantized.
    fn weight(&self, id: TensorId) -> Option<&Tensor> {
        let node = &self.old[self.index.producer(id.index())?];
        matches!(node.op.structure(), Some(Structure::Dequantize { .. })).then_some(())?;
        self.constant(input(node, 0)?).filter(|t| matches!(t.dtype(), DType::I8 | DType::U8))
    }

    /// The weights that `id` represents, with one scale or one for each of `channels` positions of `axis`.
    fn weights(&mut self, id: TensorId, axis: i64, channels: usize) -> Option<Weights> {
        let maker = self.index.producer(id.index())?;
        let node = &self.old[maker];
        let Structure::Dequantize { axis: of_scales, blocks, dtype: made } = node.op.structure()? else {
            return None;
        };
        if !self.is_free(maker) {
            return None;
        }
        let (bytes, scale, zero) = (input(node, 0)?, input(node, 1)?, input(node, 2));
        if let Some(view) = self.views.get(&id).copied() {
            let zero = self.zero_of(view.zero, &view.scaling)?;
            return Some(Weights { bytes, scale, zero, scales: vec![view.scaling.scale] });
        }
        let weight = self.constant(bytes)?;
        let rank = weight.shape().rank() as i64;
        let along = if of_scales < 0 { of_scales + rank } else { of_scales };
        let plain = !blocks && made.is_none_or(|to| to == DType::F32) && along == axis;
        let scales = self.constant(scale).filter(|t| t.dtype() == DType::F32)?;
        if !plain || scales.shape().dims() != [channels] {
            return None;
        }
        let scales = scales.as_slice::<f32>().ok()?.to_vec();
        if !scales.iter().all(|s| s.is_finite() && *s > 0.0) {
            return None;
        }
        let dtype = weight.dtype();
        let zero = match zero {
            Some(zero) => {
                let fits = self.constant(zero)?.dtype() == dtype
                    && self.constant(zero)?.shape().dims() == [channels];
                fits.then_some(zero)?
            }
            None => self.zero_of(None, &Scaling { dtype, scale: 1.0, zero: 0 })?,
        };
        Some(Weights { bytes, scale, zero, scales })
    }

    /// The bias in units of the sums; `Some(None)` where there is none.
    fn bias(
        &mut self,
        bias: Option<TensorId>,
        channels: usize,
        view: &View,
        w: &Weights,
        to: &View,
    ) -> Option<Option<TensorId>> {
        let Some(id) = bias else { return Some(None) };
        let unit = |c: usize| {
            let scale = if w.scales.len() == 1 { w.scales.first() } else { w.scales.get(c) };
            f64::from(view.scaling.scale) * f64::from(scale.copied().unwrap_or(f32::NAN))
        };
        let numbers = self.numbers(id).filter(|numbers| numbers.len() == channels)?;
        let mut sums = Vec::with_capacity(channels);
        for (c, number) in numbers.iter().enumerate() {
            let sum = (number / unit(c)).round();
            let off = (sum * unit(c) - number).abs() / f64::from(to.scaling.scale);
            // Half of the 32-bit range is left to the products.
            if !(sum.abs() < f64::from(i32::MAX / 2) && off <= f64::from(MOST_OFF)) {
                return None;
            }
            sums.push(sum as i32);
        }
        let name = self.graph.tensor(id).name.clone();
        let sums = Tensor::new([channels], &sums).ok()?;
        Some(Some(self.add_constant(&name, sums)))
    }

    /// The values of constant `id`, which may be quantized to `int32`.
    fn numbers(&self, id: TensorId) -> Option<Vec<f64>> {
        if let Some(t) = self.constant(id) {
            let numbers = if t.dtype() == DType::F32 { t.as_slice::<f32>().ok()? } else { return None };
            return Some(numbers.iter().map(|v| f64::from(*v)).collect());
        }
        let maker = self.index.producer(id.index())?;
        let node = &self.old[maker];
        let Structure::Dequantize { blocks, dtype, .. } = node.op.structure()? else { return None };
        let whole =
            self.constant(input(node, 0)?).filter(|t| t.dtype() == DType::I32 && t.shape().rank() == 1)?;
        let scales = self.constant(input(node, 1)?).filter(|t| t.dtype() == DType::F32)?;
        let zeros = match input(node, 2) {
            Some(zero) => self.constant(zero)?.to_i64s().ok()?,
            None => vec![0],
        };
        let (whole, scales) = (whole.as_slice::<i32>().ok()?, scales.as_slice::<f32>().ok()?);
        let each = |n: usize| n == 1 || n == whole.len();
        let plain = !blocks && dtype.is_none_or(|to| to == DType::F32);
        if !plain || !each(scales.len()) || !each(zeros.len()) || zeros.iter().any(|zero| *zero != 0) {
            return None;
        }
        let number = |(v, s): (&i32, &f32)| f64::from(*v) * f64::from(*s);
        Some(whole.iter().zip(scales.iter().cycle()).map(number).collect())
    }
}

/// An operator and its inputs.
type NewNode = (Arc<dyn Operator>, Vec<Option<TensorId>>);

fn transposed(weight: &Tensor) -> Option<Tensor> {
    let op = Transpose { perm: Some(vec![1, 0]) };
    let cx = OpCx::for_infer(vec![Some(Fact::known(weight.clone()))], 1);
    let infos = op.infer(&cx).ok()?;
    let cx = cx.with_outputs(infos);
    evaluate(&op, &cx, &op.cpu(&cx).ok()?).ok()?.pop()
}
