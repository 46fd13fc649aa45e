// What a step of data-parallel training costs: forward, backward, waiting for the all-reduce, update, and how much of
// the all-reduce was hidden under backward. By ranks and models, bucket sizes, and batch sizes.
//
//   step_costs [FILE] [--rounds N]    default: the checkout's reports/out/step_costs.json, 16
//
// In C++ with our library: DDP is Python's engine, and nothing here waits for an interpreter's lock. Where the parts
// lie is told by the process group's backend, so DDP itself runs unchanged: the last all-reduce of a step begins when
// the last gradient is there, and what backward takes from then on is waiting.
//
// In a round each kind of work has a turn, in an order that rotates: steps with DDP, steps under no_sync, all-reduces
// of equal buckets with nothing else to do, and steps of rank 0 while the others wait. Figures are medians of the
// rounds and their distribution-free 95 % intervals, ratios those of a round's two turns. Parts are means over ranks.
//
// Gloo's own all-reduce needs the processors that backward needs. Bucket and batch sizes are therefore measured over an
// imitated link, too (step_costs/job.h), which is slower and leaves the processors alone, as a network does.
#include <lockstep/base/processors.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "interval.h"
#include "ranks.h"
#include "rounds.h"
#include "step_costs/job.h"

namespace {

using namespace lockstep;
using namespace lockstep::benchmark;
using nlohmann::json;

constexpr double kLink = 400;  // megabytes a second
constexpr const char* kOverLink = "LOCKSTEP_BENCHMARK_OVER_LINK";

struct Case {
  std::string question;  // "ranks", "buckets" or "batches"
  JobSettings job;
};

std::vector<Case> cases(bool over_link, int world_size) {
  const std::vector<double> sizes = {1, 4, 8, 25};
  std::vector<Case> all;
  if (!over_link) {
    for (const char* model : {"convolutions", "small MLP", "large MLP"})
      all.push_back({"ranks", {.model = model, .buckets_mib = {-1}}});
    all[1].job.steps = 8;  // they are short
    if (world_size != 2) return all;
  }
  all.push_back(
      {"buckets", {.model = "large MLP", .batch = 128, .buckets_mib = sizes, .steps = 1}});
  if (over_link)
    for (const int batch : {8, 32, 128, 512})
      all.push_back(
          {"batches", {.model = "large MLP", .batch = batch, .buckets_mib = {4}, .steps = 1}});
  return all;
}

// The kinds of work: DDP with the i-th size of buckets is kKinds + i.
enum : std::size_t { kAlone, kNoSync, kAllReduce, kKinds };

struct Measured {
  std::vector<double> alone, all_reduce;
  std::vector<Parts> no_sync;
  std::vector<std::vector<Parts>> ddp;  // [size of buckets][round]
};

template <std::size_t kSizes>
Measured measure(Job& job, int rounds) {
  Measured all;
  all.ddp.resize(kSizes);
  in_turns<kKinds + kSizes>(rounds, 1, [&](std::size_t kind) {
    if (kind == kAlone) return all.alone.emplace_back(job.alone());
    if (kind == kAllReduce) return all.all_reduce.emplace_back(job.all_reduce());
    auto& parts = kind == kNoSync ? all.no_sync.emplace_back(job.no_sync())
                                  : all.ddp[kind - kKinds].emplace_back(job.ddp(kind - kKinds));
    return parts.step();
  });
  return all;
}

// The mean over ranks. Collective. Alone is only rank 0, for which the others have noted 0.
void average(Measured& all, c10d::ProcessGroup& group) {
  const int world_size = group.getSize();
  const auto mean = [&](double* values, std::size_t count) {
    auto tensor = torch::from_blob(values, {static_cast<std::int64_t>(count)}, torch::kDouble);
    all_reduce(group, tensor);
    tensor /= world_size;
  };
  constexpr std::size_t kFigures = sizeof(Parts) / sizeof(double);
  mean(all.alone.data(), all.alone.size());
  for (auto& time : all.alone) time *= world_size;
  mean(all.all_reduce.data(), all.all_reduce.size());
  mean(&all.no_sync.front().forward, kFigures * all.no_sync.size());
  for (auto& each : all.ddp) mean(&each.front().forward, kFigures * each.size());
}

json parts_of(const std::vector<Parts>& rounds) {
  const auto figure = [&](const auto& of) {
    std::vector<double> values;
    for (const auto& parts : rounds) values.push_back(of(parts));
    return median_with_interval(std::move(values));
  };
  return {{"step", figure([](const Parts& parts) { return parts.step(); })},
          {"forward", figure([](const Parts& parts) { return parts.forward; })},
          {"backward", figure([](const Parts& parts) { return parts.backward; })},
          {"waiting", figure([](const Parts& parts) { return parts.waiting; })},
          {"update", figure([](const Parts& parts) { return parts.update; })},
          {"reducing", figure([](const Parts& parts) { return parts.reducing; })},
          {"exposed", figure([](const Parts& parts) { return parts.exposed; })}};
}

// The rule that the page gives. Milliseconds that a step should take: computing, and what backward cannot hide of the
// all-reduce. The last bucket fills when backward is over, so at least its share is waited for.
double rule(double computing, double backward, double all_reduce, std::int64_t buckets) {
  return computing + std::max(all_reduce / static_cast<double>(buckets), all_reduce - backward);
}

// What compares a step with DDP with the other turns of its round.
json compared(const Measured& all, std::size_t which, int world_size, std::int64_t buckets) {
  std::vector<double> speedup, to_no_sync, hidden, saved, to_rule;
  for (std::size_t i = 0; i < all.alone.size(); ++i) {
    const double step = all.ddp[which][i].step(), without = all.no_sync[i].step();
    const double reduce = all.all_reduce[i];
    speedup.push_back(world_size * all.alone[i] / step);
    to_no_sync.push_back(step / without);
    hidden.push_back(1 - all.ddp[which][i].exposed / all.ddp[which][i].reducing);
    saved.push_back((without + reduce - step) / reduce);
    to_rule.push_back(step / rule(without, all.no_sync[i].backward, reduce, buckets));
  }
  return {{"speedup", median_with_interval(speedup)},
          {"to_no_sync", median_with_interval(to_no_sync)},
          {"hidden", world_size > 1 ? median_with_interval(hidden) : json()},
          {"saved", world_size > 1 ? median_with_interval(saved) : json()},
          {"to_rule", median_with_interval(to_rule)}};
}

json result_of(const Case& what, const Job& job, const Measured& all, int world_size,
               bool over_link) {
  json ddp = json::array();
  for (std::size_t i = 0; i < all.ddp.size(); ++i) {
    const double cap = what.job.buckets_mib[i];
    json one = parts_of(all.ddp[i]);
    one.update(compared(all, i, world_size, job.buckets(i)));
    one["bucket_mib"] = cap < 0 ? json("default") : json(cap);
    one["buckets"] = job.buckets(i);
    ddp.push_back(std::move(one));
  }
  return {{"question", what.question},
          {"model", what.job.model},
          {"parameters", job.parameters()},
          {"gradient_megabytes", 4e-6 * static_cast<double>(job.parameters())},
          {"batch", what.job.batch},
          {"ranks", world_size},
          {"link_megabytes_a_second", over_link ? json(kLink) : json()},
          {"alone", median_with_interval(all.alone)},
          {"no_sync", parts_of(all.no_sync)},
          {"all_reduce", median_with_interval(all.all_reduce)},
          {"ddp", ddp}};
}

// ---- what is printed ----

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

// The lines, as a list: medians, milliseconds a step.
json printed(const json& cases) {
  json lines = json::array();
  add_ranks(lines, cases);
  add_buckets(lines, cases);
  add_batches(lines, cases);
  return lines;
}

// ---- the runs ----

void run_rank(const launch::Placement& place, const std::filesystem::path& folder, int rounds) {
  torch::set_num_threads(1);
  const bool over_link = environment(kOverLink).has_value();
  NotedBackend* noted = nullptr;
  auto group = init_process_group({.decorate = [&](BackendPtr backend, const StorePtr&) {
    auto made = c10::make_intrusive<NotedBackend>(std::move(backend), over_link ? kLink * 1e6 : 0);
    noted = made.get();
    return made;
  }});
  json results = json::array();
  for (const auto& each : cases(over_link, place.world_size)) {
    Job job(each.job, group, *noted);
    auto all = each.job.buckets_mib.size() == 1 ? measure<1>(job, rounds) : measure<4>(job, rounds);
    average(all, *group);
    results.push_back(result_of(each, job, all, place.world_size, over_link));
  }
  destroy_process_group(group);
  if (place.rank == 0) write_file(folder / "results.json", results.dump());
}

std::string today() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  char text[sizeof "2000-01-01"];
  std::strftime(text, sizeof text, "%F", std::gmtime(&now));
  return text;
}

