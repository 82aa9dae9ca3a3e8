//! Presets: named sets of option values; published settings and one small configuration.

use serde_json::{Map, Number, Value};

use crate::error::TrainError;

/// A set of values for the options of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// The name, unique among the presets of a command.
    pub name: &'static str,
    /// The source of the settings, in one line.
    pub about: &'static str,
    /// The command it applies to, as typed on the command line.
    pub command: &'static str,
    /// Option names and their values, as typed on the command line.
    pub values: &'static [(&'static str, &'static str)],
}

impl Preset {
    /// The command that trains a reasoner.
    pub const REASONER: &'static str = "train reasoner";
    /// The command that trains a reward model.
    pub const REWARD: &'static str = "train reward";
    /// The command that trains a reasoner by reinforcement learning; it has no presets.
    pub const RL: &'static str = "train rl";
    /// The command that labels thoughts.
    pub const ANNOTATE: &'static str = "annotate";

    /// The presets of a command.
    pub fn of(command: &str) -> impl Iterator<Item = &'static Self> {
        PRESETS.iter().filter(move |preset| preset.command == command)
    }

    /// A command's preset of this name.
    pub fn named(name: &str, command: &str) -> Result<&'static Self, TrainError> {
        Self::of(command).find(|preset| preset.name == name).ok_or_else(|| {
            let known: Vec<&str> = Self::of(command).map(|preset| preset.name).collect();
            let reason = match known.is_empty() {
                true => format!("`{command}` has no presets; omit `preset`"),
                false => format!("unknown preset {name}; available: {}", known.join(", ")),
            };
            TrainError::Options { reason }
        })
    }

    /// The values as fields of options.
    pub fn fields(&self) -> Map<String, Value> {
        let value = |text: &str| {
            serde_json::from_str::<Number>(text).map_or_else(|_| Value::from(text), Value::Number)
        };
        self.values.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect()
    }
}

/// Settings shared by CODI's runs: LoRA on every linear layer, cosine decay to zero.
macro_rules! codi {
    ($($more:expr),*) => {
        &[
            ("method", "codi"),
            ("mode", "latent"),
            ("thoughts", "6"),
            ("lora", "128"),
            ("lora_alpha", "32"),
            ("lora_dropout", "0.1"),
            ("dropout", "0"),
            ("digit_loss_weight", "0"),
            ("batch", "128"),
            ("warmup", "3%"),
            ("min_lr_ratio", "0"),
            ("weight_decay", "0.1"),
            ("beta2", "0.999"),
            ("clip", "2"),
            $($more),*
        ]
    };
}

