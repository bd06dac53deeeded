//! Joined products are what the normalization, the product and the sum give one after the other.

use super::*;
use crate::dtype::DType;
use crate::expr::Function;
use crate::graph::{GraphBuilder, Tensor};
use crate::kernel::Requires;
use crate::ops::Activation;
use crate::ops::linalg::{GatedMatMul, MatMul};
use crate::ops::test_util::{assert_near, facts, run_cpu, tensor, tensor_of, values};
use crate::session::Session;

const EPSILON: f32 = 1e-3;

/// A device that runs every kernel.
pub(crate) fn device() -> DeviceInfo {
    let mut device = crate::registry::Registry::with_defaults().find("sim").unwrap();
    let features =
        [Requires::STORAGE_8, Requires::INT8, Requires::STORAGE_16, Requires::FLOAT16, Requires::INT64];
    device.features = features.into_iter().fold(device.features, Requires::union);
    (device.native, device.prefers_texels) = (false, false);
    device
}

/// The device as a card.
#[cfg(feature = "vulkan")]
fn card(info: &mut DeviceInfo) {
    crate::ops::testing::no_texels(info);
    info.kind = crate::backend::DeviceKind::Discrete;
}

fn halved(t: &Option<Tensor>) -> Option<Tensor> {
    let t = t.as_ref()?;
    Some(match t.dtype() {
        DType::F32 => tensor_of(t.shape().dims(), &t.to_f32s().unwrap(), half::f16::from_f32),
        _ => t.clone(),
    })
}

fn widened(t: &Option<Tensor>) -> Option<Tensor> {
    let t = t.as_ref()?;
    Some(if t.dtype() == DType::F16 {
        tensor_of(t.shape().dims(), &t.to_f32s().unwrap(), |v| v)
    } else {
        t.clone()
    })
}

/// The inputs of what an operator with inputs `own` becomes with `others`.
fn joined_inputs(absorbed: &Absorbed, own: &[Option<Tensor>], others: &[&Tensor]) -> Vec<Option<Tensor>> {
    let input = |from: &AbsorbedInput| match *from {
        AbsorbedInput::Own(i) => own[i].clone(),
        AbsorbedInput::Next(i) => Some(others[i].clone()),
        AbsorbedInput::New(_) | AbsorbedInput::Absent => None,
    };
    absorbed.inputs.iter().map(input).collect()
}

/// What the simulated device gives.
fn on_sim(op: &Arc<dyn Operator>, inputs: &[Option<Tensor>]) -> Tensor {
    let mut g = GraphBuilder::new("g");
    let input = |(i, t): (usize, &Option<Tensor>)| {
        let t = t.as_ref()?;
        Some(g.input(format!("x{i}"), t.dtype(), t.shape().iter().map(|d| (*d).into())))
    };
    let ids: Vec<_> = inputs.iter().enumerate().map(input).collect();
    let (_, y) = g.node("joined", op.clone(), &ids, 1);
    g.output("y", y[0]);
    let mut session = Session::builder().graph(g.build().unwrap()).device("sim").build().unwrap();
    for (i, t) in inputs.iter().enumerate().filter_map(|(i, t)| Some((i, t.as_ref()?))) {
        session.set_input(&format!("x{i}"), t).unwrap();
    }
    session.run().unwrap();
    session.get_output("y").unwrap()
}

/// Checks `product`, whose input 0 is rows of `float32`, with a normalization and with a summand, where it takes one, in
/// `float32` and `float16`. Gains of `1 / size` make results of about 1.
#[track_caller]
pub(crate) fn check_joined<P: FewRows>(product: &P, inputs: &[Option<Tensor>], size: f32, tolerance: f64) {
    let a = inputs[0].as_ref().unwrap();
    let len = *a.shape().last().unwrap();
    // Rows of different sizes; of several the last one is zeros.
    let mut rows = a.to_f32s().unwrap();
    let count = rows.len() / len;
    for (r, row) in rows.chunks_mut(len).enumerate() {
        let factor = if r > 0 && r + 1 == count { 0.0 } else { [20.0, 0.02, 1.0][r % 3] };
        row.iter_mut().for_each(|v| *v *= factor);
    }
    let mut inputs = inputs.to_vec();
    inputs[0] = Some(Tensor::new(a.shape().dims(), &rows).unwrap());
    check_in(product, &inputs, size, tolerance);
    let halves: Vec<_> = inputs.iter().map(halved).collect();
    check_in(product, &halves, size, 4e-3);
}

