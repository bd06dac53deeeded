//! Loops of native functions cut into parts for the threads of a team.

use std::convert::Infallible;

#[cfg(test)]
pub(crate) use onepool_hal::team::of_threads;
pub(crate) use onepool_hal::team::{share, threads, try_share};

/// Elements of one part.
const PART: usize = 16 << 10;
/// Below this many elements one thread is faster.
const PARALLEL: usize = 2 * PART;

/// Groups of rows for each thread, so that a slow one does less.
const GROUPS: usize = 4;
/// Up to this much work of rows one thread is faster. Tests cut small ones, too.
const LITTLE: usize = if cfg!(test) { 32 } else { PARALLEL };
/// Work of a group of rows at least.
const LEAST: usize = if cfg!(test) { 4 } else { PART / 4 };

/// Calls `f(start, part)` for consecutive parts of `out`, in parallel where it is long.
pub(crate) fn parts<T: Send>(out: &mut [T], f: impl Fn(usize, &mut [T]) + Send + Sync) {
    // One copy of the loop's code for each element type is enough.
    parts_of(out, &f);
}

fn parts_of<T: Send>(out: &mut [T], f: &(dyn Fn(usize, &mut [T]) + Send + Sync)) {
    if out.len() <= PARALLEL {
        f(0, out);
    } else {
        share(out.chunks_mut(PART).enumerate(), |(i, part)| f(i * PART, part));
    }
}

/// As [`parts`], of a function that may fail.
pub(crate) fn try_parts<T: Send, E: Send>(
    out: &mut [T],
    f: impl Fn(usize, &mut [T]) -> Result<(), E> + Send + Sync,
) -> Result<(), E> {
    if out.len() <= PARALLEL {
        return f(0, out);
    }
    try_share(out.chunks_mut(PART).enumerate(), |(i, part)| f(i * PART, part))
}

/// How many consecutive rows out of `rows` are one task, where all of them are `work`: elements that are read or written,
/// or operations that take as long. Where that is little, or there is one thread, all of them are.
pub(crate) fn group(rows: usize, work: usize) -> usize {
    let threads = threads();
    let groups = if threads > 1 && work > LITTLE { (GROUPS * threads).min(work / LEAST) } else { 1 };
    (rows / groups).max(1)
}

/// Calls `f(first, group)` for groups of consecutive rows of `len` elements of `out`, which begin with row `first`, in
/// parallel where all of them are much `work` (see [`group`]). The last row may be shorter; where `len` is 0 there are
/// none.
pub(crate) fn groups<T: Send>(out: &mut [T], len: usize, work: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let Ok(()) = try_groups_of::<T, Infallible>(out, len, work, &|first, group| {
        f(first, group);
        Ok(())
    });
}

/// Called by pointer, so that the loop's code is compiled once for each element type.
fn try_groups_of<T: Send, E: Send>(
    out: &mut [T],
    len: usize,
    work: usize,
    f: &(dyn Fn(usize, &mut [T]) -> Result<(), E> + Sync),
) -> Result<(), E> {
    if len == 0 {
        return Ok(());
    }
    let many = group(out.len().div_ceil(len), work);
    try_share(out.chunks_mut(many * len).enumerate(), |(i, group)| f(i * many, group))
}

/// Calls `f(i, row)` for the rows of `len` elements of `out`, as [`groups`] does for groups of them.
pub(crate) fn rows<T: Send>(out: &mut [T], len: usize, work: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    groups(out, len, work, |first, group| {
        group.chunks_mut(len).enumerate().for_each(|(i, row)| f(first + i, row));
    });
}

/// As [`rows`], of a function that may fail: rows that no one has begun yet may be left then.
pub(crate) fn try_rows<T: Send, E: Send>(
    out: &mut [T],
    len: usize,
    work: usize,
    f: impl Fn(usize, &mut [T]) -> Result<(), E> + Sync,
) -> Result<(), E> {
    try_groups_of(out, len, work, &|first, group| {
        group.chunks_mut(len).enumerate().try_for_each(|(i, row)| f(first + i, row))
    })
}

/// As [`rows`], for two slices with the lengths of their rows: `f(i, a, b)` has row `i` of each.
pub(crate) fn rows_of_two<A: Send, B: Send>(
    (a, a_len): (&mut [A], usize),
    (b, b_len): (&mut [B], usize),
    work: usize,
    f: impl Fn(usize, &mut [A], &mut [B]) + Sync,
) {
    groups_of_two((a, a_len), (b, b_len), work, &|first, a, b| {
        let rows = a.chunks_mut(a_len).zip(b.chunks_mut(b_len));
        rows.enumerate().for_each(|(i, (a, b))| f(first + i, a, b));
    });
}

fn groups_of_two<A: Send, B: Send>(
    (a, a_len): (&mut [A], usize),
    (b, b_len): (&mut [B], usize),
    work: usize,
    f: &(dyn Fn(usize, &mut [A], &mut [B]) + Sync),
) {
    if a_len == 0 || b_len == 0 {
        return;
    }
    let many = group(a.len().div_ceil(a_len).min(b.len().div_ceil(b_len)), work);
    let groups = a.chunks_mut(many * a_len).zip(b.chunks_mut(many * b_len));
    share(groups.enumerate(), |(i, (a, b))| f(i * many, a, b));
}

/// Writes `f(i)` to each element `i` of `out`, in parallel where all of them are much `work` (see [`group`]).
pub(crate) fn each<T: Send>(out: &mut [T], work: usize, f: impl Fn(usize) -> T + Sync) {
    groups(out, 1, work, |first, group| {
        group.iter_mut().enumerate().for_each(|(i, out)| *out = f(first + i));
    });
}