std::string revision() {
  char text[64] = "";
  if (auto* git =
          popen("git -C '" LOCKSTEP_SOURCE_DIR "' rev-parse --short HEAD 2>/dev/null", "r")) {
    if (std::fgets(text, sizeof text, git) == nullptr) text[0] = '\0';
    pclose(git);
  }
  const std::string line(text);
  return line.empty() ? "unknown" : line.substr(0, line.find('\n'));
}

void run_all(const std::vector<std::string>& command, int rounds,
             const std::filesystem::path& file) {
  json result = {{"benchmark", "step_costs"}, {"date", today()},
                 {"revision", revision()},    {"processors", processors_of_this_process().size()},
                 {"threads_a_rank", 1},       {"torch", TORCH_VERSION},
                 {"rounds", rounds},          {"load_average", {{"before", load_average()}}},
                 {"cases", json::array()}};
  const auto add = [&](int world_size, bool over_link) {
    const TemporaryFolder folder("lockstep-step-costs");
    std::map<std::string, std::string> variables = {{"OMP_NUM_THREADS", "1"}};
    if (over_link) variables[kOverLink] = "1";
    run_ranks(command, world_size, folder.path(), variables);
    for (auto& one : json::parse(read_file(folder.path() / "results.json")))
      result["cases"].push_back(std::move(one));
  };
  for (const int world_size : {1, 2, 4}) add(world_size, false);
  add(2, true);
  result["load_average"]["after"] = load_average();
  result["printed"] = printed(result["cases"]);
  write_file(file, result.dump(2) + "\n");
  for (const auto& line : result["printed"]) std::cout << line.get<std::string>() << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  return main_of(
      argc, argv,
      {.file = "step_costs.json",
       .about = "The parts of a data-parallel step, and how much communication is hidden",
       .each = "rounds, in which each kind of step has a turn"},
      [&](int rounds, const std::string& file) {
        if (const auto rank = as_rank())
          run_rank(rank->place, rank->folder, rounds);
        else
          run_all({argv, argv + argc}, rounds, file);
      });
}
