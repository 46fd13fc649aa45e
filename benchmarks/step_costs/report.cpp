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

std::string head(const std::string& name, const char* last) {
  return line("%-32s%8s%10s%9s%8s%8s  %s", name.c_str(), "forward", "backward", "waiting", "update",
              "step", last);
}

std::string row(const std::string& name, const json& ddp, const json& last) {
  return line("%-32s%8.1f%10.1f%9.1f%8.1f%8.1f  %s", name.c_str(), median(ddp["forward"]),
              median(ddp["backward"]), median(ddp["waiting"]), median(ddp["update"]),
              median(ddp["step"]), interval(last).c_str());
}

void add_ranks(json& lines, const json& cases) {
  lines.push_back(head("batch 32 a rank", "speed-up"));
  for (const auto& one : cases) {
    if (one["question"] != "ranks") continue;
    const auto& ddp = one["ddp"][0];
    const int ranks = one["ranks"];
    const auto name =
        line("%s, %.2g MB, %d %s", one["model"].get<std::string>().c_str(),
             one["gradient_megabytes"].get<double>(), ranks, ranks == 1 ? "rank" : "ranks");
    lines.push_back(row(name, ddp, ddp["speedup"]));
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
    lines.push_back(head("", "hidden            saved"));
    for (const auto& ddp : one["ddp"]) {
      const int buckets = ddp["buckets"];
      const auto name = line("%d %s, bucket_cap_mb=%g", buckets,
                             buckets == 1 ? "bucket" : "buckets", ddp["bucket_mib"].get<double>());
      lines.push_back(
          line("%-94s %s", row(name, ddp, ddp["hidden"]).c_str(), interval(ddp["saved"]).c_str()));
    }
  }
}

void add_batches(json& lines, const json& cases) {
  lines.push_back("");
  lines.push_back("large MLP, 2 ranks, the same link, bucket_cap_mb=4");
  lines.push_back(
      "batch a rank   computing  all-reduce    step    rule  step / rule        speed-up");
  for (const auto& one : cases) {
    if (one["question"] != "batches") continue;
    const auto& ddp = one["ddp"][0];
    const auto& computing = one["no_sync"];
    const double expected = rule(median(computing["step"]), median(computing["backward"]),
                                 median(one["all_reduce"]), ddp["buckets"].get<std::int64_t>());
    lines.push_back(line("%12d%12.1f%12.1f%8.1f%8.1f  %-19s%s", one["batch"].get<int>(),
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
