//! What a row of the table says in addition to its formula, and how rows are read.

/// Which element types a function takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Types {
    /// Floating point.
    Floats,
    /// Floating point and integers.
    Numbers,
    /// Numbers with a sign.
    Signed,
    /// Integers.
    Integers,
    /// Truth values, as bytes 0 and 1.
    Bool,
    /// Every type.
    Any,
}

/// A parameter of a function: ONNX's attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its value where none is given.
    pub default: f32,
}

/// The operator that a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorName {
    /// The domain; empty for ONNX's own.
    pub domain: &'static str,
    /// The first version.
    pub since: i64,
}

/// How an operator takes part where a graph of `float32` computes in `float16`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HalfRule {
    /// It computes in `float16` where its kernels can.
    #[default]
    Half,
    /// As [`HalfRule::Half`]; masks are made and added with it, so that of a number beyond the range it matters only that
    /// it is large.
    Mask,
    /// It stays in `float32`: its results or sums leave the range of `float16` (6e-8 to 65504) where its inputs are well
    /// inside, or it converts and would round integers.
    Full,
}

/// One column of a row.
macro_rules! column {
    (@operator []) => { None };
    (@operator [$since:literal]) => { Some(OperatorName { domain: "", since: $since }) };
    (@operator [$domain:literal $since:literal]) => { Some(OperatorName { domain: $domain, since: $since }) };
    (@name $id:ident) => { stringify!($id) };
    (@name $id:ident $name:literal) => { $name };
    (@half) => { HalfRule::Half };
    (@half full $($flag:ident)*) => { HalfRule::Full };
    (@half mask $($flag:ident)*) => { HalfRule::Mask };
    (@half $other:ident $($flag:ident)*) => { column!(@half $($flag)*) };
    (@types FLOATS) => { Types::Floats };
    (@types NUMBERS) => { Types::Numbers };
    (@types SIGNED) => { Types::Signed };
    (@types INTEGERS) => { Types::Integers };
    (@types BOOL) => { Types::Bool };
    (@types ANY) => { Types::Any };
}

/// The functions of one element.
macro_rules! functions {
    (@formula FLOATS $id:ident ($x:ident $($p:ident)*) $body:expr) => {
        impl FloatFormula for $id { functions!(@of Value ($x $($p)*) $body); }
    };
    (@formula $types:ident $id:ident ($x:ident $($p:ident)*) $body:expr) => {
        impl NumberFormula for $id { functions!(@of Plain ($x $($p)*) $body); }
    };
    (@of $bound:ident ($x:ident $($p:ident)*) $body:expr) => {
        #[inline(always)]
        fn of<V: $bound>($x: V, _p: [V; 2]) -> V {
            $(let ($p, _p) = (_p[0], [_p[1], _p[0]]);)*
            $body
        }
    };
    (@loops FLOATS $id:ident $($p:ident)*) => { Loops::floats::<formulas::$id>() };
    (@loops $types:ident $id:ident) => { Loops::numbers::<formulas::$id>() };
    (@loops $types:ident $id:ident $($p:ident)+) => { Loops::numbers_with_parameters::<formulas::$id>() };
    ($(
        $id:ident $(= $name:literal)? ($x:ident $(, $p:ident = $default:expr)*) [$($operator:literal)*] $($flag:ident)*, $types:ident
            => $body:expr;
    )*) => {
        /// A function of one element.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Function {
            $(
                #[doc = concat!("`", stringify!($body), "`")]
                $id,
            )*
        }

        /// Each formula of one element as a type.
        mod formulas {
            use super::*;
            $(
                pub(super) struct $id;
                functions!(@formula $types $id ($x $($p)*) $body);
            )*
        }

        impl Function {
            /// Every function, in the order of their numbers.
            pub const ALL: &[Function] = &[$(Function::$id),*];
        }

        const ROWS: &[Row] = &[$(
            Row {
                function: Function::$id,
                name: column!(@name $id $($name)?),
                operator: column!(@operator [$($operator)*]),
                half: column!(@half $($flag)*),
                types: column!(@types $types),
                parameters: &[$(Parameter { name: stringify!($p), default: $default }),*],
                write: |x, p| <formulas::$id as FloatFormula>::of(x, p),
                loops: functions!(@loops $types $id $($p)*),
            },
        )*];
    };
}

