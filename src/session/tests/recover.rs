//! Each call of a complete run of a model fails in turn: a typed error, the caller's bytes unchanged, a session that
//! continues on a new device, and no leaks.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use crate::device::Context;
use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, Tensor};
use crate::memory::host::{HostRegion, SharedRegion};
use crate::ops::{self, linalg::MatMul, movement::Transpose};
use crate::session::{Binding, Error, Memory, Session};

const N: usize = 64;
/// More calls than any run makes.
const MOST: usize = 4000;

/// A device whose calls can be made to fail.
trait Rig {
    type Fault: Copy + std::fmt::Debug;

    /// Opens it. Call `n` after that fails with `fail`, counted from 0.
    fn open(&self, fail: Option<(usize, Self::Fault)>) -> Context;

    /// Disables failures. Returns the calls since the last device was opened, and whether one of them was made to
    /// fail.
    fn disarm(&self) -> (Vec<&'static str>, bool);

    /// Whether a call of this name can fail like this.
    fn may(&self, _call: &str, _fault: Self::Fault) -> bool {
        true
    }

    /// Live objects of the API, by kind.
    fn live(&self) -> BTreeMap<&'static str, i64>;
}

/// `y = transpose(x w) + b` by three operators, with a weight in pages of its own and two tensors in an arena.
fn graph() -> Graph {
    let mut g = GraphBuilder::new("three");
    let x = g.input("x", DType::F32, [N.into(), N.into()]);
    let weight: Vec<f32> = (0..N * N).map(|i| ((i * 7) % 11) as f32 - 5.0).collect();
    let w = g.constant("w", Tensor::new([N, N], &weight).unwrap());
    let b = g.constant("b", Tensor::new([N], &weight[..N]).unwrap());
    let product = g.op(Arc::new(MatMul::default()) as Arc<dyn ops::Operator>, &[x, w]);
    let turned = g.op(Arc::new(Transpose { perm: None }) as Arc<dyn ops::Operator>, &[product]);
    let y = g.op(ops::add(), &[turned, b]);
    g.output("y", y);
    g.build().unwrap()
}

fn input() -> Vec<f32> {
    (0..N * N).map(|i| ((i * 5) % 13) as f32 - 6.0).collect()
}

/// Small integers, so that every order of sums gives the same bits.
fn expected() -> &'static [f32] {
    static EXPECTED: OnceLock<Vec<f32>> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let (x, mut y) = (input(), vec![0.0; N * N]);
        let weight = |i: usize| ((i * 7) % 11) as f32 - 5.0;
        for (row, column) in (0..N * N).map(|i| (i / N, i % N)) {
            let product: f32 = (0..N).map(|k| x[column * N + k] * weight(k * N + row)).sum();
            y[row * N + column] = product + weight(column);
        }
        y
    })
}

struct Caller {
    x: Arc<SharedRegion>,
    y: Arc<SharedRegion>,
}

impl Caller {
    fn new() -> Caller {
        let [x, y] = [bytemuck::cast_slice(&input()), &[0; 4 * N * N][..]]
            .map(|bytes: &[u8]| HostRegion::from_bytes(bytes).unwrap().into_shared());
        Caller { x, y }
    }

    fn bind(&self, session: &Session) -> Result<Binding<'static>, Error> {
        session.bind().input("x", Memory::region(&self.x)).output("y", Memory::region(&self.y)).build()
    }

    fn check_input(&self) {
        // Not by `assert_eq`, which prints thousands of numbers.
        assert!(self.x.read().unwrap().as_slice_of::<f32>().unwrap()[..N * N] == input());
    }

    fn check_output(&self) {
        assert!(self.y.read().unwrap().as_slice_of::<f32>().unwrap()[..N * N] == *expected());
    }
}

/// The complete life of a session: built, bound in place, run twice, run by value.
fn live(context: Context, caller: &Caller, session: &mut Option<Session>) -> Result<(), Error> {
    let builder = Session::builder().graph(graph()).context(context).fuse(false).copy_threshold(0);
    let session = session.insert(builder.fallback(false).build()?);
    again(caller, session)
}

