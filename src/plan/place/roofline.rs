//! Estimated times of operators that were not measured on a device.

use crate::ops::Cost;
use crate::plan::unplaced::BoundaryCost;

/// A device's speeds, measured with small kernels. Times are in nanoseconds, rates per nanosecond.
///
/// An operator takes as long as the slower of its arithmetic and its memory traffic: Williams, Waterman, Patterson,
/// "Roofline", 2009.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Roofline {
    /// From a submission to the end of the wait for it, without its commands.
    pub submit_ns: f64,
    /// For each command.
    pub launch_ns: f64,
    /// Arithmetic operations in one nanosecond, in a matrix product.
    pub flops: f64,
    /// Bytes read or written in one nanosecond.
    pub bytes: f64,
    /// For each byte in memory of the host; 0 where the device has no other.
    pub bus_ns: f64,
}

impl Roofline {
    /// Whether all speeds are numbers that times can be computed from.
    pub fn is_sound(&self) -> bool {
        let times = [self.submit_ns, self.launch_ns, self.bus_ns];
        times.iter().all(|t| t.is_finite() && *t >= 0.0)
            && [self.flops, self.bytes].iter().all(|r| r.is_finite() && *r > 0.0)
    }

    /// Nanoseconds of an operator of `cost` in `commands`.
    pub fn estimate(&self, cost: Cost, commands: u32) -> u64 {
        if commands == 0 {
            return 0;
        }
        let work = (cost.flops as f64 / self.flops).max(cost.bytes as f64 / self.bytes);
        // Casts of floats saturate.
        (self.launch_ns * f64::from(commands) + work) as u64
    }

    /// What a boundary costs on this device.
    pub fn boundary(&self) -> BoundaryCost {
        BoundaryCost { submit: self.submit_ns as u64, byte: self.bus_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_arithmetic_and_memory_counts() {
        let r = Roofline { submit_ns: 100.0, launch_ns: 5.0, flops: 2.0, bytes: 0.5, bus_ns: 0.0 };
        assert_eq!(r.estimate(Cost { flops: 1000, bytes: 100 }, 1), 505);
        assert_eq!(r.estimate(Cost { flops: 10, bytes: 100 }, 2), 210);
        assert_eq!(r.estimate(Cost { flops: 10, bytes: 100 }, 0), 0);
        assert_eq!(r.boundary(), BoundaryCost { submit: 100, byte: 0.0 });
        assert!(r.is_sound());
        assert!(!Roofline { flops: 0.0, ..r }.is_sound());
        assert!(!Roofline { bus_ns: f64::NAN, ..r }.is_sound());
        // A time beyond all devices is still a number.
        assert_eq!(Roofline { flops: 1e-300, ..r }.estimate(Cost { flops: u64::MAX, bytes: 0 }, 1), u64::MAX);
    }
}
