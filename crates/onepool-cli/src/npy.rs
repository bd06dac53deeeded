//! The header of NumPy's `.npy` files.
//!
//! Read here, not with a crate, so that no header of a file can overflow a product or a stack.

use std::io::{self, Read, Write};

use onepool::dtype::DType;
use onepool::graph::TensorInfo;
use onepool::shape::Shape;

/// The longest header that is read; NumPy's own limit is 10,000 characters.
const MAX_HEADER: usize = 1 << 16;
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// What an array file says before its data.
#[derive(Debug, PartialEq)]
pub(super) struct Header {
    /// Type and shape.
    pub(super) info: TensorInfo,
    /// The elements are big-endian.
    pub(super) swapped: bool,
    /// The first axis runs fastest.
    pub(super) fortran: bool,
    /// Where the data starts.
    pub(super) data_at: u64,
}

impl Header {
    /// Reads the header; the reader is left at the data.
    pub(super) fn read(r: &mut impl Read) -> Result<Header, String> {
        let mut start = [0u8; 8];
        read_exact(r, &mut start)?;
        if start[..6] != MAGIC[..] {
            return Err("the file does not begin as a .npy file does".to_owned());
        }
        let (len, before) = match start[6] {
            1 => {
                let mut len = [0u8; 2];
                read_exact(r, &mut len)?;
                (usize::from(u16::from_le_bytes(len)), 10)
            }
            2 | 3 => {
                let mut len = [0u8; 4];
                read_exact(r, &mut len)?;
                (u32::from_le_bytes(len) as usize, 12)
            }
            version => return Err(format!("version {version} of the .npy format is not known")),
        };
        if len > MAX_HEADER {
            return Err(format!("the header has {len} bytes, at most {MAX_HEADER} are read"));
        }
        let mut text = vec![0u8; len];
        read_exact(r, &mut text)?;
        let text = String::from_utf8(text).map_err(|_| "the header is no text".to_owned())?;
        let data_at = (before + len) as u64;
        Dict { rest: &text }.header(data_at)
    }

    /// Writes a header for row-major little-endian data of `info`.
    pub(super) fn write(w: &mut impl Write, info: &TensorInfo) -> io::Result<()> {
        let sizes: Vec<String> = info.shape.iter().map(|d| format!("{d},")).collect();
        let mut text = format!(
            "{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
            descr(info.dtype),
            sizes.join(" ")
        );
        // The data starts at a multiple of 64; the header ends with a line feed.
        let padded = (10 + text.len() + 1).next_multiple_of(64) - 10;
        text.push_str(&" ".repeat(padded - text.len() - 1));
        text.push('\n');
        let len = u16::try_from(text.len()).map_err(|_| io::Error::other("too many dimensions"))?;
        w.write_all(MAGIC)?;
        w.write_all(&[1, 0])?;
        w.write_all(&len.to_le_bytes())?;
        w.write_all(text.as_bytes())
    }
}

fn read_exact(r: &mut impl Read, to: &mut [u8]) -> Result<(), String> {
    r.read_exact(to).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => "the file ends within the .npy header".to_owned(),
        _ => format!("the .npy header cannot be read: {e}"),
    })
}

fn descr(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        // As the ml_dtypes package writes it: NumPy has no bfloat16.
        DType::BF16 => "<V2",
        DType::F64 => "<f8",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        // NumPy has no names for narrow types: what is written is their bytes, as integers.
        DType::I4 | DType::I2 => "|i1",
        _ if dtype.is_narrow() => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        _ => "|b1",
    }
}

fn dtype_of(text: &str) -> Result<(DType, bool), String> {
    let unknown = || format!("elements of type {text:?} are not supported");
    let order = text.chars().next().ok_or_else(unknown)?;
    let kind = text.get(1..).ok_or_else(unknown)?;
    let dtype = DType::COMPUTE.into_iter().find(|d| descr(*d).get(1..) == Some(kind)).ok_or_else(unknown)?;
    match order {
        '<' | '|' => Ok((dtype, false)),
        '=' => Ok((dtype, cfg!(target_endian = "big"))),
        '>' => Ok((dtype, dtype.bytes() > 1)),
        _ => Err(unknown()),
    }
}

/// The header's text: a Python dictionary.
struct Dict<'a> {
    rest: &'a str,
}

