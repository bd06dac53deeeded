//! What native functions make of constants once: kept as long as one of them uses it, and shared by all.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak};

use crate::graph::{Tensor, TensorIdentity};

/// Something made of a constant when it is first needed.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    value: OnceLock<T>,
    /// Keeps the identity from being another tensor's.
    _source: Tensor,
}

impl<T> Kept<T> {
    /// It, made by `make` unless it was made before.
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> &T {
        self.value.get_or_init(make)
    }
}

/// All that is kept of one kind, by constant and the numbers that it depends on.
type Held<T> = HashMap<(TensorIdentity, [usize; 4]), Weak<Kept<T>>>;

/// A place for what is kept of one kind.
pub(crate) struct Shelf<T>(LazyLock<Mutex<Held<T>>>);

impl<T> Shelf<T> {
    /// An empty one.
    pub(crate) const fn new() -> Self {
        Shelf(LazyLock::new(Mutex::default))
    }

    /// What is, or will be, made of `source` with these numbers.
    pub(crate) fn of(&self, source: &Tensor, numbers: [usize; 4]) -> Arc<Kept<T>> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (source.identity(), numbers);
        if let Some(kept) = held.get(&key).and_then(Weak::upgrade) {
            return kept;
        }
        held.retain(|_, kept| kept.strong_count() > 0);
        let kept = Arc::new(Kept { value: OnceLock::new(), _source: source.clone() });
        held.insert(key, Arc::downgrade(&kept));
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_constant_is_made_once_while_it_is_used() {
        static SHELF: Shelf<usize> = Shelf::new();
        let tensor = Tensor::new([4], &[1i32, 2, 3, 4]).unwrap();
        let first = SHELF.of(&tensor, [1, 0, 0, 0]);
        assert_eq!(*first.get(|| 7), 7);
        assert_eq!(*SHELF.of(&tensor, [1, 0, 0, 0]).get(|| 8), 7);
        assert_eq!(*SHELF.of(&tensor, [2, 0, 0, 0]).get(|| 8), 8);
        let other = Tensor::new([4], &[1i32, 2, 3, 4]).unwrap();
        assert_eq!(*SHELF.of(&other, [1, 0, 0, 0]).get(|| 9), 9);
        drop(first);
        assert_eq!(*SHELF.of(&tensor, [1, 0, 0, 0]).get(|| 10), 10);
        assert!(SHELF.0.lock().unwrap().len() <= 2);
    }
}
