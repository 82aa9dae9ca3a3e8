//! Tests of the special cases of each family's grader, and properties of arbitrary text.

use proptest::prelude::*;

use super::*;

const CODI: AnswerRule = AnswerRule::LastNumber;
const RULES: [AnswerRule; 5] =
    [AnswerRule::Hash, CODI, AnswerRule::AnswerColon, AnswerRule::Boxed, AnswerRule::Cascade];

fn number(rule: AnswerRule, text: &str) -> Option<String> {
    rule.extract(AnswerKind::Number, text).map(|answer| answer.as_str().to_owned())
}

fn math(rule: AnswerRule, text: &str) -> Option<String> {
    rule.extract(AnswerKind::Math, text).map(|answer| answer.as_str().to_owned())
}

fn correct(rule: AnswerRule, kind: AnswerKind, text: &str, gold: &str) -> bool {
    rule.extract(kind, text).is_some_and(|answer| answer.matches(gold))
}

#[track_caller]
fn expect(rule: AnswerRule, cases: &[(&str, Option<&str>)]) {
    for (text, answer) in cases {
        assert_eq!(number(rule, text).as_deref(), *answer, "{text:?}");
    }
}

#[test]
fn python_floats() {
    let cases = [
        (" 18\n", Some(18.0)),
        ("1_000", Some(1000.0)),
        ("1_0e1_0", Some(1e11)),
        ("+5.", Some(5.0)),
        (".5", Some(0.5)),
        ("1e3", Some(1000.0)),
        ("-0", Some(0.0)),
        ("\u{a0}7\u{2003}", Some(7.0)),
        ("7\x1f", None),
        ("1__0", None),
        ("_1", None),
        ("1_", None),
        ("1_.5", None),
        ("", None),
        (".", None),
        ("1e", None),
        ("1 2", None),
        ("0x10", None),
        ("18 apples", None),
        // Python parses these as infinite or NaN; such answers must not vote.
        ("inf", None),
        ("-Infinity", None),
        ("nan", None),
        ("1e999", None),
    ];
    for (text, value) in cases {
        assert_eq!(number::python_float(text), value, "{text:?}");
    }
}

#[test]
fn a_base_is_not_part_of_a_number() {
    assert_eq!(parse_number("2516_8"), None);
    assert_eq!(parse_number("1011_12 "), None);
    assert_eq!(parse_number("1_000"), Some(1000.0));
    assert_eq!(number(AnswerRule::Hash, "### 2516_8"), None);
    assert_eq!(number(AnswerRule::AnswerColon, "Answer: 2516_8"), None);
    assert!(!correct(AnswerRule::Hash, AnswerKind::Number, "### 25168", "2516_8"));
}

#[test]
fn coconut_reads_after_the_last_hash() {
    expect(
        AnswerRule::Hash,
        &[
            ("### 18", Some("18")),
            ("<<3*6=18>>\n### 1,018 ", Some("1018")),
            ("# 5 ## 6", Some("6")),
            ("###-3.50", Some("-3.5")),
            ("### 1e3", Some("1000")),
            ("### 18 apples", None),
            ("### $18", None),
            ("### 18 #", None),
            ("###\x1f7", Some("7")),
            ("### inf", None),
            ("18", None),
            ("", None),
        ],
    );
}

#[test]
fn codi_takes_the_last_number() {
    expect(
        CODI,
        &[
            ("The answer is: 18", Some("18")),
            ("The answer is: 1,234.50 dollars.", Some("1234.5")),
            ("5 then -7", Some("-7")),
            ("18.", Some("18")),
            // From left to right: the minus belongs to the second number, the point to the first.
            ("10-2", Some("-2")),
            ("1.2.3", Some("3")),
            ("--4", Some("-4")),
            // Commas are removed before the search, so two numbers may become one.
            ("1, 2", Some("2")),
            ("1,2", Some("12")),
            // The expression has no exponents.
            ("2e-06", Some("-6")),
            ("none", None),
        ],
    );
}

