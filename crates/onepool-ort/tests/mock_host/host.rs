//! A host in place of onnxruntime: tables of functions over a small model. Each function checks that no pointer is null
//! that onnxruntime's headers let no one leave out, can be made to fail, and counts what it gave away.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use onepool_ort::abi::{
    OrtApi, OrtEpApi, OrtEpDevice, OrtEpFactory, OrtEpGraphSupportInfo, OrtGraph, OrtHardwareDevice,
    OrtKernelContext, OrtKeyValuePairs, OrtLogger, OrtMemoryInfo, OrtNode, OrtNodeFusionOptions, OrtOpAttr,
    OrtProfilingEvent, OrtProfilingEventsContainer, OrtSessionOptions, OrtStatus, OrtTensorTypeAndShapeInfo,
    OrtTypeInfo, OrtValue, OrtValueInfo, PathChar, StatusPtr,
};

/// `ORT_RUNTIME_EXCEPTION`.
const RUNTIME: u32 = 6;
/// The number of an attribute's kind.
const FLOAT: u32 = 3;

/// What a status says.
pub(crate) struct Status {
    pub(crate) code: u32,
    pub(crate) message: CString,
}

/// A type, of a value or of a tensor.
#[derive(Clone)]
pub(crate) struct Type {
    pub(crate) element: u32,
    pub(crate) dims: Vec<i64>,
}

pub(crate) struct Tensor {
    pub(crate) of: Type,
    pub(crate) values: Vec<f32>,
    /// Where the elements are, unless `values` has them.
    pub(crate) place: Option<*mut f32>,
}

impl Tensor {
    pub(crate) fn new(of: Type, values: Vec<f32>) -> Self {
        Tensor { of, values, place: None }
    }

    fn data(&self) -> *const f32 {
        self.place.map_or(self.values.as_ptr(), |place| place.cast_const())
    }
}

/// An event of a profile: name, start, length, and what is said.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) at_us: i64,
    pub(crate) took_us: i64,
    pub(crate) said: Vec<(String, String)>,
}

pub(crate) struct Value {
    pub(crate) name: &'static CStr,
    pub(crate) of: Type,
    pub(crate) constant: Option<Tensor>,
}

