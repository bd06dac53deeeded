//! The provider in a host that is not onnxruntime: every function of its interface is called, no pointer is null that may
//! not be, each function of the host fails once, and nothing is left over.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "both sides call functions of tables")]

mod external;
mod host;
mod profile;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use host::{CONFIG, Context, FUSED, Graph, LOG, Node, Status, Tensor, Type, Value, calls, fail, live};
use onepool_ort::abi::{
    FAIL, INVALID_ARGUMENT, OrtApi, OrtApiBase, OrtEp, OrtEpApi, OrtEpDevice, OrtEpFactory,
    OrtHardwareDevice, OrtNode, OrtNodeComputeInfo, OrtValueInfo, StatusPtr,
};
use onepool_ort::{CreateEpFactories, ReleaseEpFactory};

/// What the provider calls only where a model has sequences, bodies, constants in files, attributes of other kinds, or is
/// to become one of compiled parts; ONNX's cases in onnxruntime call these. Other files here call those of imported
/// memory and of profiles.
const ELSEWHERE: &[&str] = &[
    "ReleaseValue",
    "ReleaseTypeInfo",
    "CastTypeInfoToSequenceTypeInfo",
    "GetSequenceElementType",
    "CreateOpAttr",
    "ReleaseOpAttr",
    "ReleaseNode",
    "CreateKeyValuePairs",
    "AddKeyValuePair",
    "Node_GetImplicitInputs",
    "OpAttr_GetTensorAttributeAsOrtValue",
    "Node_GetSubgraphs",
    "ReleaseExternalInitializerInfo",
    "ExternalInitializerInfo_GetFilePath",
    "ExternalInitializerInfo_GetFileOffset",
    "ExternalInitializerInfo_GetByteSize",
    "GetErrorCode",
    "GetErrorMessage",
    "Graph_GetModelPath",
    "CreateTensorWithDataAsOrtValue",
    "CreateCpuMemoryInfo",
    "ReleaseMemoryInfo",
    "CreateProfilingEvent",
    "ReleaseProfilingEvent",
    "ProfilingEventsContainer_AddEvents",
];

