//! Application memory in place.

use std::ptr::NonNull;

use onepool::backend::{DeviceError, HostAddress, MemoryUsage, Placement};
use onepool::memory::coherency::Access;
use onepool::memory::host::HostRegion;
use onepool::recording::Command;

use crate::fixture::{Fixture, axpb, barrier, part, recording, to_host};
use crate::targets::Target;

crate::cases![
    a_kernel_reads_and_writes_the_callers_pages,
    a_tensor_inside_an_imported_page_is_bound_at_an_offset,
    copies_go_straight_to_and_from_the_pages,
    what_no_driver_should_take_is_refused,
];

fn a_kernel_reads_and_writes_the_callers_pages(target: &'static Target) {
    const N: usize = 1 << 18;
    let mut input = HostRegion::new(N * 4).unwrap();
    let mut output = HostRegion::new(N * 4).unwrap();
    input.as_mut_slice_of::<f32>().unwrap().fill(1.0);
    output.as_mut_slice().fill(0xee);
    {
        let fixture = Fixture::new(target);
        let x = fixture.import(&input, N as u64 * 4).unwrap();
        let y = fixture.import(&output, N as u64 * 4).unwrap();
        let info = fixture.info(x);
        assert_eq!((info.host, info.imported), (Some(HostAddress(input.as_ptr())), true));
        assert!(info.cached && (info.coherent || target.name == "sim-noncoherent"));
        let queue = fixture.queue();
        let run = axpb(fixture.axpb(), fixture.all(x), fixture.all(y), N as u32, 2.0, 0.5);
        let prepared = queue.prepare(&recording(vec![run, to_host()])).unwrap();
        // Nothing is told where memory is coherent.
        let run = || {
            if !info.coherent {
                fixture.flush(x);
                fixture.flush(y);
            }
            queue.wait(queue.submit_prepared(prepared).unwrap(), None).unwrap();
            if !info.coherent {
                fixture.invalidate(y);
            }
        };
        run();
        assert!(output.as_slice_of::<f32>().unwrap().iter().all(|y| *y == 2.5));
        // The next run sees this write.
        input.as_mut_slice_of::<f32>().unwrap()[N / 3] = 20.0;
        run();
        let got = output.as_slice_of::<f32>().unwrap();
        assert_eq!((got[N / 3], got[N / 3 + 1]), (40.5, 2.5));
        let bytes = N as u64 * 8;
        let context = fixture.context();
        assert_eq!(context.usage(), MemoryUsage { imported: bytes, imports: 2, ..Default::default() });
        context.destroy_buffer(x);
        context.destroy_buffer(y);
        assert_eq!(context.usage(), MemoryUsage { imports: 2, ..Default::default() });
    }
    // The pages are the application's again, and as the device left them.
    assert_eq!(output.as_slice_of::<f32>().unwrap()[N / 3], 40.5);
}

fn a_tensor_inside_an_imported_page_is_bound_at_an_offset(target: &'static Target) {
    let mut region = HostRegion::new(8192).unwrap();
    region.as_mut_slice_of::<f32>().unwrap().fill(-1.0);
    let fixture = Fixture::new(target);
    let buffer = fixture.import(&region, 8192).unwrap();
    fixture.flush(buffer);
    let alignment = fixture.context().info().limits.argument_alignment.max(16);
    let (x, y) = (part(buffer, alignment, 400), part(buffer, 4096 + alignment, 400));
    let run = axpb(fixture.axpb(), x, y, 100, 3.0, 0.0);
    fixture.run(&fixture.queue(), &recording(vec![run, to_host()]));
    fixture.invalidate(buffer);
    let got = region.as_slice_of::<f32>().unwrap();
    let start = (4096 + alignment as usize) / 4;
    assert!(got[start..start + 100].iter().all(|y| *y == -3.0));
    assert!(got[..start].iter().chain(&got[start + 100..]).all(|y| *y == -1.0));
}

fn copies_go_straight_to_and_from_the_pages(target: &'static Target) {
    let mut region = HostRegion::new(4096).unwrap();
    region.as_mut_slice().copy_from_slice(&[5; 4096]);
    let fixture = Fixture::new(target);
    let (page, device) = (fixture.import(&region, 4096).unwrap(), fixture.buffer(4096, Placement::Device));
    fixture.flush(page);
    let run = recording(vec![
        Command::Copy { src: part(page, 0, 2000), dst: part(device, 0, 2000) },
        barrier(Access::TRANSFER_WRITE, Access::TRANSFER_WRITE),
        Command::Fill { dst: part(device, 4, 4), value: 0 },
        barrier(Access::TRANSFER_WRITE, Access::TRANSFER_READ),
        Command::Copy { src: part(device, 0, 100), dst: part(page, 3000, 100) },
        to_host(),
    ]);
    fixture.run(&fixture.queue(), &run);
    fixture.invalidate(page);
    assert_eq!(region.as_slice()[2999..3010], [5, 5, 5, 5, 5, 0, 0, 0, 0, 5, 5]);
}

fn what_no_driver_should_take_is_refused(target: &'static Target) {
    let region = HostRegion::new(16384).unwrap();
    let fixture = Fixture::new(target);
    for (offset, bytes) in [(64, 4096), (0, 5000), (0, 0), (0, 1 << 52)] {
        let address = NonNull::new(region.as_ptr().as_ptr().wrapping_add(offset)).unwrap();
        let error = fixture.import_at(HostAddress(address), bytes).unwrap_err();
        let DeviceError::ImportRefused { code } = error else { panic!("{offset} {bytes}: {error}") };
        // Vulkan's VK_ERROR_INVALID_EXTERNAL_HANDLE.
        assert!(target.api != "vulkan" || code == -1_000_072_003, "{offset} {bytes}: {code}");
    }
    assert_eq!(fixture.context().usage(), MemoryUsage::default());
}
