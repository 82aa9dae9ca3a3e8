#!/bin/bash
# How the embedded models were made, on one H200 (about 12 minutes of computing). Usage: runs/train_embedded.sh BIN DIR [OUT]
# Everything is seeded; on a GPU sums differ in their last bits from run to run, so another run gives another model alike. What is embedded
# was made by these commands one after the other, with builds of several commits of one day; runs/train_embedded/ has a run of the script as
# a whole, and both sets of models on the same problems. What a run writes lacks what was then put into assets/reasoner/config.json by hand:
# max_new_tokens 12, p 0.1, sigma 0.5.
# OUT gets what training said (NAME.txt) and the results of stage 7. A stage that is done is not done again by the next call.
set -euo pipefail
bin=$1 dir=$2 out=${3:-$2/results}
mkdir -p "$dir" "$out"

# Trains, unless that was done before; keeps what training says of held-out problems, with its seconds.
said() { # NAME command...
    local from=$SECONDS
    if grep -qs ' s$' "$out/$1.txt"; then return; fi
    "${@:2}" 2>&1 | grep -E "^after|^error|is trained|kept" >"$out/$1.tmp"
    echo "$((SECONDS - from)) s" >>"$out/$1.tmp"
    mv "$out/$1.tmp" "$out/$1.txt"
}

# 1. A model that says its steps (56 s).
said cot "$bin" train reasoner --mode cot --out "$dir/cot" --steps 3300 --batch 512 --lr 1.5e-3 --warmup 300 --min-lr-ratio 0.1 \
    --eval-every 1100 --keep last --held-out-count 1000 --save-dtype bf16
# Meanwhile a baseline that answers at once (43 s alone), and the problems of stage 5.
said no-cot "$bin" train reasoner --mode no-cot --out "$dir/no-cot" --steps 5000 --batch 512 --lr 1.5e-3 --warmup 300 --min-lr-ratio 0.02 \
    --held-out-count 1000 --save-dtype bf16 & jobs=($!)
problems() { # NAME flags...
    [[ -e $dir/$1.json ]] || "$bin" corpus "${@:2}" --out "$dir/$1.json"
}
for i in 1 2 3 4 5; do problems train-$i --split train --seed 3$i --count 160000 & jobs+=($!); done
problems valid --split valid --count 3000
# 2. Steps become thoughts (165 s).
said latent-1 "$bin" train reasoner --mode latent --init "$dir/cot" --out "$dir/latent-1" --steps 8200 --batch 512 --lr 1e-3 --warmup 200 \
    --min-lr-ratio 0.01 --dropout 0.1 --eval-every 2050 --keep last --held-out-count 1000 --save-dtype bf16
# 3. Thinking alone, a heavier loss on the thoughts' numbers (205 s).
said latent-2 "$bin" train reasoner --mode latent --init "$dir/latent-1" --out "$dir/latent-2" --steps 12000 --batch 512 --lr 8e-4 --warmup 100 \
    --min-lr-ratio 0.01 --dropout 0.05 --digit-loss-weight 0.7 --curriculum-end 0 --seed 1 --eval-every 3000 --keep last --held-out-count 1000 --save-dtype bf16
# 4. Used to dropout, so that sampled thoughts stay good ones (97 s).
said reasoner "$bin" train reasoner --mode latent --init "$dir/latent-2" --out "$dir/reasoner" --steps 5500 --batch 512 --lr 5e-4 --warmup 100 \
    --min-lr-ratio 0.01 --dropout 0.12 --digit-loss-weight 0.7 --curriculum-end 0 --seed 2 --eval-every 2750 --keep last --held-out-count 1000 --save-dtype bf16
# 5. Labels: final answers of 8 trajectories of 800,000 problems, at the strength that is used and at twice that (75 s, side by side).
for job in "${jobs[@]}"; do wait "$job"; done
label() { # DATA P
    local more=()
    if [[ -e $dir/labels-$1 ]]; then more=(--resume); fi
    "$bin" annotate --model "$dir/reasoner" --data "$dir/$1.json" --labels final --trajectories 8 --max-new-tokens 12 --dropout-p "$2" \
        --thoughts-dtype bf16 --memory 10GiB --out "$dir/labels-$1" -q \
        ${more[@]+"${more[@]}"}
}
jobs=()
for i in 1 2 3 4; do label train-$i 0.1 & jobs+=($!); done
label train-5 0.2 & jobs+=($!)
label valid 0.1 & jobs+=($!)
for job in "${jobs[@]}"; do wait "$job"; done

# 6. The judge (two minutes and a half): it thinks with the reasoner as it was before stage 4, begins with its weights, and reads answers.
said reward "$bin" train reward --model "$dir/reasoner" --init "$dir/latent-2" --reference "$dir/latent-2" --reads-answers --objective pairwise --digit-loss-weight 0.9 \
    --annotations "$(echo "$dir"/labels-train-* | tr ' ' ,)" --held-out "$dir/labels-valid" --out "$dir/reward" \
    --steps ${JUDGE_STEPS:-7000} --batch 128 --lr 5e-4 --warmup 100 --min-lr-ratio 0.02 --dropout 0.1 --eval-every 1750 --keep last --save-dtype bf16

# 7. These models and the embedded ones on the same problems, 2000 to 3000 of each split (half a minute).
beside() { # NAME SPLIT flags...
    "$bin" eval --data "$dir/$2.json" --samples 64 --dropout-p 0.1 --max-new-tokens 12 --memory 8GiB --aggregate majority,weighted,best_of --no-report -q \
        --json --overwrite --out "$dir/$1-$2" "${@:3}" >/dev/null
    cp "$dir/$1-$2/results.json" "$out/$1-$2.json"
}
jobs=()
for split in test hard ood; do
    problems "$split" --split "$split" --offset 2000 --count 1000
    beside trained "$split" --model "$dir/reasoner" --reward-model "$dir/reward" & jobs+=($!)
    beside embedded "$split" & jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done
