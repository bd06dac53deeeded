//! What a model's file says of itself, with strings that C can read.

use std::ffi::{CString, c_char};

use onepool::Session;

use crate::arg::Structure;
use crate::io::text;

/// `onepool_metadata`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MetadataC {
    /// Size of the structure.
    pub struct_size: usize,
    /// The format of the file.
    pub format: *const c_char,
    /// The name of the graph.
    pub graph: *const c_char,
    /// The program that wrote it.
    pub producer: *const c_char,
    /// Its version.
    pub producer_version: *const c_char,
    /// Whose model it is.
    pub domain: *const c_char,
    /// What people are told of it.
    pub description: *const c_char,
    /// What people are told of its graph.
    pub graph_description: *const c_char,
    /// Version of the model.
    pub version: i64,
    /// Version of the file format.
    pub ir_version: i64,
    /// How many operator sets.
    pub opset_count: usize,
    /// How many properties.
    pub property_count: usize,
}

// SAFETY: `repr(C)`, begins with its size, holds numbers and pointers that may be anything.
unsafe impl Structure for MetadataC {}

/// The same, as a session keeps it.
#[derive(Debug)]
pub(crate) struct Metadata {
    format: CString,
    graph: CString,
    producer: CString,
    producer_version: CString,
    domain: CString,
    description: CString,
    graph_description: CString,
    version: i64,
    ir_version: i64,
    pub(crate) opsets: Vec<(CString, i64)>,
    /// Names and values.
    pub(crate) properties: Vec<(CString, CString)>,
}

impl Metadata {
    pub(crate) fn new(session: &Session) -> Self {
        let said = session.metadata();
        Metadata {
            format: text(said.format),
            graph: text(session.graph().name()),
            producer: text(&said.producer),
            producer_version: text(&said.producer_version),
            domain: text(&said.domain),
            description: text(&said.description),
            graph_description: text(&said.graph_description),
            version: said.version,
            ir_version: said.ir_version,
            opsets: said.opsets.iter().map(|(domain, version)| (text(domain), *version)).collect(),
            properties: said.properties.iter().map(|(name, value)| (text(name), text(value))).collect(),
        }
    }

    pub(crate) fn to_c(&self, struct_size: usize) -> MetadataC {
        MetadataC {
            struct_size,
            format: self.format.as_ptr(),
            graph: self.graph.as_ptr(),
            producer: self.producer.as_ptr(),
            producer_version: self.producer_version.as_ptr(),
            domain: self.domain.as_ptr(),
            description: self.description.as_ptr(),
            graph_description: self.graph_description.as_ptr(),
            version: self.version,
            ir_version: self.ir_version,
            opset_count: self.opsets.len(),
            property_count: self.properties.len(),
        }
    }
}
