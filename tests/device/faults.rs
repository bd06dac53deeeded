//! Devices that fail: lost, out of memory, unwilling to import.

use std::time::{Duration, Instant};

use onepool::backend::sim::{SimConfig, SimFaults};
use onepool::backend::{BufferDesc, DeviceError, Placement};
use onepool::device::Error;
use onepool::memory::host::HostRegion;
use onepool::memory::import::{ImportError, Refusal};

use crate::common::{buffer, sim};

fn faulty(faults: SimFaults) -> SimConfig {
    SimConfig { faults, ..SimConfig::coherent() }
}

#[test]
fn a_lost_device_leaves_the_applications_memory_alone() {
    for at in 1..=3 {
        let context = sim(faulty(SimFaults { lose_at_submit: Some(at), ..SimFaults::default() }));
        let queue = context.queue().unwrap();
        let region = HostRegion::from_bytes(&[5; 4096]).unwrap().into_shared();
        let import = context.import(&region).unwrap();
        for step in 1..at {
            queue.enqueue_fill(&import, step as u32).unwrap().wait().unwrap();
        }
        let before = region.read().unwrap().to_vec();
        let event = queue.enqueue_fill(&import, 0xAAAA_AAAA).unwrap();
        assert!(matches!(event.wait(), Err(Error::Device(DeviceError::Lost { .. }))));
        assert_eq!(*region.read().unwrap(), before);
        // Everything after tells the same, and nothing hangs.
        assert!(matches!(
            queue.enqueue_fill(&import, 1).unwrap().wait(),
            Err(Error::Device(DeviceError::Lost { .. }))
        ));
        let desc = BufferDesc { bytes: 64, placement: Placement::Device, label: "late" };
        assert!(matches!(context.create_buffer(&desc), Err(Error::Device(DeviceError::Lost { .. }))));
        drop((import, event));
        assert_eq!(context.usage().imported, 0);
        assert!(region.is_idle());
        assert_eq!(*region.read().unwrap(), before);
    }
}

#[test]
fn a_lost_device_ends_a_scope() {
    let context = sim(faulty(SimFaults { lose_at_submit: Some(2), ..SimFaults::default() }));
    let mut words = vec![1u32; 2048];
    context.scope(|scope| {
        let lent = scope.import_mut(&mut words[..]).unwrap();
        let queue = context.queue().unwrap();
        let first = queue.enqueue_fill(&lent, 7).unwrap();
        queue.flush().unwrap();
        let second = queue.enqueue_fill(&lent, 8).unwrap();
        let lost = |result| matches!(result, Err(Error::Device(DeviceError::Lost { .. })));
        assert!(lost(queue.flush()) && lost(second.wait()) && lost(first.wait()));
    });
    // The second fill never ran; of the first, the device was lost before a wait.
    assert!(words.iter().all(|word| *word == 1));
    words.fill(2);
}

/// How long work goes on after a loss that is told of early.
const GOES_ON: Duration = Duration::from_millis(60);

fn lost_early(at: u64) -> SimConfig {
    faulty(SimFaults { lose_early_at_submit: Some((at, GOES_ON)), ..SimFaults::default() })
}

fn is_lost<R>(result: Result<R, Error>) -> bool {
    matches!(result, Err(Error::Device(DeviceError::Lost { .. })))
}

#[test]
fn a_scope_ends_after_what_goes_on_on_any_queue_of_a_lost_device() {
    let context = sim(lost_early(3));
    let queues = [context.create_queue().unwrap(), context.create_queue().unwrap()];
    let mut words = vec![1u32; 2048];
    let start = Instant::now();
    context.scope(|scope| {
        let lent = scope.import_mut(&mut words[..]).unwrap();
        for (queue, offset) in queues.iter().zip([0, 4096]) {
            queue.enqueue_fill(&lent.sub_buffer(offset, 4096).unwrap(), 7).unwrap();
            queue.flush().unwrap();
        }
        let late = queues[0].enqueue_fill(&lent.sub_buffer(0, 4096).unwrap(), 8).unwrap();
        assert!(is_lost(late.wait()));
    });
    // Written by what went on, before the borrow ended.
    assert!(words.iter().all(|word| *word == u32::MAX) && start.elapsed() >= GOES_ON);
    words.fill(2);
    drop(queues);
    assert!(words.iter().all(|word| *word == 2));
}

