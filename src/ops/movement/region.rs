//! Strided blocks of elements moved from inputs to outputs: what every data movement lowers to.

use super::across::Across;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::codes::strided_copy::MAX_RANK;
use crate::kernel::codes::transpose_tile::{MAX_OUTER, TILE};
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, KernelId, NativeArgs, NativeKernel, Unit, VECTOR_BYTES};
use crate::ops::strided::Nest;
use crate::ops::word::{signed_word, word};
use crate::ops::{Lowering, OpCx, OpError, Operand, PackKey, Passed, PassedBytes, par};
use crate::shape::Shape;

/// The shortest side of a block that is moved by tiles.
const LEAST_SIDE: usize = 8;

/// Below this many elements one thread is faster.
const PARALLEL_ELEMENTS: usize = 1 << 15;

/// Where a block's elements come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// An input of the operator.
    Input(usize),
    /// One element, repeated.
    Element(Tensor),
}

/// One block: `dst[dst_offset + ..] = src[src_offset + ..]`, in elements.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    source: Source,
    output: usize,
    /// Operand 0 is the source, operand 1 the destination.
    nest: Nest,
    src_offset: usize,
    dst_offset: usize,
}

/// A block under construction: sizes with strides on both sides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// Elements along each dimension.
    pub(crate) dims: Vec<usize>,
    /// Source strides in elements; negative ones walk backwards, 0 repeats.
    pub(crate) src_strides: Vec<isize>,
    /// Destination strides in elements.
    pub(crate) dst_strides: Vec<isize>,
    /// The first element read.
    pub(crate) src_offset: usize,
    /// The first element written.
    pub(crate) dst_offset: usize,
}

impl Block {
    /// The block as a piece from `source` to `output`; `None` where it is empty.
    pub(crate) fn piece(self, source: Source, output: usize) -> Option<Piece> {
        let nest = Nest::new(&self.dims, &[self.src_strides, self.dst_strides]);
        let (src_offset, dst_offset) = (self.src_offset, self.dst_offset);
        (nest.elements() > 0).then_some(Piece { source, output, nest, src_offset, dst_offset })
    }
}

/// Row-major strides of `shape` as signed numbers.
pub(crate) fn signed_strides(shape: &Shape) -> Vec<isize> {
    shape.strides().into_iter().map(|s| s as isize).collect()
}

/// A piece that fills all of output `output` with one element.
pub(crate) fn fill(value: Tensor, output: usize, shape: &Shape) -> Option<Piece> {
    let block = Block {
        dims: shape.to_vec(),
        src_strides: vec![0; shape.rank()],
        dst_strides: signed_strides(shape),
        ..Block::default()
    };
    block.piece(Source::Element(value), output)
}

/// The native function that moves `pieces`, in order.
pub(crate) fn cpu(name: &'static str, cx: &OpCx, pieces: Vec<Piece>) -> Result<NativeKernel, OpError> {
    let inputs = cx.input_count();
    let sizes: Vec<usize> = cx.outputs().iter().map(|o| o.dtype.bytes()).collect();
    Ok(NativeKernel::new(name, move |args| {
        for (o, bytes) in sizes.iter().enumerate() {
            let own: Vec<&Piece> = pieces.iter().filter(|p| p.output == o).collect();
            match bytes {
                1 => move_all::<u8>(args, &own, inputs + o)?,
                2 => move_all::<u16>(args, &own, inputs + o)?,
                4 => move_all::<u32>(args, &own, inputs + o)?,
                _ => move_all::<u64>(args, &own, inputs + o)?,
            }
        }
        Ok(())
    }))
}

fn move_all<T: bytemuck::Pod + Send + Sync>(
    args: &mut NativeArgs<'_, '_>,
    pieces: &[&Piece],
    output: usize,
) -> Result<(), KernelError> {
    if !args.has(output) {
        return Ok(());
    }
    let dst = args.take_write::<T>(output)?;
    for piece in pieces {
        match &piece.source {
            Source::Input(i) => move_piece(piece, args.read::<T>(*i)?, dst),
            Source::Element(t) => move_piece(piece, bytemuck::cast_slice(t.bytes()), dst),
        }
    }
    Ok(())
}

