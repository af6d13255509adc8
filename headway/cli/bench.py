"""`headway bench`: measure this machine's training speed."""

import sys
from typing import Annotated, Any

import typer

from headway.cli.options import AsJson, print_json


def bench(
    size: Annotated[
        list[str] | None, typer.Option(help="tiny, small, medium, gpt2; default: sizes suited to the device.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds spent on each measurement.", min=0.1)] = 1.5,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda …")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure training speed and memory on this machine, for single models and populations."""
    from headway.experiment.bench import bars
    from headway.experiment.bench import bench as measure_all

    figures: list[dict[str, Any]] = []
    for figure in measure_all(size, seconds, device):
        print(f"measuring {figure['size']}, R = {figure['replicas']} …", file=sys.stderr)
        figures.append(figure)
    if as_json:
        print_json("bench", {"figures": figures})
    else:
        for name in dict.fromkeys(f["size"] for f in figures):
            print("\n".join([name, *bars([f for f in figures if f["size"] == name])]))
        print("R: replicas, trained together as one population; tokens/s: of all of them")
