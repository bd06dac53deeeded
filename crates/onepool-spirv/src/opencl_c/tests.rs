//! Every kernel that ships, what is refused, and what control flow and memory become.

use glslang::{
    Compiler, CompilerOptions, ShaderInput, ShaderMessage, ShaderSource, ShaderStage, SourceLanguage,
    SpirvVersion, Target, VulkanVersion,
};

use super::*;

/// The words of a kernel with `body` in its `main`, after the declarations `head`.
pub fn compile(head: &str, body: &str) -> Vec<u32> {
    let text = format!("#version 450\n{head}\nvoid main()\n{{\n{body}\n}}\n");
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan { version: VulkanVersion::Vulkan1_1, spirv_version: SpirvVersion::SPIRV1_3 },
        version_profile: None,
        messages: ShaderMessage::DEFAULT,
    };
    let compiler = Compiler::acquire().unwrap();
    let text = ShaderSource::from(text);
    let no_defines: Option<&[(&str, Option<&str>)]> = None;
    let input = ShaderInput::new(&text, ShaderStage::Compute, &options, no_defines, None).unwrap();
    compiler.create_shader(input).and_then(|shader| shader.compile()).unwrap()
}

pub(super) const Y: &str = "layout(local_size_x = 4) in;\n\
                 layout(set = 0, binding = 0, std430) buffer Y { uint y[]; };";

pub(super) const ALL: OpenClOptions<'static> = OpenClOptions {
    entry: None,
    spec: &[],
    fp16: true,
    fp64: true,
    images: OpenClImages { texels: TexelFormats::NONE, planes: Planes::None },
};

fn source(head: &str, body: &str) -> String {
    translate(&compile(head, body), &ALL).unwrap().source
}

/// The lines of the kernel's body.
fn body(head: &str, body: &str) -> Vec<String> {
    let source = source(head, body);
    let start = source.find("{\n    ").unwrap() + 2;
    source[start..].lines().map(|line| line.trim_start().to_owned()).collect()
}

pub(super) fn unsupported(error: OpenClError) -> String {
    match error {
        OpenClError::Unsupported { what, .. } => what.into_owned(),
        other => panic!("{other}"),
    }
}

#[test]
fn loops_and_switches() {
    let found = body(
        Y,
        "for (uint i = 0u; i < 9u; i++) {\n\
         if (y[i] == 3u) { continue; }\n\
         switch (y[i]) { case 1u: y[0] = 5u; break; case 2u: break; case 7u: y[0] = 6u; default: y[1] = 7u; }\n\
         if (y[i] > 100u) { break; }\n\
         y[i] += 1u;\n}",
    );
    let text = found.join("\n");
    let shape: Vec<&str> = found
        .iter()
        .filter_map(|line| {
            ["for", "if", "} else", "}", "switch", "case", "default", "break", "continue", "goto", "l"]
                .into_iter()
                .find(|word| line.starts_with(word))
        })
        .collect();
    let expected = "for if break } if goto } switch case break } case break } case goto break } default l break } } \
                    if break } l } }";
    let start = shape.iter().position(|word| *word == "for").unwrap();
    let expected_shape: Vec<&str> = expected.split(' ').collect();
    assert_eq!(shape[start..], expected_shape, "{text}");
}

#[test]
fn short_circuits_are_variables() {
    let text = source(Y, "if (y[0] == 1u && (y[1] > 2u || y[2] > 3u)) { y[3] = 1u; }");
    // One for each `&&` and `||`: set on both ways in, read where they meet.
    assert_eq!(text.matches("    bool q").count(), 2, "{text}");
    assert!(text.contains(" = q"), "{text}");
}

