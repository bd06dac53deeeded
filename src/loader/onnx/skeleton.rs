//! A model without its large data: what is decoded instead of the file.
//!
//! A walk over the wire format copies every field except the raw data of large tensors, of which it
//! notes the place. So a model of gigabytes costs its graph's size to decode, and each parameter is
//! then read once, straight into the memory it stays in. The walk knows which fields are messages, and
//! bounds their number and nesting before anything is decoded.

use super::proto::HELD_TAG;
use crate::limits;
use crate::loader::error::{ErrorLocation, LoadError, LoadErrorKind};
use crate::loader::source::Source;

/// Raw data at least this long stays in the file.
const HELD_BYTES: u64 = 1 << 10;
/// The most messages of one file: nodes, attributes, dimensions and so on.
const MAX_MESSAGES: u64 = 4 * limits::MAX_NODES as u64;
/// Messages around one another: each nested graph adds graph, node and attribute.
const MAX_NESTING: usize = 3 * limits::MAX_DEPTH;

/// Which message is being walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Function,
    Tensor,
    SparseTensor,
    ValueInfo,
    Type,
    TensorType,
    ElementType,
    Shape,
    /// A message without messages inside.
    Leaf,
}

impl Message {
    /// The message that field `field` holds, if it holds one that is read.
    fn child(self, field: u64) -> Option<Message> {
        Some(match (self, field) {
            (Message::Model, 7) => Message::Graph,
            (Message::Model, 8 | 14) | (Message::Function, 9) => Message::Leaf,
            (Message::Model, 25) => Message::Function,
            (Message::Graph, 1) | (Message::Function, 7) => Message::Node,
            (Message::Graph, 5) | (Message::Attribute, 5) | (Message::SparseTensor, 1 | 2) => Message::Tensor,
            (Message::Graph, 11..=13) => Message::ValueInfo,
            (Message::Graph, 15) | (Message::Attribute, 22) => Message::SparseTensor,
            (Message::Node, 5) | (Message::Function, 11) => Message::Attribute,
            (Message::Attribute, 6) => Message::Graph,
            (Message::Tensor, 3 | 13) => Message::Leaf,
            (Message::ValueInfo, 2) | (Message::ElementType, 1) => Message::Type,
            (Message::Type, 1 | 8) => Message::TensorType,
            (Message::Type, 4 | 9) => Message::ElementType,
            (Message::Type, 5) => Message::Leaf,
            (Message::TensorType, 2) => Message::Shape,
            (Message::Shape, 1) => Message::Leaf,
            _ => return None,
        })
    }
}

/// A file's messages without large data.
#[derive(Debug, Default)]
pub(super) struct Skeleton {
    /// The messages; a tensor whose data was left out has [`HELD_TAG`] set.
    pub(super) bytes: Vec<u8>,
    /// Where the data left out lies: offset and length.
    pub(super) held: Vec<(u64, u64)>,
}

/// Walks the message `message` that fills `source`.
pub(super) fn skeleton(source: &mut Source<'_>, message: Message) -> Result<Skeleton, LoadError> {
    let mut walk = Walk { source, held: Vec::new(), messages: 0 };
    let end = walk.source.len();
    let bytes = walk.message(message, end, 0)?;
    Ok(Skeleton { bytes, held: walk.held })
}

struct Walk<'s, 'a> {
    source: &'s mut Source<'a>,
    held: Vec<(u64, u64)>,
    messages: u64,
}

impl Walk<'_, '_> {
    /// Copies the message that ends at `end`.
    fn message(&mut self, message: Message, end: u64, depth: usize) -> Result<Vec<u8>, LoadError> {
        self.messages = self.messages.saturating_add(1);
        if self.messages > MAX_MESSAGES {
            let (what, found, limit) = ("messages in the file", self.messages, MAX_MESSAGES);
            return Err(self.source.error(LoadErrorKind::TooMany { what, found, limit }));
        }
        if depth > MAX_NESTING {
            let kind = LoadErrorKind::TooDeep { what: "graphs", limit: limits::MAX_DEPTH };
            return Err(self.source.error(kind));
        }
        let mut out = Vec::new();
        while self.source.at() < end {
            self.field(message, end, depth, &mut out)?;
        }
        Ok(out)
    }

    fn field(
        &mut self,
        message: Message,
        end: u64,
        depth: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), LoadError> {
        let start = self.source.at();
        let key = self.varint(end)?;
        let (field, wire) = (key >> 3, key & 7);
        if field == 0 || key > u64::from(u32::MAX) {
            return Err(bad(start, format!("field {field} cannot be")));
        }
        let known = !(message == Message::Tensor && field == u64::from(HELD_TAG));
        match wire {
            0 => {
                let value = self.varint(end)?;
                if known {
                    put_varint(out, key);
                    put_varint(out, value);
                }
            }
            1 | 5 => {
                let data = self.source.take("a number", if wire == 1 { 8 } else { 4 })?;
                if known {
                    put_varint(out, key);
                    out.extend(data);
                }
            }
            2 => {
                let bytes = self.varint(end)?;
                let stop = self.source.at().checked_add(bytes).filter(|stop| *stop <= end);
                let Some(stop) = stop else {
                    if end < self.source.len() {
                        return Err(bad(start, "a field is longer than its message".to_owned()));
                    }
                    let left = end.saturating_sub(self.source.at());
                    return Err(self.source.error(LoadErrorKind::Truncated {
                        what: "a field",
                        needed: bytes,
                        left,
                    }));
                };
                if let Some(child) = message.child(field) {
                    let inner = self.message(child, stop, depth.saturating_add(1))?;
                    put_varint(out, key);
                    put_varint(out, inner.len() as u64);
                    out.extend(inner);
                } else if message == Message::Tensor && field == 9 && bytes >= HELD_BYTES {
                    self.held.push((self.source.at(), bytes));
                    self.source.skip("raw data", bytes)?;
                    put_varint(out, u64::from(HELD_TAG) << 3);
                    put_varint(out, self.held.len() as u64);
                } else if known {
                    put_varint(out, key);
                    put_varint(out, bytes);
                    out.extend(self.source.take("a field", bytes)?);
                } else {
                    self.source.skip("a field", bytes)?;
                }
            }
            _ => return Err(bad(start, format!("wire type {wire} is not used"))),
        }
        if self.source.at() > end {
            return Err(bad(start, "a field is longer than its message".to_owned()));
        }
        Ok(())
    }

