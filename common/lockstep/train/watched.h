// torch's own optimizers and samplers, made to tell what they do (observe/observer.h). They train as they always did.
//
//   Watched<torch::optim::SGD> optimizer(model.parameters(), 0.1);     // or SGD, which is the same
//   Watched<torch::data::samplers::DistributedRandomSampler> sampler(size, world_size, rank);
#pragma once

#include <lockstep/observe/observer.h>
#include <torch/data/samplers/distributed.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <concepts>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep {

template <class Base>
class Watched;

// Of LBFGS, whose closure runs several backwards in a step, the first one's gradients are told.
template <std::derived_from<torch::optim::Optimizer> Base>
class Watched<Base> final : public Base {
 public:
  template <class... Arguments>
  explicit Watched(Arguments&&... arguments) : Base(std::forward<Arguments>(arguments)...) {
    tell([&](Observer& to) { to.optimizer_made(*this); });
  }

  at::Tensor step(Place place = Place::here()) {
    tell_began("update", place);
    return step(typename Base::LossClosure());
  }
  at::Tensor step(typename Base::LossClosure closure) override {
    const auto begins = [this] { tell([&](Observer& to) { to.update_begins(*this); }); };
    if (closure)
      closure = [begins, inner = std::move(closure)] {
        auto loss = inner();
        begins();
        return loss;
      };
    else
      begins();
    auto loss = Base::step(std::move(closure));
    tell([&](Observer& to) { to.update_ended(*this); });
    return loss;
  }
  // Not virtual in torch: call it on this type, not on a reference to torch's.
  void zero_grad(bool set_to_none = true) {
    tell([&](Observer& to) { to.zero_grad("optimizer"); });
    Base::zero_grad(set_to_none);
  }
};

// A loader copies its sampler: set_epoch on yours does not reach the loader's (pytorch/pytorch#73141), and is told all
// the same.
template <std::derived_from<torch::data::samplers::DistributedSampler<>> Base>
class Watched<Base> final : public Base {
 public:
  using Base::Base;

  void set_epoch(std::size_t epoch) {
    Base::set_epoch(epoch);
    tell([&](Observer& to) { to.set_epoch(static_cast<std::int64_t>(epoch)); });
  }
  void reset(std::optional<std::size_t> new_size = std::nullopt) override {
    Base::reset(new_size);
    begun_ = false;
  }
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override {
    auto batch = Base::next(batch_size);
    const bool first = !std::exchange(begun_, true);
    tell([&](Observer& to) {
      if (first)
        to.pass_begins(static_cast<std::int64_t>(this->epoch()),
                       static_cast<std::int64_t>(this->size_));
      if (batch)
        to.dealt({batch->begin(), batch->end()});
      else
        to.pass_dealt();
    });
    return batch;
  }

 private:
  bool begun_ = false;
};

using SGD = Watched<torch::optim::SGD>;

}  // namespace lockstep
