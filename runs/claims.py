"""The claims of the paper, each with the numbers that were measured for it and a verdict."""

import dataclasses

from raw import Number, accuracy, compared, difference, diversity, doubling, gain, geometry, steps, swept

# Test sets of SmolLM2-135M.
SETS = {"gsm_test": "GSM8K", "gsm_hard": "GSM-Hard", "multiarith": "MultiArith"}

# Verdicts. A paired difference agrees with a claim if its interval lies on the claimed side of 0, and
# is the opposite if it lies on the other side. Two numbers agree if their intervals do not overlap.


def verdict(claimed, value, other=None):
    """`claimed` is +1 if value is claimed to be above the other number (or 0), -1 if below."""
    low, high = (value.low, value.high) if other is None else (value.low - other.high, value.high - other.low)
    if low > 0 or high < 0:
        return "agrees" if (low > 0) == (claimed > 0) else "opposite"
    return "not shown"


@dataclasses.dataclass
class Row:
    where: str
    measured: str
    value: Number
    other: Number | None = None
    claimed: int = 1
    # Given where `verdict` cannot decide: equality, numbers without intervals, differences paired elsewhere.
    verdict: str = ""

    def decided(self):
        return self.verdict or verdict(self.claimed, self.value, self.other)


def at_diversity(noise, dropout):
    return f"coverage at 64, noise at diversity {diversity(*noise)}; dropout at {diversity(*dropout)}"


