//! The window, on a device that models share.

use std::rc::Rc;
use std::sync::Arc;

use eframe::egui_wgpu::{WgpuConfiguration, WgpuSetup, WgpuSetupExisting};
use eframe::{EframeWinitApplication, UserEvent, egui};
use wgpu_shared::Shared;
use winit::application::ApplicationHandler;
use winit::event::{DeviceEvent, DeviceId, StartCause, WindowEvent};
use winit::event_loop::{ActiveEventLoop, EventLoop};
use winit::window::WindowId;

use crate::app::{App, Beginning, Outside};

/// Shows the window until it is closed.
///
/// # Errors
/// Why there is no window, or what a script could not do, as a sentence.
pub(crate) fn run(beginning: Beginning, size: (f32, f32)) -> Result<(), String> {
    let events = EventLoop::<UserEvent>::with_user_event().build();
    let events = events.map_err(|e| format!("there is no window system to show a window: {e}"))?;
    let shared = beginning.sharing.as_ref().ok().cloned();
    let options = eframe::NativeOptions {
        viewport: egui::ViewportBuilder::default()
            .with_title("onepool")
            .with_inner_size([size.0, size.1])
            .with_min_inner_size([760.0, 560.0]),
        renderer: eframe::Renderer::Wgpu,
        wgpu_options: WgpuConfiguration {
            wgpu_setup: shared.as_deref().map_or_else(WgpuSetup::without_display_handle, existing),
            ..Default::default()
        },
        ..Default::default()
    };
    let outside = Rc::new(Outside::default());
    let inside = Rc::clone(&outside);
    let make: eframe::AppCreator<'_> =
        Box::new(move |context| Ok(Box::new(App::new(context, beginning, inside)?)));
    let app = eframe::create_native("onepool", options, make, &events);
    let mut turns = Turns { app, shared, outside: Rc::clone(&outside) };
    let ran = events.run_app(&mut turns);
    let Turns { app, shared, .. } = turns;
    {
        let _turn = shared.as_ref().map(|shared| shared.turn());
        drop(app);
    }
    // Without the turn: the worker may need it to come to an end.
    if let Some(worker) = outside.worker.take()
        && worker.join().is_err()
    {
        return Err("the thread that filters frames panicked".to_owned());
    }
    ran.map_err(|e| format!("the window system failed: {e}"))?;
    if let Some(why) = outside.error.take() {
        return Err(why);
    }
    if outside.opened.get() { Ok(()) } else { Err("the window could not be opened".to_owned()) }
}

/// The window is drawn on the device that is shared.
fn existing(shared: &Shared) -> WgpuSetup {
    let (instance, adapter) = (shared.instance.clone(), shared.adapter.clone());
    let (device, queue) = (shared.device.clone(), shared.queue.clone());
    WgpuSetup::Existing(WgpuSetupExisting { instance, adapter, device, queue })
}

/// Gives the window its turn on the queue that it shares with runs of models, for as long as it handles an event: the
/// toolkit submits, shows and waits at places of its own choice.
struct Turns<'a> {
    app: EframeWinitApplication<'a>,
    shared: Option<Arc<Shared>>,
    outside: Rc<Outside>,
}

impl Turns<'_> {
    fn with_turn(&mut self, handle: impl FnOnce(&mut Self)) {
        let shared = self.shared.clone();
        let _turn = shared.as_ref().map(|shared| shared.turn());
        handle(self);
    }
}

impl ApplicationHandler<UserEvent> for Turns<'_> {
    fn new_events(&mut self, events: &ActiveEventLoop, cause: StartCause) {
        self.with_turn(|it| it.app.new_events(events, cause));
    }

    fn resumed(&mut self, events: &ActiveEventLoop) {
        self.with_turn(|it| it.app.resumed(events));
    }

    fn user_event(&mut self, events: &ActiveEventLoop, event: UserEvent) {
        self.with_turn(|it| it.app.user_event(events, event));
    }

    fn window_event(&mut self, events: &ActiveEventLoop, window: WindowId, event: WindowEvent) {
        self.with_turn(|it| it.app.window_event(events, window, event));
        if let Some(laid_out) = self.outside.laid_out.take() {
            self.outside.present.set(laid_out.elapsed());
        }
    }

    fn device_event(&mut self, events: &ActiveEventLoop, device: DeviceId, event: DeviceEvent) {
        self.with_turn(|it| it.app.device_event(events, device, event));
    }

    fn about_to_wait(&mut self, events: &ActiveEventLoop) {
        self.with_turn(|it| it.app.about_to_wait(events));
    }

    fn suspended(&mut self, events: &ActiveEventLoop) {
        self.with_turn(|it| it.app.suspended(events));
    }

    fn exiting(&mut self, events: &ActiveEventLoop) {
        self.with_turn(|it| it.app.exiting(events));
    }

    fn memory_warning(&mut self, events: &ActiveEventLoop) {
        self.with_turn(|it| it.app.memory_warning(events));
    }
}
