//! The part of onnxruntime's C interface that the provider uses: tables of functions by position, and structures that it
//! fills. onnxruntime's headers (MIT, Copyright Microsoft Corporation) define the order, which only grows at the end;
//! `tests/layout.c` compares it with them.

#![allow(unsafe_code, reason = "functions of another library are called through its tables")]
#![allow(missing_docs, reason = "onnxruntime's headers document them")]
#![allow(non_snake_case, reason = "the names of the C interface")]

use std::ffi::{c_char, c_int, c_void};

/// Structures of onnxruntime that are only passed on.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[doc = concat!("onnxruntime's `", stringify!($name), "`.")]
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque! {
    OrtStatus OrtLogger OrtGraph OrtNode OrtValue OrtValueInfo OrtTypeInfo OrtTensorTypeAndShapeInfo
    OrtSequenceTypeInfo OrtOpAttr OrtExternalInitializerInfo OrtKernelContext OrtSessionOptions OrtKeyValuePairs
    OrtHardwareDevice OrtEpDevice OrtEpGraphSupportInfo OrtNodeComputeContext OrtMemoryInfo OrtSyncStream
    OrtExternalSemaphoreDescriptor OrtExternalSemaphoreHandle OrtProfilingEvent OrtProfilingEventsContainer
}

/// What the functions of a library return; null where they succeeded.
pub type StatusPtr = *mut OrtStatus;

/// `ORT_FAIL`.
pub const FAIL: u32 = 1;
/// `ORT_INVALID_ARGUMENT`.
pub const INVALID_ARGUMENT: u32 = 2;
/// `ORT_NOT_IMPLEMENTED`.
pub const NOT_IMPLEMENTED: u32 = 9;
/// `ORT_INVALID_GRAPH`.
pub const INVALID_GRAPH: u32 = 10;
/// `ORT_EP_FAIL`.
pub const EP_FAIL: u32 = 11;

/// A character of a path.
#[cfg(not(windows))]
pub type PathChar = c_char;
/// A character of a path.
#[cfg(windows)]
pub type PathChar = u16;

/// `ORT_LOGGING_LEVEL_INFO`.
pub const LOG_INFO: c_int = 1;

/// `ORT_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION`, of 1.30 and newer.
pub const HOST_ALLOCATION: u32 = 4;
/// `OrtProfilingEventCategory_KERNEL`.
pub const KERNEL_EVENT: u32 = 2;
/// `OrtDeviceAllocator`.
pub const DEVICE_ALLOCATOR: c_int = 0;
/// `OrtMemTypeDefault`.
pub const DEFAULT_MEMORY: c_int = 0;

/// Values of `ONNXType`.
pub mod onnx_type {
    pub const TENSOR: u32 = 1;
    pub const SEQUENCE: u32 = 2;
}

/// Values of `OrtOpAttrType`.
pub mod attr_type {
    pub const INT: u32 = 1;
    pub const INTS: u32 = 2;
    pub const FLOAT: u32 = 3;
    pub const FLOATS: u32 = 4;
    pub const STRING: u32 = 5;
    pub const STRINGS: u32 = 6;
    pub const GRAPH: u32 = 7;
    pub const TENSOR: u32 = 8;
}

/// Declares a table of functions: for each that is used, its position.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $($slot:literal $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $table(*const *const c_void);

        // SAFETY: tables of functions are constants of their library, which any thread may call.
        unsafe impl Send for $table {}
        // SAFETY: as above.
        unsafe impl Sync for $table {}

        #[allow(clippy::too_many_arguments, reason = "the C interface has them")]
        impl $table {
            /// Names and positions, for the comparison with the headers.
            pub const SLOTS: &'static [(&'static str, usize)] = &[$((stringify!($name), $slot)),*];

            /// # Safety
            /// `table` is the library's table, and stays.
            pub unsafe fn new(table: *const c_void) -> Option<Self> {
                (!table.is_null()).then_some($table(table.cast()))
            }

            $(
                /// The function of that name.
                ///
                /// # Safety
                /// The arguments are as onnxruntime's header says.
                pub unsafe fn $name(self, $($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the library's table of the version that was asked for has this position.
                    let entry = unsafe { *self.0.add($slot) };
                    type Function = unsafe extern "system" fn($($ty),*) $(-> $ret)?;
                    // SAFETY: it is a function of this type.
                    let f = unsafe { std::mem::transmute::<*const c_void, Function>(entry) };
                    // SAFETY: the caller's promise.
                    unsafe { f($($arg),*) }
                }
            )*
        }
    };
}

