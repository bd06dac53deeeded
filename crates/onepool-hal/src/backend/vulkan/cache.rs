//! The pipeline cache, kept on disk.

use std::path::Path;

use ash::vk;

use super::device::Device;
use super::probe::CacheKey;
use onepool_core::files::cache::CacheFolder;
use onepool_core::files::hash::{Digest, Hash};

/// A `VkPipelineCache` and where it is kept.
pub(super) struct PipelineCache {
    pub(super) raw: vk::PipelineCache,
    file: Option<CacheFile>,
    loaded: usize,
}

/// A name in a folder, and what the contents are of.
struct CacheFile {
    folder: CacheFolder,
    name: String,
    key: Digest,
}

impl PipelineCache {
    /// The cache of the device in `dir`, empty where there is none that this device and driver wrote.
    pub(super) fn open(device: &Device, dir: Option<&Path>) -> Self {
        let file = dir.map(|dir| CacheFile {
            folder: CacheFolder::new(dir),
            name: format!("vulkan-{}", device.info.uuid),
            key: key(&device.info.driver, &device.cache),
        });
        let data = file.as_ref().and_then(|file| file.folder.load(&file.name, file.key));
        let data = data.filter(|data| is_ours(data, &device.cache)).unwrap_or_default();
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
        if let Some(CacheFile { folder, name, key }) = &self.file {
            // SAFETY: the cache lives.
            match unsafe { device.raw().get_pipeline_cache_data(self.raw) } {
                Ok(data) if data.len() != self.loaded => folder.save(name, *key, &data),
                Ok(_) => {}
                Err(code) => tracing::warn!(target: "onepool::vulkan", ?code, "pipeline cache not read"),
            }
        }
        // SAFETY: as the caller promises.
        unsafe { device.raw().destroy_pipeline_cache(self.raw, None) };
    }
}

/// What a cache is of: drivers check the header at most.
fn key(driver: &str, key: &CacheKey) -> Digest {
    let mut hash = Hash::new();
    hash.put(("vulkan pipelines", driver, key.vendor, key.device, key.uuid));
    hash.digest()
}

fn create(device: &Device, data: &[u8]) -> Result<vk::PipelineCache, vk::Result> {
    let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
    // SAFETY: the data is empty or has a header that this device and driver wrote
    // (VUID-VkPipelineCacheCreateInfo-initialDataSize-00769).
    unsafe { device.raw().create_pipeline_cache(&info, None) }
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
    fn data_of_another_driver_is_not_taken() {
        assert!(is_ours(&sound(), &KEY));
        let others =
            [CacheKey { uuid: [8; 16], ..KEY }, CacheKey { vendor: 1, ..KEY }, CacheKey { device: 8, ..KEY }];
        for other in &others {
            assert!(!is_ours(&sound(), other));
            assert_ne!(key("driver", other), key("driver", &KEY));
        }
        assert_ne!(key("driver 2", &KEY), key("driver", &KEY));
        assert!(!is_ours(&[], &KEY));
    }

    #[test]
    fn data_that_ends_in_its_header_is_not_taken() {
        for bytes in 0..32 {
            assert!(!is_ours(&sound()[..bytes], &KEY), "{bytes}");
        }
    }
}
