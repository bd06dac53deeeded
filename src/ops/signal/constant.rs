//! Outputs that are known before the run: computed by the host and copied.

use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::ops::pointwise::number::{Number, with_number};
use crate::ops::{Lowering, OpCx, OpError, Operand, PackKey};

/// `values` as elements of the type of output 0.
fn tensor(info: &TensorInfo, values: &[f64]) -> Result<Tensor, OpError> {
    with_number!(info.dtype, T => {
        let all: Vec<T> = values.iter().map(|v| T::from_f64(*v)).collect();
        Ok(Tensor::new(info.shape.to_vec(), &all)?)
    }, else Err(OpError::unsupported("numbers of type bool")))
}

/// The native function that writes `values` as output 0. They are computed when it is called: then there is
/// memory for them.
pub(super) fn cpu(
    name: &'static str,
    cx: &OpCx,
    values: impl Fn() -> Vec<f64> + Send + Sync + 'static,
) -> Result<NativeKernel, OpError> {
    let (dtype, at) = (cx.output(0)?.dtype, cx.input_count());
    with_number!(dtype, T => Ok(NativeKernel::new(name, move |args| {
        let y = args.take_write::<T>(at)?;
        y.iter_mut().zip(values()).for_each(|(y, v)| *y = T::from_f64(v));
        Ok(())
    })), else Err(OpError::unsupported("numbers of type bool")))
}

/// Copies `values` to output 0.
pub(super) fn gpu(
    layout: &'static str,
    cx: &OpCx,
    values: impl Fn() -> Vec<f64>,
    lower: &mut Lowering<'_>,
) -> Result<(), OpError> {
    let y = cx.output(0)?;
    let (bytes, limit) = (y.bytes() as u64, lower.device().limits.max_argument_bytes);
    if bytes > limit || !bytes.is_multiple_of(4) {
        return Err(OpError::unsupported(format!("a copy of {bytes} bytes on a device that takes {limit}")));
    }
    let key = PackKey { layout, numbers: [0; 4] };
    let packed = lower.packed(&tensor(y, &values())?, key, y.bytes(), |t, out| {
        out.iter_mut().zip(t.bytes()).for_each(|(o, b)| *o = *b);
        Ok(())
    });
    lower.copy((packed, 0), (Operand::Output(0), 0), bytes);
    Ok(())
}
