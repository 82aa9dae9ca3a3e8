//! Which split a question may appear in.

use std::str::FromStr;

/// A part of the corpus. No question of one is ever in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Split {
    /// To learn from: like `Test`, with larger numbers in one problem of ten.
    Train = 0,
    /// To choose settings by: like `Test`.
    Valid = 1,
    /// To report.
    Test = 2,
    /// Larger numbers: operands to 800, results to 99,999.
    Hard = 3,
    /// Two steps, in combinations of phrases that training never shows.
    Ood = 4,
}

/// One part of this many belongs to each split that is held out.
const PARTS: u64 = 16;

impl Split {
    /// All of them.
    pub const ALL: [Split; 5] = [Split::Train, Split::Valid, Split::Test, Split::Hard, Split::Ood];

    /// The split that a question belongs to, by the hash of its numbers in the order of the text.
    pub fn of_question(question: &str) -> Split {
        match numbers_hash(question) % PARTS {
            0 => Split::Valid,
            1 => Split::Test,
            2 => Split::Hard,
            3 => Split::Ood,
            _ => Split::Train,
        }
    }

    /// Its name on the command line.
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

/// A split of another name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no split is called {0:?}; there are train, valid, test, hard and ood")]
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

/// FNV-1a over the digits, one mark between numbers, stirred so that every bit counts.
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
    fn the_numbers_and_their_order_decide_and_nothing_else() {
        let split = |text: &str| Split::of_question(text);
        for (a, b) in [(3, 15), (40, 7), (120, 250), (9, 9)] {
            let one = split(&format!("Ann has {a} pears. She buys {b} more."));
            assert_eq!(one, split(&format!("There are {a} boxes of {b} pens.")));
        }
        let of = |text: &str| numbers_hash(text);
        assert_ne!(of("3 and 15."), of("15 and 3."));
        assert_ne!(of("31 and 5."), of("3 and 15."));
        assert_ne!(of("315."), of("3 and 15."));
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
