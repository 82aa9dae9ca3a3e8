//! Properties of variants: exact, deterministic, sensible, and none for rejected problems.

use proptest::prelude::*;

use super::*;

fn example(question: &str, steps: &[&str], answer: &str) -> TrainExample {
    TrainExample {
        question: question.to_owned(),
        steps: steps.iter().map(|step| format!("<<{step}>>")).collect(),
        answer: answer.to_owned(),
    }
}

fn problem(question: &str, steps: &[&str], answer: &str) -> RenumberedProblem {
    RenumberedProblem::new(&example(question, steps, answer)).unwrap()
}

fn refusal(question: &str, steps: &[&str], answer: &str) -> Refusal {
    RenumberedProblem::new(&example(question, steps, answer)).unwrap_err()
}

fn sources() -> Vec<AugmentSource> {
    samples().into_iter().map(AugmentSource::Problem).collect()
}

/// Problems of each supported kind.
fn samples() -> Vec<TrainExample> {
    vec![
        example(
            "Jenny has 51 cows. Jenny buys five new cows and sells a quarter of Jenny's herd. How \
             many cows are left?",
            &["51+5=56", "56/4=14", "56-14=42"],
            "42",
        ),
        example(
            "A shop sells 80 cakes at $2.50 each and 60% of 1,200 rolls at $1 each. How much is it?",
            &["80*2.5=200", "1200*.6=720", "720*1=720", "200+720=920"],
            "920",
        ),
        example(
            "Of 40 birds 3/5 are ducks, and the rest are geese. How many geese are there?",
            &["40*2/5=16"],
            "16",
        ),
        example(
            "An 8-hour shift pays $15 an hour. Tom works three shifts a week. What does he earn in \
             a week?",
            &["8*15=120", "120*3=360"],
            "360",
        ),
        example(
            "He had 30 pens and lost 20% of them. He gave 9 away. How many are left?",
            &["30*0.8=24", "24-9=15"],
            "15",
        ),
    ]
}

/// The value of `text` as a number.
fn number(text: &str) -> Rational {
    Rational::parse(text).unwrap()
}

#[test]
fn every_variant_is_exact_and_of_its_kind() {
    for (index, source) in samples().iter().enumerate() {
        let problem = RenumberedProblem::new(source).unwrap();
        let variants = problem.variants(3, index as u32, 40);
        assert!(variants.len() >= 15, "{}: {}", source.question, variants.len());
        for (_, variant) in variants {
            assert_eq!(variant.steps.len(), source.steps.len());
            for step in &variant.steps {
                let step = expression::StepExpression::parse(step).unwrap();
                assert_eq!(step.evaluate(&step.operands), Some(step.result), "{variant:?}");
                assert!(step.result.is_positive(), "{variant:?}");
            }
            let last = variant.steps.last().unwrap();
            assert!(last.ends_with(&format!("={}>>", variant.answer)), "{variant:?}");
            assert_ne!(variant.question, source.question);
        }
    }
}

#[test]
fn a_variant_is_a_function_of_its_name() {
    let options = |count| AugmentOptions {
        seed: 5,
        count,
        keep_original: true,
        without: OverlapIndex::default(),
    };
    let run = |threads: usize, count| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut examples = Vec::new();
        let each = |outcome: ProblemOutcome| -> Result<(), ()> {
            examples.extend(outcome.examples);
            Ok(())
        };
        let report = pool.install(|| augment(&sources(), &options(count), each)).unwrap();
        (report, examples)
    };
    let (report, examples) = run(1, VariantCount::PerProblem(12));
    assert_eq!((report.clone(), examples.clone()), run(3, VariantCount::PerProblem(12)));
    assert_eq!(report.variants + report.originals, examples.len());
    assert_eq!((report.with_graph, report.originals), (5, 5));
    // More variants only add to fewer.
    let (_, more) = run(2, VariantCount::PerProblem(20));
    assert!(examples.iter().all(|example| more.contains(example)));
    let (report, _) = run(2, VariantCount::Total(33));
    assert_eq!(report.variants, 33);
}

#[test]
fn overlaps_with_files_left_out_are_dropped() {
    let mut without = OverlapIndex::default();
    without.add("Once, of 40 birds 3/5 are ducks, and the rest are swans.");
    let options = AugmentOptions {
        seed: 0,
        count: VariantCount::PerProblem(5),
        keep_original: true,
        without,
    };
    let each = |outcome: ProblemOutcome| -> Result<(), ()> {
        assert!(outcome.examples.iter().all(|example| example.source != 2));
        Ok(())
    };
    let report = augment(&sources(), &options, each).unwrap();
    assert_eq!(report.refused.get(&Refusal::Overlap), Some(&1));
}

#[test]
fn numbers_that_other_numbers_would_break_stay() {
    let stays = |question: &str, steps: &[&str], answer: &str, kept: &[&str]| {
        for (_, variant) in problem(question, steps, answer).variants(1, 0, 30) {
            for text in kept {
                assert!(variant.question.contains(text), "{text}: {}", variant.question);
            }
        }
    };
    // Ordinals, years, clock times, labels, facts about the world, and the number 1 stay fixed.
    stays(
        "On May 3, 1999, at 7 pm, the 4th grade of 40 pupils and 1 teacher ate 3 pizzas each.",
        &["40*3=120"],
        "120",
        &["May 3, 1999, at 7 pm", "4th", "1 teacher"],
    );
    // A constant that is also a number of the question: seven days in a week.
    stays(
        "She reads 30 pages a day for a week and gives 7 books away. How many pages is that?",
        &["30*7=210"],
        "210",
        &["7 books"],
    );
    // `twice` and 2.
    stays("He buys 2 pens and twice as many of 30 cards.", &["30*2=60"], "60", &["2 pens"]);
}

