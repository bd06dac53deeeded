//! Every recorded driver, and files that are none.

use std::fs;
use std::io::Write;

use serde_json::{Value, json};

use super::check::{HEAP, strictest};
use super::*;
use onepool_core::memory::model::Placement;

fn all() -> Vec<(&'static str, Value, DriverProfile)> {
    let parse = |(name, text): &(&'static str, &str)| {
        (*name, serde_json::from_str(text).unwrap(), DriverProfile::parse(name, text).unwrap())
    };
    FILES.iter().map(parse).collect()
}

/// The recorded driver `name`, with a field that `path` (a JSON pointer) names set to `value`.
fn altered(name: &str, path: &str, value: Value) -> Result<DriverProfile, (String, String)> {
    let (_, text) = FILES.iter().find(|(known, _)| *known == name).unwrap();
    let mut json: Value = serde_json::from_str(text).unwrap();
    match json.pointer_mut(path) {
        Some(field) => *field = value,
        None => {
            let (parent, field) = path.rsplit_once('/').unwrap();
            json.pointer_mut(parent).unwrap()[field] = value;
        }
    }
    DriverProfile::parse("some.json", &json.to_string()).map_err(|error| match error {
        DeviceError::Profile { file, field, problem } => {
            assert_eq!(file, "some.json");
            (field, problem)
        }
        other => panic!("{other}"),
    })
}

#[test]
fn every_recorded_driver_is_played_under_the_name_of_its_file() {
    let all = all();
    assert!(all.len() >= 53);
    for (name, json, profile) in &all {
        assert_eq!(profile.name, *name);
        assert!(!json["source"].as_array().unwrap().is_empty(), "{name} names no source");
        let memory = profile.memory();
        for placement in Placement::ALL {
            assert!(memory.best(placement).is_some(), "{name} has no memory for {placement:?}");
        }
        let heaps = json["heaps"].as_array().map_or(profile.heaps.len(), Vec::len);
        assert_eq!(profile.heaps.len(), heaps, "{name}");
        if json["types_complete"] == true {
            assert_eq!(json["type_count"], profile.types.len(), "{name}");
        }
        // The type that the file calls the best one for imports is found by its properties.
        if let Some(best) = json["host_import"]["best_type"].as_u64() {
            assert_eq!(memory.import_type().map(u64::from), Some(best), "{name}");
        }
        assert_eq!(profile.import.is_some(), json["host_import"]["present"] == true, "{name}");
    }
    let names: Vec<&str> = DriverProfile::names().collect();
    assert!(names.is_sorted() && names.len() == all.len());
    assert_eq!(DriverProfile::built_in("RADV-Phoenix-780M").unwrap().unwrap().name, "radv-phoenix-780m");
    assert!(DriverProfile::built_in("radv").is_none());
}

#[test]
fn an_apu_is_what_was_recorded() {
    let apu = DriverProfile::built_in("radv-phoenix-780m").unwrap().unwrap();
    let memory = apu.memory();
    assert!(memory.shares_host_memory() && apu.overcommits && apu.dma_bufs);
    assert_eq!((memory.import_type(), memory.import_heap()), (Some(5), Some(0)));
    assert_eq!((memory.heaps()[0].bytes, memory.types().len()), (5_547_663_360, 11));
    let import = apu.import.as_ref().unwrap();
    assert_eq!((import.driver, import.type_bits, import.counted), (DriverKind::Radv, 0x20, false));
    assert!(import.takes.first_mapping_only && !import.takes.memfd && !import.takes.read_only_anonymous);
    assert_eq!(apu.choices, [""; 0]);
    // The size of a buffer is not that of an argument.
    assert_eq!((apu.limits.max_buffer_bytes, apu.limits.max_argument_bytes), (4_294_967_292, 4_294_967_292));
    let older = DriverProfile::built_in("radv-cezanne-512m").unwrap().unwrap();
    assert_eq!(older.import.unwrap().codes.kind, -13);
    let arc = DriverProfile::built_in("anv-lunarlake").unwrap().unwrap().import.unwrap();
    assert_eq!((arc.codes.kind, arc.codes.heap_full, arc.counted), (DEVICE_LOST, -2, true));
    let none = DriverProfile::built_in("radv-apu-unified-heap").unwrap().unwrap();
    assert_eq!((none.import.as_ref().unwrap().type_bits, none.memory().import_type()), (0, None));
}

