"""Arithmetic in words: labels follow from a rule, and the running text contains none of the labelled expressions."""

from collections import Counter

from headway.data.embedded.arithmetic import expressions, holds_expression, labelled_splits, text_splits, word


def test_all_expressions_have_the_label_of_their_value():
    splits = labelled_splits()
    rows = [*splits["train"], *splits["test"]]
    assert len(splits["train"]) == 640 and len(splits["test"]) == 160 and len({text for text, _ in rows}) == 800
    numbers = {word(n): n for n in range(20)}
    for text, label in rows:
        first, operation, second = text.split()
        value = numbers[first] + numbers[second] * (1 if operation == "plus" else -1)
        assert label == ("zero" if value == 0 else "negative" if value < 0 else "positive")
    assert Counter(label for _, label in rows) == {"positive": 589, "negative": 190, "zero": 21}


def test_no_expression_of_train_or_test_is_in_the_running_text():
    """Neither whole nor as a part of another expression, independently of the tokenizer."""
    texts = text_splits()
    every = f" {' '.join(texts['train'].split())} {' '.join(texts['valid'].split())} "
    assert not [text for text, _ in expressions() if f" {text} " in every]
    small = {word(n) for n in range(20)}
    lines = [line.split() for text in texts.values() for line in text.splitlines()]
    compared = [line for line in lines if len(line) == 5 and line[1] == "is" and {line[0], line[-1]} <= small]
    assert compared == []


def test_every_sentence_is_true_and_unique():
    texts = text_splits()
    lines = [line for text in texts.values() for line in text.splitlines()]
    assert len(lines) == len(set(lines)) > 10_000
    assert 0.03 < len(texts["valid"].splitlines()) / len(lines) < 0.07
    numbers = {word(n): n for n in range(-400, 401)}
    kinds = Counter()
    for line in lines:
        left, _, right = line.partition(" is ")
        if not right:
            kinds["counting"] += 1
            continue
        operation = "plus" if " plus " in left else "minus" if " minus " in left else None
        if operation is None:
            more, _, other = right.partition(" than ")
            assert (numbers[left] < numbers[other]) == (more == "less")
            kinds["order"] += 1
            continue
        first, _, second = left.partition(f" {operation} ")
        value = numbers[first] + numbers[second] * (1 if operation == "plus" else -1)
        sides = {"below zero": value < 0, "above zero": value > 0}
        assert sides[right] if right in sides else numbers[right] == value
        kinds["side" if right in sides else "result"] += 1
    assert all(kinds[kind] > 300 for kind in ("counting", "order", "side", "result"))


def test_sentences_that_reveal_an_expression_are_recognised():
    for sentence in ("two minus ten is minus eight", "forty two minus ten is thirty two", "four is less than ten"):
        assert holds_expression(sentence)
    for sentence in (
        "forty two minus fifty is minus eight",
        "ten minus twenty is minus ten",
        "four is less than forty",
    ):
        assert not holds_expression(sentence)
