//! A value of a JSON document that knows where it is.

use serde_json::{Map, Value};

use crate::loader::error::{ErrorLocation, LoadError, LoadErrorKind};

#[derive(Clone, Copy)]
enum Key<'a> {
    Name(&'a str),
    Index(usize),
}

/// A value and the way to it.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    value: &'a Value,
    way: Option<(&'a At<'a>, Key<'a>)>,
}

impl<'a> At<'a> {
    /// The whole document.
    pub(super) fn root(value: &'a Value) -> Self {
        At { value, way: None }
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    /// Where it is, as RFC 6901 writes it.
    pub(super) fn pointer(&self) -> String {
        let Some((parent, key)) = self.way else { return String::new() };
        let start = parent.pointer();
        match key {
            Key::Name(name) => format!("{start}/{}", name.replace('~', "~0").replace('/', "~1")),
            Key::Index(index) => format!("{start}/{index}"),
        }
    }

    /// An error about it.
    pub(super) fn error(&self, kind: LoadErrorKind) -> LoadError {
        kind.at(ErrorLocation::JsonPointer(self.pointer()))
    }

    /// An error that it should be something else.
    pub(super) fn unexpected(&self, expected: &str) -> LoadError {
        let found = match self.value {
            Value::Null => "null".to_owned(),
            Value::Bool(b) => b.to_string(),
            Value::Number(n) => n.to_string(),
            Value::String(s) if s.len() <= 40 => format!("{s:?}"),
            Value::String(_) => "a long text".to_owned(),
            Value::Array(a) => format!("a list of {}", a.len()),
            Value::Object(_) => "an object".to_owned(),
        };
        self.error(LoadErrorKind::unexpected(expected, found))
    }

    /// Its members, if it is an object.
    pub(super) fn object(&self) -> Result<&'a Map<String, Value>, LoadError> {
        self.value.as_object().ok_or_else(|| self.unexpected("an object"))
    }

    /// The member `name` of an object.
    pub(super) fn get<'b>(&'b self, name: &'b str) -> Option<At<'b>> {
        Some(At { value: self.value.get(name)?, way: Some((self, Key::Name(name))) })
    }

    /// The member `name` of an object, which must be there.
    pub(super) fn need<'b>(&'b self, name: &'b str) -> Result<At<'b>, LoadError> {
        self.get(name).ok_or_else(|| self.error(LoadErrorKind::missing(format!("{name:?}"))))
    }

    /// All members of an object with their names.
    pub(super) fn members<'b>(&'b self) -> Result<impl Iterator<Item = (&'b str, At<'b>)>, LoadError> {
        Ok(self
            .object()?
            .iter()
            .map(|(name, value)| (name.as_str(), At { value, way: Some((self, Key::Name(name))) })))
    }

    /// All values of a list.
    pub(super) fn items<'b>(&'b self) -> Result<impl ExactSizeIterator<Item = At<'b>>, LoadError> {
        let list = self.value.as_array().ok_or_else(|| self.unexpected("a list"))?;
        let item = |(i, value)| At { value, way: Some((self, Key::Index(i))) };
        Ok(list.iter().enumerate().map(item))
    }

    pub(super) fn text(&self) -> Result<&'a str, LoadError> {
        self.value.as_str().ok_or_else(|| self.unexpected("a text"))
    }

    /// An integer; a text of decimal digits counts as one.
    pub(super) fn int(&self) -> Result<i64, LoadError> {
        let found = match self.value {
            Value::String(s) => s.trim().parse().ok(),
            other => other.as_i64(),
        };
        found.ok_or_else(|| self.unexpected("an integer"))
    }

    /// An integer that is not negative and fits 32 bits.
    pub(super) fn index(&self) -> Result<u32, LoadError> {
        u32::try_from(self.int()?).map_err(|_| self.unexpected("an index"))
    }

    /// An integer below `count`.
    pub(super) fn index_below(&self, what: &'static str, count: usize) -> Result<u32, LoadError> {
        let index = self.int()?;
        match u32::try_from(index) {
            Ok(i) if (i as usize) < count => Ok(i),
            _ => Err(self.error(LoadErrorKind::OutOfRange { what, index, count: count as u64 })),
        }
    }
}
