//! Tensors that the graph requests in images: which get one, on which device, and which copies that needs.
//!
//! An image is a view of a range of an arena, so a tensor whose row stride is already the driver's is an image at no
//! cost. One whose rows need padding, or whose memory is the caller's, is copied into an image by an [`TensorCopy`]
//! before the operators that read images; the others read the tensor itself. A constant is placed in an image once,
//! when parameters are placed on devices.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::backend::DeviceInfo;
use crate::graph::{StorageScope, TensorInfo};
use crate::memory::image::{ImageDesc, ImageRefusal, Texel};
use crate::ops::OpCx;
use crate::ops::image::TensorCopy;
use crate::plan::PlanError;
use crate::plan::alias_classes::{AliasClasses, Backing};
use crate::plan::flow::{Flow, FlowNode, Value, ValueId};
use crate::plan::images::ImageReport;
use crate::plan::index::FlowIndex;
use crate::plan::lowering::PlanCx;

/// Puts tensors into the images that the graph requests, unless several devices would then access one image because a
/// node falls back to another device; returns the number of images.
pub(super) fn place_in_images(flow: &mut Flow, cx: &PlanCx<'_>) -> Result<usize, PlanError> {
    if flow.values.iter().all(|v| v.scope == StorageScope::Buffer) {
        return Ok(0);
    }
    let wanted: Vec<u32> = flow.nodes.iter().map(|n| cx.wanted_device(n)).collect();
    let mut with = flow.clone();
    let mut reports = make_images(&mut with, cx.devices, &wanted);
    if is_torn(&with, cx)? {
        for report in &mut reports {
            let reason = "an operator that reads it runs on another device than it was placed on";
            (report.image, report.bytes, report.copied) = (None, 0, false);
            report.reason.get_or_insert_with(|| reason.to_owned());
        }
    } else {
        *flow = with;
    }
    flow.image_reports = reports;
    Ok(flow.images.len())
}

/// The name of a scope in TVM.
fn scope_name(scope: StorageScope) -> &'static str {
    match scope {
        StorageScope::Buffer => "global",
        StorageScope::Texture => "global.texture",
        StorageScope::TextureWeight => "global.texture-weight",
        StorageScope::TextureNhwc => "global.texture-nhwc",
        StorageScope::Planes => "planes",
    }
}

/// Texel, width and height of a tensor in an image of scope `scope`.
///
/// TVM's scopes split the dimensions before the last (the channels of a texel) at an axis (`ApplyTexture2DFlattening`
/// of TVM's `texture.h`): the dimensions before the axis are rows, the others columns.
fn extent(scope: StorageScope, info: &TensorInfo) -> Result<(Texel, u64, u64), ImageRefusal> {
    let dims = info.shape.dims();
    let refuse = |what: String| ImageRefusal::Texel { what };
    let (axis, channels) = match scope {
        StorageScope::Buffer => return Err(ImageRefusal::NoImages),
        StorageScope::Planes => (dims.len().saturating_sub(1), 1),
        StorageScope::Texture => (dims.len().saturating_sub(2), 4),
        StorageScope::TextureWeight => (1, 4),
        StorageScope::TextureNhwc => (if dims.len() == 3 { 1 } else { 2 }, 4),
    };
    let inner = if channels == 1 { dims } else { dims.split_last().map_or(dims, |(_, inner)| inner) };
    if axis >= inner.len() || (channels == 4 && dims.last() != Some(&4)) {
        return Err(refuse(format!(
            "{info} as {}, whose last dimension is a texel's channels",
            scope_name(scope)
        )));
    }
    let texel = Texel::of(info.dtype, channels).ok_or_else(|| refuse(format!("{} elements", info.dtype)))?;
    let product = |dims: &[usize]| dims.iter().fold(1u64, |n, d| n.saturating_mul(*d as u64));
    let (rows, columns) = inner.split_at(axis);
    Ok((texel, product(columns), product(rows)))
}

/// The image of a tensor on `device`.
fn describe(scope: StorageScope, info: &TensorInfo, device: &DeviceInfo) -> Result<ImageDesc, ImageRefusal> {
    let (texel, width, height) = extent(scope, info)?;
    device.images.as_ref().ok_or(ImageRefusal::NoImages)?.describe(texel, width, height)
}

/// A copy to insert after node `after`, or before all nodes.
struct Insert {
    after: Option<usize>,
    node: FlowNode,
}

/// Puts tensors into the images that the graph requests, where operators read or write images; `wanted` are the
/// devices of the nodes. Inserts the necessary copies.
fn make_images(flow: &mut Flow, devices: &[&DeviceInfo], wanted: &[u32]) -> Vec<ImageReport> {
    let scoped: Vec<ValueId> =
        (0..flow.values.len()).filter(|&v| flow.values[v].scope != StorageScope::Buffer).collect();
    if scoped.is_empty() {
        return Vec::new();
    }
    let mut images = Images::new(flow, devices, wanted);
    for v in scoped {
        images.value(v);
    }
    let Images { reports, inserts, .. } = images;
    insert(flow, inserts);
    reports
}

