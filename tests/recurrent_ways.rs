//! Recurrent layers in sessions: a device that says of itself what each way of doing their time steps is chosen for gives the
//! same results as the CPU.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![cfg(all(feature = "vulkan", feature = "opencl"))]

#[path = "support/disguise.rs"]
mod disguise;

use std::sync::Arc;

use onepool::backend::opencl::OpenClDriver;
use onepool::backend::vulkan::VulkanDriver;
use onepool::backend::{ContextBackend, ContextDesc, DeviceInfo, DeviceKind, Driver};
use onepool::device::Context;
use onepool::ops::pointwise::{Function, Pointwise};
use onepool::ops::recurrent::{Direction, Kind, Recurrent};
use onepool::ops::{Operator, StepKernel};
use onepool::plan::KernelCode;
use onepool::{DType, Graph, GraphBuilder, Session, Tensor};

use self::disguise::Disguised;

const GRU: Kind = Kind::Gru { linear_before_reset: true };
const GRU_BEFORE: Kind = Kind::Gru { linear_before_reset: false };

/// A layer of both directions over `steps` time steps.
#[derive(Clone, Copy)]
struct Layer {
    kind: Kind,
    steps: usize,
    batch: usize,
    hidden: usize,
}

const INPUT: usize = 4;

/// Numbers up to `most` in size.
fn values(dims: &[usize], seed: usize, most: f32, dtype: DType) -> Tensor {
    let n: usize = dims.iter().product();
    let value = |i: usize| (((i * 7919 + seed * 104_729) % 2001) as f32 / 1000.0 - 1.0) * most;
    let values: Vec<f32> = (0..n).map(value).collect();
    match dtype {
        DType::F16 => {
            let values: Vec<half::f16> = values.into_iter().map(half::f16::from_f32).collect();
            Tensor::new(dims, &values).unwrap()
        }
        _ => Tensor::new(dims, &values).unwrap(),
    }
}

impl Layer {
    fn graph(&self, dtype: DType) -> Graph {
        let functions = [Function::Sigmoid, Function::Tanh, Function::Tanh];
        let functions: Vec<Pointwise> = functions.into_iter().map(Pointwise::new).collect();
        let functions = match self.kind {
            Kind::Rnn => functions[1..2].to_vec(),
            Kind::Gru { .. } => functions[..2].to_vec(),
            Kind::Lstm => functions,
        };
        let op = Recurrent {
            kind: self.kind,
            direction: Direction::Bidirectional,
            functions: vec![functions; 2],
            clip: None,
            input_forget: false,
            hidden: None,
            batch_first: false,
        };
        let width = self.kind.gates() * self.hidden;
        let mut g = GraphBuilder::new("layer");
        let x = g.input("x", dtype, [self.steps, self.batch, INPUT].map(Into::into));
        let w = g.constant("w", values(&[2, width, INPUT], 1, 0.5, dtype));
        // Small, so that roundings of a time step do not grow in the next ones.
        let most = 1.0 / (self.hidden as f32).sqrt();
        let r = g.constant("r", values(&[2, width, self.hidden], 2, most, dtype));
        let b = g.constant("b", values(&[2, 2 * width], 3, 0.25, dtype));
        let op: Arc<dyn Operator> = Arc::new(op);
        let (_, outputs) = g.node("layer", op, &[x, w, r, b].map(Some), 2);
        g.output("y", outputs[0]);
        g.output("last", outputs[1]);
        g.build().unwrap()
    }

    fn x(&self, dtype: DType) -> Tensor {
        values(&[self.steps, self.batch, INPUT], 4, 1.0, dtype)
    }
}

/// The results, and the names of the kernels.
fn run(layer: &Layer, dtype: DType, context: Context) -> ([Vec<f32>; 2], Vec<String>) {
    let mut session = Session::builder().graph(layer.graph(dtype)).context(context).build().unwrap();
    session.set_input("x", &layer.x(dtype)).unwrap();
    // Twice: what the first run left in the memory must not matter.
    session.run().unwrap();
    session.run().unwrap();
    let plan = session.binding().unwrap().plan();
    let names = plan.kernels.iter().filter_map(|kernel| match &kernel.code {
        KernelCode::Device(StepKernel::Table(id)) => Some(id.info().name.to_owned()),
        _ => None,
    });
    let names = names.collect();
    (["y", "last"].map(|name| session.get_output(name).unwrap().to_f32s().unwrap()), names)
}

fn real_devices() -> Vec<Arc<dyn ContextBackend>> {
    let desc = ContextDesc { validation: true, ..ContextDesc::default() };
    let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
    let drivers: [(&str, Box<dyn Driver>); 2] =
        [("vulkan", Box::new(VulkanDriver::default())), ("opencl", Box::new(OpenClDriver))];
    let open = |(name, driver): (&str, Box<dyn Driver>)| match driver.open(0, &desc) {
        Ok(real) => Some(real),
        Err(error) => {
            assert!(!required.contains(name), "there is no device: {error}");
            eprintln!("not tested: {error}");
            None
        }
    };
    drivers.into_iter().filter_map(open).collect()
}

fn gpu(info: &mut DeviceInfo, lanes: u32) {
    (info.kind, info.prefers_texels, info.processors) = (DeviceKind::Integrated, false, Some(64));
    (info.subgroup, info.subgroup_range) = (lanes, [lanes; 2]);
}

#[test]
fn each_way_is_taken_where_the_model_says_so_and_gives_the_same() {
    let layer = |kind, batch, hidden| Layer { kind, steps: 5, batch, hidden };
    let cases: [(&str, u32, Layer); 8] = [
        ("sequence_held", 32, layer(GRU, 2, 40)),
        ("sequence_held", 32, layer(GRU_BEFORE, 1, 24)),
        ("sequence_held", 32, layer(Kind::Lstm, 1, 13)),
        ("time_step", 16, layer(GRU, 3, 120)),
        ("time_step", 16, layer(GRU_BEFORE, 2, 132)),
        ("time_step", 16, layer(Kind::Lstm, 1, 101)),
        ("time_step", 32, layer(Kind::Rnn, 2, 400)),
        ("sequence", 16, layer(Kind::Lstm, 2, 20)),
    ];
    for real in real_devices() {
        for (name, lanes, layer) in cases {
            for dtype in [DType::F32, DType::F16] {
                let cpu = onepool::registry::Registry::with_defaults();
                let cpu = cpu.open("cpu", &ContextDesc::default()).unwrap();
                let (want, _) = run(&layer, dtype, cpu);
                let context = Context::new(Arc::new(Disguised::new(real.clone(), |info| gpu(info, lanes))));
                let (got, kernels) = run(&layer, dtype, context.clone());
                let own = format!("{name}_{dtype}").replace("float32", "f32").replace("float16", "f16");
                let device = &context.info().name;
                assert!(kernels.iter().any(|k| k.starts_with(&own)), "{own} on {device}: {kernels:?}");
                let most = if dtype == DType::F16 { 5e-3 } else { 5e-5 };
                for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
                    assert!((got - want).abs() <= most, "{own} on {device}: {got} for {want}");
                }
                assert_eq!(context.validation_messages(), Vec::<String>::new());
            }
        }
    }
}
