//! Allocations that the host imports.

use std::ptr::with_exposed_provenance_mut;

use onepool_ort::abi::{
    HOST_ALLOCATION, NOT_IMPLEMENTED, OrtExternalMemoryDescriptor, OrtExternalMemoryHandle,
    OrtExternalResourceImporterImpl, OrtExternalTensorDescriptor, OrtValue,
};
use onepool_ort::stats::OnepoolOrtStats;

use super::*;

/// Pages of the test's own, which lie where they are until it ends.
fn pages(bytes: usize) -> *mut u8 {
    let layout = std::alloc::Layout::from_size_align(bytes, 1 << 16).unwrap();
    // SAFETY: there are bytes.
    let start = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!start.is_null());
    start
}

fn stats() -> OnepoolOrtStats {
    let mut stats = OnepoolOrtStats::default();
    let bytes = size_of::<OnepoolOrtStats>();
    // SAFETY: there is room for all.
    assert_eq!(unsafe { onepool_ort::onepool_ort_stats(&mut stats, bytes) }, bytes);
    stats
}

struct Importer(*mut OrtExternalResourceImporterImpl);

impl Importer {
    fn new(factory: *mut OrtEpFactory) -> Self {
        let mut made = null_mut();
        // SAFETY: as onnxruntime's header says.
        let status = unsafe {
            ((*factory).CreateExternalResourceImporterForDevice)(factory, kept::<u8, _>(0), &mut made)
        };
        assert_eq!(said(status), None);
        assert!(!made.is_null());
        Importer(made)
    }

    fn describe(start: *mut u8, bytes: usize) -> OrtExternalMemoryDescriptor {
        OrtExternalMemoryDescriptor {
            version: 30,
            handle_type: HOST_ALLOCATION,
            native_handle: start.cast(),
            size_bytes: bytes,
            offset_bytes: 0,
        }
    }

    fn import(&self, of: &OrtExternalMemoryDescriptor) -> Result<*mut OrtExternalMemoryHandle, Wrong> {
        let mut handle = null_mut();
        // SAFETY: as onnxruntime's header says.
        let status = unsafe { ((*self.0).ImportMemory)(self.0, of, &mut handle) };
        match said(status) {
            None => {
                assert!(!handle.is_null());
                Ok(handle)
            }
            Some(wrong) => {
                assert!(handle.is_null(), "a call that failed gave something");
                Err(wrong)
            }
        }
    }

    fn tensor(
        &self,
        handle: *const OrtExternalMemoryHandle,
        element: u32,
        shape: &[i64],
        offset: usize,
    ) -> Result<*mut OrtValue, Wrong> {
        let of = OrtExternalTensorDescriptor {
            version: 30,
            element_type: element,
            shape: shape.as_ptr(),
            rank: shape.len(),
            offset_bytes: offset,
        };
        let mut made = null_mut();
        // SAFETY: as onnxruntime's header says.
        let status = unsafe { ((*self.0).CreateTensorFromMemory)(self.0, handle, &of, &mut made) };
        match said(status) {
            None => {
                assert!(!made.is_null());
                Ok(made)
            }
            Some(wrong) => {
                assert!(made.is_null(), "a call that failed gave something");
                Err(wrong)
            }
        }
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        // SAFETY: made by the provider, and released once.
        unsafe { ((*self.0).Release)(self.0) };
    }
}

/// Called through the handle, as onnxruntime does.
fn release(handle: *mut OrtExternalMemoryHandle) {
    // SAFETY: made by the provider, and released once.
    unsafe { ((*handle).Release)(handle) };
}

/// A run on tensors of an allocation.
fn context_at(
    importer: &Importer,
    handle: *mut OrtExternalMemoryHandle,
    rows: i64,
    at: [usize; 2],
) -> Context {
    let of = |offset| {
        let value = importer.tensor(handle, 1, &[rows, 4], offset).unwrap();
        // SAFETY: a tensor of the host's.
        unsafe { host::release_tensor(value) }
    };
    let [x, y] = at.map(of);
    Context { inputs: vec![Some(x)], outputs: RefCell::new(vec![Some(Box::new(y))]) }
}

