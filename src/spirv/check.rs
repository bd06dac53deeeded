//! Structural validation of a user's module before a driver sees it.
//!
//! `vkCreateShaderModule` is no validator: a driver may crash on a malformed module. What is checked here is
//! what can be decided instruction by instruction: layout of the module, definition before use, declared
//! capabilities, types of memory accesses and calls, no recursion, and the interface that this runtime can
//! bind. Rules of control flow (dominance, structured merges) are not checked.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use rspirv::dr::Operand;
use rspirv::grammar::reflect::is_block_terminator;
use rspirv::spirv::{AddressingModel, Capability, MemoryModel, Op, StorageClass};

use super::parse::{Inst, Module, SpirvError, SpirvErrorKind, parse};
use super::reflect::{MAX_INTERFACE, Reflection, reflect_module};
use super::typing;
use crate::kernel::Requires;

/// Checks the module in `words` and reflects it.
///
/// # Errors
/// The first rule that it breaks, with the word at which it does.
pub fn check_module(words: &[u32]) -> Result<Reflection, SpirvError> {
    let module = parse(words)?;
    let layout = Layout::read(&module)?;
    layout.check_ids()?;
    typing::check(&module)?;
    layout.check_calls()?;
    let reflection = reflect_module(&module)?;
    check_interface(&reflection)?;
    Ok(reflection)
}

fn check_interface(kernel: &Reflection) -> Result<(), SpirvError> {
    let broken = |rule: String| {
        let kind = SpirvErrorKind::Invalid { rule: Cow::Owned(rule) };
        Err(SpirvError { word: 0, kind })
    };
    for binding in &kernel.bindings {
        if binding.set != 0 {
            return broken(format!(
                "binding {} is in set {}; only set 0 is used",
                binding.binding, binding.set
            ));
        }
        if binding.binding as usize >= MAX_INTERFACE {
            return broken(format!("binding {} is not below {MAX_INTERFACE}", binding.binding));
        }
    }
    let volume = kernel.local_size.iter().try_fold(1u32, |volume, size| volume.checked_mul(*size));
    if volume.is_none_or(|volume| volume == 0) {
        return broken(format!("work-group size {:?}", kernel.local_size));
    }
    Ok(())
}

/// Sections of a module, in the order that the specification asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Capability,
    Extension,
    Import,
    MemoryModel,
    EntryPoint,
    ExecutionMode,
    Source,
    Name,
    Processed,
    Annotation,
    Global,
    Function,
}

impl Section {
    /// The section of an instruction outside of functions.
    fn of(op: Op) -> Option<Self> {
        Some(match op {
            Op::Capability => Self::Capability,
            Op::Extension => Self::Extension,
            Op::ExtInstImport => Self::Import,
            Op::MemoryModel => Self::MemoryModel,
            Op::EntryPoint => Self::EntryPoint,
            Op::ExecutionMode | Op::ExecutionModeId => Self::ExecutionMode,
            Op::String | Op::Source | Op::SourceExtension | Op::SourceContinued => Self::Source,
            Op::Name | Op::MemberName => Self::Name,
            Op::ModuleProcessed => Self::Processed,
            Op::Variable | Op::Undef | Op::Line | Op::NoLine | Op::ExtInst => Self::Global,
            Op::Function => Self::Function,
            op if op.is_annotation() => Self::Annotation,
            op if op.is_type() || op.is_constant() => Self::Global,
            _ => return None,
        })
    }
}

/// A module whose instructions are known to be in their places.
struct Layout<'m> {
    module: &'m Module,
    /// The function in which each instruction lies, by its number; `None` for globals.
    functions: Vec<Option<u32>>,
    /// The function that defines an id, for ids that are local to one.
    local: HashMap<u32, u32>,
}

impl<'m> Layout<'m> {
    fn read(module: &'m Module) -> Result<Self, SpirvError> {
        let mut layout = Self { module, functions: Vec::new(), local: HashMap::new() };
        let mut declared = HashSet::new();
        let mut section = Section::Capability;
        let mut count = 0;
        let mut inside = Place::Outside;
        for inst in &module.insts {
            let op = inst.op();
            inside = if inside == Place::Outside && op != Op::Function {
                let found = Section::of(op).ok_or_else(|| invalid(inst, "instruction outside of a block"))?;
                if found < section {
                    return Err(invalid(inst, "instruction in the wrong section of the module"));
                }
                section = found;
                check_global(inst, &mut declared)?;
                layout.functions.push(None);
                Place::Outside
            } else {
                section = Section::Function;
                count += u32::from(op == Op::Function);
                layout.functions.push(Some(count));
                if let Some(id) = inst.inst.result_id
                    && op != Op::Function
                {
                    layout.local.insert(id, count);
                }
                inside.next(inst)?
            };
            let needed = inst.inst.class.capabilities;
            if !needed.is_empty() && !needed.iter().any(|capability| declared.contains(capability)) {
                let name = needed.first().map_or(String::new(), |capability| format!("{capability:?}"));
                let rule =
                    format!("{} needs capability {name}, which is not declared", inst.inst.class.opname);
                return Err(inst.error(SpirvErrorKind::Invalid { rule: Cow::Owned(rule) }));
            }
        }
        let end = SpirvError { word: 0, kind: SpirvErrorKind::Invalid { rule: Cow::Borrowed("") } };
        let missing =
            |rule| SpirvError { kind: SpirvErrorKind::Invalid { rule: Cow::Borrowed(rule) }, ..end };
        if inside != Place::Outside {
            return Err(missing("the last function is not closed"));
        }
        if !declared.contains(&Capability::Shader) {
            return Err(missing("capability Shader is not declared"));
        }
        if module.globals().filter(|inst| inst.op() == Op::MemoryModel).count() != 1 {
            return Err(missing("there is not exactly one memory model"));
        }
        Ok(layout)
    }

