"""`python -m headway.cli`: the entry point that torchrun starts."""

from headway.cli import main

main()
