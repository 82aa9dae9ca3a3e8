//! Tokenizes a question into words, numbers and marks, with their positions in the text.

use std::ops::Range;

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Digits with separators, such as `1,200` or `2.50`.
    Number,
    /// Letters, with apostrophes between them.
    Word,
    /// Any other character that is not white space.
    Mark,
}

/// A token of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QuestionToken {
    pub(super) kind: TokenKind,
    /// The text in lower case, with straight apostrophes.
    pub(super) text: String,
    /// Byte range in the question.
    pub(super) range: Range<usize>,
    /// Whether it starts with a capital letter.
    pub(super) capital: bool,
}

/// Splits a question into tokens.
pub(super) fn tokens(question: &str) -> Vec<QuestionToken> {
    let mut tokens = Vec::new();
    let mut start = 0;
    while let Some(first) = question[start..].chars().next() {
        let rest = &question[start..];
        let (kind, length) = match first {
            c if c.is_whitespace() => {
                start += c.len_utf8();
                continue;
            }
            c if c.is_alphabetic() => (TokenKind::Word, word_length(rest)),
            _ => match number_length(rest) {
                0 => (TokenKind::Mark, first.len_utf8()),
                length => (TokenKind::Number, length),
            },
        };
        let range = start..start + length;
        let text = question[range.clone()].to_lowercase().replace('’', "'");
        tokens.push(QuestionToken { kind, text, range, capital: first.is_uppercase() });
        start += length;
    }
    tokens
}

/// Length in bytes of the word at the start: letters, and apostrophes before a letter.
fn word_length(text: &str) -> usize {
    let mut length = 0;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let inside = matches!(c, '\'' | '’') && chars.peek().is_some_and(|c| c.is_alphabetic());
        if !(c.is_alphabetic() || inside) {
            break;
        }
        length += c.len_utf8();
    }
    length
}

/// Length in bytes of the number at the start: digits, groups of three after commas, decimals.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        bytes[from.min(bytes.len())..].iter().take_while(|byte| byte.is_ascii_digit()).count()
    };
    let mut length = digits(0);
    while length > 0 && bytes.get(length) == Some(&b',') && digits(length + 1) == 3 {
        length += 4;
    }
    if bytes.get(length) == Some(&b'.') && digits(length + 1) > 0 {
        length += 1 + digits(length + 1);
    }
    length
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_words_and_marks_are_told_apart() {
        let texts: Vec<String> =
            tokens("Jo's $1,200.50, 3-year 1,2 (.5%).").into_iter().map(|t| t.text).collect();
        let expected = [
            "jo's", "$", "1,200.50", ",", "3", "-", "year", "1", ",", "2", "(", ".5", "%", ")", ".",
        ];
        assert_eq!(texts, expected);
    }

    proptest! {
        #[test]
        fn tokens_cover_everything_but_white_space(text in ".{0,60}") {
            let mut at = 0;
            for token in tokens(&text) {
                prop_assert!(text[at..token.range.start].chars().all(char::is_whitespace));
                at = token.range.end;
            }
            prop_assert!(text[at..].chars().all(char::is_whitespace));
        }
    }
}
