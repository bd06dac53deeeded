//! Reads SPIR-V words into a flat list of typed instructions, each with its word offset.
//!
//! The words may come from anywhere. Everything that `rspirv` takes for granted (lengths that fit,
//! operations that may be specialized, a bound on ids) is checked before or while it reads, so a hostile
//! module ends in a [`SpirvError`], never in a panic or a large allocation.
//!
//! Shared with the build script: no `crate::` paths here.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use rspirv::binary::{Consumer, ParseAction, ParseState, Parser};
use rspirv::dr::{Instruction, ModuleHeader, Operand};
use rspirv::spirv::{MAGIC_NUMBER, Op, StorageClass};

/// Largest id bound a module may declare (SPIR-V universal limit).
pub const MAX_BOUND: u32 = 0x3f_ffff;

/// Largest module, in words, that is read at all (16 MiB).
pub const MAX_WORDS: usize = 1 << 22;

const HEADER_WORDS: usize = 5;

/// What is wrong with a SPIR-V module, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpirvError {
    /// Index of the word at which the offending instruction (or header field) starts.
    pub word: usize,
    /// What is wrong there.
    pub kind: SpirvErrorKind,
}

/// The kinds of [`SpirvError`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpirvErrorKind {
    /// The module is shorter than its header.
    HeaderIncomplete {
        /// Words there are.
        words: usize,
    },
    /// The module has more words than are read at all.
    TooLarge {
        /// Words there are.
        words: usize,
        /// The largest count accepted.
        limit: usize,
    },
    /// The first word is not SPIR-V's magic number.
    BadMagic {
        /// The word found.
        found: u32,
    },
    /// The module is in the other byte order.
    WrongEndian,
    /// The version word is not one of SPIR-V 1.0 to 1.6.
    BadVersion {
        /// The word found.
        found: u32,
    },
    /// The id bound is zero or beyond the universal limit.
    BadBound {
        /// The bound found.
        found: u32,
        /// The largest bound accepted.
        limit: u32,
    },
    /// The reserved schema word is not zero.
    BadSchema {
        /// The word found.
        found: u32,
    },
    /// An instruction claims a word count of zero.
    ZeroWordCount,
    /// An instruction extends beyond the end of the module.
    Truncated {
        /// Words the instruction claims.
        claimed: usize,
        /// Words that are left.
        left: usize,
    },
    /// An opcode that the grammar does not know.
    UnknownOpcode {
        /// The opcode.
        opcode: u32,
    },
    /// `OpSpecConstantOp` with an operation that cannot be specialized.
    BadSpecConstantOp {
        /// The wrapped opcode.
        opcode: u32,
    },
    /// The operands of an instruction do not follow the grammar.
    BadOperands {
        /// What the reader says.
        reason: Cow<'static, str>,
    },
    /// An id is zero or not below the bound.
    IdOutOfBound {
        /// The id.
        id: u32,
        /// The module's bound.
        bound: u32,
    },
    /// An id is defined twice.
    IdRedefined {
        /// The id.
        id: u32,
    },
    /// An id is used as something it is not, or is not defined.
    WrongId {
        /// The id.
        id: u32,
        /// What was expected.
        expected: &'static str,
    },
    /// A required decoration is missing.
    MissingDecoration {
        /// The decorated id.
        id: u32,
        /// The decoration.
        decoration: &'static str,
    },
    /// A construct that this runtime does not take.
    Unsupported {
        /// The construct.
        what: Cow<'static, str>,
    },
    /// A capability that this runtime does not take.
    Capability {
        /// Its name.
        name: String,
    },
    /// The module breaks a rule of SPIR-V or of this runtime's kernel conventions.
    Invalid {
        /// The rule.
        rule: Cow<'static, str>,
    },
}

impl SpirvError {
    /// Offset of [`Self::word`] in bytes.
    pub fn byte_offset(&self) -> usize {
        self.word * 4
    }
}

