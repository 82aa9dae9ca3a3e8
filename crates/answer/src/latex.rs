//! LaTeX answers: extraction of the box, normalisation of formulas, values of simple ones.
//!
//! [`normalise`] follows the Qwen2.5-Math grader, which grades Latent-SFT: it removes typesetting
//! (`\left`, spaces, `\dfrac`), decorations of a number (degrees, `%`, `$`, units) and a leading
//! `x =`. There is no symbolic algebra, so `2\sqrt{3}` and `\sqrt{12}` stay different.
//!
//! Every function makes a bounded number of passes over its text.

use super::number::python_float;

/// Rewrites, applied in this order. Row breaks come first, because the second half of `\\` would
/// otherwise be read as the start of a command.
const REWRITES: [(&str, &str); 29] = [
    ("\\\\", ";"),
    ("\n", " "),
    ("\\!", ""),
    ("\\,", ""),
    ("\\;", ""),
    ("\\ ", " "),
    ("dfrac", "frac"),
    ("tfrac", "frac"),
    ("\\neq", "\\ne"),
    ("\\leq", "\\le"),
    ("\\geq", "\\ge"),
    ("bmatrix", "pmatrix"),
    ("\\left", ""),
    ("\\right", ""),
    ("\\{", "{"),
    ("\\}", "}"),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\circ", ""),
    ("\u{b0}", ""),
    ("\\$", ""),
    ("$", ""),
    ("\\(", ""),
    ("\\)", ""),
    ("\\%", ""),
    ("%", ""),
    ("\\mathrm{", "\\text{"),
    ("\\mathbf{", "\\text{"),
    ("\\mbox{", "\\text{"),
];

/// Units that may follow a number and are dropped.
const UNITS: [&str; 41] = [
    "degree", "degrees", "dollar", "dollars", "cent", "cents", "percent", "unit", "units",
    "square", "sq", "cubic", "mm", "cm", "km", "meter", "meters", "inch", "inches", "foot", "feet",
    "ft", "yard", "yards", "mile", "miles", "mph", "second", "seconds", "minute", "minutes",
    "hour", "hours", "day", "days", "week", "weeks", "month", "months", "year", "years",
];

/// The content of the last `boxed{...}` with balanced braces; up to the end of the text if the box
/// is not closed, as when decoding reached its token limit.
pub(crate) fn boxed(text: &str) -> Option<&str> {
    let (_, inside) = text.rsplit_once("boxed{")?;
    let mut depth = 1usize;
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inside[..at]);
        }
    }
    Some(inside)
}

/// The same text for formulas that differ only in typesetting.
///
/// One rewrite can enable another (`\text{5 cm}`), so passes repeat until a fixed point. A text
/// without one after eight passes (`ddddddddddfrac`) is no formula: time is bounded, and what is
/// returned is its own normal form.
pub(crate) fn normalise(text: &str) -> Option<String> {
    let mut text = text.to_owned();
    for _ in 0..=8 {
        let next = normalise_once(&text);
        if next == text {
            return Some(text);
        }
        text = next;
    }
    None
}

fn normalise_once(text: &str) -> String {
    let mut text = text.trim().to_owned();
    for (from, to) in REWRITES {
        if text.contains(from) {
            text = text.replace(from, to);
        }
    }
    let text = unwrap_text(drop_text_unit(text.trim()));
    let text = drop_subject(drop_word_unit(text.trim().trim_end_matches('.')));
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let text = brace_fractions(&brace_roots(&text));
    let is_word = text.len() > 1 && text.chars().all(char::is_alphabetic);
    if is_word { text.to_lowercase() } else { text }
}

/// Drops a final `\text{...}`, with or without a power after it, unless it is the whole text.
fn drop_text_unit(text: &str) -> &str {
    let powers = ["^2", "^3", "^{2}", "^{3}"];
    let body = powers.iter().find_map(|power| text.strip_suffix(power)).unwrap_or(text);
    let unit = body.strip_suffix('}').and_then(|body| body.rsplit_once("\\text{"));
    match unit {
        Some((rest, unit)) if !rest.trim().is_empty() && !unit.contains('}') => rest.trim_end(),
        _ => text,
    }
}

/// `\text{Evelyn}` becomes `Evelyn`. A brace that closes no `\text` stays.
fn unwrap_text(text: &str) -> String {
    let mut pieces = text.split("\\text{");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (inside, rest) = piece.split_once('}').unwrap_or((piece, ""));
        plain.push_str(inside);
        plain.push_str(rest);
    }
    plain
}

/// `18 square feet` becomes `18`. Other words stay, because they may be the answer.
fn drop_word_unit(text: &str) -> &str {
    let Some((number, words)) = text.split_once(char::is_whitespace) else {
        return text;
    };
    let bare = |word: &str| word.trim_end_matches(['.', '^', '2', '3']).to_ascii_lowercase();
    let all_units = words.split_whitespace().all(|word| UNITS.contains(&bare(word).as_str()));
    if all_units && value(number).is_some() { number } else { text }
}

