//! The ladder of paths, the choice of a rung, and the report.

use std::borrow::Cow;
use std::fmt;

use super::ImportError;
use super::costs::ImportCosts;
use super::refusal::Refusal;
use super::rules::ImportRules;
use super::window::{PageWindow, ReadWrite};

/// How a tensor's bytes reach the device, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// The CPU backend works on the pointer itself.
    Host,
    /// The bytes lie in device-visible memory already.
    Direct,
    /// The application's pages are imported and used in place.
    Imported,
    /// The pages are imported, and the device copies from and to them; the CPU copies nothing.
    ImportedDma,
    /// The pages reach the device as a dma-buf.
    DmaBuf,
    /// The CPU copies into a device-visible buffer, or out of it.
    Staged,
}

impl Path {
    /// Whether the CPU copies the bytes.
    pub const fn copies_on_cpu(self) -> bool {
        matches!(self, Path::Staged)
    }

    /// Whether the device copies the bytes before or after its kernels use them.
    pub const fn copies_on_device(self) -> bool {
        matches!(self, Path::ImportedDma)
    }

    /// Whether the path needs a live import.
    pub const fn imports(self) -> bool {
        matches!(self, Path::Imported | Path::ImportedDma)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Host => "used in place by the CPU",
            Path::Direct => "already in device-visible memory",
            Path::Imported => "imported",
            Path::ImportedDma => "imported and copied by the device",
            Path::DmaBuf => "shared as a dma-buf",
            Path::Staged => "copied by the CPU",
        })
    }
}

/// Why a path was taken.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// There are no bytes to move.
    Empty,
    /// The device is the CPU.
    HostBackend,
    /// The runtime placed the tensor where the device sees it.
    Resident,
    /// It is an image of the application's, which the device copies.
    Image {
        /// Bytes that the device copies, out of the image and into it, for each segment of a run that uses it.
        copied: u64,
    },
    /// The graph updates it in place: its bytes are those of an output.
    Updated,
    /// Every page passed the rules.
    Importable,
    /// Every page passed; the kernel is told where in its binding the tensor starts.
    OffsetInParams {
        /// Bytes from the binding's start to the tensor.
        remainder: u64,
    },
    /// The tensor starts where no binding may start.
    OffsetRemainder {
        /// Where in the import it starts.
        offset: u64,
        /// What a binding's offset must be a multiple of.
        alignment: u64,
    },
    /// A device with memory of its own reads the tensor several times.
    Reused {
        /// How often the graph touches each byte.
        times: u32,
    },
    /// The device shares the host's memory, and kernels were measured to read imported pages so much slower than
    /// memory of its own that a copy pays.
    SlowInPlace {
        /// How often the graph touches each byte.
        times: u32,
        /// Up to how many times it is faster to read in place.
        pays: u32,
    },
    /// A device with memory of its own writes the tensor in pieces that are smaller than what a bus carries at once.
    Scattered,
    /// A better rung was refused.
    Refused {
        /// Why.
        refusal: Refusal,
    },
}

impl Reason {
    /// The reason in words.
    pub fn sentence(&self) -> Cow<'static, str> {
        match self {
            Reason::Empty => "the tensor has no bytes".into(),
            Reason::HostBackend => "the device is the CPU".into(),
            Reason::Resident => "the runtime owns this memory".into(),
            Reason::Image { copied } => {
                format!("it is an image, and the device copies {copied} bytes of it for each segment that uses it").into()
            }
            Reason::Updated => "it is an output too, which the graph updates in place".into(),
            Reason::Importable => "every page can be imported".into(),
            Reason::OffsetInParams { remainder } => {
                format!("every page can be imported; the kernel adds {remainder} bytes to its binding").into()
            }
            Reason::SlowInPlace { times, pays } => format!(
                "the graph touches each byte {times} times, and on this device a copy was measured to pay above {pays}"
            )
            .into(),
            Reason::OffsetRemainder { offset, alignment } => {
                format!("offset {offset} is no multiple of the {alignment} that a binding needs").into()
            }
            Reason::Reused { times } => {
                format!("the graph touches each byte {times} times and the device has its own memory").into()
            }
            Reason::Scattered => {
                "the kernel writes it in pieces, which a bus to the host's memory carries slowly".into()
            }
            Reason::Refused { refusal } => refusal.sentence(),
        }
    }

    /// What the application can do for a better path; `None` when there is nothing to do.
    pub fn fix(&self) -> Option<&'static str> {
        match self {
            Reason::Refused { refusal } => refusal.fix(),
            Reason::OffsetRemainder { .. } => Some("start the tensor at a multiple of the alignment"),
            _ => None,
        }
    }
}

