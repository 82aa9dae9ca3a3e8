#!/usr/bin/env python3
# The factors of a LoRA adapter, cut to a smaller rank by the singular values of each product B A (needs torch).
# Usage: runs/cut_adapter.py ADAPTER OUT RANK
import json, shutil, struct, sys, torch
from pathlib import Path
src, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
out.mkdir(parents=True, exist_ok=True)
for f in src.iterdir():
    if f.is_file(): shutil.copy(f, out / f.name)
raw = (src / 'adapter_model.safetensors').read_bytes()
n = struct.unpack('<Q', raw[:8])[0]
head = json.loads(raw[8:8 + n]); meta = head.pop('__metadata__', None)
T = {'BF16': torch.bfloat16, 'F32': torch.float32}
t = {k: torch.frombuffer(bytearray(raw[8 + n + v['data_offsets'][0]:8 + n + v['data_offsets'][1]]), dtype=T[v['dtype']]).reshape(v['shape']).double() for k, v in head.items()}
new, kept, total = {}, 0.0, 0.0
for k in sorted(t):
    if 'lora_A' in k:
        kb = k.replace('lora_A', 'lora_B'); A, B = t[k], t[kb]
        qb, rb = torch.linalg.qr(B); qa, ra = torch.linalg.qr(A.T)
        u, s, vt = torch.linalg.svd(rb @ ra.T)
        kept += (s[:rank] ** 2).sum().item(); total += (s ** 2).sum().item()
        r = s[:rank].sqrt()
        new[k] = (r[:, None] * vt[:rank]) @ qa.T; new[kb] = (qb @ u[:, :rank]) * r
    elif 'lora_B' not in k: new[k] = t[k]
cfg = json.load(open(src / 'adapter_config.json'))
cfg['lora_alpha'] = cfg['lora_alpha'] / cfg['r'] * rank; cfg['r'] = rank
json.dump(cfg, open(out / 'adapter_config.json', 'w'), indent=2)
h, data, at = {}, [], 0
if meta: h['__metadata__'] = meta
for k in sorted(new):
    b = new[k].to(torch.bfloat16).contiguous().cpu().view(torch.int16).numpy().tobytes()
    h[k] = {'dtype': 'BF16', 'shape': list(new[k].shape), 'data_offsets': [at, at + len(b)]}; at += len(b); data.append(b)
hb = json.dumps(h, separators=(',', ':')).encode(); hb += b' ' * (-len(hb) % 8)
(out / 'adapter_model.safetensors').write_bytes(struct.pack('<Q', len(hb)) + hb + b''.join(data))
print('rank', rank, 'keeps', round(kept / total, 5), 'of the energy')
