//! A compute and inference runtime that runs a graph directly on the application's own memory.
//!
//! It loads ONNX and Apache TVM graphs, plans them, and runs them on Vulkan and OpenCL devices, on the CPU, or on
//! several of these at once. Memory of the application is imported where the device allows it. For every
//! bound tensor a [verdict](memory::import::Verdict) tells which path it took and why.
//!
//! # A model on memory of your own
//!
//! A [`Session`] is a graph made ready on devices. A [`Binding`] ties memory to its inputs and outputs: it imports once
//! and runs many times.
//!
//! ```
//! use onepool::{DType, GraphBuilder, HostRegion, Memory, Session, ops};
//!
//! let mut graph = GraphBuilder::new("double");
//! let x = graph.input("x", DType::F32, [4.into()]);
//! let y = graph.op(ops::add(), &[x, x]);
//! graph.output("y", y);
//! let session = Session::builder().graph(graph.build()?).device("cpu").build()?;
//!
//! let input = HostRegion::new(16)?.into_shared();
//! let output = HostRegion::new(16)?.into_shared();
//! let mut binding =
//!     session.bind().input("x", Memory::region(&input)).output("y", Memory::region(&output)).build()?;
//! input.write()?.as_mut_slice_of::<f32>()?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
//! binding.run()?;
//! assert_eq!(output.read()?.as_slice_of::<f32>()?, [2.0, 4.0, 6.0, 8.0]);
//! for verdict in binding.verdicts() {
//!     println!("{verdict}");
//! }
//! # Ok::<(), onepool::Error>(())
//! ```
//!
//! `Session::builder().model("model.onnx")` takes a file in place of a graph.
//!
//! # Memory
//!
//! A [`HostRegion`] owns pages that every device can import. It has one owner and plain slices. A [`SharedRegion`] is
//! kept by `Arc` and open to devices; its bytes are reached through guards, which exclude what would race.
//!
//! ```
//! use onepool::HostRegion;
//!
//! let mut frame = HostRegion::new(4096)?;
//! frame.as_mut_slice().fill(7);
//! let frame = frame.into_shared();
//! let reading = frame.read()?;
//! assert_eq!(reading[4095], 7);
//! assert!(frame.write().is_err(), "the bytes are being read");
//! # Ok::<(), onepool::Error>(())
//! ```
//!
//! Borrowed slices are bound inside a scope, which ends when the devices are done with them:
//!
//! ```
//! # use onepool::{DType, GraphBuilder, Session, ops};
//! # let mut graph = GraphBuilder::new("double");
//! # let x = graph.input("x", DType::F32, [4.into()]);
//! # let y = graph.op(ops::add(), &[x, x]);
//! # graph.output("y", y);
//! # let session = Session::builder().graph(graph.build()?).device("cpu").build()?;
//! let (mine, mut result) = (vec![5.0f32; 4], vec![0.0f32; 4]);
//! session.scope(|s| s.bind().input("x", s.input(&mine)).output("y", s.output(&mut result)).build()?.run())?;
//! assert_eq!(result, [10.0; 4]);
//! # Ok::<(), onepool::Error>(())
//! ```
//!
//! # Graphs
//!
//! A [`GraphBuilder`] makes a graph of ONNX's operators ([`ops`]). Sizes may be symbols; a session plans for each set of
//! shapes that it meets.
//!
//! ```
//! use onepool::{DType, GraphBuilder, Session, Tensor, ops};
//!
//! let mut graph = GraphBuilder::new("scaled");
//! let x = graph.input("x", DType::F32, ["n".into()]);
//! let two = graph.constant("two", Tensor::scalar(2.0f32));
//! let y = graph.op(ops::mul(), &[x, two]);
//! graph.output("y", y);
//! let mut session = Session::builder().graph(graph.build()?).device("cpu").build()?;
//! session.set_input("x", &Tensor::new([3], &[1.0f32, 2.0, 3.0])?)?;
//! session.run()?;
//! assert_eq!(session.get_output("y")?.as_slice::<f32>()?, [2.0, 4.0, 6.0]);
//! # Ok::<(), onepool::Error>(())
//! ```
//!
//! # Devices without a graph
//!
//! [`device::Context`] is a safe interface in OpenCL's words over any backend: buffers, kernels, queues, events.
//! [`device::Context::import`] makes a buffer of a region's own pages.
//!
//! ```
//! use onepool::HostRegion;
//! use onepool::backend::ContextDesc;
//! use onepool::registry::Registry;
//!
//! let context = Registry::with_defaults().open("sim", &ContextDesc::default())?;
//! let region = HostRegion::new(1 << 16)?.into_shared();
//! region.write()?.as_mut_slice_of::<f32>()?.fill(1.5);
//! let buffer = context.import(&region)?;
//! assert!(buffer.info().imported);
//! assert_eq!(buffer.map_read()?.as_slice_of::<f32>()?[0], 1.5);
//! # Ok::<(), onepool::Error>(())
//! ```
//!
//! # Backends
//!
//! A [`registry::Registry`] opens devices by name: `auto`, `cpu`, `vulkan`, `vulkan:1`, `opencl`, `sim`. A crate of your
//! own adds a backend with [`registry::Registry::register`]; see [`backend`].
//!
//! ```
//! use onepool::backend::ContextDesc;
//! use onepool::registry::Registry;
//!
//! let registry = Registry::with_defaults();
//! let cpu = registry.open("cpu", &ContextDesc::default())?;
//! assert_eq!(cpu.info().api, "cpu");
//! let error = registry.open("nothing", &ContextDesc::default()).unwrap_err();
//! assert!(error.to_string().starts_with("there is no device API \"nothing\""));
//! # Ok::<(), onepool::Error>(())
//! ```
//!
//! # Errors
//!
//! Each layer has its error type, and [`Error`] joins them. Bad input gives an error that says what is wrong, where, and
//! what to do; [`limits`] bounds what a model may ask for.
//!
//! # Cargo features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `vulkan` | yes | the Vulkan backend |
//! | `opencl` | yes | the OpenCL backend |
//! | `generate` | no | `generate`: text from language models |

mod dot;
pub mod frame;
#[cfg(feature = "generate")]
pub mod generate;
pub mod graph;
pub mod kernel;
pub mod loader;
pub mod operator;
pub mod ops;
pub mod plan;
pub mod session;

pub use onepool_core::{DType, Dim, Element, HostRegion, Shape, SharedRegion, SymShape, Tensor, TensorInfo};
pub use onepool_core::{dlpack, dtype, limits, memory, shape, tensor};
pub use onepool_expr as expr;
pub use onepool_hal::{backend, device, recording, registry, team};
pub use onepool_spirv as spirv;

pub use graph::{Graph, GraphBuilder};
pub use session::{Binding, Error, Memory, Session, tvm};

use onepool_core::{files, sync};
use onepool_expr::simd;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
