//! Functions of the table as GLSL, for kernels that are compiled when the crate is built.

use std::fmt::Write;

use super::device::device_form;
use super::functions::Function;
use super::pointwise::{BinaryOp, CompareOp, Expr, ExprId, Indexing, PointwiseDesc, PointwiseError, UnaryOp};

/// The include file of the functions of floats: `f_<name>(x, a, b)` with as many parameters as the function has, the
/// number `FN_<NAME>` of each, and `activate(x, code, a, b)`, which chooses among epilogues ([`Function::is_epilogue`]) by
/// that number; where `FUNCTIONS_OF_GATES` is defined, among all of them.
///
/// # Errors
/// None where the table is sound.
pub fn include_file() -> Result<String, PointwiseError> {
    let mut text = String::from(HEAD);
    let floats: Vec<Function> = Function::ALL.iter().copied().filter(|f| f.is_of_floats()).collect();
    for function in &floats {
        let _ = writeln!(text, "#define FN_{} {}u", upper(*function), code(*function));
    }
    for op in UnaryOp::ALL {
        if let Some(name) = function_of_ours(op) {
            text.push('\n');
            print_own(&mut text, op, name)?;
        }
    }
    for function in &floats {
        text.push('\n');
        print(&mut text, *function)?;
    }
    text.push_str("\nfloat activate(float x, uint code, float a, float b)\n{\n    switch (code) {\n");
    for of_all in [true, false] {
        for function in floats.iter().filter(|f| f.is_epilogue() == of_all) {
            let arguments = ["x", "x, a", "x, a, b"][function.row().parameters.len().min(2)];
            let (name, call) = (upper(*function), lower(*function));
            let _ = writeln!(text, "    case FN_{name}: return f_{call}({arguments});");
        }
        text.push_str(if of_all { "#ifdef FUNCTIONS_OF_GATES\n" } else { "#endif\n" });
    }
    text.push_str("    default: return x;\n    }\n}\n\n#endif\n");
    Ok(text)
}

const HEAD: &str = "// Made by the build from the table of functions.
#ifndef ONEPOOL_FUNCTIONS_GLSL
#define ONEPOOL_FUNCTIONS_GLSL

#include \"math.glsl\"

";

/// The number that stands for `function` in kernels; 0 stands for none.
pub fn code(function: Function) -> u32 {
    function as u32 + 1
}

