//! Models of files that sessions of this process have loaded: the next one gets the same graph, and so the same
//! parameters, those too that a pass made of others.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::backend::DeviceInfo;
use crate::files::hash::Digest;
use crate::graph::Graph;
use crate::memory::identity::FileIdentity;
use crate::plan::PlanOptions;
use crate::plan::passes::PassLog;
use crate::sync::lock;

/// A model as passes made it, for some devices and options.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) graph: Arc<Graph>,
    pub(super) prepared: Arc<PassLog>,
    /// Nodes that go on entry 0 because their device is not in the table.
    pub(super) foreign: Vec<String>,
}

/// What the graph of a session depends on besides the files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModelKey {
    path: PathBuf,
    wishes: Digest,
}

struct Known {
    graph: Weak<Graph>,
    prepared: Arc<PassLog>,
    foreign: Vec<String>,
    files: Vec<(PathBuf, FileIdentity)>,
}

fn models() -> &'static Mutex<HashMap<ModelKey, Known>> {
    static MODELS: OnceLock<Mutex<HashMap<ModelKey, Known>>> = OnceLock::new();
    MODELS.get_or_init(Mutex::default)
}

impl ModelKey {
    /// `None` where there is no file. Whether nodes may run elsewhere than the file says, whether weights are mapped, and
    /// whether measurements choose devices count too.
    pub(super) fn new(
        path: &Path,
        (any, mapped, free): (bool, bool, bool),
        plan: &PlanOptions,
        devices: &[&DeviceInfo],
    ) -> Option<Self> {
        // What a folder has in it may become another model.
        if !path.is_file() {
            return None;
        }
        let wishes = format!("{any} {mapped} {free} {plan:?} {devices:?}");
        Some(ModelKey { path: path.canonicalize().ok()?, wishes: Digest::of(wishes.as_bytes()) })
    }

    /// The model, where a session has it and its files are as they were.
    pub(super) fn known(&self) -> Option<Model> {
        let (model, files) = {
            let models = lock(models());
            let known = models.get(self)?;
            let (prepared, foreign) = (Arc::clone(&known.prepared), known.foreign.clone());
            (Model { graph: known.graph.upgrade()?, prepared, foreign }, known.files.clone())
        };
        let same = files.iter().all(|(path, identity)| FileIdentity::of_path(path) == Some(*identity));
        // What a lost device alone had is read again.
        let there = same && model.graph.constants().all(|(_, tensor)| tensor.is_there());
        there.then_some(model)
    }

    /// Remembers a model as long as a session has it.
    pub(super) fn remember(self, model: &Model, files: Vec<(PathBuf, FileIdentity)>) {
        let mut models = lock(models());
        models.retain(|_, known| known.graph.strong_count() > 0);
        let (prepared, foreign) = (Arc::clone(&model.prepared), model.foreign.clone());
        models.insert(self, Known { graph: Arc::downgrade(&model.graph), prepared, foreign, files });
    }
}
