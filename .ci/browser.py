"""Tests the report page in Chromium over its DevTools pipe: browser.py CHROMIUM FOLDER [SCREENSHOTS].

FOLDER contains report.html and its run directories (crates/report/examples/synthetic_runs.rs). Counts on the page are compared
with counts from samples.jsonl. Screenshots are written to SCREENSHOTS, if given.
"""

import csv
import io
import itertools
import json
import pathlib
import sys
import tempfile
import time
import xml.etree.ElementTree

from colours import contrast, distance
from chromium import Browser, check, choose, complaints, picture


def right(trajectory):
    return bool(trajectory and trajectory["correct"])


def rewards_of(trajectory):
    """Process rewards; format version 1 calls them scores."""
    return trajectory.get("process_rewards", trajectory.get("scores"))


def majority(trajectories):
    """The answer with the most votes; ties go to the first answer (`max` returns the first)."""
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
    """The page of trainings: one row per training, all panels drawn, the kept model marked."""
    browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
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
    picture(browser, shots, "trainings-1280", 1280, 900, whole=True)


# Maximum empty space in pixels below the text of a figure whose neighbor is taller.
MAX_SLACK = 150
VARIABLES = ("card", "paper", "soft", "ink", "muted", "right", "wrong", "accent")


def colours(browser, theme):
    """Text has a contrast of at least 4.5; colors of correct and wrong, and of series, are distinguishable with any color vision."""
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    read = "(name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()"
    value = {name: browser.value(f"({read})({name!r})") for name in VARIABLES}
    pairs = itertools.product(("ink", "muted", "right", "wrong", "accent"), ("card", "paper", "soft"))
    low = [(a, b) for a, b in pairs if contrast(value[a], value[b]) < 4.5]
    check(f"text that is hard to read, {theme}", low, [])
    check(f"correct and wrong are distinguishable, {theme}", distance(value["right"], value["wrong"]) > 0.08, True)
    lines = "[...document.querySelectorAll('#accuracy .legend polyline')].map((e) => e.getAttribute('stroke'))"
    series = sorted(set(browser.value(lines)))
    check(f"series that are hard to see, {theme}", [c for c in series if contrast(c, value["card"]) < 3], [])
    alike = [(a, b) for a, b in itertools.combinations(series, 2) if distance(a, b) < 0.08]
    check(f"series that look alike, {theme}", alike, [])
    browser.call("Emulation.setEmulatedMedia", features=[])


def headline(browser, samples):
    """Tiles with the main numbers come first, then a summary and figures."""
    greedy = sum(right(s["greedy"]) for s in samples) / len(samples)
    check("the first tile", browser.value("document.querySelector('.tile .value').textContent"), f"{100 * greedy:.1f}%")
    check("a summary", browser.value("/^Majority voting over \\d+ trajectories answers [\\d.]+% of/.test(document.querySelector('.lead').textContent)"), True)
    order = "['.tiles', '.lead', '.figure', '#summary', '#browser'].map((s) => document.querySelector(s).getBoundingClientRect().top)"
    tops = browser.value(order)
    check("numbers, verdict, figures, runs, questions", tops == sorted(tops), True)


def exports(browser, folder):
    """The values of every figure as table, CSV, SVG and PNG equal those of the files."""
    for path in sorted(folder.glob("figures/*.csv")):
        name = path.stem
        expected = list(csv.reader(path.open()))
        found = list(csv.reader(io.StringIO(browser.value(f"csvOf(figureData.find((f) => f.name === '{name}'))"))))
        same = lambda a, b: a == b or (a and b and float(a) == float(b))
        equal = len(found) == len(expected) and all(a[:2] == b[:2] and all(map(same, a[2:], b[2:])) for a, b in zip(found[1:], expected[1:]))
        check(f"values of {name} as CSV", equal, True)
        browser.value(f"document.querySelector('#{name} .tools button').click()")
        check(f"values of {name} as a table", browser.value(f"document.querySelectorAll('#{name} .values tbody tr').length"), len(expected) - 1)
        browser.value(f"document.querySelector('#{name} .tools button').click()")
        svg = xml.etree.ElementTree.fromstring(browser.value(f"svgOf($('{name}'))"))
        check(f"panels of {name} in its SVG", len(svg.findall("{http://www.w3.org/2000/svg}svg/{http://www.w3.org/2000/svg}title")) >= 1, True)
        kind = browser.value(f"pngOf(svgOf($('{name}'))).then((blob) => [blob.type, blob.size > 5000].join())")
        check(f"{name} as PNG", kind, "image/png,true")
    check("tables are closed again", browser.value("document.querySelectorAll('.values').length"), 0)


