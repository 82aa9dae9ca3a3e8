//! LaTeX answers: extraction of the box, normalization of formulas, values of simple formulas.
//!
//! [`normalize`] follows the Qwen2.5-Math grader, which grades Latent-SFT: it removes typesetting
//! (`\left`, spaces, `\dfrac`), decorations of a number (degrees, `%`, `$`, units) and a leading
//! `x =`. There is no symbolic algebra, so `2\sqrt{3}` and `\sqrt{12}` are different answers.
//!
//! Every function makes a bounded number of passes over its text.

use super::number::python_float;

/// Rewrites, applied in this order. Row breaks come first; otherwise the second half of `\\` would
/// be read as the start of a command.
const REWRITES: [(&str, &str); 34] = [
    ("\\\\", ";"),
    ("\n", " "),
    ("\u{2212}", "-"),
    ("\u{d7}", "\\times "),
    ("{,}", ","),
    ("~", " "),
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
    ("\\textbf{", "\\text{"),
    ("\\mbox{", "\\text{"),
];

/// Units that are removed after a number.
const UNITS: [&str; 41] = [
    "degree", "degrees", "dollar", "dollars", "cent", "cents", "percent", "unit", "units",
    "square", "sq", "cubic", "mm", "cm", "km", "meter", "meters", "inch", "inches", "foot", "feet",
    "ft", "yard", "yards", "mile", "miles", "mph", "second", "seconds", "minute", "minutes",
    "hour", "hours", "day", "days", "week", "weeks", "month", "months", "year", "years",
];

/// The content of the last `boxed{...}` with balanced braces; up to the end of the text if the box
/// is not closed, for example if decoding was truncated.
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

/// The normal form of a formula: formulas that differ only in typesetting have the same one.
///
/// One rewrite can enable another (`\text{5 cm}`), so passes repeat until a fixed point. A text
/// without a fixed point after eight passes (`ddddddddddfrac`) is not a formula. This bounds the
/// time, and normalization is idempotent.
pub(crate) fn normalize(text: &str) -> Option<String> {
    let mut text = text.to_owned();
    for _ in 0..=8 {
        let next = normalize_once(&text);
        if next == text {
            return Some(text);
        }
        text = next;
    }
    None
}

fn normalize_once(text: &str) -> String {
    let mut text = text.trim().to_owned();
    for (from, to) in REWRITES {
        if text.contains(from) {
            text = text.replace(from, to);
        }
    }
    let text = unwrap_text(drop_text_unit(text.trim()));
    let text = join_mixed(text.trim());
    let text = match clock_time(&text) {
        Some(time) => time,
        None => drop_subject(drop_word_unit(text.trim_end_matches('.'))).to_owned(),
    };
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let text = brace_fractions(&brace_roots(&unbrace_scripts(unbrace(&text))));
    let is_word = text.len() > 1 && text.chars().all(char::is_alphabetic);
    if is_word { text.to_lowercase() } else { text }
}

/// Removes a final `\text{...}`, with or without a power after it, unless it is the whole text.
fn drop_text_unit(text: &str) -> &str {
    let powers = ["^2", "^3", "^{2}", "^{3}"];
    let body = powers.iter().find_map(|power| text.strip_suffix(power)).unwrap_or(text);
    let unit = body.strip_suffix('}').and_then(|body| body.rsplit_once("\\text{"));
    match unit {
        Some((rest, unit))
            if !rest.trim().is_empty() && !unit.contains('}') && half_of_day(unit).is_none() =>
        {
            rest.trim_end()
        }
        _ => text,
    }
}

/// `am` or `pm` if `word` is one of the usual spellings: `PM`, `p.m.`, `P. M.`.
fn half_of_day(word: &str) -> Option<&'static str> {
    let letters: String = word.chars().filter(|c| !c.is_whitespace() && *c != '.').collect();
    ["am", "pm"].into_iter().find(|half| letters.eq_ignore_ascii_case(half))
}

/// `6:00 P.M.` becomes `6:00pm`; `None` for anything other than digits, colons and am or pm.
fn clock_time(text: &str) -> Option<String> {
    let is_clock = |c: char| c.is_ascii_digit() || c == ':';
    let half = text.trim_start_matches(is_clock);
    let time = &text[..text.len() - half.len()];
    let half = half_of_day(half).filter(|_| time.starts_with(|c: char| c.is_ascii_digit()))?;
    Some(format!("{time}{half}"))
}