#[test]
fn colar_reads_after_the_last_answer_colon_and_keeps_commas() {
    expect(
        AnswerRule::AnswerColon,
        &[
            ("Answer:18", Some("18")),
            ("###Answer: 18 ###", Some("18")),
            ("Answer:5 Answer:-6.0", Some("-6")),
            ("Answer:1,000", None),
            ("Answer:18.", Some("18")),
            ("answer:18", None),
            ("18", None),
        ],
    );
}

#[test]
fn latent_sft_reads_the_last_box() {
    expect(
        AnswerRule::Boxed,
        &[
            ("so \\boxed{5}, no, \\boxed{18}.", Some("18")),
            ("$\\boxed{\\frac{1}{2}}$", Some("0.5")),
            ("\\boxed{18", Some("18")),
            ("\\boxed{\\$1,234.00}", Some("1234")),
            ("\\boxed{18 dollars}", Some("18")),
            ("\\boxed{x+{y}}", Some("x+{y}")),
            ("\\boxed{}", None),
            ("18", None),
        ],
    );
}

#[test]
fn latent_sft_compares_loosely() {
    let is = |text: &str, gold| correct(AnswerRule::Boxed, AnswerKind::Number, text, gold);
    assert!(is("\\boxed{0.33335}", "0.3333"));
    assert!(!is("\\boxed{0.3336}", "0.3333"));
    assert!(is("\\boxed{50}", "0.5"), "a percentage for a fraction");
    assert!(is("\\boxed{0.5}", "50"), "a fraction for a percentage");
    assert!(is("\\boxed{50\\%}", "50"));
    assert!(!is("\\boxed{5}", "50"));
    assert!(is("\\boxed{0}", "0.0000020107"), "values below the tolerance match zero");
}

#[test]
fn percentages_need_a_fraction_or_a_percent_sign() {
    let is = |text: &str, gold| {
        correct(AnswerRule::Boxed, AnswerKind::Number, &format!("\\boxed{{{text}}}"), gold)
    };
    assert!(!is("0", "1/128"), "a hundredth of the gold answer is below the tolerance");
    assert!(!is("0", "\\frac{1}{128}"));
    assert!(!is("1800", "18"));
    assert!(!is("18", "1800"));
    assert!(!is("1", "100"));
    assert!(is("33.3333", "\\frac{1}{3}"));
    assert!(is("1.5", "150\\%"));
    assert!(!is("150", "1.5\\%"));
}

#[test]
fn rot_tries_its_patterns_in_order() {
    expect(
        AnswerRule::Cascade,
        &[
            ("assistant\n### 120 ", Some("120")),
            ("#### 7 and then 8", Some("7")),
            ("##### 7 and then 8", Some("7")),
            ("答案是：\n42 或 43", Some("42")),
            ("答案是: 42 or 43", Some("42")),
            ("答案 42 or 43", Some("43")),
            ("THEREFORE, we have 3 or 4", Some("3")),
            ("Therefore \n it is 3.5 of 4", Some("3.5")),
            ("therefore we\nhave 3 of them, Answer: 4 !", Some("4")),
            ("Therefore3 $5 !", Some("5")),
            ("answer：9 of 10", Some("9")),
            ("it costs $5.25 today", Some("5.25")),
            ("so 12.", Some("12")),
            ("1.2.3\n", Some("2.3")),
            (".5", Some("5")),
            ("no number !", None),
            ("5 apples", None),
        ],
    );
}

#[test]
fn rot_ignores_signs_commas_and_exponents() {
    expect(
        AnswerRule::Cascade,
        &[("### -5", Some("5")), ("### 1,234", Some("234")), ("### 2e-06", Some("6"))],
    );
    assert!(!correct(AnswerRule::Cascade, AnswerKind::Number, "### -5", "-5"));
}

#[test]
fn rot_compares_to_a_billionth() {
    let is = |gold| correct(AnswerRule::Cascade, AnswerKind::Number, "### 0.3", gold);
    assert!(is("0.30000000000000004"));
    assert!(!is("0.300001"));
    let exact = |gold| correct(AnswerRule::Hash, AnswerKind::Number, "### 0.3", gold);
    assert!(!exact("0.30000000000000004"), "the others compare exactly");
}

