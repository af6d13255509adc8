"""Before anything of Headway is imported: every shape written in an annotation is checked when its function is called."""

import jaxtyping

jaxtyping.install_import_hook(
    ["headway.nn", "headway.models", "headway.scoring", "headway.noise", "headway.training.optimizers"],
    "beartype.beartype",
)
