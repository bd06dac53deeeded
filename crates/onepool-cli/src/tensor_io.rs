//! Tensors from files and to files: `.npy`, `.npz`, `.pb`, raw bytes, pictures.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::error::CliError;
use super::input_file::{open, read_bytes};
use super::npy::Header;
use super::picture::{self, Frame, PictureOptions};
use onepool::dtype::DType;
use onepool::graph::{Tensor, TensorInfo};
use onepool::loader::onnx::{read_tensor_pb, write_tensor_pb};
use onepool::memory::host::HostRegion;
use onepool::shape::{Shape, SymShape};

/// What kind of file it is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// One NumPy array.
    Npy,
    /// Several, in a zip archive.
    Npz,
    /// An ONNX `TensorProto`.
    Pb,
    /// Elements and nothing else.
    Raw,
    Picture,
}

/// A file that holds a tensor, and where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorFile {
    /// The file.
    pub(super) path: PathBuf,
    /// The array in an `.npz` file.
    pub(super) key: Option<String>,
    /// What it is.
    pub(super) format: Format,
}

impl TensorFile {
    /// The file that `text` names: `FILE` or `FILE.npz:ARRAY`.
    pub(super) fn parse(text: &str) -> Result<TensorFile, CliError> {
        if let Some((path, key)) = text.rsplit_once(".npz:") {
            let path = PathBuf::from(format!("{path}.npz"));
            return Ok(TensorFile { path, key: Some(key.to_owned()), format: Format::Npz });
        }
        let path = PathBuf::from(text);
        let extension = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        let format = match extension.as_deref() {
            Some("npy") => Format::Npy,
            Some("npz") => Format::Npz,
            Some("pb") => Format::Pb,
            Some("bin" | "raw") => Format::Raw,
            _ if picture::is_picture(&path) => Format::Picture,
            _ => {
                return Err(CliError::usage(format!(
                    "{text:?}: tensors are read and written as .npy, .npz, .pb, .bin, .raw, .png and .jpg"
                )));
            }
        };
        Ok(TensorFile { path, key: None, format })
    }
}

/// A tensor that was read, in memory that devices can import.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Type and shape.
    pub(super) info: TensorInfo,
    /// The elements, row by row; nothing else.
    pub(super) region: HostRegion,
    /// What was done to it on the way, for people.
    pub(super) note: Option<String>,
}

/// What is known of a tensor before its file is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declared<'a> {
    pub(super) name: &'a str,
    /// Its type.
    pub(super) dtype: Option<DType>,
    /// Its sizes.
    pub(super) shape: Option<&'a SymShape>,
}

/// Reads a tensor. Raw files and pictures take type and shape from `declared`; what the others hold is
/// not held against it here.
pub(super) fn read(
    file: &TensorFile,
    declared: Declared<'_>,
    pictures: &PictureOptions,
) -> Result<Loaded, CliError> {
    match file.format {
        Format::Npy => read_npy(&file.path),
        Format::Npz => read_npz(file, declared.name),
        Format::Pb => read_pb(&file.path),
        Format::Raw => read_raw(&file.path, declared),
        Format::Picture => {
            let dtype = declared.dtype.unwrap_or(DType::F32);
            let open;
            let shape = match declared.shape {
                Some(shape) => shape,
                None => {
                    open = SymShape(vec![1.into(), "c".into(), "h".into(), "w".into()]);
                    &open
                }
            };
            let named = |problem: String| CliError::usage(format!("{:?}: {problem}", declared.name));
            let frame = Frame::of(shape, pictures.layout).map_err(named)?;
            let picture = picture::open(&file.path)?;
            let (info, region, note) = picture::to_tensor(&picture, &frame, dtype, pictures)?;
            Ok(Loaded { info, region, note })
        }
    }
}

fn read_npy(path: &Path) -> Result<Loaded, CliError> {
    let file = open(path)?;
    let header = Header::read(&mut BufReader::new(&file)).map_err(|e| CliError::content(path, e))?;
    let length = file.metadata().map_err(|e| CliError::file("read", path, e))?.len();
    let bytes = header.info.bytes() as u64;
    if length.saturating_sub(header.data_at) != bytes {
        let found = length.saturating_sub(header.data_at);
        return Err(data_length(path, &header.info, found));
    }
    let region = HostRegion::read_file_range(path, header.data_at, bytes)?;
    finish(header, region)
}

fn data_length(path: &Path, info: &TensorInfo, found: u64) -> CliError {
    CliError::content(path, format!("a tensor {info} has {} bytes of data, there are {found}", info.bytes()))
}

