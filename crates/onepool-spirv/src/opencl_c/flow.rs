//! Structured control flow: blocks and merge instructions back to `if`, `for` and `switch`.
//!
//! A list of blocks is written until control would reach its `stop`, to which it falls through. A branch to
//! another place that is still to come is a `break`, a `continue` or, where C has no such word, a `goto`. Each
//! block is written once; a module whose branches need more is not structured, and refused.

use std::collections::{HashMap, HashSet};

use rspirv::dr::Operand;
use rspirv::spirv::Op;

use super::OpenClError;
use super::function::Body;
use super::module::{Block, unsupported};
use crate::parse::Inst;

/// Constructs nested deeper are refused, as C compilers may.
const MAX_DEPTH: usize = 120;

/// A place that a branch may go to, out of what is being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exit {
    block: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// After an `if`.
    Selection,
    /// After a `switch`.
    Switch,
    /// Another case of a switch.
    Case,
    /// After a loop.
    Loop,
    /// The part of a loop that leads back to its head.
    Continue,
    /// The head of a loop.
    Head,
}

impl<'m> Body<'_, 'm> {
    /// Writes the blocks of the function.
    pub(super) fn run(&mut self) -> Result<(), OpenClError> {
        self.list(self.function.first, None)
    }

    fn block(&self, user: &Inst, id: u32) -> Result<Block<'m>, OpenClError> {
        let block = self.function.blocks.get(&id).copied();
        block.ok_or_else(|| unsupported(user, format!("a branch to {id}, which is no block,")))
    }

    fn list(&mut self, start: u32, stop: Option<u32>) -> Result<(), OpenClError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(OpenClError::TooLarge { what: "nested blocks", limit: MAX_DEPTH });
        }
        let mut next = Some(start);
        while let Some(id) = next.filter(|id| Some(*id) != stop) {
            let block = self.block(self.function.inst, id)?;
            if !self.visited.insert(id) {
                return Err(OpenClError::Unstructured { word: block.label.word, block: id });
            }
            let merge = block.insts.iter().find(|inst| inst.op() == Op::LoopMerge);
            next = match merge {
                Some(merge) => {
                    self.repeat(id, block, merge.id(0)?, merge.id(1)?)?;
                    self.branch(merge, None, merge.id(0)?, stop)?
                }
                None => {
                    self.statements(block)?;
                    self.terminator(id, block, stop)?
                }
            };
        }
        self.depth -= 1;
        Ok(())
    }

    fn statements(&mut self, block: Block<'m>) -> Result<(), OpenClError> {
        let count = block.insts.len().saturating_sub(1);
        block.insts.iter().take(count).try_for_each(|inst| self.instruction(inst))
    }

    /// A loop with its head, body and continue construct.
    fn repeat(&mut self, id: u32, block: Block<'m>, merge: u32, cont: u32) -> Result<(), OpenClError> {
        let outside = self.exits.len();
        self.exits.push(Exit { block: merge, kind: Kind::Loop });
        self.exits.push(Exit { block: id, kind: Kind::Head });
        self.open_block("for (;;) {")?;
        if cont == id {
            self.statements(block)?;
            if let Some(next) = self.terminator(id, block, Some(id))? {
                self.list(next, Some(id))?;
            }
        } else {
            self.exits.push(Exit { block: cont, kind: Kind::Continue });
            self.statements(block)?;
            if let Some(next) = self.terminator(id, block, Some(cont))? {
                self.list(next, Some(cont))?;
            }
            self.exits.pop();
            self.label(cont)?;
            self.list(cont, Some(id))?;
        }
        self.exits.truncate(outside);
        self.close_block("}")?;
        self.label(merge)
    }

    fn open_block(&mut self, text: &str) -> Result<(), OpenClError> {
        self.line(text)?;
        self.indent += 1;
        Ok(())
    }

    fn close_block(&mut self, text: &str) -> Result<(), OpenClError> {
        self.indent = self.indent.saturating_sub(1);
        self.line(text)
    }

    /// The label of a block that a `goto` leads to.
    fn label(&mut self, block: u32) -> Result<(), OpenClError> {
        if self.labels.contains(&block) { self.line(&format!("l{block}:;")) } else { Ok(()) }
    }

    /// A branch to `target`, from block `from` where it is one of the module's. What is returned is written next.
    fn branch(
        &mut self,
        inst: &Inst,
        from: Option<u32>,
        target: u32,
        stop: Option<u32>,
    ) -> Result<Option<u32>, OpenClError> {
        if let Some(from) = from {
            self.phis(inst, from, target)?;
        }
        if Some(target) == stop {
            return Ok(None);
        }
        self.t.spend(self.exits.len())?;
        let Some(at) = self.exits.iter().rposition(|exit| exit.block == target) else {
            return Ok(Some(target));
        };
        let inner = self.exits.get(at + 1..).unwrap_or(&[]);
        let no_inner = |kinds: &[Kind]| !inner.iter().any(|exit| kinds.contains(&exit.kind));
        match self.exits.get(at).map(|exit| exit.kind) {
            Some(Kind::Loop | Kind::Switch) if no_inner(&[Kind::Loop, Kind::Switch]) => {
                self.line("break;")?
            }
            Some(Kind::Head) if no_inner(&[Kind::Loop]) => self.line("continue;")?,
            Some(Kind::Head) => return Err(OpenClError::Unstructured { word: inst.word, block: target }),
            _ => {
                self.labels.insert(target);
                self.line(&format!("goto l{target};"))?;
            }
        }
        Ok(None)
    }

    /// Sets what the phis of `target` take from block `from`.
    fn phis(&mut self, inst: &Inst, from: u32, target: u32) -> Result<(), OpenClError> {
        let block = self.block(inst, target)?;
        for phi in block.insts.iter().take_while(|inst| matches!(inst.op(), Op::Phi | Op::Line | Op::NoLine))
        {
            let Some(id) = phi.inst.result_id else { continue };
            self.t.spend(phi.inst.operands.len())?;
            let mut pairs = phi.inst.operands.chunks_exact(2);
            let value = pairs.find_map(|pair| match pair {
                [Operand::IdRef(value), Operand::IdRef(block)] if *block == from => Some(*value),
                _ => None,
            });
            let value = value.ok_or_else(|| unsupported(phi, format!("no value from block {from}")))?;
            let value = self.value(phi, value)?;
            self.line(&format!("q{id} = {value};"))?;
        }
        Ok(())
    }

    fn terminator(
        &mut self,
        id: u32,
        block: Block<'m>,
        stop: Option<u32>,
    ) -> Result<Option<u32>, OpenClError> {
        let Some((last, rest)) = block.insts.split_last() else {
            return Err(unsupported(block.label, "an empty block"));
        };
        let merge = rest.last().filter(|inst| inst.op() == Op::SelectionMerge);
        let merge = merge.map(|inst| inst.id(0)).transpose()?;
        match last.op() {
            Op::Branch => self.branch(last, Some(id), last.id(0)?, stop),
            Op::BranchConditional => match merge {
                _ if last.id(1)? == last.id(2)? => self.branch(last, Some(id), last.id(1)?, stop),
                Some(merge) => self.selection(id, last, merge, stop),
                None => self.conditional(id, last, stop),
            },
            Op::Switch => match merge {
                Some(merge) => self.switch(id, last, merge, stop),
                None => Err(OpenClError::Unstructured { word: last.word, block: id }),
            },
            Op::Return => self.leave().map(|()| None),
            Op::ReturnValue => {
                let value = self.operand(last, 0)?;
                self.line(&format!("return {value};")).map(|()| None)
            }
            Op::Unreachable => {
                let ty = self.function.inst.inst.result_type.unwrap_or(0);
                match self.t.types.num(ty) {
                    Some(num) => {
                        let zero = self.t.lanes(num, &vec![0; num.n as usize]);
                        self.line(&format!("return {zero};"))?;
                    }
                    None if self.kernel => self.leave()?,
                    None => {}
                }
                Ok(None)
            }
            op => Err(unsupported(last, format!("{op:?} as the end of a block"))),
        }
    }

    /// An `if` with its merge.
    fn selection(
        &mut self,
        id: u32,
        inst: &'m Inst,
        merge: u32,
        stop: Option<u32>,
    ) -> Result<Option<u32>, OpenClError> {
        let condition = self.operand(inst, 0)?;
        let (yes, no) = (inst.id(1)?, inst.id(2)?);
        self.exits.push(Exit { block: merge, kind: Kind::Selection });
        if yes == merge && !self.has_phi(merge) {
            self.open_block(&format!("if (!{condition}) {{"))?;
            self.arm(inst, id, no, merge)?;
        } else {
            self.open_block(&format!("if ({condition}) {{"))?;
            self.arm(inst, id, yes, merge)?;
            if no != merge || self.has_phi(merge) {
                self.close_block("} else {")?;
                self.indent += 1;
                self.arm(inst, id, no, merge)?;
            }
        }
        self.close_block("}")?;
        self.exits.pop();
        self.label(merge)?;
        self.branch(inst, None, merge, stop)
    }

    fn arm(&mut self, inst: &Inst, from: u32, target: u32, merge: u32) -> Result<(), OpenClError> {
        match self.branch(inst, Some(from), target, Some(merge))? {
            Some(next) => self.list(next, Some(merge)),
            None => Ok(()),
        }
    }

    fn has_phi(&self, block: u32) -> bool {
        let first = self.function.blocks.get(&block).and_then(|block| block.insts.first());
        first.is_some_and(|inst| inst.op() == Op::Phi)
    }

    /// A branch without a merge: at least one side leaves what is being written.
    fn conditional(
        &mut self,
        id: u32,
        inst: &'m Inst,
        stop: Option<u32>,
    ) -> Result<Option<u32>, OpenClError> {
        let condition = self.operand(inst, 0)?;
        let (yes, no) = (inst.id(1)?, inst.id(2)?);
        self.t.spend(2 * self.exits.len())?;
        let leaves = |target: u32| self.exits.iter().any(|exit| exit.block == target);
        let (test, leaving, staying) = match (leaves(yes), leaves(no)) {
            (true, true) if Some(yes) == stop => (format!("!{condition}"), no, yes),
            (true, _) => (condition, yes, no),
            (false, true) => (format!("!{condition}"), no, yes),
            (false, false) => return Err(OpenClError::Unstructured { word: inst.word, block: yes }),
        };
        self.open_block(&format!("if ({test}) {{"))?;
        self.branch(inst, Some(id), leaving, None)?;
        self.close_block("}")?;
        self.branch(inst, Some(id), staying, stop)
    }

    fn switch(
        &mut self,
        id: u32,
        inst: &'m Inst,
        merge: u32,
        stop: Option<u32>,
    ) -> Result<Option<u32>, OpenClError> {
        let selector = inst.id(0)?;
        let num = self.num_of(inst, selector)?;
        let selector = self.value(inst, selector)?;
        let default = inst.id(1)?;
        // Targets in the order of their first literal, each with all of its literals.
        let mut cases: Vec<(u32, Vec<String>)> = Vec::new();
        let mut places = HashMap::new();
        for pair in inst.inst.operands.get(2..).unwrap_or(&[]).chunks_exact(2) {
            let (bits, target) = match pair {
                [Operand::LiteralBit32(bits), Operand::IdRef(target)] => (u64::from(*bits), *target),
                [Operand::LiteralBit64(bits), Operand::IdRef(target)] => (*bits, *target),
                _ => return Err(unsupported(inst, "a switch of this form")),
            };
            let at = *places.entry(target).or_insert_with(|| {
                cases.push((target, Vec::new()));
                cases.len() - 1
            });
            if let Some((_, labels)) = cases.get_mut(at) {
                labels.push(format!("case {}:", self.t.lanes(num, &[bits])));
            }
        }
        let at = *places.entry(default).or_insert_with(|| {
            cases.push((default, Vec::new()));
            cases.len() - 1
        });
        if let Some((_, labels)) = cases.get_mut(at) {
            labels.push("default:".to_owned());
        }
        let outside = self.exits.len();
        self.exits.push(Exit { block: merge, kind: Kind::Switch });
        let targets = cases.iter().filter(|(target, _)| *target != merge);
        let targets: Vec<Exit> = targets.map(|(block, _)| Exit { block: *block, kind: Kind::Case }).collect();
        // A case may be the exit of a construct around the switch: then it is no block of the switch's own.
        let around: HashSet<u32> = self.exits.iter().map(|exit| exit.block).collect();
        let own: Vec<Exit> = targets.into_iter().filter(|case| !around.contains(&case.block)).collect();
        self.t.spend(around.len() + own.len())?;
        self.exits.extend(&own);
        let own: HashSet<u32> = own.into_iter().map(|case| case.block).collect();
        self.line(&format!("switch ({selector}) {{"))?;
        for (target, labels) in cases {
            self.open_block(&format!("{} {{", labels.join(" ")))?;
            if own.contains(&target) {
                self.phis(inst, id, target)?;
                if self.branched.contains(&target) {
                    self.line(&format!("l{target}:;"))?;
                }
                self.list(target, Some(merge))?;
            } else {
                self.branch(inst, Some(id), target, Some(merge))?;
            }
            self.line("break;")?;
            self.close_block("}")?;
        }
        self.line("}")?;
        self.exits.truncate(outside);
        self.label(merge)?;
        self.branch(inst, None, merge, stop)
    }
}
