//! Every way in which a request, a model or a checkpoint can be unfit.

use std::path::PathBuf;

use crate::family::Family;

/// Why the engine could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A checkpoint, a configuration or a tokenizer could not be read.
    #[error(transparent)]
    Model(#[from] model::ModelError),

    /// The device refused.
    #[error(transparent)]
    Device(#[from] tensor::DeviceError),

    /// Nothing in the checkpoint says which family it is.
    #[error(
        "{}: not recognised as a latent reasoner: no projector, mean head or projection head, and \
         no {} token; name its family, one of {}",
        dir.display(), "<|start-latent|>", Family::names()
    )]
    Unrecognised {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// config.json names a family that there is not.
    #[error(
        "{}: field `latent_tts.family` is `{name}`, and there is no such family; write one of {}",
        dir.join("config.json").display(), Family::names()
    )]
    UnknownFamily {
        /// The checkpoint directory.
        dir: PathBuf,
        /// What it names.
        name: String,
    },

    /// Thoughts of open length in a family without a token that ends them.
    #[error(
        "{family} has no token that ends thoughts, so that thoughts of open length would never \
         end; give a fixed number"
    )]
    EndlessThoughts {
        /// The family.
        family: Family,
    },

    /// Hidden states of a layer that the model does not have.
    #[error("there is no layer {layer}; use 0 for the inputs to {layers} for the last block")]
    UnknownLayer {
        /// The requested layer.
        layer: usize,
        /// The number of blocks.
        layers: usize,
    },

    /// A perturbation of thoughts where there are none.
    #[error(
        "there are no thoughts to perturb: without thoughts, which is the default of {family}, \
         trajectories differ by sampled tokens, or by dropout that reaches the answer"
    )]
    NothingToPerturb {
        /// The family.
        family: Family,
    },

    /// Gumbel noise on thoughts that are not mixtures.
    #[error(
        "gumbel noise, sampled mixtures and Cold Stop are for thoughts that are mixtures of token \
         embeddings, and those of {family} are not; perturb them by dropout or noise"
    )]
    NothingToMix {
        /// The family.
        family: Family,
    },

    /// A beam search or rollouts over thoughts that are computed together.
    #[error(
        "the thoughts of {family} are computed in parallel, so that none of them can be extended; \
         sample trajectories without beam search and rollouts"
    )]
    ParallelThoughts {
        /// The family.
        family: Family,
    },

    /// Thoughts were given to a request that has none.
    #[error(
        "there are no thoughts to replace: {family} answers without any here; take a latent \
         reasoner, or allow it thoughts"
    )]
    NothingToReplace {
        /// The family.
        family: Family,
    },

    /// Forced thoughts that the model cannot be fed.
    #[error(
        "question {id}: the thoughts to feed trajectory {trajectory} are {found:?} (thoughts, \
         width); the request allows at most {expected:?}"
    )]
    ForcedShape {
        /// The request's id.
        id: u32,
        /// The trajectory's number.
        trajectory: usize,
        /// Their shape.
        found: [usize; 2],
        /// The most thoughts, and the model's width.
        expected: [usize; 2],
    },

    /// A beam search computes its thoughts.
    #[error("question {id}: a beam search cannot be fed thoughts; leave one of the two out")]
    ForcedSearch {
        /// The request's id.
        id: u32,
    },

    /// A reward model was given where a reasoner belongs.
    #[error(
        "{}: this is a reward model (it has a head that scores) where a reasoner belongs",
        dir.display()
    )]
    RewardModelAsReasoner {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// A reasoner was given where a reward model belongs.
    #[error(
        "{}: no tensor `classifier.weight`, `score.weight` or `compare.out.weight`, so this is not \
         a reward model",
        dir.display()
    )]
    NotARewardModel {
        /// The checkpoint directory.
        dir: PathBuf,
    },

    /// The reward model has no embedding for some of the reasoner's tokens.
    #[error(
        "the reward model reads answers in a vocabulary of {reads} tokens and the reasoner has \
         {says}; a reward model that reads answers belongs to the reasoner it was made from"
    )]
    UnreadableAnswers {
        /// The reward model's vocabulary.
        reads: usize,
        /// The reasoner's.
        says: usize,
    },

    /// The reward model's reference reasoner is neither the reasoner nor where it was.
    #[error(
        "{}: its reference reasoner is not the reasoner, and not at {}; put it there, or use the \
         reasoner that the reward model was trained with",
        dir.display(),
        path.display()
    )]
    MissingReference {
        /// The reward model's directory.
        dir: PathBuf,
        /// Where the reference reasoner was.
        path: PathBuf,
    },

    /// The reward model's reference reasoner does not fit it.
    #[error(
        "{}: {why}; a reference reasoner is a latent reasoner of the reward model's width",
        dir.display()
    )]
    UnfitReference {
        /// The checkpoint directory.
        dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// The reward model reads thoughts of another width.
    #[error(
        "the reward model is {reward} wide and the reasoner {reasoner}; a LatentRM scores the \
         thoughts of the reasoner it was made from"
    )]
    WidthDiffers {
        /// The reward model's width.
        reward: usize,
        /// The reasoner's width.
        reasoner: usize,
    },

    /// The vocabulary lacks a token that the family needs.
    #[error(
        "{}: the tokenizer has no `{token}` {how}, which {family} needs; use the tokenizer that \
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
        /// In which form it is missing.
        how: &'static str,
    },

    /// A pass of the continuous batch failed, and with it every request that had rows in it.
    #[error("a pass failed while the request ran: {why}; send it again")]
    PassFailed {
        /// What the device said.
        why: String,
    },

    /// The tokenizer is larger than the embedding table.
    #[error(
        "{}: token `{token}` has id {id}, but the model has {vocab} embeddings; tokenizer and \
         weights do not belong together",
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

    /// Tensors that no part of the model asked for.
    #[error(
        "{}: {} tensors are not part of a {family} model, among them {}; it may be of another \
         family",
        dir.display(), unused.len(), unused[0]
    )]
    UnusedTensors {
        /// The checkpoint directory.
        dir: PathBuf,
        /// The family.
        family: Family,
        /// What they are.
        unused: Vec<String>,
    },

    /// A prompt that leaves no room to think and answer.
    #[error(
        "question {id}: {prompt} prompt tokens and {thoughts} thoughts leave no room for an answer \
         in the model's {context} positions; leave the question out or pass fewer thoughts"
    )]
    TooLong {
        /// The request's id.
        id: u32,
        /// Tokens of its prompt.
        prompt: usize,
        /// Thoughts at most.
        thoughts: usize,
        /// Positions that the model has.
        context: usize,
    },

    /// A prompt of more text than any model reads: its tokens are not even counted.
    #[error(
        "question {id}: {bytes} bytes of text; at most {limit} are read, leave the question out or \
         shorten it"
    )]
    LongText {
        /// The request's id.
        id: u32,
        /// Bytes of its prompt.
        bytes: usize,
        /// The most that are read.
        limit: usize,
    },

    /// A prompt holds a token that the reasoner or its reward model has no embedding for.
    #[error(
        "question {id}: its prompt has token {token}, but a model that reads it has {vocab} \
         embeddings; use a tokenizer and a reward model made for this reasoner"
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
    #[error("question {id}: its prompt has no tokens; give it some text")]
    Empty {
        /// The request's id.
        id: u32,
    },

    /// One row does not fit the memory budget.
    #[error(
        "question {id}: one trajectory needs {need} MiB for its keys and values, the budget is \
         {budget} MiB; raise the budget or allow fewer answer tokens"
    )]
    Memory {
        /// The request's id.
        id: u32,
        /// What one row needs.
        need: usize,
        /// What there is.
        budget: usize,
    },

    /// A beam search without thoughts or without a reward model.
    #[error("a beam search needs thoughts and a reward model for them")]
    NothingToSearch,

    /// The beam search of one question does not fit the memory budget.
    #[error(
        "question {id}: its beam search needs {need} MiB for keys and values, the budget is \
         {budget} MiB; raise the budget or search with fewer beams or candidates"
    )]
    BeamMemory {
        /// The request's id.
        id: u32,
        /// What the search needs.
        need: usize,
        /// What there is.
        budget: usize,
    },

    /// The trajectories of one question do not fit the memory budget.
    #[error(
        "question {id}: its {trajectories} trajectories and one rollout need {need} MiB for their \
         keys and values, the budget is {budget} MiB; raise the budget, or sample fewer \
         trajectories or answer tokens"
    )]
    RolloutMemory {
        /// The request's id.
        id: u32,
        /// How many there are.
        trajectories: usize,
        /// What they need.
        need: usize,
        /// What there is.
        budget: usize,
    },

    /// The request was cancelled, or its time limit has passed.
    #[error("question {id}: cancelled")]
    Cancelled {
        /// The request's id.
        id: u32,
    },

    /// Rollouts beyond those that have a name in the random function.
    #[error("{count} {what} are too many to annotate; pass at most {most}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many there may be.
        most: usize,
    },
}
