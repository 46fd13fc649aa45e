#include <cxxabi.h>
#include <lockstep/base/clock.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/json_text.h>
#include <lockstep/launch/error_file.h>
#include <lockstep/launch/launch.h>

#include <cstdlib>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <typeinfo>

namespace lockstep::launch {
namespace {

using nlohmann::json;

std::string type_name(const std::exception& error) {
  const char* raw = typeid(error).name();
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(raw, nullptr, nullptr, &status), &std::free);
  return status == 0 ? readable.get() : raw;
}

void write_json(const std::string& path, const json& content) {
  write_file(path, json_text(content, 2) + "\n");
}

json own_report(const std::exception& error) {
  json report{{"type", type_name(error)},
              {"text", error.what()},
              {"collective", false},
              {"raised_ns", monotonic_ns()}};
  if (const auto* collective = dynamic_cast<const CollectiveError*>(&error)) {
    report["collective"] = true;
    report["rank"] = collective->rank;
    report["operation"] = collective->operation;
    report["sequence"] = collective->sequence;
    report["timeout_ms"] = collective->timeout.count();
  }
  return report;
}

// As torch.distributed.elastic.multiprocessing.errors.ErrorHandler.record_exception writes it, the
// timestamp in whole seconds and as text. torchrun shows py_callstack where a Python rank has its
// traceback, so the message stands there too.
json torchrun_report(const std::exception& error) {
  const std::string message = type_name(error) + ": " + error.what();
  return {{"message",
           {{"message", message},
            {"extraInfo",
             {{"py_callstack", message}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
}

// One report that cannot be written must not cost the other, nor hide the exception itself.
template <typename Report>
void write_where(const char* variable, const Report& report) noexcept {
  try {
    if (const auto path = environment(variable)) write_json(*path, report());
  } catch (...) {  // NOLINT(bugprone-empty-catch)
    // The caller is about to exit with the error itself.
  }
}

}  // namespace

void report_error(const std::exception& error) noexcept {
  write_where("LOCKSTEP_ERROR_FILE", [&] { return own_report(error); });
  write_where("TORCHELASTIC_ERROR_FILE", [&] { return torchrun_report(error); });
}

std::optional<ReportedError> read_error_file(const std::filesystem::path& path) {
  try {
    const json report = json::parse(read_file(path));
    return ReportedError{report.at("type").get<std::string>(), report.at("text").get<std::string>(),
                         report.at("collective").get<bool>(),
                         report.at("raised_ns").get<std::int64_t>()};
  } catch (const Error&) {  // not there
    return std::nullopt;
  } catch (const json::exception&) {  // not one of ours
    return std::nullopt;
  }
}

}  // namespace lockstep::launch
