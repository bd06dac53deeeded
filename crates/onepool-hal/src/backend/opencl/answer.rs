//! Reading what the API answers: bytes of numbers, sizes and text.

/// A number of one, four or eight bytes, as this machine has it.
pub(super) fn number(data: &[u8]) -> u64 {
    match (data.try_into(), data.try_into()) {
        (Ok(bytes), _) => u64::from_ne_bytes(bytes),
        (_, Ok(bytes)) => u64::from(u32::from_ne_bytes(bytes)),
        _ => data.first().map_or(0, |byte| u64::from(*byte)),
    }
}

/// The first three of a list of sizes; zeros where there are fewer.
pub(super) fn sizes(data: &[u8]) -> [usize; 3] {
    let mut sizes = [0; 3];
    for (size, bytes) in sizes.iter_mut().zip(data.chunks_exact(size_of::<usize>())) {
        *size = number(bytes) as usize;
    }
    sizes
}

/// Text up to its terminator.
pub(super) fn text(data: &[u8]) -> String {
    let bytes = data.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_the_machine_has_them() {
        assert_eq!(number(&7u64.to_ne_bytes()), 7);
        assert_eq!(number(&(-14i32).to_ne_bytes()) as u32 as i32, -14);
        assert_eq!(number(&[1]), 1);
        assert_eq!(number(&[]), 0);
        let list: Vec<u8> = [4usize, 5].iter().flat_map(|size| size.to_ne_bytes()).collect();
        assert_eq!(sizes(&list), [4, 5, 0]);
        assert_eq!(text(b" a b \0rest"), "a b");
    }
}
