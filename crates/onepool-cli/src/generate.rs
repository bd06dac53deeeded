//! `onepool generate`: text from a language model.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::error::CliError;
use super::input_file::read_bytes;
use super::open::{load_on, open_table};
use super::output::Output;
use super::place::TableArgs;
use super::precision::PrecisionArgs;
use super::stop::StopArgs;
use super::table::{bytes, count};
use super::tune::TuningArgs;
use onepool::device::Context;
use onepool::generate::{
    BatchCounts, BatchOptions, Batcher, CacheType, Finish, GenerateError, GenerateOptions, Generated,
    Generator, Grammar, Message, ModelFolder, PageCounts, PageOptions, PagePool, Prompt, SampleOn, Sampling,
    SamplingOverrides, TemplateArgs, TextRequest,
};
use onepool::session::{Session, SessionBuilder, SharedArena};

/// Arguments of `onepool generate`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// A GGUF file, or the model's folder: an ONNX graph with genai_config.json (or config.json) and
    /// tokenizer.json. A model that reads text with an encoder has encoder_model.onnx too. The graph's file
    /// itself chooses one of several.
    model: PathBuf,
    /// The text to go on from; may be given several times.
    #[arg(short, long, required_unless_present = "prompts", value_name = "TEXT")]
    prompt: Vec<String>,
    /// A file with a prompt in each line, after those of --prompt, or `-` for standard input. Empty lines are none.
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// The most prompts that run at once. One that ends makes room for the next. With --lookup, --draft,
    /// --prompt-cache and an encoder all of such a group end before the next one begins.
    #[arg(long, default_value_t = 8, value_name = "PROMPTS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// Pages of keys and values: prompts that begin alike share them. A graph with GroupQueryAttention is changed to have
    /// pages; a graph with PagedAttention always has them, without this as many as --batch prompts can need.
    #[arg(long, value_name = "PAGES", value_parser = clap::value_parser!(u32).range(1..))]
    pages: Option<u32>,
    /// Tokens of a page. Without it as many as the graph declares, else 16.
    #[arg(long, value_name = "TOKENS", requires = "pages", value_parser = clap::value_parser!(u32).range(1..))]
    page_tokens: Option<u32>,
    /// What the cache of a graph with GroupQueryAttention holds: f32, f16, q8 or q4 (codes of 8 or 4 bits and a scale for
    /// each 32). Without it f16 where --precision is f16 and there are no pages, else as the graph declares. The draft's
    /// cache is the same.
    #[arg(long, value_name = "TYPE")]
    cache_type: Option<CacheType>,
    /// Gives each prompt as a user's message to the model's chat template. A line of --prompts that is a JSON
    /// list of messages, each with "role" and "content", is a whole chat.
    #[arg(long)]
    chat: bool,
    /// A variable of the chat template with a value in JSON, such as enable_thinking=false; may be given several times.
    #[arg(long, value_name = "NAME=JSON", requires = "chat")]
    template_arg: Vec<String>,
    /// A file with the functions that the model may call, a list in JSON: the variable tools of the chat template.
    #[arg(long, value_name = "FILE", requires = "chat")]
    tools: Option<PathBuf>,
    /// A message of the system before each prompt.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// The most new tokens of a text.
    #[arg(short = 'n', long, default_value_t = 128, value_name = "TOKENS")]
    max_tokens: usize,
    /// Tokens that prompt and text may have together. Without it as many as the longest prompt and --max-tokens need.
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// A string that ends a text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on after a token that ends texts, to measure.
    #[arg(long)]
    ignore_end: bool,
    #[command(flatten)]
    grammar: GrammarArgs,
    /// Guess at most so many tokens at once from what came before, where the last ones were there already; 0 is none.
    #[arg(long, default_value_t = 0, value_name = "TOKENS", value_parser = clap::value_parser!(u16).range(..=64))]
    lookup: u16,
    /// A smaller model of the same tokens, which guesses the next ones.
    #[arg(long, value_name = "MODEL")]
    draft: Option<PathBuf>,
    /// The most tokens that the draft model guesses at once.
    #[arg(long, default_value_t = 4, value_name = "TOKENS", requires = "draft", value_parser = clap::value_parser!(u16).range(1..=64))]
    draft_tokens: u16,
    /// Read the first prompt's cache from this file where there is one, compute only what is new, and write it after.
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    #[command(flatten)]
    session: SessionArgs,
}

