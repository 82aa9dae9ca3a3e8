"""Blocks of every GGUF tensor type with the values that llama.cpp's Python package gives them.

  python gguf_blocks.py > gguf_blocks.json    (needs gguf and numpy)

Bytes come from a linear congruential generator; scales and minima are replaced by finite numbers. Values are
the bit patterns of float32, so that the comparison is exact.
"""

import json

import gguf
import numpy as np

BLOCKS = 3
# Where a block has its half-precision numbers.
SCALES = {
    "F32": [], "F16": [], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}

state = 12345


def byte():
    global state
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    return state >> 56


def number():
    return (byte() - 127.5) / 1024


fixture = {}
for name, places in SCALES.items():
    kind = gguf.GGMLQuantizationType[name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    if values == 1:
        numbers = np.array([number() * 100 for _ in range(8)], dtype=np.float32)
        raw = {"F32": numbers.tobytes(), "F16": numbers.astype(np.float16).tobytes()}.get(name)
        raw = raw or (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        raw = np.frombuffer(raw, dtype=np.uint8)
    else:
        raw = np.array([byte() for _ in range(BLOCKS * size)], dtype=np.uint8)
        for start in range(0, BLOCKS * size, size):
            for place in places:
                half = np.array([number()], dtype=np.float16).view(np.uint8)
                raw[start + place : start + place + 2] = half
    stored = raw.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8))
    widened = gguf.quants.dequantize(stored, kind).astype(np.float32).ravel()
    assert np.isfinite(widened).all()
    fixture[name] = {"bytes": raw.tobytes().hex(), "values": widened.view(np.uint32).tolist()}
print(json.dumps(fixture, indent=None, separators=(",", ":")).replace('},"', '},\n"'))
