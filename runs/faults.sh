#!/usr/bin/env bash
# Twelve kinds of faults, shown by the same commands with a binary from before their fixes and one from after: a line each.
# Usage: runs/faults.sh OLD NEW [PATTERN]     (two binaries; only the lines whose text has PATTERN; runs/faults.txt is its output)
# Every command has 20 s and 8 GiB of address space. Needs python3 and cc; all files are made here, below a temporary folder.
set -uo pipefail
cd "$(dirname "$0")/.."
declare -A binaries=([old]=$(realpath "$1") [new]=$(realpath "$2"))
pattern=${3:-}
reasoner=$PWD/assets/reasoner
work=$(mktemp -d)
trap 'rm -rf "$work" 2>/dev/null || { sleep 1; rm -rf "$work"; }' EXIT
for name in $(compgen -e LATENT_TTS_); do unset "$name"; done
export HF_HOME=$work/hf HF_HUB_OFFLINE=1
cc -shared -fPIC -O1 -o "$work/shim.so" crates/cli/tests/fault_points/shim.c -ldl || exit 1

cat >"$work/edit.py" <<'PYTHON'
"""Makes and damages files: edit.py ACTION ARGUMENT..."""
import json, pathlib, struct, sys


def write_tensors(path, tensors, metadata=None):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = dict(dtype="F32", shape=shape, data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)


def header_of(path):
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    return data, 8 + size, json.loads(data[8 : 8 + size])


def field(path, name, value):
    content = json.loads(pathlib.Path(path).read_text())
    content[name] = json.loads(value)
    pathlib.Path(path).write_text(json.dumps(content))


def element(path, tensor, value):
    """The first element of a tensor; of the first one for `-`."""
    data, start, header = header_of(path)
    header.pop("__metadata__", None)
    tensor = min(header) if tensor == "-" else tensor
    at = start + header[tensor]["data_offsets"][0]
    pathlib.Path(path).write_bytes(data[:at] + struct.pack("<f", float(value)) + data[at + 4 :])


def reshape(path):
    """Every tensor loses its last row."""
    data, start, header = header_of(path)
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            rows, cols = entry["shape"]
            first = start + entry["data_offsets"][0]
            tensors[name] = ([rows - 1, cols], struct.unpack_from(f"<{(rows - 1) * cols}f", data, first))
    write_tensors(path, tensors)


def finite(path):
    """Says how many elements are none, if there is such a file."""
    if pathlib.Path(path).exists():
        data, start, header = header_of(path)
        values = struct.unpack_from(f"<{(len(data) - start) // 4}f", data, start)
        print(f"= {sum(value != value for value in values)} of {len(values)} saved elements are NaN")


