// All studies, newest first.

import { get, named, watch } from "../api.js";
import { ago, badge, doing, h, put, whole } from "../dom.js";
import { KINDS_OF_VERDICTS } from "./study.js";

export async function show(page) {
  const list = h("div", {}, doing("Loading studies")), count = h("span", { class: "note", role: "status" });
  put(page.root, h("h1", {}, "Studies"), h("div", { class: "tools" }, h("span", { class: "note" }, "Experiments with several arms and seeds, and their results."), h("span", { class: "spread" }), count), list);
  async function load() {
    const { studies } = await get("/api/studies", page.signal);
    count.textContent = `${whole(studies.length)} stud${studies.length === 1 ? "y" : "ies"}`;
    put(list, studies.length ? studies.map(line) : h("p", { class: "empty" }, "No studies yet. ", h("code", {}, "headway study run FILE.yaml"), " creates one; so does a ", h("a", { href: "/cases" }, "case"), "."));
  }
  await load();
  let due;
  watch(() => ["runs"], { runs: () => { due ??= setTimeout(() => { due = undefined; load().catch(() => {}); }, 400); }, anew: () => load().catch(() => {}) }, page.signal);
  addEventListener("headway-back", () => load().catch(() => {}), { signal: page.signal });
}

function line({ name, title, exercise, running, runs, ended, failed, outcomes, report, changed }) {
  const counted = new Map();
  for (const one of outcomes) counted.set(one, (counted.get(one) ?? 0) + 1);
  const share = runs ? ended / runs : 0;
  return h("article", { class: "card" },
    h("h3", {}, h("a", { href: exercise ? `/report/${named(name)}` : `/study/${named(name)}` }, title)),
    h("div", { class: "tools" }, h("code", { class: "note" }, name),
      exercise ? h("span", { class: "note" }, "exercise, no training") : h("span", {}, h("span", { class: `bar ${running ? "live" : ""}`, "aria-hidden": "true" }, h("i", { style: { width: `${100 * share}%` } })), `${ended} of ${runs} runs`),
      running && badge("running", "live"), failed > 0 && badge(`${failed} failed`, "bad"),
      [...counted].map(([one, times]) => badge(times > 1 ? `${times} × ${one}` : one, KINDS_OF_VERDICTS[one])),
      h("span", { class: "spread" }), report && h("a", { href: `/report/${named(name)}` }, "report"), h("span", { class: "note" }, ago(changed * 1000))));
}
