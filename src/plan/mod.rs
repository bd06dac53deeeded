//! Layer.
