//! A chain of Relay operators to the operators that compute it.

use std::sync::Arc;

use super::attrs::NodeAttrs;
use super::relay::{self, Kind, Problem, Relay};
use crate::graph::TensorInfo;
use crate::loader::Find;
use crate::ops::tvm::{TvmView, ViewKind};
use crate::ops::{AttrReader, Fact, OpCx, Operator};

/// What a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// An argument of the node.
    Argument(usize),
    /// The result of an earlier step.
    Step(usize),
}

/// One operator of a chain with one result.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) op: Arc<dyn Operator>,
    pub(super) sources: Vec<Source>,
    pub(super) info: TensorInfo,
}

/// The operators that compute `chain` over arguments `inputs` with the result `output`.
pub(super) fn steps(
    chain: &[&Relay],
    given: &NodeAttrs<'_>,
    inputs: &[TensorInfo],
    output: &TensorInfo,
    find: Find,
) -> Result<Vec<Step>, Problem> {
    if let Some(problem) = relay::ambiguity(chain) {
        return Err(problem.to_owned());
    }
    let orders = relay::orders(chain, inputs.len());
    let mut fitting: Vec<Vec<Step>> = Vec::new();
    let mut problem = format!("its operators do not take {} arguments", inputs.len());
    for order in orders {
        let planner = Planner { given, inputs, output, find, steps: Vec::new() };
        match planner.plan(chain, &order) {
            Ok(steps) => fitting.push(steps),
            Err(p) => problem = p,
        }
        if relay::order_is_free(chain) && !fitting.is_empty() {
            break;
        }
    }
    match (fitting.pop(), fitting.is_empty()) {
        (Some(steps), true) => Ok(steps),
        (Some(_), false) => Err("its arguments fit in more than one order".to_owned()),
        (None, _) => Err(problem),
    }
}

struct Planner<'a> {
    given: &'a NodeAttrs<'a>,
    inputs: &'a [TensorInfo],
    output: &'a TensorInfo,
    find: Find,
    steps: Vec<Step>,
}

impl Planner<'_> {
    /// `order` says for each later operator of two arguments whether its other one is on the left.
    fn plan(mut self, chain: &[&Relay], order: &[bool]) -> Result<Vec<Step>, Problem> {
        let mut lefts = order.iter().filter(|left| **left).count();
        let binary = order.len();
        let first = self.inputs.len().saturating_sub(binary);
        let start = lefts;
        let mut next_right = start.saturating_add(first);
        let mut order = order.iter();
        for (i, relay) in chain.iter().enumerate() {
            let rest = chain.get(i.saturating_add(1)..).unwrap_or(&[]);
            let keeps = rest.iter().all(|r| relay::keeps_shape(r));
            let previous = Source::Step(self.steps.len().saturating_sub(1));
            let sources = match (i, relay.kind) {
                (0, _) => (start..next_right).map(Source::Argument).collect(),
                (_, Kind::Binary(_)) if order.next() == Some(&true) => {
                    lefts = lefts.saturating_sub(1);
                    vec![Source::Argument(lefts), previous]
                }
                (_, Kind::Binary(_)) => {
                    next_right = next_right.saturating_add(1);
                    vec![previous, Source::Argument(next_right.saturating_sub(1))]
                }
                _ => vec![previous],
            };
            self.step(relay, sources, keeps)?;
        }
        match self.steps.last() {
            Some(last) if last.info == *self.output => Ok(self.steps),
            Some(last) => Err(format!("it would give {}, the graph says {}", last.info, self.output)),
            None => Err("its name is empty".to_owned()),
        }
    }

    fn info(&self, source: Source) -> Result<&TensorInfo, Problem> {
        let info = match source {
            Source::Argument(a) => self.inputs.get(a),
            Source::Step(s) => self.steps.get(s).map(|s| &s.info),
        };
        info.ok_or_else(|| "its arguments are not all there".to_owned())
    }

    /// Adds `relay` over `sources`; `keeps` says that all after it keep shapes, so that its own result has
    /// the shape of the chain's.
    fn step(&mut self, relay: &Relay, mut sources: Vec<Source>, keeps: bool) -> Result<(), Problem> {
        if relay.name == "nn_bias_add"
            && let [data, bias] = sources.as_mut_slice()
        {
            let shape = relay::bias_shape(self.given, self.info(*data)?, self.info(*bias)?)?;
            let view = Arc::new(TvmView::new(ViewKind::Reshape, shape));
            let from = *bias;
            *bias = Source::Step(self.steps.len());
            self.push(view, vec![from])?;
        }
        let op: Arc<dyn Operator> = if relay.op.is_empty() {
            let from = self.info(sources.first().copied().unwrap_or(Source::Argument(0)))?;
            let shape = relay::reshaped(relay, from, self.output, keeps)?;
            Arc::new(TvmView::new(ViewKind::Reshape, shape))
        } else {
            let infos: Vec<&TensorInfo> = sources.iter().map(|s| self.info(*s)).collect::<Result<_, _>>()?;
            let attrs = relay::attributes(relay, self.given, &infos, keeps.then_some(self.output))?;
            let def =
                (self.find)("", relay.op).ok_or_else(|| format!("there is no operator {}", relay.op))?;
            let mut reader = AttrReader::new(&attrs, infos.len(), 1);
            (def.read)(&mut reader, relay.opset).map_err(|e| format!("{}: {e}", relay.name))?
        };
        self.push(op, sources)
    }

    fn push(&mut self, op: Arc<dyn Operator>, sources: Vec<Source>) -> Result<(), Problem> {
        let facts: Vec<Option<Fact>> = sources
            .iter()
            .map(|s| Ok(Some(Fact::of(self.info(*s)?.clone()))))
            .collect::<Result<_, Problem>>()?;
        let infos = op.infer(&OpCx::for_infer(facts, 1)).map_err(|e| format!("{}: {e}", op.name()))?;
        let info = infos.into_iter().next().ok_or_else(|| format!("{} has no result", op.name()))?;
        self.steps.push(Step { op, sources, info });
        Ok(())
    }
}