table! {
    /// `OrtApi`.
    OrtApi {
        0 CreateStatus(code: u32, message: *const c_char) -> StatusPtr;
        1 GetErrorCode(status: *const OrtStatus) -> u32;
        2 GetErrorMessage(status: *const OrtStatus) -> *const c_char;
        49 CreateTensorWithDataAsOrtValue(info: *const OrtMemoryInfo, data: *mut c_void, bytes: usize, dims: *const i64, rank: usize, element: u32, out: *mut *mut OrtValue) -> StatusPtr;
        51 GetTensorMutableData(value: *mut OrtValue, out: *mut *mut c_void) -> StatusPtr;
        55 CastTypeInfoToTensorInfo(info: *const OrtTypeInfo, out: *mut *const OrtTensorTypeAndShapeInfo) -> StatusPtr;
        56 GetOnnxTypeFromTypeInfo(info: *const OrtTypeInfo, out: *mut u32) -> StatusPtr;
        60 GetTensorElementType(info: *const OrtTensorTypeAndShapeInfo, out: *mut u32) -> StatusPtr;
        61 GetDimensionsCount(info: *const OrtTensorTypeAndShapeInfo, out: *mut usize) -> StatusPtr;
        62 GetDimensions(info: *const OrtTensorTypeAndShapeInfo, dims: *mut i64, rank: usize) -> StatusPtr;
        63 GetSymbolicDimensions(info: *const OrtTensorTypeAndShapeInfo, names: *mut *const c_char, rank: usize) -> StatusPtr;
        65 GetTensorTypeAndShape(value: *const OrtValue, out: *mut *mut OrtTensorTypeAndShapeInfo) -> StatusPtr;
        69 CreateCpuMemoryInfo(allocator: c_int, memory: c_int, out: *mut *mut OrtMemoryInfo) -> StatusPtr;
        88 KernelContext_GetInputCount(context: *const OrtKernelContext, out: *mut usize) -> StatusPtr;
        89 KernelContext_GetOutputCount(context: *const OrtKernelContext, out: *mut usize) -> StatusPtr;
        90 KernelContext_GetInput(context: *const OrtKernelContext, index: usize, out: *mut *const OrtValue) -> StatusPtr;
        91 KernelContext_GetOutput(context: *mut OrtKernelContext, index: usize, dims: *const i64, rank: usize, out: *mut *mut OrtValue) -> StatusPtr;
        93 ReleaseStatus(status: *mut OrtStatus);
        94 ReleaseMemoryInfo(info: *mut OrtMemoryInfo);
        96 ReleaseValue(value: *mut OrtValue);
        98 ReleaseTypeInfo(info: *mut OrtTypeInfo);
        99 ReleaseTensorTypeAndShapeInfo(info: *mut OrtTensorTypeAndShapeInfo);
        104 CastTypeInfoToSequenceTypeInfo(info: *const OrtTypeInfo, out: *mut *const OrtSequenceTypeInfo) -> StatusPtr;
        107 GetSequenceElementType(info: *const OrtSequenceTypeInfo, out: *mut *mut OrtTypeInfo) -> StatusPtr;
        211 CreateOpAttr(name: *const c_char, data: *const c_void, len: c_int, kind: u32, out: *mut *mut OrtOpAttr) -> StatusPtr;
        212 ReleaseOpAttr(attr: *mut OrtOpAttr);
        246 KernelContext_GetLogger(context: *const OrtKernelContext, out: *mut *const OrtLogger) -> StatusPtr;
        247 Logger_LogMessage(logger: *const OrtLogger, severity: c_int, message: *const c_char, file: *const PathChar, line: c_int, function: *const c_char) -> StatusPtr;
        248 Logger_GetLoggingSeverityLevel(logger: *const OrtLogger, out: *mut c_int) -> StatusPtr;
        272 ReadOpAttr(attr: *const OrtOpAttr, kind: u32, data: *mut c_void, len: usize, out: *mut usize) -> StatusPtr;
        286 ReleaseNode(node: *mut OrtNode);
        289 GetValueInfoName(info: *const OrtValueInfo, out: *mut *const c_char) -> StatusPtr;
        290 GetValueInfoTypeInfo(info: *const OrtValueInfo, out: *mut *const OrtTypeInfo) -> StatusPtr;
        291 GetModelEditorApi() -> *const c_void;
        295 CreateKeyValuePairs(out: *mut *mut OrtKeyValuePairs);
        296 AddKeyValuePair(pairs: *mut OrtKeyValuePairs, key: *const c_char, value: *const c_char);
        298 GetKeyValuePairs(pairs: *const OrtKeyValuePairs, keys: *mut *const *const c_char, values: *mut *const *const c_char, count: *mut usize);
        300 ReleaseKeyValuePairs(pairs: *mut OrtKeyValuePairs);
        307 HardwareDevice_Type(device: *const OrtHardwareDevice) -> u32;
        317 GetEpApi() -> *const c_void;
        326 ValueInfo_GetInitializerValue(info: *const OrtValueInfo, out: *mut *const OrtValue) -> StatusPtr;
        327 ValueInfo_GetExternalInitializerInfo(info: *const OrtValueInfo, out: *mut *mut OrtExternalInitializerInfo) -> StatusPtr;
        331 ValueInfo_IsConstantInitializer(info: *const OrtValueInfo, out: *mut bool) -> StatusPtr;
        334 Graph_GetModelPath(graph: *const OrtGraph, out: *mut *const PathChar) -> StatusPtr;
        336 Graph_GetNumOperatorSets(graph: *const OrtGraph, out: *mut usize) -> StatusPtr;
        337 Graph_GetOperatorSets(graph: *const OrtGraph, domains: *mut *const c_char, versions: *mut i64, count: usize) -> StatusPtr;
        338 Graph_GetNumInputs(graph: *const OrtGraph, out: *mut usize) -> StatusPtr;
        339 Graph_GetInputs(graph: *const OrtGraph, out: *mut *const OrtValueInfo, count: usize) -> StatusPtr;
        340 Graph_GetNumOutputs(graph: *const OrtGraph, out: *mut usize) -> StatusPtr;
        341 Graph_GetOutputs(graph: *const OrtGraph, out: *mut *const OrtValueInfo, count: usize) -> StatusPtr;
        342 Graph_GetNumInitializers(graph: *const OrtGraph, out: *mut usize) -> StatusPtr;
        343 Graph_GetInitializers(graph: *const OrtGraph, out: *mut *const OrtValueInfo, count: usize) -> StatusPtr;
        344 Graph_GetNumNodes(graph: *const OrtGraph, out: *mut usize) -> StatusPtr;
        345 Graph_GetNodes(graph: *const OrtGraph, out: *mut *const OrtNode, count: usize) -> StatusPtr;
        346 Graph_GetParentNode(graph: *const OrtGraph, out: *mut *const OrtNode) -> StatusPtr;
        349 Node_GetName(node: *const OrtNode, out: *mut *const c_char) -> StatusPtr;
        350 Node_GetOperatorType(node: *const OrtNode, out: *mut *const c_char) -> StatusPtr;
        351 Node_GetDomain(node: *const OrtNode, out: *mut *const c_char) -> StatusPtr;
        353 Node_GetNumInputs(node: *const OrtNode, out: *mut usize) -> StatusPtr;
        354 Node_GetInputs(node: *const OrtNode, out: *mut *const OrtValueInfo, count: usize) -> StatusPtr;
        355 Node_GetNumOutputs(node: *const OrtNode, out: *mut usize) -> StatusPtr;
        356 Node_GetOutputs(node: *const OrtNode, out: *mut *const OrtValueInfo, count: usize) -> StatusPtr;
        357 Node_GetNumImplicitInputs(node: *const OrtNode, out: *mut usize) -> StatusPtr;
        358 Node_GetImplicitInputs(node: *const OrtNode, out: *mut *const OrtValueInfo, count: usize) -> StatusPtr;
        359 Node_GetNumAttributes(node: *const OrtNode, out: *mut usize) -> StatusPtr;
        360 Node_GetAttributes(node: *const OrtNode, out: *mut *const OrtOpAttr, count: usize) -> StatusPtr;
        362 OpAttr_GetTensorAttributeAsOrtValue(attr: *const OrtOpAttr, out: *mut *mut OrtValue) -> StatusPtr;
        363 OpAttr_GetType(attr: *const OrtOpAttr, out: *mut u32) -> StatusPtr;
        364 OpAttr_GetName(attr: *const OrtOpAttr, out: *mut *const c_char) -> StatusPtr;
        365 Node_GetNumSubgraphs(node: *const OrtNode, out: *mut usize) -> StatusPtr;
        366 Node_GetSubgraphs(node: *const OrtNode, out: *mut *const OrtGraph, count: usize, names: *mut *const c_char) -> StatusPtr;
        369 ReleaseExternalInitializerInfo(info: *mut OrtExternalInitializerInfo);
        370 ExternalInitializerInfo_GetFilePath(info: *const OrtExternalInitializerInfo) -> *const PathChar;
        371 ExternalInitializerInfo_GetFileOffset(info: *const OrtExternalInitializerInfo) -> i64;
        372 ExternalInitializerInfo_GetByteSize(info: *const OrtExternalInitializerInfo) -> usize;
        378 GetTensorData(value: *const OrtValue, out: *mut *const c_void) -> StatusPtr;
        379 GetSessionOptionsConfigEntries(options: *const OrtSessionOptions, out: *mut *mut OrtKeyValuePairs) -> StatusPtr;
        390 TensorTypeAndShape_HasShape(info: *const OrtTensorTypeAndShapeInfo) -> bool;
    }
}

