//! Inputs and outputs of a decoder.

use super::cache::CacheTensor;
use super::cross_io::CrossIo;
use super::error::GenerateError;
use super::input::{IntInput, LOGIT_ROWS, cache_info};
use super::scan::{SampleOn, ScanIo};
use super::settings::Config;
use crate::dtype::DType;
use crate::session::{Binding, IoInfo, Session};
use crate::shape::Dim;

/// The input with the places in the cache that tokens go to.
const CACHE_POSITIONS: &str = "cache_position";

/// The input that chooses a branch of a merged graph.
const BRANCH: &str = "use_cache_branch";

/// What a decoder is given and gives, but for its cache.
#[derive(Debug)]
pub(super) struct DecoderIo {
    pub(super) ids: IntInput,
    pub(super) mask: Option<IntInput>,
    pub(super) positions: Option<IntInput>,
    /// Places in the cache that the tokens of a run go to, without a dimension of sequences.
    pub(super) cache_positions: Option<IntInput>,
    /// The number of tokens in the cache.
    pub(super) past_len: Option<IntInput>,
    /// What chooses between two branches: with and without tokens in the cache.
    pub(super) branch: Option<String>,
    /// Whether the graph reads a cache, or only makes one.
    pub(super) reads_cache: bool,
    /// What it reads of an encoder.
    pub(super) cross: Option<CrossIo>,
    pub(super) logits: String,
    /// Number of logits of a token.
    pub(super) vocabulary: usize,
    /// What tells the pages of a cache in pages.
    pub(super) pages: Option<PagesIo>,
    /// What finds the tokens that may come next, where a device does.
    pub(super) scan: Option<ScanIo>,
}

/// Inputs of a graph with a cache in pages, whose tokens have one dimension.
#[derive(Clone, Debug)]
pub(super) struct PagesIo {
    pub(super) ends: IntInput,
    pub(super) past: IntInput,
    pub(super) table: IntInput,
    /// Tokens of a page, where the graph declares them.
    pub(super) rows: Option<usize>,
    /// The tokens whose logits are wanted, where the graph gives those of some.
    pub(super) wanted: Option<IntInput>,
}

impl DecoderIo {
    /// Finds what `config` names in the graph of `session`, and its cache. The vocabulary is not known yet.
    pub(super) fn find(
        session: &Session,
        config: &Config,
    ) -> Result<(Self, Vec<CacheTensor>), GenerateError> {
        DecoderIo::found(session, config, true)
    }

    /// As [`DecoderIo::find`] for a graph that makes a cache and reads none.
    pub(super) fn find_first(session: &Session, config: &Config) -> Result<Self, GenerateError> {
        Ok(DecoderIo::found(session, config, false)?.0)
    }

    fn found(
        session: &Session,
        config: &Config,
        reads_cache: bool,
    ) -> Result<(Self, Vec<CacheTensor>), GenerateError> {
        let names = &config.names;
        let (inputs, outputs) = (session.inputs(), session.outputs());
        let find = |name: &str| IntInput::find(&inputs, name);
        let ids =
            find(&names.ids)?.ok_or_else(|| GenerateError::no_such_name("input", &names.ids, &inputs))?;
        let (mask, positions) = (find(&names.mask)?, find(&names.positions)?);
        // One place for all sequences: only decoders whose sequences run in turns have it.
        let cache_positions = if config.encoder.is_some() { find(CACHE_POSITIONS)? } else { None };
        let past_len = if config.encoder.is_some() { find(&names.past_len)? } else { None };
        let branch = branch(&inputs)?;
        if !outputs.iter().any(|io| io.name == names.logits) {
            return Err(GenerateError::no_such_name("output", &names.logits, &outputs));
        }
        let [ends, past, table] = [0, 1, 2].map(|i| find(&names.pages[i]));
        let mut pages = match (ends?, past?, table?) {
            (Some(ends), Some(past), Some(table)) => {
                Some(PagesIo { ends, past, table, rows: None, wanted: find(LOGIT_ROWS)? })
            }
            _ => None,
        };
        let tensors = cache_tensors(config, [&inputs, &outputs], reads_cache, &mut pages)?;
        let cross = match &config.encoder {
            Some(encoder) => Some(CrossIo::find(&inputs, config, encoder, reads_cache)?),
            None => None,
        };
        let logits = names.logits.clone();
        let io = DecoderIo {
            ids,
            mask,
            positions,
            cache_positions,
            past_len,
            branch,
            reads_cache,
            cross,
            logits,
            vocabulary: 0,
            pages,
            scan: None,
        };
        let given = |name: &str| io.has(name) || tensors.iter().any(|t| t.past == name);
        match inputs.iter().find(|io| !given(&io.name)) {
            Some(io) => Err(GenerateError::UnknownInput { name: io.name.clone() }),
            None => Ok((io, tensors)),
        }
    }

