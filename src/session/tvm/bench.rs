//! Measured runs of a module.

use std::time::{Duration, Instant};

use super::GraphModule;
use crate::graph::Tensor;
use crate::session::{Error, Profile};

/// How [`GraphModule::benchmark`] measures, with TVM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchmarkDesc {
    /// Number of measurements.
    pub repeat: usize,
    /// Runs of each, whose mean is its time; at least one.
    pub number: usize,
    /// The minimum total time of the runs of one measurement: `number` grows until they reach it.
    pub min_repeat: Duration,
    /// Whether every run copies inputs given by value in and all outputs out.
    pub end_to_end: bool,
}

impl Default for BenchmarkDesc {
    fn default() -> Self {
        BenchmarkDesc { repeat: 5, number: 5, min_repeat: Duration::ZERO, end_to_end: false }
    }
}

/// Times of runs in seconds.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Benchmark {
    /// For each repetition the mean time of its runs.
    pub results: Vec<f64>,
}

/// Maximum number of runs of a repetition, however short they are.
const MOST_RUNS: usize = 1 << 20;

impl Benchmark {
    /// The mean; 0 without results.
    pub fn mean(&self) -> f64 {
        self.results.iter().sum::<f64>() / self.results.len().max(1) as f64
    }

    /// The median; 0 without results.
    pub fn median(&self) -> f64 {
        let mut sorted = self.results.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |i: usize| sorted.get(i).copied().unwrap_or(0.0);
        (at(sorted.len().saturating_sub(1) / 2) + at(sorted.len() / 2)) / 2.0
    }

    /// The standard deviation of the results.
    pub fn std(&self) -> f64 {
        let mean = self.mean();
        let squares = self.results.iter().map(|t| (t - mean).powi(2)).sum::<f64>();
        (squares / self.results.len().max(1) as f64).sqrt()
    }

    /// The shortest; 0 without results.
    pub fn min(&self) -> f64 {
        self.results.iter().copied().reduce(f64::min).unwrap_or(0.0)
    }

    /// The longest; 0 without results.
    pub fn max(&self) -> f64 {
        self.results.iter().copied().reduce(f64::max).unwrap_or(0.0)
    }
}

impl GraphModule {
    /// Sets inputs, runs, and copies all outputs out, in order.
    ///
    /// # Errors
    /// As [`GraphModule::set_input`] and [`GraphModule::run`].
    pub fn run_from_inputs(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>, Error> {
        for (name, value) in inputs {
            self.set_input(*name, value)?;
        }
        self.run()?;
        (0..self.get_num_outputs()).map(|o| self.get_output(o)).collect()
    }

    /// Times runs with the inputs that are set, after an unmeasured one. Each run is waited for.
    ///
    /// # Errors
    /// As [`GraphModule::run`].
    pub fn benchmark(&mut self, desc: &BenchmarkDesc) -> Result<Benchmark, Error> {
        let values: Vec<(String, Tensor)> = if desc.end_to_end { self.values() } else { Vec::new() };
        let mut once = || -> Result<(), Error> {
            for (name, value) in &values {
                self.set_input(name.as_str(), value)?;
            }
            self.run()?;
            if desc.end_to_end {
                for o in 0..self.get_num_outputs() {
                    self.get_output(o)?;
                }
            }
            Ok(())
        };
        once()?;
        let mut number = desc.number.clamp(1, MOST_RUNS);
        let mut results = Vec::new();
        for _ in 0..desc.repeat {
            loop {
                let began = Instant::now();
                (0..number).try_for_each(|_| once())?;
                let took = began.elapsed();
                if took >= desc.min_repeat || number == MOST_RUNS {
                    results.push(took.as_secs_f64() / number as f64);
                    break;
                }
                // The estimated number for the minimum time, and always more than before.
                let needed = desc.min_repeat.as_secs_f64() / took.as_secs_f64().max(1e-9) * number as f64;
                number = (needed as usize).max(number * 2).min(MOST_RUNS);
            }
        }
        Ok(Benchmark { results })
    }

    /// The times of one more run, operator by operator.
    ///
    /// # Errors
    /// As [`GraphModule::run`].
    pub fn profile(&mut self) -> Result<Profile, Error> {
        self.bind()?.profile()
    }
}
