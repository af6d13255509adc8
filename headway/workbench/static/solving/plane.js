// Keys in the plane, moved with the mouse or the arrow keys, with live answers. headway.solve computes them on the server,
// in a few milliseconds; this file draws them.

import { post } from "../api.js";
import { h, number, put, s, trouble } from "../dom.js";

const SIZE = 460, REACH = 3; // pixels, and the range of coordinates to each side
const START = "1,0;0,1;-1,-1;0.1,0.1";
const MOST = 24;
const at = ([x, y]) => [SIZE / 2 + (x / REACH) * (SIZE / 2), SIZE / 2 - (y / REACH) * (SIZE / 2)];
const short = (value) => String(Number(value.toPrecision(2)));
const rounded = (value) => Math.max(-REACH, Math.min(REACH, Math.round(value * 100) / 100));

export async function plane(page, root, part) {
  const keys = read(page.query.get("keys") ?? START) ?? read(START);
  const state = {
    keys, chosen: Math.min(Number(page.query.get("key") ?? 0) || 0, keys.length - 1),
    weights: read1(page.query.get("weights"), keys.length), query: (read(page.query.get("query") ?? "2,1") ?? [[2, 1]])[0],
    scaled: page.query.get("scaled") === "1", within: Number(page.query.get("within") ?? 0.001) || 0.001,
  };
  const drawing = s("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, class: "plane", role: "group", "aria-label": "Keys in the plane; arrow keys move the focused key" });
  const layers = { regions: s("g", { class: "regions" }), hull: s("polygon", { class: "hull" }), mixture: s("g", { class: "mixture" }), arrow: s("g", { class: "arrow" }), keys: s("g", {}) };
  drawing.append(grid(), ...Object.values(layers));
  const verdict = h("p", { class: "verdict", role: "status" }), words = h("ol", { class: "derivation" }), bars = h("div", { class: "weights" });
  let busy = false, again = false, dragged = null, spots = [], tip;

  // --- questions --------------------------------------------------------------------------------------------------------

  const wanted = () => state.weights ?? state.keys.map((_, k) => (k === state.chosen ? 1 : 0));

  async function ask() {
    if (busy) { again = true; return; }
    busy = true;
    const began = performance.now();
    const given = { keys: state.keys, wanted: wanted(), within: state.within, scaled: state.scaled };
    try {
      const found = part === "query" ? await post("/api/ask/solve/query", given, page.signal)
        : await post("/api/ask/solve/key", { ...given, query: state.query, replace: state.chosen }, page.signal);
      answered(found);
      drawing.dataset.milliseconds = (performance.now() - began).toFixed(1);
    } catch (error) {
      if (page.signal.aborted) return;
      put(verdict, trouble(error));
    }
    busy = false;
    if (again) { again = false; ask(); }
  }

  function keep() {
    page.put({
      keys: state.keys.map((key) => key.join()).join(";"), key: state.chosen, weights: state.weights?.map((one) => number(one)).join(),
      query: part === "key" ? state.query.join() : null, scaled: state.scaled ? "1" : null, within: state.within === 0.001 ? null : state.within,
    });
  }
  const changed = () => { draw(); ask(); };

  // --- what is drawn ---------------------------------------------------------------------------------------------------

  function draw() {
    while (spots.length > state.keys.length) spots.pop().remove();
    while (spots.length < state.keys.length) {
      const k = spots.length, spot = s("g", { class: "key", tabindex: "0", role: "button" }, s("circle", { r: 9 }), s("text", { y: 4 }, String(k)));
      spot.addEventListener("pointerdown", (event) => { dragged = { spot: k }; spot.setPointerCapture(event.pointerId); choose(k); event.preventDefault(); spot.focus(); });
      spot.addEventListener("keydown", (event) => moved(event, (x, y) => { state.keys[k] = [rounded(state.keys[k][0] + x), rounded(state.keys[k][1] + y)]; }, k));
      spot.addEventListener("focus", () => choose(k));
      layers.keys.append(spot);
      spots.push(spot);
    }
    state.keys.forEach((key, k) => {
      const [x, y] = at(key);
      spots[k].setAttribute("transform", `translate(${x} ${y})`);
      spots[k].setAttribute("aria-label", `key ${k} at ${key.join(", ")}`);
      spots[k].classList.toggle("chosen", k === state.chosen);
    });
    if (part === "key") drawArrow(state.query, true);
  }

  function drawArrow(vector, movable) {
    const size = Math.hypot(...vector), end = size ? vector.map((one) => (movable ? one : (one / size) * 0.85 * REACH)) : [0, 0];
    const [x, y] = at(end), [u, v] = at([0, 0]), angle = (Math.atan2(y - v, x - u) * 180) / Math.PI;
    if (!tip) {
      tip = { line: s("line", {}), head: s("path", { d: "M0 0L-13 -6L-13 6Z" }), name: s("text", {}) };
      layers.arrow.append(tip.line, tip.head, tip.name);
      if (movable) {
        tip.head.setAttribute("tabindex", "0");
        tip.head.setAttribute("role", "button");
        tip.head.addEventListener("pointerdown", (event) => { dragged = { query: true }; tip.head.setPointerCapture(event.pointerId); event.preventDefault(); tip.head.focus(); });
        tip.head.addEventListener("keydown", (event) => moved(event, (a, b) => { state.query = [rounded(state.query[0] + a), rounded(state.query[1] + b)]; }));
      }
    }
    for (const [name, value] of Object.entries({ x1: u, y1: v, x2: x, y2: y })) tip.line.setAttribute(name, value);
    tip.head.setAttribute("transform", `translate(${x} ${y}) rotate(${angle})`);
    if (movable) tip.head.setAttribute("aria-label", `the query, ${vector.join(", ")}`);
    tip.name.setAttribute("x", 10);
    tip.name.setAttribute("y", SIZE - 12);
    tip.name.textContent = size ? `q = (${vector.map(number).join(", ")}), norm ${number(size)}` : "q = 0: equal attention on all keys";
  }

  function answered(found) {
    const selectable = new Set(found.corners);
    layers.hull.setAttribute("points", found.corners.map((k) => at(found.keys[k]).join()).join(" "));
    spots.forEach((spot, k) => {
      spot.classList.toggle("inside", !selectable.has(k));
      spot.querySelector("circle").setAttribute("r", 9 + 8 * Math.sqrt(found.weights[k] ?? 0));
    });
    layers.mixture.replaceChildren();
    if (part === "query") {
      if (found.verdict === "reached") drawArrow(found.query, false);
      layers.arrow.classList.toggle("none", found.verdict !== "reached");
      if (found.certificate) {
        // Σ w k = Σ μ k: another mixture of keys with the same mean. Lines go from that mean to the keys of the mixture.
        const mean = [0, 1].map((axis) => found.keys.reduce((sum, key, k) => sum + found.wanted[k] * key[axis], 0)), [x, y] = at(mean);
        const labels = [];
        found.certificate.mixture.forEach((share, k) => {
          if (share < 0.002) return;
          const [u, v] = at(found.keys[k]);
          layers.mixture.append(s("line", { x1: x, y1: y, x2: u, y2: v, "stroke-width": 1 + 8 * share }));
          const long = Math.hypot(u - x, v - y), aside = 16; // pixels between a line and its label
          if (long > 40) labels.push(s("text", { class: "share", x: (x + u) / 2 + (aside * (v - y)) / long, y: (y + v) / 2 - (aside * (u - x)) / long + 4 }, `${(100 * share).toFixed(0)} %`));
        });
        layers.mixture.append(...labels);
      }
      regions(found.keys);
    } else {
      const [x, y] = at(found.key.map((one) => Math.max(-REACH, Math.min(REACH, one ?? 0)))), [u, v] = at(state.keys[state.chosen]);
      layers.mixture.append(s("line", { class: "to", x1: u, y1: v, x2: x, y2: y }), s("circle", { class: "new", cx: x, cy: y, r: 8 }), s("text", { x: x + 12, y: y - 8 }, `key ${state.chosen} → (${found.key.map(number).join(", ")})`));
    }
    const missed = `${short(100 * found.error)} % of the attention is in the wrong place`;
    const told = {
      reached: `A ${part} exists: ${missed}.`,
      impossible: part === "query" ? "No query exists: the mixture shown has the same mean key and higher entropy." : `No key exists; with the best one, ${missed}.`,
      undecided: `Neither found nor ruled out; with the best one found, ${missed}.`, unrepresentable: `A ${part} exists, but float64 has too few digits to represent it.`,
    }[found.verdict];
    put(verdict, h("b", { class: found.verdict === "reached" ? "good" : found.verdict === "impossible" ? "bad" : "doubt" }, found.verdict), ` ${told}`);
    drawing.dataset.verdict = found.verdict;
    put(words, found.derivation.map((line) => h("li", {}, line)));
    sliders(found);
  }

  /** The key with the highest score for every direction of the query: a wedge for each corner of the hull. */
  function regions(all) {
    const steps = 180, best = Array.from({ length: steps }, (_, k) => {
      const angle = (2 * Math.PI * k) / steps, scores = all.map(([x, y]) => x * Math.cos(angle) + y * Math.sin(angle));
      return scores.indexOf(Math.max(...scores));
    });
    const wedges = [];
    for (let k = 0; k < steps; k++) {
      const from = ((k - 0.5) * 2 * Math.PI) / steps, to = ((k + 0.5) * 2 * Math.PI) / steps, far = 1.5 * SIZE;
      wedges.push(s("path", { class: `region c${best[k] % 8}`, d: `M${SIZE / 2} ${SIZE / 2}L${SIZE / 2 + far * Math.cos(from)} ${SIZE / 2 - far * Math.sin(from)}L${SIZE / 2 + far * Math.cos(to)} ${SIZE / 2 - far * Math.sin(to)}Z` }));
    }
    layers.regions.replaceChildren(...wedges);
  }

  function sliders(found) {
    if (bars.childElementCount !== found.wanted.length) {
      put(bars, found.wanted.map((_, k) => {
        const slider = h("input", { type: "range", min: "0", max: "1", step: "0.01", "aria-label": `wanted weight of key ${k}`, oninput: () => {
          state.weights = wanted().slice();
          state.weights[k] = Number(slider.value);
          if (state.weights.every((one) => one === 0)) state.weights[k] = 0.01;
          changed();
          keep();
        } });
        return h("label", { class: "slider" }, h("span", {}, `key ${k}`), slider, h("b", { class: "level" }, h("i"), h("u")), h("em"));
      }));
    }
    [...bars.children].forEach((row, k) => {
      const slider = row.querySelector("input");
      if (document.activeElement !== slider) slider.value = wanted()[k];
      row.querySelector("i").style.width = `${100 * found.weights[k]}%`;
      row.querySelector("u").style.left = `${100 * found.wanted[k]}%`;
      row.querySelector("em").textContent = `${(100 * found.wanted[k]).toFixed(0)} → ${(100 * found.weights[k]).toFixed(1)} %`;
    });
  }

  // --- what a reader does ----------------------------------------------------------------------------------------------

  function choose(k) {
    if (state.chosen === k && !state.weights) return;
    state.chosen = k;
    if (part === "query") state.weights = null;
    changed();
    keep();
  }
  function moved(event, by, k) {
    const step = (event.shiftKey ? 0.5 : 0.05), way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (way) { event.preventDefault(); by(step * way[0], step * way[1]); changed(); keep(); }
    if ((event.key === "Delete" || event.key === "Backspace") && k !== undefined && state.keys.length > 2) { event.preventDefault(); remove(k); }
  }
  function remove(k) {
    state.keys.splice(k, 1);
    state.chosen = Math.min(state.chosen, state.keys.length - 1);
    state.weights = null;
    bars.replaceChildren();
    changed();
    keep();
  }
  drawing.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    const box = drawing.getBoundingClientRect();
    const place = [rounded(((event.clientX - box.left) / box.width - 0.5) * 2 * REACH), rounded((0.5 - (event.clientY - box.top) / box.height) * 2 * REACH)];
    if (dragged.query) state.query = place;
    else state.keys[dragged.spot] = place;
    changed();
  });
  for (const kind of ["pointerup", "pointercancel"]) drawing.addEventListener(kind, () => { if (dragged) { dragged = null; keep(); } });

  const add = h("button", { type: "button", onclick: () => {
    if (state.keys.length >= MOST) return;
    const angle = 2.4 * state.keys.length;
    state.keys.push([rounded(1.5 * Math.cos(angle)), rounded(1.5 * Math.sin(angle))]);
    state.weights = null;
    bars.replaceChildren();
    changed();
    keep();
  } }, "Add a key");
  const less = h("button", { type: "button", onclick: () => state.keys.length > 2 && remove(state.chosen) }, "Remove this key");
  const evenly = h("button", { type: "button", onclick: () => { state.weights = state.keys.map(() => 1); changed(); keep(); } }, "Equal weights");
  const scaled = h("label", {}, h("input", { type: "checkbox", checked: state.scaled, onchange: (event) => { state.scaled = event.target.checked; changed(); keep(); } }), " scores scaled: q·k/√d");
  const within = h("label", {}, "tolerance ", h("select", { "aria-label": "Tolerance: share of attention in the wrong place", onchange: (event) => { state.within = Number(event.target.value); changed(); keep(); } },
    [0.1, 0.01, 0.001, 0.000001].map((value) => h("option", { value: String(value), selected: value === state.within }, `${short(100 * value)} %`))));
  put(root,
    h("p", { class: "read" }, part === "query" ? "Drag the keys. The goal is all attention on the selected key, or the distribution of the sliders. The arrow shows a query that achieves it; if there is none, lines show a mixture of other keys that proves it."
      : "Drag the keys and the tip of the query. The selected key is moved so that this query has the wanted weights."),
    h("div", { class: "paper" }, drawing, h("div", { class: "told" }, verdict, bars, h("p", { class: "controls" }, add, less, evenly, scaled, within))),
    h("h2", {}, "Why"), words);
  draw();
  await ask();
}

function grid() {
  const lines = [];
  for (let k = -REACH; k <= REACH; k++) {
    const [x] = at([k, 0]), [, y] = at([0, k]);
    lines.push(s("line", { x1: x, y1: 0, x2: x, y2: SIZE }), s("line", { x1: 0, y1: y, x2: SIZE, y2: y }));
  }
  return s("g", { class: "grid", "aria-hidden": "true" }, lines);
}

/** Parse "1,0;0,1" as pairs of numbers; null if it is invalid. */
function read(text) {
  const found = text.split(";").slice(0, MOST).map((pair) => pair.split(",").map(Number));
  return found.length && found.every((pair) => pair.length === 2 && pair.every(Number.isFinite)) ? found.map((pair) => pair.map(rounded)) : null;
}
function read1(text, count) {
  const found = text?.split(",").map(Number);
  return found?.length === count && found.every((one) => Number.isFinite(one) && one >= 0) && found.some((one) => one > 0) ? found : null;
}
