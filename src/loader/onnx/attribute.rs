//! `AttributeProto` to [`AttrValue`].

use super::proto::{AttributeProto, attribute_type as kind};
use super::store::Store;
use crate::loader::error::{LoadError, LoadErrorKind};
use crate::ops::{AttrMap, AttrValue};

/// The value of `attr`, which is no graph. `None` where it refers to an attribute of the function's
/// call that was not given; `given` are those that were.
pub(super) fn attribute_value(
    attr: &AttributeProto,
    given: &AttrMap,
    store: &mut Store<'_>,
) -> Result<Option<AttrValue>, LoadError> {
    if !attr.ref_attr_name.is_empty() {
        return Ok(given.get(&attr.ref_attr_name).cloned());
    }
    let missing = || LoadErrorKind::missing(format!("the value of attribute {:?}", attr.name));
    let found = if attr.r#type == kind::UNDEFINED { kind_of(attr).ok_or_else(missing)? } else { attr.r#type };
    Ok(Some(match found {
        // A writer may leave out a value that is zero or empty.
        kind::FLOAT => AttrValue::Float(attr.f.unwrap_or(0.0)),
        kind::INT => AttrValue::Int(attr.i.unwrap_or(0)),
        kind::STRING => AttrValue::Str(attr.s.clone().unwrap_or_default()),
        kind::FLOATS => AttrValue::Floats(attr.floats.clone()),
        kind::INTS => AttrValue::Ints(attr.ints.clone()),
        kind::STRINGS => AttrValue::Strs(attr.strings.clone()),
        kind::TENSOR => AttrValue::Tensor(store.tensor(attr.t.as_ref().ok_or_else(missing)?)?),
        kind::SPARSE_TENSOR => {
            AttrValue::Tensor(store.sparse_tensor(attr.sparse_tensor.as_ref().ok_or_else(missing)?)?)
        }
        kind::GRAPH => return Err(missing().into()),
        other => {
            let what = format!("attribute {:?} of type number {other}", attr.name);
            return Err(LoadErrorKind::Unsupported(what).into());
        }
    }))
}

/// The type of an attribute that does not tell it, as old files do not.
fn kind_of(attr: &AttributeProto) -> Option<i32> {
    Some(match attr {
        AttributeProto { f: Some(_), .. } => kind::FLOAT,
        AttributeProto { i: Some(_), .. } => kind::INT,
        AttributeProto { s: Some(_), .. } => kind::STRING,
        AttributeProto { t: Some(_), .. } => kind::TENSOR,
        AttributeProto { sparse_tensor: Some(_), .. } => kind::SPARSE_TENSOR,
        AttributeProto { floats, .. } if !floats.is_empty() => kind::FLOATS,
        AttributeProto { ints, .. } if !ints.is_empty() => kind::INTS,
        AttributeProto { strings, .. } if !strings.is_empty() => kind::STRINGS,
        _ => return None,
    })
}

/// An attribute of a number.
pub(super) fn int_attr(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: kind::INT, i: Some(value), ..Default::default() }
}

/// One of a float.
pub(super) fn float_attr(name: &str, value: f32) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: kind::FLOAT, f: Some(value), ..Default::default() }
}

/// One of numbers.
pub(super) fn ints_attr(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: kind::INTS, ints: values.to_vec(), ..Default::default() }
}

/// One of text.
pub(super) fn text_attr(name: &str, value: &str) -> AttributeProto {
    let s = Some(value.as_bytes().to_vec());
    AttributeProto { name: name.into(), r#type: kind::STRING, s, ..Default::default() }
}
