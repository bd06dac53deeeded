//! What operator tests share: data, attributes, and running the native function.

use super::{AttrMap, AttrReader, AttrValue, Fact, Native, OpCx, OpError, Operator, find};
use crate::backend::DeviceInfo;
use crate::dtype::Element;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::{NativeArg, NativeArgs};
use crate::registry::Registry;
use std::sync::{Arc, OnceLock};

/// `n` values of -1 to 1 in no order, different for each `seed`.
pub(crate) fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// A tensor of [`values`].
pub(crate) fn tensor(shape: &[usize], seed: u64) -> Tensor {
    Tensor::new(shape, &values(shape.iter().product(), seed)).unwrap()
}

/// A tensor of `T` from `f32` values that it holds.
pub(crate) fn tensor_of<T: Element>(shape: &[usize], values: &[f32], to: impl Fn(f32) -> T) -> Tensor {
    Tensor::new(shape, &values.iter().map(|v| to(*v)).collect::<Vec<T>>()).unwrap()
}

/// Attributes by name.
pub(crate) fn attrs(list: &[(&str, AttrValue)]) -> AttrMap {
    list.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect()
}

/// Reads ONNX operator `name`; every attribute must be one that it knows.
pub(crate) fn read_op(name: &str, opset: i64, map: &AttrMap) -> Result<Arc<dyn Operator>, OpError> {
    let mut reader = AttrReader::new(map, 1, 1);
    let op = (find("", name).unwrap().read)(&mut reader, opset)?;
    assert_eq!(reader.unread(), Vec::<&str>::new(), "{name}");
    Ok(op)
}

/// The facts of a call with known inputs and `outputs` wanted outputs.
pub(crate) fn facts(op: &dyn Operator, inputs: &[Option<Tensor>], outputs: usize) -> Result<OpCx, OpError> {
    let facts = inputs.iter().map(|t| t.clone().map(Fact::known)).collect();
    let cx = OpCx::for_infer(facts, outputs);
    let infos = op.infer(&cx)?;
    Ok(cx.with_outputs(infos))
}

/// Runs the native function, with its constants packed too where it packs any; its outputs start as a pattern, so that bytes
/// not written are seen.
pub(crate) fn run_cpu(
    op: &dyn Operator,
    inputs: &[Option<Tensor>],
    outputs: usize,
) -> Result<Vec<Tensor>, OpError> {
    let cx = facts(op, inputs, outputs)?;
    let plain = run_native(op, &cx, inputs, &op.cpu(&cx)?.into());
    let native = op.cpu_on(&cx, cpu())?;
    if !native.packed.is_empty() {
        let packed = run_native(op, &cx, inputs, &native);
        for (packed, plain) in packed.iter().zip(&plain) {
            if !plain.dtype().is_float() {
                assert_eq!(packed.bytes(), plain.bytes(), "with packed constants, and without");
                continue;
            }
            let (packed, plain) = (packed.to_f32s().unwrap(), plain.to_f32s().unwrap());
            for (a, b) in packed.iter().zip(&plain) {
                let near = (a - b).abs() <= 1e-4 * (1.0 + b.abs());
                assert!(near || a == b || a.is_nan() && b.is_nan(), "{a} with packed constants, {b} without");
            }
        }
    }
    Ok(plain)
}

/// The CPU as a device.
fn cpu() -> &'static DeviceInfo {
    static CPU: OnceLock<DeviceInfo> = OnceLock::new();
    CPU.get_or_init(|| Registry::with_defaults().find("cpu").unwrap())
}

/// Runs `native` with its constants in their layouts.
fn run_native(op: &dyn Operator, cx: &OpCx, inputs: &[Option<Tensor>], native: &Native) -> Vec<Tensor> {
    let infos: Vec<TensorInfo> = cx.outputs().to_vec();
    let mut words: Vec<Vec<u64>> =
        infos.iter().map(|o| vec![0x7FC1_7FC1_7FC1_7FC1; o.bytes().div_ceil(8)]).collect();
    let packed: Vec<Option<Vec<u64>>> = (0..inputs.len())
        .map(|i| {
            let packed = native.packed(i)?;
            let mut words = vec![0u64; packed.bytes.div_ceil(8)];
            let to: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            (packed.pack)(&packed.source, &mut to[..packed.bytes]).unwrap();
            Some(words)
        })
        .collect();
    let mut args: Vec<NativeArg<'_>> = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| match (t, &packed[i], native.packed(i)) {
            (_, Some(words), Some(packed)) => {
                let bytes: &[u8] = bytemuck::cast_slice(words);
                NativeArg::Read(&bytes[..packed.bytes])
            }
            (Some(t), ..) if !op.value_inputs().contains(&i) => NativeArg::Read(t.bytes()),
            _ => NativeArg::Absent,
        })
        .collect();
    for (w, info) in words.iter_mut().zip(&infos) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(w);
        args.push(NativeArg::Write(&mut bytes[..info.bytes()]));
    }
    native.kernel.call(&mut NativeArgs::new(&mut args, &[])).unwrap();
    infos
        .into_iter()
        .zip(&words)
        .map(|(info, w)| {
            let bytes: &[u8] = bytemuck::cast_slice(w);
            Tensor::from_bytes(info.clone(), &bytes[..info.bytes()]).unwrap()
        })
        .collect()
}

/// Runs the native function over `f32` and gives its only output.
pub(crate) fn run_f32(op: &dyn Operator, inputs: &[Option<Tensor>]) -> Result<Tensor, OpError> {
    Ok(run_cpu(op, inputs, 1)?.remove(0))
}

/// Panics where the elements of `got` are not near `want`, relative to their size.
#[track_caller]
pub(crate) fn assert_near(got: &Tensor, want: &[f64], tolerance: f64) {
    let got = got.to_f32s().unwrap();
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*g) - w).abs();
        let near = error <= tolerance * w.abs().max(1.0) || (g.is_nan() && w.is_nan());
        assert!(near || f64::from(*g) == *w, "element {i}: got {g}, expected {w}");
    }
}
