//! Pointers: never values of the translation, but descriptions from which each access is written.

use std::fmt::Write as _;

use rspirv::spirv::{BuiltIn, Decoration, Op};

use super::OpenClError;
use super::function::Body;
use super::helpers::Helper;
use super::image::Form;
use super::module::{Global, unsupported};
use super::types::{ImageType, Num, Type};
use crate::parse::Inst;
use crate::types::ScalarType;

/// Longest expression that a chain of accesses may make.
const MAX_PATH: usize = 1 << 11;

/// Bytes that a term counts for.
const TERM: usize = 64;

/// Scalars and vectors that one load or store of an array or structure may touch.
const MAX_LEAVES: usize = 1 << 10;

/// What the binding's address is a multiple of.
const BASE_ALIGN: u64 = 16;

/// Where a variable lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Private,
    Local,
    /// Only of atomics: what is bound is described by bytes.
    Global,
}

impl Space {
    /// The qualifier, with a space after it.
    pub(super) const fn c(self) -> &'static str {
        match self {
            Self::Private => "",
            Self::Local => "__local ",
            Self::Global => "__global ",
        }
    }
}

/// What a pointer points to.
#[derive(Clone, Debug)]
pub(super) enum Pointer {
    /// A part of a variable, as an expression.
    Variable {
        path: String,
        space: Space,
        to: u32,
        /// Whether it is a component of a vector of booleans.
        bit: bool,
    },
    /// Bytes with an explicit layout.
    Bytes { root: Root, offset: u64, terms: Vec<Term>, to: u32 },
    /// A built-in input, or one component of it.
    Input { builtin: BuiltIn, num: Num, component: Option<String> },
    /// An image, with what belongs to it under names that begin with `base`.
    Image { base: String, image: ImageType, form: Form },
}

/// Where bytes with an explicit layout are.
#[derive(Clone, Debug)]
pub(super) enum Root {
    /// A `uchar` pointer to global memory.
    Global { base: String, volatile: bool },
    /// The words of the push constants.
    Push,
}

/// An index and what it is multiplied with.
#[derive(Clone, Debug)]
pub(super) struct Term {
    index: String,
    stride: u64,
}

impl Pointer {
    pub(super) fn variable(path: String, space: Space, to: u32) -> Self {
        Self::Variable { path, space, to, bit: false }
    }

    pub(super) fn bytes(base: String, volatile: bool, to: u32) -> Self {
        Self::Bytes { root: Root::Global { base, volatile }, offset: 0, terms: Vec::new(), to }
    }

    /// The type pointed to; `None` for inputs and images.
    pub(super) fn to(&self) -> Option<u32> {
        match self {
            Self::Variable { to, .. } | Self::Bytes { to, .. } => Some(*to),
            Self::Input { .. } | Self::Image { .. } => None,
        }
    }
}

impl Body<'_, '_> {
    /// The pointer or image that `id` is; `None` for a value.
    pub(super) fn pointer_if_any(&self, user: &Inst, id: u32) -> Result<Option<Pointer>, OpenClError> {
        if let Some(pointer) = self.pointers.get(&id) {
            return Ok(Some(pointer.clone()));
        }
        let Some(global) = self.t.globals.get(&id) else {
            let ty = self.t.module.def(id).and_then(|def| def.inst.result_type).unwrap_or(0);
            return match self.t.types.get(ty) {
                Type::Pointer { .. } => Err(unsupported(user, "a pointer that is computed")),
                _ => Ok(None),
            };
        };
        let held = |id: u32| format!("(*x{id})");
        let own = |id: u32| if self.kernel { format!("x{id}") } else { held(id) };
        Ok(Some(match *global {
            Global::Buffer { binding, to, volatile } => Pointer::bytes(format!("b{binding}"), volatile, to),
            Global::Image { binding, image } => {
                let form = self.t.forms.get(&binding).copied().unwrap_or(Form::Pointer);
                Pointer::Image { base: format!("b{binding}"), image, form }
            }
            Global::Push { to } => Pointer::Bytes { root: Root::Push, offset: 0, terms: Vec::new(), to },
            Global::Local { to } => Pointer::variable(held(id), Space::Local, to),
            Global::Private { to, .. } => Pointer::variable(own(id), Space::Private, to),
            Global::Input { builtin, num } => Pointer::Input { builtin, num, component: None },
        }))
    }

