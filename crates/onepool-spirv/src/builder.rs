//! Kernels built at run time: a pointwise expression to SPIR-V 1.3.
//!
//! The module keeps the conventions of the shipped kernels: set 0 with the inputs and then the outputs, push
//! constant `n` (invocations), work-group size `(64, 1, 1)` with specialization constant 0 for x, three
//! specialization constants for each broadcast term from 1 on, and the grid of `kernel::grid_1d`. In a layout of
//! four lanes every value is a vector. Elements narrower than 32 bits are widened before and rounded after. Equal
//! descriptions and layouts give equal words.
//!
//! Nothing is contracted, so that a function gives the same bits alone, in a chain and in other kernels.

use std::collections::HashMap;

use rspirv::binary::Assemble;
use rspirv::dr::{Block, Builder, Function, Instruction, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, Dim, ExecutionMode, ExecutionModel, FunctionControl,
    GlslStd450Op, ImageFormat, MemoryModel, Op, SelectionControl, StorageClass,
};

use super::layout::{Fetch, KernelLayout, Number, Walk, spec_id};
use super::types::ScalarType;
use onepool_expr::{BinaryOp, CompareOp, Expr, PointwiseDesc, PointwiseError, UnaryOp, device_form};

/// Work-group size of a built kernel, unless specialized.
pub const LOCAL_SIZE_X: u32 = 64;

/// Builds the kernel of `desc`.
///
/// # Errors
/// The description has no output or too many terms, the layout is not one of it, or it has functions that devices lack
/// for the layout's elements.
pub fn build_pointwise(desc: &PointwiseDesc, layout: &KernelLayout) -> Result<Vec<u32>, PointwiseError> {
    desc.validate()?;
    let (found, expected) = (layout.inputs.len(), desc.inputs().len());
    if found != expected {
        return Err(PointwiseError::WrongCount { what: "inputs of the layout", found, expected });
    }
    let desc = match Number::of(layout.element) {
        Number::Float if layout.element != ScalarType::F64 => &device_form(desc),
        _ => desc,
    };
    let mut kernel = Kernel::new(desc, layout);
    let (i, body) = kernel.begin();
    kernel.body(desc, layout, i)?;
    kernel.end_block(body);
    Ok(kernel.finish())
}

struct Kernel {
    b: Builder,
    /// Instructions of the block being written.
    code: Vec<Instruction>,
    blocks: Vec<Block>,
    constants: HashMap<(u32, u64), u32>,
    /// Indices computed before, by the terms they are made of.
    indices: HashMap<(usize, Walk, u32), u32>,
    lanes: u32,
    number: Number,
    /// Whether lanes have 64 bits.
    wide: bool,
    types: Types,
    glsl: u32,
    main: u32,
    /// Variables of the inputs and then the outputs.
    bindings: Vec<Binding>,
    /// Specialization constants of the terms.
    words: Vec<u32>,
    params: u32,
    global_id: u32,
    num_groups: u32,
    local_size: u32,
    merge: u32,
}

/// A variable of an operand.
#[derive(Clone, Copy)]
enum Binding {
    /// A storage buffer of elements, or of vectors where `vectors`.
    Buffer { id: u32, vectors: bool },
    /// A texel view.
    Texels(u32),
}

struct Types {
    void: u32,
    boolean: u32,
    uint: u32,
    int: u32,
    /// What is computed with in one lane, and as what it is stored.
    lane: u32,
    stored: u32,
    /// One lane or a vector as it is stored.
    stored_value: u32,
    uvec3: u32,
    /// What is computed with: one lane or a vector, and what belongs to it.
    value: u32,
    value_bits: u32,
    value_test: u32,
    buffer_stored: u32,
    buffer_value: u32,
    /// A byte of outputs for each lane, where the layout has those.
    bytes: u32,
    buffer_bytes: u32,
    param_uint: u32,
    image: u32,
    sampled: u32,
}

