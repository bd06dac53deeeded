//! Instructions that compute one value from values.

use rspirv::spirv::Op;

use super::OpenClError;
use super::function::Body;
use super::helpers::Helper;
use super::module::unsupported;
use super::pointer::{Pointer, Space};
use super::types::{Num, Type};
use crate::parse::Inst;
use crate::types::ScalarType;

impl Body<'_, '_> {
    /// The value of `inst` as an expression.
    pub(super) fn arithmetic(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        match inst.op() {
            Op::IAdd => self.modular(inst, "+"),
            Op::ISub => self.modular(inst, "-"),
            Op::IMul => self.modular(inst, "*"),
            Op::BitwiseAnd => self.modular(inst, "&"),
            Op::BitwiseOr => self.modular(inst, "|"),
            Op::BitwiseXor => self.modular(inst, "^"),
            Op::ShiftLeftLogical => self.modular(inst, "<<"),
            Op::ShiftRightLogical | Op::ShiftRightArithmetic => self.shift_right(inst),
            Op::Not | Op::SNegate => {
                let (value, num) = self.wide(inst, 0)?;
                let value = if inst.op() == Op::Not { format!("(~{value})") } else { format!("(-{value})") };
                self.narrow(inst, value, num)
            }
            Op::UDiv | Op::UMod => self.unsigned_division(inst),
            Op::SDiv | Op::SRem | Op::SMod => self.signed_division(inst),
            Op::FAdd => self.floats(inst, 0, &|v| format!("({} + {})", v[0], v[1]), 2),
            Op::FSub => self.floats(inst, 0, &|v| format!("({} - {})", v[0], v[1]), 2),
            Op::FMul | Op::VectorTimesScalar => {
                self.floats(inst, 0, &|v| format!("({} * {})", v[0], v[1]), 2)
            }
            Op::FDiv => self.floats(inst, 0, &|v| format!("({} / {})", v[0], v[1]), 2),
            Op::FRem => self.floats(inst, 0, &|v| format!("fmod({}, {})", v[0], v[1]), 2),
            Op::FMod => self.floats(inst, 0, &|v| format!("({0} - {1} * floor({0} / {1}))", v[0], v[1]), 2),
            Op::FNegate => self.floats(inst, 0, &|v| format!("(-{})", v[0]), 1),
            Op::Dot => self.dot(inst),
            Op::BitCount | Op::BitReverse => self.bit_function(inst),
            Op::BitFieldInsert | Op::BitFieldUExtract | Op::BitFieldSExtract => self.bit_field(inst),
            Op::Select => self.select(inst),
            Op::Any | Op::All => {
                let name = if inst.op() == Op::Any { "any" } else { "all" };
                Ok(format!("({name}({}) != 0)", self.operand(inst, 0)?))
            }
            Op::LogicalAnd => self.logical(inst, "&"),
            Op::LogicalOr => self.logical(inst, "|"),
            Op::LogicalEqual => self.logical(inst, "=="),
            Op::LogicalNotEqual => self.logical(inst, "!="),
            Op::LogicalNot => Ok(format!("(!{})", self.operand(inst, 0)?)),
            Op::IsNan | Op::IsInf => {
                let name = if inst.op() == Op::IsNan { "isnan" } else { "isinf" };
                let num = self.num_of(inst, inst.id(0)?)?;
                let value = self.operand(inst, 0)?;
                Ok(self.truth(format!("{name}({value})"), num))
            }
            Op::VectorShuffle => self.shuffle(inst),
            Op::VectorExtractDynamic | Op::VectorInsertDynamic => self.dynamic(inst),
            _ => match comparison(inst.op()) {
                Some(comparison) => self.compare(inst, comparison),
                None => self.convert(inst),
            },
        }
    }

    /// Operand `at` as a value and its type.
    pub(super) fn typed(&mut self, inst: &Inst, at: usize) -> Result<(String, Num), OpenClError> {
        let id = inst.id(at)?;
        Ok((self.value(inst, id)?, self.num_of(inst, id)?))
    }

    /// The same bits as another type of the same size.
    pub(super) fn cast(&self, value: String, from: Num, to: Num) -> String {
        match from == to {
            true => value,
            false if (from.n, to.n) == (1, 1) && from.is_int() && to.is_int() => {
                format!("(({}){value})", to.c(self.t.fp16))
            }
            false => format!("as_{}({value})", to.c(self.t.fp16)),
        }
    }

