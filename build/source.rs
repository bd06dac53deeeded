//! Shader sources: where they are, what they include, which variants their leading comments ask for.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A SPIR-V version that a file may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SpirvTarget {
    /// SPIR-V 1.3, for Vulkan 1.1.
    V1_3,
    /// SPIR-V 1.6, for Vulkan 1.3.
    V1_6,
}

/// One kernel that a source makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    /// The kernel's name.
    pub(super) kernel: String,
    /// Macros, in the order of the line.
    pub(super) defines: Vec<(String, String)>,
    /// The macros among them that name a type of elements, with that type.
    pub(super) types: Vec<(String, &'static Type)>,
}

/// A type of elements that a variant names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Type {
    /// The word in a `variant:` line.
    pub(super) word: &'static str,
    /// The value of the macro.
    glsl: &'static str,
    /// The Rust expression that stands for it: a `DType`, or bytes of an element that is only moved.
    pub(super) rust: &'static str,
}

const fn number(word: &'static str, glsl: &'static str, rust: &'static str) -> Type {
    Type { word, glsl, rust }
}

/// Every type that a `variant:` line may name.
const TYPES: &[Type] = &[
    number("f32", "float", "DType::F32"),
    number("f16", "float16_t", "DType::F16"),
    number("bf16", "uint16_t", "DType::BF16"),
    number("f64", "double", "DType::F64"),
    number("i8", "int8_t", "DType::I8"),
    number("i16", "int16_t", "DType::I16"),
    number("i32", "int", "DType::I32"),
    number("i64", "int64_t", "DType::I64"),
    number("u8", "uint8_t", "DType::U8"),
    number("u16", "uint16_t", "DType::U16"),
    number("u32", "uint", "DType::U32"),
    number("u64", "uint64_t", "DType::U64"),
    number("bool", "uint8_t", "DType::Bool"),
    number("b8", "uint8_t", "Unit::Bytes(1)"),
    number("b16", "uint16_t", "Unit::Bytes(2)"),
    number("b32", "uint", "Unit::Bytes(4)"),
    number("b64", "uvec2", "Unit::Bytes(8)"),
    number("b128", "uvec4", "Unit::Bytes(16)"),
];

/// The directives of a source's leading comment lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directives {
    /// The kernels.
    pub(super) variants: Vec<Variant>,
    /// The SPIR-V version.
    pub(super) target: SpirvTarget,
}

/// Every file below `shaders/`, by its path from the repository root.
pub(super) type Files = BTreeMap<String, String>;

/// One `.comp` file.
#[derive(Debug)]
pub(super) struct Source {
    /// Path from the repository root, with `/`.
    pub(super) path: String,
    /// The folder under `shaders/`.
    pub(super) family: String,
    /// The file's name without `.comp`.
    pub(super) stem: String,
    /// The kernels it makes.
    pub(super) variants: Vec<Variant>,
    /// The SPIR-V version.
    pub(super) target: SpirvTarget,
    /// All files, for includes.
    pub(super) files: Arc<Files>,
}

impl Source {
    /// The source text.
    pub(super) fn text(&self) -> &str {
        self.files.get(&self.path).map_or("", String::as_str)
    }

    /// The file among this one and its includes with a line that begins with `text`, without folder and ending.
    pub(super) fn declaring(&self, text: &str) -> &str {
        let has = |source: &str| source.lines().any(|line| line.trim_start().starts_with(text));
        if has(self.text()) {
            return &self.stem;
        }
        let include = self.includes().into_iter().find(|(_, source)| has(source));
        include.and_then(|(path, _)| path.rsplit('/').next()?.strip_suffix(".glsl")).unwrap_or(&self.stem)
    }

    /// The files that this one may include, directly or not, in the order of their paths. Conditions are
    /// not evaluated, so this may name more than a compilation reads.
    pub(super) fn includes(&self) -> Vec<(&str, &str)> {
        let mut found: BTreeMap<&str, &str> = BTreeMap::new();
        let mut pending = vec![(self.path.as_str(), self.text())];
        while let Some((path, text)) = pending.pop() {
            for line in text.lines() {
                let Some(name) = include_name(line) else { continue };
                if let Some((path, text)) = resolve(&self.files, path, name)
                    && found.insert(path, text).is_none()
                {
                    pending.push((path, text));
                }
            }
        }
        found.into_iter().collect()
    }
}

