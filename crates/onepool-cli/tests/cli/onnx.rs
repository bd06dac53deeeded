//! Writes small ONNX models and test cases, byte by byte: the library only reads them.

use std::path::Path;

use onepool::loader::onnx::write_tensor_pb;
use onepool::{DType, Tensor};

/// A protocol buffer message under construction.
#[derive(Clone, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.0.push(v as u8 | 0x80);
            v >>= 7;
        }
        self.0.push(v as u8);
    }

    pub(crate) fn int(mut self, field: u64, v: i64) -> Self {
        self.varint(field << 3);
        self.varint(v as u64);
        self
    }

    pub(crate) fn bytes(mut self, field: u64, v: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(v.len() as u64);
        self.0.extend(v);
        self
    }

    pub(crate) fn text(self, field: u64, v: &str) -> Self {
        self.bytes(field, v.as_bytes())
    }

    pub(crate) fn message(self, field: u64, v: Message) -> Self {
        self.bytes(field, &v.0)
    }
}

/// A dimension: a size, or a name.
#[derive(Clone, Copy)]
pub(crate) enum Dim {
    Size(i64),
    Name(&'static str),
}

fn number(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I64 => 7,
        DType::F64 => 11,
        other => panic!("no number for {other}"),
    }
}

fn value_info(name: &str, dtype: DType, dims: &[Dim]) -> Message {
    let dim = |d: &Dim| match d {
        Dim::Size(n) => Message::default().int(1, *n),
        Dim::Name(n) => Message::default().text(2, n),
    };
    let shape = dims.iter().fold(Message::default(), |m, d| m.message(1, dim(d)));
    let tensor = Message::default().int(1, number(dtype)).message(2, shape);
    Message::default().text(1, name).message(2, Message::default().message(1, tensor))
}

/// A model under construction.
#[derive(Clone, Default)]
pub(crate) struct Model {
    graph: Message,
    contributed: bool,
}

impl Model {
    pub(crate) fn input(mut self, name: &str, dtype: DType, dims: &[Dim]) -> Self {
        self.graph = self.graph.message(11, value_info(name, dtype, dims));
        self
    }

    pub(crate) fn output(mut self, name: &str, dtype: DType) -> Self {
        let tensor = Message::default().int(1, number(dtype));
        let info = Message::default().text(1, name).message(2, Message::default().message(1, tensor));
        self.graph = self.graph.message(12, info);
        self
    }

    pub(crate) fn constant(mut self, name: &str, value: &Tensor) -> Self {
        self.graph = self.graph.bytes(5, &write_tensor_pb(name, value));
        self
    }

    pub(crate) fn node(self, op: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        self.named(&format!("the_{op}"), op, inputs, outputs)
    }

    pub(crate) fn named(mut self, name: &str, op: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        let node = inputs.iter().fold(Message::default(), |m, i| m.text(1, i));
        let node = outputs.iter().fold(node, |m, o| m.text(2, o));
        self.graph = self.graph.message(1, node.text(3, name).text(4, op));
        self
    }

    /// A node of `com.microsoft` with whole numbers as attributes.
    pub(crate) fn contributed(
        mut self,
        op: &str,
        inputs: &[&str],
        output: &str,
        attrs: &[(&str, i64)],
    ) -> Self {
        let node = inputs.iter().fold(Message::default(), |m, i| m.text(1, i));
        let attr = |&(name, n): &(&str, i64)| Message::default().text(1, name).int(3, n).int(20, 2);
        let node = attrs.iter().fold(node.text(2, output).text(4, op), |m, a| m.message(5, attr(a)));
        self.graph = self.graph.message(1, node.text(7, "com.microsoft"));
        self.contributed = true;
        self
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let opset = Message::default().int(2, 17);
        let graph = self.graph.text(2, "test");
        let model = Message::default().int(1, 8).text(2, "cli tests").message(7, graph).message(8, opset);
        let contributed = Message::default().text(1, "com.microsoft").int(2, 1);
        if self.contributed { model.message(8, contributed).0 } else { model.0 }
    }

    pub(crate) fn write(self, path: &Path) {
        std::fs::write(path, self.encode()).unwrap();
    }
}

/// `y = x + c`, with `x` of shape `[n, 3]` and `c` of three values.
pub(crate) fn add() -> Model {
    Model::default()
        .input("x", DType::F32, &[Dim::Name("n"), Dim::Size(3)])
        .constant("c", &Tensor::new([3], &[1.0f32, 2.0, 3.0]).unwrap())
        .node("Add", &["x", "c"], &["y"])
        .output("y", DType::F32)
}

/// Writes a test case for `model` with one data set.
pub(crate) fn case(dir: &Path, model: Model, inputs: &[Tensor], outputs: &[Tensor]) {
    let data = dir.join("test_data_set_0");
    std::fs::create_dir_all(&data).unwrap();
    model.write(&dir.join("model.onnx"));
    for (word, tensors) in [("input", inputs), ("output", outputs)] {
        for (i, t) in tensors.iter().enumerate() {
            std::fs::write(data.join(format!("{word}_{i}.pb")), write_tensor_pb("", t)).unwrap();
        }
    }
}
