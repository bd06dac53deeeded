//! One function: what its ids stand for, where they are declared, and the instructions that move values.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use rspirv::dr::Operand;
use rspirv::spirv::{Op, StorageClass};

use super::OpenClError;
use super::constant::Value;
use super::flow::Exit;
use super::helpers::Helper;
use super::leave::{Mark, needs_closing_barrier};
use super::module::{Function, Global, MAX_SOURCE, Needs, Translator, too_long, unsupported};
use super::pointer::{Pointer, Space};
use super::types::{Num, Type};
use crate::parse::{Inst, is_atomic};
use crate::reflect::BindingAccess;

/// The function that is being written.
pub(super) struct Body<'t, 'm> {
    pub(super) t: &'t mut Translator<'m>,
    pub(super) function: &'t Function<'m>,
    /// Declarations at the head of the function.
    head: String,
    /// The statements.
    pub(super) text: String,
    pub(super) indent: usize,
    /// Values that are used outside of the block that defines them.
    hoisted: HashSet<u32>,
    /// Halves that only go to buffers: the store rounds them.
    pub(super) stored: HashSet<u32>,
    pub(super) pointers: HashMap<u32, Pointer>,
    /// Constant arrays and structures that the head declares.
    tables: HashSet<u32>,
    pub(super) kernel: bool,
    pub(super) exits: Vec<Exit>,
    pub(super) visited: HashSet<u32>,
    /// Blocks that are reached by a `goto`.
    pub(super) labels: HashSet<u32>,
    /// Blocks that are the target of a branch other than a switch's.
    pub(super) branched: HashSet<u32>,
    pub(super) depth: usize,
    /// Barriers and returns in the order of the text.
    marks: Vec<Mark>,
}

impl<'t, 'm> Body<'t, 'm> {
    /// The text of function `id`.
    pub(super) fn write(t: &'t mut Translator<'m>, id: u32, kernel: bool) -> Result<String, OpenClError> {
        let function = t.functions.remove(&id);
        let function = function.ok_or_else(|| OpenClError::invalid("a call of no function"))?;
        let mut body = Body {
            t,
            function: &function,
            head: String::new(),
            text: String::new(),
            indent: 1,
            hoisted: HashSet::new(),
            stored: HashSet::new(),
            pointers: HashMap::new(),
            tables: HashSet::new(),
            kernel,
            exits: Vec::new(),
            visited: HashSet::new(),
            labels: HashSet::new(),
            branched: HashSet::new(),
            depth: 0,
            marks: Vec::new(),
        };
        body.prepare()?;
        let signature = body.signature(id)?;
        body.run()?;
        const END: &str = "    return;\n";
        if kernel
            && body.labels.is_empty()
            && needs_closing_barrier(&body.marks)
            && let Some(at) = body.text.len().checked_sub(END.len())
            && body.text.ends_with(&format!("\n{END}"))
        {
            body.text.insert_str(at, "    barrier(CLK_LOCAL_MEM_FENCE);\n");
        }
        if body.marks.iter().any(|mark| matches!(mark, Mark::Barrier { .. })) {
            body.t.with_barrier.insert(id);
        }
        let mut text = signature;
        text.push_str(&body.head);
        text.push_str(&body.text);
        text.push_str("}\n");
        // Its callers still ask for its type.
        t.functions.insert(id, function);
        Ok(text)
    }

    fn signature(&mut self, id: u32) -> Result<String, OpenClError> {
        let inst = self.function.inst;
        if self.kernel {
            return self.t.kernel_head(inst);
        }
        let mut params = Vec::new();
        for param in &self.function.params {
            let (Some(id), Some(ty)) = (param.inst.result_id, param.inst.result_type) else { continue };
            params.push(self.param(param, id, ty)?);
        }
        let needs = self.t.needs.get(&id).cloned().unwrap_or_default();
        params.extend(self.t.needed_params(inst, &needs)?);
        let result = self.t.types.name(inst, inst.inst.result_type.unwrap_or(0))?;
        let params = if params.is_empty() { "void".to_owned() } else { params.join(", ") };
        Ok(format!("static {result} f{id}({params})\n{{\n"))
    }