/// Reads all shaders under `root/shaders`, sorted by path; `printed` are include files that the build makes, by their names.
pub(super) fn collect(root: &Path, printed: &[(&str, String)]) -> Result<Vec<Source>, String> {
    let mut files = Files::new();
    read_tree(root, "shaders", &mut files)?;
    for (name, text) in printed {
        files.insert(format!("shaders/include/{name}.glsl"), text.clone());
    }
    let files = Arc::new(files);
    let mut sources = Vec::new();
    for (path, text) in files.iter() {
        let Some(stem) = path.strip_suffix(".comp") else { continue };
        let parts: Vec<&str> = stem.split('/').collect();
        let &[_, family, stem] = parts.as_slice() else {
            return Err(format!("{path}: a kernel belongs into shaders/<family>/"));
        };
        if !is_word(stem) || stem.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(format!("{path}: a kernel's name is made of a-z, 0-9 and _, a letter first"));
        }
        if let Some(other) = sources.iter().find(|source: &&Source| source.stem == stem) {
            return Err(format!("{path}: {} has the same name", other.path));
        }
        let Directives { variants, target } =
            directives(stem, text).map_err(|(line, message)| format!("{path}:{line}: {message}"))?;
        sources.push(Source {
            path: path.clone(),
            family: family.to_owned(),
            stem: stem.to_owned(),
            variants,
            target,
            files: Arc::clone(&files),
        });
    }
    Ok(sources)
}

/// Parses the comment lines at the head of a source; an error comes with its line number.
pub(super) fn directives(stem: &str, text: &str) -> Result<Directives, (usize, String)> {
    let mut found = Directives { variants: Vec::new(), target: SpirvTarget::V1_3 };
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        let Some(comment) = line.strip_prefix("//") else {
            if line.is_empty() {
                continue;
            }
            break;
        };
        let fail = |message: String| Err((at + 1, message));
        let comment = comment.trim();
        if let Some(rest) = comment.strip_prefix("variant:") {
            let variant = variant(stem, rest).map_err(|message| (at + 1, message))?;
            if found.variants.iter().any(|known| known.kernel == variant.kernel) {
                return fail(format!("variant of kernel {} is declared twice", variant.kernel));
            }
            found.variants.push(variant);
        } else if let Some(rest) = comment.strip_prefix("spirv:") {
            found.target = match rest.trim() {
                "1.3" => SpirvTarget::V1_3,
                "1.6" => SpirvTarget::V1_6,
                other => return fail(format!("SPIR-V {other} is neither 1.3 nor 1.6")),
            };
        }
    }
    if found.variants.is_empty() {
        found.variants.push(Variant { kernel: stem.to_owned(), defines: Vec::new(), types: Vec::new() });
    }
    Ok(found)
}

fn variant(stem: &str, rest: &str) -> Result<Variant, String> {
    let mut words = rest.split_whitespace();
    let name = words.next().ok_or("a variant needs a name")?;
    if !is_word(name) {
        return Err(format!("variant name {name} is not made of a-z, 0-9 and _"));
    }
    let mut defines = vec![(format!("VARIANT_{name}"), "1".to_owned())];
    let mut types = Vec::new();
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, "1"));
        let identifier = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !identifier || key.is_empty() || key.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(format!("{key} is no macro name"));
        }
        if defines.iter().any(|(known, _)| known == key) {
            return Err(format!("macro {key} is defined twice"));
        }
        // `f16:uint16_t` is held as other than its own type of GLSL.
        let (named, held) = value.split_once(':').map_or((value, None), |(named, held)| (named, Some(held)));
        match (TYPES.iter().find(|ty| ty.word == named), held) {
            (None, Some(_)) => return Err(format!("{named} is no type of elements")),
            (None, None) => defines.push((key.to_owned(), value.to_owned())),
            (Some(ty), held) => {
                defines.push((key.to_owned(), held.unwrap_or(ty.glsl).to_owned()));
                types.push((key.to_owned(), ty));
            }
        }
    }
    Ok(Variant { kernel: format!("{stem}_{name}"), defines, types })
}

/// Finds `name` next to the including file, then in `shaders/include/`.
pub(super) fn resolve<'f>(files: &'f Files, includer: &str, name: &str) -> Option<(&'f str, &'f str)> {
    let folder = includer.rsplit_once('/').map_or("", |(folder, _)| folder);
    [format!("{folder}/{name}"), format!("shaders/include/{name}")]
        .iter()
        .find_map(|path| files.get_key_value(path))
        .map(|(path, text)| (path.as_str(), text.as_str()))
}

fn include_name(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split('"').next()
}

fn is_word(name: &str) -> bool {
    let letters = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    letters && !name.is_empty()
}

fn read_tree(root: &Path, folder: &str, files: &mut Files) -> Result<(), String> {
    let fail = |path: &str, error: std::io::Error| format!("{path}: {error}");
    for entry in std::fs::read_dir(root.join(folder)).map_err(|error| fail(folder, error))? {
        let entry = entry.map_err(|error| fail(folder, error))?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            return Err(format!("{folder}: a file name is not UTF-8"));
        };
        let path = format!("{folder}/{name}");
        if entry.path().is_dir() {
            read_tree(root, &path, files)?;
        } else if name.ends_with(".comp") || name.ends_with(".glsl") {
            let text = std::fs::read_to_string(entry.path()).map_err(|error| fail(&path, error))?;
            if text.contains('\0') {
                return Err(format!("{path}: the file holds a zero byte"));
            }
            files.insert(path, text);
        }
    }
    Ok(())
}
