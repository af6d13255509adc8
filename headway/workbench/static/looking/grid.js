// All heads as small maps: one row per layer, one button per head. Arrow keys move between heads, Enter selects one, x
// switches one off.

import { h, number } from "../dom.js";
import { ofByte, painted } from "./colours.js";

const share = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);

export function told(head) {
  const facts = [`entropy ${share(head.entropy_share)} of the maximum`];
  if (head.distance !== undefined) facts.push(`mean distance ${number(head.distance)} tokens`, `on itself ${share(head.on_self)}`, `on the first token ${share(head.on_first)}`, `on the previous token ${share(head.on_previous)}`);
  return facts.join(", ");
}

/** `found`: the server's answer about all maps. `pick(head)`, `toggle(head)`: called on clicks. Returns {element, mark(…)}. */
export function headGrid(found, { pick, toggle }) {
  const { small } = found.arrays, [, side] = small.shape, buttons = [];
  const stacks = found.stacks.map((stack) => {
    const [rows, columns] = stack.small, heads = found.heads.filter((one) => one.stack === stack.name);
    const layers = [...new Set(heads.map((one) => one.layer))];
    const most = Math.max(...layers.map((layer) => heads.filter((one) => one.layer === layer).length));
    const grid = h("div", { class: "heads", role: "group", "aria-label": `${stack.name}: ${stack.what}` });
    grid.style.setProperty("--heads", most);
    layers.forEach((layer, row) => {
      grid.append(h("span", { class: "layer", title: `layer ${layer}` }, String(layer)));
      heads.filter((one) => one.layer === layer).forEach((one, column) => {
        const canvas = painted(h("canvas", { "aria-hidden": "true" }), small.data, rows, columns, ofByte, side, one.small * side * side);
        const button = h("button", {
          type: "button", class: "head", tabindex: "-1", "aria-label": `layer ${layer}, head ${one.head}`,
          onclick: (event) => (event.shiftKey ? toggle(one) : pick(one)),
        }, canvas);
        button.style.gridColumn = column + 2;
        button.style.gridRow = row + 1;
        buttons.push({ button, one, row, column, stack: stack.name });
        grid.append(button);
      });
    });
    return h("figure", { class: "stack" }, found.stacks.length > 1 && h("figcaption", {}, `${stack.name}: ${stack.what}`), grid);
  });
  const element = h("div", { class: "stacks" }, stacks);
  element.addEventListener("keydown", (event) => {
    const here = buttons.find(({ button }) => button === document.activeElement);
    if (!here) return;
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (step) {
      const next = buttons.find((one) => one.stack === here.stack && one.row === here.row + step[0] && one.column === here.column + step[1]);
      if (next) { next.button.focus(); pick(next.one); }
      event.preventDefault();
    } else if (event.key === "x") toggle(here.one);
  });
  const mark = ({ picked, off, costs }) => {
    const worst = Math.max(1e-9, ...Object.values(costs ?? {}).map(Math.abs));
    for (const { button, one } of buttons) {
      const name = `${one.stack}.${one.layer}.${one.head}`, chosen = name === picked, cost = costs?.[name];
      button.classList.toggle("picked", chosen);
      button.setAttribute("aria-pressed", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      button.classList.toggle("off", off.has(name));
      button.style.setProperty("--cost", cost === undefined ? 0 : Math.max(0, cost) / worst);
      const numbers = one.entropy_share === undefined ? "" : `: ${told(one)}`;
      button.setAttribute("aria-label", `layer ${one.layer}, head ${one.head}${off.has(name) ? ", switched off" : ""}${numbers}`);
      button.title = `layer ${one.layer}, head ${one.head}${numbers}${cost === undefined ? "" : `; without it ${cost >= 0 ? "+" : ""}${number(cost)} nats`}`;
    }
    if (!buttons.some(({ button }) => button.tabIndex === 0) && buttons.length) buttons[0].button.tabIndex = 0;
  };
  return { element, mark };
}
