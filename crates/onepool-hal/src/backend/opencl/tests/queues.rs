//! Loss.

use super::*;

#[test]
fn a_lost_device_stays_lost_and_goes_quietly() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let buffer = fixture.upload(&[1u32; 16]);
    let fill = recording(vec![Command::Fill { dst: part(buffer, 0, 64), value: 9 }]);
    let prepared = queue.prepare(&fill).unwrap();
    let point = fixture.run(&queue, &fill);
    let lost = fixture.context.tables.device.note(super::super::error("clFinish", -14, 0));
    assert!(matches!(lost, DeviceError::Lost { .. }));
    assert_eq!(queue.submit(&fill).unwrap_err(), lost);
    assert_eq!(queue.prepare(&fill).unwrap_err(), lost);
    assert_eq!(queue.submit_prepared(prepared).unwrap_err(), lost);
    assert_eq!(queue.completed().unwrap_err(), lost);
    assert_eq!(queue.timestamps(point).unwrap_err(), lost);
    assert_eq!(queue.wait(Timepoint(point.0 + 1), None).unwrap_err(), lost);
    let context = &fixture.context;
    let desc = BufferDesc { bytes: 64, placement: Placement::Device, label: "late" };
    assert_eq!(context.create_buffer(&desc).unwrap_err(), lost);
    assert_eq!(context.create_queue().unwrap_err(), lost);
    assert_eq!(context.flush(&[]).unwrap_err(), lost);
    // What the host has is still there.
    let host = context.buffer_info(buffer).unwrap().host.unwrap();
    // SAFETY: mapped and not in use.
    let word = unsafe { host.0.cast::<u32>().read() };
    assert!(word == 9 || !context.info().memory.shares_host_memory());
    // Whoever opens the device anew shares nothing with the lost one.
    let again = Fixture::new();
    assert!(!Arc::ptr_eq(&again.context.tables.device.shared, &context.tables.device.shared));
    again.own();
}
