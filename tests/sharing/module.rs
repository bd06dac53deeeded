//! The graph module: what goes wrong in TVM's zero copy goes right here.

use onepool::device::Context;
use onepool::memory::import::Path;
use onepool::session::SessionError;
use onepool::tvm::{ExternalTensor, GraphModule};
use onepool::{DType, Error, Graph, GraphBuilder, Tensor};

use crate::common::{abs, check_messages, devices, floats, numbers, op, open, region, shape, tensor};

const N: usize = 32768;

fn module(graph: Graph, context: &Context) -> GraphModule {
    GraphModule::new(graph, std::slice::from_ref(context)).copy_threshold(0)
}

fn external(memory: &std::sync::Arc<onepool::SharedRegion>) -> ExternalTensor {
    ExternalTensor::in_region(memory, DType::F32, shape(&[memory.bytes() / 4]))
}

fn x_of(memory: &std::sync::Arc<onepool::SharedRegion>) -> ExternalTensor {
    ExternalTensor::in_region(memory, DType::F32, shape(&[128, 256]))
}

fn absolute(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| v.abs()).collect()
}

fn session_error<T: std::fmt::Debug>(result: Result<T, Error>) -> SessionError {
    match result {
        Err(Error::Session(e)) => e,
        other => panic!("no session error: {other:?}"),
    }
}

