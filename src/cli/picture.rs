//! Pictures to tensors and back.
