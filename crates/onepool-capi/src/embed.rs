//! `onepool_embedder`: vectors of texts.

use std::path::Path;

use onepool::generate::{EmbedOptions, Embedder};

use crate::arg::{In, Out, Room, Structure, Text};
use crate::cancel::token;
use crate::generate::{OpenError, built, failed};
use crate::handle::{Handle, Object, free, publish};
use crate::status::{Failure, Status, guard};
use crate::types::SessionOptions;

/// The most texts of a call.
const MOST: usize = 1 << 24;

/// `onepool_embed_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VectorOptions {
    /// Size of the structure.
    pub struct_size: usize,
    /// The name of what the model's settings put before texts.
    pub prompt: Text,
    /// So many elements of each vector; 0 for all.
    pub dims: usize,
    /// What ends it early.
    pub cancel: Handle,
}

// SAFETY: `repr(C)`, begins with its size, holds pointers that may be anything.
unsafe impl Structure for VectorOptions {}

/// What an `onepool_embedder` stands for.
#[derive(Debug)]
struct EmbedderObject(Embedder);

impl Object for EmbedderObject {
    const KIND: &'static str = "onepool_embedder";
}

/// Opens a model that makes one vector of a text, on devices.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_embedder_open(
    path: Text,
    opts: In<SessionOptions>,
    embedder: Out<Handle>,
) -> Status {
    guard(|| {
        let place = embedder.place("embedder")?;
        let path = path.required("path")?;
        let made =
            Embedder::open(path, |builder, _: &Path| built(builder, opts)).map_err(OpenError::failure)?;
        publish(EmbedderObject(made), place);
        Ok(())
    })
}

/// Frees an embedder. A call that is on its way goes on to its end.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_embedder_free(embedder: Handle) -> Status {
    free::<EmbedderObject>(embedder, "embedder")
}

/// Makes the vectors of `text_count` texts, one after another in `vectors`; `dims` gets the elements of one.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_embed(
    embedder: Handle,
    texts: In<Text>,
    text_count: usize,
    opts: In<VectorOptions>,
    vectors: Room<f32>,
    room: usize,
    dims: Out<usize>,
) -> Status {
    guard(|| {
        let place = dims.place("dims")?;
        vectors.check(room, "vectors")?;
        let object = embedder.get::<EmbedderObject>("embedder")?;
        let texts = texts.values(text_count, MOST, "texts")?.into_iter().enumerate();
        let texts =
            texts.map(|(i, text)| text.required(&format!("texts[{i}]"))).collect::<Result<Vec<_>, _>>()?;
        let mut options = EmbedOptions::default();
        if let Some(given) = opts.optional("options")? {
            options.prompt = given.prompt.optional("options.prompt")?;
            options.dims = (given.dims > 0).then_some(given.dims);
            options.cancel = token(given.cancel, "options.cancel")?;
        }
        let made = object
            .0
            .embed(&texts.iter().map(String::as_str).collect::<Vec<_>>(), &options)
            .map_err(failed)?;
        let values = made.vectors.to_f32s().map_err(|e| Failure::new(Status::Model, e.to_string()))?;
        vectors.fill(&values, room);
        place.set(made.vectors.shape().dims().last().copied().unwrap_or(0));
        Ok(())
    })
}
