//! What a compute kernel's SPIR-V says about its interface.
//!
//! The shipped kernel table and a user's module are read by the same code, so a backend sees one kind of
//! description. Shared with the build script: no `crate::` paths here.

use std::borrow::Cow;

use rspirv::dr::Operand;
use rspirv::spirv::{BuiltIn, Capability, Decoration, Dim, ExecutionMode, ExecutionModel, Op, StorageClass};

use super::access;
pub use super::access::BindingAccess;
use super::parse::{Inst, Module, SpirvError, SpirvErrorKind, is_atomic, parse};
use super::types::{Element, Index, SIZE_CAP, ScalarType, TypeBudget, ValueType, unsupported};

/// A module with more bindings, or more specialization constants, is refused.
pub const MAX_INTERFACE: usize = 256;

/// What a binding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindingKind {
    /// A storage buffer.
    StorageBuffer,
    /// A read-only view of a buffer as formatted texels (`samplerBuffer`).
    UniformTexelBuffer,
    /// A view of a buffer as formatted texels that can be written (`imageBuffer`).
    StorageTexelBuffer,
    /// A uniform buffer.
    UniformBuffer,
    /// An image together with its sampler (`sampler2D`).
    SampledImage,
    /// An image without a sampler (`image2D`).
    StorageImage,
}

/// One resource binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingInfo {
    /// Descriptor set.
    pub set: u32,
    /// Binding number.
    pub binding: u32,
    /// What it is.
    pub kind: BindingKind,
    /// How it is used.
    pub access: BindingAccess,
    /// Its name in the source; empty if the module carries none.
    pub name: Cow<'static, str>,
    /// The element of a buffer that ends in a runtime array, or the texel.
    pub element: Option<Element>,
}

/// One member of the push-constant block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamInfo {
    /// Its name in the source; empty if the module carries none.
    pub name: Cow<'static, str>,
    /// Offset in bytes.
    pub offset_bytes: u32,
    /// Its type.
    pub ty: ValueType,
}

/// One specialization constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecInfo {
    /// Its `constant_id`.
    pub id: u32,
    /// Its name; `local_size_x`, `_y` or `_z` if it has none and is a component of the work-group size.
    pub name: Cow<'static, str>,
    /// Its type.
    pub ty: ScalarType,
    /// The bits of its default, zero-extended.
    pub default_bits: u64,
}

/// The interface of a compute kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reflection {
    /// SPIR-V version, (major, minor).
    pub version: (u8, u8),
    /// Name of the entry point.
    pub entry_point: Cow<'static, str>,
    /// Bindings, sorted by set and number; variables that alias one binding are merged.
    pub bindings: Vec<BindingInfo>,
    /// Members of the push-constant block, by offset.
    pub params: Vec<ParamInfo>,
    /// Bytes of the push-constant block.
    pub params_bytes: u32,
    /// Specialization constants by id.
    pub spec: Vec<SpecInfo>,
    /// Work-group size; a component that can be specialized has its default here.
    pub local_size: [u32; 3],
    /// The specialization constants of the work-group size.
    pub local_size_spec: [Option<u32>; 3],
    /// Whether the work-group size is given by `OpExecutionModeId LocalSizeId`.
    pub local_size_id: bool,
    /// Bytes of workgroup memory with every specialization constant at its default.
    pub shared_bytes: u32,
    /// Whether it has atomic operations, by which work-groups can tell each other something.
    pub atomics: bool,
    /// The capabilities the module declares, in order.
    pub capabilities: Vec<Capability>,
}

/// Reflects the kernel in `words`.
///
/// # Errors
/// The words are no sound module, or hold something that this runtime cannot bind.
pub fn reflect(words: &[u32]) -> Result<Reflection, SpirvError> {
    reflect_module(&parse(words)?)
}

/// Reflects a module that has been parsed.
///
/// # Errors
/// As [`reflect`].
pub fn reflect_module(module: &Module) -> Result<Reflection, SpirvError> {
    let index = Index::new(module, &[])?;
    let (entry, entry_point) = entry_point(module)?;
    let mut spec = spec_constants(&index)?;
    let (local_size, local_size_spec) = local_size(&index, entry, &mut spec)?;
    let (params, params_bytes) = params(&index)?;
    Ok(Reflection {
        version: module.version,
        entry_point,
        bindings: bindings(&index)?,
        params,
        params_bytes,
        spec,
        local_size,
        local_size_spec,
        local_size_id: module.globals().any(|inst| inst.op() == Op::ExecutionModeId),
        shared_bytes: shared_bytes(&index)?,
        atomics: module.insts.iter().any(|inst| is_atomic(inst.op())),
        capabilities: module
            .globals()
            .filter_map(|inst| match inst.inst.operands.first() {
                Some(Operand::Capability(capability)) => Some(*capability),
                _ => None,
            })
            .collect(),
    })
}