/// TVM's document of a graph over inputs and calls of one output each: (function, arguments, shape).
fn document(inputs: &[&[usize]], calls: &[(&str, &[usize], &[usize])], heads: &[usize]) -> String {
    let list = |items: Vec<String>| format!("[{}]", items.join(","));
    let mut nodes: Vec<String> =
        (0..inputs.len()).map(|i| format!(r#"{{"op":"null","name":"i{i}","inputs":[]}}"#)).collect();
    let mut shapes: Vec<String> = inputs.iter().map(|s| format!("{s:?}")).collect();
    for (i, (function, args, shape)) in calls.iter().enumerate() {
        let count = args.len();
        let args = list(args.iter().map(|a| format!("[{a},0,0]")).collect());
        let attrs = format!(
            r#"{{"func_name":"{function}","flatten_data":"0","num_inputs":"{count}","num_outputs":"1"}}"#
        );
        nodes.push(format!(r#"{{"op":"tvm_op","name":"n{i}","attrs":{attrs},"inputs":{args}}}"#));
        shapes.push(format!("{shape:?}"));
    }
    let n = nodes.len();
    let numbers = |n: usize| list((0..n).map(|i| i.to_string()).collect());
    let types = list(vec![r#""float32""#.to_owned(); n]);
    let heads = list(heads.iter().map(|h| format!("[{h},0,0]")).collect());
    format!(
        r#"{{"nodes":{},"arg_nodes":{},"heads":{heads},"node_row_ptr":{},"attrs":{{
            "shape":["list_shape",{}],"dltype":["list_str",{types}],"storage_id":["list_int",{}]}}}}"#,
        list(nodes),
        numbers(inputs.len()),
        numbers(n + 1),
        list(shapes),
        numbers(n),
    )
}

fn created(json: &str, context: &Context) -> GraphModule {
    GraphModule::create(json, &Default::default(), std::slice::from_ref(context)).unwrap().copy_threshold(0)
}

#[test]
fn names_numbers_and_values() {
    let context = open("cpu");
    let json = document(&[&[4], &[4]], &[("Add", &[0, 1], &[4])], &[2, 2]);
    let mut m = created(&json, &context);
    assert_eq!((m.get_num_inputs(), m.get_num_outputs()), (2, 2));
    assert_eq!((m.get_input_index("i1"), m.get_input_index("none")), (Some(1), None));
    assert!(m.get_output_index("none").is_none());
    assert!(matches!(session_error(m.run()), SessionError::Unbound { names } if names == ["i0", "i1"]));
    m.set_input(0, &tensor(&[4], &[1.0, 2.0, 3.0, 4.0])).unwrap();
    m.set_input("i1", &tensor(&[4], &[10.0; 4])).unwrap();
    assert!(matches!(session_error(m.get_output(0)), SessionError::NotRun));
    m.run().unwrap();
    for output in [0, 1] {
        assert_eq!(m.get_output(output).unwrap().as_slice::<f32>().unwrap(), [11.0, 12.0, 13.0, 14.0]);
    }
    assert_eq!(m.get_input(1).unwrap().as_slice::<f32>().unwrap(), [10.0; 4]);
    let unknown = |e: SessionError| matches!(e, SessionError::Unknown { .. });
    assert!(unknown(session_error(m.set_input("i2", &Tensor::scalar(1f32)))));
    assert!(unknown(session_error(m.set_input(2, &Tensor::scalar(1f32)))));
    assert!(unknown(session_error(m.get_output(2))));
    assert!(unknown(session_error(m.get_input("n0"))));
}

#[test]
fn type_shape_strides_and_capacity_of_foreign_memory_are_checked() {
    let context = open("cpu");
    let mut m = module(abs(N), &context);
    let memory = region(&numbers(N, 1));
    let of = |dtype, dims: &[usize]| ExternalTensor::in_region(&memory, dtype, shape(dims));
    for side in ["x", "y"] {
        // The output's type and shape are known once the input's are.
        m.set_input("x", &tensor(&[N], &numbers(N, 2))).unwrap();
        let mut set = |t: &ExternalTensor| match side {
            "x" => m.set_input_zero_copy(0, t),
            _ => m.set_output_zero_copy("y", t),
        };
        assert!(matches!(session_error(set(&of(DType::I32, &[N]))), SessionError::DType { .. }));
        assert!(matches!(session_error(set(&of(DType::F32, &[N / 2]))), SessionError::Shape { .. }));
        assert!(matches!(session_error(set(&of(DType::F32, &[N / 2, 2]))), SessionError::Shape { .. }));
        let strided = of(DType::F32, &[N]).strides([2]);
        assert!(matches!(session_error(set(&strided)), SessionError::Strides { .. }));
        let late = of(DType::F32, &[N]).byte_offset(4);
        let e = session_error(set(&late));
        assert!(matches!(e, SessionError::Capacity { needed, got, .. } if got + 4 == needed), "{e}");
        let beyond = of(DType::F32, &[N]).byte_offset(u64::MAX);
        assert!(matches!(session_error(set(&beyond)), SessionError::Capacity { .. }));
        set(&of(DType::F32, &[N]).strides([1])).unwrap();
    }
    // Nothing of the refused ones is left.
    m.set_output_zero_copy(0, &external(&region(&numbers(N, 3)))).unwrap();
    m.run().unwrap();
    assert_eq!(m.get_output(0).unwrap().as_slice::<f32>().unwrap(), absolute(&numbers(N, 2)));
}

#[test]
fn strides_of_sizes_of_one_do_not_matter() {
    let context = open("cpu");
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [1.into(), 4.into(), 1.into()]);
    let y = g.op(op("Abs"), &[x]);
    g.output("y", y);
    let mut m = module(g.build().unwrap(), &context);
    let memory = region(&[-1.0, 2.0, -3.0, 4.0]);
    let x = ExternalTensor::in_region(&memory, DType::F32, shape(&[1, 4, 1]));
    m.set_input_zero_copy("x", &x.clone().strides([99, 1, -7])).unwrap();
    m.run().unwrap();
    assert_eq!(m.get_output("y").unwrap().as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert!(m.set_input_zero_copy("x", &x.clone().strides([4, 1])).is_err());
    assert!(m.set_input_zero_copy("x", &x.strides([4, 2, 1])).is_err());
}

#[test]
fn memory_is_read_and_written_in_place() {
    for device in ["cpu", "sim", "vulkan"] {
        let context = open(device);
        let mut m = module(abs(N), &context).strict(true);
        let (x, y) = (region(&numbers(N, 1)), region(&vec![0.0; N]));
        m.set_input_zero_copy("x", &external(&x)).unwrap();
        m.set_output_zero_copy("y", &external(&y)).unwrap();
        for round in 0..3 {
            x.write().unwrap().as_mut_slice_of::<f32>().unwrap()[5] = round as f32 - 9.0;
            m.run().unwrap();
            assert_eq!(floats(&y), absolute(&floats(&x)), "{device}");
            assert_eq!(m.get_output(0).unwrap().as_slice::<f32>().unwrap(), floats(&y));
            assert_eq!(m.get_input(0).unwrap().as_slice::<f32>().unwrap(), floats(&x));
            let view = m.host_view("y").unwrap();
            assert_eq!(view.read().unwrap().as_slice_of::<f32>().unwrap(), floats(&y));
        }
        assert_eq!(m.verdicts().count(), 2);
        assert!(m.verdicts().all(|v| matches!(v.path, Path::Imported | Path::Host)), "{device}");
        check_messages(&context);
    }
}

#[test]
fn set_input_after_zero_copy_leaves_caller_memory_untouched() {
    for device in devices() {
        let context = open(device);
        let mut m = module(abs(N), &context);
        let (first, second) = (numbers(N, 1), numbers(N, 2));
        let x = region(&first);
        m.set_input_zero_copy("x", &external(&x)).unwrap();
        m.run().unwrap();
        assert_eq!(m.get_output("y").unwrap().as_slice::<f32>().unwrap(), absolute(&first));
        m.set_input("x", &tensor(&[N], &second)).unwrap();
        m.run().unwrap();
        assert_eq!(m.get_output("y").unwrap().as_slice::<f32>().unwrap(), absolute(&second));
        assert_eq!(floats(&x), first, "{device}");
        // The module let go of it.
        assert_eq!(std::sync::Arc::strong_count(&x), 1, "{device}");
        // And back.
        m.set_input_zero_copy("x", &external(&x)).unwrap();
        m.run().unwrap();
        assert_eq!(m.get_output("y").unwrap().as_slice::<f32>().unwrap(), absolute(&first));
        check_messages(&context);
    }
}

#[test]
fn an_output_gets_memory_of_its_own_again() {
    for device in devices() {
        let context = open(device);
        let mut m = module(abs(N), &context);
        let y = region(&vec![7.0; N]);
        m.set_input("x", &tensor(&[N], &numbers(N, 1))).unwrap();
        m.run().unwrap();
        m.set_output_zero_copy(0, &external(&y)).unwrap();
        m.run().unwrap();
        assert_eq!(floats(&y), absolute(&numbers(N, 1)), "{device}");
        m.reset_output(0).unwrap();
        m.set_input("x", &tensor(&[N], &numbers(N, 2))).unwrap();
        m.run().unwrap();
        assert_eq!(floats(&y), absolute(&numbers(N, 1)), "{device}");
        assert_eq!(m.get_output(0).unwrap().as_slice::<f32>().unwrap(), absolute(&numbers(N, 2)));
        check_messages(&context);
    }
}

#[test]
fn an_input_that_is_also_an_output() {
    for device in devices() {
        let context = open(device);
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [N.into()]);
        let y = g.op(op("Abs"), &[x]);
        g.output("same", x);
        g.output("y", y);
        let mut m = module(g.build().unwrap(), &context);
        let (x, same) = (region(&numbers(N, 4)), region(&vec![0.0; N]));
        m.set_input_zero_copy("x", &external(&x)).unwrap();
        m.run().unwrap();
        assert_eq!(m.get_output("same").unwrap().as_slice::<f32>().unwrap(), numbers(N, 4), "{device}");
        m.set_output_zero_copy("same", &external(&same)).unwrap();
        m.run().unwrap();
        assert_eq!(floats(&same), numbers(N, 4), "{device}");
        assert_eq!(m.get_output("y").unwrap().as_slice::<f32>().unwrap(), absolute(&numbers(N, 4)));
        check_messages(&context);
    }
}

#[test]
fn a_reshape_of_an_input_as_output_and_chains_of_nops() {
    for device in devices() {
        let context = open(device);
        // A chain of nops after an input, and one between two calls and after the last.
        let json = document(
            &[&[4, 8192]],
            &[
                ("__nop", &[0], &[8192, 4]),
                ("__nop", &[1], &[N]),
                ("Abs", &[2], &[N]),
                ("__nop", &[3], &[2, N / 2]),
                ("__nop", &[4], &[4, 8192]),
                ("Neg", &[5], &[4, 8192]),
                ("__nop", &[6], &[N / 2, 2]),
                ("__nop", &[7], &[N]),
            ],
            &[1, 2, 5, 7, 8],
        );
        let mut m = created(&json, &context);
        let x = numbers(N, 5);
        let memory = region(&x);
        let input = ExternalTensor::in_region(&memory, DType::F32, shape(&[4, 8192]));
        m.set_input_zero_copy("i0", &input).unwrap();
        let abs = absolute(&x);
        let neg: Vec<f32> = abs.iter().map(|v| 0.0 - v).collect();
        let want = [&x, &x, &abs, &neg, &neg];
        m.run().unwrap();
        for (i, want) in want.iter().enumerate() {
            assert_eq!(m.get_output(i).unwrap().as_slice::<f32>().unwrap(), **want, "{device}: output {i}");
        }
        let dims: [&[usize]; 5] = [&[8192, 4], &[N], &[4, 8192], &[N / 2, 2], &[N]];
        let outputs: Vec<_> = dims.iter().map(|_| region(&vec![99.0; N])).collect();
        for (i, (memory, dims)) in outputs.iter().zip(dims).enumerate() {
            let output = ExternalTensor::in_region(memory, DType::F32, shape(dims));
            m.set_output_zero_copy(i, &output).unwrap();
        }
        for _ in 0..2 {
            m.run().unwrap();
            for (i, (memory, want)) in outputs.iter().zip(want).enumerate() {
                assert_eq!(floats(memory), *want, "{device}: memory of output {i}");
                assert_eq!(m.get_output(i).unwrap().as_slice::<f32>().unwrap(), *want, "{device}: {i}");
            }
        }
        assert_eq!(floats(&memory), x, "{device}");
        check_messages(&context);
    }
}

#[test]
fn one_buffer_as_input_and_output_is_ordered_or_refused() {
    for device in devices() {
        let context = open(device);
        let in_place = context.info().import.is_some();
        // One command reads and writes it; what is copied in and out overlaps nothing.
        let mut m = module(abs(N), &context);
        let memory = region(&numbers(N, 6));
        m.set_input_zero_copy("x", &external(&memory)).unwrap();
        m.set_output_zero_copy("y", &external(&memory)).unwrap();
        if in_place {
            let e = session_error(m.run());
            assert!(
                matches!(&e, SessionError::Overlap { first, second } if first == "x" && second == "y"),
                "{e}"
            );
            assert_eq!(floats(&memory), numbers(N, 6), "{device}");
        } else {
            m.run().unwrap();
            assert_eq!(floats(&memory), absolute(&numbers(N, 6)), "{device}");
        }
        // The last command that reads it is before the first that writes it.
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [128.into(), 256.into()]);
        let next: Vec<f32> = (0..256 * 256).map(|i| f32::from(u8::from(i / 256 == (i + 1) % 256))).collect();
        let w = g.constant("w", tensor(&[256, 256], &next));
        let y = g.op(op("MatMul"), &[x, w]);
        let y = g.op(op("MatMul"), &[y, w]);
        g.output("y", y);
        let mut m = module(g.build().unwrap(), &context);
        let memory = region(&numbers(N, 8));
        m.set_input_zero_copy("x", &x_of(&memory)).unwrap();
        m.set_output_zero_copy("y", &x_of(&memory)).unwrap();
        m.run().unwrap();
        let x = numbers(N, 8);
        let want: Vec<f32> = (0..N).map(|i| x[i / 256 * 256 + (i + 2) % 256]).collect();
        assert_eq!(floats(&memory), want, "{device}");
        if !in_place {
            check_messages(&context);
            continue;
        }
        // The first output is written before the input is read again.
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [128.into(), 256.into()]);
        let t = onepool::ops::movement::Transpose { perm: None };
        let a = g.op(std::sync::Arc::new(t) as std::sync::Arc<dyn onepool::ops::Operator>, &[x]);
        let b = g.op(op("MatMul"), &[x, a]);
        g.output("a", a);
        g.output("b", b);
        let mut m = module(g.build().unwrap(), &context);
        let memory = region(&numbers(N, 7));
        let x = x_of(&memory);
        let a = ExternalTensor::in_region(&memory, DType::F32, shape(&[256, 128]));
        m.set_input_zero_copy("x", &x).unwrap();
        m.set_output_zero_copy("a", &a).unwrap();
        let e = session_error(m.run());
        assert!(matches!(e, SessionError::Overlap { .. }), "{device}: {e}");
        assert_eq!(floats(&memory), numbers(N, 7), "{device}");
        // Another output is written by an earlier kernel than the one that reads the input.
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [128.into(), 256.into()]);
        let z = g.input("z", DType::F32, [128.into(), 256.into()]);
        let t = onepool::ops::movement::Transpose { perm: None };
        let early = g.op(std::sync::Arc::new(t) as std::sync::Arc<dyn onepool::ops::Operator>, &[z]);
        let late = g.op(op("MatMul"), &[x, early]);
        g.output("early", early);
        g.output("late", late);
        let mut other = module(g.build().unwrap(), &context);
        other.set_input_zero_copy("x", &x_of(&memory)).unwrap();
        other.set_input("z", &tensor(&[128, 256], &numbers(N, 9))).unwrap();
        other.set_output_zero_copy("early", &a).unwrap();
        let e = session_error(other.run());
        assert!(matches!(e, SessionError::Overlap { .. }), "{device}: {e}");
        assert_eq!(floats(&memory), numbers(N, 7), "{device}");
        // Bound apart it runs.
        let apart = region(&vec![0.0; N]);
        m.set_output_zero_copy("a", &ExternalTensor::in_region(&apart, DType::F32, shape(&[256, 128])))
            .unwrap();
        m.run().unwrap();
        assert_eq!(floats(&apart)[1], numbers(N, 7)[256], "{device}");
        check_messages(&context);
    }
}

