//! Types and constants of a parsed module, resolved with bounded recursion.
//!
//! Shared with the build script: no `crate::` paths here.

use std::borrow::Cow;
use std::collections::HashMap;

use rspirv::dr::Operand;
use rspirv::spirv::{BuiltIn, Decoration, FPEncoding, ImageFormat, Op};

use super::parse::{Inst, Module, SpirvError, SpirvErrorKind};

/// Constant expressions nested deeper than this are not evaluated; a module may be made to recurse.
const MAX_DEPTH: u32 = 8;

/// Sizes are not followed beyond this.
pub(super) const SIZE_CAP: u64 = 1 << 32;

/// A scalar type as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScalarType {
    /// A boolean; only specialization constants have this type.
    Bool,
    /// 8-bit unsigned integer.
    U8,
    /// 8-bit signed integer.
    I8,
    /// 16-bit unsigned integer.
    U16,
    /// 16-bit signed integer.
    I16,
    /// 32-bit unsigned integer.
    U32,
    /// 32-bit signed integer.
    I32,
    /// 64-bit unsigned integer.
    U64,
    /// 64-bit signed integer.
    I64,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
}

impl ScalarType {
    /// Size in bytes; a boolean counts as the 32-bit word that specializes it.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::Bool | Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// The element of a runtime array, or the texel of a texel buffer or image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    /// Scalar type; `None` if the element is a structure.
    pub scalar: Option<ScalarType>,
    /// Components, 1 to 4 (1 for a structure).
    pub components: u32,
    /// Bytes from one element to the next.
    pub stride: u32,
}

/// A numeric value: a scalar or vector, possibly an array of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueType {
    /// Scalar type.
    pub scalar: ScalarType,
    /// Components, 1 to 4.
    pub components: u32,
    /// Length and stride in bytes, if it is an array.
    pub array: Option<(u32, u32)>,
}

impl ValueType {
    /// Bytes it covers, up to and including the last array element's stride.
    pub const fn bytes(self) -> u32 {
        match self.array {
            Some((len, stride)) => len.saturating_mul(stride),
            None => self.scalar.bytes() * self.components,
        }
    }
}

/// Bounds on following a type, which a module may nest or repeat without end.
pub(super) struct TypeBudget {
    visits: u32,
    depth: u32,
}

impl TypeBudget {
    pub(super) const fn new() -> Self {
        Self { visits: 1 << 16, depth: 32 }
    }
}

/// An id, or one member of it.
type Target = (u32, Option<u32>);

/// A decoration and the instruction that carries it.
type Decorated<'m> = (Decoration, &'m Inst);

/// Decorations and names of a module by id, ready for lookups.
pub(super) struct Index<'m> {
    pub(super) module: &'m Module,
    /// (`SpecId`, value) of specialization constants that do not have their default.
    specialized: &'m [(u32, u32)],
    names: HashMap<Target, &'m str>,
    decorations: HashMap<Target, Vec<Decorated<'m>>>,
}

impl<'m> Index<'m> {
    pub(super) fn new(module: &'m Module, specialized: &'m [(u32, u32)]) -> Result<Self, SpirvError> {
        let mut index = Self { module, specialized, names: HashMap::new(), decorations: HashMap::new() };
        for inst in module.globals() {
            match inst.op() {
                Op::Name => {
                    if let Some(Operand::LiteralString(name)) = inst.inst.operands.get(1) {
                        index.names.insert((inst.id(0)?, None), name);
                    }
                }
                Op::MemberName => {
                    if let Some(Operand::LiteralString(name)) = inst.inst.operands.get(2) {
                        index.names.insert((inst.id(0)?, Some(inst.literal(1)?)), name);
                    }
                }
                Op::Decorate => index.decorate(inst, None, 1)?,
                Op::MemberDecorate => index.decorate(inst, Some(inst.literal(1)?), 2)?,
                Op::DecorationGroup | Op::GroupDecorate | Op::GroupMemberDecorate => {
                    return Err(unsupported(inst, "a decoration group"));
                }
                _ => {}
            }
        }
        Ok(index)
    }

