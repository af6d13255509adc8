"""Schemas of the answers of `match`: pictures and captions."""

from pydantic import Field

from headway.answers.schema import Number, Schema

Matrix = list[list[Number]]


class ShownSchema(Schema):
    name: str
    notes: list[str] = Field(description="How the picture was changed, if that may be unexpected.")


class CaptionSchema(Schema):
    text: str
    tokens: int = Field(description="With special tokens, before truncation.")
    cut: int = Field(description="How many of these were cut off.")
    unknown: int = Field(description="How many stand for unknown words.")


class WordSchema(Schema):
    word: str
    share: Number = Field(description="Nats by which the target's log-probability falls without the word.")


class TurnSchema(Schema):
    caption: str
    rank: int = Field(description="Of the target; 1 = it is picked.")
    wins: bool
    chance: Number = Field(description="The target's probability among all pictures: softmax.")
    ahead: Number = Field(description="Cosine of the target minus that of the best other picture.")
    picked: str
    words: list[WordSchema]


class GameSchema(Schema):
    target: str
    turns: list[TurnSchema]


class MatchSchema(Schema):
    """Matrices have one row per picture and one column per caption (or class)."""

    model: str
    page: str | None
    pictures: list[ShownSchema]
    captions: list[CaptionSchema] = Field(default=[])
    scale: Number = Field(default=None, description="The factor of cosines before the softmax.")
    cosine: Matrix
    of_captions: Matrix | None = Field(default=None, description="Softmax over the captions of a picture.")
    of_pictures: Matrix | None = Field(default=None, description="Softmax over the pictures of a caption.")
    sigmoid: Matrix | None = Field(default=None, description="Of each pair alone, if the model was trained that way.")
    clip_score: Matrix | None = Field(default=None, description="2.5 · max(cosine, 0).")
    classes: list[str] = Field(default=[])
    prompts: list[str] = Field(default=[])
    of_classes: Matrix | None = Field(default=None, description="Softmax over the classes of a picture.")
    game: GameSchema | None = None
    notes: list[str]
