//! Device commands against a model that knows only pairs of accesses to one byte.

use proptest::prelude::*;

use super::*;

const BYTES: u64 = 12;
const RESOURCES: u32 = 3;

#[derive(Clone, Debug)]
enum Item {
    Command(Vec<Touch>),
    Barrier(Barrier),
}

/// What one earlier access to a byte still owes to later ones.
#[derive(Clone)]
struct Past {
    kind: Access,
    /// Kinds of later accesses that are ordered after it, and see it if it is a write.
    safe_for: Access,
}

/// Whether the stage of one kind is among the stages of others; written out, not computed.
fn stage_in(kind: Access, mask: Access) -> bool {
    [(KR, KW), (TR, TW)].iter().any(|(read, write)| {
        (kind == *read || kind == *write) && (mask.contains(*read) || mask.contains(*write))
    })
}

/// Whether every pair of conflicting accesses is ordered; bytes are `resource * BYTES + offset`.
fn is_sound(items: &[Item]) -> bool {
    let mut past: Vec<Vec<Past>> = vec![Vec::new(); (BYTES * u64::from(RESOURCES)) as usize];
    for item in items {
        match item {
            Item::Barrier(barrier) => {
                for access in past.iter_mut().flatten() {
                    let writes = access.kind == KW || access.kind == TW;
                    if writes && barrier.src.contains(access.kind) {
                        access.safe_for |= barrier.dst;
                    }
                    if !writes && stage_in(access.kind, barrier.src) {
                        for later in [KR, KW, TR, TW] {
                            if stage_in(later, barrier.dst) {
                                access.safe_for |= later;
                            }
                        }
                    }
                }
            }
            Item::Command(touches) => {
                for (byte, kind) in bytes_of(touches) {
                    let writes = kind == KW || kind == TW;
                    let races = past[byte].iter().any(|earlier| {
                        let conflict = writes || earlier.kind == KW || earlier.kind == TW;
                        conflict && !earlier.safe_for.contains(kind)
                    });
                    if races {
                        return false;
                    }
                }
                for (byte, kind) in bytes_of(touches) {
                    past[byte].push(Past { kind, safe_for: Access::NONE });
                }
            }
        }
    }
    true
}

fn bytes_of(touches: &[Touch]) -> Vec<(usize, Access)> {
    let mut found = Vec::new();
    for touch in touches {
        for byte in touch.range.start..touch.range.end {
            for kind in [KR, KW, TR, TW] {
                if touch.access.contains(kind) {
                    found.push(((u64::from(touch.resource.0) * BYTES + byte) as usize, kind));
                }
            }
        }
    }
    found
}

/// The fewest barriers that separate every conflicting pair, by trying all last positions.
fn fewest_barriers(commands: &[Vec<Touch>]) -> usize {
    let conflict = |a: &[Touch], b: &[Touch]| {
        let (a, b) = (bytes_of(a), bytes_of(b));
        a.iter().any(|(byte, kind)| {
            b.iter().any(|(other, later)| {
                byte == other && [kind, later].iter().any(|kind| **kind == KW || **kind == TW)
            })
        })
    };
    // best[n]: barriers needed in front of commands 0..n, the last group ending at n.
    let mut best = vec![0; commands.len() + 1];
    for end in 1..=commands.len() {
        best[end] = (0..end)
            .filter(|start| {
                (*start..end).all(|i| (i + 1..end).all(|j| !conflict(&commands[i], &commands[j])))
            })
            .map(|start| best[start] + usize::from(start > 0))
            .min()
            .unwrap_or(usize::MAX);
    }
    best[commands.len()]
}

fn record(commands: &[Vec<Touch>]) -> Vec<Item> {
    record_by(Tracker::new(), commands)
}

fn record_by(mut tracker: Tracker, commands: &[Vec<Touch>]) -> Vec<Item> {
    let mut items = Vec::new();
    for touches in commands {
        items.extend(tracker.command(touches).map(Item::Barrier));
        items.push(Item::Command(touches.clone()));
    }
    items
}

fn commands(most: usize) -> impl Strategy<Value = Vec<Vec<Touch>>> {
    let access = prop::sample::select(vec![KR, KW, TR, TW, KR | KW]);
    let touch = (0..RESOURCES, 0..BYTES, 0..BYTES, access)
        .prop_map(|(id, start, end, access)| Touch::new(ResourceId(id), r(start, end), access));
    prop::collection::vec(prop::collection::vec(touch, 0..4), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 600 }))]

    #[test]
    fn every_hazard_is_covered_with_the_fewest_barriers(commands in commands(14)) {
        let items = record(&commands);
        prop_assert!(is_sound(&items));
        let positions: Vec<_> =
            items.iter().enumerate().filter(|(_, i)| matches!(i, Item::Barrier(_))).map(|(at, _)| at).collect();
        for at in &positions {
            let mut without = items.clone();
            without.remove(*at);
            prop_assert!(!is_sound(&without), "the barrier at {} is not needed", at);
        }
        prop_assert_eq!(positions.len(), fewest_barriers(&commands));
    }

    /// Whatever came before on the queue, be it the recording itself.
    #[test]
    fn recordings_one_after_another_are_ordered(programs in prop::collection::vec(commands(5), 1..5)) {
        let all = programs.iter().flat_map(|commands| record_by(Tracker::after_others(), commands));
        prop_assert!(is_sound(&all.collect::<Vec<_>>()));
    }
}
