//! Sequences and optionals, which no tensor is: what a name stands for is followed while nodes are read, and only
//! what is taken out of a sequence becomes a node.
//!
//! A list whose structure is known is a list of tensors; positions may be known only when a graph is planned
//! ([`Pick`]). What SplitToSequence makes is cut when a piece is taken ([`Piece`]). A list that is known only in the
//! run, because it goes through control flow or is an input, is two tensors ([`Packed`]). An optional is its
//! element, or an absent argument.

use std::sync::Arc;

use super::attribute::attribute_value;
use super::graph::{Failure, Importer, Making, Scope};
use super::packed::Packed;
use super::proto::{NodeProto, data_type};
use super::tensor::dtype_of;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorId, TensorInfo};
use crate::loader::error::LoadErrorKind;
use crate::ops::movement::Concat;
use crate::ops::pointwise::Identity;
use crate::ops::sequence::{Edit, Join, MAX_POSITIONS, Pick, Piece, PieceCount};
use crate::ops::shape_ops::Unsqueeze;
use crate::ops::{AttrMap, AttrReader, OpError, Operator};
use crate::shape::Shape;

/// The longest list of tensors that is followed.
const MAX_LIST: usize = 1024;

/// An attribute of SequenceAt, of which input 0 may be a tensor, which is then the result.
pub(super) const OR_TENSOR: &str = "onepool.or_tensor";

/// Operators that are read here, and the opset each is there from.
const OPERATORS: &[(&str, i64)] = &[
    ("ConcatFromSequence", 11),
    ("Optional", 15),
    ("OptionalGetElement", 15),
    ("OptionalHasElement", 15),
    ("SequenceAt", 11),
    ("SequenceConstruct", 11),
    ("SequenceEmpty", 11),
    ("SequenceErase", 11),
    ("SequenceInsert", 11),
    ("SequenceLength", 11),
    ("SplitToSequence", 11),
];

/// Whether an operator of the newest opset is one over sequences or optionals. SequenceMap becomes a loop of others.
pub(super) fn is_one(op: &str) -> bool {
    op == "SequenceMap" || OPERATORS.iter().any(|(name, _)| *name == op)
}

/// Whether an operator is read here.
pub(super) fn reads(domain: &str, op: &str, opset: i64) -> bool {
    domain.is_empty() && OPERATORS.iter().any(|(name, since)| *name == op && *since <= opset)
}

/// What a name that is a sequence stands for.
#[derive(Clone, Debug)]
pub(super) enum Sequence {
    List(List),
    Cut(Cut),
    Packed(Packed),
}

/// Tensors, and changes of the list at positions that are not known yet.
#[derive(Clone, Debug)]
pub(super) struct List {
    /// The first `first` are the list, the others are inserted by `edits`.
    items: Vec<TensorId>,
    first: usize,
    edits: Vec<Edit>,
    positions: Vec<TensorId>,
    /// Elements when all edits are done.
    pub(super) len: usize,
    /// Of elements, where there are none.
    pub(super) dtype: DType,
}

/// A tensor that is cut up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) data: TensorId,
    pub(super) split: Option<TensorId>,
    pub(super) axis: i64,
    pub(super) keep_dims: bool,
    /// How many pieces there are, where that is known.
    count: Option<usize>,
}

impl Sequence {
    /// The tensors that it is made of.
    pub(super) fn tensors(&self) -> Vec<TensorId> {
        match self {
            Sequence::List(list) => list.items.iter().chain(&list.positions).copied().collect(),
            Sequence::Cut(cut) => [Some(cut.data), cut.split].into_iter().flatten().collect(),
            Sequence::Packed(packed) => vec![packed.values, packed.table],
        }
    }

    /// The same made of other tensors: `ids` in the order of [`Sequence::tensors`].
    pub(super) fn of(&self, ids: &[Option<TensorId>]) -> Sequence {
        let mut ids = ids.iter().copied();
        let mut next = |own: TensorId| ids.next().flatten().unwrap_or(own);
        let mut sequence = self.clone();
        match &mut sequence {
            Sequence::List(list) => {
                list.items.iter_mut().chain(&mut list.positions).for_each(|id| *id = next(*id));
            }
            Sequence::Cut(cut) => {
                cut.data = next(cut.data);
                cut.split = cut.split.map(&mut next);
            }
            Sequence::Packed(packed) => {
                packed.values = next(packed.values);
                packed.table = next(packed.table);
            }
        }
        sequence
    }
}

