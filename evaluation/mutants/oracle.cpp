#include "oracle.h"

#include <lockstep/train/clip_grad.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace lockstep::mutants {
namespace {

using Complaint = std::string;  // empty: nothing to complain of

template <class... T>
Complaint say(const T&... words) {
  std::ostringstream text;
  (text << ... << words);
  return text.str();
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).norm().item<double>() / std::max(1e-12, b.norm().item<double>());
}

void set(const std::vector<at::Tensor>& parameters, const at::Tensor& values) {
  torch::NoGradGuard no_grad;
  std::int64_t at = 0;
  for (auto parameter : parameters) {
    parameter.copy_(values.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    at += parameter.numel();
  }
}

std::int64_t number(const at::Tensor& one) {
  return one.item<std::int64_t>();
}

Complaint replicas(const std::vector<Seen>& ranks) {
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r].parameters.size() != ranks[0].parameters.size())
      return say("rank ", r, " made ", ranks[r].gradients.size(), " updates, rank 0 ",
                 ranks[0].gradients.size());
    for (std::size_t k = 0; k < ranks[r].parameters.size(); ++k)
      if (!torch::equal(ranks[r].parameters[k], ranks[0].parameters[k]))
        return say("before update ", k, " rank ", r, "'s parameters are off by ",
                   difference(ranks[r].parameters[k], ranks[0].parameters[k]));
  }
  return {};
}

// That of the mean loss over what all ranks drew for this update.
at::Tensor mean_gradient(const Program& program, Net& model, const std::vector<Seen>& ranks,
                         std::int64_t step) {
  std::vector<at::Tensor> inputs, targets;
  for (const auto& rank : ranks)
    for (std::size_t b = 0; b < rank.steps.size(); ++b)
      if (number(rank.steps[b]) == step) {
        inputs.push_back(rank.inputs[b]);
        targets.push_back(rank.targets[b]);
      }
  const TensorData batch{torch::cat(inputs), torch::cat(targets)};
  model->zero_grad();
  program.losses(model->forward(batch.inputs), batch).mean().backward();
  if (program.settings.max_norm > 0)
    clip_grad_norm_(model->parameters(), program.settings.max_norm);
  return flat_gradients(model->parameters());
}

Complaint gradient(const Program& program, Net& model, const std::vector<Seen>& ranks,
                   double tolerance) {
  for (std::size_t k = 0; k < ranks[0].gradients.size(); ++k) {
    set(model->parameters(), ranks[0].parameters[k]);
    const auto expected = mean_gradient(program, model, ranks, static_cast<std::int64_t>(k));
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (k >= ranks[r].gradients.size()) continue;
      const double off = difference(ranks[r].gradients[k], expected);
      if (!(off <= tolerance))
        return say("in update ", k, " rank ", r, "'s gradient is off by ", off, " of its norm");
    }
  }
  return {};
}

Complaint update(const Program& program, Net& model, const Seen& seen) {
  const auto parameters = model->parameters();
  set(parameters, seen.parameters[0]);
  auto optimizer = program.make_optimizer(parameters);
  std::int64_t epoch = 0;
  std::size_t b = 0;
  for (std::size_t k = 0; k < seen.gradients.size(); ++k) {
    while (b + 1 < seen.steps.size() && number(seen.steps[b]) < static_cast<std::int64_t>(k)) ++b;
    if (const auto now = number(seen.epochs[b]); program.settings.halve_lr && now != epoch) {
      epoch = now;
      for (auto& group : optimizer->param_groups())
        group.options().set_lr(group.options().get_lr() / 2);
    }
    std::int64_t at = 0;
    for (auto& parameter : parameters) {
      parameter.mutable_grad() =
          seen.gradients[k].narrow(0, at, parameter.numel()).view(parameter.sizes()).clone();
      at += parameter.numel();
    }
    optimizer->step();
    const double off = (flat(parameters) - seen.parameters[k + 1]).abs().max().item<double>();
    if (!(off <= 1e-5)) return say("update ", k, " moved rank 0's parameters otherwise, by ", off);
    set(parameters, seen.parameters[k + 1]);
  }
  return {};
}

