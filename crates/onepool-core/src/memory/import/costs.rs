//! What an import, a copy and a read in place cost on a device, and what follows from it.

use std::sync::Arc;

/// A copy is never worth it for what is slower in place by less than this: noise where other programs run, and at less
/// than it only what is read six times and more would gain.
const NOISE: f64 = 1.4;
/// What part of the time to read a parameter its submission may take for its pages.
const SUBMIT_SHARE: f64 = 0.05;
/// The threshold is at least a page, below which an import shares its page with other data.
const LEAST: u64 = 4096;
/// The threshold is at most this, whatever was measured.
const MOST: u64 = 16 << 20;

/// From which size on an import pays, and how often a graph may touch an import's bytes before a copy into the
/// device's own memory pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportCosts {
    /// Tensors below this many bytes are copied.
    pub copy_threshold: u64,
    /// An import is used in place when the graph touches each byte at most this often; `None` for however often.
    pub direct_reads: Option<u32>,
    /// Whether kernels read parameters in the host's pages. Elsewhere these move to memory of the device's own, once.
    pub parameters_in_place: bool,
}

impl ImportCosts {
    /// Runs that a binding is expected to last: its imports are paid once, its copies in each. Two seconds of a display's
    /// frames.
    pub const RUNS: u32 = 128;

    /// What is taken where nothing is measured: shared memory is read in place however often, memory across a bus
    /// once.
    pub const fn preset(shares_host_memory: bool) -> ImportCosts {
        ImportCosts {
            copy_threshold: 64 << 10,
            direct_reads: if shares_host_memory { None } else { Some(1) },
            parameters_in_place: shares_host_memory,
        }
    }

    /// What follows from times that were measured for bindings that last [`ImportCosts::RUNS`] runs; the preset where they
    /// were not.
    pub fn of(times: &ImportTimes, shares_host_memory: bool) -> ImportCosts {
        ImportCosts::of_runs(times, shares_host_memory, ImportCosts::RUNS)
    }

    /// The same for bindings that last `runs` runs, at least one.
    pub fn of_runs(times: &ImportTimes, shares_host_memory: bool, runs: u32) -> ImportCosts {
        let runs = f64::from(runs.max(1));
        // Per byte, a run saves its copy and loses what reading in place costs once, and what its submission does.
        let slower = (times.imported_read_ns - times.own_read_ns).max(0.0);
        let saved = runs * (times.copy_ns - slower - times.submit_byte_ns) - times.import_byte_ns;
        let fixed = times.import_ns - runs * times.copy_call_ns;
        let threshold = match (fixed > 0.0, saved > 0.0) {
            (true, true) => fixed / saved,
            (true, false) => MOST as f64,
            (false, _) => LEAST as f64,
        };
        // The casts saturate.
        let direct_reads = if times.own_read_ns <= 0.0 || times.imported_read_ns <= 0.0 {
            ImportCosts::preset(shares_host_memory).direct_reads
        } else if times.imported_read_ns > times.own_read_ns * NOISE {
            Some(((times.device_copy_ns / slower) as u32).max(1)).filter(|reads| *reads < u32::MAX)
        } else {
            None
        };
        ImportCosts {
            copy_threshold: (threshold as u64).clamp(LEAST, MOST).next_multiple_of(LEAST),
            direct_reads,
            // A run reads each about once.
            parameters_in_place: shares_host_memory
                && direct_reads.is_none()
                && times.submit_byte_ns <= times.own_read_ns.max(0.0) * SUBMIT_SHARE,
        }
    }
}

/// Times of a device, in nanoseconds; 0 for what was not measured.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportTimes {
    /// Of an import and its end, apart from what grows with its size.
    pub import_ns: f64,
    /// Of an import, for each byte.
    pub import_byte_ns: f64,
    /// Of a copy by the CPU into memory that the device reads, apart from what grows with its size.
    pub copy_call_ns: f64,
    /// Of that copy, for each byte.
    pub copy_ns: f64,
    /// Of a kernel that reads memory of the device's own, for each byte.
    pub own_read_ns: f64,
    /// Of a kernel that reads imported memory, for each byte.
    pub imported_read_ns: f64,
    /// Of a copy by the device from imported memory into its own, for each byte.
    pub device_copy_ns: f64,
    /// Of a submission that uses an import, for each byte of it: amdgpu looks at every page each time.
    pub submit_byte_ns: f64,
    /// Of reads by the host, for each byte, by the memory types that it maps.
    pub host_read_ns: Vec<(u32, f64)>,
}

impl ImportTimes {
    /// Whether kernels were timed too.
    pub fn is_complete(&self) -> bool {
        self.own_read_ns > 0.0 && self.imported_read_ns > 0.0 && self.device_copy_ns > 0.0
    }
}