/// The strict choice for a limit is the strictest value that was recorded anywhere.
#[test]
fn unknown_limits_take_the_strictest_recorded_value() {
    let all = all();
    let recorded = |name: &str| {
        let values = all.iter().filter_map(|(_, json, _)| json["limits"][name].as_u64());
        values.collect::<Vec<u64>>()
    };
    let least = |name| recorded(name).into_iter().min().unwrap();
    let most = |name| recorded(name).into_iter().max().unwrap();
    assert_eq!(strictest::ALLOCATION, least("max_memory_allocation_size"));
    assert_eq!(strictest::BUFFER, least("max_buffer_size"));
    assert_eq!(strictest::RANGE, least("max_storage_buffer_range"));
    assert_eq!(strictest::STORAGE_ALIGNMENT, most("min_storage_buffer_offset_alignment"));
    assert_eq!(strictest::TEXEL_ALIGNMENT, most("min_texel_buffer_offset_alignment"));
    assert_eq!(strictest::ATOM, most("non_coherent_atom_size"));
    assert_eq!(u64::from(strictest::LOCAL_BYTES), least("max_compute_shared_memory_size"));
    assert_eq!(u64::from(strictest::GROUP_ITEMS), least("max_compute_work_group_invocations"));
    assert_eq!(u64::from(strictest::PARAMS), least("max_push_constants_size"));
    assert_eq!(strictest::TEXELS, least("max_texel_buffer_elements"));
    assert_eq!(u64::from(strictest::ARGUMENTS), least("max_per_stage_descriptor_storage_buffers"));
    assert_eq!(u64::from(strictest::SUBGROUP), least("subgroup_size"));
    let alignments = all
        .iter()
        .filter_map(|(_, json, _)| json["host_import"]["min_imported_host_pointer_alignment"].as_u64());
    assert_eq!(Some(strictest::IMPORT_ALIGNMENT), alignments.max());
}

#[test]
fn what_is_not_known_takes_the_strict_choice_and_says_so() {
    for (name, json, profile) in all() {
        let mut unknown: Vec<String> = Vec::new();
        let limits = json["limits"].as_object().unwrap();
        let played = [
            "max_memory_allocation_size",
            "max_buffer_size",
            "max_storage_buffer_range",
            "min_storage_buffer_offset_alignment",
            "min_texel_buffer_offset_alignment",
            "non_coherent_atom_size",
            "max_compute_shared_memory_size",
            "max_compute_work_group_invocations",
            "max_compute_work_group_size",
            "max_push_constants_size",
            "max_texel_buffer_elements",
            "max_per_stage_descriptor_storage_buffers",
            "timestamp_period",
            "timestamp_valid_bits",
            "subgroup_size",
        ];
        unknown.extend(played.iter().filter(|f| limits[**f].is_null()).map(|f| format!("limits.{f}")));
        for (at, heap) in json["heaps"].as_array().into_iter().flatten().enumerate() {
            unknown.extend(heap["size"].is_null().then(|| format!("heaps[{at}].size")));
        }
        unknown.extend(json["heaps"].is_null().then(|| "heaps".to_owned()));
        unknown.extend((json["types_complete"] == false).then(|| "types".to_owned()));
        let import = &json["host_import"];
        unknown.extend(import["present"].is_null().then(|| "host_import.present".to_owned()));
        if import["present"] == true {
            let taken = import["accepts"].as_object().unwrap();
            let null = taken.iter().filter(|(_, known)| known.is_null());
            unknown.extend(null.map(|(field, _)| format!("host_import.accepts.{field}")));
            let bits = "memory_type_bits";
            unknown.extend(import[bits].is_null().then(|| format!("host_import.{bits}")));
        }
        for field in unknown {
            let said = format!("{field} is unknown: ");
            assert!(
                profile.choices.iter().any(|c| c.starts_with(&said)),
                "{name}: {field}: {:?}",
                profile.choices
            );
        }
    }
    let bare = DriverProfile::built_in("adreno-windows-x1").unwrap().unwrap();
    assert_eq!(bare.heaps, [Heap { bytes: HEAP, device_local: true }]);
    assert!(bare.import.is_none() && bare.types.len() == 2);
    let unknown = DriverProfile::built_in("amd-windows-apu-2g").unwrap().unwrap().import.unwrap();
    assert_eq!(unknown.takes, Takes::STRICT);
}

