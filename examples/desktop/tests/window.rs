//! The program in a real window: on a display of its own (Xvfb), driven by scripts and by a mouse, judged by what is on
//! the screen.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod display;

use display::{Display, Drawn};
use serde_json::Value;

/// Colours of the test card's bars, of 255, from left to right.
const BARS: [[f32; 3]; 8] = [
    [191.0, 191.0, 191.0],
    [191.0, 191.0, 0.0],
    [0.0, 191.0, 191.0],
    [0.0, 191.0, 0.0],
    [191.0, 0.0, 191.0],
    [191.0, 0.0, 0.0],
    [0.0, 0.0, 191.0],
    [0.0, 0.0, 0.0],
];

/// How many bars of the picture have the colours that `filter` makes of the card's, looked at below the path of the disc
/// where that has not come yet.
fn bars(drawn: &Drawn, printed: &Value, filter: impl Fn([f32; 3]) -> [f32; 3]) -> usize {
    let [left, top, right, bottom] = place(printed, "picture");
    let near = |bar: usize| {
        let x = left + (right - left) * (bar as f32 + 0.5) / 8.0;
        // The disc covers at most one height.
        [0.1f32, 0.42].into_iter().any(|part| {
            let found = drawn.pixel(x, top + (bottom - top) * part);
            found.iter().zip(filter(BARS[bar])).all(|(a, b)| (f32::from(*a) - b).abs() <= 3.0)
        })
    };
    (0..8).filter(|bar| near(*bar)).count()
}

fn place(printed: &Value, name: &str) -> [f32; 4] {
    let place = &printed["places"][name];
    [0, 1, 2, 3].map(|i| place[i].as_f64().unwrap_or_else(|| panic!("{name} was not drawn")) as f32)
}

/// Pixels of the plot that have the colour of some stage.
fn plotted(drawn: &Drawn) -> usize {
    let stages =
        [[228u8, 87, 46], [150, 150, 158], [76, 130, 190], [242, 165, 65], [178, 121, 162], [90, 175, 165]];
    let near =
        |pixel: [u8; 3]| stages.iter().any(|stage| stage.iter().zip(pixel).all(|(a, b)| a.abs_diff(b) <= 24));
    let (columns, rows) = (drawn.size.0 as usize, drawn.size.1 as usize);
    let area = (columns / 5..columns / 5 * 3).flat_map(|x| (rows * 7 / 10..rows).map(move |y| (x, y)));
    area.filter(|(x, y)| near(drawn.pixel(*x as f32, *y as f32))).count()
}

fn paths(printed: &Value) -> Vec<&str> {
    printed["verdicts"].as_array().unwrap().iter().map(|row| row["path"].as_str().unwrap()).collect()
}

