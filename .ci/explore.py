"""Tests the server's page in Chromium: explore.py CHROMIUM BINARY RUNS [SCREENSHOTS].

Starts `BINARY serve --runs RUNS` on a free port of the loopback interface, asks questions on its page, and compares what the page
shows with `BINARY solve`. With SCREENSHOTS, pictures for people are written there.
"""

import json
import pathlib
import subprocess
import sys
import time
import urllib.request

from chromium import Browser, check, choose, complaints, picture

QUESTION = "Grace has 484 muffins. Fiona has a quarter as many muffins as Grace. How many muffins do they have together?"
GOLD, SAMPLES, SEED = "605", 24, 5
PANEL = "state.panels[0]"
# Sends a question and waits for the end; returns the page's record of events with their times.
ASK = """(async () => {
  const panels = shown(), seen = [];
  panels[0].take = (choice) => { seen.push([Object.keys(choice.latent || {})[0], performance.now()]); Panel.prototype.take.call(panels[0], choice); };
  $('form').requestSubmit();
  await new Promise((done) => { const wait = () => (state.abort ? setTimeout(wait, 20) : done()); setTimeout(wait, 50); });
  panels.forEach((panel) => panel.draw());
  return seen;
})()"""
UNNAMED = "[...document.querySelectorAll('input, select, textarea, button')].filter((e) => !(e.labels?.length || e.textContent.trim() || e.ariaLabel)).length"


def start_server(binary, runs, *more):
    # Little memory, so that sequences wait for each other and trajectories arrive over time.
    command = [binary, "serve", "--port", "0", "--runs", runs, "--memory", "8MiB", "--json", "--quiet", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, json.loads(process.stdout.readline())["url"]


def wait_for(browser, what, expression, seconds=60):
    end = time.monotonic() + seconds
    while not browser.value(expression):
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {seconds} s; the page's status: {browser.value('document.getElementById(`status`)?.textContent')}")
        time.sleep(0.05)
    print(f"ok {what}")


def set_panel(browser, panel, **settings):
    browser.value(f"state.panels[{panel}].fill({json.dumps(settings)})")


def metric(url, name):
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))


def ask(browser, binary):
    """The answer to a question equals that of `solve`; events arrive one by one."""
    browser.value(f"$('question').value = {json.dumps(QUESTION)}; $('gold').value = '{GOLD}';")
    set_panel(browser, 0, n=SAMPLES, seed=SEED)
    seen = browser.value(ASK)
    check("no failure", browser.value("$('status').className"), "")
    kinds = [kind for kind, _ in seen]
    check("one event for each trajectory", kinds.count("trajectory"), SAMPLES)
    check("then rewards", kinds.count("rewards"), SAMPLES)
    check("then the answer", kinds[-1], "seed")
    # Sequences may end in the same step; scoring takes place between the first of them and the answer.
    first = min(at for kind, at in seen if kind == "trajectory")
    check("trajectories came before the answer", first < seen[-1][1], True)
    solve = [binary, "solve", "--samples", str(SAMPLES), "--seed", str(SEED), "--show", "--json", QUESTION]
    expected = json.loads(subprocess.run(solve, capture_output=True, text=True, check=True).stdout)
    check("the answer is that of solve", browser.value(f"{PANEL}.final.answer"), expected["answer"])
    texts = [trajectory["text"] for trajectory in expected["trajectories"]]
    check("the texts are those of solve", browser.value(f"{PANEL}.trajectories.map((t) => t.text)") == texts, True)
    shown = "document.querySelector('.answer-line').firstChild.textContent"
    check("it is shown", browser.value(shown), expected["answer"])


SHOWN = "document.querySelector('.comparison h3').textContent"


def start_page(browser):
    """Before the first question: no name for the only settings, examples instead of results."""
    check("names of settings", browser.value("document.querySelectorAll('#settings legend').length"), 0)
    check("examples where results will be", browser.value("document.querySelectorAll('#results .examples button').length") > 1, True)