impl List {
    /// A list without elements.
    fn empty(dtype: DType) -> Self {
        List { items: Vec::new(), first: 0, edits: Vec::new(), positions: Vec::new(), len: 0, dtype }
    }

    /// Where a known position of a list with `more` places after its elements is.
    fn place(&self, at: i64, more: usize) -> Result<usize, Failure> {
        let from_start = if at < 0 { at.saturating_add(self.len as i64) } else { at };
        let found = usize::try_from(from_start).ok().filter(|p| *p < self.len.saturating_add(more));
        found.ok_or_else(|| {
            let expected = format!("a position in a sequence of {} elements", self.len);
            LoadErrorKind::unexpected(expected, at.to_string()).into()
        })
    }

    /// The number of a position that is not known yet.
    fn later(&mut self, position: TensorId) -> Result<usize, Failure> {
        // One more is that of the element that is taken in the end.
        if self.positions.len().saturating_add(1) >= MAX_POSITIONS {
            return Err(unsupported(format!(
                "a sequence changed at more than {MAX_POSITIONS} unknown positions"
            )));
        }
        self.positions.push(position);
        Ok(self.positions.len().saturating_sub(1))
    }

    fn insert(&mut self, tensor: TensorId, position: Option<Position>) -> Result<(), Failure> {
        if self.items.len() >= MAX_LIST {
            let (found, limit) = (self.items.len() as u64, MAX_LIST as u64);
            return Err(LoadErrorKind::TooMany { what: "elements of a sequence", found, limit }.into());
        }
        let at = match position.map(|p| p.known) {
            None => Some(self.len),
            Some(known) => known.map(|at| self.place(at, 1)).transpose()?,
        };
        match at.filter(|_| self.edits.is_empty()) {
            Some(at) => {
                self.items.insert(at.min(self.items.len()), tensor);
                self.first = self.items.len();
            }
            None => {
                let position = position.map(|p| self.later(p.tensor)).transpose()?;
                self.edits.push(Edit::Insert { item: self.items.len(), position });
                self.items.push(tensor);
            }
        }
        self.len = self.len.saturating_add(1);
        Ok(())
    }

    fn erase(&mut self, position: Option<Position>) -> Result<(), Failure> {
        let at = match position.map(|p| p.known) {
            None => Some(self.place(-1, 0)?),
            Some(known) => known.map(|at| self.place(at, 0)).transpose()?,
        };
        match at.filter(|_| self.edits.is_empty()) {
            Some(at) => {
                self.items.remove(at.min(self.items.len().saturating_sub(1)));
                self.first = self.items.len();
            }
            None => {
                // Nothing can be taken from an empty list, wherever.
                self.place(0, 0)?;
                let position = position.map(|p| self.later(p.tensor)).transpose()?;
                self.edits.push(Edit::Erase { position });
            }
        }
        self.len = self.len.saturating_sub(1);
        Ok(())
    }

    /// Element `position` as a tensor.
    pub(super) fn element(
        &self,
        name: &str,
        position: Position,
        making: &mut Making,
    ) -> Result<TensorId, Failure> {
        let at = position.known.map(|at| self.place(at, 0)).transpose()?;
        if let Some(&id) = at.filter(|_| self.edits.is_empty()).and_then(|at| self.items.get(at)) {
            return Ok(id);
        }
        // Nothing can be taken from an empty list, wherever.
        self.place(0, 0)?;
        let positions = self.positions.iter().copied().chain([position.tensor]);
        let inputs: Vec<Option<TensorId>> = positions.chain(self.items.iter().copied()).map(Some).collect();
        let op = Pick {
            positions: self.positions.len().saturating_add(1),
            first: self.first,
            edits: self.edits.as_slice().into(),
        };
        Ok(making.derived(name, op, &inputs))
    }
}

impl Cut {
    /// Piece `position` as a tensor.
    fn piece(&self, name: &str, position: TensorId, making: &mut Making) -> TensorId {
        let op = Piece { axis: self.axis, keep_dims: self.keep_dims };
        making.derived(name, op, &[Some(self.data), self.split, Some(position)])
    }
}

/// Where in a list something happens; `None` is the end.
#[derive(Clone, Copy)]
pub(super) struct Position {
    pub(super) tensor: TensorId,
    known: Option<i64>,
}

impl Making {
    /// The output of a new node.
    pub(super) fn derived(&mut self, name: &str, op: impl Operator, inputs: &[Option<TensorId>]) -> TensorId {
        let unique = self.unique(name);
        let output = self.builder.declare(unique);
        self.builder.node_into(name, Arc::new(op) as Arc<dyn Operator>, inputs, &[Some(output)]);
        output
    }

