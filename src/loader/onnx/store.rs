//! Where the data of a model's tensors is, and its way into memory.
//!
//! Data is in the message, in the model's own file, or in another file of the model's folder. Each
//! tensor is read once, straight to where it stays; two tensors over one piece of a file share it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::proto::{EXTERNAL, SparseTensorProto, TensorProto};
use super::tensor::{
    check_typed, densify, entry, fill_typed, info_of, length_error, location, stored_bytes, unpack,
};
use crate::dtype::DType;
use crate::files;
use crate::graph::{Tensor, TensorInfo};
use crate::limits;
use crate::loader::error::{ErrorLocation, LoadError, LoadErrorKind};
use crate::loader::options::UsedFiles;
use crate::loader::pack::{Item, pack};
use crate::loader::source::Source;
use crate::memory::host::Unchanging;
use crate::memory::os;

/// The most files that are open at one time.
const MAX_OPEN: usize = 16;

/// Where the data of one tensor is.
#[derive(Clone, Copy, Debug)]
enum Place<'p> {
    /// In the message's raw data.
    Raw(&'p [u8]),
    /// In the message's typed fields.
    Typed(&'p TensorProto),
    /// In the model's file.
    Held { at: u64 },
    /// In another file.
    External { file: usize, at: u64 },
}

/// A file of external data.
#[derive(Debug)]
struct ExternalFile {
    name: PathBuf,
    bytes: u64,
}

/// The data of one model.
pub(super) struct Store<'a> {
    pub(super) source: Source<'a>,
    held: Vec<(u64, u64)>,
    /// Folders that external data must lie in; the first is the one that names are relative to.
    roots: Vec<PathBuf>,
    names: HashMap<String, usize>,
    files: Vec<ExternalFile>,
    /// Most recently used last.
    open: Vec<(usize, Source<'static>)>,
    /// External bytes read so far.
    external_bytes: u64,
    /// Bytes of all tensors so far, and the most that there may be: this machine's memory.
    bytes: u64,
    memory: u64,
    sparse_budget: usize,
    /// By the address of the message, which outlives the store.
    loaded: HashMap<*const TensorProto, Tensor>,
    dense: HashMap<*const SparseTensorProto, Tensor>,
    /// Where other files are noted.
    pub(super) used: Option<&'a UsedFiles>,
    /// Whether files are mapped.
    pub(super) map: Option<Unchanging>,
}

impl<'a> Store<'a> {
    /// Data that the skeleton left at `held` in `source`; `roots` are the folders for external data.
    pub(super) fn new(source: Source<'a>, held: Vec<(u64, u64)>, roots: Vec<PathBuf>) -> Self {
        Store {
            source,
            held,
            roots,
            names: HashMap::new(),
            files: Vec::new(),
            open: Vec::new(),
            external_bytes: 0,
            bytes: 0,
            memory: os::physical_memory().unwrap_or(u64::MAX),
            sparse_budget: limits::MAX_FOLDED_BYTES,
            loaded: HashMap::new(),
            dense: HashMap::new(),
            used: None,
            map: None,
        }
    }

    /// Takes `values` for the tensors of `protos` that have their names.
    pub(super) fn give(
        &mut self,
        protos: &[TensorProto],
        mut values: HashMap<String, Tensor>,
    ) -> Result<(), LoadError> {
        for proto in protos {
            let Some(value) = values.remove(&proto.name) else { continue };
            let expected = info_of(proto).map_err(|kind| kind.at(location(proto)))?;
            if *value.info() != expected {
                let kind = LoadErrorKind::unexpected(expected.to_string(), value.info().to_string());
                return Err(kind.at(location(proto)));
            }
            self.loaded.insert(std::ptr::from_ref(proto), value);
        }
        Ok(())
    }

    /// Loads all of `protos` into one piece of memory. One that cannot be loaded is left out: its error
    /// comes where it is used.
    pub(super) fn preload(
        &mut self,
        protos: &[&TensorProto],
        progress: Option<&dyn Fn(u64, u64)>,
    ) -> Result<(), LoadError> {
        let mut infos: Vec<TensorInfo> = Vec::new();
        let mut places: Vec<Place<'_>> = Vec::new();
        let mut same: HashMap<(usize, u64, TensorInfo), usize> = HashMap::new();
        let mut slots: Vec<(&TensorProto, usize)> = Vec::new();
        let before = (self.bytes, self.external_bytes);
        for &proto in protos {
            if self.loaded.contains_key(&std::ptr::from_ref(proto)) {
                continue;
            }
            let Ok((info, place)) = self.locate(proto) else { continue };
            let next = places.len();
            let slot = match place {
                Place::External { file, at } => *same.entry((file, at, info.clone())).or_insert(next),
                _ => next,
            };
            if slot == next {
                self.charge(&place, &info).map_err(|kind| kind.at(location(proto)))?;
                infos.push(info);
                places.push(place);
            }
            slots.push((proto, slot));
        }
        let items: Vec<Item> =
            places.iter().zip(&infos).map(|(place, info)| self.item(place, info)).collect();
        let tensors = pack(&items, progress, |i, to, read| match (places.get(i), infos.get(i)) {
            (Some(_), Some(info)) if read => {
                complete(info.dtype, to);
                Ok(())
            }
            (Some(place), Some(info)) => self.fill(place, info, to),
            _ => Ok(()),
        });
        // A value out of range, say: found again, with its place, where the tensor is used.
        let Ok(tensors) = tensors else {
            (self.bytes, self.external_bytes) = before;
            return Ok(());
        };
        for (proto, slot) in slots {
            if let Some(tensor) = tensors.get(slot) {
                self.loaded.insert(std::ptr::from_ref(proto), tensor.clone());
            }
        }
        Ok(())
    }

    /// The tensor that `proto` describes.
    pub(super) fn tensor(&mut self, proto: &TensorProto) -> Result<Tensor, LoadError> {
        if let Some(tensor) = self.loaded.get(&std::ptr::from_ref(proto)) {
            return Ok(tensor.clone());
        }
        let (info, place) = self.locate(proto).map_err(|kind| kind.at(location(proto)))?;
        self.charge(&place, &info).map_err(|kind| kind.at(location(proto)))?;
        let item = self.item(&place, &info);
        let mut tensors = pack(&[item], None, |_, to, read| {
            if !read {
                return self.fill(&place, &info, to);
            }
            complete(info.dtype, to);
            Ok(())
        })?;
        let tensor = tensors.pop().ok_or_else(|| LoadErrorKind::missing("the data").at(location(proto)))?;
        self.loaded.insert(std::ptr::from_ref(proto), tensor.clone());
        Ok(tensor)
    }

    /// The tensor that `proto` describes, dense.
    pub(super) fn sparse_tensor(&mut self, proto: &SparseTensorProto) -> Result<Tensor, LoadError> {
        if let Some(tensor) = self.dense.get(&std::ptr::from_ref(proto)) {
            return Ok(tensor.clone());
        }
        let missing = |what: &str| LoadErrorKind::missing(format!("the {what} of a sparse tensor"));
        let values_proto = proto.values.as_ref().ok_or_else(|| missing("values"))?;
        let indices_proto = proto.indices.as_ref().ok_or_else(|| missing("indices"))?;
        let values = self.tensor(values_proto)?;
        let indices = self.tensor(indices_proto)?;
        let tensor = densify(proto, &values, &indices, &mut self.sparse_budget)
            .map_err(|kind| kind.at(location(values_proto)))?;
        self.dense.insert(std::ptr::from_ref(proto), tensor.clone());
        Ok(tensor)
    }

    fn locate<'p>(&mut self, proto: &'p TensorProto) -> Result<(TensorInfo, Place<'p>), LoadErrorKind> {
        let info = info_of(proto)?;
        let bytes = stored_bytes(&info) as u64;
        let place = if proto.data_location == EXTERNAL {
            self.locate_external(proto, bytes)?
        } else if let Some(held) = proto.held.checked_sub(1) {
            let held = usize::try_from(held).ok().and_then(|i| self.held.get(i));
            let &(at, found) = held.ok_or_else(|| LoadErrorKind::missing("the data"))?;
            if found != bytes {
                return Err(length_error(&info, "bytes", bytes, found));
            }
            Place::Held { at }
        } else if let Some(raw) = proto.raw_data.as_deref().filter(|r| !r.is_empty()) {
            if raw.len() as u64 != bytes {
                return Err(length_error(&info, "bytes", bytes, raw.len() as u64));
            }
            Place::Raw(raw)
        } else {
            check_typed(proto, &info)?;
            Place::Typed(proto)
        };
        Ok((info, place))
    }

    fn locate_external<'p>(&mut self, proto: &TensorProto, bytes: u64) -> Result<Place<'p>, LoadErrorKind> {
        let name = entry(&proto.external_data, "location").unwrap_or("");
        let fail = |problem: String| LoadErrorKind::External { location: name.to_owned(), problem };
        let number = |key: &str| {
            let text = entry(&proto.external_data, key);
            let parsed = text.map(|t| t.trim().parse::<u64>()).transpose();
            parsed.map_err(|_| fail(format!("{key} {:?} is no number", text.unwrap_or(""))))
        };
        let at = number("offset")?.unwrap_or(0);
        if let Some(length) = number("length")?
            && length != bytes
        {
            return Err(fail(format!("its length is {length} bytes, the shape needs {bytes}")));
        }
        let file = match self.names.get(name) {
            Some(&file) => file,
            None => {
                let found = self.find(name).map_err(fail)?;
                self.files.push(found);
                let file = self.files.len().saturating_sub(1);
                self.names.insert(name.to_owned(), file);
                file
            }
        };
        let there = self.files.get(file).map_or(0, |f| f.bytes);
        if at.checked_add(bytes).is_none_or(|end| end > there) {
            return Err(fail(format!("{bytes} bytes at offset {at} are not within its {there} bytes")));
        }
        Ok(Place::External { file, at })
    }

    /// The file that a model in the first root means by `name`; it stays open.
    fn find(&mut self, name: &str) -> Result<ExternalFile, String> {
        let name = PathBuf::from(name);
        let source = self.open_named(&name)?;
        let bytes = source.len();
        if let (Some(used), Some(root)) = (self.used, self.roots.first()) {
            used.note(root.join(&name), source.identity());
        }
        self.keep_open(self.files.len(), source);
        Ok(ExternalFile { name, bytes })
    }

    fn open_named(&self, name: &Path) -> Result<Source<'static>, String> {
        if self.roots.is_empty() {
            return Err("the model was not loaded from a folder, so there is none to find it in".to_owned());
        }
        let (file, found) = files::open::beneath(&self.roots, name).map_err(|e| e.to_string())?;
        let mut source = Source::of_file(file, found.len());
        source.map = self.map;
        Ok(source)
    }

    /// Bounds what overlapping pieces of external files may add up to, and what all tensors may: a file may
    /// be far larger than what of it is on disk.
    fn charge(&mut self, place: &Place<'_>, info: &TensorInfo) -> Result<(), LoadErrorKind> {
        self.bytes = self.bytes.saturating_add(stored_bytes(info) as u64);
        if self.bytes > self.memory {
            let what = "bytes of tensors for the memory of this machine";
            return Err(LoadErrorKind::TooMany { what, found: self.bytes, limit: self.memory });
        }
        if matches!(place, Place::External { .. }) {
            self.external_bytes = self.external_bytes.saturating_add(stored_bytes(info) as u64);
            let there = self.files.iter().fold(0u64, |sum, f| sum.saturating_add(f.bytes));
            let limit = there.saturating_mul(2);
            if self.external_bytes > limit {
                let what = "bytes of external data over the same files";
                return Err(LoadErrorKind::TooMany { what, found: self.external_bytes, limit });
            }
        }
        Ok(())
    }

    fn fill(&mut self, place: &Place<'_>, info: &TensorInfo, all: &mut [u8]) -> Result<(), LoadError> {
        let dtype = info.dtype;
        let to = all.get_mut(..stored_bytes(info)).unwrap_or_default();
        match *place {
            Place::Raw(raw) => raw.iter().zip(to.iter_mut()).for_each(|(from, to)| *to = *from),
            Place::Typed(proto) => {
                return fill_typed(proto, dtype, all).map_err(|kind| kind.at(location(proto)));
            }
            Place::Held { at } => read_at(&mut self.source, at, to)?,
            Place::External { file, at } => {
                let name = self.files.get(file).map(|f| f.name.clone()).unwrap_or_default();
                let source = self.opened(file, &name)?;
                read_at(source, at, to).map_err(|e| e.in_file(&name))?;
            }
        }
        complete(dtype, all);
        Ok(())
    }

    /// What is known of the bytes at `place`, without reading them.
    fn item(&self, place: &Place<'_>, info: &TensorInfo) -> Item {
        let (source, at) = match *place {
            Place::Raw(_) | Place::Typed(_) => return Item::filled(info.clone()),
            Place::Held { at } => (&self.source, at),
            // One that is closed again is read by itself.
            Place::External { file, at } => match self.open.iter().find(|(open, _)| *open == file) {
                Some((_, source)) => (source, at),
                None => return Item::filled(info.clone()),
            },
        };
        let stored = stored_bytes(info);
        let form = if info.dtype == DType::Bool || stored < info.bytes() { "unpacked" } else { "" };
        source.item(info.clone(), vec![(at, stored as u64)], form)
    }

    /// The file numbered `file`, open: as it was found, or found anew.
    fn opened(&mut self, file: usize, name: &Path) -> Result<&mut Source<'static>, LoadError> {
        let source = match self.open.iter().position(|(f, _)| *f == file) {
            Some(i) => self.open.remove(i).1,
            None => self.open_named(name).map_err(|problem| {
                let location = name.display().to_string();
                LoadError::from(LoadErrorKind::External { location, problem })
            })?,
        };
        self.keep_open(file, source);
        match self.open.last_mut() {
            Some((_, source)) => Ok(source),
            None => Err(LoadErrorKind::missing("the file").at(ErrorLocation::File)),
        }
    }

    fn keep_open(&mut self, file: usize, source: Source<'static>) {
        if self.open.len() >= MAX_OPEN {
            self.open.remove(0);
        }
        self.open.push((file, source));
    }
}

