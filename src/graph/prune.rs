//! Removes nodes that are computed already, and constants that no one reads any more.

use super::{Graph, NodeId, Origin, TensorId};

impl Graph {
    /// Removes the nodes that `gone` marks, whose outputs no one reads or are constants by now, and the tensors that
    /// `unread` marks. The others keep their order.
    pub(crate) fn prune(&mut self, gone: &[bool], unread: &[bool]) {
        let node = positions(gone).map(|n| n.map(NodeId)).collect::<Vec<_>>();
        let tensor = positions(unread).map(|t| t.map(TensorId)).collect::<Vec<_>>();
        let moved = |id: TensorId| tensor.get(id.index()).copied().flatten();
        retain(&mut self.nodes, gone);
        retain(&mut self.tensors, unread);
        for n in &mut self.nodes {
            n.inputs.iter_mut().chain(&mut n.outputs).for_each(|id| *id = id.and_then(moved));
            n.control_deps = n.control_deps.iter().filter_map(|d| node.get(d.index()).copied()?).collect();
        }
        for t in &mut self.tensors {
            if let Origin::Node { node: maker, output } = t.origin {
                let maker = node.get(maker.index()).copied().flatten();
                t.origin = maker.map_or(Origin::Unmade, |node| Origin::Node { node, output });
            }
        }
        self.inputs = self.inputs.iter().filter_map(|id| moved(*id)).collect();
        self.lazy_inputs = self.lazy_inputs.iter().filter_map(|id| moved(*id)).collect();
        self.outputs = self.outputs.drain(..).filter_map(|(name, id)| Some((name, moved(id)?))).collect();
    }
}

/// The new position of each that is not `gone`.
fn positions(gone: &[bool]) -> impl Iterator<Item = Option<u32>> {
    let mut next = 0;
    gone.iter().map(move |gone| {
        let position = (!gone).then_some(next);
        next += u32::from(!gone);
        position
    })
}

fn retain<T>(all: &mut Vec<T>, gone: &[bool]) {
    let mut gone = gone.iter();
    all.retain(|_| !gone.next().copied().unwrap_or(false));
}
