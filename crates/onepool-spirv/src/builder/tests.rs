//! What kernels that are built hold.

use std::io::Write;
use std::process::{Command, Stdio};

use super::super::{BindingAccess, BindingKind, check_module, reflect};
use super::*;
use onepool_expr::{Function, Indexing};

/// Every operand at its own place, vectors or not.
fn plain(desc: &PointwiseDesc, lanes: u32) -> KernelLayout {
    let fetch = |indexing: &Indexing| match indexing.terms() {
        _ if *indexing == Indexing::Full => Fetch::Full,
        0 => Fetch::One(Walk { terms: 0, wraps: false }),
        terms if lanes == 4 => Fetch::Each(Walk { terms, wraps: true }),
        terms => Fetch::One(Walk { terms, wraps: true }),
    };
    KernelLayout {
        element: ScalarType::F32,
        lanes,
        texels: false,
        tests: false,
        inputs: desc.inputs().iter().map(fetch).collect(),
    }
}

fn build(desc: &PointwiseDesc, lanes: u32) -> Vec<u32> {
    build_pointwise(desc, &plain(desc, lanes)).unwrap()
}

/// `relu(a * b + c)` where `b` is a row and `c` a scalar, and `a + b` as a second output.
fn sample() -> PointwiseDesc {
    let row = Indexing::Broadcast { terms: 2 };
    let mut desc = PointwiseDesc::new([Indexing::Full, row, Indexing::Broadcast { terms: 0 }]);
    let [a, b, c] = [0, 1, 2].map(|at| desc.input(at).unwrap());
    let product = desc.binary(BinaryOp::Mul, a, b).unwrap();
    let sum = desc.binary(BinaryOp::Add, product, c).unwrap();
    let relu = Function::Relu.build(&mut desc, sum, [0.0; 2]).unwrap();
    let plain = desc.binary(BinaryOp::Add, a, b).unwrap();
    desc.output(relu).unwrap();
    desc.output(plain).unwrap();
    desc
}

/// Every operation there is, in one kernel.
fn everything() -> PointwiseDesc {
    let mut desc = PointwiseDesc::new([Indexing::Full, Indexing::Full]);
    let [mut x, y] = [0, 1].map(|at| desc.input(at).unwrap());
    for op in UnaryOp::ALL {
        x = desc.unary(op, x).unwrap();
    }
    for op in BinaryOp::ALL {
        x = desc.binary(op, x, y).unwrap();
    }
    for test in CompareOp::ALL {
        let one = desc.compare(test, x, y).unwrap();
        x = desc.select((x, test, y), y, one).unwrap();
    }
    desc.output(x).unwrap();
    desc
}

/// Runs `spirv-val` where it is installed.
fn validate(words: &[u32]) {
    let mut command = Command::new("spirv-val");
    command.args(["--target-env", "vulkan1.1", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else { return };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_built_module_keeps_the_conventions() {
    let words = build(&sample(), 1);
    validate(&words);
    let r = check_module(&words).unwrap();
    assert_eq!((r.version, r.entry_point.as_ref()), ((1, 3), "main"));
    assert_eq!((r.local_size, r.local_size_spec), ([64, 1, 1], [Some(0), None, None]));
    let bindings: Vec<_> = r.bindings.iter().map(|b| (b.set, b.binding, b.kind, b.access)).collect();
    let at = |binding, access| (0, binding, BindingKind::StorageBuffer, access);
    let (read, write) = (BindingAccess::Read, BindingAccess::Write);
    assert_eq!(bindings, [at(0, read), at(1, read), at(2, read), at(3, write), at(4, write)]);
    let params: Vec<_> = r.params.iter().map(|p| (p.name.as_ref(), p.offset_bytes)).collect();
    assert_eq!((params, r.params_bytes), (vec![("n", 0)], 4));
    let spec: Vec<_> = r.spec.iter().map(|s| (s.id, s.name.as_ref())).collect();
    let names = ["local_size_x", "div0", "modulo0", "stride0", "div1", "modulo1", "stride1"];
    assert!(spec.iter().map(|(_, name)| *name).eq(names));
    assert!(spec.iter().enumerate().all(|(at, (id, _))| *id == at as u32));
}

#[test]
fn every_operation_is_valid_in_both_widths_and_through_views() {
    for desc in [everything(), sample()] {
        for lanes in [1, 4] {
            let words = build(&desc, lanes);
            validate(&words);
            assert_eq!(check_module(&words), reflect(&words));
        }
        let words = build_pointwise(&desc, &plain(&desc, 4).with_texels()).unwrap();
        validate(&words);
        let r = check_module(&words).unwrap();
        assert_eq!(
            (r.bindings[0].kind, r.bindings[0].access),
            (BindingKind::UniformTexelBuffer, BindingAccess::Read)
        );
    }
}

#[test]
fn every_element_type_is_valid_in_both_widths() {
    use ScalarType::*;
    let mut desc = PointwiseDesc::new([Indexing::Full, Indexing::Broadcast { terms: 1 }]);
    let [x, y] = [0, 1].map(|at| desc.input(at).unwrap());
    let sum = desc.binary(BinaryOp::Add, x, y).unwrap();
    desc.output(sum).unwrap();
    for element in [F16, F32, I8, I16, I32, U8, U16, U32] {
        for (lanes, tests) in [(1, false), (4, false), (1, true), (4, true)] {
            let words =
                build_pointwise(&desc, &KernelLayout { element, tests, ..plain(&desc, lanes) }).unwrap();
            validate(&words);
            assert_eq!(check_module(&words), reflect(&words), "{element:?} {lanes}");
        }
    }
}

#[test]
fn equal_descriptions_give_equal_words() {
    assert_eq!(build(&everything(), 4), build(&everything(), 4));
    assert_ne!(build(&everything(), 4), build(&everything(), 1));
    assert_ne!(build(&everything(), 1), build(&sample(), 1));
}

#[test]
fn unused_expressions_are_not_built() {
    let mut desc = PointwiseDesc::new([Indexing::Full]);
    let x = desc.input(0).unwrap();
    let y = desc.unary(UnaryOp::Abs, x).unwrap();
    desc.output(y).unwrap();
    let words = build(&desc, 1);
    desc.unary(UnaryOp::Tanh, y).unwrap();
    assert_eq!(build(&desc, 1), words);
}

#[test]
fn what_no_device_can_take_is_refused() {
    let empty = PointwiseDesc::new([]);
    assert_eq!(build_pointwise(&empty, &plain(&empty, 1)), Err(PointwiseError::NoOutputs));
    let mut desc = PointwiseDesc::new([Indexing::Broadcast { terms: 65 }]);
    let x = desc.input(0).unwrap();
    desc.output(x).unwrap();
    let expected = PointwiseError::TooManyTerms { terms: 65, limit: 64 };
    assert_eq!(build_pointwise(&desc, &plain(&desc, 1)), Err(expected));
    let none =
        KernelLayout { element: ScalarType::F32, lanes: 1, texels: false, tests: false, inputs: Vec::new() };
    let error = build_pointwise(&sample(), &none).unwrap_err();
    assert!(matches!(error, PointwiseError::WrongCount { .. }));
}
