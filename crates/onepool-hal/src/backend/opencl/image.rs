//! Images over buffers: what a device offers, what each is created from, and what holds when it is tried.
//!
//! A row of texels is an `image1d_buffer_t` (OpenCL 1.2), an image of rows an `image2d_t` over a buffer
//! (`cl_khr_image2d_from_buffer`) where the device has those, else its rows in an `image1d_buffer_t`. What a driver
//! lists is not believed: PoCL 3.1 lists half-precision images of one channel and neither reads nor writes them.

use cl3::memory as cl;

use super::handle::{Backing, Context, DeviceId, ImageCall, Kernel, Mem, Queue, RawMem, Sampler, Shape};
use crate::backend::{DeviceError, Limits};
use onepool_core::memory::image::{Grain, ImageDesc, ImageRules, Texel, TexelSet};
use onepool_spirv::ScalarType;
use onepool_spirv::opencl_c::{OpenClImages, Planes, TexelFormat};

/// Texels of a row that is tried, and rows.
const WIDTH: usize = 37;
const HEIGHT: usize = 5;
/// What surrounds the texels that are tried.
const UNTOUCHED: u8 = 0xa5;

/// Answers of `clGetDeviceInfo` about images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageFacts {
    pub(super) supported: bool,
    pub(super) version: (u32, u32),
    /// Whether `cl_khr_image2d_from_buffer` is among the extensions.
    pub(super) from_buffer: bool,
    pub(super) max_width: u64,
    pub(super) max_height: u64,
    /// Texels of an image over a buffer.
    pub(super) max_texels: u64,
    /// In texels; 0 where there are no two-dimensional images over buffers.
    pub(super) pitch_alignment: u64,
    /// In texels.
    pub(super) base_alignment: u64,
}

impl ImageFacts {
    /// The alignment of rows and of the first texel of two-dimensional images, both in texels.
    fn planes(&self) -> Result<(u64, u64), String> {
        let (pitch, base) = (self.pitch_alignment, self.base_alignment);
        // Part of OpenCL 2.0, and what an alignment other than 0 tells in 3.0 (section 4.2 of the specification).
        if !self.from_buffer && self.version < (2, 0) {
            return Err("it has no cl_khr_image2d_from_buffer".to_owned());
        }
        if pitch == 0 || base == 0 {
            return Err(format!(
                "it says that rows are aligned to {pitch} texels and images to {base}, so that it makes none of \
                 buffers"
            ));
        }
        if !base.is_power_of_two() || base > 1 << 16 || pitch > 1 << 16 {
            return Err(format!("rows aligned to {pitch} texels and images to {base} are not understood"));
        }
        Ok((pitch, base))
    }

    /// The rules for images of rows, of these texels.
    fn rules(
        &self,
        planes: Planes,
        texels: TexelSet,
        filtered: TexelSet,
        limits: &Limits,
    ) -> Option<ImageRules> {
        let most = self.max_texels.min(i32::MAX as u64);
        let side = |n: u64| u32::try_from(n.min(i32::MAX as u64)).unwrap_or(0);
        let rules = ImageRules {
            pitch: Grain::Texels(1),
            base: Grain::Bytes(limits.argument_alignment),
            rows: 1,
            max_width: side(most),
            max_height: side(most),
            max_texels: most,
            sampled: texels,
            stored: texels,
            filtered: TexelSet::default(),
            // OpenCL does not tell with how many bits it interpolates.
            filter_bits: 0,
            over_imports: false,
        };
        if most == 0 || texels == TexelSet::default() {
            return None;
        }
        match planes {
            Planes::None => None,
            Planes::Lines => Some(rules),
            Planes::Images => {
                let (pitch, base) = self.planes().ok()?;
                let widest = Texel::Rgba32F.bytes();
                Some(ImageRules {
                    pitch: Grain::Texels(pitch),
                    // A part of a buffer begins there too; both are powers of two.
                    base: Grain::Bytes(limits.argument_alignment.max(base * widest)),
                    max_width: side(self.max_width),
                    max_height: side(self.max_height),
                    max_texels: u64::MAX,
                    filtered,
                    ..rules
                })
            }
        }
    }
}

