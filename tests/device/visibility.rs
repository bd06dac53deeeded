//! What a recording must say for the bytes to be seen: each barrier, flush and invalidate is removed in
//! turn, and the hostile device shows the difference.

use std::sync::{Arc, LazyLock};

use onepool::backend::sim::SimConfig;
use onepool::backend::{BufferDesc, Placement};
use onepool::device::{Buffer, Context, KernelArg};
use onepool::memory::coherency::{Access, Barrier};
use onepool::memory::host::{HostRegion, SharedRegion};
use onepool::recording::{Command, Recording};
use proptest::prelude::*;

use crate::common::{KERNELS, SHOWN, add, add_on, buffer, contexts, floats, increment_on, sim, unary};

const BYTES: u64 = 4096;

/// `input -> +1 -> middle -> +2 -> output` over imported memory.
struct Chain {
    context: Context,
    input: Arc<SharedRegion>,
    output: Arc<SharedRegion>,
    buffers: [Buffer; 3],
    recording: Recording,
    /// Keeps the kernel that the recording names.
    _kernel: onepool::device::Kernel,
}

impl Chain {
    fn new(config: SimConfig) -> Chain {
        let context = sim(config);
        let [input, output] = [0; 2].map(|_| HostRegion::new(BYTES as usize).unwrap().into_shared());
        let desc = BufferDesc { bytes: BYTES, placement: Placement::Device, label: "middle" };
        let middle = context.create_buffer(&desc).unwrap();
        let buffers = [context.import(&input).unwrap(), middle, context.import(&output).unwrap()];
        let coherent = buffers[0].info().coherent;
        let kernel = context.create_native_kernel(add()).unwrap();
        let [x, y, z] = [0, 1, 2].map(|at: usize| buffers[at].range());
        let commands = vec![
            unary(&kernel, x, y, &1.0f32.to_ne_bytes()),
            Command::Barrier(KERNELS),
            unary(&kernel, y, z, &2.0f32.to_ne_bytes()),
            Command::Barrier(SHOWN),
        ];
        let (flush, invalidate) = if coherent { (vec![], vec![]) } else { (vec![x, z], vec![z]) };
        let recording = Recording { commands, flush, invalidate, ..Recording::default() };
        Chain { context, input, output, buffers, recording, _kernel: kernel }
    }

    /// Runs twice on different inputs; gives whether both results are right, and what was reported.
    fn run(&self) -> (bool, Vec<String>) {
        let queue = self.context.queue().unwrap();
        let prepared = queue.prepare(self.recording.clone()).unwrap();
        let mut right = true;
        for value in [10.0f32, 20.0] {
            self.input.write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(value);
            queue.submit_prepared(&prepared).unwrap().wait().unwrap();
            let output = self.output.read().unwrap();
            right &= output.as_slice_of::<f32>().unwrap().iter().all(|x| *x == value + 3.0);
        }
        (right, self.context.validation_messages())
    }
}

fn configs() -> [SimConfig; 3] {
    [SimConfig::coherent(), SimConfig::noncoherent(), SimConfig::discrete()]
}

#[test]
fn a_complete_recording_is_right_and_clean() {
    for config in configs() {
        let chain = Chain::new(config);
        assert_eq!(chain.run(), (true, vec![]));
        assert_eq!(chain.buffers[0].host_address().unwrap().0, chain.input.as_ptr());
    }
}

#[test]
fn a_removed_barrier_between_kernels_is_found() {
    for config in configs() {
        let mut chain = Chain::new(config);
        chain.recording.commands.remove(1);
        let (right, messages) = chain.run();
        assert!(!right);
        assert!(messages.iter().any(|message| message.contains("read-after-write")), "{messages:?}");
    }
}

#[test]
fn a_barrier_that_names_too_little_is_found() {
    let wrong = [
        Barrier { src: Access::TRANSFER_WRITE, dst: Access::DEVICE },
        Barrier { src: Access::KERNEL_READ, dst: Access::DEVICE },
        Barrier { src: Access::KERNEL_WRITE, dst: Access::TRANSFER_READ },
        Barrier { src: Access::KERNEL_WRITE, dst: Access::HOST_READ },
    ];
    for barrier in wrong {
        let mut chain = Chain::new(SimConfig::coherent());
        chain.recording.commands[1] = Command::Barrier(barrier);
        let (right, messages) = chain.run();
        assert!(!right && !messages.is_empty(), "{barrier:?}");
    }
}

#[test]
fn a_removed_host_barrier_is_found() {
    for config in configs() {
        let mut chain = Chain::new(config);
        chain.recording.commands.pop();
        assert!(!chain.run().0);
    }
}

#[test]
fn a_removed_flush_is_found() {
    let mut chain = Chain::new(SimConfig::noncoherent());
    chain.recording.flush.remove(0);
    assert!(!chain.run().0);
}

#[test]
fn a_removed_flush_of_what_is_only_written_is_found() {
    let mut chain = Chain::new(SimConfig::noncoherent());
    chain.recording.flush.remove(1);
    let messages = chain.run().1;
    assert!(messages.iter().any(|message| message.contains("not flushed")), "{messages:?}");
}

#[test]
fn a_removed_invalidate_is_found() {
    let mut chain = Chain::new(SimConfig::noncoherent());
    chain.recording.invalidate.clear();
    assert!(!chain.run().0);
}