#[test]
fn an_imported_allocation_is_used_in_place_and_let_go() {
    fail(None);
    let _alone = COUNTERS.write().unwrap_or_else(PoisonError::into_inner);
    let (rows, bytes) = (4096usize, 1 << 20);
    let provider = Provider::alone(&[("ep.onepool.device", "sim"), ("ep.onepool.strict", "1")]).unwrap();
    let importer = Importer::new(provider.factory);
    let start = pages(bytes);
    let handle = importer.import(&Importer::describe(start, bytes)).unwrap();
    let model = model();
    let info = provider.compile(&model).unwrap();
    let before = stats();
    let half = rows * 16;
    let mut ran = 0;
    for at in [[0, half], [0, half], [0, half], [half, 2 * half], [2 * half, 4 * half]] {
        let source = context(rows).inputs.remove(0).unwrap().values;
        // SAFETY: the bytes are the test's own.
        unsafe { start.add(at[0]).cast::<f32>().copy_from_nonoverlapping(source.as_ptr(), rows * 4) };
        let context = context_at(&importer, handle, rows as i64, at);
        run(info, &context).unwrap();
        ran += 1;
        // SAFETY: as above.
        let got = unsafe { std::slice::from_raw_parts(start.add(at[1]).cast::<f32>(), rows * 4) };
        assert_eq!(got, expected(rows));
        let now = stats();
        assert_eq!(now.runs - before.runs, ran);
        assert_eq!(now.bytes_copied, before.bytes_copied);
        // One import of the whole, and one binding, which goes from place to place.
        assert_eq!(now.bytes_held - before.bytes_held, bytes as u64, "after {ran} runs");
        assert_eq!(now.bindings - before.bindings, 1, "after {ran} runs");
    }
    // Memory of someone else's is not kept, and does not disturb.
    let other = context(rows);
    run(info, &other).unwrap();
    assert_eq!(other.outputs.borrow()[0].as_ref().unwrap().values, expected(rows));
    // The importer may go first.
    drop(importer);
    release(handle);
    assert_eq!(stats().bytes_held, before.bytes_held);
    // The same addresses, which no handle keeps mapped any more, are bound for each run.
    let bound = stats().bindings;
    for _ in 0..2 {
        let input = Tensor {
            place: Some(start.cast()),
            ..Tensor::new(Type { element: 1, dims: vec![rows as i64, 4] }, Vec::new())
        };
        let context = Context { inputs: vec![Some(input)], outputs: RefCell::new(vec![None]) };
        run(info, &context).unwrap();
    }
    assert_eq!(stats().bindings - bound, 2);
    assert_eq!(stats().bytes_held, before.bytes_held);
    provider.release(info);
    drop(provider);
    assert_eq!(live(), 0);
    // SAFETY: allocated so, and no one uses it any more.
    unsafe { std::alloc::dealloc(start, std::alloc::Layout::from_size_align(bytes, 1 << 16).unwrap()) };
}