/// What a device offers and prefers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePolicy {
    /// The device is the process: it works on pointers, and needs no pages.
    pub on_pointers: bool,
    /// The device works in the host's memory ([`MemoryModel::shares_host_memory`]).
    ///
    /// [`MemoryModel::shares_host_memory`]: crate::memory::model::MemoryModel::shares_host_memory
    pub shares_host_memory: bool,
    /// Why it imports no host pointers; `None` where it does.
    pub import_refusal: Option<Refusal>,
    /// It imports dma-bufs.
    pub dma_buf_supported: bool,
    /// Tensors below this many bytes are copied.
    pub copy_threshold: u64,
    /// An import is used in place when the graph touches each byte at most this often; `None` for however often.
    pub direct_reads: Option<u32>,
    /// What a binding's offset must be a multiple of.
    pub storage_offset_alignment: u64,
    /// Most bytes in one binding.
    pub max_range: u64,
    /// A copy by the CPU is an error.
    pub strict: bool,
}

impl DevicePolicy {
    /// The policy of a device that imports under these rules, with nothing measured.
    pub const fn importing(shares_host_memory: bool, rules: &ImportRules) -> DevicePolicy {
        DevicePolicy {
            on_pointers: false,
            shares_host_memory,
            import_refusal: None,
            dma_buf_supported: false,
            copy_threshold: ImportCosts::preset(shares_host_memory).copy_threshold,
            direct_reads: ImportCosts::preset(shares_host_memory).direct_reads,
            storage_offset_alignment: rules.storage_offset_alignment,
            max_range: rules.max_range,
            strict: false,
        }
    }

    /// The policy of the native CPU backend.
    pub const fn host() -> DevicePolicy {
        DevicePolicy {
            on_pointers: true,
            shares_host_memory: true,
            import_refusal: None,
            dma_buf_supported: false,
            copy_threshold: 0,
            direct_reads: None,
            storage_offset_alignment: 1,
            max_range: u64::MAX,
            strict: false,
        }
    }
}

/// From this many bytes on a device with memory of its own copies at once what its kernels write in pieces:
/// the copy starts in about the time that such writes of so many bytes take.
const MANY_PIECES: u64 = 64 << 10;

/// One tensor's memory and what the plan does with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Address of its first byte.
    pub addr: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes of one element; 0 counts as 1.
    pub element_bytes: u64,
    /// What the device does with it.
    pub access: ReadWrite,
    /// The answer of [`plan_window`](super::plan_window), or of the driver if that refused.
    pub window: Result<PageWindow, Refusal>,
    /// It lies in memory the runtime made device-visible.
    pub resident: bool,
    /// Its pages are imported already, so that a share costs nothing.
    pub imported: bool,
    /// The pages of the dma-buf that the memory can be had as.
    pub dma_buf: Option<PageWindow>,
    /// How often the graph touches each byte.
    pub touches: u32,
    /// Most bytes a kernel sees at once.
    pub binding_bytes: u64,
    /// Its kernels take a start offset in elements.
    pub takes_offset: bool,
    /// Kernels write it in pieces that are smaller than what a bus carries at once.
    pub scattered: bool,
}

impl Request {
    /// A tensor of bytes, touched once, bound whole, with nothing special about it.
    pub const fn new(
        addr: u64,
        bytes: u64,
        access: ReadWrite,
        window: Result<PageWindow, Refusal>,
    ) -> Request {
        Request {
            addr,
            bytes,
            element_bytes: 1,
            access,
            window,
            resident: false,
            imported: false,
            dma_buf: None,
            touches: 1,
            binding_bytes: bytes,
            takes_offset: false,
            scattered: false,
        }
    }
}

