//! Kernels and their arguments.

use super::*;
use onepool::kernel::spec;

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
fn the_lanes_that_the_device_says_are_taken_where_they_are_asked_for() {
    let fixture = Fixture::new();
    let device = &fixture.context().shared.device;
    let source = shipped(id::AXPB_F32);
    let desc = KernelDesc { source: &source, spec: &[(spec::axpb::LOCAL_SIZE_X, 64)] };
    let asked = device.subgroups.ask(device.info.subgroup, [64, 1, 1]);
    println!("{asked:?}");
    fixture.compile(&desc, Compiling { subgroup: asked.lanes, ..Compiling::default() }).unwrap();
}

#[test]
fn a_constant_that_is_given_twice_is_refused() {
    let fixture = Fixture::new();
    let source = shipped(id::AXPB_F32);
    let spec = &[(spec::axpb::LOCAL_SIZE_X, 64), (spec::axpb::LOCAL_SIZE_X, 64)];
    let error = fixture.context().create_kernel(&KernelDesc { source: &source, spec }).unwrap_err();
    assert!(matches!(error, DeviceError::Program { .. }) && error.to_string().contains("twice"), "{error}");
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

#[test]
fn a_part_of_a_grid_runs_its_work_groups_alone() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let x: Vec<f32> = (0..64 * 11 + 7).map(|at| at as f32).collect();
    let n = x.len() as u32;
    let (input, y) = (fixture.upload(&x), fixture.upload(&vec![-1.0f32; x.len()]));
    let kernel = fixture.kernel(id::AXPB_F32);
    let part_of = |from: u32, groups: u32, whole: u32| {
        let mut command = axpb(kernel, all(&fixture, input), all(&fixture, y), n, 2.0, 1.0);
        if let Command::Dispatch(dispatch) = &mut command {
            dispatch.part = (groups < whole).then_some(GridPart { axis: 0, first: from, whole });
            dispatch.groups = [groups, 1, 1];
        }
        command
    };
    let ran_in_parts = || read(&fixture.context().shared.kernels).get(kernel).unwrap().ran_in_parts();
    let expected = |groups: std::ops::Range<usize>| -> Vec<f32> {
        let of = |(at, x): (usize, &f32)| if groups.contains(&(at / 64)) { x * 2.0 + 1.0 } else { -1.0 };
        x.iter().enumerate().map(of).collect()
    };
    fixture.run(&queue, &recording(vec![part_of(0, 2, 2), to_host()]));
    assert_eq!(fixture.download::<f32>(y), expected(0..2));
    assert!(!ran_in_parts());
    fixture.run(&queue, &recording(vec![part_of(2, 3, 12), to_host()]));
    assert_eq!(fixture.download::<f32>(y), expected(0..5));
    assert!(ran_in_parts());
    // Both pipelines in one recording, and the last work-group, which is not full.
    let between = || barrier(WRITE, READ | WRITE);
    let rest = vec![part_of(11, 1, 12), between(), part_of(0, 1, 1), between(), part_of(5, 6, 12), to_host()];
    fixture.run(&queue, &recording(rest));
    assert_eq!(fixture.download::<f32>(y), expected(0..12));
    let most = fixture.context().info().limits.max_groups[0];
    if let Some(more) = most.checked_add(1) {
        let error = queue.submit(&recording(vec![part_of(0, more, more)])).unwrap_err();
        assert!(matches!(error, DeviceError::Limit { .. }), "{error}");
    }
}
