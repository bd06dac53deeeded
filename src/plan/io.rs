//! What a plan does with the memory that callers bind.

use super::{Place, PlannedIo, Segment};
use crate::graph::TensorInfo;

/// Who touches the memory bound at `place`, and when.
pub(super) fn io(segments: &[Segment], place: Place, name: String, info: TensorInfo) -> PlannedIo {
    let mut io = PlannedIo {
        name,
        info,
        devices: Vec::new(),
        reads: 0,
        writes: 0,
        first: (u32::MAX, 0),
        last: (0, 0),
    };
    for (s, segment) in segments.iter().enumerate() {
        for (c, command) in segment.commands.iter().enumerate() {
            let mut touched = None;
            command.work.for_each_touch(&mut |loc, access| {
                if loc.place == place {
                    touched = Some(command.work.reads_on().unwrap_or(segment.device));
                    io.reads += u32::from(!access.reads().is_empty());
                    io.writes += u32::from(!access.writes().is_empty());
                }
            });
            if let Some(device) = touched {
                let at = (s as u32, c as u32);
                io.first = io.first.min(at);
                io.last = io.last.max(at);
                if let Err(i) = io.devices.binary_search(&device) {
                    io.devices.insert(i, device);
                }
            }
        }
    }
    io
}
