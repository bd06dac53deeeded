//! Parameters of equal bytes from separate files become one.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use super::params::ParamStore;
use crate::graph::{Graph, Origin, Tensor, TensorIdentity, WeakTensor};
use crate::loader::pack::{Item, pack};
use crate::session::error::Error;
use crate::sync::lock;

/// Smaller constants (shapes, axes, biases) are skipped.
const MIN_BYTES: usize = 4096;

/// The result of [`ParamStore::unify`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Unified {
    /// Constants that share the bytes of an earlier one.
    pub tensors: usize,
    /// Their bytes, which are freed.
    pub bytes: u64,
}

impl ParamStore {
    /// Makes the constants of `graph` share their bytes with constants of equal type and bytes in live graphs that
    /// this store has seen before: on the host, and so on every device. A parameter may come from another file,
    /// another format, or have another name and shape. Bytes are compared, not only their hash. The remaining
    /// constants of a file are moved together, so that the memory of the duplicates is released where nothing else
    /// uses it. Constants below 4 KiB and those of the graphs inside nodes stay unchanged.
    ///
    /// [`crate::session::SessionBuilder::params`] does this for the graph of its session.
    ///
    /// # Errors
    /// [`Error::Load`] where there is no memory for the remaining constants of a file.
    pub fn unify(&self, graph: &mut Graph) -> Result<Unified, Error> {
        let mut known = lock(&self.known);
        known.by_identity.retain(|_, t| t.upgrade().is_some());
        known.by_content.values_mut().for_each(|list| list.retain(|t| t.upgrade().is_some()));
        known.by_content.retain(|_, list| !list.is_empty());
        let mut unified = Unified::default();
        let mut hashes: HashMap<TensorIdentity, u64> = HashMap::new();
        let mut left: Vec<Tensor> = Vec::new();
        for tensor in constants(graph).filter(|t| t.info().bytes() >= MIN_BYTES) {
            // The form in which it is kept.
            let narrowed = tensor.narrowed();
            let is_narrow = narrowed.is_some();
            let stored = narrowed.unwrap_or_else(|| tensor.clone());
            if known.by_identity.contains_key(&stored.identity()) {
                continue;
            }
            let own = stored.unkept()?;
            let hash = hash(&own);
            let same = |t: &Tensor| {
                let alike = t.dtype() == own.dtype() && t.info().bytes() == own.info().bytes();
                alike && t.unkept().is_ok_and(|t| t.bytes() == own.bytes())
            };
            let list = known.by_content.entry(hash).or_default();
            let found = list.iter().filter_map(WeakTensor::upgrade).find(same);
            drop(own);
            match found.and_then(|t| t.reshaped(tensor.shape().clone()).ok()) {
                Some(shared) => {
                    unified.tensors += 1;
                    unified.bytes += shared.info().bytes() as u64;
                    if is_narrow {
                        *tensor = Tensor::widened(shared);
                    } else {
                        left.push(std::mem::replace(tensor, shared));
                    }
                }
                None => {
                    list.push(stored.downgrade());
                    known.by_identity.insert(stored.identity(), stored.downgrade());
                    hashes.insert(stored.identity(), hash);
                }
            }
        }
        for (old, new) in repack(graph, left)? {
            if let Some(hash) = hashes.get(&old) {
                known.by_content.entry(*hash).or_default().push(new.downgrade());
                known.by_identity.insert(new.identity(), new.downgrade());
            }
        }
        Ok(unified)
    }
}

fn constants(graph: &mut Graph) -> impl Iterator<Item = &mut Tensor> {
    graph.tensors.iter_mut().filter_map(|decl| match &mut decl.origin {
        Origin::Constant(tensor) => Some(tensor),
        _ => None,
    })
}

fn hash(tensor: &Tensor) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(tensor.bytes());
    hasher.finish()
}

