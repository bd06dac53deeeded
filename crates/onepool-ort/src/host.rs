//! onnxruntime's objects as values of Rust: graphs, nodes, values and their types, initializers, options, tensors of a run.
//!
//! A reference here wraps a pointer that onnxruntime gave to a call of the provider's, and lives no longer than that call.
//! Each `unsafe` block relies on that alone.

#![allow(unsafe_code, reason = "onnxruntime's functions take pointers")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use crate::abi::{
    self, OrtApi, OrtEpApi, OrtExternalInitializerInfo, OrtGraph, OrtKernelContext, OrtKeyValuePairs,
    OrtLogger, OrtModelEditorApi, OrtNode, OrtOpAttr, OrtSessionOptions, OrtTensorTypeAndShapeInfo,
    OrtTypeInfo, OrtValue, OrtValueInfo, PathChar, StatusPtr, attr_type, onnx_type,
};
use crate::failure::{Failure, caught};

/// The most elements of a list that onnxruntime may give.
const MOST: usize = 1 << 24;

/// onnxruntime's tables, and the version that both sides know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    pub(crate) api: OrtApi,
    pub(crate) ep: OrtEpApi,
    pub(crate) editor: OrtModelEditorApi,
    /// What structures are stamped with.
    pub(crate) version: u32,
}

/// What onnxruntime's call returned.
fn checked(api: OrtApi, status: StatusPtr) -> Result<(), Failure> {
    if status.is_null() {
        return Ok(());
    }
    // SAFETY: a status that is not null is the caller's, who releases it once; its message lives as long.
    unsafe {
        let failure = Failure::new(api.GetErrorCode(status), text(api.GetErrorMessage(status)));
        api.ReleaseStatus(status);
        Err(failure)
    }
}

/// A copy of a text of C, empty where there is none.
///
/// # Safety
/// `text` is null or ends with a zero.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// # Safety
/// `path` is null or ends with a zero.
#[cfg(not(windows))]
unsafe fn path(path: *const PathChar) -> PathBuf {
    // SAFETY: the caller's promise.
    unsafe { text(path) }.into()
}

/// # Safety
/// `path` is null or ends with a zero.
#[cfg(windows)]
unsafe fn path(path: *const PathChar) -> PathBuf {
    let mut units = Vec::new();
    let mut at = path;
    // SAFETY: the caller's promise: up to the zero.
    while !at.is_null() && unsafe { *at } != 0 {
        // SAFETY: as above.
        units.push(unsafe { *at });
        // SAFETY: as above.
        at = unsafe { at.add(1) };
    }
    String::from_utf16_lossy(&units).into()
}

pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// Does `work`, and makes a status of what goes wrong.
pub(crate) fn status(host: Host, work: impl FnOnce() -> Result<(), Failure>) -> StatusPtr {
    match caught(work) {
        Ok(()) => null_mut(),
        Err(failure) => {
            let message = c_text(&format!("onepool: {}", failure.message));
            // SAFETY: the text ends with a zero; it is copied.
            unsafe { host.api.CreateStatus(failure.code, message.as_ptr()) }
        }
    }
}

