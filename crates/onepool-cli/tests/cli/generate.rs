//! `onepool generate` on the tiny models of the repository.

use std::path::Path;

#[cfg(target_os = "linux")]
use super::interrupt;
use super::{ends, fails, folder, onepool, piped, root, says, text};

const MODEL: &str = "models/tiny_llm/fixed";

/// Runs it in the repository's root on the CPU and gives its JSON.
fn json(args: &[&str]) -> serde_json::Value {
    let given = ["generate", MODEL, "-d", "cpu", "--json"];
    serde_json::from_str(&ends(root(), 0, &[&given, args].concat())).unwrap()
}

#[test]
fn text_and_figures_are_printed() {
    let out = onepool(root(), &["generate", MODEL, "-d", "cpu", "-p", "Hello", "-n", "12", "--ignore-end"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    says(&text(&out.stderr), &["prompt: 6 tokens, ", " tokens/s; text: 12 tokens, ", "ended by length"]);
    let made = json(&["-p", "Hello", "-n", "12", "--ignore-end"]);
    assert_eq!(text(&out.stdout), format!("{}\n", made["texts"][0]["text"].as_str().unwrap()));
    let expected = std::fs::read_to_string(root().join("models/tiny_llm/expected.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    let tokens = expected["fixed"][0]["tokens"].as_array().unwrap();
    assert_eq!(made["texts"][0]["tokens"].as_array().unwrap()[..], tokens[..12]);
    assert_eq!((made["context"].as_u64(), made["remarks"].as_array().unwrap().len()), (Some(256), 0));
    assert!(made["texts"][0]["tokens_per_s"].as_f64().unwrap() > 0.0, "{made}");
}

#[test]
fn several_prompts_share_their_plans_and_seeds_repeat() {
    let sampled =
        ["-p", "Hello", "-p", "World", "-p", "Hello", "-n", "16", "--temperature", "1.2", "--ignore-end"];
    let made = json(&[&sampled[..], &["--seed", "5"]].concat());
    let tokens = |made: &serde_json::Value, at: usize| made["texts"][at]["tokens"].clone();
    assert_eq!(tokens(&made, 0), tokens(&made, 2));
    assert_ne!(tokens(&made, 0), tokens(&made, 1));
    let alone = json(&[&sampled[..], &["--seed", "5", "--batch", "1"]].concat());
    assert_eq!([0, 1, 2].map(|at| tokens(&alone, at)), [0, 1, 2].map(|at| tokens(&made, at)));
    assert!(made["plans"].as_u64().unwrap() <= 3, "{}", made["plans"]);
    let other = json(&[&sampled[..], &["--seed", "6"]].concat());
    assert_ne!(tokens(&made, 0), tokens(&other, 0));
}

#[test]
fn a_model_with_an_encoder_takes_text() {
    let expected = std::fs::read_to_string(root().join("models/tiny_seq2seq/expected.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    let text = ["generate", "models/tiny_seq2seq/text", "-d", "cpu", "--json", "-n", "6", "--ignore-end"];
    let prompts = ["-p", "Hello", "-p", "Hello there", "-p", "Hello"];
    let made = ends(root(), 0, &[&text[..], &prompts].concat());
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let tokens = |at: usize| made["texts"][at]["tokens"].as_array().unwrap().clone();
    assert_eq!(tokens(0)[..], expected["text"][0]["tokens"].as_array().unwrap()[..6]);
    assert_eq!(tokens(0), tokens(2));
    assert_eq!(made["remarks"], serde_json::json!([]), "{made}");
    // The same weights in the form of onnxruntime-genai.
    let genai = text.map(|arg| if arg.ends_with("/text") { "models/tiny_seq2seq/genai_text" } else { arg });
    let other: serde_json::Value =
        serde_json::from_str(&ends(root(), 0, &[&genai[..], &prompts].concat())).unwrap();
    assert_eq!(other["texts"][1]["tokens"], made["texts"][1]["tokens"]);
    let speech = ["generate", "models/tiny_seq2seq/speech", "-d", "cpu", "-p", "Hello"];
    fails(root(), 2, &speech, &["the model's encoder takes features", "input_features"]);
}

#[test]
fn prompts_of_a_file_come_and_go() {
    let dir = folder();
    let file = dir.path().join("prompts.txt");
    std::fs::write(&file, "Hello\n\nWorld\nHello there\nHello\n").unwrap();
    let file = file.to_str().unwrap();
    for (model, pages) in [
        (MODEL, &[][..]),
        ("models/tiny_llm/paged", &["--pages", "4"][..]),
        (MODEL, &["--pages", "9", "--page-tokens", "4"][..]),
        (MODEL, &["--cache-type", "q8"][..]),
    ] {
        let run = |args: &[&str]| -> serde_json::Value {
            let given =
                ["generate", model, "-d", "cpu", "--json", "--prompts", file, "-n", "9", "--ignore-end"];
            serde_json::from_str(&ends(root(), 0, &[&given, args].concat())).unwrap()
        };
        let made = run(&[&["--batch", "2"], pages].concat());
        let texts = made["texts"].as_array().unwrap();
        let prompts: Vec<_> = texts.iter().map(|text| text["prompt"].as_str().unwrap()).collect();
        assert_eq!(prompts, ["Hello", "World", "Hello there", "Hello"]);
        assert!(texts.iter().all(|text| text["tokens"].as_array().unwrap().len() == 9), "{made}");
        let typed = pages.iter().position(|arg| *arg == "--cache-type").map_or(&[][..], |at| &pages[at..]);
        let alone = run(&[&["--batch", "1"], typed].concat());
        for (one, other) in texts.iter().zip(alone["texts"].as_array().unwrap()) {
            assert_eq!(one["tokens"], other["tokens"]);
        }
        assert_eq!(made["batch"]["most_texts"], 2);
        let wanted = pages.get(1).and_then(|n| n.parse().ok());
        assert_eq!(made["batch"]["pages"]["pages"].as_u64(), wanted);
    }
    let d = root();
    fails(d, 1, &["generate", MODEL, "--prompts", "none.txt"], &["none.txt"]);
    let blank = dir.path().join("blank.txt");
    std::fs::write(&blank, "\n \n").unwrap();
    fails(d, 2, &["generate", MODEL, "--prompts", blank.to_str().unwrap()], &["blank.txt has no text"]);
    let appending = "models/tiny_llm/appending";
    fails(d, 3, &["generate", appending, "-d", "cpu", "-p", "x", "--pages", "4"], &["not in pages"]);
    let typed = ["generate", appending, "-d", "cpu", "-p", "x", "--cache-type"];
    fails(d, 3, &[&typed[..], &["q4"]].concat(), &["no GroupQueryAttention"]);
    fails(d, 2, &[&typed[..], &["q5"]].concat(), &["expected one of f32, f16, q8, q4"]);
}

#[test]
fn grammars_guesses_and_caches_are_options() {
    let dir = folder();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let first = |args: &[&str]| json(&[&["-p", "Hello", "--ignore-end"], args].concat())["texts"][0].take();
    let schema = file(
        "schema.json",
        "{\"x-guidance\": {\"whitespace_flexible\": false}, \"type\": \"array\", \"items\": {\"enum\": [1, 2]}, \"maxItems\": 3}",
    );
    let made = first(&["--json-schema", &schema]);
    let value: Vec<u32> = serde_json::from_str(made["text"].as_str().unwrap()).unwrap();
    assert!(value.len() <= 3 && value.iter().all(|n| [1, 2].contains(n)), "{made}");
    assert!(["grammar", "end"].contains(&made["finish"].as_str().unwrap()), "{made}");
    let grammar = file("grammar.lark", "start: \"yes\" | \"no\"");
    assert!(["yes", "no"].contains(&first(&["--grammar", &grammar])["text"].as_str().unwrap()));
    assert_eq!(first(&["--regex", "(ab){2}"])["text"], "abab");

    let plain = first(&["-n", "30"]);
    let guessed =
        first(&["-n", "30", "--draft", "models/tiny_llm/appending", "--draft-tokens", "2", "--lookup", "4"]);
    assert_eq!(guessed["tokens"], plain["tokens"]);
    assert!(guessed["guessed_tokens"].as_u64().unwrap() > 0, "{guessed}");
    let cache = dir.path().join("chat");
    let with = ["-n", "30", "--prompt-cache", cache.to_str().unwrap()];
    assert_eq!(first(&with)["reused_tokens"], 0);
    let again = first(&with);
    assert_eq!((&again["reused_tokens"], &again["tokens"]), (&serde_json::json!(5), &plain["tokens"]));

    fn given<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["generate", MODEL, "-d", "cpu", "-p", "Hello"], args].concat()
    }
    fails(root(), 2, &given(&["--regex", "a", "--grammar", "b"]), &["cannot be used with"]);
    fails(root(), 1, &given(&["--json-schema", "none.json"]), &["none.json"]);
    fails(root(), 2, &given(&["--regex", "("]), &["the grammar: "]);
    std::fs::write(&cache, "other").unwrap();
    fails(root(), 1, &given(&with), &["the file is damaged or no conversation"]);
}

#[test]
fn bad_arguments_and_folders_are_errors_with_a_sentence() {
    let d = root();
    let with = |args: &[&'static str]| [&["generate", MODEL, "-d", "cpu"][..], args].concat();
    fails(d, 2, &with(&[]), &["--prompt"]);
    fails(d, 2, &with(&["-p", "x", "--top-p", "3"]), &["top-p is 3: expected"]);
    fails(d, 2, &with(&["-p", "x", "--temperature", "-1"]), &["temperature is -1: expected 0 (greedy)"]);
    let graph = "models/tiny_llm/fixed/tokenizer.json";
    fails(d, 1, &["generate", graph, "-p", "x"], &["give the folder models/tiny_llm/fixed"]);
    fails(d, 2, &with(&["-p", "x", "--context", "9999"]), &["the model takes 2 to 512"]);
    fails(d, 2, &with(&["-p", "Hello", "--context", "4"]), &["the prompt has 6 tokens", "room for 4"]);
    fails(d, 2, &with(&["-p", "x", "--system", "y"]), &["--chat"]);
    let empty = folder();
    fails(empty.path(), 1, &["generate", ".", "-p", "x"], &["genai_config.json, config.json"]);
    fails(empty.path(), 1, &["generate", "none", "-p", "x"], &["none", "genai_config.json"]);
}

#[test]
fn chats_have_arguments_and_may_be_whole() {
    let dir = folder();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let model = path("model");
    std::fs::create_dir(&model).unwrap();
    for entry in std::fs::read_dir(root().join(MODEL)).unwrap() {
        let file = entry.unwrap().path();
        std::fs::copy(&file, Path::new(&model).join(file.file_name().unwrap())).unwrap();
    }
    let template = "{{ raise_exception(messages | tojson ~ (tools | tojson) ~ (deep | tojson)) }}";
    std::fs::write(Path::new(&model).join("chat_template.jinja"), template).unwrap();
    let (lines, tools) = (path("lines"), path("tools"));
    let chat = r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [{"b": 1, "a": 2}]}]"#;
    std::fs::write(&lines, chat).unwrap();
    std::fs::write(&tools, "[1]").unwrap();
    let given = ["generate", &model, "-d", "cpu", "--chat", "--prompts", &lines, "--tools", &tools];
    fails(root(), 1, &[&given[..], &["--template-arg", "deep=null"]].concat(), &[&format!("{chat}[1]null")]);
    fails(root(), 2, &[&given[..], &["--template-arg", "deep"]].concat(), &["give NAME=JSON"]);
    fails(root(), 2, &[&given[..], &["--template-arg", "deep={"]].concat(), &["\"deep\" is no JSON"]);
    std::fs::write(&lines, "[{\"role\": 3}]").unwrap();
    fails(root(), 2, &given, &["no list of messages"]);
}

#[test]
fn graphs_are_named_and_caches_are_checked_first() {
    let graph = format!("{MODEL}/model.onnx");
    let made = ends(
        root(),
        0,
        &["generate", &graph, "-d", "cpu", "--json", "-p", "Hello", "-n", "4", "--ignore-end"],
    );
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!(
        made["texts"][0]["tokens"],
        json(&["-p", "Hello", "-n", "4", "--ignore-end"])["texts"][0]["tokens"]
    );
    let with = |args: &[&'static str]| [&["generate", MODEL, "-d", "cpu", "-p", "x"][..], args].concat();
    fails(root(), 1, &with(&["--variant", "q4"]), &["none of model_q4.onnx, onnx/model_q4.onnx"]);
    fails(root(), 1, &with(&["--prompt-cache", "none/chat"]), &["cannot write none/chat"]);
    fails(root(), 1, &with(&["--prompt-cache", "docs"]), &["this is a folder"]);
    let encoder = ["generate", "models/tiny_seq2seq/text", "-d", "cpu", "-p", "x", "--prompt-cache", "chat"];
    fails(root(), 3, &encoder, &["a model with an encoder"]);
}

/// Every command of the page runs as it stands there.
#[test]
fn the_commands_of_the_page_run() {
    let page = std::fs::read_to_string(root().join("docs/GENERATE.md")).unwrap();
    let shell = page.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let mut commands = 0;
    for line in shell.lines() {
        // Words in quotes have spaces.
        let mut words: Vec<String> = Vec::new();
        for (at, part) in line.split('"').enumerate() {
            if at % 2 == 1 {
                words.push(part.to_owned());
            } else {
                words.extend(part.split_whitespace().map(str::to_owned));
            }
        }
        assert_eq!(words.remove(0), "onepool", "{line}");
        let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
        args.extend(["-d", "cpu"]);
        assert!(!ends(root(), 0, &args).trim().is_empty(), "{line}");
        commands += 1;
    }
    assert!(commands >= 3, "{shell}");
}

/// A reader that goes away ends the text.
#[test]
fn a_reader_that_goes_away_ends_the_text() {
    let args = ["generate", MODEL, "-d", "cpu", "-p", "Hello", "-n", "400", "--ignore-end"];
    let mut child = piped(root(), &args).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
}

/// The first Ctrl-C ends a text cleanly.
#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_ends_a_text() {
    use std::io::Read as _;
    let args = ["generate", MODEL, "-d", "cpu", "-n", "450", "--ignore-end"];
    let mut child = piped(root(), &args).args(["-p", "Hello"].repeat(200)).spawn().unwrap();
    let mut begun = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
    interrupt(&child);
    let out = child.wait_with_output().unwrap();
    let stderr = text(&out.stderr);
    assert_eq!(out.status.code(), Some(130), "{stderr}");
    says(&stderr, &["ended by cancelled", "no text for 1", "onepool: interrupted"]);
    // A line for each prompt would be 200.
    assert!(stderr.lines().count() < 40, "{stderr}");
}

#[test]
fn a_gguf_file_generates_and_is_inspected() {
    const FILE: &str = "models/tiny_gguf/qwen3.gguf";
    let given =
        ["generate", FILE, "-d", "cpu", "-p", "The quick brown fox", "-n", "6", "--ignore-end", "--json"];
    let out = onepool(root(), &given);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["texts"][0]["tokens"].as_array().unwrap().len(), 6);
    let out = onepool(root(), &["inspect", FILE]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("GGUF") && text.contains("BF16"), "{text}");
    says(&text, &["property  general.architecture: qwen3", "property  tokenizer.ggml.tokens: "]);
    let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    for (name, family) in [("MatMulBlocks", "ggml"), ("GroupQueryAttention", "attention")] {
        says(row(name), &[family, "device, cpu"]);
    }
    assert!(!text.contains("tvm"), "{text}");
}

#[test]
fn a_time_limit_is_that_of_all_texts() {
    let long = ["-d", "cpu", "-p", "Hello", "-n", "450", "--ignore-end", "--time-limit"];
    let up = &["the time limit of 0.000001 s was up"];
    fails(root(), 1, &[&["generate", MODEL][..], &long, &["0.000001"]].concat(), up);
    let bench = ["bench", "generate", MODEL, "-d", "cpu", "--prompt-tokens", "9", "--time-limit", "0.000001"];
    fails(root(), 1, &bench, up);
    let embed = ["embed", "models/tiny_seq2seq/vectors", "-d", "cpu", "-t", "a", "--time-limit", "0.000001"];
    fails(root(), 1, &embed, up);
    // A token takes less, all of them take more.
    let some = [&["generate", MODEL][..], &long[..4], &["-n", "450", "--ignore-end", "--time-limit", "60"]];
    ends(root(), 0, &some.concat());
}

#[test]
fn prompts_come_from_standard_input() {
    use std::io::Write as _;
    let given = |prompts: &[u8]| {
        let args = ["generate", MODEL, "-d", "cpu", "-n", "4", "--json", "--prompts", "-"];
        let mut child = piped(root(), &args).stdin(std::process::Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(prompts).unwrap();
        child.wait_with_output().unwrap()
    };
    let report: serde_json::Value = serde_json::from_slice(&given(b"Hello\n\nAgain\n").stdout).unwrap();
    assert_eq!(report["texts"][1]["prompt"], "Again");
    let none = given(b"\n");
    assert_eq!(none.status.code(), Some(2));
    says(&text(&none.stderr), &["standard input has no text: give one in each line"]);
}

/// Waits until the program runs, and presses Ctrl-C.
#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_ends_a_measurement_of_texts() {
    let sizes = ["--prompt-tokens", "20", "-n", "400", "--runs", "60000"];
    let child = piped(root(), &["bench", "generate", MODEL, "-d", "cpu"]).args(sizes).spawn().unwrap();
    super::until_it_listens(child.id());
    std::thread::sleep(std::time::Duration::from_millis(500));
    interrupt(&child);
    let out = child.wait_with_output().unwrap();
    let stderr = text(&out.stderr);
    assert_eq!(out.status.code(), Some(130), "{stderr}");
    says(&stderr, &["ending when the device is done", "onepool: "]);
}

#[test]
fn rates_of_a_prompt_and_a_text_are_measured() {
    let given = ["bench", "generate", MODEL, "-d", "cpu", "--prompt-tokens", "20", "-n", "6", "--runs", "2"];
    let out = onepool(root(), &given);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    says(&text(&out.stdout), &["27 tokens of context, medians of 2 texts", "tokens/s", "prompt", "text"]);
    let made: serde_json::Value =
        serde_json::from_str(&ends(root(), 0, &[&given[..], &["--json"]].concat())).unwrap();
    assert_eq!((made["prompt"]["tokens"].as_u64(), made["text"]["tokens"].as_u64()), (Some(20), Some(5)));
    for what in ["prompt", "text"] {
        let rate = |name: &str| made[what][name].as_f64().unwrap();
        assert!(rate("least_per_s") > 0.0 && rate("least_per_s") <= rate("tokens_per_s"), "{made}");
        assert!(rate("tokens_per_s") <= rate("most_per_s"), "{made}");
    }
    // The model's own limit.
    let over = ["bench", "generate", MODEL, "-d", "cpu", "--context", "100000"];
    fails(root(), 2, &over, &["100000"]);
}
