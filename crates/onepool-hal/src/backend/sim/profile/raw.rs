//! A profile as its file has it: every field there is, and no other. A missing field is as good as `null`.

#![allow(dead_code, reason = "facts for people are read for their type alone")]

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// `null` is as good as nothing.
fn or_nothing<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    pub(super) name: String,
    pub(super) title: String,
    source: Vec<String>,
    recorded: Recorded,
    #[serde(default, deserialize_with = "or_nothing")]
    basis: BTreeMap<String, String>,
    pub(super) device: Device,
    pub(super) heap_count: Option<u64>,
    pub(super) heaps: Option<Vec<Heap>>,
    pub(super) type_count: Option<u64>,
    pub(super) types_complete: bool,
    pub(super) types: Option<Vec<MemoryType>>,
    pub(super) host_import: HostImport,
    pub(super) limits: Limits,
    pub(super) features: Features,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) environment: Environment,
    #[serde(default, deserialize_with = "or_nothing")]
    notes: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    device: bool,
    heaps: bool,
    types: bool,
    host_import: bool,
    limits: bool,
    features: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Device {
    pub(super) name: String,
    vendor_id: Option<u32>,
    device_id: Option<u32>,
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    pub(super) driver_id: String,
    pub(super) driver_id_value: u32,
    pub(super) driver_info: Option<String>,
    pub(super) api_version: Option<String>,
    os: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Kind {
    IntegratedGpu,
    DiscreteGpu,
    VirtualGpu,
    Cpu,
    Other,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Heap {
    pub(super) index: u64,
    pub(super) size: Option<u64>,
    pub(super) flags: Vec<HeapFlag>,
    pub(super) budget: Option<u64>,
    pub(super) usage: Option<u64>,
    recorded: Option<bool>,
    note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum HeapFlag {
    DeviceLocal,
    MultiInstance,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemoryType {
    pub(super) index: u64,
    pub(super) heap: u64,
    pub(super) flags: Vec<TypeFlag>,
    pub(super) bits: u64,
    recorded: Option<bool>,
    note: Option<String>,
}

/// The flags of `VkMemoryPropertyFlagBits` in the order of their bits.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum TypeFlag {
    DeviceLocal,
    HostVisible,
    HostCoherent,
    HostCached,
    LazilyAllocated,
    Protected,
    DeviceCoherentAmd,
    DeviceUncachedAmd,
    RdmaCapableNv,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostImport {
    pub(super) present: Option<bool>,
    note: Option<String>,
    pub(super) min_imported_host_pointer_alignment: Option<u64>,
    handle_types: Option<Vec<String>>,
    pub(super) memory_type_bits: Option<u64>,
    memory_type_bits_rule: Option<String>,
    pub(super) best_type: Option<u64>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) accepts: Accepts,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) refusal: Refusals,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) overcommit: Overcommit,
    pub(super) counts_against_heap: Option<bool>,
    map_returns_same_pointer: Option<bool>,
    flush_invalidate: Option<String>,
    pub(super) size_limit: Option<u64>,
    size_limit_note: Option<String>,
    memory_type_index_used: Option<bool>,
    memory_type_index_note: Option<String>,
    counts_in_budget_usage: Option<bool>,
    pub(super) kernel: Option<Kernel>,
    basis: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Accepts {
    pub(super) anonymous_private: Option<bool>,
    pub(super) huge_page_advised: Option<bool>,
    pub(super) heap: Option<bool>,
    pub(super) stack: Option<bool>,
    pub(super) anonymous_shared: Option<bool>,
    pub(super) memfd_shared: Option<bool>,
    pub(super) file_private_writable: Option<bool>,
    pub(super) file_shared_writable: Option<bool>,
    pub(super) read_only_anonymous: Option<bool>,
    pub(super) read_only_file: Option<bool>,
    pub(super) hugetlbfs: Option<bool>,
    pub(super) io_mapping: Option<bool>,
    pub(super) unmapped: Option<bool>,
    pub(super) unaligned_pointer: Option<bool>,
    pub(super) unaligned_size: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Refusals {
    pub(super) unaligned: Option<Refusal>,
    pub(super) not_anonymous: Option<Refusal>,
    pub(super) read_only: Option<Refusal>,
    pub(super) unmapped: Option<Refusal>,
    pub(super) not_accepted: Option<Refusal>,
    pub(super) kernel_refuses: Option<Refusal>,
    no_gpu_address_space: Option<Refusal>,
    gpu_map_fails: Option<Refusal>,
    other_handle_type: Option<Refusal>,
    size_query_fails: Option<Refusal>,
    pub(super) heap_full: Option<Refusal>,
    #[serde(rename = "over_1_GiB")]
    pub(super) over_size_limit: Option<Refusal>,
    /// A sentence, no code.
    overcommit: Option<String>,
}

/// The `VkResult` of a refusal, perhaps with words after it, or several of which any may come.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "the name of a VkResult, or an object with \"one_of\" and \"note\"")]
pub(super) enum Refusal {
    One(String),
    OneOf(OneOf),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OneOf {
    pub(super) one_of: Vec<String>,
    note: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Overcommit {
    at_import: Option<String>,
    /// What happens, with the `VkResult` in the sentence where there is one.
    pub(super) at_submit: Option<String>,
    budget_heap: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kernel {
    driver: String,
    flags_passed: Option<Vec<String>>,
    checks: Option<Vec<KernelCheck>>,
    /// Where it is there, the kernel looks at the kind of the first mapping alone.
    pub(super) first_mapping_only: Option<String>,
    faults_in: Option<String>,
    after_import: Option<String>,
    accounting: Option<String>,
    gtt_size: Option<String>,
    anonymous_only: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelCheck {
    when: String,
    errno: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    pub(super) max_memory_allocation_size: Option<u64>,
    pub(super) max_buffer_size: Option<u64>,
    pub(super) max_storage_buffer_range: Option<u64>,
    pub(super) max_memory_allocation_count: Option<u64>,
    pub(super) min_storage_buffer_offset_alignment: Option<u64>,
    pub(super) min_texel_buffer_offset_alignment: Option<u64>,
    pub(super) storage_texel_buffer_offset_alignment: Option<u64>,
    pub(super) min_uniform_buffer_offset_alignment: Option<u64>,
    pub(super) non_coherent_atom_size: Option<u64>,
    pub(super) max_compute_shared_memory_size: Option<u64>,
    pub(super) max_compute_work_group_invocations: Option<u64>,
    pub(super) max_compute_work_group_size: Option<[u64; 3]>,
    pub(super) max_push_constants_size: Option<u64>,
    pub(super) max_texel_buffer_elements: Option<u64>,
    pub(super) max_per_stage_descriptor_storage_buffers: Option<u64>,
    pub(super) timestamp_period: Option<f64>,
    pub(super) timestamp_valid_bits: Option<u64>,
    pub(super) subgroup_size: Option<u64>,
    pub(super) min_subgroup_size: Option<u64>,
    pub(super) max_subgroup_size: Option<u64>,
    required_subgroup_size_stages: Option<Vec<String>>,
    note: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Features {
    subgroup_size_control_compute: Option<bool>,
    storage_8bit: Option<bool>,
    storage_16bit: Option<bool>,
    float16: Option<bool>,
    int8: Option<bool>,
    integer_dot_4x8_accelerated: Option<bool>,
    cooperative_matrix: Option<bool>,
    cooperative_matrix_shapes: Option<Vec<MatrixShape>>,
    pub(super) memory_budget: Option<bool>,
    pub(super) external_memory_dma_buf: Option<bool>,
    queue_family_foreign: Option<bool>,
    amd_device_coherent_memory: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MatrixShape {
    m: u32,
    n: u32,
    k: u32,
    a: String,
    b: String,
    c: String,
    result: String,
    scope: String,
    note: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Environment {
    ram: Option<String>,
    pub(super) vram_bytes: Option<u64>,
    pub(super) gtt_bytes: Option<u64>,
    vram_plus_gtt_bytes: Option<u64>,
    kernel_options: Option<Vec<String>>,
    host_visible_ram_about: Option<String>,
    allocatable_about: Option<String>,
    recorded_here: Option<Vec<String>>,
    check: Option<String>,
    example: Option<bool>,
}
