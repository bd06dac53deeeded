//! Atomics on 32-bit integers and floats in global and workgroup memory.

use rspirv::spirv::Op;

use super::OpenClError;
use super::function::Body;
use super::helpers::Helper;
use super::module::unsupported;
use super::pointer::Space;
use super::types::Num;
use crate::parse::Inst;
use crate::types::ScalarType;

impl Body<'_, '_> {
    pub(super) fn atomic(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        let pointer = self.pointer(inst, inst.id(0)?)?;
        let num = pointer.to().and_then(|to| self.t.types.num(to));
        let num = num.filter(|num| num.n == 1 && num.bits() == 32 && !num.is_bool());
        let num = num.ok_or_else(|| unsupported(inst, "an atomic access of other than 32 bits"))?;
        let (space, address) = self.address(inst, &pointer)?;
        let local = space == Space::Local;
        let qualifier = if local { "__local" } else { "__global" };
        let pointer = |ty: &str| format!("(volatile {qualifier} {ty}*){address}");
        let (ints, uints) = (num.signed(), num.unsigned());
        // Operand 0 is the pointer, 1 the scope, 2 the semantics.
        let float = |local_helper, global_helper| if local { local_helper } else { global_helper };
        let (value, result) = match inst.op() {
            Op::AtomicLoad => (format!("*{}", pointer("uint")), uints),
            Op::AtomicStore => {
                let value = self.atomic_operand(inst, 3, uints)?;
                return self.line(&format!("atomic_xchg({}, {value});", pointer("uint")));
            }
            Op::AtomicCompareExchange => {
                // The value comes before the comparator, and there are two semantics.
                let value = self.atomic_operand(inst, 4, uints)?;
                let comparator = self.atomic_operand(inst, 5, uints)?;
                (format!("atomic_cmpxchg({}, {comparator}, {value})", pointer("uint")), uints)
            }
            Op::AtomicIIncrement => (format!("atomic_inc({})", pointer("uint")), uints),
            Op::AtomicIDecrement => (format!("atomic_dec({})", pointer("uint")), uints),
            Op::AtomicFAddEXT | Op::AtomicFMinEXT | Op::AtomicFMaxEXT => {
                let (helper, name) = match inst.op() {
                    Op::AtomicFAddEXT => (float(Helper::AddLocal, Helper::AddGlobal), "add"),
                    Op::AtomicFMinEXT => (float(Helper::MinLocal, Helper::MinGlobal), "min"),
                    _ => (float(Helper::MaxLocal, Helper::MaxGlobal), "max"),
                };
                self.help(helper);
                let name = format!("{name}_{}", if local { "local" } else { "global" });
                let value = self.atomic_operand(inst, 3, num)?;
                (format!("{name}({}, {value})", pointer("uint")), num)
            }
            op => {
                let (name, operand) = match op {
                    Op::AtomicExchange => ("xchg", uints),
                    Op::AtomicIAdd => ("add", uints),
                    Op::AtomicISub => ("sub", uints),
                    Op::AtomicSMin => ("min", ints),
                    Op::AtomicSMax => ("max", ints),
                    Op::AtomicUMin => ("min", uints),
                    Op::AtomicUMax => ("max", uints),
                    Op::AtomicAnd => ("and", uints),
                    Op::AtomicOr => ("or", uints),
                    Op::AtomicXor => ("xor", uints),
                    _ => return Err(unsupported(inst, "this atomic operation")),
                };
                let value = self.atomic_operand(inst, 3, operand)?;
                let ty = if operand == ints { "int" } else { "uint" };
                (format!("atomic_{name}({}, {value})", pointer(ty)), operand)
            }
        };
        if num.is_float() != self.result(inst)?.is_float() {
            return Err(unsupported(inst, "an atomic access of this type"));
        }
        let value = self.cast(value, result, self.result(inst)?);
        self.set(inst, &value)
    }

    /// Operand `at` as a 32-bit `to` of the same bits.
    fn atomic_operand(&mut self, inst: &Inst, at: usize, to: Num) -> Result<String, OpenClError> {
        let (value, from) = self.typed(inst, at)?;
        let word = |num: Num| num.n == 1 && num.bits() == 32 && num.scalar != ScalarType::Bool;
        if !word(from) {
            return Err(unsupported(inst, "an atomic access of this type"));
        }
        Ok(self.cast(value, from, to))
    }
}
