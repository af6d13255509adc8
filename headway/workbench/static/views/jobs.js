// What was started from these pages: whether it runs, and what it said.

import { get } from "../api.js";
import { ago, badge, command, h, put } from "../dom.js";

export async function show(page) {
  const list = h("div");
  put(page.root, h("h1", {}, "Jobs"), h("p", { class: "read" }, "Trainings and studies that were started from these pages. Each is a process of its own: it goes on when the page, or the server, is closed."), list);
  while (!page.signal.aborted) {
    const { jobs } = await get("/api/jobs", page.signal);
    const open = new Set([...list.querySelectorAll("details[open]")].map(({ dataset }) => dataset.job));
    put(list, jobs.length ? jobs.map(({ job, command: words, running, code, started, said }) => h("article", { class: "card" }, command(words),
      h("div", { class: "tools" }, running ? badge("running", "live") : code === 0 ? badge("done", "good") : code === null ? badge("ended", "doubt") : badge(code === 130 ? "stopped" : `exit ${code}`, "bad"), h("span", { class: "note" }, ago(started * 1000))),
      h("details", { open: open.has(job) || Boolean(code && code !== 130), dataset: { job } }, h("summary", {}, "what it said"), h("pre", {}, said || "nothing yet"))))
      : h("p", { class: "empty" }, "Nothing was started from here yet."));
    await new Promise((done) => setTimeout(done, 1500));
  }
}
