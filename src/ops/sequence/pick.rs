//! SequenceAt of a list of tensors.

use std::sync::Arc;

use super::packed::place;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::movement::moves;
use crate::ops::movement::region::{self, Block, Piece, Source, signed_strides};
use crate::ops::{Cost, Lowering, OpCx, OpError, Operator};

/// Positions that are read to pick one tensor.
pub const MAX_POSITIONS: usize = 32;

const INPUTS: [usize; MAX_POSITIONS] = {
    let mut inputs = [0; MAX_POSITIONS];
    let mut i = 0;
    while i < MAX_POSITIONS {
        inputs[i] = i;
        i += 1;
    }
    inputs
};

/// A change of a list. Positions are numbers of inputs that hold them; negative ones count from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Puts item `item` before the element at a position.
    Insert {
        /// Which item.
        item: usize,
        /// Where; at the end where it is `None`.
        position: Option<usize>,
    },
    /// Takes the element at a position away.
    Erase {
        /// Where; the last where it is `None`.
        position: Option<usize>,
    },
}

/// One of several tensors. Inputs: the positions, of which the last is that of the element wanted, then the items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// How many positions there are: 1 to [`MAX_POSITIONS`].
    pub positions: usize,
    /// How many of the items the list begins with.
    pub first: usize,
    /// What is done to the list before.
    pub edits: Arc<[Edit]>,
}

impl Pick {
    /// The input that is picked.
    fn input(&self, cx: &OpCx) -> Result<usize, OpError> {
        let mut list: Vec<usize> = (0..self.first).collect();
        for edit in self.edits.iter() {
            match *edit {
                Edit::Insert { item, position } => {
                    let at = match position {
                        Some(input) => place(cx, input, list.len(), 1)?,
                        None => list.len(),
                    };
                    list.insert(at, item);
                }
                Edit::Erase { position } => {
                    let last = list.len().checked_sub(1);
                    let at = match position {
                        Some(input) => Some(place(cx, input, list.len(), 0)?),
                        None => last,
                    };
                    if let Some(at) = at {
                        list.remove(at);
                    }
                }
            }
        }
        let at = place(cx, self.positions.saturating_sub(1), list.len(), 0)?;
        Ok(self.positions + list.get(at).copied().unwrap_or(0))
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Piece>, OpError> {
        let input = self.input(cx)?;
        let shape = cx.shape(input)?;
        let strides = signed_strides(shape);
        let block = Block {
            dims: shape.to_vec(),
            src_strides: strides.clone(),
            dst_strides: strides,
            ..Block::default()
        };
        Ok(block.piece(Source::Input(input), 0).into_iter().collect())
    }
}

impl Operator for Pick {
    fn name(&self) -> &'static str {
        "SequenceAt"
    }

    fn value_inputs(&self) -> &'static [usize] {
        INPUTS.get(..self.positions).unwrap_or(&INPUTS)
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(self.positions + 1..=usize::MAX, 1..=1)?;
        Ok(vec![cx.input(self.input(cx)?)?.clone()])
    }

    fn alias(&self, cx: &OpCx) -> Option<usize> {
        self.input(cx).ok()
    }

    moves!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{facts, run_cpu, tensor};

    fn pick(edits: &[Edit], first: usize, positions: &[i64]) -> Result<Tensor, OpError> {
        let op = Pick { positions: positions.len(), first, edits: edits.into() };
        let items = [tensor(&[2, 3], 1), tensor(&[4], 2), tensor(&[1, 5], 3)];
        let positions = positions.iter().map(|p| Some(Tensor::scalar(*p)));
        let inputs: Vec<_> = positions.chain(items.map(Some)).collect();
        let cx = facts(&op, &inputs, 1)?;
        let got = run_cpu(&op, &inputs, 1)?.remove(0);
        assert_eq!(got.bytes(), inputs[op.alias(&cx).unwrap()].as_ref().unwrap().bytes());
        Ok(got)
    }

    #[test]
    fn elements_are_found_behind_edits() {
        let dims = |t: Result<Tensor, OpError>| t.unwrap().shape().to_vec();
        assert_eq!(dims(pick(&[], 3, &[1])), [4]);
        assert_eq!(dims(pick(&[], 3, &[-1])), [1, 5]);
        let insert = |item, position| Edit::Insert { item, position };
        // 0 1 -> 2 0 1
        assert_eq!(dims(pick(&[insert(2, Some(0))], 2, &[0, 0])), [1, 5]);
        assert_eq!(dims(pick(&[insert(2, Some(0))], 2, &[2, 2])), [1, 5]);
        assert_eq!(dims(pick(&[insert(2, Some(0))], 2, &[-1, 1])), [1, 5]);
        assert_eq!(dims(pick(&[insert(2, None)], 2, &[2])), [1, 5]);
        assert_eq!(dims(pick(&[Edit::Erase { position: Some(0) }], 3, &[1, 1])), [1, 5]);
        assert_eq!(dims(pick(&[Edit::Erase { position: None }], 3, &[-1])), [4]);
    }

    #[test]
    fn positions_beyond_the_list_are_errors() {
        let fails = |edits: &[Edit], first, positions: &[i64]| {
            matches!(pick(edits, first, positions), Err(OpError::Value { .. }))
        };
        assert!(fails(&[], 3, &[3]) && fails(&[], 3, &[-4]) && fails(&[], 3, &[i64::MIN]));
        assert!(fails(&[], 0, &[0]));
        assert!(fails(&[Edit::Insert { item: 2, position: Some(0) }], 2, &[3, 0]));
        assert!(fails(&[Edit::Erase { position: Some(0) }], 3, &[3, 0]));
    }
}
