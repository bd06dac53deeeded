//! `onepool_generator`: text from language models.

use std::ffi::c_void;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use onepool::generate::{
    CacheType, GenerateError, Generator, ModelFolder, PageCounts, PageOptions, PagePool, Pages, SampleOn,
    Sampling, TemplateArgs,
};
use onepool::session::{Session, SessionBuilder};
use onepool_core::error::chain;

use crate::arg::{In, Out, Room, Structure, Text, null, unknown};
use crate::handle::{Handle, Object, free, publish};
use crate::region::RegionObject;
use crate::session::with_options;
use crate::status::{Failure, Status, guard};
use crate::text::{GeneratedC, Request, TextCallback, TextOptions, prompt_of, teller};
use crate::types::SessionOptions;

/// Tokens that a draft model guesses at once where nothing else is said.
const DRAFT_TOKENS: usize = 4;

/// The most variables of a chat template.
const MOST_ARGS: usize = 1 << 12;

/// Where tokens are chosen, the numbers and names in the header.
pub const SAMPLE_ON: [(u32, &str, SampleOn); 3] = [
    (0, "ONEPOOL_SAMPLE_ON_AUTO", SampleOn::Auto),
    (1, "ONEPOOL_SAMPLE_ON_HOST", SampleOn::Host),
    (2, "ONEPOOL_SAMPLE_ON_DEVICE", SampleOn::Device),
];

/// `onepool_generator_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GeneratorOptions {
    /// Size of the structure.
    pub struct_size: usize,
    /// Tokens that a prompt and its text may have together; 0 for the settings' number.
    pub context: usize,
    /// A smaller model that guesses.
    pub draft: Text,
    /// The most tokens that it guesses at once; 0 for 4.
    pub draft_tokens: usize,
    /// Where tokens are chosen.
    pub sample_on: u32,
    /// Zero.
    pub reserved: u32,
    /// Pages of the cache; 0 for as many as are needed.
    pub pages: usize,
    /// Tokens of a page; 0 for the graph's, else 16.
    pub page_tokens: usize,
    /// The caller's memory for the pages.
    pub page_memory: Handle,
    /// The generator whose pages it has too.
    pub pages_of: Handle,
    /// The end of the graph's name.
    pub variant: Text,
    /// Variables of the chat template.
    pub template_args: In<TemplateArg>,
    /// How many.
    pub template_arg_count: usize,
    /// The name of what caches hold.
    pub cache_type: Text,
}

/// `onepool_template_arg`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TemplateArg {
    /// Size of the structure.
    pub struct_size: usize,
    /// The variable.
    pub name: Text,
    /// Its value.
    pub json: Text,
}

// SAFETY: `repr(C)`, begins with its size, holds pointers that may be anything.
unsafe impl Structure for TemplateArg {}

// SAFETY: `repr(C)`, begins with its size, holds numbers, handles and a pointer that may be anything.
unsafe impl Structure for GeneratorOptions {}

/// `onepool_page_counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PageCountsC {
    /// Size of the structure.
    pub struct_size: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Pages that there are.
    pub pages: usize,
    /// With nothing in them.
    pub free: usize,
    /// Of texts.
    pub used: usize,
    /// Those of them that several texts have.
    pub shared: usize,
    /// Kept for prompts that begin alike.
    pub cached: usize,
    /// Copied before a write.
    pub copied: u64,
    /// Cached ones that were given up.
    pub evicted: u64,
    /// What a region for as many pages has.
    pub region_bytes: usize,
}

// SAFETY: as above, of numbers.
unsafe impl Structure for PageCountsC {}

/// What an `onepool_generator` stands for.
#[derive(Debug)]
pub(crate) struct GeneratorObject {
    pub(crate) generator: Arc<Mutex<Generator>>,
    pub(crate) sampling: Sampling,
    context: usize,
    pages: Option<PagePool>,
}

impl Object for GeneratorObject {
    const KIND: &'static str = "onepool_generator";
}

impl GeneratorObject {
    fn turn(&self) -> Result<MutexGuard<'_, Generator>, Failure> {
        match self.generator.try_lock() {
            Ok(generator) => Ok(generator),
            // The next text begins anew.
            Err(TryLockError::Poisoned(generator)) => Ok(generator.into_inner()),
            Err(TryLockError::WouldBlock) => Err(failed(GenerateError::Busy).of("generator")),
        }
    }

    fn pages(&self) -> Result<&PagePool, Failure> {
        let problem = "has no pages: none were asked for, and its graph has no PagedAttention";
        self.pages.as_ref().ok_or_else(|| Failure::argument("generator", problem))
    }
}

pub(crate) fn failed(error: GenerateError) -> Failure {
    Failure::new(error.class().into(), chain(&error))
}

/// Why a model cannot be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    Model(GenerateError),
    Options(Failure),
}

impl From<GenerateError> for OpenError {
    fn from(error: GenerateError) -> Self {
        OpenError::Model(error)
    }
}

