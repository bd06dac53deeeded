//! Attributes of a TVM node: texts, as TVM writes them, or JSON values, as people do.

use std::collections::BTreeMap;

use serde_json::Value;

use super::relay::Problem;
use crate::ops::AttrValue;

/// A node's attributes.
#[derive(Clone, Copy)]
pub(super) struct NodeAttrs<'a>(pub(super) &'a BTreeMap<String, Value>);

impl<'a> NodeAttrs<'a> {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.0.iter()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn value(&self, name: &str) -> Result<AttrValue, Problem> {
        let value = self.0.get(name).ok_or_else(|| format!("attribute {name} is missing"))?;
        value_of(value).ok_or_else(|| format!("attribute {name} is no value"))
    }

    fn wrong<T>(name: &str, expected: &str) -> Result<T, Problem> {
        Err(format!("attribute {name} is not {expected}"))
    }

    pub(super) fn int(&self, name: &str) -> Result<i64, Problem> {
        match self.value(name)? {
            AttrValue::Int(v) => Ok(v),
            _ => Self::wrong(name, "an integer"),
        }
    }

    /// A truth value, written as a number or a word, as an integer.
    pub(super) fn flag(&self, name: &str) -> Result<i64, Problem> {
        match self.value(name)? {
            AttrValue::Int(v) => Ok(i64::from(v != 0)),
            AttrValue::Str(s) if s.eq_ignore_ascii_case(b"true") => Ok(1),
            AttrValue::Str(s) if s.eq_ignore_ascii_case(b"false") => Ok(0),
            _ => Self::wrong(name, "a truth value"),
        }
    }

    pub(super) fn float(&self, name: &str) -> Result<f32, Problem> {
        match self.value(name)? {
            AttrValue::Float(v) => Ok(v),
            AttrValue::Int(v) => Ok(v as f32),
            _ => Self::wrong(name, "a number"),
        }
    }

    pub(super) fn ints(&self, name: &str) -> Result<Vec<i64>, Problem> {
        match self.value(name)? {
            AttrValue::Ints(v) => Ok(v),
            AttrValue::Int(v) => Ok(vec![v]),
            _ => Self::wrong(name, "a list of integers"),
        }
    }

    /// A size along height and width; one number stands for both.
    pub(super) fn pair(&self, name: &str) -> Result<Vec<i64>, Problem> {
        match self.ints(name)?.as_slice() {
            [both] => Ok(vec![*both; 2]),
            [h, w] => Ok(vec![*h, *w]),
            _ => Self::wrong(name, "one or two integers"),
        }
    }

    /// Attribute `padding`: all sides, height and width, or top, left, bottom and right.
    pub(super) fn padding(&self) -> Result<Vec<i64>, Problem> {
        match self.ints("padding")?.as_slice() {
            [all] => Ok(vec![*all; 4]),
            [h, w] => Ok(vec![*h, *w, *h, *w]),
            [top, left, bottom, right] => Ok(vec![*top, *left, *bottom, *right]),
            _ => Self::wrong("padding", "one, two or four integers"),
        }
    }

    /// Checks that attribute `name` is `expected`, if it is there.
    pub(super) fn expect_text(&self, name: &str, expected: &str) -> Result<(), Problem> {
        match self.0.get(name) {
            None => Ok(()),
            Some(Value::String(s)) if s == expected || s.is_empty() => Ok(()),
            Some(_) => Self::wrong(name, &format!("{expected:?}")),
        }
    }
}

/// The typed value of `value`: a text that spells a number or a list of numbers is that.
pub(super) fn value_of(value: &Value) -> Option<AttrValue> {
    match value {
        Value::Null | Value::Object(_) => None,
        Value::Bool(b) => Some(AttrValue::Int(i64::from(*b))),
        Value::Number(_) => scalar(value),
        Value::Array(items) => list(items.iter().map(scalar).collect::<Option<Vec<_>>>()?),
        Value::String(text) => Some(parse(text).unwrap_or_else(|| AttrValue::Str(text.clone().into_bytes()))),
    }
}

