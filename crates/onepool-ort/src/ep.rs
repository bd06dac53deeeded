//! The provider of one session: takes nodes, compiles parts, runs them.

#![allow(unsafe_code, reason = "onnxruntime calls functions of a table, with pointers")]

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::plan::PlanOptions;
use onepool::registry::Registry;
use onepool::session::{ParamStore, RunOptions};
use onepool::{Graph as Loaded, Session};

use crate::abi::{
    OrtEp, OrtEpGraphSupportInfo, OrtEpProfilerImpl, OrtGraph, OrtKernelContext, OrtLogger, OrtNode,
    OrtNodeComputeContext, OrtNodeComputeInfo, OrtNodeFusionOptions, StatusPtr, attr_type,
};
use crate::claim::{Target, claim};
use crate::context;
use crate::failure::{Failure, caught};
use crate::host::{Graph, Host, Kernel, Log, Node, ValueType, c_text, status};
use crate::model::{Weights, Writer};
use crate::options::{ContextModel, EP_NAME, Options};
use crate::part::{Part, Port};
use crate::profile::{self, Profile};
use crate::{stats, types};
use onepool_core::sync::lock;

/// The provider of one session. onnxruntime sees its first field.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ep {
    table: OrtEp,
    host: Host,
    logger: *const OrtLogger,
    options: Options,
    target: Target,
    params: Arc<ParamStore>,
    profile: Arc<Profile>,
}

/// A compiled part. onnxruntime sees its first field.
#[repr(C)]
#[derive(Debug)]
struct Compiled {
    table: OrtNodeComputeInfo,
    host: Host,
    part: Part,
}

/// What a device is opened as: its name, threads, folder of kernels and limit of memory.
type Opened = (String, usize, Option<std::path::PathBuf>, Option<u64>);

/// Devices that sessions have open, or had.
static OPEN: Mutex<Option<HashMap<Opened, Context>>> = Mutex::new(None);

/// Opens a device, or gives the one that another session opened: they share its memory and kernels.
fn open(selector: &str, options: &Options) -> Result<Context, Failure> {
    let key = (selector.to_owned(), options.threads, options.cache.clone(), options.memory_limit);
    let mut open = lock(&OPEN);
    let open = open.get_or_insert_default();
    if let Some(context) = open.get(&key) {
        return Ok(context.clone());
    }
    let desc =
        ContextDesc { threads: options.threads, cache_dir: options.cache.clone(), ..ContextDesc::default() };
    let context = Registry::with_defaults().open(selector, &desc)?;
    if let Some(most) = options.memory_limit {
        let budget = context.budget();
        for (heap, _) in (0u32..).zip(context.info().memory.heaps()) {
            budget.set_limit(heap, budget.limit(heap).min(most));
        }
    }
    open.insert(key, context.clone());
    Ok(context)
}

/// Lets go of all devices; sessions that live keep theirs.
pub(crate) fn close_devices() {
    let open = lock(&OPEN).take();
    drop(open);
}

impl Ep {
    /// # Safety
    /// `logger` lives as long as the provider.
    pub(crate) unsafe fn new(
        host: Host,
        options: Options,
        logger: *const OrtLogger,
    ) -> Result<Box<Self>, Failure> {
        let mut devices = Vec::new();
        for selector in &options.devices {
            devices.push(
                open(selector, &options).map_err(|e| e.of(format!("option \"device\": {selector:?}")))?,
            );
        }
        if options.fallback && !devices.iter().any(|context| context.info().native) {
            devices.push(open("cpu", &options)?);
        }
        let plan = PlanOptions {
            precision: options.precision,
            fallback: options.fallback,
            ..PlanOptions::default()
        };
        let table = OrtEp {
            ort_version_supported: host.version,
            GetName: name,
            GetCapability: capability,
            Compile: compile,
            ReleaseNodeComputeInfos: release_infos,
            GetPreferredDataLayout: None,
            ShouldConvertDataLayoutForOp: None,
            SetDynamicOptions: None,
            OnRunStart: None,
            OnRunEnd: None,
            CreateAllocator: None,
            CreateSyncStreamForDevice: None,
            GetCompiledModelCompatibilityInfo: None,
            GetKernelRegistry: None,
            IsConcurrentRunSupported: None,
            Sync: None,
            CreateProfiler: (host.version >= 25).then_some(create_profiler),
            IsGraphCaptureEnabled: None,
            IsGraphCaptured: None,
            ReplayGraph: None,
            GetGraphCaptureNodeAssignmentPolicy: None,
            GetAvailableResource: None,
            OnSessionInitializationEnd: None,
            GetDefaultMemoryDevice: None,
            ReleaseCapturedGraph: None,
        };
        let target = Target { devices, options: plan, captures: host.version >= 28 };
        let profile = Arc::default();
        Ok(Box::new(Ep { table, host, logger, options, target, params: Arc::default(), profile }))
    }

