//! The shipped kernels, written by the build script from `shaders/`.

use std::borrow::Cow;
use std::sync::OnceLock;

use rspirv::spirv::Capability;

use super::{KernelId, KernelInfo, NoKernel, Requires, Unit};
use crate::dtype::DType;
use crate::files::hash::Digest;
use crate::spirv::{
    BindingAccess, BindingInfo, BindingKind, Element, ParamInfo, ScalarType, SpecInfo, ValueType,
};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The words of a kernel, of `bytes` of the blob from `first` on.
///
/// # Panics
/// The program's own data is damaged.
pub(super) fn words((first, bytes): (usize, usize)) -> Vec<u32> {
    match miniz_oxide::inflate::decompress_to_vec(&PACKED[first..first + bytes]) {
        Ok(words) => words
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
            .collect(),
        Err(error) => panic!("the kernels of this program are damaged: {error}"),
    }
}

/// The hash of all kernels' code.
pub fn digest() -> Digest {
    static DIGEST: OnceLock<Digest> = OnceLock::new();
    *DIGEST.get_or_init(|| Digest::of(PACKED))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use rspirv::dr::{Instruction, Operand};
    use rspirv::spirv::{Decoration, Op};

    use super::*;
    use crate::spirv::{check_module, reflect};

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(KERNELS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert!(KERNELS.len() <= usize::from(u16::MAX));
    }

    /// Kernels compute a function of the table by the same steps as the kernel of a node, so none may be contracted.
    #[test]
    fn functions_of_the_table_are_not_contracted() {
        let mut functions = BTreeSet::new();
        for info in &KERNELS {
            let module = rspirv::dr::load_words(info.spirv()).unwrap();
            let exact: BTreeSet<u32> = module
                .annotations
                .iter()
                .filter(|i| i.operands.get(1) == Some(&Operand::Decoration(Decoration::NoContraction)))
                .filter_map(|i| i.operands[0].id_ref_any())
                .collect();
            let name_of = |id: Option<u32>| {
                let named = |i: &&Instruction| i.class.opcode == Op::Name && i.operands[0].id_ref_any() == id;
                let text =
                    module.debug_names.iter().find(named)?.operands[1].unwrap_literal_string().to_owned();
                (text.starts_with("f_") || text.starts_with("own_")).then_some(text)
            };
            for function in &module.functions {
                let Some(name) = name_of(function.def_id()) else { continue };
                for i in function.all_inst_iter() {
                    let is_sum = matches!(i.class.opcode, Op::FAdd | Op::FSub | Op::FMul | Op::FDiv);
                    let id = i.result_id.unwrap_or(0);
                    assert!(!is_sum || exact.contains(&id), "{name} of {}: {i:?}", info.name);
                }
                functions.insert(name);
            }
        }
        assert!(functions.len() >= 10, "{functions:?}");
    }

    #[test]
    fn every_kernel_reflects_to_its_row() {
        for info in &KERNELS {
            assert_eq!(reflect(info.spirv()), Ok(info.reflection()), "{}", info.name);
            assert_eq!(check_module(info.spirv()), Ok(info.reflection()), "{}", info.name);
            let requires = Requires::of(info.version, info.local_size_id, info.capabilities);
            assert_eq!(info.requires, requires, "{}", info.name);
            assert!(!info.requires.contains(Requires::UNKNOWN), "{}: {}", info.name, info.requires);
        }
    }

    #[test]
    fn truncated_modules_are_refused() {
        for info in KERNELS.iter().take(8) {
            let words = info.spirv();
            assert!((0..words.len()).all(|len| check_module(&words[..len]).is_err()), "{}", info.name);
        }
    }

    #[test]
    fn every_shader_is_in_the_table() {
        let shaders = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
        let mut pending = vec![shaders];
        let mut files: BTreeSet<PathBuf> = BTreeSet::new();
        while let Some(folder) = pending.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.extension() {
                    _ if path.is_dir() => pending.push(path),
                    Some(extension) if extension == "comp" => {
                        files.insert(path);
                    }
                    _ => {}
                }
            }
        }
        let table = KERNELS.iter().map(|info| Path::new(env!("CARGO_MANIFEST_DIR")).join(info.source));
        assert_eq!(table.collect::<BTreeSet<_>>(), files);
    }

    #[test]
    fn rows_keep_the_conventions() {
        for info in &KERNELS {
            let name = info.name;
            let stem = info.source.rsplit('/').next().unwrap().strip_suffix(".comp").unwrap();
            let rest = name.strip_prefix(stem).unwrap();
            assert!(rest.is_empty() || rest.starts_with('_'), "{name}");
            assert_eq!(info.source, format!("shaders/{}/{stem}.comp", info.family));
            assert!(
                info.bindings.iter().enumerate().all(|(at, b)| (b.set, b.binding) == (0, at as u32)),
                "{name}"
            );
            assert!(info.params_bytes <= 128, "{name}");
            assert!(info.spec.windows(2).all(|pair| pair[0].id < pair[1].id), "{name}");
            assert!(info.spec.iter().all(|constant| !constant.name.is_empty()), "{name}");
        }
    }
}
