//! Events of onnxruntime's profile: each run of a part, with how each tensor reached the devices.

#![allow(unsafe_code, reason = "onnxruntime calls functions of a table, with pointers")]

use std::ffi::{CString, c_char};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use onepool::Session;
use onepool::session::Binding;
use onepool_core::sync::lock;

use crate::abi::{
    KERNEL_EVENT, OrtEpProfilerImpl, OrtProfilingEvent, OrtProfilingEventsContainer, StatusPtr,
};
use crate::failure::{Failure, caught};
use crate::host::{Host, c_text, status};

/// The most runs that one profile keeps.
const MOST_RUNS: usize = 100_000;

/// Profiles that are being written of one session.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    running: AtomicUsize,
    recorders: Mutex<Vec<Arc<Recorder>>>,
}

/// A run of a part.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    name: String,
    begun: Instant,
    took_us: i64,
    /// Names, and what is said of them.
    said: Vec<(String, String)>,
}

/// One profile.
#[derive(Debug)]
struct Recorder {
    begun: Instant,
    /// When onnxruntime's profile began, before that.
    since_start_ns: i64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    runs: Vec<Ran>,
    dropped: u64,
}

impl Ran {
    /// A run that is over.
    pub(crate) fn new(name: &str, begun: Instant, session: &Session, binding: &Binding<'static>) -> Self {
        let took_us = i64::try_from(begun.elapsed().as_micros()).unwrap_or(i64::MAX);
        let devices: Vec<&str> = session.devices().map(|info| info.name.as_str()).collect();
        let mut said = vec![("onepool_devices".to_owned(), devices.join(", "))];
        let (mut in_place, mut copied) = (0, 0);
        for verdict in binding.stages().flat_map(Binding::verdicts) {
            match verdict.path.copies_on_cpu() {
                true => copied += verdict.bytes,
                false => in_place += verdict.bytes,
            }
            said.push((format!("onepool_tensor_{}", verdict.tensor), verdict.to_string()));
        }
        said.push(("onepool_bytes_in_place".to_owned(), in_place.to_string()));
        said.push(("onepool_bytes_copied".to_owned(), copied.to_string()));
        Ran { name: name.to_owned(), begun, took_us, said }
    }
}