impl<'a> Dict<'a> {
    fn header(mut self, data_at: u64) -> Result<Header, String> {
        let (mut element, mut fortran, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.take('}') {
            let key = self.string()?;
            self.expect(':')?;
            match key {
                "descr" => element = Some(self.element()?),
                "fortran_order" => fortran = Some(self.boolean()?),
                "shape" => shape = Some(self.tuple()?),
                other => return Err(format!("the header has an unknown entry {other:?}")),
            }
            if !self.take(',') {
                self.expect('}')?;
                break;
            }
        }
        let missing = |what: &str| format!("the header has no entry {what:?}");
        let (dtype, swapped) = element.ok_or_else(|| missing("descr"))?;
        let shape = Shape::new(shape.ok_or_else(|| missing("shape"))?).map_err(|e| e.to_string())?;
        let fortran = fortran.ok_or_else(|| missing("fortran_order"))?;
        Ok(Header { info: TensorInfo::new(dtype, shape), swapped, fortran, data_at })
    }

    fn element(&mut self) -> Result<(DType, bool), String> {
        self.space();
        if self.rest.starts_with('[') {
            return Err("arrays of records are not supported".to_owned());
        }
        dtype_of(self.string()?)
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, c: char) -> bool {
        self.space();
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        if self.take(c) { Ok(()) } else { Err(format!("the header lacks a {c:?}")) }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        self.space();
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'));
        let found = quote.and_then(|q| self.rest.get(1..)?.split_once(q));
        let (text, rest) = found.ok_or_else(|| "the header lacks a string".to_owned())?;
        self.rest = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.space();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err("the header's \"fortran_order\" is neither True nor False".to_owned())
    }

    fn tuple(&mut self) -> Result<Vec<usize>, String> {
        self.expect('(')?;
        let mut sizes = Vec::new();
        while !self.take(')') {
            self.space();
            let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
            let (digits, rest) = self.rest.split_at(end);
            sizes.push(digits.parse().map_err(|_| format!("the header has an impossible size {digits:?}"))?);
            // Python 2 wrote long integers with an L.
            self.rest = rest.strip_prefix('L').unwrap_or(rest);
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Header, String> {
        let mut file = MAGIC.to_vec();
        file.extend([1, 0]);
        file.extend((text.len() as u16).to_le_bytes());
        file.extend(text.as_bytes());
        Header::read(&mut file.as_slice())
    }

    #[test]
    fn a_written_header_is_read_for_every_type_and_rank() {
        for dtype in DType::COMPUTE {
            for dims in [vec![], vec![7], vec![2, 0, 3], vec![1; 16]] {
                let info = TensorInfo::new(dtype, Shape::new(dims).unwrap());
                let mut file = Vec::new();
                Header::write(&mut file, &info).unwrap();
                assert_eq!(file.len() % 64, 0);
                let data_at = file.len() as u64;
                let header = Header::read(&mut file.as_slice()).unwrap();
                assert_eq!(header, Header { info, swapped: false, fortran: false, data_at });
            }
        }
    }

    #[test]
    fn what_numpy_writes_is_read() {
        let h = parse("{'descr': '>f4', 'fortran_order': True, 'shape': (3, 4), }   \n").unwrap();
        assert_eq!(h.info.to_string(), "float32[3, 4]");
        assert!(h.swapped && h.fortran);
        let h = parse("{\"shape\":(3L,),\"descr\":\"|u1\",\"fortran_order\":False}").unwrap();
        assert_eq!((h.info.to_string().as_str(), h.swapped), ("uint8[3]", false));
        assert_eq!(
            parse("{'descr':'<f8','fortran_order':False,'shape':()}").unwrap().info.to_string(),
            "float64[]"
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let says = |text: &str, what: &str| {
            let e = parse(text).unwrap_err();
            assert!(e.contains(what), "{e}");
        };
        says("{'descr': '<U5', 'fortran_order': False, 'shape': (3,)}", "\"<U5\" are not supported");
        says("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}", "records");
        says("{'descr': '<f4', 'fortran_order': 1, 'shape': (3,)}", "neither True nor False");
        says("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}", "impossible size");
        says("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,)}", "impossible");
        says("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", "too many");
        says("{'descr': '<f4', 'fortran_order': False}", "no entry \"shape\"");
        says("{'descr': 'é4', 'fortran_order': False, 'shape': ()}", "not supported");
        says(&"(".repeat(60_000), "lacks a '{'");
        assert!(Header::read(&mut &b"\x93NUMPY\x01\x00\xff"[..]).unwrap_err().contains("ends within"));
        assert!(
            Header::read(&mut &b"\x93NUMPY\x02\x00\xff\xff\xff\xff"[..]).unwrap_err().contains("at most")
        );
        assert!(Header::read(&mut &b"PNG.....more"[..]).unwrap_err().contains("does not begin"));
    }
}
