//! Turns at the validation layer.
//!
//! The layer finds what it knows of a device or an instance in one table of the process, which it neither reads nor
//! changes under a lock (KhronosGroup/Vulkan-ValidationLayers issue 4391; 1.3.239 was seen to crash): a call finds the
//! table broken while another thread makes or destroys a device or an instance. The loader's list of devices is such a
//! table for these four calls themselves (KhronosGroup/Vulkan-Loader issue 2018). The specification asks callers for no
//! order here, so this module makes one: [`alone`] for the four, a [`Turn`] for every call that goes through the layer.

use onepool_core::sync::{read, write};
use std::cell::Cell;
use std::ops::Deref;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static TABLE: RwLock<()> = RwLock::new(());

thread_local! {
    // The first of a thread's turns holds the lock: a second reader of the lock might wait for a writer that
    // waits for the first.
    static TURNS: Cell<usize> = const { Cell::new(0) };
}

/// Whether calls of an instance and its devices go through the layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) is_on: bool,
}

/// While it lives, no device and no instance is made or destroyed. Costs nothing where the layer is off.
pub(super) struct Turn {
    is_counted: bool,
    _lock: Option<RwLockReadGuard<'static, ()>>,
}

impl Layer {
    pub(super) fn turn(self) -> Turn {
        if !self.is_on {
            return Turn { is_counted: false, _lock: None };
        }
        let turns = TURNS.get();
        TURNS.set(turns + 1);
        Turn { is_counted: true, _lock: (turns == 0).then(|| read(&TABLE)) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_counted {
            TURNS.set(TURNS.get() - 1);
        }
    }
}

/// While it lives, a device or an instance may be made or destroyed. The thread must have no [`Turn`].
pub(super) fn alone() -> RwLockWriteGuard<'static, ()> {
    debug_assert_eq!(TURNS.get(), 0);
    write(&TABLE)
}

/// The functions of a device or an instance, with a turn to call them.
pub(super) struct Calls<'a, T> {
    functions: &'a T,
    _turn: Turn,
}

impl<'a, T> Calls<'a, T> {
    pub(super) fn new(functions: &'a T, layer: Layer) -> Self {
        Calls { functions, _turn: layer.turn() }
    }
}

impl<T> Deref for Calls<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.functions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_of_a_thread_are_one_and_end_with_the_last() {
        let on = Layer { is_on: true };
        let outer = on.turn();
        let inner = on.turn();
        assert!(outer._lock.is_some() && inner._lock.is_none());
        assert!(TABLE.try_write().is_err());
        drop(inner);
        assert!(TABLE.try_write().is_err());
        drop(outer);
        assert_eq!(TURNS.get(), 0);
        drop(alone());
        assert!(Layer { is_on: false }.turn()._lock.is_none());
    }
}
