#!/bin/bash
# How the embedded models were made, on one H200 (about 12 minutes of computing). Usage: runs/train_embedded.sh BIN DIR
# Everything is seeded; on a GPU sums differ in their last bits from run to run, so another run gives another model alike.
# The commands were given one after the other with builds of several commits of one day, stages 5 and 6 as they stand here; the script as a whole has not been run.
# In assets/reasoner/config.json `latent_tts` was then completed by hand: max_new_tokens 12, p 0.1, sigma 0.5.
set -euo pipefail
bin=$1 dir=$2
mkdir -p "$dir"

# 1. A model that says its steps (56 s).
"$bin" train reasoner --mode cot --out "$dir/cot" --steps 3300 --batch 512 --lr 1.5e-3 --warmup 300 --floor 0.1 \
    --eval-every 1100 --keep last --held-out-count 1000 --save-dtype bf16
# 2. Steps become thoughts (165 s).
"$bin" train reasoner --mode latent --init "$dir/cot" --out "$dir/latent-1" --steps 8200 --batch 512 --lr 1e-3 --warmup 200 \
    --floor 0.01 --dropout 0.1 --eval-every 2050 --keep last --held-out-count 1000 --save-dtype bf16
# 3. Thinking alone, a heavier loss on the thoughts' numbers (205 s).
"$bin" train reasoner --mode latent --init "$dir/latent-1" --out "$dir/latent-2" --steps 12000 --batch 512 --lr 8e-4 --warmup 100 \
    --floor 0.01 --dropout 0.05 --digits 0.7 --rise 0 --seed 1 --eval-every 3000 --keep last --held-out-count 1000 --save-dtype bf16
# 4. Used to dropout, so that sampled thoughts stay good ones (97 s).
"$bin" train reasoner --mode latent --init "$dir/latent-2" --out "$dir/reasoner" --steps 5500 --batch 512 --lr 5e-4 --warmup 100 \
    --floor 0.01 --dropout 0.12 --digits 0.7 --rise 0 --seed 2 --eval-every 2750 --keep last --held-out-count 1000 --save-dtype bf16
# A baseline that answers at once (43 s).
"$bin" train reasoner --mode no-cot --out "$dir/no-cot" --steps 5000 --batch 512 --lr 1.5e-3 --warmup 300 --floor 0.02 \
    --held-out-count 1000 --save-dtype bf16

# 5. Labels: final answers of 8 trajectories of 800,000 problems, at the strength that is used and at twice that (75 s, side by side).
for i in 1 2 3 4 5; do "$bin" corpus --split train --seed 3$i --count 160000 --out "$dir/train-$i.json" & done
"$bin" corpus --split valid --count 3000 --out "$dir/valid.json"
wait
label() { # DATA P
    "$bin" annotate --model "$dir/reasoner" --data "$dir/$1.json" --labels final --trajectories 8 --max-new-tokens 12 --p "$2" \
        --thoughts-dtype bf16 --memory 10GiB --out "$dir/labels-$1" -q
}
for i in 1 2 3 4; do label train-$i 0.1 & done
label train-5 0.2 &
label valid 0.1 &
wait

# 6. The judge (two minutes and a half): it thinks with the reasoner as it was before stage 4, begins with its weights, and reads answers.
"$bin" train reward --model "$dir/reasoner" --init "$dir/latent-2" --reference "$dir/latent-2" --reads-answers --objective pairwise --digits 0.9 \
    --annotations "$(echo "$dir"/labels-train-* | tr ' ' ,)" --held-out "$dir/labels-valid" --out "$dir/reward" \
    --steps ${JUDGE_STEPS:-7000} --batch 128 --lr 5e-4 --warmup 100 --floor 0.02 --dropout 0.1 --eval-every 1750 --keep last --save-dtype bf16
