//! Pointers as C passes them. A value of these types comes from a C caller alone, who promised in calling an `unsafe`
//! function that what is not null is what `onepool.h` says. Null, and what the library can see, is checked here.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use crate::status::{Failure, Status};

/// The most bytes that a structure of a later version may have.
const MOST: usize = 4096;

/// A structure that begins with its size in bytes.
///
/// # Safety
/// `repr(C)`, its first field is a `usize`, and every pattern of bytes is a value of it.
pub unsafe trait Structure: Copy {}

/// A string that ends in a zero byte, or null.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text(*const c_char);

impl Text {
    pub(crate) fn optional(self, argument: &str) -> Result<Option<String>, Failure> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller promised a string that ends in a zero byte and stays for the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        let text = text.to_str().map_err(|_| Failure::argument(argument, "is not UTF-8"))?;
        Ok(Some(text.to_owned()))
    }

    pub(crate) fn required(self, argument: &str) -> Result<String, Failure> {
        self.optional(argument)?.ok_or_else(|| null(argument))
    }
}

/// Values to read, or null.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// A pointer in a structure of someone else's, of which the caller promised the same.
    pub(crate) fn from_field(pointer: *const T) -> Self {
        In(pointer)
    }

    /// `count` values one after another.
    pub(crate) fn values(self, count: usize, most: usize, argument: &str) -> Result<Vec<T>, Failure> {
        if count > most {
            return Err(Failure::argument(
                argument,
                format!("has {count} entries, at most {most} are taken"),
            ));
        }
        if count > 0 && self.0.is_null() {
            return Err(null(argument));
        }
        // SAFETY: the caller promised `count` values there, of a type that every pattern of bytes is a value of.
        Ok((0..count).map(|i| unsafe { self.0.add(i).read_unaligned() }).collect())
    }

    /// One value, where there is one.
    pub(crate) fn value(self, argument: &str) -> Result<Option<T>, Failure> {
        if self.0.is_null() { Ok(None) } else { Ok(self.values(1, 1, argument)?.pop()) }
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<T: Structure> In<T> {
    /// The structure, where there is one.
    pub(crate) fn optional(self, argument: &str) -> Result<Option<T>, Failure> {
        if self.0.is_null() {
            Ok(None)
        } else {
            self.at(0, size_at(self.0.cast(), argument)?, argument).map(Some)
        }
    }

    pub(crate) fn required(self, argument: &str) -> Result<T, Failure> {
        self.optional(argument)?.ok_or_else(|| null(argument))
    }

    /// `count` structures one after another, all of the size that the first one says.
    pub(crate) fn list(self, count: usize, most: usize, argument: &str) -> Result<Vec<T>, Failure> {
        if count > most {
            return Err(Failure::argument(
                argument,
                format!("has {count} entries, at most {most} are taken"),
            ));
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(null(argument));
        }
        let stride = size_at(self.0.cast(), argument)?;
        (0..count).map(|i| self.at(i, stride, argument)).collect()
    }

    fn at(self, index: usize, stride: usize, argument: &str) -> Result<T, Failure> {
        let start = self.0.cast::<u8>().wrapping_add(index * stride);
        let size = size_at(start.cast(), argument)?;
        if size != stride {
            let problem = format!("[{index}].struct_size is {size}, and [0].struct_size {stride}");
            return Err(Failure::argument(argument, problem));
        }
        if size < size_of::<T>() {
            let problem = format!("has a struct_size of {size}, expected {}", size_of::<T>());
            return Err(Failure::argument(argument, problem));
        }
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: the caller promised as many bytes as the structure says, which are not fewer than are copied; `value`
        // has room for them.
        unsafe { start.copy_to_nonoverlapping(value.as_mut_ptr().cast(), size_of::<T>()) };
        // SAFETY: as above, for the bytes that only a later version knows.
        let later = (size_of::<T>()..size).any(|i| unsafe { start.add(i).read() } != 0);
        if later {
            return Err(Failure::argument(
                argument,
                "uses a field that this version of the library does not have",
            ));
        }
        // SAFETY: its bytes are written, and every pattern is a value (`Structure`).
        Ok(unsafe { value.assume_init() })
    }
}

/// The size that a structure says it has.
fn size_at(start: *const usize, argument: &str) -> Result<usize, Failure> {
    // SAFETY: the caller promised a structure there, whose first field this is.
    let size = unsafe { start.read_unaligned() };
    match size {
        0 => Err(Failure::argument(argument, "has a struct_size of 0; begin with its INIT macro")),
        size if size > MOST => {
            Err(Failure::argument(argument, format!("has an impossible struct_size of {size}")))
        }
        size => Ok(size),
    }
}

/// Where a result goes, or null.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Out<T>(*mut T);

/// Where a result goes.
#[derive(Debug)]
pub(crate) struct Place<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn place(self, argument: &str) -> Result<Place<T>, Failure> {
        if self.0.is_null() { Err(null(argument)) } else { Ok(Place(self.0)) }
    }

    /// The place, where there is one.
    pub(crate) fn optional(self) -> Option<Place<T>> {
        (!self.0.is_null()).then_some(Place(self.0))
    }
}

impl<T: Structure> Out<T> {
    /// The place of a structure, and the size that it says it has.
    pub(crate) fn room(self, argument: &str) -> Result<(Place<T>, usize), Failure> {
        let place = self.place(argument)?;
        let size = size_at(self.0.cast(), argument)?;
        if size < size_of::<T>() {
            let problem = format!("has a struct_size of {size}, expected {}", size_of::<T>());
            return Err(Failure::argument(argument, problem));
        }
        Ok((place, size))
    }
}

/// Where several results go, or null.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Room<T>(*mut T);

impl<T: Copy> Room<T> {
    /// Checks that it is not null where there is room.
    pub(crate) fn check(self, room: usize, argument: &str) -> Result<(), Failure> {
        if self.0.is_null() && room > 0 { Err(null(argument)) } else { Ok(()) }
    }

    /// Writes as many of `values` as there is room for.
    pub(crate) fn fill(self, values: &[T], room: usize) {
        for (i, value) in values.iter().take(room).enumerate() {
            // SAFETY: the caller promised room for so many, and it is not null then.
            unsafe { self.0.add(i).write_unaligned(*value) };
        }
    }
}

impl<T: Structure> Place<T> {
    /// The place of a structure after this one, of those that are `stride` bytes apart.
    pub(crate) fn nth(&self, index: usize, stride: usize) -> Place<T> {
        Place(self.0.wrapping_byte_add(index * stride))
    }
}

impl<T> Place<T> {
    pub(crate) fn set(self, value: T) {
        // SAFETY: it is not null, and the caller promised room for one value.
        unsafe { self.0.write_unaligned(value) };
    }
}

pub(crate) fn null(argument: &str) -> Failure {
    Failure::argument(argument, "is null")
}

/// 0 or 1.
pub(crate) fn flag(value: u32, argument: &str) -> Result<bool, Failure> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Failure::argument(argument, format!("is {other}, expected 0 or 1"))),
    }
}

/// An enumerator's number that is none of its kind.
pub(crate) fn unknown(argument: &str, number: u32) -> Failure {
    Failure::new(
        Status::InvalidArgument,
        format!("argument `{argument}` is {number}, which is none of its values"),
    )
}
