//! Products of few elements and a great depth: work-groups share the depth out, so that there are enough of them for the
//! device's processors. Each writes its sums to scratch memory; another dispatch adds them.

use crate::dtype::DType;
use crate::kernel::table::{params, spec, variants};
use crate::ops::{Activation, Lowering, OpError, Operand};

/// The least steps of a part: with fewer, adding the sums takes as long as the steps that are saved.
const MIN_STEPS: usize = 4;
/// The same where most processors have a work-group without parts.
const BUSY_MIN_STEPS: usize = 16;
/// The most parts: adding takes a read of each.
const MAX_PARTS: usize = 16;

/// Sums of `parts` parts of products, and what is done with them: `activation(alpha * sum + beta * c)`.
pub(crate) struct PartSums {
    /// How many there are, 2 or more.
    pub(crate) parts: usize,
    /// Products, and the rows and columns of each.
    pub(crate) sizes: [usize; 3],
    /// The summand and the strides of its rows and columns.
    pub(crate) c: Option<(Operand, [usize; 2])>,
    /// Another summand, which lies as the products do.
    pub(crate) summand: Option<Operand>,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) activation: Activation,
    /// Whether the summand has a factor for each row after those of the rows, which takes the place of the activation's first
    /// number.
    pub(crate) sloped: bool,
    /// The type of the summand and of `y`.
    pub(crate) dtype: DType,
    /// The contiguous products.
    pub(crate) y: Operand,
}

/// In how many parts to share out `steps` steps of products that `groups` work-groups would compute; 1 leaves them whole.
pub(crate) fn parts(lower: &Lowering<'_>, groups: usize, steps: usize) -> usize {
    let processors = lower.processors();
    if groups == 0 || groups >= processors {
        return 1;
    }
    let least = if 2 * groups > processors { BUSY_MIN_STEPS } else { MIN_STEPS };
    (2 * processors / groups).min(steps / least).clamp(1, MAX_PARTS)
}

/// How many work-groups there are when [`parts`] has shared out the steps of `groups` of them.
pub(crate) fn shared_out(lower: &Lowering<'_>, groups: usize, steps: usize) -> usize {
    groups * parts(lower, groups, steps)
}

impl PartSums {
    fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Scratch memory for the sums, until they are added.
    pub(crate) fn scratch(&self, lower: &mut Lowering<'_>) -> Operand {
        lower.passing_scratch(self.parts * self.len() * DType::F32.bytes())
    }

