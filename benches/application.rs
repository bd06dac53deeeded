//! What a run costs on an application's own Vulkan against a binding on a device of onepool's, with equal dispatches.
//!
//! `cargo bench --bench application`; left out with a note where there is no Vulkan.
//!
//! An island of `unsafe`: an application's own calls of Vulkan.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]
#![allow(unsafe_code, reason = "an application's own calls of Vulkan")]

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use onepool::backend::vulkan::ash::{self, vk, vk::Handle as _};
use onepool::backend::vulkan::{ApplicationDevice, DeviceRequest};
use onepool::backend::{BufferDesc, ContextDesc, ForeignCommands, Placement};
use onepool::device::{Buffer, Context};
use onepool::registry::Registry;
use onepool::{Binding, DType, GraphBuilder, Memory, Session, ops};

const FLOATS: usize = 1 << 12;

/// y = x + x
fn session(context: &Context) -> Session {
    let mut graph = GraphBuilder::new("double");
    let x = graph.input("x", DType::F32, [FLOATS.into()]);
    let y = graph.op(ops::add(), &[x, x]);
    graph.output("y", y);
    Session::builder().graph(graph.build().unwrap()).context(context.clone()).build().unwrap()
}

fn buffers(context: &Context) -> [Buffer; 2] {
    let desc = BufferDesc { bytes: FLOATS as u64 * 4, placement: Placement::Device, label: "bench" };
    [0, 1].map(|_| context.create_buffer(&desc).unwrap())
}

fn bind(session: &Session, [x, y]: &[Buffer; 2]) -> Binding<'static> {
    session.bind().input("x", Memory::buffer(x)).output("y", Memory::buffer(y)).build().unwrap()
}

struct Application {
    instance: ash::Instance,
    device: ash::Device,
    queue: vk::Queue,
    pool: vk::CommandPool,
    fence: vk::Fence,
    // Goes last: it holds the loader.
    _entry: ash::Entry,
}

/// A device with one queue, and a context on it.
fn application() -> Option<(Application, Context)> {
    // SAFETY: calls of Vulkan with what they ask for; the objects live until `close`.
    unsafe {
        let entry = ash::Entry::load().ok()?;
        let named = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let info = vk::InstanceCreateInfo::default().application_info(&named);
        let instance = entry.create_instance(&info, None).ok()?;
        let physical = *instance.enumerate_physical_devices().ok()?.first()?;
        let mut request = DeviceRequest::new(&entry, &instance, physical, vk::API_VERSION_1_3).ok()?;
        let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
        let mut info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
        let mut extensions = Vec::new();
        let enabled = request.add_to(&mut info, &mut extensions);
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let device = instance.create_device(physical, &info.enabled_extension_names(&names), None).ok()?;
        let queue = device.get_device_queue(0, 0);
        let offer = (entry.clone(), instance.clone(), device.clone());
        let offer = ApplicationDevice::new(offer.0, offer.1, physical, offer.2, (queue, 0), enabled);
        let context = offer.api_version(vk::API_VERSION_1_3).open(&ContextDesc::default()).ok()?;
        let pool = device.create_command_pool(&Default::default(), None).ok()?;
        let fence = device.create_fence(&Default::default(), None).ok()?;
        Some((Application { instance, device, queue, pool, fence, _entry: entry }, context))
    }
}

impl Application {
    fn submit(&self, commands: vk::CommandBuffer) {
        let commands = [commands];
        let info = vk::SubmitInfo::default().command_buffers(&commands);
        // SAFETY: recorded commands; each submission is waited for before the next.
        unsafe {
            self.device.queue_submit(self.queue, &[info], self.fence).unwrap();
            self.device.wait_for_fences(&[self.fence], true, u64::MAX).unwrap();
            self.device.reset_fences(&[self.fence]).unwrap();
        }
    }

    fn close(&self) {
        // SAFETY: all submissions were waited for, and the context is gone.
        unsafe {
            self.device.destroy_fence(self.fence, None);
            self.device.destroy_command_pool(self.pool, None);
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

fn runs(c: &mut Criterion) {
    let mut group = c.benchmark_group("run");
    let Some((app, context)) = application() else {
        eprintln!("left out: no Vulkan 1.3 device that an application can make");
        return;
    };
    // The same device, whatever the order in which they are listed.
    let open = |at| Registry::with_defaults().open(&format!("vulkan:{at}"), &ContextDesc::default()).ok();
    let Some(own) = (0..).map_while(open).find(|own| own.info().uuid == context.info().uuid) else {
        eprintln!("left out: the application's device {} is not among onepool's own", context.info().name);
        drop(context);
        app.close();
        return;
    };
    let (plain, bound) = (session(&own), buffers(&own));
    let mut binding = bind(&plain, &bound);
    group.bench_function("binding", |b| b.iter(|| binding.run().unwrap()));
    drop((binding, bound, plain, own));

    let (shared, bound) = (session(&context), buffers(&context));
    let mut binding = bind(&shared, &bound);
    group.bench_function("application", |b| b.iter(|| binding.run().unwrap()));
    let info = vk::CommandBufferAllocateInfo::default().command_pool(app.pool).command_buffer_count(1);
    // SAFETY: the command buffer is recorded here, and each of its submissions is waited for.
    let (commands, inlay) = unsafe {
        let commands = app.device.allocate_command_buffers(&info).unwrap()[0];
        app.device.begin_command_buffer(commands, &Default::default()).unwrap();
        let inlay = binding.record_into(&ForeignCommands::new(commands.as_raw())).unwrap();
        app.device.end_command_buffer(commands).unwrap();
        (commands, inlay)
    };
    group.bench_function("command buffer", |b| b.iter(|| app.submit(commands)));
    group.finish();
    drop(inlay);
    drop((binding, bound, shared, context));
    app.close();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000));
    targets = runs
}
criterion_main!(benches);
