
// The page's script after tooltips.js and question.js: the browser for single questions.
// Data come from src/page/data.rs; nothing is fetched.
const data = JSON.parse(document.getElementById("data").textContent);

/** A question as an object; the order is that of `encode_question` in src/page/data.rs. */
function named(row) {
  const [id, question, gold, answers, given, thoughts, rewards, map, chosen, greedy, beam, range, outcomes, outcomeRange, lens, texts, said] = row;
  const right = given.filter((place) => answers[place][1]).length;
  const [vote, weighted, best] = chosen.map((place) => (place < 0 ? null : answers[place]));
  const lengths = Array.isArray(thoughts) ? thoughts : given.map(() => thoughts);
  return { id, question, gold, answers, given, lengths, rewards, range, outcomes, outcomeRange, map, greedy, beam, lens, texts, said, vote, weighted, best, right };
}

const FILTERS = [
  ["all", "all questions", () => true],
  ["rescued", "greedy wrong, but some trajectory right", (q) => q.greedy && !isRight(q.greedy) && q.right > 0],
  ["gained", "greedy wrong, majority right", (q) => q.greedy && !isRight(q.greedy) && isRight(q.vote)],
  ["lost", "greedy right, majority wrong", (q) => isRight(q.greedy) && !isRight(q.vote)],
  ["missed", "majority wrong, but some trajectory right", (q) => !isRight(q.vote) && q.right > 0],
  ["misranked", "best of N wrong, but some trajectory right", (q) => q.best && !isRight(q.best) && q.right > 0],
  ["never", "no trajectory right", (q) => q.right === 0],
  ["always", "every trajectory right", (q) => q.right > 0 && q.right === q.given.length],
];
const ORDERS = [
  ["given", "as in the data", (a, b) => a.id - b.id],
  ["hard", "fewest right first", (a, b) => a.right / a.given.length - b.right / b.given.length || a.id - b.id],
  ["torn", "most different answers first", (a, b) => b.answers.length - a.answers.length || a.id - b.id],
];
/** List entries created at a time. */
const PAGE = 150;

const state = { run: 0, questions: [], found: [], shown: 0, current: null, byReward: true };

function options(select, all) {
  select.append(...all.map(([value, label]) => make("option", { value }, label)));
}

function openRun(index) {
  state.run = index;
  state.questions = data.runs[index].questions.map(named);
  state.current = null;
  update();
}

