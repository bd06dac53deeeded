//! What remains of ONNX's operators over sequences when the loader has taken the sequences away: a sequence is
//! never a value here, only the tensors that are taken from one.

mod join;
mod pick;
mod piece;

pub use join::Join;
pub use pick::{Edit, MAX_POSITIONS, Pick};
pub use piece::{Piece, PieceCount};
