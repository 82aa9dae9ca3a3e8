#!/usr/bin/env bash
# The pictures of docs/gallery: sweeps, aggregation and cost of one model on its splits, from raw runs to PNG.
#   runs/gallery.sh MODEL REWARD_MODEL OUT SPLIT...
# MODEL and REWARD_MODEL as eval takes them (REWARD_MODEL may be "none"), SPLIT a data file or embedded:NAME. What is on file is
# not run again. LIMIT (questions, default 1000), SAMPLES (default 64), FLAGS (more flags for every run) and BASELINES (run directories
# of No-CoT and CoT models, for the figure of costs) come from the environment.
set -euo pipefail
if [ $# -lt 4 ]; then
    sed -n '2,6s/^# //p' "$0" >&2
    exit 2
fi
model=$1 judge=$2 out=$3
shift 3
limit=${LIMIT:-1000} samples=${SAMPLES:-64}
read -ra flags <<<"${FLAGS:-}"
read -ra baselines <<<"${BASELINES:-}"
latent_tts=${LATENT_TTS:-cargo run --release --quiet --}
with_judge=()
[ "$judge" = none ] || with_judge=(--reward-model "$judge")
name() { local stem=${1#embedded:}; stem=${stem##*/}; printf '%s' "${stem%.*}"; }
tts() { $latent_tts "$@" "${flags[@]}"; }

first=$1
# Figures 2 to 5: strengths of both samplers on the first split, thoughts kept.
tts sweep --model "$model" --data "$first" --limit "$limit" --samples "$samples" --latents --resume --no-report \
    --p 0.05,0.1,0.2,0.3,0.4,0.5 --sigma 0.1,0.2,0.3,0.5,0.7,1.0 --out "$out/sweep"
# The search, as the paper does it.
tts sweep --model "$model" --data "$first" --limit "$limit" --samples "$samples" --resume --no-report --p 0:0.9 --out "$out/search-p"
tts sweep --model "$model" --data "$first" --limit "$limit" --samples "$samples" --resume --no-report --sigma 0.01:1.5 --out "$out/search-sigma"
# Figure 6: every rule on every split, three seeds.
splits=()
for split in "$@"; do
    tts eval --model "$model" "${with_judge[@]}" --data "$split" --limit "$limit" --samples "$samples" --seeds 3 --resume \
        --out "$out/$(name "$split")"
    splits+=("$out/$(name "$split")")
done
# Cost: the same at other N.
costs=()
for n in 1 4 16; do
    [ "$n" -lt "$samples" ] || continue
    tts eval --model "$model" "${with_judge[@]}" --data "$first" --limit "$limit" --samples "$n" --resume --out "$out/n$n"
    costs+=("$out/n$n")
done

$latent_tts report "$out/sweep" --out "$out/report-sweep"
$latent_tts report "${splits[@]}" --out "$out/report-splits"
$latent_tts report "${splits[0]}" "${costs[@]}" "${baselines[@]}" --out "$out/report-cost"
mkdir -p "$out/gallery"
cp "$out"/report-sweep/figures/{coverage,coverage-diversity,diversity-steps,thoughts}.png "$out/gallery/"
cp "$out/report-splits/figures/accuracy.png" "$out/gallery/accuracy.png"
cp "$out/report-splits/figures/coverage.png" "$out/gallery/coverage-splits.png"
cp "$out/report-cost/figures/cost.png" "$out/gallery/cost.png"
printf 'pictures in %s\n' "$out/gallery"
