//! Zero copy on pointers of every kind, and the path that is reported for them.

use onepool::memory::import::{Path, Verdict};
use onepool::memory::range::ByteRange;
use onepool::{HostRegion, Memory};

use crate::common::{abs, check_messages, numbers, open, session, shape};

/// Read-only: a constant of the program.
static CONSTANT: [f32; 32768] = [-1.5; 32768];

fn path<'v>(verdicts: impl Iterator<Item = &'v Verdict>, name: &str) -> Path {
    let mut of = verdicts.filter(|v| v.tensor == name);
    let verdict = of.next().unwrap();
    assert!(of.next().is_none());
    verdict.path
}

/// Runs on `n` floats `at` bytes into regions of their own and returns the paths of input and output.
fn run_at(device: &str, at: u64, n: usize) -> (Path, Path) {
    let context = open(device);
    let session =
        onepool::Session::builder().graph(abs(n)).context(context.clone()).copy_threshold(0).build().unwrap();
    let (bytes, values) = (4 * n as u64, numbers(n, 3));
    let range = ByteRange::new(at, at + bytes);
    let memory = |fill: bool| {
        let mut region = HostRegion::new((at + bytes + 64) as usize).unwrap();
        region.as_mut_slice().fill(0xAB);
        if fill {
            let to = &mut region.as_mut_slice()[at as usize..(at + bytes) as usize];
            to.copy_from_slice(bytemuck::cast_slice(&values));
        }
        region.into_shared()
    };
    let (x, y) = (memory(true), memory(false));
    let mut binding = session
        .bind()
        .input("x", Memory::region_range(&x, range))
        .output("y", Memory::region_range(&y, range))
        .build()
        .unwrap();
    for _ in 0..2 {
        binding.run().unwrap();
    }
    let y = y.read().unwrap();
    let (before, rest) = y.split_at(at as usize);
    let (got, after) = rest.split_at(bytes as usize);
    assert!(before.iter().chain(after).all(|b| *b == 0xAB), "{device}: bytes beside the tensor were written");
    let got: Vec<f32> = bytemuck::pod_collect_to_vec(got);
    assert_eq!(got, values.iter().map(|v| v.abs()).collect::<Vec<_>>(), "{device} at {at}");
    check_messages(&context);
    (path(binding.verdicts(), "x"), path(binding.verdicts(), "y"))
}

#[test]
fn tensors_at_the_start_of_a_page_and_64_bytes_into_it() {
    for n in [32768, 32769 + 2] {
        assert_eq!(run_at("vulkan", 0, n), (Path::Imported, Path::Imported));
        assert_eq!(run_at("sim", 0, n), (Path::Imported, Path::Imported));
        assert_eq!(run_at("cpu", 0, n), (Path::Host, Path::Host));
        let aligned = open("vulkan").info().limits.argument_alignment;
        let (x, y) = run_at("vulkan", 64, n);
        assert_eq!((x == Path::Imported, y == Path::Imported), (64 % aligned == 0, 64 % aligned == 0));
        assert_eq!(run_at("vulkan", 4096 + 256, n), (Path::Imported, Path::Imported));
        // 64 is no multiple of what the simulated device asks of an offset.
        assert_ne!(run_at("sim", 64, n), (Path::Imported, Path::Imported));
        assert_eq!(run_at("cpu", 64, n), (Path::Host, Path::Host));
    }
}

#[test]
fn tensors_at_odd_addresses() {
    for at in [1, 3, 4, 61, 4095] {
        for device in ["cpu", "sim", "vulkan"] {
            let (x, y) = run_at(device, at, 32768);
            assert!(at == 4 || (x != Path::Imported && y != Path::Imported), "{device} at {at}: {x:?} {y:?}");
        }
    }
}

#[test]
fn tensors_of_one_page_share_one_import() {
    for device in ["sim", "vulkan"] {
        let context = open(device);
        let session = onepool::Session::builder()
            .graph(abs(256))
            .context(context.clone())
            .copy_threshold(0)
            .build()
            .unwrap();
        let mut region = HostRegion::new(4096).unwrap();
        region.as_mut_slice_of::<f32>().unwrap()[..256].copy_from_slice(&numbers(256, 1));
        let region = region.into_shared();
        let before = context.usage().imports;
        let mut binding = session
            .bind()
            .input("x", Memory::region_range(&region, ByteRange::new(0, 1024)).shape(shape(&[256])))
            .output("y", Memory::region_range(&region, ByteRange::new(1024, 2048)))
            .build()
            .unwrap();
        binding.run().unwrap();
        assert_eq!(context.usage().imports - before, 1, "{device}");
        let bytes = region.read().unwrap();
        let got: &[f32] = &bytes.as_slice_of::<f32>().unwrap()[256..512];
        assert_eq!(got, numbers(256, 1).iter().map(|v| v.abs()).collect::<Vec<_>>());
        check_messages(&context);
    }
}

#[test]
fn a_read_only_mapping_is_read_and_never_imported_for_writing() {
    for device in ["cpu", "sim", "vulkan"] {
        let context = open(device);
        let session = session(abs(CONSTANT.len()), &context);
        let mut y = vec![0f32; CONSTANT.len()];
        session.scope(|s| {
            let bind = s.bind().input("x", s.input(&CONSTANT)).output("y", s.output(&mut y));
            let mut binding = bind.build().unwrap();
            binding.run().unwrap();
            let want = if device == "cpu" { Path::Host } else { Path::Staged };
            // lavapipe takes any page that can be read; where the constant lies, it may have to copy from it.
            let found = path(binding.verdicts(), "x");
            assert!(found == want || (device == "vulkan" && found.imports()), "{device}: {found:?}");
        });
        assert!(y.iter().all(|v| *v == 1.5), "{device}");
        check_messages(&context);
    }
}

#[test]
fn two_threads_bind_and_run_at_once() {
    for device in ["cpu", "sim", "vulkan"] {
        let context = open(device);
        let session = session(abs(32768), &context);
        std::thread::scope(|threads| {
            for thread in 0..2 {
                let session = &session;
                threads.spawn(move || {
                    for round in 0..8 {
                        let x = numbers(32768, 2 * round + thread);
                        let mut y = vec![0f32; x.len()];
                        session.scope(|s| {
                            let bind = s.bind().input("x", s.input(&x)).output("y", s.output(&mut y));
                            bind.build().unwrap().run().unwrap();
                        });
                        assert!(y.iter().zip(&x).all(|(y, x)| *y == x.abs()));
                    }
                });
            }
        });
        check_messages(&context);
    }
}
