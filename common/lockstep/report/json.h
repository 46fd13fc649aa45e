// Parts of a report as JSON text: the same in a lesson's report and in a job's.
#pragma once

#include <lockstep/diagnose/finding.h>
#include <lockstep/report/pictures.h>
#include <lockstep/report/stall.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep::report {

std::string findings_json(const std::vector<diagnose::Finding>& findings);
std::string stall_json(const std::optional<Stall>& stall);  // null where there is none
std::string pictures_json(const Pictures& pictures);

}  // namespace lockstep::report
