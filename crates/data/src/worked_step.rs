//! Parsing of worked steps such as `<<48/2=24>>`, and of texts with several steps.

/// Whether a text is a calculation in double angle brackets.
pub fn is_worked_step(text: &str) -> bool {
    let inside = text.strip_prefix("<<").and_then(|rest| rest.strip_suffix(">>"));
    inside.is_some_and(|calculation| calculation.contains('='))
}

/// Splits the text of a chain of thought into steps: calculations in double angle brackets, else
/// lines, else sentences.
pub fn steps_of_text(text: &str) -> Vec<String> {
    let inside = text.split("<<").skip(1).filter_map(|piece| piece.split_once(">>"));
    let calculations: Vec<String> =
        inside.map(|(calculation, _)| format!("<<{calculation}>>")).collect();
    if !calculations.is_empty() {
        return calculations;
    }
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.as_slice() {
        [line] => sentences(line),
        lines => lines.iter().map(|line| (*line).to_owned()).collect(),
    }
}

/// The sentences of a line, which end with `.`, `!` or `?` before white space.
fn sentences(line: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut start = 0;
    for (at, mark) in line.match_indices(['.', '!', '?']) {
        let end = at + mark.len();
        if line[end..].starts_with(char::is_whitespace) {
            sentences.push(line[start..end].trim().to_owned());
            start = end;
        }
    }
    sentences.push(line[start..].trim().to_owned());
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// The integer after a step's last equals sign, with or without brackets. Thousands separators are
/// ignored, and `24.0` is an integer.
pub fn step_result(step: &str) -> Option<i64> {
    let (_, after) = step.trim().trim_end_matches('>').rsplit_once('=')?;
    let number = after.trim().replace(',', "");
    number.parse().ok().or_else(|| {
        // Beyond 1e15 an f64 cannot represent every integer.
        let value: f64 = number.parse().ok()?;
        (value.fract() == 0.0 && value.abs() < 1e15).then_some(value as i64)
    })
}

/// The two integer operands of a step and the index of its operator in `+-*/`; `None` for steps of
/// another form.
pub fn step_operands(step: &str) -> Option<[i64; 3]> {
    let (before, _) = step.trim().trim_start_matches('<').split_once('=')?;
    let calculation = before.replace(',', "");
    // The first character may be the sign of the first operand.
    let (at, operator) = calculation.char_indices().skip(1).find(|(_, c)| OPERATORS.contains(c))?;
    let operator = OPERATORS.iter().position(|&known| known == operator)? as i64;
    let whole = |text: &str| text.trim().parse().ok();
    Some([whole(&calculation[..at])?, whole(&calculation[at + 1..])?, operator])
}

const OPERATORS: [char; 4] = ['+', '-', '*', '/'];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_results_are_parsed() {
        for (step, result) in [
            ("<<7*15=105>>", 105),
            ("<<7*150=1,050>>", 1050),
            ("3-5=-2", -2),
            (" <<1.5*2=3.0>> ", 3),
            ("<<9223372036854775806+1=9223372036854775807>>", i64::MAX),
        ] {
            assert_eq!(step_result(step), Some(result), "{step}");
        }
    }

    #[test]
    fn steps_without_a_whole_result_have_none() {
        let steps = ["<<7/2=3.5>>", "<<1/2=.5>>", "so x is 7", "", "=", "<<1=nan>>", "<<2=inf>>"];
        for step in steps.into_iter().chain(["<<1=1e300>>", "seven"]) {
            assert_eq!(step_result(step), None, "{step}");
        }
    }

    #[test]
    fn two_whole_operands_are_parsed() {
        for (step, operands) in [
            ("<<48/2=24>>", Some([48, 2, 3])),
            ("1,050 - 7 = 1043", Some([1050, 7, 1])),
            ("<<-3+5=2>>", Some([-3, 5, 0])),
            ("<<2+3+4=9>>", None),
            ("<<0.5*8=4>>", None),
            ("<<24=24>>", None),
            ("<<(5-2)*3=9>>", None),
            ("so x is 7", None),
            ("", None),
        ] {
            assert_eq!(step_operands(step), operands, "{step}");
        }
    }

    #[test]
    fn a_text_has_calculations_lines_or_sentences() {
        for (text, steps) in [
            (
                "<<600*30/100=180>> <<600*10/100=60>>",
                &["<<600*30/100=180>>", "<<600*10/100=60>>"][..],
            ),
            ("Half of 48 is <<48/2=24>>24.\nDone.", &["<<48/2=24>>"]),
            ("First this.\n\n Then that. \n", &["First this.", "Then that."]),
            ("It costs 3.50 each. Two cost 7! So?", &["It costs 3.50 each.", "Two cost 7!", "So?"]),
            ("48/2=24", &["48/2=24"]),
            (" \n ", &[]),
            ("<<48/2", &["<<48/2"]),
        ] {
            assert_eq!(steps_of_text(text), steps, "{text}");
        }
    }

    #[test]
    fn only_calculations_in_brackets_are_steps() {
        assert!(is_worked_step("<<48/2=24>>"));
        for text in ["48/2=24", "<<24>>", "<<48/2=24", "Step 1", ""] {
            assert!(!is_worked_step(text), "{text}");
        }
    }
}
