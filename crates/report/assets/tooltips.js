// Tooltips of the figures, and how elements are made. Text is only set in text nodes and attributes.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; strings become text. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  return fill(element, attributes, children);
}

/** The same for SVG. */
function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Tooltips: elements with a data-tip attribute.
const tip = document.body.appendChild(make("div", { id: "tip", role: "tooltip" }));
function showTip(event) {
  const target = event.target.closest && event.target.closest("[data-tip]");
  tip.style.display = target ? "block" : "none";
  if (!target) return;
  tip.textContent = target.dataset.tip;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4)) + "px";
  tip.style.top = Math.max(4, event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18) + "px";
}
for (const name of ["pointermove", "pointerdown"]) document.addEventListener(name, showTip);
