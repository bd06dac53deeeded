//! Parameters on devices, shared by every session that is given the same store.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::device::{Device, part};
use crate::backend::Placement;
use crate::device::{self, Buffer, Context};
use crate::graph::{GraphError, Tensor, TensorIdentity, WeakTensor, WeightStore};
use crate::memory::host::{HostError, HostRegion};
use crate::memory::image::ImageDesc;
use crate::ops::{PackKey, Packed};
use crate::plan::{PlanError, PlannedConstant};
use crate::recording::Recording;
use crate::session::error::Error;
use crate::sync::lock;

/// Bytes of a readback buffer for parameters.
const READBACK_BYTES: usize = 32 << 20;
/// What the host reads itself of memory past its caches: a submission takes longer.
const FEW_BYTES: usize = 4096;

/// Holds each parameter once for each device and layout, for any number of sessions.
///
/// A device that shares the host's memory reads parameters in place. A large one that is read only in a packed layout
/// is kept only in that layout, once for all such devices and stores; its original bytes are unpacked for their
/// readers.
///
/// Two constants are the same parameter when they share their bytes ([`Tensor::identity`]): graphs from one loaded
/// file, or with one tensor, do, and [`ParamStore::unify`] makes constants that were loaded separately share them. A
/// parameter lives as long as a plan of a session reads it.
#[derive(Debug, Default)]
pub struct ParamStore {
    held: Mutex<WeakMap<Key, Param>>,
    pub(in crate::session) known: Mutex<KnownConstants>,
}

/// What all stores of the process hold: a parameter is on a context once, whichever stores know it.
#[derive(Debug, Default)]
struct Process {
    held: Mutex<WeakMap<Key, Param>>,
    /// Regions in which parameters are read, by context and address.
    regions: Mutex<WeakMap<(usize, usize), Buffer>>,
}

impl Process {
    fn get() -> &'static Process {
        static PROCESS: OnceLock<Process> = OnceLock::new();
        PROCESS.get_or_init(Process::default)
    }
}

/// Constants of graphs that the store has unified.
#[derive(Debug, Default)]
pub(in crate::session) struct KnownConstants {
    pub(in crate::session) by_identity: HashMap<TensorIdentity, WeakTensor>,
    pub(in crate::session) by_content: HashMap<u64, Vec<WeakTensor>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    context: usize,
    tensor: TensorIdentity,
    layout: Option<PackKey>,
    image: Option<ImageDesc>,
}

/// A parameter on a device.
#[derive(Debug)]
pub(in crate::session) struct Param {
    /// Keeps the identity unique.
    _tensor: Tensor,
    /// The import of the whole region that holds it.
    _region: Option<Arc<Buffer>>,
    pub(in crate::session) buffer: Buffer,
}

/// Weak references by key. Dead entries are removed whenever the map has doubled.
#[derive(Debug)]
struct WeakMap<K, V> {
    map: HashMap<K, Weak<V>>,
    most: usize,
}

impl<K, V> Default for WeakMap<K, V> {
    fn default() -> Self {
        WeakMap { map: HashMap::new(), most: 0 }
    }
}

impl<K: Eq + Hash, V> WeakMap<K, V> {
    const FEW: usize = 16;

    fn get(&self, key: &K) -> Option<Arc<V>> {
        self.map.get(key).and_then(Weak::upgrade)
    }

    fn insert(&mut self, key: K, value: &Arc<V>) {
        if self.map.len() >= self.most.max(Self::FEW) {
            self.map.retain(|_, value| value.strong_count() > 0);
            self.most = 2 * self.map.len();
        }
        self.map.insert(key, Arc::downgrade(value));
    }
}

/// Memory of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ParamUsage {
    /// Number of parameters; each device and layout counts.
    pub count: usize,
    /// Their bytes on devices.
    pub bytes: u64,
}

