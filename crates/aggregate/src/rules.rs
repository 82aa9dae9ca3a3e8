//! The registry of voting rules: one file per rule, one line per rule in the list below.
//!
//! A [`Rule`] is a name that resolves to an implementation of [`VotingRule`]. Programs add custom
//! rules with [`Rule::register`]; these have names, labels, metrics and intervals like the built-in
//! ones.

mod arithmetic;
mod best_of;
mod best_probe;
mod calibrated;
mod combined;
mod lcb;
mod likelihood;
mod majority;
mod normalized;
mod probe;
mod weighted;

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Candidate;
use crate::voting::{RewardReduction, VoteParams};

/// A rule that chooses one answer from many candidates.
pub trait VotingRule: Send + Sync {
    /// The name in commands, requests and results; `snake_case`.
    fn name(&self) -> &str;

    /// Names used by earlier versions, which are still accepted.
    fn aliases(&self) -> &[&str] {
        &[]
    }

    /// The name in tables and figures.
    fn label(&self) -> &str {
        self.name()
    }

    /// A one-line description.
    fn describe(&self) -> &str;

    /// The signals that every candidate must have.
    fn needs(&self) -> Signals;

    /// Set by rules that choose the candidate with the largest reward under a reduction: their
    /// accuracy over all subsets is computed exactly instead of being sampled.
    fn reduction(&self) -> Option<RewardReduction> {
        None
    }

    /// The index of the chosen candidate; `None` if no candidate has an answer. The order of the
    /// slice must not matter.
    fn choose(&self, candidates: &[&dyn Candidate], params: &VoteParams) -> Option<usize>;

    /// The error of a rule that calls fallible code, if it failed since the last call of this
    /// method. The choices made since then are invalid.
    fn take_failure(&self) -> Option<Arc<dyn Error + Send + Sync>> {
        None
    }

    /// False for a rule of which only the name is known; see [`Rule::named`].
    fn is_known(&self) -> bool {
        true
    }
}

/// The signals of a candidate that a rule reads in addition to its answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signals {
    /// Process rewards, and the outcome reward if there is one.
    pub rewards: bool,
    /// The log-probability of the decoded text.
    pub logprobs: bool,
    /// The name of a signal; see [`crate::signals`].
    pub signal: Option<&'static str>,
    /// Whether the rule needs a calibration among its parameters.
    pub calibration: bool,
}

/// A voting rule: an index into the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule(u16);

