//! The native function: experts one after another, each with all tokens that chose it.

use super::{Coded, ExpertActivation, FACTORS, Gated, Product, ROUTER, Resolved, SPARSE, X};
use crate::kernel::KernelError;
use crate::ops::ggml::{Rows, multiply};
use crate::ops::linalg::product::{Mat, Threads, product};
use crate::ops::par;
use crate::ops::real::{Real, RealInputs, RealIo, RealKernel};

/// Rows of codes that are made numbers at once.
const ROWS: usize = 32;
/// Bound of the router's numbers, so that their differences are finite.
const LARGEST: f64 = f32::MAX as f64;

/// A token that chose an expert, and the factor of the answer.
#[derive(Clone, Copy)]
struct Pair<T> {
    token: usize,
    factor: T,
}

/// The share of the first of `order`, the largest of them, in the softmax over those nearly as large.
fn sparse(numbers: &[f64], order: &[usize]) -> f64 {
    let most = order.first().map_or(0.0, |e| numbers[*e]);
    let near = |v: &f64| most - v <= SPARSE * v.abs().max(most);
    1.0 / order.iter().map(|e| numbers[*e]).filter(near).map(|v| (v - most).exp()).sum::<f64>()
}

impl Resolved {
    /// The tokens that chose each expert.
    fn route<T: Real>(&self, router: &[T], given: Option<&[T]>) -> Vec<Vec<Pair<T>>> {
        let (experts, top) = (self.experts, self.op.top);
        let mut chosen = vec![Vec::new(); experts];
        for token in 0..self.tokens {
            let numbers: Vec<f64> = router[token * experts..][..experts]
                .iter()
                .map(|v| v.to_f64())
                .map(|v| if v.is_nan() { -LARGEST } else { v.clamp(-LARGEST, LARGEST) })
                .collect();
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_by(|a, b| numbers[*b].total_cmp(&numbers[*a]));
            if self.op.sparse && given.is_none() {
                for (s, e) in order[..top].iter().enumerate() {
                    let factor = T::from_f64(sparse(&numbers, &order[s..]));
                    chosen[*e].push(Pair { token, factor });
                }
                continue;
            }
            let most = numbers[order[0]];
            let weight = |e: usize| match given {
                Some(given) => given[token * experts + e].to_f64(),
                None => (numbers[e] - most).exp(),
            };
            let total: f64 = match (self.op.normalize, given) {
                (true, _) => order[..top].iter().map(|e| weight(*e)).sum(),
                (false, Some(_)) => 1.0,
                (false, None) => (0..experts).map(weight).sum(),
            };
            for e in &order[..top] {
                chosen[*e].push(Pair { token, factor: T::from_f64(weight(*e) / total) });
            }
        }
        chosen
    }

    /// Applies the gate to rows of `inner` elements of `first`, with the second operand from `first` or `third`.
    fn gate<T: Real>(&self, first: &[T], third: Option<&[T]>, out: &mut [T]) {
        let inner = self.inner.max(1);
        let both = |row: usize, i: usize| {
            let at = row * inner + i;
            match self.gated {
                Gated::No => (first[at], T::ONE),
                Gated::Interleaved => (first[2 * at], first[2 * at + 1]),
                Gated::Halves => (first[2 * row * inner + i], first[(2 * row + 1) * inner + i]),
                Gated::Third => (first[at], third.and_then(|t| t.get(at)).copied().unwrap_or(T::ZERO)),
            }
        };
        let limits = match self.op.activation {
            ExpertActivation::SwiGlu { beta, limit, .. } => {
                Some([beta, limit].map(|v| T::from_f64(v.into())))
            }
            _ => None,
        };
        let function = self.op.activation.function();
        par::share(out.chunks_mut(inner).enumerate(), |(row, out)| {
            for (i, out) in out.iter_mut().enumerate() {
                let (a, _) = both(row, i);
                *out = match limits {
                    Some([_, limit]) if a > limit => limit,
                    _ => a,
                };
            }
            function.apply(out);
            for (i, out) in out.iter_mut().enumerate() {
                let (_, b) = both(row, i);
                *out *= match limits {
                    Some([beta, limit]) => {
                        let b = if b > limit { limit } else { b };
                        let b = if b < -limit { -limit } else { b };
                        b + beta
                    }
                    None => b,
                };
            }
        });
    }
}

/// The operands of a product.
struct Operands<'a, T> {
    product: Product,
    /// Whether tokens may be rounded for weights in blocks.
    rounds: bool,
    weights: &'a [T],
    codes: &'a [u8],
    scales: &'a [T],
    zeros: Option<&'a [u8]>,
    bias: Option<&'a [T]>,
}

