//! How long the stages of the last frames took.

use std::collections::VecDeque;

/// The stages of a frame, in order.
pub(crate) const STAGES: [&str; 6] = ["copy in", "queue", "run", "copy out", "upload", "present"];

/// What each stage is, for a person.
pub(crate) const MEANINGS: [&str; 6] = [
    "The CPU copies the frame to the device.",
    "The run waits until the window's thread is done with the queue that both use.",
    "From submission until the device is done.",
    "The CPU copies the result from the device.",
    "The CPU copies the result to the renderer's buffer.",
    "The window's thread hands the picture to the window system, and waits for it.",
];

/// Frames that are kept.
pub(crate) const FRAMES: usize = 240;

/// Milliseconds of each of [`STAGES`].
pub(crate) type Stages = [f32; STAGES.len()];

/// The last frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    frames: VecDeque<Stages>,
    /// How many were added, all together.
    count: u64,
}

impl History {
    pub(crate) fn push(&mut self, stages: Stages) {
        if self.frames.len() == FRAMES {
            self.frames.pop_front();
        }
        self.frames.push_back(stages);
        self.count += 1;
    }

    /// Leaves out what was there, of other settings.
    pub(crate) fn clear(&mut self) {
        *self = History::default();
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The frames that are kept, oldest first.
    pub(crate) fn frames(&self) -> impl ExactSizeIterator<Item = &Stages> {
        self.frames.iter()
    }

    /// The median of each stage.
    pub(crate) fn medians(&self) -> Option<Stages> {
        let mut medians = [0.0; STAGES.len()];
        for (stage, median) in medians.iter_mut().enumerate() {
            let mut times: Vec<f32> = self.frames.iter().map(|stages| stages[stage]).collect();
            times.sort_by(f32::total_cmp);
            *median = *times.get(times.len() / 2)?;
        }
        Some(medians)
    }

    /// A height for the plot in milliseconds, which few frames exceed.
    pub(crate) fn height(&self) -> f32 {
        let mut sums: Vec<f32> = self.frames.iter().map(|stages| stages.iter().sum()).collect();
        sums.sort_by(f32::total_cmp);
        sums.get(sums.len() * 95 / 100).map_or(1.0, |most| most * 1.25).max(0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_frames_go_first() {
        let mut history = History::default();
        assert_eq!((history.medians(), history.height()), (None, 1.0));
        for i in 0..FRAMES + 10 {
            history.push([i as f32; STAGES.len()]);
        }
        assert_eq!((history.frames().len(), history.count()), (FRAMES, FRAMES as u64 + 10));
        assert_eq!(history.frames().next(), Some(&[10.0; STAGES.len()]));
        assert_eq!(history.medians(), Some([130.0; STAGES.len()]));
        history.clear();
        assert_eq!((history.frames().len(), history.count()), (0, 0));
    }

    #[test]
    fn one_slow_frame_does_not_flatten_the_plot() {
        let mut history = History::default();
        (0..100).for_each(|_| history.push([1.0, 0.0, 1.0, 0.0, 0.0, 0.0]));
        history.push([900.0; STAGES.len()]);
        assert_eq!(history.height(), 2.5);
    }
}
