//! Constants of files, once in a process: who loads bytes that are in memory gets those.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use super::{Tensor, TensorInfo, WeakTensor};
use crate::dtype::DType;
use crate::memory::identity::FileIdentity;
use crate::sync::lock;

/// Where a constant's bytes come from: pieces of a file, one after the other, and what was made of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSource {
    /// The file.
    pub file: FileIdentity,
    /// Where each piece begins, and its bytes.
    pub pieces: Vec<(u64, u64)>,
    /// The type of the elements.
    pub dtype: DType,
    /// Bytes of the constant.
    pub bytes: u64,
    /// What was done to the bytes, empty where they are as they lie in the file.
    pub form: &'static str,
}

/// Constants by source; none is kept alive.
#[derive(Debug, Default)]
struct Sources {
    known: HashMap<TensorSource, WeakTensor>,
    most: usize,
}

fn sources() -> &'static Mutex<Sources> {
    static SOURCES: OnceLock<Mutex<Sources>> = OnceLock::new();
    SOURCES.get_or_init(Mutex::default)
}

impl TensorSource {
    /// The constant in memory that came from here, in the shape of `info`.
    pub fn known(&self, info: &TensorInfo) -> Option<Tensor> {
        let found = lock(sources()).known.get(self).and_then(WeakTensor::upgrade)?;
        // Asked without the lock, because a device may have to answer.
        let same = found.is_there() && found.dtype() == info.dtype;
        found.reshaped(info.shape.clone()).ok().filter(|_| same)
    }

    /// Remembers where `tensor` came from, and gives back the one to use: another thread's, if that was faster.
    pub fn remember(self, tensor: Tensor) -> Tensor {
        if let Some(known) = self.known(tensor.info()) {
            return known;
        }
        let mut sources = lock(sources());
        if sources.known.len() >= sources.most.max(64) {
            sources.known.retain(|_, tensor| tensor.upgrade().is_some());
            sources.most = 2 * sources.known.len();
        }
        sources.known.insert(self, tensor.downgrade());
        tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    #[test]
    fn a_constant_is_found_by_its_source_as_long_as_it_lives() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let identity = FileIdentity::settled(file.as_file());
        let source = |at| TensorSource {
            file: identity,
            pieces: vec![(at, 8)],
            dtype: DType::F32,
            bytes: 8,
            form: "",
        };
        let tensor = Tensor::new([2], &[1.0f32, 2.0]).unwrap();
        let column = TensorInfo::new(DType::F32, Shape::new([2, 1]).unwrap());
        assert!(source(0).known(&column).is_none());
        let first = source(0).remember(tensor.clone());
        let second = source(0).remember(Tensor::new([2], &[1.0f32, 2.0]).unwrap());
        assert_eq!((first.identity(), second.identity()), (tensor.identity(), tensor.identity()));
        let found = source(0).known(&column).unwrap();
        assert_eq!((found.info(), found.identity()), (&column, tensor.identity()));
        assert!(source(8).known(&column).is_none());
        assert!(TensorSource { form: "widened", ..source(0) }.known(&column).is_none());
        drop((tensor, first, second, found));
        assert!(source(0).known(&column).is_none());
    }
}
