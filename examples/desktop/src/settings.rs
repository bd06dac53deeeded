//! What the person chose.

use std::path::{Path, PathBuf};

use crate::filter::Filter;

/// The device that the renderer and onepool share, among the names of devices.
pub(crate) const SHARED: &str = "shared";

/// Sizes of frames to choose from; the denoiser takes multiples of 8.
pub(crate) const SIZES: [(usize, usize); 4] = [(320, 184), (640, 360), (1280, 720), (1920, 1080)];

/// Deviation of the noise at most, of 255.
pub(crate) const MOST_NOISE: f32 = 60.0;

/// Where frames come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The moving test card.
    TestCard,
    /// A picture of a file.
    Picture(PathBuf),
}

/// How frames reach the device and come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// The CPU copies each frame to the device and back.
    Copy,
    /// The device reads and writes the memory where frames lie.
    ZeroCopy,
}

impl Mode {
    /// What a person calls it.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Mode::Copy => "Copy",
            Mode::ZeroCopy => "Zero copy",
        }
    }
}

/// What is filtered, where and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) source: Source,
    pub(crate) filter: Filter,
    /// [`SHARED`], or a device as onepool names them.
    pub(crate) device: String,
    pub(crate) mode: Mode,
    /// Columns and rows.
    pub(crate) size: (usize, usize),
    /// Deviation of the noise that is added, of 255.
    pub(crate) noise: f32,
    /// Whether frames follow each other.
    pub(crate) runs: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            source: Source::TestCard,
            filter: Filter::Blur,
            device: SHARED.to_owned(),
            mode: Mode::ZeroCopy,
            size: SIZES[1],
            noise: 0.0,
            runs: true,
        }
    }
}

impl Settings {
    /// Whether what was prepared for `other` serves these too.
    pub(crate) fn prepares_as(&self, other: &Settings) -> bool {
        let Settings { source, filter, device, mode, size, noise: _, runs: _ } = other;
        (&self.source, &self.filter, &self.device, self.mode, self.size)
            == (source, filter, device, *mode, *size)
    }

    /// Sets one value by its name, as arguments and scripts do.
    ///
    /// # Errors
    /// What would be right, as a sentence.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "source" if value == "card" => self.source = Source::TestCard,
            "source" => self.source = Source::Picture(value.into()),
            "filter" => self.filter = Filter::named(value)?,
            "device" => self.device = value.to_owned(),
            "mode" => {
                self.mode = clap::ValueEnum::from_str(value, false)
                    .map_err(|_| format!("there is no mode {value:?}; there are copy and zero-copy"))?;
            }
            "size" => self.size = parse_size(value)?,
            "noise" => self.noise = parse_noise(value)?,
            _ => return Err(format!("there is no setting {name:?}")),
        }
        Ok(())
    }

    /// Takes a file that was dropped on the window: a model or a picture.
    pub(crate) fn take_file(&mut self, path: &Path) {
        match Filter::named(&path.to_string_lossy()) {
            Ok(model @ Filter::Model(_)) => self.filter = model,
            _ => self.source = Source::Picture(path.to_owned()),
        }
    }
}

/// A size such as 640x360.
///
/// # Errors
/// What is expected, as a sentence.
pub(crate) fn parse_size(text: &str) -> Result<(usize, usize), String> {
    let side = |s: &str| s.parse::<usize>().ok().filter(|n| (8..=4096).contains(n));
    let sizes = text.split_once('x').and_then(|(w, h)| Some((side(w)?, side(h)?)));
    sizes.ok_or_else(|| format!("expected a size of COLUMNSxROWS, each from 8 to 4096, not {text:?}"))
}

/// A deviation of 255.
///
/// # Errors
/// What is expected, as a sentence.
pub(crate) fn parse_noise(text: &str) -> Result<f32, String> {
    let noise = text.parse::<f32>().ok().filter(|n| (0.0..=MOST_NOISE).contains(n));
    noise.ok_or_else(|| format!("expected noise from 0 to {MOST_NOISE}, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_set_by_name() {
        let mut settings = Settings::default();
        let all = [("source", "a.png"), ("filter", "denoise"), ("device", "cpu"), ("mode", "copy")];
        for (name, value) in all.into_iter().chain([("size", "64x32"), ("noise", "25")]) {
            settings.set(name, value).unwrap();
        }
        let expected = Settings {
            source: Source::Picture("a.png".into()),
            filter: Filter::Denoise,
            device: "cpu".to_owned(),
            mode: Mode::Copy,
            size: (64, 32),
            noise: 25.0,
            runs: true,
        };
        assert_eq!(settings, expected);
        settings.set("source", "card").unwrap();
        settings.set("mode", "zero-copy").unwrap();
        assert_eq!((settings.source, settings.mode), (Source::TestCard, Mode::ZeroCopy));
    }

    #[test]
    fn bad_values_say_what_is_right_and_change_nothing() {
        let bad = [
            ("mode", "fast", "there is no mode \"fast\"; there are copy and zero-copy"),
            ("size", "0x9", "expected a size of COLUMNSxROWS, each from 8 to 4096, not \"0x9\""),
            ("size", "99999x9", "expected a size of COLUMNSxROWS, each from 8 to 4096, not \"99999x9\""),
            ("noise", "nan", "expected noise from 0 to 60, not \"nan\""),
            ("colour", "red", "there is no setting \"colour\""),
        ];
        for (name, value, said) in bad {
            let mut settings = Settings::default();
            assert_eq!(settings.set(name, value).unwrap_err(), said);
            assert_eq!(settings, Settings::default());
        }
    }

    #[test]
    fn noise_and_pauses_need_no_new_session() {
        let first = Settings::default();
        let mut other = Settings { noise: 9.0, runs: false, ..first.clone() };
        assert!(first.prepares_as(&other));
        other.mode = Mode::Copy;
        assert!(!first.prepares_as(&other));
    }

    #[test]
    fn dropped_files_are_models_or_pictures() {
        let mut settings = Settings::default();
        settings.take_file(Path::new("/a/b.onnx"));
        settings.take_file(Path::new("/a/b.jpg"));
        assert_eq!(settings.filter, Filter::Model("/a/b.onnx".into()));
        assert_eq!(settings.source, Source::Picture("/a/b.jpg".into()));
    }
}
