/* onepool.h: runs ONNX and Apache TVM graphs on the application's own memory.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Errors. A function returns ONEPOOL_OK or what went wrong. onepool_last_error() then says in words what, which argument, and
 * what to do. After an error results are not written and nothing has changed, unless the function says otherwise. No panic and
 * no exception crosses. A function may also return ONEPOOL_ERROR_INVALID_ARGUMENT for an argument that is null, not UTF-8 or
 * out of range, and ONEPOOL_ERROR_PANIC for a defect of the library; that is not repeated below.
 *
 * Handles. An onepool_NAME * is a handle, not an address. One that is null, was freed or is of another kind is
 * ONEPOOL_ERROR_INVALID_HANDLE. Who gets a handle owns it and frees it with onepool_NAME_free, in any order: what a handle
 * needs of others it keeps. Freeing null does nothing. Freeing one twice is an error.
 *
 * Memory. Every pointer that is no handle is the caller's. It points to what the function says, for as long as the function
 * says: for the call, unless it says more. Strings are UTF-8 and end in a zero byte. Sizes and offsets are in bytes, strides
 * in elements, times in nanoseconds. A structure begins with its size, which its INIT macro sets.
 *
 * Threads. Every function may be called from any thread. Calls on one binding exclude each other: the second one is
 * ONEPOOL_ERROR_BUSY, it does not wait. Other handles may be used by several threads at a time.
 */
#ifndef ONEPOOL_H
#define ONEPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Statuses ------------------------------------------------------------------------------------------------------- */

typedef enum onepool_status {
    ONEPOOL_OK = 0,
    ONEPOOL_ERROR_INVALID_ARGUMENT = 1, /* null, out of range, or not what it must be */
    ONEPOOL_ERROR_INVALID_HANDLE = 2,   /* null, freed, or of another kind */
    ONEPOOL_ERROR_UNKNOWN_NAME = 3,     /* no input or output has that name */
    ONEPOOL_ERROR_WRONG_TYPE = 4,       /* another element type than the model's */
    ONEPOOL_ERROR_WRONG_SHAPE = 5,      /* sizes or strides do not fit the model */
    ONEPOOL_ERROR_TOO_SMALL = 6,        /* memory has fewer bytes than its tensor */
    ONEPOOL_ERROR_UNBOUND = 7,          /* an input has neither memory nor a value */
    ONEPOOL_ERROR_OVERLAP = 8,          /* two tensors share bytes that the graph cannot have shared */
    ONEPOOL_ERROR_STRICT = 9,           /* strict mode forbids a copy */
    ONEPOOL_ERROR_BUSY = 10,            /* something else uses the object or the memory now */
    ONEPOOL_ERROR_CANCELLED = 11,       /* the run was cancelled */
    ONEPOOL_ERROR_TIME_LIMIT = 12,      /* the run took longer than it was given */
    ONEPOOL_ERROR_TIMEOUT = 13,         /* what is waited for is not over yet */
    ONEPOOL_ERROR_NOT_RUN = 14,         /* there is no result yet */
    ONEPOOL_ERROR_MODEL = 15,           /* the model is no sound one, or holds what is not supported */
    ONEPOOL_ERROR_NO_DEVICE = 16,       /* no such device, or it cannot be opened */
    ONEPOOL_ERROR_OUT_OF_MEMORY = 17,   /* of the host or of a device */
    ONEPOOL_ERROR_DEVICE_LOST = 18,     /* the device stopped; the caller's memory is intact, open the session again */
    ONEPOOL_ERROR_DEVICE = 19,          /* a device call failed */
    ONEPOOL_ERROR_PANIC = 20            /* a defect of the library */
} onepool_status;

/* The version of the library, "MAJOR.MINOR.PATCH". Lives as long as the library. */
const char *onepool_version(void);

/* What went wrong in this thread's last call that failed; "" if none did. Valid until this thread's next call that fails. */
const char *onepool_last_error(void);

/* The name of a status as it stands above; null for another number. Lives as long as the library. */
const char *onepool_status_name(uint32_t status);

/* How many handles are not freed, of all kinds and threads. For tests of an application. */
onepool_status onepool_live_handles(size_t *count);

/* ---- What the library says ------------------------------------------------------------------------------------------ */

/* How urgent a message is. */
typedef enum onepool_log_level {
    ONEPOOL_LOG_ERROR = 1,   /* something failed where no call can say so */
    ONEPOOL_LOG_WARNING = 2, /* what the caller should know: a model that is newer than the library, a cache that is not kept */
    ONEPOOL_LOG_INFO = 3,
    ONEPOOL_LOG_DEBUG = 4,
    ONEPOOL_LOG_TRACE = 5
} onepool_log_level;

/* Called with a message: its onepool_log_level, who says it, as "onepool::tuning", and what. The strings live for the call.
 * Any thread calls it, several at once, also those of the library. It must not throw. It may call the library; what this
 * thread says meanwhile is not told. */
typedef void (*onepool_log_callback)(void *user, uint32_t level, const char *target, const char *message);

/* Has messages of `level` and of more urgent levels told to a callback, in place of the one before; null: to none, as at the
 * begin. The library itself prints nothing. When this returns the callback before is not called any more: it waits for calls
 * that have not returned, which must not wait for the caller.
 * Errors: BUSY in a callback, and where this process has a subscriber of Rust's `tracing`. */
onepool_status onepool_log_set_callback(uint32_t level, onepool_log_callback callback, void *user);

/* ---- Element types -------------------------------------------------------------------------------------------------- */

/* Elements are little-endian. Those of less than a byte have a byte each. */
typedef enum onepool_dtype {
    ONEPOOL_DTYPE_NONE = 0, /* not declared, or not told */
    ONEPOOL_FLOAT32 = 1,
    ONEPOOL_FLOAT16 = 2,
    ONEPOOL_BFLOAT16 = 3,
    ONEPOOL_FLOAT64 = 4,
    ONEPOOL_INT8 = 5,
    ONEPOOL_INT16 = 6,
    ONEPOOL_INT32 = 7,
    ONEPOOL_INT64 = 8,
    ONEPOOL_UINT8 = 9,
    ONEPOOL_UINT16 = 10,
    ONEPOOL_UINT32 = 11,
    ONEPOOL_UINT64 = 12,
    ONEPOOL_BOOL = 13, /* a byte, 0 or 1 */
    ONEPOOL_FLOAT8_E4M3FN = 14,
    ONEPOOL_FLOAT8_E4M3FNUZ = 15,
    ONEPOOL_FLOAT8_E5M2 = 16,
    ONEPOOL_FLOAT8_E5M2FNUZ = 17,
    ONEPOOL_FLOAT8_E8M0FNU = 18,
    ONEPOOL_FLOAT4_E2M1FN = 19,
    ONEPOOL_INT4 = 20,
    ONEPOOL_UINT4 = 21,
    ONEPOOL_INT2 = 22,
    ONEPOOL_UINT2 = 23
} onepool_dtype;

