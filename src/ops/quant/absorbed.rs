//! What products of bytes absorb: the operators that make numbers of their sums.

use super::product::{Places, SumsBecome};
use crate::dtype::DType;
use crate::ops::{AbsorbedInput, Activation, Elementwise, OpCx, Operator, Structure};
use crate::shape::Shape;

impl SumsBecome {
    /// The same and then `activation`, where sums become numbers.
    pub(super) fn with_activation(&self, activation: &Activation) -> Option<SumsBecome> {
        let SumsBecome::Numbers { activation: own } = self else { return None };
        Some(SumsBecome::Numbers { activation: own.then(activation)? })
    }
}

/// What the sums become, and the inputs, where a product takes in what comes after it: the conversion of the sums to
/// `float32`, then a factor, then a summand, then an activation. `of_lines` tells whether a tensor has one number for each
/// line of the weights, and repeats it along the other axes of the output.
pub(super) fn absorbed(
    sums: &SumsBecome,
    cx: &OpCx,
    (next, next_cx, at): (&dyn Operator, &OpCx, usize),
    of_lines: impl Fn(&Shape) -> bool,
) -> Option<(SumsBecome, Vec<AbsorbedInput>)> {
    let (own, made) = (cx.output(0).ok()?, next_cx.output(0).ok()?);
    let inputs = || (0..cx.input_count()).map(AbsorbedInput::Own);
    if made.dtype != DType::F32 || made.shape != own.shape {
        return None;
    }
    let p = Places::of(sums);
    match sums {
        SumsBecome::Sums if at == 0 && next.structure() == Some(Structure::Cast) => {
            Some((SumsBecome::Numbers { activation: Activation::None }, inputs().collect()))
        }
        SumsBecome::Numbers { activation: Activation::None } => {
            let has = |i: Option<usize>| i.is_some_and(|i| cx.has(i));
            let plain = !has(p.bias);
            let other = 1_usize.checked_sub(at).filter(|_| next_cx.input_count() == 2);
            let with = |place: Option<usize>, one: bool| {
                let (place, other) = (place?, other?);
                let info = next_cx.input(other).ok()?;
                let fits = of_lines(&info.shape) || one && info.elements() == 1;
                let inputs = (0..cx.input_count().max(place + 1))
                    .map(|i| if i == place { AbsorbedInput::Next(other) } else { AbsorbedInput::Own(i) });
                (info.dtype == DType::F32 && fits).then(|| (*sums, inputs.collect()))
            };
            let taken = match next.structure() {
                Some(Structure::Elementwise(Elementwise::Mul)) if plain && !has(p.b_scale) => {
                    with(p.b_scale, true)
                }
                Some(Structure::Elementwise(Elementwise::Add)) if plain => with(p.bias, false),
                _ => None,
            };
            taken.or_else(|| Some((sums.with_activation(&next.as_activation(next_cx)?)?, inputs().collect())))
        }
        _ => None,
    }
}

/// The inputs of a product whose factor, its input `at`, is the product of two that `before` makes: one number, and another
/// one or one for each line of the weights.
pub(super) fn absorbed_scales(
    p: &Places,
    cx: &OpCx,
    at: usize,
    before: &dyn Operator,
    before_cx: &OpCx,
) -> Option<Vec<AbsorbedInput>> {
    let (one, many) = (p.a_scale?, p.b_scale?);
    let is_product = before.structure() == Some(Structure::Elementwise(Elementwise::Mul));
    if p.y_scale.is_some() || at != many || cx.has(one) || !is_product || before_cx.input_count() != 2 {
        return None;
    }
    let all = before_cx.output(0).ok()?.elements();
    let infos = [before_cx.input(0).ok()?, before_cx.input(1).ok()?];
    let number = infos.iter().position(|info| info.elements() == 1)?;
    let other = 1 - number;
    if infos[other].elements() != all || infos.iter().any(|info| info.dtype != DType::F32) {
        return None;
    }
    let input = |i| match i {
        i if i == one => AbsorbedInput::Next(number),
        i if i == many => AbsorbedInput::Next(other),
        i => AbsorbedInput::Own(i),
    };
    Some((0..cx.input_count()).map(input).collect())
}
