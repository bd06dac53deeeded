//! Kernels and their arguments.

use super::*;
use onepool::kernel::spec;

#[test]
fn a_chain_of_dispatches_computes_in_order() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    for n in [1u32, 63, 64, 65, 1009] {
        let x: Vec<f32> = (0..n).map(|at| at as f32).collect();
        let bytes = u64::from(n) * 4;
        let (a, b, c) = (
            fixture.upload(&x),
            fixture.buffer(bytes, Placement::Device),
            fixture.buffer(bytes, Placement::Readback),
        );
        let kernel = fixture.kernel_with(id::AXPB_F32, &[(spec::axpb::LOCAL_SIZE_X, 64)]);
        fixture.run(
            &queue,
            &recording(vec![
                axpb(kernel, all(&fixture, a), all(&fixture, b), n, 2.0, 1.0),
                barrier(WRITE, READ),
                axpb(kernel, all(&fixture, b), all(&fixture, c), n, 3.0, -1.0),
                to_host(),
            ]),
        );
        let expected: Vec<f32> = x.iter().map(|x| (x * 2.0 + 1.0) * 3.0 - 1.0).collect();
        assert_eq!(fixture.download::<f32>(c), expected, "{n}");
    }
}

#[test]
fn a_work_group_size_can_be_chosen() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let x = fixture.upload(&[1.0f32; 100]);
    let y = fixture.buffer(400, Placement::Readback);
    let kernel = fixture.kernel_with(id::AXPB_F32, &[(spec::axpb::LOCAL_SIZE_X, 8)]);
    let mut command = axpb(kernel, all(&fixture, x), all(&fixture, y), 100, 5.0, 0.0);
    // Too few groups of 8 for 100 elements: the rest stays as it was filled.
    if let Command::Dispatch(dispatch) = &mut command {
        dispatch.groups = [2, 1, 1];
    }
    let fill = Command::Fill { dst: all(&fixture, y), value: 0 };
    fixture.run(&queue, &recording(vec![fill, barrier(Access::TRANSFER_WRITE, WRITE), command, to_host()]));
    let got = fixture.download::<f32>(y);
    assert_eq!((&got[..16], &got[16..]), (&[5.0; 16][..], &[0.0; 84][..]));
}

#[test]
fn texel_views_read_what_plain_buffers_read() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let x: Vec<f32> = (0..404).map(|at| at as f32 * 0.5).collect();
    let input = fixture.upload(&x);
    let alignment = fixture.context().info().limits.texel_alignment;
    let outputs: Vec<_> = [id::AXPB_F32X4, id::AXPB_F32X4T]
        .into_iter()
        .map(|id| {
            let kernel = fixture.kernel(id);
            let y = fixture.buffer(1600, Placement::Readback);
            let range = part(input, alignment, 1600 - alignment);
            let n = (range.bytes / 16) as u32;
            let run = recording(vec![axpb(kernel, range, all(&fixture, y), n, 2.0, 0.25), to_host()]);
            fixture.run(&queue, &run);
            // The same range again takes the view that is there.
            fixture.run(&queue, &run);
            fixture.download::<f32>(y)[..n as usize * 4].to_vec()
        })
        .collect();
    assert_eq!(outputs[0], outputs[1]);
    assert_eq!(outputs[1][0], x[alignment as usize / 4] * 2.0 + 0.25);
    let kernel = fixture.kernel(id::AXPB_F32X4T);
    let y = fixture.buffer(1600, Placement::Device);
    // Part of a texel at the end of the buffer.
    let ragged = axpb(kernel, part(input, 0, 1616), all(&fixture, y), 100, 1.0, 0.0);
    fixture.run(&queue, &recording(vec![ragged]));
    let short = fixture.buffer(1610, Placement::Shared);
    let ragged = axpb(kernel, part(short, 0, 1610), all(&fixture, y), 100, 1.0, 0.0);
    let error = queue.submit(&recording(vec![ragged])).unwrap_err();
    assert!(error.to_string().contains("part of a texel"), "{error}");
}

#[test]
fn a_buffer_does_not_collect_the_views_of_recordings_that_are_gone() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let x: Vec<f32> = (0..64 << 10).map(|at| at as f32).collect();
    let (input, y) = (fixture.upload(&x), fixture.buffer(256, Placement::Readback));
    let kernel = fixture.kernel(id::AXPB_F32X4T);
    let grain = fixture.context().info().limits.texel_alignment.max(16);
    let of = |from: u64| axpb(kernel, part(input, from * grain, 256), all(&fixture, y), 16, 2.0, 0.25);
    let kept = queue.prepare(&recording(vec![of(3), to_host()])).unwrap();
    let mut most = 0;
    for from in 0..500 {
        fixture.run(&queue, &recording(vec![of(from), to_host()]));
        let prepared = queue.prepare(&recording(vec![of(from + 500), to_host()])).unwrap();
        let point = queue.submit_prepared(prepared).unwrap();
        queue.release_prepared(prepared);
        queue.wait(point, None).unwrap();
        most = most.max(fixture.views(input));
    }
    assert!((2..=100).contains(&most), "{most} views");
    // One in use stays what it was.
    let point = queue.submit_prepared(kept).unwrap();
    queue.wait(point, None).unwrap();
    let first = (3 * grain / 4) as usize;
    let expected: Vec<f32> = x[first..first + 64].iter().map(|x| x * 2.0 + 0.25).collect();
    assert_eq!(fixture.download::<f32>(y), expected);
}

