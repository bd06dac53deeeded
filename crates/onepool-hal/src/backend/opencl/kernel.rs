//! Kernels: OpenCL C, the author's or the translation of SPIR-V, and what calling them takes.

use std::ffi::CString;
use std::sync::{Arc, Mutex};

use cl3::error_codes::CL_INVALID_KERNEL_NAME;

use super::cache::BinaryCache;
use super::device::Device;
use super::handle;
use super::program::ProgramText;
use crate::backend::{DeviceError, KernelDesc, Limits};
use onepool_core::sync::lock;
use onepool_spirv::opencl_c::{self, OpenClForm, OpenClOptions, TexelFormat};

/// What a driver aligns a workgroup variable to at most: the largest vector.
const WORKGROUP_ALIGN: u64 = 128;

/// A kernel of a program.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) interface: Interface,
    pub(super) local: [usize; 3],
    objects: Arc<Objects>,
}

/// What a call gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Interface {
    /// Translated: what stands for each argument, whether a pointer to memory follows, the bytes of parameters, and
    /// those of each workgroup variable.
    Translated { args: Vec<Passed>, memory_follows: bool, params_bytes: u32, workgroup: Vec<usize> },
    /// Someone's own OpenCL C: so many arguments, of which the last is the parameters where there are any.
    /// The API does not tell how long they are; the driver may check.
    Own { arguments: u32 },
}

/// What stands for an argument, and the format of a buffer of texels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) form: OpenClForm,
    pub(super) texels: Option<TexelFormat>,
}

/// Kernel objects that no one uses, and the program to make more from.
#[derive(Debug)]
struct Objects {
    entry: CString,
    spare: Mutex<Vec<handle::Kernel>>,
    program: Arc<handle::Program>,
}

/// A kernel object that its holder may set the arguments of.
#[derive(Debug)]
pub(super) struct Taken {
    object: Option<handle::Kernel>,
    home: Arc<Objects>,
}

/// OpenCL C with how it is to be called.
struct Code {
    text: ProgramText,
    entry: Option<String>,
    local: Option<[u32; 3]>,
    interface: Option<Interface>,
}

impl Kernel {
    /// Creates a kernel; may run on several threads at once.
    pub(super) fn new(
        device: &Device,
        cache: Option<&BinaryCache>,
        desc: &KernelDesc<'_>,
    ) -> Result<Self, DeviceError> {
        let source = desc.source;
        let refuse = |log: String| DeviceError::Program { kernel: source.name().to_owned(), log };
        let code = match source.opencl_c() {
            // There are drivers that crash when they list the kernels of a program without any (NVIDIA's 580).
            Some(text) if !text.contains("kernel") => {
                return Err(refuse("its OpenCL C has no kernel".to_owned()));
            }
            Some(text) => own(text, desc.spec),
            None => translated(device, desc)?,
        };
        let limits = &device.info.limits;
        if let Some(size) = code.local {
            // Before the driver sees it.
            check_group(size.map(|size| size as usize), limits, u64::MAX).map_err(refuse)?;
        }
        let program = device.shared.program(device.id, cache, source.name(), code.text)?;
        let entry = match code.entry {
            Some(entry) => entry,
            None => only(program.kernels()?, source.name()).map_err(refuse)?,
        };
        let entry = CString::new(entry).map_err(|_| refuse("its name holds a zero byte".to_owned()))?;
        let object = program.kernel(&entry).map_err(|error| match error {
            DeviceError::Backend { code: CL_INVALID_KERNEL_NAME, .. } => {
                refuse(format!("its OpenCL C has no kernel {}", entry.to_string_lossy()))
            }
            error => error,
        })?;
        let local = match code.local {
            Some(size) => size.map(|size| size as usize),
            None => object.prescribed_size(device.id)?.map(|size| size.max(1)),
        };
        check_group(local, limits, object.most_items(device.id)?).map_err(refuse)?;
        let interface = match code.interface {
            Some(interface) => interface,
            None => Interface::Own { arguments: object.arguments()? },
        };
        let objects = Arc::new(Objects { entry, spare: Mutex::new(vec![object]), program });
        Ok(Kernel { name: source.name().to_owned(), interface, local, objects })
    }

    /// An object of it, to set arguments of; given back when dropped.
    pub(super) fn take(&self) -> Result<Taken, DeviceError> {
        let spare = lock(&self.objects.spare).pop();
        let object = match spare {
            Some(object) => object,
            None => self.objects.program.kernel(&self.objects.entry)?,
        };
        Ok(Taken { object: Some(object), home: Arc::clone(&self.objects) })
    }
}

impl Taken {
    pub(super) fn get(&self) -> Option<&handle::Kernel> {
        self.object.as_ref()
    }

    pub(super) fn get_mut(&mut self) -> Option<&mut handle::Kernel> {
        self.object.as_mut()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            lock(&self.home.spare).push(object);
        }
    }
}

