//! Pictures to tensors and back.

use std::io::Cursor;
use std::path::Path;

use half::f16;
use image::imageops::FilterType;
use image::{DynamicImage, ImageBuffer, ImageFormat, ImageReader};

use super::error::CliError;
use super::input_file::read_bytes;
use onepool::dtype::DType;
use onepool::graph::TensorInfo;
use onepool::memory::host::HostRegion;
use onepool::shape::{Dim, Shape, SymShape};

/// The largest picture that another one is scaled to.
const MAX_PIXELS: u64 = 1 << 27;

/// How pictures become tensors and tensors pictures.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Pictures")]
pub(super) struct PictureOptions {
    /// Where the channels of a picture's tensor are; `auto` takes it from the model's shape.
    #[arg(long, value_enum, default_value_t)]
    pub(super) layout: LayoutChoice,
    /// What a pixel's 0 to 255 is multiplied with; by default 1/255 for tensors of floats, 1 for integers.
    #[arg(long, allow_negative_numbers = true, value_parser = factor)]
    pub(super) scale: Option<f32>,
    /// Subtracted from each channel after scaling, one value or one for each channel.
    #[arg(long, value_delimiter = ',', allow_negative_numbers = true, value_parser = finite)]
    pub(super) mean: Vec<f32>,
    /// Each channel is divided by it after the mean was subtracted, one value or one for each channel.
    #[arg(long, value_delimiter = ',', allow_negative_numbers = true, value_parser = factor)]
    pub(super) std: Vec<f32>,
    /// The tensor's channels are blue, green, red.
    #[arg(long)]
    pub(super) bgr: bool,
    /// What happens to a picture of another size than the model's.
    #[arg(long, value_enum, default_value_t)]
    pub(super) fit: Fit,
}

fn finite(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|n| n.is_finite());
    number.ok_or_else(|| "expected a finite number".to_owned())
}

fn factor(text: &str) -> Result<f32, String> {
    finite(text).ok().filter(|n| *n != 0.0).ok_or_else(|| "expected a finite number that is not 0".to_owned())
}

/// Where the channels are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LayoutChoice {
    /// As the model's shape tells; planes where it does not.
    #[default]
    Auto,
    /// A plane for each channel.
    Nchw,
    /// The channels of a pixel side by side.
    Nhwc,
}

/// What happens to a picture of another size than the model's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Fit {
    /// Both sides are scaled.
    #[default]
    Resize,
    /// The middle is cut out after scaling to cover.
    Crop,
    /// It is an error.
    Error,
}

/// How the elements of a picture's tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Axes in front of the picture, all 1.
    leading: usize,
    /// Whether there is a channel axis at all.
    has_channels: bool,
    /// A plane for each channel.
    planar: bool,
    /// 1, 3 or 4.
    pub(super) channels: usize,
    /// Rows where the model fixes them.
    pub(super) height: Option<usize>,
    /// Columns where the model fixes them.
    pub(super) width: Option<usize>,
}

fn is_channels(n: Option<usize>) -> bool {
    matches!(n, Some(1 | 3 | 4))
}

impl Frame {
    /// The frame of a tensor declared as `shape`; sizes that the model leaves open come from the picture,
    /// and open channels are three.
    pub(super) fn of(shape: &SymShape, choice: LayoutChoice) -> Result<Frame, String> {
        let sizes: Vec<Option<usize>> =
            shape.0.iter().map(|d| if let Dim::Known(n) = d { Some(*n) } else { None }).collect();
        let no = |why: &str| Err(format!("a tensor of shape {shape} is no picture: {why}"));
        let (leading, picture) = match sizes.len() {
            2 | 3 => (0, sizes.as_slice()),
            4 => (1, &sizes[1..]),
            _ => return no("a picture has two to four axes"),
        };
        if sizes[..leading].iter().any(|n| !matches!(n, None | Some(1))) {
            return no("it holds several");
        }
        let &[first, second, last] = picture else {
            let (height, width) = (sizes[0], sizes[1]);
            return Ok(Frame { leading, has_channels: false, planar: true, channels: 1, height, width });
        };
        let planar = match choice {
            LayoutChoice::Nchw => true,
            LayoutChoice::Nhwc => false,
            LayoutChoice::Auto => is_channels(first) || (!is_channels(last) && first.is_none()),
        };
        let (channels, height, width) = if planar { (first, second, last) } else { (last, first, second) };
        let channels = channels.unwrap_or(3);
        if !is_channels(Some(channels)) {
            return no("a picture has 1, 3 or 4 channels");
        }
        Ok(Frame { leading, has_channels: true, planar, channels, height, width })
    }

