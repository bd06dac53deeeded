//! Blocks that are contiguous in the destination along the last dimension and in the source along the one before:
//! transposes of matrices, and planes that become channels of pixels.

use bytemuck::Pod;

use crate::ops::strided::Nest;

/// Rows and columns that are moved together, so that lines of the cache are read and written whole.
const SIDE: usize = 16;
/// The fewest rows for which that pays.
const LEAST_ROWS: usize = 8;

/// Such a block: matrices of `rows` by `columns` elements.
#[derive(Clone, Copy)]
pub(super) struct Across<'a> {
    /// Sizes of the other dimensions and their strides in the source.
    outer: (&'a [usize], &'a [isize]),
    rows: usize,
    pub(super) columns: usize,
    /// Stride of columns in the source.
    stride: usize,
}

impl<'a> Across<'a> {
    /// The block of a nest whose operand 0 is the source and operand 1 the destination; `None` where it is none.
    pub(super) fn of(nest: &'a Nest) -> Option<Across<'a>> {
        let ([sizes @ .., rows, columns], [strides @ .., 1, stride]) = (nest.sizes(), nest.strides(0)) else {
            return None;
        };
        let stride = usize::try_from(*stride).ok().filter(|stride| *stride > 1)?;
        let across = Across { outer: (sizes, strides), rows: *rows, columns: *columns, stride };
        (*rows >= LEAST_ROWS && nest.is_dense(1)).then_some(across)
    }

    /// Writes whole rows from row `first` of all matrices on. The source begins with element `offset` of `src`.
    pub(super) fn write<T: Pod>(&self, src: &[T], offset: usize, first: usize, to: &mut [T]) {
        let (mut row, mut rest) = (first, to);
        while rest.len() >= self.columns {
            let at = row % self.rows;
            let n = (self.rows - at).min(rest.len() / self.columns);
            let (now, later) = rest.split_at_mut(n * self.columns);
            let from = offset.wrapping_add_signed(self.matrix(row / self.rows)).wrapping_add(at);
            if let Some(src) = src.get(from..).filter(|src| (self.columns - 1) * self.stride + n <= src.len())
            {
                match self.columns {
                    2 => few::<T, 2>(src, self.stride, now),
                    3 => few::<T, 3>(src, self.stride, now),
                    4 => few::<T, 4>(src, self.stride, now),
                    columns => tiles(src, self.stride, now, columns),
                }
            }
            (row, rest) = (row + n, later);
        }
    }

    /// Where matrix `i` begins in the source.
    fn matrix(&self, mut i: usize) -> isize {
        let mut at = 0;
        for (size, stride) in self.outer.0.iter().zip(self.outer.1).rev() {
            at += stride * (i % size) as isize;
            i /= size;
        }
        at
    }
}

/// Rows of `C` elements.
fn few<T: Pod, const C: usize>(src: &[T], stride: usize, to: &mut [T]) {
    let rows = to.len() / C;
    let columns: [&[T]; C] = std::array::from_fn(|c| &src[c * stride..][..rows]);
    for (i, row) in to.as_chunks_mut::<C>().0.iter_mut().enumerate() {
        for c in 0..C {
            row[c] = columns[c][i];
        }
    }
}

/// Rows of any length, a square at a time.
fn tiles<T: Pod>(src: &[T], stride: usize, to: &mut [T], columns: usize) {
    let rows = to.len() / columns;
    for r in (0..rows).step_by(SIDE) {
        for c in (0..columns).step_by(SIDE) {
            let (height, width) = (SIDE.min(rows - r), SIDE.min(columns - c));
            let mut tile = [[T::zeroed(); SIDE]; SIDE];
            for j in 0..width {
                let line = &src[(c + j) * stride + r..][..height];
                match line.first_chunk::<SIDE>() {
                    Some(line) => (0..SIDE).for_each(|i| tile[i][j] = line[i]),
                    None => line.iter().zip(&mut tile).for_each(|(x, row)| row[j] = *x),
                }
            }
            for (i, row) in tile.iter().take(height).enumerate() {
                to[(r + i) * columns + c..][..width].copy_from_slice(&row[..width]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of a tensor and the order in which the block walks its dimensions.
    const BLOCKS: [(&[usize], &[usize]); 9] = [
        (&[3, 8], &[1, 0]),
        (&[2, 1000], &[1, 0]),
        (&[3, 77], &[1, 0]),
        (&[4, 19], &[1, 0]),
        (&[5, 16], &[1, 0]),
        (&[33, 47], &[1, 0]),
        (&[64, 64], &[1, 0]),
        (&[2, 3, 5, 18], &[0, 1, 3, 2]),
        (&[2, 3, 17, 9], &[1, 0, 3, 2]),
    ];

    #[test]
    fn rows_are_those_of_the_transposed_tensor() {
        for (sizes, order) in BLOCKS {
            let n: usize = sizes.iter().product();
            let strides: Vec<isize> =
                (0..sizes.len()).map(|d| sizes[d + 1..].iter().product::<usize>() as isize).collect();
            let dims: Vec<usize> = order.iter().map(|d| sizes[*d]).collect();
            let from: Vec<isize> = order.iter().map(|d| strides[*d]).collect();
            let to: Vec<isize> =
                (0..dims.len()).map(|d| dims[d + 1..].iter().product::<usize>() as isize).collect();
            let nest = Nest::new(&dims, &[from, to]);
            let across = Across::of(&nest).unwrap();
            let src: Vec<u16> = (0..n as u16 + 5).collect();
            let mut want = Vec::new();
            nest.runs(0..n, |_, len, at| {
                want.extend((0..len).map(|i| src[5 + (at[0] + nest.inner_stride(0) * i as isize) as usize]));
            });
            let rows = n / across.columns;
            for cut in [0, 1, rows / 2, rows - 1] {
                let mut got = vec![0; n];
                let (before, after) = got.split_at_mut(cut * across.columns);
                across.write(&src, 5, 0, before);
                across.write(&src, 5, cut, after);
                assert_eq!(got, want, "{sizes:?} by {order:?}, cut at {cut}");
            }
            // A source that is too short is not read.
            across.write(&src[..n], 5, 0, &mut vec![0; n]);
        }
    }

    #[test]
    fn other_blocks_are_none() {
        let none = |sizes: &[usize], src: &[isize], dst: &[isize]| {
            Across::of(&Nest::new(sizes, &[src.to_vec(), dst.to_vec()])).is_none()
        };
        assert!(none(&[40], &[2], &[1]));
        assert!(none(&[40, 30], &[30, 1], &[60, 2]));
        assert!(none(&[4, 30], &[1, 4], &[30, 1]));
        assert!(none(&[40, 30], &[1, 40], &[60, 2]));
        assert!(none(&[40, 30], &[1, -40], &[30, 1]));
        assert!(none(&[40, 30], &[2, 80], &[30, 1]));
    }
}
