// Scores per class, and the confusion matrix: as tables for few classes, with a filter for many.

import { h, number, put, whole } from "./dom.js";

const SHOWN = 40; // classes at once
const MISTAKES = 20; // the most frequent ones, if there are many classes

/** `parts`: [["valid.precision.CLASS", score], …] */
export function perClass(parts) {
  if (!parts.length) return null;
  const metrics = new Set(), classes = new Map();
  for (const [key, score] of parts) {
    const [split, metric, ...rest] = key.split("."), part = rest.join("."), name = `${split}.${metric}`;
    metrics.add(name);
    if (!classes.has(part)) classes.set(part, {});
    classes.get(part)[name] = score.value;
  }
  const body = h("tbody"), more = h("p", { class: "note", role: "status" });
  const filter = h("input", { type: "search", placeholder: "filter by class name", "aria-label": "Filter classes", oninput: () => list() });
  function list() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...classes].filter(([part]) => words.every((word) => part.toLowerCase().includes(word)));
    put(body, found.slice(0, SHOWN).map(([part, values]) => h("tr", {}, h("th", { scope: "row" }, part), [...metrics].map((one) => h("td", { class: "number" }, number(values[one]))))));
    more.textContent = found.length > SHOWN ? `${whole(found.length - SHOWN)} more classes: filter for them.` : "";
  }
  list();
  return h("div", { class: "scroll" }, h("h3", {}, "Per class"), classes.size > SHOWN && filter,
    h("table", { class: "classes" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "class"), [...metrics].map((one) => h("th", { class: "number", scope: "col" }, one)))), body), more);
}

/** Few classes come as `counts`, one row each; many as `cells`, only those that are not zero. */
export function confusion(key, { classes, counts, cells }) {
  const heading = h("h3", {}, `${key}: confusion matrix`);
  if (counts?.length) return h("div", { class: "scroll" }, heading, h("table", { class: "confusion" },
    h("thead", {}, h("tr", {}, h("th", {}, "true ↓ predicted →"), classes.map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", {}, counts.map((row, k) => h("tr", {}, h("th", { scope: "row" }, classes[k]), row.map((count, j) => h("td", { class: j === k ? "good" : "" }, whole(count))))))));
  const mistakes = cells.filter(([right, chosen]) => right !== chosen).sort((a, b) => b[2] - a[2]);
  return h("div", { class: "scroll" }, heading, h("table", { class: "mistakes" },
    h("thead", {}, h("tr", {}, ["true class", "predicted", "count"].map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", {}, mistakes.slice(0, MISTAKES).map(([right, chosen, count]) => h("tr", {}, h("th", { scope: "row" }, classes[right]), h("td", {}, classes[chosen]), h("td", { class: "number" }, whole(count)))))),
    h("p", { class: "note" }, mistakes.length > MISTAKES ? `The most frequent of ${whole(mistakes.length)} kinds of mistakes among ${whole(classes.length)} classes.` : `${whole(classes.length)} classes.`));
}