struct Images<'a> {
    flow: &'a mut Flow,
    devices: &'a [&'a DeviceInfo],
    wanted: &'a [u32],
    classes: AliasClasses,
    index: FlowIndex,
    /// For each value requested in an image, the (node, input) pairs that read it.
    readers: HashMap<ValueId, Vec<(usize, usize)>>,
    /// The positions of each such value among the flow's outputs.
    outputs: HashMap<ValueId, Vec<usize>>,
    /// The devices of the nodes that access a class.
    touching: HashMap<ValueId, BTreeSet<u32>>,
    reports: Vec<ImageReport>,
    inserts: Vec<Insert>,
}

impl<'a> Images<'a> {
    fn new(flow: &'a mut Flow, devices: &'a [&'a DeviceInfo], wanted: &'a [u32]) -> Self {
        let alias: Vec<Option<usize>> = (0..flow.nodes.len())
            .map(|n| {
                flow.nodes[n]
                    .op
                    .alias(&flow.cx(n))
                    .filter(|i| flow.nodes[n].inputs.get(*i).is_some_and(Option::is_some))
            })
            .collect();
        let classes = AliasClasses::new(flow, &alias);
        let index = FlowIndex::new(flow);
        let mut touching: HashMap<ValueId, BTreeSet<u32>> = HashMap::new();
        let scoped = |v: &ValueId| flow.values[*v].scope != StorageScope::Buffer;
        let mut outputs: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for (o, (_, v)) in flow.outputs.iter().enumerate().filter(|(_, (_, v))| scoped(v)) {
            outputs.entry(*v).or_default().push(o);
        }
        let mut readers: HashMap<ValueId, Vec<(usize, usize)>> = HashMap::new();
        for (n, node) in flow.nodes.iter().enumerate() {
            for (i, v) in node.inputs.iter().enumerate().filter_map(|(i, v)| Some((i, v.filter(scoped)?))) {
                readers.entry(v).or_default().push((n, i));
            }
            for &v in node.inputs.iter().flatten().chain(&node.outputs).filter(|_| alias[n].is_none()) {
                touching.entry(classes.root(v)).or_default().insert(wanted[n]);
            }
        }
        Images {
            flow,
            devices,
            wanted,
            classes,
            index,
            readers,
            outputs,
            touching,
            reports: Vec::new(),
            inserts: Vec::new(),
        }
    }

    fn value(&mut self, v: ValueId) {
        let (scope, info) = (self.flow.values[v].scope, self.flow.values[v].info.clone());
        let writer = self.index.producer(v).and_then(|n| {
            let o = self.flow.nodes[n].outputs.iter().position(|w| *w == v)?;
            Some((n, o, self.wanted[n]))
        });
        if let Some((n, o, d)) = writer
            && let Ok(image) = describe(scope, &info, self.devices[d as usize])
            && self.flow.nodes[n].op.writes_image(&self.flow.cx(n), o, &image, self.devices[d as usize])
        {
            return self.written(v, n, d, image);
        }
        let mut readers: BTreeMap<u32, Vec<(usize, usize)>> = BTreeMap::new();
        let mut refusal = None;
        let mut facts = None;
        for (n, i) in self.readers.remove(&v).unwrap_or_default() {
            let d = self.wanted[n];
            match describe(scope, &info, self.devices[d as usize]) {
                Ok(image) if self.reads((n, i), &image, &mut facts) => {
                    readers.entry(d).or_default().push((n, i))
                }
                Ok(_) => {}
                Err(error) => refusal = Some(error.to_string()),
            }
        }
        if readers.is_empty() {
            let reason = refusal.unwrap_or_else(|| "no operator reads it through an image".to_owned());
            let device = writer.map_or(0, |(_, _, d)| d);
            return self.report(v, device, None, false, Some(reason));
        }
        for (d, readers) in readers {
            let Ok(image) = describe(scope, &info, self.devices[d as usize]) else { continue };
            let root = self.classes.root(v);
            let alone = self.touching.get(&root).is_some_and(|touching| touching.iter().eq([&d]));
            let own = alone && self.classes.backing(root) == Backing::Arena;
            if own && image.is_dense() {
                self.flow.images.insert(v, image);
                self.report(v, d, Some(image), false, None);
                continue;
            }
            if let Some(placed) = self.constant(v) {
                for (n, i) in readers {
                    self.flow.nodes[n].inputs[i] = Some(placed);
                }
                self.flow.images.insert(placed, image);
                self.report(v, d, Some(image), false, None);
                continue;
            }
            let copy = self.copy(v, self.index.producer(v), d, "image");
            for (n, i) in readers {
                self.flow.nodes[n].inputs[i] = Some(copy);
            }
            self.flow.images.insert(copy, image);
            self.report(v, d, Some(image), true, None);
        }
    }

    /// Whether node `n` reads its input `i` through an image; `facts` caches the facts of the last node.
    fn reads(&self, (n, i): (usize, usize), image: &ImageDesc, facts: &mut Option<(usize, OpCx)>) -> bool {
        let device = self.devices[self.wanted[n] as usize];
        let known = facts.take().filter(|(of, _)| *of == n);
        let (_, cx) = facts.insert(known.unwrap_or_else(|| (n, self.flow.cx(n))));
        self.flow.nodes[n].op.reads_image(cx, i, image, device)
    }

    /// Records that node `n` writes value `v` through an image: users that read a buffer get a copy, unless the bytes
    /// have the same layout.
    fn written(&mut self, v: ValueId, n: usize, d: u32, image: ImageDesc) {
        self.flow.images.insert(v, image);
        let root = self.classes.root(v);
        let alone = self.touching.get(&root).is_some_and(|touching| touching.iter().eq([&d]));
        if alone && image.is_dense() && self.classes.backing(root) == Backing::Arena {
            return self.report(v, d, Some(image), false, None);
        }
        let mut others = self.readers.remove(&v).unwrap_or_default();
        let mut facts = None;
        others.retain(|&(m, i)| self.wanted[m] != d || !self.reads((m, i), &image, &mut facts));
        let outputs = self.outputs.remove(&v).unwrap_or_default();
        let copied = !outputs.is_empty() || !others.is_empty();
        if copied {
            let copy = self.copy(v, Some(n), d, "buffer");
            for (m, i) in others {
                self.flow.nodes[m].inputs[i] = Some(copy);
            }
            outputs.into_iter().for_each(|o| self.flow.outputs[o].1 = copy);
        }
        self.report(v, d, Some(image), copied, None);
    }

    /// A constant with the bytes of constant `v`, placed in an image once, when it is loaded.
    fn constant(&mut self, v: ValueId) -> Option<ValueId> {
        let value = &self.flow.values[v];
        let constant = Some(value.constant.clone()?);
        let (name, info, scope) = (format!("{}:image", value.name), value.info.clone(), StorageScope::Buffer);
        self.flow.values.push(Value { name, info, constant, scope });
        Some(self.flow.values.len() - 1)
    }

    /// A new value: the copy of `v` on device `d`, after node `after`.
    fn copy(&mut self, v: ValueId, after: Option<usize>, d: u32, what: &str) -> ValueId {
        let value = &self.flow.values[v];
        let name = format!("{}:{what}", value.name);
        let (info, scope) = (value.info.clone(), StorageScope::Buffer);
        let copy = self.flow.values.len();
        self.flow.values.push(Value { name: name.clone(), info, constant: None, scope });
        let node = FlowNode {
            name,
            op: Arc::new(TensorCopy::Image),
            inputs: vec![Some(v)],
            outputs: vec![copy],
            device: Some(d),
            control_deps: Vec::new(),
        };
        self.inserts.push(Insert { after, node });
        copy
    }

    fn report(
        &mut self,
        v: ValueId,
        device: u32,
        image: Option<ImageDesc>,
        copied: bool,
        reason: Option<String>,
    ) {
        let rules = self.devices[device as usize].images.as_ref();
        let bytes = image.zip(rules).map_or(0, |(image, rules)| rules.memory_bytes(&image));
        let value = &self.flow.values[v];
        let (name, scope) = (value.name.clone(), scope_name(value.scope));
        self.reports.push(ImageReport { name, scope, device, image, bytes, copied, reason });
    }
}

/// Inserts the copies and renumbers control dependencies.
fn insert(flow: &mut Flow, inserts: Vec<Insert>) {
    if inserts.is_empty() {
        return;
    }
    let mut copies: BTreeMap<Option<usize>, Vec<FlowNode>> = BTreeMap::new();
    for Insert { after, node } in inserts {
        copies.entry(after).or_default().push(node);
    }
    let nodes = std::mem::take(&mut flow.nodes);
    let mut position = Vec::with_capacity(nodes.len());
    flow.nodes.extend(copies.remove(&None).into_iter().flatten());
    for (n, mut node) in nodes.into_iter().enumerate() {
        node.control_deps.iter_mut().for_each(|d| *d = position[*d]);
        position.push(flow.nodes.len());
        flow.nodes.push(node);
        flow.nodes.extend(copies.remove(&Some(n)).into_iter().flatten());
    }
}

/// Whether several devices would access one image, because a node is lowered on another device than wanted.
fn is_torn(flow: &Flow, cx: &PlanCx<'_>) -> Result<bool, PlanError> {
    let mut on: HashMap<ValueId, u32> = HashMap::new();
    for (n, node) in flow.nodes.iter().enumerate() {
        let touched = node.inputs.iter().flatten().chain(&node.outputs);
        let images: Vec<ValueId> = touched.copied().filter(|v| flow.images.contains_key(v)).collect();
        if images.is_empty() {
            continue;
        }
        let device = cx.lower(flow, n)?.device;
        if images.into_iter().any(|v| *on.entry(v).or_insert(device) != device) {
            return Ok(true);
        }
    }
    Ok(false)
}
