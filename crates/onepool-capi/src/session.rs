//! `onepool_session`.

use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use onepool::backend::{ContextDesc, QueuePriority, Robustness, WaitPolicy};
use onepool::memory::host::Unchanging;
use onepool::plan::{Activations, Integers, Precision};
use onepool::session::{NodePlacement, SessionBuilder, SubmissionLimit, Tuning};
use onepool::{Session, loader};

use crate::arg::{In, Out, Text, flag, null, unknown};
use crate::caller::Side;
use crate::frame::with_frames;
use crate::handle::{Handle, Object, free, publish};
use crate::io::{Declared, text};
use crate::memory::builder;
use crate::metadata::{Metadata, MetadataC};
use crate::status::{Failure, Status, guard};
use crate::types::{IoInfo, Memory, SessionOptions, TensorInfoC};
use onepool_core::files::cache::CacheFolder;

/// The most devices of a session.
const MOST_DEVICES: usize = 64;

/// The most places of a session.
const MOST_PLACES: usize = 1 << 20;

/// What an `onepool_session` stands for.
#[derive(Debug)]
pub(crate) struct SessionObject {
    pub(crate) session: Session,
    inputs: Vec<Declared>,
    outputs: Vec<Declared>,
    devices: Vec<std::ffi::CString>,
    metadata: Metadata,
}

impl Object for SessionObject {
    const KIND: &'static str = "onepool_session";
}

impl SessionObject {
    fn build(builder: SessionBuilder) -> Result<Self, Failure> {
        let session = builder.build()?;
        let declared = |ios: Vec<onepool::session::IoInfo>| ios.iter().map(Declared::new).collect();
        let (inputs, outputs): (Result<_, _>, Result<_, _>) =
            (declared(session.inputs()), declared(session.outputs()));
        let devices = session.devices().map(|info| text(&info.name)).collect();
        let metadata = Metadata::new(&session);
        Ok(SessionObject { inputs: inputs?, outputs: outputs?, devices, metadata, session })
    }

    /// The inputs and the outputs.
    pub(crate) fn io(&self) -> (&[Declared], &[Declared]) {
        (&self.inputs, &self.outputs)
    }

    /// The inputs or the outputs.
    pub(crate) fn declared(&self, side: Side) -> &[Declared] {
        match side {
            Side::Input => &self.inputs,
            Side::Output => &self.outputs,
        }
    }
}

pub(crate) fn options(given: In<SessionOptions>) -> Result<SessionBuilder, Failure> {
    with_options(Session::builder(), given)
}

pub(crate) fn with_options(
    mut builder: SessionBuilder,
    options: In<SessionOptions>,
) -> Result<SessionBuilder, Failure> {
    let Some(options) = options.optional("options")? else { return Ok(builder) };
    let devices = options.devices.values(options.device_count, MOST_DEVICES, "options.devices")?;
    for (i, device) in devices.iter().enumerate() {
        builder = builder.device(device.required(&format!("options.devices[{i}]"))?);
    }
    let cache_dir: Option<PathBuf> = options.cache_dir.optional("options.cache_dir")?.map(Into::into);
    if let Some(folder) = &cache_dir {
        check_folder(folder, "options.cache_dir")?;
    }
    builder = builder.context_desc(desc(&options, cache_dir)?);
    if let Some(bytes) = options.copy_threshold.value("options.copy_threshold")? {
        builder = builder.copy_threshold(bytes);
    }
    builder = builder.precision(match options.precision {
        0 => Precision::F32,
        1 => Precision::F16,
        other => return Err(unknown("options.precision", other)),
    });
    builder = builder.placement(match options.placement {
        0 => NodePlacement::Manual,
        1 => NodePlacement::Auto,
        other => return Err(unknown("options.placement", other)),
    });
    if options.reserved != 0 {
        return Err(unknown("options.reserved", options.reserved));
    }
    builder = computed(builder, &options)?;
    builder = tuned(builder, &options)?;
    builder = placed(builder, &options)?;
    builder = match options.submission {
        0 => builder,
        1 => builder.submission_limit(SubmissionLimit::Auto),
        2 => builder.submission_limit(SubmissionLimit::Off),
        3 => {
            let limit = Duration::from_nanos(options.submission_ns);
            builder.submission_limit(SubmissionLimit::AtMost(limit))
        }
        other => return Err(unknown("options.submission", other)),
    };
    if options.submission != 3 && options.submission_ns > 0 {
        let problem = "is given, and `options.submission` is not ONEPOOL_SUBMISSION_AT_MOST";
        return Err(Failure::argument("options.submission_ns", problem));
    }
    if let Some(params) = options.params.optional("options.params")? {
        builder = builder.params_file(params);
    }
    if flag(options.map_weights, "options.map_weights")? {
        // SAFETY: the caller promised in the header that the files stay as they are.
        builder = builder.map_weights(unsafe { Unchanging::promise() });
    }
    builder = builder.any_device(flag(options.any_device, "options.any_device")?);
    builder = with_frames(builder, options.frames, options.frame_count)?;
    let fallback = !flag(options.no_fallback, "options.no_fallback")?;
    Ok(builder.strict(flag(options.strict, "options.strict")?).fallback(fallback))
}

