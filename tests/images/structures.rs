//! The planner on graphs of the structures that models are made of: fire modules, inverted residuals, a transformer's
//! encoder, a recurrent network unrolled. Only shapes matter: all weights are zeros.

use onepool::graph::TensorId;
use onepool::ops::{self, AttrMap, AttrReader, AttrValue};
use onepool::plan::Plan;
use onepool::{DType, Graph, GraphBuilder, Session, Shape, Tensor, TensorInfo};

use crate::common::{check_messages, open};

/// A graph in the making, and the shape of every tensor that a layer needs.
struct Net {
    g: GraphBuilder,
    constants: usize,
}

impl Net {
    fn new() -> Net {
        Net { g: GraphBuilder::new("net"), constants: 0 }
    }

    fn input(&mut self, name: &str, dims: &[usize]) -> TensorId {
        self.g.input(name, DType::F32, dims.iter().map(|d| (*d).into()).collect::<Vec<onepool::Dim>>())
    }

    fn constant(&mut self, value: Tensor) -> TensorId {
        self.constants += 1;
        self.g.constant(format!("c{}", self.constants), value)
    }

    fn zeros(&mut self, dims: &[usize]) -> TensorId {
        self.constant(Tensor::new(dims.to_vec(), &vec![0f32; dims.iter().product()]).unwrap())
    }

    fn ints(&mut self, values: &[i64]) -> TensorId {
        self.constant(Tensor::from_i64s(values))
    }

    fn node(
        &mut self,
        op: &str,
        attrs: &[(&str, AttrValue)],
        inputs: &[TensorId],
        outputs: usize,
    ) -> Vec<TensorId> {
        let attrs: AttrMap = attrs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let read = ops::find("", op).unwrap().read;
        let op = read(&mut AttrReader::new(&attrs, inputs.len(), outputs), 17).unwrap();
        let inputs: Vec<Option<TensorId>> = inputs.iter().copied().map(Some).collect();
        self.constants += 1;
        self.g.node(format!("{}{}", op.name(), self.constants), op, &inputs, outputs).1
    }

    fn op(&mut self, op: &str, inputs: &[TensorId]) -> TensorId {
        self.node(op, &[], inputs, 1)[0]
    }

    fn op_with(&mut self, op: &str, attrs: &[(&str, AttrValue)], inputs: &[TensorId]) -> TensorId {
        self.node(op, attrs, inputs, 1)[0]
    }

    /// A convolution of square windows from `ic` to `oc` channels.
    fn conv(&mut self, x: TensorId, [oc, ic]: [usize; 2], k: usize, stride: i64, group: usize) -> TensorId {
        let (w, b) = (self.zeros(&[oc, ic / group, k, k]), self.zeros(&[oc]));
        let attrs = [
            ("pads", AttrValue::Ints(vec![k as i64 / 2; 4])),
            ("strides", AttrValue::Ints(vec![stride; 2])),
            ("group", AttrValue::Int(group as i64)),
        ];
        self.op_with("Conv", &attrs, &[x, w, b])
    }

    fn conv_relu(&mut self, x: TensorId, channels: [usize; 2], k: usize, stride: i64) -> TensorId {
        let y = self.conv(x, channels, k, stride, 1);
        self.op("Relu", &[y])
    }

    /// `x w + b`.
    fn linear(&mut self, x: TensorId, [k, n]: [usize; 2]) -> TensorId {
        let (w, b) = (self.zeros(&[k, n]), self.zeros(&[n]));
        let y = self.op("MatMul", &[x, w]);
        self.op("Add", &[b, y])
    }

    fn norm(&mut self, x: TensorId, width: usize) -> TensorId {
        let (scale, bias) = (self.zeros(&[width]), self.zeros(&[width]));
        self.op_with("LayerNormalization", &[("axis", AttrValue::Int(-1))], &[x, scale, bias])
    }

    fn finish(mut self, outputs: &[TensorId]) -> Graph {
        for (i, y) in outputs.iter().enumerate() {
            self.g.output(format!("y{i}"), *y);
        }
        self.g.build().unwrap()
    }
}

