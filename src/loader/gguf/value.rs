//! Values of the metadata.

use crate::loader::error::{LoadError, LoadErrorKind};
use crate::loader::source::Source;

/// The longest text of the metadata, in bytes.
const MAX_TEXT: u64 = 64 << 20;

/// The most elements of an array that is a property.
const MOST_SHOWN: usize = 64;

/// The first of so many elements in JSON.
fn json<T: serde::Serialize>(all: &[T]) -> serde_json::Result<String> {
    serde_json::to_string(all.get(..MOST_SHOWN.min(all.len())).unwrap_or_default())
}

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Values),
}

/// The elements of an array.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Values {
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    Bools(Vec<bool>),
    Texts(Vec<String>),
}

/// Kinds of values, by their numbers in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Kind::U8,
        Kind::I8,
        Kind::U16,
        Kind::I16,
        Kind::U32,
        Kind::I32,
        Kind::F32,
        Kind::Bool,
        Kind::Text,
        Kind::Array,
        Kind::U64,
        Kind::I64,
        Kind::F64,
    ];

    fn read(source: &mut Source<'_>) -> Result<Self, LoadError> {
        let number = source.u32("the kind of a value")?;
        let kind = usize::try_from(number).ok().and_then(|number| Kind::ALL.get(number)).copied();
        kind.ok_or_else(|| {
            source.error(LoadErrorKind::unexpected("a kind of value from 0 to 12", number.to_string()))
        })
    }

    /// The fewest bytes of one.
    fn bytes(self) -> u64 {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 | Kind::Text | Kind::Array => 8,
        }
    }
}

impl Value {
    /// Reads a value; `more` is told of the elements of an array before they are read, and may refuse them.
    pub(super) fn read<'a>(
        source: &mut Source<'a>,
        more: &mut dyn FnMut(&Source<'a>, u64) -> Result<(), LoadError>,
    ) -> Result<Self, LoadError> {
        match Kind::read(source)? {
            Kind::Array => {
                let kind = Kind::read(source)?;
                let count = source.u64("the length of an array")?;
                if kind == Kind::Array {
                    return Err(source.error(LoadErrorKind::unsupported("arrays of arrays in the metadata")));
                }
                more(source, count)?;
                source.need("an array", count.saturating_mul(kind.bytes()))?;
                Values::read(source, kind, count).map(Value::Array)
            }
            kind => Value::scalar(source, kind),
        }
    }

    fn scalar(source: &mut Source<'_>, kind: Kind) -> Result<Self, LoadError> {
        const WHAT: &str = "a value";
        Ok(match kind {
            Kind::U8 => Value::Unsigned(source.u8(WHAT)?.into()),
            Kind::I8 => Value::Signed(source.u8(WHAT)?.cast_signed().into()),
            Kind::U16 => Value::Unsigned(source.u16(WHAT)?.into()),
            Kind::I16 => Value::Signed(source.u16(WHAT)?.cast_signed().into()),
            Kind::U32 => Value::Unsigned(source.u32(WHAT)?.into()),
            Kind::I32 => Value::Signed(source.i32(WHAT)?.into()),
            Kind::F32 => Value::Float(f32::from_bits(source.u32(WHAT)?).into()),
            Kind::Bool => match source.u8(WHAT)? {
                byte @ (0 | 1) => Value::Bool(byte == 1),
                byte => return Err(source.error(LoadErrorKind::unexpected("0 or 1", byte.to_string()))),
            },
            Kind::Text | Kind::Array => {
                let len = source.u64("the length of a text")?;
                Value::Text(text(source, len)?)
            }
            Kind::U64 => Value::Unsigned(source.u64(WHAT)?),
            Kind::I64 => Value::Signed(source.i64(WHAT)?),
            Kind::F64 => Value::Float(f64::from_bits(source.u64(WHAT)?)),
        })
    }

    pub(super) fn unsigned(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(n) => Some(n),
            Value::Signed(n) => u64::try_from(n).ok(),
            _ => None,
        }
    }

    pub(super) fn float(&self) -> Option<f64> {
        match *self {
            Value::Unsigned(n) => Some(n as f64),
            Value::Signed(n) => Some(n as f64),
            Value::Float(n) => Some(n),
            _ => None,
        }
    }

    /// A text as it is, all else in JSON; of a long array its length alone.
    pub(super) fn property(&self) -> String {
        let short = |text: serde_json::Result<String>, len: usize| match text {
            Ok(text) if len <= MOST_SHOWN => text,
            _ => self.describe(),
        };
        match self {
            Value::Text(text) => text.clone(),
            Value::Array(Values::Integers(all)) => short(json(all), all.len()),
            Value::Array(Values::Floats(all)) => short(json(all), all.len()),
            Value::Array(Values::Bools(all)) => short(json(all), all.len()),
            Value::Array(Values::Texts(all)) => short(json(all), all.len()),
            other => other.describe(),
        }
    }

    /// What it is, for errors.
    pub(super) fn describe(&self) -> String {
        match self {
            Value::Unsigned(n) => n.to_string(),
            Value::Signed(n) => n.to_string(),
            Value::Float(n) => n.to_string(),
            Value::Bool(is) => is.to_string(),
            Value::Text(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
            Value::Array(Values::Integers(all)) => format!("{} whole numbers", all.len()),
            Value::Array(Values::Floats(all)) => format!("{} numbers", all.len()),
            Value::Array(Values::Bools(all)) => format!("{} truth values", all.len()),
            Value::Array(Values::Texts(all)) => format!("{} texts", all.len()),
        }
    }
}

impl Values {
    fn read(source: &mut Source<'_>, kind: Kind, count: u64) -> Result<Self, LoadError> {
        let each = |source: &mut Source<'_>| Value::scalar(source, kind);
        Ok(match kind {
            Kind::F32 | Kind::F64 => Values::Floats(collect(source, count, |source| {
                each(source).map(|value| value.float().unwrap_or(f64::NAN) as f32)
            })?),
            Kind::Bool => {
                Values::Bools(collect(source, count, |source| each(source).map(|v| v == Value::Bool(true)))?)
            }
            Kind::Text | Kind::Array => Values::Texts(collect(source, count, |source| {
                let len = source.u64("the length of a text")?;
                text(source, len)
            })?),
            _ => Values::Integers(collect(source, count, |source| {
                Ok(match each(source)? {
                    Value::Signed(n) => n,
                    Value::Unsigned(n) => i64::try_from(n).map_err(|_| {
                        source.error(LoadErrorKind::unexpected("a number below 2^63", n.to_string()))
                    })?,
                    _ => 0,
                })
            })?),
        })
    }
}

/// So many of what `read` gives.
fn collect<T>(
    source: &mut Source<'_>,
    count: u64,
    mut read: impl FnMut(&mut Source<'_>) -> Result<T, LoadError>,
) -> Result<Vec<T>, LoadError> {
    (0..count).map(|_| read(source)).collect()
}

/// A text of `len` bytes.
pub(super) fn text(source: &mut Source<'_>, len: u64) -> Result<String, LoadError> {
    if len > MAX_TEXT {
        let kind = LoadErrorKind::TooMany { what: "bytes in a text", found: len, limit: MAX_TEXT };
        return Err(source.error(kind));
    }
    let at = source.at();
    String::from_utf8(source.take("a text", len)?).map_err(|e| {
        let problem = e.to_string();
        LoadErrorKind::Decode { what: "text", problem }.at(super::ErrorLocation::ByteOffset(at))
    })
}
