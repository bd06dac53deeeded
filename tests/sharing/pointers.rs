//! Zero copy on pointers of every kind, and the path that is reported for them.

use onepool::memory::import::{Path, Reason, Refusal, Verdict};
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
    assert!(
        before.iter().chain(after).all(|b| *b == 0xAB),
        "{device}: bytes outside the tensor were written"
    );
    let got: Vec<f32> = bytemuck::pod_collect_to_vec(got);
    assert_eq!(got, values.iter().map(|v| v.abs()).collect::<Vec<_>>(), "{device} at {at}");
    check_messages(&context);
    (path(binding.verdicts(), "x"), path(binding.verdicts(), "y"))
}

#[test]
fn tensors_at_the_start_of_a_page_and_64_bytes_into_it() {
    let aligned = |device: &str, at: u64| at.is_multiple_of(open(device).info().limits.argument_alignment);
    for n in [32768, 32769 + 2] {
        assert_eq!(run_at("vulkan", 0, n), (Path::Imported, Path::Imported));
        assert_eq!(run_at("sim", 0, n), (Path::Imported, Path::Imported));
        assert_eq!(run_at("cpu", 0, n), (Path::Host, Path::Host));
        let path = if aligned("vulkan", 64) { Path::Imported } else { Path::ImportedDma };
        assert_eq!(run_at("vulkan", 64, n), (path, path));
        assert_eq!(run_at("vulkan", 4096 + 256, n), (Path::Imported, Path::Imported));
        // 64 is no multiple of what the simulated device asks of an offset, so it copies from the import.
        assert!(!aligned("sim", 64));
        for device in ["sim", "sim:noncoherent"] {
            assert_eq!(run_at(device, 64, n), (Path::ImportedDma, Path::ImportedDma));
        }
        assert_eq!(run_at("cpu", 64, n), (Path::Host, Path::Host));
    }
}

#[test]
fn tensors_at_odd_addresses() {
    for at in [1, 3, 4, 61, 4095] {
        // The CPU works on elements where they are aligned to their size.
        let cpu = if at == 4 { Path::Host } else { Path::Staged };
        assert_eq!(run_at("cpu", at, 32768), (cpu, cpu), "at {at}");
        for device in ["sim", "sim:noncoherent", "vulkan"] {
            // No byte is copied by the CPU.
            assert_eq!(run_at(device, at, 32768), (Path::ImportedDma, Path::ImportedDma), "{device} at {at}");
        }
    }
}

#[test]
fn tensors_whose_length_is_no_multiple_of_a_page() {
    for n in [1, 3, 1023, 1025, 5000] {
        for (device, path) in [("cpu", Path::Host), ("sim", Path::Imported), ("vulkan", Path::Imported)] {
            assert_eq!(run_at(device, 0, n), (path, path), "{device}: {n} elements");
            assert_eq!(run_at(device, 4096 - 256, n), (path, path), "{device}: {n} elements");
        }
    }
}