def flip(path):
    data = bytearray(pathlib.Path(path).read_bytes())
    data[len(data) * 3 // 5] ^= 1
    pathlib.Path(path).write_bytes(data)


def cut(path):
    data = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(data[: len(data) * 3 // 4])


def swap(path):
    lines = pathlib.Path(path).read_text().splitlines(True)
    lines[1], lines[2] = lines[2], lines[1]
    pathlib.Path(path).write_text("".join(lines))


def replace(path, old, new):
    text = pathlib.Path(path).read_text()
    assert old in text, f"no {old} in {path}"
    pathlib.Path(path).write_text(text.replace(old, new, 1))


def question(path, text, count):
    line = json.dumps(dict(question=text * int(count), answer="1"))
    pathlib.Path(path).write_text(line + "\n")


def tokens(path, count):
    """A tokenizer with more tokens than the embedding has rows."""
    content = json.loads(pathlib.Path(path).read_text())
    last = content["added_tokens"][-1]
    first = max(content["model"]["vocab"].values()) + 1
    words = ["Nina", "Eric", "How", "He", "At"]
    more = [dict(last, id=first + i, content=words[i]) for i in range(int(count))]
    content["added_tokens"] += more
    pathlib.Path(path).write_text(json.dumps(content))


def llama(source, target):
    """A tiny Llama with the tokenizer of another model."""
    source, target = pathlib.Path(source), pathlib.Path(target)
    target.mkdir()
    old = json.loads((source / "config.json").read_text())
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        (target / name).write_bytes((source / name).read_bytes())
    width, wide, vocab = 16, 32, old["vocab_size"]
    kept = ["latent_id", "latent_start_id", "latent_end_id", "latent_tts", "eos_token_id", "bos_token_id", "pad_token_id"]
    config = {name: old[name] for name in kept} | dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=width, intermediate_size=wide,
        num_attention_heads=2, num_key_value_heads=2, head_dim=8, num_hidden_layers=1, vocab_size=vocab,
        max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=True)
    (target / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [vocab, width], "model.norm.weight": [width],
              layer + "input_layernorm.weight": [width], layer + "post_attention_layernorm.weight": [width],
              layer + "mlp.gate_proj.weight": [wide, width], layer + "mlp.up_proj.weight": [wide, width],
              layer + "mlp.down_proj.weight": [width, wide]}
    shapes |= {f"{layer}self_attn.{part}_proj.weight": [width, width] for part in "qkvo"}
    value = lambda i: ((i * 2654435761) % 1000 - 500) / 2000
    size = lambda shape: shape[0] * (shape[1] if len(shape) > 1 else 1)
    tensors = {name: (shape, [value(i) for i in range(size(shape))]) for name, shape in shapes.items()}
    write_tensors(target / "model.safetensors", tensors, dict(format="pt"))


def dump(target, layers, width):
    """A reference dump of the tiny model, with masks of so many layers and this width."""
    target, layers, width = pathlib.Path(target), int(layers), int(width)
    row = dict(lengths=2, answer_ids=[8], text="a")
    runs = {name: [row] for name in ["clean", "dropout", "dropout_mlp", "noise"]}
    meta = dict(family="coconut", latents_exactly=2, n=1, p=0.2, std=0.1, end_ids=[3], eos_id=0, max_new_tokens=2,
                questions=[dict(question="1 + 1?", prompt_ids=[8, 9], runs=runs)])
    (target / "golden.json").write_text(json.dumps(meta))
    ones = lambda *shape: (list(shape), [1.0] * __import__("math").prod(shape))
    tensors = {"0.keep": ones(2, layers, 2, 1, width), "0.noise": ones(2, 1, width), "0.prompt_hidden": ones(2, 16)}
    for run in runs:
        tensors |= {f"0.{run}.0.latents": ones(2, width), f"0.{run}.0.first_logits": ones(363)}
    write_tensors(target / "golden.safetensors", tensors)


globals()[sys.argv[1]](*sys.argv[2:])
PYTHON

# The binary under test. The status of its last run is the status of a case.
tts() {
    (ulimit -v "${memory:-8388608}" && exec timeout -k 1 20 "$bin" "$@") </dev/null
    echo $? >status
}
edit() { python3 "$work/edit.py" "$@"; }
# Ends the process at operation $1 on files below $2.
crash_at() { LD_PRELOAD=$work/shim.so FAULT_DIR=$2 FAULT_LOG=$PWD/fault.log FAULT_AT=$1 FAULT_KIND=crash "${@:3}" >killed.txt 2>&1; }
small=(--samples 2 --max-new-tokens 4 --threads 1 --no-report --quiet)
few=(--batch 2 --width 16 --layers 1 --heads 2 --threads 1 --quiet)
label=(--limit 12 --per-shard 4 --labels final --threads 1 --quiet)

fixtures() {
    tts train reasoner --out tiny --steps 1 "${few[@]}"
    tts corpus --split train --count 4 --out data.json
    tts corpus --split test --count 4 --out other.json
    tts train reasoner --init tiny --lora 2 --data data.json --out adapter --steps 1 --batch 2 --threads 1 --quiet
    tts annotate "${label[@]}" --dropout-p 0.4 --out labels
    tts annotate "${label[@]}" --dropout-p 0.5 --out others
    tts eval --model tiny --data data.json "${small[@]}" --latents --out run
    tts eval --model tiny --data other.json "${small[@]}" --latents --out foreign
    edit llama tiny llama
}

# What a case came to: its status, the error or what it says of itself (lines that begin with `= `), or its last line.
headline() {
    local told
    told=$(grep -m1 -E '^(error|thread .* panicked|memory allocation|interrupted)' "$1")
    told+=$(grep -E '^= ' "$1" | sed 's/^= / /' | tr -d '\n')
    [ -n "$told" ] || told=$(grep -v -e '^ *$' -e 'faults.sh: line' "$1" | tail -1)
    case $2 in
        124 | 137) told="does not end in 20 s" ;;
        129 | 143 | 153) told="ended by signal $(($2 - 128))" ;;
    esac
    # shellcheck disable=SC2001
    told=$(sed 's/^ *//; s/^error: //' <<<"$told")
    printf 'exit %s: %s' "$2" "${told:0:150}"
}