    /// Every id that is used is defined: before its use, except where the specification lets it come later.
    fn check_ids(&self) -> Result<(), SpirvError> {
        for (inst, function) in self.module.insts.iter().zip(&self.functions) {
            let op = inst.op();
            if matches!(op, Op::Name | Op::MemberName) {
                continue;
            }
            if let Some(id) = inst.inst.result_type {
                let ty = self.defined(inst, id, *function)?;
                if !ty.op().is_type() || ty.word > inst.word {
                    return Err(inst.error(SpirvErrorKind::WrongId { id, expected: "a type" }));
                }
            }
            let forward = op.is_annotation()
                || matches!(
                    op,
                    Op::EntryPoint
                        | Op::ExecutionMode
                        | Op::ExecutionModeId
                        | Op::Phi
                        | Op::Branch
                        | Op::BranchConditional
                        | Op::Switch
                        | Op::SelectionMerge
                        | Op::LoopMerge
                        | Op::FunctionCall
                );
            for operand in &inst.inst.operands {
                let Some(id) = operand.id_ref_any() else { continue };
                let def = self.defined(inst, id, *function)?;
                let may_follow = match op {
                    Op::FunctionCall => def.op() == Op::Function,
                    Op::Branch | Op::BranchConditional | Op::Switch | Op::SelectionMerge | Op::LoopMerge => {
                        def.op() == Op::Label
                    }
                    _ => forward,
                };
                if def.word >= inst.word && !may_follow {
                    return Err(
                        inst.error(SpirvErrorKind::WrongId { id, expected: "defined before its use" })
                    );
                }
            }
        }
        Ok(())
    }

    /// The instruction that defines `id`, if an instruction in `function` may use it.
    fn defined(&self, user: &Inst, id: u32, function: Option<u32>) -> Result<&'m Inst, SpirvError> {
        let def = self.module.def(id);
        let def = def.ok_or_else(|| user.error(SpirvErrorKind::WrongId { id, expected: "defined" }))?;
        match self.local.get(&id) {
            Some(owner) if function.is_some_and(|function| function != *owner) => {
                Err(user.error(SpirvErrorKind::WrongId { id, expected: "of this function" }))
            }
            _ => Ok(def),
        }
    }

    /// The entry point is a function without parameters, and no function calls itself, directly or not.
    fn check_calls(&self) -> Result<(), SpirvError> {
        let mut calls: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut current = 0;
        for inst in &self.module.insts {
            match inst.op() {
                Op::Function => current = inst.inst.result_id.unwrap_or(0),
                Op::FunctionCall => calls.entry(current).or_default().push(inst.id(0)?),
                _ => {}
            }
        }
        for inst in self.module.globals().filter(|inst| inst.op() == Op::EntryPoint) {
            let id = inst.id(1)?;
            let function = self.module.def(id).filter(|def| def.op() == Op::Function);
            let wrong = || inst.error(SpirvErrorKind::WrongId { id, expected: "a function" });
            let ty = function.ok_or_else(wrong)?.id(1)?;
            let parameters = self.module.def(ty).map_or(0, |ty| ty.inst.operands.len());
            if parameters != 1 {
                return Err(invalid(inst, "the entry point has parameters"));
            }
        }
        self.check_acyclic(&calls)
    }

    fn check_acyclic(&self, calls: &HashMap<u32, Vec<u32>>) -> Result<(), SpirvError> {
        let mut done: HashSet<u32> = HashSet::new();
        for inst in self.module.insts.iter().filter(|inst| inst.op() == Op::Function) {
            // A function stays on the stack until its callees are done.
            let mut stack = vec![(inst.inst.result_id.unwrap_or(0), 0)];
            let mut open: HashSet<u32> = HashSet::new();
            while let Some((id, at)) = stack.last_mut() {
                if done.contains(id) {
                    stack.pop();
                    continue;
                }
                open.insert(*id);
                match calls.get(id).and_then(|callees| callees.get(*at)) {
                    Some(callee) if open.contains(callee) => {
                        return Err(invalid(inst, "a function calls itself"));
                    }
                    Some(callee) => {
                        *at += 1;
                        stack.push((*callee, 0));
                    }
                    None => {
                        open.remove(id);
                        done.insert(*id);
                        stack.pop();
                    }
                }
            }
        }
        Ok(())
    }
}

