
// The page's script after tooltips.js: the browser for single questions.
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

const counted = (number, one, several) => `${number} ${number === 1 ? one : several}`;
const isRight = (answer) => Boolean(answer && answer[1]);
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
  else mark();
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
  mark();
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

function mark() {
  for (const button of $("list").querySelectorAll("button[data-id]")) {
    const current = state.current && Number(button.dataset.id) === state.current.id;
    button.setAttribute("aria-current", String(Boolean(current)));
  }
}

function open(q) {
  state.current = q;
  mark();
  const parts = q ? [heading(q), chips(q), votes(q), ...trajectories(q), ...lens(q), ...strip(q), ...map(q)] : [make("p", { class: "note" }, "no question fits")];
  $("detail").replaceChildren(...parts);
}

function heading(q) {
  const box = make("div");
  box.append(make("h3", {}, `Question ${q.id}`), make("p", { class: "question" }, q.question));
  return box;
}

const show = (answer) => (answer[0] === null ? "no answer" : answer[0]);

function chips(q) {
  const rows = [["greedy", q.greedy], ["majority", q.vote], ["weighted vote", q.weighted], ["best of N", q.best], ["beam search", q.beam]];
  const box = make("div", { class: "chips" });
  box.append(make("span", { class: "chip" }, "right answer: ", make("b", {}, q.gold)));
  for (const [name, answer] of rows) {
    if (!answer) continue;
    const word = answer[1] ? "right" : "wrong";
    const sign = answer[1] ? "✓ " : "✗ ";
    const chip = make("span", { class: "chip", "data-tip": answer[2] || word }, `${name}: `);
    chip.append(make("b", { class: word }, sign + show(answer)));
    box.append(chip);
  }
  return box;
}

function votes(q) {
  const counts = q.answers.map((answer, place) => ({ answer, count: q.given.filter((given) => given === place).length }));
  counts.sort((a, b) => b.count - a.count);
  const box = make("div");
  box.append(make("h3", {}, `Votes: ${counted(q.given.length, "trajectory", "trajectories")}, ${counted(q.answers.length, "distinct answer", "distinct answers")}, ${q.right} right`));
  const table = make("div", { class: "votes" });
  const most = counts.length ? counts[0].count : 1;
  for (const { answer, count } of counts.slice(0, 12)) {
    const word = answer[1] ? "right" : "wrong";
    const bar = make("div", { class: `length ${word}`, style: `width:${((100 * count) / most).toFixed(1)}%` });
    table.append(make("span", { class: `answer ${word}` }, (answer[1] ? "✓ " : "") + show(answer)), bar, make("span", {}, `${count}`));
    // Short texts hardly differ from their answer.
    if (answer[2].length > 40) table.append(make("span", { class: "text" }, answer[2]));
  }
  box.append(table);
  if (counts.length > 12) box.append(make("p", { class: "note" }, `and ${counts.length - 12} answers with fewer votes`));
  return box;
}

/** What every trajectory said, filled in when it is opened. */
function trajectories(q) {
  if (!q.said.length) return [];
  const box = make("details", { class: "trajectories" }, make("summary", {}, `All ${counted(q.said.length, "trajectory", "trajectories")}: answers, rewards, texts`));
  box.addEventListener("toggle", () => {
    if (!box.open || box.querySelector("table")) return;
    const rewards = q.outcomeRange ? numbers(q.outcomes, q.outcomeRange) : meanRewards(q);
    const head = make("tr", {}, make("th", {}, "k"), make("th", {}, "answer"));
    if (rewards) head.append(make("th", {}, q.outcomeRange ? "outcome reward" : "mean reward"));
    head.append(make("th", {}, "text"));
    const table = make("table", {}, make("thead", {}, head));
    q.said.forEach((place, k) => {
      const answer = q.answers[q.given[k]];
      const row = make("tr", {}, make("td", {}, `${k}`), make("td", { class: answer[1] ? "right" : "wrong" }, (answer[1] ? "✓ " : "") + show(answer)));
      if (rewards) row.append(make("td", {}, Number.isFinite(rewards[k]) ? rewards[k].toFixed(3) : "–"));
      row.append(make("td", { class: "said" }, q.texts[place]));
      table.append(row);
    });
    box.append(make("div", { class: "wide" }, table));
  });
  return [box];
}

