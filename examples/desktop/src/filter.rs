//! What is done to a frame: graphs that are built here, the denoiser, or a model from a file.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onepool::loader::onnx::load_onnx_bytes;
use onepool::ops::{self, AttrMap, AttrReader, AttrValue, Operator};
use onepool::{DType, Graph, GraphBuilder, Tensor};

/// `models/README.md` says what it is and how it was trained.
static DENOISER: &[u8] = include_bytes!("../../../models/denoise.onnx");

/// The version of ONNX's operators that the graphs here are of.
const OPSET: i64 = 17;

/// What is done to a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Nothing: each value is copied to the output.
    Identity,
    /// Every value is subtracted from 1.
    Invert,
    /// Old photographs.
    Sepia,
    /// A Gaussian of 5 by 5.
    Blur,
    /// How much a pixel differs from its neighbours.
    Edges,
    /// The network of `models/denoise.onnx`.
    Denoise,
    /// A model of ONNX from `[1, 3, height, width]` to another picture.
    Model(PathBuf),
}

/// The filters that need no file, with the words for them.
pub(crate) const FILTERS: [(Filter, &str, &str); 6] = [
    (Filter::Identity, "identity", "Nothing"),
    (Filter::Invert, "invert", "Invert"),
    (Filter::Sepia, "sepia", "Sepia"),
    (Filter::Blur, "blur", "Blur"),
    (Filter::Edges, "edges", "Edges"),
    (Filter::Denoise, "denoise", "Denoise (network)"),
];

impl Filter {
    /// The filter of a word, or the model of a path that ends with `.onnx`.
    ///
    /// # Errors
    /// The words that there are, as a sentence.
    pub(crate) fn named(word: &str) -> Result<Filter, String> {
        if let Some((filter, ..)) = FILTERS.iter().find(|(_, name, _)| *name == word) {
            return Ok(filter.clone());
        }
        if Path::new(word).extension().is_some_and(|end| end.eq_ignore_ascii_case("onnx")) {
            return Ok(Filter::Model(word.into()));
        }
        let words = FILTERS.map(|(_, name, _)| name).join(", ");
        Err(format!("there is no filter {word:?}; there are {words}, and files that end with .onnx"))
    }

    /// What a person calls it.
    pub(crate) fn label(&self) -> String {
        match self {
            Filter::Model(path) => {
                path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
            }
            built => {
                let row = FILTERS.iter().find(|(filter, ..)| filter == built);
                row.map_or_else(String::new, |(_, _, label)| (*label).to_owned())
            }
        }
    }

    /// The graph for frames of this size. A model from a file may leave sizes open.
    ///
    /// # Errors
    /// Why there is none, as a sentence.
    pub(crate) fn graph(&self, width: usize, height: usize) -> Result<Graph, String> {
        let built = match self {
            Filter::Denoise => load_onnx_bytes(DENOISER, None).map_err(Into::into),
            Filter::Model(path) => onepool::loader::load(path).map_err(Into::into),
            built => built.build(width, height),
        };
        built.map_err(|e: Box<dyn Error>| format!("{} is not loaded: {}", self.label(), sentence(&*e)))
    }

    fn build(&self, width: usize, height: usize) -> Result<Graph, Box<dyn Error>> {
        let mut g = GraphBuilder::new(self.label());
        let x = g.input("frame", DType::F32, [1.into(), 3.into(), height.into(), width.into()]);
        let y = match self {
            Filter::Invert => {
                let one = g.constant("one", Tensor::scalar(1.0f32));
                g.op(ops::sub(), &[one, x])
            }
            Filter::Sepia => {
                let rows = [0.393f32, 0.769, 0.189, 0.349, 0.686, 0.168, 0.272, 0.534, 0.131];
                let rows = g.constant("rows", Tensor::new([3, 3, 1, 1], &rows)?);
                let mixed = g.op(operator("Conv", [], 2)?, &[x, rows]);
                clipped(&mut g, mixed)?
            }
            Filter::Blur => each_channel(&mut g, x, &gaussian::<5>(1.5))?,
            Filter::Edges => {
                let around = [-1.0f32, -1.0, -1.0, -1.0, 8.0, -1.0, -1.0, -1.0, -1.0];
                let differences = each_channel(&mut g, x, &around)?;
                let size = g.op(operator("Abs", [], 1)?, &[differences]);
                clipped(&mut g, size)?
            }
            _ => g.op(operator("Identity", [], 1)?, &[x]),
        };
        g.output("shown", y);
        Ok(g.build()?)
    }
}

type Id = onepool::graph::TensorId;

