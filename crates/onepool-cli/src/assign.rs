//! `NAME=VALUE` arguments.

use std::collections::BTreeMap;

use super::error::CliError;
use onepool::session::{IoInfo, SessionError};
use onepool::shape::Shape;

/// Assigns the texts of an option to inputs or outputs by name; one without `NAME=` goes to the only
/// one there is.
pub(super) fn by_name<'a>(
    option: &str,
    what: &'static str,
    texts: &'a [String],
    known: &[IoInfo],
) -> Result<BTreeMap<usize, &'a str>, CliError> {
    let mut found = BTreeMap::new();
    for text in texts {
        let named = text.split_once('=').and_then(|(name, value)| {
            let at = known.iter().position(|io| io.name == name)?;
            Some((at, value))
        });
        let (at, value) = match (named, known) {
            (Some(named), _) => named,
            // A file's name may hold an equals sign.
            (None, [_]) if !text.contains('=') || std::path::Path::new(text).exists() => (0, text.as_str()),
            (None, _) => match text.split_once('=') {
                Some((name, _)) => return Err(unknown(what, name, known).into()),
                None => {
                    return Err(CliError::usage(format!(
                        "{option} {text:?}: the model has {} {what}s, say which one: {option} NAME=..., where NAME \
                         is one of {}",
                        known.len(),
                        names(known)
                    )));
                }
            },
        };
        if found.insert(at, value).is_some() {
            let name = known.get(at).map_or("", |io| io.name.as_str());
            return Err(CliError::usage(format!("{option}: {what} {name:?} is given twice")));
        }
    }
    Ok(found)
}

fn unknown(what: &'static str, name: &str, known: &[IoInfo]) -> SessionError {
    let known = known.iter().map(|io| io.name.clone()).collect();
    SessionError::Unknown { what, name: name.to_owned(), known }
}

/// Names with types and shapes, for messages.
pub(super) fn names(ios: &[IoInfo]) -> String {
    ios.iter().map(described).collect::<Vec<_>>().join(", ")
}

/// A name with type and shape, for messages.
pub(super) fn described(io: &IoInfo) -> String {
    let dtype = io.dtype.map_or("?".to_owned(), |d| d.to_string());
    let shape = io.shape.as_ref().map_or("[..]".to_owned(), ToString::to_string);
    format!("{} {dtype}{shape}", io.name)
}

/// A shape as `1,3,224,224` or `1x3x224x224`; nothing for a scalar.
pub(super) fn shape(text: &str) -> Result<Shape, CliError> {
    let text = text.trim().trim_start_matches('[').trim_end_matches(']');
    let bad = |part: &str| CliError::usage(format!("{part:?} is no size: shapes are given as 1,3,224,224"));
    if text.trim().is_empty() {
        return Ok(Shape::scalar());
    }
    let sizes: Result<Vec<usize>, CliError> =
        text.split([',', 'x']).map(|part| part.trim().parse().map_err(|_| bad(part))).collect();
    Ok(Shape::new(sizes?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ios(names: &[&str]) -> Vec<IoInfo> {
        names.iter().map(|n| IoInfo { name: (*n).to_owned(), dtype: None, shape: None }).collect()
    }

    #[test]
    fn values_find_their_input() {
        let texts = vec!["b=x=1.npy".to_owned(), "a=2".to_owned()];
        let found = by_name("--input", "input", &texts, &ios(&["a", "b"])).unwrap();
        assert_eq!(found, BTreeMap::from([(0, "2"), (1, "x=1.npy")]));
        let one = vec!["file.npy".to_owned()];
        assert_eq!(
            by_name("--input", "input", &one, &ios(&["a"])).unwrap(),
            BTreeMap::from([(0, "file.npy")])
        );
    }

    #[test]
    fn what_cannot_be_assigned_is_an_error_that_names_what_there_is() {
        let says = |texts: &[&str], known: &[&str], what: &str| {
            let texts: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
            let e = by_name("--input", "input", &texts, &ios(known)).unwrap_err().to_string();
            assert!(e.contains(what), "{e}");
        };
        says(&["c=1"], &["a", "b"], "the inputs are \"a\", \"b\"");
        says(&["c=1"], &["a"], "\"c\"");
        says(&["1"], &["a", "b"], "say which one");
        says(&["a=1", "a=2"], &["a", "b"], "twice");
        says(&["1"], &[], "0 inputs");
    }

    #[test]
    fn shapes_are_read() {
        assert_eq!(shape("1,3,2").unwrap().dims(), [1, 3, 2]);
        assert_eq!(shape("[1x3]").unwrap().dims(), [1, 3]);
        assert_eq!(shape("").unwrap().rank(), 0);
        for bad in ["1,-3", "a", "1,,2", "99999999999999999999", "9999999999,9999999999"] {
            assert!(shape(bad).is_err(), "{bad}");
        }
    }
}