impl<'a, T: Real> Operands<'a, T> {
    fn read(product: Product, of: &Resolved, inputs: &RealInputs<'a, T>) -> Result<Self, KernelError> {
        let Product { weights: at, bias, n, k, coded, blocks } = product;
        let (experts, rounds) = (of.experts, of.op.blocks.is_some_and(|blocks| blocks.rounds));
        let bias = inputs.get_opt(bias, experts * n)?;
        let none = Operands { product, rounds, weights: &[], codes: &[], scales: &[], zeros: None, bias };
        if let Some(rows) = blocks {
            let all = Rows { rows: experts * n, ..rows }.info().map_or(0, |info| info.bytes());
            let codes = inputs.raw_opt(at, all)?.ok_or(KernelError::Absent { index: at })?;
            return Ok(Operands { codes, ..none });
        }
        let Some(c) = coded else {
            return Ok(Operands { weights: inputs.get(at, experts * n * k)?, ..none });
        };
        let absent = KernelError::Absent { index: at };
        Ok(Operands {
            codes: inputs.raw_opt(at, experts * n * c.bytes)?.ok_or(absent)?,
            scales: inputs.get(c.scales, experts * n * c.blocks)?,
            zeros: inputs.raw_opt(c.zeros, experts * n / c.zero_rows * c.zero_bytes)?,
            ..none
        })
    }

    /// Row `row` of all experts' weights, made of its codes.
    fn decode(&self, c: &Coded, row: usize, out: &mut [T]) {
        let mask = (1u8 << (c.bits - 1)) | ((1u8 << (c.bits - 1)) - 1);
        let code = |bytes: &[u8], i: usize| {
            let at = i * c.bits;
            bytes.get(at / 8).copied().unwrap_or(0) >> (at % 8) & mask
        };
        let codes = &self.codes[row * c.bytes..][..c.bytes];
        for (block, out) in out.chunks_mut(c.block).enumerate() {
            let zero = match self.zeros {
                Some(z) => {
                    let z = &z[row / c.zero_rows * c.zero_bytes..][..c.zero_bytes];
                    f64::from(code(z, row % c.zero_rows * c.blocks + block))
                }
                None => f64::from(1u32 << (c.bits - 1)),
            };
            let (zero, scale) = (T::from_f64(zero), self.scales[row * c.blocks + block]);
            for (i, out) in out.iter_mut().enumerate() {
                *out = (T::from_f64(code(codes, block * c.block + i).into()) - zero) * scale;
            }
        }
    }

    /// `x` (rows of `k`) times the transposed weights of `expert`, plus its bias.
    fn run(&self, expert: usize, x: &[T]) -> Result<Vec<T>, KernelError> {
        let Product { n, k, coded, blocks, .. } = self.product;
        let m = x.len() / k.max(1);
        let mut y = vec![T::ZERO; m * n];
        if let Some(rows) = blocks {
            let bytes = n * rows.row_bytes();
            let bias = self.bias.map(|bias| &bias[expert * n..][..n]);
            multiply(rows, self.rounds, x, &self.codes[expert * bytes..][..bytes], bias, &mut y)?;
            return Ok(y);
        }
        match coded {
            None => {
                let weights = &self.weights[expert * n * k..][..n * k];
                product(
                    [m, n, k],
                    Mat::rows(x, k),
                    Mat::transposed(weights, k),
                    &mut y,
                    n,
                    false,
                    Threads::All,
                )?;
            }
            Some(c) => {
                // Some rows of codes at once; their results are columns.
                let mut columns = vec![T::ZERO; m * n];
                par::try_share(columns.chunks_mut(ROWS * m.max(1)).enumerate(), |(part, out)| {
                    let rows = out.len() / m.max(1);
                    let mut made = vec![T::ZERO; rows * k];
                    for (r, made) in made.chunks_mut(k.max(1)).enumerate() {
                        self.decode(&c, expert * n + part * ROWS + r, made);
                    }
                    let transposed = Mat::transposed(x, k);
                    product([rows, m, k], Mat::rows(&made, k), transposed, out, m, false, Threads::One)
                })?;
                for (i, y) in y.iter_mut().enumerate() {
                    *y = columns[i % n * m + i / n];
                }
            }
        }
        if let Some(bias) = self.bias {
            let bias = &bias[expert * n..][..n];
            for row in y.chunks_mut(n.max(1)) {
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += *b);
            }
        }
        Ok(y)
    }
}

impl RealKernel for Resolved {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let width = self.width;
        let (y, inputs) = io.output(0, self.tokens * width)?;
        let x = inputs.get(X, self.tokens * width)?;
        let router = inputs.get(ROUTER, self.tokens * self.experts)?;
        let given = match self.given {
            true => Some(inputs.get(FACTORS, self.tokens * self.experts)?),
            false => None,
        };
        let mut products = Vec::with_capacity(3);
        for p in &self.products {
            products.push(p.map(|p| Operands::read(p, self, &inputs)).transpose()?);
        }
        let [Some(first), Some(second), third] = &products[..] else {
            return Err(KernelError::Absent { index: X });
        };
        y.fill(T::ZERO);
        for (expert, pairs) in self.route(router, given).iter().enumerate().filter(|(_, p)| !p.is_empty()) {
            let tokens: Vec<T> =
                pairs.iter().flat_map(|p| x[p.token * width..][..width].iter().copied()).collect();
            let one = first.run(expert, &tokens)?;
            let three = third.as_ref().map(|t| t.run(expert, &tokens)).transpose()?;
            let mut inner = vec![T::ZERO; pairs.len() * self.inner];
            self.gate(&one, three.as_deref(), &mut inner);
            let answers = second.run(expert, &inner)?;
            for (p, answer) in pairs.iter().zip(answers.chunks(width.max(1))) {
                let to = &mut y[p.token * width..][..width];
                to.iter_mut().zip(answer).for_each(|(y, a)| *y += p.factor * *a);
            }
        }
        Ok(())
    }
}
