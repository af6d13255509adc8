"""`python -m headway.cli`, which is what torchrun starts."""

from headway.cli import main

main()
