//! Lists that are known only in the run, as two tensors: the contiguous elements, row by row, and a table with the
//! rank and sizes of each.

use super::piece::Cuts;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::NativeKernel;
use crate::limits;
use crate::ops::movement::region::{self, Block, Piece as Move, Source, signed_strides};
use crate::ops::{Cost, Fact, Lowering, OpCx, OpError, Operator};
use crate::shape::{Shape, normalize_axis};

/// Columns of a table: the rank, then the sizes; those beyond the rank are 0.
pub(crate) const COLUMNS: usize = 1 + limits::MAX_RANK;
/// The most elements of a list.
pub const MAX_ELEMENTS: usize = 1 << 16;

/// Which of the two tensors of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The contiguous elements.
    Values,
    /// Their ranks and sizes: int64 `[length, COLUMNS]`.
    Table,
}

/// The row of a table for an element of this shape.
pub(crate) fn row(shape: &Shape) -> [i64; COLUMNS] {
    let mut row = [0; COLUMNS];
    let numbers = std::iter::once(shape.rank()).chain(shape.iter().copied());
    row.iter_mut().zip(numbers).for_each(|(to, n)| *to = n as i64);
    row
}

/// The shapes that a table holds, `None` where it is no table.
fn shapes(table: &[i64]) -> Option<Vec<Shape>> {
    let one = |row: &[i64]| {
        let (rank, sizes) = row.split_first()?;
        let sizes = sizes.get(..usize::try_from(*rank).ok()?)?;
        let sizes = sizes.iter().map(|n| usize::try_from(*n).ok()).collect::<Option<Vec<usize>>>()?;
        Shape::new(sizes).ok()
    };
    let rows = table.chunks_exact(COLUMNS);
    if rows.remainder().is_empty() { rows.map(one).collect() } else { None }
}

/// The two tensors of a list, as a session takes a sequence: the contiguous elements, and the table of
/// their ranks and sizes. `dtype` is the elements' type where there are none.
///
/// # Errors
/// [`OpError::DType`] where elements are of several types; [`OpError::Unsupported`] for more than [`MAX_ELEMENTS`].
pub fn pack(items: &[Tensor], dtype: DType) -> Result<[Tensor; 2], OpError> {
    let dtype = items.first().map_or(dtype, Tensor::dtype);
    if let Some((input, other)) = items.iter().enumerate().find(|(_, t)| t.dtype() != dtype) {
        return Err(OpError::DType { input, got: other.dtype(), expected: dtype.to_string() });
    }
    let shapes: Vec<Shape> = items.iter().map(|t| t.shape().clone()).collect();
    let bytes: Vec<u8> = items.iter().flat_map(Tensor::bytes).copied().collect();
    let infos = [info(Part::Values, dtype, &shapes)?, info(Part::Table, dtype, &shapes)?];
    let table: Vec<i64> = shapes.iter().flat_map(row).collect();
    let [values, rows] = infos.map(|mut info| info.swap_remove(0));
    Ok([Tensor::from_bytes(values, &bytes)?, Tensor::from_bytes(rows, bytemuck::cast_slice(&table))?])
}

/// The elements of a list from its two tensors ([`pack`]).
///
/// # Errors
/// [`OpError::Value`], [`OpError::InputShape`] where they are not those of a list.
pub fn unpack(values: &Tensor, table: &Tensor) -> Result<Vec<Tensor>, OpError> {
    let facts = [values, table].map(|t| Some(Fact::known(t.clone())));
    let shapes = list(&OpCx::for_infer(facts.into(), 0))?;
    let (mut rest, mut items) = (values.bytes(), Vec::with_capacity(shapes.len()));
    for shape in shapes {
        let info = TensorInfo::new(values.dtype(), shape);
        let (own, after) = rest.split_at_checked(info.bytes()).unwrap_or((rest, &[]));
        items.push(Tensor::from_bytes(info, own)?);
        rest = after;
    }
    Ok(items)
}

/// The shapes of the list whose table is input `input`.
fn listed(cx: &OpCx, input: usize) -> Result<Vec<Shape>, OpError> {
    let &[count, COLUMNS] = cx.shape(input)?.dims() else {
        return Err(cx.shape_error(input, format!("a table of {COLUMNS} columns")));
    };
    few(count)?;
    let bad = || OpError::Value { input, problem: "a row is no rank with as many sizes".to_owned() };
    shapes(&cx.need_i64s(input)?).ok_or_else(bad)
}

