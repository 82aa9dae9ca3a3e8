// DOM helpers, tooltips and sortable tables. Text is only written to text nodes and attributes, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; strings become text. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  return fill(element, attributes, children);
}

/** An SVG element with attributes and children. */
function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Tooltips of elements with a data-tip attribute; in a figure, of the point nearest to the pointer.
const tip = document.body.appendChild(make("div", { id: "tip", role: "tooltip" }));
/** Maximum distance in pixels from the pointer to a point of a figure. */
const REACH = 28;

function showTip(event) {
  const inside = event.target.closest ? event.target : null;
  const target = inside && (inside.closest("[data-tip]") || nearestPoint(inside.closest(".panel svg"), event));
  document.querySelector(".near")?.classList.remove("near");
  tip.style.display = target ? "block" : "none";
  if (!target) return;
  if (target.closest(".panel")) target.classList.add("near");
  tip.textContent = target.dataset.tip;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4)) + "px";
  tip.style.top = Math.max(4, event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18) + "px";
}

function nearestPoint(svg, { clientX, clientY }) {
  let [nearest, least] = [null, REACH];
  for (const element of svg ? svg.querySelectorAll("[data-tip]") : []) {
    const { left, right, top, bottom } = element.getBoundingClientRect();
    const distance = Math.hypot((left + right) / 2 - clientX, (top + bottom) / 2 - clientY);
    if (distance < least) [nearest, least] = [element, distance];
  }
  return nearest;
}

for (const name of ["pointermove", "pointerdown"]) document.addEventListener(name, showTip);

// Tables of the class `sortable`: a click on a heading sorts the rows by that column, a second click reverses the order.
function sortTable(table, column, heading) {
  const before = heading.getAttribute("aria-sort");
  // Names are sorted ascending first, numbers descending.
  const down = before === "none" ? column > 0 : before === "ascending";
  const text = (row) => row.cells[column].firstChild?.textContent.trim() ?? "";
  const value = (row) => (text(row) === "–" ? NaN : Number(text(row)));
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    const numeric = Number.isFinite(x) - Number.isFinite(y);
    const order = Number.isFinite(x) && Number.isFinite(y) ? x - y : text(a).localeCompare(text(b));
    return -numeric || (down ? -order : order);
  });
  table.tBodies[0].append(...rows);
  for (const other of heading.parentNode.cells) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = make("button", { type: "button", class: "sort" }, heading.textContent);
    button.addEventListener("click", () => sortTable(table, column, heading));
    heading.setAttribute("aria-sort", "none");
    heading.replaceChildren(button);
  });
}
