//! What the library reads in kernels that use the features of a device.

use std::path::Path;
use std::process::Command;

use onepool::kernel::{KernelId, Requires};
use onepool::spirv::{
    BindingAccess, BindingKind, PART_BYTES, PartForm, Reflection, ScalarType, SpirvErrorKind, check_module,
    reflect, shared_bytes,
};

use super::{Project, shader};

/// Builds one kernel, checks it and reflects it.
fn built(text: &str) -> Reflection {
    built_words(text).0
}

fn built_words(text: &str) -> (Reflection, Vec<u32>) {
    let project = Project::new(&[("copy/k.comp", text)]);
    project.build().unwrap();
    let words = project.only_module();
    let reflection = check_module(&words).unwrap();
    assert_eq!(reflect(&words).unwrap(), reflection);
    validate(&project.modules()[0].1, reflection.version);
    (reflection, words)
}

/// Runs `spirv-val` where it is installed; a version that does not know a capability proves nothing.
fn validate(path: &Path, version: (u8, u8)) {
    let target = if version > (1, 3) { "vulkan1.3" } else { "vulkan1.1" };
    let Ok(output) = Command::new("spirv-val").args(["--target-env", target]).arg(path).output() else {
        return;
    };
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || message.contains("Invalid capability operand"), "{message}");
}

fn validate_words(words: &[u32], version: (u8, u8)) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k.spv");
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&path, bytes).unwrap();
    validate(&path, version);
}

fn requires(r: &Reflection) -> Requires {
    Requires::of(r.version, r.local_size_id, &r.capabilities)
}

fn access(r: &Reflection) -> Vec<BindingAccess> {
    r.bindings.iter().map(|binding| binding.access).collect()
}

fn kinds(r: &Reflection) -> Vec<BindingKind> {
    r.bindings.iter().map(|binding| binding.kind).collect()
}

#[test]
fn access_is_what_the_declaration_says() {
    let r = built(&shader(
        "layout(binding = 0) readonly buffer A { uint a[]; };
         layout(binding = 1) writeonly buffer B { uint b[]; };
         layout(binding = 2) buffer C { uint c[]; };",
        "b[0] = a[0]; c[0] += 1u;",
    ));
    assert_eq!(access(&r), [BindingAccess::Read, BindingAccess::Write, BindingAccess::ReadWrite]);
    let names: Vec<_> = r.bindings.iter().map(|binding| binding.name.as_ref()).collect();
    assert_eq!(names, ["A", "B", "C"]);
}

#[test]
fn access_is_what_the_code_does_where_nothing_is_declared() {
    let r = built(
        &shader(
            "layout(binding = 0) buffer A { uint a[]; };
         layout(binding = 1) buffer B { uint b[]; };
         layout(binding = 2) buffer C { uint c[]; };
         layout(binding = 3) buffer D { uint d[]; };
         layout(binding = 4) buffer E { uint count; vec4 rest[]; };
         uint get(uint i) { return a[i]; }
         void put(uint i, uint v) { b[i] = v; }",
            "put(0, get(1)); atomicAdd(c[0], 1u); b[1] = d.length(); e: rest[2].y = 1.0;",
        )
        .replace("e: ", ""),
    );
    let expected = [
        BindingAccess::Read,
        BindingAccess::Write,
        BindingAccess::ReadWrite,
        BindingAccess::Read,
        BindingAccess::Write,
    ];
    assert_eq!(access(&r), expected);
}

#[test]
fn elements_of_buffers() {
    let r = built(&shader(
        "struct Pair { vec2 a; vec2 b; };
         layout(binding = 0, std430) readonly buffer A { vec4 a[]; };
         layout(binding = 1, std430) readonly buffer B { uint n; int b[]; };
         layout(binding = 2, std430) readonly buffer C { Pair c[]; };
         layout(binding = 3, std430) buffer D { float d; };",
        "d = a[0].x + float(b[n]) + c[0].a.x;",
    ));
    let element = |at: usize| r.bindings[at].element.map(|e| (e.scalar, e.components, e.stride));
    assert_eq!(element(0), Some((Some(ScalarType::F32), 4, 16)));
    assert_eq!(element(1), Some((Some(ScalarType::I32), 1, 4)));
    assert_eq!(element(2), Some((None, 1, 16)));
    assert_eq!(element(3), None);
}

