//! Constants with their specialization: every one is evaluated here, none is left to the compiler.

use std::collections::HashMap;

use half::f16;
use rspirv::dr::Operand;
use rspirv::spirv::{Decoration, Op};

use super::OpenClError;
use super::module::unsupported;
use super::types::{Num, Type, Types};
use crate::ScalarType;
use crate::parse::Inst;
use crate::types::Index;

/// The value of a constant.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// The bits of each component of a scalar or vector, zero-extended.
    Lanes(Num, Vec<u64>),
    /// The parts of an array or structure.
    Parts(Vec<u32>),
    /// An array or structure of zeros.
    Zero,
}

/// The constants of a module by id.
pub(super) struct Constants {
    /// (`SpecId`, bits)
    given: HashMap<u32, u32>,
    values: HashMap<u32, (u32, Value)>,
}

impl Constants {
    pub(super) fn new(spec: &[(u32, u32)]) -> Self {
        Self { given: spec.iter().copied().collect(), values: HashMap::new() }
    }

    /// The type and value of a constant.
    pub(super) fn get(&self, id: u32) -> Option<(u32, &Value)> {
        self.values.get(&id).map(|(ty, value)| (*ty, value))
    }

    /// The components of a constant scalar or vector.
    pub(super) fn lanes(&self, id: u32) -> Option<&[u64]> {
        match self.get(id)?.1 {
            Value::Lanes(_, lanes) => Some(lanes),
            _ => None,
        }
    }

    /// The value of an integer constant, extended as its type says.
    pub(super) fn index(&self, id: u32) -> Option<i64> {
        match self.get(id)?.1 {
            Value::Lanes(num, lanes) if num.is_int() && num.n == 1 => {
                lanes.first().map(|bits| extended(*num, *bits))
            }
            _ => None,
        }
    }

    /// Reads a constant whose operands have been read.
    pub(super) fn read(&mut self, index: &Index<'_>, types: &Types, inst: &Inst) -> Result<(), OpenClError> {
        let (Some(id), Some(ty)) = (inst.inst.result_id, inst.inst.result_type) else { return Ok(()) };
        let num = types.num(ty);
        let bits = || match inst.inst.operands.first() {
            Some(Operand::LiteralBit32(bits)) => Ok(u64::from(*bits)),
            Some(Operand::LiteralBit64(bits)) => Ok(*bits),
            _ => Err(unsupported(inst, "a constant of this form")),
        };
        let given = index.decoration(id, None, Decoration::SpecId).and_then(|at| self.given.get(&at));
        let value = match (inst.op(), num) {
            (Op::Constant, Some(num)) => Value::Lanes(num, vec![masked(num, bits()?)]),
            (Op::SpecConstant, Some(num)) => match given {
                Some(_) if num.bits() > 32 => {
                    return Err(unsupported(inst, "specialization of a 64-bit constant"));
                }
                Some(given) => Value::Lanes(num, vec![masked(num, u64::from(*given))]),
                None => Value::Lanes(num, vec![masked(num, bits()?)]),
            },
            (Op::ConstantTrue, Some(num)) => Value::Lanes(num, vec![1]),
            (Op::ConstantFalse, Some(num)) => Value::Lanes(num, vec![0]),
            (Op::SpecConstantTrue | Op::SpecConstantFalse, Some(num)) => {
                let default = u32::from(inst.op() == Op::SpecConstantTrue);
                Value::Lanes(num, vec![u64::from(*given.unwrap_or(&default) != 0)])
            }
            (Op::ConstantNull | Op::Undef, Some(num)) => Value::Lanes(num, vec![0; num.n as usize]),
            (Op::ConstantNull | Op::Undef, None) => match types.get(ty) {
                Type::Array { .. } | Type::Struct(_) => Value::Zero,
                _ => return Ok(()),
            },
            (Op::ConstantComposite | Op::SpecConstantComposite, num) => {
                let parts = (0..inst.inst.operands.len()).map(|at| inst.id(at));
                let parts: Vec<u32> = parts.collect::<Result<_, _>>()?;
                match num {
                    Some(num) => {
                        let lanes = parts.iter().filter_map(|part| self.lanes(*part)).flatten();
                        Value::Lanes(num, full(inst, num, lanes.copied().collect())?)
                    }
                    None => Value::Parts(parts),
                }
            }
            (Op::SpecConstantOp, Some(num)) => Value::Lanes(num, full(inst, num, self.evaluate(inst, num)?)?),
            // Constants of types without a counterpart are an error where they are used.
            _ => return Ok(()),
        };
        self.values.insert(id, (ty, value));
        Ok(())
    }

