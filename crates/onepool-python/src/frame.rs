//! `onepool.Frame` as a `FrameSpec`, and arrays that hold frames.

use std::collections::BTreeMap;
use std::fmt::Debug;

use onepool::frame::{Channels, ColorMatrix, ColorRange, Filter, FrameSpec, PixelFormat, TensorLayout};
use onepool::session::{Memory, SessionError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::array::{Array, Side};
use crate::errors::{Class, raised};

const MATRICES: [(&str, ColorMatrix); 3] =
    [("bt601", ColorMatrix::Bt601), ("bt709", ColorMatrix::Bt709), ("bt2020", ColorMatrix::Bt2020)];
const RANGES: [(&str, ColorRange); 2] = [("limited", ColorRange::Limited), ("full", ColorRange::Full)];
const FILTERS: [(&str, Filter); 2] = [("nearest", Filter::Nearest), ("bilinear", Filter::Bilinear)];
const LAYOUTS: [(&str, TensorLayout); 2] = [("nchw", TensorLayout::Nchw), ("nhwc", TensorLayout::Nhwc)];
const CHANNELS: [(&str, Channels); 5] = [
    ("gray", Channels::Gray),
    ("rgb", Channels::Rgb),
    ("bgr", Channels::Bgr),
    ("rgba", Channels::Rgba),
    ("bgra", Channels::Bgra),
];

/// One memory of a frame.
#[derive(Clone, Debug)]
struct FrameMemory {
    /// The input or output.
    name: String,
    bytes: u64,
    /// Bytes from row to row of its first plane.
    stride: u64,
}

/// The frames of a session, on one side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frames(BTreeMap<String, Vec<FrameMemory>>);

/// A frame of the caller's: its name and its description.
pub(crate) type Described = Vec<(String, FrameSpec)>;

/// The frames that a dictionary describes.
pub(crate) fn described(frames: Option<&Bound<'_, PyDict>>, argument: &str) -> PyResult<(Described, Frames)> {
    let (mut all, mut known) = (Vec::new(), Frames::default());
    for (name, frame) in frames.into_iter().flatten() {
        let py = frame.py();
        let name: String = name.extract()?;
        let spec = spec(&frame, &format!("{argument}[{name:?}]"))?;
        let wrong = |source| raised(py, SessionError::Frame { name: name.clone(), source });
        let bytes = spec.memory_bytes().map_err(wrong)?;
        let strides = spec.row_strides().map_err(wrong)?;
        let count = bytes.len();
        let memories = bytes.into_iter().enumerate().map(|(at, bytes)| FrameMemory {
            name: if count == 1 { name.clone() } else { format!("{name}:{at}") },
            bytes,
            stride: strides.iter().find(|(memory, _)| *memory == at).map_or(0, |(_, stride)| *stride),
        });
        known.0.insert(name.clone(), memories.collect());
        all.push((name, spec));
    }
    Ok((all, known))
}

impl Frames {
    /// The frame that input or output `name` is a memory of.
    pub(crate) fn of_memory(&self, name: &str) -> Option<&str> {
        let has = |memories: &Vec<FrameMemory>| memories.iter().any(|memory| memory.name == name);
        self.0.iter().find(|(_, memories)| has(memories)).map(|(frame, _)| frame.as_str())
    }

    /// The memories of frame `name` in `object`, an array or as many as the frame has memories; none where `name` is no
    /// frame.
    pub(crate) fn lend(
        &self,
        name: &str,
        object: &Bound<'_, PyAny>,
        side: Side,
    ) -> PyResult<Option<Vec<(String, Memory<'static>)>>> {
        let Some(memories) = self.0.get(name) else { return Ok(None) };
        let py = object.py();
        let is_list = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
        let objects: Vec<Bound<'_, PyAny>> = match is_list {
            true => object.extract()?,
            false => vec![object.clone()],
        };
        let argument = side.argument(name);
        if objects.len() != memories.len() {
            let (expected, got) = (memories.len(), objects.len());
            let message = format!("{argument}: the frame lies in {expected} memories, got {got} arrays");
            return Err(Class::Shape.says(py, message));
        }
        let lent = memories.iter().zip(objects).map(|(memory, object)| {
            let argument = side.argument(&memory.name);
            let array = Array::of(&object, &argument)?;
            let lent = array.lend_rows(py, &argument, side, memory.bytes, memory.stride)?;
            Ok((memory.name.clone(), lent))
        });
        lent.collect::<PyResult<Vec<_>>>().map(Some)
    }
}

