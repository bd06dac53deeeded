//! Tensors from files and to files.
