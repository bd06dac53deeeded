//! State shared by the bindings of one session: graph, devices, options, parameters and plans.

#![forbid(unsafe_code)]

pub(in crate::session) mod arena;
pub(in crate::session) mod cancel;
pub(in crate::session) mod compiled;
pub(in crate::session) mod device;
pub(in crate::session) mod frames;
pub(in crate::session) mod host_memory;
pub(in crate::session) mod in_flight;
pub(in crate::session) mod options;
pub(in crate::session) mod params;
pub(in crate::session) mod pieces;
mod plan_cache;
pub(in crate::session) mod queue;
pub(in crate::session) mod read_end;
pub(in crate::session) mod sources;
pub(in crate::session) mod split;
pub(in crate::session) mod staged;
pub(in crate::session) mod unify;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use self::compiled::Compiled;
use self::device::Device;
use self::options::{CopiedPerRun, Options};
use self::params::ParamStore;
use self::queue::RunQueue;
use self::sources::KernelSources;
use crate::graph::{Graph, TensorDecl, TensorInfo};
use crate::plan::Signature;
use crate::session::error::{Error, SessionError};

use crate::shape::Shape;

#[derive(Debug)]
pub(in crate::session) struct SessionCore {
    pub(in crate::session) graph: Arc<Graph>,
    pub(in crate::session) devices: Vec<Device>,
    pub(in crate::session) options: Options,
    pub(in crate::session) params: Arc<ParamStore>,
    pub(in crate::session) sources: Arc<KernelSources>,
    plans: Mutex<Vec<(Signature, CopiedPerRun, Arc<Compiled>)>>,
    /// Plans made so far, those that were dropped included.
    pub(in crate::session) plans_made: AtomicU64,
    pub(in crate::session) queue: Arc<RunQueue>,
}

impl SessionCore {
    pub(in crate::session) fn new(
        graph: Arc<Graph>,
        devices: Vec<Device>,
        options: Options,
        params: Arc<ParamStore>,
        sources: Arc<KernelSources>,
    ) -> Self {
        let (plans, queue) = (Mutex::default(), Arc::default());
        SessionCore { graph, devices, options, params, sources, plans, plans_made: AtomicU64::new(0), queue }
    }

    /// The plan of a run by value, for inputs of these types and shapes in the order of the inputs that callers see.
    pub(in crate::session) fn compiled_by_value(&self, infos: &[TensorInfo]) -> Result<Arc<Compiled>, Error> {
        let before = &self.options.frames.before;
        let mut infos = infos.to_vec();
        infos.extend(before.iter().filter_map(|(i, _)| self.fixed_info(*i)));
        self.compiled(&infos, &BTreeMap::new(), before, CopiedPerRun::ALL)
    }

    /// Calls `copy`. Where in-flight runs of the session use the memory, waits for them and calls it again.
    pub(in crate::session) fn after_runs(
        &self,
        copy: impl Fn(&[Device]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match copy(&self.devices) {
            Err(error) if error.is_busy() => {
                self.queue.wait_until_submitted();
                // The submitter of a run gets its errors.
                self.devices.iter().for_each(|device| drop(device.queue.finish()));
                copy(&self.devices)
            }
            result => result,
        }
    }

    pub(in crate::session) fn input_position(&self, name: &str) -> Result<usize, SessionError> {
        let names = || self.graph.inputs().iter().map(|&id| &self.graph.tensor(id).name);
        names().position(|n| n == name).ok_or_else(|| SessionError::Unknown {
            what: "input",
            name: name.to_owned(),
            known: names().cloned().collect(),
        })
    }

    pub(in crate::session) fn output_position(&self, name: &str) -> Result<usize, SessionError> {
        self.graph.output(name).ok_or_else(|| SessionError::Unknown {
            what: "output",
            name: name.to_owned(),
            known: self.graph.outputs().iter().map(|(n, _)| n.clone()).collect(),
        })
    }

    /// Checks type and shape of an input against the model's declaration.
    pub(in crate::session) fn check_declared(&self, i: usize, got: &TensorInfo) -> Result<(), SessionError> {
        check_declared(self.graph.tensor(self.graph.inputs()[i]), got)
    }

    /// Checks that each symbol has one size in all inputs.
    pub(in crate::session) fn check_symbols(&self, infos: &[TensorInfo]) -> Result<(), SessionError> {
        let mut symbols = BTreeMap::new();
        for (&id, info) in self.graph.inputs().iter().zip(infos) {
            let t = self.graph.tensor(id);
            if let Some(declared) = &t.shape {
                declared
                    .unify(&info.shape, &mut symbols)
                    .map_err(|source| SessionError::Shape { name: t.name.clone(), source })?;
            }
        }
        Ok(())
    }

    /// The type and shape of input `i`, where the model fixes them.
    pub(in crate::session) fn fixed_info(&self, i: usize) -> Option<TensorInfo> {
        let t = self.graph.tensor(self.graph.inputs()[i]);
        Some(TensorInfo::new(t.dtype?, t.shape.as_ref()?.concrete()?))
    }

    /// The same devices, options and parameters for another graph.
    pub(in crate::session) fn child(&self, graph: Arc<Graph>) -> Arc<SessionCore> {
        let sources = Arc::clone(&self.sources);
        let (devices, params) = (self.devices.clone(), Arc::clone(&self.params));
        Arc::new(SessionCore::new(graph, devices, self.options.clone(), params, sources))
    }

    /// As [`SessionCore::child`], for the graph of a node: the log of this graph's passes does not apply to it.
    pub(in crate::session) fn body(&self, graph: &Arc<Graph>) -> Arc<SessionCore> {
        let mut body = self.child(Arc::clone(graph));
        if let Some(body) = Arc::get_mut(&mut body) {
            body.options.prepared = Arc::default();
            body.options.frames = Arc::default();
        }
        body
    }
}

/// Checks type and shape of an input against its declaration.
pub(in crate::session) fn check_declared(t: &TensorDecl, got: &TensorInfo) -> Result<(), SessionError> {
    if let Some(expected) = t.dtype
        && expected != got.dtype
    {
        return Err(SessionError::DType { name: t.name.clone(), expected, got: got.dtype });
    }
    if let Some(declared) = &t.shape {
        declared
            .unify(&got.shape, &mut BTreeMap::new())
            .map_err(|source| SessionError::Shape { name: t.name.clone(), source })?;
    }
    Ok(())
}

/// The caller's shape, else the model's.
pub(in crate::session) fn chosen_shape(given: Option<&Shape>, fixed: Option<&TensorInfo>) -> Option<Shape> {
    given.cloned().or_else(|| fixed.map(|f| f.shape.clone()))
}
