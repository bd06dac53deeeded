//! A file's fields checked and turned into what is played.

use super::raw::{Accepts, HeapFlag, HostImport as RawImport, Kind, Raw, Refusal, TypeFlag};
use super::{
    Codes, DEVICE_LOST, DriverProfile, HostImport, INVALID_EXTERNAL_HANDLE, KernelSizes,
    OUT_OF_DEVICE_MEMORY, Takes,
};
use crate::backend::{DeviceKind, Limits};
use onepool_core::memory::budget::HeapBudget;
use onepool_core::memory::import::rules::DriverKind;
use onepool_core::memory::model::{Heap, MemoryType, Sizes, TypeFlags};

/// `VK_MAX_MEMORY_HEAPS` and `VK_MAX_MEMORY_TYPES`.
const MAX_HEAPS: usize = 16;
const MAX_TYPES: usize = 32;

/// The size of a heap that is not known.
pub(super) const HEAP: u64 = 2 << 30;

/// What is taken for limits that are not known: of all recorded values the strictest.
pub(super) mod strictest {
    pub(crate) const ALLOCATION: u64 = 1 << 30;
    pub(crate) const BUFFER: u64 = 1 << 30;
    pub(crate) const RANGE: u64 = 128 << 20;
    pub(crate) const STORAGE_ALIGNMENT: u64 = 256;
    pub(crate) const TEXEL_ALIGNMENT: u64 = 256;
    pub(crate) const ATOM: u64 = 256;
    pub(crate) const LOCAL_BYTES: u32 = 16 << 10;
    pub(crate) const GROUP_ITEMS: u32 = 256;
    pub(crate) const PARAMS: u32 = 128;
    pub(crate) const TEXELS: u64 = 64 << 20;
    pub(crate) const ARGUMENTS: u32 = 31;
    pub(crate) const SUBGROUP: u32 = 4;
    pub(crate) const IMPORT_ALIGNMENT: u64 = 65_536;
}

/// A field that cannot be.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) field: String,
    pub(super) problem: String,
}

fn wrong<T>(field: impl Into<String>, problem: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { field: field.into(), problem: problem.into() })
}

/// What was chosen for unknown fields, by field.
#[derive(Default)]
struct Choices(Vec<String>);

impl Choices {
    fn note(&mut self, field: &str, taken: impl std::fmt::Display) {
        self.0.push(format!("{field} is unknown: {taken} is taken"));
    }

    fn or<T: std::fmt::Display>(&mut self, field: &str, known: Option<T>, strict: T) -> T {
        known.unwrap_or_else(|| {
            self.note(field, &strict);
            strict
        })
    }
}

pub(super) fn profile(raw: &Raw) -> Result<DriverProfile, Wrong> {
    if raw.name.trim().is_empty() {
        return wrong("name", "it is empty; give the device a name");
    }
    let mut choices = Choices::default();
    let types = listed_types(raw)?;
    let heaps = heaps(raw, &types, &mut choices)?;
    let types = complete(raw, types, &heaps, &mut choices);
    let limits = limits(raw, &mut choices)?;
    let import = import(raw, &types, &mut choices)?;
    let overcommits = match &raw.host_import.overcommit.at_submit {
        Some(what) => code_in("host_import.overcommit.at_submit", what)? == Some(DEVICE_LOST),
        None => {
            if import.is_some() {
                let taken = "an error where memory is asked for";
                choices.note("host_import.overcommit.at_submit", taken);
            }
            false
        }
    };
    let device = &raw.device;
    let version = choices.or("device.api_version", device.api_version.clone(), "1.1".to_owned());
    let dma_bufs =
        choices.or("features.external_memory_dma_buf", raw.features.external_memory_dma_buf, false);
    let budgets = match choices.or("features.memory_budget", raw.features.memory_budget, false) {
        true => budgets(raw, &heaps),
        false => Vec::new(),
    };
    Ok(DriverProfile {
        name: raw.name.clone(),
        title: raw.title.clone(),
        kind: match device.kind {
            Kind::IntegratedGpu => DeviceKind::Integrated,
            Kind::DiscreteGpu => DeviceKind::Discrete,
            Kind::VirtualGpu => DeviceKind::Virtual,
            Kind::Cpu => DeviceKind::Cpu,
            Kind::Other => DeviceKind::Other,
        },
        driver: match &device.driver_info {
            Some(info) => format!("{} {info}: {}, played", device.driver_id, device.name),
            None => format!("{}: {}, played", device.driver_id, device.name),
        },
        api_version: version,
        heaps,
        types,
        budgets,
        import,
        dma_bufs,
        overcommits,
        kernel: kernel(raw),
        limits,
        subgroup: subgroup(raw, &mut choices)?,
        timestamp_ns: timestamp(raw, &mut choices)?,
        choices: choices.0,
    })
}