fn read_npz(file: &TensorFile, name: &str) -> Result<Loaded, CliError> {
    let path = &file.path;
    let archive = open(path)?;
    let bad = |e: &dyn std::error::Error| CliError::content(path, super::error::chain(e));
    let mut archive = ZipArchive::new(BufReader::new(archive)).map_err(|e| bad(&e))?;
    let mut arrays: Vec<String> =
        archive.file_names().flatten().filter_map(|n| n.strip_suffix(".npy").map(str::to_owned)).collect();
    arrays.sort();
    let key = match (&file.key, arrays.as_slice()) {
        (Some(key), _) => key.clone(),
        (None, [only]) => only.clone(),
        (None, _) => name.to_owned(),
    };
    if !arrays.contains(&key) {
        return Err(CliError::content(path, format!("there is no array {key:?}; there are {arrays:?}")));
    }
    let mut entry = archive.by_name(&format!("{key}.npy")).map_err(|e| bad(&e))?;
    let header = Header::read(&mut entry).map_err(|e| CliError::content(path, format!("{key:?}: {e}")))?;
    let found = entry.size().saturating_sub(header.data_at);
    if found != header.info.bytes() as u64 {
        return Err(data_length(path, &header.info, found));
    }
    let region = HostRegion::from_reader(&mut entry, header.info.bytes())?;
    // The checksum is compared where the entry ends.
    match entry.read(&mut [0u8]) {
        Ok(0) => finish(header, region),
        Ok(_) => Err(CliError::content(path, format!("{key:?} is longer than its shape says"))),
        Err(e) => Err(CliError::file("read", path, e)),
    }
}

/// Turns what a file holds into little-endian elements, the last axis fastest.
fn finish(header: Header, mut region: HostRegion) -> Result<Loaded, CliError> {
    let Header { info, swapped, fortran, .. } = header;
    let size = info.dtype.bytes();
    if swapped {
        region.as_mut_slice().chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    if fortran && info.shape.rank() > 1 {
        let mut turned = HostRegion::new(info.bytes())?;
        let from = region.as_slice();
        let mut index = vec![0usize; info.shape.rank()];
        for to in turned.as_mut_slice().chunks_exact_mut(size) {
            let at = index.iter().zip(info.shape.iter()).rev().fold(0, |at, (i, n)| at * n + i);
            to.copy_from_slice(from.get(at * size..(at + 1) * size).unwrap_or(&[0; 8][..size]));
            for (i, n) in index.iter_mut().zip(info.shape.iter()).rev() {
                *i += 1;
                if *i < *n {
                    break;
                }
                *i = 0;
            }
        }
        region = turned;
    }
    Ok(Loaded { info, region, note: None })
}

fn read_pb(path: &Path) -> Result<Loaded, CliError> {
    let tensor = read_pb_tensor(path)?.1;
    let region = HostRegion::from_bytes(tensor.bytes())?;
    Ok(Loaded { info: tensor.info().clone(), region, note: None })
}

/// Reads an ONNX tensor with its name.
pub(super) fn read_pb_tensor(path: &Path) -> Result<(String, Tensor), CliError> {
    Ok(read_tensor_pb(&read_bytes(path)?)?)
}

fn read_raw(path: &Path, declared: Declared<'_>) -> Result<Loaded, CliError> {
    let shape = declared.shape.and_then(SymShape::concrete);
    let shape: Shape = shape.ok_or_else(|| {
        let shape = declared.shape.map_or("unknown".to_owned(), ToString::to_string);
        let name = declared.name;
        CliError::usage(format!(
            "the shape of {name:?} is {shape}: a raw file tells no sizes, give --shape {name}=..."
        ))
    })?;
    let info = TensorInfo::new(declared.dtype.unwrap_or(DType::F32), shape);
    let metadata = std::fs::metadata(path).map_err(|e| CliError::file("read", path, e))?;
    if metadata.is_file() && metadata.len() != info.bytes() as u64 {
        return Err(data_length(path, &info, metadata.len()));
    }
    Ok(Loaded { region: HostRegion::read_file(path)?, info, note: None })
}

/// A tensor to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saved<'a> {
    pub(super) name: &'a str,
    /// Type and shape.
    pub(super) info: &'a TensorInfo,
    /// The elements.
    pub(super) bytes: &'a [u8],
}

