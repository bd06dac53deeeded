use super::*;
use crate::graph::Tensor;
use crate::ops::test_util::{assert_near, facts, run_cpu, tensor};

/// The definition: every label runs over its size, and the product is added where the output's labels say.
fn naive(equation: &str, inputs: &[Tensor]) -> Vec<f64> {
    let shapes: Vec<&Shape> = inputs.iter().map(Tensor::shape).collect();
    let views = Equation::parse(equation).unwrap().resolve(&shapes).unwrap();
    let sizes: Vec<usize> = views.sizes.iter().map(|(_, s)| *s).collect();
    let values: Vec<Vec<f32>> = inputs.iter().map(|t| t.to_f32s().unwrap()).collect();
    let mut out = vec![0.0; views.output_sizes().iter().product()];
    for i in 0..sizes.iter().product::<usize>() {
        let mut left = i;
        let at: Vec<usize> = sizes.iter().map(|s| (left % s, left /= s).0).collect();
        let of = |label| at[views.sizes.iter().position(|(l, _)| *l == label).unwrap()];
        let term: f64 = views
            .operands
            .iter()
            .zip(&values)
            .map(|(v, x)| f64::from(x[v.axes.iter().map(|(l, s)| of(*l) * s.unsigned_abs()).sum::<usize>()]))
            .product();
        let to = views.output.iter().fold(0, |to, l| to * views.size(*l) + of(*l));
        out[to] += term;
    }
    out
}

const CASES: &[(&str, &[&[usize]])] = &[
    ("ij->ji", &[&[3, 5]]),
    ("ij->i", &[&[3, 37]]),
    ("ij->", &[&[9, 50]]),
    ("...ii->...i", &[&[2, 5, 5]]),
    ("ii", &[&[7, 7]]),
    ("i,i", &[&[5], &[5]]),
    ("i,j->ij", &[&[5], &[7]]),
    ("ij,jk", &[&[9, 6], &[6, 13]]),
    ("bij, bjk -> bik", &[&[3, 4, 5], &[3, 5, 7]]),
    ("bhid,bhjd->bhij", &[&[2, 3, 5, 8], &[2, 3, 7, 8]]),
    ("bhij,bhjd->bihd", &[&[2, 3, 5, 7], &[2, 3, 7, 4]]),
    ("bij,bjk->bki", &[&[2, 9, 5], &[2, 5, 6]]),
    ("ibnd,jbnd->bnij", &[&[5, 2, 3, 4], &[6, 2, 3, 4]]),
    ("...ij,...jk->...ik", &[&[2, 1, 3, 4], &[5, 4, 6]]),
    ("ik,jkl,il->ij", &[&[3, 4], &[5, 4, 6], &[3, 6]]),
    ("ij,kj->k", &[&[4, 5], &[6, 5]]),
    ("a,b,c->cab", &[&[3], &[4], &[5]]),
    ("iij,jk->ik", &[&[4, 4, 6], &[6, 5]]),
];

#[test]
fn sums_are_those_of_the_definition() {
    for (equation, shapes) in CASES {
        let inputs: Vec<Tensor> = shapes.iter().zip(1..).map(|(s, seed)| tensor(s, seed)).collect();
        let want = naive(equation, &inputs);
        let given: Vec<Option<Tensor>> = inputs.into_iter().map(Some).collect();
        let got = run_cpu(&Einsum::new(equation).unwrap(), &given, 1).unwrap();
        assert_near(&got[0], &want, 1e-5);
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn devices_agree() {
    use crate::ops::test_util::tensor_of;
    use crate::ops::testing::{Check, as_is, no_texels};
    for (equation, shapes) in CASES {
        let op = Einsum::new(equation).unwrap();
        let inputs: Vec<Tensor> = shapes.iter().zip(1..).map(|(s, seed)| tensor(s, seed)).collect();
        let some = |inputs: Vec<Tensor>| inputs.into_iter().map(Some).collect::<Vec<_>>();
        let cast = |t: &Tensor| {
            let v = t.to_f32s().unwrap();
            [
                tensor_of(t.shape(), &v, half::f16::from_f32),
                tensor_of(t.shape(), &v, |v| (v * 1e4) as i32),
                tensor_of(t.shape(), &v, |v| (v * 1e6) as i64),
            ]
        };
        for change in [as_is, no_texels] {
            Check::new(&op, &some(inputs.clone())).pretend(change).tolerance(1e-4).run();
            let wide = inputs.iter().map(|t| tensor_of(t.shape(), &t.to_f32s().unwrap(), f64::from));
            Check::new(&op, &some(wide.collect())).pretend(change).tolerance(1e-12).run();
            for (k, tolerance) in [(0, 1e-2), (1, 0.0), (2, 0.0)] {
                let inputs = some(inputs.iter().map(|t| cast(t)[k].clone()).collect());
                Check::new(&op, &inputs).pretend(change).tolerance(tolerance).run();
            }
        }
    }
}

#[test]
fn bad_equations_and_shapes_are_errors() {
    for equation in ["i1", "i->ii", "i->j", "i.j", "..ij"] {
        assert!(Einsum::new(equation).is_err(), "{equation}");
    }
    let check = |equation: &str, shapes: &[&[usize]]| {
        let inputs: Vec<Option<Tensor>> = shapes.iter().map(|s| Some(tensor(s, 1))).collect();
        facts(&Einsum::new(equation).unwrap(), &inputs, 1)
    };
    assert!(check("ij,jk", &[&[2, 3], &[4, 5]]).is_err());
    assert!(check("ij", &[&[2]]).is_err());
    assert!(check("ij,jk", &[&[2, 3]]).is_err());
    assert!(check("i...", &[&[]]).is_err());
    assert!(check("ij->i", &[&[2, 0]]).is_ok());
    // More terms than there are numbers.
    let info = |dims: &[usize]| {
        let info = crate::graph::TensorInfo::new(crate::dtype::DType::F32, Shape::new(dims).unwrap());
        Some(crate::ops::Fact::of(info))
    };
    let huge = || OpCx::for_infer(vec![info(&[1 << 58]), info(&[1 << 58])], 1);
    let op = Einsum::new("i,j->").unwrap();
    let cx = huge().with_outputs(op.infer(&huge()).unwrap());
    assert_eq!(op.cost(&cx).flops, u64::MAX);
}
