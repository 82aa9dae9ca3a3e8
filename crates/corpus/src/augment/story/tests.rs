use proptest::prelude::*;

use super::super::VariantSource;
use super::super::expression::StepExpression;
use super::*;
use data::TrainExample;

fn variants(template: &str, count: usize) -> Vec<TrainExample> {
    let template = parse(template).unwrap().remove(0);
    template.variants(7, 0, count).into_iter().map(|(_, example)| example).collect()
}

#[test]
fn numbers_people_and_things_fill_the_slots() {
    let template = "{A} has {a} {i:fruit} in {A.his} {x.one:container}. {A.He} [eats|sells] {b} of \
                    them and buys {j.a:toy}. How many {i} are left?\n= a-b\n? a 10-90, b 2-9";
    for example in variants(template, 200) {
        let TrainExample { question, steps, answer } = &example;
        assert!(!question.contains(['{', '}', '[', ']', '|']), "{question}");
        let step = StepExpression::parse(&steps[0]).unwrap();
        let [a, b] = step.operands[..] else { panic!("{steps:?}") };
        assert_eq!(step.evaluate(&step.operands).unwrap().to_string(), *answer);
        assert!(a.as_whole().is_some_and(|a| (10..=90).contains(&a)), "{question}");
        assert!(b.as_whole().is_some_and(|b| (2..=9).contains(&b)), "{question}");
        assert!(question.contains(" She ") != question.contains(" He "), "{question}");
        assert!(question.contains(" eats ") != question.contains(" sells "), "{question}");
    }
}

#[test]
fn alternatives_and_words_vary() {
    let examples = variants("[I|We] have {a} {i:toy}. Double it.\n= a*2\n? a 2-12", 60);
    let has = |text: &str| examples.iter().any(|example| example.question.contains(text));
    assert!(has("I have") && has("We have"));
    assert!(has("seven") || has("two") || has("nine"), "no number was written in words");
    let mut distinct: Vec<_> = examples.iter().map(|example| &example.question).collect();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 60);
}

#[test]
fn conditions_hold_and_results_are_whole() {
    let template = "{a} and {b} and {c}?\n= a/b; $1-c\n? b 3-9, c%2=0, $2>=5, a!=100";
    for example in variants(template, 100) {
        let values: Vec<_> =
            example.steps.iter().map(|s| StepExpression::parse(s).unwrap()).collect();
        assert!(values.iter().all(|step| step.result.is_whole() && step.result.is_positive()));
        assert_eq!(values[1].operands[1].as_whole().unwrap() % 2, 0);
        assert!(values[1].result.as_whole().unwrap() >= 5);
        assert_eq!(values[0].result, values[1].operands[0]);
    }
}

#[test]
fn money_has_cents() {
    for example in variants("A pen costs ${a}. {b} pens?\n= a*b\n? a 0.25-2.75/0.25, b 2-9", 50) {
        let price = example.question.split(['$', ' ']).find(|word| word.contains('.')).unwrap();
        let digits = price.trim_end_matches('.');
        assert!(!digits.contains('.') || digits.split('.').nth(1).unwrap().len() == 2, "{price}");
    }
}

#[test]
fn mistakes_are_named() {
    for (template, reason) in [
        ("{a}?", "a text, a line"),
        ("{a}?\n- a", "second line"),
        ("{a}?\n= a\n= a", "third line"),
        ("{a}?\n= a+b", "steps use b"),
        ("[{a}|two]?\n= a", "steps use a"),
        ("{a}?\n= $1*a", "$1"),
        ("{a}?\n= a^2", "not a calculation"),
        ("{a} {i}?\n= a", "used before"),
        ("{a} {i:toy} {i:toy}?\n= a", "declared twice"),
        ("{a} [{i:toy}|toys] {i}?\n= a", "used before"),
        ("{a} {i:nonsense}?\n= a", "unknown class"),
        ("{a} {Z}?\n= a", "unknown slot"),
        ("{a} [b?\n= a", "unclosed"),
        ("{a} [b [c]|d]?\n= a", "nested"),
        ("{a}?\n= a\n? a few", "neither a range"),
    ] {
        let error = parse(template).unwrap_err();
        assert!(error.contains(reason), "{template}: {error}");
        assert!(error.starts_with("the template before line"), "{error}");
    }
}

#[test]
fn numbers_that_cannot_fit_give_no_variant() {
    assert!(variants("{a}?\n= a-a", 3).is_empty());
    assert!(variants("{a}?\n= a/(a-a)", 3).is_empty());
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "[a-hA-D{}\\[\\]|:.=?$;,0-9 +*/%<-]{0,40}\n=[a-h$0-9+*/;-]{0,12}") {
        if let Ok(templates) = parse(&text) {
            templates.iter().for_each(|template| drop(template.variant(0, 0, 1)));
        }
    }
}

#[test]
fn every_template_of_the_assets_has_variants() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/stories");
    let mut templates = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        for (index, template) in read(&entry.unwrap().path()).unwrap().iter().enumerate() {
            let variants = template.variants(1, index as u32, 20);
            assert!(variants.len() > 10, "{template:?}");
            templates += 1;
        }
    }
    assert!(templates > 500);
}
