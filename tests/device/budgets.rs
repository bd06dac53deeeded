//! What fits is counted by heap before a driver is asked, for all contexts on a device.

use onepool::backend::sim::{DriverProfile, KernelSizes, SimConfig, SimDriver};
use onepool::backend::{BufferDesc, ContextDesc, DeviceError, Placement};
use onepool::device::{Context, Error};
use onepool::memory::budget::Pool;
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
        assert_eq!((over.pool, over.asked, over.limit), (Pool::Heap(heap), 4 * N as u64, 64 << 10));
    }
    binding.run().unwrap();
    assert!(floats(&y).iter().all(|y| *y == 2.0));
    // With room again, another binding imports.
    context.budget().set_limit(heap, 64 << 20);
    let builder = session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y));
    let binding = builder.build().unwrap();
    assert!(binding.verdicts().all(|verdict| verdict.path == Path::Imported));
}

/// A recorded APU of a 1024th of the size: its driver lists a third and two thirds of what its kernel has.
fn small(name: &str, sizes: Option<KernelSizes>) -> Context {
    let mut profile = DriverProfile::built_in(name).unwrap().unwrap();
    profile.heaps.iter_mut().for_each(|heap| heap.bytes >>= 10);
    profile.budgets.iter_mut().for_each(|said| said.budget >>= 10);
    let recorded = profile.kernel.unwrap();
    let by_1024 = KernelSizes { set_aside: recorded.set_aside >> 10, mapped: recorded.mapped >> 10 };
    profile.kernel = Some(sizes.unwrap_or(by_1024));
    let mut registry = Registry::empty();
    registry.register(Box::new(SimDriver::with(vec![SimConfig::from(profile)])));
    registry.open("sim", &ContextDesc::default()).unwrap()
}

/// Imports `mib` MiB and has the device fill them; whether they were imported.
fn fill(context: &Context, mib: usize) -> bool {
    let region = HostRegion::new(mib << 20).unwrap().into_shared();
    match context.import(&region) {
        Ok(import) => {
            context.create_queue().unwrap().enqueue_fill(&import, 7).unwrap().wait().unwrap();
            assert_eq!(region.read().unwrap().as_slice_of::<u32>().unwrap()[0], 7);
            true
        }
        Err(error) => {
            let pools = ["what the device maps of the host's memory", "the device's memory"];
            assert!(
                pools.iter().any(|pool| error.to_string().contains(&format!("do not fit in {pool}"))),
                "{error}"
            );
            false
        }
    }
}

#[test]
fn an_apu_imports_what_its_kernel_maps_whatever_its_heaps_say() {
    // 512 KiB set aside and 15 MiB to map: the heap of imports is said to have 5.2 MiB.
    let phoenix = small("radv-phoenix-780m", None);
    assert!(phoenix.info().memory.heaps()[0].bytes < 6 << 20);
    assert!(fill(&phoenix, 10) && !fill(&phoenix, 16));
    // 96 MiB set aside and 16 MiB to map: the heap of imports is said to have more.
    let halo = small("radv-strix-halo-96g", Some(KernelSizes { set_aside: 96 << 20, mapped: 16 << 20 }));
    assert!(halo.info().memory.heaps()[0].bytes > 20 << 20);
    assert!(fill(&halo, 15) && !fill(&halo, 20));
}

#[test]
fn allocations_of_an_apu_end_where_its_kernel_has_no_more() {
    let phoenix = small("radv-phoenix-780m", None);
    let desc = |mib: u64| BufferDesc { bytes: mib << 20, placement: Placement::Device, label: "large" };
    // More than the heap for them is said to have.
    let first = phoenix.create_buffer(&desc(12)).unwrap();
    let refused = phoenix.create_buffer(&desc(4)).unwrap_err();
    assert!(matches!(refused, Error::Device(DeviceError::OutOfDeviceMemory { .. })), "{refused}");
    // What they take of the host's memory imports cannot have.
    assert!(fill(&phoenix, 3) && !fill(&phoenix, 4));
    drop(first);
    assert!(fill(&phoenix, 4));
}