/// An operator by its ONNX name.
fn operator<const N: usize>(
    name: &str,
    attrs: [(&str, AttrValue); N],
    inputs: usize,
) -> Result<Arc<dyn Operator>, Box<dyn Error>> {
    let def = ops::find("", name).ok_or_else(|| format!("there is no operator {name}"))?;
    let attrs: AttrMap = attrs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Ok((def.read)(&mut AttrReader::new(&attrs, inputs, 1), OPSET)?)
}

/// Values brought to 0..1.
fn clipped(g: &mut GraphBuilder, x: Id) -> Result<Id, Box<dyn Error>> {
    let (least, most) =
        (g.constant("least", Tensor::scalar(0.0f32)), g.constant("most", Tensor::scalar(1.0f32)));
    Ok(g.op(operator("Clip", [], 3)?, &[x, least, most]))
}

/// Each plane convolved with one square of weights; pixels over the edge are those at it.
fn each_channel(g: &mut GraphBuilder, x: Id, weights: &[f32]) -> Result<Id, Box<dyn Error>> {
    let side = weights.len().isqrt();
    let around = (side / 2) as i64;
    let pads = Tensor::new([8], &[0, 0, around, around, 0, 0, around, around])?;
    let pads = g.constant("pads", pads);
    let padded = g.op(operator("Pad", [("mode", AttrValue::Str(b"edge".to_vec()))], 2)?, &[x, pads]);
    let weights = g.constant("weights", Tensor::new([3, 1, side, side], &weights.repeat(3))?);
    Ok(g.op(operator("Conv", [("group", AttrValue::Int(3))], 2)?, &[padded, weights]))
}

/// `SIDE` by `SIDE` weights that sum to 1.
fn gaussian<const SIDE: usize>(sigma: f32) -> Vec<f32> {
    let line: Vec<f32> =
        (0..SIDE).map(|i| (-(i as f32 - (SIDE / 2) as f32).powi(2) / (2.0 * sigma * sigma)).exp()).collect();
    let sum: f32 = line.iter().sum();
    line.iter().flat_map(|a| line.iter().map(move |b| a * b / (sum * sum))).collect()
}

/// An error and what caused it, each said once.
pub(crate) fn sentence(error: &(dyn Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        next = cause.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use onepool::Session;

    const SIZE: (usize, usize) = (16, 8);

    /// What the filter makes of one colour everywhere, in the middle.
    fn of_colour(filter: &Filter, colour: [f32; 3]) -> [f32; 3] {
        let plane = SIZE.0 * SIZE.1;
        let values: Vec<f32> = colour.into_iter().flat_map(|c| vec![c; plane]).collect();
        let graph = filter.graph(SIZE.0, SIZE.1).unwrap();
        let mut session = Session::builder().graph(graph).device("cpu").build().unwrap();
        let name = session.inputs()[0].name.clone();
        session.set_input(&name, &Tensor::new([1, 3, SIZE.1, SIZE.0], &values).unwrap()).unwrap();
        session.run().unwrap();
        let name = session.outputs()[0].name.clone();
        let shown = session.get_output(&name).unwrap();
        let shown = shown.as_slice::<f32>().unwrap();
        [0, 1, 2].map(|c| shown[c * plane + 4 * SIZE.0 + 8])
    }

    fn assert_near(found: [f32; 3], expected: [f32; 3], within: f32) {
        let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= within);
        assert!(near, "{found:?} in place of {expected:?}");
    }

    #[test]
    fn filters_do_what_their_names_say() {
        let colour = [0.75, 0.25, 0.0];
        assert_near(of_colour(&Filter::Identity, colour), colour, 0.0);
        assert_near(of_colour(&Filter::Invert, colour), [0.25, 0.75, 1.0], 1e-6);
        assert_near(of_colour(&Filter::Sepia, colour), [0.487, 0.43325, 0.3375], 1e-5);
        assert_near(of_colour(&Filter::Blur, colour), colour, 1e-5);
        assert_near(of_colour(&Filter::Edges, colour), [0.0; 3], 1e-5);
        assert_near(of_colour(&Filter::Denoise, colour), colour, 0.08);
    }

    #[test]
    fn a_filter_has_a_name_or_a_file() {
        for (filter, word, _) in FILTERS {
            assert_eq!(Filter::named(word).unwrap(), filter);
        }
        assert_eq!(Filter::named("my.onnx").unwrap().label(), "my.onnx");
        let error = Filter::named("sharpen").unwrap_err();
        assert!(error.starts_with("there is no filter \"sharpen\"; there are identity, invert"), "{error}");
        let error = Filter::Model("/none.onnx".into()).graph(8, 8).unwrap_err();
        assert!(error.starts_with("none.onnx is not loaded: "), "{error}");
    }
}