function update() {
  const filter = FILTERS.find(([name]) => name === $("filter").value)[2];
  const order = ORDERS.find(([name]) => name === $("order").value)[2];
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = (q) => {
    const text = `${q.id} ${q.question} ${q.gold} ${q.answers.map(([answer]) => answer).join(" ")}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };
  state.found = state.questions.filter((q) => filter(q) && holds(q)).sort(order);
  state.shown = 0;
  $("count").textContent = `${state.found.length} of ${counted(state.questions.length, "question", "questions")}`;
  $("list").replaceChildren();
  more();
  if (!state.found.includes(state.current)) open(state.found[0] || null);
  else markCurrent();
}

/** Appends the next list entries. */
function more() {
  const list = $("list");
  if (list.lastChild && list.lastChild.firstChild.classList.contains("more")) list.lastChild.remove();
  const next = state.found.slice(state.shown, state.shown + PAGE);
  state.shown += next.length;
  list.append(...next.map(entry));
  const left = state.found.length - state.shown;
  if (left > 0) {
    const button = make("button", { class: "more", type: "button" }, `show more (${left} left)`);
    button.addEventListener("click", more);
    list.append(make("li", {}, button));
  }
  markCurrent();
}

function entry(q) {
  const share = q.given.length ? (100 * q.right) / q.given.length : 0;
  const bar = make("span", { class: "bar", "data-tip": `${q.right} of ${q.given.length} trajectories right` });
  bar.append(make("i", { style: `width:${share.toFixed(1)}%` }));
  bar.style.display = "block";
  const button = make("button", { type: "button", "data-id": q.id });
  button.append(make("span", {}, `${q.id}`), make("span", { class: "words" }, q.question), make("span", { class: "share" }, bar));
  button.addEventListener("click", () => open(q));
  return make("li", {}, button);
}

function markCurrent() {
  for (const button of $("list").querySelectorAll("button[data-id]")) {
    const current = state.current && Number(button.dataset.id) === state.current.id;
    button.setAttribute("aria-current", String(Boolean(current)));
  }
}

function open(q) {
  state.current = q;
  markCurrent();
  const parts = q ? detail(decoded(q)) : [make("p", { class: "note" }, "no question fits")];
  $("detail").replaceChildren(...parts);
}

const detail = (q) => [heading(q), chips(q), votes(q), ...trajectories(q), ...lens(q), ...rewardStrip(q), ...thoughtMap(q)];

function heading(q) {
  const box = make("div");
  box.append(make("h3", {}, `Question ${q.id}`), make("p", { class: "question" }, q.question));
  return box;
}

function chips(q) {
  const rows = [["greedy", q.greedy], ["majority", q.vote], ["weighted vote", q.weighted], ["best of N", q.best], ["beam search", q.beam]];
  const box = make("div", { class: "chips" });
  box.append(make("span", { class: "chip" }, "right answer: ", make("b", {}, q.gold)));
  for (const [name, answer] of rows) {
    if (!answer) continue;
    const chip = make("span", { class: "chip", "data-tip": answer[2] || mark(answer) }, `${name}: `);
    chip.append(make("b", { class: mark(answer) }, signed(answer)));
    box.append(chip);
  }
  return box;
}

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** The inverse of `quantize` in src/page/data.rs. */
const numbers = (text, range) => Array.from(bytes(text), (byte) => range[0] + (byte / 255) * (range[1] - range[0]));

/** The question as question.js draws it: numbers instead of base64, one list for each trajectory. */
function decoded(q) {
  const split = (all) => {
    let at = 0;
    return q.lengths.map((length) => all.slice(at, (at += length)));
  };
  const raw = bytes(q.map);
  const places = Array.from({ length: raw.length / 2 }, (_, i) => [raw[2 * i], raw[2 * i + 1]]);
  const sampled = q.lengths.reduce((sum, length) => sum + length, 0);
  return {
    ...q,
    names: q.given.map((_, k) => k),
    rewards: q.range && split(numbers(q.rewards, q.range)),
    outcomes: q.outcomeRange && numbers(q.outcomes, q.outcomeRange),
    paths: q.map ? split(places) : null,
    greedyPath: places.slice(sampled),
    lensNote: "the run without perturbation",
  };
}

function rewardStrip(q) {
  if (!q.rewards) return [make("p", { class: "note" }, "No rewards: the run had no reward model.")];
  const { title, svg, note } = strip(q, state.byReward);
  const box = make("input", { type: "checkbox", id: "by-reward" });
  box.checked = state.byReward;
  box.addEventListener("change", () => { state.byReward = box.checked; open(state.current); });
  const sorting = make("label", { class: "note" }, box, q.outcomes ? " highest outcome reward first" : " highest mean reward first");
  return [make("h3", {}, title), sorting, svg, make("p", { class: "note" }, note)];
}

/** The trajectories in the plane of the question's two principal components. */
function thoughtMap(q) {
  if (!q.paths) return [make("p", { class: "note" }, "No map: the thoughts were not kept (eval --latents), or the page had no room for them.")];
  const note = "Every trajectory's thoughts along the question's two principal components; the sign is at the last thought: diamond " +
    "right, cross wrong." + (q.greedyPath.length ? " Blue: without perturbation." : "");
  return [make("h3", {}, "Map of the thoughts"), map(q), make("p", { class: "note" }, note)];
}

function start() {
  options($("run"), data.runs.map((run, index) => [String(index), run.label]));
  options($("filter"), FILTERS);
  options($("order"), ORDERS);
  $("run").addEventListener("change", () => openRun(Number($("run").value)));
  for (const id of ["filter", "order"]) $(id).addEventListener("change", update);
  $("search").addEventListener("input", update);
  $("list").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next = step && state.found[state.found.indexOf(state.current) + step];
    if (!next) return;
    event.preventDefault();
    open(next);
    const button = $("list").querySelector(`button[data-id="${next.id}"]`);
    if (button) button.focus();
  });
  const [first] = data.runs;
  if (first && first.seeds > 1) {
    $("browser").append(make("p", { class: "caption" }, `Shown under the first of ${first.seeds} seeds, ${first.seed}; the figures are over all of them.`));
  }
  if (data.left_out) {
    $("browser").append(make("p", { class: "caption" }, `${data.left_out} runs are left out here to keep the page small; report them alone to browse them.`));
  }
  if (data.runs.length) openRun(0);
  else $("browser").append(make("p", { class: "caption" }, "No run is small enough to be browsed here; report it alone."));
  document.documentElement.dataset.ready = "true";
}

start();
