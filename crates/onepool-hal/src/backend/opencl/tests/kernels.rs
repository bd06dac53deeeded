//! Kernels and their arguments.

use super::*;
use onepool_core::sync::read;

#[test]
fn constants_reach_somebodys_own_kernel_as_macros() {
    const TEXT: &str = "__kernel void fill(__global uint *y) { y[get_global_id(0)] = SPEC_3; }";
    let fixture = Fixture::new();
    let y = fixture.upload(&[0u32; 4]);
    let kernel = fixture.create(&own_source(TEXT), &[(3, 77)]).unwrap();
    let args = vec![Arg::Buffer(fixture.all(y), WRITE)];
    let dispatch = Dispatch::new(kernel, args, vec![], [4, 1, 1]);
    fixture.run(&fixture.queue(), &recording(vec![Command::Dispatch(dispatch)]));
    assert_eq!(fixture.download::<u32>(y), [77; 4]);
}

#[test]
fn one_object_may_be_read_and_written_and_parts_may_not_cross() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let x = fixture.upload(&[1.0f32; 512]);
    let kernel = fixture.own();
    let same = part(x, 512, 512);
    fixture.run(&queue, &recording(vec![axpb(kernel, same, same, 128, 2.0, 1.0)]));
    let got = fixture.download::<f32>(x);
    assert!(got[128..256].iter().all(|x| *x == 3.0) && got[..128].iter().all(|x| *x == 1.0));
    let crossing = axpb(kernel, part(x, 0, 1024), part(x, 512, 512), 128, 1.0, 0.0);
    let error = queue.submit(&recording(vec![crossing])).unwrap_err();
    assert!(error.to_string().contains("overlap in part"), "{error}");
}

/// Ranges of one buffer as an arena has them, of kernels of someone's own in one recording.
#[test]
fn ranges_that_overlap_from_dispatch_to_dispatch_have_no_sub_buffers_that_do() {
    for fixture in [Fixture::new(), Fixture::discrete()] {
        let queue = fixture.queue();
        let start: Vec<f32> = (0..2048).map(|i| i as f32).collect();
        let arena = fixture.upload(&start);
        let kernel = fixture.own();
        // (from, to, elements), each after those before it.
        let steps = [(0, 512, 256), (640, 1152, 384), (384, 1024, 512), (1024, 1536, 256), (640, 128, 128)];
        let at = |from: u64, len: u64| part(arena, 4 * from, 4 * len);
        let call =
            |(from, to, len): (u64, u64, u64)| axpb(kernel, at(from, len), at(to, len), len as u32, 0.5, 1.0);
        let recording = recording(steps.map(call).to_vec());
        let mut expected = start.clone();
        let mut step = || {
            for (from, to, len) in steps.map(|(from, to, len)| (from as usize, to as usize, len as usize)) {
                let read = expected[from..from + len].to_vec();
                for (y, x) in expected[to..to + len].iter_mut().zip(read) {
                    *y = 0.5 * x + 1.0;
                }
            }
        };
        let prepared = queue.prepare(&recording).unwrap();
        let objects = || {
            let buffers = read(&fixture.context.tables.buffers);
            buffers.get(arena).unwrap().objects()
        };
        let disjoint = |parts: &[(usize, usize)]| {
            parts
                .iter()
                .enumerate()
                .all(|(i, a)| parts[..i].iter().all(|b| a.0 + a.1 <= b.0 || b.0 + b.1 <= a.0))
        };
        let (parts, copies) = objects();
        assert!(disjoint(&parts) && parts.len() > 2 && copies > 2, "{parts:?} {copies}");
        for _ in 0..2 {
            let point = queue.submit_prepared(prepared).unwrap();
            queue.wait(point, None).unwrap();
            step();
        }
        fixture.run(&queue, &recording);
        step();
        assert_eq!(fixture.download::<f32>(arena), expected);
        queue.release_prepared(prepared);
        // Once nothing uses the others a range is a sub-buffer again; and there are never many.
        let before = objects().1;
        for from in 0..1000 {
            let step = axpb(kernel, at(128 * (from % 12), 16), at(1920, 16), 16, 1.0, 0.0);
            fixture.run(&queue, &recording_of(step));
        }
        let (parts, copies) = objects();
        assert!(disjoint(&parts) && parts.len() <= 64 && copies == before, "{parts:?} {copies}");
        assert!(parts.contains(&(7680, 64)), "{parts:?}");
    }
}

fn recording_of(command: Command) -> Recording {
    recording(vec![command])
}

#[test]
fn text_that_is_no_kernel_is_refused() {
    let fixture = Fixture::new();
    let refused = |text| {
        let error = fixture.create(&own_source(text), &[]).unwrap_err();
        assert!(matches!(error, DeviceError::Program { .. }), "{error}");
        error.to_string()
    };
    let log = refused("__kernel void own(__global float *x) { x[0] = nonsense; }");
    assert!(log.contains("own") && log.contains("nonsense"), "{log}");
    assert!(refused("float f(void) { return 1.0f; }").contains("no kernel"));
}
