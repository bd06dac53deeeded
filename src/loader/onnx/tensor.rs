//! `TensorProto`: type, shape, and data held in the message itself.

use prost::Message as _;

use super::proto::{SparseTensorProto, StringStringEntryProto, TensorProto, data_type};
use super::skeleton::{Message, skeleton};
use super::store::Store;
use crate::dtype::{DType, pack_bits, unpack_bits};
use crate::graph::{Tensor, TensorInfo};
use crate::limits;
use crate::loader::error::{ErrorLocation, LoadError, LoadErrorKind};
use crate::loader::source::Source;
use crate::shape::Shape;

/// The element type numbered `number`.
pub(super) fn dtype_of(number: i32) -> Result<DType, LoadErrorKind> {
    Ok(match number {
        data_type::FLOAT => DType::F32,
        data_type::UINT8 => DType::U8,
        data_type::INT8 => DType::I8,
        data_type::UINT16 => DType::U16,
        data_type::INT16 => DType::I16,
        data_type::INT32 => DType::I32,
        data_type::INT64 => DType::I64,
        data_type::BOOL => DType::Bool,
        data_type::FLOAT16 => DType::F16,
        data_type::DOUBLE => DType::F64,
        data_type::UINT32 => DType::U32,
        data_type::UINT64 => DType::U64,
        data_type::BFLOAT16 => DType::BF16,
        data_type::FLOAT8E4M3FN => DType::F8E4M3Fn,
        data_type::FLOAT8E4M3FNUZ => DType::F8E4M3FnUz,
        data_type::FLOAT8E5M2 => DType::F8E5M2,
        data_type::FLOAT8E5M2FNUZ => DType::F8E5M2FnUz,
        data_type::UINT4 => DType::U4,
        data_type::INT4 => DType::I4,
        data_type::FLOAT4E2M1 => DType::F4E2M1,
        data_type::FLOAT8E8M0 => DType::F8E8M0,
        data_type::UINT2 => DType::U2,
        data_type::INT2 => DType::I2,
        other => {
            let name = usize::try_from(other).ok().and_then(|i| data_type::NAMES.get(i).copied());
            return Err(match name {
                Some("UNDEFINED") => LoadErrorKind::missing("the element type"),
                Some(name) => LoadErrorKind::unsupported(format!("element type {name}")),
                None => LoadErrorKind::unsupported(format!("element type number {other}")),
            });
        }
    })
}

/// The number of an element type.
pub(super) fn number_of(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => data_type::FLOAT,
        DType::U8 => data_type::UINT8,
        DType::I8 => data_type::INT8,
        DType::U16 => data_type::UINT16,
        DType::I16 => data_type::INT16,
        DType::I32 => data_type::INT32,
        DType::I64 => data_type::INT64,
        DType::Bool => data_type::BOOL,
        DType::F16 => data_type::FLOAT16,
        DType::F64 => data_type::DOUBLE,
        DType::U32 => data_type::UINT32,
        DType::U64 => data_type::UINT64,
        DType::BF16 => data_type::BFLOAT16,
        DType::F8E4M3Fn => data_type::FLOAT8E4M3FN,
        DType::F8E4M3FnUz => data_type::FLOAT8E4M3FNUZ,
        DType::F8E5M2 => data_type::FLOAT8E5M2,
        DType::F8E5M2FnUz => data_type::FLOAT8E5M2FNUZ,
        DType::U4 => data_type::UINT4,
        DType::I4 => data_type::INT4,
        DType::F4E2M1 => data_type::FLOAT4E2M1,
        DType::F8E8M0 => data_type::FLOAT8E8M0,
        DType::U2 => data_type::UINT2,
        DType::I2 => data_type::INT2,
    }
}

/// Type and shape of `proto`.
pub(super) fn info_of(proto: &TensorProto) -> Result<TensorInfo, LoadErrorKind> {
    if proto.segment.is_some() {
        return Err(LoadErrorKind::unsupported("a tensor in segments"));
    }
    Ok(TensorInfo::new(dtype_of(proto.data_type)?, Shape::from_i64(&proto.dims)?))
}

