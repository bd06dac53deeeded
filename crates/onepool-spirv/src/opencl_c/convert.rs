//! Conversions between numeric types.

use rspirv::spirv::Op;

use super::OpenClError;
use super::function::Body;
use super::helpers::Helper;
use super::module::unsupported;
use super::types::Num;
use crate::parse::Inst;
use crate::types::ScalarType;

impl Body<'_, '_> {
    pub(super) fn convert(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        let op = inst.op();
        if !matches!(
            op,
            Op::ConvertFToU
                | Op::ConvertFToS
                | Op::ConvertSToF
                | Op::ConvertUToF
                | Op::UConvert
                | Op::SConvert
                | Op::FConvert
                | Op::QuantizeToF16
                | Op::Bitcast
        ) {
            return Err(unsupported(inst, format!("{op:?}")));
        }
        let (value, from) = self.typed(inst, 0)?;
        let to = self.result(inst)?;
        let int_source = matches!(op, Op::ConvertSToF | Op::ConvertUToF | Op::UConvert | Op::SConvert);
        let int_result = matches!(op, Op::ConvertFToU | Op::ConvertFToS | Op::UConvert | Op::SConvert);
        let fits =
            op == Op::Bitcast || (from.n == to.n && from.is_int() == int_source && to.is_int() == int_result);
        if from.is_bool() || to.is_bool() || !fits {
            return Err(unsupported(inst, format!("{op:?} of these types")));
        }
        match op {
            Op::ConvertFToU | Op::UConvert => {
                Ok(self.through(value, from, from.unsigned(), to.unsigned(), to))
            }
            Op::ConvertFToS | Op::SConvert => Ok(self.through(value, from, from.signed(), to.signed(), to)),
            Op::ConvertUToF => Ok(self.convert_to_float(value, from, from.unsigned(), to)),
            Op::ConvertSToF => Ok(self.convert_to_float(value, from, from.signed(), to)),
            Op::FConvert if inst.inst.result_id.is_some_and(|id| self.stored.contains(&id)) => {
                Ok(self.converted(&value, from, to))
            }
            Op::FConvert => Ok(self.convert_to_float(value, from, from, to)),
            Op::QuantizeToF16 => {
                let half = Num::new(ScalarType::F16, from.n);
                let rounded = self.convert_to_float(value, from, from, half);
                Ok(self.convert_to_float(rounded, half, half, to))
            }
            _ => self.bitcast(inst, value, from, to),
        }
    }

    /// By value from one type to another; floats lose their fraction.
    fn converted(&self, value: &str, from: Num, to: Num) -> String {
        let (source, target) = (from.c(self.t.fp16), to.c(self.t.fp16));
        match to.n {
            _ if source == target => value.to_owned(),
            1 => format!("(({target}){value})"),
            _ => format!("convert_{target}({value})"),
        }
    }

    /// To an integer: the source taken as `source`, converted to `target`, whose bits are `to`.
    fn through(&self, value: String, from: Num, source: Num, target: Num, to: Num) -> String {
        let (value, source) = match from.is_int() {
            true => (self.cast(value, from, source), source),
            false => (value, from),
        };
        let value = self.converted(&value, source, target);
        self.cast(value, target, to)
    }

    fn convert_to_float(&mut self, value: String, from: Num, source: Num, to: Num) -> String {
        let value = self.cast(value, from, source);
        let value = self.converted(&value, source, to);
        if !to.is_half() || self.t.fp16 || source.is_half() {
            return value;
        }
        self.help(Helper::HalfRound);
        let lanes: Vec<String> =
            (0..to.n).map(|at| format!("h_round({})", self.lane(&value, to, at))).collect();
        self.of_lanes(to, &lanes)
    }

    fn bitcast(&mut self, inst: &Inst, value: String, from: Num, to: Num) -> Result<String, OpenClError> {
        if from.bits() * from.n != to.bits() * to.n {
            return Err(unsupported(inst, "a bit cast between sizes"));
        }
        if from == to {
            return Ok(value);
        }
        if self.t.fp16 || (!from.is_half() && !to.is_half()) {
            return Ok(self.cast(value, from, to));
        }
        let (mut value, mut from) = (value, from);
        if from.is_half() {
            self.help(Helper::HalfBits);
            let bits = from.with(ScalarType::U16);
            let lanes: Vec<String> =
                (0..from.n).map(|at| format!("h_bits({})", self.lane(&value, from, at))).collect();
            (value, from) = (self.of_lanes(bits, &lanes), bits);
            if from.n > 1 {
                value = format!("({value})");
            }
        }
        if !to.is_half() {
            return Ok(self.cast(value, from, to));
        }
        self.help(Helper::HalfFloat);
        let bits = to.with(ScalarType::U16);
        let value = self.cast(value, from, bits);
        let lanes: Vec<String> =
            (0..to.n).map(|at| format!("h_float({})", self.lane(&value, bits, at))).collect();
        Ok(self.of_lanes(to, &lanes))
    }
}
