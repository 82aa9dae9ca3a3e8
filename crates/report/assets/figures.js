// Values of the figures as tables and CSV, and export of the figures as SVG and PNG, without any other file. The data are written by
// `Figure::data_json` in src/figures/rows.rs.
const figureData = JSON.parse($("figure-data")?.textContent || "[]");

function csvField(text) {
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** The content of the file figures/NAME.csv. */
function csvOf({ panels }) {
  const lines = panels.flatMap(({ title, rows }) => rows.map(([series, ...numbers]) => [csvField(title), csvField(series), ...numbers.map((x) => x ?? "")].join(",")));
  return `${["panel,series,x,y,low,high", ...lines].join("\n")}\n`;
}

/** Formats a number with four significant digits, or a fraction in percent. */
function coordinate(value, isShare) {
  if (value === null) return "–";
  if (isShare) return `${(100 * value).toFixed(1)}%`;
  return Number.isInteger(value) ? `${value}` : `${Number(value.toPrecision(4))}`;
}

/** The values of a figure, one table per panel. */
function valueTables({ panels }) {
  const box = make("div", { class: "values", tabindex: "0", role: "region", "aria-label": "values of the figure" });
  for (const { title, x, y, rows } of panels) {
    const head = make("tr", {}, ...["series", x[0], y[0], "95% low", "95% high"].map((name) => make("th", { scope: "col" }, name)));
    const body = rows.map(([series, ...[at, value, low, high]]) =>
      make("tr", {}, make("td", {}, series), make("td", {}, coordinate(at, x[1])), ...[value, low, high].map((number) => make("td", {}, coordinate(number, y[1])))));
    box.append(make("h3", {}, title), make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  }
  return box;
}

/** All panels of a figure side by side in one SVG, with title, legend and the current colors of the page. */
function svgOf(section) {
  const panels = [...section.querySelectorAll(".panel svg")];
  const columns = Math.min(3, panels.length);
  const [width, height] = [420, 310];
  const keys = [...section.querySelectorAll(".legend li")];
  const perRow = Math.max(1, Math.floor((columns * width) / 210));
  const rows = Math.ceil(panels.length / columns);
  const size = [columns * width, 30 + rows * height + 20 * Math.ceil(keys.length / perRow) + 10];
  const ink = getComputedStyle(document.body).color;
  const whole = draw("svg", { xmlns: SVG, width: size[0], height: size[1], viewBox: `0 0 ${size[0]} ${size[1]}`, "font-family": "DejaVu Sans, Verdana, sans-serif" });
  whole.append(draw("rect", { width: size[0], height: size[1], fill: getComputedStyle(section).backgroundColor }));
  whole.append(draw("text", { x: 12, y: 20, "font-size": 14, "font-weight": "bold", fill: ink }, section.querySelector("h2").firstChild.textContent));
  panels.forEach((panel, i) => whole.append(nested(panel, (i % columns) * width, 30 + Math.floor(i / columns) * height, width, height)));
  keys.forEach((key, i) => {
    const [x, y] = [12 + (i % perRow) * 210, 30 + rows * height + 20 * Math.floor(i / perRow)];
    whole.append(nested(key.querySelector("svg"), x, y, 26, 14), draw("text", { x: x + 32, y: y + 11, "font-size": 12, fill: ink }, key.textContent.trim()));
  });
  return new XMLSerializer().serializeToString(whole);
}

/** A copy of an SVG element at a position, with colors as attributes, because a file has no style sheet. */
function nested(svg, x, y, width, height) {
  const copy = svg.cloneNode(true);
  const [from, to] = [svg.querySelectorAll("[class]"), copy.querySelectorAll("[class]")];
  from.forEach((element, i) => {
    const { fill: inside, stroke } = getComputedStyle(element);
    to[i].setAttribute("fill", inside);
    to[i].setAttribute("stroke", stroke);
    to[i].removeAttribute("class");
  });
  for (const [name, value] of Object.entries({ x, y, width, height })) copy.setAttribute(name, value);
  return copy;
}

/** Renders an SVG to PNG at twice its size. */
async function pngOf(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = make("canvas", { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Adds the buttons of a figure. */
function addTools(figure) {
  const section = $(figure.name);
  const button = (text, label, action) => {
    const element = make("button", { type: "button", "aria-label": `${label} of this figure` }, text);
    element.addEventListener("click", () => action(element));
    return element;
  };
  const table = button("Values", "values", (element) => {
    const shown = section.querySelector(".values");
    if (shown) shown.remove();
    else section.append(valueTables(figure));
    element.setAttribute("aria-pressed", String(!shown));
  });
  const tools = make("span", { class: "tools" }, table,
    button("CSV", "CSV", () => save(new Blob([csvOf(figure)], { type: "text/csv" }), `${figure.name}.csv`)),
    button("SVG", "SVG", () => save(new Blob([svgOf(section)], { type: "image/svg+xml" }), `${figure.name}.svg`)),
    button("PNG", "PNG", async () => save(await pngOf(svgOf(section)), `${figure.name}.png`)));
  section.querySelector("h2").append(tools);
}

/** Folds a caption of more than three lines and adds a button to unfold it. */
function foldCaption(figure) {
  const caption = $(figure.name).querySelector(".caption");
  const button = make("button", { type: "button", class: "unfold", "aria-expanded": "false" }, "more");
  const hideUnused = () => { button.hidden = caption.classList.contains("folded") && caption.scrollHeight <= caption.clientHeight + 1; };
  button.addEventListener("click", () => {
    const folded = caption.classList.toggle("folded");
    button.setAttribute("aria-expanded", String(!folded));
    button.textContent = folded ? "more" : "less";
  });
  caption.classList.add("folded");
  caption.after(button);
  new ResizeObserver(hideUnused).observe(caption);
}

figureData.forEach(addTools);
figureData.forEach(foldCaption);
