//! Orders that data flow alone does not give: control dependencies, memory written again, runs in flight.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onepool::graph::NodeId;
use onepool::{DType, Graph, GraphBuilder, Memory};

use crate::common::{abs, check_messages, floats, info, native, numbers, op, open_all, region, session};

const N: usize = 4096;

fn placed(graph: Graph, devices: &[u32]) -> Graph {
    let mut graph = graph;
    for (n, device) in devices.iter().enumerate() {
        graph.place(NodeId(n as u32), Some(*device));
    }
    graph
}

#[test]
fn control_dependencies_order_devices() {
    for table in [["cpu", "cpu"], ["cpu", "sim:coherent"]] {
        let log = Arc::<Mutex<Vec<&'static str>>>::default();
        let says = |begin: &'static str, end: &'static str, millis: u64| {
            let log = Arc::clone(&log);
            native(begin, N, move |x, y| {
                log.lock().unwrap().push(begin);
                std::thread::sleep(Duration::from_millis(millis));
                y.copy_from_slice(x[0]);
                log.lock().unwrap().push(end);
            })
        };
        let mut g = GraphBuilder::new("ordered");
        let x = g.input("x", DType::F32, [N.into()]);
        let a = g.node("late", says("late begins", "late ends", 0), &[Some(x)], 1);
        let b = g.node("early", says("early begins", "early ends", 30), &[Some(x)], 1);
        g.control_dep(a.0, b.0);
        g.output("a", a.1[0]);
        g.output("b", b.1[0]);
        let graph = g.build().unwrap();
        let on: Vec<u32> = graph.nodes().iter().map(|n| u32::from(n.name == "early")).collect();
        let contexts = open_all(&table);
        let session = session(placed(graph, &on), &contexts);
        let memory = region(&numbers(N, 1));
        let mut binding = session.bind().input("x", Memory::region(&memory)).build().unwrap();
        binding.run().unwrap();
        assert_eq!(*log.lock().unwrap(), ["early begins", "early ends", "late begins", "late ends"]);
        check_messages(&contexts);
    }
}

/// On one device a barrier keeps apart what touches nothing in common.
#[test]
fn control_dependencies_are_barriers_on_one_device() {
    let plan = |ordered: bool| {
        let mut g = GraphBuilder::new("ordered");
        let x = g.input("x", DType::F32, [N.into()]);
        let a = g.node("a", abs(), &[Some(x)], 1);
        let b = g.node("b", op("Neg"), &[Some(x)], 1);
        if ordered {
            g.control_dep(b.0, a.0);
        }
        g.output("a", a.1[0]);
        g.output("b", b.1[0]);
        let contexts = open_all(&["vulkan"]);
        let session = session(g.build().unwrap(), &contexts);
        let plan = session.plan(&[info(&[N])]).unwrap();
        let mut session = session;
        session.set_input("x", &crate::common::tensor(&[N], &numbers(N, 1))).unwrap();
        session.run().unwrap();
        check_messages(&contexts);
        plan
    };
    let barriers = |ordered: bool| -> Vec<bool> {
        plan(ordered).segments[0].commands.iter().map(|c| c.barrier.is_some()).collect()
    };
    assert_eq!((barriers(false), barriers(true)), (vec![false, false], vec![false, true]));
}

/// One device reads an input, slowly, whose memory is another device's output.
#[test]
fn a_device_does_not_write_what_another_still_reads() {
    for table in [["cpu", "cpu"], ["cpu", "sim:coherent"], ["cpu", "vulkan"]] {
        let mut g = GraphBuilder::new("again");
        let x = g.input("x", DType::F32, [N.into()]);
        let z = g.input("z", DType::F32, [N.into()]);
        let slow = native("slow", N, |x, y| {
            std::thread::sleep(Duration::from_millis(30));
            y.copy_from_slice(x[0]);
        });
        let a = g.op(slow, &[x]);
        let b = g.op(op("Neg"), &[z]);
        g.output("a", a);
        g.output("b", b);
        let contexts = open_all(&table);
        let session = session(placed(g.build().unwrap(), &[0, 1]), &contexts);
        let (x, z, a) = (region(&numbers(N, 1)), region(&numbers(N, 2)), region(&vec![0.0; N]));
        let mut binding = session
            .bind()
            .input("x", Memory::region(&x))
            .input("z", Memory::region(&z))
            .output("a", Memory::region(&a))
            .output("b", Memory::region(&x))
            .build()
            .unwrap();
        binding.run().unwrap();
        assert_eq!(floats(&a), numbers(N, 1), "{table:?}");
        let want: Vec<f32> = numbers(N, 2).iter().map(|z| -z).collect();
        assert_eq!(floats(&x), want, "{table:?}");
        check_messages(&contexts);
    }
}

