//! The choice of a variant by types and flags: one struct per source file whose `variant:` lines name types.

use std::collections::BTreeMap;

use super::Kernel;
use super::source::Variant;
use super::table::{camel, field, line};

/// A dimension in which variants of one file differ.
#[derive(Debug)]
struct Field {
    name: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A type of elements.
    DType,
    /// A type of elements, or only their size.
    Unit,
    Number,
    Flag,
}

impl Field {
    /// The Rust pattern of its value in `variant`.
    fn value(&self, variant: &Variant) -> String {
        let defined = variant.defines.iter().find(|(name, _)| *name == self.name).map(|(_, value)| value);
        let named = variant.types.iter().find(|(name, _)| *name == self.name).map(|(_, ty)| ty.rust);
        match (self.kind, named) {
            (Kind::Flag, _) => defined.is_some().to_string(),
            (Kind::Number, _) => defined.cloned().unwrap_or_default(),
            (Kind::Unit, Some(ty)) if ty.starts_with("DType") => format!("Unit::Of({ty})"),
            (Kind::DType | Kind::Unit, ty) => ty.unwrap_or_default().to_owned(),
        }
    }

    fn rust_type(&self) -> &'static str {
        match self.kind {
            Kind::DType => "DType",
            Kind::Unit => "Unit",
            Kind::Number => "u32",
            Kind::Flag => "bool",
        }
    }
}

/// The module `variants`.
pub(super) fn module(kernels: &[Kernel<'_>]) -> Result<String, String> {
    let mut files: BTreeMap<&str, &Kernel<'_>> = BTreeMap::new();
    for kernel in kernels {
        files.entry(&kernel.source.stem).or_insert(kernel);
    }
    let mut text = String::new();
    line(&mut text, 0, "/// The variants of each source file, by what tells them apart.");
    line(&mut text, 0, "pub mod variants {");
    line(&mut text, 1, "use super::{DType, KernelId, NoKernel, Unit, id};");
    for (stem, kernel) in files {
        let source = kernel.source;
        if source.variants.iter().any(|variant| !variant.types.is_empty()) {
            let fields = fields(&source.variants).map_err(|message| format!("{}: {message}", source.path))?;
            selector(&mut text, stem, &source.path, &source.variants, &fields);
        }
    }
    line(&mut text, 0, "}\n");
    Ok(text)
}

/// Types, then numbers, then flags. A flag that the fields before it imply is left out.
fn fields(variants: &[Variant]) -> Result<Vec<Field>, String> {
    let mut macros: Vec<&str> = Vec::new();
    for (name, _) in variants.iter().flat_map(|variant| &variant.defines) {
        if !macros.contains(&name.as_str()) && !name.starts_with("EXT_") && !name.starts_with("VARIANT_") {
            macros.push(name);
        }
    }
    let kinds: Vec<(&str, Kind)> =
        macros.iter().filter_map(|name| Some((*name, kind(variants, name)?))).collect();
    let mut found: Vec<Field> = Vec::new();
    let take = |wanted: fn(Kind) -> bool| {
        let kinds = kinds.clone().into_iter().filter(move |(_, kind)| wanted(*kind));
        kinds.map(|(name, kind)| Field { name: name.to_owned(), kind })
    };
    found.extend(take(|kind| matches!(kind, Kind::DType | Kind::Unit)));
    found.extend(take(|kind| kind == Kind::Number));
    if let Some((field, variant)) = found
        .iter()
        .find_map(|field| Some((field, variants.iter().find(|variant| field.value(variant).is_empty())?)))
    {
        return Err(format!("kernel {} does not say {}", variant.kernel, field.name));
    }
    for flag in take(|kind| kind == Kind::Flag) {
        if first_pair(variants, &found, |a, b| flag.value(a) != flag.value(b)).is_some() {
            found.push(flag);
        }
    }
    match first_pair(variants, &found, |_, _| true) {
        Some((a, b)) => {
            Err(format!("kernels {} and {} have the same types, numbers and flags", a.kernel, b.kernel))
        }
        None => Ok(found),
    }
}

/// The first two variants that are equal in `fields` and differ as `differ` says.
fn first_pair<'v>(
    variants: &'v [Variant],
    fields: &[Field],
    differ: impl Fn(&Variant, &Variant) -> bool,
) -> Option<(&'v Variant, &'v Variant)> {
    variants.iter().enumerate().find_map(|(at, a)| {
        let same = |b: &&Variant| fields.iter().all(|field| field.value(a) == field.value(b)) && differ(a, b);
        variants.get(at + 1..)?.iter().find(same).map(|b| (a, b))
    })
}

/// The field of macro `name`, if it distinguishes variants.
fn kind(variants: &[Variant], name: &str) -> Option<Kind> {
    let types: Vec<_> =
        variants.iter().flat_map(|variant| &variant.types).filter(|(key, _)| key == name).collect();
    if !types.is_empty() {
        let numbers = types.iter().all(|(_, ty)| ty.rust.starts_with("DType"));
        return Some(if numbers { Kind::DType } else { Kind::Unit });
    }
    let mut values = variants
        .iter()
        .flat_map(|variant| &variant.defines)
        .filter(|(key, _)| key == name)
        .map(|(_, value)| value);
    if values.clone().all(|value| value == "1") {
        return Some(Kind::Flag);
    }
    values.all(|value| value.parse::<u32>().is_ok()).then_some(Kind::Number)
}

fn selector(text: &mut String, stem: &str, path: &str, variants: &[Variant], fields: &[Field]) {
    let name = camel(stem);
    line(text, 1, &format!("/// What tells the variants of `{path}` apart."));
    line(text, 1, "#[derive(Clone, Copy, Debug, PartialEq, Eq)]");
    line(text, 1, &format!("pub struct {name} {{"));
    for member in fields {
        let what = match member.kind {
            Kind::Flag => "Whether it is defined",
            _ => "Its value",
        };
        line(text, 2, &format!("/// {what}: `{}`.", member.name));
        line(text, 2, &format!("pub {}: {},", rust_name(member), member.rust_type()));
    }
    line(text, 1, "}");
    line(text, 1, &format!("impl {name} {{"));
    line(text, 2, "/// The kernel.");
    line(text, 2, "///");
    line(text, 2, "/// # Errors");
    line(text, 2, "/// [`NoKernel`] where there is none of these types and flags.");
    line(text, 2, "pub fn id(self) -> Result<KernelId, NoKernel> {");
    line(text, 3, "match self {");
    for variant in variants {
        let values: Vec<String> =
            fields.iter().map(|member| format!("{}: {}", rust_name(member), member.value(variant))).collect();
        let id = variant.kernel.to_uppercase();
        line(text, 4, &format!("Self {{ {} }} => Ok(id::{id}),", values.join(", ")));
    }
    let list = |wanted: fn(Kind) -> bool, write: &dyn Fn(&Field) -> String| {
        let chosen: Vec<String> = fields.iter().filter(|member| wanted(member.kind)).map(write).collect();
        chosen.join(", ")
    };
    let types = list(|kind| matches!(kind, Kind::DType | Kind::Unit), &|member| {
        format!("&self.{}", rust_name(member))
    });
    let flags =
        list(|kind| kind == Kind::Flag, &|member| format!("({:?}, self.{})", member.name, rust_name(member)));
    line(text, 4, &format!("_ => Err(NoKernel::new({stem:?}, &[{types}], &[{flags}])),"));
    line(text, 3, "}");
    line(text, 2, "}");
    line(text, 1, "}");
}

fn rust_name(member: &Field) -> String {
    field(&member.name.to_lowercase())
}
