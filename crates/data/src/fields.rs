//! Field names given by the caller, for files with unknown field names.

use serde::{Deserialize, Serialize};

use super::shape::{ANSWERS, FIELDS, QUESTIONS, STEPS};

/// Names of the fields for question, answer and steps, for files that do not use known names. A
/// given name replaces all known names of its role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(next_help_heading = "Data"))]
#[serde(default)]
pub struct FieldNames {
    /// Field or column with the question [default: question, problem, input and other known names]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub question_field: Option<String>,

    /// Field or column with the answer, or with a solution that has the answer after #### or in a
    /// box [default: answer, target and other known names]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub answer_field: Option<String>,

    /// Field or column with the steps: a list, or a text that is split into calculations, lines or
    /// sentences [default: steps, cot, facts]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub steps_field: Option<String>,
}

impl FieldNames {
    /// Whether no name is given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The given names, by role.
    fn given(&self) -> [(&'static str, Option<&String>); 3] {
        [
            ("question_field", self.question_field.as_ref()),
            ("answer_field", self.answer_field.as_ref()),
            ("steps_field", self.steps_field.as_ref()),
        ]
    }

    /// The role of a field, if its name was given by the caller.
    pub(super) fn role_of(&self, field: &str) -> Option<&'static str> {
        let mut given = self.given().into_iter();
        given.find(|(_, name)| name.is_some_and(|name| name == field)).map(|(role, _)| role)
    }

    /// Whether a field is known or given by the caller.
    pub(super) fn reads(&self, field: &str) -> bool {
        self.role_of(field).is_some() || FIELDS.contains(&field)
    }

    pub(super) fn questions(&self) -> Vec<&str> {
        one_or_known(self.question_field.as_ref(), &QUESTIONS)
    }

    pub(super) fn answers(&self) -> Vec<&str> {
        one_or_known(self.answer_field.as_ref(), &ANSWERS)
    }

    pub(super) fn steps(&self) -> Vec<&str> {
        one_or_known(self.steps_field.as_ref(), &STEPS)
    }
}

fn one_or_known<'a>(given: Option<&'a String>, known: &[&'a str]) -> Vec<&'a str> {
    given.map_or_else(|| known.to_vec(), |given| vec![given.as_str()])
}
