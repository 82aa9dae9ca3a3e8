// The page at `/`, after tooltips.js and question.js of the report: asks the server this page came from, and nobody else.

/** Settings of a panel, by the names that they have in a link. */
const FIELDS = ["n", "thoughts", "sampler", "strength", "rule", "seed"];
const SAMPLERS = [["dropout", "dropout"], ["noise", "Gaussian noise"], ["tokens", "sampled tokens"], ["none", "none"]];
const EXAMPLE = "Tom has 3 boxes with 4 pens in each. He gives away 5 pens. How many pens does Tom have?";
/** Tokens of each thought that are asked for. */
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

/** What is wrong, from a response that is not 200. */
async function problem(response) {
  const body = await response.json().catch(() => ({}));
  const error = body.error || {};
  return `${response.status}${error.param ? `, ${error.param}` : ""}: ${error.message || response.statusText}`;
}

/** The data of server-sent events, one by one as they arrive. */
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

/** One set of settings with what came of it. */
class Panel {
  constructor(name) {
    this.name = name;
    this.inputs = {};
    this.fieldset = this.makeFieldset();
    this.section = make("section", { "aria-label": `results of ${name}` });
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
      thoughts: make("input", { size: 5, required: "", value: latent.thoughts }),
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
    const controls = make("div", { class: "controls" });
    controls.append(...FIELDS.map((field) => make("label", {}, `${labels[field]} `, this.inputs[field])));
    return make("fieldset", {}, make("legend", {}, this.name), controls);
  }

  /** The strength is another number for each sampler: a share, a deviation, a temperature. */
  adjustStrength() {
    const { latent } = state.model;
    const { sampler, strength } = this.inputs;
    strength.disabled = sampler.value === "none";
    strength.value = { dropout: latent.p, noise: latent.sigma, tokens: 1, none: 0 }[sampler.value];
  }

  settings() {
    return Object.fromEntries(FIELDS.map((field) => [field, this.inputs[field].value]));
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
    const latent = { samples: Number(n), thoughts, sampler, rule, seed: Number(seed), lens: LENS, map, return: ["votes", "rewards", "trajectories"] };
    if (sampler === "dropout") latent.p = Number(strength);
    if (sampler === "noise") latent.sigma = Number(strength);
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
    this.picked = null;
    /** Events of trajectories as they arrived, for tests. */
    this.arrived = 0;
  }

  async ask(question, gold, map, signal) {
    this.clear(this.settings(), gold);
    this.draw();
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
    this.draw();
  }

  take({ latent, finish_reason }) {
    if (!latent) return;
    if (latent.trajectory) {
      this.arrived += 1;
      this.leader = latent.leader;
      this.trajectories.push(latent.trajectory);
      this.trajectories.sort((a, b) => a.number - b.number);
    } else if (latent.rewards && !finish_reason) {
      const of = this.trajectories.find((t) => t.number === latent.rewards.number);
      if (of) Object.assign(of, latent.rewards);
    }
    if (finish_reason) {
      this.final = latent;
      this.trajectories = latent.trajectories;
    }
    this.later();
  }

  /** Draws with the next frame, however many events come before it. */
  later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  /** What arrived so far, as question.js draws it. */
  question() {
    const [answers, places, texts, textPlaces] = [[], new Map(), [], new Map()];
    const given = this.trajectories.map(({ answer, correct, text }) => {
      if (!places.has(answer)) places.set(answer, answers.push([answer, correct ?? (this.gold ? false : null), text]) - 1);
      return places.get(answer);
    });
    const said = this.trajectories.map(({ text }) => {
      if (!textPlaces.has(text)) textPlaces.set(text, texts.push(text) - 1);
      return textPlaces.get(text);
    });
    const has = (field) => this.trajectories.some((t) => t[field] !== null && t[field] !== undefined);
    const of = (field) => (has(field) ? this.trajectories.map((t) => t[field] ?? null) : null);
    const shown = this.trajectories.find((t) => t.number === this.shownNumber());
    return {
      answers, given, texts, said,
      names: this.trajectories.map((t) => t.number),
      lengths: this.trajectories.map((t) => t.thoughts),
      rewards: of("process_rewards"),
      outcomes: of("outcome_reward"),
      paths: this.final && this.final.map,
      greedyPath: [],
      lens: shown ? (shown.lens || []).map((tokens) => tokens.map(([text, share]) => [text, Math.round(1000 * share)])) : [],
      lensNote: shown ? `trajectory ${shown.number}` : "",
    };
  }

