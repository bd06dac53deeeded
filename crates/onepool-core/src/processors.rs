//! The processors that this process may run on, and the cores that they are of.

/// Cores that this process may use at the same time, at least 1: processors of one core count once, those that the process
/// may not run on do not count, and a control group or a job can allow fewer.
///
/// Threads that compute share the units of their core: a second one on it takes turns with the first, and takes half of
/// its caches. So this, and not the number of processors, is how many of them pay.
pub fn cores() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    system::cores().map_or(processors, |cores| cores.clamp(1, processors))
}

#[cfg(target_os = "linux")]
mod system {
    use std::collections::BTreeSet;
    use std::path::Path;

    use rustix::thread::{CpuSet, sched_getaffinity};

    const PROCESSORS: &str = "/sys/devices/system/cpu";

    pub(super) fn cores() -> Option<usize> {
        let allowed = sched_getaffinity(None).ok()?;
        cores_of((0..CpuSet::MAX_CPU).filter(|i| allowed.is_set(*i)), Path::new(PROCESSORS))
    }

    /// Cores of the processors `allowed`; `None` where the system does not say which are of one core.
    pub(super) fn cores_of(allowed: impl Iterator<Item = usize>, root: &Path) -> Option<usize> {
        let list =
            |i: usize, name: &str| std::fs::read_to_string(root.join(format!("cpu{i}/topology/{name}"))).ok();
        // Kernels before 5.3 know the older name alone.
        let core = |i| list(i, "core_cpus_list").or_else(|| list(i, "thread_siblings_list"));
        let cores = allowed.map(core).collect::<Option<BTreeSet<String>>>()?;
        Some(cores.len())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn cores() -> Option<usize> {
        Some(num_cpus::get_physical())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_are_no_more_cores_than_processors() {
        let processors = std::thread::available_parallelism().unwrap().get();
        assert!((1..=processors).contains(&super::cores()));
    }

    /// The lists of processors that Linux gives for each processor of these machines.
    #[cfg(target_os = "linux")]
    #[test]
    fn processors_of_one_core_count_once() {
        let neighbours = |i: usize| format!("{}-{}\n", i & !1, i | 1);
        let halves = |cores: usize| move |i: usize| format!("{},{}\n", i % cores, i % cores + cores);
        let alone = |i: usize| format!("{i}\n");
        let machine = |processors: usize, name: &str, list: &dyn Fn(usize) -> String| {
            let root = tempfile::tempdir().unwrap();
            for i in 0..processors {
                let folder = root.path().join(format!("cpu{i}/topology"));
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(folder.join(name), list(i)).unwrap();
            }
            root
        };
        let cores = |root: &tempfile::TempDir, allowed: &[usize]| {
            super::system::cores_of(allowed.iter().copied(), root.path())
        };
        let all = |n: usize| (0..n).collect::<Vec<_>>();
        // A Ryzen 7 8845HS and a Ryzen AI Max+ 395, whose processors of a core are neighbours.
        assert_eq!(cores(&machine(16, "core_cpus_list", &neighbours), &all(16)), Some(8));
        assert_eq!(cores(&machine(32, "core_cpus_list", &neighbours), &all(32)), Some(16));
        // A Ryzen 7 5700G, whose second processors come after all the first ones, under Linux 4.19.
        let desktop = machine(16, "thread_siblings_list", &halves(8));
        assert_eq!(cores(&desktop, &all(16)), Some(8));
        // Both processors of one core, and one of each of two.
        assert_eq!(cores(&desktop, &[3, 11]), Some(1));
        assert_eq!(cores(&desktop, &[3, 4]), Some(2));
        // One processor a core, and a system that does not tell.
        assert_eq!(cores(&machine(4, "core_cpus_list", &alone), &all(4)), Some(4));
        assert_eq!(cores(&desktop, &[3, 99]), None);
    }
}
