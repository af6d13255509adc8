// One run: curves while it trains; scores with their labels; audits with their evidence; recipe, environment, command.

import { get, named, post, query, watch } from "../api.js";
import { Live, Plot, colour, smoothed } from "../curves.js";
import { ago, badge, command, doing, duration, h, number, put, trouble, whole } from "../dom.js";
import { confusion, perClass } from "../classes.js";
import { kindOf } from "./runs.js";

export async function show(page) {
  const name = page.name, short = name.split("/").at(-1), live = new Live();
  page.title(short);
  const standing = h("span"), facts = h("dl", { class: "facts" }), actions = h("div", { class: "tools" }, doing("Loading the run"));
  const plots = { loss: plot("Training loss and held-out loss", false), norm: plot("Gradient norm", true), rate: plot("Learning rate", true) };
  const scores = h("section"), samples = h("section"), audits = h("section"), recipe = h("section"), rest = h("section");
  const smooth = h("input", { type: "range", min: 0, max: 100, value: page.query.get("smooth") ?? 25, "aria-label": "Smoothing", oninput: () => { page.put({ smooth: smooth.value }); draw(); } });
  const logarithmic = h("input", { type: "checkbox", checked: page.query.has("log"), onchange: () => { page.put({ log: logarithmic.checked ? "1" : null }); draw(); } });
  const kicker = h("p", { class: "kicker" }, h("a", { href: "/runs" }, "Runs"), " / ", h("bdi", {}, name));
  put(page.root, kicker, h("h1", {}, h("bdi", {}, short), " ", standing), facts, actions,
    h("div", { class: "tools" }, h("label", {}, "smoothing", smooth), h("label", {}, logarithmic, "log scale")),
    plots.loss.root, plots.loss.legend, h("div", { class: "columns" }, h("div", {}, h("h3", {}, "gradient norm"), plots.norm.root), h("div", {}, h("h3", {}, "learning rate"), plots.rate.root)),
    scores, audits, samples, recipe, rest);

  function plot(label, small) {
    const made = new Plot({ label, small, signal: page.signal });
    made.legend = h("ul", { class: "legend" });
    return made;
  }

  function draw() {
    const share = (smooth.value / 100) ** 2, { loss, norm, rate, ...others } = live.columns;
    const series = [];
    if (loss) {
      const jumps = share > 0 && loss.values.length > 30;
      if (jumps) series.push({ name: "train", colour: colour(0), ...loss, faint: true, quiet: true });
      series.push({ name: jumps ? "train, smoothed" : "train", colour: colour(0), steps: loss.steps, values: jumps ? smoothed(loss.values, share) : loss.values });
    }
    Object.entries(others).filter(([key]) => /loss$/.test(key)).forEach(([key, column], k) => series.push({ name: key, colour: colour(k + 1), ...column, dots: true, wide: true }));
    plots.loss.logarithmic = logarithmic.checked;
    plots.loss.draw(series);
    put(plots.loss.legend, series.filter((one) => !one.faint).map((one) => h("li", {}, h("i", { style: { borderTopColor: `var(${one.colour})` } }), one.name)));
    plots.norm.draw(norm ? [{ name: "norm", colour: colour(0), ...norm }] : []);
    plots.rate.draw(rate ? [{ name: "rate", colour: colour(0), ...rate }] : []);
  }

  let run, before;
  function told(word, step, total, since) {
    put(standing, badge(word, kindOf(word)));
    const pace = before && step > before.step ? (step - before.step) / ((Date.now() - before.time) / 1000) : null;
    if (!before || step > before.step + 200) before = { step, time: Date.now() };
    const left = word === "running" && pace && total ? duration((total - step) / pace) : null;
    const { parameters, tokens_per_step: tokens, seconds } = run?.facts ?? {};
    const device = run?.environment?.device;
    put(facts, [["step", total ? `${whole(step)} of ${whole(total)}` : whole(step)], left && ["time left", `about ${left}`], parameters && ["parameters", whole(parameters)], tokens && ["tokens seen", whole(step * tokens)],
      seconds && word !== "running" && ["training time", duration(seconds)], device && ["device", device], since && ["started", ago(since)]]
      .filter(Boolean).map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))));
  }

  async function act(path, button) {
    button.disabled = true;
    try {
      const { job } = await post(path);
      if (job) await follow(job);
    } catch (error) { if (error.name !== "AbortError") actions.append(trouble(error)); button.disabled = false; }
  }
  /** Show the output of a job that fails. */
  async function follow(job) {
    for (let k = 0; k < 60 && !page.signal.aborted; k += 1) {
      await new Promise((done) => setTimeout(done, 1000));
      const { running, code, said } = await get(`/api/job/${job}`, page.signal);
      if (!running) { await load(); if (code) actions.append(h("pre", { class: "trouble" }, said)); return; }
    }
  }
  function offers() {
    const stop = h("button", { class: "acts", type: "button", onclick: () => act(`/api/stop/run/${named(name)}`, stop) }, "save and stop");
    const resume = h("button", { class: "acts", type: "button", onclick: () => act(`/api/resume/run/${named(name)}`, resume) }, "resume");
    put(actions, run.word === "running" && !run.study && stop, ["interrupted", "killed"].includes(run.word) && !run.study && resume,
      run.study && h("a", { class: "button", href: `/study/${named(run.study)}` }, "show its study"),
      h("a", { class: "button", href: `/look/${named(name)}` }, "look inside"), h("a", { class: "button", href: `/change?${query({ run: name })}` }, "change one thing"));
  }

  async function load() {
    run = await get(`/api/run/${named(name)}`, page.signal);
    told(run.word, run.state.step, run.state.total, run.state.since);
    offers();
    put(scores, scored(run));
    put(audits, audited(run));
    if (!samples.childElementCount && run.facts.headline?.startsWith("perplexity")) put(samples, sampled(name, page.signal));
    put(recipe, h("h2", {}, "Recipe"), recipeTable(run.recipe));
    put(rest, ending(run));
    differs();
  }

  async function differs() {
    if (!run.began_from) return;
    try {
      const { base, keys } = await get(`/api/difference/${named(name)}`, page.signal);
      const count = Object.keys(keys).length;
      recipe.querySelector("h2").after(h("p", { class: "note" }, count ? `${count} key${count > 1 ? "s differ" : " differs"} from the packaged recipe ${base}: ` : `The same as the packaged recipe ${base}.`,
        Object.entries(keys).map(([key, [was, is]], k) => [k ? ", " : "", h("code", {}, `${key} ${is ?? "none"}`), ` (packaged: ${was ?? "none"})`])));
      for (const row of recipe.querySelectorAll("tr[data-key]")) if (row.dataset.key in keys) row.classList.add("differs");
    } catch { /* it started from the user's own file, which may be gone */ }
  }

  const curves = async () => { live.take(await get(`/api/metrics/${named(name)}?points=3000`, page.signal)); draw(); };
  await Promise.all([load(), curves()]);
  let marks;
  watch(() => [`run:${name}@${live.at}`], {
    metrics: (message) => { if (live.add(message)) draw(); else curves().catch(() => {}); },
    run: (message) => {
      if (message.state === "cannot be read") { put(standing, badge(message.state, "bad")); put(actions, h("p", { class: "trouble" }, message.said)); return; }
      told(message.state, message.step, message.total, message.since);
      const now = JSON.stringify([message.state, message.ended]);
      if (now !== marks) { if (marks !== undefined || run.word !== message.state) load().catch((error) => put(actions, trouble(error))); marks = now; }
    },
    anew: () => { curves().catch(() => {}); load().catch(() => {}); },
  }, page.signal);
}

