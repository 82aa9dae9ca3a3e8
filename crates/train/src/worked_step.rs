//! Parsing of one worked step such as `<<48/2=24>>`.

/// Whether a text is a calculation in double angle brackets.
pub(crate) fn is_worked_step(text: &str) -> bool {
    let inside = text.strip_prefix("<<").and_then(|rest| rest.strip_suffix(">>"));
    inside.is_some_and(|calculation| calculation.contains('='))
}

/// The whole number after a step's last equals sign, with or without brackets. Thousands separators
/// are ignored, and `24.0` is whole.
pub(crate) fn step_result(step: &str) -> Option<i64> {
    let (_, after) = step.trim().trim_end_matches('>').rsplit_once('=')?;
    let number = after.trim().replace(',', "");
    number.parse().ok().or_else(|| {
        // Beyond 1e15 an f64 cannot represent every whole number.
        let value: f64 = number.parse().ok()?;
        (value.fract() == 0.0 && value.abs() < 1e15).then_some(value as i64)
    })
}

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
    fn only_calculations_in_brackets_are_steps() {
        assert!(is_worked_step("<<48/2=24>>"));
        for text in ["48/2=24", "<<24>>", "<<48/2=24", "Step 1", ""] {
            assert!(!is_worked_step(text), "{text}");
        }
    }
}
