//! The application's memory: scopes, sharing of pages, refusals, addresses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use onepool::backend::sim::SimConfig;
use onepool::device::{Buffer, Context, Error, KernelArg, Lent, Problem};
use onepool::memory::host::HostRegion;
use onepool::memory::import::{ImportError, ReadWrite, Refusal};
use onepool::recording::Recording;

use crate::common::{SHOWN, add, add_on, contexts, cpu, gate, problem, sim, unary};

fn refusal(error: Error) -> Refusal {
    match error {
        Error::Import(ImportError::Refused(refusal)) => refusal,
        other => panic!("no refusal: {other}"),
    }
}

/// Page-aligned elements inside a vector, so that every device takes their offset.
fn aligned(bytes: &mut [u8]) -> &mut [f32] {
    let skip = bytes.as_ptr().align_offset(4096);
    bytemuck::cast_slice_mut(&mut bytes[skip..skip + 4096])
}

#[test]
fn borrowed_slices_are_read_and_written_in_place() {
    for context in importers() {
        let (mut input, mut output) = (vec![0u8; 3 * 4096], vec![0u8; 3 * 4096]);
        let (x, y) = (aligned(&mut input), aligned(&mut output));
        x.fill(2.5);
        let kernel = add_on(&context);
        let tried = context.scope(|scope| -> Result<(), Error> {
            let (x, y) = (scope.import(x)?, scope.import_mut(y)?);
            assert_eq!(context.usage().imported, 2 * 4096);
            let args = [KernelArg::Read(&x), KernelArg::Write(&y)];
            let queue = context.queue()?;
            // Neither flushed nor waited for: the end of the scope does both.
            queue.enqueue_nd_range(&kernel, [1024, 1, 1], None, &args, &1.0f32.to_ne_bytes())?;
            Ok(())
        });
        match tried {
            Ok(()) => assert_eq!(y, [3.5; 1024]),
            // A vector shares its pages with other data, which only coherent memory may.
            Err(error) => {
                assert_eq!(context.info().name, "noncoherent");
                assert!(matches!(error, Error::Import(_)), "{error}");
            }
        }
        assert_eq!(context.usage().imported, 0);
        assert_eq!(context.validation_messages(), Vec::<String>::new());
    }
}

#[test]
fn a_slice_lent_for_reading_is_never_written() {
    for context in [cpu(), sim(SimConfig::coherent())] {
        let mut bytes = vec![1u8; 3 * 4096];
        let lent = &*aligned(&mut bytes);
        context.scope(|scope| {
            let lent = scope.import(lent).unwrap();
            let queue = context.queue().unwrap();
            let refused = queue.enqueue_fill(&lent, 0).unwrap_err();
            assert!(matches!(problem(refused), Problem::Access { wanted: "written", given: "reading", .. }));
            assert!(matches!(problem(lent.map_write().unwrap_err()), Problem::Access { .. }));
            assert_eq!(*lent.map_read().unwrap(), [1; 4096]);
        });
    }
}

#[test]
fn what_leaves_a_scope_is_dead() {
    for context in [cpu(), sim(SimConfig::coherent())] {
        let mut bytes = vec![0u8; 3 * 4096];
        let slice = aligned(&mut bytes);
        let queue = context.queue().unwrap();
        let kernel = context.create_native_kernel(add()).unwrap();
        let other = crate::common::buffer(&context, 4096);
        let (escaped, prepared) = context.scope(|scope| {
            let lent = scope.import_mut(slice).unwrap();
            let escaped = Buffer::clone(&lent);
            let commands = vec![unary(&kernel, other.range(), lent.range(), &[0; 4])];
            (escaped, queue.prepare(Recording { commands, ..Recording::default() }).unwrap())
        });
        slice.fill(7.0);
        assert_eq!(problem(queue.submit_prepared(&prepared).unwrap_err()), Problem::Revoked);
        assert_eq!(problem(escaped.map_read().unwrap_err()), Problem::Revoked);
        assert!(matches!(problem(queue.enqueue_fill(&escaped, 0).unwrap_err()), Problem::Foreign { .. }));
        assert_eq!(slice, [7.0; 1024]);
        drop((prepared, escaped));
        assert_eq!(context.validation_messages(), Vec::<String>::new());
    }
}

