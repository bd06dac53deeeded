//! Images of a plan: views of ranges of arenas.

use std::collections::HashMap;

use super::Location;
use super::alias_classes::AliasClasses;
use super::flow::{Flow, ValueId};
use crate::memory::image::{ImageDesc, ImageRules};

/// An image of a plan.
#[derive(Clone, Debug)]
pub struct PlannedImage {
    /// The device it is on.
    pub device: u32,
    /// Its memory.
    pub loc: Location,
    /// Its size and rows.
    pub image: ImageDesc,
}

/// Report on a tensor that the graph requests in an image.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ImageReport {
    /// The tensor's name.
    pub name: String,
    /// The scope that the graph requests.
    pub scope: &'static str,
    /// The device.
    pub device: u32,
    /// The image, where there is one.
    pub image: Option<ImageDesc>,
    /// Bytes of memory that the image takes.
    pub bytes: u64,
    /// Whether the tensor is copied into the image, or out of it, in each run.
    pub copied: bool,
    /// Why there is no image: operators read the buffer.
    pub reason: Option<String>,
}

/// Bytes and alignment that the images of each class need of its memory, by root.
pub(super) fn image_needs(
    flow: &Flow,
    storage: &AliasClasses,
    rules_of: impl Fn(ValueId) -> Option<ImageRules>,
) -> HashMap<ValueId, (u64, u64)> {
    let mut needs: HashMap<ValueId, (u64, u64)> = HashMap::new();
    for (&v, image) in &flow.images {
        let root = storage.root(v);
        if let Some(rules) = rules_of(root) {
            let (bytes, alignment) = needs.entry(root).or_default();
            *bytes = (*bytes).max(rules.memory_bytes(image));
            *alignment = (*alignment).max(rules.alignment(image).next_power_of_two());
        }
    }
    needs
}
