//! Element types: their numbers in onnxruntime's interface and in `onnx.proto`, and which of them both sides
//! keep in the same bytes.

use onepool::DType;

/// Types, with their numbers in onnxruntime's interface and in `onnx.proto`.
const NUMBERS: &[(u32, i64, DType)] = &[
    (1, 1, DType::F32),
    (2, 2, DType::U8),
    (3, 3, DType::I8),
    (4, 4, DType::U16),
    (5, 5, DType::I16),
    (6, 6, DType::I32),
    (7, 7, DType::I64),
    (9, 9, DType::Bool),
    (10, 10, DType::F16),
    (11, 11, DType::F64),
    (12, 12, DType::U32),
    (13, 13, DType::U64),
    (16, 16, DType::BF16),
    (17, 17, DType::F8E4M3Fn),
    (18, 18, DType::F8E4M3FnUz),
    (19, 19, DType::F8E5M2),
    (20, 20, DType::F8E5M2FnUz),
    (21, 21, DType::U4),
    (22, 22, DType::I4),
    (23, 23, DType::F4E2M1),
    (24, 25, DType::U2),
    (25, 26, DType::I2),
    (26, 24, DType::F8E8M0),
];

/// The type that onnxruntime has this number for, where the library has it.
pub(crate) fn dtype(number: u32) -> Option<DType> {
    NUMBERS.iter().find(|(known, ..)| *known == number).map(|(.., dtype)| *dtype)
}

/// The number in `onnx.proto` of a type that onnxruntime has this number for. Both have one for types that the library does
/// not have, texts say, and the loader refuses those.
pub(crate) fn in_file(number: u32) -> i64 {
    NUMBERS.iter().find(|(known, ..)| *known == number).map_or(i64::from(number), |(_, file, _)| *file)
}

/// Whether a tensor has the same bytes on both sides: onnxruntime packs elements below a byte.
pub(crate) fn is_shared(number: u32) -> bool {
    dtype(number).is_some_and(|dtype| dtype.bits() >= 8)
}

/// Bytes that onnxruntime keeps a tensor in.
pub(crate) fn stored_bytes(element: u32, dims: &[i64]) -> Option<usize> {
    let bits = dtype(element)?.bits();
    let elements = dims.iter().try_fold(1usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?))?;
    elements.checked_mul(bits).map(|bits| bits.div_ceil(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_number() {
        for of in DType::ALL {
            assert_eq!(NUMBERS.iter().filter(|(.., known)| *known == of).count(), 1, "{of}");
        }
        assert_eq!((dtype(8), dtype(0)), (None, None));
        assert_eq!((in_file(1), in_file(8), in_file(26)), (1, 8, 24));
        assert!(is_shared(1) && !is_shared(21) && !is_shared(8));
        assert_eq!(stored_bytes(22, &[3]), Some(2));
        assert_eq!(stored_bytes(7, &[2, 3]), Some(48));
        assert_eq!(stored_bytes(7, &[i64::MAX, 3]), None);
    }
}