/* The name of an element type, as "float32"; null for another number. Lives as long as the library. */
const char *onepool_dtype_name(uint32_t dtype);

/* Bytes of one element; 0 for ONEPOOL_DTYPE_NONE and other numbers. */
size_t onepool_dtype_bytes(uint32_t dtype);

/* The most dimensions of a tensor. */
#define ONEPOOL_MAX_RANK 16

/* An input or output as the model declares it. The strings live until the session is freed. */
typedef struct onepool_io_info {
    size_t struct_size;
    const char *name;
    uint32_t dtype;                        /* ONEPOOL_DTYPE_NONE where the model declares none */
    uint32_t has_shape;                    /* 0 where the model declares no sizes, else 1 */
    size_t rank;                           /* how many sizes */
    int64_t dims[ONEPOOL_MAX_RANK];        /* -1 where a size is open */
    const char *symbols[ONEPOOL_MAX_RANK]; /* the name of an open size, or null: equal names have equal sizes in one run */
} onepool_io_info;
#define ONEPOOL_IO_INFO_INIT { sizeof(onepool_io_info), NULL, 0, 0, 0, { 0 }, { NULL } }

/* A tensor whose sizes are known. */
typedef struct onepool_tensor_info {
    size_t struct_size;
    uint32_t dtype;
    uint32_t reserved;
    size_t rank;
    int64_t dims[ONEPOOL_MAX_RANK];
    size_t bytes; /* of the compact tensor */
} onepool_tensor_info;
#define ONEPOOL_TENSOR_INFO_INIT { sizeof(onepool_tensor_info), 0, 0, 0, { 0 }, 0 }

/* ---- Frames: pictures as cameras, decoders and screens hold them ---------------------------------------------------- */

/* Names are those of GStreamer and V4L2. */
typedef enum onepool_format {
    ONEPOOL_FORMAT_GRAY8 = 1,
    ONEPOOL_FORMAT_RGB8 = 2,
    ONEPOOL_FORMAT_BGR8 = 3,
    ONEPOOL_FORMAT_RGBA8 = 4,
    ONEPOOL_FORMAT_BGRA8 = 5,
    ONEPOOL_FORMAT_YUYV = 6, /* 4:2:2 in one plane: Y, U, Y, V */
    ONEPOOL_FORMAT_UYVY = 7,
    ONEPOOL_FORMAT_NV12 = 8, /* 4:2:0 in two planes: Y; U and V in turns */
    ONEPOOL_FORMAT_NV21 = 9, /* with V before U */
    ONEPOOL_FORMAT_I420 = 10, /* 4:2:0 in three planes */
    ONEPOOL_FORMAT_P010 = 11 /* as NV12, 10 bits in the upper bits of little-endian 16-bit words */
} onepool_format;

enum { ONEPOOL_MATRIX_BT709 = 0, ONEPOOL_MATRIX_BT601 = 1, ONEPOOL_MATRIX_BT2020 = 2 };
/* USUAL: limited for luma and chroma, else full. */
enum { ONEPOOL_RANGE_USUAL = 0, ONEPOOL_RANGE_LIMITED = 1, ONEPOOL_RANGE_FULL = 2 };
enum { ONEPOOL_FILTER_BILINEAR = 0, ONEPOOL_FILTER_NEAREST = 1 };
/* OF_MODEL: as the shape of the tensor tells. */
enum { ONEPOOL_LAYOUT_OF_MODEL = 0, ONEPOOL_LAYOUT_NCHW = 1, ONEPOOL_LAYOUT_NHWC = 2 };
/* OF_MODEL: gray, RGB or RGBA by their number. */
enum {
    ONEPOOL_CHANNELS_OF_MODEL = 0,
    ONEPOOL_CHANNELS_GRAY = 1,
    ONEPOOL_CHANNELS_RGB = 2,
    ONEPOOL_CHANNELS_BGR = 3,
    ONEPOOL_CHANNELS_RGBA = 4,
    ONEPOOL_CHANNELS_BGRA = 5
};

/* An input or output of a model that is a frame. The first kernel of a run reads it where it lies, the last one writes it
 * there. The session has an input or output of bytes (ONEPOOL_UINT8) in its place, with its name; where the frame lies in
 * several memories, each is one, named "image:0", "image:1" and so on. Of an output only the pixels of `crop` change.
 * A description that is wrong is INVALID_ARGUMENT when the session is opened. */
typedef struct onepool_frame {
    size_t struct_size;
    const char *name;
    uint32_t is_output;       /* 0: an input, 1: an output */
    uint32_t format;          /* ONEPOOL_FORMAT_... */
    uint32_t width, height;   /* in pixels, at most 16384 */
    const uint64_t *strides;  /* bytes from row to row, of each plane; null: rows without padding */
    const uint64_t *offsets;  /* bytes to the first pixel, of each plane; null: planes one after the other */
    const uint32_t *memories; /* the memory that each plane lies in, numbered from 0; null: all in one */
    size_t plane_count;       /* entries of the lists above that are not null: as many as the format has planes */
    uint32_t matrix;          /* ONEPOOL_MATRIX_... */
    uint32_t range;           /* ONEPOOL_RANGE_... */
    uint32_t crop[4];         /* x, y, width, height of the rectangle that the tensor is of; zeros: the whole frame */
    uint32_t size[2];         /* width and height of the tensor where the model leaves them open; zeros: as `crop` */
    uint32_t filter;          /* ONEPOOL_FILTER_...: how the rectangle is scaled to the tensor */
    uint32_t layout;          /* ONEPOOL_LAYOUT_... */
    uint32_t channels;        /* ONEPOOL_CHANNELS_... */
    uint32_t reserved;        /* 0 */
    /* A number of the tensor is (value * scale - mean) / std_dev of a value from 0 to 255. */
    const float *scale;   /* one number, or null: 1/255 */
    const float *mean;    /* one for all channels or one for each, or null: 0 */
    const float *std_dev; /* as many, or null: 1 */
    size_t mean_count;    /* entries of `mean` and of `std_dev` */
} onepool_frame;
#define ONEPOOL_FRAME_INIT \
    { sizeof(onepool_frame), NULL, 0, 0, 0, 0, NULL, NULL, NULL, 0, 0, 0, { 0, 0, 0, 0 }, { 0, 0 }, 0, 0, 0, 0, NULL, NULL, NULL, 0 }

/* ---- Sessions: a model made ready on devices ------------------------------------------------------------------------ */

typedef struct onepool_session onepool_session;

