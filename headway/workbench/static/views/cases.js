// The library of cases: reported conclusions, and whether they hold in the studies run here.

import { get, watch } from "../api.js";
import { badge, h, put, trouble } from "../dom.js";
import { KINDS_OF_VERDICTS } from "./study.js";

export const standing = (word) => (word ? badge(word, KINDS_OF_VERDICTS[word] ?? "doubt") : h("span", { class: "note" }, "not run"));

export async function show(page) {
  const list = h("div", { class: "scroll" });
  put(page.root, h("h1", {}, "Cases"), h("p", { class: "read" }, "Reported experiments and exercises that you can reproduce, with several seeds and audits. A conclusion is only as strong as its weakest claim."), list);
  const { cases } = await get("/api/cases", page.signal);
  const rows = new Map(Object.entries(cases).map(([name, { title, quick }]) => {
    const cells = { reported: h("td", { class: "wide note" }, "…"), quick: h("td", {}, "…"), full: h("td", {}, "…") };
    return [name, { cells, line: h("tr", {}, h("th", { scope: "row" }, h("a", { href: `/case/${name}` }, name)), h("td", { class: "wide" }, h("a", { href: `/case/${name}` }, title)), cells.reported, cells.quick, cells.full, h("td", { class: "note" }, quick)) }];
  }));
  put(list, h("table", { class: "cases" }, h("thead", {}, h("tr", {}, ["case", "question", "reported", "quick size", "full size", "quick takes"].map((one) => h("th", {}, one)))), h("tbody", {}, [...rows.values()].map(({ line }) => line))));
  async function load() {
    const found = await get("/api/standings", page.signal);
    for (const [name, { reported, quick, full }] of Object.entries(found.cases)) {
      const { cells } = rows.get(name);
      put(cells.reported, reported);
      put(cells.quick, standing(quick));
      put(cells.full, standing(full));
    }
  }
  addEventListener("headway-back", () => load().catch(() => {}), { signal: page.signal });
  try { await load(); } catch (error) { if (error.name !== "AbortError") page.root.append(trouble(error)); }
  let due;
  watch(() => ["runs"], { runs: () => { due ??= setTimeout(() => { due = undefined; load().catch(() => {}); }, 2000); } }, page.signal);
}
