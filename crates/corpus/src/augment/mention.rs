//! The numbers mentioned in a question: their positions, their format, and whether they may change.
//!
//! Numbers whose change would break the text are fixed: ordinals, clock times, years, labels, parts
//! of larger numerals, and the number 1. `context` implements these rules.

use std::ops::Range;

use super::context;
use super::lexer::{QuestionToken, TokenKind};
use super::number_words::{denominator, magnitude, unit_after_tens, word_value};
use super::rational::Rational;

/// Format of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberStyle {
    /// `1,200` or `2.50`.
    Digits {
        /// Whether thousands are separated by commas.
        commas: bool,
        /// Digits after the point.
        decimals: u32,
    },
    /// `three`, or `Three`.
    Words {
        /// Whether the first letter is a capital.
        capital: bool,
    },
}

/// The unit of a number, inferred from the surrounding words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MentionUnit {
    /// `60%` or `60 percent`.
    pub(super) percent: bool,
    /// `$60`.
    pub(super) dollars: bool,
    /// The word after the number in the singular; empty if there is none.
    pub(super) noun: String,
    /// The word after the noun.
    pub(super) after_noun: String,
}

/// One number of a question.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NumberMention {
    /// Byte range in the question.
    pub(super) range: Range<usize>,
    pub(super) value: Rational,
    pub(super) style: NumberStyle,
    pub(super) unit: MentionUnit,
    /// Whether it must not change.
    pub(super) fixed: bool,
    /// Whether it refers back to things mentioned before: `the 5 boxes`.
    pub(super) refers_back: bool,
    /// Whether it is a part of a fraction.
    pub(super) in_fraction: bool,
}

/// A fraction such as `3/4`, given by the indices of its mentions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FractionMention {
    pub(super) numerator: usize,
    pub(super) denominator: usize,
}

/// All numbers of a question.
#[derive(Debug, Clone, Default)]
pub(super) struct QuestionNumbers {
    /// In the order of the text.
    pub(super) mentions: Vec<NumberMention>,
    pub(super) fractions: Vec<FractionMention>,
    /// Values in a format that is never rewritten, such as `two-thirds`.
    pub(super) stated: Vec<Rational>,
}

impl QuestionNumbers {
    /// Finds the numbers among a question's tokens.
    pub(super) fn scan(tokens: &[QuestionToken]) -> Self {
        let mut numbers = Self::default();
        let mut at = 0;
        while at < tokens.len() {
            let read = match tokens[at].kind {
                TokenKind::Number => numbers.digits(tokens, at),
                TokenKind::Word => numbers.words(tokens, at),
                TokenKind::Mark => None,
            };
            at += read.unwrap_or(1);
        }
        numbers.fix_references();
        numbers
    }

    /// Scans a number in digits; returns the number of tokens read.
    fn digits(&mut self, tokens: &[QuestionToken], at: usize) -> Option<usize> {
        let value = Rational::parse(&tokens[at].text)?;
        if let Some(read) = self.fraction(tokens, at, value) {
            return Some(read);
        }
        if let Some(factor) = tokens.get(at + 1).and_then(|next| magnitude(&next.text)) {
            self.stated.extend([value, Rational::whole(factor)]);
            self.stated.extend(value.mul(Rational::whole(factor)));
            return Some(2);
        }
        let text = &tokens[at].text;
        let decimals = text.split_once('.').map_or(0, |(_, decimals)| decimals.len() as u32);
        let style = NumberStyle::Digits { commas: text.contains(','), decimals };
        self.push(tokens, at..at + 1, value, style);
        Some(1)
    }

