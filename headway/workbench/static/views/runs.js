// All runs: a live table. Only the rows on the screen have elements, however many runs there are.

import { get, query, watch } from "../api.js";
import { spark } from "../curves.js";
import { ago, badge, doing, h, number, put, whole } from "../dom.js";
import { go } from "../main.js";

export const KINDS = { finished: "good", stopped: "good", imported: "good", running: "live", diverged: "bad", failed: "bad", "cannot be read": "bad", "not read yet": "" };
export const kindOf = (state) => KINDS[state] ?? "doubt";
export const href = (name) => `/run/${name.split("/").map(encodeURIComponent).join("/")}`;

const last = (name) => name.slice(name.lastIndexOf("/") + 1);
const headline = (row) => row.scores?.find(({ split }) => split.startsWith("valid")) ?? row.scores?.[0];
const COLUMNS = [
  { key: "name", label: "run", of: (row) => row.name },
  { key: "state", label: "status", of: (row) => (row.state === "running" ? " " : row.state) },
  { key: "step", label: "steps", of: (row) => row.step, first: -1 },
  { key: "curve", label: "loss" },
  { key: "score", label: "score", of: (row) => { const found = headline(row)?.value; return found === undefined || found === null ? Infinity : (row.lower ? 1 : -1) * found; } },
  { key: "marks", label: "audits", of: (row) => -(row.failed?.length ?? 0) * 1000 - (row.warned?.length ?? 0) },
  { key: "created", label: "created", of: (row) => row.created ?? "", first: -1 },
];
const GROUPS = { "": "none", recipe: "recipe", study: "study", state: "status" };

