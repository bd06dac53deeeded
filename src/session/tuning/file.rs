//! Measured choices, kept on disk for one device, driver and set of kernels.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::backend::{DeviceInfo, DeviceKind};
use crate::files::cache::CacheFolder;
use crate::files::hash::{Digest, Hash};
use crate::kernel::table;
use crate::operator::{ChoiceKey, Choices, MAX_TEXT};

/// Version of the file's layout and of the rules of keys and names.
const FORMAT: &str = concat!("onepool tuning 1 ", env!("CARGO_PKG_VERSION"));
/// Largest size of the file's contents, in bytes.
const MAX_BYTES: usize = 4 << 20;
/// Most choices of one device.
const MAX_CHOICES: usize = 8192;

/// What was measured for one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Measured {
    /// The candidate by the model of the device.
    pub(super) default: String,
    /// The candidate to take.
    pub(super) chosen: String,
    /// Median of the first one's times in nanoseconds.
    pub(super) default_ns: u64,
    /// Median of the second one's.
    pub(super) chosen_ns: u64,
}

impl Measured {
    /// The default, which nothing may be compared with.
    pub(super) fn unmeasured(default: &str) -> Self {
        Measured { default: default.into(), chosen: default.into(), default_ns: 0, chosen_ns: 0 }
    }

    fn is_sound(&self) -> bool {
        let named = |name: &str| !name.is_empty() && name.len() <= MAX_TEXT;
        named(&self.default) && named(&self.chosen) && self.chosen_ns <= self.default_ns
    }
}

/// What was measured on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Kept {
    all: BTreeMap<ChoiceKey, Measured>,
}

impl Kept {
    pub(super) fn get(&self, key: &ChoiceKey) -> Option<&Measured> {
        self.all.get(key)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Keeps what was measured for `key`, unless there is too much.
    pub(super) fn set(&mut self, key: ChoiceKey, measured: Measured) {
        if self.all.len() < MAX_CHOICES || self.all.contains_key(&key) {
            self.all.insert(key, measured);
        }
    }

    /// The choices that differ from the defaults.
    pub(super) fn choices(&self) -> Choices {
        let mut choices = Choices::default();
        for (key, measured) in self.all.iter().filter(|(_, measured)| measured.chosen != measured.default) {
            choices.set(key.clone(), measured.chosen.clone());
        }
        choices
    }

    fn is_sound(&self) -> bool {
        let sound = |(key, measured): (&ChoiceKey, &Measured)| {
            !key.as_str().is_empty() && key.as_str().len() <= MAX_TEXT && measured.is_sound()
        };
        self.all.len() <= MAX_CHOICES && self.all.iter().all(sound)
    }
}

/// The file of one device.
#[derive(Debug)]
pub(super) struct TuningFile {
    folder: CacheFolder,
    key: Digest,
}

/// What the measurements of a device hold for: the device, its driver and the kernels that ship.
pub(super) fn device_key(device: &DeviceInfo) -> Digest {
    key_of(device, std::thread::available_parallelism().map_or(0, |n| n.get()))
}

fn key_of(device: &DeviceInfo, threads: usize) -> Digest {
    let mut hash = Hash::new();
    hash.put((FORMAT, device.api, &device.name, &device.uuid, &device.driver, &device.api_version));
    hash.put((device.features, device.subgroup, device.prefers_texels, table::digest().hex()));
    // Only these compute on the host's cores.
    hash.put((device.kind == DeviceKind::Cpu).then_some(threads));
    hash.digest()
}

impl TuningFile {
    /// The file in `folder` for the device of `key`.
    pub(super) fn new(folder: &Path, key: Digest) -> Self {
        TuningFile { folder: CacheFolder::new(folder), key }
    }

    fn name(&self) -> String {
        format!("tuning-{}", self.key.short_hex())
    }

    /// What is kept; nothing, with a warning, where the file is damaged, of something else, or senseless.
    pub(super) fn load(&self) -> Kept {
        let Some(bytes) = self.folder.load(&self.name(), self.key) else { return Kept::default() };
        match self.read(&bytes) {
            Ok(kept) => kept,
            Err(problem) => {
                let name = self.name();
                tracing::warn!(target: "onepool::tuning", "kept choices of kernels in {name} are passed over: {problem}");
                Kept::default()
            }
        }
    }

    fn read(&self, bytes: &[u8]) -> Result<Kept, String> {
        if bytes.len() > MAX_BYTES {
            return Err(format!("{} bytes, the most are {MAX_BYTES}", bytes.len()));
        }
        let kept: Kept = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if !kept.is_sound() {
            return Err("names or times in it make no sense".to_owned());
        }
        Ok(kept)
    }

