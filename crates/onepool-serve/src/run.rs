//! Runs: requests of one model are gathered, run and split again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use onepool::memory::import::ReadWrite;
use onepool::memory::range::ByteRange;
use onepool::session::{Error, RunOptions, SessionError};
use onepool::{DType, SharedRegion, TensorInfo};
use tonic::Status;

use crate::bound::{Bindings, Bound, Key, Landing, check_size};
use crate::error::status;
use crate::model::Model;
use crate::queue::{Done, Given, Job, Output, Queue, RunLife, Wanted};

/// A model with the requests that wait for it and the bindings that are kept for them.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) model: Model,
    pub(crate) queue: Queue,
    pub(crate) bindings: Bindings,
}

/// Runs what comes until the model's queue is closed and empty.
pub(crate) fn work(served: &Served) {
    let Served { model, queue, bindings } = served;
    while let Some(jobs) = queue.next(model.max_batch, model.max_delay) {
        run_all(model, bindings, jobs);
    }
}

/// Runs requests together, each alone where that fails, and answers them.
fn run_all(model: &Model, bindings: &Bindings, jobs: Vec<Job>) {
    let life = RunLife::new();
    let mut waited = Vec::with_capacity(jobs.len());
    for job in jobs {
        if Instant::now() >= job.deadline {
            answer(job, Err(Status::deadline_exceeded("timeout: the deadline passed before the run")));
        } else if job.life.joins(&life) {
            waited.push(job);
        }
    }
    if waited.is_empty() {
        return;
    }
    model.metrics.waited(waited.iter().map(|job| job.arrived));
    match guarded(model, bindings, &waited, &life) {
        Ok(done) => waited.into_iter().zip(done).for_each(|(job, done)| answer(job, Ok(done))),
        // One request may be at fault for all.
        Err(refused) if waited.len() > 1 && !is_ended(&refused) => {
            for job in waited {
                let life = RunLife::new();
                if job.life.joins(&life) {
                    let done = guarded(model, bindings, std::slice::from_ref(&job), &life);
                    let done = done.and_then(|done| done.into_iter().next().ok_or_else(unanswered));
                    answer(job, done);
                }
            }
        }
        Err(refused) => waited.into_iter().for_each(|job| answer(job, Err(refused.clone()))),
    }
}

fn is_ended(status: &Status) -> bool {
    matches!(status.code(), tonic::Code::Cancelled | tonic::Code::DeadlineExceeded)
}

fn unanswered() -> Status {
    Status::internal("the run has no answer for the request")
}

/// Gives the memory back, then answers.
fn answer(job: Job, done: Result<Done, Status>) {
    let Job { turns, reply, .. } = job;
    drop(turns);
    // No one may wait any more.
    drop(reply.send(done));
}

/// A panic in a run is the error of its requests alone.
fn guarded(
    model: &Model,
    bindings: &Bindings,
    jobs: &[Job],
    life: &Arc<RunLife>,
) -> Result<Vec<Done>, Status> {
    match catch_unwind(AssertUnwindSafe(|| run(model, bindings, jobs, life))) {
        Ok(done) => done,
        Err(_) => Err(Status::internal(format!("a run of model {:?} panicked", model.name))),
    }
}

/// One run for all `jobs`, which are of one kind.
fn run(model: &Model, bindings: &Bindings, jobs: &[Job], life: &Arc<RunLife>) -> Result<Vec<Done>, Status> {
    let rows: Option<Vec<usize>> = jobs.iter().map(Job::rows).collect();
    let rows = rows.filter(|_| model.max_batch > 1);
    let total = rows.as_ref().map(|rows| rows.iter().sum());
    let Some(key) = Key::of(jobs, total) else {
        return Err(Status::internal("requests cannot be run together"));
    };
    let mut bound = match bindings.take(&key) {
        Some(bound) => bound,
        None => Bound::new(model, &key, jobs)?,
    };
    fill(&bound, jobs)?;
    let latest = jobs.iter().map(|job| job.deadline).max().unwrap_or_else(Instant::now);
    let limit = latest.saturating_duration_since(Instant::now());
    let began = Instant::now();
    bound.binding.run_with(&RunOptions::new().time_limit(limit).cancel(life.token())).map_err(|error| {
        if error.is_lost() {
            model.lose();
        }
        status(&error)
    })?;
    model.metrics.ran(began, total.unwrap_or(1), bound.copied, bound.in_place);
    let done = collect(model, &bound, jobs, rows.as_deref())?;
    bindings.keep(key, bound);
    Ok(done)
}

