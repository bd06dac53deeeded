//! What binding the caller's memory saves, measured in one process with the ways taken in turn.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::Tensor;
use crate::backend::{BufferDesc, Placement};
use crate::cli::error::CliError;
use crate::device::{Buffer, Event};
use crate::graph::TensorInfo;
use crate::memory::host::{HostRegion, SharedRegion};
use crate::session::{Binding, Error, Memory, Session};
use crate::shape::Shape;

/// Times of one model on one input, medians in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(in crate::cli) struct Transfer {
    /// Bytes of the input.
    pub(in crate::cli) input_bytes: u64,
    /// Bytes of the output.
    pub(in crate::cli) output_bytes: u64,
    /// Copying the input in.
    pub(in crate::cli) copy_in_ms: f64,
    /// Running between the copies.
    pub(in crate::cli) copied_run_ms: f64,
    /// Copying the output out.
    pub(in crate::cli) copy_out_ms: f64,
    /// The bound run: nothing is copied in or out.
    pub(in crate::cli) bound_ms: f64,
    /// The same commands on memory of the device's own, without copies: what the work itself takes.
    pub(in crate::cli) kernel_ms: f64,
    /// How the input reached the device when it was bound.
    pub(in crate::cli) input_path: String,
    /// How the output reached the caller when it was bound.
    pub(in crate::cli) output_path: String,
    /// How many runs of each way the medians are of.
    pub(in crate::cli) runs: usize,
}

impl Transfer {
    /// Copy in, run, copy out.
    pub(in crate::cli) fn copied_ms(&self) -> f64 {
        self.copy_in_ms + self.copied_run_ms + self.copy_out_ms
    }

    /// The bound run over the work itself.
    pub(in crate::cli) fn bound_over_kernel(&self) -> f64 {
        self.bound_ms / self.kernel_ms
    }
}

/// The median of some times; 0 of none.
pub(in crate::cli) fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Memory with `bytes` in it, aligned and importable.
pub(in crate::cli) fn region(bytes: &[u8]) -> Result<Arc<SharedRegion>, CliError> {
    Ok(HostRegion::from_bytes(bytes).map_err(Error::from)?.into_shared())
}

/// An empty region.
pub(in crate::cli) fn empty(bytes: usize) -> Result<Arc<SharedRegion>, CliError> {
    Ok(HostRegion::new(bytes).map_err(Error::from)?.into_shared())
}

/// The memory that `measure` bound, with the result of the last bound run in it.
pub(in crate::cli) struct Bound {
    /// The output's memory.
    pub(in crate::cli) output: Arc<SharedRegion>,
    /// What was decided for every tensor.
    pub(in crate::cli) verdicts: Vec<crate::memory::import::Verdict>,
}

/// Measures a session with one input and one output on `value`.
///
/// # Errors
/// What the session says, and [`CliError::Failed`] where the ways disagree in their results.
pub(in crate::cli) fn measure(
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
    let mut times: [Vec<f64>; 5] = Default::default();
    for run in 0..runs + 2 {
        let mut round = [0.0; 5];
        let start = Instant::now();
        copied.set_input(&input, value)?;
        round[0] = ms(start);
        let start = Instant::now();
        copied.run()?;
        round[1] = ms(start);
        let start = Instant::now();
        copied.read_output(&output, &mut result)?;
        round[2] = ms(start);
        let start = Instant::now();
        bound.run()?;
        round[3] = ms(start);
        let start = Instant::now();
        kernel.run()?;
        round[4] = ms(start);
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
    let path = |name: &str| {
        let verdict = bound.verdicts().find(|v| v.tensor == name);
        verdict.map_or("not used".to_owned(), |v| v.path.to_string())
    };
    let [copy_in_ms, copied_run_ms, copy_out_ms, bound_ms, kernel_ms] = times.map(|mut all| median(&mut all));
    let row = Transfer {
        input_bytes: value.bytes().len() as u64,
        output_bytes: out_info.bytes() as u64,
        copy_in_ms,
        copied_run_ms,
        copy_out_ms,
        bound_ms,
        kernel_ms,
        input_path: path(&input),
        output_path: path(&output),
        runs,
    };
    let verdicts = bound.verdicts().cloned().collect();
    Ok((row, Bound { output: y, verdicts }))
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