impl Types {
    /// The types of a kernel; `views` where it reads texel views.
    fn new(b: &mut Builder, layout: &KernelLayout, views: bool) -> Self {
        let (void, boolean) = (b.type_void(), b.type_bool());
        let (uint, int, float) = (b.type_int(32, 0), b.type_int(32, 1), b.type_float(32, None));
        let uvec3 = b.type_vector(uint, 3);
        let (lane, stored) = element_types(b, layout.element);
        let (value, value_bits, value_test) = match layout.lanes {
            4 => (b.type_vector(lane, 4), b.type_vector(uint, 4), b.type_vector(boolean, 4)),
            _ => (lane, uint, boolean),
        };
        let (image, sampled) = match views {
            true => {
                let image = b.type_image(float, Dim::DimBuffer, 0, 0, 0, 1, ImageFormat::Unknown, None);
                (image, b.type_sampled_image(image))
            }
            false => (0, 0),
        };
        let of_lanes = |b: &mut Builder, one: u32| match layout.lanes {
            1 => one,
            lanes => b.type_vector(one, lanes),
        };
        let (bytes, buffer_bytes) = match layout.tests {
            true => {
                let byte = byte_type(b, layout.element);
                let bytes = of_lanes(b, byte);
                (bytes, b.type_pointer(None, StorageClass::StorageBuffer, bytes))
            }
            false => (0, 0),
        };
        let stored_value = of_lanes(b, stored);
        Types {
            void,
            boolean,
            uint,
            int,
            lane,
            stored,
            uvec3,
            value,
            value_bits,
            value_test,
            buffer_stored: b.type_pointer(None, StorageClass::StorageBuffer, stored),
            stored_value,
            buffer_value: b.type_pointer(None, StorageClass::StorageBuffer, stored_value),
            bytes,
            buffer_bytes,
            param_uint: b.type_pointer(None, StorageClass::PushConstant, uint),
            image,
            sampled,
        }
    }
}

/// A specialization constant with its number and its default.
fn spec_constant(b: &mut Builder, uint: u32, (id, value): (u32, u32), name: String) -> u32 {
    let constant = b.spec_constant_bit32(uint, value);
    b.decorate(constant, Decoration::SpecId, [Operand::LiteralBit32(id)]);
    b.name(constant, name);
    constant
}

/// The specialization constants of all terms.
fn term_words(b: &mut Builder, uint: u32, layout: &KernelLayout) -> Vec<u32> {
    let terms: usize = layout.inputs.iter().filter_map(|input| input.walk()).map(|walk| walk.terms).sum();
    let mut words = Vec::new();
    for term in 0..terms {
        for (word, name) in ["div", "modulo", "stride"].into_iter().enumerate() {
            words.push(spec_constant(b, uint, (spec_id(term, word), 1), format!("{name}{term}")));
        }
    }
    words
}