/// Where a language model runs, and how.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SessionArgs {
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    #[command(flatten)]
    precision: PrecisionArgs,
    #[command(flatten)]
    ending: StopArgs,
}

/// What the sessions of a command share, as one of them runs at a time.
pub(super) struct Common {
    arena: Arc<SharedArena>,
    table: OnceCell<Vec<Context>>,
    /// When the command began.
    began: Instant,
}

impl Common {
    /// Of a command that begins now.
    pub(super) fn new() -> Self {
        Common { arena: Arc::default(), table: OnceCell::new(), began: Instant::now() }
    }
}

impl SessionArgs {
    /// A session of the folder's graph.
    pub(super) fn open(
        &self,
        folder: &ModelFolder,
        common: &Common,
        out: &Output,
    ) -> Result<Session, CliError> {
        self.open_graph(Session::builder(), &folder.graph(), common, out)
    }

    /// A session of the graph in the file `path`, which `builder` makes.
    pub(super) fn open_graph(
        &self,
        builder: SessionBuilder,
        path: &Path,
        common: &Common,
        out: &Output,
    ) -> Result<Session, CliError> {
        let desc = self.table.cache.desc()?;
        let table = match common.table.get() {
            Some(table) => table.clone(),
            None => {
                let table = open_table(&self.table.device, true, &desc)?;
                common.table.get_or_init(|| table).clone()
            }
        };
        let apis: Vec<&str> = table.iter().map(|context| context.info().api).collect();
        let (graph, _) = load_on(path, None, &apis, false, out)?;
        let _spinner = out.progress("preparing", None);
        let builder = builder.graph(graph).context_desc(desc.clone()).shared_arena(Arc::clone(&common.arena));
        let builder = self.precision.apply(self.ending.apply_whole(builder, common.began));
        let builder = self.tuning.apply(builder, desc.cache_dir.clone());
        self.table.place.build(builder, table, desc.cache_dir)
    }

    /// What a command failed with: `error`, unless its time was up.
    pub(super) fn ended(&self, common: &Common, error: CliError) -> CliError {
        self.ending.ended(common.began, error)
    }
}

/// What texts must be.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
struct GrammarArgs {
    /// Each text is JSON that the schema in this file describes.
    #[arg(long, value_name = "FILE")]
    json_schema: Option<PathBuf>,
    /// Each text follows the grammar in this file, in Lark's notation.
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
    /// Each text is matched by this regular expression.
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,
}

impl GrammarArgs {
    fn read(&self) -> Result<Option<Grammar>, CliError> {
        let text = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|source| GenerateError::Read { path: path.clone(), source })
        };
        Ok(match self {
            GrammarArgs { json_schema: Some(path), .. } => Some(Grammar::JsonSchema(text(path)?)),
            GrammarArgs { grammar: Some(path), .. } => Some(Grammar::Lark(text(path)?)),
            GrammarArgs { regex, .. } => regex.clone().map(Grammar::Regex),
        })
    }
}

/// How tokens are chosen. What is not given is as the model's settings say.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SamplingArgs {
    /// 0 takes the most likely token, 1 each as often as it is likely, more the unlikely ones more often. Where the
    /// settings are greedy, any other option of sampling makes it 1.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Choose among so many of the most likely tokens; 0 is all.
    #[arg(long, value_name = "TOKENS")]
    top_k: Option<usize>,
    /// Choose among the most likely tokens that have this share of the probability together.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Choose among tokens that have this share of the most likely one's probability.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Makes tokens that were there less likely, above 1.
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Another seed gives another text, the same one the same.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where tokens are chosen: on a GPU, which gives the host the likely ones alone, or on the host, which
    /// gets all logits.
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    sample_on: Choice,
    /// Take the graph whose name ends so, such as q4f16 of onnx/model_q4f16.onnx.
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
}

/// Where tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Choice {
    /// On a GPU where the vocabulary is large.
    Auto,
    /// On the host.
    Host,
    /// On the device.
    Device,
}

impl SamplingArgs {
    /// Reads a model's folder, or a GGUF file.
    pub(super) fn open(&self, model: &Path) -> Result<ModelFolder, CliError> {
        let folder = match &self.variant {
            Some(variant) => ModelFolder::open_variant(model, variant)?,
            None => ModelFolder::open(model)?,
        };
        Ok(folder.sample_on(match self.sample_on {
            Choice::Auto => SampleOn::Auto,
            Choice::Host => SampleOn::Host,
            Choice::Device => SampleOn::Device,
        }))
    }