    pub(super) fn pointer(&self, user: &Inst, id: u32) -> Result<Pointer, OpenClError> {
        let pointer = self.pointer_if_any(user, id)?;
        pointer.ok_or_else(|| unsupported(user, format!("id {id} as a pointer")))
    }

    /// A pointer as the argument of a call.
    pub(super) fn pointer_argument(&self, user: &Inst, pointer: &Pointer) -> Result<String, OpenClError> {
        match pointer {
            Pointer::Variable { path, bit: false, .. } => Ok(match path.strip_prefix("(*") {
                Some(name) if name.ends_with(')') && !name.contains(['.', '[', '(']) => {
                    name.trim_end_matches(')').to_owned()
                }
                _ => format!("&{path}"),
            }),
            Pointer::Bytes { root: Root::Global { base, .. }, offset, terms, .. } => {
                Ok(format!("({base}{})", sum(*offset, terms)))
            }
            Pointer::Image { base, image, form } => Ok(self.t.image_args(base, *form, self.t.samples(image))),
            _ => Err(unsupported(user, "this pointer as an argument")),
        }
    }

    /// Where a pointer to memory that work-items share leads, as an expression to be cast.
    pub(super) fn address(&self, user: &Inst, pointer: &Pointer) -> Result<(Space, String), OpenClError> {
        match pointer {
            Pointer::Bytes { root: Root::Global { base, .. }, offset, terms, .. } => {
                Ok((Space::Global, format!("({base}{})", sum(*offset, terms))))
            }
            Pointer::Variable { path, space: Space::Local, bit: false, .. } => {
                Ok((Space::Local, format!("&{path}")))
            }
            _ => Err(unsupported(user, "an atomic access to memory that is not shared")),
        }
    }

    pub(super) fn access_chain(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        let mut pointer = self.pointer(inst, inst.id(0)?)?;
        for at in 1..inst.inst.operands.len() {
            let index = inst.id(at)?;
            pointer = self.step(inst, pointer, index)?;
            let (bytes, limit) = match &pointer {
                Pointer::Variable { path, .. } => (path.len(), MAX_PATH),
                Pointer::Bytes { terms, .. } => (terms.len() * TERM, MAX_PATH),
                _ => (1, 1),
            };
            self.t.spend(bytes)?;
            if bytes > limit {
                return Err(OpenClError::TooLarge { what: "bytes of an access", limit });
            }
        }
        if let Some(id) = inst.inst.result_id {
            self.pointers.insert(id, pointer);
        }
        Ok(())
    }

