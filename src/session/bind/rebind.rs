//! Rebinding: earlier memory stays imported and recorded.

use super::binding::{Binding, check_info, position};
use super::memory::{Memory, Source, StageValue, owned};
use super::neighbours;
use super::slot::{Side, Slot};
use crate::graph::TensorInfo;
use crate::plan::{PlannedIo, StageInput};
use crate::recording::BufferRange;
use crate::session::error::{Error, SessionError};

/// Former sets of memory that a binding keeps imported and recorded.
const KEPT: usize = 8;

/// New memory for one input or output.
pub(in crate::session) struct MemoryChange<'e> {
    pub(in crate::session) side: Side,
    pub(in crate::session) at: usize,
    pub(in crate::session) source: Source<'e>,
}

impl<'e> Binding<'e> {
    /// Binds input `name` to other memory of the same shape, together with an output that is the same memory. The former
    /// memory stays imported and its commands stay recorded, so rebinding it is cheap.
    ///
    /// # Errors
    /// As [`crate::session::BindingBuilder::build`]; after an error the memory is unchanged.
    pub fn rebind_input(&mut self, name: &str, memory: Memory<'e>) -> Result<(), Error> {
        let i = position(&self.compiled.plan.inputs, "input", name)?;
        self.rebind_memory(vec![(Side::Input, i, memory)])
    }

    /// As [`Binding::rebind_input`], for output `name`.
    ///
    /// # Errors
    /// As there.
    pub fn rebind_output(&mut self, name: &str, memory: Memory<'e>) -> Result<(), Error> {
        let planned = self.compiled.plan.outputs.iter().any(|io| io.name == name);
        if let (false, Some(continuation), Some(_)) =
            (planned, &mut self.continuation, self.core.graph.output(name))
        {
            continuation.rebind_output(name, memory.into_source().split().0);
            self.has_run = false;
            return Ok(());
        }
        let o = position(&self.compiled.plan.outputs, "output", name)?;
        self.rebind_memory(vec![(Side::Output, o, memory)])
    }

