"""A case from its first word to its last: what the learner asks, what it costs, and what is left in the end."""

import re

import answer
import evidence
import faults
import job as jobs
import story
import text

START, WRONG, WRONG_RANKS, NO_RANKS = 100, 20, 10, 10
HINTS = (10, 15, 20)  # the first, the second, the third
HELP = f"""
QUESTION                a question's name shows its evidence; a second time free
answer PITFALL [RANKS]  names it; RANKS: 1, or 0,2, or 0-2, or all
list [WORD ...]         the pitfalls by lesson; with words those that have them
hint                    where to look, then more; {HINTS[0]}, {HINTS[1]} and {HINTS[2]} points
questions               what you may ask, and what it costs
give up                 shows the answer; no score
quit                    ends the game; no score
A wrong pitfall costs {WRONG} points, wrong ranks {WRONG_RANKS}, no ranks {NO_RANKS}.
"""
OF_TWO = "There are two faults. Who names one of them has half of the points left at the end."


def printable(line):
    return "".join(each if each.isprintable() else "?" for each in line)


class Game:
    """Answers one line at a time with a dict: `event`, `lines`, `points`, and what else belongs to it."""

    def __init__(self, case, job, pages, scores, compare):
        self.case, self.job, self.pages, self.scores, self.compare = case, job, pages, scores, compare
        job.logs = [(rank, self.without_slugs(said)) for rank, said in job.logs]
        self.points, self.asked, self.over = START, {}, False
        self.faults = faults.of(case, job)
        self.questions = evidence.offered(job)
        self.path = evidence.decisive(case.pages, self.questions)

    def said(self, event, lines, **more):
        return {"event": event, "case": self.case.name, "points": self.points, "lines": lines, **more}

    def opening(self):
        lines = story.opening(self.job, len(self.faults))
        for question in self.questions[:len(evidence.FREE)]:
            self.asked[question.name] = question.says(self.job)
            lines += ["", f"{question.name}:", *self.asked[question.name]]
        return self.said("case", [*lines, "", *self.menu()], level=self.case.level, world_size=self.job.world_size,
                         questions={question.name: question.cost for question in self.questions})

    def menu(self):
        rows = [f"  {question.name:<13}{question.cost if question.name not in self.asked else 0:>3}  {question.about}"
                for question in self.questions if question.cost]
        return ["You may ask, for points:", *rows, "  hint, answer PITFALL [RANKS], list [WORD], give up, quit, help"]

    def turn(self, line):
        words = line.lower().split()
        try:
            return self.answered(words)
        except answer.NotUnderstood as error:
            return self.said("error", text.filled(str(error)))

    def answered(self, words):
        names = {question.name: question for question in self.questions}
        about = HELP.strip().splitlines() + (text.filled(OF_TWO) if len(self.faults) > 1 else [])
        plain = {"help": lambda: self.said("help", about), "?": lambda: self.answered(["help"]),
                 "questions": lambda: self.said("questions", self.menu()), "hint": self.hint,
                 "quit": self.stopped, "exit": self.stopped, "give up": self.given_up}
        line = " ".join(words)
        if line in plain:
            return plain[line]()
        if line in names:
            return self.evidence(names[line])
        if words[:1] == ["list"]:
            return self.pitfalls(words[1:])
        if words[:1] == ["answer"]:
            return self.judge(words[1:])
        if line in {question.name for question in evidence.PAID}:
            raise answer.NotUnderstood(f"This run has no evidence for `{line}`. `questions` shows what you may ask.")
        if words and words[0] in self.pages:
            raise answer.NotUnderstood(f"To name a pitfall, write: answer {words[0]} RANKS")
        raise answer.NotUnderstood(f'"{printable(line[:40])}" is no command and no question. `help` shows all.')

    def evidence(self, question):
        cost = 0 if question.name in self.asked else question.cost
        if question.name not in self.asked:
            says = self.compare if question is evidence.COMPARE else question.says
            try:
                self.asked[question.name] = says(self.job)
            except jobs.CouldNotRun as error:
                raise answer.NotUnderstood(str(error)) from error
        self.points = max(self.points - cost, 0)
        return self.said("evidence", self.asked[question.name], question=question.name, cost=cost)

    def left(self):
        return [fault for fault in self.faults if not fault.named]

    def hint(self):
        """First the questions that decide; then what the page says, which names nothing."""
        fault = self.left()[0]
        where = " and ".join(f"`{question.name}`" for question in self.path)
        page = [self.without_names(each) for each in fault.page.hints()[:2]]
        every = [f"Ask {where}." if where else "What you see for free is enough.", *page]
        if fault.hints == len(every):
            raise answer.NotUnderstood("There is no further hint.")
        cost = HINTS[fault.hints]
        fault.hints += 1
        self.points = max(self.points - cost, 0)
        return self.said("hint", text.filled(every[fault.hints - 1]), number=fault.hints, cost=cost)

    def without_slugs(self, said):
        """PyTorch's errors name some of the pitfalls."""
        for page in self.case.pages:
            said = re.sub(r"[-_\s]+".join(page.slug.split("-")), "...", said, flags=re.IGNORECASE)
        return said

    def without_names(self, said):
        """A hint of a page may name the pitfall, its lesson, or another variant of it."""
        for page in self.case.pages:
            said = re.sub(rf"`?(?:{re.escape(page.slug)}|{page.lesson}|{page.lesson[3:]})\b`?", "...", said)
        return said

    def pitfalls(self, words):
        lines, lesson = [], ""
        for page in answer.listed(self.pages, words):
            lines += [page.lesson] if page.lesson != lesson else []
            lesson = page.lesson
            lines += text.filled(f"{page.slug}: {page.title}", "      ", "  ")
        return self.said("list", lines)

    def judge(self, words):
        if not words:
            raise answer.NotUnderstood("Which pitfall? answer PITFALL [RANKS], as `list` names it.")
        guess = answer.pitfall_of(words[0], self.pages)
        ranks = answer.ranks_of(words[1:], self.job.world_size, self.job.word)
        meant = [fault for fault in self.faults if fault.page is guess]
        if not meant:
            self.points = max(self.points - WRONG, 0)
            about = f"{answer.about_wrong(guess, [fault.page for fault in self.left()])} {WRONG} points less."
            return self.said("answer", text.filled(about), right=False)
        [fault] = meant
        if fault.named:
            raise answer.NotUnderstood("You have named that one. Name the other.")
        if not fault.accepts(ranks):
            self.points = max(self.points - WRONG_RANKS, 0)
            about = f"The pitfall is right. The {self.job.word}s are not. {WRONG_RANKS} points less."
            return self.said("answer", text.filled(about), right=False)
        fault.named = True
        unnamed = ranks is None and self.job.world_size > 1
        self.points = max(self.points - (NO_RANKS if unnamed else 0), 0)
        about = f" You named no {self.job.word}s: {NO_RANKS} points less." if unnamed else ""
        if self.left():
            return self.said("answer", text.filled(f"Right: that is one of two. Name the other.{about}"), right=True)
        best = self.scores.add(self.case.name, self.points)
        begin = f"Right: {self.points} of {START} points" + (", your best in this case." if best else ".")
        return self.end("solved", begin + about)

    def half(self):
        """Of two faults one is named: its half of the points is kept."""
        if len(self.left()) == len(self.faults):
            return ""
        self.points //= len(self.faults)
        self.scores.add(self.case.name, self.points)
        return f" You named one of two faults: {self.points} points."

    def given_up(self):
        half = self.half()
        return self.end("given up", f"You gave up.{half}")

    def stopped(self):
        half, self.over = self.half(), True
        return self.said("over", text.filled(f"Not solved. The case waits for you.{half}"), how="quit")

    def end(self, how, begin):
        self.over = True
        lines = story.closing(begin, self.faults, self.job, self.path, self.asked, START)
        pitfalls = [{"pitfall": fault.page.slug, "title": fault.page.title, "ranks": sorted(fault.ranks),
                     "named": fault.named} for fault in self.faults]
        return self.said("over", lines, how=how, pitfalls=pitfalls, path=[question.name for question in self.path])
