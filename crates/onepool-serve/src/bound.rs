//! Bindings that are kept: a request on memory that was seen before needs no plan and no import.

use std::sync::{Arc, Mutex, MutexGuard};

use onepool::memory::import::ReadWrite;
use onepool::memory::range::ByteRange;
use onepool::session::{Binding, Error, Memory, SessionError};
use onepool::{HostRegion, Shape, SharedRegion, TensorInfo};
use onepool_core::sync::lock;
use tonic::Status;

use crate::error::status;
use crate::model::Model;
use crate::queue::{Given, Job, Wanted};
use crate::shm::Range;

/// The most idle bindings of a model.
const MOST_IDLE: usize = 64;

/// What a binding was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    inputs: Vec<(Shape, Place)>,
    outputs: Vec<Place>,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In memory of the session's, read by no one.
    Session,
    /// In pages of the server's, which messages are copied to and from.
    Server,
    /// In a region of this number.
    Shared(u64, ByteRange),
}

/// Idle bindings, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Bindings(Mutex<Vec<(Key, Bound)>>);

/// A binding with its memory.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) binding: Binding<'static>,
    /// Pages of the inputs that are copied from messages.
    pub(crate) inputs: Vec<Option<Arc<SharedRegion>>>,
    pub(crate) outputs: Vec<Landing>,
    shared: Vec<Range>,
    /// What every run moves, and how.
    pub(crate) verdicts: Vec<(String, String)>,
    pub(crate) copied: u64,
    pub(crate) in_place: u64,
}

/// Where an output lands.
#[derive(Debug)]
pub(crate) enum Landing {
    Nowhere,
    /// In pages of the server's.
    Server(Arc<SharedRegion>, TensorInfo),
    /// In the caller's region.
    Shared(TensorInfo),
    /// In the session, because only a run tells its size; it is copied to the message, or to the range.
    Session(Option<Range>),
}

impl Key {
    /// Of requests that run together, with `rows` rows.
    pub(crate) fn of(jobs: &[Job], rows: Option<usize>) -> Option<Key> {
        let first = jobs.first()?;
        let shape = |shape: &Shape| match rows {
            Some(rows) => {
                let mut dims = shape.to_vec();
                dims.first_mut().into_iter().for_each(|size| *size = rows);
                Shape::new(dims).ok()
            }
            None => Some(shape.clone()),
        };
        let place = |given: &Given| match given {
            Given::Message(_) => Place::Server,
            Given::Shared(range) => Place::Shared(range.region.id, range.range),
        };
        let inputs = first.inputs.iter().map(|(dims, given)| Some((shape(dims)?, place(given))));
        let landing = |at: usize| {
            let mut wanted = jobs.iter().map(|job| &job.outputs[at]);
            match wanted.find(|wanted| !matches!(wanted, Wanted::Nowhere)) {
                None => Place::Session,
                Some(Wanted::Shared(range)) => Place::Shared(range.region.id, range.range),
                Some(_) => Place::Server,
            }
        };
        let outputs = (0..first.outputs.len()).map(landing).collect();
        Some(Key { inputs: inputs.collect::<Option<_>>()?, outputs })
    }
}

impl Bindings {
    fn idle(&self) -> MutexGuard<'_, Vec<(Key, Bound)>> {
        lock(&self.0)
    }

    /// Takes the latest binding for `key`.
    pub(crate) fn take(&self, key: &Key) -> Option<Bound> {
        let mut idle = self.idle();
        let at = idle.iter().rposition(|(own, _)| own == key)?;
        Some(idle.remove(at).1)
    }

    /// Keeps a binding, unless a region of it was unregistered.
    pub(crate) fn keep(&self, key: Key, bound: Bound) {
        let mut idle = self.idle();
        let dropped = if bound.shared.iter().any(|range| range.region.is_gone()) {
            Some(bound)
        } else {
            let oldest = (idle.len() >= MOST_IDLE).then(|| idle.remove(0).1);
            idle.push((key, bound));
            oldest
        };
        drop(idle);
        drop(dropped);
    }

    /// Drops bindings to regions that were unregistered.
    pub(crate) fn forget_gone(&self) {
        let mut idle = self.idle();
        let is_gone = |bound: &Bound| bound.shared.iter().any(|range| range.region.is_gone());
        let (gone, kept) = std::mem::take(&mut *idle).into_iter().partition(|(_, bound)| is_gone(bound));
        *idle = kept;
        drop(idle);
        let gone: Vec<(Key, Bound)> = gone;
        drop(gone);
    }

    /// How many are kept.
    pub(crate) fn count(&self) -> usize {
        self.idle().len()
    }
}

