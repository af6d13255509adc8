// Curves on a canvas: redrawn when there are new points, at most once per frame and never while hidden.

import { h, number, put } from "./dom.js";

export const colour = (index) => `--curve-${(index % 8) + 1}`;
const read = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A canvas does not support light-dark(): read the computed colour of an element. */
const probe = h("span", { hidden: true });
document.body.append(probe);
export function ink(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= rough) ?? power * 10;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) found.push(k * step);
  return found;
}

/** A running mean, for noisy curves. */
export function smoothed(values, share) {
  if (!share) return values;
  const keep = 1 - 1 / (1 + (values.length * share) / 4);
  let mean = 0, weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = keep * mean + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return mean / weight;
  });
}

/** plot = new Plot({label, signal}); plot.root; plot.draw([{name, colour, steps, values, faint, dots}]) */
export class Plot {
  constructor({ label, signal, small = false, across = "step" }) {
    this.canvas = h("canvas", { role: "img", "aria-label": label });
    this.tip = h("div", { class: "tip", hidden: true });
    this.root = h("div", { class: `plot ${small ? "small" : ""}` }, this.canvas, this.tip);
    this.across = across;
    this.series = [];
    this.logarithmic = false;
    const again = () => this.again();
    const sizes = new ResizeObserver(again);
    sizes.observe(this.canvas);
    signal.addEventListener("abort", () => sizes.disconnect());
    addEventListener("headway-theme", again, { signal });
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX, event.offsetY));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; this.at = undefined; again(); });
  }

  draw(series) { this.series = series; this.again(); }

  again() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => { this.asked = undefined; this.paint(); });
  }

  /** The axes and their scales. */
  scales(width, height) {
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    const usable = (value) => value !== null && Number.isFinite(value) && (!this.logarithmic || value > 0);
    for (const { steps, values, quiet } of this.series) {
      const all = [];
      values.forEach((value, k) => {
        if (!usable(value)) return;
        left = Math.min(left, steps[k]); right = Math.max(right, steps[k]);
        all.push(value);
      });
      if (quiet || !all.length) continue;
      // The first losses of a training are high: clip them, so that later ones are visible.
      const sorted = all.toSorted((a, b) => a - b);
      low = Math.min(low, sorted[0]);
      high = Math.max(high, sorted.length > 50 ? sorted[Math.ceil(sorted.length * 0.995) - 1] : sorted.at(-1));
    }
    if (!(left <= right)) return null;
    if (low === high) { low -= Math.abs(low) * 0.05 || 1; high += Math.abs(high) * 0.05 || 1; }
    const place = this.logarithmic ? Math.log : (value) => value;
    const pad = 0.04 * (place(high) - place(low));
    const [bottom, top] = [place(low) - pad, place(high) + pad];
    const box = { left: 52, right: width - 12, top: 8, bottom: height - 26 };
    return {
      box, left, right, usable,
      values: this.logarithmic ? logTicks(low, high) : ticks(low, high, height / 55),
      x: (step) => box.left + ((step - left) / (right - left || 1)) * (box.right - box.left),
      y: (value) => box.bottom - ((place(value) - bottom) / (top - bottom)) * (box.bottom - box.top),
    };
  }

  paint() {
    const { canvas } = this, scale = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !height) return;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = `11px ${read("--sans")}`;
    const placed = (this.placed = this.scales(width, height));
    if (!placed) {
      pen.fillStyle = ink("--faint");
      pen.fillText("no data yet", 52, 30);
      return;
    }
    const { box, x, y } = placed;
    pen.lineWidth = 1;
    pen.strokeStyle = ink("--rule");
    pen.fillStyle = ink("--faint");
    pen.textAlign = "right"; pen.textBaseline = "middle";
    for (const value of placed.values) {
      const at = Math.round(y(value)) + 0.5;
      pen.beginPath(); pen.moveTo(box.left, at); pen.lineTo(box.right, at); pen.stroke();
      pen.fillText(short(value), box.left - 7, at);
    }
    pen.textBaseline = "top";
    for (const step of ticks(placed.left, placed.right, width / 110)) {
      pen.textAlign = x(step) > box.right - 20 ? "right" : "center";
      pen.fillText(short(step), x(step), box.bottom + 7);
    }
    pen.save();
    pen.beginPath(); pen.rect(box.left - 2, box.top - 4, box.right - box.left + 4, box.bottom - box.top + 6); pen.clip();
    pen.lineJoin = "round";
    for (const one of this.series) this.line(pen, one, placed);
    if (this.at !== undefined) {
      pen.strokeStyle = ink("--faint"); pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(this.at, box.top); pen.lineTo(this.at, box.bottom); pen.stroke();
    }
    pen.restore();
  }

  line(pen, { steps, values, colour: name, faint, dots, dashed, wide }, { x, y, usable }) {
    pen.strokeStyle = pen.fillStyle = ink(name);
    pen.globalAlpha = faint ? 0.28 : 1;
    pen.lineWidth = faint ? 1 : wide ? 2.5 : 1.75;
    pen.setLineDash(dashed ? [5, 4] : []);
    pen.beginPath();
    let down = false;
    values.forEach((value, k) => {
      if (!usable(value)) { down = false; return; }
      down ? pen.lineTo(x(steps[k]), y(value)) : pen.moveTo(x(steps[k]), y(value));
      down = true;
    });
    pen.stroke();
    pen.setLineDash([]);
    if (dots && values.length <= 80) values.forEach((value, k) => {
      if (!usable(value)) return;
      pen.beginPath(); pen.arc(x(steps[k]), y(value), 2.6, 0, 7); pen.fill();
    });
    pen.globalAlpha = 1;
  }

  point(across) {
    const { placed } = this;
    if (!placed) return;
    const { box, left, right } = placed;
    const step = left + ((across - box.left) / (box.right - box.left)) * (right - left);
    const said = this.series.filter(({ faint }) => !faint).slice(0, 14).map(({ name, steps, values }) => {
      const k = nearest(steps, step);
      return k < 0 ? null : `${number(values[k])}  ${name}${steps[k] === Math.round(step) ? "" : ` (${short(steps[k])})`}`;
    }).filter(Boolean);
    this.at = Math.min(box.right, Math.max(box.left, across));
    put(this.tip, `${this.across} ${Math.round(Math.min(right, Math.max(left, step))).toLocaleString("en-US")}\n${said.join("\n")}`);
    this.tip.hidden = false;
    const beyond = across + 14 + this.tip.offsetWidth > this.canvas.clientWidth;
    this.tip.style.left = `${Math.max(0, beyond ? across - 14 - this.tip.offsetWidth : across + 14)}px`;
    this.again();
  }
}