    /// The tensor's shape for a picture of this size.
    pub(super) fn shape(&self, height: usize, width: usize) -> Result<Shape, CliError> {
        let mut dims = vec![1; self.leading];
        match (self.has_channels, self.planar) {
            (false, _) => dims.extend([height, width]),
            (true, true) => dims.extend([self.channels, height, width]),
            (true, false) => dims.extend([height, width, self.channels]),
        }
        Ok(Shape::new(dims)?)
    }

    /// Position of the first element of channel `c`, and the step from one pixel to the next.
    fn channel(&self, c: usize, pixels: usize) -> (usize, usize) {
        if self.planar { (c * pixels, 1) } else { (c, self.channels) }
    }
}

/// Bytes that a decoded picture may take.
const MAX_DECODED: u64 = 512 << 20;

/// Reads a picture.
pub(super) fn open(path: &Path) -> Result<DynamicImage, CliError> {
    let bytes = read_bytes(path)?;
    let bad = |e: &dyn std::error::Error| CliError::content(path, super::error::chain(e));
    let reader = ImageReader::new(Cursor::new(&bytes));
    let mut reader = reader.with_guessed_format().map_err(|e| CliError::file("read", path, e))?;
    if reader.format() == Some(ImageFormat::Jpeg) && !jpeg_is_whole(&bytes) {
        return Err(CliError::content(path, "the picture is cut short"));
    }
    let mut limits = image::Limits::default();
    limits.max_alloc = Some(MAX_DECODED);
    reader.limits(limits);
    reader.decode().map_err(|e| match e {
        image::ImageError::Limits(_) => CliError::content(
            path,
            format!(
                "the picture takes more than {} MiB when it is decoded; make it smaller",
                MAX_DECODED >> 20
            ),
        ),
        e => bad(&e),
    })
}

/// Whether the end-of-image marker follows the picture's data; decoders fill up what is missing.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let last = |marker: u8| bytes.windows(2).rposition(|w| w == [0xff, marker]);
    match (last(0xda), last(0xd9)) {
        (Some(scan), Some(end)) => scan < end,
        _ => false,
    }
}

/// Writes a picture in the format that its name tells.
pub(super) fn save(picture: &DynamicImage, path: &Path) -> Result<(), CliError> {
    let format = ImageFormat::from_path(path)
        .ok()
        .filter(|f| matches!(f, ImageFormat::Png | ImageFormat::Jpeg))
        .ok_or_else(|| CliError::usage(format!("{}: pictures are written as png or jpeg", path.display())))?;
    let mut bytes = Cursor::new(Vec::new());
    // JPEG has no transparency.
    let converted = match (format, picture) {
        (ImageFormat::Jpeg, DynamicImage::ImageRgba8(_)) => Some(DynamicImage::from(picture.to_rgb8())),
        _ => None,
    };
    let written = converted.as_ref().unwrap_or(picture).write_to(&mut bytes, format);
    written.map_err(|e| CliError::content(path, super::error::chain(&e)))?;
    std::fs::write(path, bytes.into_inner()).map_err(|e| CliError::file("write", path, e))
}

