//! Apache TVM's `.params` files: named tensors, little-endian, without any padding.
//!
//! ```text
//! u64 LIST_MAGIC, u64 reserved
//! u64 names,  names  times { u64 bytes, UTF-8 }
//! u64 arrays, arrays times { u64 ARRAY_MAGIC, u64 reserved, i32 device type, i32 device id, i32 rank,
//!                            u8 type code, u8 bits, u16 lanes, i64 sizes[rank], i64 bytes, data }
//! ```
//!
//! The reader is strict: magics, counts, sizes and the end of the file are checked. A type with lanes
//! (`float16x4`) is read as one more dimension; files of TVM before 0.4 hold all lanes, later ones only
//! the first lane's worth of bytes, and then the tensor is what is there.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;

use super::error::{ErrorLocation, LoadError, LoadErrorKind};
use super::options::Wishes;
use super::pack::{Item, pack};
use super::source::Source;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::limits;
use crate::shape::{Shape, ShapeError};

const LIST_MAGIC: u64 = 0xF7E5_8D4F_0504_9CB7;
const ARRAY_MAGIC: u64 = 0xDD5E_40F0_96B4_A13F;
/// The device type that stands for host memory.
const CPU: i32 = 1;
/// The fewest bytes of one array record.
const ARRAY_MIN: u64 = 8 + 8 + 4 + 4 + 4 + 4 + 8;

/// Named tensors in the order of the file; names are unique.
pub type Params = Vec<(String, Tensor)>;

/// Reads a `.params` file from memory.
///
/// # Errors
/// [`LoadError`] with the byte at which the file is no such file.
pub fn read_params(bytes: &[u8]) -> Result<Params, LoadError> {
    read_list(&mut Source::of(bytes), None)
}

/// Reads the `.params` file `path` straight into the memory that its tensors stay in.
///
/// # Errors
/// As [`read_params`], and where the file cannot be read.
pub fn load_params(path: &Path) -> Result<Params, LoadError> {
    load_params_with(path, (None, None, None))
}

/// As [`load_params`]; with wishes as in [`super::LoadOptions`].
pub(super) fn load_params_with(path: &Path, (progress, map, _): Wishes<'_>) -> Result<Params, LoadError> {
    let mut source = Source::open(path)?;
    source.map = map;
    read_list(&mut source, progress).map_err(|e| e.in_file(path))
}

/// Writes `params` as a `.params` file that TVM reads.
///
/// # Errors
/// What `to` returns.
pub fn write_params<'a>(
    to: &mut impl Write,
    params: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> io::Result<()> {
    let params: Vec<(&str, &Tensor)> = params.into_iter().collect();
    for word in [LIST_MAGIC, 0, params.len() as u64] {
        to.write_all(&word.to_le_bytes())?;
    }
    for (name, _) in &params {
        to.write_all(&(name.len() as u64).to_le_bytes())?;
        to.write_all(name.as_bytes())?;
    }
    to.write_all(&(params.len() as u64).to_le_bytes())?;
    for (_, tensor) in params {
        write_array(to, tensor)?;
    }
    Ok(())
}