/// The images that a device was found to have.
#[derive(Debug, Default)]
pub(super) struct Images {
    pub(super) offer: OpenClImages,
    pub(super) rules: Option<ImageRules>,
    /// Texels of a row over a buffer.
    pub(super) max_texels: u64,
    /// Whether a row may lie over a part of a buffer; else it lies over the whole.
    pub(super) parts: bool,
    /// Nearest and linear: places are counted in texels, and beyond the edge is the edge's texel.
    pub(super) samplers: Option<[Sampler; 2]>,
    /// What a person ought to know.
    pub(super) words: Vec<String>,
}

/// The format of a texel.
pub(super) fn format_of(texel: Texel) -> TexelFormat {
    match texel {
        Texel::R16F => TexelFormat::R16F,
        Texel::R32F => TexelFormat::R32F,
        Texel::Rgba16F => TexelFormat::Rgba16F,
        Texel::Rgba32F => TexelFormat::Rgba32F,
    }
}

/// What an image of rows is created from.
pub(super) fn plane_call(image: &ImageDesc) -> ImageCall {
    ImageCall {
        format: format_of(image.texel),
        shape: Shape::Plane {
            width: image.width as usize,
            height: image.height as usize,
            pitch: usize::try_from(image.row_pitch).unwrap_or(usize::MAX),
        },
    }
}

/// The place of an image's rows in a row of texels, as the kernel is told: the first texel, texels of a row,
/// rows, texels from one row to the next.
pub(super) fn line_of(first: u64, width: u64, height: u64, pitch: u64) -> Option<[i32; 4]> {
    let last = pitch.checked_mul(height.saturating_sub(1))?.checked_add(width)?.checked_add(first)?;
    i32::try_from(last).ok()?;
    let [first, width, height, pitch] = [first, width, height, pitch].map(i32::try_from);
    Some([first.ok()?, width.ok()?, height.ok()?, pitch.ok()?])
}

/// Tries the images of a device; where anything fails it has none, and the words say why.
pub(super) fn try_images(context: &Context, device: DeviceId, facts: &ImageFacts, limits: &Limits) -> Images {
    let none = |why: String| Images { words: vec![why], ..Images::default() };
    if !facts.supported {
        return none("it has no images, so kernels read textures as buffers".to_owned());
    }
    let trial = Trial::new(context, device, limits, facts.planes().is_ok());
    match trial.and_then(|trial| trial.run(facts, limits)) {
        Ok(images) => images,
        Err(error) => none(format!("tried: images over buffers do not work ({error})")),
    }
}

const SOURCE: &str = "
#define LINE(name, T, read, write, one) \\
__kernel void name(read_only image1d_buffer_t x, write_only image1d_buffer_t y, __global T *seen, int from, int to) \\
{ const int i = get_global_id(0); const T v = read(x, from + i); seen[i] = v; write(y, to + i, v + one); }
LINE(line_f, float4, read_imagef, write_imagef, 1.0f)
LINE(line_i, int4, read_imagei, write_imagei, 1)
LINE(line_u, uint4, read_imageui, write_imageui, 1u)
";

const PLANE_SOURCE: &str = "
__kernel void plane(read_only image2d_t x, write_only image2d_t y, sampler_t s, float right, __global float4 *seen)
{
    const int2 at = (int2)(get_global_id(0), get_global_id(1));
    const float4 v = read_imagef(x, s, convert_float2(at) + (float2)(0.5f + right, 0.5f));
    seen[at.y * get_global_size(0) + at.x] = v;
    write_imagef(y, at, v + 1.0f);
}
";

/// Texels of the largest buffers that are usual.
const LARGE_BUFFER: u64 = 1 << 26;

/// What trying needs.
struct Trial<'c> {
    context: &'c Context,
    device: DeviceId,
    queue: Queue,
    /// Holds the texels that are read and those that are written.
    memory: Mem,
    seen: Mem,
    bytes: usize,
    /// Where the texels are that are read, and that are written.
    from: usize,
    to: usize,
}

