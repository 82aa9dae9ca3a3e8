"""openai-python and lm-evaluation-harness, unmodified, against `latent-tts serve` on the embedded model.

Usage: clients.py BINARY [QUESTIONS]. Starts the server on a free port of the loopback interface, runs both
clients, and compares what they report with `latent-tts solve` and `latent-tts eval`.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile

import openai

LAST_NUMBER = r"(-?[0-9][0-9,]*)(?!.*[0-9])"


def command(binary, *args):
    done = subprocess.run([binary, *args], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{args}: {done.stderr}"
    return done.stdout


@contextlib.contextmanager
def serving(binary, *args):
    """A server; yields its URL and its process."""
    process = subprocess.Popen(
        [binary, "serve", "--port", "0", "--json", "--quiet", *args], stdout=subprocess.PIPE, text=True
    )
    try:
        yield json.loads(process.stdout.readline())["url"], process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, "the server did not end in peace"


def solved(binary, question, samples, seed):
    return json.loads(command(binary, "solve", "--json", "--quiet", "-n", str(samples), "--seed", str(seed), question))


def chosen(solution, reply):
    """The text of the trajectory that the reply says was chosen."""
    number = reply.choices[0].latent["chosen"]
    return solution["trajectories"][number]["text"]


def without_marker(text):
    """A text as a chat returns it: without the marker that the embedded model writes first."""
    return text.lstrip("#").strip()


def check_chat(client, binary, questions):
    assert [model.id for model in client.models.list()] == ["embedded"]
    question = questions[0]["question"]
    messages = [{"role": "user", "content": question}]

    clean = client.chat.completions.create(model="embedded", messages=messages, temperature=0, seed=1234)
    assert clean.choices[0].finish_reason == "stop" and clean.choices[0].message.content
    assert clean.usage.completion_tokens_details.reasoning_tokens > 0
    assert clean.usage.total_tokens == clean.usage.prompt_tokens + clean.usage.completion_tokens

    vote = client.chat.completions.create(model="embedded", messages=messages, reasoning_effort="medium", seed=1234)
    solution = solved(binary, question, 16, vote.choices[0].latent["seed"])
    assert vote.choices[0].latent["raw_text"] == chosen(solution, vote), (vote, solution)
    assert vote.choices[0].message.content == without_marker(chosen(solution, vote))
    assert vote.choices[0].latent["answer"] == solution["answer"]

    exact = client.chat.completions.create(
        model="embedded", messages=messages, extra_body={"latent": {"samples": 8, "seed": 7}}
    )
    assert exact.choices[0].latent["raw_text"] == chosen(solved(binary, question, 8, 7), exact)

    several = client.chat.completions.create(
        model="embedded", messages=messages, n=3, extra_body={"latent": {"seed": 7}}
    )
    texts = [t["text"] for t in solved(binary, question, 3, 7)["trajectories"]]
    assert [choice.latent["raw_text"] for choice in several.choices] == texts


def check_stream(client, binary, questions):
    question = questions[1]["question"]
    stream = client.chat.completions.create(
        model="embedded",
        messages=[{"role": "user", "content": question}],
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"latent": {"samples": 16, "seed": 3}},
    )
    text, numbers, usage, last = "", [], None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            latent = getattr(choice, "latent", None) or {}
            if "trajectory" in latent:
                assert not text, "trajectories come before the answer"
                numbers.append(latent["trajectory"]["index"])
            last = choice.finish_reason or last
    assert sorted(numbers) == list(range(16)) and last == "stop" and usage.completion_tokens > 16
    solution = solved(binary, question, 16, 3)
    texts = [t["text"] for t in solution["trajectories"] if t["answer"] == solution["answer"]]
    assert text in map(without_marker, texts)


def check_responses(client, questions):
    question = questions[2]["question"]
    extra = {"latent": {"samples": 8, "seed": 5}}
    chat = client.chat.completions.create(
        model="embedded", messages=[{"role": "user", "content": question}], extra_body=extra
    )
    whole = client.responses.create(model="embedded", input=question, extra_body=extra)
    assert whole.status == "completed" and whole.output_text == chat.choices[0].message.content
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert whole.latent == chat.choices[0].latent
    effort = client.responses.create(model="embedded", input=question, reasoning={"effort": "low"})
    assert effort.latent["samples"] == 8

    text, told, last = "", 0, None
    for event in client.responses.create(model="embedded", input=question, stream=True, extra_body=extra):
        text += event.delta if event.type == "response.output_text.delta" else ""
        told += "trajectory" in (getattr(event, "latent", None) or {})
        last = event
    assert (text, told, last.type) == (whole.output_text, 8, "response.completed")
    assert last.response.usage == whole.usage
    with client.responses.stream(model="embedded", input=question, extra_body=extra) as stream:
        final = stream.get_final_response()
    assert final.output_text == whole.output_text

    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"],
              "additionalProperties": False}
    structured = client.responses.create(
        model="embedded", input=question, extra_body=extra,
        text={"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}},
    )
    assert json.loads(structured.output_text) == {"answer": int(whole.output_text)}
    try:
        client.responses.create(model="embedded", input=question, previous_response_id="resp_1")
        raise AssertionError("a stored response was accepted")
    except openai.BadRequestError as error:
        assert error.param == "previous_response_id"
    named = client.chat.completions.create(
        model="embedded@majority-4", messages=[{"role": "user", "content": question}]
    )
    assert named.choices[0].latent["samples"] == 4 and named.choices[0].latent["rule"] == "majority"


def check_gateway(binary, url, questions):
    """openai-python through a gateway whose upstream is the server itself."""
    messages = [{"role": "user", "content": questions[3]["question"]}]
    with serving(binary, "--upstream", f"{url}/v1", "--upstream-model", "embedded") as (gateway, _):
        client = openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list()] == ["embedded"]
        extra = {"latent": {"samples": 6, "seed": 2}}
        whole = client.chat.completions.create(model="embedded", messages=messages, extra_body=extra)
        latent = whole.choices[0].latent
        assert sum(vote["votes"] for vote in latent["votes"]) <= latent["samples"] == 6
        assert all(vote["share"]["low"] <= vote["share"]["value"] for vote in latent["votes"])
        stream = client.chat.completions.create(
            model="embedded", messages=messages, stream=True, extra_body=extra
        )
        chunks = [chunk.choices[0] for chunk in stream]
        told = [c for c in chunks if "trajectory" in (getattr(c, "latent", None) or {})]
        text = "".join(chunk.delta.content or "" for chunk in chunks)
        assert len(told) == 6 and text == whole.choices[0].message.content


def documented_curl():
    """The curl commands of all pages: page, heading above, command."""
    root = pathlib.Path(__file__).parent.parent
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        page = path.read_text()
        for block in re.finditer(r"^```(?:sh|bash)\n(.*?)^```", page, re.S | re.M):
            headings = re.findall(r"^#+ (.*)$", page[: block.start()], re.M)
            lines = block[1].splitlines(keepends=True)
            for first, line in enumerate(lines):
                if line.startswith("curl "):
                    yield path.name, headings[-1], command_from(lines[first:])


def command_from(lines):
    """The shell command that begins with the first line: it ends where its quotes are closed."""
    for count in range(1, len(lines) + 1):
        command = "".join(lines[:count])
        with contextlib.suppress(ValueError):
            shlex.split(command)
            if not command.rstrip().endswith("\\"):
                return command
    raise AssertionError(f"a quote is not closed in {lines}")


def check_curl(binary, url):
    """Every curl command of the pages, against the server; those about the gateway against one."""
    commands = list(documented_curl())
    assert len(commands) >= 7, "the pages have lost their examples"
    assert {page for page, _, _ in commands} >= {"README.md", "serve.md"}
    with serving(binary, "--upstream", f"{url}/v1", "--upstream-model", "embedded") as (gateway, _):
        for page, heading, command in commands:
            asked = gateway if heading == "Gateway" else url
            command = command.replace("http://127.0.0.1:8000", asked).replace("curl ", "curl --fail-with-body ", 1)
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, (page, command, done.stdout, done.stderr)
            if "-sN" in command:
                assert done.stdout.endswith("data: [DONE]\n\n"), done.stdout
            else:
                reply = json.loads(done.stdout)
                assert "error" not in reply or reply["error"] is None, reply
    print(f"curl: {len(commands)} commands of README and docs: ok")


def documented_lm_eval(page, model):
    """The arguments of the page's command for a model of the harness."""
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", page, re.S | re.M)).replace("\\\n", " ")
    (line,) = [line for line in blocks.splitlines() if line.startswith("lm_eval ") and f"--model {model} " in line]
    return shlex.split(line)[1:]


