
// The browser for single questions of the report page; loaded after tooltips.js, figures.js and question.js.
// The data are written by src/page/data.rs; nothing is fetched.
const data = JSON.parse(document.getElementById("data").textContent);

/** Converts the array of a question to an object; the order of fields is that of `encode_question` in src/page/data.rs. */
function named(row) {
  const [id, question, gold, answers, given, thoughts, rewards, map, chosen, greedy, beam, range, outcomes, outcomeRange, lens, texts, said] = row;
  const right = given.filter((index) => answers[index][1]).length;
  const [vote, weighted, best] = chosen.map((index) => (index < 0 ? null : answers[index]));
  const lengths = Array.isArray(thoughts) ? thoughts : given.map(() => thoughts);
  return { id, question, gold, answers, given, lengths, rewards, range, outcomes, outcomeRange, map, greedy, beam, lens, texts, said, vote, weighted, best, right };
}

const FILTERS = [
  ["all", "all questions", () => true],
  ["rescued", "greedy wrong, some trajectory correct", (q) => q.greedy && !isRight(q.greedy) && q.right > 0],
  ["gained", "greedy wrong, majority correct", (q) => q.greedy && !isRight(q.greedy) && isRight(q.vote)],
  ["lost", "greedy correct, majority wrong", (q) => isRight(q.greedy) && !isRight(q.vote)],
  ["missed", "majority wrong, some trajectory correct", (q) => !isRight(q.vote) && q.right > 0],
  ["misranked", "best of N wrong, some trajectory correct", (q) => q.best && !isRight(q.best) && q.right > 0],
  ["never", "no trajectory correct", (q) => q.right === 0],
  ["always", "every trajectory correct", (q) => q.right > 0 && q.right === q.given.length],
];
const ORDERS = [
  ["given", "data order", (a, b) => a.id - b.id],
  ["hard", "fewest correct first", (a, b) => a.right / a.given.length - b.right / b.given.length || a.id - b.id],
  ["torn", "most distinct answers first", (a, b) => b.answers.length - a.answers.length || a.id - b.id],
];
/** Number of list entries to create at a time. */
const PAGE = 150;

const state = { run: 0, questions: [], found: [], shown: 0, current: null, byReward: true };
/** View state of the trajectories of a question. */
const view = { sort: "k", descending: false, selected: [], redraw: () => redraw() };

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
  const bar = make("span", { class: "bar-share", "data-tip": `${q.right} of ${q.given.length} trajectories correct` });
  bar.append(make("i", { style: `width:${share.toFixed(1)}%` }));
  const button = make("button", { type: "button", "data-id": q.id });
  button.append(make("span", { class: "number" }, `${q.id}`), make("span", { class: "words" }, q.question), make("span", { class: "share" }, bar));
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
  view.selected = [];
  markCurrent();
  redraw();
}

/** Redraws the question, keeping the scroll position of its table of trajectories and the focus. */
function redraw() {
  const q = state.current;
  const top = $("detail").querySelector(".tall")?.scrollTop;
  const focused = focusKey(document.activeElement);
  const parts = q ? detail(decoded(q)) : [make("p", { class: "empty" }, "No question matches the filter and the search.")];
  $("detail").replaceChildren(...parts);
  const table = $("detail").querySelector(".tall");
  if (table && top && view.selected.length) table.scrollTop = top;
  if (focused) $("detail").querySelector(focused)?.focus();
}

/** A selector to find the focused control after a redraw. */
function focusKey(element) {
  if (!element || !$("detail").contains(element)) return null;
  const label = element.getAttribute("aria-label");
  if (label) return `[aria-label="${label}"]`;
  return element.dataset.sort ? `[data-sort="${element.dataset.sort}"]` : null;
}

function detail(q) {
  const blocks = make("div", { class: "blocks" });
  blocks.append(
    make("div", { class: "stack" }, votes(q), thoughtMap(q)),
    make("div", { class: "stack" }, rewardStrip(q), ...lens(q.lens, "the run without perturbation")),
    ...comparison(q, view, true), ...trajectories(q, view));
  return [heading(q), chips(q), blocks];
}

function heading(q) {
  const box = make("div");
  box.append(make("h3", {}, `Question ${q.id}`), make("p", { class: "question" }, q.question));
  return box;
}

function chips(q) {
  const rows = [["greedy", q.greedy], ["majority", q.vote], ["weighted vote", q.weighted], ["best of N", q.best], ["beam search", q.beam]];
  const box = make("div", { class: "chips" });
  box.append(make("span", { class: "chip" }, "gold answer: ", make("b", {}, q.gold)));
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

/** The question in the format of question.js: numbers instead of base64, one list per trajectory. */
function decoded(q) {
  const split = (all) => {
    let at = 0;
    return q.lengths.map((length) => all.slice(at, (at += length)));
  };
  const raw = bytes(q.map);
  const positions = Array.from({ length: raw.length / 2 }, (_, i) => [raw[2 * i], raw[2 * i + 1]]);
  const sampled = q.lengths.reduce((sum, length) => sum + length, 0);
  return {
    ...q,
    names: q.given.map((_, k) => k),
    rewards: q.range && split(numbers(q.rewards, q.range)),
    outcomes: q.outcomeRange && numbers(q.outcomes, q.outcomeRange),
    paths: q.map ? split(positions) : null,
    greedyPath: positions.slice(sampled),
    mapMethod: { name: "pca" },
    tokens: null,
  };
}

function rewardStrip(q) {
  if (!q.rewards) return block("rewards", "Rewards", make("p", { class: "note" }, "The run had no reward model."));
  const box = make("input", { type: "checkbox", id: "by-reward" });
  box.checked = state.byReward;
  box.addEventListener("change", () => { state.byReward = box.checked; redraw(); });
  const sorting = make("label", { class: "note" }, box, q.outcomes ? " highest outcome reward first" : " highest mean reward first");
  const heatMap = strip(q, view, state.byReward);
  heatMap.append(sorting);
  return selectOnClick(heatMap, q, view);
}

/** The trajectories projected onto the question's first two principal components. */
function thoughtMap(q) {
  if (!q.paths) return block("map-block", "Map of the thoughts", make("p", { class: "note" }, "The thoughts were not recorded (use eval --latents) or did not fit the size limit of the page."));
  return selectOnClick(mapBlock(q, view), q, view);
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
    $("browser").append(make("p", { class: "caption" }, `This browser shows the first of ${first.seeds} seeds (${first.seed}); the figures use all seeds.`));
  }
  if (data.left_out) {
    $("browser").append(make("p", { class: "caption" }, `${data.left_out} runs were omitted from this browser to limit the size of the page; report them separately to browse them.`));
  }
  if (data.runs.length) openRun(0);
  else $("browser").append(make("p", { class: "caption" }, "No run is small enough for this browser; report runs separately."));
  document.documentElement.dataset.ready = "true";
}

start();