/// A picture in memory that devices can import, as a tensor of `dtype`; and what was done to its size.
pub(super) fn to_tensor(
    picture: &DynamicImage,
    frame: &Frame,
    dtype: DType,
    options: &PictureOptions,
) -> Result<(TensorInfo, HostRegion, Option<String>), CliError> {
    let (have_w, have_h) = (picture.width() as usize, picture.height() as usize);
    let (height, width) = (frame.height.unwrap_or(have_h), frame.width.unwrap_or(have_w));
    let mut note = None;
    let fitted = if (height, width) == (have_h, have_w) {
        None
    } else {
        let side = |n: usize| u32::try_from(n).ok().filter(|n| *n > 0);
        let sizes =
            side(width).zip(side(height)).filter(|(w, h)| u64::from(*w) * u64::from(*h) <= MAX_PIXELS);
        let Some((w, h)) = sizes.filter(|_| options.fit != Fit::Error) else {
            return Err(CliError::usage(format!(
                "the picture is {have_w}x{have_h}, the model takes {width}x{height}"
            )));
        };
        note = Some(format!("{have_w}x{have_h} scaled to {width}x{height}"));
        Some(match options.fit {
            Fit::Crop => picture.resize_to_fill(w, h, FilterType::Triangle),
            Fit::Resize | Fit::Error => picture.resize_exact(w, h, FilterType::Triangle),
        })
    };
    let picture = fitted.as_ref().unwrap_or(picture);
    let pixels = match frame.channels {
        1 => picture.to_luma8().into_raw(),
        3 => picture.to_rgb8().into_raw(),
        _ => picture.to_rgba8().into_raw(),
    };
    let info = TensorInfo::new(dtype, frame.shape(height, width)?);
    let mut region = HostRegion::new(info.bytes())?;
    let of = Scaling::new(options, dtype, frame.channels)?;
    match dtype {
        DType::F32 => of.scatter(&pixels, frame, region.as_mut_slice_of::<f32>()?, |v| v),
        DType::F16 => of.scatter(&pixels, frame, region.as_mut_slice_of::<f16>()?, f16::from_f32),
        DType::U8 => of.scatter(&pixels, frame, region.as_mut_slice_of::<u8>()?, |v| v.round() as u8),
        other => return Err(no_pictures(other)),
    }
    Ok((info, region, note))
}

/// The picture that a tensor holds. Values are divided by the scale and cut off at black and white.
pub(super) fn from_tensor(
    info: &TensorInfo,
    bytes: &[u8],
    options: &PictureOptions,
) -> Result<DynamicImage, CliError> {
    let frame = Frame::of(&SymShape::from(&info.shape), options.layout).map_err(CliError::Usage)?;
    let (Some(height), Some(width)) = (frame.height, frame.width) else {
        return Err(CliError::usage("a picture needs a height and a width"));
    };
    let scale = options.scale.unwrap_or(default_scale(info.dtype));
    let mut out = vec![0u8; info.elements()];
    match info.dtype {
        DType::F32 => gather(cast(bytes)?, &frame, options.bgr, &mut out, |v: f32| v / scale),
        DType::F16 => gather(cast(bytes)?, &frame, options.bgr, &mut out, |v: f16| v.to_f32() / scale),
        DType::U8 => gather(cast(bytes)?, &frame, options.bgr, &mut out, |v: u8| f32::from(v) / scale),
        other => return Err(no_pictures(other)),
    }
    let (w, h) = (u32::try_from(width), u32::try_from(height));
    let (Ok(w), Ok(h)) = (w, h) else {
        return Err(CliError::usage(format!("a picture of {width}x{height} cannot be written")));
    };
    let picture = match frame.channels {
        1 => ImageBuffer::from_raw(w, h, out).map(DynamicImage::ImageLuma8),
        3 => ImageBuffer::from_raw(w, h, out).map(DynamicImage::ImageRgb8),
        _ => ImageBuffer::from_raw(w, h, out).map(DynamicImage::ImageRgba8),
    };
    picture.ok_or_else(|| CliError::usage(format!("a tensor {info} is no picture")))
}

fn no_pictures(dtype: DType) -> CliError {
    CliError::usage(format!("pictures are tensors of float32, float16 or uint8, not of {dtype}"))
}

fn cast<T: bytemuck::Pod>(bytes: &[u8]) -> Result<&[T], CliError> {
    bytemuck::try_cast_slice(bytes).map_err(|e| CliError::usage(format!("the tensor is no picture: {e}")))
}

fn default_scale(dtype: DType) -> f32 {
    if dtype.is_float() { 1.0 / 255.0 } else { 1.0 }
}

/// What is done to the values of each channel.
struct Scaling {
    /// Multiplier and offset for each channel of the tensor.
    channels: Vec<(f32, f32)>,
    bgr: bool,
}

