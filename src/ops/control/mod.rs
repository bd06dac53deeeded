//! Control flow: graphs as attributes. The session runs them ([`Control`]); no kernel does.

mod choice;
mod repeat;
mod scan;

use std::sync::Arc;

pub use choice::If;
pub use repeat::COLLECTED;

use super::{Family, OpDef, Operator};
use crate::dtype::DType;
use crate::graph::Graph;
pub use crate::operator::control::{Control, Loop, Scan, ScanAxis};

/// The operator with each of its graphs changed by `change`; `None` where it has none.
pub fn with_graphs(op: &dyn Operator, change: &mut dyn FnMut(&mut Graph)) -> Option<Arc<dyn Operator>> {
    let mut changed = |graph: &Arc<Graph>| {
        let mut graph = Graph::clone(graph);
        change(&mut graph);
        Arc::new(graph)
    };
    Some(match op.control()? {
        Control::If { then, other } => Arc::new(If { then: changed(then), other: changed(other) }),
        Control::Loop(own) => Arc::new(Loop { body: changed(&own.body), ..own.clone() }),
        Control::Scan(own) => Arc::new(Scan { body: changed(&own.body), ..own.clone() }),
    })
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "control",
    ops: &[
        OpDef { name: "If", domain: "", since: 1, types: &DType::ALL, gpu: false, read: choice::read },
        OpDef { name: "Loop", domain: "", since: 1, types: &DType::ALL, gpu: false, read: repeat::read },
        OpDef { name: "Scan", domain: "", since: 8, types: &DType::ALL, gpu: false, read: scan::read },
    ],
};