/// The value of a word.
fn word<T: Copy + Debug>(value: &Bound<'_, PyAny>, words: &[(&str, T)], argument: &str) -> PyResult<T> {
    let given = value.cast::<PyString>().ok().and_then(|text| text.to_str().ok().map(str::to_owned));
    let found = words.iter().find(|(word, _)| given.as_deref() == Some(word));
    found.map(|(_, found)| *found).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        Class::Argument.says(value.py(), format!("{argument}: {value:?} is none of {known:?}"))
    })
}

fn spec(frame: &Bound<'_, PyAny>, argument: &str) -> PyResult<FrameSpec> {
    let py = frame.py();
    let field = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        let value = frame.getattr(name).map_err(|_| {
            let kind = frame.get_type();
            Class::ArrayType.says(py, format!("{argument}: expected an onepool.Frame, got {kind}"))
        })?;
        Ok(if value.is_none() { None } else { Some(value) })
    };
    let wrong = |name: &str, value: &Bound<'_, PyAny>, expected: &str| {
        Class::Argument.says(py, format!("{argument}.{name}: is {value:?}, expected {expected}"))
    };
    let numbers = |name: &str| -> PyResult<Option<Vec<u64>>> {
        let value = field(name)?;
        value.map(|v| v.extract().map_err(|_| wrong(name, &v, "numbers from 0"))).transpose()
    };
    let floats = |name: &str| -> PyResult<Option<Vec<f32>>> {
        let Some(value) = field(name)? else { return Ok(None) };
        let one = value.extract::<f32>().map(|one| vec![one]);
        one.or_else(|_| value.extract()).map(Some).map_err(|_| wrong(name, &value, "a number or numbers"))
    };
    let formats = PixelFormat::ALL.map(|format| (format.name(), format));
    let format = field("format")?.ok_or_else(|| wrong("format", frame, "a name"))?;
    let side = |name: &str| -> PyResult<u32> {
        let value = field(name)?.ok_or_else(|| wrong(name, frame, "pixels"))?;
        value.extract().map_err(|_| wrong(name, &value, "pixels"))
    };
    let format = word(&format, &formats, &format!("{argument}.format"))?;
    let mut spec = FrameSpec::new(format, side("width")?, side("height")?);
    if let Some(strides) = numbers("strides")? {
        spec = spec.strides(strides);
    }
    if let Some(offsets) = numbers("offsets")? {
        spec = spec.offsets(offsets);
    }
    if let Some(memories) = numbers("memories")? {
        spec = spec.memories(memories.into_iter().map(|m| m as usize).collect::<Vec<_>>());
    }
    macro_rules! words {
        ($($name:literal $words:ident $set:ident),*) => {$(
            if let Some(value) = field($name)? {
                spec = spec.$set(word(&value, &$words, &format!("{argument}.{}", $name))?);
            }
        )*};
    }
    words!(
        "matrix" MATRICES matrix, "range" RANGES range, "filter" FILTERS filter, "layout" LAYOUTS layout,
        "channels" CHANNELS channels
    );
    if let Some(value) = field("crop")? {
        let rect: (u32, u32, u32, u32) =
            value.extract().map_err(|_| wrong("crop", &value, "x, y, width and height"))?;
        spec = spec.crop(rect.0, rect.1, rect.2, rect.3);
    }
    if let Some(value) = field("size")? {
        let size: (u32, u32) = value.extract().map_err(|_| wrong("size", &value, "width and height"))?;
        spec = spec.size(size.0, size.1);
    }
    if let Some(value) = field("scale")? {
        spec = spec.scale(value.extract().map_err(|_| wrong("scale", &value, "a number"))?);
    }
    match (floats("mean")?, floats("std")?) {
        (None, None) => {}
        (mean, std) => {
            spec = spec.normalize(mean.unwrap_or_else(|| vec![0.0]), std.unwrap_or_else(|| vec![1.0]));
        }
    }
    Ok(spec)
}
