//! Lists that are known only in the run: a list is two tensors there, its elements contiguous and a table
//! of their shapes ([`crate::ops::sequence`]).

use super::graph::{Failure, Making};
use super::sequence::{Cut, List, Position, Sequence};
use crate::dtype::DType;
use crate::graph::TensorId;
use crate::loader::error::LoadErrorKind;
use crate::ops::sequence::{COLUMNS, JoinList, Pack, PackCut, Part, PieceCount, Splice, Unpack};
use crate::shape::{Dim, SymShape};

/// The two tensors of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed {
    /// The elements, contiguous.
    pub(super) values: TensorId,
    /// Their ranks and sizes.
    pub(super) table: TensorId,
}

/// The names of the two tensors that input or output `name` is where it is a sequence
/// ([`crate::ops::sequence::pack`]).
pub fn names(name: &str) -> [String; 2] {
    ["values", "table"].map(|part| format!("{name}/{part}"))
}

impl Packed {
    /// The two tensors declared, to be written by one node.
    pub(super) fn declare(name: &str, making: &mut Making) -> Self {
        let [values, table] = names(name).map(|name| making.unique(&name));
        Packed { values: making.builder.declare(values), table: making.builder.declare(table) }
    }

    /// The two tensors as the next inputs of the graph.
    pub(super) fn inputs(name: &str, dtype: Option<DType>, making: &mut Making) -> Self {
        let [values, table] = names(name).map(|name| making.unique(&name));
        let shape = |dims: Vec<Dim>| Some(SymShape(dims.into_iter().collect()));
        let rows = shape(vec![Dim::Unknown, Dim::Known(COLUMNS)]);
        Packed {
            values: making.builder.declare_input(values, dtype, shape(vec![Dim::Unknown])),
            table: making.builder.declare_input(table, Some(DType::I64), rows),
        }
    }

    /// Both tensors, each made by an operator from inputs.
    fn made<O: crate::ops::Operator>(
        name: &str,
        op: impl Fn(Part) -> O,
        inputs: [&[Option<TensorId>]; 2],
        making: &mut Making,
    ) -> Self {
        let [values, table] = inputs;
        Packed {
            values: making.derived(name, op(Part::Values), values),
            table: making.derived(name, op(Part::Table), table),
        }
    }

    /// The two tensors of any sequence.
    pub(super) fn of(name: &str, sequence: Sequence, making: &mut Making) -> Result<Self, Failure> {
        match sequence {
            Sequence::Packed(packed) => Ok(packed),
            Sequence::Cut(cut) => Ok(Packed::cut(name, cut, making)),
            Sequence::List(list) => {
                let dtype = list.dtype;
                let items = list.elements(name, making)?;
                let items: Vec<Option<TensorId>> = items.into_iter().map(Some).collect();
                Ok(Packed::made(name, |part| Pack { part, dtype }, [&items, &items], making))
            }
        }
    }

    fn cut(name: &str, cut: Cut, making: &mut Making) -> Self {
        let Cut { data, split, axis, keep_dims, .. } = cut;
        let inputs = [Some(data), split];
        Packed::made(name, |part| PackCut { part, axis, keep_dims }, [&inputs, &inputs], making)
    }

    /// The list with an element more.
    pub(super) fn insert(
        self,
        name: &str,
        item: TensorId,
        at: Option<Position>,
        making: &mut Making,
    ) -> Self {
        self.splice(name, Some(item), at, making)
    }

    /// The list with an element less.
    pub(super) fn erase(self, name: &str, at: Option<Position>, making: &mut Making) -> Self {
        self.splice(name, None, at, making)
    }

    fn splice(self, name: &str, item: Option<TensorId>, at: Option<Position>, making: &mut Making) -> Self {
        let (table, at) = (Some(self.table), at.map(|p| p.tensor));
        let inputs = [&[Some(self.values), table, item, at][..], &[None, table, item, at]];
        Packed::made(name, |part| Splice { part }, inputs, making)
    }

    /// Element `position` as a tensor.
    pub(super) fn element(self, name: &str, position: TensorId, making: &mut Making) -> TensorId {
        making.derived(name, Unpack, &[Some(self.values), Some(self.table), Some(position)])
    }

    /// The number of elements.
    pub(super) fn len(self, name: &str, making: &mut Making) -> TensorId {
        making.derived(name, PieceCount { axis: 0 }, &[Some(self.table)])
    }

    /// The elements joined along an axis.
    pub(super) fn join(self, name: &str, axis: i64, new_axis: bool, making: &mut Making) -> TensorId {
        making.derived(name, JoinList { axis, new_axis }, &[Some(self.values), Some(self.table)])
    }
}

impl List {
    /// All elements as tensors.
    pub(super) fn elements(&self, name: &str, making: &mut Making) -> Result<Vec<TensorId>, Failure> {
        (0..self.len)
            .map(|at| {
                let position = making.position(name, at as i64);
                self.element(name, position, making)
            })
            .collect()
    }
}

/// An error where a sequence is one thing to a node and another to its graphs.
pub(super) fn differs(what: &str) -> Failure {
    LoadErrorKind::unexpected(format!("a sequence as {what}"), "a tensor").into()
}