impl Kernel {
    fn new(desc: &PointwiseDesc, layout: &KernelLayout) -> Self {
        let mut b = Builder::new();
        b.set_version(1, 3);
        b.capability(Capability::Shader);
        let views = layout.texels && layout.inputs.iter().any(|input| input.is_vector());
        if views {
            b.capability(Capability::SampledBuffer);
        }
        let glsl = b.ext_inst_import("GLSL.std.450");
        b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
        let types = Types::new(&mut b, layout, views);
        let (uint, uvec3) = (types.uint, types.uvec3);
        let bindings = bindings(&mut b, &types, desc, layout);
        let params = params(&mut b, uint);
        let input = b.type_pointer(None, StorageClass::Input, uvec3);
        let mut builtin = |builtin: BuiltIn| {
            let id = b.variable(input, None, StorageClass::Input, None);
            b.decorate(id, Decoration::BuiltIn, [Operand::BuiltIn(builtin)]);
            id
        };
        let (global_id, num_groups) = (builtin(BuiltIn::GlobalInvocationId), builtin(BuiltIn::NumWorkgroups));
        let size_x = spec_constant(&mut b, uint, (0, LOCAL_SIZE_X), "local_size_x".to_owned());
        let words = term_words(&mut b, uint, layout);
        let one = b.constant_bit32(uint, 1);
        let local_size = b.spec_constant_composite(uvec3, [size_x, one, one]);
        b.decorate(local_size, Decoration::BuiltIn, [Operand::BuiltIn(BuiltIn::WorkgroupSize)]);
        let main = b.id();
        b.entry_point(ExecutionModel::GLCompute, main, "main", [global_id, num_groups]);
        b.execution_mode(main, ExecutionMode::LocalSize, [LOCAL_SIZE_X, 1, 1]);
        let merge = b.id();
        Self {
            b,
            code: Vec::new(),
            blocks: Vec::new(),
            constants: HashMap::from([((uint, 1), one)]),
            indices: HashMap::new(),
            lanes: layout.lanes,
            number: Number::of(layout.element),
            wide: layout.element.bytes() == 8,
            types,
            glsl,
            main,
            bindings,
            words,
            params,
            global_id,
            num_groups,
            local_size,
            merge,
        }
    }

    /// The entry block: the element of this invocation, and a branch around the body if there is none.
    /// Returns the element and the label of the body.
    fn begin(&mut self) -> (u32, u32) {
        let (uint, uvec3) = (self.types.uint, self.types.uvec3);
        let gid = self.op(Op::Load, uvec3, &[self.global_id]);
        let groups = self.op(Op::Load, uvec3, &[self.num_groups]);
        let x = self.part(gid, 0);
        let y = self.part(gid, 1);
        let groups_x = self.part(groups, 0);
        let size_x = self.part(self.local_size, 0);
        let row = self.op(Op::IMul, uint, &[groups_x, size_x]);
        let above = self.op(Op::IMul, uint, &[y, row]);
        let i = self.op(Op::IAdd, uint, &[x, above]);
        let n = self.param(0);
        let inside = self.op(Op::ULessThan, self.types.boolean, &[i, n]);
        let body = self.b.id();
        self.code.push(Instruction::new(
            Op::SelectionMerge,
            None,
            None,
            vec![Operand::IdRef(self.merge), Operand::SelectionControl(SelectionControl::NONE)],
        ));
        self.plain(Op::BranchConditional, &[inside, body, self.merge]);
        let entry = self.b.id();
        self.end_block(entry);
        (i, body)
    }

    fn body(&mut self, desc: &PointwiseDesc, layout: &KernelLayout, i: u32) -> Result<(), PointwiseError> {
        let live = desc.live();
        let mut values = vec![0; desc.exprs().len()];
        for (at, expr) in desc.exprs().iter().enumerate().filter(|(at, _)| live[*at]) {
            values[at] = match *expr {
                Expr::Input(input) => self.load(layout, input, i),
                Expr::Const(value) => self.number(value),
                Expr::Unary(op, a) => self.unary(op, values[a.index()])?,
                Expr::Binary(op, a, b) => self.binary(op, values[a.index()], values[b.index()])?,
                Expr::Select { test, a, b, then, otherwise } => {
                    let holds = match desc.exprs()[b.index()] {
                        Expr::Const(end) if test == CompareOp::Equal && end.is_infinite() => {
                            self.is_infinite(values[a.index()], end, values[b.index()])
                        }
                        _ => self.compare(test, values[a.index()], values[b.index()]),
                    };
                    self.choose(holds, values[then.index()], values[otherwise.index()])
                }
            };
        }
        for (at, output) in desc.outputs().iter().enumerate() {
            if let Binding::Buffer { id, .. } = self.bindings[desc.inputs().len() + at] {
                let value = values[output.index()];
                let (pointer, value) = match layout.tests {
                    true => (self.types.buffer_bytes, self.bytes(value)),
                    false => (self.types.buffer_value, self.converted(value, self.types.stored_value)),
                };
                let place = self.element(pointer, id, i);
                self.plain(Op::Store, &[place, value]);
            }
        }
        self.plain(Op::Branch, &[self.merge]);
        Ok(())
    }

