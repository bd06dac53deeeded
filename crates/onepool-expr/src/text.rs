//! Functions of two elements as GLSL of any element type, which the kernel of nodes of two inputs includes.
//!
//! Values are of the type that the shader calls `C`; what `C` lacks is in `shaders/include/arithmetic.glsl`.

use std::cell::RefCell;
use std::fmt::Write;
use std::ops::{Add, Mul, Neg, Sub};

use super::functions::{BinaryFunction, Kind, VisitPair};
use super::functions::{BitFormula, PairFormula, PairTest};
use super::pointwise::{BinaryOp, CompareOp};
use super::value::{Arithmetic, Bits, Plain};

/// The include file: the number `BINARY_<NAME>` of each function; with `COMPARES` defined `compare(a, b, code)`, which
/// chooses among comparisons by that number, else `binary(a, b, code)`, which chooses among the others that `C` has.
pub fn include_file() -> String {
    let mut text = String::from(HEAD);
    for function in BinaryFunction::ALL {
        let _ = writeln!(text, "#define {} {}u", code(*function), *function as u32);
    }
    text.push_str("\n#ifdef COMPARES\nbool compare(C a, C b, uint code)\n{\n    switch (code) {\n");
    for function in BinaryFunction::ALL.iter().filter(|f| f.is_comparison()) {
        print(&mut text, *function);
    }
    text.push_str("    default: return false;\n    }\n}\n#else\nC binary(C a, C b, uint code)\n{\n    switch (code) {\n");
    for function in BinaryFunction::ALL.iter().filter(|f| !f.is_comparison()) {
        let needed = match function.row().kind {
            Kind::Bits => Some("INTEGERS"),
            Kind::Alone => Some("ARITHMETIC"),
            Kind::Fused(_) | Kind::Test => None,
        };
        if let Some(needed) = needed {
            let _ = writeln!(text, "#ifdef {needed}");
        }
        print(&mut text, *function);
        if needed.is_some() {
            text.push_str("#endif\n");
        }
    }
    text.push_str("    default: return a;\n    }\n}\n#endif\n\n#endif\n");
    text
}

const HEAD: &str = "// Made by the build from the table of functions.
#ifndef ONEPOOL_BINARY_GLSL
#define ONEPOOL_BINARY_GLSL

#include \"arithmetic.glsl\"

";

/// The macro of its number.
fn code(function: BinaryFunction) -> String {
    format!("BINARY_{}", format!("{function:?}").to_ascii_uppercase())
}

/// Prints the case of `function`.
fn print(text: &mut String, function: BinaryFunction) {
    let lines = RefCell::new(Lines::default());
    let [a, b] = ["a", "b"].map(|name| Text { lines: &lines, id: lines.borrow_mut().name(name.to_owned()) });
    let value = function.visit(Print(a, b)).id;
    let lines = lines.into_inner();
    let _ = writeln!(
        text,
        "    case {}: {{\n{}        return {};\n    }}",
        code(function),
        lines.text,
        lines.names[value]
    );
}

struct Print<'t>(Text<'t>, Text<'t>);

impl<'t> VisitPair for Print<'t> {
    type Out = Text<'t>;

    fn numbers<F: PairFormula>(self) -> Text<'t> {
        F::of(self.0, self.1)
    }

    fn bits<F: BitFormula>(self) -> Text<'t> {
        F::of(self.0, self.1)
    }

    fn test<F: PairTest>(self) -> Text<'t> {
        F::of(self.0, self.1)
    }
}

/// What was printed of a function.
#[derive(Debug, Default)]
struct Lines {
    /// Values by their number, as they are written where they are used.
    names: Vec<String>,
    text: String,
}

impl Lines {
    fn name(&mut self, name: String) -> usize {
        self.names.push(name);
        self.names.len() - 1
    }
}

/// A value that is printed.
#[derive(Clone, Copy)]
struct Text<'t> {
    lines: &'t RefCell<Lines>,
    id: usize,
}

