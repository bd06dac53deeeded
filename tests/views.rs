//! Inputs whose elements lie at strides.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::memory::range::ByteRange;
use onepool::ops::movement::StridedView;
use onepool::registry::Registry;
use onepool::{DType, Graph, GraphBuilder, HostRegion, Memory, Session, Tensor, ops};

/// y = x + w, of `rows` x 8 elements.
fn sum() -> Graph {
    let mut g = GraphBuilder::new("sum");
    let x = g.input("x", DType::F32, ["rows".into(), 8.into()]);
    let w = g.constant("w", Tensor::new([8], &[0.5f32; 8]).unwrap());
    let y = g.op(ops::add(), &[x, w]);
    g.output("y", y);
    g.build().unwrap()
}

#[test]
fn elements_are_read_where_they_lie() {
    let pixels: Vec<f32> = (0..64 * 64).map(|i| i as f32).collect();
    let region = HostRegion::from_bytes(bytemuck::cast_slice(&pixels)).unwrap().into_shared();
    let desc = ContextDesc { validation: true, ..ContextDesc::default() };
    let required = std::env::var("REQUIRE_BACKENDS").unwrap_or_default();
    for device in ["cpu", "sim", "sim:discrete", "vulkan", "opencl"] {
        let context = match Registry::with_defaults().open(device, &desc) {
            Ok(context) => context,
            Err(error) => {
                assert!(!required.contains(device), "{device}: {error}");
                continue;
            }
        };
        let whole = Session::builder().graph(sum()).context(context.clone()).copy_threshold(0);
        let whole = whole.strict(device == "sim").build().unwrap();
        // Rows of another pitch, elements in steps, rows from the last one up, columns, rows that overlap, one row again
        // and again.
        for (dims, offset) in [
            ([(63, 64), (8, 1)], 5),
            ([(30, 64), (8, 3)], 0),
            ([(64, -64), (8, -2)], 1),
            ([(16, 1), (8, 64)], 0),
            ([(40, 1), (8, 1)], 7),
            ([(9, 0), (8, 1)], 3),
        ] {
            let view = StridedView::new(&dims).unwrap();
            let first = (offset + view.first_element()) as i64;
            let rows = (0..dims[0].0 as i64).flat_map(|row| (0..8).map(move |column| (row, column)));
            let at = rows.map(|(row, column)| first + row * dims[0].1 + column * dims[1].1);
            let expected: Vec<f32> = at.map(|at| pixels[usize::try_from(at).unwrap()] + 0.5).collect();
            let session = whole.with_views(vec![("x".to_owned(), view.clone())]).unwrap();
            assert!(Arc::ptr_eq(whole.params(), session.params()));
            let bytes = ByteRange::new(offset as u64 * 4, (offset + view.memory_elements()) as u64 * 4);
            let mut binding =
                session.bind().input("x", Memory::region_range(&region, bytes)).build().unwrap();
            binding.run().unwrap();
            let mut got = vec![0f32; expected.len()];
            binding.read_output("y", bytemuck::cast_slice_mut(&mut got)).unwrap();
            assert_eq!(got, expected, "{device} {dims:?}");
            assert_eq!(context.validation_messages(), Vec::<String>::new());
        }
    }
}

#[test]
fn views_that_do_not_fit_are_errors() {
    let session = Session::builder().graph(sum()).device("cpu").build().unwrap();
    let said = |name: &str, dims: &[(usize, i64)]| {
        let views = vec![(name.to_owned(), StridedView::new(dims).unwrap())];
        session.with_views(views).unwrap_err().to_string()
    };
    assert!(said("z", &[(4, 8), (8, 1)]).contains("\"z\""));
    assert!(said("x", &[(4, 8), (9, 1)]).contains("\"x\""));
    assert!(said("x", &[(4, 8)]).contains("\"x\""));
    for stride in [i64::MAX, i64::MIN, i64::MAX / 2] {
        let said = StridedView::new(&[(4, stride), (2, 1)]).unwrap_err().to_string();
        assert!(said.contains("too many elements"), "{said}");
    }
}

#[test]
fn the_memory_reaches_from_the_lowest_to_the_highest_element() {
    let of = |dims: &[(usize, i64)]| {
        let view = StridedView::new(dims).unwrap();
        (view.memory_elements(), view.first_element())
    };
    assert_eq!(of(&[(3, 6), (4, 1)]), (16, 0));
    assert_eq!(of(&[(3, -6), (4, 1)]), (16, 12));
    assert_eq!(of(&[(3, -4), (4, -1)]), (12, 11));
    assert_eq!(of(&[(5, 1), (3, 1)]), (7, 0));
    assert_eq!(of(&[(5, 0), (3, 0)]), (1, 0));
    assert_eq!(of(&[(0, 9), (3, 9)]), (0, 0));
    assert_eq!(of(&[(1, i64::MIN), (3, 1)]), (3, 0));
    assert_eq!(of(&[]), (1, 0));
}
