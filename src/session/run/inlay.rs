//! Runs in command buffers of the application's.
//!
//! An island of `unsafe`: the application answers for its command buffer and for when it is over.

#![allow(unsafe_code, reason = "a command buffer of the application's, which it answers for")]

use crate::backend::ForeignCommands;
use crate::device::Inlay;
use crate::kernel;
use crate::session::bind::binding::Binding;
use crate::session::error::{Error, SessionError};

impl Binding<'_> {
    /// Records a run into a command buffer of the application's (a `VkCommandBuffer`), which submits it when
    /// it likes, as often as it likes. Barriers order the run against all that the command buffer has before
    /// and after it, or against what `commands` says. A command buffer may have several runs, of one binding
    /// too.
    ///
    /// The run uses the bound memory and the session's own, so that it counts as in flight until the result
    /// is dropped: guards of the host, [`Binding::set_input`] and [`Binding::get_output`] are refused, and
    /// what is dropped meanwhile is kept. The recording changes the compute pipeline, the descriptor sets for
    /// compute and the push constants of the command buffer.
    ///
    /// Only runs that need nothing of the host are recorded: on one device of an application
    /// ([`ApplicationDevice`](crate::backend::vulkan::ApplicationDevice)), in one segment, with no tensor
    /// that the CPU copies. A limit of the time of submissions does not hold.
    ///
    /// # Safety
    /// - The command buffer is of the context's device and of a pool of its queue's family, primary or secondary, and this
    ///   thread alone is recording it, outside of render passes and video coding. After an error it is not submitted.
    /// - The result is dropped once all submissions of the command buffer are over, or the device is lost, and none comes
    ///   after that. If it is leaked, the same holds for the device's context.
    /// - It is submitted to the queue of the context, under its lock; or to another one that semaphores order
    ///   against all other runs of the session and all that uses the bound memory. No one writes that memory
    ///   while the run uses it, and no one reads it while the run writes it.
    /// - What `commands` says of before and after covers what touches the bound memory there.
    ///
    /// # Errors
    /// [`SessionError::NeedsHost`] with the part that needs the host; [`Error::Device`]: a null command
    /// buffer, a device that is no application's, memory of the process that is borrowed, or imported and not
    /// coherent.
    pub unsafe fn record_into(&mut self, commands: &ForeignCommands) -> Result<Inlay, Error> {
        let needs_host = |part: String| Err(SessionError::NeedsHost { part }.into());
        if self.continuation.is_some() {
            return needs_host(
                "sizes that are known only in the run: give the model fixed shapes".to_owned(),
            );
        }
        if self.core.options.arena.is_some() {
            return needs_host("an arena shared with other sessions: build the session without".to_owned());
        }
        let plan = self.ordered_plan()?;
        let [segment] = &plan.segments[..] else {
            let devices: Vec<_> = plan
                .segments
                .iter()
                .map(|segment| self.device(segment.device).context.info().name.as_str())
                .collect();
            return needs_host(format!(
                "{} segments, on {}: `fallback(false)` tells which operators are not for the device",
                devices.len(),
                if devices.is_empty() { "no device".to_owned() } else { devices.join(", ") }
            ));
        };
        let slots = self.inputs.iter().zip(&plan.inputs).chain(self.outputs.iter().zip(&plan.outputs));
        if let Some((_, io)) = slots.into_iter().find(|(slot, _)| slot.is_copied_in()) {
            return needs_host(format!("{:?}, which the CPU copies: bind a buffer of the device", io.name));
        }
        if segment.by_session {
            return needs_host("copies between devices".to_owned());
        }
        self.wait_for_last_run();
        let host = self.host_ranges(&plan);
        let recording = self.record(&plan, 0, &host[0])?.recording;
        let queue = self.device(segment.device).queue.clone();
        // SAFETY: as the caller promises.
        let inlay = unsafe { kernel::record_into(&queue, recording, commands)? };
        self.has_run = true;
        Ok(inlay)
    }
}
