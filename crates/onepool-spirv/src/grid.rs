//! What a kernel takes from the size of its grid, which decides whether parts of a grid can be run apart.
//!
//! A dispatch that begins at another work-group than the first has the numbers of its work-groups, but the count of
//! its own. So values that come from the `NumWorkgroups` built-in are followed. A use that is not understood counts
//! as reading it.
//!
//! Shared with the build script: no `crate::` paths here.

use std::collections::HashMap;

use rspirv::dr::Operand;
use rspirv::spirv::{BuiltIn, Decoration, Op};

use super::parse::{Inst, is_atomic};
use super::types::Index;

/// How a kernel uses the number of work-groups along one axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroupCount {
    /// It does not read it.
    #[default]
    Unread,
    /// It only multiplies it by a place along y that is 0 in the first row of work-groups, so with one row it does not
    /// matter.
    Pitch,
    /// It reads it.
    Read,
}

/// What a kernel takes from its grid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GridUse {
    /// How it uses the numbers of work-groups along x, y, z.
    pub counts: [GroupCount; 3],
    /// Whether it has atomic operations, by which work-groups can tell each other something.
    pub atomics: bool,
}

impl GridUse {
    /// Along which axes a grid of `groups` can be run in parts, each with the kernel's numbers of work-groups.
    pub fn splits(&self, groups: [u32; 3]) -> [bool; 3] {
        let mut splits = [false; 3];
        for ((splits, groups_along), count) in splits.iter_mut().zip(groups).zip(self.counts) {
            let indifferent = match count {
                GroupCount::Unread => true,
                GroupCount::Pitch => groups[1] == 1,
                GroupCount::Read => false,
            };
            *splits = indifferent && groups_along > 1;
        }
        splits
    }
}

/// A value that depends on the grid.
#[derive(Clone, Copy)]
enum Value {
    /// The numbers of work-groups: a pointer to them, or all three.
    Counts,
    /// A number of work-groups along an axis, times what does not depend on the work-group; a pointer to it.
    Count(usize),
    /// The place of a work-group or of an invocation: a pointer to it, or all three.
    Places,
    /// A place along y that is 0 in the first row of work-groups; a pointer to it.
    Row,
}

/// What the kernel of a module, whose work-groups have one row of invocations where `one_row`, takes from its grid.
pub(super) fn grid_use(index: &Index<'_>, one_row: bool) -> GridUse {
    let mut values = HashMap::new();
    let mut found = GridUse::default();
    for inst in index.module.globals() {
        // A built-in that is a member of a block is not followed.
        let member = inst.op() == Op::MemberDecorate && inst.inst.operands.get(2) == Some(&BUILTIN);
        if member && inst.inst.operands.contains(&Operand::BuiltIn(BuiltIn::NumWorkgroups)) {
            found.counts = [GroupCount::Read; 3];
        }
        let (Op::Variable, Some(id)) = (inst.op(), inst.inst.result_id) else { continue };
        if index.is_builtin(id, BuiltIn::NumWorkgroups) {
            values.insert(id, Value::Counts);
        } else if index.is_builtin(id, BuiltIn::WorkgroupId)
            || (index.is_builtin(id, BuiltIn::GlobalInvocationId) && one_row)
        {
            values.insert(id, Value::Places);
        }
    }
    let mut uses = Uses { index, values, found };
    let functions = || index.module.insts.iter().skip_while(|inst| inst.op() != Op::Function);
    functions().for_each(|inst| uses.follow(inst));
    // What comes round a loop is defined after its phi.
    functions().filter(|inst| inst.op() == Op::Phi).for_each(|inst| uses.read(inst));
    uses.found
}

const BUILTIN: Operand = Operand::Decoration(Decoration::BuiltIn);

struct Uses<'i, 'm> {
    index: &'i Index<'m>,
    /// By id.
    values: HashMap<u32, Value>,
    found: GridUse,
}

impl Uses<'_, '_> {
    fn follow(&mut self, inst: &Inst) {
        self.found.atomics |= is_atomic(inst.op());
        let mut ids = inst.inst.operands.iter().filter_map(Operand::id_ref_any);
        if !ids.any(|id| self.values.contains_key(&id)) {
            return;
        }
        match (self.value(inst), inst.inst.result_id) {
            (Some(value), Some(id)) => {
                self.values.insert(id, value);
            }
            _ => self.read(inst),
        }
    }

    /// The value that an instruction makes of such values, where it is followed.
    fn value(&mut self, inst: &Inst) -> Option<Value> {
        let first = inst.id(0).ok()?;
        match (inst.op(), self.values.get(&first).copied()) {
            (Op::Load | Op::CopyObject, Some(value)) => Some(value),
            (Op::AccessChain | Op::InBoundsAccessChain, Some(value)) if inst.inst.operands.len() == 2 => {
                let constant = self.index.module.def(inst.id(1).ok()?)?;
                part(value, constant.literal(0).ok().filter(|_| constant.op() == Op::Constant)?)
            }
            (Op::CompositeExtract, Some(value)) if inst.inst.operands.len() == 2 => {
                part(value, inst.literal(1).ok()?)
            }
            (Op::IMul, value) => self.product((first, value), inst.id(1).ok()?),
            _ => None,
        }
    }

    fn product(&mut self, (first, a): (u32, Option<Value>), second: u32) -> Option<Value> {
        match (a, self.values.get(&second).copied()) {
            (Some(Value::Row), Some(Value::Count(axis))) | (Some(Value::Count(axis)), Some(Value::Row)) => {
                let count = &mut self.found.counts[axis];
                if *count == GroupCount::Unread {
                    *count = GroupCount::Pitch;
                }
                Some(Value::Row)
            }
            (Some(Value::Count(axis)), None) if self.is_constant(second) => Some(Value::Count(axis)),
            (None, Some(Value::Count(axis))) if self.is_constant(first) => Some(Value::Count(axis)),
            _ => None,
        }
    }

    /// Whether every invocation of every dispatch has the same value there.
    fn is_constant(&self, id: u32) -> bool {
        let is_constant = |op: Op| {
            matches!(
                op,
                Op::Constant
                    | Op::ConstantComposite
                    | Op::SpecConstant
                    | Op::SpecConstantComposite
                    | Op::SpecConstantOp
            )
        };
        self.index.module.def(id).is_some_and(|inst| {
            let composite = || inst.id(0).ok().and_then(|id| self.index.module.def(id));
            is_constant(inst.op())
                || (inst.op() == Op::CompositeExtract && composite().is_some_and(|c| is_constant(c.op())))
        })
    }

    /// A use that is not followed.
    fn read(&mut self, inst: &Inst) {
        for id in inst.inst.operands.iter().filter_map(Operand::id_ref_any) {
            match self.values.get(&id) {
                Some(Value::Counts) => self.found.counts = [GroupCount::Read; 3],
                Some(Value::Count(axis)) => self.found.counts[*axis] = GroupCount::Read,
                Some(Value::Places | Value::Row) | None => {}
            }
        }
    }
}

/// The component `axis` of all three.
fn part(value: Value, axis: u32) -> Option<Value> {
    match (value, axis) {
        (Value::Counts, 0..3) => Some(Value::Count(axis as usize)),
        (Value::Places, 1) => Some(Value::Row),
        _ => None,
    }
}
