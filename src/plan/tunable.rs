//! The nodes of a plan whose kernels may be chosen by measurement.

use std::sync::Arc;

use super::flow::node_error;
use super::lowering::{NodeWork, lower_with};
use super::passes::{PassLog, lowered, rewritten};
use super::{Compiler, PlanError, PlanOptions, PlanOutcome, PlanRequest};
use crate::backend::DeviceInfo;
use crate::ops::{Asked, Choices, Lowered, OpCx, OpError, Operator};

/// A node that several kernels can compute.
#[derive(Clone, Debug)]
pub struct TunableNode {
    /// Its name.
    pub name: String,
    /// What it computes.
    pub op: Arc<dyn Operator>,
    /// Facts of its inputs and outputs.
    pub cx: OpCx,
    /// The device it runs on.
    pub device: u32,
    /// What its lowering chose between.
    pub asked: Vec<Asked>,
}

impl TunableNode {
    /// Its lowering for `device` with `choices`; `None` where what was chosen is beyond the device's limits.
    ///
    /// # Errors
    /// [`PlanError::Graph`] where the operator refuses for another reason.
    pub fn lower(
        &self,
        device: &DeviceInfo,
        options: &PlanOptions,
        choices: Option<&Choices>,
    ) -> Result<Option<Lowered>, PlanError> {
        match lower_with(self.op.as_ref(), &self.cx, device, options, choices) {
            Ok(lowered) => Ok(Some(lowered)),
            Err(OpError::Unsupported { .. }) => Ok(None),
            Err(other) => Err(node_error(&self.name, self.op.as_ref(), other)),
        }
    }
}

impl Compiler<'_> {
    /// The nodes that asked for a choice on the devices of which
    /// [`PlanOptions::choices`](super::PlanOptions::choices) has an entry, as [`Compiler::compile`] would lower them.
    /// Those with tensors in images are left out.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub fn tunable(&self, request: &PlanRequest<'_>) -> Result<PlanOutcome<Vec<TunableNode>>, PlanError> {
        let (cx, mut log) = (self.cx(&self.assignment, request), PassLog::default());
        rewritten(request, &cx, &mut log)?.try_map(|flow| {
            let lowered = lowered(flow, &cx, &mut log)?;
            let nodes = lowered.flow.nodes.iter().zip(&lowered.nodes).enumerate();
            let tunable = nodes.filter_map(|(n, (node, at))| {
                let NodeWork::Device(work) = &at.work else { return None };
                let cx = lowered.flow.cx(n);
                let images = (0..cx.input_count()).any(|i| cx.image(i).is_some())
                    || (0..cx.outputs().len()).any(|o| cx.output_image(o).is_some());
                let is_tunable = !work.asked.is_empty() && !images;
                is_tunable.then(|| TunableNode {
                    name: node.name.clone(),
                    op: Arc::clone(&node.op),
                    cx,
                    device: at.device,
                    asked: work.asked.clone(),
                })
            });
            Ok(tunable.collect())
        })
    }
}