    /// A position that is known.
    pub(super) fn position(&mut self, name: &str, at: i64) -> Position {
        Position { tensor: self.constant(name, Tensor::scalar(at)), known: Some(at) }
    }
}

/// A node with its attributes.
struct Call<'m, 'c> {
    node: &'m NodeProto,
    attrs: &'c AttrMap,
}

impl<'m> Call<'m, '_> {
    fn int(&self, name: &str, default: i64) -> Result<i64, Failure> {
        let reader = AttrReader::new(self.attrs, self.node.input.len(), self.node.output.len());
        Ok(reader.int(name, default).map_err(OpError::from)?)
    }

    /// Input `i` by name; empty where it is absent.
    fn input(&self, i: usize) -> &'m str {
        self.node.input.get(i).map_or("", String::as_str)
    }

    fn output(&self) -> &'m str {
        self.node.output.first().map_or("", String::as_str)
    }

    /// What new nodes and tensors are called.
    fn name(&self) -> &'m str {
        if self.node.name.is_empty() { self.output() } else { &self.node.name }
    }

    /// The tensor that input `i` is.
    fn tensor(&self, i: usize, making: &mut Making, scope: &mut Scope<'m, '_>) -> Result<TensorId, Failure> {
        let name = self.input(i);
        if scope.sequences.contains_key(name) {
            return Err(unsupported(format!("a sequence as input {i} of {}", self.node.op_type)));
        }
        scope.get(making, name).ok_or_else(|| OpError::MissingInput { input: i }.into())
    }

    /// The sequence that input 0 is.
    fn sequence(&self, scope: &Scope<'m, '_>) -> Result<Sequence, Failure> {
        scope.sequences.get(self.input(0)).cloned().ok_or_else(|| {
            unsupported("a sequence that comes after the node that reads it, or an optional that is an input")
        })
    }

    /// The position that input `i` holds, if it is given.
    fn position(
        &self,
        i: usize,
        making: &mut Making,
        scope: &mut Scope<'m, '_>,
    ) -> Result<Option<Position>, Failure> {
        if self.input(i).is_empty() {
            return Ok(None);
        }
        let tensor = self.tensor(i, making, scope)?;
        let known = match making.constants.get(&tensor) {
            None => None,
            Some(value) => {
                let found = value.to_i64s().ok().and_then(|v| v.first().copied());
                Some(found.ok_or_else(|| LoadErrorKind::unexpected("a position", value.info().to_string()))?)
            }
        };
        Ok(Some(Position { tensor, known }))
    }

    /// A list of tensors; of what is cut up, the pieces. `None` where it is not known how many there are.
    fn list(&self, making: &mut Making, scope: &mut Scope<'m, '_>) -> Result<Option<List>, Failure> {
        let cut = match self.sequence(scope)? {
            Sequence::List(list) => return Ok(Some(list)),
            Sequence::Packed(_) => return Ok(None),
            Sequence::Cut(cut) => cut,
        };
        let Some(count) = cut.count.filter(|n| *n <= MAX_LIST) else { return Ok(None) };
        let mut list = List::empty(DType::F32);
        for at in 0..count {
            let position = making.position(self.name(), at as i64);
            list.insert(cut.piece(self.name(), position.tensor, making), None)?;
        }
        Ok(Some(list))
    }

    /// The two tensors of the sequence that input 0 is.
    fn packed(&self, making: &mut Making, scope: &Scope<'m, '_>) -> Result<Packed, Failure> {
        Packed::of(self.name(), self.sequence(scope)?, making)
    }

    /// Lets the output stand for a sequence.
    fn define(&self, sequence: Sequence, scope: &mut Scope<'m, '_>) -> Result<(), Failure> {
        Ok(scope.define_sequence(self.output(), sequence)?)
    }

    /// Lets the output stand for a tensor that exists.
    fn stands_for(
        &self,
        id: TensorId,
        making: &mut Making,
        scope: &mut Scope<'m, '_>,
    ) -> Result<(), Failure> {
        if !scope.slots.contains_key(self.output()) {
            return Ok(scope.bind(self.output(), Some(id), "tensors")?);
        }
        // A node that comes before this one reads it.
        let output = scope.define(making, self.output())?;
        let identity = Arc::new(Identity) as Arc<dyn Operator>;
        making.builder.node_into(self.name(), identity, &[Some(id)], &[output]);
        Ok(())
    }

    /// SequenceInsert: the sequence with one more element.
    fn inserted(&self, making: &mut Making, scope: &mut Scope<'m, '_>) -> Result<Sequence, Failure> {
        let list = self.list(making, scope)?;
        let item = self.tensor(1, making, scope)?;
        let at = self.position(2, making, scope)?;
        let Some(mut list) = list else {
            let packed = self.packed(making, scope)?;
            return Ok(Sequence::Packed(packed.insert(self.name(), item, at, making)));
        };
        list.insert(item, at)?;
        Ok(Sequence::List(list))
    }

    /// SequenceErase: the sequence with one element less.
    fn erased(&self, making: &mut Making, scope: &mut Scope<'m, '_>) -> Result<Sequence, Failure> {
        let list = self.list(making, scope)?;
        let at = self.position(1, making, scope)?;
        let Some(mut list) = list else {
            return Ok(Sequence::Packed(self.packed(making, scope)?.erase(self.name(), at, making)));
        };
        list.erase(at)?;
        Ok(Sequence::List(list))
    }

    /// SplitToSequence: the parts of a tensor.
    fn cut(&self, making: &mut Making, scope: &mut Scope<'m, '_>) -> Result<Cut, Failure> {
        let data = self.tensor(0, making, scope)?;
        let given = !self.input(1).is_empty();
        let split = if given { Some(self.tensor(1, making, scope)?) } else { None };
        let value = split.and_then(|id| making.constants.get(&id));
        // Exporters write single elements so, and mean `keepdims` although a split is given.
        let single = |v: &Tensor| v.shape().rank() == 0 && v.to_i64s().is_ok_and(|v| v == [1]);
        let split = split.filter(|_| !value.is_some_and(single));
        let count = value.filter(|v| v.shape().rank() == 1).map(|v| v.info().elements());
        let (axis, keep_dims) = (self.int("axis", 0)?, self.int("keepdims", 1)? != 0);
        Ok(Cut { data, split, axis, keep_dims, count })
    }

    /// SequenceAt: one element.
    fn element(&self, making: &mut Making, scope: &mut Scope<'m, '_>) -> Result<TensorId, Failure> {
        let position = self.position(1, making, scope)?;
        let position = position.ok_or(OpError::MissingInput { input: 1 })?;
        Ok(match self.sequence(scope)? {
            Sequence::List(list) => list.element(self.name(), position, making)?,
            Sequence::Cut(cut) => cut.piece(self.name(), position.tensor, making),
            Sequence::Packed(packed) => packed.element(self.name(), position.tensor, making),
        })
    }

    /// SequenceLength: the number of elements.
    fn length(&self, making: &mut Making, scope: &Scope<'m, '_>) -> Result<TensorId, Failure> {
        Ok(match self.sequence(scope)? {
            Sequence::List(list) => making.constant(self.name(), Tensor::scalar(list.len as i64)),
            Sequence::Cut(cut) => {
                let op = PieceCount { axis: cut.axis };
                making.derived(self.name(), op, &[Some(cut.data), cut.split])
            }
            Sequence::Packed(packed) => packed.len(self.name(), making),
        })
    }

    /// Optional and OptionalGetElement: the element itself.
    fn optional(&self, making: &mut Making, scope: &mut Scope<'m, '_>) -> Result<(), Failure> {
        if let Some(sequence) = scope.sequences.get(self.input(0)).cloned() {
            return self.define(sequence, scope);
        }
        match scope.get(making, self.input(0)) {
            Some(id) => self.stands_for(id, making, scope),
            None if self.node.op_type == "Optional" => Ok(scope.bind(self.output(), None, "tensors")?),
            None => Err(LoadErrorKind::unexpected("an optional with an element", "one without").into()),
        }
    }
}