#[test]
fn two_bindings_with_tensors_in_one_page_share_its_import() {
    for (device, path) in [("sim", Path::Imported), ("vulkan", Path::Imported)] {
        let context = open(device);
        let session = onepool::Session::builder()
            .graph(abs(128))
            .context(context.clone())
            .copy_threshold(0)
            .build()
            .unwrap();
        let mut region = HostRegion::new(4096).unwrap();
        region.as_mut_slice_of::<f32>().unwrap().copy_from_slice(&numbers(1024, 2));
        let region = region.into_shared();
        let before = context.usage();
        let at =
            |quarter: u64| Memory::region_range(&region, ByteRange::new(512 * quarter, 512 * (quarter + 1)));
        let bind = |x: u64, y: u64| session.bind().input("x", at(x)).output("y", at(y)).build().unwrap();
        let (mut first, mut second) = (bind(0, 1), bind(2, 3));
        for binding in [&mut first, &mut second] {
            binding.run().unwrap();
            assert_eq!(self::path(binding.verdicts(), "x"), path, "{device}");
            assert_eq!(self::path(binding.verdicts(), "y"), path, "{device}");
        }
        assert_eq!(context.usage().imports - before.imports, 1, "{device}");
        // The page stays imported for the one that is left.
        drop(first);
        assert_eq!(context.usage().imported - before.imported, 4096, "{device}");
        second.run().unwrap();
        let bytes = region.read().unwrap();
        let got = bytes.as_slice_of::<f32>().unwrap();
        let want =
            |from: usize| numbers(1024, 2)[from..from + 128].iter().map(|v| v.abs()).collect::<Vec<_>>();
        assert_eq!((&got[128..256], &got[384..512]), (&want(0)[..], &want(256)[..]), "{device}");
        drop(bytes);
        drop(second);
        assert_eq!(context.usage().imported, before.imported, "{device}");
        check_messages(&context);
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

/// As arrays of a heap lie: the next begins amid the last page of the one before.
#[test]
fn borrowed_tensors_that_share_pages_are_imported_as_one() {
    let n = 16 * 1024 + 64;
    for device in ["sim", "vulkan"] {
        let context = open(device);
        let session = session(abs(n), &context);
        let mut region = HostRegion::new(4 * 4 * n).unwrap();
        let all = region.as_mut_slice_of::<f32>().unwrap();
        all.copy_from_slice(&numbers(4 * n, 5));
        let mut parts: Vec<&mut [f32]> = all.chunks_exact_mut(n).collect();
        let [x, y, other, last] = &mut parts[..] else { unreachable!() };
        let before = context.usage().imports;
        session.scope(|s| {
            let bind = s.bind().input("x", s.input(x)).output("y", s.output(y));
            let mut binding = bind.build().unwrap();
            binding.run().unwrap();
            for name in ["x", "y"] {
                assert_eq!(path(binding.verdicts(), name), Path::Imported, "{device}: {name}");
            }
            assert_eq!(context.usage().imports - before, 1, "{device}");
            // The output of the first binding and the input of the next share a page, which is imported already.
            let bind = s.bind().input("x", s.input(other)).output("y", s.output(last));
            let mut second = bind.build().unwrap();
            second.run().unwrap();
            let refused = |verdict: &&Verdict| {
                matches!(&verdict.reason, Reason::Refused { refusal: Refusal::PageInUse { .. } })
            };
            let refused: Vec<_> = second.verdicts().filter(refused).map(|v| v.tensor.clone()).collect();
            assert_eq!(refused, ["x"], "{device}");
            assert_eq!(path(second.verdicts(), "y"), Path::Imported, "{device}");
        });
        let got = region.as_slice_of::<f32>().unwrap();
        let numbers = numbers(4 * n, 5);
        for (x, y) in [(0, 1), (2, 3)] {
            let of = |part: usize| part * n..(part + 1) * n;
            assert_eq!(got[of(x)], numbers[of(x)], "{device}");
            let want: Vec<f32> = numbers[of(x)].iter().map(|v| v.abs()).collect();
            assert_eq!(got[of(y)], want, "{device}");
        }
        assert_eq!(context.usage().imported, 0, "{device}");
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
            let found = path(binding.verdicts(), "x");
            let refusal = binding.verdicts().find_map(|v| match &v.reason {
                Reason::Refused { refusal } if v.tensor == "x" => Some(refusal.clone()),
                _ => None,
            });
            // lavapipe takes any page that can be read, and may have to copy from where the constant lies; other
            // drivers refuse it.
            let wanted = match device {
                "cpu" => found == Path::Host,
                "sim" => found == Path::Staged,
                _ => found.imports() || refusal.is_some(),
            };
            assert!(wanted, "{device}: {found:?}, {refusal:?}");
            let of_a_file =
                matches!(refusal, Some(Refusal::FileBacked { .. } | Refusal::ReadOnlyMapping { .. }));
            assert_eq!(of_a_file, found == Path::Staged, "{device}: {refusal:?}");
        });
        assert!(y.iter().all(|v| *v == 1.5), "{device}");
        check_messages(&context);
    }
}

#[test]
fn two_threads_bind_and_run_at_once() {
    let paths = [("cpu", Path::Host), ("sim", Path::Imported), ("vulkan", Path::Imported)];
    for (device, path) in paths {
        let context = open(device);
        let session = session(abs(32768), &context);
        std::thread::scope(|threads| {
            for thread in 0..2 {
                let session = &session;
                threads.spawn(move || {
                    for round in 0..8 {
                        // Regions: two vectors of the heap may have a page in common.
                        let x = crate::common::region(&numbers(32768, 2 * round + thread));
                        let y = crate::common::region(&[0.0; 32768]);
                        let bind =
                            session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y));
                        let mut binding = bind.build().unwrap();
                        binding.run().unwrap();
                        assert_eq!(self::path(binding.verdicts(), "x"), path, "{device}");
                        assert_eq!(self::path(binding.verdicts(), "y"), path, "{device}");
                        let (x, y) = (crate::common::floats(&x), crate::common::floats(&y));
                        assert!(y.iter().zip(&x).all(|(y, x)| *y == x.abs()), "{device}");
                        // And borrowed memory, wherever the allocator puts it.
                        let mut y = vec![0f32; x.len()];
                        session.scope(|s| {
                            let bind = s.bind().input("x", s.input(&x)).output("y", s.output(&mut y));
                            bind.build().unwrap().run().unwrap();
                        });
                        assert!(y.iter().zip(&x).all(|(y, x)| *y == x.abs()), "{device}");
                    }
                });
            }
        });
        check_messages(&context);
    }
}
