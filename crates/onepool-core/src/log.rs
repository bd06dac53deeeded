//! What the library says by `tracing`, for applications that have no subscriber of their own: those in C and Python.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, SetGlobalDefaultError, set_global_default};
use tracing::{Event, Metadata, Subscriber};

pub use tracing::Level;

/// Targets of the library's crates begin so.
const OURS: &str = "onepool";

/// Who hears what the library says. Threads of the library call it, several at once.
pub trait Listener: Send + Sync + 'static {
    /// Whether it hears messages of this level now.
    fn wants(&self, level: Level) -> bool;

    /// Hears a message: who says it, as `onepool::tuning`, and what, with its fields.
    fn hear(&self, level: Level, target: &str, message: &str);
}

/// Has `listener` hear what the crates of this library say, for as long as the process lives.
///
/// # Errors
/// [`SetGlobalDefaultError`] where the process has a subscriber already.
pub fn listen(listener: impl Listener) -> Result<(), SetGlobalDefaultError> {
    set_global_default(Heard(listener))
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_event() && metadata.target().starts_with(OURS)
}

struct Heard<L>(L);

impl<L: Listener> Subscriber for Heard<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_ours(metadata) && self.0.wants(*metadata.level())
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // What is wanted may change at any time.
        if is_ours(metadata) { Interest::sometimes() } else { Interest::never() }
    }

    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        let Words { message, fields } = words;
        let said = if message.is_empty() { fields.trim_start().to_owned() } else { message + &fields };
        self.0.hear(*event.metadata().level(), event.metadata().target(), &said);
    }

    // Spans are not heard.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A message, and its fields as ` name=value`.
#[derive(Default)]
struct Words {
    message: String,
    fields: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    type Said = Arc<Mutex<Vec<(Level, String, String)>>>;

    struct Ear(Said);

    impl Listener for Ear {
        fn wants(&self, level: Level) -> bool {
            level <= Level::INFO
        }

        fn hear(&self, level: Level, target: &str, message: &str) {
            self.0.lock().unwrap().push((level, target.to_owned(), message.to_owned()));
        }
    }

    #[test]
    fn messages_have_their_level_their_target_and_their_fields() {
        let said = Said::default();
        let heard = Heard(Ear(Arc::clone(&said)));
        tracing::subscriber::with_default(heard, || {
            tracing::warn!(target: "onepool::test", bytes = 3, name = "x", "a message");
            tracing::info!(target: "onepool::test", error = %"y", "");
            tracing::debug!(target: "onepool::test", "is not wanted");
            tracing::error!(target: "another_crate", "is not ours");
            tracing::info_span!(target: "onepool::test", "span").in_scope(|| ());
        });
        let said = said.lock().unwrap();
        let said: Vec<_> = said.iter().map(|(l, t, m)| (*l, t.as_str(), m.as_str())).collect();
        assert_eq!(
            said,
            [
                (Level::WARN, "onepool::test", "a message bytes=3 name=\"x\""),
                (Level::INFO, "onepool::test", "error=y"),
            ]
        );
    }
}