    /// The model's `settings` with what is given instead.
    pub(super) fn over(&self, settings: Sampling) -> Sampling {
        let &SamplingArgs { repetition_penalty, temperature, top_k, top_p, min_p, seed, .. } = self;
        SamplingOverrides { repetition_penalty, temperature, top_k, top_p, min_p, seed }.over(settings)
    }
}

#[derive(Serialize)]
struct Report<'a> {
    model: String,
    device: String,
    /// Tokens that a prompt and its text may have.
    context: usize,
    /// Of keys and values; nothing where they grow.
    cache_bytes: Option<u64>,
    /// Of prompts that came and went.
    batch: Option<Batch>,
    /// Plans that were made for all texts.
    plans: u64,
    remarks: &'a [String],
    texts: &'a [Text],
}

#[derive(Serialize)]
struct Batch {
    /// Runs of the model, and tokens that ran in them.
    steps: u64,
    tokens: u64,
    /// Tokens of prompts that were in pages already.
    reused_tokens: u64,
    most_texts: usize,
    /// Texts that were set aside for want of pages, and computed again.
    preempted: u64,
    seconds: f64,
    /// New tokens of all texts together.
    tokens_per_s: f64,
    pages: Option<Pages>,
}

#[derive(Serialize)]
struct Pages {
    pages: usize,
    page_tokens: usize,
    cached: usize,
    copied: u64,
    evicted: u64,
}

impl Batch {
    fn new(counts: BatchCounts, texts: &[Text], seconds: f64, pool: Option<&PagePool>) -> Self {
        let made: usize = texts.iter().map(|text| text.tokens.len()).sum();
        let pages = pool.map(|pool| {
            let PageCounts { pages, cached, copied, evicted, .. } = pool.counts();
            Pages { pages, page_tokens: pool.page_tokens(), cached, copied, evicted }
        });
        let BatchCounts { steps, tokens, reused_tokens, most_texts, preempted } = counts;
        let tokens_per_s = if seconds > 0.0 { made as f64 / seconds } else { 0.0 };
        Batch { steps, tokens, reused_tokens, most_texts, preempted, seconds, tokens_per_s, pages }
    }

    fn line(&self) -> String {
        let mut line = format!(
            "all: {:.1} tokens/s, {} steps of at most {} texts",
            self.tokens_per_s, self.steps, self.most_texts
        );
        if self.reused_tokens > 0 {
            line += &format!("; {} tokens of prompts shared", self.reused_tokens);
        }
        if self.preempted > 0 {
            line += &format!("; {} times a text was computed again for want of pages", self.preempted);
        }
        line
    }
}

#[derive(Serialize)]
struct Text {
    prompt: String,
    text: String,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Tokens of the prompt that were in the cache already.
    reused_tokens: usize,
    /// Tokens that were guessed, and those of them that became part of the text.
    guessed_tokens: usize,
    accepted_tokens: usize,
    /// "end", "stop", "grammar", "length", "context", "cancelled".
    finish: &'static str,
    /// Planning and binding.
    prepare_ms: f64,
    prompt_ms: f64,
    prompt_tokens_per_s: f64,
    generation_ms: f64,
    /// Of the tokens after the first one.
    tokens_per_s: f64,
}

impl Text {
    fn new(prompt: &str, made: &Generated) -> Self {
        Text {
            prompt: prompt.to_owned(),
            text: made.text.clone(),
            tokens: made.tokens.clone(),
            prompt_tokens: made.prompt_tokens,
            reused_tokens: made.reused_tokens,
            guessed_tokens: made.guessed_tokens,
            accepted_tokens: made.accepted_tokens,
            finish: match made.finish {
                Finish::End(_) => "end",
                Finish::Stop(_) => "stop",
                Finish::Grammar => "grammar",
                Finish::Length => "length",
                Finish::Context => "context",
                Finish::Cancelled => "cancelled",
            },
            prepare_ms: made.prepare_time.as_secs_f64() * 1e3,
            prompt_ms: made.prompt_time.as_secs_f64() * 1e3,
            prompt_tokens_per_s: made.prompt_tokens_per_s(),
            generation_ms: made.generation_time.as_secs_f64() * 1e3,
            tokens_per_s: made.tokens_per_s(),
        }
    }