# try POINT WHAT EXPECTED COMMANDS: runs the commands with both binaries in a copy of the fixtures. EXPECTED is a regular
# expression for `exit STATUS` and everything that was printed, on one line.
counts=()
try() {
    [[ "$1 $2" == *"$pattern"* ]] || return 0
    local which told ended verdict all=()
    declare -A passed=() status=()
    for which in old new; do
        rm -rf "$work/case" && cp -r "$work/$which" "$work/case"
        bin=${binaries[$which]}
        (cd "$work/case" && rm -f status && eval "$4") >"$work/output" 2>&1
        ended=$(cat "$work/case/status" 2>/dev/null)
        told=$(tr '\n' ' ' <"$work/output")
        # shellcheck disable=SC2076
        if [[ "exit $ended $told" =~ $3 ]]; then passed[$which]=1; else passed[$which]=0; fi
        status[$which]=$ended
        all+=("$which: $(headline "$work/output" "$ended")")
    done
    # Where both refuse, the old one did so later or in words that lack the flag, the field or the way on.
    case ${passed[old]}${passed[new]} in
        01) if [ "${status[old]}${status[new]}" = 22 ]; then verdict="told better"; else verdict=fixed; fi ;;
        11) verdict="as before" ;; 00) verdict="STILL WRONG" ;; 10) verdict="WORSE" ;;
    esac
    counts+=("$verdict")
    printf '%s | %s | %s | %s | %s\n' "$1" "$2" "${all[0]}" "${all[1]}" "$verdict"
}

for which in old new; do
    mkdir "$work/$which" && bin=${binaries[$which]}
    (cd "$work/$which" && fixtures) >"$work/fixtures-$which.txt" 2>&1
    [ -e "$work/$which/foreign/latents.safetensors" ] && [ -e "$work/$which/llama/model.safetensors" ] && [ -e "$work/$which/others/index.json" ] ||
        { cat "$work/fixtures-$which.txt"; exit 1; }
done
echo "point | what | before | after | verdict"

# 1. Every file operation of a run with --latents is the last one; then the run is resumed.
walk() {
    local command=("$@") at lost=0 kept=0 strays=0
    for at in $(seq 1 60); do
        rm -rf walked fault.log
        crash_at "$at" walked tts "${command[@]}" --out walked
        [ -e fault.log ] || break
        # A run that ended before it had a manifest starts anew.
        tts "${command[@]}" --out walked --resume >resumed.txt 2>&1
        if [ "$(cat status)" = 0 ] && [ -z "$(find walked -name latents.safetensors)" ]; then lost=$((lost + 1)); else kept=$((kept + 1)); fi
        [ -z "$(find walked -name '*.tmp')" ] || strays=$((strays + 1))
    done
    echo "= killed at each of $((at - 1)) operations and resumed: $lost end without latents.safetensors and exit 0, $strays with strays"
}
try 1 'eval --latents, killed anywhere, resumed' ' 0 end without' 'walk eval --model tiny --data data.json "${small[@]}" --latents'
try 1 'sweep --latents, killed anywhere, resumed' ' 0 end without' 'walk sweep --model tiny --data data.json "${small[@]}" --dropout-p 0.2 --latents'
try 1 'latents.safetensors deleted' 'exit 2 .*latents.safetensors' 'rm run/latents.safetensors; tts eval --model tiny --data data.json "${small[@]}" --latents --out run --resume'

# 2. Sizes.
for name in hidden_size intermediate_size num_attention_heads head_dim; do
    try 2 "$name of 2^31 in config.json" "exit 2 .*$name" 'edit field llama/config.json '$name' 2147483648; tts eval --model llama --data data.json "${small[@]}"'
