// Trains every variant of every setting with every seed, in one job, and writes a line of JSON for each run.
//
//   silence_cost FILE [--ranks N] [--seeds 0,1,...] [--settings a,b] [--variants correct,slug,...]
//                     [--samples N] [--epochs N] [--rate R] [--list]
//
// evaluation/silence_cost/silence_cost.py runs it and does the statistics. Exit code 77 where Fashion-MNIST is not installed.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "../../benchmarks/ranks.h"
#include "silence.h"

namespace {

using namespace lockstep;
using namespace lockstep::silence;
using nlohmann::json;

struct Options {
  std::string file;
  int ranks = 2;
  std::vector<std::uint64_t> seeds{0};
  std::vector<std::string> settings, variants;  // none: all
  std::int64_t samples = 2'051;                 // more than two or four ranks can share equally
  std::int64_t epochs = 6;
  double rate =
      0.2;  // the best of 0.025, 0.05, 0.1, 0.2 and 0.4 on seeds 10 to 13, which are not measured
  bool list = false;
};

bool wanted(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

void check(const Options& options) {
  std::vector<std::string> settings_known, variants_known{"correct"};
  for (const auto& setting : settings()) {
    settings_known.push_back(setting.name);
    variants_known.insert(variants_known.end(), setting.faults.begin(), setting.faults.end());
  }
  for (const auto& name : options.settings)
    if (!wanted(settings_known, name))
      throw UsageError("no setting is called \"" + name + "\"; see --list");
  for (const auto& name : options.variants)
    if (!wanted(variants_known, name))
      throw UsageError("no variant is called \"" + name + "\"; see --list");
  if (options.samples < 64 * options.ranks)
    throw UsageError("--samples must be at least 64 a rank, and is " +
                     std::to_string(options.samples));
}

// The pixels' mean and deviation, as everybody takes them for this data set.
TensorData normalized(const TensorData& data) {
  return {(data.inputs - 0.2860) / 0.3530, data.targets, data.phase};
}

// The samples of one seed: no seed has another's.
TensorData part_of(const TensorData& all, std::int64_t begin, std::int64_t count) {
  return {all.inputs.narrow(0, begin, count), all.targets.narrow(0, begin, count), all.phase};
}

void run_rank(const launch::Placement& place, const Options& options,
              const std::filesystem::path& scratch) {
  torch::set_num_threads(1);
  const auto group = init_process_group();
  Job job{.group = group, .seam = new_group(group, [&] {
                            std::vector<int> all;
                            for (int rank = 0; rank < place.world_size; ++rank) all.push_back(rank);
                            return all;
                          }())};
  job.epochs = options.epochs;
  job.rate = options.rate;
  job.test = normalized(fashion_mnist(Split::test));
  const auto of_seed = options.samples + options.samples / 4;
  const auto last = *std::max_element(options.seeds.begin(), options.seeds.end());
  const auto all =
      normalized(fashion_mnist(Split::train, of_seed * static_cast<std::int64_t>(last + 1)));
  if (all.size() < of_seed * static_cast<std::int64_t>(last + 1))
    throw UsageError("seed " + std::to_string(last) +
                     " needs samples that the training set does not have");

  std::ofstream lines;
  if (place.rank == 0) lines.open(options.file);
  for (const auto& setting : settings()) {
    if (!wanted(options.settings, setting.name)) continue;
    std::vector<std::string> variants{"correct"};
    variants.insert(variants.end(), setting.faults.begin(), setting.faults.end());
    for (const auto seed : options.seeds)
      for (const auto& variant : variants) {
        if (!wanted(options.variants, variant)) continue;
        const auto begin = of_seed * static_cast<std::int64_t>(seed);
        job.seed = seed;
        job.train = part_of(all, begin, options.samples);
        job.unused = part_of(all, begin + options.samples, options.samples / 4);
        job.folder = scratch / (setting.name + "_" + variant + "_" + std::to_string(seed));
        std::filesystem::create_directories(job.folder);
        torch::manual_seed(seed);
        const auto measured = setting.train(job, Fault(variant));
        std::vector<double> of_ranks;
        for (const auto& one : all_gather(*job.group, at::full({1}, measured, at::kDouble)))
          of_ranks.push_back(one.item<double>());
        if (place.rank == 0)
          lines << json{{"setting", setting.name},
                        {"variant", variant},
                        {"seed", seed},
                        {"measured", of_ranks}}
                << std::endl;
      }
  }
}

// Made-up data have no test set that is worth a point of accuracy.
void require_data() {
  try {
    fashion_mnist_folder();
  } catch (const Error& error) {
    throw UnavailableError(error.what());
  }
}

void run_all(const std::vector<std::string>& command, const Options& options) {
  require_data();
  const TemporaryFolder scratch("lockstep-silence");
  benchmark::run_ranks(command, options.ranks, scratch.path(), {}, std::chrono::hours(1));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("What silent faults cost: accuracies of every variant, a line of JSON each");
  app.add_option("file", options.file, "where to write the lines");
  app.add_option("--ranks", options.ranks)->check(CLI::Range(2, 16));
  app.add_option("--seeds", options.seeds)->delimiter(',');
  app.add_option("--settings", options.settings)->delimiter(',');
  app.add_option("--variants,--forms", options.variants)->delimiter(',');
  app.add_option("--samples", options.samples);
  app.add_option("--rate", options.rate, "of SGD at the global batch");
  app.add_option("--epochs", options.epochs)->check(CLI::Range(1, 1000));
  app.add_flag("--list", options.list, "say the settings and their faults, and run nothing");
  CLI11_PARSE(app, argc, argv);
  try {
    check(options);
    if (options.list) {
      for (const auto& setting : settings())
        for (const auto& fault : setting.faults) std::cout << setting.name << " " << fault << "\n";
    } else if (options.file.empty()) {
      throw UsageError("name the file to write");
    } else if (const auto rank = benchmark::as_rank()) {
      run_rank(rank->place, options, rank->folder);
    } else {
      run_all({argv, argv + argc}, options);
    }
    return kOk;
  } catch (const UsageError& error) {
    std::cerr << error.what() << "\n";
    launch::report_error(error);
    return kUsage;
  } catch (const UnavailableError& error) {
    std::cerr << "skipped: " << error.what() << "\n";
    return kSkipped;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    launch::report_error(error);
    return kCouldNotRun;
  }
}
