//! Messages, variants, the cache and the generated table.

use super::{Project, shader};

const DST: &str = "layout(set = 0, binding = 0, std430) writeonly buffer Dst { uint dst[]; };";

#[test]
fn an_error_names_the_shader_and_the_line() {
    let project =
        Project::new(&[("copy/bad.comp", "// A comment.\n#version 450\nvoid main()\n{\n    x = 1;\n}\n")]);
    let error = project.error();
    assert!(error.starts_with("shaders/copy/bad.comp:5: 'x' : undeclared identifier"), "{error}");
    assert!(error.contains("(kernel bad)"), "{error}");
}

#[test]
fn a_line_after_variants_and_includes_is_still_right() {
    let text = "// variant: a  N=1\n// variant: b  N=2\n#version 450\n#include \"spec.glsl\"\n\
                #include \"grid.glsl\"\nLOCAL_SIZE(0, 64);\nvoid main() { int i = N + y; }\n";
    let error = Project::new(&[("copy/bad.comp", text)]).error();
    let lines: Vec<&str> = error.lines().filter(|line| line.contains("undeclared")).collect();
    assert_eq!(lines.len(), 2, "{error}");
    for (line, kernel) in lines.iter().zip(["bad_a", "bad_b"]) {
        assert!(line.starts_with("shaders/copy/bad.comp:7: 'y'"), "{line}");
        assert!(line.contains(kernel), "{line}");
    }
}

#[test]
fn an_error_in_an_include_names_the_include() {
    let project = Project::new(&[
        ("include/broken.glsl", "\n\nint f() { return nothing; }\n"),
        ("copy/a.comp", &shader("#include \"broken.glsl\"", "")),
    ]);
    let error = project.error();
    assert!(error.starts_with("shaders/include/broken.glsl:3: 'nothing'"), "{error}");
}

#[test]
fn an_include_beside_the_shader_comes_first() {
    let project = Project::new(&[
        ("include/part.glsl", "broken"),
        ("copy/part.glsl", "#include \"deeper.glsl\""),
        ("include/deeper.glsl", "#define VALUE 3u"),
        ("copy/a.comp", &shader(&format!("{DST}\n#include \"part.glsl\""), "dst[0] = VALUE;")),
    ]);
    assert_eq!(project.build().unwrap().kernels, 1);
}

#[test]
fn a_missing_include_is_an_error_of_its_line() {
    let error =
        Project::new(&[("copy/a.comp", "#version 450\n#include \"none.glsl\"\nvoid main() {}\n")]).error();
    assert!(error.starts_with("shaders/copy/a.comp:2:"), "{error}");
    assert!(error.contains("none.glsl"), "{error}");
}

#[test]
fn every_broken_shader_is_reported() {
    let project = Project::new(&[("copy/a.comp", &shader("", "x;")), ("math/b.comp", &shader("", "y;"))]);
    let error = project.error();
    assert!(error.contains("shaders/copy/a.comp:7:") && error.contains("shaders/math/b.comp:7:"), "{error}");
}

#[test]
fn a_file_without_version_is_refused() {
    let error = Project::new(&[("copy/a.comp", "void main() {}\n")]).error();
    assert_eq!(error, "shaders/copy/a.comp:1: there is no #version line");
}

#[test]
fn a_kernel_outside_a_family_is_refused() {
    let error = Project::new(&[("a.comp", &shader("", ""))]).error();
    assert!(error.contains("shaders/<family>/"), "{error}");
}

#[test]
fn malformed_variants_are_errors_of_their_line() {
    for (line, expected) in [
        ("variant:", "a variant needs a name"),
        ("variant: F32", "not made of a-z"),
        ("variant: a 1X=2", "no macro name"),
        ("variant: a X=1 X=2", "defined twice"),
        ("spirv: 1.4", "neither 1.3 nor 1.6"),
    ] {
        let text = format!("// First.\n// {line}\n{}", shader("", ""));
        let error = Project::new(&[("copy/a.comp", &text)]).error();
        assert!(error.starts_with("shaders/copy/a.comp:2: ") && error.contains(expected), "{error}");
    }
    let twice = format!("// variant: a\n// variant: a\n{}", shader("", ""));
    let error = Project::new(&[("copy/a.comp", &twice)]).error();
    assert_eq!(error, "shaders/copy/a.comp:2: variant of kernel a_a is declared twice");
}

