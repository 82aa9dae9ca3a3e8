"""Drives the report's page in Chromium over its DevTools pipe: browser.py CHROMIUM FOLDER [SCREENSHOTS].

FOLDER holds report.html and the run directories it was made from (crates/report/examples/synthetic_runs.rs). What the page
counts is counted again here from samples.jsonl. With SCREENSHOTS, pictures for people are written there.
"""

import json
import pathlib
import sys
import xml.etree.ElementTree

from chromium import Browser, check, choose, complaints, picture


def right(trajectory):
    return bool(trajectory and trajectory["correct"])


def majority(trajectories):
    """The answer with the most votes; of equal ones the first given (`max` returns the first)."""
    votes = {}
    for trajectory in trajectories:
        if trajectory["answer"] is not None:
            votes.setdefault(trajectory["answer"], []).append(trajectory)
    return max(votes.values(), key=len)[0] if votes else None


def expected_counts(samples):
    some = lambda s: any(right(t) for t in s["trajectories"])
    every = lambda s: all(right(t) for t in s["trajectories"])
    greedy, vote = lambda s: right(s["greedy"]), lambda s: right(majority(s["trajectories"]))
    rules = {
        "all": lambda s: True,
        "rescued": lambda s: not greedy(s) and some(s),
        "gained": lambda s: not greedy(s) and vote(s),
        "lost": lambda s: greedy(s) and not vote(s),
        "missed": lambda s: not vote(s) and some(s),
        "never": lambda s: not some(s),
        "always": every,
    }
    return {name: sum(map(rule, samples)) for name, rule in rules.items()}


COUNT = "Number(document.getElementById('count').textContent.split(' ')[0])"


def learning_curves(browser, folder, shots):
    """The page of trainings: one row each, every panel drawn, the kept model marked."""
    browser.call("Emulation.setDeviceMetricsOverride", width=1300, height=900, deviceScaleFactor=1, mobile=False)
    browser.navigate((folder / "report.html").as_uri())
    trainings = list(folder.glob("*/training/log.jsonl"))
    check("trainings in the summary", browser.value("document.querySelectorAll('#summary tbody tr').length"), len(trainings))
    check("panels of learning curves", browser.value("document.querySelectorAll('.panel svg').length"), 5)
    check("settings that differ", browser.value("[...document.querySelectorAll('#differences tbody th')].map(e => e.textContent).join()"), "lr")
    kept = "[...document.querySelectorAll('.panel polygon[data-tip]')].filter(e => e.dataset.tip.includes('kept')).length"
    check("models marked as kept", browser.value(kept), len(trainings))
    browser.value("document.querySelector('.panel [data-tip]').dispatchEvent("
                  "new PointerEvent('pointermove', {bubbles: true, clientX: 9, clientY: 9}))")
    check("a step when pointed at", browser.value("tip.style.display + ' ' + tip.textContent.includes('steps')"), "block true")
    picture(browser, shots, "trainings", 1300, 900, whole=True)


