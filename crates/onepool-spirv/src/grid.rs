//! Kernels that run a part of their grid.
//!
//! A dispatch numbers its work-groups from 0 and counts those that it has. In the form made here, along one axis, the numbers
//! begin where the part does and the count is that of the whole grid; both are parameters after the kernel's own. There
//! is one for each axis, because many devices take no more than 128 bytes of parameters.
//! `vkCmdDispatchBase` gives the numbers alone, and not on every driver.

use std::collections::{HashMap, HashSet};

use rspirv::binary::Assemble;
use rspirv::dr::{Block, Instruction, Module, Operand, load_words};
use rspirv::spirv::{BuiltIn, Decoration, ExecutionMode, Op, StorageClass};

use crate::parse::parse;

/// Bytes of the parameters that [`PartForm`] adds: the first work-group and the work-groups of the whole grid along its
/// axis, as `u32`.
pub const PART_BYTES: u32 = 8;

/// A kernel that runs a part of its grid, which is divided along one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartForm {
    /// The module.
    pub words: Vec<u32>,
    /// Where the parameters of [`PART_BYTES`] begin.
    pub offset_bytes: u32,
}

impl PartForm {
    /// The form for parts along `axis`, 0 to 2, of the module `words`, which takes `params_bytes` of parameters; `None` where
    /// they are no module, or one that uses the place in its grid in a way that is not understood.
    pub fn new(words: &[u32], params_bytes: u32, axis: u32) -> Option<PartForm> {
        // The loader takes for granted what is checked here.
        parse(words).ok().filter(|_| axis < 3)?;
        let offset_bytes = params_bytes.checked_next_multiple_of(4)?;
        let mut module = load_words(words).ok()?;
        let next = module.header.as_ref()?.bound;
        let inputs = inputs(&module)?;
        if inputs.is_empty() {
            return Some(PartForm { words: words.to_vec(), offset_bytes });
        }
        Rewrite { module: &mut module, next, axis }.apply(&inputs, offset_bytes)?;
        Some(PartForm { words: module.assemble(), offset_bytes })
    }
}

const PLACES: [BuiltIn; 3] = [BuiltIn::WorkgroupId, BuiltIn::GlobalInvocationId, BuiltIn::NumWorkgroups];

/// The variables of `PLACES` that the module has.
fn inputs(module: &Module) -> Option<Vec<(BuiltIn, u32)>> {
    let mut found = Vec::new();
    for inst in &module.annotations {
        let place = inst.operands.iter().find_map(|operand| match operand {
            Operand::BuiltIn(builtin) => PLACES.iter().find(|place| *place == builtin),
            _ => None,
        });
        match (inst.class.opcode, place) {
            (Op::Decorate, Some(place)) => found.push((*place, inst.operands[0].id_ref_any()?)),
            // Members of blocks, and groups of decorations, are in no module of a common compiler.
            (_, Some(_)) | (Op::GroupDecorate, _) => return None,
            _ => {}
        }
    }
    Some(found)
}

struct Rewrite<'m> {
    module: &'m mut Module,
    next: u32,
    axis: u32,
}