fn again(caller: &Caller, session: &mut Session) -> Result<(), Error> {
    let mut binding = caller.bind(session)?;
    binding.run()?;
    binding.submit()?.wait()?;
    drop(binding);
    caller.check_output();
    session.set_input("x", &Tensor::new([N, N], &input()).unwrap())?;
    session.run()?;
    assert!(session.get_output("y")?.as_slice::<f32>().unwrap() == expected());
    Ok(())
}

/// How call `n` fails, and the least number of reported errors for a number of failed calls.
type Way<'w, F> = (&'w dyn Fn(usize) -> F, fn(usize) -> usize);

/// Fails each call in turn in each of `ways`. The number of reported errors is at least that of `least`.
fn each_call_fails<R: Rig>(rig: &R, ways: &[Way<'_, R::Fault>]) {
    let caller = Caller::new();
    let before = rig.live();
    live(rig.open(None), &caller, &mut None).unwrap();
    let (calls, _) = rig.disarm();
    assert!(calls.len() > 10 && calls.len() < MOST, "{calls:?}");
    for (fault_of, least) in ways {
        let (mut failed, mut told) = (0, 0);
        for n in (0..calls.len()).filter(|n| rig.may(calls[*n], fault_of(*n))) {
            let fault = fault_of(n);
            let context = rig.open(Some((n, fault)));
            let mut session = None;
            let result = live(context.clone(), &caller, &mut session);
            let (_, fired) = rig.disarm();
            failed += usize::from(fired);
            caller.check_input();
            if let Err(error) = &result {
                assert!(fired, "call {n}: {error}");
                assert!(error.is_lost() || error.is_out_of_memory(), "call {n} as {fault:?}: {error:?}");
                told += 1;
            }
            if let Some(session) = &mut session {
                session.recover_on(vec![rig.open(None)]).unwrap();
                again(&caller, session).unwrap_or_else(|e| panic!("after call {n} as {fault:?}: {e}"));
                let messages = session.context(0).unwrap().validation_messages();
                assert_eq!(messages, Vec::<String>::new(), "after call {n} as {fault:?}");
            }
            assert_eq!(context.validation_messages(), Vec::<String>::new(), "call {n} as {fault:?}");
            drop(session);
            let usage = context.usage();
            assert_eq!((usage.allocated, usage.imported), (0, 0), "call {n} as {fault:?}");
            drop(context);
            assert_eq!(rig.live(), before, "call {n} as {fault:?}: {result:?}");
        }
        println!("of {} calls {failed} failed as {:?} or so, {told} told of it", calls.len(), fault_of(0));
        assert!(failed > 0 && told >= least(failed), "{told} of {failed} as {:?}", fault_of(0));
    }
}

/// Failures with a retry or an alternative are not reported.
fn some(failed: usize) -> usize {
    failed / 4
}

mod sim {
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::backend::ContextDesc;
    use crate::backend::sim::{DriverProfile, SimConfig, SimDriver, SimFault, SimFaults};
    use crate::registry::Registry;

    struct Sim {
        config: SimConfig,
        armed: Mutex<SimFaults>,
    }

    impl Rig for Sim {
        type Fault = SimFault;

        fn open(&self, fail: Option<(usize, SimFault)>) -> Context {
            let at_call = fail.map(|(n, fault)| (n as u64 + 1, fault));
            let faults = SimFaults { at_call, ..SimFaults::default() };
            *self.armed.lock().unwrap() = faults.clone();
            let mut registry = Registry::empty();
            registry.register(Box::new(SimDriver::with(vec![SimConfig { faults, ..self.config.clone() }])));
            registry.open("sim", &ContextDesc::default()).unwrap()
        }

        fn disarm(&self) -> (Vec<&'static str>, bool) {
            let armed = self.armed.lock().unwrap();
            let calls = armed.calls.load(Ordering::Relaxed);
            (vec!["call"; calls as usize], armed.at_call.is_some_and(|(at, _)| at <= calls))
        }

        fn live(&self) -> BTreeMap<&'static str, i64> {
            BTreeMap::new()
        }
    }

    fn every_call(config: SimConfig) {
        let sim = Sim { config, armed: Mutex::default() };
        each_call_fails(
            &sim,
            &[
                (&|_| SimFault::OutOfHostMemory, some),
                (&|_| SimFault::OutOfDeviceMemory, some),
                (&|_| SimFault::Lost, |failed| failed.saturating_sub(2)),
            ],
        );
    }

    /// A driver without room for a submission with imports: the run continues with copies and reports it.
    #[test]
    fn imports_that_a_submission_has_no_room_for_become_copies() {
        for config in [SimConfig::coherent(), SimConfig::noncoherent(), SimConfig::discrete()] {
            let faults = SimFaults { imports_at_submit: Some(0), ..SimFaults::default() };
            let mut registry = Registry::empty();
            registry.register(Box::new(SimDriver::with(vec![SimConfig { faults, ..config }])));
            let context = registry.open("sim", &ContextDesc::default()).unwrap();
            let mut g = GraphBuilder::new("double");
            let x = g.input("x", DType::F32, [N.into(), N.into()]);
            let y = g.op(ops::add(), &[x, x]);
            g.output("y", y);
            let builder = Session::builder().graph(g.build().unwrap()).context(context.clone());
            let session = builder.copy_threshold(0).fallback(false).build().unwrap();
            let caller = Caller::new();
            let mut binding = caller.bind(&session).unwrap();
            assert!(binding.verdicts().all(|v| v.path.imports()));
            for _ in 0..2 {
                binding.run().unwrap();
                let doubled: Vec<f32> = input().iter().map(|v| v + v).collect();
                assert!(caller.y.read().unwrap().as_slice_of::<f32>().unwrap()[..N * N] == doubled);
                caller.check_input();
                assert_eq!(context.usage().imported, 0);
                for verdict in binding.verdicts() {
                    assert!(verdict.path.copies_on_cpu(), "{verdict}");
                    assert!(verdict.to_string().contains("ran out of memory with the import"), "{verdict}");
                }
            }
            // A caller that forbids copies gets the error.
            let strict = session.bind().strict(true).input("x", Memory::region(&caller.x));
            let error = strict.output("y", Memory::region(&caller.y)).build().unwrap().run().unwrap_err();
            assert!(error.is_out_of_memory(), "{error}");
            assert_eq!(context.validation_messages(), Vec::<String>::new());
        }
    }

    /// RADV reports imports that the kernel cannot map as a lost device: the session that continues copies instead.
    #[test]
    fn imports_that_lose_the_device_become_copies_after_recovery() {
        for name in ["radv-phoenix-780m", "radv-strix-halo-96g", "radv-cezanne-512m"] {
            let faults = SimFaults { lose_by_imports: Some(5 * (N * N) as u64), ..SimFaults::default() };
            let profile = DriverProfile::built_in(name).unwrap().unwrap();
            let identity = Some(format!("lost with the imports of {name}"));
            let config = SimConfig { faults, identity, ..profile.into() };
            let open = || {
                let mut registry = Registry::empty();
                registry.register(Box::new(SimDriver::with(vec![config.clone()])));
                registry.open("sim", &ContextDesc::default()).unwrap()
            };
            let mut g = GraphBuilder::new("double");
            let x = g.input("x", DType::F32, [N.into(), N.into()]);
            let y = g.op(ops::add(), &[x, x]);
            g.output("y", y);
            let builder = Session::builder().graph(g.build().unwrap()).context(open());
            let mut session = builder.copy_threshold(0).fallback(false).build().unwrap();
            let caller = Caller::new();
            let mut binding = caller.bind(&session).unwrap();
            assert!(binding.verdicts().all(|v| v.path.imports()));
            assert!(binding.run().unwrap_err().is_lost());
            caller.check_input();
            drop(binding);
            session.recover_on(vec![open()]).unwrap();
            let mut binding = caller.bind(&session).unwrap();
            let imported = binding.verdicts().filter(|verdict| verdict.path.imports()).count();
            assert_eq!(imported, 1, "half as many bytes as before");
            let refused = binding.verdicts().find(|verdict| !verdict.path.imports()).unwrap().to_string();
            assert!(refused.contains("do not fit in what the device maps of the host's memory"), "{refused}");
            binding.run().unwrap();
            let doubled: Vec<f32> = input().iter().map(|v| v + v).collect();
            assert!(caller.y.read().unwrap().as_slice_of::<f32>().unwrap()[..N * N] == doubled);
            assert_eq!(session.context(0).unwrap().validation_messages(), Vec::<String>::new());
        }
    }

    #[test]
    fn every_call_of_a_run_fails_on_coherent_memory() {
        every_call(SimConfig::coherent());
    }

    #[test]
    fn every_call_of_a_run_fails_on_memory_that_is_not_coherent() {
        every_call(SimConfig::noncoherent());
    }

    #[test]
    fn every_call_of_a_run_fails_on_a_device_with_memory_of_its_own() {
        every_call(SimConfig::discrete());
    }
}