#[test]
fn a_broken_field_is_named_with_what_to_do() {
    let cases = [
        ("/heap", json!(1), "heap", "unknown field"),
        ("/limits/max_bufer_size", json!(1), "limits.max_bufer_size", "unknown field"),
        ("/host_import/accepts/fd", json!(true), "host_import.accepts.fd", "unknown field"),
        ("/types/3/flag", json!([]), "types[3].flag", "unknown field"),
        ("/heaps/1/size", json!(1u64 << 63), "heaps[1].size", "below 2^63"),
        ("/heaps/0/size", json!(i64::MAX), "heaps[1].size", "all heaps together"),
        ("/heaps/0/size", json!(-1), "heaps[0].size", "invalid value"),
        ("/heaps/0/size", json!(1.5), "heaps[0].size", "invalid type"),
        ("/heaps/0/size", json!("4 GiB"), "heaps[0].size", "invalid type"),
        ("/heaps/0/index", json!(1), "heaps[0].index", "in order"),
        ("/heaps", json!([]), "heaps", "0 heaps"),
        ("/heap_count", json!(3), "heap_count", "2 heaps are listed"),
        ("/type_count", json!(12), "type_count", "11 types are listed"),
        ("/type_count", json!(1u64 << 40), "type_count", "at most 32"),
        ("/types/0/heap", json!(2), "types[0].heap", "names heap 2"),
        ("/types/0/heap", json!(u64::MAX), "types[0].heap", "at most 16"),
        ("/types/4/index", json!(5), "types[4].index", "in order"),
        ("/types/4/bits", json!(15), "types[4].bits", "its flags are 7"),
        ("/types/4/flags", json!(["HOST_VISIBEL"]), "types[4].flags[0]", "unknown variant"),
        ("/types/0/flags", json!(["HOST_CACHED"]), "types[0].bits", "its flags are 8"),
        ("/host_import/memory_type_bits", json!(1 << 11), "host_import.memory_type_bits", "11 types"),
        ("/host_import/best_type", json!(2), "host_import.best_type", "not among the bits"),
        ("/host_import/best_type", json!(99), "host_import.best_type", "there are 11 types"),
        (
            "/host_import/min_imported_host_pointer_alignment",
            json!(5000),
            "host_import.min_imported_host_pointer_alignment",
            "no power of two",
        ),
        ("/host_import/size_limit", json!(0), "host_import.size_limit", "null says"),
        ("/host_import/refusal/unaligned", json!("no"), "host_import.refusal.unaligned", "names no VkResult"),
        (
            "/host_import/refusal/unaligned",
            json!("VK_ERROR_ODD"),
            "host_import.refusal.unaligned",
            "VK_ERROR_ODD",
        ),
        ("/host_import/refusal/unaligned", json!(7), "host_import.refusal.unaligned", "VkResult"),
        (
            "/host_import/overcommit/at_submit",
            json!("VK_ERROR_X"),
            "host_import.overcommit.at_submit",
            "VK_ERROR_X",
        ),
        ("/limits/max_buffer_size", json!(0), "limits.max_buffer_size", "no size"),
        ("/limits/max_buffer_size", json!(u64::MAX), "limits.max_buffer_size", "2^63 - 1"),
        ("/limits/non_coherent_atom_size", json!(3), "limits.non_coherent_atom_size", "no power of two"),
        ("/limits/max_push_constants_size", json!(1u64 << 32), "limits.max_push_constants_size", "2^32 - 1"),
        (
            "/limits/max_compute_work_group_size",
            json!([1, 1]),
            "limits.max_compute_work_group_size",
            "length",
        ),
        (
            "/limits/max_compute_work_group_size",
            json!([1, 0, 1]),
            "limits.max_compute_work_group_size",
            "three counts",
        ),
        ("/limits/subgroup_size", json!(48), "limits.subgroup_size", "no power of two"),
        ("/limits/timestamp_valid_bits", json!(65), "limits.timestamp_valid_bits", "has 64"),
        ("/limits/timestamp_period", json!(-1.0), "limits.timestamp_period", "no time"),
        ("/device/type", json!("IGPU"), "device.type", "unknown variant"),
        ("/device", Value::Null, "device", "invalid type"),
        ("/name", json!(" "), "name", "empty"),
        ("/source", json!("a dump"), "source", "invalid type"),
    ];
    for (path, value, field, problem) in cases {
        let (at, said) = altered("radv-phoenix-780m", path, value.clone()).unwrap_err();
        assert_eq!(at, field, "{path} = {value}: {said}");
        assert!(said.contains(problem), "{path} = {value}: {said}");
    }
}