    /// 1 where a lane is not 0, as bytes.
    fn bytes(&mut self, value: u32) -> u32 {
        let zero = self.number(0.0);
        let holds = self.compare(CompareOp::NotEqual, value, zero);
        let (one, zero) = (self.bits(1), self.bits(0));
        let words = self.op(Op::Select, self.types.value_bits, &[holds, one, zero]);
        self.op(Op::UConvert, self.types.bytes, &[words])
    }

    /// Lanes as they are stored, or what is stored as lanes.
    fn converted(&mut self, value: u32, to: u32) -> u32 {
        if self.types.lane == self.types.stored {
            return value;
        }
        let op = match self.number {
            Number::Float => Op::FConvert,
            Number::Signed => Op::SConvert,
            Number::Unsigned => Op::UConvert,
        };
        self.op(op, to, &[value])
    }

    fn finish(mut self) -> Vec<u32> {
        self.plain(Op::Return, &[]);
        self.end_block(self.merge);
        let signature = self.b.type_function(self.types.void, []);
        let control = Operand::FunctionControl(FunctionControl::NONE);
        let head = vec![control, Operand::IdRef(signature)];
        let mut module = self.b.module();
        module.functions.push(Function {
            def: Some(Instruction::new(Op::Function, Some(self.types.void), Some(self.main), head)),
            end: Some(Instruction::new(Op::FunctionEnd, None, None, Vec::new())),
            parameters: Vec::new(),
            blocks: self.blocks,
        });
        module.assemble()
    }

    fn load(&mut self, layout: &KernelLayout, input: usize, i: u32) -> u32 {
        let first: usize = layout.inputs[..input].iter().filter_map(|i| i.walk()).map(|w| w.terms).sum();
        match (layout.inputs[input], self.bindings[input]) {
            (Fetch::Each(walk), Binding::Buffer { id, .. }) => {
                let four = self.uint(4);
                let base = self.op(Op::IMul, self.types.uint, &[i, four]);
                let lanes: Vec<u32> = (0..self.lanes)
                    .map(|lane| {
                        let lane = self.uint(lane);
                        let i = self.op(Op::IAdd, self.types.uint, &[base, lane]);
                        let index = self.index(first, walk, i);
                        self.one(id, index)
                    })
                    .collect();
                self.op(Op::CompositeConstruct, self.types.value, &lanes)
            }
            (fetch, binding) => {
                let index = fetch.walk().map_or(i, |walk| self.index(first, walk, i));
                match binding {
                    Binding::Texels(id) => {
                        let view = self.op(Op::Load, self.types.sampled, &[id]);
                        let view = self.op(Op::Image, self.types.image, &[view]);
                        let index = self.op(Op::Bitcast, self.types.int, &[index]);
                        self.op(Op::ImageFetch, self.types.value, &[view, index])
                    }
                    Binding::Buffer { id, vectors: true } => {
                        let place = self.element(self.types.buffer_value, id, index);
                        let stored = self.op(Op::Load, self.types.stored_value, &[place]);
                        self.converted(stored, self.types.value)
                    }
                    Binding::Buffer { id, vectors: false } => {
                        let one = self.one(id, index);
                        match self.lanes {
                            4 => self.op(Op::CompositeConstruct, self.types.value, &[one; 4]),
                            _ => one,
                        }
                    }
                }
            }
        }
    }

    /// One element of a buffer as a lane.
    fn one(&mut self, buffer: u32, index: u32) -> u32 {
        let place = self.element(self.types.buffer_stored, buffer, index);
        let stored = self.op(Op::Load, self.types.stored, &[place]);
        self.converted(stored, self.types.lane)
    }

