// The colour scales of maps, from the server, so that weights look the same as in reports.

import { get } from "../api.js";

let scales;

export async function colours() {
  scales ??= await get("/api/ask/look/colours");
  return scales;
}

const BLANK = [255, 255, 255];

/** Weights from 0 to 1, by their square root, since most are small; zero is blank. */
export const ofWeight = (value) => (value > 0 ? scales.weights[Math.min(255, Math.round(Math.sqrt(value) * 255))] : BLANK);
/** Bytes are on that scale already. */
export const ofByte = (value) => (value ? scales.weights[value] : BLANK);
/** Differences from −most to most. */
export const ofDifference = (value, most = 0.5) => value === 0 ? BLANK : scales.differences[Math.max(0, Math.min(255, Math.round((value / most + 1) * 127.5)))];

export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
/** Black or white, whichever is readable on this colour. */
export const ink = ([red, green, blue]) =>
  (0.2126 * (red / 255) ** 2.2 + 0.7152 * (green / 255) ** 2.2 + 0.0722 * (blue / 255) ** 2.2 < 0.2 ? "#ffffff" : "#1a1a1a");

/** Draw a matrix with one pixel per cell; `paint` maps a number to a colour. */
export function painted(canvas, data, rows, columns, paint, stride = columns, from = 0) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
  for (let i = 0, at = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++, at++) {
      const [red, green, blue] = paint(data[from + i * stride + j]);
      pixels[at] = 0xff000000 | (blue << 16) | (green << 8) | red;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
