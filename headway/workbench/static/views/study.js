// One study: a grid of arms and seeds, verdicts as soon as there are any, the report at the end; stop and resume.

import { get, named, post, watch } from "../api.js";
import { badge, command, doing, drawn, duration, h, number, put, trouble, whole, withoutOutcome } from "../dom.js";
import { href, kindOf } from "./runs.js";

export const KINDS_OF_VERDICTS = { better: "good", best: "good", "in order": "good", holds: "good", worse: "bad", "does not hold": "bad", "not in order": "bad", "not comparable": "bad" };

export async function show(page) {
  const name = page.name;
  const title = h("h1", {}, name), standing = h("span"), facts = h("dl", { class: "facts" }), actions = h("div", { class: "tools" }, doing("Loading the study"));
  const grid = h("div", { class: "scroll" }), verdicts = h("section"), rest = h("section"), end = h("section");
  put(page.root, h("p", { class: "kicker" }, h("a", { href: "/studies" }, "Studies"), " / ", h("bdi", {}, name)), title, facts, actions, h("h2", {}, "Runs"), grid, verdicts, rest, end);
  let study, ended = -1;

  async function act(path, button) {
    button.disabled = true;
    try {
      const answer = await post(path);
      actions.querySelector(".trouble")?.remove();
      if (answer.job) follow(answer.job);
    } catch (error) { actions.append(trouble(error)); button.disabled = false; }
  }
  /** Show the output of a job that fails. */
  async function follow(job) {
    for (let k = 0; k < 60 && !page.signal.aborted; k += 1) {
      await new Promise((done) => setTimeout(done, 1000));
      const { running, code, said } = await get(`/api/job/${job}`, page.signal);
      if (!running) { if (code) actions.append(h("pre", { class: "trouble" }, said)); await load(); return; }
    }
  }

  async function load() {
    study = await get(`/api/study/${named(name)}`, page.signal);
    page.title(study.title);
    const cells = Object.values(study.cells), running = cells.filter(({ state }) => state === "running").length;
    const done = cells.length > 0 && study.ended === cells.length, active = study.process !== null;
    put(title, h("bdi", {}, study.title), " ", standing);
    put(standing, active ? badge("running", "live") : done ? badge("finished", "good") : badge(study.ended ? "stopped" : "not begun", "doubt"));
    put(facts, [["runs ended", `${study.ended} of ${cells.length || "?"}`], active && ["running", whole(running)], active && ["time left", study.seconds_left === null || study.seconds_left === undefined ? "known after the first run" : `about ${duration(study.seconds_left)}`],
      ["arms", whole(study.arms.length)]].filter(Boolean).map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))));
    const stop = h("button", { class: "acts", type: "button", onclick: () => act(`/api/stop/study/${named(name)}`, stop) }, "save and stop");
    const resume = h("button", { class: "acts", type: "button", onclick: () => act(`/api/resume/study/${named(name)}`, resume) }, study.ended ? "resume" : "run");
    const plan = h("button", { type: "button", onclick: () => planned(plan) }, "estimate time and memory");
    const kept = [...actions.querySelectorAll(".trouble, .plan")];
    put(actions, active && stop, !active && !done && resume, !active && !done && plan, study.report && h("a", { class: "button", href: `/report/${named(name)}` }, "report"), kept);
    put(grid, cells.length ? gridOf(study) : h("p", { class: "note" }, "No run has started."));
    put(end, h("h2", {}, "Command"), h("p", {}, "This command resumes the study, in the folder shown above:"), command(study.command), study.log && [h("h3", {}, "Log"), h("pre", {}, study.log)]);
    if (study.ended !== ended) { ended = study.ended; concluded(); }
  }

  async function planned(button) {
    button.disabled = true;
    button.textContent = "measuring every shape …";
    try {
      const { seconds, runs, warnings, memory } = await get(`/api/plan/${named(name)}`, page.signal);
      actions.append(h("span", { class: "plan note" }, `${runs.length} runs, ${duration(seconds)} in total, ${(memory / 2 ** 30).toFixed(1)} GiB; ${warnings.join("; ")}`));
    } catch (error) { actions.append(trouble(error)); }
    button.remove();
  }

  async function concluded() {
    try {
      if (!verdicts.childElementCount) put(verdicts, h("h2", {}, "Verdicts"), h("p", { class: "note" }, "loading …"));
      const { told, about, early, marks, tables, figures, questions } = await get(`/api/conclusion/${named(name)}`, page.signal);
      const soon = early ? h("p", { class: "early" }, badge("early", "doubt"), ` ${Object.keys(told.runs).length} of ${Object.keys(told.runs).length + Object.keys(told.missing).length} runs have ended. Verdicts may still change, so do not stop the study because of one.`) : null;
      put(verdicts, h("h2", {}, "Verdicts"), soon, told.verdicts.length ? told.verdicts.map((one, k) => verdict(one, marks[k], early))
        : questions.length ? [h("p", { class: "note" }, "They appear with the first seeds. The questions:"), h("ul", {}, questions.map((one) => h("li", {}, one)))] : h("p", { class: "note" }, "This study asks no questions."),
        told.claims.length > 0 && [h("h3", {}, "Reported claims"), told.claims.map((one) => h("div", { class: "verdict" }, h("p", { class: "read" }, badge(one.standing, KINDS_OF_VERDICTS[one.standing] ?? "doubt"), " ", h("strong", {}, one.says), " ", one.why)))]);
      put(rest, tables.length > 0 && h("h2", {}, "Scores"), tables.map(tableOf), figures.length > 0 && h("h2", {}, "Figures"), figures.map(({ picture, caption }) => h("figure", {}, picture && drawn(picture), h("figcaption", {}, caption))),
        about && [h("h2", {}, "About"), h("p", { class: "read" }, about)]);
    } catch (error) { if (error.name !== "AbortError") put(verdicts, h("h2", {}, "Verdicts"), trouble(error)); }
  }

  await load();
  watch(() => [`study:${name}`], { study: ({ there }) => (there ? load().catch((error) => put(actions, trouble(error))) : put(actions, trouble(new Error("this study's folder no longer exists")))), anew: () => load().catch(() => {}) }, page.signal);
  addEventListener("headway-back", () => load().catch(() => {}), { signal: page.signal });
}

