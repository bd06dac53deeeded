//! Definitions that shaders and Rust share: enumerations and numbers that a shader defines and Rust gets, and groups
//! of parameters that several files have.

use std::collections::{BTreeMap, BTreeSet};

use onepool_spirv::reflect::ParamInfo;
use onepool_spirv::types::{ScalarType, ValueType};

use super::source::{Files, Source};
use super::table::{camel, line};

/// The shared definitions of one file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shared {
    enums: Vec<Enum>,
    numbers: Vec<Number>,
}

/// `// enum: Name`, then lines `#define NAME_FIRST 0u  // what it is`.
#[derive(Debug, PartialEq, Eq)]
struct Enum {
    name: String,
    /// Name, value, what it is.
    members: Vec<(String, u32, String)>,
}

/// A line `const uint NAME = 32u;`, `const float NAME = 1.5;`, `#define NAME 32u` or `#define NAME 0x20u` (a `u32` in Rust)
/// that ends in `// rust: what it is`, or in `// rust OTHER: what it is` where it has another name in Rust.
#[derive(Debug, PartialEq, Eq)]
struct Number {
    name: String,
    ty: &'static str,
    value: String,
    what: String,
}

/// Parameters that several files have: `// group: Name member  input taps`, then `#define NAME(INT)` whose lines each declare
/// one member of the Rust struct.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// The struct.
    name: String,
    /// The member of `Params` that it becomes.
    member: String,
    /// The macro that declares it.
    spelling: String,
    /// Members: name, type (none where the user of the macro gives it), names in the shader.
    lines: Vec<(String, Option<ScalarType>, Vec<String>)>,
}

impl Group {
    /// Where it begins in `params`, if they hold it.
    fn place(&self, params: &[ParamInfo]) -> Option<usize> {
        let wanted: Vec<(&str, Option<ScalarType>)> =
            self.lines.iter().flat_map(|(_, ty, names)| names.iter().map(|n| (n.as_str(), *ty))).collect();
        params.windows(wanted.len()).position(|window| {
            window.iter().zip(&wanted).all(|(param, (name, ty))| {
                let plain = param.ty.components == 1 && param.ty.array.is_none();
                let integer = matches!(param.ty.scalar, ScalarType::I32 | ScalarType::U32);
                param.name == *name && plain && ty.map_or(integer, |ty| ty == param.ty.scalar)
            })
        })
    }

    fn len(&self) -> usize {
        self.lines.iter().map(|(_, _, names)| names.len()).sum()
    }
}

/// A member of a params struct.
pub(super) enum Member<'p> {
    /// One parameter.
    Param(&'p ParamInfo),
    /// A group: its member's name, its struct, the byte where it begins.
    Group(&'p str, &'p str, u32),
}

/// The members of the struct of `source`.
pub(super) fn members<'p>(
    source: &Source,
    params: &'p [ParamInfo],
    groups: &'p [Group],
) -> Result<Vec<Member<'p>>, String> {
    let includes = source.includes();
    let texts: Vec<&str> = includes.iter().map(|(_, text)| *text).chain([source.text()]).collect();
    let mut begins = BTreeMap::new();
    for group in groups {
        let spelled = texts.iter().flat_map(|text| text.lines()).any(|line| {
            let code = line.split("//").next().unwrap_or_default().trim_start();
            !code.starts_with('#') && code.split(|c: char| !is_name(c)).any(|word| word == group.spelling)
        });
        if spelled {
            let place = group.place(params).ok_or_else(|| {
                format!("{}: {} is spelled, but its members are not in Params", source.path, group.spelling)
            })?;
            begins.insert(place, group);
        }
    }
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(param) = params.get(at) {
        match begins.get(&at) {
            Some(group) => {
                found.push(Member::Group(&group.member, &group.name, param.offset_bytes));
                at += group.len();
            }
            None => {
                found.push(Member::Param(param));
                at += 1;
            }
        }
    }
    Ok(found)
}