impl fmt::Display for SpirvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use SpirvErrorKind as K;
        write!(f, "spir-v word {} (byte {}): ", self.word, self.byte_offset())?;
        match &self.kind {
            K::HeaderIncomplete { words } => write!(f, "{words} words are no header"),
            K::TooLarge { words, limit } => write!(f, "{words} words, at most {limit} are accepted"),
            K::BadMagic { found } => write!(f, "{found:#010x} is not the magic number"),
            K::WrongEndian => write!(f, "the module is in the other byte order"),
            K::BadVersion { found } => write!(f, "version word {found:#010x} is not 1.0 to 1.6"),
            K::BadBound { found, limit } => write!(f, "id bound {found} is not in 1..={limit}"),
            K::BadSchema { found } => write!(f, "reserved schema word is {found}, not 0"),
            K::ZeroWordCount => write!(f, "instruction of zero words"),
            K::Truncated { claimed, left } => {
                write!(f, "instruction of {claimed} words, only {left} are left")
            }
            K::UnknownOpcode { opcode } => write!(f, "unknown opcode {opcode}"),
            K::BadSpecConstantOp { opcode } => write!(f, "opcode {opcode} cannot be specialized"),
            K::BadOperands { reason } => write!(f, "{reason}"),
            K::IdOutOfBound { id, bound } => write!(f, "id {id} is not in 1..{bound}"),
            K::IdRedefined { id } => write!(f, "id {id} is defined twice"),
            K::WrongId { id, expected } => write!(f, "id {id} is not {expected}"),
            K::MissingDecoration { id, decoration } => {
                write!(f, "id {id} has no {decoration} decoration")
            }
            K::Unsupported { what } => write!(f, "{what} is not supported"),
            K::Capability { name } => write!(f, "capability {name} is not supported"),
            K::Invalid { rule } => write!(f, "{rule}"),
        }
    }
}

impl std::error::Error for SpirvError {}

/// One instruction and where it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// Index of its first word.
    pub word: usize,
    /// The instruction.
    pub inst: Instruction,
}

impl Inst {
    /// Its opcode.
    pub fn op(&self) -> Op {
        self.inst.class.opcode
    }

    /// An error at this instruction.
    pub fn error(&self, kind: SpirvErrorKind) -> SpirvError {
        SpirvError { word: self.word, kind }
    }

    /// Operand `index` (after result type and result id) as an id.
    ///
    /// # Errors
    /// The operand is missing or no id.
    pub fn id(&self, index: usize) -> Result<u32, SpirvError> {
        match self.inst.operands.get(index) {
            Some(Operand::IdRef(id)) => Ok(*id),
            _ => Err(self.bad_operand("an id operand is missing")),
        }
    }

    /// Operand `index` as a 32-bit literal.
    ///
    /// # Errors
    /// The operand is missing or no such literal.
    pub fn literal(&self, index: usize) -> Result<u32, SpirvError> {
        match self.inst.operands.get(index) {
            Some(Operand::LiteralBit32(value)) => Ok(*value),
            _ => Err(self.bad_operand("a literal operand is missing")),
        }
    }

    /// Operand `index` as a storage class.
    ///
    /// # Errors
    /// The operand is missing or no storage class.
    pub fn storage_class(&self, index: usize) -> Result<StorageClass, SpirvError> {
        match self.inst.operands.get(index) {
            Some(Operand::StorageClass(class)) => Ok(*class),
            _ => Err(self.bad_operand("a storage class operand is missing")),
        }
    }

    fn bad_operand(&self, reason: &'static str) -> SpirvError {
        self.error(SpirvErrorKind::BadOperands { reason: Cow::Borrowed(reason) })
    }
}

/// A module as a flat list of instructions; every id is below the bound and defined at most once.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// SPIR-V version, (major, minor).
    pub version: (u8, u8),
    /// The instructions in order.
    pub insts: Vec<Inst>,
    defs: HashMap<u32, usize>,
}

