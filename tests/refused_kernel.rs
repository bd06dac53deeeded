//! A driver that reports cooperative matrices and does not build the kernels that use them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![cfg(feature = "vulkan")]

#[path = "support/disguise.rs"]
mod disguise;

use std::sync::Arc;

use onepool::backend::vulkan::VulkanDriver;
use onepool::backend::{ContextDesc, Driver};
use onepool::device::Context;
use onepool::ops::Operator;
use onepool::ops::linalg::MatMul;
use onepool::{DType, GraphBuilder, Session, Tensor};

use self::disguise::Disguised;

#[test]
fn a_refused_kernel_is_replaced_and_reported() {
    let driver = VulkanDriver::default();
    let real = match driver.open(0, &ContextDesc { validation: true, ..ContextDesc::default() }) {
        Ok(real) => real,
        Err(error) => {
            let required = std::env::var("REQUIRE_BACKENDS").is_ok_and(|v| v.contains("vulkan"));
            assert!(!required, "there is no device: {error}");
            return eprintln!("not tested: {error}");
        }
    };
    let disguised = Disguised::with_matrices(real, |_| {});
    let context = Context::new(Arc::new(disguised.refusing("gemm_matrix_f16")));

    let mut g = GraphBuilder::new("product");
    let a = g.input("a", DType::F16, [128.into(), 32.into()]);
    let b = g.input("b", DType::F16, [32.into(), 128.into()]);
    let product: Arc<dyn Operator> = Arc::new(MatMul::default());
    let y = g.op(product, &[a, b]);
    g.output("y", y);
    let mut session = Session::builder().graph(g.build().unwrap()).context(context.clone()).build().unwrap();
    let ones = vec![half::f16::ONE; 128 * 32];
    session.set_input("a", &Tensor::new([128, 32], &ones).unwrap()).unwrap();
    session.set_input("b", &Tensor::new([32, 128], &ones).unwrap()).unwrap();
    session.run().unwrap();
    let y = session.get_output("y").unwrap();
    assert!(y.as_slice::<half::f16>().unwrap().iter().all(|v| v.to_f32() == 32.0));
    let plan = session.binding().unwrap().plan();
    let [remark] = &plan.report.remarks[..] else { panic!("{:?}", plan.report.remarks) };
    assert!(remark.contains("cooperative matri") && remark.contains("gemm_matrix_f16"), "{remark}");
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}
