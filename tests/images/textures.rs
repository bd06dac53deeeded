//! TVM's storage scopes with kernels of the caller's that declare images, and TVM's planner cases.

use onepool::device::Context;
use onepool::loader::tvm::{FunctionTable, load_tvm_bytes};
use onepool::ops::custom::{Grid, KernelCall};
use onepool::plan::Plan;
use onepool::{DType, Session, Shape, Tensor, TensorInfo};

use crate::common::{check_messages, kernel, numbers, open, spirv_devices};

/// A kernel that computes `y = 2 x + 1` texel by texel over `width` texels of a row; `from` and `to` say what its
/// bindings are.
fn twice(name: &'static str, width: usize, from: Side, to: Side) -> KernelCall {
    let declare = |binding: usize, side: Side| match side {
        Side::Buffer => {
            format!("layout(binding = {binding}, std430) buffer B{binding} {{ vec4 b{binding}[]; }};")
        }
        Side::Sampled => format!("layout(binding = {binding}) uniform sampler2D b{binding};"),
        Side::Stored => format!("layout(binding = {binding}, rgba32f) uniform writeonly image2D b{binding};"),
    };
    let value = match from {
        Side::Buffer => "b0[i]".to_owned(),
        Side::Sampled => format!("texelFetch(b0, ivec2(i % {width}, i / {width}), 0)"),
        Side::Stored => "vec4(0)".to_owned(),
    };
    let store = match to {
        Side::Buffer => "b1[i] = v".to_owned(),
        _ => format!("imageStore(b1, ivec2(i % {width}, i / {width}), v)"),
    };
    let glsl = format!(
        "#version 450\nlayout(local_size_x = 1) in;\n{}\n{}\n\
         void main() {{ int i = int(gl_GlobalInvocationID.x); vec4 v = 2.0 * {value} + 1.0; {store}; }}",
        declare(0, from),
        declare(1, to)
    );
    KernelCall::new(kernel(name, &glsl), Grid::Groups([0; 3]))
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Buffer,
    Sampled,
    Stored,
}

/// TVM's document of a chain of functions over one shape, with the scope of each entry.
fn document(shapes: &[&[usize]], dtypes: &[&str], scopes: &[&str], functions: &[&str]) -> String {
    let n = shapes.len();
    let nodes: Vec<String> = (0..n)
        .map(|i| match i {
            0 => r#"{"op":"null","name":"x","inputs":[]}"#.to_owned(),
            _ => format!(
                r#"{{"op":"tvm_op","name":"n{i}","attrs":{{"func_name":"{}","flatten_data":"0","num_inputs":"1","num_outputs":"1"}},"inputs":[[{},0,0]]}}"#,
                functions[i - 1],
                i - 1
            ),
        })
        .collect();
    let list = |items: Vec<String>| items.join(",");
    let words = |items: &[&str]| list(items.iter().map(|s| format!("{s:?}")).collect());
    format!(
        r#"{{"nodes":[{}],"arg_nodes":[0],"heads":[[{},0,0]],"node_row_ptr":[{}],"attrs":{{
            "shape":["list_shape",[{}]],"dltype":["list_str",[{}]],"storage_id":["list_int",[{}]],
            "storage_scope":["list_str",[{}]]}}}}"#,
        list(nodes),
        n - 1,
        list((0..=n).map(|i| i.to_string()).collect()),
        list(shapes.iter().map(|s| format!("{s:?}")).collect()),
        words(dtypes),
        list((0..n).map(|i| i.to_string()).collect()),
        words(scopes)
    )
}

/// A chain buffer -> image -> image -> buffer over `dims` in `scope`, `width` texels to a row.
fn chain(context: &Context, dims: &[usize], width: usize, scope: &str) -> (Plan, Vec<f32>, Vec<f32>) {
    let texels: usize = dims.iter().product::<usize>() / 4;
    let mut table = FunctionTable::new();
    for (name, from, to) in [
        ("load", Side::Buffer, Side::Stored),
        ("keep", Side::Sampled, Side::Stored),
        ("store", Side::Sampled, Side::Buffer),
    ] {
        let call = KernelCall { grid: Grid::Groups([texels as u32, 1, 1]), ..twice(name, width, from, to) };
        table.insert(name, call);
    }
    let json =
        document(&[dims; 4], &["float32"; 4], &["global", scope, scope, ""], &["load", "keep", "store"]);
    let graph = load_tvm_bytes(json.as_bytes(), None, &table).unwrap().into_graph();
    let mut session =
        Session::builder().graph(graph).context(context.clone()).fallback(false).build().unwrap();
    let x = numbers(dims.iter().product(), 1);
    session.set_input("x", &Tensor::new(dims.to_vec(), &x).unwrap()).unwrap();
    let output = session.outputs()[0].name.clone();
    let mut got = Vec::new();
    for _ in 0..2 {
        session.run().unwrap();
        got = session.get_output(&output).unwrap().to_f32s().unwrap();
    }
    let info = TensorInfo::new(DType::F32, Shape::new(dims.to_vec()).unwrap());
    (session.plan(&[info]).unwrap(), x, got)
}