table! {
    /// `OrtEpApi`.
    OrtEpApi {
        0 CreateEpDevice(factory: *mut OrtEpFactory, device: *const OrtHardwareDevice, metadata: *const OrtKeyValuePairs, options: *const OrtKeyValuePairs, out: *mut *mut OrtEpDevice) -> StatusPtr;
        2 EpGraphSupportInfo_AddNodesToFuse(info: *mut OrtEpGraphSupportInfo, nodes: *const *const OrtNode, count: usize, options: *const OrtNodeFusionOptions) -> StatusPtr;
        65 CreateProfilingEvent(category: u32, process: i32, thread: i32, name: *const c_char, at_us: i64, took_us: i64, keys: *const *const c_char, values: *const *const c_char, count: usize, out: *mut *mut OrtProfilingEvent) -> StatusPtr;
        66 ReleaseProfilingEvent(event: *mut OrtProfilingEvent);
        72 ProfilingEventsContainer_AddEvents(container: *mut OrtProfilingEventsContainer, events: *const *const OrtProfilingEvent, count: usize) -> StatusPtr;
    }
}

table! {
    /// `OrtModelEditorApi`.
    OrtModelEditorApi {
        6 CreateNode(operator: *const c_char, domain: *const c_char, name: *const c_char, inputs: *const *const c_char, input_count: usize, outputs: *const *const c_char, output_count: usize, attributes: *mut *mut OrtOpAttr, attribute_count: usize, out: *mut *mut OrtNode) -> StatusPtr;
    }
}

