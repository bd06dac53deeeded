//! Loop: a graph repeated, for a number of times or while a condition holds.

use std::sync::Arc;

use super::{Control, Loop};
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::{AttrReader, OpCx, OpError, Operator};

/// The attribute with the numbers of the stacks that are collected as lists; loaders write it, no file has it.
pub const COLLECTED: &str = "onepool.collected";

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let body = attrs.graph("body")?;
    let inputs = attrs.input_count().saturating_sub(body.captured());
    let states = inputs.saturating_sub(2);
    let count = |what, found, expected: String| Err(OpError::Count { what, found, expected });
    if inputs < 2 {
        return count("inputs", inputs, "at least 2".to_owned());
    }
    if body.inputs().len() != 2 + states + body.captured() {
        let found = body.inputs().len() - body.captured();
        return count("inputs of its body", found, format!("{}", states + 2));
    }
    if body.outputs().len() < 1 + states {
        return count("outputs of its body", body.outputs().len(), format!("at least {}", states + 1));
    }
    let stacks = body.outputs().len() - 1 - states;
    let lists = attrs.ints_opt(COLLECTED)?.unwrap_or_default();
    let lists: Option<Vec<usize>> =
        lists.iter().map(|k| usize::try_from(*k).ok().filter(|k| *k < stacks)).collect();
    let lists = lists.ok_or_else(|| attrs.error(COLLECTED, format!("is not of {stacks} stacks")))?;
    Ok(Arc::new(Loop { body: Arc::new(body.clone()), states, lists }))
}

impl Operator for Loop {
    fn name(&self) -> &'static str {
        "Loop"
    }

    /// The sizes of the results depend on the run.
    fn infer(&self, _: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        Err(OpError::NeedsValue { input: 0 })
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        Err(OpError::unsupported("Loop has no kernel of its own"))
    }

    fn control(&self) -> Option<Control<'_>> {
        Some(Control::Loop(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::GraphBuilder;
    use crate::ops::{AttrMap, AttrValue};

    #[test]
    fn a_body_must_fit_its_node() {
        let body = |inputs: usize, outputs: usize| {
            let mut g = GraphBuilder::new("body");
            let ids: Vec<_> = (0..inputs).map(|i| g.declare_input(format!("i{i}"), None, None)).collect();
            (0..outputs).for_each(|o| g.output(format!("o{o}"), ids[0]));
            let mut attrs = AttrMap::new();
            attrs.insert("body".into(), AttrValue::Graph(Box::new(g.build().unwrap())));
            attrs
        };
        let read = |attrs: &AttrMap, inputs| read(&mut AttrReader::new(attrs, inputs, 1), 16);
        assert!(read(&body(3, 2), 3).is_ok());
        let says = |attrs: &AttrMap, inputs| read(attrs, inputs).unwrap_err().to_string();
        assert!(says(&body(3, 2), 1).contains("at least 2"));
        assert!(says(&body(3, 2), 4).contains("inputs of its body"));
        assert!(says(&body(4, 2), 4).contains("outputs of its body"));
        assert!(says(&AttrMap::new(), 2).contains("body"));
    }
}