fn scalar(value: &Value) -> Option<AttrValue> {
    match value {
        Value::Number(n) => match n.as_i64() {
            Some(v) => Some(AttrValue::Int(v)),
            None => n.as_f64().map(|v| AttrValue::Float(v as f32)),
        },
        Value::String(s) => Some(number(s).unwrap_or_else(|| AttrValue::Str(s.clone().into_bytes()))),
        _ => None,
    }
}

/// A list of one type; integers among floats are floats.
fn list(items: Vec<AttrValue>) -> Option<AttrValue> {
    let ints: Option<Vec<i64>> =
        items.iter().map(|i| if let AttrValue::Int(v) = i { Some(*v) } else { None }).collect();
    if let Some(ints) = ints {
        return Some(AttrValue::Ints(ints));
    }
    let float = |i: &AttrValue| match i {
        AttrValue::Int(v) => Some(*v as f32),
        AttrValue::Float(v) => Some(*v),
        _ => None,
    };
    if let Some(floats) = items.iter().map(float).collect::<Option<Vec<f32>>>() {
        return Some(AttrValue::Floats(floats));
    }
    let text = |i: AttrValue| if let AttrValue::Str(s) = i { Some(s) } else { None };
    items.into_iter().map(text).collect::<Option<Vec<_>>>().map(AttrValue::Strs)
}

fn number(text: &str) -> Option<AttrValue> {
    let text = text.trim();
    // Words like "nan" and "inf" are texts here.
    if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
        return None;
    }
    let int = text.parse().ok().map(AttrValue::Int);
    int.or_else(|| text.parse().ok().map(AttrValue::Float))
}

/// A number, or a list in brackets or parentheses.
fn parse(text: &str) -> Option<AttrValue> {
    let text = text.trim();
    let inner = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .or_else(|| text.strip_prefix('(').and_then(|t| t.strip_suffix(')')));
    let Some(inner) = inner else { return number(text) };
    let items = inner.split(',').map(str::trim).filter(|t| !t.is_empty());
    list(items.map(number).collect::<Option<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_and_values_are_typed() {
        let show = |v: Value| format!("{:?}", value_of(&v));
        assert_eq!(show(json!("3")), "Some(Int(3))");
        assert_eq!(show(json!("-1.5")), "Some(Float(-1.5))");
        assert_eq!(show(json!("[1, 2]")), "Some(Ints([1, 2]))");
        assert_eq!(show(json!("(1, 1,)")), "Some(Ints([1, 1]))");
        assert_eq!(show(json!("[1, 0.5]")), "Some(Floats([1.0, 0.5]))");
        assert_eq!(show(json!([1, 2])), "Some(Ints([1, 2]))");
        assert_eq!(show(json!(["1", "2"])), "Some(Ints([1, 2]))");
        assert_eq!(show(json!("NCHW")), format!("{:?}", Some(AttrValue::Str(b"NCHW".to_vec()))));
        assert_eq!(show(json!(true)), "Some(Int(1))");
        assert_eq!(show(json!([[1]])), "None");
        assert_eq!(show(json!({})), "None");
    }

    #[test]
    fn readers_say_what_is_missing() {
        let map: BTreeMap<String, Value> =
            serde_json::from_value(json!({"strides": "2", "padding": "[1, 2]", "ceil_mode": "False"}))
                .unwrap();
        let a = NodeAttrs(&map);
        assert_eq!(a.pair("strides").unwrap(), [2, 2]);
        assert_eq!(a.padding().unwrap(), [1, 2, 1, 2]);
        assert_eq!(a.flag("ceil_mode").unwrap(), 0);
        assert_eq!(a.int("groups").unwrap_err(), "attribute groups is missing");
        assert!(a.float("padding").is_err());
        assert!(a.expect_text("strides", "NCHW").is_err());
    }
}
