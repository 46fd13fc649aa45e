// Lessons' functions folded to one form, first by hand-made snippets, then every pitfall of the course.
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/course/cpp_text.h>
#include <lockstep/course/fold.h>
#include <lockstep/course/forms.h>

#include <algorithm>
#include <set>

namespace lockstep::course {
namespace {

TEST(Fold, AnIfWithItsElse) {
  const std::string function = R"(  void train(const Fault& fault) {
    begin();
    if (fault("no-sync")) {  // PITFALL no-sync
      // Nothing: "} else {" is a text.
    } else if (!fault("near-miss-later")) {
      for (auto& each : all) reduce(each);
    } else {
      later();
    }
    end();
  }
)";
  EXPECT_EQ(fold(function, "no-sync"), R"(void train(const Fault& fault) {
  begin();
  // Nothing: "} else {" is a text.
  end();
}
)");
  EXPECT_EQ(fold(function, ""), R"(void train(const Fault& fault) {
  begin();
  for (auto& each : all) reduce(each);
  end();
}
)");
}

TEST(Fold, AConstantAndWhatRestsOnIt) {
  const std::string function = R"(void train() {
  const bool told = fault("near-miss-told");
  const bool late = fault("set-late");  // PITFALL set-late
  options.late = 1;
  if (!late && !told) set(mine);
  const int of_group = told ? mine : current();
  if (late)
    for (int i = 0; i < 3; ++i) wait();
}
)";
  EXPECT_EQ(fold(function, "set-late"), R"(void train() {
  options.late = 1;
  const int of_group = current();
  for (int i = 0; i < 3; ++i) wait();
}
)");
  EXPECT_EQ(fold(function, ""), R"(void train() {
  options.late = 1;
  set(mine);
  const int of_group = current();
}
)");
}

TEST(Fold, ConditionsOfSeveralParts) {
  const std::string function = R"(void train() {
  // One that is generous is a near
  // miss: nothing is clipped.
  const bool generous = fault("near-miss-generous");
  const auto own = generous ? 1e3 : kMax;
  if (generous || fault("clip-early")) {  // PITFALL clip-early
    clip(own);                            // of this rank
  } else {
    reduce();
  }
  if (fault(
          "of-one-rank") ||  // PITFALL of-one-rank
      generous)
    evaluate();
  if (step == 3 && (generous || fault("long-work"))) {  // PITFALL long-work
    work();
  }
  if (!fault("no-agreement"))  // PITFALL no-agreement
    stop = agree(stop);
  epoch = last + (fault("replayed") ? 0 : 1);  // PITFALL replayed
}
)";
  const std::string right = R"(void train() {
  reduce();
  stop = agree(stop);
  epoch = last + 1;
}
)";
  EXPECT_EQ(fold(function, ""), right);
  const auto with = [&](const std::string& before, const std::string& after) {
    auto text = right;
    return text.replace(text.find(before), before.size(), after);
  };
  EXPECT_EQ(fold(function, "clip-early"),
            with("reduce();", "const auto own = kMax;\n  clip(own);  // of this rank"));
  EXPECT_EQ(fold(function, "of-one-rank"), with("reduce();", "reduce();\n  evaluate();"));
  EXPECT_EQ(fold(function, "long-work"),
            with("reduce();", "reduce();\n  if (step == 3) {\n    work();\n  }"));
  EXPECT_EQ(fold(function, "no-agreement"), with("  stop = agree(stop);\n", ""));
  EXPECT_EQ(fold(function, "replayed"), with("last + 1", "last + 0"));
}

TEST(Fold, WhatIsNotReachedOrReplacedAtOnceGoes) {
  const std::string function = R"(double mean(const Rows& rows) {
  at::Tensor loss;
  if (fault("halved")) {  // PITFALL halved
    loss = half(rows);
  } else {
    loss = sum(rows);
  }
  if (fault("local")) {  // PITFALL local
    return rows.mean();
  }
  const double count = rows.size();
  return loss / count;
}
)";
  EXPECT_EQ(fold(function, "local"), R"(double mean(const Rows& rows) {
  at::Tensor loss = sum(rows);
  return rows.mean();
}
)");
  EXPECT_EQ(fold(function, "halved"), R"(double mean(const Rows& rows) {
  at::Tensor loss = half(rows);
  const double count = rows.size();
  return loss / count;
}
)");
}

