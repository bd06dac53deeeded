//! Programs as the driver compiled them, kept on disk: one file each, by device, driver and text.

use std::path::Path;

use onepool_core::files::cache::CacheFolder;
use onepool_core::files::hash::{Digest, Hash};

/// The programs of one device and driver.
#[derive(Debug)]
pub(super) struct BinaryCache {
    folder: CacheFolder,
    uuid: String,
}

impl BinaryCache {
    /// The cache in `dir` of what `uuid` names.
    pub(super) fn new(dir: &Path, uuid: &str) -> Self {
        BinaryCache { folder: CacheFolder::new(dir), uuid: uuid.to_owned() }
    }

    /// The binary that was kept for this text; `None` where there is none, or none that is whole and its own.
    pub(super) fn load(&self, text: &str) -> Option<Vec<u8>> {
        let key = self.key(text);
        self.folder.load(&name(key), key)
    }

    /// Keeps a binary.
    pub(super) fn save(&self, text: &str, binary: &[u8]) {
        let key = self.key(text);
        self.folder.save(&name(key), key, binary);
    }

    fn key(&self, text: &str) -> Digest {
        let mut hash = Hash::new();
        hash.put(("opencl program", &self.uuid));
        hash.bytes(text.as_bytes());
        hash.digest()
    }
}

fn name(key: Digest) -> String {
    format!("opencl-{}", key.short_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_found_for_its_text_and_device_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("deep");
        let cache = BinaryCache::new(&folder, "7");
        assert_eq!(cache.load("a"), None);
        cache.save("a", &[1, 2, 3]);
        cache.save("b", &[4]);
        cache.save("a", &[5; 40]);
        assert_eq!(
            (cache.load("a"), cache.load("b"), cache.load("c")),
            (Some(vec![5; 40]), Some(vec![4]), None)
        );
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
        assert_eq!(BinaryCache::new(&folder, "8").load("a"), None);
        // Under the name of another text.
        let file = |text| folder.join(format!("{}.onepool", name(cache.key(text))));
        std::fs::copy(file("a"), file("b")).unwrap();
        assert_eq!(cache.load("b"), None);
    }

    #[test]
    fn a_folder_that_cannot_be_made_costs_only_the_cache() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = BinaryCache::new(file.path(), "7");
        cache.save("a", &[1]);
        assert_eq!(cache.load("a"), None);
    }
}
