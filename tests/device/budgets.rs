//! What fits is counted by heap before a driver is asked, for all contexts on a device.

use onepool::backend::{BufferDesc, ContextDesc, Placement};
use onepool::device::Context;
use onepool::memory::import::{Path, Reason, Refusal};
use onepool::registry::Registry;
use onepool::{DType, GraphBuilder, HostRegion, Memory, Session};

use crate::values::{floats, op, region};

fn open(device: &str) -> Context {
    Registry::with_defaults().open(device, &ContextDesc::default()).unwrap()
}

#[test]
fn contexts_on_one_device_count_together() {
    let (first, second) = (open("vulkan"), open("vulkan"));
    let desc = BufferDesc { bytes: 1 << 20, placement: Placement::Shared, label: "counted" };
    let buffer = first.create_buffer(&desc).unwrap();
    let heap = buffer.info().heap;
    assert_eq!((first.budget().live_allocations(), second.budget().live()), (1 << 20, 0));
    assert!(second.budget().in_use(heap) >= 1 << 20);
    let region = HostRegion::new(1 << 20).unwrap().into_shared();
    let import = second.import(&region).unwrap();
    assert_eq!(second.budget().live_imports(), 1 << 20);
    assert!(first.budget().in_use(import.info().heap) >= 2 << 20);
    drop((buffer, import));
    assert_eq!((first.budget().live(), second.budget().live()), (0, 0));
}

#[test]
fn what_does_not_fit_the_heap_of_imports_is_staged_and_says_so() {
    const N: usize = 1 << 18;
    let context = open("sim:radv-phoenix-780m");
    let heap = context.info().memory.import_heap().unwrap();
    context.budget().set_limit(heap, 64 << 10);
    let mut g = GraphBuilder::new("abs");
    let x = g.input("x", DType::F32, [N.into()]);
    let y = g.op(op("Abs"), &[x]);
    g.output("y", y);
    let session = Session::builder().graph(g.build().unwrap()).context(context.clone()).build().unwrap();
    let (x, y) = (region(&[-2.0; N]), region(&[0.0; N]));
    let builder = session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y));
    let mut binding = builder.build().unwrap();
    for verdict in binding.verdicts() {
        assert_eq!(verdict.path, Path::Staged, "{verdict}");
        let Reason::Refused { refusal: Refusal::BudgetExceeded(over) } = &verdict.reason else {
            panic!("{verdict}");
        };
        assert_eq!((over.heap, over.asked, over.limit), (heap, 4 * N as u64, 64 << 10));
    }
    binding.run().unwrap();
    assert!(floats(&y).iter().all(|y| *y == 2.0));
    // With room again, another binding imports.
    context.budget().set_limit(heap, 64 << 20);
    let builder = session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y));
    let binding = builder.build().unwrap();
    assert!(binding.verdicts().all(|verdict| verdict.path == Path::Imported));
}