/// Declares the built-in rules as constants, in display order.
macro_rules! built_in {
    ($($(#[$doc:meta])* $name:ident = $rule:expr;)*) => {
        const BUILT_IN: &[&dyn VotingRule] = &[$(&$rule),*];

        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[repr(u16)]
        enum Index { $($name),* }

        impl Rule {
            $($(#[$doc])* pub const $name: Self = Self(Index::$name as u16);)*

            /// All built-in rules.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

built_in! {
    /// Most votes.
    MAJORITY = majority::Majority;
    /// Votes weighted by a softmax of the rewards.
    WEIGHTED = weighted::Weighted;
    /// Votes weighted by a softmax of the standardized rewards.
    NORMALIZED = normalized::Normalized;
    /// Votes weighted by a softmax of the standardized log-probabilities.
    LIKELIHOOD = likelihood::Likelihood;
    /// Votes weighted by standardized rewards plus standardized log-probabilities.
    COMBINED = combined::Combined;
    /// The largest lower confidence bound on an answer's mean reward.
    LCB = lcb::LowerConfidenceBound;
    /// Votes weighted by exp of the probe's score.
    PROBE = probe::ProbeVote;
    /// Votes weighted by the correctness of the arithmetic in the steps.
    ARITHMETIC = arithmetic::Arithmetic;
    /// The learned combination of all signals.
    CALIBRATED = calibrated::Calibrated;
    /// The candidate with the largest probe score.
    BEST_PROBE = best_probe::BestProbe;
    /// The candidate with the largest reward.
    BEST_OF = best_of::BestOf(RewardReduction::OutcomeOrMean);
    /// The candidate with the largest mean process reward.
    BEST_OF_MEAN = best_of::BestOf(RewardReduction::Mean);
    /// The candidate with the largest sum of process rewards.
    BEST_OF_SUM = best_of::BestOf(RewardReduction::Sum);
    /// The candidate with the largest last process reward.
    BEST_OF_LAST = best_of::BestOf(RewardReduction::Last);
    /// The candidate with the largest minimum process reward.
    BEST_OF_MIN = best_of::BestOf(RewardReduction::Min);
}

/// Rules registered at run time, after the built-in ones. They are never freed.
static REGISTERED: RwLock<Vec<&'static dyn VotingRule>> = RwLock::new(Vec::new());

/// A rule of which only the name is known, from another program's results.
struct Unknown(String);

impl VotingRule for Unknown {
    fn name(&self) -> &str {
        &self.0
    }

    fn describe(&self) -> &str {
        "a rule of the program that wrote these results"
    }

    fn needs(&self) -> Signals {
        Signals::default()
    }

    fn choose(&self, _: &[&dyn Candidate], _: &VoteParams) -> Option<usize> {
        None
    }

    fn is_known(&self) -> bool {
        false
    }
}

/// The error for a rule that cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleNameTaken(pub String);

impl fmt::Display for RuleNameTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a built-in rule is called {:?}; choose another name", self.0)
    }
}

impl Error for RuleNameTaken {}

impl Rule {
    /// The rules evaluated by default: all except the other reductions of best-of-N.
    pub const DEFAULT: &[Self] = Self::ALL.split_at(Self::BEST_OF.0 as usize + 1).0;

    /// Adds a rule, or replaces a registered one of the same name.
    ///
    /// # Errors
    ///
    /// If a built-in rule has the name.
    pub fn register(rule: Box<dyn VotingRule>) -> Result<Self, RuleNameTaken> {
        if Self::built_in(rule.name()).is_some() {
            return Err(RuleNameTaken(rule.name().to_owned()));
        }
        let rule: &'static dyn VotingRule = Box::leak(rule);
        let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        let index = match registered.iter().position(|other| other.name() == rule.name()) {
            Some(index) => {
                registered[index] = rule;
                index
            }
            None => {
                registered.push(rule);
                registered.len() - 1
            }
        };
        Ok(Self((BUILT_IN.len() + index) as u16))
    }

    /// Looks up a built-in or registered rule by name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::built_in(name).or_else(|| {
            let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
            let index = registered.iter().position(|rule| rule.name() == name)?;
            Some(Self((BUILT_IN.len() + index) as u16))
        })
    }

    fn built_in(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| {
            let rule = rule.implementation();
            rule.name() == name || rule.aliases().contains(&name)
        })
    }

    /// The rule of this name; an unknown one can be named and displayed, but never chooses.
    pub fn named(name: &str) -> Self {
        Self::from_name(name)
            .or_else(|| Self::register(Box::new(Unknown(name.to_owned()))).ok())
            .unwrap_or(Self::MAJORITY)
    }

    fn implementation(self) -> &'static dyn VotingRule {
        let index = usize::from(self.0);
        BUILT_IN.get(index).copied().unwrap_or_else(|| {
            let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
            registered[index - BUILT_IN.len()]
        })
    }

    /// See [`VotingRule::name`].
    pub fn name(self) -> &'static str {
        self.implementation().name()
    }

    /// See [`VotingRule::aliases`].
    pub fn aliases(self) -> &'static [&'static str] {
        self.implementation().aliases()
    }

    /// See [`VotingRule::label`].
    pub fn label(self) -> &'static str {
        self.implementation().label()
    }

    /// See [`VotingRule::describe`].
    pub fn describe(self) -> &'static str {
        self.implementation().describe()
    }

    /// See [`VotingRule::needs`].
    pub fn needs(self) -> Signals {
        self.implementation().needs()
    }

    /// See [`VotingRule::reduction`].
    pub fn reduction(self) -> Option<RewardReduction> {
        self.implementation().reduction()
    }

    /// See [`VotingRule::take_failure`].
    pub fn take_failure(self) -> Option<Arc<dyn Error + Send + Sync>> {
        self.implementation().take_failure()
    }

    /// See [`VotingRule::is_known`].
    pub fn is_known(self) -> bool {
        self.implementation().is_known()
    }

    /// Whether every candidate has the signals that the rule needs; for signals that not every
    /// trajectory can have, at least one candidate.
    pub fn applies<T: Candidate>(self, candidates: &[T], params: &VoteParams) -> bool {
        let needs = self.needs();
        let has_all = candidates.iter().all(|candidate| {
            (!needs.rewards || candidate.process_rewards().is_some())
                && (!needs.logprobs || candidate.logprob().is_some())
        });
        has_all
            && needs.signal.is_none_or(|name| {
                candidates.iter().any(|candidate| candidate.signal(name).is_some())
            })
            && (!needs.calibration || params.calibration.is_some())
    }

    /// The index of the chosen candidate; among those with the chosen answer, the one with the
    /// lowest number.
    pub fn choose<T: Candidate>(self, candidates: &[T], params: &VoteParams) -> Option<usize> {
        let candidates: Vec<&dyn Candidate> =
            candidates.iter().map(|candidate| candidate as &dyn Candidate).collect();
        self.implementation().choose(&candidates, params)
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::MAJORITY
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for an unknown rule name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownRule(String);

impl fmt::Display for UnknownRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        write!(f, "unknown rule {:?}; use one of {}", self.0, names.join(", "))
    }
}