fn entry_point(module: &Module) -> Result<(u32, Cow<'static, str>), SpirvError> {
    let mut found = None;
    for inst in module.globals().filter(|inst| inst.op() == Op::EntryPoint) {
        if found.is_some() {
            return Err(unsupported(inst, "a second entry point"));
        }
        match inst.inst.operands.as_slice() {
            [
                Operand::ExecutionModel(ExecutionModel::GLCompute),
                Operand::IdRef(id),
                Operand::LiteralString(name),
                ..,
            ] => found = Some((*id, Cow::Owned(name.clone()))),
            _ => return Err(unsupported(inst, "an entry point other than GLCompute")),
        }
    }
    let rule = Cow::Borrowed("the module has no entry point");
    found.ok_or(SpirvError { word: 0, kind: SpirvErrorKind::Invalid { rule } })
}

fn spec_constants(index: &Index<'_>) -> Result<Vec<SpecInfo>, SpirvError> {
    let mut spec: Vec<SpecInfo> = Vec::new();
    for inst in index.module.globals() {
        let (Some(result), Some(ty)) = (inst.inst.result_id, inst.inst.result_type) else { continue };
        let default_bits = match (inst.op(), inst.inst.operands.first()) {
            (Op::SpecConstantTrue, _) => 1,
            (Op::SpecConstantFalse, _) => 0,
            (Op::SpecConstant, Some(Operand::LiteralBit32(bits))) => u64::from(*bits),
            (Op::SpecConstant, Some(Operand::LiteralBit64(bits))) => *bits,
            _ => continue,
        };
        // Without an id it is a plain constant: nothing can specialize it.
        let Some(id) = index.decoration(result, None, Decoration::SpecId) else { continue };
        let ty = index.scalar(index.type_def(inst, ty)?)?;
        let name = Cow::Owned(index.name(result, None).to_owned());
        let full = spec.len() == MAX_INTERFACE;
        match spec.iter_mut().find(|known| known.id == id) {
            Some(known) if known.ty == ty && known.default_bits == default_bits => {
                if known.name.is_empty() {
                    known.name = name;
                }
            }
            Some(_) => {
                let rule = format!("specialization constant {id} is declared twice, differently");
                return Err(inst.error(SpirvErrorKind::Invalid { rule: Cow::Owned(rule) }));
            }
            None if full => {
                return Err(unsupported(inst, "this many specialization constants"));
            }
            None => spec.push(SpecInfo { id, name, ty, default_bits }),
        }
    }
    spec.sort_by_key(|constant| constant.id);
    Ok(spec)
}

/// The `WorkgroupSize` built-in wins over `LocalSizeId`, and that over `LocalSize`.
fn local_size(
    index: &Index<'_>,
    entry: u32,
    spec: &mut [SpecInfo],
) -> Result<([u32; 3], [Option<u32>; 3]), SpirvError> {
    let sets = |inst: &Inst, mode: ExecutionMode| {
        inst.inst.operands.starts_with(&[Operand::IdRef(entry), Operand::ExecutionMode(mode)])
    };
    let mut literal = None;
    let mut ids = None;
    for inst in index.module.globals() {
        match inst.op() {
            Op::ConstantComposite | Op::SpecConstantComposite
                if inst.inst.result_id.is_some_and(|id| index.is_builtin(id, BuiltIn::WorkgroupSize)) =>
            {
                ids = Some((inst, [inst.id(0)?, inst.id(1)?, inst.id(2)?]));
                break;
            }
            Op::ExecutionModeId if sets(inst, ExecutionMode::LocalSizeId) => {
                ids = Some((inst, [inst.id(2)?, inst.id(3)?, inst.id(4)?]));
            }
            Op::ExecutionMode if sets(inst, ExecutionMode::LocalSize) => {
                literal = Some([inst.literal(2)?, inst.literal(3)?, inst.literal(4)?]);
            }
            _ => {}
        }
    }
    let Some((inst, ids)) = ids else {
        let rule = Cow::Borrowed("the kernel declares no work-group size");
        let missing = SpirvError { word: 0, kind: SpirvErrorKind::Invalid { rule } };
        return Ok((literal.ok_or(missing)?, [None; 3]));
    };
    let mut size = [0; 3];
    let mut spec_ids = [None; 3];
    for (axis, id) in ids.into_iter().enumerate() {
        let expected = "a constant of the work-group size";
        let value = index.constant_u32(id, 0);
        size[axis] = value.ok_or_else(|| inst.error(SpirvErrorKind::WrongId { id, expected }))?;
        if let Some(spec_id) = index.decoration(id, None, Decoration::SpecId) {
            spec_ids[axis] = Some(spec_id);
            if let Some(constant) = spec.iter_mut().find(|c| c.id == spec_id && c.name.is_empty()) {
                constant.name = Cow::Borrowed(["local_size_x", "local_size_y", "local_size_z"][axis]);
            }
        }
    }
    Ok((size, spec_ids))
}

