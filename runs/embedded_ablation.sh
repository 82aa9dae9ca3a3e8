#!/bin/bash
# The paper's ablation of the reward model on the embedded reasoner: the published head, trained on rollouts by the contrastive loss, by
# BCE, on final answers as labels, and not at all; three splits, three seeds.
# Usage: runs/embedded_ablation.sh BIN REASONER OUT [STEPS]; about two minutes on one H200. OUT (published results:
# runs/embedded_ablation) gets the results.json of every run, training.txt (the training logs) and SPLIT.txt (best of 64 of the reward
# models, paired with each other). Held-out problems 2000 to 3000 of each split.
set -uo pipefail
bin=$1 reasoner=$2 out=$3 steps=${4:-1500}
work=$(mktemp -d)
mkdir -p "$out"
for split in test hard ood; do "$bin" corpus --split $split --offset 2000 --count 1000 --out "$work/$split.json" 2>/dev/null; done
"$bin" corpus --split valid --count 3000 --out "$work/valid.json" 2>/dev/null
"$bin" corpus --split train --seed 11 --count 70000 --out "$work/train.json" 2>/dev/null
label() { # NAME DATA flags...
    "$bin" annotate --model "$reasoner" --data "$work/$2.json" --trajectories 8 --max-new-tokens 12 --dropout-p 0.1 --thoughts-dtype bf16 --memory 8GiB \
        --out "$work/$1" -q "${@:3}" 2>&1 | head -1
}
label rollouts train --rollouts 4 &
label final train --labels final &
label valid valid --labels final &
wait
learn() { # NAME flags...
    local name=$1
    shift
    "$bin" train reward --model "$reasoner" --held-out "$work/valid" --out "$work/rm-$name" --head linear --digit-loss-weight 0 --steps "$steps" \
        --batch 128 --lr 5e-4 --warmup 100 --min-lr-ratio 0.02 --dropout 0.1 --save-dtype bf16 "$@" 2>&1 | grep -E "after|error" | sed "s/^/$name: /"
    for split in test hard ood; do
        "$bin" eval --model "$reasoner" --reward-model "$work/rm-$name" --data "$work/$split.json" --out "$work/$name-$split" --max-new-tokens 12 \
            --samples 64 --seeds 3 --dropout-p 0.1 --memory 8GiB --aggregate majority,weighted,normalized,best_of -q --json >/dev/null 2>"$work/$name-$split.txt" ||
            echo "$name $split: $(tail -1 "$work/$name-$split.txt")"
        cp "$work/$name-$split/results.json" "$out/$name-$split.json"
    done
}
{
    learn contrastive --annotations "$work/rollouts" &
    learn bce --annotations "$work/rollouts" --objective bce &
    learn final --annotations "$work/final" &
    learn untrained --objective untrained &
    wait
} | tee "$out/training.txt"
for split in test hard ood; do
    python3 "$(dirname "$0")/fresh.py" --between best_of contrastive="$work/contrastive-$split" bce="$work/bce-$split" \
        final="$work/final-$split" untrained="$work/untrained-$split" >"$out/$split.txt" &
done
wait
rm -rf "$work"
