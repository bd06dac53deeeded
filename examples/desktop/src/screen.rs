//! The renderer's side: draws a frame from the buffer that it lies in.

use eframe::egui_wgpu::{CallbackResources, CallbackTrait, RenderState, ScreenDescriptor};
use eframe::wgpu::util::DeviceExt as _;
use eframe::{egui, wgpu};

use crate::pipeline::Shown;

/// What draws frames, made once.
struct Screen {
    pipeline: wgpu::RenderPipeline,
    /// The frame that was drawn last, with what binds it.
    bound: Option<(Shown, wgpu::BindGroup)>,
}

/// Makes the renderer ready to draw frames.
pub(crate) fn install(state: &RenderState) {
    let module = state.device.create_shader_module(wgpu::include_wgsl!("screen.wgsl"));
    let pipeline = state.device.create_render_pipeline(&wgpu::RenderPipelineDescriptor {
        label: Some("screen"),
        layout: None,
        vertex: wgpu::VertexState {
            module: &module,
            entry_point: Some("corners"),
            compilation_options: Default::default(),
            buffers: &[],
        },
        primitive: Default::default(),
        depth_stencil: None,
        multisample: Default::default(),
        fragment: Some(wgpu::FragmentState {
            module: &module,
            entry_point: Some("colour"),
            compilation_options: Default::default(),
            targets: &[Some(state.target_format.into())],
        }),
        multiview_mask: None,
        cache: None,
    });
    state.renderer.write().callback_resources.insert(Screen { pipeline, bound: None });
}

/// Draws a frame into a rectangle of the window.
pub(crate) fn paint(shown: &Shown, within: egui::Rect) -> egui::Shape {
    eframe::egui_wgpu::Callback::new_paint_callback(within, Paint(shown.clone())).into()
}

struct Paint(Shown);

impl CallbackTrait for Paint {
    fn prepare(
        &self,
        device: &wgpu::Device,
        _queue: &wgpu::Queue,
        _screen: &ScreenDescriptor,
        _encoder: &mut wgpu::CommandEncoder,
        resources: &mut CallbackResources,
    ) -> Vec<wgpu::CommandBuffer> {
        let Some(screen) = resources.get_mut::<Screen>() else { return Vec::new() };
        if screen.bound.as_ref().is_none_or(|(shown, _)| *shown != self.0) {
            let size = device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
                label: Some("size of the frame"),
                contents: bytemuck::bytes_of(&[self.0.width, self.0.height]),
                usage: wgpu::BufferUsages::UNIFORM,
            });
            let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some("frame"),
                layout: &screen.pipeline.get_bind_group_layout(0),
                entries: &[
                    wgpu::BindGroupEntry { binding: 0, resource: size.as_entire_binding() },
                    wgpu::BindGroupEntry { binding: 1, resource: self.0.buffer.as_entire_binding() },
                ],
            });
            screen.bound = Some((self.0.clone(), group));
        }
        Vec::new()
    }

    fn paint(
        &self,
        _info: egui::PaintCallbackInfo,
        pass: &mut wgpu::RenderPass<'static>,
        resources: &CallbackResources,
    ) {
        let Some(screen) = resources.get::<Screen>() else { return };
        let Some((_, group)) = &screen.bound else { return };
        pass.set_pipeline(&screen.pipeline);
        pass.set_bind_group(0, group, &[]);
        pass.draw(0..3, 0..1);
    }
}