    /// The sum of the terms from `first` on at place `i`.
    fn index(&mut self, first: usize, walk: Walk, i: u32) -> u32 {
        if let Some(&index) = self.indices.get(&(first, walk, i)) {
            return index;
        }
        let uint = self.types.uint;
        let mut sum = None;
        for term in 0..walk.terms {
            let [div, modulo, stride] = [0, 1, 2].map(|word| self.words[3 * (first + term) + word]);
            let mut steps = self.op(Op::UDiv, uint, &[i, div]);
            if walk.wraps || term + 1 < walk.terms {
                steps = self.op(Op::UMod, uint, &[steps, modulo]);
            }
            let part = self.op(Op::IMul, uint, &[steps, stride]);
            sum = Some(match sum {
                Some(sum) => self.op(Op::IAdd, uint, &[sum, part]),
                None => part,
            });
        }
        let index = sum.unwrap_or_else(|| self.uint(0));
        self.indices.insert((first, walk, i), index);
        index
    }

    fn unary(&mut self, op: UnaryOp, x: u32) -> Result<u32, PointwiseError> {
        let function = match (op, self.number) {
            (UnaryOp::Neg, _) => return Ok(self.negate(x)),
            (UnaryOp::Abs, Number::Signed) => {
                let (zero, minus) = (self.number(0.0), self.negate(x));
                let below = self.compare(CompareOp::Less, x, zero);
                return Ok(self.choose(below, minus, x));
            }
            (UnaryOp::Abs, Number::Unsigned) => return Ok(x),
            (_, Number::Signed | Number::Unsigned) => {
                return Err(PointwiseError::NoFunction { op: format!("{op:?}") });
            }
            (UnaryOp::Abs, _) => GlslStd450Op::FAbs,
            (UnaryOp::Floor, _) => GlslStd450Op::Floor,
            (UnaryOp::Ceil, _) => GlslStd450Op::Ceil,
            (UnaryOp::Round, _) => GlslStd450Op::RoundEven,
            (UnaryOp::Sqrt, _) => GlslStd450Op::Sqrt,
            // Devices have no others of 64 bits.
            _ if self.wide => return Err(PointwiseError::NoFunction { op: format!("{op:?}") }),
            (UnaryOp::Exp, _) => GlslStd450Op::Exp,
            (UnaryOp::Log, _) => GlslStd450Op::Log,
            (UnaryOp::Sin, _) => GlslStd450Op::Sin,
            (UnaryOp::Cos, _) => GlslStd450Op::Cos,
            (UnaryOp::Tan, _) => GlslStd450Op::Tan,
            // The form of devices has no others.
            _ => return Err(PointwiseError::NoFunction { op: format!("{op:?}") }),
        };
        Ok(self.ext(function, &[x]))
    }

    fn binary(&mut self, op: BinaryOp, a: u32, b: u32) -> Result<u32, PointwiseError> {
        let float = self.number == Number::Float;
        Ok(match op {
            BinaryOp::Add => self.arith(if float { Op::FAdd } else { Op::IAdd }, a, b),
            BinaryOp::Sub => self.arith(if float { Op::FSub } else { Op::ISub }, a, b),
            BinaryOp::Mul => self.arith(if float { Op::FMul } else { Op::IMul }, a, b),
            BinaryOp::Div if float => self.arith(Op::FDiv, a, b),
            BinaryOp::Pow if float && !self.wide => self.ext(GlslStd450Op::Pow, &[a, b]),
            BinaryOp::Div | BinaryOp::Pow => {
                return Err(PointwiseError::NoFunction { op: format!("{op:?}") });
            }
            BinaryOp::AtMost if float => self.bounded(GlslStd450Op::FMin, a, b),
            BinaryOp::AtLeast if float => self.bounded(GlslStd450Op::FMax, a, b),
            BinaryOp::Min | BinaryOp::AtMost => self.extreme(CompareOp::LessEqual, a, b),
            BinaryOp::Max | BinaryOp::AtLeast => self.extreme(CompareOp::GreaterEqual, a, b),
        })
    }

