// Collectives that are left out, added, moved or called otherwise, and ranks that do not come to them.
#include <lockstep/base/error.h>
#include <sys/resource.h>

#include <csignal>
#include <thread>

#include "operators.h"

namespace lockstep::mutants {
namespace {

using Change =
    std::function<WorkPtr(Tensors&, c10d::AllreduceOptions, const Tampering::AllReduce&)>;

bool is_rank(const Parts& parts, int rank) {
  return parts.place.rank == rank;
}

// Changes the first gradient's all-reduce of update kChangedStep.
void change_once(Parts& parts, Change change) {
  parts.tampering->allreduce = [&parts, change, done_it = false](
                                   Tensors& tensors, c10d::AllreduceOptions options,
                                   const Tampering::AllReduce& inner) mutable {
    if (parts.step != kChangedStep || std::exchange(done_it, parts.step == kChangedStep))
      return inner(tensors, options);
    return change(tensors, options, inner);
  };
}

// On rank 1 only.
std::function<void(Parts&)> once_on_rank_1(Change change) {
  return [change](Parts& parts) {
    if (is_rank(parts, 1)) change_once(parts, change);
  };
}

std::function<void(Parts&)> once_everywhere(Change change) {
  return [change](Parts& parts) { change_once(parts, change); };
}

WorkPtr leave_out(Tensors& tensors, c10d::AllreduceOptions, const Tampering::AllReduce&) {
  return done(tensors);
}

WorkPtr with_op(c10d::ReduceOp::RedOpType op, Tensors& tensors, c10d::AllreduceOptions options,
                const Tampering::AllReduce& inner) {
  options.reduceOp = op;
  return inner(tensors, options);
}

// Instead of the backward of update kChangedStep.
std::function<void(Parts&)> on_rank_1_instead(std::function<void(Parts&)> act) {
  return [act](Parts& parts) {
    if (!is_rank(parts, 1)) return;
    parts.forward = [&parts, act, forward = parts.forward](const at::Tensor& inputs) {
      if (parts.step == kChangedStep) act(parts);
      return forward(inputs);
    };
  };
}

void after_update(Parts& parts, std::function<void()> act) {
  parts.share = [&parts, act, share = parts.share] {
    share();
    if (parts.step == kChangedStep) act();
  };
}

}  // namespace

std::vector<Operator> collective_operators() {
  return shown_in(
      {"ended", "gradient", "replicas", "update"},
      {
          {"all-reduce-left-out-on-one-rank",
           {"rank-conditional-collective"},
           once_on_rank_1(leave_out)},
          {"all-reduce-left-out-once", {"gradient-not-the-mean"}, once_everywhere(leave_out)},
          {"all-reduce-result-not-waited-for",
           {"gradient-not-the-mean"},
           once_everywhere([](Tensors& tensors, auto options, const auto& inner) {
             Tensors arrives_later{tensors.at(0).clone()};
             inner(arrives_later, options)->wait();
             return done(tensors);
           })},
          {"maximum-for-sum",
           {"gradient-not-the-mean"},
           once_everywhere([](Tensors& tensors, auto options, const auto& inner) {
             return with_op(c10d::ReduceOp::MAX, tensors, options, inner);
           })},
          {"product-on-one-rank",
           {"reduce-op-mismatch"},
           once_on_rank_1([](Tensors& tensors, auto options, const auto& inner) {
             return with_op(c10d::ReduceOp::PRODUCT, tensors, options, inner);
           })},
          {"integers-on-one-rank",
           {"dtype-mismatch"},
           once_on_rank_1([](Tensors& tensors, auto options, const auto& inner) {
             Tensors as_integers{tensors.at(0).view(torch::kInt32)};
             inner(as_integers, options)->wait();
             return done(tensors);
           })},
          {"fewer-elements-on-one-rank",
           {"shape-mismatch"},
           once_on_rank_1([](Tensors& tensors, auto options, const auto& inner) {
             Tensors fewer{tensors.at(0).reshape(-1).slice(0, 1)};
             inner(fewer, options)->wait();
             return done(tensors);
           })},
          {"all-reduce-more-on-one-rank",
           {"rank-conditional-collective"},
           [](Parts& parts) {
             if (!is_rank(parts, 0)) return;
             after_update(parts, [&parts] {
               auto loss = parts.last_loss.clone();
               all_reduce(*parts.group, loss);
             });
           }},
          {"barrier-on-one-rank",
           {"rank-conditional-collective"},
           [](Parts& parts) {
             if (is_rank(parts, 0)) after_update(parts, [&parts] { barrier(*parts.group); });
           }},
          {"broadcast-left-out-on-one-rank",
           {"rank-conditional-collective"},
           [](Parts& parts) {
             if (!is_rank(parts, 1)) return;
             parts.tampering->broadcast = [&parts](Tensors& tensors, auto options,
                                                   const auto& inner) {
               return parts.step == kChangedStep ? done(tensors) : inner(tensors, options);
             };
           },
           {},
           kNotDdp},
          {"each-its-own-root",
           {"root-mismatch"},
           [](Parts& parts) {
             parts.tampering->broadcast = [&parts](Tensors& tensors, auto options,
                                                   const auto& inner) {
               if (parts.step == kChangedStep) options.rootRank = parts.place.rank;
               return inner(tensors, options);
             };
           },
           {},
           kNotDdp},
          {"reduced-in-reverse-on-one-rank",
           {"order-mismatch"},
           [](Parts& parts) {
             if (is_rank(parts, 1)) std::reverse(parts.parameters.begin(), parts.parameters.end());
           },
           {},
           {Engine::by_hand}},
          {"shared-before-reduced-on-one-rank",
           {"order-mismatch"},
           [](Parts& parts) {
             if (!is_rank(parts, 1)) return;
             parts.reduce = [reduce = parts.reduce, share = std::exchange(parts.share, [] {})] {
               share();
               reduce();
             };
           },
           {},
           {Engine::sharded}},
          {"one-rank-is-killed", {"peer-dies"}, on_rank_1_instead([](Parts&) {
             const rlimit none{0, 0};
             setrlimit(RLIMIT_CORE, &none);
             std::raise(SIGKILL);
           })},
          {"one-rank-throws", {"one-rank-raises"}, on_rank_1_instead([](Parts&) {
             throw Error("no such sample");
           })},
          {"one-rank-leaves", {"no-progress"}, on_rank_1_instead([](Parts&) { std::_Exit(0); })},
          {"one-rank-takes-too-long", {"slow-rank"}, on_rank_1_instead([](Parts& parts) {
             std::this_thread::sleep_for(parts.place.timeout * 9 / 8);  // the fault itself
           })},
      });
}

}  // namespace lockstep::mutants
