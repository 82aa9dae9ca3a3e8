//! Field names that a caller gives, for files whose names are not among the known ones.

use serde::{Deserialize, Serialize};

use super::shape::{ANSWERS, FIELDS, QUESTIONS, STEPS};

/// The fields of a record that hold question, answer and steps, where the file has names of its
/// own. A name that is given takes the place of all known names of its role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(next_help_heading = "Data"))]
#[serde(default)]
pub struct FieldNames {
    /// The field or column that holds the question [default: question, problem, input and other
    /// known names]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub question_field: Option<String>,

    /// The field or column that holds the answer, or a solution with the answer after #### or in a
    /// box [default: answer, target and other known names]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub answer_field: Option<String>,

    /// The field or column that holds the steps: a list, or a text that is split into its
    /// calculations, lines or sentences [default: steps, cot, facts]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NAME"))]
    pub steps_field: Option<String>,
}

impl FieldNames {
    /// Whether no name is given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The names that are given, by role.
    fn given(&self) -> [(&'static str, Option<&String>); 3] {
        [
            ("question_field", self.question_field.as_ref()),
            ("answer_field", self.answer_field.as_ref()),
            ("steps_field", self.steps_field.as_ref()),
        ]
    }

    /// The role of a field that is required and absent, if its name was given.
    pub(super) fn role_of(&self, field: &str) -> Option<&'static str> {
        let mut given = self.given().into_iter();
        given.find(|(_, name)| name.is_some_and(|name| name == field)).map(|(role, _)| role)
    }

    /// Whether a field is read.
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
