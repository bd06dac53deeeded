//! Kernels built at run time: a pointwise expression to SPIR-V 1.3.
//!
//! The module keeps the conventions of the shipped kernels: set 0 with the inputs and then the outputs as
//! storage buffers of floats, push constants `n` and the broadcast terms, work-group size `(64, 1, 1)` with
//! specialization constant 0 for x, and the grid of `kernel::grid_1d`. Equal descriptions give equal words.

use std::collections::HashMap;

use rspirv::binary::Assemble;
use rspirv::dr::{Block, Builder, Function, Instruction, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel, FunctionControl,
    GlslStd450Op, MemoryModel, Op, SelectionControl, StorageClass,
};

use super::pointwise::{BinaryOp, CompareOp, Expr, Indexing, PointwiseDesc, PointwiseError, UnaryOp, math};

/// Work-group size of a built kernel, unless specialized.
pub const LOCAL_SIZE_X: u32 = 64;

/// Builds the kernel of `desc`.
///
/// # Errors
/// The description has no output, or its broadcasts do not fit into the push constants.
pub fn build_pointwise(desc: &PointwiseDesc) -> Result<Vec<u32>, PointwiseError> {
    desc.validate()?;
    let mut kernel = Kernel::new(desc);
    let (i, body) = kernel.begin();
    kernel.body(desc, i);
    kernel.end_block(body);
    Ok(kernel.finish())
}

struct Kernel {
    b: Builder,
    /// Instructions of the block being written.
    code: Vec<Instruction>,
    blocks: Vec<Block>,
    constants: HashMap<(u32, u32), u32>,
    types: Types,
    glsl: u32,
    main: u32,
    /// Variables of the inputs and then the outputs.
    buffers: Vec<u32>,
    params: u32,
    global_id: u32,
    num_groups: u32,
    local_size: u32,
    merge: u32,
}

struct Types {
    void: u32,
    boolean: u32,
    uint: u32,
    float: u32,
    uvec3: u32,
    buffer_float: u32,
    param_uint: u32,
}

