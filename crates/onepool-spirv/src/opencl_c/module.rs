//! The module as a whole: its variables, its functions in the order of calls, and the kernel around them.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;

use rspirv::dr::Operand;
use rspirv::spirv::{BuiltIn, Decoration, ExecutionMode, Op, StorageClass};

use super::constant::{Constants, Value};
use super::function::Body;
use super::helpers::Helper;
use super::image::Form;
use super::types::{ImageType, Num, Type, Types};
use super::{OpenClArg, OpenClError, OpenClImages, OpenClKernel, OpenClOptions};
use crate::Requires;
use crate::parse::{Inst, Module};
use crate::reflect::Reflection;
use crate::types::{Index, ScalarType};

/// Name of the translated kernel.
const NAME: &str = "onepool_kernel";

/// Longest source.
pub(super) const MAX_SOURCE: usize = 8 << 20;

/// Parts of one constant array or structure.
const MAX_PARTS: usize = 1 << 16;

/// Workgroup and private variables, and functions, that a module may have.
const MAX_VARIABLES: usize = 512;
const MAX_FUNCTIONS: usize = 4096;

/// Steps of the searches whose length a module decides.
const MAX_WORK: usize = 1 << 26;

/// A construct of the module that has no translation.
pub(super) fn unsupported(inst: &Inst, what: impl Into<Cow<'static, str>>) -> OpenClError {
    OpenClError::Unsupported { word: inst.word, id: inst.inst.result_id, what: what.into() }
}

/// A global variable.
#[derive(Clone, Copy, Debug)]
pub(super) enum Global {
    /// A storage or uniform buffer.
    Buffer { binding: u32, to: u32, volatile: bool },
    /// An image or a buffer of texels.
    Image { binding: u32, image: ImageType },
    /// The push constants.
    Push { to: u32 },
    /// Workgroup memory.
    Local { to: u32 },
    /// Private memory of the module.
    Private { to: u32, initial: Option<u32> },
    /// A built-in input of this type.
    Input { builtin: BuiltIn, num: Num },
}

/// A basic block: what stands between its label and the next.
#[derive(Clone, Copy)]
pub(super) struct Block<'m> {
    pub(super) label: &'m Inst,
    pub(super) insts: &'m [Inst],
}

/// A function with a body.
pub(super) struct Function<'m> {
    pub(super) inst: &'m Inst,
    pub(super) params: Vec<&'m Inst>,
    pub(super) first: u32,
    pub(super) blocks: HashMap<u32, Block<'m>>,
    pub(super) insts: &'m [Inst],
}

/// The globals that a function needs as arguments, those of its callees included.
#[derive(Clone, Default)]
pub(super) struct Needs {
    pub(super) bindings: BTreeSet<u32>,
    pub(super) push: bool,
    /// Workgroup and private variables.
    pub(super) variables: BTreeSet<u32>,
}

/// What is known of the module while its functions are written.
pub(super) struct Translator<'m> {
    pub(super) module: &'m Module,
    pub(super) index: Index<'m>,
    pub(super) types: Types,
    pub(super) constants: Constants,
    pub(super) globals: HashMap<u32, Global>,
    pub(super) functions: HashMap<u32, Function<'m>>,
    /// Those in which the group meets at a barrier.
    pub(super) with_barrier: HashSet<u32>,
    pub(super) needs: HashMap<u32, Needs>,
    pub(super) helpers: BTreeSet<Helper>,
    /// Bindings whose size is asked for.
    pub(super) sized: BTreeSet<u32>,
    pub(super) fp16: bool,
    pub(super) local_size: [u32; 3],
    /// What the device has.
    pub(super) images: OpenClImages,
    /// What stands for each binding that is an image.
    pub(super) forms: HashMap<u32, Form>,
    /// Whether some image is sampled.
    pub(super) has_samples: bool,
    pub(super) reflection: &'m Reflection,
    entry: u32,
    requires: Requires,
    /// Bytes of the kernel's workgroup variables, in the order of its parameters.
    workgroup_bytes: Vec<u64>,
    work: usize,
}

