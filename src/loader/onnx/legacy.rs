//! Models of opsets before 7, which had other attributes.
//!
//! Readers that know nothing of those opsets read them as opset 7 defines them. That is right where the
//! model uses none of the attributes that opset 7 dropped, or uses them with the meaning that became the
//! only one. Binary operators know theirs (`ops::pointwise::BinaryBeside`).

use crate::loader::error::LoadErrorKind;
use crate::ops::{AttrMap, AttrValue};

/// Checks the attributes of an `op` that its reader did not know.
pub(super) fn check(op: &str, attrs: &AttrMap, unread: &[&str], opset: i64) -> Result<(), LoadErrorKind> {
    for name in unread {
        let is_one = matches!(attrs.get(*name), Some(AttrValue::Int(1)));
        let harmless = match *name {
            "consumed_inputs" => true,
            // Broadcasting to the last dimensions is what all later opsets do; `axis` would say others.
            "broadcast" => true,
            "is_test" => is_one,
            _ => false,
        };
        if !harmless {
            let what = format!("attribute {name:?} of {op} of opset {opset} (7 is the oldest supported)");
            return Err(LoadErrorKind::Unsupported(what));
        }
    }
    let trains = matches!(op, "BatchNormalization" | "Dropout") && !attrs.contains_key("is_test");
    if trains {
        let what = format!("{op} in training mode, which opset {opset} means without is_test");
        return Err(LoadErrorKind::Unsupported(what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attributes_without_effect_are_passed_over() {
        let attrs: AttrMap = [
            ("broadcast".to_owned(), AttrValue::Int(1)),
            ("is_test".to_owned(), AttrValue::Int(0)),
            ("axis".to_owned(), AttrValue::Int(1)),
        ]
        .into();
        assert!(check("Add", &attrs, &["broadcast"], 6).is_ok());
        assert!(check("Add", &attrs, &["broadcast", "axis"], 6).is_err());
        assert!(check("Dropout", &attrs, &["is_test"], 6).is_err());
        assert!(check("Dropout", &AttrMap::new(), &[], 6).is_err());
        assert!(check("Relu", &AttrMap::new(), &[], 6).is_ok());
    }
}