#[test]
fn one_name_for_two_kernels_is_refused() {
    let project = Project::new(&[
        ("copy/a_b.comp", &shader("", "")),
        ("math/a.comp", &format!("// variant: b\n{}", shader("", ""))),
    ]);
    let error = project.error();
    assert!(error.contains("shaders/copy/a_b.comp") && error.contains("shaders/math/a.comp"), "{error}");
}

#[test]
fn one_name_for_two_files_is_refused() {
    let project = Project::new(&[("copy/a.comp", &shader("", "")), ("math/a.comp", &shader("", ""))]);
    assert_eq!(project.error(), "shaders/math/a.comp: shaders/copy/a.comp has the same name");
}

#[test]
fn a_name_is_an_identifier() {
    for name in ["A", "2d", "a-b"] {
        let error = Project::new(&[(&format!("copy/{name}.comp"), &shader("", ""))]).error();
        assert!(error.contains("a-z, 0-9 and _, a letter first"), "{error}");
    }
}

#[test]
fn a_variant_sets_its_macros() {
    let body = "#ifdef VARIANT_wide\ndst[0] = WIDTH;\n#else\ndst[0] = FLAG;\n#endif";
    let text = format!("// variant: wide  WIDTH=4u\n//variant:  flag FLAG\n{}", shader(DST, body));
    let project = Project::new(&[("copy/a.comp", &text)]);
    assert_eq!(project.build().unwrap().kernels, 2);
    let names: Vec<String> = project.modules().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a_flag", "a_wide"]);
}

#[test]
fn only_what_changed_is_compiled_again() {
    let with = |name: &str| shader(&format!("{DST}\n#include \"{name}\""), "dst[0] = VALUE;");
    let project = Project::new(&[
        ("include/one.glsl", "#define VALUE 1u"),
        ("include/two.glsl", "#define VALUE 2u"),
        ("copy/a.comp", &with("one.glsl")),
        ("copy/b.comp", &with("two.glsl")),
    ]);
    // Each source is compiled to ship and once more for spirv-reflect.
    assert_eq!(project.build().unwrap().compiled, 4);
    assert_eq!(project.build().unwrap().compiled, 0);
    project.write("include/two.glsl", "#define VALUE 3u");
    assert_eq!(project.build().unwrap().compiled, 2);
    assert_eq!(project.modules().len(), 2, "modules of old sources are forgotten");
    project.write("copy/a.comp", &format!("// variant: x\n{}", with("one.glsl")));
    assert_eq!(project.build().unwrap().compiled, 2);
    assert_eq!(project.build().unwrap().compiled, 0);
}

