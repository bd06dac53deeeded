//! Kernels as others write and compile them, on every device that runs SPIR-V: natively and translated they give
//! the same results.

use std::process::Command as Process;
use std::sync::Arc;

use half::f16;
use onepool::spirv::opencl_c::{OpenClError, OpenClOptions, translate};
use onepool::spirv::reflect;

use super::{Case, compile, contexts, foreign, run};

/// What the words of a kernel's results are.
#[derive(Clone, Copy, PartialEq)]
enum Words {
    /// Equal on all devices.
    Exact,
    /// Floats of functions whose last bits the specification leaves open.
    Floats,
    /// Pairs of halves, of the same.
    Halves,
}

/// Bytes of every binding.
const BYTES: usize = 1 << 16;

/// Small whole numbers, floats of moderate size, and any bits.
fn input() -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut word = |i: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let random = (state >> 16) as u32;
        match i % 4 {
            0 => random % 100,
            1 => ((random % 4000) as f32 / 64.0 - 20.0).to_bits(),
            2 => random,
            _ => (random as i32 >> (random & 31)) as u32,
        }
    };
    (0..BYTES / 4).flat_map(|i| word(i).to_le_bytes()).collect()
}

fn close(a: f32, b: f32, part: f32) -> bool {
    (a.is_nan() && b.is_nan()) || (a - b).abs() <= part * a.abs().max(1.0)
}

fn agree(words: Words, a: u32, b: u32) -> bool {
    let half = |bits: u32, shift: u32| f16::from_bits((bits >> shift) as u16).to_f32();
    a == b
        || match words {
            Words::Exact => false,
            Words::Floats => close(f32::from_bits(a), f32::from_bits(b), 2e-3),
            Words::Halves => [0, 16].iter().all(|&at| close(half(a, at), half(b, at), 2e-3)),
        }
}

/// The module as the compiler writes it, and as an optimizer does.
fn variants(glsl: &str) -> Vec<(&'static str, Vec<u32>)> {
    let plain = compile(glsl);
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("plain.spv"), folder.path().join("optimized.spv"));
    std::fs::write(&from, bytemuck::cast_slice::<u32, u8>(&plain)).unwrap();
    let mut variants = vec![("plain", plain)];
    for how in ["-O", "--inline-entry-points-exhaustive --ssa-rewrite --if-conversion"] {
        let optimizer = Process::new("spirv-opt").args(how.split(' ')).arg(&from).arg("-o").arg(&to).output();
        match optimizer {
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                let bytes = std::fs::read(&to).unwrap();
                let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
                variants.push((how, words.collect()));
            }
            Err(error) if std::env::var("REQUIRE_BACKENDS").is_ok() => panic!("spirv-opt: {error}"),
            Err(error) => eprintln!("not tested: spirv-opt: {error}"),
        }
    }
    variants
}

/// How many devices ran it.
fn check(name: &str, glsl: &str, words: Words, spec: &[(u32, u32)]) -> usize {
    let mut devices = 0;
    for (variant, module) in variants(glsl) {
        let source = Arc::new(foreign::spirv("odd", module).unwrap());
        let (_, reflection) = source.spirv().unwrap();
        let case = Case {
            glsl,
            spec,
            params: (0..)
                .flat_map(|i: u32| (3 + i).to_le_bytes())
                .take(reflection.params_bytes as usize)
                .collect(),
            groups: 4,
            before: reflection.bindings.iter().map(|_| input()).collect(),
            after: Vec::new(),
        };
        let mut first: Option<Vec<Vec<u8>>> = None;
        devices = 0;
        for context in contexts() {
            let info = context.info();
            let missing = source.requires().missing(info.features.union(info.emulated));
            if !missing.is_empty() {
                eprintln!("{name}: {}: not tested: no {missing}", info.name);
                continue;
            }
            let found = run(context, &source, &case);
            assert!(found != case.before, "{name} ({variant}): {} wrote nothing", info.name);
            devices += 1;
            let Some(first) = &first else {
                first = Some(found);
                continue;
            };
            for (binding, (a, b)) in first.iter().zip(&found).enumerate() {
                let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
                let pairs = a.chunks_exact(4).map(word).zip(b.chunks_exact(4).map(word));
                let wrong = pairs.enumerate().find(|(_, (a, b))| !agree(words, *a, *b));
                let text = wrong.map(|(at, (a, b))| format!("word {at}: {a:#x} and {b:#x}"));
                assert_eq!(text, None, "{name} ({variant}): {}, binding {binding}", info.name);
            }
        }
    }
    devices
}

