//! Prevents control tokens in user texts: text never encodes to a control token.
//!
//! Control tokens are split where the text contains them literally. A normalizer can produce them
//! from other text (`<|ENDOFTEXT|>` in lower case); therefore, with a normalizer, the result is
//! encoded, and every span that became a control token is split as well.

use std::borrow::Cow;

use super::Tokenizer;

/// Maximum number of times a text is encoded and split; after that all of its characters are
/// separated.
const MAX_PASSES: usize = 4;

impl Tokenizer {
    /// Returns a text in which no control token is recognized: a literal `<|im_end|>` is encoded as
    /// these characters. Other texts are returned unchanged.
    pub fn guard<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut guarded = Cow::Borrowed(text);
        if text.contains(Self::CUT) {
            guarded = Cow::Owned(text.replace(Self::CUT, ""));
        }
        for control in &self.controls {
            // Repeat, because two of them may share a character.
            while guarded.contains(control.as_str()) {
                let first = control.chars().next().map_or(0, char::len_utf8);
                let cut = format!("{}{}{}", &control[..first], Self::CUT, &control[first..]);
                guarded = Cow::Owned(guarded.replace(control.as_str(), &cut));
            }
        }
        if self.inner.get_normalizer().is_none() {
            return guarded;
        }
        for _ in 0..MAX_PASSES {
            match self.cut_encoded(&guarded) {
                Some(cut) => guarded = Cow::Owned(cut),
                None => return guarded,
            }
        }
        Cow::Owned(self.separated(&guarded))
    }

    /// The text with cuts between all characters of each control token; `None` if there are none.
    fn cut_encoded(&self, text: &str) -> Option<String> {
        let mut found = false;
        let pieces: Vec<Cow<'_, str>> = text
            .split(Self::CUT)
            .map(|piece| match self.control_spans(piece) {
                spans if spans.is_empty() => Cow::Borrowed(piece),
                spans => {
                    found = true;
                    Cow::Owned(cut_spans(piece, &spans))
                }
            })
            .collect();
        found.then(|| pieces.join(&Self::CUT.to_string()))
    }

    /// The byte spans of a text that become control tokens, in order.
    fn control_spans(&self, text: &str) -> Vec<(usize, usize)> {
        // A text that cannot be encoded contains no tokens; encoding it reports the error.
        let Ok(encoding) = self.inner.encode(text, false) else { return Vec::new() };
        let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
        tokens.filter(|(id, _)| self.control_ids.contains(id)).map(|(_, span)| *span).collect()
    }

    /// Separates all characters, dropping those that are a control token alone.
    fn separated(&self, text: &str) -> String {
        let mut separated = String::new();
        for character in text.chars().filter(|&character| character != Self::CUT) {
            if self.control_spans(character.encode_utf8(&mut [0; 4])).is_empty() {
                separated.push(character);
                separated.push(Self::CUT);
            }
        }
        separated
    }
}

/// Cuts between all characters of the given spans; spans of one character are dropped.
fn cut_spans(text: &str, spans: &[(usize, usize)]) -> String {
    let mut cut = String::new();
    let mut end = 0;
    for &(from, to) in spans {
        let (Some(before), Some(span)) = (text.get(end..from), text.get(from..to)) else {
            continue;
        };
        cut.push_str(before);
        cut.push(Tokenizer::CUT);
        if span.chars().count() > 1 {
            for character in span.chars() {
                cut.push(character);
                cut.push(Tokenizer::CUT);
            }
        }
        end = to;
    }
    cut.push_str(text.get(end..).unwrap_or_default());
    cut
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    fn tokenizer(normalizer: Value, normalized: bool) -> Tokenizer {
        let dir = tempfile::tempdir().unwrap();
        let control = json!({ "id": 0, "content": "<|end|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": normalized, "special": true });
        let words = ["<|end|>", "<unk>", "<", "|", "end", ">", "a", "e", "n", "d", "x"];
        let vocab: Value = words.iter().zip(0..).map(|(word, id)| (*word, json!(id))).collect();
        let file = json!({ "version": "1.0", "added_tokens": [control], "normalizer": normalizer,
            "pre_tokenizer": { "type": "WhitespaceSplit" },
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" } });
        std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
        Tokenizer::read(dir.path() as &Path).unwrap()
    }

    #[test]
    fn no_normalizer_makes_a_control_token_of_a_text() {
        let lowercase = json!({ "type": "Lowercase" });
        let both = json!({ "type": "Sequence", "normalizers": [lowercase, { "type": "NFC" }] });
        for normalizer in [lowercase.clone(), both, json!({ "type": "NFC" }), Value::Null] {
            for normalized in [false, true] {
                let tokenizer = tokenizer(normalizer.clone(), normalized);
                for text in [
                    "<|END|>",
                    "<|End|> a <|eND|>",
                    "<|end|>",
                    "a <|EN<|END|>D|>",
                    "<|END|><|END|>",
                    "  <|END|>  ",
                    "\u{ff1c}|END|>",
                ] {
                    let ids = tokenizer.encode(&tokenizer.guard(text)).unwrap();
                    assert!(!ids.contains(&0), "{normalizer} {normalized}: {text:?} is {ids:?}");
                }
            }
        }
    }

    #[test]
    fn other_texts_are_left_alone() {
        let tokenizer = tokenizer(json!({ "type": "Lowercase" }), true);
        for text in ["", "a END a", "< | END | >", "\u{130}"] {
            assert_eq!(tokenizer.guard(text), text);
        }
        // The control token itself is recognized where the program inserts it.
        assert_eq!(tokenizer.encode("a <|END|>").unwrap(), [6, 0]);
    }
}