/// Squeezed to few channels, then expanded by two convolutions side by side (SqueezeNet).
fn fire_modules(size: usize) -> Graph {
    let mut n = Net::new();
    let x = n.input("x", &[1, 3, size, size]);
    let mut y = n.conv_relu(x, [64, 3], 3, 2);
    let mut channels = 64;
    let pool = [("kernel_shape", AttrValue::Ints(vec![3, 3])), ("strides", AttrValue::Ints(vec![2, 2]))];
    for (i, [squeezed, expanded]) in
        [[16, 64], [16, 64], [32, 128], [32, 128], [48, 192], [48, 192], [64, 256], [64, 256]]
            .into_iter()
            .enumerate()
    {
        if [0, 2, 4].contains(&i) {
            y = n.op_with("MaxPool", &pool, &[y]);
        }
        let s = n.conv_relu(y, [squeezed, channels], 1, 1);
        let (a, b) = (n.conv_relu(s, [expanded, squeezed], 1, 1), n.conv_relu(s, [expanded, squeezed], 3, 1));
        y = n.op_with("Concat", &[("axis", AttrValue::Int(1))], &[a, b]);
        channels = 2 * expanded;
    }
    let y = n.conv_relu(y, [1000, channels], 1, 1);
    let y = n.op("GlobalAveragePool", &[y]);
    n.finish(&[y])
}

/// Expanded to many channels, each filtered by itself, and back, with a sum around (MobileNet v2).
fn inverted_residuals(size: usize) -> Graph {
    let mut n = Net::new();
    let x = n.input("x", &[1, 3, size, size]);
    let mut y = n.conv_relu(x, [32, 3], 3, 2);
    let mut channels = 32;
    for (expansion, out, repeats, stride) in [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ] {
        for i in 0..repeats {
            let wide = channels * expansion;
            let stride = if i == 0 { stride } else { 1 };
            let e = if expansion == 1 { y } else { n.conv_relu(y, [wide, channels], 1, 1) };
            let d = n.conv(e, [wide, wide], 3, stride, wide);
            let d = n.op("Relu", &[d]);
            let p = n.conv(d, [out, wide], 1, 1, 1);
            y = if stride == 1 && channels == out { n.op("Add", &[y, p]) } else { p };
            channels = out;
        }
    }
    let y = n.conv_relu(y, [1280, channels], 1, 1);
    let y = n.op("GlobalAveragePool", &[y]);
    n.finish(&[y])
}

/// Attention written out and two products, each with a sum and a normalization around (BERT).
fn encoder(tokens: usize, layers: usize) -> Graph {
    const WIDTH: usize = 128;
    const HEADS: usize = 4;
    let mut n = Net::new();
    let mut x = n.input("x", &[1, tokens, WIDTH]);
    let mask = n.input("mask", &[1, 1, tokens, tokens]);
    let (split, joined) = (
        n.ints(&[1, tokens as i64, HEADS as i64, (WIDTH / HEADS) as i64]),
        n.ints(&[1, tokens as i64, WIDTH as i64]),
    );
    let turned = |perm: [i64; 4]| [("perm", AttrValue::Ints(perm.to_vec()))];
    for _ in 0..layers {
        let [q, k, v] = [[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]].map(|perm| {
            let y = n.linear(x, [WIDTH, WIDTH]);
            let y = n.op("Reshape", &[y, split]);
            n.op_with("Transpose", &turned(perm), &[y])
        });
        let scale = n.zeros(&[1]);
        let s = n.op("MatMul", &[q, k]);
        let s = n.op("Mul", &[s, scale]);
        let s = n.op("Add", &[s, mask]);
        let s = n.op_with("Softmax", &[("axis", AttrValue::Int(-1))], &[s]);
        let y = n.op("MatMul", &[s, v]);
        let y = n.op_with("Transpose", &turned([0, 2, 1, 3]), &[y]);
        let y = n.op("Reshape", &[y, joined]);
        let y = n.linear(y, [WIDTH, WIDTH]);
        let y = n.op("Add", &[y, x]);
        let attended = n.norm(y, WIDTH);
        let h = n.linear(attended, [WIDTH, 4 * WIDTH]);
        let half = n.zeros(&[1]);
        let e = n.op("Erf", &[h]);
        let e = n.op("Add", &[e, half]);
        let h = n.op("Mul", &[h, e]);
        let y = n.linear(h, [4 * WIDTH, WIDTH]);
        let y = n.op("Add", &[y, attended]);
        x = n.norm(y, WIDTH);
    }
    n.finish(&[x])
}