    fn varint(&mut self, end: u64) -> Result<u64, LoadError> {
        let start = self.source.at();
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            if self.source.at() >= end {
                if end < self.source.len() {
                    return Err(bad(start, "a number is longer than its message".to_owned()));
                }
                let kind = LoadErrorKind::Truncated { what: "a number", needed: 1, left: 0 };
                return Err(self.source.error(kind));
            }
            let byte = self.source.u8("a number")?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(bad(start, "a number has more than ten bytes".to_owned()))
    }
}

fn bad(at: u64, problem: String) -> LoadError {
    LoadErrorKind::Decode { what: "ONNX file", problem }.at(ErrorLocation::ByteOffset(at))
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::super::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
    use super::*;

    fn walk(bytes: &[u8]) -> Result<Skeleton, LoadError> {
        skeleton(&mut Source::of(bytes), Message::Model)
    }

    fn tensor(bytes: usize) -> TensorProto {
        TensorProto {
            name: "w".into(),
            dims: vec![bytes as i64],
            data_type: 2,
            raw_data: Some((0..bytes).map(|b| b as u8).collect::<Vec<u8>>().into()),
            ..Default::default()
        }
    }

    fn model(graph: GraphProto) -> Vec<u8> {
        ModelProto { ir_version: 8, graph: Some(Box::new(graph)), ..Default::default() }.encode_to_vec()
    }

    #[test]
    fn large_data_stays_in_the_file_and_all_else_is_copied() {
        let attribute =
            AttributeProto { name: "value".into(), t: Some(Box::new(tensor(2000))), ..Default::default() };
        let node = NodeProto { op_type: "Constant".into(), attribute: vec![attribute], ..Default::default() };
        let graph =
            GraphProto { node: vec![node], initializer: vec![tensor(5000), tensor(8)], ..Default::default() };
        let bytes = model(graph.clone());
        let s = walk(&bytes).unwrap();
        assert!(s.bytes.len() < 200);
        assert_eq!(s.held.len(), 2);
        let back = ModelProto::decode(s.bytes.as_slice()).unwrap().graph.unwrap();
        assert_eq!(back.initializer[1], graph.initializer[1]);
        assert_eq!(back.initializer[0].raw_data, None);
        let (at, len) = s.held[back.initializer[0].held as usize - 1];
        assert_eq!(
            bytes[at as usize..(at + len) as usize],
            graph.initializer[0].raw_data.as_ref().unwrap()[..]
        );
        let t = back.node[0].attribute[0].t.as_ref().unwrap();
        assert_eq!(s.held[t.held as usize - 1].1, 2000);
    }

    #[test]
    fn a_file_cannot_claim_data_of_its_own() {
        let graph =
            GraphProto { initializer: vec![TensorProto { held: 1, ..tensor(8) }], ..Default::default() };
        let s = walk(&model(graph)).unwrap();
        let back = ModelProto::decode(s.bytes.as_slice()).unwrap().graph.unwrap();
        assert_eq!(back.initializer[0].held, 0);
    }

    #[test]
    fn nesting_and_nonsense_are_errors() {
        let mut graph = GraphProto::default();
        for _ in 0..40 {
            let a = AttributeProto { g: Some(Box::new(graph)), ..Default::default() };
            let n = NodeProto { attribute: vec![a], ..Default::default() };
            graph = GraphProto { node: vec![n], ..Default::default() };
        }
        assert!(matches!(walk(&model(graph)).unwrap_err().kind(), LoadErrorKind::TooDeep { .. }));
        for bytes in [&[0x3a, 0xff][..], &[0x3a, 5, 1], &[3], &[0], &[0xff; 12], &[0x08], &[0x3a, 2, 0x09, 1]]
        {
            assert!(walk(bytes).is_err(), "{bytes:?}");
        }
        assert!(walk(&[]).unwrap().bytes.is_empty());
    }

    #[test]
    fn a_bomb_of_empty_messages_is_refused() {
        // Each two bytes of the file are a node.
        let count = MAX_MESSAGES as usize + 1;
        let mut graph = Vec::with_capacity(2 * count);
        for _ in 0..count {
            graph.extend([0x0a, 0]);
        }
        let mut bytes = vec![0x3a];
        put_varint(&mut bytes, graph.len() as u64);
        bytes.extend(graph);
        assert!(matches!(walk(&bytes).unwrap_err().kind(), LoadErrorKind::TooMany { .. }));
    }
}
