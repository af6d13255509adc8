"""The workbench: runs, studies, cases and models in a browser (`headway open`).

The server only reads folders, like everything after training. A training is a separate process, started by the same
command that a user would type; if one of them dies, the other is not affected. The server never imports torch: what
needs a model, or a parsed recipe, runs in a worker process (`workers.py`), whose death is an error message on a page.

**Names.** A run or study is named by its path inside the served folder: `runs/demo`,
`studies/B7-quick/runs/learned.seed-0`. `Bench.run(name)` and `Bench.study(name)` return the folder, or report that
there is none. A name that leads out of the served folder, by dots or by links, does not exist.

**A part of the API** is a file with an `APIRouter`, listed in `app.py`:

    router = APIRouter(prefix="/api/ask/look", tags=["look"])

    @router.post("/maps/{name:path}", response_model=LookSchema)
    async def maps(name: str, text: str, bench: Here) -> Any:
        folder = str(bench.run(name))
        return await bench.models.ask("headway.workbench.looked:maps", about=folder, folder=folder, text=text)

`Here` is the `Bench` of this server. `bench.models.ask("module:function", about=…, **plain)` calls a plain function in
a worker that keeps models loaded (if possible one that has this model), and returns its result (JSON);
`bench.readers.ask` does the same in workers that read studies and recipes, so that neither waits for the other. A
`UserError`, there or here, is answered with 422 and `{"error": "…"}`. Whatever starts or changes something is a POST,
refused under `--read-only`; a question with a body is a POST under `/api/ask/`, which is allowed, and is cancelled when
the client disconnects. Trainings are started by `bench.jobs.start(["train", "demo", "seed=3"])`.

**A view** is a file in `static/views/` with `export async function show(page)`, listed in `static/routes.js`:

    page.root     the element to fill          page.name     the part of the address after the view's name
    page.query    URLSearchParams              page.put({key: value})   changes them in the address, without a reload
    page.signal   aborted when the user leaves: pass it to everything that listens or fetches
    page.title("…")  ·  go("/run/runs/demo") and about (a promise of {folder, read_only}) from main.js

`dom.js`: `h("p", {class: "note"}, "text", child)` makes elements; text is always text, never HTML. `api.js`:
`get(path)`, `post(path, body)`, both of which throw an Error with the server's message; `watch(topics, listeners,
signal)` for events (`runs`, `run:NAME`, `study:NAME`). `curves.js`: curves on a canvas. `look.css`: the colours of the
reports as variables. The Content-Security-Policy allows no inline script or style: use classes, or `element.style` from
a script. Buttons that start or stop something have the class `acts`: they are hidden under `--read-only`.
"""
