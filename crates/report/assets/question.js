// DOM elements for one question: votes, table and comparison of trajectories, rewards and map. Shared by the report page (page.js) and
// the server's page (crates/serve/assets/explore.js). Both pass a question as an object:
//   answers     [[answer, right, text]]: distinct answers; `right` is null if the gold answer is unknown
//   given       per trajectory: the index of its answer in `answers`
//   names       per trajectory: its number
//   lengths     per trajectory: its number of thoughts
//   rewards     per trajectory: its process rewards, or null; null without a reward model
//   outcomes    per trajectory: its outcome reward, or null; null without outcome rewards
//   paths       per trajectory: the positions of its thoughts on the map; null without a map
//   greedyPath  positions of the greedy trajectory's thoughts
//   mapMethod   { name: "pca" } or { name: "tsne", perplexity }
//   tokens      per trajectory: [[[token, thousandths]]], the tokens of its thoughts; null if they were not decoded
//   texts, said distinct texts, and per trajectory the index of its text
// and a view, which persists across redraws: { sort, descending, selected, redraw }; `selected` holds trajectory numbers.
const counted = (number, one, several) => `${number} ${number === 1 ? one : several}`;
const isRight = (answer) => Boolean(answer && answer[1]);
const isOpen = (answer) => answer[1] === null;
const show = (answer) => (answer[0] === null ? "no answer" : answer[0]);
/** The class of an answer, and a sign before it so that color is not the only cue. */
const mark = (answer) => (isOpen(answer) ? "open" : answer[1] ? "right" : "wrong");
const sign = (answer) => (isOpen(answer) ? "" : answer[1] ? "✓ " : "✗ ");
const colour = (answer) => `var(--${isOpen(answer) ? "accent" : mark(answer)})`;
const signed = (answer) => sign(answer) + show(answer);
const mean = (own) => (own && own.length ? own.reduce((a, b) => a + b) / own.length : NaN);
const spread = (all) => all.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], all.length ? [all[0], all[0]] : [0, 0]);
const fixed = (number, digits) => (Number.isFinite(number) ? number.toFixed(digits) : "–");
const percentOf = (share) => `${(100 * share).toFixed(share === 1 || share === 0 ? 0 : 1)}%`;

/** Maximum number of trajectories to compare side by side. */
const MOST_COMPARED = 4;
/** Maximum number of answers with a bar. */
const MOST_BARS = 12;

/** A block with a heading and children. */
function block(name, title, ...children) {
  return make("div", { class: `block ${name}` }, make("h3", {}, title), ...children);
}

/** A large number with a label above and a small text below. */
function tile(label, value, below = "", kind = "") {
  return make("div", { class: `tile ${kind}` }, make("span", { class: "label" }, label), make("span", { class: "value" }, value), make("span", { class: "below" }, below));
}

function votes(q) {
  const counts = q.answers.map((answer, index) => ({ answer, count: q.given.filter((given) => given === index).length }));
  counts.sort((a, b) => b.count - a.count);
  const table = make("div", { class: "votes" });
  const total = Math.max(1, q.given.length);
  const most = counts.length ? counts[0].count : 1;
  for (const { answer, count } of counts.slice(0, MOST_BARS)) {
    const share = percentOf(count / total);
    const bar = make("div", { class: `length ${mark(answer)}`, style: `width:${((100 * count) / most).toFixed(1)}%` });
    const tip = { "data-tip": `${signed(answer)}\n${counted(count, "vote", "votes")}, ${share}` };
    table.append(make("span", { class: `answer ${mark(answer)}`, ...tip }, signed(answer)), make("div", { class: "track", ...tip }, bar), make("span", { class: "count" }, `${count}`), make("span", { class: "share" }, share));
    // Short texts are almost identical to their answer.
    if (answer[2].length > 40) table.append(make("span", { class: "text" }, answer[2]));
  }
  const right = q.answers.some(isOpen) ? "" : `, ${q.given.filter((index) => isRight(q.answers[index])).length} correct`;
  const about = `${counted(q.given.length, "trajectory", "trajectories")}, ${counted(q.answers.length, "distinct answer", "distinct answers")}${right}`;
  const parts = [make("p", { class: "note" }, about), table];
  if (counts.length > MOST_BARS) parts.push(make("p", { class: "note" }, `and ${counts.length - MOST_BARS} answers with fewer votes`));
  return block("vote-block", "Votes", ...parts);
}

