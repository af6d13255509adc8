// A picture and a caption in a model that matches them: attention to patches, and the gradient of the match by patch.
// The picture is from the run's own data, or the user's: chosen, dropped on the page, or pasted.

import { h, number, put, trouble } from "../dom.js";
import { askModel } from "../frames.js";
import { ofWeight, painted } from "./colours.js";
import { tokenText } from "./tokens.js";

const LONGEST = 512; // pixels per side of what is sent; models read fewer
const AS_IT_IS = 600_000; // bytes of a file that the browser cannot decode, but perhaps the server can

const figure = (canvas, label) => h("figure", { class: "patch" }, canvas, h("figcaption", {}, label));

/** The user's picture as base64; large pictures are scaled down first. */
async function encoded(file) {
  let blob = file;
  try {
    const whole = await createImageBitmap(file), scale = Math.min(1, LONGEST / Math.max(whole.width, whole.height));
    const canvas = new OffscreenCanvas(Math.max(1, Math.round(whole.width * scale)), Math.max(1, Math.round(whole.height * scale)));
    canvas.getContext("2d").drawImage(whole, 0, 0, canvas.width, canvas.height);
    blob = await canvas.convertToBlob({ type: "image/png" });
    if (blob.size > AS_IT_IS) blob = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 });
  } catch {
    if (file.size > AS_IT_IS) throw new Error(`'${file.name}' cannot be decoded by this browser, and is too large to send as it is`);
  }
  const address = await new Promise((done) => Object.assign(new FileReader(), { onload: (event) => done(event.target.result) }).readAsDataURL(blob));
  return address.slice(address.indexOf(",") + 1);
}

/** Controls for choosing the picture; created once, so that answers do not interrupt typing. */
function chooser(side) {
  const name = h("input", { "aria-label": "Picture from the run's own data", size: "10", onchange: () => side.settle({ image: name.value.trim(), picture: null }) });
  const file = h("input", { type: "file", accept: "image/*", "aria-label": "Your own picture", onchange: () => bring(file.files[0]) });
  const step = (by) => () => {
    const [split, place] = name.value.split(":");
    side.settle({ image: `${split}:${Math.max(0, (Number(place) || 0) + by)}`, picture: null });
  };
  async function bring(given) {
    if (!given) return;
    try { side.settle({ picture: { name: given.name || "pasted", data: await encoded(given) } }); }
    catch (error) { put(side.status, trouble(error)); }
  }
  const options = { signal: side.signal };
  addEventListener("dragover", (event) => { if (event.dataTransfer?.types.includes("Files")) event.preventDefault(); }, options);
  addEventListener("drop", (event) => { if (event.dataTransfer?.files.length) { event.preventDefault(); bring(event.dataTransfer.files[0]); } }, options);
  addEventListener("paste", (event) => { if (event.clipboardData?.files.length) bring(event.clipboardData.files[0]); }, options);
  const element = h("p", { class: "controls" },
    h("label", {}, "Picture ", name), h("button", { type: "button", "aria-label": "Previous picture", onclick: step(-1) }, "‹"), h("button", { type: "button", "aria-label": "Next picture", onclick: step(1) }, "›"),
    h("label", { class: "own" }, "or your own: ", file), h("span", { class: "note" }, "choose, drop or paste it; it is sent only to this server and is not part of the URL"));
  return { element, name, file, said: h("div", { class: "matched" }) };
}

export async function matched(side, { text, image, picture }, signal) {
  side.chooser ??= chooser(side);
  const { element, name, file, said } = side.chooser;
  name.value = picture ? "" : image;
  if (!picture) file.value = "";
  if (!element.isConnected) put(side.answer, element, said);
  const found = await askModel("match", { run: side.name, text, ...(picture ? { picture: picture.data } : { image }) }, signal);
  const { pixels, by_patch: patches, by_word: words, among_patches: heads } = found.arrays, [size] = pixels.shape, [n] = patches.shape;
  const shares = (values) => { const top = Math.max(1e-9, ...values); return (value) => ofWeight((value / top) ** 2); };
  const map = (values, label) => painted(h("canvas", { role: "img", "aria-label": label }), values, n, n, shares(values));

  put(said, h("p", { class: "read" }, `The cosine of ${picture ? picture.name : found.image} and this caption is ${number(found.cosine)}.`),
    found.caption && found.caption !== text && h("p", { class: "note" }, `Its caption in the data: “${found.caption}”. `,
      h("button", { type: "button", onclick: () => side.settle({ text: found.caption }) }, "use this caption")),
    found.notes.map((note) => h("p", { class: "note" }, note)));
  const tokens = tokenText([{ tokens: found.tokens }]), paint = shares(words.data);
  tokens.colour(0, (k) => paint(words.data[k]), (k) => `${(100 * words.data[k]).toFixed(0)} % of the gradient`);
  put(side.texts, tokens.element, h("p", { class: "note" }, "Words are coloured by their share of the gradient of the match."));

  const names = found.heads.filter((one) => one.of === "patches"), layers = [...new Set(names.map(({ layer }) => layer))];
  put(side.grid, h("div", { class: "patches" }, figure(seen(pixels.data, size, picture?.name ?? found.image), "model input"),
    figure(map(patches.data, "gradient of the match by patch"), "gradient of the match")),
    layers.map((layer) => h("div", { class: "patches" }, names.flatMap((one, k) => {
      const label = `layer ${one.layer}, head ${one.head}`;
      return one.layer === layer ? [figure(map(heads.data.subarray(k * n * n, (k + 1) * n * n), `attention of ${label}`), label)] : [];
    }))));
  side.large.clear();
}

/** The pixels that the model receives. */
function seen(pixels, size, name) {
  const canvas = h("canvas", { width: size, height: size, role: "img", "aria-label": `the picture ${name}` });
  const context = canvas.getContext("2d"), data = context.createImageData(size, size);
  for (let k = 0; k < size * size; k++) data.data.set([pixels[3 * k], pixels[3 * k + 1], pixels[3 * k + 2], 255], 4 * k);
  context.putImageData(data, 0, 0);
  return canvas;
}