impl Module {
    /// The instruction that defines `id`.
    pub fn def(&self, id: u32) -> Option<&Inst> {
        self.defs.get(&id).and_then(|&index| self.insts.get(index))
    }

    /// The instructions before the first function.
    pub fn globals(&self) -> impl Iterator<Item = &Inst> {
        self.insts.iter().take_while(|inst| inst.op() != Op::Function)
    }
}

/// Whether an instruction is an atomic operation on memory.
pub(super) fn is_atomic(op: Op) -> bool {
    matches!(
        op,
        Op::AtomicLoad
            | Op::AtomicStore
            | Op::AtomicExchange
            | Op::AtomicCompareExchange
            | Op::AtomicCompareExchangeWeak
            | Op::AtomicIIncrement
            | Op::AtomicIDecrement
            | Op::AtomicIAdd
            | Op::AtomicISub
            | Op::AtomicSMin
            | Op::AtomicUMin
            | Op::AtomicSMax
            | Op::AtomicUMax
            | Op::AtomicAnd
            | Op::AtomicOr
            | Op::AtomicXor
            | Op::AtomicFlagTestAndSet
            | Op::AtomicFlagClear
            | Op::AtomicFMinEXT
            | Op::AtomicFMaxEXT
            | Op::AtomicFAddEXT
    )
}

/// Parses `words` into a [`Module`].
///
/// # Errors
/// The words are no structurally sound SPIR-V module; the error says at which word.
pub fn parse(words: &[u32]) -> Result<Module, SpirvError> {
    let version = check_header(words)?;
    check_lengths(words)?;
    let mut collector = Collector {
        words,
        next: HEADER_WORDS,
        bound: words[3],
        module: Module { version, insts: Vec::new(), defs: HashMap::new() },
        error: None,
    };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let state = Parser::new(&bytes, &mut collector).parse();
    if let Some(error) = collector.error {
        return Err(error);
    }
    match state {
        Ok(()) => Ok(collector.module),
        Err(state) => Err(SpirvError { word: collector.next.min(words.len()), kind: parse_kind(state) }),
    }
}

fn check_header(words: &[u32]) -> Result<(u8, u8), SpirvError> {
    let err = |word, kind| Err(SpirvError { word, kind });
    if words.len() > MAX_WORDS {
        return err(0, SpirvErrorKind::TooLarge { words: words.len(), limit: MAX_WORDS });
    }
    let &[magic, version, _generator, bound, schema, ..] = words else {
        return err(0, SpirvErrorKind::HeaderIncomplete { words: words.len() });
    };
    if magic == MAGIC_NUMBER.swap_bytes() {
        return err(0, SpirvErrorKind::WrongEndian);
    }
    if magic != MAGIC_NUMBER {
        return err(0, SpirvErrorKind::BadMagic { found: magic });
    }
    let [reserved_high, major, minor, reserved_low] = version.to_be_bytes();
    if reserved_high != 0 || reserved_low != 0 || major != 1 || minor > 6 {
        return err(1, SpirvErrorKind::BadVersion { found: version });
    }
    if bound == 0 || bound > MAX_BOUND {
        return err(3, SpirvErrorKind::BadBound { found: bound, limit: MAX_BOUND });
    }
    if schema != 0 {
        return err(4, SpirvErrorKind::BadSchema { found: schema });
    }
    Ok((major, minor))
}

/// Every instruction must end inside the module, and an `OpSpecConstantOp` may wrap only what the
/// specification lists: `rspirv` panics on either.
fn check_lengths(words: &[u32]) -> Result<(), SpirvError> {
    let mut at = HEADER_WORDS;
    while let Some(&first) = words.get(at) {
        let count = (first >> 16) as usize;
        let left = words.len() - at;
        if count == 0 {
            return Err(SpirvError { word: at, kind: SpirvErrorKind::ZeroWordCount });
        }
        if count > left {
            let kind = SpirvErrorKind::Truncated { claimed: count, left };
            return Err(SpirvError { word: at, kind });
        }
        if first & 0xffff == Op::SpecConstantOp as u32
            && count > 3
            && let Some(&opcode) = words.get(at + 3)
            && !Op::from_u32(opcode).is_some_and(is_specializable)
        {
            return Err(SpirvError { word: at, kind: SpirvErrorKind::BadSpecConstantOp { opcode } });
        }
        at += count;
    }
    Ok(())
}

