//! In which way time steps are done, by a model of the device.

use super::steps;
use crate::backend::DeviceKind;
use crate::dtype::DType;
use crate::kernel::KernelId;
use crate::kernel::codes::sequence::MAX_HIDDEN;
use crate::kernel::codes::sequence_held::{MAX_ITEMS, MAX_SLICES, MAX_UNITS, WORDS};
use crate::kernel::codes::time_step::MAX_ROWS;
use crate::kernel::table::variants;
use crate::ops::recurrent::layer::{Dims, Kind, Recurrent};
use crate::ops::{Candidate, ChoiceKey, Lowering, OpCx};

/// How all time steps of a layer are done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    /// A work-group does a sequence in one direction, with the matrix in its registers.
    Held(Held),
    /// The same, but it reads the matrix in every step.
    Sequence,
    /// A dispatch does a time step of all directions and sequences; two dispatches where a GRU resets its state first.
    Steps,
    /// A product and a cell for every time step, or two of each.
    Products,
}

/// How a matrix is shared out between the invocations of a work-group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Held {
    /// Invocations of the work-group.
    pub(super) items: usize,
    /// Invocations that sum a unit.
    pub(super) slices: usize,
    /// Pieces of four weights of a gate that each of them has.
    pub(super) pieces: usize,
}

impl Candidate for Way {
    fn name(&self) -> String {
        match self {
            Way::Held(_) => "held",
            Way::Sequence => "sequence",
            Way::Steps => "steps",
            Way::Products => "products",
        }
        .to_owned()
    }
}

/// Fewer time steps are not worth laying out the matrix for.
const MIN_STEPS: usize = 3;
/// Words of the registers that a work-group has at most, and those of them that an invocation needs besides its weights.
const REGISTERS: usize = 1 << 16;
const OTHER_WORDS: usize = 32;
/// Invocations that suffice to keep a processor busy.
const BUSY_ITEMS: usize = 512;
/// Lanes of a subgroup, from which on invocations are taken to have registers for so many weights: a processor with
/// narrower subgroups has few registers for each lane.
const WIDE_SUBGROUP: u32 = 32;

/// The largest state of which a processor of a host does whole sequences, where it prefers texels (lavapipe) and where it
/// does not (PoCL).
const TEXELS_UNITS: usize = 8;
const PROCESSOR_UNITS: usize = 128;

// The model: nanoseconds, on a discrete GPU.
/// A dispatch and the barrier before it.
const DISPATCH: f64 = 2500.0;
/// The barriers and latencies of a time step inside a work-group.
const INSIDE: f64 = 300.0;
/// Weights that a work-group reads from a shared cache in a nanosecond.
const READS: f64 = 8.0;
/// Weights in registers that it multiplies in a nanosecond.
const PRODUCTS: f64 = 150.0;

impl Held {
    /// As many slices as keep a processor busy, if the matrix fits.
    fn of(d: &Dims, dtype: DType, lower: &Lowering<'_>) -> Option<Held> {
        let limits = &lower.device().limits;
        let most = limits.max_group_items.min(limits.max_group_size[0]) as usize;
        // Of a whole subgroup, as drivers expect.
        let shape = |slices: usize| Held {
            items: (d.hidden * slices).next_multiple_of(32),
            slices,
            pieces: d.hidden.div_ceil(4 * slices),
        };
        let fits = |held: &Held| {
            // A piece of four elements has as many words as an element has bytes.
            let words = d.gates * held.pieces * dtype.bytes();
            held.items <= most.min(MAX_ITEMS)
                && words <= WORDS
                && held.items * (words + OTHER_WORDS) <= REGISTERS
        };
        let kernel = variants::SequenceHeld { t: dtype }.id().ok()?;
        let can_run = d.hidden > 0 && d.hidden <= MAX_UNITS && lower.can_run(kernel);
        let all = || (0..=MAX_SLICES.ilog2()).map(|n| shape(1 << n)).filter(fits);
        let busy = || all().rfind(|held| held.items <= BUSY_ITEMS);
        // Else the fewest that fit.
        busy().or_else(|| all().next()).filter(|_| can_run)
    }
}

impl Way {
    /// The way to take for a layer.
    pub(super) fn choose(op: &Recurrent, d: &Dims, cx: &OpCx, dtype: DType, lower: &mut Lowering<'_>) -> Way {
        let default = Way::by_model(op, d, dtype, lower);
        lower.choose(default, |lower| {
            let key = ChoiceKey::new("recurrent", dtype)
                .exact("layer", cell_name(op))
                .exact("directions", d.dirs)
                .size("steps", d.steps)
                .size("batch", d.batch)
                .size("hidden", d.hidden)
                .flag("known", cx.value(2).is_some());
            (key, Way::all(d, dtype, lower))
        })
    }

