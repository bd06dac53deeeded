//! Kernels from GLSL.

use glslang::{
    Compiler, CompilerOptions, ShaderInput, ShaderMessage, ShaderSource, ShaderStage, SourceLanguage,
};
use glslang::{SpirvVersion, Target, VulkanVersion};

/// The SPIR-V of a compute shader.
pub(crate) fn compile(glsl: &str) -> Vec<u32> {
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan { version: VulkanVersion::Vulkan1_1, spirv_version: SpirvVersion::SPIRV1_3 },
        version_profile: None,
        messages: ShaderMessage::DEFAULT,
    };
    let compiler = Compiler::acquire().unwrap();
    let text = ShaderSource::from(glsl.to_owned());
    let no_defines: Option<&[(&str, Option<&str>)]> = None;
    let input = ShaderInput::new(&text, ShaderStage::Compute, &options, no_defines, None).unwrap();
    compiler.create_shader(input).and_then(|shader| shader.compile()).unwrap()
}