TEST(Fold, BracesThatEndALifeOrHideANameStay) {
  const std::string function = R"(void train() {
  double norm = measured();
  if (fault("a")) {  // PITFALL a
    const torch::NoGradGuard no_grad;
    broadcast();
  } else {
    const double norm = 2;
    say(norm);
  }
  step(norm);
}
)";
  EXPECT_EQ(fold(function, "a"), R"(void train() {
  double norm = measured();
  {
    const torch::NoGradGuard no_grad;
    broadcast();
  }
  step(norm);
}
)");
  EXPECT_NE(fold(function, "").find("  {\n    const double norm = 2;\n    say(norm);\n  }\n"),
            std::string::npos);
}

TEST(Fold, WhatIsThereForOtherFormsGoes) {
  const std::string function = R"(void train() {
  const bool is_last = rank == world_size() - 1;
  const bool is_first = rank == 0;  // no switch is about it
  // Only for the copy.
  std::optional<Loader> loader;
  const auto tell = [&](int epoch) {
    say(epoch);
  };
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    int told = epoch;
    if (fault("drifted")) told = epoch + rank;  // PITFALL drifted
    bool split = true;
    if (fault("whole")) {  // PITFALL whole
      split = false;       // Everybody takes all.
    }
    int hidden = 128;
    if (fault("wider") && is_last) hidden += 1;  // PITFALL wider
    const torch::NoGradGuard no_grad;
    double rate = kRate;
    if (fault("near-miss-copy")) {
      loader.emplace(no_grad);
      tell(told);
    }
    rate *= fault("squared") ? 4 : 2;  // PITFALL squared
    deal(Mlp(hidden), rate,
         split ? rank : 0, told);
  }
}
)";
  const std::string right = R"(void train() {
  const bool is_first = rank == 0;  // no switch is about it
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const torch::NoGradGuard no_grad;
    double rate = kRate;
    rate *= 2;
    deal(Mlp(128), rate,
         rank, epoch);
  }
}
)";
  EXPECT_EQ(fold(function, ""), right);
  const auto with = [&](const std::string& before, const std::string& after) {
    auto text = right;
    return text.replace(text.find(before), before.size(), after);
  };
  EXPECT_EQ(fold(function, "squared"), with("rate *= 2", "rate *= 4"));
  EXPECT_EQ(fold(function, "whole"),
            with("         rank, epoch", "         // Everybody takes all.\n         0, epoch"));
  const auto drifted = fold(function, "drifted");
  EXPECT_NE(drifted.find("int told = epoch + rank;"), std::string::npos) << drifted;
  EXPECT_NE(drifted.find("rank, told);"), std::string::npos) << drifted;
  const auto wider = fold(function, "wider");
  EXPECT_NE(wider.find("int hidden = 128;"), std::string::npos) << wider;
  EXPECT_NE(wider.find("if (is_last) hidden += 1;"), std::string::npos) << wider;
}

TEST(Fold, WhatBecameShorterStandsOnItsLine) {
  const std::string function = R"(void train() {
  const auto samples =
      fault("near-miss-everything") ? all_of_them(kSamples) : part_of(rank, world_size);
  const auto untouched =
      1;
  for (int i = 0; i < (fault("near-miss-fewer") ? 2 : kBatches + 1); ++i) g(samples);
}
)";
  EXPECT_EQ(fold(function, ""), R"(void train() {
  const auto samples = part_of(rank, world_size);
  const auto untouched =
      1;
  for (int i = 0; i < kBatches + 1; ++i) g(samples);
}
)");
}

TEST(Fold, ANothingStaysWhereTheNextStatementGoes) {
  const std::string function = R"(void train() {
  if (fault("unsorted")) {  // PITFALL unsorted
    // Nothing: as it comes.
  } else {
    sort();
  }
  if (fault("near-miss")) return;
  go();
}
)";
  EXPECT_EQ(fold(function, "unsorted"), "void train() {\n  // Nothing: as it comes.\n  go();\n}\n");
}

