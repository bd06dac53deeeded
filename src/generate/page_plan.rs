//! Plans and inputs of runs with a cache in pages.

use super::cache::CacheTensor;
use super::error::GenerateError;
use super::io::DecoderIo;
use crate::graph::TensorInfo;
use crate::plan::Plan;
use crate::session::{BindingBuilder, Memory, Session};
use crate::shape::Shape;

/// Type and shape of a tensor of `pages` pages of `rows` tokens.
pub(super) fn paged_info(
    tensor: &CacheTensor,
    pages: usize,
    rows: usize,
) -> Result<TensorInfo, GenerateError> {
    let shape = Shape::new([pages, rows, tensor.heads(), tensor.info.shape[3]])?;
    Ok(TensorInfo::new(tensor.info.dtype, shape))
}

/// Inputs in memory of the session's own for `tokens` of `sequences`, each of at most `pages` pages, and the logits of
/// `wanted` tokens where the graph gives those of some.
pub(super) fn inputs(
    session: &Session,
    io: &DecoderIo,
    [tokens, sequences, pages]: [usize; 3],
    wanted: usize,
) -> Result<BindingBuilder<'static>, GenerateError> {
    let own = |sizes: &[usize]| Ok::<_, GenerateError>(Memory::own().shape(Shape::new(sizes)?));
    let mut builder = session.bind().input(&io.ids.name, own(&[tokens])?);
    if let Some(positions) = &io.positions {
        builder = builder.input(&positions.name, own(&[tokens])?);
    }
    if let Some(io) = &io.pages {
        builder = builder.input(&io.ends.name, own(&[sequences + 1])?);
        builder = builder.input(&io.past.name, own(&[sequences])?);
        builder = builder.input(&io.table.name, own(&[sequences, pages])?);
        if let Some(rows) = &io.wanted {
            builder = builder.input(&rows.name, own(&[wanted])?);
        }
    }
    match &io.scan {
        Some(scan) => scan.inputs(builder, sequences),
        None => Ok(builder),
    }
}

/// The plan of one token with caches of so many pages.
pub(super) fn plan_one(
    session: &Session,
    io: &DecoderIo,
    tensors: &[CacheTensor],
    pages: usize,
    rows: usize,
) -> Result<Plan, GenerateError> {
    let mut builder = inputs(session, io, [1, 1, 1], 1)?;
    for tensor in tensors {
        let memory = Memory::own().shape(paged_info(tensor, pages, rows)?.shape);
        builder = builder.update(&tensor.past, &tensor.present, memory);
    }
    let plan = builder.plan()?;
    for tensor in tensors {
        let present = plan.outputs.iter().find(|io| io.name == tensor.present);
        if present.is_none_or(|io| io.updated.is_none()) {
            let what = format!("a graph that does not update {:?} in place", tensor.past);
            return Err(GenerateError::Unsupported(what));
        }
    }
    Ok(plan)
}
