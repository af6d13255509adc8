// The outputs of a model for a text: classes, a translation, masked tokens, a continuation.

import { h, number, put, trouble } from "../dom.js";
import { askModel } from "../frames.js";

const percent = (value) => (value < 0.0005 ? "0 %" : `${(100 * value).toFixed(1)} %`);
const bars = (pairs, label) => h("ol", { class: "bars", "aria-label": label }, pairs.map(([name, chance]) => {
  const bar = h("i");
  bar.style.width = `${100 * chance}%`;
  return h("li", {}, h("span", {}, name), h("b", { class: "level" }, bar), h("em", {}, percent(chance)));
}));

const SHOW = {
  classify: (found) => [h("h3", {}, "Classes"), bars(Object.entries(found.classes).slice(0, 8), "Classes, most likely first")],
  translate: (found) => [h("h3", {}, "Translation"), h("p", { class: "read said" }, found.text || "(nothing)"),
    found.hypotheses.length > 1 && h("ol", { class: "note" }, found.hypotheses.slice(0, 5).map((one) => h("li", {}, `${one.text} (${number(one.score)})`)))],
  fill: (found) => [h("h3", {}, "Masked tokens"), h("p", { class: "read said" }, found.filled),
    found.places.map((place, k) => bars(place.map((one) => [one.token, one.probability]), `Predictions for mask ${k + 1}`))],
};

export async function answers(element, about, given, signal) {
  const asked = about.abilities.filter((name) => name in SHOW), writes = about.abilities.includes("write");
  const parts = [];
  for (const name of asked) {
    if (name === "fill" && !given.text.includes(about.mask)) {
      parts.push(h("p", { class: "note" }, `Write ${about.mask} where a token is to be predicted.`));
      continue;
    }
    try {
      const found = await askModel(name, given, signal);
      parts.push(h("div", { class: "answer" }, SHOW[name](found), found.notes.map((note) => h("p", { class: "note" }, note))));
    } catch (error) {
      if (signal.aborted) return;
      parts.push(trouble(error));
    }
  }
  if (writes) {
    const written = h("p", { class: "read said", hidden: true });
    let seed = 0;
    parts.push(h("div", { class: "answer" }, h("button", { type: "button", onclick: async () => {
      try {
        const found = await askModel("write", { ...given, seed: seed++ }, signal);
        put(written, h("span", { class: "given" }, found.prompt), found.text.slice(found.prompt.length));
      } catch (error) { put(written, trouble(error)); }
      written.hidden = false;
    } }, "Continue the text"), written));
  }
  put(element, parts);
}