    fn evaluate(&self, inst: &Inst, num: Num) -> Result<Vec<u64>, OpenClError> {
        let Some(Operand::LiteralSpecConstantOpInteger(op)) = inst.inst.operands.first() else {
            return Err(unsupported(inst, "a specialization without an operation"));
        };
        let unknown = || unsupported(inst, format!("specialization by {op:?}"));
        let operand = |at: usize| match self.get(inst.id(at)?) {
            Some((_, Value::Lanes(num, lanes))) => Ok((*num, lanes.as_slice())),
            _ => Err(unknown()),
        };
        let literals = |from: usize| (from..inst.inst.operands.len()).map(|at| inst.literal(at));
        match op {
            Op::CompositeExtract => {
                let mut id = inst.id(1)?;
                for at in literals(2) {
                    match self.get(id).ok_or_else(unknown)?.1 {
                        Value::Parts(parts) => id = *parts.get(at? as usize).ok_or_else(unknown)?,
                        Value::Lanes(_, lanes) => {
                            return Ok(vec![*lanes.get(at? as usize).ok_or_else(unknown)?]);
                        }
                        Value::Zero => return Ok(vec![0; num.n as usize]),
                    }
                }
                self.lanes(id).map(<[u64]>::to_vec).ok_or_else(unknown)
            }
            Op::CompositeInsert => {
                let ((_, object), (_, composite)) = (operand(1)?, operand(2)?);
                let mut lanes = composite.to_vec();
                let at = inst.literal(3)? as usize;
                *lanes.get_mut(at).ok_or_else(unknown)? = *object.first().ok_or_else(unknown)?;
                Ok(lanes)
            }
            Op::VectorShuffle => {
                let ((_, a), (_, b)) = (operand(1)?, operand(2)?);
                let all: Vec<u64> = a.iter().chain(b).copied().collect();
                literals(3).map(|at| Ok(all.get(at? as usize).copied().unwrap_or(0))).collect()
            }
            Op::Select => {
                let ((_, test), (_, yes), (_, no)) = (operand(1)?, operand(2)?, operand(3)?);
                let lane = |at: usize| {
                    let test = test.get(at).or(test.first()).copied().unwrap_or(0);
                    if test != 0 { yes } else { no }.get(at).copied().ok_or_else(unknown)
                };
                (0..num.n as usize).map(lane).collect()
            }
            _ => {
                let (from, a) = operand(1)?;
                let second = match inst.inst.operands.len() {
                    0..=2 => None,
                    _ => Some(operand(2)?.1),
                };
                let lane = |at: usize| {
                    let a = a.get(at).copied()?;
                    let b = match second {
                        Some(lanes) => Some(lanes.get(at).copied()?),
                        None => None,
                    };
                    lane(*op, from, num, a, b)
                };
                (0..num.n as usize).map(|at| lane(at).ok_or_else(unknown)).collect()
            }
        }
    }
}

fn full(inst: &Inst, num: Num, lanes: Vec<u64>) -> Result<Vec<u64>, OpenClError> {
    match lanes.len() == num.n as usize {
        true => Ok(lanes),
        false => Err(unsupported(inst, "a constant vector of these parts")),
    }
}

/// The bits that belong to the type.
fn masked(num: Num, bits: u64) -> u64 {
    match num.bits() {
        _ if num.is_bool() => u64::from(bits != 0),
        64 => bits,
        width => bits & ((1 << width) - 1),
    }
}

