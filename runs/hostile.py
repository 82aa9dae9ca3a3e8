#!/usr/bin/env python3
"""A hostile campaign: runs/hostile.py [--runs COUNT] [--seed SEED] [--parts files,kills,limits,http,api] [BINARY]

Every run is one command, one connection or one request. It breaks if the process panics, aborts, dies by a signal that
it was not sent, hangs, or if a server answers 500 or ends; a killed run breaks if `--resume` does not end with the bytes
of an undisturbed one. Under a limit of memory that the kernel enforces (a cgroup, where one can be made) a process may
be killed; what it wrote must be resumed. Prints what was tried, with counts, and keeps what broke in `hostile-found`."""
import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Generous: `bench` and `doctor` take 10 s of a machine that nothing else uses.
TIMEOUT = 240
SMALL = ["--limit", "2", "--samples", "2", "--no-report", "--quiet"]
SETTINGS = 'samples = 2\nsampler = "dropout"\ndropout_p = 0.2\nlatent_length = "4-6"\nrule = "majority"\nseed = 7\n'
TRAIN = ["--steps", "2", "--batch", "2", "--width", "16", "--layers", "1", "--heads", "2", "--held-out-count", "2"]
RESUMED = ["eval", "sweep", "annotate", "train reasoner"]
# Of cgroups of version 1 and 2.
MEMORY_LIMITS = ["memory.limit_in_bytes", "memory.max"]
NUMBERS = [0, 1, 2, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/score", "/tokenize", "/detokenize",
         "/admin/reload"]
WORDS = [b"null", b"[[[[[[", b"1e999", b"NaN", b"-1", b"\\ud800", b'"', b"{", b"}", b"\n", b"\x00", b"\xff\xfe"]
WORDS += [b"<|endoftext|>", b"..", b"/dev/zero"]


