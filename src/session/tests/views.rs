//! Inputs whose elements lie at strides.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, Tensor};
use crate::memory::host::HostRegion;
use crate::ops;
use crate::ops::movement::StridedView;
use crate::session::tests::{check_messages, desc};
use crate::session::{Memory, Session};

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
    let pixels: Vec<f32> = (0..64 * 32).map(|i| i as f32).collect();
    let region = HostRegion::from_bytes(bytemuck::cast_slice(&pixels)).unwrap().into_shared();
    // Rows of another pitch, elements in steps, rows from the last one up.
    for (dims, offset) in
        [([(64, 32), (8, 1)], 5), ([(30, 64), (8, 3)], 0), ([(64, -32), (8, 1)], 0), ([(16, 1), (8, 32)], 0)]
    {
        let view = StridedView::new(&dims).unwrap();
        let expected: Vec<f32> = (0..dims[0].0)
            .flat_map(|row| (0..8).map(move |column| (row as i64, column)))
            .map(|(row, column)| row * dims[0].1 + column * dims[1].1 + offset)
            .map(|at| pixels[usize::try_from(at + view.first_element() as i64).unwrap()] + 0.5)
            .collect();
        for device in ["cpu", "sim", "vulkan"] {
            let whole = Session::builder().graph(sum()).context_desc(desc()).device(device);
            let whole = whole.copy_threshold(0).strict(device == "sim").build().unwrap();
            let session = whole.with_views(vec![("x".to_owned(), view.clone())]).unwrap();
            assert!(Arc::ptr_eq(whole.params(), session.params()));
            let start = offset as u64 * 4;
            let range =
                crate::memory::range::ByteRange::new(start, start + view.memory_elements() as u64 * 4);
            let mut binding =
                session.bind().input("x", Memory::region_range(&region, range)).build().unwrap();
            binding.run().unwrap();
            let mut got = vec![0f32; expected.len()];
            binding.read_output("y", bytemuck::cast_slice_mut(&mut got)).unwrap();
            assert_eq!(got, expected, "{device} {dims:?}");
            check_messages(&session);
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
}