impl Error for UnknownRule {}

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Self, UnknownRule> {
        Self::from_name(name).ok_or_else(|| UnknownRule(name.to_owned()))
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::unscored;

    /// Chooses the candidate with the highest number.
    struct Latest;

    impl VotingRule for Latest {
        fn name(&self) -> &str {
            "latest_of_test"
        }

        fn describe(&self) -> &str {
            "the last trajectory"
        }

        fn needs(&self) -> Signals {
            Signals::default()
        }

        fn choose(&self, candidates: &[&dyn Candidate], _: &VoteParams) -> Option<usize> {
            (0..candidates.len())
                .filter(|index: &usize| candidates[*index].answer().is_some())
                .max_by_key(|index| candidates[*index].number())
        }
    }

    #[test]
    fn names_and_aliases_resolve_to_their_rule() {
        for &rule in Rule::ALL {
            assert_eq!(rule.name().parse(), Ok(rule));
            assert_eq!(serde_json::to_string(&rule).unwrap(), format!("{:?}", rule.name()));
            assert!(rule.label().len() <= 12 && !rule.describe().is_empty());
        }
        for (alias, rule) in
            [("maj", Rule::MAJORITY), ("likely", Rule::LIKELIHOOD), ("pessimistic", Rule::LCB)]
        {
            assert_eq!(alias.parse(), Ok(rule));
        }
        let error = "best".parse::<Rule>().unwrap_err().to_string();
        assert!(error.contains("majority, weighted"), "{error}");
    }

    #[test]
    fn a_registered_rule_votes_like_a_built_in_one() {
        let rule = Rule::register(Box::new(Latest)).unwrap();
        assert_eq!("latest_of_test".parse(), Ok(rule));
        let candidates = unscored(&["1", "2"]);
        assert_eq!(rule.choose(&candidates, &VoteParams::default()), Some(1));
        assert_eq!(Rule::register(Box::new(Unknown("majority".into()))).ok(), None);
        let unknown = Rule::named("of_another_program");
        assert_eq!(
            (unknown.name(), unknown.choose(&candidates, &VoteParams::default())),
            ("of_another_program", None)
        );
        assert!(rule.is_known() && !unknown.is_known() && Rule::MAJORITY.is_known());
    }
}
