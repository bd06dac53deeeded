//! The device of each node, as far as it is decided before lowering.

use super::Flow;
use crate::plan::lowering::PlanCx;
use crate::plan::{Assignment, PlanError};

/// Checks the devices that the graph requests, and overrides them by those of the options; returns how many nodes
/// have one.
pub(super) fn place_nodes(flow: &mut Flow, cx: &PlanCx<'_>) -> Result<usize, PlanError> {
    let options = cx.options;
    for node in &mut flow.nodes {
        let by_name = options.place_nodes.get(&node.name);
        let by_op = || options.place_ops.get(node.op.name());
        let given = by_name.or_else(by_op).copied().or(node.device);
        node.device = given.or(options.place_rest);
        let (device, devices) = (cx.wanted_device(node), cx.devices.len());
        if device as usize >= devices {
            return Err(PlanError::UnknownDevice { node: node.name.clone(), device, devices });
        }
    }
    Ok(flow.nodes.iter().filter(|n| n.device.is_some()).count())
}

/// Assigns devices to nodes that nothing else places, if the assignment is by node; returns how many got one.
pub(super) fn assign_devices(flow: &mut Flow, cx: &PlanCx<'_>) -> Result<usize, PlanError> {
    let Assignment::Each(assigned) = cx.assignment else { return Ok(0) };
    if assigned.len() != flow.nodes.len() {
        let (assigned, nodes) = (assigned.len(), flow.nodes.len());
        return Err(PlanError::Assignment { assigned, nodes });
    }
    let mut changes = 0;
    for (node, &device) in flow.nodes.iter_mut().zip(assigned.iter()) {
        changes += usize::from(node.device.is_none());
        let device = *node.device.get_or_insert(device);
        if device as usize >= cx.devices.len() {
            let devices = cx.devices.len();
            return Err(PlanError::UnknownDevice { node: node.name.clone(), device, devices });
        }
    }
    Ok(changes)
}
