//! The header and the library say the same: functions, structures, numbers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::mem::offset_of;

use onepool::dlpack::{DlTensor, ManagedTensor};
use onepool_capi::batch::{BatchCountsC, BatchOptionsC};
use onepool_capi::embed::VectorOptions;
use onepool_capi::frame::{CHANNELS, FILTERS, FORMATS, Frame, LAYOUTS, MATRICES, RANGES};
use onepool_capi::generate::{GeneratorOptions, PageCountsC, SAMPLE_ON, TemplateArg};
use onepool_capi::log::LEVELS;
use onepool_capi::metadata::MetadataC;
use onepool_capi::run::FOREVER;
use onepool_capi::status::Status;
use onepool_capi::text::{ChatMessage, FINISHES, GRAMMARS, GeneratedC, TextOptions};
use onepool_capi::types::{
    ACCESSES, DTYPES, IoInfo, KINDS, MAX_RANK, Memory, NUMBERS, PATHS, Place, RunOptions, SessionOptions,
    TensorInfoC, Verdict,
};
use support::{Build, CFLAGS, folder, include, library, run};

/// The header without its comments.
fn header() -> String {
    let text = fs::read_to_string(include().join("onepool.h")).unwrap();
    let mut code = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("/*") {
        code += before;
        rest = after.split_once("*/").unwrap().1;
    }
    code + rest
}

/// The words of a text that begin with `start`.
fn words<'a>(text: &'a str, start: &str) -> BTreeSet<&'a str> {
    let other = |c: char| !(c.is_alphanumeric() || c == '_');
    text.split(other).filter(|word| word.starts_with(start)).collect()
}

/// The functions that the header declares: names before a bracket that stand outside of other brackets.
fn functions(header: &str) -> BTreeSet<&str> {
    let lines = header.lines().filter(|line| !line.starts_with(['#', ' ', '}']) && line.contains('('));
    let lines = lines.filter(|line| !line.starts_with("typedef"));
    let names = lines.map(|line| line.split_once('(').unwrap().0.rsplit([' ', '*']).next().unwrap());
    names.filter(|name| name.starts_with("onepool_")).collect()
}

#[test]
fn functions_of_the_header_are_the_symbols_of_the_library() {
    let header = header();
    let declared = functions(&header);
    assert!(declared.len() > 40, "{declared:?}");
    let shared = library("libonepool_capi.so");
    let said = run(&["nm", "--dynamic", "--defined-only", shared.to_str().unwrap()]);
    let symbols: BTreeSet<&str> = said.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    let symbols = symbols.iter().map(|name| name.split('@').next().unwrap());
    // The crate for grammars exports functions for C of its own, and has no feature to leave them out.
    let symbols: BTreeSet<&str> = symbols.filter(|name| !name.starts_with("llg_")).collect();
    assert_eq!(declared, symbols, "the header's and the library's");
    // Each of them is given bad input, and each is said to be by its documentation.
    let programs = ["bad_input.c", "batch.c", "generate.c", "pages.c", "says.c"]
        .map(|name| fs::read_to_string(folder().join("tests/c").join(name)).unwrap());
    let untested: Vec<_> = declared
        .iter()
        .filter(|name| !programs.iter().any(|text| text.contains(&format!("{name}("))))
        .collect();
    let infallible = ["onepool_last_error", "onepool_status_name", "onepool_version"];
    let untested: Vec<_> = untested.into_iter().filter(|name| !infallible.contains(name)).collect();
    assert!(untested.is_empty(), "no bad input is given to {untested:?}");
}