/// Runs the chain on every device that runs the kernels; the plans.
fn check_chain(dims: &[usize], width: usize, scope: &str) -> Vec<Plan> {
    let plans = spirv_devices().map(|device| {
        let context = open(device);
        let (plan, x, got) = chain(&context, dims, width, scope);
        let want: Vec<f32> = x.iter().map(|x| 8.0 * x + 7.0).collect();
        assert_eq!(got, want, "{device} {dims:?} {scope}");
        assert_eq!(plan.images.len(), 2, "{device}");
        assert!(plan.report.images.iter().all(|i| i.scope == scope && !i.copied && i.reason.is_none()));
        assert!(plan.report.nodes.iter().all(|n| n.op == "CustomKernel"), "{:?}", plan.report.nodes);
        check_messages(&context);
        plan
    });
    plans.collect()
}

#[test]
fn kernels_of_the_caller_read_and_write_textures() {
    // TVM's sizes, whose rows need no padding, and sizes whose rows do.
    check_chain(&[1, 22, 20, 20, 4], 400, "global.texture-nhwc");
    check_chain(&[1, 3, 5, 7, 4], 35, "global.texture-nhwc");
    check_chain(&[3, 5, 7, 4], 7, "global.texture");
    check_chain(&[3, 5, 7, 4], 35, "global.texture-weight");
}

/// TVM's case of a texture that a smaller one and a buffer take over: the bytes that TVM's rule plans.
#[test]
fn a_texture_of_140800_bytes_is_planned_as_tvm_plans_it() {
    for plan in check_chain(&[1, 22, 20, 20, 4], 400, "global.texture-nhwc") {
        let bytes: Vec<u64> = plan.images.iter().map(|i| i.image.bytes()).collect();
        assert_eq!(bytes, [140_800, 140_800]);
        assert!(plan.arenas[0].bytes <= plan.arenas[0].tvm_bytes);
    }
}

#[test]
fn a_weight_texture_of_302848_bytes_is_planned_as_tvm_plans_it() {
    for plan in check_chain(&[28, 676, 1, 1, 4], 676, "global.texture-weight") {
        let images: Vec<_> =
            plan.images.iter().map(|i| (i.image.bytes(), i.image.width, i.image.height)).collect();
        assert_eq!(images, [(302_848, 676, 28), (302_848, 676, 28)]);
        assert!(plan.arenas[0].bytes <= plan.arenas[0].tvm_bytes);
    }
}

#[test]
fn a_texture_of_576000_bytes_is_planned_as_tvm_plans_it() {
    for plan in check_chain(&[1, 40, 30, 30, 4], 900, "global.texture-nhwc") {
        let bytes: Vec<u64> = plan.images.iter().map(|i| i.image.bytes()).collect();
        assert_eq!(bytes, [576_000, 576_000]);
        assert!(plan.arenas[0].bytes <= plan.arenas[0].tvm_bytes);
    }
}

#[test]
fn a_kernel_that_needs_an_image_is_refused_where_there_is_none() {
    let mut table = FunctionTable::new();
    let call = twice("store", 7, Side::Sampled, Side::Buffer);
    table.insert("store", KernelCall { grid: Grid::Groups([105, 1, 1]), ..call });
    let dims: &[usize] = &[3, 5, 7, 4];
    let refused = |scope: &str, dims: &[usize], dtype: &str| {
        let json = document(&[dims; 2], &[dtype; 2], &[scope, ""], &["store"]);
        let graph = load_tvm_bytes(json.as_bytes(), None, &table).unwrap().into_graph();
        let context = open("vulkan");
        let session = Session::builder().graph(graph).context(context).fallback(false).build().unwrap();
        let dtype = if dtype == "float32" { DType::F32 } else { DType::I32 };
        let info = TensorInfo::new(dtype, Shape::new(dims.to_vec()).unwrap());
        session.plan(&[info]).unwrap_err().to_string()
    };
    assert!(refused("", dims, "float32").contains("input 0 is in no image"));
    assert!(refused("global.texture", &[3, 5, 7, 3], "float32").contains("no image"));
    assert!(refused("global.texture", dims, "int32").contains("no image"));
}
