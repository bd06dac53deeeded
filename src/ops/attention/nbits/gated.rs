//! Two products of few rows with weights of few bits, of which one is the gate of the other.

use std::sync::Arc;

use super::{A, B, BIAS, Codes, MatMulNBits, SCALES, Sizes, ZEROS};
use crate::backend::{DeviceInfo, DeviceKind};
use crate::graph::TensorInfo;
use crate::kernel::codes::nbits::Zeros;
use crate::kernel::codes::nbits_wide;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeKernel, grid_1d};
use crate::ops::linalg::coded;
use crate::ops::linalg::gated::gated;
use crate::ops::linalg::joined::{self, Beside, FewRows};
use crate::ops::real::{Real, RealIo, RealKernel, real_kernel};
use crate::ops::{
    Absorbed, AbsorbedInput, Activation, Cost, Fact, Lowering, OpCx, OpError, Operand, Operator,
};

/// Inputs of a matrix.
const EACH: usize = BIAS;

/// `activation(A x B) * (A x C)`. Inputs: A, then codes, scales, zero points, none and a bias of B, as [`MatMulNBits`] has
/// them, and the same of C. The planner makes it of products of one input (pass `join_gates`).
#[derive(Clone, Copy, Debug)]
pub struct GatedNBits {
    /// The form of both products.
    pub product: MatMulNBits,
    /// Of the first.
    pub activation: Activation,
}

impl GatedNBits {
    /// The facts of product `n`.
    fn part(&self, cx: &OpCx, n: usize) -> OpCx {
        let place = |i: usize| if i == A { A } else { n * EACH + i };
        let facts = (A..=BIAS).map(|i| cx.input_opt(place(i)).cloned().map(Fact::of)).collect();
        OpCx::for_infer(facts, 1)
    }

    fn resolve(&self, cx: &OpCx) -> Result<Sizes, OpError> {
        let [own, other] =
            [self.product.resolve(&self.part(cx, 0))?, self.product.resolve(&self.part(cx, 1))?];
        if own.zeros != other.zeros || cx.has(BIAS) != cx.has(EACH + BIAS) {
            return Err(OpError::unsupported("a gate of products of different forms"));
        }
        Ok(own)
    }

    /// `own` and `other`, where a kernel of `device` does both at once.
    pub(super) fn of(
        (own, cx): (&MatMulNBits, &OpCx),
        (other, other_cx): (&MatMulNBits, &OpCx),
        activation: &Activation,
        device: &DeviceInfo,
    ) -> Option<Absorbed> {
        let form = |op: &MatMulNBits| (op.k, op.n, op.bits, op.block, op.rounds);
        let plain = [own, other].iter().all(|op| matches!(op.codes, Codes::Whole));
        let (sizes, zeros) = (own.resolve(cx).ok()?, other.resolve(other_cx).ok()?.zeros);
        let alike = form(own) == form(other) && sizes.zeros == zeros && cx.has(BIAS) == other_cx.has(BIAS);
        let few = (1..=nbits_wide::ROWS).contains(&sizes.m);
        let kernel = variants::NbitsWide { t: cx.dtype(A).ok()?, gated: true }.id().ok()?;
        if !plain || !alike || !few || !own.is_whole() || !Lowering::new(device).can_run(kernel) {
            return None;
        }
        let first = (A..=BIAS).map(AbsorbedInput::Own);
        let inputs = first.chain((B..=BIAS).map(AbsorbedInput::Next)).collect();
        Some(Absorbed { op: Arc::new(GatedNBits { product: *own, activation: *activation }), inputs })
    }
}

impl Operator for GatedNBits {
    fn name(&self) -> &'static str {
        "GatedNBits"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(EACH + SCALES + 1..=2 * EACH + 1, 1..=1)?;
        self.product.infer(&self.part(cx, 1))?;
        self.resolve(cx)?;
        self.product.infer(&self.part(cx, 0))
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        let m = self.resolve(cx).map_or(0, |s| s.m);
        Cost { flops: Cost::product(&[4, m, self.product.n, self.product.k]), bytes: cx.bytes_touched() }
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

impl FewRows for GatedNBits {
    type Native = Run;

