//! An operator whose kernel the caller brings.

use std::fmt;
use std::sync::Arc;

use super::{Lowering, Native, OpCx, OpError, Operand, Operator, Structure};
use crate::backend::DeviceInfo;
use crate::graph::TensorInfo;
use crate::kernel::{KernelSource, NativeKernel, grid_1d};
use crate::memory::image::{Filter, ImageDesc};
use crate::spirv::BindingKind;

/// The work-groups of a caller's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// Their numbers along x, y and z.
    Groups([u32; 3]),
    /// Enough for one work-item for each element of output 0; beyond the device's limit along x the grid
    /// continues along y, and the last group may have work-items without an element.
    PerElement,
}

/// A caller's kernel and how it is called. Its bindings are the operator's inputs, then its outputs.
#[derive(Clone, Debug)]
pub struct KernelCall {
    /// The code: SPIR-V, a native function, or both.
    pub source: Arc<KernelSource>,
    /// The grid of the SPIR-V form; a native function is called once.
    pub grid: Grid,
    /// Parameter bytes (push constants of the SPIR-V form).
    pub params: Vec<u8>,
}

impl KernelCall {
    /// A call of the native function `kernel`, which gets no parameters.
    pub fn native(kernel: NativeKernel) -> Self {
        let source = Arc::new(KernelSource::from_native(kernel));
        KernelCall { source, grid: Grid::PerElement, params: Vec::new() }
    }

    /// A call of `source` over `grid` without parameters.
    pub fn new(source: impl Into<Arc<KernelSource>>, grid: Grid) -> Self {
        KernelCall { source: source.into(), grid, params: Vec::new() }
    }
}

/// Tells a caller's operator's outputs from its inputs.
pub type InferFn = dyn Fn(&OpCx) -> Result<Vec<TensorInfo>, OpError> + Send + Sync;

/// An operator that runs a caller's kernel.
#[derive(Clone)]
pub struct CustomKernel {
    name: Arc<str>,
    /// By the API of the devices that it is for; `None` is for all.
    calls: Vec<(Option<String>, KernelCall)>,
    infer: Arc<InferFn>,
}

impl CustomKernel {
    /// An operator `name` with outputs of fixed types and shapes.
    pub fn fixed(name: impl Into<Arc<str>>, call: KernelCall, outputs: Vec<TensorInfo>) -> Self {
        CustomKernel::new(name, call, move |_| Ok(outputs.clone()))
    }

    /// An operator `name` whose outputs `infer` tells.
    pub fn new(
        name: impl Into<Arc<str>>,
        call: KernelCall,
        infer: impl Fn(&OpCx) -> Result<Vec<TensorInfo>, OpError> + Send + Sync + 'static,
    ) -> Self {
        CustomKernel { name: name.into(), calls: vec![(None, call)], infer: Arc::new(infer) }
    }

    /// An operator `name` with outputs of fixed types and shapes and kernels for several devices: each comes with the
    /// name of the API ([`crate::backend::DeviceInfo::api`]) whose devices it is for, or with none for all others.
    pub fn by_device(
        name: impl Into<Arc<str>>,
        calls: Vec<(Option<String>, KernelCall)>,
        outputs: Vec<TensorInfo>,
    ) -> Self {
        CustomKernel { name: name.into(), calls, infer: Arc::new(move |_| Ok(outputs.clone())) }
    }

    /// The name the caller gave it.
    pub fn kernel_name(&self) -> &str {
        &self.name
    }

    /// Whether binding `at` of the SPIR-V form is an image of such texels, which the device has.
    fn declares_image(&self, at: usize, image: &ImageDesc, device: &DeviceInfo) -> bool {
        let (Some(call), Some(rules)) = (self.call(device.api), &device.images) else {
            return false;
        };
        let Some((_, reflection)) = call.source.spirv() else { return false };
        let texels = match reflection.bindings.get(at).map(|b| b.kind) {
            Some(BindingKind::SampledImage) => rules.sampled,
            Some(BindingKind::StorageImage) => rules.stored,
            _ => return false,
        };
        !device.native && texels.contains(image.texel)
    }

    /// The kernel for devices of the API `api`.
    pub fn call(&self, api: &str) -> Option<&KernelCall> {
        let own = self.calls.iter().find(|(on, _)| on.as_deref() == Some(api));
        own.or_else(|| self.calls.iter().find(|(on, _)| on.is_none())).map(|(_, call)| call)
    }

    fn call_on(&self, api: &str) -> Result<&KernelCall, OpError> {
        self.call(api).ok_or_else(|| {
            let there: Vec<&str> = self.calls.iter().filter_map(|(on, _)| on.as_deref()).collect();
            OpError::unsupported(format!(
                "{} on {api}: there are kernels for {}",
                self.name,
                there.join(", ")
            ))
        })
    }

    fn native(&self, call: &KernelCall) -> Result<NativeKernel, OpError> {
        let Some(native) = call.source.native() else {
            return Err(OpError::unsupported(format!("{} has no native function", self.name)));
        };
        if call.params.is_empty() {
            return Ok(native.clone());
        }
        let (native, params) = (native.clone(), call.params.clone());
        let name: Arc<str> = native.name().into();
        Ok(NativeKernel::new(name, move |args| native.call(&mut args.with_params(&params))))
    }
}

fn is_image(kind: Option<BindingKind>) -> bool {
    matches!(kind, Some(BindingKind::SampledImage | BindingKind::StorageImage))
}

