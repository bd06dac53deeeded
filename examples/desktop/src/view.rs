//! The window: controls, the picture, times and verdicts. It reads and changes the state, and knows no device.

mod controls;
mod report;

use eframe::egui::{self, Align2, Color32, FontId, Rect, Response, Shape, Ui};

use crate::state::{Phase, State};

/// Draws the window. `paint` makes what the renderer draws in place of the picture.
pub(crate) fn show<S>(ui: &mut Ui, state: &mut State<S>, paint: &dyn Fn(&S, Rect) -> Shape) {
    let dropped = ui.input(|input| input.raw.dropped_files.first().cloned());
    if let Some(file) = dropped {
        state.settings.take_file(file.path());
    }
    egui::Panel::left("controls").exact_size(264.0).resizable(false).show(ui, |ui| {
        egui::ScrollArea::vertical().show(ui, |ui| controls::show(ui, state));
    });
    egui::Panel::bottom("report").exact_size(292.0).resizable(false).show(ui, |ui| {
        report::show(ui, state);
    });
    let frame = egui::Frame::new().fill(ui.visuals().extreme_bg_color);
    egui::CentralPanel::default().frame(frame).show(ui, |ui| picture(ui, state, paint));
}

/// The picture in the middle of what is left, or why there is none.
fn picture<S>(ui: &mut Ui, state: &mut State<S>, paint: &dyn Fn(&S, Rect) -> Shape) {
    let room = ui.max_rect().shrink(10.0);
    if let (Phase::Running | Phase::Preparing, Some(ready)) = (&state.phase, &state.ready) {
        let size = egui::vec2(ready.size.0.max(1) as f32, ready.size.1.max(1) as f32);
        let scale = (room.width() / size.x).min(room.height() / size.y);
        let within = Align2::CENTER_CENTER.align_size_within_rect(size * scale, room);
        ui.painter().add(paint(&ready.shown, within));
        place(state, "picture", within);
    }
    let (said, colour) = match &state.phase {
        Phase::Running => return,
        Phase::Preparing if state.ready.is_some() => return,
        Phase::Preparing => ("Preparing…", ui.visuals().weak_text_color()),
        Phase::Failed(why) => (why.as_str(), ui.visuals().error_fg_color),
    };
    let wrapped =
        ui.painter().layout(said.to_owned(), FontId::proportional(16.0), colour, room.width() * 0.7);
    let within = Align2::CENTER_CENTER.align_size_within_rect(wrapped.size(), room);
    // A label, so that those hear it too who do not see it.
    ui.put(within.expand(4.0), egui::Label::new(egui::RichText::new(said).size(16.0).color(colour)).wrap());
}

/// Keeps where a control was drawn.
fn note<S>(state: &mut State<S>, name: impl Into<String>, response: &Response) {
    place(state, name, response.rect);
}

fn place<S>(state: &mut State<S>, name: impl Into<String>, rect: Rect) {
    state.places.insert(name.into(), [rect.left(), rect.top(), rect.right(), rect.bottom()]);
}

/// The colour of what needs no copy, and of what is copied.
fn verdict_colour(ui: &Ui, copied: bool) -> Color32 {
    match (copied, ui.visuals().dark_mode) {
        (true, true) => Color32::from_rgb(240, 160, 80),
        (true, false) => Color32::from_rgb(170, 80, 0),
        (false, true) => Color32::from_rgb(110, 200, 130),
        (false, false) => Color32::from_rgb(20, 120, 50),
    }
}

/// Bytes with a unit.
fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.2} MB", count as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests;