impl<'c> Trial<'c> {
    fn new(
        context: &'c Context,
        device: DeviceId,
        limits: &Limits,
        planes: bool,
    ) -> Result<Self, DeviceError> {
        // Room for rows and places of any alignment that is understood, and something around each image.
        let (half, from) = if planes { (8 << 20, 1 << 20) } else { (64 << 10, 4 << 10) };
        if !(from as u64).is_multiple_of(limits.argument_alignment) {
            let what = format!("parts of buffers at other multiples than of {}", limits.argument_alignment);
            return Err(DeviceError::Unsupported { what });
        }
        // SAFETY: memory of the driver's.
        let (memory, seen) = unsafe {
            (
                context.buffer(Backing::Device, 2 * half)?,
                context.buffer(Backing::Device, WIDTH * HEIGHT * 16)?,
            )
        };
        let queue = context.queue(device, false)?;
        Ok(Trial { context, device, queue, memory, seen, bytes: 2 * half, from, to: half + from })
    }

    fn run(&self, facts: &ImageFacts, limits: &Limits) -> Result<Images, DeviceError> {
        let program = self.context.program_from_source(SOURCE)?;
        self.build(&program)?;
        let mut kernels = [c"line_f", c"line_i", c"line_u"].map(|name| program.kernel(name));
        let listed = self.context.image_formats(cl::CL_MEM_OBJECT_IMAGE1D_BUFFER)?;
        let max_texels = facts.max_texels.min(i32::MAX as u64);
        let mut images = Images { max_texels, ..Images::default() };
        let call = ImageCall { format: TexelFormat::Rgba32F, shape: Shape::Line { width: WIDTH } };
        let part = self.memory.part(self.from, WIDTH * 16)?;
        let over_parts = self.context.image(&call, part.raw()).is_ok();
        let over_whole = max_texels >= (self.bytes / 2) as u64;
        // One image over the whole spares sub-buffers that overlap, where an image may be as large as buffers are.
        let mut ways = [(false, over_whole), (true, over_parts)];
        if max_texels < LARGE_BUFFER {
            ways.reverse();
        }
        for parts in ways.into_iter().filter_map(|(p, has)| has.then_some(p)) {
            let mut works = |format: &TexelFormat| {
                let at = match format.components().0 {
                    ScalarType::I32 => 1,
                    ScalarType::U32 => 2,
                    _ => 0,
                };
                let Some(Ok(kernel)) = kernels.get_mut(at) else { return false };
                let found = self.line(kernel, *format, parts);
                tracing::debug!(target: "onepool::opencl", ?format, parts, ?found, "texels");
                matches!(found, Ok(true))
            };
            images.parts = parts;
            images.offer.texels = listed.iter().copied().filter(&mut works).collect();
            if !images.offer.texels.is_empty() {
                break;
            }
        }
        let planes = facts.planes().and_then(|_| {
            let works = self.planes(facts, limits, &mut images).map_err(|error| error.to_string())?;
            works.then_some(()).ok_or_else(|| "tried: their texels are wrong".to_owned())
        });
        if let Err(why) = planes {
            images.samplers = None;
            images.offer.planes = Planes::Lines;
            let has = |texel: &Texel| images.offer.texels.contains(format_of(*texel));
            let texels = Texel::ALL.into_iter().filter(has).collect();
            images.rules = facts.rules(Planes::Lines, texels, TexelSet::default(), limits);
            images.words.push(format!(
                "textures are rows of texels without interpolation (image1d_buffer_t), and no two-dimensional images \
                 over buffers: {why}"
            ));
        }
        if images.rules.is_none() {
            images.offer.planes = Planes::None;
        }
        let lacks = |texel: &&Texel| images.rules.as_ref().is_none_or(|r| !r.sampled.contains(**texel));
        let lacking: Vec<String> =
            Texel::ALL.iter().filter(lacks).map(|texel| format!("{texel:?}")).collect();
        if !lacking.is_empty() {
            images.words.push(format!("tried: images over buffers of {} do not work", lacking.join(", ")));
        }
        Ok(images)
    }

