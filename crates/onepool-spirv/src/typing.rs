//! Types of the instructions that reach memory, take composites apart or call functions.
//!
//! A wrong index or type there makes drivers read beyond their own tables.

use rspirv::dr::Operand;
use rspirv::spirv::Op;

use super::parse::{Inst, Module, SpirvError, SpirvErrorKind};
use super::types::unsupported;

/// Checks every instruction of `module`.
pub(super) fn check(module: &Module) -> Result<(), SpirvError> {
    let types = Types { module };
    module.insts.iter().try_for_each(|inst| types.check(inst))
}

struct Types<'m> {
    module: &'m Module,
}

/// An index into a composite.
enum Index {
    Literal(u32),
    Id(u32),
}

impl<'m> Types<'m> {
    fn check(&self, inst: &Inst) -> Result<(), SpirvError> {
        match inst.op() {
            Op::AccessChain | Op::InBoundsAccessChain => self.check_chain(inst, 1),
            Op::PtrAccessChain | Op::InBoundsPtrAccessChain => self.check_chain(inst, 2),
            Op::Load => {
                let (_, pointee) = self.pointer(inst, inst.id(0)?)?;
                self.same(inst, pointee, inst.inst.result_type.unwrap_or(0))
            }
            Op::Store => {
                let (_, pointee) = self.pointer(inst, inst.id(0)?)?;
                self.same(inst, pointee, self.type_of(inst, inst.id(1)?)?)
            }
            Op::Variable => {
                let class = inst.inst.operands.first();
                let pointer = self.type_def(inst, inst.inst.result_type.unwrap_or(0))?;
                match pointer.op() == Op::TypePointer && pointer.inst.operands.first() == class {
                    true => Ok(()),
                    false => Err(unsupported(inst, "a variable whose type has another storage class")),
                }
            }
            Op::ArrayLength => {
                let (_, block) = self.pointer(inst, inst.id(0)?)?;
                let member = self.step(inst, block, &Index::Literal(inst.literal(1)?))?;
                match self.type_def(inst, member)?.op() {
                    Op::TypeRuntimeArray => Ok(()),
                    _ => Err(unsupported(inst, "the length of something other than a runtime array")),
                }
            }
            Op::CompositeExtract => {
                let found = self.literals(inst, self.type_of(inst, inst.id(0)?)?, 1)?;
                self.same(inst, found, inst.inst.result_type.unwrap_or(0))
            }
            Op::CompositeInsert => {
                let whole = self.type_of(inst, inst.id(1)?)?;
                self.same(inst, whole, inst.inst.result_type.unwrap_or(0))?;
                self.same(inst, self.literals(inst, whole, 2)?, self.type_of(inst, inst.id(0)?)?)
            }
            Op::FunctionCall => self.check_call(inst),
            Op::Function => self.check_function(inst),
            _ => Ok(()),
        }
    }

    /// An access chain whose indices start at operand `first`.
    fn check_chain(&self, inst: &Inst, first: usize) -> Result<(), SpirvError> {
        let (class, mut ty) = self.pointer(inst, inst.id(0)?)?;
        for at in first..inst.inst.operands.len() {
            ty = self.step(inst, ty, &Index::Id(inst.id(at)?))?;
        }
        let result = self.type_def(inst, inst.inst.result_type.unwrap_or(0))?;
        if result.op() != Op::TypePointer || result.inst.operands.first() != Some(class) {
            return Err(unsupported(inst, "an access chain into another storage class"));
        }
        self.same(inst, ty, result.id(1)?)
    }

    fn check_call(&self, inst: &Inst) -> Result<(), SpirvError> {
        let id = inst.id(0)?;
        let function = self.module.def(id).filter(|def| def.op() == Op::Function);
        let wrong = || inst.error(SpirvErrorKind::WrongId { id, expected: "a function" });
        let signature = self.signature(function.ok_or_else(wrong)?)?;
        self.same(inst, signature.id(0)?, inst.inst.result_type.unwrap_or(0))?;
        if signature.inst.operands.len() != inst.inst.operands.len() {
            return Err(unsupported(inst, "a call with another number of arguments"));
        }
        for at in 1..signature.inst.operands.len() {
            self.same(inst, signature.id(at)?, self.type_of(inst, inst.id(at)?)?)?;
        }
        Ok(())
    }