/// Sizes and offsets as Rust has them, as assertions in C.
#[test]
fn structures_and_numbers_are_those_of_rust() {
    let mut c = String::from("#define ONEPOOL_DEFINE_DLPACK\n#include \"onepool.h\"\n");
    let mut named = BTreeSet::new();
    let mut number = |c: &mut String, name: &str, value: u64| {
        writeln!(c, "_Static_assert({name} == {value}u, \"{name}\");").unwrap();
        named.insert(name.to_owned());
    };
    for (status, name) in Status::ALL {
        number(&mut c, name.to_str().unwrap(), status as u64);
    }
    let numbers = (DTYPES.iter().map(|(n, name, _)| (*n, *name)))
        .chain(PATHS.iter().map(|(n, name, _)| (*n, *name)))
        .chain(ACCESSES.iter().map(|(n, name, _)| (*n, *name)))
        .chain(KINDS.iter().copied())
        .chain(NUMBERS.iter().copied())
        .chain(FINISHES.iter().copied())
        .chain(GRAMMARS.iter().copied())
        .chain(LEVELS.iter().map(|(n, name, _)| (*n, *name)))
        .chain(SAMPLE_ON.iter().map(|(n, name, _)| (*n, *name)))
        .chain(FORMATS.iter().map(|(n, name, _)| (*n, *name)))
        .chain(MATRICES.iter().map(|(n, name, _)| (*n, *name)))
        .chain(RANGES.iter().map(|(n, name, _)| (*n, *name)))
        .chain(FILTERS.iter().map(|(n, name, _)| (*n, *name)))
        .chain(LAYOUTS.iter().map(|(n, name, _)| (*n, *name)))
        .chain(CHANNELS.iter().map(|(n, name, _)| (*n, *name)))
        .chain([(MAX_RANK as u32, "ONEPOOL_MAX_RANK")]);
    numbers.for_each(|(value, name)| number(&mut c, name, value.into()));
    number(&mut c, "ONEPOOL_FOREVER", FOREVER);
    macro_rules! structure {
        ($rust:ty, $name:literal, $($field:ident $(= $other:literal)?),*) => {
            writeln!(c, "_Static_assert(sizeof({}) == {}, \"{}\");", $name, size_of::<$rust>(), $name).unwrap();
            $(
                let field = [$($other,)? stringify!($field)][0];
                let offset = offset_of!($rust, $field);
                writeln!(c, "_Static_assert(offsetof({}, {field}) == {offset}, \"{}.{field}\");", $name, $name).unwrap();
            )*
        };
    }
    structure!(
        SessionOptions,
        "onepool_session_options",
        struct_size,
        devices,
        device_count,
        cache_dir,
        copy_threshold,
        precision,
        placement,
        threads,
        strict,
        no_fallback,
        reserved,
        frames,
        frame_count,
        params,
        any_device,
        activations,
        integers,
        coarse_filter,
        no_fuse,
        tuning,
        tuning_ns,
        tuning_dir,
        places,
        place_count,
        placement_ns,
        submission,
        wait,
        submission_ns,
        priority,
        robustness,
        validation,
        map_weights
    );
    structure!(Place, "onepool_place", struct_size, kind, device, name);
    structure!(
        MetadataC,
        "onepool_metadata",
        struct_size,
        format,
        graph,
        producer,
        producer_version,
        domain,
        description,
        graph_description,
        version,
        ir_version,
        opset_count,
        property_count
    );
    structure!(TemplateArg, "onepool_template_arg", struct_size, name, json);
    structure!(
        Frame,
        "onepool_frame",
        struct_size,
        name,
        is_output,
        format,
        width,
        height,
        strides,
        offsets,
        memories,
        plane_count,
        matrix,
        range,
        crop,
        size,
        filter,
        layout,
        channels,
        reserved,
        scale,
        mean,
        std_dev,
        mean_count
    );
    structure!(ChatMessage, "onepool_message", struct_size, role, content, json);
    structure!(
        TextOptions,
        "onepool_generate_options",
        struct_size,
        text,
        messages,
        message_count,
        tokens,
        token_count,
        max_tokens,
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        seed,
        stop,
        stop_count,
        ignore_end,
        reserved,
        cancel,
        features,
        features_shape,
        features_rank,
        grammar,
        grammar_kind,
        reuse,
        lookup
    );
    structure!(
        GeneratorOptions,
        "onepool_generator_options",
        struct_size,
        context,
        draft,
        draft_tokens,
        sample_on,
        reserved,
        pages,
        page_tokens,
        page_memory,
        pages_of,
        variant,
        template_args,
        template_arg_count,
        cache_type
    );
    structure!(
        PageCountsC,
        "onepool_page_counts",
        struct_size,
        page_tokens,
        pages,
        free,
        used,
        shared,
        cached,
        copied,
        evicted,
        region_bytes
    );
    structure!(BatchOptionsC, "onepool_batch_options", struct_size, texts, step_tokens);
    structure!(
        BatchCountsC,
        "onepool_batch_counts",
        struct_size,
        steps,
        tokens,
        reused_tokens,
        most_texts,
        preempted
    );
    structure!(VectorOptions, "onepool_embed_options", struct_size, prompt, dims, cancel);
    structure!(
        GeneratedC,
        "onepool_generated",
        struct_size,
        tokens,
        prompt_tokens,
        finish,
        reserved,
        prepare_ns,
        prompt_ns,
        generation_ns,
        reused_tokens,
        guessed_tokens,
        accepted_tokens
    );
    structure!(IoInfo, "onepool_io_info", struct_size, name, dtype, has_shape, rank, dims, symbols);
    structure!(TensorInfoC, "onepool_tensor_info", struct_size, dtype, reserved, rank, dims, bytes);
    structure!(
        Memory,
        "onepool_memory",
        struct_size,
        name,
        kind,
        dtype,
        data,
        bytes,
        region,
        offset,
        dims,
        strides,
        rank,
        release,
        user,
        updates
    );
    structure!(
        Verdict,
        "onepool_verdict",
        struct_size,
        tensor,
        path,
        access,
        bytes,
        offset,
        cpu_copied,
        device_copied,
        reason,
        fix,
        sentence
    );
    structure!(RunOptions, "onepool_run_options", struct_size, time_limit_ns, cancel);
    structure!(DlTensor, "DLTensor", data, device, ndim, dtype, shape, strides, byte_offset);
    structure!(
        ManagedTensor,
        "DLManagedTensorVersioned",
        version,
        manager_ctx,
        deleter,
        flags,
        tensor = "dl_tensor"
    );
    c += "int main(void) { return 0; }\n";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("layout.c");
    fs::write(&file, c).unwrap();
    for compiler in ["gcc", "clang"] {
        let build = Build { compiler, flags: CFLAGS, sanitize: false, linked: true };
        run(&[build.program(&file, dir.path()).to_str().unwrap()]);
    }
    // No number of the header is left out.
    let header = header();
    let ours =
        |name: &&str| !name.ends_with("_INIT") && !["ONEPOOL_H", "ONEPOOL_DEFINE_DLPACK"].contains(name);
    let all: BTreeSet<String> =
        words(&header, "ONEPOOL_").into_iter().filter(ours).map(str::to_owned).collect();
    assert_eq!(all, named);
    let sizes = header.matches("size_t struct_size;").count();
    assert_eq!(sizes, 18, "a structure of the header is not compared");
}

#[test]
fn versions_are_one() {
    let manifest = fs::read_to_string(folder().join("../../Cargo.toml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(manifest.contains(&format!("version = \"{version}\"")));
    let metadata = fs::read_to_string(folder().join("Cargo.toml")).unwrap();
    assert!(metadata.contains("from = \"include/onepool.h\"") && metadata.contains("name = \"onepool\""));
}
