// Constructed layers: a convolution, a shift, a pool; and attention as one matrix.

import { post } from "../api.js";
import { h, number, put, trouble } from "../dom.js";
import { ofDifference, ofWeight, painted } from "../looking/colours.js";

const numbers = (text) => text.split(/[\s,;]+/).filter(Boolean).map(Number);

function matrix(rows, caption) {
  const flat = Float64Array.from(rows.flat()), most = Math.max(...flat.map(Math.abs), 1e-9), signed = flat.some((one) => one < 0);
  const canvas = painted(h("canvas", { role: "img", "aria-label": `${caption}, ${rows.length} by ${rows[0].length}` }), flat, rows.length, rows[0].length, signed ? (value) => ofDifference(value, most) : (value) => ofWeight(value / Math.max(1, most)));
  const under = h("output", { class: "under" }, caption);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), i = Math.floor(((event.clientY - box.top) / box.height) * rows.length), j = Math.floor(((event.clientX - box.left) / box.width) * rows[0].length);
    if (rows[i]?.[j] !== undefined) put(under, `row ${i}, column ${j}: ${number(rows[i][j])}`);
  });
  canvas.addEventListener("pointerleave", () => put(under, caption));
  canvas.style.aspectRatio = `${rows[0].length} / ${rows.length}`;
  return h("figure", { class: "matrix" }, canvas, under);
}

/** A form whose answer is updated while typing. */
function answering(page, root, intro, fields, ask) {
  const out = h("div", { class: "answer", role: "status" });
  let waiting, turn = 0;
  async function go() {
    const mine = ++turn;
    page.put(Object.fromEntries(Object.entries(fields).map(([name, { input, initial }]) => [name, input.value === initial ? null : input.value])));
    try {
      const found = await ask(Object.fromEntries(Object.entries(fields).map(([name, { input }]) => [name, input.value])));
      if (mine === turn) put(out, found);
    } catch (error) {
      if (!page.signal.aborted && mine === turn) put(out, trouble(error));
    }
  }
  for (const { input } of Object.values(fields)) input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(go, 120); });
  put(root, h("p", { class: "read" }, intro), h("form", { class: "controls", onsubmit: (event) => { event.preventDefault(); go(); } },
    Object.values(fields).map(({ label, input }) => h("label", {}, `${label} `, input))), out);
  return go();
}
const field = (page, name, label, initial, size = 12) => ({ label, initial, input: h("input", { value: page.query.get(name) ?? initial, size: String(size), "aria-label": label }) });
const choice = (page, name, label, values) => ({ label, initial: values[0], input: h("select", { "aria-label": label }, values.map((one) => h("option", { value: one, selected: one === (page.query.get(name) ?? values[0]) }, one))) });

export function constructions(page, root) {
  const fields = {
    what: choice(page, "what", "Construct", ["convolution", "shift", "mean-pool", "max-pool"]),
    taps: field(page, "taps", "Taps", "1, 2, 1"), places: field(page, "places", "Shift or window size", "3", 4),
    centre: field(page, "centre", "Centre", "", 4), tokens: field(page, "tokens", "Tokens", "12", 4),
  };
  const intro = "An attention layer whose queries and keys are zero, and whose biases depend only on the distance, is a convolution. Below are its derivation and its attention weights.";
  return answering(page, root, intro, fields, async ({ what, taps, places, centre, tokens }) => {
    for (const name of ["taps", "centre"]) fields[name].input.parentElement.hidden = name === "taps" ? what !== "convolution" : what === "shift";
    fields.places.input.parentElement.hidden = what === "convolution";
    const found = await post("/api/ask/solve/construction", { what, taps: numbers(taps), places: Number(places), centre: centre.trim() === "" ? null : Number(centre), tokens: Number(tokens) }, page.signal);
    const line = (label, values) => h("tr", {}, h("th", { scope: "row" }, label), values.map((one) => h("td", {}, number(one))));
    return [h("ol", { class: "derivation" }, found.derivation.map((one) => h("li", {}, one))),
      h("div", { class: "matrices" }, found.attention.map((weights, head) => matrix(weights, `head ${head}: row i is the attention of position i; both ends are padded with zero vectors`))),
      h("div", { class: "scroll" }, h("table", { class: "impulse" }, h("tbody", {}, line("input", found.impulse), line("attention output", found.response), line("computed directly", found.directly))))];
  });
}

export function matrices(page, root) {
  const fields = { weights: field(page, "weights", "Weights, one row per query", "0.5, 0.5; 0.2, 0.8", 34), width: field(page, "width", "Channels", "3", 4) };
  const intro = "For one input, attention is Y = AX. With X stacked into one vector it is one matrix: A ⊗ I if tokens are stacked, I ⊗ A if channels are.";
  return answering(page, root, intro, fields, async ({ weights, width }) => {
    const rows = weights.split(";").map(numbers).filter((row) => row.length);
    if (!rows.length || rows.flat().some((one) => !Number.isFinite(one))) throw new Error("enter one row of numbers per query, separated by ;");
    const found = await post("/api/ask/solve/matrix", { weights: rows, width: Number(width) }, page.signal);
    return [h("div", { class: "matrices" }, matrix(rows, "A"), matrix(found.rows, "tokens stacked: A ⊗ I"), matrix(found.columns, "channels stacked: I ⊗ A")),
      h("ol", { class: "derivation" }, found.derivation.map((one) => h("li", {}, one)))];
  });
}
