//! Devices that are lost, through the table of functions that fails calls.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use ash::vk::{self, Handle as _};

use super::super::mark::SLOTS;
use super::super::queue::Queue;
use super::super::shim::{self, Fault};
use super::queues::unfinished;
use super::*;
use crate::device::{self, Event};
use onepool_core::memory::host::HostRegion;

/// The table has one state for the process.
static SHIM: Mutex<()> = Mutex::new(());

fn is_lost<R>(result: Result<R, device::Error>) -> bool {
    matches!(result, Err(device::Error::Device(DeviceError::Lost { .. })))
}

fn opened(desc: &ContextDesc, timeline: bool) -> device::Context {
    let without = Without { timeline: !timeline, ..Without::default() };
    device::Context::new(shim::open_without(desc, without, false))
}

#[test]
fn what_a_reset_ended_is_not_done() {
    let _alone = lock(&SHIM);
    let ways: [fn(&Event) -> Result<bool, device::Error>; 2] =
        [Event::is_done, |event| event.wait().map(|()| true)];
    for (timeline, calls) in [
        (true, ["vkGetSemaphoreCounterValue", "vkWaitSemaphores"]),
        (false, ["vkGetFenceStatus", "vkWaitForFences"]),
    ] {
        for ask in ways {
            let desc = ContextDesc { wait: WaitPolicy::Spin, ..ContextDesc::default() };
            let context = opened(&desc, timeline);
            let queue = context.queue().unwrap();
            let desc = BufferDesc { bytes: 4096, placement: Placement::Device, label: "test" };
            let event = queue.enqueue_fill(&context.create_buffer(&desc).unwrap(), 7).unwrap();
            queue.flush().unwrap();
            // As after a reset: all is signalled.
            shim::finish();
            shim::arm(Some((1, Fault::Lost)));
            assert!(is_lost(ask(&event)));
            let (made, fired) = shim::disarm();
            assert_eq!((&made[..2], fired), (&calls[..], Some(calls[1])));
            // The point did not become known meanwhile.
            assert!(is_lost(event.wait()) && is_lost(event.is_done()));
            drop((event, queue));
            assert_eq!(context.validation_messages(), [""; 0]);
        }
    }
}

#[test]
fn a_point_is_waited_for_once_by_who_looks_often() {
    let _alone = lock(&SHIM);
    for (timeline, call) in [(true, "vkWaitSemaphores"), (false, "vkWaitForFences")] {
        let context = opened(&ContextDesc::default(), timeline);
        let queue = context.queue().unwrap();
        let desc = BufferDesc { bytes: 4096, placement: Placement::Device, label: "test" };
        let event = queue.enqueue_fill(&context.create_buffer(&desc).unwrap(), 7).unwrap();
        queue.flush().unwrap();
        shim::finish();
        shim::arm(None);
        for _ in 0..9 {
            assert!(event.is_done().unwrap());
        }
        let (made, _) = shim::disarm();
        let asked = made.iter().filter(|made| **made == call).count();
        assert_eq!(asked, 1, "{made:?}");
        drop((event, queue));
        assert_eq!(context.validation_messages(), [""; 0]);
    }
}

/// A device that may tell of its loss before its work is over, an import, and commands that fill it.
struct Early {
    queue: Queue,
    import: BufferId,
    fixture: Fixture,
    // Outlives the import, which goes with the context.
    region: HostRegion,
}

impl Early {
    fn new(timeline: bool, bytes: usize) -> Early {
        let without = Without { timeline: !timeline, ..Without::default() };
        let context = shim::open_without(&ContextDesc::default(), without, true);
        let messages = context.shared.device.instance.messages().cloned();
        let region = HostRegion::new(bytes).unwrap();
        let address = HostAddress(region.as_ptr());
        // SAFETY: pages of the region's own, which goes after the context.
        let import = unsafe { context.import_host(address, bytes as u64) }.unwrap();
        let queue = Queue::new(Arc::clone(&context.shared)).unwrap();
        Early { queue, import, fixture: Fixture { context: Some(context), messages }, region }
    }

    /// Fills the import with each of `values` in turn, after all that was submitted before.
    fn fill(&self, values: std::ops::Range<u32>) -> Recording {
        let order = barrier(Access::TRANSFER_WRITE, Access::TRANSFER_WRITE);
        let dst = all(&self.fixture, self.import);
        recording(
            values
                .flat_map(|value| [order.clone(), Command::Fill { dst, value }])
                .chain([to_host()])
                .collect(),
        )
    }

    fn pages(&self) -> usize {
        self.queue.marks.as_ref().unwrap().pages()
    }

    fn is_marked(&self) -> Option<bool> {
        self.queue.marks.as_ref().unwrap().is_there()
    }
}

