"""Checks the files below packaging/ against the program. Usage: packaging.py BINARY

Where docker compose or systemd-analyze are installed, they check their files, too; a line says which were not.
"""

import contextlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent / "packaging"
CHART = ROOT / "helm/latent-tts"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
INSTRUCTIONS = set("ARG FROM WORKDIR COPY RUN USER EXPOSE HEALTHCHECK ENTRYPOINT CMD ENV LABEL VOLUME".split())


@contextlib.contextmanager
def serving(binary, *args):
    process = subprocess.Popen(
        [binary, "serve", "--port", "0", "--json", "--quiet", *args], stdout=subprocess.PIPE, text=True
    )
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def get(url):
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read().decode()


def known_flags(binary):
    shown = subprocess.run([binary, "serve", "--help"], capture_output=True, text=True, check=True)
    return set(FLAG.findall(shown.stdout))


def check_flags(name, text, known):
    given = FLAG.findall(text)
    unknown = [flag for flag in given if flag not in known]
    assert not unknown, f"{name}: serve has no flag {unknown}"
    for variable in re.findall(r"LATENT_TTS_([A-Z_]+)", text):
        flag = "--" + variable.lower().replace("_", "-")
        assert flag in known, f"{name}: LATENT_TTS_{variable} sets no flag of serve"
    return given


def instructions(path):
    """The instructions of a Dockerfile with continuation lines joined."""
    text = re.sub(r"\\\n\s*", " ", path.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [line.split(maxsplit=1) for line in lines]


def check_dockerfile(known, url):
    path = ROOT / "docker/Dockerfile"
    found = instructions(path)
    names = [name for name, _ in found]
    assert set(names) <= INSTRUCTIONS, set(names) - INSTRUCTIONS
    stages = {rest.split(" AS ")[1] for name, rest in found if name == "FROM" and " AS " in rest}
    for name, rest in found:
        for stage in re.findall(r"--from=(\w+)", rest):
            assert stage in stages, f"COPY from {stage}, which is no stage"
    users = [rest for name, rest in found if name == "USER"]
    assert users and users[-1] not in ("root", "0"), "the container runs as root"
    (entrypoint,) = [json.loads(rest) for name, rest in found if name == "ENTRYPOINT"]
    assert entrypoint[:2] == ["latent-tts", "serve"]
    check_flags(path, " ".join(entrypoint), known)
    (health,) = [rest for name, rest in found if name == "HEALTHCHECK"]
    command = json.loads(health.split(" CMD ")[1])
    port = url.rsplit(":", 1)[1]
    assert command[:2] == ["bash", "-c"] and "/8000" in command[2]
    run = lambda port: subprocess.run(  # noqa: E731
        ["bash", "-c", command[2].replace("/8000", f"/{port}")], capture_output=True, timeout=30
    )
    linter = pathlib.Path(sys.executable).parent / "hadolint"
    if linter.exists():
        subprocess.run([linter, path], check=True)
    else:
        print("packaging: hadolint is not installed; its own check is skipped")
    assert run(port).returncode == 0, "the health check fails on a healthy server"
    assert run(1).returncode != 0, "the health check succeeds without a server"


def check_compose(known):
    path = ROOT / "docker/compose.yaml"
    document = yaml.safe_load(path.read_text())
    services, volumes = document["services"], document["volumes"]
    for name, service in services.items():
        for other in service.get("depends_on", []):
            assert other in services, f"{name} depends on {other}"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            is_there = (path.parent / source).exists() if source.startswith(".") else source in volumes
            assert is_there, f"{name}: no volume {source}"
        if "build" in service:
            context = path.parent / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).is_file()
    server = services["latent-tts"]
    check_flags(path, " ".join(server["command"]) + " ".join(server["environment"]), known)
    scraped = yaml.safe_load((ROOT / "docker/prometheus.yaml").read_text())["scrape_configs"]
    for job in scraped:
        for target in job["static_configs"][0]["targets"]:
            assert target.split(":")[0] in services, f"prometheus scrapes {target}"
    for source in (ROOT / "grafana/provisioning").rglob("*.yaml"):
        yaml.safe_load(source.read_text())
    compose = subprocess.run(["docker", "compose", "version"], capture_output=True) if shutil.which("docker") else None
    if compose is None or compose.returncode != 0:
        print("packaging: docker compose is not installed; its own check is skipped")
        return
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "LATENT_TTS_API_KEY": "k", "GRAFANA_PASSWORD": "p"}
    subprocess.run(["docker", "compose", "-f", str(path), "config", "-q"], check=True, env=environment)


def metric_names(text):
    """The time series of a scrape, by the types of their families."""
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M):
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(kind, [""])
        names |= {name + suffix for suffix in suffixes}
    return names