    /// Every way that the device has for these sizes.
    fn all(d: &Dims, dtype: DType, lower: &Lowering<'_>) -> Vec<Way> {
        let limits = &lower.device().limits;
        let can_run = |kernel: Option<KernelId>| {
            kernel.is_some_and(|id| {
                let items = id.info().local_size[0];
                lower.can_run(id) && items <= limits.max_group_items.min(limits.max_group_size[0])
            })
        };
        let states = d.dirs * d.batch * d.hidden;
        // Kernels of all steps.
        let goes_round = lower.iterations(d.steps.saturating_mul(d.hidden + 4)).is_ok();
        let is_indexable = d.dirs * d.width() * d.hidden <= i32::MAX as usize / 2;
        let mut all = Vec::new();
        if states > 0 && d.steps > 0 && is_indexable {
            all.extend(Held::of(d, dtype, lower).filter(|_| goes_round).map(Way::Held));
            if goes_round && d.hidden <= MAX_HIDDEN && can_run(variants::Sequence { t: dtype }.id().ok()) {
                all.push(Way::Sequence);
            }
            if d.batch <= MAX_ROWS && can_run(steps::kernel(d, dtype).id().ok()) {
                all.push(Way::Steps);
            }
        }
        all.push(Way::Products);
        all
    }

    fn by_model(op: &Recurrent, d: &Dims, dtype: DType, lower: &Lowering<'_>) -> Way {
        let (all, device) = (Way::all(d, dtype, lower), lower.device());
        if device.prefers_texels || device.kind == DeviceKind::Cpu {
            return Way::on_processor(d, &all, device.prefers_texels);
        }
        let ok = |way: &&Way| match way {
            Way::Held(_) => device.subgroup_range[0] >= WIDE_SUBGROUP,
            Way::Sequence => d.steps >= MIN_STEPS,
            Way::Steps | Way::Products => true,
        };
        let cost = |way: &Way| way.cost(op, d, lower);
        let best = all.iter().filter(ok).min_by(|a, b| cost(a).total_cmp(&cost(b)));
        best.copied().unwrap_or(Way::Products)
    }

    /// The way on a processor of a host, which runs the invocations of a work-group one after another.
    fn on_processor(d: &Dims, all: &[Way], texels: bool) -> Way {
        // Where texels are preferred, products read the matrix far faster than the other ways do.
        let most = if texels { TEXELS_UNITS } else { PROCESSOR_UNITS };
        let small = d.hidden <= most && d.steps >= MIN_STEPS;
        let wanted: &[Way] = match (small, texels) {
            (true, true) => &[Way::Sequence],
            (true, false) => &[Way::Sequence, Way::Steps],
            (false, true) => &[],
            (false, false) => &[Way::Steps, Way::Sequence],
        };
        wanted.iter().find(|way| all.contains(way)).copied().unwrap_or(Way::Products)
    }

    /// Nanoseconds of all time steps.
    fn cost(self, op: &Recurrent, d: &Dims, lower: &Lowering<'_>) -> f64 {
        let processors = lower.processors();
        let weights = (d.width() * d.hidden) as f64;
        let steps = d.steps as f64;
        // Sequences of a work-group each, as far as they follow on one another.
        let turns = (d.dirs * d.batch).div_ceil(processors) as f64;
        // A time step on the whole device.
        let spread = |groups: usize| {
            let read = d.dirs as f64 * weights / (READS * groups.clamp(1, processors) as f64);
            let multiplied = (d.dirs * d.batch) as f64 * weights / (PRODUCTS * processors as f64);
            read.max(multiplied)
        };
        let dispatches = if op.kind == (Kind::Gru { linear_before_reset: false }) { 2.0 } else { 1.0 };
        match self {
            Way::Held(_) => turns * (weights / READS + steps * (INSIDE + weights / PRODUCTS)),
            Way::Sequence => turns * steps * (INSIDE + weights / READS),
            Way::Steps => steps * (dispatches * DISPATCH + spread(d.dirs * d.hidden / 4)),
            Way::Products => steps * (2.0 * dispatches * DISPATCH + spread(processors)),
        }
    }
}

fn cell_name(op: &Recurrent) -> &'static str {
    match op.kind {
        Kind::Rnn => "RNN",
        Kind::Lstm => "LSTM",
        Kind::Gru { linear_before_reset: true } => "GRU",
        Kind::Gru { linear_before_reset: false } => "GRU, reset before",
    }
}