impl<'m> Translator<'m> {
    pub(super) fn new(
        module: &'m Module,
        reflection: &'m Reflection,
        options: &OpenClOptions<'_>,
    ) -> Result<Self, OpenClError> {
        let index = Index::new(module, &[])?;
        let mut constants = Constants::new(options.spec);
        let types = Types::read(module, &index, &mut constants, options.fp16)?;
        let entry = module.globals().find(|inst| inst.op() == Op::EntryPoint);
        let entry = entry.ok_or_else(|| OpenClError::invalid("no entry point"))?.id(1)?;
        let mut translator = Self {
            module,
            index,
            types,
            constants,
            globals: HashMap::new(),
            functions: functions(module)?,
            with_barrier: HashSet::new(),
            needs: HashMap::new(),
            helpers: BTreeSet::new(),
            sized: BTreeSet::new(),
            fp16: options.fp16,
            local_size: [0; 3],
            images: options.images,
            forms: HashMap::new(),
            has_samples: false,
            reflection,
            entry,
            requires: Requires::NONE,
            workgroup_bytes: Vec::new(),
            work: 0,
        };
        if translator.functions.len() > MAX_FUNCTIONS {
            return Err(OpenClError::TooLarge { what: "functions", limit: MAX_FUNCTIONS });
        }
        translator.local_size = translator.work_group()?;
        translator.check_features(options)?;
        translator.read_globals()?;
        Ok(translator)
    }

    /// Counts work that a module can ask for out of proportion to its size.
    pub(super) fn spend(&mut self, steps: usize) -> Result<(), OpenClError> {
        self.work = self.work.saturating_add(steps);
        match self.work > MAX_WORK {
            true => Err(OpenClError::TooLarge { what: "steps of the translation", limit: MAX_WORK }),
            false => Ok(()),
        }
    }

    /// What the source asks of the device.
    fn check_features(&mut self, options: &OpenClOptions<'_>) -> Result<(), OpenClError> {
        let needs = |scalar| {
            let mut globals = self.module.globals();
            globals.any(|inst| inst.op() == Op::TypeFloat && self.index.scalar(inst) == Ok(scalar))
        };
        if needs(ScalarType::F64) {
            self.requires = self.requires.union(Requires::FLOAT64);
        }
        if options.fp16 && needs(ScalarType::F16) {
            self.requires = self.requires.union(Requires::FLOAT16);
        }
        match self.requires.contains(Requires::FLOAT64) && !options.fp64 {
            true => Err(OpenClError::Requires { missing: Requires::FLOAT64 }),
            false => Ok(()),
        }
    }