impl<'m> Scope<'m, '_> {
    /// Lets `name` stand for a sequence.
    pub(super) fn define_sequence(&mut self, name: &'m str, sequence: Sequence) -> Result<(), LoadErrorKind> {
        let written = self.slots.remove(name).is_some_and(|slot| slot.defined);
        if written || self.sequences.insert(name, sequence).is_some() {
            return Err(LoadErrorKind::Duplicate { what: "tensors", name: name.to_owned() });
        }
        Ok(())
    }
}

fn unsupported(what: impl Into<String>) -> Failure {
    LoadErrorKind::unsupported(what).into()
}

/// Lets the output of an Identity stand for the same sequence as its input; other operators take none, but for
/// what `takes` says.
pub(super) fn pass<'m>(node: &'m NodeProto, takes: bool, scope: &mut Scope<'m, '_>) -> Result<bool, Failure> {
    let Some(name) = node.input.iter().find(|name| scope.sequences.contains_key(name.as_str())) else {
        return Ok(false);
    };
    if takes {
        return Ok(false);
    }
    if node.op_type != "Identity" {
        return Err(unsupported(format!("{name:?}, a sequence, as an input of {}", node.op_type)));
    }
    let call = Call { node, attrs: &AttrMap::new() };
    let sequence = call.sequence(scope)?;
    call.define(sequence, scope)?;
    Ok(true)
}

