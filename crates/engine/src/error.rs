//! Errors of the engine: invalid checkpoints, models and requests.
//!
//! Messages are one line, lower case, and end with the remedy.

use std::path::PathBuf;

use crate::family::Family;

/// An error from loading a model or from running a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A checkpoint, a configuration or a tokenizer could not be loaded.
    #[error(transparent)]
    Model(#[from] model::ModelError),

    /// A device operation failed.
    #[error(transparent)]
    Device(#[from] tensor::DeviceError),

    /// The family can be inferred neither from config.json nor from the tensors and tokens.
    #[error(
        "{}: not recognized as a latent reasoner: no projector, mean head or projection head, and \
         no {} token; specify its family, one of {}",
        dir.display(), "<|start-latent|>", Family::names()
    )]
    Unrecognised {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// config.json names an unknown family.
    #[error(
        "{}: field `latent_tts.family` is `{name}`, an unknown family; use one of {}",
        dir.join("config.json").display(), Family::names()
    )]
    UnknownFamily {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The value of the field.
        name: String,
    },

    /// Open-ended thoughts in a family without an end-of-thought token.
    #[error(
        "{family} has no end-of-thought token, so open-ended thoughts would never stop; pass a \
         fixed number of thoughts"
    )]
    EndlessThoughts {
        /// The family.
        family: Family,
    },

    /// The hidden states of a layer that the model does not have were requested.
    #[error("no layer {layer}; use 0 (the input embeddings) to {layers} (the last block)")]
    UnknownLayer {
        /// The requested layer.
        layer: usize,
        /// The number of blocks.
        layers: usize,
    },

    /// A perturbation of thoughts in a run without thoughts.
    #[error(
        "no thoughts to perturb: without thoughts (the default for {family}), trajectories differ \
         only by token sampling or by dropout that also applies to the answer"
    )]
    NothingToPerturb {
        /// The family.
        family: Family,
    },

    /// Gumbel noise on thoughts that are not mixtures.
    #[error(
        "gumbel noise, sampled mixtures and Cold Stop apply only to thoughts that are mixtures of \
         token embeddings, and those of {family} are not; use dropout or noise"
    )]
    NothingToMix {
        /// The family.
        family: Family,
    },

    /// A beam search or rollouts in a family that computes all thoughts in parallel.
    #[error(
        "{family} computes its thoughts in parallel, so partial trajectories cannot be extended; \
         sample trajectories without beam search and rollouts"
    )]
    ParallelThoughts {
        /// The family.
        family: Family,
    },

    /// Forced thoughts in a request that runs without thoughts.
    #[error(
        "no thoughts to replace: {family} runs without thoughts here; use a latent reasoner, or \
         allow thoughts"
    )]
    NothingToReplace {
        /// The family.
        family: Family,
    },

    /// Forced thoughts of an invalid shape.
    #[error(
        "question {id}: the forced thoughts of trajectory {trajectory} have shape {found:?} \
         (thoughts, width); the request allows at most {expected:?}"
    )]
    ForcedShape {
        /// The request's id.
        id: u32,
        /// Index of the trajectory within the question.
        trajectory: usize,
        /// The shape that was passed: thoughts, width.
        found: [usize; 2],
        /// The maximum number of thoughts, and the model's width.
        expected: [usize; 2],
    },

    /// A beam search was combined with forced thoughts.
    #[error(
        "question {id}: beam search cannot be combined with forced thoughts; remove one of them"
    )]
    ForcedSearch {
        /// The request's id.
        id: u32,
    },

    /// A reward model was passed instead of a reasoner.
    #[error("{}: this is a reward model (it has a scoring head); pass a reasoner", dir.display())]
    RewardModelAsReasoner {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// A reasoner was passed instead of a reward model.
    #[error(
        "{}: not a reward model: no tensor `classifier.weight`, `score.weight` or \
         `compare.out.weight`",
        dir.display()
    )]
    NotARewardModel {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// The reward model has no embedding for some of the reasoner's tokens.
    #[error(
        "the reward model's vocabulary has {reads} tokens and the reasoner's has {says}; a reward \
         model that scores answers works only with the reasoner it was trained for"
    )]
    UnreadableAnswers {
        /// Vocabulary size of the reward model.
        reads: usize,
        /// Vocabulary size of the reasoner.
        says: usize,
    },

    /// The reward model's reference reasoner is neither the loaded reasoner nor at its recorded
    /// path.
    #[error(
        "{}: its reference reasoner is not the loaded reasoner and was not found at {}; put it \
         there, or use the reasoner that the reward model was trained with",
        dir.display(),
        path.display()
    )]
    MissingReference {
        /// The reward model's directory.
        dir: PathBuf,
        /// The recorded path of the reference reasoner.
        path: PathBuf,
    },

    /// The reference reasoner cannot be used with the reward model.
    #[error(
        "{}: {why}; a reference reasoner must be a latent reasoner of the reward model's width",
        dir.display()
    )]
    UnfitReference {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The problem.
        why: String,
    },

    /// The reward model scores thoughts of another width.
    #[error(
        "the reward model has width {reward} and the reasoner width {reasoner}; a LatentRM scores \
         only the thoughts of the reasoner it was trained for"
    )]
    WidthDiffers {
        /// The reward model's width.
        reward: usize,
        /// The reasoner's width.
        reasoner: usize,
    },

    /// The vocabulary lacks a token that the family needs.
    #[error(
        "{}: the tokenizer has no `{token}` {how}, which {family} requires; use the tokenizer that \
         came with the checkpoint",
        dir.display()
    )]
    AbsentToken {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The token.
        token: String,
        /// The family.
        family: Family,
        /// The required form, e.g. `as an added token`.
        how: &'static str,
    },

    /// A forward step of the continuous batch failed; it fails every request that had sequences in
    /// the batch.
    #[error("a forward step failed while the request ran: {why}; retry the request")]
    PassFailed {
        /// The device's message.
        why: String,
    },

    /// The tokenizer is larger than the embedding table.
    #[error(
        "{}: token `{token}` has id {id}, but the model has {vocab} embeddings; tokenizer and \
         weights do not match",
        dir.display()
    )]
    TokenBeyondVocabulary {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The token.
        token: String,
        /// Its id.
        id: u32,
        /// Rows of the embedding table.
        vocab: usize,
    },

    /// Tensors that no part of the model uses.
    #[error(
        "{}: {} tensors are not part of a {family} model, including {}; the checkpoint may be of \
         another family",
        dir.display(), unused.len(), unused[0]
    )]
    UnusedTensors {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The family.
        family: Family,
        /// The names of the tensors.
        unused: Vec<String>,
    },

    /// A prompt that leaves no room for thoughts and an answer.
    #[error(
        "question {id}: {prompt} prompt tokens and {thoughts} thoughts leave no room for an answer \
         in the model's {context} positions; skip the question or request fewer thoughts"
    )]
    TooLong {
        /// The request's id.
        id: u32,
        /// Tokens of the prompt.
        prompt: usize,
        /// The maximum number of thoughts.
        thoughts: usize,
        /// The model's context length.
        context: usize,
    },

    /// A prompt longer than any context length; it is rejected before tokenization.
    #[error(
        "question {id}: prompt of {bytes} bytes exceeds the limit of {limit}; skip the question or \
         shorten it"
    )]
    LongText {
        /// The request's id.
        id: u32,
        /// Length of the prompt in bytes.
        bytes: usize,
        /// The maximum length in bytes.
        limit: usize,
    },

    /// The prompt contains a token that the reasoner or its reward model has no embedding for.
    #[error(
        "question {id}: prompt token {token} is out of range for a model with {vocab} embeddings; \
         use the tokenizer and a reward model of this reasoner"
    )]
    UnknownToken {
        /// The request's id.
        id: u32,
        /// The token.
        token: u32,
        /// Rows of the embedding table.
        vocab: usize,
    },

    /// A prompt without tokens.
    #[error("question {id}: the prompt has no tokens; add some text")]
    Empty {
        /// The request's id.
        id: u32,
    },

    /// One sequence does not fit the memory budget.
    #[error(
        "question {id}: one trajectory needs {need} MiB for its keys and values, but the budget is \
         {budget} MiB; raise the budget or allow fewer answer tokens"
    )]
    Memory {
        /// The request's id.
        id: u32,
        /// KV memory of one sequence, in MiB.
        need: usize,
        /// The memory budget, in MiB.
        budget: usize,
    },

    /// A beam search without thoughts or without a reward model.
    #[error("beam search needs latent thoughts and a reward model that scores them")]
    NothingToSearch,

    /// The beam search of one question does not fit the memory budget.
    #[error(
        "question {id}: beam search needs {need} MiB for keys and values, but the budget is \
         {budget} MiB; raise the budget or use fewer beams or candidates"
    )]
    BeamMemory {
        /// The request's id.
        id: u32,
        /// KV memory of the search, in MiB.
        need: usize,
        /// The memory budget, in MiB.
        budget: usize,
    },

    /// The trajectories of one question do not fit the memory budget.
    #[error(
        "question {id}: {trajectories} trajectories and one rollout need {need} MiB for keys and \
         values, but the budget is {budget} MiB; raise the budget, or sample fewer trajectories or \
         answer tokens"
    )]
    RolloutMemory {
        /// The request's id.
        id: u32,
        /// The number of trajectories.
        trajectories: usize,
        /// Their KV memory and that of one rollout, in MiB.
        need: usize,
        /// The memory budget, in MiB.
        budget: usize,
    },

    /// The request was cancelled, or its time limit has passed.
    #[error("question {id}: cancelled")]
    Cancelled {
        /// The request's id.
        id: u32,
    },

    /// More rollouts than the random number generator has keys for.
    #[error("{count} {what} are too many to annotate; pass at most {most}")]
    TooMany {
        /// The counted objects, e.g. `rollouts`.
        what: &'static str,
        /// The requested number.
        count: usize,
        /// The maximum.
        most: usize,
    },
}
