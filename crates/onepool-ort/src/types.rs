//! Element types: their numbers in `onnx.proto`, and which of them both sides keep in the same bytes.

use onepool::DType;

/// Types and their numbers.
const NUMBERS: &[(u32, DType)] = &[
    (1, DType::F32),
    (2, DType::U8),
    (3, DType::I8),
    (4, DType::U16),
    (5, DType::I16),
    (6, DType::I32),
    (7, DType::I64),
    (9, DType::Bool),
    (10, DType::F16),
    (11, DType::F64),
    (12, DType::U32),
    (13, DType::U64),
    (16, DType::BF16),
    (17, DType::F8E4M3Fn),
    (18, DType::F8E4M3FnUz),
    (19, DType::F8E5M2),
    (20, DType::F8E5M2FnUz),
    (21, DType::U4),
    (22, DType::I4),
    (23, DType::F4E2M1),
    (24, DType::F8E8M0),
    (25, DType::U2),
    (26, DType::I2),
];

/// The type with that number, where the library has it.
pub(crate) fn dtype(number: u32) -> Option<DType> {
    NUMBERS.iter().find(|(known, _)| *known == number).map(|(_, dtype)| *dtype)
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
            assert_eq!(NUMBERS.iter().filter(|(_, known)| *known == of).count(), 1, "{of}");
        }
        assert_eq!((dtype(8), dtype(0)), (None, None));
        assert!(is_shared(1) && !is_shared(21) && !is_shared(8));
        assert_eq!(stored_bytes(22, &[3]), Some(2));
        assert_eq!(stored_bytes(7, &[2, 3]), Some(48));
        assert_eq!(stored_bytes(7, &[i64::MAX, 3]), None);
    }
}
