//! The application inside the window: brings together state, worker, script and view.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use eframe::egui;

use crate::devices::Sharing;
use crate::pipeline::{Renderer, Shown};
use crate::script::{Act, Script};
use crate::settings::Settings;
use crate::state::{Event, State};
use crate::worker::{self, Order};
use crate::{screen, view};

/// What a window begins with.
pub(crate) struct Beginning {
    pub(crate) settings: Settings,
    pub(crate) theme: egui::ThemePreference,
    pub(crate) script: Option<Script>,
    pub(crate) sharing: Sharing,
}

/// What the window's thread keeps outside the application, which ends with the window.
#[derive(Default)]
pub(crate) struct Outside {
    /// The worker, to be waited for once the window is gone.
    pub(crate) worker: Cell<Option<std::thread::JoinHandle<()>>>,
    /// When the last frame was laid out.
    pub(crate) laid_out: Cell<Option<Instant>>,
    /// How long the last frame then took to the window system.
    pub(crate) present: Cell<Duration>,
    /// Whether a window was opened.
    pub(crate) opened: Cell<bool>,
    /// What a script could not do.
    pub(crate) error: Cell<Option<String>>,
}

pub(crate) struct App {
    state: State<Shown>,
    events: Receiver<Event<Shown>>,
    orders: Sender<Order>,
    script: Option<Script>,
    /// A picture of the window that is being taken.
    picture: Option<(std::path::PathBuf, Receiver<Arc<egui::ColorImage>>)>,
    outside: Rc<Outside>,
}

impl App {
    /// Starts the worker for a window that was opened.
    ///
    /// # Errors
    /// The window's renderer is missing, or the system starts no thread.
    pub(crate) fn new(
        context: &eframe::CreationContext<'_>,
        beginning: Beginning,
        outside: Rc<Outside>,
    ) -> Result<App, Box<dyn std::error::Error + Send + Sync>> {
        let Beginning { settings, theme, script, sharing } = beginning;
        let render = context.wgpu_render_state.as_ref().ok_or("the window has no renderer")?;
        screen::install(render);
        context.egui_ctx.set_theme(theme);
        let renderer = Renderer { device: render.device.clone(), queue: render.queue.clone() };
        let (told, events) = channel();
        let window = context.egui_ctx.clone();
        let not_shared = sharing.as_ref().err().cloned();
        let tell = move |event| {
            // The window may be gone.
            if told.send(event).is_ok() {
                window.request_repaint();
            }
        };
        let (orders, worker) = worker::spawn(sharing, renderer, tell)?;
        outside.worker.set(Some(worker));
        outside.opened.set(true);
        let state = State::new(settings.clone(), not_shared);
        orders.send((state.number(), settings))?;
        Ok(App { state, events, orders, script, picture: None, outside })
    }

    /// Sends settings that changed to the worker.
    fn send(&mut self) {
        if let Some(order) = self.state.take_change()
            && self.orders.send(order).is_err()
        {
            let number = self.state.number();
            self.state.apply(Event::Failed(number, "the thread that filters frames has ended".to_owned()));
        }
    }

    /// Plays the script as far as it goes now.
    fn play(&mut self, ctx: &egui::Context) -> Result<(), String> {
        let Some(mut script) = self.script.take() else { return Ok(()) };
        ctx.request_repaint_after(Duration::from_millis(20));
        if !self.has_picture()? {
            self.script = Some(script);
            return Ok(());
        }
        loop {
            match script.next(&mut self.state)? {
                Act::Go => self.send(),
                Act::Theme(theme) => ctx.set_theme(theme),
                Act::Print => {
                    println!("{}", serde_json::to_string(&self.state.printed()).map_err(|e| e.to_string())?)
                }
                Act::Wait => break,
                Act::Screenshot(path) => {
                    let (took, picture) = channel();
                    // The window may be gone when it is taken.
                    ctx.request_screenshot(move |image| _ = took.send(image));
                    self.picture = Some((path, picture));
                    break;
                }
                Act::Quit => {
                    ctx.send_viewport_cmd(egui::ViewportCommand::Close);
                    return self.state.error().map_or(Ok(()), |why| Err(why.to_owned()));
                }
            }
        }
        self.script = Some(script);
        Ok(())
    }

    /// Writes a picture that was taken. Returns false while one is being taken.
    fn has_picture(&mut self) -> Result<bool, String> {
        let Some((path, picture)) = &self.picture else { return Ok(true) };
        let Ok(pixels) = picture.try_recv() else { return Ok(false) };
        let [width, height] = pixels.size.map(|side| side as u32);
        let bytes: Vec<u8> = pixels.pixels.iter().flat_map(|pixel| pixel.to_array()[..3].to_vec()).collect();
        let saved = image::save_buffer(path, &bytes, width, height, image::ExtendedColorType::Rgb8);
        saved.map_err(|e| format!("{} is not written: {e}", path.display()))?;
        self.picture = None;
        Ok(true)
    }
}

impl eframe::App for App {
    fn logic(&mut self, ctx: &egui::Context, _frame: &mut eframe::Frame) {
        self.state.present = self.outside.present.get().as_secs_f32() * 1e3;
        while let Ok(event) = self.events.try_recv() {
            self.state.apply(event);
        }
        if let Err(why) = self.play(ctx) {
            self.outside.error.set(Some(why));
            ctx.send_viewport_cmd(egui::ViewportCommand::Close);
        }
    }

    fn ui(&mut self, ui: &mut egui::Ui, _frame: &mut eframe::Frame) {
        view::show(ui, &mut self.state, &screen::paint);
        self.send();
        self.outside.laid_out.set(Some(Instant::now()));
    }
}