#[cfg(feature = "vulkan")]
mod vulkan {
    use super::super::SHIM;
    use super::*;
    use crate::backend::vulkan::shim::{self, Fault};

    struct Vulkan;

    impl Rig for Vulkan {
        type Fault = Fault;

        fn open(&self, fail: Option<(usize, Fault)>) -> Context {
            let context = Context::new(shim::open());
            shim::arm(fail);
            context
        }

        fn disarm(&self) -> (Vec<&'static str>, bool) {
            let (calls, fired) = shim::disarm();
            (calls, fired.is_some())
        }

        fn may(&self, call: &str, fault: Fault) -> bool {
            fault != Fault::Lost || shim::may_lose(call)
        }

        fn live(&self) -> BTreeMap<&'static str, i64> {
            shim::live()
        }
    }

    #[test]
    fn every_call_of_a_run_fails() {
        let _alone = SHIM.lock();
        let once =
            |n: usize| if n.is_multiple_of(2) { Fault::OutOfDeviceMemory } else { Fault::OutOfHostMemory };
        each_call_fails(&Vulkan, &[(&once, some), (&|_| Fault::Exhausted, some), (&|_| Fault::Lost, some)]);
    }
}

#[cfg(feature = "opencl")]
mod opencl {
    use super::*;
    use crate::backend::opencl::shim::{self, Fault};

    struct OpenCl;

    impl Rig for OpenCl {
        type Fault = Fault;

        fn open(&self, fail: Option<(usize, Fault)>) -> Context {
            let context = Context::new(shim::open());
            shim::arm(fail);
            context
        }

        fn disarm(&self) -> (Vec<&'static str>, bool) {
            let (calls, fired) = shim::disarm();
            (calls, fired.is_some())
        }

        fn live(&self) -> BTreeMap<&'static str, i64> {
            shim::live()
        }
    }

    #[test]
    #[ignore = "calls of the whole process fail; the test below runs it in a process of its own"]
    fn alone() {
        // Objects that opening a device leaves behind do not count.
        drop(OpenCl.open(None));
        OpenCl.disarm();
        let once =
            |n: usize| if n.is_multiple_of(2) { Fault::OutOfDeviceMemory } else { Fault::OutOfHostMemory };
        each_call_fails(&OpenCl, &[(&once, some), (&|_| Fault::Lost, some)]);
    }

    #[test]
    fn every_call_of_a_run_fails() {
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "session::tests::recover::opencl::alone", "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let said = [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        println!("{}", said.concat());
        assert!(run.status.success() && said[0].contains("1 passed"));
    }
}
