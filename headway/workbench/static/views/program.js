// The API for programs: three examples, and all endpoints from its OpenAPI description.

import { get } from "../api.js";
import { badge, command, h, put } from "../dom.js";

export async function show(page) {
  page.title("For programs");
  const { paths, info } = await get("/api/openapi.json", page.signal);
  const base = location.origin;
  put(page.root, h("h1", {}, "For programs"), h("p", { class: "read" }, "Everything on these pages is available as JSON, with the schemas that ", h("code", {}, "headway schema"), " prints. Send the token from the address in a header; ", h("a", { href: "/api/openapi.json", target: "_blank", rel: "noopener" }, "openapi.json"), " describes the whole API."),
    h("p", {}, "Every run and its headline score:"), command(`curl -H "Authorization: Bearer $TOKEN" ${base}/api/table`),
    h("p", {}, "Start a training:"), command(`curl -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" -d '{"recipe": "demo", "changes": ["seed=1"]}' ${base}/api/train`),
    h("p", {}, "Follow it live:"), command(`curl -N -H "Authorization: Bearer $TOKEN" "${base}/api/events?topic=run:runs/demo"`),
    h("h2", {}, `Endpoints (${info.version})`), h("div", { class: "scroll" }, h("table", { class: "stacked" }, h("tbody", {}, Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, { description, summary }]) => h("tr", {}, h("td", {}, badge(method.toUpperCase(), method === "get" ? "" : "doubt")), h("th", { scope: "row" }, h("code", {}, path)), h("td", { class: "wide" }, description ?? summary))))))));
}
