//! Why memory is not imported, in numbers, in a sentence, and with the fix.

use std::borrow::Cow;
use std::fmt;

use crate::memory::budget::BudgetExceeded;
use crate::memory::os::{FIXES, OsError};
use crate::memory::range::ByteRange;

const INTO_REGION: &str = "read it into a HostRegion";
const USE_REGION: &str = "keep the tensor in a HostRegion";

/// Why memory is not imported.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// There are no bytes.
    Empty,
    /// Some of the addresses do not exist.
    NotMapped {
        /// The first address with nothing at it.
        addr: u64,
    },
    /// A page allows no access at all.
    NotReadable {
        /// The first such address.
        addr: u64,
    },
    /// The driver takes no pages with a file.
    FileBacked {
        /// The file.
        path: String,
    },
    /// The driver takes no memory files (on Windows: sections of the paging file).
    Memfd,
    /// The driver takes no shared mappings.
    Shared,
    /// A mapping of the kernel or of a device.
    Special {
        /// Its name.
        name: String,
    },
    /// A page may not be written.
    ReadOnlyMapping {
        /// The first such address.
        addr: u64,
        /// Whether the binding writes; if not, it is the driver that insists.
        written: bool,
    },
    /// The enclosing pages are more than one import may hold.
    TooLarge {
        /// Bytes of whole pages.
        bytes: u64,
        /// Most bytes in one import.
        max: u64,
    },
    /// The rules name an alignment that is no power of two.
    Misaligned {
        /// The alignment.
        alignment: u64,
    },
    /// The address is no multiple of the element size.
    ElementMisaligned {
        /// The address.
        addr: u64,
        /// Bytes of an element.
        element: u64,
    },
    /// So small that copying is faster.
    BelowThreshold {
        /// Size of the tensor.
        bytes: u64,
        /// Size from which imports pay.
        threshold: u64,
    },
    /// The device cannot hold more live imports.
    BudgetExceeded(BudgetExceeded),
    /// The pages are partly imported already.
    PageInUse {
        /// The pages asked for.
        wanted: ByteRange,
        /// The live import that holds some of them.
        live: ByteRange,
    },
    /// The granted memory is not coherent and the pages hold other data too.
    NotCoherent {
        /// Bytes of other data in the pages.
        neighbours: u64,
    },
    /// The driver refused for a reason of its own.
    DriverRefused {
        /// The driver's result code.
        code: i32,
    },
    /// The driver takes no memory files by their address, and there is no dma-buf of this one.
    NoDmaBuf {
        /// What the system said.
        cause: String,
    },
    /// The device imports no host memory.
    NotSupported,
    /// The driver lists the extension, and grants host pointers no memory type that can be mapped.
    NoImportType {
        /// The types that it grants, one bit each.
        bits: u32,
    },
    /// The device ran out of memory with the import, or making it.
    OutOfMemory,
    /// The process map cannot be read, so nothing is known of the pages.
    NoProcessMap {
        /// What the system said.
        cause: String,
    },
}

