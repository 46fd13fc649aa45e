#include <lockstep/dist/process_group.h>
#include <lockstep/observe/own_operations.h>
#include <lockstep/observe/parameters_of.h>
#include <lockstep/prove/prover.h>
#include <lockstep/train/distributed_sampler.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep::prove {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{2} << 30;  // of updates that are remembered
constexpr std::size_t kFewest = 3;                          // updates, before a rank ends for them
constexpr std::int64_t kAlone = 1000;  // times as many updates without a call to other ranks

}  // namespace

Prover::Prover(Plan plan) : plan_(std::move(plan)) {
  if (const auto place = launch::placement_from_environment()) place_ = *place;
}

void Prover::install() {
  operations_.wide = plan_.wide;
  operations_.still = plan_.still;
  operations_.before = [this] { tilt_.look_at_grad_mode(); };
  operations_.detached = [this](const at::Tensor& own) { return tilt_.detached(own); };
  operations_.drawn = [this](const std::string& site, bool is_known, const at::Tensor& numbers) {
    drawing_.insert(site);
    if (!is_known) loose_.insert(site);
    if (!plan_.still || !plan_.still->contains(site))
      drawn_.emplace_back(numbers.data().to(at::kDouble).sum().item<double>());
  };
  at::manual_seed(static_cast<std::uint64_t>(place_.rank));
  intercept(operations_);
  if (plan_.joins) join_replicas(plan_.ranks);
  swap_replicas(plan_.swaps);
  if (plan_.by_gloo) prepare_groups([](InitOptions& options) { options.backend = "gloo"; });
}

// Once, before the first update: the files of the runs that this one goes by.
void Prover::read_runs() {
  if (std::exchange(has_read_, true)) return;
  const auto rank = static_cast<std::size_t>(place_.rank);
  if (const auto& tilt = plan_.tilt) {
    const auto plain = read(tilt->plain / file_of(place_.rank).filename());
    tilt_.size = tilt->size;
    tilt_.probes = read(tilt->probes).as_list().at(rank).as_list();
    tilt_.kept = plain.at("detached").as_list();
    forced_ = plain.at("updates").as_list();
  }
  if (plan_.force)
    forced_ = read(*plan_.force / file_of(place_.rank).filename()).at("updates").as_list();
}

std::size_t Prover::place_of(torch::optim::Optimizer& optimizer) {
  const auto found = std::ranges::find(optimizers_, &optimizer);
  if (found != optimizers_.end()) return static_cast<std::size_t>(found - optimizers_.begin());
  optimizers_.push_back(&optimizer);
  made_.push_back(0);
  alone_.push_back(0);
  last_.emplace_back();
  names_of_.emplace_back(Value::List{});
  return optimizers_.size() - 1;
}

void Prover::began(const char* kind, const Place& place) {
  if (std::string_view(kind) == "update")
    line_ =
        std::filesystem::path(place.file).filename().string() + ":" + std::to_string(place.line);
  joined_ |= std::string_view(kind) == "collective";
}

void Prover::wrapping(torch::nn::Module& module) {
  for (const auto& each : module.named_parameters())
    names_[each.value().unsafeGetTensorImpl()] = each.key();
}

void Prover::fetch(const Fetch& fetch) {
  if (fetch.phase != "evaluation")
    fetched_.insert(fetched_.end(), fetch.ids.begin(), fetch.ids.end());
}

void Prover::forward_begins(torch::nn::Module& module, const Tensors& inputs) {
  const OwnOperations own;
  const auto parameters = module.parameters();
  if (!c10::GradMode::is_enabled() ||
      std::ranges::none_of(parameters, [](const auto& each) { return each.requires_grad(); }))
    return;
  joined_ = true;
  tilt_.start();
  if (const auto rows = rows_of(inputs); rows.defined()) rows_.emplace_back(rows);
}

void Prover::backward(const at::Tensor& root, const std::optional<at::Tensor>& weight) {
  const OwnOperations own;
  before_clip_.clear();
  const auto value = root.data();
  loss_ += (weight && weight->defined() ? value * *weight : value).sum().item<double>();
  ++backwards_;
  add_own_functions(root, functions_);
}

void Prover::clip(double, const at::Tensor&) {
  const OwnOperations own;
  for (auto* optimizer : optimizers_)
    for (const auto& each : parameters_of(*optimizer))
      before_clip_.try_emplace(each.unsafeGetTensorImpl(), copied(each.grad()));
}

