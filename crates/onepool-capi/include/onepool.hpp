// onepool.hpp: onepool.h for C++17, with owners and exceptions. Header-only; onepool.h says what each call does.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A call that fails throws onepool::Error. Owners may be moved and free what they own; an owner that was moved from owns
// nothing, and using it throws. Threads: as in onepool.h.
#ifndef ONEPOOL_HPP
#define ONEPOOL_HPP

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "onepool.h"

namespace onepool {

/// What went wrong: its status, and in words.
class Error : public std::runtime_error {
  public:
    Error(onepool_status status, const std::string &message) : std::runtime_error(message), status_(status) {}
    onepool_status status() const noexcept { return status_; }

  private:
    onepool_status status_;
};

/// Throws unless a call went well.
inline void check(onepool_status status) {
    if (status != ONEPOOL_OK) {
        throw Error(status, onepool_last_error());
    }
}

/// Hears a message of the library's: how urgent it is, who says it, and what. What it throws is lost.
using Logged = std::function<void(onepool_log_level level, const std::string &target, const std::string &message)>;

namespace detail {
inline void log(void *user, std::uint32_t level, const char *target, const char *message) noexcept {
    try {
        (*static_cast<Logged *>(user))(static_cast<onepool_log_level>(level), target, message);
    } catch (...) {
    }
}
} // namespace detail

/// Has messages of `level` and of more urgent levels told to a function, in place of the one before; without one, to none.
inline void log_to(onepool_log_level level, Logged told) {
    static std::mutex turn;
    static std::unique_ptr<Logged> kept;
    const std::unique_lock<std::mutex> one(turn, std::try_to_lock);
    if (!one) {
        throw Error(ONEPOOL_ERROR_BUSY, "another call of log_to is on its way");
    }
    auto next = told ? std::make_unique<Logged>(std::move(told)) : nullptr;
    check(onepool_log_set_callback(level, next ? &detail::log : nullptr, next.get()));
    // No one calls the one before any more.
    kept = std::move(next);
}

/// Elements of someone else's, `size` of them.
template <typename T> class Span {
  public:
    constexpr Span() noexcept = default;
    constexpr Span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    /// All elements of a container that has them one after another.
    template <typename C, typename = decltype(static_cast<T *>(std::declval<C &>().data()))>
    constexpr Span(C &container) noexcept : data_(container.data()), size_(container.size()) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t i) const noexcept { return data_[i]; }

