//! What only this backend has.