/** Samples, generated on request. */
function sampled(name, signal) {
  const prompt = h("input", { value: "", placeholder: "prompt", "aria-label": "Prompt" }), out = h("div");
  let seed = 0;
  const button = h("button", { type: "button", onclick: async () => {
    button.disabled = true;
    put(out, h("p", { class: "note" }, "loading the model …"));
    try {
      const { text, note } = await post(`/api/ask/sample/${named(name)}`, { prompt: prompt.value || "\n", tokens: 200, seed: seed++ }, signal);
      put(out, h("pre", {}, text), note && h("p", { class: "note" }, note));
    } catch (error) { if (error.name !== "AbortError") put(out, trouble(error)); }
    button.disabled = false;
  } }, "generate 200 tokens");
  return [h("h2", {}, "Samples"), h("div", { class: "tools" }, prompt, button), out];
}

function scored({ scores, audits, word }) {
  const entries = Object.entries(scores), whole_ = entries.filter(([key]) => key.split(".").length < 3), parts = entries.filter(([key]) => key.split(".").length >= 3);
  if (!entries.length) return [h("h2", {}, "Scores"), h("p", { class: "note" }, word === "running" ? "Scores are shown when training and audits have finished." : "This run has no scores.")];
  const lines = whole_.map(([key, score]) => {
    const cheap = audits.baselines.filter((one) => one.name === key).map((one) => `${one.method} ${number(one.value)}`);
    return [h("dt", {}, number(score.value)), h("dd", {}, score.label,
      cheap.length > 0 && h("div", { class: "note" }, `baselines: ${cheap.join(" · ")}`))];
  });
  return [h("h2", {}, "Scores"), h("dl", { class: "scores" }, lines), perClass(parts), whole_.filter(([, score]) => score.confusion).map(([key, score]) => confusion(key, score.confusion))];
}

