//! Convolutions.

mod channels;
pub(crate) mod columns;
pub(crate) mod conv_op;
mod depthwise;
mod device;
pub(crate) mod dims;
mod direct;
pub mod fold;
mod fused;
mod image;
mod many;
mod scatter;
mod shifted;
mod transpose;
mod unfold;
mod winograd;

pub use conv_op::Conv;
pub use transpose::ConvTranspose;

use super::real::FLOATS;
use super::{Activation, Family, OpDef};

/// What a convolution does with its sums once the bias is added.
#[derive(Clone, Copy, Debug)]
struct After {
    /// Applied last.
    activation: Activation,
    /// Whether input 3 is added before.
    summed: bool,
    /// Whether input 2 has slopes of channels after their biases; the activation is none then.
    sloped: bool,
}

impl From<Activation> for After {
    fn from(activation: Activation) -> After {
        After { activation, summed: false, sloped: false }
    }
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "conv",
    ops: &[
        OpDef { name: "Conv", domain: "", since: 1, types: FLOATS, gpu: true, read: conv_op::read },
        OpDef {
            name: "ConvTranspose",
            domain: "",
            since: 1,
            types: FLOATS,
            gpu: true,
            read: transpose::read,
        },
        OpDef {
            name: "FusedConv",
            domain: "com.microsoft",
            since: 1,
            types: FLOATS,
            gpu: true,
            read: fused::read,
        },
    ],
};
