//! Devices that several sessions open by name.

use std::sync::{Arc, Mutex};

use crate::backend::ContextDesc;
use crate::device::Context;
use crate::registry::{OpenError, Registry};
use crate::sync::lock;

/// Devices that sessions open by the same names, each once, as the first session asks: what
/// [`SessionBuilder::shared_devices`](crate::session::SessionBuilder::shared_devices) is given. Those sessions have one
/// queue of a device, one team of threads of the CPU, and what a [`SharedArena`](crate::session::SharedArena) and a
/// [`ParamStore`](crate::session::ParamStore) have for each context.
#[derive(Debug, Default)]
pub struct SharedDevices {
    opened: Mutex<Vec<Opened>>,
}

#[derive(Debug)]
struct Opened {
    name: String,
    /// How many entries of its session's table have the same name and come first.
    number: usize,
    context: Context,
}

impl SharedDevices {
    /// None yet.
    pub fn new() -> Arc<SharedDevices> {
        Arc::default()
    }

    /// The device `name`, of which a session has `number` before.
    pub(super) fn open(
        &self,
        registry: &Registry,
        (name, number): (&str, usize),
        desc: &ContextDesc,
    ) -> Result<Context, OpenError> {
        let mut opened = lock(&self.opened);
        if let Some(one) = opened.iter().find(|one| one.name == name && one.number == number) {
            return Ok(one.context.clone());
        }
        let context = registry.open(name, desc)?;
        opened.push(Opened { name: name.to_owned(), number, context: context.clone() });
        Ok(context)
    }
}
