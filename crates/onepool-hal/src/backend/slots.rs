//! Tables of objects that handles name: a backend's buffers, kernels and prepared recordings.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use super::DeviceError;
use crate::recording::{BufferId, DeviceKernelId, PreparedId};

/// A handle made of a slot and the generation of the slot's owner.
pub trait Handle: Copy {
    /// What the handle names, for messages.
    const OBJECT: &'static str;

    /// The handle of `index` and `generation`.
    fn new(index: u32, generation: u32) -> Self;

    /// The slot.
    fn index(self) -> u32;

    /// The generation of the slot's owner.
    fn generation(self) -> u32;
}

macro_rules! handle {
    ($name:ident, $object:literal) => {
        impl Handle for $name {
            const OBJECT: &'static str = $object;

            fn new(index: u32, generation: u32) -> Self {
                $name { index, generation }
            }

            fn index(self) -> u32 {
                self.index
            }

            fn generation(self) -> u32 {
                self.generation
            }
        }
    };
}

handle!(BufferId, "buffer");
handle!(DeviceKernelId, "kernel");
handle!(PreparedId, "prepared recording");

/// Generations come from one counter of the process, so that a handle of another table is told from
/// one of this table and not only a handle of a former owner of the slot.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Objects named by handles; a handle whose object was removed never names another.
#[derive(Debug)]
pub struct SlotTable<H, T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    handle: PhantomData<fn() -> H>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<H: Handle, T> SlotTable<H, T> {
    /// A table without objects.
    pub const fn new() -> Self {
        SlotTable { slots: Vec::new(), free: Vec::new(), handle: PhantomData }
    }

    /// Puts `value` into a free slot.
    pub fn insert(&mut self, value: T) -> H {
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
        let slot = Slot { generation, value: Some(value) };
        while let Some(index) = self.free.pop() {
            if let Some(entry) = self.slots.get_mut(index as usize) {
                *entry = slot;
                return H::new(index, generation);
            }
        }
        let index = self.slots.len() as u32;
        self.slots.push(slot);
        H::new(index, generation)
    }

    /// The object that `handle` names.
    ///
    /// # Errors
    /// [`DeviceError::Stale`] for a handle of another table or of a removed object.
    pub fn get(&self, handle: H) -> Result<&T, DeviceError> {
        self.slots
            .get(handle.index() as usize)
            .filter(|slot| slot.generation == handle.generation())
            .and_then(|slot| slot.value.as_ref())
            .ok_or(DeviceError::Stale { object: H::OBJECT })
    }

    /// The object that `handle` names, to change it.
    ///
    /// # Errors
    /// As [`SlotTable::get`].
    pub fn get_mut(&mut self, handle: H) -> Result<&mut T, DeviceError> {
        self.slots
            .get_mut(handle.index() as usize)
            .filter(|slot| slot.generation == handle.generation())
            .and_then(|slot| slot.value.as_mut())
            .ok_or(DeviceError::Stale { object: H::OBJECT })
    }

    /// Takes the object that `handle` names out of the table.
    ///
    /// # Errors
    /// As [`SlotTable::get`].
    pub fn remove(&mut self, handle: H) -> Result<T, DeviceError> {
        let stale = DeviceError::Stale { object: H::OBJECT };
        let slot = self
            .slots
            .get_mut(handle.index() as usize)
            .filter(|slot| slot.generation == handle.generation())
            .ok_or(stale.clone())?;
        let value = slot.value.take().ok_or(stale)?;
        self.free.push(handle.index());
        Ok(value)
    }

    /// Takes every object out of the table.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.free.clear();
        self.slots.drain(..).filter_map(|slot| slot.value)
    }

    /// The objects, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<H: Handle, T> Default for SlotTable<H, T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_removed_object_stays_removed_when_its_slot_is_used_again() {
        let mut table = SlotTable::<BufferId, &str>::new();
        let a = table.insert("a");
        assert_eq!(table.remove(a), Ok("a"));
        let b = table.insert("b");
        assert_eq!(a.index, b.index);
        assert_eq!(table.get(a), Err(DeviceError::Stale { object: "buffer" }));
        assert_eq!(table.remove(a), Err(DeviceError::Stale { object: "buffer" }));
        assert_eq!(table.get_mut(b), Ok(&mut "b"));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_handle_of_another_table_is_refused() {
        let mut one = SlotTable::<DeviceKernelId, u8>::new();
        let mut two = SlotTable::<DeviceKernelId, u8>::new();
        let a = one.insert(1);
        let b = two.insert(2);
        assert_eq!((a.index, b.index), (0, 0));
        assert_eq!(two.get(a), Err(DeviceError::Stale { object: "kernel" }));
        assert_eq!(one.get(b), Err(DeviceError::Stale { object: "kernel" }));
    }

    #[test]
    fn draining_leaves_an_empty_table_that_works() {
        let mut table = SlotTable::<PreparedId, u8>::new();
        let (a, b) = (table.insert(1), table.insert(2));
        assert_eq!(table.remove(a), Ok(1));
        assert_eq!(table.drain().collect::<Vec<_>>(), [2]);
        assert!(table.is_empty());
        let c = table.insert(3);
        assert_eq!((table.get(b).is_err(), table.get(c)), (true, Ok(&3)));
    }

    proptest! {
        /// Against a map from handle to value.
        #[test]
        fn behaves_as_a_map(steps in proptest::collection::vec((any::<bool>(), any::<proptest::sample::Index>()), 0..200)) {
            let mut table = SlotTable::<BufferId, usize>::new();
            let mut model = std::collections::HashMap::new();
            let mut seen = Vec::new();
            for (step, (insert, which)) in steps.into_iter().enumerate() {
                if insert || seen.is_empty() {
                    let handle = table.insert(step);
                    prop_assert!(model.insert(handle, step).is_none());
                    seen.push(handle);
                } else {
                    let handle: BufferId = seen[which.index(seen.len())];
                    prop_assert_eq!(table.remove(handle).ok(), model.remove(&handle));
                }
                prop_assert_eq!(table.len(), model.len());
                for handle in &seen {
                    prop_assert_eq!(table.get(*handle).ok(), model.get(handle));
                }
            }
        }
    }
}