impl ParamStore {
    /// An empty store.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Its memory now.
    pub fn usage(&self) -> ParamUsage {
        let held = lock(&self.held);
        let params: Vec<Arc<Param>> = held.map.values().filter_map(Weak::upgrade).collect();
        ParamUsage { count: params.len(), bytes: params.iter().map(|p| p.buffer.bytes()).sum() }
    }

    /// The buffer that holds `constant` on `device`, made at the first use.
    pub(in crate::session) fn param(
        &self,
        device: &Device,
        constant: &PlannedConstant,
    ) -> Result<Arc<Param>, Error> {
        let image = own_image(device, constant);
        let key = Key {
            context: device.context.id(),
            tensor: constant.tensor.identity(),
            layout: constant.packed.as_ref().map(|p| p.key),
            image: image.map(|(image, _)| image),
        };
        let found = lock(&self.held).get(&key);
        if let Some(param) = found {
            return Ok(param);
        }
        let known = lock(&Process::get().held).get(&key);
        if let Some(param) = known {
            lock(&self.held).insert(key, &param);
            return Ok(param);
        }
        let place = if image.is_none() { in_place(device, constant)? } else { None };
        let (import, buffer) = match (&place, image) {
            (Some(place), _) => (Some(Arc::clone(&place.import)), place.part.clone()),
            (None, None) => match move_to_device(device, constant)? {
                Some(buffer) => (None, buffer),
                None => (None, upload(device, constant)?),
            },
            (None, Some((image, bytes))) => (None, upload_image(device, constant, &image, bytes)?),
        };
        let mut held = lock(&Process::get().held);
        if let Some(param) = held.get(&key) {
            lock(&self.held).insert(key, &param);
            return Ok(param);
        }
        let param = Arc::new(Param { _tensor: constant.tensor.clone(), _region: import, buffer });
        held.insert(key, &param);
        lock(&self.held).insert(key, &param);
        drop(held);
        // The device reads this form; the host's copies are released.
        if let Some(place) = place {
            match &constant.packed {
                None => constant.tensor.keep_plain(&place.region),
                Some(Packed { key, unpack: Some(unpack), .. }) => {
                    constant.tensor.keep_packed(*key, &place.region, unpack);
                }
                Some(_) => {}
            }
        }
        Ok(param)
    }
}

/// Parameters in pages of their own are read in place, if the device can access that memory and, by measurement,
/// reads it no slower than its own, and submissions do not pay for its pages; packed ones lie there in their layout.
fn in_place(device: &Device, constant: &PlannedConstant) -> Result<Option<InPlace>, Error> {
    if !device.reads_parameters_in_place() {
        return Ok(None);
    }
    let found = match &constant.packed {
        None => constant.tensor.unkept()?.region(),
        Some(packed) if packed.unpack.is_none() || !constant.tensor.is_weight() => None,
        Some(packed) => match constant.tensor.packed(&packed.key) {
            Some(region) => Some((region, 0)),
            None => Some((pack_in_pages(constant, packed)?, 0)),
        },
    };
    let Some((region, offset)) = found else { return Ok(None) };
    let info = device.context.info();
    // A mapped region begins inside a page.
    let at = region.window().offset + offset as u64;
    let aligned = at.is_multiple_of(info.limits.argument_alignment.max(info.limits.texel_alignment));
    // A texel view may round the end up.
    let bytes = padded(constant.bytes());
    if !aligned || offset as u64 + bytes > region.bytes() as u64 {
        return Ok(None);
    }
    // Where the import is refused, the parameter is copied.
    let Some(import) = import(device, &region).filter(|whole| whole.info().coherent) else {
        return Ok(None);
    };
    let part = import.sub_buffer(offset as u64, bytes).ok();
    Ok(part.map(|part| InPlace { region, import, part }))
}