/// As [`listed`], of inputs 0 and 1, which must fit one another.
fn list(cx: &OpCx) -> Result<Vec<Shape>, OpError> {
    let shapes = listed(cx, 1)?;
    let &[len] = cx.shape(0)?.dims() else { return Err(cx.shape_error(0, "one axis")) };
    let sum = shapes.iter().try_fold(0usize, |sum, s| sum.checked_add(s.elements()));
    if sum == Some(len) {
        return Ok(shapes);
    }
    let problem = format!("the elements that it lists do not add up to the {len} numbers there are");
    Err(OpError::Value { input: 1, problem })
}

fn few(count: usize) -> Result<(), OpError> {
    if count <= MAX_ELEMENTS {
        return Ok(());
    }
    Err(OpError::unsupported(format!("a list of {count} elements, more than {MAX_ELEMENTS}")))
}

/// The position in input `input`, of a list of `len` elements and `more` places after them.
pub(super) fn place(cx: &OpCx, input: usize, len: usize, more: usize) -> Result<usize, OpError> {
    let value = cx.need_i64s(input)?;
    let &[at] = value.as_slice() else { return Err(cx.shape_error(input, "one position")) };
    let from_start = if at < 0 { at.saturating_add(len as i64) } else { at };
    let found = usize::try_from(from_start).ok().filter(|p| *p < len.saturating_add(more));
    found.ok_or_else(|| {
        let problem = format!("position {at} is not in a sequence of {len} elements");
        OpError::Value { input, problem }
    })
}

/// Elements of the first `count` shapes.
fn numbers(shapes: &[Shape], count: usize) -> usize {
    shapes.iter().take(count).map(Shape::elements).sum()
}

/// `n` numbers in one piece.
fn straight(input: usize, n: usize, src_offset: usize, dst_offset: usize) -> Option<Move> {
    let block = Block { dims: vec![n], src_strides: vec![1], dst_strides: vec![1], src_offset, dst_offset };
    block.piece(Source::Input(input), 0)
}

/// Type and shape of a part of the list of elements of these shapes.
fn info(part: Part, dtype: DType, shapes: &[Shape]) -> Result<Vec<TensorInfo>, OpError> {
    few(shapes.len())?;
    let sum = shapes.iter().fold(0usize, |sum, s| sum.saturating_add(s.elements()));
    Ok(vec![match part {
        Part::Values => TensorInfo::new(dtype, Shape::new([sum])?),
        Part::Table => TensorInfo::new(DType::I64, Shape::new([shapes.len(), COLUMNS])?),
    }])
}

/// The native function that writes a table.
fn write(name: &'static str, shapes: &[Shape]) -> NativeKernel {
    let table: Vec<i64> = shapes.iter().flat_map(row).collect();
    NativeKernel::new(name, move |args| {
        let output = args.len().saturating_sub(1);
        for (to, from) in args.take_write::<i64>(output)?.iter_mut().zip(&table) {
            *to = *from;
        }
        Ok(())
    })
}

/// What operators that make a part of a list share: `shapes` are those of its elements, `pieces` moves them.
macro_rules! part {
    () => {
        fn shape_only(&self) -> bool {
            self.part == Part::Table
        }

        fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
            match self.part {
                Part::Values => region::cpu(self.name(), cx, self.pieces(cx)?),
                Part::Table => Ok(write(self.name(), &self.shapes(cx)?)),
            }
        }

        fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
            match self.part {
                Part::Values => region::gpu(lower, cx, &self.pieces(cx)?),
                Part::Table => Err(OpError::unsupported("tables of lists are made on the host")),
            }
        }

        fn cost(&self, cx: &OpCx) -> Cost {
            Cost { flops: 0, bytes: 2 * cx.outputs().iter().map(|o| o.bytes() as u64).sum::<u64>() }
        }
    };
}

/// A list of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pack {
    /// Which part of it.
    pub part: Part,
    /// The elements' type, where there are none.
    pub dtype: DType,
}

impl Pack {
    fn shapes(&self, cx: &OpCx) -> Result<Vec<Shape>, OpError> {
        (0..cx.input_count()).map(|i| cx.shape(i).cloned()).collect()
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Move>, OpError> {
        let shapes = self.shapes(cx)?;
        let at = |i| numbers(&shapes, i);
        Ok(shapes.iter().enumerate().filter_map(|(i, s)| straight(i, s.elements(), 0, at(i))).collect())
    }
}

impl Operator for Pack {
    fn name(&self) -> &'static str {
        "SequenceConstruct"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(0..=usize::MAX, 1..=1)?;
        let dtype = if cx.has(0) { cx.dtype(0)? } else { self.dtype };
        (0..cx.input_count()).try_for_each(|i| cx.expect_dtype(i, dtype))?;
        info(self.part, dtype, &self.shapes(cx)?)
    }

