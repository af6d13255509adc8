// One run's half of the page: its heads, one large map, its tokens with their losses, and its outputs.

import { h, number, put, trouble } from "../dom.js";
import { askModel } from "../frames.js";
import { answers } from "./answers.js";
import { css, ofDifference, ofWeight } from "./colours.js";
import { headGrid, told } from "./grid.js";
import { largeMap } from "./large.js";
import { tokenText } from "./tokens.js";

const SAID_AFTER = 1000; // milliseconds, before a message about the computation is shown

export class Side {
  /** `settle(changes)`: apply a user's choice to all sides; `drawn()`: called after a new map is drawn. */
  constructor(name, signal, { settle, drawn }) {
    Object.assign(this, { name, signal, settle, drawn, map: null, asked: {}, costs: null });
    this.facts = h("p", { class: "note" }, "loading the model …");
    this.status = h("p", { class: "note", role: "status" });
    this.counted = h("p", { class: "note", role: "status" });
    this.answer = h("div", { class: "answers" });
    this.texts = h("div", { class: "texts" });
    this.grid = h("div", { class: "all" });
    this.large = largeMap({ label: `Attention of ${name}`, onrow: (i) => this.#pointAtRow(i) });
    this.heading = h("p", { class: "note what" });
    this.element = h("section", { class: "side", "aria-label": name },
      h("h2", {}, name), this.facts, this.status, this.answer, this.texts,
      h("div", { class: "maps" }, this.grid, h("div", { class: "one" }, this.heading, this.large.element)));
  }

  async open() {
    try {
      this.about = await askModel("about", { run: this.name }, this.signal);
      const { kind, step, context, stacks } = this.about, layers = Object.values(stacks).flat().length;
      this.facts.textContent = `${kind} after ${step.toLocaleString("en-US")} steps, context ${context}${layers ? "" : "; no attention"}`;
    } catch (error) {
      if (this.signal.aborted) return null;
      put(this.facts);
      this.element.append(trouble(error));
    }
    return this.about ?? null;
  }

  /** Only one question runs at a time, and the newest one is next. A question about another text is cancelled at once. */
  async update(state) {
    this.wish = { ...state, off: new Set(state.off) };
    this.wishOff = this.wish.off;
    if (!this.about) return;
    if (this.underWay) {
      if (this.underWay.text !== state.text) this.underWay.leave.abort();
      return;
    }
    while (this.wish && !this.signal.aborted) {
      const wish = this.wish, leave = new AbortController();
      this.wish = null;
      this.underWay = { text: wish.text, leave };
      const counting = this.#sayIfItTakesLong(leave);
      try {
        await this.#fulfil(wish, AbortSignal.any([this.signal, leave.signal]));
        put(this.status);
      } catch (error) {
        if (this.signal.aborted) break;
        this.asked = {};
        put(this.status, error.name !== "AbortError" ? trouble(error) : !this.wish && "Cancelled.");
      } finally {
        clearInterval(counting);
      }
    }
    this.underWay = null;
  }

  /** Show a message with a cancel button if a computation takes long. */
  #sayIfItTakesLong(leave) {
    const began = performance.now(), seconds = h("span");
    const stop = h("button", { type: "button", class: "plain", onclick: () => leave.abort() }, "cancel");
    return setInterval(() => {
      seconds.textContent = `computing, ${Math.round((performance.now() - began) / 1000)} seconds `;
      if (!seconds.isConnected) put(this.status, seconds, stop);
    }, SAID_AFTER);
  }

  async #fulfil(wish, signal) {
    if (this.about.abilities.includes("match")) return this.#match(wish, signal);
    const given = { run: this.name, text: wish.text };
    if (this.asked.text !== wish.text) {
      const began = performance.now();
      this.found = await askModel("maps", given, signal);
      this.costs = null;
      this.#showTokens();
      this.#showGrid();
      this.asked = { text: wish.text };
      this.element.dataset.milliseconds = Math.round(performance.now() - began);
    }
    const heads = this.found.heads, first = heads.find((one) => one.stack === "cross") ?? heads[0];
    const name = heads.some((one) => key(one) === wish.picked) ? wish.picked : first ? key(first) : null;
    const off = [...wish.off].filter((one) => heads.some((head) => key(head) === one));
    this.heads?.mark({ picked: name, off: new Set(off), costs: this.costs });
    const large = `${wish.show} ${wish.show === "head" ? name : ""}`;
    if (this.asked.large !== large) {
      await this.#showLarge(wish, name, signal);
      this.asked.large = large;
    }
    if (!this.asked.numbers && heads.length) {
      const { heads: numbers } = await askModel("numbers", given, signal);
      heads.forEach((one, k) => Object.assign(one, numbers[k]));
      this.asked.numbers = true;
      this.heads.mark({ picked: name, off: new Set(off), costs: this.costs });
      if (wish.show === "head" && name) put(this.heading, told(heads.find((one) => key(one) === name)));
    }
    if (this.asked.off !== off.join()) {
      const losses = await askModel("losses", { ...given, off: off.map((one) => one.split(".")).map(([stack, layer, head]) => [stack, Number(layer), Number(head)]) }, signal);
      this.asked.off = off.join();
      this.losses = losses;
      this.#showLosses(off);
    }
    if (this.asked.answer !== wish.text) {
      await answers(this.answer, this.about, given, signal);
      this.asked.answer = wish.text;
    }
  }

