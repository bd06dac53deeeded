//! Settings of a server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::ServeError;

/// A model to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFile {
    /// The name that requests give.
    pub name: String,
    /// The file.
    pub path: PathBuf,
}

/// Certificate and key of the server, in PEM.
#[derive(Clone)]
pub struct Tls {
    /// The certificate, and those that it depends on.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Settings of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct Config {
    /// Where requests are answered; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where `/metrics` is answered over HTTP.
    pub metrics: Option<SocketAddr>,
    /// The models.
    pub models: Vec<ModelFile>,
    /// The device table of every model, as [`onepool::registry::Registry::open`] names devices. None: the default.
    pub devices: Vec<String>,
    /// Most rows of one run, where requests are gathered along the first axis; 1 gathers none.
    pub max_batch: usize,
    /// Longest time that a request waits for others to be gathered with.
    pub max_delay: Duration,
    /// Largest message in bytes. The outputs of a request are bounded by it too.
    pub max_message: usize,
    /// Requests of one model that may wait.
    pub queue: usize,
    /// Requests under way at once, of all models.
    pub requests: usize,
    /// Longest time of a request, from its first byte to its answer.
    pub timeout: Duration,
    /// Connections that are served.
    pub connections: usize,
    /// Requests at once on one connection.
    pub streams: u32,
    /// Runs of one model at once.
    pub workers: usize,
    /// Shared memory regions that may be registered.
    pub regions: usize,
    /// Where given, connections are encrypted.
    pub tls: Option<Tls>,
    /// Longest time that a shutdown waits for requests under way.
    pub grace: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: (Ipv4Addr::LOCALHOST, 8001).into(),
            metrics: None,
            models: Vec::new(),
            devices: Vec::new(),
            max_batch: 1,
            max_delay: Duration::from_micros(500),
            max_message: 64 << 20,
            queue: 256,
            requests: 1024,
            timeout: Duration::from_secs(60),
            connections: 16_384,
            streams: 128,
            workers: 2,
            regions: 1024,
            tls: None,
            grace: Duration::from_secs(30),
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), ServeError> {
        if self.models.is_empty() {
            return Err(ServeError::NoModel);
        }
        for (at, model) in self.models.iter().enumerate() {
            if self.models[..at].iter().any(|other| other.name == model.name) {
                return Err(ServeError::TwoModels { name: model.name.clone() });
            }
        }
        let numbers: [(&'static str, usize, usize); 8] = [
            ("max_batch", self.max_batch, 65_536),
            ("max_message", self.max_message, 2 << 30),
            ("queue", self.queue, 1 << 20),
            ("requests", self.requests, 1 << 20),
            ("connections", self.connections, 1 << 20),
            ("streams", self.streams as usize, 1 << 16),
            ("workers", self.workers, 256),
            ("regions", self.regions, 1 << 20),
        ];
        match numbers.into_iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            Some((name, value, most)) => Err(ServeError::Setting { name, value, most }),
            None => Ok(()),
        }
    }
}

/// The models at `path`: the file, or each `.onnx` file of a folder, named as the file without its ending.
///
/// # Errors
/// [`ServeError::Read`], and [`ServeError::NoModel`] for a folder without any.
pub fn models_at(path: &Path) -> Result<Vec<ModelFile>, ServeError> {
    let failed = |source| ServeError::Read { path: path.to_owned(), source };
    let named = |path: &Path| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        ModelFile { name, path: path.to_owned() }
    };
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![named(path)]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        if file.is_file() && file.extension().is_some_and(|end| end == "onnx") {
            found.push(named(&file));
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    if found.is_empty() { Err(ServeError::NoModel) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let models = vec![ModelFile { name: "a".to_owned(), path: "a.onnx".into() }];
        let good = Config { models, ..Config::default() };
        assert!(good.check().is_ok());
        let said = |config: Config| config.check().unwrap_err().to_string();
        assert!(said(Config { queue: 0, ..good.clone() }).contains("queue is 0"));
        assert!(said(Config { max_message: 3 << 30, ..good.clone() }).contains("max_message"));
        assert!(said(Config::default()).contains("model"));
        let twice = [&good.models[..], &good.models[..]].concat();
        assert!(said(Config { models: twice, ..good }).contains("\"a\""));
    }

    #[test]
    fn a_folder_has_the_models_of_its_files() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(models_at(folder.path()), Err(ServeError::NoModel)));
        for name in ["b.onnx", "a.onnx", "notes.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let names: Vec<String> = models_at(folder.path()).unwrap().into_iter().map(|m| m.name).collect();
        assert_eq!(names, ["a", "b"]);
        let one = models_at(&folder.path().join("b.onnx")).unwrap();
        assert_eq!((one.len(), one[0].name.as_str()), (1, "b"));
        assert!(matches!(models_at(&folder.path().join("none")), Err(ServeError::Read { .. })));
    }
}