/// An error that the data of a tensor `info` is not as long as its shape says.
pub(super) fn length_error(info: &TensorInfo, unit: &str, expected: u64, found: u64) -> LoadErrorKind {
    LoadErrorKind::Count { what: format!("{unit} of data of a tensor {info}"), expected, found }
}

/// Checks that the typed fields of `proto` hold as many elements as `info` has.
pub(super) fn check_typed(proto: &TensorProto, info: &TensorInfo) -> Result<(), LoadErrorKind> {
    let found = match info.dtype {
        DType::F32 => proto.float_data.len(),
        DType::F64 => proto.double_data.len(),
        DType::I64 => proto.int64_data.len(),
        DType::U32 | DType::U64 => proto.uint64_data.len(),
        _ => proto.int32_data.len(),
    };
    // An entry holds a byte of packed elements (onnx.proto, `int32_data`).
    let expected = if info.dtype.bits() < 8 { stored_bytes(info) } else { info.elements() };
    if found == expected {
        return Ok(());
    }
    Err(length_error(info, "elements", expected as u64, found as u64))
}

/// Bytes that the elements of a tensor `info` take in a file.
pub(super) fn stored_bytes(info: &TensorInfo) -> usize {
    match info.dtype.bits() {
        2 => info.elements().div_ceil(4),
        4 => info.elements().div_ceil(2),
        _ => info.bytes(),
    }
}

/// Makes elements of a byte each of the packed ones that `to` begins with, where a file packs them.
pub(super) fn unpack(dtype: DType, to: &mut [u8]) {
    if dtype.bits() < 8 {
        unpack_bits(to, dtype.bits(), matches!(dtype, DType::I4 | DType::I2));
    }
}

/// Writes the typed fields of `proto` as elements of `dtype` to `to`.
pub(super) fn fill_typed(proto: &TensorProto, dtype: DType, to: &mut [u8]) -> Result<(), LoadErrorKind> {
    match dtype {
        DType::F32 => put(to, proto.float_data.iter().map(|v| v.to_le_bytes())),
        DType::F64 => put(to, proto.double_data.iter().map(|v| v.to_le_bytes())),
        DType::I64 => put(to, proto.int64_data.iter().map(|v| v.to_le_bytes())),
        DType::U64 => put(to, proto.uint64_data.iter().map(|v| v.to_le_bytes())),
        DType::U32 => put_narrow::<u32, _, 4>(to, &proto.uint64_data, dtype, u32::to_le_bytes)?,
        DType::I32 => put(to, proto.int32_data.iter().map(|v| v.to_le_bytes())),
        DType::I16 => put_narrow::<i16, _, 2>(to, &proto.int32_data, dtype, i16::to_le_bytes)?,
        DType::I8 => put_narrow::<i8, _, 1>(to, &proto.int32_data, dtype, i8::to_le_bytes)?,
        DType::U8 => put_narrow::<u8, _, 1>(to, &proto.int32_data, dtype, u8::to_le_bytes)?,
        // Half floats are held as their bits.
        DType::U16 | DType::F16 | DType::BF16 => {
            put_narrow::<u16, _, 2>(to, &proto.int32_data, dtype, u16::to_le_bytes)?;
        }
        DType::Bool => put(to, proto.int32_data.iter().map(|v| [u8::from(*v != 0)])),
        // Narrow elements are held as their bits, too.
        _ => {
            put_narrow::<u8, _, 1>(to, &proto.int32_data, dtype, u8::to_le_bytes)?;
            unpack(dtype, to);
        }
    }
    Ok(())
}

fn put<const N: usize>(to: &mut [u8], values: impl Iterator<Item = [u8; N]>) {
    for (slot, value) in to.chunks_exact_mut(N).zip(values) {
        slot.copy_from_slice(&value);
    }
}

