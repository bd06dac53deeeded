//! Texts that come and go, on pages of the application's memory: `cargo run --features generate --example batch -- FOLDER`.

use std::ops::ControlFlow;

use onepool::Session;
use onepool::generate::{
    BatchOptions, Batcher, GenerateError, GenerateOptions, Generator, ModelFolder, PageOptions, PagePool,
    Prompt,
};
use onepool::memory::host::HostRegion;

/// Makes a text of each prompt, at most `texts` at once.
fn all(folder: &str, prompts: &[&str], texts: usize) -> Result<Vec<String>, GenerateError> {
    let folder = ModelFolder::open(folder)?;
    let session = Session::builder().model(folder.graph()).build()?;
    // The application's memory has the keys and values of all layers.
    let mut options = PageOptions::new(64);
    let bytes = PagePool::region_bytes(&folder, &session, &options)?;
    options.region = Some(HostRegion::new(bytes)?.into_shared());
    let pool = PagePool::new(&folder, &session, &options)?;
    let mut generator = Generator::with_pages(folder, session, None, &pool)?;
    let mut batcher = Batcher::new(&mut generator, BatchOptions { texts, ..BatchOptions::default() })?;
    let options = GenerateOptions { max_tokens: Some(16), ..GenerateOptions::default() };
    for prompt in prompts {
        batcher.add(Prompt::Text(prompt), options.clone(), |_| ControlFlow::Continue(()))?;
    }
    let mut made = Vec::new();
    while !batcher.is_idle() {
        // More texts may be added between steps.
        made.extend(batcher.step()?);
    }
    made.sort_by_key(|(id, _)| *id);
    Ok(made.into_iter().map(|(_, made)| made.text).collect())
}

fn main() -> Result<(), GenerateError> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "models/tiny_llm/paged".to_owned());
    let prompts = ["Hello", "Hello there", "Once upon a time", "The end"];
    for (prompt, text) in prompts.iter().zip(all(&folder, &prompts, 2)?) {
        println!("{prompt}:{text}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prompt_has_its_text_whatever_runs_beside_it() -> Result<(), GenerateError> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny_llm/paged");
        let prompts = ["Hello", "Hello there", "Hello"];
        let together = all(folder, &prompts, 3)?;
        assert_eq!(together, all(folder, &prompts, 1)?);
        assert_eq!((together.len(), &together[0]), (3, &together[2]));
        Ok(())
    }
}
