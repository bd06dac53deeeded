//! What a recorded driver refuses, where it charges memory, and what is slow to read there.

use std::fs;

use std::sync::Arc;

use onepool::backend::{BufferDesc, ContextDesc, DeviceError, Placement};
use onepool::device::{Context, Error};
use onepool::loader::{read_params, write_params};
use onepool::memory::import::costs::ImportTimes;
use onepool::memory::import::{CostSource, ImportError, Refusal};
use onepool::registry::{OpenError, Registry};
use onepool::{DType, GraphBuilder, HostRegion, Session, ops};

use crate::open;
use crate::values::{numbers, op, tensor};

fn refusal(context: &Context, region: HostRegion) -> Option<Refusal> {
    match context.import(&region.into_shared()) {
        Ok(_) => None,
        Err(Error::Import(ImportError::Refused(refusal))) => Some(refusal),
        Err(other) => panic!("{}: {other}", context.info().name),
    }
}

#[test]
fn memory_files_are_refused_where_the_kernel_takes_anonymous_pages_alone() {
    let file = || HostRegion::in_memory_file(8192).unwrap();
    for (name, takes) in [
        ("radv-phoenix-780m", false),
        ("radv-strix-halo-96g", false),
        ("amdpro-apu-8types", false),
        ("anv-xe-llc", true),
        ("nvidia-rtx3070-linux-small-bar", true),
        ("lavapipe-26", true),
    ] {
        let context = open(&format!("sim:{name}"));
        assert_eq!(refusal(&context, HostRegion::new(8192).unwrap()), None, "{name}");
        let refused = refusal(&context, file());
        assert_eq!(refused, (!takes).then_some(Refusal::Memfd), "{name}");
    }
    // The driver lists the extension and grants no type; and one that lists none.
    for name in ["radv-apu-unified-heap", "turnip-a6xx"] {
        assert!(refusal(&open(&format!("sim:{name}")), HostRegion::new(8192).unwrap()).is_some(), "{name}");
    }
}

/// Buffers are mapped, cached and coherent as the type is that the driver lists for them.
#[test]
fn buffers_are_as_the_drivers_types_are() {
    let info = |name: &str, placement| {
        let context = open(&format!("sim:{name}"));
        let made = context.create_buffer(&BufferDesc { bytes: 4096, placement, label: "test" }).unwrap();
        let info = made.info();
        (info.host.is_some(), info.cached, info.coherent, info.heap)
    };
    assert_eq!(info("radv-phoenix-780m", Placement::Shared), (true, true, true, 0));
    // One heap and no cached type: what is mapped there is write-combined.
    assert_eq!(info("radv-apu-unified-heap", Placement::Readback), (true, false, true, 0));
    assert_eq!(info("amd-windows-apu-2g", Placement::Readback), (true, true, true, 1));
    // Cached and coherent at once is no type there.
    let (mapped, cached, coherent, _) = info("anv-i915-no-llc", Placement::Readback);
    assert!(mapped && cached && !coherent);
    let (mapped, ..) = info("nvidia-rtx3070-linux-small-bar", Placement::Device);
    assert!(!mapped);
}

/// Bytes that the host reads past its caches in a run by value.
fn past_caches(name: &str) -> u64 {
    const N: usize = 32 << 10;
    let context = open(&format!("sim:{name}"));
    let mut g = GraphBuilder::new("abs");
    let x = g.input("x", DType::F32, [N.into()]);
    let y = g.op(op("Abs"), &[x]);
    g.output("y", y);
    let mut session = Session::builder().graph(g.build().unwrap()).context(context.clone()).build().unwrap();
    session.set_input("x", &tensor(&[N], &numbers(N, 1))).unwrap();
    session.run().unwrap();
    let before = context.traffic().read_past_caches;
    assert_eq!(session.get_output("y").unwrap().as_slice::<f32>().unwrap().len(), N);
    context.traffic().read_past_caches - before
}

#[test]
fn reads_of_write_combined_memory_are_counted_and_only_where_there_is_no_other() {
    for name in ["radv-phoenix-780m", "amd-windows-apu-2g", "anv-xe-llc", "anv-i915-no-llc", "turnip-a6xx"] {
        assert_eq!(past_caches(name), 0, "{name}");
    }
    assert_eq!(past_caches("nvidia-rtx3070-linux-small-bar"), 0);
    // Nothing is cached on these, so that what is fetched is read slowly, and counted.
    for name in ["radv-apu-unified-heap", "v3dv-rpi5"] {
        assert!(past_caches(name) >= 128 << 10, "{name}");
    }
}