done
try 2 'n_embd of 2^31 in config.json' 'exit 2 .*n_embd' 'edit field tiny/config.json n_embd 2147483648; tts eval --model tiny --data data.json "${small[@]}"'
try 2 '--seeds 4294967295' 'exit 2 .*--seeds' 'tts eval --model tiny --data data.json "${small[@]}" --seeds 4294967295'
try 2 'train reasoner --batch 100000000000' 'exit 2 .*--batch' 'tts train reasoner --out new --steps 1 --threads 1 --batch 100000000000'
try 2 'train reasoner --width 100000000' 'exit 2 .*--width' 'tts train reasoner --out new --steps 1 --threads 1 --width 100000000'
little() {
    local kilobytes ends=()
    for kilobytes in $(seq 60000 20000 200000); do
        memory=$kilobytes tts eval --model tiny --data data.json "${small[@]}" --out "run-$kilobytes"
        ends+=("$(cat status)")
    done
    echo "= exit codes from 60 to 200 MB: ${ends[*]}"
}
try 2 'little address space' '= exit codes[^=]*: ((0|2|127) ?)+$' 'little 2>&1 | grep "^= "'

# 3. Numbers that are not finite.
try 3 'train reward --lr nan' 'exit 2 .*--lr must be' 'tts train reward --model "$reasoner" --annotations labels --out new --steps 1 --batch 4 --threads 1 --quiet --lr nan; edit finite new/model.safetensors'
for flag in '--clip nan' '--min-lr-ratio 2' '--min-lr-ratio 1e30' '--weight-decay nan' '--beta2 1' '--beta2 5' '--beta2 nan' '--digit-loss-weight nan'; do
    try 3 "train reasoner $flag" "exit 2 .*${flag% *}" 'tts train reasoner --out new --steps 1 "${few[@]}" '"$flag"
done
try 3 'train reward --last-step-weight nan' 'exit 2 .*--last-step-weight' 'tts train reward --model "$reasoner" --annotations labels --out new --steps 1 --batch 2 --threads 1 --quiet --last-step-weight nan'

# 4. Hangs.
try 4 '--threads 2000' 'exit 2 .*threads' 'tts eval --model tiny --data data.json --samples 2 --max-new-tokens 4 --no-report --quiet --threads 2000'
try 4 'a question of 100 MB' 'exit 2 .*bytes exceeds the limit' 'edit question long.jsonl "a " 50000000; tts eval --model tiny --data long.jsonl "${small[@]}"'

# 5. Adapters without weights. In tiny/ the description stands beside a whole model, in adapter/ by itself.
try 5 'adapter_config.json beside a model, no adapter weights' 'exit 2 .*adapter' 'cp adapter/adapter_config.json tiny; tts eval --model tiny --data data.json "${small[@]}"'
try 5 'adapter_model.bin alone' 'exit 2 .*adapter' 'cp adapter/adapter_config.json tiny; echo x >tiny/adapter_model.bin; tts eval --model tiny --data data.json "${small[@]}"'
try 5 'adapter_model.safetensors without tensors' 'exit 2 .*adapter' 'printf "\2\0\0\0\0\0\0\0{}" >adapter/adapter_model.safetensors; tts eval --model adapter --data data.json "${small[@]}"'
try 5 'a rank that is not that of the tensors' 'exit 2 .*adapter' 'edit field adapter/adapter_config.json r 3; tts eval --model adapter --data data.json "${small[@]}"'

# 6. Records of another run.
resume='tts eval --model tiny --data data.json "${small[@]}" --latents --out run --resume'
try 6 'samples.jsonl of another data set' 'exit 2 .*samples.jsonl' "cp foreign/samples.jsonl run; $resume"
try 6 'an edited gold answer' 'exit 2 .*samples.jsonl' "edit replace run/samples.jsonl '\"gold\":\"20\"' '\"gold\":\"21\"'; $resume"
try 6 'an edited text' 'exit 2 .*samples.jsonl' "edit replace run/samples.jsonl '\"text\":\"' '\"text\":\"20 '; $resume"
try 6 'swapped lines' 'exit 2 .*samples.jsonl' "edit swap run/samples.jsonl; $resume"
try 6 'latents of another run' 'exit 2 .*latents.safetensors' "cp foreign/latents.safetensors run; $resume"
try 6 'report on latents of another run' 'exit 2 .*latents.safetensors' 'cp foreign/latents.safetensors run; tts report run --quiet'