enum { ONEPOOL_PRECISION_F32 = 0, ONEPOOL_PRECISION_F16 = 1 };
enum { ONEPOOL_PLACEMENT_MANUAL = 0, ONEPOOL_PLACEMENT_AUTO = 1 };
/* Whether products with packed weights may round their activations where the model allows it, which is faster. */
enum { ONEPOOL_ACTIVATIONS_ALLOWED = 0, ONEPOOL_ACTIVATIONS_EXACT = 1 };
/* Where operators between DequantizeLinear and QuantizeLinear compute with bytes, and not in float32. AUTO: on CPUs where that
 * is faster. */
enum { ONEPOOL_INTEGERS_AUTO = 0, ONEPOOL_INTEGERS_ALWAYS = 1, ONEPOOL_INTEGERS_NEVER = 2 };
/* Which kernels run. OFF: those of the built-in rules. KEPT: those that were faster when they were measured. WITHIN: the same,
 * and what is not known yet is measured when a plan is made. */
enum { ONEPOOL_TUNING_OFF = 0, ONEPOOL_TUNING_KEPT = 1, ONEPOOL_TUNING_WITHIN = 2 };
/* How long one submission may keep a device busy, so that a display goes on. OF_ENVIRONMENT: as the environment variable
 * ONEPOOL_SUBMISSION_LIMIT says, else AUTO. AUTO: 100 ms on devices that may drive a display. OFF: as long as it takes. */
enum {
    ONEPOOL_SUBMISSION_OF_ENVIRONMENT = 0,
    ONEPOOL_SUBMISSION_AUTO = 1,
    ONEPOOL_SUBMISSION_OFF = 2,
    ONEPOOL_SUBMISSION_AT_MOST = 3
};
/* How the host waits for a device. ADAPTIVE: it polls for as long as runs before took, at most 2 ms, then sleeps. BLOCK: it
 * sleeps. SPIN: it polls. */
enum { ONEPOOL_WAIT_ADAPTIVE = 0, ONEPOOL_WAIT_BLOCK = 1, ONEPOOL_WAIT_SPIN = 2 };
/* AUTO: low on devices that may drive a display, where the driver permits it. NORMAL: as the driver has it. */
enum { ONEPOOL_PRIORITY_AUTO = 0, ONEPOOL_PRIORITY_NORMAL = 1 };
/* Which kernels a Vulkan device keeps inside what is bound to them. CALLERS: those whose code is an application's. */
enum { ONEPOOL_ROBUSTNESS_CALLERS = 0, ONEPOOL_ROBUSTNESS_ALL = 1, ONEPOOL_ROBUSTNESS_OFF = 2 };
/* What is placed: every node of a name, every node of an operator, or every node that nothing else places. */
enum { ONEPOOL_PLACE_NODE = 0, ONEPOOL_PLACE_OPERATOR = 1, ONEPOOL_PLACE_REST = 2 };

/* Where nodes run, whatever the placement is. */
typedef struct onepool_place {
    size_t struct_size;
    uint32_t kind;    /* ONEPOOL_PLACE_... */
    uint32_t device;  /* an entry of the session's devices, from 0 */
    const char *name; /* of the node or the operator; null for ONEPOOL_PLACE_REST */
} onepool_place;
#define ONEPOOL_PLACE_INIT { sizeof(onepool_place), 0, 0, NULL }

/* All zeros but the size are the defaults. */
typedef struct onepool_session_options {
    size_t struct_size;
    /* Selectors: "auto", "cpu", "vulkan", "vulkan:1", "opencl", "sim". Nodes that no one places go to the first. Without
     * any, what the environment variable ONEPOOL_DEVICE says, else "auto". */
    const char *const *devices;
    size_t device_count; /* at most 64 */
    /* A folder for compiled kernels, of this user's and writable for no one else, or null. It holds code. One that cannot be
     * one is ONEPOOL_ERROR_INVALID_ARGUMENT. */
    const char *cache_dir;
    /* Bound tensors of fewer bytes are copied in place of imported. Null: what was measured on the device. */
    const uint64_t *copy_threshold;
    uint32_t precision;   /* ONEPOOL_PRECISION_F16: a float32 model computes in float16, sums in float32 */
    uint32_t placement;   /* ONEPOOL_PLACEMENT_AUTO: nodes go where measurements say */
    uint32_t threads;     /* of the CPU backend; 0: one for each core */
    uint32_t strict;      /* 1: a copy of a bound tensor by the CPU is ONEPOOL_ERROR_STRICT */
    uint32_t no_fallback; /* 1: an operator that no device of the list has is ONEPOOL_ERROR_MODEL */
    uint32_t reserved;    /* 0 */
    const onepool_frame *frames; /* inputs and outputs that are frames; all entries have the same struct_size */
    size_t frame_count;          /* at most 256 */
    const char *params;          /* the parameters of a TVM graph, where they are not beside it; or null */
    uint32_t any_device;         /* 1: nodes of a TVM graph whose device is not in the list run on the first one */
    uint32_t activations;        /* ONEPOOL_ACTIVATIONS_... */
    uint32_t integers;           /* ONEPOOL_INTEGERS_... */
    uint32_t coarse_filter;      /* 1: a Resize of an image may be off by 1/256 of the difference of neighbours */
    uint32_t no_fuse;            /* 1: operators that could be fused are kept apart */
    uint32_t tuning;             /* ONEPOOL_TUNING_... */
    uint64_t tuning_ns;          /* the most time that ONEPOOL_TUNING_WITHIN measures */
    const char *tuning_dir;      /* the folder of what was measured; null: `cache_dir`; without either nothing is kept */
    const onepool_place *places; /* where nodes run; all entries have the same struct_size */
    size_t place_count;
    const uint64_t *placement_ns; /* the most time that ONEPOOL_PLACEMENT_AUTO measures; null: 2 s */
    uint32_t submission;          /* ONEPOOL_SUBMISSION_... */
    uint32_t wait;                /* ONEPOOL_WAIT_... */
    uint64_t submission_ns;       /* how long ONEPOOL_SUBMISSION_AT_MOST is */
    uint32_t priority;            /* ONEPOOL_PRIORITY_... */
    uint32_t robustness;          /* ONEPOOL_ROBUSTNESS_... */
    uint32_t validation;          /* 1: Vulkan's validation layers are on, whose messages are warnings of the log */
    /* 1: large parameters are read where they lie in the system's cache of files, so that processes share them. The caller
     * promises that no one changes or shortens the model's files while the session lives. */
    uint32_t map_weights;
} onepool_session_options;
#define ONEPOOL_SESSION_OPTIONS_INIT \
    { sizeof(onepool_session_options), NULL, 0, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, NULL, \
      NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0 }

