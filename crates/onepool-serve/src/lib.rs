//! The Open Inference Protocol, version 2, over gRPC: models of [`onepool`] for clients of other processes and machines.
//!
//! Tensors of local clients lie in system shared memory regions, which are mapped and imported once. A request that names
//! ranges of them is run in place: nothing is copied, and the answer says so.

mod admission;
mod bound;
pub mod config;
mod connections;
mod datatype;
pub mod error;
mod metrics;
mod model;
mod queue;
mod request;
mod run;
mod server;
mod service;
mod shm;

/// Messages, client and service of the protocol.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "code that is made of proto/inference.proto"
)]
pub mod proto {
    tonic::include_proto!("inference");
}

pub use config::{Config, ModelFile, Tls, models_at};
pub use error::ServeError;
pub use server::Server;
