//! Calls of the graph module that TVM answers wrongly, or not at all.

use std::time::{Duration, Instant};

use onepool::backend::{BufferDesc, Placement};
use onepool::session::SessionError;
use onepool::tvm::{Benchmark, BenchmarkDesc, ExternalTensor, GraphModule};
use onepool::{DType, Error, Graph, GraphBuilder, Memory};

use crate::common::{
    abs, check_messages, devices, floats, numbers, op, open, region, session, shape, tensor,
};

const N: usize = 32_768;

fn module(graph: Graph, context: &onepool::device::Context) -> GraphModule {
    GraphModule::new(graph, std::slice::from_ref(context)).copy_threshold(0)
}

fn session_error<T: std::fmt::Debug>(result: Result<T, Error>) -> SessionError {
    match result {
        Err(Error::Session(e)) => e,
        other => panic!("no session error: {other:?}"),
    }
}

fn absolute(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| v.abs()).collect()
}

/// Contexts number their buffers alike: a foreign one must not pass for one of this context.
#[test]
fn buffers_of_another_context_are_refused() {
    for device in devices() {
        let (here, there) = (open(device), open(device));
        let desc = BufferDesc { bytes: 4 * N as u64, placement: Placement::Shared, label: "caller's" };
        let own = here.create_buffer(&desc).unwrap();
        let foreign = there.create_buffer(&desc).unwrap();
        let mut m = module(abs(N), &here);
        let at = |b| ExternalTensor::in_buffer(b, DType::F32, shape(&[N]));
        let other = |e: SessionError| matches!(e, SessionError::OtherContext { .. });
        assert!(other(session_error(m.set_input_zero_copy("x", &at(&foreign)))), "{device}");
        m.set_input_zero_copy("x", &at(&own)).unwrap();
        assert!(other(session_error(m.set_output_zero_copy("y", &at(&foreign)))), "{device}");
        let session = session(abs(N), &here);
        let bound = session.bind().input("x", Memory::buffer(&foreign)).build();
        assert!(other(session_error(bound)), "{device}");
        let bound = session.bind().output("y", Memory::buffer(&foreign)).build();
        assert!(other(session_error(bound)), "{device}");
    }
}

#[test]
fn one_memory_for_two_outputs_is_refused_also_where_it_is_copied_to() {
    for device in devices() {
        for copy_threshold in [0, u64::MAX] {
            let context = open(device);
            let mut g = GraphBuilder::new("g");
            let x = g.input("x", DType::F32, [N.into()]);
            let (a, b) = (g.op(op("Abs"), &[x]), g.op(op("Neg"), &[x]));
            g.output("a", a);
            g.output("b", b);
            let mut m = module(g.build().unwrap(), &context).copy_threshold(copy_threshold);
            let memory = region(&vec![5.0; 2 * N]);
            let at = |from: usize| {
                ExternalTensor::in_region(&memory, DType::F32, shape(&[N])).byte_offset(4 * from as u64)
            };
            m.set_input("x", &tensor(&[N], &numbers(N, 1))).unwrap();
            m.set_output_zero_copy("a", &at(0)).unwrap();
            m.set_output_zero_copy("b", &at(N - 64)).unwrap();
            let e = session_error(m.run());
            assert!(matches!(e, SessionError::Overlap { .. }), "{device}: {e}");
            assert!(floats(&memory).iter().all(|v| *v == 5.0), "{device}");
            m.set_output_zero_copy("b", &at(N)).unwrap();
            m.run().unwrap();
            let want: Vec<f32> =
                numbers(N, 1).iter().map(|v| v.abs()).chain(numbers(N, 1).iter().map(|v| -v)).collect();
            assert_eq!(floats(&memory), want, "{device}");
            check_messages(&context);
        }
    }
}

#[test]
fn memory_that_no_run_has_written_is_no_result() {
    for device in devices() {
        let context = open(device);
        let mut m = module(abs(N), &context);
        m.set_input("x", &tensor(&[N], &numbers(N, 1))).unwrap();
        m.run().unwrap();
        let y = region(&vec![3.0; N]);
        m.set_output_zero_copy("y", &ExternalTensor::in_region(&y, DType::F32, shape(&[N]))).unwrap();
        let mut bytes = vec![0u8; 4 * N];
        assert!(matches!(session_error(m.get_output("y")), SessionError::NotRun), "{device}");
        assert!(matches!(session_error(m.get_output_into("y", &mut bytes)), SessionError::NotRun));
        m.run().unwrap();
        m.get_output_into("y", &mut bytes).unwrap();
        let got: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        assert_eq!(got, absolute(&numbers(N, 1)), "{device}");
        assert!(matches!(
            session_error(m.get_output_into("y", &mut bytes[4..])),
            SessionError::Capacity { .. }
        ));
        check_messages(&context);
    }
}

#[test]
fn outputs_answer_to_their_name_and_to_tvms() {
    let context = open("cpu");
    let mut m = module(abs(8), &context);
    m.set_input("x", &tensor(&[8], &numbers(8, 1))).unwrap();
    let y = region(&[0.0; 8]);
    let y = ExternalTensor::in_region(&y, DType::F32, shape(&[8]));
    for name in ["y", "y:0"] {
        m.set_output_zero_copy(name, &y).unwrap();
        m.run().unwrap();
        assert_eq!(m.get_output(name).unwrap().as_slice::<f32>().unwrap(), absolute(&numbers(8, 1)));
    }
    for name in ["y:1", "x:0", "y:", ":0", "y:-1"] {
        assert!(
            matches!(session_error(m.set_output_zero_copy(name, &y)), SessionError::Unknown { .. }),
            "{name}"
        );
    }
}