    /// One index further into what is pointed to.
    fn step(&mut self, inst: &Inst, pointer: Pointer, index: u32) -> Result<Pointer, OpenClError> {
        let constant = self.t.constants.index(index);
        let no_part = || unsupported(inst, "an index into a type without parts");
        match pointer {
            Pointer::Variable { mut path, space, to, bit: false } => {
                let text = self.value(inst, index)?;
                let (to, bit) = match self.t.types.get(to) {
                    Type::Struct(members) => {
                        let at = constant.and_then(|at| usize::try_from(at).ok()).ok_or_else(no_part)?;
                        let _ = write!(path, ".m{at}");
                        (*members.get(at).ok_or_else(no_part)?, false)
                    }
                    Type::Array { element, .. } => {
                        let _ = write!(path, ".a[{text}]");
                        (*element, false)
                    }
                    Type::Num(num, Some(lane)) => {
                        match constant {
                            Some(at) if space == Space::Private && (0..i64::from(num.n)).contains(&at) => {
                                let _ = write!(path, ".s{at}");
                            }
                            // A store to a component may write the whole vector: others' components too.
                            _ => {
                                let stored = if num.is_bool() { num.with(ScalarType::I32) } else { *num };
                                let name = stored.lane().c(self.t.fp16);
                                path = format!("(({}{name}*)&{path})[{text}]", space.c());
                            }
                        }
                        (*lane, num.is_bool())
                    }
                    _ => return Err(no_part()),
                };
                Ok(Pointer::Variable { path, space, to, bit })
            }
            Pointer::Bytes { root, mut offset, mut terms, to } => {
                let (stride, to) = match self.t.types.get(to) {
                    Type::Struct(members) => {
                        let at = constant.and_then(|at| u32::try_from(at).ok()).ok_or_else(no_part)?;
                        let member = self.t.index.decoration(to, Some(at), Decoration::Offset);
                        offset = offset.wrapping_add(u64::from(
                            member.ok_or_else(|| unsupported(inst, "a member without an offset"))?,
                        ));
                        let to = *members.get(at as usize).ok_or_else(no_part)?;
                        return Ok(Pointer::Bytes { root, offset, terms, to });
                    }
                    Type::Array { element, .. } => (self.array_stride(inst, to)?, *element),
                    Type::Num(num, Some(lane)) => (u64::from(num.scalar.bytes()), *lane),
                    _ => return Err(no_part()),
                };
                match constant {
                    Some(at) => offset = offset.wrapping_add((at as u64).wrapping_mul(stride)),
                    None => terms.push(Term { index: self.value(inst, index)?, stride }),
                }
                Ok(Pointer::Bytes { root, offset, terms, to })
            }
            Pointer::Input { builtin, num, component: None } if num.n > 1 => {
                let component = Some(self.value(inst, index)?);
                Ok(Pointer::Input { builtin, num: num.lane(), component })
            }
            _ => Err(no_part()),
        }
    }

    fn array_stride(&self, inst: &Inst, array: u32) -> Result<u64, OpenClError> {
        let stride = self.t.index.decoration(array, None, Decoration::ArrayStride);
        stride.map(u64::from).ok_or_else(|| unsupported(inst, "an array without a stride"))
    }

    pub(super) fn memory(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        let pointer = self.pointer(inst, inst.id(0)?)?;
        match inst.op() {
            Op::Load => self.load(inst, &pointer),
            Op::Store => {
                let value = self.operand(inst, 1)?;
                self.store(inst, &pointer, &value, &mut 0)
            }
            Op::ArrayLength => {
                let (Pointer::Bytes { root: Root::Global { base, .. }, to, .. }, at) =
                    (&pointer, inst.literal(1)?)
                else {
                    return Err(unsupported(inst, "the length of this"));
                };
                let (Type::Struct(members), Some(first)) =
                    (self.t.types.get(*to), self.t.index.decoration(*to, Some(at), Decoration::Offset))
                else {
                    return Err(unsupported(inst, "the length of this"));
                };
                let array = members.get(at as usize).copied().unwrap_or(0);
                let stride = self.array_stride(inst, array)?.max(1);
                let value = format!(
                    "(uint)(({base}_bytes < {first}ul ? 0ul : {base}_bytes - {first}ul) / {stride}ul)"
                );
                self.set(inst, &value)
            }
            _ => {
                let from = self.pointer(inst, inst.id(1)?)?;
                self.copy(inst, &pointer, &from, &mut 0)
            }
        }
    }

    fn load(&mut self, inst: &Inst, pointer: &Pointer) -> Result<(), OpenClError> {
        match pointer {
            Pointer::Image { .. } => {
                self.pointers.insert(inst.inst.result_id.unwrap_or(0), pointer.clone());
                Ok(())
            }
            Pointer::Variable { path, bit: false, .. } => self.set(inst, path),
            _ => match self.load_num(inst, pointer)? {
                Some(value) => self.set(inst, &value),
                None => {
                    let id = self.open(inst)?;
                    let to = inst.inst.result_type.unwrap_or(0);
                    let to = Pointer::variable(format!("v{id}"), Space::Private, to);
                    self.copy(inst, &to, pointer, &mut 0)
                }
            },
        }
    }

