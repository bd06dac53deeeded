//! Sessions that go on after a device was lost or memory ran out.

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
    /// Goes on on new devices after one was lost ([`Error::is_lost`]) or memory ran out: opens each device again by the
    /// name it was given by. Devices that run native functions cannot be lost and stay.
    ///
    /// Plans, kernels and parameters are made again at the next run, parameters from the memory that they are in, in one
    /// layout or another; no file is read. Most are in the host's own pages. Those that a device keeps in memory that it
    /// shares with the host are read back from there, and compared with a checksum. Values of
    /// [`Session::set_input`] stay set. Bindings made before hold the old devices and their memory: drop them, and bind
    /// the memory again.
    ///
    /// # Errors
    /// [`SessionError::NotReopened`] for a device that the caller opened: use [`Session::recover_on`];
    /// [`Error::Registry`] where one cannot be opened; [`Error::Host`] where a parameter is gone with its device
    /// ([`HostError::Unreadable`]): load the model again. The session is as it was then.
    ///
    /// [`HostError::Unreadable`]: crate::memory::host::HostError::Unreadable
    pub fn recover(&mut self) -> Result<(), Error> {
        self.recover_on(Vec::new())
    }

    /// As [`Session::recover`], with contexts of the caller's for the first entries of the device table; the others are
    /// opened again. A context may be of another device: plans are made again.
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
        // What it holds of the old devices goes before the new ones are asked for as much.
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
        // Drivers are asked again for kernels that they refused.
        let sources = Arc::default();
        self.core = Arc::new(SessionCore::new(graph, devices, self.core.options.clone(), params, sources));
        Ok(())
    }
}

/// Brings parameters back that only the memory of a device has, those of graphs in nodes too.
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
