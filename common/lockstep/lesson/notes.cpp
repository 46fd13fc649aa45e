#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/notes.h>
#include <lockstep/observe/parameters_of.h>

#include <utility>

namespace lockstep {
namespace {

// An evaluation's passes and draws are none of the training's.
bool trains() {
  return torch::GradMode::is_enabled();
}

}  // namespace

void Notes::wrapped(torch::nn::Module& module, const std::string&) {
  model_ = module.weak_from_this();
}

void Notes::replicated(const std::vector<std::shared_ptr<torch::nn::Module>>& copies) {
  model_ = copies.front();
}

void Notes::loss(const at::Tensor& per_sample, const at::Tensor& outputs,
                 const at::Tensor& targets) {
  loss_.add(per_sample);
  if (outputs.defined() && outputs.dim() == 2) accuracy_.add(outputs.argmax(1) == targets);
}

void Notes::fetch(const Fetch& fetch) {
  if (fetch.phase == "evaluation" || !trains()) return;
  pass_.drawn(fetch.ids);
  drawn_.insert(drawn_.end(), fetch.ids.begin(), fetch.ids.end());
  ++batches_;
  // For an oracle of a run that dies on its first batch.
  context_.outcome().ids["drawn"] = {fetch.ids};
  add_figure(context_, "batch_size", static_cast<double>(fetch.ids.size()));
}

void Notes::pass_begins(std::int64_t, std::int64_t) {
  if (!trains()) return;
  end_pass();
  pass_ = {};
}

void Notes::dealt(const std::vector<std::int64_t>& ids) {
  if (trains()) pass_.dealt(ids);
}

void Notes::pass_dealt() {
  if (trains()) pass_.all_dealt();
}

void Notes::update_ended(torch::optim::Optimizer&) {
  if (pass_.is_done()) end_pass();
}

void Notes::end_pass() {
  auto& outcome = context_.outcome();
  if (loss_.count > 0) outcome.losses.push_back(loss_.value());
  if (accuracy_.count > 0) outcome.accuracy.push_back(accuracy_.value());
  if (batches_ > 0) {
    outcome.ids["train"].push_back(std::exchange(drawn_, {}));
    add_figure(context_, "batches", static_cast<double>(batches_));
    context_.write();  // the launcher may end this rank before it can say more
  }
  loss_ = accuracy_ = {};
  batches_ = 0;
}

void Notes::optimizer_made(torch::optim::Optimizer& optimizer) {
  parameters_ = parameters_of(optimizer);
}

const std::vector<at::Tensor>& Notes::parameters() const {
  if (parameters_.empty())
    throw UsageError(
        "no optimizer has told of itself: use SGD of train/watched.h, Watched<...> around another "
        "of torch's, or this library's Adam");
  return parameters_;
}

void Notes::finish() {
  end_pass();
}

}  // namespace lockstep