    /// Binds inputs and outputs to other memory of the same shapes in one step, which costs less than one by one. Outputs
    /// of later stages are not among them ([`Binding::rebind_output`]).
    ///
    /// # Errors
    /// As [`Binding::rebind_input`]; [`SessionError::Apart`].
    pub fn rebind_all<'n>(
        &mut self,
        inputs: impl IntoIterator<Item = (&'n str, Memory<'e>)>,
        outputs: impl IntoIterator<Item = (&'n str, Memory<'e>)>,
    ) -> Result<(), Error> {
        let mut given = Vec::new();
        for (name, memory) in inputs {
            given.push((Side::Input, position(&self.compiled.plan.inputs, "input", name)?, memory));
        }
        for (name, memory) in outputs {
            given.push((Side::Output, position(&self.compiled.plan.outputs, "output", name)?, memory));
        }
        self.rebind_memory(given)
    }

    fn planned(&self, side: Side, at: usize) -> &PlannedIo {
        match side {
            Side::Input => &self.compiled.plan.inputs[at],
            Side::Output => &self.compiled.plan.outputs[at],
        }
    }

    /// Binds memory, and writes the values of inputs that are given by value.
    fn rebind_memory(&mut self, given: Vec<(Side, usize, Memory<'e>)>) -> Result<(), Error> {
        let (mut changes, mut values) = (Vec::with_capacity(given.len()), Vec::new());
        for (side, at, memory) in given {
            let io = self.planned(side, at);
            if let Some(shape) = memory.given_shape()
                && *shape != io.info.shape
            {
                check_info(io, &TensorInfo::new(io.info.dtype, shape.clone()))?;
            }
            let (source, value) = memory.into_source().split();
            if let Some(value) = &value {
                check_info(io, value.info())?;
            }
            values.extend(value.filter(|_| side == Side::Input).map(|value| (at, value)));
            changes.push(MemoryChange { side, at, source });
        }
        self.pair(&mut changes)?;
        if !changes.is_empty() {
            let outputs = changes.iter().any(|change| change.side == Side::Output);
            self.rebind(changes)?;
            self.has_run &= !outputs;
        }
        values.iter().try_for_each(|(at, value)| self.write_input(*at, value.bytes()))
    }

    /// Changes the other name of memory that is an input and an output too.
    fn pair(&self, changes: &mut Vec<MemoryChange<'e>>) -> Result<(), SessionError> {
        for n in 0..changes.len() {
            let MemoryChange { side, at, ref source } = changes[n];
            let Some(other) = self.planned(side, at).updated.map(|other| other as usize) else { continue };
            let of = if side == Side::Input { Side::Output } else { Side::Input };
            match changes.iter().find(|change| (change.side, change.at) == (of, other)) {
                None => {
                    let source = source.clone();
                    changes.push(MemoryChange { side: of, at: other, source });
                }
                Some(change) if change.source.key() == source.key() => {}
                Some(_) => {
                    let name = |side, at| self.planned(side, at).name.clone();
                    let (input, output) = if side == Side::Input { (at, other) } else { (other, at) };
                    let (input, output) = (name(Side::Input, input), name(Side::Output, output));
                    return Err(SessionError::Apart { input, output });
                }
            }
        }
        Ok(())
    }

    /// Binds inputs to tensors of other runs, and outputs to other memory, in one step.
    pub(in crate::session) fn rebind_values(
        &mut self,
        values: &[StageValue<'e>],
        outputs: &[(usize, Source<'e>)],
    ) -> Result<(), Error> {
        let mut changes = Vec::new();
        for (at, value) in values.iter().enumerate() {
            let current = &self.inputs[at].source;
            let (source, value) = value.source.clone().split();
            let fits = match value {
                // A value is written to the session's own memory, never to borrowed memory.
                Some(_) => current.is_own() || self.stage_inputs.contains_key(&at),
                None => source.key() == current.key() && source.key().is_some(),
            };
            if !fits {
                changes.push(MemoryChange { side: Side::Input, at, source });
            }
        }
        for (at, source) in outputs {
            if source.key() != self.outputs[*at].source.key() {
                changes.push(MemoryChange { side: Side::Output, at: *at, source: source.clone() });
            }
        }
        if !changes.is_empty() {
            self.rebind(changes)?;
        }
        self.write_values(values)
    }

    /// Writes the inputs that are values.
    pub(in crate::session) fn write_values(&self, values: &[StageValue<'e>]) -> Result<(), Error> {
        for (i, stage_value) in values.iter().enumerate() {
            if let Source::Own(Some(value)) = &stage_value.source {
                self.write_input(i, value.bytes())?;
            }
        }
        Ok(())
    }

    fn rebind(&mut self, changes: Vec<MemoryChange<'e>>) -> Result<(), Error> {
        let current = self.ranges();
        let mut old: Vec<(Side, usize, Slot<'e>)> = Vec::with_capacity(changes.len());
        let mut stage_inputs = Vec::new();
        let result = self.exchange(changes, &mut old, &mut stage_inputs).and_then(|()| {
            let wanted = self.ranges();
            match self.recorded.iter().position(|(ranges, _)| *ranges == wanted) {
                Some(k) => Ok(self.recorded.remove(k).1),
                None => self.prepare(),
            }
        });
        let prepared = match result {
            Ok(prepared) => prepared,
            Err(e) => {
                for (side, at, slot) in old.into_iter().rev() {
                    *self.slot_mut(side, at) = slot;
                }
                return Err(e);
            }
        };
        let before = std::mem::replace(&mut self.segments, prepared);
        keep(&mut self.recorded, (current, before), KEPT);
        let places = self.inputs.len() + self.outputs.len();
        for (side, at, slot) in old {
            if side == Side::Input {
                self.stage_inputs.remove(&at);
            }
            keep(&mut self.spare, (side, at, slot), KEPT.max(2 * places));
        }
        for (input, source, own) in stage_inputs {
            if let (StageInput::Input(i), Some(region)) = (input, own) {
                self.stage_inputs.insert(i, region);
            }
            if let Some(continuation) = &mut self.continuation {
                continuation.set_stage_input(input, &source);
            }
        }
        Ok(())
    }

    /// Replaces slots by those of other memory; replaced slots go to `old`, inputs of later stages to `stage_inputs`.
    fn exchange(
        &mut self,
        changes: Vec<MemoryChange<'e>>,
        old: &mut Vec<(Side, usize, Slot<'e>)>,
        stage_inputs: &mut Vec<StageInputChange<'e>>,
    ) -> Result<(), Error> {
        let tensors: Vec<_> = (changes.iter())
            .filter(|change| self.spare_of(change.side, change.at, &change.source).is_none())
            .map(|change| (change.side, self.planned(change.side, change.at), &change.source))
            .collect();
        let _held = neighbours::hold(&tensors, &self.core.devices, self.policy);
        for MemoryChange { side, at, mut source } in changes {
            let input = if side == Side::Input { StageInput::Input(at) } else { StageInput::Head(at) };
            if self.compiled.stage.as_ref().is_some_and(|s| s.stage_inputs().any(|i| i == input)) {
                let mut own = None;
                if source.is_own() {
                    let (region, placed) = owned(&self.planned(side, at).info)?;
                    (source, own) = (placed, Some(region));
                }
                stage_inputs.push((input, source.clone(), own));
            }
            let slot = match self.spare_of(side, at, &source) {
                Some(k) => self.spare.remove(k).2,
                None => Slot::new(source, self.planned(side, at), side, &self.core.devices, self.policy)?,
            };
            old.push((side, at, std::mem::replace(self.slot_mut(side, at), slot)));
        }
        Ok(())
    }

    /// The position of a slot that is imported for this memory already.
    fn spare_of(&self, side: Side, at: usize, source: &Source<'e>) -> Option<usize> {
        let key = source.key()?;
        let fits =
            |(s, i, slot): &(Side, usize, Slot<'e>)| (*s, *i) == (side, at) && slot.source.key() == Some(key);
        self.spare.iter().position(fits)
    }

    fn slot_mut(&mut self, side: Side, at: usize) -> &mut Slot<'e> {
        match side {
            Side::Input => &mut self.inputs[at],
            Side::Output => &mut self.outputs[at],
        }
    }

    fn ranges(&self) -> Vec<BufferRange> {
        self.inputs.iter().chain(&self.outputs).flat_map(Slot::ranges).collect()
    }
}

/// New memory that later stages read, with its region where the session allocated it.
type StageInputChange<'e> =
    (StageInput, Source<'e>, Option<std::sync::Arc<crate::memory::host::SharedRegion>>);

fn keep<T>(kept: &mut Vec<T>, item: T, most: usize) {
    if kept.len() >= most {
        kept.remove(0);
    }
    kept.push(item);
}
