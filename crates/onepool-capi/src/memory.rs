//! `onepool_memory`: what is bound to an input or output.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onepool::device::Lent;
use onepool::memory::import::ReadWrite;
use onepool::memory::range::ByteRange;
use onepool::session::{BindingBuilder, Memory, SessionError};
use onepool::{DType, Session, Shape, Tensor, TensorInfo};

use crate::arg::{In, null, unknown};
use crate::caller::{Foreign, Side, check_strides};
use crate::dlpack::Managed;
use crate::io::Declared;
use crate::region::RegionObject;
use crate::status::Failure;
use crate::types::{self, DLPACK, MAX_RANK, OWN, POINTER, REGION, VALUE, dtype_of};

/// The most inputs or outputs that one call names.
const MOST: usize = 1 << 16;

/// Memory of the caller's that a call takes. The caller is told of its end only where the call succeeded.
#[derive(Debug, Default)]
pub(crate) struct Holds(Vec<Arc<AtomicBool>>);

impl Holds {
    /// The call succeeded.
    pub(crate) fn keep(self) {
        self.0.iter().for_each(|taken| taken.store(true, Ordering::Release));
    }

    fn lend(
        &mut self,
        (data, bytes): (*mut c_void, usize),
        access: ReadWrite,
        release: impl FnOnce() + Send + 'static,
    ) -> Lent<'static> {
        let taken = Arc::new(AtomicBool::new(false));
        self.0.push(Arc::clone(&taken));
        let release = Box::new(move || {
            if taken.load(Ordering::Acquire) {
                release();
            }
        });
        let address = NonNull::new(data.cast()).unwrap_or(NonNull::dangling());
        // SAFETY: the caller promised that the bytes stay as the header says until the binding is freed or the release
        // function was called, and that no one touches them while a call uses them.
        unsafe { Lent::raw(address, bytes as u64, access, release) }
    }
}

/// An `onepool_memory` as Rust binds it.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) name: String,
    pub(crate) memory: Memory<'static>,
    pub(crate) dtype: Option<DType>,
    pub(crate) shape: Option<Shape>,
    /// The tensor, where it is given by value.
    pub(crate) tensor: Option<Tensor>,
    /// The input that is the same memory.
    pub(crate) updates: Option<String>,
}

/// Reads one `onepool_memory`; `argument` is what messages call it.
pub(crate) fn bound(
    given: &types::Memory,
    declared: &[Declared],
    side: Side,
    argument: &str,
    holds: &mut Holds,
) -> Result<Bound, Failure> {
    let field = |name: &str| format!("{argument}.{name}");
    let name = given.name.required(&field("name"))?;
    let mut dtype = dtype_of(given.dtype, &field("dtype"))?;
    let mut shape = shape_of(given, &name, argument)?;
    if given.release.is_some() && given.kind != POINTER {
        return Err(Failure::argument(&field("release"), "is for memory of kind POINTER alone"));
    }
    let updates = given.updates.optional(&field("updates"))?;
    if updates.is_some() && side == Side::Input {
        return Err(Failure::argument(&field("updates"), "is for outputs: it names their input"));
    }
    if given.bytes > isize::MAX as usize {
        return Err(Failure::argument(
            &field("bytes"),
            format!("is {}, more than memory can have", given.bytes),
        ));
    }
    let mut tensor = None;
    let missing = given.data.is_null() && given.bytes > 0;
    let memory = match given.kind {
        OWN => Memory::own(),
        POINTER => {
            if missing {
                return Err(null(&field("data")));
            }
            let (release, user) = (given.release, Foreign(given.user));
            let release = move || {
                if let Some(release) = release {
                    release(user.pointer());
                }
            };
            Memory::lent(holds.lend((given.data, given.bytes), side.access(), release))
        }
        REGION => {
            let region = given.region.get::<RegionObject>(&field("region"))?;
            Memory::region_range(&region.region, region_range(given, region.region.bytes(), argument)?)
        }
        VALUE if side == Side::Output => {
            return Err(Failure::argument(&field("kind"), "is VALUE, which is for inputs alone"));
        }
        VALUE => {
            if missing {
                return Err(null(&field("data")));
            }
            let made = value(given, declared, &name, (dtype, shape.clone()), argument)?;
            Memory::value(tensor.insert(made).clone())
        }
        DLPACK => {
            let managed = Managed::read(given.data, side, &name, &field("data"))?;
            (dtype, shape) = (Some(managed.info.dtype), Some(managed.info.shape.clone()));
            let given = (managed.start, managed.info.bytes());
            Memory::lent(holds.lend(given, side.access(), move || managed.delete()))
        }
        other => return Err(unknown(&field("kind"), other)),
    };
    let expected = declared.iter().find(|io| io.is(&name)).and_then(|io| io.dtype);
    if let (Some(got), Some(expected)) = (dtype, expected)
        && got != expected
    {
        return Err(Failure::from(SessionError::DType { name, expected, got }).of(argument));
    }
    let memory = match &shape {
        Some(shape) => memory.shape(shape.clone()),
        None => memory,
    };
    Ok(Bound { name, memory, dtype, shape, tensor, updates })
}