/** The columns of the table of trajectories: key, heading, value to sort by, and cell. */
function columns(q) {
  const range = q.rewards && spread(q.rewards.flat().filter(Number.isFinite));
  const all = [
    { key: "k", head: "#", value: (k) => q.names[k], cell: (k) => make("td", {}, make("button", { type: "button", class: "select", "data-k": k, "aria-label": `show trajectory ${q.names[k]}` }, `${q.names[k]}`)) },
    { key: "answer", head: "answer", value: (k) => numberOrText(q.answers[q.given[k]][0]), cell: (k) => make("td", { class: `answer ${mark(q.answers[q.given[k]])}`, title: show(q.answers[q.given[k]]) }, signed(q.answers[q.given[k]])) },
    { key: "thoughts", head: "thoughts", value: (k) => q.lengths[k], cell: (k) => make("td", {}, `${q.lengths[k]}`) },
  ];
  if (q.rewards) {
    all.push({ key: "reward", head: "mean reward", value: (k) => mean(q.rewards[k]), cell: (k) => make("td", {}, fixed(mean(q.rewards[k]), 3)) });
    all.push({ key: "rewards", head: "by thought", value: (k) => (q.rewards[k] || []).at(-1), cell: (k) => make("td", {}, miniature(q.rewards[k] || [], range)) });
  }
  if (q.outcomes) all.push({ key: "outcome", head: "outcome reward", value: (k) => q.outcomes[k], cell: (k) => make("td", {}, fixed(q.outcomes[k], 3)) });
  if (q.said.length) all.push({ key: "text", head: "text", value: (k) => q.texts[q.said[k]], cell: (k) => make("td", { class: "said" }, q.texts[q.said[k]]) });
  return all;
}

/** Converts numeric answers to numbers, for sorting. */
const numberOrText = (answer) => (answer === null || answer.trim() === "" || !Number.isFinite(Number(answer)) ? answer : Number(answer));

const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);

/** Orders numbers before texts, each ascending. */
function compareValues(a, b) {
  if (isMissing(a)) return 0;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return typeof a === "number" ? a - b : a.localeCompare(b);
}

/** The rewards of one trajectory as colored cells, one per thought. */
function miniature(own, [low, high]) {
  const stops = own.map((value, t) => {
    const at = (i) => `${((100 * i) / own.length).toFixed(2)}%`;
    return `${heat((value - low) / (high - low || 1))} ${at(t)} ${at(t + 1)}`;
  });
  const style = stops.length ? `background:linear-gradient(to right,${stops.join(",")})` : "";
  return make("span", { class: "miniature", style, "data-tip": own.map((value, t) => `thought ${t + 1}: ${value.toFixed(3)}`).join("\n") });
}

