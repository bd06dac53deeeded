//! What a session and its bindings share.

use std::sync::{Arc, Mutex};

use onepool::ops::movement::StridedView;
use onepool::session::IoInfo;
use onepool_core::sync::lock;

use crate::frame::Frames;

/// Inputs whose elements lie at strides.
pub(crate) type Views = Vec<(String, StridedView)>;

/// The most sets of strides that a session keeps plans for.
const MAX_VIEWS: usize = 8;

/// A session and what it declares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) session: onepool::Session,
    pub(crate) inputs: Vec<IoInfo>,
    pub(crate) outputs: Vec<IoInfo>,
    pub(crate) strict: bool,
    /// Inputs and outputs that are frames.
    pub(crate) frames: [Frames; 2],
    /// The same model for inputs at strides, those used last at the end.
    pub(crate) views: Mutex<Vec<(Views, Arc<onepool::Session>)>>,
}

impl Shared {
    /// The session that reads inputs at these strides.
    pub(crate) fn viewing(&self, views: &Views) -> Result<Arc<onepool::Session>, onepool::Error> {
        let mut kept = lock(&self.views);
        let found = kept.iter().position(|(known, _)| known == views).map(|at| kept.remove(at));
        let entry = match found {
            Some(entry) => entry,
            None => (views.clone(), Arc::new(self.session.with_views(views.clone())?)),
        };
        if kept.len() >= MAX_VIEWS {
            kept.remove(0);
        }
        let session = Arc::clone(&entry.1);
        kept.push(entry);
        Ok(session)
    }
}
