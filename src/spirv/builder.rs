//! Kernels built at run time: a pointwise expression to SPIR-V 1.3.
//!
//! The module keeps the conventions of the shipped kernels: set 0 with the inputs and then the outputs, push
//! constant `n` (invocations), work-group size `(64, 1, 1)` with specialization constant 0 for x, three
//! specialization constants for each broadcast term from 1 on, and the grid of `kernel::grid_1d`. In a layout of
//! four lanes every value is a vector. Equal descriptions and layouts give equal words.

use std::collections::HashMap;

use rspirv::binary::Assemble;
use rspirv::dr::{Block, Builder, Function, Instruction, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, Dim, ExecutionMode, ExecutionModel, FunctionControl,
    GlslStd450Op, ImageFormat, MemoryModel, Op, SelectionControl, StorageClass,
};

use super::layout::{Fetch, KernelLayout, Walk, spec_id};
use super::pointwise::{BinaryOp, CompareOp, Expr, PointwiseDesc, PointwiseError, UnaryOp};

/// Work-group size of a built kernel, unless specialized.
pub const LOCAL_SIZE_X: u32 = 64;

/// Builds the kernel of `desc`.
///
/// # Errors
/// The description has no output or too many terms, or the layout is not one of it.
pub fn build_pointwise(desc: &PointwiseDesc, layout: &KernelLayout) -> Result<Vec<u32>, PointwiseError> {
    desc.validate()?;
    let (found, expected) = (layout.inputs.len(), desc.inputs().len());
    if found != expected {
        return Err(PointwiseError::WrongCount { what: "inputs of the layout", found, expected });
    }
    let mut kernel = Kernel::new(desc, layout);
    let (i, body) = kernel.begin();
    kernel.body(desc, layout, i);
    kernel.end_block(body);
    Ok(kernel.finish())
}

struct Kernel {
    b: Builder,
    /// Instructions of the block being written.
    code: Vec<Instruction>,
    blocks: Vec<Block>,
    constants: HashMap<(u32, u32), u32>,
    /// Indices computed before, by the terms they are made of.
    indices: HashMap<(usize, Walk, u32), u32>,
    lanes: u32,
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
    /// A storage buffer of floats, or of vectors where `vectors`.
    Buffer { id: u32, vectors: bool },
    /// A texel view.
    Texels(u32),
}

struct Types {
    void: u32,
    boolean: u32,
    uint: u32,
    int: u32,
    float: u32,
    uvec3: u32,
    /// What is computed with: float or vector, and what belongs to it.
    value: u32,
    value_bits: u32,
    value_test: u32,
    buffer_float: u32,
    buffer_value: u32,
    param_uint: u32,
    image: u32,
    sampled: u32,
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
        let (void, boolean) = (b.type_void(), b.type_bool());
        let (uint, int, float) = (b.type_int(32, 0), b.type_int(32, 1), b.type_float(32, None));
        let uvec3 = b.type_vector(uint, 3);
        let (value, value_bits, value_test) = match layout.lanes {
            4 => (b.type_vector(float, 4), b.type_vector(uint, 4), b.type_vector(boolean, 4)),
            _ => (float, uint, boolean),
        };
        let (image, sampled) = match views {
            true => {
                let image = b.type_image(float, Dim::DimBuffer, 0, 0, 0, 1, ImageFormat::Unknown, None);
                (image, b.type_sampled_image(image))
            }
            false => (0, 0),
        };
        let types = Types {
            void,
            boolean,
            uint,
            int,
            float,
            uvec3,
            value,
            value_bits,
            value_test,
            buffer_float: b.type_pointer(None, StorageClass::StorageBuffer, float),
            buffer_value: b.type_pointer(None, StorageClass::StorageBuffer, value),
            param_uint: b.type_pointer(None, StorageClass::PushConstant, uint),
            image,
            sampled,
        };
        let bindings = bindings(&mut b, &types, desc, layout);
        let params = params(&mut b, uint);
        let input = b.type_pointer(None, StorageClass::Input, uvec3);
        let mut builtin = |builtin: BuiltIn| {
            let id = b.variable(input, None, StorageClass::Input, None);
            b.decorate(id, Decoration::BuiltIn, [Operand::BuiltIn(builtin)]);
            id
        };
        let (global_id, num_groups) = (builtin(BuiltIn::GlobalInvocationId), builtin(BuiltIn::NumWorkgroups));
        let spec = |b: &mut Builder, id: u32, value: u32, name: String| {
            let constant = b.spec_constant_bit32(uint, value);
            b.decorate(constant, Decoration::SpecId, [Operand::LiteralBit32(id)]);
            b.name(constant, name);
            constant
        };
        let size_x = spec(&mut b, 0, LOCAL_SIZE_X, "local_size_x".to_owned());
        let terms: usize = layout.inputs.iter().filter_map(|input| input.walk()).map(|walk| walk.terms).sum();
        let mut words = Vec::new();
        for term in 0..terms {
            for (word, name) in ["div", "modulo", "stride"].into_iter().enumerate() {
                words.push(spec(&mut b, spec_id(term, word), 1, format!("{name}{term}")));
            }
        }
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