    /// The scalar or vector that is pointed to; `None` where it is neither.
    fn load_num(&mut self, inst: &Inst, pointer: &Pointer) -> Result<Option<String>, OpenClError> {
        Ok(match pointer {
            Pointer::Input { builtin, num, component } => {
                Some(self.input(*builtin, *num, component.as_deref()))
            }
            Pointer::Variable { path, bit: true, .. } => Some(format!("({path} != 0)")),
            Pointer::Variable { path, to, .. } => self.t.types.num(*to).map(|_| path.clone()),
            Pointer::Bytes { root, offset, terms, to } => match self.t.types.num(*to) {
                Some(num) => Some(match root {
                    Root::Push => self.load_push(inst, *offset, terms, num)?,
                    Root::Global { base, volatile } => self.load_global(base, *volatile, *offset, terms, num),
                }),
                None => None,
            },
            Pointer::Image { .. } => None,
        })
    }

    fn load_global(&mut self, base: &str, volatile: bool, offset: u64, terms: &[Term], num: Num) -> String {
        let space = if volatile { "__global volatile " } else { "__global " };
        let n = if num.n == 1 { String::new() } else { num.n.to_string() };
        if num.is_half() && !self.t.fp16 {
            return match simple(offset, terms, 2) {
                Some(index) if num.n == 1 => format!("vload_half({index}, (__global half*){base})"),
                _ => format!("vload_half{n}(0, (__global half*)({base}{}))", sum(offset, terms)),
            };
        }
        let stored = num.unsigned();
        let name = stored.c(self.t.fp16);
        let value = match aligned(offset, terms, num) {
            true => match simple(offset, terms, u64::from(num.scalar.bytes() * num.n)) {
                Some(index) => format!("(({space}{name}*){base})[{index}]"),
                None => format!("*({space}{name}*)({base}{})", sum(offset, terms)),
            },
            false => {
                let name = stored.lane().c(self.t.fp16);
                format!("vload{n}(0, (__global {name}*)({base}{}))", sum(offset, terms))
            }
        };
        if stored == num { value } else { format!("as_{}({value})", num.c(self.t.fp16)) }
    }

    fn load_push(
        &mut self,
        inst: &Inst,
        offset: u64,
        terms: &[Term],
        num: Num,
    ) -> Result<String, OpenClError> {
        let lanes: Vec<String> = (0..u64::from(num.n))
            .map(|lane| {
                let offset = offset.wrapping_add(lane * u64::from(num.scalar.bytes()));
                self.load_push_lane(inst, offset, terms, num.lane())
            })
            .collect::<Result<_, _>>()?;
        Ok(self.of_lanes(num, &lanes))
    }

    fn load_push_lane(
        &mut self,
        inst: &Inst,
        offset: u64,
        terms: &[Term],
        num: Num,
    ) -> Result<String, OpenClError> {
        let words = if self.kernel { "push.w" } else { "push->w" };
        let whole = offset.is_multiple_of(4) && terms.iter().all(|term| term.stride.is_multiple_of(4));
        let word = |plus: u64| {
            let mut index = (offset / 4 + plus).to_string();
            for term in terms {
                let _ = match term.stride / 4 {
                    1 => write!(index, " + {}", term.index),
                    stride => write!(index, " + {} * {stride}", term.index),
                };
            }
            format!("{words}[{index}]")
        };
        let bits = match num.bits() {
            64 if whole => format!("((ulong){} | (ulong){} << 32)", word(0), word(1)),
            32 if whole => word(0),
            32 | 64 => return Err(unsupported(inst, "a push constant that is not aligned")),
            bits => {
                let at = format!("((uint)(0{}))", sum(offset, terms));
                let value = format!("({words}[{at} >> 2] >> (({at} & 3u) * 8u))");
                match bits {
                    8 => format!("((uchar){value})"),
                    _ => format!("((ushort){value})"),
                }
            }
        };
        if num.is_half() {
            self.help(Helper::HalfFloat);
            return Ok(format!("h_float({bits})"));
        }
        Ok(if num.unsigned() == num { bits } else { format!("as_{}({bits})", num.c(self.t.fp16)) })
    }

