//! Programs as the driver compiled them, kept on disk: one file each, in a folder for device and driver.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A larger file is none of ours.
const MAX_BYTES: u64 = 64 << 20;
/// What a file begins with.
const MAGIC: &[u8; 8] = b"opclbin1";

/// The folder of one device and driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BinaryCache {
    folder: PathBuf,
}

impl BinaryCache {
    /// The cache in `dir` of what `uuid` names.
    pub(super) fn new(dir: &Path, uuid: &str) -> Self {
        BinaryCache { folder: dir.join(format!("opencl-{uuid}")) }
    }

    /// The binary that was kept for this text; `None` where there is none, or none that is whole and its own.
    pub(super) fn load(&self, text: &str) -> Option<Vec<u8>> {
        let file = self.file(text);
        let bytes = fs::metadata(&file).ok()?.len();
        let sealed = if bytes <= MAX_BYTES { fs::read(&file).ok()? } else { Vec::new() };
        let binary = unseal(&sealed, text);
        if binary.is_none() {
            tracing::warn!(target: "onepool::opencl", file = %file.display(), "program ignored: damaged or foreign");
        }
        binary.map(<[u8]>::to_vec)
    }

    /// Keeps a binary. A reader sees the old file or the new one, whole.
    pub(super) fn save(&self, text: &str, binary: &[u8]) {
        let file = self.file(text);
        if let Err(cause) = self.write(&file, &seal(text, binary)) {
            tracing::warn!(target: "onepool::opencl", file = %file.display(), %cause, "program not kept");
        }
    }

    fn write(&self, file: &Path, sealed: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        // Other contexts, here and in other processes, may write the same file now.
        static DRAFTS: AtomicU32 = AtomicU32::new(0);
        let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
        let draft = file.with_extension(format!("{}-{number}.draft", std::process::id()));
        let written = fs::write(&draft, sealed).and_then(|()| fs::rename(&draft, file));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written
    }

    fn file(&self, text: &str) -> PathBuf {
        self.folder.join(format!("{:032x}.program", hash(text.as_bytes())))
    }
}

/// The text goes with its binary, so that two texts of one hash are told apart.
fn seal(text: &str, binary: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(text.len() + binary.len() + 32);
    sealed.extend_from_slice(MAGIC);
    sealed.extend_from_slice(&(text.len() as u64).to_le_bytes());
    sealed.extend_from_slice(text.as_bytes());
    sealed.extend_from_slice(binary);
    let sum = hash(&sealed);
    sealed.extend_from_slice(&sum.to_le_bytes());
    sealed
}

fn unseal<'a>(sealed: &'a [u8], text: &str) -> Option<&'a [u8]> {
    let (data, sum) = sealed.split_last_chunk::<16>()?;
    if u128::from_le_bytes(*sum) != hash(data) {
        return None;
    }
    let rest = data.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (kept, binary) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    (kept == text.as_bytes()).then_some(binary)
}

/// FNV-1a of 128 bits.
pub(super) fn hash(data: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    data.iter().fold(OFFSET, |sum, byte| (sum ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_hash_is_fnv() {
        // Test vectors of the algorithm's authors.
        assert_eq!(hash(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(hash(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn what_was_kept_is_found_for_its_text_alone() {
        let dir = tempfile::tempdir().unwrap();
        let cache = BinaryCache::new(&dir.path().join("deep"), "7");
        assert_eq!(cache.load("a"), None);
        cache.save("a", &[1, 2, 3]);
        cache.save("b", &[4]);
        cache.save("a", &[5; 40]);
        assert_eq!(
            (cache.load("a"), cache.load("b"), cache.load("c")),
            (Some(vec![5; 40]), Some(vec![4]), None)
        );
        assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), 2);
        // Another driver looks elsewhere.
        assert_eq!(BinaryCache::new(&dir.path().join("deep"), "8").load("a"), None);
        // Under the name of another text.
        fs::copy(cache.file("a"), cache.file("b")).unwrap();
        assert_eq!(cache.load("b"), None);
    }

    #[test]
    fn a_folder_that_cannot_be_made_costs_only_the_cache() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = BinaryCache::new(file.path(), "7");
        cache.save("a", &[1]);
        assert_eq!(cache.load("a"), None);
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_refused(at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<prop::sample::Index>()) {
            let sealed = seal("text", &[9; 50]);
            prop_assert_eq!(unseal(&sealed, "text"), Some(&[9u8; 50][..]));
            let mut damaged = sealed.clone();
            damaged[at.index(sealed.len())] ^= flip;
            prop_assert!(unseal(&damaged, "text").is_none());
            prop_assert!(unseal(&sealed[..cut.index(sealed.len())], "text").is_none());
        }
    }
}
