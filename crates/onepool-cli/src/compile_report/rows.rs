//! Kernels to compile, and what became of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::plans::{Planned, PlannedModel};
use onepool::backend::{DeviceError, Executable, KernelCompiler, KernelDesc};
use onepool::kernel::{KernelId, KernelSource};

/// A kernel with values of its specialization constants.
#[derive(Clone, Debug)]
pub(super) struct Job {
    source: Arc<KernelSource>,
    /// The kernel of the table that it is; generated ones are not in it.
    id: Option<KernelId>,
    spec: Vec<(u32, u32)>,
    /// Lanes of a subgroup, where they are asked for.
    asked: Option<u32>,
    /// Models whose plans have it; none for the defaults of a kernel.
    models: Vec<String>,
}

/// What became of a kernel.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// Its name.
    pub(super) kernel: String,
    /// The folder of its source, or `generated`.
    family: &'static str,
    /// Values of the specialization constants that plans set, by name.
    spec: BTreeMap<String, u32>,
    /// Work-items of a work-group.
    group: [u32; 3],
    /// Lanes of a subgroup that were asked for.
    pub(super) asked: Option<u32>,
    /// Models whose plans have it; none for the defaults of a kernel that ships.
    models: Vec<String>,
    /// Whether models spend their time in kernels like it.
    pub(super) hot: bool,
    /// The features that the device lacks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lacks: Option<String>,
    /// Why it did not compile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
    /// What it became.
    pub(super) executables: Vec<Executable>,
}

/// Every kernel that ships, with the defaults of its constants.
pub(super) fn shipped(asked: Option<u32>) -> impl Iterator<Item = Job> {
    KernelId::all().map(move |id| Job {
        source: Arc::new(id.source()),
        id: Some(id),
        spec: Vec::new(),
        asked,
        models: Vec::new(),
    })
}

/// Adds the kernels of a model's plan, those that another model has too once.
pub(super) fn join(jobs: &mut Vec<Job>, planned: Vec<Planned>, lanes: Option<u32>, model: &PlannedModel) {
    for Planned { source, id, spec } in planned {
        let same = |job: &&mut Job| {
            let code = |source: &KernelSource| source.spirv().map(|(words, _)| words.to_vec());
            !job.models.is_empty()
                && (job.id, job.asked, &job.spec) == (id, lanes, &spec)
                && (id.is_some() || code(&job.source) == code(&source))
        };
        match jobs.iter_mut().find(same) {
            Some(job) if job.models.last() == Some(&model.name) => {}
            Some(job) => job.models.push(model.name.clone()),
            None => jobs.push(Job { source, id, spec, asked: lanes, models: vec![model.name.clone()] }),
        }
    }
}

impl Job {
    /// Whether it is a matrix product, a convolution, attention, a softmax or pointwise.
    pub(super) fn is_hot(&self) -> bool {
        // What plans generate are chains of pointwise operators.
        let Some(id) = self.id else { return true };
        let info = id.info();
        match info.family {
            // Tiles of 64 queries are for devices whose subgroups all have 32 lanes, which AMD's are not.
            "attention" if info.name.starts_with("attention_tile") => {
                ["_half", "_small"].iter().any(|size| info.name.contains(size))
            }
            // So are these.
            "attention" if info.name.starts_with("attention_streak") => false,
            "attention" | "conv" | "pointwise" => true,
            // Determinants are no products.
            "linalg" => !info.name.starts_with("det"),
            "norm" => info.name.starts_with("softmax"),
            "quant" => info.name.starts_with("byte_product"),
            _ => false,
        }
    }

    pub(super) fn compile(&self, compiler: &dyn KernelCompiler) -> Row {
        let mut row = Row {
            kernel: self.source.name().to_owned(),
            family: self.id.map_or("generated", |id| id.info().family),
            spec: BTreeMap::new(),
            group: [1; 3],
            asked: self.asked,
            models: self.models.clone(),
            hot: self.is_hot(),
            lacks: None,
            failed: None,
            executables: Vec::new(),
        };
        if let Some((_, reflection)) = self.source.spirv() {
            row.group = reflection.local_size;
            for (id, value) in &self.spec {
                let named = reflection.spec.iter().find(|constant| constant.id == *id);
                let name = named.map(|constant| constant.name.to_string()).filter(|name| !name.is_empty());
                row.spec.insert(name.unwrap_or_else(|| id.to_string()), *value);
                for (axis, constant) in row.group.iter_mut().zip(reflection.local_size_spec) {
                    if constant == Some(*id) {
                        *axis = *value;
                    }
                }
            }
        }
        let missing = self.source.requires().missing(compiler.info().features);
        if !missing.is_empty() {
            row.lacks = Some(missing.to_string());
            return row;
        }
        let desc = KernelDesc { source: &self.source, spec: &self.spec };
        match compiler.compile(&desc, self.asked) {
            Ok(executables) => row.executables = executables,
            Err(DeviceError::Program { log, .. }) => row.failed = Some(log),
            Err(error) => row.failed = Some(error.to_string()),
        }
        row
    }
}

impl Row {
    /// By kernel, constants and lanes; the defaults first.
    pub(super) fn order(&self) -> impl Ord + '_ {
        (self.family, &self.kernel, !self.models.is_empty(), &self.spec, self.asked)
    }

    /// Whether it did not compile, or is hot and its values leave the registers.
    pub(super) fn is_bad(&self) -> bool {
        self.failed.is_some() || self.hot && self.executables.iter().any(Executable::leaves_registers)
    }

    /// The values of its constants; of a work-group's sizes those of all axes.
    pub(super) fn constants(&self) -> String {
        if self.models.is_empty() {
            return "defaults".to_owned();
        }
        let values: Vec<String> = self.spec.iter().map(|(name, value)| format!("{name}={value}")).collect();
        values.join(" ")
    }

    /// What a table shows of it, a row for each program.
    pub(super) fn cells(&self) -> Vec<[String; 12]> {
        let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
        let row = |e: &Executable| {
            let spilled = match (e.spilled_vector, e.spilled_scalar) {
                (None, None) => None,
                (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
            };
            [
                self.kernel.clone(),
                self.constants(),
                e.subgroup.to_string(),
                number(e.vector_registers),
                number(e.scalar_registers),
                number(spilled),
                number(e.scratch_bytes),
                number(e.local_bytes),
                number(e.code_bytes),
                number(e.subgroups_per_unit),
                number(e.latency),
                number(e.inverse_throughput),
            ]
        };
        self.executables.iter().map(row).collect()
    }
}
