//! The kernels that a convolution may run: the one by the model of the device, and those that may be measured instead.

use super::patch::Patches;
use super::wide::Wide;
use super::winograd::Tiles;
use super::{MAX_SPAN, Plain, ROW_PIXELS, ROW_TILE, Target};
use crate::backend::DeviceKind;
use crate::dtype::DType;
use crate::kernel::KernelId;
use crate::kernel::codes::slices::{SMALL_TILE, TILE};
use crate::kernel::table::variants;
use crate::ops::linalg::device::{Product, tile_of};
use crate::ops::{Candidate, ChoiceKey, Lowering, OpError};

/// Invocations of a work-group of kernels over rows: few where cores run them one after another.
const ROW_LOCALS: [u32; 2] = [8, 64];
/// The most taps, and the most rows of the input, that the kernel of single channels keeps.
const MAX_TAPS: usize = 49;
const MAX_REACH: usize = 16;
/// The most rows of the input for two rows of the output.
const MAX_REACH_OF_TWO: usize = 8;

/// How a convolution is computed.
#[derive(Clone, Debug)]
enum Method {
    /// Products of transformed tiles.
    Winograd(Tiles),
    /// Register tiles over rows.
    Rows {
        /// Invocations of a work-group.
        local: u32,
    },
    /// One product of matrices.
    Product(Box<Product>),
    /// Cooperative matrices that read a patch of the input for all taps.
    Patches(Patches),
    /// Wide tiles, or cooperative matrices.
    Wide(Wide),
    /// Tiles in workgroup memory.
    Tiles {
        /// Channels and elements of a tile.
        tile: usize,
        /// Its kernel.
        kernel: KernelId,
    },
}

impl Candidate for Method {
    fn name(&self) -> String {
        match self {
            Method::Winograd(_) => "winograd".to_owned(),
            Method::Rows { local } => format!("conv_row/{local}"),
            Method::Product(_) => "product".to_owned(),
            Method::Patches(patches) => patches.kernel.info().name.to_owned(),
            Method::Wide(wide) => wide.kernel.info().name.to_owned(),
            Method::Tiles { tile, .. } => format!("conv_tile/{tile}"),
        }
    }
}

/// What an invocation of the kernel of single channels computes, and how many there are in a work-group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DepthwiseTile {
    /// Neighbouring elements of a row.
    px: usize,
    /// Rows.
    rows: usize,
    /// Invocations.
    local: u32,
}

impl Candidate for DepthwiseTile {
    fn name(&self) -> String {
        format!("depthwise/{}x{}/{}", self.rows, self.px, self.local)
    }
}