#[test]
fn an_ambiguous_number_changes_only_if_all_its_sources_agree() {
    // 12 is both a number of the question and the first result.
    let ambiguous = problem(
        "Ann has 3 bags of 4 nuts. Bob has 12 nuts. How many nuts do they have?",
        &["3*4=12", "12+12=24"],
        "24",
    );
    for (_, variant) in ambiguous.variants(2, 0, 20) {
        let step = |index: usize| expression::StepExpression::parse(&variant.steps[index]).unwrap();
        assert_eq!(step(1).operands, [step(0).result; 2], "{variant:?}");
        assert!(
            variant.question.contains(&format!("Bob has {} nuts", step(0).result))
                || !variant.question.contains("Bob")
        );
    }
}

#[test]
fn linked_percentages_follow() {
    // 0.4 is 1 minus 60 percent.
    let question = "There are 50 seats, and 60% are taken. How many are free?";
    for (_, variant) in problem(question, &["50*0.4=20"], "20").variants(0, 0, 30) {
        let percent = variant.question.split(['%', ' ']).rev().find_map(|w| w.parse::<i128>().ok());
        let step = expression::StepExpression::parse(&variant.steps[0]).unwrap();
        let rest = Rational::new(100 - percent.unwrap(), 100).unwrap();
        assert_eq!(step.operands[1], rest, "{variant:?}");
    }
}

#[test]
fn unsound_problems_are_refused() {
    let cases: &[(&str, &[&str], &str, Refusal)] = &[
        ("He has 3 nuts.", &[], "3", Refusal::NoSteps),
        ("He has 3 nuts.", &["x+3=5"], "5", Refusal::NotACalculation),
        ("He cuts 10 m into 3 parts.", &["10/3=3.33"], "3.33", Refusal::InexactStep),
        ("He has 30 nuts and 4 more.", &["30+4=34"], "35", Refusal::AnswerNotLast),
        ("Another counted a bit more than 12.", &["12+5=17"], "17", Refusal::UnexplainedNumber),
        (
            "4 dogs eat 250 grams a day for 14 days. How many kilograms is that?",
            &["4*250=1000", "14*1=14"],
            "14",
            Refusal::UnusedResult,
        ),
        ("He has one nut and finds one.", &["1+1=2"], "2", Refusal::NothingToChange),
        ("The digit sum of 35 and 20?", &["35+20=55"], "55", Refusal::UnsuitableText),
    ];
    for (question, steps, answer, reason) in cases {
        assert_eq!(refusal(question, steps, answer), *reason, "{question}");
    }
}

#[test]
fn calculations_in_the_head_become_steps() {
    let hidden = problem(
        "They saved $400 and spent $115. Then they spent half of the rest.",
        &["285/2=142.5"],
        "142.5",
    );
    let (_, variant) = hidden.variants(0, 0, 1).remove(0);
    assert_eq!(variant.steps.len(), 2);
    let difference = expression::StepExpression::parse(&variant.steps[0]).unwrap();
    assert_eq!(difference.evaluate(&difference.operands), Some(difference.result));
}

#[test]
fn grammar_survives() {
    let shift = &samples()[3];
    let problem = RenumberedProblem::new(shift).unwrap();
    for (_, variant) in problem.variants(9, 0, 40) {
        let hours = variant.question.split(['-', ' ']).nth(1).unwrap();
        let article = if hours.starts_with('8') || hours == "11" { "An" } else { "A" };
        assert!(variant.question.starts_with(&format!("{article} {hours}-hour")), "{variant:?}");
        assert!(number(hours) >= Rational::whole(2));
    }
}

proptest! {
    #[test]
    fn no_text_and_no_steps_panic(
        question in "[A-Za-z0-9 .,$%/:'-]{0,80}",
        steps in proptest::collection::vec("<<[-0-9+*/().%]{0,12}=[0-9]{1,4}>>", 0..4),
        answer in "[0-9]{1,4}",
    ) {
        if let Ok(problem) = RenumberedProblem::new(&TrainExample { question, steps, answer }) {
            for (_, variant) in problem.variants(1, 2, 3) {
                for step in &variant.steps {
                    let step = expression::StepExpression::parse(step).unwrap();
                    prop_assert_eq!(step.evaluate(&step.operands), Some(step.result));
                }
            }
        }
    }

    #[test]
    fn sums_of_any_numbers_stay_exact(a in 2i64..2000, b in 2i64..2000, c in 2i64..40, seed: u64) {
        let question = format!("Ann has {a} nuts and {b} figs in each of {c} jars. How many?");
        let steps = [format!("<<{a}+{b}={}>>", a + b), format!("<<{}*{c}={}>>", a + b, (a + b) * c)];
        let source =
            TrainExample { question, steps: steps.to_vec(), answer: ((a + b) * c).to_string() };
        if let Ok(problem) = RenumberedProblem::new(&source) {
            for (_, variant) in problem.variants(seed, 0, 3) {
                let last = expression::StepExpression::parse(&variant.steps[1]).unwrap();
                prop_assert_eq!(last.evaluate(&last.operands), Some(number(&variant.answer)));
            }
        }
    }
}
