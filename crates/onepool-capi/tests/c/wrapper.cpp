// wrapper MODEL DEVICE: the C++ wrapper: owners, spans, exceptions.
#define ONEPOOL_DEFINE_DLPACK
#include "onepool.hpp"

#include <atomic>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>


namespace {

int failures = 0;

void check_that(bool holds, const char *what, int line) {
    if (!holds) {
        std::cerr << "wrapper.cpp:" << line << ": " << what << "\n  the last error: " << onepool_last_error() << "\n";
        ++failures;
    }
}
#define CHECK(condition) check_that(condition, #condition, __LINE__)

template <typename F> bool throws(onepool_status status, F call) {
    try {
        call();
    } catch (const onepool::Error &error) {
        return error.status() == status && std::strlen(error.what()) > 0;
    }
    return false;
}

const std::vector<std::int64_t> dims = {1, 3, 64, 64};
constexpr std::size_t elements = 3 * 64 * 64;

void test(const std::string &program, const std::string &model, const std::string &device) {
    onepool::Options options;
    options.devices = {device};
    const auto session = onepool::Session::open(model, options);
    const auto inputs = session.inputs();
    CHECK(inputs.size() == 1 && inputs[0].name == "noisy" && inputs[0].dims->size() == 4);
    CHECK(inputs[0].symbols[0] == "batch" && session.outputs()[0].name == "clean");

    std::vector<float> noisy(elements), clean(elements);
    for (std::size_t i = 0; i < elements; ++i) {
        noisy[i] = static_cast<float>(i % 251) / 251.0f;
    }
    const auto in = [&] { return onepool::Memory::span("noisy", onepool::Span<const float>(noisy)).shape(dims); };
    const auto out = [&] { return onepool::Memory::span("clean", onepool::Span<float>(clean)); };

    // By value and by reference are equal.
    auto own = session.bind({onepool::Memory::value("noisy", onepool::Span<float>(noisy), dims)}, {});
    CHECK(throws(ONEPOOL_ERROR_NOT_RUN, [&] { own.get_output<float>("clean"); }));
    own.run();
    const auto expected = own.get_output<float>("clean");
    CHECK(throws(ONEPOOL_ERROR_WRONG_TYPE, [&] { own.get_output<double>("clean"); }));
    CHECK(session.plan_output({in()}, "clean").dims == dims);
    auto binding = session.bind({in()}, {out()});
    binding.run();
    CHECK(clean == expected && binding.verdicts().size() == 2 && !binding.verdicts()[0].sentence.empty());
    CHECK(binding.input_info("noisy").bytes == elements * 4 && binding.output_info("clean").dims == dims);

    // What the model says of itself, and options.
    const auto said = session.metadata();
    CHECK(said.format == "ONNX" && said.opsets.count("") == 1);
    auto placed = options;
    placed.operators = {{"Conv", 0}};
    placed.exact_activations = true;
    placed.submission = ONEPOOL_SUBMISSION_AT_MOST;
    placed.submission_limit = std::chrono::milliseconds(1);
    auto other = onepool::Session::open(model, placed).bind({onepool::Memory::value("noisy", onepool::Span<float>(noisy), dims)}, {});
    other.run();
    CHECK(other.get_output<float>("clean").size() == elements);
    placed.rest = 70;
    CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] { onepool::Session::open(model, placed); }));

    // What the library says: a function that throws does no harm.
    std::atomic<int> messages{0};
    onepool::log_to(ONEPOOL_LOG_TRACE, [&](onepool_log_level, const std::string &target, const std::string &message) {
        messages += !target.empty() && !message.empty();
        CHECK(throws(ONEPOOL_ERROR_BUSY, [] { onepool::log_to(ONEPOOL_LOG_ERROR, nullptr); }));
        throw std::runtime_error("lost");
    });
    std::vector<unsigned char> newer = {0x08, 0x63, 0x3a, 0x03, 0x12, 0x01, 'g', 0x42, 0x03, 0x10, 0xe7, 0x07};
    try {
        onepool::Session::load(onepool::Span<const unsigned char>(newer), options);
    } catch (const onepool::Error &) {
        // A graph of nothing.
    }
    const int heard = messages;
    CHECK(heard >= 1);
    onepool::log_to(ONEPOOL_LOG_TRACE, nullptr);
    try {
        onepool::Session::load(onepool::Span<const unsigned char>(newer), options);
    } catch (const onepool::Error &) {
    }
    CHECK(messages == heard);

    // An owner that moved.
    auto moved = std::move(binding);
    CHECK(throws(ONEPOOL_ERROR_INVALID_HANDLE, [&] { binding.run(); }));
    std::fill(clean.begin(), clean.end(), 0.0f);
    moved.run();
    CHECK(clean == expected);

    // On a thread of its own: a callback that throws does no harm.
    std::atomic<int> calls{0};
    auto run = moved.start([&](onepool_status status, const char *) {
        calls += status == ONEPOOL_OK;
        throw std::runtime_error("lost");
    });
    run.wait();
    CHECK(calls == 1 && run.wait_for(std::chrono::nanoseconds(0)));
    const onepool::Cancel cancel;
    cancel.trigger();
    CHECK(throws(ONEPOOL_ERROR_CANCELLED, [&] { moved.run({std::chrono::nanoseconds(0), &cancel}); }));
    CHECK(throws(ONEPOOL_ERROR_TIME_LIMIT, [&] { moved.run({std::chrono::nanoseconds(1), nullptr}); }));
    auto cancelled = moved.start({}, {std::chrono::nanoseconds(0), &cancel});
    CHECK(throws(ONEPOOL_ERROR_CANCELLED, [&] { cancelled.wait(); }));

    // Regions, views, other memory.
    const onepool::Region region(elements * 4), result(elements * 4);
    {
        auto view = region.write();
        std::copy(noisy.begin(), noisy.end(), view.as<float>().begin());
        moved.rebind_input(onepool::Memory::region("noisy", region).shape(dims));
        moved.rebind_output(onepool::Memory::region("clean", result));
        CHECK(throws(ONEPOOL_ERROR_BUSY, [&] { moved.run(); }));
    }
    moved.run();
    {
        const auto view = result.read();
        CHECK(std::equal(expected.begin(), expected.end(), view.as<float>().begin()));
        CHECK(throws(ONEPOOL_ERROR_WRONG_TYPE, [&] { onepool::Region(3).read().as<float>(); }));
    }
    own.set_input(onepool::Memory::value("noisy", onepool::Span<float>(noisy), dims));
    own.run();
    CHECK(own.map_output("clean").as<float>()[7] == expected[7]);
    CHECK(own.map_input("noisy").bytes() == elements * 4);

    // DLPack.
    DLManagedTensorVersioned *tensor = own.output_dlpack("clean", true);
    CHECK(std::memcmp(tensor->dl_tensor.data, expected.data(), elements * 4) == 0);
    tensor->flags = 0;
    moved.rebind_input(onepool::Memory::dlpack("noisy", tensor));
    moved.run();

    // What is wrong is thrown.
    CHECK(throws(ONEPOOL_ERROR_MODEL, [] { onepool::Session::open("no/such/file.onnx"); }));
    onepool::Options none;
    none.devices = {"abacus"};
    CHECK(throws(ONEPOOL_ERROR_NO_DEVICE, [&] { onepool::Session::open(model, none); }));
    std::vector<double> wide(elements);
    CHECK(throws(ONEPOOL_ERROR_WRONG_TYPE, [&] {
        session.bind({onepool::Memory::span("noisy", onepool::Span<double>(wide)).shape(dims)}, {});
    }));
    CHECK(throws(ONEPOOL_ERROR_WRONG_SHAPE, [&] { session.bind({in().strides({1, 2, 3, 4})}, {}); }));
    CHECK(throws(ONEPOOL_ERROR_WRONG_SHAPE, [&] { session.bind({in().strides({1})}, {}); }));
    CHECK(throws(ONEPOOL_ERROR_UNKNOWN_NAME, [&] { session.bind({in(), onepool::Memory::own("loud")}, {}); }));

    // From memory.
    std::ifstream file(model, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const auto *data = reinterpret_cast<const unsigned char *>(bytes.data());
    const auto loaded = onepool::Session::load({data, bytes.size()}, options);
    CHECK(loaded.inputs()[0].name == "noisy");

    // A picture of bytes.
    onepool::Options framed = options;
    framed.frames = {onepool::frame("noisy", false, ONEPOOL_FORMAT_GRAY8, 64, 64)};
    framed.frames[0].channels = ONEPOOL_CHANNELS_RGB;
    std::vector<std::uint8_t> gray(64 * 64, 51);
    const auto with_frame = onepool::Session::open(model, framed);
    auto from_bytes = with_frame.bind({onepool::Memory::span("noisy", onepool::Span<const std::uint8_t>(gray))}, {});
    const std::vector<float> fifth(elements, 51.0f * (1.0f / 255.0f));
    auto from_floats = session.bind({onepool::Memory::value("noisy", onepool::Span<const float>(fifth), dims)}, {});
    from_bytes.run();
    from_floats.run();
    CHECK(from_bytes.get_output<float>("clean") == from_floats.get_output<float>("clean"));
    framed.frames[0].format = 99;
    CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] { onepool::Session::open(model, framed); }));
    CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] {
        session.bind({in()}, {onepool::Memory::own("clean").updates("noisy")});
    }));

    // Text.
    const std::string folder = std::string(model).substr(0, std::string(model).rfind('/')) + "/tiny_llm/fixed";
    onepool::Options plain;
    plain.devices = options.devices;
    onepool::GeneratorOptions opening;
    opening.context = 128;
    onepool::Generator generator(folder, plain, opening);
    CHECK(generator.context() == 128);
    onepool::TextOptions text;
    text.max_tokens = 12;
    text.ignore_end = true;
    std::string told;
    const auto made = generator.generate("Hello", text, [&](const std::string &piece) {
        told += piece;
        return true;
    });
    CHECK(!told.empty() && told == made.text && made.numbers.tokens == 12);
    text.temperature = 0.8f;
    text.seed = 7;
    CHECK(generator.generate("Hello", text).text == generator.generate("Hello", text).text);
    CHECK(generator.generate({{"user", "Hello"}}, text).numbers.prompt_tokens > made.numbers.prompt_tokens);
    text.temperature = -1.0f;
    CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] { generator.generate("Hello", text); }));
    text.temperature = 0.0f;
    bool thrown = false;
    try {
        generator.generate("Hello", text, [](const std::string &) -> bool { throw std::runtime_error("mine"); });
    } catch (const std::runtime_error &error) {
        thrown = std::string(error.what()) == "mine";
    }
    CHECK(thrown);

    // What holds a text, and guesses.
    onepool::TextOptions held;
    held.grammar = "(ab){3}";
    held.grammar_kind = ONEPOOL_GRAMMAR_REGEX;
    CHECK(generator.generate("Hello", held).text == "ababab");
    held.grammar = "(";
    CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] { generator.generate("Hello", held); }));
    held.grammar_kind = ONEPOOL_GRAMMAR_NONE;
    CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] { generator.generate("Hello", held); }));
    onepool::TextOptions again;
    again.max_tokens = 12;
    again.ignore_end = true;
    again.lookup = 4;
    CHECK(generator.generate("Hello", again).text == made.text);
    opening.draft = folder;
    opening.draft_tokens = 3;
    opening.sample_on = ONEPOOL_SAMPLE_ON_HOST;
    onepool::Generator drafting(folder, plain, opening);
    again.lookup = 0;
    const auto drafted = drafting.generate("Hello", again);
    CHECK(drafted.text == made.text && drafted.numbers.accepted_tokens > 0);
    opening.draft = "/nowhere";
    CHECK(throws(ONEPOOL_ERROR_MODEL, [&] { onepool::Generator nowhere(folder, plain, opening); }));

    // A conversation in a file.
    const std::string file_of = program + ".conversation";
    drafting.save(file_of);
    again.reuse = true;
    CHECK(generator.restore(file_of) >= 6);
    CHECK(generator.generate("Hello" + made.text, again).numbers.reused_tokens > 0);
    CHECK(throws(ONEPOOL_ERROR_MODEL, [&] { generator.restore("/nowhere"); }));
    CHECK(std::remove(file_of.c_str()) == 0);

    // Texts that come and go.
    again.reuse = false;
    {
        onepool::Batch opened(generator, 2, 16);
        onepool::Batch batch = std::move(opened);
        std::string pieces;
        batch.add("Hello", again, [&](const std::string &piece) {
            pieces += piece;
            return true;
        });
        const auto second = batch.add({{"user", "Hello"}}, again);
        const auto third = batch.add("Hello", again, [](const std::string &) -> bool { throw std::runtime_error("mine"); });
        CHECK(throws(ONEPOOL_ERROR_BUSY, [&] { generator.generate("Hello", again); }));
        std::map<std::uint64_t, onepool::Generated> all;
        int mine = 0;
        while (!batch.idle()) {
            try {
                for (auto &over : batch.step()) {
                    all.insert(std::move(over));
                }
            } catch (const std::runtime_error &error) {
                mine += std::string(error.what()) == "mine" ? 1 : 0;
            }
        }
        CHECK(all.size() == 3 && all[0].text == made.text && pieces == made.text && mine == 1);
        CHECK(all[second].numbers.tokens == 12 && all[third].numbers.finish == ONEPOOL_FINISH_CANCELLED);
        CHECK(batch.counts().steps > 12 && batch.counts().most_texts == 2);
        again.temperature = -1.0f;
        CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] { batch.add("Hello", again); }));
        again.temperature = {};
    }
    CHECK(generator.generate("Hello", again).text == made.text);

    // A cache in pages, in memory of the program's, which a second generator has too.
    {
        const std::string paged = folder + "/../paged";
        onepool::GeneratorOptions in_pages;
        in_pages.pages = 32;
        in_pages.page_tokens = 4;
        const onepool::Region place(onepool::Generator(paged, plain, in_pages).page_counts().region_bytes);
        in_pages.page_memory = &place;
        onepool::Generator first(paged, plain, in_pages);
        onepool::GeneratorOptions same;
        same.pages_of = &first;
        onepool::Generator second(paged, plain, same);
        std::map<std::uint64_t, onepool::Generated> all;
        {
            onepool::Batch batch(first);
            std::size_t before = 0;
            const auto number = batch.add("Hello", again, [&](const std::string &piece) { return before += piece.size(), true; });
            batch.step();
            batch.step();
            batch.save(number, file_of);
            const std::size_t begun = before;
            const auto fork = batch.fork(number, again);
            CHECK(first.page_counts().used > 0);
            CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] { batch.fork(77, again); }));
            CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] { batch.save(77, file_of); }));
            while (!batch.idle()) {
                for (auto &over : batch.step()) {
                    all.insert(std::move(over));
                }
            }
            const std::string rest = all[number].text.substr(begun);
            CHECK(all.size() == 2 && begun > 0 && !rest.empty() && all[fork].text.compare(0, rest.size(), rest) == 0);
        }
        first.clear_pages();
        onepool::Batch batch(second);
        CHECK(batch.restore(file_of) >= 4 && first.page_counts().cached > 0);
        CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] { generator.clear_pages(); }));
        CHECK(std::remove(file_of.c_str()) == 0);
    }

    // Vectors of texts.
    onepool::Embedder first(folder + "/../../tiny_seq2seq/vectors", plain);
    const onepool::Embedder embedder = std::move(first);
    CHECK(embedder.dims() == 16);
    const auto vectors = embedder.embed({"Hello", "a fox", "hello"}, "query");
    CHECK(vectors.size() == 48 && vectors[0] != vectors[16]);
    CHECK(embedder.embed({"Hello"}, {}, 4).size() == 4);
    CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] { embedder.embed({"Hello"}, "answer"); }));
    CHECK(throws(ONEPOOL_ERROR_INVALID_ARGUMENT, [&] { embedder.embed({"Hello"}, {}, 17); }));
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    static_assert(onepool::dtype_of<const float>() == ONEPOOL_FLOAT32 && onepool::dtype_of<bool>() == ONEPOOL_BOOL);
    static_assert(onepool::dtype_of<std::uint16_t>() == ONEPOOL_UINT16 && onepool::dtype_of<long long>() == ONEPOOL_INT64);
    try {
        test(argv[0], argv[1], argv[2]);
    } catch (const std::exception &error) {
        std::cerr << "not expected: " << error.what() << "\n";
        return 1;
    }
    std::size_t left = 1;
    CHECK(onepool_live_handles(&left) == ONEPOOL_OK && left == 0);
    if (failures == 0) {
        std::cout << "all of wrapper passed\n";
    }
    return failures == 0 ? 0 : 1;
}