#[test]
fn an_empty_argument_is_bound_to_nothing_in_particular() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let (x, y) = (fixture.upload(&[1.0f32; 4]), fixture.upload(&[9.0f32; 4]));
    let kernel = fixture.kernel(id::AXPB_F32);
    let nothing = axpb(kernel, part(x, 16, 0), part(y, 0, 16), 0, 2.0, 0.0);
    fixture.run(&queue, &recording(vec![nothing, to_host()]));
    assert_eq!(fixture.download::<f32>(y), [9.0; 4]);
}

#[test]
fn a_dispatch_that_does_not_fit_its_kernel_is_an_error() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let x = fixture.upload(&[1.0f32; 1024]);
    let kernel = fixture.kernel(id::AXPB_F32);
    let sound = |edit: &dyn Fn(&mut Dispatch)| {
        let Command::Dispatch(mut dispatch) =
            axpb(kernel, part(x, 0, 1024), part(x, 2048, 1024), 256, 1.0, 0.0)
        else {
            unreachable!()
        };
        edit(&mut dispatch);
        queue.submit(&recording(vec![Command::Dispatch(dispatch)]))
    };
    let log = |edit: &dyn Fn(&mut Dispatch)| sound(edit).unwrap_err().to_string();
    assert!(log(&|d| d.args.truncate(1)).contains("2 arguments and was given 1"));
    assert!(log(&|d| d.args[0] = Arg::Absent).contains("absent"));
    assert!(log(&|d| d.params.truncate(8)).contains("12 bytes of parameters and was given 8"));
    assert!(log(&|d| d.args[0] = Arg::Buffer(part(x, 2, 1024), READ)).contains("byte 2"));
    assert!(log(&|d| d.args[0] = Arg::Buffer(part(x, 4092, 8), READ)).contains("end"));
    assert!(log(&|d| d.groups = [u32::MAX, 1, 1]).contains("work-groups"));
    assert!(sound(&|_| ()).is_ok());
}

#[test]
fn an_argument_above_the_device_range_is_refused() {
    let fixture = Fixture::new();
    let limits = fixture.context().info().limits.clone();
    let bytes = limits.max_argument_bytes + 256;
    if bytes > limits.max_buffer_bytes {
        return assert!(limits.max_argument_bytes >= limits.max_buffer_bytes - 256);
    }
    let x = fixture.buffer(bytes, Placement::Device);
    let y = fixture.buffer(1024, Placement::Device);
    let kernel = fixture.kernel(id::AXPB_F32);
    let command = axpb(kernel, part(x, 0, bytes), part(y, 0, 1024), 1, 1.0, 0.0);
    let error = fixture.queue().submit(&recording(vec![command])).unwrap_err();
    let limit = limits.max_argument_bytes;
    assert_eq!(error, DeviceError::Limit { what: "a kernel argument", asked: bytes, limit });
}

#[test]
fn a_kernel_beyond_the_device_is_refused_before_the_driver_sees_it() {
    let fixture = Fixture::new();
    let source = shipped(id::AXPB_F32);
    let refused = |spec: &[(u32, u32)]| {
        let error = fixture.context().create_kernel(&KernelDesc { source: &source, spec }).unwrap_err();
        assert!(matches!(error, DeviceError::Program { .. }), "{error}");
        error.to_string()
    };
    assert!(refused(&[(spec::axpb::LOCAL_SIZE_X, 1 << 20)]).contains("work-groups"));
    assert!(refused(&[(spec::axpb::LOCAL_SIZE_X, 0)]).contains("work-groups"));
    assert!(refused(&[(77, 1)]).contains("no specialization constant 77"));
    assert!(refused(&[(spec::axpb::LOCAL_SIZE_X, 64), (spec::axpb::LOCAL_SIZE_X, 64)]).contains("twice"));
    let native = KernelSource::from_native(crate::kernel::NativeKernel::new("twice", |_| Ok(())));
    let error = fixture.context().create_kernel(&KernelDesc { source: &native, spec: &[] }).unwrap_err();
    assert!(error.to_string().contains("no SPIR-V"), "{error}");
}

#[test]
fn every_shipped_kernel_that_the_device_can_run_is_created_from_several_threads() {
    let fixture = Fixture::new();
    let context = fixture.context();
    let features = context.info().features;
    let ids: Vec<KernelId> = KernelId::all().collect();
    let made = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for part in ids.chunks(ids.len().div_ceil(4)) {
            let made = &made;
            scope.spawn(move || {
                for id in part {
                    let source = shipped(*id);
                    let result = context.create_kernel(&KernelDesc { source: &source, spec: &[] });
                    if features.contains(source.requires()) {
                        context.destroy_kernel(result.unwrap_or_else(|error| panic!("{error}")));
                        made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    } else {
                        assert!(matches!(result, Err(DeviceError::Unsupported { .. })), "{result:?}");
                    }
                }
            });
        }
    });
    assert!(made.into_inner() > ids.len() / 2);
}