/// The kernel's sizes, which amdgpu tells of devices in the host's memory.
fn kernel(raw: &Raw) -> Option<KernelSizes> {
    let environment = &raw.environment;
    let (set_aside, mapped) = (environment.vram_bytes?, environment.gtt_bytes?);
    matches!(raw.device.kind, Kind::IntegratedGpu).then_some(KernelSizes { set_aside, mapped })
}

/// The heaps; as many as types name, of a size that is taken, where the list is not known.
fn heaps(raw: &Raw, types: &[(u64, MemoryType)], choices: &mut Choices) -> Result<Vec<Heap>, Wrong> {
    let count = raw.heap_count;
    let Some(listed) = &raw.heaps else {
        // Where nothing is known, a card has its own and the host's.
        let least = if matches!(raw.device.kind, Kind::DiscreteGpu) { 2 } else { 1 };
        let named = types.iter().map(|(_, ty)| ty.heap as usize + 1).max().unwrap_or(least);
        let many = count.map_or(Ok(named), |count| small("heap_count", count, MAX_HEAPS))?.max(1);
        if named > many {
            return wrong("types", format!("a type names heap {}, and heap_count is {many}", named - 1));
        }
        choices.note("heaps", format!("{many} heap(s) of {HEAP} bytes"));
        // A heap that holds a type of the device's own is the device's own.
        let local = |heap: usize| {
            let mut of = types.iter().filter(|(_, ty)| ty.heap as usize == heap);
            (types.is_empty() && heap == 0) || of.any(|(_, ty)| ty.flags.has(TypeFlags::DEVICE_LOCAL))
        };
        return Ok((0..many).map(|heap| Heap { bytes: HEAP, device_local: local(heap) }).collect());
    };
    if listed.is_empty() || listed.len() > MAX_HEAPS {
        return wrong("heaps", format!("it lists {} heaps; a driver lists 1 to {MAX_HEAPS}", listed.len()));
    }
    if count.is_some_and(|count| count != listed.len() as u64) {
        let count = count.unwrap_or_default();
        return wrong(
            "heap_count",
            format!("it is {count}, and {} heaps are listed; correct one", listed.len()),
        );
    }
    let mut heaps = Vec::new();
    let mut sum: u64 = 0;
    for (at, heap) in listed.iter().enumerate() {
        if heap.index != at as u64 {
            return wrong(format!("heaps[{at}].index"), format!("it is {}; heaps are in order", heap.index));
        }
        let field = format!("heaps[{at}].size");
        let bytes = choices.or(&field, heap.size, HEAP);
        sum = sum.saturating_add(bytes);
        if sum > i64::MAX as u64 {
            let problem =
                format!("{bytes} bytes: all heaps together stay below 2^63 bytes; correct the size");
            return wrong(field, problem);
        }
        heaps.push(Heap { bytes, device_local: heap.flags.contains(&HeapFlag::DeviceLocal) });
    }
    for (at, (index, ty)) in types.iter().enumerate() {
        if ty.heap as usize >= heaps.len() {
            let problem = format!("type {index} names heap {}, and there are {}", ty.heap, heaps.len());
            return wrong(format!("types[{at}].heap"), problem);
        }
    }
    Ok(heaps)
}

