//! The example that the page shows.

#[allow(dead_code, reason = "it has an entry of its own")]
#[path = "../../examples/frames.rs"]
mod film;

#[test]
fn the_example_runs_on_every_device() {
    // Luma 176 is (176 - 16) / 219 of white; the model makes the negative.
    let gray = (255.0 - 255.0 * 160.0 / 219.0_f64).round() as u8;
    for device in ["cpu", "sim", "vulkan"] {
        assert_eq!(film::film(device).unwrap(), [gray, gray, gray, 255], "{device}");
    }
}