    /// `a` if it compares so with `b` or is NaN, else `b`.
    fn extreme(&mut self, test: CompareOp, a: u32, b: u32) -> u32 {
        let mut take = self.compare(test, a, b);
        if self.number == Number::Float {
            let nan = self.is_nan(a);
            take = self.op(Op::LogicalOr, self.types.value_test, &[take, nan]);
        }
        self.choose(take, a, b)
    }

    /// `a` within the bound `b`; NaN stays NaN, which the device's own functions may change.
    fn bounded(&mut self, function: GlslStd450Op, a: u32, b: u32) -> u32 {
        let bounded = self.ext(function, &[a, b]);
        let nan = self.is_nan(a);
        self.choose(nan, a, bounded)
    }

    /// By the bits, because compilers may assume that floats are no NaN.
    fn is_nan(&mut self, x: u32) -> u32 {
        if self.wide {
            return self.op(Op::FUnordNotEqual, self.types.value_test, &[x, x]);
        }
        let (size, infinity) = (self.bits(0x7fff_ffff), self.bits(0x7f80_0000));
        let bits = self.op(Op::Bitcast, self.types.value_bits, &[x]);
        let magnitude = self.op(Op::BitwiseAnd, self.types.value_bits, &[bits, size]);
        self.op(Op::UGreaterThan, self.types.value_test, &[magnitude, infinity])
    }

    /// Whether `x` is the infinity `end`, by the bits, because compilers may assume that floats are finite.
    fn is_infinite(&mut self, x: u32, end: f32, value: u32) -> u32 {
        if self.wide || self.number != Number::Float {
            return self.compare(CompareOp::Equal, x, value);
        }
        let end = self.bits(end.to_bits());
        let bits = self.op(Op::Bitcast, self.types.value_bits, &[x]);
        self.op(Op::IEqual, self.types.value_test, &[bits, end])
    }

    fn negate(&mut self, x: u32) -> u32 {
        let op = if self.number == Number::Float { Op::FNegate } else { Op::SNegate };
        self.op(op, self.types.value, &[x])
    }

    fn compare(&mut self, test: CompareOp, a: u32, b: u32) -> u32 {
        let [float, signed, unsigned] = match test {
            CompareOp::Less => [Op::FOrdLessThan, Op::SLessThan, Op::ULessThan],
            CompareOp::LessEqual => [Op::FOrdLessThanEqual, Op::SLessThanEqual, Op::ULessThanEqual],
            CompareOp::Greater => [Op::FOrdGreaterThan, Op::SGreaterThan, Op::UGreaterThan],
            CompareOp::GreaterEqual => {
                [Op::FOrdGreaterThanEqual, Op::SGreaterThanEqual, Op::UGreaterThanEqual]
            }
            CompareOp::Equal => [Op::FOrdEqual, Op::IEqual, Op::IEqual],
            CompareOp::NotEqual => [Op::FUnordNotEqual, Op::INotEqual, Op::INotEqual],
            CompareOp::Unordered if self.number == Number::Float => {
                let (a, b) = (self.is_nan(a), self.is_nan(b));
                return self.op(Op::LogicalOr, self.types.value_test, &[a, b]);
            }
            // No integer is NaN.
            CompareOp::Unordered => return self.compare(CompareOp::NotEqual, a, a),
        };
        let op = match self.number {
            Number::Float => float,
            Number::Signed => signed,
            Number::Unsigned => unsigned,
        };
        self.op(op, self.types.value_test, &[a, b])
    }

    fn choose(&mut self, condition: u32, then: u32, otherwise: u32) -> u32 {
        self.op(Op::Select, self.types.value, &[condition, then, otherwise])
    }

