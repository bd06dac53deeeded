//! What only this backend has: latency of a submission, its polling, its own refusals.

use std::time::Instant;

use super::*;
use crate::backend::{BufferDesc, KernelDesc, Placement, Timepoint, WaitPolicy};
use crate::kernel::{KernelSource, NativeKernel};
use crate::memory::coherency::Access;
use crate::recording::{Arg, BufferRange, Command, Dispatch, Recording};

#[test]
fn latency() {
    for threads in [1, 2] {
        for wait in [WaitPolicy::Block, WaitPolicy::Spin, WaitPolicy::SpinThenBlock { micros: 50 }] {
            let desc = ContextDesc { threads, wait, ..ContextDesc::default() };
            let context = CpuDriver.open(0, &desc).unwrap();
            let queue = context.create_queue().unwrap();
            let source = KernelSource::from_native(NativeKernel::new("none", |_| Ok(())));
            let kernel = context.create_kernel(&KernelDesc { source: &source, spec: &[] }).unwrap();
            let buffer = context
                .create_buffer(&BufferDesc { bytes: 64, placement: Placement::Shared, label: "" })
                .unwrap();
            let arg = Arg::Buffer(BufferRange { buffer, offset: 0, bytes: 64 }, Access::KERNEL_WRITE);
            let dispatch = Dispatch { kernel, args: vec![arg], params: Vec::new(), groups: [1; 3] };
            let commands = vec![Command::Dispatch(dispatch); 8];
            let prepared = queue.prepare(&Recording { commands, ..Recording::default() }).unwrap();
            let mut times: Vec<u128> = (0..2000)
                .map(|_| {
                    let start = Instant::now();
                    let point = queue.submit_prepared(prepared).unwrap();
                    queue.wait(point, None).unwrap();
                    start.elapsed().as_nanos()
                })
                .collect();
            times.sort_unstable();
            eprintln!("{threads} {wait:?}: median {} p90 {} ns", times[1000], times[1800]);
            assert_eq!(queue.completed().unwrap(), Timepoint(2000));
        }
    }
}