#[test]
fn commas_in_gold_answers_are_ignored() {
    for (rule, text) in
        [(AnswerRule::Hash, "### 2125"), (CODI, "2125"), (AnswerRule::AnswerColon, "Answer:2125")]
    {
        assert!(correct(rule, AnswerKind::Number, text, "2,125"));
        assert!(!correct(rule, AnswerKind::Number, text, "two"));
    }
}

#[test]
fn canonical_numbers_are_short_and_unsigned_at_zero() {
    for (text, canonical) in [
        ("-0", "0"),
        ("18.0", "18"),
        ("0.10", "0.1"),
        ("1e21", "1000000000000000000000"),
        ("2e-6", "0.000002"),
    ] {
        assert_eq!(number(AnswerRule::Hash, &format!("# {text}")).as_deref(), Some(canonical));
    }
    assert_eq!(number(AnswerRule::Boxed, "boxed{-0}").as_deref(), Some("0"));
}

#[test]
fn formulas_are_found_where_each_family_puts_its_answer() {
    for (rule, text) in [
        (AnswerRule::Hash, "### \\frac{1}{2}"),
        (CODI, "The answer is: \\frac{1}{2}"),
        (AnswerRule::AnswerColon, "Answer:\\frac12###"),
        (AnswerRule::Boxed, "it is \\boxed{\\dfrac{1}{2}}."),
        (AnswerRule::Cascade, "assistant\n### 1/2 "),
        (AnswerRule::Cascade, "assistant\n### $\\boxed{0.5}$ "),
        (AnswerRule::Hash, "it is \\boxed{\\dfrac{1}{2}}."),
    ] {
        assert_eq!(math(rule, text).as_deref(), Some("0.5"), "{text}");
        assert!(correct(rule, AnswerKind::Math, text, "\\frac{1}{2}"));
    }
    assert_eq!(math(AnswerRule::Hash, "nothing marked"), None);
    assert_eq!(math(CODI, "The answer is: "), None);
}

#[test]
fn notations_of_numbers_are_understood() {
    let cases = [
        ("2516_8", "2516_8"),
        ("2516_{8}", "2516_8"),
        ("1011_{12}", "1011_{12}"),
        ("1{,}000", "1000"),
        ("\u{2212}5", "-5"),
        ("x^{2}", "x^2"),
        ("x^{10}", "x^{10}"),
        ("{5}", "5"),
        ("\\{1,2\\}", "{1,2}"),
        ("1\\frac{1}{2}", "1.5"),
        ("-1\\frac12", "-1.5"),
        ("1 1/2 inches", "1.5"),
        ("2\\frac{5}{3}", "2\\frac{5}{3}"),
        ("2\\times10^{5}", "200000"),
        ("1.5 \u{d7} 10^{-3}", "0.0015"),
        ("3 \\cdot 10^{12}", "3000000000000"),
        ("10^6", "1000000"),
        ("6:00 \\text{ AM}", "6:00am"),
        ("6:00 p.m.", "6:00pm"),
    ];
    for (text, canonical) in cases {
        let boxed = format!("\\boxed{{{text}}}");
        assert_eq!(math(AnswerRule::Boxed, &boxed).as_deref(), Some(canonical), "{text}");
    }
}

#[test]
fn equivalent_formulas_match() {
    let same = [
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})"),
        ("\\tfrac34", "\\frac{3}{4}"),
        ("\\frac{72}1", "72"),
        ("\\frac a2", "\\frac{a}{2}"),
        ("90^\\circ", "90"),
        ("90^{\\circ}", "90\u{b0}"),
        ("-\\frac{1}{2}", "-0.5"),
        ("x = 5", "5"),
        ("x \\in [-2,7]", "[-2,7]"),
        ("(-\\infty, 5]", "(-\\infty,5]"),
        ("10\\text{ cm}^2", "10"),
        ("\\text{5 cm}", "5"),
        ("\\text{Evelyn}", "evelyn"),
        ("\\sqrt3", "\\sqrt{3}"),
        ("10,\\!080", "10080"),
        ("11,111,111,100", "11111111100"),
        ("\\begin{bmatrix} 1 \\\\ 2 \\end{bmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
        ("007", "7"),
        ("2.50", "2.5"),
        ("x \\leq 3", "x\\le3"),
        ("18 square feet.", "18"),
    ];
    for (text, gold) in same {
        assert!(
            correct(AnswerRule::Boxed, AnswerKind::Math, &format!("\\boxed{{{text}}}"), gold),
            "{text} {gold}"
        );
    }
}

