//! Test support: an example value for every field.

/// An example value, as JSON, for each field of [`SamplingOptions`](crate::SamplingOptions),
/// different from its default. A test of this crate fails if a field has no entry, so the tests of
/// the command line, TOML files and HTTP, which iterate over this list, cover every field.
pub const FIELD_EXAMPLES: &[(&str, &str)] = &[
    ("samples", "3"),
    ("sampler", "\"none\""),
    ("dropout_p", "0.35"),
    ("sites", "\"attn\""),
    ("scope", "\"all\""),
    ("mask", "\"trajectory\""),
    ("noise_std", "0.25"),
    ("gumbel_tau", "0.5"),
    ("one_sided", "true"),
    ("gumbel_scale", "0.5"),
    ("multiplex_width", "4"),
    ("temperature", "0.7"),
    ("top_p", "0.9"),
    ("latent_length", "\"4-5\""),
    ("cold_stop_entropy", "0.05"),
    ("cold_stop_steps", "12"),
    ("max_new_tokens", "7"),
    ("greedy", "true"),
    ("seed", "7"),
    ("rule", "\"lcb\""),
    ("vote_temperature", "0.5"),
    ("likelihood_weight", "2.0"),
    ("lcb_coefficient", "2.5"),
    ("check_steps", "true"),
    (
        "calibration",
        r#"{"weights":{"votes":0.5,"likelihood":0.0,"reward":0.0,"probe":1.5,"arithmetic":0.0,"grounding":0.0,"conclusion":0.0},"slope":0.75,"intercept":-0.5}"#,
    ),
    ("beam", "true"),
    ("search", "\"particles\""),
    ("beam_width", "3"),
    ("beam_candidates", "2"),
    ("search_temperature", "0.5"),
    ("adaptive", "true"),
    ("target_confidence", "0.9"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::SamplingOptions;

    /// serde lists all fields in its error for an unknown one.
    #[test]
    fn every_field_has_an_example_that_sets_it_alone() {
        let error = serde_json::from_str::<SamplingOptions>("{\"?\": 0}").unwrap_err().to_string();
        let names = error.split('`').skip(3).step_by(2);
        let aliases = ["n", "p", "sigma", "tau", "thoughts", "caution", "confidence"];
        let fields: BTreeSet<&str> = names.filter(|name| !aliases.contains(name)).collect();
        let listed: BTreeSet<&str> = FIELD_EXAMPLES.iter().map(|(field, _)| *field).collect();
        assert_eq!(listed, fields);
        for (field, value) in FIELD_EXAMPLES {
            let text = format!("{{\"{field}\": {value}}}");
            let options: SamplingOptions = serde_json::from_str(&text).unwrap();
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let written = serde_json::to_value(&options).unwrap();
            assert_eq!(written.as_object().unwrap().len(), 1, "{written}");
            match (written[field].as_f64(), value[field].as_f64()) {
                (Some(found), Some(given)) => assert!((found - given).abs() < 1e-6, "{field}"),
                _ => assert_eq!(written[field], value[field]),
            }
            assert_ne!(options, SamplingOptions::default());
        }
    }
}
