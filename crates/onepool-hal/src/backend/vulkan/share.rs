//! What a device of an application's has beyond others.

use std::any::Any;
use std::sync::Arc;

/// Calls what it is given while no one else uses the queue; it calls it once, and returns after.
pub type QueueLock = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// The application's part in its device.
#[derive(Clone, Default)]
pub(super) struct Share {
    pub(super) lock: Option<QueueLock>,
    /// Kept as long as the device is used.
    pub(super) owner: Option<Arc<dyn Any + Send + Sync>>,
}