    /// Operand `at`, an integer, without its sign, and in a type that C does not widen to a signed one.
    fn wide(&mut self, inst: &Inst, at: usize) -> Result<(String, Num), OpenClError> {
        let (value, num) = self.typed(inst, at)?;
        if !num.is_int() {
            return Err(unsupported(inst, format!("{:?} of this type", inst.op())));
        }
        let value = self.cast(value, num, num.unsigned());
        match num.n == 1 && num.bits() < 32 {
            true => Ok((format!("((uint){value})"), num.with(ScalarType::U32))),
            false => Ok((value, num.unsigned())),
        }
    }

    /// A value of type `num` as the integer that `inst` results in.
    fn narrow(&self, inst: &Inst, value: String, num: Num) -> Result<String, OpenClError> {
        let result = self.result(inst)?;
        if !result.is_int() || result.n != num.n {
            return Err(unsupported(inst, format!("{:?} of these types", inst.op())));
        }
        if result == num {
            return Ok(value);
        }
        match result.n {
            1 => Ok(format!("(({}){value})", result.c(self.t.fp16))),
            _ if result.bits() == num.bits() => Ok(self.cast(value, num, result)),
            _ => Err(unsupported(inst, format!("{:?} of these types", inst.op()))),
        }
    }

    /// An operation whose low bits do not depend on signs.
    fn modular(&mut self, inst: &Inst, op: &str) -> Result<String, OpenClError> {
        let (a, num) = self.wide(inst, 0)?;
        let (b, count) = self.wide(inst, 1)?;
        let b = if count == num { b } else { self.resized(b, count, num) };
        self.narrow(inst, format!("({a} {op} {b})"), num)
    }

    /// An unsigned value in another size.
    fn resized(&self, value: String, from: Num, to: Num) -> String {
        match (from == to, to.n) {
            (true, _) => value,
            (_, 1) => format!("(({}){value})", to.c(self.t.fp16)),
            _ => format!("convert_{}({value})", to.c(self.t.fp16)),
        }
    }

    fn shift_right(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        let (a, num) = self.typed(inst, 0)?;
        let (count, count_num) = self.wide(inst, 1)?;
        let shifted = if inst.op() == Op::ShiftRightLogical { num.unsigned() } else { num.signed() };
        let a = self.cast(a, num, shifted);
        let count = self.resized(count, count_num, num.unsigned());
        let value = format!("({a} >> {count})");
        self.narrow(inst, value, shifted)
    }

    /// Whether operand `at` is a constant that one can divide by.
    fn is_divisor(&self, inst: &Inst, at: usize, num: Num) -> bool {
        let minus_one = if num.bits() == 64 { u64::MAX } else { (1 << num.bits()) - 1 };
        let lanes = inst.id(at).ok().and_then(|id| self.t.constants.lanes(id));
        lanes.is_some_and(|lanes| {
            lanes.iter().all(|bits| *bits != 0 && (!num.is_signed() || *bits != minus_one))
        })
    }

    fn unsigned_division(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        let ((a, num), (b, second)) = (self.wide(inst, 0)?, self.wide(inst, 1)?);
        let op = if inst.op() == Op::UDiv { "/" } else { "%" };
        let b = self.resized(b, second, num);
        let b = match self.is_divisor(inst, 1, num) {
            true => b,
            false => format!("max({b}, {})", self.t.lanes(num, &vec![1; num.n as usize])),
        };
        self.narrow(inst, format!("({a} {op} {b})"), num)
    }

