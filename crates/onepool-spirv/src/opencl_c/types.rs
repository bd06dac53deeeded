//! The module's types, and what they are called in OpenCL C.

use std::collections::HashMap;
use std::fmt::Write as _;

use rspirv::dr::Operand;
use rspirv::spirv::{Dim, Op, StorageClass};

use super::OpenClError;
use super::constant::Constants;
use super::module::unsupported;
use crate::ScalarType;
use crate::parse::{Inst, Module};
use crate::types::{Element, Index};

/// Types nested deeper are refused.
const MAX_DEPTH: usize = 16;

/// Private and workgroup variables larger than this are refused.
const MAX_BYTES: u64 = 1 << 20;

/// A scalar, or a vector of 2 to 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Num {
    pub(super) scalar: ScalarType,
    pub(super) n: u32,
}

impl Num {
    pub(super) const fn new(scalar: ScalarType, n: u32) -> Self {
        Self { scalar, n }
    }

    /// One component.
    pub(super) const fn lane(self) -> Self {
        Self { n: 1, ..self }
    }

    /// A vector of `n` of the same components.
    pub(super) const fn components(self, n: u32) -> Self {
        Self { n, ..self }
    }

    pub(super) const fn with(self, scalar: ScalarType) -> Self {
        Self { scalar, ..self }
    }

    pub(super) const fn bits(self) -> u32 {
        self.scalar.bytes() * 8
    }

    pub(super) const fn is_bool(self) -> bool {
        matches!(self.scalar, ScalarType::Bool)
    }

    pub(super) const fn is_half(self) -> bool {
        matches!(self.scalar, ScalarType::F16)
    }

    pub(super) const fn is_float(self) -> bool {
        matches!(self.scalar, ScalarType::F16 | ScalarType::F32 | ScalarType::F64)
    }

    pub(super) const fn is_int(self) -> bool {
        !self.is_float() && !self.is_bool()
    }

    pub(super) const fn is_signed(self) -> bool {
        use ScalarType as S;
        matches!(self.scalar, S::I8 | S::I16 | S::I32 | S::I64)
    }

    /// The integer of the same size without a sign.
    pub(super) const fn unsigned(self) -> Self {
        self.with(match self.bits() {
            8 => ScalarType::U8,
            16 => ScalarType::U16,
            32 => ScalarType::U32,
            _ => ScalarType::U64,
        })
    }

    /// The integer of the same size with a sign.
    pub(super) const fn signed(self) -> Self {
        self.with(match self.bits() {
            8 => ScalarType::I8,
            16 => ScalarType::I16,
            32 => ScalarType::I32,
            _ => ScalarType::I64,
        })
    }

    /// Its name; a vector of booleans is one of integers that are 0 or -1, a binary16 without `fp16` a float.
    pub(super) fn c(self, fp16: bool) -> String {
        use ScalarType as S;
        let name = match self.scalar {
            S::Bool if self.n == 1 => "bool",
            S::Bool | S::I32 => "int",
            S::U8 => "uchar",
            S::I8 => "char",
            S::U16 | S::Bf16 => "ushort",
            S::I16 => "short",
            S::U32 => "uint",
            S::U64 => "ulong",
            S::I64 => "long",
            S::F16 if fp16 => "half",
            S::F16 | S::F32 => "float",
            S::F64 => "double",
        };
        match self.n {
            1 => name.to_owned(),
            n => format!("{name}{n}"),
        }
    }

    /// Bytes of the OpenCL C type; a vector of three is as large as one of four.
    fn c_bytes(self, fp16: bool) -> u64 {
        let scalar = match self.scalar {
            ScalarType::Bool if self.n == 1 => 1,
            ScalarType::F16 if !fp16 => 4,
            other => other.bytes(),
        };
        u64::from(scalar * if self.n == 3 { 4 } else { self.n })
    }
}

/// An image or a buffer of texels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImageType {
    /// Whether it has two dimensions, else it is a buffer.
    pub(super) plane: bool,
    /// Whether it has no sampler and may be written.
    pub(super) storage: bool,
    pub(super) element: Element,
    /// The vector that a read gives.
    pub(super) value: Num,
}

impl ImageType {
    /// How many numbers a place has.
    pub(super) const fn axes(&self) -> u32 {
        if self.plane { 2 } else { 1 }
    }
}

/// A type of the module.
#[derive(Clone, Debug)]
pub(super) enum Type {
    Void,
    /// With the id of a vector's component type.
    Num(Num, Option<u32>),
    Array {
        element: u32,
        /// `None` for a runtime array.
        len: Option<u32>,
    },
    Struct(Vec<u32>),
    Pointer {
        class: StorageClass,
        to: u32,
    },
    /// An image or a buffer of texels, with or without a sampler.
    Image(ImageType),
    /// What has no counterpart: the instruction that makes it.
    Other(Op),
}

/// The types of a module by id.
pub(super) struct Types {
    types: HashMap<u32, Type>,
    fp16: bool,
    /// Size and alignment of the structures written so far.
    declared: HashMap<u32, (u64, u64)>,
    /// The structures, in the order of their use.
    pub(super) text: String,
}

impl Types {
    pub(super) fn read(
        module: &Module,
        index: &Index<'_>,
        constants: &mut Constants,
        fp16: bool,
    ) -> Result<Self, OpenClError> {
        let mut types = Self { types: HashMap::new(), fp16, declared: HashMap::new(), text: String::new() };
        // Types and the constants that size arrays come in one order of definition.
        for inst in module.globals() {
            let Some(id) = inst.inst.result_id else { continue };
            if inst.op().is_type() {
                let ty = types.read_one(index, constants, inst)?;
                types.types.insert(id, ty);
            } else if inst.op().is_constant() || inst.op() == Op::Undef {
                constants.read(index, &types, inst)?;
            }
        }
        Ok(types)
    }

