//! Chat templates: messages to the text that a model was trained on.

use std::io;

use minijinja::{Environment, Error, ErrorKind, context};
use serde::Serialize;

use super::error::GenerateError;
use onepool_core::error::chain;

/// Steps that a template may take.
const MAX_STEPS: u64 = 1_000_000;

/// Bytes that a template may print.
const MAX_TEXT: usize = 64 << 20;

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who says it: "system", "user", "assistant".
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// What `role` says.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// The chat template of a model.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    tokens: [String; 2],
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// # Errors
    /// [`GenerateError::Template`] for what is no template.
    pub(super) fn new(template: String, tokens: [String; 2]) -> Result<Self, GenerateError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |said: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, said))
        });
        environment.add_template_owned(NAME, template).map_err(|e| problem(&e))?;
        Ok(ChatTemplate { environment, tokens })
    }

    /// The prompt for `messages`, up to where the answer begins.
    ///
    /// # Errors
    /// [`GenerateError::Template`].
    pub(super) fn prompt(&self, messages: &[Message]) -> Result<String, GenerateError> {
        let [bos_token, eos_token] = &self.tokens;
        let values = context! { messages, bos_token, eos_token, add_generation_prompt => true };
        let mut text = Limited(Vec::new());
        let template = self.environment.get_template(NAME).map_err(|e| problem(&e))?;
        template.render_captured_to(values, &mut text).map(drop).map_err(|e| problem(&e))?;
        String::from_utf8(text.0).map_err(|e| GenerateError::Template(e.to_string()))
    }
}

fn problem(e: &Error) -> GenerateError {
    GenerateError::Template(chain(e))
}

/// Text of a limited length.
struct Limited(Vec<u8>);

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) > MAX_TEXT {
            return Err(io::Error::other(format!("it prints more than {MAX_TEXT} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(template: &str, messages: &[Message]) -> Result<String, GenerateError> {
        ChatTemplate::new(template.to_owned(), ["<s>".into(), "</s>".into()])?.prompt(messages)
    }

    #[test]
    fn templates_are_filled_as_transformers_fills_them() {
        let template = "{{ bos_token }}{% for message in messages %}\n    {% if message['role'] == 'user' %}\n\
            U:{{ message.content.strip() }}\n    {% else %}\n{{ message['role'] | upper }}:{{ message['content'] }}{{ eos_token }}\n\
            \x20   {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}A:{% endif %}\n";
        let messages = [Message::new("system", "be <kind>"), Message::new("user", "  hi ")];
        assert_eq!(prompt(template, &messages).unwrap(), "<s>SYSTEM:be <kind></s>\nU:hi\nA:");
    }

    #[test]
    fn bad_templates_are_errors_with_a_sentence() {
        let said = |template: &str| prompt(template, &[Message::new("user", "x")]).unwrap_err().to_string();
        assert!(said("{% for x in %}").starts_with("the chat template: syntax error"));
        assert!(said("{{ messages").contains("syntax error"));
        assert!(said("{{ raise_exception('roles must alternate') }}").contains("roles must alternate"));
        assert!(said("{{ nothing.there.at_all }}").contains("undefined"));
        let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(said(endless).contains("fuel"), "{}", said(endless));
        assert!(said("{% for a in range(99) %}{{ 'x' * 9999999 }}{% endfor %}").contains("more than"));
        assert!(said("{{ 'x' * 999999999999 }}").contains("too large"));
        let deep = format!("{}1{}", "{{ (".repeat(5000), ") }}".repeat(5000));
        assert!(prompt(&deep, &[]).is_err());
        let nested = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
        assert!(prompt(&nested, &[]).is_err());
    }
}
