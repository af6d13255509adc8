// A text as tokens, with colours. Lines go from the token under the pointer to the tokens it attends to.

import { h, s } from "../dom.js";
import { css, ink, ofWeight } from "./colours.js";

const LINES = 16; // the most lines drawn, for the largest weights
const shown = (token) => (token === "␣" ? "␣" : token.replace(/\n/g, "↵"));

/** `blocks`: each {name, tokens}; a translator has two. `onpoint(block, place)`. */
export function tokenText(blocks, { onpoint } = {}) {
  const spans = blocks.map(({ tokens }) => tokens.map((token, k) => h("span", { class: "token", tabindex: "-1", dataset: { place: k } }, shown(token))));
  const overlay = s("svg", { class: "lines", "aria-hidden": "true" });
  const element = h("div", { class: "tokens" }, blocks.map(({ name }, b) =>
    h("p", { class: "block", role: "group", "aria-label": name ?? "the text as tokens" }, name && h("b", {}, name), spans[b])), overlay);
  spans.forEach((block) => block[0] && (block[0].tabIndex = 0));

  const find = (target) => {
    const span = target.closest?.(".token");
    if (!span) return null;
    const block = spans.findIndex((one) => one.includes(span));
    return [block, Number(span.dataset.place)];
  };
  let pointed = "";
  const point = (found) => {
    const name = found ? found.join() : "";
    if (name === pointed) return;
    pointed = name;
    onpoint?.(...(found ?? [null, null]));
  };
  element.addEventListener("pointerover", (event) => point(find(event.target)));
  element.addEventListener("pointerleave", () => point(null));
  element.addEventListener("focusin", (event) => point(find(event.target)));
  element.addEventListener("focusout", () => point(null));
  element.addEventListener("keydown", (event) => {
    const here = find(document.activeElement), step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!here || !step) return;
    event.preventDefault();
    const next = spans[here[0]][here[1] + step];
    if (next) { document.activeElement.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  });

  return {
    element,
    /** Set each token's colour ([red, green, blue] or null) and tooltip, for one block. */
    colour(block, of, words) {
      spans[block].forEach((span, k) => {
        const found = of?.(k);
        span.style.background = found ? css(found) : "";
        span.style.color = found ? ink(found) : "";
        span.title = words?.(k) ?? "";
      });
    },
    /** Draw lines from a token of one block to those of another, by weight; null = no lines. */
    lines(from, place, to, weights) {
      overlay.replaceChildren();
      spans.flat().forEach((span) => span.classList.remove("here"));
      if (!weights) return;
      const box = element.getBoundingClientRect(), start = spans[from][place]?.getBoundingClientRect();
      if (!start) return;
      spans[from][place].classList.add("here");
      const order = [...weights.keys()].filter((k) => weights[k] > 0.01).sort((a, b) => weights[b] - weights[a]).slice(0, LINES);
      const x = start.left + start.width / 2 - box.left, y = start.top - box.top + (to < from ? 0 : start.height / 2);
      for (const k of order) {
        const end = spans[to][k]?.getBoundingClientRect();
        if (!end || (from === to && k === place)) continue;
        const u = end.left + end.width / 2 - box.left, v = end.top - box.top + (to < from ? end.height : end.height / 2);
        const bend = from === to && Math.abs(v - y) < 4 ? Math.min(28, 8 + Math.abs(u - x) / 8) : 0;
        overlay.append(s("path", { d: `M${x} ${y} Q${(x + u) / 2} ${(y + v) / 2 - 2 * bend} ${u} ${v}`, "stroke-width": 1 + 5 * weights[k], "stroke-opacity": 0.25 + 0.75 * weights[k] }));
      }
      this.colour(to, (k) => (weights[k] > 0 ? ofWeight(weights[k]) : null), (k) => weights[k]?.toFixed(3));
    },
  };
}