    fn param(&mut self, param: &Inst, id: u32, ty: u32) -> Result<String, OpenClError> {
        let Type::Pointer { class, to } = *self.t.types.get(ty) else {
            return Ok(format!("{} v{id}", self.t.types.name(param, ty)?));
        };
        let (space, pointer) = match class {
            StorageClass::Function | StorageClass::Private => (Space::Private, "*"),
            StorageClass::Workgroup => (Space::Local, "*"),
            StorageClass::StorageBuffer => {
                self.pointers.insert(id, Pointer::bytes(format!("v{id}"), false, to));
                return Ok(format!("__global uchar* v{id}"));
            }
            _ => match *self.t.types.get(to) {
                Type::Image(image) if class == StorageClass::UniformConstant => {
                    let (form, base) = (self.t.form_of_param(param, &image)?, format!("v{id}"));
                    let text = self.t.image_param(&base, form, BindingAccess::Read, self.t.samples(&image));
                    self.pointers.insert(id, Pointer::Image { base, image, form });
                    return Ok(text);
                }
                _ => return Err(unsupported(param, format!("a parameter that points to {class:?}"))),
            },
        };
        self.pointers.insert(id, Pointer::variable(format!("(*v{id})"), space, to));
        Ok(format!("{}{}{pointer} v{id}", space.c(), self.t.types.name(param, to)?))
    }

    /// Finds which values outlive their block, and which blocks are branched to.
    fn prepare(&mut self) -> Result<(), OpenClError> {
        let mut home: HashMap<u32, u32> = HashMap::new();
        let mut chains: HashMap<u32, Vec<u32>> = HashMap::new();
        for (label, block) in &self.function.blocks {
            for inst in block.insts {
                if let Some(id) = inst.inst.result_id {
                    home.insert(id, *label);
                    let ids = inst.inst.operands.iter().filter_map(Operand::id_ref_any);
                    if is_pointer_op(inst.op()) {
                        chains.insert(id, ids.collect());
                    }
                }
            }
        }
        let mut outlive = Vec::new();
        for (label, block) in &self.function.blocks {
            for inst in block.insts {
                match inst.op() {
                    Op::Branch | Op::BranchConditional => {
                        let targets = inst.inst.operands.iter().filter_map(Operand::id_ref_any);
                        self.branched.extend(targets);
                    }
                    Op::Phi => {
                        for pair in inst.inst.operands.chunks_exact(2) {
                            if let [Operand::IdRef(value), Operand::IdRef(from)] = pair
                                && home.get(value).is_some_and(|home| home != from)
                            {
                                outlive.push(*value);
                            }
                        }
                        continue;
                    }
                    _ => {}
                }
                let used = inst.inst.operands.iter().filter_map(Operand::id_ref_any);
                outlive.extend(used.filter(|id| home.get(id).is_some_and(|home| home != label)));
            }
        }
        self.stored = self.only_stored();
        // A pointer is an expression of its indices.
        while let Some(id) = outlive.pop() {
            if self.hoisted.insert(id)
                && let Some(indices) = chains.get(&id)
            {
                outlive.extend(indices.iter().filter(|id| home.contains_key(id)));
            }
        }
        Ok(())
    }

    /// Results of conversions that are used by nothing but stores to buffers.
    fn only_stored(&self) -> HashSet<u32> {
        let insts = || self.function.insts.iter();
        let converted = insts().filter(|inst| inst.op() == Op::FConvert);
        let mut stored: HashSet<u32> = converted.filter_map(|inst| inst.inst.result_id).collect();
        for inst in insts() {
            let buffer = || {
                let pointer = inst.id(0).ok().and_then(|id| self.t.module.def(id));
                let ty = pointer.and_then(|pointer| pointer.inst.result_type).map(|ty| self.t.types.get(ty));
                matches!(
                    ty,
                    Some(Type::Pointer { class: StorageClass::StorageBuffer | StorageClass::Uniform, .. })
                )
            };
            let stores = inst.op() == Op::Store && buffer();
            for (at, operand) in inst.inst.operands.iter().enumerate() {
                if let Some(id) = operand.id_ref_any()
                    && !(stores && at == 1)
                {
                    stored.remove(&id);
                }
            }
        }
        stored
    }

    /// Writes one line.
    pub(super) fn line(&mut self, line: &str) -> Result<(), OpenClError> {
        let _ = writeln!(self.text, "{:1$}{line}", "", self.indent * 4);
        if self.text.len() + self.head.len() > MAX_SOURCE { Err(too_long()) } else { Ok(()) }
    }

    /// Notes that the group meets here.
    fn mark_barrier(&mut self) {
        self.marks.push(Mark::Barrier { always: self.indent == 1 });
    }

    /// Writes a return without a value.
    pub(super) fn leave(&mut self) -> Result<(), OpenClError> {
        self.marks.push(Mark::Return);
        self.line("return;")
    }

    /// Declares `name` of the type at the head of the function.
    pub(super) fn declare(&mut self, user: &Inst, ty: u32, name: &str) -> Result<(), OpenClError> {
        let ty = self.t.types.name(user, ty)?;
        let _ = writeln!(self.head, "    {ty} {name};");
        Ok(())
    }