/// Element type and sizes of a value as the graph declares them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorType {
    /// Number of the element type in `onnx.proto`.
    pub(crate) element: u32,
    /// `None` where the rank is unknown.
    pub(crate) dims: Option<Vec<Size>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Size {
    Known(i64),
    Symbol(String),
    Unknown,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueType {
    Tensor(TensorType),
    /// A sequence of tensors.
    Sequence(TensorType),
    Other,
}

/// A constant of a graph.
#[derive(Debug)]
pub(crate) enum Constant<'a> {
    /// In onnxruntime's memory.
    Memory { element: u32, dims: Vec<i64>, bytes: &'a [u8] },
    /// In a file.
    External { path: PathBuf, offset: u64, bytes: u64 },
}

#[derive(Debug)]
pub(crate) enum Attribute<'a> {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Floats(Vec<f32>),
    Text(Vec<u8>),
    Texts(Vec<Vec<u8>>),
    Graph(Graph<'a>),
    Tensor(OwnedTensor),
    Other(u32),
}

/// A tensor that an attribute holds, copied.
#[derive(Debug)]
pub(crate) struct OwnedTensor {
    pub(crate) element: u32,
    pub(crate) dims: Vec<i64>,
    pub(crate) bytes: Vec<u8>,
}

macro_rules! reference {
    ($(#[$doc:meta])* $name:ident, $of:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name<'a> {
            host: Host,
            of: *const $of,
            lifetime: PhantomData<&'a $of>,
        }

        impl $name<'_> {
            /// # Safety
            /// onnxruntime gave `of` to a call that outlives the reference.
            pub(crate) unsafe fn new(host: Host, of: *const $of) -> Self {
                $name { host, of, lifetime: PhantomData }
            }

            #[allow(dead_code, reason = "not of every kind")]
            pub(crate) fn as_ptr(&self) -> *const $of {
                self.of
            }
        }
    };
}

reference!(
    /// A graph of the model, of a node, or of what is to be compiled.
    Graph, OrtGraph
);
reference!(Node, OrtNode);
reference!(Value, OrtValueInfo);

impl Host {
    pub(crate) fn check(self, status: StatusPtr) -> Result<(), Failure> {
        checked(self.api, status)
    }

    /// A list of `T` that onnxruntime fills once its length is known.
    fn list<T: Copy>(
        self,
        empty: T,
        count: impl FnOnce(*mut usize) -> StatusPtr,
        fill: impl FnOnce(*mut T, usize) -> StatusPtr,
    ) -> Result<Vec<T>, Failure> {
        let mut n = 0;
        self.check(count(&mut n))?;
        if n > MOST {
            return Err(Failure::graph(format!("a list has {n} entries")));
        }
        let mut all = vec![empty; n];
        if n > 0 {
            self.check(fill(all.as_mut_ptr(), n))?;
        }
        Ok(all)
    }

    fn name(self, get: impl FnOnce(*mut *const c_char) -> StatusPtr) -> Result<String, Failure> {
        let mut name = null();
        self.check(get(&mut name))?;
        // SAFETY: onnxruntime's names end with a zero.
        Ok(unsafe { text(name) })
    }

    /// # Safety
    /// `info` is onnxruntime's.
    unsafe fn tensor_type(self, info: *const OrtTensorTypeAndShapeInfo) -> Result<TensorType, Failure> {
        // SAFETY: the caller's promise; lists are as long as they are said to be.
        unsafe {
            let mut element = 0;
            self.check(self.api.GetTensorElementType(info, &mut element))?;
            if !self.api.TensorTypeAndShape_HasShape(info) {
                return Ok(TensorType { element, dims: None });
            }
            let rank = |n: *mut usize| self.api.GetDimensionsCount(info, n);
            let dims = self.list(0i64, rank, |to, n| self.api.GetDimensions(info, to, n))?;
            let names = self.list(null(), rank, |to, n| self.api.GetSymbolicDimensions(info, to, n))?;
            let size = |(dim, name): (i64, *const c_char)| match (dim, text(name)) {
                (0.., _) => Size::Known(dim),
                (_, name) if name.is_empty() => Size::Unknown,
                (_, name) => Size::Symbol(name),
            };
            Ok(TensorType { element, dims: Some(dims.into_iter().zip(names).map(size).collect()) })
        }
    }