    fn read_globals(&mut self) -> Result<(), OpenClError> {
        for inst in self.module.globals().filter(|inst| inst.op() == Op::Variable) {
            let (Some(id), Some(ty)) = (inst.inst.result_id, inst.inst.result_type) else { continue };
            let Type::Pointer { to, .. } = *self.types.get(ty) else {
                return Err(unsupported(inst, "a variable of this type"));
            };
            let global = self.read_global(inst, id, to)?;
            self.globals.insert(id, global);
        }
        let variable = |global: &&Global| matches!(global, Global::Local { .. } | Global::Private { .. });
        if self.globals.values().filter(variable).count() > MAX_VARIABLES {
            return Err(OpenClError::TooLarge { what: "module variables", limit: MAX_VARIABLES });
        }
        let samples =
            |inst: &Inst| matches!(inst.op(), Op::ImageSampleExplicitLod | Op::ImageSampleImplicitLod);
        self.has_samples = self.module.insts.iter().any(samples);
        self.read_forms()?;
        for inst in &self.module.insts {
            match inst.op() {
                Op::ArrayLength => match self.globals.get(&inst.id(0)?) {
                    Some(Global::Buffer { binding, .. }) => {
                        self.sized.insert(*binding);
                    }
                    _ => return Err(unsupported(inst, "the length of an array that is not of a binding")),
                },
                Op::ImageQuerySize => {
                    let texels = self.globals.values().filter_map(|global| match global {
                        Global::Image { binding, .. } if self.forms.get(binding) == Some(&Form::Pointer) => {
                            Some(*binding)
                        }
                        _ => None,
                    });
                    self.sized.extend(texels);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read_global(&self, inst: &Inst, id: u32, to: u32) -> Result<Global, OpenClError> {
        let binding = || self.index.decoration(id, None, Decoration::Binding).unwrap_or(0);
        Ok(match inst.storage_class(0)? {
            StorageClass::StorageBuffer | StorageClass::Uniform => {
                let Type::Struct(members) = self.types.get(to) else {
                    return Err(unsupported(inst, "a buffer that is no block"));
                };
                let volatile = |decoration| {
                    self.index.has(id, None, decoration)
                        || (0..members.len()).any(|at| self.index.has(to, Some(at as u32), decoration))
                };
                let volatile = volatile(Decoration::Coherent) || volatile(Decoration::Volatile);
                Global::Buffer { binding: binding(), to, volatile }
            }
            StorageClass::UniformConstant => match self.types.get(to) {
                Type::Image(image) => Global::Image { binding: binding(), image: *image },
                _ => return Err(unsupported(inst, "an image of this kind or format")),
            },
            StorageClass::PushConstant => Global::Push { to },
            StorageClass::Workgroup => match inst.inst.operands.get(1) {
                None => Global::Local { to },
                Some(_) => return Err(unsupported(inst, "workgroup memory with a value")),
            },
            StorageClass::Private => {
                let initial = match inst.inst.operands.get(1) {
                    Some(Operand::IdRef(id)) => Some(*id),
                    _ => None,
                };
                Global::Private { to, initial }
            }
            StorageClass::Input => {
                let builtins = [
                    BuiltIn::GlobalInvocationId,
                    BuiltIn::LocalInvocationId,
                    BuiltIn::LocalInvocationIndex,
                    BuiltIn::NumWorkgroups,
                    BuiltIn::WorkgroupId,
                    BuiltIn::WorkgroupSize,
                ];
                let builtin = builtins.into_iter().find(|builtin| self.index.is_builtin(id, *builtin));
                match (builtin, self.types.num(to)) {
                    (Some(builtin), Some(num)) if num.bits() == 32 && num.is_int() => {
                        Global::Input { builtin, num }
                    }
                    _ => return Err(unsupported(inst, "this input")),
                }
            }
            class => return Err(unsupported(inst, format!("a variable of storage class {class:?}"))),
        })
    }

    /// The work-group size with the given specialization.
    fn work_group(&self) -> Result<[u32; 3], OpenClError> {
        let sets = |inst: &Inst, mode: ExecutionMode| {
            inst.inst.operands.starts_with(&[Operand::IdRef(self.entry), Operand::ExecutionMode(mode)])
        };
        let mut size = self.reflection.local_size.map(i64::from);
        for inst in self.module.globals() {
            let ids = match inst.op() {
                Op::ConstantComposite | Op::SpecConstantComposite
                    if inst
                        .inst
                        .result_id
                        .is_some_and(|id| self.index.is_builtin(id, BuiltIn::WorkgroupSize)) =>
                {
                    [inst.id(0)?, inst.id(1)?, inst.id(2)?]
                }
                Op::ExecutionModeId if sets(inst, ExecutionMode::LocalSizeId) => {
                    [inst.id(2)?, inst.id(3)?, inst.id(4)?]
                }
                _ => continue,
            };
            for (size, id) in size.iter_mut().zip(ids) {
                *size = self.constants.index(id).ok_or_else(|| unsupported(inst, "this work-group size"))?;
            }
        }
        let size = size.map(|size| u32::try_from(size).unwrap_or(0));
        let volume = size.iter().try_fold(1u32, |volume, size| volume.checked_mul(*size));
        match volume {
            Some(1..) => Ok(size),
            _ => Err(OpenClError::invalid(format!("work-group size {size:?}"))),
        }
    }

    /// Writes everything.
    pub(super) fn run(mut self) -> Result<OpenClKernel, OpenClError> {
        let order = self.call_order()?;
        let mut bodies = String::new();
        for id in order {
            let kernel = id == self.entry;
            let text = Body::write(&mut self, id, kernel)?;
            bodies.push_str(&text);
            bodies.push('\n');
            if bodies.len() > MAX_SOURCE {
                return Err(too_long());
            }
        }
        let mut source = String::new();
        let fp16 = self.requires.contains(Requires::FLOAT16);
        if fp16 {
            source.push_str("#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n");
        }
        if self.requires.contains(Requires::FLOAT64) {
            source.push_str("#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n");
        }
        let exact =
            |inst: &Inst| inst.inst.operands.get(1) == Some(&Operand::Decoration(Decoration::NoContraction));
        if self.module.globals().any(|inst| inst.op() == Op::Decorate && exact(inst)) {
            source.push_str("#pragma OPENCL FP_CONTRACT OFF\n");
        }
        let params_words = self.reflection.params_bytes.div_ceil(4);
        if params_words > 0 {
            let _ = writeln!(source, "typedef struct {{ uint w[{params_words}]; }} Push;");
        }
        source.push_str(&self.types.text);
        for helper in &self.helpers {
            source.push_str(helper.text(fp16));
        }
        source.push('\n');
        source.push_str(&bodies);
        if source.len() > MAX_SOURCE {
            return Err(too_long());
        }
        Ok(OpenClKernel {
            source,
            name: NAME,
            local_size: self.local_size,
            args: self.args(),
            memory_follows: self.memory_follows(),
            params_bytes: params_words * 4,
            workgroup_bytes: self.workgroup_bytes,
            requires: self.requires,
        })
    }

    fn args(&self) -> Vec<OpenClArg> {
        let bindings = self.reflection.bindings.iter();
        bindings
            .map(|info| OpenClArg {
                binding: info.binding,
                access: info.access,
                kind: info.kind,
                form: self.binding_form(info.binding),
            })
            .collect()
    }

    /// The functions that the entry point reaches, callees first, and what each needs.
    fn call_order(&mut self) -> Result<Vec<u32>, OpenClError> {
        let mut order = Vec::new();
        let mut open = HashSet::new();
        let mut stack = vec![(self.entry, false)];
        while let Some((id, done)) = stack.pop() {
            if self.needs.contains_key(&id) {
                continue;
            }
            let function = self.functions.get(&id);
            let function = function.ok_or_else(|| OpenClError::invalid("a call of no function"))?;
            let calls = function.insts.iter().filter(|inst| inst.op() == Op::FunctionCall);
            let calls: Vec<u32> = calls.map(|inst| inst.id(0)).collect::<Result<_, _>>()?;
            if !done {
                if !open.insert(id) {
                    return Err(OpenClError::invalid("a function calls itself"));
                }
                stack.push((id, true));
                for callee in calls.into_iter().filter(|id| !self.needs.contains_key(id)) {
                    if open.contains(&callee) {
                        return Err(OpenClError::invalid("a function calls itself"));
                    }
                    stack.push((callee, false));
                }
                continue;
            }
            let mut needs = self.direct_needs(function);
            for callee in calls {
                if let Some(callee) = self.needs.get(&callee) {
                    needs.bindings.extend(&callee.bindings);
                    needs.push |= callee.push;
                    needs.variables.extend(&callee.variables);
                }
            }
            self.needs.insert(id, needs);
            order.push(id);
        }
        Ok(order)
    }

    fn direct_needs(&self, function: &Function<'_>) -> Needs {
        let mut needs = Needs::default();
        let operands = function.insts.iter().flat_map(|inst| &inst.inst.operands);
        for operand in operands {
            let Operand::IdRef(id) = operand else { continue };
            match self.globals.get(id) {
                Some(Global::Buffer { binding, .. } | Global::Image { binding, .. }) => {
                    needs.bindings.insert(*binding);
                }
                Some(Global::Push { .. }) => needs.push = true,
                Some(Global::Local { .. } | Global::Private { .. }) => {
                    needs.variables.insert(*id);
                }
                Some(Global::Input { .. }) | None => {}
            }
        }
        needs
    }

    /// The head of the kernel, up to and including its private variables. Workgroup variables are parameters:
    /// PoCL may keep those that the kernel declares in memory that all its threads share.
    pub(super) fn kernel_head(&mut self, user: &Inst) -> Result<String, OpenClError> {
        let [x, y, z] = self.local_size;
        let mut head = format!("__attribute__((reqd_work_group_size({x}, {y}, {z})))\n__kernel void {NAME}(");
        let mut params = Vec::new();
        let mut places = String::new();
        for info in &self.reflection.bindings {
            let name = format!("b{}", info.binding);
            let mut param = self.binding_param(info.binding);
            // Writing to a string cannot fail.
            if matches!(self.binding_form(info.binding), super::OpenClForm::Pointer { .. }) {
                let _ = write!(param, ", ulong {name}_at");
                let _ = writeln!(places, "    {name} += {name}_at;");
            }
            params.push(param);
        }
        if self.memory_follows() {
            params.push("__global uchar* memory".to_owned());
        }
        if self.reflection.params_bytes > 0 {
            params.push("const Push push".to_owned());
        }
        let variables = self.needs.get(&self.entry).map(|needs| needs.variables.clone()).unwrap_or_default();
        let mut private = String::new();
        for id in variables {
            match self.globals.get(&id) {
                Some(Global::Local { to }) => {
                    params.push(format!("__local {}* x{id}", self.types.name(user, *to)?));
                    self.workgroup_bytes.push(self.types.bytes(user, *to)?);
                }
                Some(Global::Private { to, initial }) => {
                    let (to, initial) = (*to, *initial);
                    let name = self.types.name(user, to)?;
                    let initial = match initial {
                        Some(constant) => format!(" = {}", self.initializer(user, constant)?),
                        None => String::new(),
                    };
                    let _ = writeln!(private, "    {name} x{id}{initial};");
                    if private.len() > MAX_SOURCE {
                        return Err(too_long());
                    }
                }
                _ => {}
            }
        }
        let _ = write!(head, "{})\n{{\n{places}{private}", params.join(", "));
        Ok(head)
    }

    /// The parameters by which a function gets its globals.
    pub(super) fn needed_params(&mut self, user: &Inst, needs: &Needs) -> Result<Vec<String>, OpenClError> {
        let mut params: Vec<String> = needs.bindings.iter().map(|at| self.binding_param(*at)).collect();
        if needs.push {
            params.push("const Push* push".to_owned());
        }
        for id in &needs.variables {
            let (space, to) = match self.globals.get(id) {
                Some(Global::Local { to }) => ("__local ", *to),
                Some(Global::Private { to, .. }) => ("", *to),
                _ => continue,
            };
            params.push(format!("{space}{}* x{id}", self.types.name(user, to)?));
        }
        Ok(params)
    }

    /// A constant as an initializer.
    pub(super) fn initializer(&mut self, user: &Inst, id: u32) -> Result<String, OpenClError> {
        let mut text = String::new();
        self.initialize(user, id, &mut text, &mut 0, 0)?;
        Ok(text)
    }

    fn initialize(
        &self,
        user: &Inst,
        id: u32,
        text: &mut String,
        parts: &mut usize,
        depth: usize,
    ) -> Result<(), OpenClError> {
        *parts += 1;
        if *parts > MAX_PARTS || depth > 16 {
            return Err(OpenClError::TooLarge { what: "parts of a constant", limit: MAX_PARTS });
        }
        let (ty, value) =
            self.constants.get(id).ok_or_else(|| unsupported(user, format!("constant {id}")))?;
        match value {
            Value::Lanes(num, lanes) => text.push_str(&self.lanes(*num, lanes)),
            Value::Zero => self.zero(user, ty, text, depth)?,
            Value::Parts(ids) => {
                let array = matches!(self.types.get(ty), Type::Array { .. });
                text.push_str(if array { "{{" } else { "{" });
                for (at, part) in ids.iter().enumerate() {
                    text.push_str(if at == 0 { "" } else { ", " });
                    self.initialize(user, *part, text, parts, depth + 1)?;
                }
                text.push_str(if array { "}}" } else { "}" });
            }
        }
        Ok(())
    }

    /// Zeros of any type: what an initializer leaves out is zero.
    fn zero(&self, user: &Inst, ty: u32, text: &mut String, depth: usize) -> Result<(), OpenClError> {
        if depth > 32 {
            return Err(OpenClError::TooLarge { what: "nested types", limit: 32 });
        }
        match self.types.get(ty) {
            Type::Num(num, _) => text.push_str(&self.lanes(*num, &vec![0; num.n as usize])),
            Type::Array { element, .. } => {
                text.push_str("{{");
                self.zero(user, *element, text, depth + 1)?;
                text.push_str("}}");
            }
            Type::Struct(members) => {
                text.push('{');
                if let Some(first) = members.first() {
                    self.zero(user, *first, text, depth + 1)?;
                }
                text.push('}');
            }
            _ => return Err(unsupported(user, "zero of this type")),
        }
        Ok(())
    }

    /// A constant scalar or vector.
    pub(super) fn lanes(&self, num: Num, lanes: &[u64]) -> String {
        let scalar = |bits: &u64| super::literal::scalar(num.scalar, *bits, self.fp16);
        if num.n == 1 {
            return lanes.first().map_or(String::new(), scalar);
        }
        let lane = |bits: &u64| match num.is_bool() {
            true if *bits != 0 => "-1".to_owned(),
            true => "0".to_owned(),
            false => scalar(bits),
        };
        let lanes: Vec<String> = lanes.iter().map(lane).collect();
        format!("(({})({}))", num.c(self.fp16), lanes.join(", "))
    }
}

pub(super) fn too_long() -> OpenClError {
    OpenClError::TooLarge { what: "bytes of OpenCL C", limit: MAX_SOURCE }
}

/// The functions of a module by id, cut into blocks.
fn functions(module: &Module) -> Result<HashMap<u32, Function<'_>>, OpenClError> {
    let mut functions = HashMap::new();
    let mut at = 0;
    while let Some(start) =
        module.insts.get(at..).and_then(|rest| rest.iter().position(|i| i.op() == Op::Function))
    {
        let start = at + start;
        let rest = module.insts.get(start..).unwrap_or(&[]);
        let len = rest.iter().position(|inst| inst.op() == Op::FunctionEnd);
        let len = len.ok_or_else(|| OpenClError::invalid("a function without an end"))?;
        let insts = rest.get(..len).unwrap_or(&[]);
        at = start + len + 1;
        let Some(inst) = insts.first() else { continue };
        let mut function = Function { inst, params: Vec::new(), first: 0, blocks: HashMap::new(), insts };
        let mut labels = Vec::new();
        for (position, inst) in insts.iter().enumerate() {
            match inst.op() {
                Op::FunctionParameter => function.params.push(inst),
                Op::Label => labels.push(position),
                _ => {}
            }
        }
        for (number, position) in labels.iter().enumerate() {
            let end = labels.get(number + 1).copied().unwrap_or(insts.len());
            let (Some(label), Some(body)) = (insts.get(*position), insts.get(position + 1..end)) else {
                continue;
            };
            let id = label.inst.result_id.unwrap_or(0);
            if number == 0 {
                function.first = id;
            }
            function.blocks.insert(id, Block { label, insts: body });
        }
        functions.insert(inst.inst.result_id.unwrap_or(0), function);
    }
    Ok(functions)
}
