//! What the traits of [`onepool::backend`] promise, on every backend: each case runs on each target.
//!
//! A case is named `target/file/case`, so that `cargo test --test backend vulkan/queues` runs a part. A message of a
//! validation layer or of the simulation fails the case. What a target cannot do is listed in `exclusions.rs` with its
//! reason, and must fail: a case that passes although it is excluded is an error.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod buffers;
mod devices;
mod exclusions;
mod fixture;
#[path = "../support/foreign.rs"]
mod foreign;
#[cfg(not(without_glslang))]
#[path = "../support/glsl.rs"]
mod glsl;
mod images;
mod imports;
mod kernels;
mod queues;
mod targets;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use self::targets::{TARGETS, Target};

/// A case and the name under which it is found.
type Case = (&'static str, fn(&'static Target));

/// The cases of a file, by their functions' names.
macro_rules! cases {
    ($($(#[$meta:meta])* $case:ident),* $(,)?) => {
        /// The cases of this file.
        pub(crate) const CASES: &[crate::Case] = &[$($(#[$meta])* (stringify!($case), $case)),*];
    };
}
pub(crate) use cases;

const FILES: [(&str, &[Case]); 6] = [
    ("devices", devices::CASES),
    ("buffers", buffers::CASES),
    ("queues", queues::CASES),
    ("kernels", kernels::CASES),
    ("imports", imports::CASES),
    ("images", images::CASES),
];

thread_local! {
    /// Whether a panic of this thread is what its case expects, and prints nothing.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

fn run(target: &'static Target, case: fn(&'static Target), excluded: Option<&str>) -> Result<(), Failed> {
    EXPECTED.set(excluded.is_some());
    let ended = catch_unwind(AssertUnwindSafe(|| case(target)));
    EXPECTED.set(false);
    match (ended, excluded) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(reason)) => Err(format!("passes, and is excluded because {reason}").into()),
        (Err(_), Some(_)) => Ok(()),
        (Err(panic), None) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(text.or_else(|| panic.downcast_ref().copied()).unwrap_or("it panicked").into())
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let printed = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !EXPECTED.get() {
            printed(panic);
        }
    }));
    let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
    let mut trials = Vec::new();
    for target in &TARGETS {
        // Looked for before the cases run, in which an error means something else.
        if let Err(error) = target.open(&Default::default()) {
            let is_required = required.split(',').any(|name| name == target.api);
            if is_required {
                trials.push(Trial::test(format!("{}/opens", target.name), move || {
                    Err(error.to_string().into())
                }));
            } else {
                eprintln!("not tested: {}: {error}", target.name);
            }
            continue;
        }
        for (file, cases) in FILES {
            for (name, case) in cases {
                let (path, case) = (format!("{file}/{name}"), *case);
                let excluded = exclusions::reason(target.name, &path);
                trials.push(Trial::test(format!("{}/{path}", target.name), move || {
                    run(target, case, excluded)
                }));
            }
        }
    }
    trials.push(Trial::test("every_exclusion_names_a_case_and_a_target", || {
        exclusions::check(
            FILES
                .iter()
                .flat_map(|(file, cases)| cases.iter().map(move |(name, _)| format!("{file}/{name}"))),
        )
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}
