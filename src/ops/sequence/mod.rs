//! What remains of ONNX's operators over sequences when the loader has taken the sequences away: a sequence is
//! never a value here, only the tensors that are taken from one, or two tensors that hold all of a list that is
//! known only in the run.

mod join;
mod packed;
mod pick;
mod piece;

pub use join::Join;
pub(crate) use packed::{COLUMNS, row};
pub use packed::{JoinList, MAX_ELEMENTS, Pack, PackCut, Part, Splice, Unpack, pack, unpack};
pub use pick::{Edit, MAX_POSITIONS, Pick};
pub use piece::{Piece, PieceCount};

#[cfg(test)]
mod tests;