  private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/// The element type that T is.
template <typename T> constexpr onepool_dtype dtype_of() {
    using U = std::remove_cv_t<T>;
    static_assert(std::is_arithmetic_v<U> && sizeof(U) <= 8, "elements are numbers");
    if constexpr (std::is_same_v<U, bool>) {
        return ONEPOOL_BOOL;
    } else if constexpr (std::is_floating_point_v<U>) {
        return sizeof(U) == 4 ? ONEPOOL_FLOAT32 : ONEPOOL_FLOAT64;
    } else {
        constexpr onepool_dtype of_signed[] = {ONEPOOL_INT8, ONEPOOL_INT16, ONEPOOL_INT32, ONEPOOL_INT64};
        constexpr onepool_dtype of_unsigned[] = {ONEPOOL_UINT8, ONEPOOL_UINT16, ONEPOOL_UINT32, ONEPOOL_UINT64};
        constexpr int log = sizeof(U) == 1 ? 0 : sizeof(U) == 2 ? 1 : sizeof(U) == 4 ? 2 : 3;
        return std::is_signed_v<U> ? of_signed[log] : of_unsigned[log];
    }
}

namespace detail {
template <typename T, onepool_status (*Free)(T *)> struct Freer {
    void operator()(T *handle) const noexcept { Free(handle); }
};
template <typename T, onepool_status (*Free)(T *)> using Owner = std::unique_ptr<T, Freer<T, Free>>;
} // namespace detail

/// How a session is opened. The defaults are those of onepool.h.
struct Options {
    std::vector<std::string> devices = {};
    std::string cache_dir = {};
    std::optional<std::uint64_t> copy_threshold = {};
    bool half_precision = false;
    bool automatic_placement = false;
    std::uint32_t threads = 0;
    bool strict = false;
    bool fallback = true;
    /// Inputs and outputs that are frames. What they point to stays as long as the options are used.
    std::vector<onepool_frame> frames = {};
    /// The parameters of a TVM graph, where they are not beside it.
    std::string params = {};
    bool any_device = false;
    bool exact_activations = false;
    std::uint32_t integers = ONEPOOL_INTEGERS_AUTO;
    bool coarse_filter = false;
    bool fuse = true;
    std::uint32_t tuning = ONEPOOL_TUNING_OFF;
    std::chrono::nanoseconds tuning_time = std::chrono::nanoseconds(0);
    std::string tuning_dir = {};
    /// Devices of nodes and of operators by their names, and of all others, as entries of the session's devices.
    std::map<std::string, std::uint32_t> nodes = {};
    std::map<std::string, std::uint32_t> operators = {};
    std::optional<std::uint32_t> rest = {};
    std::optional<std::chrono::nanoseconds> placement_time = {};
    std::uint32_t submission = ONEPOOL_SUBMISSION_OF_ENVIRONMENT;
    std::chrono::nanoseconds submission_limit = std::chrono::nanoseconds(0);
    std::uint32_t wait = ONEPOOL_WAIT_ADAPTIVE;
    std::uint32_t priority = ONEPOOL_PRIORITY_AUTO;
    std::uint32_t robustness = ONEPOOL_ROBUSTNESS_CALLERS;
    bool validation = false;
    /// A promise that the model's files stay as they are: see onepool.h.
    bool map_weights = false;
};

/// A frame without padding, all else as onepool.h says; set what differs.
inline onepool_frame frame(const char *name, bool is_output, onepool_format format, std::uint32_t width, std::uint32_t height) {
    onepool_frame raw = ONEPOOL_FRAME_INIT;
    raw.name = name;
    raw.is_output = is_output ? 1 : 0;
    raw.format = static_cast<std::uint32_t>(format);
    raw.width = width;
    raw.height = height;
    return raw;
}

namespace detail {
/// Options as C takes them, for as long as both live.
struct RawOptions {
    explicit RawOptions(const Options &given) {
        for (const std::string &device : given.devices) {
            devices.push_back(device.c_str());
        }
        options.devices = devices.data();
        options.device_count = devices.size();
        options.cache_dir = given.cache_dir.empty() ? nullptr : given.cache_dir.c_str();
        options.copy_threshold = given.copy_threshold ? &*given.copy_threshold : nullptr;
        options.precision = given.half_precision ? ONEPOOL_PRECISION_F16 : ONEPOOL_PRECISION_F32;
        options.placement = given.automatic_placement ? ONEPOOL_PLACEMENT_AUTO : ONEPOOL_PLACEMENT_MANUAL;
        options.threads = given.threads;
        options.strict = given.strict ? 1 : 0;
        options.no_fallback = given.fallback ? 0 : 1;
        options.frames = given.frames.data();
        options.frame_count = given.frames.size();
        options.params = given.params.empty() ? nullptr : given.params.c_str();
        options.any_device = given.any_device ? 1 : 0;
        options.activations = given.exact_activations ? ONEPOOL_ACTIVATIONS_EXACT : ONEPOOL_ACTIVATIONS_ALLOWED;
        options.integers = given.integers;
        options.coarse_filter = given.coarse_filter ? 1 : 0;
        options.no_fuse = given.fuse ? 0 : 1;
        options.tuning = given.tuning;
        options.tuning_ns = nanoseconds(given.tuning_time);
        options.tuning_dir = given.tuning_dir.empty() ? nullptr : given.tuning_dir.c_str();
        for (const auto &node : given.nodes) {
            places.push_back({sizeof(onepool_place), ONEPOOL_PLACE_NODE, node.second, node.first.c_str()});
        }
        for (const auto &op : given.operators) {
            places.push_back({sizeof(onepool_place), ONEPOOL_PLACE_OPERATOR, op.second, op.first.c_str()});
        }
        if (given.rest) {
            places.push_back({sizeof(onepool_place), ONEPOOL_PLACE_REST, *given.rest, nullptr});
        }
        options.places = places.data();
        options.place_count = places.size();
        if (given.placement_time) {
            placement_ns = nanoseconds(*given.placement_time);
            options.placement_ns = &placement_ns;
        }
        options.submission = given.submission;
        options.submission_ns = nanoseconds(given.submission_limit);
        options.wait = given.wait;
        options.priority = given.priority;
        options.robustness = given.robustness;
        options.validation = given.validation ? 1 : 0;
        options.map_weights = given.map_weights ? 1 : 0;
    }
    RawOptions(const RawOptions &) = delete;
    RawOptions &operator=(const RawOptions &) = delete;

    std::vector<const char *> devices = {};
    onepool_session_options options = ONEPOOL_SESSION_OPTIONS_INIT;

