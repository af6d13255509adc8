"""`numbers-en-fr`: numbers below a million in English and French words, by the rules of both languages.

All numbers below a thousand are included, and one in 128 of the others, chosen by a hash; a tenth each is valid and
test. French counts by twenties (quatre-vingt-dix-neuf is 99), joins one and eleven with "et" below 80, and writes the s
of "cents" and "quatre-vingts" only if nothing follows, so word-by-word translation fails.
"""

from headway.data.embedded.pig_latin import split_of

BELOW = 1_000_000
ALL_BELOW = 1000
ONE_IN = 128

_EN, _EN_TENS, _FR = (
    words.split()
    for words in (
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen",
        "twenty thirty forty fifty sixty seventy eighty ninety",
        "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept "
        "dix-huit dix-neuf",
    )
)
_FR_TENS = {20: "vingt", 30: "trente", 40: "quarante", 50: "cinquante", 60: "soixante"}


def english(n: int) -> str:
    """one hundred and twenty-three thousand four hundred and fifty-six"""
    if n < 20:
        return _EN[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return _EN_TENS[tens - 2] + (f"-{_EN[ones]}" if ones else "")
    if n < 1000:
        hundreds, rest = divmod(n, 100)
        return f"{_EN[hundreds]} hundred" + (f" and {english(rest)}" if rest else "")
    thousands, rest = divmod(n, 1000)
    joined = f"{' and' if rest < 100 else ''} {english(rest)}" if rest else ""
    return f"{english(thousands)} thousand{joined}"


def french(n: int, last: bool = True) -> str:
    """cent vingt-trois mille quatre cent cinquante-six. `last`: nothing follows, and plurals have their s."""
    if n < 20:
        return _FR[n]
    if n < 80:
        tens = n // 10 * 10 if n < 60 else 60
        ones = n - tens
        if not ones:
            return _FR_TENS[tens]
        return f"{_FR_TENS[tens]} et {_FR[ones]}" if ones in (1, 11) else f"{_FR_TENS[tens]}-{_FR[ones]}"
    if n < 100:
        return f"quatre-vingt-{_FR[n - 80]}" if n > 80 else "quatre-vingts" if last else "quatre-vingt"
    if n < 1000:
        hundreds, rest = divmod(n, 100)
        cent = "cent" if hundreds == 1 else f"{_FR[hundreds]} cent"
        return f"{cent} {french(rest, last)}" if rest else cent + ("s" if hundreds > 1 and last else "")
    thousands, rest = divmod(n, 1000)
    mille = "mille" if thousands == 1 else f"{french(thousands, last=False)} mille"
    return f"{mille} {french(rest)}" if rest else mille


def splits() -> dict[str, list[tuple[str, str]]]:
    """(English, French) pairs of train, valid and test."""
    found: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    for n in range(BELOW):
        if n < ALL_BELOW or _drawn(n):
            found[split_of(f"number {n}")].append((english(n), french(n)))
    return found


def _drawn(n: int) -> bool:
    """Whether a number is selected, by Knuth's multiplicative hash: it is computed a million times, and better hashes
    would take seconds."""
    return (n * 2654435761 % 2**32) * ONE_IN >> 32 == 0