/// The rung chosen for a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The path.
    pub path: Path,
    /// Why this one.
    pub reason: Reason,
    /// The pages to import, for the paths that import.
    pub window: Option<PageWindow>,
}

impl Choice {
    const fn new(path: Path, reason: Reason) -> Choice {
        Choice { path, reason, window: None }
    }

    /// Whether the device copies the bytes before or after its kernels use them.
    pub fn copies_on_device(&self) -> bool {
        device_copies(self.path, &self.reason)
    }

    /// The report on this choice.
    pub fn verdict(&self, tensor: impl Into<String>, request: &Request) -> Verdict {
        Verdict {
            tensor: tensor.into(),
            path: self.path,
            bytes: request.bytes,
            offset: self.window.map_or(0, |window| window.offset),
            access: request.access,
            reason: self.reason.clone(),
        }
    }
}

/// A dma-buf is used in place unless the reason says why not.
fn device_copies(path: Path, reason: &Reason) -> bool {
    let in_place = match reason {
        Reason::Refused { refusal } => !matches!(refusal, Refusal::ElementMisaligned { .. }),
        reason => matches!(reason, Reason::OffsetInParams { .. }),
    };
    path.copies_on_device() || (path == Path::DmaBuf && !in_place)
}

/// Chooses the best rung that a tensor's memory, its device and its use allow.
///
/// # Errors
/// A binding is larger than the device takes, or `strict` forbids the copy that would be needed.
pub fn choose(request: &Request, policy: &DevicePolicy) -> Result<Choice, ImportError> {
    if request.bytes == 0 {
        return Ok(Choice::new(Path::Direct, Reason::Empty));
    }
    let element = request.element_bytes.max(1);
    let misaligned = !request.addr.is_multiple_of(element);
    if policy.on_pointers {
        let refusal = Refusal::ElementMisaligned { addr: request.addr, element };
        return if misaligned {
            stage(request, policy, refusal)
        } else {
            Ok(Choice::new(Path::Host, Reason::HostBackend))
        };
    }
    if request.binding_bytes > policy.max_range {
        return Err(ImportError::RangeTooLarge { bytes: request.binding_bytes, max: policy.max_range });
    }
    if request.resident {
        return Ok(Choice::new(Path::Direct, Reason::Resident));
    }
    let misaligned = misaligned.then_some(element);
    if let Some(refusal) = &policy.import_refusal {
        return fall_back(request, policy, refusal.clone(), misaligned);
    }
    if request.bytes < policy.copy_threshold && !request.imported && !policy.strict {
        let (bytes, threshold) = (request.bytes, policy.copy_threshold);
        return stage(request, policy, Refusal::BelowThreshold { bytes, threshold });
    }
    let window = match &request.window {
        Ok(window) => *window,
        Err(refusal) => return fall_back(request, policy, refusal.clone(), misaligned),
    };
    let (path, reason) = in_place_or_dma(request, policy, window, misaligned);
    Ok(Choice { path, reason, window: Some(window) })
}

/// The pages can be imported: whether kernels use them in place or the device copies first.
fn in_place_or_dma(
    request: &Request,
    policy: &DevicePolicy,
    window: PageWindow,
    misaligned_element: Option<u64>,
) -> (Path, Reason) {
    let times = request.touches;
    if let Some(pays) = policy.direct_reads.filter(|most| times > *most) {
        let reason = if policy.shares_host_memory {
            Reason::SlowInPlace { times, pays }
        } else {
            Reason::Reused { times }
        };
        return (Path::ImportedDma, reason);
    }
    if request.scattered && !policy.shares_host_memory && request.bytes >= MANY_PIECES {
        return (Path::ImportedDma, Reason::Scattered);
    }
    if let Some(element) = misaligned_element {
        let refusal = Refusal::ElementMisaligned { addr: request.addr, element };
        return (Path::ImportedDma, Reason::Refused { refusal });
    }
    let remainder = window.remainder(policy.storage_offset_alignment);
    // The rest of the binding lies in front of the tensor and counts against the largest binding.
    let fits = request.binding_bytes.checked_add(remainder).is_some_and(|bytes| bytes <= policy.max_range);
    let whole_elements = remainder.is_multiple_of(request.element_bytes.max(1));
    match remainder {
        0 => (Path::Imported, Reason::Importable),
        _ if request.takes_offset && whole_elements && fits => {
            (Path::Imported, Reason::OffsetInParams { remainder })
        }
        _ => {
            let alignment = policy.storage_offset_alignment;
            (Path::ImportedDma, Reason::OffsetRemainder { offset: window.offset, alignment })
        }
    }
}