    fn input(&self, builtin: BuiltIn, num: Num, component: Option<&str>) -> String {
        let [x, y, z] = self.t.local_size;
        let lane = |at: &str| {
            let function = match builtin {
                BuiltIn::GlobalInvocationId => "get_global_id",
                BuiltIn::LocalInvocationId => "get_local_id",
                BuiltIn::NumWorkgroups => "get_num_groups",
                BuiltIn::WorkgroupId => "get_group_id",
                BuiltIn::LocalInvocationIndex => {
                    return format!(
                        "((uint)get_local_id(0) + {x}u * ((uint)get_local_id(1) + {y}u * (uint)get_local_id(2)))"
                    );
                }
                _ => return format!("({at} == 0 ? {x}u : {at} == 1 ? {y}u : {z}u)"),
            };
            format!("(uint){function}({at})")
        };
        let unsigned = num.unsigned();
        let value = match component {
            Some(component) => lane(component),
            None => {
                let lanes: Vec<String> = (0..num.n).map(|at| lane(&at.to_string())).collect();
                self.of_lanes(unsigned, &lanes)
            }
        };
        if unsigned == num { value } else { format!("as_{}({value})", num.c(self.t.fp16)) }
    }

    pub(super) fn store(
        &mut self,
        inst: &Inst,
        pointer: &Pointer,
        value: &str,
        leaves: &mut usize,
    ) -> Result<(), OpenClError> {
        match pointer {
            Pointer::Variable { path, bit: true, .. } => self.line(&format!("{path} = {value} ? -1 : 0;")),
            Pointer::Variable { path, .. } => self.line(&format!("{path} = {value};")),
            Pointer::Bytes { root: Root::Global { base, volatile }, offset, terms, to } => {
                match self.t.types.num(*to) {
                    Some(num) => self.store_global((base, *volatile), *offset, terms, num, value),
                    None => {
                        let from = Pointer::variable(value.to_owned(), Space::Private, *to);
                        self.copy(inst, pointer, &from, leaves)
                    }
                }
            }
            _ => Err(unsupported(inst, "a store to this")),
        }
    }

    fn store_global(
        &mut self,
        (base, volatile): (&str, bool),
        offset: u64,
        terms: &[Term],
        num: Num,
        value: &str,
    ) -> Result<(), OpenClError> {
        let space = if volatile { "__global volatile " } else { "__global " };
        let n = if num.n == 1 { String::new() } else { num.n.to_string() };
        if num.is_half() && !self.t.fp16 {
            return match simple(offset, terms, 2) {
                Some(index) if num.n == 1 => {
                    self.line(&format!("vstore_half_rte({value}, {index}, (__global half*){base});"))
                }
                _ => {
                    let sum = sum(offset, terms);
                    self.line(&format!("vstore_half{n}_rte({value}, 0, (__global half*)({base}{sum}));"))
                }
            };
        }
        let stored = num.unsigned();
        let name = stored.c(self.t.fp16);
        let value = if stored == num { value.to_owned() } else { format!("as_{name}({value})") };
        match (aligned(offset, terms, num), simple(offset, terms, u64::from(num.scalar.bytes() * num.n))) {
            (true, Some(index)) => self.line(&format!("(({space}{name}*){base})[{index}] = {value};")),
            (true, None) => self.line(&format!("*({space}{name}*)({base}{}) = {value};", sum(offset, terms))),
            (false, _) => {
                let name = stored.lane().c(self.t.fp16);
                let sum = sum(offset, terms);
                self.line(&format!("vstore{n}({value}, 0, (__global {name}*)({base}{sum}));"))
            }
        }
    }

