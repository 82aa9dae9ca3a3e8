//! Runs every target on its corpus and on a few thousand mutations: no panic, no failed round trip,
//! no memory beyond the limit. `examples/campaign.rs` runs the same for longer.

#![expect(clippy::unwrap_used, reason = "a broken test should fail loudly")]

use latent_tts_fuzz::{FuzzTarget, Mutator, TARGETS};

/// Number of mutations per target, and of targets whose executions take milliseconds.
const MUTATIONS: usize = 3000;
const SLOW_MUTATIONS: usize = 300;
const SLOW: [&str; 2] = ["templates", "pages"];

fn check(name: &str) {
    let target = FuzzTarget::find(name).unwrap();
    let corpus = target.corpus().unwrap();
    assert!(!corpus.is_empty(), "{name} has a corpus");
    // Initializes the fixtures shared by the bodies before memory is counted.
    let _ = std::panic::catch_unwind(|| target.run(&corpus[0].1));
    for (file, input) in &corpus {
        let outcome = std::panic::catch_unwind(|| target.run(input));
        assert!(outcome.is_ok(), "fuzz/corpus/{name}/{file} breaks its parser");
    }
    let mut mutator = Mutator::new(0);
    let mut input = Vec::new();
    let mutations = if SLOW.contains(&name) { SLOW_MUTATIONS } else { MUTATIONS };
    for number in 0..mutations {
        mutator.mutate(&corpus, target.words, &mut input);
        let outcome = std::panic::catch_unwind(|| target.run(&input));
        assert!(outcome.is_ok(), "mutation {number} of {name} breaks its parser: {input:?}");
    }
}

macro_rules! checks {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*

        #[test]
        fn every_target_has_its_test() {
            assert_eq!(TARGETS.map(|target| target.name), [$(stringify!($name)),*]);
        }
    };
}

checks!(safetensors config tokenizer gguf pickle adapter questions samples annotations settings layers answer http grading
    templates heads pages);