impl Refusal {
    /// What is in the way.
    pub fn sentence(&self) -> Cow<'static, str> {
        match self {
            Refusal::Empty => "the tensor has no bytes".into(),
            Refusal::OutOfMemory => "the device ran out of memory with the import".into(),
            Refusal::NotMapped { addr } => format!("nothing is mapped at {addr:#x}").into(),
            Refusal::NotReadable { addr } => format!("the page at {addr:#x} allows no access").into(),
            Refusal::FileBacked { path } => {
                format!("file-backed mapping of {path}: this driver imports only anonymous memory").into()
            }
            Refusal::Memfd => "memory file: this driver imports only anonymous memory".into(),
            Refusal::Shared => "shared mapping: this driver imports only private memory".into(),
            Refusal::Special { name } => format!("{name} is a mapping of the kernel or of a device").into(),
            Refusal::ReadOnlyMapping { addr, written: true } => {
                format!("the page at {addr:#x} is read-only and the binding writes").into()
            }
            Refusal::ReadOnlyMapping { addr, written: false } => {
                format!("the page at {addr:#x} is read-only and this driver needs write access").into()
            }
            Refusal::TooLarge { bytes, max } => {
                format!("the pages hold {bytes} bytes and one import at most {max}").into()
            }
            Refusal::Misaligned { alignment } => {
                format!("an import alignment of {alignment} is no power of two").into()
            }
            Refusal::ElementMisaligned { addr, element } => {
                format!("address {addr:#x} is no multiple of the element size {element}").into()
            }
            Refusal::BelowThreshold { bytes, threshold } => {
                format!("{bytes} bytes are below the {threshold} from which an import pays").into()
            }
            Refusal::BudgetExceeded(exceeded) => format!("over the import budget: {exceeded}").into(),
            Refusal::PageInUse { wanted, live } => {
                format!("pages {wanted} are partly imported already as {live}").into()
            }
            Refusal::NotCoherent { neighbours } => format!(
                "the driver grants non-coherent memory and {neighbours} bytes of other data share the pages"
            )
            .into(),
            Refusal::DriverRefused { code } => format!("the driver refused with code {code}").into(),
            Refusal::NoDmaBuf { cause } => format!(
                "memory file: this driver imports only anonymous memory, and no dma-buf can be made of it: {cause}"
            )
            .into(),
            Refusal::NotSupported => "this device imports no host memory".into(),
            Refusal::NoImportType { bits } => {
                format!("the driver grants host pointers no memory type that can be mapped (bits {bits:#x})").into()
            }
            Refusal::NoProcessMap { cause } => format!("the process map cannot be read: {cause}").into(),
        }
    }

    /// What the application can do about it; `None` when there is nothing to do.
    pub fn fix(&self) -> Option<&'static str> {
        match self {
            Refusal::Empty => None,
            Refusal::OutOfMemory => Some("drop other bindings"),
            Refusal::NotMapped { .. } => Some("check the pointer and its length"),
            Refusal::NotReadable { .. } => Some("map the pages readable and writable"),
            Refusal::FileBacked { .. } => Some(INTO_REGION),
            Refusal::Memfd => Some(FIXES.memory_file),
            Refusal::Shared | Refusal::Special { .. } => Some(USE_REGION),
            Refusal::ReadOnlyMapping { written: true, .. } => Some("bind it for reading, or map it writable"),
            Refusal::ReadOnlyMapping { written: false, .. } => {
                Some("map it writable, or read it into a HostRegion")
            }
            Refusal::TooLarge { .. } => Some("split the tensor"),
            Refusal::Misaligned { .. } => Some("report the driver's limits"),
            Refusal::ElementMisaligned { .. } => Some("align the tensor to its element size"),
            Refusal::BelowThreshold { .. } => Some("nothing to do; or lower the copy threshold"),
            Refusal::BudgetExceeded(_) => Some("drop other bindings, or raise the import budget"),
            Refusal::PageInUse { .. } => {
                Some("bind both tensors in one binding, or keep them in one HostRegion")
            }
            Refusal::NotCoherent { .. } => {
                Some("keep the tensor in a HostRegion, whose pages hold nothing else")
            }
            Refusal::DriverRefused { .. } => Some(USE_REGION),
            Refusal::NoDmaBuf { .. } => Some(FIXES.no_dma_buf),
            Refusal::NotSupported => Some("use a driver with VK_EXT_external_memory_host"),
            Refusal::NoImportType { .. } => Some(
                "switch off the driver's option for one unified heap (RADV: radv_enable_unified_heap_on_apu), or write into Binding::host_view",
            ),
            Refusal::NoProcessMap { .. } => Some(FIXES.no_process_map),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence())?;
        match self.fix() {
            Some(fix) => write!(f, "; {fix}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<BudgetExceeded> for Refusal {
    fn from(exceeded: BudgetExceeded) -> Refusal {
        Refusal::BudgetExceeded(exceeded)
    }
}

impl From<OsError> for Refusal {
    fn from(error: OsError) -> Refusal {
        Refusal::NoProcessMap { cause: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::budget::Pool;

    #[test]
    fn a_refusal_says_what_and_what_to_do() {
        let refusal = Refusal::FileBacked { path: "/w.bin".to_owned() };
        assert_eq!(
            refusal.to_string(),
            "file-backed mapping of /w.bin: this driver imports only anonymous memory; read it into a HostRegion"
        );
        assert_eq!(Refusal::Empty.to_string(), "the tensor has no bytes");
        let budget = Refusal::from(BudgetExceeded { pool: Pool::Heap(0), asked: 3, live: 2, limit: 4 });
        assert!(budget.to_string().contains("3 bytes do not fit in heap 0: 2 of 4"));
    }

    #[test]
    fn a_refusal_is_tagged_json() {
        let json = |refusal| serde_json::to_value(refusal).unwrap();
        assert_eq!(json(Refusal::Memfd), serde_json::json!({ "kind": "memfd" }));
        let refusal = Refusal::BelowThreshold { bytes: 4, threshold: 65_536 };
        let expected = serde_json::json!({ "kind": "below_threshold", "bytes": 4, "threshold": 65_536 });
        assert_eq!(json(refusal), expected);
        let budget = Refusal::from(BudgetExceeded { pool: Pool::Heap(0), asked: 3, live: 2, limit: 4 });
        assert_eq!(json(budget)["asked"], 3);
    }
}
