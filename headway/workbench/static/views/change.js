// Change one thing: a recipe as a form, with errors while typing, the differences, and what the change takes; then run it
// and see whether it helped. All changes are in the address.

import { get, post } from "../api.js";
import { command, doing, duration, h, put, trouble, whole } from "../dom.js";
import { recipeForm } from "../changing/form.js";
import { started } from "../changing/started.js";
import { about, go } from "../main.js";
import { styles } from "../styles.js";

const WAIT = 200, MEASURE_AFTER = 1500; // milliseconds

export async function show(page) {
  const run = page.query.get("run"), recipe = run ? null : page.query.get("recipe") ?? "demo";
  page.title(`Change ${run ?? recipe}`);
  put(page.root, h("h1", {}, "Change one thing"), doing(`Loading ${run ?? recipe}`));
  const [recipes, table] = await Promise.all([get("/api/recipes", page.signal), get("/api/table", page.signal), styles("/static/changing/change.css")]);
  const base = run ? { run } : { recipe };
  const changes = new Map(page.query.getAll("set").map((one) => [one.slice(0, one.indexOf("=")), one.slice(one.indexOf("=") + 1)]));
  const said = () => [...changes].map(([key, value]) => `${key}=${value}`);

  const form = recipeForm({
    changed(key, value, was, isVariant) {
      if (isVariant) for (const other of [...changes.keys()]) if (other.startsWith(`${key}.`)) changes.delete(other);
      value === was ? changes.delete(key) : changes.set(key, value);
      page.put({ set: said() });
      clearTimeout(waiting);
      waiting = setTimeout(ask, WAIT);
    },
  });
  form.element.append(doing("Loading the recipe"));
  const names = (table.runs ?? []).map((row) => row.name);
  const chooser = h("select", { "aria-label": "Recipe or run to change", onchange: () => go(`/change?${chooser.value}`) },
    h("optgroup", { label: "packaged recipes" }, Object.keys(recipes).map((name) => h("option", { value: `recipe=${encodeURIComponent(name)}`, selected: name === recipe }, name))),
    h("optgroup", { label: "runs" }, names.map((name) => h("option", { value: `run=${encodeURIComponent(name)}`, selected: name === run }, name))));
  const search = h("input", { type: "search", placeholder: "Find a key", "aria-label": "Find a key", oninput: () => form.find(search.value) });
  const wrong = h("div", { class: "wrong", role: "alert" }), differs = h("div", { class: "differs" }), takes = h("div", { class: "takes", role: "status" });
  const where = h("p", { class: "note where" });
  const how = h("div", { class: "how" }), ran = h("div", { class: "ran" });
  const seeds = h("input", { type: "number", min: "2", max: "64", value: "5", "aria-label": "How many seeds" });
  const name = h("input", { "aria-label": "Name of the run or study", size: "28", oninput: () => (name.dataset.own = "1") });
  const alone = h("button", { type: "button", class: "acts", onclick: () => start("train", { ...base, changes: said(), name: name.value }) }, "Train only the change");
  const against = h("button", { type: "button", class: "main acts", onclick: () => start("study", { ...base, changes: said(), name: name.value, seeds: Number(seeds.value) }) }, "Compare with the original");
  put(page.root, h("h1", {}, "Change one thing"),
    h("div", { class: "controls" }, h("label", {}, "of ", chooser), search, h("button", { type: "button", onclick: () => { changes.clear(); page.put({ set: null }); ask(); } }, "Reset all")),
    h("p", { class: "note" }, recipe ? recipes[recipe] : "the recipe of a run"),
    h("div", { class: "desk" }, form.element, h("aside", { "aria-label": "Effects of the change" }, wrong, h("h2", {}, "Differences"), differs, h("h2", {}, "Time and memory"), takes,
      h("h2", {}, "Run"), h("p", { class: "controls" }, h("label", {}, "name ", name)), where,
      h("p", { class: "controls" }, against, h("label", {}, "with ", seeds, " seeds")), h("p", { class: "controls" }, alone), how, ran)));

  let waiting, measuring, turn = 0, measured = new AbortController();
  page.signal.addEventListener("abort", () => { clearTimeout(waiting); clearTimeout(measuring); });

  async function ask() {
    const mine = ++turn;
    clearTimeout(measuring);
    measured.abort(); // the previous change
    measured = new AbortController();
    let found;
    try {
      found = await post("/api/ask/change", { ...base, changes: said() }, page.signal);
    } catch (error) {
      if (page.signal.aborted || mine !== turn) return;
      form.element.querySelector(".doing")?.remove();
      put(wrong, trouble(error));
      return;
    }
    if (mine !== turn) return;
    form.show(found, changes);
    const valid = !found.complaints.length, differing = valid && found.difference.length > 0;
    put(wrong, found.complaints.map((one) => trouble(new Error(one.line))), found.warnings.map((one) => h("p", { class: "doubt" }, one)));
    put(differs, !valid ? h("p", { class: "note" }, "There are errors, see above.") : !differing ? h("p", { class: "note" }, "No changes yet.")
      : h("table", {}, h("tbody", {}, found.difference.map((one) => h("tr", {}, h("th", { scope: "row" }, one.key), h("td", { class: "was" }, one.was ?? "–"), h("td", { class: "is" }, one.is ?? "–"))))));
    alone.disabled = !valid;
    against.disabled = !differing;
    if (valid && !name.dataset.own) name.value = found.name;
    const { runs, studies } = found.goes_to, { folder } = await about;
    put(where, "Results are written in ", h("code", {}, folder), `: a single run in ${runs}/, a study in ${studies}/.`);
    put(how, valid && [h("h3", {}, "The same in a terminal"), command(found.command), differing && await studyCommand(mine)]);
    put(takes, h("p", { class: "note" }, valid ? "about to measure a few steps …" : "–"));
    if (valid) measuring = setTimeout(measure, MEASURE_AFTER, mine, differing);
  }

  async function studyCommand(mine) {
    try {
      const found = await post("/api/ask/change/study", { ...base, changes: said(), seeds: Number(seeds.value) || 5, name: name.value || null }, page.signal);
      return mine === turn && h("details", {}, h("summary", {}, "As a study"), h("pre", {}, found.text), command(found.command));
    } catch { return null; }
  }
  seeds.addEventListener("change", ask);

  async function measure(mine, differing) {
    put(takes, h("p", { class: "note" }, "measuring a few steps of each …"));
    try {
      const found = await post("/api/ask/change/takes", { ...base, changes: said(), seeds: differing ? Number(seeds.value) || 5 : 1 }, AbortSignal.any([page.signal, measured.signal]));
      if (mine !== turn) return;
      const rows = Object.entries(found.arms);
      put(takes, h("table", {}, h("thead", {}, h("tr", {}, ["", "parameters", "steps", "time per run"].map((one) => h("th", { scope: "col" }, one)))),
        h("tbody", {}, rows.map(([arm, one]) => h("tr", {}, h("th", { scope: "row" }, arm), h("td", {}, whole(one.parameters)), h("td", {}, whole(one.steps)), h("td", {}, duration(one.seconds)))))),
        differing && h("p", {}, `As a study with ${seeds.value} seeds: about ${duration(found.seconds)} in total, ${(found.memory / 2 ** 30).toFixed(1)} GiB.`),
        found.warnings.map((one) => h("p", { class: "doubt" }, one)));
    } catch (error) {
      if (!page.signal.aborted && mine === turn) put(takes, trouble(error));
    }
  }

  async function start(kind, given) {
    try {
      const job = await post(`/api/change/${kind}`, given, page.signal);
      put(ran, started(job, page.signal));
    } catch (error) {
      if (!page.signal.aborted) put(ran, trouble(error));
    }
  }
  addEventListener("headway-back", () => ask(), { signal: page.signal });
  await ask();
}