/** The table of trajectories: click a heading to sort, a row to show it, its checkbox to compare it. */
function trajectories(q, view) {
  if (!q.given.length) return [];
  const all = columns(q);
  const sorting = all.find(({ key }) => key === view.sort) || all[0];
  const order = q.given.map((_, k) => k).sort((a, b) => {
    const [x, y] = [sorting.value(a), sorting.value(b)];
    const direction = view.descending ? -1 : 1;
    return isMissing(x) - isMissing(y) || direction * compareValues(x, y) || q.names[a] - q.names[b];
  });
  const head = make("tr", {}, make("th", { scope: "col" }, make("span", { class: "hidden" }, "compare")));
  for (const { key, head: text } of all) {
    const sorted = key === sorting.key;
    const button = make("button", { type: "button", class: "sort", "data-sort": key }, `${text}${sorted ? (view.descending ? " ↓" : " ↑") : ""}`);
    button.addEventListener("click", () => { view.descending = sorted ? !view.descending : ["reward", "rewards", "outcome"].includes(key); view.sort = key; view.redraw(); });
    head.append(make("th", { scope: "col", class: key, "aria-sort": sorted ? (view.descending ? "descending" : "ascending") : "none" }, button));
  }
  const body = make("tbody");
  for (const k of order) {
    const box = make("input", { type: "checkbox", "aria-label": `compare trajectory ${q.names[k]}` });
    box.checked = view.selected.includes(q.names[k]);
    box.addEventListener("change", () => toggle(view, q.names[k], box.checked));
    const row = make("tr", { "data-k": k, ...(box.checked ? { class: "selected" } : {}) }, make("td", {}, box), ...all.map(({ cell }) => cell(k)));
    row.addEventListener("click", (event) => { if (event.target !== box) { view.selected = [q.names[k]]; view.redraw(); } });
    body.append(row);
  }
  const table = make("table", { class: "rows" }, make("thead", {}, head), body);
  const note = `Click a heading to sort, click a row to show it, select up to ${MOST_COMPARED} rows to compare them.`;
  return [block("trajectories", "Trajectories", make("p", { class: "note" }, note), make("div", { class: "wide tall", tabindex: "0", role: "region", "aria-label": "trajectories" }, table))];
}

/** Adds a trajectory to the comparison or removes it; drops the oldest ones beyond the maximum. */
function toggle(view, name, on) {
  view.selected = view.selected.filter((other) => other !== name);
  if (on) view.selected.push(name);
  view.selected.splice(0, view.selected.length - MOST_COMPARED);
  view.redraw();
}

/** The selected trajectories side by side, thought by thought. */
function comparison(q, view, wide = view.selected.length > 1) {
  const chosen = view.selected.map((name) => q.names.indexOf(name)).filter((k) => k >= 0);
  if (!chosen.length) return [];
  const range = q.rewards && spread(q.rewards.flat().filter(Number.isFinite));
  const header = make("tr", {}, make("th", { scope: "col" }, "thought"), ...chosen.map((k) => {
    const answer = q.answers[q.given[k]];
    return make("th", { scope: "col" }, `#${q.names[k]} `, make("span", { class: mark(answer) }, signed(answer)));
  }));
  const body = make("tbody");
  const longest = Math.max(...chosen.map((k) => q.lengths[k]));
  if (q.tokens || q.rewards) {
    for (let t = 0; t < longest; t += 1) {
      body.append(make("tr", {}, make("th", { scope: "row" }, `${t + 1}`), ...chosen.map((k) => thoughtCell(q, k, t, range))));
    }
  }
  const last = (name, cell) => body.append(make("tr", { class: "total" }, make("th", { scope: "row" }, name), ...chosen.map(cell)));
  if (q.rewards) last("mean", (k) => make("td", {}, make("b", {}, fixed(mean(q.rewards[k]), 3))));
  if (q.outcomes) last("outcome", (k) => make("td", {}, make("b", {}, fixed(q.outcomes[k], 3))));
  if (q.said.length) last("text", (k) => make("td", { class: "said" }, q.texts[q.said[k]]));
  const title = chosen.length === 1 ? `Trajectory ${q.names[chosen[0]]}` : `Trajectories ${chosen.map((k) => q.names[k]).join(", ")} compared`;
  const explained = [q.rewards && "the thought's reward", q.tokens && "the LM head's most probable tokens at the hidden state that becomes the thought"].filter(Boolean).join(" and ");
  const parts = [make("div", { class: "wide" }, make("table", { class: "compare" }, make("thead", {}, header), body))];
  if (explained) parts.push(make("p", { class: "note" }, `Each row is a thought: ${explained}.`));
  return [block(wide ? "comparison several" : "comparison", title, ...parts)];
}

