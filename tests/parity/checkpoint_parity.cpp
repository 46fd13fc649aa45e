// The C++ half of the checkpoint parity runs; checkpoint_parity.py is its twin.
//
// usage: checkpoint_parity COMMAND ...         several commands, one process: COMMAND + COMMAND ...
//   train CASE FROM TO STEPS   continues from the checkpoint FROM (- : starts anew), trains STEPS
//                              steps, saves TO: model, optimizer, scheduler, rng_state, step
//   rewrite FROM TO            loads and saves again, without knowing what is in it
//   refuse FROM                prints what load_checkpoint says; fails where it loads
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/launch/guarded.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/models.h>
#include <torch/torch.h>

#include <iostream>
#include <memory>

namespace lockstep {
namespace {

namespace optim = torch::optim;

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name,
                                                 const std::vector<at::Tensor>& parameters) {
  if (name == "sgd") return std::make_unique<optim::SGD>(parameters, optim::SGDOptions(0.05));
  if (name == "sgd_momentum")
    return std::make_unique<optim::SGD>(parameters,
                                        optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4));
  if (name == "adam") return std::make_unique<Adam>(parameters, AdamOptions(0.01));
  if (name == "adam_amsgrad") {
    AdamOptions options(0.01);
    options.amsgrad(true);
    return std::make_unique<Adam>(parameters, options);
  }
  if (name == "adamw") return std::make_unique<AdamW>(parameters, AdamWOptions(0.01));
  if (name == "libtorch_adam")
    return std::make_unique<optim::Adam>(parameters, optim::AdamOptions(0.01));
  if (name == "libtorch_adamw")
    return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions(0.01));
  if (name == "rmsprop" || name == "rmsprop_centered")
    return std::make_unique<optim::RMSprop>(
        parameters,
        optim::RMSpropOptions(0.001).momentum(0.9).centered(name == "rmsprop_centered"));
  if (name == "adagrad")
    return std::make_unique<optim::Adagrad>(parameters, optim::AdagradOptions(0.01).lr_decay(0.1));
  throw UsageError("no case is named " + name);
}

void train(const std::string& name, const std::string& from, const std::string& to, int steps) {
  torch::manual_seed(1);
  ConvNet net(10);
  const auto optimizer = make_optimizer(name, net->parameters());
  SequentialLR scheduler(
      *optimizer,
      {std::make_shared<LinearLR>(*optimizer,
                                  LinearLROptions{.start_factor = 0.1, .total_iters = 4}),
       std::make_shared<CosineAnnealingLR>(*optimizer, CosineAnnealingLROptions{.T_max = 20})},
      {4});
  std::int64_t step = 0;
  if (from != "-") {
    const auto checkpoint = load_checkpoint(from);
    load_state_dict(*net, checkpoint.at("model"));
    load_state_dict(*optimizer, checkpoint.at("optimizer"));
    scheduler.load_state_dict(checkpoint.at("scheduler"));
    set_rng_state(checkpoint.at("rng_state").as_tensor());
    step = checkpoint.at("step").as_int();
  }
  for (const auto end = step + steps; step < end; ++step) {
    const auto inputs = torch::randn({8, 784});
    const auto targets = torch::randint(0, 10, {8}, torch::kInt64);
    optimizer->zero_grad();
    torch::nn::functional::cross_entropy(net(inputs), targets).backward();
    optimizer->step();
    scheduler.step();
  }
  save_checkpoint(to,
                  Value::Dict{{"model", state_dict(*net)},
                              {"optimizer", state_dict(*optimizer)},
                              {"scheduler", scheduler.state_dict()},
                              {"rng_state", get_rng_state()},
                              {"step", step}},
                  {.sync = false});
}

void run(const std::vector<std::string>& words) {
  const auto is = [&](const char* command, std::size_t count) {
    return words.size() == count + 1 && words[0] == command;
  };
  if (is("train", 4)) {
    train(words[1], words[2], words[3], std::stoi(words[4]));
  } else if (is("rewrite", 2)) {
    save_checkpoint(words[2], load_checkpoint(words[1], {.map_location = "cpu"}).value,
                    {.sync = false});
  } else if (is("refuse", 1)) {
    try {
      load_checkpoint(words[1], {.map_location = "cpu"});
    } catch (const Error& error) {
      std::cout << error.what() << '\n';
      return;
    }
    throw Error(words[1] + " was loaded");
  } else {
    throw UsageError("usage: see the top of checkpoint_parity.cpp");
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::launch::guarded([&] {
    torch::set_num_threads(1);
    std::vector<std::string> words;
    for (int i = 1; i <= argc; ++i) {
      if (i < argc && std::string(argv[i]) != "+") {
        words.emplace_back(argv[i]);
        continue;
      }
      lockstep::run(words);
      words.clear();
    }
  });
}
