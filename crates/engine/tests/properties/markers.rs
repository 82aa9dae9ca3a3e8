//! A question's text never encodes to a control token.

use latent_tts_engine::Prompt;
use model::testkit::CheckpointSpec;

use crate::common::*;

/// Markers that may occur in texts of users and data files.
const MARKERS: [&str; 10] = [
    "<|start-latent|>",
    "<|end-latent|>",
    "<|latent|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|begin_of_text|>",
    "<|eocot|>",
    "<|img_end|>",
];

#[test]
fn markers_in_a_question_are_read_as_their_characters() {
    let mut recognised = 0;
    for family in FAMILIES {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        let tokenizer = &reasoner.tokenizer;
        for marker in MARKERS {
            let Some(id) = tokenizer.token_to_id(marker) else { continue };
            recognised += 1;
            let count = |question: &str| {
                let prompt = Prompt::new(&reasoner, 0, question).unwrap();
                assert!(prompt.text.contains(question), "{:?}", prompt.text);
                prompt.tokens.iter().filter(|token| **token == id).count()
            };
            let plain = count("1 + 1");
            for text in [format!("1{marker}1"), format!("{marker}{marker}"), format!("<{marker}>")]
            {
                assert_eq!(count(&text), plain, "{family:?}: {text}");
            }
            // Guarding does not change the decoded text.
            let guarded = tokenizer.encode(&tokenizer.guard(marker)).unwrap();
            assert_eq!(tokenizer.decode(&guarded).unwrap(), marker, "{family:?}");
        }
        let text = "Tom has 3 < 4 apples, [1, 2] and <b>5</b>.";
        assert_eq!(tokenizer.guard(text), text, "other texts keep their tokens");
    }
    assert!(recognised > FAMILIES.len(), "the families have markers: {recognised}");
}