    fn decorate(&mut self, inst: &'m Inst, member: Option<u32>, at: usize) -> Result<(), SpirvError> {
        if let Some(Operand::Decoration(decoration)) = inst.inst.operands.get(at) {
            self.decorations.entry((inst.id(0)?, member)).or_default().push((*decoration, inst));
        }
        Ok(())
    }

    pub(super) fn name(&self, id: u32, member: Option<u32>) -> &'m str {
        self.names.get(&(id, member)).copied().unwrap_or("")
    }

    pub(super) fn has(&self, id: u32, member: Option<u32>, decoration: Decoration) -> bool {
        self.decorations
            .get(&(id, member))
            .is_some_and(|list| list.iter().any(|(found, _)| *found == decoration))
    }

    /// The literal of a decoration that has one (`Binding`, `Offset`, `ArrayStride`, `SpecId`, ..).
    pub(super) fn decoration(&self, id: u32, member: Option<u32>, decoration: Decoration) -> Option<u32> {
        let list = self.decorations.get(&(id, member))?;
        let (_, inst) = list.iter().find(|(found, _)| *found == decoration)?;
        inst.literal(if member.is_some() { 3 } else { 2 }).ok()
    }

    /// Whether `id` is decorated as the built-in `builtin`.
    pub(super) fn is_builtin(&self, id: u32, builtin: BuiltIn) -> bool {
        self.decorations.get(&(id, None)).is_some_and(|list| {
            list.iter().any(|(found, inst)| {
                *found == Decoration::BuiltIn && inst.inst.operands.get(2) == Some(&Operand::BuiltIn(builtin))
            })
        })
    }

    /// The instruction that defines `id`, which must be one of `ops`.
    pub(super) fn expect(
        &self,
        user: &Inst,
        id: u32,
        ops: &[Op],
        expected: &'static str,
    ) -> Result<&'m Inst, SpirvError> {
        self.module
            .def(id)
            .filter(|inst| ops.contains(&inst.op()))
            .ok_or_else(|| user.error(SpirvErrorKind::WrongId { id, expected }))
    }

    /// The type a pointer type points to.
    pub(super) fn pointee(&self, variable: &Inst) -> Result<&'m Inst, SpirvError> {
        let pointer = variable.inst.result_type.unwrap_or(0);
        let pointer = self.expect(variable, pointer, &[Op::TypePointer], "a pointer type")?;
        self.type_def(pointer, pointer.id(1)?)
    }

    pub(super) fn type_def(&self, user: &Inst, id: u32) -> Result<&'m Inst, SpirvError> {
        self.module
            .def(id)
            .filter(|inst| inst.op().is_type())
            .ok_or_else(|| user.error(SpirvErrorKind::WrongId { id, expected: "a type" }))
    }

    pub(super) fn scalar(&self, ty: &Inst) -> Result<ScalarType, SpirvError> {
        let scalar = match ty.op() {
            Op::TypeBool => Some(ScalarType::Bool),
            Op::TypeInt => match (ty.literal(0)?, ty.literal(1)?) {
                (8, 0) => Some(ScalarType::U8),
                (8, 1) => Some(ScalarType::I8),
                (16, 0) => Some(ScalarType::U16),
                (16, 1) => Some(ScalarType::I16),
                (32, 0) => Some(ScalarType::U32),
                (32, 1) => Some(ScalarType::I32),
                (64, 0) => Some(ScalarType::U64),
                (64, 1) => Some(ScalarType::I64),
                _ => None,
            },
            Op::TypeFloat => match (ty.literal(0)?, ty.inst.operands.get(1)) {
                (16, None) => Some(ScalarType::F16),
                (16, Some(Operand::FPEncoding(FPEncoding::BFloat16KHR))) => Some(ScalarType::Bf16),
                (32, None) => Some(ScalarType::F32),
                (64, None) => Some(ScalarType::F64),
                _ => None,
            },
            _ => None,
        };
        scalar.ok_or_else(|| unsupported(ty, "this type, where a scalar is needed,"))
    }

    /// A scalar or vector type as (scalar, components).
    pub(super) fn vector(&self, ty: &Inst) -> Result<(ScalarType, u32), SpirvError> {
        if ty.op() != Op::TypeVector {
            return Ok((self.scalar(ty)?, 1));
        }
        let components = ty.literal(1)?;
        if !(2..=4).contains(&components) {
            return Err(unsupported(ty, "a vector of other than 2 to 4 components"));
        }
        Ok((self.scalar(self.type_def(ty, ty.id(0)?)?)?, components))
    }

    /// A scalar, a vector, or a constant-length array of either.
    pub(super) fn value(&self, ty: &Inst) -> Result<ValueType, SpirvError> {
        if ty.op() != Op::TypeArray {
            let (scalar, components) = self.vector(ty)?;
            return Ok(ValueType { scalar, components, array: None });
        }
        let (scalar, components) = self.vector(self.type_def(ty, ty.id(0)?)?)?;
        Ok(ValueType { scalar, components, array: Some(self.array(ty)?) })
    }

    /// Length and stride of an array type of constant length.
    pub(super) fn array(&self, ty: &Inst) -> Result<(u32, u32), SpirvError> {
        let stride = self.array_stride(ty)?;
        let length = self.expect(ty, ty.id(1)?, &[Op::Constant], "a constant")?.literal(0)?;
        match length {
            0 => Err(unsupported(ty, "an array of length 0")),
            length => Ok((length, stride)),
        }
    }

    /// The stride of an array type.
    pub(super) fn array_stride(&self, ty: &Inst) -> Result<u32, SpirvError> {
        let id = ty.inst.result_id.unwrap_or(0);
        self.decoration(id, None, Decoration::ArrayStride)
            .filter(|stride| *stride != 0)
            .ok_or_else(|| ty.error(SpirvErrorKind::MissingDecoration { id, decoration: "ArrayStride" }))
    }

    /// The element of a runtime array type.
    pub(super) fn element(&self, array: &Inst) -> Result<Element, SpirvError> {
        let stride = self.array_stride(array)?;
        let ty = self.type_def(array, array.id(0)?)?;
        if matches!(ty.op(), Op::TypeStruct | Op::TypeArray | Op::TypeMatrix) {
            return Ok(Element { scalar: None, components: 1, stride });
        }
        let (scalar, components) = self.vector(ty)?;
        Ok(Element { scalar: Some(scalar), components, stride })
    }

    /// The texel of an image type; a format of `Unknown` counts as four 32-bit components.
    pub(super) fn texel(&self, image: &Inst) -> Result<Element, SpirvError> {
        let sampled = self.scalar(self.type_def(image, image.id(0)?)?)?;
        let Some(Operand::ImageFormat(format)) = image.inst.operands.get(6) else {
            return Err(unsupported(image, "an image without a format"));
        };
        let (scalar, components) = match format {
            ImageFormat::Unknown => (sampled, 4),
            ImageFormat::Rgba32f | ImageFormat::Rgba32i | ImageFormat::Rgba32ui => (sampled, 4),
            ImageFormat::Rg32f | ImageFormat::Rg32i | ImageFormat::Rg32ui => (sampled, 2),
            ImageFormat::R32f | ImageFormat::R32i | ImageFormat::R32ui => (sampled, 1),
            ImageFormat::Rgba16f => (ScalarType::F16, 4),
            ImageFormat::Rg16f => (ScalarType::F16, 2),
            ImageFormat::R16f => (ScalarType::F16, 1),
            ImageFormat::Rgba8ui => (ScalarType::U8, 4),
            ImageFormat::Rgba8i => (ScalarType::I8, 4),
            ImageFormat::R8ui => (ScalarType::U8, 1),
            ImageFormat::R8i => (ScalarType::I8, 1),
            _ => return Err(unsupported(image, "this image format")),
        };
        Ok(Element { scalar: Some(scalar), components, stride: scalar.bytes() * components })
    }

    /// (size, alignment) in bytes of a type without explicit layout, as in workgroup memory. The size
    /// saturates at [`SIZE_CAP`].
    pub(super) fn natural_size(&self, ty: &Inst, budget: &mut TypeBudget) -> Result<(u64, u64), SpirvError> {
        if budget.visits == 0 || budget.depth == 0 {
            return Err(unsupported(ty, "a type of this complexity"));
        }
        budget.visits -= 1;
        budget.depth -= 1;
        let size = self.natural_size_of(ty, budget);
        budget.depth += 1;
        size
    }

    fn natural_size_of(&self, ty: &Inst, budget: &mut TypeBudget) -> Result<(u64, u64), SpirvError> {
        match ty.op() {
            Op::TypeArray => {
                let element = self.nested(ty, 0)?;
                let (size, align) = self.natural_size(element, budget)?;
                let len = self.constant_u32(ty.id(1)?, 0);
                let len = len.ok_or_else(|| unsupported(ty, "an array length of this form"))?;
                let bytes = size.next_multiple_of(align).saturating_mul(u64::from(len));
                Ok((bytes.min(SIZE_CAP), align))
            }
            Op::TypeStruct => {
                let (mut size, mut align) = (0u64, 1);
                for member in 0..ty.inst.operands.len() {
                    let (bytes, alignment) = self.natural_size(self.nested(ty, member)?, budget)?;
                    size = (size.next_multiple_of(alignment) + bytes).min(SIZE_CAP);
                    align = align.max(alignment);
                }
                Ok((size.next_multiple_of(align), align))
            }
            Op::TypeMatrix => {
                let (size, align) = self.natural_size(self.nested(ty, 0)?, budget)?;
                Ok((size * u64::from(ty.literal(1)?.min(4)), align))
            }
            _ => {
                let (scalar, components) = self.vector(ty)?;
                Ok((u64::from(scalar.bytes() * components), u64::from(scalar.bytes())))
            }
        }
    }

    /// A type that `ty` is made of; it must come earlier, so that types cannot recurse.
    fn nested(&self, ty: &Inst, operand: usize) -> Result<&'m Inst, SpirvError> {
        let id = ty.id(operand)?;
        let inner = self.type_def(ty, id)?;
        match inner.word < ty.word {
            true => Ok(inner),
            false => Err(ty.error(SpirvErrorKind::WrongId { id, expected: "a type declared before" })),
        }
    }

    /// The value of a 32-bit integer constant, specialized or by default.
    pub(super) fn constant_u32(&self, id: u32, depth: u32) -> Option<u32> {
        if depth > MAX_DEPTH {
            return None;
        }
        let inst = self.module.def(id)?;
        match inst.op() {
            Op::Constant => inst.literal(0).ok(),
            Op::SpecConstant => {
                let spec_id = self.decoration(id, None, Decoration::SpecId);
                let given = self.specialized.iter().find(|(given, _)| Some(*given) == spec_id);
                given.map_or_else(|| inst.literal(0).ok(), |(_, value)| Some(*value))
            }
            Op::SpecConstantOp => {
                let Some(Operand::LiteralSpecConstantOpInteger(op)) = inst.inst.operands.first() else {
                    return None;
                };
                if *op == Op::CompositeExtract && inst.inst.operands.len() == 3 {
                    let composite = self.module.def(inst.id(1).ok()?)?;
                    let part = composite.id(inst.literal(2).ok()? as usize).ok()?;
                    return self.constant_u32(part, depth + 1);
                }
                let a = self.constant_u32(inst.id(1).ok()?, depth + 1)?;
                let b = self.constant_u32(inst.id(2).ok()?, depth + 1)?;
                match op {
                    Op::IAdd => Some(a.wrapping_add(b)),
                    Op::ISub => Some(a.wrapping_sub(b)),
                    Op::IMul => Some(a.wrapping_mul(b)),
                    Op::UDiv => a.checked_div(b),
                    Op::UMod => a.checked_rem(b),
                    Op::ShiftLeftLogical => a.checked_shl(b),
                    Op::ShiftRightLogical => a.checked_shr(b),
                    Op::BitwiseAnd => Some(a & b),
                    Op::BitwiseOr => Some(a | b),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

pub(super) fn unsupported(inst: &Inst, what: &'static str) -> SpirvError {
    inst.error(SpirvErrorKind::Unsupported { what: Cow::Borrowed(what) })
}