impl Kernel {
    fn new(desc: &PointwiseDesc) -> Self {
        let mut b = Builder::new();
        b.set_version(1, 3);
        b.capability(Capability::Shader);
        let glsl = b.ext_inst_import("GLSL.std.450");
        b.memory_model(AddressingModel::Logical, MemoryModel::GLSL450);
        let (void, boolean) = (b.type_void(), b.type_bool());
        let (uint, float) = (b.type_int(32, 0), b.type_float(32, None));
        let uvec3 = b.type_vector(uint, 3);
        let types = Types {
            void,
            boolean,
            uint,
            float,
            uvec3,
            buffer_float: b.type_pointer(None, StorageClass::StorageBuffer, float),
            param_uint: b.type_pointer(None, StorageClass::PushConstant, uint),
        };
        let buffers = buffers(&mut b, float, desc);
        let params = params(&mut b, uint, desc);
        let input = b.type_pointer(None, StorageClass::Input, uvec3);
        let mut builtin = |builtin: BuiltIn| {
            let id = b.variable(input, None, StorageClass::Input, None);
            b.decorate(id, Decoration::BuiltIn, [Operand::BuiltIn(builtin)]);
            id
        };
        let (global_id, num_groups) = (builtin(BuiltIn::GlobalInvocationId), builtin(BuiltIn::NumWorkgroups));
        let size_x = b.spec_constant_bit32(uint, LOCAL_SIZE_X);
        b.decorate(size_x, Decoration::SpecId, [Operand::LiteralBit32(0)]);
        b.name(size_x, "local_size_x");
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
            types,
            glsl,
            main,
            buffers,
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

    fn body(&mut self, desc: &PointwiseDesc, i: u32) {
        let live = desc.live();
        let mut values = vec![0; desc.exprs().len()];
        for (at, expr) in desc.exprs().iter().enumerate().filter(|(at, _)| live[*at]) {
            values[at] = match *expr {
                Expr::Input(input) => self.load(desc, input, i),
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
            let place = self.element(self.buffers[desc.inputs().len() + at], i);
            self.plain(Op::Store, &[place, values[output.index()]]);
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

    fn load(&mut self, desc: &PointwiseDesc, input: usize, i: u32) -> u32 {
        let uint = self.types.uint;
        let index = match desc.inputs()[input] {
            Indexing::Full => i,
            Indexing::Broadcast { terms } => {
                let before: usize = desc.inputs()[..input].iter().map(|indexing| indexing.terms()).sum();
                let mut sum = None;
                for term in before..before + terms {
                    let [div, modulo, stride] = [1, 2, 3].map(|word| self.param(3 * term as u32 + word));
                    let steps = self.op(Op::UDiv, uint, &[i, div]);
                    let wrapped = self.op(Op::UMod, uint, &[steps, modulo]);
                    let part = self.op(Op::IMul, uint, &[wrapped, stride]);
                    sum = Some(match sum {
                        Some(sum) => self.op(Op::IAdd, uint, &[sum, part]),
                        None => part,
                    });
                }
                sum.unwrap_or_else(|| self.uint(0))
            }
        };
        let place = self.element(self.buffers[input], index);
        self.op(Op::Load, self.types.float, &[place])
    }

    fn unary(&mut self, op: UnaryOp, x: u32) -> u32 {
        match op {
            UnaryOp::Neg => self.op(Op::FNegate, self.types.float, &[x]),
            UnaryOp::Abs => self.ext(GlslStd450Op::FAbs, &[x]),
            UnaryOp::Exp => self.ext(GlslStd450Op::Exp, &[x]),
            UnaryOp::Log => self.ext(GlslStd450Op::Log, &[x]),
            UnaryOp::Sqrt => self.ext(GlslStd450Op::Sqrt, &[x]),
            UnaryOp::Floor => self.ext(GlslStd450Op::Floor, &[x]),
            UnaryOp::Ceil => self.ext(GlslStd450Op::Ceil, &[x]),
            UnaryOp::Sigmoid => {
                let minus = self.op(Op::FNegate, self.types.float, &[x]);
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
        let boolean = self.types.boolean;
        let first = self.op(test, boolean, &[a, b]);
        let nan = self.op(Op::IsNan, boolean, &[a]);
        let take = self.op(Op::LogicalOr, boolean, &[first, nan]);
        self.choose(take, a, b)
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
        let minus = self.op(Op::FNegate, self.types.float, &[magnitude]);
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
        let x_nan = self.op(Op::IsNan, self.types.boolean, &[x]);
        let y_nan = self.op(Op::IsNan, self.types.boolean, &[y]);
        let unknown = self.op(Op::LogicalOr, self.types.boolean, &[x_nan, y_nan]);
        let value = self.choose(unknown, nan, value);
        let always = self.compare(CompareOp::Equal, y, zero);
        self.choose(always, one, value)
    }

    fn tanh(&mut self, x: u32) -> u32 {
        let (one, two) = (self.float(1.0), self.float(2.0));
        let size = self.ext(GlslStd450Op::FAbs, &[x]);
        let square = self.arith(Op::FMul, x, x);
        let poly = self.polynomial(&math::TANH, square);
        let cube = self.arith(Op::FMul, square, x);
        let tail = self.arith(Op::FMul, poly, cube);
        let small = self.arith(Op::FAdd, x, tail);
        let double = self.arith(Op::FMul, two, size);
        let e = self.ext(GlslStd450Op::Exp, &[double]);
        let below = self.arith(Op::FAdd, e, one);
        let rest = self.arith(Op::FDiv, two, below);
        let large = self.arith(Op::FSub, one, rest);
        let large = self.with_sign(large, x);
        let limit = self.float(math::TANH_SMALL);
        let near = self.compare(CompareOp::Less, size, limit);
        self.choose(near, small, large)
    }

    fn erf(&mut self, x: u32) -> u32 {
        let (one, p) = (self.float(1.0), self.float(math::ERF_P));
        let size = self.ext(GlslStd450Op::FAbs, &[x]);
        let scaled = self.arith(Op::FMul, p, size);
        let below = self.arith(Op::FAdd, one, scaled);
        let t = self.arith(Op::FDiv, one, below);
        let poly = self.polynomial(&math::ERF, t);
        let poly = self.arith(Op::FMul, poly, t);
        let square = self.arith(Op::FMul, x, x);
        let minus = self.op(Op::FNegate, self.types.float, &[square]);
        let e = self.ext(GlslStd450Op::Exp, &[minus]);
        let tail = self.arith(Op::FMul, poly, e);
        let value = self.arith(Op::FSub, one, tail);
        self.with_sign(value, x)
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
        let minus = self.op(Op::FNegate, self.types.float, &[value]);
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
        self.op(op, self.types.boolean, &[a, b])
    }

    fn choose(&mut self, condition: u32, then: u32, otherwise: u32) -> u32 {
        self.op(Op::Select, self.types.float, &[condition, then, otherwise])
    }

    fn arith(&mut self, op: Op, a: u32, b: u32) -> u32 {
        self.op(op, self.types.float, &[a, b])
    }

    fn ext(&mut self, function: GlslStd450Op, arguments: &[u32]) -> u32 {
        let mut operands = vec![Operand::IdRef(self.glsl), Operand::LiteralExtInstInteger(function as u32)];
        operands.extend(arguments.iter().map(|id| Operand::IdRef(*id)));
        let id = self.b.id();
        self.code.push(Instruction::new(Op::ExtInst, Some(self.types.float), Some(id), operands));
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
    fn element(&mut self, buffer: u32, index: u32) -> u32 {
        let zero = self.uint(0);
        self.op(Op::AccessChain, self.types.buffer_float, &[buffer, zero, index])
    }

    fn uint(&mut self, value: u32) -> u32 {
        self.constant(self.types.uint, value)
    }

    fn float(&mut self, value: f32) -> u32 {
        self.constant(self.types.float, value.to_bits())
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

/// One storage buffer of floats per input and per output.
fn buffers(b: &mut Builder, float: u32, desc: &PointwiseDesc) -> Vec<u32> {
    let array = b.type_runtime_array(float);
    b.decorate(array, Decoration::ArrayStride, [Operand::LiteralBit32(4)]);
    let block = b.type_struct([array]);
    b.decorate(block, Decoration::Block, []);
    b.member_decorate(block, 0, Decoration::Offset, [Operand::LiteralBit32(0)]);
    let pointer = b.type_pointer(None, StorageClass::StorageBuffer, block);
    let inputs = (0..desc.inputs().len()).map(|at| (format!("in{at}"), Decoration::NonWritable));
    let outputs = (0..desc.outputs().len()).map(|at| (format!("out{at}"), Decoration::NonReadable));
    let mut variables = Vec::new();
    for (binding, (name, access)) in inputs.chain(outputs).enumerate() {
        let id = b.variable(pointer, None, StorageClass::StorageBuffer, None);
        b.decorate(id, Decoration::DescriptorSet, [Operand::LiteralBit32(0)]);
        b.decorate(id, Decoration::Binding, [Operand::LiteralBit32(binding as u32)]);
        b.decorate(id, access, []);
        b.name(id, name);
        variables.push(id);
    }
    variables
}

/// The push constants: `n`, and three words for each term.
fn params(b: &mut Builder, uint: u32, desc: &PointwiseDesc) -> u32 {
    let terms: usize = desc.inputs().iter().map(|input| input.terms()).sum();
    let terms = (0..terms).flat_map(|at| ["div", "modulo", "stride"].map(|name| format!("{name}{at}")));
    let names: Vec<String> = std::iter::once("n".to_owned()).chain(terms).collect();
    let block = b.type_struct(names.iter().map(|_| uint));
    b.decorate(block, Decoration::Block, []);
    b.name(block, "Params");
    for (at, name) in names.into_iter().enumerate() {
        let at = at as u32;
        b.member_decorate(block, at, Decoration::Offset, [Operand::LiteralBit32(4 * at)]);
        b.member_name(block, at, name);
    }
    let pointer = b.type_pointer(None, StorageClass::PushConstant, block);
    b.variable(pointer, None, StorageClass::PushConstant, None)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::super::{Access, BindingKind, check_module, reflect};
    use super::*;

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
        let words = build_pointwise(&sample()).unwrap();
        validate(&words);
        let r = check_module(&words).unwrap();
        assert_eq!((r.version, r.entry_point.as_ref()), ((1, 3), "main"));
        assert_eq!((r.local_size, r.local_size_spec), ([64, 1, 1], [Some(0), None, None]));
        let bindings: Vec<_> = r.bindings.iter().map(|b| (b.set, b.binding, b.kind, b.access)).collect();
        let at = |binding, access| (0, binding, BindingKind::StorageBuffer, access);
        let (read, write) = (Access::Read, Access::Write);
        assert_eq!(bindings, [at(0, read), at(1, read), at(2, read), at(3, write), at(4, write)]);
        let params: Vec<_> = r.params.iter().map(|p| (p.name.as_ref(), p.offset_bytes)).collect();
        let names = ["n", "div0", "modulo0", "stride0", "div1", "modulo1", "stride1"];
        assert!(params.iter().map(|(name, _)| *name).eq(names));
        assert!(params.iter().enumerate().all(|(at, (_, offset))| *offset == 4 * at as u32));
        assert_eq!(r.params_bytes, 28);
    }

    #[test]
    fn every_operation_is_valid() {
        let words = build_pointwise(&everything()).unwrap();
        validate(&words);
        assert_eq!(check_module(&words), reflect(&words));
    }

    #[test]
    fn equal_descriptions_give_equal_words() {
        assert_eq!(build_pointwise(&everything()), build_pointwise(&everything()));
        assert_ne!(build_pointwise(&everything()), build_pointwise(&sample()));
    }

    #[test]
    fn unused_expressions_are_not_built() {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let x = desc.input(0).unwrap();
        let y = desc.unary(UnaryOp::Abs, x).unwrap();
        desc.output(y).unwrap();
        let words = build_pointwise(&desc).unwrap();
        desc.unary(UnaryOp::Tanh, y).unwrap();
        assert_eq!(build_pointwise(&desc).unwrap(), words);
    }

    #[test]
    fn what_no_device_can_take_is_refused() {
        assert_eq!(build_pointwise(&PointwiseDesc::new([])), Err(PointwiseError::NoOutputs));
        let mut desc = PointwiseDesc::new([Indexing::Broadcast { terms: 11 }]);
        let x = desc.input(0).unwrap();
        desc.output(x).unwrap();
        let expected = PointwiseError::TooManyTerms { bytes: 136, limit: 128 };
        assert_eq!(build_pointwise(&desc), Err(expected));
    }
}
