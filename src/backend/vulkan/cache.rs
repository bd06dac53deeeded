//! The pipeline cache, kept on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ash::vk;

use super::device::Device;
use super::probe::CacheKey;

/// A larger file is none of ours.
const MAX_BYTES: u64 = 256 << 20;

/// A `VkPipelineCache` and its file.
pub(super) struct PipelineCache {
    pub(super) raw: vk::PipelineCache,
    file: Option<PathBuf>,
    loaded: usize,
}

impl PipelineCache {
    /// The cache of the device in `dir`, empty where there is none that this device and driver wrote.
    pub(super) fn open(device: &Device, dir: Option<&Path>) -> Self {
        let file = dir.map(|dir| dir.join(format!("vulkan-{}.pipelines", device.info.uuid)));
        let data = file.as_deref().and_then(|file| load(file, &device.cache)).unwrap_or_default();
        let (raw, loaded) = match create(device, &data) {
            Ok(raw) => (raw, data.len()),
            // A driver may refuse data whose header is sound; without any it has no reason to.
            Err(_) => (create(device, &[]).unwrap_or(vk::PipelineCache::null()), 0),
        };
        PipelineCache { raw, file, loaded }
    }

    /// How many bytes came from disk.
    #[cfg(test)]
    pub(super) fn loaded(&self) -> usize {
        self.loaded
    }

    /// Writes the cache to disk if it grew, and destroys it.
    ///
    /// # Safety
    /// No pipeline is being made; called once.
    pub(super) unsafe fn close(&self, device: &Device) {
        if self.raw == vk::PipelineCache::null() {
            return;
        }
        if let Some(file) = &self.file {
            // SAFETY: the cache lives.
            match unsafe { device.raw().get_pipeline_cache_data(self.raw) } {
                Ok(data) if data.len() != self.loaded => {
                    if let Err(cause) = save(file, &data) {
                        tracing::warn!(target: "onepool::vulkan", file = %file.display(), %cause, "pipeline cache not kept");
                    }
                }
                Ok(_) => {}
                Err(code) => tracing::warn!(target: "onepool::vulkan", ?code, "pipeline cache not read"),
            }
        }
        // SAFETY: as the caller promises.
        unsafe { device.raw().destroy_pipeline_cache(self.raw, None) };
    }
}

fn create(device: &Device, data: &[u8]) -> Result<vk::PipelineCache, vk::Result> {
    let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
    // SAFETY: the data is empty or has a header that this device and driver wrote
    // (VUID-VkPipelineCacheCreateInfo-initialDataSize-00769).
    unsafe { device.raw().create_pipeline_cache(&info, None) }
}

fn load(file: &Path, key: &CacheKey) -> Option<Vec<u8>> {
    let bytes = fs::metadata(file).ok()?.len();
    if bytes > MAX_BYTES {
        tracing::warn!(target: "onepool::vulkan", file = %file.display(), bytes, "pipeline cache ignored: too large");
        return None;
    }
    let sealed = fs::read(file).ok()?;
    let data = unseal(&sealed).filter(|data| is_ours(data, key));
    if data.is_none() {
        tracing::warn!(target: "onepool::vulkan", file = %file.display(), "pipeline cache ignored: damaged or foreign");
    }
    data.map(<[u8]>::to_vec)
}

/// A reader sees the old file or the new one, whole.
fn save(file: &Path, data: &[u8]) -> io::Result<()> {
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    // Other contexts, here and in other processes, may write the same cache now.
    static DRAFTS: AtomicU32 = AtomicU32::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let draft = file.with_extension(format!("{}-{number}.draft", std::process::id()));
    let written = fs::write(&draft, seal(data)).and_then(|()| fs::rename(&draft, file));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Drivers check the header at most, so a checksum guards the rest.
fn seal(data: &[u8]) -> Vec<u8> {
    let mut sealed = data.to_vec();
    sealed.extend_from_slice(&checksum(data).to_le_bytes());
    sealed
}

fn unseal(sealed: &[u8]) -> Option<&[u8]> {
    let (data, sum) = sealed.split_last_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == checksum(data)).then_some(data)
}

/// FNV-1a.
fn checksum(data: &[u8]) -> u64 {
    data.iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Whether the data begins with the header of version one for this device and driver.
fn is_ours(data: &[u8], key: &CacheKey) -> bool {
    let word = |at: usize| data.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
    let header = word(0).map_or(0, |bytes| bytes as usize);
    (32..=data.len()).contains(&header)
        && word(4) == Some(vk::PipelineCacheHeaderVersion::ONE.as_raw() as u32)
        && word(8) == Some(key.vendor)
        && word(12) == Some(key.device)
        && data.get(16..32) == Some(&key.uuid)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: CacheKey = CacheKey { vendor: 0x10de, device: 7, uuid: [9; 16] };

    fn sound() -> Vec<u8> {
        let mut data = Vec::new();
        for word in [32u32, 1, KEY.vendor, KEY.device] {
            data.extend_from_slice(&word.to_le_bytes());
        }
        data.extend_from_slice(&KEY.uuid);
        data.extend_from_slice(&[5; 40]);
        data
    }

    #[test]
    fn a_sound_file_is_taken_and_one_of_another_driver_is_not() {
        assert!(is_ours(&sound(), &KEY));
        assert!(!is_ours(&sound(), &CacheKey { uuid: [8; 16], ..KEY }));
        assert!(!is_ours(&sound(), &CacheKey { vendor: 1, ..KEY }));
        assert!(!is_ours(&[], &KEY));
        let file = tempfile::tempdir().unwrap();
        let path = file.path().join("deep/cache");
        save(&path, &sound()).unwrap();
        assert_eq!(load(&path, &KEY), Some(sound()));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_refused(at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<prop::sample::Index>()) {
            let sealed = seal(&sound());
            let mut damaged = sealed.clone();
            damaged[at.index(sealed.len())] ^= flip;
            prop_assert!(unseal(&damaged).filter(|data| is_ours(data, &KEY)).is_none());
            prop_assert!(unseal(&sealed[..cut.index(sealed.len())]).filter(|data| is_ours(data, &KEY)).is_none());
        }
    }
}
