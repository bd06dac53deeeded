//! Images: what stands for them, what reads and writes become, and what is refused.

use super::tests::{ALL, Y, compile, unsupported};
use super::*;

const LINES: OpenClOptions<'static> =
    OpenClOptions { images: OpenClImages { texels: TexelFormats::ALL, planes: Planes::Lines }, ..ALL };
const IMAGES: OpenClOptions<'static> =
    OpenClOptions { images: OpenClImages { texels: TexelFormats::ALL, planes: Planes::Images }, ..ALL };

fn forms(kernel: &OpenClKernel) -> Vec<OpenClForm> {
    kernel.args.iter().map(|arg| arg.form).collect()
}

fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

const POINTER: OpenClForm = OpenClForm::Pointer { bytes_follow: false };

#[test]
fn buffers_of_texels_are_one_row() {
    let head = "layout(local_size_x = 4) in;\n\
        layout(set = 0, binding = 0) uniform samplerBuffer t;\n\
        layout(set = 0, binding = 1, std430) buffer Y { vec4 y[]; };\n\
        layout(set = 0, binding = 2, r32ui) writeonly uniform uimageBuffer u;\n\
        layout(set = 0, binding = 3, rgba16f) readonly uniform imageBuffer h;";
    let words = compile(
        head,
        "int i = int(gl_GlobalInvocationID.x); y[i] = texelFetch(t, i) * imageLoad(h, i) * float(textureSize(t));\n\
         imageStore(u, i, uvec4(i));",
    );
    let kernel = translate(&words, &LINES).unwrap();
    assert_eq!(forms(&kernel), [OpenClForm::Line, POINTER, OpenClForm::Line, OpenClForm::Line]);
    contains(
        &kernel.source,
        &[
            "(read_only image1d_buffer_t b0, int4 b0_at, __global uchar* b1, ulong b1_at, write_only image1d_buffer_t b2, int4 b2_at, \
             read_only image1d_buffer_t b3, int4 b3_at)",
            "read_imagef(b0, line_at(b0_at, (int2)(",
            "write_imageui(b2, line_at(b2_at, (int2)(",
            "b0_at.y;",
        ],
    );
    assert!(!kernel.memory_follows);
    // Images of two dimensions or not: buffers of texels are the same.
    assert_eq!(translate(&words, &IMAGES).unwrap(), kernel);
    // Formats that the device lacks are read where they lie, if the kernel can.
    let some = [TexelFormat::Rgba16F].into_iter().collect();
    let some = OpenClOptions { images: OpenClImages { texels: some, planes: Planes::None }, ..ALL };
    let kernel = translate(&words, &some).unwrap();
    let pointer = OpenClForm::Pointer { bytes_follow: true };
    assert_eq!(forms(&kernel), [pointer, POINTER, pointer, OpenClForm::Line]);
    assert!(unsupported(translate(&words, &ALL).unwrap_err()).contains("texels of this format"));
}

#[test]
fn texels_that_are_read_and_written_stay_in_a_buffer() {
    let head = format!("{Y}\nlayout(set = 0, binding = 1, r32i) uniform iimageBuffer t;");
    let words = compile(&head, "int i = int(y[0]); imageStore(t, i, imageLoad(t, i + 1));");
    let kernel = translate(&words, &LINES).unwrap();
    assert_eq!(forms(&kernel), [POINTER, POINTER]);
    contains(&kernel.source, &["(int)((__global uint*)b1)[", "((__global uint*)b1)["]);
}

const TWO: &str = "layout(local_size_x = 4) in;\n\
    layout(set = 0, binding = 0) uniform sampler2D s;\n\
    layout(set = 0, binding = 1, rgba32f) writeonly uniform image2D u;";
const TWO_BODY: &str = "ivec2 at = ivec2(gl_GlobalInvocationID.xy);\n\
    vec4 v = texelFetch(s, at, 0) + vec4(textureSize(s, 0), imageSize(u)) + textureLod(s, vec2(at) + 0.5, 0.0);\n\
    imageStore(u, at, v);";

#[test]
fn images_are_images_where_the_device_has_them() {
    let kernel = translate(&compile(TWO, TWO_BODY), &IMAGES).unwrap();
    let image = |sampler_follows| OpenClForm::Image { sampler_follows };
    assert_eq!(forms(&kernel), [image(true), image(false)]);
    assert!(kernel.memory_follows);
    contains(
        &kernel.source,
        &[
            "(read_only image2d_t b0, sampler_t b0_s, write_only image2d_t b1, __global uchar* memory)",
            "__constant sampler_t edge_ = CLK_NORMALIZED_COORDS_FALSE",
            "read_imagef(b0, edge_, v",
            "read_imagef(b0, b0_s, v",
            "get_image_dim(b0)",
            "if (plane_has(get_image_dim(b1), v",
            "write_imagef(b1, v",
        ],
    );
    // Without a sample there is no sampler.
    let words = compile(TWO, "imageStore(u, ivec2(0), texelFetch(s, ivec2(1), 0));");
    assert_eq!(forms(&translate(&words, &IMAGES).unwrap()), [image(false), image(false)]);
}

