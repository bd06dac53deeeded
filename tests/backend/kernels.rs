//! Kernels and their arguments.

use onepool::backend::{DeviceError, Placement};
use onepool::kernel::{KernelSource, NativeKernel, spec};
use onepool::memory::coherency::Access;
use onepool::recording::{Arg, Command, Dispatch};

use crate::fixture::{Fixture, READ, WRITE, axpb, barrier, part, recording, to_host};
use crate::targets::{Code, Target};

crate::cases![
    a_chain_of_dispatches_computes_in_order,
    a_work_group_size_can_be_chosen,
    an_empty_argument_is_bound_to_nothing_in_particular,
    a_grid_without_groups_runs_nothing,
    a_dispatch_that_does_not_fit_its_kernel_is_an_error,
    an_argument_beyond_its_buffer_is_an_error,
    an_argument_above_the_device_range_is_refused,
    a_kernel_beyond_the_device_is_refused,
    a_kernel_in_a_form_that_the_device_does_not_run_is_refused,
];

fn a_chain_of_dispatches_computes_in_order(target: &'static Target) {
    let fixture = Fixture::new(target);
    let queue = fixture.queue();
    let kernel = fixture.axpb();
    for n in [1u32, 63, 64, 65, 1009] {
        let x: Vec<f32> = (0..n).map(|at| at as f32).collect();
        let bytes = u64::from(n) * 4;
        let (a, b) = (fixture.upload(&x), fixture.buffer(bytes, Placement::Device));
        let c = fixture.buffer(bytes, Placement::Readback);
        let run = recording(vec![
            axpb(kernel, fixture.all(a), fixture.all(b), n, 2.0, 1.0),
            barrier(WRITE, READ),
            axpb(kernel, fixture.all(b), fixture.all(c), n, 3.0, -1.0),
            to_host(),
        ]);
        fixture.run(&queue, &run);
        let expected: Vec<f32> = x.iter().map(|x| (x * 2.0 + 1.0) * 3.0 - 1.0).collect();
        assert_eq!(fixture.download::<f32>(c), expected, "{n}");
    }
}

fn a_work_group_size_can_be_chosen(target: &'static Target) {
    let fixture = Fixture::new(target);
    let x = fixture.upload(&[1.0f32; 100]);
    let y = fixture.buffer(400, Placement::Readback);
    let kernel = fixture.create(&fixture.axpb_source(), &[(spec::axpb::LOCAL_SIZE_X, 8)]).unwrap();
    let mut command = axpb(kernel, fixture.all(x), fixture.all(y), 100, 5.0, 0.0);
    // Too few groups of 8 for 100 elements: the rest stays as it was filled.
    if let Command::Dispatch(dispatch) = &mut command {
        dispatch.groups = [2, 1, 1];
    }
    let fill = Command::Fill { dst: fixture.all(y), value: 0 };
    let run = recording(vec![fill, barrier(Access::TRANSFER_WRITE, WRITE), command, to_host()]);
    fixture.run(&fixture.queue(), &run);
    let got = fixture.download::<f32>(y);
    assert_eq!((&got[..16], &got[16..]), (&[5.0; 16][..], &[0.0; 84][..]));
}

fn an_empty_argument_is_bound_to_nothing_in_particular(target: &'static Target) {
    let fixture = Fixture::new(target);
    let (x, y) = (fixture.upload(&[1.0f32; 1024]), fixture.upload(&[9.0f32; 4]));
    let alignment = fixture.context().info().limits.argument_alignment;
    for offset in [alignment, 4096] {
        let nothing = axpb(fixture.axpb(), part(x, offset, 0), part(y, 0, 16), 0, 2.0, 0.0);
        fixture.run(&fixture.queue(), &recording(vec![nothing, to_host()]));
        assert_eq!(fixture.download::<f32>(y), [9.0; 4]);
    }
}

fn a_grid_without_groups_runs_nothing(target: &'static Target) {
    let fixture = Fixture::new(target);
    let (x, y) = (fixture.upload(&[1.0f32; 4]), fixture.upload(&[9.0f32; 4]));
    let mut command = axpb(fixture.axpb(), fixture.all(x), fixture.all(y), 4, 2.0, 0.0);
    if let Command::Dispatch(dispatch) = &mut command {
        dispatch.groups = [0, 1, 1];
    }
    fixture.run(&fixture.queue(), &recording(vec![command, to_host()]));
    assert_eq!(fixture.download::<f32>(y), [9.0; 4]);
}

