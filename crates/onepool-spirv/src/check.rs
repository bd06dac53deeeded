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
use crate::Requires;

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
                // Line numbers may stand between functions too.
                let found = if matches!(op, Op::Line | Op::NoLine) { section.max(found) } else { found };
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
        let missing = |rule| {
            let kind = SpirvErrorKind::Invalid { rule: Cow::Borrowed(rule) };
            SpirvError { word: 0, kind }
        };
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
        (Op::ExtInstImport, [Operand::LiteralString(name)])
            if name != "GLSL.std.450" && !name.starts_with("NonSemantic.") =>
        {
            return Err(invalid(inst, "an extended instruction set other than GLSL.std.450"));
        }
        (Op::MemoryModel, [Operand::AddressingModel(addressing), Operand::MemoryModel(memory)]) => {
            if *addressing != AddressingModel::Logical {
                return Err(invalid(inst, "an addressing model other than Logical"));
            }
            if !matches!(memory, MemoryModel::GLSL450 | MemoryModel::Vulkan) {
                return Err(invalid(inst, "a memory model of another API"));
            }
        }
        (Op::Variable, [Operand::StorageClass(class), ..]) if !is_kernel_class(*class) => {
            let rule = format!("a global variable of storage class {class:?}");
            return Err(inst.error(SpirvErrorKind::Invalid { rule: Cow::Owned(rule) }));
        }
        _ => {}
    }
    Ok(())
}

