//! What binding the caller's memory saves, measured in one process with the ways taken in turn.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::error::CliError;
use onepool::Tensor;
use onepool::backend::{BufferDesc, Placement};
use onepool::device::{Buffer, Event};
use onepool::graph::TensorInfo;
use onepool::memory::host::{HostRegion, SharedRegion};
use onepool::session::{Binding, Error, Memory, Session};
use onepool::shape::Shape;

/// Times of one model on one input, medians in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Transfer {
    pub(crate) input_bytes: u64,
    pub(crate) output_bytes: u64,
    /// Copying the input in.
    pub(crate) copy_in_ms: f64,
    /// Running between the copies.
    pub(crate) copied_run_ms: f64,
    /// Copying the output out.
    pub(crate) copy_out_ms: f64,
    /// Copy in, run, copy out.
    pub(crate) copied_ms: f64,
    /// The bound run, on memory that was imported once where the paths below say so.
    pub(crate) bound_ms: f64,
    /// What the bound run takes less than the copied one.
    pub(crate) saved: Difference,
    /// The same commands on memory of the device's own, without copies: what the work itself takes.
    pub(crate) kernel_ms: f64,
    /// How the input reached the device when it was bound.
    pub(crate) input_path: String,
    /// How the output reached the caller when it was bound.
    pub(crate) output_path: String,
    /// How many runs of each way the medians are of.
    pub(crate) runs: usize,
}

impl Transfer {
    /// The bound run over the work itself.
    pub(crate) fn bound_over_kernel(&self) -> f64 {
        self.bound_ms / self.kernel_ms
    }
}

/// How two ways that took turns differ, by the differences of neighbouring runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Difference {
    /// The median of the first way's time less the second's, in milliseconds.
    pub(crate) median_ms: f64,
    /// What lies between the quartiles of the differences, in milliseconds.
    pub(crate) spread_ms: f64,
    /// The median of the first way's time over the second's.
    pub(crate) ratio: f64,
    /// Whether the median is farther from 0 than the spread is wide, over at least [`FEWEST`] runs.
    pub(crate) is_measured: bool,
}

/// Runs below which no difference counts as measured.
const FEWEST: usize = 5;

impl Difference {
    /// `first` and `second` are the times in milliseconds of runs that took turns, in order.
    pub(crate) fn of(first: &[f64], second: &[f64]) -> Self {
        let pairs = || first.iter().zip(second);
        let mut by: Vec<f64> = pairs().map(|(a, b)| a - b).collect();
        let median_ms = median(&mut by);
        let quartile = |of: usize| by.get(of * (by.len().saturating_sub(1)) / 4).copied().unwrap_or(0.0);
        let spread_ms = quartile(3) - quartile(1);
        let ratio = median(&mut pairs().map(|(a, b)| a / b).collect::<Vec<_>>());
        Difference {
            median_ms,
            spread_ms,
            ratio,
            is_measured: by.len() >= FEWEST && median_ms.abs() > spread_ms,
        }
    }

    /// The difference with its spread, or that there is none.
    pub(crate) fn words(&self) -> String {
        let Difference { median_ms, spread_ms, .. } = self;
        if self.is_measured {
            format!("{median_ms:.3} ms (spread {spread_ms:.3})")
        } else {
            format!("no difference measured ({median_ms:.3} ms, spread {spread_ms:.3})")
        }
    }

    /// The ratio where there is a difference.
    pub(crate) fn times(&self) -> String {
        if self.is_measured { format!("{:.2} x", self.ratio) } else { "-".to_owned() }
    }
}

/// The median of some times; 0 of none.
pub(crate) fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

/// Milliseconds since `start`.
pub(super) fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Memory with `bytes` in it, aligned and importable.
pub(crate) fn region(bytes: &[u8]) -> Result<Arc<SharedRegion>, CliError> {
    Ok(HostRegion::from_bytes(bytes).map_err(Error::from)?.into_shared())
}