function nearest(steps, step) {
  let [low, high] = [0, steps.length - 1];
  if (high < 0) return -1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    steps[middle] < step ? (low = middle) : (high = middle);
  }
  return Math.abs(steps[low] - step) < Math.abs(steps[high] - step) ? low : high;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
    for (const k of [1, 2, 5]) if (k * 10 ** power >= low * 0.999 && k * 10 ** power <= high * 1.001) found.push(k * 10 ** power);
  return found.length >= 2 ? found : ticks(low, high, 4);
}

export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  if (size && size < 1e-3) return value.toExponential(1).replace(".0e", "e");
  return String(+value.toPrecision(6));
}

/** Draw a curve at the height of a line of text. */
export function spark(canvas, { steps, values }, name = "--faint") {
  const scale = devicePixelRatio || 1, width = canvas.clientWidth || 110, height = canvas.clientHeight || 26;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  const kept = values.map((value, k) => [steps[k], value]).filter(([, value]) => value !== null);
  if (kept.length < 2) return;
  const [low, high] = [Math.min(...kept.map(([, v]) => v)), Math.max(...kept.map(([, v]) => v))];
  const x = (step) => 1 + ((step - kept[0][0]) / (kept.at(-1)[0] - kept[0][0] || 1)) * (width - 5);
  const y = (value) => height - 4 - ((value - low) / (high - low || 1)) * (height - 8);
  pen.strokeStyle = pen.fillStyle = ink(name);
  pen.lineWidth = 1.25;
  pen.lineJoin = "round";
  pen.beginPath();
  kept.forEach(([step, value], k) => (k ? pen.lineTo(x(step), y(value)) : pen.moveTo(x(step), y(value))));
  pen.stroke();
  pen.beginPath(); pen.arc(x(kept.at(-1)[0]), y(kept.at(-1)[1]), 1.8, 0, 7); pen.fill();
}

/** One run's live curves: `take` sets the initial data, `add` appends new lines. */
export class Live {
  constructor() { this.at = 0; this.columns = {}; }
  take({ at, columns }) { this.at = at; this.columns = columns; }
  add({ from, at, lines }) {
    if (from > this.at) return false; // lines are missing
    if (at <= this.at) return true;
    const seen = from < this.at ? Math.max(0, ...Object.values(this.columns).map(({ steps }) => steps.at(-1) ?? 0)) : -1;
    for (const { step, ...values } of lines) {
      if (step < seen) continue;
      for (const [name, value] of Object.entries(values)) {
        if (name === "time" || (typeof value !== "number" && value !== null)) continue;
        const column = (this.columns[name] ??= { steps: [], values: [] });
        column.steps.push(step);
        column.values.push(value);
        if (column.steps.length > 6000) for (const list of [column.steps, column.values]) for (let k = 0; k < 3000; k += 1) list.splice(k, 1);
      }
    }
    this.at = at;
    return true;
  }
}
