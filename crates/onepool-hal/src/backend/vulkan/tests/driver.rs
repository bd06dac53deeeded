//! Listing and opening.

use super::*;
use crate::backend::install::{Missing, remedy};

#[test]
fn devices_are_listed_with_what_they_can_do() {
    let driver = VulkanDriver::new();
    assert_eq!(driver.api(), "vulkan");
    let devices = driver.devices().unwrap();
    for (index, info) in devices.iter().enumerate() {
        assert_eq!((info.index, info.api), (index, "vulkan"));
        assert!(!info.name.is_empty() && !info.driver.is_empty() && !info.native);
        assert!(info.uuid.len() >= 32 && info.uuid.bytes().all(|digit| digit.is_ascii_hexdigit()));
    }
    for info in devices.iter().filter(|info| info.unusable.is_none()) {
        // What every Vulkan 1.1 device has at least.
        let limits = &info.limits;
        assert!(limits.max_argument_bytes >= 1 << 27 && limits.max_params_bytes >= 128);
        assert!(limits.max_buffer_bytes >= 1 << 27 && info.memory.capacity() >= limits.max_argument_bytes);
        assert!(limits.argument_alignment.is_power_of_two() && limits.argument_alignment <= 256);
        assert!(
            limits.max_group_items >= 128 && limits.max_local_bytes >= 16384 && limits.max_arguments >= 4
        );
        assert!(limits.max_groups.iter().all(|groups| *groups >= 65535));
    }
    let rank = |kind| match kind {
        DeviceKind::Integrated => 0,
        DeviceKind::Discrete => 1,
        DeviceKind::Virtual => 2,
        DeviceKind::Cpu => 3,
        DeviceKind::Other => 4,
    };
    assert!(devices.is_sorted_by_key(|info| (info.unusable.is_some(), rank(info.kind))));
}

#[test]
fn the_software_device_is_described_as_it_is() {
    let devices = VulkanDriver::new().devices().unwrap();
    let info = devices.iter().find(|info| info.name.contains("llvmpipe")).unwrap();
    assert_eq!(
        (info.kind, info.memory.shares_host_memory(), info.prefers_texels),
        (DeviceKind::Cpu, true, true)
    );
    let rules = info.import.unwrap();
    assert_eq!((rules.alignment, rules.size_multiple), (4096, 4096));
    assert!(rules.max_bytes <= info.limits.max_buffer_bytes && rules.read_only_importable);
    assert!(info.advice.iter().any(|hint| hint.contains("software")));
    assert!(info.driver.contains("llvmpipe") && info.driver.contains("Mesa"));
    assert!(info.timestamp_ns > 0.0 && info.subgroup >= 4);
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let error = VulkanDriver::new().open(99, &ContextDesc::default()).unwrap_err();
    assert!(matches!(&error, DeviceError::Unsupported { what } if what.contains("99")), "{error}");
}

#[test]
fn contexts_without_validation_share_the_listing_and_say_nothing() {
    let driver = VulkanDriver::new();
    let listed = driver.devices().unwrap();
    let one = driver.open(0, &ContextDesc::default()).unwrap();
    let two = driver.open(0, &ContextDesc::default()).unwrap();
    drop(driver);
    assert_eq!(one.info().uuid, listed[0].uuid);
    drop(one);
    let desc = BufferDesc { bytes: 100, placement: Placement::Device, label: "test" };
    two.create_buffer(&desc).unwrap();
    assert!(two.validation_messages().is_empty());
    assert_eq!(format!("{two:?}").matches("buffers: 1").count(), 1);
}

#[test]
#[ignore = "run by the tests below, in a process of its own under another environment"]
fn listing_and_opening_answer_whatever_is_installed() {
    let desc = ContextDesc { validation: true, ..Default::default() };
    let opened = VulkanDriver::new().open(0, &desc);
    let open = libraries();
    let opened = opened.map(|context| context.info().name.clone());
    let closed = libraries();
    println!("unloaded: {:?}", open.iter().filter(|file| !closed.contains(file)).collect::<Vec<_>>());
    let listed = VulkanDriver::new().devices();
    println!("listed: {:?}", listed.map(|devices| devices.len()).map_err(|error| error.to_string()));
    println!("opened: {:?}", opened.map_err(|error| error.to_string()));
}

/// The shared libraries of the process, with the drivers among them, where the system has a file of them.
fn libraries() -> Vec<String> {
    let read = std::fs::read_to_string("/proc/self/maps");
    let maps = if cfg!(target_os = "linux") { read.unwrap() } else { String::new() };
    let files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    files.filter(|file| file.contains(".so")).map(str::to_owned).collect()
}

fn listing_under(name: &str, value: &str) -> String {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--ignored",
            "--nocapture",
            "backend::vulkan::tests::driver::listing_and_opening_answer_whatever_is_installed",
        ])
        .env(name, value)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("listed: "), "{text}");
    text
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "libraries are looked up in /proc")]
fn drivers_stay_loaded_when_the_last_context_is_closed() {
    let text = listing_under("VK_LOADER_DEBUG", "none");
    assert!(text.contains("opened: Ok(") && text.contains("unloaded: []"), "{text}");
}

#[test]
#[cfg_attr(windows, ignore = "Wine does not pass the loader's variables on")]
fn without_a_driver_the_error_says_what_to_do() {
    let text = listing_under("VK_ICD_FILENAMES", "/nonexistent/icd.json");
    assert!(
        text.contains("listed: Err(\"vulkan is not available: no Vulkan driver offers a device; "),
        "{text}"
    );
    assert!(text.contains(remedy(Missing::VulkanDriver)) || text.contains("usermod"), "{text}");
}

#[test]
#[cfg_attr(windows, ignore = "Wine shows no layers")]
fn without_the_validation_layer_the_error_says_what_to_install() {
    let text = listing_under("VK_LAYER_PATH", "/nonexistent");
    assert!(text.contains("listed: Ok("), "{text}");
    assert!(text.contains("opened: Err(") && text.contains(remedy(Missing::ValidationLayer)), "{text}");
}

#[test]
fn threads_open_and_close_contexts_at_once() {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..16 {
                    let fixture = Fixture::new();
                    let (x, y) = (fixture.upload(&[1.0f32; 64]), fixture.upload(&[0.0f32; 64]));
                    let kernel = fixture.kernel(id::AXPB_F32);
                    let (from, to) = (all(&fixture, x), all(&fixture, y));
                    let commands = vec![axpb(kernel, from, to, 64, 2.0, 1.0), to_host()];
                    fixture.run(&fixture.queue(), &recording(commands));
                    assert_eq!(fixture.download::<f32>(y), [3.0; 64]);
                }
            });
        }
    });
}