def downloads(browser):
    """A button saves its file."""
    with tempfile.TemporaryDirectory() as folder:
        browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=folder)
        for kind, start in (("CSV", b"panel,series"), ("SVG", b"<svg"), ("PNG", b"\x89PNG")):
            browser.value(f"[...document.querySelectorAll('#coverage .tools button')].find((b) => b.textContent === '{kind}').click()")
            path, end = pathlib.Path(folder) / f"coverage.{kind.lower()}", time.monotonic() + 20
            while not path.exists() and time.monotonic() < end:
                time.sleep(0.05)
            check(f"{kind} is saved", path.exists() and path.read_bytes().startswith(start), True)


def runs_table(browser):
    """A click on a heading sorts the runs, a second click reverses the order."""
    heads = "[...document.querySelectorAll('#summary thead th')]"
    column = browser.value(f"{heads}.findIndex((th) => th.textContent === 'coverage')")
    values = f"[...document.querySelectorAll('#summary tbody tr')].map((tr) => Number(tr.cells[{column}].firstChild.textContent))"
    for order, down in (("descending", True), ("ascending", False)):
        browser.value(f"{heads}[{column}].querySelector('button').click()")
        found = browser.value(values)
        check(f"runs by coverage, {order}", found == sorted(found, reverse=down), True)


def rows(browser, sample):
    """The rows of the table of trajectories can be sorted and compared."""
    means = [sum(rewards_of(t)) / len(rewards_of(t)) for t in sample["trajectories"]]
    browser.value("document.querySelector('.trajectories [data-sort=reward]').click()")
    shown = browser.value("[...document.querySelectorAll('.rows tbody tr')].map((tr) => Number(tr.dataset.k))")
    check("rows by mean reward", [round(means[k], 4) for k in shown], [round(x, 4) for x in sorted(means, reverse=True)])
    for k in (2, 5):
        browser.value(f"document.querySelector('[aria-label=\"compare trajectory {k}\"]').click()")
    check("two are compared", browser.value("document.querySelector('.comparison h3').textContent"), "Trajectories 2, 5 compared")
    check("with all their thoughts", browser.value("document.querySelectorAll('.compare tbody tr:not(.total)').length"), len(rewards_of(sample["trajectories"][2])))
    check("and marked in the heat map", browser.value("document.querySelectorAll('.strip .frame').length"), 2)
    check("and on the map", browser.value("document.querySelectorAll('.map polyline.selected').length"), 2)
    browser.value("document.querySelector('.rows tbody tr').click()")
    check("a row shows one", browser.value("document.querySelector('.comparison h3').textContent"), f"Trajectory {shown[0]}")


def axes(browser, sample):
    """The heat map and the map have labels and legends."""
    thoughts = len(rewards_of(sample["trajectories"][0]))
    labels = browser.value("[...document.querySelectorAll('.row-labels span')].map((e) => e.textContent)")
    check("rows of the heat map", labels, ["thought 1", *map(str, range(2, thoughts + 1)), "answer"])
    rewards = [x for t in sample["trajectories"] for x in rewards_of(t)]
    ends = browser.value("[...document.querySelectorAll('.rewards .legend-bar .end')].map((e) => e.textContent)")
    check("legend of the heat map", ends[:2], [f"{min(rewards):.2f}", f"{max(rewards):.2f}"])
    check("axes of the map", browser.value("[...document.querySelectorAll('.map .axis-name')].map((e) => e.textContent).join()"), "principal component 1,principal component 2")
    check("steps of the map", browser.value("document.querySelectorAll('.map-block > svg .step').length"), len(rewards))
    check("starts and ends", browser.value("['start', 'end'].map((c) => document.querySelectorAll('.map-block > svg .' + c).length).join()"), f"{len(sample['trajectories'])},{len(sample['trajectories'])}")


def widths(browser, *sizes):
    """Nothing is wider than the window, and no row of figures has a gap."""
    for width in sizes:
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        check(f"no sideways scrolling at {width}", browser.value(f"document.documentElement.scrollWidth <= {width}"), True)
        ends = "[...document.querySelectorAll('.figures > section')].reduce((rows, s) => { const { top, right } = s.getBoundingClientRect(); rows[Math.round(top)] = Math.max(rows[Math.round(top)] || 0, Math.round(right)); return rows; }, {})"
        check(f"rows of figures end at one edge at {width}", len(set(browser.value(ends).values())), 1)