/// What the driver says of its heaps. A budget that was not recorded is all of the heap. One may be above its heap, and
/// one that sank below zero is near 2^64: such ones are told as they are.
fn budgets(raw: &Raw, heaps: &[Heap]) -> Vec<HeapBudget> {
    let listed = raw.heaps.as_deref().unwrap_or_default();
    let of = |(at, heap): (usize, &Heap)| {
        let said = listed.get(at);
        let budget = said.and_then(|said| said.budget).unwrap_or(heap.bytes);
        HeapBudget { budget, usage: said.and_then(|said| said.usage).unwrap_or(0) }
    };
    heaps.iter().enumerate().map(of).collect()
}

/// The types that the file lists, with their indices.
fn listed_types(raw: &Raw) -> Result<Vec<(u64, MemoryType)>, Wrong> {
    let listed = raw.types.as_deref().unwrap_or_default();
    if listed.len() > MAX_TYPES {
        return wrong(
            "types",
            format!("it lists {} types; a driver lists at most {MAX_TYPES}", listed.len()),
        );
    }
    let count = match raw.type_count {
        Some(count) => small("type_count", count, MAX_TYPES)?,
        None => listed.len(),
    };
    let fits = if raw.types_complete { count == listed.len() } else { count >= listed.len() };
    if !fits {
        let problem = format!("it is {count}, and {} types are listed; correct one", listed.len());
        return wrong("type_count", problem);
    }
    let mut types = Vec::new();
    for (at, ty) in listed.iter().enumerate() {
        let field = |name: &str| format!("types[{at}].{name}");
        let after = types.last().is_none_or(|(before, _)| ty.index > *before);
        if ty.index >= count as u64 || !after || (raw.types_complete && ty.index != at as u64) {
            let problem = format!("it is {}; types are in order and there are {count}", ty.index);
            return wrong(field("index"), problem);
        }
        let heap = small(&field("heap"), ty.heap, MAX_HEAPS)? as u32;
        let bits = ty.flags.iter().fold(0, |bits, flag| bits | bit(*flag));
        if ty.bits != u64::from(bits) {
            let problem = format!("it is {}, and its flags are {bits}; correct one", ty.bits);
            return wrong(field("bits"), problem);
        }
        let needs = TypeFlags(bits);
        let host = needs.has(TypeFlags::HOST_COHERENT) || needs.has(TypeFlags::HOST_CACHED);
        if host && !needs.has(TypeFlags::HOST_VISIBLE) {
            return wrong(field("flags"), "coherent or cached, and not HOST_VISIBLE, is no memory type");
        }
        types.push((ty.index, MemoryType { heap, flags: needs }));
    }
    Ok(types)
}

fn bit(flag: TypeFlag) -> u32 {
    1 << flag as u32
}