/* Opens a model file (ONNX, GGUF, or the graph JSON of TVM beside its .params) on devices. `options` may be null. Takes seconds.
 * Errors: MODEL, NO_DEVICE, OUT_OF_MEMORY, DEVICE, DEVICE_LOST. */
onepool_status onepool_session_open(const char *path, const onepool_session_options *options, onepool_session **session);

/* The same for an ONNX model in memory, whose `bytes` bytes are read during the call. External data is looked for in the
 * folder `base_dir`; where that is null, a model that has some is an error. Errors: as above. */
onepool_status onepool_session_load(const void *data, size_t bytes, const char *base_dir,
                                    const onepool_session_options *options, onepool_session **session);

/* Frees a session. Bindings of it go on. */
onepool_status onepool_session_free(onepool_session *session);

/* How many inputs, outputs and devices there are. A CPU that operators fall back to is the last device. */
onepool_status onepool_session_input_count(onepool_session *session, size_t *count);
onepool_status onepool_session_output_count(onepool_session *session, size_t *count);
onepool_status onepool_session_device_count(onepool_session *session, size_t *count);

/* Input or output `index`, from 0. `info` comes with its struct_size. */
onepool_status onepool_session_input(onepool_session *session, size_t index, onepool_io_info *info);
onepool_status onepool_session_output(onepool_session *session, size_t index, onepool_io_info *info);

/* The name of device `index`, from 0. Lives until the session is freed. */
onepool_status onepool_session_device(onepool_session *session, size_t index, const char **name);

/* What a model's file says of itself. The strings live until the session is freed; what the file does not say is "" or 0. */
typedef struct onepool_metadata {
    size_t struct_size;
    const char *format;            /* "ONNX", "GGUF" or "TVM graph JSON" */
    const char *graph;             /* the name of the graph */
    const char *producer;          /* the program that wrote it */
    const char *producer_version;
    const char *domain;            /* whose model it is */
    const char *description;       /* what people are told of it */
    const char *graph_description; /* and of its graph */
    int64_t version;               /* of the model */
    int64_t ir_version;            /* of the file format */
    size_t opset_count;
    size_t property_count;
} onepool_metadata;
#define ONEPOOL_METADATA_INIT { sizeof(onepool_metadata), NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0 }

onepool_status onepool_session_metadata(onepool_session *session, onepool_metadata *metadata);

/* Operator set `index` that the model uses, from 0, in the order of their domains; "" is ONNX's own. */
onepool_status onepool_session_opset(onepool_session *session, size_t index, const char **domain, int64_t *version);

/* Property `index`, from 0, in the order of their names: the metadata_props of an ONNX model, the entries of a GGUF file, the
 * metadata of a TVM graph. What is no text is one in JSON; of a GGUF file's array of more than 64 elements it is their number
 * and kind. The strings live until the session is freed. */
onepool_status onepool_session_property(onepool_session *session, size_t index, const char **name, const char **value);

/* The value of a property by its name. Errors: UNKNOWN_NAME. */
onepool_status onepool_session_find_property(onepool_session *session, const char *name, const char **value);

/* ---- Regions: pages that every device can import -------------------------------------------------------------------- */

typedef struct onepool_region onepool_region;
typedef struct onepool_view onepool_view;

/* What is done with bytes. */
typedef enum onepool_access { ONEPOOL_READ = 0, ONEPOOL_WRITE = 1, ONEPOOL_READ_WRITE = 2 } onepool_access;

/* Makes a region of `bytes` bytes, which are zero. Errors: OUT_OF_MEMORY. */
onepool_status onepool_region_create(size_t bytes, onepool_region **region);

/* Frees a region. Its pages stay until bindings and views of it are freed too. */
onepool_status onepool_region_free(onepool_region *region);

/* Its size. */
onepool_status onepool_region_bytes(onepool_region *region, size_t *bytes);

/* Lends `bytes` bytes from `offset` on: ONEPOOL_READ, to be read, or ONEPOOL_READ_WRITE. While the view is there, runs that
 * would race with it fail with BUSY. Errors: BUSY while a run or another view has bytes of it. */
onepool_status onepool_region_map(onepool_region *region, size_t offset, size_t bytes, uint32_t access, onepool_view **view);

/* Where a view's bytes are, and how many. The address is valid until the view is freed; writing through a view for reading
 * is undefined. One thread at a time writes. */
onepool_status onepool_view_data(onepool_view *view, void **data, size_t *bytes);

/* Ends a view: what was written is seen by the next run. */
onepool_status onepool_view_free(onepool_view *view);

/* ---- Memory for one input or output --------------------------------------------------------------------------------- */

enum {
    ONEPOOL_MEMORY_OWN = 0,     /* the library's own, set and read by copy */
    ONEPOOL_MEMORY_POINTER = 1, /* `bytes` bytes at `data`, by reference */
    ONEPOOL_MEMORY_REGION = 2,  /* `bytes` bytes (0: to the end) of `region` from `offset` on, by reference */
    ONEPOOL_MEMORY_VALUE = 3,   /* inputs: `bytes` bytes at `data`, copied during the call; needs `dims` */
    ONEPOOL_MEMORY_DLPACK = 4   /* the struct DLManagedTensorVersioned at `data`, by reference; needs no `dims` */
};

/* By reference: the library imports the pages where the device allows it, and copies in each run where it does not; the
 * verdicts say which. The caller promises of POINTER and DLPACK, what the library cannot see:
 *   - The bytes stay mapped, readable and (of an output) writable until `release` was called. Without `release`, until the
 *     binding is freed, and until all other bindings are that have memory on the same pages: give each pages of its own
 *     (aligned_alloc(4096, ...) with whole pages) or use `release`.
 *   - No one writes them while a run or a call of the binding uses them, and no one reads those of an output then. After
 *     onepool_binding_run, or onepool_run_wait, has returned, they are the caller's until the next run.
 * A broken promise is undefined: memory that is freed or resized while it is bound may crash the process or the device.
 *
 * A DLPack tensor lies in the CPU's memory and is compact. It is taken over by the call that is given it, if that returns
 * ONEPOOL_OK: its deleter is called as `release` would be. Else it stays the caller's. */
