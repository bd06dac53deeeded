//! The facts of an operator's inputs and outputs, and its cost.

use super::OpError;
use crate::dtype::DType;
use crate::memory::image::ImageDesc;
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorInfo};

/// Facts of one input.
#[derive(Clone, Debug)]
pub struct Fact {
    /// Type and shape.
    pub info: TensorInfo,
    /// The value, where it is known before the run.
    pub value: Option<Tensor>,
}

impl Fact {
    /// A tensor of which only type and shape are known.
    pub fn of(info: TensorInfo) -> Self {
        Fact { info, value: None }
    }

    /// A tensor that is known.
    pub fn known(value: Tensor) -> Self {
        Fact { info: value.info().clone(), value: Some(value) }
    }
}

/// An operator's inputs and outputs in one specialization of a graph.
#[derive(Clone, Debug, Default)]
pub struct OpCx {
    inputs: Vec<Option<Fact>>,
    outputs: Vec<TensorInfo>,
    output_count: usize,
    images: Vec<Option<ImageDesc>>,
    output_images: Vec<Option<ImageDesc>>,
}

impl OpCx {
    /// Facts for inference: the outputs are not known yet.
    pub fn for_infer(inputs: Vec<Option<Fact>>, output_count: usize) -> Self {
        OpCx { inputs, output_count, ..OpCx::default() }
    }

    /// The same facts with the outputs that inference gave.
    pub fn with_outputs(mut self, outputs: Vec<TensorInfo>) -> Self {
        self.output_count = outputs.len();
        self.outputs = outputs;
        self
    }

    /// The same facts where the planner made images of some inputs and outputs.
    pub fn with_images(mut self, inputs: Vec<Option<ImageDesc>>, outputs: Vec<Option<ImageDesc>>) -> Self {
        self.images = inputs;
        self.output_images = outputs;
        self
    }

    /// The image that input `i` lies in.
    pub fn image(&self, i: usize) -> Option<&ImageDesc> {
        self.images.get(i)?.as_ref()
    }

    /// The image that output `i` lies in.
    pub fn output_image(&self, i: usize) -> Option<&ImageDesc> {
        self.output_images.get(i)?.as_ref()
    }

    /// Number of inputs, absent ones counted.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// Number of requested outputs.
    pub fn output_count(&self) -> usize {
        self.output_count
    }

    /// Whether input `i` is given.
    pub fn has(&self, i: usize) -> bool {
        matches!(self.inputs.get(i), Some(Some(_)))
    }

    /// Input `i`, if given.
    pub fn fact(&self, i: usize) -> Option<&Fact> {
        self.inputs.get(i)?.as_ref()
    }

    /// Type and shape of input `i`.
    ///
    /// # Errors
    /// [`OpError::MissingInput`].
    pub fn input(&self, i: usize) -> Result<&TensorInfo, OpError> {
        self.fact(i).map(|f| &f.info).ok_or(OpError::MissingInput { input: i })
    }

    /// Type and shape of input `i`, if given.
    pub fn input_opt(&self, i: usize) -> Option<&TensorInfo> {
        self.fact(i).map(|f| &f.info)
    }

    /// Shape of input `i`.
    ///
    /// # Errors
    /// [`OpError::MissingInput`].
    pub fn shape(&self, i: usize) -> Result<&Shape, OpError> {
        Ok(&self.input(i)?.shape)
    }

    /// Element type of input `i`.
    ///
    /// # Errors
    /// [`OpError::MissingInput`].
    pub fn dtype(&self, i: usize) -> Result<DType, OpError> {
        Ok(self.input(i)?.dtype)
    }

    /// Element type of input `i`, which must be one of `allowed`.
    ///
    /// # Errors
    /// [`OpError::MissingInput`], [`OpError::DType`].
    pub fn dtype_of(&self, i: usize, allowed: &[DType]) -> Result<DType, OpError> {
        let got = self.dtype(i)?;
        if allowed.contains(&got) {
            return Ok(got);
        }
        let names: Vec<&str> = allowed.iter().map(|d| d.name()).collect();
        Err(OpError::DType { input: i, got, expected: names.join(", ") })
    }