fn params(index: &Index<'_>) -> Result<(Vec<ParamInfo>, u32), SpirvError> {
    let params: Vec<ParamInfo> = Vec::new();
    let mut variables = variables(index.module, &[StorageClass::PushConstant]);
    let Some((variable, _)) = variables.next() else { return Ok((params, 0)) };
    if let Some((second, _)) = variables.next() {
        return Err(unsupported(second, "a second push-constant block"));
    }
    let block = index.pointee(variable)?;
    if block.op() != Op::TypeStruct {
        return Err(unsupported(variable, "a push constant that is no block"));
    }
    let mut walk = ParamWalk { index, params, bytes: 0, visits: 0 };
    walk.members(block, "", 0, 0)?;
    walk.params.sort_by_key(|param| param.offset_bytes);
    Ok((walk.params, walk.bytes))
}

/// Members of push constants that a module may have, those of structures in it each for itself.
const MAX_PARAMS: usize = 1024;

/// Structures and arrays that are nested deeper are refused.
const MAX_PARAM_DEPTH: u32 = 8;

/// Parts that are looked at: structures may be empty.
const MAX_PARAM_VISITS: u32 = 1 << 14;

/// A longer name of a part is left out.
const MAX_PARAM_NAME: usize = 256;

/// Collects the members of the push constants.
struct ParamWalk<'i, 'm> {
    index: &'i Index<'m>,
    params: Vec<ParamInfo>,
    bytes: u32,
    visits: u32,
}

impl ParamWalk<'_, '_> {
    /// The members of the structure `block`, which lies at `base` and is called `outer`.
    fn members(&mut self, block: &Inst, outer: &str, base: u32, depth: u32) -> Result<(), SpirvError> {
        if depth > MAX_PARAM_DEPTH {
            return Err(unsupported(block, "push constants that are nested so deeply"));
        }
        let id = block.inst.result_id.unwrap_or(0);
        for at in 0..block.inst.operands.len() {
            let member = at as u32;
            let ty = self.index.type_def(block, block.id(at)?)?;
            let missing = || block.error(SpirvErrorKind::MissingDecoration { id, decoration: "Offset" });
            let offset = self.index.decoration(id, Some(member), Decoration::Offset).ok_or_else(missing)?;
            let name = self.index.name(id, Some(member));
            let name = if outer.is_empty() { name.to_owned() } else { format!("{outer}.{name}") };
            self.param(ty, name, base.saturating_add(offset), (block, member), depth)?;
        }
        Ok(())
    }

    /// A value of type `ty` at `offset`, of a member that `holder` names.
    fn param(
        &mut self,
        ty: &Inst,
        name: String,
        offset: u32,
        holder: (&Inst, u32),
        depth: u32,
    ) -> Result<(), SpirvError> {
        self.visits += 1;
        if self.visits > MAX_PARAM_VISITS {
            return Err(unsupported(ty, "so many parts of push constants"));
        }
        let name = if depth > 0 && name.len() > MAX_PARAM_NAME { String::new() } else { name };
        let compound = |ty: &Inst| matches!(ty.op(), Op::TypeStruct | Op::TypeArray | Op::TypeMatrix);
        let value = match ty.op() {
            Op::TypeStruct => return self.members(ty, &name, offset, depth + 1),
            Op::TypeMatrix => self.matrix(ty, holder)?,
            Op::TypeArray => {
                let element = self.index.type_def(ty, ty.id(0)?)?;
                if compound(element) {
                    let (len, stride) = self.index.array(ty)?;
                    self.bytes = self.bytes.max(offset.saturating_add(len.saturating_mul(stride)));
                    if depth > MAX_PARAM_DEPTH || len as usize > MAX_PARAMS {
                        return Err(unsupported(ty, "so long an array in push constants"));
                    }
                    for i in 0..len {
                        let offset = offset.saturating_add(i.saturating_mul(stride));
                        self.param(element, format!("{name}[{i}]"), offset, holder, depth + 1)?;
                    }
                    return Ok(());
                }
                self.index.value(ty)?
            }
            _ => self.index.value(ty)?,
        };
        if self.params.len() >= MAX_PARAMS {
            return Err(unsupported(ty, "so many push constants"));
        }
        self.bytes = self.bytes.max(offset.saturating_add(value.bytes()));
        self.params.push(ParamInfo { name: Cow::Owned(name), offset_bytes: offset, ty: value });
        Ok(())
    }

