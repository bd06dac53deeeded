//! A graph as text, for people.

use std::fmt;

use super::{Graph, Origin};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |id: &Option<super::TensorId>| match id {
            Some(id) => format!("%{}", self.tensor(*id).name),
            None => "_".to_owned(),
        };
        writeln!(f, "graph {:?}", self.name)?;
        for &i in &self.inputs {
            let t = self.tensor(i);
            let dtype = t.dtype.map_or("?", |d| d.name());
            let shape = t.shape.as_ref().map_or("[..]".to_owned(), |s| s.to_string());
            writeln!(f, "  input %{}: {dtype}{shape}", t.name)?;
        }
        for t in &self.tensors {
            if let Origin::Constant(c) = &t.origin {
                writeln!(f, "  constant %{}: {}", t.name, c.info())?;
            }
        }
        for node in &self.nodes {
            let outputs: Vec<String> = node.outputs.iter().map(name).collect();
            let inputs: Vec<String> = node.inputs.iter().map(name).collect();
            writeln!(f, "  {} = {:?}({})", outputs.join(", "), node.op, inputs.join(", "))?;
        }
        for (output, id) in &self.outputs {
            writeln!(f, "  output {output:?} = %{}", self.tensor(*id).name)?;
        }
        Ok(())
    }
}