/// The types by index. Where the list is not complete, unknown ones hold nothing, but for the best one for imports, which
/// is visible, coherent and cached; and those are added that every driver must have: one of the device's own, and one that
/// is mapped and coherent.
fn complete(
    raw: &Raw,
    listed: Vec<(u64, MemoryType)>,
    heaps: &[Heap],
    choices: &mut Choices,
) -> Vec<MemoryType> {
    if raw.types_complete && raw.types.is_some() {
        return listed.into_iter().map(|(_, ty)| ty).collect();
    }
    let bits = raw.host_import.memory_type_bits.unwrap_or(0);
    let best = raw.host_import.best_type.and_then(|best| usize::try_from(best).ok());
    let granted = (u64::BITS - bits.leading_zeros()) as usize;
    let granted = granted.max(best.map_or(0, |best| best.saturating_add(1))).min(MAX_TYPES);
    let count = raw.type_count.unwrap_or(granted.max(listed.len()) as u64) as usize;
    let mut types = vec![MemoryType { heap: 0, flags: TypeFlags::default() }; count];
    for (index, ty) in listed {
        if let Some(slot) = types.get_mut(index as usize) {
            *slot = ty;
        }
    }
    let heap = |local: bool| {
        let found = heaps.iter().enumerate().filter(|(_, heap)| heap.device_local == local);
        found.max_by_key(|(_, heap)| heap.bytes).map_or(0, |(index, _)| index as u32)
    };
    let local = MemoryType { heap: heap(true), flags: TypeFlags::DEVICE_LOCAL };
    let coherent = TypeFlags::HOST_VISIBLE.with(TypeFlags::HOST_COHERENT);
    if let Some(best) =
        best.and_then(|best| types.get_mut(best)).filter(|ty| ty.flags == TypeFlags::default())
    {
        *best = MemoryType { heap: heap(false), flags: coherent.with(TypeFlags::HOST_CACHED) };
    }
    let mapped = MemoryType { heap: heap(false), flags: coherent };
    let mut added = Vec::new();
    for must in [local, mapped] {
        let has = |ty: &MemoryType| ty.flags.has(must.flags) && ty.flags.is_usable();
        if !types.iter().any(has) && types.len() < MAX_TYPES {
            added.push(must.flags.names().collect::<Vec<_>>().join("+"));
            types.push(must);
        }
    }
    let all = if added.is_empty() {
        "none other".to_owned()
    } else {
        format!("a type {}", added.join(" and one "))
    };
    choices.note("types", format!("what is listed, and {all}"));
    types
}

fn import(raw: &Raw, types: &[MemoryType], choices: &mut Choices) -> Result<Option<HostImport>, Wrong> {
    let from = &raw.host_import;
    let count = types.len();
    let best = match from.best_type {
        Some(best) if best >= count as u64 => {
            return wrong("host_import.best_type", format!("it is {best}, and there are {count} types"));
        }
        best => best.unwrap_or_default(),
    };
    if let Some(bits) = from.memory_type_bits {
        if bits >> count != 0 {
            let problem = format!("{bits:#x} has bits beyond the {count} types; correct it");
            return wrong("host_import.memory_type_bits", problem);
        }
        if from.best_type.is_some() && bits >> best & 1 == 0 {
            let problem = format!("it is {best}, which is not among the bits {bits:#x}; correct one");
            return wrong("host_import.best_type", problem);
        }
    }
    let alignment = "host_import.min_imported_host_pointer_alignment";
    let aligned = from.min_imported_host_pointer_alignment.map(|bytes| power_of_two(alignment, bytes));
    let aligned = aligned.transpose()?;
    if from.size_limit == Some(0) {
        return wrong("host_import.size_limit", "it is 0; null says that there is none");
    }
    let codes = codes(from)?;
    if !choices.or("host_import.present", from.present, false) {
        return Ok(None);
    }
    let type_bits = match (from.memory_type_bits, from.best_type) {
        (Some(bits), _) => bits as u32,
        (None, Some(_)) => {
            choices.note("host_import.memory_type_bits", format!("best_type {best} alone"));
            1 << best
        }
        (None, None) => {
            choices.note("host_import.memory_type_bits", "0, which is no import,");
            0
        }
    };
    Ok(Some(HostImport {
        driver: DriverKind::of_vulkan(raw.device.driver_id_value),
        alignment: choices.or(alignment, aligned, strictest::IMPORT_ALIGNMENT),
        type_bits,
        takes: takes(
            &from.accepts,
            from.kernel.as_ref().is_some_and(|k| k.first_mapping_only.is_some()),
            choices,
        ),
        codes,
        counted: choices.or("host_import.counts_against_heap", from.counts_against_heap, true),
        max_bytes: from.size_limit,
    }))
}

