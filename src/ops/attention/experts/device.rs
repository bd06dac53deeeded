//! On devices: pairs of a token and an expert, in tiles of one expert where there are many.

use super::{ExpertActivation, FACTORS, Gated, Product, ROUTER, Resolved, SPARSE, X};
use crate::dtype::DType;
use crate::kernel::codes::moe_gate::Second;
use crate::kernel::codes::{expert_tile, expert_vector, moe_sort, moe_tile, moe_vector};
use crate::kernel::grid_1d;
use crate::kernel::table::{id, params, spec, variants};
use crate::ops::ggml::Rows;
use crate::ops::word::word;
use crate::ops::{Lowering, OpCx, OpError, Operand};

/// With fewer pairs for each expert than this, each pair is computed alone.
const FEW: usize = 4;

/// Which pairs a product is of.
struct Pairs {
    /// The chosen experts, or the order of pairs with its tiles.
    experts: Operand,
    /// Tiles of that order, if it is one.
    tiles: Option<usize>,
}

impl Resolved {
    /// Emits all steps.
    pub(super) fn lower(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let dtype = cx.dtype(X)?;
        let (route, combine) =
            (variants::MoeRoute { t: dtype }.id()?, variants::MoeCombine { t: dtype }.id()?);
        let (pairs, top) = (self.pairs(), self.op.top);
        if pairs == 0 || self.width == 0 || self.inner == 0 {
            return Err(OpError::unsupported("experts of nothing"));
        }
        let (tokens, experts) = (word(self.tokens)?, word(self.experts)?);
        let chosen = lower.scratch(pairs * 4);
        let factors = lower.scratch(pairs * 4);
        let given = if self.given { Operand::Input(FACTORS) } else { Operand::Unused };
        let constants = [
            (spec::moe_route::TOP, top as u32),
            (spec::moe_route::NORMALIZE, u32::from(self.op.normalize)),
            (spec::moe_route::GIVEN, u32::from(self.given)),
            (spec::moe_route::SPARSE, u32::from(self.op.sparse && !self.given)),
        ];
        let args = [Operand::Input(ROUTER), given, chosen, factors];
        lower.dispatch_1d(
            route,
            &constants,
            &args,
            &params::MoeRoute { tokens, experts, sparse: SPARSE as f32 },
            self.tokens,
        )?;
        let mut of = Pairs { experts: chosen, tiles: None };
        if pairs >= FEW * self.experts && self.experts <= moe_sort::EXPERTS {
            // No expert has more than one tile that is not full.
            let rows = if self.op.blocks.is_some() { expert_tile::ROWS } else { moe_tile::ROWS };
            let tiles = pairs / rows + self.experts;
            let sorted = lower.scratch((pairs + 3 * tiles) * 4);
            let constants = [(spec::moe_sort::ROWS, rows as u32)];
            let params = params::MoeSort { pairs: word(pairs)?, experts, tiles: word(tiles)? };
            lower.dispatch(id::MOE_SORT, &constants, &[chosen, sorted], &params, [1, 1, 1])?;
            of = Pairs { experts: sorted, tiles: Some(tiles) };
        }
        let [Some(first), Some(second), third] = &self.products else {
            return Err(OpError::MissingInput { input: X });
        };
        let one = self.lower_product(cx, first, Operand::Input(X), &of, lower)?;
        let mut gated = one;
        if let Some(third) = third {
            gated = self.lower_product(cx, third, Operand::Input(X), &of, lower)?;
            lower.no_barrier();
        }
        let inner = lower.scratch(pairs * self.inner * 4);
        self.lower_gate(one, gated, inner, lower)?;
        let answers = self.lower_product(cx, second, inner, &of, lower)?;
        let n = self.tokens * self.width;
        let params = params::MoeCombine { n: word(n)?, len: word(self.width)? };
        let args = [answers, factors, Operand::Output(0)];
        lower.dispatch_1d(combine, &[(spec::moe_combine::TOP, top as u32)], &args, &params, n)
    }

