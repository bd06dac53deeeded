//! Which of a folder's files is its graph.

use std::path::{Path, PathBuf};

use super::error::GenerateError;

/// Ends of the names that transformers.js gives to graphs with other types of weights, those with the fewest bytes first.
const VARIANTS: [&str; 6] = ["q4f16", "q4", "fp16", "quantized", "int8", "uint8"];

/// Folders with graphs in a model's folder.
const FOLDERS: [&str; 2] = ["", "onnx/"];

/// Which graph of a folder is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GraphFile {
    /// The first that there is.
    Any,
    /// One with this end of its name.
    Variant(String),
    /// The file, from the folder on.
    File(PathBuf),
}

impl GraphFile {
    /// The folder of a model, and its graph: `path` is the one or the other.
    pub(super) fn of(path: &Path) -> (PathBuf, GraphFile) {
        let named =
            path.file_name().filter(|_| path.extension().is_some_and(|end| end == "onnx") && path.is_file());
        let Some(name) = named else { return (path.to_owned(), GraphFile::Any) };
        let or_here = |folder: &Path| match folder.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => folder.to_owned(),
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        let has_settings =
            ["genai_config.json", "config.json"].iter().any(|file| or_here(parent).join(file).is_file());
        match parent
            .parent()
            .filter(|_| !has_settings && parent.file_name().is_some_and(|name| name == "onnx"))
        {
            Some(folder) => (or_here(folder), GraphFile::File(Path::new("onnx").join(name))),
            None => (or_here(parent), GraphFile::File(PathBuf::from(name))),
        }
    }

    /// The graph with the name `end`.
    pub(super) fn variant(end: &str) -> Result<Self, GenerateError> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
        if end.is_empty() || !end.chars().all(is_part) {
            let what =
                format!("the variant {end:?}: it is the end of a file's name, as {}", VARIANTS.join(", "));
            return Err(GenerateError::Unsupported(what));
        }
        Ok(GraphFile::Variant(end.to_owned()))
    }

    /// The kind of graph for the other files of a model: those of the same variant.
    pub(super) fn of_others(&self) -> GraphFile {
        let GraphFile::File(file) = self else { return self.clone() };
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let end =
            VARIANTS.into_iter().find(|end| stem.strip_suffix(end).is_some_and(|rest| rest.ends_with('_')));
        end.map_or(GraphFile::Any, |end| GraphFile::Variant(end.to_owned()))
    }

    /// The file in `folder`, whose name without its end is one of `stems`, the first ones first.
    pub(super) fn find(&self, folder: &Path, stems: &[&str]) -> Result<PathBuf, GenerateError> {
        let named = |end: &str| -> Vec<String> {
            let all = stems.iter().flat_map(|stem| FOLDERS.map(|folder| format!("{folder}{stem}{end}.onnx")));
            all.collect()
        };
        let expected = match self {
            GraphFile::File(file) => return Ok(file.clone()),
            GraphFile::Variant(end) => named(&format!("_{end}")),
            GraphFile::Any => {
                let others = VARIANTS.iter().flat_map(|end| named(&format!("_{end}")));
                named("").into_iter().chain(others).collect()
            }
        };
        match expected.iter().find(|file| folder.join(file).is_file()) {
            Some(file) => Ok(PathBuf::from(file)),
            None => Err(GenerateError::NoFile { folder: folder.to_owned(), expected }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_are_found_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("onnx")).unwrap();
        let put = |name: &str| std::fs::write(dir.path().join(name), []).unwrap();
        let stems = ["model", "decoder_model_merged"];
        let found = |file: &GraphFile| file.find(dir.path(), &stems).map_err(|e| e.to_string());
        assert!(found(&GraphFile::Any).unwrap_err().contains("onnx/model_q4f16.onnx"));
        for (name, any) in [
            ("onnx/model_quantized.onnx", "onnx/model_quantized.onnx"),
            ("onnx/decoder_model_merged_q4.onnx", "onnx/decoder_model_merged_q4.onnx"),
            ("onnx/model_q4f16.onnx", "onnx/model_q4f16.onnx"),
            ("onnx/model.onnx", "onnx/model.onnx"),
        ] {
            put(name);
            assert_eq!(found(&GraphFile::Any).unwrap(), Path::new(any));
        }
        let variant = |end: &str| found(&GraphFile::variant(end).unwrap());
        assert_eq!(variant("quantized").unwrap(), Path::new("onnx/model_quantized.onnx"));
        assert_eq!(variant("q4").unwrap(), Path::new("onnx/decoder_model_merged_q4.onnx"));
        assert!(variant("fp16").unwrap_err().contains("none of model_fp16.onnx, onnx/model_fp16.onnx"));
        assert!(GraphFile::variant("../x").is_err() && GraphFile::variant("").is_err());
    }

    #[test]
    fn a_graph_tells_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_owned();
        std::fs::create_dir(folder.join("onnx")).unwrap();
        let file = folder.join("onnx/decoder_model_merged_q4.onnx");
        assert_eq!(GraphFile::of(&file), (file.clone(), GraphFile::Any), "there is no such file");
        std::fs::write(&file, []).unwrap();
        let named = GraphFile::File("onnx/decoder_model_merged_q4.onnx".into());
        assert_eq!(GraphFile::of(&file), (folder.clone(), named.clone()));
        assert_eq!(named.of_others(), GraphFile::Variant("q4".to_owned()));
        assert_eq!(GraphFile::File("model.onnx".into()).of_others(), GraphFile::Any);
        std::fs::write(folder.join("onnx/config.json"), []).unwrap();
        let named = GraphFile::File("decoder_model_merged_q4.onnx".into());
        assert_eq!(GraphFile::of(&file), (folder.join("onnx"), named));
        assert_eq!(GraphFile::of(&folder), (folder, GraphFile::Any));
    }
}