    /// Adds `new` to what is there; whether all of it is kept now. A write that fails is a warning.
    pub(super) fn add(&self, new: &Kept) -> bool {
        // Without the lock a choice of another process may be lost, and is measured again.
        let _alone = self.folder.lock(&self.name());
        let mut all = self.load();
        for (key, measured) in &new.all {
            all.set(key.clone(), measured.clone());
        }
        let has_room = new.all.keys().all(|key| all.get(key).is_some());
        let saved = match serde_json::to_vec(&all) {
            Ok(bytes) if bytes.len() <= MAX_BYTES => {
                self.folder.try_save(&self.name(), self.key, &bytes).map_err(|cause| cause.to_string())
            }
            Ok(_) => Err("there are too many".to_owned()),
            Err(cause) => Err(cause.to_string()),
        };
        if let Err(cause) = &saved {
            tracing::warn!(target: "onepool::tuning", "choices of kernels are not kept: {cause}");
        }
        has_room && saved.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::dtype::DType;
    use crate::registry::Registry;

    fn device() -> DeviceInfo {
        Registry::with_defaults().find("sim").unwrap()
    }

    fn key(m: usize) -> ChoiceKey {
        ChoiceKey::new("product", DType::F32).size("m", m)
    }

    fn of(folder: &Path, device: &DeviceInfo) -> TuningFile {
        TuningFile::new(folder, device_key(device))
    }

    fn measured(chosen: &str) -> Measured {
        Measured { default: "a".into(), chosen: chosen.into(), default_ns: 100, chosen_ns: 50 }
    }

    fn filled(folder: &Path) -> PathBuf {
        let file = of(folder, &device());
        let mut kept = Kept::default();
        kept.set(key(7), measured("b"));
        kept.set(key(9), measured("a"));
        assert!(file.add(&kept));
        folder.join(format!("{}.onepool", file.name()))
    }

    #[test]
    fn choices_are_kept_by_device_driver_and_features() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("deep");
        filled(&folder);
        let file = of(&folder, &device());
        let kept = file.load();
        assert_eq!(kept.get(&key(7)), Some(&measured("b")));
        let choices = kept.choices();
        assert_eq!((choices.len(), choices.get(&key(7)), choices.get(&key(9))), (1, Some("b"), None));
        // Another process adds, and nothing is lost.
        let mut more = Kept::default();
        more.set(key(11), measured("c"));
        assert!(file.add(&more));
        assert_eq!(file.load().choices().len(), 2);
        let others: [fn(&mut DeviceInfo); 4] = [
            |d| d.uuid.push('x'),
            |d| d.driver.push('x'),
            |d| d.subgroup += 1,
            |d| d.prefers_texels = !d.prefers_texels,
        ];
        for change in others {
            let mut other = device();
            change(&mut other);
            assert_eq!(of(&folder, &other).load(), Kept::default());
        }
    }

    #[test]
    fn the_hosts_threads_matter_to_devices_that_compute_on_them() {
        let of = |kind: DeviceKind, threads: usize| key_of(&DeviceInfo { kind, ..device() }, threads);
        for kind in [DeviceKind::Discrete, DeviceKind::Integrated] {
            assert_eq!(of(kind, 4), of(kind, 8), "{kind:?}");
        }
        assert_ne!(of(DeviceKind::Cpu, 4), of(DeviceKind::Cpu, 8));
    }

    #[test]
    fn what_cannot_be_written_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "no folder").unwrap();
        let mut kept = Kept::default();
        kept.set(key(7), measured("b"));
        assert!(!of(&path, &device()).add(&kept));
        assert!(of(folder.path(), &device()).add(&kept));
    }

    #[test]
    fn what_has_no_room_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = of(folder.path(), &device());
        let mut kept = Kept::default();
        for i in 0..MAX_CHOICES {
            kept.set(ChoiceKey::new(&i.to_string(), DType::F32), measured("b"));
        }
        assert!(file.add(&kept));
        let mut more = Kept::default();
        more.set(key(7), measured("b"));
        assert!(!file.add(&more));
    }

    #[test]
    fn damaged_foreign_truncated_and_huge_files_are_passed_over_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let path = filled(folder);
        let whole = fs::read(&path).unwrap();
        let file = of(folder, &device());
        let mut spoiled: Vec<Vec<u8>> =
            (0..whole.len()).step_by(7).map(|len| whole[..len].to_vec()).collect();
        for at in (0..whole.len()).step_by(5) {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            spoiled.push(bytes);
        }
        spoiled.push(b"{}".to_vec());
        for bytes in spoiled {
            fs::write(&path, &bytes).unwrap();
            assert_eq!(file.load(), Kept::default());
        }
        // One that is of another device, and one of another layout.
        let mut other = device();
        other.driver.push('x');
        let foreign = of(folder, &other);
        foreign.folder.try_save(&file.name(), foreign.key, b"{}").unwrap();
        assert_eq!(file.load(), Kept::default());
        // Whole files whose contents make no sense.
        let long = "x".repeat(MAX_TEXT + 1);
        let many: BTreeMap<String, Measured> =
            (0..=MAX_CHOICES).map(|i| (i.to_string(), measured("b"))).collect();
        let text = r#"{"product f32 m=7":{"default":"a","chosen":"b","default_ns":2,"chosen_ns":1}}"#;
        assert_eq!(file.read(text.as_bytes()).unwrap().choices().len(), 1);
        let senseless = [
            "[]".to_owned(),
            "{".to_owned(),
            text.replace("\"b\"", "\"\""),
            text.replace("\"b\"", &format!("{long:?}")),
            text.replace("product", &long),
            text.replace(":2", ":0"),
            text.replace(":2", ":-1"),
            serde_json::to_string(&many).unwrap(),
            " ".repeat(MAX_BYTES + 1),
        ];
        for text in senseless {
            assert!(file.read(text.as_bytes()).is_err(), "{}", &text[..text.len().min(80)]);
            file.folder.try_save(&file.name(), file.key, text.as_bytes()).unwrap();
            assert_eq!(file.load(), Kept::default());
        }
        filled(folder);
        assert_eq!(file.load().choices().len(), 1);
    }

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let mut kept = Kept::default();
        for i in 0..MAX_CHOICES + 10 {
            kept.set(ChoiceKey::new(&i.to_string(), DType::F32), measured("b"));
        }
        assert!(kept.is_sound());
        let first = ChoiceKey::new("0", DType::F32);
        kept.set(first.clone(), measured("c"));
        assert_eq!(kept.get(&first), Some(&measured("c")));
    }
}