/// How devices are opened.
fn desc(options: &SessionOptions, cache_dir: Option<PathBuf>) -> Result<ContextDesc, Failure> {
    Ok(ContextDesc {
        validation: flag(options.validation, "options.validation")?,
        threads: options.threads as usize,
        cache_dir,
        wait: match options.wait {
            0 => WaitPolicy::Adaptive,
            1 => WaitPolicy::Block,
            2 => WaitPolicy::Spin,
            other => return Err(unknown("options.wait", other)),
        },
        priority: match options.priority {
            0 => QueuePriority::Auto,
            1 => QueuePriority::Normal,
            other => return Err(unknown("options.priority", other)),
        },
        robustness: match options.robustness {
            0 => Robustness::Callers,
            1 => Robustness::All,
            2 => Robustness::Off,
            other => return Err(unknown("options.robustness", other)),
        },
        ..ContextDesc::default()
    })
}

/// How exactly the model is computed.
fn computed(builder: SessionBuilder, options: &SessionOptions) -> Result<SessionBuilder, Failure> {
    let builder = builder.activations(match options.activations {
        0 => Activations::Allowed,
        1 => Activations::Exact,
        other => return Err(unknown("options.activations", other)),
    });
    let builder = builder.integers(match options.integers {
        0 => Integers::Auto,
        1 => Integers::Always,
        2 => Integers::Never,
        other => return Err(unknown("options.integers", other)),
    });
    let builder = builder.coarse_filter(flag(options.coarse_filter, "options.coarse_filter")?);
    Ok(builder.fuse(!flag(options.no_fuse, "options.no_fuse")?))
}

/// Which kernels run.
fn tuned(builder: SessionBuilder, options: &SessionOptions) -> Result<SessionBuilder, Failure> {
    let tuning = match options.tuning {
        0 => Tuning::Off,
        1 => Tuning::Kept,
        2 => Tuning::Within(Duration::from_nanos(options.tuning_ns)),
        other => return Err(unknown("options.tuning", other)),
    };
    if options.tuning != 2 && options.tuning_ns > 0 {
        let problem = "is given, and `options.tuning` is not ONEPOOL_TUNING_WITHIN";
        return Err(Failure::argument("options.tuning_ns", problem));
    }
    let builder = builder.tuning(tuning);
    let Some(folder) = options.tuning_dir.optional("options.tuning_dir")? else { return Ok(builder) };
    check_folder(Path::new(&folder), "options.tuning_dir")?;
    Ok(builder.tuning_folder(folder))
}

