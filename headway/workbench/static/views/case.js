// One case: reported and measured results side by side; run it, open its report.

import { get, named, post } from "../api.js";
import { command, doing, h, put, trouble } from "../dom.js";
import { standing } from "./cases.js";
import { tableOf } from "./study.js";

export async function show(page) {
  const name = page.name, body = h("div", {}, doing("Loading the case and its results")), told = h("div", { role: "status" });
  put(page.root, h("p", { class: "kicker" }, h("a", { href: "/cases" }, "Cases"), ` / ${name}`), body, told);

  async function load() {
    const found = await get(`/api/case/${encodeURIComponent(name)}`, page.signal);
    page.title(`${name}: ${found.title}`);
    put(body, h("h1", {}, found.title), h("p", { class: "read" }, h("span", { class: "note" }, "Reported: "), found.reported),
      found.sizes.map((size) => {
        const study = [found.studies, size.folder].filter(Boolean).join("/");
        const run = h("button", { type: "button", class: `acts ${size.quick && !size.status ? "main" : ""}`, onclick: () => start(size.quick, run) }, size.status ? "run again, or resume" : `run the ${size.quick ? "quick" : "full"} size`);
        return [h("h2", {}, size.quick ? "Quick size" : "Full size", " ", standing(size.status)), h("p", { class: "note" }, size.status ? size.where : `takes: ${size.takes}`),
          h("div", { class: "tools" }, run, size.status && h("a", { class: "button", href: `/report/${named(study)}` }, "report")),
          command(`headway case ${name}${size.quick ? " --quick" : ""}`),
          size.measured && tableOf(size.measured), size.said?.length > 0 && h("ul", { class: "read" }, size.said.map((one) => h("li", {}, plain(one))))];
      }));
  }

  async function start(quick, button) {
    button.disabled = true;
    try {
      const { job } = await post(`/api/case/${encodeURIComponent(name)}`, { quick });
      await follow(job, quick);
    } catch (error) { if (error.name !== "AbortError") put(told, trouble(error)); }
    button.disabled = false;
  }
  async function follow(job, quick) {
    const { studies, sizes } = await get(`/api/case/${encodeURIComponent(name)}`, page.signal);
    const study = [studies, sizes.find((size) => size.quick === quick).folder].filter(Boolean).join("/");
    for (;;) {
      const { running, code, said } = await get(`/api/job/${job}`, page.signal);
      put(told, h("h2", {}, running ? "Running" : code ? "Failed" : "Finished"), running && h("p", {}, "It runs in a separate process, which continues when this page is closed. ", h("a", { href: `/study/${named(study)}` }, "Show its runs")), h("pre", {}, said || "…"));
      if (!running) { await load(); return; }
      await new Promise((done) => setTimeout(done, 700));
    }
  }
  await load();
}

/** Text without Markdown's bullets and emphasis. */
const plain = (text) => text.replace(/^- /, "").replaceAll(/\*+/g, "");
