// Requests to the server, and its event stream.

export class Refused extends Error {
  constructor(status, words) { super(words); this.status = status; }
}

async function answered(response) {
  const text = await response.text();
  let found;
  try { found = JSON.parse(text); } catch { found = { error: text || response.statusText }; }
  if (response.status === 401) lost(true, `${found.error}. The token of this page is no longer valid.`);
  if (!response.ok) throw new Refused(response.status, found.error ?? response.statusText);
  return found;
}

/** fetch() that shows a notice if the server does not answer. */
export async function asked(path, settings) {
  try {
    const response = await fetch(path, { credentials: "same-origin", ...settings });
    if (response.status !== 401) lost(false);
    return response;
  } catch (error) {
    if (error.name !== "AbortError") { lost(true); throw new Error("the server does not answer"); }
    throw error;
  }
}

export const get = async (path, signal) => answered(await asked(path, { signal }));
export const post = async (path, body, signal) => answered(await asked(path, {
  method: "POST", signal, headers: { "content-type": "application/json" }, body: JSON.stringify(body ?? {}),
}));

/** Encode a name for an address; slashes are kept. */
export const named = (name) => name.split("/").map(encodeURIComponent).join("/");
export const query = (given) => {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(given)) for (const one of [value].flat()) if (one !== undefined && one !== null) found.append(name, one);
  return found.toString();
};

const notice = document.querySelector(".lost"), AWAY = notice.textContent;
let timer;
function lost(is, why = AWAY) {
  notice.hidden = !is;
  notice.textContent = why;
  clearTimeout(timer);
  if (is) timer = setTimeout(() => fetch("/static/icon.svg", { cache: "no-store" }).then(({ ok }) => {
    if (!ok) return lost(true, why);
    lost(false);
    dispatchEvent(new Event("headway-back"));
  }, () => lost(true)), 1000);
}

/**
 * watch(() => ["runs", "run:NAME@BYTE"], {runs: f, run: f, metrics: f, study: f, anew: f}, signal) listens to events.
 * Topics are computed at every connection, so that a page continues where it was, whatever happened to the server
 * meanwhile. A hidden page closes its connection, since browsers allow only six per server.
 */
export function watch(topics, listeners, signal) {
  let source, again;
  const close = () => { source?.close(); source = undefined; clearTimeout(again); };
  const open = () => {
    close();
    if (signal.aborted || document.hidden) return;
    const wanted = topics();
    if (!wanted.length) return;
    source = new EventSource(`/api/events?${query({ topic: wanted })}`);
    source.onopen = () => lost(false);
    source.onerror = () => {
      close();
      get("/api/about", signal).catch(() => {}); // shows a notice if the server is gone; otherwise a topic is
      again = setTimeout(open, 1000);
    };
    for (const [kind, listener] of Object.entries(listeners)) source.addEventListener(kind, (event) => listener(JSON.parse(event.data)));
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()), { signal });
  signal.addEventListener("abort", close);
  open();
  return open;
}