/// Writes `params` to the file `path` ([`write_params`]).
///
/// # Errors
/// What the system says.
pub fn save_params<'a>(
    path: &Path,
    params: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> io::Result<()> {
    let mut file = io::BufWriter::new(std::fs::File::create(path)?);
    write_params(&mut file, params)?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// What a graph executor factory's binary holds.
#[derive(Clone, Debug)]
pub struct Factory {
    /// The graph's JSON.
    pub graph_json: String,
    /// The parameters.
    pub params: Params,
    /// The module's name.
    pub module_name: String,
}

/// Reads the record that TVM's graph executor factory saves: graph, parameters, name.
///
/// # Errors
/// As [`read_params`].
pub fn read_factory(bytes: &[u8]) -> Result<Factory, LoadError> {
    let s = &mut Source::of(bytes);
    let graph_json = text(s, "the graph's length", u64::MAX)?;
    let count = s.u64("the number of parameters")?;
    let names = names(s)?;
    expect_count(s, "parameters", names.len() as u64, count)?;
    let arrays = headers(s, count)?;
    let module_name = text(s, "the module's name", limits::MAX_NAME_BYTES as u64)?;
    let params = fill(s, names, arrays, None)?;
    Ok(Factory { graph_json, params, module_name })
}

fn read_list(s: &mut Source<'_>, progress: Option<&dyn Fn(u64, u64)>) -> Result<Params, LoadError> {
    magic(s, "a parameter file", LIST_MAGIC)?;
    s.u64("the reserved word")?;
    let names = names(s)?;
    let count = s.u64("the number of arrays")?;
    expect_count(s, "arrays", names.len() as u64, count)?;
    let arrays = headers(s, count)?;
    fill(s, names, arrays, progress)
}

fn magic(s: &mut Source<'_>, what: &'static str, expected: u64) -> Result<(), LoadError> {
    let at = ErrorLocation::ByteOffset(s.at());
    let found = s.u64(what)?;
    if found != expected {
        return Err(LoadErrorKind::Magic { what, expected, found }.at(at));
    }
    Ok(())
}

fn expect_count(s: &Source<'_>, what: &str, expected: u64, found: u64) -> Result<(), LoadError> {
    if expected == found {
        return Ok(());
    }
    Err(s.error(LoadErrorKind::Count { what: format!("number of {what} against names"), expected, found }))
}

fn text(s: &mut Source<'_>, what: &'static str, limit: u64) -> Result<String, LoadError> {
    let bytes = s.u64(what)?;
    s.need(what, bytes)?;
    if bytes > limit {
        return Err(s.error(LoadErrorKind::TooMany { what: "bytes in one name", found: bytes, limit }));
    }
    let at = ErrorLocation::ByteOffset(s.at());
    let raw = s.take(what, bytes)?;
    String::from_utf8(raw).map_err(|_| LoadErrorKind::unexpected("UTF-8 text", "other bytes").at(at))
}

fn names(s: &mut Source<'_>) -> Result<Vec<String>, LoadError> {
    let count = s.u64("the number of names")?;
    // Each name takes eight bytes at least, so a wrong count fails before anything is allocated for it.
    s.need("the list of names", count.saturating_mul(8))?;
    if count > limits::MAX_TENSORS as u64 {
        let limit = limits::MAX_TENSORS as u64;
        return Err(s.error(LoadErrorKind::TooMany { what: "parameters", found: count, limit }));
    }
    let mut seen = HashSet::new();
    let mut names = Vec::new();
    for _ in 0..count {
        let name = text(s, "a name", limits::MAX_NAME_BYTES as u64)?;
        if !seen.insert(name.clone()) {
            return Err(s.error(LoadErrorKind::Duplicate { what: "parameters", name }));
        }
        names.push(name);
    }
    Ok(names)
}

/// Type, shape and place of one array's data.
struct Array {
    info: TensorInfo,
    at: u64,
}

fn headers(s: &mut Source<'_>, count: u64) -> Result<Vec<Array>, LoadError> {
    s.need("the list of arrays", count.saturating_mul(ARRAY_MIN))?;
    (0..count).map(|_| header(s)).collect()
}

fn header(s: &mut Source<'_>) -> Result<Array, LoadError> {
    magic(s, "an array", ARRAY_MAGIC)?;
    s.u64("the reserved word")?;
    let at = s.at();
    let device = s.i32("the device type")?;
    if device != CPU {
        let kind = LoadErrorKind::unexpected("device type 1 (the host)", format!("{device}"));
        return Err(kind.at(ErrorLocation::ByteOffset(at)));
    }
    s.i32("the device number")?;
    let rank = s.i32("the rank")?;
    let Ok(rank) = usize::try_from(rank) else {
        return Err(s.error(LoadErrorKind::unexpected("a number of dimensions", rank.to_string())));
    };
    if rank > limits::MAX_RANK {
        return Err(s.error(ShapeError::Rank { rank, limit: limits::MAX_RANK }.into()));
    }
    let (code, bits, lanes) = (s.u8("the type")?, s.u8("the type")?, s.u16("the type")?);
    let dtype = dtype_of(code, bits).ok_or_else(|| {
        s.error(LoadErrorKind::unsupported(format!("element type code {code} of {bits} bits")))
    })?;
    let sizes: Vec<i64> = (0..rank).map(|_| s.i64("the shape")).collect::<Result<_, _>>()?;
    let wrap = |s: &Source<'_>, e: ShapeError| s.error(e.into());
    let mut info = TensorInfo::new(dtype, Shape::from_i64(&sizes).map_err(|e| wrap(s, e))?);
    let bytes = s.i64("the data's length")?;
    if lanes == 0 {
        return Err(s.error(LoadErrorKind::unexpected("a number of lanes", "0")));
    }
    if lanes > 1 {
        let mut dims = info.shape.dims().to_vec();
        dims.push(usize::from(lanes));
        let all = TensorInfo::new(dtype, Shape::new(dims).map_err(|e| wrap(s, e))?);
        if i64::try_from(all.bytes()) == Ok(bytes) {
            info = all;
        }
    }
    if i64::try_from(info.bytes()) != Ok(bytes) {
        let what = format!("bytes of data of an array {info}");
        let expected = info.bytes() as u64;
        return Err(s.error(LoadErrorKind::Count { what, expected, found: bytes.cast_unsigned() }));
    }
    let at = s.at();
    s.skip("the data", info.bytes() as u64)?;
    Ok(Array { info, at })
}

/// Reads the data of `arrays`, after checking that the file ends where the reader is.
fn fill(
    s: &mut Source<'_>,
    names: Vec<String>,
    arrays: Vec<Array>,
    progress: Option<&dyn Fn(u64, u64)>,
) -> Result<Params, LoadError> {
    if s.left() > 0 {
        return Err(s.error(LoadErrorKind::TrailingBytes { what: "the parameters", bytes: s.left() }));
    }
    let form = |info: &TensorInfo| if info.dtype == DType::Bool { "truth" } else { "" };
    let item = |a: &Array| s.item(a.info.clone(), vec![(a.at, a.info.bytes() as u64)], form(&a.info));
    let items: Vec<Item> = arrays.iter().map(item).collect();
    let tensors = pack(&items, progress, |i, bytes, read| {
        let Some(array) = arrays.get(i) else { return Ok(()) };
        if !read {
            s.seek(array.at)?;
            s.read("the data", bytes)?;
        }
        if array.info.dtype == DType::Bool {
            bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        Ok(())
    })?;
    Ok(names.into_iter().zip(tensors).collect())
}

/// The element type of a DLPack type code and a width.
fn dtype_of(code: u8, bits: u8) -> Option<DType> {
    Some(match (code, bits) {
        (0, 8) => DType::I8,
        (0, 16) => DType::I16,
        (0, 32) => DType::I32,
        (0, 64) => DType::I64,
        (1, 1) => DType::Bool,
        (1, 8) => DType::U8,
        (1, 16) => DType::U16,
        (1, 32) => DType::U32,
        (1, 64) => DType::U64,
        (2, 16) => DType::F16,
        (2, 32) => DType::F32,
        (2, 64) => DType::F64,
        (4, 16) => DType::BF16,
        (10, 8) => DType::F8E4M3Fn,
        (11, 8) => DType::F8E4M3FnUz,
        (12, 8) => DType::F8E5M2,
        (13, 8) => DType::F8E5M2FnUz,
        (14, 8) => DType::F8E8M0,
        _ => return None,
    })
}

/// The DLPack type code and width of an element type that takes whole bytes.
fn code_of(dtype: DType) -> Option<(u8, u8)> {
    Some(match dtype {
        DType::I8 => (0, 8),
        DType::I16 => (0, 16),
        DType::I32 => (0, 32),
        DType::I64 => (0, 64),
        DType::Bool => (1, 1),
        DType::U8 => (1, 8),
        DType::U16 => (1, 16),
        DType::U32 => (1, 32),
        DType::U64 => (1, 64),
        DType::F16 => (2, 16),
        DType::F32 => (2, 32),
        DType::F64 => (2, 64),
        DType::BF16 => (4, 16),
        DType::F8E4M3Fn => (10, 8),
        DType::F8E4M3FnUz => (11, 8),
        DType::F8E5M2 => (12, 8),
        DType::F8E5M2FnUz => (13, 8),
        DType::F8E8M0 => (14, 8),
        DType::F4E2M1 | DType::I4 | DType::U4 | DType::I2 | DType::U2 => return None,
    })
}

fn write_array(to: &mut impl Write, tensor: &Tensor) -> io::Result<()> {
    let (code, bits) = code_of(tensor.dtype()).ok_or_else(|| {
        let problem = format!("tensors of {} are not written to .params files", tensor.dtype());
        io::Error::new(io::ErrorKind::Unsupported, problem)
    })?;
    to.write_all(&ARRAY_MAGIC.to_le_bytes())?;
    to.write_all(&0u64.to_le_bytes())?;
    // A shape has at most `MAX_RANK` sizes, each of which fits `isize`.
    for word in [CPU, 0, tensor.shape().rank() as i32] {
        to.write_all(&word.to_le_bytes())?;
    }
    to.write_all(&[code, bits, 1, 0])?;
    for &size in tensor.shape().iter() {
        to.write_all(&(size as i64).to_le_bytes())?;
    }
    to.write_all(&(tensor.bytes().len() as i64).to_le_bytes())?;
    to.write_all(tensor.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One tensor `p0`, float32 of shape [1, 4], holding 1, 2, 3, 4.
    const EXAMPLE: &str = "b79c04054f8de5f7 0000000000000000 0100000000000000 0200000000000000 7030 \
        0100000000000000 3fa1b496f0405edd 0000000000000000 01000000 00000000 02000000 02 20 0100 \
        0100000000000000 0400000000000000 1000000000000000 0000803f 00000040 00004040 00008040";

    fn example() -> Vec<u8> {
        let hex: Vec<u8> = EXAMPLE.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        hex.chunks(2).map(|c| u8::from_str_radix(std::str::from_utf8(c).unwrap(), 16).unwrap()).collect()
    }

    fn bytes_of(params: &[(String, Tensor)]) -> Vec<u8> {
        let mut out = Vec::new();
        write_params(&mut out, params.iter().map(|(n, t)| (n.as_str(), t))).unwrap();
        out
    }

    fn kind_of(bytes: &[u8]) -> String {
        format!("{:?}", read_params(bytes).unwrap_err().kind())
    }

    #[test]
    fn the_example_is_read_and_written_byte_for_byte() {
        let bytes = example();
        assert_eq!(bytes.len(), 114);
        let params = read_params(&bytes).unwrap();
        assert_eq!(params.len(), 1);
        assert_eq!(params[0].0, "p0");
        assert_eq!(params[0].1.shape().dims(), [1, 4]);
        assert_eq!(params[0].1.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(bytes_of(&params), bytes);
    }

    #[test]
    fn every_type_and_an_empty_tensor_come_back() {
        let mut params: Params = DType::ALL
            .into_iter()
            .filter(|d| d.bits() >= 8)
            .map(|d| {
                let info = TensorInfo::new(d, Shape::new([2, 3]).unwrap());
                let fill = |b: &mut [u8]| {
                    b.iter_mut().enumerate().for_each(|(i, b)| *b = (i % 2) as u8);
                    Ok::<_, LoadError>(())
                };
                (d.name().to_owned(), Tensor::build(info, fill).unwrap())
            })
            .collect();
        params.push(("empty".into(), Tensor::new([0, 5], &[0i32; 0]).unwrap()));
        params.push(("scalar".into(), Tensor::scalar(7i64)));
        let bytes = bytes_of(&params);
        let back = read_params(&bytes).unwrap();
        for ((n, t), (m, u)) in params.iter().zip(&back) {
            assert_eq!((n, t.info(), t.bytes()), (m, u.info(), u.bytes()));
        }
        assert_eq!(back.len(), params.len());

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.params");
        save_params(&path, params.iter().map(|(n, t)| (n.as_str(), t))).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert_eq!(load_params(&path).unwrap()[3].1.bytes(), params[3].1.bytes());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = example();
        let with = |at: usize, value: &[u8]| {
            let mut b = good.clone();
            b[at..at + value.len()].copy_from_slice(value);
            b
        };
        assert!(kind_of(&with(0, &[0])).starts_with("Magic"));
        assert!(kind_of(&with(42, &[0])).starts_with("Magic"));
        assert!(read_params(&with(8, &[7])).is_ok(), "the reserved word is not looked at");
        assert!(kind_of(&with(16, &u64::MAX.to_le_bytes())).starts_with("Truncated"));
        assert!(kind_of(&with(24, &u64::MAX.to_le_bytes())).starts_with("Truncated"));
        assert!(kind_of(&with(34, &[2])).starts_with("Count"));
        assert!(kind_of(&with(58, &[2])).contains("device type 1"));
        assert!(kind_of(&with(66, &(-1i32).to_le_bytes())).contains("a number of dimensions"));
        assert!(kind_of(&with(66, &99i32.to_le_bytes())).contains("Rank"));
        assert!(kind_of(&with(70, &[3, 64])).contains("type code 3"));
        assert!(kind_of(&with(72, &[0, 0])).contains("lanes"));
        assert!(kind_of(&with(74, &(-4i64).to_le_bytes())).contains("Size"));
        assert!(kind_of(&with(74, &i64::MAX.to_le_bytes())).contains("Overflow"));
        assert!(kind_of(&with(90, &[8])).starts_with("Count"));
        assert!(kind_of(&with(32, &[0xff])).contains("UTF-8"));
        let mut long = good.clone();
        long.push(0);
        assert!(kind_of(&long).starts_with("TrailingBytes"));
        let t = Tensor::scalar(1.0f32);
        let twice = bytes_of(&[("a".into(), t.clone()), ("a".into(), t)]);
        assert!(kind_of(&twice).starts_with("Duplicate"));
    }

    #[test]
    fn lanes_are_read_in_the_old_and_the_new_size() {
        // float32x4 of shape [1, 1], 16 bytes: TVM before 0.4.
        let mut old = example();
        old[72..74].copy_from_slice(&4u16.to_le_bytes());
        old[82..90].copy_from_slice(&1i64.to_le_bytes());
        let t = &read_params(&old).unwrap()[0].1;
        assert_eq!((t.shape().dims(), t.as_slice::<f32>().unwrap()[3]), (&[1, 1, 4][..], 4.0));
        // float32x4 of shape [1, 4], 16 bytes: one lane each.
        let mut new = example();
        new[72..74].copy_from_slice(&4u16.to_le_bytes());
        assert_eq!(read_params(&new).unwrap()[0].1.shape().dims(), [1, 4]);
    }

    #[test]
    fn no_prefix_and_no_flipped_bit_panics() {
        let params = vec![
            ("w".to_owned(), Tensor::new([3], &[1i8, 2, 3]).unwrap()),
            ("b".into(), Tensor::scalar(1u8)),
        ];
        let bytes = bytes_of(&params);
        for end in 0..bytes.len() {
            assert!(read_params(&bytes[..end]).is_err(), "{end}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut b = bytes.clone();
            b[bit / 8] ^= 1 << (bit % 8);
            if let Ok(read) = read_params(&b) {
                assert_eq!(read.len(), 2);
            }
        }
    }

    #[test]
    fn a_factory_record_holds_graph_and_parameters() {
        let list = example();
        let mut bytes = Vec::new();
        let word = |b: &mut Vec<u8>, w: u64| b.extend(w.to_le_bytes());
        word(&mut bytes, 2);
        bytes.extend(b"{}");
        word(&mut bytes, 1);
        word(&mut bytes, 1);
        word(&mut bytes, 2);
        bytes.extend(b"p0");
        bytes.extend(&list[42..]);
        word(&mut bytes, 7);
        bytes.extend(b"default");
        let f = read_factory(&bytes).unwrap();
        assert_eq!((f.graph_json.as_str(), f.module_name.as_str()), ("{}", "default"));
        assert_eq!(f.params[0].1.as_slice::<f32>().unwrap()[2], 3.0);
        for end in 0..bytes.len() {
            assert!(read_factory(&bytes[..end]).is_err());
        }
    }
}