#[test]
fn the_output_depends_on_the_sources_alone() {
    let files: Vec<(String, String)> =
        (0..12).map(|i| (format!("copy/k{i}.comp"), shader(DST, &format!("dst[0] = {i}u;")))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let (a, b) = (Project::new(&files), Project::new(&files));
    a.build().unwrap();
    b.build().unwrap();
    for file in ["kernels.rs", "kernels.spv.deflate", "reflect_skipped.txt"] {
        let read = |project: &Project| std::fs::read(project.out.path().join(file)).unwrap();
        assert_eq!(read(&a), read(&b), "{file}");
    }
    let names: Vec<_> =
        a.output("kernels.rs").lines().filter(|l| l.contains(" name: \"")).map(String::from).collect();
    assert!(names.is_sorted() && names.len() == 12);
}

#[test]
fn params_become_a_struct() {
    let params = "layout(push_constant) uniform Params { uint n; int type; float scale; uint shape[6]; \
                  uvec4 strides; vec2 pair[2]; } p;";
    let text = shader(&format!("{DST}\n{params}"), "dst[p.n] = p.shape[1] + p.strides.x;");
    let project = Project::new(&[("copy/two_words.comp", &text)]);
    let error = project.error();
    assert!(error.contains("Params.strides is at byte 48, and the member before ends at 36"), "{error}");
    let project = Project::new(&[("copy/two_words.comp", &text.replace("shape[6]", "shape[5]"))]);
    project.build().unwrap();
    let table = project.output("kernels.rs");
    for line in [
        "pub struct TwoWords {",
        "pub n: u32,",
        "pub r#type: i32,",
        "pub scale: f32,",
        "pub shape: [u32; 5],",
        "pub strides: [u32; 4],",
        "pub pair: [[f32; 2]; 2],",
        "assert!(size_of::<TwoWords>() == 64);",
        "assert!(core::mem::offset_of!(TwoWords, strides) == 32);",
    ] {
        assert!(table.contains(line), "{line} is not in\n{table}");
    }
}

#[test]
fn params_must_suit_every_device() {
    let with = |members: &str| {
        let block = format!("layout(push_constant) uniform Params {{ {members} }} p;");
        let text = shader(&format!("{DST}\n{block}"), "dst[0] = uint(p.a);");
        Project::new(&[("copy/a.comp", &text)]).error()
    };
    assert!(with("uint a; uint b[32];").contains("132 bytes, more than 128"));
    assert!(with("double a;").contains("type F64"));
}

#[test]
fn variants_share_one_params_block() {
    let text = format!(
        "// variant: a  T=uint\n// variant: b  T=float\n{}",
        shader(&format!("{DST}\nlayout(push_constant) uniform Params {{ T n; }} p;"), "dst[0] = uint(p.n);")
    );
    let error = Project::new(&[("copy/k.comp", &text)]).error();
    assert!(error.contains("k_a and k_b have different Params"), "{error}");
}

#[test]
fn bindings_are_numbered_from_zero() {
    let text = shader("layout(set = 0, binding = 1) buffer Dst { uint dst[]; };", "dst[0] = 1u;");
    let error = Project::new(&[("copy/a.comp", &text)]).error();
    assert!(error.contains("bindings must be numbered 0, 1, ..; Dst breaks it"), "{error}");
    let text = shader("layout(set = 1, binding = 0) buffer Dst { uint dst[]; };", "dst[0] = 1u;");
    let error = Project::new(&[("copy/a.comp", &text)]).error();
    assert!(error.contains("Dst is in set 1"), "{error}");
}

#[test]
fn a_plain_constant_id_is_pointed_to_the_macro() {
    let text = shader(&format!("{DST}\nlayout(constant_id = 3) const uint OP = 1;"), "dst[OP] = 1u;");
    let error = Project::new(&[("copy/a.comp", &text)]).error();
    assert!(error.contains("include/spec.glsl"), "{error}");
}

#[test]
fn specialization_constants_get_ids_by_name() {
    let text = format!(
        "#version 450\n#include \"spec.glsl\"\nLOCAL_SIZE_2D(0, 8, 1, 4);\nSPEC(5, uint, OP, 2);\n\
         SPEC(2, bool, flip, true);\n{DST}\nvoid main() {{ dst[OP] = flip ? 1u : 0u; }}\n"
    );
    let project = Project::new(&[("copy/a.comp", &text)]);
    project.build().unwrap();
    let table = project.output("kernels.rs");
    for line in [
        "pub const LOCAL_SIZE_X: u32 = 0;",
        "pub const LOCAL_SIZE_Y: u32 = 1;",
        "pub const FLIP: u32 = 2;",
        "pub const OP: u32 = 5;",
        "local_size: [8, 4, 1],",
        "local_size_spec: [Some(0), Some(1), None],",
    ] {
        assert!(table.contains(line), "{line} is not in\n{table}");
    }
}

#[test]
fn what_spirv_reflect_cannot_read_is_listed() {
    let wide = "#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require\n";
    let project = Project::new(&[
        ("copy/plain.comp", &shader(DST, "dst[0] = 1u;")),
        ("copy/wide.comp", &shader(&format!("{wide}{DST}"), "dst[0] = uint(uint64_t(dst.length()) >> 3);")),
    ]);
    assert_eq!(project.build().unwrap().unchecked, 1);
    assert_eq!(project.output("reflect_skipped.txt"), "shaders/copy/wide.comp: Int64\n");
    assert!(project.output("kernels.rs").contains("pub const REFLECT_SKIPPED: usize = 1;"));
}

#[test]
fn the_example_for_authors_builds() {
    let notes = include_str!("../../shaders/README.md");
    let example = notes.split("```glsl\n").nth(1).unwrap().split("```").next().unwrap();
    let project = Project::new(&[("copy/axpb.comp", example)]);
    assert_eq!(project.build().unwrap().kernels, 2);
    let table = project.output("kernels.rs");
    assert!(table.contains("pub const OP: u32 = 1;") && table.contains("pub struct Axpb {"), "{table}");
}
