//! The protocol's names of element types, and values that a message carries in typed fields.

use bytes::Bytes;
use onepool::DType;

use crate::proto::{DataType, InferTensorContents};

/// The names and numbers of the element types that the protocol has.
const NAMES: [(DType, &str, DataType); 13] = [
    (DType::Bool, "BOOL", DataType::TypeBool),
    (DType::U8, "UINT8", DataType::TypeUint8),
    (DType::U16, "UINT16", DataType::TypeUint16),
    (DType::U32, "UINT32", DataType::TypeUint32),
    (DType::U64, "UINT64", DataType::TypeUint64),
    (DType::I8, "INT8", DataType::TypeInt8),
    (DType::I16, "INT16", DataType::TypeInt16),
    (DType::I32, "INT32", DataType::TypeInt32),
    (DType::I64, "INT64", DataType::TypeInt64),
    (DType::F16, "FP16", DataType::TypeFp16),
    (DType::BF16, "BF16", DataType::TypeBf16),
    (DType::F32, "FP32", DataType::TypeFp32),
    (DType::F64, "FP64", DataType::TypeFp64),
];

/// The protocol's name of a type, where it has one.
pub(crate) fn name(dtype: DType) -> Option<&'static str> {
    NAMES.iter().find(|(own, ..)| *own == dtype).map(|(_, name, _)| *name)
}

/// The protocol's number of a type.
pub(crate) fn number(dtype: DType) -> DataType {
    NAMES.iter().find(|(own, ..)| *own == dtype).map_or(DataType::TypeInvalid, |(.., number)| *number)
}

/// Why a name is none of a type that can be served.
pub(crate) fn parse(given: &str) -> Result<DType, String> {
    if let Some((dtype, ..)) = NAMES.iter().find(|(_, name, _)| *name == given) {
        return Ok(*dtype);
    }
    if given == "BYTES" {
        return Err("datatype BYTES is not served: models have no strings as inputs or outputs".to_owned());
    }
    let known: Vec<&str> = NAMES.iter().map(|(_, name, _)| *name).collect();
    Err(format!("datatype {:?} is none of {}", shown(given), known.join(", ")))
}

/// Text of a caller's, short enough to be sent back.
pub(crate) fn shown(text: &str) -> &str {
    let end = (0..=text.len().min(120)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

/// The bytes of `elements` elements that a message carries in the typed field for `dtype`.
pub(crate) fn typed(contents: &InferTensorContents, dtype: DType, elements: usize) -> Result<Bytes, String> {
    let InferTensorContents {
        bool_contents,
        int_contents,
        int64_contents,
        uint_contents,
        uint64_contents,
        fp32_contents,
        fp64_contents,
        bytes_contents,
    } = contents;
    let filled: Vec<(&str, usize)> = [
        ("bool_contents", bool_contents.len()),
        ("int_contents", int_contents.len()),
        ("int64_contents", int64_contents.len()),
        ("uint_contents", uint_contents.len()),
        ("uint64_contents", uint64_contents.len()),
        ("fp32_contents", fp32_contents.len()),
        ("fp64_contents", fp64_contents.len()),
        ("bytes_contents", bytes_contents.len()),
    ]
    .into_iter()
    .filter(|(_, len)| *len > 0)
    .collect();
    let field = match dtype {
        DType::Bool => "bool_contents",
        DType::I8 | DType::I16 | DType::I32 => "int_contents",
        DType::I64 => "int64_contents",
        DType::U8 | DType::U16 | DType::U32 => "uint_contents",
        DType::U64 => "uint64_contents",
        DType::F32 => "fp32_contents",
        DType::F64 => "fp64_contents",
        _ => {
            let name = name(dtype).unwrap_or("this type");
            return Err(format!("contents have no field for {name}: send raw_input_contents"));
        }
    };
    if let Some((other, _)) = filled.iter().find(|(name, _)| *name != field) {
        return Err(format!("contents are in {other}, those of its datatype belong in {field}"));
    }
    let got = filled.first().map_or(0, |(_, len)| *len);
    if got != elements {
        return Err(format!("{field} has {got} values, the shape has {elements}"));
    }
    let range = |at: Option<usize>| match at {
        Some(at) => Err(format!("value {at} of {field} does not fit its datatype")),
        None => Ok(()),
    };
    macro_rules! narrowed {
        ($values:expr, $to:ty) => {{
            range($values.iter().position(|value| <$to>::try_from(*value).is_err()))?;
            $values.iter().flat_map(|value| (*value as $to).to_le_bytes()).collect()
        }};
    }
    let bytes: Vec<u8> = match dtype {
        DType::Bool => bool_contents.iter().map(|value| u8::from(*value)).collect(),
        DType::I8 => narrowed!(int_contents, i8),
        DType::I16 => narrowed!(int_contents, i16),
        DType::I32 => int_contents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::I64 => int64_contents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::U8 => narrowed!(uint_contents, u8),
        DType::U16 => narrowed!(uint_contents, u16),
        DType::U32 => uint_contents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::U64 => uint64_contents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::F32 => fp32_contents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        _ => fp64_contents.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_protocol_and_others_are_refused() {
        for (dtype, text, tag) in NAMES {
            assert_eq!((parse(text), name(dtype), number(dtype)), (Ok(dtype), Some(text), tag));
        }
        assert!(parse("BYTES").unwrap_err().contains("strings"));
        assert!(parse("fp32").unwrap_err().contains("none of BOOL"));
        assert_eq!((name(DType::I4), number(DType::I4)), (None, DataType::TypeInvalid));
        assert_eq!(shown(&"ä".repeat(100)).len(), 120);
    }

    #[test]
    fn typed_values_become_elements_or_an_error_that_names_the_field() {
        let of = |ints: &[i32]| InferTensorContents { int_contents: ints.to_vec(), ..Default::default() };
        assert_eq!(typed(&of(&[-1, 2]), DType::I8, 2).unwrap()[..], [255, 2]);
        assert_eq!(typed(&of(&[-1]), DType::I16, 1).unwrap()[..], [255, 255]);
        assert!(typed(&of(&[1, 300]), DType::I8, 2).unwrap_err().starts_with("value 1 of int_contents"));
        assert!(typed(&of(&[1]), DType::I32, 2).unwrap_err().contains("has 1 values, the shape has 2"));
        assert!(typed(&of(&[1]), DType::F32, 1).unwrap_err().contains("belong in fp32_contents"));
        assert!(typed(&of(&[]), DType::F16, 1).unwrap_err().contains("raw_input_contents"));
        let bools = InferTensorContents { bool_contents: vec![true, false], ..Default::default() };
        assert_eq!(typed(&bools, DType::Bool, 2).unwrap()[..], [1, 0]);
        let floats = InferTensorContents { fp32_contents: vec![1.5], ..Default::default() };
        assert_eq!(typed(&floats, DType::F32, 1).unwrap()[..], 1.5f32.to_le_bytes());
    }
}