    fn build(&self, program: &super::handle::Program) -> Result<(), DeviceError> {
        program.build("images", self.device, c"-cl-std=CL1.2")
    }

    /// Whether a row of texels is read and written as its bytes say.
    fn line(&self, kernel: &mut Kernel, format: TexelFormat, parts: bool) -> Result<bool, DeviceError> {
        let bytes = format.bytes() as usize;
        let row = |offset: usize| -> Result<(Option<Mem>, Mem, usize), DeviceError> {
            if parts {
                let part = self.memory.part(offset, WIDTH * bytes)?;
                let call = ImageCall { format, shape: Shape::Line { width: WIDTH } };
                let image = self.context.image(&call, part.raw())?;
                return Ok((Some(part), image, 0));
            }
            let call = ImageCall { format, shape: Shape::Line { width: self.bytes / bytes } };
            Ok((None, self.context.image(&call, self.memory.raw())?, offset / bytes))
        };
        let (_x_part, x, from) = row(self.from)?;
        let (_y_part, y, to) = row(self.to)?;
        let pitch = WIDTH * bytes;
        self.write(format, 1, pitch)?;
        kernel.set_memory(0, x.raw())?;
        kernel.set_memory(1, y.raw())?;
        kernel.set_memory(2, self.seen.raw())?;
        kernel.set_bytes(3, &(from as i32).to_ne_bytes())?;
        kernel.set_bytes(4, &(to as i32).to_ne_bytes())?;
        // SAFETY: the arguments are set; the memory lives until the wait is over.
        unsafe { self.queue.nd_range(kernel, &[WIDTH, 1, 1], &[1, 1, 1])? }.wait()?;
        Ok(self.check_seen(format, 1)? && self.check_bytes(format, 1, pitch)?)
    }

    /// Tries two-dimensional images of every texel; whether some work.
    fn planes(&self, facts: &ImageFacts, limits: &Limits, images: &mut Images) -> Result<bool, DeviceError> {
        let listed = self.context.image_formats(cl::CL_MEM_OBJECT_IMAGE2D)?;
        let program = self.context.program_from_source(PLANE_SOURCE)?;
        self.build(&program)?;
        let mut kernel = program.kernel(c"plane")?;
        let samplers = [self.context.sampler(false)?, self.context.sampler(true)?];
        let all = facts.rules(Planes::Images, TexelSet::ALL, TexelSet::default(), limits);
        let Some(all) = all else { return Ok(false) };
        let (mut works, mut filters) = (Vec::new(), Vec::new());
        for texel in Texel::ALL.into_iter().filter(|texel| listed.contains(&format_of(*texel))) {
            match self.plane(&mut kernel, &samplers, &all, texel) {
                Ok(Some(filter)) => {
                    works.push(texel);
                    filters.extend(filter.then_some(texel));
                }
                Ok(None) => tracing::debug!(target: "onepool::opencl", ?texel, "images are wrong"),
                Err(error) => tracing::debug!(target: "onepool::opencl", ?texel, %error, "no images"),
            }
        }
        let (works, filters) = (works.into_iter().collect(), filters.into_iter().collect());
        images.rules = facts.rules(Planes::Images, works, filters, limits);
        images.offer.planes = Planes::Images;
        images.samplers = Some(samplers);
        Ok(images.rules.is_some())
    }

