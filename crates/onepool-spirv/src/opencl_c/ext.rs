//! The instructions of GLSL.std.450.

use rspirv::dr::Operand;
use rspirv::spirv::{GlslStd450Op, Op};

use super::OpenClError;
use super::function::Body;
use super::helpers::Helper;
use super::module::unsupported;
use super::types::{Num, Type};
use crate::parse::Inst;
use crate::types::ScalarType;

/// Position of the first argument among the operands: the set and the instruction come before.
const FIRST: usize = 2;

impl Body<'_, '_> {
    pub(super) fn extended(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        let set = self.t.module.def(inst.id(0)?).filter(|def| def.op() == Op::ExtInstImport);
        match set.and_then(|set| set.inst.operands.first()) {
            Some(Operand::LiteralString(name)) if name == "GLSL.std.450" => {}
            Some(Operand::LiteralString(name)) if name.starts_with("NonSemantic.") => return Ok(()),
            _ => return Err(unsupported(inst, "an instruction of another set")),
        }
        let op = match inst.inst.operands.get(1) {
            Some(Operand::LiteralExtInstInteger(op)) => GlslStd450Op::from_u32(*op),
            _ => None,
        };
        let op = op.ok_or_else(|| unsupported(inst, "an unknown extended instruction"))?;
        if let GlslStd450Op::Modf
        | GlslStd450Op::ModfStruct
        | GlslStd450Op::Frexp
        | GlslStd450Op::FrexpStruct = op
        {
            return self.two_results(inst, op);
        }
        let value = self.function_of(inst, op)?;
        self.set(inst, &value)
    }

    /// A fraction, and a whole part or exponent after a pointer or in a structure of both.
    fn two_results(&mut self, inst: &Inst, op: GlslStd450Op) -> Result<(), OpenClError> {
        let (value, num) = self.typed(inst, FIRST)?;
        let name = match op {
            GlslStd450Op::Modf | GlslStd450Op::ModfStruct => "modf",
            _ => "frexp",
        };
        let pointer = match op {
            GlslStd450Op::Modf | GlslStd450Op::Frexp => Some(self.pointer(inst, inst.id(FIRST + 1)?)?),
            _ => None,
        };
        let second = match &pointer {
            Some(pointer) => pointer.to(),
            None => match inst.inst.result_type.map(|ty| self.t.types.get(ty)) {
                Some(Type::Struct(members)) => members.get(1).copied(),
                _ => None,
            },
        };
        let no_type = || unsupported(inst, format!("{op:?} of this type"));
        let second = second.ok_or_else(no_type)?;
        let second_num = self.t.types.num(second).ok_or_else(no_type)?;
        let wanted = if name == "modf" { num } else { num.with(ScalarType::I32) };
        let exponent = name == "frexp" && second_num.unsigned() == wanted.unsigned();
        if num.is_half() || !num.is_float() || !(second_num == wanted || exponent) {
            return Err(no_type());
        }
        // Where the function writes what is signed in OpenCL C.
        let cast = match second_num == wanted {
            true => String::new(),
            false => format!("({}*)", wanted.c(self.t.fp16)),
        };
        let Some(pointer) = pointer else {
            let id = self.open(inst)?;
            return self.line(&format!("v{id}.m0 = {name}({value}, {cast}&v{id}.m1);"));
        };
        let part = format!("e{}", inst.inst.result_id.unwrap_or(0));
        let call = format!("{name}({value}, {cast}&{part})");
        self.declare(inst, second, &part)?;
        self.set(inst, &call)?;
        self.store(inst, &pointer, &part, &mut 0)
    }

