//! `timed MODEL DEVICE` times runs of a model of one input `x` and one output `y = x * x + x`, both of 64
//! float32 in pages of their own: for each number on standard input that many runs, of which the median in
//! microseconds is printed. It is what `scripts/bench-doors` compares runs by other interfaces with;
//! `timed.c` does the same in C.

use std::io::{BufRead, Write};
use std::time::Instant;

use onepool::{HostRegion, Memory, Session, Shape};

const COUNT: usize = 64;

/// Until the threads of a driver sleep: else a run right after another is a shorter one.
fn pause() {
    let start = Instant::now();
    while start.elapsed().as_micros() < 50 {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(device)) = (arguments.next(), arguments.next()) else {
        return Err("timed MODEL DEVICE".into());
    };
    let session = Session::builder().model(model).device(&device).build()?;
    let x = HostRegion::new(COUNT * 4)?.into_shared();
    let y = HostRegion::new(COUNT * 4)?.into_shared();
    let input = Memory::region(&x).shape(Shape::new([COUNT])?);
    let mut binding =
        session.bind().input("x", input).output("y", Memory::region(&y)).strict(true).build()?;
    for (round, line) in std::io::stdin().lock().lines().enumerate() {
        let runs: usize = line?.trim().parse()?;
        for (i, value) in x.write()?.as_mut_slice_of::<f32>()?[..COUNT].iter_mut().enumerate() {
            *value = (i + round % 8) as f32 / 8.0;
        }
        let mut times = Vec::with_capacity(runs);
        for _ in 0..runs {
            pause();
            let start = Instant::now();
            binding.run()?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        for (i, value) in y.read()?.as_slice_of::<f32>()?[..COUNT].iter().enumerate() {
            let x = (i + round % 8) as f32 / 8.0;
            if *value != x * x + x {
                return Err(format!("element {i} is {value}, expected {}", x * x + x).into());
            }
        }
        times.sort_by(f64::total_cmp);
        println!("{:.3}", times[runs / 2]);
        std::io::stdout().flush()?;
    }
    Ok(())
}
