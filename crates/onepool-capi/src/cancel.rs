//! `onepool_cancel`, and the options of a run: what ends it early.

use std::time::Duration;

use onepool::session::{self, CancelToken};

use crate::arg::{In, Out};
use crate::handle::{Handle, Object, free, publish};
use crate::status::{Failure, Status, guard};
use crate::types::RunOptions;

/// What an `onepool_cancel` stands for.
#[derive(Debug)]
struct Cancel(CancelToken);

impl Object for Cancel {
    const KIND: &'static str = "onepool_cancel";
}

/// The options of a run, where there are any, and what cancels it, where that is the caller's.
pub(crate) fn options(
    options: In<RunOptions>,
) -> Result<Option<(session::RunOptions, Option<CancelToken>)>, Failure> {
    let Some(options) = options.optional("options")? else { return Ok(None) };
    let mut run = session::RunOptions::new();
    if options.time_limit_ns > 0 {
        run = run.time_limit(Duration::from_nanos(options.time_limit_ns));
    }
    let token = token(options.cancel, "options.cancel")?;
    if let Some(token) = &token {
        run = run.cancel(token);
    }
    Ok(Some((run, token)))
}

/// The token of a handle that may be null.
pub(crate) fn token(cancel: Handle, argument: &str) -> Result<Option<CancelToken>, Failure> {
    if cancel.is_null() { Ok(None) } else { Ok(Some(cancel.get::<Cancel>(argument)?.0.clone())) }
}

/// Makes a token that cancels every run that was given it.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_cancel_create(cancel: Out<Handle>) -> Status {
    guard(|| {
        publish(Cancel(CancelToken::new()), cancel.place("cancel")?);
        Ok(())
    })
}

/// Cancels the runs that were given the token, those of later too.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_cancel_trigger(cancel: Handle) -> Status {
    guard(|| {
        cancel.get::<Cancel>("cancel")?.0.cancel();
        Ok(())
    })
}

/// Frees a token. Runs that were given it go on.
#[unsafe(no_mangle)] // SAFETY: as above.
pub extern "C" fn onepool_cancel_free(cancel: Handle) -> Status {
    free::<Cancel>(cancel, "cancel")
}