    /// Whether anything is known of it: a text that is cancelled before its first token has nothing to tell.
    fn has_begun(&self) -> bool {
        !self.tokens.is_empty() || self.finish != "cancelled"
    }

    fn line(&self) -> String {
        let mut line = format!(
            "prompt: {} tokens, {:.1} tokens/s; text: {} tokens, {:.1} tokens/s; ended by {}; {:.0} ms to plan",
            self.prompt_tokens,
            self.prompt_tokens_per_s,
            self.tokens.len(),
            self.tokens_per_s,
            self.finish,
            self.prepare_ms
        );
        if self.guessed_tokens > 0 {
            line += &format!("; {} of {} guesses accepted", self.accepted_tokens, self.guessed_tokens);
        }
        if self.reused_tokens > 0 {
            line += &format!("; {} tokens of the prompt reused", self.reused_tokens);
        }
        line
    }
}

pub(super) fn run(args: &Args, out: &mut Output) -> Result<ExitCode, CliError> {
    let common = Common::new();
    texts(args, &common, out).map_err(|e| args.session.ended(&common, e))
}

/// The generator that arguments ask for, with room for `context` tokens.
fn generator(
    args: &Args,
    folder: ModelFolder,
    context: usize,
    common: &Common,
    out: &Output,
) -> Result<Generator, CliError> {
    let mut generator = match args.pages {
        Some(pages) => {
            let session = args.session.open(&folder, common, out)?;
            let _spinner = out.progress("planning", None);
            let rows = args.page_tokens.map(|rows| rows as usize);
            let options = PageOptions { rows, ..PageOptions::new(pages as usize) };
            let pool = PagePool::new(&folder, &session, &options)?;
            Generator::with_pages(folder, session, Some(context), &pool)?
        }
        None => Generator::open(folder, Some(context), |builder, path| {
            args.session.open_graph(builder, path, common, out)
        })?,
    };
    if let Some(draft) = &args.draft {
        let folder = ModelFolder::open(draft)?.cache_type(args.cache_type);
        let session = args.session.open(&folder, common, out)?;
        let context = context.min(folder.context());
        let draft = Generator::new(folder, session, Some(context))?;
        generator = generator.with_draft(draft, usize::from(args.draft_tokens))?;
    }
    if let Some(file) = args.prompt_cache.as_ref().filter(|file| file.exists()) {
        generator.restore(file)?;
    }
    Ok(generator)
}

fn texts(args: &Args, common: &Common, out: &mut Output) -> Result<ExitCode, CliError> {
    let folder = args.sampling.open(&args.model)?.template_args(template_args(args)?);
    let folder = folder.cache_type(args.cache_type);
    if let Some(file) = &args.prompt_cache {
        check_cache(&folder, file)?;
    }
    let given = given(&args.prompt, args.prompts.as_ref())?;
    let chats = given.iter().enumerate().map(|(at, text)| messages(args, text, at >= args.prompt.len()));
    let chats: Vec<Vec<Message>> = chats.collect::<Result<_, CliError>>()?;
    let prompts: Vec<Prompt<'_>> = match args.chat {
        true => chats.iter().map(|messages| Prompt::Chat(messages)).collect(),
        false => given.iter().map(|text| Prompt::Text(text)).collect(),
    };
    let sampling = args.sampling.over(folder.sampling());
    sampling.check()?;
    let mut longest = 0;
    for prompt in &prompts {
        longest = longest.max(folder.tokens(*prompt)?.len());
    }
    let needed = longest.saturating_add(args.max_tokens).saturating_add(1).max(2);
    // Sizes that similar prompts share.
    let needed = needed.checked_next_multiple_of(256).unwrap_or(needed).min(folder.context());
    let grammar = args.grammar.read()?;
    let context = args.context.unwrap_or(needed);
    let has_encoder = folder.encoder().is_some();
    let mut generator = generator(args, folder, context, common, out)?;
    let device = generator.session().devices().next().map(|d| d.name.clone()).unwrap_or_default();
    let remarks = generator.remarks();
    for remark in &remarks {
        note(out, remark);
    }
    if let Some(size) = generator.cache_bytes().filter(|_| out.verbose() > 0) {
        note(out, &format!("{} tokens of context, {} of keys and values", generator.context(), bytes(size)));
    }
    let options = GenerateOptions {
        max_tokens: Some(args.max_tokens),
        sampling,
        stop: args.stop.clone(),
        ignore_end: args.ignore_end,
        grammar,
        lookup: usize::from(args.lookup),
        reuse: args.prompt_cache.is_some(),
        cancel: None,
    };
    let (mut texts, mut batch) = (Vec::new(), None);
    let mut all: Vec<(&String, Prompt<'_>)> = given.iter().zip(prompts).collect();
    let guesses = args.lookup > 0 || args.draft.is_some();
    if all.len() > 1 && !guesses && !has_encoder && args.prompt_cache.is_none() {
        let made = in_turns(&mut generator, &all, &options, usize::from(args.batch), out)?;
        note(out, &made.1.line());
        (texts, batch) = (made.0, Some(made.1));
        all.clear();
    }
    for group in all.chunks(usize::from(args.batch)) {
        let is_first = texts.is_empty();
        let made = together(&mut generator, group, &options, !is_first, out)?;
        if let Some(file) = args.prompt_cache.as_ref().filter(|_| is_first) {
            generator.save(file)?;
        }
        texts.extend(made);
        if texts.iter().any(|text| text.finish == "cancelled") {
            break;
        }
    }
    let is_cancelled = texts.iter().any(|text| text.finish == "cancelled");
    let without = given.len() - texts.iter().filter(|text| text.has_begun()).count();
    if is_cancelled && without > 0 {
        note(out, &format!("no text for {}", count(without, "prompt")));
    }
    out.json(&Report {
        model: args.model.display().to_string(),
        device,
        context: generator.context(),
        cache_bytes: generator.cache_bytes(),
        batch,
        plans: generator.plans_made(),
        remarks: &remarks,
        texts: &texts,
    })?;
    if is_cancelled { Err(CliError::Interrupted) } else { Ok(ExitCode::SUCCESS) }
}

