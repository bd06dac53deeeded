//! Long loops of native functions cut into parts for the thread pool.

use rayon::prelude::*;

/// Elements of one part.
const PART: usize = 16 << 10;
/// Below this many elements one thread is faster.
const PARALLEL: usize = 2 * PART;

/// Calls `f(start, part)` for consecutive parts of `out`, in parallel where it is long.
pub(crate) fn parts<T: Send>(out: &mut [T], f: impl Fn(usize, &mut [T]) + Send + Sync) {
    // One copy of the pool's code for each element type is enough.
    parts_of(out, &f);
}

fn parts_of<T: Send>(out: &mut [T], f: &(dyn Fn(usize, &mut [T]) + Send + Sync)) {
    if out.len() <= PARALLEL {
        f(0, out);
    } else {
        out.par_chunks_mut(PART).enumerate().for_each(|(i, part)| f(i * PART, part));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_element_is_in_one_part_at_its_place() {
        for n in [0, 1, super::PARALLEL, super::PARALLEL + 1, 5 * super::PART + 3] {
            let mut out = vec![0usize; n];
            super::parts(&mut out, |start, part| {
                part.iter_mut().enumerate().for_each(|(i, v)| *v += start + i + 1);
            });
            assert!(out.iter().enumerate().all(|(i, v)| *v == i + 1), "{n} elements");
        }
    }
}
