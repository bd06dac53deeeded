//! L1 stand-in, replaced by the memory layer.
#![allow(missing_docs, reason = "replaced")]
pub mod range {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ByteRange {
        pub start: u64,
        pub end: u64,
    }
}
pub mod coherency {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access(pub u8);
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Barrier {
        pub src: Access,
        pub dst: Access,
    }
}
pub mod import {
    #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
    pub struct ImportRules {
        pub alignment: u64,
    }
}
pub mod host {
    #[derive(Debug)]
    pub struct HostRegion(Vec<u8>);
    impl HostRegion {
        pub fn len(&self) -> usize {
            self.0.len()
        }
        pub fn is_empty(&self) -> bool {
            self.0.is_empty()
        }
        pub fn as_slice(&self) -> &[u8] {
            &self.0
        }
    }
}
