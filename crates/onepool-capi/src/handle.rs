//! The table that knows every handle: what C holds is a number, which is never followed.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use crate::arg::{Out, Place};
use crate::status::{Failure, Status, guard};
use onepool_core::sync::{read, write};

/// What a handle stands for.
pub(crate) trait Object: Any + Send + Sync {
    /// Its name in messages.
    const KIND: &'static str;
}

/// What lies at a pointer to a handle: nothing.
#[repr(C)]
#[derive(Debug)]
pub struct Opaque {
    nothing: [u8; 0],
}

/// A handle as C passes it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Handle(*mut Opaque);

struct Entry {
    kind: &'static str,
    object: Arc<dyn Any + Send + Sync>,
}

static TABLE: RwLock<BTreeMap<usize, Entry>> = RwLock::new(BTreeMap::new());

/// The next number; none is given twice, so a freed handle stays unknown.
static NEXT: AtomicUsize = AtomicUsize::new(STEP);

/// Numbers look like aligned addresses.
const STEP: usize = 16;

impl Handle {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// What the handle stands for.
    pub(crate) fn get<T: Object>(self, argument: &str) -> Result<Arc<T>, Failure> {
        let table = read(&TABLE);
        let entry = table.get(&self.0.addr()).ok_or_else(|| self.unknown::<T>(argument))?;
        let object = Arc::clone(&entry.object);
        object.downcast().map_err(|_| wrong::<T>(argument, entry.kind))
    }

    /// Forgets the handle; gives what it stood for.
    pub(crate) fn take<T: Object>(self, argument: &str) -> Result<Arc<T>, Failure> {
        let mut table = write(&TABLE);
        let entry = table.get(&self.0.addr()).ok_or_else(|| self.unknown::<T>(argument))?;
        let object = Arc::clone(&entry.object).downcast().map_err(|_| wrong::<T>(argument, entry.kind))?;
        table.remove(&self.0.addr());
        Ok(object)
    }

    fn unknown<T: Object>(self, argument: &str) -> Failure {
        let problem = if self.is_null() { "is null" } else { "was freed, or is no handle" };
        Failure::new(
            Status::InvalidHandle,
            format!("argument `{argument}` {problem}; expected a {}", T::KIND),
        )
    }
}

fn wrong<T: Object>(argument: &str, kind: &str) -> Failure {
    Failure::new(Status::InvalidHandle, format!("argument `{argument}` is a {kind}, expected a {}", T::KIND))
}

/// Gives `object` a handle, which goes to `place`.
pub(crate) fn publish<T: Object>(object: T, place: Place<Handle>) {
    let number = NEXT.fetch_add(STEP, Ordering::Relaxed);
    let entry = Entry { kind: T::KIND, object: Arc::new(object) };
    write(&TABLE).insert(number, entry);
    place.set(Handle(std::ptr::without_provenance_mut(number)));
}

/// Frees a handle of one kind; null is no handle and no error.
pub(crate) fn free<T: Object>(handle: Handle, argument: &str) -> Status {
    guard(|| if handle.is_null() { Ok(()) } else { handle.take::<T>(argument).map(drop) })
}

/// `onepool_live_handles` of the header.
///
/// # Safety
/// `count` is as the header says.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_live_handles(count: Out<usize>) -> Status {
    guard(|| {
        let count = count.place("count")?;
        count.set(read(&TABLE).len());
        Ok(())
    })
}
