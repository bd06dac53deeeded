//! Memory of intermediate tensors: private to a binding, or shared by several sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::device::Device;
use super::host_memory::{all_of, import_where_possible, shared};
use super::in_flight::InFlight;
use crate::backend::Placement;
use crate::device::Buffer;
use crate::memory::host::SharedRegion;
use crate::plan::{Domain, Plan};
use crate::session::error::Error;
use crate::sync::lock;

/// The arenas of one binding: a buffer for each arena and each device that accesses it.
#[derive(Debug, Default)]
pub(in crate::session) struct Arenas {
    buffers: Vec<BTreeMap<u32, Buffer>>,
    /// Keeps the host arenas' pages.
    _regions: Vec<Arc<SharedRegion>>,
    /// The version of the shared arena that the buffers belong to.
    version: u64,
    /// Registers the binding with a shared arena.
    _member: Option<Arc<Member>>,
}

impl Arenas {
    /// Arenas private to one binding.
    pub(in crate::session) fn new(plan: &Plan, devices: &[Device]) -> Result<Self, Error> {
        let mut arenas = Arenas::default();
        for arena in &plan.arenas {
            let mut buffers = BTreeMap::new();
            match arena.domain {
                _ if arena.bytes == 0 => {}
                Domain::Device(d) => {
                    let buffer = devices[d as usize].buffer(arena.bytes, Placement::Device, "arena")?;
                    buffers.insert(d, buffer);
                }
                Domain::Host => {
                    let region = shared(arena.bytes, devices)?;
                    buffers = import_where_possible(devices, &region)?;
                    for (d, buffer) in &buffers {
                        let context = &devices[*d as usize].context;
                        context.flush(&all_of(buffer, context.info().limits.non_coherent_atom))?;
                    }
                    arenas._regions.push(region);
                }
            }
            arenas.buffers.push(buffers);
        }
        Ok(arenas)
    }

    pub(in crate::session) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.buffers.iter().flat_map(BTreeMap::values)
    }

    pub(in crate::session) fn buffer(&self, arena: u32, device: u32) -> Option<&Buffer> {
        self.buffers.get(arena as usize)?.get(&device)
    }
}

/// One pool for the intermediate tensors of several sessions, as large as the largest of them needs: for example,
/// sessions of one model for several batch sizes. Pass it to [`crate::session::SessionBuilder::shared_arena`].
///
/// One run uses it at a time. A run waits until the previous run, of whichever session, has finished on its devices;
/// inputs, outputs and parameters are not in the pool, so results stay until the session's own next run. Submissions
/// of several threads run one at a time, in no particular order.
///
/// Each context has a pool of its own, because devices share no memory; one more lies in host memory, for tensors
/// that several devices of a session access.
///
/// The pool grows when a binding needs more. An earlier binding keeps the smaller memory until its next run, which
/// records its commands again; [`SharedArena::reserve`] avoids that.
#[derive(Debug, Default)]
pub struct SharedArena {
    state: Mutex<State>,
}

/// Memory of a [`SharedArena`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ArenaUsage {
    /// Bytes of the pools.
    pub bytes: u64,
    /// Bytes that the live bindings would hold with private arenas.
    pub separate_bytes: u64,
    /// Number of live bindings.
    pub bindings: usize,
}

#[derive(Debug, Default)]
struct State {
    pools: Vec<(Key, Pool)>,
    /// Increases whenever a pool changes.
    version: u64,
    members: Vec<Weak<Member>>,
    /// The run that used the pools last.
    last: Option<InFlight>,
}

/// The owner of a pool's memory. A context that is in a session's table several times has a pool for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Context(usize, usize),
    Host,
}

#[derive(Debug)]
enum Pool {
    Device(Buffer),
    Host(Arc<SharedRegion>),
}

impl Pool {
    fn bytes(&self) -> u64 {
        match self {
            Pool::Device(buffer) => buffer.bytes(),
            Pool::Host(region) => region.bytes() as u64,
        }
    }
}

/// A binding that uses the pools.
#[derive(Debug)]
struct Member {
    bytes: u64,
}

impl SharedArena {
    /// An empty arena.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Its memory now.
    pub fn usage(&self) -> ArenaUsage {
        let state = self.lock();
        let members: Vec<Arc<Member>> = state.members.iter().filter_map(Weak::upgrade).collect();
        ArenaUsage {
            bytes: state.pools.iter().map(|(_, pool)| pool.bytes()).sum(),
            separate_bytes: members.iter().map(|m| m.bytes).sum(),
            bindings: members.len(),
        }
    }