/// The functions of two elements.
macro_rules! functions_of_two {
    (@formula fused $id:ident ($a:ident $b:ident) $body:expr) => {
        impl FusedFormula for $id {
            #[inline(always)]
            fn of<V: Plain>($a: V, $b: V) -> V {
                $body
            }
        }
    };
    (@formula alone $id:ident ($a:ident $b:ident) $body:expr) => {
        impl PairFormula for $id {
            #[inline(always)]
            fn of<V: Arithmetic>($a: V, $b: V) -> V {
                $body
            }
        }
    };
    (@formula bits $id:ident ($a:ident $b:ident) $body:expr) => {
        impl BitFormula for $id {
            #[inline(always)]
            fn of<V: Bits>($a: V, $b: V) -> V {
                $body
            }
        }
    };
    (@formula test $id:ident ($a:ident $b:ident) $body:expr) => {
        impl PairTest for $id {
            #[inline(always)]
            fn of<V: Plain>($a: V, $b: V) -> V::Truth {
                $body
            }
        }
    };
    (@kind fused $id:ident) => { Kind::Fused(|a, b| <pairs::$id as FusedFormula>::of(a, b)) };
    (@kind alone $id:ident) => { Kind::Alone };
    (@kind bits $id:ident) => { Kind::Bits };
    (@kind test $id:ident) => { Kind::Test };
    (@visit fused $visit:ident $id:ident) => { $visit.numbers::<pairs::$id>() };
    (@visit alone $visit:ident $id:ident) => { $visit.numbers::<pairs::$id>() };
    (@visit bits $visit:ident $id:ident) => { $visit.bits::<pairs::$id>() };
    (@visit test $visit:ident $id:ident) => { $visit.test::<pairs::$id>() };
    ($(
        $id:ident $(= $name:literal)? ($a:ident, $b:ident) [$($operator:literal)*] $($flag:ident)*, $types:ident $kind:ident
            => $body:expr;
    )*) => {
        /// A function of two elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum BinaryFunction {
            $(
                #[doc = concat!("`", stringify!($body), "`")]
                $id,
            )*
        }

        /// Each formula of two elements as a type.
        pub mod pairs {
            use super::*;
            $(
                #[doc = concat!("`", stringify!($body), "`")]
                #[derive(Clone, Copy, Debug)]
                pub struct $id;
                functions_of_two!(@formula $kind $id ($a $b) $body);
            )*
        }

        impl BinaryFunction {
            /// Every function, in the order of their numbers.
            pub const ALL: &[BinaryFunction] = &[$(BinaryFunction::$id),*];

            /// What `visit` does for its formula.
            pub fn visit<V: VisitPair>(self, visit: V) -> V::Out {
                match self {
                    $(BinaryFunction::$id => functions_of_two!(@visit $kind visit $id),)*
                }
            }
        }

        const PAIRS: &[BinaryRow] = &[$(
            BinaryRow {
                function: BinaryFunction::$id,
                name: column!(@name $id $($name)?),
                operator: column!(@operator [$($operator)*]),
                half: column!(@half $($flag)*),
                types: column!(@types $types),
                kind: functions_of_two!(@kind $kind $id),
            },
        )*];
    };
}

/// The questions about one element.
macro_rules! tests_of_one {
    ($(
        $id:ident ($x:ident $(, $p:ident = $default:expr)*) [$since:literal] => $body:expr;
    )*) => {
        /// A question about one float.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ElementTest {
            $(
                #[doc = concat!("`", stringify!($body), "`")]
                $id,
            )*
        }

        /// Each question as a type.
        mod questions {
            use super::*;
            $(
                pub(super) struct $id;
                impl TestFormula for $id {
                    #[inline(always)]
                    fn of<V: Value>($x: V, _p: [V; 2]) -> V::Truth {
                        $(let ($p, _p) = (_p[0], [_p[1], _p[0]]);)*
                        $body
                    }
                }
            )*
        }

        impl ElementTest {
            /// Every question.
            pub const ALL: &[ElementTest] = &[$(ElementTest::$id),*];
        }

        const TESTS: &[TestRow] = &[$(
            TestRow {
                name: stringify!($id),
                since: $since,
                parameters: &[$(Parameter { name: stringify!($p), default: $default }),*],
                write: |x, p| <questions::$id as TestFormula>::of(x, p),
                loops: TestLoops::of::<questions::$id>(),
            },
        )*];
    };
}

pub(super) use {column, functions, functions_of_two, tests_of_one};