    /// A matrix as it lies in memory: an array of its columns, or of its rows.
    fn matrix(&self, ty: &Inst, (block, member): (&Inst, u32)) -> Result<ValueType, SpirvError> {
        let id = block.inst.result_id.unwrap_or(0);
        let missing = || block.error(SpirvErrorKind::MissingDecoration { id, decoration: "MatrixStride" });
        let stride = self.index.decoration(id, Some(member), Decoration::MatrixStride).ok_or_else(missing)?;
        let column = self.index.value(self.index.type_def(ty, ty.id(0)?)?)?;
        let columns = ty.literal(1)?;
        Ok(match self.index.has(id, Some(member), Decoration::RowMajor) {
            true => ValueType { components: columns, array: Some((column.components, stride)), ..column },
            false => ValueType { array: Some((columns, stride)), ..column },
        })
    }
}

fn bindings(index: &Index<'_>) -> Result<Vec<BindingInfo>, SpirvError> {
    const CLASSES: &[StorageClass] =
        &[StorageClass::StorageBuffer, StorageClass::Uniform, StorageClass::UniformConstant];
    let uses = access::uses(index.module)?;
    let mut bindings: Vec<BindingInfo> = Vec::new();
    for (variable, class) in variables(index.module, CLASSES) {
        let id = variable.inst.result_id.unwrap_or(0);
        let missing = |decoration| variable.error(SpirvErrorKind::MissingDecoration { id, decoration });
        let set = index.decoration(id, None, Decoration::DescriptorSet);
        let binding = index.decoration(id, None, Decoration::Binding);
        let ty = index.pointee(variable)?;
        let (kind, element, declared) = resource(index, variable, ty, class)?;
        let used = uses.get(&id).copied();
        if let (Some(declared), Some(used)) = (declared, used)
            && declared.union(used) != declared
        {
            let rule = format!("id {id} is declared {declared:?} but used {used:?}");
            return Err(variable.error(SpirvErrorKind::Invalid { rule: Cow::Owned(rule) }));
        }
        let type_name = index.name(ty.inst.result_id.unwrap_or(0), None);
        let name = match index.name(id, None) {
            "" => type_name,
            name => name,
        };
        let info = BindingInfo {
            set: set.ok_or_else(|| missing("DescriptorSet"))?,
            binding: binding.ok_or_else(|| missing("Binding"))?,
            kind,
            access: declared.or(used).unwrap_or(BindingAccess::Read),
            name: Cow::Owned(name.to_owned()),
            element,
        };
        merge(&mut bindings, info, variable)?;
    }
    bindings.sort_by_key(|binding| (binding.set, binding.binding));
    Ok(bindings)
}

/// Variables that alias one binding become one entry: its access is their union, its element the smallest.
fn merge(bindings: &mut Vec<BindingInfo>, info: BindingInfo, variable: &Inst) -> Result<(), SpirvError> {
    let known = bindings.iter_mut().find(|known| (known.set, known.binding) == (info.set, info.binding));
    let Some(known) = known else {
        if bindings.len() == MAX_INTERFACE {
            return Err(unsupported(variable, "this many bindings"));
        }
        bindings.push(info);
        return Ok(());
    };
    if known.kind != info.kind {
        return Err(unsupported(variable, "one binding used as two kinds of resource"));
    }
    known.access = known.access.union(info.access);
    let stride = |element: &Option<Element>| element.map_or(u32::MAX, |element| element.stride);
    if stride(&info.element) < stride(&known.element) {
        known.element = info.element;
        known.name = info.name;
    }
    Ok(())
}

type Resource = (BindingKind, Option<Element>, Option<BindingAccess>);