#[test]
fn a_host_that_does_not_wait_sees_nothing() {
    let chain = Chain::new(SimConfig::coherent());
    let queue = chain.context.queue().unwrap();
    chain.input.write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(1.0);
    let before = vec![0u8; BYTES as usize];
    let event = queue.submit(chain.recording.clone()).unwrap();
    // The region's own guard is refused while the submission may run.
    assert!(chain.output.read().is_err());
    event.wait().unwrap();
    assert_ne!(&*chain.output.read().unwrap(), before.as_slice());
}

#[test]
fn memory_that_no_one_wrote_is_not_a_number() {
    for config in configs() {
        let context = sim(config);
        let (x, y) = (buffer(&context, 256), buffer(&context, 256));
        let kernel = context.create_native_kernel(add()).unwrap();
        let queue = context.queue().unwrap();
        let args = [KernelArg::Read(&x), KernelArg::Write(&y)];
        queue.enqueue_nd_range(&kernel, [64, 1, 1], None, &args, &1.0f32.to_ne_bytes()).unwrap();
        assert!(floats(&y).iter().all(|value| value.is_nan()));
        assert_eq!(context.validation_messages(), Vec::<String>::new());
    }
}

#[test]
fn a_guard_shows_what_no_recording_showed() {
    for context in contexts() {
        let (x, y) = (buffer(&context, 256), buffer(&context, 256));
        x.map_write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(4.0);
        let kernel = add_on(&context);
        // No host barrier and no list of ranges: the guard's own.
        let commands = vec![unary(&kernel, x.range(), y.range(), &1.0f32.to_ne_bytes())];
        context.queue().unwrap().submit(Recording { commands, ..Recording::default() }).unwrap();
        assert_eq!(floats(&y), vec![5.0; 64]);
        assert_eq!(context.validation_messages(), Vec::<String>::new());
    }
}

/// A command over eight tensors of 256 bytes in one buffer.
#[derive(Clone, Debug)]
enum Step {
    Add(usize, usize),
    AddInPlace(usize),
    Copy(usize, usize),
    Fill(usize, u8),
    HostWrite(usize, u8),
    HostRead(usize),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let slot = 0usize..8;
    prop_oneof![
        3 => (slot.clone(), slot.clone()).prop_map(|(a, b)| Step::Add(a, b)),
        1 => slot.clone().prop_map(Step::AddInPlace),
        2 => (slot.clone(), slot.clone()).prop_map(|(a, b)| Step::Copy(a, b)),
        1 => (slot.clone(), any::<u8>()).prop_map(|(a, v)| Step::Fill(a, v)),
        1 => (slot.clone(), any::<u8>()).prop_map(|(a, v)| Step::HostWrite(a, v)),
        1 => slot.prop_map(Step::HostRead),
        1 => Just(Step::Flush),
    ]
}

/// For all cases: opening some of them takes longer than a case.
static OPENED: LazyLock<Vec<Context>> = LazyLock::new(contexts);

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Enqueued commands against a model of eight numbers, on two queues, everywhere: right values and
    /// not one hazard.
    #[test]
    fn enqueued_commands_are_ordered_on_every_device(steps in prop::collection::vec((step(), any::<bool>()), 1..40)) {
        for context in OPENED.iter() {
            let queues = [context.create_queue().unwrap(), context.create_queue().unwrap()];
            let step = context.info().limits.argument_alignment.max(256);
            let whole = buffer(context, 8 * step);
            let slots: Vec<_> = (0..8).map(|at| whole.sub_buffer(at * step, 256).unwrap()).collect();
            whole.map_write().unwrap().fill(0);
            let unary = add_on(context);
            let in_place = increment_on(context);
            let mut model = [0.0f32; 8];
            let mut last = false;
            for (step, second) in &steps {
                // A queue's batch is submitted before the other queue gets a command: the order of the
                // model is the order of submission.
                if last != *second {
                    queues[usize::from(last)].flush().unwrap();
                }
                last = *second;
                let queue = &queues[usize::from(*second)];
                let nd = [64, 1, 1];
                match *step {
                    Step::Add(a, b) if a != b => {
                        let args = [KernelArg::Read(&slots[a]), KernelArg::Write(&slots[b])];
                        queue.enqueue_nd_range(&unary, nd, None, &args, &1.0f32.to_ne_bytes()).unwrap();
                        model[b] = model[a] + 1.0;
                    }
                    Step::AddInPlace(a) => {
                        queue.enqueue_nd_range(&in_place, nd, None, &[KernelArg::ReadWrite(&slots[a])], &[]).unwrap();
                        model[a] += 1.0;
                    }
                    Step::Copy(a, b) if a != b => {
                        queue.enqueue_copy(&slots[a], &slots[b]).unwrap();
                        model[b] = model[a];
                    }
                    Step::Fill(a, value) => {
                        queue.enqueue_fill(&slots[a], f32::from(value).to_bits()).unwrap();
                        model[a] = f32::from(value);
                    }
                    Step::HostWrite(a, value) => {
                        slots[a].map_write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(f32::from(value));
                        model[a] = f32::from(value);
                    }
                    Step::HostRead(a) => prop_assert_eq!(floats(&slots[a]), vec![model[a]; 64]),
                    Step::Flush => queue.flush().unwrap(),
                    Step::Add(..) | Step::Copy(..) => {}
                }
            }
            for (slot, value) in slots.iter().zip(model) {
                prop_assert_eq!(floats(slot), vec![value; 64]);
            }
            let messages = context.validation_messages();
            prop_assert!(messages.is_empty(), "{}: {:?}", context.info().name, messages);
        }
    }
}
