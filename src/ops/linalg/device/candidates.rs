//! The kernels that a product may run: the one by the model of the device, and those that may be measured instead.

use super::wide::{Strip, Wide};
use super::{Product, VECTOR_ROWS, tile_of};
use crate::kernel::KernelId;
use crate::kernel::codes::slices::{SMALL_TILE, TILE};
use crate::kernel::table::variants;
use crate::ops::linalg::joined::Beside;
use crate::ops::{Candidate, ChoiceKey, Lowering, OpError};

/// Invocations of a work-group of the row kernel: few where cores run them one after another.
const ROW_LOCALS: [u32; 2] = [8, 64];
/// The most rows of the row kernel's register tile.
const MAX_ROWS: usize = 8;
/// The most rows for which sums in parts are worth measuring.
const MAX_VECTOR_ROWS: usize = 8;

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    /// Register tiles over whole texels.
    Rows {
        /// Rows of a tile.
        rows: usize,
        /// Invocations of a work-group.
        local: u32,
    },
    /// Sums in parts, transposed where there is one column.
    Vectors(Vectors),
    /// Wide tiles, or cooperative matrices.
    Wide(Wide),
    /// Tiles in workgroup memory.
    Tiles {
        /// Rows and columns of a tile.
        tile: usize,
        /// Its kernel.
        kernel: KernelId,
    },
}

/// How a product of few rows is summed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Vectors {
    /// An element at a time.
    Single,
    /// Four elements at a time.
    Wide {
        /// The kernel, and whether columns of the right operand are contiguous.
        kernel: (KernelId, bool),
        /// Its work-groups.
        strip: Strip,
    },
}

impl Candidate for Method {
    fn name(&self) -> String {
        match self {
            Method::Rows { rows, local } => format!("gemm_row/{rows}/{local}"),
            Method::Vectors(Vectors::Single) => "gemv".to_owned(),
            Method::Vectors(Vectors::Wide { strip, .. }) => {
                format!("gemv_wide/{}/{}", strip.across, strip.local)
            }
            Method::Wide(wide) => wide.kernel.info().name.to_owned(),
            Method::Tiles { tile, .. } => format!("gemm_tile/{tile}"),
        }
    }
}

impl Vectors {
    fn emit(self, product: &Product, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        match self {
            Vectors::Single => product.vectors(lower),
            Vectors::Wide { kernel, strip } => {
                product.in_wide_vectors(kernel, strip, (None, &Beside::default()), lower)
            }
        }
    }
}

impl Product {
    /// Emits its dispatches.
    pub(super) fn lower_chosen(&self, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let default = self.method_by_model(lower)?;
        self.lower_by(default, lower)
    }

    /// Emits it by a kernel of wide tiles or of cooperative matrices, or what is chosen instead, if one fits by the model
    /// of the device, else nothing.
    pub(crate) fn lower_wide(&self, lower: &mut Lowering<'_>) -> Result<bool, OpError> {
        let wide = self.wide(lower);
        wide.map_or(Ok(false), |wide| self.lower_by(Method::Wide(wide), lower).map(|()| true))
    }

    /// Emits it as chosen for products like it, else by `default`.
    fn lower_by(&self, default: Method, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        // What was laid out for the row kernel is for no other, and only some kernels index so far.
        let method = if self.prepared.is_some() || !self.is_indexable() {
            default
        } else {
            lower.choose(default, |lower| (self.key(), self.methods(lower)))
        };
        match method {
            Method::Rows { rows, local } => self.rows(rows, local, lower),
            Method::Vectors(vectors) if self.n == 1 && self.m > 1 => vectors.emit(&self.flipped(), lower),
            Method::Vectors(vectors) => vectors.emit(self, lower),
            Method::Wide(wide) => self.wide_tiles(&wide, lower),
            Method::Tiles { tile, kernel } => self.tiles(tile, kernel, lower),
        }
    }

