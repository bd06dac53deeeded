//! Kernels that the caller supplies for the functions of a graph.

use std::collections::BTreeMap;

use crate::ops::custom::KernelCall;

/// Kernels by the name of the function they stand for, for one type of device or for all.
///
/// Two types of device may have kernels of one name; a node gets that of its own device, else the one
/// for all.
#[derive(Clone, Debug, Default)]
pub struct FunctionTable {
    calls: BTreeMap<String, Vec<(Option<i32>, KernelCall)>>,
}

impl FunctionTable {
    /// An empty table.
    pub fn new() -> Self {
        FunctionTable::default()
    }

    /// Adds `call` for function `name` on every device; one added before is replaced.
    pub fn insert(&mut self, name: impl Into<String>, call: KernelCall) -> &mut Self {
        self.put(name.into(), None, call)
    }

    /// Adds `call` for function `name` on devices of the DLPack type `device_type` (1 host, 2 CUDA,
    /// 4 OpenCL, 7 Vulkan, 8 Metal, 10 ROCm).
    pub fn insert_for(&mut self, device_type: i32, name: impl Into<String>, call: KernelCall) -> &mut Self {
        self.put(name.into(), Some(device_type), call)
    }

    fn put(&mut self, name: String, device: Option<i32>, call: KernelCall) -> &mut Self {
        let calls = self.calls.entry(name).or_default();
        calls.retain(|(d, _)| *d != device);
        calls.push((device, call));
        self
    }

    /// The kernel of function `name` on a device of type `device_type`.
    pub fn get(&self, name: &str, device_type: Option<i32>) -> Option<&KernelCall> {
        let calls = self.calls.get(name)?;
        let of = |device: Option<i32>| calls.iter().find(|(d, _)| *d == device).map(|(_, call)| call);
        device_type.and_then(|d| of(Some(d))).or_else(|| of(None))
    }

    /// All kernels of function `name`, each with the device type it is for.
    pub fn all(&self, name: &str) -> impl Iterator<Item = (Option<i32>, &KernelCall)> {
        self.calls.get(name).into_iter().flatten().map(|(ty, call)| (*ty, call))
    }

    /// The names of all functions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.calls.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::NativeKernel;

    #[test]
    fn a_device_has_its_own_kernel_first() {
        let call = |name: &'static str| KernelCall::native(NativeKernel::new(name, |_| Ok(())));
        let mut table = FunctionTable::new();
        table.insert("f", call("any")).insert_for(7, "f", call("vulkan")).insert_for(1, "g", call("host"));
        let name = |function, device| table.get(function, device).map(|c| c.source.name().to_owned());
        assert_eq!(name("f", Some(7)).as_deref(), Some("vulkan"));
        assert_eq!(name("f", Some(1)).as_deref(), Some("any"));
        assert_eq!(name("f", None).as_deref(), Some("any"));
        assert_eq!(name("g", Some(7)), None);
        table.insert("f", call("other"));
        assert_eq!(table.get("f", None).unwrap().source.name(), "other");
    }
}
