//! A filter made ready on a device, between the memory where frames lie and that which the renderer shows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eframe::wgpu;
use onepool::memory::import::{Reason, Refusal, Verdict};
use onepool::{Binding, DType, HostRegion, Memory, Session, Shape, SharedRegion, TensorInfo};
use wgpu_shared::{Shared, SharedBuffer};

use crate::devices::Devices;
use crate::filter::sentence;
use crate::history::Stages;
use crate::scene::Picture;
use crate::settings::{Mode, Settings, Source};
use crate::state::{Ready, VerdictRow};

/// What uploads of results go to.
#[derive(Clone)]
pub(crate) struct Renderer {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
}

/// A frame as the renderer reads it: planes of red, green and blue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shown {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// Where results go.
enum Output {
    /// To the buffer that the renderer shows.
    Renderer(SharedBuffer),
    /// To memory of the application's, which is uploaded.
    Host(Arc<SharedRegion>, wgpu::Buffer),
}

/// A filter made ready.
pub(crate) struct Pipeline {
    binding: Binding<'static>,
    picture: Picture,
    input: Arc<SharedRegion>,
    output: Output,
    shared: Option<Arc<Shared>>,
    copies_in: bool,
    copies_out: bool,
    frame: u64,
}

/// How often the end of a run is looked for.
const LOOK: Duration = Duration::from_micros(50);

impl Pipeline {
    /// Makes the filter of `settings` ready.
    ///
    /// # Errors
    /// Why it cannot be, as a sentence.
    pub(crate) fn prepare(
        settings: &Settings,
        devices: &mut Devices,
        renderer: &Renderer,
    ) -> Result<(Pipeline, Ready<Shown>), String> {
        let (width, height) = settings.size;
        let picture = match &settings.source {
            Source::TestCard => Picture::test_card(width, height),
            Source::Picture(path) => Picture::open(path, width, height)?,
        };
        let context = devices.open(&settings.device)?;
        let graph = settings.filter.graph(width, height)?;
        // Every frame is imported, however small, or none is.
        let threshold = match settings.mode {
            Mode::ZeroCopy => 0,
            Mode::Copy => u64::MAX,
        };
        let session = Session::builder().graph(graph).context(context).copy_threshold(threshold);
        let session = session.build().map_err(|e| sentence(&e))?;
        let shape = Shape::new([1, 3, height, width]).map_err(|e| sentence(&e))?;
        let (from, to, made) = ends(&session, &shape)?;

        let input = region(&shape)?;
        let shared = devices.shared().filter(|shared| {
            settings.mode == Mode::ZeroCopy
                && session.context(0).is_some_and(|context| context.id() == shared.context.id())
        });
        let memory = session.bind().input(&from, Memory::region(&input).shape(shape));
        let (memory, output) = match shared {
            Some(shared) => {
                let buffer = shared.buffer(made.elements() as u64).map_err(|e| sentence(&*e))?;
                let memory = memory.output(&to, Memory::buffer(&buffer.onepool));
                (memory, Output::Renderer(buffer))
            }
            None => {
                let result = region(&made)?;
                let shown = renderer.device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("shown"),
                    size: made.elements() as u64 * 4,
                    usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
                    mapped_at_creation: false,
                });
                (memory.output(&to, Memory::region(&result)), Output::Host(result, shown))
            }
        };
        let binding = memory.build().map_err(|e| sentence(&e))?;
        let copies = |tensor: &str| {
            binding.verdicts().any(|verdict| verdict.tensor == tensor && verdict.path.copies_on_cpu())
        };
        let (copies_in, copies_out) = (copies(&from), copies(&to));
        let ready = ready(&binding, &from, &output, &made)?;
        let shared = devices.shared().cloned();
        let pipeline = Pipeline { binding, picture, input, output, shared, copies_in, copies_out, frame: 0 };
        Ok((pipeline, ready))
    }

    /// Draws the next frame, filters it and brings the result to the renderer. Returns the milliseconds of each stage;
    /// the last one is the window's.
    ///
    /// # Errors
    /// What failed, as a sentence.
    pub(crate) fn next(&mut self, renderer: &Renderer, noise: f32) -> Result<Stages, String> {
        self.draw(noise)?;
        let waited_before = self.waited();
        let began = Instant::now();
        let pending = self.binding.submit().map_err(|e| sentence(&e))?;
        let submitted = Instant::now();
        while !pending.is_done().map_err(|e| sentence(&e))? {
            std::thread::sleep(LOOK);
        }
        let ended = Instant::now();
        pending.wait().map_err(|e| sentence(&e))?;
        let out = Instant::now();
        self.upload(renderer)?;
        let upload = out.elapsed();
        self.frame += 1;

        // The session copies before it submits, and after the end of the run.
        let queue = self.waited().saturating_sub(waited_before);
        let copy_in = if self.copies_in { (submitted - began).saturating_sub(queue) } else { Duration::ZERO };
        let copy_out = if self.copies_out { out - ended } else { Duration::ZERO };
        let run = (out - began).saturating_sub(queue + copy_in + copy_out);
        Ok([copy_in, queue, run, copy_out, upload, Duration::ZERO].map(|time| time.as_secs_f32() * 1e3))
    }

    /// For how long runs on the renderer's device have waited for their turn.
    fn waited(&self) -> Duration {
        self.shared.as_ref().map_or(Duration::ZERO, |shared| shared.waited())
    }

    /// Draws into the application's memory, which the device has imported where it can.
    fn draw(&self, noise: f32) -> Result<(), String> {
        let mut frame = self.input.write().map_err(|e| sentence(&e))?;
        self.picture.draw(self.frame, noise, frame.as_mut_slice_of().map_err(|e| sentence(&e))?);
        Ok(())
    }

    /// Copies the result to the renderer, where it is not there already.
    fn upload(&self, renderer: &Renderer) -> Result<(), String> {
        let Output::Host(result, shown) = &self.output else { return Ok(()) };
        let result = result.read().map_err(|e| sentence(&e))?;
        let bytes = result.get(..shown.size() as usize).unwrap_or(&result);
        renderer.queue.write_buffer(shown, 0, bytes);
        Ok(())
    }
}

