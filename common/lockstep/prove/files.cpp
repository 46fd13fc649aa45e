// The prover's files, and how it begins and ends.
#include <lockstep/base/environment.h>
#include <lockstep/base/say.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/observe/backward_hook.h>
#include <lockstep/observe/own_operations.h>
#include <lockstep/prove/begin.h>
#include <lockstep/prove/prover.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

namespace lockstep::prove {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBeyond = 3;             // updates that are made behind the first checkpoint
constexpr std::size_t kKept = 24;               // the last updates, whose parameters are remembered
constexpr std::chrono::seconds kWaits{20};      // for a checkpoint
constexpr std::chrono::seconds kOthersEnd{20};  // how long a rank that has done enough waits

// In the working folder, or empty.
std::string path_here(const fs::path& file) {
  const auto path = fs::absolute(file).lexically_normal().lexically_relative(fs::current_path());
  return path.empty() || *path.begin() == ".." ? "" : path.string();
}

// Until the process ends. Made when it is asked for, since that is before main.
std::shared_ptr<Prover>& prover() {
  static auto* const held = new std::shared_ptr<Prover>;
  return *held;
}

template <class Which>
Value::List sorted(const std::set<std::string>& texts, Which&& which) {
  Value::List found;
  for (const auto& text : texts)
    if (which(text)) found.emplace_back(text);
  return found;
}

Value::List sorted(const std::set<std::string>& texts) {
  return sorted(texts, [](const auto&) { return true; });
}

}  // namespace

bool Prover::has_saved_enough() {
  if (!plan_.saves) return false;
  if (updates_.size() > kKept) let_go(updates_.size() - kKept - 1);
  std::int64_t stop_at = 0;
  if (std::ifstream file(plan_.folder / "stop_at"); file >> stop_at)
    return *std::ranges::max_element(made_) >= stop_at;
  if (!began_) began_ = Clock::now();
  if (Clock::now() - *began_ > kWaits) stop();
  return false;
}

// All ranks, a few updates from here; the first to say so says it.
void Prover::stop() {
  const auto part = plan_.folder / ("stop_at." + std::to_string(getpid()));
  std::ofstream(part) << *std::ranges::max_element(made_) + kBeyond << "\n";
  std::error_code is_told;
  fs::create_hard_link(part, plan_.folder / "stop_at", is_told);
}

void Prover::saving(const fs::path& file) {
  if (path_here(file).empty()) return;
  std::error_code none;
  const auto real = fs::weakly_canonical(file, none);
  if (!real.empty() && path_here(real).empty())
    enough(path_here(file) +
           " is a link that leads out of the working folder, where lockstep prove writes nothing; "
           "put a copy in its place");
  if (updates_.empty()) return;
  saved_.push_back(path_here(file));
  if (plan_.saves) stop();
}

fs::path Prover::file_of(int rank) const {
  return plan_.folder / ("rank_" + std::to_string(rank) + ".pt");
}

Value Prover::read(const fs::path& file) const {
  const Unobserved unobserved;
  return load_checkpoint(file, {.map_location = "cpu"}).value;
}

void Prover::loaded(const fs::path& file, const std::vector<std::string>&,
                    const std::vector<std::string>&, const std::vector<std::string>&) {
  std::error_code none;
  if (fs::last_write_time(file, none) < fs::last_write_time(plan_.folder / "plan.json"))
    loaded_.push_back(path_here(file));
}

void Prover::fails(const std::string& error) {
  if (error_.empty()) error_ = error;
  write();
}

void Prover::write() {
  if (std::exchange(written_, true) || (updates_.empty() && error_.empty())) return;
  const OwnOperations own;
  const Unobserved unobserved;
  Value::List updates;
  for (auto& each : updates_) updates.emplace_back(std::move(each));
  save_checkpoint(
      file_of(place_.rank),
      Value::Dict{{"rank", place_.rank},
                  {"world_size", place_.world_size},
                  {"error", error_},
                  {"enough", has_enough_},
                  {"updates", updates},
                  {"last", last_},
                  {"names", names_of_},
                  {"functions", sorted(functions_)},
                  {"constant", Value::List{}},
                  {"neutral", sorted(operations_.notes)},
                  {"sites", sorted(draws_each_step_,
                                   [&](const auto& site) { return !loose_.contains(site); })},
                  {"loose", sorted(draws_each_step_,
                                   [&](const auto& site) { return loose_.contains(site); })},
                  {"detached", plan_.tilt ? Value::List{} : tilt_.windows()},
                  {"batches", deals_ ? Value::List{1} : Value::List{}},
                  {"joined", true},
                  {"samples", deals_},
                  {"unseeded", Value::List{}},
                  {"saved", saved_},
                  {"loaded", loaded_}},
      {.sync = false});
}

// This process ends here, and nothing of the program's runs any further.
void Prover::enough(const std::string& error) {
  if (error_.empty()) error_ = error;
  has_enough_ = error_.empty();
  write();
  const auto until = Clock::now() + kOthersEnd;
  const auto all_there = [&] {
    for (int rank = 0; rank < place_.world_size; ++rank)
      if (!fs::exists(file_of(rank))) return false;
    return true;
  };
  while (Clock::now() < until && !all_there())
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::fflush(nullptr);
  _exit(0);
}

bool begin_where_asked() {
  const auto file = environment("LOCKSTEP_PROVE");
  if (!file) return false;
  try {
    prover() = std::make_shared<Prover>(read_plan(*file));
    prover()->install();
    hook_backward([](const at::Tensor& root, const auto& weight, bool) {
      if (prover()) prover()->backward(root, weight);
    });
    observe(prover());
    std::atexit([] { prover()->write(); });
    static const auto ends = std::get_terminate();
    std::set_terminate([] {
      std::string error = "it was terminated";
      try {
        if (std::current_exception()) std::rethrow_exception(std::current_exception());
      } catch (const std::exception& thrown) {
        error = thrown.what();
      } catch (...) {
      }
      prover()->fails(error.substr(0, error.find('\n')));
      ends();
    });
  } catch (const std::exception& error) {
    say(std::string("LOCKSTEP_PROVE: ") + error.what() + "\n");
    std::_Exit(1);
  }
  return true;
}

}  // namespace lockstep::prove