/// Moves the remaining constants of the regions of `dropped` together. Returns the moved tensors with their former
/// identities.
fn repack(graph: &mut Graph, dropped: Vec<Tensor>) -> Result<Vec<(TensorIdentity, Tensor)>, Error> {
    // The pages of a weight are freed with it.
    let small = dropped.iter().filter(|t| !t.is_weight());
    let mut regions: Vec<_> = small.filter_map(|t| t.region().map(|(r, _)| r)).collect();
    drop(dropped);
    regions.sort_by_key(|r| Arc::as_ptr(r).addr());
    regions.dedup_by(|a, b| Arc::ptr_eq(a, b));
    let mut moved = Vec::new();
    for region in regions {
        let is_in = |t: &Tensor| t.region().is_some_and(|(r, _)| Arc::ptr_eq(&r, &region));
        let users: Vec<Tensor> = constants(graph).filter(|t| is_in(t)).map(|t| t.clone()).collect();
        // The region has another owner, so that a move frees nothing. The clones and `region` are ours.
        if users.is_empty() || Arc::strong_count(&region) > 2 * users.len() + 1 {
            continue;
        }
        let mut distinct = users;
        distinct.sort_by_key(Tensor::identity);
        distinct.dedup_by_key(|t| t.identity());
        let items: Vec<_> = distinct.iter().map(|t| Item::filled(t.info().clone())).collect();
        let fresh = pack(&items, None, |i, bytes, _| {
            if let Some(from) = distinct.get(i) {
                bytes.copy_from_slice(from.bytes());
            }
            Ok(())
        })?;
        let fresh: Vec<_> = distinct.iter().map(Tensor::identity).zip(fresh).collect();
        for tensor in constants(graph).filter(|t| is_in(t)) {
            let old = tensor.identity();
            let new = fresh.binary_search_by_key(&old, |(of, _)| *of).ok().and_then(|i| fresh.get(i));
            if let Some(new) = new.and_then(|(_, t)| t.reshaped(tensor.shape().clone()).ok()) {
                *tensor = new;
            }
        }
        moved.extend(fresh);
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::host::HostRegion;
    use crate::{DType, GraphBuilder, Shape, TensorInfo, ops};

    /// A graph that adds constants of these values, 2048 each, all in one region.
    fn graph(values: &[f32]) -> Graph {
        let bytes: Vec<f32> = values.iter().flat_map(|v| std::iter::repeat_n(*v, 2048)).collect();
        let region = Arc::new(HostRegion::from_bytes(bytemuck::cast_slice(&bytes)).unwrap());
        let mut g = GraphBuilder::new("g");
        let mut y = g.input("x", DType::F32, [2048.into()]);
        for (i, _) in values.iter().enumerate() {
            let info = TensorInfo::new(DType::F32, Shape::new([2048]).unwrap());
            let w = Tensor::in_region(info, Arc::clone(&region), i * 8192).unwrap();
            let w = g.constant(format!("w{i}"), w);
            y = g.op(ops::add(), &[y, w]);
        }
        g.output("y", y);
        g.build().unwrap()
    }

    fn constant(graph: &Graph, i: usize) -> Tensor {
        graph.constants().nth(i).map(|(_, t)| t.clone()).unwrap()
    }

    #[test]
    fn constants_of_equal_bytes_become_one_and_the_rest_of_their_file_moves_together() {
        let store = ParamStore::new();
        let (mut a, mut b) = (graph(&[1.0, 2.0]), graph(&[2.0, 3.0, 3.0, 4.0]));
        assert_eq!(store.unify(&mut a).unwrap(), Unified::default());
        assert_eq!(store.unify(&mut b).unwrap(), Unified { tensors: 2, bytes: 16384 });
        assert_eq!(constant(&b, 0).identity(), constant(&a, 1).identity());
        assert_eq!(constant(&b, 1).identity(), constant(&b, 2).identity());
        let (three, four) = (constant(&b, 1), constant(&b, 3));
        let (region, _) = four.region().unwrap();
        assert!(Arc::ptr_eq(&region, &three.region().unwrap().0) && region.bytes() < 4 * 8192);
        assert_eq!(three.as_slice::<f32>().unwrap(), [3.0; 2048]);
        assert_eq!(four.as_slice::<f32>().unwrap(), [4.0; 2048]);
        // Moved tensors are known by their new identity.
        let mut c = graph(&[4.0]);
        assert_eq!(store.unify(&mut c).unwrap().tensors, 1);
        assert_eq!(constant(&c, 0).identity(), four.identity());
        // The tensors are known: nothing changes.
        assert_eq!(store.unify(&mut c).unwrap(), Unified::default());
    }

    #[test]
    fn constants_that_are_gone_are_not_found() {
        let store = ParamStore::new();
        store.unify(&mut graph(&[1.0])).unwrap();
        assert_eq!(store.unify(&mut graph(&[1.0])).unwrap(), Unified::default());
    }

    #[test]
    fn memory_that_somebody_else_keeps_stays_where_it_is() {
        let store = ParamStore::new();
        let (mut a, mut b) = (graph(&[1.0]), graph(&[1.0, 2.0]));
        let kept = b.clone();
        store.unify(&mut a).unwrap();
        assert_eq!(store.unify(&mut b).unwrap().tensors, 1);
        assert_eq!(constant(&b, 1).identity(), constant(&kept, 1).identity());
    }
}
