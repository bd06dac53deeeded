//! How long it takes to load a model and run it once, and the memory of the process meanwhile, for one session after
//! another on one device.
//!
//! `cargo run --example load -- vulkan model.onnx 2 batch_size=1` loads a model twice. Inputs are ones; sizes that the
//! model only names are 1 unless told. Each line is of one session, as JSON: seconds, MiB above what the process had before,
//! and a sum of the outputs. Session 0 is there for the driver, which keeps what it compiled: it goes before the others
//! are measured. Memory is told on Linux alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::dtype::DType;
use onepool::registry::Registry;
use onepool::shape::{Dim, Shape};
use onepool::{Error, GraphBuilder, Session, Tensor, TensorInfo, ops};

const MIB: f64 = (1 << 20) as f64;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((device, model, count, sizes)) = arguments(&args) else {
        eprintln!("usage: load DEVICE MODEL [SESSIONS] [SYMBOL=SIZE]...");
        std::process::exit(2);
    };
    let context = Registry::with_defaults().open(device, &ContextDesc::default())?;
    warm_up(&context)?;
    let mut before = Memory::now();
    let mut sessions = Vec::new();
    for number in 0..=count {
        let watch = Watch::start();
        let began = Instant::now();
        let mut session = Session::builder().model(Path::new(model)).context(context.clone()).build()?;
        let load = began.elapsed();
        for (name, value) in inputs(&session, &sizes)? {
            session.set_input(&name, &value)?;
        }
        let began = Instant::now();
        session.run()?;
        let run = began.elapsed();
        let peak = watch.stop();
        let sum = checksum(&session)?;
        let after = Memory::now();
        let above = |of: fn(&Memory) -> u64, now: &Memory| (of(now) as f64 - of(&before) as f64) / MIB;
        println!(
            "{{\"device\":\"{device}\",\"session\":{},\"load_s\":{:.3},\"run_s\":{:.3},\"peak\":{:.1},\"peak_anonymous\":{:.1},\
             \"anonymous\":{:.1},\"file\":{:.1},\"sum\":{sum}}}",
            number,
            load.as_secs_f64(),
            run.as_secs_f64(),
            above(|m| m.resident, &peak),
            above(|m| m.anonymous, &peak),
            above(|m| m.anonymous, &after),
            above(|m| m.file, &after),
        );
        if number == 0 {
            drop(session);
            before = Memory::now();
        } else {
            sessions.push(session);
        }
    }
    drop(sessions);
    let left = Memory::now().anonymous as f64 - before.anonymous as f64;
    println!("{{\"device\":\"{device}\",\"left\":{:.1}}}", left / MIB);
    Ok(())
}

type Sizes = BTreeMap<String, usize>;

fn arguments(args: &[String]) -> Option<(&str, &str, usize, Sizes)> {
    let [device, model, rest @ ..] = args else { return None };
    let (count, rest) = match rest {
        [first, rest @ ..] if !first.contains('=') => (first.parse().ok()?, rest),
        rest => (1, rest),
    };
    let size = |text: &String| text.split_once('=').and_then(|(k, v)| Some((k.to_owned(), v.parse().ok()?)));
    Some((device, model, count, rest.iter().map(size).collect::<Option<_>>()?))
}

/// What a driver needs for any kernel at all.
fn warm_up(context: &Context) -> Result<(), Error> {
    let mut g = GraphBuilder::new("warm-up");
    let x = g.input("x", DType::F32, [4.into()]);
    let y = g.op(ops::unary(ops::Function::Relu), &[x]);
    g.output("y", y);
    let mut session = Session::builder().graph(g.build()?).context(context.clone()).build()?;
    session.set_input("x", &Tensor::new([4], &[1.0f32; 4])?)?;
    session.run()
}

/// Ones for every input.
fn inputs(session: &Session, sizes: &Sizes) -> Result<Vec<(String, Tensor)>, Error> {
    let size = |dim: &Dim| match dim {
        Dim::Known(n) => *n,
        Dim::Symbol(name) => sizes.get(&**name).copied().unwrap_or(1),
        Dim::Unknown => 1,
    };
    let ones = |io: onepool::session::IoInfo| {
        let dims: Vec<usize> = io.shape.iter().flat_map(|shape| shape.0.iter().map(size)).collect();
        let info = TensorInfo::new(io.dtype.unwrap_or(DType::F32), Shape::new(dims).unwrap_or_default());
        let one: &[u8] = match info.dtype {
            DType::F32 => &[0, 0, 128, 63],
            DType::F16 => &[0, 60],
            DType::I64 => &[1, 0, 0, 0, 0, 0, 0, 0],
            DType::I32 => &[1, 0, 0, 0],
            _ => &[1],
        };
        let value = Tensor::build(info, |bytes| {
            bytes.chunks_exact_mut(one.len()).for_each(|element| element.copy_from_slice(one));
            Ok::<(), Error>(())
        })?;
        Ok((io.name, value))
    };
    session.inputs().into_iter().map(ones).collect()
}

fn checksum(session: &Session) -> Result<f64, Error> {
    let mut sum = 0.0;
    for io in session.outputs() {
        let value = session.get_output(&io.name)?;
        if let Ok(values) = value.to_f32s() {
            sum += values.iter().map(|v| f64::from(*v)).sum::<f64>();
        }
    }
    Ok(sum)
}

/// Bytes of the process.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    resident: u64,
    anonymous: u64,
    file: u64,
}

impl Memory {
    fn now() -> Memory {
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.split_whitespace().next());
            number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) << 10
        };
        Memory { resident: field("VmRSS:"), anonymous: field("RssAnon:"), file: field("RssFile:") }
    }
}

/// The most of everything, looked at twice a millisecond.
struct Watch {
    over: Arc<AtomicBool>,
    most: Arc<[AtomicU64; 2]>,
    thread: std::thread::JoinHandle<()>,
}

impl Watch {
    fn start() -> Watch {
        let (over, most) = (Arc::new(AtomicBool::new(false)), Arc::new([const { AtomicU64::new(0) }; 2]));
        let (stop, seen) = (Arc::clone(&over), Arc::clone(&most));
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let now = Memory::now();
                seen[0].fetch_max(now.resident, Ordering::Relaxed);
                seen[1].fetch_max(now.anonymous, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        Watch { over, most, thread }
    }

    fn stop(self) -> Memory {
        self.over.store(true, Ordering::Relaxed);
        // The thread only looks.
        let _ = self.thread.join();
        let [resident, anonymous] = [0, 1].map(|i| self.most[i].load(Ordering::Relaxed));
        let now = Memory::now();
        Memory {
            resident: resident.max(now.resident),
            anonymous: anonymous.max(now.anonymous),
            file: now.file,
        }
    }
}