/// As tensors of one arena lie: the next begins amid the last page of the one before.
#[test]
fn tensors_that_share_pages_are_used_in_place() {
    fail(None);
    let _alone = COUNTERS.write().unwrap_or_else(PoisonError::into_inner);
    let (rows, bytes) = (4112usize, 1 << 19);
    let each = rows * 16;
    assert_eq!(each % 4096, 256);
    for keep in ["0", "1"] {
        let options =
            [("ep.onepool.device", "sim"), ("ep.onepool.strict", "1"), ("ep.onepool.keep_imports", keep)];
        let provider = Provider::alone(&options).unwrap();
        let start = pages(bytes);
        let model = model();
        let info = provider.compile(&model).unwrap();
        let before = stats();
        // Tensors that share a page, in both orders; then some that share one with a tensor of the previous run.
        for at in [[0, 1], [1, 0], [2, 3], [0, 1], [1, 2], [4, 3]] {
            let source = context(rows).inputs.remove(0).unwrap().values;
            let [x, y] = at.map(|at| at * each);
            // SAFETY: the bytes are the test's own.
            unsafe { start.add(x).cast::<f32>().copy_from_nonoverlapping(source.as_ptr(), rows * 4) };
            let place = |offset: usize| Tensor {
                // SAFETY: as above.
                place: Some(unsafe { start.add(offset) }.cast()),
                ..Tensor::new(Type { element: 1, dims: vec![rows as i64, 4] }, Vec::new())
            };
            let context = Context {
                inputs: vec![Some(place(x))],
                outputs: RefCell::new(vec![Some(Box::new(place(y)))]),
            };
            run(info, &context).unwrap();
            // SAFETY: as above.
            let got = unsafe { std::slice::from_raw_parts(start.add(y).cast::<f32>(), rows * 4) };
            assert_eq!(got, expected(rows), "{at:?}");
        }
        let now = stats();
        assert_eq!(now.bytes_copied, before.bytes_copied, "keep_imports {keep}");
        assert_eq!(now.bytes_in_place - before.bytes_in_place, 6 * 2 * each as u64);
        provider.release(info);
        drop(provider);
        // SAFETY: allocated so, and no one uses it any more.
        unsafe { std::alloc::dealloc(start, std::alloc::Layout::from_size_align(bytes, 1 << 16).unwrap()) };
    }
}