/// `x = 5` becomes `5` and `x \in [0,1]` becomes `[0,1]`, if the left side has at most two
/// characters.
fn drop_subject(text: &str) -> &str {
    // A letter after "\in" makes it another command, such as "\infty".
    let is_membership =
        |(_, rest): &(&str, &str)| !rest.starts_with(|c: char| c.is_ascii_alphabetic());
    let split = text.split_once('=').or_else(|| text.split_once("\\in").filter(is_membership));
    match split {
        Some((subject, rest)) if subject.trim().chars().count() <= 2 && !rest.contains('=') => rest,
        _ => text,
    }
}

/// `\sqrt3` becomes `\sqrt{3}`.
fn brace_roots(text: &str) -> String {
    let mut pieces = text.split("\\sqrt");
    let mut braced = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let radicand = piece.len() - piece.trim_start_matches(char::is_alphanumeric).len();
        let (inside, rest) = piece.split_at(radicand);
        braced.push_str("\\sqrt");
        braced.push_str(&if inside.is_empty() { String::new() } else { format!("{{{inside}}}") });
        braced.push_str(rest);
    }
    braced
}

/// `\frac12`, `\frac1{2}` and `\frac{1}2` become `\frac{1}{2}`.
///
/// Only arguments without nested fractions are braced; others are always written with braces.
fn brace_fractions(text: &str) -> String {
    let mut pieces = text.split("\\frac");
    let mut braced = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        braced.push_str("\\frac");
        match argument(piece).and_then(|(a, rest)| Some((a, argument(rest)?))) {
            Some((a, (b, rest))) => braced.push_str(&format!("{{{a}}}{{{b}}}{rest}")),
            None => braced.push_str(piece),
        }
    }
    braced
}

/// The first argument of a command, a `{...}` without nesting or a single character, and the rest.
fn argument(text: &str) -> Option<(&str, &str)> {
    if let Some(inside) = text.strip_prefix('{') {
        return inside.split_once('}').filter(|(argument, _)| !argument.contains('{'));
    }
    let first = text.chars().next().filter(|c| c.is_alphanumeric())?;
    Some(text.split_at(first.len_utf8()))
}

/// The value of a normalised formula that is a number, `a/b` or `\frac{a}{b}`, with an optional
/// minus.
pub(crate) fn value(text: &str) -> Option<f64> {
    let (sign, body) = match text.strip_prefix('-') {
        Some(body) => (-1.0, body),
        None => (1.0, text),
    };
    let magnitude = match parts(body) {
        Some((a, b)) => grouped(a)? / grouped(b)?,
        None => grouped(body)?,
    };
    Some(sign * magnitude).filter(|x| x.is_finite())
}

/// Numerator and denominator, if the whole text is one fraction.
fn parts(text: &str) -> Option<(&str, &str)> {
    match text.strip_prefix("\\frac{") {
        Some(rest) => rest.strip_suffix('}')?.split_once("}{"),
        None => text.split_once('/'),
    }
}

/// A number whose commas, if any, separate thousands. The grader drops every comma and so reads the
/// list `1,2` as 12; this function does not.
fn grouped(text: &str) -> Option<f64> {
    let (first, rest) = text.split_once(',').map_or((text, None), |(a, b)| (a, Some(b)));
    if let Some(rest) = rest {
        let whole = rest.split_once('.').map_or(rest, |(whole, _)| whole);
        let is_group = |group: &str| group.len() == 3 && group.bytes().all(|b| b.is_ascii_digit());
        let head = first.trim_start_matches(['+', '-']);
        if !(1..=3).contains(&head.len()) || !whole.split(',').all(is_group) {
            return None;
        }
    }
    python_float(&text.replace(',', ""))
}

/// Python's `isclose(x, gold, abs_tol=1e-4)`, or one number the other as a percentage.
///
/// The Qwen2.5-Math grader accepts a hundredth and a hundred times every gold answer, so 1800 is
/// right for 18, and 0 for 1/128, whose hundredth is below the tolerance. Here a percentage needs a
/// fraction below 1, or a gold answer with a percent sign, and its tolerance is relative as well.
pub(crate) fn close_or_percent(x: f64, gold: f64, gold_is_percent: bool) -> bool {
    let tolerance = |y: f64| (1e-9 * x.abs().max(y.abs())).max(1e-4);
    let close = |y: f64| (x - y).abs() <= tolerance(y);
    let close_scaled = |y: f64| (x - y).abs() <= tolerance(y).min(1e-3 * y.abs());
    let up = x.abs() > gold.abs();
    let fraction = x.abs().min(gold.abs());
    let percent = if gold_is_percent { !up } else { fraction < 1.0 };
    close(gold) || percent && close_scaled(if up { gold * 100.0 } else { gold / 100.0 })
}
