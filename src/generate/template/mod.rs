//! Chat templates: messages to the text that a model was trained on.

mod bounds;
mod date;
mod limits;
mod python;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, Value};
use serde::{Deserialize, Serialize};

use super::error::GenerateError;
use onepool_core::error::chain;

/// Steps that a template may take.
const MAX_STEPS: u64 = 1_000_000;

/// Bytes that a template may print.
const MAX_TEXT: usize = 64 << 20;

/// Bytes that it may print to its own variables and macros, and again to the text.
const MAX_PRINTED: usize = 256 << 20;

/// Bytes that the longest text between two of its tags may have, printed in each step.
const MAX_PLAIN: u64 = 512 << 20;

/// One message of a chat: what a chat template reads of it, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct Message(Value);

impl Message {
    /// What `role` says: "system", "user", "assistant".
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        let fields = [("role", role.into()), ("content", content.into())];
        Message(fields.into_iter().map(|(name, text)| (name, Value::from(text))).collect())
    }

    /// A message with other fields: an object in JSON with a `role`, as OpenAI and the transformers library have them. So
    /// calls of tools (`tool_calls`) and what these answer are given to templates that know them. The order of fields is kept.
    ///
    /// # Errors
    /// [`GenerateError::Template`] for text that is no JSON or no object, or has no text as its `role`, or neither `content` nor `tool_calls`.
    pub fn from_json(json: &str) -> Result<Self, GenerateError> {
        serde_json::from_str(json).map_err(|e| GenerateError::Template(format!("a message: {e}")))
    }
}

impl TryFrom<Value> for Message {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        if value.kind() != ValueKind::Map {
            return Err(format!("expected an object, got: {}", value.kind()));
        }
        let field = |name: &str| value.get_attr(name).ok().filter(|field| !field.is_undefined());
        if field("role").is_none_or(|role| role.as_str().is_none()) {
            return Err("it has no text as its \"role\"".to_owned());
        }
        if field("content").or(field("tool_calls")).is_none() {
            return Err("it has no \"content\" and no \"tool_calls\"".to_owned());
        }
        Ok(Message(value))
    }
}

impl From<Message> for Value {
    fn from(message: Message) -> Value {
        message.0
    }
}

/// Variables that a chat template reads besides its messages, such as `tools` and `enable_thinking`.
#[derive(Clone, Debug, Default)]
pub struct TemplateArgs(BTreeMap<String, Value>);

impl TemplateArgs {
    /// Makes `name` a variable with a value in JSON. `tools` are a list of functions, as OpenAI and the
    /// transformers library describe them.
    ///
    /// # Errors
    /// [`GenerateError::Template`] for text that is no JSON, and for the messages, which a prompt gives.
    pub fn set(&mut self, name: impl Into<String>, json: &str) -> Result<(), GenerateError> {
        let name = name.into();
        if name == "messages" {
            return Err(GenerateError::Template("the messages are those of the prompt".to_owned()));
        }
        let value = serde_json::from_str(json);
        let value =
            value.map_err(|e| GenerateError::Template(format!("the value of {name:?} is no JSON: {e}")))?;
        self.0.insert(name, value);
        Ok(())
    }
}

/// The chat template of a model. It is read for each chat, so that a model without one that can be read has texts.
#[derive(Clone, Debug)]
pub(super) struct ChatTemplate {
    text: String,
    tokens: [String; 2],
}

const NAME: &str = "chat";

impl ChatTemplate {
    pub(super) fn new(text: &str, tokens: [String; 2]) -> Self {
        ChatTemplate { text: without_marks(text), tokens }
    }

    /// The prompt for `messages`, up to where the answer begins.
    pub(super) fn prompt(&self, messages: &[Message], args: &TemplateArgs) -> Result<String, GenerateError> {
        let environment = self.environment();
        let template = environment.template_from_named_str(NAME, &self.text).map_err(|e| problem(&e))?;
        let [bos_token, eos_token] = self.tokens.each_ref().map(|token| Value::from(token.as_str()));
        let mut values = BTreeMap::from([
            ("bos_token", bos_token),
            ("eos_token", eos_token),
            ("add_generation_prompt", Value::from(true)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ]);
        values.extend(args.0.iter().map(|(name, value)| (name.as_str(), value.clone())));
        values.insert("messages", messages.iter().map(|message| message.0.clone()).collect());
        let mut text = Limited(Vec::new());
        template.render_captured_to(Value::from_serialize(values), &mut text).map_err(|e| problem(&e))?;
        String::from_utf8(text.0).map_err(|e| GenerateError::Template(e.to_string()))
    }

    fn environment(&self) -> Environment<'_> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        let plain = longest_plain(&self.text).max(1) as u64;
        environment.set_fuel(Some(MAX_STEPS.min(MAX_PLAIN / plain)));
        environment.add_function("raise_exception", |said: String| -> Result<String, Error> {
            Err(limits::wrong(said))
        });
        environment.add_function("strftime_now", |format: String| date::now(&format));
        bounds::bound(&mut environment);
        let printed = AtomicUsize::new(0);
        environment.set_formatter(move |out, _, value| python::print(&mut Counted(out, &printed), value));
        environment
    }
}

