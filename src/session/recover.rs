//! Sessions that continue after a device was lost or memory ran out.

use std::sync::Arc;

use crate::backend::ContextDesc;
use crate::device::Context;
use crate::graph::Graph;
use crate::ops::control::Control;
use crate::registry::Registry;
use crate::session::Session;
use crate::session::core::SessionCore;
use crate::session::core::device::Device;
use crate::session::error::{Error, SessionError};

/// How the device table of a session was opened.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins {
    /// The selector of each entry; `None` where the caller gave a context.
    pub(super) selectors: Vec<Option<String>>,
    pub(super) desc: ContextDesc,
}

impl Session {
    /// Continues on new devices after one was lost ([`Error::is_lost`]) or memory ran out: opens each device again by
    /// its name. Devices that run native functions cannot be lost and stay.
    ///
    /// The next run makes plans, kernels and parameters again. Parameters come from their current memory, in any
    /// layout; no file is read. Most are in the host's own pages. Those that a device keeps in memory shared with the
    /// host are read back from there, and compared with a checksum. Values of [`Session::set_input`] stay set.
    /// Earlier bindings hold the old devices and their memory: drop them, and bind the memory again.
    ///
    /// # Errors
    /// [`SessionError::NotReopened`] for a device that the caller opened: use [`Session::recover_on`];
    /// [`Error::Registry`] where one cannot be opened; [`Error::Host`] where a parameter is lost with its device
    /// ([`HostError::Unreadable`]): load the model again. The session is then unchanged.
    ///
    /// [`HostError::Unreadable`]: crate::memory::host::HostError::Unreadable
    pub fn recover(&mut self) -> Result<(), Error> {
        self.recover_on(Vec::new())
    }

    /// As [`Session::recover`], with contexts of the caller's for the first entries of the device table; the others
    /// are opened again. A context may belong to another device: plans are made again.
    ///
    /// # Errors
    /// As there, and [`SessionError::NoEntry`] for more contexts than the table has entries.
    pub fn recover_on(&mut self, contexts: Vec<Context>) -> Result<(), Error> {
        let entries = self.core.devices.len();
        if contexts.len() > entries {
            let (what, name) = ("context", format!("number {}", contexts.len()));
            let device = contexts.len() as u32 - 1;
            return Err(SessionError::NoEntry { what, name, device, devices: entries }.into());
        }
        // The memory on the old devices is released before the new ones allocate as much.
        self.current = None;
        let mut contexts = contexts.into_iter();
        let registry = Registry::with_defaults();
        let mut devices = Vec::with_capacity(entries);
        for (entry, old) in self.core.devices.iter().enumerate() {
            let info = old.context.info();
            let context = match (contexts.next(), self.origins.selectors.get(entry).cloned().flatten()) {
                (Some(context), _) => context,
                (None, _) if info.native && info.in_order => {
                    devices.push(old.clone());
                    continue;
                }
                (None, Some(selector)) => registry.open(&selector, &self.origins.desc)?,
                (None, None) => {
                    return Err(SessionError::NotReopened { entry, device: info.name.clone() }.into());
                }
            };
            devices.push(Device::new(context)?);
        }
        recall(&self.core.graph)?;
        if let Some(arena) = &self.core.options.arena {
            self.core.devices.iter().for_each(|old| arena.forget(old.context.id()));
        }
        let (graph, params) = (Arc::clone(&self.core.graph), Arc::clone(&self.core.params));
        // Drivers get another chance with kernels that they rejected.
        let sources = Arc::default();
        self.core = Arc::new(SessionCore::new(graph, devices, self.core.options.clone(), params, sources));
        Ok(())
    }
}

/// Reads parameters back that only device memory holds, those of graphs in nodes too.
fn recall(graph: &Graph) -> Result<(), Error> {
    for (_, constant) in graph.constants() {
        constant.recall()?;
    }
    for flow in graph.nodes().iter().filter_map(|node| node.op.control()) {
        match flow {
            Control::If { then, other } => [then, other].into_iter().try_for_each(|graph| recall(graph))?,
            Control::Loop(op) => recall(&op.body)?,
            Control::Scan(op) => recall(&op.body)?,
        }
    }
    Ok(())
}
