//! Memory for what an operator computes on the way.
//!
//! Each thread keeps some blocks from one operator to the next: what is given back to the system has to be mapped and zeroed
//! again, which takes longer than many an operator.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;

/// Blocks that a thread keeps, at most.
const KEPT: usize = 4;
/// Words of a block that is kept, at most: 2 MiB.
const LARGEST: usize = 1 << 18;

thread_local! {
    static BLOCKS: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Elements of a block that the thread keeps.
pub(crate) struct Scratch<T> {
    words: Vec<u64>,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Pod> Scratch<T> {
    /// `len` elements of any value: the last user's are still there.
    pub(crate) fn new(len: usize) -> Self {
        const { assert!(align_of::<T>() <= align_of::<u64>()) }
        let needed = len.saturating_mul(size_of::<T>()).div_ceil(size_of::<u64>());
        // The smallest that is large enough, else any: it makes room for a larger one.
        let kept = BLOCKS.with_borrow_mut(|blocks| {
            let fits = |words: &Vec<u64>| (words.len() < needed, words.len());
            let at = (0..blocks.len()).min_by_key(|at| blocks.get(*at).map(fits))?;
            Some(blocks.swap_remove(at))
        });
        let words = kept.filter(|words| words.len() >= needed).unwrap_or_else(|| vec![0; needed]);
        Scratch { words, len, of: PhantomData }
    }
}

impl<T: Pod> Deref for Scratch<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

impl<T: Pod> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

impl<T> Drop for Scratch<T> {
    fn drop(&mut self) {
        let words = std::mem::take(&mut self.words);
        BLOCKS.with_borrow_mut(|blocks| {
            if words.len() <= LARGEST && blocks.len() < KEPT {
                blocks.push(words);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Vec<usize> {
        let mut sizes = BLOCKS.with_borrow(|blocks| blocks.iter().map(Vec::len).collect::<Vec<_>>());
        sizes.sort_unstable();
        sizes
    }

    /// In a thread of its own, which has no blocks yet.
    #[test]
    fn blocks_are_used_again_where_they_fit_and_few_are_kept() {
        let test = || {
            let (mut a, b) = (Scratch::<f32>::new(101), Scratch::<f64>::new(30));
            assert_eq!((a.len(), b.len(), kept()), (101, 30, vec![]));
            a.fill(7.0);
            drop((a, b));
            assert_eq!(kept(), [30, 51]);
            // The smaller one is too small for this.
            let c = Scratch::<f32>::new(99);
            assert_eq!((kept(), &*c), (vec![30], &[7.0; 99][..]));
            // The one that is left makes room.
            let d = Scratch::<f64>::new(31);
            assert_eq!((kept(), &*d), (vec![], &[0.0; 31][..]));
            assert!(Scratch::<f32>::new(0).is_empty());
            drop((c, d, Scratch::<f64>::new(LARGEST + 1)));
            let sizes = kept();
            assert!(sizes.len() <= KEPT && sizes.iter().all(|words| *words <= LARGEST), "{sizes:?}");
            drop([1, 2, 3, 4, 5, 6, 7].map(Scratch::<f32>::new));
            assert_eq!(kept().len(), KEPT);
        };
        std::thread::spawn(test).join().unwrap();
    }
}
