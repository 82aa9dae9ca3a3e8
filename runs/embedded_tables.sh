#!/bin/bash
# The tables of the embedded models: every rule, the ablation of the reward model, baselines that think in words.
# Usage: runs/embedded_tables.sh BIN REASONER REWARD COT NO_COT OUT [STEPS]; on one H200 about three minutes.
# OUT/results/*.json are the results.json of every run; OUT/ablation.txt what training the ablation said.
set -uo pipefail
bin=$1 reasoner=$2 reward=$3 cot=$4 nocot=$5 out=$6 steps=${7:-1500}
work=$(mktemp -d)
mkdir -p "$out/results"
for split in test hard ood; do "$bin" corpus --split $split --count 1000 --out "$work/$split.json" 2>/dev/null; done
"$bin" corpus --split valid --count 3000 --out "$work/valid.json" 2>/dev/null
"$bin" corpus --split train --seed 11 --count 70000 --out "$work/train.json" 2>/dev/null

measure() { # NAME SPLIT flags...
    local name=$1 split=$2
    shift 2
    "$bin" eval --data "$work/$split.json" --out "$work/$name-$split" --max-new-tokens 12 -q --json "$@" >"$work/out.json" 2>"$work/err.txt" ||
        { echo "$name $split: $(tail -1 "$work/err.txt")"; return; }
    cp "$work/$name-$split/results.json" "$out/results/$name-$split.json"
}
for split in test hard ood; do
    measure main $split --model "$reasoner" --reward-model "$reward" --samples 64 --seeds 3 --p 0.1
    for n in 4 16; do measure beam$n $split --model "$reasoner" --reward-model "$reward" --samples $n --seeds 3 --p 0.1 --aggregate maj,beam; done
    measure noise $split --model "$reasoner" --reward-model "$reward" --samples 64 --seeds 3 --sigma 0.5
done
echo "main: $SECONDS s"

# The ablation: the published head, trained on rollouts by the contrastive loss, by BCE, on final answers, not at all.
label=("$bin" annotate --model "$reasoner" --trajectories 8 --max-new-tokens 12 --p 0.1 -q)
"${label[@]}" --data "$work/train.json" --rollouts 4 --thoughts-dtype bf16 --out "$work/labels" | tail -2
"${label[@]}" --data "$work/train.json" --labels final --thoughts-dtype bf16 --out "$work/labels-final" | tail -2
"${label[@]}" --data "$work/valid.json" --labels final --out "$work/labels-valid" | tail -2
learn() { # NAME flags...
    local name=$1
    shift
    "$bin" train reward --model "$reasoner" --held-out "$work/labels-valid" --out "$work/rm-$name" --head linear --digits 0 --steps "$steps" \
        --batch 128 --lr 5e-4 --warmup 100 --floor 0.02 --dropout 0.1 --save-dtype bf16 "$@" 2>&1 | grep -E "after|error" | sed "s/^/$name: /"
    for split in test hard ood; do
        measure "$name" $split --model "$reasoner" --reward-model "$work/rm-$name" --samples 64 --seeds 3 --p 0.1 --aggregate maj,weighted,normalized,best_of,beam
    done
}
{
    learn contrastive --annotations "$work/labels"
    learn bce --annotations "$work/labels" --objective bce
    learn final --annotations "$work/labels-final"
    learn untrained --objective untrained
} | tee "$out/ablation.txt"
echo "ablation: $SECONDS s"

for split in test hard ood; do
    timeout 40 "$bin" eval --model "$cot" --data "$work/$split.json" --samples 16 --sampler tokens --temperature 0.7 --out "$work/cot-$split" -q >/dev/null 2>&1 &&
        cp "$work/cot-$split/results.json" "$out/results/cot-$split.json"
    timeout 20 "$bin" eval --model "$nocot" --data "$work/$split.json" --samples 16 --sampler tokens --temperature 0.7 --out "$work/nocot-$split" -q >/dev/null 2>&1 &&
        cp "$work/nocot-$split/results.json" "$out/results/no-cot-$split.json"
done
measure f32 test --model "$reasoner" --reward-model "$reward" --samples 64 --seeds 3 --p 0.1 --dtype f32
echo "all: $SECONDS s"
rm -rf "$work"
