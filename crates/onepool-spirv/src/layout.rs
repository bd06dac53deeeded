//! How a built kernel walks its operands: one or four elements for each invocation, and how each input is read.

use super::types::ScalarType;
use onepool_expr::{Indexing, PointwiseDesc, PointwiseError, Term};

/// What values are, whatever their width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Float,
    Signed,
    Unsigned,
}

impl Number {
    pub(super) fn of(element: ScalarType) -> Self {
        match element {
            ScalarType::F16 | ScalarType::Bf16 | ScalarType::F32 | ScalarType::F64 => Number::Float,
            ScalarType::I8 | ScalarType::I16 | ScalarType::I32 | ScalarType::I64 => Number::Signed,
            ScalarType::Bool | ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 => {
                Number::Unsigned
            }
        }
    }
}

/// How an invocation reads one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fetch {
    /// The element, or the four of them, at its own place.
    Full,
    /// One element for all that the invocation computes.
    One(Walk),
    /// Four neighbours; of kernels of four lanes.
    Four(Walk),
    /// An element for each lane, each with its own index; of kernels of four lanes.
    Each(Walk),
}

impl Fetch {
    /// How its index is computed; `None` where it is the invocation's own.
    pub fn walk(self) -> Option<Walk> {
        match self {
            Fetch::Full => None,
            Fetch::One(walk) | Fetch::Four(walk) | Fetch::Each(walk) => Some(walk),
        }
    }

    /// Whether its buffer is one of whole vectors.
    pub fn is_vector(self) -> bool {
        matches!(self, Fetch::Full | Fetch::Four(_))
    }
}

/// An index that is a sum of terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Walk {
    /// How many terms.
    pub terms: usize,
    /// Whether the last one wraps within the kernel's range, so that its modulus counts.
    pub wraps: bool,
}

/// The form of a built kernel apart from its arithmetic. Equal layouts of equal descriptions give equal words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelLayout {
    /// The elements' type, that of all operands.
    pub element: ScalarType,
    /// Elements for each invocation: 1 or 4.
    pub lanes: u32,
    /// Whether vectors are read through RGBA32F texel views.
    pub texels: bool,
    /// Whether outputs are bytes, 1 where the value is not 0.
    pub tests: bool,
    /// How each input is read.
    pub inputs: Vec<Fetch>,
}

/// A layout with the numbers of one dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// The layout.
    pub layout: KernelLayout,
    /// Its specialization constants, (id, value): divisor, modulus and stride of each term.
    pub spec: Vec<(u32, u32)>,
    /// Invocations; the kernel's only parameter.
    pub items: u32,
}

/// The specialization constant of word `word` of term `term`, all inputs counted; 0 is the work-group size.
pub(super) fn spec_id(term: usize, word: usize) -> u32 {
    1 + (3 * term + word) as u32
}

impl KernelLayout {
    /// The layout for a dispatch over `len` elements with the terms of each input: four elements for each
    /// invocation where type and length allow it.
    ///
    /// # Errors
    /// The terms are not those of the description.
    pub fn of(
        desc: &PointwiseDesc,
        element: ScalarType,
        len: u32,
        terms: &[Vec<Term>],
    ) -> Result<Walked, PointwiseError> {
        let wrong = |what, found, expected| Err(PointwiseError::WrongCount { what, found, expected });
        if terms.len() != desc.inputs().len() {
            return wrong("inputs", terms.len(), desc.inputs().len());
        }
        let lanes = if element.bytes() <= 4 && len.is_multiple_of(4) { 4 } else { 1 };
        let (mut inputs, mut words) = (Vec::new(), Vec::new());
        for (input, (indexing, terms)) in desc.inputs().iter().zip(terms).enumerate() {
            if *indexing == Indexing::Full {
                inputs.push(Fetch::Full);
                continue;
            }
            if terms.len() != indexing.terms() {
                return wrong("terms", terms.len(), indexing.terms());
            }
            if terms.iter().any(|term| term.div == 0 || term.modulo == 0) {
                return Err(PointwiseError::ZeroTerm { input });
            }
            let last = terms.last().map(|term| u64::from(term.div) * u64::from(term.modulo));
            let walk = Walk { terms: terms.len(), wraps: last.is_some_and(|end| end < u64::from(len)) };
            let (fetch, scaled) = fetch(walk, lanes, terms);
            inputs.push(fetch);
            words.extend(scaled.iter().flat_map(|term| [term.div, term.modulo, term.stride]));
        }
        let spec = words.iter().enumerate().map(|(at, word)| (spec_id(at / 3, at % 3), *word)).collect();
        Ok(Walked {
            layout: KernelLayout { element, lanes, texels: false, tests: false, inputs },
            spec,
            items: len / lanes,
        })
    }

