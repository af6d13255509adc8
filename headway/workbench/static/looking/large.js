// One map, as large as possible: shows the value under the pointer; arrow keys move from cell to cell.

import { h } from "../dom.js";
import { css, ofWeight, painted } from "./colours.js";

const LEAST = 11; // the smallest cell, in pixels, with row and column labels

/** `onrow(i)`: the row under the pointer, or null. Returns {element, show(map)}. */
export function largeMap({ label, onrow }) {
  const canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": label });
  const said = h("output", { class: "under", "aria-live": "polite" });
  const element = h("div", { class: "large" }, canvas, said);
  const cells = document.createElement("canvas");
  let map, cursor = null, cell = 1, left = 0, top = 0;

  function measure() {
    const room = Math.max(200, Math.min(element.clientWidth || 480, 760)), longest = Math.max(...map.columns.map((one) => one.length), 1);
    const named = Math.max(map.rows.length, map.columns.length) <= (room - 60) / LEAST;
    left = named ? Math.min(110, 10 + 7 * Math.max(...map.rows.map((one) => one.length), 1)) : 2;
    top = named ? (longest === 1 ? 16 : Math.min(110, 14 + 7 * longest)) : 2;
    cell = Math.min(40, (room - left - 2) / Math.max(map.columns.length, 1));
    return named;
  }

  function draw() {
    if (!map) return;
    const named = measure(), dense = devicePixelRatio || 1;
    const width = left + cell * map.columns.length + 2, height = top + cell * map.rows.length + 2;
    canvas.width = Math.round(width * dense);
    canvas.height = Math.round(height * dense);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d"), style = getComputedStyle(canvas);
    context.scale(dense, dense);
    context.imageSmoothingEnabled = cell < 1;
    context.drawImage(cells, left, top, cell * map.columns.length, cell * map.rows.length);
    context.strokeStyle = style.borderTopColor;
    context.strokeRect(left - 0.5, top - 0.5, cell * map.columns.length + 1, cell * map.rows.length + 1);
    context.fillStyle = style.color;
    context.font = `${Math.min(12, Math.max(9, cell - 1))}px ui-monospace, monospace`;
    if (named) {
      context.textAlign = "right";
      context.textBaseline = "middle";
      map.rows.forEach((token, i) => context.fillText(token, left - 4, top + cell * (i + 0.5), left - 6));
      context.textAlign = "left";
      map.columns.forEach((token, j) => {
        context.save();
        context.translate(left + cell * (j + 0.5), top - 5);
        if (top === 16) context.translate(-3, -3);
        else context.rotate(-Math.PI / 2);
        context.fillText(token, 0, 0, top - 6);
        context.restore();
      });
    }
    if (cursor) {
      context.strokeStyle = style.caretColor;
      context.lineWidth = 1.5;
      context.strokeRect(left, top + cell * cursor[0], cell * map.columns.length, Math.max(cell, 1));
      context.strokeRect(left + cell * cursor[1], top, Math.max(cell, 1), cell * map.rows.length);
    }
  }

  function go(to) {
    cursor = to;
    if (to) {
      const [i, j] = to, value = map.data[i * map.columns.length + j], place = map.places ? map.places[i] : i;
      said.textContent = `${map.rows[i]} (${place}) ${map.verb ?? "attends to"} ${map.columns[j]} (${j}): ${value.toFixed(3)}`;
    } else said.textContent = map?.caption ?? "";
    onrow?.(to ? to[0] : null);
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    if (!map) return;
    const box = canvas.getBoundingClientRect();
    const i = Math.floor((event.clientY - box.top - top) / cell), j = Math.floor((event.clientX - box.left - left) / cell);
    if (i >= 0 && j >= 0 && i < map.rows.length && j < map.columns.length) go([i, j]);
    else if (cursor) go(null);
  });
  canvas.addEventListener("pointerleave", () => map && go(null));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || !map) return;
    event.preventDefault();
    const [i, j] = cursor ?? [0, -1];
    go([Math.max(0, Math.min(map.rows.length - 1, i + step[0])), Math.max(0, Math.min(map.columns.length - 1, j + step[1]))]);
  });
  new ResizeObserver(draw).observe(element);
  addEventListener("headway-theme", draw);

  return {
    element,
    /** {data, rows, columns, caption, paint?, verb?, places?} */
    show(next) {
      map = next;
      cursor = null;
      painted(cells, map.data, map.rows.length, map.columns.length, map.paint ?? ofWeight);
      canvas.setAttribute("aria-label", `${label}: ${map.caption}, ${map.rows.length} by ${map.columns.length} cells; arrow keys read them`);
      said.textContent = map.caption;
      draw();
    },
    clear() { map = undefined; canvas.width = canvas.height = 1; canvas.style.width = canvas.style.height = "1px"; said.textContent = ""; },
  };
}

export const swatch = (colour) => h("i", { class: "swatch", style: { background: css(colour) } });