/// An empty region.
pub(crate) fn empty(bytes: usize) -> Result<Arc<SharedRegion>, CliError> {
    Ok(HostRegion::new(bytes).map_err(Error::from)?.into_shared())
}

/// The memory that `measure` bound, with the result of the last bound run in it.
pub(crate) struct Bound {
    /// The output's memory.
    pub(crate) output: Arc<SharedRegion>,
    /// What was decided for every tensor.
    pub(crate) verdicts: Vec<onepool::memory::import::Verdict>,
}

/// Measures a session with one input and one output on `value`.
pub(crate) fn measure(
    session: &Session,
    value: &Tensor,
    runs: usize,
    tick: &dyn Fn(),
) -> Result<(Transfer, Bound), CliError> {
    let (input, output) = names(session)?;
    let x = region(value.bytes())?;
    let own = Memory::region(&x).shape(value.shape().clone());
    let probe = session.bind().input(&input, own).build()?;
    let out_info = probe.plan().outputs[0].info.clone();
    drop(probe);
    let y = empty(out_info.bytes())?;
    let bind = |x: Memory<'static>, y: Memory<'static>| -> Result<Binding<'static>, Error> {
        let shape: Shape = value.shape().clone();
        session.bind().input(&input, x.shape(shape)).output(&output, y).build()
    };
    let mut bound = bind(Memory::region(&x), Memory::region(&y))?;
    let mut copied = bind(Memory::own(), Memory::own())?;
    let mut kernel = resident(session, &bind, value, &out_info)?;
    let mut result = vec![0u8; out_info.bytes()];
    let mut times: [Vec<f64>; 6] = Default::default();
    for run in 0..runs + 2 {
        let mut round = [0.0; 6];
        // Each way is first in every other round.
        let order = if run % 2 == 0 { [0, 1, 2] } else { [2, 1, 0] };
        for way in order {
            let start = Instant::now();
            match way {
                0 => {
                    let times = run_copied(&mut copied, (&input, value), (&output, &mut result))?;
                    round[..3].copy_from_slice(&times);
                }
                1 => {
                    bound.run()?;
                    round[4] = ms(start);
                }
                _ => {
                    kernel.run()?;
                    round[5] = ms(start);
                }
            }
        }
        round[3] = round[..3].iter().sum();
        if run == 0 {
            let seen = y.read().map_err(Error::from)?;
            if seen[..result.len()] != result[..] {
                return Err(CliError::Failed("the bound run's result is not the copied run's".to_owned()));
            }
        }
        // The first rounds compile kernels and touch pages.
        if run >= 2 {
            times.iter_mut().zip(round).for_each(|(all, t)| all.push(t));
        }
        tick();
    }
    let saved = Difference::of(&times[3], &times[4]);
    let path = |name: &str| {
        let verdict = bound.verdicts().find(|v| v.tensor == name);
        verdict.map_or("not used".to_owned(), |v| v.path.to_string())
    };
    let [copy_in_ms, copied_run_ms, copy_out_ms, copied_ms, bound_ms, kernel_ms] =
        times.map(|mut all| median(&mut all));
    let row = Transfer {
        input_bytes: value.bytes().len() as u64,
        output_bytes: out_info.bytes() as u64,
        copy_in_ms,
        copied_run_ms,
        copy_out_ms,
        copied_ms,
        bound_ms,
        saved,
        kernel_ms,
        input_path: path(&input),
        output_path: path(&output),
        runs,
    };
    let verdicts = bound.verdicts().cloned().collect();
    Ok((row, Bound { output: y, verdicts }))
}

/// Milliseconds of a run by value: the copy in, the run, the copy out.
fn run_copied(
    binding: &mut Binding<'static>,
    (input, value): (&str, &Tensor),
    (output, result): (&str, &mut [u8]),
) -> Result<[f64; 3], Error> {
    let start = Instant::now();
    binding.set_input(input, value)?;
    let copy_in = ms(start);
    let start = Instant::now();
    binding.run()?;
    let between = ms(start);
    let start = Instant::now();
    binding.read_output(output, result)?;
    Ok([copy_in, between, ms(start)])
}

