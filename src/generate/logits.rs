//! The logits of a bound run, of which the host gets some rows.

use half::f16;

use super::error::GenerateError;
use super::io::DecoderIo;
use crate::backend::BufferDesc;
use crate::device::Buffer;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::memory::model::Placement;
use crate::ops::halves::Half;
use crate::plan::PlannedIo;
use crate::session::{Binding, BindingBuilder, Memory, Session, SessionError};
use crate::shape::Shape;

/// The part of their range by which rounding may change numbers.
const ROUNDING: f32 = 0.01;

/// Whether numbers differ by rounding alone.
pub(super) fn near(wanted: &[f32], found: &[f32]) -> bool {
    let (least, most) = wanted.iter().fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= ROUNDING * (most - least);
    !wanted.is_empty() && wanted.len() == found.len() && wanted.iter().zip(found).all(is_near)
}

/// Where the logits of a run are.
#[derive(Debug)]
pub(super) struct Logits {
    info: TensorInfo,
    /// Where they stay on their device, and what copies one row to the host.
    own: Option<DeviceLogits>,
}

#[derive(Debug)]
struct DeviceLogits {
    device: u32,
    all: Buffer,
    row: Buffer,
}

impl Logits {
    /// Binds the logits of a run: those of several tokens stay on a device that a bus separates from the host, and those
    /// that a device chooses from.
    pub(super) fn bind(
        session: &Session,
        io: &DecoderIo,
        mut builder: BindingBuilder<'static>,
    ) -> Result<(Self, BindingBuilder<'static>), GenerateError> {
        let plan = builder.plan()?;
        let logits = plan.outputs.iter().find(|planned| planned.name == io.logits);
        let planned = logits.ok_or(SessionError::NotRun)?;
        let own = if planned.info.elements() > io.vocabulary || io.scan.is_some() {
            DeviceLogits::new(session, io, planned)?
        } else {
            None
        };
        if let Some(own) = &own {
            builder = builder.output(&io.logits, Memory::buffer(&own.all));
        }
        Ok((Logits { info: planned.info.clone(), own }, builder))
    }

    /// Tokens of each sequence that have logits: all of the run, or the last one. Without padding all are of one sequence.
    pub(super) fn rows(&self) -> usize {
        self.info.shape.dims().iter().rev().nth(1).copied().unwrap_or(1)
    }

    /// The line of token `row` of `sequence`.
    pub(super) fn line(&self, sequence: usize, row: usize) -> usize {
        sequence * self.rows() + row.min(self.rows().saturating_sub(1))
    }

    /// The logits of token `row` of `sequence` in the last run of `binding`.
    pub(super) fn row(
        &self,
        session: &Session,
        io: &DecoderIo,
        binding: &Binding<'static>,
        sequence: usize,
        row: usize,
    ) -> Result<Vec<f32>, GenerateError> {
        let info = TensorInfo::new(self.info.dtype, Shape::new([io.vocabulary])?);
        let start = self.line(sequence, row) * info.bytes();
        let read = |bytes: &mut [u8]| match &self.own {
            Some(own) => own.copy(session, start, bytes),
            None => io.copy_logits(binding, start, bytes),
        };
        let mut logits = vec![0f32; io.vocabulary];
        match info.dtype {
            DType::F32 => read(bytemuck::cast_slice_mut(&mut logits))?,
            DType::F16 => {
                let mut halves = vec![f16::ZERO; io.vocabulary];
                read(bytemuck::cast_slice_mut(&mut halves))?;
                f16::widen_all(&halves, &mut logits);
            }
            _ => return Ok(Tensor::build(info, read)?.to_f32s()?),
        }
        Ok(logits)
    }
}

impl DeviceLogits {
    /// Memory for logits that a bus separates from the host.
    fn new(session: &Session, io: &DecoderIo, planned: &PlannedIo) -> Result<Option<Self>, GenerateError> {
        let [device] = planned.devices[..] else { return Ok(None) };
        let Some(context) = session.context(device as usize) else { return Ok(None) };
        if context.info().native || context.info().memory.shares_host_memory() {
            return Ok(None);
        }
        let buffer = |bytes: usize, placement, label| {
            let bytes = (bytes as u64).max(16).next_multiple_of(16);
            context.create_buffer(&BufferDesc { bytes, placement, label })
        };
        let all = buffer(planned.info.bytes(), Placement::Device, "logits")?;
        let row_bytes = planned.info.dtype.bytes() * io.vocabulary;
        let row = buffer(row_bytes, Placement::Readback, "logits of one token")?;
        Ok(Some(DeviceLogits { device, all, row }))
    }

    fn copy(&self, session: &Session, start: usize, bytes: &mut [u8]) -> Result<(), GenerateError> {
        let Some(context) = session.context(self.device as usize) else { return Ok(()) };
        let len = bytes.len() as u64;
        let (from, to) = (self.all.sub_buffer(start as u64, len)?, self.row.sub_buffer(0, len)?);
        context.queue()?.enqueue_copy(&from, &to)?.wait()?;
        Ok(to.map_read()?.copy_to(bytes)?)
    }
}
