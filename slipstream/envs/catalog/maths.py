"""Entries of sets with a final answer: word problems, contests, countdown. Instructions say the form that graders look for."""

import re

from slipstream.envs.catalog.entry import Entry, Meaning, PromptForm, RowProblem, optional_text, text_of
from slipstream.envs.countdown import read_numbers
from slipstream.envs.datasets import Fields

HASH = PromptForm(instruction="Solve the problem step by step. End with a line '#### ' and the final number.")
BOXED = PromptForm(instruction="Solve the problem step by step and put the final answer within \\boxed{}.")
TAGGED = PromptForm(
    template="Using the numbers {numbers}, write an expression that equals {target}. Use + - * / and brackets, and each number "
    "exactly once.\n\n{instruction}",
    instruction="Think step by step. Give the expression between <answer> and </answer>, for example <answer>(1 + 2) / 3</answer>.",
)
_MARK = "####"
_CALCULATOR = re.compile(r"<<[^<>]*>>")
_PROBLEM = ("problem", "question", "Problem", "Question")


def read_answered(entry: Entry, fields: Fields) -> Meaning:
    """A question and its answer, as written."""
    answer = text_of(fields, entry.answer) if entry.needs_answer or any(name in fields for name in entry.answer) else ""
    return Meaning(question=text_of(fields, entry.question), answer=answer, judged={"gold": answer, "format": "plain"})


def read_gsm8k(entry: Entry, fields: Fields) -> Meaning:
    """The answer is a number, or a solution that ends in `#### number`."""
    told = text_of(fields, entry.answer)
    answer = told.rpartition(_MARK)[2].strip().replace(",", "")
    if not answer:
        raise RowProblem(f"nothing after {_MARK} in field {entry.answer[0]!r}")
    worked = _CALCULATOR.sub("", told if _MARK in told else optional_text(fields, ("solution",)))
    return Meaning(question=text_of(fields, entry.question), answer=answer, worked=worked, judged={"gold": answer, "format": "hash"})


def read_math(entry: Entry, fields: Fields) -> Meaning:
    """The answer stands by itself, or in the last box of the solution."""
    solution = optional_text(fields, ("solution", "r1_solution_1"))
    answer = text_of(fields, entry.answer) if any(name in fields for name in entry.answer) else last_boxed(solution)
    if answer is None:
        raise RowProblem(f"no field {entry.answer[0]!r}, and no \\boxed{{}} in a solution")
    worked = solution if last_boxed(solution) is not None else ""
    return Meaning(question=text_of(fields, entry.question), answer=answer, worked=worked, judged={"gold": answer, "format": "boxed"})


def read_countdown(entry: Entry, fields: Fields) -> Meaning:
    """Numbers and a target, whole numbers from 0."""
    numbers, target = read_numbers(fields.get("numbers", fields.get("nums")), fields.get("target"))
    return countdown_meaning(numbers, target, optional_text(fields, ("solution",)))


def countdown_meaning(numbers: tuple[int, ...], target: int, solution: str) -> Meaning:
    """The meaning of one countdown problem; its question names numbers in order of size, so that equal problems are equal texts."""
    return Meaning(
        question=f"{' '.join(str(number) for number in sorted(numbers))} -> {target}",
        answer=solution,
        slots={"numbers": ", ".join(str(number) for number in numbers), "target": str(target)},
        judged={"numbers": list(numbers), "target": target},
        worked=f"<answer>{solution}</answer>" if solution else "",
    )


def last_boxed(text: str) -> str | None:
    """The inside of the last `\\boxed{}` whose braces match; None where there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed")
    for place in range(begin, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if not depth:
            return text[begin + 1 : place].strip() or None
    return None


CUSTOM = Entry(
    name="custom",
    about="rows of your own: a question and a final answer",
    source="your file",
    licence="yours",
    splits="two files",
    question=("question", "problem", "prompt"),
    answer=("answer", "final_answer"),
    read=read_answered,
    form=HASH,
    grader="final_number",
)
MATHS = (
    CUSTOM,
    Entry(
        name="gsm8k",
        about="grade school word problems with a final number",
        source="openai/grade-school-math; hub:openai/gsm8k:main:train",
        licence="MIT",
        splits="train 7,473, test 1,319",
        question=("question",),
        answer=("answer",),
        read=read_gsm8k,
        form=HASH,
        grader="final_number",
    ),
    Entry(
        name="math",
        about="competition problems of MATH, answers in LaTeX",
        source="hendrycks/math; hub:EleutherAI/hendrycks_math:algebra:train",
        licence="MIT (problems of the Art of Problem Solving)",
        splits="train on the 12,000 outside MATH-500; the old train/test split overlaps with it, and is compared at the start",
        question=_PROBLEM,
        answer=("answer", "final_answer"),
        read=read_math,
        form=BOXED,
        grader="math",
    ),
    Entry(
        name="math500",
        about="the 500 problems of MATH that PRM800K keeps for testing",
        source="openai/prm800k; hub:HuggingFaceH4/MATH-500:test",
        licence="MIT",
        splits="test only; train on task.name=math with this file as task.test",
        question=_PROBLEM,
        answer=("answer",),
        read=read_math,
        form=BOXED,
        grader="math",
    ),
    Entry(
        name="aime",
        about="AIME: whole numbers from 0 to 999",
        source="contests of the MAA; hub:HuggingFaceH4/aime_2024:train",
        licence="problems (c) Mathematical Association of America; collections mostly MIT or Apache-2.0",
        splits="train on years up to 2023, test on 2024 and later",
        question=_PROBLEM,
        answer=("answer", "Answer"),
        read=read_math,
        form=BOXED,
        grader="math",
    ),
    Entry(
        name="amc",
        about="AMC 12 as questions with a number for an answer",
        source="contests of the MAA; hub:AI-MO/aimo-validation-amc:train",
        licence="problems (c) Mathematical Association of America",
        splits="test only",
        question=_PROBLEM,
        answer=("answer",),
        read=read_math,
        form=BOXED,
        grader="math",
    ),
    Entry(
        name="deepmath",
        about="hard problems with verifiable answers, difficulty 3 to 10",
        source="hub:zwhe99/DeepMath-103K:train",
        licence="MIT",
        splits="train only",
        question=_PROBLEM,
        answer=("final_answer", "answer"),
        read=read_math,
        form=BOXED,
        grader="math",
    ),
    Entry(
        name="countdown",
        about="reach a target from numbers with + - * / and brackets, each number exactly once",
        source="generated (task.kind=countdown) or hub:Jiayi-Pan/Countdown-Tasks-3to4:train",
        licence="CC0",
        splits="any; problems of the test file are left out of training",
        question=(),
        read=read_countdown,
        form=TAGGED,
        grader="countdown",
    ),
)