#[test]
fn aliased_variables_are_one_binding() {
    let text = shader(
        "layout(binding = 0, std430) readonly buffer A { vec4 wide[]; };
         layout(binding = 0, std430) writeonly buffer B { float narrow[]; };",
        "narrow[9] = wide[0].x;",
    );
    let r = built(&text);
    assert_eq!(r.bindings.len(), 1);
    assert_eq!(r.bindings[0].access, BindingAccess::ReadWrite);
    assert_eq!(r.bindings[0].element.map(|element| element.stride), Some(4));
}

#[test]
fn texel_buffers_and_images() {
    let r = built(&shader(
        "layout(binding = 0) uniform samplerBuffer a;
         layout(binding = 1, rgba32f) uniform writeonly imageBuffer b;
         layout(binding = 2, r32ui) uniform uimageBuffer c;
         layout(binding = 3) uniform sampler2D d;
         layout(binding = 4, rgba16f) uniform readonly image2D e;
         layout(binding = 5) uniform U { vec4 scale; };
         layout(binding = 6, r32f) uniform image2D f;",
        "imageStore(b, 0, texelFetch(a, 1) * scale); imageAtomicAdd(c, 0, 1u);
         imageStore(f, ivec2(0), textureLod(d, vec2(0), 0) + imageLoad(e, ivec2(0)));",
    ));
    use BindingKind::*;
    assert_eq!(
        kinds(&r),
        [
            UniformTexelBuffer,
            StorageTexelBuffer,
            StorageTexelBuffer,
            SampledImage,
            StorageImage,
            UniformBuffer,
            StorageImage
        ]
    );
    let (read, write) = (BindingAccess::Read, BindingAccess::Write);
    assert_eq!(access(&r), [read, write, BindingAccess::ReadWrite, read, read, read, write]);
    let strides: Vec<_> = r.bindings.iter().map(|b| b.element.map(|e| (e.components, e.stride))).collect();
    let wide = Some((4, 16));
    assert_eq!(strides, [wide, wide, Some((1, 4)), wide, Some((4, 8)), None, Some((1, 4))]);
    assert_eq!(requires(&r), Requires::NONE);
}

#[test]
fn workgroup_memory_and_sizes() {
    let text = "#version 450\n#include \"spec.glsl\"\nLOCAL_SIZE(3, 128);\nSPEC(1, uint, TILE, 16);\n\
        struct Pair { vec3 a; uint b; };\n\
        shared float tile[TILE * (TILE + 1)];\nshared Pair pairs[gl_WorkGroupSize.x];\nshared uint count;\n\
        layout(binding = 0) buffer A { float a[]; };\n\
        void main() { uint i = gl_LocalInvocationIndex; tile[i] = a[i]; pairs[i].a = vec3(1); count = i;\n\
        barrier(); a[i] = tile[TILE] + pairs[0].a.x + float(count); }\n";
    let (r, words) = built_words(text);
    assert_eq!((r.local_size, r.local_size_spec), ([128, 1, 1], [Some(3), None, None]));
    assert_eq!(r.shared_bytes, 16 * 17 * 4 + 128 * 16 + 4);
    let with = |specialized: &[(u32, u32)]| shared_bytes(&words, specialized).unwrap();
    assert_eq!(with(&[]), r.shared_bytes);
    assert_eq!(with(&[(1, 8), (3, 32)]), 8 * 9 * 4 + 32 * 16 + 4);
    assert_eq!(with(&[(7, 1)]), r.shared_bytes);
    let spec: Vec<_> = r.spec.iter().map(|c| (c.id, c.name.as_ref(), c.ty, c.default_bits)).collect();
    assert_eq!(spec, [(1, "TILE", ScalarType::U32, 16), (3, "local_size_x", ScalarType::U32, 128)]);
}