#[test]
fn both_modes_show_what_the_filter_makes() {
    let display = Display::open();
    let folder = tempfile::tempdir().unwrap();
    let [zero, copy] = ["zero.png", "copy.png"].map(|name| folder.path().join(name));
    let script = format!(
        "theme dark\nfilter invert\nsize 320x184\nwait 12\nprint\nscreenshot {}\nmode copy\nwait 12\nprint\nscreenshot {}\n",
        zero.display(),
        copy.display()
    );
    let ran = display.run(&["--filter", "invert"], &script);
    assert!(ran.status.success(), "{}", ran.stderr);
    let [first, second] = &ran.printed[..] else { panic!("{:?}", ran.printed) };
    let inverted = |colour: [f32; 3]| colour.map(|value| 255.0 - value);
    for (printed, picture, mode) in [(first, zero, "Zero copy"), (second, copy, "Copy")] {
        assert_eq!((&printed["mode"], &printed["phase"]), (&mode.into(), &"running".into()));
        let drawn = Drawn::open(&picture);
        assert_eq!(bars(&drawn, printed, inverted), 8, "{mode}");
        assert!(plotted(&drawn) > 200, "{mode}: {} pixels of the plot", plotted(&drawn));
        assert!(printed["median_ms"]["run"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(paths(first), ["imported", "already in device-visible memory"]);
    assert_eq!(first["bytes_copied"], 0);
    assert_eq!(first["verdicts"][1]["reason"], "it is the renderer's buffer");
    assert_eq!(second["verdicts"][0]["reason"], "the switch is at Copy");
    assert_eq!(paths(second), ["copied by the CPU", "copied by the CPU"]);
    // In, out and to the renderer.
    assert_eq!(second["bytes_copied"], 3 * 3 * 320 * 184 * 4);
    assert!(second["median_ms"]["copy in"].as_f64().unwrap() > 0.0);
}

/// Without pictures of the window: their memory is used again at once, which the layer takes for a hazard.
#[test]
fn window_and_models_share_the_queue_as_vulkan_demands() {
    let display = Display::open();
    let script = "size 320x184\nwait 9\nmode copy\nwait 9\nfilter invert\nmode zero-copy\nwait 9\nprint\n";
    let ran = display.run_validated(&[], script);
    assert!(ran.status.success(), "{}", ran.stderr);
    assert_eq!(ran.messages, [""; 0]);
    assert_eq!(ran.printed[0]["bytes_copied"], 0);
}

#[test]
fn a_click_on_the_switch_is_seen_on_the_screen() {
    let display = Display::open();
    // What is printed says that frames were shown since the pointer moved. Another mode counts its frames from 1.
    let wait = |frames: u32| format!("wait {frames}\nprint\n");
    let script = [6].into_iter().chain(10..20).map(wait).collect::<String>() + "wait 1000000";
    let mut running = display.start(&["--filter", "sepia", "--size", "320x184", "--theme", "light"], &script);
    let before = running.printed();
    assert_eq!(before["mode"], "Zero copy");
    let sepia = |c: [f32; 3]| {
        let [r, g, b] = c;
        let rows = [[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]];
        rows.map(|row: [f32; 3]| (row[0] * r + row[1] * g + row[2] * b).min(255.0))
    };
    assert_eq!(bars(&display.screen(), &before, sepia), 8, "on the screen");
    let lit = |drawn: &Drawn, name: &str| {
        let [left, top, _, bottom] = place(&before, name);
        drawn.pixel(left + 8.0, (top + bottom) / 2.0)
    };
    let earlier = display.screen();
    let (copy_before, zero_before) = (lit(&earlier, "Copy"), lit(&earlier, "Zero copy"));
    let [left, top, right, bottom] = place(&before, "Copy");
    let mut steps = 0;
    display.click((left + right) / 2.0, (top + bottom) / 2.0, || {
        steps += 1;
        let is_over = |printed: &Value| steps < 2 || printed["mode"] == "Copy";
        assert!((0..9).any(|_| is_over(&running.printed())), "step {steps} of the click is seen");
    });
    let chosen = display.until(|drawn| lit(drawn, "Copy") == zero_before);
    assert!(chosen, "Copy is chosen; it was {copy_before:?} and Zero copy {zero_before:?}");
    assert!(display.until(|drawn| bars(drawn, &before, sepia) == 8), "the copied picture is the same");
    running.stop();
}

#[test]
fn other_devices_work_on_the_applications_memory() {
    let display = Display::open();
    let script = "size 320x184\nfilter invert\ndevice cpu\nwait 4\nprint\ndevice opencl\nwait 4\nprint\ndevice vulkan\nwait 4\nprint\n";
    let ran = display.run(&[], script);
    assert!(ran.status.success(), "{}", ran.stderr);
    let devices: Vec<_> = ran.printed.iter().map(|printed| printed["device"].as_str().unwrap()).collect();
    assert_eq!(devices, ["cpu", "opencl", "vulkan"]);
    for printed in &ran.printed {
        let rows = printed["verdicts"].as_array().unwrap();
        assert!(rows.len() == 2 && rows.iter().all(|row| row["memory"] == "application"), "{printed}");
        // The upload alone.
        assert_eq!(printed["bytes_copied"], 3 * 320 * 184 * 4, "{printed}");
    }
    let listed: Vec<_> =
        ran.printed[2]["devices"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
    assert!(listed.contains(&"shared") && listed.contains(&"cpu"), "{listed:?}");
}

#[test]
fn failures_are_said_and_the_window_stays() {
    let display = Display::open();
    let script = "size 320x184\nfilter /none.onnx\nwait 2\nprint\ndevice toaster\nfilter invert\nwait 2\nprint\ndevice cpu\nwait 3\nprint\n";
    let ran = display.run(&["--separate"], script);
    assert!(ran.status.success(), "{}", ran.stderr);
    let said = |at: usize| ran.printed[at]["error"].as_str().unwrap_or_default();
    assert!(said(0).starts_with("none.onnx is not loaded: "), "{}", said(0));
    assert!(said(1).starts_with("there is no device API \"toaster\""), "{}", said(1));
    assert_eq!((&ran.printed[2]["phase"], &ran.printed[2]["error"]), (&"running".into(), &Value::Null));
    assert_eq!(ran.printed[0]["not_shared"], "--separate asks for two");

    let ran = display.run(&["--separate", "--device", "shared"], "wait 2\n");
    assert_eq!(ran.status.code(), Some(1));
    assert!(
        ran.stderr.contains("desktop: the window's device is not shared: --separate asks for two"),
        "{}",
        ran.stderr
    );
}

#[test]
fn without_a_window_or_with_bad_arguments_there_is_a_sentence() {
    let cases: [(&[&str], &str); 4] = [
        (&[], "there is no window system to show a window"),
        (&["--size", "huge"], "expected a size of COLUMNSxROWS, each from 8 to 4096, not \"huge\""),
        (&["--filter", "magic"], "there is no filter \"magic\""),
        (&["--script", "/none.txt"], "/none.txt is not read: No such file"),
    ];
    for (args, said) in cases {
        let program = std::process::Command::new(env!("CARGO_BIN_EXE_desktop"))
            .args(args)
            .env_remove("DISPLAY")
            .env_remove("WAYLAND_DISPLAY")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&program.stderr);
        assert_eq!(program.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.lines().any(|line| line.starts_with("desktop: ") && line.contains(said)), "{stderr}");
    }
}