#[test]
fn wrong_allocations_and_tensors_are_statuses() {
    fail(None);
    let _beside = COUNTERS.read().unwrap_or_else(PoisonError::into_inner);
    let made = factory(c"1.30.0", 30).unwrap();
    let importer = Importer::new(made);
    // SAFETY: as onnxruntime's header says.
    let can = |kind| unsafe { ((*importer.0).CanImportMemory)(importer.0, kind) };
    assert_eq!((0..6).filter(|kind| can(*kind)).collect::<Vec<_>>(), [HOST_ALLOCATION]);
    let bytes = 1 << 16;
    let start = pages(bytes);
    let good = Importer::describe(start, bytes);
    let wrong = |of: OrtExternalMemoryDescriptor| importer.import(&of).unwrap_err();
    for (of, code, part) in [
        (OrtExternalMemoryDescriptor { handle_type: 3, ..good }, NOT_IMPLEMENTED, "memory of type 3"),
        (OrtExternalMemoryDescriptor { version: 0, ..good }, INVALID_ARGUMENT, "version 0"),
        (
            OrtExternalMemoryDescriptor { native_handle: null_mut(), ..good },
            INVALID_ARGUMENT,
            "native_handle is 0x0",
        ),
        (
            OrtExternalMemoryDescriptor { native_handle: start.wrapping_add(64).cast(), ..good },
            INVALID_ARGUMENT,
            "expected the address of a page",
        ),
        (
            OrtExternalMemoryDescriptor { size_bytes: 0, ..good },
            INVALID_ARGUMENT,
            "offset_bytes is 0 in an allocation of 0",
        ),
        (
            OrtExternalMemoryDescriptor { offset_bytes: bytes, ..good },
            INVALID_ARGUMENT,
            "offset_bytes is 65536",
        ),
        (OrtExternalMemoryDescriptor { size_bytes: usize::MAX, ..good }, INVALID_ARGUMENT, "size_bytes"),
        (OrtExternalMemoryDescriptor { size_bytes: 1 << 46, ..good }, INVALID_ARGUMENT, "native_handle: "),
        // Nothing is mapped at the first pages of a process.
        (
            OrtExternalMemoryDescriptor { native_handle: with_exposed_provenance_mut(4096), ..good },
            INVALID_ARGUMENT,
            "native_handle: ",
        ),
    ] {
        let (got, message) = wrong(of);
        assert!(got == code && message.contains(part), "{got}: {message}, expected {part}");
    }
    // SAFETY: as onnxruntime's header says, but for what is null.
    unsafe {
        let mut handle = null_mut();
        let missing = ((*importer.0).ImportMemory)(importer.0, null(), &mut handle);
        assert_eq!(said(missing).unwrap().0, INVALID_ARGUMENT);
        assert_eq!(
            said(((*importer.0).ImportMemory)(importer.0, &good, null_mut())).unwrap().0,
            INVALID_ARGUMENT
        );
        ((*importer.0).ReleaseMemory)(importer.0, null_mut());
    }
    let handle = importer.import(&OrtExternalMemoryDescriptor { offset_bytes: 4096, ..good }).unwrap();
    let all = (bytes - 4096) as i64;
    for (element, shape, offset, part) in [
        (1, &[all / 4, 1, 1][..], 4, "do not fit into 61440 bytes"),
        (1, &[all / 4 + 1], 0, "do not fit"),
        (1, &[1], bytes, "do not fit"),
        (1, &[1], usize::MAX, "do not fit"),
        (1, &[-1], 0, "sizes [-1]"),
        (1, &[i64::MAX, i64::MAX], 0, "no tensor"),
        (1, &[4], 2, "no multiple of the 4 bytes"),
        (8, &[4], 0, "elements of type 8"),
        (22, &[4], 0, "elements of type 22"),
        (999, &[4], 0, "elements of type 999"),
        (1, &[1; 65], 0, "rank 65"),
    ] {
        let (code, message) = importer.tensor(handle, element, shape, offset).unwrap_err();
        assert!(code == INVALID_ARGUMENT && message.contains(part), "{message}, expected {part}");
    }
    // The whole of it is a tensor, where the offset says.
    let tensor = importer.tensor(handle, 1, &[all / 4], 0).unwrap();
    // SAFETY: a tensor of the host's.
    let tensor = unsafe { host::release_tensor(tensor) };
    assert_eq!(tensor.place, Some(start.wrapping_add(4096).cast()));
    for name in ["CreateCpuMemoryInfo", "CreateTensorWithDataAsOrtValue"] {
        fail(Some((name, 0)));
        let (_, message) = importer.tensor(handle, 1, &[4], 0).unwrap_err();
        assert!(message.contains("was made to fail"), "{message}");
    }
    fail(None);
    // SAFETY: as onnxruntime's header says.
    unsafe {
        let table = &*importer.0;
        assert!((0..4).all(|kind| !(table.CanImportSemaphore)(importer.0, kind)));
        let mut semaphore = null_mut();
        let nothing = kept::<u8, c_void>(0);
        let refused = [
            (table.ImportSemaphore)(importer.0, nothing.cast(), &mut semaphore),
            (table.WaitSemaphore)(importer.0, nothing.cast_mut().cast(), nothing.cast_mut().cast(), 1),
            (table.SignalSemaphore)(importer.0, nothing.cast_mut().cast(), nothing.cast_mut().cast(), 1),
        ];
        for status in refused {
            let (code, message) = said(status).unwrap();
            assert!(code == NOT_IMPLEMENTED && message.contains("semaphores are not imported"), "{message}");
        }
        assert!(semaphore.is_null());
        (table.ReleaseSemaphore)(importer.0, null_mut());
        ((*importer.0).ReleaseMemory)(importer.0, handle);
    }
    drop(importer);
    // SAFETY: made above.
    assert_eq!(said(unsafe { ReleaseEpFactory(made) }), None);
    assert_eq!(live(), 0);
    // SAFETY: allocated so, and no one uses it any more.
    unsafe { std::alloc::dealloc(start, std::alloc::Layout::from_size_align(bytes, 1 << 16).unwrap()) };
}