Complaint samples(const std::vector<Seen>& ranks, std::int64_t size, std::int64_t epochs) {
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    std::vector<std::int64_t> times(static_cast<std::size_t>(size)), order;
    for (const auto& rank : ranks)
      for (std::size_t b = 0; b < rank.ids.size(); ++b) {
        if (number(rank.epochs[b]) != epoch) continue;
        for (std::int64_t i = 0; i < rank.ids[b].numel(); ++i) {
          order.push_back(rank.ids[b][i].item<std::int64_t>());
          ++times.at(static_cast<std::size_t>(order.back()));
        }
      }
    const auto [least, most] = std::minmax_element(times.begin(), times.end());
    if (*least != 1 || *most != 1)
      return say("in epoch ", epoch, " a sample was drawn ", *least, " to ", *most, " times");
    if (!orders.insert(order).second) return say("epoch ", epoch, " has an earlier one's order");
  }
  return {};
}

Complaint contents(const Program& program, const std::vector<Seen>& ranks) {
  const auto data = program.data(Split::train);
  std::vector<at::Tensor> noise;  // of each rank's first batch
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (std::size_t b = 0; b < ranks[r].ids.size(); ++b) {
      const auto added = ranks[r].inputs[b] - data.inputs.index_select(0, ranks[r].ids[b]);
      const double most = added.abs().max().item<double>();
      if (most > 8 * program.settings.noise)
        return say("rank ", r, "'s inputs differ from the data set's by ", most);
      if (b == 0) noise.push_back(added);
    }
  if (program.settings.noise <= 0) return {};
  for (std::size_t r = 1; r < noise.size(); ++r)
    if (noise[r].sizes() == noise[0].sizes() &&
        (noise[r] - noise[0]).abs().max().item<double>() < 1e-4)
      return say("rank ", r, " adds the noise that rank 0 adds");
  return {};
}

Complaint score(const Program& program, Net& model, const Seen& seen) {
  set(model->parameters(), seen.parameters.back());
  const auto test = program.data(Split::test);
  model->eval();
  torch::NoGradGuard no_grad;
  const double expected =
      program.score(model->forward(test.inputs), test) / static_cast<double>(test.size());
  model->train();
  const double reported = (seen.reported[0] / seen.reported[1]).item<double>();
  if (std::abs(reported - expected) <= 1e-4) return {};
  return say("reported ", reported, ", and it is ", expected);
}

std::filesystem::path file_of(const std::filesystem::path& folder, int rank, const char* what) {
  return folder / ("rank_" + std::to_string(rank) + "." + what + ".pt");
}

}  // namespace

void save(const Seen& seen, const std::filesystem::path& folder, int rank) {
  const auto write = [&](const std::vector<at::Tensor>& tensors, const char* what) {
    torch::save(tensors, file_of(folder, rank, what).string());
  };
  write(seen.parameters, "parameters"), write(seen.gradients, "gradients");
  write(seen.inputs, "inputs"), write(seen.targets, "targets"), write(seen.ids, "ids");
  write(seen.steps, "steps"), write(seen.epochs, "epochs"), write({seen.reported}, "reported");
}

Seen load(const std::filesystem::path& folder, int rank) {
  const auto read = [&](const char* what) {
    std::vector<at::Tensor> tensors;
    torch::load(tensors, file_of(folder, rank, what).string());
    return tensors;
  };
  return {read("parameters"), read("gradients"), read("inputs"), read("targets"),
          read("ids"),        read("steps"),     read("epochs"), read("reported").at(0)};
}

std::map<std::string, std::string> check(const Program& program, const std::vector<Seen>& ranks,
                                         const Tolerance& tolerance) {
  torch::manual_seed(0);
  auto model = program.make_model();
  std::map<std::string, Complaint> all{
      {"replicas", replicas(ranks)},
      {"gradient", tolerance.gradients ? gradient(program, model, ranks, tolerance.relative) : ""},
      {"update", update(program, model, ranks[0])},
      {"samples", samples(ranks, program.data(Split::train).size(), program.settings.epochs)},
      {"contents", contents(program, ranks)},
      {"score", score(program, model, ranks[0])}};
  std::erase_if(all, [](const auto& one) { return one.second.empty(); });
  return all;
}

}  // namespace lockstep::mutants