    /// Gives the result of `inst` its value.
    pub(super) fn set(&mut self, inst: &Inst, value: &str) -> Result<(), OpenClError> {
        match self.begin(inst)? {
            (id, Some(ty)) => self.line(&format!("{ty} v{id} = {value};")),
            (id, None) => self.line(&format!("v{id} = {value};")),
        }
    }

    /// Declares the result of `inst`; its value follows in statements.
    pub(super) fn open(&mut self, inst: &Inst) -> Result<u32, OpenClError> {
        let (id, ty) = self.begin(inst)?;
        if let Some(ty) = ty {
            self.line(&format!("{ty} v{id};"))?;
        }
        Ok(id)
    }

    /// The result of `inst`, and its type where it is to be declared in place.
    fn begin(&mut self, inst: &Inst) -> Result<(u32, Option<String>), OpenClError> {
        let (Some(id), Some(ty)) = (inst.inst.result_id, inst.inst.result_type) else {
            return Err(unsupported(inst, "an instruction without a result"));
        };
        if self.hoisted.contains(&id) {
            self.declare(inst, ty, &format!("v{id}"))?;
            return Ok((id, None));
        }
        Ok((id, Some(self.t.types.name(inst, ty)?)))
    }

    /// Notes that the code calls a helper.
    pub(super) fn help(&mut self, helper: Helper) {
        self.t.helpers.insert(helper);
        self.t.helpers.extend(helper.calls());
    }

    /// The type of the value `id`.
    pub(super) fn type_of(&self, user: &Inst, id: u32) -> Result<u32, OpenClError> {
        let def = self.t.module.def(id).and_then(|def| def.inst.result_type);
        def.ok_or_else(|| unsupported(user, format!("id {id} as a value")))
    }

    /// The scalar or vector type of the value `id`.
    pub(super) fn num_of(&self, user: &Inst, id: u32) -> Result<Num, OpenClError> {
        let ty = self.type_of(user, id)?;
        let num = self.t.types.num(ty);
        num.ok_or_else(|| unsupported(user, format!("id {id}, which is no scalar or vector,")))
    }

    /// The scalar or vector type of the result of `inst`.
    pub(super) fn result(&self, inst: &Inst) -> Result<Num, OpenClError> {
        let num = inst.inst.result_type.and_then(|ty| self.t.types.num(ty));
        num.ok_or_else(|| unsupported(inst, format!("{:?} of this type", inst.op())))
    }

    /// The value `id` as an expression without side effects that binds tighter than any operator.
    pub(super) fn value(&mut self, user: &Inst, id: u32) -> Result<String, OpenClError> {
        let Some((ty, value)) = self.t.constants.get(id) else {
            if self.pointers.contains_key(&id) || self.t.globals.contains_key(&id) {
                return Err(unsupported(user, "a pointer as a value"));
            }
            return Ok(format!("v{id}"));
        };
        if let Value::Lanes(num, lanes) = value {
            return Ok(self.t.lanes(*num, lanes));
        }
        if self.tables.insert(id) {
            let initial = self.t.initializer(user, id)?;
            self.declare(user, ty, &format!("k{id} = {initial}"))?;
        }
        Ok(format!("k{id}"))
    }

    /// Operand `at` of `inst` as an expression.
    pub(super) fn operand(&mut self, inst: &Inst, at: usize) -> Result<String, OpenClError> {
        let id = inst.id(at)?;
        self.value(inst, id)
    }

    /// Component `at` of an expression.
    pub(super) fn lane(&self, value: &str, num: Num, at: u32) -> String {
        match (num.n, num.is_bool()) {
            (1, _) => value.to_owned(),
            (_, true) => format!("({value}.s{at} != 0)"),
            _ => format!("{value}.s{at}"),
        }
    }

    /// A vector of these components, or the only one.
    pub(super) fn of_lanes(&self, num: Num, lanes: &[String]) -> String {
        match lanes {
            [lane] if num.n == 1 => lane.clone(),
            lanes if num.is_bool() => {
                let lanes: Vec<String> = lanes.iter().map(|lane| format!("({lane} ? -1 : 0)")).collect();
                format!("({})({})", num.c(self.t.fp16), lanes.join(", "))
            }
            lanes => format!("({})({})", num.c(self.t.fp16), lanes.join(", ")),
        }
    }

