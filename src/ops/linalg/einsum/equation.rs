//! The text of an equation and the axes that its labels stand for.

use crate::shape::Shape;

/// A name of an axis: a letter, or a place among the axes of an ellipsis, counted from the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Label {
    Ellipsis(usize),
    Letter(u8),
}

/// One term's labels before and after its ellipsis, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    before: Vec<u8>,
    after: Vec<u8>,
    ellipsis: bool,
}

/// An equation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Equation {
    inputs: Vec<Term>,
    output: Option<Term>,
}

/// An operand as a function of labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// The labels that it depends on, each with its stride in elements.
    pub(super) axes: Vec<(Label, isize)>,
}

/// All operands, the labels' sizes, and those of the output in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Views {
    pub(super) operands: Vec<View>,
    pub(super) sizes: Vec<(Label, usize)>,
    pub(super) output: Vec<Label>,
}

impl Views {
    pub(super) fn size(&self, label: Label) -> usize {
        self.sizes.iter().find(|(l, _)| *l == label).map_or(1, |(_, size)| *size)
    }

    pub(super) fn output_sizes(&self) -> Vec<usize> {
        self.output.iter().map(|l| self.size(*l)).collect()
    }
}

impl Term {
    fn parse(text: &str) -> Result<Term, String> {
        let letters = |part: &str| match part.bytes().find(|b| !b.is_ascii_alphabetic()) {
            Some(b) => Err(format!("{:?} is no label", char::from(b))),
            None => Ok(part.as_bytes().to_vec()),
        };
        let (before, after, ellipsis) = match text.split_once("...") {
            Some((before, after)) => (before, after, true),
            None => (text, "", false),
        };
        Ok(Term { before: letters(before)?, after: letters(after)?, ellipsis })
    }

    fn letters(&self) -> impl Iterator<Item = u8> + '_ {
        self.before.iter().chain(&self.after).copied()
    }

    /// The labels in order, where the ellipsis stands for `dims` axes.
    fn labels(&self, dims: usize) -> Vec<Label> {
        let ellipsis = (0..if self.ellipsis { dims } else { 0 }).rev().map(Label::Ellipsis);
        let before = self.before.iter().map(|b| Label::Letter(*b));
        before.chain(ellipsis).chain(self.after.iter().map(|b| Label::Letter(*b))).collect()
    }
}

impl Equation {
    pub(super) fn parse(text: &str) -> Result<Equation, String> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, output) = match text.split_once("->") {
            Some((inputs, output)) => (inputs, Some(Term::parse(output)?)),
            None => (text.as_str(), None),
        };
        let inputs: Result<Vec<Term>, String> = inputs.split(',').map(Term::parse).collect();
        let equation = Equation { inputs: inputs?, output };
        if let Some(output) = &equation.output {
            let mut seen = Vec::new();
            for l in output.letters() {
                if seen.contains(&l) {
                    return Err(format!("{:?} is twice in the output", char::from(l)));
                }
                if !equation.inputs.iter().any(|t| t.letters().any(|i| i == l)) {
                    return Err(format!("{:?} is in no input", char::from(l)));
                }
                seen.push(l);
            }
        }
        Ok(equation)
    }

    pub(super) fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The output's labels; without an output term those that occur once, in alphabetical order.
    fn output(&self, dims: usize) -> Vec<Label> {
        if let Some(term) = &self.output {
            return term.labels(dims);
        }
        let mut letters: Vec<u8> = self.inputs.iter().flat_map(Term::letters).collect();
        letters.sort_unstable();
        let once = letters.iter().filter(|l| letters.iter().filter(|o| o == l).count() == 1);
        (0..dims).rev().map(Label::Ellipsis).chain(once.map(|l| Label::Letter(*l))).collect()
    }

    /// The operands of these shapes; axes of size 1 are repeated where another operand is longer.
    pub(super) fn resolve(&self, shapes: &[&Shape]) -> Result<Views, (usize, String)> {
        let mut dims = 0;
        for (i, (term, shape)) in self.inputs.iter().zip(shapes).enumerate() {
            let named = term.before.len() + term.after.len();
            let rest = shape.rank().checked_sub(named).filter(|rest| *rest == 0 || term.ellipsis);
            dims = dims.max(rest.ok_or_else(|| (i, format!("{named} dimensions, as the equation has")))?);
        }
        let mut views = Views { operands: Vec::new(), sizes: Vec::new(), output: self.output(dims) };
        for (i, (term, shape)) in self.inputs.iter().zip(shapes).enumerate() {
            let own = shape.rank() - term.before.len() - term.after.len();
            let mut axes: Vec<(Label, isize)> = Vec::new();
            for ((label, &size), stride) in
                term.labels(own).into_iter().zip(shape.iter()).zip(shape.strides())
            {
                let stride = if size == 1 { 0 } else { stride as isize };
                // A label that an operand has twice walks its diagonal.
                match axes.iter_mut().find(|(l, _)| *l == label) {
                    Some((_, sum)) => *sum += stride,
                    None => axes.push((label, stride)),
                }
                match views.sizes.iter_mut().find(|(l, _)| *l == label) {
                    None => views.sizes.push((label, size)),
                    Some((_, known)) if *known == 1 => *known = size,
                    Some((_, known)) if *known == size || size == 1 => {}
                    Some((_, known)) => return Err((i, format!("size {known} where it has {size}"))),
                }
            }
            views.operands.push(View { axes });
        }
        Ok(views)
    }
}