  private:
    static std::uint64_t nanoseconds(std::chrono::nanoseconds time) {
        return static_cast<std::uint64_t>(time.count() > 0 ? time.count() : 0);
    }
    std::vector<onepool_place> places = {};
    std::uint64_t placement_ns = 0;
};
} // namespace detail

/// Type and shape of a tensor.
struct TensorInfo {
    std::uint32_t dtype = ONEPOOL_DTYPE_NONE;
    std::vector<std::int64_t> dims = {};
    std::size_t bytes = 0;
};

/// An input or output as the model declares it.
struct IoInfo {
    std::string name = {};
    std::uint32_t dtype = ONEPOOL_DTYPE_NONE;
    /// Nothing where the model declares no sizes; -1 where one is open.
    std::optional<std::vector<std::int64_t>> dims = {};
    /// Names of open sizes, empty where there is none.
    std::vector<std::string> symbols = {};
};

/// What a model's file says of itself; what it does not say is empty or 0.
struct Metadata {
    std::string format = {}, graph = {}, producer = {}, producer_version = {}, domain = {}, description = {};
    std::string graph_description = {};
    std::int64_t version = 0, ir_version = 0;
    /// Versions of operator sets by domain; "" is ONNX's own.
    std::map<std::string, std::int64_t> opsets = {};
    std::map<std::string, std::string> properties = {};
};

/// How a bound tensor reaches a device, and why.
struct Verdict {
    std::string tensor, reason, fix, sentence;
    onepool_path path = ONEPOOL_PATH_HOST;
    std::uint64_t bytes = 0, cpu_copied = 0, device_copied = 0;
};

/// Bytes that are lent to this program until it goes.
class View {
  public:
    explicit View(onepool_view *handle) : handle_(handle) { check(onepool_view_data(handle, &data_, &bytes_)); }
    /// The bytes as elements.
    template <typename T> Span<T> as() const {
        if (bytes_ % sizeof(T) != 0) {
            throw Error(ONEPOOL_ERROR_WRONG_TYPE, "the bytes of the view are no whole elements");
        }
        return {static_cast<T *>(data_), bytes_ / sizeof(T)};
    }
    std::size_t bytes() const noexcept { return bytes_; }

  private:
    detail::Owner<onepool_view, onepool_view_free> handle_;
    void *data_ = nullptr;
    std::size_t bytes_ = 0;
};

/// Pages that every device can import.
class Region {
  public:
    explicit Region(std::size_t bytes) : bytes_(bytes) {
        onepool_region *handle = nullptr;
        check(onepool_region_create(bytes, &handle));
        handle_.reset(handle);
    }
    std::size_t bytes() const noexcept { return bytes_; }
    View read() const { return map(ONEPOOL_READ); }
    View write() const { return map(ONEPOOL_READ_WRITE); }
    onepool_region *get() const noexcept { return handle_.get(); }

  private:
    View map(onepool_access access) const {
        onepool_view *view = nullptr;
        check(onepool_region_map(handle_.get(), 0, bytes_, access, &view));
        return View(view);
    }
    detail::Owner<onepool_region, onepool_region_free> handle_;
    std::size_t bytes_;
};

/// Memory for one input or output. What it names stays the caller's and must stay as onepool.h says.
class Memory {
  public:
    /// Elements to read (of a span of const) or to write, by reference.
    template <typename T> static Memory span(std::string name, Span<T> elements) {
        Memory memory(std::move(name), ONEPOOL_MEMORY_POINTER);
        memory.raw_.dtype = dtype_of<T>();
        memory.raw_.data = const_cast<std::remove_const_t<T> *>(elements.data());
        memory.raw_.bytes = elements.size_bytes();
        return memory;
    }
    /// Bytes of any element type, by reference.
    static Memory pointer(std::string name, onepool_dtype dtype, void *data, std::size_t bytes) {
        Memory memory(std::move(name), ONEPOOL_MEMORY_POINTER);
        memory.raw_.dtype = dtype;
        memory.raw_.data = data;
        memory.raw_.bytes = bytes;
        return memory;
    }
    /// A region from byte `offset` on, by reference.
    static Memory region(std::string name, const Region &region, std::size_t offset = 0) {
        Memory memory(std::move(name), ONEPOOL_MEMORY_REGION);
        memory.raw_.region = region.get();
        memory.raw_.offset = offset;
        return memory;
    }
    /// Elements for an input, by copy.
    template <typename T> static Memory value(std::string name, Span<T> elements, std::vector<std::int64_t> dims) {
        Memory memory = span(std::move(name), elements);
        memory.raw_.kind = ONEPOOL_MEMORY_VALUE;
        return std::move(memory).shape(std::move(dims));
    }
    /// The library's own.
    static Memory own(std::string name) { return Memory(std::move(name), ONEPOOL_MEMORY_OWN); }
    /// A DLPack tensor, which is taken over if the call succeeds.
    static Memory dlpack(std::string name, struct DLManagedTensorVersioned *tensor) {
        Memory memory(std::move(name), ONEPOOL_MEMORY_DLPACK);
        memory.raw_.data = tensor;
        return memory;
    }

