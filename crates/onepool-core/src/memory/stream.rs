//! Reads of memory that the host's caches pass by.
//!
//! A plain load of write-combined memory fetches a few bytes past the caches each time. A streaming load (`MOVNTDQA`)
//! fetches a whole line into a buffer of the processor, from which the loads after it are served (Intel, "Fast USWC to
//! WB Memory Copy", 2009).

#![allow(unsafe_code, reason = "streaming loads take pointers; they are those of slices")]

/// Copies all of `to` from the start of `from`, which the caches may pass by; nothing where `from` is shorter.
pub fn copy_uncached(from: &[u8], to: &mut [u8]) {
    let Some(from) = from.get(..to.len()) else { return };
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.1") {
        // SAFETY: the processor has the instruction, as was just asked.
        return unsafe { stream(from, to) };
    }
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.1")]
fn stream(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_storeu_si128, _mm_stream_load_si128};

    /// A line of the cache in vectors of 16 bytes.
    const LINE: usize = 4;
    let head = from.as_ptr().align_offset(64).min(from.len());
    let (first, rest) = from.split_at(head);
    let (to_first, to_rest) = to.split_at_mut(head);
    to_first.copy_from_slice(first);
    let (lines, last) = rest.as_chunks::<{ 16 * LINE }>();
    let (to_lines, to_last) = to_rest.as_chunks_mut::<{ 16 * LINE }>();
    for (line, to) in lines.iter().zip(to_lines) {
        let (line, to) = (line.as_ptr().cast::<__m128i>(), to.as_mut_ptr().cast::<__m128i>());
        // SAFETY: both point to 64 bytes of their slices; `line` is a multiple of 64, as the head was cut off to make it,
        // and stores may have any address.
        unsafe {
            let parts: [__m128i; LINE] = std::array::from_fn(|i| _mm_stream_load_si128(line.add(i)));
            parts.iter().enumerate().for_each(|(i, part)| _mm_storeu_si128(to.add(i), *part));
        }
    }
    to_last.copy_from_slice(last);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_byte_is_copied_from_any_address(
            bytes in proptest::collection::vec(any::<u8>(), 0..600), from in 0usize..80, into in 0usize..80,
        ) {
            let source = bytes.get(from..).unwrap_or_default();
            let mut target = vec![0u8; into + source.len()];
            copy_uncached(source, &mut target[into..]);
            prop_assert_eq!(&target[into..], source);
            prop_assert!(target[..into].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn too_few_bytes_change_nothing() {
        let mut to = [7u8; 4];
        copy_uncached(&[1, 2], &mut to);
        assert_eq!(to, [7; 4]);
    }
}