    /// # Safety
    /// `info` is onnxruntime's.
    unsafe fn value_type(self, info: *const OrtTypeInfo) -> Result<ValueType, Failure> {
        if info.is_null() {
            return Ok(ValueType::Other);
        }
        // SAFETY: the caller's promise; what is made is released once.
        unsafe {
            let mut kind = 0;
            self.check(self.api.GetOnnxTypeFromTypeInfo(info, &mut kind))?;
            match kind {
                onnx_type::TENSOR => {
                    let mut tensor = null();
                    self.check(self.api.CastTypeInfoToTensorInfo(info, &mut tensor))?;
                    Ok(ValueType::Tensor(self.tensor_type(tensor)?))
                }
                onnx_type::SEQUENCE => {
                    let (mut sequence, mut element) = (null(), null_mut());
                    self.check(self.api.CastTypeInfoToSequenceTypeInfo(info, &mut sequence))?;
                    self.check(self.api.GetSequenceElementType(sequence, &mut element))?;
                    let inner = self.value_type(element);
                    self.api.ReleaseTypeInfo(element);
                    Ok(match inner? {
                        ValueType::Tensor(tensor) => ValueType::Sequence(tensor),
                        _ => ValueType::Other,
                    })
                }
                _ => Ok(ValueType::Other),
            }
        }
    }

    /// Element type, sizes and bytes of a tensor.
    ///
    /// # Safety
    /// `value` is onnxruntime's, and lives as long as the result.
    unsafe fn tensor<'a>(self, value: *const OrtValue) -> Result<(u32, Vec<i64>, &'a [u8]), Failure> {
        // SAFETY: the caller's promise.
        unsafe {
            let (element, dims) = self.shape(value)?;
            let mut data = null();
            self.check(self.api.GetTensorData(value, &mut data))?;
            let bytes = crate::types::stored_bytes(element, &dims)
                .ok_or_else(|| Failure::graph(format!("a constant has elements of type {element}")))?;
            Ok((element, dims, slice(data, bytes)))
        }
    }

    /// # Safety
    /// `value` is a tensor of onnxruntime's.
    unsafe fn shape(self, value: *const OrtValue) -> Result<(u32, Vec<i64>), Failure> {
        let mut info = null_mut();
        // SAFETY: the caller's promise; the description is released once.
        unsafe {
            self.check(self.api.GetTensorTypeAndShape(value, &mut info))?;
            let read = || {
                let mut element = 0;
                self.check(self.api.GetTensorElementType(info, &mut element))?;
                let rank = |n: *mut usize| self.api.GetDimensionsCount(info, n);
                let dims = self.list(0i64, rank, |to, n| self.api.GetDimensions(info, to, n))?;
                Ok((element, dims))
            };
            let result = read();
            self.api.ReleaseTensorTypeAndShapeInfo(info);
            result
        }
    }

    /// All entries of a session's configuration.
    ///
    /// # Safety
    /// onnxruntime gave `options` to the call.
    pub(crate) unsafe fn config(
        self,
        options: *const OrtSessionOptions,
    ) -> Result<Vec<(String, String)>, Failure> {
        let mut pairs: *mut OrtKeyValuePairs = null_mut();
        // SAFETY: the caller's promise; the list is released once.
        unsafe {
            self.check(self.api.GetSessionOptionsConfigEntries(options, &mut pairs))?;
            let (mut keys, mut values, mut count) = (null(), null(), 0);
            self.api.GetKeyValuePairs(pairs, &mut keys, &mut values, &mut count);
            let all = (0..count.min(MOST)).map(|i| (text(*keys.add(i)), text(*values.add(i)))).collect();
            self.api.ReleaseKeyValuePairs(pairs);
            Ok(all)
        }
    }

    /// Says `message` in a log, where it lists such.
    ///
    /// # Safety
    /// `logger` is null or onnxruntime's.
    unsafe fn log(self, logger: *const OrtLogger, message: impl FnOnce() -> String) {
        if logger.is_null() {
            return;
        }
        let mut level = 0;
        // SAFETY: the caller's promise.
        let status = unsafe { self.api.Logger_GetLoggingSeverityLevel(logger, &mut level) };
        if self.check(status).is_err() || level > abi::LOG_INFO {
            return;
        }
        let message = c_text(&message());
        #[cfg(not(windows))]
        let file = c"onepool".as_ptr();
        #[cfg(windows)]
        let file = [0u16].as_ptr();
        // SAFETY: texts end with a zero; none may be null.
        let status = unsafe {
            self.api.Logger_LogMessage(logger, abi::LOG_INFO, message.as_ptr(), file, 0, c"onepool".as_ptr())
        };
        // A message that cannot be written is lost.
        drop(self.check(status));
    }
}