impl Rewrite<'_> {
    fn apply(mut self, inputs: &[(BuiltIn, u32)], offset_bytes: u32) -> Option<()> {
        let uint = self.uint()?;
        let uvec3 = self.find(Op::TypeVector, &[Operand::IdRef(uint), Operand::LiteralBit32(3)])?;
        let private = self.ty(Op::TypePointer, pointer(StorageClass::Private, uvec3));
        let private_uint = self.ty(Op::TypePointer, pointer(StorageClass::Private, uint));
        let block = self.block(uint, offset_bytes)?;
        let block_uint = self.ty(Op::TypePointer, pointer(StorageClass::PushConstant, uint));
        let mut body = Vec::new();
        let [first, whole] = [0, 1].map(|word| {
            let index = self.constant(uint, block.members + word);
            let at = self.push(&mut body, Op::AccessChain, block_uint, [block.variable, index]);
            self.push(&mut body, Op::Load, uint, [at])
        });
        let zero = self.constant(uint, 0);
        let start = [0, 1, 2].map(|axis| if axis == self.axis { first } else { zero });
        let start = self.push(&mut body, Op::CompositeConstruct, uvec3, start);
        for (place, variable) in inputs {
            let input = self.moved_input(*place, *variable, uvec3)?;
            let input = self.push(&mut body, Op::Load, uvec3, [input]);
            let value = match place {
                BuiltIn::NumWorkgroups => {
                    let value = self.push(&mut body, Op::CompositeInsert, uvec3, [whole, input]);
                    body.last_mut()?.operands.push(Operand::LiteralBit32(self.axis));
                    value
                }
                BuiltIn::GlobalInvocationId => {
                    let size = self.group_size(uint, uvec3, &mut body)?;
                    let by = self.push(&mut body, Op::IMul, uvec3, [start, size]);
                    self.push(&mut body, Op::IAdd, uvec3, [input, by])
                }
                _ => self.push(&mut body, Op::IAdd, uvec3, [input, start]),
            };
            self.make_private(*variable, private)?;
            let operands = [*variable, value].map(Operand::IdRef).to_vec();
            body.push(Instruction::new(Op::Store, None, None, operands));
        }
        let variables: HashSet<u32> = inputs.iter().map(|(_, variable)| *variable).collect();
        self.retype_chains(&variables, private_uint)?;
        self.interface(&variables, block.is_new.then_some(block.variable));
        let entry = self.entry()?;
        let function = self.module.functions.iter_mut().find(|f| f.def_id() == Some(entry))?;
        let block = function.blocks.first_mut()?;
        let variable = block.instructions.iter().rposition(|inst| inst.class.opcode == Op::Variable);
        let at = variable.map_or(0, |at| at + 1);
        block.instructions.splice(at..at, body);
        self.module.header.as_mut()?.bound = self.next;
        Some(())
    }

    fn id(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    fn push(
        &mut self,
        to: &mut Vec<Instruction>,
        op: Op,
        ty: u32,
        operands: impl IntoIterator<Item = u32>,
    ) -> u32 {
        let id = self.id();
        to.push(Instruction::new(op, Some(ty), Some(id), operands.into_iter().map(Operand::IdRef).collect()));
        id
    }

    fn global(&mut self, op: Op, ty: Option<u32>, operands: Vec<Operand>) -> u32 {
        let id = self.id();
        self.module.types_global_values.push(Instruction::new(op, ty, Some(id), operands));
        id
    }

    fn find(&self, op: Op, operands: &[Operand]) -> Option<u32> {
        let same = |inst: &&Instruction| inst.class.opcode == op && inst.operands == operands;
        self.module.types_global_values.iter().find(same)?.result_id
    }

    fn ty(&mut self, op: Op, operands: Vec<Operand>) -> u32 {
        self.find(op, &operands).unwrap_or_else(|| self.global(op, None, operands))
    }

    fn constant(&mut self, uint: u32, value: u32) -> u32 {
        self.global(Op::Constant, Some(uint), vec![Operand::LiteralBit32(value)])
    }

    /// The type `u32`, before all that may come to use it.
    fn uint(&mut self) -> Option<u32> {
        let operands = [32, 0].map(Operand::LiteralBit32);
        let globals = &mut self.module.types_global_values;
        let at = globals.iter().position(|i| i.class.opcode == Op::TypeInt && i.operands == operands)?;
        globals[..=at].rotate_right(1);
        globals[0].result_id
    }

    fn definition(&self, id: u32) -> Option<&Instruction> {
        self.module.types_global_values.iter().find(|inst| inst.result_id == Some(id))
    }

    fn entry(&self) -> Option<u32> {
        self.module.entry_points.first()?.operands.get(1)?.id_ref_any()
    }

    /// The push constants with the members of a part.
    fn block(&mut self, uint: u32, offset_bytes: u32) -> Option<Params> {
        let globals = &self.module.types_global_values;
        let in_params = |inst: &&Instruction| {
            inst.class.opcode == Op::Variable
                && inst.operands.first() == Some(&Operand::StorageClass(StorageClass::PushConstant))
        };
        let (ty, variable, members, is_new);
        if let Some(found) = globals.iter().find(in_params) {
            let to = self.definition(found.result_type?)?;
            (variable, ty) = (found.result_id?, to.operands.get(1)?.id_ref_any()?);
            // Members that are added must be members of nothing else.
            let class = Operand::StorageClass(StorageClass::PushConstant);
            let mut users = globals.iter().filter(|inst| inst.operands.contains(&Operand::IdRef(ty)));
            if users.any(|inst| inst.class.opcode != Op::TypePointer || inst.operands[0] != class) {
                return None;
            }
            let block = self.module.types_global_values.iter_mut().find(|inst| inst.result_id == Some(ty))?;
            (members, is_new) = (block.operands.len() as u32, false);
            block.operands.extend(vec![Operand::IdRef(uint); 2]);
        } else {
            ty = self.global(Op::TypeStruct, None, vec![Operand::IdRef(uint); 2]);
            let class = StorageClass::PushConstant;
            let to = self.ty(Op::TypePointer, pointer(class, ty));
            variable = self.global(Op::Variable, Some(to), vec![Operand::StorageClass(class)]);
            (members, is_new) = (0, true);
            self.annotate(Op::Decorate, vec![Operand::IdRef(ty), Operand::Decoration(Decoration::Block)]);
        }
        for word in 0..2 {
            let member = [Operand::IdRef(ty), Operand::LiteralBit32(members + word)];
            let offset =
                [Operand::Decoration(Decoration::Offset), Operand::LiteralBit32(offset_bytes + word * 4)];
            self.annotate(Op::MemberDecorate, member.into_iter().chain(offset).collect());
        }
        Some(Params { variable, members, is_new })
    }

    fn annotate(&mut self, op: Op, operands: Vec<Operand>) {
        self.module.annotations.push(Instruction::new(op, None, None, operands));
    }

    /// A new variable that has what `variable` had from the driver.
    fn moved_input(&mut self, place: BuiltIn, variable: u32, uvec3: u32) -> Option<u32> {
        let to = self.definition(variable)?.result_type?;
        if self.definition(to)?.operands != pointer(StorageClass::Input, uvec3) {
            return None;
        }
        let input = self.global(Op::Variable, Some(to), vec![Operand::StorageClass(StorageClass::Input)]);
        let builtin = [Operand::Decoration(Decoration::BuiltIn), Operand::BuiltIn(place)];
        self.annotate(Op::Decorate, [Operand::IdRef(input)].into_iter().chain(builtin).collect());
        self.module.entry_points.first_mut()?.operands.push(Operand::IdRef(input));
        Some(input)
    }

    /// Makes an input a variable of the kernel's own, which has the type `private`.
    fn make_private(&mut self, variable: u32, private: u32) -> Option<()> {
        let is_builtin = |inst: &Instruction| {
            inst.operands.first() == Some(&Operand::IdRef(variable))
                && inst.operands.get(1) == Some(&Operand::Decoration(Decoration::BuiltIn))
        };
        self.module.annotations.retain(|inst| !is_builtin(inst));
        let globals = &mut self.module.types_global_values;
        let mut moved = globals.remove(globals.iter().position(|inst| inst.result_id == Some(variable))?);
        moved.result_type = Some(private);
        *moved.operands.first_mut()? = Operand::StorageClass(StorageClass::Private);
        globals.push(moved);
        Some(())
    }

    /// Gives pointers to members of `variables` the type `to`; `None` where a variable is used in another way than to be read.
    fn retype_chains(&mut self, variables: &HashSet<u32>, to: u32) -> Option<()> {
        let uses = |inst: &Instruction, ids: &HashSet<u32>| {
            inst.operands.iter().filter_map(Operand::id_ref_any).any(|id| ids.contains(&id))
        };
        let mut chains = HashSet::new();
        for inst in self.instructions().filter(|inst| uses(inst, variables)) {
            match inst.class.opcode {
                Op::Load => {}
                Op::AccessChain | Op::InBoundsAccessChain if inst.operands.len() == 2 => {
                    inst.result_type = Some(to);
                    chains.extend(inst.result_id);
                }
                _ => return None,
            }
        }
        self.instructions().all(|inst| !uses(inst, &chains) || inst.class.opcode == Op::Load).then_some(())
    }

    fn instructions(&mut self) -> impl Iterator<Item = &mut Instruction> {
        let blocks = self.module.functions.iter_mut().flat_map(|function| &mut function.blocks);
        blocks.flat_map(|block: &mut Block| &mut block.instructions)
    }

    /// From SPIR-V 1.4 on the interface has all variables, before that inputs alone.
    fn interface(&mut self, private: &HashSet<u32>, params: Option<u32>) {
        let all = self.module.header.as_ref().is_some_and(|header| header.version() >= (1, 4));
        let Some(entry) = self.module.entry_points.first_mut() else { return };
        if all {
            entry.operands.extend(params.map(Operand::IdRef));
        } else {
            let mut at = 0;
            entry.operands.retain(|operand| {
                at += 1;
                at <= 3 || !operand.id_ref_any().is_some_and(|id| private.contains(&id))
            });
        }
    }

    /// The invocations of a work-group along each axis.
    fn group_size(&mut self, uint: u32, uvec3: u32, body: &mut Vec<Instruction>) -> Option<u32> {
        let size = [Operand::Decoration(Decoration::BuiltIn), Operand::BuiltIn(BuiltIn::WorkgroupSize)];
        if let Some(inst) = self.module.annotations.iter().find(|inst| inst.operands.ends_with(&size)) {
            let id = inst.operands[0].id_ref_any()?;
            return (self.definition(id)?.result_type == Some(uvec3)).then_some(id);
        }
        let mut sizes: HashMap<ExecutionMode, Vec<Operand>> = HashMap::new();
        for inst in &self.module.execution_modes {
            if let Some(Operand::ExecutionMode(mode)) = inst.operands.get(1) {
                sizes.insert(*mode, inst.operands[2..].to_vec());
            }
        }
        let mut ids = Vec::new();
        if let Some(found) = sizes.get(&ExecutionMode::LocalSizeId) {
            for id in found {
                let id = id.id_ref_any()?;
                ids.push((self.definition(id)?.result_type == Some(uint)).then_some(id)?);
            }
        } else {
            for size in sizes.get(&ExecutionMode::LocalSize)? {
                let Operand::LiteralBit32(size) = size else { return None };
                ids.push(self.constant(uint, *size));
            }
        }
        Some(self.push(body, Op::CompositeConstruct, uvec3, ids))
    }
}