/// The gates of an LSTM cell written out, step by step.
fn unrolled(steps: usize, batch: usize) -> Graph {
    const HIDDEN: usize = 64;
    let mut n = Net::new();
    let xs: Vec<TensorId> = (0..steps).map(|t| n.input(&format!("x{t}"), &[batch, HIDDEN])).collect();
    let (mut h, mut c) = (n.input("h", &[batch, HIDDEN]), n.input("c", &[batch, HIDDEN]));
    let mut outputs = Vec::new();
    for x in xs {
        let joined = n.op_with("Concat", &[("axis", AttrValue::Int(1))], &[x, h]);
        let gates = n.linear(joined, [2 * HIDDEN, 4 * HIDDEN]);
        let sizes = n.ints(&[HIDDEN as i64; 4]);
        let parts = n.node("Split", &[("axis", AttrValue::Int(1))], &[gates, sizes], 4);
        let [i, f, o] = [parts[0], parts[1], parts[3]].map(|g| n.op("Sigmoid", &[g]));
        let g = n.op("Tanh", &[parts[2]]);
        let (kept, added) = (n.op("Mul", &[f, c]), n.op("Mul", &[i, g]));
        c = n.op("Add", &[kept, added]);
        let t = n.op("Tanh", &[c]);
        h = n.op("Mul", &[o, t]);
        outputs.push(h);
    }
    outputs.push(c);
    n.finish(&outputs)
}

fn plan(graph: Graph, session: impl Fn(Graph) -> Session) -> Plan {
    let session = session(graph);
    let infos: Vec<TensorInfo> = (session.inputs().iter())
        .map(|io| {
            let dims: Vec<usize> = (io.shape.as_ref().unwrap().0.iter())
                .map(|d| match d {
                    onepool::Dim::Known(n) => *n,
                    _ => unreachable!("sizes are given"),
                })
                .collect();
            TensorInfo::new(DType::F32, Shape::new(dims).unwrap())
        })
        .collect();
    session.plan(&infos).unwrap()
}

#[test]
fn peaks_are_near_the_live_set_and_never_above_tvms_rule() {
    let graphs: [(&str, fn(usize) -> Graph, [usize; 3]); 4] = [
        ("fire modules", fire_modules, [64, 95, 128]),
        ("inverted residuals", inverted_residuals, [64, 96, 130]),
        ("encoder", |tokens| encoder(tokens, 3), [16, 33, 128]),
        ("unrolled", |steps| unrolled(steps, 3), [1, 5, 12]),
    ];
    for device in ["cpu", "vulkan"] {
        let context = open(device);
        for (name, graph, sizes) in &graphs {
            for size in sizes {
                for fused in [true, false] {
                    let plan = plan(graph(*size), |graph| {
                        let builder = Session::builder().graph(graph).context(context.clone()).fuse(fused);
                        builder.build().unwrap()
                    });
                    let what = format!("{name} of {size} on {device}, fused: {fused}");
                    let peak: u64 = plan.arenas.iter().map(|arena| arena.bytes).sum();
                    assert!(peak > 0, "{what}");
                    for arena in &plan.arenas {
                        assert!(arena.bytes * 100 <= arena.lower_bound * 105, "{what}: {arena:?}");
                        assert!(arena.bytes <= arena.tvm_bytes, "{what}: {arena:?}");
                    }
                }
            }
        }
        check_messages(&context);
    }
}