thread_local! {
    static VERSION: RefCell<(&'static CStr, u32)> = const { RefCell::new((c"1.28.0", 28)) };
}

extern "system" fn version_text() -> *const c_char {
    VERSION.with_borrow(|version| version.0.as_ptr())
}

/// The table, for versions that this host knows.
extern "system" fn get_api(version: u32) -> *const c_void {
    if version <= VERSION.with_borrow(|version| version.1) { host::api() } else { null() }
}

/// A status as code and message, released.
fn said(status: StatusPtr) -> Option<(u32, String)> {
    if status.is_null() {
        return None;
    }
    // SAFETY: a status of the host's.
    let held = unsafe { &*status.cast::<Status>() };
    let said = (held.code, held.message.to_string_lossy().into_owned());
    // SAFETY: as above; it is released once.
    unsafe { host::release_status(status) };
    Some(said)
}

/// The factory, in a host of this version.
fn factory(text: &'static CStr, known: u32) -> Result<*mut OrtEpFactory, (u32, String)> {
    VERSION.set((text, known));
    let base = OrtApiBase { GetApi: get_api, GetVersionString: version_text };
    let (mut made, mut count) = (null_mut(), 77);
    // SAFETY: as onnxruntime's header says.
    let status =
        unsafe { CreateEpFactories(c"onepool".as_ptr(), &base, host::logger(), &mut made, 1, &mut count) };
    match said(status) {
        None => {
            assert!(count == 1 && !made.is_null());
            Ok(made)
        }
        Some(failed) => Err(failed),
    }
}

/// The kinds of hardware that the host has: a graphics processor and a processor.
static HARDWARE: [u32; 2] = [1, 0];

fn hardware() -> [*const OrtHardwareDevice; 2] {
    HARDWARE.each_ref().map(|kind| std::ptr::from_ref(kind).cast())
}

/// A model: y = leaky(x + w), with sizes `n` x 4.
struct Model {
    graph: Graph,
    /// The node that stands for the whole.
    fused: Node,
}

/// Objects that live as long as the test.
fn kept<T, O>(object: T) -> *const O {
    std::ptr::from_ref(Box::leak(Box::new(object))).cast()
}

fn model() -> Model {
    let rows = || Type { element: 1, dims: vec![-1, 4] };
    let value = |name, of, constant| -> *const OrtValueInfo { kept(Value { name, of, constant }) };
    let weights = Type { element: 1, dims: vec![4] };
    let held = Tensor::new(weights.clone(), vec![1.0, -1.0, 0.5, -8.0]);
    let (x, sum, y) = (value(c"x", rows(), None), value(c"sum", rows(), None), value(c"y", rows(), None));
    let w = value(c"w", weights, Some(held));
    let add: *const OrtNode =
        kept(Node { operator: c"Add", inputs: vec![x, w], outputs: vec![sum], attribute: None });
    let leaky: *const OrtNode = kept(Node {
        operator: c"LeakyRelu",
        inputs: vec![sum],
        outputs: vec![y],
        attribute: Some((c"alpha", 0.25)),
    });
    Model {
        graph: Graph {
            inputs: vec![x],
            outputs: vec![y],
            constants: vec![w],
            nodes: vec![add, leaky],
            parent: null(),
        },
        fused: Node { operator: c"whole", inputs: vec![x], outputs: vec![y], attribute: None },
    }
}

fn context(rows: usize) -> Context {
    let values = (0..rows * 4).map(|i| i as f32 - 6.0).collect();
    let x = Tensor::new(Type { element: 1, dims: vec![rows as i64, 4] }, values);
    Context { inputs: vec![Some(x)], outputs: RefCell::new(vec![None]) }
}

fn expected(rows: usize) -> Vec<f32> {
    let weights = [1.0, -1.0, 0.5, -8.0];
    let sum = (0..rows * 4).map(|i| i as f32 - 6.0 + weights[i % 4]);
    sum.map(|v| if v < 0.0 { v * 0.25 } else { v }).collect()
}

/// What a step of a session returned that went wrong.
type Wrong = (u32, String);

/// A provider, with the factory that made it.
struct Provider {
    factory: *mut OrtEpFactory,
    ep: *mut OrtEp,
    _beside: Option<RwLockReadGuard<'static, ()>>,
}

impl Provider {
    fn new(options: &[(&str, &str)]) -> Result<Self, Wrong> {
        Provider::beside(Some(COUNTERS.read().unwrap_or_else(PoisonError::into_inner)), options)
    }

    /// One of a test that holds the counters.
    fn alone(options: &[(&str, &str)]) -> Result<Self, Wrong> {
        Provider::beside(None, options)
    }

    fn beside(beside: Option<RwLockReadGuard<'static, ()>>, options: &[(&str, &str)]) -> Result<Self, Wrong> {
        let factory = factory(c"1.28.0", 28)?;
        CONFIG.set(options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        let mut ep = null_mut();
        // SAFETY: as onnxruntime's header says.
        let status = unsafe {
            let (devices, metadata) = (hardware(), [null(); 1]);
            let create = (*factory).CreateEp;
            create(factory, &devices[1], metadata.as_ptr(), 1, kept::<u8, _>(0), host::logger(), &mut ep)
        };
        let provider = Provider { factory, ep, _beside: beside };
        match said(status) {
            Some(wrong) => Err(wrong),
            None => {
                assert!(!ep.is_null());
                Ok(provider)
            }
        }
    }

    /// The parts of a graph that the provider wants.
    fn capability(&self, graph: &Graph) -> Result<Vec<Vec<*const OrtNode>>, Wrong> {
        FUSED.take();
        // SAFETY: as onnxruntime's header says.
        let status = unsafe {
            let capability = (*self.ep).GetCapability;
            capability(self.ep, std::ptr::from_ref(graph).cast(), kept::<u8, u8>(0).cast_mut().cast())
        };
        said(status).map_or_else(|| Ok(FUSED.take()), Err)
    }

    fn compile(&self, model: &Model) -> Result<*mut OrtNodeComputeInfo, Wrong> {
        let mut graph = std::ptr::from_ref(&model.graph).cast();
        let mut fused = std::ptr::from_ref(&model.fused).cast();
        let mut info = null_mut();
        // SAFETY: as onnxruntime's header says; the model is compiled to no nodes.
        let status = unsafe {
            let compile = (*self.ep).Compile;
            compile(self.ep, &mut graph, &mut fused, 1, &mut info, null_mut())
        };
        match said(status) {
            None => {
                assert!(!info.is_null());
                Ok(info)
            }
            Some(wrong) => {
                assert!(info.is_null(), "a call that failed gave something");
                Err(wrong)
            }
        }
    }

    fn release(&self, info: *mut OrtNodeComputeInfo) {
        let mut infos = [info, null_mut()];
        // SAFETY: made by `compile`.
        unsafe { ((*self.ep).ReleaseNodeComputeInfos)(self.ep, infos.as_mut_ptr(), 2) };
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // SAFETY: made by the provider, and released once.
        let status = unsafe {
            ((*self.factory).ReleaseEp)(self.factory, self.ep);
            ReleaseEpFactory(self.factory)
        };
        assert_eq!(said(status), None);
    }
}

/// Runs and held memory are counted for the whole process: while a test reads the counters no other provider exists.
static COUNTERS: RwLock<()> = RwLock::new(());

/// One run in a state of its own.
fn run(info: *mut OrtNodeComputeInfo, context: &Context) -> Result<(), Wrong> {
    let mut state = null_mut();
    // SAFETY: as onnxruntime's header says.
    unsafe {
        let created = ((*info).CreateState)(info, kept::<u8, u8>(0).cast_mut().cast(), &mut state);
        if let Some(wrong) = said(created) {
            return Err(wrong);
        }
        let status = ((*info).Compute)(info, state, std::ptr::from_ref(context).cast_mut().cast());
        ((*info).ReleaseState)(info, state);
        said(status).map_or(Ok(()), Err)
    }
}

/// From the factory to results of two sizes, and back.
fn session() -> Result<(), Wrong> {
    LOG.take();
    let provider = Provider::new(&[("ep.onepool.device", "cpu"), ("ep.other.x", "y")])?;
    let model = model();
    let parts = provider.capability(&model.graph)?;
    if parts != [model.graph.nodes.clone()] {
        // A node that cannot be read is left to the host, and the log says why.
        let why = LOG.take().into_iter().find(|line| line.contains("onepool leaves"));
        return Err((1, why.unwrap_or_default()));
    }
    let info = provider.compile(&model)?;
    let ran = [3, 5, 3].iter().try_for_each(|rows| {
        let context = context(*rows);
        run(info, &context)?;
        let outputs = context.outputs.borrow();
        assert_eq!(outputs[0].as_ref().unwrap().values, expected(*rows));
        Ok(())
    });
    provider.release(info);
    ran
}

#[test]
fn a_session_from_one_end_to_the_other() {
    fail(None);
    session().unwrap();
    assert_eq!(live(), 0, "objects were not released");
    let log = LOG.take();
    assert!(log.iter().any(|line| line.contains("takes 2 of 2 nodes in 1 parts")), "{log:?}");
    assert!(log.iter().any(|line| line.contains("x: used in place")), "{log:?}");
    let called = calls();
    let slots = OrtApi::SLOTS.iter().chain(OrtEpApi::SLOTS).map(|(name, _)| *name);
    let idle: Vec<&str> =
        slots.filter(|name| !called.contains_key(name) && !ELSEWHERE.contains(name)).collect();
    let devices = ["CreateEpDevice", "HardwareDevice_Type", "CreateStatus"];
    assert!(idle.iter().all(|name| devices.contains(name)), "not called: {idle:?}");
}

#[test]
fn whatever_the_host_fails_at_is_a_status() {
    fail(None);
    session().unwrap();
    let all = calls();
    let mut failed = 0;
    for (name, count) in all {
        for at in [0, 1, count - 1] {
            if !host::can_fail(name) || at >= count {
                continue;
            }
            fail(Some((name, at)));
            match session() {
                // Lines of a log, and names in them, are not worth a session.
                Ok(()) => {
                    assert!(name.contains("Logg") || name == "Node_GetName", "{name} failed for no one")
                }
                Err((code, message)) => {
                    failed += 1;
                    assert!(
                        code != 0 && message.contains(&format!("{name} was made to fail")),
                        "{name}: {message}"
                    );
                }
            }
            assert_eq!(live(), 0, "objects were not released after {name} failed");
        }
    }
    fail(None);
    assert!(failed > 60, "only {failed} failures were seen");
    session().unwrap();
}

#[test]
fn the_factory_says_what_it_is() {
    for (text, known, stamp) in [(c"1.24.4", 24, 24), (c"1.28.0", 28, 28), (c"1.33.1-dev+a", 33, 28)] {
        let made = factory(text, known).unwrap();
        // SAFETY: as onnxruntime's header says.
        unsafe {
            let table = &*made;
            assert_eq!(table.ort_version_supported, stamp);
            let text = |found: *const c_char| CStr::from_ptr(found).to_str().unwrap().to_owned();
            assert_eq!(text((table.GetName)(made)), "OnepoolExecutionProvider");
            assert_eq!(text((table.GetVendor)(made)), "onepool");
            assert_eq!(text((table.GetVersion)(made)), env!("CARGO_PKG_VERSION"));
            let _ = (table.GetVendorId)(made);
            assert!(!(table.IsStreamAware)(made));
            let nothing = kept::<u8, c_void>(0);
            let (mut allocator, mut transfer) = (nothing.cast_mut(), nothing.cast_mut());
            assert_eq!(said((table.CreateAllocator)(made, nothing, null(), &mut allocator)), None);
            assert_eq!(said((table.CreateDataTransfer)(made, &mut transfer)), None);
            assert!(allocator.is_null() && transfer.is_null());
            (table.ReleaseAllocator)(made, null_mut());
            (table.ReleaseEp)(made, null_mut());
            assert_eq!(said(ReleaseEpFactory(made)), None);
        }
    }
    for (text, known) in [(c"1.23.2", 23), (c"1.9.0", 9), (c"2.0.0", 99), (c"", 1)] {
        let (code, message) = factory(text, known).unwrap_err();
        assert!(code == FAIL && message.contains("onepool needs onnxruntime 1.24 or newer"), "{message}");
    }
    VERSION.set((c"1.28.0", 28));
    let base = OrtApiBase { GetApi: get_api, GetVersionString: version_text };
    let (mut made, mut count) = (null_mut(), 0);
    // SAFETY: as onnxruntime's header says.
    let status = unsafe { CreateEpFactories(c"x".as_ptr(), &base, host::logger(), &mut made, 0, &mut count) };
    assert!(said(status).unwrap().1.contains("room for none") && made.is_null());
    // SAFETY: null is nothing to release.
    assert_eq!(said(unsafe { ReleaseEpFactory(null_mut()) }), None);
    assert_eq!(live(), 0);
}

#[test]
fn the_processor_is_the_device() {
    let made = factory(c"1.28.0", 28).unwrap();
    let devices = |hardware: &[*const OrtHardwareDevice], most: usize| {
        let (mut out, mut found) = (null_mut::<OrtEpDevice>(), 77);
        // SAFETY: as onnxruntime's header says.
        let status = unsafe {
            let supported = (*made).GetSupportedDevices;
            supported(made, hardware.as_ptr(), hardware.len(), &mut out, most, &mut found)
        };
        (said(status), out, found)
    };
    let all = hardware();
    assert_eq!(devices(&all, 4), (None, all[1].cast_mut().cast(), 1));
    assert_eq!(devices(&all[..1], 4), (None, null_mut(), 0));
    assert_eq!(devices(&[], 4), (None, null_mut(), 0));
    assert_eq!(devices(&all, 0), (None, null_mut(), 0));
    fail(Some(("CreateEpDevice", 0)));
    let (status, _, found) = devices(&all, 4);
    assert!(status.unwrap().1.contains("was made to fail") && found == 0);
    fail(None);
    // SAFETY: made above.
    assert_eq!(said(unsafe { ReleaseEpFactory(made) }), None);
    assert_eq!(live(), 0);
}

#[test]
fn wrong_options_and_missing_arguments_are_statuses() {
    for (key, value, part) in [
        ("ep.onepool.devise", "cpu", "there is no option \"devise\""),
        ("ep.onepool.device", "abacus", "there is no device API"),
        ("ep.onepool.strict", "maybe", "expected 0 or 1"),
    ] {
        let (code, message) = Provider::new(&[(key, value)]).map(drop).unwrap_err();
        assert!(code != 0 && message.contains(part), "{message}");
    }
    let made = factory(c"1.28.0", 28).unwrap();
    let mut ep = null_mut();
    // SAFETY: as onnxruntime's header says, but for what is null.
    let status = unsafe {
        let (devices, metadata) = (hardware(), [null(); 1]);
        ((*made).CreateEp)(made, &devices[1], metadata.as_ptr(), 1, null(), null(), &mut ep)
    };
    assert!(said(status).unwrap().0 == INVALID_ARGUMENT && ep.is_null());
    // SAFETY: made above.
    assert_eq!(said(unsafe { ReleaseEpFactory(made) }), None);
}

#[test]
fn runs_of_another_kind_are_statuses() {
    fail(None);
    let provider = Provider::new(&[("ep.onepool.device", "cpu")]).unwrap();
    let model = model();
    let info = provider.compile(&model).unwrap();
    let wrong = |change: fn(&mut Context)| {
        let mut context = context(3);
        change(&mut context);
        run(info, &context).unwrap_err()
    };
    assert!(wrong(|c| c.inputs[0] = None).1.contains("input 0 has no value"));
    assert!(wrong(|c| c.inputs.clear()).1.contains("0 inputs"));
    assert!(wrong(|c| c.outputs.borrow_mut().clear()).1.contains("0 outputs"));
    assert!(wrong(|c| c.inputs[0].as_mut().unwrap().of.element = 7).1.contains("has type 7"));
    assert!(wrong(|c| c.inputs[0].as_mut().unwrap().of.dims = vec![3, 5]).1.contains("\"x\""));
    assert!(wrong(|c| c.inputs[0].as_mut().unwrap().of.dims = vec![i64::MAX, 4]).1.contains("x"));
    assert!(wrong(|c| c.inputs[0].as_mut().unwrap().of.dims = vec![-1, 4]).1.contains("x"));
    // It runs after all of these, also on no rows.
    for rows in [0, 1, 3] {
        let context = context(rows);
        run(info, &context).unwrap();
        assert_eq!(context.outputs.borrow()[0].as_ref().unwrap().values, expected(rows));
    }
    provider.release(info);
    drop(provider);
    assert_eq!(live(), 0);
}

#[test]
fn bodies_are_left_to_the_nodes_that_hold_them() {
    fail(None);
    let provider = Provider::new(&[("ep.onepool.device", "cpu")]).unwrap();
    let mut body = model().graph;
    body.parent = body.nodes[0];
    assert_eq!(provider.capability(&body).unwrap(), Vec::<Vec<*const OrtNode>>::new());
    let empty = Graph { nodes: Vec::new(), ..model().graph };
    assert_eq!(provider.capability(&empty).unwrap(), Vec::<Vec<*const OrtNode>>::new());
    drop(provider);
    assert_eq!(live(), 0);
}