fn put_narrow<T: TryFrom<S>, S: Copy + std::fmt::Display, const N: usize>(
    to: &mut [u8],
    values: &[S],
    dtype: DType,
    bytes: fn(T) -> [u8; N],
) -> Result<(), LoadErrorKind> {
    for (slot, &value) in to.chunks_exact_mut(N).zip(values) {
        let narrow = T::try_from(value)
            .map_err(|_| LoadErrorKind::unexpected(format!("values of {dtype}"), value.to_string()))?;
        slot.copy_from_slice(&bytes(narrow));
    }
    Ok(())
}

/// The dense tensor that `proto` stands for; `budget` is how many bytes such tensors may still have.
pub(super) fn densify(
    proto: &SparseTensorProto,
    values: &Tensor,
    indices: &Tensor,
    budget: &mut usize,
) -> Result<Tensor, LoadErrorKind> {
    let info = TensorInfo::new(values.dtype(), Shape::from_i64(&proto.dims)?);
    let Some(rest) = budget.checked_sub(info.bytes()) else {
        let (found, limit) = (info.bytes() as u64, limits::MAX_FOLDED_BYTES as u64);
        return Err(LoadErrorKind::TooMany { what: "bytes of dense data of sparse tensors", found, limit });
    };
    *budget = rest;
    let places = linear_indices(&info.shape, values.shape().elements(), indices)?;
    let size = info.dtype.bytes();
    Tensor::build(info, |to| {
        for (place, value) in places.into_iter().zip(values.bytes().chunks_exact(size)) {
            if let Some(slot) = to.chunks_exact_mut(size).nth(place) {
                slot.copy_from_slice(value);
            }
        }
        Ok(())
    })
}

/// The position of each value: `indices` holds positions, or a row of coordinates for each value.
fn linear_indices(shape: &Shape, count: usize, indices: &Tensor) -> Result<Vec<usize>, LoadErrorKind> {
    let all = indices.to_i64s()?;
    let rank = shape.rank();
    let total = shape.elements();
    let out_of_range = |index: i64, count: usize| LoadErrorKind::OutOfRange {
        what: "index of a sparse tensor",
        index,
        count: count as u64,
    };
    let within = |index: i64, count: usize| {
        usize::try_from(index).ok().filter(|i| *i < count).ok_or_else(|| out_of_range(index, count))
    };
    if indices.shape().dims() == [count] {
        return all.into_iter().map(|i| within(i, total)).collect();
    }
    if indices.shape().dims() != [count, rank] {
        let expected = format!("indices of shape [{count}] or [{count}, {rank}]");
        return Err(LoadErrorKind::unexpected(expected, indices.shape().to_string()));
    }
    let strides = shape.strides();
    all.chunks(rank.max(1))
        .map(|row| {
            row.iter().zip(shape.iter().zip(&strides)).try_fold(0usize, |sum, (&i, (&size, &stride))| {
                Ok(sum.saturating_add(within(i, size)?.saturating_mul(stride)))
            })
        })
        .collect()
}

/// Reads one serialized `TensorProto`: its name and the tensor, as test cases (`input_0.pb`) hold them.
///
/// # Errors
/// [`LoadError`]; [`LoadErrorKind::Unsupported`] for sequences and optionals and for element types that
/// have no [`DType`].
pub fn read_tensor_pb(bytes: &[u8]) -> Result<(String, Tensor), LoadError> {
    let decoded = skeleton(&mut Source::of(bytes), Message::Tensor).and_then(|s| {
        let proto = TensorProto::decode(s.bytes.as_slice()).map_err(|e| decode_error("ONNX tensor", &e))?;
        Ok((proto, s.held))
    });
    let read = decoded.and_then(|(proto, held)| {
        let tensor = Store::new(Source::of(bytes), held, Vec::new()).tensor(&proto)?;
        Ok((proto.name, tensor))
    });
    match read {
        Err(_) if is_container(bytes) => {
            let what = "a sequence or optional where a tensor is expected";
            Err(LoadErrorKind::unsupported(what).into())
        }
        other => other,
    }
}

