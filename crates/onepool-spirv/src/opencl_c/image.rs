//! Images and buffers of texels: what they are passed as, and the instructions on them.
//!
//! A buffer of texels is an `image1d_buffer_t` where the device reads and writes its format, else a pointer. A
//! two-dimensional image is an `image2d_t`, or its rows in an `image1d_buffer_t`. OpenCL C 1.2 has no image that a
//! kernel both reads and writes. Reads beyond the edge give the edge's texel, writes there do nothing: each is
//! among what Vulkan allows.

use rspirv::dr::Operand;
use rspirv::spirv::{ImageOperands, Op};

use super::OpenClError;
use super::function::Body;
use super::helpers::Helper;
use super::module::{Global, Translator, unsupported};
use super::pointer::Pointer;
use super::types::{ImageType, Num};
use crate::parse::Inst;
use crate::reflect::BindingAccess;
use crate::types::{Element, ScalarType};

/// A format of texels that OpenCL and kernels agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TexelFormat {
    /// Four `float32`.
    Rgba32F,
    /// Four unsigned words.
    Rgba32U,
    /// Four signed words.
    Rgba32I,
    /// Four `float16`, which kernels see as `float32`.
    Rgba16F,
    /// One `float32`.
    R32F,
    /// One unsigned word.
    R32U,
    /// One signed word.
    R32I,
    /// One `float16`, which kernels see as a `float32`.
    R16F,
}

impl TexelFormat {
    /// Every format.
    pub const ALL: [TexelFormat; 8] = [
        TexelFormat::Rgba32F,
        TexelFormat::Rgba32U,
        TexelFormat::Rgba32I,
        TexelFormat::Rgba16F,
        TexelFormat::R32F,
        TexelFormat::R32U,
        TexelFormat::R32I,
        TexelFormat::R16F,
    ];

    /// Type and number of the components.
    pub const fn components(self) -> (ScalarType, u32) {
        match self {
            TexelFormat::Rgba32F => (ScalarType::F32, 4),
            TexelFormat::Rgba32U => (ScalarType::U32, 4),
            TexelFormat::Rgba32I => (ScalarType::I32, 4),
            TexelFormat::Rgba16F => (ScalarType::F16, 4),
            TexelFormat::R32F => (ScalarType::F32, 1),
            TexelFormat::R32U => (ScalarType::U32, 1),
            TexelFormat::R32I => (ScalarType::I32, 1),
            TexelFormat::R16F => (ScalarType::F16, 1),
        }
    }

    /// The format of a declared texel, where there is one.
    pub fn of(element: &Element) -> Option<TexelFormat> {
        let components = (element.scalar?, element.components);
        Self::ALL.into_iter().find(|format| format.components() == components)
    }

    /// Bytes of a texel.
    pub const fn bytes(self) -> u64 {
        let (scalar, components) = self.components();
        (scalar.bytes() * components) as u64
    }
}

/// A set of formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TexelFormats(u8);

impl TexelFormats {
    /// Every format.
    pub const ALL: TexelFormats = TexelFormats(u8::MAX);
    /// No format.
    pub const NONE: TexelFormats = TexelFormats(0);

    /// Whether `format` is in the set.
    pub const fn contains(self, format: TexelFormat) -> bool {
        self.0 & (1 << format as u8) != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<TexelFormat> for TexelFormats {
    fn from_iter<I: IntoIterator<Item = TexelFormat>>(formats: I) -> Self {
        TexelFormats(formats.into_iter().fold(0, |set, format| set | (1 << format as u8)))
    }
}

/// What two-dimensional images are on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Planes {
    /// It has none in buffers.
    #[default]
    None,
    /// Rows in an `image1d_buffer_t`: texels are fetched, written and sampled one at a time, never interpolated.
    Lines,
    /// An `image2d_t`.
    Images,
}

/// The images of a device that lie in its buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpenClImages {
    /// What an `image1d_buffer_t` reads and writes.
    pub texels: TexelFormats,
    /// Two-dimensional images.
    pub planes: Planes,
}

/// What stands for a binding among the kernel's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenClForm {
    /// A `__global` pointer, a `ulong` with the bytes bound if `bytes_follow`, and a `ulong` with the place of the
    /// binding's first byte after the pointer: a multiple of 16.
    Pointer {
        /// Whether the bytes bound are told.
        bytes_follow: bool,
    },
    /// An `image1d_buffer_t` and an `int4`: the texel that the binding begins with, texels of a row, rows, and texels
    /// from one row to the next. A buffer of texels is one row.
    Line,
    /// An `image2d_t`.
    Image {
        /// Whether a `sampler_t` follows: the kernel samples, and the sampler says how places are counted, what is
        /// beyond the edge and what between texels.
        sampler_follows: bool,
    },
}