    fn signed_division(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        let ((a, from), (b, second)) = (self.typed(inst, 0)?, self.typed(inst, 1)?);
        let num = from.signed();
        let (a, b) = (self.cast(a, from, num), self.cast(b, second, num));
        let plain = match inst.op() {
            Op::SDiv => Some("/"),
            Op::SRem => Some("%"),
            _ => None,
        };
        if let Some(op) = plain
            && self.is_divisor(inst, 1, num)
        {
            return self.narrow(inst, format!("({a} {op} {b})"), num);
        }
        let (helper, name) = match (inst.op(), num.bits() == 64) {
            (Op::SDiv, false) => (Helper::IntDiv, "i_div"),
            (Op::SRem, false) => (Helper::IntRem, "i_rem"),
            (_, false) => (Helper::IntMod, "i_mod"),
            (Op::SDiv, true) => (Helper::LongDiv, "l_div"),
            (Op::SRem, true) => (Helper::LongRem, "l_rem"),
            (_, true) => (Helper::LongMod, "l_mod"),
        };
        self.help(helper);
        let lane = |at: u32| format!("{name}({}, {})", self.lane(&a, num, at), self.lane(&b, num, at));
        let lanes: Vec<String> = (0..num.n).map(lane).collect();
        let value = self.of_lanes(num, &lanes);
        self.narrow(inst, value, num)
    }

    /// A function of floats, the first of which is operand `from`. Without half precision the result is
    /// rounded, component by component.
    pub(super) fn floats(
        &mut self,
        inst: &Inst,
        from: usize,
        function: &dyn Fn(&[String]) -> String,
        count: usize,
    ) -> Result<String, OpenClError> {
        let result = self.result(inst)?;
        let operands: Vec<(String, Num)> =
            (from..from + count).map(|at| self.typed(inst, at)).collect::<Result<_, _>>()?;
        if !result.is_float() {
            return Err(unsupported(inst, format!("{:?} of this type", inst.op())));
        }
        if !result.is_half() || self.t.fp16 {
            let values: Vec<String> = operands.into_iter().map(|(value, _)| value).collect();
            return Ok(function(&values));
        }
        self.help(Helper::HalfRound);
        let lane = |at: u32| {
            let values: Vec<String> =
                operands.iter().map(|(value, num)| self.lane(value, *num, at)).collect();
            format!("h_round({})", function(&values))
        };
        let lanes: Vec<String> = (0..result.n).map(lane).collect();
        Ok(self.of_lanes(result, &lanes))
    }

    fn dot(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        let ((a, num), (b, _)) = (self.typed(inst, 0)?, self.typed(inst, 1)?);
        let term = |at| format!("{} * {}", self.lane(&a, num, at), self.lane(&b, num, at));
        let terms: Vec<String> = (0..num.n).map(term).collect();
        let sum = terms.join(" + ");
        match num.is_half() && !self.t.fp16 {
            true => {
                self.help(Helper::HalfRound);
                Ok(format!("h_round({sum})"))
            }
            false => Ok(format!("({sum})")),
        }
    }

    fn bit_function(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        let (value, from) = self.typed(inst, 0)?;
        let num = from.unsigned();
        let value = self.cast(value, from, num);
        if inst.op() == Op::BitCount {
            return self.narrow(inst, format!("popcount({value})"), num);
        }
        if num.bits() != 32 {
            return Err(unsupported(inst, "BitReverse of other than 32 bits"));
        }
        self.help(Helper::BitReverse);
        let lanes: Vec<String> =
            (0..num.n).map(|at| format!("bit_reverse_({})", self.lane(&value, num, at))).collect();
        let value = self.of_lanes(num, &lanes);
        self.narrow(inst, value, num)
    }

    fn bit_field(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        let (helper, name, values) = match inst.op() {
            Op::BitFieldInsert => (Helper::BitInsert, "bits_insert", 2),
            Op::BitFieldUExtract => (Helper::BitsUnsigned, "bits_u", 1),
            _ => (Helper::BitsSigned, "bits_s", 1),
        };
        let operands: Vec<(String, Num)> =
            (0..values + 2).map(|at| self.wide(inst, at)).collect::<Result<_, _>>()?;
        let num = operands.first().map_or(Num::new(ScalarType::U32, 1), |(_, num)| *num);
        if num.bits() != 32 || self.result(inst)?.bits() != 32 {
            return Err(unsupported(inst, "a bit field of other than 32 bits"));
        }
        self.help(helper);
        let lane = |at: u32| {
            let values: Vec<String> =
                operands.iter().map(|(value, num)| self.lane(value, *num, at)).collect();
            format!("{name}({})", values.join(", "))
        };
        let lanes: Vec<String> = (0..num.n).map(lane).collect();
        let value = self.of_lanes(num, &lanes);
        self.narrow(inst, value, num)
    }