#[test]
fn specialization_constants_of_every_type() {
    let r = built(&shader(
        "SPEC(0, bool, on, true); SPEC(1, int, shift, -3); SPEC(2, float, scale, 1.5);
         layout(binding = 0) buffer A { float a[]; };",
        "a[0] = on ? scale * float(shift) : 0.0;",
    ));
    let spec: Vec<_> = r.spec.iter().map(|c| (c.name.as_ref(), c.ty, c.default_bits)).collect();
    let bits = |value: f32| u64::from(value.to_bits());
    assert_eq!(
        spec,
        [
            ("on", ScalarType::Bool, 1),
            ("shift", ScalarType::I32, u64::from(-3i32 as u32)),
            ("scale", ScalarType::F32, bits(1.5))
        ]
    );
}

#[test]
fn params_of_every_shape() {
    let r = built(&shader(
        "layout(push_constant) uniform Params { uint n; int i; float f; uint dims[5]; vec4 v; } p;
         layout(binding = 0) buffer A { float a[]; };",
        "a[p.n] = p.f + p.v.x + float(p.dims[2]) + float(p.i);",
    ));
    assert_eq!(r.params_bytes, 48);
    let params: Vec<_> = r
        .params
        .iter()
        .map(|param| (param.name.as_ref(), param.offset_bytes, param.ty.components, param.ty.array))
        .collect();
    assert_eq!(
        params,
        [
            ("n", 0, 1, None),
            ("i", 4, 1, None),
            ("f", 8, 1, None),
            ("dims", 12, 1, Some((5, 4))),
            ("v", 32, 4, None)
        ]
    );
}

#[test]
fn narrow_and_wide_types() {
    let with = |macros: &str, ty: &str| {
        let text = shader(
            "#include \"types.glsl\"\nlayout(binding = 0, std430) buffer A { T a[]; };",
            "a[0] = a[1] + T(3);",
        );
        let r = built(&format!("// variant: t  T={ty} {macros}\n{text}"));
        let element = r.bindings[0].element.unwrap();
        assert_eq!(element.stride, element.scalar.unwrap().bytes());
        (element.scalar.unwrap(), requires(&r))
    };
    use Requires as R;
    assert_eq!(with("EXT_FLOAT16", "float16_t"), (ScalarType::F16, R::FLOAT16.union(R::STORAGE_16)));
    assert_eq!(with("EXT_INT16", "int16_t"), (ScalarType::I16, R::INT16.union(R::STORAGE_16)));
    assert_eq!(with("EXT_INT8", "uint8_t"), (ScalarType::U8, R::INT8.union(R::STORAGE_8)));
    assert_eq!(with("EXT_INT64", "int64_t"), (ScalarType::I64, R::INT64));
    assert_eq!(with("EXT_FLOAT64", "float64_t"), (ScalarType::F64, R::FLOAT64));
    assert_eq!(with("", "double"), (ScalarType::F64, R::FLOAT64));
}

#[test]
fn subgroups() {
    let r = built(&shader(
        "#extension GL_KHR_shader_subgroup_arithmetic : require
         #extension GL_KHR_shader_subgroup_ballot : require
         #extension GL_KHR_shader_subgroup_shuffle : require
         layout(binding = 0) buffer A { uint a[]; };",
        "uint v = subgroupAdd(a[0]) + subgroupShuffle(a[1], 0); uvec4 b = subgroupBallot(v > 1);
         if (subgroupElect()) a[2] = v + b.x;",
    ));
    let expected = Requires::SUBGROUP_BASIC
        .union(Requires::SUBGROUP_ARITHMETIC)
        .union(Requires::SUBGROUP_BALLOT)
        .union(Requires::SUBGROUP_SHUFFLE);
    assert_eq!(requires(&r), expected);
    assert_eq!(requires(&r).to_string(), "subgroups, subgroup arithmetic, subgroup ballot, subgroup shuffle");
}