    /// Copies what `from` points to, scalar by scalar where a side has an explicit layout.
    pub(super) fn copy(
        &mut self,
        inst: &Inst,
        to: &Pointer,
        from: &Pointer,
        leaves: &mut usize,
    ) -> Result<(), OpenClError> {
        *leaves += 1;
        if *leaves > MAX_LEAVES {
            return Err(OpenClError::TooLarge { what: "parts of a copy", limit: MAX_LEAVES });
        }
        if let Some(value) = self.load_num(inst, from)? {
            return self.store(inst, to, &value, leaves);
        }
        let ty = to.to().ok_or_else(|| unsupported(inst, "a copy of this"))?;
        let parts = match self.t.types.get(ty) {
            Type::Struct(members) => members.len() as u32,
            Type::Array { len: Some(len), .. } => *len,
            _ => return Err(unsupported(inst, "a copy of this type")),
        };
        for at in 0..parts {
            let (to, from) = (self.part_of(inst, to, at)?, self.part_of(inst, from, at)?);
            self.copy(inst, &to, &from, leaves)?;
        }
        Ok(())
    }

    /// Part `at` of an array or structure.
    fn part_of(&self, inst: &Inst, pointer: &Pointer, at: u32) -> Result<Pointer, OpenClError> {
        let no_part = || unsupported(inst, "a copy between these types");
        let whole = pointer.to().ok_or_else(no_part)?;
        let (part, array) = match self.t.types.get(whole) {
            Type::Struct(members) => (*members.get(at as usize).ok_or_else(no_part)?, false),
            Type::Array { element, .. } => (*element, true),
            _ => return Err(no_part()),
        };
        match pointer {
            Pointer::Variable { path, space, .. } => {
                let path = if array { format!("{path}.a[{at}]") } else { format!("{path}.m{at}") };
                Ok(Pointer::variable(path, *space, part))
            }
            Pointer::Bytes { root, offset, terms, .. } => {
                let plus = match array {
                    true => self.array_stride(inst, whole)?.wrapping_mul(u64::from(at)),
                    false => {
                        let offset = self.t.index.decoration(whole, Some(at), Decoration::Offset);
                        u64::from(offset.ok_or_else(no_part)?)
                    }
                };
                let (root, offset) = (root.clone(), offset.wrapping_add(plus));
                Ok(Pointer::Bytes { root, offset, terms: terms.clone(), to: part })
            }
            _ => Err(no_part()),
        }
    }
}

/// The index of an access to a plain array of elements of `bytes` bytes.
fn simple(offset: u64, terms: &[Term], bytes: u64) -> Option<String> {
    match terms {
        [] if offset.is_multiple_of(bytes) => Some((offset / bytes).to_string()),
        [term] if term.stride == bytes && offset == 0 => Some(term.index.clone()),
        _ => None,
    }
}

/// Offset and terms in bytes, to be added to something.
fn sum(offset: u64, terms: &[Term]) -> String {
    let mut text = String::new();
    for term in terms {
        let _ = write!(text, " + (long){} * {}", term.index, term.stride);
    }
    if offset != 0 || terms.is_empty() {
        let _ = write!(text, " + {}", offset as i64);
    }
    text
}

/// Whether the address suits the OpenCL vector type; a vector of three is never read as one.
fn aligned(offset: u64, terms: &[Term], num: Num) -> bool {
    let bytes = u64::from(num.scalar.bytes() * num.n);
    let power = |value: u64| if value == 0 { BASE_ALIGN } else { 1 << value.trailing_zeros() };
    let known = terms.iter().map(|term| power(term.stride)).chain([power(offset), BASE_ALIGN]).min();
    num.n == 1 || (num.n != 3 && known.is_some_and(|known| known >= bytes))
}