    fn select(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        let (test, num) = self.typed(inst, 0)?;
        let (yes, no) = (self.operand(inst, 1)?, self.operand(inst, 2)?);
        if num.n == 1 {
            return Ok(format!("({test} ? {yes} : {no})"));
        }
        let result = self.result(inst)?;
        let bits = if result.is_half() && !self.t.fp16 { 32 } else { result.bits() };
        let test = match bits {
            8 => format!("convert_char{}({test})", num.n),
            16 => format!("convert_short{}({test})", num.n),
            64 => format!("convert_long{}({test})", num.n),
            _ => test,
        };
        Ok(format!("select({no}, {yes}, {test})"))
    }

    fn logical(&mut self, inst: &Inst, op: &str) -> Result<String, OpenClError> {
        Ok(format!("({} {op} {})", self.operand(inst, 0)?, self.operand(inst, 1)?))
    }

    /// The result of a comparison of values of type `num` as booleans.
    fn truth(&self, value: String, num: Num) -> String {
        let wide = num.bits() == 32 || (num.is_half() && !self.t.fp16);
        match num.n {
            1 => format!("({value} != 0)"),
            n if !wide => format!("convert_int{n}({value})"),
            _ => value,
        }
    }

    fn compare(&mut self, inst: &Inst, comparison: Comparison) -> Result<String, OpenClError> {
        let ((a, num), (b, second)) = (self.typed(inst, 0)?, self.typed(inst, 1)?);
        let common = match comparison.operands {
            Operands::Float => num,
            Operands::Unsigned => num.unsigned(),
            Operands::Signed => num.signed(),
        };
        if num.is_bool() || (comparison.operands == Operands::Float) != num.is_float() {
            return Err(unsupported(inst, format!("{:?} of this type", inst.op())));
        }
        let (a, b) = (self.cast(a, num, common), self.cast(b, second, common));
        let value = match comparison.form {
            Form::Plain(op) => format!("({a} {op} {b})"),
            Form::Not(op) => format!("(!({a} {op} {b}))"),
            Form::Less => format!("(({a} < {b}) | ({a} > {b}))"),
            Form::NotLess => format!("(!(({a} < {b}) | ({a} > {b})))"),
        };
        Ok(match num.n {
            1 => value,
            _ => self.truth(value, num),
        })
    }

    fn shuffle(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        let ((a, first), (b, second)) = (self.typed(inst, 0)?, self.typed(inst, 1)?);
        let result = self.result(inst)?;
        let mut lanes = Vec::new();
        for at in 2..inst.inst.operands.len() {
            lanes.push(match inst.literal(at)? {
                at if at < first.n => self.lane(&a, first, at),
                at if at - first.n < second.n => self.lane(&b, second, at - first.n),
                // Any value will do.
                _ => self.t.lanes(result.lane(), &[0]),
            });
        }
        if lanes.len() != result.n as usize || result.scalar != first.scalar || result.scalar != second.scalar
        {
            return Err(unsupported(inst, "a vector of these parts"));
        }
        Ok(self.of_lanes(result, &lanes))
    }

    /// A component that is not known before; one that is not there is the last.
    fn dynamic(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        let (vector, num) = self.typed(inst, 0)?;
        let insert = inst.op() == Op::VectorInsertDynamic;
        let part = if insert { Some(self.operand(inst, 1)?) } else { None };
        let index = self.operand(inst, if insert { 2 } else { 1 })?;
        if let Some(part) = part {
            let lane = |at: u32| format!("({index} == {at} ? {part} : {})", self.lane(&vector, num, at));
            let lanes: Vec<String> = (0..num.n).map(lane).collect();
            return Ok(self.of_lanes(num, &lanes));
        }
        let mut value = self.lane(&vector, num, num.n - 1);
        for at in (0..num.n - 1).rev() {
            value = format!("({index} == {at} ? {} : {value})", self.lane(&vector, num, at));
        }
        Ok(value)
    }

