//! Values as Python prints them, and as its `json` writes them.

use std::fmt::{self, Write};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};

use super::limits::{MAX_VALUE, check, wrong};

/// Values in one another.
const MAX_DEPTH: usize = 100;

/// The most spaces of an indent.
const MAX_INDENT: usize = 64;

/// Text of at most [`MAX_VALUE`] bytes.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len().saturating_add(text.len()) > MAX_VALUE {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

fn too_long(_: fmt::Error) -> Error {
    wrong("it makes more than a template may")
}

/// Writes `value` as Python's `str` does.
pub(super) fn print(to: &mut dyn Write, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => to.write_str(text).map_err(too_long),
        None => shown(to, value, 0),
    }
}

/// As [`print()`], to a text of its own.
pub(super) fn string(value: &Value) -> Result<String, Error> {
    check(std::slice::from_ref(value))?;
    let mut text = Bounded::default();
    print(&mut text, value)?;
    Ok(text.0)
}

/// Writes `value` as Python's `repr` does.
fn shown(to: &mut dyn Write, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(wrong(format!("more than {MAX_DEPTH} values are in one another")));
    }
    let mut put = |text: &str| to.write_str(text).map_err(too_long);
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::None => put("None"),
        ValueKind::Bool => put(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => quoted(to, value.as_str().unwrap_or_default()).map_err(too_long),
        ValueKind::Seq | ValueKind::Iterable => {
            put("[")?;
            for (at, item) in value.try_iter()?.enumerate() {
                to.write_str(if at > 0 { ", " } else { "" }).map_err(too_long)?;
                shown(to, &item, depth + 1)?;
            }
            to.write_str("]").map_err(too_long)
        }
        ValueKind::Map => {
            put("{")?;
            for (at, key) in value.try_iter()?.enumerate() {
                to.write_str(if at > 0 { ", " } else { "" }).map_err(too_long)?;
                shown(to, &key, depth + 1)?;
                to.write_str(": ").map_err(too_long)?;
                shown(to, &value.get_item(&key)?, depth + 1)?;
            }
            to.write_str("}").map_err(too_long)
        }
        _ => write!(to, "{value}").map_err(too_long),
    }
}

fn quoted(to: &mut dyn Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    to.write_char(quote)?;
    for letter in text.chars() {
        match letter {
            '\n' => to.write_str("\\n")?,
            '\r' => to.write_str("\\r")?,
            '\t' => to.write_str("\\t")?,
            '\\' => to.write_str("\\\\")?,
            letter if letter == quote => write!(to, "\\{letter}")?,
            letter if letter.is_ascii_control() => write!(to, "\\x{:02x}", letter as u32)?,
            letter => to.write_char(letter)?,
        }
    }
    to.write_char(quote)
}

/// How JSON is written.
struct Json {
    /// What each level begins with, where there are lines.
    indent: Option<String>,
    /// After each element, and after each key.
    separators: [String; 2],
    ascii: bool,
    sorted: bool,
}

/// The filter `tojson`, as the transformers library has it.
pub(super) fn to_json(value: &Value, indent: Option<Value>, args: Kwargs) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => args.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) if text.len() <= MAX_INDENT => text.to_owned(),
            Some(_) => return Err(wrong(format!("an indent has at most {MAX_INDENT} bytes"))),
            None => match i64::try_from(indent.clone())? {
                wide if wide > MAX_INDENT as i64 => {
                    return Err(wrong(format!("an indent of {wide}: at most {MAX_INDENT}")));
                }
                wide => " ".repeat(wide.max(0) as usize),
            },
        }),
    };
    let separators = match args.get::<Option<Vec<String>>>("separators")? {
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
        Some(given) => given.try_into().map_err(|_| wrong("separators are two texts"))?,
    };
    let flag = |name: &str| Ok::<_, Error>(args.get::<Option<bool>>(name)?.unwrap_or(false));
    let json = Json { indent, separators, ascii: flag("ensure_ascii")?, sorted: flag("sort_keys")? };
    args.assert_all_used()?;
    check(std::slice::from_ref(value))?;
    let mut text = Bounded::default();
    json.write(&mut text, value, 0)?;
    Ok(text.0)
}

impl Json {
    fn write(&self, to: &mut Bounded, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(wrong(format!("more than {MAX_DEPTH} values are in one another")));
        }
        match value.kind() {
            ValueKind::None => to.write_str("null").map_err(too_long),
            ValueKind::Bool => to.write_str(if value.is_true() { "true" } else { "false" }).map_err(too_long),
            ValueKind::Number => write!(to, "{value}").map_err(too_long),
            ValueKind::String => self.text(to, value.as_str().unwrap_or_default()).map_err(too_long),
            ValueKind::Seq | ValueKind::Iterable => {
                let mut items = value.try_iter()?;
                self.all(to, ["[", "]"], depth, |json, to| match items.next() {
                    Some(item) => json.write(to, &item, depth + 1).map(|()| true),
                    None => Ok(false),
                })
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                let mut keys = keys.into_iter();
                self.all(to, ["{", "}"], depth, |json, to| {
                    let Some(key) = keys.next() else { return Ok(false) };
                    let name = match key.as_str() {
                        Some(name) => name.to_owned(),
                        None => string(&key)?,
                    };
                    json.text(to, &name)
                        .and_then(|()| to.write_str(&json.separators[1]))
                        .map_err(too_long)?;
                    json.write(to, &value.get_item(&key)?, depth + 1).map(|()| true)
                })
            }
            kind => Err(wrong(format!("JSON has no value that is {kind}"))),
        }
    }

    /// Writes what `next` writes, as long as it says so.
    fn all(
        &self,
        to: &mut Bounded,
        [begin, end]: [&str; 2],
        depth: usize,
        mut next: impl FnMut(&Json, &mut Bounded) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        to.write_str(begin).map_err(too_long)?;
        let mut is_empty = true;
        loop {
            let before = to.0.len();
            if !is_empty {
                to.write_str(&self.separators[0]).map_err(too_long)?;
            }
            self.line(to, depth + 1).map_err(too_long)?;
            if !next(self, to)? {
                to.0.truncate(before);
                break;
            }
            is_empty = false;
        }
        if !is_empty {
            self.line(to, depth).map_err(too_long)?;
        }
        to.write_str(end).map_err(too_long)
    }

    /// Begins a line, where there are lines.
    fn line(&self, to: &mut Bounded, depth: usize) -> fmt::Result {
        let Some(indent) = &self.indent else { return Ok(()) };
        to.write_char('\n')?;
        (0..depth).try_for_each(|_| to.write_str(indent))
    }

    fn text(&self, to: &mut Bounded, text: &str) -> fmt::Result {
        to.write_char('"')?;
        for letter in text.chars() {
            match letter {
                '"' => to.write_str("\\\"")?,
                '\\' => to.write_str("\\\\")?,
                '\n' => to.write_str("\\n")?,
                '\r' => to.write_str("\\r")?,
                '\t' => to.write_str("\\t")?,
                '\u{8}' => to.write_str("\\b")?,
                '\u{c}' => to.write_str("\\f")?,
                letter if (letter as u32) < 0x20 => write!(to, "\\u{:04x}", letter as u32)?,
                letter if self.ascii && !letter.is_ascii() => {
                    let mut units = [0; 2];
                    letter
                        .encode_utf16(&mut units)
                        .iter()
                        .try_for_each(|unit| write!(to, "\\u{unit:04x}"))?;
                }
                letter => to.write_char(letter)?,
            }
        }
        to.write_char('"')
    }
}
