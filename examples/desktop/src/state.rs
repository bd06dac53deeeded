//! What the window shows: settings, what the worker told, and nothing of how it is drawn.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::history::{History, STAGES, Stages};
use crate::settings::Settings;

/// A device to choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRow {
    /// [`SHARED`](crate::settings::SHARED), or a device as onepool names them.
    pub(crate) selector: String,
    /// What a person calls it.
    pub(crate) label: String,
    /// Why it cannot be chosen, if it cannot.
    pub(crate) unusable: Option<String>,
}

/// How the bytes of one tensor reach the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct VerdictRow {
    pub(crate) tensor: String,
    /// Of the application, or of the renderer.
    pub(crate) memory: &'static str,
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// Whether the bytes are copied in each frame.
    pub(crate) copied: bool,
    pub(crate) reason: String,
}

/// What became of the settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Phase {
    /// A session is being made for them.
    Preparing,
    /// Frames follow each other.
    Running,
    /// They cannot be run: why, as a sentence.
    Failed(String),
}

/// What a worker prepared for settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ready<S> {
    /// What the renderer shows.
    pub(crate) shown: S,
    /// Columns and rows of it.
    pub(crate) size: (u32, u32),
    pub(crate) verdicts: Vec<VerdictRow>,
    /// What happens to the frame on its way, as a sentence.
    pub(crate) way: String,
    /// Bytes that are copied for each frame, by CPU or device, the upload to the renderer included.
    pub(crate) copied: u64,
}

/// What a worker tells. The number is that of the settings which it is about.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event<S> {
    Ready(u64, Ready<S>),
    Frame(u64, Stages),
    Failed(u64, String),
    Devices(Vec<DeviceRow>),
}

/// What the window shows. `S` is what the renderer shows a frame from.
#[derive(Debug)]
pub(crate) struct State<S> {
    pub(crate) settings: Settings,
    pub(crate) devices: Vec<DeviceRow>,
    /// Why the renderer and onepool share no device, if they do not.
    pub(crate) not_shared: Option<String>,
    pub(crate) phase: Phase,
    pub(crate) ready: Option<Ready<S>>,
    pub(crate) history: History,
    /// Milliseconds of the last presentation.
    pub(crate) present: f32,
    /// Paths as they are typed.
    pub(crate) typed: Typed,
    /// Where controls and the picture were drawn, by name: left, top, right and bottom in points.
    pub(crate) places: BTreeMap<String, [f32; 4]>,
    sent: Settings,
    number: u64,
}

/// Text fields.
#[derive(Debug, Default)]
pub(crate) struct Typed {
    pub(crate) picture: String,
    pub(crate) model: String,
}

/// The state as `print` of a script writes it.
#[derive(Debug, Serialize)]
pub(crate) struct Printed<'a> {
    device: &'a str,
    mode: &'static str,
    filter: String,
    phase: &'static str,
    error: Option<&'a str>,
    not_shared: Option<&'a str>,
    way: Option<&'a str>,
    frames: u64,
    bytes_copied: Option<u64>,
    median_ms: BTreeMap<&'static str, f32>,
    verdicts: &'a [VerdictRow],
    devices: Vec<&'a str>,
    places: &'a BTreeMap<String, [f32; 4]>,
}

impl<S> State<S> {
    /// The state at the start, of settings that the worker has.
    pub(crate) fn new(settings: Settings, not_shared: Option<String>) -> Self {
        State {
            sent: settings.clone(),
            settings,
            devices: Vec::new(),
            not_shared,
            phase: Phase::Preparing,
            ready: None,
            history: History::default(),
            present: 0.0,
            typed: Typed::default(),
            places: BTreeMap::new(),
            number: 0,
        }
    }

    /// The number of the settings that the worker has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The settings to send to the worker, with their number, where they changed since.
    pub(crate) fn take_change(&mut self) -> Option<(u64, Settings)> {
        if self.settings == self.sent {
            return None;
        }
        if !self.settings.prepares_as(&self.sent) {
            self.number += 1;
            self.phase = Phase::Preparing;
            self.history.clear();
        }
        self.sent = self.settings.clone();
        Some((self.number, self.settings.clone()))
    }

