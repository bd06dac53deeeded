//! The kernels that ship, in OpenCL C.

use super::Requires;
use super::table::KERNELS;
use crate::spirv::opencl_c::{OpenClError, OpenClImages, OpenClOptions, Planes, TexelFormats, translate};
use crate::spirv::{BindingKind, ScalarType};

/// Features of kernels of the table that have no translation.
fn untranslated() -> Requires {
    [
        Requires::SUBGROUP_BASIC,
        Requires::SUBGROUP_VOTE,
        Requires::SUBGROUP_ARITHMETIC,
        Requires::SUBGROUP_BALLOT,
        Requires::SUBGROUP_SHUFFLE,
        Requires::SUBGROUP_SHUFFLE_RELATIVE,
        Requires::SUBGROUP_CLUSTERED,
        Requires::SUBGROUP_QUAD,
        Requires::COOPERATIVE_MATRIX,
        Requires::COOPERATIVE_MATRIX_2,
        Requires::BFLOAT16,
        Requires::DOT_PRODUCT,
    ]
    .into_iter()
    .fold(Requires::NONE, Requires::union)
}

#[test]
fn every_kernel_translates_or_is_refused_for_what_it_requires() {
    let (mut translated, mut refused) = (0, Vec::new());
    for info in &KERNELS {
        let other: Vec<(u32, u32)> =
            info.spec.iter().map(|constant| (constant.id, constant.default_bits as u32 + 1)).collect();
        let none = OpenClImages::default();
        let with = |planes| OpenClImages { texels: TexelFormats::ALL, planes };
        for (fp16, spec, images) in [
            (false, &[][..], none),
            (true, &[], none),
            (false, &other, none),
            (false, &[], with(Planes::Lines)),
            (true, &other, with(Planes::Images)),
        ] {
            let options = OpenClOptions { spec, fp16, fp64: true, images, ..OpenClOptions::default() };
            let kernel = match translate(info.spirv(), &options) {
                Ok(kernel) => kernel,
                Err(error) => {
                    let lacking = info.requires.missing(untranslated()) != info.requires;
                    // Images, and texels of halves, are for devices that have images.
                    let texels = images == none
                        && info.bindings.iter().any(|binding| {
                            let half = binding.element.is_some_and(|e| e.scalar == Some(ScalarType::F16));
                            match binding.kind {
                                BindingKind::StorageBuffer | BindingKind::UniformBuffer => false,
                                BindingKind::StorageTexelBuffer | BindingKind::UniformTexelBuffer => half,
                                BindingKind::SampledImage | BindingKind::StorageImage => true,
                            }
                        });
                    assert!(lacking || texels, "{}: {error}", info.name);
                    refused.push(format!("{}: {error}", info.name));
                    continue;
                }
            };
            translated += 1;
            if spec.is_empty() {
                assert_eq!(kernel.local_size, info.local_size, "{}", info.name);
            }
            assert_eq!(kernel.params_bytes, info.params_bytes.next_multiple_of(4), "{}", info.name);
            let args: Vec<_> = kernel.args.iter().map(|arg| (arg.binding, arg.access, arg.kind)).collect();
            let bindings: Vec<_> = info.bindings.iter().map(|b| (b.binding, b.access, b.kind)).collect();
            assert_eq!(args, bindings, "{}", info.name);
            let needs = kernel.requires;
            assert_eq!(needs.contains(Requires::FLOAT64), info.requires.contains(Requires::FLOAT64));
            assert!(fp16 || !needs.contains(Requires::FLOAT16), "{}", info.name);
            assert_eq!(translate(info.spirv(), &options).unwrap(), kernel, "{}", info.name);
        }
    }
    println!("{translated} sources from {} kernels; refused: {refused:#?}", KERNELS.len());
    assert_eq!(translated + refused.len(), 5 * KERNELS.len());
    assert!(translated > 1500);
}

#[test]
fn double_precision_is_asked_for() {
    for info in &KERNELS {
        let doubles = info.requires.contains(Requires::FLOAT64);
        let found = translate(info.spirv(), &OpenClOptions::default());
        let missing = Requires::FLOAT64;
        assert_eq!(found == Err(OpenClError::Requires { missing }), doubles, "{}", info.name);
    }
}