    fn arith(&mut self, op: Op, a: u32, b: u32) -> u32 {
        let id = self.op(op, self.types.value, &[a, b]);
        if self.number == Number::Float {
            self.b.decorate(id, Decoration::NoContraction, []);
        }
        id
    }

    fn ext(&mut self, function: GlslStd450Op, arguments: &[u32]) -> u32 {
        let mut operands = vec![Operand::IdRef(self.glsl), Operand::LiteralExtInstInteger(function as u32)];
        operands.extend(arguments.iter().map(|id| Operand::IdRef(*id)));
        let id = self.b.id();
        self.code.push(Instruction::new(Op::ExtInst, Some(self.types.value), Some(id), operands));
        id
    }

    fn op(&mut self, op: Op, ty: u32, operands: &[u32]) -> u32 {
        let id = self.b.id();
        let operands = operands.iter().map(|id| Operand::IdRef(*id)).collect();
        self.code.push(Instruction::new(op, Some(ty), Some(id), operands));
        id
    }

    fn plain(&mut self, op: Op, operands: &[u32]) {
        let operands = operands.iter().map(|id| Operand::IdRef(*id)).collect();
        self.code.push(Instruction::new(op, None, None, operands));
    }

    /// One component of a vector of unsigned integers.
    fn part(&mut self, vector: u32, at: u32) -> u32 {
        let id = self.b.id();
        let operands = vec![Operand::IdRef(vector), Operand::LiteralBit32(at)];
        self.code.push(Instruction::new(Op::CompositeExtract, Some(self.types.uint), Some(id), operands));
        id
    }

    /// Word `at` of the push constants.
    fn param(&mut self, at: u32) -> u32 {
        let member = self.uint(at);
        let place = self.op(Op::AccessChain, self.types.param_uint, &[self.params, member]);
        self.op(Op::Load, self.types.uint, &[place])
    }

    /// The place of one element of a buffer.
    fn element(&mut self, pointer: u32, buffer: u32, index: u32) -> u32 {
        let zero = self.uint(0);
        self.op(Op::AccessChain, pointer, &[buffer, zero, index])
    }

    fn uint(&mut self, value: u32) -> u32 {
        self.constant(self.types.uint, value.into())
    }

    /// A constant of the type that is computed with.
    fn number(&mut self, value: f32) -> u32 {
        let bits = match self.number {
            Number::Float if self.wide => f64::from(value).to_bits(),
            Number::Float => u64::from(value.to_bits()),
            Number::Signed | Number::Unsigned => value as i64 as u64,
        };
        self.splat(self.types.lane, self.types.value, bits)
    }

    fn bits(&mut self, value: u32) -> u32 {
        self.splat(self.types.uint, self.types.value_bits, value.into())
    }

    /// A constant in every lane.
    fn splat(&mut self, part: u32, whole: u32, bits: u64) -> u32 {
        let one = self.constant(part, bits);
        if self.lanes == 1 {
            return one;
        }
        let b = &mut self.b;
        *self.constants.entry((whole, bits)).or_insert_with(|| b.constant_composite(whole, [one; 4]))
    }

    fn constant(&mut self, ty: u32, bits: u64) -> u32 {
        let (b, is_wide) = (&mut self.b, ty == self.types.lane && self.wide);
        *self.constants.entry((ty, bits)).or_insert_with(|| match is_wide {
            true => b.constant_bit64(ty, bits),
            false => b.constant_bit32(ty, bits as u32),
        })
    }

    fn end_block(&mut self, id: u32) {
        let instructions = std::mem::take(&mut self.code);
        let label = Some(Instruction::new(Op::Label, None, Some(id), Vec::new()));
        self.blocks.push(Block { label, instructions });
    }
}

