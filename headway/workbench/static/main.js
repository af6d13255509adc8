// The frame of the page: addresses, views, the navigation bar. Every view has an address; the back button works.

import { get } from "./api.js";
import { h, put, trouble } from "./dom.js";
import { ROUTES } from "./routes.js";

const root = document.getElementById("main");
const nav = document.querySelector("header nav");
let leaving;

for (const { path, label } of ROUTES.filter((route) => route.label)) nav.append(h("a", { href: `/${path}`, dataset: { path } }, label));

/** Parts that are not valid encodings are kept as they are, and lead to an error message. */
function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

async function show() {
  leaving?.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [word, ...rest] = location.pathname.split("/").filter(Boolean).map(decoded);
  const route = ROUTES.find(({ path }) => path === (word ?? "runs"));
  for (const link of nav.children) {
    const here = link.dataset.path === (route?.under ?? route?.path);
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  const page = {
    root: h("div", { class: `view ${route?.path ?? ""}` }),
    name: rest.join("/"),
    query: new URLSearchParams(location.search),
    signal,
    title: (text) => (document.title = text ? `${text} · Headway` : "Headway"),
    put(changes) {
      for (const [key, value] of Object.entries(changes)) {
        page.query.delete(key);
        for (const one of [value].flat()) if (one !== undefined && one !== null && one !== "") page.query.append(key, one);
      }
      const text = page.query.toString();
      history.replaceState(history.state, "", location.pathname + (text ? `?${text}` : ""));
    },
  };
  page.title(route?.label ?? rest.at(-1));
  try {
    if (!route) throw new Error(`there is no page ${location.pathname}`);
    const view = await route.load();
    if (signal.aborted) return;
    put(root, page.root);
    await view.show(page);
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) {
      put(root, page.root);
      for (const one of page.root.querySelectorAll(".doing")) one.remove();
      page.root.append(trouble(error));
      addEventListener("headway-back", show, { signal, once: true });
    }
  }
}

/** Go to another view. */
export function go(address) {
  history.pushState(null, "", address);
  scrollTo(0, 0);
  show().then(() => root.focus({ preventScroll: true }));
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || link.target) return;
  const address = new URL(link.href);
  if (address.origin !== location.origin || address.hash || address.pathname.startsWith("/api/")) return;
  event.preventDefault();
  go(address.pathname + address.search);
});
addEventListener("popstate", show);
document.querySelector("button.theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("headway-theme", dark ? "light" : "dark"); } catch { /* storage is disabled */ }
  dispatchEvent(new Event("headway-theme"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("headway-theme")));
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName)) {
    const field = root.querySelector("input[type=search]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  }
});
/** The served folder, and whether trainings can be started. */
export const about = get("/api/about");
about.then(({ folder, read_only: readOnly }) => {
  const place = document.querySelector("header .folder");
  place.textContent = `\u2066${folder}\u2069${readOnly ? " (read only)" : ""}`;
  place.title = folder;
  if (readOnly) document.documentElement.dataset.readOnly = "";
}, () => {});
show();
