//! The sizes of a convolution.

use crate::ops::window::three;
use crate::ops::{Cost, OpError, WindowAxis};

/// A convolution resolved, over axes `A`: by default depth, height and width, missing ones of one element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConvDims<A = [WindowAxis; 3]> {
    /// Images.
    pub batch: usize,
    /// Independent convolutions.
    pub group: usize,
    /// Input channels of one group.
    pub ic: usize,
    /// Output channels of one group.
    pub oc: usize,
    /// The axes. Those of a transposed convolution are of the convolution whose gradient it is: their `input` is its
    /// output and their `output` its input.
    pub axes: A,
    /// Whether it is a transposed convolution.
    pub transposed: bool,
}

/// A convolution over any number of axes.
pub(super) type AnyDims = ConvDims<Vec<WindowAxis>>;

impl AnyDims {
    /// The convolution over three axes.
    pub(super) fn three(self, what: &str) -> Result<ConvDims, OpError> {
        let ConvDims { batch, group, ic, oc, axes, transposed } = self;
        Ok(ConvDims { batch, group, ic, oc, axes: three(what, &axes)?, transposed })
    }
}

impl ConvDims {
    /// The same with axes of one element before the others: what is long at the end is a row.
    pub(super) fn in_rows(mut self) -> ConvDims {
        let of_one = |a: &WindowAxis| [a.input, a.output, a.kernel] == [1; 3] && a.pads == [0, 0];
        self.axes.sort_by_key(|axis| !of_one(axis));
        self
    }
}

impl<A: AsRef<[WindowAxis]>> ConvDims<A> {
    fn product(&self, of: impl Fn(&WindowAxis) -> usize) -> usize {
        self.axes.as_ref().iter().map(of).product()
    }

    /// Elements of one channel of the input.
    pub(crate) fn in_plane(&self) -> usize {
        self.product(|a| if self.transposed { a.output } else { a.input })
    }

    /// Elements of one channel of the output.
    pub(crate) fn out_plane(&self) -> usize {
        self.product(|a| if self.transposed { a.input } else { a.output })
    }

    /// Taps of the window.
    pub(crate) fn taps(&self) -> usize {
        self.product(|a| a.kernel)
    }

    /// Elements of the input.
    pub(crate) fn in_len(&self) -> usize {
        self.batch * self.group * self.ic * self.in_plane()
    }

    /// Elements of the weights.
    pub(crate) fn weights_len(&self) -> usize {
        self.group * self.oc * self.ic * self.taps()
    }

    /// Elements of the output.
    pub(crate) fn out_len(&self) -> usize {
        self.batch * self.group * self.oc * self.out_plane()
    }

    /// Whether every output element reads only the input element at its own place.
    pub(crate) fn is_pointwise(&self) -> bool {
        self.axes.as_ref().iter().all(WindowAxis::is_plain)
    }

    /// Arithmetic operations.
    pub(crate) fn flops(&self) -> u64 {
        let each = [2, self.batch, self.group, self.ic, self.oc];
        let windows: Vec<usize> = self.axes.as_ref().iter().flat_map(|a| [a.output, a.kernel]).collect();
        Cost::product(&[&each[..], &windows].concat())
    }
}