function thoughtCell(q, k, t, range) {
  const cell = make("td");
  const reward = q.rewards && q.rewards[k] && q.rewards[k][t];
  if (Number.isFinite(reward)) {
    const share = (reward - range[0]) / (range[1] - range[0] || 1);
    cell.append(make("span", { class: "swatch", style: `background:${heat(share)}` }), make("span", { class: "number" }, reward.toFixed(2)));
  }
  const tokens = q.tokens && q.tokens[k] && q.tokens[k][t];
  if (tokens) cell.append(...tokens.map(tokenChip));
  return cell;
}

/** A token with its probability; the first of a thought is the most probable. */
function tokenChip([text, thousandths], index) {
  const tip = `${JSON.stringify(text)}: ${(thousandths / 10).toFixed(1)}%`;
  return make("span", { class: index ? "token" : "token first", "data-tip": tip }, text.trim() || JSON.stringify(text));
}

/** The most probable token of each thought, in one line. */
function reading(tokens) {
  const line = make("code", { class: "reading" });
  line.append(...tokens.filter((thought) => thought.length).map((thought, t) => make("span", { "data-tip": `thought ${t + 1}: ${JSON.stringify(thought[0][0])}, ${(thought[0][1] / 10).toFixed(1)}%` }, thought[0][0])));
  return line;
}

/** The LM head's most probable tokens at the hidden states of one trajectory's thoughts. */
function lens(tokens, of) {
  if (!tokens.length) return [];
  const table = make("table", { class: "lens" });
  tokens.forEach((thought, t) => {
    table.append(make("tr", {}, make("th", { scope: "row" }, `${t + 1}`), ...thought.map((token, index) => make("td", {}, tokenChip(token, index)))));
  });
  const note = `Rows are the thoughts of ${of}, with the LM head's most probable tokens at the hidden state that becomes the thought.`;
  return [block("lens-block", "Thoughts in tokens", make("p", {}, reading(tokens)), make("div", { class: "wide" }, table), make("p", { class: "note" }, note))];
}

/** Height in pixels of the rows of outcome rewards and of answers. */
const LAST_ROW = 15;

/** Heat map of rewards: one column per trajectory, one row per thought, a row of outcome rewards if there are any, and a row of correct
 * and wrong answers. Columns are sorted by reward if `byReward` is set, and have their trajectory's index as data-k. */
function strip(q, view, byReward) {
  const { rewards, outcomes } = q;
  const range = spread(rewards.flat().filter(Number.isFinite));
  const outcomeRange = outcomes && spread(outcomes.filter(Number.isFinite));
  const all = q.given.map((index, k) => {
    const own = rewards[k] || [];
    return { k, answer: q.answers[index], own, mean: mean(own), reward: outcomes ? outcomes[k] : mean(own) };
  });
  const order = (reward) => (Number.isFinite(reward) ? reward : -Infinity);
  if (byReward) all.sort((a, b) => order(b.reward) - order(a.reward) || a.k - b.k);
  const longest = Math.max(1, ...q.lengths);
  const height = Math.max(7, Math.min(18, Math.floor(330 / longest)));
  const [outcomeTop, answerTop] = [longest * height, longest * height + (outcomes ? LAST_ROW : 0)];
  const total = answerTop + LAST_ROW;
  const title = `Rewards of ${counted(all.length, "trajectory", "trajectories")}, from ${range[0].toFixed(2)} to ${range[1].toFixed(2)}`;
  const svg = draw("svg", { class: "strip", role: "img", "aria-label": title, viewBox: `0 0 ${all.length} ${total}`, preserveAspectRatio: "none", style: `height:${total}px` });
  all.forEach(({ k, answer, own, mean: average, reward }, x) => {
    const outcome = outcomes && Number.isFinite(reward) ? `\noutcome reward ${reward.toFixed(3)}` : "";
    const label = `trajectory ${q.names[k]}: ${signed(answer)}\nmean process reward ${average.toFixed(3)}${outcome}`;
    const cell = (y, tall, style, tip) => svg.append(draw("rect", { x: x + 0.03, y: y + 0.4, width: 0.94, height: tall - 0.8, style: `fill:${style}`, "data-tip": tip, "data-k": k }));
    const share = (value, [low, high]) => heat((value - low) / (high - low || 1));
    own.forEach((value, t) => cell(t * height, height, share(value, range), `${label}\nthought ${t + 1}: reward ${value.toFixed(3)}`));
    if (outcomes && Number.isFinite(reward)) cell(outcomeTop, LAST_ROW, share(reward, outcomeRange), label);
    cell(answerTop, LAST_ROW, colour(answer), label);
    if (view.selected.includes(q.names[k])) svg.append(draw("path", { class: "frame", d: `M${x} 0h1v${total}h-1z` }));
  });
  const box = make("div", { class: "heat" }, rowLabels(longest, height, Boolean(outcomes)), svg, make("span"), columnLabels(q, all, byReward));
  const legends = [legend("reward of a thought", range)];
  if (outcomes) legends.push(legend("outcome reward", outcomeRange));
  return block("rewards", outcomes ? "Rewards" : "Process rewards", box, make("div", { class: "legends" }, ...legends, ...answerKeys(q)));
}