    /// The same layout with vectors read through texel views, where its elements have those.
    pub fn with_texels(self) -> Self {
        KernelLayout { texels: self.lanes == 4 && self.element == ScalarType::F32, ..self }
    }
}

impl Walked {
    /// The same for outputs that are bytes.
    pub fn with_tests(self) -> Self {
        Walked { layout: KernelLayout { tests: true, ..self.layout }, ..self }
    }
}

/// How an input of these terms is read, and the terms in the invocation's units.
fn fetch(walk: Walk, lanes: u32, terms: &[Term]) -> (Fetch, Vec<Term>) {
    if lanes == 1 {
        return (Fetch::One(walk), terms.to_vec());
    }
    let whole = |term: &Term| term.div.is_multiple_of(4);
    if terms.iter().all(whole) {
        let scaled = terms.iter().map(|term| Term { div: term.div / 4, ..*term });
        return (Fetch::One(walk), scaled.collect());
    }
    let quads = |term: &Term| match term.div {
        1 => term.stride == 1 && term.modulo.is_multiple_of(4),
        _ => whole(term) && term.stride.is_multiple_of(4),
    };
    if !terms.iter().all(quads) {
        return (Fetch::Each(walk), terms.to_vec());
    }
    let scaled = terms.iter().map(|term| match term.div {
        1 => Term { modulo: term.modulo / 4, ..*term },
        _ => Term { div: term.div / 4, stride: term.stride / 4, ..*term },
    });
    (Fetch::Four(walk), scaled.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use onepool_expr::broadcast_terms;

    fn layout(output: &[u32], inputs: &[&[u32]]) -> Walked {
        let len = output.iter().product();
        let terms: Vec<Vec<Term>> =
            inputs.iter().map(|input| broadcast_terms(output, input).unwrap()).collect();
        let indexing: Vec<Indexing> = terms.iter().map(|terms| Indexing::of(terms, len)).collect();
        KernelLayout::of(&PointwiseDesc::new(indexing), ScalarType::F32, len, &terms).unwrap()
    }

    #[test]
    fn operands_are_read_in_the_widest_way() {
        let walked = layout(&[2, 3, 8], &[&[2, 3, 8], &[3, 1], &[8], &[], &[2, 1, 8]]);
        let walk = |terms, wraps| Walk { terms, wraps };
        let expected = [
            Fetch::Full,
            Fetch::One(walk(1, true)),
            Fetch::Four(walk(1, true)),
            Fetch::One(walk(0, false)),
            Fetch::Four(walk(2, false)),
        ];
        assert_eq!((walked.layout.lanes, &walked.layout.inputs[..], walked.items), (4, &expected[..], 12));
        let words: Vec<u32> = walked.spec.iter().map(|(_, word)| *word).collect();
        // In vectors: (div, modulo, stride).
        assert_eq!(words, [2, 3, 1, 1, 2, 1, 1, 2, 1, 6, 2, 2]);
        assert!(walked.spec.iter().enumerate().all(|(at, (id, _))| *id == at as u32 + 1));
        // Rows of an odd length.
        let walked = layout(&[4, 3], &[&[3], &[4, 1]]);
        let expected = [Fetch::Each(walk(1, true)), Fetch::Each(walk(1, false))];
        assert_eq!((walked.layout.lanes, &walked.layout.inputs[..]), (4, &expected[..]));
        let walked = layout(&[3, 3], &[&[3], &[]]);
        let expected = [Fetch::One(walk(1, true)), Fetch::One(walk(0, false))];
        assert_eq!((walked.layout.lanes, &walked.layout.inputs[..], walked.items), (1, &expected[..], 9));
        assert!(!walked.layout.with_texels().texels);
    }

    #[test]
    fn wrong_terms_are_errors() {
        let term = Term { div: 4, modulo: 3, stride: 1 };
        let desc = PointwiseDesc::new([Indexing::Full, Indexing::of(&[term], 24)]);
        assert!(KernelLayout::of(&desc, ScalarType::F32, 24, &[vec![], vec![term]]).is_ok());
        let counts = [vec![vec![]], vec![vec![], vec![]]];
        for terms in counts {
            let error = KernelLayout::of(&desc, ScalarType::F32, 24, &terms).unwrap_err();
            assert!(matches!(error, PointwiseError::WrongCount { .. }));
        }
        let zero = KernelLayout::of(&desc, ScalarType::F32, 24, &[vec![], vec![Term { div: 0, ..term }]]);
        assert_eq!(zero, Err(PointwiseError::ZeroTerm { input: 1 }));
    }
}
