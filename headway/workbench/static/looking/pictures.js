// A picture and a caption, as a model that matches them sees them: patches that get attention, patches the match hangs on.

import { h, number, put } from "../dom.js";
import { askModel } from "../frames.js";
import { ofWeight, painted } from "./colours.js";
import { tokenText } from "./tokens.js";

const figure = (caption, canvas, label) => h("figure", { class: "patch" }, canvas, h("figcaption", {}, label ?? caption));

export async function matched(side, { text, image }, signal) {
  const found = await askModel("match", { run: side.name, text, image }, signal);
  const { pixels, by_patch: patches, by_word: words, among_patches: heads } = found.arrays, [size] = pixels.shape, [n] = patches.shape;
  const picture = h("canvas", { width: size, height: size, role: "img", "aria-label": `the picture ${image}` });
  const context = picture.getContext("2d"), data = context.createImageData(size, size);
  for (let k = 0; k < size * size; k++) data.data.set([pixels.data[3 * k], pixels.data[3 * k + 1], pixels.data[3 * k + 2], 255], 4 * k);
  context.putImageData(data, 0, 0);
  const most = (values) => Math.max(1e-9, ...values);
  const shares = (values) => { const top = most(values); return (value) => ofWeight((value / top) ** 2); };
  const names = found.heads.filter((one) => one.of === "patches");
  const other = h("input", { value: image, "aria-label": "The picture, of the run's own data", size: "10", onchange: (event) => side.settle({ image: event.target.value.trim() }) });
  const tokens = tokenText([{ tokens: found.tokens }]);
  const paint = shares(words.data);
  tokens.colour(0, (k) => paint(words.data[k]), (k) => `${(100 * words.data[k]).toFixed(0)} % of the gradient`);
  put(side.answer, h("p", { class: "read" }, `The cosine of picture and caption is ${number(found.cosine)}.`), h("label", {}, "Picture ", other), found.notes.map((note) => h("p", { class: "note" }, note)));
  put(side.texts, tokens.element, h("p", { class: "note" }, "Words by how much the match hangs on them."));
  put(side.grid, h("div", { class: "patches" }, figure("picture", picture, "as it is seen"),
    figure("hangs on", painted(h("canvas", { role: "img", "aria-label": "what the match hangs on" }), patches.data, n, n, shares(patches.data)), "what the match hangs on"),
    names.map(({ layer, head }, k) => {
      const part = heads.data.subarray(k * n * n, (k + 1) * n * n);
      return figure("", painted(h("canvas", { role: "img", "aria-label": `attention of layer ${layer}, head ${head}` }), part, n, n, shares(part)), `layer ${layer}, head ${head}`);
    })));
  side.large.clear();
}