def sampling_claims():
    sweep = "fresh/sweep-test"
    findings = "fresh/findings.txt"
    smollm2_dropout = "smollm2/gsm_test-dropout"
    smollm2_noise = "smollm2/gsm_test-noise"
    smollm2_strongest = ("smollm2/sweep-noise", "noise-0.15"), ("smollm2/sweep-dropout", "dropout-0.4")
    hundredths = "diversity in hundredths, by thought"
    return {
        "Coverage grows with N": [
            Row("embedded, test", "coverage at N = 64; at N = 1", swept(sweep, "dropout-0.1"), swept(sweep, "dropout-0.1", 1)),
            Row(
                "SmolLM2, GSM8K",
                "coverage at N = 64; at N = 1",
                accuracy(smollm2_dropout, "coverage", 64),
                accuracy(smollm2_dropout, "coverage", 1),
            ),
        ],
        "Its gains diminish with N": [
            Row(
                "embedded, test",
                "coverage gained from N = 32 to 64; from 1 to 2",
                difference(findings, "dropout-0.1: coverage@64 less coverage@32"),
                difference(findings, "dropout-0.1: coverage@2 less coverage@1"),
                claimed=-1,
            ),
            Row(
                "SmolLM2, GSM8K",
                "coverage gained from N = 32 to 64; from 1 to 2",
                doubling(smollm2_dropout, 32),
                doubling(smollm2_dropout, 1),
                verdict="opposite",
            ),
            Row(
                "SmolLM2, MultiArith",
                "coverage gained from N = 32 to 64; from 1 to 2",
                doubling("smollm2/multiarith-dropout", 32),
                doubling("smollm2/multiarith-dropout", 1),
                verdict="agrees",
            ),
        ],
        "Dropout covers more than noise": [
            Row(
                "embedded, test",
                "coverage at 64, p = 0.2 minus sigma = 1",
                difference(findings, "dropout-0.2 less noise-1, coverage@64"),
            ),
            Row(
                "embedded, test",
                "coverage at 4, p = 0.2 minus sigma = 1",
                difference(findings, "dropout-0.2 less noise-1, coverage@4"),
            ),
            Row(
                "SmolLM2, GSM8K",
                "coverage at 64, dropout; noise",
                accuracy(smollm2_dropout, "coverage", 64),
                accuracy(smollm2_noise, "coverage", 64),
            ),
            Row(
                "SmolLM2, GSM8K",
                "coverage at 1, dropout; noise",
                accuracy(smollm2_dropout, "coverage", 1),
                accuracy(smollm2_noise, "coverage", 1),
            ),
        ],
        "Coverage is largest at a moderate diversity": [
            Row(
                "embedded, test",
                "coverage at 64, p = 0.6 minus best p",
                difference(findings, "dropout-0.6: diversity 0.466, coverage@64 less that of dropout-0.2"),
                claimed=-1,
            ),
            Row(
                "embedded, test",
                "coverage at 64, sigma = 2 minus best sigma",
                difference(findings, "noise-2: diversity 0.195, coverage@64 less that of noise-1"),
                claimed=-1,
            ),
            Row(
                "SmolLM2, gsm_valid",
                "coverage at 64, sigma = 0.1; 0.15",
                swept("smollm2/sweep-noise", "noise-0.1"),
                swept("smollm2/sweep-noise", "noise-0.15"),
            ),
            Row(
                "SmolLM2, gsm_valid",
                "coverage at 64, p = 0.3; 0.4",
                swept("smollm2/sweep-dropout", "dropout-0.3"),
                swept("smollm2/sweep-dropout", "dropout-0.4"),
            ),
        ],
        "At high diversity noise keeps its coverage, dropout does not": [
            Row(
                "embedded, test",
                at_diversity((sweep, "noise-2"), (sweep, "dropout-0.3")),
                swept(sweep, "noise-2"),
                swept(sweep, "dropout-0.3"),
            ),
            Row("SmolLM2, gsm_valid", at_diversity(*smollm2_strongest), *(swept(*strength) for strength in smollm2_strongest)),
        ],
        "Dropout's diversity is the same at all thoughts": [
            Row(
                "embedded, test",
                "diversity in hundredths, last thought; first",
                difference(findings, f"dropout-0.1: {hundredths}", 5),
                difference(findings, f"dropout-0.1: {hundredths}", 0),
                verdict="opposite",
            ),
            Row(
                "SmolLM2, gsm_valid",
                "diversity in hundredths, twelfth thought; first",
                difference("smollm2/geometry.txt", f"geometry-p-0.3: {hundredths}", 11),
                difference("smollm2/geometry.txt", f"geometry-p-0.3: {hundredths}", 0),
                verdict="opposite",
            ),
        ],
        "Dropout drifts in one direction, noise spreads evenly": [
            Row(
                "embedded, test",
                "drift, p = 0.4; sigma = 1",
                geometry("fresh/geometry.txt", "geometry-p-0.4", "drift"),
                geometry("fresh/geometry.txt", "geometry-sigma-1", "drift"),
            ),
            Row(
                "SmolLM2, gsm_valid",
                "dimensions, p = 0.3; sigma = 0.1",
                geometry("smollm2/geometry.txt", "geometry-p-0.3", "dimensions"),
                geometry("smollm2/geometry.txt", "geometry-sigma-0.1", "dimensions"),
                claimed=-1,
            ),
        ],
        "Dropout loses easy questions": [
            Row(
                "embedded, test",
                "coverage at 4, p = 0.4 minus sigma = 1",
                difference(findings, "dropout-0.4 less noise-1, coverage@4 of 757 easy questions"),
                claimed=-1,
            ),
            Row(
                "embedded, test",
                "coverage at 4, p = 0.2 minus sigma = 1",
                difference(findings, "dropout-0.2 less noise-1, coverage@4 of 757 easy questions"),
                claimed=-1,
            ),
        ],
        "Dropout reaches more hard questions": [
            Row(
                "embedded, test",
                "coverage at 64, p = 0.2 minus sigma = 1",
                difference(findings, "dropout-0.2 less noise-1, coverage@64 of 243 hard questions"),
            )
        ],
        "Best p is 0.1 to 0.3, best sigma 0.5 to 0.7 (GPT-2)": [
            Row(
                "embedded, hard",
                "coverage at 64, p = 0.3; 0.4",
                swept("fresh/sweep-hard", "dropout-0.3"),
                swept("fresh/sweep-hard", "dropout-0.4"),
                verdict="agrees",
            ),
            Row(
                "embedded, hard",
                "coverage at 64, sigma = 0.7; 1",
                swept("fresh/sweep-hard", "noise-0.7"),
                swept("fresh/sweep-hard", "noise-1"),
                verdict="opposite",
            ),
        ],
        "Best p is a few hundredths (Llama)": [
            Row(
                "SmolLM2, gsm_valid",
                "coverage at 64, p = 0.05; 0.4",
                swept("smollm2/sweep-dropout", "dropout-0.05"),
                swept("smollm2/sweep-dropout", "dropout-0.4"),
            )
        ],
        "One strength serves all benchmarks": [
            Row(
                "embedded, ood",
                "coverage at 64, p chosen on valid; best p",
                swept("fresh/sweep-ood", "dropout-0.3"),
                swept("fresh/sweep-ood", "dropout-0.4"),
                verdict="agrees",
            )
        ],
        "Latent-SFT and Render-of-Thought gain as well": [
            Row(
                "like Latent-SFT, test",
                "coverage at N = 16; at N = 1",
                accuracy("families/latent-sft-dropout-test", "coverage", 16),
                accuracy("families/latent-sft-dropout-test", "coverage", 1),
            ),
            Row(
                "like Latent-SFT, test",
                "majority of 16 over greedy",
                gain("families/latent-sft-dropout-test", "majority", "greedy"),
            ),
            Row(
                "like RoT, test",
                "coverage at N = 16; at N = 1",
                accuracy("families/rot-dropout-test", "coverage", 16),
                accuracy("families/rot-dropout-test", "coverage", 1),
            ),
            Row("like RoT, test", "majority of 16 over greedy", gain("families/rot-dropout-test", "majority", "greedy")),
        ],
    }


