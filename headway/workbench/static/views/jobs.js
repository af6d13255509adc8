// Jobs started from these pages, with their state and output.

import { get } from "../api.js";
import { ago, badge, command, h, put } from "../dom.js";

export async function show(page) {
  const list = h("div");
  put(page.root, h("h1", {}, "Jobs"), h("p", { class: "read" }, "Trainings and studies started from these pages. Each runs in a separate process, which continues when the page or the server is closed."), list);
  while (!page.signal.aborted) {
    const { jobs } = await get("/api/jobs", page.signal);
    const open = new Set([...list.querySelectorAll("details[open]")].map(({ dataset }) => dataset.job));
    put(list, jobs.length ? jobs.map(({ job, command: words, running, code, started, said }) => h("article", { class: "card" }, command(words),
      h("div", { class: "tools" }, running ? badge("running", "live") : code === 0 ? badge("done", "good") : code === null ? badge("ended", "doubt") : badge(code === 130 ? "stopped" : `exit ${code}`, "bad"), h("span", { class: "note" }, ago(started * 1000))),
      h("details", { open: open.has(job) || Boolean(code && code !== 130), dataset: { job } }, h("summary", {}, "output"), h("pre", {}, said || "no output yet"))))
      : h("p", { class: "empty" }, "No jobs were started yet."));
    await new Promise((done) => setTimeout(done, 1500));
  }
}
