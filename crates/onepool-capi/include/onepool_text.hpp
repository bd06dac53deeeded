// onepool_text.hpp: the part of onepool.hpp for texts, which includes it.
#ifndef ONEPOOL_TEXT_HPP
#define ONEPOOL_TEXT_HPP

#include "onepool.hpp"

namespace onepool {

/// One message of a chat: who says it and what, or in place of both an object in JSON with other fields, such as "tool_calls".
struct Message {
    std::string role = {}, content = {}, json = {};
};

/// How a text is made. What is not set is as the model's settings say.
struct TextOptions {
    std::size_t max_tokens = 0;
    std::optional<float> temperature = {};
    std::optional<std::uint64_t> top_k = {};
    std::optional<float> top_p = {};
    std::optional<float> min_p = {};
    std::optional<float> repetition_penalty = {};
    std::uint64_t seed = 0;
    std::vector<std::string> stop = {};
    bool ignore_end = false;
    const Cancel *cancel = nullptr;
    /// What the text must be, and of which kind that is.
    std::string grammar = {};
    onepool_grammar grammar_kind = ONEPOOL_GRAMMAR_NONE;
    bool reuse = false;
    std::size_t lookup = 0;
};

/// Called with each piece of text; false ends it. What it throws ends the text and is thrown again.
using Told = std::function<bool(const std::string &piece)>;

/// A text that was made.
struct Generated {
    std::string text = {};
    onepool_generated numbers = ONEPOOL_GENERATED_INIT;
};

namespace detail {
/// A prompt and options as the C interface has them. What they were made of must stay.
struct RawText {
    RawText(const std::string &prompt, const TextOptions &given) : RawText(given) { options.text = prompt.c_str(); }
    RawText(const std::vector<Message> &chat, const TextOptions &given) : RawText(given) {
        for (const Message &message : chat) {
            const char *json = message.json.empty() ? nullptr : message.json.c_str();
            messages.push_back({sizeof(onepool_message), message.role.c_str(), message.content.c_str(), json});
        }
        options.messages = messages.data();
        options.message_count = messages.size();
    }
    RawText(const RawText &) = delete;
    RawText &operator=(const RawText &) = delete;

    /// Without a prompt.
    explicit RawText(const TextOptions &given) {
        for (const std::string &text : given.stop) {
            stop.push_back(text.c_str());
        }
        options.max_tokens = given.max_tokens;
        options.temperature = address(given.temperature);
        options.top_k = address(given.top_k);
        options.top_p = address(given.top_p);
        options.min_p = address(given.min_p);
        options.repetition_penalty = address(given.repetition_penalty);
        options.seed = given.seed;
        options.stop = stop.data();
        options.stop_count = stop.size();
        options.ignore_end = given.ignore_end ? 1 : 0;
        options.cancel = given.cancel ? given.cancel->get() : nullptr;
        options.grammar = given.grammar_kind == ONEPOOL_GRAMMAR_NONE && given.grammar.empty() ? nullptr : given.grammar.c_str();
        options.grammar_kind = given.grammar_kind;
        options.reuse = given.reuse ? 1 : 0;
        options.lookup = given.lookup;
    }
    onepool_generate_options options = ONEPOOL_GENERATE_OPTIONS_INIT;

  private:
    template <typename T> static const T *address(const std::optional<T> &value) { return value ? &*value : nullptr; }

    std::vector<onepool_message> messages = {};
    std::vector<const char *> stop = {};
};

/// Who is told a text, and the text so far.
struct Telling {
    Told told;
    std::string text = {};
    std::exception_ptr thrown = {};