/// The session's only input and output.
fn names(session: &Session) -> Result<(String, String), CliError> {
    match (&session.inputs()[..], &session.outputs()[..]) {
        ([x], [y]) => Ok((x.name.clone(), y.name.clone())),
        (x, y) => {
            let what = format!("{} inputs and {} outputs, expected one of each", x.len(), y.len());
            Err(CliError::usage(what))
        }
    }
}

type Bind<'a> = dyn Fn(Memory<'static>, Memory<'static>) -> Result<Binding<'static>, Error> + 'a;

/// A binding to memory of the device's own, with the input in it.
fn resident(
    session: &Session,
    bind: &Bind<'_>,
    value: &Tensor,
    out: &TensorInfo,
) -> Result<Binding<'static>, CliError> {
    let Some(context) = session.context(0) else { return Err(CliError::usage("a session without a device")) };
    let buffer = |bytes: usize, placement| -> Result<Buffer, Error> {
        let bytes = (bytes as u64).max(16).next_multiple_of(16);
        Ok(context.create_buffer(&BufferDesc { bytes, placement, label: "resident tensor" })?)
    };
    let x = buffer(value.bytes().len(), Placement::Device)?;
    let y = buffer(out.bytes(), Placement::Device)?;
    let len = value.bytes().len() as u64;
    if x.host_address().is_some() {
        x.sub_buffer(0, len)
            .map_err(Error::from)?
            .map_write()
            .map_err(Error::from)?
            .copy_from_slice(value.bytes());
    } else {
        let upload = buffer(value.bytes().len(), Placement::Upload)?;
        let part = upload.sub_buffer(0, len).map_err(Error::from)?;
        part.map_write().map_err(Error::from)?.copy_from_slice(value.bytes());
        let queue = context.queue().map_err(Error::from)?;
        let to = x.sub_buffer(0, len).map_err(Error::from)?;
        let copy: Result<Event, _> = queue.enqueue_copy(&part, &to);
        copy.map_err(Error::from)?.wait().map_err(Error::from)?;
    }
    Ok(bind(Memory::buffer(&x), Memory::buffer(&y))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_smaller_than_its_spread_is_none() {
        let even = Difference::of(&[3.0, 1.0, 2.0, 4.0, 2.0, 3.0], &[1.0, 3.0, 4.0, 2.0, 2.0, 2.9]);
        assert!(!even.is_measured, "{even:?}");
        assert!(even.words().starts_with("no difference measured") && even.times() == "-");
        let slow = [5.0, 5.1, 4.9, 5.0, 5.2];
        let fast = [2.0, 2.0, 2.1, 2.0, 2.1];
        let faster = Difference::of(&slow, &fast);
        assert!(faster.is_measured && (faster.median_ms - 3.0).abs() < 1e-9, "{faster:?}");
        assert_eq!(faster.times(), "2.50 x");
        // A way that is slower says so.
        let slower = Difference::of(&fast, &slow);
        assert!(slower.is_measured && slower.words().starts_with("-3.000 ms"), "{slower:?}");
        // Few runs have no spread worth the name.
        assert!(!Difference::of(&slow[..4], &fast[..4]).is_measured);
        assert!(!Difference::of(&[], &[]).is_measured);
    }

    #[test]
    fn the_median_of_differences_is_not_the_difference_of_medians() {
        // The machine slowed down by half in the middle: the ways did not differ by that.
        let [first, second] = [[1.0, 1.0, 1.0, 11.0, 11.0, 11.0], [0.5, 0.5, 0.5, 10.5, 10.5, 10.5]];
        let found = Difference::of(&first, &second);
        assert!(found.is_measured && (found.median_ms - 0.5).abs() < 1e-9 && found.spread_ms.abs() < 1e-9);
    }
}
