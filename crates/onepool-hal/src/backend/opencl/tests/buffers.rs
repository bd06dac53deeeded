//! Memory next to the device's.

use super::*;

#[test]
fn memory_apart_from_the_devices_is_not_coherent() {
    for placement in [Placement::Device, Placement::Upload, Placement::Readback, Placement::Shared] {
        let discrete = Fixture::discrete();
        let info = discrete.context.buffer_info(discrete.buffer(1000, placement)).unwrap();
        assert_eq!(info.host.is_some(), placement != Placement::Device);
        assert_eq!((info.bytes, info.coherent), (1000, placement == Placement::Device));
    }
    let fixture = Fixture::new();
    if fixture.context.info().memory.shares_host_memory() {
        let info = fixture.context.buffer_info(fixture.buffer(1000, Placement::Device)).unwrap();
        assert!(info.host.is_some() && info.coherent && info.cached && !info.imported);
    }
}

#[test]
fn memory_apart_from_the_devices_follows_flush_and_invalidate_only() {
    let fixture = Fixture::discrete();
    let buffer = fixture.upload(&[1u32; 64]);
    let host = fixture.context.buffer_info(buffer).unwrap().host.unwrap().0.cast::<u32>();
    // SAFETY: mapped memory of 64 words that no unfinished command uses, here and below.
    let word = |at: usize| unsafe { host.add(at) };
    fixture.run(&fixture.queue(), &recording(vec![Command::Fill { dst: part(buffer, 0, 128), value: 7 }]));
    // SAFETY: as above.
    unsafe {
        assert_eq!(word(0).read_volatile(), 1);
        fixture.context.invalidate(&[part(buffer, 4, 4)]).unwrap();
        assert_eq!([word(0), word(1), word(2)].map(|word| word.read_volatile()), [1, 7, 1]);
        word(40).write_volatile(5);
        word(41).write_volatile(6);
        fixture.context.flush(&[part(buffer, 160, 4)]).unwrap();
        word(40).write_volatile(0);
        word(41).write_volatile(0);
    }
    assert_eq!(fixture.download::<u32>(buffer)[38..44], [1, 1, 5, 1, 1, 1]);
}