    /// Whether images of `texel` hold what their bytes say, and whether they interpolate.
    fn plane(
        &self,
        kernel: &mut Kernel,
        samplers: &[Sampler; 2],
        rules: &ImageRules,
        texel: Texel,
    ) -> Result<Option<bool>, DeviceError> {
        let refuse = |what: &str| DeviceError::Unsupported { what: what.to_owned() };
        let image = rules
            .describe(texel, WIDTH as u64, HEIGHT as u64)
            .map_err(|error| DeviceError::Unsupported { what: error.to_string() })?;
        let (format, call) = (format_of(texel), plane_call(&image));
        let Shape::Plane { pitch, .. } = call.shape else { return Err(refuse("this image")) };
        let bytes = usize::try_from(rules.memory_bytes(&image)).unwrap_or(usize::MAX);
        if self.from.saturating_add(bytes) > self.bytes / 2 {
            return Err(refuse("an image of this size"));
        }
        let (x, y) = (self.memory.part(self.from, bytes)?, self.memory.part(self.to, bytes)?);
        let (x_image, y_image) = (self.context.image(&call, x.raw())?, self.context.image(&call, y.raw())?);
        let mut run = |sampler: &Sampler, right: f32| -> Result<(), DeviceError> {
            self.write(format, HEIGHT, pitch)?;
            kernel.set_memory(0, x_image.raw())?;
            kernel.set_memory(1, y_image.raw())?;
            kernel.set_sampler(2, sampler)?;
            kernel.set_bytes(3, &right.to_ne_bytes())?;
            kernel.set_memory(4, self.seen.raw())?;
            // SAFETY: the arguments are set; the memory lives until the wait is over.
            unsafe { self.queue.nd_range(kernel, &[WIDTH, HEIGHT, 1], &[1, 1, 1])? }.wait()
        };
        let [nearest, linear] = samplers;
        run(nearest, 0.0)?;
        if !self.check_seen(format, HEIGHT)? || !self.check_bytes(format, HEIGHT, pitch)? {
            return Ok(None);
        }
        run(linear, 0.5)?;
        let seen = self.read(&self.seen, 0, WIDTH * HEIGHT * 16)?;
        let between = (0..WIDTH * HEIGHT).all(|at| {
            let next = if at % WIDTH + 1 == WIDTH { at } else { at + 1 };
            let want = (number(format, at, 0) + number(format, next, 0)) as f32 / 2.0;
            let found = seen.get(at * 16..at * 16 + 4).and_then(|bytes| bytes.try_into().ok());
            // The numbers are small and half a texel is exact in any number of bits.
            found.is_some_and(|bytes| (f32::from_ne_bytes(bytes) - want).abs() < 1e-3)
        });
        Ok(Some(between))
    }

    /// The numbers as texels in the rows that are read; everything else untouched.
    fn write(&self, format: TexelFormat, rows: usize, pitch: usize) -> Result<(), DeviceError> {
        let mut bytes = vec![UNTOUCHED; self.bytes];
        place(&mut bytes, format, rows, pitch, self.from, 0);
        let from = std::ptr::NonNull::from(bytes.as_mut_slice()).cast();
        // SAFETY: as many bytes as the memory has, which no command uses.
        unsafe { self.queue.write(&self.memory, 0, from, self.bytes) }
    }

    /// Whether the kernel saw the numbers.
    fn check_seen(&self, format: TexelFormat, rows: usize) -> Result<bool, DeviceError> {
        let seen = self.read(&self.seen, 0, rows * WIDTH * 16)?;
        let (scalar, components) = format.components();
        let scalar = if scalar == ScalarType::F16 { ScalarType::F32 } else { scalar };
        Ok((0..rows * WIDTH).all(|at| {
            (0..components as usize).all(|lane| {
                let want = component(scalar, number(format, at, lane));
                seen.get(at * 16 + lane * 4..at * 16 + lane * 4 + 4) == Some(want.as_slice())
            })
        }))
    }

    /// Whether the numbers, each one more, are in the rows that are written and everything else is as it was.
    fn check_bytes(&self, format: TexelFormat, rows: usize, pitch: usize) -> Result<bool, DeviceError> {
        let mut want = vec![UNTOUCHED; self.bytes];
        place(&mut want, format, rows, pitch, self.from, 0);
        place(&mut want, format, rows, pitch, self.to, 1);
        Ok(self.read(&self.memory, 0, self.bytes)? == want)
    }

    fn read(&self, memory: &Mem, offset: usize, bytes: usize) -> Result<Vec<u8>, DeviceError> {
        let mut data = vec![0u8; bytes];
        let to = std::ptr::NonNull::from(data.as_mut_slice()).cast();
        // SAFETY: as many writable bytes, and the memory has as many.
        unsafe { self.queue.read(memory, offset, to, bytes)? };
        Ok(data)
    }
}