function gridOf({ arms, cells }) {
  const seeds = [...new Set(Object.values(cells).map(({ seed }) => seed))].sort((a, b) => a - b), at = new Map(Object.values(cells).map((cell) => [`${cell.arm} ${cell.seed}`, cell]));
  const metric = Object.values(cells).find((cell) => cell.metric)?.metric;
  return h("table", { class: "cells" }, metric && h("caption", { class: "note" }, `valid ${metric} of every arm and seed`),
    h("thead", {}, h("tr", {}, h("th", {}, "arm"), seeds.map((seed) => h("th", { class: "number" }, `seed ${seed}`)))),
    h("tbody", {}, arms.map((arm) => h("tr", {}, h("th", { scope: "row" }, arm), seeds.map((seed) => cellOf(at.get(`${arm} ${seed}`)))))));
}

function cellOf(cell) {
  if (!cell) return h("td");
  const score = cell.scores?.find(({ split }) => split.startsWith("valid")) ?? cell.scores?.[0];
  const doubt = cell.failed?.length ? h("sup", { class: "bad", title: cell.failed.join(", ") }, "!") : null;
  const inside = score && cell.state !== "running" ? [number(score.value), doubt]
    : cell.state === "running" ? [h("span", { class: "bar live", title: `step ${cell.step} of ${cell.total}` }, h("i", { style: { width: `${(100 * cell.step) / (cell.total || 1)}%` } }))]
    : cell.state === "not begun" ? h("span", { class: "note" }, "·") : badge(cell.state, kindOf(cell.state));
  return h("td", { class: "number", title: cell.reason ?? cell.state }, cell.name ? h("a", { href: href(cell.name) }, inside) : inside);
}

function verdict({ question, outcome, sentence, notes, effect, interval, unit, method, p_corrected: p }, mark, early) {
  const numbers = effect === null || !interval ? null : h("p", { class: "note" }, [`${effect > 0 ? "+" : ""}${number(effect)} [${number(interval[0])}, ${number(interval[1])}] ${unit}`, p !== null && `p ${number(p)}, corrected`, method].filter(Boolean).join(" · "));
  return h("div", { class: "verdict" }, mark && h("div", { class: "interval" }, drawn(mark), h("span", {}, "worse"), h("span", {}, "better")),
    h("p", { class: "note" }, question.words), h("p", { class: "read" }, badge(outcome, KINDS_OF_VERDICTS[outcome] ?? "doubt"), early && [" ", badge("early", "doubt")], " ", withoutOutcome(outcome, sentence)), numbers,
    notes.length > 0 && h("details", {}, h("summary", {}, `${notes.length} note${notes.length > 1 ? "s" : ""}`), h("ul", { class: "note" }, notes.map((note) => h("li", {}, note)))));
}

export function tableOf({ caption, columns, rows, notes }) {
  return h("div", { class: "scroll" }, h("table", {}, caption && h("caption", { class: "note" }, caption), h("thead", {}, h("tr", {}, columns.map((one, k) => h("th", { class: k ? "number" : "" }, one)))),
    h("tbody", {}, rows.map((row) => h("tr", { class: row.beside ? "beside" : "" }, h("th", { scope: "row" }, row.name, row.remark && h("span", { class: "bad" }, ` ${row.remark}`)), row.cells.map((cell) => h("td", { class: "number" }, cell)))))),
    notes.length > 0 && h("p", { class: "note" }, notes.join(" ")));
}
