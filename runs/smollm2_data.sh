#!/usr/bin/env bash
# The training data of the SmolLM2 reasoner, from GSM8K's training problems, further annotated problems and the story
# templates of assets/stories: renumbered problems to train the reasoner, others (a twelfth of the sources) for the
# reward model. Nothing that shares nine words in a row with a validation or test problem, whatever its numbers and names, is kept.
# Usage: runs/smollm2_data.sh BINARY DATA OUT     (DATA holds gsm8k_train.jsonl, extra_train.jsonl, gsm_valid.json,
#                                                  gsm_test.json, gsm_hard.json, multiarith.json;
#                                                  teacher.jsonl, problems that a language model wrote, is optional)
set -euo pipefail
binary=${1:?give a latent-tts} data=${2:?give the data directory} out=${3:?give an output directory}
stories=$(dirname "$0")/../assets/stories
mkdir -p "$out"
without=$data/gsm_valid.json,$data/gsm_test.json,$data/gsm_hard.json,$data/multiarith.json

# part NAME COUNT SEED [FLAGS...]: variants of $out/NAME.source into $out/NAME.jsonl
part() {
  local name=$1 count=$2 source=$out/$1.source
  shift 2
  [[ -e $source ]] || source=$out/$name.stories
  echo "== $name"
  "$binary" augment "$source" --count "$count" --decontaminate "$without" --out "$out/$name.jsonl" "$@"
}

grep -v '"source": *"mawps"' "$data/extra_train.jsonl" >"$out/extra.all"
grep '"source": *"mawps"' "$data/extra_train.jsonl" >"$out/mawps.all"
cp "$data/gsm8k_train.jsonl" "$out/gsm.all"
sources=(gsm extra mawps)
if [[ -e $data/teacher.jsonl ]]; then
  # A language model also annotates what is no calculation.
  grep -vE "<<[^=>]*>>" "$data/teacher.jsonl" >"$out/teacher.all"
  sources+=(teacher)
fi
for name in "${sources[@]}"; do
  awk 'NR % 12 != 0' "$out/$name.all" >"$out/$name.source"
  awk 'NR % 12 == 0' "$out/$name.all" >"$out/judge_$name.source"
  rm "$out/$name.all"
done
for kind in short long; do
  awk 'BEGIN { RS = ""; ORS = "\n\n" } NR % 12 != 0' "$stories/$kind"_*.stories >"$out/$kind.stories"
  awk 'BEGIN { RS = ""; ORS = "\n\n" } NR % 12 == 0' "$stories/$kind"_*.stories >"$out/judge_$kind.stories"
done

part gsm 90 --keep-original
# Problems as people wrote them, also those whose numbers cannot be changed.
grep '"variant":0' "$out/gsm.jsonl" >"$out/gsm_original.jsonl"
part extra 35
part mawps 100 --keep-original
[[ ! -e $out/teacher.source ]] || part teacher 12 --keep-original
part short 300
part long 300
part judge_gsm 12 --keep-original --seed 1
part judge_extra 3 --seed 1
part judge_mawps 10 --seed 1
[[ ! -e $out/judge_teacher.source ]] || part judge_teacher 4 --keep-original --seed 1
part judge_short 20 --seed 1
part judge_long 20 --seed 1
