//! Device types of a graph's columns.

use onepool::tvm::GraphModule;

use crate::common::{numbers, open, tensor};

/// `y = ||x||`, the second call on devices of type `second`, the first on a Vulkan device.
fn json(second: i32) -> String {
    let node = |name: &str, input: usize| {
        format!(
            r#"{{"op":"tvm_op","name":"{name}","attrs":{{"func_name":"Abs","flatten_data":"0","num_inputs":"1","num_outputs":"1"}},"inputs":[[{input},0,0]]}}"#
        )
    };
    format!(
        r#"{{"nodes":[{{"op":"null","name":"x","inputs":[]}},{},{}],"arg_nodes":[0],"heads":[[2,0,0]],"node_row_ptr":[0,1,2,3],
            "attrs":{{"shape":["list_shape",[[8],[8],[8]]],"dltype":["list_str",["float32","float32","float32"]],
            "storage_id":["list_int",[0,1,2]],"device_index":["list_int",[7,7,{second}]]}}}}"#,
        node("a", 0),
        node("b", 1),
    )
}

/// TVM takes its first device for a type that no device has, and says nothing.
#[test]
fn a_device_type_that_is_not_in_the_table_is_an_error() {
    let table = [open("vulkan")];
    let run = |second: i32| -> Result<(), onepool::Error> {
        let mut m = GraphModule::create(&json(second), &Default::default(), &table)?;
        m.set_input("x", &tensor(&[8], &numbers(8, 1)))?;
        m.run()
    };
    run(7).unwrap();
    for unknown in [4, 99, -7] {
        let error = run(unknown).unwrap_err().to_string();
        assert!(error.contains("device"), "type {unknown}: {error}");
    }
}