/// No import: a dma-buf if both sides have it, else the CPU copies. The reason tells of the refusal where kernels
/// use the dma-buf in place, else why they do not.
fn fall_back(
    request: &Request,
    policy: &DevicePolicy,
    refusal: Refusal,
    misaligned_element: Option<u64>,
) -> Result<Choice, ImportError> {
    let Some(window) = request.dma_buf.filter(|_| policy.dma_buf_supported) else {
        return stage(request, policy, refusal);
    };
    let reason = match in_place_or_dma(request, policy, window, misaligned_element) {
        (Path::Imported, Reason::Importable) => Reason::Refused { refusal },
        (_, reason) => reason,
    };
    Ok(Choice { path: Path::DmaBuf, reason, window: Some(window) })
}

fn stage(request: &Request, policy: &DevicePolicy, refusal: Refusal) -> Result<Choice, ImportError> {
    if policy.strict {
        return Err(ImportError::Strict { bytes: request.bytes, refusal });
    }
    Ok(Choice::new(Path::Staged, Reason::Refused { refusal }))
}

/// What was decided for one tensor, for the user.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Verdict {
    /// Name of the tensor.
    pub tensor: String,
    /// The path taken.
    pub path: Path,
    /// Size of the tensor.
    pub bytes: u64,
    /// Where in its import the tensor starts; 0 without one.
    pub offset: u64,
    /// What the device does with it.
    pub access: ReadWrite,
    /// Why this path.
    pub reason: Reason,
}