    /// A function's result type is that of its signature, and so are its parameters.
    fn check_function(&self, inst: &Inst) -> Result<(), SpirvError> {
        let signature = self.signature(inst)?;
        self.same(inst, signature.id(0)?, inst.inst.result_type.unwrap_or(0))?;
        let start = self.module.insts.partition_point(|other| other.word <= inst.word);
        let parameters = self.module.insts.get(start..).unwrap_or(&[]).iter();
        let parameters = parameters
            .filter(|inst| !matches!(inst.op(), Op::Line | Op::NoLine))
            .take_while(|inst| inst.op() == Op::FunctionParameter)
            .map(|inst| inst.inst.result_type);
        let declared = signature.inst.operands.iter().skip(1).map(|operand| operand.id_ref_any());
        match parameters.eq(declared) {
            true => Ok(()),
            false => Err(unsupported(inst, "a function whose parameters are not those of its type")),
        }
    }

    fn signature(&self, function: &Inst) -> Result<&'m Inst, SpirvError> {
        let id = function.id(1)?;
        let signature = self.module.def(id).filter(|def| def.op() == Op::TypeFunction);
        signature.ok_or_else(|| function.error(SpirvErrorKind::WrongId { id, expected: "a function type" }))
    }

    /// (storage class, pointee) of the pointer `id`.
    fn pointer(&self, user: &Inst, id: u32) -> Result<(&'m Operand, u32), SpirvError> {
        let ty = self.type_def(user, self.type_of(user, id)?)?;
        match (ty.op(), ty.inst.operands.first()) {
            (Op::TypePointer, Some(class)) => Ok((class, ty.id(1)?)),
            _ => Err(user.error(SpirvErrorKind::WrongId { id, expected: "a pointer" })),
        }
    }

    fn literals(&self, inst: &Inst, whole: u32, first: usize) -> Result<u32, SpirvError> {
        let mut ty = whole;
        for at in first..inst.inst.operands.len() {
            ty = self.step(inst, ty, &Index::Literal(inst.literal(at)?))?;
        }
        Ok(ty)
    }

    /// The type of one part of the composite type `whole`.
    fn step(&self, user: &Inst, whole: u32, index: &Index) -> Result<u32, SpirvError> {
        let ty = self.type_def(user, whole)?;
        let outside = || unsupported(user, "an index outside of its composite");
        match ty.op() {
            Op::TypeStruct => {
                let member = match index {
                    Index::Literal(member) => *member,
                    Index::Id(id) => self.constant(*id).ok_or_else(outside)?,
                };
                match ty.inst.operands.get(member as usize) {
                    Some(Operand::IdRef(id)) => Ok(*id),
                    _ => Err(outside()),
                }
            }
            Op::TypeVector | Op::TypeMatrix => match index {
                Index::Literal(at) if *at >= ty.literal(1)? => Err(outside()),
                _ => ty.id(0),
            },
            Op::TypeArray => {
                let length = self.constant(ty.id(1)?);
                match index {
                    Index::Literal(at) if length.is_some_and(|length| *at >= length) => Err(outside()),
                    _ => ty.id(0),
                }
            }
            Op::TypeRuntimeArray | Op::TypeCooperativeMatrixKHR => ty.id(0),
            _ => Err(unsupported(user, "an index into a type that has no parts")),
        }
    }

    /// The value of a 32-bit constant that cannot be specialized.
    fn constant(&self, id: u32) -> Option<u32> {
        self.module.def(id).filter(|def| def.op() == Op::Constant)?.literal(0).ok()
    }

    fn type_of(&self, user: &Inst, id: u32) -> Result<u32, SpirvError> {
        let ty = self.module.def(id).and_then(|def| def.inst.result_type);
        ty.ok_or_else(|| user.error(SpirvErrorKind::WrongId { id, expected: "a value" }))
    }

    fn type_def(&self, user: &Inst, id: u32) -> Result<&'m Inst, SpirvError> {
        let ty = self.module.def(id).filter(|def| def.op().is_type());
        ty.ok_or_else(|| user.error(SpirvErrorKind::WrongId { id, expected: "a type" }))
    }

    fn same(&self, user: &Inst, found: u32, expected: u32) -> Result<(), SpirvError> {
        match found == expected {
            true => Ok(()),
            false => Err(user.error(SpirvErrorKind::WrongId { id: found, expected: "the type needed here" })),
        }
    }
}