/// A small number for a component of a texel.
fn number(format: TexelFormat, at: usize, lane: usize) -> i32 {
    let n = ((at * 7 + lane * 3) % 50) as i32;
    if format.components().0 == ScalarType::U32 { n } else { n - 20 }
}

/// The bytes of a number.
fn component(scalar: ScalarType, n: i32) -> Vec<u8> {
    match scalar {
        ScalarType::F16 => half::f16::from_f32(n as f32).to_ne_bytes().to_vec(),
        ScalarType::F32 => (n as f32).to_ne_bytes().to_vec(),
        _ => n.to_ne_bytes().to_vec(),
    }
}

/// Puts the numbers, each with `plus` added, where an image at `first` has them.
fn place(bytes: &mut [u8], format: TexelFormat, rows: usize, pitch: usize, first: usize, plus: i32) {
    let (scalar, components) = format.components();
    for at in 0..rows * WIDTH {
        let texel: Vec<u8> = (0..components as usize)
            .flat_map(|lane| component(scalar, number(format, at, lane) + plus))
            .collect();
        let offset = first + at / WIDTH * pitch + at % WIDTH * texel.len();
        if let Some(to) = bytes.get_mut(offset..offset + texel.len()) {
            to.copy_from_slice(&texel);
        }
    }
}

