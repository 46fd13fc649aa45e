"""A case from its first word to its last: what the learner asks, what it costs, and what is left in the end."""

import re

import answer
import evidence
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


def printable(line):
    return "".join(each if each.isprintable() else "?" for each in line)


class Game:
    """Answers one line at a time with a dict: `event`, `lines`, `points`, and what else belongs to it."""

    def __init__(self, case, job, pages, scores, compare):
        self.case, self.job, self.pages, self.scores, self.compare = case, job, pages, scores, compare
        self.points, self.asked, self.hints, self.over = START, {}, 0, False
        self.questions = evidence.offered(job)
        self.path = evidence.path(case.page, self.questions) or []
        named = [found["ranks"] for found in job.variant["findings"] if found["pitfall"] == case.page.slug]
        self.ranks = set(case.page.ranks(job.world_size) or (named[0] if named else range(job.world_size)))

    def said(self, event, lines, **more):
        return {"event": event, "case": self.case.name, "points": self.points, "lines": lines, **more}

    def opening(self):
        lines = story.opening(self.job)
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
        plain = {"help": lambda: self.said("help", HELP.strip().splitlines()), "?": lambda: self.answered(["help"]),
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
        if question is evidence.COMPARE and question.name not in self.asked:
            try:
                self.asked[question.name] = self.compare(self.job)
            except jobs.CouldNotRun as error:
                raise answer.NotUnderstood(str(error)) from error
        elif question.name not in self.asked:
            self.asked[question.name] = question.says(self.job)
        self.points = max(self.points - cost, 0)
        return self.said("evidence", self.asked[question.name], question=question.name, cost=cost)

    def hint(self):
        """First the questions that decide; then what the page says, which names nothing."""
        where = " and ".join(f"`{question.name}`" for question in self.path)
        page = [self.without_names(each) for each in self.case.page.hints()[:2]]
        every = [f"Ask {where}." if where else "What you see for free is enough.", *page]
        if self.hints == len(every):
            raise answer.NotUnderstood("There is no further hint.")
        cost = HINTS[self.hints]
        self.hints += 1
        self.points = max(self.points - cost, 0)
        return self.said("hint", text.filled(every[self.hints - 1]), number=self.hints, cost=cost)

    def without_names(self, said):
        page = self.case.page
        return re.sub(rf"`?(?:{re.escape(page.slug)}|{page.lesson}|{page.lesson[3:]})\b`?", "...", said)

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
        if guess is not self.case.page:
            self.points = max(self.points - WRONG, 0)
            about = f"{answer.about_wrong(guess, self.case.page)} {WRONG} points less."
            return self.said("answer", text.filled(about), right=False)
        if ranks not in (None, self.ranks):
            self.points = max(self.points - WRONG_RANKS, 0)
            about = f"The pitfall is right. The {self.job.word}s are not. {WRONG_RANKS} points less."
            return self.said("answer", text.filled(about), right=False)
        unnamed = ranks is None and self.job.world_size > 1
        self.points = max(self.points - (NO_RANKS if unnamed else 0), 0)
        best = self.scores.add(self.case.name, self.points)
        begin = f"Right: {self.points} of {START} points" + (", your best in this case." if best else ".")
        begin += f" You named no {self.job.word}s: {NO_RANKS} points less." if unnamed else ""
        return self.end("solved", begin)

    def given_up(self):
        return self.end("given up", "You gave up.")

    def stopped(self):
        self.over = True
        return self.said("over", ["Not solved. The case waits for you."], how="quit")

    def end(self, how, begin):
        self.over, page, path = True, self.case.page, [question.name for question in self.path]
        lines = story.closing(begin, page, self.ranks, self.job, self.path, self.asked, START)
        return self.said("over", lines, how=how, pitfall=page.slug, title=page.title, ranks=sorted(self.ranks),
                         path=path)