impl Bound {
    /// Binds the memory of requests.
    pub(crate) fn new(model: &Model, key: &Key, jobs: &[Job]) -> Result<Bound, Status> {
        let failed = |error: Error| status(&error);
        let Some(first) = jobs.first() else { return Err(Status::internal("a run of no request")) };
        let mut builder = model.session.bind();
        let (mut inputs, mut shared) = (Vec::new(), Vec::new());
        for ((port, (shape, place)), (_, given)) in model.inputs.iter().zip(&key.inputs).zip(&first.inputs) {
            let bytes = shape.elements().saturating_mul(port.dtype.map_or(1, |dtype| dtype.bytes()));
            let memory = match (place, given) {
                (Place::Shared(..), Given::Shared(range)) if bytes > 0 => {
                    inputs.push(None);
                    shared.push(range.clone());
                    Memory::lent(range.lend(ReadWrite::Read))
                }
                _ => {
                    let region = HostRegion::new(bytes).map_err(|error| failed(error.into()))?.into_shared();
                    let memory = Memory::region(&region);
                    inputs.push(Some(region));
                    memory
                }
            };
            builder = builder.input(&port.name, memory.shape(shape.clone()));
        }
        let planned = builder.plan().map_err(failed)?;
        let info = |name: &str| planned.outputs.iter().find(|io| io.name == name).map(|io| io.info.clone());
        let infos: Option<Vec<TensorInfo>> = model.outputs.iter().map(|port| info(&port.name)).collect();
        check_size(model, jobs.len(), infos.iter().flatten().map(|info| info.bytes() as u64).sum())?;
        let mut outputs = Vec::new();
        for (at, (port, place)) in model.outputs.iter().zip(&key.outputs).enumerate() {
            let range = match &first.outputs[at] {
                Wanted::Shared(range) => Some(range.clone()),
                _ => None,
            };
            let landing = match (place, infos.as_ref().map(|infos| &infos[at]), range) {
                (Place::Session, ..) => Landing::Nowhere,
                (_, None, range) => Landing::Session(range),
                (_, Some(info), Some(range)) => {
                    let (needed, got) = (info.bytes() as u64, range.range.bytes());
                    if got < needed {
                        let name = port.name.clone();
                        return Err(failed(SessionError::Capacity { name, needed, got }.into()));
                    }
                    if needed > 0 {
                        builder = builder.output(&port.name, Memory::lent(range.lend(ReadWrite::ReadWrite)));
                    }
                    shared.push(range);
                    Landing::Shared(info.clone())
                }
                (_, Some(info), None) => {
                    let region =
                        HostRegion::new(info.bytes()).map_err(|error| failed(error.into()))?.into_shared();
                    builder = builder.output(&port.name, Memory::region(&region));
                    Landing::Server(region, info.clone())
                }
            };
            outputs.push(landing);
        }
        let binding = builder.build().map_err(failed)?;
        model.metrics.bindings.inc();
        let mut bound =
            Bound { binding, inputs, outputs, shared, verdicts: Vec::new(), copied: 0, in_place: 0 };
        bound.count(model);
        Ok(bound)
    }

    /// What every run moves: messages are copied to and from the server's pages, and what the verdicts say is copied.
    fn count(&mut self, model: &Model) {
        let by_message = |at: usize| matches!(self.outputs[at], Landing::Server(..));
        let inputs = model.inputs.iter().enumerate().map(|(at, port)| (port, self.inputs[at].is_some()));
        let outputs = model.outputs.iter().enumerate().map(|(at, port)| (port, by_message(at)));
        for (port, message) in inputs.chain(outputs) {
            for verdict in self.binding.verdicts().filter(|verdict| verdict.tensor == port.name) {
                let copies = u64::from(verdict.path.copies_on_cpu()) + u64::from(message);
                self.copied += verdict.bytes * copies;
                self.in_place += if copies == 0 { verdict.bytes } else { 0 };
                let way = if message { "copied with its message; then " } else { "" };
                self.verdicts.push((port.name.clone(), format!("{way}{verdict}")));
            }
        }
    }
}

pub(crate) fn check_size(model: &Model, jobs: usize, bytes: u64) -> Result<(), Status> {
    let most = model.max_output.saturating_mul(jobs as u64);
    if bytes <= most {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!(
        "max_message: the outputs have {bytes} bytes, at most {most} are allowed"
    )))
}