def captions(browser):
    """Long captions are folded, so that no figure has a gap below its text; a button unfolds them."""
    slack = ("[...document.querySelectorAll('.figures > section')].map((s) => Math.round("
             "s.getBoundingClientRect().bottom - s.querySelector('.plot').getBoundingClientRect().bottom))")
    for width in (1280, 1920):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        check(f"no figure is emptier than {MAX_SLACK} pixels at {width}", max(browser.value(slack)) <= MAX_SLACK, True)
        # Text beside a figure must not be too narrow.
        narrow = "[...document.querySelectorAll('.figures .words')].filter((e) => e.getBoundingClientRect().width < 250).length"
        check(f"words too narrow to be read at {width}", browser.value(narrow), 0)
    folded = "document.querySelector('#coverage .caption').classList.contains('folded')"
    check("a long caption is folded", browser.value(folded), True)
    browser.value("document.querySelector('#coverage .unfold').click()")
    check("and unfolded", browser.value(f"{folded} + document.querySelector('#coverage .unfold').textContent"), "falseless")
    browser.value("document.querySelector('#coverage .unfold').click()")


def main(chromium, folder, shots=None):
    folder, shots = pathlib.Path(folder).resolve(), pathlib.Path(shots) if shots else None
    run = folder / "dropout-0.05"
    samples = [json.loads(line) for line in (run / "samples.jsonl").open()]
    count, thoughts = len(samples[0]["trajectories"]), samples[0]["trajectories"][0]["latent_steps"]
    for figure in [*folder.glob("figures/*.svg"), *folder.glob("trainings/figures/*.svg")]:
        xml.etree.ElementTree.parse(figure)
    browser = Browser(chromium)
    try:
        browser.open_tab()
        browser.navigate((folder / "report.html").as_uri())
        check("ready", browser.value("document.documentElement.dataset.ready"), "true")
        browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        milliseconds = browser.value("Math.round(performance.getEntriesByType('navigation')[0].loadEventEnd)")
        print(f"   {(folder / 'report.html').stat().st_size / 1e6:.1f} MB, loaded in {milliseconds} ms")

        panels = "[...document.querySelectorAll('.panel svg')]"
        check("no panel without size", browser.value(f"{panels}.filter(s => s.getBoundingClientRect().height < 100).length"), 0)
        check("panels are there", browser.value(f"{panels}.length >= 7"), True)
        check("rows of the summary", browser.value("document.querySelectorAll('#summary tbody tr').length"),
              len(list(folder.glob("*/manifest.json"))))

        check("rows of the ablations", browser.value("document.querySelectorAll('#ablation tbody tr').length"),
              2 * len(list(folder.glob("*/ablation.json"))))

        headline(browser, samples)
        exports(browser, folder)
        downloads(browser)
        runs_table(browser)
        colours(browser, "light")
        colours(browser, "dark")

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
        axes(browser, samples[5])
        rows(browser, samples[5])
        browser.value("document.querySelector('.panel [data-tip]').scrollIntoView({ block: 'center' })")
        near = ("(() => { const e = document.querySelector('#coverage .panel [data-tip]'), b = e.getBoundingClientRect();"
                " e.closest('svg').dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: b.right + 8, clientY: b.top - 8})); })()")
        browser.value(near)
        check("a value when pointed near", browser.value("tip.style.display + ' ' + tip.textContent.includes('coverage')"), "block true")
        choose(browser, "run", "1")
        check("another run", browser.value(COUNT), len(samples))
        noise = "[...document.getElementById('run').options].find((option) => option.text.includes('noise')).value"
        choose(browser, "run", browser.value(noise))
        browser.value("document.querySelector('#list button[data-id=\"5\"]').click()")
        check("outcome rewards in the heat strip", browser.value("document.querySelectorAll('.strip rect').length"), count * (thoughts + 2))

        widths(browser, 1280, 1920, 390)
        captions(browser)
        for width in (1280, 1920):
            picture(browser, shots, f"report-{width}", width, 900, whole=True)
        browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(x => x < 40)"
        check("dark mode", browser.value(dark), True)
        picture(browser, shots, "report-390-dark", 390, 844, mobile=True, whole=True)

        learning_curves(browser, folder / "trainings", shots)
        check("complaints", list(complaints(browser.events)), [])
        # A deliberate request: the page must not fetch anything, and this script detects it.
        check("a request is refused", browser.value("fetch('https://example.com/').then(() => 'sent', () => 'refused')"), "refused")
        browser.value("1")
        check("and seen", bool(list(complaints(browser.events))), True)
    finally:
        browser.close()
    print("the page works")


main(*sys.argv[1:])