#[cfg(test)]
mod tests {
    use super::of_threads;

    /// Runs `test` on teams of one and of several threads.
    fn with_teams(test: impl Fn()) {
        [1, 4].into_iter().for_each(|threads| of_threads(threads, &test));
    }

    /// Elements, length of a row: none, one row, one element, whole rows, a last row that is shorter.
    const SIZES: [(usize, usize); 9] =
        [(0, 0), (0, 3), (5, 0), (7, 7), (7, 9), (7, usize::MAX), (1, 1), (640, 1), (1003, 10)];
    /// Little, just enough for several threads, much.
    const WORK: [usize; 4] = [0, super::LITTLE, super::LITTLE + 1, usize::MAX];

    /// What is written to element `i` of a row of `len`, of which all are counted from 1 on.
    fn number(row: usize, len: usize, i: usize) -> usize {
        row * len + i + 1
    }

    fn check(out: &[usize], len: usize) {
        assert!(out.iter().enumerate().all(|(i, v)| *v == if len == 0 { 0 } else { i + 1 }), "rows of {len}");
    }

    #[test]
    fn every_row_is_taken_once_at_its_place() {
        with_teams(|| {
            for ((n, len), work) in SIZES.into_iter().flat_map(|size| WORK.map(|work| (size, work))) {
                let add = |row: usize, out: &mut [usize]| {
                    assert!(row * len + out.len() <= n && out.len() <= len);
                    out.iter_mut().enumerate().for_each(|(i, v)| *v += number(row, len, i));
                };
                let mut out = vec![0; n];
                super::rows(&mut out, len, work, add);
                check(&out, len);
                let mut out = vec![0; n];
                let done: Result<(), ()> = super::try_rows(&mut out, len, work, |row, out| {
                    add(row, out);
                    Ok(())
                });
                assert_eq!(done, Ok(()));
                check(&out, len);
                let mut out = vec![0; n];
                super::groups(&mut out, len, work, |first, group| {
                    group.iter_mut().enumerate().for_each(|(i, v)| *v += number(first, len, i));
                });
                check(&out, len);
                let mut out = vec![0; n];
                super::each(&mut out, work, |i| i + 1);
                check(&out, 1);
            }
        });
    }

    #[test]
    fn rows_of_two_slices_go_together() {
        with_teams(|| {
            for ((n, len), work) in SIZES.into_iter().flat_map(|size| WORK.map(|work| (size, work))) {
                let rows = n.div_ceil(len.max(1));
                let (mut a, mut b) = (vec![0; n], vec![0; 2 * rows]);
                super::rows_of_two((&mut a, len), (&mut b, 2), work, |row, a, b| {
                    a.iter_mut().enumerate().for_each(|(i, v)| *v += number(row, len, i));
                    b.iter_mut().enumerate().for_each(|(i, v)| *v += number(row, 2, i));
                });
                check(&a, len);
                check(&b, if len == 0 { 0 } else { 2 });
            }
            // Rows that only one of them has are left.
            let (mut a, mut b) = (vec![0; 100], vec![0; 30]);
            let add = |_: usize, a: &mut [i32], b: &mut [i32]| {
                a.iter_mut().chain(b).for_each(|v| *v += 1);
            };
            super::rows_of_two((&mut a, 2), (&mut b, 1), usize::MAX, add);
            assert!(a.iter().enumerate().all(|(i, v)| *v == i32::from(i < 60)) && b.iter().all(|v| *v == 1));
            super::rows_of_two((&mut a, 2), (&mut b, 0), usize::MAX, |_, _, _| panic!("there are no rows"));
        });
    }

    #[test]
    fn an_error_of_a_row_comes_back() {
        with_teams(|| {
            for work in WORK {
                let mut out = vec![0; 1000];
                let fail = |row: usize, _: &mut [i32]| if row == 77 { Err(row) } else { Ok(()) };
                assert_eq!(super::try_rows(&mut out, 10, work, fail), Err(77));
                assert_eq!(super::try_rows(&mut out[..9], 10, work, |row, _| Err(row)), Err(0));
                assert_eq!(super::try_rows(&mut out, 0, work, |row, _| Err(row)), Ok(()));
                assert_eq!(super::try_rows(&mut out[..0], 3, work, |row, _| Err(row)), Ok(()));
            }
        });
    }

    #[test]
    fn little_work_and_one_thread_are_one_group() {
        let group = |threads, rows, work| of_threads(threads, || super::group(rows, work));
        assert_eq!(group(1, 1000, usize::MAX), 1000);
        assert_eq!(group(4, 1000, super::LITTLE), 1000);
        assert_eq!(group(4, 1000, super::LITTLE + 1), 1000 / (super::LITTLE / super::LEAST));
        assert_eq!(group(4, 1000, usize::MAX), 1000 / 16);
        assert_eq!([0, 1, 15, 16, 31].map(|rows| group(4, rows, usize::MAX)), [1; 5]);
    }

    #[test]
    fn every_element_is_in_one_part_at_its_place() {
        for n in [0, 1, super::PARALLEL, super::PARALLEL + 1, 5 * super::PART + 3] {
            let mut out = vec![0usize; n];
            super::parts(&mut out, |start, part| {
                part.iter_mut().enumerate().for_each(|(i, v)| *v += start + i + 1);
            });
            assert!(out.iter().enumerate().all(|(i, v)| *v == i + 1), "{n} elements");
        }
    }
}
