//! The crate's own table of functions, from which the include file of GLSL is printed.

#[path = "../src/expr/device.rs"]
pub mod device;
#[path = "../src/expr/functions.rs"]
pub mod functions;
#[path = "../src/expr/glsl.rs"]
pub mod glsl;
#[path = "../src/expr/pointwise.rs"]
pub mod pointwise;
#[path = "../src/expr/row.rs"]
pub mod row;
#[path = "../src/expr/text.rs"]
pub mod text;
#[path = "../src/expr/value.rs"]
pub mod value;

/// Stands for the loops of the CPU, which a build does not run.
pub mod loops {
    use super::functions::{FloatFormula, NumberFormula, TestFormula};

    /// None.
    #[derive(Clone, Copy, Debug)]
    pub struct Loops;

    impl Loops {
        pub(super) const fn floats<F: FloatFormula>() -> Self {
            Loops
        }

        pub(super) const fn numbers<F: NumberFormula>() -> Self {
            Loops
        }
    }

    /// None.
    #[derive(Clone, Copy, Debug)]
    pub struct TestLoops;

    impl TestLoops {
        pub(super) const fn of<F: TestFormula>() -> Self {
            TestLoops
        }
    }
}
