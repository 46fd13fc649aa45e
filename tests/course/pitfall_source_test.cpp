// Lessons' functions folded to one variant, first by hand-made snippets, then every pitfall of the course.
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/course/cpp_text.h>
#include <lockstep/course/fold.h>
#include <lockstep/course/pitfall_source.h>

#include <algorithm>
#include <regex>
#include <set>

#include "../support/checkout.h"

namespace lockstep::course {
namespace {

TEST(Fold, AnIfWithItsElse) {
  const std::string function = R"(  void train(const Fault& fault) {
    begin();
    if (fault("no-sync")) {
      // "} else {" is a text.
    } else if (fault("near-miss-later")) {
      later();
    } else {
      for (auto& each : all) reduce(each);
    }
    end();
  }
)";
  EXPECT_EQ(fold(function, "no-sync"), R"(void train(const Fault& fault) {
  begin();
  // "} else {" is a text.
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

// What is left of a chain goes on from the `else` before it, with the conditions that are no switches.
TEST(Fold, AChain) {
  const std::string function = R"(void train() {
  if (fault("swapped") && is_last) {
    send();
    add();
  } else if (fault("near-miss-either")) {
    either();
  } else if (first()) {
    add();
  } else if (fault("near-miss-neither")) {
    neither();
  }
}
)";
  EXPECT_EQ(fold(function, ""), "void train() {\n  if (first()) {\n    add();\n  }\n}\n");
  EXPECT_EQ(fold(function, "near-miss-neither"),
            "void train() {\n  if (first()) {\n    add();\n  } else {\n    neither();\n  }\n}\n");
  EXPECT_EQ(fold(function, "swapped"), R"(void train() {
  if (is_last) {
    send();
    add();
  } else if (first()) {
    add();
  }
}
)");
}

TEST(Fold, ConditionsOfSeveralParts) {
  const std::string function = R"(void train() {
  if (fault("clip-early") || fault("near-miss-generous")) {
    clip(own);  // of this rank
  } else {
    reduce();
  }
  // Of one rank.
  if (fault("long-work") && step == 3) work();

  // All ranks stop at once.
  if (!fault("no-agreement"))
    stop = agree(
        stop);
  if (fault("dies"))
    exit(1);  // at once
  else
    go_on();
}
)";
  const std::string right = R"(void train() {
  reduce();

  // All ranks stop at once.
  stop = agree(
      stop);
  go_on();
}
)";
  EXPECT_EQ(fold(function, ""), right);
  const auto with = [&](const std::string& before, const std::string& after) {
    auto text = right;
    return text.replace(text.find(before), before.size(), after);
  };
  EXPECT_EQ(fold(function, "clip-early"), with("reduce();", "clip(own);  // of this rank"));
  EXPECT_EQ(fold(function, "near-miss-generous"), fold(function, "clip-early"));
  EXPECT_EQ(fold(function, "long-work"),
            with("reduce();", "reduce();\n  // Of one rank.\n  if (step == 3) work();"));
  EXPECT_EQ(fold(function, "no-agreement"),
            with("  // All ranks stop at once.\n  stop = agree(\n      stop);\n", ""));
  EXPECT_EQ(fold(function, "dies"), with("go_on();", "exit(1);"));
}

TEST(Fold, AChoice) {
  const std::string function = R"(void train() {
  const auto outputs =
      fault("bypassed") ? module->forward(inputs) : model(inputs);
  auto model = fault("near-miss-found") ? Model(module, {.find = true})
                                        : Model(module);
  draw(fault("unseeded") ? 0 : std::max(1, fault("near-miss-two") ? 2 : rank), seed);
  return !fault("empty") ? a::b(c, d) : b;
}
)";
  EXPECT_EQ(fold(function, ""), R"(void train() {
  const auto outputs = model(inputs);
  auto model = Model(module);
  draw(std::max(1, rank), seed);
  return a::b(c, d);
}
)");
  EXPECT_NE(fold(function, "bypassed").find("outputs = module->forward(inputs);\n"),
            std::string::npos);
  EXPECT_NE(fold(function, "unseeded").find("draw(0, seed);\n"), std::string::npos);
  EXPECT_NE(fold(function, "near-miss-two").find("std::max(1, 2), seed);\n"), std::string::npos);
  EXPECT_NE(fold(function, "empty").find("return b;\n"), std::string::npos);
}

