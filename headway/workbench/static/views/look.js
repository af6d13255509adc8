// Look: type a sentence, and see what a run's model does with it, optionally next to a second run.

import { get, named, watch } from "../api.js";
import { ago, badge, doing, h, put, whole } from "../dom.js";
import { colours, ofDifference } from "../looking/colours.js";
import { largeMap } from "../looking/large.js";
import { Side } from "../looking/side.js";
import { styles } from "../styles.js";
import { go } from "../main.js";
import { kindOf } from "./runs.js";

const WAIT = 180; // milliseconds after the last key press
const LISTED = 100; // runs shown; others are found with the filter
const FIRST = "valid:0"; // for models of pictures; not from test, since looks at test are counted
const SHOWS = { head: "one head", rollout: "rollout: product over layers", gradients: "gradients: what predictions depend on" };

export async function show(page) {
  page.title(page.name ? `Look into ${page.name}` : "Look");
  put(page.root, h("h1", {}, "Look"), doing(page.name ? `Opening ${page.name}` : "Loading runs"));
  const [{ runs, at }] = await Promise.all([get("/api/table", page.signal), styles("/static/looking/look.css"), colours()]);
  if (!page.name) return choose(page, runs, at);
  const names = runs.toSorted(newest).map((row) => row.name);

  const state = {
    text: page.query.get("text"), show: page.query.get("show") ?? "head", picked: page.query.get("head") ?? null,
    off: new Set(page.query.getAll("off")), image: page.query.get("image") ?? FIRST, picture: null,
  };
  const text = h("textarea", { rows: "2", class: "sentence", "aria-label": "Sentence", spellcheck: false, placeholder: "Type a sentence" }, state.text ?? "");
  const run = chooser("Run", names, page.name, (name) => go(`/look/${named(name)}?${page.query}`));
  const beside = chooser("Compare with", ["", ...names], page.query.get("beside") ?? "", (name) => {
    const next = new URLSearchParams(page.query);
    name ? next.set("beside", name) : next.delete("beside");
    go(`/look/${named(page.name)}?${next}`);
  });
  const what = h("select", { "aria-label": "Large view", onchange: () => settle({ show: what.value }) },
    Object.entries(SHOWS).map(([value, label]) => h("option", { value, selected: value === state.show }, label)));
  const hint = h("p", { class: "note" }, "Click a head to show it large; shift-click or press x to switch it off. Point at a token to see what it attends to.");
  const between = h("section", { class: "between", hidden: true }, h("h2", {}, "Difference"));
  const difference = largeMap({ label: "Second run minus first run" });
  between.append(difference.element);

  const sides = [page.name, ...(page.query.get("beside") ? [page.query.get("beside")] : [])].map((name) => new Side(name, page.signal, {
    settle: (changes) => settle(changes), drawn: () => compare(),
  }));
  put(page.root,
    h("h1", {}, "Look"),
    h("form", { class: "asking", onsubmit: (event) => { event.preventDefault(); ask(); } },
      text, h("div", { class: "controls" }, run, beside, h("label", {}, "Large view ", what))),
    hint,
    h("div", { class: sides.length > 1 ? "sides two" : "sides" }, sides.map((side) => side.element)), between);

  /** Apply the user's choice, to the address and to the page. */
  function settle(changes) {
    Object.assign(state, changes);
    page.put({ text: state.text, show: state.show === "head" ? null : state.show, head: state.picked, off: [...state.off], image: state.image === FIRST ? null : state.image });
    what.value = state.show;
    if (text.value !== state.text) text.value = state.text;
    for (const side of sides) side.update(state);
  }

  function ask() {
    clearTimeout(waiting);
    if (text.value !== state.text) settle({ text: text.value });
  }
  let waiting;
  text.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(ask, WAIT); });
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); ask(); } });
  page.signal.addEventListener("abort", () => clearTimeout(waiting));

  function compare() {
    const [ours, theirs] = sides.map((side) => side.map);
    const same = ours && theirs && ours.rows.join("\n") === theirs.rows.join("\n") && ours.columns.join("\n") === theirs.columns.join("\n");
    between.hidden = !(ours && theirs);
    if (!ours || !theirs) return;
    if (!same) {
      difference.clear();
      put(between, h("h2", {}, "Difference"), h("p", { class: "note" }, "Their tokens differ, so the maps cannot be compared cell by cell."), difference.element);
      return;
    }
    const data = theirs.data.map((value, k) => value - ours.data[k]);
    const moved = data.reduce((sum, value) => sum + Math.abs(value), 0) / 2 / ours.rows.length;
    difference.show({ data, rows: ours.rows, columns: ours.columns, paint: (value) => ofDifference(value), verb: "→", caption: `${sides[1].name} minus ${sides[0].name}, ${ours.caption}: ${(100 * moved).toFixed(0)} % of the attention differs; blue = more in the second run` });
  }

  addEventListener("headway-back", async () => { await Promise.all(sides.map((side) => side.about ?? side.open())); settle({}); }, { signal: page.signal });
  const about = await Promise.all(sides.map((side) => side.open()));
  if (page.signal.aborted) return;
  const first = about[0];
  const matches = about.every((one) => one?.abilities.includes("match"));
  what.parentElement.hidden = hint.hidden = matches;
  text.value ||= first?.example ?? "";
  settle({ text: text.value });
}