/// # Safety
/// `data` has so many bytes, which no one writes as long as the slice lives.
unsafe fn slice<'a>(data: *const c_void, bytes: usize) -> &'a [u8] {
    if data.is_null() || bytes == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast(), bytes) }
}

/// A list of an object's, by the functions that give its length and its entries.
macro_rules! list {
    ($of:ident.$count:ident, $fill:ident) => {
        $of.host.list(
            null(),
            // SAFETY: see the module.
            |n: *mut usize| unsafe { $of.host.api.$count($of.of, n) },
            // SAFETY: the list has that length.
            |to, n| unsafe { $of.host.api.$fill($of.of, to, n) },
        )
    };
}

impl<'a> Graph<'a> {
    /// Whether a node holds it.
    pub(crate) fn is_body(&self) -> Result<bool, Failure> {
        let mut node = null();
        // SAFETY: see the module.
        self.host.check(unsafe { self.host.api.Graph_GetParentNode(self.of, &mut node) })?;
        Ok(!node.is_null())
    }

    pub(crate) fn nodes(&self) -> Result<Vec<Node<'a>>, Failure> {
        let all = list!(self.Graph_GetNumNodes, Graph_GetNodes)?;
        // SAFETY: see the module.
        Ok(all.into_iter().map(|node| unsafe { Node::new(self.host, node) }).collect())
    }

    fn values(&self, all: Vec<*const OrtValueInfo>) -> Vec<Value<'a>> {
        let given = all.into_iter().filter(|value| !value.is_null());
        // SAFETY: see the module.
        given.map(|value| unsafe { Value::new(self.host, value) }).collect()
    }

    pub(crate) fn inputs(&self) -> Result<Vec<Value<'a>>, Failure> {
        let all = list!(self.Graph_GetNumInputs, Graph_GetInputs)?;
        Ok(self.values(all))
    }

    pub(crate) fn outputs(&self) -> Result<Vec<Value<'a>>, Failure> {
        let all = list!(self.Graph_GetNumOutputs, Graph_GetOutputs)?;
        Ok(self.values(all))
    }

    pub(crate) fn initializers(&self) -> Result<Vec<Value<'a>>, Failure> {
        let all = list!(self.Graph_GetNumInitializers, Graph_GetInitializers)?;
        Ok(self.values(all))
    }

    /// Domains and the versions of their operators.
    pub(crate) fn opsets(&self) -> Result<Vec<(String, i64)>, Failure> {
        let (api, mut count) = (self.host.api, 0);
        // SAFETY: see the module.
        self.host.check(unsafe { api.Graph_GetNumOperatorSets(self.of, &mut count) })?;
        let count = count.min(MOST);
        let (mut domains, mut versions) = (vec![null(); count], vec![0; count]);
        // SAFETY: both lists have that length.
        self.host.check(unsafe {
            api.Graph_GetOperatorSets(self.of, domains.as_mut_ptr(), versions.as_mut_ptr(), count)
        })?;
        // SAFETY: onnxruntime's names end with a zero.
        Ok(domains.into_iter().zip(versions).map(|(domain, v)| (unsafe { text(domain) }, v)).collect())
    }

    /// The file of the model; empty where it came from memory.
    pub(crate) fn model_path(&self) -> Result<PathBuf, Failure> {
        let mut found = null();
        // SAFETY: see the module.
        self.host.check(unsafe { self.host.api.Graph_GetModelPath(self.of, &mut found) })?;
        // SAFETY: onnxruntime's paths end with a zero.
        Ok(unsafe { path(found) })
    }
}

impl<'a> Node<'a> {
    pub(crate) fn name(&self) -> Result<String, Failure> {
        // SAFETY: see the module.
        self.host.name(|to| unsafe { self.host.api.Node_GetName(self.of, to) })
    }

