//! `onepool_session`.

use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::slice;

use onepool::backend::ContextDesc;
use onepool::plan::Precision;
use onepool::session::{NodePlacement, SessionBuilder};
use onepool::{Session, loader};

use crate::arg::{In, Out, Text, flag, null, unknown};
use crate::caller::Side;
use crate::frame::with_frames;
use crate::handle::{Handle, Object, free, publish};
use crate::io::{Declared, text};
use crate::memory::builder;
use crate::status::{Failure, Status, guard};
use crate::types::{IoInfo, Memory, SessionOptions, TensorInfoC};
use onepool_core::files::cache::CacheFolder;

/// The most devices of a session.
const MOST_DEVICES: usize = 64;

/// What an `onepool_session` stands for.
#[derive(Debug)]
pub(crate) struct SessionObject {
    pub(crate) session: Session,
    inputs: Vec<Declared>,
    outputs: Vec<Declared>,
    devices: Vec<std::ffi::CString>,
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
        Ok(SessionObject { inputs: inputs?, outputs: outputs?, devices, session })
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
        let usable = CacheFolder::new(folder).check();
        usable
            .map_err(|e| Failure::argument("options.cache_dir", format!("is no folder for caches: {e}")))?;
    }
    let threads = options.threads as usize;
    builder = builder.context_desc(ContextDesc { threads, cache_dir, ..ContextDesc::default() });
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
    builder = with_frames(builder, options.frames, options.frame_count)?;
    let fallback = !flag(options.no_fallback, "options.no_fallback")?;
    Ok(builder.strict(flag(options.strict, "options.strict")?).fallback(fallback))
}

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

#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_input_count(session: Handle, inputs: Out<usize>) -> Status {
    count(session, inputs, |session| session.inputs.len())
}

#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_output_count(session: Handle, outputs: Out<usize>) -> Status {
    count(session, outputs, |session| session.outputs.len())
}

#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_device_count(session: Handle, devices: Out<usize>) -> Status {
    count(session, devices, |session| session.devices.len())
}

#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_input(session: Handle, index: usize, info: Out<IoInfo>) -> Status {
    io(session, Side::Input, index, info)
}

#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_session_output(session: Handle, index: usize, info: Out<IoInfo>) -> Status {
    io(session, Side::Output, index, info)
}

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