#[test]
fn inputs_are_told_without_parameters_and_outputs_by_entry() {
    let context = open("cpu");
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [2.into(), 8.into()]);
    let w = g.input("w", DType::F32, [8.into()]);
    let a = g.op(op("Add"), &[x, w]);
    let b = g.op(op("ReduceSum"), &[a]);
    g.output("a", a);
    g.output("b", b);
    let mut m = module(g.build().unwrap(), &context);
    assert_eq!(m.get_input_info().len(), 2);
    m.set_shared_input("w", &tensor(&[8], &[1.0; 8])).unwrap();
    let names: Vec<_> = m.get_input_info().into_iter().map(|io| io.name).collect();
    assert_eq!((names, m.get_num_inputs()), (vec!["x".to_owned()], 2));
    assert!(matches!(session_error(m.get_output_info()), SessionError::Unbound { names } if names == ["x"]));
    m.set_input("x", &tensor(&[2, 8], &[1.0; 16])).unwrap();
    let told: Vec<_> = m.get_output_info().unwrap().into_iter().map(|io| (io.name, io.dtype)).collect();
    assert_eq!(told, [("a".to_owned(), Some(DType::F32)), ("b".to_owned(), Some(DType::F32))]);
}

#[test]
fn runs_are_made_and_measured_by_tvms_names() {
    for device in devices() {
        let context = open(device);
        let mut m = module(abs(N), &context);
        let desc = BenchmarkDesc { repeat: 3, number: 2, end_to_end: true, ..BenchmarkDesc::default() };
        assert!(matches!(session_error(m.benchmark(&desc)), SessionError::Unbound { .. }));
        let x = numbers(N, 1);
        let results = m.run_from_inputs(&[("x", &tensor(&[N], &x))]).unwrap();
        assert_eq!(results.len(), 1);
        assert_eq!(results[0].as_slice::<f32>().unwrap(), absolute(&x), "{device}");
        let unknown = session_error(m.run_from_inputs(&[("z", &tensor(&[N], &x))]));
        assert!(matches!(unknown, SessionError::Unknown { .. }), "{unknown}");
        let times = m.benchmark(&desc).unwrap();
        assert_eq!(times.results.len(), 3);
        assert!(times.min() > 0.0 && times.min() <= times.median() && times.median() <= times.max());
        assert!(times.min() <= times.mean() && times.mean() <= times.max() && times.std() <= times.max());
        // As many runs as take the time.
        let long =
            BenchmarkDesc { repeat: 1, number: 1, min_repeat: Duration::from_millis(20), end_to_end: false };
        let began = Instant::now();
        let times = m.benchmark(&long).unwrap();
        assert!(began.elapsed() >= long.min_repeat && times.max() < 1.0);
        let profile = m.profile().unwrap();
        // Times of operators are told where the device has a clock.
        let timed = context.info().timestamp_ns == 0.0 || !profile.nodes.is_empty();
        assert!(timed && profile.host_nanos > 0, "{device}: {profile:?}");
        check_messages(&context);
    }
    let two = Benchmark { results: vec![3.0, 1.0] };
    assert_eq!([two.min(), two.median(), two.mean(), two.max(), two.std()], [1.0, 2.0, 2.0, 3.0, 1.0]);
    assert_eq!(Benchmark::default().median(), 0.0);
}

/// Nothing of an empty tensor is read or written, so that it may begin where its memory ends.
#[test]
fn an_empty_tensor_may_lie_at_the_end_of_its_memory() {
    for device in devices() {
        let context = open(device);
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, ["n".into()]);
        let y = g.op(op("Abs"), &[x]);
        g.output("y", y);
        let mut m = GraphModule::new(g.build().unwrap(), std::slice::from_ref(&context));
        let desc = BufferDesc { bytes: 4096, placement: Placement::Shared, label: "caller's" };
        let (buffer, memory) = (context.create_buffer(&desc).unwrap(), region(&[0.0; 1024]));
        for at in [0, 4092, 4096] {
            let placed = [
                ExternalTensor::in_buffer(&buffer, DType::F32, shape(&[0])).byte_offset(at),
                ExternalTensor::in_region(&memory, DType::F32, shape(&[0])).byte_offset(at),
            ];
            for (x, y) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                m.set_input_zero_copy("x", &placed[x]).unwrap();
                m.set_output_zero_copy("y", &placed[y]).unwrap();
                m.run().unwrap();
                assert_eq!(m.get_output("y").unwrap().info().elements(), 0, "{device} {at}");
                assert_eq!(m.get_input("x").unwrap().info().elements(), 0, "{device} {at}");
            }
        }
        let beyond = ExternalTensor::in_buffer(&buffer, DType::F32, shape(&[0])).byte_offset(4097);
        let error = session_error(m.set_input_zero_copy("x", &beyond));
        assert!(matches!(error, SessionError::Capacity { got: 0, .. }), "{error}");
        check_messages(&context);
    }
}
