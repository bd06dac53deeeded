//! Profiles that the host asks for.

use onepool_ort::abi::OrtEpProfilerImpl;

use super::*;
use host::Event;

struct Profiler(*mut OrtEpProfilerImpl);

impl Profiler {
    fn new(provider: &Provider) -> Self {
        let mut made = null_mut();
        // SAFETY: as onnxruntime's header says.
        let status = unsafe { ((*provider.ep).CreateProfiler.unwrap())(provider.ep, &mut made) };
        assert_eq!(said(status), None);
        assert!(!made.is_null());
        Profiler(made)
    }

    fn start(&self, since_ns: i64) {
        // SAFETY: as onnxruntime's header says.
        assert_eq!(said(unsafe { ((*self.0).StartProfiling)(self.0, since_ns) }), None);
    }

    fn end(&self) -> Result<Vec<Event>, Wrong> {
        let mut events: Vec<Event> = Vec::new();
        // SAFETY: as onnxruntime's header says.
        let status = unsafe { ((*self.0).EndProfiling)(self.0, (&raw mut events).cast()) };
        said(status).map_or(Ok(events), Err)
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // SAFETY: made by the provider, and released once.
        unsafe { ((*self.0).Release)(self.0) };
    }
}

#[test]
fn a_profile_has_each_run_with_the_way_of_each_tensor() {
    fail(None);
    let provider = Provider::new(&[("ep.onepool.device", "cpu")]).unwrap();
    let model = model();
    let info = provider.compile(&model).unwrap();
    let once = || run(info, &context(3)).unwrap();
    let (profiler, other) = (Profiler::new(&provider), Profiler::new(&provider));
    assert!(profiler.end().unwrap().is_empty());
    once();
    profiler.start(5_000_000);
    once();
    other.start(0);
    once();
    let events = profiler.end().unwrap();
    assert_eq!(events.len(), 2, "{events:?}");
    for event in &events {
        assert_eq!(event.name, "whole_onepool_run");
        assert!(event.at_us >= 5_000 && event.took_us >= 0, "{event:?}");
        let of =
            |key: &str| event.said.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        assert_eq!(
            of("onepool_tensor_x"),
            Some("x: used in place by the CPU, 48 bytes: the device is the CPU")
        );
        assert!(of("onepool_tensor_y").is_some_and(|said| said.contains("used in place")), "{event:?}");
        assert_eq!((of("onepool_bytes_in_place"), of("onepool_bytes_copied")), (Some("96"), Some("0")));
        assert!(of("onepool_devices").is_some_and(|said| !said.is_empty()));
    }
    assert!(events[0].at_us + events[0].took_us <= events[1].at_us + 1, "{events:?}");
    // Those of one profile are not in another, and none is told twice.
    assert_eq!(other.end().unwrap().len(), 1);
    once();
    assert!(profiler.end().unwrap().is_empty() && other.end().unwrap().is_empty());
    for name in ["CreateProfilingEvent", "ProfilingEventsContainer_AddEvents"] {
        profiler.start(0);
        once();
        fail(Some((name, 0)));
        let (_, message) = profiler.end().unwrap_err();
        assert!(message.contains("was made to fail"), "{message}");
        fail(None);
    }
    // Released while it runs.
    profiler.start(0);
    drop((profiler, other));
    once();
    provider.release(info);
    drop(provider);
    assert_eq!(live(), 0);
}

#[test]
fn releases_without_profiles_of_providers_get_no_profiler() {
    VERSION.set((c"1.24.4", 24));
    let made = factory(c"1.24.4", 24).unwrap();
    CONFIG.set(vec![("ep.onepool.device".to_owned(), "cpu".to_owned())]);
    let mut ep = null_mut();
    // SAFETY: as onnxruntime's header says.
    unsafe {
        let (devices, metadata) = (hardware(), [null(); 1]);
        let status = ((*made).CreateEp)(
            made,
            &devices[1],
            metadata.as_ptr(),
            1,
            kept::<u8, _>(0),
            host::logger(),
            &mut ep,
        );
        assert_eq!(said(status), None);
        assert!((*ep).CreateProfiler.is_none());
        ((*made).ReleaseEp)(made, ep);
        assert_eq!(said(ReleaseEpFactory(made)), None);
    }
}
