// Solve: attention by construction. Keys in a plane, a convolution, attention as one matrix.

import { h, put } from "../dom.js";
import { matrices, constructions } from "../solving/layers.js";
import { plane } from "../solving/plane.js";
import { styles } from "../styles.js";
import { colours } from "../looking/colours.js";

const PARTS = {
  query: ["A query", (page, root) => plane(page, root, "query")],
  key: ["A key", (page, root) => plane(page, root, "key")],
  convolution: ["A convolution", constructions],
  matrix: ["As a matrix", matrices],
};

export async function show(page) {
  await Promise.all([styles("/static/solving/solve.css"), colours()]);
  const chosen = PARTS[page.name] ? page.name : "query", root = h("div", { class: "part" });
  page.title(`Solve: ${PARTS[chosen][0].toLowerCase()}`);
  put(page.root, h("h1", {}, "Solve: attention by construction"),
    h("nav", { class: "parts", "aria-label": "What to solve for" }, Object.entries(PARTS).map(([name, [label]]) =>
      h("a", { href: `/solve/${name}`, "aria-current": name === chosen ? "page" : null }, label))), root);
  await PARTS[chosen][1](page, root);
}