/// Writes tensors; those for one `.npz` file go to it together.
pub(super) fn write_all(
    tensors: &[(&TensorFile, Saved<'_>)],
    pictures: &PictureOptions,
) -> Result<(), CliError> {
    let mut archives: Vec<&Path> = Vec::new();
    for (file, tensor) in tensors {
        match file.format {
            Format::Npz if archives.contains(&file.path.as_path()) => {}
            Format::Npz => {
                archives.push(&file.path);
                let parts = tensors.iter().filter(|(f, _)| f.path == file.path);
                write_npz(&file.path, parts)?;
            }
            Format::Picture => {
                picture::save(&picture::from_tensor(tensor.info, tensor.bytes, pictures)?, &file.path)?;
            }
            Format::Npy => write_file(&file.path, |w| {
                Header::write(w, tensor.info)?;
                w.write_all(tensor.bytes)
            })?,
            Format::Raw => write_file(&file.path, |w| w.write_all(tensor.bytes))?,
            Format::Pb => {
                let value = Tensor::from_bytes(tensor.info.clone(), tensor.bytes)?;
                write_file(&file.path, |w| w.write_all(&write_tensor_pb(tensor.name, &value)))?;
            }
        }
    }
    Ok(())
}

fn write_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<(), CliError> {
    let written = File::create(path).and_then(|file| {
        let mut w = BufWriter::new(file);
        write(&mut w)?;
        w.flush()
    });
    written.map_err(|e| CliError::file("write", path, e))
}

fn write_npz<'a, 'b: 'a>(
    path: &Path,
    parts: impl Iterator<Item = &'a (&'b TensorFile, Saved<'b>)>,
) -> Result<(), CliError> {
    let file = File::create(path).map_err(|e| CliError::file("write", path, e))?;
    let mut zip = ZipWriter::new(BufWriter::new(file));
    let bad = |e: &dyn std::error::Error| CliError::content(path, super::error::chain(e));
    for (file, tensor) in parts {
        let key = file.key.as_deref().unwrap_or(tensor.name);
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(tensor.bytes.len() as u64 >= u64::from(u32::MAX));
        zip.start_file(format!("{key}.npy"), options).map_err(|e| bad(&e))?;
        let written = Header::write(&mut zip, tensor.info).and_then(|()| zip.write_all(tensor.bytes));
        written.map_err(|e| CliError::file("write", path, e))?;
    }
    let mut w = zip.finish().map_err(|e| bad(&e))?;
    w.flush().map_err(|e| CliError::file("write", path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(dtype: DType, dims: &[usize]) -> TensorInfo {
        TensorInfo::new(dtype, Shape::new(dims).unwrap())
    }

    fn declared<'a>(dtype: DType, shape: &'a SymShape) -> Declared<'a> {
        Declared { name: "x", dtype: Some(dtype), shape: Some(shape) }
    }

    #[test]
    fn names_tell_the_format() {
        let f = |t: &str| TensorFile::parse(t).unwrap();
        assert_eq!(f("a.npy").format, Format::Npy);
        assert_eq!(f("a.PNG").format, Format::Picture);
        assert_eq!(f("a.raw").format, Format::Raw);
        let npz = f("dir/a.npz:key:1");
        assert_eq!((npz.path, npz.key.as_deref()), (PathBuf::from("dir/a.npz"), Some("key:1")));
        assert_eq!(f("a.npz").key, None);
        assert!(TensorFile::parse("a.txt").is_err());
        assert!(TensorFile::parse("").is_err());
    }

    /// `ONEPOOL_FUZZ_ROUNDS` changes of each file, and `ONEPOOL_FUZZ_SEED`, as of the tests of readers of models.
    #[test]
    fn changed_files_are_read_or_refused() {
        let setting = |name: &str, default: u64| -> u64 {
            std::env::var(name).map_or(default, |text| text.parse().unwrap())
        };
        let mut state = 0x9E37_79B9_7F4A_7C15 ^ setting("ONEPOOL_FUZZ_SEED", 0);
        let mut below = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % n.max(1) as u64) as usize
        };
        let dir = tempfile::tempdir().unwrap();
        let info = info(DType::U8, &[1, 3, 9, 11]);
        let bytes: Vec<u8> = (0..info.bytes()).map(|i| (i * 7) as u8).collect();
        let (shape, pictures) = (SymShape::from(&info.shape), PictureOptions::default());
        for name in ["t.npy", "t.npz", "t.pb", "t.png", "t.jpg"] {
            let file = TensorFile::parse(dir.path().join(name).to_str().unwrap()).unwrap();
            write_all(&[(&file, Saved { name: "x", info: &info, bytes: &bytes })], &pictures).unwrap();
            let seed = std::fs::read(&file.path).unwrap();
            let mut read_ones = 0;
            for _ in 0..setting("ONEPOOL_FUZZ_ROUNDS", 300) {
                let mut changed = seed.clone();
                for _ in 0..1 + below(3) {
                    let at = below(changed.len());
                    match below(5) {
                        0 => changed[at] ^= 1 << below(8),
                        1 => changed[at] = [0, 0x7f, 0x80, 0xff][below(4)],
                        2 => changed.truncate(at.max(1)),
                        3 => drop(changed.drain(at..(at + below(9)).min(changed.len() - 1).max(at))),
                        _ => {
                            let part = changed[at..(at + below(40)).min(changed.len())].to_vec();
                            let to = below(changed.len());
                            changed.splice(to..to, part);
                        }
                    }
                }
                std::fs::write(&file.path, &changed).unwrap();
                if let Ok(loaded) = read(&file, declared(DType::U8, &shape), &pictures) {
                    assert_eq!(loaded.region.as_slice().len(), loaded.info.bytes(), "{name}");
                    read_ones += 1;
                }
            }
            assert!(read_ones > 0, "{name}: all changes were refused");
        }
    }

    #[test]
    fn tensors_come_back_through_every_format() {
        let dir = tempfile::tempdir().unwrap();
        for dtype in DType::ALL {
            for dims in [&[][..], &[3], &[2, 0], &[2, 3, 5]] {
                let info = info(dtype, dims);
                let bytes: Vec<u8> = (0..info.bytes()).map(|i| (i % 2) as u8).collect();
                let shape = SymShape::from(&info.shape);
                for name in ["t.npy", "t.npz", "t.npz:other", "t.pb", "t.bin"] {
                    if dtype.is_narrow() && name.contains(".np") {
                        continue;
                    }
                    let file = TensorFile::parse(dir.path().join(name).to_str().unwrap()).unwrap();
                    let saved = Saved { name: "x", info: &info, bytes: &bytes };
                    write_all(&[(&file, saved)], &PictureOptions::default()).unwrap();
                    let back = read(&file, declared(dtype, &shape), &PictureOptions::default()).unwrap();
                    assert_eq!((&back.info, back.region.as_slice()), (&info, bytes.as_slice()), "{name}");
                }
            }
        }
    }

    #[test]
    fn one_archive_takes_several_arrays() {
        let dir = tempfile::tempdir().unwrap();
        let at = |key: &str| TensorFile::parse(&format!("{}/t.npz:{key}", dir.path().display())).unwrap();
        let info = info(DType::U8, &[2]);
        let (a, b) = (at("a"), at("b"));
        let saved = |bytes| Saved { name: "x", info: &info, bytes };
        write_all(&[(&a, saved(&[1, 2])), (&b, saved(&[3, 4]))], &PictureOptions::default()).unwrap();
        let shape = SymShape::from(&info.shape);
        let read = |f: &TensorFile| read(f, declared(DType::U8, &shape), &PictureOptions::default());
        assert_eq!(read(&a).unwrap().region.as_slice(), [1, 2]);
        assert_eq!(read(&b).unwrap().region.as_slice(), [3, 4]);
        let e = read(&at("c")).unwrap_err().to_string();
        assert!(e.contains("no array \"c\"; there are [\"a\", \"b\"]"), "{e}");
    }

    #[test]
    fn column_major_and_big_endian_arrays_are_turned() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.npy");
        let text = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }";
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((text.len() as u16).to_le_bytes());
        file.extend(text.as_bytes());
        // [[1, 2, 3], [4, 5, 6]] column by column.
        file.extend([0, 1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6]);
        std::fs::write(&path, &file).unwrap();
        let loaded = read_npy(&path).unwrap();
        assert_eq!(loaded.region.as_slice_of::<i16>().unwrap(), [1, 2, 3, 4, 5, 6]);
        std::fs::write(&path, &file[..file.len() - 1]).unwrap();
        let e = read_npy(&path).unwrap_err().to_string();
        assert!(e.contains("has 12 bytes of data, there are 11"), "{e}");
    }

    #[test]
    fn raw_files_need_a_shape_and_its_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.bin");
        std::fs::write(&path, [0; 12]).unwrap();
        let open = SymShape(vec!["n".into()]);
        let e = read_raw(&path, declared(DType::F32, &open)).unwrap_err();
        assert!(matches!(&e, CliError::Usage(text) if text.contains("--shape x=")), "{e}");
        let e = read_raw(&path, declared(DType::F32, &SymShape(vec![4.into()]))).unwrap_err();
        assert!(e.to_string().contains("16 bytes of data, there are 12"), "{e}");
        assert!(read_raw(&path, declared(DType::F32, &SymShape(vec![3.into()]))).is_ok());
        assert!(read_raw(dir.path(), declared(DType::F32, &SymShape(vec![3.into()]))).is_err());
    }

    #[test]
    fn broken_archives_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.npz");
        let file = TensorFile::parse(path.to_str().unwrap()).unwrap();
        let info = info(DType::F32, &[100]);
        let saved = Saved { name: "x", info: &info, bytes: &[7; 400] };
        write_all(&[(&file, saved)], &PictureOptions::default()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for cut in [0, 10, bytes.len() / 2, bytes.len() - 4] {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            assert!(read_npz(&file, "x").is_err(), "cut at {cut}");
        }
        let mut flipped = bytes.clone();
        flipped[300] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        assert!(read_npz(&file, "x").is_err(), "the checksum is not looked at");
    }
}