    /// Scans a fraction of two integers, which is fixed if a number precedes it (`2 1/2`).
    fn fraction(
        &mut self,
        tokens: &[QuestionToken],
        at: usize,
        numerator: Rational,
    ) -> Option<usize> {
        let [_, slash, denominator, ..] = &tokens[at..] else { return None };
        let bottom = Rational::parse(&denominator.text)?;
        let adjacent = |a: &QuestionToken, b: &QuestionToken| a.range.end == b.range.start;
        let is_fraction = slash.text == "/"
            && adjacent(&tokens[at], slash)
            && adjacent(slash, denominator)
            && numerator.is_whole()
            && bottom.is_whole();
        let value = numerator.div(bottom).filter(|_| is_fraction)?;
        let longer = tokens.get(at + 3).is_some_and(|next| next.text == "/");
        let mixed = at > 0 && tokens[at - 1].kind == TokenKind::Number;
        let with_noun = |numbers: &mut Self, token| {
            let style = NumberStyle::Digits { commas: false, decimals: 0 };
            numbers.push(tokens, token..token + 1, Rational::parse(&tokens[token].text)?, style);
            let mention = numbers.mentions.last_mut()?;
            mention.in_fraction = true;
            mention.fixed = false;
            mention.refers_back = false;
            mention.unit = MentionUnit::default();
            Some(numbers.mentions.len() - 1)
        };
        if mixed && let Some(whole) = self.mentions.last_mut() {
            whole.fixed = true;
            self.stated.extend(whole.value.add(value));
        }
        let numerator = with_noun(self, at)?;
        let denominator = with_noun(self, at + 2)?;
        // `1/2` is fixed, because it can also be read as a half, as are improper fractions.
        let fine = value < Rational::ONE && bottom > Rational::whole(2);
        if longer || mixed || !fine || bottom > Rational::whole(12) {
            self.mentions[numerator].fixed = true;
            self.mentions[denominator].fixed = true;
        }
        self.fractions.push(FractionMention { numerator, denominator });
        Some(3)
    }

    /// Scans a number in words; returns the number of tokens read.
    fn words(&mut self, tokens: &[QuestionToken], at: usize) -> Option<usize> {
        let mut value = word_value(&tokens[at].text)?;
        let mut read = 1;
        let after = |read: usize, skip: usize| tokens.get(at + read + skip);
        let hyphen = usize::from(after(read, 0).is_some_and(|next| next.text == "-"));
        if let Some(unit) = after(read, hyphen).and_then(|next| unit_after_tens(value, &next.text))
        {
            value += unit;
            read += 1 + hyphen;
        }
        let hyphen = usize::from(after(read, 0).is_some_and(|next| next.text == "-"));
        let next = after(read, hyphen).map_or("", |next| &next.text);
        if let Some(factor) = magnitude(next) {
            let numbers = [value, factor, value * factor];
            self.stated.extend(numbers.map(Rational::whole));
            return Some(read + hyphen + 1);
        }
        if let Some(parts) = denominator(next).filter(|_| value < 10) {
            self.stated.extend([value, parts].map(Rational::whole));
            self.stated.extend(Rational::new(value, parts));
            self.stated.extend(Rational::new(parts - value, parts));
            return Some(read + hyphen + 1);
        }
        let style = NumberStyle::Words { capital: tokens[at].capital };
        self.push(tokens, at..at + read, Rational::whole(value), style);
        Some(read)
    }

    fn push(
        &mut self,
        tokens: &[QuestionToken],
        span: Range<usize>,
        value: Rational,
        style: NumberStyle,
    ) {
        let range = tokens[span.start].range.start..tokens[span.end - 1].range.end;
        self.mentions.push(NumberMention {
            range,
            value,
            style,
            unit: context::unit(tokens, &span),
            fixed: context::is_fixed(tokens, &span, value),
            refers_back: context::refers_back(tokens, &span),
            in_fraction: false,
        });
    }

    /// Fixes numbers that refer back to no mentioned number: they count things listed in the text.
    fn fix_references(&mut self) {
        for at in 0..self.mentions.len() {
            let (before, mention) = self.mentions.split_at_mut(at);
            let introduced = |earlier: &NumberMention| {
                earlier.value == mention[0].value
                    && !earlier.in_fraction
                    && earlier.unit.noun == mention[0].unit.noun
            };
            if mention[0].refers_back && !before.iter().any(introduced) {
                mention[0].fixed = true;
            }
        }
    }
}