# 7. Damage called done.
labelled='tts annotate "${label[@]}" --dropout-p 0.4 --out labels --resume'
first=00000-of-00003.safetensors second=00001-of-00003.safetensors
try 7 'annotate --resume, a truncated shard' "exit 2 .*$first" "edit cut labels/$first; $labelled"
try 7 'annotate --resume, a shard of another annotation' "exit 2 .*$first" "cp others/$first labels; $labelled"
try 7 'annotate --resume, a copy under another number' "exit 2 .*$second" "cp labels/$first labels/$second; $labelled"
# A training that ended right after its first state was saved.
stopped() {
    local at
    for at in $(seq 10 120); do
        rm -rf half
        crash_at "$at" half tts train reasoner --data data.json --out half --steps 3 --save-every 1 "${few[@]}"
        [ -e half/training/state.safetensors ] && return
    done
}
goes_on='tts train reasoner --data data.json --out half --steps 3 --save-every 1 "${few[@]}" --resume'
differs='tts train reasoner --data data.json --out whole --steps 3 --save-every 1 "${few[@]}" >/dev/null 2>&1; cmp -s half/model.safetensors whole/model.safetensors || echo "= other weights than an undisturbed training"'
try 7 'a training that ended after its first state (control)' 'exit 0 ' "stopped; $goes_on; $differs"
try 7 'a flipped byte in a training state' 'exit 2 .*state.safetensors' "stopped; edit flip half/training/state.safetensors; $goes_on; code=\$(cat status); [ \$code != 0 ] || { $differs; }; echo \$code >status"
try 7 'a finished state without its model' '= the model is back' 'tts train reasoner --out done --steps 1 "${few[@]}" >/dev/null 2>&1; mv done/model.safetensors kept; tts train reasoner --out done --steps 1 "${few[@]}" --resume; if cmp -s kept done/model.safetensors; then echo "= the model is back, to the byte"; else echo "= is trained, without a model"; fi'
try 7 'training data changed under the same name' 'exit 2 .*changed since training started' "stopped; cp other.json data.json; $goes_on"

# 8. Two writers. The first one goes on while the second starts.
beside() {
    "$bin" "$@" --threads 1 --quiet >first.txt 2>&1 &
    local first=$!
    sleep 1.5
    tts "$@" --threads 1 --quiet --resume
    kill -9 $first
    wait $first 2>/dev/null
}
try 8 'two trainings in one directory' 'exit 2 .*another process' 'beside train reasoner --out shared --steps 400 --batch 2 --width 16 --layers 1 --heads 2 --eval-every 100'
try 8 'two annotations in one directory' 'exit 2 .*another process' 'beside annotate --out shared --limit 400 --per-shard 50 --labels final --dropout-p 0.4'

# 9. inspect refuses what eval refuses.
try 9 'inspect, a NaN weight' 'exit 2 .*element 0' 'edit element tiny/model.safetensors - nan; tts inspect tiny'
try 9 'inspect, an infinite weight' 'exit 2 .*element 0' 'edit element tiny/model.safetensors transformer.wte.weight inf; tts inspect tiny'
try 9 'inspect, an adapter of a wrong shape' 'exit 2 .*adapter' 'edit reshape adapter/adapter_model.safetensors; tts inspect adapter'
try 9 'inspect, an alpha that overflows' 'exit 2 .*adapter' 'edit field adapter/adapter_config.json lora_alpha 1e300; tts inspect adapter'

# 10. Panics.
try 10 'verify, masks of three layers for a model of one' 'exit 2 .*regenerate the dump' 'mkdir dump; cp -r tiny dump/checkpoint; edit dump dump 3 16; tts verify dump'
try 10 'verify, masks that lack layers' 'exit 2 .*regenerate the dump' 'mkdir dump; cp -r tiny dump/checkpoint; edit dump dump 0 16; tts verify dump'
try 10 'verify, thoughts of another width' 'exit 2 .*regenerate the dump' 'mkdir dump; cp -r tiny dump/checkpoint; edit dump dump 1 12; tts verify dump'
try 10 'train reasoner --init, more tokens than rows' 'exit 0 ' 'edit tokens llama/tokenizer.json 5; tts train reasoner --init llama --data data.json --out new --steps 1 --batch 2 --threads 1 --quiet'
try 10 'more than 1,024 layers' 'exit 2 .*n_layer' 'edit field tiny/config.json n_layer 1025; tts inspect tiny'
try 10 'train reasoner --layers 1025' 'exit 2 .*--layers' 'tts train reasoner --out new --steps 1 --width 16 --heads 2 --batch 2 --threads 1 --quiet --layers 1025'