/// The bytes of a region that the fields name.
fn region_range(given: &types::Memory, whole: usize, argument: &str) -> Result<ByteRange, Failure> {
    let rest = whole.saturating_sub(given.offset);
    let bytes = if given.bytes == 0 { rest } else { given.bytes };
    if given.offset > whole || bytes > rest {
        let problem = format!("leaves its region: offset {}, {bytes} of {whole} bytes", given.offset);
        return Err(Failure::argument(argument, problem));
    }
    Ok(ByteRange::new(given.offset as u64, (given.offset + bytes) as u64))
}

/// The tensor of the input `name` that is given by value, of the type and shape that the fields name.
fn value(
    given: &types::Memory,
    declared: &[Declared],
    name: &str,
    (dtype, shape): (Option<DType>, Option<Shape>),
    argument: &str,
) -> Result<Tensor, Failure> {
    let Some(found) = declared.iter().find(|io| io.is(name)) else {
        let (name, known) = (name.to_owned(), declared.iter().map(Declared::name).collect());
        let unknown = SessionError::Unknown { what: "input", name, known };
        return Err(Failure::from(unknown).of(argument));
    };
    let field = |name: &str| format!("{argument}.{name}");
    let dtype = dtype.or(found.dtype);
    let dtype = dtype.ok_or_else(|| Failure::argument(&field("dtype"), "is needed: the model has none"))?;
    let shape = shape.ok_or_else(|| Failure::argument(&field("dims"), "are needed for a value"))?;
    let bytes = match given.bytes {
        0 => &[][..],
        // SAFETY: so many bytes that no one writes during the call, as the caller promised.
        bytes => unsafe { slice::from_raw_parts(given.data.cast::<u8>(), bytes) },
    };
    let info = TensorInfo::new(dtype, shape);
    let (needed, got) = (info.bytes() as u64, given.bytes as u64);
    if got < needed {
        let short = SessionError::Capacity { name: name.to_owned(), needed, got };
        return Err(Failure::from(short).of(argument));
    }
    Tensor::from_bytes(info, bytes).map_err(|e| Failure::from(e).of(argument))
}

fn shape_of(given: &types::Memory, name: &str, argument: &str) -> Result<Option<Shape>, Failure> {
    let dims = format!("{argument}.dims");
    if given.dims.is_null() {
        if given.rank > 0 || !given.strides.is_null() {
            return Err(null(&dims));
        }
        return Ok(None);
    }
    // A null pointer says that there is no shape, so a scalar has a pointer to no sizes.
    let sizes = given.dims.values(given.rank, MAX_RANK, &dims)?;
    let shape = Shape::from_i64(&sizes).map_err(|e| Failure::from(e).of(&dims))?;
    if !given.strides.is_null() {
        let strides = given.strides.values(given.rank, MAX_RANK, &format!("{argument}.strides"))?;
        check_strides(name, &shape, &strides)?;
    }
    Ok(Some(shape))
}

/// A list of `onepool_memory` and its length.
pub(crate) type List = (In<types::Memory>, usize);

/// What the caller says of an output, to be checked once there is a plan.
pub(crate) type Said = (String, Option<DType>, Option<Shape>);

/// Memory for the inputs, and for the outputs, as a builder takes it; and what to check once there is a plan.
pub(crate) fn builder(
    session: &Session,
    (declared_inputs, declared_outputs): (&[Declared], &[Declared]),
    inputs: List,
    outputs: Option<(List, &mut Vec<Said>)>,
) -> Result<(BindingBuilder<'static>, Holds), Failure> {
    let mut builder = session.bind();
    let mut holds = Holds::default();
    let mut names: Vec<String> = Vec::new();
    let mut twice = |name: &str, argument: String| match names.iter().any(|known| known == name) {
        true => Err(Failure::argument(&argument, format!("names {name:?}, which an entry before it names"))),
        false => {
            names.push(name.to_owned());
            Ok(())
        }
    };
    for (i, given) in inputs.0.list(inputs.1, MOST, "inputs")?.iter().enumerate() {
        let argument = format!("inputs[{i}]");
        let bound = bound(given, declared_inputs, Side::Input, &argument, &mut holds)?;
        twice(&format!("input {}", bound.name), argument)?;
        builder = builder.input(bound.name, bound.memory);
    }
    let Some((outputs, expected)) = outputs else { return Ok((builder, holds)) };
    for (i, given) in outputs.0.list(outputs.1, MOST, "outputs")?.iter().enumerate() {
        let argument = format!("outputs[{i}]");
        let bound = bound(given, declared_outputs, Side::Output, &argument, &mut holds)?;
        twice(&format!("output {}", bound.name), argument)?;
        expected.push((bound.name.clone(), bound.dtype, bound.shape));
        builder = match bound.updates {
            None => builder.output(bound.name, bound.memory),
            Some(input) => {
                twice(&format!("input {input}"), format!("outputs[{i}].updates"))?;
                builder.update(input, bound.name, bound.memory)
            }
        };
    }
    Ok((builder, holds))
}