TEST(Fold, BracesThatEndAGuardsLifeStay) {
  const std::string function = R"(void train() {
  if (fault("a")) {
    const torch::NoGradGuard no_grad;
    broadcast();
  } else {
    const double norm = 2;

    say(norm);
  }
  step();
}
)";
  EXPECT_EQ(fold(function, "a"), R"(void train() {
  {
    const torch::NoGradGuard no_grad;
    broadcast();
  }
  step();
}
)");
  EXPECT_EQ(fold(function, ""), R"(void train() {
  const double norm = 2;

  say(norm);
  step();
}
)");
}

TEST(Fold, NoBlankLineIsLeftBehind) {
  EXPECT_EQ(
      fold("void f() {\n  if (fault(\"a\")) begin();\n\n  go();\n\n  if (fault(\"b\")) wait();\n\n"
           "  more();\n\n  if (fault(\"a\")) end();\n}\n",
           ""),
      "void f() {\n  go();\n\n  more();\n}\n");
}

TEST(Fold, ASwitchElsewhereIsRefused) {
  for (const std::string statement :
       {"const bool late = fault(\"a\");", "if (late || fault(\"a\")) go();",
        "if (fault(\"a\") || late) go();", "f(fault(\"a\"));", "while (fault(\"a\")) go();",
        "for (;;)\n    if (fault(\"a\")) go();", "const int x = fault(\"a\") || y ? 1 : 2;",
        "if (fault(\"a\") || fault(\"b\") && late) go();",
        "const int x = y && fault(\"a\") ? 1 : 2;"})
    EXPECT_THROW(fold("void f() {\n  " + statement + "\n}\n", ""), Error) << statement;
}

TEST(Fold, WhatTheSwitchesDoNotTouchStays) {
  const std::string function =
      "int f() {\n  if (true) return g(\"fault(x)\", false, 1'000 ? '{' : 2);\n\n  return 0;\n}\n";
  EXPECT_EQ(fold(function, "any"), function);
}

TEST(PitfallSource, ASwitchHasItsOutermostFunction) {
  const TemporaryFolder folder("lockstep-variants");
  const std::string before =
      "// About.\n#include <a>\nnamespace {\nstruct A : B {\n  int x = 0;\n\n";
  const std::string function =
      "  // What it does.\n  void f(Options options = {}) override {\n    run([&] {\n      if "
      "(fault(\"x\") || fault(\"near-miss-y\")) return;\n      g();\n    });\n  }\n";
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

  write_file(file, before + "  bool x = fault(\"x\");\n};\n}\n");
  EXPECT_THROW(find_pitfalls(folder.path()), Error);
}

TEST(PitfallSource, EveryPitfallOfTheCourseFolds) {
  const std::regex near_miss(R"(near[\s/]+miss)", std::regex::icase);
  const auto pitfalls = find_pitfalls(testing::in_checkout(""));
  ASSERT_GE(pitfalls.size(), 100u);
  std::set<std::string> slugs;
  for (const auto& pitfall : pitfalls) {
    SCOPED_TRACE(pitfall.slug);
    EXPECT_TRUE(slugs.insert(pitfall.slug).second) << "two lessons have it";
    const auto source = read_file(pitfall.file);
    const auto function = source.substr(pitfall.begin, pitfall.end - pitfall.begin);
    EXPECT_NE(function.find("\"" + pitfall.slug + "\""), std::string::npos);
    EXPECT_TRUE(pitfall.begin > 0 && source[pitfall.begin - 1] == '\n');
    const auto code = code_of(pitfall);
    EXPECT_NE(code.broken, code.right);
    for (const auto& variant : {code.broken, code.right}) {
      const auto text = code_only(variant);
      EXPECT_EQ(variant.find("fault(\""), std::string::npos) << variant;
      EXPECT_FALSE(std::regex_search(variant, near_miss)) << variant;
      for (const auto* pair : {"{}", "()", "[]"})
        EXPECT_EQ(std::count(text.begin(), text.end(), pair[0]),
                  std::count(text.begin(), text.end(), pair[1]))
            << variant;
      EXPECT_NE(variant[0], ' ');
      EXPECT_TRUE(variant.ends_with("\n}\n")) << variant;
      // One function: its only brace at column 0 is the last.
      EXPECT_EQ(text.find("\n}"), text.size() - 3) << variant;
    }
  }
}

}  // namespace
}  // namespace lockstep::course