#[test]
fn work_that_writes_pages_is_followed_by_marks_whose_slots_are_used_again() {
    let _alone = lock(&SHIM);
    for timeline in [true, false] {
        let early = Early::new(timeline, 4096);
        let (queue, fixture) = (&early.queue, &early.fixture);
        let own = fixture.buffer(4096, Placement::Device);
        let (pages, own) = (all(fixture, early.import), all(fixture, own));
        let read = recording(vec![Command::Copy { src: pages, dst: own }]);
        queue.wait(queue.submit(&read).unwrap(), None).unwrap();
        assert_eq!((early.pages(), early.is_marked()), (0, None));
        let prepared = queue.prepare(&early.fill(0..1)).unwrap();
        for turn in 0..SLOTS as u32 + 9 {
            let point = match turn % 2 {
                0 => queue.submit_prepared(prepared).unwrap(),
                _ => queue.submit(&early.fill(turn..turn + 1)).unwrap(),
            };
            queue.wait(point, None).unwrap();
            assert_eq!((early.pages(), early.is_marked()), (1, Some(true)));
        }
        // As many as are unfinished.
        unfinished(fixture, |work| {
            queue.submit(work).unwrap();
            let last = (0..=SLOTS).map(|_| queue.submit_prepared(prepared).unwrap()).max().unwrap();
            queue.wait(last, None).unwrap();
            assert_eq!(early.is_marked(), Some(true));
            (early.pages() > 1).then_some(())
        });
        assert_eq!(early.pages(), 2);
        // Nothing was lost.
        queue.quiesce();
    }
}

#[test]
fn a_loss_that_a_submission_tells_of_is_over_with_the_mark_before_it() {
    let _alone = lock(&SHIM);
    let is_lost = |result: Result<_, DeviceError>| matches!(result, Err(DeviceError::Lost { .. }));
    for timeline in [true, false] {
        let told_early = (0..8).any(|doubled| {
            let early = Early::new(timeline, 16 << 20);
            let queue = &early.queue;
            let nothing = queue.prepare(&recording(vec![to_host()])).unwrap();
            let last = 64 << doubled;
            let point = queue.submit(&early.fill(0..last + 1)).unwrap();
            // A fence, then the submission.
            shim::arm(Some((1, Fault::LostEarly)));
            assert!(is_lost(queue.submit_prepared(nothing)));
            let told_early = early.is_marked() == Some(false);
            assert!(is_lost(queue.wait(point, None).map(|()| point)));
            queue.quiesce();
            assert_eq!(early.is_marked(), Some(true));
            let words: &[u32] = bytemuck::cast_slice(early.region.as_slice());
            assert!(words.iter().all(|word| *word == last));
            let (_, fired) = shim::disarm();
            assert_eq!(fired, Some("vkQueueSubmit"));
            // The layer learns that all is over.
            shim::finish();
            told_early
        });
        assert!(told_early);
    }
}

#[test]
fn work_that_never_ends_is_given_up_once() {
    let _alone = lock(&SHIM);
    let early = Early::new(true, 4096);
    let (queue, device) = (&early.queue, &early.fixture.context().shared.device);
    let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
    let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
    // SAFETY: timeline semaphores are on.
    let never = unsafe { device.raw().create_semaphore(&info, None) }.unwrap();
    let waits = [SemaphorePoint { handle: never.as_raw(), value: Some(1) }];
    let prepared = queue.prepare(&early.fill(3..4)).unwrap();
    // SAFETY: the semaphore lives until the submission is over.
    let point =
        unsafe { queue.submit_between(Some(prepared), Semaphores { waits: &waits, signals: &[] }) }.unwrap();
    // The counter, then the wait.
    shim::arm(Some((1, Fault::LostEarly)));
    assert!(matches!(queue.wait(point, None), Err(DeviceError::Lost { .. })));
    let (_, fired) = shim::disarm();
    assert_eq!(fired, Some("vkWaitSemaphores"));
    let start = Instant::now();
    queue.quiesce();
    let waited = start.elapsed();
    assert!(waited > Duration::from_secs(1) && waited < Duration::from_secs(10), "{waited:?}");
    assert_eq!(early.is_marked(), Some(false));
    let start = Instant::now();
    queue.quiesce();
    assert!(start.elapsed() < Duration::from_secs(1));
    let info = vk::SemaphoreSignalInfo::default().semaphore(never).value(1);
    // SAFETY: the value rises.
    unsafe { device.raw().signal_semaphore(&info) }.unwrap();
    shim::finish();
    assert_eq!(early.is_marked(), Some(true));
    // SAFETY: nothing uses it any more.
    unsafe { device.raw().destroy_semaphore(never, None) };
}