/** The mean process reward of each trajectory; null without rewards. */
function meanRewards(q) {
  if (!q.range) return null;
  const raw = numbers(q.rewards, q.range);
  let at = 0;
  return q.lengths.map((length) => {
    const own = raw.slice(at, (at += length));
    return own.length ? own.reduce((a, b) => a + b) / own.length : NaN;
  });
}

/** The tokens that the LM head predicts where each thought of the greedy run is made. */
function lens(q) {
  if (!q.lens.length) return [];
  const table = make("table", { class: "lens" });
  q.lens.forEach((tokens, t) => {
    const row = make("tr", {}, make("th", {}, `${t + 1}`));
    for (const [text, share] of tokens) {
      const tip = `${JSON.stringify(text)}: ${(share / 10).toFixed(1)}%`;
      row.append(make("td", { "data-tip": tip, style: `opacity:${(0.35 + 0.65 * (share / 1000)).toFixed(2)}` }, text.trim() || JSON.stringify(text)));
    }
    table.append(row);
  });
  const note = "Rows are the thoughts of the run without perturbation; the tokens are the LM head's most probable ones at the hidden state " +
    "from which the thought is made, most probable first, paler where less probable.";
  return [make("h3", {}, "Thoughts in tokens"), make("div", { class: "wide" }, table), make("p", { class: "note" }, note)];
}

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** The inverse of `quantize` in src/page/data.rs. */
const numbers = (text, range) => Array.from(bytes(text), (byte) => range[0] + (byte / 255) * (range[1] - range[0]));

/** Heat map of rewards: a column per trajectory, a row per thought, and a last row of outcome rewards if there are any. */
function strip(q) {
  const range = q.range;
  if (!range) return [make("p", { class: "note" }, "No rewards: the run had no reward model.")];
  const [raw, outcomes] = [numbers(q.rewards, range), q.outcomeRange && numbers(q.outcomes, q.outcomeRange)];
  let at = 0;
  const columns = q.given.map((place, k) => {
    const own = raw.slice(at, (at += q.lengths[k]));
    const mean = own.length ? own.reduce((a, b) => a + b) / own.length : -Infinity;
    return { k, answer: q.answers[place], own, mean, reward: outcomes ? outcomes[k] : mean };
  });
  if (state.byReward) columns.sort((a, b) => b.reward - a.reward || a.k - b.k);
  const longest = Math.max(1, ...q.lengths);
  const rows = longest + (outcomes ? 1 : 0);
  const [width, height, foot] = [10, 12, 10];
  const svg = draw("svg", { class: "strip", viewBox: `0 0 ${columns.length * width} ${rows * height + foot}`, preserveAspectRatio: "none" });
  svg.style.height = `${rows * 14 + foot}px`;
  columns.forEach(({ k, answer, own, mean, reward }, x) => {
    const outcome = outcomes ? `\noutcome reward ${reward.toFixed(3)}` : "";
    const label = `trajectory ${k}: ${show(answer)} ${answer[1] ? "✓" : "✗"}\nmean process reward ${mean.toFixed(3)}${outcome}`;
    const cell = (row, value, [low, high], tip) => {
      const box = { x: x * width, y: row * height, width: width - 0.6, height: height - 0.6 };
      svg.append(draw("rect", { ...box, fill: heat((value - low) / (high - low || 1)), "data-tip": tip }));
    };
    own.forEach((value, t) => cell(t, value, range, `${label}\nthought ${t + 1}: reward ${value.toFixed(3)}`));
    if (outcomes) cell(longest, reward, q.outcomeRange, label);
    const footBox = { x: x * width, y: rows * height + 2, width: width - 0.6, height: foot - 2 };
    svg.append(draw("rect", { ...footBox, style: `fill:var(--${answer[1] ? "right" : "wrong"})`, "data-tip": label }));
  });
  const box = make("input", { type: "checkbox", id: "by-reward" });
  box.checked = state.byReward;
  box.addEventListener("change", () => { state.byReward = box.checked; open(state.current); });
  const sorting = make("label", { class: "note" }, box, outcomes ? " highest outcome reward first" : " highest mean reward first");
  const note = `Columns are trajectories, rows their thoughts from first (top) to last; from dark, this question's lowest reward ` +
    `(${range[0].toFixed(2)}), to bright, its highest (${range[1].toFixed(2)}). ` +
    (outcomes ? `The last row is the outcome reward, in its own colours (${q.outcomeRange.map((x) => x.toFixed(2)).join(" to ")}). ` : "") +
    `The foot is green where the answer is right.`;
  return [make("h3", {}, outcomes ? "Rewards" : "Process rewards"), sorting, svg, make("p", { class: "note" }, note)];
}