#[test]
fn memory_is_addressed_by_bytes() {
    let head = "layout(local_size_x = 4) in;\n\
        struct S { vec3 a; float b; uvec2 c; };\n\
        layout(set = 0, binding = 0, std430) buffer X { uint n; S s[]; };\n\
        layout(set = 0, binding = 1, std430) buffer Y { float y[]; };\n\
        layout(push_constant) uniform P { uint k; vec2 v[2]; float last; } p;";
    let text = source(
        head,
        "uint i = gl_GlobalInvocationID.x; y[i] = s[i].b + s[3].a.y + p.v[i & 1u].y + p.last;\n\
         s[i].a = vec3(y[2]); s[i].c = uvec2(s.length());",
    );
    for part in [
        "typedef struct { uint w[7]; } Push;",
        "__global uchar* b0, ulong b0_bytes, ulong b0_at, __global uchar* b1, ulong b1_at, const Push push)",
        "    b0 += b0_at;",
        // The array begins at 16, an element has 32 bytes.
        " * 32 + 28)",
        "((__global uint*)b0)[29]",
        "push.w[3 + v",
        "push.w[6]",
        "vstore3(as_uint3(",
        "(b0_bytes < 16ul ? 0ul : b0_bytes - 16ul) / 32ul",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn halves_without_the_extension_are_rounded_floats() {
    let head = "#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require\n\
        #extension GL_EXT_shader_16bit_storage : require\n\
        layout(local_size_x = 4) in;\n\
        layout(set = 0, binding = 0, std430) buffer X { float16_t x[]; };";
    let words = compile(head, "uint i = gl_GlobalInvocationID.x; x[i] = x[i] * x[i + 1u];");
    let with = translate(&words, &ALL).unwrap();
    let without = translate(&words, &OpenClOptions::default()).unwrap();
    assert_eq!((with.requires, without.requires), (Requires::FLOAT16, Requires::NONE));
    assert!(with.source.contains("cl_khr_fp16") && with.source.contains("as_half("));
    for part in ["vload_half(", "= h_round((", "vstore_half_rte("] {
        assert!(without.source.contains(part), "{}", without.source);
    }
    assert!(!without.source.contains("half v"));
}

#[test]
fn barriers_and_workgroup_memory() {
    let head =
        format!("{Y}\nshared float s[8]; layout(constant_id = 3) const uint N = 4u; shared uint t[N];");
    let words = compile(
        &head,
        "s[gl_LocalInvocationIndex] = 1.0; barrier(); memoryBarrierBuffer(); y[0] = t[0] + uint(s[1]);",
    );
    let options = OpenClOptions { spec: &[(3, 19), (77, 1)], ..ALL };
    let kernel = translate(&words, &options).unwrap();
    let mut bytes = kernel.workgroup_bytes;
    bytes.sort_unstable();
    assert_eq!(bytes, [8 * 4, 19 * 4]);
    let text = kernel.source;
    assert!(text.contains("uint a[19];"), "{text}");
    // Parameters, so that no driver makes them static.
    assert_eq!(text.matches(", __local T").count(), 2, "{text}");
    assert!(!text.contains("    __local"), "{text}");
    assert!(text.contains("    barrier(CLK_LOCAL_MEM_FENCE);"), "{text}");
    assert!(text.contains("    mem_fence(CLK_GLOBAL_MEM_FENCE);"), "{text}");
}

#[test]
fn workgroup_memory_is_passed_on_to_functions() {
    let head = format!(
        "{Y}\nshared vec3 s[8]; shared uint n;\n\
         void put(uint at) {{ s[at] = vec3(float(n)); }}\n\
         uint take(uint at) {{ return uint(s[at].y); }}"
    );
    let words = compile(&head, "n = y[1]; barrier(); put(y[2]); barrier(); y[0] = take(y[3]);");
    let kernel = translate(&words, &ALL).unwrap();
    let mut bytes = kernel.workgroup_bytes;
    bytes.sort_unstable();
    // A vector of three takes the room of four.
    assert_eq!(bytes, [4, 8 * 16]);
    let text = kernel.source;
    // Each function gets what it uses, as it was given to the kernel.
    assert_eq!(text.matches("__local T").count(), 3, "{text}");
    assert_eq!(text.matches("__local uint* x").count(), 2, "{text}");
}

#[test]
fn no_name_of_the_module_is_copied() {
    let head = "layout(local_size_x = 4) in;\n\
        layout(set = 0, binding = 0, std430) buffer Peculiar { uint peculiar_y[]; };\n\
        uint peculiar_f(uint peculiar_x) { return peculiar_x + 1u; }";
    let text = source(head, "peculiar_y[0] = peculiar_f(peculiar_y[1]);");
    assert!(!text.to_lowercase().contains("peculiar"), "{text}");
}

#[test]
fn what_has_no_translation_is_named() {
    let subgroups = "#extension GL_KHR_shader_subgroup_arithmetic : require\n".to_owned() + Y;
    let words = compile(&subgroups, "y[0] = subgroupAdd(y[1]);");
    assert_eq!(unsupported(translate(&words, &ALL).unwrap_err()), "GroupNonUniformIAdd");
    let image = "layout(set = 0, binding = 1) uniform sampler2D t;\n".to_owned() + Y;
    let words = compile(&image, "y[0] = uint(texelFetch(t, ivec2(0), 0).x);");
    let what = unsupported(translate(&words, &ALL).unwrap_err());
    assert!(what.contains("a device without images"), "{what}");
    let words = compile(Y, "mat2 m = mat2(float(y[0])); y[0] = uint(m[0][1]);");
    assert!(unsupported(translate(&words, &ALL).unwrap_err()).contains("OpType"));
    let size =
        "layout(local_size_x_id = 0) in;\nlayout(set = 0, binding = 0, std430) buffer Y { uint y[]; };";
    let words = compile(size, "y[0] = 1u;");
    let zero = OpenClOptions { spec: &[(0, 0)], ..ALL };
    assert!(matches!(translate(&words, &zero), Err(OpenClError::Module(_))));
    let seven = OpenClOptions { spec: &[(0, 7)], ..ALL };
    assert_eq!(translate(&words, &seven).unwrap().local_size, [7, 1, 1]);
    let other = OpenClOptions { entry: Some("other"), ..ALL };
    let (wanted, found) = ("other".to_owned(), "main".to_owned());
    assert_eq!(translate(&words, &other), Err(OpenClError::EntryPoint { wanted, found }));
    assert!(matches!(translate(&[1, 2, 3], &ALL), Err(OpenClError::Module(_))));
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| {
        let open: String = (0..depth).map(|at| format!("if (y[{at}] > 1u) {{ y[0] = {at}u;\n")).collect();
        translate(&compile(Y, &(open + &"}".repeat(depth))), &ALL)
    };
    assert!(nested(100).is_ok());
    assert!(matches!(nested(300), Err(OpenClError::TooLarge { .. })));
}

#[test]
fn texels_are_vectors_in_a_buffer() {
    let head = "layout(local_size_x = 4) in;\n\
        layout(set = 0, binding = 0) uniform samplerBuffer t;\n\
        layout(set = 0, binding = 1, std430) buffer Y { vec4 y[]; };\n\
        layout(set = 0, binding = 2, r32f) uniform imageBuffer u;";
    let words = compile(
        head,
        "int i = int(gl_GlobalInvocationID.x); y[i] = texelFetch(t, i) * float(textureSize(t));\n\
         imageStore(u, i, vec4(y[i].x));",
    );
    let kernel = translate(&words, &ALL).unwrap();
    let kinds: Vec<_> = kernel.args.iter().map(|arg| (arg.kind, arg.form)).collect();
    let pointer = |bytes_follow| OpenClForm::Pointer { bytes_follow };
    let expected = [
        (BindingKind::UniformTexelBuffer, pointer(true)),
        (BindingKind::StorageBuffer, pointer(false)),
        (BindingKind::StorageTexelBuffer, pointer(true)),
    ];
    assert_eq!(kinds, expected);
    for part in ["as_float4(((__global uint4*)b0)[", "(int)(b0_bytes / 16ul)", "((__global uint*)b2)["] {
        assert!(kernel.source.contains(part), "{part}\n{}", kernel.source);
    }
}