  #showTokens() {
    const { stacks, tokens } = this.found, cross = stacks.find((one) => one.name === "cross") ?? stacks.find((one) => one.name === "decoder");
    this.blocks = cross && cross.name !== "self"
      ? [{ name: "source", tokens: stacks.find((one) => one.name === "encoder")?.columns ?? cross.columns }, { name: "translation", tokens: cross.rows }]
      : [{ tokens }];
    this.text = tokenText(this.blocks, { onpoint: (block, place) => this.#pointAtToken(block, place) });
    this.lost = h("p", { class: "note lost-on" });
    put(this.texts, this.text.element, this.lost);
  }

  #showGrid() {
    if (!this.found.heads.length) {
      this.heads = null;
      put(this.grid, h("p", { class: "read" }, this.found.notes[0]), h("p", { class: "note" }, "Gradients show what its predictions depend on; losses are shown above."));
      return;
    }
    this.heads = headGrid(this.found, {
      pick: (one) => this.settle({ picked: key(one), show: "head" }),
      toggle: (one) => this.settle({ off: toggled(this.wishOff ?? new Set(), key(one)) }),
    });
    const each = h("button", { type: "button", onclick: () => this.#eachOff() }, "Measure each head's effect");
    const none = h("button", { type: "button", onclick: () => this.settle({ off: new Set() }) }, "Switch all heads on");
    put(this.counted);
    put(this.grid, this.heads.element, h("p", { class: "controls" }, each, none), this.counted,
      this.found.notes.map((note) => h("p", { class: "note" }, note)));
  }

  async #showLarge(wish, name, signal) {
    const given = { run: this.name, text: wish.text };
    let frame, rows, columns, caption, places, verb;
    if (wish.show === "gradients") {
      frame = await askModel("gradients", this.row === undefined || this.row === null ? given : { ...given, row: this.row }, signal);
      ({ rows, columns } = frame);
      places = frame.places;
      verb = "depends on";
      caption = frame.places ? `what the prediction after token ${frame.places[0]} depends on (point at a token to choose another)` : `gradients: norm of ${frame.what} / d embedding`;
    } else if (!name) {
      this.map = null;
      this.large.clear();
      put(this.heading);
      return;
    } else if (wish.show === "rollout") {
      frame = await askModel("rollout", given, signal);
      rows = columns = this.found.stacks[0].rows;
      caption = `rollout to layer ${frame.layer}`;
      verb = "comes from";
    } else {
      const [stack, layer, head] = name.split(".");
      frame = await askModel("map", { ...given, stack, layer: Number(layer), head: Number(head) }, signal);
      ({ rows, columns } = this.found.stacks.find((one) => one.name === stack));
      caption = `${stack === "self" ? "" : `${stack}, `}layer ${layer}, head ${head}`;
      this.stack = stack;
      const one = this.found.heads.find((head) => key(head) === name);
      put(this.heading, one.entropy_share === undefined ? "" : told(one));
    }
    if (wish.show !== "head") put(this.heading, wish.show === "rollout" ? "Heads averaged, residual stream added, layers multiplied: which tokens contribute to each token." : "");
    this.map = { data: frame.arrays.map.data, rows, columns, caption, verb, places };
    this.large.show(this.map);
    this.drawn();
  }

  /** Which block of tokens belongs to the rows of the large map, and which to its columns. */
  get #sides() {
    if (this.blocks.length === 1) return [0, 0];
    return { encoder: [0, 0], cross: [1, 0], decoder: [1, 1] }[this.stack] ?? [0, 0];
  }

