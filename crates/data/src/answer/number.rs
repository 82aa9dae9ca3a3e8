//! Finite numbers as Python's `float()` parses them.
//!
//! The families' graders are Python programs, so numbers follow Python's syntax: surrounding white
//! space, `1_000`, `5.`, `.5` and `1e3` are accepted. Python also accepts `inf` and `nan`; here
//! they are `None`, as is overflow, because an infinite answer must not vote.

/// The value of Python's `float(text)`, if it is finite.
pub(crate) fn python_float(text: &str) -> Option<f64> {
    let digits = without_underscores(text.trim())?;
    let decimal = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
    if !digits.bytes().all(decimal) {
        return None; // Rust's parser accepts "inf" and "nan".
    }
    digits.parse().ok().filter(|x: &f64| x.is_finite())
}

/// Python's `float(text.replace(",", "").strip())`, if it is finite.
///
/// Python reads `2516_8` as 25168. Here a number with a base is a formula and is not parsed.
pub fn parse_number(text: &str) -> Option<f64> {
    float_without_base(text.replace(',', "").trim_matches(is_space))
}

/// [`python_float`], except that an underscore before the last one or two digits denotes a base.
pub(crate) fn float_without_base(text: &str) -> Option<f64> {
    let subscript = text.trim().rsplit_once('_').map(|(_, subscript)| subscript);
    let has_base = subscript.is_some_and(|subscript| subscript.len() <= 2);
    if has_base { None } else { python_float(text) }
}

/// White space of Python's `str.strip` and `\s`: Unicode white space and the four ASCII separators,
/// which `float` itself does not skip.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Removes underscores; `None` if one is not between two digits, which Python rejects.
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