    part!();
}

/// A list of the pieces of input 0, which is cut along an axis as input 1 says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackCut {
    /// Which part of it.
    pub part: Part,
    /// The axis, negative ones counted from the end.
    pub axis: i64,
    /// Whether pieces keep it; else they have one element.
    pub keep_dims: bool,
}

impl PackCut {
    /// The axis, and where each piece begins and how long it is.
    fn cuts(&self, cx: &OpCx) -> Result<(usize, Vec<(usize, usize)>), OpError> {
        let shape = cx.shape(0)?;
        let axis = shape.axis(self.axis)?;
        let cuts = Cuts::of(cx, axis)?;
        let (len, count) = (shape[axis], cuts.count(shape[axis]));
        few(count)?;
        let mut start = 0;
        let pieces = (0..count).map(|at| {
            let piece = (start, cuts.size(at, len));
            start += piece.1;
            piece
        });
        Ok((axis, pieces.collect()))
    }

    fn shapes(&self, cx: &OpCx) -> Result<Vec<Shape>, OpError> {
        let (axis, cuts) = self.cuts(cx)?;
        let shape = cx.shape(0)?;
        let one = |(_, size): &(usize, usize)| {
            let mut dims = shape.to_vec();
            if self.keep_dims || cx.has(1) {
                dims[axis] = *size;
            } else {
                dims.remove(axis);
            }
            Ok(Shape::new(dims)?)
        };
        cuts.iter().map(one).collect()
    }

    /// Pieces of one size that follow one another are one block.
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Move>, OpError> {
        let (axis, cuts) = self.cuts(cx)?;
        let shape = cx.shape(0)?;
        let strides = signed_strides(shape);
        let mut moves = Vec::new();
        let mut done = 0;
        for run in cuts.chunk_by(|a, b| a.1 == b.1) {
            let Some(&(start, size)) = run.first() else { continue };
            let mut dims = vec![run.len()];
            dims.extend(shape.iter());
            dims[axis + 1] = size;
            let mut src_strides = vec![strides[axis] * size as isize];
            src_strides.extend(&strides);
            let run = Shape::new(dims.clone())?;
            let block = Block {
                dims,
                src_strides,
                dst_strides: signed_strides(&run),
                src_offset: start * strides[axis].unsigned_abs(),
                dst_offset: done,
            };
            done += run.elements();
            moves.extend(block.piece(Source::Input(0), 0));
        }
        Ok(moves)
    }
}

impl Operator for PackCut {
    fn name(&self) -> &'static str {
        "SplitToSequence"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=2, 1..=1)?;
        info(self.part, cx.dtype(0)?, &self.shapes(cx)?)
    }

    part!();
}

/// A list with an element more or less. Inputs: the elements (left out for the table), the table, the element that
/// is inserted (left out where one is taken away), the position; without it the end, or the last element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splice {
    /// Which part of it.
    pub part: Part,
}

impl Splice {
    /// The shapes before, and the position.
    fn resolve(&self, cx: &OpCx) -> Result<(Vec<Shape>, usize), OpError> {
        let shapes = if self.part == Part::Table { listed(cx, 1)? } else { list(cx)? };
        let inserts = usize::from(cx.has(2));
        let at = match cx.has(3) {
            true => place(cx, 3, shapes.len(), inserts)?,
            false if inserts == 1 => shapes.len(),
            false => shapes.len().checked_sub(1).ok_or_else(|| {
                let problem = "there is nothing to take from an empty sequence".to_owned();
                OpError::Value { input: 1, problem }
            })?,
        };
        Ok((shapes, at))
    }

    fn shapes(&self, cx: &OpCx) -> Result<Vec<Shape>, OpError> {
        let (mut shapes, at) = self.resolve(cx)?;
        if cx.has(2) {
            shapes.insert(at, cx.shape(2)?.clone());
        } else {
            shapes.remove(at);
        }
        Ok(shapes)
    }

    fn pieces(&self, cx: &OpCx) -> Result<Vec<Move>, OpError> {
        let (shapes, at) = self.resolve(cx)?;
        let (before, all) = (numbers(&shapes, at), numbers(&shapes, shapes.len()));
        let new = if cx.has(2) { cx.shape(2)?.elements() } else { 0 };
        let after = if cx.has(2) { before } else { numbers(&shapes, at + 1) };
        let moves = [
            straight(0, before, 0, 0),
            straight(2, new, 0, before),
            straight(0, all - after, after, before + new),
        ];
        Ok(moves.into_iter().flatten().collect())
    }
}

