//! Borrowed tensors that share pages, which a device imports as one.

use super::memory::Source;
use super::slot::{Side, decision};
use crate::device::{HeldPages, Lent};
use crate::memory::import::{enclosing, sharing_pages};
use crate::memory::os::page_size;
use crate::plan::PlannedIo;
use crate::session::core::device::Device;
use crate::session::core::options::BindPolicy;

/// A tensor that is about to be bound.
pub(in crate::session) type Bound<'b, 'e> = (Side, &'b PlannedIo, &'b Source<'e>);

/// Imports what several tensors share pages of, so that each takes a share of one import while this is kept.
pub(in crate::session) fn hold<'e>(
    tensors: &[Bound<'_, 'e>],
    devices: &[Device],
    policy: BindPolicy,
) -> Vec<HeldPages<'e>> {
    let on = |(d, device)| hold_on(d, device, tensors, policy);
    (0..).zip(devices).filter_map(on).collect()
}

fn hold_on<'e>(
    d: u32,
    device: &Device,
    tensors: &[Bound<'_, 'e>],
    policy: BindPolicy,
) -> Option<HeldPages<'e>> {
    let rules = device.context.info().import.as_ref().filter(|rules| rules.alignment > 1)?;
    let mut lent: Vec<(&Bound<'_, 'e>, &Lent<'e>)> = Vec::new();
    for tensor in tensors.iter().filter(|(_, io, _)| io.devices.contains(&d)) {
        if let Source::Lent(memory, _) = tensor.2 {
            lent.push((tensor, memory));
        }
    }
    let pages = |(_, lent): &(_, &Lent<'e>)| {
        enclosing(lent.address(), lent.bytes(), rules, page_size() as u64).unwrap_or_default()
    };
    // What follows reads the process's map.
    if sharing_pages(&lent.iter().map(pages).collect::<Vec<_>>()).is_empty() {
        return None;
    }
    let imported = |(side, io, source): &Bound<'_, 'e>| {
        decision(device, io, *side, source, policy).is_some_and(|choice| choice.path.imports())
    };
    let parts: Vec<_> =
        lent.into_iter().filter(|(tensor, _)| imported(tensor)).map(|(_, lent)| lent).collect();
    Some(Lent::hold_together(&parts, &device.context))
}