#[test]
fn a_field_may_be_missing_where_it_may_be_unknown() {
    let (_, text) = FILES.iter().find(|(known, _)| *known == "radv-phoenix-780m").unwrap();
    let json: Value = serde_json::from_str(text).unwrap();
    for section in ["limits", "features", "host_import"] {
        for field in json[section].as_object().unwrap().keys() {
            let null = altered("radv-phoenix-780m", &format!("/{section}/{field}"), Value::Null);
            let mut without = json.clone();
            without[section].as_object_mut().unwrap().remove(field);
            let without = DriverProfile::parse("some.json", &without.to_string());
            assert_eq!(without.is_ok(), null.is_ok(), "{section}.{field}: {without:?}, {null:?}");
            assert!(null.is_ok_and(|null| without.is_ok_and(|without| without == null)), "{section}.{field}");
        }
    }
    let error = DriverProfile::parse("some.json", "{\"name\": \"a\"}").unwrap_err().to_string();
    assert!(error.contains("some.json") && error.contains("missing field `title`"), "{error}");
}

#[test]
fn files_that_are_no_profile_are_errors_and_no_hang() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str| DriverProfile::read(folder.path().join(name)).map(|profile| profile.name);
    let says = |name: &str, what: &str| {
        let error = read(name).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(what), "{error}");
    };
    says("none.json", "it cannot be read");
    says(".", "no regular file");
    #[cfg(unix)]
    {
        let pipe = folder.path().join("pipe.json");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        says("pipe.json", "no regular file");
        std::os::unix::fs::symlink(&pipe, folder.path().join("link.json")).unwrap();
        says("link.json", "no regular file");
    }
    // A hole of 1 TiB.
    fs::File::create(folder.path().join("huge.json")).unwrap().set_len(1 << 40).unwrap();
    says("huge.json", "at most 1048576");
    let write = |name: &str, bytes: &[u8]| {
        fs::File::create(folder.path().join(name)).unwrap().write_all(bytes).unwrap();
    };
    let text = FILES[0].1;
    for (name, bytes, what) in [
        ("empty.json", &b""[..], "EOF"),
        ("cut.json", &text.as_bytes()[..text.len() / 2], "EOF"),
        ("binary.json", &[0xFF; 64][..], "UTF-8"),
        ("list.json", b"[]", "invalid length"),
        ("twice.json", format!("{text}{text}").as_bytes(), "trailing"),
        ("deep.json", "[".repeat(100_000).as_bytes(), ""),
        ("again.json", b"{\"name\": \"a\", \"name\": \"b\"}", "duplicate field `name`"),
    ] {
        write(name, bytes);
        says(name, what);
    }
    write("good.json", text.as_bytes());
    assert_eq!(read("good.json").unwrap(), FILES[0].0);
}
