//! One Vulkan device for a renderer on `wgpu` and for onepool.
//!
//! `wgpu` makes the device and owns it. onepool is asked first what it would like of it, and then runs on it: storage
//! buffers of the renderer are inputs and outputs of a model, in place.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onepool::backend::vulkan::ash::vk::{self, Handle as _};
use onepool::backend::vulkan::{ApplicationDevice, DeviceRequest};
use onepool::backend::{ContextDesc, ForeignBuffer, ForeignImage};
use onepool::device::{Buffer, Context};
use onepool::memory::import::ReadWrite;
use parking_lot::{Mutex, MutexGuard};
use wgpu::hal::api::Vulkan;

/// A device that `wgpu` owns, and onepool on it.
pub struct Shared {
    /// What shows pictures in windows.
    pub instance: wgpu::Instance,
    /// What the device was opened on.
    pub adapter: wgpu::Adapter,
    /// What renders.
    pub device: wgpu::Device,
    /// What the renderer submits to. Submissions and windows on it need [`Shared::turn`].
    pub queue: wgpu::Queue,
    /// What runs models.
    pub context: Context,
    turn: Arc<Turn>,
}

/// A `VkQueue` is used by one thread at a time, and `wgpu` has no lock of its own to share. This one is fair, so a window
/// that draws without a pause keeps no model waiting.
#[derive(Default)]
struct Turn {
    lock: Mutex<()>,
    waited_nanos: AtomicU64,
}

/// A buffer that both see.
pub struct SharedBuffer {
    /// As the renderer knows it.
    pub wgpu: wgpu::Buffer,
    /// As models know it.
    pub onepool: Buffer,
}

/// A texture that both see: of four channels with 8 bits.
pub struct SharedTexture {
    /// As the renderer knows it.
    pub wgpu: wgpu::Texture,
    /// As models know it: rows of pixels without padding.
    pub onepool: Buffer,
    state: wgpu::TextureUses,
}

impl Shared {
    /// Opens the first Vulkan device, with the validation layer where `flags` say so.
    ///
    /// # Errors
    /// There is no device, or it cannot be opened.
    pub fn open(flags: wgpu::InstanceFlags) -> Result<Shared, Box<dyn Error>> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: wgpu::Backends::VULKAN,
            flags,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let adapter = pollster::block_on(instance.request_adapter(&Default::default()))?;
        // Operators on 64-bit and 16-bit integers and on doubles run on the device where these are there.
        let wide = wgpu::Features::SHADER_INT64 | wgpu::Features::SHADER_I16 | wgpu::Features::SHADER_F64;
        let (features, limits) = (adapter.features() & wide, adapter.limits());
        // SAFETY: `wgpu` made these handles, which live as long as its own objects here.
        let (entry, raw_instance, version) = unsafe {
            let hal = instance.as_hal::<Vulkan>().ok_or("wgpu does not run on Vulkan")?;
            let shared = hal.shared_instance();
            (shared.entry().clone(), shared.raw_instance().clone(), shared.instance_api_version())
        };
        // SAFETY: as above.
        let hal_adapter = unsafe { adapter.as_hal::<Vulkan>() }.ok_or("wgpu does not run on Vulkan")?;
        let physical = hal_adapter.raw_physical_device();
        // SAFETY: as above.
        let mut request = unsafe { DeviceRequest::new(&entry, &raw_instance, physical, version)? };
        let mut enabled = None;
        // SAFETY: the callback adds extensions and features that the device has, and takes none away.
        let open = unsafe {
            hal_adapter.open_with_callback(
                features,
                &limits,
                &Default::default(),
                Some(Box::new(|args| {
                    // What wgpu will chain by itself; then what it will not.
                    request.turn_on_in(&args.device_features.add_to_device_create(Default::default()));
                    enabled = Some(request.add_to(args.create_info, args.extensions));
                })),
            )?
        };
        drop(hal_adapter);
        let enabled = enabled.ok_or("wgpu did not ask")?;
        let desc = wgpu::DeviceDescriptor {
            required_features: features,
            required_limits: limits,
            ..Default::default()
        };
        // SAFETY: the device was opened on this adapter with these features and limits.
        let (device, queue) = unsafe { adapter.create_device_from_hal(open, &desc)? };

