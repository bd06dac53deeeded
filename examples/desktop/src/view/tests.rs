use eframe::egui;
use egui_kittest::Harness;
use egui_kittest::kittest::Queryable as _;

use super::*;
use crate::history::STAGES;
use crate::settings::{Mode, Settings};
use crate::state::{DeviceRow, Event, Ready, VerdictRow};

fn ready(copied: bool) -> Ready<()> {
    let row = |tensor: &str, memory| VerdictRow {
        tensor: tensor.to_owned(),
        memory,
        path: if copied { "copied by the CPU" } else { "imported" }.to_owned(),
        bytes: 2_764_800,
        copied,
        reason: "every page can be imported".to_owned(),
    };
    let verdicts = vec![row("noisy", "application"), row("clean", "renderer")];
    Ready { shown: (), size: (64, 32), verdicts, way: "in place".to_owned(), copied: 0 }
}

/// The window without a renderer.
fn window(state: State<()>) -> Harness<'static, State<()>> {
    let size = egui::vec2(1280.0, 800.0);
    let paint = |(): &(), within: Rect| Shape::rect_filled(within, 0.0, Color32::GREEN);
    Harness::builder()
        .with_size(size)
        .build_ui_state(move |ui, state: &mut State<()>| show(ui, state, &paint), state)
}

#[test]
fn the_switch_changes_the_mode() {
    let mut window = window(State::new(Settings::default(), None));
    window.run_steps(3);
    assert_eq!(window.state().settings.mode, Mode::ZeroCopy);
    window.get_by_label("Copy").click();
    window.run_steps(3);
    assert_eq!(window.state().settings.mode, Mode::Copy);
    window.get_by_label("Pause").click();
    window.run_steps(3);
    assert!(!window.state().settings.runs);
    window.get_by_label("Continue");
}

#[test]
fn verdicts_and_times_are_rows() {
    let mut state = State::new(Settings::default(), None);
    state.apply(Event::Ready(0, ready(false)));
    for _ in 0..50 {
        state.apply(Event::Frame(0, [1.25, 0.0, 3.5, 0.75, 0.5, 0.0]));
    }
    let mut window = window(state);
    window.run_steps(3);
    for text in ["noisy", "clean", "application", "renderer", "in place"] {
        window.get_by_label(text);
    }
    assert_eq!(window.get_all_by_label("2.76 MB").count(), 2);
    STAGES.into_iter().for_each(|stage| _ = window.get_by_label(stage));
    window.get_by_label("6.00 ms");
    let [left, top, right, bottom] = window.state().places["picture"];
    assert_eq!(((right - left) / (bottom - top)).round(), 2.0, "the picture keeps its shape");
}

#[test]
fn errors_are_sentences_in_the_window() {
    let mut state = State::<()>::new(Settings::default(), Some("wgpu found no device".to_owned()));
    state.apply(Event::Failed(0, "none.onnx is not loaded: no such file".to_owned()));
    let row =
        DeviceRow { selector: "cpu".to_owned(), label: "cpu: of this machine".to_owned(), unusable: None };
    state.apply(Event::Devices(vec![row]));
    let mut window = window(state);
    window.run_steps(3);
    window.get_by_label("none.onnx is not loaded: no such file");
    window.get_by_label("The window's device is not shared: wgpu found no device");
}

#[test]
fn bytes_have_units() {
    assert_eq!([0, 999, 1_500, 2_764_800].map(bytes), ["0 B", "999 B", "1.5 kB", "2.76 MB"]);
}
