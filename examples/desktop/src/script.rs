//! A window that is driven by lines of text, for tests and for pictures of it.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use eframe::egui::ThemePreference;

use crate::settings::Settings;
use crate::state::State;

/// For how long a frame is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// One line of a script.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// `device cpu`, `mode copy`, ...: [`Settings::set`].
    Set(String, String),
    /// `theme light`.
    Theme(ThemePreference),
    /// `wait 30`: until so many frames of these settings were shown, or they failed.
    Wait(u64),
    /// `screenshot FILE`
    Screenshot(PathBuf),
    /// `print`: the state as a line of JSON.
    Print,
}

/// What the window does next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Act {
    /// Nothing, until something changes.
    Wait,
    /// Looks again: a setting was changed.
    Go,
    Theme(ThemePreference),
    Screenshot(PathBuf),
    Print,
    /// The script is over.
    Quit,
}

/// The lines that are left.
#[derive(Debug)]
pub(crate) struct Script {
    steps: VecDeque<Step>,
    waits: Option<Instant>,
}

impl Script {
    /// Reads lines. Those that are empty or begin with `#` are left out.
    ///
    /// # Errors
    /// The line that is wrong, and what would be right.
    pub(crate) fn parse(text: &str) -> Result<Script, String> {
        let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let steps = lines.map(|(i, line)| step(line).map_err(|why| format!("line {i} of the script: {why}")));
        Ok(Script { steps: steps.collect::<Result<_, _>>()?, waits: None })
    }

    /// A script that writes one picture of the window after some frames.
    pub(crate) fn screenshot(to: PathBuf, frames: u64) -> Script {
        Script { steps: [Step::Wait(frames), Step::Screenshot(to)].into(), waits: None }
    }

    /// What is next.
    ///
    /// # Errors
    /// No frame came in time.
    pub(crate) fn next<S>(&mut self, state: &mut State<S>) -> Result<Act, String> {
        let Some(step) = self.steps.front() else { return Ok(Act::Quit) };
        let act = match step {
            Step::Set(name, value) => state.settings.set(name, value).map(|()| Act::Go)?,
            Step::Theme(theme) => Act::Theme(*theme),
            Step::Screenshot(path) => Act::Screenshot(path.clone()),
            Step::Print => Act::Print,
            Step::Wait(frames) => {
                let since = *self.waits.get_or_insert_with(Instant::now);
                if state.error().is_none() && state.history.count() < *frames {
                    if since.elapsed() > PATIENCE {
                        let count = state.history.count();
                        return Err(format!("{count} of {frames} frames came in {PATIENCE:?}"));
                    }
                    return Ok(Act::Wait);
                }
                self.waits = None;
                Act::Go
            }
        };
        self.steps.pop_front();
        Ok(act)
    }
}

fn step(line: &str) -> Result<Step, String> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match word {
        "wait" => match rest.parse() {
            Ok(frames) => Ok(Step::Wait(frames)),
            Err(_) => Err(format!("wait is followed by a number of frames, not {rest:?}")),
        },
        "screenshot" if rest.is_empty() => Err("screenshot is followed by a file".to_owned()),
        "screenshot" => Ok(Step::Screenshot(rest.into())),
        "print" => Ok(Step::Print),
        "theme" => parse_theme(rest).map(Step::Theme),
        name => {
            // Tried on other settings, so that a mistake is found before the window opens.
            Settings::default().set(name, rest)?;
            Ok(Step::Set(name.to_owned(), rest.to_owned()))
        }
    }
}

/// The colours of a window.
///
/// # Errors
/// The words that there are.
pub(crate) fn parse_theme(word: &str) -> Result<ThemePreference, String> {
    match word {
        "light" => Ok(ThemePreference::Light),
        "dark" => Ok(ThemePreference::Dark),
        "system" => Ok(ThemePreference::System),
        _ => Err(format!("there is no theme {word:?}; there are light, dark and system")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::STAGES;
    use crate::settings::Mode;
    use crate::state::{Event, Ready};

    #[test]
    fn a_script_is_played_in_order() {
        let script = "# a comment\nmode copy\n\n wait 2\nprint\ntheme light\nscreenshot a b.png";
        let mut script = Script::parse(script).unwrap();
        let mut state = State::<()>::new(Settings::default(), None);
        assert_eq!(script.next(&mut state), Ok(Act::Go));
        assert_eq!(state.settings.mode, Mode::Copy);
        state.take_change().unwrap();
        let ready = Ready { shown: (), size: (8, 8), verdicts: Vec::new(), way: String::new(), copied: 0 };
        state.apply(Event::Ready(1, ready));
        state.apply(Event::Frame(1, [0.0; STAGES.len()]));
        assert_eq!(script.next(&mut state), Ok(Act::Wait));
        state.apply(Event::Frame(1, [0.0; STAGES.len()]));
        assert_eq!(script.next(&mut state), Ok(Act::Go));
        assert_eq!(script.next(&mut state), Ok(Act::Print));
        assert_eq!(script.next(&mut state), Ok(Act::Theme(ThemePreference::Light)));
        assert_eq!(script.next(&mut state), Ok(Act::Screenshot("a b.png".into())));
        assert_eq!(script.next(&mut state), Ok(Act::Quit));
    }

    #[test]
    fn a_failure_ends_a_wait() {
        let mut script = Script::screenshot("a.png".into(), 9);
        let mut state = State::<()>::new(Settings::default(), None);
        assert_eq!(script.next(&mut state), Ok(Act::Wait));
        state.apply(Event::Failed(0, "no".to_owned()));
        assert_eq!(script.next(&mut state), Ok(Act::Go));
        assert_eq!(script.next(&mut state), Ok(Act::Screenshot("a.png".into())));
    }

    #[test]
    fn mistakes_are_found_by_line() {
        let bad = [
            (
                "print\nwait long",
                "line 2 of the script: wait is followed by a number of frames, not \"long\"",
            ),
            ("screenshot", "line 1 of the script: screenshot is followed by a file"),
            (
                "theme pink",
                "line 1 of the script: there is no theme \"pink\"; there are light, dark and system",
            ),
            ("jump", "line 1 of the script: there is no setting \"jump\""),
            (
                "size big",
                "line 1 of the script: expected a size of COLUMNSxROWS, each from 8 to 4096, not \"big\"",
            ),
        ];
        for (text, said) in bad {
            assert_eq!(Script::parse(text).unwrap_err(), said);
        }
    }
}
