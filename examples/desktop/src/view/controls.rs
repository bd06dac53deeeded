//! The column of controls.

use eframe::egui::{self, RichText, Ui};

use crate::filter::{FILTERS, Filter};
use crate::settings::{MOST_NOISE, Mode, SIZES, Source};
use crate::state::State;
use crate::view::{bytes, note, verdict_colour};

const WIDTH: f32 = 238.0;

pub(super) fn show<S>(ui: &mut Ui, state: &mut State<S>) {
    ui.add_space(8.0);
    ui.horizontal(|ui| {
        ui.heading("onepool");
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            let word = if state.settings.runs { "Pause" } else { "Continue" };
            let pressed = ui.button(word);
            note(state, "pause", &pressed);
            if pressed.clicked() {
                state.settings.runs = !state.settings.runs;
            }
        });
    });
    title(ui, "Memory");
    modes(ui, state);
    devices(ui, state);
    filters(ui, state);
    sources(ui, state);
    title(ui, "Each frame");
    totals(ui, state);
    title(ui, "Colours");
    themes(ui);
}

fn title(ui: &mut Ui, text: &str) -> egui::Id {
    ui.add_space(10.0);
    ui.label(RichText::new(text).strong()).id
}

fn themes(ui: &mut Ui) {
    let mut theme = ui.ctx().options(|options| options.theme_preference);
    ui.horizontal(|ui| {
        ui.selectable_value(&mut theme, egui::ThemePreference::Light, "Light");
        ui.selectable_value(&mut theme, egui::ThemePreference::Dark, "Dark");
        ui.selectable_value(&mut theme, egui::ThemePreference::System, "System");
    });
    ui.ctx().set_theme(theme);
}

/// The switch between copies and none.
fn modes<S>(ui: &mut Ui, state: &mut State<S>) {
    ui.horizontal(|ui| {
        for mode in [Mode::Copy, Mode::ZeroCopy] {
            let chosen = state.settings.mode == mode;
            let button = egui::Button::selectable(chosen, RichText::new(mode.label()).size(15.0))
                .frame_when_inactive(true)
                .min_size(egui::vec2((WIDTH - 8.0) / 2.0, 30.0));
            let pressed = ui.add(button);
            note(state, mode.label(), &pressed);
            if pressed.clicked() {
                state.settings.mode = mode;
            }
        }
    });
    let way = state.ready.as_ref().map_or("", |ready| ready.way.as_str());
    ui.label(RichText::new(way).size(11.5));
}

fn devices<S>(ui: &mut Ui, state: &mut State<S>) {
    let title = title(ui, "Device");
    let selected = &state.settings.device;
    let label = state.devices.iter().find(|row| row.selector == *selected);
    let label = label.map_or_else(|| selected.clone(), |row| row.label.clone());
    let mut chosen = selected.clone();
    let combo = egui::ComboBox::from_id_salt("device").width(WIDTH).truncate().selected_text(label);
    let shown = combo.show_ui(ui, |ui| {
        for row in &state.devices {
            let usable = row.unusable.is_none();
            let entry = egui::Button::selectable(chosen == row.selector, row.label.as_str());
            let mut entry = ui.add_enabled(usable, entry);
            if let Some(why) = &row.unusable {
                entry = entry.on_disabled_hover_text(why);
            }
            if entry.clicked() {
                chosen.clone_from(&row.selector);
            }
        }
    });
    note(state, "device", &shown.response.labelled_by(title));
    state.settings.device = chosen;
    if let Some(why) = &state.not_shared {
        let said = format!("The window's device is not shared: {why}");
        ui.label(RichText::new(said).size(11.5).color(ui.visuals().warn_fg_color));
    }
}

fn filters<S>(ui: &mut Ui, state: &mut State<S>) {
    let title = title(ui, "Filter");
    let label = state.settings.filter.label();
    let combo = egui::ComboBox::from_id_salt("filter").width(WIDTH).truncate().selected_text(label);
    let shown = combo.show_ui(ui, |ui| {
        for (filter, _, label) in FILTERS {
            ui.selectable_value(&mut state.settings.filter, filter, label);
        }
    });
    note(state, "filter", &shown.response.labelled_by(title));
    if let Some(path) = path(ui, &mut state.typed.model, "model.onnx: its path, or drop it") {
        state.settings.filter = Filter::Model(path.into());
    }
}

fn sources<S>(ui: &mut Ui, state: &mut State<S>) {
    let title = title(ui, "Frames");
    let settings = &mut state.settings;
    ui.horizontal(|ui| {
        ui.selectable_value(&mut settings.source, Source::TestCard, "Test card");
        let shown = match &settings.source {
            Source::Picture(path) => {
                path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
            }
            Source::TestCard => String::new(),
        };
        ui.add(egui::Label::new(shown).truncate());
    });
    if let Some(path) = path(ui, &mut state.typed.picture, "picture: its path, or drop it") {
        settings.source = Source::Picture(path.into());
    }
    let name = |(columns, rows): (usize, usize)| format!("{columns} × {rows}");
    let combo = egui::ComboBox::from_id_salt("size").width(WIDTH).selected_text(name(settings.size));
    let shown = combo.show_ui(ui, |ui| {
        for size in SIZES {
            ui.selectable_value(&mut settings.size, size, name(size));
        }
    });
    let slider = egui::Slider::new(&mut settings.noise, 0.0..=MOST_NOISE).text("noise").fixed_decimals(0);
    ui.add(slider).on_hover_text("The deviation of the noise that is added to each value, of 255.");
    note(state, "size", &shown.response.labelled_by(title));
}

/// A text field for a path, which is taken with the Enter key.
fn path(ui: &mut Ui, typed: &mut String, hint: &str) -> Option<String> {
    let field = ui.add(egui::TextEdit::singleline(typed).hint_text(hint).desired_width(WIDTH - 8.0));
    let entered = field.lost_focus() && ui.input(|input| input.key_pressed(egui::Key::Enter));
    let path = typed.trim();
    (entered && !path.is_empty()).then(|| path.to_owned())
}

/// What a frame costs.
fn totals<S>(ui: &mut Ui, state: &State<S>) {
    let medians = state.history.medians();
    let [.., present] = medians.unwrap_or_default();
    let total = medians.unwrap_or_default().iter().sum::<f32>() - present;
    egui::Grid::new("totals").num_columns(2).spacing([16.0, 4.0]).show(ui, |ui| {
        ui.label("memory to renderer");
        ui.label(RichText::new(format!("{total:.2} ms")).monospace().strong());
        ui.end_row();
        ui.label("bytes copied");
        match &state.ready {
            Some(ready) => {
                let colour = verdict_colour(ui, ready.copied > 0);
                ui.label(RichText::new(bytes(ready.copied)).monospace().strong().color(colour))
            }
            None => ui.label("–"),
        };
        ui.end_row();
        ui.label("frames");
        ui.label(RichText::new(state.history.count().to_string()).monospace());
        ui.end_row();
    });
}