const chooser = (label, names, chosen, changed) => h("label", {}, `${label} `, h("select", { "aria-label": label, onchange: (event) => changed(event.target.value) },
  (names.includes(chosen) ? names : [chosen, ...names]).map((name) => h("option", { value: name, selected: name === chosen }, name || "none"))));

const newest = (one, other) => ((other.created ?? "") < (one.created ?? "") ? -1 : (other.created ?? "") > (one.created ?? "") ? 1 : one.name < other.name ? -1 : 1);

/** A list of runs to choose from, newest first. */
function choose(page, runs, at) {
  const rows = new Map(runs.map((row) => [row.name, row])), body = h("tbody"), count = h("span", { class: "note", role: "status" }), more = h("p", { class: "note" });
  const filter = h("input", { type: "search", placeholder: "filter: name, recipe, status …", "aria-label": "Filter runs", value: page.query.get("filter") ?? "",
    oninput: () => { page.put({ filter: filter.value }); list(); },
    onkeydown: (event) => { if (event.key === "Enter") body.querySelector("a")?.click(); } });
  put(page.root, h("h1", {}, "Look"), h("p", { class: "read" }, "Choose a run to look into."), h("div", { class: "tools" }, filter, h("span", { class: "spread" }), count),
    h("div", { class: "scroll" }, h("table", { class: "choices" }, h("thead", {}, h("tr", {}, ["run", "recipe or arm", "status", "created"].map((one) => h("th", { scope: "col" }, one)))), body)), more);

  function list() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...rows.values()].filter((row) => words.every((word) => `${row.name} ${row.recipe ?? ""} ${row.state}`.toLowerCase().includes(word))).sort(newest);
    count.textContent = `${found.length === rows.size ? "" : `${whole(found.length)} of `}${whole(rows.size)} run${rows.size === 1 ? "" : "s"}`;
    put(body, found.slice(0, LISTED).map((row) => h("tr", {}, h("th", { scope: "row" }, h("a", { href: `/look/${named(row.name)}` }, row.name)), h("td", {}, row.recipe ?? row.arm ?? "–"),
      h("td", {}, badge(row.state, kindOf(row.state))), h("td", { class: "note", title: row.created ?? "" }, row.created ? ago(row.created) : ""))));
    more.textContent = !rows.size ? "There are no runs in this folder yet." : found.length > LISTED ? `${whole(found.length - LISTED)} more: filter for them.` : found.length ? "" : "No run matches the filter.";
  }
  list();
  let due;
  watch(() => [`runs@${at}`], { runs: ({ at: now, changed, gone }) => {
    at = now;
    for (const name of gone) rows.delete(name);
    for (const row of changed) rows.set(row.name, row);
    due ??= setTimeout(() => { due = undefined; list(); }, 200);
  } }, page.signal);
}