    /// Adds the sums in `from`.
    pub(crate) fn add(&self, from: Operand, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::SumParts { t: self.dtype }.id()?;
        let (code, [act_a, act_b]) = self.activation.code();
        let spec = [
            (spec::sum_parts::BIASED, u32::from(self.c.is_some())),
            (spec::sum_parts::ACTIVATION, code),
            (spec::sum_parts::SLOPED, u32::from(self.sloped)),
            (spec::output::SUMMED, u32::from(self.summand.is_some())),
        ];
        let (c, c_strides) = self.c.unwrap_or((Operand::Unused, [0, 0]));
        let [_, rows, cols] = self.sizes;
        let params = params::SumParts {
            n: self.len() as u32,
            parts: self.parts as u32,
            rows: rows as u32,
            cols: cols as u32,
            c_row: c_strides[0] as u32,
            c_col: c_strides[1] as u32,
            alpha: self.alpha,
            beta: self.beta,
            act_a,
            act_b,
        };
        let summand = self.summand.unwrap_or(Operand::Unused);
        lower.dispatch_1d(kernel, &spec, &[from, c, self.y, summand], &params, self.len())?;
        if self.dtype == DType::F32 {
            lower.writes_in_order(self.dtype.bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{DeviceInfo, DeviceKind};
    use crate::expr::Function;
    use crate::graph::Tensor;
    use crate::ops::conv::Conv;
    use crate::ops::linalg::{Gemm, MatMul};
    use crate::ops::test_util::{tensor, tensor_of, values};
    use crate::ops::testing::{Check, devices, no_texels};
    use crate::ops::{Fact, OpCx, Operator, WindowAttrs};
    use crate::shape::Shape;
    use crate::tensor::TensorInfo;

    fn with(info: &mut DeviceInfo, processors: u32) {
        no_texels(info);
        info.processors = Some(processors);
    }

    fn many(info: &mut DeviceInfo) {
        with(info, 64);
    }

    fn eight(info: &mut DeviceInfo) {
        with(info, 8);
    }

    #[test]
    fn parts_fill_the_processors_and_have_steps_enough() {
        let mut device = crate::registry::Registry::with_defaults().find("cpu").unwrap();
        device.processors = Some(12);
        let of = |device: &DeviceInfo, groups, steps| parts(&Lowering::new(device), groups, steps);
        // An APU of twelve compute units is busy with twelve work-groups.
        assert_eq!([12, 8, 1, 0].map(|groups| of(&device, groups, 1000)), [1, 3, MAX_PARTS, 1]);
        assert_eq!([0, 7, 8, 12, 200].map(|steps| of(&device, 1, steps)), [1, 1, 2, 3, MAX_PARTS]);
        device.processors = Some(132);
        assert_eq!([12, 131, 132].map(|groups| of(&device, groups, 1000)), [MAX_PARTS, 2, 1]);
        // With most processors busy, short parts save nothing.
        assert_eq!([8, 31, 32].map(|steps| of(&device, 100, steps)), [1, 1, 2]);
    }

    #[test]
    fn processors_of_a_host_take_products_whole() {
        let mut device = crate::registry::Registry::with_defaults().find("cpu").unwrap();
        (device.kind, device.processors) = (DeviceKind::Cpu, None);
        let of = |device: &DeviceInfo| parts(&Lowering::new(device), 1, 1000);
        assert_eq!(of(&device), 1);
        device.kind = DeviceKind::Discrete;
        assert_eq!(of(&device), MAX_PARTS);
    }

    #[test]
    fn sums_of_all_parts_of_a_convolution_share_their_memory() {
        let mut device = crate::registry::Registry::with_defaults().find("sim:discrete").unwrap();
        (device.prefers_texels, device.processors) = (false, Some(1 << 20));
        let window = WindowAttrs { pads: vec![1; 4], ..WindowAttrs::default() };
        let conv = Conv { window, ..Conv::default() };
        let scratch = |height: usize| {
            let info = |dims: &[usize]| TensorInfo::new(DType::F32, Shape::new(dims).unwrap());
            let facts = [info(&[1, 256, height, 128]), info(&[256, 256, 3, 3])].map(|i| Some(Fact::of(i)));
            let cx = OpCx::for_infer(facts.into(), 1);
            let cx = cx.clone().with_outputs(conv.infer(&cx).unwrap());
            let mut lower = Lowering::new(&device);
            conv.gpu(&cx, &mut lower).unwrap();
            let lowered = lower.finish();
            (lowered.scratch.len(), lowered.steps.len())
        };
        let (few, many) = (scratch(256), scratch(768));
        assert!(few.1 < many.1, "tiles are transformed a part at a time");
        assert_eq!(few.0, many.0);
    }

    /// Runs `op` shared out, in both types of elements, and returns the kernels of the first.
    fn check(op: &dyn Operator, shapes: &[&[usize]], change: fn(&mut DeviceInfo)) -> Vec<&'static str> {
        let single = |(i, shape): (usize, &&[usize])| Some(tensor(shape, i as u64 + 1));
        let half = |(i, shape): (usize, &&[usize])| {
            let n = shape.iter().product();
            Some(tensor_of(shape, &values(n, i as u64 + 1), half::f16::from_f32))
        };
        let singles: Vec<Option<Tensor>> = shapes.iter().enumerate().map(single).collect();
        let halves: Vec<Option<Tensor>> = shapes.iter().enumerate().map(half).collect();
        Check::new(op, &singles).constants(&[1]).pretend(change).tolerance(1e-4).run();
        Check::new(op, &halves).constants(&[1]).pretend(change).tolerance(8e-3).run();
        let kernels = Check::new(op, &singles).pretend(change).kernels_on(devices().first().unwrap());
        assert!(kernels.contains(&"sum_parts_f32"), "{kernels:?}");
        kernels
    }

    /// Rows of whole quads and not, transposed operands, a summand for each column, batches, large and small tiles.
    #[test]
    fn products_shared_out_are_the_same() {
        let relu = Activation::of(Function::Relu);
        let biased = Gemm { alpha: 0.5, beta: -2.0, activation: relu, ..Gemm::default() };
        check(&biased, &[&[40, 1100], &[1100, 52], &[52]], many);
        check(&biased, &[&[33, 517], &[517, 45], &[33, 1]], many);
        let turned = Gemm { trans_a: true, trans_b: true, ..Gemm::default() };
        check(&turned, &[&[700, 20], &[36, 700]], many);
        check(&MatMul::default(), &[&[3, 20, 600], &[3, 600, 18]], many);
        let wide = check(&biased, &[&[256, 600], &[600, 256], &[256]], eight);
        assert!(wide.contains(&"gemm_wide_f32"), "{wide:?}");
    }

    #[test]
    fn convolutions_shared_out_are_the_same() {
        let pads = |n: usize| WindowAttrs { pads: vec![1; n], ..WindowAttrs::default() };
        let conv = |window: WindowAttrs, group| Conv {
            window,
            group,
            activation: Activation::of(Function::Relu),
            ..Conv::default()
        };
        check(&conv(pads(4), 1), &[&[1, 70, 7, 7], &[33, 70, 3, 3], &[33]], many);
        check(&conv(pads(4), 2), &[&[2, 80, 6, 6], &[34, 40, 3, 3], &[34]], many);
        let residual = |window: WindowAttrs| Conv { summed: true, ..conv(window, 1) };
        check(&residual(pads(4)), &[&[1, 70, 7, 7], &[33, 70, 3, 3], &[33], &[1, 33, 7, 7]], many);
        let pointwise = [&[1, 512, 4, 6][..], &[12, 512, 1, 1], &[12], &[1, 12, 4, 6]];
        check(&residual(WindowAttrs::default()), &pointwise, many);
        let strided = WindowAttrs { strides: vec![2, 2], ..pads(4) };
        check(&conv(strided, 1), &[&[1, 80, 12, 12], &[12, 80, 3, 3]], many);
        check(&conv(WindowAttrs::default(), 1), &[&[1, 513, 5, 5], &[9, 513, 1, 1], &[9]], many);
        let strided = WindowAttrs { strides: vec![1, 2], ..pads(4) };
        for width in [32, 31] {
            let kernels =
                check(&conv(strided.clone(), 1), &[&[1, 90, 16, width], &[300, 90, 3, 3], &[300]], eight);
            assert!(kernels.iter().any(|k| k.starts_with("conv_wide")), "{kernels:?}");
        }
    }
}
