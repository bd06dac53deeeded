//! Objects that are made for ranges of a buffer when a recording first needs them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// As many objects are kept without being looked through for unused ones.
const ROOM: usize = 64;

/// Says that an object is used; whoever records with it keeps this as long as the recording.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease(Arc<()>);

/// Objects by what they were made for. Equal requests get one object, and those that no one holds a lease of go once
/// there are many: a buffer that outlives the plans that use it does not collect their objects.
#[derive(Debug)]
pub(super) struct Kept<K, T> {
    objects: HashMap<K, (T, Lease)>,
    /// How many there may be before the unused go.
    room: usize,
}

impl<K, T> Default for Kept<K, T> {
    fn default() -> Self {
        Kept { objects: HashMap::new(), room: ROOM }
    }
}

impl<K: Copy + Eq + Hash, T> Kept<K, T> {
    /// The object for `key`, made by `make` if there is none, and a lease of it; `drop` gets those that go for it.
    pub(super) fn get<E>(
        &mut self,
        key: K,
        make: impl FnOnce() -> Result<T, E>,
        mut drop: impl FnMut(T),
    ) -> Result<(&T, Lease), E> {
        if !self.objects.contains_key(&key) {
            if self.objects.len() >= self.room {
                self.retain_used(|_| true, &mut drop);
                // Looking through them is paid for by as many new ones.
                self.room = ROOM.max(2 * self.objects.len());
            }
            let made = make()?;
            self.objects.insert(key, (made, Lease::default()));
        }
        let (object, lease) = &self.objects[&key];
        Ok((object, lease.clone()))
    }

    /// Takes out the objects that no one uses and whose key `may_go`.
    pub(super) fn retain_used(&mut self, may_go: impl Fn(&K) -> bool, mut drop: impl FnMut(T)) {
        let used = |lease: &Lease| Arc::strong_count(&lease.0) > 1;
        let unused = self.objects.extract_if(|key, (_, lease)| !used(lease) && may_go(key));
        unused.for_each(|(_, (object, _))| drop(object));
    }

    /// What the objects were made for.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.objects.keys()
    }

    /// Takes all out, used or not.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.objects.drain().map(|(_, (object, _))| object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(kept: &mut Kept<usize, usize>, key: usize, gone: &mut Vec<usize>) -> Lease {
        let made = kept.get(key, || Ok::<usize, ()>(10 * key), |object| gone.push(object));
        let (object, lease) = made.unwrap();
        assert_eq!(*object, 10 * key);
        lease
    }

    #[test]
    fn what_no_one_uses_goes_once_there_are_many() {
        let (mut kept, mut gone) = (Kept::default(), Vec::new());
        let held: Vec<Lease> = (0..10).map(|key| get(&mut kept, key, &mut gone)).collect();
        for key in 10..10_000 {
            get(&mut kept, key, &mut gone);
            assert!(kept.keys().count() <= ROOM);
        }
        assert!(gone.iter().all(|object| *object >= 100), "used ones stay");
        assert!((0..10).all(|key| kept.keys().any(|k| *k == key)));
        std::mem::drop(held);
        kept.retain_used(|key| *key < 5, |object| gone.push(object));
        assert!(kept.keys().all(|key| *key >= 5) && kept.keys().any(|key| *key == 5));
    }

    #[test]
    fn all_that_are_used_have_room_and_equal_requests_are_one() {
        let (mut kept, mut gone) = (Kept::default(), Vec::new());
        let mut held: Vec<Lease> = (0..1000).map(|key| get(&mut kept, key, &mut gone)).collect();
        held.extend((0..1000).map(|key| get(&mut kept, key, &mut gone)));
        assert_eq!((kept.keys().count(), gone.len()), (1000, 0));
        assert_eq!(kept.get(5000, || Err(7), |_| ()).unwrap_err(), 7);
        assert_eq!(kept.drain().count(), 1000);
    }
}
