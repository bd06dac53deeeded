//! Runs cut into many submissions compute what whole ones compute, in the order in which they were submitted.

use std::time::Duration;

use onepool::session::SubmissionLimit;
use onepool::{DType, GraphBuilder, Memory, Session, ops};
use proptest::prelude::*;

use crate::common::{abs, check_messages, floats, numbers, op, open, open_all, region};
use crate::random::{N, graph, place, results_of};

/// A piece for each command.
const TINY: SubmissionLimit = SubmissionLimit::AtMost(Duration::ZERO);

const DEVICES: [&str; 8] =
    ["cpu", "sim:coherent", "sim:noncoherent", "sim:discrete", "alone", "vulkan", "bus", "opencl"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_give_the_same_bits_in_pieces(
        nodes in prop::collection::vec((any::<u8>(), any::<usize>(), any::<usize>(), 0u32..3, any::<usize>()), 2..14),
        fuse in any::<bool>(),
    ) {
        let graph = graph(&nodes);
        let builder = |limit| Session::builder().fuse(fuse).submission_limit(limit);
        let tables = DEVICES.map(|device| vec![device]).into_iter();
        for table in tables.chain([vec!["cpu", "sim:noncoherent", "alone"], vec!["cpu", "vulkan", "opencl"]]) {
            let contexts = open_all(&table);
            let placed = place(&graph, |n| nodes[n].3 % contexts.len() as u32);
            let whole = results_of(builder(SubmissionLimit::Off), placed.clone(), &contexts);
            let cut = results_of(builder(TINY), placed, &contexts);
            prop_assert!(whole == cut, "{:?}", table);
            check_messages(&contexts);
        }
    }
}

fn chain(len: usize) -> onepool::Graph {
    let mut g = GraphBuilder::new("chain");
    let mut v = g.input("x", DType::F32, [N.into()]);
    for i in 0..len {
        v = g.op(if i % 2 == 0 { op("Neg") } else { abs() }, &[v]);
        v = g.op(ops::add(), &[v, v]);
    }
    g.output("y", v);
    g.build().unwrap()
}

/// One run reads what the one before it writes, and a third, which is one submission, reads that: each sees all of what
/// came before, although every one is submitted piece by piece by a thread of its own.
#[test]
fn runs_in_pieces_follow_one_another() {
    for device in DEVICES {
        let contexts = [open(device)];
        let session = |len: usize, limit| {
            let builder = Session::builder().graph(chain(len)).fuse(false).copy_threshold(0);
            builder.context(contexts[0].clone()).submission_limit(limit).build().unwrap()
        };
        let (first, second) = (session(6, TINY), session(1, SubmissionLimit::Off));
        let x = numbers(N, 3);
        let memory =
            [region(&x), region(&vec![f32::NAN; N]), region(&vec![f32::NAN; N]), region(&vec![f32::NAN; N])];
        let bind = |session: &Session, from: usize, to: usize| {
            let bind = session.bind().input("x", Memory::region(&memory[from]));
            bind.output("y", Memory::region(&memory[to])).build().unwrap()
        };
        // Two queues are ordered by the memory that they import, and a CPU imports none: it works on pointers.
        let (third, len) = if device == "cpu" { (&first, 6) } else { (&second, 1) };
        let mut runs = [bind(&first, 0, 1), bind(&first, 1, 2), bind(third, 2, 3)];
        let expected = {
            let through = |mut v: Vec<f32>, len: usize| {
                for i in 0..len {
                    v.iter_mut().for_each(|v| *v = if i % 2 == 0 { -*v } else { v.abs() });
                    v.iter_mut().for_each(|v| *v += *v);
                }
                v
            };
            through(through(through(x.clone(), 6), 6), len)
        };
        // What the CPU copies it copies once a run was waited for.
        let in_place = runs.iter().all(|run| run.verdicts().all(|v| !v.path.copies_on_cpu()));
        for _ in 0..3 {
            if !in_place {
                runs.iter_mut().for_each(|run| run.run().unwrap());
                assert!(floats(&memory[3]) == expected, "{device}");
                continue;
            }
            let [a, b, c] = &mut runs;
            let pending = [a.submit().unwrap(), b.submit().unwrap(), c.submit().unwrap()];
            pending.into_iter().for_each(|run| run.wait().unwrap());
            assert!(floats(&memory[3]) == expected, "{device}");
        }
        drop(runs);
        check_messages(&contexts);
    }
}

/// Every operator once, in order, and none of the gaps between submissions in their times.
#[test]
fn a_profile_of_pieces_has_every_operator_once() {
    for device in DEVICES {
        let contexts = [open(device)];
        let builder = Session::builder().graph(chain(8)).fuse(false).context(contexts[0].clone());
        let session = builder.submission_limit(TINY).build().unwrap();
        let mut binding = session.bind().input("x", Memory::region(&region(&numbers(N, 5)))).build().unwrap();
        for _ in 0..2 {
            let profile = binding.profile().unwrap();
            let names: Vec<&str> = profile.nodes.iter().map(|n| n.name.as_str()).collect();
            let all: Vec<&str> = binding.plan().report.nodes.iter().map(|n| n.name.as_str()).collect();
            if contexts[0].info().timestamp_ns > 0.0 {
                assert_eq!(names, all, "{device}");
                let sum: u64 = profile.nodes.iter().map(|n| n.nanos).sum();
                assert!(sum <= profile.device_nanos, "{device}: {sum} of {}", profile.device_nanos);
            } else {
                assert!(names.is_empty(), "{device}");
            }
        }
        check_messages(&contexts);
    }
}
