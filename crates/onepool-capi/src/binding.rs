//! `onepool_binding`.

use std::ffi::c_void;
use std::slice;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use onepool::dlpack::ManagedTensor;
use onepool::plan::PlannedIo;
use onepool::session::{Binding, SessionError};
use onepool::{DType, Shape};

use crate::arg::{In, Out, Text, null, unknown};
use crate::caller::Side;
use crate::cancel::options;
use crate::dlpack;
use crate::handle::{Handle, Object, publish};
use crate::memory::{Holds, bound, builder};
use crate::region::View;
use crate::session::SessionObject;
use crate::status::{Failure, Status, guard};
use crate::types::{Memory, RunOptions, TensorInfoC, VALUE};
use crate::verdicts::Verdicts;
use onepool_core::sync::{lock, wait_while};

/// What an `onepool_binding` stands for.
#[derive(Debug)]
pub(crate) struct BindingObject {
    /// What it was made of, for declarations.
    session: Arc<SessionObject>,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug)]
enum State {
    Here(Box<Binding<'static>>),
    /// A call has it.
    Lent,
    Freed,
}

impl Object for BindingObject {
    const KIND: &'static str = "onepool_binding";
}

/// The binding, for one call or run; no one else has it.
#[derive(Debug)]
pub(crate) struct Turn {
    owner: Arc<BindingObject>,
    binding: Option<Box<Binding<'static>>>,
}

impl BindingObject {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Takes the binding for a call.
    pub(crate) fn turn(self: &Arc<Self>) -> Result<Turn, Failure> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Lent) {
            State::Here(binding) => Ok(Turn { owner: Arc::clone(self), binding: Some(binding) }),
            State::Lent => Err(busy()),
            State::Freed => {
                *state = State::Freed;
                Err(Failure::new(Status::InvalidHandle, "argument `binding` was freed during the call"))
            }
        }
    }

    /// Waits until no call has the binding, and takes it apart.
    fn end(&self) {
        let lent = |state: &mut State| matches!(state, State::Lent);
        let mut state = wait_while(&self.returned, self.lock(), lent);
        let last = std::mem::replace(&mut *state, State::Freed);
        drop(state);
        drop(last);
    }
}

fn busy() -> Failure {
    Failure::new(Status::Busy, "argument `binding` is in use: a run is under way, or another thread's call")
}

impl Turn {
    pub(crate) fn binding(&mut self) -> Result<&mut Binding<'static>, Failure> {
        self.binding.as_deref_mut().ok_or_else(busy)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(binding) = self.binding.take() {
            *self.owner.lock() = State::Here(binding);
            self.owner.returned.notify_all();
        }
    }
}

/// Calls `work` with the binding of a handle.
fn with(
    handle: Handle,
    work: impl FnOnce(&mut Binding<'static>, &SessionObject) -> Result<(), Failure>,
) -> Status {
    guard(|| {
        let object = handle.get::<BindingObject>("binding")?;
        let mut turn = object.turn()?;
        work(turn.binding()?, &object.session)
    })
}

/// Binds memory. Inputs and outputs that are not named have memory of the library's own.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_create(
    session: Handle,
    inputs: In<Memory>,
    input_count: usize,
    outputs: In<Memory>,
    output_count: usize,
    strict: u32,
    binding: Out<Handle>,
) -> Status {
    guard(|| {
        let place = binding.place("binding")?;
        let session = session.get::<SessionObject>("session")?;
        let mut expected = Vec::new();
        let outputs = Some(((outputs, output_count), &mut expected));
        let (mut builder, holds) = builder(&session.session, session.io(), (inputs, input_count), outputs)?;
        builder = match strict {
            0 => builder,
            1 => builder.strict(true),
            2 => builder.strict(false),
            other => return Err(unknown("strict", other)),
        };
        let binding = builder.build()?;
        for (name, dtype, shape) in expected {
            check_planned(&binding, &name, dtype, shape.as_ref())?;
        }
        holds.keep();
        let state = Mutex::new(State::Here(Box::new(binding)));
        publish(BindingObject { session, state, returned: Condvar::new() }, place);
        Ok(())
    })
}

/// Checks what the caller says of an output against its plan, where there is one before the run.
fn check_planned(
    binding: &Binding<'static>,
    name: &str,
    dtype: Option<DType>,
    shape: Option<&Shape>,
) -> Result<(), Failure> {
    let Some(io) = binding.plan().outputs.iter().find(|io| io.name == name) else { return Ok(()) };
    if let Some(got) = dtype.filter(|got| *got != io.info.dtype) {
        return Err(SessionError::DType { name: name.to_owned(), expected: io.info.dtype, got }.into());
    }
    if let Some(got) = shape.filter(|got| **got != io.info.shape) {
        let message = format!("{name:?} has the shape {}, got {got}", io.info.shape);
        return Err(Failure::new(Status::WrongShape, message));
    }
    Ok(())
}

/// Frees a binding, after waiting for a run or call that is under way.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_binding_free(binding: Handle) -> Status {
    guard(|| {
        if !binding.is_null() {
            binding.take::<BindingObject>("binding")?.end();
        }
        Ok(())
    })
}

/// Binds other memory.
fn rebind(binding: Handle, memory: In<Memory>, side: Side) -> Status {
    with(binding, |binding, session| {
        let memory = memory.required("memory")?;
        let mut holds = Holds::default();
        let bound = bound(&memory, session.declared(side), side, "memory", &mut holds)?;
        if bound.updates.is_some() {
            let problem = "is for new bindings: what was bound as one stays one";
            return Err(Failure::argument("memory.updates", problem));
        }
        match side {
            Side::Input => binding.rebind_input(&bound.name, bound.memory)?,
            Side::Output => binding.rebind_output(&bound.name, bound.memory)?,
        }
        holds.keep();
        Ok(())
    })
}

