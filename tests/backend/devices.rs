//! Listing and opening.

use onepool::backend::{BufferDesc, ContextDesc, DeviceError, DeviceKind, Placement};

use crate::fixture::{Fixture, axpb, recording, to_host};
use crate::targets::Target;

crate::cases![
    devices_are_listed_with_what_they_can_do,
    a_device_that_is_not_there_is_an_error,
    threads_open_and_close_contexts_at_once,
];

fn devices_are_listed_with_what_they_can_do(target: &'static Target) {
    let driver = target.driver();
    assert_eq!(driver.api(), target.api);
    let devices = driver.devices().unwrap();
    assert!(!devices.is_empty());
    for (index, info) in devices.iter().enumerate() {
        assert_eq!((info.index, info.api), (index, target.api));
        assert!(!info.name.is_empty() && !info.driver.is_empty());
        assert_eq!(info.native, ["cpu", "sim"].contains(&target.api));
        assert_eq!(info.in_order, ["cpu", "opencl"].contains(&target.api));
        if ["vulkan", "opencl"].contains(&target.api) {
            assert!(info.uuid.len() >= 32 && info.uuid.bytes().all(|digit| digit.is_ascii_hexdigit()));
        } else {
            assert!(!info.uuid.is_empty());
        }
    }
    for info in devices.iter().filter(|info| info.unusable.is_none()) {
        // What every device of Vulkan 1.1, and every one of the full profile of OpenCL 1.2, has at least.
        let limits = &info.limits;
        assert!(limits.max_argument_bytes >= 1 << 27 && limits.max_params_bytes >= 128);
        // An address reaches beyond the memory of the CPU.
        let argument = if target.api == "cpu" { limits.max_buffer_bytes } else { limits.max_argument_bytes };
        assert!(limits.max_buffer_bytes >= 1 << 27 && info.memory.capacity() >= argument);
        assert!(limits.argument_alignment.is_power_of_two() && limits.argument_alignment <= 256);
        let (items, local, arguments) = match target.api {
            "opencl" => (1, 32 << 10, 32),
            _ => (128, 16 << 10, 4),
        };
        assert!(limits.max_group_items >= items && limits.max_local_bytes >= local);
        assert!(limits.max_arguments >= arguments && limits.max_groups.iter().all(|groups| *groups >= 65535));
    }
    let rank = |kind| match kind {
        DeviceKind::Integrated => 0,
        DeviceKind::Discrete => 1,
        DeviceKind::Virtual => 2,
        DeviceKind::Cpu => 3,
        DeviceKind::Other => 4,
    };
    assert!(devices.is_sorted_by_key(|info| info.unusable.is_some()));
    if target.api == "vulkan" {
        assert!(devices.is_sorted_by_key(|info| (info.unusable.is_some(), rank(info.kind))));
    }
    let desc = BufferDesc { bytes: 100, placement: Placement::Device, label: "test" };
    let one = driver.open(0, &ContextDesc::default()).unwrap();
    let two = driver.open(0, &ContextDesc::default()).unwrap();
    drop(driver);
    assert_eq!((&one.info().uuid, &one.info().name), (&devices[0].uuid, &devices[0].name));
    drop(one);
    two.create_buffer(&desc).unwrap();
    assert_eq!(two.validation_messages(), [""; 0]);
}

fn a_device_that_is_not_there_is_an_error(target: &'static Target) {
    let error = target.driver().open(99, &ContextDesc::default()).unwrap_err();
    assert!(matches!(&error, DeviceError::Unsupported { what } if what.contains("99")), "{error}");
}

fn threads_open_and_close_contexts_at_once(target: &'static Target) {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..16 {
                    let fixture = Fixture::new(target);
                    let (x, y) = (fixture.upload(&[1.0f32; 64]), fixture.upload(&[0.0f32; 64]));
                    let run = axpb(fixture.axpb(), fixture.all(x), fixture.all(y), 64, 2.0, 1.0);
                    fixture.run(&fixture.queue(), &recording(vec![run, to_host()]));
                    assert_eq!(fixture.download::<f32>(y), [3.0; 64]);
                }
            });
        }
    });
}