static PRESETS: [Preset; 12] = [
    Preset {
        name: "paper",
        about: "COCONUT's run on GSM8K",
        command: Preset::REASONER,
        // 25 epochs, of which the stages with a fixed number of removed steps take 12; two thoughts
        // per removed step, no mixing of stages, no auxiliary loss; AdamW at a constant rate
        // without clipping.
        values: &[
            ("curriculum", "stages"),
            ("stages", "3"),
            ("thoughts_per_step", "2"),
            ("thoughts", "6"),
            ("curriculum_end", "0.48"),
            ("uniform_stage_prob", "0"),
            ("digit_loss_weight", "0"),
            ("batch", "128"),
            ("lr", "1e-4"),
            ("warmup", "0"),
            ("min_lr_ratio", "1"),
            ("weight_decay", "0.01"),
            ("beta2", "0.999"),
            ("clip", "0"),
            ("dropout", "0.1"),
        ],
    },
    Preset {
        name: "codi-gpt2",
        about: "CODI's run on GPT-2 (40 epochs)",
        command: Preset::REASONER,
        values: codi![("lr", "3e-3"), ("gamma", "1")],
    },
    Preset {
        name: "codi-llama",
        about: "CODI's run on Llama-3.2-1B (10 epochs)",
        command: Preset::REASONER,
        values: codi![("lr", "8e-4"), ("gamma", "20")],
    },
    Preset {
        name: "simcot-codi-gpt2",
        about: "SIM-CoT's run on CODI with GPT-2 (40 epochs)",
        command: Preset::REASONER,
        values: codi![("lr", "3e-3"), ("gamma", "1"), ("step_decoder", "1")],
    },
    Preset {
        name: "simcot-codi-llama",
        about: "SIM-CoT's run on CODI with Llama-3.2-1B (10 epochs)",
        command: Preset::REASONER,
        values: codi![("lr", "8e-4"), ("gamma", "20"), ("step_decoder", "1")],
    },
    Preset {
        name: "simcot-coconut",
        about: "SIM-CoT's run on a trained COCONUT with GPT-2 (35 epochs)",
        command: Preset::REASONER,
        // All ten thoughts and no steps from the start; trains all weights.
        values: &[
            ("method", "coconut"),
            ("mode", "latent"),
            ("step_decoder", "1"),
            ("thoughts", "10"),
            ("thoughts_per_step", "2"),
            ("curriculum_end", "0"),
            ("uniform_stage_prob", "0"),
            ("digit_loss_weight", "0"),
            ("batch", "128"),
            ("lr", "1e-4"),
            ("warmup", "0"),
            ("min_lr_ratio", "1"),
            ("weight_decay", "0.01"),
            ("beta2", "0.999"),
            ("clip", "0"),
            ("dropout", "0.1"),
        ],
    },
    Preset {
        name: "colar",
        about: "CoLaR's supervised stage on Llama-3.2-1B, from a chain-of-thought model (50 \
                epochs)",
        command: Preset::REASONER,
        // LoRA, constant learning rate.
        values: &[
            ("method", "colar"),
            ("mode", "latent"),
            ("max_speed", "5"),
            ("latent_head", "2048"),
            ("lora", "128"),
            ("lora_alpha", "32"),
            ("lora_targets", "q_proj,v_proj"),
            ("dropout", "0"),
            ("digit_loss_weight", "0"),
            ("batch", "256"),
            ("lr", "1e-4"),
            ("warmup", "0"),
            ("min_lr_ratio", "1"),
            ("weight_decay", "0.01"),
            ("beta2", "0.999"),
            ("clip", "0"),
        ],
    },
    Preset {
        name: "latent-sft",
        about: "Latent-SFT's second stage on Llama-3.2-1B (70 epochs); the first stage is not \
                implemented",
        command: Preset::REASONER,
        // LoRA, two tokens per thought.
        values: &[
            ("method", "latent-sft"),
            ("mode", "latent"),
            ("compression", "2"),
            ("thoughts", "64"),
            ("lora", "64"),
            ("lora_alpha", "128"),
            ("lora_dropout", "0.1"),
            ("dropout", "0"),
            ("batch", "64"),
            ("lr", "3e-4"),
        ],
    },
    Preset {
        name: "rot",
        about: "Render-of-Thought's run on Qwen3-VL (2 epochs per stage), as one stage and with \
                other regression targets",
        command: Preset::REASONER,
        // Both losses of its first stage, LoRA as in its second.
        values: &[
            ("method", "rot"),
            ("mode", "latent"),
            ("thoughts", "32"),
            ("latent_head", "2048"),
            ("gamma", "10"),
            ("lora", "16"),
            ("lora_alpha", "32"),
            ("lora_targets", "q_proj,k_proj,v_proj,o_proj"),
            ("dropout", "0"),
            ("batch", "64"),
            ("lr", "2e-5"),
        ],
    },
    Preset {
        name: "tiny",
        about: "A small model on the built-in corpus, sized for two CPU cores (not published)",
        command: Preset::REASONER,
        // Under a million parameters, minutes on two cores: for tutorials that go from random
        // weights to a results table. The accuracy is low.
        values: &[
            ("width", "128"),
            ("layers", "4"),
            ("heads", "4"),
            ("context", "192"),
            ("batch", "32"),
            ("steps", "1000"),
            ("warmup", "100"),
            ("lr", "3e-3"),
            ("held_out_count", "100"),
        ],
    },
    Preset {
        name: "paper",
        about: "The published LatentRM's head, loss, batch and learning rate",
        command: Preset::REWARD,
        // A linear head on the hidden state, the step-wise contrastive loss, batches of 256
        // problems with 8 trajectories each.
        values: &[
            ("head", "linear"),
            ("objective", "contrastive"),
            ("digit_loss_weight", "0"),
            ("last_step_weight", "1"),
            ("batch", "256"),
            ("lr", "1e-5"),
        ],
    },
    Preset {
        name: "paper",
        about: "The paper's labels: 8 trajectories per problem, 128 rollouts from every thought",
        command: Preset::ANNOTATE,
        values: &[("labels", "rollouts"), ("samples", "8"), ("rollouts", "128")],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{RewardTrainerOptions, TrainerOptions};

    #[test]
    fn presets_are_valid_options() {
        for preset in Preset::of(Preset::REASONER) {
            let mut options = TrainerOptions::preset(preset.name).unwrap();
            options.init = Some("model".to_owned());
            options.check().unwrap();
        }
        for preset in Preset::of(Preset::REWARD) {
            RewardTrainerOptions::preset(preset.name).unwrap();
        }
        assert!(TrainerOptions::preset("huge").unwrap_err().to_string().contains("tiny"));
    }
}
