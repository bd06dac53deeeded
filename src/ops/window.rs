//! Sliding windows of convolutions and pools: attributes, checks and index arithmetic.

use std::ops::Range;

use super::{AttrReader, OpError};
use crate::kernel::params;

/// The most a kernel size, stride, dilation or padding may be: products of two of them fit `i64`.
const MAX_STEP: i64 = i32::MAX as i64;

/// How padding is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoPad {
    /// As the attribute `pads` says.
    #[default]
    NotSet,
    /// None.
    Valid,
    /// So that the output is `ceil(input / stride)`; an odd element goes to the end.
    SameUpper,
    /// So that the output is `ceil(input / stride)`; an odd element goes to the beginning.
    SameLower,
}

/// The window attributes of one operator; empty lists take their defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowAttrs {
    /// Sizes of the window; empty where the weights tell them.
    pub kernel: Vec<i64>,
    /// Steps of the window; 1 where empty.
    pub strides: Vec<i64>,
    /// Strides of neighbouring taps; 1 where empty.
    pub dilations: Vec<i64>,
    /// Elements added at all beginnings, then at all ends; 0 where empty, negative ones crop.
    pub pads: Vec<i64>,
    /// How padding is found.
    pub auto_pad: AutoPad,
    /// Whether a window that does not fit completely counts.
    pub ceil_mode: bool,
}

/// A window along one axis of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowAxis {
    /// Elements of the input.
    pub input: usize,
    /// Elements of the output.
    pub output: usize,
    /// Taps of the window.
    pub kernel: usize,
    /// Step of the window.
    pub stride: usize,
    /// Stride of neighbouring taps.
    pub dilation: usize,
    /// Elements added at the beginning and at the end.
    pub pads: [i64; 2],
}

impl WindowAttrs {
    /// Reads the attributes that convolutions and pools share.
    ///
    /// # Errors
    /// [`OpError::Attr`] for attributes of a wrong type.
    pub fn read(attrs: &AttrReader<'_>) -> Result<Self, OpError> {
        Ok(WindowAttrs {
            kernel: attrs.ints_opt("kernel_shape")?.unwrap_or_default(),
            strides: attrs.ints_opt("strides")?.unwrap_or_default(),
            dilations: attrs.ints_opt("dilations")?.unwrap_or_default(),
            pads: attrs.ints_opt("pads")?.unwrap_or_default(),
            auto_pad: attrs.choice(
                "auto_pad",
                AutoPad::NotSet,
                &[
                    ("NOTSET", AutoPad::NotSet),
                    ("", AutoPad::NotSet),
                    ("VALID", AutoPad::Valid),
                    ("SAME_UPPER", AutoPad::SameUpper),
                    ("SAME_LOWER", AutoPad::SameLower),
                ],
            )?,
            ceil_mode: attrs.flag("ceil_mode", false)?,
        })
    }

    /// The window along every axis of an input of the sizes `input`.
    ///
    /// # Errors
    /// [`OpError::Attr`] and [`OpError::Unsupported`], naming the attribute and the axis.
    pub fn axes(&self, input: &[usize], kernel: &[usize]) -> Result<Vec<WindowAxis>, OpError> {
        let rank = input.len();
        let pads = if self.auto_pad == AutoPad::NotSet { self.pads.as_slice() } else { &[] };
        let begins = pads.get(..rank).unwrap_or(&[]);
        let ends = pads.get(rank..).unwrap_or(&[]);
        if !pads.is_empty() && pads.len() != 2 * rank {
            return Err(bad("pads", format!("has {} elements, expected {}", pads.len(), 2 * rank)));
        }
        let axes: Vec<WindowAxis> = (0..rank)
            .map(|i| {
                let at = |list: &[i64], i: usize| list.get(i).copied().unwrap_or(0);
                WindowAxis {
                    input: input.get(i).copied().unwrap_or(1),
                    output: 0,
                    kernel: kernel.get(i).copied().unwrap_or(0),
                    stride: step("strides", &self.strides, rank, i)?,
                    dilation: step("dilations", &self.dilations, rank, i)?,
                    pads: [at(begins, i), at(ends, i)],
                }
                .resolve(i, self.auto_pad, self.ceil_mode)
            })
            .collect::<Result<_, _>>()?;
        check_padding(&axes)?;
        Ok(axes)
    }

