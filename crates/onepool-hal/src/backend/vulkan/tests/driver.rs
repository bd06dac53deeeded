//! Listing and opening.

use super::*;
use crate::backend::install::{Missing, remedy};

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
    let same = listed.iter().flatten().map(|info| (info.index, info.same_as)).collect::<Vec<_>>();
    println!("same: {same:?}");
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
#[cfg_attr(not(target_os = "linux"), ignore = "manifests lie elsewhere")]
fn a_driver_that_is_installed_twice_is_one_device() {
    let installed = std::fs::read_dir("/usr/share/vulkan/icd.d").into_iter().flatten().flatten();
    let mut manifests = installed.map(|entry| entry.path());
    let Some(manifest) = manifests.find(|path| path.to_string_lossy().contains("lvp_icd")) else {
        println!("skipped: there is no manifest of lavapipe");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let paths = ["one.json", "two.json"].map(|name| folder.path().join(name));
    for path in &paths {
        std::fs::copy(&manifest, path).unwrap();
    }
    let paths = std::env::join_paths(&paths).unwrap();
    let text = listing_under("VK_ICD_FILENAMES", paths.to_str().unwrap());
    assert!(text.contains("listed: Ok(2)") && text.contains("same: [(0, None), (1, Some(0))]"), "{text}");
}

#[test]
#[cfg_attr(windows, ignore = "Wine shows no layers")]
fn without_the_validation_layer_the_error_says_what_to_install() {
    let text = listing_under("VK_LAYER_PATH", "/nonexistent");
    assert!(text.contains("listed: Ok("), "{text}");
    assert!(text.contains("opened: Err(") && text.contains(remedy(Missing::ValidationLayer)), "{text}");
}