  #pointAtRow(i) {
    if (!this.map || !this.text) return;
    const [from, to] = this.#sides, width = this.map.columns.length;
    if (i === null) return this.#rest();
    const place = this.map.places ? this.map.places[i] : i;
    let weights = this.map.data.subarray(i * width, (i + 1) * width);
    if (this.blocks[to].tokens.length !== width) { // a decoder also attends to END before its own tokens, and perhaps to the source
      const before = width - this.blocks[to].tokens.length;
      weights = before > 0 ? weights.subarray(before) : weights;
    }
    this.text.lines(from, this.map.rows.length === this.blocks[from].tokens.length ? place : this.blocks[from].tokens.length - 1, to, weights);
  }

  #pointAtToken(block, place) {
    if (place === null || !this.map) return this.#rest();
    const [from] = this.#sides;
    if (this.map.places) { // for long texts, gradients are computed for one prediction at a time
      if (this.map.places[0] !== place) { this.row = place; delete this.asked.large; this.settle({}); }
      return;
    }
    if (block === from && place < this.map.rows.length) this.#pointAtRow(place);
  }

  /** Nothing is pointed at: colour tokens by their loss. */
  #rest() {
    this.text?.lines(0, 0, 0, null);
    this.#colourLosses();
  }

  #showLosses(off) {
    const { nats, without, what, pieces } = this.losses, sum = (of) => of.reduce((total, one) => total + (one ?? 0), 0);
    const total = sum(nats), counted = nats.filter((one) => one !== null).length;
    const words = `Loss ${what}: ${number(total / Math.max(1, counted))} nats each, ${number(total)} in total`;
    const change = without ? `; without ${off.length === 1 ? "that head" : `those ${off.length} heads`} ${number(sum(without))} (${sum(without) >= total ? "+" : ""}${number(sum(without) - total)}); red: higher loss, blue: lower` : "";
    put(this.lost, `${words}${change}.`);
    const isOfClasses = this.about.abilities.includes("classify"), block = this.blocks.length - 1, { tokens } = this.blocks[block];
    this.lossFrom = Math.max(0, tokens.findIndex((_, k) => pieces.every((piece, i) => tokens[k + i] === piece))); // after [CLS]
    this.lossBlock = isOfClasses || tokens.length < pieces.length ? -1 : block;
    this.#colourLosses();
    if (this.lossBlock < 0) {
      put(this.lost, `${words}${change}. `, h("span", { class: "chips" }, pieces.map((piece, k) => {
        const value = without ? without[k] - nats[k] : nats[k];
        return h("span", { class: "chip", style: { borderColor: css(without ? ofDifference(-value, 2) : ofWeight(Math.min(1, value / 5))) } }, `${piece} ${without ? (value >= 0 ? "+" : "") : ""}${number(value)}`);
      })));
    }
  }

  #colourLosses() {
    if (!this.losses || this.lossBlock === undefined || this.lossBlock < 0) return;
    const { nats, without } = this.losses;
    for (let block = 0; block < this.blocks.length; block++) if (block !== this.lossBlock) this.text.colour(block, null);
    const lost = (k) => nats[k - this.lossFrom] ?? null, then = (k) => without[k - this.lossFrom];
    this.text.colour(this.lossBlock,
      (k) => (lost(k) === null ? null : without ? ofDifference(lost(k) - then(k), 1) : ofWeight(Math.min(1, (lost(k) / 8) ** 2))),
      (k) => (lost(k) === null ? "no loss: it has no context, or is not predicted" : without ? `${number(lost(k))} → ${number(then(k))} nats` : `${number(lost(k))} nats`));
  }

  async #eachOff() {
    try {
      const { each } = await askModel("each_off", { run: this.name, text: this.asked.text }, this.signal);
      this.costs = Object.fromEntries(each.map((one) => [key(one), one.nats]));
      const worst = each.reduce((a, b) => ((b.nats ?? 0) > (a.nats ?? 0) ? b : a));
      this.settle({});
      put(this.counted, `The largest effect: without ${worst.stack === "self" ? "" : `${worst.stack}, `}layer ${worst.layer}, head ${worst.head}, the loss on this text is ${number(worst.nats)} nats higher. The bar below each head shows its effect.`);
    } catch (error) {
      put(this.counted, trouble(error));
    }
  }

  async #match(wish, signal) {
    const asked = this.asked.match;
    if (asked?.text === wish.text && asked.image === wish.image && asked.picture === wish.picture) return;
    const { matched } = await import("./pictures.js");
    await matched(this, wish, signal);
    this.asked.match = wish;
  }
}

const key = ({ stack, layer, head }) => `${stack}.${layer}.${head}`;
const toggled = (set, one) => (set.has(one) ? set.delete(one) : set.add(one), new Set(set));