#[test]
fn cooperative_matrices_dot_products_and_float_atomics() {
    let r = built(&shader(
        "#extension GL_KHR_cooperative_matrix : require
         #extension GL_KHR_memory_scope_semantics : require
         #extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
         #extension GL_EXT_shader_16bit_storage : require
         #extension GL_EXT_integer_dot_product : require
         #extension GL_EXT_shader_atomic_float : require
         layout(binding = 0) readonly buffer A { float16_t a[]; };
         layout(binding = 1) buffer B { float b[]; };
         layout(binding = 2) buffer C { uint c[]; };",
        "coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> x;
         coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> y;
         coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> z =
             coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
         coopMatLoad(x, a, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
         coopMatLoad(y, a, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
         z = coopMatMulAdd(x, y, z);
         z[0] = z[1];
         coopMatStore(z, b, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
         atomicAdd(b[0], 1.0);
         c[0] = dotPacked4x8EXT(c[1], c[2]);",
    ));
    assert_eq!(access(&r), [BindingAccess::Read, BindingAccess::ReadWrite, BindingAccess::ReadWrite]);
    for feature in [
        Requires::COOPERATIVE_MATRIX,
        Requires::FLOAT16,
        Requires::STORAGE_16,
        Requires::DOT_PRODUCT,
        Requires::ATOMIC_FLOAT,
    ] {
        assert!(requires(&r).contains(feature), "{feature} is not in {}", requires(&r));
    }
    assert!(!requires(&r).contains(Requires::UNKNOWN));
}

#[test]
fn a_later_spirv_version_is_asked_for() {
    let text = "// spirv: 1.6\n#version 450\n#include \"spec.glsl\"\nLOCAL_SIZE(0, 32);\n\
        layout(binding = 0) buffer A { uint a[]; };\nvoid main() { a[gl_WorkGroupSize.x] = 1u; }\n";
    let r = built(text);
    assert_eq!((r.version, r.local_size, r.local_size_spec), ((1, 6), [32, 1, 1], [Some(0), None, None]));
    assert!(requires(&r).contains(Requires::SPIRV_1_6.union(Requires::LOCAL_SIZE_ID)));
}

#[test]
fn control_flow_calls_and_composites_pass_the_check() {
    let r = built(&shader(
        "layout(binding = 0) buffer A { vec4 a[]; };
         struct S { mat3 m; float list[4]; };
         float pick(S s, int at) { return s.list[at] + s.m[1].y; }
         void twice(inout float x) { x *= 2.0; }",
        "S s = S(mat3(1.0), float[4](1.0, 2.0, 3.0, 4.0)); float sum = 0.0;
         for (int i = 0; i < 4; ++i) { if (i == 2) continue; sum += pick(s, i); if (sum > 9.0) break; }
         switch (int(sum)) { case 1: sum += 1.0; case 2: sum += 2.0; break; default: sum = -sum; }
         while (sum < 100.0) { do { twice(sum); s.m[0] = vec3(sum); } while (sum < 50.0); }
         a[0] = sum > 3.0 ? a[1].wzyx : vec4(sum); a[2].y = s.m[0].x; a[3] = clamp(a[4], 0.0, 1.0);",
    ));
    assert_eq!(access(&r), [BindingAccess::ReadWrite]);
}

#[test]
fn what_cannot_be_bound_is_refused() {
    for (declaration, body, what) in [
        (
            "layout(binding = 0) buffer A { uint a[]; } many[2];",
            "many[0].a[0] = 1u;",
            "an array of resources",
        ),
        (
            "layout(binding = 0) uniform texture2D t; layout(binding = 1) uniform sampler s;
             layout(binding = 2) buffer A { vec4 a[]; };",
            "a[0] = textureLod(sampler2D(t, s), vec2(0), 0);",
            "an image without its sampler",
        ),
    ] {
        let error = Project::new(&[("copy/k.comp", &shader(declaration, body))]).error();
        assert!(error.contains(what) && error.contains("shaders/copy/k.comp: k: "), "{error}");
    }
}

#[test]
fn a_raw_pointer_into_memory_is_refused() {
    let text = shader(
        "#extension GL_EXT_buffer_reference : require
         layout(buffer_reference, std430) buffer Block { uint x[]; };
         layout(push_constant) uniform Params { uvec2 at; } p;",
        "Block(p.at).x[0] = 1u;",
    );
    let text =
        text.replace("#version 450", "#version 450\n#extension GL_EXT_buffer_reference_uvec2 : require");
    let project = Project::new(&[("copy/k.comp", &text)]);
    project.build().unwrap();
    let error = check_module(&project.only_module()).unwrap_err();
    assert_eq!(error.kind, SpirvErrorKind::Capability { name: "PhysicalStorageBufferAddresses".to_owned() });
}

#[test]
fn a_kernel_that_reads_its_place_has_a_valid_form_for_parts() {
    let buffer = "layout(binding = 0) buffer A { uint a[]; };";
    let params = |members: &str| format!("{buffer} layout(push_constant) uniform P {{ {members} }} p;");
    let everything =
        "a[gl_GlobalInvocationID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x] = gl_WorkGroupID[a[0] % 3u];";
    let sized =
        |size: &str| shader(&params("float x; uint n;"), everything).replace("local_size_x = 64", size);
    let cases = [
        (shader(buffer, everything), 0),
        (shader(&params("float x;"), everything), 4),
        (shader(&params("uvec2 n; float x;"), everything), 12),
        (sized("local_size_x = 8, local_size_y = 2"), 8),
        (shader(buffer, "uvec3 n = gl_NumWorkGroups; a[gl_WorkGroupID.z] = n.x * n.y;"), 0),
    ];
    for (text, offset) in cases {
        let (reflection, words) = built_words(&text);
        for axis in 0..3 {
            let form = PartForm::new(&words, reflection.params_bytes, axis).unwrap();
            assert_eq!(form.offset_bytes, offset);
            let of_part = check_module(&form.words).unwrap();
            assert_eq!(of_part.params_bytes, offset + PART_BYTES);
            assert_eq!((of_part.local_size, &of_part.spec), (reflection.local_size, &reflection.spec));
            validate_words(&form.words, reflection.version);
        }
        assert_eq!(PartForm::new(&words, reflection.params_bytes, 3), None);
    }
    // By atomic operations work-groups can tell each other something.
    let atomics = |body: &str| {
        built(&shader("layout(binding = 0) buffer A { uint a[]; };\nshared uint s;", body)).atomics
    };
    assert!(atomics("atomicAdd(s, 1u);") && atomics("atomicMax(a[0], 1u);") && !atomics("a[0] = s;"));
    // What does not read its place does the same in every part.
    let (reflection, words) = built_words(&shader(buffer, "a[gl_LocalInvocationID.x] = 1u;"));
    assert_eq!(PartForm::new(&words, reflection.params_bytes, 0).unwrap().words, words);
}

#[test]
fn forms_of_shipped_kernels_for_parts_are_valid() {
    let some = if std::env::var_os("ONEPOOL_ALL_KERNELS").is_some() { 1 } else { 25 };
    for (info, axis) in KernelId::all().step_by(some).map(|id| id.info()).zip((0..3).cycle()) {
        let form = PartForm::new(info.spirv(), info.params_bytes, axis).unwrap();
        validate_words(&form.words, info.reflection().version);
    }
}
