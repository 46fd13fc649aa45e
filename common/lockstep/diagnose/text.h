// A diagnosis for people.
#pragma once

#include <lockstep/diagnose/diagnose.h>

#include <span>
#include <string>

namespace lockstep::diagnose {

enum class Language { cpp, python };
// Of the job: python where any rank is a Python process.
Language language_of(const trace::Trace& trace);

// A few lines for each finding.
std::string to_text(std::span<const Finding> findings, const std::string& folder = "");
// A few lines per finding, then one on what was looked for; at most 80 columns but for lines of the program, whose file
// is named from `folder` on where it is below; ends with a newline. Where nothing is found, what a job of that language
// would have to do to be seen better.
std::string to_text(const Diagnosis& diagnosis, Language job = Language::cpp,
                    const std::string& folder = "");

}  // namespace lockstep::diagnose