    fn function_of(&mut self, inst: &Inst, op: GlslStd450Op) -> Result<String, OpenClError> {
        if let Some((name, count)) = float_function(op) {
            return self.floats(inst, FIRST, &|v| format!("{name}({})", v.join(", ")), count);
        }
        if let Some((name, count, signed)) = int_function(op) {
            return self.int_function(inst, name, count, signed);
        }
        match op {
            GlslStd450Op::Fract => self.floats(inst, FIRST, &|v| format!("({0} - floor({0}))", v[0]), 1),
            GlslStd450Op::FClamp | GlslStd450Op::NClamp => {
                self.floats(inst, FIRST, &|v| format!("fmin(fmax({}, {}), {})", v[0], v[1], v[2]), 3)
            }
            GlslStd450Op::Ldexp => {
                let (exponent, num) = self.typed(inst, FIRST + 1)?;
                if num.bits() != 32 || !num.is_int() {
                    return Err(unsupported(inst, "an exponent of other than 32 bits"));
                }
                let exponent = self.cast(exponent, num, num.signed());
                let lane = |at| self.lane(&format!("({exponent})"), num, at);
                let exponents: Vec<String> = (0..num.n).map(lane).collect();
                let exponent = if num.n == 1 { exponent } else { self.of_lanes(num.signed(), &exponents) };
                let whole = !self.result(inst)?.is_half() || self.t.fp16 || num.n == 1;
                if !whole {
                    return Err(unsupported(inst, "Ldexp of vectors of half precision"));
                }
                self.floats(inst, FIRST, &|v| format!("ldexp({}, {exponent})", v[0]), 1)
            }
            GlslStd450Op::SAbs => {
                let (value, num) = self.typed(inst, FIRST)?;
                let value = self.cast(value, num, num.signed());
                let result = self.result(inst)?;
                Ok(self.cast(format!("abs({value})"), num.unsigned(), result))
            }
            GlslStd450Op::SSign => {
                let (value, num) = self.typed(inst, FIRST)?;
                let result = self.result(inst)?;
                let (value, signed) = (self.cast(value, num, num.signed()), num.signed());
                let lane = |at: u32| {
                    let value = self.lane(&value, signed, at);
                    format!("(({})(({value} > 0) - ({value} < 0)))", signed.lane().c(self.t.fp16))
                };
                let lanes: Vec<String> = (0..num.n).map(lane).collect();
                let value = self.of_lanes(signed, &lanes);
                Ok(self.cast(value, signed, result))
            }
            GlslStd450Op::FindILsb | GlslStd450Op::FindUMsb | GlslStd450Op::FindSMsb => {
                self.find_bit(inst, op)
            }
            GlslStd450Op::Length | GlslStd450Op::Distance | GlslStd450Op::Normalize | GlslStd450Op::Cross => {
                self.geometry(inst, op)
            }
            GlslStd450Op::FaceForward | GlslStd450Op::Reflect | GlslStd450Op::Refract => self.bent(inst, op),
            _ => self.pack(inst, op),
        }
    }

    fn int_function(
        &mut self,
        inst: &Inst,
        name: &str,
        count: usize,
        signed: bool,
    ) -> Result<String, OpenClError> {
        let result = self.result(inst)?;
        let common = if signed { result.signed() } else { result.unsigned() };
        let mut values = Vec::new();
        for at in FIRST..FIRST + count {
            let (value, num) = self.typed(inst, at)?;
            if !num.is_int() || num.unsigned() != result.unsigned() {
                return Err(unsupported(inst, format!("`{name}` of this type")));
            }
            values.push(self.cast(value, num, common));
        }
        Ok(self.cast(format!("{name}({})", values.join(", ")), common, result))
    }

    /// The number of a bit, or -1 where there is none.
    fn find_bit(&mut self, inst: &Inst, op: GlslStd450Op) -> Result<String, OpenClError> {
        let (value, num) = self.typed(inst, FIRST)?;
        let result = self.result(inst)?;
        if num.bits() != 32 || !num.is_int() || result.unsigned() != num.unsigned() {
            return Err(unsupported(inst, "a bit's number in other than 32 bits"));
        }
        let (signed, unsigned) = (num.signed(), num.unsigned());
        let s = self.cast(value.clone(), num, signed);
        let u = self.cast(value, num, unsigned);
        let ones = match op {
            GlslStd450Op::FindILsb => format!("({u} & -{u})"),
            GlslStd450Op::FindUMsb => u,
            _ => self.cast(format!("({s} ^ ({s} >> 31))"), signed, unsigned),
        };
        Ok(self.cast(format!("(31 - clz({ones}))"), unsigned, result))
    }

    fn geometry(&mut self, inst: &Inst, op: GlslStd450Op) -> Result<String, OpenClError> {
        let result = self.result(inst)?;
        let (name, count) = match op {
            GlslStd450Op::Length => ("length", 1),
            GlslStd450Op::Distance => ("distance", 2),
            GlslStd450Op::Normalize => ("normalize", 1),
            _ => ("cross", 2),
        };
        if result.is_half() {
            return Err(unsupported(inst, format!("`{name}` of half precision")));
        }
        self.floats(inst, FIRST, &|v| format!("{name}({})", v.join(", ")), count)
    }