typedef struct onepool_memory {
    size_t struct_size;
    const char *name; /* of the input or output */
    uint32_t kind;    /* ONEPOOL_MEMORY_... */
    uint32_t dtype;   /* is checked; ONEPOOL_DTYPE_NONE: the model's */
    void *data;       /* of an input it is only read */
    size_t bytes;
    onepool_region *region;
    size_t offset;
    const int64_t *dims;    /* `rank` sizes; null: the model's, or of an output the plan's. A scalar: not null, rank 0 */
    const int64_t *strides; /* `rank` strides in elements; null: compact. Others than those of a compact tensor are refused */
    size_t rank;
    /* Of kind POINTER, may be null: called with `user` once, by any thread, when no device and no binding has the pages any
     * more. It is not called where the call that was given the memory fails. It must not throw, and not call this library. */
    void (*release)(void *user);
    void *user;
    /* Of an output of a new binding: the input that is the same memory, which has no entry of its own; or null. The model
     * writes the elements that change and moves no others, as for a cache of keys and values; where it cannot, that is
     * INVALID_ARGUMENT. Memory of kind OWN begins as zeros and keeps its elements between runs. */
    const char *updates;
} onepool_memory;
#define ONEPOOL_MEMORY_INIT { sizeof(onepool_memory), NULL, 0, 0, NULL, 0, NULL, 0, NULL, NULL, 0, NULL, NULL, NULL }

/* Type and shape that output `name` would have for inputs of these shapes; nothing is imported, values are read where shapes
 * depend on them. Errors: as onepool_binding_create; NOT_RUN where only a run can tell. */
onepool_status onepool_session_plan_output(onepool_session *session, const onepool_memory *inputs, size_t input_count,
                                           const char *name, onepool_tensor_info *info);

/* ---- Bindings: memory tied to a session's inputs and outputs, imported once, run many times --------------------------- */

typedef struct onepool_binding onepool_binding;

enum { ONEPOOL_STRICT_AS_SESSION = 0, ONEPOOL_STRICT_ON = 1, ONEPOOL_STRICT_OFF = 2 };

/* Binds memory. Inputs and outputs that are not named have memory of the library's own. The lists may be null where they are
 * empty; all entries of one have the same struct_size. `strict`: ONEPOOL_STRICT_.... Plans and imports, so it may take long.
 * Errors: UNKNOWN_NAME, WRONG_TYPE, WRONG_SHAPE, TOO_SMALL, UNBOUND, OVERLAP, STRICT, BUSY, MODEL, OUT_OF_MEMORY, DEVICE,
 * DEVICE_LOST. */
onepool_status onepool_binding_create(onepool_session *session, const onepool_memory *inputs, size_t input_count,
                                      const onepool_memory *outputs, size_t output_count, uint32_t strict,
                                      onepool_binding **binding);

/* Frees a binding, after waiting for a run or call that is under way. Then no device touches its memory. */
onepool_status onepool_binding_free(onepool_binding *binding);

/* Other memory of the same shape for one input or output; for an output that updates an input, for both. What was bound before stays imported, so that going back to it
 * costs little: up to 8 sets, until the binding is freed. Errors: as onepool_binding_create. */
onepool_status onepool_binding_rebind_input(onepool_binding *binding, const onepool_memory *memory);
onepool_status onepool_binding_rebind_output(onepool_binding *binding, const onepool_memory *memory);

/* Copies a value of kind VALUE into an input of the library's own memory. Its shape is that of the binding.
 * Errors: UNKNOWN_NAME, WRONG_TYPE, WRONG_SHAPE, BUSY, DEVICE. */
onepool_status onepool_binding_set_input(onepool_binding *binding, const onepool_memory *value);

/* Type and shape of an input or output. Errors: UNKNOWN_NAME; NOT_RUN where only a run can tell the shape. */
onepool_status onepool_binding_input_info(onepool_binding *binding, const char *name, onepool_tensor_info *info);
onepool_status onepool_binding_output_info(onepool_binding *binding, const char *name, onepool_tensor_info *info);

/* Copies an output of the last run to `bytes` bytes at `data`, which are exactly its size.
 * Errors: UNKNOWN_NAME, NOT_RUN, TOO_SMALL (also where there are more), DEVICE. */
onepool_status onepool_binding_get_output(onepool_binding *binding, const char *name, void *data, size_t bytes);

/* Lends an input in place for writing, or an output for reading. While the view is there, runs of the binding fail with
 * BUSY. Errors: UNKNOWN_NAME, BUSY; INVALID_ARGUMENT where the memory is a device's alone. */
onepool_status onepool_binding_map_input(onepool_binding *binding, const char *name, onepool_view **view);
onepool_status onepool_binding_map_output(onepool_binding *binding, const char *name, onepool_view **view);

/* ---- Verdicts: how each bound tensor reaches the devices, and why ----------------------------------------------------- */

typedef struct onepool_verdicts onepool_verdicts;

typedef enum onepool_path {
    ONEPOOL_PATH_HOST = 0,         /* the CPU works on the pointer itself */
    ONEPOOL_PATH_DIRECT = 1,       /* it lies in device-visible memory already */
    ONEPOOL_PATH_IMPORTED = 2,     /* the pages are imported and used in place */
    ONEPOOL_PATH_IMPORTED_DMA = 3, /* the pages are imported, and the device copies from and to them */
    ONEPOOL_PATH_DMA_BUF = 4,      /* the pages reach the device as a dma-buf */
    ONEPOOL_PATH_STAGED = 5        /* the CPU copies */
} onepool_path;

/* Strings live until the list is freed. */
typedef struct onepool_verdict {
    size_t struct_size;
    const char *tensor;
    uint32_t path;          /* onepool_path */
    uint32_t access;        /* onepool_access: what the device does with it */
    uint64_t bytes;         /* of the tensor */
    uint64_t offset;        /* where in its import it starts */
    uint64_t cpu_copied;    /* bytes that the CPU copies in each run */
    uint64_t device_copied; /* bytes that the device copies in each run */
    const char *reason;     /* why this path */
    const char *fix;        /* what would make it better, or null */
    const char *sentence;   /* all of it in words */
} onepool_verdict;
#define ONEPOOL_VERDICT_INIT { sizeof(onepool_verdict), NULL, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL }

/* The verdicts of a binding as they are now. After a run they include those of parts that were planned in it. */
onepool_status onepool_binding_verdicts(onepool_binding *binding, onepool_verdicts **verdicts);

/* How many there are: a tensor that several devices use has one for each, one in the library's own memory has none. */
onepool_status onepool_verdicts_count(onepool_verdicts *verdicts, size_t *count);

/* Verdict `index`, from 0. `verdict` comes with its struct_size. */
onepool_status onepool_verdicts_get(onepool_verdicts *verdicts, size_t index, onepool_verdict *verdict);

/* Frees the list and its strings. */
onepool_status onepool_verdicts_free(onepool_verdicts *verdicts);

/* ---- Runs ----------------------------------------------------------------------------------------------------------- */

typedef struct onepool_run onepool_run;
typedef struct onepool_cancel onepool_cancel;

/* No limit of time, for onepool_run_wait. */
#define ONEPOOL_FOREVER UINT64_MAX

/* A token cancels every run that was given it, those of later too. It cannot be taken back. */
onepool_status onepool_cancel_create(onepool_cancel **cancel);
onepool_status onepool_cancel_trigger(onepool_cancel *cancel);
onepool_status onepool_cancel_free(onepool_cancel *cancel);