pub(crate) struct Node {
    pub(crate) operator: &'static CStr,
    pub(crate) inputs: Vec<*const OrtValueInfo>,
    pub(crate) outputs: Vec<*const OrtValueInfo>,
    /// A name and a number.
    pub(crate) attribute: Option<(&'static CStr, f32)>,
}

pub(crate) struct Graph {
    pub(crate) inputs: Vec<*const OrtValueInfo>,
    pub(crate) outputs: Vec<*const OrtValueInfo>,
    pub(crate) constants: Vec<*const OrtValueInfo>,
    pub(crate) nodes: Vec<*const OrtNode>,
    pub(crate) parent: *const OrtNode,
}

/// Tensors of one run.
pub(crate) struct Context {
    pub(crate) inputs: Vec<Option<Tensor>>,
    pub(crate) outputs: RefCell<Vec<Option<Box<Tensor>>>>,
}

/// Texts of a session, by key.
#[derive(Default)]
pub(crate) struct Pairs {
    keys: Vec<CString>,
    values: Vec<CString>,
    key_pointers: Vec<*const c_char>,
    value_pointers: Vec<*const c_char>,
}

thread_local! {
    /// Objects that the provider has and must release.
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static CALLS: RefCell<BTreeMap<&'static str, usize>> = const { RefCell::new(BTreeMap::new()) };
    /// The function that fails, and at which call.
    static FAILS: RefCell<Option<(&'static str, usize)>> = const { RefCell::new(None) };
    /// Nodes that the provider wants.
    pub(crate) static FUSED: RefCell<Vec<Vec<*const OrtNode>>> = const { RefCell::new(Vec::new()) };
    pub(crate) static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// Entries of the session's configuration.
    pub(crate) static CONFIG: RefCell<Vec<(String, String)>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn live() -> i64 {
    LIVE.get()
}

/// How often each function was called since the last time.
pub(crate) fn calls() -> BTreeMap<&'static str, usize> {
    CALLS.take()
}

/// From now on call `at` of function `name`, from 0, fails.
pub(crate) fn fail(what: Option<(&'static str, usize)>) {
    CALLS.take();
    FAILS.replace(what);
}

fn give<T, O>(object: T) -> *mut O {
    LIVE.set(LIVE.get() + 1);
    Box::into_raw(Box::new(object)).cast()
}

/// # Safety
/// `object` is null or came from `give::<T, _>`, and is released once.
unsafe fn take<T, O>(object: *mut O) {
    if !object.is_null() {
        LIVE.set(LIVE.get() - 1);
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(object.cast::<T>()) });
    }
}

/// # Safety
/// `object` is a live `T`.
unsafe fn of<'a, T, O>(object: *const O) -> &'a T {
    // SAFETY: the caller's promise.
    unsafe { &*object.cast::<T>() }
}

/// Counts a call of `name`, checks that none of its pointers is null, and says how it fails where it is to.
fn enter(name: &'static str, pointers: &[*const c_void]) -> Option<StatusPtr> {
    for (i, pointer) in pointers.iter().enumerate() {
        assert!(!pointer.is_null(), "{name}: pointer {i} is null, which the header does not allow");
    }
    let at = CALLS.with_borrow_mut(|calls| {
        let count = calls.entry(name).or_insert(0);
        *count += 1;
        *count - 1
    });
    let fails = FAILS.with_borrow(|fails| *fails == Some((name, at)));
    fails.then(|| {
        give(Status { code: RUNTIME, message: CString::new(format!("{name} was made to fail")).unwrap() })
    })
}

/// Functions of a table, by name.
type Functions = Vec<(&'static str, *const c_void)>;

/// Declares functions: those that return a status fail where they are to, before anything else.
macro_rules! functions {
    ($list:ident; $($name:ident($($arg:ident: $ty:ty),*) [$($checked:ident),*] $body:block)*) => {
        $(
            #[allow(non_snake_case, reason = "the names of the C interface")]
            #[allow(unused_unsafe, reason = "some need none")]
            // SAFETY: the provider calls it with what the header says.
            unsafe extern "system" fn $name($($arg: $ty),*) -> StatusPtr {
                if let Some(failed) = enter(stringify!($name), &[$($checked as *const c_void),*]) {
                    return failed;
                }
                // SAFETY: pointers came from this host, as the types of the arguments say, and live.
                unsafe { $body }
                null_mut()
            }
        )*
        fn $list() -> Functions {
            vec![$((stringify!($name), $name as *const c_void)),*]
        }
    };
}

macro_rules! plain {
    ($list:ident; $($name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? [$($checked:ident),*] $body:block)*) => {
        $(
            #[allow(non_snake_case, reason = "the names of the C interface")]
            #[allow(unused_unsafe, reason = "some need none")]
            // SAFETY: the provider calls it with what the header says.
            unsafe extern "system" fn $name($($arg: $ty),*) $(-> $ret)? {
                let _ = enter(stringify!($name), &[$($checked as *const c_void),*]);
                // SAFETY: pointers came from this host, as the types of the arguments say, and live.
                unsafe { $body }
            }
        )*
        fn $list() -> Functions {
            vec![$((stringify!($name), $name as *const c_void)),*]
        }
    };
}

/// A list that has been asked for: its entries go to `out`, which has room for `room`.
fn hand_out<T: Copy>(all: &[T], out: *mut T, room: usize) {
    assert!(room >= all.len(), "there is room for {room} of {}", all.len());
    for (i, entry) in all.iter().enumerate() {
        // SAFETY: there is room for so many.
        unsafe { out.add(i).write(*entry) };
    }
}

functions! {
    failing;
    GetTensorMutableData(value: *mut OrtValue, out: *mut *mut c_void) [value, out] {
        let tensor = &mut *value.cast::<Tensor>();
        *out = tensor.place.unwrap_or(tensor.values.as_mut_ptr()).cast();
    }
    CastTypeInfoToTensorInfo(info: *const OrtTypeInfo, out: *mut *const OrtTensorTypeAndShapeInfo) [info, out] {
        *out = info.cast();
    }
    GetOnnxTypeFromTypeInfo(info: *const OrtTypeInfo, out: *mut u32) [info, out] {
        *out = 1;
    }
    GetTensorElementType(info: *const OrtTensorTypeAndShapeInfo, out: *mut u32) [info, out] {
        *out = of::<Type, _>(info).element;
    }
    GetDimensionsCount(info: *const OrtTensorTypeAndShapeInfo, out: *mut usize) [info, out] {
        *out = of::<Type, _>(info).dims.len();
    }
    GetDimensions(info: *const OrtTensorTypeAndShapeInfo, dims: *mut i64, rank: usize) [info, dims] {
        hand_out(&of::<Type, _>(info).dims, dims, rank);
    }
    GetSymbolicDimensions(info: *const OrtTensorTypeAndShapeInfo, names: *mut *const c_char, rank: usize) [info, names] {
        let dims = of::<Type, _>(info).dims.iter();
        let all: Vec<*const c_char> = dims.map(|d| if *d < 0 { c"n" } else { c"" }.as_ptr()).collect();
        hand_out(&all, names, rank);
    }
    GetTensorTypeAndShape(value: *const OrtValue, out: *mut *mut OrtTensorTypeAndShapeInfo) [value, out] {
        *out = give(of::<Tensor, _>(value).of.clone());
    }
    KernelContext_GetInputCount(context: *const OrtKernelContext, out: *mut usize) [context, out] {
        *out = of::<Context, _>(context).inputs.len();
    }
    KernelContext_GetOutputCount(context: *const OrtKernelContext, out: *mut usize) [context, out] {
        *out = of::<Context, _>(context).outputs.borrow().len();
    }
    KernelContext_GetInput(context: *const OrtKernelContext, index: usize, out: *mut *const OrtValue) [context, out] {
        let tensor = &of::<Context, _>(context).inputs[index];
        *out = tensor.as_ref().map_or(null(), |tensor| (tensor as *const Tensor).cast());
    }
    KernelContext_GetOutput(context: *mut OrtKernelContext, index: usize, dims: *const i64, rank: usize, out: *mut *mut OrtValue) [context, out] {
        assert!(rank == 0 || !dims.is_null());
        let dims: Vec<i64> = (0..rank).map(|i| *dims.add(i)).collect();
        let n: i64 = dims.iter().product();
        let mut outputs = of::<Context, _>(context).outputs.borrow_mut();
        let same = outputs[index].as_ref().is_some_and(|made| made.of.dims == dims);
        if !same {
            outputs[index] = Some(Box::new(Tensor::new(Type { element: 1, dims }, vec![-7.0; n as usize])));
        }
        let made = outputs[index].as_mut().map_or(null_mut(), |made| (&raw mut **made).cast());
        *out = made;
    }
    KernelContext_GetLogger(context: *const OrtKernelContext, out: *mut *const OrtLogger) [context, out] {
        *out = logger();
    }
    Logger_LogMessage(logger: *const OrtLogger, _severity: c_int, message: *const c_char, file: *const PathChar, _line: c_int, function: *const c_char) [logger, message, file, function] {
        let said = CStr::from_ptr(message).to_string_lossy().into_owned();
        LOG.with_borrow_mut(|log| log.push(said));
    }
    Logger_GetLoggingSeverityLevel(logger: *const OrtLogger, out: *mut c_int) [logger, out] {
        *out = 1;
    }
    GetValueInfoName(info: *const OrtValueInfo, out: *mut *const c_char) [info, out] {
        *out = of::<Value, _>(info).name.as_ptr();
    }
    GetValueInfoTypeInfo(info: *const OrtValueInfo, out: *mut *const OrtTypeInfo) [info, out] {
        *out = (&raw const of::<Value, _>(info).of).cast();
    }
    ValueInfo_GetInitializerValue(info: *const OrtValueInfo, out: *mut *const OrtValue) [info, out] {
        let constant = &of::<Value, _>(info).constant;
        *out = constant.as_ref().map_or(null(), |tensor| (tensor as *const Tensor).cast());
    }
    ValueInfo_GetExternalInitializerInfo(info: *const OrtValueInfo, out: *mut *mut c_void) [info, out] {
        *out = null_mut();
    }
    ValueInfo_IsConstantInitializer(info: *const OrtValueInfo, out: *mut bool) [info, out] {
        *out = of::<Value, _>(info).constant.is_some();
    }
    Graph_GetModelPath(graph: *const OrtGraph, out: *mut *const PathChar) [graph, out] {
        static EMPTY: [PathChar; 1] = [0];
        *out = EMPTY.as_ptr();
    }
    Graph_GetNumOperatorSets(graph: *const OrtGraph, out: *mut usize) [graph, out] {
        *out = 1;
    }
    Graph_GetOperatorSets(graph: *const OrtGraph, domains: *mut *const c_char, versions: *mut i64, count: usize) [graph, domains, versions] {
        hand_out(&[c"".as_ptr()], domains, count);
        hand_out(&[17], versions, count);
    }
    Graph_GetNumInputs(graph: *const OrtGraph, out: *mut usize) [graph, out] {
        *out = of::<Graph, _>(graph).inputs.len();
    }
    Graph_GetInputs(graph: *const OrtGraph, out: *mut *const OrtValueInfo, count: usize) [graph, out] {
        hand_out(&of::<Graph, _>(graph).inputs, out, count);
    }
    Graph_GetNumOutputs(graph: *const OrtGraph, out: *mut usize) [graph, out] {
        *out = of::<Graph, _>(graph).outputs.len();
    }
    Graph_GetOutputs(graph: *const OrtGraph, out: *mut *const OrtValueInfo, count: usize) [graph, out] {
        hand_out(&of::<Graph, _>(graph).outputs, out, count);
    }
    Graph_GetNumInitializers(graph: *const OrtGraph, out: *mut usize) [graph, out] {
        *out = of::<Graph, _>(graph).constants.len();
    }
    Graph_GetInitializers(graph: *const OrtGraph, out: *mut *const OrtValueInfo, count: usize) [graph, out] {
        hand_out(&of::<Graph, _>(graph).constants, out, count);
    }
    Graph_GetNumNodes(graph: *const OrtGraph, out: *mut usize) [graph, out] {
        *out = of::<Graph, _>(graph).nodes.len();
    }
    Graph_GetNodes(graph: *const OrtGraph, out: *mut *const OrtNode, count: usize) [graph, out] {
        hand_out(&of::<Graph, _>(graph).nodes, out, count);
    }
    Graph_GetParentNode(graph: *const OrtGraph, out: *mut *const OrtNode) [graph, out] {
        *out = of::<Graph, _>(graph).parent;
    }
    Node_GetName(node: *const OrtNode, out: *mut *const c_char) [node, out] {
        *out = of::<Node, _>(node).operator.as_ptr();
    }
    Node_GetOperatorType(node: *const OrtNode, out: *mut *const c_char) [node, out] {
        *out = of::<Node, _>(node).operator.as_ptr();
    }
    Node_GetDomain(node: *const OrtNode, out: *mut *const c_char) [node, out] {
        *out = c"".as_ptr();
    }
    Node_GetNumInputs(node: *const OrtNode, out: *mut usize) [node, out] {
        *out = of::<Node, _>(node).inputs.len();
    }
    Node_GetInputs(node: *const OrtNode, out: *mut *const OrtValueInfo, count: usize) [node, out] {
        hand_out(&of::<Node, _>(node).inputs, out, count);
    }
    Node_GetNumOutputs(node: *const OrtNode, out: *mut usize) [node, out] {
        *out = of::<Node, _>(node).outputs.len();
    }
    Node_GetOutputs(node: *const OrtNode, out: *mut *const OrtValueInfo, count: usize) [node, out] {
        hand_out(&of::<Node, _>(node).outputs, out, count);
    }
    Node_GetNumImplicitInputs(node: *const OrtNode, out: *mut usize) [node, out] {
        *out = 0;
    }
    Node_GetNumAttributes(node: *const OrtNode, out: *mut usize) [node, out] {
        *out = usize::from(of::<Node, _>(node).attribute.is_some());
    }
    Node_GetAttributes(node: *const OrtNode, out: *mut *const OrtOpAttr, count: usize) [node, out] {
        let all: Vec<*const OrtOpAttr> =
            of::<Node, _>(node).attribute.iter().map(|attr| (&raw const *attr).cast()).collect();
        hand_out(&all, out, count);
    }
    Node_GetNumSubgraphs(node: *const OrtNode, out: *mut usize) [node, out] {
        *out = 0;
    }
    OpAttr_GetType(attr: *const OrtOpAttr, out: *mut u32) [attr, out] {
        *out = FLOAT;
    }
    OpAttr_GetName(attr: *const OrtOpAttr, out: *mut *const c_char) [attr, out] {
        *out = of::<(&'static CStr, f32), _>(attr).0.as_ptr();
    }
    ReadOpAttr(attr: *const OrtOpAttr, kind: u32, data: *mut c_void, len: usize, out: *mut usize) [attr, out] {
        assert_eq!(kind, FLOAT);
        *out = 4;
        if len < 4 {
            return give(Status { code: RUNTIME, message: c"the buffer is too small".to_owned() });
        }
        assert!(!data.is_null());
        data.cast::<f32>().write(of::<(&'static CStr, f32), _>(attr).1);
    }
    GetTensorData(value: *const OrtValue, out: *mut *const c_void) [value, out] {
        *out = of::<Tensor, _>(value).data().cast();
    }
    CreateCpuMemoryInfo(allocator: c_int, memory: c_int, out: *mut *mut OrtMemoryInfo) [out] {
        assert_eq!((allocator, memory), (0, 0));
        *out = give(0u8);
    }
    CreateTensorWithDataAsOrtValue(info: *const OrtMemoryInfo, data: *mut c_void, bytes: usize, dims: *const i64, rank: usize, element: u32, out: *mut *mut OrtValue) [info, data, dims, out] {
        let dims: Vec<i64> = (0..rank).map(|i| *dims.add(i)).collect();
        assert_eq!((element, bytes as i64), (1, dims.iter().product::<i64>() * 4));
        *out = give(Tensor { of: Type { element, dims }, values: Vec::new(), place: Some(data.cast()) });
    }
    GetSessionOptionsConfigEntries(options: *const OrtSessionOptions, out: *mut *mut OrtKeyValuePairs) [options, out] {
        let mut pairs = Pairs::default();
        for (key, value) in CONFIG.with_borrow(Clone::clone) {
            pairs.keys.push(CString::new(key).unwrap());
            pairs.values.push(CString::new(value).unwrap());
        }
        pairs.key_pointers = pairs.keys.iter().map(|key| key.as_ptr()).collect();
        pairs.value_pointers = pairs.values.iter().map(|value| value.as_ptr()).collect();
        *out = give(pairs);
    }
}

plain! {
    others;
    CreateStatus(code: u32, message: *const c_char) -> StatusPtr [message] {
        let message = CStr::from_ptr(message).to_owned();
        assert!(!message.is_empty() && code != 0, "a status says nothing");
        give(Status { code, message })
    }
    GetErrorCode(status: *const OrtStatus) -> u32 [status] {
        of::<Status, _>(status).code
    }
    GetErrorMessage(status: *const OrtStatus) -> *const c_char [status] {
        of::<Status, _>(status).message.as_ptr()
    }
    ReleaseStatus(status: *mut OrtStatus) [] {
        take::<Status, _>(status);
    }
    ReleaseTensorTypeAndShapeInfo(info: *mut OrtTensorTypeAndShapeInfo) [] {
        take::<Type, _>(info);
    }
    ReleaseMemoryInfo(info: *mut OrtMemoryInfo) [] {
        take::<u8, _>(info);
    }
    ReleaseKeyValuePairs(pairs: *mut OrtKeyValuePairs) [] {
        take::<Pairs, _>(pairs);
    }
    GetKeyValuePairs(pairs: *const OrtKeyValuePairs, keys: *mut *const *const c_char, values: *mut *const *const c_char, count: *mut usize) [pairs, keys, values, count] {
        let pairs = of::<Pairs, _>(pairs);
        (*keys, *values) = (pairs.key_pointers.as_ptr(), pairs.value_pointers.as_ptr());
        *count = pairs.keys.len();
    }
    HardwareDevice_Type(device: *const OrtHardwareDevice) -> u32 [device] {
        *of::<u32, _>(device)
    }
    TensorTypeAndShape_HasShape(info: *const OrtTensorTypeAndShapeInfo) -> bool [info] {
        true
    }
    GetEpApi() -> *const c_void [] {
        EP_TABLE.with(|table| table.as_ptr().cast())
    }
    GetModelEditorApi() -> *const c_void [] {
        EDITOR_TABLE.with(|table| table.as_ptr().cast())
    }
}

functions! {
    of_provider;
    CreateEpDevice(factory: *mut OrtEpFactory, device: *const OrtHardwareDevice, _metadata: *const OrtKeyValuePairs, _options: *const OrtKeyValuePairs, out: *mut *mut OrtEpDevice) [factory, device, out] {
        *out = device.cast_mut().cast();
    }
    EpGraphSupportInfo_AddNodesToFuse(info: *mut OrtEpGraphSupportInfo, nodes: *const *const OrtNode, count: usize, options: *const OrtNodeFusionOptions) [info, nodes] {
        assert!(count > 0 && !options.is_null());
        let all = (0..count).map(|i| *nodes.add(i)).collect();
        FUSED.with_borrow_mut(|fused| fused.push(all));
    }
}

functions! {
    of_profiles;
    CreateProfilingEvent(category: u32, process: i32, thread: i32, name: *const c_char, at_us: i64, took_us: i64, keys: *const *const c_char, values: *const *const c_char, count: usize, out: *mut *mut OrtProfilingEvent) [name, keys, values, out] {
        assert_eq!((category, process, thread), (2, -1, -1));
        let text = |of: *const c_char| CStr::from_ptr(of).to_str().unwrap().to_owned();
        let said = (0..count).map(|i| (text(*keys.add(i)), text(*values.add(i)))).collect();
        *out = give(Event { name: text(name), at_us, took_us, said });
    }
    ProfilingEventsContainer_AddEvents(container: *mut OrtProfilingEventsContainer, events: *const *const OrtProfilingEvent, count: usize) [container, events] {
        let all = &mut *container.cast::<Vec<Event>>();
        all.extend((0..count).map(|i| of::<Event, _>(*events.add(i)).clone()));
    }
}

plain! {
    releases_of_profiles;
    ReleaseProfilingEvent(event: *mut OrtProfilingEvent) [] {
        take::<Event, _>(event);
    }
}

/// What is called and not there: the provider's list of what it calls is not whole.
extern "system" fn unexpected() {
    eprintln!("a function was called that this host does not have");
    std::process::abort();
}

fn table(entries: usize, slots: &[(&str, usize)], functions: &Functions) -> Vec<*const c_void> {
    let mut table = vec![unexpected as *const c_void; entries];
    for (name, function) in functions {
        let slot = slots.iter().find(|(known, _)| known == name);
        table[slot.unwrap_or_else(|| panic!("the provider calls no {name}")).1] = *function;
    }
    table
}

thread_local! {
    static TABLE: Vec<*const c_void> = table(512, OrtApi::SLOTS, &[failing(), others()].concat());
    static EP_TABLE: Vec<*const c_void> =
        table(128, OrtEpApi::SLOTS, &[of_provider(), of_profiles(), releases_of_profiles()].concat());
    static EDITOR_TABLE: Vec<*const c_void> = table(64, &[], &Vec::new());
}

/// The table of functions.
pub(crate) fn api() -> *const c_void {
    TABLE.with(|table| table.as_ptr().cast())
}

/// Some log.
pub(crate) fn logger() -> *const OrtLogger {
    static NOTHING: u8 = 0;
    (&raw const NOTHING).cast()
}

/// Whether function `name` returns a status.
pub(crate) fn can_fail(name: &str) -> bool {
    failing().iter().chain(&of_provider()).chain(&of_profiles()).any(|(known, _)| *known == name)
}

/// # Safety
/// `status` is one of this host's, and is released once.
pub(crate) unsafe fn release_status(status: StatusPtr) {
    // SAFETY: the caller's promise.
    unsafe { take::<Status, _>(status) };
}

/// # Safety
/// `value` is a tensor that the provider was given, and is released once.
pub(crate) unsafe fn release_tensor(value: *mut OrtValue) -> Tensor {
    LIVE.set(LIVE.get() - 1);
    // SAFETY: the caller's promise.
    *unsafe { Box::from_raw(value.cast::<Tensor>()) }
}