/// How images are passed to functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Pointer,
    Line,
    Image,
}

impl Translator<'_> {
    /// Decides the form of every image. Its access is that of the binding.
    pub(super) fn read_forms(&mut self) -> Result<(), OpenClError> {
        let images: Vec<(u32, u32, ImageType)> = self
            .globals
            .iter()
            .filter_map(|(id, global)| match global {
                Global::Image { binding, image } => Some((*id, *binding, *image)),
                _ => None,
            })
            .collect();
        for (id, binding, image) in &images {
            let inst = self.module.def(*id).ok_or_else(|| OpenClError::invalid("a variable"))?;
            let alone = images.iter().all(|(_, other, ty)| other != binding || ty == image);
            let form = self.form_of(inst, image, self.access_of(*binding), alone)?;
            self.forms.insert(*binding, form);
        }
        Ok(())
    }

    fn form_of(
        &self,
        user: &Inst,
        image: &ImageType,
        access: BindingAccess,
        alone: bool,
    ) -> Result<Form, OpenClError> {
        if image.plane {
            return match self.images.planes {
                Planes::None => Err(unsupported(user, "an image, on a device without images in buffers,")),
                _ if access == BindingAccess::ReadWrite => {
                    Err(unsupported(user, "an image that is both read and written"))
                }
                _ if !alone => Err(unsupported(user, "one binding declared as two kinds of image")),
                Planes::Lines => Ok(Form::Line),
                Planes::Images => Ok(Form::Image),
            };
        }
        let known = TexelFormat::of(&image.element).is_some_and(|f| self.images.texels.contains(f));
        match known && alone && access != BindingAccess::ReadWrite {
            true => Ok(Form::Line),
            false if image.element.scalar == Some(image.value.scalar) => Ok(Form::Pointer),
            false => Err(unsupported(user, "a buffer of texels of this format, on this device,")),
        }
    }

    /// The form of an image that is the parameter of a function.
    pub(super) fn form_of_param(&self, user: &Inst, image: &ImageType) -> Result<Form, OpenClError> {
        // One that is handed on may be read and written there.
        let access = if image.storage { BindingAccess::ReadWrite } else { BindingAccess::Read };
        self.form_of(user, image, access, true)
    }

    fn access_of(&self, binding: u32) -> BindingAccess {
        let info = self.reflection.bindings.iter().find(|info| info.binding == binding);
        info.map_or(BindingAccess::Read, |info| info.access)
    }

    /// A binding as the parameter of the kernel or a function, with what belongs to it.
    pub(super) fn binding_param(&self, binding: u32) -> String {
        let name = format!("b{binding}");
        match self.forms.get(&binding) {
            Some(form @ (Form::Line | Form::Image)) => {
                self.image_param(&name, *form, self.access_of(binding), self.is_sampled(binding))
            }
            _ if self.sized.contains(&binding) => format!("__global uchar* {name}, ulong {name}_bytes"),
            _ => format!("__global uchar* {name}"),
        }
    }

    /// An image as a parameter.
    pub(super) fn image_param(&self, name: &str, form: Form, access: BindingAccess, sampled: bool) -> String {
        let qualifier = if access.writes() { "write_only" } else { "read_only" };
        match form {
            Form::Pointer => format!("__global uchar* {name}"),
            Form::Line => format!("{qualifier} image1d_buffer_t {name}, int4 {name}_at"),
            Form::Image if sampled => format!("{qualifier} image2d_t {name}, sampler_t {name}_s"),
            Form::Image => format!("{qualifier} image2d_t {name}"),
        }
    }

    /// The same as arguments.
    pub(super) fn image_args(&self, name: &str, form: Form, sampled: bool) -> String {
        match form {
            Form::Pointer => name.to_owned(),
            Form::Line => format!("{name}, {name}_at"),
            Form::Image if sampled => format!("{name}, {name}_s"),
            Form::Image => name.to_owned(),
        }
    }

    /// A binding as arguments of a function.
    pub(super) fn binding_args(&self, binding: u32) -> String {
        let name = format!("b{binding}");
        match self.forms.get(&binding) {
            Some(form @ (Form::Line | Form::Image)) => {
                self.image_args(&name, *form, self.is_sampled(binding))
            }
            _ if self.sized.contains(&binding) => format!("{name}, {name}_bytes"),
            _ => name,
        }
    }

    fn is_sampled(&self, binding: u32) -> bool {
        let sampled = |global: &Global| matches!(global, Global::Image { binding: at, image } if *at == binding && self.samples(image));
        self.globals.values().any(sampled)
    }

    /// Whether a sampler goes with images of the type.
    pub(super) fn samples(&self, image: &ImageType) -> bool {
        image.plane && !image.storage && self.has_samples
    }

    /// What stands for a binding.
    pub(super) fn binding_form(&self, binding: u32) -> OpenClForm {
        match self.forms.get(&binding) {
            Some(Form::Line) => OpenClForm::Line,
            Some(Form::Image) => OpenClForm::Image { sampler_follows: self.is_sampled(binding) },
            _ => OpenClForm::Pointer { bytes_follow: self.sized.contains(&binding) },
        }
    }

    /// Whether every binding is an image: PoCL 3.1 crashes on kernels whose only memory is one in a buffer, so
    /// the buffer is passed too.
    pub(super) fn memory_follows(&self) -> bool {
        let image = |binding: u32| !matches!(self.binding_form(binding), OpenClForm::Pointer { .. });
        let bindings = &self.reflection.bindings;
        !bindings.is_empty() && bindings.iter().all(|info| image(info.binding))
    }
}

