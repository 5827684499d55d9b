r"""Where in a response the answer stands: the last box, the number after the last `####`, or the last answer that is stated. Pure.

Drafts in a thinking part, text after an end-of-turn mark, HTML comments and headings do not count. A box left open is no answer:
the generation was cut. All steps take linear time. Called by `math_grade`.
"""

import re
from dataclasses import dataclass

from slipstream.envs.verifiers.math_answer import Words
from slipstream.envs.verifiers.math_compare import same_text
from slipstream.envs.verifiers.math_reading import read_answer
from slipstream.envs.verifiers.math_text import tidy, unstyled
from slipstream.envs.verifiers.math_units import is_unit

MAX_BARE = 300  # characters of a response, or last line, that may be an answer without saying so
MAX_JOINED = 10  # boxes of one answer
MAX_BETWEEN = 60  # characters between boxes that are one answer
MAX_STATEMENTS = 8  # from the end, that are looked at

_END_OF_TURN = re.compile(
    r"</s>|<\|(?:im_end|endoftext|eot_id|end_of_text|end|im_start)\|>|<\uff5cend\u2581of\u2581sentence\uff5c>|<end_of_turn>|<eos>"
)
_THINK_OPEN = re.compile(r"<(?:think|thinking|thought|reasoning)>|\[THINK\]|◁think▷")
_THINK_CLOSE = re.compile(r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]|◁/think▷")
_BOX = re.compile(r"\\(?:[bB]oxed|fbox|framebox)(?![A-Za-z])\s*")
_ONE_SIGN = re.compile(r"-?\d+(?:\.\d+)?|[A-Za-z]|\\[A-Za-z]+")
_CONNECTIVE = re.compile(
    r"(?:[\s$,;&]|\\(?:quad|qquad|[,; ()\[\]])|\\(?:text|mbox|textrm|mathrm)\s*\{\s*,?\s*(?:and|or)?\s*\}|\band\b|\bor\b)*"
)
_HASH = re.compile(r"(?<!#)####(?!#)")
_HEADING = re.compile(
    r"(?:\d+[.)]\s+[A-Za-z]|[A-Za-z*][^\n]*:\s*$|(?:step|part|case|solution|conclusion|explanation|verification)\b)", re.IGNORECASE
)
_STATEMENT = re.compile(r"\b(?:answers?|correct (?:option|choice)|option|choice)\b", re.IGNORECASE)
_VERB = re.compile(
    r"[\s*_]*(?:\([^()\n]{1,40}\)\s*)?(?:to (?:the|this|your) (?:question|problem) )?[\s*_]*"
    r"(?:(?:is|are|was|would be|should be|must be|=|:)[\s*_:]*|(?=[-$\d\\])|(?=\(?[A-J]\b))"
)
_LAST_VERB = re.compile(r"^.*\b(?:is|are|equals|be)\b\s*:?", re.DOTALL)
_CONCLUSION = re.compile(
    r"\b(?:so|thus|hence|therefore|total|altogether|finally|results?|value|we (?:conclude|get|have|find|obtain))\b", re.IGNORECASE
)
_REASON = re.compile(
    r",?\s+(?:because|since|as|which|where|so|when|after|for|given)\b|[,;]\s+(?!and\b|or\b)[A-Za-z]{2,}|\s+\([A-Za-z]{3,}", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?:[A-Za-z']{2,}|I)[,\s]+\S")
_SENTENCE_END = re.compile(r"(?<![A-J])[.!?](?=\s|$|\*)|。")
_DELIMITED = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_TRAILING_UNIT = re.compile(r"(?<=\d)\s+([A-Za-z]+)(?=(?:\^\{?\d\}?|[²³])?$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The text of an answer, and how it was given."""

    text: str
    form: str  # boxed, hash or plain


def extract(response: str) -> Extracted | None:
    """The answer of a response; None where none is given."""
    text = spoken(response)
    start = text.rfind("<answer>")
    if start >= 0:
        text = text[start + len("<answer>") :].partition("</answer>")[0]
    boxes = _boxes(text)
    mark = _last(_HASH, text)
    if boxes and (mark is None or boxes[-1].start > mark.start()):
        return _from_boxes(text, boxes)
    if mark is not None and (line := _hash_line(text[mark.end() :])):
        return Extracted(text=line, form="hash")
    if boxes:
        return _from_boxes(text, boxes)
    stated = _stated(text) or (_bare(text) if start < 0 else text.strip())
    return Extracted(text=_with_unit(stated), form="plain") if stated else None


def spoken(response: str) -> str:
    """What the response says to the reader: no thinking, no comments, nothing after its end."""
    text = response.replace("\x00", "")
    end = _END_OF_TURN.search(text)
    text = text[: end.start()] if end else text
    closed = _last(_THINK_CLOSE, text)
    if closed:
        text = text[closed.end() :] if text[closed.end() :].strip() else text[: closed.start()]
    opened = _THINK_OPEN.search(text)
    return _without_comments(text[: opened.start()] if opened else text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    start: int
    end: int
    content: str | None  # None where it is left open


def _boxes(text: str) -> list[_Box]:
    """The outermost boxes in order."""
    matches = list(_BOX.finditer(text))
    if not matches:
        return []
    closing, found, after = _closing_braces(text), list[_Box](), 0
    for match in matches:
        if match.start() < after:
            continue
        box = _box(text, match, closing)
        if box:
            found.append(box)
            after = box.end
    return found


def _box(text: str, match: re.Match[str], closing: dict[int, int]) -> _Box | None:
    place = match.end()
    if text.startswith("{", place):
        if place in closing:
            return _Box(start=match.start(), end=closing[place] + 1, content=text[place + 1 : closing[place]])
        line = text[place + 1 :].partition("\n")[0]
        last = line.rfind("}")
        whole = last >= 0 and line[last + 1 :].strip() != ""  # a brace is missing inside, but the text went on after the box
        return _Box(start=match.start(), end=len(text), content=line[:last] if whole else None)
    if text.startswith("(", place) and (end := text.find(")", place)) >= 0:
        return _Box(start=match.start(), end=end + 1, content=text[place + 1 : end])
    if (sign := _ONE_SIGN.match(text, place)) and not _BOX.match(text, place):
        return _Box(start=match.start(), end=sign.end(), content=sign[0])
    return None


def _closing_braces(text: str) -> dict[int, int]:
    """The place of the closing brace of each opening one that is closed."""
    found, opened, skip = dict[int, int](), list[int](), False
    for place, sign in enumerate(text):
        if skip:
            skip = False
        elif sign == "\\":
            skip = True
        elif sign == "{":
            opened.append(place)
        elif sign == "}" and opened:
            found[opened.pop()] = place
    return found


def _from_boxes(text: str, boxes: list[_Box]) -> Extracted | None:
    """The last box, with those before it that nothing but `and`, `or` and commas part from it."""
    contents, joints = [boxes[-1].content], list[str]()
    for before, after in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        between = text[before.end : after.start]
        if len(between) > MAX_BETWEEN or len(contents) == MAX_JOINED or not _CONNECTIVE.fullmatch(between):
            break
        contents.insert(0, before.content)
        joints.insert(0, " or " if re.search(r"\bor\b", between) else ", ")
    if contents[-1] is None:
        return None
    shown = [_unboxed(content or "") for content in contents]
    if all(same_text(shown[-1], content) for content in shown[:-1]):
        shown, joints = shown[-1:], []  # one answer, written in several ways
    joined = "".join(part for pair in zip(shown, [*joints, ""], strict=True) for part in pair if tidy(pair[0]))
    joined = joined.strip().removesuffix(",").removesuffix(" or")
    return Extracted(text=joined, form="boxed") if folded_away(joined) else None


def folded_away(text: str) -> str:
    """What is left of an answer without empty groups and styles: nothing where it says nothing."""
    shown = re.sub(r"\\(?:text|mathrm|textbf|mbox)\s*\{\s*\}", "", tidy(text))
    return shown.replace("{}", "").strip(" {}") if set(shown) <= set(" {}") else shown


def _unboxed(content: str) -> str:
    """The content of a box, without boxes inside it."""
    while (match := _BOX.search(content)) is not None:
        box = _box(content, match, _closing_braces(content))
        if box is None or box.content is None:
            return ""
        content = content[: box.start] + box.content + content[box.end :]
    return content


def _hash_line(after: str) -> str | None:
    """The answer behind `####`, on that line or the next; None where the line is a heading."""
    line = next((line.strip() for line in after.split("\n") if line.strip()), "")
    if not line or _HEADING.match(line):
        return None
    reason = re.search(r"[.,;]\s+[A-Za-z]{2,}|\.\s*$", line)
    return _with_unit(unstyled(line[: reason.start()] if reason else line))


def _stated(text: str) -> str | None:
    """What the last statement of an answer says: `the answer is 5`, `Answer: **5**`, `the correct option is (C) because ...`."""
    marks = [match.end() for match in _STATEMENT.finditer(text)][-MAX_STATEMENTS:]
    for mark in reversed(marks):
        verb = _VERB.match(text, mark)
        if verb and (clause := _clause(text[verb.end() :])):
            return clause
    return None


def _clause(text: str) -> str | None:
    """The value that a statement ends in."""
    text = text.lstrip(" \t\r\n*_:")
    if (maths := _maths_list(text)) is not None:
        return maths
    line = text.partition("\n")[0]
    end = _SENTENCE_END.search(line)
    line = line[: end.start()] if end else line
    if (verb := _LAST_VERB.match(line)) and (rest := line[verb.end() :].strip()):
        return _clause(rest)
    reason = _REASON.search(line)
    return unstyled((line[: reason.start()] if reason else line).strip(" *_`")) or None


def _maths_list(text: str) -> str | None:
    """The formulas that the text begins with: `$1$ and $2$`."""
    found, place = "", 0
    while match := _DELIMITED.match(text, place):
        found += next(group for group in match.groups() if group is not None)
        place = match.end()
        joint = re.compile(r"\s*(?:,|and\b|or\b|,\s*and\b)\s*").match(text, place)
        if not joint or not _DELIMITED.match(text, joint.end()):
            break
        found += " or " if "or" in joint[0] else ", "
        place = joint.end()
    return found.strip() or None


def _bare(text: str) -> str | None:
    """A response that is nothing but its answer, or ends in a conclusion such as `So the total is 12.`"""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines or len(lines[-1]) > MAX_BARE:
        return None
    line = unstyled(lines[-1])
    if len(lines) == 1 and not _SENTENCE.match(line) and not isinstance(read_answer(line), Words):
        return line
    if not _CONCLUSION.search(line):
        return None
    body = line.rstrip(" .!")
    value = body[verb.end() :].strip() if (verb := _LAST_VERB.match(body)) else ""
    formulas = [next(group for group in match.groups() if group is not None) for match in _DELIMITED.finditer(body)]
    if formulas and body.endswith(("$", r"\)", r"\]")):
        return formulas[-1]
    value = value or (body.rpartition("=")[2].strip() if "=" in body else "")
    return value if re.match(r"[-+$\\(\[.\d*]", value) else None


def _with_unit(text: str) -> str:
    """A letter that is a unit behind a number in plain text, as in `5 m`."""
    match = _TRAILING_UNIT.search(text)
    if not match or len(match[1]) > 2 or not is_unit(match[1]):  # longer ones are words anyway
        return text
    return f"{text[: match.start()]} \\text{{ {match[1]}}}{text[match.end() :]}"


def _without_comments(text: str) -> str:
    parts = text.split("<!--")
    return parts[0] + "".join(part.partition("-->")[2] for part in parts[1:])


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for last in pattern.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    return last
