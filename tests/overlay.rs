//! Joins, parts and slices that share memory with what they are of: no command moves them, and no value changes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::graph::TensorId;
use onepool::ops::index::Gather;
use onepool::ops::movement::{Concat, Pad, PadMode, Split};
use onepool::ops::pointwise::{Function, Pointwise};
use onepool::ops::{self, Operator};
use onepool::registry::Registry;
use onepool::{DType, Graph, GraphBuilder, Session, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const DEVICES: [&str; 6] = ["cpu", "sim:0", "sim:1", "sim:2", "vulkan", "opencl"];
const MOVES: [&str; 4] = ["Concat", "Split", "Gather", "Pad"];

/// Rows of a value, of one width in a graph.
#[derive(Clone, Debug)]
struct Known {
    id: TensorId,
    rows: Vec<Vec<f32>>,
}

/// A graph with the results that its outputs must have.
struct Case {
    graph: GraphBuilder,
    known: Vec<Known>,
    inputs: Vec<(String, Tensor)>,
    outputs: Vec<Vec<Vec<f32>>>,
}

impl Case {
    /// Two inputs of three rows of `width` elements.
    fn new(width: usize) -> Self {
        let mut graph = GraphBuilder::new("moves");
        let (mut known, mut inputs) = (Vec::new(), Vec::new());
        for i in 0..2 {
            let value = |row: usize, k: usize| ((row * 31 + k * 7 + i * 13) % 41) as f32 / 4.0 - 5.0;
            let rows: Vec<Vec<f32>> = (0..3).map(|row| (0..width).map(|k| value(row, k)).collect()).collect();
            let name = format!("x{i}");
            let id = graph.input(&name, DType::F32, [3.into(), width.into()]);
            inputs.push((name, Tensor::new([3, width], &rows.concat()).unwrap()));
            known.push(Known { id, rows });
        }
        Case { graph, known, inputs, outputs: Vec::new() }
    }

    fn add(&mut self, id: TensorId, rows: Vec<Vec<f32>>) -> usize {
        self.known.push(Known { id, rows });
        self.known.len() - 1
    }

    fn map(&mut self, x: usize, function: Function, f: impl Fn(f32) -> f32) -> usize {
        let Known { id, rows } = self.known[x].clone();
        let id = self.graph.op(Arc::new(Pointwise::new(function)) as Arc<dyn Operator>, &[id]);
        self.add(id, rows.iter().map(|row| row.iter().map(|v| f(*v)).collect()).collect())
    }

    fn relu(&mut self, x: usize) -> usize {
        self.map(x, Function::Relu, |v| v.max(0.0))
    }

    fn neg(&mut self, x: usize) -> usize {
        self.map(x, Function::Neg, |v| -v)
    }

    /// The sum of two values of as many rows.
    fn sum(&mut self, x: usize, y: usize) -> usize {
        let (x, y) = (self.known[x].clone(), self.known[y].clone());
        let id = self.graph.op(ops::add(), &[x.id, y.id]);
        let add = |(x, y): (&Vec<f32>, &Vec<f32>)| x.iter().zip(y).map(|(x, y)| x + y).collect();
        self.add(id, x.rows.iter().zip(&y.rows).map(add).collect())
    }

    fn join(&mut self, parts: &[usize]) -> usize {
        let parts: Vec<Known> = parts.iter().map(|&at| self.known[at].clone()).collect();
        let ids: Vec<TensorId> = parts.iter().map(|part| part.id).collect();
        let id = self.graph.op(Arc::new(Concat { axis: 0 }) as Arc<dyn Operator>, &ids);
        self.add(id, parts.into_iter().flat_map(|part| part.rows).collect())
    }

    /// The first `rows` rows, and the others.
    fn split(&mut self, x: usize, rows: usize) -> [usize; 2] {
        let Known { id, rows: all } = self.known[x].clone();
        let sizes = vec![rows as i64, (all.len() - rows) as i64];
        let op = Arc::new(Split { axis: 0, sizes: Some(sizes), parts: None }) as Arc<dyn Operator>;
        let name = format!("split{}", self.known.len());
        let (_, parts) = self.graph.node(name, op, &[Some(id)], 2);
        [self.add(parts[0], all[..rows].to_vec()), self.add(parts[1], all[rows..].to_vec())]
    }

    fn gather(&mut self, x: usize, places: &[i64]) -> usize {
        let Known { id, rows } = self.known[x].clone();
        let indices = self.graph.constant(format!("places{}", self.known.len()), Tensor::from_i64s(places));
        let id = self.graph.op(Arc::new(Gather { axis: 0 }) as Arc<dyn Operator>, &[id, indices]);
        let at = |i: &i64| rows[i.rem_euclid(rows.len() as i64) as usize].clone();
        self.add(id, places.iter().map(at).collect())
    }

    /// Rows before and after those of a value, fewer than it has.
    fn pad(&mut self, x: usize, mode: PadMode, [before, after]: [usize; 2]) -> usize {
        let Known { id, rows } = self.known[x].clone();
        let n = rows.len() as i64;
        let fixed = Some((vec![before as i64, 0, after as i64, 0], 0.5));
        let id = self.graph.op(Arc::new(Pad { mode, fixed }) as Arc<dyn Operator>, &[id]);
        let row = |i: i64| match mode {
            PadMode::Constant if !(0..n).contains(&i) => vec![0.5; rows[0].len()],
            PadMode::Constant | PadMode::Edge => rows[i.clamp(0, n - 1) as usize].clone(),
            PadMode::Wrap => rows[i.rem_euclid(n) as usize].clone(),
            PadMode::Reflect => rows[if i < n { i.abs() } else { 2 * n - 2 - i } as usize].clone(),
        };
        self.add(id, (-(before as i64)..n + after as i64).map(row).collect())
    }

    fn output(&mut self, x: usize) {
        self.graph.output(format!("y{}", self.outputs.len()), self.known[x].id);
        self.outputs.push(self.known[x].rows.clone());
    }

    /// Runs twice, compares, and returns how many moves have no command, and how many commands the others have.
    fn check(self, context: &Context) -> Result<(usize, usize), TestCaseError> {
        let graph: Graph = self.graph.build().unwrap();
        let mut session = Session::builder().graph(graph).context(context.clone()).build().unwrap();
        for (name, tensor) in &self.inputs {
            session.set_input(name, tensor).unwrap();
        }
        for _ in 0..2 {
            session.run().unwrap();
            for (i, want) in self.outputs.iter().enumerate() {
                let got = session.get_output(&format!("y{i}")).unwrap();
                prop_assert_eq!(got.as_slice::<f32>().unwrap(), &want.concat()[..]);
            }
        }
        let nodes = &session.binding().unwrap().plan().report.nodes;
        let moves: Vec<_> = nodes.iter().filter(|node| MOVES.contains(&node.op)).collect();
        let free = moves.iter().filter(|node| node.commands == 0).count();
        Ok((free, moves.iter().map(|node| node.commands as usize).sum()))
    }
}

fn open(device: &str) -> Context {
    let desc = ContextDesc { validation: true, ..ContextDesc::default() };
    Registry::with_defaults().open(device, &desc).unwrap()
}

/// What `build` makes on every device: commands of moves must be `commands` there.
fn moved_by(commands: usize, build: impl Fn(&mut Case)) {
    for device in DEVICES {
        let context = open(device);
        let mut case = Case::new(64);
        build(&mut case);
        let (_, got) = case.check(&context).unwrap();
        assert_eq!(got, commands, "{device}");
        assert_eq!(context.validation_messages(), Vec::<String>::new());
    }
}

#[test]
fn computed_parts_are_written_where_they_belong() {
    moved_by(0, |case| {
        let (a, b) = (case.relu(0), case.neg(1));
        let first = case.join(&[a, b]);
        let c = case.neg(first);
        let all = case.join(&[first, c]);
        let y = case.neg(all);
        case.output(y);
    });
}

/// Each join begins with all that the one before it has, as in dense blocks: all are one memory.
#[test]
fn joins_that_grow_are_one_memory() {
    moved_by(0, |case| {
        let mut parts = vec![case.relu(0), case.neg(1)];
        for _ in 0..4 {
            let joined = case.join(&parts);
            let made = case.neg(joined);
            let [first, _] = case.split(made, 2);
            parts.push(case.relu(first));
        }
        let all = case.join(&parts);
        let y = case.neg(all);
        case.output(y);
    });
}

/// What is joined in another order, or with something between, is not where the later join needs it.
#[test]
fn joins_of_other_orders_keep_their_values() {
    for order in [[1, 0, 2], [0, 2, 1], [2, 0, 1], [0, 0, 1], [0, 1, 0]] {
        // The first join as a whole, after another part.
        let is_whole = order == [2, 0, 1];
        for device in DEVICES {
            let context = open(device);
            let mut case = Case::new(64);
            let parts = [case.relu(0), case.neg(1), case.neg(0)];
            let one = case.join(&parts[..2]);
            let other = case.join(&order.map(|at| parts[at]));
            for x in [one, other] {
                let y = case.neg(x);
                case.output(y);
            }
            let (_, commands) = case.check(&context).unwrap();
            assert_eq!(commands == 0, is_whole, "{order:?} on {device}");
            assert_eq!(context.validation_messages(), Vec::<String>::new());
        }
    }
}

#[test]
fn slices_are_read_where_they_are() {
    moved_by(0, |case| {
        let x = case.relu(0);
        let [a, b] = case.split(x, 1);
        let middle = case.gather(x, &[1]);
        let last = case.gather(b, &[-2, -1]);
        let one = case.sum(a, middle);
        let two = case.sum(last, b);
        case.output(one);
        case.output(two);
    });
}

/// An element has one place: the second join copies it, and inputs and constants are not written elsewhere.
#[test]
fn what_has_its_place_elsewhere_is_copied() {
    moved_by(1, |case| {
        let (a, b) = (case.relu(0), case.relu(1));
        let one = case.join(&[a, b]);
        let c = case.neg(b);
        let two = case.join(&[c, a]);
        for x in [one, two] {
            let y = case.neg(x);
            case.output(y);
        }
    });
    for device in DEVICES {
        let mut case = Case::new(64);
        let joined = case.join(&[0, 1]);
        case.output(joined);
        let (free, commands) = case.check(&open(device)).unwrap();
        assert!(free == 0 && commands >= 1, "{device}");
    }
}

/// Of all elements of a padded tensor only those of its input may lie where they were computed.
#[test]
fn what_is_around_a_tensor_is_written() {
    for device in DEVICES {
        for mode in [PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap] {
            for pads in [[1, 2], [0, 2], [2, 0]] {
                let mut case = Case::new(64);
                let x = case.relu(0);
                let padded = case.pad(x, mode, pads);
                let y = case.neg(padded);
                case.output(y);
                let (_, commands) = case.check(&open(device)).unwrap();
                assert!(commands >= 1, "{device}: {mode:?} {pads:?}");
            }
        }
    }
}

/// Parts that are alive long before they are joined would keep the memory of all of it.
#[test]
fn no_more_memory_is_alive_than_with_copies() {
    for device in DEVICES {
        let mut case = Case::new(1 << 12);
        let early = case.relu(0);
        let mut x = case.neg(1);
        for _ in 0..4 {
            let wide = case.join(&[x, x, x, x, x]);
            let folded = case.neg(wide);
            x = case.gather(folded, &[2, 1, 0]);
        }
        let late = case.join(&[early, x]);
        let y = case.neg(late);
        case.output(y);
        let graph = case.graph.build().unwrap();
        let mut session = Session::builder().graph(graph).context(open(device)).build().unwrap();
        for (name, tensor) in &case.inputs {
            session.set_input(name, tensor).unwrap();
        }
        session.run().unwrap();
        assert_eq!(session.get_output("y0").unwrap().as_slice::<f32>().unwrap(), case.outputs[0].concat());
        let arenas = session.binding().unwrap().plan().arenas.clone();
        let bytes: u64 = arenas.iter().map(|arena| arena.bytes).sum();
        // Five and five times three rows, the early ones, and those that are joined.
        assert!(bytes <= (15 + 15 + 3 + 3) * (4 << 12), "{device}: {bytes}");
    }
}

/// A random graph: the kinds of its steps, and which earlier values each takes.
type Recipe = (usize, Vec<(usize, [prop::sample::Index; 3])>, Vec<prop::sample::Index>);

fn recipes() -> impl Strategy<Value = Recipe> {
    // Rows that a part may begin at, and rows that lie across such places.
    let width = prop_oneof![Just(64), Just(16), Just(5)];
    let picks = any::<[prop::sample::Index; 3]>();
    let steps = prop::collection::vec((0..13usize, picks), 3..20);
    (width, steps, prop::collection::vec(any::<prop::sample::Index>(), 1..4))
}

fn built((width, steps, outputs): &Recipe) -> Case {
    let mut case = Case::new(*width);
    case.relu(0);
    case.neg(1);
    for (kind, picks) in steps {
        // Late values, so that few are read by no one.
        let late = case.known.len() - 4;
        let [x, y, z] =
            [0, 1, 2].map(|k| late * usize::from(k < 2) + picks[k].index(if k < 2 { 4 } else { late + 4 }));
        let rows = case.known[x].rows.len();
        match kind {
            0..2 => drop(case.relu(x)),
            2..4 => drop(case.neg(x)),
            4 => {
                let positive = case.relu(x);
                case.sum(x, positive);
            }
            5..8 if rows + case.known[y].rows.len() < 40 => drop(case.join(&[x, y])),
            8 if rows + case.known[z].rows.len() < 40 => drop(case.join(&[z, x, z])),
            9..11 if rows > 1 => drop(case.split(x, 1 + picks[1].index(rows - 1))),
            11 if (2..20).contains(&rows) => {
                let modes = [PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap];
                let pads = [1, 2].map(|k| picks[k].index(rows.min(4)));
                case.pad(x, modes[picks[2].index(4)], pads);
            }
            _ => {
                let first = picks[1].index(rows) as i64;
                let count = 1 + picks[2].index(rows - first as usize) as i64;
                case.gather(x, &(first..first + count).collect::<Vec<_>>());
            }
        }
    }
    let last = case.known.len() - 1;
    for at in outputs.iter().map(|output| 2 + output.index(last - 1)).chain([last]) {
        let y = case.neg(at);
        case.output(y);
    }
    case
}

fn random_graphs_keep_their_values(device: &str, cases: u32) {
    let context = open(device);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let saved = std::cell::Cell::new(0);
    runner
        .run(&recipes(), |recipe| {
            saved.set(saved.get() + built(&recipe).check(&context)?.0);
            Ok(())
        })
        .unwrap();
    assert!(saved.get() > cases as usize / 2, "{device}: {} moves saved in {cases} graphs", saved.get());
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

#[test]
fn random_graphs_on_the_cpu() {
    random_graphs_keep_their_values("cpu", 300);
}

#[test]
fn random_graphs_on_simulated_devices() {
    for device in ["sim:0", "sim:1", "sim:2"] {
        random_graphs_keep_their_values(device, 100);
    }
}

#[test]
fn random_graphs_on_vulkan() {
    random_graphs_keep_their_values("vulkan", 120);
}

#[test]
fn random_graphs_on_opencl() {
    random_graphs_keep_their_values("opencl", 60);
}