/// The groups that `files` declare.
pub(super) fn groups(files: &Files) -> Result<Vec<Group>, String> {
    let mut found = Vec::new();
    for (path, text) in files {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if let Some(rest) = line.strip_prefix("// group:") {
                let body = lines.get(at + 1..).unwrap_or_default();
                found.push(group(rest, body).map_err(|message| format!("{path}:{}: {message}", at + 1))?);
            }
        }
    }
    Ok(found)
}

fn group(head: &str, body: &[&str]) -> Result<Group, String> {
    const FORM: &str = "a group is `// group: Name member  first second`, then a #define of as many lines";
    let mut words = head.split_whitespace().map(String::from);
    let (Some(name), Some(member)) = (words.next(), words.next()) else { return Err(FORM.to_owned()) };
    let define = body.first().and_then(|line| line.strip_prefix("#define ")).ok_or(FORM)?;
    let spelling: String = define.chars().take_while(|c| is_name(*c)).collect();
    let continued = body.iter().take_while(|line| line.trim_end().ends_with('\\')).count();
    let declared = body.get(1..=continued).unwrap_or_default();
    let names: Vec<String> = words.collect();
    if names.is_empty() || names.len() != declared.len() {
        return Err(FORM.to_owned());
    }
    let lines = names.into_iter().zip(declared).map(|(name, line)| {
        let words: Vec<&str> = line.split(|c: char| !is_name(c)).filter(|word| !word.is_empty()).collect();
        let ty = match words.first() {
            Some(&"uint") => Some(ScalarType::U32),
            Some(&"int") => Some(ScalarType::I32),
            Some(&"float") => Some(ScalarType::F32),
            _ => None,
        };
        (name, ty, words.iter().skip(1).map(|word| (*word).to_owned()).collect())
    });
    Ok(Group { name, member, spelling, lines: lines.collect() })
}

/// The structs of `groups`.
pub(super) fn group_structs(text: &mut String, groups: &[Group]) {
    for Group { name, spelling, lines, .. } in groups {
        line(text, 1, &format!("/// Parameters of every file that spells `{spelling}`."));
        line(text, 1, "#[repr(C)]");
        line(text, 1, "#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]");
        line(text, 1, &format!("pub struct {name} {{"));
        for (member, ty, names) in lines {
            line(text, 2, &format!("/// `{}`.", names.join("`, `")));
            let scalar = ty.unwrap_or(ScalarType::U32);
            let ty = ValueType { scalar, components: 1, array: Some((names.len() as u32, 4)) };
            line(text, 2, &format!("pub {member}: {},", super::table::rust_type(ty)));
        }
        line(text, 1, "}");
    }
}

