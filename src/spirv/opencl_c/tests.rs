//! Every kernel that ships, and what control flow and memory look like.

use super::*;
use crate::kernel::table::KERNELS;

#[test]
fn every_kernel_translates() {
    let options = OpenClOptions { fp64: true, ..OpenClOptions::default() };
    for info in KERNELS {
        let kernel = translate(info.spirv(), &options);
        let kernel = kernel.unwrap_or_else(|error| panic!("{}: {error}", info.name));
        assert_eq!(kernel.local_size, info.local_size, "{}", info.name);
        if let Ok(folder) = std::env::var("OPENCL_C_OUT") {
            std::fs::write(format!("{folder}/{}.cl", info.name), &kernel.source).unwrap();
        }
    }
}
