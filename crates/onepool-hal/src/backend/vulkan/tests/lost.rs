//! Devices that are lost, through the table of functions that fails calls.

use std::sync::Mutex;

use super::super::shim::{self, Fault};
use super::*;
use crate::device::{self, Event};

/// The table has one state for the process.
static SHIM: Mutex<()> = Mutex::new(());

fn is_lost<R>(result: Result<R, device::Error>) -> bool {
    matches!(result, Err(device::Error::Device(DeviceError::Lost { .. })))
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
            let backend = shim::open_without(&desc, Without { timeline: !timeline, ..Without::default() });
            let context = device::Context::new(backend);
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
        let desc = ContextDesc::default();
        let backend = shim::open_without(&desc, Without { timeline: !timeline, ..Without::default() });
        let context = device::Context::new(backend);
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