    /// A vector turned at a surface, by the formulas of the extended instruction set.
    fn bent(&mut self, inst: &Inst, op: GlslStd450Op) -> Result<String, OpenClError> {
        let result = self.result(inst)?;
        if result.is_half() {
            return Err(unsupported(inst, format!("{op:?} of half precision")));
        }
        let zero = self.t.lanes(result, &vec![0; result.n as usize]);
        let (one, two) = match result.scalar {
            ScalarType::F64 => ("1.0", "2.0"),
            _ => ("1.0f", "2.0f"),
        };
        match op {
            GlslStd450Op::FaceForward => self.floats(
                inst,
                FIRST,
                &|v| format!("(dot({2}, {1}) < 0 ? {0} : -{0})", v[0], v[1], v[2]),
                3,
            ),
            GlslStd450Op::Reflect => {
                self.floats(inst, FIRST, &|v| format!("({0} - {two} * dot({1}, {0}) * {1})", v[0], v[1]), 2)
            }
            _ => {
                let (eta, num) = self.typed(inst, FIRST + 2)?;
                if num != result.lane() {
                    return Err(unsupported(inst, "Refract with a ratio of another type"));
                }
                let text = |v: &[String]| {
                    let cosine = format!("dot({}, {})", v[1], v[0]);
                    let k = format!("({one} - {eta} * {eta} * ({one} - {cosine} * {cosine}))");
                    let bent = format!("({eta} * {} - ({eta} * {cosine} + sqrt({k})) * {})", v[0], v[1]);
                    format!("({k} < 0 ? {zero} : {bent})")
                };
                self.floats(inst, FIRST, &text, 2)
            }
        }
    }

    fn pack(&mut self, inst: &Inst, op: GlslStd450Op) -> Result<String, OpenClError> {
        let (value, num) = self.typed(inst, FIRST)?;
        let result = self.result(inst)?;
        let word = Num::new(ScalarType::U32, 1);
        let vector = |n| Num::new(ScalarType::F32, n);
        let expect = |found: Num, wanted: Num| match found == wanted {
            true => Ok(()),
            false => Err(unsupported(inst, format!("{op:?} of this type"))),
        };
        match op {
            GlslStd450Op::PackHalf2x16 => {
                expect(num, vector(2))?;
                self.help(Helper::HalfBits);
                let value = format!("((uint)h_bits({value}.s0) | (uint)h_bits({value}.s1) << 16)");
                Ok(self.cast(value, word, result))
            }
            GlslStd450Op::UnpackHalf2x16 => {
                expect(num.unsigned(), word)?;
                expect(result, vector(2))?;
                self.help(Helper::HalfFloat);
                let low = format!("h_float((ushort){value})");
                let high = format!("h_float((ushort)((uint){value} >> 16))");
                Ok(format!("(float2)({low}, {high})"))
            }
            GlslStd450Op::PackDouble2x32 => {
                expect(num.unsigned(), Num::new(ScalarType::U32, 2))?;
                expect(result, Num::new(ScalarType::F64, 1))?;
                Ok(format!("as_double({value})"))
            }
            GlslStd450Op::UnpackDouble2x32 => {
                expect(num, Num::new(ScalarType::F64, 1))?;
                expect(result.unsigned(), Num::new(ScalarType::U32, 2))?;
                Ok(format!("as_{}({value})", result.c(self.t.fp16)))
            }
            GlslStd450Op::PackSnorm4x8
            | GlslStd450Op::PackUnorm4x8
            | GlslStd450Op::PackSnorm2x16
            | GlslStd450Op::PackUnorm2x16 => {
                let (n, bits) = if matches!(op, GlslStd450Op::PackSnorm4x8 | GlslStd450Op::PackUnorm4x8) {
                    (4, 8)
                } else {
                    (2, 16)
                };
                expect(num, vector(n))?;
                let signed = matches!(op, GlslStd450Op::PackSnorm4x8 | GlslStd450Op::PackSnorm2x16);
                let mask = (1u32 << bits) - 1;
                let (low, scale) = if signed { ("-1.0f", mask >> 1) } else { ("0.0f", mask) };
                let lane = |at: u32| {
                    let scaled = format!("rint(clamp({value}.s{at}, {low}, 1.0f) * {scale}.0f)");
                    format!("((uint)(int){scaled} & {mask:#x}u) << {}", at * bits)
                };
                let lanes: Vec<String> = (0..n).map(lane).collect();
                Ok(self.cast(format!("({})", lanes.join(" | ")), word, result))
            }
            GlslStd450Op::UnpackSnorm4x8
            | GlslStd450Op::UnpackUnorm4x8
            | GlslStd450Op::UnpackSnorm2x16
            | GlslStd450Op::UnpackUnorm2x16 => {
                let bytes = matches!(op, GlslStd450Op::UnpackSnorm4x8 | GlslStd450Op::UnpackUnorm4x8);
                let (n, bits) = if bytes { (4, 8) } else { (2, 16) };
                expect(num.unsigned(), word)?;
                expect(result, vector(n))?;
                let signed = matches!(op, GlslStd450Op::UnpackSnorm4x8 | GlslStd450Op::UnpackSnorm2x16);
                let ty = match (bytes, signed) {
                    (true, true) => "char",
                    (true, false) => "uchar",
                    (false, true) => "short",
                    (false, false) => "ushort",
                };
                let scale = ((1u32 << bits) - 1) >> u32::from(signed);
                let lane = |at: u32| {
                    let part = format!("(float)({ty})((uint){value} >> {}) / {scale}.0f", at * bits);
                    if signed { format!("max({part}, -1.0f)") } else { part }
                };
                let lanes: Vec<String> = (0..n).map(lane).collect();
                Ok(format!("(float{n})({})", lanes.join(", ")))
            }
            _ => Err(unsupported(inst, format!("{op:?}"))),
        }
    }
}