# 11. A marker's text is read as that of a word which is unknown as well.
marked() {
    local text
    for text in "$1" "${1/latent/xatent}"; do
        edit question marked.jsonl "$text " 3
        tts eval --model tiny --data marked.jsonl "${small[@]}" --out "marked-$text" >/dev/null 2>&1
        grep -o '"trajectories":.*"greedy"' "marked-$text/samples.jsonl" >"read-$text"
    done
    if cmp -s "read-$1" "read-${1/latent/xatent}"; then echo "= read as text"; else echo "= read as a control token"; fi
}
for marker in '<|end-latent|>' '<|start-latent|>'; do
    try 11 "$marker in a question" '= read as text' "marked '$marker'"
done

# 12. Manners.
one='tts eval --model tiny --data data.json "${small[@]}" --limit 1'
try 12 'LATENT_TTS_SEED=x' 'exit 2 .*LATENT_TTS_SEED' "export LATENT_TTS_SEED=x; $one 2>&1 | tee said.txt; grep -q LATENT_TTS_SEED said.txt && echo '= (the variable is named)'"
try 12 'the largest seed' 'exit 0 ' "$one --seed 18446744073709551615"
try 12 'train, --out is a file' 'exit 2 .*is a file; pass a directory' 'echo text >file; tts train reasoner --out file --steps 1 "${few[@]}"'
try 12 'eval, --out is a file' 'exit 2 .*is a file; pass a directory' "echo text >file; $one --out file"
try 12 'a pipe as manifest.json' 'exit 2 .*manifest.json' 'rm run/manifest.json; mkfifo run/manifest.json; tts eval --model tiny --data data.json "${small[@]}" --latents --out run --resume'
# A signal while the questions are awaited from a pipe: before the first record.
signal() {
    mkfifo pipe.jsonl
    "$bin" eval --model tiny --data pipe.jsonl "${small[@]}" --out signalled &
    local pid=$!
    sleep 1
    kill "-$1" $pid
    (sleep 10 && kill -9 $pid 2>/dev/null) &
    local guard=$!
    wait $pid
    echo $? >status
    kill $guard
}
for name in HUP TERM; do
    try 12 "SIG$name before the first record" 'exit 3 .*--resume' "signal $name"
done
try 12 'a limit of file sizes (SIGXFSZ)' 'exit 3 .*--resume' '(ulimit -f 1; tts eval --model tiny --data data.json "${small[@]}" --out limited)'
try 12 'a question of 300 unknown words: the length of the notes' '= 1?[0-9]{1,3} characters' 'tts solve --threads 1 "$(printf "x%.0s" {1..5000}) $(echo {a..t}q{a..o}zz)" 2>said.txt >/dev/null; echo "= $(wc -c <said.txt) characters"'
try 12 'strays of a killed process' '= 0 files' 'echo x >run/.results.json.99999999.tmp; echo x >run/results.json.99999999.tmp; tts eval --model tiny --data data.json "${small[@]}" --latents --out run --resume >/dev/null 2>&1; echo "= $(find run -name "*.tmp" | wc -l) files *.tmp are left"'
try 12 'eval names its device' 'exit 0 .*1 threads of' 'tts eval --model tiny --data data.json --samples 2 --max-new-tokens 4 --threads 1 --no-report --out told 2>&1 | grep loaded'

[ -n "$pattern" ] && exit
printf '\n%s cases' "${#counts[@]}"
for verdict in fixed 'told better' 'as before' 'STILL WRONG' WORSE; do
    printf ', %s %s' "$(printf '%s\n' "${counts[@]}" | grep -cx "$verdict")" "$verdict"
done
cat <<'END'


Not shown by these commands:
3   train reward --lr nan that saves NaNs with exit 0: this OLD ends it after the first step
4   --threads 2000 that does not end: it may, as time and machine allow
4   1,000 threads took 36 s: a time, not a fault; the limit is above
10  --init with more tokens than rows: found by reading; the case above ends well with both
10  head_dim > 256 or hidden > 16,384 on a GPU: needs a GPU; refused in crates/tensor/src/device.rs
10  residual_768's spin between blocks: an argument in its source, to be read
11  chat messages of the server: crates/serve/tests; every family: crates/engine/tests/properties/markers.rs
12  SIGINT at any later moment: crates/cli/tests/resume.rs; counting from 1, advice in every error: the tests' words
12  automatic fall back to the CPU, failed graph captures: need a GPU that fails
END