impl Scaling {
    fn new(options: &PictureOptions, dtype: DType, channels: usize) -> Result<Scaling, CliError> {
        let per_channel = |what: &str, given: &[f32], default: f32| match given.len() {
            0 => Ok(vec![default; channels]),
            1 => Ok(vec![given[0]; channels]),
            n if n == channels => Ok(given.to_vec()),
            n => Err(CliError::usage(format!("{what} has {n} values, the picture has {channels} channels"))),
        };
        let scale = options.scale.unwrap_or(default_scale(dtype));
        let mean = per_channel("--mean", &options.mean, 0.0)?;
        let std = per_channel("--std", &options.std, 1.0)?;
        let channels = mean.iter().zip(&std).map(|(m, s)| (scale / s, -m / s)).collect();
        Ok(Scaling { channels, bgr: options.bgr })
    }

    fn scatter<T>(&self, pixels: &[u8], frame: &Frame, to: &mut [T], make: fn(f32) -> T) {
        let n = self.channels.len();
        let count = pixels.len() / n.max(1);
        for (c, (factor, offset)) in self.channels.iter().enumerate() {
            let from = pixels.iter().skip(swapped(c, n, self.bgr)).step_by(n);
            let (start, step) = frame.channel(c, count);
            for (slot, &v) in to.iter_mut().skip(start).step_by(step).zip(from) {
                *slot = make(f32::from(v) * factor + offset);
            }
        }
    }
}

fn gather<T: Copy>(from: &[T], frame: &Frame, bgr: bool, pixels: &mut [u8], value: impl Fn(T) -> f32) {
    let n = frame.channels;
    let count = pixels.len() / n;
    for c in 0..n {
        let (start, step) = frame.channel(c, count);
        let to = pixels.iter_mut().skip(swapped(c, n, bgr)).step_by(n);
        for (slot, &v) in to.zip(from.iter().skip(start).step_by(step)) {
            // The conversion cuts off at both ends and takes NaN to black.
            *slot = value(v).round() as u8;
        }
    }
}

/// The colour of the picture that channel `c` of the tensor holds.
fn swapped(c: usize, channels: usize, bgr: bool) -> usize {
    if bgr && channels >= 3 && c < 3 { 2 - c } else { c }
}