/// amdgpu looks at every imported page in each submission. Parameters whose pages cost more than a part of their reading
/// move to the device's own memory, which is read back by the device: what the host reads there is not cached.
#[test]
fn parameters_leave_pages_that_every_submission_pays_for() {
    const N: usize = 32 << 10;
    let open = |submit_byte_ns| {
        let times = ImportTimes {
            import_ns: 20e3,
            copy_ns: 0.1,
            own_read_ns: 0.02,
            imported_read_ns: 0.02,
            device_copy_ns: 0.03,
            submit_byte_ns,
            ..ImportTimes::default()
        };
        let desc = ContextDesc { costs: CostSource::Times(Arc::new(times)), ..ContextDesc::default() };
        Registry::with_defaults().open("sim:radv-phoenix-780m", &desc).unwrap()
    };
    let sums = |session: &mut Session| {
        session.set_input("x", &tensor(&[N], &numbers(N, 1))).unwrap();
        session.run().unwrap();
        session.get_output("y").unwrap().as_slice::<f32>().unwrap().to_vec()
    };
    let want: Vec<f32> = numbers(N, 1).iter().zip(numbers(N, 2)).map(|(x, w)| x + w).collect();
    for (submit_byte_ns, imported) in [(0.0, 4 * N as u64), (12.0 / 4096.0, 0)] {
        let context = open(submit_byte_ns);
        let mut blob = Vec::new();
        write_params(&mut blob, [("w", &tensor(&[N], &numbers(N, 2)))]).unwrap();
        let mut g = GraphBuilder::new("parameter");
        let x = g.input("x", DType::F32, [N.into()]);
        let w = g.constant("w", read_params(&blob).unwrap().remove(0).1);
        let y = g.op(ops::add(), &[x, w]);
        g.output("y", y);
        let graph = g.build().unwrap();
        let mut session = Session::builder().graph(graph).context(context.clone()).build().unwrap();
        assert_eq!(sums(&mut session), want);
        assert_eq!(context.usage().imported, imported, "{submit_byte_ns}");
        // The values come back from where they are alone.
        let before = context.traffic().read_past_caches;
        session.recover_on(vec![open(submit_byte_ns)]).unwrap();
        assert_eq!(sums(&mut session), want);
        assert_eq!(context.traffic().read_past_caches, before);
    }
}

#[test]
fn any_profile_can_be_named_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let source =
        concat!(env!("CARGO_MANIFEST_DIR"), "/crates/onepool-hal/src/backend/sim/profiles/anv-xe-llc.json");
    let text = fs::read_to_string(source).unwrap().replace("\"anv-xe-llc\"", "\"my-own\"");
    let path = folder.path().join("mine.json");
    fs::write(&path, &text).unwrap();
    let registry = Registry::with_defaults();
    let selector = format!("sim:{}", path.display());
    let found = registry.find(&selector).unwrap();
    assert_eq!((found.name.as_str(), found.memory.types().len()), ("my-own", 4));
    assert_eq!(registry.find(&selector).unwrap().index, found.index);
    assert_eq!(registry.open(&selector, &Default::default()).unwrap().info().index, found.index);
    let built_in = registry.find("sim:ANV-xe-llc").unwrap();
    assert_eq!(
        (built_in.name.as_str(), registry.find("sim:1").unwrap().name.as_str()),
        ("anv-xe-llc", "noncoherent")
    );
    // What is unknown there was chosen, and says so.
    assert!(
        found.advice.iter().any(|line| line.starts_with("heaps[0].size is unknown: ")),
        "{:?}",
        found.advice
    );

    fs::write(&path, text.replace("\"heap_count\"", "\"heap_cuont\"")).unwrap();
    let error = registry.open(&selector, &Default::default()).unwrap_err();
    let OpenError::Driver { api: "sim", source: DeviceError::Profile { file, field, .. } } = &error else {
        panic!("{error}");
    };
    assert_eq!((file.as_str(), field.as_str()), (path.to_str().unwrap(), "heap_cuont"));
    let missing = registry.find("sim:./nowhere.json").unwrap_err();
    assert!(missing.to_string().contains("cannot be read"), "{missing}");
    let near = registry.find("sim:strix").unwrap_err().to_string();
    assert!(near.contains("radv-strix-halo-96g") && near.contains("more by name"), "{near}");
}