def ask(url):
    """Streams a chat, since series with labels appear in a scrape only after the first count."""
    body = {"model": "embedded", "messages": [{"role": "user", "content": "What is 12 plus 30?"}], "stream": True}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.read().decode().endswith("data: [DONE]\n\n")


def check_dashboard(binary, url):
    document = json.loads((ROOT / "grafana/latent-tts.json").read_text())
    with serving(binary, "--upstream", f"{url}/v1") as gateway:
        ask(gateway)
        ask(url)
        known = metric_names(get(f"{url}/metrics")) | metric_names(get(f"{gateway}/metrics"))
    used = set()
    for panel in document["panels"]:
        for target in panel["targets"]:
            words = re.sub(r"\{.*?\}|by \([a-z_, ]+\)|\$__\w+|\[.*?\]", "", target["expr"])
            names = {word for word in re.findall(r"[a-z][a-z0-9_]{3,}", words)} - {"rate", "histogram_quantile"}
            assert names, target["expr"]
            used |= names
    assert used <= known, f"the server has no metrics {used - known}"
    positions = [tuple(panel["gridPos"].values()) for panel in document["panels"]]
    assert len(set(positions)) == len(positions), "panels lie over one another"


def lookup(values, path):
    for name in path.split(".")[2:]:
        values = values[name]
    return values


def render(text, values):
    """Renders the subset of templates used by the chart: if, values, quote, add, and toYaml with nindent."""
    block = re.compile(r"\{\{- if (\.Values[\w.]+) \}\}\n((?:(?!\{\{- if).)*?)\{\{- end \}\}\n", re.S)
    while block.search(text):
        text = block.sub(lambda m: m[2] if lookup(values, m[1]) else "", text)
    dump = lambda value: yaml.safe_dump(value, default_flow_style=False).strip()  # noqa: E731

    def indented(match):
        lines = dump(lookup(values, match[1])).splitlines()
        return "".join("\n" + " " * int(match[2]) + line for line in lines)

    text = re.sub(r"\s*\{\{- toYaml (\.Values[\w.]+) \| nindent (\d+) \}\}", indented, text)
    text = re.sub(r"\{\{ add (\.Values[\w.]+) (\d+) \}\}", lambda m: str(lookup(values, m[1]) + int(m[2])), text)
    text = re.sub(r"\{\{ (\.Values[\w.]+) \| quote \}\}", lambda m: json.dumps(str(lookup(values, m[1]))), text)
    text = re.sub(r"\{\{ (\.Values[\w.]+) \}\}", lambda m: str(lookup(values, m[1])), text)
    text = text.replace("{{ .Release.Name }}", "release")
    assert "{{" not in text, f"unknown template: {text[text.index('{{') :][:60]}"
    return yaml.safe_load(text)


def check_chart(known, url):
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["name"] == "latent-tts" and chart["appVersion"] == values["image"]["tag"]
    full = {
        **values, "extraArgs": ["--max-samples", "64"], "apiKeysSecret": "keys", "modelsClaim": "models",
        "nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
    for chosen in (values, full, {**values, "metrics": False}):
        documents = {path.stem: render(path.read_text(), chosen) for path in (CHART / "templates").iterdir()}
        pod = documents["deployment"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        given = check_flags("chart", " ".join(container["args"]), known)
        assert ("--api-keys-file" in given) == bool(chosen["apiKeysSecret"])
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
        selector = documents["service"]["spec"]["selector"]
        assert selector.items() <= documents["deployment"]["spec"]["template"]["metadata"]["labels"].items()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            get(url + container[probe]["httpGet"]["path"])
    if shutil.which("helm"):
        subprocess.run(["helm", "lint", "--strict", str(CHART)], check=True)
    else:
        print("packaging: helm is not installed; its own check is skipped")


def check_unit(binary, known):
    path = ROOT / "systemd/latent-tts.service"
    (command,) = re.findall(r"^ExecStart=(.*)$", path.read_text(), re.M)
    assert command.split()[1] == "serve"
    check_flags(path, path.read_text(), known)
    if not shutil.which("systemd-analyze"):
        print("packaging: systemd-analyze is not installed; its own check is skipped")
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / path.name
        program = str(pathlib.Path(binary).resolve())
        copy.write_text(path.read_text().replace(command.split()[0], program))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
        complaints = [line for line in done.stderr.splitlines() if path.name in line]
        assert not complaints, complaints


def main():
    binary = sys.argv[1]
    known = known_flags(binary)
    with serving(binary) as url:
        check_dockerfile(known, url)
        check_compose(known)
        check_dashboard(binary, url)
        check_chart(known, url)
        check_unit(binary, known)
    print("packaging: ok")


main()