/** Labels of as many rows as fit. */
function rowLabels(longest, height, hasOutcomes) {
  const box = make("div", { class: "row-labels" });
  const label = (y, text) => box.append(make("span", { style: `top:${y.toFixed(1)}px` }, text));
  const stride = [1, 2, 5, 10, 20, 50, 100].find((step) => step * height >= 13) || 100;
  for (let t = 0; t < longest; t += 1) {
    // Keeps a distance between the first two labels.
    if (t === 0 || ((t + 1) % stride === 0 && t >= (stride > 1 ? stride : 1))) label((t + 0.5) * height, t === 0 ? "thought 1" : `${t + 1}`);
  }
  if (hasOutcomes) label(longest * height + LAST_ROW / 2, "outcome");
  label(longest * height + LAST_ROW * (hasOutcomes ? 1.5 : 0.5), "answer");
  return box;
}

/** Trajectory numbers below the columns, at regular intervals if there are many. */
function columnLabels(q, all, byReward) {
  const box = make("div", { class: "column-labels" });
  const stride = Math.ceil(all.length / 12);
  const numbers = make("div", { class: "numbers" });
  all.forEach(({ k }, x) => {
    if (x % stride === 0) numbers.append(make("span", { style: `left:${((100 * (x + 0.5)) / all.length).toFixed(2)}%` }, `${q.names[k]}`));
  });
  box.append(numbers, make("div", {}, byReward ? "trajectory, highest reward first" : "trajectory"));
  return box;
}

/** The color scale of the heat map with its end values. */
function legend(name, [low, high]) {
  const stops = Array.from({ length: 9 }, (_, i) => heat(i / 8)).join(",");
  return make("span", { class: "legend-bar" }, `${name} `, make("span", { class: "end" }, low.toFixed(2)), make("i", { style: `background:linear-gradient(to right,${stops})` }), make("span", { class: "end" }, high.toFixed(2)));
}

/** Legend of the colors of answers. */
function answerKeys(q) {
  if (q.answers.some(isOpen)) return [];
  return [["right", "✓ correct"], ["wrong", "✗ wrong"]].map(([kind, text]) => make("span", { class: "key" }, make("i", { class: kind }), text));
}

/** A color map from dark violet through red to light yellow, monotonic in lightness. */
function heat(share) {
  const stops = [[35, 16, 71], [114, 31, 129], [205, 64, 113], [253, 150, 104], [252, 237, 176]];
  const position = Math.max(0, Math.min(0.9999, share)) * (stops.length - 1);
  const [from, to] = [stops[Math.floor(position)], stops[Math.floor(position) + 1]];
  return `rgb(${from.map((x, i) => Math.round(x + (to[i] - x) * (position % 1))).join(",")})`;
}

/** The color of thought `t` of `count` on the map. */
const stepColour = (t, count) => `color-mix(in oklab, var(--step-last) ${(count < 2 ? 100 : (100 * t) / (count - 1)).toFixed(0)}%, var(--step-first))`;

