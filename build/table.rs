//! Writes the Rust side: the table, one id per kernel; one params struct, one set of specialization ids, one choice of
//! variants and the shared codes per source file; and the SPIR-V, each kernel deflated.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use onepool_spirv::reflect::{BindingInfo, ParamInfo, SpecInfo};
use onepool_spirv::types::{ScalarType, ValueType};

use super::cache::write_atomic;
use super::shared::{Group, Member};
use super::source::Files;
use super::{Kernel, select, shared};

/// The compression level of the SPIR-V, from 0 to 10.
const LEVEL: u8 = 8;

/// Writes `kernels.rs`, `kernels.spv.deflate` and `reflect_skipped.txt` into `out`.
pub(super) fn write(
    out: &Path,
    files: &Files,
    kernels: &[Kernel<'_>],
    skipped: &[&String],
) -> Result<(), String> {
    let mut packed: Vec<u8> = Vec::new();
    let mut rows = String::new();
    let mut ids = String::new();
    for (at, kernel) in kernels.iter().enumerate() {
        let first = packed.len();
        let words = in_target_order(kernel.words.clone());
        packed.extend(miniz_oxide::deflate::compress_to_vec(bytemuck::cast_slice(&words), LEVEL));
        row(&mut rows, kernel, (first, packed.len() - first));
        line(&mut ids, 1, &format!("/// `{}`, from `{}`.", kernel.name, kernel.source.path));
        let name = kernel.name.to_uppercase();
        line(&mut ids, 1, &format!("pub const {name}: KernelId = KernelId({at});"));
    }
    let mut text = String::from("// Written by build.rs from shaders/.\n\n");
    line(&mut text, 0, "/// Every kernel, sorted by name.");
    line(&mut text, 0, &format!("pub static KERNELS: [KernelInfo; {}] = [", kernels.len()));
    text.push_str(&rows);
    line(&mut text, 0, "];\n");
    line(&mut text, 0, "/// Source files whose interface spirv-reflect could not cross-check.");
    line(&mut text, 0, &format!("pub const REFLECT_SKIPPED: usize = {};\n", skipped.len()));
    line(
        &mut text,
        0,
        "static PACKED: &[u8] = include_bytes!(concat!(env!(\"OUT_DIR\"), \"/kernels.spv.deflate\"));\n",
    );
    line(&mut text, 0, "/// The id of each kernel.\npub mod id {");
    line(&mut text, 1, "use super::KernelId;\n");
    text.push_str(&ids);
    line(&mut text, 0, "}\n");
    text.push_str(&params_module(kernels, &shared::groups(files)?)?);
    text.push_str(&spec_module(kernels)?);
    text.push_str(&select::module(kernels)?);
    text.push_str(&shared::module(files)?);
    write_changed(&out.join("kernels.spv.deflate"), &packed)?;
    write_changed(&out.join("kernels.rs"), text.as_bytes())?;
    let skipped: String = skipped.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    write_changed(&out.join("reflect_skipped.txt"), skipped.as_bytes())
}

fn row(rows: &mut String, kernel: &Kernel<'_>, packed: (usize, usize)) {
    let r = &kernel.reflection;
    line(rows, 1, "KernelInfo {");
    line(rows, 2, &format!("name: {:?},", kernel.name));
    line(rows, 2, &format!("family: {:?},", kernel.source.family));
    line(rows, 2, &format!("source: {:?},", kernel.source.path));
    line(rows, 2, &format!("version: {:?},", r.version));
    line(rows, 2, &format!("local_size: {:?},", r.local_size));
    line(rows, 2, &format!("local_size_spec: {:?},", r.local_size_spec));
    line(rows, 2, "bindings: &[");
    for binding in &r.bindings {
        line(rows, 3, &binding_row(binding));
    }
    line(rows, 2, "],");
    line(rows, 2, "params: &[");
    for param in &r.params {
        line(rows, 3, &param_row(param));
    }
    line(rows, 2, "],");
    line(rows, 2, &format!("params_bytes: {},", r.params_bytes));
    line(rows, 2, "spec: &[");
    for constant in &r.spec {
        line(rows, 3, &spec_row(constant));
    }
    line(rows, 2, "],");
    line(rows, 2, &format!("shared_bytes: {},", r.shared_bytes));
    line(rows, 2, &format!("atomics: {},", r.atomics));
    let capabilities: Vec<String> = r.capabilities.iter().map(|c| format!("Capability::{c:?}")).collect();
    line(
        rows,
        2,
        &format!(
            "requires: Requires::of({:?}, {}, &[{}]),",
            r.version,
            r.local_size_id,
            capabilities.join(", ")
        ),
    );
    line(rows, 2, &format!("capabilities: &[{}],", capabilities.join(", ")));
    line(rows, 2, &format!("local_size_id: {},", r.local_size_id));
    line(rows, 2, &format!("packed: {packed:?},"));
    line(rows, 2, "unpacked: OnceLock::new(),");
    line(rows, 1, "},");
}

fn binding_row(binding: &BindingInfo) -> String {
    let element = binding.element.map_or("None".to_owned(), |e| {
        let scalar = e.scalar.map_or("None".to_owned(), |s| format!("Some(ScalarType::{s:?})"));
        format!("Some(Element {{ scalar: {scalar}, components: {}, stride: {} }})", e.components, e.stride)
    });
    format!(
        "BindingInfo {{ set: {}, binding: {}, kind: BindingKind::{:?}, access: BindingAccess::{:?}, name: \
         Cow::Borrowed({:?}), element: {element} }},",
        binding.set, binding.binding, binding.kind, binding.access, binding.name
    )
}

fn param_row(param: &ParamInfo) -> String {
    let ty = param.ty;
    format!(
        "ParamInfo {{ name: Cow::Borrowed({:?}), offset_bytes: {}, ty: ValueType {{ scalar: \
         ScalarType::{:?}, components: {}, array: {:?} }} }},",
        param.name, param.offset_bytes, ty.scalar, ty.components, ty.array
    )
}

fn spec_row(constant: &SpecInfo) -> String {
    format!(
        "SpecInfo {{ id: {}, name: Cow::Borrowed({:?}), ty: ScalarType::{:?}, default_bits: {} }},",
        constant.id, constant.name, constant.ty, constant.default_bits
    )
}

fn params_module(kernels: &[Kernel<'_>], groups: &[Group]) -> Result<String, String> {
    let mut files: BTreeMap<&str, &Kernel<'_>> = BTreeMap::new();
    for kernel in kernels.iter().filter(|kernel| !kernel.reflection.params.is_empty()) {
        let first = files.entry(kernel.source.declaring("layout(push_constant)")).or_insert(kernel);
        if first.reflection.params != kernel.reflection.params {
            return Err(format!(
                "{}: kernels {} and {} have different Params; all that a file declares them for share one block",
                kernel.source.path, first.name, kernel.name
            ));
        }
    }
    let mut text = String::new();
    line(&mut text, 0, "/// The push constants that each source file declares, laid out as they are there.");
    line(&mut text, 0, "pub mod params {");
    shared::group_structs(&mut text, groups);
    for (stem, kernel) in files {
        let params = &kernel.reflection.params;
        let name = camel(stem);
        line(&mut text, 1, &format!("/// Push constants that file `{stem}` declares."));
        line(&mut text, 1, "#[repr(C)]");
        line(&mut text, 1, "#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]");
        line(&mut text, 1, &format!("pub struct {name} {{"));
        let members: Vec<(String, String, u32)> = shared::members(kernel.source, params, groups)?
            .into_iter()
            .map(|member| match member {
                Member::Param(param) => (field(&param.name), rust_type(param.ty), param.offset_bytes),
                Member::Group(member, name, offset) => (field(member), name.to_owned(), offset),
            })
            .collect();
        for (member, ty, offset) in &members {
            line(&mut text, 2, &format!("/// `{}`, at byte {offset}.", member.trim_start_matches("r#")));
            line(&mut text, 2, &format!("pub {member}: {ty},"));
        }
        line(&mut text, 1, "}");
        line(&mut text, 1, "const _: () = {");
        let bytes = kernel.reflection.params_bytes;
        line(&mut text, 2, &format!("assert!(size_of::<{name}>() == {bytes});"));
        for (member, _, offset) in &members {
            line(&mut text, 2, &format!("assert!(core::mem::offset_of!({name}, {member}) == {offset});"));
        }
        line(&mut text, 1, "};");
    }
    line(&mut text, 0, "}\n");
    Ok(text)
}

fn spec_module(kernels: &[Kernel<'_>]) -> Result<String, String> {
    let mut files: BTreeMap<&str, BTreeMap<u32, (&str, &Kernel<'_>)>> = BTreeMap::new();
    for kernel in kernels {
        for constant in &kernel.reflection.spec {
            // Declarations of an included file have the names of both.
            let declared = kernel.source.declaring(&format!("SPEC({},", constant.id));
            for stem in BTreeSet::from([kernel.source.stem.as_str(), declared]) {
                let constants = files.entry(stem).or_default();
                let (name, first) = *constants.entry(constant.id).or_insert((&constant.name, kernel));
                if name != constant.name {
                    return Err(format!(
                        "{}: specialization constant {} is {name} in kernel {} and {} in kernel {}",
                        kernel.source.path, constant.id, first.name, constant.name, kernel.name
                    ));
                }
            }
        }
    }
    let mut text = String::new();
    line(
        &mut text,
        0,
        "/// The ids of the specialization constants of each source file, and of those that included files declare.",
    );
    line(&mut text, 0, "pub mod spec {");
    for (stem, constants) in files.iter().filter(|(_, constants)| !constants.is_empty()) {
        line(&mut text, 1, &format!("/// Specialization constants of `{stem}`."));
        line(&mut text, 1, &format!("pub mod {} {{", field(stem)));
        for (id, (name, _)) in constants {
            line(&mut text, 2, &format!("/// `{name}`."));
            line(&mut text, 2, &format!("pub const {}: u32 = {id};", name.to_uppercase()));
        }
        line(&mut text, 1, "}");
    }
    line(&mut text, 0, "}");
    Ok(text)
}

pub(super) fn rust_type(ty: ValueType) -> String {
    let scalar = match ty.scalar {
        ScalarType::I32 => "i32",
        ScalarType::F32 => "f32",
        ScalarType::U64 => "u64",
        _ => "u32",
    };
    let vector = match ty.components {
        1 => scalar.to_owned(),
        n => format!("[{scalar}; {n}]"),
    };
    ty.array.map_or(vector.clone(), |(len, _)| format!("[{vector}; {len}]"))
}

/// A name as a Rust identifier.
pub(super) fn field(name: &str) -> String {
    const KEYWORDS: &[&str] = &[
        "as", "async", "await", "box", "dyn", "enum", "extern", "fn", "gen", "impl", "in", "let", "loop",
        "match", "mod", "move", "mut", "priv", "pub", "ref", "static", "trait", "try", "type", "unsafe",
        "use", "where", "yield",
    ];
    if KEYWORDS.contains(&name) { format!("r#{name}") } else { name.to_owned() }
}

pub(super) fn camel(stem: &str) -> String {
    let capital = |part: &str| {
        let mut chars = part.chars();
        chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect::<String>())
    };
    stem.split('_').map(capital).collect()
}

/// The words in the byte order of the machine that will run the table.
fn in_target_order(mut words: Vec<u32>) -> Vec<u32> {
    let big = std::env::var("CARGO_CFG_TARGET_ENDIAN").is_ok_and(|endian| endian == "big");
    if big != cfg!(target_endian = "big") {
        words.iter_mut().for_each(|word| *word = word.swap_bytes());
    }
    words
}

pub(super) fn line(text: &mut String, indent: usize, line: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{:1$}{line}", "", indent * 4);
}

/// An untouched file keeps its time, so the crate is not compiled again for nothing.
fn write_changed(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    write_atomic(path, bytes)
}