    /// The window's sizes: the attribute, which must agree with `weights` where they are given.
    ///
    /// # Errors
    /// [`OpError::Attr`].
    pub fn kernel_sizes(&self, rank: usize, weights: Option<&[usize]>) -> Result<Vec<usize>, OpError> {
        if self.kernel.is_empty() {
            return weights.map(<[usize]>::to_vec).ok_or_else(|| bad("kernel_shape", "is missing".into()));
        }
        let sizes: Vec<usize> =
            (0..rank).map(|i| step("kernel_shape", &self.kernel, rank, i)).collect::<Result<_, _>>()?;
        match weights {
            Some(w) if w != sizes => {
                Err(bad("kernel_shape", format!("is {sizes:?}, but the weights have {w:?}")))
            }
            _ => Ok(sizes),
        }
    }
}

/// An error about attribute `name`.
/// Refuses padding that makes very many positions of few: nothing but the padding would be in their windows.
fn check_padding(axes: &[WindowAxis]) -> Result<(), OpError> {
    const FEW: u128 = 1 << 22;
    const MOST: u128 = 1024;
    let product = |size: fn(&WindowAxis) -> usize| {
        axes.iter().map(|a| size(a).max(1) as u128).try_fold(1u128, u128::checked_mul)
    };
    let (made, given) = (product(|a| a.output), product(|a| a.input.max(a.kernel)));
    match (made, given) {
        (Some(made), Some(given)) if made <= FEW || made / MOST <= given => Ok(()),
        (_, None) => Ok(()),
        (made, Some(given)) => {
            let made = made.map_or("too many".to_owned(), |n| n.to_string());
            let problem = format!("make {made} positions of {given}, expected at most {MOST} times as many");
            Err(bad("pads", problem))
        }
    }
}

pub(crate) fn bad(name: &str, problem: String) -> OpError {
    OpError::Attr(super::AttrError { name: name.to_owned(), problem })
}

/// Element `i` of an attribute of `rank` positive numbers, 1 where it is empty.
pub(crate) fn step(name: &str, list: &[i64], rank: usize, i: usize) -> Result<usize, OpError> {
    if list.is_empty() {
        return Ok(1);
    }
    if list.len() != rank {
        return Err(bad(name, format!("has {} elements, expected {rank}", list.len())));
    }
    match list.get(i).copied() {
        Some(v @ 1..=MAX_STEP) => Ok(v as usize),
        v => Err(bad(name, format!("is {} on axis {i}, expected 1 to {MAX_STEP}", v.unwrap_or(0)))),
    }
}

impl WindowAxis {
    /// An axis of one element under a window of one tap.
    pub const UNIT: WindowAxis =
        WindowAxis { input: 1, output: 1, kernel: 1, stride: 1, dilation: 1, pads: [0, 0] };

    /// Whether every element of the output sees the input's element at its own place alone.
    pub(crate) fn is_plain(&self) -> bool {
        self.kernel == 1 && self.stride == 1 && self.pads == [0, 0]
    }

    /// Elements from the first to the last tap.
    pub fn extent(&self) -> i64 {
        (self.kernel as i64 - 1) * self.dilation as i64 + 1
    }