/// Whether an instruction is one on images that [`Body::image`] writes.
pub(super) fn is_image_op(op: Op) -> bool {
    matches!(
        op,
        Op::Image
            | Op::ImageFetch
            | Op::ImageRead
            | Op::ImageWrite
            | Op::ImageQuerySize
            | Op::ImageQuerySizeLod
            | Op::ImageSampleExplicitLod
            | Op::ImageSampleImplicitLod
    )
}

impl Body<'_, '_> {
    /// An instruction on an image.
    pub(super) fn image(&mut self, inst: &Inst) -> Result<(), OpenClError> {
        let pointer = self.pointer(inst, inst.id(0)?)?;
        let Pointer::Image { base, image, form } = &pointer else {
            return Err(unsupported(inst, "this image"));
        };
        match inst.op() {
            Op::Image => {
                self.pointers.insert(inst.inst.result_id.unwrap_or(0), pointer.clone());
                Ok(())
            }
            Op::ImageQuerySize | Op::ImageQuerySizeLod => self.image_size(inst, base, image, *form),
            Op::ImageWrite => self.image_write(inst, base, image, *form),
            _ => self.image_read(inst, base, image, *form),
        }
    }

    fn image_size(
        &mut self,
        inst: &Inst,
        base: &str,
        image: &ImageType,
        form: Form,
    ) -> Result<(), OpenClError> {
        let result = self.result(inst)?;
        if !result.is_int() || result.bits() != 32 || result.n != image.axes() {
            return Err(unsupported(inst, "the size of an image as this type"));
        }
        let size = match form {
            Form::Pointer if !base.starts_with('b') => {
                return Err(unsupported(inst, "the size of an image that is an argument"));
            }
            Form::Pointer => {
                let name = result.c(self.t.fp16);
                let size = format!("({name})({base}_bytes / {}ul)", image.element.stride);
                return self.set(inst, &size);
            }
            Form::Line if image.plane => format!("{base}_at.yz"),
            Form::Line => format!("{base}_at.y"),
            Form::Image => format!("get_image_dim({base})"),
        };
        let size = self.cast(size, result.signed(), result);
        self.set(inst, &size)
    }

    /// A place in texels, operand 1 of `inst`, as an `int2`.
    fn place(&mut self, inst: &Inst, image: &ImageType) -> Result<String, OpenClError> {
        let (at, num) = self.typed(inst, 1)?;
        if !num.is_int() || num.bits() != 32 || num.n != image.axes() {
            return Err(unsupported(inst, "a place in an image of this type"));
        }
        let at = self.cast(at, num, num.signed());
        Ok(if image.plane { at } else { format!("(int2)({at}, 0)") })
    }