#[test]
fn a_scope_ends_its_imports_when_its_closure_panics() {
    let context = cpu();
    let flag = Arc::new(AtomicBool::new(false));
    let kernel = context.create_native_kernel(gate(&flag)).unwrap();
    let mut bytes = vec![0u8; 4096];
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        flag.store(true, Ordering::Release);
    });
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        context.scope(|scope| {
            let lent = scope.import_mut(&mut bytes[..]).unwrap();
            let queue = context.queue().unwrap();
            queue.enqueue_nd_range(&kernel, [1; 3], None, &[KernelArg::Write(&lent)], &[]).unwrap();
            queue.flush().unwrap();
            panic!("while the kernel runs");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!((bytes, context.usage().imported), (vec![1; 4096], 0));
    opener.join().unwrap();
}

#[test]
fn two_slices_in_one_page_share_one_import() {
    let context = sim(SimConfig::coherent());
    let mut bytes = vec![0u8; 3 * 4096];
    let slice = aligned(&mut bytes);
    let (low, high) = slice.split_at_mut(512);
    context.scope(|scope| {
        let (low, high) = (scope.import_mut(low).unwrap(), scope.import_mut(high).unwrap());
        assert_eq!((context.usage().imports, context.usage().imported), (1, 4096));
        assert_eq!(low.range().buffer, high.range().buffer);
        let queue = context.queue().unwrap();
        queue.enqueue_fill(&low, 1).unwrap();
        queue.enqueue_copy(&low, &high).unwrap();
        // Each lease opens its own bytes only.
        let beyond = onepool::recording::BufferRange { bytes: 4096, ..low.range() };
        let commands = vec![onepool::recording::Command::Fill { dst: beyond, value: 0 }];
        let refused = queue.submit(Recording { commands, ..Recording::default() }).unwrap_err();
        assert!(matches!(problem(refused), Problem::OutOfBounds { .. }));
    });
    assert!(slice.iter().all(|value| value.to_bits() == 1));
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

#[test]
#[allow(unsafe_code, reason = "the vector outlives the imports")]
fn memory_held_together_has_one_import_and_is_released_with_its_last_share() {
    let context = sim(SimConfig::coherent());
    let mut bytes = vec![0u8; 6 * 4096];
    let first_page = bytes.as_ptr().align_offset(4096);
    let start = NonNull::from(&mut bytes[first_page..]).cast::<u8>();
    let released = Arc::new(AtomicU32::new(0));
    // The second begins amid the last page of the first; the third has pages of its own.
    let [low, high, apart] = [(0, 4096 + 256), (4096 + 256, 4096), (4 * 4096, 256)].map(|(at, bytes)| {
        let count = Arc::clone(&released);
        let release = Box::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        // SAFETY: the parts are of the vector, which is not touched and lives until the imports are dropped below.
        unsafe { Lent::raw(start.byte_add(at), bytes, ReadWrite::ReadWrite, release) }
    });
    let held = Lent::hold_together(&[&high, &apart, &low], &context);
    assert_eq!((context.usage().imports, context.usage().imported), (1, 3 * 4096));
    let (first, second) = (low.import(&context).unwrap(), high.import(&context).unwrap());
    assert_eq!(context.usage().imports, 1);
    assert_eq!(first.range().buffer, second.range().buffer);
    assert_eq!(second.range().offset, 4096 + 256);
    drop(held);
    let queue = context.queue().unwrap();
    queue.enqueue_fill(&second, 7).unwrap();
    queue.finish().unwrap();
    // Pages of the first are in the import still.
    drop((first, low));
    assert_eq!(released.load(Ordering::SeqCst), 0);
    drop((second, high));
    assert_eq!((released.load(Ordering::SeqCst), context.usage().imported), (2, 0));
    drop(apart);
    assert_eq!(released.load(Ordering::SeqCst), 3);
    // Without what is held, the second finds its first page taken.
    let [low, high] = [(0, 4096 + 256), (4096 + 256, 4096)].map(|(at, bytes)| {
        // SAFETY: as above.
        unsafe { Lent::raw(start.byte_add(at), bytes, ReadWrite::ReadWrite, Box::new(|| ())) }
    });
    let before = context.usage().imports;
    let first = low.import(&context).unwrap();
    let refused = refusal(high.import(&context).unwrap_err());
    assert!(matches!(refused, Refusal::PageInUse { .. }), "{refused}");
    // Nor is anything held where that is so.
    drop(Lent::hold_together(&[&low, &high], &context));
    assert_eq!(context.usage().imports - before, 1);
    drop(first);
    assert_eq!(context.validation_messages(), Vec::<String>::new());
}

#[test]
fn pages_of_another_owner_are_refused_with_the_reason() {
    let context = sim(SimConfig::coherent());
    let mut bytes = vec![0u8; 3 * 4096];
    let slice = aligned(&mut bytes);
    let (low, high) = slice.split_at_mut(512);
    let address = NonNull::from(&mut low[..]).cast();
    #[allow(unsafe_code, reason = "the slice outlives the import")]
    // SAFETY: `low` is not touched and lives until the import is dropped below.
    let raw = unsafe { context.import_raw(address, 2048, ReadWrite::ReadWrite, Box::new(|| ())) }.unwrap();
    context.scope(|scope| {
        let refused = refusal(scope.import_mut(high).unwrap_err());
        assert!(matches!(refused, Refusal::PageInUse { .. }), "{refused}");
    });
    drop(raw);
    assert_eq!(context.usage().imported, 0);
}

#[test]
fn memory_that_no_driver_takes_is_refused_with_the_reason() {
    static CONSTANT: [u8; 3 * 4096] = [7; 3 * 4096];
    let context = sim(SimConfig::coherent());
    let empty: [u8; 0] = [];
    context.scope(|scope| {
        let refused = refusal(scope.import(&CONSTANT[..]).unwrap_err());
        let expected = matches!(refused, Refusal::FileBacked { .. } | Refusal::ReadOnlyMapping { .. });
        assert!(expected, "{refused}");
        assert_eq!(refusal(scope.import(&empty[..]).unwrap_err()), Refusal::Empty);
    });
    let released = Arc::new(AtomicU32::new(0));
    for (address, bytes) in [(8usize, 64), (usize::MAX - 100, 64), (4096, u64::MAX), (usize::MAX - 10, 64)] {
        let count = Arc::clone(&released);
        let release = Box::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let address = NonNull::new(std::ptr::without_provenance_mut(address)).unwrap();
        #[allow(unsafe_code, reason = "refused before anything touches it")]
        // SAFETY: nothing is mapped there, so that nothing is ever accessed.
        let refused = unsafe { context.import_raw(address, bytes, ReadWrite::Read, release) }.unwrap_err();
        assert!(matches!(refused, Error::Import(_)), "{refused}");
    }
    assert_eq!((released.load(Ordering::SeqCst), context.usage().imports), (4, 0));
}

#[test]
fn a_stack_array_is_memory_like_any_other() {
    let context = sim(SimConfig::coherent());
    let mut array = [0u32; 4096];
    let skip = array.as_ptr().align_offset(4096);
    let lent = &mut array[skip..skip + 1024];
    context.scope(|scope| {
        let lent = scope.import_mut(lent).unwrap();
        context.queue().unwrap().enqueue_fill(&lent, 3).unwrap();
    });
    assert!(array[skip..skip + 1024].iter().all(|word| *word == 3));
    assert!(array[..skip].iter().chain(&array[skip + 1024..]).all(|word| *word == 0));
}

/// The devices that can use host memory; the others say that they cannot.
fn importers() -> Vec<Context> {
    let (can, cannot): (Vec<_>, Vec<_>) = contexts().into_iter().partition(|c| c.info().import.is_some());
    for context in cannot {
        let region = HostRegion::new(4096).unwrap().into_shared();
        assert_eq!(refusal(context.import(&region).unwrap_err()), Refusal::NotSupported);
    }
    can
}

#[test]
fn a_byte_changed_between_runs_is_seen() {
    for context in importers() {
        let region = HostRegion::new(4096).unwrap().into_shared();
        let (import, out) = (context.import(&region).unwrap(), crate::common::buffer(&context, 4096));
        let queue = context.queue().unwrap();
        for value in [1, 2] {
            region.write().unwrap()[77] = value;
            queue.enqueue_copy(&import, &out).unwrap();
            assert_eq!(out.map_read().unwrap()[77], value);
        }
        assert_eq!(context.usage().allocations, 1);
    }
}

#[test]
fn addresses_are_translated_both_ways() {
    for context in importers() {
        let region = HostRegion::new(8192).unwrap().into_shared();
        let import = context.import(&region).unwrap();
        let at = region.as_ptr().as_ptr().wrapping_add(5000);
        let found = context.device_ptr_from_host(at).unwrap();
        assert_eq!((found.buffer, found.offset, found.bytes), (import.range().buffer, 5000, 3192));
        let part = import.sub_buffer(5000, 8).unwrap();
        assert_eq!(context.host_ptr_from_device(&part), Some(at));
        let end = region.as_ptr().as_ptr().wrapping_add(8192);
        assert_eq!(context.device_ptr_from_host(end), None);
        let elsewhere = 0u8;
        assert_eq!(context.device_ptr_from_host(&elsewhere), None);
        drop((part, import));
        assert_eq!(context.device_ptr_from_host(at), None);
    }
}

#[test]
fn a_region_is_never_torn_from_under_a_submission() {
    let context = cpu();
    let flag = Arc::new(AtomicBool::new(false));
    let kernel = context.create_native_kernel(gate(&flag)).unwrap();
    let region = HostRegion::new(4096).unwrap().into_shared();
    let import = context.import(&region).unwrap();
    let queue = context.create_queue().unwrap();
    let event = queue.enqueue_nd_range(&kernel, [1; 3], None, &[KernelArg::Write(&import)], &[]).unwrap();
    queue.flush().unwrap();
    drop(import);
    assert!(region.read().is_err() && region.write().is_err() && !region.is_idle());
    flag.store(true, Ordering::Release);
    event.wait().unwrap();
    assert_eq!(*region.read().unwrap(), [1; 4096]);
    assert!(region.into_owned().is_ok());
}

#[test]
fn one_region_on_two_devices() {
    let (a, b) = (cpu(), sim(SimConfig::coherent()));
    let region = HostRegion::new(4096).unwrap().into_shared();
    let (on_a, on_b) = (a.import(&region).unwrap(), b.import(&region).unwrap());
    a.queue().unwrap().enqueue_fill(&on_a, 5).unwrap().wait().unwrap();
    let out = crate::common::buffer(&b, 4096);
    let copy = onepool::recording::Command::Copy { src: on_b.range(), dst: out.range() };
    let commands = vec![copy, onepool::recording::Command::Barrier(SHOWN)];
    b.queue().unwrap().submit(Recording { commands, ..Recording::default() }).unwrap().wait().unwrap();
    assert_eq!(out.map_read().unwrap().as_slice_of::<u32>().unwrap(), [5; 1024]);
}

#[test]
fn two_contexts_never_work_on_the_same_bytes_at_once() {
    let (a, b) = (cpu(), cpu());
    let region = HostRegion::new(8192).unwrap().into_shared();
    let (on_a, on_b) = (a.import(&region).unwrap(), b.import(&region).unwrap());
    let (low, high) = (on_b.sub_buffer(0, 4096).unwrap(), on_b.sub_buffer(4096, 4096).unwrap());
    let flag = Arc::new(AtomicBool::new(false));
    let slow = a.create_native_kernel(gate(&flag)).unwrap();
    let part = on_a.sub_buffer(0, 4096).unwrap();
    let event = a.queue().unwrap().enqueue_nd_range(&slow, [1; 3], None, &[KernelArg::Write(&part)], &[]);
    a.queue().unwrap().flush().unwrap();
    let queue = b.queue().unwrap();
    queue.enqueue_fill(&high, 2).unwrap().wait().unwrap();
    let refused = queue.enqueue_copy(&low, &high).unwrap().wait().unwrap_err();
    assert!(matches!(problem(refused), Problem::Busy { .. }));
    flag.store(true, Ordering::Release);
    event.unwrap().wait().unwrap();
    queue.enqueue_copy(&low, &high).unwrap().wait().unwrap();
    assert_eq!(*region.read().unwrap(), [1; 8192]);
}