/** A colour map from dark violet over red to light yellow, monotonic in lightness. */
function heat(share) {
  const stops = [[35, 16, 71], [114, 31, 129], [205, 64, 113], [253, 150, 104], [252, 237, 176]];
  const place = Math.max(0, Math.min(0.9999, share)) * (stops.length - 1);
  const [from, to] = [stops[Math.floor(place)], stops[Math.floor(place) + 1]];
  const mixed = from.map((x, i) => Math.round(x + (to[i] - x) * (place % 1)));
  return `rgb(${mixed.join(",")})`;
}

/** The trajectories in the plane of the question's two principal components. */
function map(q) {
  if (!q.map) return [make("p", { class: "note" }, "No map: the thoughts were not kept (eval --latents), or the page had no room for them.")];
  const raw = bytes(q.map);
  const [width, height, air] = [520, 360, 14];
  const places = Array.from({ length: raw.length / 2 }, (_, i) => [raw[2 * i], raw[2 * i + 1]]);
  const span = [0, 1].map((axis) => {
    const all = places.map((place) => place[axis]);
    return [Math.min(...all), Math.max(1 + Math.min(...all), ...all)];
  });
  const place = ([x, y]) => [
    air + ((x - span[0][0]) / (span[0][1] - span[0][0])) * (width - 2 * air),
    height - air - ((y - span[1][0]) / (span[1][1] - span[1][0])) * (height - 2 * air),
  ].map((number) => number.toFixed(1));
  const svg = draw("svg", { class: "map", viewBox: `0 0 ${width} ${height}` });
  let at = 0;
  const marks = [];
  q.given.forEach((given, k) => {
    const answer = q.answers[given];
    const path = places.slice(at, (at += q.lengths[k])).map(place);
    if (!path.length) return;
    const colour = `var(--${answer[1] ? "right" : "wrong"})`;
    const label = `trajectory ${k}: ${show(answer)} ${answer[1] ? "✓" : "✗"}`;
    svg.append(draw("polyline", { points: path.map((p) => p.join()).join(" "), fill: "none", "stroke-opacity": 0.22,
      style: `stroke:${colour}`, "data-tip": label }));
    const [x, y] = path[path.length - 1].map(Number);
    const shape = answer[1] ? `M${x} ${y - 5}l4 5l-4 5l-4 -5z` : `M${x - 3} ${y - 3}l6 6m0 -6l-6 6`;
    marks.push(draw("path", { d: shape, style: answer[1] ? `fill:${colour}` : `fill:none;stroke:${colour};stroke-width:1.6`, "data-tip": label }));
  });
  svg.append(...marks);
  const greedy = places.slice(at).map(place);
  if (greedy.length) {
    svg.append(draw("polyline", { points: greedy.map((p) => p.join()).join(" "), fill: "none", style: "stroke:var(--accent);stroke-width:2" }));
    const [x, y] = greedy[greedy.length - 1];
    svg.append(draw("circle", { cx: x, cy: y, r: 6, style: "fill:var(--accent)", "data-tip": "without perturbation" }));
  }
  const note = "Every trajectory's thoughts along the question's two principal components; the sign is at the last thought: diamond " +
    "right, cross wrong." + (greedy.length ? " Blue: without perturbation." : "");
  return [make("h3", {}, "Map of the thoughts"), svg, make("p", { class: "note" }, note)];
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
