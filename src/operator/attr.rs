//! A typed view of a node's attributes that knows which were read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::dtype::DType;
use crate::graph::Graph;
use crate::tensor::Tensor;

/// An attribute that is missing or wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("attribute {name:?} {problem}")]
pub struct AttrError {
    /// Its name.
    pub name: String,
    /// What is wrong with it.
    pub problem: String,
}

/// The value of an attribute, as files hold it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AttrValue {
    /// An integer.
    Int(i64),
    /// A number.
    Float(f32),
    /// Bytes that are text as a rule.
    Str(Vec<u8>),
    /// Integers.
    Ints(Vec<i64>),
    /// Numbers.
    Floats(Vec<f32>),
    /// Several texts.
    Strs(Vec<Vec<u8>>),
    /// A tensor.
    Tensor(Tensor),
    /// A sub-graph of control flow.
    Graph(Box<Graph>),
}

impl AttrValue {
    fn kind(&self) -> &'static str {
        match self {
            AttrValue::Int(_) => "an integer",
            AttrValue::Float(_) => "a number",
            AttrValue::Str(_) => "a text",
            AttrValue::Ints(_) => "a list of integers",
            AttrValue::Floats(_) => "a list of numbers",
            AttrValue::Strs(_) => "a list of texts",
            AttrValue::Tensor(_) => "a tensor",
            AttrValue::Graph(_) => "a graph",
        }
    }
}

/// Element types by their numbers in ONNX's `TensorProto.DataType`.
const ONNX_TYPES: &[(i64, DType)] = &[
    (1, DType::F32),
    (2, DType::U8),
    (3, DType::I8),
    (4, DType::U16),
    (5, DType::I16),
    (6, DType::I32),
    (7, DType::I64),
    (9, DType::Bool),
    (10, DType::F16),
    (11, DType::F64),
    (12, DType::U32),
    (13, DType::U64),
    (16, DType::BF16),
    (17, DType::F8E4M3Fn),
    (18, DType::F8E4M3FnUz),
    (19, DType::F8E5M2),
    (20, DType::F8E5M2FnUz),
    (21, DType::U4),
    (22, DType::I4),
    (23, DType::F4E2M1),
    (24, DType::F8E8M0),
    (25, DType::U2),
    (26, DType::I2),
];

/// A node's attributes by name.
pub type AttrMap = BTreeMap<String, AttrValue>;

/// Reads attributes by name and type; unread ones are reported.
#[derive(Debug)]
pub struct AttrReader<'a> {
    attrs: &'a AttrMap,
    read: RefCell<BTreeSet<&'a str>>,
    inputs: usize,
    outputs: usize,
}

impl<'a> AttrReader<'a> {
    /// A view of `attrs` of a node with so many inputs and outputs.
    pub fn new(attrs: &'a AttrMap, inputs: usize, outputs: usize) -> Self {
        AttrReader { attrs, read: RefCell::default(), inputs, outputs }
    }

    /// Number of inputs of the node, absent ones counted.
    pub fn input_count(&self) -> usize {
        self.inputs
    }

    /// Number of outputs of the node.
    pub fn output_count(&self) -> usize {
        self.outputs
    }