/// A row of texels in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) image: RawMem,
    /// The texel of the image that is the row's first.
    pub(super) first: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use onepool_core::memory::image::ImageRefusal;

    fn facts() -> ImageFacts {
        ImageFacts {
            supported: true,
            version: (1, 2),
            from_buffer: true,
            max_width: 16_384,
            max_height: 8192,
            max_texels: 1 << 27,
            pitch_alignment: 64,
            base_alignment: 128,
        }
    }

    fn limits(alignment: u64) -> Limits {
        Limits {
            max_argument_bytes: 1 << 30,
            max_buffer_bytes: 1 << 30,
            argument_alignment: alignment,
            texel_alignment: alignment,
            max_texels: 1 << 26,
            max_groups: [1 << 16; 3],
            max_group_items: 256,
            max_group_size: [256; 3],
            max_local_bytes: 1 << 15,
            max_params_bytes: 256,
            max_arguments: 48,
            non_coherent_atom: 1,
        }
    }

    #[test]
    fn a_device_says_whether_it_has_two_dimensional_images() {
        assert_eq!(facts().planes(), Ok((64, 128)));
        // Part of 2.0, and of 3.0 where the numbers say so.
        for version in [(2, 0), (2, 1), (3, 0)] {
            assert_eq!(ImageFacts { from_buffer: false, version, ..facts() }.planes(), Ok((64, 128)));
        }
        let refused = |facts: ImageFacts| facts.planes().unwrap_err();
        assert!(refused(ImageFacts { from_buffer: false, ..facts() }).contains("cl_khr_image2d_from_buffer"));
        // What PoCL 3.1 answers.
        let pocl = ImageFacts {
            from_buffer: false,
            version: (3, 0),
            pitch_alignment: 0,
            base_alignment: 0,
            ..facts()
        };
        assert!(refused(pocl).contains("makes none"));
        assert!(refused(ImageFacts { pitch_alignment: 0, ..facts() }).contains("0 texels"));
        assert!(refused(ImageFacts { base_alignment: 96, ..facts() }).contains("not understood"));
        assert!(refused(ImageFacts { pitch_alignment: 1 << 20, ..facts() }).contains("not understood"));
    }

    #[test]
    fn rows_are_counted_in_texels_and_places_suit_parts_of_buffers() {
        let rules = |alignment| {
            facts().rules(Planes::Images, TexelSet::ALL, TexelSet::ALL, &limits(alignment)).unwrap()
        };
        // 67 texels are padded to 128, whatever their size.
        for (texel, pitch) in [(Texel::R16F, 256), (Texel::R32F, 512), (Texel::Rgba32F, 2048)] {
            let image = rules(128).describe(texel, 67, 5).unwrap();
            assert_eq!(image.row_pitch, pitch);
            assert_eq!(rules(128).memory_bytes(&image), 5 * pitch);
            // 128 of the largest texels, and where a part of a buffer may begin.
            assert_eq!(rules(128).alignment(&image), 2048);
            assert_eq!(rules(1 << 16).alignment(&image), 1 << 16);
        }
        let rules = rules(128);
        assert_eq!((rules.max_width, rules.max_height, rules.filter_bits), (16_384, 8192, 0));
        assert!(rules.filtered == TexelSet::ALL && rules.pitch == Grain::Texels(64));
        // A pitch that is no power of two is a multiple all the same.
        let odd = ImageFacts { pitch_alignment: 48, ..facts() };
        let odd = odd.rules(Planes::Images, TexelSet::ALL, TexelSet::ALL, &limits(128)).unwrap();
        assert_eq!(odd.describe(Texel::R32F, 49, 1).unwrap().row_pitch, 96 * 4);
    }

    #[test]
    fn rows_in_a_line_are_dense_and_few_enough() {
        let texels: TexelSet = [Texel::R32F, Texel::Rgba32F].into_iter().collect();
        let rules = facts().rules(Planes::Lines, texels, TexelSet::ALL, &limits(128)).unwrap();
        let image = rules.describe(Texel::R32F, 67, 5).unwrap();
        assert!(image.is_dense() && rules.alignment(&image) == 128);
        assert_eq!(rules.filtered, TexelSet::default());
        assert!(matches!(rules.describe(Texel::R16F, 1, 1), Err(ImageRefusal::Texel { .. })));
        assert!(rules.describe(Texel::R32F, 1 << 14, 1 << 13).is_ok());
        assert!(matches!(rules.describe(Texel::R32F, 1 << 14, 1 << 14), Err(ImageRefusal::Size { .. })));
        let none = |facts: ImageFacts, planes, texels| {
            facts.rules(planes, texels, TexelSet::default(), &limits(128)).is_none()
        };
        assert!(none(facts(), Planes::None, TexelSet::ALL));
        assert!(none(facts(), Planes::Lines, TexelSet::default()));
        assert!(none(ImageFacts { max_texels: 0, ..facts() }, Planes::Lines, TexelSet::ALL));
    }

    #[test]
    fn an_image_is_created_from_what_the_planner_decided() {
        let rules = facts().rules(Planes::Images, TexelSet::ALL, TexelSet::ALL, &limits(128)).unwrap();
        let image = rules.describe(Texel::Rgba16F, 67, 5).unwrap();
        let call = plane_call(&image);
        assert_eq!(call.shape, Shape::Plane { width: 67, height: 5, pitch: 1024 });
        let buffer = std::ptr::NonNull::<u8>::dangling().as_ptr().cast();
        let (format, desc) = call.describe(buffer);
        assert_eq!(
            (format.image_channel_order, format.image_channel_data_type),
            (cl::CL_RGBA, cl::CL_HALF_FLOAT)
        );
        assert_eq!(desc.image_type, cl::CL_MEM_OBJECT_IMAGE2D);
        assert_eq!((desc.image_width, desc.image_height, desc.image_row_pitch), (67, 5, 1024));
        assert_eq!((desc.image_depth, desc.image_array_size, desc.image_slice_pitch), (0, 0, 0));
        assert_eq!((desc.num_mip_levels, desc.num_samples, desc.buffer), (0, 0, buffer));
        let (format, desc) =
            ImageCall { format: TexelFormat::R32I, shape: Shape::Line { width: 9 } }.describe(buffer);
        assert_eq!(
            (format.image_channel_order, format.image_channel_data_type),
            (cl::CL_R, cl::CL_SIGNED_INT32)
        );
        assert_eq!(desc.image_type, cl::CL_MEM_OBJECT_IMAGE1D_BUFFER);
        assert_eq!((desc.image_width, desc.image_height, desc.image_row_pitch), (9, 0, 0));
    }

    #[test]
    fn a_line_ends_where_kernels_can_count() {
        assert_eq!(line_of(8, 5, 3, 6), Some([8, 5, 3, 6]));
        assert_eq!(line_of(0, 1 << 15, 1 << 16, 1 << 15), None);
        assert_eq!(line_of(u64::MAX, 1, 1, 1), None);
    }
}