    pub(crate) fn operator(&self) -> Result<String, Failure> {
        // SAFETY: see the module.
        self.host.name(|to| unsafe { self.host.api.Node_GetOperatorType(self.of, to) })
    }

    pub(crate) fn domain(&self) -> Result<String, Failure> {
        // SAFETY: see the module.
        self.host.name(|to| unsafe { self.host.api.Node_GetDomain(self.of, to) })
    }

    fn optional(&self, all: Vec<*const OrtValueInfo>) -> Vec<Option<Value<'a>>> {
        // SAFETY: see the module.
        let value =
            |value: *const OrtValueInfo| (!value.is_null()).then(|| unsafe { Value::new(self.host, value) });
        all.into_iter().map(value).collect()
    }

    /// `None` for one that is left out.
    pub(crate) fn inputs(&self) -> Result<Vec<Option<Value<'a>>>, Failure> {
        let all = list!(self.Node_GetNumInputs, Node_GetInputs)?;
        Ok(self.optional(all))
    }

    /// `None` for one that no one wants.
    pub(crate) fn outputs(&self) -> Result<Vec<Option<Value<'a>>>, Failure> {
        let all = list!(self.Node_GetNumOutputs, Node_GetOutputs)?;
        Ok(self.optional(all))
    }

    /// What its graphs read of the graph around them.
    pub(crate) fn implicit_inputs(&self) -> Result<Vec<Value<'a>>, Failure> {
        let all = list!(self.Node_GetNumImplicitInputs, Node_GetImplicitInputs)?;
        Ok(self.optional(all).into_iter().flatten().collect())
    }

    fn graphs(&self) -> Result<Vec<(String, Graph<'a>)>, Failure> {
        let (api, mut count) = (self.host.api, 0);
        // SAFETY: see the module.
        self.host.check(unsafe { api.Node_GetNumSubgraphs(self.of, &mut count) })?;
        let count = count.min(MOST);
        let (mut graphs, mut names) = (vec![null(); count], vec![null(); count]);
        if count == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: both lists have that length.
        self.host.check(unsafe {
            api.Node_GetSubgraphs(self.of, graphs.as_mut_ptr(), count, names.as_mut_ptr())
        })?;
        let named = names.into_iter().zip(graphs);
        // SAFETY: onnxruntime's names end with a zero; for the graph see the module.
        Ok(named.map(|(name, graph)| unsafe { (text(name), Graph::new(self.host, graph)) }).collect())
    }

    /// Attributes by name.
    pub(crate) fn attributes(&self) -> Result<Vec<(String, Attribute<'a>)>, Failure> {
        let (host, api) = (self.host, self.host.api);
        // SAFETY: see the module.
        let count = |n: *mut usize| unsafe { api.Node_GetNumAttributes(self.of, n) };
        // SAFETY: the list has that length.
        let fill = |to, n| unsafe { api.Node_GetAttributes(self.of, to, n) };
        let all = host.list(null(), count, fill)?;
        let mut graphs = self.graphs()?;
        let mut found = Vec::with_capacity(all.len());
        for attr in all {
            // SAFETY: see the module.
            let name = host.name(|to| unsafe { api.OpAttr_GetName(attr, to) })?;
            let value = match graphs.iter().position(|(of, _)| *of == name) {
                Some(i) => Attribute::Graph(graphs.swap_remove(i).1),
                // SAFETY: see the module.
                None => unsafe { host.attribute(attr) }?,
            };
            found.push((name, value));
        }
        found.extend(graphs.into_iter().map(|(name, graph)| (name, Attribute::Graph(graph))));
        Ok(found)
    }
}