// 1 / ranks and count / ranks would be divided as integers.
TEST(Fold, AValueOfAnotherTypeStandsForNoVariable) {
  const std::string head = "double f(int total, int ranks) {\n";
  for (const std::string line : {"  const double scale = 1;\n", "  const double scale = total;\n",
                                 "  const std::int64_t scale = total;\n"})
    EXPECT_EQ(
        fold(head + line + "  if (fault(\"x\")) return scale;\n  return scale / ranks;\n}\n", ""),
        head + line + "  return scale / ranks;\n}\n");
  EXPECT_EQ(fold(head + "  const int scale = total;\n  if (fault(\"x\")) return scale;\n"
                        "  return scale / ranks;\n}\n",
                 ""),
            head + "  return total / ranks;\n}\n");
}

TEST(Fold, WhatTheSwitchesDoNotTouchStays) {
  const std::string function =
      "int f() {\n  if (true) return g(\"fault(x)\", false, 1'000 ? '{' : 2);\n\n  return 0;\n}\n";
  EXPECT_EQ(fold(function, "any"), function);
}

TEST(Forms, AMarkHasItsOutermostFunction) {
  const TemporaryFolder folder("lockstep-forms");
  const std::string before =
      "// About.\n#include <a>\nnamespace {\nstruct A : B {\n  int x = 0;\n\n";
  const std::string function =
      "  // What it does.\n  void f(Options options = {}) override {\n    run([&] {\n      if "
      "(fault(\"x\")) return;  // "
      "PITFALL x\n      g();\n    });\n  }\n";
  const auto file = folder.path() / "lessons" / "01_a" / "a.cpp";
  write_file(file, before + function + "};\n}  // namespace\n");
  const auto pitfalls = find_pitfalls(folder.path());
  ASSERT_EQ(pitfalls.size(), 1u);
  const auto found = find_pitfall(pitfalls, "x");
  EXPECT_EQ(found.lesson, "01_a");
  EXPECT_EQ(found.file, file);
  EXPECT_EQ(found.line, 10);
  EXPECT_EQ(read_file(file).substr(found.begin, found.end - found.begin), function);
  EXPECT_THROW(find_pitfall(pitfalls, "y"), UsageError);

  write_file(file, before + "  // PITFALL x\n};\n}\n");
  EXPECT_THROW(find_pitfalls(folder.path()), Error);
}

TEST(Forms, EveryPitfallOfTheCourseFolds) {
  const auto pitfalls = find_pitfalls(LOCKSTEP_SOURCE_FOLDER);
  ASSERT_GE(pitfalls.size(), 100u);
  std::set<std::string> slugs;
  for (const auto& pitfall : pitfalls) {
    SCOPED_TRACE(pitfall.slug);
    EXPECT_TRUE(slugs.insert(pitfall.slug).second) << "two lessons have it";
    const auto source = read_file(pitfall.file);
    const auto function = source.substr(pitfall.begin, pitfall.end - pitfall.begin);
    EXPECT_NE(function.find("PITFALL " + pitfall.slug), std::string::npos);
    EXPECT_TRUE(pitfall.begin > 0 && source[pitfall.begin - 1] == '\n');
    const auto forms = forms_of(pitfall);
    EXPECT_NE(forms.broken, forms.right);
    for (const auto& form : {forms.broken, forms.right}) {
      const auto code = code_only(form);
      EXPECT_EQ(form.find("fault(\""), std::string::npos) << form;
      EXPECT_EQ(form.find("PITFALL"), std::string::npos) << form;
      EXPECT_EQ(form.find_first_of("\1\2"), std::string::npos) << form;
      for (const auto* pair : {"{}", "()", "[]"})
        EXPECT_EQ(std::count(code.begin(), code.end(), pair[0]),
                  std::count(code.begin(), code.end(), pair[1]))
            << form;
      EXPECT_NE(form[0], ' ');
      EXPECT_TRUE(form.ends_with("\n}\n")) << form;
      // One function: its only brace at column 0 is the last.
      EXPECT_EQ(code.find("\n}"), code.size() - 3) << form;
    }
  }
}

}  // namespace
}  // namespace lockstep::course
