//! What is said of errors.

use std::error::Error;

/// An error with its causes, one sentence.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        // Many messages quote their cause.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{said}")]
    struct Said {
        said: &'static str,
        source: Option<Box<Said>>,
    }

    #[test]
    fn causes_are_told_once() {
        let cause = |said, source| Some(Box::new(Said { said, source }));
        let disk = cause("the disk is full", None);
        let quoted = Said { said: "cannot write y: the disk is full", source: disk };
        assert_eq!(chain(&quoted), "cannot write y: the disk is full");
        let named =
            Said { said: "cannot write y", source: cause("no room", cause("the disk is full", None)) };
        assert_eq!(chain(&named), "cannot write y: no room: the disk is full");
    }
}
