// The form of a recipe, built from the server's description of its fields. It is only rebuilt when the set of fields
// changes, so that typing is not interrupted.

import { h, put } from "../dom.js";

const OPEN = new Set(innerWidth < 700 ? [] : ["model", "training"]); // on a phone, everything starts closed

/** `changed(key, text, was, isVariant)`. Returns {element, show(found, changes), find(words)}. */
export function recipeForm({ changed }) {
  const element = h("form", { class: "recipe", "aria-label": "Recipe", onsubmit: (event) => event.preventDefault() });
  const rows = new Map();
  let built = "", open = new Set(OPEN);

  function control(field) {
    const { key, kind, value, was, nullable } = field, label = { "aria-label": key, id: `key-${key}` };
    const say = (text) => changed(key, text, was ?? "null", kind === "variant");
    if (kind === "variant" || kind === "choice" || kind === "truth") {
      const choices = kind === "truth" ? ["true", "false"] : field.choices.map((one) => one.kind ?? one);
      const all = nullable && !choices.includes("null") ? ["null", ...choices] : choices;
      return h("select", { ...label, onchange: (event) => say(event.target.value) },
        all.map((one) => h("option", { value: one, selected: one === (value ?? "null"), title: field.choices?.find?.((c) => c.kind === one)?.meaning }, one)));
    }
    const ends = { least: "at least", above: "above", most: "at most", below: "below" };
    const range = Object.entries(ends).filter(([name]) => field[name] !== undefined).map(([name, word]) => `${word} ${field[name]}`).join(", ");
    return h("input", { ...label, value: value ?? "null", spellcheck: false, autocomplete: "off", inputmode: kind === "whole" ? "numeric" : kind === "number" ? "decimal" : null,
      title: [range, nullable && "or null"].filter(Boolean).join(", ") || null, oninput: (event) => say(event.target.value.trim()) });
  }

  function row(field) {
    const mine = control(field), complaint = h("span", { class: "complaint" });
    const inner = (field.fields ?? []).map(row);
    if (field.kind === "part" || (field.kind === "variant" && !field.key.includes("."))) {
      const details = h("details", { open: open.has(field.key), ontoggle: (event) => (event.target.open ? open.add(field.key) : open.delete(field.key)) },
        h("summary", {}, field.name), field.kind === "variant" && h("div", { class: "field" }, h("label", { for: mine.id }, "kind"), mine, h("span", { class: "meaning" }, field.about), complaint), h("div", { class: "inner" }, inner));
      const made = h("section", { class: "part", dataset: { key: field.key } }, details);
      if (field.kind === "variant") rows.set(field.key, { made: details.querySelector(".field"), input: mine, complaint });
      return made;
    }
    const line = h("div", { class: "field", dataset: { key: field.key } }, h("label", { for: mine.id }, field.name), mine, h("span", { class: "meaning" }, field.meaning, field.about && field.about !== field.meaning ? ` ${field.value}: ${field.about}` : ""), complaint);
    rows.set(field.key, { made: line, input: mine, complaint });
    return inner.length ? h("div", { class: "group" }, line, h("div", { class: "inner" }, inner)) : line;
  }

  function flat(fields) { return fields.flatMap((one) => [one, ...flat(one.fields ?? [])]); }

  return {
    element,
    show(found, changes) {
      const all = flat(found.fields), shape = all.map((one) => `${one.key} ${one.kind} ${one.kind === "variant" ? one.value : ""}`).join("\n");
      if (shape !== built) {
        const focused = document.activeElement?.id;
        rows.clear();
        put(element, found.fields.map(row));
        built = shape;
        if (focused) document.getElementById(focused)?.focus();
      }
      for (const one of all) {
        const mine = rows.get(one.key);
        if (!mine) continue;
        const typed = changes.get(one.key), value = typed ?? one.value ?? "null";
        if (document.activeElement !== mine.input && mine.input.value !== value) {
          if (mine.input.tagName === "SELECT" && ![...mine.input.options].some((option) => option.value === value)) mine.input.append(h("option", { value }, value));
          mine.input.value = value;
        }
        const lines = found.complaints.filter(({ keys }) => keys.includes(one.key) || keys.includes(`${one.key}.kind`)).map(({ line }) => line);
        mine.made.classList.toggle("changed", changes.has(one.key));
        mine.made.classList.toggle("bad-value", lines.length > 0);
        mine.input.setAttribute("aria-invalid", String(lines.length > 0));
        mine.complaint.textContent = lines.join("; ");
      }
    },
    find(words) {
      const wanted = words.trim().toLowerCase();
      for (const [key, { made }] of rows) made.hidden = wanted !== "" && !`${key} ${made.textContent}`.toLowerCase().includes(wanted);
      if (wanted) for (const one of element.querySelectorAll("details")) one.open = true;
    },
  };
}