/// Where in the body of a function the next instruction stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    Parameters,
    Block,
    /// After a terminator.
    Between,
}

impl Place {
    fn next(self, inst: &Inst) -> Result<Self, SpirvError> {
        match (self, inst.op()) {
            (Self::Outside, Op::Function) => Ok(Self::Parameters),
            (Self::Parameters, Op::FunctionParameter | Op::Line | Op::NoLine) => Ok(Self::Parameters),
            (Self::Parameters, Op::FunctionEnd) => Err(invalid(inst, "a function without a body")),
            (Self::Parameters | Self::Between, Op::Label) => Ok(Self::Block),
            (Self::Between, Op::Line | Op::NoLine) => Ok(Self::Between),
            (Self::Between, Op::FunctionEnd) => Ok(Self::Outside),
            (Self::Block, op) if is_block_terminator(op) => Ok(Self::Between),
            (Self::Block, Op::Variable) => match inst.storage_class(0)? {
                StorageClass::Function => Ok(Self::Block),
                _ => Err(invalid(inst, "a variable in a function that is not its own")),
            },
            (Self::Block, op) if is_body(op) => Ok(Self::Block),
            _ => Err(invalid(inst, "instruction in the wrong place of a function")),
        }
    }
}

fn is_body(op: Op) -> bool {
    let structure = matches!(op, Op::Function | Op::FunctionParameter | Op::FunctionEnd | Op::Label);
    !structure
        && (matches!(Section::of(op), None | Some(Section::Global)) && !op.is_type() && !op.is_constant())
}

/// What can be said of an instruction outside of functions alone.
fn check_global(inst: &Inst, declared: &mut HashSet<Capability>) -> Result<(), SpirvError> {
    match (inst.op(), inst.inst.operands.as_slice()) {
        (Op::Capability, [Operand::Capability(capability)]) => {
            if Requires::from_capabilities(&[*capability]).contains(Requires::UNKNOWN) {
                return Err(inst.error(SpirvErrorKind::Capability { name: format!("{capability:?}") }));
            }
            declare(declared, *capability);
        }
        (Op::ExtInstImport, [Operand::LiteralString(name)]) => {
            if name != "GLSL.std.450" && !name.starts_with("NonSemantic.") {
                return Err(invalid(inst, "an extended instruction set other than GLSL.std.450"));
            }
        }
        (Op::MemoryModel, [Operand::AddressingModel(addressing), Operand::MemoryModel(memory)]) => {
            if *addressing != AddressingModel::Logical {
                return Err(invalid(inst, "an addressing model other than Logical"));
            }
            if !matches!(memory, MemoryModel::GLSL450 | MemoryModel::Vulkan) {
                return Err(invalid(inst, "a memory model of another API"));
            }
        }
        (Op::Variable, [Operand::StorageClass(class), ..]) => {
            if !matches!(
                class,
                StorageClass::UniformConstant
                    | StorageClass::Input
                    | StorageClass::Uniform
                    | StorageClass::Workgroup
                    | StorageClass::Private
                    | StorageClass::PushConstant
                    | StorageClass::StorageBuffer
            ) {
                let rule = format!("a global variable of storage class {class:?}");
                return Err(inst.error(SpirvErrorKind::Invalid { rule: Cow::Owned(rule) }));
            }
        }
        _ => {}
    }
    Ok(())
}

/// Adds a capability and those that it implies.
fn declare(declared: &mut HashSet<Capability>, capability: Capability) {
    use Capability as C;
    let implied: &[Capability] = match capability {
        C::Shader => &[C::Matrix],
        C::ImageBuffer => &[C::SampledBuffer],
        C::Image1D => &[C::Sampled1D],
        C::VariablePointers => &[C::VariablePointersStorageBuffer],
        C::GroupNonUniformVote
        | C::GroupNonUniformArithmetic
        | C::GroupNonUniformBallot
        | C::GroupNonUniformShuffle
        | C::GroupNonUniformShuffleRelative
        | C::GroupNonUniformClustered
        | C::GroupNonUniformQuad => &[C::GroupNonUniform],
        C::UniformAndStorageBuffer16BitAccess => &[C::StorageBuffer16BitAccess],
        C::UniformAndStorageBuffer8BitAccess => &[C::StorageBuffer8BitAccess],
        C::Int64Atomics => &[C::Int64],
        _ => &[],
    };
    declared.insert(capability);
    declared.extend(implied);
}

fn invalid(inst: &Inst, rule: &'static str) -> SpirvError {
    inst.error(SpirvErrorKind::Invalid { rule: Cow::Borrowed(rule) })
}
