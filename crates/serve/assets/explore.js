// The page at `/`, loaded after tooltips.js and question.js of the report. It only sends requests to its own server.

/** The settings of a panel, by their names in a link. */
const FIELDS = ["n", "thoughts", "sampler", "strength", "rule", "seed"];
const SAMPLERS = [["dropout", "dropout"], ["noise", "Gaussian noise"], ["tokens", "sampled tokens"], ["none", "none"]];
const EXAMPLES = [
  "Tom has 3 boxes with 4 pens in each. He gives away 5 pens. How many pens does Tom have?",
  "Grace has 484 muffins. Fiona has a quarter as many muffins as Grace. How many muffins do they have together?",
  "A train has 6 cars with 20 seats in each. 35 seats are empty. How many seats are taken?",
];
/** The number of tokens to request per thought. */
const LENS = 5;

const state = { model: null, panels: [], abort: null };

function headers() {
  const key = $("key").value;
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

function tell(text, failed = false) {
  $("status").textContent = text;
  $("status").classList.toggle("failed", failed);
}

/** The error message of a response whose status is not 200. */
async function problem(response) {
  const body = await response.json().catch(() => ({}));
  const error = body.error || {};
  return `${response.status}${error.param ? `, ${error.param}` : ""}: ${error.message || response.statusText}`;
}

/** Yields the data of server-sent events as they arrive. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    for (let end = buffer.indexOf("\n\n"); end >= 0; end = buffer.indexOf("\n\n")) {
      const event = buffer.slice(0, end);
      buffer = buffer.slice(end + 2);
      if (event.startsWith("data: ")) yield event.slice(6);
    }
  }
}

/** One set of settings and its results. */
class Panel {
  constructor(name) {
    this.name = name;
    this.inputs = {};
    this.fieldset = this.makeFieldset();
    this.section = make("section", { class: "with-blocks", "aria-label": `results of ${name}` });
    this.view = { sort: "k", descending: false, selected: [], redraw: () => this.draw() };
    this.clear({}, "");
  }

  makeFieldset() {
    const { latent } = state.model;
    const select = (all) => {
      const element = make("select");
      element.append(...all.map(([value, label]) => make("option", { value }, label)));
      return element;
    };
    const number = (attributes) => make("input", { type: "number", required: "", ...attributes });
    this.inputs = {
      n: number({ min: 1, max: latent.max_samples, value: Math.min(16, latent.max_samples) }),
      thoughts: make("input", { size: 5, required: "", value: latent.latent_length }),
      sampler: select(SAMPLERS),
      strength: number({ min: 0, step: "any" }),
      rule: select(latent.rules.map((rule) => [rule, rule])),
      seed: number({ min: 0, max: Number.MAX_SAFE_INTEGER, value: 0 }),
    };
    const labels = { n: "trajectories", thoughts: "thoughts", sampler: "sampler", strength: "strength", rule: "rule", seed: "seed" };
    this.inputs.sampler.value = latent.sampler;
    this.inputs.rule.value = latent.rule;
    this.inputs.sampler.addEventListener("change", () => this.adjustStrength());
    this.adjustStrength();
    const fields = make("div", { class: "fields" });
    fields.append(...FIELDS.map((field) => make("label", {}, `${labels[field]} `, this.inputs[field])));
    return make("fieldset", { "aria-label": `settings ${this.name}` }, fields);
  }

  /** Resets the strength to the sampler's default: a probability, a standard deviation or a temperature. */
  adjustStrength() {
    const { latent } = state.model;
    const { sampler, strength } = this.inputs;
    strength.disabled = sampler.value === "none";
    strength.value = { dropout: latent.dropout_p, noise: latent.noise_std, tokens: 1, none: 0 }[sampler.value];
  }

  settings() {
    return Object.fromEntries(FIELDS.map((field) => [field, this.inputs[field].value]));
  }

  /** Shows the name of the panel if there are two. */
  setNamed(named) {
    this.fieldset.querySelector("legend")?.remove();
    if (named) this.fieldset.prepend(make("legend", {}, this.name));
    this.named = named;
  }

  fill(settings) {
    for (const field of FIELDS) {
      if (settings[field] === undefined) continue;
      this.inputs[field].value = settings[field];
      if (field === "sampler") this.adjustStrength();
    }
  }

  /** The body of the request. */
  body(question, gold, map) {
    const { n, thoughts, sampler, strength, rule, seed } = this.settings();
    const latent = { samples: Number(n), latent_length: thoughts, sampler, rule, seed: Number(seed), lens: LENS, map, return: ["votes", "rewards", "trajectories"] };
    if (sampler === "dropout") latent.dropout_p = Number(strength);
    if (sampler === "noise") latent.noise_std = Number(strength);
    if (gold) latent.gold = gold;
    const body = { model: state.model.id, prompt: question, stream: true, latent };
    if (sampler === "tokens") body.temperature = Number(strength);
    return body;
  }

  clear(settings, gold) {
    this.trajectories = [];
    this.asked = settings;
    this.gold = gold;
    this.leader = null;
    this.final = null;
    this.seconds = null;
    this.view.selected = [];
    /** Trajectory events in order of arrival, for tests. */
    this.arrived = 0;
  }

  async ask(question, gold, map, signal) {
    this.clear(this.settings(), gold);
    this.draw();
    const start = performance.now();
    const body = JSON.stringify(this.body(question, gold, map));
    const response = await fetch("/v1/completions", { method: "POST", headers: headers(), body, signal });
    if (!response.ok) throw new Error(await problem(response));
    for await (const data of eventsOf(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const [choice] = chunk.choices;
      if (choice) this.take(choice);
    }
    this.seconds = (performance.now() - start) / 1000;
    this.draw();
  }

  take({ latent, finish_reason }) {
    if (!latent) return;
    if (latent.trajectory) {
      this.arrived += 1;
      this.leader = latent.leader;
      this.trajectories.push(latent.trajectory);
      this.trajectories.sort((a, b) => a.index - b.index);
    } else if (latent.rewards && !finish_reason) {
      const of = this.trajectories.find((t) => t.index === latent.rewards.index);
      if (of) Object.assign(of, latent.rewards);
    }
    if (finish_reason) {
      this.final = latent;
      this.trajectories = latent.trajectories;
    }
    this.later();
  }

  /** Redraws once in the next frame, for all events before it. */
  later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  /** The data received so far, in the format of question.js. */
  question() {
    const [answers, indices, texts, textIndices] = [[], new Map(), [], new Map()];
    const given = this.trajectories.map(({ answer, correct, text }) => {
      if (!indices.has(answer)) indices.set(answer, answers.push([answer, correct ?? (this.gold ? false : null), text]) - 1);
      return indices.get(answer);
    });
    const said = this.trajectories.map(({ text }) => {
      if (!textIndices.has(text)) textIndices.set(text, texts.push(text) - 1);
      return textIndices.get(text);
    });
    const has = (field) => this.trajectories.some((t) => t[field] !== null && t[field] !== undefined);
    const of = (field) => (has(field) ? this.trajectories.map((t) => t[field] ?? null) : null);
    const thousandths = (tokens) => tokens.map(([text, share]) => [text, Math.round(1000 * share)]);
    return {
      answers, given, texts, said,
      names: this.trajectories.map((t) => t.index),
      lengths: this.trajectories.map((t) => t.latent_steps),
      rewards: of("process_rewards"),
      outcomes: of("outcome_reward"),
      paths: this.final && this.final.map,
      mapMethod: this.final && this.final.map_method,
      greedyPath: [],
      tokens: has("lens") ? this.trajectories.map((t) => (t.lens || []).map(thousandths)) : null,
    };
  }

  /** The displayed trajectory: the first selected one, the one selected by the rule, or the first to arrive. */
  shownNumber() {
    const chosen = this.final && this.final.chosen;
    return this.view.selected[0] ?? chosen ?? (this.trajectories.length ? this.trajectories[0].index : null);
  }

  draw() {
    const q = this.question();
    const focused = this.focusKey(document.activeElement);
    const top = this.section.querySelector(".tall")?.scrollTop;
    const parts = [this.heading(), ...this.progress(q)];
    if (q.given.length) parts.push(this.figures(q));
    else if (this.asked.n !== undefined) parts.push(make("div", { class: "waiting", role: "img", "aria-label": "waiting for the first trajectory" }));
    this.section.replaceChildren(...parts);
    const table = this.section.querySelector(".tall");
    if (table && top) table.scrollTop = top;
    if (focused) this.section.querySelector(focused)?.focus();
  }

  /** A selector that finds a focused control again after a redraw. */
  focusKey(element) {
    if (!element || !this.section.contains(element)) return null;
    if (element.dataset.sort) return `[data-sort="${element.dataset.sort}"]`;
    const label = element.getAttribute("aria-label");
    return label ? `[aria-label="${label}"]` : null;
  }

  heading() {
    const { n, thoughts, sampler, strength, rule, seed } = this.asked;
    const how = sampler === "none" ? "unperturbed" : `${sampler} ${strength}`;
    const settings = `${n} × ${how}, ${thoughts} thoughts, ${rule}, seed ${seed}`;
    return make("h2", {}, ...(this.named ? [make("b", {}, `${this.name} `)] : []), settings);
  }

  /** The answer, or the current leader of the vote, with its numbers. */
  progress(q) {
    if (this.asked.n === undefined) return [];
    const { final } = this;
    const answer = final ? final.answer : this.leader;
    const line = make("p", { class: "answer-line" }, answer ?? (final ? "no answer" : "…"));
    const graded = final && final.correct !== undefined && final.correct !== null;
    if (graded) line.classList.add(final.correct ? "right" : "wrong");
    const verdict = graded ? (final.correct ? "✓ correct, " : "✗ incorrect, ") : "";
    const note = final ? `${verdict}decided by ${final.rule}${final.stopped ? ", stopped early" : ""}` : `leading after ${this.trajectories.length} of ${this.asked.n}`;
    line.append(make("small", {}, note));
    const parts = [line];
    if (!final) parts.push(make("progress", { max: this.asked.n, value: this.trajectories.length, "aria-label": "finished trajectories" }));
    parts.push(...this.readingLine(q), ...this.notes());
    if (final) parts.push(this.tiles(q));
    return parts;
  }

  /** The tokens of the displayed trajectory's thoughts in one line. */
  readingLine(q) {
    const k = q.names.indexOf(this.shownNumber());
    const tokens = q.tokens && q.tokens[k];
    if (!tokens || !tokens.some((thought) => thought.length)) return [];
    return [make("p", { class: "thinks" }, make("span", { class: "label" }, `thoughts of trajectory ${q.names[k]} as tokens`), reading(tokens))];
  }

  /** The server's notes on the question or the reply. */
  notes() {
    const notes = (this.final && this.final.notes) || [];
    return notes.length ? [make("ul", { class: "notes" }, ...notes.map((note) => make("li", {}, note)))] : [];
  }

  tiles(q) {
    const same = q.given.filter((index) => q.answers[index][0] === this.final.answer).length;
    const box = make("div", { class: "tiles" });
    box.append(tile("votes for the answer", percentOf(same / Math.max(1, q.given.length)), `${same} of ${q.given.length}`));
    box.append(tile("distinct answers", `${q.answers.length}`));
    if (this.gold) {
      const right = q.given.filter((index) => isRight(q.answers[index])).length;
      box.append(tile("correct trajectories", percentOf(right / Math.max(1, q.given.length)), `${right} of ${q.given.length}`));
    }
    const rewards = q.outcomes || (q.rewards && q.rewards.map(mean));
    if (rewards) box.append(tile(q.outcomes ? "highest outcome reward" : "highest mean reward", fixed(Math.max(...rewards.filter(Number.isFinite)), 2)));
    if (this.seconds !== null) box.append(tile("time", `${this.seconds.toFixed(this.seconds < 10 ? 2 : 0)} s`));
    return box;
  }

  figures(q) {
    const view = { ...this.view, selected: this.view.selected.length ? this.view.selected : [this.shownNumber()] };
    const box = make("div", { class: "blocks" });
    const left = make("div", { class: "stack" }, votes(q));
    const right = make("div", { class: "stack" });
    box.append(left, right);
    if (q.rewards) right.append(selectOnClick(strip(q, view, Boolean(this.final)), q, this.view));
    else if (this.final) right.append(block("rewards", "Rewards", make("p", { class: "note" }, "The server has no reward model: start it with --reward-model to score thoughts.")));
    if (q.paths && q.paths.some((path) => path.length)) left.append(selectOnClick(mapBlock(q, view), q, this.view));
    const several = view.selected.length > 1;
    (several ? box : right).append(...comparison(q, view));
    box.append(...trajectories(q, this.view));
    return box;
  }
}

/** The question and all settings as a URL fragment (after `#`), which browsers do not send. */
function link() {
  const parameters = new URLSearchParams({ q: $("question").value, map: $("map").value });
  if ($("gold").value) parameters.set("gold", $("gold").value);
  shown().forEach((panel, i) => {
    for (const [field, value] of Object.entries(panel.settings())) parameters.set(i ? `b_${field}` : field, value);
  });
  return `#${parameters}`;
}

/** Fills the form from a link; returns whether it contains a question. */
function follow(hash) {
  const parameters = new URLSearchParams(hash.slice(1));
  if (!parameters.has("q")) return false;
  $("question").value = parameters.get("q");
  $("gold").value = parameters.get("gold") || "";
  $("map").value = parameters.get("map") === "tsne" ? "tsne" : "pca";
  const settings = (prefix) => Object.fromEntries(FIELDS.filter((f) => parameters.has(prefix + f)).map((f) => [f, parameters.get(prefix + f)]));
  $("compare").checked = FIELDS.some((field) => parameters.has(`b_${field}`));
  state.panels[0].fill(settings(""));
  state.panels[1].fill(settings("b_"));
  arrange();
  return true;
}

/** Default settings of the second panel: those of the first, with another sampler. */
function fillSecond() {
  const settings = state.panels[0].settings();
  const sampler = settings.sampler === "dropout" ? "noise" : "dropout";
  state.panels[1].fill({ ...settings, sampler, strength: undefined });
}

const shown = () => ($("compare").checked ? state.panels : state.panels.slice(0, 1));

/** Lays out the visible panels: one or two. */
function arrange() {
  const two = shown().length > 1;
  state.panels.forEach((panel) => panel.setNamed(two));
  $("settings").replaceChildren(...shown().map((panel) => panel.fieldset));
  $("settings").classList.toggle("two-settings", two);
  const asked = shown().filter((panel) => panel.asked.n !== undefined);
  document.querySelector("main").classList.toggle("two", two);
  document.querySelector("main").classList.toggle("idle", !two && !asked.length);
  asked.forEach((panel) => panel.draw());
  $("results").replaceChildren(...(asked.length ? asked.map((panel) => panel.section) : [emptyState()]));
}

/** The placeholder before the first results. */
function emptyState() {
  const example = (text) => {
    const button = make("button", { type: "button" }, text);
    button.addEventListener("click", () => { $("question").value = text; ask(); });
    return button;
  };
  return make("section", { class: "empty" }, make("p", {}, "Ask a question. Its trajectories appear here one by one, with their votes, rewards and thoughts."),
    make("div", { class: "examples" }, ...EXAMPLES.map(example)));
}

/** Scrolls to the results if they are out of view, as on a phone. */
function revealResults() {
  const { top, bottom } = $("results").getBoundingClientRect();
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (top > innerHeight * 0.6 || bottom < 100) $("results").scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
}

async function ask() {
  if (!$("form").reportValidity()) return;
  if (state.abort) state.abort.abort();
  const abort = new AbortController();
  state.abort = abort;
  history.replaceState(null, "", link());
  $("stop").disabled = false;
  tell("waiting for the first trajectory…");
  const [question, gold, map] = [$("question").value, $("gold").value.trim(), $("map").value];
  const running = shown().map((panel) => panel.ask(question, gold, map, abort.signal));
  arrange();
  revealResults();
  const ends = await Promise.allSettled(running);
  if (state.abort !== abort) return;
  state.abort = null;
  $("stop").disabled = true;
  const failed = ends.find((end) => end.status === "rejected");
  if (abort.signal.aborted) tell("stopped");
  else if (failed) tell(failed.reason.message, true);
  else tell(shown().map((panel) => `${panel.named ? panel.name : "answer"}: ${panel.final?.answer ?? "no answer"}`).join(", "));
}

function stop() {
  if (state.abort) state.abort.abort();
}

async function share() {
  const url = new URL(link(), location.href).href;
  history.replaceState(null, "", url);
  try {
    await navigator.clipboard.writeText(url);
    tell("link copied");
  } catch {
    tell("the link is in the address bar");
  }
}

/** Lists recorded runs. With an API key they are not links, because links send no key. */
async function listRuns() {
  const response = await fetch("/runs", { headers: headers() });
  if (!response.ok) return;
  const runs = await response.json();
  $("runs").hidden = false;
  $("runs-controls").hidden = !runs.length;
  if (!runs.length) {
    $("runs-list").replaceChildren(make("li", { class: "note" }, "No recorded runs. Start the server with --runs DIR to list them here."));
    return;
  }
  const update = () => {
    const words = $("runs-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = runs.filter(({ name, kind }) => words.every((word) => `${name} ${kind}`.toLowerCase().includes(word)));
    $("runs-count").textContent = `${found.length} of ${runs.length}`;
    $("runs-list").replaceChildren(...found.map(runEntry));
  };
  $("runs-search").oninput = update;
  update();
}

function runEntry({ name, kind, modified }) {
  const href = `/runs/${name.split("/").map(encodeURIComponent).join("/")}`;
  const anchor = make("a", { href }, name);
  anchor.addEventListener("click", (event) => {
    if (!$("key").value) return;
    event.preventDefault();
    openRun(href, name);
  });
  const when = new Date(1000 * modified).toISOString().slice(0, 16).replace("T", " ");
  return make("li", {}, anchor, make("span", {}, kind), make("span", {}, when));
}

async function openRun(href, name) {
  tell(`opening ${name}…`);
  const response = await fetch(href, { headers: headers() });
  if (!response.ok) return tell(await problem(response), true);
  $("runs").querySelector("iframe")?.remove();
  const frame = make("iframe", { title: `run ${name}`, sandbox: "allow-scripts allow-downloads", srcdoc: await response.text() });
  frame.addEventListener("load", () => { tell(`${name} is open below the list of runs`); frame.scrollIntoView(); });
  $("runs").append(frame);
}

async function loadModel() {
  const response = await fetch("/v1/models", { headers: headers() });
  $("key-field").hidden = response.status !== 401 && !$("key").value;
  if (!response.ok) {
    $("model").textContent = response.status === 401 ? "This server requires an API key." : await problem(response);
    return false;
  }
  [state.model] = (await response.json()).data;
  const { id, family, reward_model, latent } = state.model;
  const scored = reward_model ? "with a reward model" : "without a reward model";
  $("model").replaceChildren(make("b", {}, id), ` ${family} reasoner, ${latent.latent_length} thoughts, ${scored}`);
  return true;
}

async function begin() {
  if (!(await loadModel())) return;
  state.panels = [new Panel("A"), new Panel("B")];
  arrange();
  const linked = follow(location.hash);
  if (!linked && !$("question").value) [$("question").value] = EXAMPLES;
  await listRuns();
  document.documentElement.dataset.ready = "true";
  if (linked) await ask();
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); if (state.model) ask(); });
$("stop").addEventListener("click", stop);
$("share").addEventListener("click", share);
$("compare").addEventListener("change", () => {
  if ($("compare").checked && state.panels[1].asked.n === undefined) fillSecond();
  arrange();
});
$("key").addEventListener("change", begin);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
  if (event.key === "Escape") stop();
});
window.addEventListener("hashchange", () => { if (state.model && follow(location.hash)) ask(); });
begin();