impl Host {
    /// # Safety
    /// `attr` is onnxruntime's.
    unsafe fn attribute<'a>(self, attr: *const OrtOpAttr) -> Result<Attribute<'a>, Failure> {
        let mut kind = 0;
        // SAFETY: the caller's promise; buffers have the length that is given.
        unsafe {
            self.check(self.api.OpAttr_GetType(attr, &mut kind))?;
            Ok(match kind {
                attr_type::INT => {
                    Attribute::Int(self.numbers::<i64>(attr, kind)?.first().copied().unwrap_or(0))
                }
                attr_type::INTS => Attribute::Ints(self.numbers(attr, kind)?),
                attr_type::FLOAT => {
                    Attribute::Float(self.numbers::<f32>(attr, kind)?.first().copied().unwrap_or(0.0))
                }
                attr_type::FLOATS => Attribute::Floats(self.numbers(attr, kind)?),
                attr_type::STRING => Attribute::Text(self.numbers(attr, kind)?),
                attr_type::STRINGS => {
                    let joined = self.numbers::<u8>(attr, kind)?;
                    let texts = joined
                        .split_inclusive(|b| *b == 0)
                        .map(|text| text.strip_suffix(&[0]).unwrap_or(text).to_vec());
                    Attribute::Texts(texts.collect())
                }
                attr_type::TENSOR => {
                    let mut value = null_mut();
                    self.check(self.api.OpAttr_GetTensorAttributeAsOrtValue(attr, &mut value))?;
                    let copied = self.tensor(value).map(|(element, dims, bytes)| OwnedTensor {
                        element,
                        dims,
                        bytes: bytes.to_vec(),
                    });
                    self.api.ReleaseValue(value);
                    // Of a type without a size, strings say.
                    copied.map_or(Attribute::Other(kind), Attribute::Tensor)
                }
                other => Attribute::Other(other),
            })
        }
    }

    /// # Safety
    /// `attr` is onnxruntime's, and has values of `T`.
    unsafe fn numbers<T: Copy + Default>(self, attr: *const OrtOpAttr, kind: u32) -> Result<Vec<T>, Failure> {
        let mut bytes = 0;
        // SAFETY: the caller's promise. Without a buffer the call fails and tells the length.
        let status = unsafe { self.api.ReadOpAttr(attr, kind, null_mut(), 0, &mut bytes) };
        let first = self.check(status);
        if bytes == 0 {
            return first.map(|()| Vec::new());
        }
        if bytes > MOST * size_of::<i64>() {
            return Err(Failure::graph(format!("an attribute has {bytes} bytes")));
        }
        let mut all = vec![T::default(); bytes.div_ceil(size_of::<T>())];
        // SAFETY: the buffer has at least so many bytes.
        self.check(unsafe { self.api.ReadOpAttr(attr, kind, all.as_mut_ptr().cast(), bytes, &mut bytes) })?;
        Ok(all)
    }
}

impl<'a> Value<'a> {
    pub(crate) fn name(&self) -> Result<String, Failure> {
        // SAFETY: see the module.
        self.host.name(|to| unsafe { self.host.api.GetValueInfoName(self.of, to) })
    }

    pub(crate) fn kind(&self) -> Result<ValueType, Failure> {
        let mut info = null();
        // SAFETY: see the module.
        self.host.check(unsafe { self.host.api.GetValueInfoTypeInfo(self.of, &mut info) })?;
        // SAFETY: see the module.
        unsafe { self.host.value_type(info) }
    }

    /// Whether no run changes it.
    pub(crate) fn is_constant(&self) -> Result<bool, Failure> {
        let mut constant = false;
        // SAFETY: see the module.
        self.host.check(unsafe { self.host.api.ValueInfo_IsConstantInitializer(self.of, &mut constant) })?;
        Ok(constant)
    }

    /// The value of an initializer.
    pub(crate) fn constant(&self) -> Result<Option<Constant<'a>>, Failure> {
        let api = self.host.api;
        let mut external: *mut OrtExternalInitializerInfo = null_mut();
        // SAFETY: see the module; the description is released once.
        unsafe {
            self.host.check(api.ValueInfo_GetExternalInitializerInfo(self.of, &mut external))?;
            if !external.is_null() {
                let offset = u64::try_from(api.ExternalInitializerInfo_GetFileOffset(external)).unwrap_or(0);
                let bytes = api.ExternalInitializerInfo_GetByteSize(external) as u64;
                let path = path(api.ExternalInitializerInfo_GetFilePath(external));
                api.ReleaseExternalInitializerInfo(external);
                return Ok(Some(Constant::External { path, offset, bytes }));
            }
            let mut value = null();
            self.host.check(api.ValueInfo_GetInitializerValue(self.of, &mut value))?;
            if value.is_null() {
                return Ok(None);
            }
            let (element, dims, bytes) = self.host.tensor(value)?;
            Ok(Some(Constant::Memory { element, dims, bytes }))
        }
    }
}