  /** The trajectory whose tokens are shown: the picked one, the chosen one, or the first. */
  shownNumber() {
    const chosen = this.final && this.final.chosen;
    return this.picked ?? chosen ?? (this.trajectories.length ? this.trajectories[0].number : null);
  }

  draw() {
    const q = this.question();
    const focused = document.activeElement && document.activeElement.classList.contains("pick") && this.section.contains(document.activeElement);
    const open = this.section.querySelector("details.trajectories")?.open;
    const parts = [this.heading(), this.progress()];
    if (q.given.length) parts.push(this.figures(q));
    this.section.replaceChildren(...parts);
    if (open && this.section.querySelector("details.trajectories")) this.section.querySelector("details.trajectories").open = true;
    if (focused) this.section.querySelector(".pick")?.focus();
  }

  heading() {
    const { n, thoughts, sampler, strength, rule, seed } = this.asked;
    const how = sampler === "none" ? "unperturbed" : `${sampler} ${strength}`;
    const title = n === undefined ? this.name : `${this.name}: ${n} x ${how}, ${thoughts} thoughts, ${rule}, seed ${seed}`;
    return make("h2", {}, title);
  }

  /** The answer, or the leader of the vote so far. */
  progress() {
    const box = make("div");
    if (this.asked.n === undefined) return box;
    const { final } = this;
    const answer = final ? final.answer : this.leader;
    const line = make("p", { class: "answer-line" }, answer ?? (final ? "no answer" : "…"));
    if (final && final.correct !== undefined) line.classList.add(final.correct ? "right" : "wrong");
    const note = final
      ? ` ${final.correct === undefined ? "" : final.correct ? "✓ right; " : "✗ wrong; "}decided by ${final.rule}${final.stopped ? ", stopped early" : ""}`
      : ` ahead after ${this.trajectories.length} of ${this.asked.n}`;
    line.append(make("small", {}, note));
    const bar = make("progress", { max: this.asked.n, value: final ? this.asked.n : this.trajectories.length, "aria-label": "trajectories that have their answers" });
    box.append(line, bar);
    return box;
  }

  figures(q) {
    const box = make("div", { class: "figures" });
    const add = (...children) => { if (children.length) box.append(make("div", {}, ...children)); };
    add(votes(q), ...trajectories(q));
    if (q.rewards) {
      const { title, svg, note } = strip(q, Boolean(this.final));
      this.pickable(svg);
      add(make("h3", {}, title), svg, make("p", { class: "note" }, note));
    } else if (this.final) {
      add(make("p", { class: "note" }, "No rewards: the server has no reward model."));
    }
    if (q.paths && q.paths.some((path) => path.length)) {
      const svg = map(q);
      this.pickable(svg);
      const shown = q.names.indexOf(this.shownNumber());
      svg.querySelector(`polyline[data-k="${shown}"]`)?.classList.add("picked");
      const signs = this.gold ? "diamond right, cross wrong" : "a dot, as no right answer is given";
      const note = `All thoughts of all trajectories in the plane, the projection of this question alone; the sign is at the last thought: ${signs}.`;
      add(make("h3", {}, "Map of the thoughts"), svg, make("p", { class: "note" }, note));
    }
    if (q.lens.length) add(this.picker(q), ...lens(q));
    return box;
  }

  /** A click on something that belongs to a trajectory shows its tokens. */
  pickable(svg) {
    svg.addEventListener("click", (event) => {
      const target = event.target.closest("[data-k]");
      if (target) this.pick(this.trajectories[Number(target.dataset.k)].number);
    });
  }

  pick(number) {
    this.picked = number;
    this.draw();
  }

  picker(q) {
    const select = make("select", { class: "pick" });
    q.names.forEach((name, k) => select.append(make("option", { value: name }, `${name}: ${signed(q.answers[q.given[k]])}`)));
    select.value = this.shownNumber();
    select.addEventListener("change", () => this.pick(Number(select.value)));
    return make("div", { class: "controls" }, make("label", {}, "trajectory ", select));
  }
}