class Campaign:
    def __init__(self, binary, seed):
        self.binary, self.rng = binary, random.Random(seed)
        self.counts, self.broken = collections.Counter(), []
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="hostile-"))
        self.environment = dict(os.environ, HF_HUB_OFFLINE="1", RUST_BACKTRACE="0")
        self.undisturbed, self.cgroup = {}, make_cgroup()

    def report(self, what, detail, keep=None):
        self.broken.append(f"{what}: {detail}")
        if keep is not None and keep.exists():
            target = pathlib.Path("hostile-found") / f"{len(self.broken)}"
            target.mkdir(parents=True, exist_ok=True)
            if keep.is_dir():
                shutil.copytree(keep, target, dirs_exist_ok=True)
            else:
                shutil.copy(keep, target)

    def command(self, args, limits=""):
        line = [self.binary, *map(str, args)]
        if limits:
            line = ["bash", "-c", f'{limits}; exec "$0" "$@"', *line]
        return line

    def run(self, what, args, limits="", keep=None, user=None):
        line = self.command(args, limits)
        if user is not None:
            line = ["setpriv", f"--reuid={user}", "--clear-groups", *line]
        try:
            done = subprocess.run(line, cwd=self.work, env=self.environment, capture_output=True, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            self.report(what, f"hangs: {args}", keep)
            self.counts[f"{what}: hangs"] += 1
            return None
        self.judge(what, done.returncode, done.stderr, f"{args} {limits}", keep)
        return done

    def judge(self, what, code, messages, about, keep=None):
        self.counts[f"{what}: exit {code}"] += 1
        killed = "cgroup" in what and code == -signal.SIGKILL
        if code not in (0, 1, 2, 3) and not killed or b"panicked" in messages:
            self.report(what, f"exit {code}: {about}: {messages[-300:]!r}", keep)

    def mutate(self, data):
        rng, data = self.rng, bytearray(data)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data) + 1)
            kind = rng.randrange(6)
            if kind == 0 and at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[at:at + rng.randrange(1, 40)] = b""
            elif kind == 2:
                data[at:at] = rng.choice(WORDS)
            elif kind == 3:
                number = rng.choice(NUMBERS).to_bytes(8, "little")
                data[at:at + 8] = number[:max(0, len(data) - at)]
            elif kind == 4:
                del data[at:]
            else:
                data[at:at] = data[at:at + rng.randrange(1, 200)]
        return bytes(data)

    # What is mutated, killed and limited.

    def prepare(self):
        work = self.work
        self.data = "".join(
            json.dumps({"question": f"Tom has {i} pens and buys {i + 1} pens. How many pens does Tom have?",
                        "answer": f"<<{i}+{i + 1}={2 * i + 1}>>{2 * i + 1}\n#### {2 * i + 1}"}) + "\n" for i in range(2, 8))
        (work / "data.jsonl").write_text(self.data)
        setup = [["train", "reasoner", *TRAIN, "--out", "model", "--quiet"],
                 ["eval", "--model", "model", "--data", "data.jsonl", *SMALL, "--latents", "--out", "run"],
                 ["annotate", "--data", "embedded:test:0..6", "-n", "4", "--rollouts", "1", "--out", "labels", "--quiet"]]
        for args in setup:
            done = subprocess.run(self.command(args), cwd=work, env=self.environment, capture_output=True)
            if done.returncode:
                sys.exit(f"{args}: {done.stderr.decode()}")
        self.commands = {
            "corpus": ["corpus", "--count", "20", "--out", "out"],
            "augment": ["augment", "data.jsonl", "--count", "2", "--out", "out"],
            "eval": ["eval", *SMALL, "--out", "out"],
            "solve": ["solve", "Tom has 2 pens and buys 3 pens. How many pens does Tom have?", "-n", "2"],
            "sweep": ["sweep", "--p", "0.1", *SMALL, "--out", "out"],
            "annotate": ["annotate", "--limit", "2", "-n", "2", "--rollouts", "1", "--quiet", "--out", "out"],
            "train reasoner": ["train", "reasoner", *TRAIN, "--quiet", "--out", "out"],
            "train reward": ["train", "reward", "--model", "embedded", "--objective", "untrained", "--out", "out"],
            "report": ["report", "run", "--out", "out"],
            "inspect": ["inspect", "model"],
            "doctor": ["doctor"],
            "bench": ["bench", "--shape", "embedded", "--questions", "1", "-n", "2", "--repeat", "1"],
            "verify": ["verify", "model"],
            "serve": ["serve", "--port", "0", "--json", "--quiet", "--memory", "64MiB"],
        }
        (work / "settings.toml").write_text(SETTINGS)
        # A command, its output, and the files that a killed and resumed one has to the byte.
        eval_args = ["eval", "--model", "model", "--data", "data.jsonl", "--samples", "2", "--no-report", "--quiet"]
        self.resumable = {
            "eval": ([*eval_args, "--latents"], ["samples.jsonl", "latents.safetensors"]),
            "annotate": (["annotate", "--data", "embedded:test:0..4", "-n", "4", "--rollouts", "2", "--quiet"],
                         ["*.safetensors"]),
            "train": (["train", "reasoner", *TRAIN[2:], "--steps", "8", "--save-every", "2", "--quiet"],
                      ["model.safetensors"]),
        }

    def files(self):
        """A file of a model, a run, a training, annotations or data is mutated, and every reader of it is run."""
        rng, case = self.rng, self.work / "case"
        readers = {
            "model": [["inspect", "case"], ["solve", "1 plus 2?", "--model", "case", "-n", "1"],
                      ["train", "reasoner", *TRAIN, "--quiet", "--out", "case", "--resume"]],
            "run": [["report", "case", "--page-only"], ["eval", "--model", "model", "--data", "data.jsonl", *SMALL,
                                                         "--latents", "--out", "case", "--resume"]],
            "labels": [["train", "reward", "--model", "embedded", "--annotations", "case", "--steps", "1", "--batch",
                        "2", "--out", "out", "--overwrite", "--quiet"]],
            "data.jsonl": [["eval", "--data", "case", *SMALL, "--out", "out", "--overwrite"],
                           ["augment", "case", "--count", "1", "--out", "out.jsonl"]],
            "settings.toml": [["solve", "--config", "case", "What is 1 plus 2?"],
                              ["eval", "--config", "case", "--limit", "1", "--no-report", "--quiet", "--out", "out",
                               "--overwrite"]],
        }
        name = rng.choice(list(readers))
        shutil.rmtree(case, ignore_errors=True)
        case.unlink(missing_ok=True)
        if (self.work / name).is_dir():
            shutil.copytree(self.work / name, case)
            target = rng.choice(sorted(path for path in case.rglob("*") if path.is_file()))
        else:
            shutil.copy(self.work / name, case)
            target = case
        target.write_bytes(self.mutate(target.read_bytes()))
        self.run(f"files: {name}", rng.choice(readers[name]), keep=case)

    def recorded(self, out, patterns):
        return {path.name: path.read_bytes() for pattern in patterns for path in sorted(out.glob(pattern))}

    def kills(self):
        """A command is killed at a random moment and resumed; its records are those of an undisturbed one."""
        out, name = self.work / "killed", self.rng.choice(list(self.resumable))
        shutil.rmtree(out, ignore_errors=True)
        args, patterns = self.resumable[name]
        args = [*args, "--out", "killed"]
        if name not in self.undisturbed:
            start = time.monotonic()
            self.run(f"kills: {name}, undisturbed", args)
            self.undisturbed[name] = self.recorded(out, patterns), time.monotonic() - start
            return
        whole, seconds = self.undisturbed[name]
        sent = self.rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        process = subprocess.Popen(self.command(args), cwd=self.work, env=self.environment,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(self.rng.random() * seconds)
        process.send_signal(sent)
        process.wait()
        # A command that was killed before its first record has nothing to resume.
        done = self.run(f"kills: {name}, {sent.name}, resumed", [*args, "--resume"], keep=out)
        if done is not None and done.returncode != 0:
            self.run(f"kills: {name}, {sent.name}, begun again", args, keep=out)
        if self.recorded(out, patterns) != whole:
            self.report(f"kills: {name}", f"{sent.name}: other bytes", out)

    def limits(self):
        """A command under a limit of processes, address space, file descriptors, file size or memory."""
        rng = self.rng
        name = rng.choice(list(self.commands))
        shutil.rmtree(self.work / "out", ignore_errors=True)
        (self.work / "out").unlink(missing_ok=True)
        # With three file descriptors no library is loaded, and the program does not begin.
        kind = rng.choice("uvnfm" if self.cgroup else "uvnf")
        value = {"u": rng.randrange(1, 14), "v": rng.randrange(60, 900) << 10, "n": rng.randrange(4, 24),
                 "f": rng.choice([0, 1, 4, 64, 1024]), "m": rng.randrange(8, 200) << 20}[kind]
        limits, what, user = f"ulimit -{kind} {value}", f"limits: {name} -{kind}", None
        if kind == "m":
            set_cgroup(self.cgroup, value)
            limits, what = f"echo $$ >{self.cgroup}/cgroup.procs", f"limits: {name} cgroup"
        if kind == "u" and os.geteuid() == 0:
            # Root has no limit of processes.
            user = rng.randrange(20000, 60000)
            for path in [self.work, *self.work.rglob("*")]:
                path.chmod(0o777)
        if name == "serve":
            self.limited_server(what, limits, user)
            return
        done = self.run(what, self.commands[name], limits=limits, user=user)
        if done is not None and done.returncode == -signal.SIGKILL and name in RESUMED:
            args = [*self.commands[name], "--resume"]
            self.run(f"limits: {name} killed by its cgroup, resumed", args, keep=self.work / "out")

    def limited_server(self, what, limits, user):
        """A server under a limit starts or refuses to; it answers what it can, and ends when it is asked to."""
        line = self.command(self.commands["serve"], limits)
        if user is not None:
            line = ["setpriv", f"--reuid={user}", "--clear-groups", *line]
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(line, cwd=self.work, env=self.environment, stdout=subprocess.PIPE, stderr=log)
            try:
                if address := process.stdout.readline():
                    port = int(json.loads(address)["url"].rsplit(":", 1)[1])
                    self.ask_limited(port)
                    process.send_signal(signal.SIGTERM)
                code = process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                self.report(what, f"hangs: serve {limits}")
                return
            finally:
                process.stdout.close()
            log.seek(0)
            self.judge(what, code, log.read(), f"serve {limits}")

    def ask_limited(self, port):
        body = json.dumps({"messages": [{"role": "user", "content": "What is 1 plus 2?"}], "latent": {"samples": 2}})
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        data = f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
        status = b""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(data)
                status = connection.recv(12)
        except OSError:
            pass
        self.counts[f"limits: serve answered {status[9:12].decode('latin-1') or 'nothing'}"] += 1

    # The server.

    def serve(self):
        line = self.command(["serve", "--port", "0", "--json", "--quiet", "--runs", "run", "--io-timeout", "3",
                             "--max-memory", "2GiB", "--memory", "256MiB"])
        self.log = open(self.work / "server.log", "wb")
        self.server = subprocess.Popen(line, cwd=self.work, env=self.environment, stdout=subprocess.PIPE,
                                       stderr=self.log)
        self.port = int(json.loads(self.server.stdout.readline())["url"].rsplit(":", 1)[1])

    def exchange(self, what, data, half_close=False):
        answer = b""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT) as connection:
                connection.sendall(data)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(1 << 16):
                    answer += part
        except TimeoutError:
            self.report(what, f"no answer to {data[:300]!r}")
        except OSError:
            pass
        status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/") else "closed"
        self.counts[f"{what}: {status}"] += 1
        if status == "500" or self.server.poll() is not None:
            self.report(what, f"{status}: {data[:600]!r}")
            if self.server.poll() is not None:
                self.serve()

    def http(self):
        """A connection with mutated bytes of a request."""
        body = json.dumps(self.body()).encode()
        path = self.rng.choice(PATHS)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        if self.rng.random() < 0.5:
            data = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
        else:
            data = head.encode() + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
        if self.rng.random() < 0.2:
            target = self.rng.choice(["/", "/runs", "/runs/run", "/metrics", "/health", "/runs/../../etc/passwd",
                                      "/docs", "/openapi.json", "/version", "/v1/models/embedded@weighted-16"])
            data = f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        # Without its end a request that was cut would wait for the server's time limit.
        self.exchange("http", self.mutate(data), half_close=True)

    def body(self):
        rng = self.rng
        odd = [None, True, -1, 0, 1, 2, 0.5, 1e308, 2**63, "", "x", "<|end-latent|>", [], [1], [[1]], {}, ["a"], {"a": 1}]
        latent = {"samples": rng.choice([1, 2, 4]), "seed": rng.randrange(99)}
        fields = ["samples", "seed", "latent_length", "dropout_p", "noise_std", "gumbel_tau", "sampler", "rule",
                  "adaptive", "target_confidence", "deadline_ms", "beam", "beam_width", "beam_candidates", "timeout",
                  "greedy", "lens", "gold", "map", "return", "vote_temperature", "lcb_coefficient", "unknown"]
        for _ in range(rng.randrange(3)):
            latent[rng.choice(fields)] = rng.choice(odd)
        body = {"messages": [{"role": "user", "content": "What is 1 plus 2?"}], "prompt": "What is 1 plus 2?", "input": "What is 1 plus 2?", "question": "What is 1 plus 2?",
                "answers": [3, "4"], "max_tokens": rng.choice([1, 4, 8]), "latent": latent}
        names = ["messages", "prompt", "model", "stop", "temperature", "top_p", "stream", "n", "logprobs", "echo",
                 "max_tokens", "tokens", "seed", "latent", "best_of", "user", "input", "instructions", "text",
                 "reasoning", "question", "answers", "response_format", "stream_options", "previous_response_id"]
        for _ in range(rng.randrange(4)):
            body[rng.choice(names)] = rng.choice(odd)
        return body

    def api(self):
        """A valid HTTP request with random fields."""
        body = json.dumps(self.body()).encode()
        path = self.rng.choice(PATHS)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.exchange("api", head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)