/// A texel view or a storage buffer of elements or vectors per input, a storage buffer per output.
fn bindings(b: &mut Builder, types: &Types, desc: &PointwiseDesc, layout: &KernelLayout) -> Vec<Binding> {
    let block = |b: &mut Builder, element: u32, bytes: u32| {
        let array = b.type_runtime_array(element);
        b.decorate(array, Decoration::ArrayStride, [Operand::LiteralBit32(bytes)]);
        let block = b.type_struct([array]);
        b.decorate(block, Decoration::Block, []);
        b.member_decorate(block, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
        b.type_pointer(None, StorageClass::StorageBuffer, block)
    };
    let bytes = layout.element.bytes();
    let ones = block(b, types.stored, bytes);
    let values = match layout.lanes {
        1 => ones,
        lanes => block(b, types.stored_value, bytes * lanes),
    };
    // One array type has one stride.
    let bools = match layout.tests && types.bytes != types.stored_value {
        true => block(b, types.bytes, layout.lanes),
        false => values,
    };
    let view = match types.sampled {
        0 => 0,
        sampled => b.type_pointer(None, StorageClass::UniformConstant, sampled),
    };
    let inputs = layout.inputs.iter().enumerate().map(|(at, input)| (format!("in{at}"), Some(*input)));
    let outputs = (0..desc.outputs().len()).map(|at| (format!("out{at}"), None));
    let mut all = Vec::new();
    for (at, (name, fetch)) in inputs.chain(outputs).enumerate() {
        let vectors = layout.lanes == 4 && fetch.is_none_or(Fetch::is_vector);
        let (pointer, class) = match fetch {
            Some(_) if vectors && layout.texels => (view, StorageClass::UniformConstant),
            None if layout.tests => (bools, StorageClass::StorageBuffer),
            _ if vectors => (values, StorageClass::StorageBuffer),
            _ => (ones, StorageClass::StorageBuffer),
        };
        let id = b.variable(pointer, None, class, None);
        b.decorate(id, Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
        b.decorate(id, Decoration::Binding, [Operand::LiteralBit32(at as u32)]);
        b.name(id, name);
        all.push(match class {
            StorageClass::UniformConstant => Binding::Texels(id),
            _ => {
                let access = if fetch.is_some() { Decoration::NonWritable } else { Decoration::NonReadable };
                b.decorate(id, access, []);
                Binding::Buffer { id, vectors }
            }
        });
    }
    all
}

/// The push constant `n`.
fn params(b: &mut Builder, uint: u32) -> u32 {
    let block = b.type_struct([uint]);
    b.decorate(block, Decoration::Block, []);
    b.name(block, "Params");
    b.member_decorate(block, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
    b.member_name(block, 0, "n");
    let pointer = b.type_pointer(None, StorageClass::PushConstant, block);
    b.variable(pointer, None, StorageClass::PushConstant, None)
}

/// The type of a byte, with the capabilities that it needs in addition to those of `element`.
fn byte_type(b: &mut Builder, element: ScalarType) -> u32 {
    if element.bytes() != 1 {
        b.capability(Capability::StorageBuffer8BitAccess);
        b.extension("SPV_KHR_8bit_storage");
    }
    b.type_int(8, 0)
}

/// What one lane computes with and what is stored, with the capabilities that they need.
fn element_types(b: &mut Builder, element: ScalarType) -> (u32, u32) {
    let bits = 8 * element.bytes();
    if bits == 16 {
        b.capability(Capability::StorageBuffer16BitAccess);
    }
    if element == ScalarType::F64 {
        b.capability(Capability::Float64);
    }
    if bits == 8 {
        b.capability(Capability::StorageBuffer8BitAccess);
        b.extension("SPV_KHR_8bit_storage");
    }
    let (computed, is_signed) = (bits.max(32), u32::from(Number::of(element) == Number::Signed));
    match Number::of(element) {
        Number::Float => (b.type_float(computed, None), b.type_float(bits, None)),
        Number::Signed | Number::Unsigned => {
            if bits == 64 {
                b.capability(Capability::Int64);
            }
            (b.type_int(computed, is_signed), b.type_int(bits, is_signed))
        }
    }
}

#[cfg(test)]
mod tests;