/// Memory between nodes is given to others only when no device uses it any more.
#[test]
fn intermediate_memory_is_not_handed_on_while_another_device_reads_it() {
    for table in [["cpu", "cpu"], ["cpu", "sim:noncoherent"], ["cpu", "vulkan"]] {
        let mut g = GraphBuilder::new("chain");
        let x = g.input("x", DType::F32, [N.into()]);
        let mut slow_results = Vec::new();
        let mut fast = x;
        for _ in 0..5 {
            // Each result goes to the slow device and to the fast one, which hurries on.
            fast = g.op(op("Neg"), &[fast]);
            let slow = native("slow", N, |x, y| {
                std::thread::sleep(Duration::from_millis(4));
                y.iter_mut().zip(x[0]).for_each(|(y, x)| *y = x + 1.0);
            });
            slow_results.push(g.op(slow, &[fast]));
        }
        let sum = slow_results.into_iter().reduce(|a, b| g.op(onepool::ops::add(), &[a, b])).unwrap();
        let y = g.op(onepool::ops::add(), &[sum, fast]);
        g.output("y", y);
        let graph = g.build().unwrap();
        let on: Vec<u32> = graph.nodes().iter().map(|n| u32::from(n.op.name() != "CustomKernel")).collect();
        let contexts = open_all(&table);
        let session = session(placed(graph, &on), &contexts);
        let (x, y) = (region(&numbers(N, 1)), region(&vec![0.0; N]));
        let mut binding =
            session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build().unwrap();
        for _ in 0..3 {
            binding.run().unwrap();
            // -x + x - x + x - x + 5, and once more -x.
            let want: Vec<f32> = numbers(N, 1).iter().map(|x| 5.0 - 2.0 * x).collect();
            assert_eq!(floats(&y), want, "{table:?}");
        }
        check_messages(&contexts);
    }
}

/// Two bindings in flight: the second one's first device writes what the first one's last device still writes.
#[test]
fn bindings_in_flight_are_ordered_across_devices() {
    for table in [["cpu", "cpu"], ["sim:coherent", "cpu"], ["vulkan", "cpu"], ["alone", "cpu"]] {
        let mut g = GraphBuilder::new("pipeline");
        let x = g.input("x", DType::F32, [N.into()]);
        let a = g.op(op("Neg"), &[x]);
        let slow = native("slow", N, |x, y| {
            std::thread::sleep(Duration::from_millis(30));
            y.iter_mut().zip(x[0]).for_each(|(y, x)| *y = 3.0 * x);
        });
        let y = g.op(slow, &[a]);
        g.output("a", a);
        g.output("y", y);
        let contexts = open_all(&table);
        let session = session(placed(g.build().unwrap(), &[0, 1]), &contexts);
        let inputs = [region(&numbers(N, 1)), region(&numbers(N, 2))];
        let results = [0, 1, 2].map(|_| region(&vec![0.0; N]));
        let bind = |i: usize| {
            let bind = session.bind().input("x", Memory::region(&inputs[i]));
            bind.output("a", Memory::region(&results[i])).output("y", Memory::region(&results[i + 1]))
        };
        let (mut one, mut two) = (bind(0).build().unwrap(), bind(1).build().unwrap());
        for _ in 0..3 {
            let first = one.submit().unwrap();
            let second = two.submit().unwrap();
            second.wait().unwrap();
            first.wait().unwrap();
            let of = |seed: usize, by: f32| numbers(N, seed).iter().map(|x| by * x).collect::<Vec<f32>>();
            assert_eq!(floats(&results[0]), of(1, -1.0), "{table:?}");
            assert_eq!(floats(&results[1]), of(2, -1.0), "{table:?}");
            assert_eq!(floats(&results[2]), of(2, -3.0), "{table:?}");
        }
        // A run that no one waits for is over before the next one of its binding begins.
        drop(one.submit().unwrap());
        one.run().unwrap();
        check_messages(&contexts);
    }
}