const MAP_SIZE = [460, 350];
/** Margins of the map for its axes: left, top, right, bottom. */
const MAP_EDGES = [30, 12, 14, 30];

/** Maps positions to pixels so that they span the whole map. */
function mapScale(q) {
  const [left, top, right, bottom] = MAP_EDGES;
  const all = [...q.paths, q.greedyPath].flat();
  const [x, y] = [0, 1].map((axis) => spread(all.map((position) => position[axis])));
  const share = (value, [low, high]) => (high > low ? (value - low) / (high - low) : 0.5);
  return (position) => [left + 8 + share(position[0], x) * (MAP_SIZE[0] - left - right - 16), MAP_SIZE[1] - bottom - 8 - share(position[1], y) * (MAP_SIZE[1] - top - bottom - 16)];
}

/** The trajectories in the plane: thin lines, thoughts colored by step, a ring at the first and a symbol at the last thought. Selected
 * trajectories are drawn on top, with the numbers of their thoughts. */
function map(q, view) {
  const [width, height] = MAP_SIZE;
  const place = mapScale(q);
  const title = `Map of the thoughts of ${counted(q.given.length, "trajectory", "trajectories")}`;
  const svg = draw("svg", { class: "map", role: "img", "aria-label": title, viewBox: `0 0 ${width} ${height}` });
  svg.append(...mapAxes(q));
  const longest = Math.max(1, ...q.lengths);
  const layers = { lines: draw("g"), steps: draw("g"), ends: draw("g"), top: draw("g") };
  const anySelected = view.selected.some((name) => q.names.includes(name));
  q.given.forEach((given, k) => {
    const path = q.paths[k].map(place);
    if (!path.length) return;
    const selected = view.selected.includes(q.names[k]);
    drawPath({ q, k, path, longest, faded: anySelected && !selected, selected }, layers);
  });
  svg.append(layers.lines, layers.steps, layers.ends, layers.top);
  const greedy = q.greedyPath.map(place);
  if (greedy.length) {
    const tip = "without perturbation";
    svg.append(draw("polyline", { class: "greedy", points: pointList(greedy), "data-tip": tip }), draw("path", { class: "greedy-end", d: star(greedy.at(-1), 8), "data-tip": tip }));
  }
  return svg;
}

const pointList = (path) => path.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");

function drawPath({ q, k, path, longest, faded, selected }, { lines, steps, ends, top }) {
  const answer = q.answers[q.given[k]];
  const label = `trajectory ${q.names[k]}: ${signed(answer)}`;
  const about = { "data-tip": label, "data-k": k };
  const [line, dots, signs] = selected ? [top, top, top] : [lines, steps, ends];
  line.append(draw("polyline", { class: selected ? "selected" : "", points: pointList(path), "stroke-opacity": faded ? 0.1 : 0.25, ...about }));
  path.forEach(([x, y], t) => {
    const tip = `${label}\nthought ${t + 1} of ${path.length}`;
    dots.append(draw("circle", { class: "step", cx: x.toFixed(1), cy: y.toFixed(1), r: selected ? 4.5 : 2.6, style: `fill:${stepColour(t, longest)}`, "fill-opacity": faded ? 0.35 : 1, "data-tip": tip, "data-k": k }));
  });
  const [x, y] = path[0];
  signs.append(draw("circle", { class: "start", cx: x.toFixed(1), cy: y.toFixed(1), r: selected ? 7 : 4.5, "stroke-opacity": faded ? 0.3 : 1, ...about }));
  signs.append(draw("path", { class: `end ${mark(answer)}`, d: endSign(answer, path.at(-1), selected ? 8 : 5.5), opacity: faded ? 0.4 : 1, ...about }));
  if (selected) {
    const stride = path.length <= 12 ? 1 : 5;
    path.forEach(([px, py], t) => {
      if (t === 0 || (t + 1) % stride === 0 || t + 1 === path.length) top.append(draw("text", { class: "step-number", x: (px + 6).toFixed(1), y: (py - 6).toFixed(1) }, `${t + 1}`));
    });
  }
}