    fn log(&self) -> Log<'_> {
        // SAFETY: the caller of `new` promised that it lives as long.
        unsafe { Log::new(self.host, self.logger) }
    }

    /// Tells onnxruntime which nodes to fuse.
    fn capability(&self, graph: &Graph<'_>, info: *mut OrtEpGraphSupportInfo) -> Result<(), Failure> {
        // Bodies are run by the node that holds them, or by onnxruntime.
        if graph.is_body()? {
            return Ok(());
        }
        let nodes = graph.nodes()?;
        let (groups, declined) = claim(graph, &nodes, &self.target)?;
        for of in &declined {
            self.log().info(|| format!("onepool leaves {}: {}", of.node, of.why));
        }
        let taken: usize = groups.iter().map(Vec::len).sum();
        self.log()
            .info(|| format!("onepool takes {taken} of {} nodes in {} parts", nodes.len(), groups.len()));
        let options = OrtNodeFusionOptions {
            ort_version_supported: self.host.version,
            drop_constant_initializers: true,
        };
        for group in groups {
            let members: Vec<*const OrtNode> = group.iter().map(|&node| nodes[node].as_ptr()).collect();
            // SAFETY: the list has that length; onnxruntime gave its nodes to this call.
            self.host.check(unsafe {
                self.host.ep.EpGraphSupportInfo_AddNodesToFuse(
                    info,
                    members.as_ptr(),
                    members.len(),
                    &options,
                )
            })?;
        }
        Ok(())
    }

    /// The session for a graph.
    fn session(&self, graph: Loaded) -> Result<Session, Failure> {
        let mut builder = Session::builder()
            .graph(graph)
            .precision(self.options.precision)
            .placement(self.options.placement)
            .strict(self.options.strict)
            .fallback(self.options.fallback)
            .params(Arc::clone(&self.params));
        for context in &self.target.devices {
            builder = builder.context(context.clone());
        }
        if let Some(bytes) = self.options.copy_threshold {
            builder = builder.copy_threshold(bytes);
        }
        Ok(builder.build()?)
    }

    fn compile(&self, graph: &Graph<'_>, fused: &Node<'_>) -> Result<Box<Compiled>, Failure> {
        let loaded = match context::load(graph)? {
            Some(loaded) => loaded,
            None => Writer::new(Weights::Taken).whole(graph)?.load()?,
        };
        stats::compiled(loaded.nodes().len());
        let ports = [ports(&fused.inputs()?)?, ports(&fused.outputs()?)?];
        let mut run = RunOptions::new();
        if let Some(limit) = self.options.time_limit {
            run = run.time_limit(limit);
        }
        let session = self.session(loaded)?;
        for info in session.devices() {
            self.log().info(|| format!("onepool runs {} on {}", fused.name().unwrap_or_default(), info.name));
        }
        let (contexts, profile) = (self.target.devices.clone(), Arc::clone(&self.profile));
        let part = Part::new(fused.name()?, session, contexts, ports, run, &self.options, profile);
        let table = OrtNodeComputeInfo {
            ort_version_supported: self.host.version,
            CreateState: create_state,
            Compute: compute,
            ReleaseState: release_state,
        };
        Ok(Box::new(Compiled { table, host: self.host, part }))
    }

    /// The node that stands for a compiled graph in a model of such nodes.
    fn context_node(
        &self,
        graph: &Graph<'_>,
        fused: &Node<'_>,
        wanted: &ContextModel,
    ) -> Result<*mut OrtNode, Failure> {
        let payload = context::payload(&Writer::new(Weights::Inside).whole(graph)?.bytes);
        let name = fused.name()?;
        let held = match wanted.embed {
            true => payload,
            false => {
                let (folder, file) = context::file_of(&wanted.file, &graph.model_path()?, &name)?;
                std::fs::write(folder.join(&file), payload).map_err(|e| {
                    Failure::argument(format!("writing {}: {e}", folder.join(&file).display()))
                })?;
                file.into_bytes()
            }
        };
        let (main, embed) = (1i64, i64::from(wanted.embed));
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        let number = |v: &i64| v.to_ne_bytes().to_vec();
        let attributes = [
            (c"main_context", attr_type::INT, number(&main)),
            (c"embed_mode", attr_type::INT, number(&embed)),
            (c"ep_cache_context", attr_type::STRING, held),
            (c"source", attr_type::STRING, EP_NAME.to_bytes().to_vec()),
            (c"ep_sdk_version", attr_type::STRING, version.to_vec()),
            (c"partition_name", attr_type::STRING, name.clone().into_bytes()),
        ];
        let names = |values: Vec<Option<crate::host::Value<'_>>>| {
            values
                .into_iter()
                .map(|v| Ok(c_text(&v.map_or(Ok(String::new()), |v| v.name())?)))
                .collect::<Result<Vec<CString>, Failure>>()
        };
        let (inputs, outputs) = (names(fused.inputs()?)?, names(fused.outputs()?)?);
        let pointers = |all: &[CString]| all.iter().map(|name| name.as_ptr()).collect::<Vec<_>>();
        let (inputs, outputs, name) = (pointers(&inputs), pointers(&outputs), c_text(&name));
        let (operator, domain) = (c_text(context::OPERATOR), c_text(context::DOMAIN));
        let mut made = Vec::new();
        let mut node = null_mut();
        let mut make = || {
            for (key, kind, value) in &attributes {
                let mut attr = null_mut();
                let len =
                    i32::try_from(if *kind == attr_type::INT { 1 } else { value.len() }).map_err(|_| {
                        Failure::argument("what an EPContext node holds exceeds 2 GiB; use embed_mode 0")
                    })?;
                // SAFETY: the value has that length, in the unit of its kind.
                self.host.check(unsafe {
                    self.host.api.CreateOpAttr(key.as_ptr(), value.as_ptr().cast(), len, *kind, &mut attr)
                })?;
                made.push(attr);
            }
            // SAFETY: lists have the lengths given; onnxruntime copies texts.
            self.host.check(unsafe {
                self.host.editor.CreateNode(
                    operator.as_ptr(),
                    domain.as_ptr(),
                    name.as_ptr(),
                    inputs.as_ptr(),
                    inputs.len(),
                    outputs.as_ptr(),
                    outputs.len(),
                    made.as_mut_ptr(),
                    made.len(),
                    &mut node,
                )
            })
        };
        match make() {
            // The node took the attributes.
            Ok(()) => Ok(node),
            Err(failure) => {
                // SAFETY: made above, and no one took them.
                made.into_iter().for_each(|attr| unsafe { self.host.api.ReleaseOpAttr(attr) });
                Err(failure)
            }
        }
    }
}

