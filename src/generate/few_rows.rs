//! A session for runs of which few logits are wanted, as those of a prompt.

use super::error::GenerateError;
use super::io::DecoderIo;
use super::logit_rows::with_rows;
use super::scan::SampleOn;
use super::settings::Config;
use crate::session::Session;

/// The graph whose last product gets the wanted rows alone.
#[derive(Debug)]
pub(super) struct FewRows {
    pub(super) session: Session,
    pub(super) io: DecoderIo,
}

impl FewRows {
    /// For the graph of `session`, whose cache is in pages and which has a dimension of the batch inside where it
    /// `has_batch`; nothing where the logits are not those of a last product.
    pub(super) fn new(
        session: &Session,
        io: &DecoderIo,
        config: &Config,
        (has_batch, sample_on): (bool, SampleOn),
    ) -> Result<Option<Self>, GenerateError> {
        let graph = with_rows(session.graph(), &io.logits, i64::from(has_batch));
        let Some(session) = graph.map(|graph| session.with_graph(graph)) else { return Ok(None) };
        let mut io = DecoderIo::find(&session, config)?.0;
        let session = io.scanned(session, sample_on)?;
        Ok(Some(FewRows { session, io }))
    }

    /// With the number of logits of a token.
    pub(super) fn of(mut self, vocabulary: usize) -> Self {
        self.io.vocabulary = vocabulary;
        self
    }
}
