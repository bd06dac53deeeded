//! Where values live: which share bytes, which are bound by the caller, which lie in an arena.

use std::collections::BTreeSet;

use super::flow::{Flow, ValueId};

/// The memory of a class of values that share their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// Memory bound to an input.
    Input(u32),
    /// Memory bound to an output.
    Output(u32),
    Constant,
    /// A range of an arena.
    Arena,
}

/// Classes of values that share their bytes.
#[derive(Debug)]
pub(super) struct AliasClasses {
    parent: Vec<ValueId>,
    /// Where each value begins in its parent, in bytes.
    offset: Vec<u64>,
    /// Whether values of the class begin or end at different bytes, by root.
    in_parts: Vec<bool>,
    backing: Vec<Backing>,
    /// Outputs that are written by a copy: (output, value).
    pub(super) copies: Vec<(u32, ValueId)>,
}

impl AliasClasses {
    /// Classes of `flow`, where `alias[n]` is the input whose bytes node `n` passes on as its output 0.
    pub(super) fn new(flow: &Flow, alias: &[Option<usize>]) -> Self {
        let mut s = AliasClasses {
            parent: (0..flow.values.len()).collect(),
            offset: vec![0; flow.values.len()],
            in_parts: vec![false; flow.values.len()],
            backing: vec![Backing::Arena; flow.values.len()],
            copies: Vec::new(),
        };
        for (v, value) in flow.values.iter().enumerate() {
            if value.constant.is_some() {
                s.backing[v] = Backing::Constant;
            }
        }
        for (i, &v) in flow.inputs.iter().enumerate() {
            if s.backing[v] != Backing::Constant {
                s.backing[v] = Backing::Input(i as u32);
            }
        }
        for (node, alias) in flow.nodes.iter().zip(alias) {
            if let Some(source) = alias.and_then(|i| node.inputs[i]) {
                let root = s.root(source);
                let out = s.root(node.outputs[0]);
                s.parent[out] = root;
            }
        }
        for (o, (_, v)) in flow.outputs.iter().enumerate() {
            let root = s.root(*v);
            if s.backing[root] == Backing::Arena {
                s.backing[root] = Backing::Output(o as u32);
            } else {
                s.copies.push((o as u32, *v));
            }
        }
        s
    }

    /// The representative of the class of `v`.
    pub(super) fn root(&self, mut v: ValueId) -> ValueId {
        while self.parent[v] != v {
            v = self.parent[v];
        }
        v
    }

    /// Where `v` begins in the memory of its class, in bytes.
    pub(super) fn offset(&self, mut v: ValueId) -> u64 {
        let mut offset = 0;
        while self.parent[v] != v {
            offset += self.offset[v];
            v = self.parent[v];
        }
        offset
    }

    /// The memory of `v`.
    pub(super) fn backing(&self, v: ValueId) -> Backing {
        self.backing[self.root(v)]
    }

    /// Lets `out` use the bytes of `source`, whose class nothing reads later. Returns whether it does: of two classes that
    /// have parts each would begin in the other.
    pub(super) fn merge(&mut self, source: ValueId, out: ValueId) -> bool {
        let (from, to) = (self.root(source), self.root(out));
        let (root, part, offset) = match (self.in_parts[from], self.in_parts[to]) {
            (_, false) => (from, to, self.offset(source)),
            (false, true) => (to, from, self.offset(out)),
            (true, true) => return false,
        };
        if root != part {
            (self.parent[part], self.offset[part]) = (root, offset);
        }
        true
    }

    /// Makes the class of root `part` a part of that of root `whole`, `offset` bytes from its begin.
    pub(super) fn join(&mut self, part: ValueId, whole: ValueId, offset: u64) {
        (self.parent[part], self.offset[part]) = (whole, offset);
        self.in_parts[whole] = true;
    }
}

/// First and last step that touch a class, and their devices.
#[derive(Clone, Debug, Default)]
pub(super) struct Lifetime {
    /// The first and the last step, where any touches it.
    pub(super) steps: Option<(u32, u32)>,
    pub(super) devices: BTreeSet<u32>,
}

impl Lifetime {
    /// Adds an access by step `step` on `device`.
    pub(super) fn touch(&mut self, step: u32, device: u32) {
        let (first, last) = self.steps.unwrap_or((step, step));
        self.steps = Some((first.min(step), last.max(step)));
        self.devices.insert(device);
    }
}