#[test]
fn different_formulas_do_not_match() {
    for (text, gold) in [
        ("1,2", "12"),
        ("3 x", "3"),
        ("x", "y"),
        ("\\frac{1}{0}", "0"),
        ("p-q", "q-p"),
        ("25168", "2516_8"),
        ("2516_7", "2516_8"),
        ("6:00\\text{ AM}", "6:00\\text{ PM}"),
    ] {
        assert!(
            !correct(AnswerRule::Boxed, AnswerKind::Math, &format!("\\boxed{{{text}}}"), gold),
            "{text} {gold}"
        );
    }
}

#[test]
fn letters_of_choices() {
    let cases = [
        ("(B)", Some("B")),
        ("B) because A is wrong", Some("B")),
        ("The answer is B, not A", Some("B")),
        ("Answer: (C)\nI checked A.", Some("C")),
        ("the correct ANSWER is **D**", Some("D")),
        ("\\boxed{B}, whatever (A) says", Some("B")),
        ("\\boxed{\\text{(D)}}", Some("D")),
        ("### C", Some("C")),
        ("A or B? I say B", Some("B")),
        ("选B项", Some("B")),
        ("I think so", None),
        ("Answers Abound", None),
        ("", None),
    ];
    for (text, letter) in cases {
        for rule in RULES {
            let answer = rule.extract(AnswerKind::Choice, text);
            assert_eq!(answer.as_ref().map(Answer::as_str), letter, "{text:?}");
            assert_eq!(answer.is_some_and(|answer| answer.matches("B")), letter == Some("B"));
        }
    }
}

#[test]
fn letters_beside_units_and_pronouns() {
    let cases = [
        ("\\boxed{(B) 3.2 J}", Some("B")),
        ("\\boxed{\\text{(B) } 3.2 \\text{ J}}", Some("B")),
        ("\\boxed{B. 20 °C}", Some("B")),
        ("\\boxed{\\textbf{B}: 5 A}", Some("B")),
        ("\\boxed{Option B}", Some("B")),
        ("(D) it is, \\boxed{3.2 J}", Some("D")),
        ("\\boxed{3.2\\text{ J}}", None),
        ("Answer: I think it is (C).", Some("C")),
        ("Answer: I think it is C.", Some("C")),
        ("The answer is (D). My answer: I'm sure of it.", Some("D")),
        ("Answer: I", Some("I")),
        ("Answer: (I) iron", Some("I")),
        ("The answer is I because iron rusts.", Some("I")),
        ("Answer: A because", Some("A")),
    ];
    for (text, letter) in cases {
        let answer = AnswerRule::Boxed.extract(AnswerKind::Choice, text);
        assert_eq!(answer.as_ref().map(Answer::as_str), letter, "{text:?}");
    }
}

/// `gold` as a model of the rule's family would write it.
fn rendered(rule: AnswerRule, gold: f64) -> String {
    match rule {
        AnswerRule::Hash => format!("### {gold}"),
        AnswerRule::LastNumber => format!("The answer is: {gold}"),
        AnswerRule::AnswerColon => format!("Answer:{gold}"),
        AnswerRule::Boxed => format!("The answer is \\boxed{{{gold}}}."),
        AnswerRule::Cascade => format!("assistant\n### {gold} "),
    }
}

/// Texts composed of the scanners' markers.
fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        proptest::sample::select(vec![
            "#",
            "####",
            "Answer:",
            "answer is:",
            "Therefore, ",
            "答案是：",
            "$",
            "boxed{",
            "{",
            "}",
            "\\",
            "\\frac",
            "\\sqrt",
            "\\text{",
            "\\left",
            "1",
            "23",
            ".",
            ",",
            "-",
            "/",
            " ",
            "\n",
            "=",
            "\\in",
            "e5",
            "_",
            "x",
            "B",
            "(",
            ")",
            "é",
            "cm",
            "%",
            "^2",
            "^{",
            "{,}",
            "\\times",
            "10^",
            "\u{2212}",
            ":",
            " p.m.",
        ])
        .prop_map(str::to_owned),
        any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}