    /// How it is computed by the model of the device.
    fn method_by_model(&self, lower: &Lowering<'_>) -> Result<Method, OpError> {
        if self.by_texels(lower) {
            return Ok(Method::Rows { rows: self.row_tile(), local: ROW_LOCALS[0] });
        }
        if self.n == 1 && self.m > 1 {
            return Ok(Method::Vectors(self.flipped().vectors_by_model(lower)));
        }
        if self.m <= VECTOR_ROWS {
            return Ok(Method::Vectors(self.vectors_by_model(lower)));
        }
        if let Some(wide) = self.wide(lower) {
            return Ok(Method::Wide(wide));
        }
        // Parts of large tiles took an H100 as long as those of small ones, or longer.
        let sizes = ([self.m, self.n, self.pairs.len()], 0);
        let (tile, kernel) = tile_of(lower, sizes, self.tile_kernels()?);
        Ok(Method::Tiles { tile, kernel })
    }

    fn vectors_by_model(&self, lower: &Lowering<'_>) -> Vectors {
        let wide = |kernel: (KernelId, bool)| Vectors::Wide { kernel, strip: self.strip(kernel.1, lower) };
        self.wide_vectors(false, lower).map_or(Vectors::Single, wide)
    }

    fn row_tile(&self) -> usize {
        self.m.next_power_of_two().min(MAX_ROWS)
    }

    /// The kernels of tiles in workgroup memory, of large ones and of small ones.
    fn tile_kernels(&self) -> Result<[KernelId; 2], OpError> {
        // Whole quads of a row: a bus to the host's memory carries single elements slowly.
        let variant = variants::GemmTile { t: self.dtype, out4: self.n.is_multiple_of(4), small: false };
        Ok([variant.id()?, variants::GemmTile { small: true, ..variant }.id()?])
    }

    /// Every way that the device can compute it and that may be the fastest one somewhere.
    fn methods(&self, lower: &Lowering<'_>) -> Vec<Method> {
        let mut all = Vec::new();
        if self.can_take_rows(lower) {
            let tiles = [8, 4, 2, 1].into_iter().filter(|rows| *rows <= self.row_tile());
            let of = |rows: usize| ROW_LOCALS.map(|local| Method::Rows { rows, local });
            all.extend(tiles.take(2).flat_map(of));
        }
        let flipped = (self.n == 1 && self.m > 1).then(|| self.flipped());
        let few = flipped.as_ref().unwrap_or(self);
        if few.m <= MAX_VECTOR_ROWS && self.summand.is_none() {
            all.push(Method::Vectors(Vectors::Single));
            if let Some(kernel) = few.wide_vectors(false, lower) {
                let strips = few.strips(kernel.1, lower).into_iter();
                all.extend(strips.map(|strip| Method::Vectors(Vectors::Wide { kernel, strip })));
            }
        }
        if few.m > 1 {
            all.extend(self.all_wide(lower).into_iter().map(Method::Wide));
            let kernels = self.tile_kernels().into_iter().flatten();
            let tiles = [TILE, SMALL_TILE].into_iter().zip(kernels);
            let tiles = tiles.filter(|(_, kernel)| lower.can_run(*kernel));
            all.extend(tiles.map(|(tile, kernel)| Method::Tiles { tile, kernel }));
        }
        all
    }

    fn key(&self) -> ChoiceKey {
        let order = |source: &super::Source| if source.col == 1 { "rows" } else { "columns" };
        ChoiceKey::new("product", self.dtype)
            .size("m", self.m)
            .size("n", self.n)
            .size("k", self.k)
            .size("batch", self.pairs.len())
            .exact("a", order(&self.a))
            .exact("b", order(&self.b))
            .flag("known", self.b.value.is_some())
            .flag("summand", self.c.is_some())
            .flag("residual", self.summand.is_some())
    }
}