/// Whether a file is named as pictures are.
pub(super) fn is_picture(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
    matches!(extension.as_deref(), Some("png" | "jpg" | "jpeg"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> SymShape {
        SymShape(dims.iter().map(|&d| Dim::Known(d)).collect())
    }

    fn sample(w: u32, h: u32) -> DynamicImage {
        DynamicImage::ImageRgb8(ImageBuffer::from_fn(w, h, |x, y| {
            image::Rgb([(x * 40) as u8, (y * 50) as u8, (x * y * 7) as u8])
        }))
    }

    /// The header of a PNG of 100,000 by 100,000 pixels.
    #[test]
    fn pictures_too_large_to_decode_are_named_so() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        png.extend([100_000u32.to_be_bytes(), 100_000u32.to_be_bytes()].concat());
        png.extend([8, 2, 0, 0, 0, 0x27, 0x30, 0x9c, 0x9f]);
        png.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large.png");
        std::fs::write(&path, png).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("more than 512 MiB") && error.contains("make it smaller"), "{error}");
    }

    #[test]
    fn the_layout_is_seen_from_the_shape() {
        let auto = |d: &[usize]| Frame::of(&shape(d), LayoutChoice::Auto);
        let f = auto(&[1, 3, 224, 192]).unwrap();
        assert_eq!((f.planar, f.channels, f.height, f.width), (true, 3, Some(224), Some(192)));
        let f = auto(&[1, 224, 192, 3]).unwrap();
        assert_eq!((f.planar, f.channels, f.height, f.width), (false, 3, Some(224), Some(192)));
        let f = auto(&[5, 7]).unwrap();
        assert_eq!((f.channels, f.shape(5, 7).unwrap().dims()), (1, &[5, 7][..]));
        assert_eq!(auto(&[4, 8, 8]).unwrap().channels, 4);
        assert!(auto(&[2, 3, 8, 8]).unwrap_err().contains("several"));
        assert!(auto(&[1, 2, 8, 8]).unwrap_err().contains("channels"));
        assert!(auto(&[8]).is_err());
        let open = SymShape(vec!["n".into(), 3.into(), "h".into(), Dim::Unknown]);
        let f = Frame::of(&open, LayoutChoice::Auto).unwrap();
        assert_eq!((f.planar, f.height, f.width), (true, None, None));
        let forced = Frame::of(&shape(&[1, 3, 8, 3]), LayoutChoice::Nhwc).unwrap();
        assert_eq!((forced.planar, forced.height), (false, Some(3)));
    }

    #[test]
    fn a_picture_comes_back_in_every_layout_and_type() {
        let picture = sample(5, 3);
        for layout in [LayoutChoice::Nchw, LayoutChoice::Nhwc] {
            for bgr in [false, true] {
                for dtype in [DType::F32, DType::F16, DType::U8] {
                    let options = PictureOptions { layout, bgr, ..Default::default() };
                    let open = SymShape(vec![1.into(), Dim::Unknown, Dim::Unknown, Dim::Unknown]);
                    let frame = Frame::of(&open, layout).unwrap();
                    let (info, region, note) = to_tensor(&picture, &frame, dtype, &options).unwrap();
                    assert_eq!(note, None);
                    let back = from_tensor(&info, region.as_slice(), &options).unwrap();
                    assert_eq!(back.to_rgb8(), picture.to_rgb8(), "{layout:?} {bgr} {dtype}");
                }
            }
        }
    }

    #[test]
    fn scaling_mean_and_std_are_applied_in_order() {
        let picture = DynamicImage::ImageRgb8(ImageBuffer::from_pixel(1, 1, image::Rgb([255, 0, 51])));
        let options =
            PictureOptions { mean: vec![0.5, 0.25, 0.2], std: vec![0.5, 0.25, 2.0], ..Default::default() };
        let frame = Frame::of(&shape(&[3, 1, 1]), LayoutChoice::Auto).unwrap();
        let (_, region, _) = to_tensor(&picture, &frame, DType::F32, &options).unwrap();
        let got = region.as_slice_of::<f32>().unwrap();
        for (got, want) in got.iter().zip([1.0, -1.0, 0.0]) {
            assert!((got - want).abs() < 1e-6, "{got} {want}");
        }
        let two = PictureOptions { mean: vec![1.0, 2.0], ..Default::default() };
        assert!(to_tensor(&picture, &frame, DType::F32, &two).is_err());
        assert!(to_tensor(&picture, &frame, DType::I64, &Default::default()).is_err());
    }

    #[test]
    fn sizes_are_fitted_and_said_or_refused() {
        let picture = sample(8, 4);
        let frame = Frame::of(&shape(&[1, 3, 2, 2]), LayoutChoice::Auto).unwrap();
        let (info, _, note) = to_tensor(&picture, &frame, DType::U8, &Default::default()).unwrap();
        assert_eq!(info.to_string(), "uint8[1, 3, 2, 2]");
        assert_eq!(note.as_deref(), Some("8x4 scaled to 2x2"));
        let strict = PictureOptions { fit: Fit::Error, ..Default::default() };
        let e = to_tensor(&picture, &frame, DType::U8, &strict).unwrap_err();
        assert!(e.to_string().contains("8x4"), "{e}");
        let huge = Frame { height: Some(usize::MAX), ..frame };
        assert!(to_tensor(&picture, &huge, DType::U8, &Default::default()).is_err());
    }

    #[test]
    fn files_of_both_formats_come_back_and_cut_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["p.png", "p.jpg"] {
            let path = dir.path().join(name);
            save(&sample(64, 48), &path).unwrap();
            let back = open(&path).unwrap();
            assert_eq!((back.width(), back.height()), (64, 48));
            let bytes = std::fs::read(&path).unwrap();
            for cut in [bytes.len() - 20, bytes.len() / 2, 30, 3, 0] {
                std::fs::write(&path, &bytes[..cut]).unwrap();
                assert!(open(&path).is_err(), "{name} cut at {cut}");
            }
        }
        assert!(open(dir.path()).is_err());
        assert!(matches!(save(&sample(1, 1), &dir.path().join("p.gif")), Err(CliError::Usage(_))));
    }
}