def figures(browser):
    thoughts = browser.value(f"{PANEL}.trajectories[0].latent_steps")
    check("bars of the vote", browser.value("document.querySelectorAll('.votes .length').length") > 0, True)
    check("heat map", browser.value("document.querySelectorAll('.strip rect').length"), SAMPLES * (thoughts + 2))
    labels = browser.value("[...document.querySelectorAll('.row-labels span')].map((e) => e.textContent)")
    check("rows of the heat map", labels, ["thought 1", *map(str, range(2, thoughts + 1)), "outcome", "answer"])
    check("map", browser.value("document.querySelectorAll('.map polyline').length"), SAMPLES)
    check("thoughts on the map", browser.value("document.querySelectorAll('.map-block > svg .step').length"), SAMPLES * thoughts)
    right = browser.value(f"{PANEL}.trajectories.filter((t) => t.correct).length")
    check("right ends", browser.value("document.querySelectorAll('.map-block > svg .end.right').length"), right)
    votes = browser.value(f"{PANEL}.trajectories.filter((t) => t.answer === {PANEL}.final.answer).length")
    check("votes for the answer", browser.value("document.querySelector('.tile .below').textContent"), f"{votes} of {SAMPLES}")
    reading = browser.value(f"{PANEL}.trajectories.find((t) => t.index === {PANEL}.final.chosen).lens.map((tokens) => tokens[0][0]).join('')")
    check("thoughts in one line", browser.value("document.querySelector('.reading').textContent"), reading)
    check("tokens of each thought", browser.value("document.querySelectorAll('.compare tbody tr:not(.total)').length"), thoughts)
    browser.value("document.querySelector('.map polyline[data-k=\"7\"]').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    check("a click on the map shows a trajectory", browser.value(SHOWN), "Trajectory 7")
    browser.value("document.querySelector('.strip rect[data-k=\"3\"]').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    check("so does one on the heat map", browser.value(SHOWN), "Trajectory 3")
    table(browser)
    check("every control has a name", browser.value(UNNAMED), 0)
    images = "[...document.querySelectorAll('svg.strip, .map-block > svg')].every((e) => e.getAttribute('aria-label'))"
    check("figures have labels", browser.value(images), True)


def table(browser):
    """The rows of the table of trajectories can be sorted and compared, also with the keyboard."""
    check("all trajectories are rows", browser.value("document.querySelectorAll('.rows tbody tr').length"), SAMPLES)
    browser.value("(() => { const e = document.querySelector('.rows [data-sort=outcome]'); e.focus(); e.click(); })()")
    rewards = browser.value(f"[...document.querySelectorAll('.rows tbody tr')].map((tr) => {PANEL}.trajectories[tr.dataset.k].outcome_reward)")
    check("rows by outcome reward", rewards == sorted(rewards, reverse=True), True)
    check("the heading keeps the focus", browser.value("document.activeElement.dataset.sort"), "outcome")
    for k in (4, 9):
        browser.value(f"document.querySelector('[aria-label=\"compare trajectory {k}\"]').click()")
    check("rows are compared", browser.value(SHOWN), "Trajectories 3, 4, 9 compared")
    check("side by side", browser.value("document.querySelectorAll('.compare thead th').length"), 4)


def maps(browser):
    """The page shows the perplexity of t-SNE; few thoughts are projected with PCA instead."""
    note = "document.querySelector('.map-block .note').textContent"
    choose(browser, "map", "tsne")
    browser.value(ASK)
    check("perplexity as used", browser.value(f"{note}.includes('t-SNE of {SAMPLES * 6} thoughts with perplexity 20,')"), True)
    set_panel(browser, 0, n=4)
    browser.value(ASK)
    check("no t-SNE of few thoughts", browser.value(f"{note}.includes('24 thoughts projected onto the first two principal components')"), True)
    choose(browser, "map", "pca")
    set_panel(browser, 0, n=SAMPLES)
    browser.value(ASK)


def links(browser, url):
    """A link reproduces the run in another tab."""
    texts = browser.value(f"{PANEL}.trajectories.map((t) => t.text)")
    link = browser.value("location.href")
    check("the link holds the seed", f"seed={SEED}" in link, True)
    browser.navigate("about:blank")
    browser.navigate(link)
    wait_for(browser, "the link asks by itself", f"typeof state === 'object' && {PANEL}?.final")
    check("and gets the same", browser.value(f"{PANEL}.trajectories.map((t) => t.text)") == texts, True)
    check("with the settings", browser.value(f"{PANEL}.settings().n + ' ' + $('gold').value"), f"{SAMPLES} {GOLD}")


def compare(browser):
    browser.value("$('compare').click()")
    check("the second settings differ from the first", browser.value("state.panels.map((p) => p.settings().sampler).join()"), "dropout,noise")
    check("both have a name", browser.value("[...document.querySelectorAll('#settings legend')].map((e) => e.textContent).join()"), "A,B")
    set_panel(browser, 1, n=8, sampler="noise", rule="majority")
    browser.value(ASK)
    check("no failure", browser.value("$('status').className"), "")
    check("two settings side by side", browser.value("document.querySelectorAll('#results section').length"), 2)
    tops = "[...document.querySelectorAll('#results section')].map((s) => s.getBoundingClientRect().top)"
    check("at one height", len(set(browser.value(tops))), 1)
    check("the second's own settings", browser.value("state.panels[1].trajectories.length + state.panels[1].final.rule"), "8majority")
    check("both are in the link", browser.value("location.hash.includes('b_sampler=noise') && location.hash.includes('&sampler=dropout')"), True)


def keyboard(browser, url):
    """Ctrl+Enter sends, Escape stops, and the server frees the sequences."""
    browser.value("if ($('compare').checked) $('compare').click();")
    set_panel(browser, 0, n=512)
    browser.value("$('question').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, modifiers=2)
    wait_for(browser, "Ctrl+Enter asks", "state.abort !== null")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Escape", code="Escape", windowsVirtualKeyCode=27)
    wait_for(browser, "Escape stops", "$('status').textContent === 'stopped'")
    end = time.monotonic() + 60
    while metric(url, "num_rows_running") + metric(url, "num_rows_waiting") > 0:
        if time.monotonic() > end:
            sys.exit("rows were left behind")
        time.sleep(0.05)
    print("ok no row is left behind")


def runs(browser, url, folder):
    """Run directories are listed, filtered, and opened as reports."""
    expected = json.loads(urllib.request.urlopen(url + "/runs").read())
    check("runs that are listed", browser.value("document.querySelectorAll('#runs-list li').length"), len(expected))
    word = "dropout-0.05"
    choose(browser, "runs-search", word, "input")
    matching = sum(word in entry["name"] for entry in expected)
    check("runs, search", browser.value("document.querySelectorAll('#runs-list li').length"), matching)
    browser.value("document.querySelector('#runs-list a').click()")
    wait_for(browser, "the run's page", "document.querySelectorAll('#summary tbody tr').length === 1 && document.documentElement.dataset.ready === 'true'")
    questions = sum(1 for _ in (folder / "dropout-0.05" / "samples.jsonl").open())
    check("its questions", browser.value("$('count').textContent"), f"{questions} of {questions} questions")
    check("its figures", browser.value("document.querySelectorAll('.panel svg').length") > 3, True)


def looks(browser, url, link, shots):
    browser.navigate("about:blank")
    browser.navigate(link)
    wait_for(browser, "the answer", f"typeof state === 'object' && {PANEL}?.final && !state.abort")
    time.sleep(0.2)
    for width in (1280, 1920):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        check(f"no sideways scrolling at {width}", browser.value(f"document.documentElement.scrollWidth <= {width}"), True)
        picture(browser, shots, f"compare-{width}", width, 900, whole=True)
    phone(browser, shots)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(x => x < 40)"
    check("dark mode", browser.value(dark), True)
    picture(browser, shots, "explore-390-dark", 390, 844, mobile=True, whole=True)
    picture(browser, shots, "explore-1280-dark", 1280, 900, whole=True)


def phone(browser, shots):
    """The answer is scrolled into view, and nothing is wider than the screen."""
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    browser.value("if ($('compare').checked) $('compare').click(); scrollTo(0, 0);")
    browser.value(ASK)
    wait_for(browser, "the answer comes into view", "(() => { const r = document.querySelector('.answer-line').getBoundingClientRect(); return r.top > 0 && r.bottom < innerHeight; })()", 5)
    check("no sideways scrolling on a phone", browser.value("document.documentElement.scrollWidth <= 390"), True)
    picture(browser, shots, "explore-390", 390, 844, mobile=True, whole=True)
    for width in (1280, 1920):
        picture(browser, shots, f"explore-{width}", width, 900, whole=True)


def api_key(browser, binary, folder, shots):
    """With an API key the page asks for it, and opens runs within the page, because links contain no key."""
    server, url = start_server(binary, str(folder), "--api-key", "secret")
    browser.events = []
    try:
        browser.navigate(url)
        wait_for(browser, "a key is asked for", "!$('key-field').hidden && $('model').textContent.includes('API key')")
        refusals = [text for text in complaints(browser.events, (url + "/", "data:", "about:")) if "401" not in text]
        check("complaints beside the refusal", refusals, [])
        browser.events = []
        choose(browser, "key", "secret")
        wait_for(browser, "the key is taken", "document.documentElement.dataset.ready === 'true'")
        set_panel(browser, 0, n=4)
        browser.value(ASK)
        check("an answer", browser.value(f"{PANEL}.trajectories.length"), 4)
        check("no key in the link", browser.value("location.href.includes('secret')"), False)
        browser.value("document.querySelector('#runs-list a').click()")
        wait_for(browser, "a run is opened", "$('status').textContent.includes('is open below')")
        picture(browser, shots, "explore-key", 1280, 900)
        check("complaints", list(complaints(browser.events, (url + "/", "data:", "about:"))), [])
    finally:
        server.terminate()
    server.wait(60)


def main(chromium, binary, folder, shots=None):
    folder, shots = pathlib.Path(folder).resolve(), pathlib.Path(shots) if shots else None
    server, url = start_server(binary, str(folder))
    browser = Browser(chromium)
    try:
        browser.open_tab()
        browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        browser.navigate(url)
        wait_for(browser, "the page is ready", "document.documentElement.dataset.ready === 'true'")
        start_page(browser)
        ask(browser, binary)
        figures(browser)
        maps(browser)
        links(browser, url)
        compare(browser)
        link = browser.value("location.href")
        keyboard(browser, url)
        runs(browser, url, folder)
        looks(browser, url, link, shots)
        allowed = (url + "/", "data:", "about:")
        check("complaints", list(complaints(browser.events, allowed)), [])
        browser.call("Emulation.setEmulatedMedia", features=[])
        browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        api_key(browser, binary, folder, shots)
        check("a request to another host is refused", browser.value("fetch('https://example.com/').then(() => 'sent', () => 'refused')"), "refused")
    finally:
        browser.close()
        server.terminate()
    check("the server ends by itself", server.wait(60), 0)
    print("the server's page works")


main(*sys.argv[1:])
