//! Numbers as Python's `float()` reads them, less the ones that are not finite.
//!
//! The families' own judges are Python, so what counts as a number is decided by its parser:
//! surrounding white space, `1_000`, `5.`, `.5` and `1e3` are numbers. `inf` and `nan` are too, for
//! Python; here they are `None`, as is anything that overflows, because an infinite answer must not
//! vote.

/// What `float(text)` returns, if that is finite.
pub(crate) fn python_float(text: &str) -> Option<f64> {
    let digits = without_underscores(text.trim())?;
    let decimal = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
    if !digits.bytes().all(decimal) {
        return None; // Rust would take "inf" and "nan".
    }
    digits.parse().ok().filter(|x: &f64| x.is_finite())
}

/// `float(text.replace(",", "").strip())`: commas, wherever they stand, mean nothing.
pub fn parse_number(text: &str) -> Option<f64> {
    python_float(text.replace(',', "").trim_matches(is_space))
}

/// White space for Python's `str.strip` and `\s`: Unicode's, and the four ASCII separators, which
/// `float` itself does not pass over.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Drops underscores; `None` if one does not stand between two digits, where Python refuses it.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_digit =
        |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let misplaced =
        |at: usize| bytes[at] == b'_' && !(is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)));
    if (0..bytes.len()).any(misplaced) {
        return None;
    }
    Some(text.replace('_', ""))
}