    fn read_one(&self, index: &Index<'_>, constants: &Constants, inst: &Inst) -> Result<Type, OpenClError> {
        Ok(match inst.op() {
            Op::TypeVoid => Type::Void,
            Op::TypeBool | Op::TypeInt | Op::TypeFloat => match index.scalar(inst) {
                Ok(ScalarType::Bf16) | Err(_) => Type::Other(inst.op()),
                Ok(scalar) => Type::Num(Num::new(scalar, 1), None),
            },
            Op::TypeVector => match (self.get(inst.id(0)?), inst.literal(1)?) {
                (Type::Num(num, None), n @ 2..=4) => Type::Num(Num::new(num.scalar, n), Some(inst.id(0)?)),
                _ => Type::Other(inst.op()),
            },
            Op::TypeArray => {
                let len = constants.index(inst.id(1)?).and_then(|len| u32::try_from(len).ok());
                let len = len.filter(|len| *len > 0);
                let len = len.ok_or_else(|| unsupported(inst, "an array of this length"))?;
                Type::Array { element: inst.id(0)?, len: Some(len) }
            }
            Op::TypeRuntimeArray => Type::Array { element: inst.id(0)?, len: None },
            Op::TypeStruct => {
                let members = (0..inst.inst.operands.len()).map(|at| inst.id(at));
                Type::Struct(members.collect::<Result<_, _>>()?)
            }
            Op::TypePointer => Type::Pointer { class: inst.storage_class(0)?, to: inst.id(1)? },
            Op::TypeImage => self.image(index, inst),
            Op::TypeSampledImage => self.get(inst.id(0)?).clone(),
            op => Type::Other(op),
        })
    }

    fn image(&self, index: &Index<'_>, inst: &Inst) -> Type {
        let read = || -> Option<ImageType> {
            let operands = &inst.inst.operands;
            let plane = match operands.get(1)? {
                Operand::Dim(Dim::DimBuffer) => false,
                Operand::Dim(Dim::Dim2D) => true,
                _ => return None,
            };
            let literal = |at: usize| inst.literal(at).ok();
            // A depth image, an array and several samples have no counterpart.
            let plain = literal(2)? != 1 && literal(3)? == 0 && literal(4)? == 0;
            let storage = match literal(5)? {
                1 => false,
                2 => true,
                _ => return None,
            };
            let (num, element) = (self.num(inst.id(0).ok()?)?, index.texel(inst).ok()?);
            (plain && num.n == 1 && num.bits() == 32 && !num.is_bool()).then_some(ImageType {
                plane,
                storage,
                element,
                value: num.components(4),
            })
        };
        read().map_or(Type::Other(inst.op()), Type::Image)
    }

    pub(super) fn get(&self, id: u32) -> &Type {
        self.types.get(&id).unwrap_or(&Type::Other(Op::Nop))
    }

    /// A scalar or vector type.
    pub(super) fn num(&self, id: u32) -> Option<Num> {
        match self.get(id) {
            Type::Num(num, _) => Some(*num),
            _ => None,
        }
    }

    /// The name of a type that values and variables may have; its declaration is written before.
    pub(super) fn name(&mut self, user: &Inst, id: u32) -> Result<String, OpenClError> {
        if matches!(self.get(id), Type::Void) {
            return Ok("void".to_owned());
        }
        self.declare(user, id, 0)?;
        Ok(self.name_of(id))
    }

    /// The bytes of a variable of the type in OpenCL C.
    pub(super) fn bytes(&mut self, user: &Inst, id: u32) -> Result<u64, OpenClError> {
        Ok(self.declare(user, id, 0)?.0)
    }

    fn name_of(&self, id: u32) -> String {
        self.num(id).map_or_else(|| format!("T{id}"), |num| num.c(self.fp16))
    }

    /// Writes the structure that `id` is; (size, alignment) in bytes.
    fn declare(&mut self, user: &Inst, id: u32, depth: usize) -> Result<(u64, u64), OpenClError> {
        if let Some(known) = self.declared.get(&id) {
            return Ok(*known);
        }
        if depth > MAX_DEPTH {
            return Err(OpenClError::TooLarge { what: "nested types", limit: MAX_DEPTH });
        }
        let ty = self.get(id).clone();
        let mut body = String::new();
        let layout = match ty {
            Type::Num(num, _) => {
                let bytes = num.c_bytes(self.fp16);
                return Ok((bytes, bytes));
            }
            Type::Array { element, len: Some(len) } => {
                let (bytes, align) = self.declare(user, element, depth + 1)?;
                let _ = write!(body, "{} a[{len}];", self.name_of(element));
                (bytes.saturating_mul(u64::from(len)), align)
            }
            Type::Struct(members) if !members.is_empty() => {
                let (mut size, mut align) = (0u64, 1);
                for (at, member) in members.iter().enumerate() {
                    let (bytes, alignment) = self.declare(user, *member, depth + 1)?;
                    let space = if at == 0 { "" } else { " " };
                    let _ = write!(body, "{space}{} m{at};", self.name_of(*member));
                    size = size.next_multiple_of(alignment) + bytes;
                    align = align.max(alignment);
                }
                (size.next_multiple_of(align), align)
            }
            Type::Other(op) => return Err(unsupported(user, format!("a value or variable of Op{op:?}"))),
            _ => return Err(unsupported(user, "a value or variable of this type")),
        };
        if layout.0 > MAX_BYTES {
            return Err(OpenClError::TooLarge { what: "bytes of a variable", limit: MAX_BYTES as usize });
        }
        let _ = writeln!(self.text, "typedef struct {{ {body} }} T{id};");
        self.declared.insert(id, layout);
        Ok(layout)
    }
}