    fn body(&mut self, desc: &PointwiseDesc, layout: &KernelLayout, i: u32) {
        let live = desc.live();
        let mut values = vec![0; desc.exprs().len()];
        for (at, expr) in desc.exprs().iter().enumerate().filter(|(at, _)| live[*at]) {
            values[at] = match *expr {
                Expr::Input(input) => self.load(layout, input, i),
                Expr::Const(value) => self.float(value),
                Expr::Unary(op, a) => self.unary(op, values[a.index()]),
                Expr::Binary(op, a, b) => self.binary(op, values[a.index()], values[b.index()]),
                Expr::Select { test, a, b, then, otherwise } => {
                    let holds = self.compare(test, values[a.index()], values[b.index()]);
                    self.choose(holds, values[then.index()], values[otherwise.index()])
                }
            };
        }
        for (at, output) in desc.outputs().iter().enumerate() {
            if let Binding::Buffer { id, .. } = self.bindings[desc.inputs().len() + at] {
                let place = self.element(self.types.buffer_value, id, i);
                self.plain(Op::Store, &[place, values[output.index()]]);
            }
        }
        self.plain(Op::Branch, &[self.merge]);
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
                        let place = self.element(self.types.buffer_float, id, index);
                        self.op(Op::Load, self.types.float, &[place])
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
                        self.op(Op::Load, self.types.value, &[place])
                    }
                    Binding::Buffer { id, vectors: false } => {
                        let place = self.element(self.types.buffer_float, id, index);
                        let one = self.op(Op::Load, self.types.float, &[place]);
                        match self.lanes {
                            4 => self.op(Op::CompositeConstruct, self.types.value, &[one; 4]),
                            _ => one,
                        }
                    }
                }
            }
        }
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

    fn unary(&mut self, op: UnaryOp, x: u32) -> u32 {
        match op {
            UnaryOp::Neg => self.negate(x),
            UnaryOp::Abs => self.ext(GlslStd450Op::FAbs, &[x]),
            UnaryOp::Exp => self.ext(GlslStd450Op::Exp, &[x]),
            UnaryOp::Log => self.ext(GlslStd450Op::Log, &[x]),
            UnaryOp::Sqrt => self.ext(GlslStd450Op::Sqrt, &[x]),
            UnaryOp::Floor => self.ext(GlslStd450Op::Floor, &[x]),
            UnaryOp::Ceil => self.ext(GlslStd450Op::Ceil, &[x]),
            UnaryOp::Sigmoid => {
                let minus = self.negate(x);
                let e = self.ext(GlslStd450Op::Exp, &[minus]);
                let one = self.float(1.0);
                let below = self.arith(Op::FAdd, one, e);
                self.arith(Op::FDiv, one, below)
            }
            UnaryOp::Tanh => self.tanh(x),
            UnaryOp::Erf => self.erf(x),
        }
    }

    fn binary(&mut self, op: BinaryOp, a: u32, b: u32) -> u32 {
        match op {
            BinaryOp::Add => self.arith(Op::FAdd, a, b),
            BinaryOp::Sub => self.arith(Op::FSub, a, b),
            BinaryOp::Mul => self.arith(Op::FMul, a, b),
            BinaryOp::Div => self.arith(Op::FDiv, a, b),
            BinaryOp::Min => self.extreme(Op::FOrdLessThanEqual, a, b),
            BinaryOp::Max => self.extreme(Op::FOrdGreaterThanEqual, a, b),
            BinaryOp::Pow => self.pow(a, b),
        }
    }

    /// `a` if it compares so with `b` or is NaN, else `b`.
    fn extreme(&mut self, test: Op, a: u32, b: u32) -> u32 {
        let boolean = self.types.value_test;
        let first = self.op(test, boolean, &[a, b]);
        let nan = self.is_nan(a);
        let take = self.op(Op::LogicalOr, boolean, &[first, nan]);
        self.choose(take, a, b)
    }

    /// By the bits, because compilers may assume that floats are no NaN.
    fn is_nan(&mut self, x: u32) -> u32 {
        let (size, infinity) = (self.bits(0x7fff_ffff), self.bits(0x7f80_0000));
        let bits = self.op(Op::Bitcast, self.types.value_bits, &[x]);
        let magnitude = self.op(Op::BitwiseAnd, self.types.value_bits, &[bits, size]);
        self.op(Op::UGreaterThan, self.types.value_test, &[magnitude, infinity])
    }

    fn negate(&mut self, x: u32) -> u32 {
        self.op(Op::FNegate, self.types.value, &[x])
    }

    /// `Pow` of GLSL is defined for positive bases only; the sign and the special cases are ours. As in C,
    /// but for the sign of a zero base, which is lost, and for a NaN exponent, which gives NaN.
    fn pow(&mut self, x: u32, y: u32) -> u32 {
        let (zero, one, half) = (self.float(0.0), self.float(1.0), self.float(0.5));
        let (infinity, nan) = (self.float(f32::INFINITY), self.float(f32::NAN));
        let size = self.ext(GlslStd450Op::FAbs, &[x]);
        let magnitude = self.ext(GlslStd450Op::Pow, &[size, y]);
        // A negative base takes the sign of an odd exponent, and no fraction.
        let floor = self.ext(GlslStd450Op::Floor, &[y]);
        let integral = self.compare(CompareOp::Equal, floor, y);
        let halved = self.arith(Op::FMul, y, half);
        let halved_floor = self.ext(GlslStd450Op::Floor, &[halved]);
        let even = self.compare(CompareOp::Equal, halved_floor, halved);
        let minus = self.negate(magnitude);
        let signed = self.choose(even, magnitude, minus);
        let endless = self.compare(CompareOp::Equal, size, infinity);
        let fraction = self.choose(endless, magnitude, nan);
        let negative = self.choose(integral, signed, fraction);
        let below = self.compare(CompareOp::Less, x, zero);
        let value = self.choose(below, negative, magnitude);
        // Zero, NaN, and an exponent of zero.
        let inverse = self.compare(CompareOp::Less, y, zero);
        let of_zero = self.choose(inverse, infinity, zero);
        let is_zero = self.compare(CompareOp::Equal, x, zero);
        let value = self.choose(is_zero, of_zero, value);
        let x_nan = self.is_nan(x);
        let y_nan = self.is_nan(y);
        let unknown = self.op(Op::LogicalOr, self.types.value_test, &[x_nan, y_nan]);
        let value = self.choose(unknown, nan, value);
        let always = self.compare(CompareOp::Equal, y, zero);
        self.choose(always, one, value)
    }

    /// As `tanh_exact` of `shaders/include/math.glsl`.
    fn tanh(&mut self, x: u32) -> u32 {
        let (one, two) = (self.float(1.0), self.float(2.0));
        let size = self.ext(GlslStd450Op::FAbs, &[x]);
        let square = self.arith(Op::FMul, x, x);
        let poly = self.polynomial(&TANH, square);
        let small = self.arith(Op::FMul, x, poly);
        let double = self.arith(Op::FMul, two, size);
        let e = self.ext(GlslStd450Op::Exp, &[double]);
        let below = self.arith(Op::FAdd, e, one);
        let rest = self.arith(Op::FDiv, two, below);
        let large = self.arith(Op::FSub, one, rest);
        let large = self.with_sign(large, x);
        let limit = self.float(0.5);
        let near = self.compare(CompareOp::Less, size, limit);
        self.choose(near, small, large)
    }

    /// As `erf` of `shaders/include/math.glsl`: an odd polynomial below 1, `1 - exp(-g(x))` above.
    fn erf(&mut self, x: u32) -> u32 {
        let (one, end) = (self.float(1.0), self.float(4.0));
        let size = self.ext(GlslStd450Op::FAbs, &[x]);
        let size = self.ext(GlslStd450Op::FMin, &[size, end]);
        let square = self.arith(Op::FMul, size, size);
        let poly = self.polynomial(&ERF_SMALL, square);
        let small = self.arith(Op::FMul, size, poly);
        let power = self.polynomial(&ERF_LARGE, size);
        let minus = self.negate(power);
        let e = self.ext(GlslStd450Op::Exp, &[minus]);
        let large = self.arith(Op::FSub, one, e);
        let near = self.compare(CompareOp::Less, size, one);
        let value = self.choose(near, small, large);
        let value = self.with_sign(value, x);
        let nan = self.is_nan(x);
        self.choose(nan, x, value)
    }

    fn polynomial(&mut self, coefficients: &[f32], x: u32) -> u32 {
        let mut sum = None;
        for &coefficient in coefficients {
            let coefficient = self.float(coefficient);
            sum = Some(match sum {
                Some(sum) => {
                    let raised = self.arith(Op::FMul, sum, x);
                    self.arith(Op::FAdd, raised, coefficient)
                }
                None => coefficient,
            });
        }
        sum.unwrap_or_else(|| self.float(0.0))
    }

    fn with_sign(&mut self, value: u32, x: u32) -> u32 {
        let zero = self.float(0.0);
        let minus = self.negate(value);
        let below = self.compare(CompareOp::Less, x, zero);
        self.choose(below, minus, value)
    }

    fn compare(&mut self, test: CompareOp, a: u32, b: u32) -> u32 {
        let op = match test {
            CompareOp::Less => Op::FOrdLessThan,
            CompareOp::LessEqual => Op::FOrdLessThanEqual,
            CompareOp::Greater => Op::FOrdGreaterThan,
            CompareOp::GreaterEqual => Op::FOrdGreaterThanEqual,
            CompareOp::Equal => Op::FOrdEqual,
            CompareOp::NotEqual => Op::FUnordNotEqual,
        };
        self.op(op, self.types.value_test, &[a, b])
    }

    fn choose(&mut self, condition: u32, then: u32, otherwise: u32) -> u32 {
        self.op(Op::Select, self.types.value, &[condition, then, otherwise])
    }

    fn arith(&mut self, op: Op, a: u32, b: u32) -> u32 {
        self.op(op, self.types.value, &[a, b])
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
        self.constant(self.types.uint, value)
    }

    fn float(&mut self, value: f32) -> u32 {
        self.splat(self.types.float, self.types.value, value.to_bits())
    }

    fn bits(&mut self, value: u32) -> u32 {
        self.splat(self.types.uint, self.types.value_bits, value)
    }

    /// A constant in every lane.
    fn splat(&mut self, part: u32, whole: u32, bits: u32) -> u32 {
        let one = self.constant(part, bits);
        if self.lanes == 1 {
            return one;
        }
        let b = &mut self.b;
        *self.constants.entry((whole, bits)).or_insert_with(|| b.constant_composite(whole, [one; 4]))
    }

    fn constant(&mut self, ty: u32, bits: u32) -> u32 {
        let b = &mut self.b;
        *self.constants.entry((ty, bits)).or_insert_with(|| b.constant_bit32(ty, bits))
    }

    fn end_block(&mut self, id: u32) {
        let instructions = std::mem::take(&mut self.code);
        let label = Some(Instruction::new(Op::Label, None, Some(id), Vec::new()));
        self.blocks.push(Block { label, instructions });
    }
}