    static std::uint32_t tell(void *user, const char *piece, std::size_t bytes) noexcept {
        auto *telling = static_cast<Telling *>(user);
        try {
            const std::string part(piece, bytes);
            telling->text += part;
            return !telling->told || telling->told(part) ? 0 : 1;
        } catch (...) {
            telling->thrown = std::current_exception();
            return 1;
        }
    }
    /// Throws what was thrown, once.
    void rethrow() {
        if (thrown) {
            std::rethrow_exception(std::exchange(thrown, nullptr));
        }
    }
};
} // namespace detail

class Generator;

/// How a language model is opened. The defaults are those of onepool.h.
struct GeneratorOptions {
    std::size_t context = 0;
    std::string draft = {};
    std::size_t draft_tokens = 0;
    onepool_sample_on sample_on = ONEPOOL_SAMPLE_ON_AUTO;
    /// Of a graph whose cache is in pages.
    std::size_t pages = 0;
    std::size_t page_tokens = 0;
    const Region *page_memory = nullptr;
    const Generator *pages_of = nullptr;
    /// The end of the graph's name, as "q4f16".
    std::string variant = {};
    /// Variables of the chat template, as "tools", and their values in JSON.
    std::map<std::string, std::string> template_args = {};
    /// What caches hold: "f32", "f16", "q8" or "q4".
    std::string cache_type = {};
};

/// A language model made ready on devices, with the cache of one text.
class Generator {
  public:
    explicit Generator(const std::string &path, const Options &session = {}, const GeneratorOptions &options = {}) {
        const detail::RawOptions raw(session);
        onepool_generator_options given = ONEPOOL_GENERATOR_OPTIONS_INIT;
        given.pages = options.pages;
        given.page_tokens = options.page_tokens;
        given.page_memory = options.page_memory ? options.page_memory->get() : nullptr;
        given.pages_of = options.pages_of ? options.pages_of->get() : nullptr;
        given.context = options.context;
        given.draft = options.draft.empty() ? nullptr : options.draft.c_str();
        given.draft_tokens = options.draft_tokens;
        given.sample_on = options.sample_on;
        given.variant = options.variant.empty() ? nullptr : options.variant.c_str();
        std::vector<onepool_template_arg> args;
        for (const auto &arg : options.template_args) {
            args.push_back({sizeof(onepool_template_arg), arg.first.c_str(), arg.second.c_str()});
        }
        given.template_args = args.data();
        given.template_arg_count = args.size();
        given.cache_type = options.cache_type.empty() ? nullptr : options.cache_type.c_str();
        onepool_generator *handle = nullptr;
        check(onepool_generator_open(path.c_str(), &raw.options, &given, &handle));
        handle_.reset(handle);
    }
    std::size_t context() const {
        std::size_t tokens = 0;
        check(onepool_generator_context(handle_.get(), &tokens));
        return tokens;
    }
    /// Goes on from a text.
    Generated generate(const std::string &prompt, const TextOptions &options = {}, const Told &told = {}) {
        return make(detail::RawText(prompt, options), told);
    }
    /// Answers in a chat.
    Generated generate(const std::vector<Message> &chat, const TextOptions &options = {}, const Told &told = {}) {
        return make(detail::RawText(chat, options), told);
    }
    /// Writes the cache of the last conversation to a file.
    void save(const std::string &path) const { check(onepool_generator_save(handle_.get(), path.c_str())); }
    /// Fills the cache from such a file; gives the number of its tokens.
    std::size_t restore(const std::string &path) {
        std::size_t tokens = 0;
        check(onepool_generator_restore(handle_.get(), path.c_str(), &tokens));
        return tokens;
    }
    /// How the pages of its cache are used.
    onepool_page_counts page_counts() const {
        onepool_page_counts counts = ONEPOOL_PAGE_COUNTS_INIT;
        check(onepool_generator_page_counts(handle_.get(), &counts));
        return counts;
    }
    /// Gives up all cached pages.
    void clear_pages() { check(onepool_generator_clear_pages(handle_.get())); }
    onepool_generator *get() const noexcept { return handle_.get(); }

  private:
    Generated make(const detail::RawText &raw, const Told &told) {
        detail::Telling telling{told};
        Generated made;
        const onepool_status status =
            onepool_generate(handle_.get(), &raw.options, &detail::Telling::tell, &telling, &made.numbers);
        telling.rethrow();
        check(status);
        made.text = std::move(telling.text);
        return made;
    }
    detail::Owner<onepool_generator, onepool_generator_free> handle_;
};

/// Texts that come and go. It has its generator until it is destroyed.
class Batch {
  public:
    /// A text that has ended, and its number.
    using Ended = std::pair<std::uint64_t, Generated>;

