#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace lockstep::benchmark {
namespace {

using nlohmann::json;

double median(const json& figure) {
  return figure["median"].get<double>();
}

__attribute__((format(printf, 1, 2))) std::string line(const char* format, ...) {
  char text[160];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

std::string interval(const json& figure) {
  if (figure.is_null()) return "";
  return line("%.2f [%.2f, %.2f]", median(figure), figure["low"].get<double>(),
              figure["high"].get<double>());
}

std::string parts(const json& ddp) {
  return line("%8.1f %8.1f %7.1f %6.1f %7.1f", median(ddp["forward"]), median(ddp["backward"]),
              median(ddp["waiting"]), median(ddp["update"]), median(ddp["step"]));
}

void add_ranks(json& lines, const json& cases) {
  lines.push_back(
      "model, batch 32 a rank    ranks  forward backward waiting update    step  speed-up");
  for (const auto& one : cases) {
    if (one["question"] != "ranks") continue;
    const auto& ddp = one["ddp"][0];
    const auto model = line("%s, %.2g MB", one["model"].get<std::string>().c_str(),
                            one["gradient_megabytes"].get<double>());
    lines.push_back(line("%-26s %4d %s  %s", model.c_str(), one["ranks"].get<int>(),
                         parts(ddp).c_str(), interval(ddp["speedup"]).c_str()));
  }
}

void add_buckets(json& lines, const json& cases) {
  for (const auto& one : cases) {
    if (one["question"] != "buckets") continue;
    const auto& link = one["link_megabytes_a_second"];
    lines.push_back("");
    lines.push_back(line("large MLP, batch 128 a rank, 2 ranks, %s",
                         link.is_null() ? "Gloo on this machine"
                                        : line("a link of %.0f MB/s", link.get<double>()).c_str()));
    lines.push_back(line("without all-reduce %.1f, all-reduce alone %.1f",
                         median(one["no_sync"]["step"]), median(one["all_reduce"])));
    lines.push_back(
        "buckets                         forward backward waiting update    step  hidden");
    for (const auto& ddp : one["ddp"])
      lines.push_back(line("%2d of %2g MiB or less             %s  %s", ddp["buckets"].get<int>(),
                           ddp["bucket_mib"].get<double>(), parts(ddp).c_str(),
                           interval(ddp["hidden"]).c_str()));
  }
}

void add_batches(json& lines, const json& cases) {
  lines.push_back("");
  lines.push_back("large MLP, 2 ranks, the same link, 6 buckets");
  lines.push_back(
      "batch a rank  computing  all-reduce    step   rule  step / rule        speed-up");
  for (const auto& one : cases) {
    if (one["question"] != "batches") continue;
    const auto& ddp = one["ddp"][0];
    const auto& computing = one["no_sync"];
    const double expected = rule(median(computing["step"]), median(computing["backward"]),
                                 median(one["all_reduce"]), ddp["buckets"].get<std::int64_t>());
    lines.push_back(line("%12d %10.1f %11.1f %7.1f %6.1f  %-18s %s", one["batch"].get<int>(),
                         median(computing["step"]), median(one["all_reduce"]), median(ddp["step"]),
                         expected, interval(ddp["to_rule"]).c_str(),
                         interval(ddp["speedup"]).c_str()));
  }
}

}  // namespace

double rule(double computing, double backward, double all_reduce, std::int64_t buckets) {
  return computing + std::max(all_reduce / static_cast<double>(buckets), all_reduce - backward);
}

json printed(const json& cases) {
  json lines = json::array();
  add_ranks(lines, cases);
  add_buckets(lines, cases);
  add_batches(lines, cases);
  return lines;
}

}  // namespace lockstep::benchmark
