//! Two products of few rows with ggml's blocks, of which one is the gate of the other.

use std::sync::Arc;

use super::blocks::Rows;
use super::matmul::{A, B, MatMulBlocks, Sizes};
use crate::backend::{DeviceInfo, DeviceKind};
use crate::graph::TensorInfo;
use crate::kernel::codes::block_vector;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel, grid_1d};
use crate::ops::linalg::coded;
use crate::ops::linalg::gated::gated;
use crate::ops::linalg::joined::{self, Beside, FewRows};
use crate::ops::movement::region::word;
use crate::ops::real::{Real, RealIo, RealKernel, real_kernel};
use crate::ops::{
    Absorbed, AbsorbedInput, Activation, Cost, Fact, Lowering, OpCx, OpError, Operand, Operator,
};

/// The rows of blocks of the second matrix, among the inputs.
const OTHER: usize = 2;

/// `activation(A x B) * (A x C)`. Inputs: A, B and C, both rows of blocks of one form. The planner makes it of products of
/// one input (pass `join_gates`).
#[derive(Clone, Copy, Debug)]
pub struct GatedBlocks {
    /// The rows of blocks of B, and those of C.
    pub b: Rows,
    /// As of [`MatMulBlocks::rounds`].
    pub rounds: bool,
    /// Of the first product.
    pub activation: Activation,
}

impl GatedBlocks {
    /// The facts of the product with input `right`.
    fn part(cx: &OpCx, right: usize) -> OpCx {
        let facts = [A, right].map(|i| cx.input_opt(i).cloned().map(Fact::of));
        OpCx::for_infer(facts.to_vec(), 1)
    }

    fn resolve(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        self.b.check(cx.input(OTHER)?)?;
        MatMulBlocks { b: self.b, rounds: self.rounds }.resolve(&GatedBlocks::part(cx, B))
    }

    /// `own` and `other`, where a kernel of `device` does both at once.
    pub(super) fn of(
        (own, cx): (&MatMulBlocks, &OpCx),
        (other, other_cx): (&MatMulBlocks, &OpCx),
        activation: &Activation,
        device: &DeviceInfo,
    ) -> Option<Absorbed> {
        let m = own.resolve(cx).ok()?.m;
        let plain = [cx, other_cx].iter().all(|cx| cx.input_count() <= OTHER || !cx.has(OTHER));
        let kernel = variants::BlockVector { t: cx.dtype(A).ok()?, gated: true }.id().ok()?;
        let few = (1..=block_vector::ROWS).contains(&m);
        if own.b != other.b
            || own.rounds != other.rounds
            || !plain
            || !few
            || !Lowering::new(device).can_run(kernel)
        {
            return None;
        }
        let inputs = vec![AbsorbedInput::Own(A), AbsorbedInput::Own(B), AbsorbedInput::Next(B)];
        Some(Absorbed {
            op: Arc::new(GatedBlocks { b: own.b, rounds: own.rounds, activation: *activation }),
            inputs,
        })
    }
}

impl Operator for GatedBlocks {
    fn name(&self) -> &'static str {
        "GatedBlocks"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        self.resolve(cx)?;
        let plain = MatMulBlocks { b: self.b, rounds: self.rounds };
        plain.infer(&GatedBlocks::part(cx, OTHER))?;
        plain.infer(&GatedBlocks::part(cx, B))
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let m = self.resolve(cx).map_or(0, |s| s.m);
        Cost { flops: Cost::product(&[4, m, self.b.rows, self.b.k]), bytes: cx.bytes_touched() }
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        real_kernel(self.name(), cx, self.native(cx)?)
    }

    fn with_normalized_rows(&self, cx: &OpCx, epsilon: f32, device: &DeviceInfo) -> Option<Absorbed> {
        joined::with_normalized_rows(self, cx, epsilon, device)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        self.lower_beside(cx, &Beside::default(), lower)
    }
}

impl FewRows for GatedBlocks {
    type Native = Run;

    const NORMED: &'static str = "NormedGatedBlocks";
    const SUMMED: Option<[&'static str; 2]> = None;

    fn inputs(&self) -> usize {
        OTHER + 1
    }

    fn native(&self, cx: &OpCx) -> Result<Run, OpError> {
        Ok(Run { sizes: self.resolve(cx)?, activation: self.activation })
    }

    fn is_few(&self, cx: &OpCx, _summed: bool, device: &DeviceInfo) -> bool {
        let m = self.resolve(cx).map_or(0, |sizes| sizes.m);
        let kernel = cx.dtype(A).ok().and_then(|t| variants::BlockVector { t, gated: true }.id().ok());
        let runs = kernel.is_some_and(|kernel| Lowering::new(device).can_run(kernel));
        runs && (1..=block_vector::ROWS).contains(&m)
    }

    /// A card reads codes too fast for each team to read a gain: 7 to 10 percent of a token on an H100.
    fn is_worth_a_gain(&self, _cx: &OpCx, device: &DeviceInfo) -> bool {
        device.kind != DeviceKind::Discrete
    }

    fn lower_beside(&self, cx: &OpCx, beside: &Beside, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { m, b, .. } = self.resolve(cx)?;
        if m > block_vector::ROWS {
            return Err(OpError::unsupported(format!("a gate of products of {m} rows on a device")));
        }
        if m == 0 {
            return Ok(());
        }
        word(b.k.max(b.rows).saturating_mul(m))?;
        word(cx.input(B)?.bytes())?;
        let params = params::BlockVector {
            m: word(m)?,
            n: word(b.rows)?,
            k: word(b.k)?,
            row_bytes: word(b.row_bytes())?,
        };
        // Columns of both matrices are those of a team.
        let (cols, split) = coded::teams(b.rows, b.k / block_vector::UNIT);
        let cols = cols.min(block_vector::COLS_MAX / 2);
        let (code, [act_a, act_b]) = self.activation.code();
        let mut spec = vec![
            (spec::blocks::TYPE, b.blocks as u32),
            (spec::block_vector::COLS, 2 * cols as u32),
            (spec::block_vector::SPLIT, split as u32),
            (spec::block_vector::HELD, m.next_power_of_two() as u32),
            (spec::block_vector::ACTIVATION, code),
            (spec::block_vector::ACT_A, act_a.to_bits()),
            (spec::block_vector::ACT_B, act_b.to_bits()),
        ];
        spec.extend(beside.constants());
        let inputs = [A, B, OTHER].map(Operand::Input);
        let args = [inputs[0], inputs[1], Operand::Unused, Operand::Output(0), inputs[2], beside.gain()];
        let kernel = variants::BlockVector { t: cx.dtype(A)?, gated: true }.id()?;
        let groups = b.rows.div_ceil(cols * block_vector::TEAMS / split) as u64;
        let grid = grid_1d(groups, 1, lower.device().limits.max_groups[0]);
        lower.dispatch(kernel, &spec, &args, &params, grid)
    }
}

/// The native function.
pub(crate) struct Run {
    sizes: Sizes,
    activation: Activation,
}

impl RealKernel for Run {
    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (y, inputs) = io.output(0, self.sizes.m * self.sizes.b.rows)?;
        gated(y, self.activation, |other, y| {
            self.sizes.multiply(&inputs, if other { OTHER } else { B }, None, y)
        })
    }
}