def aggregation_claims():
    own = "fresh/self-judged"
    smollm2 = "smollm2/gsm_test-dropout"
    heads = "smollm2/gsm_test-contrastive"
    ablation = "embedded_ablation"
    return {
        "Accuracy grows with N": [
            Row("embedded, test", "majority over greedy", gain(f"{own}-test", "majority", "greedy")),
            Row("embedded, test", "weighted over greedy", compared("test", "self-judged, weighted@64", 1)),
            *(
                Row(f"SmolLM2, {label}", "weighted over greedy", gain(f"smollm2/{name}-dropout", "weighted", "greedy"))
                for name, label in SETS.items()
            ),
        ],
        "Best of N is above the majority": [
            Row("embedded, test", "best of 64 over majority", gain(f"{own}-test", "best_of", "majority")),
            *(
                Row(f"SmolLM2, {label}", "best of 64 over majority", gain(f"smollm2/{name}-dropout", "best_of", "majority"))
                for name, label in SETS.items()
            ),
        ],
        "Beam search is above the majority": [
            Row("embedded, test", "beam over majority", gain(f"{own}-test", "beam", "majority")),
            Row("SmolLM2, GSM8K", "beam over majority", gain(smollm2, "beam", "majority")),
        ],
        "Beam search equals best of N": [
            Row(
                "embedded, test",
                "beam minus best of 64",
                difference("fresh/test.txt", "self-judged: beam less best of N"),
                verdict="opposite",
            ),
            Row(
                "SmolLM2, GSM8K",
                "beam; best of 64",
                accuracy(smollm2, "beam", 64),
                accuracy(smollm2, "best_of", 64),
                verdict="not shown",
            ),
        ],
        "Best of N is the most effective rule": [
            Row(
                "embedded, test",
                "weighted minus best of 64",
                difference("fresh/test.txt", "self-judged: weighted less best of N"),
                claimed=-1,
            ),
            Row(
                "SmolLM2, GSM8K",
                "weighted; best of 64",
                accuracy(smollm2, "weighted", 64),
                accuracy(smollm2, "best_of", 64),
                claimed=-1,
            ),
        ],
        "Gains are largest on MultiArith": [
            Row(
                "SmolLM2",
                "weighted over greedy, MultiArith; GSM8K",
                gain("smollm2/multiarith-dropout", "weighted", "greedy"),
                gain(smollm2, "weighted", "greedy"),
            ),
            Row(
                "embedded",
                "weighted over greedy, ood; test",
                compared("ood", "self-judged, weighted@64", 1),
                compared("test", "self-judged, weighted@64", 1),
            ),
        ],
        "LatentRM's best of N is above the majority": [
            Row("embedded, test", "best of 64 over majority", gain(f"{ablation}/contrastive-test", "best_of", "majority")),
            Row("SmolLM2, GSM8K", "best of 64 over majority", gain(heads, "best_of", "majority")),
        ],
        "Contrastive loss is better than BCE": [
            Row(
                "embedded, test",
                "best of 64, contrastive minus BCE",
                difference(f"{ablation}/test.txt", "best_of: contrastive less bce"),
            ),
            Row(
                "SmolLM2, GSM8K",
                "best of 64, contrastive; BCE",
                accuracy(heads, "best_of", 64),
                accuracy("smollm2/gsm_test-bce", "best_of", 64),
            ),
        ],
        "Rollout labels are better than final answers": [
            Row(
                "embedded, test",
                "best of 64, rollouts minus final answers",
                difference(f"{ablation}/test.txt", "best_of: contrastive less final"),
            ),
            Row(
                "SmolLM2, GSM8K",
                "best of 64, rollouts; final answers",
                accuracy(heads, "best_of", 64),
                accuracy("smollm2/gsm_test-final", "best_of", 64),
            ),
        ],
        "128 rollouts per thought help": [
            Row("embedded, test", "best of 64, 128 minus 4 rollouts", difference("rollouts/test.txt", "best_of: m128 less m4"))
        ],
        "An untrained reward head is below the majority": [
            Row(
                "embedded, test",
                "best of 64 over majority",
                gain(f"{ablation}/untrained-test", "best_of", "majority"),
                claimed=-1,
            ),
            Row(
                "SmolLM2, GSM8K",
                "best of 64 over majority",
                gain("smollm2/gsm_test-untrained", "best_of", "majority"),
                claimed=-1,
            ),
        ],
        "Best of N with 4 to 6 thoughts is above greedy": [
            Row("embedded, test", "best of 16 over greedy", gain("fresh/lengths-test", "best_of_mean", "greedy"))
        ],
        "COCONUT with scaling is above CoT": [
            Row(
                "embedded, test",
                "latent coverage at 4; CoT greedy",
                accuracy("baselines/latent-test", "coverage", 4),
                accuracy("baselines/cot-test", "greedy"),
            ),
            Row(
                "SmolLM2, GSM8K",
                "latent coverage at 4; CoT greedy",
                accuracy(smollm2, "coverage", 4),
                accuracy("smollm2/gsm_test-cot", "greedy"),
            ),
            Row(
                "SmolLM2, GSM8K",
                "latent weighted at 64; CoT greedy",
                accuracy(smollm2, "weighted", 64),
                accuracy("smollm2/gsm_test-cot", "greedy"),
            ),
        ],
        "CoT takes five times the decoding steps": [
            Row(
                "embedded, test",
                "steps for 16 sequences, CoT; latent",
                steps("baselines/cot-test"),
                steps("baselines/latent-test"),
                verdict="agrees",
            ),
            Row(
                "SmolLM2, GSM8K",
                "steps for 2 sequences, CoT; latent",
                steps("smollm2/gsm_test-cot"),
                steps("smollm2/gsm_test-ablated"),
                verdict="opposite",
            ),
        ],
    }
