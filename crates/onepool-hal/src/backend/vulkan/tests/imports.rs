//! Application memory in place.

use std::ptr::NonNull;

use super::*;
use onepool_core::memory::host::HostRegion;

fn import(fixture: &Fixture, region: &HostRegion, bytes: u64) -> Result<BufferId, DeviceError> {
    // SAFETY: every test keeps its region until its fixture is gone, and imports each region once.
    unsafe { fixture.context().import_host(HostAddress(region.as_ptr()), bytes) }
}

#[test]
fn a_kernel_reads_and_writes_the_callers_pages() {
    const N: usize = 1 << 18;
    let mut input = HostRegion::new(N * 4).unwrap();
    let mut output = HostRegion::new(N * 4).unwrap();
    input.as_mut_slice_of::<f32>().unwrap().fill(1.0);
    output.as_mut_slice().fill(0xee);
    {
        let fixture = Fixture::new();
        let x = import(&fixture, &input, N as u64 * 4).unwrap();
        let y = import(&fixture, &output, N as u64 * 4).unwrap();
        let info = fixture.context().buffer_info(x).unwrap();
        assert_eq!((info.host, info.imported), (Some(HostAddress(input.as_ptr())), true));
        assert!(info.coherent && info.cached);
        let kernel = fixture.kernel(id::AXPB_F32);
        let queue = fixture.queue();
        let run =
            recording(vec![axpb(kernel, all(&fixture, x), all(&fixture, y), N as u32, 2.0, 0.5), to_host()]);
        let prepared = queue.prepare(&run).unwrap();
        queue.wait(queue.submit_prepared(prepared).unwrap(), None).unwrap();
        assert!(output.as_slice_of::<f32>().unwrap().iter().all(|y| *y == 2.5));
        // No one is told of this write, and the next run sees it.
        input.as_mut_slice_of::<f32>().unwrap()[N / 3] = 20.0;
        queue.wait(queue.submit_prepared(prepared).unwrap(), None).unwrap();
        let got = output.as_slice_of::<f32>().unwrap();
        assert_eq!((got[N / 3], got[N / 3 + 1]), (40.5, 2.5));
        let bytes = N as u64 * 8;
        assert_eq!(
            fixture.context().usage(),
            MemoryUsage { imported: bytes, imports: 2, ..Default::default() }
        );
        fixture.context().destroy_buffer(x);
        fixture.context().destroy_buffer(y);
        assert_eq!(fixture.context().usage(), MemoryUsage { imports: 2, ..Default::default() });
    }
    // The pages are the application's again, and as the device left them.
    assert_eq!(output.as_slice_of::<f32>().unwrap()[N / 3], 40.5);
}

#[test]
fn a_tensor_inside_an_imported_page_is_bound_at_an_offset() {
    let mut region = HostRegion::new(8192).unwrap();
    region.as_mut_slice_of::<f32>().unwrap().fill(-1.0);
    let fixture = Fixture::new();
    let buffer = import(&fixture, &region, 8192).unwrap();
    let alignment = fixture.context().info().limits.argument_alignment.max(16);
    let kernel = fixture.kernel(id::AXPB_F32);
    let (x, y) = (part(buffer, alignment, 400), part(buffer, 4096 + alignment, 400));
    let run = recording(vec![axpb(kernel, x, y, 100, 3.0, 0.0), to_host()]);
    fixture.run(&fixture.queue(), &run);
    let got = region.as_slice_of::<f32>().unwrap();
    let start = (4096 + alignment as usize) / 4;
    assert!(got[start..start + 100].iter().all(|y| *y == -3.0));
    assert!(got[..start].iter().chain(&got[start + 100..]).all(|y| *y == -1.0));
}

#[test]
fn copies_go_straight_to_and_from_the_pages() {
    let mut region = HostRegion::new(4096).unwrap();
    region.as_mut_slice().copy_from_slice(&[5; 4096]);
    let fixture = Fixture::new();
    let (page, device) = (import(&fixture, &region, 4096).unwrap(), fixture.buffer(4096, Placement::Device));
    fixture.run(
        &fixture.queue(),
        &recording(vec![
            Command::Copy { src: part(page, 0, 2000), dst: part(device, 0, 2000) },
            barrier(Access::TRANSFER_WRITE, Access::TRANSFER_WRITE),
            Command::Fill { dst: part(device, 4, 4), value: 0 },
            barrier(Access::TRANSFER_WRITE, Access::TRANSFER_READ),
            Command::Copy { src: part(device, 0, 100), dst: part(page, 3000, 100) },
            to_host(),
        ]),
    );
    assert_eq!(region.as_slice()[2999..3010], [5, 5, 5, 5, 5, 0, 0, 0, 0, 5, 5]);
}

#[test]
fn what_no_driver_should_take_is_refused() {
    let region = HostRegion::new(16384).unwrap();
    let fixture = Fixture::new();
    let code = ash::vk::Result::ERROR_INVALID_EXTERNAL_HANDLE.as_raw();
    let refused = |offset: usize, bytes: u64| {
        let address = NonNull::new(region.as_ptr().as_ptr().wrapping_add(offset)).unwrap();
        // SAFETY: the region lives until the fixture is gone; nothing is imported from it.
        unsafe { fixture.context().import_host(HostAddress(address), bytes) }.unwrap_err()
    };
    for (offset, bytes) in [(64, 4096), (0, 5000), (0, 0), (0, 1 << 40)] {
        assert_eq!(refused(offset, bytes), DeviceError::ImportRefused { code }, "{offset} {bytes}");
    }
    assert_eq!(fixture.context().usage(), MemoryUsage::default());
}