#[cfg(all(test, feature = "vulkan"))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use crate::backend::{DeviceInfo, DeviceKind};
    use crate::graph::Tensor;
    use crate::ops::test_util::{attrs, read_op, tensor_of, values};
    use crate::ops::testing::{Check, as_is, devices, no_texels};
    use crate::ops::{AttrValue, Operator};

    fn some(half: bool, shape: &[usize], seed: u64) -> Option<Tensor> {
        let values = values(shape.iter().product(), seed);
        Some(if half {
            tensor_of(shape, &values, half::f16::from_f32)
        } else {
            tensor_of(shape, &values, |v| v)
        })
    }

    fn names(op: &dyn Operator, shapes: &[&[usize]], [half, known, texels]: [bool; 3]) -> BTreeSet<String> {
        let inputs: Vec<_> = (1..).zip(shapes).map(|(seed, shape)| some(half, shape, seed)).collect();
        let constants: &[usize] = if known { &[1] } else { &[] };
        let check = Check::new(op, &inputs).constants(constants);
        let tolerance = if half { 8e-3 } else { 1e-4 };
        check.pretend(if texels { as_is } else { no_texels }).tolerance(tolerance).run_candidates()
    }

    /// Sizes up to 70, whole fours and eights among them, and single rows and columns.
    fn size() -> impl Strategy<Value = usize> {
        prop_oneof![1usize..70, (1usize..18).prop_map(|n| 4 * n), (1usize..9).prop_map(|n| 8 * n), 1usize..5]
    }

    #[test]
    fn every_candidate_of_a_product_is_right() {
        let mut runner = TestRunner::new(Config { cases: 5, failure_persistence: None, ..Config::default() });
        let ran = std::cell::RefCell::new(BTreeSet::new());
        let op = read_op("MatMul", 13, &attrs(&[])).unwrap();
        let flags = proptest::array::uniform3(any::<bool>());
        runner
            .run(&(size(), size(), size(), 1usize..4, flags), |(m, n, k, batch, flags)| {
                let right: &[usize] = if flags[1] { &[k, n] } else { &[batch, k, n] };
                ran.borrow_mut().extend(names(&*op, &[&[batch, m, k], right], flags));
                Ok(())
            })
            .unwrap();
        let mut ran = ran.into_inner();
        for (m, n, k) in [(1, 64, 32), (64, 72, 32), (7, 12, 8), (40, 1, 16)] {
            ran.extend(names(&*op, &[&[m, k], &[k, n]], [false, true, false]));
        }
        if !devices().is_empty() {
            let all = [
                "gemm_row/8/8",
                "gemm_row/4/64",
                "gemv",
                "gemv_wide/4/256",
                "gemv_wide/32/256",
                "gemm_wide_f32",
            ];
            for name in all.into_iter().chain(["gemm_tile/64"]) {
                assert!(ran.contains(name), "{name} is not among {ran:?}");
            }
        }
    }

    /// Few columns on a large device: longer work-groups share the depth out.
    #[test]
    fn few_columns_are_summed_by_longer_work_groups() {
        fn card(info: &mut DeviceInfo) {
            no_texels(info);
            (info.kind, info.processors) = (DeviceKind::Discrete, Some(132));
        }
        let op = read_op("MatMul", 13, &attrs(&[])).unwrap();
        let mut ran = BTreeSet::new();
        for (n, k, half) in [(2048, 512, true), (96, 640, false), (96, 640, true), (64, 40, false)] {
            let inputs = [some(half, &[1, k], 1), some(half, &[k, n], 2)];
            let tolerance = if half { 8e-3 } else { 1e-4 };
            ran.extend(Check::new(&*op, &inputs).pretend(card).tolerance(tolerance).run_candidates());
        }
        if !devices().is_empty() {
            for name in ["gemv_wide/8/1024", "gemv_wide/4/512", "gemv_wide/4/256"] {
                assert!(ran.contains(name), "{name} is not among {ran:?}");
            }
        }
    }

    #[test]
    fn every_candidate_of_a_product_of_turned_matrices_is_right() {
        let mut runner = TestRunner::new(Config { cases: 3, failure_persistence: None, ..Config::default() });
        let flags = proptest::array::uniform3(any::<bool>());
        runner
            .run(&(size(), size(), size(), any::<[bool; 2]>(), flags), |(m, n, k, [ta, tb], flags)| {
                let turned = |name, turned: bool| (name, AttrValue::Int(i64::from(turned)));
                let op = read_op("Gemm", 13, &attrs(&[turned("transA", ta), turned("transB", tb)])).unwrap();
                let a = if ta { [k, m] } else { [m, k] };
                let b = if tb { [n, k] } else { [k, n] };
                names(&*op, &[&a, &b, &[n]], flags);
                Ok(())
            })
            .unwrap();
    }
}
