//! Weights: which bytes of the file the graph needs, and their way into memory.

use std::collections::{BTreeSet, HashMap};

use half::{bf16, f16};

use super::file::{GgufFile, GgufTensor, kind_name};
use super::parts::Parts;
use crate::dtype::DType;
use crate::graph::{GraphBuilder, TensorId, TensorInfo};
use crate::loader::error::{ErrorLocation, LoadError, LoadErrorKind};
use crate::loader::pack::{Item, pack};
use crate::loader::source::WIDENED;
use crate::memory::os;
use crate::ops::ggml::{BlockType, Rows};
use crate::shape::Shape;

/// Constants that the graph needs, read all at once.
pub(super) struct Weights<'f> {
    file: &'f GgufFile,
    used: BTreeSet<&'f str>,
    wanted: Vec<Wanted<'f>>,
    rows: HashMap<String, (TensorId, Rows)>,
}

struct Wanted<'f> {
    id: TensorId,
    info: TensorInfo,
    /// Contiguous in memory, in this order.
    parts: Vec<Range<'f>>,
    /// Whether they become `float32`.
    floats: bool,
}

/// Rows of one tensor of the file.
struct Range<'f> {
    name: &'f str,
    blocks: BlockType,
    part: usize,
    at: u64,
    bytes: usize,
}

/// Rows of a tensor, for [`Weights::rows`].
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) first: usize,
    pub(super) rows: usize,
    /// Rows that the tensor must have.
    pub(super) of: usize,
}

impl Part {
    /// All `rows` rows.
    pub(super) fn whole(name: String, rows: usize) -> Self {
        Part { name, first: 0, rows, of: rows }
    }
}

fn at_tensor(name: &str, kind: LoadErrorKind) -> LoadError {
    kind.at(ErrorLocation::Tensor(name.to_owned()))
}

