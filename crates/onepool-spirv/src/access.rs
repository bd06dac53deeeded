//! How the instructions of a module use its global variables.
//!
//! Pointers are followed from the variable through access chains, and image values through loads. A use
//! that is not understood counts as reading and writing, so that a barrier is never missing.
//!
//! Shared with the build script: no `crate::` paths here.

use std::borrow::Cow;
use std::collections::HashMap;

use rspirv::dr::Operand;
use rspirv::spirv::{Op, StorageClass};

use super::parse::{Inst, Module, SpirvError, SpirvErrorKind};

/// How a kernel uses a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindingAccess {
    /// It only reads.
    Read,
    /// It only writes, and may leave some elements as they were.
    Write,
    /// It reads and writes.
    ReadWrite,
}

impl BindingAccess {
    /// Whether the kernel may read.
    pub const fn reads(self) -> bool {
        !matches!(self, Self::Write)
    }

    /// Whether the kernel may write.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Read)
    }

    pub(super) const fn union(self, other: Self) -> Self {
        match (self.reads() || other.reads(), self.writes() || other.writes()) {
            (true, true) => Self::ReadWrite,
            (false, true) => Self::Write,
            _ => Self::Read,
        }
    }
}

/// The access of each global resource variable that is used at all, by the variable's id.
pub(super) fn uses(module: &Module) -> Result<HashMap<u32, BindingAccess>, SpirvError> {
    let mut uses = Uses { module, roots: HashMap::new(), images: HashMap::new(), found: HashMap::new() };
    let mut in_function = false;
    for inst in &module.insts {
        match inst.op() {
            Op::Function => in_function = true,
            Op::Variable if !in_function => {
                let image = match inst.storage_class(0)? {
                    StorageClass::UniformConstant => true,
                    StorageClass::StorageBuffer | StorageClass::Uniform => false,
                    _ => continue,
                };
                if let Some(id) = inst.inst.result_id {
                    let pointer = inst.inst.result_type.and_then(|ty| module.def(ty));
                    let sampled = pointer.and_then(|p| p.id(1).ok()).is_some_and(|ty| is_sampled(module, ty));
                    uses.roots.insert(id, Root { variable: id, image, sampled });
                }
            }
            _ if in_function => uses.follow(inst)?,
            _ => {}
        }
    }
    Ok(uses.found)
}

#[derive(Clone, Copy)]
struct Root {
    variable: u32,
    image: bool,
    /// Whether nothing can write it: wherever it is handed on, it is read.
    sampled: bool,
}

/// Whether a type is an image that is read through a sampler, or the two together.
fn is_sampled(module: &Module, ty: u32) -> bool {
    module.def(ty).is_some_and(|ty| match ty.op() {
        Op::TypeSampledImage => true,
        Op::TypeImage => ty.literal(5) == Ok(1),
        _ => false,
    })
}

struct Uses<'m> {
    module: &'m Module,
    /// Ids of pointers into a resource.
    roots: HashMap<u32, Root>,
    /// Ids of image values that were loaded from a resource.
    images: HashMap<u32, u32>,
    found: HashMap<u32, BindingAccess>,
}

impl Uses<'_> {
    fn follow(&mut self, inst: &Inst) -> Result<(), SpirvError> {
        let result = inst.inst.result_id;
        match inst.op() {
            Op::AccessChain | Op::InBoundsAccessChain | Op::PtrAccessChain | Op::CopyObject => {
                if let Some(root) = self.roots.get(&inst.id(0)?).copied()
                    && let Some(id) = result
                {
                    self.roots.insert(id, root);
                }
                if let Some(variable) = self.images.get(&inst.id(0)?).copied()
                    && let Some(id) = result
                {
                    self.images.insert(id, variable);
                }
            }
            Op::Load => match self.roots.get(&inst.id(0)?).copied() {
                Some(Root { variable, image: true, .. }) => {
                    if let Some(id) = result {
                        self.images.insert(id, variable);
                    }
                }
                Some(Root { variable, image: false, .. }) => self.mark(variable, BindingAccess::Read),
                None => {}
            },
            Op::Store => {
                self.pointer(inst.id(0)?, BindingAccess::Write);
                self.value(inst.id(1)?);
            }
            Op::CopyMemory => {
                self.pointer(inst.id(0)?, BindingAccess::Write);
                self.pointer(inst.id(1)?, BindingAccess::Read);
            }
            Op::AtomicLoad => self.pointer(inst.id(0)?, BindingAccess::Read),
            Op::AtomicStore => self.pointer(inst.id(0)?, BindingAccess::Write),
            Op::CooperativeMatrixLoadKHR | Op::CooperativeMatrixLoadTensorNV => {
                self.pointer(inst.id(0)?, BindingAccess::Read);
            }
            Op::CooperativeMatrixStoreKHR | Op::CooperativeMatrixStoreTensorNV => {
                self.pointer(inst.id(0)?, BindingAccess::Write);
            }
            Op::ArrayLength
            | Op::ImageQuerySize
            | Op::ImageQuerySizeLod
            | Op::ImageQueryLevels
            | Op::ImageQuerySamples
            | Op::ImageQueryLod
            | Op::ImageQueryFormat => {}
            Op::Image => {
                if let (Some(variable), Some(id)) = (self.images.get(&inst.id(0)?).copied(), result) {
                    self.images.insert(id, variable);
                }
            }
            Op::ImageWrite => {
                let image = self.module.def(inst.id(0)?).and_then(|def| def.inst.result_type);
                if image.is_some_and(|ty| is_sampled(self.module, ty)) {
                    let rule = Cow::Borrowed("a write to an image that is read through a sampler");
                    return Err(inst.error(SpirvErrorKind::Invalid { rule }));
                }
                self.image(inst.id(0)?, BindingAccess::Write);
            }
            Op::ImageRead
            | Op::ImageFetch
            | Op::ImageGather
            | Op::ImageDrefGather
            | Op::ImageSampleExplicitLod
            | Op::ImageSampleImplicitLod
            | Op::ImageSampleDrefExplicitLod
            | Op::ImageSampleDrefImplicitLod
            | Op::ImageSampleProjExplicitLod
            | Op::ImageSampleProjImplicitLod => self.image(inst.id(0)?, BindingAccess::Read),
            _ => {
                for operand in &inst.inst.operands {
                    if let Operand::IdRef(id) = operand {
                        self.value(*id);
                    }
                }
            }
        }
        Ok(())
    }

    /// A pointer or image used in a way that is not followed.
    fn value(&mut self, id: u32) {
        let sampled = self.roots.get(&id).is_some_and(|root| root.sampled);
        self.pointer(id, if sampled { BindingAccess::Read } else { BindingAccess::ReadWrite });
        self.image(id, BindingAccess::ReadWrite);
    }

    fn pointer(&mut self, id: u32, access: BindingAccess) {
        if let Some(root) = self.roots.get(&id).copied() {
            self.mark(root.variable, access);
        }
    }

    fn image(&mut self, id: u32, access: BindingAccess) {
        if let Some(variable) = self.images.get(&id).copied() {
            self.mark(variable, access);
        }
    }

    fn mark(&mut self, variable: u32, access: BindingAccess) {
        self.found.entry(variable).and_modify(|found| *found = found.union(access)).or_insert(access);
    }
}