void Prover::update_begins(torch::optim::Optimizer& optimizer) {
  const OwnOperations own;
  if (std::exchange(updates_now_, true)) return;
  read_runs();
  const auto place = place_of(optimizer);
  const auto parameters = parameters_of(optimizer);
  ++(joined_ ? made_ : alone_)[place];
  is_left_out_ = !joined_ && alone_[place] > plan_.steps;
  if (is_left_out_) return forget();
  tilt_.end(static_cast<std::int64_t>(updates_.size()));
  for (const auto& each : parameters) bytes_ += 3 * static_cast<std::int64_t>(each.nbytes());
  if (bytes_ > kMostBytes)
    enough(updates_.size() >= kFewest ? ""
                                      : "three updates of its parameters are larger than 2 GiB");
  if (rows_.empty() && !fetched_.empty())
    rows_.emplace_back(at::tensor(fetched_, at::kLong).to(at::kDouble));
  Value::List gradients, unclipped, trains, names;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& each = parameters[i];
    gradients.push_back(copied(each.grad()));
    const auto before = before_clip_.find(each.unsafeGetTensorImpl());
    unclipped.push_back(before == before_clip_.end() ? gradients.back() : before->second);
    trains.emplace_back(each.requires_grad());
    const auto name = names_.find(each.unsafeGetTensorImpl());
    names.emplace_back(name == names_.end() ? "parameter " + std::to_string(i) : name->second);
  }
  names_of_[place] = names;
  const auto held = state_of(optimizer);
  updates_.push_back({{"optimizer", place},
                      {"loss", loss_},
                      {"backwards", backwards_},
                      {"rows", rows_},
                      {"before", copied_all(parameters)},
                      {"gradients", gradients},
                      {"unclipped", unclipped},
                      {"trains", trains},
                      {"digest", held.at("digest")},
                      {"options", held.at("options")},
                      {"drawn", drawn_},
                      {"drew", !drawn_.empty()},
                      {"cleared", cleared_},
                      {"line", line_},
                      {"sharded", false},
                      {"hooked", false},
                      {"closure", false}});
  std::ranges::set_intersection(drawing_, drew_,
                                std::inserter(draws_each_step_, draws_each_step_.end()));
  drew_ = std::exchange(drawing_, {});
  before_clip_.clear();
  forget();
  force(parameters);
}

void Prover::forget() {
  loss_ = 0;
  backwards_ = 0;
  joined_ = cleared_ = false;
  rows_.clear();
  drawn_.clear();
  fetched_.clear();
}

// Another run's parameters and gradients, so that this update is its, too, and the next step begins there.
void Prover::force(const Tensors& parameters) {
  const auto number = updates_.size() - 1;
  if (!forced_ || number >= forced_->size()) return;
  const auto& other = (*forced_)[number];
  const auto &before = other.at("before").as_list(), &gradients = other.at("gradients").as_list();
  bool is_like = other.at("optimizer").as_int() == updates_[number].at("optimizer").as_int() &&
                 before.size() == parameters.size();
  for (std::size_t i = 0; is_like && i < parameters.size(); ++i)
    is_like = before[i].as_tensor().sizes() == parameters[i].sizes();
  if (!is_like) {
    forced_.reset();
    return;
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].data().copy_(before[i].as_tensor());
    auto& own = parameters[i].mutable_grad();
    if (gradients[i].is_none())
      own.reset();
    else if (!own.defined() || own.is_sparse())
      own = gradients[i].as_tensor().to(parameters[i].options());
    else
      own.data().copy_(gradients[i].as_tensor());
  }
}

void Prover::update_ended(torch::optim::Optimizer& optimizer) {
  const OwnOperations own;
  updates_now_ = false;
  if (!is_left_out_) {
    auto& update = updates_.back();
    const auto parameters = parameters_of(optimizer);
    update["closure"] = backwards_ > 0;
    // What the other run goes on with: it may have moved by other options.
    if (forced_ && updates_.size() <= forced_->size()) {
      const auto& after = (*forced_)[updates_.size() - 1].at("after").as_list();
      for (std::size_t i = 0; i < parameters.size(); ++i)
        parameters[i].data().copy_(after[i].as_tensor());
    }
    update["after"] = copied_all(parameters);
    if (plan_.saves) {
      auto held = state_of(optimizer);
      held["before"] = update.at("after");
      last_[place_of(optimizer)] = held;
    }
    std::vector<Tensors> all;
    for (auto* each : optimizers_) all.push_back(parameters_of(*each));
    tilt_.begin(static_cast<std::int64_t>(updates_.size()), all);
  }
  std::int64_t alone = 0;
  for (const auto each : alone_) alone += each;
  const bool used_up = forced_ && updates_.size() >= forced_->size();
  if (*std::ranges::max_element(made_) >= plan_.steps || used_up || has_saved_enough() ||
      alone >= kAlone * plan_.steps)
    enough("");
}

// Of an update that is not looked at any more, only its figures stay.
void Prover::let_go(std::size_t number) {
  for (const auto& each : updates_[number].at("before").as_list())
    bytes_ -= 3 * static_cast<std::int64_t>(each.as_tensor().nbytes());
  for (const char* name : {"before", "gradients", "unclipped", "after"})
    updates_[number][name] = Value::List{};
}

}  // namespace lockstep::prove
