//! Other memory for a binding: what was bound before stays imported and recorded.

use super::binding::{Binding, check_info, position};
use super::slot::{Side, Slot, Source};
use crate::graph::TensorInfo;
use crate::plan::{Feed, PlannedIo};
use crate::recording::BufferRange;
use crate::session::binding_builder::Memory;
use crate::session::error::Error;
use crate::session::stages::continuation::{Held, owned};

/// How many sets of memory a binding keeps imported and recorded in addition to the one in use.
const KEPT: usize = 8;

/// Other memory for one input or output.
pub(in crate::session) struct Change<'e> {
    pub(in crate::session) side: Side,
    pub(in crate::session) at: usize,
    pub(in crate::session) source: Source<'e>,
}

impl<'e> Binding<'e> {
    /// Binds input `name` to other memory of the same shape. Memory that this binding had before is still
    /// imported and its commands still recorded, so going back to it costs next to nothing.
    ///
    /// # Errors
    /// As [`crate::session::BindingBuilder::build`]; after an error the memory is as it was.
    pub fn rebind_input(&mut self, name: &str, memory: Memory<'e>) -> Result<(), Error> {
        let i = position(&self.compiled.plan.inputs, "input", name)?;
        self.rebind_one(Side::Input, i, memory)
    }

    /// As [`Binding::rebind_input`], for output `name`.
    ///
    /// # Errors
    /// As there.
    pub fn rebind_output(&mut self, name: &str, memory: Memory<'e>) -> Result<(), Error> {
        let planned = self.compiled.plan.outputs.iter().any(|io| io.name == name);
        if let (false, Some(rest), Some(_)) = (planned, &mut self.rest, self.inner.graph.output(name)) {
            rest.rebind_output(name, memory.into_source().0);
            self.has_run = false;
            return Ok(());
        }
        let o = position(&self.compiled.plan.outputs, "output", name)?;
        self.rebind_one(Side::Output, o, memory)?;
        self.has_run = false;
        Ok(())
    }

    fn planned(&self, side: Side, at: usize) -> &PlannedIo {
        match side {
            Side::Input => &self.compiled.plan.inputs[at],
            Side::Output => &self.compiled.plan.outputs[at],
        }
    }

    fn rebind_one(&mut self, side: Side, at: usize, memory: Memory<'e>) -> Result<(), Error> {
        let io = self.planned(side, at);
        if let Some(shape) = memory.given_shape()
            && *shape != io.info.shape
        {
            check_info(io, &TensorInfo::new(io.info.dtype, shape.clone()))?;
        }
        let (source, value) = memory.into_source();
        if let Some(value) = &value {
            check_info(io, value.info())?;
        }
        self.rebind(vec![Change { side, at, source }])?;
        match (side, value) {
            (Side::Input, Some(value)) => self.write_input(at, value.bytes()),
            _ => Ok(()),
        }
    }

    /// Gives inputs the tensors of other runs, and outputs other memory, all at once.
    pub(in crate::session) fn refill(
        &mut self,
        fed: &[Held<'e>],
        outputs: &[(usize, Source<'e>)],
    ) -> Result<(), Error> {
        let mut changes = Vec::new();
        for (at, held) in fed.iter().enumerate() {
            let current = &self.inputs[at].source;
            let (source, value) = held.source();
            let fits = match value {
                // A value goes to memory of the session's own, never to memory that was lent.
                Some(_) => matches!(current, Source::Value) || self.fed.contains_key(&at),
                None => source.key() == current.key() && source.key().is_some(),
            };
            if !fits {
                changes.push(Change { side: Side::Input, at, source });
            }
        }
        for (at, source) in outputs {
            if source.key() != self.outputs[*at].source.key() {
                changes.push(Change { side: Side::Output, at: *at, source: source.clone() });
            }
        }
        if !changes.is_empty() {
            self.rebind(changes)?;
        }
        self.fill(fed)
    }

    /// Writes the inputs that are given by value.
    pub(in crate::session) fn fill(&self, fed: &[Held<'e>]) -> Result<(), Error> {
        for (i, held) in fed.iter().enumerate() {
            if let (_, Some(value)) = held.source() {
                self.write_input(i, value.bytes())?;
            }
        }
        Ok(())
    }

    fn rebind(&mut self, changes: Vec<Change<'e>>) -> Result<(), Error> {
        let current = self.ranges();
        let mut old: Vec<(Side, usize, Slot<'e>)> = Vec::with_capacity(changes.len());
        let mut fed = Vec::new();
        let result = self.exchange(changes, &mut old, &mut fed).and_then(|()| {
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
                self.fed.remove(&at);
            }
            keep(&mut self.spare, (side, at, slot), KEPT.max(2 * places));
        }
        for (feed, source, own) in fed {
            if let (Feed::Input(i), Some(region)) = (feed, own) {
                self.fed.insert(i, region);
            }
            if let Some(rest) = &mut self.rest {
                rest.refeed(feed, &source);
            }
        }
        Ok(())
    }

    /// Puts slots for other memory in place; what they replace goes to `old`, what later stages read to `fed`.
    fn exchange(
        &mut self,
        changes: Vec<Change<'e>>,
        old: &mut Vec<(Side, usize, Slot<'e>)>,
        fed: &mut Vec<Refed<'e>>,
    ) -> Result<(), Error> {
        for Change { side, at, mut source } in changes {
            let feed = if side == Side::Input { Feed::Input(at) } else { Feed::Head(at) };
            if self.compiled.stage.as_ref().is_some_and(|s| s.feeds().any(|f| f == feed)) {
                let mut own = None;
                if matches!(source, Source::Value) {
                    let (region, placed) = owned(&self.planned(side, at).info)?;
                    (source, own) = (placed, Some(region));
                }
                fed.push((feed, source.clone(), own));
            }
            let key = source.key();
            let known = self
                .spare
                .iter()
                .position(|(s, i, slot)| (*s, *i) == (side, at) && key.is_some() && slot.source.key() == key);
            let slot = match known {
                Some(k) => self.spare.remove(k).2,
                None => Slot::new(source, self.planned(side, at), side, &self.inner.devices, self.policy)?,
            };
            old.push((side, at, std::mem::replace(self.slot_mut(side, at), slot)));
        }
        Ok(())
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

/// Memory that later stages read: the session's own where it is.
type Refed<'e> = (Feed, Source<'e>, Option<std::sync::Arc<crate::memory::host::SharedRegion>>);

fn keep<T>(kept: &mut Vec<T>, item: T, most: usize) {
    if kept.len() >= most {
        kept.remove(0);
    }
    kept.push(item);
}
