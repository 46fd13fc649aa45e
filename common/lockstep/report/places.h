// The lines of its program that a job left beside its traces, and which of them a finding is about.
//
// places_RANK.jsonl has one object a line: kind, step, file, line (its number) and source (what stands there). The kinds
// `wrapping` (a gradient engine takes the model over), `pass`, `backward`, `update`, `checkpoint` (saved or loaded) and
// `collective` (the program's own): with that line the program began one, at this step for the first time. `stall`: the
// rank was there when it was asked or told to end, or when a collective failed. `raised`: there, an exception of its own
// began that ended the rank; a sixth key, raised, has its type and text.
#pragma once

#include <lockstep/diagnose/diagnose.h>
#include <lockstep/trace/reader.h>

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::report {

// Gives each finding its places. `folder` has the files of the job's last attempt. Returns what was left out of these
// files, and why, in a sentence each with file and line. Never throws for what files hold.
std::vector<std::string> add_places(const std::filesystem::path& folder, const trace::Trace& trace,
                                    diagnose::Diagnosis& diagnosis);

}  // namespace lockstep::report