export async function show(page) {
  const rows = new Map(), curves = new Map(), picked = new Set(page.query.getAll("pick"));
  let shown = [], top = 0, at = 0;
  const height = () => (matchMedia("(max-width: 60rem)").matches ? 58 : 38);
  const state = {
    filter: page.query.get("filter") ?? "",
    sort: page.query.get("sort") ?? "-created",
    group: page.query.get("group") ?? "",
  };

  // --- controls above the table
  const filter = h("input", { type: "search", placeholder: "filter: name, recipe, status …", "aria-label": "Filter runs", value: state.filter,
    oninput: () => { state.filter = filter.value; page.put({ filter: filter.value }); arrange(); } });
  const group = h("select", { "aria-label": "Group by", onchange: () => { state.group = group.value; page.put({ group: group.value }); arrange(); } },
    Object.entries(GROUPS).map(([value, label]) => h("option", { value, selected: value === state.group }, label)));
  const count = h("span", { class: "note", role: "status" });
  const head = h("div", { class: "head", role: "row" }, h("span"), COLUMNS.map(({ key, label, of, first }) => h("span", { role: "columnheader" }, of
    ? h("button", { type: "button", dataset: { key }, onclick: () => {
        const now = state.sort.replace("-", "");
        state.sort = now === key ? (state.sort.startsWith("-") ? key : `-${key}`) : first ? `-${key}` : key;
        page.put({ sort: state.sort });
        arrange();
      } }, label)
    : h("span", { class: "note" }, label))));
  const body = h("div", { class: "rows", role: "rowgroup" });
  const list = h("div", { class: "list", role: "table", "aria-label": "Runs" }, head, body);
  const tray = h("div", { class: "tray", hidden: true });
  put(page.root,
    h("h1", {}, "Runs"),
    h("div", { class: "tools" }, filter, h("label", {}, "group by", group), h("span", { class: "spread" }), count),
    list, tray);
  const reading = doing("Loading runs");
  list.after(reading);

  // --- filtering, sorting and grouping
  function arrange() {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row) => words.every((word) => `${row.name} ${row.recipe ?? ""} ${row.state} ${row.metric} ${row.failed?.join(" ")}`.toLowerCase().includes(word));
    const found = [...rows.values()].filter(fits);
    const key = state.sort.replace("-", ""), way = state.sort.startsWith("-") ? -1 : 1;
    const of = COLUMNS.find((column) => column.key === key)?.of ?? COLUMNS[0].of;
    const keys = new Map(found.map((row) => [row, of(row)]));
    found.sort((a, b) => { const [x, y] = [keys.get(a), keys.get(b)]; return way * (x < y ? -1 : x > y ? 1 : a.name < b.name ? -1 : 1); });
    for (const button of head.querySelectorAll("button")) {
      const here = button.dataset.key === key;
      here ? button.parentElement.setAttribute("aria-sort", way > 0 ? "ascending" : "descending") : button.parentElement.removeAttribute("aria-sort");
      button.textContent = COLUMNS.find((column) => column.key === button.dataset.key).label + (here ? (way > 0 ? " ↑" : " ↓") : "");
    }
    shown = state.group ? grouped(found) : found;
    const unread = found.filter((row) => row.state === "not read yet").length;
    count.textContent = `${whole(found.length)}${found.length === rows.size ? "" : ` of ${whole(rows.size)}`} run${rows.size === 1 ? "" : "s"}${unread ? `, ${whole(unread)} still loading …` : ""}`;
    list.setAttribute("aria-rowcount", shown.length + 1);
    body.style.height = `${shown.length * height()}px`;
    paint(true);
  }

  function grouped(found) {
    const groups = new Map();
    for (const row of found) {
      const name = (state.group === "recipe" ? row.arm ?? row.recipe : row[state.group]) ?? `no ${GROUPS[state.group]}`;
      groups.has(name) ? groups.get(name).push(row) : groups.set(name, [row]);
    }
    return [...groups].flatMap(([name, members]) => [{ group: name, members }, ...members]);
  }

  // --- elements only for rows on the screen
  const made = new Map();
  function paint(anew = false) {
    const size = height(), from = Math.max(0, Math.floor((scrollY - body.offsetTop - list.offsetTop) / size) - 6);
    const until = Math.min(shown.length, from + Math.ceil(innerHeight / size) + 12);
    if (!anew && from === top && made.size) return;
    top = from;
    const wanted = new Map(shown.slice(from, until).map((row, k) => [row.name ?? `group ${row.group}`, [row, from + k]]));
    for (const [name, element] of made) if (!wanted.has(name) || anew) { if (element !== document.activeElement) { element.remove(); made.delete(name); } }
    for (const [name, [row, k]] of wanted) {
      let element = made.get(name);
      if (!element || anew) {
        const fresh = row.group !== undefined ? groupLine(row) : line(row, k);
        if (element) { const focused = element === document.activeElement; element.replaceWith(fresh); if (focused) fresh.focus({ preventScroll: true }); } else body.append(fresh);
        made.set(name, (element = fresh));
      }
      element.style.top = `${k * size}px`;
      element.setAttribute("aria-rowindex", k + 2);
    }
    sparks();
  }

  function line(row, k) {
    const score = headline(row), live = row.state === "running", done = row.total ? Math.min(1, row.step / row.total) : 0;
    const box = h("input", { type: "checkbox", checked: picked.has(row.name), "aria-label": `Select ${row.name}`, tabindex: -1,
      onclick: (event) => { event.stopPropagation(); pick(row.name, box.checked); } });
    const canvas = h("canvas", { "aria-hidden": "true", dataset: { run: row.name } });
    const where = row.name.slice(0, -last(row.name).length).replace(/runs\/$/, "").replace(/\/$/, "");
    return h("div", { class: `row ${picked.has(row.name) ? "picked" : ""}`, role: "row", tabindex: 0, dataset: { at: k, name: row.name },
      onclick: (event) => { if (!event.target.closest("a, input")) go(href(row.name)); } },
    h("span", { class: "pick", role: "cell" }, box),
    h("span", { class: "name", role: "cell", title: row.name }, h("a", { class: "name", href: href(row.name), tabindex: -1 }, last(row.name)), where && h("small", {}, `  ${where}`)),
    h("span", { class: "state", role: "cell", title: row.reason ?? "" }, badge(row.state, kindOf(row.state))),
    h("span", { class: "steps", role: "cell" }, h("span", { class: `bar ${live ? "live" : ""}`, "aria-hidden": "true" }, h("i", { style: { width: `${100 * done}%` } })), whole(row.step)),
    h("span", { class: "curve", role: "cell" }, canvas),
    h("span", { class: "score", role: "cell", title: score ? `${score.split} ${row.metric}` : "" }, score ? [h("strong", {}, number(score.value)), h("span", { class: "note" }, `  ${score.split} ${row.metric}`)] : h("span", { class: "note" }, row.state === "cannot be read" ? row.reason : "")),
    h("span", { class: "marks", role: "cell", title: [...(row.failed ?? []), ...(row.warned ?? [])].join(", ") }, marks(row)),
    h("span", { class: "when note", role: "cell", title: row.created ?? "" }, row.created ? ago(row.created) : ""));
  }

  function marks(row) {
    if (row.failed?.length) return h("span", { class: "bad" }, row.failed[0], row.failed.length > 1 && ` +${row.failed.length - 1}`);
    if (row.warned?.length) return h("span", { class: "doubt" }, row.warned.length === 1 ? row.warned[0] : `${row.warned.length} warnings`);
    return row.passed ? h("span", { class: "good" }, `${row.passed} passed`) : "";
  }

  function groupLine({ group: name, members }) {
    const alike = members.every((row) => row.metric === members[0].metric);
    const values = (alike ? members : []).map((row) => headline(row)?.value).filter((value) => value !== undefined && value !== null);
    const mean = values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
    return h("div", { class: "row group", role: "row" }, h("span", { role: "cell" }, name), h("small", {}, `${members.length} runs${mean === null ? "" : ` · mean ${number(mean)}`}`));
  }

  // --- small curves, for the rows on the screen
  let asking;
  function sparks() {
    const missing = [];
    for (const canvas of body.querySelectorAll("canvas")) {
      const row = rows.get(canvas.dataset.run), known = curves.get(canvas.dataset.run);
      if (known && canvas.drawn !== known) spark(canvas, (canvas.drawn = known).points, row?.state === "running" ? "--link" : row?.state === "diverged" ? "--bad" : "--faint");
      if (row && row.state !== "cannot be read" && row.state !== "not read yet" && known?.step !== row.step) missing.push(row);
    }
    clearTimeout(asking);
    if (missing.length) asking = setTimeout(async () => {
      try {
        const wanted = missing.slice(0, 60);
        const found = await get(`/api/curves?${query({ run: wanted.map(({ name }) => name), points: 40 })}`, page.signal);
        for (const row of wanted) curves.set(row.name, { step: row.step, points: found[row.name] ?? { steps: [], values: [] } });
        if (!page.signal.aborted) sparks();
      } catch { /* reported elsewhere */ }
    }, 60);
  }

  // --- selecting several runs
  function pick(name, is) {
    is ? picked.add(name) : picked.delete(name);
    page.put({ pick: [...picked] });
    made.get(name)?.classList.toggle("picked", is);
    const box = made.get(name)?.querySelector("input");
    if (box) box.checked = is;
    told();
  }
  function told() {
    tray.hidden = !picked.size;
    put(tray, h("span", { class: "spread" }, `${picked.size} selected: ${[...picked].map(last).join(", ")}`),
      h("button", { class: "plain", type: "button", onclick: () => { for (const name of [...picked]) pick(name, false); } }, "clear"),
      h("a", { class: "button", href: `/compare?${query({ run: [...picked] })}` }, picked.size > 1 ? "compare curves and recipes" : "compare"));
  }

  list.addEventListener("keydown", (event) => {
    const row = event.target.closest(".row[data-at]");
    if (!row || event.target.matches("input, button")) return;
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12 }[event.key];
    if (move) {
      event.preventDefault();
      let next = Math.min(shown.length - 1, Math.max(0, Number(row.dataset.at) + move));
      if (shown[next].group !== undefined) next = Math.min(shown.length - 1, Math.max(0, next + Math.sign(move)));
      const size = height(), place = body.getBoundingClientRect().top + next * size;
      if (place < 110) scrollBy(0, place - 110); else if (place > innerHeight - 2 * size) scrollBy(0, place - innerHeight + 2 * size);
      paint();
      made.get(shown[next].name)?.focus({ preventScroll: true });
    } else if (event.key === "Enter") go(href(row.dataset.name));
    else if (event.key === " ") { event.preventDefault(); pick(row.dataset.name, !picked.has(row.dataset.name)); }
  });

  addEventListener("scroll", () => paint(), { signal: page.signal, passive: true });
  addEventListener("resize", () => arrange(), { signal: page.signal });
  addEventListener("headway-theme", () => paint(true), { signal: page.signal });

  async function load() {
    const found = await get("/api/table", page.signal);
    reading.remove();
    at = found.at;
    rows.clear();
    for (const row of found.runs) rows.set(row.name, row);
    empty(found.there);
    arrange();
  }
  function empty(there) {
    page.root.querySelector(".empty")?.remove();
    if (rows.size && there) return;
    const words = there ? ["No runs yet. ", h("code", {}, "headway train demo"), " trains one in 20 seconds; it will appear here."] : ["The folder no longer exists: it was deleted, or its disk is not mounted. If it comes back, its runs will reappear."];
    list.after(h("p", { class: "empty" }, words));
  }
  let due;
  await load();
  told();
  watch(() => [`runs@${at}`], {
    runs: ({ at: now, changed, gone }) => {
      at = now;
      for (const name of gone) { rows.delete(name); curves.delete(name); }
      for (const row of changed) rows.set(row.name, row);
      if (gone.length) load().catch(() => {}); else { empty(true); due ??= setTimeout(() => { due = undefined; arrange(); }, 50); }
    },
    anew: () => load().catch(() => {}),
  }, page.signal);
  addEventListener("headway-back", () => load().catch(() => {}), { signal: page.signal });
}
