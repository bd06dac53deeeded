//! Systems that find an idle processor for each thread that wakes.

/// A thread that is kept off a processor; there is none.
#[derive(Debug)]
pub struct ThreadAffinity(std::convert::Infallible);

impl ThreadAffinity {
    /// `None`: threads are kept off no processor.
    pub fn current() -> Option<ThreadAffinity> {
        None
    }

    /// Keeps the thread off a processor.
    pub fn avoid(&self, _: usize) {
        match self.0 {}
    }
}

/// `None`: threads are kept off no processor.
pub fn processor() -> Option<usize> {
    None
}