/// The push constants of a module.
struct Params {
    variable: u32,
    /// The first member of a part.
    members: u32,
    is_new: bool,
}

fn pointer(class: StorageClass, to: u32) -> Vec<Operand> {
    vec![Operand::StorageClass(class), Operand::IdRef(to)]
}

#[cfg(test)]
mod tests {
    use onepool_expr::{Indexing, PointwiseDesc, UnaryOp};
    use rspirv::dr;

    use super::*;
    use crate::{Fetch, KernelLayout, ScalarType, build_pointwise, check_module};

    /// A kernel whose work-groups have a size that can be specialized, after `change`.
    fn form(change: impl FnOnce(&mut dr::Module)) -> Option<PartForm> {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let x = desc.input(0).unwrap();
        let y = desc.unary(UnaryOp::Neg, x).unwrap();
        desc.output(y).unwrap();
        let inputs = vec![Fetch::Full];
        let layout = KernelLayout { element: ScalarType::F32, lanes: 1, texels: false, tests: false, inputs };
        let words = build_pointwise(&desc, &layout).unwrap();
        let params_bytes = check_module(&words).unwrap().params_bytes;
        let mut module = load_words(&words).unwrap();
        change(&mut module);
        PartForm::new(&module.assemble(), params_bytes, 1)
    }

