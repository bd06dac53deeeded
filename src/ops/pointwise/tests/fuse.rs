//! Expressions against the native functions.

use super::unary::float_functions;
use super::{near, no_attrs, samples, typed, wide};
use crate::dtype::DType;
use crate::expr::eval::{Evaluator, InputData, Scratch};
use crate::expr::{Indexing, PointwiseDesc};
use crate::graph::Tensor;
use crate::ops::Operator;
use crate::ops::test_util::{facts, read_op, run_cpu};

/// The operator's expression over tensors of one shape, evaluated; `None` where it has none.
fn evaluated(op: &dyn Operator, inputs: &[Option<Tensor>]) -> Option<Vec<f32>> {
    let cx = facts(op, inputs, 1).unwrap();
    let indexing = |t: &Tensor| match t.shape().rank() {
        0 => Indexing::Broadcast { terms: 0 },
        _ => Indexing::Full,
    };
    let mut desc = PointwiseDesc::new(inputs.iter().flatten().map(indexing).collect::<Vec<_>>());
    let args: Vec<_> = (0..inputs.len()).map(|i| desc.input(i).unwrap()).collect();
    let y = op.pointwise_expr(&cx, &mut desc, &args)?;
    desc.output(y).unwrap();
    let operands: Vec<InputData<'_>> = inputs
        .iter()
        .flatten()
        .map(|t| InputData { data: t.as_slice::<f32>().unwrap(), terms: &[] })
        .collect();
    let mut out = vec![0.0; cx.outputs()[0].elements()];
    let evaluator = Evaluator::new(desc).unwrap();
    evaluator.eval_chunk(0, &operands, &mut [&mut out], &mut Scratch::default()).unwrap();
    Some(out)
}

#[track_caller]
fn check(name: &str, op: &dyn Operator, inputs: &[Option<Tensor>]) -> bool {
    let Some(got) = evaluated(op, inputs) else { return false };
    let want = wide(&run_cpu(op, inputs, 1).unwrap()[0]);
    near(name, &Tensor::new([got.len()], &got).unwrap(), &want, 3e-6);
    true
}

#[test]
fn expressions_compute_what_the_operators_do() {
    let x = typed(DType::F32, &[64], &samples(64, 7));
    let mut fused = 0;
    for (name, attrs, _) in float_functions() {
        fused += usize::from(check(name, read_op(name, 24, &attrs).unwrap().as_ref(), &[Some(x.clone())]));
    }
    // All but Identity, which no kernel computes.
    assert_eq!(fused, float_functions().len() - 1, "functions of one element with an expression");
    let b = typed(DType::F32, &[64], &samples(64, 12));
    for name in ["Add", "Sub", "Mul", "Div", "PRelu", "Sum", "Mean", "Min", "Max"] {
        let op = read_op(name, 24, &no_attrs()).unwrap();
        assert!(check(name, op.as_ref(), &[Some(x.clone()), Some(b.clone())]), "{name} has no expression");
    }
    let max = read_op("Max", 24, &no_attrs()).unwrap();
    assert!(check("Max", max.as_ref(), &[Some(x.clone()), Some(b.clone()), Some(x.clone())]));
}

#[test]
fn known_parameters_are_built_in_and_other_types_are_left() {
    let x = Some(typed(DType::F32, &[64], &samples(64, 7)));
    let scalar = |v: f32| Some(Tensor::scalar(v));
    for e in [1.0, 2.0, 3.0, -1.0] {
        let inputs = [x.clone(), scalar(e)];
        let op = read_op("Pow", 13, &no_attrs()).unwrap();
        assert!(check("Pow", op.as_ref(), &inputs), "power {e}");
    }
    // Alone and in a chain it has the same bits, of what is no usual number too.
    let odd = [f32::NEG_INFINITY, -2.0, -0.0, 0.0, 1e-40, 0.25, 9.0, f32::INFINITY, f32::NAN];
    for e in [1.0, 2.0, 3.0, -1.0, 0.5] {
        let inputs = [Some(Tensor::new([odd.len()], &odd).unwrap()), scalar(e)];
        let op = read_op("Pow", 13, &no_attrs()).unwrap();
        let alone = run_cpu(op.as_ref(), &inputs, 1).unwrap().remove(0);
        let chain = evaluated(op.as_ref(), &inputs).unwrap();
        let bits = |v: &f32| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() };
        let [alone, chain] =
            [alone.as_slice::<f32>().unwrap(), &chain].map(|v| v.iter().map(bits).collect::<Vec<_>>());
        assert_eq!(alone, chain, "power {e}");
    }
    let pow = read_op("Pow", 13, &no_attrs()).unwrap();
    assert!(!check("Pow", pow.as_ref(), &[x.clone(), scalar(1.7)]));
    let clip = read_op("Clip", 13, &no_attrs()).unwrap();
    assert!(check("Clip", clip.as_ref(), &[x, scalar(-1.0), scalar(2.0)]));
    let integers = Some(typed(DType::I32, &[4], &[1.0; 4]));
    let add = read_op("Add", 13, &no_attrs()).unwrap();
    assert!(has_no_expression(add.as_ref(), &[integers.clone(), integers]));
}

/// Whether the operator has no expression for tensors of these types.
fn has_no_expression(op: &dyn Operator, inputs: &[Option<Tensor>]) -> bool {
    let mut desc = PointwiseDesc::new(vec![Indexing::Full; inputs.len()]);
    let args: Vec<_> = (0..inputs.len()).map(|i| desc.input(i).unwrap()).collect();
    op.pointwise_expr(&facts(op, inputs, 1).unwrap(), &mut desc, &args).is_none()
}
