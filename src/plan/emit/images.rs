//! Images of a plan, and arguments that are read or written through them.

use super::Emitter;
use crate::memory::image::{Filter, ImageDesc, ImageView};
use crate::plan::flow::{Flow, ValueId};
use crate::plan::lowering::PlanCx;
use crate::plan::memory_plan::MemoryPlan;
use crate::plan::{Domain, Location, PlannedImage, Space};

/// The images of values that lie in an arena.
pub(super) fn planned(cx: &PlanCx<'_>, flow: &Flow, memory: &MemoryPlan) -> Vec<PlannedImage> {
    let placed = flow.images.keys().filter_map(|&v| {
        let (loc, image) = in_arena(cx, flow, memory, v)?;
        let Space::Arena(arena) = loc.space else { return None };
        match memory.arenas.get(arena as usize)?.domain {
            Domain::Device(device) => Some(PlannedImage { device, loc, image }),
            Domain::Host => None,
        }
    });
    placed.collect()
}

/// The image of value `v` and the memory it takes, where it lies in an arena.
fn in_arena(cx: &PlanCx<'_>, flow: &Flow, memory: &MemoryPlan, v: ValueId) -> Option<(Location, ImageDesc)> {
    let image = *flow.images.get(&v)?;
    let root = memory.classes.root(v);
    let (arena, offset) = *memory.placed.get(&root)?;
    let device = memory.lifetimes.get(&root)?.devices.first()?;
    let rules = cx.devices.get(*device as usize)?.images.as_ref()?;
    let bytes = rules.memory_bytes(&image);
    Some((Location { space: Space::Arena(arena), offset, bytes }, image))
}

impl Emitter<'_> {
    /// Argument `index` of a command on `device` as an image, where value `v` lies in one.
    pub(super) fn image_arg(
        &mut self,
        v: Option<ValueId>,
        device: u32,
        (index, filter): (usize, Filter),
        images: &mut Vec<(u32, ImageView)>,
    ) -> Option<Location> {
        let (loc, image) = match in_arena(self.cx, &self.lowered.flow, self.memory, v?) {
            Some(found) => found,
            None => self.constant_image(v?, device)?,
        };
        images.push((index as u32, ImageView { image, filter }));
        Some(loc)
    }

    /// The image of constant `v` and its memory, which nothing else shares.
    fn constant_image(&mut self, v: ValueId, device: u32) -> Option<(Location, ImageDesc)> {
        let flow = &self.lowered.flow;
        let image = *flow.images.get(&v)?;
        let value = flow.values.get(v)?;
        let (name, tensor) = (value.name.clone(), value.constant.clone()?);
        let bytes = self.cx.devices.get(device as usize)?.images.as_ref()?.memory_bytes(&image);
        let index = self.constants.add(device, name, tensor, None, Some((image, bytes)));
        Some((Location { space: Space::Constant(index), offset: 0, bytes }, image))
    }
}
