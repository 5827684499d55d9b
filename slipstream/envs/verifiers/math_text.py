r"""The first step of reading an answer: one way to write each sign. Text in, text out; knows nothing of structure.

Unicode becomes LaTeX, commands that only style or space are taken away, synonyms become one name: `2√3` and `2\,\sqrt 3` both
become forms that `math_tokens` reads alike. Called by `math_tokens` only.
"""
# ruff: noqa: RUF001 - signs that look alike are what this file is about

import re

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙ", "0123456789+-()n", strict=True))
_VULGAR = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5), "⅘": (4, 5)}
_VULGAR |= {"⅙": (1, 6), "⅚": (5, 6), "⅐": (1, 7), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8), "⅑": (1, 9), "⅒": (1, 10)}
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_GREEK = dict(zip("αβγδεζηθκλμνξπρστφχψωΓΔΘΛΞΠΣΦΨΩ", _GREEK_NAMES.split(), strict=True))
_SIGNS = {
    **dict.fromkeys("−–—﹣‐‑‒", "-"),
    **dict.fromkeys("×✕✖", r"\times "),
    **dict.fromkeys("·⋅∙•", r"\cdot "),
    **dict.fromkeys("°º˚", r"^{\circ}"),
    **dict.fromkeys("∞", r"\infty "),
    **dict.fromkeys("≤⩽≦", r"\le "),
    **dict.fromkeys("≥⩾≧", r"\ge "),
    **dict.fromkeys("⁄∕", "/"),
    **dict.fromkeys("’′ʹ", "'"),
    **dict.fromkeys("“”″", "''"),
    **dict.fromkeys("\u00a0\u2009\u202f\u2003\u2002\u3000\t\r\n", " "),
    **dict.fromkeys("\x00\u200b\u200c\u200d\ufeff\u2061\u2062", ""),
    **dict.fromkeys("✓✔✅", ""),
    "÷": r"\div ", "±": r"\pm ", "∓": r"\mp ", "≠": r"\ne ", "≈": r"\approx ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ",
    "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "∖": r"\setminus ", "π": r"\pi ", "∠": r"\angle ", "，": ",", "、": ",", "。": ".",
    "⟨": r"\langle ", "⟩": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∣": "|", "∶": ":",
    "…": r"\ldots ", "⋯": r"\ldots ", "′′": "''", "€": r"\euro ", "£": r"\pound ", "¥": r"\yen ", "∛": r"\cbrt ",
}  # fmt: skip
_TABLE = str.maketrans(
    {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    | {sign: f"\\{name} " for sign, name in _GREEK.items()}
    | {sign: f"\\frac{{{above}}}{{{below}}}" for sign, (above, below) in _VULGAR.items()}
    | {sign: shown for sign, shown in _SIGNS.items() if len(sign) == 1}
)
NEW_ROW = "\ue000"  # stands for the two backslashes between the rows of a matrix
_RAISED = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_LOWERED = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_ROOT = re.compile(r"√\s*(?=(\d+(?:\.\d+)?|[A-Za-z])?)")

_GROUPING = re.compile(r",\s*\\!\s*|\{,\s*\\!\}|(?<=\d)\s*\{\s*,\s*\}\s*(?=\d)")  # 7,\!425 and 7{,}425: a comma that groups digits
_INVISIBLE = re.compile(r"\\[vh]?phantom\s*\{[^{}]*\}|\\(?:color|label|tag\*?|[hv]space\*?)\s*\{[^{}]*\}|\\textcolor\s*\{[^{}]*\}")
_STYLE = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|checkmark|square|blacksquare|hfill"
    r"|quad|qquad|thinspace|medspace|thickspace|enspace|nonumber|rm|bf|it|boldsymbol|mathstrut|strut|hline)(?![A-Za-z])\.?"
)
_SPACE = re.compile(r"\\[,;:> ]|~|\\!|\\(?=\s|$)")
_DELIMITER = re.compile(r"(?<!\\)\$|\\\(|\\\)|\\\[|(?<!\\)\\\](?!\s*\[)")
_SYNONYMS = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "frac"),
    **dict.fromkeys(("dbinom", "tbinom"), "binom"),
    **dict.fromkeys(("leq", "leqslant", "leqq"), "le"),
    **dict.fromkeys(("geq", "geqslant", "geqq"), "ge"),
    **dict.fromkeys(("neq",), "ne"),
    **dict.fromkeys(("varnothing",), "emptyset"),
    **dict.fromkeys(("dots", "cdots", "dotsc", "dotsb"), "ldots"),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(("lbrace",), "{"),
    **dict.fromkeys(("rbrace",), "}"),
    **dict.fromkeys(("backslash",), "setminus"),
    **dict.fromkeys(("ast",), "cdot"),
    **dict.fromkeys(("degree", "textdegree"), "circ"),
    **dict.fromkeys(("R", "reals", "Reals"), "mathbb{R}"),
    "varphi": "phi", "varepsilon": "epsilon", "vartheta": "theta", "lt": "<", "gt": ">", "land": "and", "lor": "or",
    "wedge": "and", "Longleftrightarrow": "iff", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "simeq": "approx",
    "bigcup": "cup", "bigcap": "cap", "operatorname*": "operatorname",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+\*?)")
_ASCII_SIGNS = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ", "=<": r"\le ", "=>": r"\ge ", "+/-": r"\pm ", "+-": "+ -"}
_ASCII = re.compile("|".join(re.escape(sign) for sign in _ASCII_SIGNS))
_EMPHASIS = ("**", "__", "`", "*", "_")


def names(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


def tidy(text: str) -> str:
    """The text with one way to write each sign."""
    text = unstyled(text)
    text = _RAISED.sub(lambda run: "^{" + "".join(_SUPERSCRIPTS[sign] for sign in run[0]) + "}", text)
    text = _LOWERED.sub(lambda run: "_{" + "".join(_SUBSCRIPTS[sign] for sign in run[0]) + "}", text)
    text = _ROOT.sub(r"\\sqrt ", text)
    text = text.translate(_TABLE)
    text = text.replace("\\\\", NEW_ROW if "begin" in text else "\\")  # outside a matrix two backslashes are one too many
    text = _GROUPING.sub("{,}", text)
    text = _INVISIBLE.sub("", text)
    text = _DELIMITER.sub(" ", text)
    text = _STYLE.sub(" ", text)
    text = _SPACE.sub(" ", text)
    text = _COMMAND.sub(_one_name, text)
    text = _ASCII.sub(lambda sign: _ASCII_SIGNS[sign[0]], text)
    return text.replace("**", "^").strip()


def unstyled(text: str) -> str:
    """Without the markdown around the whole of it: `**5**` is 5."""
    text = text.strip()
    while mark := next((mark for mark in _EMPHASIS if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark)), ""):
        text = text[len(mark) : -len(mark)].strip()
    return text


def _one_name(command: re.Match[str]) -> str:
    name = _SYNONYMS.get(command[1], command[1])
    if name in ("<", ">", "|", "[", "]", "(", ")", "and", "or"):
        return f" {name} "
    return f"\\{name}"