def check_documented_lm_eval(url, folder):
    """The commands of docs/how-to/lm-eval.md, with a local task for one that is downloaded, and our model's name."""
    page = (pathlib.Path(__file__).parent.parent / "docs/how-to/lm-eval.md").read_text()
    tasks = {"gsm8k": "latent_generate", "arc_easy": "latent_choose"}
    for model in ("local-chat-completions", "local-completions"):
        arguments = documented_lm_eval(page, model)
        assert "--device" not in arguments
        arguments = [tasks.get(argument, argument) for argument in arguments]
        arguments = [a.replace("http://127.0.0.1:8000", url).replace("model=codi", "model=embedded") for a in arguments]
        environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none"}
        done = subprocess.run(
            [sys.executable, "-m", "lm_eval", *arguments, "--include_path", str(folder / "tasks"), "--limit", "4"],
            env=environment, capture_output=True, text=True, timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    print("lm-eval: the commands of docs/how-to/lm-eval.md: ok")


def check_completions(client, questions):
    texts = [question["question"] for question in questions[:4]]
    both = client.completions.create(model="embedded", prompt=texts, temperature=0, max_tokens=256)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    for text, choice in zip(texts, both.choices):
        alone = client.completions.create(model="embedded", prompt=text, temperature=0)
        assert alone.choices[0].text == choice.text
    echoed = client.completions.create(
        model="embedded", prompt=texts[0], max_tokens=1, logprobs=1, echo=True, temperature=0
    )
    logprobs = echoed.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and len(logprobs.tokens) == len(logprobs.token_logprobs)
    assert all(p <= max(top.values()) for p, top in zip(logprobs.token_logprobs[1:], logprobs.top_logprobs[1:]))


def check_errors(client, binary, questions):
    messages = [{"role": "user", "content": questions[0]["question"]}]

    def fails(error, **options):
        try:
            client.chat.completions.create(messages=messages, **{"model": "embedded", **options})
        except error as found:
            return found
        raise AssertionError(f"{options} was accepted")

    assert fails(openai.BadRequestError, reasoning_effort="huge").param == "reasoning_effort"
    assert fails(openai.BadRequestError, extra_body={"latent": {"samples": 0}}).param == "latent.samples"
    assert fails(openai.NotFoundError, model="gpt-5").code == "model_not_found"
    slow = client.with_options(timeout=0.05, max_retries=0)
    try:
        slow.chat.completions.create(
            model="embedded", messages=messages, extra_body={"latent": {"samples": 512}}
        )
        raise AssertionError("512 trajectories in 50 ms")
    except openai.APITimeoutError:
        pass

    with serving(binary, "--api-key", "secret", "--max-queue", "16", "--max-samples", "16") as (url, _):
        try:
            openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()
            raise AssertionError("a wrong key was accepted")
        except openai.AuthenticationError:
            pass
        check_retries(openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=20), messages)