/// Where nodes run.
fn placed(mut builder: SessionBuilder, options: &SessionOptions) -> Result<SessionBuilder, Failure> {
    if let Some(ns) = options.placement_ns.value("options.placement_ns")? {
        builder = builder.placement_budget(Duration::from_nanos(ns));
    }
    let places = options.places.list(options.place_count, MOST_PLACES, "options.places")?;
    for (i, place) in places.iter().enumerate() {
        let field = |name: &str| format!("options.places[{i}].{name}");
        let name = place.name.optional(&field("name"))?;
        builder = match (place.kind, name) {
            (0, Some(name)) => builder.place_node(name, place.device),
            (1, Some(name)) => builder.place_op(name, place.device),
            (0 | 1, None) => return Err(null(&field("name"))),
            (2, None) => builder.place_rest(place.device),
            (2, Some(_)) => {
                return Err(Failure::argument(
                    &field("name"),
                    "is given for ONEPOOL_PLACE_REST, which has none",
                ));
            }
            (other, _) => return Err(unknown(&field("kind"), other)),
        };
    }
    Ok(builder)
}

fn check_folder(folder: &Path, argument: &str) -> Result<(), Failure> {
    let usable = CacheFolder::new(folder).check();
    usable.map_err(|e| Failure::argument(argument, format!("is no folder for caches: {e}")))
}

/// Opens a model file (ONNX, GGUF, or the graph JSON of TVM beside its .params) on devices.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_open(
    path: Text,
    opts: In<SessionOptions>,
    session: Out<Handle>,
) -> Status {
    guard(|| {
        let place = session.place("session")?;
        let path = path.required("path")?;
        publish(SessionObject::build(options(opts)?.model(path))?, place);
        Ok(())
    })
}

/// Opens an ONNX model in memory, whose `bytes` bytes are read during the call, on devices.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_load(
    data: *const c_void,
    bytes: usize,
    base_dir: Text,
    opts: In<SessionOptions>,
    session: Out<Handle>,
) -> Status {
    guard(|| {
        let place = session.place("session")?;
        let base_dir = base_dir.optional("base_dir")?;
        let builder = options(opts)?;
        if data.is_null() {
            return Err(null("data"));
        }
        if bytes > isize::MAX as usize {
            return Err(Failure::argument("bytes", format!("is {bytes}, more than memory can have")));
        }
        // SAFETY: not null; the caller promised so many bytes, which no one writes during the call.
        let model = unsafe { slice::from_raw_parts(data.cast::<u8>(), bytes) };
        let graph = loader::load_onnx_bytes(model, base_dir.as_deref().map(Path::new))?;
        publish(SessionObject::build(builder.graph(graph))?, place);
        Ok(())
    })
}

/// Frees a session. Bindings of it go on.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_session_free(session: Handle) -> Status {
    free::<SessionObject>(session, "session")
}

fn count(session: Handle, count: Out<usize>, of: impl FnOnce(&SessionObject) -> usize) -> Status {
    guard(|| {
        let place = count.place("count")?;
        place.set(of(&*session.get::<SessionObject>("session")?));
        Ok(())
    })
}

fn io(session: Handle, side: Side, index: usize, info: Out<IoInfo>) -> Status {
    guard(|| {
        let (place, size) = info.room("info")?;
        let session = session.get::<SessionObject>("session")?;
        let all = session.declared(side);
        let io = all.get(index).ok_or_else(|| outside(index, all.len()))?;
        place.set(io.to_c(size));
        Ok(())
    })
}

pub(crate) fn outside(index: usize, count: usize) -> Failure {
    Failure::argument("index", format!("is {index}, and there are {count}"))
}

/// The number of inputs.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_input_count(session: Handle, inputs: Out<usize>) -> Status {
    count(session, inputs, |session| session.inputs.len())
}

/// The number of outputs.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_output_count(session: Handle, outputs: Out<usize>) -> Status {
    count(session, outputs, |session| session.outputs.len())
}