fn a_dispatch_that_does_not_fit_its_kernel_is_an_error(target: &'static Target) {
    let fixture = Fixture::new(target);
    let queue = fixture.queue();
    let x = fixture.upload(&[1.0f32; 1024]);
    let kernel = fixture.axpb();
    let changed = |edit: &dyn Fn(&mut Dispatch)| {
        let command = axpb(kernel, part(x, 0, 1024), part(x, 2048, 1024), 256, 1.0, 0.0);
        let Command::Dispatch(mut dispatch) = command else { unreachable!() };
        edit(&mut dispatch);
        queue.submit(&recording(vec![barrier(WRITE, READ | WRITE), Command::Dispatch(dispatch), to_host()]))
    };
    let log = |edit: &dyn Fn(&mut Dispatch)| changed(edit).unwrap_err().to_string();
    let (arguments, parameters) = match target.code {
        // Parameters are one more argument of a kernel in OpenCL C.
        Code::OpenClC => ("3 arguments", "and was given"),
        _ => ("2 arguments and was given 1", "12 bytes of parameters and was given 0"),
    };
    let said = log(&|dispatch| dispatch.args.truncate(1));
    assert!(said.contains(arguments), "{said}");
    let said = log(&|dispatch| dispatch.params.clear());
    assert!(said.contains(parameters), "{said}");
    let said = log(&|dispatch| dispatch.args[0] = Arg::Absent);
    assert!(said.contains("absent"), "{said}");
    let said = log(&|dispatch| dispatch.args[0] = Arg::Buffer(part(x, 2, 1024), READ));
    assert!(said.contains("byte 2"), "{said}");
    let said = log(&|dispatch| dispatch.groups = [u32::MAX, 1, 1]);
    assert!(said.contains("work-groups"), "{said}");
    let point = changed(&|_| ()).unwrap();
    queue.wait(point, None).unwrap();
    assert_eq!(fixture.download::<f32>(x), [1.0; 1024]);
}

fn an_argument_beyond_its_buffer_is_an_error(target: &'static Target) {
    let fixture = Fixture::new(target);
    let x = fixture.upload(&[1.0f32; 1024]);
    for (offset, bytes) in [(3840, 512), (4096, 4), (u64::MAX - 255, 512)] {
        let beyond = axpb(fixture.axpb(), part(x, offset, bytes), part(x, 0, 1024), 1, 1.0, 0.0);
        let error = fixture.queue().submit(&recording(vec![beyond])).unwrap_err();
        let expected = matches!(error, DeviceError::Limit { what: "a range's end", limit: 4096, .. });
        assert!(expected, "{offset} {bytes}: {error}");
    }
}

fn an_argument_above_the_device_range_is_refused(target: &'static Target) {
    let fixture = Fixture::new(target);
    let limits = fixture.context().info().limits.clone();
    let bytes = limits.max_argument_bytes.saturating_add(256);
    if bytes > limits.max_buffer_bytes {
        // No buffer is so large.
        return assert!(limits.max_argument_bytes >= limits.max_buffer_bytes - 256);
    }
    let (x, y) = (fixture.buffer(bytes, Placement::Device), fixture.buffer(1024, Placement::Device));
    let command = axpb(fixture.axpb(), part(x, 0, bytes), part(y, 0, 1024), 1, 1.0, 0.0);
    let error = fixture.queue().submit(&recording(vec![command])).unwrap_err();
    let limit = limits.max_argument_bytes;
    assert_eq!(error, DeviceError::Limit { what: "a kernel argument", asked: bytes, limit });
}

fn a_kernel_beyond_the_device_is_refused(target: &'static Target) {
    let fixture = Fixture::new(target);
    let source = fixture.axpb_source();
    let refused = |spec: &[(u32, u32)]| {
        let error = fixture.create(&source, spec).unwrap_err();
        assert!(matches!(error, DeviceError::Program { .. }), "{spec:?}: {error}");
        error.to_string()
    };
    let [large, none] = [1 << 20, 0].map(|size| refused(&[(spec::axpb::LOCAL_SIZE_X, size)]));
    // The driver's compiler says it on OpenCL.
    if target.api == "vulkan" {
        assert!(large.contains("work-groups") && none.contains("work-groups"), "{large} {none}");
    }
    assert!(refused(&[(77, 1)]).contains("no specialization constant 77"));
}

fn a_kernel_in_a_form_that_the_device_does_not_run_is_refused(target: &'static Target) {
    let fixture = Fixture::new(target);
    let (source, missing) = match target.api {
        "vulkan" => (KernelSource::from_native(NativeKernel::new("twice", |_| Ok(()))), "no SPIR-V"),
        "opencl" => {
            let native = NativeKernel::new("twice", |_| Ok(()));
            (KernelSource::from_native(native), "neither an OpenCL C nor a SPIR-V form")
        }
        _ => {
            let words = onepool::kernel::id::AXPB_F32.info().spirv().to_vec();
            (crate::foreign::spirv("twice", words).unwrap(), "no native function")
        }
    };
    let error = fixture.create(&source, &[]).unwrap_err().to_string();
    assert!(error.contains("twice") && error.contains(missing), "{error}");
}