#[track_caller]
fn check_in<P: FewRows>(product: &P, inputs: &[Option<Tensor>], size: f32, tolerance: f64) {
    let (device, cx) = (device(), facts(product, inputs, 1).unwrap());
    let is_half = cx.dtype(0).unwrap() == DType::F16;
    let of = |t: Tensor| if is_half { halved(&Some(t)).unwrap() } else { t };
    let x = inputs[0].clone().unwrap();
    let len = *x.shape().last().unwrap();
    let gains: Vec<f32> = values(len, 31).iter().map(|v| v / size).collect();
    let gain = of(Tensor::new([len], &gains).unwrap());
    let summand = of(tensor(cx.outputs()[0].shape.dims(), 32));
    let normed = with_normalized_rows(product, &cx, EPSILON, &device).unwrap();
    let normed_inputs = joined_inputs(&normed, inputs, &[&x, &gain]);
    let mut all = vec![(normed.clone(), normed_inputs.clone(), true, false)];
    match with_summand(product, &cx, &device) {
        Some(summed) => {
            let summed_inputs = joined_inputs(&summed, inputs, &[&summand]);
            all.push((summed, summed_inputs, false, true));
            let cx = facts(&*normed.op, &normed_inputs, 1).unwrap();
            let both = normed.op.with_summand(&cx, &device).unwrap();
            let both_inputs = joined_inputs(&both, &normed_inputs, &[&summand]);
            assert!(both.op.with_summand(&facts(&*both.op, &both_inputs, 1).unwrap(), &device).is_none());
            all.push((both, both_inputs, true, true));
        }
        None => assert!(P::SUMMED.is_none(), "{} takes no summand", product.name()),
    }
    for (absorbed, all, is_normed, is_summed) in all {
        let op = &*absorbed.op;
        let mut apart: Vec<_> = inputs.iter().map(widened).collect();
        if is_normed {
            let gain = gain.to_f32s().unwrap();
            let mut rows = x.to_f32s().unwrap();
            for row in rows.chunks_mut(len) {
                let square = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / len as f64;
                let inverse = 1.0 / (square + f64::from(EPSILON)).sqrt();
                row.iter_mut().zip(&gain).for_each(|(v, g)| *v = (f64::from(*v) * inverse) as f32 * g);
            }
            apart[0] = Some(Tensor::new(x.shape().dims(), &rows).unwrap());
        }
        let mut want: Vec<f64> =
            run_cpu(product, &apart, 1).unwrap()[0].to_f32s().unwrap().into_iter().map(f64::from).collect();
        if is_summed {
            want.iter_mut().zip(summand.to_f32s().unwrap()).for_each(|(y, v)| *y += f64::from(v));
        }
        assert_near(&run_cpu(op, &all, 1).unwrap()[0], &want, tolerance);
        assert_near(&on_sim(&absorbed.op, &all), &want, tolerance);
        // With both, a device does what it does with a sum alone.
        #[cfg(feature = "vulkan")]
        if is_normed || !is_half {
            use crate::ops::testing::{Check, no_texels};
            Check::new(op, &all).pretend(no_texels).tolerance(tolerance).run();
            Check::new(op, &all).pretend(card).tolerance(tolerance).run();
        }
    }
}