/// The tensors of a `SequenceProto` with its name; `None` where `bytes` are a tensor or nothing of the kind. An
/// optional with a tensor looks like a sequence of one.
///
/// # Errors
/// Of an element: as [`read_tensor_pb`].
pub fn read_list_pb(bytes: &[u8]) -> Result<Option<(String, Vec<Tensor>)>, LoadError> {
    if read_tensor_pb(bytes).is_ok() || !is_container(bytes) {
        return Ok(None);
    }
    let found = ContainerProto::decode(bytes).map_err(|e| decode_error("ONNX sequence", &e))?;
    let items = found.values.iter().map(|item| Ok(read_tensor_pb(item)?.1));
    Ok(Some((found.name, items.collect::<Result<_, LoadError>>()?)))
}

/// Whether `bytes`, which are no tensor, are rather a sequence or an optional: a name, a kind of element,
/// and elements.
fn is_container(bytes: &[u8]) -> bool {
    let Ok(found) = ContainerProto::decode(bytes) else { return false };
    let named = !found.name.is_empty() && found.name.bytes().all(|b| b.is_ascii_graphic());
    found.tensor_name.is_none() && found.raw_data.is_none() && (named || !found.values.is_empty())
}

/// A `SequenceProto` or an `OptionalProto`, and the fields by which a tensor is told from them.
#[derive(Clone, PartialEq, prost::Message)]
struct ContainerProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "2")]
    elem_type: i32,
    #[prost(bytes = "vec", repeated, tag = "3")]
    values: Vec<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "8")]
    tensor_name: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "9")]
    raw_data: Option<Vec<u8>>,
}

/// Serializes `tensor` as a `TensorProto` named `name`.
pub fn write_tensor_pb(name: &str, tensor: &Tensor) -> Vec<u8> {
    let raw = match tensor.dtype().bits() {
        bits @ ..8 => pack_bits(tensor.bytes(), bits).into(),
        _ => prost::bytes::Bytes::copy_from_slice(tensor.bytes()),
    };
    TensorProto {
        name: name.to_owned(),
        dims: tensor.shape().iter().map(|&d| d as i64).collect(),
        data_type: number_of(tensor.dtype()),
        raw_data: Some(raw),
        ..TensorProto::default()
    }
    .encode_to_vec()
}

/// An error of the decoder.
pub(super) fn decode_error(what: &'static str, e: &prost::DecodeError) -> LoadError {
    LoadErrorKind::Decode { what, problem: e.to_string() }.into()
}

/// The entry of `entries` with key `key`.
pub(super) fn entry<'a>(entries: &'a [StringStringEntryProto], key: &str) -> Option<&'a str> {
    entries.iter().find(|e| e.key == key).map(|e| e.value.as_str())
}

