// Creates elements. Text is always inserted as text: neither this file nor any view parses a string as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name in element && typeof value !== "string" && !(element instanceof SVGElement)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** h("p", {class: "note", onclick: f}, "text", element, …) */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
/** The same for SVG. */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const put = (element, ...children) => (element.replaceChildren(...children.flat(Infinity).filter(Boolean)), element);

/**
 * An SVG from the server, as elements. It contains names of arms and classes, so only shapes and text are copied;
 * and styles are set one by one, since the page's policy forbids inline styles.
 */
export function drawn(text) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  if (parsed.nodeName !== "svg") return h("p", { class: "note" }, "this figure cannot be drawn");
  return copied(parsed);
}
const SHAPES = new Set(["svg", "g", "path", "line", "polyline", "polygon", "rect", "circle", "text", "tspan", "title", "defs", "clipPath"]);
function copied(element) {
  const made = document.createElementNS(SVG, element.nodeName);
  for (const { name, value } of element.attributes) {
    if (name === "style") for (const one of value.split(";")) {
      const at = one.indexOf(":");
      if (at > 0) made.style.setProperty(one.slice(0, at).trim(), one.slice(at + 1).trim());
    } else if (!/^on|href|xmlns/i.test(name)) made.setAttribute(name, value);
  }
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) made.append(child.data);
    else if (SHAPES.has(child.nodeName)) made.append(copied(child));
  }
  return made;
}

/** Four significant digits, with a power of ten only for very large or small numbers, as everywhere in Headway. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("e+", "e");
  const digits = size === 0 ? 0 : Math.min(4, Math.max(0, 3 - Math.floor(Math.log10(size))));
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export const whole = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  return seconds < 6000 ? `${Math.round(seconds / 60)} minutes` : `${(seconds / 3600).toFixed(1)} hours`;
}

/** "3 minutes ago", from an ISO time. */
export function ago(time) {
  const seconds = (Date.now() - new Date(time)) / 1000;
  if (!Number.isFinite(seconds)) return "";
  for (const [size, unit] of [[86400 * 365, "year"], [86400 * 30, "month"], [86400, "day"], [3600, "hour"], [60, "minute"]]) {
    const count = Math.floor(seconds / size);
    if (count >= 1) return `${count} ${unit}${count > 1 ? "s" : ""} ago`;
  }
  return "just now";
}

/** A command with a button that copies it. */
export function command(text) {
  const copy = h("button", { class: "plain copy", type: "button", "aria-label": "Copy the command", onclick: async () => {
    try { await navigator.clipboard.writeText(text); copy.textContent = "copied"; }
    catch { getSelection().selectAllChildren(code); copy.textContent = "selected"; }
    setTimeout(() => (copy.textContent = "copy"), 1500);
  } }, "copy");
  const code = h("code", {}, text);
  return h("div", { class: "command" }, code, copy);
}

export const badge = (word, kind) => h("span", { class: `status ${kind ?? ""}` }, word);

/** A verdict's sentence without its outcome, for a text that shows the outcome as a badge. */
export const withoutOutcome = (outcome, sentence) => (sentence.startsWith(`${outcome}: `) ? sentence.slice(outcome.length + 2) : sentence);

/** A message about what is being loaded. */
export const doing = (words) => h("p", { class: "doing", role: "status" }, `${words} …`);

/** An error message, usually the server's. */
export const trouble = (error) => h("p", { class: "trouble", role: "alert" }, error.message ?? String(error));
