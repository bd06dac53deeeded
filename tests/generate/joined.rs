//! On devices that launch kernels, normalizations and residual sums are parts of products of few rows: the tokens are those of
//! onnxruntime all the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use onepool::backend::opencl::OpenClDriver;
use onepool::backend::vulkan::VulkanDriver;
use onepool::backend::{ContextBackend, ContextDesc, DeviceKind, Driver};
use onepool::device::Context;
use onepool::{DType, Session, Shape, TensorInfo};

use crate::disguise::Disguised;
use crate::{exactly, expected, folder, generate, open};

/// The devices as ones that read plain buffers.
fn devices() -> Vec<Context> {
    let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
    let desc = ContextDesc { validation: true, ..ContextDesc::default() };
    let drivers: [(&str, Box<dyn Driver>); 2] =
        [("vulkan", Box::new(VulkanDriver::default())), ("opencl", Box::new(OpenClDriver))];
    let open = |(name, driver): (&str, Box<dyn Driver>)| match driver.open(0, &desc) {
        Ok(real) => Some(real),
        Err(error) => {
            assert!(!required.contains(name), "there is no device: {error}");
            eprintln!("not tested: {error}");
            None
        }
    };
    let disguised = |real: Arc<dyn ContextBackend>| {
        Context::new(Arc::new(Disguised::new(real, |info| {
            (info.kind, info.prefers_texels) = (DeviceKind::Integrated, false);
        })))
    };
    drivers.into_iter().filter_map(open).map(disguised).collect()
}

/// How many nodes of each operator a run of `tokens` tokens has.
fn operators(session: &Session, tokens: usize) -> BTreeMap<&'static str, usize> {
    let info = |dtype, dims: &[usize]| TensorInfo::new(dtype, Shape::new(dims.to_vec()).unwrap());
    let mut infos = vec![info(DType::I64, &[1, tokens]), info(DType::I64, &[1, 32])];
    infos.extend((0..4).map(|_| info(DType::F32, &[1, 2, 32, 16])));
    let mut counts = BTreeMap::new();
    for node in session.plan(&infos).unwrap().report.nodes {
        *counts.entry(node.op).or_default() += 1;
    }
    counts
}

#[test]
fn tokens_are_the_same_where_products_have_the_norms_and_sums() {
    for context in devices() {
        let name = context.info().name.clone();
        let mut generator = open(&folder("fixed"), &context, None).unwrap();
        let few = operators(generator.session(), 1);
        // Of two layers the products of queries, keys and values, those with a gate, and those before a sum; and the head.
        let count = |op: &str| few.get(op).copied().unwrap_or(0);
        assert_eq!(
            ["NormedNBits", "NormedGatedNBits", "SummedNBits"].map(count),
            [3, 2, 4],
            "{name}: {few:?}"
        );
        assert!(!few.keys().any(|op| op.ends_with("Normalization")), "{name}: {few:?}");
        let many = operators(generator.session(), 9);
        assert_eq!(many.get("SkipSimplifiedLayerNormalization"), Some(&4), "{name}: {many:?}");
        for case in expected("fixed") {
            let made = generate(&mut generator, &case.prompt, &exactly(case.tokens.len()));
            assert_eq!(made.tokens, case.tokens, "{name}, after {:?}", case.prompt);
        }
        assert_eq!(context.validation_messages(), Vec::<String>::new());
    }
}