impl OpenError {
    pub(crate) fn failure(self) -> Failure {
        match self {
            OpenError::Model(error) => failed(error),
            OpenError::Options(failure) => failure,
        }
    }
}

/// A session with the caller's options.
pub(crate) fn built(builder: SessionBuilder, opts: In<SessionOptions>) -> Result<Session, OpenError> {
    let builder = with_options(builder, opts).map_err(OpenError::Options)?;
    builder.build().map_err(|error| OpenError::Options(error.into()))
}

/// How a generator is opened.
#[derive(Default)]
struct Opening {
    context: Option<usize>,
    sample_on: SampleOn,
    /// Its path, and the most tokens that it guesses at once.
    draft: Option<(String, usize)>,
    pages: Option<Pages>,
    variant: Option<String>,
    template_args: TemplateArgs,
    cache_type: Option<CacheType>,
}

impl Opening {
    fn of(options: In<GeneratorOptions>) -> Result<Self, Failure> {
        let Some(given) = options.optional("options")? else { return Ok(Opening::default()) };
        let known = SAMPLE_ON.iter().find(|(number, ..)| *number == given.sample_on);
        let (.., sample_on) = known.ok_or_else(|| unknown("options.sample_on", given.sample_on))?;
        let draft = given.draft.optional("options.draft")?;
        if draft.is_none() && given.draft_tokens > 0 {
            let problem = format!("is {}, and there is no draft", given.draft_tokens);
            return Err(Failure::argument("options.draft_tokens", problem));
        }
        if given.reserved != 0 {
            return Err(unknown("options.reserved", given.reserved));
        }
        let most = if given.draft_tokens > 0 { given.draft_tokens } else { DRAFT_TOKENS };
        Ok(Opening {
            context: (given.context > 0).then_some(given.context),
            sample_on: *sample_on,
            draft: draft.map(|path| (path, most)),
            pages: pages_of(&given)?,
            variant: given.variant.optional("options.variant")?,
            template_args: template_args(&given)?,
            cache_type: cache_type(&given)?,
        })
    }

    fn folder(self, path: &str) -> Result<ModelFolder, Failure> {
        let folder = match &self.variant {
            Some(variant) => ModelFolder::open_variant(path, variant),
            None => ModelFolder::open(path),
        };
        let folder = folder.map_err(failed)?.sample_on(self.sample_on).template_args(self.template_args);
        let folder = folder.cache_type(self.cache_type);
        Ok(match self.pages {
            Some(pages) => folder.in_pages(pages),
            None => folder,
        })
    }
}

/// What caches are asked to hold.
fn cache_type(given: &GeneratorOptions) -> Result<Option<CacheType>, Failure> {
    let Some(name) = given.cache_type.optional("options.cache_type")? else { return Ok(None) };
    let found = name.parse().map_err(|_| {
        let problem = format!("is {name:?}, expected one of {}", CacheType::names());
        Failure::argument("options.cache_type", problem)
    });
    found.map(Some)
}

/// The variables of the chat template.
fn template_args(given: &GeneratorOptions) -> Result<TemplateArgs, Failure> {
    let list = given.template_args.list(given.template_arg_count, MOST_ARGS, "options.template_args")?;
    let mut args = TemplateArgs::default();
    for (i, arg) in list.iter().enumerate() {
        let at = format!("options.template_args[{i}]");
        let name = arg.name.required(&format!("{at}.name"))?;
        let json = arg.json.required(&format!("{at}.json"))?;
        args.set(name, &json).map_err(|e| Failure::argument(&at, format!("is not taken: {}", chain(&e))))?;
    }
    Ok(args)
}

/// The pages that are asked for.
fn pages_of(given: &GeneratorOptions) -> Result<Option<Pages>, Failure> {
    let one_of = |name: &'static str| Failure::argument(name, "is given, and `options.pages` is 0");
    if !given.pages_of.is_null() {
        if given.pages > 0 || given.page_tokens > 0 || !given.page_memory.is_null() {
            let problem = "is given, and pages of its own are too";
            return Err(Failure::argument("options.pages_of", problem));
        }
        let object = given.pages_of.get::<GeneratorObject>("options.pages_of")?;
        let problem = || Failure::argument("options.pages_of", "has no pages");
        return Ok(Some(Pages::Of(object.pages.clone().ok_or_else(problem)?)));
    }
    if given.pages == 0 {
        return match (given.page_tokens, given.page_memory.is_null()) {
            (0, true) => Ok(None),
            (0, false) => Err(one_of("options.page_memory")),
            _ => Err(one_of("options.page_tokens")),
        };
    }
    let region = match given.page_memory.is_null() {
        true => None,
        false => Some(Arc::clone(&given.page_memory.get::<RegionObject>("options.page_memory")?.region)),
    };
    let rows = (given.page_tokens > 0).then_some(given.page_tokens);
    Ok(Some(Pages::New(PageOptions { pages: given.pages, rows, region })))
}

