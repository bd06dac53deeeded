//! Attention and what comes with it: positions, caches, gates, linear attention.

mod attention_op;
mod device;
mod scaled;
#[cfg(test)]
mod tests;

pub use attention_op::Attention;

use super::real::FLOATS;
use super::{AttrReader, Family, OpDef, OpError, Operator};
use std::sync::Arc;

type Read = fn(&mut AttrReader<'_>, i64) -> Result<Arc<dyn Operator>, OpError>;

const fn row(name: &'static str, since: i64, read: Read) -> OpDef {
    OpDef { name, domain: "", since, types: FLOATS, gpu: true, read }
}

/// The family's rows.
pub const FAMILY: Family =
    Family { name: "attention", ops: &[row("Attention", 23, attention_op::read)] };
