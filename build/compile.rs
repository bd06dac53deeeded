//! One run of glslang: a source and its macros to SPIR-V, or to messages that name file and line.

use std::fmt::Write as _;

use glslang::error::GlslangError;
use glslang::include::{IncludeHandler, IncludeResult, IncludeType};
use glslang::{
    Compiler, CompilerOptions, ShaderInput, ShaderMessage, ShaderSource, ShaderStage, SourceLanguage,
    SpirvVersion, Target, VulkanVersion,
};

use super::source::{Files, Source, SpirvTarget, Variant, resolve};

/// The target of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// To be shipped.
    Kernel,
    /// To be read by spirv-reflect: SPIR-V 1.0, and no specialization constants.
    Reflected,
}

/// The text of `source` with the extension for `#include` and the macros after its `#version` line.
pub(super) fn expand(source: &Source, variant: &Variant, form: Form) -> Result<String, String> {
    let text = source.text();
    let version = text.lines().position(|line| line.trim_start().starts_with("#version"));
    let version = version.ok_or_else(|| format!("{}:1: there is no #version line", source.path))?;
    let mut expanded = String::with_capacity(text.len() + 256);
    for (at, line) in text.lines().enumerate() {
        expanded.push_str(line);
        expanded.push('\n');
        if at == version {
            expanded.push_str("#extension GL_GOOGLE_include_directive : require\n");
            if form == Form::Reflected {
                expanded.push_str("#define ONEPOOL_REFLECT 1\n");
            }
            for (name, value) in &variant.defines {
                // Writing to a string cannot fail.
                let _ = writeln!(expanded, "#define {name} {value}");
            }
            let _ = writeln!(expanded, "#line {}", at + 2);
        }
    }
    Ok(expanded)
}

/// Compiles `variant` of `source`.
pub(super) fn compile(source: &Source, variant: &Variant, form: Form) -> Result<Vec<u32>, String> {
    let (version, spirv_version) = match (form, source.target) {
        (Form::Reflected, _) => (VulkanVersion::Vulkan1_0, SpirvVersion::SPIRV1_0),
        (Form::Kernel, SpirvTarget::V1_3) => (VulkanVersion::Vulkan1_1, SpirvVersion::SPIRV1_3),
        (Form::Kernel, SpirvTarget::V1_6) => (VulkanVersion::Vulkan1_3, SpirvVersion::SPIRV1_6),
    };
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan { version, spirv_version },
        version_profile: None,
        messages: ShaderMessage::DEFAULT,
    };
    let fail = |error: GlslangError| messages(&source.path, &variant.kernel, &error);
    let compiler = Compiler::acquire().ok_or("glslang could not be initialized")?;
    let text = ShaderSource::from(expand(source, variant, form)?);
    let mut includer = Includer { files: &source.files, root: &source.path };
    let no_defines: Option<&[(&str, Option<&str>)]> = None;
    let input = ShaderInput::new(&text, ShaderStage::Compute, &options, no_defines, Some(&mut includer));
    compiler.create_shader(input.map_err(fail)?).and_then(|shader| shader.compile()).map_err(fail)
}

struct Includer<'s> {
    files: &'s Files,
    root: &'s str,
}

impl IncludeHandler for Includer<'_> {
    fn include(&mut self, _: IncludeType, name: &str, includer: &str, _: usize) -> Option<IncludeResult> {
        let includer = if self.files.contains_key(includer) { includer } else { self.root };
        let (path, text) = resolve(self.files, includer, name)?;
        Some(IncludeResult { name: path.to_owned(), data: text.to_owned() })
    }
}

/// Turns glslang's log (`ERROR: 0:12: 'x' : undeclared identifier`) into `path:12: 'x' : undeclared ..`.
fn messages(path: &str, kernel: &str, error: &GlslangError) -> String {
    let log = match error {
        GlslangError::PreprocessError(log)
        | GlslangError::ParseError(log)
        | GlslangError::MapIoError(log)
        | GlslangError::LinkError(log) => &log.log,
        other => return format!("{path}:1: {other} (kernel {kernel})"),
    };
    let mut lines = Vec::new();
    for line in log.lines() {
        let Some(message) = line.strip_prefix("ERROR: ") else { continue };
        if message.contains("compilation terminated") || message.contains("compilation errors") {
            continue;
        }
        let located = message.split_once(':').and_then(|(file, rest)| {
            let (line, text) = rest.split_once(':')?;
            let line: usize = line.parse().ok()?;
            let file = if file.parse::<usize>().is_ok() || file.is_empty() { path } else { file };
            Some(format!("{file}:{line}: {} (kernel {kernel})", text.trim()))
        });
        match located {
            Some(located) => lines.push(located),
            None => lines.push(format!("{path}:1: {message} (kernel {kernel})")),
        }
    }
    if lines.is_empty() {
        lines.push(format!("{path}:1: {} (kernel {kernel})", log.trim()));
    }
    lines.join("\n")
}