fn takes(accepts: &Accepts, first_mapping_only: bool, choices: &mut Choices) -> Takes {
    let mut taken = |name: &str, known: Option<bool>, strict: bool| {
        known.unwrap_or_else(|| {
            let what = if strict { "yes, as every kernel that is known says," } else { "no" };
            choices.note(&format!("host_import.accepts.{name}"), what);
            strict
        })
    };
    let strict = Takes::STRICT;
    let anonymous = taken("anonymous_private", accepts.anonymous_private, strict.anonymous_private);
    // To the process's map advised pages are as others.
    let advised = taken("huge_page_advised", accepts.huge_page_advised, anonymous);
    // A simulation that took addresses with nothing at them would fault on them.
    let _ = taken("unmapped", accepts.unmapped, false);
    Takes {
        anonymous_private: anonymous && advised,
        heap: taken("heap", accepts.heap, anonymous),
        stack: taken("stack", accepts.stack, anonymous),
        anonymous_shared: taken("anonymous_shared", accepts.anonymous_shared, strict.anonymous_shared),
        memfd: taken("memfd_shared", accepts.memfd_shared, strict.memfd),
        file_private: taken("file_private_writable", accepts.file_private_writable, strict.file_private),
        file_shared: taken("file_shared_writable", accepts.file_shared_writable, strict.file_shared),
        read_only_anonymous: taken(
            "read_only_anonymous",
            accepts.read_only_anonymous,
            strict.read_only_anonymous,
        ),
        read_only_file: taken("read_only_file", accepts.read_only_file, strict.read_only_file),
        huge_file: taken("hugetlbfs", accepts.hugetlbfs, strict.huge_file),
        special: taken("io_mapping", accepts.io_mapping, strict.special),
        unaligned_pointer: taken("unaligned_pointer", accepts.unaligned_pointer, strict.unaligned_pointer),
        unaligned_size: taken("unaligned_size", accepts.unaligned_size, strict.unaligned_size),
        first_mapping_only,
    }
}

/// The code of each refusal: its own, else the driver's one for all, else the one that the standard asks for.
fn codes(from: &RawImport) -> Result<Codes, Wrong> {
    let refusal = &from.refusal;
    let all = match (
        code("kernel_refuses", &refusal.kernel_refuses)?,
        code("not_accepted", &refusal.not_accepted)?,
    ) {
        (Some(code), _) | (None, Some(code)) => code,
        (None, None) => INVALID_EXTERNAL_HANDLE,
    };
    Ok(Codes {
        unaligned: code("unaligned", &refusal.unaligned)?.unwrap_or(all),
        kind: code("not_anonymous", &refusal.not_anonymous)?.unwrap_or(all),
        read_only: code("read_only", &refusal.read_only)?.unwrap_or(all),
        unmapped: code("unmapped", &refusal.unmapped)?.unwrap_or(all),
        too_large: code("over_1_GiB", &refusal.over_size_limit)?.unwrap_or(OUT_OF_DEVICE_MEMORY),
        heap_full: code("heap_full", &refusal.heap_full)?.unwrap_or(OUT_OF_DEVICE_MEMORY),
    })
}

fn code(name: &str, refusal: &Option<Refusal>) -> Result<Option<i32>, Wrong> {
    let text = match refusal {
        None => return Ok(None),
        Some(Refusal::One(text)) => Some(text),
        // Any may come: the first is as good as the others.
        Some(Refusal::OneOf(list)) => list.one_of.first(),
    };
    let field = format!("host_import.refusal.{name}");
    match text.map_or(Ok(None), |text| code_in(&field, text))? {
        Some(code) => Ok(Some(code)),
        None => wrong(field, "it names no VkResult; give one, such as VK_ERROR_INVALID_EXTERNAL_HANDLE"),
    }
}

