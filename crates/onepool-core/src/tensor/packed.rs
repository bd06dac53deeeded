//! Layouts that constants are packed in for devices.

use std::ops::Range;
use std::sync::Arc;

/// Names a packed layout of a constant, so that sessions share what was packed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackKey {
    /// The layout.
    pub layout: &'static str,
    /// Numbers that the layout depends on (tile sizes, groups, ...).
    pub numbers: [u32; 4],
}

/// Writes the packed bytes of a range of lines of a constant, whose bytes are given.
pub type PackLinesFn = dyn Fn(Range<usize>, &[u8], &mut [u8]) + Send + Sync;

/// How a constant is packed line by line, so that what was packed can be given back before the rest is.
///
/// Lines that lie together lie together in the layout too: else all pages of the result would be touched for
/// the first ones.
#[derive(Clone)]
pub struct PackLines {
    /// Bytes of a line of the constant.
    pub bytes: usize,
    /// Writes some lines into the layout, which has zeros wherever no line was written.
    pub pack: Arc<PackLinesFn>,
}

/// Makes the layout of a constant's bytes where they lie: it has each of them once, and nothing else.
pub type PackInPlaceFn = dyn Fn(&mut [u8]) + Send + Sync;

/// Writes all bytes of a constant from its packed layout.
pub type UnpackFn = dyn Fn(&[u8], &mut [u8]) + Send + Sync;

/// A packed layout of a constant, as the constant itself needs to know it.
#[derive(Clone, Copy)]
pub struct PackedForm<'a> {
    /// The layout.
    pub key: PackKey,
    /// Bytes of the result.
    pub bytes: usize,
    /// How it is packed line by line, where it can be.
    pub lines: Option<&'a PackLines>,
    /// How it is packed without other memory, where it can be.
    pub in_place: Option<&'a Arc<PackInPlaceFn>>,
    /// What undoes it, where it has every element of the constant.
    pub unpack: Option<&'a Arc<UnpackFn>>,
}