/// The author's text, with the specialization constants as macros `SPEC_<id>`.
fn own(text: &str, spec: &[(u32, u32)]) -> Code {
    let mut options = opencl_c::BUILD_OPTIONS.to_owned();
    for (id, value) in spec {
        options += &format!(" -D SPEC_{id}={value}u");
    }
    let text = ProgramText { source: text.to_owned(), options };
    Code { text, entry: None, local: None, interface: None }
}

fn translated(device: &Device, desc: &KernelDesc<'_>) -> Result<Code, DeviceError> {
    let source = desc.source;
    let refuse = |log: String| DeviceError::Program { kernel: source.name().to_owned(), log };
    let lacks = |missing: String| DeviceError::Unsupported {
        what: format!("{missing}, which kernel {} needs", source.name()),
    };
    let missing = source.requires().missing(device.info.features.union(device.info.emulated));
    if !missing.is_empty() {
        return Err(lacks(missing.to_string()));
    }
    let (words, reflection) =
        source.spirv().ok_or_else(|| refuse("it has neither an OpenCL C nor a SPIR-V form".to_owned()))?;
    if let Some((id, _)) = desc.spec.iter().find(|(id, _)| !reflection.spec.iter().any(|s| s.id == *id)) {
        return Err(refuse(format!("it has no specialization constant {id}")));
    }
    let limits = &device.info.limits;
    let images = device.images().offer;
    let options =
        OpenClOptions { entry: None, spec: desc.spec, fp16: device.fp16, fp64: device.fp64, images };
    let kernel = opencl_c::translate(words, &options).map_err(|error| refuse(error.to_string()))?;
    let missing = kernel.requires.missing(device.info.features);
    if !missing.is_empty() {
        return Err(lacks(missing.to_string()));
    }
    if kernel.params_bytes > limits.max_params_bytes {
        let (bytes, limit) = (kernel.params_bytes, limits.max_params_bytes);
        return Err(refuse(format!("{bytes} bytes of parameters are above this device's {limit}")));
    }
    let bytes =
        kernel.workgroup_bytes.iter().map(|bytes| bytes.next_multiple_of(WORKGROUP_ALIGN)).sum::<u64>();
    if bytes > u64::from(limits.max_local_bytes) {
        let limit = limits.max_local_bytes;
        return Err(refuse(format!("{bytes} bytes of workgroup memory are above this device's {limit}")));
    }
    // A row of texels takes the room of two.
    let rows = kernel.args.iter().filter(|arg| arg.form == OpenClForm::Line).count();
    let count = kernel.args.len() + rows + kernel.workgroup_bytes.len();
    if count > limits.max_arguments as usize {
        let limit = limits.max_arguments;
        return Err(refuse(format!("{count} arguments are above this device's {limit}")));
    }
    let texels = reflection.bindings.iter().map(|b| b.element.as_ref().and_then(TexelFormat::of));
    let args =
        kernel.args.iter().zip(texels).map(|(arg, texels)| Passed { form: arg.form, texels }).collect();
    let workgroup = kernel.workgroup_bytes.iter().map(|bytes| *bytes as usize).collect();
    Ok(Code {
        text: ProgramText { source: kernel.source, options: opencl_c::BUILD_OPTIONS.to_owned() },
        entry: Some(kernel.name.to_owned()),
        local: Some(kernel.local_size),
        interface: Some(Interface::Translated {
            args,
            memory_follows: kernel.memory_follows,
            params_bytes: kernel.params_bytes,
            workgroup,
        }),
    })
}

/// The kernel of that name, or the only one.
fn only(mut names: Vec<String>, wanted: &str) -> Result<String, String> {
    if let Some(at) = names.iter().position(|name| name == wanted) {
        return Ok(names.swap_remove(at));
    }
    match <[String; 1]>::try_from(names) {
        Ok([name]) => Ok(name),
        Err(names) => Err(format!("its OpenCL C has no kernel of its name and not just one, but {names:?}")),
    }
}

/// A driver may crash on a group beyond its limits.
fn check_group(size: [usize; 3], limits: &Limits, most: u64) -> Result<(), String> {
    let items = size.iter().try_fold(1usize, |items, axis| items.checked_mul(*axis));
    let within =
        size.iter().zip(limits.max_group_size).all(|(axis, most)| (1..=most as usize).contains(axis));
    let most = most.min(u64::from(limits.max_group_items));
    if !within || items.is_none_or(|items| items as u64 > most) {
        let sizes = limits.max_group_size;
        return Err(format!(
            "work-groups of {size:?} are above this device's {sizes:?}, {most} in all for this kernel"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_by_its_name_or_by_being_alone() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(only(names(&["a", "b"]), "b"), Ok("b".to_owned()));
        assert_eq!(only(names(&["a"]), "x"), Ok("a".to_owned()));
        assert!(only(names(&["a", "b"]), "x").is_err() && only(names(&[]), "x").is_err());
    }

    #[test]
    fn constants_become_macros() {
        let code = own("text", &[(3, 7), (0, u32::MAX)]);
        assert!(code.text.options.ends_with(" -D SPEC_3=7u -D SPEC_0=4294967295u"), "{}", code.text.options);
    }
}
