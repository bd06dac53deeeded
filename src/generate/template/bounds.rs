//! Filters and methods that could make one value of any size, bounded.

use minijinja::value::Rest;
use minijinja::{Environment, Error, State, Value, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::limits::{MAX_ELEMENTS, MAX_VALUE, check, wrong};
use super::python::{string, to_json};

/// Puts bounded filters and methods in the place of those of the library.
pub(super) fn bound(environment: &mut Environment<'_>) {
    let mut add = |name: &'static str, inner: Value| {
        environment.add_filter(name, move |state: &State<'_, '_>, args: Rest<Value>| {
            check(&args)?;
            check_result(inner.call(state, &args)?)
        });
    };
    add("list", Value::from_function(filters::list));
    add("sort", Value::from_function(filters::sort));
    add("unique", Value::from_function(filters::unique));
    add("reverse", Value::from_function(filters::reverse));
    add("sum", Value::from_function(filters::sum));
    add("min", Value::from_function(filters::min));
    add("max", Value::from_function(filters::max));
    add("last", Value::from_function(filters::last));
    add("map", Value::from_function(filters::map));
    add("select", Value::from_function(filters::select));
    add("reject", Value::from_function(filters::reject));
    add("selectattr", Value::from_function(filters::selectattr));
    add("rejectattr", Value::from_function(filters::rejectattr));
    add("groupby", Value::from_function(filters::groupby));
    add("dictsort", Value::from_function(filters::dictsort));
    add("items", Value::from_function(filters::items));
    add("split", Value::from_function(filters::split));
    add("lines", Value::from_function(filters::lines));
    add("escape", Value::from_function(filters::escape));
    add("e", Value::from_function(filters::escape));
    add("pprint", Value::from_function(filters::pprint));
    for (name, inner) in
        [("batch", Value::from_function(filters::batch)), ("slice", Value::from_function(filters::slice))]
    {
        environment.add_filter(name, move |state: &State<'_, '_>, args: Rest<Value>| {
            check(&args)?;
            if largest(&args).is_some_and(|parts| parts > MAX_ELEMENTS) {
                return Err(wrong(format!("a list has at most {MAX_ELEMENTS} parts")));
            }
            inner.call(state, &args)
        });
    }
    let indent = Value::from_function(filters::indent);
    environment.add_filter("indent", move |state: &State<'_, '_>, args: Rest<Value>| {
        let lines = args.first().and_then(Value::as_str).map_or(1, |text| text.lines().count().max(1));
        let named = args.last().and_then(|args| args.get_attr("width").ok()?.as_usize());
        let width = largest(&args).max(named).unwrap_or(0);
        if lines.saturating_mul(width) > MAX_VALUE {
            return Err(wrong(format!("an indent of {width} makes a text of more than {MAX_VALUE} bytes")));
        }
        check(&args)?;
        indent.call(state, &args)
    });
    let format = Value::from_function(filters::format);
    environment.add_filter("format", move |state: &State<'_, '_>, args: Rest<Value>| {
        check(&args)?;
        check_format(args.first().and_then(Value::as_str).unwrap_or_default(), &args)?;
        check_result(format.call(state, &args)?)
    });
    environment.add_filter("string", string);
    environment.add_filter("tojson", to_json);
    environment.add_filter("join", join);
    environment.add_filter("replace", replaced);
    environment.set_unknown_method_callback(call_method);
}

/// Calls a method of a value.
fn call_method(state: &State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    check(std::slice::from_ref(value))?;
    check(args)?;
    match (method, value.as_str()) {
        ("replace", Some(text)) => {
            let (from, to, count): (&str, &str, Option<i64>) = minijinja::value::from_args(args)?;
            replace(text, from, to, count).map(Value::from)
        }
        ("join", Some(between)) => {
            let (values,): (&Value,) = minijinja::value::from_args(args)?;
            join(values, Some(between)).map(Value::from)
        }
        ("count", Some(text)) => {
            let (of,): (&str,) = minijinja::value::from_args(args)?;
            // An empty text is between all letters.
            Ok(Value::from(if of.is_empty() { text.chars().count() + 1 } else { text.matches(of).count() }))
        }
        ("format", Some(text)) => {
            check_format(text, args)?;
            check_result(unknown_method_callback(state, value, method, args)?)
        }
        _ => check_result(unknown_method_callback(state, value, method, args)?),
    }
}

/// The largest number of `args`.
fn largest(args: &[Value]) -> Option<usize> {
    args.iter().filter_map(Value::as_usize).max()
}

fn check_result(value: Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) if text.len() > MAX_VALUE => {
            Err(wrong(format!("a filter makes a text of more than {MAX_VALUE} bytes")))
        }
        _ => Ok(value),
    }
}

/// Widths in a text that says how values are written, or among the values.
fn check_format(text: &str, args: &[Value]) -> Result<(), Error> {
    let digits = text.split(|letter: char| !letter.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let told = digits.map(|digits| digits.parse().unwrap_or(usize::MAX)).max();
    let given = largest(args).filter(|_| text.contains('*') || text.contains(":{"));
    let parts = text.matches(['%', '{']).count();
    match told.max(given).unwrap_or(0).saturating_mul(parts) > MAX_VALUE {
        true => Err(wrong("a width that is too large")),
        false => Ok(()),
    }
}

/// The filter `replace`.
fn replaced(text: &Value, from: &str, to: &str, count: Option<i64>) -> Result<String, Error> {
    replace(&string(text)?, from, to, count)
}

/// `text` with the first `count` of `from` replaced, or all.
fn replace(text: &str, from: &str, to: &str, count: Option<i64>) -> Result<String, Error> {
    let most = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let found = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() };
    let added = found.min(most).saturating_mul(to.len());
    if text.len().saturating_add(added) > MAX_VALUE {
        return Err(wrong(format!("a replacement makes a text of more than {MAX_VALUE} bytes")));
    }
    Ok(text.replacen(from, to, most))
}

/// Values as texts, with `between` between them.
fn join(values: &Value, between: Option<&str>) -> Result<String, Error> {
    let letters = values.as_str().map(|text| text.chars().map(Value::from).collect::<Vec<Value>>());
    let values = &letters.map_or_else(|| values.clone(), Value::from);
    let mut text = String::new();
    for (at, value) in values.try_iter()?.enumerate() {
        if at > 0 {
            text.push_str(between.unwrap_or_default());
        }
        match value.as_str() {
            Some(part) => text.push_str(part),
            None => text.push_str(&string(&value)?),
        }
        if text.len() > MAX_VALUE || at > MAX_ELEMENTS {
            return Err(wrong(format!("a text of a list has more than {MAX_VALUE} bytes")));
        }
    }
    Ok(text)
}