/// `1 1/2` and `1 \frac{1}{2}` become `1\frac{1}{2}`. Without this step, removing white space would
/// turn the first into 11/2.
fn join_mixed(text: &str) -> String {
    let joined = || {
        let (whole, rest) = text.split_once(char::is_whitespace)?;
        let rest = rest.trim_start();
        let (fraction, tail) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
        let (a, b) = fraction.split_once('/')?;
        let all_digits = [whole.strip_prefix('-').unwrap_or(whole), a, b].into_iter().all(digits);
        all_digits.then(|| format!("{whole}\\frac{{{a}}}{{{b}}}{tail}"))
    };
    joined().unwrap_or_else(|| text.to_owned())
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// `{5}` becomes `5`. A group with a comma is kept, because it may be a set, as is a text such as
/// `{a}+{b}`, whose outer braces are not a pair.
fn unbrace(text: &str) -> &str {
    let inside = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let is_group = |inside: &&str| {
        let depths = inside.bytes().scan(0i64, |depth, byte| {
            *depth += i64::from(byte == b'{') - i64::from(byte == b'}');
            Some(*depth)
        });
        !inside.contains(',') && depths.min().unwrap_or(0) >= 0
    };
    inside.filter(is_group).unwrap_or(text)
}

/// `x^{2}` becomes `x^2` and `2516_{8}` becomes `2516_8`. Only a script of one character loses its
/// braces: `x^{10}` and `x^10` are different formulas.
fn unbrace_scripts(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['^', '_']) {
        let (head, tail) = rest.split_at(at + 1);
        plain.push_str(head);
        rest = tail;
        let mut chars = tail.strip_prefix('{').unwrap_or_default().chars();
        if let (Some(script), Some('}')) = (chars.next(), chars.next())
            && script.is_alphanumeric()
        {
            plain.push(script);
            rest = chars.as_str();
        }
    }
    plain + rest
}

/// `\text{Evelyn}` becomes `Evelyn`. Braces that do not close a `\text` are kept.
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

/// `18 square feet` becomes `18`. Other words are kept, because they may be the answer.
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
/// Only arguments without nested fractions are braced; others always have braces already.
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

/// The value of a normalized formula that is a number, `a/b`, `\frac{a}{b}`, a mixed number or in
/// scientific notation, with an optional minus.
pub(crate) fn value(text: &str) -> Option<f64> {
    let (sign, body) = match text.strip_prefix('-') {
        Some(body) => (-1.0, body),
        None => (1.0, text),
    };
    let magnitude = match parts(body) {
        Some((a, b)) => grouped(a)? / grouped(b)?,
        None => mixed(body).or_else(|| scientific(body)).or_else(|| grouped(body))?,
    };
    Some(sign * magnitude).filter(|x| x.is_finite())
}

/// `1\frac{1}{2}` is 1.5. The fraction must be proper: `2\frac{5}{3}` may be a product.
fn mixed(text: &str) -> Option<f64> {
    let at = text.find("\\frac{").filter(|&at| digits(&text[..at]))?;
    let (a, b) = parts(&text[at..]).filter(|(a, b)| digits(a) && digits(b))?;
    let a = grouped(a)?;
    let b = grouped(b)?;
    let whole = grouped(&text[..at])?;
    // One division, so that the value is that of the decimal or of the improper fraction.
    (a < b).then(|| (whole * b + a) / b)
}

/// `2\times10^5`, `2\cdot10^{-5}` and `10^5`.
fn scientific(text: &str) -> Option<f64> {
    let (head, exponent) = text.split_once("10^")?;
    let mantissa = match head {
        "" => "1",
        _ => head.strip_suffix("\\times").or_else(|| head.strip_suffix("\\cdot"))?,
    };
    let braced = exponent.strip_prefix('{').and_then(|exponent| exponent.strip_suffix('}'));
    let exponent = braced.unwrap_or(exponent);
    let is_decimal = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b",.".contains(&b));
    if !digits(exponent.strip_prefix('-').unwrap_or(exponent)) || !is_decimal(mantissa) {
        return None;
    }
    grouped(mantissa)?;
    python_float(&format!("{}e{exponent}", mantissa.replace(',', "")))
}

/// Numerator and denominator, if the whole text is one fraction.
fn parts(text: &str) -> Option<(&str, &str)> {
    match text.strip_prefix("\\frac{") {
        Some(rest) => rest.strip_suffix('}')?.split_once("}{"),
        None => text.split_once('/'),
    }
}

/// A number whose commas, if any, separate thousands. The grader removes every comma and therefore
/// reads the list `1,2` as 12; this function does not. It also rejects the underscores of Python's
/// numbers, which denote a base in a formula: `2516_8`.
fn grouped(text: &str) -> Option<f64> {
    if text.contains('_') {
        return None;
    }
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

/// Python's `isclose(x, gold, abs_tol=1e-4)`, or whether one number is the other as a percentage.
///
/// The Qwen2.5-Math grader accepts 1/100 and 100 times every gold answer, so 1800 is correct for
/// 18, and 0 for 1/128, whose hundredth is below the tolerance. Here a percentage requires a
/// fraction below 1, or a gold answer with a percent sign, and the tolerance is relative as well.
pub(crate) fn close_or_percent(x: f64, gold: f64, gold_is_percent: bool) -> bool {
    let tolerance = |y: f64| (1e-9 * x.abs().max(y.abs())).max(1e-4);
    let close = |y: f64| (x - y).abs() <= tolerance(y);
    let close_scaled = |y: f64| (x - y).abs() <= tolerance(y).min(1e-3 * y.abs());
    let up = x.abs() > gold.abs();
    let fraction = x.abs().min(gold.abs());
    let percent = if gold_is_percent { !up } else { fraction < 1.0 };
    close(gold) || percent && close_scaled(if up { gold * 100.0 } else { gold / 100.0 })
}