/// Texts of options, then those of a file with one in each line, or of standard input where the file is `-`.
pub(super) fn given(options: &[String], file: Option<&PathBuf>) -> Result<Vec<String>, CliError> {
    let mut given = options.to_vec();
    let Some(path) = file else { return Ok(given) };
    let is_input = path.as_os_str() == "-";
    let text =
        if is_input { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
    let text = text.map_err(|source| GenerateError::Read { path: path.clone(), source })?;
    given.extend(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
    if given.is_empty() {
        let name = if is_input { "standard input".to_owned() } else { path.display().to_string() };
        return Err(CliError::usage(format!("{name} has no text: give one in each line")));
    }
    Ok(given)
}

/// Makes the texts of prompts, at most `batch` at once; one that ends makes room for the next. The first is printed as it
/// comes, the others in their order as soon as they are whole.
fn in_turns(
    generator: &mut Generator,
    all: &[(&String, Prompt<'_>)],
    options: &GenerateOptions,
    batch: usize,
    out: &mut Output,
) -> Result<(Vec<Text>, Batch), CliError> {
    let first = Rc::new(RefCell::new(String::new()));
    let start = std::time::Instant::now();
    let texts = batch.min(all.len());
    let mut batcher = Batcher::new(generator, BatchOptions { texts, ..BatchOptions::default() })?;
    let mut ids = Vec::new();
    for (at, (_, prompt)) in all.iter().enumerate() {
        let pieces = Rc::clone(&first);
        ids.push(batcher.add(*prompt, options.clone(), move |piece| {
            if at == 0 {
                pieces.borrow_mut().push_str(piece);
            }
            ControlFlow::Continue(())
        })?);
    }
    let (mut made, mut texts) = (BTreeMap::new(), Vec::new());
    while texts.len() < all.len() {
        made.extend(batcher.step()?);
        if texts.is_empty() {
            out.piece(&first.take())?;
        }
        while let Some(id) = ids.get(texts.len())
            && let Some(done) = made.remove(id)
        {
            let at = texts.len();
            texts.push(shown(all[at].0, &done, at == 0, out)?);
        }
    }
    let counts = batcher.counts();
    drop(batcher);
    let batch = Batch::new(counts, &texts, start.elapsed().as_secs_f64(), generator.pages());
    Ok((texts, batch))
}

/// Makes the texts of several prompts at once. The first is printed as it comes, the others after it.
fn together(
    generator: &mut Generator,
    group: &[(&String, Prompt<'_>)],
    options: &GenerateOptions,
    is_later: bool,
    out: &mut Output,
) -> Result<Vec<Text>, CliError> {
    if is_later {
        out.line("")?;
    }
    let mut written = Ok(());
    let mut first = |piece: &str| {
        written = out.piece(piece);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let mut others = vec![|_: &str| ControlFlow::Continue(()); group.len() - 1];
    let told = others.iter_mut().map(|told| told as &mut dyn FnMut(&str) -> ControlFlow<()>);
    let told = std::iter::once(&mut first as &mut dyn FnMut(&str) -> ControlFlow<()>).chain(told);
    let requests = group.iter().zip(told);
    let requests =
        requests.map(|((_, prompt), told)| TextRequest { prompt: *prompt, options, told }).collect();
    let all = generator.generate_all(requests)?;
    written?;
    let mut texts = Vec::new();
    for (i, (made, (prompt, _))) in all.iter().zip(group).enumerate() {
        texts.push(shown(prompt, made, i == 0, out)?);
    }
    Ok(texts)
}

/// Ends the text of a prompt on the screen; the first one was printed as it came.
fn shown(prompt: &str, made: &Generated, is_first: bool, out: &mut Output) -> Result<Text, CliError> {
    let text = Text::new(prompt, made);
    if text.has_begun() {
        if !is_first {
            out.line("")?;
            out.piece(&made.text)?;
        }
        out.line("")?;
        out.flush()?;
        note(out, &text.line());
    }
    Ok(text)
}

/// The messages of a chat: those of a line of a file that has them in JSON, else `text` of the user.
fn messages(args: &Args, text: &str, is_line: bool) -> Result<Vec<Message>, CliError> {
    let system = args.system.iter().map(|system| Message::new("system", system));
    let is_list = is_line && args.chat && text.trim_start().starts_with("[{");
    let said = match is_list {
        true => serde_json::from_str(text)
            .map_err(|e| CliError::usage(format!("a line of --prompts is no list of messages: {e}")))?,
        false => vec![Message::new("user", text)],
    };
    Ok(system.chain(said).collect())
}

/// What the chat template is given besides the messages.
fn template_args(args: &Args) -> Result<TemplateArgs, CliError> {
    let mut all = TemplateArgs::default();
    if let Some(path) = &args.tools {
        let text = read_bytes(path)?;
        let text = std::str::from_utf8(&text).map_err(|e| CliError::content(path, e.to_string()))?;
        all.set("tools", text)?;
    }
    for arg in &args.template_arg {
        let Some((name, json)) = arg.split_once('=') else {
            return Err(CliError::usage(format!("--template-arg {arg}: give NAME=JSON")));
        };
        all.set(name, json).map_err(|e| CliError::usage(format!("--template-arg {arg}: {e}")))?;
    }
    Ok(all)
}

/// Whether a conversation can be written to `path` once there is one.
fn check_cache(folder: &ModelFolder, path: &Path) -> Result<(), CliError> {
    if folder.encoder().is_some() {
        return Err(CliError::Unsupported("--prompt-cache of a model with an encoder".to_owned()));
    }
    if path.is_dir() {
        return Err(CliError::content(path, "this is a folder: name a file"));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let probe = parent.join(format!(".{name}.{}.probe", std::process::id()));
    std::fs::File::create(&probe).map_err(|e| CliError::file("write", path, e))?;
    std::fs::remove_file(&probe).map_err(|e| CliError::file("write", path, e))
}

/// Says something about the texts where it does not mix with them.
fn note(out: &Output, text: &str) {
    if !out.is_json() {
        // No one may be reading any more.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_sampling_are_over_the_settings() {
        let none = SamplingArgs {
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            seed: 3,
            sample_on: Choice::Auto,
            variant: None,
        };
        let settings = Sampling { temperature: 0.7, top_k: 50, ..Sampling::GREEDY };
        assert_eq!(none.over(settings), Sampling { seed: 3, ..settings });
        assert_eq!(none.over(Sampling::GREEDY).temperature, 0.0);
        let top_k = SamplingArgs { top_k: Some(4), ..none.clone() };
        assert_eq!(
            top_k.over(Sampling::GREEDY),
            Sampling { temperature: 1.0, top_k: 4, seed: 3, ..Sampling::GREEDY }
        );
        assert_eq!(top_k.over(settings).temperature, 0.7);
        let greedy = SamplingArgs { temperature: Some(0.0), ..top_k };
        assert_eq!(greedy.over(settings).temperature, 0.0);
    }
}