/// The import of a region on a device, made once.
fn import(device: &Device, region: &Arc<HostRegion>) -> Option<Arc<Buffer>> {
    let key = (device.context.id(), Arc::as_ptr(region).addr());
    let mut regions = lock(&Process::get().regions);
    if let Some(whole) = regions.get(&key) {
        return Some(whole);
    }
    let whole = Arc::new(device.context.import_constant(region).ok()?);
    regions.insert(key, &whole);
    Some(whole)
}

/// A parameter kept in device memory alone.
struct InDevice {
    context: Context,
    buffer: Buffer,
}

impl InDevice {
    /// Reads by the host past its caches are some hundred times as slow as a copy by the device.
    fn copy_by_device(&self, to: &mut [u8]) -> Result<(), device::Error> {
        // A queue of its own: whoever reads may hold the session's.
        let device = Device::new(self.context.clone())?;
        let mut offset = 0;
        for part in to.chunks_mut(READBACK_BYTES) {
            let bytes = part.len() as u64;
            device.read(&self.buffer.sub_buffer(offset, bytes)?, part)?;
            offset += bytes;
        }
        Ok(())
    }

    /// Works on a lost device too, whose memory stays mapped.
    fn copy_by_host(&self, to: &mut [u8]) -> Result<(), device::Error> {
        Ok(self.buffer.sub_buffer(0, to.len() as u64)?.map_read()?.copy_to(to)?)
    }
}

impl WeightStore for InDevice {
    fn read(&self, to: &mut [u8]) -> Result<(), HostError> {
        let copied = match self.buffer.info().cached || to.len() < FEW_BYTES {
            true => self.copy_by_host(to),
            false => self.copy_by_device(to).or_else(|_| self.copy_by_host(to)),
        };
        copied.map_err(|error| HostError::Unreadable { cause: error.to_string() })
    }

    fn is_there(&self) -> bool {
        self.copy_by_host(&mut [0; 16]).is_ok()
    }
}

/// On shared memory where the device takes no pages of the application, or reads them slower than its own, a large
/// parameter moves to host-visible memory of the device and is kept only there.
fn move_to_device(device: &Device, constant: &PlannedConstant) -> Result<Option<Buffer>, Error> {
    let form = constant.packed.as_ref().map(Packed::form);
    let (tensor, packed) = (&constant.tensor, form.as_ref());
    let whole = packed.is_none_or(|packed| packed.unpack.is_some());
    if !device.shares_host_memory() || !tensor.is_weight() || !whole {
        return Ok(None);
    }
    let buffer = device.buffer(constant.bytes(), Placement::Upload, "parameter")?;
    if buffer.host_address().is_none() {
        return Ok(None);
    }
    let bytes = constant.bytes().max(1);
    let moved_to = InDevice { context: device.context.clone(), buffer: buffer.clone() };
    let store: Arc<dyn WeightStore> = Arc::new(moved_to);
    let moved = tensor.move_to(packed, Arc::clone(&store), |fill| -> Result<(), Error> {
        let part = buffer.sub_buffer(0, bytes).map_err(device::Error::from)?;
        fill(&mut part.map_write()?);
        Ok(())
    })?;
    if !moved {
        fill(device, constant, &buffer)?;
        tensor.keep_stored(packed, store);
    }
    Ok(Some(buffer))
}

/// A parameter that a device reads from host memory.
struct InPlace {
    region: Arc<HostRegion>,
    import: Arc<Buffer>,
    part: Buffer,
}

/// Size in bytes with padding for a texel view.
fn padded(bytes: u64) -> u64 {
    bytes.max(16).next_multiple_of(16)
}

fn pack_in_pages(constant: &PlannedConstant, packed: &Packed) -> Result<Arc<HostRegion>, Error> {
    let bytes = padded(packed.bytes as u64);
    let bytes = usize::try_from(bytes).map_err(|_| HostError::TooLarge { bytes })?;
    if let Some(moved) = constant.tensor.move_packed(&packed.form(), bytes)? {
        return Ok(moved);
    }
    let mut region = HostRegion::new(bytes)?;
    if let Some(to) = region.as_mut_slice().get_mut(..packed.bytes) {
        pack(constant, packed, to)?;
    }
    Ok(Arc::new(region))
}