#[test]
fn products_of_plain_numbers_are_joined() {
    for (m, k, n, transposed) in [
        (1, 64, 36, false),
        (2, 132, 100, true),
        (3, 776, 20, true),
        (4, 260, 2052, false),
        (1, 1100, 48, false),
        (4, 36, 7, true),
    ] {
        let right = if transposed { [n, k] } else { [k, n] };
        let inputs = [Some(tensor(&[1, m, k], 1)), Some(tensor(&right, 2)), Some(tensor(&right, 3))];
        let plain = MatMul { transposed, ..MatMul::default() };
        check_joined(&plain, &inputs[..2], (k as f32).sqrt(), 2e-4);
        let gated = GatedMatMul { product: plain, activation: Activation::of(Function::Swish) };
        check_joined(&gated, &inputs, (k as f32).sqrt(), 2e-4);
    }
}

/// A bias or an activation leaves no place for a summand; many rows, rows that are no whole fours, several matrices, and
/// devices that read rows as texels have no kernel.
#[test]
fn what_no_kernel_does_at_once_stays_apart() {
    let own = device();
    let joins = |op: &MatMul, shapes: &[&[usize]], device: &DeviceInfo| {
        let inputs: Vec<_> = shapes.iter().map(|shape| Some(tensor(shape, 1))).collect();
        let cx = facts(op, &inputs, 1).unwrap();
        let normed = op.with_normalized_rows(&cx, EPSILON, device).is_some();
        (normed, op.with_summand(&cx, device).is_some())
    };
    let plain = MatMul::default();
    assert_eq!(joins(&plain, &[&[1, 4, 64], &[64, 36]], &own), (true, true));
    let biased = plain.with_bias().unwrap();
    assert_eq!(joins(&biased, &[&[1, 64], &[64, 36], &[36]], &own), (true, false));
    let active = MatMul { activation: Activation::of(Function::Relu), ..MatMul::default() };
    assert_eq!(joins(&active, &[&[1, 64], &[64, 36]], &own), (true, false));
    assert_eq!(joins(&plain, &[&[5, 64], &[64, 36]], &own), (false, false));
    assert_eq!(joins(&plain, &[&[1, 64], &[64, 35]], &own), (false, false));
    assert_eq!(joins(&plain, &[&[2, 1, 64], &[2, 64, 36]], &own), (false, false));
    assert_eq!(joins(&plain, &[&[0, 64], &[64, 36]], &own), (false, false));
    let mut texels = own.clone();
    texels.prefers_texels = true;
    assert_eq!(joins(&plain, &[&[1, 64], &[64, 36]], &texels), (false, false));
}

#[test]
fn misfits_are_errors() {
    let (device, plain) = (device(), MatMul::default());
    let inputs = [Some(tensor(&[2, 8], 1)), Some(tensor(&[8, 4], 2))];
    let cx = facts(&plain, &inputs, 1).unwrap();
    let normed = plain.with_normalized_rows(&cx, EPSILON, &device).unwrap().op;
    let summed = plain.with_summand(&cx, &device).unwrap().op;
    let fits =
        |op: &dyn Operator, more: &[Option<Tensor>]| facts(op, &[&inputs[..], more].concat(), 1).is_ok();
    assert!(fits(&*normed, &[Some(tensor(&[8], 3))]));
    assert!(!fits(&*normed, &[Some(tensor(&[7], 3))]) && !fits(&*normed, &[None]) && !fits(&*normed, &[]));
    assert!(!fits(&*normed, &[halved(&Some(tensor(&[8], 3)))]));
    assert!(fits(&*summed, &[None, Some(tensor(&[2, 4], 3))]));
    assert!(!fits(&*summed, &[None, Some(tensor(&[4], 3))]) && !fits(&*summed, &[None, None]));
    // What a plan never asks of a device is refused.
    let inputs = [Some(tensor(&[5, 8], 1)), inputs[1].clone(), Some(tensor(&[8], 3))];
    let many = facts(&*normed, &inputs, 1).unwrap();
    assert!(matches!(normed.gpu(&many, &mut Lowering::new(&device)), Err(OpError::Unsupported { .. })));
    assert!(run_cpu(&*normed, &inputs, 1).is_ok());
}