#[test]
fn memory_is_set_again_before_each_run() {
    for device in devices() {
        let context = open(device);
        let mut m = module(abs(N), &context);
        let sides: Vec<_> = (0..3).map(|i| (region(&numbers(N, i)), region(&vec![0.0; N]))).collect();
        let mut imports = 0;
        for round in 0..9 {
            let (x, y) = &sides[round % 3];
            x.write().unwrap().as_mut_slice_of::<f32>().unwrap()[round] = -50.0;
            m.set_input_zero_copy("x", &external(x)).unwrap();
            m.set_output_zero_copy("y", &external(y)).unwrap();
            m.run().unwrap();
            assert_eq!(floats(y), absolute(&floats(x)), "{device}: round {round}");
            // Memory that comes again is imported still.
            if round == 2 {
                imports = context.usage().imports;
            }
        }
        assert_eq!(context.usage().imports, imports, "{device}");
        check_messages(&context);
    }
}

#[test]
fn memory_dropped_in_flight_lives_until_the_run_has_finished() {
    for device in devices() {
        let context = open(device);
        for round in 0..20 {
            let mut m = module(abs(N), &context);
            let (x, y) = (region(&numbers(N, round)), region(&vec![0.0; N]));
            m.set_input_zero_copy("x", &external(&x)).unwrap();
            m.set_output_zero_copy("y", &external(&y)).unwrap();
            let run = m.submit().unwrap();
            drop((x, y));
            if round % 2 == 0 {
                run.wait().unwrap();
                assert_eq!(m.get_output(0).unwrap().as_slice::<f32>().unwrap(), absolute(&numbers(N, round)));
            } else {
                // Neither the run nor the module is waited for.
                drop(run);
                drop(m);
            }
        }
        context.queue().unwrap().finish().unwrap();
        check_messages(&context);
    }
}