        let turn = Arc::<Turn>::default();
        let submits = Arc::clone(&turn);
        let owner = Arc::new((instance.clone(), device.clone(), queue.clone()));
        // SAFETY: as above; what owns the device is kept until onepool has let go of it.
        let context = unsafe {
            let hal = device.as_hal::<Vulkan>().ok_or("wgpu does not run on Vulkan")?;
            let raw_queue = (hal.raw_queue(), hal.queue_family_index());
            ApplicationDevice::new(
                entry,
                raw_instance,
                physical,
                hal.raw_device().clone(),
                raw_queue,
                enabled,
            )
            .api_version(version)
            .validation(flags.contains(wgpu::InstanceFlags::VALIDATION))
            .owner(owner)
            .lock(move |submit| {
                let began = Instant::now();
                let _turn = submits.lock.lock();
                let waited = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                submits.waited_nanos.fetch_add(waited, Ordering::Relaxed);
                submit();
            })
            .open(&ContextDesc::default())?
        };
        Ok(Shared { instance, adapter, device, queue, context, turn })
    }

    /// Keeps everyone else off the queue, for code that submits to it or shows pictures on it by itself, such as a
    /// toolkit for windows. [`Shared`]'s other functions and runs of models take turns too, so a thread that has the turn
    /// calls none of them.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock.lock()
    }

    /// For how long runs of models have waited for their turn, all together.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.turn.waited_nanos.load(Ordering::Relaxed))
    }

    /// Submits commands of the renderer. Runs of models that are submitted before or after come before or after on the
    /// device too: it is the same queue.
    pub fn submit(&self, commands: wgpu::CommandEncoder) {
        let _turn = self.turn();
        self.queue.submit([commands.finish()]);
    }

    /// A buffer of `floats` float32 that shaders, copies and models read and write.
    ///
    /// # Errors
    /// The device has no memory left, or refuses the buffer.
    pub fn buffer(&self, floats: u64) -> Result<SharedBuffer, Box<dyn Error>> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let desc = wgpu::BufferDescriptor { label: None, size: floats * 4, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&desc);
        // wgpu clears what it did not write before it reads: told now, it leaves results of models alone.
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.clear_buffer(&buffer, 0, None);
        self.submit(encoder);
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        // SAFETY: wgpu's buffer of this size and usage; it is kept until onepool has let go of it.
        let imported = unsafe {
            let raw = buffer.as_hal::<Vulkan>().ok_or("wgpu does not run on Vulkan")?.raw_handle();
            let described =
                ForeignBuffer { handle: raw.as_raw(), bytes: floats * 4, usage: usage.as_raw(), owner: None };
            let kept = buffer.clone();
            self.context.import_buffer(&described, ReadWrite::ReadWrite, Box::new(move || drop(kept)))?
        };
        Ok(SharedBuffer { wgpu: buffer, onepool: imported })
    }

    /// A texture that the renderer draws to, samples and copies, and that models read or write.
    ///
    /// # Errors
    /// The device has no memory left, or refuses the texture.
    pub fn texture(
        &self,
        width: u32,
        height: u32,
        access: ReadWrite,
    ) -> Result<SharedTexture, Box<dyn Error>> {
        let size = wgpu::Extent3d { width, height, depth_or_array_layers: 1 };
        let texture = self.device.create_texture(&wgpu::TextureDescriptor {
            label: None,
            size,
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: wgpu::TextureFormat::Rgba8Unorm,
            usage: wgpu::TextureUsages::COPY_SRC
                | wgpu::TextureUsages::COPY_DST
                | wgpu::TextureUsages::TEXTURE_BINDING
                | wgpu::TextureUsages::RENDER_ATTACHMENT,
            view_formats: &[],
        });
        // As buffers: wgpu clears what it did not write.
        let zeros = vec![0; 4 * width as usize * height as usize];
        let rows =
            wgpu::TexelCopyBufferLayout { offset: 0, bytes_per_row: Some(4 * width), rows_per_image: None };
        self.queue.write_texture(texture.as_image_copy(), &zeros, rows, size);
        let usage = vk::ImageUsageFlags::TRANSFER_SRC
            | vk::ImageUsageFlags::TRANSFER_DST
            | vk::ImageUsageFlags::SAMPLED
            | vk::ImageUsageFlags::COLOR_ATTACHMENT;
        // The state in which models find it, and the layout that wgpu has for that.
        let (state, layout) = match access {
            ReadWrite::Read => (wgpu::TextureUses::COPY_SRC, vk::ImageLayout::TRANSFER_SRC_OPTIMAL),
            _ => (wgpu::TextureUses::COPY_DST, vk::ImageLayout::TRANSFER_DST_OPTIMAL),
        };
        // SAFETY: wgpu's texture of this size, format and usage; it is kept until onepool has let go of it, and
        // `hand_over` brings it into the layout.
        let imported = unsafe {
            let raw = texture.as_hal::<Vulkan>().ok_or("wgpu does not run on Vulkan")?.raw_handle();
            let described = ForeignImage {
                handle: raw.as_raw(),
                format: vk::Format::R8G8B8A8_UNORM.as_raw(),
                width,
                height,
                usage: usage.as_raw(),
                layout: layout.as_raw(),
                leave: layout.as_raw(),
                owner: None,
            };
            let kept = texture.clone();
            self.context.import_image(&described, access, Box::new(move || drop(kept)))?
        };
        Ok(SharedTexture { wgpu: texture, onepool: imported, state })
    }

    /// Brings textures into the state in which models find them; after whatever the renderer did with them and before a run.
    pub fn hand_over(&self, textures: &[&SharedTexture]) {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let transitions = textures.iter().map(|texture| wgpu::TextureTransition {
            texture: &texture.wgpu,
            selector: None,
            state: texture.state,
        });
        encoder.transition_resources(std::iter::empty(), transitions);
        self.submit(encoder);
    }

    /// Runs entry point `main` of a WGSL shader over `groups` work-groups, on buffers at the bindings from 0 on.
    pub fn dispatch(&self, shader: &str, buffers: &[&wgpu::Buffer], groups: u32) {
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(shader.into()),
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        let entries: Vec<_> = (0u32..)
            .zip(buffers)
            .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(groups, 1, 1);
        drop(pass);
        self.submit(encoder);
    }

    /// The words of a buffer, copied to the CPU to look at.
    ///
    /// # Errors
    /// The device was lost.
    pub fn look(&self, buffer: &wgpu::Buffer) -> Result<Vec<f32>, Box<dyn Error>> {
        let usage = wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ;
        let desc =
            wgpu::BufferDescriptor { label: None, size: buffer.size(), usage, mapped_at_creation: false };
        let seen = self.device.create_buffer(&desc);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &seen, 0, buffer.size());
        self.submit(encoder);
        let (told, mapped) = std::sync::mpsc::channel();
        seen.slice(..).map_async(wgpu::MapMode::Read, move |result| _ = told.send(result));
        self.device.poll(wgpu::PollType::wait_indefinitely())?;
        mapped.recv()??;
        let view = seen.slice(..).get_mapped_range()?;
        Ok(bytemuck::pod_collect_to_vec(&view))
    }
}
