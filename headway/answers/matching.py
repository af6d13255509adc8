"""Answers of `match`: pictures and captions."""

from pydantic import Field

from headway.answers.schema import Number, Schema

Matrix = list[list[Number]]


class ShownSchema(Schema):
    name: str
    notes: list[str] = Field(description="What was done to it that its owner may not expect.")


class CaptionSchema(Schema):
    text: str
    tokens: int = Field(description="With all signs around it, before anything was cut.")
    cut: int = Field(description="How many of these are not read.")
    unknown: int = Field(description="How many stand for words that the model does not know.")


class WordSchema(Schema):
    word: str
    share: Number = Field(description="Nats that the target's chance loses when the word is left out.")


class TurnSchema(Schema):
    caption: str
    rank: int = Field(description="Of the target; 1 = it is picked.")
    wins: bool
    chance: Number = Field(description="Of the target among all pictures: softmax.")
    ahead: Number = Field(description="Cosine of the target less that of the best other picture.")
    picked: str
    words: list[WordSchema]


class GameSchema(Schema):
    target: str
    turns: list[TurnSchema]


class MatchSchema(Schema):
    """Matrices have a row for each picture and a column for each caption (or class)."""

    model: str
    page: str | None
    pictures: list[ShownSchema]
    captions: list[CaptionSchema] = Field(default=[])
    scale: Number = Field(default=None, description="What cosines are multiplied by before a softmax.")
    cosine: Matrix
    of_captions: Matrix | None = Field(default=None, description="Softmax over the captions of a picture.")
    of_pictures: Matrix | None = Field(default=None, description="Softmax over the pictures of a caption.")
    sigmoid: Matrix | None = Field(default=None, description="Of each pair alone, where the model was trained so.")
    clip_score: Matrix | None = Field(default=None, description="2.5 · max(cosine, 0).")
    classes: list[str] = Field(default=[])
    prompts: list[str] = Field(default=[])
    of_classes: Matrix | None = Field(default=None, description="Softmax over the classes of a picture.")
    game: GameSchema | None = None
    notes: list[str]