/// A texel view or a storage buffer of floats or vectors per input, a storage buffer per output.
fn bindings(b: &mut Builder, types: &Types, desc: &PointwiseDesc, layout: &KernelLayout) -> Vec<Binding> {
    let block = |b: &mut Builder, element: u32, bytes: u32| {
        let array = b.type_runtime_array(element);
        b.decorate(array, Decoration::ArrayStride, [Operand::LiteralBit32(bytes)]);
        let block = b.type_struct([array]);
        b.decorate(block, Decoration::Block, []);
        b.member_decorate(block, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
        b.type_pointer(None, StorageClass::StorageBuffer, block)
    };
    let values = block(b, types.value, 4 * layout.lanes);
    let floats = match layout.lanes {
        1 => values,
        _ => block(b, types.float, 4),
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
            _ if vectors => (values, StorageClass::StorageBuffer),
            _ => (floats, StorageClass::StorageBuffer),
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

/// Coefficients of `shaders/include/math.glsl`, from the highest power.
const TANH: [f32; 5] = [0.017_988_744, -0.053_387_11, 0.133_304_76, -0.333_333_1, 1.0];
const ERF_SMALL: [f32; 7] = [
    7.875_875e-5,
    -8.016_864_3e-4,
    5.189_087_4e-3,
    -0.026_854_212,
    0.112_835_95,
    -0.376_126_27,
    std::f32::consts::FRAC_2_SQRT_PI,
];
const ERF_LARGE: [f32; 9] = [
    -1.637_151_4e-6,
    4.605_804e-5,
    -5.968_056_3e-4,
    4.759_596e-3,
    -0.026_421_136,
    0.110_080_08,
    0.631_826_05,
    1.130_233_4,
    -3.201_380_5e-4,
];

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::super::{Access, BindingKind, Indexing, check_module, reflect};
    use super::*;

    /// Every operand at its own place, vectors or not.
    fn plain(desc: &PointwiseDesc, lanes: u32) -> KernelLayout {
        let fetch = |indexing: &Indexing| match indexing.terms() {
            _ if *indexing == Indexing::Full => Fetch::Full,
            0 => Fetch::One(Walk { terms: 0, wraps: false }),
            terms if lanes == 4 => Fetch::Each(Walk { terms, wraps: true }),
            terms => Fetch::One(Walk { terms, wraps: true }),
        };
        KernelLayout { lanes, texels: false, inputs: desc.inputs().iter().map(fetch).collect() }
    }

    fn build(desc: &PointwiseDesc, lanes: u32) -> Vec<u32> {
        build_pointwise(desc, &plain(desc, lanes)).unwrap()
    }

    /// `relu(a * b + c)` where `b` is a row and `c` a scalar, and `a + b` as a second output.
    fn sample() -> PointwiseDesc {
        let row = Indexing::Broadcast { terms: 2 };
        let mut desc = PointwiseDesc::new([Indexing::Full, row, Indexing::Broadcast { terms: 0 }]);
        let [a, b, c] = [0, 1, 2].map(|at| desc.input(at).unwrap());
        let product = desc.binary(BinaryOp::Mul, a, b).unwrap();
        let sum = desc.binary(BinaryOp::Add, product, c).unwrap();
        let relu = desc.relu(sum).unwrap();
        let plain = desc.binary(BinaryOp::Add, a, b).unwrap();
        desc.output(relu).unwrap();
        desc.output(plain).unwrap();
        desc
    }

    /// Every operation there is, in one kernel.
    fn everything() -> PointwiseDesc {
        let mut desc = PointwiseDesc::new([Indexing::Full, Indexing::Full]);
        let [mut x, y] = [0, 1].map(|at| desc.input(at).unwrap());
        for op in [
            UnaryOp::Neg,
            UnaryOp::Abs,
            UnaryOp::Exp,
            UnaryOp::Log,
            UnaryOp::Sqrt,
            UnaryOp::Sigmoid,
            UnaryOp::Tanh,
            UnaryOp::Erf,
            UnaryOp::Floor,
            UnaryOp::Ceil,
        ] {
            x = desc.unary(op, x).unwrap();
        }
        for op in [
            BinaryOp::Add,
            BinaryOp::Sub,
            BinaryOp::Mul,
            BinaryOp::Div,
            BinaryOp::Min,
            BinaryOp::Max,
            BinaryOp::Pow,
        ] {
            x = desc.binary(op, x, y).unwrap();
        }
        for test in [
            CompareOp::Less,
            CompareOp::LessEqual,
            CompareOp::Greater,
            CompareOp::GreaterEqual,
            CompareOp::Equal,
            CompareOp::NotEqual,
        ] {
            let one = desc.compare(test, x, y).unwrap();
            x = desc.select((x, test, y), y, one).unwrap();
        }
        x = desc.leaky_relu(x, 0.01).unwrap();
        x = desc.hard_sigmoid(x, 0.2, 0.5).unwrap();
        desc.output(x).unwrap();
        desc
    }

    /// Runs `spirv-val` where it is installed.
    fn validate(words: &[u32]) {
        let mut command = Command::new("spirv-val");
        command.args(["--target-env", "vulkan1.1", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut child) = command.spawn() else { return };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn a_built_module_keeps_the_conventions() {
        let words = build(&sample(), 1);
        validate(&words);
        let r = check_module(&words).unwrap();
        assert_eq!((r.version, r.entry_point.as_ref()), ((1, 3), "main"));
        assert_eq!((r.local_size, r.local_size_spec), ([64, 1, 1], [Some(0), None, None]));
        let bindings: Vec<_> = r.bindings.iter().map(|b| (b.set, b.binding, b.kind, b.access)).collect();
        let at = |binding, access| (0, binding, BindingKind::StorageBuffer, access);
        let (read, write) = (Access::Read, Access::Write);
        assert_eq!(bindings, [at(0, read), at(1, read), at(2, read), at(3, write), at(4, write)]);
        let params: Vec<_> = r.params.iter().map(|p| (p.name.as_ref(), p.offset_bytes)).collect();
        assert_eq!((params, r.params_bytes), (vec![("n", 0)], 4));
        let spec: Vec<_> = r.spec.iter().map(|s| (s.id, s.name.as_ref())).collect();
        let names = ["local_size_x", "div0", "modulo0", "stride0", "div1", "modulo1", "stride1"];
        assert!(spec.iter().map(|(_, name)| *name).eq(names));
        assert!(spec.iter().enumerate().all(|(at, (id, _))| *id == at as u32));
    }

    #[test]
    fn every_operation_is_valid_in_both_widths_and_through_views() {
        for desc in [everything(), sample()] {
            for lanes in [1, 4] {
                let words = build(&desc, lanes);
                validate(&words);
                assert_eq!(check_module(&words), reflect(&words));
            }
            let words = build_pointwise(&desc, &plain(&desc, 4).with_texels()).unwrap();
            validate(&words);
            let r = check_module(&words).unwrap();
            assert_eq!(
                (r.bindings[0].kind, r.bindings[0].access),
                (BindingKind::UniformTexelBuffer, Access::Read)
            );
        }
    }

    #[test]
    fn equal_descriptions_give_equal_words() {
        assert_eq!(build(&everything(), 4), build(&everything(), 4));
        assert_ne!(build(&everything(), 4), build(&everything(), 1));
        assert_ne!(build(&everything(), 1), build(&sample(), 1));
    }

    #[test]
    fn unused_expressions_are_not_built() {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let x = desc.input(0).unwrap();
        let y = desc.unary(UnaryOp::Abs, x).unwrap();
        desc.output(y).unwrap();
        let words = build(&desc, 1);
        desc.unary(UnaryOp::Tanh, y).unwrap();
        assert_eq!(build(&desc, 1), words);
    }

    #[test]
    fn what_no_device_can_take_is_refused() {
        let empty = PointwiseDesc::new([]);
        assert_eq!(build_pointwise(&empty, &plain(&empty, 1)), Err(PointwiseError::NoOutputs));
        let mut desc = PointwiseDesc::new([Indexing::Broadcast { terms: 65 }]);
        let x = desc.input(0).unwrap();
        desc.output(x).unwrap();
        let expected = PointwiseError::TooManyTerms { terms: 65, limit: 64 };
        assert_eq!(build_pointwise(&desc, &plain(&desc, 1)), Err(expected));
        let none = KernelLayout { lanes: 1, texels: false, inputs: Vec::new() };
        let error = build_pointwise(&sample(), &none).unwrap_err();
        assert!(matches!(error, PointwiseError::WrongCount { .. }));
    }
}