def main(chromium, folder, shots=None):
    folder, shots = pathlib.Path(folder).resolve(), pathlib.Path(shots) if shots else None
    run = folder / "dropout-0.05"
    samples = [json.loads(line) for line in (run / "samples.jsonl").open()]
    count, thoughts = len(samples[0]["trajectories"]), samples[0]["trajectories"][0]["thoughts"]
    for figure in [*folder.glob("figures/*.svg"), *folder.glob("trainings/figures/*.svg")]:
        xml.etree.ElementTree.parse(figure)
    browser = Browser(chromium)
    try:
        browser.open_tab()
        browser.navigate((folder / "report.html").as_uri())
        check("ready", browser.value("document.documentElement.dataset.ready"), "true")
        milliseconds = browser.value("Math.round(performance.getEntriesByType('navigation')[0].loadEventEnd)")
        print(f"   {(folder / 'report.html').stat().st_size / 1e6:.1f} MB, loaded in {milliseconds} ms")

        panels = "[...document.querySelectorAll('.panel svg')]"
        check("no panel without size", browser.value(f"{panels}.filter(s => s.getBoundingClientRect().height < 100).length"), 0)
        check("panels are there", browser.value(f"{panels}.length >= 7"), True)
        check("rows of the summary", browser.value("document.querySelectorAll('#summary tbody tr').length"),
              len(list(folder.glob("*/manifest.json"))))

        check("rows of the ablations", browser.value("document.querySelectorAll('#ablation tbody tr').length"),
              2 * len(list(folder.glob("*/ablation.json"))))

        for name, number in expected_counts(samples).items():
            choose(browser, "filter", name)
            check(f"questions, filter {name}", browser.value(COUNT), number)
        choose(browser, "filter", "all")
        word = "question 17?"
        choose(browser, "search", word, "input")
        check("questions, search", browser.value(COUNT), sum(all(w in s["question"] for w in word.split()) for s in samples))
        choose(browser, "search", "", "input")
        choose(browser, "order", "hard")
        shares = [sum(map(right, s["trajectories"])) for s in samples]
        check("hardest first", browser.value("state.found[0].right"), min(shares))
        choose(browser, "order", "given")

        check("rows of the list at first", browser.value("document.querySelectorAll('#list button[data-id]').length"), min(150, len(samples)))
        browser.value("document.querySelector('#list .more')?.click()")
        check("rows after more", browser.value("document.querySelectorAll('#list button[data-id]').length"), min(300, len(samples)))
        browser.value("document.querySelector('#list button[data-id=\"5\"]').click()")
        check("a question is shown", browser.value("document.querySelector('#detail .question').textContent"), samples[5]["question"])
        check("text is not markup", browser.value("document.querySelectorAll('#browser b b, .question b, .words b').length"), 0)
        check("heat strip", browser.value("document.querySelectorAll('.strip rect').length"), count * (thoughts + 1))
        check("thoughts in tokens", browser.value("document.querySelectorAll('.lens tr').length"), thoughts)
        check("tokens are not markup", browser.value("document.querySelector('.lens td + td').textContent"), "<b>")
        check("map", browser.value("document.querySelectorAll('.map polyline').length"), count + 1)
        browser.value("document.querySelector('.panel [data-tip]').dispatchEvent("
                      "new PointerEvent('pointermove', {bubbles: true, clientX: 9, clientY: 9}))")
        check("a value when pointed at", browser.value("tip.style.display + ' ' + tip.textContent.includes('coverage')"), "block true")
        choose(browser, "run", "1")
        check("another run", browser.value(COUNT), len(samples))
        noise = "[...document.getElementById('run').options].find((option) => option.text.includes('noise')).value"
        choose(browser, "run", browser.value(noise))
        browser.value("document.querySelector('#list button[data-id=\"5\"]').click()")
        check("outcome rewards in the heat strip", browser.value("document.querySelectorAll('.strip rect').length"), count * (thoughts + 2))

        picture(browser, shots, "wide", 1300, 900, whole=True)
        browser.call("Emulation.setDeviceMetricsOverride", width=1700, height=900, deviceScaleFactor=1, mobile=False)
        tops = "[...document.querySelectorAll('section.figure')].map(s => Math.round(s.getBoundingClientRect().top))"
        check("figures side by side on a wide screen", browser.value(f"new Set({tops}).size < {tops}.length"), True)
        picture(browser, shots, "very-wide", 1700, 900, whole=True)
        browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        check("no sideways scrolling on a phone", browser.value("document.documentElement.scrollWidth <= 390"), True)
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(x => x < 40)"
        check("dark mode", browser.value(dark), True)
        picture(browser, shots, "phone-dark", 390, 844, mobile=True, whole=True)

        learning_curves(browser, folder / "trainings", shots)
        check("complaints", list(complaints(browser.events)), [])
        # And now one on purpose: the page may not fetch anything, and this script would have noticed.
        check("a request is refused", browser.value("fetch('https://example.com/').then(() => 'sent', () => 'refused')"), "refused")
        browser.value("1")
        check("and seen", bool(list(complaints(browser.events))), True)
    finally:
        browser.close()
    print("the page works")


main(*sys.argv[1:])