    /// Makes the pools large enough for `plan`.
    pub(in crate::session) fn grow_for(&self, plan: &Plan, devices: &[Device]) -> Result<(), Error> {
        self.lock().pools_for(plan, devices).map(|_| ())
    }

    /// Arenas for a binding of `plan`.
    pub(in crate::session) fn fit(&self, plan: &Plan, devices: &[Device]) -> Result<Arenas, Error> {
        self.lock().fit(plan, devices)
    }

    /// Waits for the previous run; no other run starts before [`ArenaTurn::leave`].
    pub(in crate::session) fn turn(&self) -> ArenaTurn<'_> {
        let mut state = self.lock();
        if let Some(last) = state.last.take() {
            last.wait_quietly();
        }
        ArenaTurn { state }
    }

    /// Frees the pools of a context.
    pub(in crate::session) fn forget(&self, context: usize) {
        let mut state = self.lock();
        state.pools.retain(|(key, _)| !matches!(key, Key::Context(of, _) if *of == context));
        state.version += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Exclusive use of a shared arena.
#[derive(Debug)]
pub(in crate::session) struct ArenaTurn<'a> {
    state: MutexGuard<'a, State>,
}

impl ArenaTurn<'_> {
    /// Whether `arenas` name the current pools.
    pub(in crate::session) fn is_current(&self, arenas: &Arenas) -> bool {
        arenas.version == self.state.version
    }

    /// As [`SharedArena::fit`].
    pub(in crate::session) fn fit(&mut self, plan: &Plan, devices: &[Device]) -> Result<Arenas, Error> {
        self.state.fit(plan, devices)
    }

    /// Ends the turn: the next one waits for `last`.
    pub(in crate::session) fn leave(mut self, last: Option<InFlight>) {
        self.state.last = last;
    }
}

impl State {
    fn fit(&mut self, plan: &Plan, devices: &[Device]) -> Result<Arenas, Error> {
        let mut arenas = Arenas::default();
        let pools = self.pools_for(plan, devices)?;
        for (arena, pool) in plan.arenas.iter().zip(pools) {
            let mut buffers = BTreeMap::new();
            match (pool.and_then(|at| self.pools.get(at)), arena.domain) {
                (Some((_, Pool::Device(buffer))), Domain::Device(d)) => {
                    buffers.insert(d, buffer.clone());
                }
                (Some((_, Pool::Host(region))), _) => {
                    buffers = import_where_possible(devices, region)?;
                    arenas._regions.push(Arc::clone(region));
                }
                _ => {}
            }
            arenas.buffers.push(buffers);
        }
        let member = Arc::new(Member { bytes: plan.arenas.iter().map(|a| a.bytes).sum() });
        self.members.retain(|m| m.strong_count() > 0);
        self.members.push(Arc::downgrade(&member));
        (arenas.version, arenas._member) = (self.version, Some(member));
        Ok(arenas)
    }

    /// The pool of each arena of `plan`; pools that are too small grow.
    fn pools_for(&mut self, plan: &Plan, devices: &[Device]) -> Result<Vec<Option<usize>>, Error> {
        let mut used: BTreeMap<usize, usize> = BTreeMap::new();
        let mut pools = Vec::with_capacity(plan.arenas.len());
        for arena in &plan.arenas {
            if arena.bytes == 0 {
                pools.push(None);
                continue;
            }
            let key = match arena.domain {
                Domain::Host => Key::Host,
                Domain::Device(d) => {
                    let context = devices[d as usize].context.id();
                    let nth = used.entry(context).or_default();
                    *nth += 1;
                    Key::Context(context, *nth)
                }
            };
            let at = self.pools.iter().position(|(k, _)| *k == key);
            if let Some(at) = at.filter(|&at| self.pools[at].1.bytes() >= arena.bytes) {
                pools.push(Some(at));
                continue;
            }
            // Bindings of the smaller pool record their commands again.
            self.version += 1;
            let pool = match arena.domain {
                Domain::Device(d) => Pool::Device(devices[d as usize].buffer(
                    arena.bytes,
                    Placement::Device,
                    "shared arena",
                )?),
                Domain::Host => Pool::Host(shared(arena.bytes, devices)?),
            };
            let at = at.unwrap_or(self.pools.len());
            if at == self.pools.len() {
                self.pools.push((key, pool));
            } else {
                self.pools[at].1 = pool;
            }
            pools.push(Some(at));
        }
        Ok(pools)
    }
}