    #[test]
    fn a_place_that_is_used_in_another_way_than_read_has_no_form() {
        let whole = form(|_| {}).unwrap();
        assert_eq!(check_module(&whole.words).unwrap().params_bytes, whole.offset_bytes + PART_BYTES);
        let place = |module: &dr::Module| inputs(module).unwrap()[0].1;
        assert_eq!(
            form(|module| {
                let copied = Instruction::new(
                    Op::CopyMemory,
                    None,
                    None,
                    vec![Operand::IdRef(place(module)), Operand::IdRef(place(module))],
                );
                module.functions[0].blocks[0].instructions.insert(0, copied);
            }),
            None
        );
        // Decorations by groups, and members of blocks, are not followed.
        assert_eq!(
            form(|module| {
                let group = Instruction::new(
                    Op::GroupDecorate,
                    None,
                    None,
                    vec![Operand::IdRef(1), Operand::IdRef(2)],
                );
                module.annotations.push(group);
            }),
            None
        );
        assert_eq!(
            form(|module| {
                let builtin =
                    [Operand::Decoration(Decoration::BuiltIn), Operand::BuiltIn(BuiltIn::NumWorkgroups)];
                let member =
                    [Operand::IdRef(1), Operand::LiteralBit32(0)].into_iter().chain(builtin).collect();
                module.annotations.push(Instruction::new(Op::MemberDecorate, None, None, member));
            }),
            None
        );
        assert_eq!(PartForm::new(&whole.words[..20], 4, 1), None);
    }
}