    /// The sizes, where the model leaves them open.
    Memory shape(std::vector<std::int64_t> dims) && {
        dims_ = std::move(dims);
        return std::move(*this);
    }
    /// Strides in elements, for the library to check.
    Memory strides(std::vector<std::int64_t> strides) && {
        strides_ = std::move(strides);
        return std::move(*this);
    }
    /// Calls `release(user)` when the library has let go of the memory.
    Memory released_by(void (*release)(void *), void *user) && {
        raw_.release = release;
        raw_.user = user;
        return std::move(*this);
    }

    /// Of an output: the input that is the same memory, and has no entry of its own.
    Memory updates(std::string input) && {
        updates_ = std::move(input);
        return std::move(*this);
    }

    /// As C takes it, for as long as this lives.
    onepool_memory c() const {
        static const std::int64_t none = 0;
        if (strides_ && (!dims_ || strides_->size() != dims_->size())) {
            throw Error(ONEPOOL_ERROR_WRONG_SHAPE, "there are not as many strides as sizes");
        }
        onepool_memory raw = raw_;
        raw.name = name_.c_str();
        if (dims_) {
            raw.dims = dims_->empty() ? &none : dims_->data();
            raw.rank = dims_->size();
        }
        if (strides_) {
            raw.strides = strides_->empty() ? &none : strides_->data();
        }
        raw.updates = updates_ ? updates_->c_str() : nullptr;
        return raw;
    }

  private:
    Memory(std::string name, std::uint32_t kind) : name_(std::move(name)) { raw_.kind = kind; }
    std::string name_;
    std::optional<std::vector<std::int64_t>> dims_ = {};
    std::optional<std::vector<std::int64_t>> strides_ = {};
    std::optional<std::string> updates_ = {};
    onepool_memory raw_ = ONEPOOL_MEMORY_INIT;
};

/// Cancels the runs that were given it.
class Cancel {
  public:
    Cancel() {
        onepool_cancel *handle = nullptr;
        check(onepool_cancel_create(&handle));
        handle_.reset(handle);
    }
    void trigger() const { check(onepool_cancel_trigger(handle_.get())); }
    onepool_cancel *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<onepool_cancel, onepool_cancel_free> handle_;
};

/// What may end a run early.
struct RunOptions {
    std::chrono::nanoseconds time_limit = std::chrono::nanoseconds(0);
    const Cancel *cancel = nullptr;

    onepool_run_options c() const {
        onepool_run_options raw = ONEPOOL_RUN_OPTIONS_INIT;
        raw.time_limit_ns = static_cast<std::uint64_t>(time_limit.count() > 0 ? time_limit.count() : 0);
        raw.cancel = cancel ? cancel->get() : nullptr;
        return raw;
    }
};

/// A run on a thread of its own. It goes on when its owner goes.
class Run {
  public:
    explicit Run(onepool_run *handle) : handle_(handle) {}
    /// Waits for the end.
    void wait() const { check(onepool_run_wait(handle_.get(), ONEPOOL_FOREVER)); }
    /// Waits for at most so long; says whether it is over.
    bool wait_for(std::chrono::nanoseconds limit) const {
        const auto ns = static_cast<std::uint64_t>(limit.count() > 0 ? limit.count() : 0);
        const onepool_status status = onepool_run_wait(handle_.get(), ns);
        if (status == ONEPOOL_ERROR_TIMEOUT) {
            return false;
        }
        check(status);
        return true;
    }
    void cancel() const { check(onepool_run_cancel(handle_.get())); }

  private:
    detail::Owner<onepool_run, onepool_run_free> handle_;
};

/// Memory tied to a session's inputs and outputs.
class Binding {
  public:
    explicit Binding(onepool_binding *handle) : handle_(handle) {}