/// Names and types of what a fused node reads or writes.
fn ports(values: &[Option<crate::host::Value<'_>>]) -> Result<Vec<Port>, Failure> {
    let port = |value: &Option<crate::host::Value<'_>>| {
        let value = value.ok_or_else(|| Failure::graph("a fused node leaves out an input or output"))?;
        let name = value.name()?;
        match value.kind()? {
            ValueType::Tensor(tensor) if types::is_shared(tensor.element) => {
                Ok(Port { name, element: tensor.element })
            }
            other => Err(Failure::graph(format!("{name:?} is {other:?}, which cannot be handed over"))),
        }
    };
    values.iter().map(port).collect()
}

extern "system" fn name(_: *const OrtEp) -> *const c_char {
    EP_NAME.as_ptr()
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn capability(
    this: *mut OrtEp,
    graph: *const OrtGraph,
    info: *mut OrtEpGraphSupportInfo,
) -> StatusPtr {
    // SAFETY: onnxruntime gives back the pointer that `CreateEp` made, which it has not released.
    let ep = unsafe { &*this.cast::<Ep>() };
    // SAFETY: the graph is onnxruntime's for this call.
    status(ep.host, || ep.capability(&unsafe { Graph::new(ep.host, graph) }, info))
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn create_profiler(this: *mut OrtEp, out: *mut *mut OrtEpProfilerImpl) -> StatusPtr {
    // SAFETY: as in `capability`.
    let ep = unsafe { &*this.cast::<Ep>() };
    status(ep.host, || {
        let profiler = profile::profiler(ep.host, &ep.profile);
        // SAFETY: onnxruntime's place for the result.
        unsafe { *out = profiler };
        Ok(())
    })
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn compile(
    this: *mut OrtEp,
    graphs: *mut *const OrtGraph,
    fused: *mut *const OrtNode,
    count: usize,
    out: *mut *mut OrtNodeComputeInfo,
    context_nodes: *mut *mut OrtNode,
) -> StatusPtr {
    // SAFETY: as in `capability`.
    let ep = unsafe { &*this.cast::<Ep>() };
    status(ep.host, || {
        let mut all = Vec::with_capacity(count);
        for i in 0..count {
            // SAFETY: the lists have that length; what they name is onnxruntime's for this call.
            let part = unsafe { (Graph::new(ep.host, *graphs.add(i)), Node::new(ep.host, *fused.add(i))) };
            all.push((ep.compile(&part.0, &part.1)?, part));
        }
        let wanted = ep.options.context.as_ref().filter(|_| !context_nodes.is_null());
        let mut made = Vec::new();
        for (_, (graph, fused)) in all.iter().filter(|_| wanted.is_some()) {
            match wanted.map(|wanted| ep.context_node(graph, fused, wanted)).transpose() {
                Ok(node) => made.extend(node),
                Err(failure) => {
                    // SAFETY: made above, and no one took them.
                    made.into_iter().for_each(|node| unsafe { ep.host.api.ReleaseNode(node) });
                    return Err(failure);
                }
            }
        }
        for (i, node) in made.into_iter().enumerate() {
            // SAFETY: the list has that length; onnxruntime takes the node.
            unsafe { *context_nodes.add(i) = node };
        }
        for (i, (compiled, _)) in all.into_iter().enumerate() {
            // SAFETY: the list has that length; `release_infos` takes it back.
            unsafe { *out.add(i) = Box::into_raw(compiled).cast() };
        }
        Ok(())
    })
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn release_infos(_: *mut OrtEp, infos: *mut *mut OrtNodeComputeInfo, count: usize) {
    for i in 0..count {
        // SAFETY: the list has that length; each was made by `compile` and is released once.
        unsafe {
            let info = *infos.add(i);
            if !info.is_null() {
                let compiled = Box::from_raw(info.cast::<Compiled>());
                drop(caught(|| {
                    drop(compiled);
                    Ok(())
                }));
            }
        }
    }
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn create_state(
    this: *mut OrtNodeComputeInfo,
    _: *mut OrtNodeComputeContext,
    state: *mut *mut c_void,
) -> StatusPtr {
    // SAFETY: onnxruntime's place for the result. All state is in the part itself.
    unsafe { *state = this.cast() };
    null_mut()
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn compute(
    this: *mut OrtNodeComputeInfo,
    _: *mut c_void,
    context: *mut OrtKernelContext,
) -> StatusPtr {
    // SAFETY: made by `compile` and not released.
    let compiled = unsafe { &*this.cast::<Compiled>() };
    // SAFETY: the context is onnxruntime's for this call.
    status(compiled.host, || compiled.part.run(&unsafe { Kernel::new(compiled.host, context) }))
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn release_state(_: *mut OrtNodeComputeInfo, _: *mut c_void) {}