fn pack(constant: &PlannedConstant, packed: &Packed, to: &mut [u8]) -> Result<(), Error> {
    (packed.pack)(&packed.source.unkept()?, to).map_err(|source| {
        let (node, op) = (constant.name.clone(), packed.key.layout.to_owned());
        PlanError::Graph(GraphError::Node { node, op, source }).into()
    })
}

/// The image that holds a parameter, unless its bytes already have the layout of one.
fn own_image(device: &Device, constant: &PlannedConstant) -> Option<(ImageDesc, u64)> {
    let (image, bytes) = constant.image?;
    let rules = device.context.info().images.as_ref();
    let anywhere = rules.is_some_and(|rules| rules.over_imports && rules.alignment(&image) <= 16);
    let same = anywhere && image.is_dense() && bytes <= padded(constant.tensor.info().bytes() as u64);
    if same { None } else { Some((image, bytes)) }
}

/// A buffer with a parameter in the rows of an image. The image is created first, because that discards the bytes.
fn upload_image(
    device: &Device,
    constant: &PlannedConstant,
    image: &ImageDesc,
    bytes: u64,
) -> Result<Buffer, Error> {
    let buffer = device.buffer(bytes, Placement::Device, "parameter in an image")?;
    let mut begin = Recording::default();
    begin.images.push((part(&buffer, bytes), *image));
    device.queue.submit(begin)?.wait()?;
    let tensor = constant.tensor.unkept()?;
    let too_large = || HostError::TooLarge { bytes };
    let mut rows = vec![0u8; usize::try_from(bytes).map_err(|_| too_large())?];
    let (pitch, row) = (image.row_pitch as usize, image.row_bytes() as usize);
    for (to, from) in rows.chunks_mut(pitch.max(1)).zip(tensor.bytes().chunks(row.max(1))) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
    device.write(&buffer, &rows)?;
    Ok(buffer)
}

fn upload(device: &Device, constant: &PlannedConstant) -> Result<Buffer, Error> {
    let buffer = device.buffer(constant.bytes(), Placement::Device, "parameter")?;
    fill(device, constant, &buffer)?;
    Ok(buffer)
}

/// Writes a parameter in the form that its kernel reads.
fn fill(device: &Device, constant: &PlannedConstant, buffer: &Buffer) -> Result<(), Error> {
    match &constant.packed {
        None => device.write(buffer, constant.tensor.unkept()?.bytes())?,
        // Scattered writes are for memory that the host caches.
        Some(packed) if buffer.host_address().is_some() && buffer.info().cached => {
            let part = buffer.sub_buffer(0, packed.bytes as u64).map_err(device::Error::from)?;
            pack(constant, packed, &mut part.map_write()?)?;
        }
        Some(packed) => {
            let mut bytes = vec![0u8; packed.bytes];
            pack(constant, packed, &mut bytes)?;
            device.write(buffer, &bytes)?;
        }
    }
    // What was read of a mapped file stays in the system's cache alone.
    constant.tensor.release_mapped();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_values_are_given_up() {
        let mut living = WeakMap::default();
        let first = Arc::new(0);
        living.insert(0, &first);
        for key in 1..1000 {
            living.insert(key, &Arc::new(key));
            assert!(living.map.len() <= WeakMap::<i32, i32>::FEW);
        }
        assert_eq!((living.get(&0), living.get(&999)), (Some(first), None));
        let all: Vec<Arc<i32>> = (0..100).map(Arc::new).collect();
        all.iter().enumerate().for_each(|(key, value)| living.insert(key as i32, value));
        assert!((0..100).all(|key| living.get(&key).is_some()));
    }
}