/// The `VkResult` that a text names.
fn code_in(field: &str, text: &str) -> Result<Option<i32>, Wrong> {
    let Some(at) = text.find("VK_ERROR_") else { return Ok(None) };
    let name: String = text
        .chars()
        .skip(text[..at].chars().count())
        .take_while(|c| c.is_ascii_uppercase() || *c == '_')
        .collect();
    let code = match name.as_str() {
        "VK_ERROR_OUT_OF_HOST_MEMORY" => -1,
        "VK_ERROR_OUT_OF_DEVICE_MEMORY" => OUT_OF_DEVICE_MEMORY,
        "VK_ERROR_INITIALIZATION_FAILED" => -3,
        "VK_ERROR_DEVICE_LOST" => DEVICE_LOST,
        "VK_ERROR_MEMORY_MAP_FAILED" => -5,
        "VK_ERROR_EXTENSION_NOT_PRESENT" => -7,
        "VK_ERROR_FEATURE_NOT_PRESENT" => -8,
        "VK_ERROR_TOO_MANY_OBJECTS" => -10,
        "VK_ERROR_UNKNOWN" => -13,
        "VK_ERROR_INVALID_EXTERNAL_HANDLE" => INVALID_EXTERNAL_HANDLE,
        _ => return wrong(field, format!("{name} is no VkResult that an import may end with")),
    };
    Ok(Some(code))
}

fn limits(raw: &Raw, choices: &mut Choices) -> Result<Limits, Wrong> {
    let from = &raw.limits;
    // A field with its name.
    macro_rules! field {
        ($name:ident) => {
            (stringify!($name), from.$name)
        };
    }
    let mut size = |(name, known): (&str, Option<u64>), strict: u64| -> Result<u64, Wrong> {
        let field = format!("limits.{name}");
        match known {
            Some(bytes) if bytes == 0 || bytes > i64::MAX as u64 => {
                wrong(field, format!("{bytes} is no size; it is 1 to 2^63 - 1"))
            }
            known => Ok(choices.or(&field, known, strict)),
        }
    };
    let sizes = Sizes::new(
        size(field!(max_memory_allocation_size), strictest::ALLOCATION)?,
        size(field!(max_buffer_size), strictest::BUFFER)?,
        size(field!(max_storage_buffer_range), strictest::RANGE)?,
    );
    let max_texels = size(field!(max_texel_buffer_elements), strictest::TEXELS)?;
    let mut alignment = |(name, known): (&str, Option<u64>), strict: u64| -> Result<u64, Wrong> {
        let field = format!("limits.{name}");
        let known = known.map(|bytes| power_of_two(&field, bytes)).transpose()?;
        Ok(choices.or(&field, known, strict))
    };
    let argument_alignment =
        alignment(field!(min_storage_buffer_offset_alignment), strictest::STORAGE_ALIGNMENT)?;
    let texel_alignment = alignment(field!(min_texel_buffer_offset_alignment), strictest::TEXEL_ALIGNMENT)?;
    let non_coherent_atom = alignment(field!(non_coherent_atom_size), strictest::ATOM)?;
    // Not played, but no nonsense either.
    for (name, known) in
        [field!(min_uniform_buffer_offset_alignment), field!(storage_texel_buffer_offset_alignment)]
    {
        known.map(|bytes| power_of_two(&format!("limits.{name}"), bytes)).transpose()?;
    }
    known_count("max_memory_allocation_count", from.max_memory_allocation_count)?;
    let mut counted = |(name, known): (&str, Option<u64>), strict: u32| -> Result<u32, Wrong> {
        Ok(choices.or(&format!("limits.{name}"), known_count(name, known)?, strict))
    };
    let items = counted(field!(max_compute_work_group_invocations), strictest::GROUP_ITEMS)?;
    let local = counted(field!(max_compute_shared_memory_size), strictest::LOCAL_BYTES)?;
    let params = counted(field!(max_push_constants_size), strictest::PARAMS)?;
    let arguments = counted(field!(max_per_stage_descriptor_storage_buffers), strictest::ARGUMENTS)?;
    let max_group_size = group_size(from.max_compute_work_group_size, items, choices)?;
    Ok(Limits {
        max_argument_bytes: sizes.argument,
        max_buffer_bytes: sizes.buffer,
        argument_alignment: argument_alignment.max(4),
        texel_alignment,
        max_texels,
        // No profile has them: what every device takes.
        max_groups: [65_535; 3],
        max_group_items: items,
        max_group_size,
        max_local_bytes: local,
        max_params_bytes: params,
        max_arguments: arguments,
        non_coherent_atom,
    })
}