/** A diamond for a correct answer, a cross for a wrong one, a square if the gold answer is unknown. */
function endSign(answer, [x, y], r) {
  const [a, b] = [x.toFixed(1), y.toFixed(1)];
  if (isOpen(answer)) return `M${a} ${b}m${-r * 0.8} ${-r * 0.8}h${1.6 * r}v${1.6 * r}h${-1.6 * r}z`;
  return isRight(answer) ? `M${a} ${b}m0 ${-r}l${r * 0.8} ${r}l${-r * 0.8} ${r}l${-r * 0.8} ${-r}z` : `M${a} ${b}m${-r * 0.7} ${-r * 0.7}l${1.4 * r} ${1.4 * r}m0 ${-1.4 * r}l${-1.4 * r} ${1.4 * r}`;
}

function star([x, y], r) {
  const corner = (i) => {
    const [angle, radius] = [(Math.PI * i) / 5 - Math.PI / 2, i % 2 ? 0.42 * r : r];
    return `${(x + radius * Math.cos(angle)).toFixed(1)} ${(y + radius * Math.sin(angle)).toFixed(1)}`;
  };
  return `M${Array.from({ length: 10 }, (_, i) => corner(i)).join("L")}z`;
}

/** A frame and the names of the two axes; an embedding has no unit. */
function mapAxes(q) {
  const [left, top, right, bottom] = MAP_EDGES;
  const [width, height] = MAP_SIZE;
  const tsne = q.mapMethod && q.mapMethod.name === "tsne";
  const name = tsne ? "t-SNE" : "principal component";
  return [
    draw("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` }),
    draw("text", { class: "axis-name", x: (left + width - right) / 2, y: height - 10, "text-anchor": "middle" }, `${name} 1`),
    draw("text", { class: "axis-name", x: 18, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 18 ${(top + height - bottom) / 2})` }, `${name} 2`),
  ];
}

/** The legend of the map. */
function mapLegend(q) {
  const longest = Math.max(1, ...q.lengths);
  const steps = make("span", { class: "legend-bar" }, "thought ", make("span", { class: "end" }, "1"), make("i", { class: "steps" }), make("span", { class: "end" }, `${longest}`));
  const key = (shape, text) => make("span", { class: "key" }, draw("svg", { class: "map", viewBox: "0 0 16 16" }, shape), text);
  const end = (answer) => draw("path", { class: `end ${mark(answer)}`, d: endSign(answer, [8, 8], 6) });
  const keys = [key(draw("circle", { class: "start", cx: 8, cy: 8, r: 5 }), "first thought")];
  if (q.answers.some(isOpen)) keys.push(key(end([null, null]), "last thought"));
  else keys.push(key(end([null, true]), "last thought, correct answer"), key(end([null, false]), "last thought, wrong answer"));
  if (q.greedyPath.length) keys.push(key(draw("path", { class: "greedy-end", d: star([8, 8], 7) }), "without perturbation"));
  return make("div", { class: "legends" }, steps, ...keys);
}

/** How the positions on the map were computed. */
function mapMethodNote(q) {
  const count = q.lengths.reduce((sum, length) => sum + length, 0) + q.greedyPath.length;
  const points = counted(count, "thought", "thoughts");
  if (q.mapMethod && q.mapMethod.name === "tsne") return `t-SNE of ${points} with perplexity ${q.mapMethod.perplexity.toFixed(1).replace(/\.0$/, "")}, initialized with principal components.`;
  return `${points} projected onto the first two principal components of this question.`;
}

/** The map with its legend. */
function mapBlock(q, view, more = "") {
  return block("map-block", "Map of the thoughts", map(q, view), mapLegend(q), make("p", { class: "note" }, mapMethodNote(q) + more));
}

/** Selects a trajectory when one of its elements is clicked. */
function selectOnClick(element, q, view) {
  element.addEventListener("click", (event) => {
    const target = event.target.closest("[data-k]");
    if (!target) return;
    view.selected = [q.names[Number(target.dataset.k)]];
    view.redraw();
  });
  return element;
}
