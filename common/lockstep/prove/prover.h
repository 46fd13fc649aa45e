// A rank's updates, as python/lockstep_torch/proving/steps.py has a Python job's; and what the plan has it do in them.
#pragma once

#include <lockstep/launch/launch.h>
#include <lockstep/observe/observer.h>
#include <lockstep/prove/held.h>
#include <lockstep/prove/operations.h>
#include <lockstep/prove/plan.h>
#include <lockstep/prove/tilt.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::prove {

// It does what an observer else must not: it moves parameters, and ends the process.
class Prover final : public Observer {
 public:
  explicit Prover(Plan plan);

  void install();
  void write();
  void fails(const std::string& error);

  void began(const char* kind, const Place& place) override;
  void wrapping(torch::nn::Module& module) override;
  void forward_begins(torch::nn::Module& module, const Tensors& inputs) override;
  void fetch(const Fetch& fetch) override;
  void pass_begins(std::int64_t, std::int64_t) override { deals_ = true; }
  void zero_grad(const std::string&) override {
    cleared_ |= backwards_ > 0 && optimizers_.size() < 2;
  }
  void clip(double, const at::Tensor&) override;
  void scaled_step(double scale, bool, bool) override { loss_ /= scale; }
  void optimizer_made(torch::optim::Optimizer& optimizer) override { place_of(optimizer); }
  void update_begins(torch::optim::Optimizer& optimizer) override;
  void update_ended(torch::optim::Optimizer& optimizer) override;
  void saving(const std::filesystem::path& file) override;
  void loaded(const std::filesystem::path& file, const std::vector<std::string>&,
              const std::vector<std::string>&, const std::vector<std::string>&) override;

  void backward(const at::Tensor& root, const std::optional<at::Tensor>& weight);

 private:
  std::size_t place_of(torch::optim::Optimizer& optimizer);
  void read_runs();
  void forget();
  void let_go(std::size_t number);
  void force(const Tensors& parameters);
  [[noreturn]] void enough(const std::string& error);
  bool has_saved_enough();
  void stop();
  std::filesystem::path file_of(int rank) const;
  Value read(const std::filesystem::path& file) const;

  Plan plan_;
  launch::Placement place_;
  std::int64_t bytes_ = 0;
  Operations operations_;
  Tilt tilt_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  std::vector<std::int64_t> made_,
      alone_;                    // updates of each, behind a call to other ranks, and others
  Value::List last_, names_of_;  // what each held behind its last update, and of its parameters
  std::vector<Value::Dict> updates_;
  std::optional<Value::List> forced_;
  std::map<const void*, std::string> names_;
  std::map<const void*, Value> before_clip_;
  // Since the last update.
  double loss_ = 0;
  std::int64_t backwards_ = 0;
  bool joined_ = false, cleared_ = false, updates_now_ = false, is_left_out_ = false;
  std::string line_;
  Value::List rows_, drawn_;
  std::vector<std::int64_t> fetched_;
  // Of all.
  std::set<std::string> functions_, drawing_, drew_, draws_each_step_, loose_;
  bool deals_ = false, written_ = false, has_enough_ = false, has_read_ = false;
  Value::List saved_, loaded_;
  std::string error_;
  std::optional<std::chrono::steady_clock::time_point> began_;  // to wait for a checkpoint
};

}  // namespace lockstep::prove
