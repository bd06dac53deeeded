//! Two bindings of one session in flight at one time: double buffering.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::ops::pointwise::{Function, Pointwise};
use onepool::ops::reduce::{Reduce, ReduceKind};
use onepool::ops::{self, Operator};
use onepool::registry::Registry;
use onepool::{Binding, DType, GraphBuilder, HostRegion, Memory, Session, SharedRegion};

const ROWS: usize = 96;
const COLUMNS: usize = 1024;

/// `y = |x| + row sums of |x|`: two kernels with a value between them.
fn session(device: &str) -> Session {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [ROWS.into(), COLUMNS.into()]);
    let size: Arc<dyn Operator> = Arc::new(Pointwise::new(Function::Abs));
    let a = g.op(size, &[x]);
    let sum =
        Reduce { kind: ReduceKind::Sum, axes: Some(vec![1]), keep_dims: true, noop_with_empty_axes: false };
    let s = g.op(Arc::new(sum) as Arc<dyn Operator>, &[a]);
    let y = g.op(ops::add(), &[a, s]);
    g.output("y", y);
    let desc = ContextDesc { validation: true, ..ContextDesc::default() };
    let context = Registry::with_defaults().open(device, &desc).unwrap();
    Session::builder().graph(g.build().unwrap()).context(context).build().unwrap()
}

/// Memory of one side of the double buffer, and a binding on it.
struct Side {
    x: Arc<SharedRegion>,
    y: Arc<SharedRegion>,
    binding: Binding<'static>,
}

impl Side {
    fn new(session: &Session) -> Side {
        let region = || HostRegion::new(4 * ROWS * COLUMNS).unwrap().into_shared();
        let (x, y) = (region(), region());
        let bind = session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y));
        Side { binding: bind.build().unwrap(), x, y }
    }

    /// Whole numbers, so that sums are exact in any order.
    fn fill(&self, round: usize) {
        let mut x = self.x.write().unwrap();
        let x = x.as_mut_slice_of::<f32>().unwrap();
        x.iter_mut().enumerate().for_each(|(i, v)| *v = ((i * 7 + round * 13) % 19) as f32 - 9.0);
    }

    fn check(&self, round: usize, side: &str) {
        let (x, y) = (self.x.read().unwrap(), self.y.read().unwrap());
        let rows = x.as_slice_of::<f32>().unwrap().chunks(COLUMNS);
        for (row, (x, y)) in rows.zip(y.as_slice_of::<f32>().unwrap().chunks(COLUMNS)).enumerate() {
            let sum: f32 = x.iter().map(|v| v.abs()).sum();
            let want: Vec<f32> = x.iter().map(|v| v.abs() + sum).collect();
            assert_eq!(y, want, "{side}, round {round}, row {row}");
        }
    }
}

fn double_buffered(device: &str) {
    let session = session(device);
    let (mut a, mut b) = (Side::new(&session), Side::new(&session));
    for round in 0..6 {
        a.fill(2 * round);
        b.fill(2 * round + 1);
        let first = a.binding.submit().unwrap();
        let second = b.binding.submit().unwrap();
        // Either may be waited for first.
        if round % 2 == 0 {
            first.wait().unwrap();
            second.wait().unwrap();
        } else {
            second.wait().unwrap();
            first.wait().unwrap();
        }
        a.check(round, "first");
        b.check(round, "second");
    }
    // One side is filled and read while the other is in flight.
    a.fill(100);
    let mut flying = a.binding.submit().unwrap();
    for round in 101..105 {
        b.fill(round);
        flying.wait().unwrap();
        a.check(round - 1, "in turn");
        flying = b.binding.submit().unwrap();
        flying.wait().unwrap();
        b.check(round, "in turn");
        a.fill(round);
        flying = a.binding.submit().unwrap();
    }
    flying.wait().unwrap();
    for i in 0..session.devices().count() {
        assert_eq!(session.context(i).unwrap().validation_messages(), Vec::<String>::new());
    }
}

#[test]
fn on_the_cpu() {
    double_buffered("cpu");
}

#[test]
fn on_simulated_devices() {
    for device in ["sim:0", "sim:1", "sim:2"] {
        double_buffered(device);
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn on_vulkan() {
    double_buffered("vulkan");
}
