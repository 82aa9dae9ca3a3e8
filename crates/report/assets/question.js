// One question: its votes, trajectories, thoughts in tokens, rewards and map, as elements. Shared by the report's page (page.js) and
// the server's (crates/serve/assets/explore.js); both give a question as an object:
//   answers   [[answer, right, text]]: distinct answers; `right` is null where no right answer is known
//   given     of each trajectory, the place of its answer in `answers`
//   names     of each trajectory, its number
//   lengths   of each trajectory, its thoughts
//   rewards   of each trajectory, the rewards of its thoughts, or null; null where there is no reward model
//   outcomes  of each trajectory, the reward of its answer, or null; null where there are none
//   paths     of each trajectory, the places of its thoughts on the map; null where there is no map
//   greedyPath  the same without perturbation
//   lens      [[[token, thousandths]]]: the tokens of each thought of one trajectory, which lensNote names
//   texts, said  texts, and of each trajectory the place of its own
const counted = (number, one, several) => `${number} ${number === 1 ? one : several}`;
const isRight = (answer) => Boolean(answer && answer[1]);
const isOpen = (answer) => answer[1] === null;
const show = (answer) => (answer[0] === null ? "no answer" : answer[0]);
/** The class of an answer and the sign before it, for those who do not see its colour. */
const mark = (answer) => (isOpen(answer) ? "open" : answer[1] ? "right" : "wrong");
const sign = (answer) => (isOpen(answer) ? "" : answer[1] ? "✓ " : "✗ ");
const colour = (answer) => `var(--${isOpen(answer) ? "accent" : mark(answer)})`;
const signed = (answer) => sign(answer) + show(answer);

function votes(q) {
  const counts = q.answers.map((answer, place) => ({ answer, count: q.given.filter((given) => given === place).length }));
  counts.sort((a, b) => b.count - a.count);
  const box = make("div");
  const right = q.answers.some(isOpen) ? "" : `, ${q.given.filter((place) => isRight(q.answers[place])).length} right`;
  box.append(make("h3", {}, `Votes: ${counted(q.given.length, "trajectory", "trajectories")}, ${counted(q.answers.length, "distinct answer", "distinct answers")}${right}`));
  const table = make("div", { class: "votes" });
  const most = counts.length ? counts[0].count : 1;
  for (const { answer, count } of counts.slice(0, 12)) {
    const bar = make("div", { class: `length ${mark(answer)}`, style: `width:${((100 * count) / most).toFixed(1)}%` });
    table.append(make("span", { class: `answer ${mark(answer)}` }, (isRight(answer) ? "✓ " : "") + show(answer)), bar, make("span", {}, `${count}`));
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
    const rewards = q.outcomes || (q.rewards && q.rewards.map(mean));
    const head = make("tr", {}, make("th", {}, "k"), make("th", {}, "answer"));
    if (rewards) head.append(make("th", {}, q.outcomes ? "outcome reward" : "mean reward"));
    head.append(make("th", {}, "text"));
    const table = make("table", {}, make("thead", {}, head));
    q.said.forEach((place, k) => {
      const answer = q.answers[q.given[k]];
      const row = make("tr", {}, make("td", {}, `${q.names[k]}`), make("td", { class: mark(answer) }, (isRight(answer) ? "✓ " : "") + show(answer)));
      if (rewards) row.append(make("td", {}, Number.isFinite(rewards[k]) ? rewards[k].toFixed(3) : "–"));
      row.append(make("td", { class: "said" }, q.texts[place]));
      table.append(row);
    });
    box.append(make("div", { class: "wide" }, table));
  });
  return [box];
}

const mean = (own) => (own && own.length ? own.reduce((a, b) => a + b) / own.length : NaN);
const spread = (all) => (all.length ? [Math.min(...all), Math.max(...all)] : [0, 0]);

/** The tokens that the LM head predicts where each thought of a trajectory is made. */
function lens(q) {
  if (!q.lens.length) return [];
  const table = make("table", { class: "lens" });
  q.lens.forEach((tokens, t) => {
    const row = make("tr", {}, make("th", { scope: "row" }, `${t + 1}`));
    for (const [text, share] of tokens) {
      const tip = `${JSON.stringify(text)}: ${(share / 10).toFixed(1)}%`;
      row.append(make("td", { "data-tip": tip, style: `opacity:${(0.55 + 0.45 * (share / 1000)).toFixed(2)}` }, text.trim() || JSON.stringify(text)));
    }
    table.append(row);
  });
  const note = `Rows are the thoughts of ${q.lensNote}; the tokens are the LM head's most probable ones at the hidden state ` +
    "from which the thought is made, most probable first, paler where less probable.";
  return [make("h3", {}, "Thoughts in tokens"), make("div", { class: "wide" }, table), make("p", { class: "note" }, note)];
}

/** Heat map of rewards: a column per trajectory, a row per thought, and a last row of outcome rewards if there are any. Columns are
 * sorted where `byReward` is set, and have their trajectory's place as data-k. */