/// Copies messages into the pages of a binding, one after the other.
fn fill(bound: &Bound, jobs: &[Job]) -> Result<(), Status> {
    let failed = |error: Error| status(&error);
    for (at, region) in bound.inputs.iter().enumerate() {
        let Some(region) = region else { continue };
        let mut begin = 0;
        for job in jobs {
            let Given::Message(bytes) = &job.inputs[at].1 else { continue };
            let range = ByteRange::new(begin, begin + bytes.len() as u64);
            region.write_range(range).map_err(|error| failed(error.into()))?.copy_from_slice(bytes);
            begin = range.end;
        }
    }
    Ok(())
}

/// The answers of the requests, in their order.
fn collect(model: &Model, bound: &Bound, jobs: &[Job], rows: Option<&[usize]>) -> Result<Vec<Done>, Status> {
    let mut answers: Vec<Done> = jobs
        .iter()
        .map(|_| Done {
            verdicts: bound.verdicts.clone(),
            copied: bound.copied,
            in_place: bound.in_place,
            rows: rows.map_or(1, |rows| rows.iter().sum()),
            ..Done::default()
        })
        .collect();
    for (at, (landing, port)) in bound.outputs.iter().zip(&model.outputs).enumerate() {
        let split = |info: &TensorInfo, bytes: &[u8], answers: &mut [Done]| {
            spread(at, &port.name, info, bytes, jobs, rows, answers)
        };
        match landing {
            Landing::Nowhere => {}
            Landing::Server(region, info) => split(info, &read(region)?, &mut answers)?,
            Landing::Shared(info) => answers.iter_mut().for_each(|done| {
                done.outputs.push(output(at, info.dtype, info.shape.to_vec(), Bytes::new()));
            }),
            Landing::Session(range) => {
                let failed = |error: Error| status(&error);
                let info = bound.binding.output_info(&port.name).map_err(failed)?.clone();
                check_size(model, jobs.len(), info.bytes() as u64)?;
                let mut bytes = vec![0; info.bytes()];
                bound.binding.read_output(&port.name, &mut bytes).map_err(failed)?;
                answers.iter_mut().for_each(|done| done.copied += bytes.len() as u64);
                let Some(range) = range else {
                    split(&info, &bytes, &mut answers)?;
                    continue;
                };
                let (needed, got) = (bytes.len() as u64, range.range.bytes());
                if got < needed {
                    let name = port.name.clone();
                    return Err(failed(SessionError::Capacity { name, needed, got }.into()));
                }
                let written = range.lend(ReadWrite::Write).write_from(0, &bytes);
                written.map_err(|error| failed(error.into()))?;
                answers.iter_mut().for_each(|done| {
                    done.outputs.push(output(at, info.dtype, info.shape.to_vec(), Bytes::new()));
                });
            }
        }
    }
    Ok(answers)
}

fn read(region: &Arc<SharedRegion>) -> Result<impl std::ops::Deref<Target = [u8]> + '_, Status> {
    region.read().map_err(|error| status(&error.into()))
}

fn output(at: usize, dtype: DType, dims: Vec<usize>, bytes: Bytes) -> Output {
    Output { at, dtype, dims, bytes }
}

/// Gives each request that asked for output `at` its rows.
fn spread(
    at: usize,
    name: &str,
    info: &TensorInfo,
    bytes: &[u8],
    jobs: &[Job],
    rows: Option<&[usize]>,
    answers: &mut [Done],
) -> Result<(), Status> {
    let total: Option<usize> = rows.map(|rows| rows.iter().sum());
    if let Some(total) = total.filter(|total| info.shape.dims().first() != Some(total)) {
        return Err(Status::internal(format!(
            "output {name:?} is {info} for {total} rows: serve this model without max_batch"
        )));
    }
    let mut begin = 0;
    for (n, (job, done)) in jobs.iter().zip(answers).enumerate() {
        let mut dims = info.shape.to_vec();
        let mut end = bytes.len();
        if let (Some(rows), Some(total)) = (rows.and_then(|rows| rows.get(n)), total) {
            end = begin + bytes.len() / total.max(1) * rows;
            dims.first_mut().into_iter().for_each(|size| *size = *rows);
        }
        if matches!(job.outputs[at], Wanted::Message) {
            done.outputs.push(output(at, info.dtype, dims, Bytes::copy_from_slice(&bytes[begin..end])));
        }
        begin = end;
    }
    Ok(())
}