fn move_piece<T: bytemuck::Pod + Send + Sync>(piece: &Piece, src: &[T], dst: &mut [T]) {
    let n = piece.nest.elements();
    let dense = piece
        .nest
        .strides(1)
        .iter()
        .rev()
        .zip(piece.nest.sizes().iter().rev())
        .try_fold(1isize, |run, (stride, size)| (*stride == run).then_some(run * *size as isize));
    let end = piece.dst_offset.saturating_add(n);
    let out = dst.get_mut(piece.dst_offset..end);
    if let (Some(across), Some(out)) = (Across::of(&piece.nest), out) {
        return par::groups(out, across.columns, n, |first, rows| {
            across.write(src, piece.src_offset, first, rows);
        });
    }
    match dst.get_mut(piece.dst_offset..end) {
        // Elements are visited in the order they lie in the destination, so it can be cut anywhere.
        Some(out) if dense.is_some() && n >= PARALLEL_ELEMENTS => {
            let chunk = n.div_ceil(par::threads() * 4).max(PARALLEL_ELEMENTS / 4);
            par::share(out.chunks_mut(chunk).enumerate(), |(c, out)| {
                let first = c * chunk;
                piece.nest.runs(first..first + out.len(), |start, len, at| {
                    let to = start - first;
                    row(piece, src, out.get_mut(to..to + len).unwrap_or(&mut []), 1, at[0], len);
                });
            });
        }
        _ => {
            let step = piece.nest.inner_stride(1);
            piece.nest.runs(0..n, |_, len, at| {
                let to = piece.dst_offset.wrapping_add_signed(at[1]);
                row(piece, src, dst.get_mut(to..).unwrap_or(&mut []), step, at[0], len);
            });
        }
    }
}

/// One row of the innermost dimension. `step` is not negative: destinations are walked forwards.
fn row<T: Copy>(piece: &Piece, src: &[T], dst: &mut [T], step: isize, src_at: isize, len: usize) {
    let from = piece.src_offset.wrapping_add_signed(src_at);
    match (piece.nest.inner_stride(0), step) {
        (1, 1) => {
            if let (Some(d), Some(s)) = (dst.get_mut(..len), src.get(from..from.saturating_add(len))) {
                d.copy_from_slice(s);
            }
        }
        (0, 1) => {
            if let (Some(d), Some(s)) = (dst.get_mut(..len), src.get(from)) {
                d.fill(*s);
            }
        }
        (stride @ 2.., 1) => {
            let reach = stride.unsigned_abs().saturating_mul(len - 1).saturating_add(1);
            if let (Some(d), Some(s)) = (dst.get_mut(..len), src.get(from..from.saturating_add(reach))) {
                match stride {
                    2 => every::<T, 2>(s, d),
                    3 => every::<T, 3>(s, d),
                    4 => every::<T, 4>(s, d),
                    _ => every_of(s, stride.unsigned_abs(), d),
                }
            }
        }
        (stride, step) => {
            for i in 0..len {
                let s = src.get(from.wrapping_add_signed(stride * i as isize));
                let d = dst.get_mut(step.unsigned_abs() * i);
                if let (Some(s), Some(d)) = (s, d) {
                    *d = *s;
                }
            }
        }
    }
}

/// Every `S`th element.
fn every<T: Copy, const S: usize>(src: &[T], dst: &mut [T]) {
    every_of(src, S, dst);
}

#[inline(always)]
fn every_of<T: Copy>(src: &[T], stride: usize, dst: &mut [T]) {
    dst.iter_mut().zip(src.chunks(stride)).for_each(|(d, s)| *d = s[0]);
}

/// The pieces that are all of an input or of an output and contiguous in both, where no element is written twice. Steps are
/// known by their operands, so no other piece is of the same input and output.
pub(crate) fn passed(cx: &OpCx, pieces: &[Piece]) -> Passed {
    let written = |o: usize| -> usize {
        pieces.iter().filter(|p| p.output == o).map(|p| p.nest.elements()).fold(0, usize::saturating_add)
    };
    let run = |piece: &Piece| {
        let (Source::Input(input), output) = (&piece.source, piece.output) else { return None };
        let (x, y) = (cx.input_opt(*input)?, cx.outputs().get(output)?);
        let n = piece.nest.elements();
        let contiguous = piece.nest.is_dense(0) && piece.nest.is_dense(1);
        let offset = if n == x.elements() { piece.dst_offset } else { piece.src_offset };
        let whole = n == x.elements() || n == y.elements();
        let same = |p: &&Piece| p.output == output && matches!(p.source, Source::Input(i) if i == *input);
        let alone = pieces.iter().filter(same).count() == 1;
        let offset = offset.checked_mul(y.dtype.bytes())? as u64;
        (contiguous && whole && alone && written(output) == y.elements()).then_some(PassedBytes {
            input: *input,
            output,
            offset,
        })
    };
    let bytes: Vec<PassedBytes> = pieces.iter().filter_map(run).collect();
    Passed { complete: bytes.len() == pieces.len(), bytes }
}