fn resource(
    index: &Index<'_>,
    variable: &Inst,
    ty: &Inst,
    class: StorageClass,
) -> Result<Resource, SpirvError> {
    let id = variable.inst.result_id.unwrap_or(0);
    let type_id = ty.inst.result_id.unwrap_or(0);
    match ty.op() {
        Op::TypeStruct => {
            let kind = match class {
                StorageClass::StorageBuffer => BindingKind::StorageBuffer,
                StorageClass::Uniform if index.has(type_id, None, Decoration::BufferBlock) => {
                    BindingKind::StorageBuffer
                }
                StorageClass::Uniform => BindingKind::UniformBuffer,
                _ => return Err(unsupported(variable, "a block of this storage class")),
            };
            let members = ty.inst.operands.len() as u32;
            let last = match ty.inst.operands.len().checked_sub(1) {
                Some(last) => Some(index.type_def(ty, ty.id(last)?)?),
                None => None,
            };
            let element = match last {
                Some(last) if last.op() == Op::TypeRuntimeArray => Some(index.element(last)?),
                _ => None,
            };
            let all = |decoration| {
                index.has(id, None, decoration)
                    || (members > 0 && (0..members).all(|m| index.has(type_id, Some(m), decoration)))
            };
            let declared = match kind {
                BindingKind::UniformBuffer => Some(BindingAccess::Read),
                _ => declared(all(Decoration::NonWritable), all(Decoration::NonReadable)),
            };
            Ok((kind, element, declared))
        }
        Op::TypeSampledImage => {
            let image = index.expect(ty, ty.id(0)?, &[Op::TypeImage], "an image type")?;
            let kind = match image_dim(image)? {
                Dim::DimBuffer => BindingKind::UniformTexelBuffer,
                _ => BindingKind::SampledImage,
            };
            Ok((kind, Some(index.texel(image)?), Some(BindingAccess::Read)))
        }
        Op::TypeImage => {
            let declared = declared(
                index.has(id, None, Decoration::NonWritable),
                index.has(id, None, Decoration::NonReadable),
            );
            let element = Some(index.texel(ty)?);
            match (image_dim(ty)?, ty.literal(5)?) {
                (Dim::DimBuffer, 1) => {
                    Ok((BindingKind::UniformTexelBuffer, element, Some(BindingAccess::Read)))
                }
                (Dim::DimBuffer, 2) => Ok((BindingKind::StorageTexelBuffer, element, declared)),
                (_, 2) => Ok((BindingKind::StorageImage, element, declared)),
                _ => Err(unsupported(variable, "an image without its sampler")),
            }
        }
        Op::TypeArray | Op::TypeRuntimeArray => Err(unsupported(variable, "an array of resources")),
        Op::TypeSampler => Err(unsupported(variable, "a sampler without its image")),
        _ => Err(unsupported(variable, "a resource of this type")),
    }
}

fn declared(non_writable: bool, non_readable: bool) -> Option<BindingAccess> {
    match (non_writable, non_readable) {
        (true, _) => Some(BindingAccess::Read),
        (false, true) => Some(BindingAccess::Write),
        (false, false) => None,
    }
}

fn image_dim(image: &Inst) -> Result<Dim, SpirvError> {
    match image.inst.operands.get(1) {
        Some(Operand::Dim(Dim::DimSubpassData)) => Err(unsupported(image, "an input attachment")),
        Some(Operand::Dim(dim)) => Ok(*dim),
        _ => Err(unsupported(image, "an image without a dimension")),
    }
}

/// Bytes of workgroup memory.
pub(super) fn shared_bytes(index: &Index<'_>) -> Result<u32, SpirvError> {
    let mut total = 0u64;
    let mut budget = TypeBudget::new();
    for (variable, _) in variables(index.module, &[StorageClass::Workgroup]) {
        let (size, align) = index.natural_size(index.pointee(variable)?, &mut budget)?;
        total = total.next_multiple_of(align) + size;
        if total >= SIZE_CAP {
            return Err(unsupported(variable, "workgroup memory of this size"));
        }
    }
    Ok(total as u32)
}

/// Global variables of the given storage classes.
fn variables<'m>(
    module: &'m Module,
    classes: &'static [StorageClass],
) -> impl Iterator<Item = (&'m Inst, StorageClass)> {
    module.globals().filter(|inst| inst.op() == Op::Variable).filter_map(move |inst| {
        let class = inst.storage_class(0).ok()?;
        classes.contains(&class).then_some((inst, class))
    })
}
