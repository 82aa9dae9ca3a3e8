//! Thought ablation: accuracy of the greedy run with replaced thoughts, as numbers and tables.

use record::{
    AblatedAnswer, AblatedQuestion, Ablation, AblationKind, AblationMean, AblationResult,
};

use crate::interval::{Bootstrap, Interval};

/// Accuracy of the greedy run and under each replacement, with paired differences.
pub fn measure(
    kinds: &[AblationKind],
    questions: Vec<AblatedQuestion>,
    seed: u64,
    bootstrap: &Bootstrap,
) -> Ablation {
    let correct = |answer: &AblatedAnswer| f64::from(u8::from(answer.correct));
    let clean: Vec<f64> = questions.iter().map(|question| correct(&question.clean)).collect();
    let share = |values: &[f64]| to_mean(Interval::of_share(values));
    let result = |(k, &kind): (usize, &AblationKind)| {
        let ablated: Vec<f64> = questions.iter().map(|q| correct(&q.ablated[k])).collect();
        let differences: Vec<f64> = ablated.iter().zip(&clean).map(|(a, b)| a - b).collect();
        let changed = questions.iter().filter(|q| q.ablated[k].answer != q.clean.answer).count();
        AblationResult {
            kind,
            accuracy: share(&ablated),
            difference: to_mean(bootstrap.difference(&differences)),
            changed: changed as f64 / questions.len().max(1) as f64,
        }
    };
    let ablations = kinds.iter().enumerate().map(result).collect();
    Ablation { seed, clean: share(&clean), ablations, questions, ..Ablation::default() }
}

fn to_mean(interval: Option<Interval>) -> AblationMean {
    interval.map_or_else(AblationMean::default, |Interval { value, low, high }| AblationMean {
        value,
        low,
        high,
    })
}

/// A row of the table, with cells as text.
pub(crate) struct AblationRow {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) accuracy: String,
    /// Empty for the greedy run.
    pub(crate) difference: String,
    pub(crate) changed: String,
}

/// The rows: the greedy run, then each replacement.
pub(crate) fn rows(ablation: &Ablation) -> Vec<AblationRow> {
    let clean = AblationRow {
        name: "greedy",
        meaning: "unmodified thoughts",
        accuracy: interval(&ablation.clean, false),
        difference: String::new(),
        changed: String::new(),
    };
    let replaced = ablation.ablations.iter().map(|result| AblationRow {
        name: result.kind.name(),
        meaning: result.kind.describe(),
        accuracy: interval(&result.accuracy, false),
        difference: interval(&result.difference, true),
        changed: format!("{:.1}", 100.0 * result.changed),
    });
    [clean].into_iter().chain(replaced).collect()
}

fn interval(AblationMean { value, low, high }: &AblationMean, signed: bool) -> String {
    let show = |x: f64| {
        // No sign on values that round to zero.
        let percent = format!("{:.1}", 100.0 * x);
        match percent.as_str() {
            "-0.0" | "0.0" => "0.0".to_owned(),
            _ if signed && x > 0.0 => format!("+{percent}"),
            _ => percent,
        }
    };
    format!("{} ({} to {})", show(*value), show(*low), show(*high))
}

/// The table as text.
pub fn render(ablation: &Ablation) -> String {
    let rows = rows(ablation);
    let widest = |cell: fn(&AblationRow) -> &str, head: &str| {
        rows.iter().map(|row| cell(row).len()).chain([head.len()]).max().unwrap_or(0)
    };
    let accuracy = widest(|row| &row.accuracy, "accuracy");
    let difference = widest(|row| &row.difference, "difference");
    let line = |name: &str, cells: [&str; 3], meaning: &str| {
        let [a, d, c] = cells;
        let text = format!("{name:<9}{a:>accuracy$}  {d:>difference$}  {c:>7}  {meaning}");
        format!("{}\n", text.trim_end())
    };
    let head = line("thoughts", ["accuracy", "difference", "changed"], "");
    let body = rows
        .iter()
        .map(|row| line(row.name, [&row.accuracy, &row.difference, &row.changed], row.meaning));
    format!(
        "greedy decoding with replaced thoughts, {} questions\n\
         accuracy in % with its 95% confidence interval, paired difference from greedy in points, \
         changed answers in %\n\n{head}{}",
        ablation.questions.len(),
        body.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str, gold: &str) -> AblatedAnswer {
        AblatedAnswer { answer: Some(text.into()), correct: text == gold }
    }

    /// 40 questions with correct greedy answers; zeroed thoughts change every fourth answer.
    fn ablation() -> Ablation {
        let question = |id: u32| {
            let zeroed = if id.is_multiple_of(4) { answer("0", "7") } else { answer("7", "7") };
            AblatedQuestion {
                id,
                latent_steps: 6,
                clean: answer("7", "7"),
                ablated: vec![zeroed, AblatedAnswer::default()],
            }
        };
        let kinds = [AblationKind::Zero, AblationKind::Swap];
        measure(&kinds, (0..40).map(question).collect(), 3, &Bootstrap::default())
    }

    #[test]
    fn accuracies_differences_and_changes() {
        let Ablation { clean, ablations, seed, .. } = ablation();
        assert_eq!((clean.value, clean.high, seed), (1.0, 1.0, 3));
        assert!(clean.low > 0.9 && clean.low < 1.0);
        let [zero, swap] = &ablations[..] else { panic!("two replacements") };
        assert_eq!((zero.accuracy.value, zero.difference.value, zero.changed), (0.75, -0.25, 0.25));
        assert!(zero.difference.low < -0.25 && zero.difference.high > -0.25);
        assert_eq!((swap.accuracy.value, swap.difference.value, swap.changed), (0.0, -1.0, 1.0));
        let unchanged = measure(&[], Vec::new(), 0, &Bootstrap::default());
        assert_eq!(unchanged.clean, AblationMean::default());
    }

    #[test]
    fn a_table() {
        let text = render(&ablation());
        let lines: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(lines[0], "thoughts              accuracy                difference  changed");
        assert!(lines[1].starts_with("greedy   100.0 (91.2 to 100.0) "), "{text}");
        assert!(lines[2].starts_with("zero "), "{text}");
        assert!(lines[2].contains(" -25.0 (") && lines[2].contains("  25.0  every thought"));
        assert!(
            lines[3].contains("-100.0 (-100.0 to ") && lines[3].contains("100.0  the thoughts")
        );
    }
}