    /// Finds the padding and the output, checking everything.
    fn resolve(mut self, axis: usize, auto_pad: AutoPad, ceil_mode: bool) -> Result<Self, OpError> {
        let kernel = i64::try_from(self.kernel).unwrap_or(i64::MAX);
        let input = i64::try_from(self.input).unwrap_or(i64::MAX);
        if !(1..=MAX_STEP).contains(&kernel) {
            return Err(bad("kernel_shape", format!("is {kernel} on axis {axis}, expected 1 to {MAX_STEP}")));
        }
        if input > MAX_STEP {
            return Err(OpError::unsupported(format!("a window over {input} elements on axis {axis}")));
        }
        if let Some(p) = self.pads.iter().find(|p| !(-MAX_STEP..=MAX_STEP).contains(*p)) {
            return Err(bad("pads", format!("is {p} on axis {axis}")));
        }
        // Below 2^62: kernel and dilation are below 2^31.
        let (extent, stride) = (self.extent(), self.stride as i64);
        if extent > MAX_STEP {
            return Err(bad("dilations", format!("makes a window of {extent} elements on axis {axis}")));
        }
        if matches!(auto_pad, AutoPad::SameUpper | AutoPad::SameLower) {
            let output = (input + stride - 1) / stride;
            let total = ((output - 1) * stride + extent - input).max(0);
            let (small, large) = (total / 2, total - total / 2);
            self.pads = if auto_pad == AutoPad::SameUpper { [small, large] } else { [large, small] };
            self.output = output as usize;
            return Ok(self);
        }
        let padded = input + self.pads[0] + self.pads[1];
        // Rounded up, the one window there is may reach beyond the end.
        let beyond = if ceil_mode && input > 0 { stride - 1 } else { 0 };
        if self.pads.iter().any(|p| -p > input) || padded + beyond < extent {
            return Err(bad(
                "kernel_shape",
                format!("spans {extent} elements on axis {axis}, where the padded input has {padded}"),
            ));
        }
        let room = padded - extent;
        let mut output = room / stride + 1;
        if ceil_mode {
            output = (room + stride - 1) / stride + 1;
            // A window that would start in the padding at the end does not count.
            if (output - 1) * stride >= input + self.pads[0] {
                output -= 1;
            }
        }
        self.output = output.max(0) as usize;
        Ok(self)
    }

    /// The input element that tap `tap` of output `out` reads, unless it is padding.
    pub fn at(&self, out: usize, tap: usize) -> Option<usize> {
        let i = self.start(out) + (tap * self.dilation) as i64;
        usize::try_from(i).ok().filter(|i| *i < self.input)
    }

    /// The input element under the first tap of output `out`, negative in the padding.
    pub fn start(&self, out: usize) -> i64 {
        (out * self.stride) as i64 - self.pads[0]
    }

    /// The outputs for which tap `tap` lies inside the input.
    pub fn valid(&self, tap: usize) -> Range<usize> {
        let shift = self.pads[0] - (tap * self.dilation) as i64;
        let stride = self.stride as i64;
        let first = shift.max(0) + stride - 1;
        let last = self.input as i64 - 1 + shift;
        let lo = (first / stride).min(self.output as i64) as usize;
        let hi = if last < 0 { 0 } else { (last / stride + 1).min(self.output as i64) as usize };
        lo..hi.max(lo)
    }

    /// The taps of output `out` that lie inside the input.
    pub fn taps(&self, out: usize) -> Range<usize> {
        let (start, step) = (self.start(out), self.dilation as i64);
        let lo = ((-start).max(0) + step - 1) / step;
        let hi = (self.input as i64 - start + step - 1) / step;
        let kernel = self.kernel as i64;
        let lo = lo.min(kernel);
        lo as usize..hi.clamp(lo, kernel) as usize
    }

    /// The taps that lie inside the input for some output.
    pub fn reach(&self) -> Range<usize> {
        match self.output.checked_sub(1) {
            None => 0..0,
            Some(last) => self.taps(last).start..self.taps(0).end,
        }
    }
}

/// The numbers of some axes, outermost first, as parameters of kernels hold them (`shaders/include/window.glsl`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct AxisNumbers<const N: usize> {
    input: [i32; N],
    output: [u32; N],
    taps: [u32; N],
    strides: [i32; N],
    dilations: [i32; N],
    begins: [i32; N],
    ends: [i32; N],
}

impl<const N: usize> AxisNumbers<N> {
    /// The numbers of `axes`.
    pub(crate) fn new(axes: [WindowAxis; N]) -> Result<Self, OpError> {
        let all = |of: fn(&WindowAxis) -> i64| {
            let numbers = axes.each_ref().map(|axis| i32::try_from(of(axis)).ok());
            if numbers.contains(&None) {
                return Err(OpError::unsupported("a device kernel for a window beyond 32 bits"));
            }
            Ok(numbers.map(Option::unwrap_or_default))
        };
        Ok(AxisNumbers {
            input: all(|a| a.input as i64)?,
            output: all(|a| a.output as i64)?.map(i32::cast_unsigned),
            taps: all(|a| a.kernel as i64)?.map(i32::cast_unsigned),
            strides: all(|a| a.stride as i64)?,
            dilations: all(|a| a.dilation as i64)?,
            begins: all(|a| a.pads[0])?,
            ends: all(|a| a.pads[1])?,
        })
    }

