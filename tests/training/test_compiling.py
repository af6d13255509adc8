"""Equal layers are compiled once, and training is unchanged by the switch to compiled layers."""

ALIKE = """
import torch
from headway.data.running.batches import Batch
from headway.models.language_model import LanguageModelSpec
from headway.training.compiling import compiled_loss

for changes in ({"positions": "rotary", "dropout": 0.1}, {"positions": "alibi"}):
    spec = LanguageModelSpec.model_validate({"layers": 2, "width": 8, "context": 6, "mixer": {"heads": 2}, **changes})
    model = spec.build(13, [0, 1]).train()
    ids = torch.arange(2 * 2 * 7).view(2, 2, 7) % 13
    batch = Batch(ids[..., :-1], ids[..., 1:], begins=torch.tensor(True))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    loss = compiled_loss(model, None, "eager")
    found, expected = loss(batch)[0], model.loss(batch)[0]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, changes
    assert not torch._dynamo.utils.counters["graph_break"], changes
    assert torch.equal(found, expected), changes
    assert not any("forward" in vars(layer) for layer in model.layers)  # outside of the loss they are as they were
"""

SWAPPED = """
import torch
from headway.data.running.batches import Crops
from headway.models.language_model import LanguageModelSpec
from headway.training.adam import AdamW
from headway.training.setting import choose
from headway.training.spec import TrainingSpec
from headway.training.update import Update

spec = LanguageModelSpec.model_validate({"layers": 2, "width": 8, "context": 6, "dropout": 0.2, "mixer": {"heads": 2}})
training, found = TrainingSpec(batch=4, device="cpu"), {}
for at, until in ((None, None), (3, None), (2, 4)):
    model = spec.build(13, [0])
    optimizer = AdamW().build(dict(model.named_parameters()), [1e-2], [0.1])  # alone it takes the same kernel always
    sampler = Crops().build(torch.arange(500) * 7 % 13, 6, 4, [0])
    alive = torch.ones(1, dtype=torch.bool)
    update = Update(model, optimizer, sampler, training, choose(training, 8), alive)
    losses = []
    for step in range(6):
        if step == at:
            update.compile("eager")
        if step == until:
            update.uncompile()
        losses.append(update(step, 1.0)[0])
    found[at] = torch.stack(losses), *model.parameters()
for at in (2, 3):
    assert all(torch.equal(ours, plain) for ours, plain in zip(found[at], found[None], strict=True))
"""


def test_one_program_serves_all_layers_and_with_the_same_kernels_the_switch_is_bit_identical(forge):
    """In its own process, because the shape checks of the tests cannot be compiled."""
    answer = forge.run(code=ALIKE + SWAPPED)
    assert answer.code == 0, answer.err