/// Where errors about `proto` are.
pub(super) fn location(proto: &TensorProto) -> ErrorLocation {
    ErrorLocation::Tensor(proto.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(proto: &TensorProto) -> Result<Tensor, LoadError> {
        read_tensor_pb(&proto.encode_to_vec()).map(|(_, t)| t)
    }

    fn proto(data_type: i32, dims: &[i64]) -> TensorProto {
        TensorProto { data_type, dims: dims.to_vec(), name: "t".into(), ..Default::default() }
    }

    #[test]
    fn every_type_is_written_and_read() {
        for dtype in DType::ALL {
            assert_eq!(dtype_of(number_of(dtype)).unwrap(), dtype);
            for elements in [3usize, 700] {
                let info = TensorInfo::new(dtype, Shape::new([elements]).unwrap());
                let fill = |b: &mut [u8]| {
                    b.iter_mut().enumerate().for_each(|(i, b)| *b = u8::from(i % 3 == 0));
                    Ok::<(), LoadError>(())
                };
                let t = Tensor::build(info, fill).unwrap();
                let (name, back) = read_tensor_pb(&write_tensor_pb("y", &t)).unwrap();
                assert_eq!((name.as_str(), back.info(), back.bytes()), ("y", t.info(), t.bytes()));
            }
        }
    }

    #[test]
    fn typed_fields_are_read() {
        let ints = |data_type| TensorProto { int32_data: vec![1, 0, 7], ..proto(data_type, &[3]) };
        assert_eq!(read(&ints(data_type::INT8)).unwrap().as_slice::<i8>().unwrap(), [1, 0, 7]);
        assert_eq!(read(&ints(data_type::UINT16)).unwrap().as_slice::<u16>().unwrap(), [1, 0, 7]);
        assert_eq!(read(&ints(data_type::INT32)).unwrap().as_slice::<i32>().unwrap(), [1, 0, 7]);
        assert_eq!(read(&ints(data_type::BOOL)).unwrap().as_slice::<u8>().unwrap(), [1, 0, 1]);
        let half = TensorProto { int32_data: vec![0x3c00], ..proto(data_type::FLOAT16, &[1]) };
        assert_eq!(read(&half).unwrap().to_f32s().unwrap(), [1.0]);
        let f = TensorProto { float_data: vec![1.5, 2.0], ..proto(data_type::FLOAT, &[2, 1]) };
        assert_eq!(read(&f).unwrap().as_slice::<f32>().unwrap(), [1.5, 2.0]);
        let d = TensorProto { double_data: vec![1.5], ..proto(data_type::DOUBLE, &[]) };
        assert_eq!(read(&d).unwrap().as_slice::<f64>().unwrap(), [1.5]);
        let u = TensorProto { uint64_data: vec![u64::MAX], ..proto(data_type::UINT64, &[1]) };
        assert_eq!(read(&u).unwrap().as_slice::<u64>().unwrap(), [u64::MAX]);
        let i = TensorProto { int64_data: vec![-5], ..proto(data_type::INT64, &[1]) };
        assert_eq!(read(&i).unwrap().to_i64s().unwrap(), [-5]);
        assert_eq!(read(&proto(data_type::FLOAT, &[0, 4])).unwrap().shape().elements(), 0);
    }

    #[test]
    fn elements_of_less_than_a_byte_are_unpacked() {
        let typed = TensorProto { int32_data: vec![0x9A, 0x0F], ..proto(data_type::INT4, &[3]) };
        assert_eq!(read(&typed).unwrap().as_slice::<i8>().unwrap(), [-6, -7, -1]);
        let raw = |data_type, raw: &[u8], n| TensorProto {
            raw_data: Some(raw.to_vec().into()),
            ..proto(data_type, &[n])
        };
        assert_eq!(read(&raw(data_type::UINT4, &[0x9A, 0xFF], 3)).unwrap().bytes(), [10, 9, 15]);
        assert_eq!(read(&raw(data_type::FLOAT4E2M1, &[0x1F], 2)).unwrap().bytes(), [15, 1]);
        let twos = read(&raw(data_type::INT2, &[0b10_01_00_11, 1], 5)).unwrap();
        assert_eq!(twos.as_slice::<i8>().unwrap(), [-1, 0, 1, -2, 1]);
        assert_eq!(read(&raw(data_type::UINT2, &[0b10_01_00_11], 4)).unwrap().bytes(), [3, 0, 1, 2]);
        let long = read(&raw(data_type::UINT4, &[0x9A, 0xFF], 2)).unwrap_err();
        assert!(long.to_string().contains("expected 1, found 2"), "{long}");
        let short = TensorProto { int32_data: vec![1], ..proto(data_type::INT4, &[3]) };
        assert!(read(&short).is_err());
        let eights = TensorProto { int32_data: vec![0x7E, 0xFF], ..proto(data_type::FLOAT8E4M3FN, &[2]) };
        assert_eq!(read(&eights).unwrap().bytes(), [0x7E, 0xFF]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let says = |p: &TensorProto, text: &str| {
            let e = read(p).unwrap_err();
            assert!(e.to_string().contains(text), "{e}");
        };
        says(&proto(data_type::FLOAT, &[2]), "elements of data of a tensor float32[2]: expected 2, found 0");
        let raw = TensorProto { raw_data: Some(vec![0; 7].into()), ..proto(data_type::FLOAT, &[2]) };
        says(&raw, "tensor \"t\": bytes of data of a tensor float32[2]: expected 8, found 7");
        says(&proto(data_type::FLOAT, &[-2]), "impossible size -2");
        says(&proto(data_type::FLOAT, &[i64::MAX, i64::MAX]), "too many elements");
        says(&proto(8, &[1]), "unsupported: element type STRING");
        says(&proto(27, &[1]), "unsupported: element type FLOAT6E2M3");
        says(&proto(99, &[1]), "element type number 99");
        says(&proto(0, &[1]), "the element type is missing");
        let narrow = TensorProto { int32_data: vec![300], ..proto(data_type::UINT8, &[1]) };
        says(&narrow, "expected values of uint8, found 300");
        let external = TensorProto { data_location: 1, ..proto(data_type::FLOAT, &[1]) };
        says(&external, "external data");
    }

    #[test]
    fn a_sequence_or_optional_is_unsupported() {
        let one = TensorProto { float_data: vec![1.0], ..proto(data_type::FLOAT, &[1]) }.encode_to_vec();
        let container = |name: &str, values: &[Vec<u8>]| ContainerProto {
            name: name.into(),
            elem_type: 1,
            values: values.to_vec(),
            ..Default::default()
        };
        let sequence = container("", &[one]).encode_to_vec();
        let optional = container("optional_input", &[]).encode_to_vec();
        for bytes in [sequence, optional] {
            let e = read_tensor_pb(&bytes).unwrap_err();
            assert!(e.is_unsupported(), "{e}");
        }
        assert!(!read(&proto(data_type::FLOAT, &[2])).unwrap_err().is_unsupported());
    }

    #[test]
    fn sparse_tensors_become_dense() {
        let p = SparseTensorProto { dims: vec![2, 3], ..Default::default() };
        let values = Tensor::new([2], &[5.0f32, 7.0]).unwrap();
        let mut budget = 100;
        let mut dense = |indices: &Tensor| densify(&p, &values, indices, &mut budget);
        let t = dense(&Tensor::from_i64s(&[1, 5])).unwrap();
        assert_eq!(t.as_slice::<f32>().unwrap(), [0.0, 5.0, 0.0, 0.0, 0.0, 7.0]);
        let rows = Tensor::new([2, 2], &[0i64, 1, 1, 2]).unwrap();
        assert_eq!(dense(&rows).unwrap().bytes(), t.bytes());
        assert!(matches!(
            dense(&Tensor::from_i64s(&[1, 6])),
            Err(LoadErrorKind::OutOfRange { index: 6, .. })
        ));
        assert!(matches!(dense(&Tensor::from_i64s(&[1])), Err(LoadErrorKind::Unexpected { .. })));
        assert!(matches!(dense(&Tensor::from_i64s(&[0, 1])), Err(LoadErrorKind::TooMany { .. })));
    }

    #[test]
    fn no_prefix_and_no_flipped_bit_panics() {
        let t = Tensor::new([2, 2], &[1i64, 2, 3, 4]).unwrap();
        let bytes = write_tensor_pb("x", &t);
        for end in 0..bytes.len() {
            assert!(read_tensor_pb(&bytes[..end]).is_err(), "{end}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut b = bytes.clone();
            b[bit / 8] ^= 1 << (bit % 8);
            if let Ok((_, t)) = read_tensor_pb(&b) {
                assert!(t.bytes().len() <= bytes.len());
            }
        }
    }
}
