//! Splits of the corpus, and the hash that assigns questions to them.

use std::str::FromStr;

/// A split of the corpus. Splits are disjoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Split {
    /// Training: like `Test`, but one problem in ten has larger numbers.
    Train = 0,
    /// Validation: same distribution as `Test`.
    Valid = 1,
    /// Test.
    Test = 2,
    /// Larger numbers: operands up to 800, results up to 99,999.
    Hard = 3,
    /// Out of distribution: two steps, in combinations of phrases that do not occur in training.
    Ood = 4,
}

/// Each held-out split has one out of this many questions.
const PARTS: u64 = 16;

impl Split {
    /// All splits.
    pub const ALL: [Split; 5] = [Split::Train, Split::Valid, Split::Test, Split::Hard, Split::Ood];

    /// The split of a question, by a hash of its numbers in the order of the text.
    pub fn of_question(question: &str) -> Split {
        match numbers_hash(question) % PARTS {
            0 => Split::Valid,
            1 => Split::Test,
            2 => Split::Hard,
            3 => Split::Ood,
            _ => Split::Train,
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Valid => "valid",
            Split::Test => "test",
            Split::Hard => "hard",
            Split::Ood => "ood",
        }
    }
}

/// Error for an unknown name of a split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown split {0:?}; available: train, valid, test, hard and ood")]
pub struct UnknownSplit(pub String);

impl FromStr for Split {
    type Err = UnknownSplit;

    fn from_str(name: &str) -> Result<Self, UnknownSplit> {
        Self::ALL
            .into_iter()
            .find(|split| split.name() == name)
            .ok_or_else(|| UnknownSplit(name.to_owned()))
    }
}

/// FNV-1a over the digits, with one space after each number, and a final mix so that every bit
/// affects the low bits. Part of the corpus's definition: a different hash would change the splits.
fn numbers_hash(question: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut inside = false;
    for byte in question.bytes() {
        let digit = byte.is_ascii_digit();
        if digit || inside {
            hash =
                (hash ^ u64::from(if digit { byte } else { b' ' })).wrapping_mul(0x0100_0000_01b3);
        }
        inside = digit;
    }
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ hash >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_numbers_and_their_order_decide() {
        let split = |text: &str| Split::of_question(text);
        for (a, b) in [(3, 15), (40, 7), (120, 250), (9, 9)] {
            let one = split(&format!("Ann has {a} pears. She buys {b} more."));
            assert_eq!(one, split(&format!("There are {a} boxes of {b} pens.")));
        }
        for other in ["15 and 3.", "31 and 5.", "315."] {
            assert_ne!(numbers_hash(other), numbers_hash("3 and 15."));
        }
    }

    #[test]
    fn every_held_out_split_has_its_share() {
        let n = 64_000;
        for split in [Split::Valid, Split::Test, Split::Hard, Split::Ood] {
            let count = (0..n)
                .filter(|i| Split::of_question(&format!("{i} and {}", i % 97)) == split)
                .count();
            assert!((3700..4300).contains(&count), "{count} of {n} are {}", split.name());
        }
    }

    #[test]
    fn names_read_back() {
        assert!(Split::ALL.into_iter().all(|split| split.name().parse() == Ok(split)));
        assert!("tests".parse::<Split>().unwrap_err().to_string().contains("ood"));
    }
}