    /// Checks that input `i` has type `dtype`.
    ///
    /// # Errors
    /// [`OpError::MissingInput`], [`OpError::DType`].
    pub fn expect_dtype(&self, i: usize, dtype: DType) -> Result<(), OpError> {
        self.dtype_of(i, &[dtype]).map(|_| ())
    }

    /// An [`OpError::InputShape`] about input `i`.
    pub fn shape_error(&self, i: usize, expected: impl Into<String>) -> OpError {
        let got = self.input_opt(i).map_or("nothing".to_owned(), |t| t.shape.to_string());
        OpError::InputShape { input: i, got, expected: expected.into() }
    }

    /// The value of input `i`, where it is known.
    pub fn value(&self, i: usize) -> Option<&Tensor> {
        self.fact(i)?.value.as_ref()
    }

    /// The value of input `i`, where a native function may be given it in a packed layout.
    pub(crate) fn packable(&self, i: usize) -> Option<&Tensor> {
        self.value(i).filter(|t| t.info().bytes() > 0 && self.image(i).is_none())
    }

    /// The value of input `i`, which must be known.
    ///
    /// # Errors
    /// [`OpError::MissingInput`], [`OpError::NeedsValue`].
    pub fn need_value(&self, i: usize) -> Result<&Tensor, OpError> {
        self.input(i)?;
        self.value(i).ok_or(OpError::NeedsValue { input: i })
    }

    /// The integers of input `i`, which must be known.
    ///
    /// # Errors
    /// [`OpError::MissingInput`], [`OpError::NeedsValue`], [`OpError::Tensor`] for float tensors.
    pub fn need_i64s(&self, i: usize) -> Result<Vec<i64>, OpError> {
        Ok(self.need_value(i)?.to_i64s()?)
    }

    /// The integers of input `i` if it is given; then they must be known.
    ///
    /// # Errors
    /// As [`OpCx::need_i64s`].
    pub fn need_i64s_opt(&self, i: usize) -> Result<Option<Vec<i64>>, OpError> {
        if self.has(i) { self.need_i64s(i).map(Some) } else { Ok(None) }
    }

    /// The outputs that inference gave.
    pub fn outputs(&self) -> &[TensorInfo] {
        &self.outputs
    }

    /// Output `i` that inference gave.
    ///
    /// # Errors
    /// [`OpError::Count`] where there is none.
    pub fn output(&self, i: usize) -> Result<&TensorInfo, OpError> {
        self.outputs.get(i).ok_or_else(|| OpError::Count {
            what: "outputs",
            found: self.outputs.len(),
            expected: format!("at least {}", i + 1),
        })
    }

    /// Bytes of all inputs and outputs.
    pub fn bytes_touched(&self) -> u64 {
        let infos = self.inputs.iter().flatten().map(|f| &f.info).chain(&self.outputs);
        infos.fold(0, |sum: u64, info| sum.saturating_add(info.bytes() as u64))
    }

    /// Checks how many inputs and outputs there are.
    ///
    /// # Errors
    /// [`OpError::Count`].
    pub fn expect_counts(
        &self,
        inputs: std::ops::RangeInclusive<usize>,
        outputs: std::ops::RangeInclusive<usize>,
    ) -> Result<(), OpError> {
        let check = |what, found, range: std::ops::RangeInclusive<usize>| {
            if range.contains(&found) {
                Ok(())
            } else {
                Err(OpError::Count { what, found, expected: format!("{} to {}", range.start(), range.end()) })
            }
        };
        check("inputs", self.inputs.len(), inputs)?;
        check("outputs", self.output_count, outputs)
    }
}

/// Cost of one execution of an operator, for placement, the roofline and benchmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Cost {
    /// Arithmetic operations; a multiply-add counts two.
    pub flops: u64,
    /// Bytes read and written at least once.
    pub bytes: u64,
}

impl Cost {
    /// The product of counts, or the largest number: a tensor that has no memory yet may be of any size.
    pub(crate) fn product(counts: &[usize]) -> u64 {
        counts.iter().fold(1, |n, count| n.saturating_mul(*count as u64))
    }

    /// How often about the operator reads its elements: once, unless it does so much arithmetic with each that it
    /// must read them again.
    pub fn passes(self) -> u32 {
        let passes = self.flops.div_ceil(self.bytes.saturating_mul(4).max(1));
        u32::try_from(passes).unwrap_or(u32::MAX).clamp(1, 1 << 16)
    }
}
