//! Verifiable steps: the arithmetic of the equations in a text, and the origin of their operands.
//!
//! Written steps contain equations (`<<48/2=24>>`, `48 / 2 = 24`), and so do the thoughts of a
//! reasoner that predicts a step's tokens, read through the LM head. Verifying them requires no
//! labels: values are fractions of integers, so nothing is rounded. A stated result with decimals
//! is correct if it is the exact value rounded to that number of decimals.

mod expression;
mod fraction;

use expression::{Token, tokenize};
pub use fraction::Fraction;

/// The result of checking the equations of a text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepCheck {
    /// Number of equations with an operation on their left side.
    pub equations: usize,
    /// Number of equations whose two sides are equal.
    pub correct: usize,
    /// Number of operands on the left sides.
    pub operands: usize,
    /// Number of operands that are a number of the question or the result of an earlier equation.
    pub grounded: usize,
    /// The stated result of the last equation.
    pub result: Option<Fraction>,
}

impl StepCheck {
    /// The share of correct equations; `None` without equations.
    pub fn arithmetic(&self) -> Option<f32> {
        share(self.correct, self.equations)
    }

    /// The share of operands that come from the question or an earlier equation.
    pub fn grounding(&self) -> Option<f32> {
        share(self.grounded, self.operands)
    }

    /// 1 if an answer is the last equation's result, else 0.
    pub fn conclusion(&self, answer: &str) -> Option<f32> {
        let result = self.result?;
        let answer = expression::evaluate(&tokenize(answer));
        Some(f32::from(u8::from(answer == Some(result))))
    }
}

fn share(count: usize, of: usize) -> Option<f32> {
    (of > 0).then(|| count as f32 / of as f32)
}

/// Checks the equations of a text, step by step.
///
/// ```
/// let question = "A box has 48 clips, half are red.";
/// let check = latent_tts_aggregate::check_steps(question, "<<48/2=24>>");
/// assert_eq!((check.equations, check.correct), (1, 1));
/// assert_eq!(check.conclusion("24"), Some(1.0));
/// ```
pub fn check_steps(question: &str, steps: &str) -> StepCheck {
    let mut known = numbers(question);
    known.extend(number_words(question));
    let mut check = StepCheck::default();
    for segment in tokenize(steps).split(|token| *token == Token::Break) {
        let sides: Vec<&[Token]> = segment.split(|token| *token == Token::Equals).collect();
        for pair in sides.windows(2) {
            add_equation(pair[0], pair[1], &mut known, &mut check);
        }
    }
    check
}

/// Adds the equation of two sides, if it can be checked.
fn add_equation(left: &[Token], right: &[Token], known: &mut Vec<Fraction>, check: &mut StepCheck) {
    // A side without an operation only states a value, and an equation without a result is
    // unfinished.
    let is_operation = left.iter().any(|token| matches!(token, Token::Operator(_)));
    let operands: Vec<Fraction> = left.iter().filter_map(Token::value).collect();
    let stated = match right {
        [] => return,
        [Token::Number(number)] => Some(*number),
        _ => None,
    };
    if !is_operation || operands.is_empty() {
        return;
    }
    check.equations += 1;
    check.operands += operands.len();
    check.grounded += operands.iter().filter(|operand| known.contains(operand)).count();
    let exact = expression::evaluate(left);
    let result = stated.map(|number| number.value).or_else(|| expression::evaluate(right));
    let decimals = stated.map_or(0, |number| number.decimals);
    let holds = exact.zip(result).is_some_and(|(exact, result)| exact.rounds_to(result, decimals));
    check.correct += usize::from(holds);
    if let Some(result) = result {
        known.extend(result.magnitude());
        check.result = Some(result);
    }
}

/// The numbers in a text, without signs, parsed like operands.
fn numbers(text: &str) -> Vec<Fraction> {
    tokenize(text).iter().filter_map(Token::value).collect()
}

/// Numbers written as words.
fn number_words(text: &str) -> impl Iterator<Item = Fraction> {
    const WORDS: [(&str, i128); 21] = [
        ("one", 1),
        ("two", 2),
        ("three", 3),
        ("four", 4),
        ("five", 5),
        ("six", 6),
        ("seven", 7),
        ("eight", 8),
        ("nine", 9),
        ("ten", 10),
        ("eleven", 11),
        ("twelve", 12),
        ("twenty", 20),
        ("thirty", 30),
        ("half", 2),
        ("twice", 2),
        ("double", 2),
        ("third", 3),
        ("triple", 3),
        ("quarter", 4),
        ("dozen", 12),
    ];
    let word = |word: &str| {
        let word = word.to_ascii_lowercase();
        WORDS.iter().find(|(name, _)| *name == word).map(|(_, value)| Fraction::integer(*value))
    };
    text.split(|c: char| !c.is_alphabetic()).filter_map(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(steps: &str) -> (usize, usize) {
        let check = check_steps("", steps);
        (check.equations, check.correct)
    }

    #[test]
    fn equations_are_verified_exactly() {
        for (steps, expected) in [
            ("<<48/2=24>><<48+24=72>>", (2, 2)),
            ("<<48/2=25>>", (1, 0)),
            ("48 / 2 = 24 clips, then 24 + 48 = 70.", (2, 1)),
            ("(3 + 4) * 2 = 14", (1, 1)),
            ("3 + 4 * 2 = 11 = 11", (1, 1)),
            ("3 + 4 = 7 * 1 = 7", (2, 2)),
            ("2 x 1,000 = 2000", (1, 1)),
            ("-3 + 5 = 2", (1, 1)),
            ("5 - -3 = 8", (1, 1)),
            ("200 * 15% = 30", (1, 1)),
            ("$.5*4=$2", (1, 1)),
            ("0.1 + 0.2 = 0.3", (1, 1)),
            ("10/3 = 3.33", (1, 1)),
            ("10/3 = 3.34", (1, 0)),
            ("10/3 = 3", (1, 0)),
            ("7/0 = 7", (1, 0)),
            ("3 + = 7", (1, 0)),
            ("((3 + 4 = 7", (1, 0)),
            ("x = 5, total = 6", (0, 0)),
            ("5 + 6 =", (0, 0)),
            ("no equations", (0, 0)),
            ("", (0, 0)),
        ] {
            assert_eq!(counts(steps), expected, "{steps}");
        }
    }

    #[test]
    fn operands_come_from_the_question_or_from_earlier_results() {
        let question = "Tom has 48 clips and gives away half of them, then buys three.";
        let check = check_steps(question, "<<48/2=24>><<24+3=27>><<27*9=243>>");
        assert_eq!((check.operands, check.grounded), (6, 5));
        assert_eq!(check.arithmetic(), Some(1.0));
        assert_eq!(check.grounding(), Some(5.0 / 6.0));
        assert_eq!(check.conclusion("243"), Some(1.0));
        assert_eq!(check.conclusion("27"), Some(0.0));
        assert_eq!(check_steps(question, "27").conclusion("27"), None);
        assert_eq!(check_steps("", "3-8=-5").conclusion("-5"), Some(1.0));
    }

    #[test]
    fn hostile_text_neither_panics_nor_counts() {
        let deep = "(".repeat(100_000) + "1+1=2";
        assert_eq!(counts(&deep), (1, 0));
        let huge = format!("{}*{}=1", "9".repeat(60), "9".repeat(60));
        counts(&huge);
        let product = format!("{}=1", ["999999999999"; 40].join("*"));
        assert_eq!(counts(&product), (1, 0));
        counts("1.2.3+..4==5=،٣+٤=٧ <<=>> 1e5+1=100001 %%=1");
    }
}