#[test]
fn device_buffers_are_set_without_a_copy() {
    use onepool::backend::{BufferDesc, Placement};
    for device in devices() {
        let context = open(device);
        let at = context.info().limits.argument_alignment.max(256);
        let bytes = 4 * N as u64 + at;
        let desc = BufferDesc { bytes, placement: Placement::Shared, label: "caller's" };
        let (x, y) = (context.create_buffer(&desc).unwrap(), context.create_buffer(&desc).unwrap());
        let values = numbers(N, 8);
        let host = context.host_ptr_from_device(&x).unwrap();
        assert_eq!(context.device_ptr_from_host(host).unwrap().buffer, x.range().buffer);
        x.map_write().unwrap()[at as usize..].copy_from_slice(bytemuck::cast_slice(&values));
        let mut m = module(abs(N), &context);
        let part = |b| ExternalTensor::in_buffer(b, DType::F32, shape(&[N])).byte_offset(at);
        m.set_input_zero_copy("x", &part(&x)).unwrap();
        m.set_output_zero_copy("y", &part(&y)).unwrap();
        m.run().unwrap();
        assert!(m.verdicts().all(|v| v.path == Path::Direct), "{device}");
        assert_eq!(m.get_output(0).unwrap().as_slice::<f32>().unwrap(), absolute(&values), "{device}");
        assert_eq!(m.get_input(0).unwrap().as_slice::<f32>().unwrap(), values, "{device}");
        assert!(m.set_input_zero_copy("x", &part(&x).byte_offset(2 * at)).is_err());
        check_messages(&context);
    }
}
