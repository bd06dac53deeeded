//! Backends by name.