    /// Takes in what the worker told. What is about earlier settings is left out.
    pub(crate) fn apply(&mut self, event: Event<S>) {
        match event {
            Event::Devices(devices) => self.devices = devices,
            Event::Ready(number, ready) if number == self.number => {
                self.phase = Phase::Running;
                self.ready = Some(ready);
            }
            Event::Frame(number, mut stages) if number == self.number => {
                stages[STAGES.len() - 1] = self.present;
                self.history.push(stages);
            }
            Event::Failed(number, why) if number == self.number => {
                self.phase = Phase::Failed(why);
                self.ready = None;
            }
            Event::Ready(..) | Event::Frame(..) | Event::Failed(..) => {}
        }
    }

    /// Why the settings cannot be run.
    pub(crate) fn error(&self) -> Option<&str> {
        match &self.phase {
            Phase::Failed(why) => Some(why),
            Phase::Preparing | Phase::Running => None,
        }
    }

    pub(crate) fn printed(&self) -> Printed<'_> {
        let ready = self.ready.as_ref();
        let medians = self.history.medians();
        Printed {
            device: &self.settings.device,
            mode: self.settings.mode.label(),
            filter: self.settings.filter.label(),
            phase: match self.phase {
                Phase::Preparing => "preparing",
                Phase::Running => "running",
                Phase::Failed(_) => "failed",
            },
            error: self.error(),
            not_shared: self.not_shared.as_deref(),
            way: ready.map(|ready| ready.way.as_str()),
            frames: self.history.count(),
            bytes_copied: ready.map(|ready| ready.copied),
            median_ms: medians.into_iter().flat_map(|m| STAGES.into_iter().zip(m)).collect(),
            verdicts: ready.map_or(&[], |ready| &ready.verdicts),
            devices: self.devices.iter().map(|device| device.selector.as_str()).collect(),
            places: &self.places,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Mode;

    fn ready(copied: u64) -> Ready<()> {
        Ready { shown: (), size: (64, 32), verdicts: Vec::new(), way: String::new(), copied }
    }

    #[test]
    fn what_is_about_earlier_settings_is_left_out() {
        let mut state = State::new(Settings::default(), None);
        assert_eq!(state.take_change(), None);
        state.apply(Event::Ready(0, ready(0)));
        state.present = 2.0;
        state.apply(Event::Frame(0, [1.0; STAGES.len()]));
        assert_eq!((state.phase.clone(), state.history.count()), (Phase::Running, 1));
        assert_eq!(state.history.frames().next().unwrap(), &[1.0, 1.0, 1.0, 1.0, 1.0, 2.0]);

        state.settings.mode = Mode::Copy;
        let (number, sent) = state.take_change().unwrap();
        assert_eq!((number, sent.mode, state.take_change()), (1, Mode::Copy, None));
        assert_eq!((state.phase.clone(), state.history.count()), (Phase::Preparing, 0));
        state.apply(Event::Frame(0, [1.0; STAGES.len()]));
        state.apply(Event::Ready(0, ready(7)));
        state.apply(Event::Failed(0, "no".to_owned()));
        assert_eq!((state.phase.clone(), state.history.count()), (Phase::Preparing, 0));
        state.apply(Event::Ready(1, ready(9)));
        assert_eq!(state.ready.as_ref().unwrap().copied, 9);
    }

    #[test]
    fn noise_goes_to_the_worker_and_interrupts_nothing() {
        let mut state = State::<()>::new(Settings::default(), None);
        state.apply(Event::Ready(0, ready(0)));
        state.apply(Event::Frame(0, [1.0; STAGES.len()]));
        state.settings.noise = 10.0;
        assert_eq!(state.take_change().map(|(number, sent)| (number, sent.noise)), Some((0, 10.0)));
        assert_eq!((state.phase.clone(), state.history.count()), (Phase::Running, 1));
    }

    #[test]
    fn a_failure_is_shown_until_other_settings_are_chosen() {
        let mut state = State::<()>::new(Settings::default(), None);
        state.apply(Event::Failed(0, "there is no such device".to_owned()));
        assert_eq!(state.error(), Some("there is no such device"));
        let printed = serde_json::to_value(state.printed()).unwrap();
        assert_eq!(
            (&printed["phase"], &printed["error"]),
            (&"failed".into(), &"there is no such device".into())
        );
        state.settings.device = "cpu".to_owned();
        state.take_change().unwrap();
        assert_eq!(state.error(), None);
    }
}