/// The largest work-group along x, y, z of a device that takes `items` work-items in one.
fn group_size(known: Option<[u64; 3]>, items: u32, choices: &mut Choices) -> Result<[u32; 3], Wrong> {
    let field = "limits.max_compute_work_group_size";
    let Some(sizes) = known else {
        let taken = [items, items, 64];
        choices.note(field, format!("{taken:?}"));
        return Ok(taken);
    };
    let [x, y, z] = sizes.map(|size| u32::try_from(size).ok().filter(|size| *size > 0));
    let (Some(x), Some(y), Some(z)) = (x, y, z) else {
        return wrong(field, format!("{sizes:?} are no three counts of 1 to 2^32 - 1"));
    };
    Ok([x, y, z])
}

fn known_count(name: &str, known: Option<u64>) -> Result<Option<u32>, Wrong> {
    let fits = |count: u64| u32::try_from(count).ok().filter(|count| *count > 0);
    match known.map(|count| (count, fits(count))) {
        None => Ok(None),
        Some((_, Some(count))) => Ok(Some(count)),
        Some((count, None)) => {
            wrong(format!("limits.{name}"), format!("{count} is no count of 1 to 2^32 - 1"))
        }
    }
}

fn subgroup(raw: &Raw, choices: &mut Choices) -> Result<u32, Wrong> {
    let limits = &raw.limits;
    for (name, known) in [
        ("min_subgroup_size", limits.min_subgroup_size),
        ("max_subgroup_size", limits.max_subgroup_size),
        ("subgroup_size", limits.subgroup_size),
    ] {
        if let Some(lanes) = known.filter(|lanes| !lanes.is_power_of_two() || *lanes > 128) {
            return wrong(format!("limits.{name}"), format!("{lanes} is no power of two up to 128"));
        }
    }
    let known = limits.subgroup_size.and_then(|lanes| u32::try_from(lanes).ok());
    Ok(choices.or("limits.subgroup_size", known, strictest::SUBGROUP))
}

fn timestamp(raw: &Raw, choices: &mut Choices) -> Result<f64, Wrong> {
    let (bits, period) = (raw.limits.timestamp_valid_bits, raw.limits.timestamp_period);
    if let Some(bits) = bits.filter(|bits| *bits > 64) {
        return wrong("limits.timestamp_valid_bits", format!("it is {bits}, and a timestamp has 64"));
    }
    if let Some(period) = period.filter(|period| !period.is_finite() || *period < 0.0) {
        return wrong("limits.timestamp_period", format!("{period} is no time"));
    }
    let (known_bits, known_period) = (bits.unwrap_or(0), period.unwrap_or(0.0));
    for (field, known) in
        [("limits.timestamp_valid_bits", bits.is_some()), ("limits.timestamp_period", period.is_some())]
    {
        if !known {
            choices.note(field, "no clock");
        }
    }
    Ok(if known_bits == 0 { 0.0 } else { known_period })
}

fn power_of_two(field: &str, bytes: u64) -> Result<u64, Wrong> {
    const MOST: u64 = 1 << 30;
    if bytes.is_power_of_two() && bytes <= MOST {
        return Ok(bytes);
    }
    wrong(field, format!("{bytes} is no power of two up to 2^30"))
}

/// A count that must fit a list.
fn small(field: &str, count: u64, most: usize) -> Result<usize, Wrong> {
    match usize::try_from(count) {
        Ok(count) if count <= most => Ok(count),
        _ => wrong(field, format!("it is {count}; at most {most} can be")),
    }
}