/// `OrtApiBase`.
#[repr(C)]
#[derive(Debug)]
pub struct OrtApiBase {
    pub GetApi: unsafe extern "system" fn(version: u32) -> *const c_void,
    pub GetVersionString: unsafe extern "system" fn() -> *const c_char,
}

/// `OrtNodeFusionOptions`.
#[repr(C)]
#[derive(Debug)]
pub struct OrtNodeFusionOptions {
    pub ort_version_supported: u32,
    pub drop_constant_initializers: bool,
}

/// A function that the provider leaves to onnxruntime.
pub type Absent = Option<extern "system" fn()>;

/// `OrtEpFactory`, as of version 28.
#[repr(C)]
#[derive(Debug)]
pub struct OrtEpFactory {
    pub ort_version_supported: u32,
    pub GetName: extern "system" fn(this: *const OrtEpFactory) -> *const c_char,
    pub GetVendor: extern "system" fn(this: *const OrtEpFactory) -> *const c_char,
    pub GetSupportedDevices: unsafe extern "system" fn(
        this: *mut OrtEpFactory,
        devices: *const *const OrtHardwareDevice,
        count: usize,
        out: *mut *mut OrtEpDevice,
        most: usize,
        found: *mut usize,
    ) -> StatusPtr,
    pub CreateEp: unsafe extern "system" fn(
        this: *mut OrtEpFactory,
        devices: *const *const OrtHardwareDevice,
        metadata: *const *const OrtKeyValuePairs,
        count: usize,
        options: *const OrtSessionOptions,
        logger: *const OrtLogger,
        out: *mut *mut OrtEp,
    ) -> StatusPtr,
    pub ReleaseEp: unsafe extern "system" fn(this: *mut OrtEpFactory, ep: *mut OrtEp),
    pub GetVendorId: extern "system" fn(this: *const OrtEpFactory) -> u32,
    pub GetVersion: extern "system" fn(this: *const OrtEpFactory) -> *const c_char,
    pub ValidateCompiledModelCompatibilityInfo: Absent,
    pub CreateAllocator: unsafe extern "system" fn(
        this: *mut OrtEpFactory,
        info: *const c_void,
        options: *const OrtKeyValuePairs,
        out: *mut *mut c_void,
    ) -> StatusPtr,
    pub ReleaseAllocator: extern "system" fn(this: *mut OrtEpFactory, allocator: *mut c_void),
    pub CreateDataTransfer:
        unsafe extern "system" fn(this: *mut OrtEpFactory, out: *mut *mut c_void) -> StatusPtr,
    pub IsStreamAware: extern "system" fn(this: *const OrtEpFactory) -> bool,
    pub CreateSyncStreamForDevice: Absent,
    pub GetHardwareDeviceIncompatibilityDetails: Absent,
    pub CreateExternalResourceImporterForDevice: unsafe extern "system" fn(
        this: *mut OrtEpFactory,
        device: *const OrtEpDevice,
        out: *mut *mut OrtExternalResourceImporterImpl,
    ) -> StatusPtr,
    pub GetNumCustomOpDomains: Absent,
    pub GetCustomOpDomains: Absent,
    pub InitGraphicsInterop: Absent,
    pub DeinitGraphicsInterop: Absent,
    pub SelectBestModelCandidate: Absent,
}

