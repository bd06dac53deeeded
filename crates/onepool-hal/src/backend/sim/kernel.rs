//! What the kernel under a driver says to host memory that is to be imported.

use super::profile::{HostImport, Takes};
use onepool_core::memory::os::{Backing, MapEntry};
use onepool_core::memory::range::ByteRange;

impl HostImport {
    /// Whether the kernel takes `pages`, whose mappings are `maps`, in ascending order.
    pub(super) fn judge(&self, pages: ByteRange, maps: &[MapEntry]) -> Result<(), i32> {
        let unit = self.alignment.max(1);
        let aligned = pages.start.is_multiple_of(unit) || self.takes.unaligned_pointer;
        if pages.is_empty() || !aligned || !(pages.bytes().is_multiple_of(unit) || self.takes.unaligned_size)
        {
            return Err(self.codes.unaligned);
        }
        let mut covered = pages.start;
        for (at, entry) in maps.iter().filter(|entry| entry.range.overlaps(pages)).enumerate() {
            if entry.range.start > covered || !entry.readable {
                return Err(self.codes.unmapped);
            }
            if !self.takes.writable(entry) {
                return Err(self.codes.read_only);
            }
            let looks = at == 0 || !self.takes.first_mapping_only;
            if looks && !self.takes.kind(entry) {
                return Err(self.codes.kind);
            }
            covered = covered.max(entry.range.end);
        }
        if covered < pages.end { Err(self.codes.unmapped) } else { Ok(()) }
    }
}

impl Takes {
    fn writable(&self, entry: &MapEntry) -> bool {
        let file = matches!(entry.backing, Backing::File { .. } | Backing::Memfd);
        entry.writable || if file { self.read_only_file } else { self.read_only_anonymous }
    }

    fn kind(&self, entry: &MapEntry) -> bool {
        match &entry.backing {
            Backing::Anonymous if entry.shared => self.anonymous_shared,
            Backing::Anonymous => self.anonymous_private,
            Backing::Heap => self.heap,
            Backing::Stack => self.stack,
            Backing::Memfd => self.memfd,
            Backing::Special(_) => self.special,
            Backing::File { path, .. } if path.contains("hugepage") || path.contains("hugetlb") => {
                self.huge_file
            }
            Backing::File { .. } if entry.shared => self.file_shared,
            Backing::File { .. } => self.file_private,
        }
    }
}
