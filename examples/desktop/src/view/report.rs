//! The times of the last frames, and the verdicts.

use eframe::egui::{self, Color32, RichText, Ui};
use egui_plot::{FilledArea, Plot};

use crate::history::{FRAMES, History, MEANINGS, STAGES};
use crate::state::{State, VerdictRow};
use crate::view::{bytes, verdict_colour};

const COLOURS: [Color32; STAGES.len()] = [
    Color32::from_rgb(228, 87, 46),
    Color32::from_rgb(150, 150, 158),
    Color32::from_rgb(76, 130, 190),
    Color32::from_rgb(242, 165, 65),
    Color32::from_rgb(178, 121, 162),
    Color32::from_rgb(90, 175, 165),
];

pub(super) fn show<S>(ui: &mut Ui, state: &State<S>) {
    ui.add_space(6.0);
    let verdicts = state.ready.as_ref().map_or(&[][..], |ready| &ready.verdicts);
    ui.columns(2, |columns| {
        let [left, right] = columns else { return };
        left.label(RichText::new("Milliseconds by stage").strong());
        legend(left, &state.history);
        plot(left, &state.history);
        right.label(RichText::new("Verdicts").strong());
        egui::ScrollArea::vertical().id_salt("verdicts").show(right, |ui| table(ui, verdicts));
    });
}

/// The stages with their colours and medians.
fn legend(ui: &mut Ui, history: &History) {
    let medians = history.medians().unwrap_or_default();
    egui::Grid::new("stages").num_columns(6).spacing([14.0, 2.0]).show(ui, |ui| {
        for (stage, median) in medians.into_iter().enumerate() {
            let entry = ui.horizontal(|ui| {
                let (square, _) = ui.allocate_exact_size(egui::vec2(10.0, 10.0), egui::Sense::hover());
                ui.painter().rect_filled(square, 2.0, COLOURS[stage]);
                ui.label(STAGES[stage]);
            });
            entry.response.on_hover_text(MEANINGS[stage]);
            ui.label(RichText::new(format!("{median:7.2}")).monospace());
            if stage % 3 == 2 {
                ui.end_row();
            }
        }
    });
}

/// The stages of the last frames, one on the other.
fn plot(ui: &mut Ui, history: &History) {
    let first = history.count() - history.frames().len() as u64;
    let xs: Vec<f64> = (0..history.frames().len()).map(|i| (first + i as u64) as f64).collect();
    let mut base = vec![0.0f64; xs.len()];
    let mut areas = Vec::new();
    for (stage, colour) in COLOURS.into_iter().enumerate() {
        let top: Vec<f64> =
            history.frames().zip(&base).map(|(stages, below)| below + f64::from(stages[stage])).collect();
        areas.push(FilledArea::new(STAGES[stage], &xs, &base, &top).fill_color(colour));
        base = top;
    }
    let (height, last) = (f64::from(history.height()), history.count() as f64);
    Plot::new("times")
        .height(ui.available_height() - 8.0)
        .width(ui.available_width() - 12.0)
        .allow_drag(false)
        .allow_zoom(false)
        .allow_scroll(false)
        .allow_boxed_zoom(false)
        .show_x(false)
        .y_axis_formatter(|mark, _| format!("{} ms", mark.value))
        .x_axis_label("frame")
        .show(ui, |plot| {
            plot.set_plot_bounds_x((last - FRAMES as f64).max(0.0)..=last.max(FRAMES as f64));
            plot.set_plot_bounds_y(0.0..=height);
            areas.into_iter().for_each(|area| plot.add(area));
        });
}

/// How the bytes of each tensor reach the device.
fn table(ui: &mut Ui, verdicts: &[VerdictRow]) {
    let reason = (ui.available_width() - 330.0).max(120.0);
    egui::Grid::new("table").num_columns(5).striped(true).spacing([12.0, 6.0]).show(ui, |ui| {
        for title in ["tensor", "memory of", "bytes", "path", "reason"] {
            ui.label(RichText::new(title).weak());
        }
        ui.end_row();
        for row in verdicts {
            ui.label(RichText::new(row.tensor.as_str()).strong());
            ui.label(row.memory);
            ui.label(RichText::new(bytes(row.bytes)).monospace());
            let wrapped = |ui: &mut Ui, text: RichText, width: f32| {
                ui.vertical(|ui| {
                    ui.set_max_width(width);
                    ui.add(egui::Label::new(text).wrap());
                });
            };
            let colour = verdict_colour(ui, row.copied);
            wrapped(ui, RichText::new(row.path.as_str()).color(colour), 96.0);
            wrapped(ui, RichText::new(row.reason.as_str()), reason);
            ui.end_row();
        }
    });
}