    fn image_write(
        &mut self,
        inst: &Inst,
        base: &str,
        image: &ImageType,
        form: Form,
    ) -> Result<(), OpenClError> {
        if inst.inst.operands.len() > 3 {
            return Err(unsupported(inst, "a texel written with operands"));
        }
        let (texel, given) = self.typed(inst, 2)?;
        let (value, components) = (image.value, image.element.components);
        if given.scalar != value.scalar || given.n < components {
            return Err(unsupported(inst, "a texel of this type"));
        }
        let lane = |at: u32| if at < given.n { self.lane(&texel, given, at) } else { "0".to_owned() };
        if form == Form::Pointer {
            let stored = value.components(components);
            let name = stored.unsigned().c(self.t.fp16);
            let lanes: Vec<String> = (0..components).map(lane).collect();
            let texel = self.of_lanes(stored, &lanes);
            let at = self.operand(inst, 1)?;
            return self.line(&format!("((__global {name}*){base})[{at}] = as_{name}({texel});"));
        }
        let lanes: Vec<String> = (0..4).map(lane).collect();
        let texel = self.of_lanes(value.components(4), &lanes);
        let at = self.place(inst, image)?;
        let write = format!("write_image{}", suffix(value));
        match form {
            Form::Line => {
                self.help(Helper::LineHas);
                self.help(Helper::LineAt);
                self.line(&format!(
                    "if (line_has({base}_at, {at})) {{ {write}({base}, line_at({base}_at, {at}), {texel}); }}"
                ))
            }
            _ => {
                self.help(Helper::PlaneHas);
                let size = format!("get_image_dim({base})");
                self.line(&format!("if (plane_has({size}, {at})) {{ {write}({base}, {at}, {texel}); }}"))
            }
        }
    }

    fn image_read(
        &mut self,
        inst: &Inst,
        base: &str,
        image: &ImageType,
        form: Form,
    ) -> Result<(), OpenClError> {
        only_level(inst)?;
        let (value, components) = (image.value, image.element.components);
        if self.result(inst)? != value {
            return Err(unsupported(inst, "a texel of this type"));
        }
        let sampled = matches!(inst.op(), Op::ImageSampleExplicitLod | Op::ImageSampleImplicitLod);
        if sampled && (!image.plane || image.storage) {
            return Err(unsupported(inst, "a sample of this image"));
        }
        if form == Form::Pointer {
            let part = value.components(components);
            let name = part.unsigned().c(self.t.fp16);
            let at = self.operand(inst, 1)?;
            let read = format!("((__global {name}*){base})[{at}]");
            let read = self.cast(read, part.unsigned(), part);
            return self.set_texel(inst, &read, part);
        }
        let read = format!("read_image{}", suffix(value));
        let texel = match (form, sampled) {
            (Form::Line, _) => {
                self.help(Helper::LineAt);
                let at = match sampled {
                    // The texel that holds the place.
                    true => format!("convert_int2_sat_rtn({})", self.sample_place(inst)?),
                    false => self.place(inst, image)?,
                };
                format!("{read}({base}, line_at({base}_at, {at}))")
            }
            (_, true) => format!("{read}({base}, {base}_s, {})", self.sample_place(inst)?),
            (_, false) => {
                self.help(Helper::EdgeSampler);
                format!("{read}({base}, edge_, {})", self.place(inst, image)?)
            }
        };
        match components {
            4 => self.set(inst, &texel),
            1 => self.set_texel(inst, &format!("{texel}.s0"), value.lane()),
            _ => Err(unsupported(inst, "a texel of this format")),
        }
    }

    /// Gives the result of `inst` the components of `read`; those that it lacks are 0, 0 and 1.
    fn set_texel(&mut self, inst: &Inst, read: &str, part: Num) -> Result<(), OpenClError> {
        if part.n == 4 {
            return self.set(inst, read);
        }
        let mut lanes: Vec<String> = (0..part.n).map(|lane| self.lane(read, part, lane)).collect();
        while lanes.len() < 4 {
            lanes.push(if lanes.len() == 3 { "1" } else { "0" }.to_owned());
        }
        let texel = self.of_lanes(part.components(4), &lanes);
        self.set(inst, &texel)
    }

    /// Where a sample is taken.
    fn sample_place(&mut self, inst: &Inst) -> Result<String, OpenClError> {
        let (at, num) = self.typed(inst, 1)?;
        match (num.scalar, num.n) {
            (ScalarType::F32, 2) => Ok(at),
            _ => Err(unsupported(inst, "a place in an image of this type")),
        }
    }
}

/// An image in a buffer has one level, so that any level is that one; other operands mean something.
fn only_level(inst: &Inst) -> Result<(), OpenClError> {
    match inst.inst.operands.get(2..).unwrap_or(&[]) {
        [] => Ok(()),
        [Operand::ImageOperands(mask), _] if *mask == ImageOperands::LOD => Ok(()),
        _ => Err(unsupported(inst, "a texel read with operands other than a level")),
    }
}

/// What the built-in functions of a type of texel end in.
fn suffix(value: Num) -> &'static str {
    match value.scalar {
        ScalarType::I32 => "i",
        ScalarType::U32 => "ui",
        _ => "f",
    }
}