    /// Attributes that were not read.
    pub fn unread(&self) -> Vec<&'a str> {
        let read = self.read.borrow();
        self.attrs.keys().map(String::as_str).filter(|k| !read.contains(k)).collect()
    }

    /// The raw value of `name`.
    pub fn value(&self, name: &str) -> Option<&'a AttrValue> {
        let (key, value) = self.attrs.get_key_value(name)?;
        self.read.borrow_mut().insert(key.as_str());
        Some(value)
    }

    /// Whether `name` is given.
    pub fn has(&self, name: &str) -> bool {
        self.attrs.contains_key(name)
    }

    /// An error about attribute `name`.
    pub fn error(&self, name: &str, problem: impl Into<String>) -> AttrError {
        AttrError { name: name.to_owned(), problem: problem.into() }
    }

    fn wrong<T>(&self, name: &str, expected: &str, got: &AttrValue) -> Result<T, AttrError> {
        Err(self.error(name, format!("is {}, expected {expected}", got.kind())))
    }

    /// An integer, if given.
    ///
    /// # Errors
    /// [`AttrError`] where it has another type; so for all readers here.
    pub fn int_opt(&self, name: &str) -> Result<Option<i64>, AttrError> {
        match self.value(name) {
            None => Ok(None),
            Some(AttrValue::Int(v)) => Ok(Some(*v)),
            Some(other) => self.wrong(name, "an integer", other),
        }
    }

    /// An integer, or `default`.
    ///
    /// # Errors
    /// [`AttrError`].
    pub fn int(&self, name: &str, default: i64) -> Result<i64, AttrError> {
        Ok(self.int_opt(name)?.unwrap_or(default))
    }

    /// An integer that is a flag: 0 is false, everything else true.
    ///
    /// # Errors
    /// [`AttrError`].
    pub fn flag(&self, name: &str, default: bool) -> Result<bool, AttrError> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    /// A number, if given; an integer counts as one.
    ///
    /// # Errors
    /// [`AttrError`].
    pub fn float_opt(&self, name: &str) -> Result<Option<f32>, AttrError> {
        match self.value(name) {
            None => Ok(None),
            Some(AttrValue::Float(v)) => Ok(Some(*v)),
            Some(AttrValue::Int(v)) => Ok(Some(*v as f32)),
            Some(other) => self.wrong(name, "a number", other),
        }
    }

    /// A number, or `default`.
    ///
    /// # Errors
    /// [`AttrError`].
    pub fn float(&self, name: &str, default: f32) -> Result<f32, AttrError> {
        Ok(self.float_opt(name)?.unwrap_or(default))
    }

    /// Integers, if given.
    ///
    /// # Errors
    /// [`AttrError`].
    pub fn ints_opt(&self, name: &str) -> Result<Option<Vec<i64>>, AttrError> {
        match self.value(name) {
            None => Ok(None),
            Some(AttrValue::Ints(v)) => Ok(Some(v.clone())),
            Some(AttrValue::Floats(v)) if v.is_empty() => Ok(Some(Vec::new())),
            Some(other) => self.wrong(name, "a list of integers", other),
        }
    }

    /// Numbers, if given.
    ///
    /// # Errors
    /// [`AttrError`].
    pub fn floats_opt(&self, name: &str) -> Result<Option<Vec<f32>>, AttrError> {
        match self.value(name) {
            None => Ok(None),
            Some(AttrValue::Floats(v)) => Ok(Some(v.clone())),
            Some(AttrValue::Ints(v)) if v.is_empty() => Ok(Some(Vec::new())),
            Some(other) => self.wrong(name, "a list of numbers", other),
        }
    }

    /// A text, if given.
    ///
    /// # Errors
    /// [`AttrError`], also where the bytes are no UTF-8.
    pub fn str_opt(&self, name: &str) -> Result<Option<&'a str>, AttrError> {
        match self.value(name) {
            None => Ok(None),
            Some(AttrValue::Str(v)) => {
                std::str::from_utf8(v).map(Some).map_err(|_| self.error(name, "is no UTF-8 text"))
            }
            Some(other) => self.wrong(name, "a text", other),
        }
    }

    /// A text, or `default`.
    ///
    /// # Errors
    /// [`AttrError`].
    pub fn str(&self, name: &str, default: &'a str) -> Result<&'a str, AttrError> {
        Ok(self.str_opt(name)?.unwrap_or(default))
    }

    /// Texts, if given.
    ///
    /// # Errors
    /// [`AttrError`].
    pub fn strs_opt(&self, name: &str) -> Result<Option<Vec<&'a str>>, AttrError> {
        match self.value(name) {
            None => Ok(None),
            Some(AttrValue::Strs(v)) => v
                .iter()
                .map(|s| std::str::from_utf8(s).map_err(|_| self.error(name, "is no UTF-8 text")))
                .collect::<Result<Vec<_>, _>>()
                .map(Some),
            Some(other) => self.wrong(name, "a list of texts", other),
        }
    }

    /// A tensor, if given.
    ///
    /// # Errors
    /// [`AttrError`].
    pub fn tensor_opt(&self, name: &str) -> Result<Option<&'a Tensor>, AttrError> {
        match self.value(name) {
            None => Ok(None),
            Some(AttrValue::Tensor(v)) => Ok(Some(v)),
            Some(other) => self.wrong(name, "a tensor", other),
        }
    }

    /// An element type by ONNX's number for it, if given.
    ///
    /// # Errors
    /// [`AttrError`], also where the number stands for no type that tensors have here.
    pub fn dtype_opt(&self, name: &str) -> Result<Option<DType>, AttrError> {
        let Some(number) = self.int_opt(name)? else { return Ok(None) };
        let known = ONNX_TYPES.iter().find(|(n, _)| *n == number).map(|(_, dtype)| *dtype);
        match known {
            Some(dtype) => Ok(Some(dtype)),
            None => Err(self.error(name, format!("is element type {number}, which is not supported"))),
        }
    }

    /// A sub-graph.
    ///
    /// # Errors
    /// [`AttrError`], also where it is missing.
    pub fn graph(&self, name: &str) -> Result<&'a Graph, AttrError> {
        match self.value(name) {
            None => Err(self.error(name, "is missing")),
            Some(AttrValue::Graph(v)) => Ok(v),
            Some(other) => self.wrong(name, "a graph", other),
        }
    }

    /// One of several words, by its text.
    ///
    /// # Errors
    /// [`AttrError`] where the text is none of `words`.
    pub fn choice<T: Copy>(&self, name: &str, default: T, words: &[(&str, T)]) -> Result<T, AttrError> {
        let Some(text) = self.str_opt(name)? else { return Ok(default) };
        words.iter().find(|(w, _)| *w == text).map(|(_, v)| *v).ok_or_else(|| {
            let known: Vec<&str> = words.iter().map(|(w, _)| *w).collect();
            self.error(name, format!("is {text:?}, expected one of {}", known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_check_types_and_unread_attributes_are_known() {
        let attrs: AttrMap = [
            ("axis".to_owned(), AttrValue::Int(2)),
            ("mode".to_owned(), AttrValue::Str(b"cubic".to_vec())),
            ("odd".to_owned(), AttrValue::Float(1.0)),
        ]
        .into();
        let r = AttrReader::new(&attrs, 1, 1);
        assert_eq!(r.int("axis", 0).unwrap(), 2);
        assert_eq!(r.int("other", 7).unwrap(), 7);
        assert!(r.ints_opt("axis").is_err());
        assert_eq!(r.choice("mode", 0, &[("linear", 1), ("cubic", 2)]).unwrap(), 2);
        assert!(r.choice("mode", 0, &[("linear", 1)]).is_err());
        assert_eq!(r.unread(), ["odd"]);
    }
}