    /// The products of all pairs, `float32`. `x` is the tokens, or `float32` for every pair.
    fn lower_product(
        &self,
        cx: &OpCx,
        p: &Product,
        x: Operand,
        of: &Pairs,
        lower: &mut Lowering<'_>,
    ) -> Result<Operand, OpError> {
        if let Some(rows) = p.blocks {
            return self.lower_blocks(cx, (p, rows), x, of, lower);
        }
        let pairs = self.pairs();
        let by_token = x == Operand::Input(X);
        let dtype = cx.dtype(X)?;
        let (t, s, coded) = (dtype, if by_token { dtype } else { DType::F32 }, p.coded.is_some());
        let kernel = match of.tiles {
            None => variants::MoeVector { t, s, coded }.id()?,
            Some(_) => variants::MoeTile { t, s, coded }.id()?,
        };
        let pick = |i: usize| if cx.has(i) { Operand::Input(i) } else { Operand::Unused };
        let y = lower.scratch(pairs.saturating_mul(p.n).saturating_mul(4));
        let (mut scales, mut zeros) = (Operand::Unused, Operand::Unused);
        let (mut bits, mut with_zeros) = (8, false);
        let mut words = [0, 1, 1, 1, 0];
        if let Some(c) = p.coded {
            if cx.dtype(c.scales)? != dtype {
                return Err(OpError::unsupported(format!(
                    "no device kernel for scales of other than {dtype}"
                )));
            }
            if !c.bytes.is_multiple_of(4) {
                return Err(OpError::unsupported(
                    "no device kernel for rows of codes that are no whole words",
                ));
            }
            (scales, zeros) = (Operand::Input(c.scales), pick(c.zeros));
            (bits, with_zeros) = (c.bits, cx.has(c.zeros));
            words = [c.bytes / 4, c.block, c.blocks, c.zero_rows, c.zero_bytes];
        }
        let [words, block, blocks, zero_rows, zero_bytes] = words;
        word(self.experts.saturating_mul(p.n).saturating_mul(p.k))?;
        let sizes = [pairs, p.n, p.k, if by_token { self.op.top } else { 1 }];
        let [pairs_word, n, k, share] = sizes.map(word);
        let (pairs_word, n, k, share) = (pairs_word?, n?, k?, share?);
        let (words, block, blocks) = (word(words)?, word(block)?, word(blocks)?);
        let (zero_rows, zero_bytes) = (word(zero_rows)?, word(zero_bytes)?);
        let tiles = word(of.tiles.unwrap_or(0))?;
        word(pairs.saturating_mul(p.n.max(p.k)))?;
        let params = params::Moe {
            pairs: pairs_word,
            n,
            k,
            share,
            words,
            block,
            blocks,
            zero_rows,
            zero_bytes,
            tiles,
        };
        let args = [x, Operand::Input(p.weights), scales, zeros, pick(p.bias), of.experts, y];
        let max_x = lower.device().limits.max_groups[0];
        let constants = [
            (spec::moe::BIASED, u32::from(cx.has(p.bias))),
            (spec::moe::BITS, bits as u32),
            (spec::moe::ZEROS, u32::from(with_zeros)),
        ];
        let groups = match of.tiles {
            None => pairs * p.n.div_ceil(moe_vector::COLS),
            Some(count) => count * p.n.div_ceil(moe_tile::COLS),
        };
        lower.dispatch(kernel, &constants, &args, &params, grid_1d(groups as u64, 1, max_x))?;
        Ok(y)
    }

    /// As [`Resolved::lower_product`], with an expert's rows of blocks.
    fn lower_blocks(
        &self,
        cx: &OpCx,
        (p, rows): (&Product, Rows),
        x: Operand,
        of: &Pairs,
        lower: &mut Lowering<'_>,
    ) -> Result<Operand, OpError> {
        let (pairs, t) = (self.pairs(), cx.dtype(X)?);
        let (s, share) = if x == Operand::Input(X) { (t, self.op.top) } else { (DType::F32, 1) };
        let (kernel, groups) = match of.tiles {
            None => (variants::ExpertVector { t, s }.id()?, pairs * p.n.div_ceil(expert_vector::COLS)),
            Some(tiles) => (variants::ExpertTile { t, s }.id()?, tiles * p.n.div_ceil(expert_tile::COLS)),
        };
        word(cx.input(p.weights)?.bytes())?;
        word(pairs.saturating_mul(p.n.max(p.k)))?;
        let params = params::ExpertBlocks {
            pairs: word(pairs)?,
            n: word(p.n)?,
            k: word(p.k)?,
            share: word(share)?,
            row_bytes: word(rows.row_bytes())?,
            tiles: word(of.tiles.unwrap_or(0))?,
        };
        let bias = if cx.has(p.bias) { Operand::Input(p.bias) } else { Operand::Unused };
        let y = lower.scratch(pairs.saturating_mul(p.n).saturating_mul(4));
        let args = [x, Operand::Input(p.weights), bias, of.experts, y];
        let constants = [
            (spec::blocks::TYPE, rows.blocks as u32),
            (spec::expert_blocks::BIASED, u32::from(cx.has(p.bias))),
        ];
        let max_x = lower.device().limits.max_groups[0];
        lower.dispatch(kernel, &constants, &args, &params, grid_1d(groups as u64, 1, max_x))?;
        Ok(y)
    }

    fn lower_gate(
        &self,
        a: Operand,
        b: Operand,
        y: Operand,
        lower: &mut Lowering<'_>,
    ) -> Result<(), OpError> {
        let (code, [alpha, _]) = self.op.activation.function().code();
        let [beta, limit] = match self.op.activation {
            ExpertActivation::SwiGlu { beta, limit, .. } => [beta, limit.min(f32::MAX)],
            _ => [0.0; 2],
        };
        let limited = matches!(self.op.activation, ExpertActivation::SwiGlu { .. });
        let second = match self.gated {
            Gated::No => Second::None,
            Gated::Interleaved => Second::Interleaved,
            Gated::Halves => Second::Halves,
            Gated::Third => Second::Third,
        };
        let n = self.pairs() * self.inner;
        let b = if second == Second::Third { b } else { Operand::Unused };
        let constants = [
            (spec::moe_gate::ACTIVATION, code),
            (spec::moe_gate::SECOND, second as u32),
            (spec::moe_gate::LIMITED, limited.into()),
        ];
        let params = params::MoeGate { n: word(2 * n)? / 2, len: word(self.inner)?, alpha, beta, limit };
        lower.dispatch_1d(id::MOE_GATE, &constants, &[a, b, y], &params, n)
    }
}
