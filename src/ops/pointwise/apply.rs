//! Loops of native functions over dense and broadcast operands.

use crate::kernel::{KernelError, NativeArgs};
use crate::ops::par;
use crate::ops::real::check_len;
use crate::ops::strided::Nest;

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
    let (sa, sb) = (nest.inner_stride(0), nest.inner_stride(1));
    par::parts(y, |first, part| {
        nest.runs(first..first + part.len(), |start, len, at| {
            let out = &mut part[start - first..start - first + len];
            let (a, b) = (from(a, at[0]), from(b, at[1]));
            match (sa, sb) {
                (1, 1) => {
                    for ((y, a), b) in out.iter_mut().zip(a).zip(b) {
                        *y = f(*a, *b);
                    }
                }
                (1, 0) => {
                    let Some(&b) = b.first() else { return };
                    out.iter_mut().zip(a).for_each(|(y, a)| *y = f(*a, b));
                }
                (0, 1) => {
                    let Some(&a) = a.first() else { return };
                    out.iter_mut().zip(b).for_each(|(y, b)| *y = f(a, *b));
                }
                _ => {
                    let (Some(&a), Some(&b)) = (a.first(), b.first()) else { return };
                    out.iter_mut().for_each(|y| *y = f(a, b));
                }
            }
        });
    });
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
                    (0, 1, _) => out.iter_mut().zip(x).for_each(|(y, x)| *y = *x),
                    (0, _, Some(&x)) => out.fill(x),
                    (_, 1, _) => out.iter_mut().zip(x).for_each(|(y, x)| *y = f(*y, *x)),
                    (_, _, Some(&x)) => out.iter_mut().for_each(|y| *y = f(*y, x)),
                }
            }
            out.iter_mut().for_each(|y| *y = done(*y));
        });
    });
}

/// `y[i] = condition[..] != 0 ? a[..] : b[..]`, operands 0, 1 and 2 of `nest`.
pub(super) fn select<T: Copy + Send + Sync>(nest: &Nest, condition: &[u8], a: &[T], b: &[T], y: &mut [T]) {
    let step = |k| usize::from(nest.inner_stride(k) != 0);
    let (sc, sa, sb) = (step(0), step(1), step(2));
    par::parts(y, |first, part| {
        nest.runs(first..first + part.len(), |start, len, at| {
            let out = &mut part[start - first..start - first + len];
            let (c, a, b) = (from(condition, at[0]), from(a, at[1]), from(b, at[2]));
            if (sc, sa, sb) == (1, 1, 1) {
                for (((y, c), a), b) in out.iter_mut().zip(c).zip(a).zip(b) {
                    *y = if *c != 0 { *a } else { *b };
                }
                return;
            }
            for (i, y) in out.iter_mut().enumerate() {
                let (Some(c), Some(a), Some(b)) = (c.get(i * sc), a.get(i * sa), b.get(i * sb)) else {
                    return;
                };
                *y = if *c != 0 { *a } else { *b };
            }
        });
    });
}