    /// Runs and waits.
    void run() { check(onepool_binding_run(handle_.get(), nullptr)); }
    void run(const RunOptions &options) {
        const onepool_run_options raw = options.c();
        check(onepool_binding_run(handle_.get(), &raw));
    }
    /// Begins a run on a thread of its own. `done` is called at its end by a thread of the library's; what it throws is lost.
    Run start(std::function<void(onepool_status, const char *)> done = {}, const RunOptions &options = {}) {
        const onepool_run_options raw = options.c();
        onepool_run *run = nullptr;
        if (!done) {
            check(onepool_binding_start(handle_.get(), &raw, nullptr, nullptr, &run));
            return Run(run);
        }
        auto kept = std::make_unique<Done>(std::move(done));
        check(onepool_binding_start(handle_.get(), &raw, &Binding::call, kept.get(), &run));
        // The callback owns it now.
        static_cast<void>(kept.release());
        return Run(run);
    }

    /// Other memory of the same shape.
    void rebind_input(const Memory &memory) {
        const onepool_memory raw = memory.c();
        check(onepool_binding_rebind_input(handle_.get(), &raw));
    }
    void rebind_output(const Memory &memory) {
        const onepool_memory raw = memory.c();
        check(onepool_binding_rebind_output(handle_.get(), &raw));
    }
    /// Copies a value (Memory::value) into an input of the library's own memory.
    void set_input(const Memory &value) {
        const onepool_memory raw = value.c();
        check(onepool_binding_set_input(handle_.get(), &raw));
    }
    /// Copies an output out.
    template <typename T> std::vector<T> get_output(const std::string &name) const {
        static_assert(!std::is_same_v<T, bool>, "take uint8_t for bool");
        const TensorInfo info = output_info(name);
        if (onepool_dtype_bytes(info.dtype) != sizeof(T)) {
            throw Error(ONEPOOL_ERROR_WRONG_TYPE, "output " + name + " has elements of another size");
        }
        std::vector<T> values(info.bytes / sizeof(T));
        check(onepool_binding_get_output(handle_.get(), name.c_str(), values.data(), info.bytes));
        return values;
    }
    View map_input(const std::string &name) {
        onepool_view *view = nullptr;
        check(onepool_binding_map_input(handle_.get(), name.c_str(), &view));
        return View(view);
    }
    View map_output(const std::string &name) const {
        onepool_view *view = nullptr;
        check(onepool_binding_map_output(handle_.get(), name.c_str(), &view));
        return View(view);
    }
    TensorInfo input_info(const std::string &name) const { return info(onepool_binding_input_info, name); }
    TensorInfo output_info(const std::string &name) const { return info(onepool_binding_output_info, name); }
    /// An output as a DLPack tensor, whose deleter the caller calls.
    struct DLManagedTensorVersioned *output_dlpack(const std::string &name, bool copy) const {
        struct DLManagedTensorVersioned *tensor = nullptr;
        check(onepool_binding_output_dlpack(handle_.get(), name.c_str(), copy ? 1 : 0, &tensor));
        return tensor;
    }

    std::vector<Verdict> verdicts() const {
        onepool_verdicts *handle = nullptr;
        check(onepool_binding_verdicts(handle_.get(), &handle));
        const detail::Owner<onepool_verdicts, onepool_verdicts_free> owner(handle);
        std::size_t count = 0;
        check(onepool_verdicts_count(handle, &count));
        std::vector<Verdict> all;
        for (std::size_t i = 0; i < count; ++i) {
            onepool_verdict raw = ONEPOOL_VERDICT_INIT;
            check(onepool_verdicts_get(handle, i, &raw));
            all.push_back({raw.tensor, raw.reason, raw.fix ? raw.fix : "", raw.sentence,
                           static_cast<onepool_path>(raw.path), raw.bytes, raw.cpu_copied, raw.device_copied});
        }
        return all;
    }
    onepool_binding *get() const noexcept { return handle_.get(); }

  private:
    using Done = std::function<void(onepool_status, const char *)>;