/// The template without the tags of `generation` blocks, which mark what the model says for a training. What is between
/// them stays, and so does what they do to white space.
fn without_marks(template: &str) -> String {
    let (mut text, mut rest) = (String::new(), template);
    while let Some((at, end)) = rest.find("{%").and_then(|at| Some((at, at + rest[at..].find("%}")? + 2))) {
        let (before, tag) = (&rest[..at], &rest[at..end]);
        let word = tag[2..tag.len() - 2].trim_matches(|c: char| matches!(c, '-' | '+') || c.is_whitespace());
        text.push_str(before);
        match word {
            "generation" => text.push_str(&tag.replacen(word, "if true", 1)),
            "endgeneration" => text.push_str(&tag.replacen(word, "endif", 1)),
            _ => text.push_str(tag),
        }
        rest = &rest[end..];
    }
    text + rest
}

/// Bytes of the longest text between two tags.
fn longest_plain(template: &str) -> usize {
    let (mut longest, mut rest) = (0, template);
    while let Some(at) = rest.find('{') {
        let closer = match rest.as_bytes().get(at + 1) {
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            Some(b'#') => "#}",
            _ => {
                // A bracket of the text, which goes on.
                let next = ["{%", "{{", "{#"].iter().filter_map(|opener| rest.find(opener)).min();
                let Some(next) = next else { break };
                longest = longest.max(next);
                rest = &rest[next..];
                continue;
            }
        };
        longest = longest.max(at);
        match rest[at..].find(closer) {
            Some(end) => rest = &rest[at + end + 2..],
            None => break,
        }
    }
    longest.max(rest.len())
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

/// Counts what is printed.
struct Counted<'o, T>(&'o mut T, &'o AtomicUsize);

impl<T: fmt::Write> fmt::Write for Counted<'_, T> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let before = self.1.fetch_add(text.len(), Ordering::Relaxed);
        if before.saturating_add(text.len()) > MAX_PRINTED {
            return Err(fmt::Error);
        }
        self.0.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(template: &str, messages: &[Message], args: &[(&str, &str)]) -> Result<String, GenerateError> {
        let mut all = TemplateArgs::default();
        for (name, json) in args {
            all.set(*name, json)?;
        }
        ChatTemplate::new(template, ["<s>".into(), "</s>".into()]).prompt(messages, &all)
    }

    fn prompt(template: &str, messages: &[Message]) -> Result<String, GenerateError> {
        with(template, messages, &[])
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

    /// What `jinja2` makes of these, as the transformers library sets it up.
    #[test]
    fn values_are_printed_as_python_prints_them() {
        let messages = [Message::new("user", "a <b>&'\"é\n")];
        for (template, wanted) in [
            ("{{ messages | tojson }}", r#"[{"role": "user", "content": "a <b>&'\"é\n"}]"#),
            (
                "{{ messages[0] | tojson(ensure_ascii=true) }}",
                r#"{"role": "user", "content": "a <b>&'\"\u00e9\n"}"#,
            ),
            (
                "{{ {'b': [1, 2.0, none, true], 'a': {}} | tojson }}",
                r#"{"b": [1, 2.0, null, true], "a": {}}"#,
            ),
            ("{{ {'b': 1, 'a': []} | tojson(sort_keys=true) }}", r#"{"a": [], "b": 1}"#),
            ("{{ {'b': 1, 'a': [2]} | tojson(indent=1) }}", "{\n \"b\": 1,\n \"a\": [\n  2\n ]\n}"),
            ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
            ("{{ [1, 'a', none, true, [\"it's\"]] }}", r#"[1, 'a', None, True, ["it's"]]"#),
            (
                "{{ {'a': 1.5, 'b': 'x\\n'} }}|{{ none }}|{{ false }}|{{ nothing }}",
                r"{'a': 1.5, 'b': 'x\n'}|None|False|",
            ),
            ("{{ [1, none] | string }}|{{ ['a', 1, none] | join('-') }}", "[1, None]|a-1-None"),
            ("{{ tools is none }}{{ documents is none }}{{ tools is defined }}", "TrueTrueTrue"),
            (
                "{{ 'a-b'.replace('-', '+') }}{{ 'aaa' | replace('a', 'b', 2) }}{{ 'a\\nb' | indent(2) }}",
                "a+bbbaa\n  b",
            ),
            ("{{ 'x{}y'.format(3) }}{{ '%s-%d' | format('q', 3) }}{{ 'aba'.count('a') }}", "x3yq-32"),
        ] {
            let made = prompt(template, &messages).unwrap_or_else(|e| e.to_string());
            assert_eq!(made, wanted, "{template}");
        }
        let year = prompt("{{ strftime_now('%Y') }}", &[]).unwrap();
        assert!(year.len() == 4 && year.starts_with("2"), "{year}");
    }

    /// Macros that call themselves, namespaces, slices and names that are not defined, as templates of messages in channels
    /// have them: what `jinja2` makes of these.
    #[test]
    fn templates_of_channels_are_filled() {
        let template = include_str!("channels.jinja");
        let tools = r#"[{"type": "function", "function": {"name": "f", "parameters": {"default": {"a": 1}, "required": ["a"],
            "properties": {"a": {"type": "list", "items": {"type": "list", "items": {"type": "number"}}},
            "b": {"type": ["text", "null"]}, "c": {"enum": ["x", "y"]}, "d": {"type": "list", "items":
            {"properties": {"n": {}, "items": {"type": "text"}}}}}}}}, {"type": "function", "function": {"name": "g"}}]"#;
        let message = |text: &str| {
            let (role, content) = text.split_once(' ').unwrap();
            Message::new(role, content)
        };
        let messages =
            ["system be brief", "user hi", "assistant a \"b\"", "user more", "assistant c", "user end"];
        let messages = messages.map(message);
        let args = [("tools", tools), ("own_tools", r#"["code", "web"]"#), ("effort", "\"high\"")];
        let step = "\n            ";
        let wanted = format!(
            "<|start|>system<|message|>Year: 2\nEffort: high\nweb {{cursor}}: True<|end|><|start|>developer<|message|>be brief\n\
             f: {{a: {step}number[][], b?: {step}text | null, c?: {step}\"x\" | \"y\", d?: {step}any[]}} = {{\"a\": 1}}\n\
             g: any<|end|><|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>analysis<|message|>\"a \\\"b\\\"\"\
             <|end|><|start|>user<|message|>more<|end|><|start|>assistant<|channel|>final<|message|>\"c\"<|end|>\
             <|start|>user<|message|>end<|end|><|start|>assistant"
        );
        assert_eq!(with(template, &messages, &args).unwrap(), wanted);
        let wanted = "<|start|>system<|message|>Year: 2\nEffort: low\n<|end|><|start|>user<|message|>hi<|end|><|start|>assistant";
        assert_eq!(prompt(template, &messages[1..2]).unwrap(), wanted);
        let said =
            |text: &str| prompt(template, &[message("user hi"), message(text)]).unwrap_err().to_string();
        assert!(said("assistant <|channel|>").contains("marks of '<|channel|>' in a message"));
        assert!(said("tool 1").contains("no answer before tool"));
    }

    /// Fields are what the message says, in its order; arguments of a call may be an object or a text.
    #[test]
    fn messages_may_call_tools() {
        let template = "{% for m in messages %}[{{ m.role }}{% if m.tool_calls %}{% for call in m.tool_calls %} \
            {{ call.function.name }}({{ call.function.arguments if call.function.arguments is string else \
            call.function.arguments | tojson }}){% endfor %}{% elif m.content is string %} {{ m.content }}\
            {% else %}{% for part in m.content %} {{ part.text }}{% endfor %}{% endif %}\
            {% if m.tool_call_id is defined %} of {{ m.tool_call_id }}{% endif %}]{% endfor %}";
        let messages = [
            r#"{"role": "user", "content": [{"type": "text", "text": "how"}, {"type": "text", "text": "warm?"}]}"#,
            r#"{"role": "assistant", "content": null, "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"to": "x", "at": [1, 2.5]}}},
                {"type": "function", "function": {"name": "g", "arguments": "{}"}}]}"#,
            r#"{"role": "tool", "tool_call_id": "1", "content": "21"}"#,
        ];
        let messages = messages.map(|json| Message::from_json(json).unwrap());
        let wanted = r#"[user how warm?][assistant f({"to": "x", "at": [1, 2.5]}) g({})][tool 21 of 1]"#;
        assert_eq!(prompt(template, &messages).unwrap(), wanted);
        assert_eq!(
            Message::from_json(r#"{"role": "user", "content": "x"}"#).unwrap(),
            Message::new("user", "x")
        );
        let said = |json: &str| Message::from_json(json).unwrap_err().to_string();
        assert!(said("[1]").contains("expected an object, got: sequence"), "{}", said("[1]"));
        assert!(said(r#"{"content": "x"}"#).contains("no text as its \"role\""));
        assert!(said(r#"{"role": 3}"#).contains("no text as its \"role\""));
        assert!(said(r#"{"role": "user"}"#).contains("no \"content\" and no \"tool_calls\""));
        assert!(Message::from_json(r#"{"role": "assistant", "tool_calls": []}"#).is_ok());
        assert!(said(r#"{"role": "#).contains("EOF"));
        assert!(said(&"[".repeat(100_000)).contains("recursion limit"));
    }

    #[test]
    fn marks_of_what_the_model_says_are_no_tags() {
        let template =
            "a\n{%- generation %}b {{ 1 }}{%- endgeneration -%}\n c{% generation %}d{%endgeneration%}";
        assert_eq!(prompt(template, &[]).unwrap(), "ab 1cd");
    }

    #[test]
    fn arguments_are_variables_of_a_template() {
        let template = "{{ enable_thinking is defined }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}\
            {{ add_generation_prompt }}";
        let tools = r#"[{"type": "function", "function": {"name": "f", "arguments": {}}}]"#;
        let args = [("enable_thinking", "false"), ("tools", tools), ("add_generation_prompt", "false")];
        let made = with(template, &[], &args).unwrap();
        assert_eq!(made, format!("True{}False", &tools[1..tools.len() - 1]));
        let said = |name: &str, json: &str| with("", &[], &[(name, json)]).unwrap_err().to_string();
        assert!(said("tools", "[").contains("\"tools\" is no JSON"), "{}", said("tools", "["));
        assert!(said("messages", "[]").contains("those of the prompt"));
    }

    #[test]
    fn values_of_any_size_are_errors() {
        let doubled =
            "{% set ns = namespace(s='a') %}{% for i in range(24) %}{% set ns.s = ns.s + ns.s %}{% endfor %}";
        let list =
            "{% set ns = namespace(s=[1]) %}{% for i in range(24) %}{% set ns.s = ns.s + ns.s %}{% endfor %}";
        let grown = "{% set ns = namespace(s='a') %}{% for i in range(9) %}\
            {% set ns.s = ns.s.replace('a', 'a' * 100000) %}{% endfor %}";
        let said = |template: &str| prompt(template, &[]).unwrap_err().to_string();
        for (template, phrase) in [
            ("{{ [1] | tojson(indent=1000000000) }}".to_owned(), "indent"),
            ("{{ 'a\\nb' | indent(9999999999) }}".to_owned(), "indent"),
            ("{{ 'a\\nb' | indent(width=9999999999) }}".to_owned(), "indent"),
            (grown.to_owned(), "replacement"),
            (grown.replace(".replace('a', ", " | replace('a', "), "replacement"),
            ("{{ [1] | batch(9999999999, 'x') | list }}".to_owned(), "at most"),
            ("{{ [1] | slice(9999999999) | list }}".to_owned(), "at most"),
            ("{{ '%999999999d' | format(1) }}".to_owned(), "width"),
            ("{{ '%*d' | format(999999999, 1) }}".to_owned(), "width"),
            ("{{ '{:999999999}'.format(1) }}".to_owned(), "width"),
            (format!("{doubled}{{{{ ns.s.join(['', '', '']) }}}}"), "more than"),
            (
                format!(
                    "{doubled}{{% for i in range(999) %}}{{% set x %}}{{{{ ns.s }}}}{{% endset %}}{{% endfor %}}"
                ),
                "more than",
            ),
            (format!("{list}{{{{ ns.s | list }}}}"), "at most"),
            (format!("{list}{{{{ ns.s | sort }}}}"), "at most"),
            (format!("{list}{{{{ ns.s | tojson }}}}"), "at most"),
            (format!("{list}{{{{ ns.s | join }}}}"), "more than"),
        ] {
            let said = said(&template);
            assert!(said.starts_with("the chat template: ") && said.contains(phrase), "{template}: {said}");
        }
        // Text between tags is printed in each step.
        let plain = format!(
            "{{% for a in range(9999) %}}{{% set x %}}{{% for b in range(9999) %}}{}{{% endfor %}}{{% endset %}}{{% endfor %}}",
            "x".repeat(100_000)
        );
        assert!(said(&plain).contains("fuel"), "{}", said(&plain));
    }
}
