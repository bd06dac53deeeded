//! What a device does at most: bytes moved and arithmetic, measured with one operator each.

use std::sync::Arc;

use super::data::Peak;
use crate::error::CliError;
use crate::stop;
use onepool::device::Context;
use onepool::ops::linalg::MatMul;
use onepool::ops::{self, Operator};
use onepool::session::{Error, Memory, Session};
use onepool::{DType, Graph, GraphBuilder};

/// Nanoseconds from which a measurement is long enough.
const LONG: u64 = 8_000_000;
/// Runs of the size that is long enough, of which the fastest counts.
const RUNS: usize = 3;
/// Elements of the smallest and the largest tensor of a stream: 4 and 128 MiB.
const STREAM: [usize; 2] = [1 << 20, 1 << 25];
/// Rows of the smallest and the largest square of a product.
const SQUARE: [usize; 2] = [256, 4096];

/// What the device of `context` was measured to do; of one that cannot be measured, why.
pub(super) fn measure(context: &Context) -> Peak {
    if context.info().api == "sim" {
        return unknown("A simulated device has no speed.");
    }
    let found = stream(context).and_then(|bytes| Ok((bytes, product(context)?)));
    match found {
        Ok(((bytes_per_s, mib), (flops_per_s, rows))) => Peak {
            bytes_per_s,
            flops_per_s,
            source: format!(
                "Measured just before the page was written: LeakyRelu on {mib} MiB of float32, and a float32 product of two \
                 {rows} x {rows} matrices. Tensors that fit a cache can move faster, other types can compute faster."
            ),
        },
        Err(e) => unknown(&format!("Its peak could not be measured: {}.", crate::error::chain(&e))),
    }
}

fn unknown(why: &str) -> Peak {
    Peak { source: why.to_owned(), ..Peak::default() }
}

/// Bytes in a second of an operator that reads and writes each element once, and the MiB of its input.
fn stream(context: &Context) -> Result<(f64, usize), CliError> {
    let [mut len, most] = STREAM;
    loop {
        let mut g = GraphBuilder::new("stream");
        let x = g.input("x", DType::F32, [len.into()]);
        let y = g.op(ops::unary(ops::pointwise::Function::LeakyRelu), &[x]);
        g.output("y", y);
        let nanos = fastest(context, g.build().map_err(Error::from)?)?;
        if nanos >= LONG || len >= most {
            return Ok((8.0 * len as f64 / nanos as f64 * 1e9, len >> 18));
        }
        len *= 2;
    }
}

/// Operations in a second of a matrix product, and the rows of its matrices.
fn product(context: &Context) -> Result<(f64, usize), CliError> {
    let [mut rows, most] = SQUARE;
    loop {
        let mut g = GraphBuilder::new("product");
        let [a, b] = ["x", "b"].map(|name| g.input(name, DType::F32, [rows.into(), rows.into()]));
        let y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[a, b]);
        g.output("y", y);
        let nanos = fastest(context, g.build().map_err(Error::from)?)?;
        if nanos >= LONG || rows >= most {
            return Ok((2.0 * (rows as f64).powi(3) / nanos as f64 * 1e9, rows));
        }
        rows *= 2;
    }
}

/// Nanoseconds of the operator of a graph of one, by the device's clock.
fn fastest(context: &Context, graph: Graph) -> Result<u64, CliError> {
    let session = stop::cancellable(Session::builder()).graph(graph).context(context.clone());
    let session = session.fallback(false).build()?;
    let names = session.inputs();
    let bind = names.iter().fold(session.bind(), |bind, io| bind.input(&io.name, Memory::own()));
    let mut binding = bind.output("y", Memory::own()).build()?;
    let mut best = None;
    for _ in 0..RUNS {
        let nanos: u64 = binding.profile()?.nodes.iter().map(|n| n.nanos).sum();
        best = Some(best.map_or(nanos, |best: u64| best.min(nanos))).filter(|best| *best > 0);
        if best.is_some_and(|best| best < LONG / 2) {
            // A larger size comes next.
            break;
        }
    }
    best.ok_or_else(|| CliError::Failed("the device gives no times".to_owned()))
}