impl Operator for Splice {
    fn name(&self) -> &'static str {
        "SequenceInsert"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1, 3]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=4, 1..=1)?;
        let mut dtype = cx.input_opt(0).map_or(DType::I64, |i| i.dtype);
        if self.part == Part::Values && cx.has(2) {
            // An empty list may have been made before it was known of what.
            if cx.input(0)?.elements() == 0 {
                dtype = cx.dtype(2)?;
            }
            cx.expect_dtype(2, dtype)?;
        }
        info(self.part, dtype, &self.shapes(cx)?)
    }

    part!();
}

/// An element of a list. Inputs: the elements, the table, the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpack;

impl Unpack {
    fn pieces(self, cx: &OpCx) -> Result<Vec<Move>, OpError> {
        let shapes = list(cx)?;
        let at = place(cx, 2, shapes.len(), 0)?;
        Ok(straight(0, shapes[at].elements(), numbers(&shapes, at), 0).into_iter().collect())
    }
}

impl Operator for Unpack {
    fn name(&self) -> &'static str {
        "SequenceAt"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1, 2]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        let mut shapes = list(cx)?;
        let at = place(cx, 2, shapes.len(), 0)?;
        Ok(vec![TensorInfo::new(cx.dtype(0)?, shapes.swap_remove(at))])
    }

    crate::ops::movement::moves!();
}

/// The elements of a list joined along an axis. Inputs: the elements, the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinList {
    /// The axis, negative ones counted from the end of the result's.
    pub axis: i64,
    /// Whether it is a new one.
    pub new_axis: bool,
}

impl JoinList {
    /// The elements' shapes, the axis and the result's sizes.
    fn resolve(&self, cx: &OpCx) -> Result<(Vec<Shape>, usize, Vec<usize>), OpError> {
        let shapes = list(cx)?;
        let bad = |problem: String| OpError::Value { input: 1, problem };
        let first = shapes.first().ok_or_else(|| bad("there is nothing to join in an empty list".into()))?;
        let mut dims = first.to_vec();
        let axis = normalize_axis(self.axis, dims.len() + usize::from(self.new_axis))?;
        let fits = |s: &Shape| {
            s.rank() == first.rank()
                && s.iter()
                    .zip(first.iter())
                    .enumerate()
                    .all(|(d, (a, b))| a == b || (!self.new_axis && d == axis))
        };
        if let Some(other) = shapes.iter().find(|s| !fits(s)) {
            return Err(bad(format!("{first} and {other} cannot be joined along axis {axis}")));
        }
        if self.new_axis {
            dims.insert(axis, shapes.len());
        } else {
            dims[axis] = shapes.iter().fold(0usize, |sum, s| sum.saturating_add(s[axis]));
        }
        Ok((shapes, axis, dims))
    }

    /// Elements of one shape that follow one another are one block.
    fn pieces(&self, cx: &OpCx) -> Result<Vec<Move>, OpError> {
        let (shapes, axis, dims) = self.resolve(cx)?;
        let strides = signed_strides(&Shape::new(dims)?);
        let step = strides[axis];
        let mut rest = strides;
        if self.new_axis {
            rest.remove(axis);
        }
        let (mut moves, mut read, mut at) = (Vec::new(), 0, 0);
        for run in shapes.chunk_by(|a, b| a == b) {
            let Some(one) = run.first() else { continue };
            let size = if self.new_axis { 1 } else { one[axis] };
            let mut block = Block {
                dims: vec![run.len()],
                src_strides: vec![one.elements() as isize],
                dst_strides: vec![step * size as isize],
                src_offset: read,
                dst_offset: at * step.unsigned_abs(),
            };
            block.dims.extend(one.iter());
            block.src_strides.extend(signed_strides(one));
            block.dst_strides.extend(&rest);
            moves.extend(block.piece(Source::Input(0), 0));
            read += run.len() * one.elements();
            at += run.len() * size;
        }
        Ok(moves)
    }
}

impl Operator for JoinList {
    fn name(&self) -> &'static str {
        "ConcatFromSequence"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(2..=2, 1..=1)?;
        Ok(vec![TensorInfo::new(cx.dtype(0)?, Shape::new(self.resolve(cx)?.2)?)])
    }

    crate::ops::movement::moves!();
}