impl Target<'_> {
    /// Emits `c`.
    pub(super) fn lower_chosen(&self, c: &Plain, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        lower.iterations(c.depth())?;
        match self.method(c, lower)? {
            Method::Winograd(tiles) => self.winograd(c, &tiles, lower),
            Method::Rows { local } => self.rows(c, local, lower),
            Method::Product(product) if product.lower_wide(lower)? => Ok(()),
            Method::Product(product) => product.lower(lower),
            Method::Patches(patches) => self.in_patches(c, patches, lower),
            Method::Wide(wide) => self.wide_tiles(c, &wide, lower),
            Method::Tiles { tile, kernel } => self.tiles(c, tile, kernel, lower),
        }
    }

    /// How `c` is computed: as chosen for convolutions like it, else by the model of the device.
    fn method(&self, c: &Plain, lower: &mut Lowering<'_>) -> Result<Method, OpError> {
        let default = self.method_by_model(c, lower)?;
        Ok(lower.choose(default, |lower| (self.key("convolution", c), self.methods(c, lower))))
    }

    /// The kernels of tiles in workgroup memory, of large ones and of small ones.
    fn tile_kernels(&self, c: &Plain) -> Result<[KernelId; 2], OpError> {
        let variant = variants::ConvTile { t: self.dtype, out4: c.has_whole_quads(), small: false };
        Ok([variant.id()?, variants::ConvTile { small: true, ..variant }.id()?])
    }

    /// How it is computed by the model of the device.
    fn method_by_model(&self, c: &Plain, lower: &Lowering<'_>) -> Result<Method, OpError> {
        if let Some(tiles) = self.winograd_by_model(c, lower) {
            return Ok(Method::Winograd(tiles));
        }
        let texels = lower.device().prefers_texels;
        if texels && self.can_take_rows(c, lower) {
            return Ok(Method::Rows { local: ROW_LOCALS[0] });
        }
        if let Some(product) = self.product(c).filter(|product| product.is_wide(lower)) {
            return Ok(Method::Product(Box::new(product)));
        }
        if let Some(patches) = self.patches(c, lower) {
            return Ok(Method::Patches(patches));
        }
        if let Some(wide) = self.wide(c, lower) {
            return Ok(Method::Wide(wide));
        }
        let is_host = lower.device().kind == DeviceKind::Cpu;
        if let Some(product) = self.product(c).filter(|product| product.is_indexable() && !is_host) {
            return Ok(Method::Product(Box::new(product)));
        }
        if !is_host && self.prefers_rows(c, lower) {
            return Ok(Method::Rows { local: ROW_LOCALS[1] });
        }
        let sizes = ([c.oc, c.plane(), c.batch * c.groups], if c.is_whole() { c.depth() } else { 0 });
        let (tile, kernel) = tile_of(lower, sizes, self.tile_kernels(c)?);
        Ok(Method::Tiles { tile, kernel })
    }

    /// Whether register tiles over rows are faster than tiles in workgroup memory, of which few output channels fill a part:
    /// where they keep every processor busy. Measured on an H100.
    fn prefers_rows(&self, c: &Plain, lower: &Lowering<'_>) -> bool {
        let [_, h, w] = c.axes;
        let local = ROW_LOCALS[1] as usize;
        let groups = (c.plane() * c.batch * c.oc.div_ceil(ROW_TILE)) / (ROW_PIXELS * local);
        self.dtype == DType::F32
            && (ROW_TILE..=SMALL_TILE).contains(&c.oc)
            && c.groups == 1
            && c.is_whole()
            && h.stride.max(w.stride) <= 2
            && groups >= 2 * lower.processors()
    }

    /// Whether the kernel over rows can compute `c`.
    fn can_take_rows(&self, c: &Plain, lower: &Lowering<'_>) -> bool {
        self.dtype == DType::F32 || self.by_texels(c, lower)
    }

    /// Every way that the device can compute `c` and that may be the fastest one somewhere.
    fn methods(&self, c: &Plain, lower: &Lowering<'_>) -> Vec<Method> {
        let mut all = Vec::new();
        if self.can_take_rows(c, lower) {
            all.extend(ROW_LOCALS.map(|local| Method::Rows { local }));
        }
        all.extend(self.product(c).filter(Product::is_indexable).map(|p| Method::Product(Box::new(p))));
        all.extend(self.all_patches(c, lower).into_iter().map(Method::Patches));
        all.extend(self.all_wide(c, lower).into_iter().map(Method::Wide));
        let kernels = self.tile_kernels(c).into_iter().flatten();
        let tiles = [TILE, SMALL_TILE].into_iter().zip(kernels);
        let tiles = tiles.filter(|(_, kernel)| lower.can_run(*kernel));
        all.extend(tiles.map(|(tile, kernel)| Method::Tiles { tile, kernel }));
        all.extend(c.tiles().map(Method::Winograd));
        all
    }

    /// Elements of a row and rows that an invocation of the kernel of single channels computes, and invocations of a
    /// work-group: as chosen, else by the model of the device; `None` where `c` is not for it.
    pub(super) fn depthwise_tile(&self, c: &Plain, lower: &mut Lowering<'_>) -> Option<(usize, usize, u32)> {
        let [_, h, w] = c.axes;
        let span = |px: usize| (px - 1) * w.stride + (w.kernel - 1) * w.dilation + 1;
        let reach = |rows: usize| (rows - 1) * h.stride + (h.kernel - 1) * h.dilation + 1;
        let texels = lower.device().prefers_texels;
        // One quad where caches serve overlapping reads, so that neighbours write contiguous quads: a bus to the host's
        // memory carries half a line as slowly as a whole one.
        let px = if texels { 8 } else { 4 };
        let fits = span(px) <= MAX_SPAN && h.kernel * w.kernel <= MAX_TAPS && reach(1) <= MAX_REACH;
        if !fits || !matches!(self.dtype, DType::F32 | DType::F16) {
            return None;
        }
        let two = h.kernel > 1 && reach(2) <= MAX_REACH_OF_TWO && h.output > 1;
        let local = ROW_LOCALS[usize::from(!texels)];
        let default = DepthwiseTile { px, rows: if two { 2 } else { 1 }, local };
        let tile = lower.choose(default, |_| {
            let widths = [4, 8].into_iter().filter(|px| span(*px) <= MAX_SPAN);
            let heights = if two { &[1, 2][..] } else { &[1] };
            let tiles = widths.flat_map(|px| heights.iter().map(move |&rows| (px, rows)));
            let all = tiles.flat_map(|(px, rows)| ROW_LOCALS.map(|local| DepthwiseTile { px, rows, local }));
            (self.key("depthwise", c), all.collect())
        });
        Some((tile.px, tile.rows, tile.local))
    }

    fn key(&self, site: &str, c: &Plain) -> ChoiceKey {
        let [d, h, w] = c.axes;
        let axis = |a: &crate::ops::WindowAxis| format!("{}s{}d{}", a.kernel, a.stride, a.dilation);
        ChoiceKey::new(site, self.dtype)
            .size("in", c.ic)
            .size("out", c.oc)
            .size("groups", c.groups)
            .size("images", c.batch)
            .size("d", d.output)
            .size("h", h.output)
            .size("w", w.output)
            .exact("taps", format_args!("{}x{}x{}", axis(&d), axis(&h), axis(&w)))
            .flag("known", self.cx.value(1).is_some())
            .flag("apart", !c.has_plain_weights())
            .flag("biased", self.biased)
            .flag("residual", self.summed)
            .flag("slopes", self.sloped)
    }
}