    /// Instructions that result in a structure of two integers.
    pub(super) fn extended_integer(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        let ((a, from), (b, second)) = (self.typed(inst, 0)?, self.typed(inst, 1)?);
        let num = if inst.op() == Op::SMulExtended { from.signed() } else { from.unsigned() };
        let members = match inst.inst.result_type.map(|ty| self.t.types.get(ty)) {
            Some(Type::Struct(members)) if members.len() == 2 => {
                members.iter().map(|ty| self.t.types.num(*ty)).collect()
            }
            _ => Vec::new(),
        };
        let [Some(low), Some(high)] = members[..] else {
            return Err(unsupported(inst, "this result of two integers"));
        };
        if num.bits() < 32 || low.unsigned() != from.unsigned() || high.unsigned() != from.unsigned() {
            return Err(unsupported(inst, "this result of two integers"));
        }
        let unsigned = num.unsigned();
        let (ua, ub) = (self.cast(a.clone(), from, unsigned), self.cast(b.clone(), second, unsigned));
        let (a, b) = (self.cast(a, from, num), self.cast(b, second, num));
        let bit = |test: String| match num.n {
            1 => format!("(({})({test}))", unsigned.c(self.t.fp16)),
            _ => format!(
                "(as_{}({test}) & {})",
                unsigned.c(self.t.fp16),
                self.t.lanes(unsigned, &vec![1; num.n as usize])
            ),
        };
        let (first, last, last_num) = match inst.op() {
            Op::IAddCarry => (format!("({ua} + {ub})"), bit(format!("({ua} + {ub}) < {ua}")), unsigned),
            Op::ISubBorrow => (format!("({ua} - {ub})"), bit(format!("{ua} < {ub}")), unsigned),
            _ => (format!("({ua} * {ub})"), format!("mul_hi({a}, {b})"), num),
        };
        let (first, last) = (self.cast(first, unsigned, low), self.cast(last, last_num, high));
        let id = self.open(inst)?;
        self.line(&format!("v{id}.m0 = {first};"))?;
        self.line(&format!("v{id}.m1 = {last};"))
    }

    /// A value as another type of the same parts.
    pub(super) fn copy_logical(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        let from_type = self.type_of(inst, inst.id(0)?)?;
        let value = self.operand(inst, 0)?;
        let id = self.open(inst)?;
        let to = Pointer::variable(format!("v{id}"), Space::Private, inst.inst.result_type.unwrap_or(0));
        let from = Pointer::variable(value, Space::Private, from_type);
        self.copy(inst, &to, &from, &mut 0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operands {
    Float,
    Signed,
    Unsigned,
}

#[derive(Clone, Copy)]
enum Form {
    Plain(&'static str),
    Not(&'static str),
    /// Less or greater: ordered and not equal.
    Less,
    /// Equal or not ordered.
    NotLess,
}

#[derive(Clone, Copy)]
struct Comparison {
    operands: Operands,
    form: Form,
}

fn comparison(op: Op) -> Option<Comparison> {
    use Form::{Less, Not, NotLess, Plain};
    use Operands::{Float, Signed, Unsigned};
    let (operands, form) = match op {
        Op::IEqual => (Unsigned, Plain("==")),
        Op::INotEqual => (Unsigned, Plain("!=")),
        Op::ULessThan => (Unsigned, Plain("<")),
        Op::ULessThanEqual => (Unsigned, Plain("<=")),
        Op::UGreaterThan => (Unsigned, Plain(">")),
        Op::UGreaterThanEqual => (Unsigned, Plain(">=")),
        Op::SLessThan => (Signed, Plain("<")),
        Op::SLessThanEqual => (Signed, Plain("<=")),
        Op::SGreaterThan => (Signed, Plain(">")),
        Op::SGreaterThanEqual => (Signed, Plain(">=")),
        Op::FOrdEqual => (Float, Plain("==")),
        Op::FOrdNotEqual => (Float, Less),
        Op::FOrdLessThan => (Float, Plain("<")),
        Op::FOrdLessThanEqual => (Float, Plain("<=")),
        Op::FOrdGreaterThan => (Float, Plain(">")),
        Op::FOrdGreaterThanEqual => (Float, Plain(">=")),
        Op::FUnordEqual => (Float, NotLess),
        Op::FUnordNotEqual => (Float, Plain("!=")),
        Op::FUnordLessThan => (Float, Not(">=")),
        Op::FUnordLessThanEqual => (Float, Not(">")),
        Op::FUnordGreaterThan => (Float, Not("<=")),
        Op::FUnordGreaterThanEqual => (Float, Not("<")),
        _ => return None,
    };
    Some(Comparison { operands, form })
}