/// Makes elements of what was read to the front of `all`.
fn complete(dtype: DType, all: &mut [u8]) {
    if dtype == DType::Bool {
        all.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    } else {
        unpack(dtype, all);
    }
}

fn read_at(source: &mut Source<'_>, at: u64, to: &mut [u8]) -> Result<(), LoadError> {
    source.seek(at)?;
    source.read("tensor data", to)
}

#[cfg(test)]
mod tests {
    use super::super::proto::{StringStringEntryProto, data_type};
    use super::*;

    fn external(entries: &[(&str, &str)], dims: &[i64]) -> TensorProto {
        TensorProto {
            name: "w".into(),
            data_type: data_type::UINT8,
            dims: dims.to_vec(),
            data_location: EXTERNAL,
            external_data: entries
                .iter()
                .map(|(k, v)| StringStringEntryProto { key: (*k).into(), value: (*v).into() })
                .collect(),
            ..Default::default()
        }
    }

    fn store(root: &Path) -> Store<'static> {
        Store::new(Source::of(&[]), Vec::new(), vec![root.to_owned()])
    }

    #[test]
    fn pieces_of_a_file_are_read_once_and_shared() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/w.bin"), (0..100u8).collect::<Vec<u8>>()).unwrap();
        let a = external(&[("location", "sub/w.bin"), ("offset", "10"), ("length", "4")], &[4]);
        let b = external(&[("location", "./sub/w.bin"), ("offset", "96")], &[2, 2]);
        let c = a.clone();
        let mut s = store(dir.path());
        s.preload(&[&a, &b, &c], None).unwrap();
        assert_eq!(s.tensor(&a).unwrap().bytes(), [10, 11, 12, 13]);
        assert_eq!(s.tensor(&b).unwrap().bytes(), [96, 97, 98, 99]);
        assert_eq!(s.tensor(&a).unwrap().identity(), s.tensor(&c).unwrap().identity());
        assert_eq!(s.tensor(&external(&[("location", "sub/w.bin")], &[1])).unwrap().bytes(), [0]);
    }

    #[test]
    fn paths_stay_inside_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("model");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(dir.path().join("secret"), [1u8; 8]).unwrap();
        let absolute = dir.path().join("secret").display().to_string();
        let fails = |entries: &[(&str, &str)], says: &str| {
            let e = store(&root).tensor(&external(entries, &[4])).unwrap_err();
            assert!(e.to_string().contains(says), "{e}");
        };
        fails(&[("location", "../secret")], "stay inside");
        fails(&[("location", "a/../../secret")], "stay inside");
        fails(&[("location", &absolute)], "stay inside");
        fails(&[("location", "")], "stay inside");
        fails(&[], "stay inside");
        fails(&[("location", "none.bin")], "none.bin");
        fails(&[("location", ".")], "no regular file");
        std::fs::write(root.join("w"), [1u8; 8]).unwrap();
        fails(&[("location", "w"), ("offset", "5")], "4 bytes at offset 5 are not within its 8 bytes");
        fails(&[("location", "w"), ("offset", "18446744073709551615")], "not within");
        fails(&[("location", "w"), ("offset", "-1")], "is no number");
        fails(&[("location", "w"), ("length", "5")], "its length is 5 bytes, the shape needs 4");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(dir.path().join("secret"), root.join("link")).unwrap();
            fails(&[("location", "link")], "a link leads out");
        }
        let e = Store::new(Source::of(&[]), Vec::new(), Vec::new())
            .tensor(&external(&[("location", "w")], &[4]))
            .unwrap_err();
        assert!(e.to_string().contains("not loaded from a folder"), "{e}");
    }

    /// A model of a few bytes may name a file of a terabyte, none of which is on disk.
    #[test]
    fn tensors_beyond_this_machines_memory_are_refused_before_they_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("w")).unwrap();
        // Some file systems have no such size.
        let bytes = [1u64 << 40, 1 << 34].into_iter().find(|b| file.set_len(*b).is_ok()).unwrap();
        let root = dir.path().to_owned();
        crate::files::cache::testing::within_seconds(20, move || {
            let mut s = store(&root);
            s.memory = s.memory.min(bytes / 2);
            let limit = s.memory;
            let refused = |e: LoadError, found| {
                let is = matches!(*e.kind(), LoadErrorKind::TooMany { found: f, limit: l, .. } if (f, l) == (found, limit));
                assert!(is && e.to_string().contains("memory of this machine"), "{e}");
            };
            let whole = external(&[("location", "w")], &[bytes as i64]);
            refused(s.preload(&[&whole], None).unwrap_err(), bytes);
            s.bytes = 0;
            refused(s.tensor(&whole).unwrap_err(), bytes);
            // By pieces that fit one by one.
            s.bytes = 0;
            let third = (limit / 3 + 1) as i64;
            let pieces = [0, third, 2 * third];
            let pieces =
                pieces.map(|at| external(&[("location", "w"), ("offset", &at.to_string())], &[third]));
            refused(s.preload(&pieces.each_ref(), None).unwrap_err(), 3 * third as u64);
        });
    }

    #[test]
    #[cfg(unix)]
    fn pipes_are_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("w");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let root = dir.path().to_owned();
        crate::files::cache::testing::within_seconds(20, move || {
            let e = store(&root).tensor(&external(&[("location", "w")], &[4])).unwrap_err();
            assert!(e.to_string().contains("no regular file"), "{e}");
            let e = Source::open(&root.join("w")).err().unwrap();
            assert!(e.to_string().contains("expected a file, found a device or pipe"), "{e}");
        });
    }

    #[test]
    fn overlapping_pieces_cannot_add_up_without_bound() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("w"), [1u8; 100]).unwrap();
        let protos: Vec<TensorProto> =
            (0..5).map(|i| external(&[("location", "w"), ("offset", &i.to_string())], &[90])).collect();
        let all: Vec<&TensorProto> = protos.iter().collect();
        let e = store(dir.path()).preload(&all, None).unwrap_err();
        assert!(matches!(e.kind(), LoadErrorKind::TooMany { .. }), "{e}");
    }

    #[test]
    fn many_files_are_not_all_open() {
        let dir = tempfile::tempdir().unwrap();
        let protos: Vec<TensorProto> = (0..40u8)
            .map(|i| {
                std::fs::write(dir.path().join(format!("w{i}")), [i]).unwrap();
                external(&[("location", &format!("w{i}"))], &[1])
            })
            .collect();
        let mut s = store(dir.path());
        s.preload(&protos.iter().collect::<Vec<_>>(), None).unwrap();
        assert!(s.open.len() <= MAX_OPEN);
        assert_eq!(s.tensor(&protos[39]).unwrap().bytes(), [39]);
    }
}