/// The name with words apart, in small letters.
fn lower(function: Function) -> String {
    let name = format!("{function:?}");
    let mut text = String::new();
    for (at, c) in name.chars().enumerate() {
        if at > 0 && c.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

fn upper(function: Function) -> String {
    lower(function).to_ascii_uppercase()
}

/// Prints `function` of `x` and its parameters. Nothing is contracted, so that it gives the same bits wherever it stands.
fn print(text: &mut String, function: Function) -> Result<(), PointwiseError> {
    let mut desc = PointwiseDesc::new([Indexing::Full; 3]);
    let [x, a, b] = [desc.input(0)?, desc.input(1)?, desc.input(2)?];
    let y = function.build_with(&mut desc, x, [a, b]);
    desc.output(y)?;
    let parameters = ["", ", float a", ", float a, float b"][function.row().parameters.len().min(2)];
    let _ = writeln!(text, "float f_{}(float x{parameters})", lower(function));
    body(text, &Printer::new(&desc, function_of_ours));
    Ok(())
}

/// Prints a function that devices lack, in operations that they have.
fn print_own(text: &mut String, op: UnaryOp, name: &str) -> Result<(), PointwiseError> {
    let mut desc = PointwiseDesc::new([Indexing::Full]);
    let x = desc.input(0)?;
    let y = desc.unary(op, x)?;
    desc.output(y)?;
    let _ = writeln!(text, "float {name}(float x)");
    body(text, &Printer::new(&device_form(&desc), |_| None));
    Ok(())
}

fn body(text: &mut String, printer: &Printer<'_>) {
    text.push_str("{\n");
    let desc = printer.desc;
    for (at, expr) in desc.exprs().iter().enumerate().filter(|(at, _)| printer.named[*at]) {
        let _ = writeln!(text, "    precise float v{at} = {};", printer.value(*expr));
    }
    for output in desc.outputs() {
        let _ = writeln!(text, "    return {};", printer.operand(*output));
    }
    text.push_str("}\n");
}

/// Prints the values of a description.
struct Printer<'d> {
    desc: &'d PointwiseDesc,
    /// Which values have variables: those that are used more than once, and arguments of functions of ours, which the
    /// compiler does not see through for `precise`.
    named: Vec<bool>,
    /// The function of ours that stands for one of one value, where one does.
    own: fn(UnaryOp) -> Option<&'static str>,
}

impl<'d> Printer<'d> {
    fn new(desc: &'d PointwiseDesc, own: fn(UnaryOp) -> Option<&'static str>) -> Self {
        let (live, mut uses) = (desc.live(), vec![0; desc.exprs().len()]);
        desc.outputs().iter().for_each(|output| uses[output.index()] += 2);
        for (expr, _) in desc.exprs().iter().zip(&live).filter(|(_, live)| **live) {
            let each = match expr {
                Expr::Unary(op, _) if own(*op).is_some() => 2,
                Expr::Binary(BinaryOp::Min | BinaryOp::Max | BinaryOp::AtLeast | BinaryOp::AtMost, ..)
                | Expr::Select { test: CompareOp::Unordered, .. } => 2,
                _ => 1,
            };
            expr.operands().for_each(|operand| uses[operand.index()] += each);
        }
        let is_leaf = |expr: &Expr| matches!(expr, Expr::Input(_) | Expr::Const(_));
        let named = desc.exprs().iter().zip(uses).map(|(expr, uses)| uses > 1 && !is_leaf(expr)).collect();
        Printer { desc, named, own }
    }

    /// An expression where it is used.
    fn operand(&self, id: ExprId) -> String {
        match self.desc.exprs()[id.index()] {
            Expr::Input(input) => ["x", "a", "b"][input.min(2)].to_owned(),
            Expr::Const(value) if value.is_finite() => format!("{value:?}"),
            Expr::Const(value) => format!("uintBitsToFloat({:#x}u)", value.to_bits()),
            _ if self.named[id.index()] => format!("v{}", id.index()),
            expr => format!("({})", self.value(expr)),
        }
    }

    /// What an expression computes.
    fn value(&self, expr: Expr) -> String {
        match expr {
            Expr::Input(input) => ["x", "a", "b"][input.min(2)].to_owned(),
            Expr::Const(value) => format!("{value:?}"),
            Expr::Unary(UnaryOp::Neg, a) => format!("-({})", self.operand(a)),
            Expr::Unary(op, a) => {
                format!("{}({})", (self.own)(op).unwrap_or(unary(op)), self.operand(a))
            }
            Expr::Binary(op, a, b) => {
                let (a, b) = (self.operand(a), self.operand(b));
                match op {
                    BinaryOp::Add => format!("{a} + {b}"),
                    BinaryOp::Sub => format!("{a} - {b}"),
                    BinaryOp::Mul => format!("{a} * {b}"),
                    BinaryOp::Div => format!("{a} / {b}"),
                    BinaryOp::Min => format!("{a} <= {b} || is_nan({a}) ? {a} : {b}"),
                    BinaryOp::Max => format!("{a} >= {b} || is_nan({a}) ? {a} : {b}"),
                    BinaryOp::AtLeast => format!("at_least({a}, {b})"),
                    BinaryOp::AtMost => format!("at_most({a}, {b})"),
                    BinaryOp::Pow => format!("pow({a}, {b})"),
                }
            }
            Expr::Select { test, a, b, then, otherwise } => {
                let (a, b) = (self.operand(a), self.operand(b));
                let holds = match test {
                    CompareOp::Less => format!("{a} < {b}"),
                    CompareOp::LessEqual => format!("{a} <= {b}"),
                    CompareOp::Greater => format!("{a} > {b}"),
                    CompareOp::GreaterEqual => format!("{a} >= {b}"),
                    CompareOp::Equal => format!("{a} == {b}"),
                    CompareOp::NotEqual => format!("{a} != {b}"),
                    CompareOp::Unordered => format!("is_nan({a}) || is_nan({b})"),
                };
                // Both are computed, so that a device need not branch.
                format!("mix({}, {}, {holds})", self.operand(otherwise), self.operand(then))
            }
        }
    }
}

/// The name of a function that devices lack, or have with too large an error.
fn function_of_ours(op: UnaryOp) -> Option<&'static str> {
    Some(match op {
        UnaryOp::Neg
        | UnaryOp::Abs
        | UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::Round
        | UnaryOp::Sqrt
        | UnaryOp::Exp => return None,
        UnaryOp::Log => "own_log",
        UnaryOp::Expm1 => "own_expm1",
        UnaryOp::Sigmoid => "own_sigmoid",
        UnaryOp::Softplus => "own_softplus",
        UnaryOp::Erf => "own_erf",
        UnaryOp::NormalCdf => "own_normal_cdf",
        UnaryOp::Sin => "own_sin",
        UnaryOp::Cos => "own_cos",
        UnaryOp::Tan => "own_tan",
        UnaryOp::Asin => "own_asin",
        UnaryOp::Acos => "own_acos",
        UnaryOp::Atan => "own_atan",
        UnaryOp::Sinh => "own_sinh",
        UnaryOp::Cosh => "own_cosh",
        UnaryOp::Tanh => "own_tanh",
        UnaryOp::Asinh => "own_asinh",
        UnaryOp::Acosh => "own_acosh",
        UnaryOp::Atanh => "own_atanh",
    })
}

/// The function of GLSL; those that devices lack are not in their form.
fn unary(op: UnaryOp) -> &'static str {
    match op {
        UnaryOp::Abs => "abs",
        UnaryOp::Floor => "floor",
        UnaryOp::Ceil => "ceil",
        UnaryOp::Round => "roundEven",
        UnaryOp::Sqrt => "sqrt",
        UnaryOp::Exp => "exp",
        UnaryOp::Log => "log",
        UnaryOp::Sin => "sin",
        UnaryOp::Cos => "cos",
        UnaryOp::Tan => "tan",
        _ => "no_function_of_devices",
    }
}
