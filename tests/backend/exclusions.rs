//! What a target cannot do, and why.

use libtest_mimic::Failed;

use crate::targets::TARGETS;

const CHECKED: &str = "the device layer checks that before a backend is asked";
const NATIVE: &str = "a native function has no grid, no constants and no interface";
const FORMLESS: &str = "a kernel in OpenCL C has constants of its own, as macros";
const TEXELS: &str = "kernels reach the bytes of a view themselves there, without a driver's texels";
const KEPT: &str = "what was prepared keeps its memory and its kernels alive";
const APART: &str = "a device that shares no memory with the host imports none";

/// Case, targets that begin so, reason. It fails on each of them.
const EXCLUDED: &[(&str, &str, &str)] = &[
    ("buffers/a_buffer_above_the_limit_is_refused_and_counts_nothing", "cpu", CHECKED),
    ("buffers/a_buffer_of_no_bytes_is_refused", "cpu", CHECKED),
    ("buffers/a_buffer_of_no_bytes_is_refused", "sim", CHECKED),
    ("buffers/stale_buffers_are_neither_flushed_nor_invalidated", "cpu", "there is nothing to flush"),
    (
        "buffers/ranges_outside_a_buffer_are_neither_flushed_nor_invalidated",
        "cpu",
        "there is nothing to flush",
    ),
    ("buffers/ranges_outside_a_buffer_are_neither_flushed_nor_invalidated", "sim", CHECKED),
    ("buffers/a_prepared_recording_over_a_kernel_that_is_gone_is_an_error", "cpu", KEPT),
    ("buffers/a_prepared_recording_over_a_buffer_that_is_gone_is_an_error", "cpu", KEPT),
    ("buffers/a_copy_between_different_lengths_is_refused", "sim", CHECKED),
    ("buffers/a_copy_between_ranges_that_overlap_is_refused", "vulkan", CHECKED),
    ("buffers/a_copy_between_ranges_that_overlap_is_refused", "sim", CHECKED),
    ("buffers/a_fill_of_parts_of_words_is_refused", "cpu", CHECKED),
    ("buffers/a_fill_of_parts_of_words_is_refused", "sim", CHECKED),
    (
        "queues/a_wait_ends_with_its_timeout_and_again_with_the_work",
        "sim",
        "the work is done as soon as the host waits",
    ),
    (
        "queues/a_queue_that_goes_waits_for_its_work",
        "sim",
        "the host sees what it has waited for alone, and a queue that goes is no wait of the host",
    ),
    ("queues/times_rise_and_belong_to_their_submission", "sim-discrete", "it plays a device without a clock"),
    ("queues/a_timestamp_slot_beyond_those_of_the_recording_is_an_error", "cpu", CHECKED),
    ("queues/a_timestamp_slot_beyond_those_of_the_recording_is_an_error", "sim", CHECKED),
    ("kernels/a_work_group_size_can_be_chosen", "cpu", NATIVE),
    ("kernels/a_work_group_size_can_be_chosen", "sim", NATIVE),
    ("kernels/a_work_group_size_can_be_chosen", "opencl-c", FORMLESS),
    ("kernels/a_work_group_size_can_be_chosen", "opencl-discrete", FORMLESS),
    ("kernels/a_grid_without_groups_runs_nothing", "cpu", NATIVE),
    ("kernels/a_grid_without_groups_runs_nothing", "sim", NATIVE),
    ("kernels/a_dispatch_that_does_not_fit_its_kernel_is_an_error", "cpu", NATIVE),
    ("kernels/a_dispatch_that_does_not_fit_its_kernel_is_an_error", "sim", NATIVE),
    ("kernels/a_kernel_beyond_the_device_is_refused", "cpu", NATIVE),
    ("kernels/a_kernel_beyond_the_device_is_refused", "sim", NATIVE),
    ("kernels/a_kernel_beyond_the_device_is_refused", "opencl-c", FORMLESS),
    ("kernels/a_kernel_beyond_the_device_is_refused", "opencl-discrete", FORMLESS),
    ("imports/a_kernel_reads_and_writes_the_callers_pages", "opencl-discrete", APART),
    ("imports/a_tensor_inside_an_imported_page_is_bound_at_an_offset", "opencl-discrete", APART),
    ("imports/copies_go_straight_to_and_from_the_pages", "opencl-discrete", APART),
    ("imports/what_no_driver_should_take_is_refused", "cpu", "every address is memory to it"),
    ("images/part_of_a_texel_at_the_end_of_a_buffer_is_an_error", "opencl", TEXELS),
    ("images/part_of_a_texel_at_the_end_of_a_buffer_is_an_error", "cpu", TEXELS),
    ("images/part_of_a_texel_at_the_end_of_a_buffer_is_an_error", "sim", TEXELS),
];

/// Why a case is excluded on a target.
pub(crate) fn reason(target: &str, case: &str) -> Option<&'static str> {
    EXCLUDED.iter().find(|(name, of, _)| *name == case && target.starts_with(of)).map(|(_, _, why)| *why)
}

/// Whether each line of the table names something.
pub(crate) fn check(cases: impl Iterator<Item = String> + Clone) -> Result<(), Failed> {
    for (case, target, _) in EXCLUDED {
        let is_case = cases.clone().any(|name| name == *case);
        if !is_case || !TARGETS.iter().any(|known| known.name.starts_with(target)) {
            return Err(format!("there is no {target}/{case}").into());
        }
    }
    Ok(())
}