/// The number of devices. A CPU that operators fall back to is the last one.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_device_count(session: Handle, devices: Out<usize>) -> Status {
    count(session, devices, |session| session.devices.len())
}

/// Input `index`, from 0, as the model declares it.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_input(session: Handle, index: usize, info: Out<IoInfo>) -> Status {
    io(session, Side::Input, index, info)
}

/// Output `index`, from 0, as the model declares it.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_output(session: Handle, index: usize, info: Out<IoInfo>) -> Status {
    io(session, Side::Output, index, info)
}

/// The name of device `index`, from 0; lives until the session is freed.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_device(
    session: Handle,
    index: usize,
    name: Out<*const c_char>,
) -> Status {
    guard(|| {
        let place = name.place("name")?;
        let session = session.get::<SessionObject>("session")?;
        let device = session.devices.get(index).ok_or_else(|| outside(index, session.devices.len()))?;
        place.set(device.as_ptr());
        Ok(())
    })
}

/// Type and shape that output `name` would have for inputs of the given shapes.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_plan_output(
    session: Handle,
    inputs: In<Memory>,
    input_count: usize,
    name: Text,
    info: Out<TensorInfoC>,
) -> Status {
    guard(|| {
        let (place, size) = info.room("info")?;
        let session = session.get::<SessionObject>("session")?;
        let name = name.required("name")?;
        // What is bound for a plan alone stays the caller's: the holds are dropped.
        let (builder, _holds) = builder(&session.session, session.io(), (inputs, input_count), None)?;
        let plan = builder.plan()?;
        let io = plan.outputs.iter().find(|io| io.name == name);
        let io = io.ok_or_else(|| match session.outputs.iter().any(|io| io.is(&name)) {
            true => Failure::new(Status::NotRun, format!("the shape of {name:?} is known only in a run")),
            false => Failure::new(Status::UnknownName, format!("there is no output {name:?}")),
        })?;
        place.set(TensorInfoC::new(&io.info, size));
        Ok(())
    })
}

/// What the model says of itself.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_metadata(session: Handle, metadata: Out<MetadataC>) -> Status {
    guard(|| {
        let (place, size) = metadata.room("metadata")?;
        place.set(session.get::<SessionObject>("session")?.metadata.to_c(size));
        Ok(())
    })
}

/// Operator set `index` that the model uses, from 0, in the order of their domains.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_opset(
    session: Handle,
    index: usize,
    domain: Out<*const c_char>,
    version: Out<i64>,
) -> Status {
    guard(|| {
        let (domain, version) = (domain.place("domain")?, version.place("version")?);
        let session = session.get::<SessionObject>("session")?;
        let all = &session.metadata.opsets;
        let (of, number) = all.get(index).ok_or_else(|| outside(index, all.len()))?;
        domain.set(of.as_ptr());
        version.set(*number);
        Ok(())
    })
}

/// Property `index` of the model, from 0, in the order of their names.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_property(
    session: Handle,
    index: usize,
    name: Out<*const c_char>,
    value: Out<*const c_char>,
) -> Status {
    guard(|| {
        let (name, value) = (name.place("name")?, value.place("value")?);
        let session = session.get::<SessionObject>("session")?;
        let all = &session.metadata.properties;
        let (key, text) = all.get(index).ok_or_else(|| outside(index, all.len()))?;
        name.set(key.as_ptr());
        value.set(text.as_ptr());
        Ok(())
    })
}

/// The value of a property of the model by its name.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_find_property(
    session: Handle,
    name: Text,
    value: Out<*const c_char>,
) -> Status {
    guard(|| {
        let place = value.place("value")?;
        let session = session.get::<SessionObject>("session")?;
        let name = name.required("name")?;
        let found = session.metadata.properties.iter().find(|(known, _)| *known == text(&name));
        let none = || Failure::new(Status::UnknownName, format!("the model has no property {name:?}"));
        let (_, value) = found.ok_or_else(none)?;
        place.set(value.as_ptr());
        Ok(())
    })
}