/// Gives an input other memory of the same shape.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_rebind_input(binding: Handle, memory: In<Memory>) -> Status {
    rebind(binding, memory, Side::Input)
}

/// Gives an output other memory of the same shape.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_rebind_output(binding: Handle, memory: In<Memory>) -> Status {
    rebind(binding, memory, Side::Output)
}

/// Copies a value into an input of the library's own memory.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_set_input(binding: Handle, value: In<Memory>) -> Status {
    with(binding, |binding, session| {
        let value = value.required("value")?;
        if value.kind != VALUE {
            return Err(unknown("value.kind", value.kind));
        }
        let bound =
            bound(&value, session.declared(Side::Input), Side::Input, "value", &mut Holds::default())?;
        let tensor = bound.tensor.ok_or_else(|| null("value.data"))?;
        Ok(binding.set_input(&bound.name, &tensor)?)
    })
}

/// The planned input or output `name`.
fn planned(binding: &Binding<'static>, name: &str, side: Side) -> Result<PlannedIo, Failure> {
    let ios = |b: &Binding<'static>| match side {
        Side::Input => b.plan().inputs.iter().find(|io| io.name == name).cloned(),
        Side::Output => b.plan().outputs.iter().find(|io| io.name == name).cloned(),
    };
    let stages = match side {
        Side::Input => 1,
        Side::Output => usize::MAX,
    };
    binding.stages().take(stages).find_map(ios).ok_or_else(|| {
        Failure::new(
            Status::UnknownName,
            format!("argument `name`: there is no {side:?} {name:?} in the plan"),
        )
    })
}

fn info(binding: Handle, name: Text, info: Out<TensorInfoC>, side: Side) -> Status {
    with(binding, |binding, session| {
        let (place, size) = info.room("info")?;
        let name = name.required("name")?;
        let io = planned(binding, &name, side).map_err(|failure| {
            let known = session.declared(side).iter().any(|io| io.is(&name));
            let message = format!("the shape of {name:?} is known only in a run");
            if known { Failure::new(Status::NotRun, message) } else { failure }
        })?;
        place.set(TensorInfoC::new(&io.info, size));
        Ok(())
    })
}

/// Type and shape of an input.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_input_info(
    binding: Handle,
    name: Text,
    tensor: Out<TensorInfoC>,
) -> Status {
    info(binding, name, tensor, Side::Input)
}

/// Type and shape of an output.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_output_info(
    binding: Handle,
    name: Text,
    tensor: Out<TensorInfoC>,
) -> Status {
    info(binding, name, tensor, Side::Output)
}

/// Copies an output of the last run to `bytes` bytes at `data`, which are exactly its size.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_get_output(
    binding: Handle,
    name: Text,
    data: *mut c_void,
    bytes: usize,
) -> Status {
    with(binding, |binding, _| {
        let name = name.required("name")?;
        if data.is_null() && bytes > 0 {
            return Err(null("data"));
        }
        if bytes > isize::MAX as usize {
            return Err(Failure::argument("bytes", format!("is {bytes}, more than memory can have")));
        }
        let to = match bytes {
            0 => &mut [][..],
            // SAFETY: so many bytes that no one else touches during the call, as the caller promised.
            bytes => unsafe { slice::from_raw_parts_mut(data.cast::<u8>(), bytes) },
        };
        Ok(binding.read_output(&name, to)?)
    })
}

/// Lends an input in place for writing. While the view is there, runs of the binding are busy.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_map_input(binding: Handle, name: Text, view: Out<Handle>) -> Status {
    with(binding, |binding, _| {
        let place = view.place("view")?;
        let host = binding.host_view_input(&name.required("name")?)?;
        publish(View::of_tensor(host, true)?, place);
        Ok(())
    })
}

/// Lends an output in place for reading. While the view is there, runs of the binding are busy.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_map_output(
    binding: Handle,
    name: Text,
    view: Out<Handle>,
) -> Status {
    with(binding, |binding, _| {
        let place = view.place("view")?;
        let host = binding.host_view(&name.required("name")?)?;
        publish(View::of_tensor(host, false)?, place);
        Ok(())
    })
}

/// An output as a DLPack tensor, to be read: in place, or a copy of the last run's.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_output_dlpack(
    binding: Handle,
    name: Text,
    copy: u32,
    tensor: Out<*mut ManagedTensor>,
) -> Status {
    with(binding, |binding, _| {
        let place = tensor.place("tensor")?;
        let name = name.required("name")?;
        let managed = if crate::arg::flag(copy, "copy")? {
            dlpack::of_value(binding.get_output(&name)?)
        } else {
            let host = binding.host_view(&name)?;
            let info = host.info().clone();
            dlpack::of_view(&info, View::of_tensor(host, false)?)
        };
        place.set(managed);
        Ok(())
    })
}

/// The verdicts of a binding as they are now.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_verdicts(binding: Handle, verdicts: Out<Handle>) -> Status {
    with(binding, |binding, _| {
        let place = verdicts.place("verdicts")?;
        publish(Verdicts::new(binding), place);
        Ok(())
    })
}

/// Runs and waits until the results are where they were bound.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_binding_run(binding: Handle, opts: In<RunOptions>) -> Status {
    with(binding, |binding, _| match options(opts)? {
        Some((options, _)) => Ok(binding.run_with(&options)?),
        None => Ok(binding.run()?),
    })
}