impl<'m> Importer<'m, '_> {
    /// Reads a node of one of [`OPERATORS`].
    pub(super) fn sequence_node(
        &mut self,
        node: &'m NodeProto,
        making: &mut Making,
        scope: &mut Scope<'m, '_>,
    ) -> Result<(), Failure> {
        let mut attrs = AttrMap::new();
        // The type of an optional says nothing about tensors.
        for attr in node.attribute.iter().filter(|a| a.name != "type") {
            if let Some(value) = attribute_value(attr, scope.attrs, &mut self.store)? {
                attrs.insert(attr.name.clone(), value);
            }
        }
        let call = &Call { node, attrs: &attrs };
        match node.op_type.as_str() {
            "SequenceEmpty" => {
                let number = i32::try_from(call.int("dtype", data_type::FLOAT.into())?);
                let dtype = dtype_of(number.unwrap_or(-1))?;
                call.define(Sequence::List(List::empty(dtype)), scope)
            }
            "SequenceConstruct" => {
                let mut list = List::empty(DType::F32);
                for i in 0..node.input.len() {
                    list.insert(call.tensor(i, making, scope)?, None)?;
                }
                call.define(Sequence::List(list), scope)
            }
            "SequenceInsert" => call.define(call.inserted(making, scope)?, scope),
            "SequenceErase" => call.define(call.erased(making, scope)?, scope),
            "SplitToSequence" => call.define(Sequence::Cut(call.cut(making, scope)?), scope),
            // What the rewriting of SequenceMap writes.
            "SequenceAt" if attrs.contains_key(OR_TENSOR) && !scope.sequences.contains_key(call.input(0)) => {
                let id = call.tensor(0, making, scope)?;
                call.stands_for(id, making, scope)
            }
            "SequenceAt" => call.stands_for(call.element(making, scope)?, making, scope),
            "SequenceLength" => call.stands_for(call.length(making, scope)?, making, scope),
            "ConcatFromSequence" => concat(call, making, scope),
            "OptionalHasElement" => {
                let given = call.input(0);
                let has = scope.sequences.contains_key(given) || scope.get(making, given).is_some();
                let info = TensorInfo::new(DType::Bool, Shape::scalar());
                let value = Tensor::from_bytes(info, &[u8::from(has)]).map_err(OpError::from)?;
                let id = making.constant(call.name(), value);
                call.stands_for(id, making, scope)
            }
            _ => call.optional(making, scope),
        }
    }
}

/// ConcatFromSequence as Concat, of elements with one more axis where it makes a new one.
fn concat<'m>(call: &Call<'m, '_>, making: &mut Making, scope: &mut Scope<'m, '_>) -> Result<(), Failure> {
    let missing = || LoadErrorKind::missing("attribute \"axis\" of ConcatFromSequence");
    let axis =
        if call.attrs.contains_key("axis") { call.int("axis", 0)? } else { return Err(missing().into()) };
    let new_axis = call.int("new_axis", 0)? != 0;
    if let Sequence::Cut(Cut { data, split: None, axis: cut, keep_dims, .. }) = call.sequence(scope)? {
        let join = Join { cut, keep_dims, axis, new_axis };
        let id = making.derived(call.name(), join, &[Some(data)]);
        return call.stands_for(id, making, scope);
    }
    let Some(list) = call.list(making, scope)? else {
        let id = call.packed(making, scope)?.join(call.name(), axis, new_axis, making);
        return call.stands_for(id, making, scope);
    };
    let mut inputs = list.elements(call.name(), making)?;
    if inputs.is_empty() {
        return Err(
            LoadErrorKind::unexpected("a sequence with elements to concatenate", "an empty one").into()
        );
    }
    if new_axis {
        for id in &mut inputs {
            let op = Unsqueeze { axes: Some(vec![axis]) };
            *id = making.derived(call.name(), op, &[Some(*id)]);
        }
    }
    let inputs: Vec<Option<TensorId>> = inputs.into_iter().map(Some).collect();
    let id = making.derived(call.name(), Concat { axis }, &inputs);
    call.stands_for(id, making, scope)
}