impl Profile {
    /// Whether runs are to be told.
    pub(crate) fn is_on(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn ran(&self, ran: Ran) {
        let recorders = lock(&self.recorders).clone();
        for recorder in recorders {
            let mut kept = lock(&recorder.kept);
            match kept.runs.len() < MOST_RUNS {
                true => kept.runs.push(ran.clone()),
                false => kept.dropped += 1,
            }
        }
    }

    fn start(&self, since_start_ns: i64) -> Arc<Recorder> {
        let begun = Instant::now();
        let recorder = Arc::new(Recorder { begun, since_start_ns, kept: Mutex::default() });
        let mut recorders = lock(&self.recorders);
        recorders.push(Arc::clone(&recorder));
        self.running.store(recorders.len(), Ordering::Relaxed);
        recorder
    }

    fn stop(&self, of: &Arc<Recorder>) {
        let mut recorders = lock(&self.recorders);
        recorders.retain(|recorder| !Arc::ptr_eq(recorder, of));
        self.running.store(recorders.len(), Ordering::Relaxed);
    }
}

impl Recorder {
    /// Microseconds from the start of onnxruntime's profile.
    fn at_us(&self, when: Instant) -> i64 {
        let since = when.saturating_duration_since(self.begun).as_nanos();
        i64::try_from(since).unwrap_or(i64::MAX).saturating_add(self.since_start_ns) / 1000
    }
}

/// What onnxruntime starts and ends. It sees its first field.
#[repr(C)]
#[derive(Debug)]
struct Profiler {
    table: OrtEpProfilerImpl,
    host: Host,
    profile: Arc<Profile>,
    recorder: Mutex<Option<Arc<Recorder>>>,
}

impl Profiler {
    fn end(&self) -> Option<Arc<Recorder>> {
        let recorder = lock(&self.recorder).take();
        recorder.inspect(|recorder| self.profile.stop(recorder))
    }
}

/// A profiler of a session.
pub(crate) fn profiler(host: Host, profile: &Arc<Profile>) -> *mut OrtEpProfilerImpl {
    let table = OrtEpProfilerImpl {
        ort_version_supported: host.version,
        Release: release,
        StartProfiling: start,
        StartEvent: None,
        StopEvent: None,
        EndProfiling: end,
    };
    let profile = Arc::clone(profile);
    Box::into_raw(Box::new(Profiler { table, host, profile, recorder: Mutex::default() })).cast()
}

/// onnxruntime writes texts to its file as they are, between quotes.
fn plain(text: &str) -> CString {
    let safe = |c: char| match c {
        '"' => '\'',
        '\\' => '/',
        c if c.is_control() => ' ',
        c => c,
    };
    c_text(&text.chars().map(safe).collect::<String>())
}

/// An event in onnxruntime's words.
fn event(host: Host, recorder: &Recorder, ran: &Ran) -> Result<*mut OrtProfilingEvent, Failure> {
    let texts = |of: fn(&(String, String)) -> &String| -> Vec<CString> {
        ran.said.iter().map(|pair| plain(of(pair))).collect()
    };
    let (keys, values) = (texts(|pair| &pair.0), texts(|pair| &pair.1));
    let pointers = |all: &[CString]| all.iter().map(|text| text.as_ptr()).collect::<Vec<*const c_char>>();
    let (keys, values) = (pointers(&keys), pointers(&values));
    let (name, at) = (plain(&format!("{}_onepool_run", ran.name)), recorder.at_us(ran.begun));
    let mut made = null_mut();
    // SAFETY: lists have the length given; onnxruntime copies texts.
    host.check(unsafe {
        host.ep.CreateProfilingEvent(
            KERNEL_EVENT,
            -1,
            -1,
            name.as_ptr(),
            at,
            ran.took_us,
            keys.as_ptr(),
            values.as_ptr(),
            keys.len(),
            &mut made,
        )
    })?;
    Ok(made)
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn start(this: *mut OrtEpProfilerImpl, since_start_ns: i64) -> StatusPtr {
    // SAFETY: onnxruntime gives back the pointer that `profiler` made.
    let profiler = unsafe { &*this.cast::<Profiler>() };
    status(profiler.host, || {
        drop(profiler.end());
        let recorder = profiler.profile.start(since_start_ns);
        lock(&profiler.recorder).replace(recorder);
        Ok(())
    })
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn end(
    this: *mut OrtEpProfilerImpl,
    container: *mut OrtProfilingEventsContainer,
) -> StatusPtr {
    // SAFETY: as in `start`.
    let profiler = unsafe { &*this.cast::<Profiler>() };
    status(profiler.host, || {
        let Some(recorder) = profiler.end() else { return Ok(()) };
        let host = profiler.host;
        let mut kept = std::mem::take(&mut *lock(&recorder.kept));
        if let Some(last) = kept.runs.last_mut().filter(|_| kept.dropped > 0) {
            last.said.push(("onepool_runs_left_out".to_owned(), kept.dropped.to_string()));
        }
        for ran in &kept.runs {
            let made = event(host, &recorder, ran)?;
            let list = [made.cast_const()];
            // SAFETY: the list has that length; the container takes copies, and the event is released once.
            unsafe {
                let added = host.ep.ProfilingEventsContainer_AddEvents(container, list.as_ptr(), 1);
                host.ep.ReleaseProfilingEvent(made);
                host.check(added)?;
            }
        }
        Ok(())
    })
}

// SAFETY: onnxruntime calls it with what its header says.
unsafe extern "system" fn release(this: *mut OrtEpProfilerImpl) {
    if !this.is_null() {
        // SAFETY: made by `profiler`, and released once.
        let profiler = unsafe { Box::from_raw(this.cast::<Profiler>()) };
        drop(caught(|| {
            drop(profiler.end());
            Ok(())
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_keep_the_file_of_a_profile_whole() {
        assert_eq!(plain("a\"b\\c\nd\0e é").to_str(), Ok("a'b/c d e é"));
    }
}