    const NORMED: &'static str = "NormedGatedNBits";
    const SUMMED: Option<[&'static str; 2]> = None;

    fn inputs(&self) -> usize {
        2 * EACH + 1
    }

    fn native(&self, cx: &OpCx) -> Result<Run, OpError> {
        Ok(Run { sizes: self.resolve(cx)?, activation: self.activation })
    }

    fn is_few(&self, cx: &OpCx, _summed: bool, device: &DeviceInfo) -> bool {
        let kernel = cx.dtype(A).ok().and_then(|t| variants::NbitsWide { t, gated: true }.id().ok());
        let runs = kernel.is_some_and(|kernel| Lowering::new(device).can_run(kernel));
        let few = self.resolve(cx).is_ok_and(|sizes| (1..=nbits_wide::ROWS).contains(&sizes.m));
        runs && few && self.product.is_whole()
    }

    fn is_worth_a_gain(&self, cx: &OpCx, device: &DeviceInfo) -> bool {
        let kernel = cx.dtype(A).ok().and_then(|t| variants::NbitsWide { t, gated: true }.id().ok());
        let sizes = self.resolve(cx).ok();
        let staged =
            kernel.zip(sizes).and_then(|(kernel, sizes)| self.product.staged(sizes.m, kernel, device));
        device.kind != DeviceKind::Discrete || staged.is_some()
    }

    fn lower_beside(&self, cx: &OpCx, beside: &Beside, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let Sizes { op, m, zeros } = self.resolve(cx)?;
        let kernel = variants::NbitsWide { t: cx.dtype(A)?, gated: true }.id()?;
        if m > nbits_wide::ROWS || !op.is_whole() {
            return Err(OpError::unsupported(format!("a gate of products of {m} rows on a device")));
        }
        if m == 0 {
            return Ok(());
        }
        let given = |i: usize| if cx.has(i) { Operand::Input(i) } else { Operand::Unused };
        let matrix = |n: usize| {
            let at = |i: usize| n * EACH + i;
            let pick = |as_zeros: Zeros| if zeros == as_zeros { given(at(ZEROS)) } else { Operand::Unused };
            [given(at(B)), given(at(SCALES)), pick(Zeros::Codes), pick(Zeros::Numbers), given(at(BIAS))]
        };
        let mut args = vec![Operand::Input(A)];
        args.extend(matrix(0));
        args.extend([Operand::Output(0), Operand::Unused]);
        args.extend(matrix(1));
        args.push(beside.gain());
        // Columns of both matrices are those of a team.
        let (cols, split) = coded::teams(op.n, op.k / op.unit());
        let cols = cols.min(nbits_wide::COLS_MAX / 2);
        let (code, [act_a, act_b]) = self.activation.code();
        let mut spec = op.constants(zeros, cx.has(BIAS), None);
        spec.extend([
            (spec::nbits_wide::COLS, 2 * cols as u32),
            (spec::nbits_wide::SPLIT, split as u32),
            (spec::nbits_wide::HELD, m.next_power_of_two() as u32),
            (spec::nbits_wide::ACTIVATION, code),
            (spec::nbits_wide::ACT_A, act_a.to_bits()),
            (spec::nbits_wide::ACT_B, act_b.to_bits()),
        ]);
        spec.extend(beside.constants());
        spec.extend(beside.norm.and_then(|_| op.staged(m, kernel, lower.device())));
        let params: params::Nbits = op.params(m)?;
        let groups = op.n.div_ceil(cols * nbits_wide::TEAMS / split) as u64;
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
    const HALF: &'static [usize] = &[SCALES, EACH + SCALES];

    fn run<T: Real>(&self, io: &mut RealIo<'_, T>) -> Result<(), KernelError> {
        let (y, inputs) = io.output(0, self.sizes.m * self.sizes.op.n)?;
        gated(y, self.activation, |other, y| self.sizes.multiply(&inputs, if other { EACH } else { 0 }, y))
    }
}