/// Opens a language model on devices: a GGUF file, or a folder with an ONNX graph, settings and tokenizer.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_generator_open(
    path: Text,
    session: In<SessionOptions>,
    opts: In<GeneratorOptions>,
    generator: Out<Handle>,
) -> Status {
    guard(|| {
        let place = generator.place("generator")?;
        let path = path.required("path")?;
        let opening = Opening::of(opts)?;
        let built = |builder, _: &Path| built(builder, session);
        let (asked, draft, cache_type) = (opening.context, opening.draft.clone(), opening.cache_type);
        let folder = opening.folder(&path)?;
        let sampling = folder.sampling();
        let mut generator = Generator::open(folder, asked, built).map_err(OpenError::failure)?;
        let context = generator.context();
        if let Some((path, most)) = draft {
            let folder = ModelFolder::open(path).map_err(failed);
            let draft = folder
                .map(|folder| folder.cache_type(cache_type))
                .and_then(|folder| generator.open_draft(folder, most, built).map_err(OpenError::failure));
            generator = draft.map_err(|failure| failure.of("options.draft"))?;
        }
        let pages = generator.pages().cloned();
        let generator = Arc::new(Mutex::new(generator));
        publish(GeneratorObject { generator, sampling, context, pages }, place);
        Ok(())
    })
}

/// Frees a generator. A text that is on its way goes on to its end.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_generator_free(generator: Handle) -> Status {
    free::<GeneratorObject>(generator, "generator")
}

/// The tokens that a prompt and its text may have together.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_generator_context(generator: Handle, tokens: Out<usize>) -> Status {
    guard(|| {
        let place = tokens.place("tokens")?;
        place.set(generator.get::<GeneratorObject>("generator")?.context);
        Ok(())
    })
}

/// The pages of a generator, also while it makes a text.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_generator_page_counts(
    generator: Handle,
    counts: Out<PageCountsC>,
) -> Status {
    guard(|| {
        let (place, struct_size) = counts.room("counts")?;
        let object = generator.get::<GeneratorObject>("generator")?;
        let pool = object.pages()?;
        let PageCounts { pages, free, used, shared, cached, copied, evicted } = pool.counts();
        let (page_tokens, region_bytes) = (pool.page_tokens(), pool.bytes_in_region());
        let all = PageCountsC {
            struct_size,
            page_tokens,
            pages,
            free,
            used,
            shared,
            cached,
            copied,
            evicted,
            region_bytes,
        };
        place.set(all);
        Ok(())
    })
}

/// Gives up all cached pages.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_generator_clear_pages(generator: Handle) -> Status {
    guard(|| {
        generator.get::<GeneratorObject>("generator")?.pages()?.clear_cached();
        Ok(())
    })
}

/// The tokens of a prompt: their number, and as many of them as there is `room` for.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_generator_tokens(
    generator: Handle,
    opts: In<TextOptions>,
    tokens: Room<u32>,
    room: usize,
    count: Out<usize>,
) -> Status {
    guard(|| {
        let place = count.place("count")?;
        tokens.check(room, "tokens")?;
        let object = generator.get::<GeneratorObject>("generator")?;
        let prompt = prompt_of(&opts.required("options")?)?;
        let made = object.turn()?.folder().tokens(prompt.prompt()).map_err(failed)?;
        tokens.fill(&made, room);
        place.set(made.len());
        Ok(())
    })
}

/// Writes the tokens of the last conversation that are in the cache, with their keys and values, to a file.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_generator_save(generator: Handle, path: Text) -> Status {
    guard(|| {
        let object = generator.get::<GeneratorObject>("generator")?;
        let path = path.required("path")?;
        object.turn()?.save(path).map_err(failed)
    })
}

/// Fills the cache from a file of a conversation; `tokens` gets the number of its tokens.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_generator_restore(
    generator: Handle,
    path: Text,
    tokens: Out<usize>,
) -> Status {
    guard(|| {
        let place = tokens.place("tokens")?;
        let object = generator.get::<GeneratorObject>("generator")?;
        let path = path.required("path")?;
        place.set(object.turn()?.restore(path).map_err(failed)?);
        Ok(())
    })
}

/// Makes a text and returns at its end.
#[unsafe(no_mangle)] // SAFETY: its arguments are as the header says.
pub unsafe extern "C" fn onepool_generate(
    generator: Handle,
    opts: In<TextOptions>,
    callback: Option<TextCallback>,
    user: *mut c_void,
    generated: Out<GeneratedC>,
) -> Status {
    guard(|| {
        let callback = callback.ok_or_else(|| null("callback"))?;
        let place = match generated.optional() {
            Some(_) => Some(generated.room("generated")?),
            None => None,
        };
        let object = generator.get::<GeneratorObject>("generator")?;
        let Request { prompt, options } = Request::of(opts, object.sampling)?;
        let made = object.turn()?.generate(prompt.prompt(), &options, teller(callback, user));
        let made = made.map_err(failed)?;
        if let Some((place, size)) = place {
            place.set(GeneratedC::new(&made, size));
        }
        Ok(())
    })
}
