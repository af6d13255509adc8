"""Answers of `look`: attention maps, gradients, and how far those reach."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from headway.answers.schema import Number, Schema


class HeadSchema(BaseModel):
    """A head, and its statistics by name."""

    model_config = ConfigDict(extra="allow")
    layer: int
    head: int


class LookedSchema(Schema):
    run: str
    show: Literal["heads", "rollout", "gradients"]
    tokens: list[str]
    unknown: list[Any]
    target: list[str] = Field(default=[], description="Of a translator: what it writes.")
    translation: str | None = None
    alignment: list[int] = Field(default=[], description="For each token of the target, the one of the source.")
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
    shares: list[Any] = Field(description="Of patches, line by line; of words, one after the other.")


class PictureLookSchema(Schema):
    """Of a picture and its caption."""

    run: str
    show: Literal["heads", "gradients"]
    image: str
    caption: str
    tokens: list[str]
    unknown: list[Any]
    cosine: Number
    gradient_by_patch: list[list[Number]] = Field(description="Shares of the length of d cosine / d patch.")
    gradient_by_word: list[Number]
    attention: list[PatchAttentionSchema] = Field(description="That each patch or word gets, on average.")
    file: str | None


class NormsSchema(Schema):
    """Of a Jacobian, by distance: 0, 1, 2 …"""

    typical: list[Number] = Field(description="‖J‖_F/√D: 1 for the identity.")
    largest: list[Number] | None = Field(description="‖J‖₂; null = the width is too large.")


class HiddenStateSchema(NormsSchema):
    units: int
    bound: list[Number] | None = Field(description="What the weights alone allow ‖J‖₂ to be; null = they do not say.")
    step_bound: Number
    singular_values: list[Number] = Field(description="Of one step's Jacobian, the largest first.")


class SideFlowSchema(Schema):
    """Along one side of what is read, by distance: 0, 1, 2 …"""

    tokens: int = Field(description="That every row has there.")
    losses: list[Number]
    streams: dict[str, NormsSchema]
    hidden: dict[str, HiddenStateSchema]


class FlowOfRunSchema(SideFlowSchema):
    """Along the side that ends with token t, whose loss is followed."""

    run: str
    segments: int = Field(description="How many rows: segments of running text, texts, or pairs.")
    loss_of: str = Field(description="Whose loss is differentiated, in words.")
    notes: list[str]
    source: SideFlowSchema | None = Field(
        description="Of a translator: the same from the end of the source on, END being at distance 0."
    )


class FlowOfArmSchema(Schema):
    name: str
    runs: list[FlowOfRunSchema] = Field(description="They differ in their seed alone.")


class GradientFlowSchema(Schema):
    show: Literal["gradient-flow"]
    split: str
    arms: list[FlowOfArmSchema]
    file: str | None


class LookSchema(RootModel[MapsSchema | GradientFlowSchema | PictureLookSchema]):
    pass