/// Emits one dispatch for each piece. Pieces write different elements of their outputs and need no order
/// among one another, but for a background of one element, on which the others are laid.
pub(crate) fn gpu(lower: &mut Lowering<'_>, cx: &OpCx, pieces: &[Piece]) -> Result<(), OpError> {
    let mut background = true;
    for piece in pieces {
        let info = cx.output(piece.output)?;
        let source = match &piece.source {
            Source::Input(i) => Operand::Input(*i),
            Source::Element(t) => element(lower, t),
        };
        dispatch(lower, piece, source, Operand::Output(piece.output), info.dtype.bytes())?;
        if !background {
            lower.no_barrier();
        }
        background = matches!(piece.source, Source::Element(_));
    }
    Ok(())
}

/// A constant of one element, repeated to fill the widest kernel's element.
fn element(lower: &mut Lowering<'_>, t: &Tensor) -> Operand {
    let key = PackKey { layout: "element x16", numbers: [0; 4] };
    lower.packed(t, key, VECTOR_BYTES, |t, out| {
        out.chunks_exact_mut(t.bytes().len().max(1)).for_each(|o| o.copy_from_slice(t.bytes()));
        Ok(())
    })
}

/// Emits zeros for all of output `output`.
pub(crate) fn zeros(lower: &mut Lowering<'_>, cx: &OpCx, output: usize) -> Result<(), OpError> {
    let info = cx.output(output)?;
    // A fill writes whole words; another tensor may follow a partial word.
    if info.bytes().is_multiple_of(4) {
        lower.fill(Operand::Output(output), 0);
        return Ok(());
    }
    let zero = TensorInfo::new(info.dtype, Shape::scalar());
    let zero = Tensor::from_bytes(zero, &vec![0; info.dtype.bytes()])?;
    let Some(piece) = fill(zero.clone(), output, &info.shape) else { return Ok(()) };
    let source = element(lower, &zero);
    dispatch(lower, &piece, source, Operand::Output(output), info.dtype.bytes())
}

/// Emits the copy of a block of elements of `bytes` between any operands.
pub(crate) fn copy_block(
    lower: &mut Lowering<'_>,
    block: Block,
    from: Operand,
    to: Operand,
    bytes: usize,
) -> Result<(), OpError> {
    // The piece's own operands do not matter here.
    match block.piece(Source::Input(0), 0) {
        None => Ok(()),
        Some(piece) => dispatch(lower, &piece, from, to, bytes),
    }
}