/// Instructions that are a function of OpenCL C: its name and the count of its arguments. `fmin` and `fmax`
/// give the number where one argument is NaN, which is what drivers do where SPIR-V leaves it open.
fn float_function(op: GlslStd450Op) -> Option<(&'static str, usize)> {
    Some(match op {
        GlslStd450Op::Round => ("round", 1),
        GlslStd450Op::RoundEven => ("rint", 1),
        GlslStd450Op::Trunc => ("trunc", 1),
        GlslStd450Op::FAbs => ("fabs", 1),
        GlslStd450Op::FSign => ("sign", 1),
        GlslStd450Op::Floor => ("floor", 1),
        GlslStd450Op::Ceil => ("ceil", 1),
        GlslStd450Op::Radians => ("radians", 1),
        GlslStd450Op::Degrees => ("degrees", 1),
        GlslStd450Op::Sin => ("sin", 1),
        GlslStd450Op::Cos => ("cos", 1),
        GlslStd450Op::Tan => ("tan", 1),
        GlslStd450Op::Asin => ("asin", 1),
        GlslStd450Op::Acos => ("acos", 1),
        GlslStd450Op::Atan => ("atan", 1),
        GlslStd450Op::Sinh => ("sinh", 1),
        GlslStd450Op::Cosh => ("cosh", 1),
        GlslStd450Op::Tanh => ("tanh", 1),
        GlslStd450Op::Asinh => ("asinh", 1),
        GlslStd450Op::Acosh => ("acosh", 1),
        GlslStd450Op::Atanh => ("atanh", 1),
        GlslStd450Op::Atan2 => ("atan2", 2),
        GlslStd450Op::Pow => ("pow", 2),
        GlslStd450Op::Exp => ("exp", 1),
        GlslStd450Op::Log => ("log", 1),
        GlslStd450Op::Exp2 => ("exp2", 1),
        GlslStd450Op::Log2 => ("log2", 1),
        GlslStd450Op::Sqrt => ("sqrt", 1),
        GlslStd450Op::InverseSqrt => ("rsqrt", 1),
        GlslStd450Op::FMin | GlslStd450Op::NMin => ("fmin", 2),
        GlslStd450Op::FMax | GlslStd450Op::NMax => ("fmax", 2),
        GlslStd450Op::FMix => ("mix", 3),
        GlslStd450Op::Step => ("step", 2),
        GlslStd450Op::SmoothStep => ("smoothstep", 3),
        GlslStd450Op::Fma => ("fma", 3),
        _ => return None,
    })
}

/// The same for integers, and whether they are signed.
fn int_function(op: GlslStd450Op) -> Option<(&'static str, usize, bool)> {
    Some(match op {
        GlslStd450Op::SMin => ("min", 2, true),
        GlslStd450Op::SMax => ("max", 2, true),
        GlslStd450Op::SClamp => ("clamp", 3, true),
        GlslStd450Op::UMin => ("min", 2, false),
        GlslStd450Op::UMax => ("max", 2, false),
        GlslStd450Op::UClamp => ("clamp", 3, false),
        _ => return None,
    })
}