/// `OrtEp`, as of version 28.
#[repr(C)]
#[derive(Debug)]
pub struct OrtEp {
    pub ort_version_supported: u32,
    pub GetName: extern "system" fn(this: *const OrtEp) -> *const c_char,
    pub GetCapability: unsafe extern "system" fn(
        this: *mut OrtEp,
        graph: *const OrtGraph,
        info: *mut OrtEpGraphSupportInfo,
    ) -> StatusPtr,
    pub Compile: unsafe extern "system" fn(
        this: *mut OrtEp,
        graphs: *mut *const OrtGraph,
        fused: *mut *const OrtNode,
        count: usize,
        out: *mut *mut OrtNodeComputeInfo,
        context_nodes: *mut *mut OrtNode,
    ) -> StatusPtr,
    pub ReleaseNodeComputeInfos:
        unsafe extern "system" fn(this: *mut OrtEp, infos: *mut *mut OrtNodeComputeInfo, count: usize),
    pub GetPreferredDataLayout: Absent,
    pub ShouldConvertDataLayoutForOp: Absent,
    pub SetDynamicOptions: Absent,
    pub OnRunStart: Absent,
    pub OnRunEnd: Absent,
    pub CreateAllocator: Absent,
    pub CreateSyncStreamForDevice: Absent,
    pub GetCompiledModelCompatibilityInfo: Absent,
    pub GetKernelRegistry: Absent,
    pub IsConcurrentRunSupported: Absent,
    pub Sync: Absent,
    pub CreateProfiler:
        Option<unsafe extern "system" fn(this: *mut OrtEp, out: *mut *mut OrtEpProfilerImpl) -> StatusPtr>,
    pub IsGraphCaptureEnabled: Absent,
    pub IsGraphCaptured: Absent,
    pub ReplayGraph: Absent,
    pub GetGraphCaptureNodeAssignmentPolicy: Absent,
    pub GetAvailableResource: Absent,
    pub OnSessionInitializationEnd: Absent,
    pub GetDefaultMemoryDevice: Absent,
    pub ReleaseCapturedGraph: Absent,
}

/// `OrtNodeComputeInfo`.
#[repr(C)]
#[derive(Debug)]
pub struct OrtNodeComputeInfo {
    pub ort_version_supported: u32,
    pub CreateState: unsafe extern "system" fn(
        this: *mut OrtNodeComputeInfo,
        context: *mut OrtNodeComputeContext,
        state: *mut *mut c_void,
    ) -> StatusPtr,
    pub Compute: unsafe extern "system" fn(
        this: *mut OrtNodeComputeInfo,
        state: *mut c_void,
        context: *mut OrtKernelContext,
    ) -> StatusPtr,
    pub ReleaseState: unsafe extern "system" fn(this: *mut OrtNodeComputeInfo, state: *mut c_void),
}