/// The names of the only input and of the only output, and the shape of the latter.
fn ends(session: &Session, shape: &Shape) -> Result<(String, String, Shape), String> {
    let (inputs, outputs) = (session.inputs(), session.outputs());
    let ([input], [output]) = (&inputs[..], &outputs[..]) else {
        let (i, o) = (inputs.len(), outputs.len());
        return Err(format!("a filter has one input and one output, and this model has {i} and {o}"));
    };
    let plan = session.plan(&[TensorInfo::new(DType::F32, shape.clone())]).map_err(|e| sentence(&e))?;
    let made = plan.outputs.iter().find(|io| io.name == output.name).map(|io| &io.info);
    match made {
        Some(info) if info.dtype == DType::F32 && matches!(info.shape.dims(), [1, 3, _, _]) => {
            Ok((input.name.clone(), output.name.clone(), info.shape.clone()))
        }
        Some(info) => Err(format!(
            "a filter makes float32 of shape [1, 3, height, width], and this model makes {:?} of {:?}",
            info.dtype,
            info.shape.dims()
        )),
        None => Err("the size of what this model makes is known only when it runs".to_owned()),
    }
}

/// Memory of the application's for a tensor of float32.
fn region(shape: &Shape) -> Result<Arc<SharedRegion>, String> {
    let region = HostRegion::new(shape.elements() * 4).map_err(|e| sentence(&e))?;
    Ok(region.into_shared())
}

/// What the window is told of a binding.
fn ready(binding: &Binding<'_>, input: &str, output: &Output, made: &Shape) -> Result<Ready<Shown>, String> {
    let &[_, _, height, width] = made.dims() else { return Err("the result is no picture".to_owned()) };
    let row = |verdict: &Verdict| VerdictRow {
        tensor: verdict.tensor.clone(),
        memory: match output {
            Output::Renderer(_) if verdict.tensor != input => "renderer",
            Output::Renderer(_) | Output::Host(..) => "application",
        },
        path: verdict.path.to_string(),
        bytes: verdict.bytes,
        copied: verdict.path.copies_on_cpu() || verdict.copies_on_device(),
        reason: match (output, &verdict.reason) {
            (Output::Renderer(_), Reason::Resident) => "it is the renderer's buffer".to_owned(),
            (_, Reason::Refused { refusal: Refusal::BelowThreshold { threshold: u64::MAX, .. } }) => {
                "the switch is at Copy".to_owned()
            }
            (_, reason) => reason.sentence().into_owned(),
        },
    };
    let verdicts: Vec<VerdictRow> = binding.verdicts().map(row).collect();
    let (moved, _) = binding.bytes_moved();
    let (buffer, uploaded) = match output {
        Output::Renderer(buffer) => (buffer.wgpu.clone(), 0),
        Output::Host(_, buffer) => (buffer.clone(), buffer.size()),
    };
    let way = match (moved, uploaded) {
        (0, 0) => "The renderer shows the memory that the model wrote.",
        (0, _) => "The model works in place; the result is uploaded to the renderer.",
        (_, 0) => "The model writes the renderer's memory; other tensors are copied.",
        _ => "Frames are copied to the device and back, and uploaded to the renderer.",
    };
    let shown = Shown { buffer, width: width as u32, height: height as u32 };
    let size = (shown.width, shown.height);
    Ok(Ready { shown, size, verdicts, way: way.to_owned(), copied: moved + uploaded })
}
