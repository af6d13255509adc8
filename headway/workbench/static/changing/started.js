// What was started from here: how it stands, what it said, and the verdict as soon as there is one.

import { get, named } from "../api.js";
import { badge, h, put, trouble } from "../dom.js";

const EVERY = 1000; // milliseconds

export function started(job, signal) {
  const where = job.study ? `/study/${named(job.study)}` : `/run/${named(job.run)}`;
  const status = h("p", { role: "status" }), verdicts = h("div", { class: "verdicts" }), said = h("pre", { class: "said", hidden: true });
  const element = h("div", { class: "started" }, h("p", {}, "Started: ", h("a", { href: where }, job.study ?? job.run), "."), status, verdicts, said);

  async function look() {
    if (signal.aborted) return;
    let stands = job;
    try {
      stands = await get(`/api/job/${named(job.job)}`, signal);
      const failed = !stands.running && stands.code;
      put(status, stands.running ? badge("running", "live") : badge(failed ? `ended with exit code ${stands.code}` : "done", failed ? "bad" : "good"));
      said.hidden = !failed;
      said.textContent = stands.said;
      if (job.study) await judge();
    } catch (error) {
      if (!signal.aborted) put(status, trouble(error));
    }
    if (stands.running) setTimeout(look, EVERY);
  }

  async function judge() {
    let found;
    try { found = await get(`/api/study/${named(job.study)}`, signal); } catch { return; } // not begun yet
    const told = found.verdicts ?? [];
    put(verdicts, told.map((one) => h("p", { class: "read" }, one.sentence ?? one.words ?? "")));
  }
  look();
  return element;
}
