//! Every rule of a recording, broken once.

use onepool::backend::BufferDesc;
use onepool::backend::Placement;
use onepool::backend::sim::SimConfig;
use onepool::device::{Buffer, Context, KernelArg, Problem};
use onepool::memory::coherency::Access;
use onepool::recording::{Arg, BufferRange, Command, Dispatch, GridPart, Recording};

use crate::common::{add, add_on, buffer, contexts, cpu, problem, sim};

fn refused(context: &Context, command: Command) -> Problem {
    let recording = Recording { commands: vec![command], ..Recording::default() };
    let queue = context.queue().unwrap();
    let prepared = problem(queue.prepare(recording.clone()).unwrap_err());
    assert_eq!(problem(queue.submit(recording).unwrap_err()), prepared);
    prepared
}

fn range(buffer: &Buffer, offset: u64, bytes: u64) -> BufferRange {
    BufferRange { offset, bytes, ..buffer.range() }
}

#[test]
fn ranges_outside_a_buffer() {
    for context in contexts() {
        let x = buffer(&context, 256);
        for (offset, bytes) in [(0, 260), (256, 4), (u64::MAX - 3, 4), (4, u64::MAX - 7), (1 << 40, 4)] {
            let fill = Command::Fill { dst: range(&x, offset, bytes), value: 0 };
            assert!(matches!(refused(&context, fill), Problem::OutOfBounds { .. }), "{offset} {bytes}");
        }
        let empty = Command::Fill { dst: range(&x, 0, 0), value: 0 };
        assert_eq!(refused(&context, empty), Problem::Empty);
        for (offset, bytes) in [(0, 257), (256, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(matches!(x.sub_buffer(offset, bytes).unwrap_err().problem, Problem::OutOfBounds { .. }));
        }
        assert_eq!(x.sub_buffer(4, 0).unwrap_err().problem, Problem::Empty);
    }
}

#[test]
fn copies_and_fills() {
    let context = cpu();
    let (x, y) = (buffer(&context, 256), buffer(&context, 256));
    let uneven = Command::Copy { src: range(&x, 0, 8), dst: range(&y, 0, 12) };
    assert!(matches!(refused(&context, uneven), Problem::Mismatch { found: 12, expected: 8, .. }));
    let overlapping = Command::Copy { src: range(&x, 0, 8), dst: range(&x, 7, 8) };
    assert_eq!(refused(&context, overlapping), Problem::Overlap { first: 0, second: 1 });
    for (offset, bytes) in [(2, 8), (0, 6)] {
        let ragged = Command::Fill { dst: range(&x, offset, bytes), value: 0 };
        assert!(matches!(refused(&context, ragged), Problem::Misaligned { alignment: 4, .. }));
    }
    // Any byte offset is allowed for a copy.
    let queue = context.queue().unwrap();
    x.map_write().unwrap().copy_from_slice(&(0..=255).collect::<Vec<u8>>());
    let odd = Command::Copy { src: range(&x, 3, 7), dst: range(&y, 1, 7) };
    queue.submit(Recording { commands: vec![odd], ..Recording::default() }).unwrap().wait().unwrap();
    assert_eq!(y.map_read().unwrap()[1..8], [3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn dispatches() {
    for context in contexts() {
        let (x, y) = (buffer(&context, 1024), buffer(&context, 1024));
        let kernel = add_on(&context);
        let dispatch = |args: Vec<Arg>, params: usize| {
            Command::Dispatch(Dispatch::new(kernel.id(), args, vec![0; params], [1; 3]))
        };
        let (read, write) = (Access::KERNEL_READ, Access::KERNEL_WRITE);
        let aliased = vec![Arg::Buffer(x.range(), read), Arg::Buffer(range(&x, 512, 512), write)];
        let twice = vec![Arg::Buffer(x.range(), write), Arg::Absent, Arg::Buffer(x.range(), write)];
        let absent = vec![Arg::Buffer(x.range(), read), Arg::Absent];
        match context.info().api {
            _ if context.info().native => {
                assert_eq!(refused(&context, dispatch(aliased, 4)), Problem::Overlap { first: 0, second: 1 });
                assert_eq!(refused(&context, dispatch(twice, 4)), Problem::Overlap { first: 0, second: 2 });
            }
            "opencl" => {
                let recording = Recording { commands: vec![dispatch(aliased, 4)], ..Recording::default() };
                let error = context.queue().unwrap().submit(recording).unwrap_err();
                assert!(
                    error.to_string().contains("arguments 0 and 1 of kernel add that overlap"),
                    "{error}"
                );
                assert_eq!(refused(&context, dispatch(absent, 4)), Problem::Absent { argument: 1 });
            }
            // A module says how many arguments it takes; they may share bytes.
            _ => {
                let count = Problem::Mismatch { what: "the number of arguments", found: 3, expected: 2 };
                assert_eq!(refused(&context, dispatch(twice, 4)), count);
                assert_eq!(refused(&context, dispatch(absent, 4)), Problem::Absent { argument: 1 });
                let bytes =
                    Problem::Mismatch { what: "the number of parameter bytes", found: 8, expected: 4 };
                assert_eq!(refused(&context, dispatch(aliased, 8)), bytes);
            }
        }
        let to = Arg::Buffer(y.range(), write);
        for access in [Access::NONE, Access::TRANSFER_READ, Access::HOST_READ | read] {
            let wrong = vec![Arg::Buffer(x.range(), access), to];
            assert!(matches!(refused(&context, dispatch(wrong, 4)), Problem::Access { argument: 0, .. }));
        }
        // The CPU works on any address that its elements may have.
        if context.info().limits.argument_alignment > 4 {
            let odd = vec![Arg::Buffer(range(&x, 4, 4), read), to];
            assert!(matches!(refused(&context, dispatch(odd, 4)), Problem::Misaligned { found: 4, .. }));
        }
        let long = vec![Arg::Buffer(x.range(), read)];
        assert!(matches!(refused(&context, dispatch(long, 1 << 20)), Problem::Limit { .. }));
        // A part lies within its grid, on devices that have parts.
        let Command::Dispatch(mut part) = dispatch(vec![Arg::Buffer(x.range(), read), to], 4) else {
            unreachable!()
        };
        part.part = Some(GridPart { axis: 1, first: 3, whole: 3 });
        let problem = refused(&context, Command::Dispatch(part));
        match context.info().splits_grids {
            true => assert!(matches!(problem, Problem::Limit { found: 4, limit: 3, .. }), "{problem}"),
            false => assert_eq!(problem, Problem::Whole),
        }
        // Reading the same bytes twice is fine.
        let shared = vec![Arg::Buffer(x.range(), read), Arg::Buffer(y.range(), write)];
        let recording = Recording { commands: vec![dispatch(shared, 4)], ..Recording::default() };
        context.queue().unwrap().submit(recording).unwrap().wait().unwrap();
    }
}

#[test]
fn objects_of_another_context_or_gone() {
    let (context, other) = (cpu(), cpu());
    let (x, foreign) = (buffer(&context, 256), buffer(&other, 256));
    let queue = context.queue().unwrap();
    assert!(matches!(
        problem(queue.enqueue_copy(&x, &foreign).unwrap_err()),
        Problem::Foreign { object: "buffer" }
    ));
    let kernel = other.create_native_kernel(add()).unwrap();
    let args = [KernelArg::Read(&x)];
    let error = queue.enqueue_nd_range(&kernel, [1; 3], None, &args, &[]).unwrap_err();
    assert!(matches!(problem(error), Problem::Foreign { object: "kernel" }));
    let gone = x.range();
    drop(x);
    let fill = Command::Fill { dst: gone, value: 0 };
    assert!(matches!(refused(&context, fill), Problem::Foreign { object: "buffer" }));
}

#[test]
fn timestamps_flushes_and_sizes() {
    let context = sim(SimConfig::noncoherent());
    assert!(matches!(
        refused(&context, Command::Timestamp { slot: 0 }),
        Problem::Limit { found: 1, limit: 0, .. }
    ));
    let x = buffer(&context, 1000);
    let queue = context.queue().unwrap();
    for (offset, bytes) in [(4, 252), (0, 100)] {
        let recording = Recording { flush: vec![range(&x, offset, bytes)], ..Recording::default() };
        assert!(matches!(
            problem(queue.prepare(recording).unwrap_err()),
            Problem::Misaligned { alignment: 256, .. }
        ));
    }
    let to_the_end = Recording { invalidate: vec![range(&x, 768, 232)], ..Recording::default() };
    queue.submit(to_the_end).unwrap().wait().unwrap();
    let outside = Recording { flush: vec![range(&x, 768, 256)], ..Recording::default() };
    assert!(matches!(problem(queue.prepare(outside).unwrap_err()), Problem::OutOfBounds { .. }));
    let none = BufferDesc { bytes: 0, placement: Placement::Device, label: "none" };
    assert_eq!(problem(context.create_buffer(&none).unwrap_err()), Problem::Empty);
    for context in contexts() {
        for bytes in [u64::MAX, 1 << 62] {
            let huge = BufferDesc { bytes, placement: Placement::Device, label: "huge" };
            assert!(context.create_buffer(&huge).is_err());
        }
        assert_eq!((context.usage().allocated, context.budget().live()), (0, 0));
    }
}

#[test]
fn an_error_names_the_call_the_numbers_and_the_rule() {
    let context = cpu();
    let x = buffer(&context, 64);
    let queue = context.queue().unwrap();
    let error = queue.enqueue_copy(&x, &x).unwrap_err().to_string();
    assert!(error.starts_with("enqueue_copy: arguments 0 and 1 share bytes"), "{error}");
    assert!(error.ends_with("(VUID-vkCmdCopyBuffer-pRegions-00117)"), "{error}");
    let error = x.sub_buffer(60, 8).unwrap_err().to_string();
    assert_eq!(error, "sub_buffer: bytes 0x3c..0x44 lie outside the 64 bytes of the buffer");
}
