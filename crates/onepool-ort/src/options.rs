//! Options of a session, which onnxruntime gives as texts under `ep.onepool.` or `ep.onepoolexecutionprovider.`.

use std::ffi::CStr;
use std::path::PathBuf;
use std::time::Duration;

use onepool::plan::Precision;
use onepool::registry::default_selector;
use onepool::session::NodePlacement;

use crate::failure::Failure;

/// The provider's name.
pub(crate) const EP_NAME: &CStr = c"OnepoolExecutionProvider";

/// What keys of the provider's options begin with; the second is where `add_provider_for_devices` puts them.
const PREFIXES: [&str; 2] = ["ep.onepool.", "ep.onepoolexecutionprovider."];

/// Keys, and what their values may be.
const KEYS: &[(&str, &str)] = &[
    ("device", "names of devices, with commas between them"),
    ("precision", "float32 or float16"),
    ("placement", "manual or auto"),
    ("strict", "0 or 1"),
    ("fallback", "0 or 1"),
    ("keep_imports", "0 or 1"),
    ("copy_threshold", "a number of bytes"),
    ("threads", "a number of threads"),
    ("time_limit_ms", "a number of milliseconds"),
    ("memory_limit", "a number of bytes"),
    ("cache", "a folder"),
];

/// Options of one session.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) devices: Vec<String>,
    pub(crate) precision: Precision,
    pub(crate) placement: NodePlacement,
    pub(crate) strict: bool,
    pub(crate) fallback: bool,
    /// Imports are kept between runs: the caller's memory stays mapped as long as the session lives.
    pub(crate) keep_imports: bool,
    pub(crate) copy_threshold: Option<u64>,
    pub(crate) threads: usize,
    pub(crate) time_limit: Option<Duration>,
    /// Bytes that allocations and imports may have in each heap of a device.
    pub(crate) memory_limit: Option<u64>,
    pub(crate) cache: Option<PathBuf>,
    /// Where onnxruntime asks for a model of `EPContext` nodes.
    pub(crate) context: Option<ContextModel>,
}

/// The model of `EPContext` nodes that a session is to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContextModel {
    /// Whether it holds what is compiled, or files next to it do.
    pub(crate) embed: bool,
    /// Its file; empty where onnxruntime names it after the model's.
    pub(crate) file: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            devices: Vec::new(),
            precision: Precision::F32,
            placement: NodePlacement::Manual,
            strict: false,
            fallback: true,
            keep_imports: false,
            copy_threshold: None,
            threads: 0,
            time_limit: None,
            memory_limit: None,
            cache: None,
            context: None,
        }
    }
}

impl Options {
    /// Reads all entries of a session's configuration; those of others are passed over.
    pub(crate) fn read(entries: &[(String, String)]) -> Result<Self, Failure> {
        let mut options = Options::default();
        let own =
            |key: &'_ str| PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix)).map(str::to_owned);
        for (key, value) in entries {
            if let Some(name) = own(key) {
                options.set(&name, value.trim())?;
            }
        }
        let entry = |name: &str| entries.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        if entry("ep.context_enable") == Some("1") {
            let embed = entry("ep.context_embed_mode") == Some("1");
            let file = entry("ep.context_file_path").unwrap_or("").into();
            options.context = Some(ContextModel { embed, file });
        }
        if options.devices.is_empty() {
            options.devices.push(default_selector());
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        let Some((_, expected)) = KEYS.iter().find(|(key, _)| *key == name) else {
            let known: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
            return Err(Failure::argument(format!(
                "there is no option {name:?}; there are {}",
                known.join(", ")
            )));
        };
        let wrong = || Failure::argument(format!("option {name:?} is {value:?}, expected {expected}"));
        let flag = || match value {
            "0" | "false" => Ok(false),
            "1" | "true" => Ok(true),
            _ => Err(wrong()),
        };
        let number = || value.parse::<u64>().map_err(|_| wrong());
        match name {
            "device" => {
                let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
                self.devices = names.map(str::to_owned).collect();
                if self.devices.is_empty() {
                    return Err(wrong());
                }
            }
            "precision" => {
                self.precision = match value {
                    "float32" | "f32" => Precision::F32,
                    "float16" | "f16" => Precision::F16,
                    _ => return Err(wrong()),
                }
            }
            "placement" => {
                self.placement = match value {
                    "manual" => NodePlacement::Manual,
                    "auto" => NodePlacement::Auto,
                    _ => return Err(wrong()),
                }
            }
            "strict" => self.strict = flag()?,
            "fallback" => self.fallback = flag()?,
            "keep_imports" => self.keep_imports = flag()?,
            "copy_threshold" => self.copy_threshold = Some(number()?),
            "threads" => {
                self.threads = usize::try_from(number()?).ok().filter(|n| *n <= 4096).ok_or_else(wrong)?
            }
            "memory_limit" => self.memory_limit = Some(number()?),
            "time_limit_ms" => self.time_limit = Some(Duration::from_millis(number()?)),
            _ => self.cache = Some(value).filter(|v| !v.is_empty()).map(PathBuf::from),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entries: &[(&str, &str)]) -> Result<Options, Failure> {
        let owned: Vec<_> = entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Options::read(&owned)
    }

    #[test]
    fn options_come_under_both_names_and_those_of_others_are_passed_over() {
        let all = read(&[
            ("ep.onepool.device", "sim, cpu"),
            ("ep.onepoolexecutionprovider.precision", "float16"),
            ("ep.onepool.strict", "1"),
            ("ep.onepool.copy_threshold", "4096"),
            ("ep.onepool.cache", "/c"),
            ("ep.onepool.memory_limit", "65536"),
            ("ep.other.device", "x"),
            ("session.disable_cpu_ep_fallback", "1"),
            ("ep.context_enable", "1"),
            ("ep.context_embed_mode", "0"),
        ])
        .unwrap();
        assert_eq!(all.devices, ["sim", "cpu"]);
        assert_eq!((all.precision, all.strict, all.fallback), (Precision::F16, true, true));
        assert_eq!((all.copy_threshold, all.cache), (Some(4096), Some("/c".into())));
        assert_eq!(all.memory_limit, Some(65536));
        assert_eq!(all.context, Some(ContextModel { embed: false, file: PathBuf::new() }));
        assert_eq!(read(&[]).unwrap().devices.len(), 1);
    }

    #[test]
    fn what_is_wrong_names_the_option_and_what_it_may_be() {
        let said = read(&[("ep.onepool.devise", "cpu")]).unwrap_err().message;
        assert!(said.contains("\"devise\"") && said.contains("device, precision"), "{said}");
        for (key, value) in [
            ("precision", "int8"),
            ("strict", "yes"),
            ("copy_threshold", "-1"),
            ("memory_limit", "1 GB"),
            ("threads", "99999"),
            ("placement", ""),
            ("device", " , "),
        ] {
            let said = read(&[(&format!("ep.onepool.{key}"), value)]).unwrap_err().message;
            assert!(said.contains(key) && said.contains("expected"), "{said}");
        }
    }
}
