// Several runs together: their curves in one plot, and the differences between their recipes.

import { get, named, query, watch } from "../api.js";
import { Live, Plot, colour, smoothed } from "../curves.js";
import { h, put, trouble } from "../dom.js";
import { href } from "./runs.js";

export async function show(page) {
  const names = page.query.getAll("run"), plot = new Plot({ label: "Curves of the runs", signal: page.signal });
  page.title(`${names.length} runs`);
  const lives = new Map(names.map((name) => [name, new Live()]));
  const legend = h("ul", { class: "legend" }), columns = h("select", { "aria-label": "Which curve", onchange: () => { page.put({ column: columns.value }); draw(); } });
  const smooth = h("input", { type: "range", min: 0, max: 100, value: page.query.get("smooth") ?? 15, "aria-label": "Smoothing", oninput: () => { page.put({ smooth: smooth.value }); draw(); } });
  const logarithmic = h("input", { type: "checkbox", checked: page.query.has("log"), onchange: () => { page.put({ log: logarithmic.checked ? "1" : null }); draw(); } });
  const differences = h("div", { class: "scroll" });
  put(page.root, h("p", { class: "kicker" }, h("a", { href: `/runs?${query({ pick: names })}` }, "Runs")), h("h1", {}, `${names.length} runs together`),
    h("div", { class: "tools" }, h("label", {}, "curve", columns), h("label", {}, "smoothing", smooth), h("label", {}, logarithmic, "log scale")),
    plot.root, legend, h("h2", {}, "Differences between their recipes"), differences);

  function draw() {
    const known = [...new Set([...lives.values()].flatMap((live) => Object.keys(live.columns)))];
    const wanted = columns.value || page.query.get("column") || (known.includes("loss") ? "loss" : known[0]);
    if (known.join() !== [...columns.options].map((option) => option.value).join())
      put(columns, known.map((name) => h("option", { value: name, selected: name === wanted }, name)));
    plot.logarithmic = logarithmic.checked;
    const share = (smooth.value / 100) ** 2;
    plot.draw(names.flatMap((name, k) => {
      const { steps, values } = lives.get(name).columns[wanted] ?? { steps: [], values: [] };
      const jumps = share > 0 && values.length > 30;
      const own = { name: name.split("/").at(-1), colour: colour(k), steps, dashed: k >= 8 };
      return [jumps && { ...own, values, faint: true, quiet: true }, { ...own, values: jumps ? smoothed(values, share) : values, dots: !jumps }].filter(Boolean);
    }));
  }
  put(legend, names.map((name, k) => h("li", {}, h("i", { style: { borderTopColor: `var(${colour(k)})` } }), h("a", { href: href(name) }, name))));

  const load = () => Promise.all(names.map(async (name) => lives.get(name).take(await get(`/api/metrics/${named(name)}?points=1500`, page.signal)))).then(draw);
  try {
    await load();
  } catch (error) { if (error.name === "AbortError") return; plot.root.replaceWith(trouble(error)); }
  watch(() => names.map((name) => `run:${name}@${lives.get(name).at}`), {
    metrics: (told) => { if (!lives.get(told.name)?.add(told)) load().catch(() => {}); else draw(); },
    anew: () => load().catch(() => {}),
  }, page.signal);
  try {
    const { keys } = await get(`/api/compare?${query({ run: names })}`, page.signal);
    const rows = Object.entries(keys).map(([key, values]) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, key)), values.map((value) => h("td", {}, value === null ? h("span", { class: "note" }, "not set") : h("code", {}, value)))));
    put(differences, rows.length ? h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "key"), names.map((name) => h("th", {}, name.split("/").at(-1))))), h("tbody", {}, rows))
      : h("p", { class: "note" }, "None: their recipes are the same."));
  } catch (error) { if (error.name !== "AbortError") put(differences, trouble(error)); }
}