/* What may end a run early: before its next submission to a device, or the next turn of a loop. Then its outputs are
 * undefined, and the binding can run again. */
typedef struct onepool_run_options {
    size_t struct_size;
    uint64_t time_limit_ns; /* from the beginning; 0: none */
    onepool_cancel *cancel; /* or null; may be freed once the call has returned */
} onepool_run_options;
#define ONEPOOL_RUN_OPTIONS_INIT { sizeof(onepool_run_options), 0, NULL }

/* Runs and waits until the results are where they were bound. `options` may be null.
 * Errors: BUSY, CANCELLED, TIME_LIMIT, OUT_OF_MEMORY, DEVICE, DEVICE_LOST; MODEL, WRONG_SHAPE and TOO_SMALL where sizes are
 * known only in the run. */
onepool_status onepool_binding_run(onepool_binding *binding, const onepool_run_options *options);

/* Called when a run is over: with ONEPOOL_OK and "", or what went wrong; the string lives for the call. It is called by a
 * thread of the library's. It may use the binding, and free it; it cannot wait for its own run. It must not throw. */
typedef void (*onepool_callback)(void *user, onepool_status status, const char *message);

/* Begins a run on a thread of its own. The binding is in use until the callback. `options` may be null; so may `callback` or
 * `run`, but not both. Errors: BUSY, OUT_OF_MEMORY; those of the run are for the callback and onepool_run_wait. */
onepool_status onepool_binding_start(onepool_binding *binding, const onepool_run_options *options,
                                     onepool_callback callback, void *user, onepool_run **run);

/* Waits until the run is over and its callback has returned, for at most `time_limit_ns`; 0 only asks. TIMEOUT says that it
 * is not over, and the run goes on. Else it returns what onepool_binding_run would, each time it is called. */
onepool_status onepool_run_wait(onepool_run *run, uint64_t time_limit_ns);

/* Cancels a run; its end is waited for as ever. A token that was given to the run is triggered by it. */
onepool_status onepool_run_cancel(onepool_run *run);

/* Forgets a run, which goes on if it is not over. */
onepool_status onepool_run_free(onepool_run *run);

/* ---- Text from language models --------------------------------------------------------------------------------------- */

typedef struct onepool_generator onepool_generator;

/* Where tokens are chosen. */
typedef enum onepool_sample_on {
    ONEPOOL_SAMPLE_ON_AUTO = 0,  /* on a GPU where the vocabulary is large, else on the host */
    ONEPOOL_SAMPLE_ON_HOST = 1,  /* the host gets all logits of a token */
    ONEPOOL_SAMPLE_ON_DEVICE = 2 /* the host gets the likely tokens alone, where these decide */
} onepool_sample_on;

/* A variable that the chat template of a model reads besides the messages. */
typedef struct onepool_template_arg {
    size_t struct_size;
    const char *name; /* as "enable_thinking", or "tools": a list of functions as OpenAI describes them; not "messages" */
    const char *json; /* its value in JSON */
} onepool_template_arg;
#define ONEPOOL_TEMPLATE_ARG_INIT { sizeof(onepool_template_arg), NULL, NULL }

/* How a language model is opened. */
typedef struct onepool_generator_options {
    size_t struct_size;
    size_t context;      /* tokens that a prompt and its text may have together; 0: as the settings say, at most 4096 */
    const char *draft;   /* the path of a smaller model of the same tokens, whose guesses are checked; or null */
    size_t draft_tokens; /* the most tokens that it guesses at once; 0: 4 */
    uint32_t sample_on;  /* onepool_sample_on */
    uint32_t reserved;   /* 0 */
    size_t pages;        /* so many, and never more; a graph with GroupQueryAttention is changed to have them. 0: as many as texts
                          * may need of a graph with PagedAttention, none of others */
    size_t page_tokens;  /* tokens of one of them; 0: as the graph declares, else 16 */
    onepool_region *page_memory; /* where they lie, of at least onepool_page_counts.region_bytes; or null */
    onepool_generator *pages_of; /* a generator of the same model whose pages this one has too; or null */
    const char *variant; /* the end of the graph's name, as "q4f16" of onnx/model_q4f16.onnx; null: as GENERATE.md says */
    const onepool_template_arg *template_args; /* all entries have the same struct_size */
    size_t template_arg_count;
    const char *cache_type; /* what the caches of a graph with GroupQueryAttention hold, the draft's too: "f32", "f16", "q8" or
                             * "q4" (codes of 8 or 4 bits and a scale for each 32). null: "f16" where the precision is
                             * float16 and there are no pages, else as the graph declares */
} onepool_generator_options;
#define ONEPOOL_GENERATOR_OPTIONS_INIT \
    { sizeof(onepool_generator_options), 0, NULL, 0, ONEPOOL_SAMPLE_ON_AUTO, 0, 0, 0, NULL, NULL, NULL, NULL, 0, NULL }

/* Opens a language model on devices: a GGUF file, or a folder with an ONNX graph, its settings (genai_config.json, or
 * config.json) and tokenizer.json; a model that reads its prompt with an encoder has encoder_model.onnx too. `session` may
 * be null, and have no frames; it is for the draft model too. `options` may be null. Takes seconds.
 * Errors: MODEL, NO_DEVICE, OUT_OF_MEMORY, DEVICE, DEVICE_LOST. */
onepool_status onepool_generator_open(const char *path, const onepool_session_options *session,
                                      const onepool_generator_options *options, onepool_generator **generator);

/* Frees a generator. A text that is on its way goes on to its end. */
onepool_status onepool_generator_free(onepool_generator *generator);

/* How many tokens a prompt and its text may have together. */
onepool_status onepool_generator_context(onepool_generator *generator, size_t *tokens);

/* How the pages of a cache are used. */
typedef struct onepool_page_counts {
    size_t struct_size;
    size_t page_tokens;  /* tokens of a page */
    size_t pages;
    size_t free;         /* with nothing in them */
    size_t used;         /* of texts */
    size_t shared;       /* those of them that several texts have */
    size_t cached;       /* kept for prompts that begin alike, until their memory is needed */
    uint64_t copied;     /* before a write */
    uint64_t evicted;    /* cached ones that were given up */
    size_t region_bytes; /* what `page_memory` for as many pages needs */
} onepool_page_counts;
#define ONEPOOL_PAGE_COUNTS_INIT { sizeof(onepool_page_counts), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* The pages of a generator, also while it makes a text. Errors: INVALID_ARGUMENT where its cache is not in pages. */
onepool_status onepool_generator_page_counts(onepool_generator *generator, onepool_page_counts *counts);

/* Gives up all cached pages. Errors: as above. */
onepool_status onepool_generator_clear_pages(onepool_generator *generator);

