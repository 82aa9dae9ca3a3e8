//! What worked steps come to.

/// The results of steps such as `<<48/2=24>>`: all of them, or none where one has no whole result.
///
/// A list with holes would say which step a thought stands for, and say it wrong.
pub fn step_results(steps: &[String]) -> Vec<i64> {
    steps.iter().map(|step| result(step)).collect::<Option<_>>().unwrap_or_default()
}

fn result(step: &str) -> Option<i64> {
    let (_, after) = step.trim().trim_end_matches('>').rsplit_once('=')?;
    let number = after.trim();
    // `24.0` is whole; what an f64 cannot hold exactly is left to the integer's own reading.
    number.parse().ok().or_else(|| {
        let value: f64 = number.parse().ok()?;
        (value.fract() == 0.0 && value.abs() < 1e15).then_some(value as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(steps: &[&str]) -> Vec<i64> {
        step_results(&steps.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn whole_results_are_read() {
        assert_eq!(results(&["<<48/2=24>>", "<<48+24=72>>"]), [24, 72]);
        assert_eq!(
            results(&[
                "3-5=-2",
                " <<1.5*2=3.0>> ",
                "<<9223372036854775806+1=9223372036854775807>>"
            ]),
            [-2, 3, i64::MAX]
        );
        assert!(results(&[]).is_empty());
    }

    #[test]
    fn one_hole_empties_the_list() {
        for hole in ["<<1/2=.5>>", "so x is 7", "", "=", "<<1=nan>>", "<<1=1e300>>", "<<2=inf>>"] {
            assert!(results(&["<<48/2=24>>", hole]).is_empty(), "{hole}");
        }
    }
}