#[cfg(test)]
mod model_tests {
    use crate::backend::DeviceKind;
    use crate::dtype::DType;
    use crate::ops::conv::Conv;
    use crate::ops::{Fact, Lowering, OpCx, Operator, Step, StepKernel, WindowAttrs};
    use crate::registry::Registry;
    use crate::shape::Shape;
    use crate::tensor::TensorInfo;

    /// The kernels of a convolution by `taps` of images of `side` on a device with so many processors.
    fn kernels(
        (kind, processors): (DeviceKind, u32),
        [ic, oc]: [usize; 2],
        taps: usize,
        side: [usize; 2],
    ) -> Vec<&'static str> {
        let mut device = Registry::with_defaults().find("sim:discrete").unwrap();
        (device.kind, device.processors, device.prefers_texels) = (kind, Some(processors), false);
        let window = WindowAttrs { pads: vec![taps as i64 / 2; 4], ..WindowAttrs::default() };
        let conv = Conv { window, ..Conv::default() };
        let info = |dims: [usize; 4]| TensorInfo::new(DType::F32, Shape::new(dims).unwrap());
        let inputs = [info([1, ic, side[0], side[1]]), info([oc, ic, taps, taps])];
        let cx = OpCx::for_infer(inputs.map(|info| Some(Fact::of(info))).into(), 1);
        let cx = cx.clone().with_outputs(conv.infer(&cx).unwrap());
        let mut lower = Lowering::new(&device);
        conv.gpu(&cx, &mut lower).unwrap();
        let name = |step: &Step| match step {
            Step::Dispatch { kernel: StepKernel::Table(id), .. } => Some(id.info().name),
            _ => None,
        };
        lower.finish().steps.iter().filter_map(name).collect()
    }

    #[test]
    fn the_model_of_a_device_chooses_what_was_measured_as_the_fastest() {
        let (card, apu) = ((DeviceKind::Discrete, 132), (DeviceKind::Integrated, 12));
        let begins = |kernels: Vec<&str>, with: &str| {
            assert!(kernels.iter().any(|name| name.starts_with(with)), "{with}: {kernels:?}");
        };
        // Few output channels: by rows where they keep every processor busy, but not fewer than such a tile has.
        begins(kernels(card, [16, 16], 3, [512, 512]), "conv_row");
        begins(kernels(apu, [16, 16], 3, [80, 80]), "conv_row");
        begins(kernels(card, [16, 16], 3, [80, 80]), "conv_tile");
        begins(kernels(card, [3, 3], 3, [1080, 1920]), "conv_tile");
        // One tap is a product.
        begins(kernels(card, [256, 64], 1, [56, 56]), "gemm");
        // Transformed tiles pay earlier where memory is fast.
        begins(kernels(card, [64, 64], 3, [56, 56]), "winograd");
        begins(kernels(apu, [64, 64], 3, [56, 56]), "conv_tile");
        // Long sums of few large tiles are shared out.
        let shared = kernels(card, [256, 256], 3, [14, 14]);
        begins(shared.clone(), "sum_parts");
        assert!(!shared.iter().any(|name| name.ends_with("_small")), "{shared:?}");
    }
}

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use crate::dtype::DType;
    use crate::expr::Function;
    use crate::graph::Tensor;
    use crate::ops::conv::{Conv, ConvTranspose};
    use crate::ops::test_util::{facts, tensor_of, values};
    use crate::ops::testing::{Check, as_is, devices, no_texels};
    use crate::ops::{Activation, Operator, WindowAttrs};

    fn some(dtype: DType, shape: &[usize], seed: u64) -> Option<Tensor> {
        let values = values(shape.iter().product(), seed);
        Some(match dtype {
            DType::F16 => tensor_of(shape, &values, half::f16::from_f32),
            _ => tensor_of(shape, &values, |v| v),
        })
    }

    #[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    fn names(
        op: &dyn Operator,
        shapes: [&[usize]; 3],
        [half, known, texels, biased]: [bool; 4],
    ) -> BTreeSet<String> {
        let dtype = if half { DType::F16 } else { DType::F32 };
        let mut inputs: Vec<_> = (1..).zip(shapes).map(|(seed, shape)| some(dtype, shape, seed)).collect();
        inputs.truncate(if biased { 3 } else { 2 });
        if let Some(op) = op.downcast_ref::<Conv>().filter(|op| op.summed) {
            let plain = facts(&Conv { summed: false, ..op.clone() }, &inputs, 1).unwrap();
            let output = op.resolve(&plain).unwrap().1;
            inputs.resize(3, None);
            inputs.push(some(dtype, output.dims(), 4));
        }
        let constants: &[usize] = if known { &[1] } else { &[] };
        let check = Check::new(op, &inputs).constants(constants);
        let tolerance = if half { 8e-3 } else { 2e-4 };
        check.pretend(if texels { as_is } else { no_texels }).tolerance(tolerance).run_candidates()
    }

    /// The names of all candidates that ran.
    fn all_of(cases: u32, case: impl Fn([usize; 8], [bool; 8]) -> BTreeSet<String>) -> BTreeSet<String> {
        let mut ran = BTreeSet::new();
        let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
        let sizes =
            (1usize..40, 1usize..70, 1usize..3, 4usize..22, 4usize..22, 1usize..3, 1usize..3, 0usize..3);
        let flags = proptest::array::uniform8(any::<bool>());
        let all = std::cell::RefCell::new(&mut ran);
        let result = runner.run(&(sizes, flags), |((a, b, c, d, e, f, g, h), flags)| {
            all.borrow_mut().extend(case([a, b, c, d, e, f, g, h], flags));
            Ok(())
        });
        assert!(result.is_ok(), "{result:?}");
        ran
    }

    #[test]
    fn every_candidate_of_a_convolution_is_right() {
        let mut ran = all_of(4, |[ic, oc, groups, h, w, stride, dilation, pad], flags| {
            let [half, known, texels, biased, plain, pointwise, summed, sloped] = flags;
            let (stride, dilation) = if plain { (1, 1) } else { (stride, dilation) };
            let taps = if pointwise { 1 } else { 3 };
            let window = WindowAttrs {
                strides: vec![stride as i64; 2],
                dilations: vec![dilation as i64; 2],
                pads: vec![pad as i64; 4],
                ..WindowAttrs::default()
            };
            let activation = if sloped { Activation::None } else { Activation::of(Function::Relu) };
            let op = Conv { window, group: groups, activation, summed, sloped };
            let (x, y) = ([2, ic * groups, h, w], [oc * groups, ic, taps, taps]);
            if h + 2 * pad <= dilation * (taps - 1) || w + 2 * pad <= dilation * (taps - 1) {
                return BTreeSet::new();
            }
            let of_channels = oc * groups * if sloped { 2 } else { 1 };
            names(&op, [&x, &y, &[of_channels]], [half, known, texels, biased || sloped])
        });
        // Whatever the cases were: quads for the wide kernels, and transformed tiles.
        let same = WindowAttrs { pads: vec![1; 4], ..WindowAttrs::default() };
        for summed in [false, true] {
            let window = same.clone();
            let op = Conv { window, activation: Activation::of(Function::Relu), summed, ..Conv::default() };
            let of =
                |texels| names(&op, [&[1, 16, 8, 12], &[24, 16, 3, 3], &[24]], [false, true, texels, true]);
            ran.extend([true, false].into_iter().flat_map(of));
            let op = Conv { window: WindowAttrs::default(), ..op };
            ran.extend(names(&op, [&[1, 16, 8, 12], &[24, 16, 1, 1], &[24]], [false, true, false, true]));
        }
        if !devices().is_empty() {
            for name in ["winograd", "conv_row/8", "conv_row/64", "product", "conv_tile/64", "gemm_wide_f32"]
            {
                assert!(ran.contains(name), "{name} is not among {ran:?}");
            }
            assert!(ran.iter().any(|name| name.starts_with("conv_wide")), "{ran:?}");
        }
    }

    #[test]
    fn every_candidate_of_single_channels_is_right() {
        let mut ran = all_of(4, |[channels, _, each, h, w, stride, dilation, pad], flags| {
            let [half, known, texels, biased, long, _, summed, sloped] = flags;
            let taps = if long { 5 } else { 3 };
            let reach = dilation * (taps - 1);
            if h + 2 * pad <= reach || w + 2 * pad <= reach {
                return BTreeSet::new();
            }
            let window = WindowAttrs {
                strides: vec![stride as i64; 2],
                dilations: vec![dilation as i64; 2],
                pads: vec![pad as i64; 4],
                ..WindowAttrs::default()
            };
            let op = Conv { window, group: channels, summed, sloped, ..Conv::default() };
            let (x, y) = ([2, channels, h, w], [channels * each, 1, taps, taps]);
            let of_channels = channels * each * if sloped { 2 } else { 1 };
            names(&op, [&x, &y, &[of_channels]], [half, known, texels, biased || sloped])
        });
        let op = Conv { group: 6, ..Conv::default() };
        ran.extend(names(&op, [&[1, 6, 9, 12], &[6, 1, 3, 3], &[6]], [false, true, false, true]));
        if !devices().is_empty() {
            for name in ["depthwise/2x4/64", "depthwise/1x8/8"] {
                assert!(ran.contains(name), "{name} is not among {ran:?}");
            }
        }
    }

    #[test]
    fn every_candidate_of_a_transposed_convolution_is_right() {
        all_of(3, |[ic, oc, _, h, w, stride, _, _], [half, known, texels, biased, ..]| {
            let window = WindowAttrs { strides: vec![stride as i64; 2], ..WindowAttrs::default() };
            let op = ConvTranspose { window, ..ConvTranspose::default() };
            names(&op, [&[1, ic, h, w], &[ic, oc, 2, 2], &[oc]], [half, known, texels, biased])
        });
    }
}
