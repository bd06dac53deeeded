//! Models for the tests, written field by field.

use std::path::{Path, PathBuf};

use crate::protobuf::{field, int};

/// ONNX's number of `float32`.
pub(crate) const FLOAT: u64 = 1;
const INT64: u64 = 7;
const BOOL: u64 = 9;

/// The protocol's names of the element types, and ONNX's numbers.
pub(crate) const TYPES: [(&str, u64, usize); 13] = [
    ("FP32", FLOAT, 4),
    ("UINT8", 2, 1),
    ("INT8", 3, 1),
    ("UINT16", 4, 2),
    ("INT16", 5, 2),
    ("INT32", 6, 4),
    ("INT64", INT64, 8),
    ("BOOL", BOOL, 1),
    ("FP16", 10, 2),
    ("FP64", 11, 8),
    ("UINT32", 12, 4),
    ("UINT64", 13, 8),
    ("BF16", 16, 2),
];

/// An input or output; sizes that are no numbers are symbols.
fn value(name: &str, element: u64, dims: &[&str]) -> Vec<u8> {
    let dim = |text: &&str| match text.parse() {
        Ok(size) => field(1, &int(1, size)),
        Err(_) => field(1, &field(2, text.as_bytes())),
    };
    let shape: Vec<u8> = dims.iter().flat_map(dim).collect();
    let tensor = [int(1, element), field(2, &shape)].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
}

fn node(op: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|input| field(1, input.as_bytes())).collect();
    [inputs, field(2, output.as_bytes()), field(3, output.as_bytes()), field(4, op.as_bytes())].concat()
}

fn write(folder: &Path, name: &str, nodes: &[Vec<u8>], inputs: &[Vec<u8>], outputs: &[Vec<u8>]) -> PathBuf {
    let all = |number: u64, parts: &[Vec<u8>]| {
        parts.iter().flat_map(|part| field(number, part)).collect::<Vec<u8>>()
    };
    let graph = [all(1, nodes), field(2, name.as_bytes()), all(11, inputs), all(12, outputs)].concat();
    let model = [int(1, 8), field(7, &graph), field(8, &int(2, 17))].concat();
    let path = folder.join(format!("{name}.onnx"));
    std::fs::write(&path, model).unwrap();
    path
}

/// `y = x + x` by rows of `width`.
pub(crate) fn rows(folder: &Path, width: usize) -> PathBuf {
    let width = width.to_string();
    let dims = ["n", width.as_str()];
    let nodes = [node("Add", &["x", "x"], "y")];
    write(folder, "rows", &nodes, &[value("x", FLOAT, &dims)], &[value("y", FLOAT, &dims)])
}

/// `c = a + a` and `d = b + b`, of other types and sizes.
pub(crate) fn two(folder: &Path) -> PathBuf {
    let nodes = [node("Add", &["a", "a"], "c"), node("Add", &["b", "b"], "d")];
    let inputs = [value("a", FLOAT, &["n", "3"]), value("b", INT64, &["m"])];
    let outputs = [value("c", FLOAT, &["n", "3"]), value("d", INT64, &["m"])];
    write(folder, "two", &nodes, &inputs, &outputs)
}

/// `c = a + b` by rows of 2.
pub(crate) fn sum(folder: &Path) -> PathBuf {
    let inputs = ["a", "b"].map(|name| value(name, FLOAT, &["n", "2"]));
    write(folder, "sum", &[node("Add", &["a", "b"], "c")], &inputs, &[value("c", FLOAT, &["n", "2"])])
}

/// Products of a square matrix with itself: 40 of them.
pub(crate) fn slow(folder: &Path) -> PathBuf {
    let mut nodes = vec![node("MatMul", &["x", "x"], "p0")];
    for n in 1..40 {
        nodes.push(node("MatMul", &[&format!("p{}", n - 1), "x"], &format!("p{n}")));
    }
    nodes.push(node("Neg", &["p39"], "y"));
    write(folder, "slow", &nodes, &[value("x", FLOAT, &["n", "n"])], &[value("y", FLOAT, &["n", "n"])])
}

/// The positions of what is not zero, whose number only the run tells.
pub(crate) fn positions(folder: &Path) -> PathBuf {
    let nodes = [node("NonZero", &["x"], "y")];
    write(folder, "positions", &nodes, &[value("x", FLOAT, &["n"])], &[value("y", INT64, &["1", "k"])])
}

/// A model for each element type that gives what it gets, named as the type.
pub(crate) fn identities(folder: &Path) {
    for (name, number, _) in TYPES {
        let nodes = [node("Identity", &["x"], "y")];
        write(folder, name, &nodes, &[value("x", number, &["n"])], &[value("y", number, &["n"])]);
    }
}
