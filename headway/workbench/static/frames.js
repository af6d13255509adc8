// Reads the server's binary format (`looking/frames.py`): a header, and arrays that are read without copying.

import { Refused, asked } from "./api.js";

let halves; // all float16 values as float32
function half(words) {
  if (!halves) {
    halves = new Float32Array(65536);
    for (let bits = 0; bits < 65536; bits++) {
      const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, part = bits & 1023;
      halves[bits] = exponent === 31 ? (part ? NaN : sign * Infinity)
        : sign * (exponent ? 2 ** (exponent - 15) * (1 + part / 1024) : 2 ** -14 * (part / 1024));
    }
  }
  return Float32Array.from(words, (bits) => halves[bits]);
}

const READ = {
  uint8: (buffer, at, count) => new Uint8Array(buffer, at, count),
  float32: (buffer, at, count) => new Float32Array(buffer, at, count),
  float16: (buffer, at, count) => half(new Uint16Array(buffer, at, count)),
};

/** {…header, arrays: {name: {data, shape}}} */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  for (const place of Object.values(header.arrays)) {
    place.data = READ[place.dtype](buffer, 4 + length + place.at, place.shape.reduce((a, b) => a * b, 1));
  }
  return header;
}

/** Ask a question about a run's model. */
export async function askModel(question, given, signal) {
  const response = await asked(`/api/ask/look/${question}`, {
    method: "POST", signal, headers: { "content-type": "application/json" }, body: JSON.stringify(given),
  });
  if (!response.ok) {
    let words = response.statusText;
    try { words = (await response.json()).error ?? words; } catch { /* the answer is not JSON */ }
    throw new Refused(response.status, words);
  }
  return unpack(await response.arrayBuffer());
}
