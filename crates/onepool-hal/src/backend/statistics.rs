//! What a driver's compiler says of a kernel it compiled.

use serde::Serialize;

/// One program of the device that a kernel became. What a driver does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Executable {
    /// As the driver calls it.
    pub name: String,
    /// Lanes that execute in lock-step.
    pub subgroup: u32,
    /// Registers that each lane has its own value in.
    pub vector_registers: Option<u64>,
    /// Registers that all lanes of a subgroup share.
    pub scalar_registers: Option<u64>,
    /// Vector registers for whose values there was no room.
    pub spilled_vector: Option<u64>,
    /// Scalar registers for whose values there was no room.
    pub spilled_scalar: Option<u64>,
    /// Bytes of memory that each subgroup has for what is in no register: spilled values, and arrays that are indexed
    /// by variables.
    pub scratch_bytes: Option<u64>,
    /// Bytes of local (shared) memory of a work-group.
    pub local_bytes: Option<u64>,
    /// Bytes of machine code.
    pub code_bytes: Option<u64>,
    /// Subgroups that one execution unit keeps at once.
    pub subgroups_per_unit: Option<u64>,
    /// The compiler's estimate of the cycles from begin to end of one subgroup.
    pub latency: Option<u64>,
    /// The compiler's estimate of the cycles for which one subgroup keeps an execution unit busy.
    pub inverse_throughput: Option<u64>,
    /// What else the driver tells, by its own names.
    pub other: Vec<Statistic>,
}

/// A number that a driver gives under a name of its own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistic {
    /// The driver's name of it.
    pub name: String,
    /// The number.
    pub value: StatisticValue,
}

/// The number of a [`Statistic`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StatisticValue {
    /// Yes or no.
    Bool(bool),
    /// A number that may be negative.
    Int(i64),
    /// A number that is not negative.
    Uint(u64),
    /// A number with a fraction.
    Float(f64),
}

impl Executable {
    /// A program of which nothing is known yet.
    pub fn new(name: impl Into<String>, subgroup: u32) -> Self {
        Executable { name: name.into(), subgroup, ..Executable::default() }
    }

    /// Takes in a number under the driver's name. Names of Mesa's driver for AMD and of NVIDIA's are understood; what is
    /// not understood is kept in [`Executable::other`].
    pub fn add(&mut self, name: &str, value: StatisticValue) {
        let known = match name {
            "VGPRs" | "Register Count" => Some(&mut self.vector_registers),
            "SGPRs" => Some(&mut self.scalar_registers),
            "Spilled VGPRs" => Some(&mut self.spilled_vector),
            "Spilled SGPRs" => Some(&mut self.spilled_scalar),
            "Scratch size" => Some(&mut self.scratch_bytes),
            "LDS size" | "Shared Memory Size" => Some(&mut self.local_bytes),
            "Code size" | "Binary Size" => Some(&mut self.code_bytes),
            "Subgroups per SIMD" => Some(&mut self.subgroups_per_unit),
            "Latency" => Some(&mut self.latency),
            "Inverse Throughput" => Some(&mut self.inverse_throughput),
            _ => None,
        };
        match (known, value) {
            (Some(field @ None), StatisticValue::Uint(value)) => *field = Some(value),
            _ => self.other.push(Statistic { name: name.to_owned(), value }),
        }
    }

    /// Whether values left the registers: they were spilled, or lie in scratch memory.
    pub fn leaves_registers(&self) -> bool {
        [self.spilled_vector, self.spilled_scalar, self.scratch_bytes]
            .iter()
            .any(|n| n.is_some_and(|n| n > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_become_fields_and_the_rest_is_kept() {
        let mut executable = Executable::new("main", 64);
        for (name, value) in [("VGPRs", 48), ("Scratch size", 0), ("Branches", 7), ("VGPRs", 50)] {
            executable.add(name, StatisticValue::Uint(value));
        }
        executable.add("Latency", StatisticValue::Float(0.5));
        assert_eq!((executable.vector_registers, executable.scratch_bytes), (Some(48), Some(0)));
        assert_eq!(executable.latency, None);
        let names: Vec<_> = executable.other.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["Branches", "VGPRs", "Latency"]);
    }

    #[test]
    fn spills_and_scratch_count_and_local_memory_does_not() {
        for (name, leaves) in
            [("Spilled SGPRs", true), ("Spilled VGPRs", true), ("Scratch size", true), ("LDS size", false)]
        {
            let mut executable = Executable::new("main", 64);
            executable.add(name, StatisticValue::Uint(0));
            assert!(!executable.leaves_registers(), "{name}");
            let mut executable = Executable::new("main", 64);
            executable.add(name, StatisticValue::Uint(4));
            assert_eq!(executable.leaves_registers(), leaves, "{name}");
        }
    }
}