/* One message of a chat. */
typedef struct onepool_message {
    size_t struct_size;
    const char *role; /* "system", "user", "assistant" */
    const char *content;
    const char *json; /* or in place of both an object in JSON, for other fields such as "tool_calls" */
} onepool_message;
#define ONEPOOL_MESSAGE_INIT { sizeof(onepool_message), NULL, NULL, NULL }

/* What a text must be. */
typedef enum onepool_grammar {
    ONEPOOL_GRAMMAR_NONE = 0,
    ONEPOOL_GRAMMAR_JSON_SCHEMA = 1, /* a value that a JSON schema describes */
    ONEPOOL_GRAMMAR_REGEX = 2,       /* what a regular expression matches, the whole text */
    ONEPOOL_GRAMMAR_LARK = 3         /* what a grammar in Lark's notation derives from `start` */
} onepool_grammar;

/* A prompt, of which there is one of four, and how a text is made. Settings that are null are the model's. */
typedef struct onepool_generate_options {
    size_t struct_size;
    const char *text;                /* the prompt as it is, or null */
    const onepool_message *messages; /* for the model's chat template */
    size_t message_count;
    const uint32_t *tokens;
    size_t token_count;
    size_t max_tokens;               /* the most new tokens; 0: as many as there is room for */
    const float *temperature;        /* 0: always the most likely token */
    const uint64_t *top_k;           /* one of so many most likely tokens; 0: of all */
    const float *top_p;              /* of those that have this share of the probability together */
    const float *min_p;              /* of those that have this share of the most likely one's probability */
    const float *repetition_penalty; /* above 1: tokens that were there are less likely */
    uint64_t seed;                   /* equal prompts, settings and seeds give equal texts on a device */
    const char *const *stop;         /* strings that end the text and are no part of it */
    size_t stop_count;
    uint32_t ignore_end;             /* 1: it goes on after a token that ends texts */
    uint32_t reserved;               /* 0 */
    onepool_cancel *cancel;          /* ends it early; or null */
    const float *features;           /* for an encoder of sounds, compact; `tokens` are for the decoder then, or none */
    const size_t *features_shape;    /* their sizes as the encoder declares them, for one text */
    size_t features_rank;
    const char *grammar;             /* holds the text; or null */
    uint32_t grammar_kind;           /* onepool_grammar: which kind `grammar` is */
    uint32_t reuse;                  /* 1: tokens at the begin of the prompt that the cache has are not computed again */
    size_t lookup;                   /* the most tokens that are guessed at once from the text so far; 0: none */
} onepool_generate_options;
#define ONEPOOL_GENERATE_OPTIONS_INIT \
    { sizeof(onepool_generate_options), NULL, NULL, 0, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, NULL, 0, 0, 0, NULL, \
      NULL, NULL, 0, NULL, ONEPOOL_GRAMMAR_NONE, 0, 0 }

/* Why a text ended: by a token that ends texts, a string of `stop`, `max_tokens`, a full cache, a token of cancellation or
 * the callback. */
typedef enum onepool_finish {
    ONEPOOL_FINISH_END = 0,
    ONEPOOL_FINISH_STOP = 1,
    ONEPOOL_FINISH_LENGTH = 2,
    ONEPOOL_FINISH_CONTEXT = 3,
    ONEPOOL_FINISH_CANCELLED = 4,
    ONEPOOL_FINISH_GRAMMAR = 5 /* its grammar allows nothing after it */
} onepool_finish;

/* A text that was made. */
typedef struct onepool_generated {
    size_t struct_size;
    size_t tokens;          /* new ones, without the one that ended it */
    size_t prompt_tokens;
    uint32_t finish;        /* onepool_finish */
    uint32_t reserved;
    uint64_t prepare_ns;    /* what planning took */
    uint64_t prompt_ns;     /* what the prompt took */
    uint64_t generation_ns; /* what the tokens after the first one took */
    size_t reused_tokens;   /* of the prompt, that were in the cache */
    size_t guessed_tokens;  /* by `lookup` or a draft model */
    size_t accepted_tokens; /* those of them that became part of the text */
} onepool_generated;
#define ONEPOOL_GENERATED_INIT { sizeof(onepool_generated), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Called with the text as it comes, after each token that makes some: `bytes` bytes of whole characters in UTF-8, without a
 * zero byte at the end, which live for the call. 0: go on; else the text ends. It is called by the thread that called
 * onepool_generate, or by the thread of a batch while a step runs. It must not use the generator or the batch, which are BUSY
 * then, and must not throw. */
typedef uint32_t (*onepool_text_callback)(void *user, const char *piece, size_t bytes);

/* Makes a text and returns at its end. `generated` may be null. A text that was cancelled is ONEPOOL_OK, and its `finish` says
 * so. After an error the text so far was told, and the generator can be used again. One text at a time.
 * Errors: BUSY, MODEL, OUT_OF_MEMORY, DEVICE, DEVICE_LOST. */
onepool_status onepool_generate(onepool_generator *generator, const onepool_generate_options *options,
                                onepool_text_callback callback, void *user, onepool_generated *generated);

/* The tokens of a prompt: how many there are, and as many of them as there is `room` for. Errors: BUSY, MODEL. */
onepool_status onepool_generator_tokens(onepool_generator *generator, const onepool_generate_options *options,
                                        uint32_t *tokens, size_t room, size_t *count);

/* Writes the tokens of the last conversation that are in the cache, with their keys and values, to a file.
 * Errors: BUSY, MODEL where it cannot be written or the model has an encoder, DEVICE, DEVICE_LOST. */
onepool_status onepool_generator_save(onepool_generator *generator, const char *path);

/* Fills the cache from such a file; `tokens` gets the number of its tokens. A prompt that begins with them and has `reuse`
 * computes only the others. After an error the cache is empty.
 * Errors: BUSY, INVALID_ARGUMENT for a file that is damaged or of another model, MODEL where it cannot be read or the model
 * has an encoder, DEVICE, DEVICE_LOST. */
onepool_status onepool_generator_restore(onepool_generator *generator, const char *path, size_t *tokens);

/* ---- Texts that come and go ----------------------------------------------------------------------------------------- */

/* Makes texts that are added at any time. Its calls take turns, and may come from any thread. */
typedef struct onepool_batch onepool_batch;

typedef struct onepool_batch_options {
    size_t struct_size;
    size_t texts;       /* the most texts that run at once, others wait; 0: 8. The cache is as many times as large */
    size_t step_tokens; /* the most tokens of a step: one of each text that goes on, then tokens of prompts; 0: 256 */
} onepool_batch_options;
#define ONEPOOL_BATCH_OPTIONS_INIT { sizeof(onepool_batch_options), 0, 0 }

