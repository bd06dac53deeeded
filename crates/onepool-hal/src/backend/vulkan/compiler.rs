//! Devices opened for compiling alone: what the driver's compiler made of a kernel, by
//! VK_KHR_pipeline_executable_properties. Such a device need have no memory.

use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

use ash::vk;

use super::Without;
use super::device::Device;
use super::instance::Instance;
use super::kernel::{Compiling, Kernel};
use super::probe::Probe;
use crate::backend::{
    ContextDesc, DeviceError, DeviceInfo, Executable, KernelCompiler, KernelDesc, StatisticValue,
};
use onepool_core::sync::lock;

/// A device that makes pipelines, looks at them and destroys them.
pub(super) struct Compiler {
    functions: ash::khr::pipeline_executable_properties::Device,
    device: Device,
}

impl Compiler {
    /// Opens a device for compiling.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the driver tells nothing of its pipelines or compiles none for compute.
    pub(super) fn open(
        instance: Arc<Instance>,
        probe: Probe,
        desc: &ContextDesc,
    ) -> Result<Self, DeviceError> {
        if probe.queues == 0 {
            let reason = probe.info.unusable.unwrap_or_default();
            return Err(DeviceError::Unsupported { what: format!("compute here: {reason}") });
        }
        if !probe.features.has_executables() {
            return Err(DeviceError::Unsupported {
                what: "reports of its compiler (VK_KHR_pipeline_executable_properties is missing)".to_owned(),
            });
        }
        let device = Device::open(instance, probe, desc, Without::default())?;
        let functions =
            ash::khr::pipeline_executable_properties::Device::new(device.instance.functions(), &device.raw());
        Ok(Compiler { functions, device })
    }

    fn executables(&self, kernel: &Kernel) -> Result<Vec<Executable>, DeviceError> {
        let _turn = self.device.turn();
        let pipeline = vk::PipelineInfoKHR::default().pipeline(kernel.pipeline);
        // SAFETY: the pipeline is of this device, and the feature is on
        // (VUID-vkGetPipelineExecutablePropertiesKHR-pipeline-03271, -pipelineExecutableProperties-03270).
        let found = unsafe { self.functions.get_pipeline_executable_properties(&pipeline) }
            .map_err(|code| self.device.error("vkGetPipelineExecutablePropertiesKHR", code, 0))?;
        let mut executables = Vec::with_capacity(found.len());
        for (index, properties) in (0u32..).zip(&found) {
            let mut executable = Executable::new(text(properties.name_as_c_str()), properties.subgroup_size);
            let info =
                vk::PipelineExecutableInfoKHR::default().pipeline(kernel.pipeline).executable_index(index);
            // SAFETY: as above; the pipeline was made to be looked at, and has so many programs
            // (VUID-vkGetPipelineExecutableStatisticsKHR-pipeline-03274, -executableIndex-03275).
            let statistics = unsafe { self.functions.get_pipeline_executable_statistics(&info) }
                .map_err(|code| self.device.error("vkGetPipelineExecutableStatisticsKHR", code, 0))?;
            for statistic in &statistics {
                executable.add(&text(statistic.name_as_c_str()), value(statistic));
            }
            executables.push(executable);
        }
        Ok(executables)
    }
}

impl KernelCompiler for Compiler {
    fn info(&self) -> &DeviceInfo {
        &self.device.info
    }

    fn compile(&self, desc: &KernelDesc<'_>, subgroup: Option<u32>) -> Result<Vec<Executable>, DeviceError> {
        if let Some(lanes) = subgroup {
            let [least, most] = self.device.info.subgroup_range;
            if least == most || !lanes.is_power_of_two() || !(least..=most).contains(&lanes) {
                return Err(DeviceError::Unsupported { what: format!("subgroups of {lanes} on request") });
            }
        }
        let flags = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR;
        let compiling = Compiling { flags, subgroup };
        let kernel = Kernel::compiled(&self.device, vk::PipelineCache::null(), desc, compiling)?;
        let executables = self.executables(&kernel);
        // SAFETY: nothing was submitted.
        unsafe { kernel.destroy(&self.device) };
        executables
    }

    fn validation_messages(&self) -> Vec<String> {
        match self.device.instance.messages() {
            Some(messages) => std::mem::take(&mut *lock(messages)),
            None => Vec::new(),
        }
    }
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").field("device", &self.device.info.name).finish_non_exhaustive()
    }
}

fn text(name: Result<&CStr, std::ffi::FromBytesUntilNulError>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn value(statistic: &vk::PipelineExecutableStatisticKHR<'_>) -> StatisticValue {
    let value = statistic.value;
    // SAFETY: the driver says which member it wrote; each is plain data, and the structure began as zeros.
    unsafe {
        match statistic.format {
            vk::PipelineExecutableStatisticFormatKHR::BOOL32 => StatisticValue::Bool(value.b32 != vk::FALSE),
            vk::PipelineExecutableStatisticFormatKHR::INT64 => StatisticValue::Int(value.i64),
            vk::PipelineExecutableStatisticFormatKHR::FLOAT64 => StatisticValue::Float(value.f64),
            _ => StatisticValue::Uint(value.u64),
        }
    }
}
