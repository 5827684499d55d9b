"""Leaks and duplicates are found whatever the spelling, and only they: other numbers and other signs make another problem."""

import pytest

from slipstream.envs.curation.duplicates import find_duplicates
from slipstream.envs.curation.leaks import find_leaks
from slipstream.envs.curation.words import same_text, words

LONG = "A farmer has twelve hens and each of them lays two eggs a day so how many eggs does he sell in a week of seven days"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What is  3 + 4?", "what is 3+4", True),
        ("He said: “go”!", "he said go", True),
        ("\uff11 dog", "1 DOG", True),
        ("What is 3 + 4?", "What is 3 - 4?", False),
        ("What is 5!?", "What is 5?", False),
        ("(1 + 2) * 3", "1 + (2 * 3)", False),
        ("1.5 kg", "15 kg", False),
        ("x^2", "x_2", False),
    ],
)
def test_equal_texts_are_those_that_ask_the_same(one: str, other: str, same: bool) -> None:
    assert (same_text(one) == same_text(other)) is same


def test_words_leave_signs_out() -> None:
    assert words("Half of $1,000.50 (about x^2)?") == ["half", "of", "1,000.50", "about", "x", "2"]


def test_thirteen_words_in_a_row_are_a_leak_and_twelve_are_not() -> None:
    told = LONG.split()
    thirteen, twelve = f"Once {' '.join(told[3:16])} and more", f"Once {' '.join(told[3:15])} and more"
    found = find_leaks([twelve, thirteen, "another question"], ["unrelated", LONG])
    assert {place: (leak.against, leak.words) for place, leak in found.items()} == {1: (1, " ".join(told[3:16]).lower())}
    assert set(find_leaks([twelve], [LONG], 12)) == {0}
    assert find_leaks([thirteen], [LONG], 0) == {}
    assert find_leaks([LONG.upper() + "!"], [LONG], 0)[0].words is None


def test_many_variants_of_one_unseen_question_are_all_leaks() -> None:
    variants = [f"Story {number}: {LONG}, in the year {number}?" for number in range(30)]
    assert set(find_leaks(variants, ["something else", LONG])) == set(range(30))


def test_words_that_many_unseen_questions_share_are_boilerplate() -> None:
    tail = "where m and n are relatively prime positive integers as above please find the sum of m and n"
    unseen = [f"{start} is m/n {tail}" for start in ("The area", "The length", "The volume")]
    assert find_leaks([f"The chance is m/n {tail}"], unseen) == {}
    assert set(find_leaks([f"The chance is m/n {tail}"], unseen[:2])) == {0}
    assert set(find_leaks([f"The chance is m/n {tail}"], [unseen[0]] * 5)) == {0}  # one question five times
    assert find_leaks([unseen[2].upper()], unseen)[0].words is None


def test_duplicates_point_to_the_text_that_is_kept() -> None:
    texts = [
        LONG,
        "short",
        LONG.upper() + "?",
        LONG.replace("farmer", "peasant"),
        "Short.",
        LONG.replace("twelve", "nine").replace("two", "six"),
    ]
    found = find_duplicates(texts)
    assert {place: copy.of for place, copy in found.items()} == {2: 0, 3: 0, 4: 1}
    assert found[2].similarity == found[4].similarity == 1.0
    assert 0.8 <= found[3].similarity < 1.0
    assert set(find_duplicates(texts, 1.0)) == {2, 4}
    assert find_duplicates(["What is the value of 3 + 4 today?", "What is the value of 3 - 4 today?"]) == {}


def test_no_near_duplicate_is_missed_or_made_up() -> None:
    """Against the plain comparison of all pairs, on texts made of few words so that similarities are of all sizes."""
    texts = [" ".join(f"w{(start + place * step) % 29}" for place in range(24)) for start in range(25) for step in (1, 1, 2)]
    texts = [f"{text} end{number % 7}" for number, text in enumerate(texts)]
    shingles = [{tuple(text.split()[at : at + 5]) for at in range(len(text.split()) - 4)} for text in texts]
    kept: list[int] = []
    wanted: set[int] = set()
    for place, mine in enumerate(shingles):
        if any(len(mine & shingles[other]) / len(mine | shingles[other]) >= 0.8 for other in kept):
            wanted.add(place)
        else:
            kept.append(place)
    assert set(find_duplicates(texts)) == wanted
    assert 10 < len(wanted) < 60
