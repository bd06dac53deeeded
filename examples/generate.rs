//! Text from a language model, as it comes, or the vector of a text:
//! `cargo run --features generate --example generate -- FOLDER PROMPT`.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;

use onepool::generate::{
    EmbedOptions, Embedder, GenerateError, GenerateOptions, Generator, ModelFolder, Prompt,
};
use onepool::session::SessionBuilder;
use onepool::{Session, Tensor};

/// Goes on from `prompt`, at most 40 tokens.
fn go_on(folder: &str, prompt: &str) -> Result<String, GenerateError> {
    let folder = ModelFolder::open(folder)?;
    let session = Session::builder().model(folder.graph()).build()?;
    let mut generator = Generator::new(folder, session, None)?;
    let options = GenerateOptions { max_tokens: Some(40), ..GenerateOptions::default() };
    let made = generator.generate(Prompt::Text(prompt), &options, |piece| {
        print!("{piece}");
        // `Break` ends the text.
        std::io::stdout().flush().map_or(ControlFlow::Break(()), ControlFlow::Continue)
    })?;
    Ok(made.text)
}

/// The text that a model with an encoder makes of `text`, at most 40 tokens.
fn translate(folder: &str, text: &str) -> Result<String, GenerateError> {
    let folder = ModelFolder::open(folder)?;
    let session = |builder: SessionBuilder, _: &Path| Ok::<_, GenerateError>(builder.build()?);
    let mut generator = Generator::open(folder, None, session)?;
    let options = GenerateOptions { max_tokens: Some(40), ..GenerateOptions::default() };
    let made = generator.generate(Prompt::Text(text), &options, |_| ControlFlow::Continue(()))?;
    Ok(made.text)
}

/// The vectors of `texts`: [texts, elements].
fn vectors(folder: &str, texts: &[&str]) -> Result<Tensor, GenerateError> {
    let embedder = Embedder::open(folder, |builder, _| Ok::<_, GenerateError>(builder.build()?))?;
    Ok(embedder.embed(texts, &EmbedOptions::default())?.vectors)
}

fn main() -> Result<(), GenerateError> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| "models/tiny_llm/fixed".to_owned());
    let prompt = arguments.next().unwrap_or_else(|| "Hello".to_owned());
    if Path::new(&folder).join("modules.json").exists() {
        print!("{:?}", vectors(&folder, &[&prompt])?.to_f32s());
    } else if ModelFolder::open(&folder)?.encoder().is_some() {
        print!("{}", translate(&folder, &prompt)?);
    } else {
        go_on(&folder, &prompt)?;
    }
    println!();
    Ok(())
}