impl<'f> Weights<'f> {
    pub(super) fn new(file: &'f GgufFile) -> Self {
        Weights { file, used: BTreeSet::new(), wanted: Vec::new(), rows: HashMap::new() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// The element type of tensor `name`, and the part of the model that has it.
    pub(super) fn kind(&self, name: &str) -> Option<(u32, usize)> {
        self.file.tensor(name).map(|tensor| (tensor.kind, tensor.part))
    }

    /// Rows of tensor `name`.
    pub(super) fn count(&self, name: &str) -> Result<usize, LoadError> {
        self.file.tensor(name).map(|tensor| tensor.rows().1).ok_or_else(|| self.file.lacks(name))
    }

    /// The sizes of tensor `name` as ggml orders them.
    pub(super) fn dims(&self, name: &str) -> Result<&'f [usize], LoadError> {
        self.file.tensor(name).map(|tensor| tensor.dims.as_slice()).ok_or_else(|| self.file.lacks(name))
    }

    /// Notes that tensor `name` is known, if it is there.
    pub(super) fn take(&mut self, name: &str) {
        if let Some((name, _)) = self.file.entry(name) {
            self.used.insert(name);
        }
    }

    fn find(&mut self, name: &str) -> Result<(&'f str, &'f GgufTensor, BlockType), LoadError> {
        let (name, tensor) = self.file.entry(name).ok_or_else(|| self.file.lacks(name))?;
        let Some(blocks) = tensor.blocks() else {
            let names = BlockType::ALL.map(BlockType::name).join(", ");
            let kind = kind_name(tensor.kind);
            let what =
                format!("elements of {kind}; these are read: {names}: quantize the model to Q4_K_M or Q8_0");
            return Err(at_tensor(name, LoadErrorKind::unsupported(what)));
        };
        self.used.insert(name);
        Ok((name, tensor, blocks))
    }

    /// A constant of rows of `k` elements of tensors of one type, contiguous.
    pub(super) fn rows(
        &mut self,
        g: &mut GraphBuilder,
        parts: &[Part],
        k: usize,
    ) -> Result<(TensorId, Rows), LoadError> {
        let key = format!("{parts:?}");
        if let Some(known) = self.rows.get(&key) {
            return Ok(*known);
        }
        let mut common: Option<Rows> = None;
        let mut ranges = Vec::new();
        for part in parts {
            let (name, tensor, blocks) = self.find(&part.name)?;
            let (width, height) = tensor.rows();
            let end = part.first.saturating_add(part.rows);
            if width != k || height != part.of || end > height {
                let expected = format!("{} rows of {k}", part.of);
                let found = format!("{height} rows of {width}");
                return Err(at_tensor(name, LoadErrorKind::unexpected(expected, found)));
            }
            let step = Rows::STEP.max(blocks.elements());
            if k == 0 || part.rows == 0 || !k.is_multiple_of(step) {
                let what = format!(
                    "{} rows of {k} elements of {}, expected rows of a multiple of {step}: load an ONNX export of the model",
                    part.rows,
                    blocks.name()
                );
                return Err(at_tensor(name, LoadErrorKind::unsupported(what)));
            }
            let row = Rows { blocks, rows: 1, k }.row_bytes();
            let bytes = row.checked_mul(part.rows);
            let bytes = bytes
                .ok_or_else(|| LoadErrorKind::unexpected("sizes that memory can have", end.to_string()))?;
            let at = tensor.at.saturating_add((row as u64).saturating_mul(part.first as u64));
            ranges.push(Range { name, blocks, part: tensor.part, at, bytes });
            let rows = common.map_or(0, |rows| rows.rows).saturating_add(part.rows);
            if common.is_some_and(|rows| rows.blocks != blocks) {
                let expected = format!("the type of {:?}", parts.first().map_or("", |part| &part.name));
                return Err(at_tensor(name, LoadErrorKind::unexpected(expected, blocks.name())));
            }
            common = Some(Rows { blocks, rows, k });
        }
        let rows = common.ok_or_else(|| LoadErrorKind::missing("a tensor"))?;
        let info = rows
            .info()
            .ok_or_else(|| LoadErrorKind::unexpected("rows that memory can have", k.to_string()))?;
        let label = match parts {
            [Part { name, first, rows, of }] if rows != of => format!("{name}[{first}, {rows}]"),
            _ => parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join("+"),
        };
        let id = self.want(g, label, info, ranges, false);
        self.rows.insert(key, (id, rows));
        Ok((id, rows))
    }

    /// As [`Weights::rows`], of all experts: `n` rows of `k` elements of each of `count`.
    pub(super) fn experts(
        &mut self,
        g: &mut GraphBuilder,
        name: &str,
        [k, n, count]: [usize; 3],
    ) -> Result<(TensorId, BlockType), LoadError> {
        let found = self.dims(name)?;
        if found != [k, n, count] {
            let expected = format!("{count} experts of {n} rows of {k}");
            return Err(at_tensor(name, LoadErrorKind::unexpected(expected, format!("{found:?}"))));
        }
        let all = Part::whole(name.to_owned(), n.saturating_mul(count));
        self.rows(g, &[all], k).map(|(id, rows)| (id, rows.blocks))
    }

    /// A constant of `float32` of the elements of tensors that have `len` of them each.
    pub(super) fn floats(
        &mut self,
        g: &mut GraphBuilder,
        names: &[(String, usize)],
    ) -> Result<TensorId, LoadError> {
        let mut ranges = Vec::new();
        let mut total = 0usize;
        for (name, len) in names {
            ranges.push(self.vector(name, *len)?);
            total = total.saturating_add(*len);
        }
        let info = TensorInfo::new(DType::F32, Shape::new([total]).map_err(LoadErrorKind::Shape)?);
        let label = names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join("+");
        Ok(self.want(g, label, info, ranges, true))
    }

    /// A constant of `float32` of `n` elements for each of `count` experts.
    pub(super) fn expert_biases(
        &mut self,
        g: &mut GraphBuilder,
        name: &str,
        [n, count]: [usize; 2],
    ) -> Result<TensorId, LoadError> {
        let range =
            self.numbers(name, &[n, count], || format!("{n} elements for each of {count} experts"))?;
        let info = TensorInfo::new(DType::F32, Shape::new([count, n]).map_err(LoadErrorKind::Shape)?);
        Ok(self.want(g, name.to_owned(), info, vec![range], true))
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Range<'f>, LoadError> {
        self.numbers(name, &[len], || format!("{len} elements"))
    }

    /// A tensor of single numbers with these sizes.
    fn numbers(
        &mut self,
        name: &str,
        dims: &[usize],
        expected: impl Fn() -> String,
    ) -> Result<Range<'f>, LoadError> {
        let (name, tensor, blocks) = self.find(name)?;
        if tensor.dims != dims {
            let found = format!("{:?}", tensor.dims);
            return Err(at_tensor(name, LoadErrorKind::unexpected(expected(), found)));
        }
        if blocks.elements() != 1 {
            let what = format!("a vector of {}; F32, F16 and BF16 are read", blocks.name());
            return Err(at_tensor(name, LoadErrorKind::unsupported(what)));
        }
        let bytes = dims.iter().fold(blocks.bytes(), |all, size| all.saturating_mul(*size));
        Ok(Range { name, blocks, part: tensor.part, at: tensor.at, bytes })
    }