#[test]
fn a_region_is_the_hosts_after_what_goes_on_on_a_lost_device() {
    // By a wait, by a guard, by the end of the queue.
    for way in 0..3 {
        let context = sim(lost_early(2));
        let queue = context.create_queue().unwrap();
        let region = HostRegion::from_bytes(&[5; 4096]).unwrap().into_shared();
        let import = context.import(&region).unwrap();
        let first = queue.enqueue_fill(&import, 7).unwrap();
        queue.flush().unwrap();
        let start = Instant::now();
        assert!(is_lost(queue.enqueue_fill(&import, 8).unwrap().wait()));
        assert!(region.read().is_err());
        match way {
            0 => assert!(is_lost(first.wait())),
            1 => assert!(is_lost(import.map_read())),
            _ => drop((first, queue)),
        }
        assert!(start.elapsed() >= GOES_ON);
        assert!(region.read().unwrap().iter().all(|byte| *byte == 0xFF));
        // Nothing is waited for twice.
        region.write().unwrap().fill(6);
        drop(import);
        assert!(region.read().unwrap().iter().all(|byte| *byte == 6) && region.is_idle());
    }
}

#[test]
fn memory_may_run_out_at_any_allocation() {
    for at in 1..=5 {
        let faults = SimFaults { exhaust_at_allocation: Some(at), ..SimFaults::default() };
        let context = sim(faulty(faults));
        let desc = BufferDesc { bytes: 4096, placement: Placement::Device, label: "one of five" };
        let made: Vec<_> = (1..=5).map(|_| context.create_buffer(&desc)).collect();
        for (index, result) in made.iter().enumerate() {
            match result {
                Ok(_) => assert_ne!(index as u64 + 1, at),
                Err(error) => {
                    assert_eq!(index as u64 + 1, at);
                    assert_eq!(*error, Error::Device(DeviceError::OutOfDeviceMemory { bytes: 4096 }));
                }
            }
        }
        assert_eq!(context.usage().allocated, 4 * 4096);
        drop(made);
        assert_eq!((context.usage().allocated, context.budget().live()), (0, 0));
    }
}

#[test]
fn a_refused_import_is_an_error_and_the_next_may_work() {
    let context = sim(faulty(SimFaults { refuse_at_import: Some(1), ..SimFaults::default() }));
    let region = HostRegion::new(4096).unwrap().into_shared();
    let refused = context.import(&region).unwrap_err();
    assert!(
        matches!(refused, Error::Import(ImportError::Refused(Refusal::DriverRefused { .. }))),
        "{refused}"
    );
    assert_eq!(context.budget().live(), 0);
    assert!(context.import(&region).is_ok());
}

#[test]
fn the_budget_is_kept_before_the_driver_is_asked() {
    let context = sim(SimConfig::coherent().holding(3 * 4096));
    let region = HostRegion::new(8192).unwrap().into_shared();
    let held = buffer(&context, 8192);
    let refused = context.import(&region).unwrap_err();
    let over = matches!(refused, Error::Import(ImportError::Refused(Refusal::BudgetExceeded(_))));
    assert!(over, "{refused}");
    let desc = BufferDesc { bytes: 8192, placement: Placement::Device, label: "too much" };
    assert_eq!(
        context.create_buffer(&desc).unwrap_err(),
        Error::Device(DeviceError::OutOfDeviceMemory { bytes: 8192 })
    );
    drop(held);
    let import = context.import(&region).unwrap();
    context.queue().unwrap().enqueue_fill(&import, 1).unwrap().wait().unwrap();
    assert!(region.read().unwrap().as_slice_of::<u32>().unwrap().iter().all(|word| *word == 1));
}
