//! Conversions of perturbation settings: sites to bit sets, mask lifetimes to random number keys.
//! The settings are defined in the schema; [`crate::sampler`] draws the random numbers of the
//! sequences.

pub use schema::{DropoutSites, MaskLifetime, Perturbation, PromptSharing};
use tensor::ops::SiteSet;
use tensor::rng::RngKey;

/// Converts dropout sites to the bit set that the kernels take.
pub(crate) fn site_set(sites: DropoutSites) -> SiteSet {
    let attn_out = if sites.attn_out { SiteSet::ATTN_OUT } else { SiteSet::EMPTY };
    let mlp_out = if sites.mlp_out { SiteSet::MLP_OUT } else { SiteSet::EMPTY };
    attn_out.union(mlp_out)
}

/// Number of tokens of a prompt of length `prompt` that every trajectory computes separately,
/// because dropout makes them differ.
pub(crate) fn private_tokens(perturbation: &Perturbation, prompt: usize) -> usize {
    match perturbation.prompt_sharing() {
        PromptSharing::Whole => 0,
        PromptSharing::AllButLast => 1,
        PromptSharing::Nothing => prompt,
    }
}

/// The key of the masks at the position that `key` belongs to.
pub(crate) fn mask_key(mask: MaskLifetime, key: RngKey) -> RngKey {
    match mask {
        MaskLifetime::Step => key,
        MaskLifetime::Trajectory => RngKey { position: 0, ..key },
    }
}

#[cfg(test)]
mod tests {
    use tensor::rng::Site;

    use super::*;

    /// Which of 64 elements the mask keeps.
    fn mask(lifetime: MaskLifetime, trajectory: u32, position: u32) -> Vec<bool> {
        let key = mask_key(lifetime, RngKey { seed: 1, question: 2, trajectory, position });
        (0..64).map(|element| key.keeps(3, Site::MlpOut, element, 0.5)).collect()
    }

    #[test]
    fn a_kept_mask_is_the_same_at_every_thought_and_differs_between_trajectories() {
        let kept = |trajectory, position| mask(MaskLifetime::Trajectory, trajectory, position);
        assert!((41..48).all(|position| kept(5, position) == kept(5, 40)));
        assert!((0..5).all(|trajectory| kept(trajectory, 40) != kept(5, 40)));
        let fresh = |position| mask(MaskLifetime::Step, 5, position);
        assert!((41..48).all(|position| fresh(position) != fresh(40)));
    }
}