impl Verdict {
    /// Whether the device copies the bytes before or after its kernels use them.
    pub fn copies_on_device(&self) -> bool {
        device_copies(self.path, &self.reason)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { tensor, path, bytes, offset, reason, .. } = self;
        write!(f, "{tensor}: {path}, {bytes} bytes")?;
        if path.imports() {
            write!(f, " at offset {offset} of the import")?;
        }
        write!(f, ": {}", reason.sentence())?;
        match reason.fix() {
            Some(fix) => write!(f, "; {fix}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn window(offset: u64) -> Result<PageWindow, Refusal> {
        Ok(PageWindow { addr: 0x10_0000, bytes: 2 * MIB, offset })
    }

    fn tensor(offset: u64) -> Request {
        Request::new(0x10_0000 + offset, MIB, ReadWrite::Read, window(offset))
    }

    const SHARED: bool = true;
    const DISCRETE: bool = false;

    fn policy(shared: bool) -> DevicePolicy {
        DevicePolicy {
            storage_offset_alignment: 16,
            ..DevicePolicy::importing(shared, &ImportRules::strict())
        }
    }

    fn path(request: &Request, policy: &DevicePolicy) -> Path {
        choose(request, policy).unwrap().path
    }

    #[test]
    fn shared_memory_is_used_in_place() {
        let choice = choose(&Request { touches: 9, ..tensor(64) }, &policy(SHARED)).unwrap();
        assert_eq!((choice.path, &choice.reason), (Path::Imported, &Reason::Importable));
        assert_eq!(choice.window, window(64).ok());
        // Only a measurement says otherwise.
        let measured = DevicePolicy { direct_reads: Some(3), ..policy(SHARED) };
        let choice = choose(&Request { touches: 4, ..tensor(64) }, &measured).unwrap();
        assert_eq!(
            (choice.path, &choice.reason),
            (Path::ImportedDma, &Reason::SlowInPlace { times: 4, pays: 3 })
        );
        assert!(!choice.reason.sentence().contains("its own memory"));
    }

    #[test]
    fn a_discrete_device_copies_what_it_reads_twice() {
        let discrete = policy(DISCRETE);
        assert_eq!(path(&tensor(64), &discrete), Path::Imported);
        let choice = choose(&Request { touches: 2, ..tensor(64) }, &discrete).unwrap();
        assert_eq!((choice.path, choice.reason), (Path::ImportedDma, Reason::Reused { times: 2 }));
        let measured = DevicePolicy { direct_reads: Some(3), ..discrete.clone() };
        assert_eq!(path(&Request { touches: 2, ..tensor(64) }, &measured), Path::Imported);
    }

    #[test]
    fn a_bus_carries_whole_lines() {
        let pieces = Request { access: ReadWrite::Write, scattered: true, ..tensor(64) };
        let choice = choose(&pieces, &policy(DISCRETE)).unwrap();
        assert_eq!((choice.path, &choice.reason), (Path::ImportedDma, &Reason::Scattered));
        assert!(choice.reason.sentence().contains("bus"));
        assert_eq!(path(&pieces, &policy(SHARED)), Path::Imported);
        let few = Request { bytes: MANY_PIECES - 1, imported: true, ..pieces };
        assert_eq!(path(&few, &policy(DISCRETE)), Path::Imported);
    }

    #[test]
    fn odd_offsets_go_by_dma_or_by_params() {
        let integrated = policy(SHARED);
        let choice = choose(&tensor(52), &integrated).unwrap();
        assert_eq!(choice.reason, Reason::OffsetRemainder { offset: 52, alignment: 16 });
        let floats = Request { element_bytes: 4, takes_offset: true, ..tensor(52) };
        assert_eq!(choose(&floats, &integrated).unwrap().reason, Reason::OffsetInParams { remainder: 4 });
        let doubles = Request { element_bytes: 8, ..floats.clone() };
        let refused = choose(&doubles, &integrated).unwrap();
        assert_eq!(refused.path, Path::ImportedDma);
        assert!(matches!(refused.reason, Reason::Refused { refusal: Refusal::ElementMisaligned { .. } }));
        let tight = DevicePolicy { max_range: MIB, ..integrated.clone() };
        assert_eq!(path(&floats, &tight), Path::ImportedDma);
        let odd_elements = Request { element_bytes: 12, addr: 12 * 1000, ..floats };
        assert_eq!(path(&odd_elements, &integrated), Path::ImportedDma);
    }

    #[test]
    fn small_tensors_are_copied_unless_that_gains_nothing() {
        let integrated = policy(SHARED);
        let small = Request { bytes: 1000, binding_bytes: 1000, ..tensor(0) };
        let refusal =
            Refusal::BelowThreshold { bytes: 1000, threshold: ImportCosts::preset(SHARED).copy_threshold };
        assert_eq!(choose(&small, &integrated).unwrap().reason, Reason::Refused { refusal });
        assert_eq!(path(&Request { imported: true, ..small.clone() }, &integrated), Path::Imported);
        assert_eq!(path(&Request { resident: true, ..small.clone() }, &integrated), Path::Direct);
        assert_eq!(path(&small, &DevicePolicy { strict: true, ..integrated.clone() }), Path::Imported);
    }

    #[test]
    fn refusals_fall_down_the_ladder() {
        let refused = Request { window: Err(Refusal::Memfd), dma_buf: window(0).ok(), ..tensor(0) };
        let integrated = policy(SHARED);
        assert_eq!(path(&refused, &integrated), Path::Staged);
        let with_dma_buf = DevicePolicy { dma_buf_supported: true, ..integrated.clone() };
        assert_eq!(path(&refused, &with_dma_buf), Path::DmaBuf);
        let strict = DevicePolicy { strict: true, ..integrated.clone() };
        let error = ImportError::Strict { bytes: MIB, refusal: Refusal::Memfd };
        assert_eq!(choose(&refused, &strict), Err(error));
        assert_eq!(path(&refused, &DevicePolicy { strict: true, ..with_dma_buf.clone() }), Path::DmaBuf);
        let choice = choose(&refused, &with_dma_buf).unwrap();
        assert_eq!(choice.reason, Reason::Refused { refusal: Refusal::Memfd });
        assert!(!choice.copies_on_device());
        let without = DevicePolicy { import_refusal: Some(Refusal::NotSupported), ..integrated };
        let choice = choose(&tensor(0), &without).unwrap();
        assert_eq!(choice.reason, Reason::Refused { refusal: Refusal::NotSupported });
        assert_eq!(choice.window, None);
    }

    #[test]
    fn a_device_copies_from_a_dma_buf_what_it_cannot_use_there() {
        let at = |offset, touches| Request {
            window: Err(Refusal::Memfd),
            dma_buf: window(offset).ok(),
            touches,
            ..tensor(offset)
        };
        let with = |shared| DevicePolicy { dma_buf_supported: true, ..policy(shared) };
        let odd = choose(&at(52, 1), &with(SHARED)).unwrap();
        assert_eq!(odd.reason, Reason::OffsetRemainder { offset: 52, alignment: 16 });
        let often = choose(&at(64, 2), &with(DISCRETE)).unwrap();
        assert_eq!(often.reason, Reason::Reused { times: 2 });
        let doubles = Request { element_bytes: 8, ..at(52, 1) };
        let doubles = choose(&doubles, &with(SHARED)).unwrap();
        for choice in [odd, often, doubles] {
            assert!(choice.path == Path::DmaBuf && choice.copies_on_device(), "{choice:?}");
        }
        let params = Request { element_bytes: 4, takes_offset: true, ..at(52, 1) };
        let params = choose(&params, &with(SHARED)).unwrap();
        assert!(params.path == Path::DmaBuf && !params.copies_on_device(), "{params:?}");
    }

    #[test]
    fn empty_tensors_are_never_trouble() {
        let empty = Request::new(7, 0, ReadWrite::Write, Err(Refusal::Empty));
        let refusing = |policy| DevicePolicy { import_refusal: Some(Refusal::NotSupported), ..policy };
        for policy in [policy(SHARED), policy(DISCRETE), DevicePolicy::host(), refusing(policy(SHARED))] {
            let strict = DevicePolicy { strict: true, ..policy };
            assert_eq!(choose(&empty, &strict).unwrap().reason, Reason::Empty);
        }
    }

    #[test]
    fn bindings_larger_than_the_device_takes_are_errors() {
        let integrated = DevicePolicy { max_range: MIB - 1, ..policy(SHARED) };
        let error = ImportError::RangeTooLarge { bytes: MIB, max: MIB - 1 };
        assert_eq!(choose(&tensor(0), &integrated), Err(error));
        let split = Request { binding_bytes: MIB / 2, ..tensor(0) };
        assert_eq!(path(&split, &integrated), Path::Imported);
    }

    #[test]
    fn the_cpu_takes_the_pointer() {
        let request = Request { element_bytes: 4, ..tensor(64) };
        assert_eq!(path(&request, &DevicePolicy::host()), Path::Host);
        let odd = Request { addr: 0x10_0001, ..request };
        assert_eq!(path(&odd, &DevicePolicy::host()), Path::Staged);
    }

    #[test]
    fn a_verdict_speaks_and_serializes() {
        let request = Request { window: Err(Refusal::FileBacked { path: "/w".to_owned() }), ..tensor(0) };
        let choice = choose(&request, &policy(SHARED)).unwrap();
        let verdict = choice.verdict("weights", &request);
        assert_eq!(
            verdict.to_string(),
            "weights: copied by the CPU, 1048576 bytes: file-backed mapping of /w: this driver imports only \
             anonymous memory; read it into a HostRegion"
        );
        let json = serde_json::to_value(&verdict).unwrap();
        let expected = serde_json::json!({
            "tensor": "weights", "path": "staged", "bytes": MIB, "offset": 0, "access": "read",
            "reason": { "kind": "refused", "refusal": { "kind": "file_backed", "path": "/w" } },
        });
        assert_eq!(json, expected);
        let imported = choose(&tensor(64), &policy(SHARED)).unwrap().verdict("x", &tensor(64));
        assert!(imported.to_string().contains("at offset 64 of the import: every page can be imported"));
    }
}
