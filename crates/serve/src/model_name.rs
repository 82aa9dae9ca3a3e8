//! Rule and budget in the model name: `codi@weighted-16` selects the model `codi` with the rule
//! `weighted` over 16 trajectories, for clients that cannot send other fields.
//!
//! The part after the last `@` is `RULE-N`, `RULE` or `N`. It is written to the corresponding
//! fields of `latent`, so the same limits and errors apply. A body with a different value in such a
//! field is rejected.

use latent_tts::Rule;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::ModelPool;

/// The model name in a body, after moving rule and budget to fields of `latent`.
pub(crate) fn read(models: &ModelPool, body: &mut Value) -> Result<Option<String>, ApiError> {
    let Some(name) = Fields::of_body(body)?.text("model")? else { return Ok(None) };
    let suffixed = name.rsplit_once('@').filter(|(model, _)| models.has(model));
    let Some((model, suffix)) = suffixed.filter(|_| !models.has(name)) else {
        return Ok(Some(name.to_owned()));
    };
    let (model, budget) = (model.to_owned(), NamedBudget::parse(suffix)?);
    budget.write(body)?;
    Ok(Some(model))
}

/// The rule and budget in a name's suffix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NamedBudget {
    rule: Option<Rule>,
    samples: Option<u64>,
}

impl NamedBudget {
    pub(crate) fn parse(suffix: &str) -> Result<Self, ApiError> {
        let wrong = || {
            let rules = Rule::ALL.iter().map(|rule| rule.name()).collect::<Vec<_>>().join(", ");
            let message = format!(
                "the suffix after @ must be a rule, a number of trajectories, or both, such as \
                 weighted-16; rules: {rules}"
            );
            ApiError::field("model", message)
        };
        let (rule, samples) = match suffix.rsplit_once('-') {
            Some((rule, samples)) => (Some(rule), Some(samples)),
            None if suffix.starts_with(|c: char| c.is_ascii_digit()) => (None, Some(suffix)),
            None => (Some(suffix), None),
        };
        let rule = rule.map(|rule| Rule::from_name(rule).ok_or_else(wrong)).transpose()?;
        let count = |count: &str| count.parse().ok().filter(|&count| count > 0).ok_or_else(wrong);
        let samples = samples.map(count).transpose()?;
        Ok(Self { rule, samples })
    }

    pub(crate) fn write(&self, body: &mut Value) -> Result<(), ApiError> {
        if self.samples.is_some() && !body["reasoning_effort"].is_null() {
            let message = "the model name and reasoning_effort both set the number of \
                           trajectories; omit one";
            return Err(ApiError::field("model", message));
        }
        let latent = &mut body["latent"];
        if latent.is_null() {
            *latent = Value::Object(Map::new());
        }
        // A `latent` that is not an object is rejected where it is read.
        let Some(latent) = latent.as_object_mut() else { return Ok(()) };
        let fields = [
            ("rule", self.rule.map(|rule| json!(rule.name()))),
            ("samples", self.samples.map(|samples| json!(samples))),
        ];
        for (field, value) in fields {
            let Some(value) = value else { continue };
            match latent.get(field).filter(|given| !given.is_null()) {
                Some(given) if *given != value => {
                    let message = format!("the model name and latent.{field} contradict; omit one");
                    return Err(ApiError::field("model", message));
                }
                _ => drop(latent.insert(field.to_owned(), value)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suffix_is_a_rule_a_number_or_both() {
        let parse = |suffix: &str| NamedBudget::parse(suffix).ok();
        let budget = |rule, samples| Some(NamedBudget { rule, samples });
        assert_eq!(parse("weighted-16"), budget(Some(Rule::WEIGHTED), Some(16)));
        assert_eq!(parse("majority"), budget(Some(Rule::MAJORITY), None));
        assert_eq!(parse("8"), budget(None, Some(8)));
        assert_eq!(parse("best_of-4"), budget(Rule::from_name("best_of"), Some(4)));
        for wrong in ["", "coin", "weighted-", "weighted-x", "weighted-0", "0", "-3", "8x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_field_that_differs_is_refused() {
        let budget = NamedBudget::parse("weighted-16").unwrap();
        let mut same = json!({ "latent": { "samples": 16, "seed": 1 } });
        budget.write(&mut same).unwrap();
        assert_eq!(same["latent"], json!({ "samples": 16, "seed": 1, "rule": "weighted" }));
        for other in [
            json!({ "latent": { "samples": 8 } }),
            json!({ "latent": { "rule": "majority" } }),
            json!({ "reasoning_effort": "low" }),
        ] {
            assert!(budget.write(&mut other.clone()).is_err(), "{other}");
        }
    }
}