/// Bits as a number of 64 bits: by their sign where the type has one.
fn extended(num: Num, bits: u64) -> i64 {
    let shift = 64 - num.bits();
    if num.is_signed() { signed(num, bits) } else { ((bits << shift) >> shift) as i64 }
}

/// Bits as a signed number of their width.
fn signed(num: Num, bits: u64) -> i64 {
    let shift = 64 - num.bits();
    ((bits << shift) as i64) >> shift
}

/// One component; `from` is the type of the operands. `None` where the operation is none of these.
fn lane(op: Op, from: Num, to: Num, a: u64, b: Option<u64>) -> Option<u64> {
    let (sa, sb) = (signed(from, a), signed(from, b.unwrap_or(0)));
    let float = |bits: u64| match from.scalar {
        ScalarType::F16 => f16::from_bits(bits as u16).to_f64(),
        ScalarType::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    };
    let bits = match (op, b) {
        (Op::UConvert, _) => a,
        (Op::SConvert, _) => sa as u64,
        (Op::FConvert, _) => match to.scalar {
            ScalarType::F16 => u64::from(f16::from_f64(float(a)).to_bits()),
            ScalarType::F32 => u64::from((float(a) as f32).to_bits()),
            _ => float(a).to_bits(),
        },
        (Op::SNegate, _) => sa.wrapping_neg() as u64,
        (Op::Not, _) => !a,
        (Op::LogicalNot, _) => u64::from(a == 0),
        (Op::IAdd, Some(b)) => a.wrapping_add(b),
        (Op::ISub, Some(b)) => a.wrapping_sub(b),
        (Op::IMul, Some(b)) => a.wrapping_mul(b),
        // A division by zero is undefined; the translation of one in the code gives these values too.
        (Op::UDiv, Some(b)) => a / b.max(1),
        (Op::UMod, Some(b)) => a % b.max(1),
        (Op::SDiv, Some(_)) => sa.wrapping_div(if sb == 0 { 1 } else { sb }) as u64,
        (Op::SRem, Some(_)) => sa.wrapping_rem(if sb == 0 { 1 } else { sb }) as u64,
        (Op::SMod, Some(_)) => {
            let rest = sa.wrapping_rem(if sb == 0 { 1 } else { sb });
            (if rest != 0 && (rest < 0) != (sb < 0) { rest.wrapping_add(sb) } else { rest }) as u64
        }
        (Op::ShiftLeftLogical, Some(b)) => a.checked_shl(b.min(64) as u32).unwrap_or(0),
        (Op::ShiftRightLogical, Some(b)) => a.checked_shr(b.min(64) as u32).unwrap_or(0),
        (Op::ShiftRightArithmetic, Some(b)) => (sa >> b.min(63)) as u64,
        (Op::BitwiseOr | Op::LogicalOr, Some(b)) => a | b,
        (Op::BitwiseAnd | Op::LogicalAnd, Some(b)) => a & b,
        (Op::BitwiseXor | Op::LogicalNotEqual, Some(b)) => a ^ b,
        (Op::LogicalEqual | Op::IEqual, Some(b)) => u64::from(a == b),
        (Op::INotEqual, Some(b)) => u64::from(a != b),
        (Op::ULessThan, Some(b)) => u64::from(a < b),
        (Op::UGreaterThan, Some(b)) => u64::from(a > b),
        (Op::ULessThanEqual, Some(b)) => u64::from(a <= b),
        (Op::UGreaterThanEqual, Some(b)) => u64::from(a >= b),
        (Op::SLessThan, Some(_)) => u64::from(sa < sb),
        (Op::SGreaterThan, Some(_)) => u64::from(sa > sb),
        (Op::SLessThanEqual, Some(_)) => u64::from(sa <= sb),
        (Op::SGreaterThanEqual, Some(_)) => u64::from(sa >= sb),
        _ => return None,
    };
    Some(masked(to, bits))
}