/// A run of a compiled graph.
#[derive(Debug)]
pub(crate) struct Kernel {
    host: Host,
    context: *mut OrtKernelContext,
}

/// A tensor of a run where onnxruntime has it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) element: u32,
    pub(crate) dims: Vec<i64>,
    pub(crate) data: *mut u8,
}

impl Kernel {
    /// # Safety
    /// onnxruntime gave `context` to the call, which outlives the value.
    pub(crate) unsafe fn new(host: Host, context: *mut OrtKernelContext) -> Self {
        Kernel { host, context }
    }

    pub(crate) fn counts(&self) -> Result<(usize, usize), Failure> {
        let (mut inputs, mut outputs) = (0, 0);
        // SAFETY: the context lives.
        self.host.check(unsafe { self.host.api.KernelContext_GetInputCount(self.context, &mut inputs) })?;
        // SAFETY: as above.
        self.host.check(unsafe { self.host.api.KernelContext_GetOutputCount(self.context, &mut outputs) })?;
        Ok((inputs, outputs))
    }

    /// Where input `index` lies.
    pub(crate) fn input(&self, index: usize) -> Result<Place, Failure> {
        let (mut value, mut data) = (null(), null());
        // SAFETY: the context lives.
        self.host.check(unsafe { self.host.api.KernelContext_GetInput(self.context, index, &mut value) })?;
        if value.is_null() {
            return Err(Failure::argument(format!("input {index} has no value")));
        }
        // SAFETY: a tensor of the run's.
        let (element, dims) = unsafe { self.host.shape(value) }?;
        // SAFETY: as above.
        self.host.check(unsafe { self.host.api.GetTensorData(value, &mut data) })?;
        Ok(Place { element, dims, data: data.cast_mut().cast() })
    }

    /// Memory for output `index` of these sizes.
    pub(crate) fn output(&self, index: usize, dims: &[i64]) -> Result<*mut u8, Failure> {
        let (mut value, mut data) = (null_mut(), null_mut());
        // SAFETY: the context lives; the list has that length.
        self.host.check(unsafe {
            self.host.api.KernelContext_GetOutput(self.context, index, dims.as_ptr(), dims.len(), &mut value)
        })?;
        if value.is_null() {
            return Err(Failure::argument(format!("output {index} has no place")));
        }
        // SAFETY: a tensor of the run's.
        self.host.check(unsafe { self.host.api.GetTensorMutableData(value, &mut data) })?;
        Ok(data.cast())
    }

    /// Says `message` in the session's log.
    pub(crate) fn log(&self, message: impl FnOnce() -> String) {
        let mut logger = null();
        // SAFETY: the context lives.
        let status = unsafe { self.host.api.KernelContext_GetLogger(self.context, &mut logger) };
        if self.host.check(status).is_ok() {
            // SAFETY: the logger is the run's.
            unsafe { self.host.log(logger, message) };
        }
    }
}

/// The log of a session, during the call that onnxruntime gave it to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log<'a> {
    host: Host,
    logger: *const OrtLogger,
    lifetime: PhantomData<&'a OrtLogger>,
}

impl Log<'_> {
    /// # Safety
    /// `logger` is null, or onnxruntime gave it to a call that outlives the value.
    pub(crate) unsafe fn new(host: Host, logger: *const OrtLogger) -> Self {
        Log { host, logger, lifetime: PhantomData }
    }

    pub(crate) fn info(&self, message: impl FnOnce() -> String) {
        // SAFETY: the logger lives.
        unsafe { self.host.log(self.logger, message) };
    }
}