/// Strings of the characters and commands that normalization rewrites.
fn formulas() -> impl Strategy<Value = String> {
    prop_oneof![
        "[-+0-9a-z (),./:=^_{}\u{2212}]{0,20}",
        "(\\\\(frac|sqrt|text|left|right|pi|times|d?frac)|[ap]m|10\\^|[{}0-9x ,.()]){0,12}",
    ]
}

#[test]
fn a_text_that_does_not_settle_is_no_formula() {
    let text = |d: usize| format!("boxed{{x{}frac}}", "d".repeat(d));
    let extract = |d| AnswerRule::Boxed.extract(AnswerKind::Math, &text(d));
    let settled = extract(7).expect("seven passes are enough");
    assert!(settled.matches(settled.as_str()));
    assert_eq!(extract(20), None);
}

proptest! {
    #[test]
    fn extraction_never_panics(text in fragments(), gold in fragments()) {
        for rule in RULES {
            for kind in [AnswerKind::Number, AnswerKind::Math, AnswerKind::Choice] {
                if let Some(answer) = rule.extract(kind, &text) {
                    prop_assert!(!answer.as_str().is_empty());
                    answer.matches(&gold);
                }
            }
        }
    }

    #[test]
    fn canonical_numbers_round_trip(value in any::<f64>()) {
        prop_assume!(value.is_finite());
        for rule in [AnswerRule::Hash, CODI, AnswerRule::AnswerColon, AnswerRule::Boxed] {
            let once = number(rule, &rendered(rule, value)).expect("a number");
            prop_assert_eq!(once.parse::<f64>().expect("a number"), value);
            prop_assert_eq!(number(rule, &rendered(rule, value + 0.0)), Some(once));
        }
    }

    #[test]
    fn normalization_is_idempotent(text in formulas()) {
        if let Some(once) = latex::normalize(&text) {
            prop_assert_eq!(latex::normalize(&once), Some(once));
        }
    }

    #[test]
    fn an_answer_matches_itself_as_gold(text in fragments()) {
        let text = format!("boxed{{{text}}}");
        if let Some(answer) = AnswerRule::Boxed.extract(AnswerKind::Math, &text) {
            prop_assert!(answer.matches(answer.as_str()));
        }
    }

    #[test]
    fn the_box_ends_at_its_closing_brace(
        inside in "([a-z]|\\{[a-z]{0,3}\\}){0,12}", tail in "[a-z{}]{0,8}",
    ) {
        let text = format!("\\boxed{{{inside}}}{tail}");
        prop_assert_eq!(latex::boxed(&text), Some(inside.as_str()));
    }
}

#[test]
fn yes_and_no_are_read_where_the_family_puts_its_answer() {
    let read = |rule: AnswerRule, text: &str| {
        rule.extract(AnswerKind::YesNo, text).map(|answer| answer.as_str().to_owned())
    };
    for (rule, text, expected) in [
        (AnswerRule::Hash, "### True", Some("yes")),
        (AnswerRule::Hash, "Is it? No, it is.\n### yes", Some("yes")),
        (AnswerRule::LastNumber, "The answer is: no", Some("no")),
        (AnswerRule::AnswerColon, "Answer:False<|eot_id|>", Some("no")),
        (AnswerRule::Boxed, "yes, but \\boxed{No}.", Some("no")),
        (AnswerRule::Boxed, "The answer is **yes**. That is no surprise", Some("yes")),
        (AnswerRule::Cascade, "assistant\n### yes ", Some("yes")),
        (AnswerRule::Hash, "nothing is known, untrue", None),
        (AnswerRule::Hash, "", None),
    ] {
        assert_eq!(read(rule, text).as_deref(), expected, "{text}");
    }
    let answer = AnswerRule::Hash.extract(AnswerKind::YesNo, "### True").unwrap();
    assert!(answer.matches("yes") && answer.matches(" True.") && !answer.matches("No"));
}