    static void call(void *user, onepool_status status, const char *message) noexcept {
        const std::unique_ptr<Done> done(static_cast<Done *>(user));
        try {
            (*done)(status, message);
        } catch (...) {
            // Exceptions do not cross the border.
        }
    }
    template <typename F> TensorInfo info(F function, const std::string &name) const {
        onepool_tensor_info raw = ONEPOOL_TENSOR_INFO_INIT;
        check(function(handle_.get(), name.c_str(), &raw));
        return {raw.dtype, std::vector<std::int64_t>(raw.dims, raw.dims + raw.rank), raw.bytes};
    }
    detail::Owner<onepool_binding, onepool_binding_free> handle_;
};

/// A model made ready on devices.
class Session {
  public:
    /// Opens a model file.
    static Session open(const std::string &path, const Options &options = {}) {
        return make(options, [&](const onepool_session_options *raw, onepool_session **handle) {
            return onepool_session_open(path.c_str(), raw, handle);
        });
    }
    /// Opens an ONNX model in memory.
    static Session load(Span<const unsigned char> model, const Options &options = {}) {
        return make(options, [&](const onepool_session_options *raw, onepool_session **handle) {
            return onepool_session_load(model.data(), model.size(), nullptr, raw, handle);
        });
    }

    std::vector<IoInfo> inputs() const { return ios(onepool_session_input_count, onepool_session_input); }
    std::vector<IoInfo> outputs() const { return ios(onepool_session_output_count, onepool_session_output); }
    /// What the model's file says of itself.
    Metadata metadata() const {
        onepool_metadata raw = ONEPOOL_METADATA_INIT;
        check(onepool_session_metadata(handle_.get(), &raw));
        Metadata said;
        said.format = raw.format, said.graph = raw.graph;
        said.producer = raw.producer, said.producer_version = raw.producer_version;
        said.domain = raw.domain, said.version = raw.version, said.ir_version = raw.ir_version;
        said.description = raw.description, said.graph_description = raw.graph_description;
        for (std::size_t i = 0; i < raw.opset_count; ++i) {
            const char *domain = nullptr;
            std::int64_t version = 0;
            check(onepool_session_opset(handle_.get(), i, &domain, &version));
            said.opsets[domain] = version;
        }
        for (std::size_t i = 0; i < raw.property_count; ++i) {
            const char *name = nullptr, *value = nullptr;
            check(onepool_session_property(handle_.get(), i, &name, &value));
            said.properties[name] = value;
        }
        return said;
    }

    /// Binds memory; what is not named has memory of the library's own.
    Binding bind(std::initializer_list<Memory> inputs, std::initializer_list<Memory> outputs,
                 std::uint32_t strict = ONEPOOL_STRICT_AS_SESSION) const {
        const std::vector<onepool_memory> in = raw(inputs), out = raw(outputs);
        onepool_binding *binding = nullptr;
        check(onepool_binding_create(handle_.get(), in.data(), in.size(), out.data(), out.size(), strict, &binding));
        return Binding(binding);
    }
    /// Type and shape that an output would have.
    TensorInfo plan_output(std::initializer_list<Memory> inputs, const std::string &name) const {
        const std::vector<onepool_memory> in = raw(inputs);
        onepool_tensor_info info = ONEPOOL_TENSOR_INFO_INIT;
        check(onepool_session_plan_output(handle_.get(), in.data(), in.size(), name.c_str(), &info));
        return {info.dtype, std::vector<std::int64_t>(info.dims, info.dims + info.rank), info.bytes};
    }
    onepool_session *get() const noexcept { return handle_.get(); }

  private:
    explicit Session(onepool_session *handle) : handle_(handle) {}

    template <typename F> static Session make(const Options &options, F open) {
        const detail::RawOptions raw(options);
        onepool_session *handle = nullptr;
        check(open(&raw.options, &handle));
        return Session(handle);
    }
    template <typename C, typename G> std::vector<IoInfo> ios(C count_of, G io_of) const {
        std::size_t count = 0;
        check(count_of(handle_.get(), &count));
        std::vector<IoInfo> all;
        for (std::size_t i = 0; i < count; ++i) {
            onepool_io_info raw = ONEPOOL_IO_INFO_INIT;
            check(io_of(handle_.get(), i, &raw));
            IoInfo io;
            io.name = raw.name;
            io.dtype = raw.dtype;
            if (raw.has_shape) {
                io.dims.emplace(raw.dims, raw.dims + raw.rank);
            }
            for (std::size_t d = 0; d < raw.rank; ++d) {
                io.symbols.emplace_back(raw.symbols[d] ? raw.symbols[d] : "");
            }
            all.push_back(std::move(io));
        }
        return all;
    }
    static std::vector<onepool_memory> raw(std::initializer_list<Memory> memories) {
        std::vector<onepool_memory> all;
        for (const Memory &memory : memories) {
            all.push_back(memory.c());
        }
        return all;
    }
    detail::Owner<onepool_session, onepool_session_free> handle_;
};

} // namespace onepool

#include "onepool_text.hpp"

#endif // ONEPOOL_HPP