def check_retries(client, messages):
    """More at once than the queue takes: every 429 is sent again until all are answered."""
    from concurrent.futures import ThreadPoolExecutor

    def ask(seed):
        return client.chat.completions.create(
            model="embedded", messages=messages, extra_body={"latent": {"samples": 12, "seed": seed}}
        )

    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(ask, range(12)))
    assert [reply.choices[0].latent["seed"] for reply in replies] == list(range(12))


def write_tasks(folder, data):
    """Task files of lm-evaluation-harness on local questions."""
    common = f"""
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
num_fewshot: 0
"""
    (folder / "generate.yaml").write_text(
        f"""task: latent_generate
{common}
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["\\n\\n", "Question:"]
  do_sample: false
filter_list:
  - name: last-number
    filter:
      - function: regex
        regex_pattern: '{LAST_NUMBER}'
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    regexes_to_ignore: [","]
"""
    )
    (folder / "choose.yaml").write_text(
        f"""task: latent_choose
{common}
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
    )


def lm_eval(folder, model, url, task, *more):
    out = folder / f"{model}-{task}"
    arguments = f"model=embedded,base_url={url},num_concurrent=4,max_retries=3"
    if model == "local-completions":
        arguments += ",tokenizer_backend=remote"
    environment = {
        **os.environ,
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "OPENAI_API_KEY": "none",
        "TQDM_DISABLE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", arguments, "--tasks", task]
        + ["--include_path", str(folder), "--output_path", str(out), "--log_samples", *more],
        env=environment, capture_output=True, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = out.rglob("results_*.json")
    found = json.loads(results.read_text())["results"][task]
    (samples,) = out.rglob("samples_*.jsonl")
    return found, [json.loads(line) for line in samples.read_text().splitlines()]


def check_lm_eval(url, binary, questions, folder):
    data = folder / "questions.json"
    data.write_text(json.dumps(questions))
    rows = folder / "rows.jsonl"
    with rows.open("w") as out:
        for question in questions:
            wrong = [str(int(question["answer"]) + d) for d in (1, 7)]
            choices = [question["answer"], *wrong]
            out.write(json.dumps({"question": question["question"], "answer": question["answer"], "choices": choices}))
            out.write("\n")
    tasks = folder / "tasks"
    tasks.mkdir()
    write_tasks(tasks, rows)
    expected = eval_greedy(binary, data, folder)
    for model, path in [("local-chat-completions", "chat/completions"), ("local-completions", "completions")]:
        chat = ["--apply_chat_template"] if model == "local-chat-completions" else []
        found, _ = lm_eval(tasks, model, f"{url}/v1/{path}", "latent_generate", *chat)
        accuracy = found["exact_match,last-number"]
        print(f"lm-eval {model}: {accuracy:.4f}; eval's greedy: {expected:.4f}")
        assert abs(accuracy - expected) < 1e-9, (model, accuracy, expected)
    found, samples = lm_eval(tasks, "local-completions", f"{url}/v1/completions", "latent_choose")
    print(f"lm-eval log-likelihood: acc {found['acc,none']:.4f} over {len(samples)} questions")
    check_log_likelihoods(url, samples)


def eval_greedy(binary, data, folder):
    """The accuracy of the unperturbed trajectory that `eval` reports."""
    out = folder / "run"
    text = command(
        binary, "eval", "--data", str(data), "-n", "1", "--out", str(out), "--json", "--quiet", "--no-report"
    )
    (greedy,) = [metric for metric in json.loads(text)["metrics"] if metric["name"] == "greedy"]
    return greedy["value"]


def check_log_likelihoods(url, samples):
    """What the harness summed is what the server says of the same tokens."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    for sample in samples[:3]:
        for arguments, response in zip(sample["arguments"].values(), sample["filtered_resps"]):
            context, continuation = arguments["arg_0"], arguments["arg_1"]
            tokens = client.completions.create(
                model="embedded", prompt=context + continuation, max_tokens=0, logprobs=1, echo=True
            ).choices[0].logprobs
            prefix = client.completions.create(
                model="embedded", prompt=context, max_tokens=0, logprobs=1, echo=True
            ).choices[0].logprobs
            total = sum(tokens.token_logprobs[len(prefix.tokens):])
            assert abs(total - float(response[0])) < 1e-4, (total, response)


def main():
    binary, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
    questions = json.loads(command(binary, "corpus", "--split", "valid", "--count", str(count)))
    with tempfile.TemporaryDirectory() as folder, serving(binary) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        check_chat(client, binary, questions)
        check_stream(client, binary, questions)
        check_completions(client, questions)
        check_errors(client, binary, questions)
        check_responses(client, questions)
        check_gateway(binary, url, questions)
        print("openai-python: chat, stream, completions, errors, retries, responses, gateway: ok")
        check_curl(binary, url)
        check_lm_eval(url, binary, questions, pathlib.Path(folder))
        check_documented_lm_eval(url, pathlib.Path(folder))
    print("clients: ok")


main()