    /// One instruction that is neither a label nor a branch.
    pub(super) fn instruction(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        match inst.op() {
            Op::Line | Op::NoLine | Op::Nop | Op::SelectionMerge | Op::LoopMerge => Ok(()),
            Op::Undef => match inst.inst.result_type.map(|ty| self.t.types.get(ty)) {
                // Any value will do.
                Some(Type::Num(num, _)) => {
                    let zero = self.t.lanes(*num, &vec![0; num.n as usize]);
                    self.set(inst, &zero)
                }
                _ => self.open(inst).map(|_| ()),
            },
            Op::Phi => {
                let id = inst.inst.result_id.unwrap_or(0);
                self.declare(inst, inst.inst.result_type.unwrap_or(0), &format!("q{id}"))?;
                self.set(inst, &format!("q{id}"))
            }
            Op::Variable => self.local_variable(inst),
            Op::Load | Op::Store | Op::CopyMemory | Op::ArrayLength => self.memory(inst),
            Op::AccessChain | Op::InBoundsAccessChain => self.access_chain(inst),
            op if super::image::is_image_op(op) => self.image(inst),
            Op::CopyObject => {
                if let Some(pointer) = self.pointer_if_any(inst, inst.id(0)?)? {
                    self.pointers.insert(inst.inst.result_id.unwrap_or(0), pointer);
                    return Ok(());
                }
                let value = self.operand(inst, 0)?;
                self.set(inst, &value)
            }
            Op::FunctionCall => self.call(inst),
            Op::CompositeConstruct => self.construct(inst),
            Op::CompositeExtract => self.extract(inst),
            Op::CompositeInsert => self.insert(inst),
            Op::ControlBarrier | Op::MemoryBarrier => self.barrier(inst),
            Op::ExtInst => self.extended(inst),
            Op::IAddCarry | Op::ISubBorrow | Op::UMulExtended | Op::SMulExtended => {
                self.extended_integer(inst)
            }
            Op::CopyLogical => self.copy_logical(inst),
            op if is_atomic(op) => self.atomic(inst),
            _ => {
                let value = self.arithmetic(inst)?;
                self.set(inst, &value)
            }
        }
    }

    fn local_variable(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        let (Some(id), Some(ty)) = (inst.inst.result_id, inst.inst.result_type) else { return Ok(()) };
        let Type::Pointer { to, .. } = *self.t.types.get(ty) else {
            return Err(unsupported(inst, "a variable of this type"));
        };
        let initial = match inst.inst.operands.get(1) {
            Some(Operand::IdRef(constant)) => format!(" = {}", self.t.initializer(inst, *constant)?),
            _ => String::new(),
        };
        self.declare(inst, to, &format!("x{id}{initial}"))?;
        self.pointers.insert(id, Pointer::variable(format!("x{id}"), Space::Private, to));
        Ok(())
    }

    fn call(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        let callee = inst.id(0)?;
        let function = self.t.functions.get(&callee);
        let params = function.map_or(0, |function| function.params.len());
        if function.is_none() || params + 1 != inst.inst.operands.len() {
            return Err(unsupported(inst, "a call with other arguments than the function has"));
        }
        let mut args = Vec::new();
        for at in 1..inst.inst.operands.len() {
            let id = inst.id(at)?;
            args.push(match self.pointer_if_any(inst, id)? {
                Some(pointer) => self.pointer_argument(inst, &pointer)?,
                None => self.value(inst, id)?,
            });
        }
        let needs = self.t.needs.get(&callee).cloned().unwrap_or_default();
        self.pass_needs(&needs, &mut args);
        let call = format!("f{callee}({})", args.join(", "));
        if self.t.with_barrier.contains(&callee) {
            self.mark_barrier();
        }
        match inst.inst.result_type.map(|ty| self.t.types.get(ty)) {
            Some(Type::Void) => self.line(&format!("{call};")),
            _ => self.set(inst, &call),
        }
    }

    fn pass_needs(&self, needs: &Needs, args: &mut Vec<String>) {
        let own = if self.kernel { "&" } else { "" };
        args.extend(needs.bindings.iter().map(|binding| self.t.binding_args(*binding)));
        if needs.push {
            args.push(format!("{own}push"));
        }
        args.extend(needs.variables.iter().map(|id| match self.t.globals.get(id) {
            Some(Global::Local { .. }) => format!("x{id}"),
            _ => format!("{own}x{id}"),
        }));
    }