    /// The session whose device finds the tokens that may come next, where that is asked for.
    pub(super) fn scanned(&mut self, session: Session, on: SampleOn) -> Result<Session, GenerateError> {
        let Some((session, scan)) = ScanIo::added(&session, &self.logits, on)? else { return Ok(session) };
        self.scan = Some(scan);
        Ok(session)
    }

    /// Whether `name` is an input that every run gives, apart from the cache.
    fn has(&self, name: &str) -> bool {
        let pages = self.pages.as_ref();
        let integers = [
            Some(&self.ids),
            self.mask.as_ref(),
            self.positions.as_ref(),
            self.cache_positions.as_ref(),
            self.past_len.as_ref(),
            pages.map(|p| &p.ends),
            pages.map(|p| &p.past),
            pages.map(|p| &p.table),
            pages.and_then(|p| p.wanted.as_ref()),
        ];
        integers.into_iter().flatten().any(|io| io.name == name)
            || self.branch.as_deref() == Some(name)
            || self.cross.as_ref().is_some_and(|cross| cross.has(name))
    }

    /// Copies logits of a run from byte `start` on.
    pub(super) fn copy_logits(
        &self,
        binding: &Binding<'static>,
        start: usize,
        bytes: &mut [u8],
    ) -> Result<(), GenerateError> {
        if binding.output_info(&self.logits)?.bytes() == bytes.len() {
            return Ok(binding.read_output(&self.logits, bytes)?);
        }
        let part = start..start + bytes.len();
        if let Ok(view) = binding.host_view(&self.logits)
            && let Some(row) = view.read()?.get(part.clone())
        {
            bytes.copy_from_slice(row);
            return Ok(());
        }
        if let Some(row) = binding.get_output(&self.logits)?.bytes().get(part) {
            bytes.copy_from_slice(row);
        }
        Ok(())
    }
}

/// The tensors of the cache of all layers; `pages` is told their rows.
fn cache_tensors(
    config: &Config,
    [inputs, outputs]: [&[IoInfo]; 2],
    reads_cache: bool,
    pages: &mut Option<PagesIo>,
) -> Result<Vec<CacheTensor>, GenerateError> {
    let mut tensors = Vec::new();
    for [past, present] in config.cache_names() {
        let io = inputs.iter().find(|io| io.name == past);
        if reads_cache && io.is_none() {
            return Err(GenerateError::no_such_name("input", past, inputs));
        }
        if !outputs.iter().any(|io| io.name == present) {
            return Err(GenerateError::no_such_name("output", present, outputs));
        }
        let Some(io) = io else { continue };
        let info = cache_info(io, config, pages.is_some())?;
        if let (Some(pages), Some(Dim::Known(rows))) =
            (pages.as_mut(), io.shape.as_ref().and_then(|shape| shape.0.get(1)))
        {
            pages.rows = Some(*rows);
        }
        tensors.push(CacheTensor { past, present, info, device: None });
    }
    Ok(tensors)
}

/// The input that chooses between a decoder with and one without tokens in its cache, as optimum names it.
fn branch(inputs: &[IoInfo]) -> Result<Option<String>, GenerateError> {
    let Some(input) = inputs.iter().find(|io| io.name == BRANCH) else { return Ok(None) };
    let name = input.name.clone();
    if let Some(got) = input.dtype.filter(|dtype| *dtype != DType::Bool) {
        return Err(GenerateError::DType { name, expected: "bool", got });
    }
    match &input.shape {
        Some(shape) if shape.0.len() != 1 || matches!(shape.0[0], Dim::Known(n) if n != 1) => {
            Err(GenerateError::Shape { name, expected: "[1]", got: shape.to_string() })
        }
        _ => Ok(Some(name)),
    }
}