def make_cgroup():
    """A cgroup below this process's own whose memory can be limited, or None."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("memory", ""):
            root = pathlib.Path("/sys/fs/cgroup", controllers, path.lstrip("/"))
            group = root / f"hostile-{os.getpid()}"
            try:
                group.mkdir()
            except OSError:
                continue
            if any((group / name).exists() for name in MEMORY_LIMITS):
                return group
            group.rmdir()
    return None


def set_cgroup(group, size):
    for name in MEMORY_LIMITS:
        if (group / name).exists():
            (group / name).write_text(str(size))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parts", default="files,kills,limits,http,api")
    parser.add_argument("binary", nargs="?", default=str(ROOT / "target/debug/latent-tts"))
    args = parser.parse_args()
    campaign = Campaign(str(pathlib.Path(args.binary).resolve()), args.seed)
    campaign.prepare()
    parts = args.parts.split(",")
    # Requests are cheaper than processes by two orders of magnitude.
    shares = {"files": 3, "kills": 1, "limits": 2, "http": 20, "api": 20}
    if {"http", "api"} & set(parts):
        campaign.serve()
    start, total = time.monotonic(), sum(shares[part] for part in parts)
    # A campaign that is ended early prints what it has tried.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for part in parts:
            for _ in range(max(1, args.runs * shares[part] // total)):
                getattr(campaign, part)()
                if len(campaign.broken) >= 50:
                    break
    except KeyboardInterrupt:
        print("ended early")
    if hasattr(campaign, "server"):
        campaign.server.send_signal(signal.SIGTERM)
        if campaign.server.wait(60) != 0:
            campaign.report("serve", f"ended with {campaign.server.returncode}")
        if b"panicked" in (campaign.work / "server.log").read_bytes():
            campaign.report("serve", "a thread panicked", campaign.work / "server.log")
    for name, count in sorted(campaign.counts.items()):
        print(f"{count:>8}  {name}")
    print(f"{sum(campaign.counts.values()):>8}  runs in {time.monotonic() - start:.0f} s, {len(campaign.broken)} broken")
    print("\n".join(campaign.broken))
    if campaign.cgroup:
        campaign.cgroup.rmdir()
    else:
        print("limits of memory by a cgroup: skipped, none can be made here")
    shutil.rmtree(campaign.work, ignore_errors=True)
    sys.exit(bool(campaign.broken))


if __name__ == "__main__":
    main()