/// Where a context's [`ImportCosts`] come from.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum CostSource {
    /// [`CostSource::Measured`], or [`CostSource::Preset`] where the environment variable `ONEPOOL_IMPORT_COSTS` says
    /// `preset`.
    #[default]
    Auto,
    /// Measured when the device is first asked, where nothing is begun after 50 ms; kept by device and driver
    /// for the process, and in the cache folder where there is one.
    Measured,
    /// [`ImportCosts::preset`].
    Preset,
    /// These.
    Given(ImportCosts),
    /// What follows from times that were measured elsewhere, on a user's machine say.
    Times(Arc<ImportTimes>),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn apu() -> ImportTimes {
        ImportTimes {
            import_ns: 20_000.0,
            import_byte_ns: 0.01,
            copy_call_ns: 100.0,
            copy_ns: 0.1,
            own_read_ns: 0.02,
            imported_read_ns: 0.02,
            device_copy_ns: 0.03,
            submit_byte_ns: 0.0,
            host_read_ns: Vec::new(),
        }
    }

    /// 12 ns for each page of 4 KiB and 0.3 ns where pages are huge, at 50 GB/s.
    #[test]
    fn parameters_leave_pages_that_each_submission_pays_for() {
        assert!(ImportCosts::of(&apu(), true).parameters_in_place);
        let huge = ImportTimes { submit_byte_ns: 0.3 / 4096.0, ..apu() };
        assert!(ImportCosts::of(&huge, true).parameters_in_place);
        let small = ImportTimes { submit_byte_ns: 12.0 / 4096.0, ..apu() };
        let costs = ImportCosts::of(&small, true);
        assert!(!costs.parameters_in_place);
        // What is imported for a run is read in place all the same: a copy costs more.
        assert_eq!((costs.direct_reads, costs.copy_threshold), (None, LEAST));
        let dear = ImportTimes { submit_byte_ns: 0.2, ..apu() };
        assert_eq!(ImportCosts::of(&dear, true).copy_threshold, MOST);
        assert!(!ImportCosts::of(&apu(), false).parameters_in_place);
        let unmeasured = ImportTimes { own_read_ns: 0.0, imported_read_ns: 0.0, ..apu() };
        assert!(ImportCosts::of(&unmeasured, true).parameters_in_place);
    }

    #[test]
    fn equal_speed_is_read_in_place_however_often() {
        let costs = ImportCosts::of(&apu(), true);
        assert_eq!(costs.direct_reads, None);
        // 20 us against 128 copies at 10 GB/s and of 100 ns each.
        assert_eq!(costs.copy_threshold, LEAST);
    }

    #[test]
    fn an_import_for_one_run_must_pay_in_it() {
        // 20 us against one copy at 10 GB/s.
        let one = ImportCosts::of_runs(&apu(), true, 1);
        assert!((200_000..300_000).contains(&one.copy_threshold), "{one:?}");
        assert_eq!(one.direct_reads, None);
        // An import that takes longer than any copy of its bytes.
        let pinned = ImportTimes { import_ns: 900_000.0, import_byte_ns: 0.2, ..apu() };
        assert_eq!(ImportCosts::of_runs(&pinned, false, 1).copy_threshold, MOST);
        assert!(ImportCosts::of(&pinned, false).copy_threshold < 100_000);
        assert_eq!(ImportCosts::of_runs(&apu(), true, 0), one);
    }

    #[test]
    fn slow_reads_in_place_pay_for_a_copy() {
        let bus = ImportTimes { own_read_ns: 0.001, imported_read_ns: 0.04, device_copy_ns: 0.04, ..apu() };
        assert_eq!(ImportCosts::of(&bus, false).direct_reads, Some(1));
        let snooped = ImportTimes { imported_read_ns: 0.03, device_copy_ns: 0.06, ..apu() };
        assert!(matches!(ImportCosts::of(&snooped, true).direct_reads, Some(5..=6)));
    }

    #[test]
    fn what_was_not_measured_is_preset() {
        for shared in [true, false] {
            let times = ImportTimes { own_read_ns: 0.0, imported_read_ns: 0.0, ..apu() };
            assert_eq!(
                ImportCosts::of(&times, shared).direct_reads,
                ImportCosts::preset(shared).direct_reads
            );
        }
    }

    #[test]
    fn dear_imports_raise_the_threshold_and_free_ones_lower_it() {
        let dear = ImportTimes { import_ns: 5e6, ..apu() };
        // 5 ms against 128 copies of 390 KB in 39 us each.
        let threshold = ImportCosts::of(&dear, true).copy_threshold;
        assert!((256 << 10..512 << 10).contains(&threshold), "{threshold}");
        let free = ImportTimes { import_ns: 0.0, ..apu() };
        assert_eq!(ImportCosts::of(&free, true).copy_threshold, LEAST);
        let hopeless = ImportTimes { imported_read_ns: 10.0, ..apu() };
        assert_eq!(ImportCosts::of(&hopeless, true).copy_threshold, MOST);
    }

    proptest! {
        #[test]
        fn any_times_give_costs_in_bounds(
            v in proptest::array::uniform8(prop_oneof![Just(0.0), Just(f64::NAN), Just(f64::INFINITY), -1e9..1e12f64]),
        ) {
            let [import_ns, import_byte_ns, copy_call_ns, copy_ns, own_read_ns, imported_read_ns, device_copy_ns, submit_byte_ns] = v;
            let costs = ImportCosts::of(&ImportTimes {
                import_ns, import_byte_ns, copy_call_ns, copy_ns, own_read_ns, imported_read_ns, device_copy_ns,
                submit_byte_ns, host_read_ns: Vec::new(),
            }, true);
            prop_assert!((LEAST..=MOST).contains(&costs.copy_threshold) && costs.direct_reads != Some(0));
        }
    }
}