    /// The sizes of the output, innermost first.
    fn sizes(&self) -> [u32; N] {
        let mut sizes = self.output;
        sizes.reverse();
        sizes
    }
}

impl From<AxisNumbers<3>> for params::Window3d {
    fn from(AxisNumbers { input, taps, strides, dilations, begins, .. }: AxisNumbers<3>) -> Self {
        params::Window3d { input, taps, strides, dilations, begins }
    }
}

impl From<AxisNumbers<2>> for params::Window2d {
    fn from(AxisNumbers { input, taps, strides, dilations, begins, .. }: AxisNumbers<2>) -> Self {
        params::Window2d { input, taps, strides, dilations, begins }
    }
}

impl From<AxisNumbers<2>> for params::PaddedPlane {
    fn from(AxisNumbers { input, begins, .. }: AxisNumbers<2>) -> Self {
        params::PaddedPlane { input, begins }
    }
}

impl From<AxisNumbers<3>> for params::WindowEnds3d {
    fn from(axes: AxisNumbers<3>) -> Self {
        params::WindowEnds3d { padding: axes.ends }
    }
}

impl From<AxisNumbers<2>> for params::WindowEnds2d {
    fn from(axes: AxisNumbers<2>) -> Self {
        params::WindowEnds2d { padding: axes.ends }
    }
}

impl From<AxisNumbers<3>> for params::Output3d {
    fn from(axes: AxisNumbers<3>) -> Self {
        params::Output3d { sizes: axes.sizes() }
    }
}

impl From<AxisNumbers<2>> for params::Output2d {
    fn from(axes: AxisNumbers<2>) -> Self {
        params::Output2d { sizes: axes.sizes() }
    }
}

impl AxisNumbers<3> {
    /// The window of a kernel that repeats its constant taps along rows `repeats` times.
    pub(crate) fn row_window(self, repeats: u32) -> params::RowWindow3d {
        let AxisNumbers { input, taps: [kd, kh, _], strides, dilations, begins, .. } = self;
        params::RowWindow3d {
            input,
            taps: [kd, kh, repeats],
            strides: [strides[0], strides[1]],
            dilations: [dilations[0], dilations[1]],
            begins,
        }
    }
}

/// The axes as three, outer ones of one element added in front. Neighbours over which nothing slides are one.
pub(crate) fn three(what: &str, axes: &[WindowAxis]) -> Result<[WindowAxis; 3], OpError> {
    const U: WindowAxis = WindowAxis::UNIT;
    let merged = if axes.len() > 3 { merged(axes) } else { axes.to_vec() };
    match *merged {
        [w] => Ok([U, U, w]),
        [h, w] => Ok([U, h, w]),
        [d, h, w] => Ok([d, h, w]),
        _ => Err(OpError::unsupported(format!("{what} over {} spatial dimensions", axes.len()))),
    }
}

