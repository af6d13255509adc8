// A started job: its state, its output if it fails, and the verdict as soon as there is one.

import { get, named } from "../api.js";
import { badge, h, put, trouble, withoutOutcome } from "../dom.js";

const EVERY = 2000; // milliseconds

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
    const { studies } = await get("/api/studies", signal);
    if (!studies.some((one) => one.name === job.study)) return; // not started yet
    const found = await get(`/api/results/${named(job.study)}`, signal);
    const left = Object.keys(found.missing).length, done = Object.keys(found.runs).length;
    put(verdicts, h("p", { class: "note" }, `${done} of ${done + left} runs have ended${left ? "; verdicts may still change" : ""}.`),
      found.verdicts.map((one) => h("p", { class: "read verdict" }, badge(one.outcome, { better: "good", worse: "bad" }[one.outcome] ?? "doubt"), ` ${withoutOutcome(one.outcome, one.sentence)}`)));
  }
  look();
  return element;
}
