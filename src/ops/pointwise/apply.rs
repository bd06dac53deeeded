//! Loops of native functions over dense and broadcast operands.

use crate::kernel::{KernelError, NativeArgs};
use crate::ops::par;
use crate::ops::real::check_len;
use crate::ops::strided::Nest;
use crate::simd::wide;

/// Input `index` of `len` elements.
pub(super) fn input<'a, T: bytemuck::Pod>(
    args: &NativeArgs<'a, '_>,
    index: usize,
    len: usize,
) -> Result<&'a [T], KernelError> {
    let x = args.read::<T>(index)?;
    check_len(index, x.len(), len)?;
    Ok(x)
}

/// Output argument `index` of `len` elements.
pub(super) fn output<'a, T: bytemuck::Pod>(
    args: &mut NativeArgs<'a, '_>,
    index: usize,
    len: usize,
) -> Result<&'a mut [T], KernelError> {
    let y = args.take_write::<T>(index)?;
    check_len(index, y.len(), len)?;
    Ok(y)
}

/// `y[i] = f(x[i])`
pub(super) fn map<X: Copy + Sync, Y: Send>(x: &[X], y: &mut [Y], f: impl Fn(X) -> Y + Send + Sync) {
    par::parts(y, |start, part| {
        for (y, x) in part.iter_mut().zip(x.get(start..).unwrap_or(&[])) {
            *y = f(*x);
        }
    });
}

/// One row of an operand: its elements from `offset` on.
fn from<T>(x: &[T], offset: isize) -> &[T] {
    usize::try_from(offset).ok().and_then(|o| x.get(o..)).unwrap_or(&[])
}

/// `y[i] = f(a[..], b[..])` where operands 0 and 1 of `nest` say which elements.
pub(super) fn zip<A: Copy + Sync, B: Copy + Sync, Y: Send>(
    nest: &Nest,
    a: &[A],
    b: &[B],
    y: &mut [Y],
    f: impl Fn(A, B) -> Y + Send + Sync,
) {
    let steps = nest.inner_strides();
    par::parts(y, |first, part| {
        nest.runs(first..first + part.len(), |start, len, at| {
            let out = &mut part[start - first..start - first + len];
            zip_row(steps, from(a, at[0]), from(b, at[1]), out, &f);
        });
    });
}

/// As [`zip`], by the widest vectors of the CPU: for functions of many instructions.
pub(super) fn zip_wide<T: Copy + Sync + Send>(
    nest: &Nest,
    a: &[T],
    b: &[T],
    y: &mut [T],
    f: impl Fn(T, T) -> T + Send + Sync,
) {
    let steps = nest.inner_strides();
    par::parts(y, |first, part| {
        nest.runs(first..first + part.len(), |start, len, at| {
            let out = &mut part[start - first..start - first + len];
            let (a, b) = (from(a, at[0]), from(b, at[1]));
            wide(
                #[inline(always)]
                || zip_row(steps, a, b, out, &f),
            );
        });
    });
}

/// One row, along which the operands move by `steps`. In loops without closures the iterators are compiled once for all `f`.
#[inline(always)]
fn zip_row<A: Copy, B: Copy, Y>(steps: [isize; 2], a: &[A], b: &[B], out: &mut [Y], f: impl Fn(A, B) -> Y) {
    match steps {
        [1, 1] => {
            for ((y, a), b) in out.iter_mut().zip(a).zip(b) {
                *y = f(*a, *b);
            }
        }
        [1, 0] => {
            let Some(&b) = b.first() else { return };
            for (y, a) in out.iter_mut().zip(a) {
                *y = f(*a, b);
            }
        }
        [0, 1] => {
            let Some(&a) = a.first() else { return };
            for (y, b) in out.iter_mut().zip(b) {
                *y = f(a, *b);
            }
        }
        _ => {
            let (Some(&a), Some(&b)) = (a.first(), b.first()) else { return };
            for y in out {
                *y = f(a, b);
            }
        }
    }
}

/// `y[i] = done(f(f(x0, x1), x2) ...)` over any number of broadcast operands.
pub(super) fn fold<T: Copy + Send + Sync>(
    nest: &Nest,
    inputs: &[&[T]],
    y: &mut [T],
    f: impl Fn(T, T) -> T + Send + Sync,
    done: impl Fn(T) -> T + Send + Sync,
) {
    par::parts(y, |first, part| {
        nest.runs(first..first + part.len(), |start, len, at| {
            let out = &mut part[start - first..start - first + len];
            for (k, x) in inputs.iter().enumerate() {
                let x = from(x, at[k]);
                match (k, nest.inner_stride(k), x.first()) {
                    (_, _, None) => {}
                    (0, 1, _) => {
                        for (y, x) in out.iter_mut().zip(x) {
                            *y = *x;
                        }
                    }
                    (0, _, Some(&x)) => out.fill(x),
                    (_, 1, _) => {
                        for (y, x) in out.iter_mut().zip(x) {
                            *y = f(*y, *x);
                        }
                    }
                    (_, _, Some(&x)) => {
                        for y in out.iter_mut() {
                            *y = f(*y, x);
                        }
                    }
                }
            }
            for y in out {
                *y = done(*y);
            }
        });
    });
}

/// `y[i] = condition[..] != 0 ? a[..] : b[..]`, operands 0, 1 and 2 of `nest`.
pub(super) fn select<T: Copy + Send + Sync>(nest: &Nest, condition: &[u8], a: &[T], b: &[T], y: &mut [T]) {
    let [of_condition, of_a, of_b] = nest.inner_strides().map(|step| step != 0);
    par::parts(y, |first, part| {
        nest.runs(first..first + part.len(), |start, len, at| {
            let out = &mut part[start - first..start - first + len];
            let (c, a, b) = (from(condition, at[0]), from(a, at[1]), from(b, at[2]));
            let (Some(&one_c), Some(&one_a), Some(&one_b)) = (c.first(), a.first(), b.first()) else {
                return;
            };
            wide(
                #[inline(always)]
                || {
                    let pick = |c: u8, a: T, b: T| if c != 0 { a } else { b };
                    match (of_condition, of_a, of_b) {
                        (true, true, true) => {
                            let each = out.iter_mut().zip(c).zip(a).zip(b);
                            each.for_each(|(((y, c), a), b)| *y = pick(*c, *a, *b));
                        }
                        (true, true, false) => {
                            out.iter_mut().zip(c).zip(a).for_each(|((y, c), a)| *y = pick(*c, *a, one_b));
                        }
                        (true, false, true) => {
                            out.iter_mut().zip(c).zip(b).for_each(|((y, c), b)| *y = pick(*c, one_a, *b));
                        }
                        (true, false, false) => {
                            out.iter_mut().zip(c).for_each(|(y, c)| *y = pick(*c, one_a, one_b));
                        }
                        (false, ..) => {
                            let (x, moves) = if one_c != 0 { (a, of_a) } else { (b, of_b) };
                            let one = if one_c != 0 { one_a } else { one_b };
                            if moves {
                                out.iter_mut().zip(x).for_each(|(y, x)| *y = *x);
                            } else {
                                out.fill(one);
                            }
                        }
                    }
                },
            );
        });
    });
}