    /// The elements of a small tensor, now; nothing where it is not there.
    pub(super) fn read_now(
        &mut self,
        from: &mut Parts<'_>,
        name: &str,
        len: usize,
    ) -> Result<Option<Vec<f32>>, LoadError> {
        if !self.has(name) {
            return Ok(None);
        }
        let range = self.vector(name, len)?;
        let mut bytes = vec![0; len.saturating_mul(4)];
        range.widened(from, &mut bytes)?;
        Ok(Some(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    }

    fn want(
        &mut self,
        g: &mut GraphBuilder,
        label: String,
        info: TensorInfo,
        parts: Vec<Range<'f>>,
        floats: bool,
    ) -> TensorId {
        let id = g.declare(label);
        self.wanted.push(Wanted { id, info, parts, floats });
        id
    }

    /// Reads all that was asked for.
    pub(super) fn load(
        self,
        g: &mut GraphBuilder,
        from: &mut Parts<'_>,
        progress: Option<&dyn Fn(u64, u64)>,
    ) -> Result<(), LoadError> {
        let mut unknown = self.file.tensors().map(|(name, _)| name).filter(|name| !self.used.contains(name));
        if let Some(name) = unknown.next() {
            let what =
                "a tensor that is no part of such a decoder as far as is known: the result would be wrong";
            return Err(at_tensor(name, LoadErrorKind::unsupported(what)));
        }
        let infos: Vec<TensorInfo> = self.wanted.iter().map(|wanted| wanted.info.clone()).collect();
        let found = infos.iter().fold(0u64, |all, info| all.saturating_add(info.bytes() as u64));
        let limit = os::physical_memory().unwrap_or(u64::MAX);
        if found > limit {
            let what = "bytes of tensors, more than the memory of this machine";
            return Err(LoadErrorKind::TooMany { what, found, limit }.into());
        }
        let items: Vec<Item> = self.wanted.iter().map(|wanted| wanted.item(from)).collect();
        let tensors = pack(&items, progress, |i, to, read| match self.wanted.get(i) {
            Some(wanted) if read => {
                wanted.end(to);
                Ok(())
            }
            Some(wanted) => wanted.fill(from, to),
            None => Ok(()),
        })?;
        for (wanted, tensor) in self.wanted.iter().zip(tensors) {
            g.define_constant(wanted.id, tensor);
        }
        Ok(())
    }
}

impl Wanted<'_> {
    fn item(&self, from: &Parts<'_>) -> Item {
        let pieces = self.parts.iter().map(|part| (part.at, part.bytes as u64)).collect();
        let narrow = self.floats && self.parts.iter().any(|part| part.blocks != BlockType::F32);
        let first = self.parts.first().map_or(0, |part| part.part);
        let Some(source) = from.get(first).filter(|_| self.parts.iter().all(|part| part.part == first))
        else {
            return Item::filled(self.info.clone());
        };
        source.item(self.info.clone(), pieces, if narrow { WIDENED } else { "" })
    }

    /// Zeros after what was read.
    fn end(&self, to: &mut [u8]) {
        let read = self.parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.bytes));
        to.get_mut(read..).unwrap_or_default().fill(0);
    }

    fn fill(&self, from: &mut Parts<'_>, to: &mut [u8]) -> Result<(), LoadError> {
        let mut rest = to;
        for part in &self.parts {
            let len = if self.floats { part.elements().saturating_mul(4) } else { part.bytes };
            let (to, after) = rest.split_at_mut_checked(len).unwrap_or_default();
            if self.floats {
                part.widened(from, to)?;
            } else {
                part.read(from, to)?;
            }
            rest = after;
        }
        rest.fill(0);
        Ok(())
    }
}

impl Range<'_> {
    fn elements(&self) -> usize {
        self.bytes.checked_div(self.blocks.bytes()).unwrap_or(0)
    }

    fn read(&self, from: &mut Parts<'_>, to: &mut [u8]) -> Result<(), LoadError> {
        from.read(self.part, self.at, to).map_err(|e| e.at_tensor(self.name))
    }

    /// Reads single numbers as `float32`.
    fn widened(&self, from: &mut Parts<'_>, to: &mut [u8]) -> Result<(), LoadError> {
        if self.blocks == BlockType::F32 {
            return self.read(from, to);
        }
        let mut bytes = vec![0; self.bytes];
        self.read(from, &mut bytes)?;
        let halves = bytes.as_chunks::<2>().0;
        for (to, half) in to.as_chunks_mut::<4>().0.iter_mut().zip(halves) {
            let value = match self.blocks {
                BlockType::Bf16 => bf16::from_le_bytes(*half).to_f32(),
                _ => f16::from_le_bytes(*half).to_f32(),
            };
            *to = value.to_le_bytes();
        }
        Ok(())
    }
}
