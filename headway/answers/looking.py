"""Schemas of the answers of `look`: attention maps, gradients, gradient flow."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from headway.answers.schema import Number, Schema


class HeadSchema(BaseModel):
    """A head with its statistics by name."""

    model_config = ConfigDict(extra="allow")
    layer: int
    head: int


class LookedSchema(Schema):
    run: str
    show: Literal["heads", "rollout", "gradients"]
    tokens: list[str]
    unknown: list[Any]
    target: list[str] = Field(default=[], description="For a translator: the tokens that it writes.")
    translation: str | None = None
    alignment: list[int] = Field(default=[], description="For each token of the target, a token of the source.")
    largest_difference: Number = None
    heads: list[HeadSchema] = Field(default=[])
    predictions: list[dict[str, Any]] = Field(default=[])


class MapsSchema(LookedSchema):
    beside: LookedSchema | None = Field(default=None, alias="with")
    comparison: dict[str, Any] | None = None
    file: str | None


class PatchAttentionSchema(Schema):
    layer: int
    head: int
    of: Literal["patches", "words"]
    shares: list[Any] = Field(description="For patches, row by row; for words, in order.")


class PictureLookSchema(Schema):
    """A picture and its caption."""

    run: str
    show: Literal["heads", "gradients"]
    image: str
    caption: str
    tokens: list[str]
    unknown: list[Any]
    cosine: Number
    gradient_by_patch: list[list[Number]] = Field(description="Shares of the norm of d cosine / d patch.")
    gradient_by_word: list[Number]
    attention: list[PatchAttentionSchema] = Field(description="The mean attention that each patch or word receives.")
    file: str | None


class NormsSchema(Schema):
    """Norms of a Jacobian, by distance: 0, 1, 2 …"""

    typical: list[Number] = Field(description="‖J‖_F/√D: 1 for the identity.")
    largest: list[Number] | None = Field(description="‖J‖₂; null = the width is too large.")


class HiddenStateSchema(NormsSchema):
    units: int
    bound: list[Number] | None = Field(description="The bound of ‖J‖₂ from the weights alone; null = there is none.")
    step_bound: Number
    singular_values: list[Number] = Field(description="Of the Jacobian of one step, largest first.")


class SideFlowSchema(Schema):
    """Gradients along one sequence that the model reads, by distance: 0, 1, 2 …"""

    tokens: int = Field(description="The number of tokens of every row.")
    losses: list[Number]
    streams: dict[str, NormsSchema]
    hidden: dict[str, HiddenStateSchema]


class FlowOfRunSchema(SideFlowSchema):
    """Gradients along the sequence that ends with token t, whose loss is differentiated."""

    run: str
    segments: int = Field(description="The number of rows: segments of running text, texts, or pairs.")
    loss_of: str = Field(description="Whose loss is differentiated, as a phrase.")
    notes: list[str]
    source: SideFlowSchema | None = Field(
        description="For a translator: gradients along the source, counted back from END at distance 0."
    )


class FlowOfArmSchema(Schema):
    name: str
    runs: list[FlowOfRunSchema] = Field(description="Runs that differ only in the seed.")


class GradientFlowSchema(Schema):
    show: Literal["gradient-flow"]
    split: str
    arms: list[FlowOfArmSchema]
    file: str | None


class LookSchema(RootModel[MapsSchema | GradientFlowSchema | PictureLookSchema]):
    pass