/// `OrtExternalMemoryDescriptor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OrtExternalMemoryDescriptor {
    pub version: u32,
    pub handle_type: u32,
    pub native_handle: *mut c_void,
    pub size_bytes: usize,
    pub offset_bytes: usize,
}

/// `OrtExternalTensorDescriptor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OrtExternalTensorDescriptor {
    pub version: u32,
    pub element_type: u32,
    pub shape: *const i64,
    pub rank: usize,
    pub offset_bytes: usize,
}

/// `OrtExternalMemoryHandle`, which a provider's own begin with.
#[repr(C)]
#[derive(Debug)]
pub struct OrtExternalMemoryHandle {
    pub version: u32,
    pub ep_device: *const OrtEpDevice,
    pub descriptor: OrtExternalMemoryDescriptor,
    pub Release: unsafe extern "system" fn(handle: *mut OrtExternalMemoryHandle),
}

/// `OrtExternalResourceImporterImpl`, as of version 28.
#[repr(C)]
#[derive(Debug)]
pub struct OrtExternalResourceImporterImpl {
    pub ort_version_supported: u32,
    pub CanImportMemory:
        unsafe extern "system" fn(this: *const OrtExternalResourceImporterImpl, handle_type: u32) -> bool,
    pub ImportMemory: unsafe extern "system" fn(
        this: *mut OrtExternalResourceImporterImpl,
        descriptor: *const OrtExternalMemoryDescriptor,
        out: *mut *mut OrtExternalMemoryHandle,
    ) -> StatusPtr,
    pub ReleaseMemory: unsafe extern "system" fn(
        this: *mut OrtExternalResourceImporterImpl,
        handle: *mut OrtExternalMemoryHandle,
    ),
    pub CreateTensorFromMemory: unsafe extern "system" fn(
        this: *mut OrtExternalResourceImporterImpl,
        handle: *const OrtExternalMemoryHandle,
        descriptor: *const OrtExternalTensorDescriptor,
        out: *mut *mut OrtValue,
    ) -> StatusPtr,
    pub CanImportSemaphore:
        unsafe extern "system" fn(this: *const OrtExternalResourceImporterImpl, kind: u32) -> bool,
    pub ImportSemaphore: unsafe extern "system" fn(
        this: *mut OrtExternalResourceImporterImpl,
        descriptor: *const OrtExternalSemaphoreDescriptor,
        out: *mut *mut OrtExternalSemaphoreHandle,
    ) -> StatusPtr,
    pub ReleaseSemaphore: unsafe extern "system" fn(
        this: *mut OrtExternalResourceImporterImpl,
        handle: *mut OrtExternalSemaphoreHandle,
    ),
    pub WaitSemaphore: unsafe extern "system" fn(
        this: *mut OrtExternalResourceImporterImpl,
        handle: *mut OrtExternalSemaphoreHandle,
        stream: *mut OrtSyncStream,
        value: u64,
    ) -> StatusPtr,
    pub SignalSemaphore: unsafe extern "system" fn(
        this: *mut OrtExternalResourceImporterImpl,
        handle: *mut OrtExternalSemaphoreHandle,
        stream: *mut OrtSyncStream,
        value: u64,
    ) -> StatusPtr,
    pub Release: unsafe extern "system" fn(this: *mut OrtExternalResourceImporterImpl),
}

/// `OrtEpProfilerImpl`, as of version 28.
#[repr(C)]
#[derive(Debug)]
pub struct OrtEpProfilerImpl {
    pub ort_version_supported: u32,
    pub Release: unsafe extern "system" fn(this: *mut OrtEpProfilerImpl),
    pub StartProfiling:
        unsafe extern "system" fn(this: *mut OrtEpProfilerImpl, since_start_ns: i64) -> StatusPtr,
    pub StartEvent: Absent,
    pub StopEvent: Absent,
    pub EndProfiling: unsafe extern "system" fn(
        this: *mut OrtEpProfilerImpl,
        container: *mut OrtProfilingEventsContainer,
    ) -> StatusPtr,
}