function audited({ audits, word }) {
  const order = { fail: 0, warn: 1, pass: 2 }, kinds = { fail: "bad", warn: "doubt", pass: "good" };
  if (!audits.findings.length && !Object.keys(audits.not_run).length) return [h("h2", {}, "Audits"), h("p", { class: "note" }, word === "running" ? "Audits run after the training." : "This run was not audited; use headway audit.")];
  const sorted = audits.findings.toSorted((a, b) => order[a.verdict] - order[b.verdict]);
  const line = (one) => h("tr", { class: "finding" }, h("td", {}, badge(one.verdict, kinds[one.verdict])), h("th", { scope: "row" }, one.audit), h("td", { class: "wide" }, one.sentence), h("td", { class: "number note" }, `${one.seconds.toFixed(1)} s`));
  const doubts = sorted.filter((one) => one.verdict !== "pass"), fine = sorted.filter((one) => one.verdict === "pass");
  return [h("h2", {}, "Audits"), doubts.length ? h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, doubts.map(line)))) : h("p", {}, "No audit warns or fails."),
    h("details", {}, h("summary", {}, `${fine.length} passed`), h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, fine.map(line))))),
    Object.keys(audits.not_run).length > 0 && h("details", {}, h("summary", {}, `${Object.keys(audits.not_run).length} not run`), h("table", {}, h("tbody", {}, Object.entries(audits.not_run).map(([key, why]) => h("tr", {}, h("th", { scope: "row" }, key), h("td", { class: "wide" }, why))))))];
}

export function recipeTable(keys) {
  return h("div", { class: "scroll" }, h("table", { class: "recipe stacked" }, h("tbody", {}, keys.map(({ key, value, meaning, depth }) => h("tr", { dataset: { key } },
    h("td", {}, h("code", { style: { paddingLeft: `${depth}rem` }, title: key }, key.split(".").at(-1))), h("td", {}, h("code", {}, value)), h("td", { class: "meaning wide" }, meaning))))));
}

function ending({ command: words, environment, events }) {
  const { command: made, versions, git, ...machine } = environment;
  const lines = [...Object.entries(machine), ...Object.entries(versions ?? {}), ...Object.entries(git ?? {}).map(([key, value]) => [`git ${key}`, value])];
  return [h("h2", {}, "Reproduce"), h("p", {}, "This command makes the same run again, in the folder shown above:"), command(words),
    made && h("details", {}, h("summary", {}, "the original command"), command(made.join(" "))),
    h("h2", {}, "Environment"), h("table", {}, h("tbody", {}, lines.map(([key, value]) => h("tr", {}, h("th", { scope: "row" }, key), h("td", { class: "wide" }, typeof value === "object" ? JSON.stringify(value) : String(value)))))),
    h("h2", {}, "Events"), h("table", { class: "stacked" }, h("tbody", {}, events.toReversed().slice(0, 60).map((event) => h("tr", {}, h("td", { class: "note" }, event.time.slice(0, 19).replace("T", " ")), h("th", { scope: "row" }, event.event), h("td", { class: "wide" }, said(event))))))];
}

function said({ event, text, step, scores, status, title, kind, resumed }) {
  if (text) return text;
  if (event === "scored") return `step ${whole(step)}: ${Object.entries(scores).map(([key, value]) => `${key} ${number(value)}`).join(", ")}`;
  if (event === "began") return `${resumed ? "resumes" : "starts"} at step ${whole(step)}: ${title.slice(1).join(" · ")}`;
  if (event === "saved") return `checkpoint at step ${whole(step)}${kind === "best" ? ", the best so far" : ""}`;
  return status ? [status.status, status.reason].filter(Boolean).join(": ") : "";
}