impl fmt::Debug for CustomKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomKernel").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Operator for CustomKernel {
    fn name(&self) -> &'static str {
        "CustomKernel"
    }

    fn structure(&self) -> Option<Structure<'_>> {
        Some(Structure::Custom)
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        let outputs = (self.infer)(cx)?;
        if outputs.len() != cx.output_count() {
            let (found, expected) = (cx.output_count(), outputs.len().to_string());
            return Err(OpError::Count { what: "outputs", found, expected });
        }
        for (_, call) in &self.calls {
            let Some((_, reflection)) = call.source.spirv() else { continue };
            let (args, bindings) = (cx.input_count() + outputs.len(), reflection.bindings.len());
            if args != bindings {
                let what = "inputs and outputs";
                return Err(OpError::Count { what, found: args, expected: format!("{bindings} bindings") });
            }
            let (given, wanted) = (call.params.len(), reflection.params_bytes as usize);
            if given != wanted {
                let what = "parameter bytes";
                return Err(OpError::Count { what, found: given, expected: wanted.to_string() });
            }
        }
        Ok(outputs)
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        self.native(self.call_on("cpu")?)
    }

    fn cpu_on(&self, _: &OpCx, device: &DeviceInfo) -> Result<Native, OpError> {
        self.native(self.call_on(device.api)?).map(Native::from)
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let call = self.call_on(lower.device().api)?;
        let source = &call.source;
        let Some((_, reflection)) = source.spirv() else {
            return Err(OpError::unsupported(format!("{} has no device kernel", self.name)));
        };
        if !lower.device().features.contains(source.requires()) {
            let what = format!("{}: the device lacks {:?}", self.name, source.requires());
            return Err(OpError::unsupported(what));
        }
        let max = lower.device().limits.max_groups;
        let groups = match call.grid {
            Grid::Groups(groups) => groups,
            Grid::PerElement => {
                let local = reflection.local_size.iter().product();
                grid_1d(cx.output(0)?.elements() as u64, local, max[0])
            }
        };
        if groups.iter().zip(max).any(|(g, max)| *g > max) {
            let what = format!("{}: grid {groups:?} is beyond the device's {max:?}", self.name);
            return Err(OpError::unsupported(what));
        }
        if groups.contains(&0) {
            return Ok(());
        }
        let through = |at: usize| is_image(reflection.bindings.get(at).map(|b| b.kind));
        let missing = |what: String| {
            OpError::unsupported(format!(
                "{}: {what} is in no image, which the kernel declares it to be",
                self.name
            ))
        };
        let mut args = Vec::with_capacity(reflection.bindings.len());
        for i in 0..cx.input_count() {
            args.push(match (through(i), cx.image(i)) {
                (false, _) => Operand::Input(i),
                (true, Some(_)) => Operand::Image(i, Filter::Nearest),
                (true, None) => return Err(missing(format!("input {i}"))),
            });
        }
        for o in 0..cx.output_count() {
            args.push(match (through(cx.input_count() + o), cx.output_image(o)) {
                (false, _) => Operand::Output(o),
                (true, Some(_)) => Operand::ImageOutput(o),
                (true, None) => return Err(missing(format!("output {o}"))),
            });
        }
        lower.dispatch_module(source.clone(), Vec::new(), &args, call.params.clone(), groups);
        Ok(())
    }

    fn reads_image(&self, _: &OpCx, input: usize, image: &ImageDesc, device: &DeviceInfo) -> bool {
        self.declares_image(input, image, device)
    }

    fn writes_image(&self, cx: &OpCx, output: usize, image: &ImageDesc, device: &DeviceInfo) -> bool {
        self.declares_image(cx.input_count() + output, image, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{NativeArg, NativeArgs};
    use crate::ops::Fact;
    use crate::{DType, Shape};

    fn info(n: usize) -> TensorInfo {
        TensorInfo::new(DType::U8, Shape::new([n]).unwrap())
    }

    #[test]
    fn a_native_function_gets_its_arguments_and_parameters() {
        let kernel = NativeKernel::new("scale", |args| {
            let factor = args.params().first().copied().unwrap_or(1);
            let x = args.read::<u8>(0)?;
            args.take_write::<u8>(1)?.iter_mut().zip(x).for_each(|(y, x)| *y = x * factor);
            Ok(())
        });
        for (params, expected) in [(vec![], [1u8, 2]), (vec![3], [3, 6])] {
            let call = KernelCall { params, ..KernelCall::native(kernel.clone()) };
            let op = CustomKernel::fixed("scale", call, vec![info(2)]);
            let cx = OpCx::for_infer(vec![Some(Fact::of(info(2)))], 1);
            let outputs = op.infer(&cx).unwrap();
            let native = op.cpu(&cx.with_outputs(outputs)).unwrap();
            let mut y = [0u8; 2];
            let mut args = [NativeArg::Read(&[1, 2]), NativeArg::Write(&mut y)];
            native.call(&mut NativeArgs::new(&mut args, &[])).unwrap();
            assert_eq!(y, expected);
        }
    }

    #[test]
    fn counts_are_checked() {
        let kernel = NativeKernel::new("none", |_| Ok(()));
        let op = CustomKernel::fixed("none", KernelCall::native(kernel), vec![info(2)]);
        assert!(matches!(op.infer(&OpCx::for_infer(vec![], 2)), Err(OpError::Count { .. })));
    }
}
