//! Caches of other types than keys and values, updated in place.

use super::updates::{DEVICES, Place, by_value, in_place, is_near, projected};
use crate::dtype::DType;
use crate::ops::attention::CacheKind;
use crate::plan::Precision;

/// What caches hold, and how far results are from those of a cache of numbers.
const KINDS: [(CacheKind, f32); 5] = [
    (CacheKind::Half, 2e-3),
    (CacheKind::Blocks { bits: 8 }, 2e-2),
    (CacheKind::Blocks { bits: 4 }, 0.3),
    (CacheKind::Scaled { bits: 8 }, 2e-2),
    (CacheKind::Scaled { bits: 4 }, 0.3),
];

#[test]
fn a_cache_of_another_type_is_extended_where_it_lies() {
    let (plain, _) = by_value("cpu", DType::F32, CacheKind::Same);
    for device in DEVICES {
        for (kind, far) in KINDS {
            let wanted = by_value(device, DType::F32, kind);
            for (step, (got, want)) in wanted.0.iter().zip(&plain).enumerate() {
                assert!(is_near(got, want, far), "{device} {kind:?} {step}: {got:?}, not {want:?}");
            }
            in_place(device, (DType::F32, kind), Place::Region, &wanted);
        }
    }
}

/// Such a cache is none that half precision would convert.
#[test]
fn attention_to_a_cache_of_another_type_is_in_half_precision_where_the_rest_is() {
    for device in ["cpu", "sim", "vulkan"] {
        for (kind, far) in KINDS {
            let [want, got] =
                [Precision::F32, Precision::F16].map(|precision| projected(device, kind, precision));
            // Scales are `float32`.
            let attends = usize::from(!matches!(kind, CacheKind::Scaled { .. }));
            assert_eq!(got.plan().report.halved, 1 + attends, "{device} {kind:?}");
            let [want, got] = [want, got].map(|binding| binding.get_output("y").unwrap());
            assert!(is_near(&got, &want, 0.05f32.max(far)), "{device} {kind:?}: {got:?}, not {want:?}");
        }
    }
}