fn dispatch(
    lower: &mut Lowering<'_>,
    piece: &Piece,
    source: Operand,
    to: Operand,
    mut bytes: usize,
) -> Result<(), OpError> {
    let mut dims = piece.nest.sizes().to_vec();
    let mut src = piece.nest.strides(0).to_vec();
    let mut dst = piece.nest.strides(1).to_vec();
    let (mut src_offset, mut dst_offset) = (piece.src_offset, piece.dst_offset);
    // Wider elements where both sides allow it: fewer, larger accesses.
    while bytes < VECTOR_BYTES {
        let last = dims.len() - 1;
        let even = |v: &[isize]| v[..last].iter().all(|s| s % 2 == 0);
        let repeats = src[last] == 0 && matches!(piece.source, Source::Element(_));
        let inner = dst[last] == 1 && (src[last] == 1 || repeats);
        if !(inner
            && dims[last].is_multiple_of(2)
            && even(&src)
            && even(&dst)
            && src_offset % 2 == 0
            && dst_offset % 2 == 0)
        {
            break;
        }
        dims[last] /= 2;
        src[..last].iter_mut().chain(&mut dst[..last]).for_each(|s| *s /= 2);
        src_offset /= 2;
        dst_offset /= 2;
        bytes *= 2;
    }
    let block = Block { dims, src_strides: src, dst_strides: dst, src_offset, dst_offset };
    if dispatch_tiles(lower, &block, [source, to], bytes)? {
        return Ok(());
    }
    let Block { dims, src_strides: src, dst_strides: dst, src_offset, dst_offset } = block;
    if dims.len() > MAX_RANK {
        return Err(OpError::unsupported(format!(
            "a block of {} dimensions, the kernel walks {MAX_RANK}",
            dims.len()
        )));
    }
    let kernel: KernelId = variants::StridedCopy { t: Unit::Bytes(bytes) }.id()?;
    let n: usize = dims.iter().product();
    let mut p = params::StridedCopy {
        dims: [1; MAX_RANK],
        src_strides: [0; MAX_RANK],
        dst_strides: [0; MAX_RANK],
        n: word(n)?,
        src_offset: signed_word(src_offset as isize)?,
        dst_offset: signed_word(dst_offset as isize)?,
    };
    for d in 0..dims.len() {
        p.dims[d] = word(dims[d])?;
        p.src_strides[d] = signed_word(src[d])?;
        p.dst_strides[d] = signed_word(dst[d])?;
    }
    let rank = [(spec::strided_copy::RANK, dims.len() as u32)];
    lower.dispatch_1d(kernel, &rank, &[source, to], &p, n)?;
    if dst.last() == Some(&1) {
        lower.writes_in_order(bytes);
    }
    Ok(())
}

/// Emits a transpose by tiles, where that is what `block` is and the device gains by it.
fn dispatch_tiles(
    lower: &mut Lowering<'_>,
    block: &Block,
    args: [Operand; 2],
    bytes: usize,
) -> Result<bool, OpError> {
    let Block { dims, src_strides: src, dst_strides: dst, .. } = block;
    let contiguous = |strides: &[isize]| (0..dims.len()).find(|d| strides[*d] == 1 && dims[*d] >= LEAST_SIDE);
    let (Some(across), Some(down)) = (contiguous(src), contiguous(dst)) else { return Ok(false) };
    let outer: Vec<usize> = (0..dims.len()).filter(|d| *d != across && *d != down).collect();
    let is_transpose = across != down && outer.len() <= MAX_OUTER && bytes <= 8;
    if !is_transpose || !lower.grouped(TILE * TILE) {
        return Ok(false);
    }
    // Elements of 16 bits in pairs, where these are whole words on both sides.
    let even = |v: &[isize], contiguous: usize| {
        let mut others = v.iter().enumerate().filter(|(d, _)| *d != contiguous);
        others.all(|(_, stride)| stride % 2 == 0) && dims[contiguous].is_multiple_of(2)
    };
    let offsets = [block.src_offset, block.dst_offset];
    let pairs = bytes == 2 && even(src, across) && even(dst, down) && offsets.iter().all(|at| at % 2 == 0);
    let (each, unit) = if pairs { (2, 4) } else { (1, bytes) };
    let (kernel, side) = (variants::TransposeTile { t: Unit::Bytes(unit), pairs }.id()?, TILE * each);
    let step = |stride: isize| signed_word(stride / each as isize);
    let tiles: usize = dims[across].div_ceil(side) * dims[down].div_ceil(side);
    let n = tiles * outer.iter().map(|d| dims[*d]).product::<usize>();
    let mut p = params::TransposeTile {
        outer: [1; MAX_OUTER],
        outer_src: [0; MAX_OUTER],
        outer_dst: [0; MAX_OUTER],
        across: word(dims[across])?,
        down: word(dims[down])?,
        src_step: step(src[down])?,
        dst_step: step(dst[across])?,
        src_offset: step(block.src_offset as isize)?,
        dst_offset: step(block.dst_offset as isize)?,
        n: word(n)?,
    };
    for (at, d) in outer.into_iter().enumerate() {
        p.outer[at] = word(dims[d])?;
        p.outer_src[at] = step(src[d])?;
        p.outer_dst[at] = step(dst[d])?;
    }
    lower.dispatch_rows(kernel, &[], &args, &p, n, true)?;
    // A tile's line of words is one of the bus.
    lower.writes_in_order(2 * bytes);
    Ok(true)
}