/// Storage classes of the global variables of a compute kernel.
fn is_kernel_class(class: StorageClass) -> bool {
    matches!(
        class,
        StorageClass::UniformConstant
            | StorageClass::Input
            | StorageClass::Uniform
            | StorageClass::Workgroup
            | StorageClass::Private
            | StorageClass::PushConstant
            | StorageClass::StorageBuffer
    )
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rspirv::binary::Assemble;
    use rspirv::dr::{self, Instruction};

    use super::*;
    use crate::{KernelLayout, ScalarType, build_pointwise, reflect};
    use onepool_expr::{BinaryOp, Function, Indexing, PointwiseDesc, Term};

    fn sample() -> Vec<u32> {
        let mut desc = PointwiseDesc::new([Indexing::Full, Indexing::Broadcast { terms: 1 }]);
        let (a, b) = (desc.input(0).unwrap(), desc.input(1).unwrap());
        let power = desc.binary(BinaryOp::Pow, a, b).unwrap();
        let relu = Function::Relu.build(&mut desc, power, [0.0; 2]).unwrap();
        desc.output(relu).unwrap();
        let terms = [vec![], vec![Term { div: 1, modulo: 5, stride: 1 }]];
        let layout = KernelLayout::of(&desc, ScalarType::F32, 15, &terms).unwrap().layout;
        build_pointwise(&desc, &layout).unwrap()
    }

    /// The error of the sample after `change`.
    fn error(change: impl FnOnce(&mut dr::Module)) -> SpirvErrorKind {
        let mut module = dr::load_words(sample()).unwrap();
        change(&mut module);
        check_module(&module.assemble()).unwrap_err().kind
    }

    fn rule(change: impl FnOnce(&mut dr::Module)) -> String {
        match error(change) {
            SpirvErrorKind::Invalid { rule } => rule.into_owned(),
            other => panic!("{other:?}"),
        }
    }

    fn find(module: &mut dr::Module, op: Op) -> &mut Instruction {
        let found = module.all_inst_iter_mut().find(|inst| inst.class.opcode == op);
        found.unwrap()
    }

    #[test]
    fn headers() {
        let with = |at: usize, word: u32| {
            let mut words = sample();
            words[at] = word;
            let error = check_module(&words).unwrap_err();
            (error.word, error.byte_offset(), error.kind)
        };
        let swapped = sample()[0].swap_bytes();
        assert_eq!(with(0, 7), (0, 0, SpirvErrorKind::BadMagic { found: 7 }));
        assert_eq!(with(0, swapped), (0, 0, SpirvErrorKind::WrongEndian));
        assert_eq!(with(1, 0x0001_0700), (1, 4, SpirvErrorKind::BadVersion { found: 0x0001_0700 }));
        let limit = super::super::parse::MAX_BOUND;
        for found in [0, limit + 1, u32::MAX] {
            assert_eq!(with(3, found), (3, 12, SpirvErrorKind::BadBound { found, limit }));
        }
        assert_eq!(with(4, 1), (4, 16, SpirvErrorKind::BadSchema { found: 1 }));
        let error = check_module(&sample()[..4]).unwrap_err();
        assert_eq!(error.kind, SpirvErrorKind::HeaderIncomplete { words: 4 });
        assert_eq!(error.to_string(), "spir-v word 0 (byte 0): 4 words are no header");
        let large = vec![0; super::super::parse::MAX_WORDS + 1];
        assert!(matches!(check_module(&large).unwrap_err().kind, SpirvErrorKind::TooLarge { .. }));
    }

    #[test]
    fn instructions_that_do_not_fit() {
        let words = sample();
        let with = |word: u32| {
            let mut words = words.clone();
            words[5] = word;
            check_module(&words).unwrap_err()
        };
        assert_eq!(with(0), SpirvError { word: 5, kind: SpirvErrorKind::ZeroWordCount });
        let left = words.len() - 5;
        let kind = SpirvErrorKind::Truncated { claimed: 0xffff, left };
        assert_eq!(with(0xffff_0011), SpirvError { word: 5, kind });
        let kind = SpirvErrorKind::UnknownOpcode { opcode: 0xfffe };
        assert_eq!(with(0x0002_fffe), SpirvError { word: 5, kind });
    }

    #[test]
    fn only_specializable_operations_are_specialized() {
        for opcode in [Op::SpecConstant as u32, Op::Switch as u32, Op::SpecConstantOp as u32, 0xffff_ffff] {
            let mut words = sample();
            // Type, result, opcode, and what the reader would take for operands.
            words.extend([(6 << 16) | Op::SpecConstantOp as u32, 1, 2, opcode, 1, 1]);
            let error = check_module(&words).unwrap_err();
            assert_eq!(error.kind, SpirvErrorKind::BadSpecConstantOp { opcode });
        }
    }

    #[test]
    fn ids() {
        let id = |kind| match kind {
            SpirvErrorKind::IdOutOfBound { id, .. }
            | SpirvErrorKind::IdRedefined { id }
            | SpirvErrorKind::WrongId { id, .. } => id,
            other => panic!("{other:?}"),
        };
        let bound = sample()[3];
        assert_eq!(id(error(|m| find(m, Op::Store).operands[0] = Operand::IdRef(bound))), bound);
        assert_eq!(id(error(|m| find(m, Op::Store).operands[0] = Operand::IdRef(0))), 0);
        let mut taken = 0;
        let kind = error(|m| {
            taken = find(m, Op::UDiv).result_id.unwrap();
            find(m, Op::UMod).result_id = Some(taken);
        });
        assert_eq!(kind, SpirvErrorKind::IdRedefined { id: taken });
        // A use before the definition.
        let kind = error(|m| {
            taken = find(m, Op::UMod).result_id.unwrap();
            find(m, Op::UDiv).operands[0] = Operand::IdRef(taken);
        });
        assert_eq!(kind, SpirvErrorKind::WrongId { id: taken, expected: "defined before its use" });
        // A value as a type.
        let kind = error(|m| {
            taken = find(m, Op::Variable).result_id.unwrap();
            find(m, Op::UMod).result_type = Some(taken);
        });
        assert_eq!(kind, SpirvErrorKind::WrongId { id: taken, expected: "a type" });
    }

    #[test]
    fn places() {
        let wrong_section = "instruction in the wrong section of the module";
        let moved = rule(|m| {
            let name = m.debug_names.remove(0);
            m.types_global_values.push(name);
        });
        assert_eq!(moved, wrong_section);
        let outside = rule(|m| m.types_global_values.push(Instruction::new(Op::Return, None, None, vec![])));
        assert_eq!(outside, "instruction outside of a block");
        let open = rule(|m| m.functions[0].end = None);
        assert_eq!(open, "the last function is not closed");
        let empty = rule(|m| m.functions[0].blocks.clear());
        assert_eq!(empty, "a function without a body");
        let unterminated = rule(|m| {
            m.functions[0].blocks[0].instructions.pop();
        });
        assert_eq!(unterminated, "instruction in the wrong place of a function");
    }

    #[test]
    fn capabilities() {
        let set = |capability| {
            move |m: &mut dr::Module| m.capabilities[0].operands[0] = Operand::Capability(capability)
        };
        let refused = |name: &str| SpirvErrorKind::Capability { name: name.to_owned() };
        assert_eq!(error(set(Capability::Kernel)), refused("Kernel"));
        assert_eq!(
            error(set(Capability::PhysicalStorageBufferAddresses)),
            refused("PhysicalStorageBufferAddresses")
        );
        let none = rule(|m| m.capabilities.clear());
        assert!(none.ends_with("needs capability Shader, which is not declared"), "{none}");
        let undeclared = rule(|m| {
            let block = &mut m.functions[0].blocks[0].instructions;
            let fence = Instruction::new(Op::EmitVertex, None, None, vec![]);
            block.insert(0, fence);
        });
        assert_eq!(undeclared, "EmitVertex needs capability Geometry, which is not declared");
    }

    #[test]
    fn entry_points_and_models() {
        let second = error(|m| {
            let entry = m.entry_points[0].clone();
            m.entry_points.push(entry);
        });
        assert_eq!(second, SpirvErrorKind::Unsupported { what: "a second entry point".into() });
        assert_eq!(rule(|m| m.entry_points.clear()), "the module has no entry point");
        let graphics = error(|m| {
            m.entry_points[0].operands[0] = Operand::ExecutionModel(rspirv::spirv::ExecutionModel::Vertex);
        });
        assert!(matches!(graphics, SpirvErrorKind::Unsupported { .. }));
        assert_eq!(rule(|m| m.memory_model = None), "there is not exactly one memory model");
        let physical = rule(|m| {
            let model = m.memory_model.as_mut().unwrap();
            model.operands[0] = Operand::AddressingModel(AddressingModel::Physical64);
        });
        assert_eq!(physical, "an addressing model other than Logical");
        let library =
            rule(|m| m.ext_inst_imports[0].operands[0] = Operand::LiteralString("OpenCL.std".into()));
        assert_eq!(library, "an extended instruction set other than GLSL.std.450");
    }

    #[test]
    fn memory_accesses_have_the_right_types() {
        // An index beyond the members of a structure.
        let beyond = error(|m| {
            let block = find(m, Op::AccessChain);
            let uint = block.operands[1].clone();
            let mut chain = block.clone();
            chain.operands.push(uint);
            *block = chain;
        });
        assert!(matches!(beyond, SpirvErrorKind::Unsupported { .. }), "{beyond:?}");
        let stored = error(|m| {
            let i = find(m, Op::UDiv).result_id.unwrap();
            find(m, Op::Store).operands[1] = Operand::IdRef(i);
        });
        assert!(matches!(stored, SpirvErrorKind::WrongId { .. }), "{stored:?}");
        let through_a_value = error(|m| {
            let i = find(m, Op::UDiv).result_id.unwrap();
            find(m, Op::Store).operands[0] = Operand::IdRef(i);
        });
        assert!(matches!(through_a_value, SpirvErrorKind::WrongId { expected: "a pointer", .. }));
        let component = error(|m| find(m, Op::CompositeExtract).operands[1] = Operand::LiteralBit32(3));
        assert!(matches!(component, SpirvErrorKind::Unsupported { .. }), "{component:?}");
    }

    #[test]
    fn a_store_to_what_is_read_only_is_found() {
        let changed = rule(|m| {
            for inst in &mut m.annotations {
                if inst.operands.get(1) == Some(&Operand::Decoration(rspirv::spirv::Decoration::NonReadable))
                {
                    inst.operands[1] = Operand::Decoration(rspirv::spirv::Decoration::NonWritable);
                }
            }
        });
        assert!(changed.ends_with("is declared Read but used Write"), "{changed}");
    }

    #[test]
    fn recursion_is_refused() {
        let changed = rule(|m| {
            let void = m.functions[0].def.as_ref().unwrap().result_type;
            let main = m.functions[0].def.as_ref().unwrap().result_id.unwrap();
            let header = m.header.as_mut().unwrap();
            let call =
                Instruction::new(Op::FunctionCall, void, Some(header.bound), vec![Operand::IdRef(main)]);
            header.bound += 1;
            m.functions[0].blocks[0].instructions.insert(0, call);
        });
        assert_eq!(changed, "a function calls itself");
    }

    #[test]
    fn interfaces() {
        let decoration = |m: &mut dr::Module, decoration, value| {
            let found = m.annotations.iter_mut();
            let mut found =
                found.filter(|inst| inst.operands.get(1) == Some(&Operand::Decoration(decoration)));
            found.next().unwrap().operands[2] = Operand::LiteralBit32(value);
        };
        use rspirv::spirv::Decoration as D;
        assert_eq!(rule(|m| decoration(m, D::DescriptorSet, 2)), "binding 0 is in set 2; only set 0 is used");
        assert_eq!(rule(|m| decoration(m, D::Binding, 256)), "binding 256 is not below 256");
        let missing = error(|m| {
            m.annotations.retain(|inst| inst.operands.get(1) != Some(&Operand::Decoration(D::Binding)))
        });
        assert!(matches!(missing, SpirvErrorKind::MissingDecoration { decoration: "Binding", .. }));
        let empty = rule(|m| {
            let size = m.types_global_values.iter_mut().find(|inst| inst.class.opcode == Op::SpecConstant);
            size.unwrap().operands[0] = Operand::LiteralBit32(0);
        });
        assert_eq!(empty, "work-group size [0, 1, 1]");
    }

    /// A type that contains itself a hundred thousand times over, and one that doubles at each level.
    #[test]
    fn deep_and_wide_types_end() {
        for wide in [false, true] {
            let mut module = dr::load_words(sample()).unwrap();
            let mut next = module.header.as_ref().unwrap().bound;
            let mut fresh = || {
                next += 1;
                next - 1
            };
            let mut globals = Vec::new();
            let float = find(&mut module, Op::TypeFloat).result_id.unwrap();
            let mut ty = float;
            for _ in 0..100_000 {
                let id = fresh();
                let members = if wide { vec![Operand::IdRef(ty); 2] } else { vec![Operand::IdRef(ty)] };
                globals.push(Instruction::new(Op::TypeStruct, None, Some(id), members));
                ty = id;
            }
            let (pointer, variable) = (fresh(), fresh());
            let class = Operand::StorageClass(StorageClass::Workgroup);
            let operands = vec![class.clone(), Operand::IdRef(ty)];
            globals.push(Instruction::new(Op::TypePointer, None, Some(pointer), operands));
            globals.push(Instruction::new(Op::Variable, Some(pointer), Some(variable), vec![class]));
            module.types_global_values.extend(globals);
            module.header.as_mut().unwrap().bound = next;
            let error = check_module(&module.assemble()).unwrap_err();
            assert!(matches!(error.kind, SpirvErrorKind::Unsupported { .. }), "{error}");
        }
    }

    /// Neither reading nor checking may panic; what passes the one passes the other. Whether it passes.
    fn survives(words: &[u32]) -> bool {
        let (checked, reflected) = (check_module(words).is_ok(), reflect(words).is_ok());
        assert!(reflected || !checked);
        checked
    }

    /// What the validator of SPIRV-Tools says of a module; `None` where it is not installed.
    fn validator(words: &[u32]) -> Option<bool> {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let mut command = Command::new("spirv-val");
        command.args(["--target-env", "vulkan1.3", "-"]);
        let run = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut run = match run {
            Ok(run) => run,
            Err(error) if std::env::var_os("REQUIRE_BACKENDS").is_some() => panic!("spirv-val: {error}"),
            Err(_) => return None,
        };
        run.stdin.take().unwrap().write_all(bytemuck::cast_slice(words)).unwrap();
        Some(run.wait().unwrap().success())
    }

    #[test]
    fn truncated_modules_are_refused() {
        let words = sample();
        for len in 0..words.len() {
            assert!(check_module(&words[..len]).is_err(), "{len} words");
            survives(&words[..len]);
        }
    }

    /// Most are refused. This is no validator: of those that are not, the one of SPIRV-Tools refuses a good third.
    #[test]
    fn most_flipped_bits_are_found() {
        const EACH: usize = 5;
        let mut words = sample();
        assert!(survives(&words) && validator(&words) != Some(false));
        let (mut taken, mut invalid) = (0, 0);
        for at in 0..words.len() {
            for bit in 0..32 {
                words[at] ^= 1 << bit;
                if survives(&words) {
                    taken += 1;
                    invalid += usize::from(taken % EACH == 0 && validator(&words) == Some(false));
                }
                words[at] ^= 1 << bit;
            }
        }
        let all = words.len() * 32;
        assert!(taken * 7 < all, "{taken} of {all}");
        assert!(invalid * 5 < taken / EACH * 2, "{invalid} of {}", taken / EACH);
    }

    /// Nearly all are refused. Of the few that are not, the validator of SPIRV-Tools takes some.
    #[test]
    fn most_scrambled_modules_are_found() {
        use prop::sample::Index;
        use proptest::strategy::ValueTree;
        const MODULES: u32 = 2000;
        let changes = prop::collection::vec((any::<Index>(), any::<Index>(), 0..400u32), 1..8);
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let (mut taken, mut invalid) = (0, 0);
        for _ in 0..MODULES {
            let mut words = sample();
            for (n, (to, from, value)) in changes.new_tree(&mut runner).unwrap().current().iter().enumerate()
            {
                // Words that occur elsewhere reach further than random ones.
                *to.get_mut(&mut words) = if n % 2 == 0 { *from.get(&words) } else { *value };
            }
            if words != sample() && survives(&words) {
                taken += 1;
                invalid += u32::from(validator(&words) == Some(false));
            }
        }
        assert!(taken > 0 && taken * 20 < MODULES, "{taken} of {MODULES}");
        assert!(invalid * 5 < taken * 4, "{invalid} of {taken}");
    }

    proptest! {
        #[test]
        fn random_words_are_refused(body in prop::collection::vec((0..12u32, 0..420u32, 0..40u32), 0..200)) {
            let mut words = vec![rspirv::spirv::MAGIC_NUMBER, 0x0001_0300, 0, 40, 0];
            for (count, opcode, operand) in body {
                words.push((count << 16) | opcode);
                words.extend((1..count).map(|at| (operand + at * 7) % 40));
            }
            // There is no entry point among so few opcodes of so few ids.
            prop_assert!(!survives(&words));
        }
    }
}