/// The axes with neighbours of windows of one tap that takes every element as one.
fn merged(axes: &[WindowAxis]) -> Vec<WindowAxis> {
    let still = |a: &WindowAxis| a.is_plain() && a.input == a.output;
    let mut all: Vec<WindowAxis> = Vec::new();
    for a in axes {
        match all.last_mut().filter(|last| still(last) && still(a)) {
            Some(last) => {
                last.input = last.input.saturating_mul(a.input);
                last.output = last.output.saturating_mul(a.output);
            }
            None => all.push(*a),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(kernel: i64, stride: i64, dilation: i64, pads: [i64; 2]) -> WindowAttrs {
        WindowAttrs {
            kernel: vec![kernel],
            strides: vec![stride],
            dilations: vec![dilation],
            pads: pads.to_vec(),
            ..WindowAttrs::default()
        }
    }

    fn axis(w: &WindowAttrs, input: usize) -> Result<WindowAxis, OpError> {
        let kernel = w.kernel_sizes(1, None)?;
        Ok(w.axes(&[input], &kernel)?[0])
    }

    #[test]
    fn impossible_windows_are_errors() {
        assert!(axis(&window(3, 0, 1, [0, 0]), 8).is_err());
        assert!(axis(&window(3, 1, 0, [0, 0]), 8).is_err());
        assert!(axis(&window(0, 1, 1, [0, 0]), 8).is_err());
        assert!(axis(&window(3, 1, 1, [-9, 20]), 8).is_err());
        assert!(axis(&window(9, 1, 1, [0, 0]), 8).is_err());
        assert!(axis(&window(3, 1, i64::MAX, [0, 0]), 8).is_err());
        assert!(axis(&window(i64::MAX, 1, 1, [i64::MAX, i64::MAX]), 8).is_err());
        assert!(axis(&window(3, 1, i32::MAX.into(), [0, 0]), 8).is_err());
        assert!(axis(&window(3, 1, 1, [0, 0]), usize::MAX).is_err());
        // Almost all windows would be over padding alone.
        assert!(axis(&window(3, 1, 1, [1 << 23, 0]), 8).is_err());
        assert!(axis(&window(3, 1, 1, [1 << 20, 0]), 8).is_ok());
        let three = WindowAttrs { pads: vec![1 << 20; 6], strides: vec![], ..window(3, 1, 1, [0, 0]) };
        assert!(WindowAttrs { dilations: vec![], ..three }.axes(&[8; 3], &[3; 3]).is_err());
        assert!(WindowAttrs { pads: vec![1], ..window(3, 1, 1, [0, 0]) }.axes(&[8], &[3]).is_err());
        assert!(WindowAttrs { strides: vec![1, 1], ..window(3, 1, 1, [0, 0]) }.axes(&[8], &[3]).is_err());
    }

    #[test]
    fn same_padding_puts_the_odd_element_where_it_says() {
        let w = WindowAttrs { auto_pad: AutoPad::SameUpper, ..window(4, 2, 1, [0, 0]) };
        let a = axis(&w, 5).unwrap();
        assert_eq!((a.output, a.pads), (3, [1, 2]));
        let w = WindowAttrs { auto_pad: AutoPad::SameLower, ..w };
        assert_eq!(axis(&w, 5).unwrap().pads, [2, 1]);
    }

    #[test]
    fn ceil_mode_drops_a_window_that_starts_in_the_end_padding() {
        let w = WindowAttrs { ceil_mode: true, ..window(1, 2, 1, [0, 0]) };
        assert_eq!(axis(&w, 2).unwrap().output, 1);
        let w = WindowAttrs { ceil_mode: true, ..window(3, 2, 1, [0, 0]) };
        assert_eq!(axis(&w, 4).unwrap().output, 2);
    }

    #[test]
    fn ceil_mode_keeps_the_only_window_where_it_reaches_beyond_the_end() {
        let w = WindowAttrs { ceil_mode: true, ..window(2, 2, 1, [0, 0]) };
        assert_eq!(axis(&w, 1).unwrap().output, 1);
        assert!(axis(&w, 0).is_err());
        assert!(axis(&window(2, 2, 1, [0, 0]), 1).is_err());
        assert!(axis(&WindowAttrs { ceil_mode: true, ..window(3, 2, 1, [0, 0]) }, 1).is_err());
    }

    proptest! {
        #[test]
        fn ranges_agree_with_single_indices(
            input in 0usize..12, kernel in 1i64..5, stride in 1i64..4, dilation in 1i64..4,
            begin in -2i64..5, end in -2i64..5, ceil in any::<bool>(),
        ) {
            let w = WindowAttrs { ceil_mode: ceil, ..window(kernel, stride, dilation, [begin, end]) };
            let Ok(a) = axis(&w, input) else { return Ok(()) };
            for tap in 0..a.kernel {
                let valid: Vec<usize> = (0..a.output).filter(|&o| a.at(o, tap).is_some()).collect();
                prop_assert_eq!(valid, a.valid(tap).collect::<Vec<_>>());
            }
            for out in 0..a.output {
                let valid: Vec<usize> = (0..a.kernel).filter(|&t| a.at(out, t).is_some()).collect();
                prop_assert_eq!(valid, a.taps(out).collect::<Vec<_>>());
            }
        }
    }
}