/** The question and all settings, as the part of the link after `#`, which stays with the browser. */
function link() {
  const parameters = new URLSearchParams({ q: $("question").value, map: $("map").value });
  if ($("gold").value) parameters.set("gold", $("gold").value);
  shown().forEach((panel, i) => {
    for (const [field, value] of Object.entries(panel.settings())) parameters.set(i ? `b_${field}` : field, value);
  });
  return `#${parameters}`;
}

/** Fills the form from a link; true where it has a question. */
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

const shown = () => ($("compare").checked ? state.panels : state.panels.slice(0, 1));

/** One panel or two. */
function arrange() {
  $("settings").replaceChildren(...shown().map((panel) => panel.fieldset));
  const asked = shown().filter((panel) => panel.asked.n !== undefined);
  $("results").replaceChildren(...asked.map((panel) => panel.section));
  $("results").classList.toggle("two", asked.length > 1);
}

async function ask() {
  if (!$("form").reportValidity()) return;
  if (state.abort) state.abort.abort();
  const abort = new AbortController();
  state.abort = abort;
  history.replaceState(null, "", link());
  $("stop").disabled = false;
  tell("asking…");
  const [question, gold, map] = [$("question").value, $("gold").value.trim(), $("map").value];
  const running = shown().map((panel) => panel.ask(question, gold, map, abort.signal));
  arrange();
  const ends = await Promise.allSettled(running);
  if (state.abort !== abort) return;
  state.abort = null;
  $("stop").disabled = true;
  const failed = ends.find((end) => end.status === "rejected");
  if (abort.signal.aborted) tell("stopped");
  else if (failed) tell(failed.reason.message, true);
  else tell(shown().map((panel) => `${panel.name}: ${panel.final?.answer ?? "no answer"}`).join(", "));
}

function stop() {
  if (state.abort) state.abort.abort();
}

async function share() {
  const url = new URL(link(), location.href).href;
  history.replaceState(null, "", url);
  try {
    await navigator.clipboard.writeText(url);
    tell("the link is copied");
  } catch {
    tell("the link is in the address bar");
  }
}

/** Recorded runs; with an API key they cannot be links, because links carry no key. */
async function listRuns() {
  const response = await fetch("/runs", { headers: headers() });
  if (!response.ok) return;
  const runs = await response.json();
  $("runs").hidden = !runs.length;
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
  const frame = make("iframe", { title: `run ${name}`, sandbox: "allow-scripts", srcdoc: await response.text() });
  frame.addEventListener("load", () => { tell(`${name} is open below the list of runs`); frame.scrollIntoView(); });
  $("runs").append(frame);
}

async function loadModel() {
  const response = await fetch("/v1/models", { headers: headers() });
  $("key-field").hidden = response.status !== 401 && !$("key").value;
  if (!response.ok) {
    $("model").textContent = response.status === 401 ? "This server asks for an API key." : await problem(response);
    return false;
  }
  [state.model] = (await response.json()).data;
  const { id, family, reward_model, latent } = state.model;
  const scored = reward_model ? "a reward model scores every thought" : "there is no reward model";
  $("model").textContent = `${id}: a ${family} reasoner with ${latent.thoughts} thoughts; ${scored}. Type a question and watch its trajectories arrive.`;
  return true;
}

async function begin() {
  if (!(await loadModel())) return;
  state.panels = [new Panel("A"), new Panel("B")];
  arrange();
  const linked = follow(location.hash);
  if (!linked && !$("question").value) $("question").value = EXAMPLE;
  await listRuns();
  document.documentElement.dataset.ready = "true";
  if (linked) await ask();
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); if (state.model) ask(); });
$("stop").addEventListener("click", stop);
$("share").addEventListener("click", share);
$("compare").addEventListener("change", () => {
  // The second setting begins as a copy of the first.
  if ($("compare").checked && state.panels[1].asked.n === undefined) state.panels[1].fill(state.panels[0].settings());
  arrange();
});
$("key").addEventListener("change", begin);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
  if (event.key === "Escape") stop();
});
window.addEventListener("hashchange", () => { if (state.model && follow(location.hash)) ask(); });
begin();