    fn construct(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        let parts: Vec<u32> =
            (0..inst.inst.operands.len()).map(|at| inst.id(at)).collect::<Result<_, _>>()?;
        let ty = inst.inst.result_type.unwrap_or(0);
        if let Some(num) = self.t.types.num(ty) {
            let mut lanes = Vec::new();
            for part in parts {
                let from = self.num_of(inst, part)?;
                let value = self.value(inst, part)?;
                lanes.extend((0..from.n).map(|at| self.lane(&value, from, at)));
            }
            if lanes.len() != num.n as usize {
                return Err(unsupported(inst, "a vector of these parts"));
            }
            let value = self.of_lanes(num, &lanes);
            return self.set(inst, &value);
        }
        let array = matches!(self.t.types.get(ty), Type::Array { .. });
        let id = self.open(inst)?;
        for (at, part) in parts.into_iter().enumerate() {
            let value = self.value(inst, part)?;
            let member = if array { format!("a[{at}]") } else { format!("m{at}") };
            self.line(&format!("v{id}.{member} = {value};"))?;
        }
        Ok(())
    }

    /// The part of `value` of type `ty` at the literal operands from `from` on, and the part's type.
    fn part(
        &self,
        inst: &Inst,
        mut path: String,
        mut ty: u32,
        from: usize,
    ) -> Result<(String, u32, bool), OpenClError> {
        let mut component = false;
        for at in from..inst.inst.operands.len() {
            let at = inst.literal(at)?;
            match self.t.types.get(ty) {
                Type::Array { element, len: Some(len) } if at < *len => {
                    let _ = write!(path, ".a[{at}]");
                    ty = *element;
                }
                Type::Struct(members) => {
                    let member = members.get(at as usize);
                    ty = *member.ok_or_else(|| unsupported(inst, "a member that is not there"))?;
                    let _ = write!(path, ".m{at}");
                }
                Type::Num(num, Some(lane)) if at < num.n => {
                    let _ = write!(path, ".s{at}");
                    ty = *lane;
                    component = true;
                }
                _ => return Err(unsupported(inst, "a part that is not there")),
            }
        }
        Ok((path, ty, component))
    }

    fn extract(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        if let [_, Operand::LiteralBit32(at)] = inst.inst.operands[..]
            && let Some((_, Value::Lanes(num, lanes))) = self.t.constants.get(inst.id(0)?)
            && let Some(bits) = lanes.get(at as usize)
        {
            let value = self.t.lanes(num.lane(), &[*bits]);
            return self.set(inst, &value);
        }
        let ty = self.type_of(inst, inst.id(0)?)?;
        let value = self.operand(inst, 0)?;
        let (path, ty, component) = self.part(inst, value, ty, 1)?;
        match component && self.t.types.num(ty).is_some_and(Num::is_bool) {
            true => self.set(inst, &format!("({path} != 0)")),
            false => self.set(inst, &path),
        }
    }

    fn insert(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        let ty = self.type_of(inst, inst.id(1)?)?;
        let (object, base) = (self.operand(inst, 0)?, self.operand(inst, 1)?);
        self.set(inst, &base)?;
        let id = inst.inst.result_id.unwrap_or(0);
        let (path, ty, component) = self.part(inst, format!("v{id}"), ty, 2)?;
        match component && self.t.types.num(ty).is_some_and(Num::is_bool) {
            true => self.line(&format!("{path} = {object} ? -1 : 0;")),
            false => self.line(&format!("{path} = {object};")),
        }
    }

    /// Barriers: the scope must be the work-group's for control; memory classes become fences.
    fn barrier(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        const WORKGROUP: i64 = 2;
        let control = inst.op() == Op::ControlBarrier;
        let constant = |at: usize| {
            let id = inst.inst.operands.get(at).and_then(Operand::id_ref_any);
            id.and_then(|id| self.t.constants.index(id))
        };
        if control && constant(0) != Some(WORKGROUP) {
            return Err(unsupported(inst, "a barrier of other than the work-group"));
        }
        let semantics = constant(if control { 2 } else { 1 });
        let semantics = semantics.ok_or_else(|| unsupported(inst, "a barrier of unknown semantics"))?;
        // UniformMemory or CrossWorkgroupMemory, and WorkgroupMemory.
        let fences = match (semantics & 0x240 != 0, semantics & 0x100 != 0) {
            (true, true) => "CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE",
            (true, false) => "CLK_GLOBAL_MEM_FENCE",
            (false, true) => "CLK_LOCAL_MEM_FENCE",
            (false, false) if control => "CLK_LOCAL_MEM_FENCE",
            (false, false) => return Ok(()),
        };
        let name = if control { "barrier" } else { "mem_fence" };
        if control {
            self.mark_barrier();
        }
        self.line(&format!("{name}({fences});"))
    }
}

/// Instructions whose result is not stored but read as an expression where it is used.
fn is_pointer_op(op: Op) -> bool {
    matches!(op, Op::AccessChain | Op::InBoundsAccessChain | Op::CopyObject)
}
