// Shows a study's report inside the page. No script runs in it.

import { get, named } from "../api.js";
import { doing, h, put } from "../dom.js";

export async function show(page) {
  page.title(`report of ${page.name}`);
  put(page.root, doing("Loading the report"));
  const { studies } = await get("/api/studies", page.signal);
  const known = studies.find(({ name }) => name === page.name);
  if (!known?.report) throw new Error(`${page.name} has no report yet`);
  put(page.root, h("p", { class: "kicker" }, h("a", { href: "/studies" }, "Studies"), " / ", known.exercise ? page.name : h("a", { href: `/study/${named(page.name)}` }, page.name), " / report · ",
    h("a", { href: `/api/report/${named(page.name)}`, target: "_blank", rel: "noopener" }, "open in a new tab, for printing")),
  h("iframe", { class: "report", src: `/api/report/${named(page.name)}`, title: `Report: ${known.title}`, sandbox: "" }));
}
