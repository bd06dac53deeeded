//! What a session and its bindings share.

use onepool::session::IoInfo;

/// A session and what it declares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) session: onepool::Session,
    pub(crate) inputs: Vec<IoInfo>,
    pub(crate) outputs: Vec<IoInfo>,
    pub(crate) strict: bool,
}
