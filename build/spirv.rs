//! The crate's own SPIR-V reader, shared with the library so that the table and a user's module are read alike.

#[path = "../src/spirv/access.rs"]
mod access;
#[path = "../src/spirv/parse.rs"]
pub mod parse;
#[path = "../src/spirv/reflect.rs"]
pub mod reflect;
#[path = "../src/spirv/types.rs"]
pub mod types;