function strip(q, byReward) {
  const { rewards, outcomes } = q;
  const range = spread(rewards.flat().filter(Number.isFinite));
  const outcomeRange = outcomes && spread(outcomes.filter(Number.isFinite));
  const columns = q.given.map((place, k) => {
    const own = rewards[k] || [];
    return { k, answer: q.answers[place], own, mean: mean(own), reward: outcomes ? outcomes[k] : mean(own) };
  });
  const order = (reward) => (Number.isFinite(reward) ? reward : -Infinity);
  if (byReward) columns.sort((a, b) => order(b.reward) - order(a.reward) || a.k - b.k);
  const longest = Math.max(1, ...q.lengths);
  const rows = longest + (outcomes ? 1 : 0);
  const [width, height, foot] = [10, 12, 10];
  const title = `Rewards of ${counted(columns.length, "trajectory", "trajectories")}, from ${range[0].toFixed(2)} to ${range[1].toFixed(2)}`;
  const svg = draw("svg", { class: "strip", role: "img", "aria-label": title, viewBox: `0 0 ${columns.length * width} ${rows * height + foot}`, preserveAspectRatio: "none" });
  svg.style.height = `${rows * 14 + foot}px`;
  columns.forEach(({ k, answer, own, mean, reward }, x) => {
    const outcome = outcomes && Number.isFinite(reward) ? `\noutcome reward ${reward.toFixed(3)}` : "";
    const label = `trajectory ${q.names[k]}: ${signed(answer)}\nmean process reward ${mean.toFixed(3)}${outcome}`;
    const cell = (row, value, [low, high], tip) => {
      const box = { x: x * width, y: row * height, width: width - 0.6, height: height - 0.6 };
      svg.append(draw("rect", { ...box, fill: heat((value - low) / (high - low || 1)), "data-tip": tip, "data-k": k }));
    };
    own.forEach((value, t) => cell(t, value, range, `${label}\nthought ${t + 1}: reward ${value.toFixed(3)}`));
    if (outcomes && Number.isFinite(reward)) cell(longest, reward, outcomeRange, label);
    const footBox = { x: x * width, y: rows * height + 2, width: width - 0.6, height: foot - 2 };
    svg.append(draw("rect", { ...footBox, style: `fill:${colour(answer)}`, "data-tip": label, "data-k": k }));
  });
  const note = `Columns are trajectories, rows their thoughts from first (top) to last; from dark, this question's lowest reward ` +
    `(${range[0].toFixed(2)}), to bright, its highest (${range[1].toFixed(2)}). ` +
    (outcomes ? `The last row is the outcome reward, in its own colours (${outcomeRange.map((x) => x.toFixed(2)).join(" to ")}). ` : "") +
    (q.answers.some(isOpen) ? "" : `The foot is green where the answer is right.`);
  return { title: outcomes ? "Rewards" : "Process rewards", svg, note };
}

/** A colour map from dark violet over red to light yellow, monotonic in lightness. */
function heat(share) {
  const stops = [[35, 16, 71], [114, 31, 129], [205, 64, 113], [253, 150, 104], [252, 237, 176]];
  const place = Math.max(0, Math.min(0.9999, share)) * (stops.length - 1);
  const [from, to] = [stops[Math.floor(place)], stops[Math.floor(place) + 1]];
  const mixed = from.map((x, i) => Math.round(x + (to[i] - x) * (place % 1)));
  return `rgb(${mixed.join(",")})`;
}

/** The trajectories in the plane, each a line with a sign at its last thought and its place as data-k. */
function map(q) {
  const [width, height, air] = [520, 360, 14];
  const all = [...q.paths, q.greedyPath].flat();
  const span = [0, 1].map((axis) => {
    const [low, high] = spread(all.map((place) => place[axis]));
    return [low, high > low ? high : low + 1];
  });
  const place = ([x, y]) => [
    air + ((x - span[0][0]) / (span[0][1] - span[0][0])) * (width - 2 * air),
    height - air - ((y - span[1][0]) / (span[1][1] - span[1][0])) * (height - 2 * air),
  ].map((number) => number.toFixed(1));
  const title = `Map of the thoughts of ${counted(q.given.length, "trajectory", "trajectories")}`;
  const svg = draw("svg", { class: "map", role: "img", "aria-label": title, viewBox: `0 0 ${width} ${height}` });
  const marks = [];
  q.given.forEach((given, k) => {
    const answer = q.answers[given];
    const path = q.paths[k].map(place);
    if (!path.length) return;
    const label = `trajectory ${q.names[k]}: ${signed(answer)}`;
    svg.append(draw("polyline", { points: path.map((p) => p.join()).join(" "), fill: "none", "stroke-opacity": 0.22,
      style: `stroke:${colour(answer)}`, "data-tip": label, "data-k": k }));
    const [x, y] = path[path.length - 1].map(Number);
    const shape = isRight(answer) ? `M${x} ${y - 5}l4 5l-4 5l-4 -5z` : isOpen(answer) ? `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z` : `M${x - 3} ${y - 3}l6 6m0 -6l-6 6`;
    const filled = isRight(answer) || isOpen(answer);
    marks.push(draw("path", { d: shape, style: filled ? `fill:${colour(answer)}` : `fill:none;stroke:${colour(answer)};stroke-width:1.6`, "data-tip": label, "data-k": k }));
  });
  svg.append(...marks);
  const greedy = q.greedyPath.map(place);
  if (greedy.length) {
    svg.append(draw("polyline", { points: greedy.map((p) => p.join()).join(" "), fill: "none", style: "stroke:var(--accent);stroke-width:2" }));
    const [x, y] = greedy[greedy.length - 1];
    svg.append(draw("circle", { cx: x, cy: y, r: 6, style: "fill:var(--accent)", "data-tip": "without perturbation" }));
  }
  return svg;
}
