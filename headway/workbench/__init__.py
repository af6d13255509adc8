"""The workbench: runs, studies, cases and models in a browser (`headway open`).

The server reads folders, as everything after training does. What trains is a process of its own, started by the same
command a person would type; neither side's death harms the other. The server never imports torch: what needs a model,
or a recipe that is understood, is asked of a worker process (`workers.py`), whose death is an error message on a page.

**Names.** A run or study is called by its path inside the folder that is served: `runs/demo`,
`studies/B7-quick/runs/learned.seed-0`. `Bench.run(name)` and `Bench.study(name)` give the folder, or say that there
is none; a name that leads outside, by dots or by links, is no name.

**A part of the API** is a file with an `APIRouter`, listed in `app.py`:

    router = APIRouter(prefix="/api/ask/look", tags=["look"])

    @router.post("/maps/{name:path}", response_model=LookSchema)
    async def maps(name: str, text: str, bench: Here) -> Any:
        folder = str(bench.run(name))
        return await bench.models.ask("headway.workbench.looked:maps", about=folder, folder=folder, text=text)

`Here` is the `Bench` of this server. `bench.models.ask("module:function", about=…, **plain)` calls a plain function in
a worker that keeps models (the one that has this one loaded, if it is free), and gives what it gives (JSON);
`bench.readers.ask` is the same in those that read studies and recipes, so that neither waits for the other. A
`UserError`, there or here, is answered with 422 and `{"error": "…"}`. What starts or changes anything is a POST,
refused under `--read-only`; a question with a body is a POST under `/api/ask/`, which is not, and which is cancelled
when whoever asked has gone. Trainings start by `bench.jobs.start(["train", "demo", "seed=3"])`.

**A view** is a file in `static/views/` with `export async function show(page)`, listed in `static/routes.js`:

    page.root     the element to fill          page.name     what stands after the view's name in the address
    page.query    URLSearchParams              page.put({key: value})   changes them in the address, without a reload
    page.signal   aborted when the reader leaves: pass it to everything that listens or fetches
    page.title("…")  ·  go("/run/runs/demo") and about (a promise of {folder, read_only}) from main.js

`dom.js`: `h("p", {class: "note"}, "text", child)` makes elements; text is always text, never HTML. `api.js`:
`get(path)`, `post(path, body)`, both of which throw an Error with the server's own words; `watch(topics, listeners,
signal)` for what happens (`runs`, `run:NAME`, `study:NAME`). `curves.js`: curves on a canvas. `look.css`: the colours
of the reports as variables. The Content-Security-Policy allows no inline script or style: use classes, or
`element.style` from a script. Buttons that start or stop something have the class `acts`: under `--read-only` they are
not shown.
"""
