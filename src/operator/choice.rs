//! What a lowering may choose between, and what was chosen for it.
//!
//! A lowering that can do its work in several ways names them as candidates, first the one that it takes by what it knows
//! of the device. [`Choices`] hold those that were measured to be faster; without an entry the first one stays.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};

use crate::dtype::DType;

/// The longest text of a key or of a candidate's name, in bytes.
pub const MAX_TEXT: usize = 256;

/// What a choice is for: the place in a lowering, the element type, and sizes in classes of similar ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct ChoiceKey(String);

impl ChoiceKey {
    /// A key of place `site` for elements of `dtype`.
    pub fn new(site: &str, dtype: DType) -> Self {
        ChoiceKey(format!("{site} {dtype}"))
    }

    /// Adds a size. Sizes within an eighth of each other are alike, where one multiple of 4 or of 8 is the other's.
    pub fn size(mut self, name: &str, size: usize) -> Self {
        let unit = [8, 4].into_iter().find(|unit| size.is_multiple_of(*unit)).unwrap_or(1);
        // To a string that cannot fail.
        let _ = write!(self.0, " {name}={}", class(size));
        if unit > 1 && class(size) != 0 {
            let _ = write!(self.0, ":{unit}");
        }
        self
    }

    /// Adds a value that must be the same.
    pub fn exact(mut self, name: &str, value: impl Display) -> Self {
        let _ = write!(self.0, " {name}={value}");
        self
    }

    /// Adds a word where `set`.
    pub fn flag(mut self, word: &str, set: bool) -> Self {
        if set {
            let _ = write!(self.0, " {word}");
        }
        self
    }

    /// The key in words.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for ChoiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A size by its four leading binary digits.
fn class(size: usize) -> usize {
    let shift = (usize::BITS - size.leading_zeros()).saturating_sub(4);
    (size >> shift) << shift
}

/// One way to do the work of a lowering: a plain value with a name, unique among those of one place.
pub trait Candidate {
    /// The kernel, and what its tile or split is.
    fn name(&self) -> String;
}

/// The candidates chosen for one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    chosen: BTreeMap<ChoiceKey, String>,
}

impl Choices {
    /// The candidate chosen for `key`.
    pub fn get(&self, key: &ChoiceKey) -> Option<&str> {
        self.chosen.get(key).map(String::as_str)
    }

    /// Chooses the candidate called `name` for `key`.
    pub fn set(&mut self, key: ChoiceKey, name: String) {
        self.chosen.insert(key, name);
    }

    /// The same choices with another one.
    pub fn with(&self, key: &ChoiceKey, name: &str) -> Choices {
        let mut all = self.clone();
        all.set(key.clone(), name.to_owned());
        all
    }

    /// Number of choices.
    pub fn len(&self) -> usize {
        self.chosen.len()
    }

    /// Whether there is no choice.
    pub fn is_empty(&self) -> bool {
        self.chosen.is_empty()
    }
}

/// What a lowering asked and what it took.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Asked {
    /// What the choice is for.
    pub key: ChoiceKey,
    /// Names of the candidates; the first is the one by the model of the device.
    pub candidates: Vec<String>,
    /// The position of the one that was taken.
    pub taken: usize,
}

impl Asked {
    /// The name of the candidate that was taken.
    pub fn name(&self) -> &str {
        self.candidates.get(self.taken).map_or("", String::as_str)
    }

    /// The name of the candidate that is taken without a choice.
    pub fn default_name(&self) -> &str {
        self.candidates.first().map_or("", String::as_str)
    }

    /// Whether a choice changed what is taken.
    pub fn is_changed(&self) -> bool {
        self.taken != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::Lowering;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Tile(usize);

    impl Candidate for Tile {
        fn name(&self) -> String {
            format!("tile/{}", self.0)
        }
    }

    fn key(m: usize) -> ChoiceKey {
        ChoiceKey::new("product", DType::F32).size("m", m).exact("batch", 2).flag("biased", m > 4)
    }

    #[test]
    fn similar_sizes_share_a_key() {
        assert_eq!(key(1000).as_str(), "product float32 m=960:8 batch=2 biased");
        assert_eq!([key(960), key(1016)], [key(1000), key(1000)]);
        assert_ne!(key(1000), key(1004), "multiples of 8 and of 4 are read differently");
        assert_ne!(key(1000), key(1024));
        assert_eq!(key(1).as_str(), "product float32 m=1 batch=2");
        assert_eq!(key(0).as_str(), "product float32 m=0 batch=2");
        assert!(key(usize::MAX).as_str().len() < MAX_TEXT);
    }

    #[test]
    fn the_default_is_taken_unless_another_candidate_is_chosen() {
        let device = crate::registry::Registry::with_defaults().find("sim").unwrap();
        let take = |choices: Option<&Choices>| {
            let mut lower = Lowering::new(&device);
            if let Some(choices) = choices {
                lower = lower.with_choices(choices);
            }
            let taken = lower.choose(Tile(64), |_| (key(9), vec![Tile(32), Tile(64), Tile(128)]));
            (taken, lower.finish().asked)
        };
        // Without choices the key is not made.
        assert_eq!(take(None), (Tile(64), vec![]));
        let mut choices = Choices::default();
        let (taken, asked) = take(Some(&choices));
        assert_eq!((taken, asked[0].name(), asked[0].is_changed()), (Tile(64), "tile/64", false));
        assert_eq!(asked[0].candidates, ["tile/64", "tile/32", "tile/128"]);
        choices.set(key(9), "tile/128".to_owned());
        let (taken, asked) = take(Some(&choices));
        assert_eq!((taken, asked[0].is_changed(), asked[0].default_name()), (Tile(128), true, "tile/64"));
        // A name that is no candidate here, and a choice for something else.
        assert_eq!(take(Some(&choices.with(&key(9), "tile/7"))).0, Tile(64));
        assert_eq!(take(Some(&Choices::default().with(&key(99), "tile/32"))).0, Tile(64));
    }
}