#[test]
fn images_are_rows_of_texels_elsewhere() {
    let kernel = translate(&compile(TWO, TWO_BODY), &LINES).unwrap();
    assert_eq!(forms(&kernel), [OpenClForm::Line, OpenClForm::Line]);
    assert!(kernel.memory_follows);
    contains(
        &kernel.source,
        &[
            "(read_only image1d_buffer_t b0, int4 b0_at, write_only image1d_buffer_t b1, int4 b1_at, __global uchar* memory)",
            "read_imagef(b0, line_at(b0_at, v",
            "line_at(b0_at, convert_int2_sat_rtn(v",
            "b0_at.yz",
            "if (line_has(b1_at, v",
            "write_imagef(b1, line_at(b1_at, v",
        ],
    );
    assert!(!kernel.source.contains("sampler_t") && !kernel.source.contains("get_image_"));
}

#[test]
fn texels_of_integers_have_functions_of_their_own() {
    let head = format!(
        "{Y}\nlayout(set = 0, binding = 1) uniform usampler2D s;\n\
         layout(set = 0, binding = 2, rgba32i) writeonly uniform iimage2D u;"
    );
    let words =
        compile(&head, "y[0] = texelFetch(s, ivec2(y[1]), 0).z; imageStore(u, ivec2(2), ivec4(y[2]));");
    for options in [LINES, IMAGES] {
        contains(&translate(&words, &options).unwrap().source, &["read_imageui(b1, ", "write_imagei(b2, "]);
    }
}

#[test]
fn functions_take_images_with_what_belongs_to_them() {
    let head = format!(
        "{Y}\nlayout(set = 0, binding = 1) uniform sampler2D s;\n\
         float at(sampler2D t, vec2 p) {{ return textureLod(t, p, 0.0).x + texelFetch(s, ivec2(p), 0).y; }}"
    );
    let words = compile(&head, "y[0] = uint(at(s, vec2(y[1])));");
    let text = translate(&words, &LINES).unwrap().source;
    assert_eq!(text.matches("read_only image1d_buffer_t").count(), 3, "{text}");
    contains(&text, &["b1, b1_at, "]);
    let text = translate(&words, &IMAGES).unwrap().source;
    assert_eq!(text.matches("read_only image2d_t").count(), 3, "{text}");
    contains(&text, &["b1, b1_s, "]);
}

#[test]
fn what_images_have_no_translation_is_named() {
    let refused = |declared: &str, body: &str| {
        let head = format!("{Y}\nlayout(set = 0, binding = 1{declared};");
        let words = compile(&head, body);
        [LINES, IMAGES].map(|options| match translate(&words, &options) {
            Err(error) => error.to_string(),
            Ok(kernel) => panic!("{}", kernel.source),
        })
    };
    for (declared, body, word) in [
        (") uniform sampler3D t", "y[0] = uint(texelFetch(t, ivec3(0), 0).x);", "this kind"),
        (") uniform sampler2DArray t", "y[0] = uint(texelFetch(t, ivec3(0), 0).x);", "this kind"),
        (") uniform samplerCube t", "y[0] = uint(textureLod(t, vec3(0), 0.0).x);", "this kind"),
        (") uniform sampler2DShadow t", "y[0] = uint(textureLod(t, vec3(0), 0.0));", "this kind"),
        (", rgba8) writeonly uniform image2D t", "imageStore(t, ivec2(0), vec4(1));", "format"),
        (", r32f) uniform image2D t", "imageStore(t, ivec2(0), imageLoad(t, ivec2(1)));", "read and written"),
        (") uniform sampler2D t", "y[0] = uint(textureGather(t, vec2(0)).x);", "ImageGather"),
        (") uniform sampler2D t", "y[0] = uint(texelFetchOffset(t, ivec2(0), 0, ivec2(1)).x);", "operands"),
        (") uniform sampler2D t", "y[0] = uint(textureGrad(t, vec2(0), vec2(1), vec2(1)).x);", "operands"),
        (") uniform sampler2D t[2]", "y[0] = uint(texelFetch(t[1], ivec2(0), 0).x);", "array of resources"),
    ] {
        for error in refused(declared, body) {
            assert!(error.contains(word), "{declared}: {error}");
        }
    }
    let head = "#extension GL_EXT_samplerless_texture_functions : require\n".to_owned() + Y;
    let head = format!("{head}\nlayout(set = 0, binding = 1) uniform texture2D t;");
    let error = translate(&compile(&head, "y[0] = uint(textureSize(t, 0).x);"), &IMAGES).unwrap_err();
    assert!(error.to_string().contains("without its sampler"), "{error}");
}