macro_rules! odd {
    ($($name:ident: $words:ident, $spec:expr;)*) => {$(
        #[test]
        fn $name() {
            let glsl = include_str!(concat!("odd/", stringify!($name), ".comp"));
            let ran = check(stringify!($name), glsl, Words::$words, $spec);
            assert!(ran == contexts().len(), "ran on {ran} devices");
        }
    )*};
}

const F32_TWO_AND_A_HALF: u32 = 0x4020_0000;
const F16_ONE_AND_A_HALF: u32 = 0x3e00;

odd! {
    arguments: Exact, &[];
    convert: Exact, &[];
    earlyret: Exact, &[];
    functions: Floats, &[];
    group3d: Exact, &[(0, 8), (1, 2)];
    half: Halves, &[];
    integers: Exact, &[];
    nested: Exact, &[];
    pack: Exact, &[];
    params: Exact, &[];
    pointers: Exact, &[];
    private: Exact, &[];
    shared: Exact, &[];
    shortcircuit: Exact, &[];
    spec: Exact, &[(0, 6), (1, -5i32 as u32), (2, F32_TWO_AND_A_HALF), (3, 0), (4, 7)];
    spec_half: Exact, &[(7, F16_ONE_AND_A_HALF)];
    spec_wide: Exact, &[(3, 65_000), (4, 0xff00), (5, 0x80), (6, 7)];
    structures: Exact, &[];
    switch: Exact, &[];
    switchloop: Exact, &[];
    swizzle: Exact, &[];
    uniform: Exact, &[];
    vectors: Floats, &[];
}

/// What has no translation is refused by name, before a driver sees it.
#[test]
fn what_has_no_translation_is_named() {
    let kernel = |declared: &str, body: &str| {
        format!(
            "#version 450\n#extension GL_KHR_shader_subgroup_arithmetic : require
            #extension GL_EXT_shader_explicit_arithmetic_types : require
            #extension GL_EXT_shader_atomic_int64 : require
            layout(local_size_x = 32) in;
            layout(set = 0, binding = 0, std430) buffer Y {{ uint y[]; }};
            layout(set = 0, binding = 1, std430) buffer W {{ uint64_t w[]; }};
            {declared}
            void main() {{ uint i = gl_GlobalInvocationID.x; {body} }}"
        )
    };
    let cases = [
        ("", "mat3 m = mat3(float(y[i])); y[i] = uint((m * vec3(1, 2, 3)).y);", "OpTypeMatrix"),
        ("", "y[i] = subgroupAdd(y[i]);", "GroupNonUniform"),
        ("", "w[i] = atomicAdd(w[0], w[i]);", "an atomic access of other than 32 bits"),
        (
            "layout(set = 0, binding = 2) uniform sampler3D t;",
            "y[i] = uint(textureLod(t, vec3(0), 0.0).x);",
            "image",
        ),
        (
            "layout(constant_id = 1) const uint64_t wide = 7;",
            "w[i] = wide;",
            "specialization of a 64-bit constant",
        ),
    ];
    for (declared, body, wanted) in cases {
        let options = OpenClOptions { spec: &[(1, 5)], fp64: true, ..OpenClOptions::default() };
        let error = translate(&compile(&kernel(declared, body)), &options).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, OpenClError::Unsupported { .. }) && text.contains(wanted), "{text}");
    }
}

#[test]
fn params_in_structures_and_matrices_are_reflected() {
    let reflection = reflect(&compile(
        "#version 450
        struct Part { uvec2 at; float k[3]; };
        layout(push_constant) uniform P { uint n; Part parts[2]; mat2x3 m; layout(row_major) mat2x3 t; } p;
        layout(set = 0, binding = 0) buffer A { float a[]; };
        void main() { a[p.n] = p.parts[p.n].k[1] + p.m[1].x + p.t[0].z + float(p.parts[0].at.y); }",
    ))
    .unwrap();
    let params: Vec<_> = reflection
        .params
        .iter()
        .map(|param| (param.name.as_ref(), param.offset_bytes, param.ty.components, param.ty.array))
        .collect();
    assert_eq!(
        params,
        [
            ("n", 0, 1, None),
            ("parts[0].at", 8, 2, None),
            ("parts[0].k", 16, 1, Some((3, 4))),
            ("parts[1].at", 32, 2, None),
            ("parts[1].k", 40, 1, Some((3, 4))),
            ("m", 64, 3, Some((2, 16))),
            ("t", 96, 2, Some((3, 8))),
        ]
    );
    assert_eq!(reflection.params_bytes, 120);
}
