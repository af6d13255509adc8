"""Worker processes that answer for the server: they fail alone, do not block each other, and stop when an answer is no
longer wanted."""

import asyncio
import time
from contextlib import suppress

import pytest
from bench_tools import HOST, TOKEN

from headway.core.errors import UserError
from headway.workbench import workers
from headway.workbench.app import create_app
from headway.workbench.bench import Bench
from headway.workbench.workers import AnsweringProcess, AnsweringProcesses


def test_a_worker_answers_and_dies_alone():
    async def talk():
        worker = AnsweringProcess(seconds=20, idle=0.05)
        assert await worker.ask("headway.core.format:number", value=2.0) == "2.000"
        with pytest.raises(UserError, match="TypeError"):
            await worker.ask("headway.core.format:number", no="number")
        with pytest.raises(UserError, match="exit code 9"):
            await worker.ask("os:_exit", status=9)
        assert await worker.ask("headway.core.format:number", value=3.0) == "3.000", "another process was started"
        await asyncio.sleep(0.3)
        assert worker.pid is None, "an idle process ends"
        hasty = AnsweringProcess(seconds=0.05)
        with pytest.raises(UserError, match="longer than"):
            await hasty.ask("signal:pause")  # which never returns

    asyncio.run(talk())


def test_a_slow_question_does_not_block_others(monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 0.1)

    async def talk():
        several = AnsweringProcesses(most=2)
        first = await several.ask("os:getpid", about="a")
        assert await several.ask("os:getpid", about="b") == first, "a running process that is free is used"
        slow = asyncio.create_task(several.ask("signal:pause", about="a"))
        await asyncio.sleep(0)
        other = await several.ask("os:getpid", about="a")
        assert other != first, "after waiting a moment, another process is used"
        assert await several.ask("os:getpid", about="b") == other
        stuck = asyncio.create_task(several.ask("signal:pause", about="b"))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(several.ask("os:getpid"))
        await asyncio.sleep(0.3)
        assert not waiting.done(), "both are busy, and two is the limit"
        several.processes[0].give_up()
        assert await waiting not in (first, other)
        several.stop()
        assert not any(process.knows for process in several.processes)
        for one in (slow, stuck):
            with pytest.raises(UserError, match="signal 9"):
                await one

    asyncio.run(talk())


def test_abandoned_questions_are_not_computed(tmp_path, monkeypatch):
    """A page that is left, or sends another question, closes its connection. The process that computes is ended soon
    after, and a question that has not been started is dropped."""
    monkeypatch.setattr(workers, "GRACE", 0.1)
    began = []

    class Slow(AnsweringProcesses):
        async def ask(self, function, about="", **given):
            began.append(given["question"])
            return await super().ask("signal:pause", about)

    async def question(app, name, seconds):
        body = b'{"run": "one", "text": "x"}'
        headers = [(b"host", HOST.encode()), (b"authorization", f"Bearer {TOKEN}".encode())]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        scope = {"type": "http", "method": "POST", "path": f"/api/ask/look/{name}", "headers": headers}
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive():
            if (message := next(messages, None)) is None:
                await asyncio.sleep(seconds)
                return {"type": "http.disconnect"}
            return message

        async def send(message):
            pass

        await app({**scope, "query_string": b"", "raw_path": scope["path"].encode()}, receive, send)

    async def talk():
        bench = Bench(tmp_path, models=Slow(most=1))
        monkeypatch.setattr(bench, "run", lambda name: tmp_path)
        app, since = create_app(bench, TOKEN, {HOST}), time.monotonic()
        await asyncio.gather(question(app, "maps", 0.3), question(app, "map", 0.3))
        assert sorted(began) == ["map", "maps"] and time.monotonic() - since < 5
        (process,) = bench.models.processes
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                while process.is_busy or process.pid is not None:
                    await asyncio.sleep(0.02)
        assert not process.is_busy and process.pid is None
        bench.models.stop()

    asyncio.run(talk())