    /// At most `texts` run at once, and `step_tokens` tokens in a step; 0 is as in onepool.h.
    explicit Batch(Generator &generator, std::size_t texts = 0, std::size_t step_tokens = 0) {
        const onepool_batch_options options = {sizeof(onepool_batch_options), texts, step_tokens};
        onepool_batch *handle = nullptr;
        check(onepool_batch_open(generator.get(), &options, &handle));
        handle_.reset(handle);
    }
    /// Adds a text; gives its number. `told` is called by another thread, while a step runs.
    std::uint64_t add(const std::string &prompt, const TextOptions &options = {}, Told told = {}) {
        return add(detail::RawText(prompt, options), std::move(told));
    }
    std::uint64_t add(const std::vector<Message> &chat, const TextOptions &options = {}, Told told = {}) {
        return add(detail::RawText(chat, options), std::move(told));
    }
    /// Adds a text that goes on from where another one is now; gives its number.
    std::uint64_t fork(std::uint64_t of, const TextOptions &options = {}, Told told = {}) {
        const detail::RawText raw(options);
        return adding(std::move(told), [&](detail::Telling *telling, std::uint64_t *text) {
            return onepool_batch_fork(handle_.get(), of, &raw.options, &detail::Telling::tell, telling, text);
        });
    }
    /// Writes what the cache has of a text to a file.
    void save(std::uint64_t text, const std::string &path) const {
        check(onepool_batch_save(handle_.get(), text, path.c_str()));
    }
    /// Reads such a file into pages; gives the number of its tokens that these have.
    std::size_t restore(const std::string &path) {
        std::size_t tokens = 0;
        check(onepool_batch_restore(handle_.get(), path.c_str(), &tokens));
        return tokens;
    }
    /// Runs a step; gives texts that have ended. Where a `told` has thrown, this throws it, and the next call gives them.
    std::vector<Ended> step() {
        std::uint64_t texts[16] = {};
        onepool_generated made[16] = {ONEPOOL_GENERATED_INIT};
        std::size_t count = 0;
        check(onepool_batch_step(handle_.get(), texts, made, 16, &count));
        for (std::size_t i = 0; i < count; ++i) {
            ended_.push_back({texts[i], {tellings_[texts[i]]->text, made[i]}});
        }
        for (const auto &telling : tellings_) {
            telling.second->rethrow();
        }
        for (const Ended &text : ended_) {
            tellings_.erase(text.first);
        }
        return std::exchange(ended_, {});
    }
    /// Whether no text runs or waits, and none that has ended is still to be given.
    bool idle() const {
        std::uint32_t idle = 0;
        check(onepool_batch_is_idle(handle_.get(), &idle));
        return idle != 0 && ended_.empty();
    }
    onepool_batch_counts counts() const {
        onepool_batch_counts counts = ONEPOOL_BATCH_COUNTS_INIT;
        check(onepool_batch_get_counts(handle_.get(), &counts));
        return counts;
    }
    onepool_batch *get() const noexcept { return handle_.get(); }

  private:
    std::uint64_t add(const detail::RawText &raw, Told told) {
        return adding(std::move(told), [&](detail::Telling *telling, std::uint64_t *text) {
            return onepool_batch_add(handle_.get(), &raw.options, &detail::Telling::tell, telling, text);
        });
    }
    template <typename Add> std::uint64_t adding(Told told, const Add &add) {
        auto telling = std::make_unique<detail::Telling>(detail::Telling{std::move(told)});
        std::uint64_t text = 0;
        check(add(telling.get(), &text));
        tellings_[text] = std::move(telling);
        return text;
    }
    std::map<std::uint64_t, std::unique_ptr<detail::Telling>> tellings_ = {};
    std::vector<Ended> ended_ = {};
    // Destroyed first: no text is told after it.
    detail::Owner<onepool_batch, onepool_batch_free> handle_;
};

/// A model that makes one vector of a text. Several threads may use it at once.
class Embedder {
  public:
    explicit Embedder(const std::string &path, const Options &options = {}) {
        const detail::RawOptions raw(options);
        onepool_embedder *handle = nullptr;
        check(onepool_embedder_open(path.c_str(), &raw.options, &handle));
        handle_.reset(handle);
        const char *nothing = "";
        check(onepool_embed(handle, &nothing, 1, nullptr, nullptr, 0, &dims_));
    }
    /// Elements of a vector.
    std::size_t dims() const noexcept { return dims_; }
    /// The vectors of texts, one after another, each of `dims` elements; 0 is all. `prompt` is a name of the model's settings,
    /// as "query".
    std::vector<float> embed(const std::vector<std::string> &texts, const std::string &prompt = {},
                             std::size_t dims = 0) const {
        std::vector<const char *> raw;
        for (const std::string &text : texts) {
            raw.push_back(text.c_str());
        }
        onepool_embed_options options = ONEPOOL_EMBED_OPTIONS_INIT;
        options.prompt = prompt.empty() ? nullptr : prompt.c_str();
        options.dims = dims;
        std::size_t made = dims > 0 && dims < dims_ ? dims : dims_;
        std::vector<float> vectors(texts.size() * made);
        check(onepool_embed(handle_.get(), raw.data(), raw.size(), &options, vectors.data(), vectors.size(), &made));
        return vectors;
    }
    onepool_embedder *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<onepool_embedder, onepool_embedder_free> handle_;
    std::size_t dims_ = 0;
};

} // namespace onepool

#endif // ONEPOOL_TEXT_HPP
