//! Kernels and constants of a plan, each once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::graph::{Tensor, TensorIdentity};
use crate::kernel::{KernelId, KernelSource, NativeKernel};
use crate::memory::image::ImageDesc;
use crate::ops::{PackKey, Packed, StepKernel};
use crate::plan::{KernelCode, PlannedConstant, PlannedKernel};

/// The kernels of a plan.
#[derive(Default)]
pub(super) struct Kernels {
    pub(super) all: Vec<PlannedKernel>,
    index: HashMap<KernelKey, u32>,
}

/// Device, code and specialization of a kernel. The address of its source identifies a module; the kernel keeps the
/// source alive.
type KernelKey = (u32, CodeKey, Vec<(u32, u32)>);

#[derive(PartialEq, Eq, Hash)]
enum CodeKey {
    Table(KernelId),
    Module(*const KernelSource),
}

impl Kernels {
    /// The number of a kernel for `device`.
    pub(super) fn device(&mut self, device: u32, kernel: &StepKernel, spec: &[(u32, u32)]) -> u32 {
        let next = self.all.len() as u32;
        let code = match kernel {
            StepKernel::Table(id) => CodeKey::Table(*id),
            StepKernel::Module(source) => CodeKey::Module(Arc::as_ptr(source)),
        };
        let index = *self.index.entry((device, code, spec.to_vec())).or_insert(next);
        if index == next {
            let code = KernelCode::Device(kernel.clone());
            self.all.push(PlannedKernel { device, code, spec: spec.to_vec() });
        }
        index
    }

    /// Adds a native function; each is a kernel of its own.
    pub(super) fn native(&mut self, device: u32, kernel: NativeKernel) -> u32 {
        self.all.push(PlannedKernel { device, code: KernelCode::Native(kernel), spec: Vec::new() });
        (self.all.len() - 1) as u32
    }
}

/// The constants of a plan.
#[derive(Default)]
pub(super) struct Constants {
    pub(super) all: Vec<PlannedConstant>,
    index: HashMap<ConstantKey, u32>,
}

/// Device, tensor, layout and image of a constant.
type ConstantKey = (u32, TensorIdentity, Option<PackKey>, Option<ImageDesc>);

impl Constants {
    /// The number of constant `tensor` on `device`; `image` is the image through which it is read, with its size in
    /// bytes.
    pub(super) fn add(
        &mut self,
        device: u32,
        name: String,
        tensor: Tensor,
        packed: Option<Packed>,
        image: Option<(ImageDesc, u64)>,
    ) -> u32 {
        let key = (device, tensor.identity(), packed.as_ref().map(|p| p.key), image.map(|(image, _)| image));
        let next = self.all.len() as u32;
        let index = *self.index.entry(key).or_insert(next);
        if index == next {
            self.all.push(PlannedConstant { device, name, tensor, packed, image });
        }
        index
    }
}