/// The module `codes`: what each file shares, under the file's name.
pub(super) fn module(files: &Files) -> Result<String, String> {
    let mut text = String::new();
    line(&mut text, 0, "/// Enumerations and numbers of each source file that defines some for Rust.");
    line(&mut text, 0, "pub mod codes {");
    let mut stems = BTreeSet::new();
    for (path, source) in files {
        let shared = shared(source).map_err(|(at, message)| format!("{path}:{at}: {message}"))?;
        if shared == Shared::default() {
            continue;
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        let stem = name.split('.').next().unwrap_or(name);
        if !stems.insert(stem) {
            return Err(format!("{path}: another file of that name shares something with Rust too"));
        }
        line(&mut text, 1, &format!("/// Of `{path}`."));
        line(&mut text, 1, &format!("pub mod {stem} {{"));
        for Number { name, ty, value, what } in &shared.numbers {
            line(&mut text, 2, &format!("/// {what}"));
            line(&mut text, 2, &format!("pub const {name}: {ty} = {value};"));
        }
        for Enum { name, members } in &shared.enums {
            line(&mut text, 2, &format!("/// `{name}`, as its number is in kernels."));
            line(&mut text, 2, "#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]");
            line(&mut text, 2, "#[repr(u32)]");
            line(&mut text, 2, &format!("pub enum {name} {{"));
            for (member, value, what) in members {
                line(&mut text, 3, &format!("/// {what}"));
                line(&mut text, 3, &format!("{member} = {value},"));
            }
            line(&mut text, 2, "}");
        }
        line(&mut text, 1, "}");
    }
    line(&mut text, 0, "}");
    Ok(text)
}

fn shared(text: &str) -> Result<Shared, (usize, String)> {
    let mut found = Shared::default();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((at, line)) = lines.next() {
        let fail = |message: String| (at + 1, message);
        if let Some(name) = line.strip_prefix("// enum:") {
            let name = name.trim().to_owned();
            let prefix = format!("#define {}_", screaming(&name));
            let mut members = Vec::new();
            while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with(&prefix)) {
                let (name, value, what) = definition(line, &prefix)
                    .ok_or_else(|| fail(format!("`{line}` is not `{prefix}NAME 0u  // what it is`")))?;
                members.push((camel(&name.to_lowercase()), value, what));
            }
            let values: BTreeSet<u32> = members.iter().map(|(_, value, _)| *value).collect();
            if members.is_empty() || values.len() != members.len() {
                return Err(fail(format!("enum {name} needs lines `{prefix}NAME 0u` of different numbers")));
            }
            found.enums.push(Enum { name, members });
        } else if let Some((code, what)) = line.split_once("// rust") {
            let number = number(code, what).ok_or_else(|| {
                fail("a number for Rust is `const uint NAME = 1u;  // rust: what it is`".to_owned())
            })?;
            if found.numbers.iter().any(|known| known.name == number.name) {
                return Err(fail(format!("{} is given to Rust twice", number.name)));
            }
            found.numbers.push(number);
        }
    }
    Ok(found)
}

/// Name, value and comment of `<prefix>NAME 3u  // comment`.
fn definition(line: &str, prefix: &str) -> Option<(String, u32, String)> {
    let (code, what) = line.strip_prefix(prefix)?.split_once("//")?;
    let mut words = code.split_whitespace();
    let (name, value) = (words.next()?, words.next()?.strip_suffix('u')?.parse().ok()?);
    words.next().is_none().then_some(())?;
    Some((name.to_owned(), value, sentence(what)?))
}

/// The number that `code` defines and `what`, after `// rust`, describes.
fn number(code: &str, what: &str) -> Option<Number> {
    let (alias, what) = what.split_once(':')?;
    let code = code.replace(['=', ';'], " ");
    let words: Vec<&str> = code.split_whitespace().collect();
    let (name, value) = match words.as_slice() {
        ["#define", name, value] | ["const", "uint" | "int" | "float", name, value] => (*name, *value),
        _ => return None,
    };
    let whole: Option<usize> = value.strip_suffix('u').unwrap_or(value).parse().ok();
    let bits =
        value.strip_prefix("0x").and_then(|bits| u32::from_str_radix(bits.strip_suffix('u')?, 16).ok());
    let (ty, value) = match (whole, bits) {
        (Some(whole), _) => ("usize", whole.to_string()),
        (None, Some(bits)) => ("u32", format!("{bits:#010x}")),
        (None, None) => ("f32", value.parse::<f32>().ok().map(|number| format!("{number:?}"))?),
    };
    let alias = alias.trim();
    let name = if alias.is_empty() { name } else { alias };
    Some(Number { name: name.to_owned(), ty, value, what: sentence(what)? })
}

/// `what` with a capital and a full stop.
fn sentence(what: &str) -> Option<String> {
    let what = what.trim();
    let mut letters = what.chars();
    let first = letters.next()?;
    Some(first.to_uppercase().chain(letters).chain((!what.ends_with('.')).then_some('.')).collect())
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// `ZeroPoints` as `ZERO_POINTS`.
fn screaming(name: &str) -> String {
    let mut text = String::new();
    for (at, c) in name.chars().enumerate() {
        if at > 0 && c.is_uppercase() {
            text.push('_');
        }
        text.extend(c.to_uppercase());
    }
    text
}