/* Opens a batch, which has the generator until it is freed: other texts are BUSY. `options` may be null.
 * Errors: BUSY, MODEL for a model with an encoder, OUT_OF_MEMORY, DEVICE. */
onepool_status onepool_batch_open(onepool_generator *generator, const onepool_batch_options *options,
                                  onepool_batch **batch);

/* Frees a batch, after the step that runs. Texts that have not ended are dropped. */
onepool_status onepool_batch_free(onepool_batch *batch);

/* Adds a text; `text` gets its number, which counts from 0. Nothing runs before a step. The callback gets the text's pieces
 * and its `user` until the text has ended or the batch is freed; `options` are read in the call alone. `lookup` and a draft
 * model are not used. Errors: BUSY in a callback of the batch. */
onepool_status onepool_batch_add(onepool_batch *batch, const onepool_generate_options *options,
                                 onepool_text_callback callback, void *user, uint64_t *text);

/* Adds a text that goes on from where text `of` is now, as with another seed; with a cache in pages it has the other's pages
 * until one of them writes on. `options` has no prompt; else all is as above. Errors: BUSY in a callback of the batch,
 * INVALID_ARGUMENT where no such text runs or waits. */
onepool_status onepool_batch_fork(onepool_batch *batch, uint64_t of, const onepool_generate_options *options,
                                  onepool_text_callback callback, void *user, uint64_t *text);

/* Writes the tokens of a text that are in the cache, with their keys and values, to a file, as onepool_generator_save does.
 * Errors: BUSY as above, INVALID_ARGUMENT where no such text runs, MODEL where the file cannot be written, DEVICE. */
onepool_status onepool_batch_save(onepool_batch *batch, uint64_t text, const char *path);

/* Reads such a file into pages, where prompts that begin with its tokens find them; `tokens` gets their number, whole pages.
 * Errors: BUSY as above, INVALID_ARGUMENT for a cache that is not in pages, while as many texts run as may, and as for
 * onepool_generator_restore. */
onepool_status onepool_batch_restore(onepool_batch *batch, const char *path, size_t *tokens);

/* Gives each text that runs its next token and runs a part of the prompts of those that begin. `texts` gets the numbers of
 * the texts that have ended, `count` of them. `generated`, which may be null, gets what was made; the first one says the
 * size of each. Where more have ended than there is `room` for, which is at least 1, the next calls tell of them and run
 * nothing. A text whose token of cancellation is triggered ends in the next step. After an error texts that ran are computed
 * again by the next step, but for one whose own logits or grammar failed: that one is gone.
 * Errors: BUSY in a callback of the batch, MODEL, OUT_OF_MEMORY, DEVICE, DEVICE_LOST. */
onepool_status onepool_batch_step(onepool_batch *batch, uint64_t *texts, onepool_generated *generated, size_t room,
                                  size_t *count);

/* Whether no text runs or waits, and none that has ended is still to be told of: 1, else 0. Errors: BUSY as above. */
onepool_status onepool_batch_is_idle(onepool_batch *batch, uint32_t *idle);

/* What a batch did so far. */
typedef struct onepool_batch_counts {
    size_t struct_size;
    uint64_t steps;
    uint64_t tokens;        /* that ran in them */
    uint64_t reused_tokens; /* of prompts, that were in pages already */
    size_t most_texts;      /* of one step */
    uint64_t preempted;     /* how often a text was set aside for want of pages */
} onepool_batch_counts;
#define ONEPOOL_BATCH_COUNTS_INIT { sizeof(onepool_batch_counts), 0, 0, 0, 0, 0 }

/* Errors: BUSY as above. */
onepool_status onepool_batch_get_counts(onepool_batch *batch, onepool_batch_counts *counts);

/* ---- Vectors of texts ----------------------------------------------------------------------------------------------- */

typedef struct onepool_embedder onepool_embedder;

/* Opens a model that makes one vector of a text, on devices: a folder of sentence-transformers with model.onnx or
 * onnx/model.onnx, tokenizer.json and its settings. `options` may be null, and have no frames. Takes seconds.
 * Errors: MODEL, NO_DEVICE, OUT_OF_MEMORY, DEVICE, DEVICE_LOST. */
onepool_status onepool_embedder_open(const char *path, const onepool_session_options *options,
                                     onepool_embedder **embedder);

/* Frees an embedder. A call that is on its way goes on to its end. */
onepool_status onepool_embedder_free(onepool_embedder *embedder);

/* How vectors are made. */
typedef struct onepool_embed_options {
    size_t struct_size;
    const char *prompt;     /* the name of a text that the model's settings put before texts, as "query"; or null */
    size_t dims;            /* so many elements of each vector; 0: all */
    onepool_cancel *cancel; /* ends it early, with CANCELLED; or null */
} onepool_embed_options;
#define ONEPOOL_EMBED_OPTIONS_INIT { sizeof(onepool_embed_options), NULL, 0, NULL }

/* Makes the vectors of `text_count` texts, one after another in `vectors`, as many numbers as there is `room` for. `dims` gets
 * the elements of one vector; with no `room` nothing else is told. A text that is longer than the model takes is cut.
 * `options` may be null. Several threads may call it at once.
 * Errors: MODEL, CANCELLED, OUT_OF_MEMORY, DEVICE, DEVICE_LOST. */
onepool_status onepool_embed(onepool_embedder *embedder, const char *const *texts, size_t text_count,
                             const onepool_embed_options *options, float *vectors, size_t room, size_t *dims);

/* ---- DLPack --------------------------------------------------------------------------------------------------------- */

#if defined(ONEPOOL_DEFINE_DLPACK) && !defined(DLPACK_DLPACK_H_)
/* The layout of DLPack 1, for who has no dlpack.h. */
typedef struct { uint32_t major, minor; } DLPackVersion;
typedef struct { int32_t device_type, device_id; } DLDevice; /* CPU: 1, 0 */
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType; /* int: 0, unsigned: 1, float: 2, bfloat: 4, bool: 6 */
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags; /* 1: read-only, 2: a copy, 4: elements of less than a byte have a byte each */
    DLTensor dl_tensor;
} DLManagedTensorVersioned;
#endif

struct DLManagedTensorVersioned;

/* An output as a DLPack tensor, to be read. The caller owns it and calls its deleter, in any thread, also after the binding
 * was freed. `copy` 0: in place; until the deleter is called, runs of the binding fail with BUSY. 1: a copy of the last
 * run's. Errors: as onepool_binding_map_output, or as onepool_binding_get_output. */
onepool_status onepool_binding_output_dlpack(onepool_binding *binding, const char *name, uint32_t copy,
                                             struct DLManagedTensorVersioned **tensor);

#ifdef __cplusplus
}
#endif

#endif /* ONEPOOL_H */