/// Operations that `OpSpecConstantOp` may wrap in a shader.
fn is_specializable(op: Op) -> bool {
    matches!(
        op,
        Op::SConvert
            | Op::UConvert
            | Op::FConvert
            | Op::SNegate
            | Op::Not
            | Op::IAdd
            | Op::ISub
            | Op::IMul
            | Op::UDiv
            | Op::SDiv
            | Op::UMod
            | Op::SRem
            | Op::SMod
            | Op::ShiftRightLogical
            | Op::ShiftRightArithmetic
            | Op::ShiftLeftLogical
            | Op::BitwiseOr
            | Op::BitwiseXor
            | Op::BitwiseAnd
            | Op::VectorShuffle
            | Op::CompositeExtract
            | Op::CompositeInsert
            | Op::LogicalOr
            | Op::LogicalAnd
            | Op::LogicalNot
            | Op::LogicalEqual
            | Op::LogicalNotEqual
            | Op::Select
            | Op::IEqual
            | Op::INotEqual
            | Op::ULessThan
            | Op::SLessThan
            | Op::UGreaterThan
            | Op::SGreaterThan
            | Op::ULessThanEqual
            | Op::SLessThanEqual
            | Op::UGreaterThanEqual
            | Op::SGreaterThanEqual
            | Op::QuantizeToF16
            | Op::CooperativeMatrixLengthKHR
    )
}

fn parse_kind(state: ParseState) -> SpirvErrorKind {
    match state {
        ParseState::OpcodeUnknown(_, _, opcode) => {
            SpirvErrorKind::UnknownOpcode { opcode: u32::from(opcode) }
        }
        other => SpirvErrorKind::BadOperands { reason: Cow::Owned(other.to_string()) },
    }
}

/// Takes instructions from the parser, follows their offsets and checks their ids.
struct Collector<'a> {
    words: &'a [u32],
    next: usize,
    bound: u32,
    module: Module,
    error: Option<SpirvError>,
}

impl Collector<'_> {
    fn take(&mut self, inst: Instruction) -> Result<(), SpirvErrorKind> {
        let bound = self.bound;
        let check = |id: u32| match id != 0 && id < bound {
            true => Ok(()),
            false => Err(SpirvErrorKind::IdOutOfBound { id, bound }),
        };
        for id in [inst.result_type, inst.result_id].into_iter().flatten() {
            check(id)?;
        }
        for operand in &inst.operands {
            match operand {
                Operand::IdRef(id) | Operand::IdScope(id) | Operand::IdMemorySemantics(id) => check(*id)?,
                _ => {}
            }
        }
        if let Some(id) = inst.result_id
            && self.module.defs.insert(id, self.module.insts.len()).is_some()
        {
            return Err(SpirvErrorKind::IdRedefined { id });
        }
        self.module.insts.push(Inst { word: self.next, inst });
        Ok(())
    }
}

impl Consumer for Collector<'_> {
    fn initialize(&mut self) -> ParseAction {
        ParseAction::Continue
    }

    fn finalize(&mut self) -> ParseAction {
        ParseAction::Continue
    }

    fn consume_header(&mut self, _: ModuleHeader) -> ParseAction {
        ParseAction::Continue
    }

    fn consume_instruction(&mut self, inst: Instruction) -> ParseAction {
        if let Err(kind) = self.take(inst) {
            self.error = Some(SpirvError { word: self.next, kind });
            return ParseAction::Stop;
        }
        self.next += self.words.get(self.next).map_or(1, |word| (word >> 16) as usize);
        ParseAction::Continue
    }
}