impl Text<'_> {
    /// The value of an expression, `{}` of which are this value, `b` and others.
    fn with(self, others: &[Self], write: impl Fn(&[&str]) -> String) -> Self {
        let mut lines = self.lines.borrow_mut();
        let id = lines.names.len();
        let names: Vec<&str> =
            std::iter::once(&self).chain(others).map(|value| lines.names[value.id].as_str()).collect();
        let line = format!("        EXACT C v{id} = {};\n", write(&names));
        lines.text.push_str(&line);
        Text { id: lines.name(format!("v{id}")), ..self }
    }

    fn call(self, function: &str, b: Self) -> Self {
        self.with(&[b], |v| format!("{function}({}, {})", v[0], v[1]))
    }

    fn infix(self, operator: &str, b: Self) -> Self {
        self.with(&[b], |v| format!("{} {operator} {}", v[0], v[1]))
    }
}

/// The comparison of two values.
fn comparison(test: CompareOp, a: &str, b: &str) -> String {
    let operator = match test {
        CompareOp::Less => "<",
        CompareOp::LessEqual => "<=",
        CompareOp::Greater => ">",
        CompareOp::GreaterEqual => ">=",
        CompareOp::Equal => "==",
        CompareOp::NotEqual => "!=",
        CompareOp::Unordered => return format!("(no_number({a}) || no_number({b}))"),
    };
    format!("({a} {operator} {b})")
}

impl Plain for Text<'_> {
    /// The name of an expression that is `true` or `false`.
    type Truth = Self;

    fn number(self, value: f64) -> Self {
        let is_whole = value.fract() == 0.0 && !(value == 0.0 && value.is_sign_negative());
        let number = if is_whole { format!("C({value:.0})") } else { format!("C({value:?})") };
        Text { id: self.lines.borrow_mut().name(number), ..self }
    }

    fn abs(self) -> Self {
        self.with(&[], |v| format!("abs({})", v[0]))
    }

    fn binary(self, op: BinaryOp, b: Self) -> Self {
        match op {
            BinaryOp::Add => self.infix("+", b),
            BinaryOp::Sub => self.infix("-", b),
            BinaryOp::Mul => self.infix("*", b),
            BinaryOp::Div => self.call("quotient", b),
            BinaryOp::Min => {
                self.with(&[b], |v| format!("{0} <= {1} || no_number({0}) ? {0} : {1}", v[0], v[1]))
            }
            BinaryOp::Max => {
                self.with(&[b], |v| format!("{0} >= {1} || no_number({0}) ? {0} : {1}", v[0], v[1]))
            }
            BinaryOp::AtLeast => self.with(&[b], |v| format!("{0} < {1} ? {1} : {0}", v[0], v[1])),
            BinaryOp::AtMost => self.with(&[b], |v| format!("{0} > {1} ? {1} : {0}", v[0], v[1])),
            BinaryOp::Pow => self.power(b),
        }
    }

    fn select(self, test: CompareOp, b: Self, then: Self, otherwise: Self) -> Self {
        self.with(&[b, then, otherwise], |v| {
            format!("{} ? {} : {}", comparison(test, v[0], v[1]), v[2], v[3])
        })
    }

    fn holds(self, test: CompareOp, b: Self) -> Self {
        let mut lines = self.lines.borrow_mut();
        let holds = comparison(test, &lines.names[self.id], &lines.names[b.id]);
        Text { id: lines.name(holds), ..self }
    }
}

impl Arithmetic for Text<'_> {
    fn remainder(self, b: Self) -> Self {
        self.call("remainder", b)
    }

    fn power(self, b: Self) -> Self {
        self.call("power", b)
    }
}

impl Bits for Text<'_> {
    fn and(self, b: Self) -> Self {
        self.infix("&", b)
    }

    fn or(self, b: Self) -> Self {
        self.infix("|", b)
    }

    fn xor(self, b: Self) -> Self {
        self.infix("^", b)
    }

    fn shift_left(self, b: Self) -> Self {
        self.call("shift_left", b)
    }

    fn shift_right(self, b: Self) -> Self {
        self.call("shift_right", b)
    }
}

impl Neg for Text<'_> {
    type Output = Self;

    fn neg(self) -> Self {
        self.with(&[], |v| format!("-{}", v[0]))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident)*) => {$(
        impl $trait for Text<'_> {
            type Output = Self;

            fn $method(self, b: Self) -> Self {
                self.binary(BinaryOp::$trait, b)
            }
        }

        impl $trait<f64> for Text<'_> {
            type Output = Self;

            fn $method(self, b: f64) -> Self {
                self.binary(BinaryOp::$trait, self.number(b))
            }
        }
    )*};
}

operators!(Add add Sub sub Mul mul);
